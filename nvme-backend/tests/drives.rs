//! Drives: round trips, the edges, time-outs, exclusivity.

mod common;

use common::{fill, lease_filled, lease_one, on_lane, pattern, read_all};
use nvme_backend::{LaneDrive, OpenDrive, OpenOptions};
use raid_core::lease::{Leases, Segs};
use raid_core::ports::{Drive, Durability, IoKind, Pool, one_seg};
use raid_core::units::{BlockSize, DriveOffset};

const SIZE_BYTES: u64 = 8 << 20;

fn file_drive(folder: &tempfile::TempDir, options: OpenOptions) -> OpenDrive {
    let path = folder.path().join("drive");
    std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    OpenDrive::open(&path, options).unwrap()
}

/// Drives of both block sizes, direct and buffered, on disk, on tmpfs (which cannot zero a range without a hole) and in
/// memory.
fn all_kinds(folder: &tempfile::TempDir) -> Vec<(String, OpenDrive)> {
    let mut drives = Vec::new();
    if let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") {
        file.as_file().set_len(SIZE_BYTES).unwrap();
        let options = OpenOptions { direct: false, ..OpenOptions::default() };
        drives.push(("tmpfs".to_owned(), OpenDrive::open(file.path(), options).unwrap()));
    }
    for block_size in [BlockSize::B512, BlockSize::B4096] {
        for direct in [true, false] {
            let path = folder.path().join(format!("{block_size:?}-{direct}"));
            std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
            let options = OpenOptions { direct, block_size: Some(block_size), ..OpenOptions::default() };
            let drive = OpenDrive::open(&path, options).unwrap();
            drives.push((format!("file {block_size:?} direct {}", drive.is_direct()), drive));
        }
        drives.push((format!("ram {block_size:?}"), OpenDrive::ram(SIZE_BYTES, block_size)));
    }
    drives
}

#[test]
fn what_was_written_reads_back_and_zeroed_ranges_read_zero() {
    let folder = tempfile::tempdir().unwrap();
    for (name, open) in all_kinds(&folder) {
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            let block = drive.block_size().bytes();
            assert_eq!(drive.size_bytes(), SIZE_BYTES);
            let mut model = vec![0_u8; usize::try_from(SIZE_BYTES).unwrap()];
            let extents: [(u64, &[u32]); 5] = [
                (0, &[block]),
                (u64::from(block), &[65_536, 65_536, 16_384]),
                (1 << 20, &[4096, 65_536, 4096]),
                ((3 << 20) - 65_536, &[65_536, 65_536]),
                (SIZE_BYTES - u64::from(block), &[block]),
            ];
            for (seed, (at, sizes)) in (1..).zip(extents) {
                let how = if seed % 2 == 0 { Durability::Fua } else { Durability::Cached };
                let mut segs = Segs::new();
                let mut next = usize::try_from(at).unwrap();
                for lease in lane.arena().try_lease(Pool::Request, sizes).unwrap() {
                    let lease = fill(lease, seed);
                    model[next..next + lease.bytes().len()].copy_from_slice(lease.bytes());
                    next += lease.bytes().len();
                    segs.push(lease.share());
                }
                drive.write(DriveOffset(at), segs, how).await.unwrap();
            }
            drive.flush().await.unwrap();
            assert!(read_all(&lane, &drive).await == model, "{name}: after writes");
            let zero: [(std::ops::Range<u64>, bool); 4] = [
                (u64::from(block)..u64::from(block) * 9, false),
                (u64::from(block) * 2..(1 << 20) + 8192, true),
                ((2 << 20)..(5 << 20), false),
                ((5 << 20)..SIZE_BYTES, true),
            ];
            for (range, unmap) in zero {
                model[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()].fill(0);
                drive.zero(range, unmap).await.unwrap();
                assert!(read_all(&lane, &drive).await == model, "{name}: after zeroing, unmap {unmap}");
            }
            drive.flush().await.unwrap();
            assert_eq!(open.quarantined(), 0);
        });
    }
}

