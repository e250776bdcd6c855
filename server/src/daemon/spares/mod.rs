//! Spares: blank drives that take a lost member's place by themselves.
//!
//! A spare is remembered by path and serial in the state folder (`spares.json`), nothing is written on it: blank, it stays
//! usable anywhere, and a lost list loses no data. While the daemon runs it holds each spare exclusively (SAFETY M8),
//! having checked that it is blank, and reads a block of it now and then, so that a spare that died idle is known before it
//! is needed.
//!
//! Which one: of those that fit (blocks not larger than the group's, not smaller than the lost member needs) one kept for
//! the group before a global one, then the smallest, then one on the NUMA node of most members. It joins the way
//! `group replace` puts a drive in, under the lock of all lifecycle changes, so that two groups never take the same one.
//! A slot whose drive is there with another history (conflict) is left to the operator (SAFETY M1).
//!
//! `choose` says which spare fits, `fill` what becomes of a slot without a member; here is the list and who holds its drives.

mod choose;
mod fill;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme_backend::DriveKind as BackendKind;
use parking_lot::Mutex;
use raid_core::ports::{Drive as _, DriveKey, Env as _, Pool};
use raid_core::units::{DriveOffset, Slot, Uuid};

use self::choose::{Saved, Shape, Spare};
use super::host::{random_u64, replace_file, unix_seconds};
use super::running::Running;
use super::{Daemon, drives, look};
use crate::control::model::{SpareDoc, SpareListDoc, SpareState};
use crate::control::{ApiError, ErrorCode};
use crate::lane::on_lane;

/// How often lost members are looked for.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// How often a spare that is ready is read.
const CHECK_PERIOD: Duration = Duration::from_secs(30);
/// How often one that is not is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(5);
/// What a check reads.
const CHECK_BYTES: u32 = 4096;

/// All spares, and since when which slots lack a member.
pub(super) struct Spares {
    file: PathBuf,
    list: Mutex<Vec<Spare>>,
    lost: Mutex<BTreeMap<(Uuid, Slot), Instant>>,
}

impl Spares {
    /// The spares remembered in this state folder.
    pub(super) fn load(state_dir: &Path) -> Self {
        let file = state_dir.join("spares.json");
        let saved: Vec<Saved> = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::error!(%error, "spares.json cannot be read; name the spares again: warpraid spare add");
                Vec::new()
            }),
            Err(_) => Vec::new(),
        };
        let list = Mutex::new(saved.into_iter().map(Spare::new).collect());
        Self { file, list, lost: Mutex::default() }
    }

    fn save(&self) -> Result<(), ApiError> {
        let saved: Vec<Saved> = self.list.lock().iter().map(|spare| spare.saved.clone()).collect();
        let written = serde_json::to_vec_pretty(&saved)
            .map_err(std::io::Error::from)
            .and_then(|bytes| replace_file(&self.file, &bytes));
        written.map_err(|error| {
            ApiError::new(ErrorCode::Io, format!("{} cannot be written: {error}", self.file.display()))
        })
    }

    /// Whether this drive is a spare.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.list.lock().iter().any(|spare| spare.saved.path == path)
    }

    fn edit(&self, path: &Path, edit: impl FnOnce(&mut Spare)) {
        if let Some(spare) = self.list.lock().iter_mut().find(|spare| spare.saved.path == path) {
            edit(spare);
        }
    }

    fn take_out(&self, path: &Path) -> Option<Spare> {
        let mut list = self.list.lock();
        let at = list.iter().position(|spare| spare.saved.path == path)?;
        Some(list.remove(at))
    }
}

/// A drive that was opened and found blank.
struct Taken {
    key: DriveKey,
    shape: Shape,
    serial: Option<String>,
}

impl Daemon {
    /// Refuses a drive that is a spare for another use.
    pub(super) fn refuse_spare(&self, path: &Path) -> Result<(), ApiError> {
        if !self.spares.has(path) {
            return Ok(());
        }
        let shown = path.display();
        Err(ApiError::new(ErrorCode::DriveIsSpare, format!("{shown} is a spare"))
            .hint(format!("warpraid spare remove {shown}")))
    }

    /// Opens a drive as a spare: exclusively, and blank.
    async fn take_spare(&self, path: &Path) -> Result<Taken, ApiError> {
        let drive = look::open(path, drives::exclusive(self.options.drive_timeout_ns, None)).await?;
        let key = self.host.add_drive(drive.clone());
        let looked = self.look(vec![(key, path.to_owned())]).await;
        let blank = looked.and_then(|looked| {
            let looked = looked.first().ok_or_else(super::stopping)?;
            if let raid_core::membership::Observation::Unreadable(error) = &looked.seen.what {
                return Err(super::io_failed(&path.display().to_string(), error));
            }
            Self::refuse_used(looked, &drive)
        });
        if let Err(error) = blank {
            self.release(vec![key]).await;
            return Err(error);
        }
        let identity = drive.identity();
        let shape = Shape {
            size_bytes: drive.size_bytes(),
            block: drive.block_size(),
            is_file: identity.kind == BackendKind::File,
            numa_node: identity.numa_node.and_then(|node| u16::try_from(node).ok()),
        };
        Ok(Taken { key, shape, serial: identity.serial.clone() })
    }

