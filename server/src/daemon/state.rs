//! The state folder beside the witnesses: where drives were last seen and which disks were exposed.
//!
//! Both are conveniences of this host, never authority: a group lives on its drives, and a daemon whose state folder was
//! lost assembles the same groups when it is told where to look. The folder is also the lock against a second daemon
//! over the same state.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use raid_core::units::{Slot, Uuid};
use serde::{Deserialize, Serialize};

use super::host::replace_file;

/// One exposure to restore at start.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct SavedExposure {
    /// Where: `unix:PATH` or `tcp:ADDR:PORT`.
    pub address: String,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Where a member was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LastSeen {
    /// Path of its drive.
    pub path: PathBuf,
    /// Serial of its drive.
    pub serial: Option<String>,
    /// Where that was plugged in.
    #[serde(default)]
    pub port: Option<String>,
}

/// The member of a slot, where it was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct SavedMember {
    slot: u8,
    device: String,
    #[serde(flatten)]
    seen: LastSeen,
}

/// What `state.json` holds.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
struct Saved {
    /// Paths at which members of groups were last seen; scanned at start beside the host's block devices.
    drive_paths: Vec<PathBuf>,
    /// Exposures by `GROUP-UUID/DISK`.
    exposures: BTreeMap<String, Vec<SavedExposure>>,
    /// Members by group uuid: one a slot, the last that was there.
    #[serde(default)]
    members: BTreeMap<String, Vec<SavedMember>>,
}

