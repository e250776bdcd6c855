//! A drive that fails on command: a file behind nbdkit's error and pause filters, mounted as a file again by nbdfuse.
//!
//! The daemon sees a regular file; the test makes its reads or writes fail, lets it hang, or lets it die.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::lab::Lab;
use crate::mount::FuseFile;
use crate::servants::Servants;
use crate::tool;

/// A drive with switches. Its processes end with the daemon of its lab or with itself, whichever goes first.
#[derive(Debug)]
pub struct Faulty {
    file: FuseFile,
    servants: Servants,
    pids: [u32; 2],
    name: String,
    folder: PathBuf,
}

impl Faulty {
    /// A blank drive of `size_bytes`, good until told otherwise.
    #[must_use]
    pub fn new(lab: &Lab, name: &str, size_bytes: u64) -> Self {
        let backing = lab.drive(&format!("{name}.backing"), size_bytes);
        let at = |what: &str| lab.join(&format!("{name}.{what}"));
        let (socket, pause) = (at("nbd"), at("pause"));
        let switch = |operation: &str, what: &str| format!("error-{operation}-file={}", at(what).display());
        let server = tool::command("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .args(["--filter=log", "--filter=pause", "--filter=error", "file"])
            .arg(&backing)
            .arg(format!("logfile={}", at("requests").display()))
            .arg(format!("pause-control={}", pause.display()))
            .args(["error=EIO", "error-rate=100%"])
            .args([switch("pread", "bad-reads"), switch("pwrite", "bad-writes")])
            .args([switch("zero", "bad-writes"), switch("trim", "bad-writes")])
            .args([switch("extents", "bad-reads"), switch("cache", "bad-reads")])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(at("log")).expect("log"))
            .spawn()
            .expect("nbdkit runs; `tests/run --stage tools` installs it");
        tool::wait_until("nbdkit listens", Duration::from_secs(30), || socket.exists() && pause.exists());
        let server = lab.servants().add(server);
        let (file, fuse) =
            FuseFile::mount_by(&format!("nbd+unix:///?socket={}", socket.display()), &at("drive"));
        let pids = [server, lab.servants().add(fuse)];
        Self {
            file,
            servants: lab.servants().clone(),
            pids,
            name: name.to_owned(),
            folder: lab.path().to_owned(),
        }
    }

    /// The drive.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Makes every write and zeroing fail with EIO, or no longer.
    pub fn fail_writes(&self, on: bool) {
        self.switch("bad-writes", on);
    }

    /// Makes every read fail with EIO, or no longer.
    pub fn fail_reads(&self, on: bool) {
        self.switch("bad-reads", on);
    }

    /// How many flushes have reached it.
    #[must_use]
    pub fn flushes(&self) -> usize {
        let log = self.folder.join(format!("{}.requests", self.name));
        let log = std::fs::read_to_string(log).expect("the log filter writes");
        log.lines().filter(|line| line.contains(" Flush id=")).count()
    }

    fn switch(&self, what: &str, on: bool) {
        let path = self.folder.join(format!("{}.{what}", self.name));
        if on {
            std::fs::File::create(path).expect("switch");
        } else {
            std::fs::remove_file(path).expect("switch was on");
        }
    }

    /// Lets every request hang from now on; returns once what was under way is done.
    pub fn hang(&self) {
        self.control(b'p');
    }

    /// Lets hanging requests go on.
    pub fn resume(&self) {
        self.control(b'r');
    }

    fn control(&self, order: u8) {
        let socket = self.folder.join(format!("{}.pause", self.name));
        let mut stream = UnixStream::connect(socket).expect("the pause filter listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("time-out");
        stream.write_all(&[order]).expect("the pause filter takes orders");
        let mut reply = [0];
        stream.read_exact(&mut reply).expect("the pause filter answers");
        assert_eq!(reply[0], order.to_ascii_uppercase(), "the pause filter obeys");
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.servants.end_these(&self.pids);
    }
}
