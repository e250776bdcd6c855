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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme_backend::DriveKind as BackendKind;
use parking_lot::Mutex;
use raid_core::format::plan::replacement_bytes_min;
use raid_core::ports::{Drive as _, DriveKey, Env as _, Pool};
use raid_core::units::{BlockSize, DriveOffset, Slot, Uuid};
use raid_core::view::{MemberLayout, MemberState as CoreState};
use serde::{Deserialize, Serialize};

use super::host::{random_u64, replace_file, unix_seconds};
use super::running::Running;
use super::{Daemon, drives, look};
use crate::control::model::{Health, MemberState, ProblemDoc, SpareDoc, SpareListDoc, SpareState};
use crate::control::{ApiError, ErrorCode, ProblemCode};
use crate::lane::on_lane;

/// How often lost members are looked for.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// How often a spare that is ready is read.
const CHECK_PERIOD: Duration = Duration::from_secs(30);
/// How often one that is not is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(5);
/// What a check reads.
const CHECK_BYTES: u32 = 4096;

/// What `spares.json` holds of a spare.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Saved {
    path: PathBuf,
    serial: Option<String>,
    /// Uuid of the group it is kept for.
    group: Option<String>,
}

/// What of a spare decides whether and where it fits.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shape {
    size_bytes: u64,
    block: BlockSize,
    /// A file is used with whatever block size the group has.
    is_file: bool,
    numa_node: Option<u16>,
}

#[derive(Clone, Debug)]
struct Spare {
    saved: Saved,
    shape: Option<Shape>,
    key: Option<DriveKey>,
    state: SpareState,
    why: Option<String>,
    since_unix_s: u64,
    checked: Option<Instant>,
}

impl Spare {
    fn new(saved: Saved) -> Self {
        Self {
            saved,
            shape: None,
            key: None,
            state: SpareState::Missing,
            why: Some("not looked at yet".to_owned()),
            since_unix_s: unix_seconds(),
            checked: None,
        }
    }

    fn is_for(&self, group: Uuid) -> bool {
        self.saved.group.as_deref().is_none_or(|kept| Uuid::parse(kept) == Some(group))
    }

    /// Whether it could take the place of a member with this layout; why not, in words, with by how much.
    fn fits(&self, layout: &MemberLayout, group_block: BlockSize) -> Result<&Shape, String> {
        let shown = self.saved.path.display();
        let shape = match (self.state, &self.shape) {
            (SpareState::Ready, Some(shape)) => shape,
            _ => return Err(format!("{shown}: {}", self.why.as_deref().unwrap_or("not ready"))),
        };
        if !shape.is_file && shape.block > group_block {
            let (spare, group) = (shape.block.bytes(), group_block.bytes());
            return Err(format!("{shown} has {spare}-byte blocks, the group {group}-byte blocks"));
        }
        match replacement_bytes_min(layout).checked_sub(shape.size_bytes) {
            None | Some(0) => Ok(shape),
            Some(short) => Err(format!("{shown} is {} too small", amount(short))),
        }
    }
}

/// Bytes in a unit that shows a small difference: one digit behind the point.
fn amount(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            // Rounded up: a drive that is this much larger fits.
            let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} bytes"),
    }
}

/// The best of the spares for a member with this layout; why none, one line a spare.
fn choose<'a>(
    spares: &'a [Spare],
    group: Uuid,
    layout: &MemberLayout,
    block: BlockSize,
    numa_node: Option<u16>,
) -> Result<&'a Spare, Vec<String>> {
    let mut best: Option<((bool, u64, bool), &Spare)> = None;
    let mut refused = Vec::new();
    for spare in spares.iter().filter(|spare| spare.is_for(group)) {
        match spare.fits(layout, block) {
            Err(why) => refused.push(why),
            Ok(shape) => {
                let is_far = numa_node.is_some() && shape.numa_node != numa_node;
                let rank = (spare.saved.group.is_none(), shape.size_bytes, is_far);
                if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                    best = Some((rank, spare));
                }
            }
        }
    }
    best.map(|(_, spare)| spare).ok_or(refused)
}

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

