//! What all lanes share: the open drives, the witness files, randomness.
//!
//! Invariants: a drive stays in the registry while any view names it; a witness file is replaced whole (write, fsync,
//! rename, fsync of the folder) by one thread, in the order asked, so it is never older than what completed last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use nvme_backend::OpenDrive;
use parking_lot::Mutex;
use raid_core::parity::CpuParity;
use raid_core::ports::{DriveKey, IoError, IoKind};
use raid_core::units::Uuid;
use raid_core::view::{Epoch, Witness};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// Seconds since 1970 by the system clock; 0 if it stands before that.
#[must_use]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A random word from the kernel.
///
/// # Panics
/// If the kernel has no random numbers to give, which does not happen after boot.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(8), "the kernel gave no random bytes");
    u64::from_ne_bytes(bytes)
}

/// A witness as its file holds it.
#[derive(Serialize, Deserialize)]
struct WitnessFile {
    group: String,
    epoch_counter: u64,
    epoch_id: String,
    is_clean: bool,
    in_sync: Vec<String>,
}

impl WitnessFile {
    fn of(witness: &Witness) -> Self {
        Self {
            group: witness.group.to_string(),
            epoch_counter: witness.epoch.counter,
            epoch_id: witness.epoch.id.to_string(),
            is_clean: witness.is_clean,
            in_sync: witness.in_sync.iter().map(Uuid::to_string).collect(),
        }
    }

    fn parse(&self) -> Option<Witness> {
        Some(Witness {
            group: Uuid::parse(&self.group)?,
            epoch: Epoch { counter: self.epoch_counter, id: Uuid::parse(&self.epoch_id)? },
            is_clean: self.is_clean,
            in_sync: self.in_sync.iter().map(|text| Uuid::parse(text)).collect::<Option<_>>()?,
        })
    }
}

enum WitnessJob {
    Store(Witness, oneshot::Sender<io::Result<()>>),
    Forget(Uuid),
}

/// Shared by the control thread and all lanes.
pub struct Host {
    drives: Mutex<BTreeMap<DriveKey, OpenDrive>>,
    next_key: AtomicU64,
    parity: CpuParity,
    witness_dir: PathBuf,
    witness_jobs: Mutex<Option<mpsc::Sender<WitnessJob>>>,
    witness_thread: Mutex<Option<JoinHandle<()>>>,
    /// What drives were told to do wrong.
    pub faults: super::faults::Faults,
}

