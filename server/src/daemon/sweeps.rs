//! Rebuild and resync as jobs of a running group: started on its home lane, watched from the control thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use raid_core::engine::{Group, Pace, SweepError};
use raid_core::geometry::Geometry;
use raid_core::membership::mark_synced;
use raid_core::ports::{Env, IoKind};
use raid_core::units::{Slot, Uuid};

use super::Daemon;
use super::jobs::Job;
use super::running::Running;
use crate::control::EventCode;
use crate::control::model::Operation;
use crate::events::NewEvent;
use crate::lane::{LaneEnv, on_lane};

/// How often housekeeping looks at a group.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_millis(500);
/// After so many rounds of it a resync tries again what it had to leave.
const RESYNC_ROUNDS: u64 = 20;

/// Handles of all members of the group's view on this lane.
pub(super) fn member_drives(group: &Group<LaneEnv>) -> Vec<Option<nvme_backend::LaneDrive>> {
    let view = group.shared().view();
    view.members.iter().map(|member| member.drive.and_then(|key| group.env().drive(key))).collect()
}

fn pace_of(geometry: &Geometry) -> Arc<Pace> {
    let pace = Pace::default();
    pace.total_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
    Arc::new(pace)
}

/// The job of a slot's rebuild: one, whoever needs it first, the rebuild under way that takes a new member along or the verb
/// that put it in.
fn rebuild_job(group: &Running, slot: Slot) -> Arc<Job> {
    let mut jobs = group.jobs.lock();
    let is_of = |job: &&Arc<Job>| job.operation == Operation::Rebuild && job.slot == Some(slot);
    if let Some(known) = jobs.iter().find(is_of) {
        return Arc::clone(known);
    }
    let job = Job::new(Operation::Rebuild, Some(slot), pace_of(group.shared.geometry()));
    jobs.push(Arc::clone(&job));
    job
}

/// Resync, then the record that nothing is in doubt any more.
async fn resync(group: &Group<LaneEnv>, pace: &Pace) -> Result<u64, SweepError> {
    let left = group.resync(pace).await?;
    if left == 0 {
        let view = group.shared().view();
        for (slot, error) in mark_synced(group.env(), group.shared().meta(), &member_drives(group)).await {
            if let Err(kept) = group.fail(view.epoch, slot, error.kind).await {
                tracing::warn!(group = group.shared().name(), %slot, ?kept, "member kept although it failed: the last copy");
            }
        }
    }
    Ok(left)
}

