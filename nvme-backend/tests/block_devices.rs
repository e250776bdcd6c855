//! Block devices, through loop devices: needs root and losetup; without them these tests say so and pass.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{fill, lease_filled, lease_one, on_lane, pattern, read_all};
use nvme_backend::{DriveKind, OpenDrive, OpenError, OpenOptions, list_block_devices};
use raid_core::lease::Segs;
use raid_core::ports::{Drive, Durability, IoKind, Pool, one_seg};
use raid_core::units::{BlockSize, DriveOffset};

const SIZE_BYTES: u64 = 8 << 20;

struct Loop {
    device: PathBuf,
    backing: PathBuf,
    _folder: tempfile::TempDir,
}

impl Loop {
    fn new(block_size: BlockSize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let backing = folder.path().join("backing");
        File::create(&backing).unwrap().set_len(SIZE_BYTES).unwrap();
        let output = Command::new("losetup")
            .args(["-f", "--show", "-b", &block_size.bytes().to_string()])
            .arg(&backing)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let device = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
                Some(Self { device, backing, _folder: folder })
            }
            other => {
                eprintln!("SKIPPED: no loop device here ({other:?})");
                None
            }
        }
    }

    /// What pulling the drive does to its block device: the size becomes `bytes`.
    fn shrink(&self, bytes: u64) {
        File::options().write(true).open(&self.backing).unwrap().set_len(bytes).unwrap();
        assert!(Command::new("losetup").arg("-c").arg(&self.device).status().unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

#[test]
fn a_block_device_round_trips_at_both_block_sizes() {
    for block_size in [BlockSize::B512, BlockSize::B4096] {
        let Some(device) = Loop::new(block_size) else { return };
        let open = OpenDrive::open(&device.device, OpenOptions::default()).unwrap();
        assert_eq!((open.block_size(), open.size_bytes()), (block_size, SIZE_BYTES));
        assert_eq!(open.identity().kind, DriveKind::Block);
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            let mut model = vec![0; usize::try_from(SIZE_BYTES).unwrap()];
            for (seed, at) in [(1_u64, 0_u64), (2, 1 << 20), (3, SIZE_BYTES - 65_536 * 2)] {
                let mut segs = Segs::new();
                for (i, lease) in (0..).zip(lane.arena().try_lease(Pool::Request, &[65_536, 65_536]).unwrap())
                {
                    let start = usize::try_from(at).unwrap() + i * 65_536;
                    let lease = fill(lease, seed);
                    model[start..start + 65_536].copy_from_slice(lease.bytes());
                    segs.push(lease.share());
                }
                let how = if seed == 2 { Durability::Fua } else { Durability::Cached };
                drive.write(DriveOffset(at), segs, how).await.unwrap();
            }
            drive.flush().await.unwrap();
            assert!(read_all(&lane, &drive).await == model);
            let block = u64::from(block_size.bytes());
            for (range, unmap) in
                [(block..block * 3, false), ((1 << 20)..(1 << 20) + 4096, true), (0..SIZE_BYTES, true)]
            {
                model[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()].fill(0);
                drive.zero(range, unmap).await.unwrap();
                assert!(read_all(&lane, &drive).await == model);
            }
        });
    }
}

#[test]
fn m8_a_held_block_device_is_busy_and_its_holder_named() {
    let Some(device) = Loop::new(BlockSize::B512) else { return };
    let first = OpenDrive::open(&device.device, OpenOptions::default()).unwrap();
    let error = OpenDrive::open(&device.device, OpenOptions::default()).unwrap_err();
    let OpenError::Busy { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, Some(std::process::id()));
    drop(first);
    OpenDrive::open(&device.device, OpenOptions::default()).unwrap();
}

#[test]
fn a_mounted_device_is_busy_and_the_mount_named() {
    let Some(device) = Loop::new(BlockSize::B512) else { return };
    let place = tempfile::tempdir().unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&device.device).status();
    let mounted = made.is_ok_and(|made| made.success())
        && Command::new("mount").arg(&device.device).arg(place.path()).status().is_ok_and(|ok| ok.success());
    if !mounted {
        eprintln!("SKIPPED: cannot make or mount a file system here");
        return;
    }
    let opened = OpenDrive::open(&device.device, OpenOptions::default());
    let listed =
        list_block_devices().into_iter().find(|listed| Path::new(&listed.identity.path) == device.device);
    assert!(Command::new("umount").arg(place.path()).status().unwrap().success());
    let Err(OpenError::Busy { holders, .. }) = opened else { panic!("{opened:?}") };
    let mount = format!("mounted on {}", place.path().display());
    assert_eq!(holders, std::slice::from_ref(&mount));
    let listed = listed.expect("listed by its path");
    assert_eq!(listed.identity.holders, [mount]);
    assert_eq!(listed.size_bytes, SIZE_BYTES);
}

#[test]
fn a_block_device_that_loses_its_blocks_is_gone_for_reads_and_writes() {
    let Some(device) = Loop::new(BlockSize::B512) else { return };
    let open = OpenDrive::open(&device.device, OpenOptions::default()).unwrap();
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let seg = lease_filled(&lane, 4096, 1);
        drive.write(DriveOffset(1 << 20), one_seg(seg), Durability::Fua).await.unwrap();
        device.shrink(1 << 19);
        let done = drive.read(DriveOffset(1 << 20), lease_one(&lane, 4096)).await;
        assert_eq!(done.result.unwrap_err().kind, IoKind::ShortRead);
        let done = drive.read(DriveOffset((1 << 19) - 4096), lease_one(&lane, 8192)).await;
        assert_eq!(done.result.unwrap_err().kind, IoKind::ShortRead);
        let seg = lease_filled(&lane, 4096, 2);
        let wrote = drive.write(DriveOffset(1 << 20), one_seg(seg), Durability::Cached).await;
        assert_eq!(wrote.unwrap_err().kind, IoKind::Gone);
        let seg = lease_filled(&lane, 8192, 3);
        let wrote = drive.write(DriveOffset((1 << 19) - 4096), one_seg(seg), Durability::Cached).await;
        assert_eq!(wrote.unwrap_err().kind, IoKind::Gone, "half a write is no write");
        device.shrink(SIZE_BYTES);
        let done = drive.read(DriveOffset(0), lease_one(&lane, 4096)).await;
        done.result.unwrap();
        assert_ne!(done.buf.unwrap()[0].bytes(), pattern(1, 4096));
    });
}
