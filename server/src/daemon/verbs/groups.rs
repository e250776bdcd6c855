//! The verbs of groups.

use std::time::{Duration, Instant};

use raid_core::format::plan::Plan;
use raid_core::names::same_name;
use raid_core::units::{Slot, Uuid};

use crate::control::model::{ActionDoc, GroupDoc, GroupListDoc, PlanDoc, PlanDriveDoc, WaitDoc};
use crate::control::request::{
    GroupCreate, GroupDelete, GroupPlan, GroupReplace, GroupStop, GroupWait, WaitFor,
};
use crate::control::{Answer, ApiError, ErrorCode, Reply};
use crate::daemon::api::{Api, check_identity, confirm_missing};
use crate::daemon::disks::mkfs_doc;
use crate::daemon::groups::{NewGroupWish, Taken};
use crate::daemon::running::Running;
use crate::daemon::start::Started;
use crate::daemon::write_mostly;

/// How often a wait looks.
const WAIT_PERIOD: Duration = Duration::from_millis(100);

fn plan_doc(taken: &Taken) -> PlanDoc {
    let plan: &Plan = &taken.plan;
    let (geometry, sums) = (&plan.geometry, &plan.sums);
    let used_bytes = geometry.member_bytes();
    // As the sums count it: everything on the smallest drive that is not data, slack included, on every drive alike.
    let metadata_bytes = sums.metadata_bytes / u64::from(geometry.members());
    let drives: Vec<PlanDriveDoc> = (0u8..)
        .zip(&taken.drives)
        .map(|(slot, (path, drive, _))| PlanDriveDoc {
            slot,
            path: path.display().to_string(),
            serial: drive.identity().serial.clone(),
            numa_node: drive.identity().numa_node.and_then(|node| u16::try_from(node).ok()),
            size_bytes: drive.size_bytes(),
            data_bytes: used_bytes,
            metadata_bytes,
            unused_bytes: drive.size_bytes() - used_bytes - metadata_bytes,
        })
        .collect();
    let tolerance = match (sums.losses.any, sums.losses.at_best) {
        (0, 0) => "no drive may be lost".to_owned(),
        (any, best) if any == best => {
            format!("any {any} drive{} may be lost", if any == 1 { "" } else { "s" })
        }
        (any, best) => format!("any {any} drive may be lost, up to {best} if no pair loses both"),
    };
    PlanDoc {
        level: geometry.level().into(),
        chunk_bytes: if geometry.level().number() == 1 { 0 } else { geometry.chunk_bytes() },
        stripe_bytes: geometry.stripe_data_bytes(),
        block_size_bytes: plan.block.bytes(),
        raw_bytes: sums.raw_bytes,
        parity_bytes: sums.redundancy_bytes,
        metadata_bytes: sums.metadata_bytes,
        unused_bytes: sums.unused_bytes,
        usable_bytes: sums.usable_bytes,
        arithmetic: sums.words.clone(),
        tolerates: sums.losses.any,
        tolerance,
        mkfs: mkfs_doc(geometry),
        drives,
    }
}

impl Api {
    /// Opens, plans, and lets go again.
    pub(in crate::daemon) async fn plan(&self, what: &GroupPlan) -> Result<PlanDoc, ApiError> {
        let daemon = self.daemon();
        let taken = daemon.take_blank(&what.drives, what.level.into(), what.chunk_bytes, false).await?;
        let doc = plan_doc(&taken);
        daemon.release(taken.keys()).await;
        Ok(doc)
    }

    pub(in crate::daemon) async fn started(&self, mut doc: ActionDoc, started: Started) -> Reply<ActionDoc> {
        self.0.restore_exposures_of(&started.group).await;
        doc.groups.push(started.group.doc());
        Reply { data: doc, warnings: started.warnings }
    }

    pub(in crate::daemon) fn wait_is_over(group: &Running, what: WaitFor) -> bool {
        let view = group.shared.view();
        let rebuilt = view.is_complete() && group.fillings.lock().is_empty();
        match what {
            WaitFor::Rebuilt => rebuilt,
            WaitFor::Synced => group.is_synced(),
            WaitFor::Healthy => rebuilt && group.is_synced(),
        }
    }

    /// Why what is waited for cannot come by itself.
    pub(in crate::daemon) fn wait_is_vain(&self, group: &Running, what: WaitFor) -> Option<String> {
        let view = group.shared.view();
        let busy = group.is_mending();
        let mut lost = view.slots().filter(|slot| view.member(*slot).is_missing());
        let is_vain = lost.any(|slot| !self.0.spare_comes(group, slot));
        if matches!(what, WaitFor::Rebuilt | WaitFor::Healthy) && view.missing() > 0 {
            // A spare that waits for its time will bring it there.
            return is_vain
                .then(|| format!("group {} has {} slots without a drive", group.name(), view.missing()));
        }
        (!busy && !Self::wait_is_over(group, what))
            .then(|| format!("nothing runs on group {} that would bring it there", group.name()))
    }

    pub(in crate::daemon) async fn group_plan(&self, what: GroupPlan) -> Answer<PlanDoc> {
        let _change = self.0.change.lock().await;
        Ok(self.plan(&what).await?.into())
    }

