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
use crate::control::model::Operation;
use crate::lane::{LaneEnv, on_lane};

/// How often housekeeping looks at a group.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_millis(500);

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
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move {
            for slot in rebuilding {
                daemon.rebuild(&group, slot).await;
            }
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
            tokio::time::sleep(HOUSEKEEPING_PERIOD).await;
        }
    }

    /// Drops members whose files were cut short behind our back: what lies in them is not what was written.
    async fn drop_cut_files(&self, group: &Arc<Running>) {
        let keys: Vec<_> = group.places.lock().iter().map(|place| place.key).collect();
        for (slot, key) in (0u8..).map(Slot).zip(keys) {
            let Some(drive) = key.and_then(|key| self.host.drive(key)).filter(|drive| !drive.is_whole())
            else {
                continue;
            };
            tracing::error!(group = group.name(), %slot, drive = %drive.path().display(), "the file was cut short");
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

    fn begin(group: &Running, operation: Operation, slot: Option<Slot>) -> Arc<Job> {
        let job = Job::new(operation, slot, pace_of(group.shared.geometry()));
        group.jobs.lock().push(Arc::clone(&job));
        job
    }

    fn end(group: &Running, job: &Arc<Job>) {
        group.jobs.lock().retain(|other| !Arc::ptr_eq(other, job));
    }

    /// Rebuilds a slot to its end or failure; says which in the log.
    pub(super) async fn rebuild(&self, group: &Arc<Running>, slot: Slot) {
        let job = Self::begin(group, Operation::Rebuild, Some(slot));
        let (uuid, pace) = (group.uuid, Arc::clone(&job.pace));
        tracing::info!(group = group.name(), %slot, "rebuild started");
        let result = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => group.rebuild(slot, &pace).await,
                None => Err(SweepError::Cancelled),
            }
        })
        .await;
        match result {
            Ok(Ok(())) => {
                group.places.lock()[slot.index()].since_unix_s = None;
                tracing::info!(group = group.name(), %slot, "rebuild finished");
            }
            Ok(Err(SweepError::Cancelled)) | Err(_) => {
                tracing::info!(group = group.name(), %slot, "rebuild interrupted; it goes on at the next start");
            }
            Ok(Err(error)) => tracing::error!(group = group.name(), %slot, %error, "rebuild failed"),
        }
        Self::end(group, &job);
    }

    /// Resyncs what is in doubt.
    async fn resync(&self, group: &Arc<Running>) {
        let unsynced = group.persistent().is_some_and(|meta| meta.marks().unsynced);
        let operation = if unsynced { Operation::InitialSync } else { Operation::Resync };
        let job = Self::begin(group, operation, None);
        let (uuid, pace) = (group.uuid, Arc::clone(&job.pace));
        tracing::info!(group = group.name(), ?operation, "sync started");
        let result = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => resync(&group, &pace).await,
                None => Err(SweepError::Cancelled),
            }
        })
        .await;
        match result {
            Ok(Ok(0)) => tracing::info!(group = group.name(), "sync finished"),
            Ok(Ok(left)) => {
                tracing::warn!(
                    group = group.name(),
                    stripes = left,
                    "not synced: data is missing there; replace the lost members"
                )
            }
            Ok(Err(SweepError::Cancelled)) | Err(_) => {
                tracing::info!(group = group.name(), "sync interrupted; it goes on at the next start");
            }
            Ok(Err(error)) => tracing::error!(group = group.name(), %error, "sync failed"),
        }
        Self::end(group, &job);
    }

    /// Rebuilds a slot in the background, then whatever is still in doubt.
    pub(super) fn start_rebuild(self: &Arc<Self>, group: &Arc<Running>, slot: Slot) {
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move {
            daemon.rebuild(&group, slot).await;
            let nothing_runs = group.jobs.lock().is_empty();
            if nothing_runs && !group.is_synced() && daemon.is_running(group.uuid) {
                daemon.resync(&group).await;
            }
        });
    }

    /// Whether the group with this uuid runs.
    pub(super) fn is_running(&self, uuid: Uuid) -> bool {
        self.groups.read().contains_key(&uuid)
    }
}