impl Host {
    /// The host part of a daemon whose state folder is `state_dir`.
    ///
    /// # Errors
    /// The folder for witnesses cannot be made.
    pub fn new(state_dir: &Path, parity: CpuParity) -> io::Result<Self> {
        let witness_dir = state_dir.join("witness");
        fs::create_dir_all(&witness_dir)?;
        let (sender, receiver) = mpsc::channel();
        let dir = witness_dir.clone();
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || {
            while let Ok(job) = receiver.recv() {
                match job {
                    WitnessJob::Store(witness, done) => drop(done.send(write_witness(&dir, &witness))),
                    WitnessJob::Forget(group) => drop(fs::remove_file(witness_path(&dir, group))),
                }
            }
        })?;
        Ok(Self {
            drives: Mutex::default(),
            next_key: AtomicU64::new(1),
            parity,
            witness_dir,
            witness_jobs: Mutex::new(Some(sender)),
            witness_thread: Mutex::new(Some(thread)),
            faults: super::faults::Faults::default(),
        })
    }

    /// What computes parity on every lane.
    #[must_use]
    pub fn parity(&self) -> &CpuParity {
        &self.parity
    }

    /// Takes a drive into the registry.
    pub fn add_drive(&self, drive: OpenDrive) -> DriveKey {
        let key = DriveKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        self.drives.lock().insert(key, drive.clone());
        // After it can be found: a fault injected now finds it, one injected before is met here.
        self.faults.meet(&drive);
        key
    }

    /// A drive by its key.
    #[must_use]
    pub fn drive(&self, key: DriveKey) -> Option<OpenDrive> {
        self.drives.lock().get(&key).cloned()
    }

    /// Takes a drive out of the registry; its descriptor closes when the last lane has forgotten it.
    pub fn remove_drive(&self, key: DriveKey) -> Option<OpenDrive> {
        self.drives.lock().remove(&key)
    }

    /// Every open drive with this path: a member or spare, and looks at it.
    #[must_use]
    pub fn drives_at(&self, path: &Path) -> Vec<OpenDrive> {
        self.drives.lock().values().filter(|drive| drive.path() == path).cloned().collect()
    }

    /// The key of the open drive with this path.
    #[must_use]
    pub fn key_of_path(&self, path: &Path) -> Option<DriveKey> {
        self.drives.lock().iter().find(|(_, drive)| drive.identity().path == path).map(|(key, _)| *key)
    }

    /// Makes the witness of a group durable (SAFETY M4). When that fails the old one is removed: no witness is safe
    /// (the operator is asked), an outdated one is not.
    pub fn store_witness(&self, witness: Witness) -> impl Future<Output = Result<(), IoError>> + use<> {
        let (done, answer) = oneshot::channel();
        let job = WitnessJob::Store(witness, done);
        let sent = self.witness_jobs.lock().as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        async move {
            let stopping = IoError::new(IoKind::ShuttingDown, "the witness thread has stopped");
            if !sent {
                return Err(stopping);
            }
            match answer.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => {
                    let kind = IoKind::Medium;
                    Err(IoError { kind, context: "writing the witness file", errno: error.raw_os_error() })
                }
                Err(_) => Err(stopping),
            }
        }
    }

    /// The witness of a group, if there is a readable one.
    #[must_use]
    pub fn witness(&self, group: Uuid) -> Option<Witness> {
        let bytes = fs::read(witness_path(&self.witness_dir, group)).ok()?;
        serde_json::from_slice::<WitnessFile>(&bytes).ok()?.parse().filter(|w| w.group == group)
    }

    /// Forgets the witness of a deleted group.
    pub fn forget_witness(&self, group: Uuid) {
        if let Some(jobs) = self.witness_jobs.lock().as_ref() {
            drop(jobs.send(WitnessJob::Forget(group)));
        }
    }

    /// Ends the witness thread after everything asked of it is done.
    pub fn stop(&self) {
        drop(self.witness_jobs.lock().take());
        if let Some(thread) = self.witness_thread.lock().take() {
            drop(thread.join());
        }
    }
}

fn witness_path(dir: &Path, group: Uuid) -> PathBuf {
    dir.join(format!("{group}.json"))
}

fn write_witness(dir: &Path, witness: &Witness) -> io::Result<()> {
    let path = witness_path(dir, witness.group);
    let result = replace_file(&path, &serde_json::to_vec_pretty(&WitnessFile::of(witness))?);
    if let Err(error) = &result {
        tracing::error!(path = %path.display(), %error, "cannot write the witness; removing the old one");
        drop(fs::remove_file(&path));
    }
    result
}

/// Replaces a file whole and durably: temporary file, fsync, rename, fsync of the folder.
///
/// # Errors
/// Those of the file system; the old file is then still there.
pub fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("a file without a folder"))?;
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_comes_back_as_it_was_stored() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path(), CpuParity::new()).unwrap();
        let witness = Witness {
            group: Uuid::from_random(1, 2),
            epoch: Epoch { counter: 7, id: Uuid::from_random(3, 4) },
            is_clean: true,
            in_sync: vec![Uuid::from_random(5, 6), Uuid::from_random(7, 8)],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(host.store_witness(witness.clone())).unwrap();
        assert_eq!(host.witness(witness.group), Some(witness.clone()));
        host.forget_witness(witness.group);
        host.stop();
        assert_eq!(host.witness(witness.group), None);
    }

    #[test]
    fn m4_a_witness_that_cannot_be_written_is_removed_not_left_outdated() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path(), CpuParity::new()).unwrap();
        let group = Uuid::from_random(1, 2);
        let mut witness = Witness { group, epoch: Epoch::default(), is_clean: false, in_sync: Vec::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(host.store_witness(witness.clone())).unwrap();
        // A folder where the temporary file has to go makes the next write fail, for root too.
        fs::create_dir(witness_path(&dir.path().join("witness"), group).with_extension("new")).unwrap();
        witness.epoch.counter = 2;
        assert!(runtime.block_on(host.store_witness(witness)).is_err());
        assert_eq!(host.witness(group), None);
    }
}
