//! The control API as the daemon answers it: one line a verb. The verbs themselves are inherent methods of [`Api`] in
//! `verbs/`, one file per noun: checks first, then `dry_run` answers, then deeds.

use std::sync::Arc;

use raid_core::units::Uuid;

use super::Daemon;
use crate::control::group_scrub::GroupScrub;
use crate::control::group_set::GroupSet;
use crate::control::model::{
    ActionDoc, DiskDoc, DiskListDoc, DriveDoc, DriveListDoc, EventListDoc, FaultListDoc, GroupDoc,
    GroupListDoc, HealthDoc, HistoryDoc, PlanDoc, ScrubDoc, SpareListDoc, StatusDoc, WaitDoc,
};
use crate::control::request::{
    AlertTest, DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose, DriveFail, DriveWipe, EventsOf,
    FaultClear, FaultInject, GroupAdopt, GroupAssemble, GroupCreate, GroupDelete, GroupPlan, GroupReadd,
    GroupRelease, GroupReplace, GroupStop, GroupUndelete, GroupWait, HistoryOf, SpareAdd, SpareRemove,
    Upgrade,
};
use crate::control::{Answer, ApiError, Control, ErrorCode};

/// The daemon behind the control API.
pub(super) struct Api(pub(super) Arc<Daemon>);

pub(super) fn confirm_missing(what: &str) -> ApiError {
    ApiError::new(ErrorCode::ConfirmMissing, format!("{what} needs confirmation"))
        .hint("add --yes when it is meant; --dry-run shows what would be done")
}

/// Refuses unless `given` is the uuid (or serial) of the thing.
pub(super) fn check_identity(
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

impl Api {
    pub(super) fn daemon(&self) -> &Arc<Daemon> {
        &self.0
    }
}

// Each call is the inherent method of the same name; those that change something are noted.
impl Control for Api {
    async fn status(&self) -> Answer<StatusDoc> {
        self.status().await
    }

    async fn health(&self) -> Answer<HealthDoc> {
        self.health().await
    }

    async fn events(&self, of: EventsOf) -> Answer<EventListDoc> {
        self.events(of).await
    }

    async fn history(&self, of: HistoryOf) -> Answer<HistoryDoc> {
        self.history(of).await
    }

    async fn alert_test(&self, how: AlertTest) -> Answer<ActionDoc> {
        self.alert_test(how).await
    }

    async fn upgrade(&self, how: Upgrade) -> Answer<ActionDoc> {
        self.upgrade(how).await
    }

    async fn metrics(&self) -> String {
        self.metrics_text().await
    }

    async fn drives(&self) -> Answer<DriveListDoc> {
        self.drives().await
    }

    async fn drive(&self, drive: String) -> Answer<DriveDoc> {
        self.drive(drive).await
    }

    async fn drive_wipe(&self, drive: String, how: DriveWipe) -> Answer<ActionDoc> {
        self.noted(self.drive_wipe(drive, how).await)
    }

    async fn drive_fail(&self, drive: String, how: DriveFail) -> Answer<ActionDoc> {
        self.noted(self.drive_fail(drive, how).await)
    }

    async fn faults(&self) -> Answer<FaultListDoc> {
        self.faults().await
    }

    async fn fault_inject(&self, what: FaultInject) -> Answer<ActionDoc> {
        self.fault_inject(what).await
    }

    async fn fault_clear(&self, what: FaultClear) -> Answer<ActionDoc> {
        self.fault_clear(what).await
    }

    async fn spares(&self) -> Answer<SpareListDoc> {
        self.spares().await
    }

    async fn spare_add(&self, what: SpareAdd) -> Answer<ActionDoc> {
        self.spare_add(what).await
    }

    async fn spare_remove(&self, what: SpareRemove) -> Answer<ActionDoc> {
        self.spare_remove(what).await
    }

    async fn group_plan(&self, what: GroupPlan) -> Answer<PlanDoc> {
        self.group_plan(what).await
    }

    async fn group_create(&self, what: GroupCreate) -> Answer<ActionDoc> {
        self.noted(self.group_create(what).await)
    }

    async fn groups(&self) -> Answer<GroupListDoc> {
        self.groups().await
    }

    async fn group(&self, group: String) -> Answer<GroupDoc> {
        self.group(group).await
    }

    async fn group_stop(&self, group: String, how: GroupStop) -> Answer<ActionDoc> {
        self.noted(self.group_stop(group, how).await)
    }

    async fn group_delete(&self, group: String, how: GroupDelete) -> Answer<ActionDoc> {
        self.noted(self.group_delete(group, how).await)
    }

    async fn group_replace(&self, group: String, how: GroupReplace) -> Answer<ActionDoc> {
        self.noted(self.group_replace(group, how).await)
    }

    async fn group_readd(&self, group: String, how: GroupReadd) -> Answer<ActionDoc> {
        self.noted(self.group_readd(group, how).await)
    }

    async fn group_scrub(&self, group: String, how: GroupScrub) -> Answer<ActionDoc> {
        self.noted(self.group_scrub(group, how).await)
    }

    async fn scrub(&self, group: String) -> Answer<ScrubDoc> {
        self.scrub(group).await
    }

    async fn group_set(&self, group: String, what: GroupSet) -> Answer<ActionDoc> {
        self.noted(self.group_set(group, what).await)
    }

    async fn group_wait(&self, group: String, what: GroupWait) -> Answer<WaitDoc> {
        self.group_wait(group, what).await
    }

    async fn group_assemble(&self, what: GroupAssemble) -> Answer<ActionDoc> {
        self.noted(self.group_assemble(what).await)
    }

    async fn group_undelete(&self, what: GroupUndelete) -> Answer<ActionDoc> {
        self.noted(self.group_undelete(what).await)
    }

    async fn group_adopt(&self, what: GroupAdopt) -> Answer<ActionDoc> {
        self.noted(self.group_adopt(what).await)
    }

    async fn group_release(&self, group: String, how: GroupRelease) -> Answer<ActionDoc> {
        self.noted(self.group_release(group, how).await)
    }

    async fn disks(&self, group: Option<String>) -> Answer<DiskListDoc> {
        self.disks(group).await
    }

    async fn disk(&self, group: String, disk: String) -> Answer<DiskDoc> {
        self.disk(group, disk).await
    }

    async fn disk_create(&self, what: DiskCreate) -> Answer<ActionDoc> {
        self.noted(self.disk_create(what).await)
    }

    async fn disk_expose(&self, group: String, disk: String, how: DiskExpose) -> Answer<ActionDoc> {
        self.noted(self.disk_expose(group, disk, how).await)
    }

    async fn disk_unexpose(&self, group: String, disk: String, how: DiskUnexpose) -> Answer<ActionDoc> {
        self.noted(self.disk_unexpose(group, disk, how).await)
    }

    async fn disk_resize(&self, group: String, disk: String, how: DiskResize) -> Answer<ActionDoc> {
        self.noted(self.disk_resize(group, disk, how).await)
    }

    async fn disk_delete(&self, group: String, disk: String, how: DiskDelete) -> Answer<ActionDoc> {
        self.noted(self.disk_delete(group, disk, how).await)
    }
}