/// What becomes of a slot without a member.
enum Outlook {
    /// This spare takes it after this time.
    Takes(PathBuf, Duration),
    /// No spare fits, one reason each.
    NoneFits(Vec<String>),
    /// Spares leave it alone.
    LeftAlone(&'static str),
    /// There are no spares for this group.
    NoSpares,
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

    /// The NUMA node of most members of a group.
    fn node_of(&self, group: &Running) -> Option<u16> {
        let keys: Vec<DriveKey> = group.places.lock().iter().filter_map(|place| place.key).collect();
        let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
        for drive in keys.into_iter().filter_map(|key| self.host.drive(key)) {
            if let Some(node) = drive.identity().numa_node.and_then(|node| u16::try_from(node).ok()) {
                *counts.entry(node).or_default() += 1;
            }
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(node, _)| node)
    }

    fn outlook(&self, group: &Running, slot: Slot) -> Outlook {
        let view = group.shared.view();
        let CoreState::Missing { why } = view.member(slot).state else { return Outlook::NoSpares };
        let list = self.spares.list.lock().clone();
        if !list.iter().any(|spare| spare.is_for(group.uuid)) {
            return Outlook::NoSpares;
        }
        let left_out = group.places.lock()[slot.index()].left_out.as_ref().map(|(state, _)| *state);
        if why.is_none() && left_out == Some(MemberState::Conflict) {
            return Outlook::LeftAlone("its drive holds another history of the group: the operator chooses");
        }
        if group.shared.is_offline() {
            return Outlook::LeftAlone("the group is offline: only its own members bring it back");
        }
        let (layout, block) = (&view.member(slot).layout, group.shared.block_size());
        let wait_ns = match why {
            None => self.options.spare_wait_missing_ns,
            Some(_) => self.options.spare_wait_failed_ns,
        };
        let since = self.spares.lost.lock().get(&(group.uuid, slot)).copied();
        let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
        match choose(&list, group.uuid, layout, block, self.node_of(group)) {
            Ok(spare) => {
                let left = Duration::from_nanos(wait_ns).saturating_sub(waited);
                Outlook::Takes(spare.saved.path.clone(), left)
            }
            Err(refused) => Outlook::NoneFits(refused),
        }
    }

    /// Whether a spare takes this slot, now or when its time has come.
    pub(super) fn spare_comes(&self, group: &Running, slot: Slot) -> bool {
        matches!(self.outlook(group, slot), Outlook::Takes(..))
    }

    /// Gives every slot that lacks a member a spare whose time has come.
    async fn fill_slots(self: &Arc<Self>) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let mut lost: Vec<(Arc<Running>, Slot)> = Vec::new();
        for group in groups {
            let view = group.shared.view();
            let missing = view.slots().filter(|slot| view.member(*slot).is_missing());
            lost.extend(missing.map(|slot| (Arc::clone(&group), slot)));
        }
        {
            let mut since = self.spares.lost.lock();
            since.retain(|(uuid, slot), _| lost.iter().any(|(group, s)| group.uuid == *uuid && s == slot));
            for (group, slot) in &lost {
                since.entry((group.uuid, *slot)).or_insert_with(Instant::now);
            }
        }
        for (group, slot) in lost {
            if matches!(self.outlook(&group, slot), Outlook::Takes(_, Duration::ZERO)) {
                self.fill_slot(&group, slot).await;
            }
        }
    }

    async fn fill_slot(self: &Arc<Self>, group: &Arc<Running>, slot: Slot) {
        let _change = self.change.lock().await;
        // Looked at again under the lock: an operator, or another slot, may have been faster.
        let Outlook::Takes(path, Duration::ZERO) = self.outlook(group, slot) else { return };
        if !self.is_running(group.uuid) || group.shared.is_stopping() {
            return;
        }
        let Some(spare) = self.spares.take_out(&path) else { return };
        if let Some(key) = spare.key {
            self.release(vec![key]).await;
        }
        let shown = path.display().to_string();
        tracing::warn!(group = group.name(), %slot, drive = shown, "a spare takes the lost member's place");
        match self.replace_member(group, slot, &shown, false).await {
            Ok(_) => {
                if let Err(error) = self.spares.save() {
                    tracing::error!(%error, "the spare that joined a group is still listed");
                }
            }
            Err(error) => {
                tracing::error!(group = group.name(), %slot, drive = shown, %error, "the spare could not join");
                let mut spare = Spare { key: None, state: SpareState::Failed, ..spare };
                spare.why = Some(error.message);
                (spare.since_unix_s, spare.checked) = (unix_seconds(), Some(Instant::now()));
                self.spares.list.lock().push(spare);
            }
        }
    }

