//! A group's life by verb: plan, create, assemble, stop, delete, undelete, and dropping or wiping a drive.
//!
//! Every verb checks all it can before it writes anything, and takes `change` so that two of them never meet.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvme_backend::OpenDrive;
use raid_core::format::plan::{NewGroup, Plan, PlanDrive, PlanError, plan};
use raid_core::format::superblock::set_name;
use raid_core::geometry::Level;
use raid_core::membership::{
    self, CreateError, CreateRequest, Decision, Observation, Policy, UndeleteError, create,
};
use raid_core::names::{check_name, same_name};
use raid_core::ports::{DriveKey, Env, IoKind};
use raid_core::units::{Slot, Uuid};

use super::host::{random_u64, unix_seconds};
use super::look::{self, Looked};
use super::refused::refused;
use super::running::{BY_OPERATOR, Running};
use super::start::Started;
use super::sweeps::member_drives;
use super::{Daemon, drives, io_failed, lane_ops, stopping};
use crate::control::request::Init;
use crate::control::{ApiError, ErrorCode};
use crate::lane::on_lane;

/// How often a stop tries again after a member failed during it.
const STOP_ATTEMPTS_MAX: u32 = 8;

/// The API error of an impossible plan.
pub(super) fn plan_error(error: &PlanError) -> ApiError {
    let (code, hint) = match error {
        PlanError::Drives { .. } => {
            (ErrorCode::GroupDrivesInvalid, "give the number of drives the level needs")
        }
        PlanError::Twice(_) => (ErrorCode::DriveTwice, "name each drive once"),
        PlanError::Chunk(_) => (ErrorCode::GroupChunkInvalid, "64K fits most uses"),
        PlanError::ChunkOnMirror => (ErrorCode::GroupChunkInvalid, "leave --chunk out"),
        PlanError::DriveTooSmall { .. } => (ErrorCode::DriveTooSmall, "use a larger drive"),
        PlanError::Block { .. } => (ErrorCode::DriveBlockSize, "use a drive with the group's block size"),
    };
    ApiError::new(code, error.to_string()).hint(hint)
}

/// Drives opened for a plan or a create, in slot order.
pub(super) struct Taken {
    pub(super) drives: Vec<(PathBuf, OpenDrive, DriveKey)>,
    pub(super) plan: Plan,
}

impl Taken {
    pub(super) fn keys(&self) -> Vec<DriveKey> {
        self.drives.iter().map(|(_, _, key)| *key).collect()
    }
}

/// What a create needs to know beside its drives.
pub(super) struct NewGroupWish<'a> {
    pub(super) name: &'a str,
    pub(super) level: Level,
    pub(super) init: Init,
    /// Slots that are read only where no other copy can be.
    pub(super) write_mostly: Vec<Slot>,
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn create_error(error: &CreateError, paths: &[PathBuf]) -> ApiError {
    let path = |slot: Slot| paths[slot.index()].display().to_string();
    match error {
        CreateError::AlreadyMember { slot, name, group } => ApiError::new(
            ErrorCode::DriveIsMember,
            format!("{} is already a member of group {name} ({group})", path(*slot)),
        )
        .hint(format!("warpraid group assemble {name}, or delete that group first")),
        CreateError::InUse { slot, what } => {
            ApiError::new(ErrorCode::DriveUsed, format!("{} is in use: {what}", path(*slot)))
                .hint(format!("warpraid drive wipe {} takes everything off it", path(*slot)))
        }
        CreateError::TooSmall { slot, bytes, needed } => ApiError::new(
            ErrorCode::DriveTooSmall,
            format!("{} has {bytes} bytes, {needed} are needed", path(*slot)),
        ),
        CreateError::Failed { .. } => ApiError::new(ErrorCode::Io, error.to_string())
            .hint("the drives are as they were, except where the message says otherwise"),
    }
}

