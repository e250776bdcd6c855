//! The folder a test works in, and everything that must be gone when it ends.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::servants::Servants;
use crate::tool;

/// A test's own folder. Declare it first: it must go out of scope after what lies in it.
#[derive(Debug)]
pub struct Lab {
    folder: TempDir,
    servants: Servants,
}

impl Lab {
    /// A new folder in memory where there is room (`/dev/shm`), on disk otherwise; `WARPRAID_TEST_DIR` decides.
    ///
    /// In memory, because a test's speed should not depend on how fast a disk flushes.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let parent = std::env::var_os("WARPRAID_TEST_DIR").map_or_else(room, PathBuf::from);
        // Unix socket paths are limited to 107 bytes, so the name stays short.
        let short: String = name.chars().take(24).collect();
        let folder = tempfile::Builder::new()
            .prefix(&format!("wr-{short}-"))
            .tempdir_in(&parent)
            .unwrap_or_else(|error| panic!("a folder in {}: {error}", parent.display()));
        Self { folder, servants: Servants::default() }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the folder.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The processes that serve drives in this folder.
    #[must_use]
    pub fn servants(&self) -> &Servants {
        &self.servants
    }

    /// Starts a daemon with socket and state in this folder.
    #[must_use]
    pub fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    /// As [`Lab::daemon`], with further options of `serve`.
    #[must_use]
    pub fn daemon_with(&self, options: &[&str]) -> Daemon {
        let servants = self.servants.clone();
        Daemon::start_served(self.join("state"), self.join("run/admin.sock"), options, servants)
    }

    /// Blank file drives `prefix0` .. of `size_bytes` each, sparse.
    #[must_use]
    pub fn drives(&self, prefix: &str, count: usize, size_bytes: u64) -> Vec<PathBuf> {
        (0..count).map(|i| self.drive(&format!("{prefix}{i}"), size_bytes)).collect()
    }

    /// One blank file drive, sparse.
    #[must_use]
    pub fn drive(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.join(name);
        let file = std::fs::File::create_new(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        file.set_len(size_bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

fn room() -> PathBuf {
    let shm = Path::new("/dev/shm");
    let free = tool::command("df").args(["--output=avail", "-B1M"]).arg(shm).output().ok();
    let text = free.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let free_mib: u64 = text.lines().nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0);
    if free_mib >= 6144 { shm.to_owned() } else { std::env::temp_dir() }
}
