//! Faults on purpose: each kind does what it says, and nothing of it is left when it ends.

mod common;

use common::{lease_filled, lease_one, on_lane, pattern, read_all};
use nvme_backend::meter::IoOp;
use nvme_backend::{Fault, FaultKind, Lane, LaneDrive, OpenDrive, OpenOptions};
use raid_core::ports::{Drive, Durability, IoError, IoKind, Pool, one_seg};
use raid_core::units::{BlockSize, DriveOffset};

const SIZE_BYTES: u64 = 1 << 20;

fn file(folder: &tempfile::TempDir, timeout_ms: u64) -> OpenDrive {
    let path = folder.path().join("drive");
    std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    let options = OpenOptions { timeout_ns: timeout_ms * 1_000_000, ..OpenOptions::default() };
    OpenDrive::open(&path, options).unwrap()
}

async fn write(lane: &Lane, drive: &LaneDrive, at: u64, bytes: u32, seed: u64) -> Result<(), IoError> {
    let seg = lease_filled(lane, bytes, seed);
    drive.write(DriveOffset(at), one_seg(seg), Durability::Cached).await
}

async fn read(lane: &Lane, drive: &LaneDrive, at: u64, bytes: u32) -> Result<Vec<u8>, IoError> {
    let done = drive.read(DriveOffset(at), lease_one(lane, bytes)).await;
    done.result.map(|()| done.buf.unwrap()[0].bytes().to_vec())
}

fn only(range: std::ops::Range<u64>) -> Option<Vec<std::ops::Range<u64>>> {
    Some(std::iter::once(range).collect())
}

fn bits_apart(one: &[u8], other: &[u8]) -> u32 {
    one.iter().zip(other).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[test]
fn a_failed_drive_fails_every_command_until_cleared() {
    let folder = tempfile::tempdir().unwrap();
    for open in [file(&folder, 30_000), OpenDrive::ram(SIZE_BYTES, BlockSize::B512)] {
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            write(&lane, &drive, 0, 4096, 1).await.unwrap();
            open.set_faults(vec![Fault::new(FaultKind::Fail, None, None).unwrap()]);
            assert_eq!(write(&lane, &drive, 0, 4096, 2).await.unwrap_err().kind, IoKind::Gone);
            assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap_err().kind, IoKind::Gone);
            assert_eq!(drive.flush().await.unwrap_err().kind, IoKind::Gone);
            assert_eq!(drive.zero(0..4096, true).await.unwrap_err().kind, IoKind::Gone);
            open.set_faults(Vec::new());
            assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap(), pattern(1, 4096));
            assert_eq!(lane.arena().bytes_out(Pool::Request), 0);
        });
    }
}

#[test]
fn a_count_runs_down_and_a_range_bounds_it() {
    let open = OpenDrive::ram(SIZE_BYTES, BlockSize::B512);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let range = 8192..16384;
        let fault = Fault::new(FaultKind::Fail, only(range), Some(2)).unwrap();
        open.set_faults(vec![fault.clone()]);
        assert!(read(&lane, &drive, 0, 8192).await.is_ok() && read(&lane, &drive, 16384, 512).await.is_ok());
        assert!(read(&lane, &drive, 8192, 512).await.is_err());
        assert!(!fault.is_over());
        assert!(read(&lane, &drive, 4096, 8192).await.is_err());
        assert!(fault.is_over() && fault.hits() == 2);
        assert!(read(&lane, &drive, 8192, 512).await.is_ok());
    });
}

#[test]
fn m7_a_hanging_drive_times_out_and_keeps_the_buffers_until_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let open = file(&folder, 300);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        write(&lane, &drive, 0, 4096, 1).await.unwrap();
        let fault = Fault::new(FaultKind::Hang, None, None).unwrap();
        open.set_faults(vec![fault.clone()]);
        let began_ns = lane.now_ns();
        let done = drive.read(DriveOffset(0), lease_one(&lane, 4096)).await;
        assert_eq!(done.result.unwrap_err().kind, IoKind::TimedOut);
        assert!(done.buf.is_none() && lane.now_ns() - began_ns > 200_000_000);
        assert_eq!(write(&lane, &drive, 0, 8192, 2).await.unwrap_err().kind, IoKind::TimedOut);
        assert_eq!(drive.flush().await.unwrap_err().kind, IoKind::TimedOut);
        assert_eq!(open.quarantined(), 3);
        assert!(lane.arena().bytes_out(Pool::Request) >= 4096 + 8192);
        open.set_faults(Vec::new());
        fault.end();
        let deadline_ns = lane.now_ns() + 30_000_000_000;
        while open.quarantined() > 0 {
            assert!(lane.now_ns() < deadline_ns, "the buffers did not come home");
            lane.sleep_until(lane.now_ns() + 1_000_000).await;
        }
        assert_eq!(lane.arena().bytes_out(Pool::Request), 0);
        // What timed out never reached the drive.
        assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap(), pattern(1, 4096));
    });
}

