//! A new drive for a slot. Where the slot has no member it joins and is rebuilt. Where it has one in sync, that one goes on
//! serving until the new drive holds all it holds and takes the slot in one change of membership
//! (`raid_core::engine::Group::succeed`); then the old drive is wiped and let go of.
//!
//! While it is filled the new drive is held and named by [`Running::fillings`] only: the group does not depend on it. A
//! start that finds such a drive begins to fill it anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme_backend::OpenDrive;
use raid_core::engine::{Pace, Succession, SweepError};
use raid_core::format::plan::{PlanDrive, check_replacement};
use raid_core::membership::{self, Observation, prepare_member, prepare_successor, slot_succeeded};
use raid_core::ports::{DriveKey, Env, IoKind};
use raid_core::units::Slot;
use raid_core::view::Successor;

use super::groups::plan_error;
use super::host::unix_seconds;
use super::jobs::Job;
use super::look::{self, Looked};
use super::running::{Place, Running};
use super::sweeps::member_drives;
use super::{Daemon, drives, io_failed, lane_ops, stopping};
use crate::control::model::Operation;
use crate::control::{ApiError, ErrorCode, EventCode};
use crate::events::NewEvent;
use crate::lane::on_lane;

/// A drive that is being filled for a slot.
pub(super) struct Filling {
    /// Where it is.
    pub(super) place: Place,
    /// How far it is.
    pub(super) job: Arc<Job>,
}

/// How a slot gets its new drive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It has no member: rebuilt.
    Rebuild,
    /// Its member is dropped first, then rebuilt.
    DropFirst,
    /// Filled while its member serves.
    Succeed,
}

/// A drive that was opened for a slot.
struct New<'a> {
    path: &'a Path,
    drive: &'a OpenDrive,
    key: DriveKey,
}

impl New<'_> {
    fn place(&self) -> Place {
        Place::of(self.key, self.path.display().to_string(), self.drive)
    }
}

fn slot_invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::GroupSlotInvalid, message)
}

/// How the slot is to get its drive; `now`: not waiting for a copy.
fn way_of(group: &Running, slot: Slot, now: bool) -> Result<Way, ApiError> {
    let view = group.shared.view();
    let name = group.name();
    if slot.index() >= view.members.len() {
        let last = view.members.len() - 1;
        return Err(slot_invalid(format!("group {name} has slots 0 to {last}, no slot {slot}")));
    }
    if group.shared.is_offline() {
        let message = format!("group {name} is offline: a blank drive cannot bring it back");
        return Err(ApiError::new(ErrorCode::GroupOffline, message)
            .hint("bring the missing members back: warpraid status names them"));
    }
    let member = view.member(slot);
    if !member.is_missing() {
        let drive = group.places.lock()[slot.index()].path.clone().unwrap_or_default();
        if let Some(filling) = group.fillings.lock().get(&slot) {
            let new = filling.place.path.clone().unwrap_or_default();
            let message = format!("slot {slot} of group {name} is being replaced by {new} already");
            return Err(slot_invalid(message)
                .hint(format!("to stop that and keep {drive}: warpraid drive fail {new}")));
        }
        if now {
            return Ok(Way::DropFirst);
        }
        if member.is_in_sync() {
            return Ok(Way::Succeed);
        }
        return Err(slot_invalid(format!("slot {slot} of group {name} is being rebuilt on {drive}"))
            .hint(format!("to use another drive for it at once: warpraid group replace {name} --slot {slot} --now NEW_DRIVE")));
    }
    Ok(Way::Rebuild)
}

impl Daemon {
    /// Gives a slot without a member a new drive. With `change` held.
    pub(super) async fn replace_member(
        self: &Arc<Self>,
        group: &Arc<Running>,
        slot: Slot,
        new_drive: &str,
        dry_run: bool,
    ) -> Result<Vec<String>, ApiError> {
        if group.shared.view().members.get(slot.index()).is_some_and(|member| !member.is_missing()) {
            return Err(slot_invalid(format!("slot {slot} of group {} has a drive again", group.name())));
        }
        self.replace(group, slot, new_drive, false, dry_run).await
    }