    /// Keeps a drive as a spare. With `change` held.
    pub(super) async fn add_spare(
        &self,
        path: &Path,
        group: Option<&Running>,
        dry_run: bool,
    ) -> Result<Vec<String>, ApiError> {
        let shown = path.display().to_string();
        self.refuse_spare(path)?;
        if let Some((group, slot, _)) = self.member_at(path) {
            let message = format!("{shown} is already a member of group {} (slot {slot})", group.name());
            return Err(ApiError::new(ErrorCode::DriveIsMember, message));
        }
        let taken = self.take_spare(path).await?;
        let scope = group.map_or("any group".to_owned(), |group| format!("group {}", group.name()));
        let mut steps = vec![format!("{shown} is held as a spare for {scope}; nothing is written on it")];
        let saved = Saved {
            path: path.to_owned(),
            serial: taken.serial.clone(),
            group: group.map(|group| group.uuid.to_string()),
        };
        let mut spare = Spare::new(saved);
        spare.shape = Some(taken.shape);
        spare.state = SpareState::Ready;
        spare.why = None;
        if let Some(group) = group {
            let view = group.shared.view();
            let block = group.shared.block_size();
            if let Err(why) = spare.fits(&view.member(Slot(0)).layout, block) {
                self.release(vec![taken.key]).await;
                let is_block = why.contains("blocks");
                let code = if is_block { ErrorCode::DriveBlockSize } else { ErrorCode::DriveTooSmall };
                return Err(ApiError::new(code, why).hint("a spare for a group must fit its members"));
            }
        } else {
            steps.extend(self.groups.read().values().filter_map(|group| {
                let layout = group.shared.view().member(Slot(0)).layout.clone();
                let why = spare.fits(&layout, group.shared.block_size()).err()?;
                Some(format!("no help to group {}: {why}", group.name()))
            }));
        }
        if dry_run {
            self.release(vec![taken.key]).await;
            return Ok(steps);
        }
        spare.key = Some(taken.key);
        spare.checked = Some(Instant::now());
        self.spares.list.lock().push(spare);
        if let Err(error) = self.spares.save() {
            self.drop_spare(path).await;
            return Err(error);
        }
        Ok(steps)
    }

    async fn drop_spare(&self, path: &Path) {
        if let Some(key) = self.spares.take_out(path).and_then(|spare| spare.key) {
            self.release(vec![key]).await;
        }
    }

    /// Gives a spare up. With `change` held.
    pub(super) async fn remove_spare(&self, path: &Path) -> Result<(), ApiError> {
        self.drop_spare(path).await;
        self.spares.save()
    }

    /// The path of the spare with this path or serial.
    pub(super) fn spare_called(&self, name: &str) -> Result<PathBuf, ApiError> {
        let canonical = drives::canonical(Path::new(name));
        let list = self.spares.list.lock();
        let found = list.iter().find(|spare| {
            let saved = &spare.saved;
            saved.path.as_os_str() == name || saved.path == canonical || saved.serial.as_deref() == Some(name)
        });
        found.map(|spare| spare.saved.path.clone()).ok_or_else(|| {
            ApiError::new(ErrorCode::SpareNotFound, format!("{name} is no spare")).hint("warpraid spare list")
        })
    }

    /// Documents of all spares.
    pub(super) fn spare_docs(&self) -> SpareListDoc {
        let group_name = |uuid: &String| {
            let uuid = Uuid::parse(uuid)?;
            self.groups.read().get(&uuid).map(|group| group.name().to_owned())
        };
        let mut spares: Vec<SpareDoc> = self
            .spares
            .list
            .lock()
            .iter()
            .map(|spare| SpareDoc {
                drive: spare.saved.path.display().to_string(),
                serial: spare.saved.serial.clone(),
                size_bytes: spare.shape.as_ref().map_or(0, |shape| shape.size_bytes),
                block_size_bytes: spare.shape.as_ref().map_or(0, |shape| shape.block.bytes()),
                numa_node: spare.shape.as_ref().and_then(|shape| shape.numa_node),
                group: spare.saved.group.as_ref().and_then(group_name),
                group_uuid: spare.saved.group.clone(),
                state: spare.state,
                why: spare.why.clone(),
            })
            .collect();
        spares.sort_by(|one, other| one.drive.cmp(&other.drive));
        SpareListDoc { spares }
    }