#[test]
fn a_command_that_hangs_less_than_the_time_out_is_done_after_it() {
    let open = OpenDrive::ram(SIZE_BYTES, BlockSize::B512);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let fault = Fault::new(FaultKind::Hang, None, Some(1)).unwrap();
        open.set_faults(vec![fault.clone()]);
        let seg = lease_filled(&lane, 4096, 3);
        let writing = drive.write(DriveOffset(0), one_seg(seg), Durability::Cached);
        assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap(), [0; 4096], "held, not done");
        fault.end();
        writing.await.unwrap();
        assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap(), pattern(3, 4096));
        assert_eq!(open.quarantined(), 0);
    });
}

#[test]
fn a_slow_drive_takes_the_delay_and_the_factor() {
    let folder = tempfile::tempdir().unwrap();
    let open = file(&folder, 30_000);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        write(&lane, &drive, 0, 4096, 1).await.unwrap();
        let delay = FaultKind::Slow { delay_ns: 30_000_000, factor: 1 };
        open.set_faults(vec![Fault::new(delay, None, None).unwrap()]);
        let began_ns = lane.now_ns();
        assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap(), pattern(1, 4096));
        write(&lane, &drive, 4096, 4096, 2).await.unwrap();
        drive.flush().await.unwrap();
        assert!(lane.now_ns() - began_ns >= 3 * 30_000_000);
        let times = FaultKind::Slow { delay_ns: 0, factor: 20 };
        open.set_faults(vec![Fault::new(times, None, None).unwrap()]);
        assert_eq!(read(&lane, &drive, 4096, 4096).await.unwrap(), pattern(2, 4096));
        write(&lane, &drive, 8192, 4096, 3).await.unwrap();
        open.set_faults(Vec::new());
        assert_eq!(read(&lane, &drive, 8192, 4096).await.unwrap(), pattern(3, 4096));
        assert_eq!(lane.arena().bytes_out(Pool::Request), 0);
    });
}

/// A batch is awaited one by one: the time of the others must not be that of the slowest, or a sound member beside a slow one
/// looks slow, too.
#[test]
fn a_command_counts_what_it_took_and_not_when_somebody_asks() {
    const DELAY_NS: u64 = 2_000_000_000;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [slow, sound] = folders.each_ref().map(|folder| file(folder, 30_000));
    on_lane(async |lane| {
        let (on_slow, on_sound) = (slow.on_lane(&lane), sound.on_lane(&lane));
        let delay = FaultKind::Slow { delay_ns: DELAY_NS, factor: 1 };
        slow.set_faults(vec![Fault::new(delay, None, None).unwrap()]);
        let seg = || one_seg(lease_filled(&lane, 4096, 1));
        let writes =
            [&on_slow, &on_sound].map(|drive| drive.write(DriveOffset(0), seg(), Durability::Cached));
        let flush = on_sound.flush();
        for write in writes {
            write.await.unwrap();
        }
        flush.await.unwrap();
        let reads = [&on_slow, &on_sound].map(|drive| drive.read(DriveOffset(0), lease_one(&lane, 4096)));
        for read in reads {
            read.await.result.unwrap();
        }
    });
    for op in [IoOp::Read, IoOp::Write, IoOp::Flush] {
        let counted = sound.metered(op);
        assert_eq!((counted.operations, counted.errors), (1, 0), "{op:?}");
        assert!(counted.time_ns < DELAY_NS / 2, "{op:?}: {}", counted.time_ns);
    }
    for op in [IoOp::Read, IoOp::Write] {
        let counted = slow.metered(op);
        assert_eq!((counted.operations, counted.bytes), (1, 4096), "{op:?}");
        assert!(counted.time_ns >= DELAY_NS, "{op:?}: {}", counted.time_ns);
    }
}