#[test]
fn commands_outside_the_drive_or_not_in_blocks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, open) in all_kinds(&folder) {
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            let block = drive.block_size().bytes();
            let read = async |at, bytes| {
                let done = drive.read(DriveOffset(at), lease_one(&lane, bytes)).await;
                assert_eq!(done.buf.expect("the buffer comes back").len(), 1);
                done.result.map_err(|error| error.kind)
            };
            assert_eq!(read(SIZE_BYTES, block).await, Err(IoKind::Invalid), "{name}");
            assert_eq!(read(SIZE_BYTES - u64::from(block), block * 2).await, Err(IoKind::Invalid), "{name}");
            assert_eq!(read(u64::MAX - u64::from(block) + 1, block).await, Err(IoKind::Invalid), "{name}");
            assert_eq!(read(1, block).await, Err(IoKind::Invalid), "{name}");
            assert_eq!(read(0, block / 2).await, Err(IoKind::Invalid), "{name}");
            assert_eq!(read(0, 0).await, Ok(()), "{name}");
            let seg = lease_filled(&lane, block, 1);
            let wrote = drive.write(DriveOffset(SIZE_BYTES), one_seg(seg), Durability::Cached).await;
            assert_eq!(wrote.unwrap_err().kind, IoKind::Invalid, "{name}");
            let reversed = std::ops::Range { start: 4096, end: 0 };
            assert_eq!(drive.zero(reversed, true).await.unwrap_err().kind, IoKind::Invalid, "{name}");
            let beyond = SIZE_BYTES - 4096..SIZE_BYTES + 4096;
            assert_eq!(drive.zero(beyond, false).await.unwrap_err().kind, IoKind::Invalid, "{name}");
            drive.zero(4096..4096, false).await.unwrap();
        });
    }
}

#[test]
fn a_truncated_file_answers_short_and_never_with_half_a_success() {
    let folder = tempfile::tempdir().unwrap();
    for direct in [true, false] {
        let open = file_drive(&folder, OpenOptions { direct, ..OpenOptions::default() });
        let truncate = std::fs::OpenOptions::new().write(true).open(open.path()).unwrap();
        truncate.set_len(4096).unwrap();
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            for (at, sizes) in [(0, &[8192_u32][..]), (0, &[4096, 4096]), (65_536, &[4096])] {
                let leases = lane.arena().try_lease(Pool::Request, sizes).unwrap();
                let done = drive.read(DriveOffset(at), leases).await;
                assert_eq!(done.result.unwrap_err().kind, IoKind::ShortRead);
                assert_eq!(done.buf.expect("the buffers come back").len(), sizes.len());
            }
            let done = drive.read(DriveOffset(0), lease_one(&lane, 4096)).await;
            done.result.unwrap();
        });
        drop(open);
    }
}

#[test]
fn a_read_only_drive_refuses_writes_and_zeroing() {
    let folder = tempfile::tempdir().unwrap();
    let open = file_drive(&folder, OpenOptions { read_only: true, ..OpenOptions::default() });
    assert!(open.is_read_only());
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let seg = lease_filled(&lane, 4096, 1);
        let wrote = drive.write(DriveOffset(0), one_seg(seg), Durability::Fua).await;
        assert_eq!(wrote.unwrap_err().kind, IoKind::Invalid);
        assert_eq!(drive.zero(0..4096, true).await.unwrap_err().kind, IoKind::Invalid);
        drive.flush().await.unwrap();
        drive.read(DriveOffset(0), lease_one(&lane, 4096)).await.result.unwrap();
    });
}