    /// What is wrong with spares, and what becomes of slots without a member.
    pub(super) fn spare_problems(&self) -> Vec<ProblemDoc> {
        let mut problems: Vec<ProblemDoc> = Vec::new();
        for spare in self.spares.list.lock().iter().filter(|spare| spare.state != SpareState::Ready) {
            let shown = spare.saved.path.display().to_string();
            let why = spare.why.clone().unwrap_or_default();
            problems.push(ProblemDoc {
                code: if spare.state == SpareState::Missing {
                    ProblemCode::SpareMissing
                } else {
                    ProblemCode::SpareFailed
                }
                .into(),
                health: Health::Warning,
                group: None,
                slot: None,
                drive: Some(shown.clone()),
                serial: spare.saved.serial.clone(),
                since_unix_s: Some(spare.since_unix_s),
                why: format!("the spare {shown} cannot be used: {why}"),
                risk: "a lost member is not replaced by it".into(),
                next: format!("warpraid spare remove {shown}"),
            });
        }
        for group in self.groups.read().values() {
            let view = group.shared.view();
            let missing = view.slots().filter(|slot| view.member(*slot).is_missing());
            problems.extend(missing.filter_map(|slot| self.slot_problem(group, slot)));
        }
        problems
    }

    fn slot_problem(&self, group: &Running, slot: Slot) -> Option<ProblemDoc> {
        let name = group.name();
        let (code, why, next) = match self.outlook(group, slot) {
            Outlook::NoSpares => return None,
            Outlook::Takes(path, left) => (
                ProblemCode::GroupSpareWaiting,
                format!("the spare {} takes slot {slot} in {} s", path.display(), left.as_secs()),
                format!("warpraid group wait {name} --for rebuilt"),
            ),
            Outlook::NoneFits(refused) => (
                ProblemCode::GroupSpareMissing,
                format!("no spare fits slot {slot}: {}", refused.join("; ")),
                format!("warpraid spare add NEW_DRIVE --group {name}"),
            ),
            Outlook::LeftAlone(why) => (
                ProblemCode::GroupSpareMissing,
                format!("no spare takes slot {slot}: {why}"),
                format!("warpraid group show {name}"),
            ),
        };
        Some(ProblemDoc {
            code: code.into(),
            health: Health::Warning,
            group: Some(name.to_owned()),
            slot: Some(slot.0),
            drive: None,
            serial: None,
            since_unix_s: None,
            why,
            risk: "until a drive takes its place, redundancy is short of this member".into(),
            next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare(path: &str, size_bytes: u64, block: BlockSize, group: Option<Uuid>, node: u16) -> Spare {
        let saved = Saved { path: path.into(), serial: None, group: group.map(|uuid| uuid.to_string()) };
        let shape = Shape { size_bytes, block, is_file: false, numa_node: Some(node) };
        let mut spare = Spare::new(saved);
        (spare.shape, spare.state, spare.why) = (Some(shape), SpareState::Ready, None);
        spare
    }

    const MIB: u64 = 1 << 20;

    fn chosen(spares: &[Spare], group: Uuid) -> Result<String, Vec<String>> {
        let layout = MemberLayout::bare(64 * MIB);
        let found = choose(spares, group, &layout, BlockSize::B512, Some(1));
        found.map(|spare| spare.saved.path.display().to_string())
    }

    #[test]
    fn the_smallest_that_fits_is_chosen_and_one_kept_for_the_group_before_a_global_one() {
        let (mine, other) = (Uuid::from_random(1, 2), Uuid::from_random(3, 4));
        let (large, small) = (200 * MIB, 100 * MIB);
        let b = BlockSize::B512;
        let mut spares = vec![
            spare("/large", large, b, None, 1),
            spare("/far", small, b, None, 0),
            spare("/near", small, b, None, 1),
            spare("/other", 80 * MIB, b, Some(other), 1),
        ];
        assert_eq!(chosen(&spares, mine).unwrap(), "/near");
        assert_eq!(chosen(&spares, other).unwrap(), "/other");
        spares.push(spare("/mine", 300 * MIB, b, Some(mine), 0));
        assert_eq!(chosen(&spares, mine).unwrap(), "/mine");
        spares[4].state = SpareState::Failed;
        assert_eq!(chosen(&spares, mine).unwrap(), "/near");
    }

    #[test]
    fn mk_04_a_spare_that_does_not_fit_says_by_how_much() {
        let group = Uuid::from_random(1, 2);
        let needed = replacement_bytes_min(&MemberLayout::bare(64 * MIB));
        let spares = [
            spare("/small", needed - 3 * MIB - MIB / 5, BlockSize::B512, None, 1),
            spare("/wide", needed, BlockSize::B4096, None, 1),
        ];
        let refused = chosen(&spares, group).unwrap_err();
        assert_eq!(
            refused,
            ["/small is 3.2 MiB too small", "/wide has 4096-byte blocks, the group 512-byte blocks"]
        );
        let exact = [spare("/exact", needed, BlockSize::B512, None, 1)];
        assert_eq!(chosen(&exact, group).unwrap(), "/exact");
        let short = [spare("/short", needed - 1, BlockSize::B512, None, 1)];
        assert_eq!(chosen(&short, group).unwrap_err(), ["/short is 1 bytes too small"]);
    }

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
