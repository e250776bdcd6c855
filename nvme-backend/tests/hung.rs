//! A drive that stops answering (SAFETY M7): an NBD server that can be paused, as a file through FUSE. Needs nbdkit,
//! nbdfuse and /dev/fuse; without them the tests say so and pass.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{lease_filled, lease_one, on_lane, pattern};
use nvme_backend::{OpenDrive, OpenError, OpenOptions};
use raid_core::ports::{Drive, Durability, IoKind, Pool, one_seg};
use raid_core::units::DriveOffset;

const SIZE_BYTES: u64 = 4 << 20;

struct Hung {
    server: Child,
    fuse: Child,
    control: UnixStream,
    drive: PathBuf,
    folder: tempfile::TempDir,
}

fn wait_for(what: &Path, ready: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !ready() {
        if began.elapsed() > Duration::from_secs(30) {
            eprintln!("SKIPPED: {} never became ready", what.display());
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn start(program: &str, arguments: &[&str]) -> Option<Child> {
    let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
    if let Err(error) = &child {
        eprintln!("SKIPPED: {program}: {error}");
    }
    child.ok()
}

impl Hung {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let (socket, control, drive) = (place("nbd"), place("control"), place("drive"));
        std::fs::File::create(&drive).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let pause = format!("pause-control={}", text(&control));
        let size = SIZE_BYTES.to_string();
        let mut server =
            start("nbdkit", &["-f", "-U", &text(&socket), "--filter=pause", "memory", &size, &pause])?;
        let is_up = wait_for(&socket, || socket.exists() && control.exists());
        let fuse = if is_up { start("nbdfuse", &[&text(&drive), "--unix", &text(&socket)]) } else { None };
        let Some(fuse) = fuse else {
            let _ = server.kill();
            let _ = server.wait();
            return None;
        };
        let control = UnixStream::connect(&control).unwrap();
        let mut hung = Self { server, fuse, control, drive, folder };
        let drive = hung.drive.clone();
        let is_up = wait_for(&drive, || std::fs::metadata(&drive).is_ok_and(|meta| meta.len() == SIZE_BYTES));
        if !is_up {
            hung.say(b'r');
            return None;
        }
        Some(hung)
    }

    fn say(&mut self, command: u8) {
        self.control.write_all(&[command]).unwrap();
        self.control.read_exact(&mut [0]).unwrap();
    }

    fn open(&self, timeout_ms: u64) -> OpenDrive {
        let options = OpenOptions { timeout_ns: timeout_ms * 1_000_000, ..OpenOptions::default() };
        OpenDrive::open(&self.drive, options).unwrap()
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").arg("-uz").arg(&self.drive).stderr(Stdio::null()).status();
        for child in [&mut self.fuse, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.folder.path();
    }
}

#[test]
fn m7_a_hung_command_times_out_and_keeps_its_buffer_until_the_drive_answers() {
    let Some(mut hung) = Hung::new() else { return };
    let open = hung.open(300);
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        let seg = lease_filled(&lane, 4096, 5);
        drive.write(DriveOffset(8192), one_seg(seg), Durability::Fua).await.unwrap();
        hung.say(b'p');
        let began_ns = lane.now_ns();
        let done = drive.read(DriveOffset(8192), lease_one(&lane, 4096)).await;
        let took_ns = lane.now_ns() - began_ns;
        let error = done.result.unwrap_err();
        assert_eq!(error.kind, IoKind::TimedOut);
        assert!(done.buf.is_none(), "the kernel has it");
        assert!((200_000_000..5_000_000_000).contains(&took_ns), "{took_ns} ns for a time-out of 0.3 s");
        assert_eq!(open.quarantined(), 1);
        // A command whose future is dropped is in quarantine as well.
        drop(drive.read(DriveOffset(0), lease_one(&lane, 65_536)));
        let seg = lease_filled(&lane, 16_384, 6);
        let wrote = drive.write(DriveOffset(65_536), one_seg(seg), Durability::Cached).await;
        assert_eq!(wrote.unwrap_err().kind, IoKind::TimedOut);
        assert_eq!(open.quarantined(), 3);
        let out = lane.arena().bytes_out(Pool::Request);
        assert_eq!(out, 4096 + 65_536 + 16_384, "not handed out again");
        hung.say(b'r');
        let deadline_ns = lane.now_ns() + 30_000_000_000;
        while open.quarantined() > 0 {
            assert!(lane.now_ns() < deadline_ns, "the drive answered, the buffers did not come home");
            lane.sleep_until(lane.now_ns() + 1_000_000).await;
        }
        assert_eq!(lane.arena().bytes_out(Pool::Request), 0);
        let done = drive.read(DriveOffset(8192), lease_one(&lane, 4096)).await;
        done.result.unwrap();
        assert_eq!(done.buf.unwrap()[0].bytes(), pattern(5, 4096));
    });
}

#[test]
fn m7_m8_a_lane_that_ends_over_a_hung_drive_returns_and_the_drive_stays_held() {
    let Some(mut hung) = Hung::new() else { return };
    let open = hung.open(100);
    let path = hung.drive.clone();
    let began = Instant::now();
    on_lane(async |lane| {
        let drive = open.on_lane(&lane);
        hung.say(b'p');
        let seg = lease_filled(&lane, 4096, 9);
        let wrote = drive.write(DriveOffset(0), one_seg(seg), Durability::Cached).await;
        assert_eq!(wrote.unwrap_err().kind, IoKind::TimedOut);
    });
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    drop(open);
    // The late write may still reach the drive, so nobody else may have it (the lane has leaked its handle).
    let again = OpenDrive::open(&path, OpenOptions::default());
    assert!(matches!(again, Err(OpenError::Busy { .. })), "{again:?}");
    hung.say(b'r');
}