/// Futures dropped in flight give nothing back early: the buffers of later commands are never touched by them.
#[test]
fn dropped_commands_never_touch_buffers_that_are_in_use_again() {
    let folder = tempfile::tempdir().unwrap();
    for direct in [true, false] {
        let open = file_drive(&folder, OpenOptions { direct, ..OpenOptions::default() });
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            let out = lane.arena().bytes_out(Pool::Request);
            assert_eq!(out, 0);
            for block in 0..128_u64 {
                let seg = lease_filled(&lane, 65_536, block);
                drive.write(DriveOffset(block * 65_536), one_seg(seg), Durability::Cached).await.unwrap();
            }
            for round in 0..200_u64 {
                for i in 0..8_u64 {
                    let at = DriveOffset((round * 7 + i * 13) % 128 * 65_536);
                    drop(drive.read(at, lease_one(&lane, 65_536)));
                }
                // Written from blocks that must not be those of the reads still in flight.
                let block = (round * 31) % 128;
                let seg = lease_filled(&lane, 65_536, block);
                let expected = seg.clone();
                drop(drive.write(DriveOffset(block * 65_536), one_seg(seg), Durability::Cached));
                let held = lease_filled(&lane, 65_536, 1000 + round);
                let done = drive.read(DriveOffset(block * 65_536), lease_one(&lane, 65_536)).await;
                done.result.unwrap();
                assert_eq!(done.buf.unwrap()[0].bytes(), expected.bytes(), "round {round}");
                assert!(held.bytes() == pattern(1000 + round, 65_536), "round {round}: a stray write");
            }
            drive.flush().await.unwrap();
            while lane.in_flight() > 0 {
                lane.sleep_until(lane.now_ns() + 1_000_000).await;
            }
            assert_eq!(open.quarantined(), 0);
            assert_eq!(lane.arena().bytes_out(Pool::Request), 0, "every buffer came home");
            for block in 0..128_u64 {
                let done = drive.read(DriveOffset(block * 65_536), lease_one(&lane, 65_536)).await;
                done.result.unwrap();
                assert_eq!(done.buf.unwrap()[0].bytes(), pattern(block, 65_536), "block {block}");
            }
        });
        drop(open);
    }
}

#[test]
fn a_null_drive_leaves_bytes_as_they_are() {
    let open = OpenDrive::null(SIZE_BYTES, BlockSize::B4096);
    on_lane(async |lane| {
        let drive: LaneDrive = open.on_lane(&lane);
        let mut leases = Leases::new();
        leases.push(lease_filled(&lane, 4096, 7).into_lease().expect("one handle"));
        let done = drive.read(DriveOffset(0), leases).await;
        done.result.unwrap();
        assert_eq!(done.buf.unwrap()[0].bytes(), pattern(7, 4096));
    });
}

/// Seeded random commands, several in flight at a time over ranges that do not overlap, against a model.
#[test]
fn random_commands_in_flight_together_match_a_model() {
    let folder = tempfile::tempdir().unwrap();
    for (name, open) in all_kinds(&folder) {
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            let block = u64::from(drive.block_size().bytes());
            let mut model = vec![0_u8; usize::try_from(SIZE_BYTES).unwrap()];
            let mut state = 0x1234_5678_9abc_def1_u64;
            let mut random = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            for round in 0..60_u64 {
                let mut writes = Vec::new();
                let mut zeroes = Vec::new();
                // Sixteen stretches of the drive, one command in each.
                for stretch in 0..16_u64 {
                    let stretch_bytes = SIZE_BYTES / 16;
                    let bytes = (random() % (131_072 / block) + 1) * block;
                    let at =
                        stretch * stretch_bytes + random() % ((stretch_bytes - bytes) / block + 1) * block;
                    let range = usize::try_from(at).unwrap()..usize::try_from(at + bytes).unwrap();
                    if random().is_multiple_of(4) {
                        zeroes.push(drive.zero(at..at + bytes, random().is_multiple_of(2)));
                        model[range].fill(0);
                    } else {
                        let mut segs = Segs::new();
                        let content = pattern(round * 16 + stretch, range.len());
                        for piece in content.chunks(65_536) {
                            let mut lease = lease_one(&lane, u32::try_from(piece.len()).unwrap()).remove(0);
                            lease.bytes_mut().copy_from_slice(piece);
                            segs.push(lease.share());
                        }
                        let how =
                            if random().is_multiple_of(3) { Durability::Fua } else { Durability::Cached };
                        writes.push(drive.write(DriveOffset(at), segs, how));
                        model[range].copy_from_slice(&content);
                    }
                }
                for zero in zeroes {
                    zero.await.unwrap();
                }
                for write in writes {
                    write.await.unwrap();
                }
                if round % 7 == 0 {
                    drive.flush().await.unwrap();
                }
            }
            assert!(read_all(&lane, &drive).await == model, "{name}");
            assert_eq!(lane.arena().bytes_out(Pool::Request), 0);
        });
    }
}

