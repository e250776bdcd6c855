//! Opening: exclusivity (SAFETY M8), what is not a drive, and errors that name the thing and the way on.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use nvme_backend::{OpenDrive, OpenError, OpenOptions, block_on_lane};
use raid_core::units::BlockSize;

fn file_of(folder: &tempfile::TempDir, bytes: u64) -> std::path::PathBuf {
    let path = folder.path().join("drive");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[test]
fn m8_a_second_opener_is_refused_and_told_the_pid() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 1 << 20);
    let first = OpenDrive::open(&path, OpenOptions::default()).unwrap();
    let error = OpenDrive::open(&path, OpenOptions::default()).unwrap_err();
    let OpenError::Busy { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(error.to_string().contains(&format!("in use by process {}", std::process::id())), "{error}");
    // Looking without holding is allowed.
    let look = OpenOptions { read_only: true, exclusive: false, ..OpenOptions::default() };
    OpenDrive::open(&path, look).unwrap();
    drop(first);
    OpenDrive::open(&path, OpenOptions::default()).unwrap();
}

#[test]
fn m8_a_lane_handle_alone_keeps_the_drive_held() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 1 << 20);
    block_on_lane(nvme_backend::LaneConfig::default(), async |lane| {
        let handle = OpenDrive::open(&path, OpenOptions::default()).unwrap().on_lane(&lane);
        assert!(matches!(OpenDrive::open(&path, OpenOptions::default()), Err(OpenError::Busy { .. })));
        drop(handle);
        OpenDrive::open(&path, OpenOptions::default()).unwrap();
    });
}

#[test]
fn m8_waiting_for_a_busy_drive_ends_when_it_is_let_go_or_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 1 << 20);
    let first = OpenDrive::open(&path, OpenOptions::default()).unwrap();
    let began = Instant::now();
    let refused = OpenDrive::open_waiting(&path, OpenOptions::default(), began + Duration::from_millis(200));
    assert!(matches!(refused, Err(OpenError::Busy { .. })));
    assert!(began.elapsed() >= Duration::from_millis(200));
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        drop(first);
    });
    OpenDrive::open_waiting(&path, OpenOptions::default(), Instant::now() + Duration::from_secs(30)).unwrap();
    release.join().unwrap();
}

#[test]
fn opening_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    let content: Vec<u8> = (0..200_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    std::fs::write(&path, &content).unwrap();
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    drop(OpenDrive::open(&path, OpenOptions::default()).unwrap());
    assert!(std::fs::read(&path).unwrap() == content);
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
}

#[test]
fn what_is_no_drive_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| OpenDrive::open(path, OpenOptions::default()).unwrap_err();
    let missing = open(&folder.path().join("missing"));
    assert!(matches!(missing, OpenError::NotFound { .. }));
    assert!(missing.to_string().contains("missing: no such drive"), "{missing}");
    assert!(matches!(open(folder.path()), OpenError::NotADrive { what: "a directory", .. }));
    assert!(matches!(open(Path::new("/dev/null")), OpenError::NotADrive { what: "a character device", .. }));
    let tiny = file_of(&folder, 511);
    assert!(matches!(open(&tiny), OpenError::TooSmall { .. }));
}

#[test]
fn a_file_has_the_block_size_asked_for_and_whole_blocks_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, (1 << 20) + 700);
    let drive = OpenDrive::open(&path, OpenOptions::default()).unwrap();
    assert_eq!((drive.block_size(), drive.size_bytes()), (BlockSize::B512, (1 << 20) + 512));
    assert_eq!(drive.path(), path);
    drop(drive);
    let options = OpenOptions { block_size: Some(BlockSize::B4096), ..OpenOptions::default() };
    let drive = OpenDrive::open(&path, options).unwrap();
    assert_eq!((drive.block_size(), drive.size_bytes()), (BlockSize::B4096, 1 << 20));
    assert_eq!(drive.identity().logical_block, BlockSize::B4096);
}

#[test]
fn buffers_less_aligned_than_the_file_system_asks_for_make_the_drive_buffered() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 1 << 20);
    let options = OpenOptions { buffer_align_bytes: 1, ..OpenOptions::default() };
    let stat = rustix::fs::statx(
        rustix::fs::CWD,
        &path,
        rustix::fs::AtFlags::empty(),
        rustix::fs::StatxFlags::DIOALIGN,
    )
    .unwrap();
    let drive = OpenDrive::open(&path, options).unwrap();
    let tells = stat.stx_mask & rustix::fs::StatxFlags::DIOALIGN.bits() != 0;
    if tells && stat.stx_dio_mem_align > 1 {
        assert!(!drive.is_direct());
    }
    drop(drive);
    let options = OpenOptions { direct: false, ..OpenOptions::default() };
    assert!(!OpenDrive::open(&path, options).unwrap().is_direct());
}