    /// Gives a slot a new drive, whatever it has. `now`: a member that still serves is dropped first. With `change` held.
    pub(super) async fn replace(
        self: &Arc<Self>,
        group: &Arc<Running>,
        slot: Slot,
        new_drive: &str,
        now: bool,
        dry_run: bool,
    ) -> Result<Vec<String>, ApiError> {
        let way = way_of(group, slot, now)?;
        let path = look::resolve_all(&[new_drive.to_owned()]).await?.remove(0);
        if let Some((other, of, _)) = self.member_at(&path) {
            let message =
                format!("{} is already a member of group {} (slot {of})", path.display(), other.name());
            return Err(ApiError::new(ErrorCode::DriveIsMember, message));
        }
        self.refuse_spare(&path)?;
        let block = file_block_size(&path, group);
        let drive = look::open(&path, drives::exclusive(self.options.drive_timeout_ns, block)).await?;
        let key = self.host.add_drive(drive.clone());
        let new = New { path: &path, drive: &drive, key };
        let result = self.put_in(group, slot, &new, way, dry_run).await;
        if result.is_err() || dry_run {
            self.release(vec![key]).await;
        }
        result
    }

    async fn put_in(
        self: &Arc<Self>,
        group: &Arc<Running>,
        slot: Slot,
        new: &New<'_>,
        way: Way,
        dry_run: bool,
    ) -> Result<Vec<String>, ApiError> {
        self.check_new(group, slot, new).await?;
        let (shown, name) = (new.path.display(), group.name());
        let bytes = group.shared.geometry().member_bytes();
        let old = group.places.lock()[slot.index()].path.clone().unwrap_or_default();
        let mut steps = match way {
            Way::Succeed => vec![
                format!(
                    "{shown} is filled with what {old} holds, slot {slot} of group {name}, which serves meanwhile: {bytes} bytes"
                ),
                format!("then {shown} becomes slot {slot}, in one change of membership"),
                format!("then what identifies {old} is wiped, and it is let go of"),
            ],
            _ => vec![
                format!("{shown} becomes slot {slot} of group {name}"),
                format!("its data is rebuilt: {bytes} bytes"),
            ],
        };
        if way == Way::DropFirst {
            steps.insert(0, format!("{old} is dropped from slot {slot} of group {name}"));
        }
        if dry_run {
            return Ok(steps);
        }
        match way {
            Way::Succeed => self.begin_filling(group, slot, new).await?,
            Way::DropFirst => {
                self.fail_member(group, slot, false).await?;
                self.join(group, slot, new.key, new.place()).await?;
            }
            Way::Rebuild => self.join(group, slot, new.key, new.place()).await?,
        }
        self.state.remember_drives([new.path.to_owned()]);
        Ok(steps)
    }

    /// Refuses a drive that does not fit or is not blank.
    async fn check_new(&self, group: &Arc<Running>, slot: Slot, new: &New<'_>) -> Result<(), ApiError> {
        let shown = new.path.display().to_string();
        let planned =
            PlanDrive { name: shown.clone(), bytes: new.drive.size_bytes(), block: new.drive.block_size() };
        let layout = group.shared.view().members[slot.index()].layout.clone();
        check_replacement(&layout, group.shared.block_size(), &planned)
            .map_err(|error| plan_error(&error))?;
        let looked = self.look(vec![(new.key, new.path.to_owned())]).await?;
        let looked = looked.first().ok_or_else(stopping)?;
        if let Observation::Unreadable(error) = &looked.seen.what {
            return Err(io_failed(&shown, error));
        }
        if let Ok((old, _)) = Self::may_return(group, looked) {
            let message = format!("{shown} is the old member of slot {old} of group {}", group.name());
            return Err(ApiError::new(ErrorCode::DriveIsMember, message).hint(format!(
                "warpraid group readd {} {shown} takes it back and copies only what changed",
                group.name()
            )));
        }
        Self::refuse_used(looked, new.drive)
    }

    /// Puts a drive in a slot without a member and starts its rebuild.
    async fn join(
        self: &Arc<Self>,
        group: &Arc<Running>,
        slot: Slot,
        key: DriveKey,
        place: Place,
    ) -> Result<(), ApiError> {
        let uuid = group.uuid;
        let joined = on_lane(&group.home, move |state| async move {
            let group = state.group(uuid).ok_or(IoKind::ShuttingDown)?;
            let drive = state.env().drive(key).ok_or(IoKind::Gone)?;
            let (view, drives) = (group.shared().view(), member_drives(&group));
            let meta = group.shared().meta();
            let member = prepare_member(state.env(), meta, &view, slot, (key, &drive), &drives).await;
            group.add_member(slot, member.map_err(|error| error.kind)?).await.map(|_| ())
        });
        joined.await.map_err(|_| stopping())?.map_err(|kind| could_not_join(group, &place, kind))?;
        self.take_place(group, slot, Place { since_unix_s: Some(unix_seconds()), ..place });
        self.start_rebuild(group, slot);
        Ok(())
    }