#[test]
fn a_zero_whose_future_is_dropped_is_still_done_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    for (name, open) in all_kinds(&folder) {
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            for i in 0..SIZE_BYTES / 65_536 {
                let seg = lease_filled(&lane, 65_536, i);
                drive.write(DriveOffset(i * 65_536), one_seg(seg), Durability::Cached).await.unwrap();
            }
            drop(drive.zero(65_536..SIZE_BYTES - 65_536, false));
            let deadline_ns = lane.now_ns() + 30_000_000_000;
            while lane.tasks() > 0 || lane.in_flight() > 0 {
                assert!(lane.now_ns() < deadline_ns, "{name}");
                lane.sleep_until(lane.now_ns() + 1_000_000).await;
            }
            let all = read_all(&lane, &drive).await;
            let (head, rest) = all.split_at(65_536);
            let (middle, tail) = rest.split_at(rest.len() - 65_536);
            assert!(head == pattern(0, 65_536) && tail == pattern(SIZE_BYTES / 65_536 - 1, 65_536), "{name}");
            assert!(middle.iter().all(|&byte| byte == 0), "{name}");
        });
    }
}

/// Lanes share a drive: what one has written and flushed, another reads.
#[test]
fn lanes_share_one_open_drive() {
    let folder = tempfile::tempdir().unwrap();
    for (name, open) in all_kinds(&folder) {
        let writers: Vec<_> = (0..2_u64)
            .map(|lane_number| {
                let open = open.clone();
                std::thread::spawn(move || {
                    on_lane(async |lane| {
                        let drive = open.on_lane(&lane);
                        for i in (lane_number..128).step_by(2) {
                            let seg = lease_filled(&lane, 65_536, i);
                            drive
                                .write(DriveOffset(i * 65_536), one_seg(seg), Durability::Fua)
                                .await
                                .unwrap();
                        }
                    });
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        let all = on_lane(async |lane| read_all(&lane, &open.on_lane(&lane)).await);
        for (i, piece) in (0..).zip(all.chunks(65_536)) {
            assert!(piece == pattern(i, 65_536), "{name}: piece {i}");
        }
    }
}

#[test]
fn a_full_file_system_drops_the_member_and_says_why() {
    let place = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(place.path())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot mount a small tmpfs here");
        return;
    }
    let open = file_drive(&place, OpenOptions { direct: false, ..OpenOptions::default() });
    let error = on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        for at in (0..SIZE_BYTES).step_by(65_536) {
            let seg = lease_filled(&lane, 65_536, 1);
            if let Err(error) = drive.write(DriveOffset(at), one_seg(seg), Durability::Cached).await {
                return Some(error);
            }
        }
        None
    });
    drop(open);
    assert!(std::process::Command::new("umount").arg(place.path()).status().unwrap().success());
    let error = error.expect("8 MiB do not fit into 1 MiB");
    assert_eq!(error.kind, IoKind::Gone);
    assert!(error.context.contains("no space left"), "{error}");
}

/// A file cut short and written to again is as long as it was, with holes; what tells is its length in between.
#[test]
fn a_file_that_was_cut_short_is_not_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let drive = OpenDrive::open(&path, OpenOptions::default()).unwrap();
    assert!(drive.is_whole());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(!drive.is_whole());
    assert!(OpenDrive::ram(1 << 20, raid_core::units::BlockSize::B512).is_whole());
}
