//! The verbs of the control API, in terms of what the daemon can do. Checks first, then `dry_run` answers, then deeds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::format::plan::Plan;
use raid_core::membership::{Observation, Policy};
use raid_core::names::same_name;
use raid_core::units::{Slot, Uuid};

use super::disks::{address_error, mkfs_doc};
use super::groups::{NewGroupWish, Taken};
use super::host::unix_seconds;
use super::running::Running;
use super::{Daemon, drives};
use crate::control::model::{
    ActionDoc, DaemonDoc, DiskDoc, DiskListDoc, DriveDoc, DriveListDoc, DriveState, GroupDoc, GroupListDoc,
    Health, HealthDoc, PlanDoc, PlanDriveDoc, ProblemDoc, StatusDoc, WaitDoc,
};
use crate::control::request::{
    DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose, DriveFail, DriveWipe, GroupAssemble,
    GroupCreate, GroupDelete, GroupPlan, GroupReplace, GroupStop, GroupUndelete, GroupWait, WaitFor,
};
use crate::control::{Answer, ApiError, Control, ErrorCode, Reply};
use crate::nbd::address::Address;

/// How often a wait looks.
const WAIT_PERIOD: Duration = Duration::from_millis(100);

/// The daemon behind the control API.
pub(super) struct Api(pub(super) Arc<Daemon>);

fn confirm_missing(what: &str) -> ApiError {
    ApiError::new(ErrorCode::ConfirmMissing, format!("{what} needs confirmation"))
        .hint("add --yes when it is meant; --dry-run shows what would be done")
}