    /// Makes a drive ready to be filled, and starts that in the background.
    async fn begin_filling(
        self: &Arc<Self>,
        group: &Arc<Running>,
        slot: Slot,
        new: &New<'_>,
    ) -> Result<(), ApiError> {
        let (uuid, key) = (group.uuid, new.key);
        let prepared = on_lane(&group.home, move |state| async move {
            let group = state.group(uuid).ok_or(IoKind::ShuttingDown)?;
            let drive = state.env().drive(key).ok_or(IoKind::Gone)?;
            let (view, drives) = (group.shared().view(), member_drives(&group));
            let meta = group.shared().meta();
            let successor = prepare_successor(state.env(), meta, &view, slot, (key, &drive), &drives).await;
            successor.map_err(|error| error.kind)
        });
        let place = new.place();
        let prepared = prepared.await.map_err(|_| stopping())?;
        let successor = prepared.map_err(|kind| could_not_join(group, &place, kind))?;
        let pace = Arc::new(Pace::default());
        let job = Job::new(Operation::Replace, Some(slot), pace);
        group.jobs.lock().push(Arc::clone(&job));
        group.fillings.lock().insert(slot, Filling { place, job });
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move { daemon.fill(&group, slot, successor).await });
        Ok(())
    }

    /// Fills a drive, and deals with how that ended.
    async fn fill(self: &Arc<Self>, group: &Arc<Running>, slot: Slot, successor: Successor) {
        let name = group.name();
        let told = |code, message: String| self.note(NewEvent::new(code, message).group(name).slot(slot.0));
        let Some((place, job)) =
            group.fillings.lock().get(&slot).map(|it| (it.place.clone(), Arc::clone(&it.job)))
        else {
            return;
        };
        let (new, old) = (shown(&place), shown(&group.places.lock()[slot.index()]));
        told(
            EventCode::RebuildStarted,
            format!("group {name}: {new} is being filled to replace {old}, slot {slot}"),
        );
        let (uuid, pace) = (group.uuid, Arc::clone(&job.pace));
        let ended = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => group.succeed(slot, successor, &pace).await,
                None => Err(SweepError::Cancelled),
            }
        });
        let ended = ended.await.unwrap_or(Err(SweepError::Cancelled));
        match &ended {
            Ok(Succession::Done { old: key }) => {
                self.take_place(group, slot, Place { since_unix_s: None, ..place.clone() });
                told(
                    EventCode::RebuildFinished,
                    format!("group {name}: {new} has replaced {old}, slot {slot}"),
                );
                if let Some(key) = *key {
                    self.let_go_of_old(group, key, &old).await;
                }
            }
            Ok(Succession::ToRebuild) => {
                told(
                    EventCode::RebuildFailed,
                    format!(
                        "group {name}: {old} failed while {new} was filled to replace it; slot {slot} is rebuilt on {new}"
                    ),
                );
                let old = group.places.lock()[slot.index()].key;
                self.take_place(group, slot, Place { since_unix_s: Some(unix_seconds()), ..place.clone() });
                if let Some(key) = old {
                    lane_ops::forget_drive(&self.lanes, uuid, key);
                    drop(self.host.remove_drive(key));
                }
                self.start_rebuild(group, slot);
            }
            Err(SweepError::Cancelled) => {
                tracing::info!(group = name, %slot, drive = new, "replacement stopped; {old} keeps the slot");
            }
            Err(SweepError::MemberGone(_)) => told(
                EventCode::RebuildFailed,
                format!("group {name}: {old} failed while {new} was filled to replace it, slot {slot}"),
            ),
            Err(SweepError::Io(error)) => told(
                EventCode::RebuildFailed,
                format!(
                    "group {name}: {new} could not replace {old}, which keeps slot {slot}: {}",
                    place.why_dropped(Some(error.kind))
                ),
            ),
        }
        group.fillings.lock().remove(&slot);
        group.jobs.lock().retain(|other| !Arc::ptr_eq(other, &job));
        if ended.is_err() {
            self.after_failure(group, slot, place, ended == Err(SweepError::MemberGone(slot))).await;
        }
    }

    /// What becomes of a drive that was not filled: it takes a slot that lost its member meanwhile, or is let go of.
    async fn after_failure(self: &Arc<Self>, group: &Arc<Running>, slot: Slot, place: Place, is_gone: bool) {
        let Some(key) = place.key else { return };
        lane_ops::forget_drive(&self.lanes, group.uuid, key);
        if is_gone {
            let _change = self.change.lock().await;
            let is_free = self.is_running(group.uuid) && group.shared.view().member(slot).is_missing();
            if is_free && !group.shared.is_offline() {
                group.release_dropped(&self.host, &self.lanes);
                match self.join(group, slot, key, place).await {
                    Ok(()) => return,
                    Err(error) => tracing::error!(group = group.name(), %slot, %error, "no rebuild"),
                }
            }
        } else if !group.shared.is_stopping() {
            // The operator's word, or its own failure: it is blank again, or as good as.
            self.wipe_open(key).await;
        }
        self.release(vec![key]).await;
    }

    /// The drive of a slot is another one now.
    fn take_place(&self, group: &Running, slot: Slot, place: Place) {
        group.places.lock()[slot.index()] = place;
        self.remember_members(group);
    }

    /// Wipes what identifies a drive that was replaced, so that it can be used for something else, and lets go of it.
    async fn let_go_of_old(&self, group: &Arc<Running>, key: DriveKey, path: &str) {
        if !self.wipe_open(key).await {
            tracing::warn!(
                group = group.name(),
                drive = path,
                "the old drive was replaced but could not be wiped"
            );
        }
        lane_ops::forget_drive(&self.lanes, group.uuid, key);
        drop(self.host.remove_drive(key));
    }

    /// Wipes a drive that is still open.
    async fn wipe_open(&self, key: DriveKey) -> bool {
        let wiped = on_lane(&self.lanes[0], move |state| async move {
            match state.env().drive(key) {
                Some(drive) => membership::wipe(state.env(), &drive).await.is_ok(),
                None => false,
            }
        });
        wiped.await.unwrap_or(false)
    }

    /// Stops filling the drive called so; the group is as it was. False if it is none.
    pub(super) fn stop_filling(&self, name: &str, dry_run: bool) -> Option<(Arc<Running>, Slot, String)> {
        let canonical = drives::canonical(Path::new(name)).display().to_string();
        let groups = self.groups.read();
        groups.values().find_map(|group| {
            let fillings = group.fillings.lock();
            let is_called = |place: &Place| {
                let path = place.path.as_deref();
                path == Some(name) || path == Some(&canonical) || place.serial.as_deref() == Some(name)
            };
            let (slot, filling) = fillings.iter().find(|(_, filling)| is_called(&filling.place))?;
            if !dry_run {
                filling.job.pace.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            Some((Arc::clone(group), *slot, shown(&filling.place)))
        })
    }

    /// Goes on, from the start, with what a stop or a crash interrupted. With `change` held.
    pub(super) async fn resume_filling(self: &Arc<Self>, group: &Arc<Running>, found: Vec<(Slot, PathBuf)>) {
        for (slot, path) in found {
            let is_served = group.shared.view().members.get(slot.index()).is_some_and(|it| it.is_in_sync());
            if !is_served {
                continue;
            }
            let name = path.display().to_string();
            if let Err(error) = self.replace(group, slot, &name, false, false).await {
                tracing::warn!(group = group.name(), %slot, drive = name, %error, "its replacement does not go on");
            }
        }
    }
}

fn shown(place: &Place) -> String {
    place.path.clone().unwrap_or_default()
}

fn could_not_join(group: &Running, place: &Place, kind: IoKind) -> ApiError {
    let (code, why) = match kind {
        IoKind::BeyondTolerance => (ErrorCode::GroupOffline, "there is no source to rebuild from".into()),
        kind => (ErrorCode::Io, place.why_dropped(Some(kind))),
    };
    ApiError::new(code, format!("{} could not join group {}: {why}", shown(place), group.name()))
}

/// The drives among these that were being filled for a slot of their group when it ended.
pub(super) fn interrupted(looked: &[Looked]) -> Vec<(Slot, PathBuf)> {
    let slot_of = |one: &Looked| match &one.seen.what {
        Observation::Ours(ours) => slot_succeeded(ours),
        _ => None,
    };
    looked.iter().filter_map(|one| Some((slot_of(one)?, one.path.clone()))).collect()
}

/// Files have no block size of their own: one that joins a group of 4096-byte blocks is used with those.
pub(super) fn file_block_size(path: &Path, group: &Running) -> Option<raid_core::units::BlockSize> {
    path.is_file().then(|| group.shared.block_size())
}