impl Daemon {
    /// Refuses a drive that carries anything, or that somebody uses (AD-01, AD-08).
    pub(super) fn refuse_used(looked: &Looked, drive: &OpenDrive) -> Result<(), ApiError> {
        let path = looked.path.display();
        let holders = &drive.identity().holders;
        if !holders.is_empty() {
            let message = format!("{path} is in use by {}", holders.join(", "));
            return Err(ApiError::new(ErrorCode::DriveMounted, message)
                .hint("unmount or stop it first; a drive in use is never taken"));
        }
        if let Observation::Ours(ours) = &looked.seen.what
            && !ours.copy.marks.deleted
            && !ours.copy.marks.creating
        {
            let (name, group) = (&ours.copy.name, ours.copy.group);
            let message = format!("{path} is already a member of group {name} ({group})");
            return Err(ApiError::new(ErrorCode::DriveIsMember, message)
                .hint(format!("warpraid group assemble {name}, or warpraid drive wipe {path}")));
        }
        if let Observation::Ours(ours) = &looked.seen.what
            && ours.copy.marks.creating
        {
            return Ok(());
        }
        match looked.what() {
            None => Ok(()),
            Some(what) => Err(ApiError::new(ErrorCode::DriveUsed, format!("{path} carries {what}"))
                .hint(format!("if nothing on it is needed any more: warpraid drive wipe {path}"))),
        }
    }

    /// Opens drives for a create, refuses those that carry anything, and plans. `exclusive`: to be written.
    ///
    /// # Errors
    /// The first thing that is wrong; every drive is let go of then.
    pub(super) async fn take_blank(
        &self,
        names: &[String],
        level: Level,
        chunk_bytes: Option<u32>,
        exclusive: bool,
    ) -> Result<Taken, ApiError> {
        let paths = look::resolve_all(names).await?;
        let mut opened = Vec::new();
        let result = self.take_blank_inner(&paths, level, chunk_bytes, exclusive, &mut opened).await;
        if result.is_err() {
            self.release(opened.iter().map(|(_, _, key)| *key).collect()).await;
        }
        Ok(Taken { plan: result?, drives: opened })
    }

    async fn take_blank_inner(
        &self,
        paths: &[PathBuf],
        level: Level,
        chunk_bytes: Option<u32>,
        exclusive: bool,
        opened: &mut Vec<(PathBuf, OpenDrive, DriveKey)>,
    ) -> Result<Plan, ApiError> {
        for path in paths {
            if let Some((group, slot, _)) = self.member_at(path) {
                let message =
                    format!("{} is already a member of group {} (slot {slot})", path.display(), group.name());
                return Err(ApiError::new(ErrorCode::DriveIsMember, message)
                    .hint("use a drive that no group uses: warpraid drive list"));
            }
            self.refuse_spare(path)?;
            let options = if exclusive {
                drives::exclusive(self.options.drive_timeout_ns, None)
            } else {
                drives::inspection(self.options.drive_timeout_ns)
            };
            let drive = look::open(path, options).await?;
            let key = self.host.add_drive(drive.clone());
            opened.push((path.clone(), drive, key));
        }
        let planned: Vec<PlanDrive> = opened
            .iter()
            .map(|(path, drive, _)| PlanDrive {
                name: path.display().to_string(),
                bytes: drive.size_bytes(),
                block: drive.block_size(),
            })
            .collect();
        let plan = plan(level, chunk_bytes.map(u64::from), &planned).map_err(|error| plan_error(&error))?;
        let looked = self.look(opened.iter().map(|(path, _, key)| (*key, path.clone())).collect()).await?;
        for (one, (_, drive, _)) in looked.iter().zip(opened.iter()) {
            if let Observation::Unreadable(error) = &one.seen.what {
                return Err(io_failed(&one.path.display().to_string(), error));
            }
            Self::refuse_used(one, drive)?;
        }
        Ok(plan)
    }

    /// Refuses a group name that is not one, or is taken by a group that runs or lies on a known drive.
    pub(super) fn check_group_name(&self, name: &str) -> Result<(), ApiError> {
        check_name("group", name).map_err(|error| {
            ApiError::new(ErrorCode::GroupNameInvalid, error.to_string()).hint("for example: tank")
        })?;
        let running = self.groups.read().values().find(|group| same_name(group.name(), name)).cloned();
        let taken = running.map(|group| (group.name().to_owned(), group.uuid.to_string())).or_else(|| {
            let stopped = self.unstarted_docs();
            stopped.into_iter().find(|doc| same_name(&doc.name, name)).map(|doc| (doc.name, doc.uuid))
        });
        match taken {
            None => Ok(()),
            Some((taken, uuid)) => {
                let message = format!("a group named {taken} exists ({uuid})");
                Err(ApiError::new(ErrorCode::GroupNameTaken, message).hint("choose another name"))
            }
        }
    }