    pub(in crate::daemon) async fn group_create(&self, what: GroupCreate) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        daemon.check_group_name(&what.name)?;
        if !what.dry_run && !what.yes {
            return Err(confirm_missing(&format!("creating group {}", what.name)));
        }
        let taken =
            daemon.take_blank(&what.drives, what.level.into(), what.chunk_bytes, !what.dry_run).await?;
        let plan = plan_doc(&taken);
        let paths: Vec<_> = taken.drives.iter().map(|(path, _, _)| path.clone()).collect();
        let checked = write_mostly::slots_of(&what.write_mostly, &paths).await.and_then(|slots| {
            write_mostly::check(&taken.plan.geometry, &slots.iter().copied().collect()).map(|()| slots)
        });
        let write_mostly = match checked {
            Ok(slots) => slots,
            Err(error) => {
                daemon.release(taken.keys()).await;
                return Err(error);
            }
        };
        let mut steps: Vec<String> = plan
            .drives
            .iter()
            .map(|drive| format!("{} becomes slot {} of group {}", drive.path, drive.slot, what.name))
            .collect();
        if !write_mostly.is_empty() {
            steps.push(write_mostly::words(&write_mostly.iter().copied().collect()));
        }
        let mut action = ActionDoc::new("group create", what.name.clone(), what.dry_run, steps);
        action.plan = Some(plan);
        if what.dry_run {
            daemon.release(taken.keys()).await;
            return Ok(action.into());
        }
        let wish = NewGroupWish { name: &what.name, level: what.level.into(), init: what.init, write_mostly };
        let started = daemon.create_on(&wish, taken).await?;
        Ok(self.started(action, started).await)
    }

    pub(in crate::daemon) async fn groups(&self) -> Answer<GroupListDoc> {
        Ok(GroupListDoc { groups: self.group_docs() }.into())
    }

    pub(in crate::daemon) async fn group(&self, group: String) -> Answer<GroupDoc> {
        if let Some(running) = self.0.running(&group) {
            return Ok(self.completed(running.doc()).into());
        }
        let stopped = self.0.unstarted_docs().into_iter().find(|doc| {
            same_name(&doc.name, &group)
                || Uuid::parse(&group).is_some_and(|uuid| uuid.to_string() == doc.uuid)
        });
        match stopped {
            Some(doc) => Ok(doc.into()),
            None => Ok(self.0.need_running(&group)?.doc().into()),
        }
    }

    pub(in crate::daemon) async fn group_stop(&self, group: String, how: GroupStop) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let running = daemon.need_running(&group)?;
        let name = running.name().to_owned();
        let steps = vec![if running.shared.is_offline() {
            format!("group {name} lets go of its drives; it is offline, so without the clean mark")
        } else {
            format!("group {name} is flushed, marked clean and lets go of its drives")
        }];
        if !how.dry_run {
            daemon.stop_group(&running, how.force).await?;
        }
        Ok(ActionDoc::new("group stop", name, how.dry_run, steps).into())
    }

    pub(in crate::daemon) async fn group_delete(&self, group: String, how: GroupDelete) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let running = daemon.need_running(&group)?;
        let name = running.name().to_owned();
        if !how.dry_run {
            if !how.yes {
                return Err(confirm_missing(&format!("deleting group {name}")));
            }
            let known = [running.uuid.to_string()];
            check_identity(
                &format!("group {name}"),
                how.expect_uuid.as_deref(),
                &known,
                ErrorCode::GroupUuidMismatch,
            )?;
            daemon.delete_group(&running, how.force).await?;
        }
        let steps = vec![format!(
            "group {name} is stopped and its members become tombstones; undelete works until one is reused"
        )];
        Ok(ActionDoc::new("group delete", name, how.dry_run, steps).into())
    }

    pub(in crate::daemon) async fn group_replace(
        &self,
        group: String,
        how: GroupReplace,
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        daemon.release_dropped().await;
        let running = daemon.need_running(&group)?;
        let slot = match (how.slot, &how.old_drive) {
            (Some(slot), _) => Slot(slot),
            (None, Some(old)) => match daemon.member_called(old)? {
                Some((group, slot)) if group.uuid == running.uuid => slot,
                _ => {
                    let message = format!("{old} is no member of group {}", running.name());
                    return Err(ApiError::new(ErrorCode::DriveNotFound, message)
                        .hint("name the slot: warpraid group show lists them"));
                }
            },
            (None, None) => {
                return Err(ApiError::new(
                    ErrorCode::UsageInvalid,
                    "which member is replaced? give --slot or the old drive",
                ));
            }
        };
        let steps = daemon.replace(&running, slot, &how.new_drive, how.now, how.dry_run).await?;
        let mut action = ActionDoc::new("group replace", running.name(), how.dry_run, steps);
        action.groups.push(running.doc());
        Ok(action.into())
    }

    pub(in crate::daemon) async fn group_wait(&self, group: String, what: GroupWait) -> Answer<WaitDoc> {
        let running = self.0.need_running(&group)?;
        let began = Instant::now();
        let deadline = what.timeout_s.map(|seconds| began + Duration::from_secs(seconds));
        // A rebuild that was just asked for may not be on the list of jobs yet, nor one promoted out of its view.
        let mut vain_rounds = 0;
        loop {
            if Self::wait_is_over(&running, what.what) {
                let waited_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                return Ok(WaitDoc { waited_ns, group: running.doc() }.into());
            }
            if !self.0.is_running(running.uuid) {
                let message = format!("group {} was stopped meanwhile", running.name());
                return Err(ApiError::new(ErrorCode::GroupNotRunning, message));
            }
            match self.wait_is_vain(&running, what.what) {
                Some(why) if vain_rounds >= 5 => {
                    return Err(ApiError::new(ErrorCode::GroupWaitImpossible, why)
                        .hint("warpraid status says what to do"));
                }
                Some(_) => vain_rounds += 1,
                None => vain_rounds = 0,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let message = format!("group {} is not there yet", running.name());
                return Err(ApiError::new(ErrorCode::GroupWaitTimeout, message).hint("wait again, or longer"));
            }
            tokio::time::sleep(WAIT_PERIOD).await;
        }
    }
}