/// Refuses unless `given` is the uuid (or serial) of the thing.
fn check_identity(
    what: &str,
    given: Option<&str>,
    known: &[String],
    code: ErrorCode,
) -> Result<(), ApiError> {
    let Some(given) = given else {
        let hint = format!("--expect-uuid {}", known.first().map_or("UUID", String::as_str));
        return Err(
            ApiError::new(ErrorCode::ConfirmMissing, format!("{what}: say which one is meant")).hint(hint)
        );
    };
    let same = |text: &String| {
        text == given || (Uuid::parse(text).is_some() && Uuid::parse(text) == Uuid::parse(given))
    };
    if known.iter().any(same) {
        return Ok(());
    }
    let message = format!("{what} is not {given}: it is {}", known.join(" or "));
    Err(ApiError::new(code, message).hint("nothing was changed; check the name"))
}

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
    fn daemon(&self) -> &Arc<Daemon> {
        &self.0
    }

    fn group_docs(&self) -> Vec<GroupDoc> {
        let mut docs: Vec<GroupDoc> = self.0.groups.read().values().map(|group| group.doc()).collect();
        docs.extend(self.0.unstarted_docs());
        docs.sort_by(|one, other| one.name.cmp(&other.name));
        docs
    }

    fn problems(groups: &[GroupDoc]) -> Vec<ProblemDoc> {
        let mut all: Vec<ProblemDoc> = groups.iter().flat_map(|group| group.problems.clone()).collect();
        all.sort_by_key(|problem| std::cmp::Reverse(problem.health));
        all
    }

    fn worst(problems: &[ProblemDoc]) -> Health {
        problems.iter().map(|problem| problem.health).max().unwrap_or(Health::Ok)
    }

    /// Opens, plans, and lets go again.
    async fn plan(&self, what: &GroupPlan) -> Result<PlanDoc, ApiError> {
        let daemon = self.daemon();
        let taken = daemon.take_blank(&what.drives, what.level.into(), what.chunk_bytes, false).await?;
        let doc = plan_doc(&taken);
        daemon.release(taken.keys()).await;
        Ok(doc)
    }

    async fn started(&self, mut doc: ActionDoc, started: super::start::Started) -> Reply<ActionDoc> {
        self.0.restore_exposures_of(&started.group).await;
        doc.groups.push(started.group.doc());
        Reply { data: doc, warnings: started.warnings }
    }

    async fn assemble_one(&self, name: &str, what: &GroupAssemble, extra: &[PathBuf]) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        if let Some(running) = daemon.running(name) {
            let message = format!("group {} runs already", running.name());
            return Err(
                ApiError::new(ErrorCode::GroupRunning, message).hint("warpraid group show tells its state")
            );
        }
        let (uuid, shown, looked) = daemon.find_group(name, extra).await?;
        let keys: Vec<_> = looked.iter().map(|one| one.key).collect();
        if what.force {
            let checked = if what.yes || what.dry_run {
                let known = [uuid.to_string()];
                check_identity(
                    &format!("group {shown}"),
                    what.expect_uuid.as_deref(),
                    &known,
                    ErrorCode::GroupUuidMismatch,
                )
            } else {
                Err(confirm_missing(&format!("a forced start of group {shown}")))
            };
            if let Err(error) = checked {
                daemon.release(keys).await;
                return Err(error);
            }
        }
        let steps: Vec<String> =
            looked.iter().map(|one| format!("{}: {}", one.path.display(), one.seen.what)).collect();
        let policy = Policy { force: what.force, waited: true, choose: None };
        if what.dry_run {
            let decided = daemon.decide(uuid, looked, policy);
            daemon.release(keys).await;
            return match decided.decision {
                raid_core::membership::Decision::Refuse(refusal) => {
                    Err(super::start::refused(&shown, &refusal))
                }
                _ => Ok(ActionDoc::new("group assemble", shown, true, steps).into()),
            };
        }
        let started = daemon.decide_and_start(&shown, uuid, looked, policy, false).await?;
        Ok(self.started(ActionDoc::new("group assemble", shown, false, steps), started).await)
    }

    async fn assemble_all(&self, what: &GroupAssemble, extra: &[PathBuf]) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let mut paths = daemon.known_paths();
        paths.extend(extra.iter().cloned());
        let looked = daemon.take_members(&paths, |looked| looked.seen.group().is_some()).await?;
        let uuids: std::collections::BTreeSet<Uuid> =
            looked.iter().filter_map(|one| one.seen.group()).collect();
        daemon.release(looked.iter().map(|one| one.key).collect()).await;
        let mut doc = ActionDoc::new("group assemble", "all groups", what.dry_run, Vec::new());
        let (mut warnings, mut first_error) = (Vec::new(), None);
        for uuid in uuids.into_iter().filter(|uuid| !daemon.is_running(*uuid)) {
            match self.assemble_one(&uuid.to_string(), what, extra).await {
                Ok(reply) => {
                    doc.steps.extend(reply.data.steps);
                    doc.groups.extend(reply.data.groups);
                    warnings.extend(reply.warnings);
                }
                Err(error) => {
                    let (code, message) = (error.code.as_str().into(), error.message.clone());
                    warnings.push(crate::control::model::WarningDoc { code, message });
                    first_error = first_error.or(Some(error));
                }
            }
        }
        match first_error {
            // Nothing came of it: an error, with the first reason. What did start is told with the others as warnings.
            Some(error) if doc.groups.is_empty() && !what.dry_run => Err(error),
            _ => Ok(Reply { data: doc, warnings }),
        }
    }

    fn wait_is_over(group: &Running, what: WaitFor) -> bool {
        let view = group.shared.view();
        let rebuilt = view.is_complete();
        match what {
            WaitFor::Rebuilt => rebuilt,
            WaitFor::Synced => group.is_synced(),
            WaitFor::Healthy => rebuilt && group.is_synced(),
        }
    }

    /// Why what is waited for cannot come by itself.
    fn wait_is_vain(group: &Running, what: WaitFor) -> Option<String> {
        let view = group.shared.view();
        let busy = !group.jobs.lock().is_empty();
        if matches!(what, WaitFor::Rebuilt | WaitFor::Healthy) && view.missing() > 0 {
            return Some(format!("group {} has {} slots without a drive", group.name(), view.missing()));
        }
        (!busy && !Self::wait_is_over(group, what))
            .then(|| format!("nothing runs on group {} that would bring it there", group.name()))
    }

    fn find(&self, group: &str, disk: &str) -> Result<(Arc<Running>, raid_core::disks::Disk), ApiError> {
        let running = self.0.need_running(group)?;
        let found = Daemon::find_disk(&running, disk)?;
        Ok((running, found))
    }

    fn disk_action(
        &self,
        verb: &str,
        group: &Running,
        disk: &raid_core::disks::Disk,
        dry_run: bool,
        step: String,
    ) -> ActionDoc {
        let subject = format!("{}/{}", group.name(), disk.name);
        let mut doc = ActionDoc::new(verb, subject, dry_run, vec![step]);
        doc.disk = Some(self.0.disk_doc(group, disk));
        doc
    }
}