    /// Creates a group on drives that were taken for it, and starts it. All or nothing (AD-07).
    pub(super) async fn create_on(
        self: &Arc<Self>,
        wish: &NewGroupWish<'_>,
        taken: Taken,
    ) -> Result<Started, ApiError> {
        let uuid = Uuid::from_random(random_u64(), random_u64());
        let new = NewGroup {
            group: uuid,
            set_name: set_name(&host_name(), wish.name),
            devices: taken.drives.iter().map(|_| Uuid::from_random(random_u64(), random_u64())).collect(),
            created_unix_s: unix_seconds(),
            events: 0,
            is_claimed: true,
            is_in_sync: wish.init == Init::Zero || !wish.level.is_redundant(),
        };
        let keys = taken.keys();
        let paths: Vec<PathBuf> = taken.drives.iter().map(|(path, _, _)| path.clone()).collect();
        let (plan, name, lane_keys) = (taken.plan, wish.name.to_owned(), keys.clone());
        let write_mostly = wish.write_mostly.clone();
        let created = on_lane(&self.lanes[0], move |state| async move {
            let drives: Vec<_> =
                lane_keys.iter().map(|key| state.env().drive(*key).expect("in the registry")).collect();
            let request = CreateRequest {
                plan: &plan,
                new: &new,
                name: &name,
                overwrite: true,
                write_mostly: &write_mostly,
            };
            create(state.env(), &request, &drives).await
        })
        .await;
        let created =
            created.map_err(|_| stopping()).and_then(|result| result.map_err(|e| create_error(&e, &paths)));
        if let Err(error) = created {
            self.release(keys).await;
            return Err(error);
        }
        let looked = self.look(keys.into_iter().zip(paths).collect()).await?;
        let started = self.decide_and_start(wish.name, uuid, looked, Policy::default(), true).await?;
        if wish.init == Init::Zero {
            started.group.shared.vouch_for_all();
        }
        Ok(started)
    }

    /// Decides and starts; members are let go of if it is refused.
    pub(super) async fn decide_and_start(
        self: &Arc<Self>,
        name: &str,
        uuid: Uuid,
        looked: Vec<Looked>,
        policy: Policy,
        is_new: bool,
    ) -> Result<Started, ApiError> {
        let keys: Vec<DriveKey> = looked.iter().map(|one| one.key).collect();
        let decided = self.decide(uuid, looked, policy);
        let error = match decided.decision {
            Decision::Start(plan) => return self.start_planned(*plan, decided.looked, is_new).await,
            Decision::WaitFor { missing } => {
                let message = format!("group {name}: {} members are missing", missing.len());
                let error = ApiError::new(ErrorCode::GroupIncomplete, message)
                    .hint("bring them back and assemble again");
                self.note_unstarted(uuid, &decided.looked, None, &error);
                error
            }
            Decision::Refuse(refusal) => {
                let error = refused(name, &refusal, &decided.looked);
                self.note_unstarted(uuid, &decided.looked, Some(&refusal), &error);
                error
            }
        };
        self.release(keys).await;
        Err(error)
    }

    /// Stops serving a group and lets go of its drives, marked clean.
    ///
    /// # Errors
    /// `group.busy` with the clients unless `force`.
    pub(super) async fn stop_group(
        self: &Arc<Self>,
        group: &Arc<Running>,
        force: bool,
    ) -> Result<(), ApiError> {
        self.quiesce(group, force).await?;
        let result = self.mark_stopped(group).await;
        self.forget(group).await;
        result
    }