/// The state folder, locked.
pub(super) struct StateDir {
    path: PathBuf,
    saved: Mutex<Saved>,
    /// Held for its lock.
    _lock: File,
}

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    /// Another daemon has it.
    #[error("another warpraid daemon (pid {pid}, socket {socket}) uses the state folder {path}")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The other daemon's pid, as it wrote it, or "unknown".
        pid: String,
        /// Its admin socket, as it wrote it, or "unknown".
        socket: String,
    },
    /// The file system refused.
    #[error("state folder {path}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl StateDir {
    /// Opens (or makes) the folder, mode 0700, and locks it.
    ///
    /// # Errors
    /// [`StateError::Locked`] while another daemon runs over it; [`StateError::Io`] otherwise.
    pub(super) fn open(path: &Path, socket: &Path) -> Result<Self, StateError> {
        let io = |source| StateError::Io { path: path.to_owned(), source };
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(path).map_err(io)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(path.join("daemon.pid")).map_err(io)?;
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        if let Err(errno) = rustix::fs::flock(&lock, operation) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(io(errno.into()));
            }
            let mut text = String::new();
            drop(lock.read_to_string(&mut text));
            let mut lines = text.lines().filter(|line| !line.is_empty()).map(str::to_owned);
            let mut next = || lines.next().unwrap_or_else(|| "unknown".to_owned());
            return Err(StateError::Locked { path: path.to_owned(), pid: next(), socket: next() });
        }
        lock.set_len(0).and_then(|()| lock.rewind()).map_err(io)?;
        writeln!(lock, "{}\n{}", std::process::id(), socket.display()).map_err(io)?;
        let saved = match fs::read(path.join("state.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, "state.json cannot be read; starting without its hints");
                Saved::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Saved::default(),
            Err(error) => return Err(io(error)),
        };
        Ok(Self { path: path.to_owned(), saved: Mutex::new(saved), _lock: lock })
    }

    /// Paths at which members were last seen.
    #[must_use]
    pub(super) fn drive_paths(&self) -> Vec<PathBuf> {
        self.saved.lock().drive_paths.clone()
    }

    /// Remembers that members are at these paths.
    pub(super) fn remember_drives(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.change(|saved| {
            saved.drive_paths.extend(paths);
            saved.drive_paths.sort();
            saved.drive_paths.dedup();
        });
    }

    /// Remembers where the members of a group are; what is known of its other slots stays.
    pub(super) fn remember_members(&self, group: Uuid, members: Vec<(Slot, Uuid, LastSeen)>) {
        self.change(|saved| {
            let of_group = saved.members.entry(group.to_string()).or_default();
            for (slot, device, seen) in members {
                of_group.retain(|old| old.slot != slot.0);
                of_group.push(SavedMember { slot: slot.0, device: device.to_string(), seen });
            }
            of_group.sort_by_key(|member| member.slot);
        });
    }

    /// Where a member was when this host last had it.
    #[must_use]
    pub(super) fn last_seen(&self, device: Uuid) -> Option<LastSeen> {
        let device = device.to_string();
        let saved = self.saved.lock();
        let found = saved.members.values().flatten().find(|member| member.device == device);
        found.map(|member| member.seen.clone())
    }

    /// Forgets the members of a group that is gone.
    pub(super) fn forget_members(&self, group: Uuid) {
        self.change(|saved| drop(saved.members.remove(&group.to_string())));
    }

    /// Exposures of a disk (`GROUP-UUID/DISK`).
    #[must_use]
    pub(super) fn exposures(&self, disk: &str) -> Vec<SavedExposure> {
        self.saved.lock().exposures.get(disk).cloned().unwrap_or_default()
    }

    /// Remembers an exposure.
    pub(super) fn remember_exposure(&self, disk: &str, exposure: SavedExposure) {
        self.change(|saved| {
            let of_disk = saved.exposures.entry(disk.to_owned()).or_default();
            of_disk.retain(|other| other.address != exposure.address);
            of_disk.push(exposure);
        });
    }

    /// Forgets one exposure of a disk, or all of them.
    pub(super) fn forget_exposures(&self, disk: &str, address: Option<&str>) {
        self.change(|saved| {
            let of_disk = saved.exposures.entry(disk.to_owned()).or_default();
            of_disk.retain(|other| address.is_some_and(|address| other.address != address));
            saved.exposures.retain(|_, list| !list.is_empty());
        });
    }

    fn change(&self, edit: impl FnOnce(&mut Saved)) {
        let mut saved = self.saved.lock();
        edit(&mut saved);
        let written = serde_json::to_vec_pretty(&*saved)
            .map_err(io::Error::from)
            .and_then(|bytes| replace_file(&self.path.join("state.json"), &bytes));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot save state.json; exposures will not be restored at the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<StateDir, StateError> {
        StateDir::open(path, Path::new("/s/admin.sock"))
    }

    #[test]
    fn sl_10_a_second_daemon_is_refused_and_told_the_pid() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).unwrap();
        let second = StateDir::open(dir.path(), Path::new("/other"));
        let Err(error @ StateError::Locked { .. }) = second else {
            panic!("two daemons on one state folder")
        };
        let told = error.to_string();
        assert!(told.contains(&std::process::id().to_string()) && told.contains("/s/admin.sock"), "{told}");
        drop(first);
        open(dir.path()).unwrap();
    }

    #[test]
    fn hints_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path()).unwrap();
        state.remember_drives([PathBuf::from("/b"), PathBuf::from("/a"), PathBuf::from("/b")]);
        let exposure = SavedExposure { address: "unix:/s".into(), read_only: true };
        state.remember_exposure("u/d", exposure.clone());
        state.remember_exposure("u/e", exposure.clone());
        state.forget_exposures("u/e", None);
        let (group, old, new) = (Uuid::from_random(1, 1), Uuid::from_random(2, 2), Uuid::from_random(3, 3));
        let seen = |path: &str| LastSeen { path: path.into(), serial: Some("S".into()), port: None };
        state.remember_members(group, vec![(Slot(0), old, seen("/a")), (Slot(1), new, seen("/b"))]);
        state.remember_members(group, vec![(Slot(1), new, seen("/c"))]);
        drop(state);
        let state = open(dir.path()).unwrap();
        assert_eq!(state.drive_paths(), [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(state.exposures("u/d"), [exposure]);
        assert_eq!((state.last_seen(old), state.last_seen(new)), (Some(seen("/a")), Some(seen("/c"))));
        state.forget_members(group);
        assert_eq!(state.last_seen(old), None);
        assert!(state.exposures("u/e").is_empty());
    }
}