impl Daemon {
    /// Starts what a freshly started group needs: its housekeeping, a resync of what is in doubt, its rebuilds.
    pub(super) fn start_jobs(self: &Arc<Self>, group: &Arc<Running>, rebuilding: Vec<Slot>) {
        let (daemon, watched) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move { daemon.keep_house(watched).await });
        tokio::spawn(Arc::clone(self).look_back(Arc::clone(group)));
        tokio::spawn(Arc::clone(self).keep_scrubs(Arc::clone(group)));
        let jobs = rebuilding.into_iter().map(|slot| rebuild_job(group, slot)).collect();
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move {
            daemon.rebuild_all(&group, jobs).await;
            if !group.is_synced() {
                daemon.resync(&group).await;
            }
        });
    }

    /// Once a second: intent bits of quiet regions, progress samples, members that were dropped.
    async fn keep_house(self: Arc<Self>, group: Arc<Running>) {
        let uuid = group.uuid;
        let mut round = 0u64;
        while self.is_running(uuid) {
            self.drop_cut_files(&group).await;
            group.release_dropped(&self.host, &self.lanes);
            group.note_unlinked(&self.host);
            for job in group.jobs.lock().iter() {
                job.sample();
            }
            if round.is_multiple_of(2) {
                let ticked = on_lane(&group.home, move |state| async move {
                    match state.group(uuid) {
                        Some(group) => group.tick().await,
                        None => Ok(()),
                    }
                });
                if let Ok(Err(error)) = ticked.await {
                    tracing::warn!(group = group.name(), %error, "intent bits could not be cleared");
                }
            }
            round += 1;
            if round.is_multiple_of(RESYNC_ROUNDS) {
                self.resync_what_was_left(&group);
            }
            tokio::time::sleep(HOUSEKEEPING_PERIOD).await;
        }
    }

    /// Stripes that a resync had to leave, because blocks could not be read, are tried again: they may have been rewritten.
    fn resync_what_was_left(self: &Arc<Self>, group: &Arc<Running>) {
        let is_idle = group.jobs.lock().is_empty() && !group.is_mending();
        if group.is_synced() || !is_idle || !group.shared.view().is_complete() {
            return;
        }
        let left = group.shared.status().unsynced_stripes;
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move {
            let job = Self::begin(&group, Operation::Resync);
            let (uuid, pace) = (group.uuid, Arc::clone(&job.pace));
            let result = on_lane(&group.home, move |state| async move {
                match state.group(uuid) {
                    Some(group) => resync(&group, &pace).await,
                    None => Err(SweepError::Cancelled),
                }
            });
            let result = result.await;
            Self::end(&group, &job);
            let name = group.name();
            match result {
                Ok(Ok(0)) => {
                    let message = format!("group {name}: resync of what was left ({left} stripes) finished");
                    daemon.note(NewEvent::new(EventCode::SyncFinished, message).group(name));
                }
                other => tracing::debug!(group = name, ?other, "some stripes are still not synced"),
            }
        });
    }

    /// Drops members whose files were cut short behind our back: what lies in them is not what was written.
    pub(super) async fn drop_cut_files(&self, group: &Arc<Running>) {
        self.stop_cut_fillings(group);
        let keys: Vec<_> = group.places.lock().iter().map(|place| place.key).collect();
        for (slot, key) in (0u8..).map(Slot).zip(keys) {
            let Some(drive) = key.and_then(|key| self.host.drive(key)).filter(|drive| !drive.is_whole())
            else {
                continue;
            };
            tracing::error!(group = group.name(), %slot, drive = %drive.path().display(), "the file was cut short");
            Self::distrust(group, group.shared.view().member(slot).device_uuid).await;
            let (uuid, epoch) = (group.uuid, group.shared.view().epoch);
            let dropped = on_lane(&group.home, move |state| async move {
                match state.group(uuid) {
                    Some(group) => group.fail(epoch, slot, IoKind::ShortRead).await.map(|_| ()),
                    None => Ok(()),
                }
            });
            if let Ok(Err(kind)) = dropped.await {
                tracing::error!(group = group.name(), %slot, ?kind, "the member was kept: it is the last copy");
            }
        }
    }

    /// Stops filling files that were cut short: what was written to them is not all there.
    fn stop_cut_fillings(&self, group: &Running) {
        for filling in group.fillings.lock().values() {
            let drive = filling.place.key.and_then(|key| self.host.drive(key));
            if drive.is_some_and(|drive| !drive.is_whole()) {
                tracing::error!(group = group.name(), drive = ?filling.place.path, "the file was cut short");
                filling.job.pace.cancel.store(true, Ordering::Relaxed);
            }
        }
    }

    fn begin(group: &Running, operation: Operation) -> Arc<Job> {
        let job = Job::new(operation, None, pace_of(group.shared.geometry()));
        group.jobs.lock().push(Arc::clone(&job));
        job
    }

    fn end(group: &Running, job: &Arc<Job>) {
        group.jobs.lock().retain(|other| !Arc::ptr_eq(other, job));
    }

    /// Rebuilds every member that is to be rebuilt, in as few passes as it takes, and ends these jobs; says in the log how
    /// each went. Members that join meanwhile are taken along: whoever comes second has nothing left to do.
    pub(super) async fn rebuild_all(&self, group: &Arc<Running>, jobs: Vec<Arc<Job>>) {
        let (uuid, watched) = (group.uuid, Arc::clone(group));
        let name = group.name();
        let note = |code, slot: Slot, message: String| {
            self.note(NewEvent::new(code, message).group(name).slot(slot.0));
        };
        for slot in jobs.iter().filter_map(|job| job.slot) {
            note(EventCode::RebuildStarted, slot, format!("group {name}: rebuild of slot {slot} started"));
        }
        let _turn = group.rebuild_turn.lock().await;
        let result = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => {
                    group.rebuild_pending(|slot| Arc::clone(&rebuild_job(&watched, slot).pace)).await
                }
                None => Vec::new(),
            }
        });
        for (slot, result) in result.await.unwrap_or_default() {
            match result {
                Ok(()) => {
                    group.places.lock()[slot.index()].since_unix_s = None;
                    let message = format!("group {name}: rebuild of slot {slot} finished");
                    note(EventCode::RebuildFinished, slot, message);
                }
                Err(SweepError::Cancelled) => {
                    tracing::info!(group = name, %slot, "rebuild interrupted; it goes on at the next start");
                }
                Err(error) => {
                    let message = format!("group {name}: rebuild of slot {slot} failed: {error}");
                    note(EventCode::RebuildFailed, slot, message);
                }
            }
            let is_of = |job: &Arc<Job>| job.operation == Operation::Rebuild && job.slot == Some(slot);
            group.jobs.lock().retain(|job| !is_of(job));
        }
        for job in jobs {
            Self::end(group, &job);
        }
    }

    /// Resyncs what is in doubt.
    async fn resync(&self, group: &Arc<Running>) {
        loop {
            let seen = group.shared.view().epoch;
            let is_left = self.resync_once(group).await;
            // A pass that began while a member was missing leaves stripes out. If the member was rebuilt meanwhile, its
            // rebuild left the rest to this pass: again, or nobody ever would.
            let view = group.shared.view();
            if !is_left || view.epoch == seen || !view.is_complete() || !self.is_running(group.uuid) {
                return;
            }
        }
    }

    /// One pass; whether it left stripes out.
    async fn resync_once(&self, group: &Arc<Running>) -> bool {
        let unsynced = group.persistent().is_some_and(|meta| meta.marks().unsynced);
        let operation = if unsynced { Operation::InitialSync } else { Operation::Resync };
        let job = Self::begin(group, operation);
        let (uuid, pace) = (group.uuid, Arc::clone(&job.pace));
        let name = group.name();
        let event = |code, message: String| NewEvent::new(code, message).group(name);
        let what = if unsynced { "initial sync" } else { "resync" };
        self.note(event(EventCode::SyncStarted, format!("group {name}: {what} started")));
        let result = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => resync(&group, &pace).await,
                None => Err(SweepError::Cancelled),
            }
        })
        .await;
        let is_left = matches!(result, Ok(Ok(left)) if left > 0);
        match result {
            Ok(Ok(0)) => self.note(event(EventCode::SyncFinished, format!("group {name}: {what} finished"))),
            Ok(Ok(left)) => {
                let why = if group.shared.view().is_complete() {
                    "blocks there cannot be read and have no source; they are synced once they were written again"
                } else {
                    "data is missing there; replace the lost members"
                };
                let message = format!("group {name}: {what}: {left} stripes are not synced: {why}");
                self.note(event(EventCode::SyncFailed, message));
            }
            Ok(Err(SweepError::Cancelled)) | Err(_) => {
                tracing::info!(group = group.name(), "sync interrupted; it goes on at the next start");
            }
            Ok(Err(error)) => {
                self.note(event(EventCode::SyncFailed, format!("group {name}: {what} failed: {error}")));
            }
        }
        Self::end(group, &job);
        is_left
    }

    /// Rebuilds a slot in the background, then whatever is still in doubt.
    pub(super) fn start_rebuild(self: &Arc<Self>, group: &Arc<Running>, slot: Slot) {
        let job = rebuild_job(group, slot);
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move {
            daemon.rebuild_all(&group, vec![job]).await;
            if !group.is_mending() && !group.is_synced() && daemon.is_running(group.uuid) {
                daemon.resync(&group).await;
            }
        });
    }

    /// Whether the group with this uuid runs.
    pub(super) fn is_running(&self, uuid: Uuid) -> bool {
        self.groups.read().contains_key(&uuid)
    }
}