    /// Ends service: exposures, jobs, requests in flight. The group is still known after it.
    pub(super) async fn quiesce(&self, group: &Arc<Running>, force: bool) -> Result<(), ApiError> {
        self.close_exposures(group, None, force).await?;
        for job in group.jobs.lock().iter() {
            job.pace.cancel.store(true, Ordering::Relaxed);
        }
        let uuid = group.uuid;
        let quiet = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => group.quiesce().await,
                None => Ok(()),
            }
        });
        if let Err(error) = quiet.await.map_err(|_| stopping())? {
            tracing::warn!(group = group.name(), %error, "stopped without everything flushed");
        }
        while !group.jobs.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub(super) async fn mark_stopped(&self, group: &Arc<Running>) -> Result<(), ApiError> {
        let (uuid, is_synced) = (group.uuid, group.is_synced());
        let name = group.name().to_owned();
        let stopped = on_lane(&group.home, move |state| async move {
            let Some(group) = state.group(uuid) else { return Ok(()) };
            for _ in 0..STOP_ATTEMPTS_MAX {
                let view = group.shared().view();
                let drives = member_drives(&group);
                let meta = group.shared().meta();
                match membership::stop(state.env(), meta, &view, &drives, is_synced).await {
                    Ok(behind) => {
                        for (slot, error) in behind {
                            tracing::warn!(group = name, %slot, %error, "member did not take the clean mark");
                        }
                        return Ok(());
                    }
                    Err(failed) => {
                        for (slot, error) in failed {
                            if group.fail(view.epoch, slot, error.kind).await.is_err() {
                                return Err(error);
                            }
                        }
                    }
                }
            }
            Err(raid_core::ports::IoError::new(IoKind::Gone, "members keep failing while the group stops"))
        });
        let stopped = stopped.await.map_err(|_| stopping())?;
        stopped.map_err(|error| {
            io_failed(&format!("group {}: stopped without the clean mark", group.name()), &error)
        })
    }

    pub(super) async fn forget(&self, group: &Arc<Running>) {
        self.groups.write().remove(&group.uuid);
        let keys: Vec<DriveKey> =
            group.places.lock().iter_mut().filter_map(|place| place.key.take()).collect();
        lane_ops::remove_group(&self.lanes, group.uuid, keys.clone()).await;
        self.release(keys).await;
        tracing::info!(group = group.name(), "group stopped");
    }

    /// Deletes a running group: tombstones on all its members.
    pub(super) async fn delete_group(
        self: &Arc<Self>,
        group: &Arc<Running>,
        force: bool,
    ) -> Result<(), ApiError> {
        self.quiesce(group, force).await?;
        let uuid = group.uuid;
        let failed = on_lane(&group.home, move |state| async move {
            let Some(group) = state.group(uuid) else { return Vec::new() };
            let (view, drives) = (group.shared().view(), member_drives(&group));
            membership::delete(state.env(), group.shared().meta(), &view, &drives).await
        });
        let failed = failed.await.map_err(|_| stopping())?;
        self.host.forget_witness(uuid);
        self.unstarted.lock().remove(&uuid);
        for disk in self.disk_keys(group) {
            self.state.forget_exposures(&disk, None);
        }
        self.state.forget_members(uuid);
        self.forget(group).await;
        match failed.first() {
            None => Ok(()),
            Some((slot, error)) => {
                let what = format!("group {} deleted, but slot {slot} could not be marked", group.name());
                Err(io_failed(&what, error))
            }
        }
    }

    /// Drives of the host that carry something of the group called `name` (or uuid), opened and looked at.
    pub(super) async fn find_group(
        &self,
        name: &str,
        extra: &[PathBuf],
    ) -> Result<(Uuid, String, Vec<Looked>), ApiError> {
        let mut paths = self.known_paths();
        paths.extend(extra.iter().cloned());
        paths.sort();
        paths.dedup();
        let wanted_uuid = Uuid::parse(name);
        let is_called = |looked: &Looked| match &looked.seen.what {
            Observation::Ours(ours) => {
                same_name(&ours.copy.name, name) || wanted_uuid == Some(ours.copy.group)
            }
            _ => wanted_uuid.is_some() && looked.seen.group() == wanted_uuid,
        };
        let looked = self.take_members(&paths, |looked| looked.seen.group().is_some()).await?;
        let mut uuids: Vec<Uuid> =
            looked.iter().filter(|one| is_called(one)).filter_map(|one| one.seen.group()).collect();
        uuids.sort();
        uuids.dedup();
        let keys: Vec<DriveKey> = looked.iter().map(|one| one.key).collect();
        let error = match uuids[..] {
            [uuid] => {
                let (mine, others): (Vec<_>, Vec<_>) =
                    looked.into_iter().partition(|one| one.seen.group() == Some(uuid));
                self.release(others.iter().map(|one| one.key).collect()).await;
                let shown = mine.iter().find_map(|one| match &one.seen.what {
                    Observation::Ours(ours) => Some(ours.copy.name.clone()),
                    _ => None,
                });
                return Ok((uuid, shown.unwrap_or_else(|| name.to_owned()), mine));
            }
            [] => ApiError::new(ErrorCode::GroupNotFound, format!("no drive carries a group {name:?}"))
                .hint("name the drives: warpraid group assemble NAME DRIVE..."),
            _ => {
                let list: Vec<String> = uuids.iter().map(Uuid::to_string).collect();
                let message = format!("several groups are called {name:?}: {}", list.join(", "));
                ApiError::new(ErrorCode::GroupAmbiguous, message).hint("name the uuid")
            }
        };
        self.release(keys).await;
        Err(error)
    }

    /// Takes the tombstones of a deleted group back and starts it.
    pub(super) async fn undelete_group(
        self: &Arc<Self>,
        name: &str,
        extra: &[PathBuf],
    ) -> Result<Started, ApiError> {
        let (uuid, shown, looked) = self.find_group(name, extra).await?;
        let observed: Vec<_> = looked.iter().map(|one| one.seen.clone()).collect();
        let undeleted = on_lane(&self.lanes[0], move |state| async move {
            membership::undelete(state.env(), uuid, &observed).await
        })
        .await
        .map_err(|_| stopping())?;
        if let Err(error) = undeleted {
            self.release(looked.iter().map(|one| one.key).collect()).await;
            let code = match &error {
                UndeleteError::NotDeleted => ErrorCode::GroupNotFound,
                UndeleteError::Reused { .. } | UndeleteError::Refused(_) => {
                    ErrorCode::GroupUndeleteImpossible
                }
                UndeleteError::Failed(_) => ErrorCode::Io,
            };
            return Err(ApiError::new(code, format!("group {shown}: {error}")));
        }
        let keys = looked.into_iter().map(|one| (one.key, one.path)).collect();
        let looked = self.look(keys).await?;
        let policy = Policy { waited: true, ..Policy::default() };
        self.decide_and_start(&shown, uuid, looked, policy, false).await
    }

    /// Drops a member as the operator asked.
    pub(super) async fn fail_member(
        &self,
        group: &Arc<Running>,
        slot: Slot,
        force: bool,
    ) -> Result<(), ApiError> {
        let view = group.shared.view();
        let after = |other: Slot| other != slot && view.member(other).is_in_sync();
        if !group.shared.geometry().is_readable(after) && view.member(slot).is_in_sync() && !force {
            let message = format!("group {} cannot lose slot {slot}: it would go offline", group.name());
            return Err(ApiError::new(ErrorCode::GroupToleranceSpent, message)
                .hint("replace the missing members first; --force drops it all the same"));
        }
        let (uuid, epoch) = (group.uuid, view.epoch);
        let dropped = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => group.fail_by_operator(epoch, slot, BY_OPERATOR).await.map(|_| ()),
                None => Ok(()),
            }
        });
        dropped
            .await
            .map_err(|_| stopping())?
            .map_err(|kind| ApiError::new(ErrorCode::Io, format!("slot {slot} was not dropped: {kind:?}")))?;
        group.release_dropped(&self.host, &self.lanes);
        Ok(())
    }

    /// Takes everything that identifies it off a drive that nobody uses.
    pub(super) async fn wipe_drive(&self, path: &std::path::Path) -> Result<(), ApiError> {
        let drive = look::open(path, drives::exclusive(self.options.drive_timeout_ns, None)).await?;
        let key = self.host.add_drive(drive);
        let wiped = on_lane(&self.lanes[0], move |state| async move {
            let drive = state.env().drive(key).expect("in the registry");
            membership::wipe(state.env(), &drive).await
        })
        .await;
        self.release(vec![key]).await;
        wiped.map_err(|_| stopping())?.map_err(|error| io_failed(&path.display().to_string(), &error))
    }
}