impl Control for Api {
    async fn status(&self) -> Answer<StatusDoc> {
        let groups = self.group_docs();
        let problems = Self::problems(&groups);
        let daemon = DaemonDoc {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_unix_s: self.0.started_unix_s,
            now_unix_s: unix_seconds(),
            lanes: u16::try_from(self.0.lanes.len()).unwrap_or(u16::MAX),
            memory_bytes: self.0.memory_bytes,
        };
        Ok(StatusDoc { health: Self::worst(&problems), daemon, groups, problems }.into())
    }

    async fn health(&self) -> Answer<HealthDoc> {
        let groups = self.group_docs();
        let problems = Self::problems(&groups);
        let health = Self::worst(&problems);
        let summary = match problems.first() {
            None => format!("{} group{} healthy", groups.len(), if groups.len() == 1 { "" } else { "s" }),
            Some(worst) => {
                let group = worst.group.as_deref().unwrap_or("warpraid");
                format!("{group}: {}; {}", worst.why, worst.risk)
            }
        };
        Ok(HealthDoc { health, summary, problems }.into())
    }

    async fn drives(&self) -> Answer<DriveListDoc> {
        let daemon = self.daemon();
        let mut paths = daemon.known_paths();
        for group in daemon.groups.read().values() {
            paths
                .extend(group.places.lock().iter().filter_map(|place| place.path.clone()).map(PathBuf::from));
        }
        paths.sort();
        paths.dedup();
        let listed = nvme_backend::list_block_devices();
        let mut docs = Vec::new();
        for path in paths {
            match daemon.drive_doc(&path).await {
                Ok(doc) => docs.push(doc),
                Err(error) => {
                    let state = match error.code {
                        ErrorCode::DriveMounted | ErrorCode::DriveBusy => DriveState::Held,
                        _ => DriveState::Failed,
                    };
                    let device = listed.iter().find(|device| device.identity.path == path);
                    docs.extend(device.map(|device| drives::doc_of_listing(device, state)));
                }
            }
        }
        Ok(DriveListDoc { drives: docs }.into())
    }

    async fn drive(&self, drive: String) -> Answer<DriveDoc> {
        let path = self.drive_path(&drive).await?;
        Ok(self.0.drive_doc(&path).await?.into())
    }