#[test]
fn a_delay_beyond_the_time_out_is_a_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let open = file(&folder, 100);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let kind = FaultKind::Slow { delay_ns: 400_000_000, factor: 1 };
        open.set_faults(vec![Fault::new(kind, None, None).unwrap()]);
        assert_eq!(write(&lane, &drive, 0, 4096, 1).await.unwrap_err().kind, IoKind::TimedOut);
        assert_eq!(open.quarantined(), 1);
        let deadline_ns = lane.now_ns() + 30_000_000_000;
        while open.quarantined() > 0 {
            assert!(lane.now_ns() < deadline_ns, "the command never ended");
            lane.sleep_until(lane.now_ns() + 1_000_000).await;
        }
    });
}

#[test]
fn bad_blocks_fail_reads_until_each_is_rewritten() {
    let open = OpenDrive::ram(SIZE_BYTES, BlockSize::B512);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let fault = Fault::new(FaultKind::Bad, Some(vec![4096..8192, 65536..66048]), None).unwrap();
        open.set_faults(vec![fault.clone()]);
        assert_eq!(read(&lane, &drive, 0, 8192).await.unwrap_err().kind, IoKind::Medium);
        assert!(read(&lane, &drive, 0, 4096).await.is_ok() && read(&lane, &drive, 8192, 512).await.is_ok());
        write(&lane, &drive, 5120, 512, 1).await.unwrap();
        assert_eq!(read(&lane, &drive, 5120, 512).await.unwrap(), pattern(1, 512));
        assert_eq!(fault.ranges().unwrap(), [4096..5120, 5632..8192, 65536..66048]);
        assert_eq!(read(&lane, &drive, 7680, 512).await.unwrap_err().kind, IoKind::Medium);
        drive.zero(0..SIZE_BYTES, false).await.unwrap();
        assert!(fault.is_over() && read(&lane, &drive, 4096, 4096).await.is_ok());
    });
}

#[test]
fn flipped_blocks_read_wrong_by_one_bit_the_same_each_time_until_rewritten() {
    for block in [BlockSize::B512, BlockSize::B4096] {
        let open = OpenDrive::ram(SIZE_BYTES, block);
        on_lane(async |lane| {
            let drive = open.on_lane(&lane);
            write(&lane, &drive, 0, 65536, 1).await.unwrap();
            let size = u64::from(block.bytes());
            let fault = Fault::new(FaultKind::Flip { seed: 7 }, only(8192..8192 + 2 * size), None);
            let fault = fault.unwrap();
            open.set_faults(vec![fault.clone()]);
            let first = read(&lane, &drive, 0, 65536).await.unwrap();
            assert_eq!(bits_apart(&first, &pattern(1, 65536)), 2);
            assert_eq!(read(&lane, &drive, 0, 65536).await.unwrap(), first);
            let part = read(&lane, &drive, 8192, block.bytes()).await.unwrap();
            assert_eq!(part, first[8192..8192 + part.len()]);
            write(&lane, &drive, 8192, block.bytes(), 2).await.unwrap();
            assert_eq!(
                bits_apart(
                    &read(&lane, &drive, 8192, block.bytes()).await.unwrap(),
                    &pattern(2, usize::try_from(size).unwrap())
                ),
                0
            );
            open.set_faults(Vec::new());
            assert_eq!(read(&lane, &drive, 16384, 4096).await.unwrap(), pattern(1, 65536)[16384..20480]);
        });
    }
}

#[test]
fn a_lost_write_is_acknowledged_and_not_done() {
    let open = OpenDrive::ram(SIZE_BYTES, BlockSize::B512);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        write(&lane, &drive, 0, 4096, 1).await.unwrap();
        open.set_faults(vec![Fault::new(FaultKind::LostWrite, only(0..4096), Some(1)).unwrap()]);
        write(&lane, &drive, 4096, 4096, 2).await.unwrap();
        write(&lane, &drive, 0, 4096, 3).await.unwrap();
        drive.flush().await.unwrap();
        assert_eq!(read(&lane, &drive, 0, 4096).await.unwrap(), pattern(1, 4096));
        write(&lane, &drive, 0, 4096, 4).await.unwrap();
        let all = read_all(&lane, &drive).await;
        assert_eq!((&all[..4096], &all[4096..8192]), (&pattern(4, 4096)[..], &pattern(2, 4096)[..]));
    });
}