    /// Watches over spares and lost members for as long as the daemon runs.
    pub(super) async fn keep_spares(self: Arc<Self>) {
        loop {
            self.check_spares().await;
            self.fill_slots().await;
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    /// Reads a block of every spare whose time has come; takes hold of those that are not held.
    async fn check_spares(&self) {
        let due: Vec<Spare> = {
            let list = self.spares.list.lock();
            let is_due = |spare: &&Spare| {
                let period = if spare.state == SpareState::Ready { CHECK_PERIOD } else { RETRY_PERIOD };
                spare.checked.is_none_or(|checked| checked.elapsed() >= period)
            };
            list.iter().filter(is_due).cloned().collect()
        };
        for spare in due {
            let path = spare.saved.path.clone();
            match spare.key {
                Some(key) => self.check_held(&path, key).await,
                None => self.try_to_hold(&spare).await,
            }
            self.spares.edit(&path, |spare| spare.checked = Some(Instant::now()));
        }
    }

    async fn check_held(&self, path: &Path, key: DriveKey) {
        let read = on_lane(&self.lanes[0], move |state| async move {
            let Some(drive) = state.env().drive(key) else { return Ok(()) };
            let blocks = drive.size_bytes() / u64::from(CHECK_BYTES);
            let at = DriveOffset(random_u64() % blocks * u64::from(CHECK_BYTES));
            let into = state.env().lease(Pool::Metadata, &[CHECK_BYTES]).await;
            drive.read(at, into).await.result
        });
        let Ok(Err(error)) = read.await else { return };
        // Whoever changes spares holds the lock; a spare that was taken meanwhile is not ours to judge.
        let _change = self.change.lock().await;
        let mut failed = false;
        self.spares.edit(path, |spare| {
            failed = spare.key == Some(key);
            if failed {
                spare.key = None;
                (spare.state, spare.since_unix_s) = (SpareState::Failed, unix_seconds());
                spare.why = Some(format!("it cannot be read: {error}"));
            }
        });
        if failed {
            tracing::warn!(drive = %path.display(), %error, "a spare failed");
            self.release(vec![key]).await;
        }
    }

    /// The drive of a spare is gone: it is let go of, and missing.
    pub(super) async fn spare_gone(&self, path: &Path, diskseq: Option<u64>) {
        let mut key = None;
        self.spares.edit(path, |spare| {
            let drive = spare.key.and_then(|key| self.host.drive(key));
            let seq = drive.and_then(|drive| drive.identity().diskseq);
            if seq.is_some() && diskseq.is_some() && seq != diskseq {
                return;
            }
            key = spare.key.take();
            (spare.state, spare.since_unix_s) = (SpareState::Missing, unix_seconds());
            spare.why = Some("the drive was removed".into());
        });
        if let Some(key) = key {
            self.release(vec![key]).await;
        }
    }

    /// Tries again at once to take hold of spares that are not held.
    pub(super) fn look_at_spares_again(&self) {
        for spare in self.spares.list.lock().iter_mut().filter(|spare| spare.key.is_none()) {
            spare.checked = None;
        }
    }

    async fn try_to_hold(&self, spare: &Spare) {
        let _change = self.change.lock().await;
        let mut path = spare.saved.path.clone();
        if self.spares.list.lock().iter().all(|one| one.saved.path != path || one.key.is_some()) {
            return;
        }
        if self.member_at(&path).is_some() {
            // It joined a group and the daemon ended before it could note that.
            drop(self.spares.take_out(&path));
            drop(self.spares.save());
            return;
        }
        // Names of block devices change from boot to boot, serials do not.
        if let Some(serial) = spare.saved.serial.clone()
            && let Ok(found) = look::resolve_all(&[serial]).await
            && found[0] != path
        {
            let from = std::mem::replace(&mut path, found[0].clone());
            self.spares.edit(&from, |spare| spare.saved.path.clone_from(&path));
            drop(self.spares.save());
        }
        let taken = self.take_spare(&path).await;
        self.spares.edit(&path, |spare| match taken {
            Ok(taken) => {
                (spare.key, spare.shape) = (Some(taken.key), Some(taken.shape));
                (spare.state, spare.why) = (SpareState::Ready, None);
                tracing::info!(drive = %path.display(), "spare ready");
            }
            Err(error) => {
                let is_absent = matches!(
                    error.code,
                    ErrorCode::DriveNotFound
                        | ErrorCode::DriveBusy
                        | ErrorCode::DriveHeld
                        | ErrorCode::DriveMounted
                );
                spare.state = if is_absent { SpareState::Missing } else { SpareState::Failed };
                spare.why = Some(error.message);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use raid_core::units::BlockSize;

    use super::choose::tests::{MIB, spare};
    use super::*;

    #[test]
    fn spares_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let spares = Spares::load(folder.path());
        assert!(spares.list.lock().is_empty());
        let group = Uuid::from_random(1, 2);
        spares.list.lock().push(spare("/a", MIB, BlockSize::B512, Some(group), 0));
        spares.save().unwrap();
        let again = Spares::load(folder.path());
        let list = again.list.lock();
        assert!(again.file.exists() && list.len() == 1 && list[0].is_for(group));
        assert!(!list[0].is_for(Uuid::from_random(5, 6)) && list[0].state == SpareState::Missing);
    }
}