    async fn drive_wipe(&self, drive: String, how: DriveWipe) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let path = self.drive_path(&drive).await?;
        let shown = path.display().to_string();
        if let Some((group, slot, _)) = daemon.member_at(&path) {
            let message = format!("{shown} is slot {slot} of the running group {}", group.name());
            return Err(
                ApiError::new(ErrorCode::DriveBusy, message).hint("warpraid drive fail takes it out first")
            );
        }
        let doc = daemon.drive_doc(&path).await?;
        if !doc.holders.is_empty() {
            let message = format!("{shown} is in use by {}", doc.holders.join(", "));
            return Err(ApiError::new(ErrorCode::DriveMounted, message).hint("unmount or stop it first"));
        }
        let mut known: Vec<String> = doc.device_uuid.iter().chain(&doc.serial).cloned().collect();
        known.extend(doc.signatures.iter().filter_map(|signature| signature.uuid.clone()));
        let steps: Vec<String> = if doc.signatures.is_empty() {
            vec![format!("{shown} carries nothing")]
        } else {
            doc.signatures
                .iter()
                .map(|it| format!("{shown}: {} at byte {} is erased", it.kind, it.offset_bytes))
                .collect()
        };
        if !how.dry_run {
            if !how.yes {
                return Err(confirm_missing(&format!("wiping {shown}")));
            }
            // A drive without any identity (a file with a signature that has none) is named by its path alone.
            if !known.is_empty() {
                check_identity(
                    &format!("drive {shown}"),
                    how.expect_uuid.as_deref(),
                    &known,
                    ErrorCode::DriveIdentityMismatch,
                )?;
            }
            daemon.wipe_drive(&path).await?;
        }
        let mut action = ActionDoc::new("drive wipe", shown, how.dry_run, steps);
        action.drive = Some(daemon.drive_doc(&path).await?);
        Ok(action.into())
    }

    async fn drive_fail(&self, drive: String, how: DriveFail) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let found = daemon
            .groups
            .read()
            .values()
            .find_map(|group| group.slot_called(&drive).map(|slot| (Arc::clone(group), slot)));
        let Some((group, slot)) = found else {
            let path = self.drive_path(&drive).await?;
            let message = format!("{} is no member of a running group", path.display());
            return Err(ApiError::new(ErrorCode::DriveNotFound, message)
                .hint("warpraid group show lists the members"));
        };
        if group.shared.view().member(slot).is_missing() {
            let message = format!("slot {slot} of group {} has no working drive", group.name());
            return Err(ApiError::new(ErrorCode::DriveNotFound, message)
                .hint(format!("warpraid group replace {} --slot {slot} NEW_DRIVE", group.name())));
        }
        let shown = group.places.lock()[slot.index()].path.clone().unwrap_or_else(|| drive.clone());
        let steps = vec![format!("{shown} is dropped from slot {slot} of group {}", group.name())];
        if !how.dry_run {
            daemon.fail_member(&group, slot, how.force).await?;
        }
        let mut action = ActionDoc::new("drive fail", shown, how.dry_run, steps);
        action.groups.push(group.doc());
        Ok(action.into())
    }

    async fn group_plan(&self, what: GroupPlan) -> Answer<PlanDoc> {
        let _change = self.0.change.lock().await;
        Ok(self.plan(&what).await?.into())
    }

    async fn group_create(&self, what: GroupCreate) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        daemon.check_group_name(&what.name)?;
        if !what.dry_run && !what.yes {
            return Err(confirm_missing(&format!("creating group {}", what.name)));
        }
        let taken =
            daemon.take_blank(&what.drives, what.level.into(), what.chunk_bytes, !what.dry_run).await?;
        let plan = plan_doc(&taken);
        let steps = plan
            .drives
            .iter()
            .map(|drive| format!("{} becomes slot {} of group {}", drive.path, drive.slot, what.name))
            .collect();
        let mut action = ActionDoc::new("group create", what.name.clone(), what.dry_run, steps);
        action.plan = Some(plan);
        if what.dry_run {
            daemon.release(taken.keys()).await;
            return Ok(action.into());
        }
        let wish = NewGroupWish { name: &what.name, level: what.level.into(), init: what.init };
        let started = daemon.create_on(&wish, taken).await?;
        Ok(self.started(action, started).await)
    }

    async fn groups(&self) -> Answer<GroupListDoc> {
        Ok(GroupListDoc { groups: self.group_docs() }.into())
    }

    async fn group(&self, group: String) -> Answer<GroupDoc> {
        if let Some(running) = self.0.running(&group) {
            return Ok(running.doc().into());
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

    async fn group_stop(&self, group: String, how: GroupStop) -> Answer<ActionDoc> {
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

    async fn group_assemble(&self, what: GroupAssemble) -> Answer<ActionDoc> {
        let _change = self.0.change.lock().await;
        let extra = super::look::resolve_all(&what.drives).await?;
        match &what.group {
            Some(name) if !what.all => self.assemble_one(name, &what, &extra).await,
            None if what.all => self.assemble_all(&what, &extra).await,
            _ => Err(ApiError::new(ErrorCode::UsageInvalid, "name one group, or --all")
                .hint("warpraid group assemble NAME [DRIVE...]")),
        }
    }

    async fn group_delete(&self, group: String, how: GroupDelete) -> Answer<ActionDoc> {
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

    async fn group_undelete(&self, what: GroupUndelete) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let extra = super::look::resolve_all(&what.drives).await?;
        if daemon.running(&what.group).is_some() {
            let message = format!("group {} runs: it is not deleted", what.group);
            return Err(ApiError::new(ErrorCode::GroupRunning, message).hint("nothing to do"));
        }
        if what.dry_run {
            let (uuid, shown, looked) = daemon.find_group(&what.group, &extra).await?;
            let steps =
                looked.iter().map(|one| format!("{}: {}", one.path.display(), one.seen.what)).collect();
            let deleted = looked
                .iter()
                .any(|one| matches!(&one.seen.what, Observation::Ours(ours) if ours.copy.marks.deleted));
            daemon.release(looked.iter().map(|one| one.key).collect()).await;
            if !deleted {
                let message = format!("group {shown} ({uuid}) is not deleted");
                return Err(ApiError::new(ErrorCode::GroupUndeleteImpossible, message)
                    .hint("warpraid group assemble starts it"));
            }
            return Ok(ActionDoc::new("group undelete", shown, true, steps).into());
        }
        let started = daemon.undelete_group(&what.group, &extra).await?;
        let name = started.group.name().to_owned();
        let steps = vec![format!("group {name} is back")];
        Ok(self.started(ActionDoc::new("group undelete", name, false, steps), started).await)
    }

    async fn group_replace(&self, group: String, how: GroupReplace) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let running = daemon.need_running(&group)?;
        let slot = match (how.slot, &how.old_drive) {
            (Some(slot), _) => Slot(slot),
            (None, Some(old)) => running.slot_called(old).ok_or_else(|| {
                ApiError::new(
                    ErrorCode::DriveNotFound,
                    format!("{old} is no member of group {}", running.name()),
                )
                .hint("name the slot: warpraid group show lists them")
            })?,
            (None, None) => {
                return Err(ApiError::new(
                    ErrorCode::UsageInvalid,
                    "which member is replaced? give --slot or the old drive",
                ));
            }
        };
        let steps = daemon.replace_member(&running, slot, &how.new_drive, how.dry_run).await?;
        let mut action = ActionDoc::new("group replace", running.name(), how.dry_run, steps);
        action.groups.push(running.doc());
        Ok(action.into())
    }

    async fn group_wait(&self, group: String, what: GroupWait) -> Answer<WaitDoc> {
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
            match Self::wait_is_vain(&running, what.what) {
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

    async fn disks(&self, group: Option<String>) -> Answer<DiskListDoc> {
        let groups: Vec<Arc<Running>> = match group {
            Some(name) => vec![self.0.need_running(&name)?],
            None => self.0.groups.read().values().cloned().collect(),
        };
        let mut disks: Vec<DiskDoc> = Vec::new();
        for group in groups {
            let listed = group.table.lock().as_ref().map_or_else(Vec::new, raid_core::disks::DiskTable::list);
            disks.extend(listed.iter().map(|disk| self.0.disk_doc(&group, disk)));
        }
        disks.sort_by(|one, other| (&one.group, one.start_bytes).cmp(&(&other.group, other.start_bytes)));
        Ok(DiskListDoc { disks }.into())
    }

    async fn disk(&self, group: String, disk: String) -> Answer<DiskDoc> {
        let (running, found) = self.find(&group, &disk)?;
        Ok(self.0.disk_doc(&running, &found).into())
    }

    async fn disk_create(&self, what: DiskCreate) -> Answer<ActionDoc> {
        let running = self.0.need_running(&what.group)?;
        let (name, size, id) = (what.name.clone(), what.size_bytes, Daemon::new_disk_id());
        let edit = move |table: &mut raid_core::disks::DiskTable| table.create(&name, size, id);
        let disk = self.0.change_table(&running, &what.name, what.dry_run, edit).await?;
        let step = format!("disk {}/{} of {} bytes", running.name(), disk.name, disk.bytes);
        Ok(self.disk_action("disk create", &running, &disk, what.dry_run, step).into())
    }

    async fn disk_expose(&self, group: String, disk: String, how: DiskExpose) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let address: Address = how.nbd.parse().map_err(|error| address_error(&error))?;
        let (running, found) = self.find(&group, &disk)?;
        if !how.dry_run {
            daemon.expose_disk(&running, &found, &address, how.read_only)?;
        }
        let step = format!("served over NBD at {address}");
        Ok(self.disk_action("disk expose", &running, &found, how.dry_run, step).into())
    }

    async fn disk_unexpose(&self, group: String, disk: String, how: DiskUnexpose) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let (running, found) = self.find(&group, &disk)?;
        let exposed = running.exposures.lock().iter().any(|exposure| {
            let here = how.address.as_ref().is_none_or(|address| *address == exposure.address.to_string());
            same_name(&exposure.disk, &found.name) && here
        });
        if !exposed {
            let message = format!("disk {}/{} is not exposed there", running.name(), found.name);
            return Err(ApiError::new(ErrorCode::ExposeNotFound, message)
                .hint("warpraid disk show lists its addresses"));
        }
        if !how.dry_run {
            daemon.unexpose_disk(&running, &found.name, how.force).await?;
        }
        let step = "not served any more".to_owned();
        Ok(self.disk_action("disk unexpose", &running, &found, how.dry_run, step).into())
    }

    async fn disk_resize(&self, group: String, disk: String, how: DiskResize) -> Answer<ActionDoc> {
        let running = self.0.need_running(&group)?;
        let (name, size) = (disk.clone(), how.size_bytes);
        let edit = move |table: &mut raid_core::disks::DiskTable| table.resize(&name, size);
        let resized = self.0.change_table(&running, &disk, how.dry_run, edit).await?;
        if !how.dry_run {
            Daemon::note_resized(&running, &resized);
        }
        let step = format!(
            "disk {}/{} has {} bytes; clients see it when they connect again",
            running.name(),
            resized.name,
            resized.bytes
        );
        Ok(self.disk_action("disk resize", &running, &resized, how.dry_run, step).into())
    }

    async fn disk_delete(&self, group: String, disk: String, how: DiskDelete) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let (running, found) = self.find(&group, &disk)?;
        let subject = format!("{}/{}", running.name(), found.name);
        if !how.dry_run {
            if !how.yes {
                return Err(confirm_missing(&format!("deleting disk {subject}")));
            }
            let known = [found.id.to_string()];
            check_identity(
                &format!("disk {subject}"),
                how.expect_uuid.as_deref(),
                &known,
                ErrorCode::DiskUuidMismatch,
            )?;
            daemon.unexpose_disk(&running, &found.name, how.force).await?;
            let name = found.name.clone();
            daemon.change_table(&running, &found.name, false, move |table| table.delete(&name)).await?;
        }
        let steps = vec![format!("disk {subject} is gone; its blocks are free")];
        Ok(ActionDoc::new("disk delete", subject, how.dry_run, steps).into())
    }
}

impl Api {
    /// The path of a drive that is named by path, serial, or the device uuid of a running member.
    async fn drive_path(&self, name: &str) -> Result<PathBuf, ApiError> {
        let member = self.0.groups.read().values().find_map(|group| {
            let slot = group.slot_called(name)?;
            group.places.lock()[slot.index()].path.clone()
        });
        match member {
            Some(path) => Ok(PathBuf::from(path)),
            None => Ok(super::look::resolve_all(&[name.to_owned()]).await?.remove(0)),
        }
    }
}
