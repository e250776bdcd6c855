//! The verbs of the API: one table ([`OPERATIONS`]) from which the router and the OpenAPI document are both made, and
//! [`call`], which turns a request into a call of the [`Control`] trait.
//!
//! Here and nowhere else names are checked (CASES AD-02) and the words that a destructive verb needs (CASES AD-06), so
//! that every client meets the same rules.

use std::collections::HashMap;

use serde::de::DeserializeOwned;

use super::error::{ApiError, ErrorCode};
use super::group_scrub::GroupScrub;
use super::group_set::GroupSet;
use super::model::{
    ActionDoc, DiskDoc, DiskListDoc, Document, DriveDoc, DriveListDoc, EventListDoc, ExplanationDoc,
    FaultListDoc, FaultWhat, GroupDoc, GroupListDoc, HealthDoc, HistoryDoc, PlanDoc, ScrubDoc, SpareListDoc,
    StatusDoc, WaitDoc,
};
use super::request::{
    AlertTest, DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose, DisksOf, DriveFail, DriveWipe,
    EventsOf, FaultClear, FaultInject, GroupAdopt, GroupAssemble, GroupCreate, GroupDelete, GroupPlan,
    GroupReadd, GroupRelease, GroupReplace, GroupStop, GroupUndelete, GroupWait, HistoryOf, SpareAdd,
    SpareRemove, Upgrade,
};
use super::{Answer, Control, explain, names};

/// What a caller may need for a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Only looks: both sockets, GET.
    Look,
    /// May change something: the admin socket only, POST.
    Change,
}

/// An operation of the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Each is named after the method of `Control` it calls.
pub enum Op {
    Status,
    Health,
    Events,
    History,
    Explain,
    AlertTest,
    Upgrade,
    Drives,
    Drive,
    DriveWipe,
    DriveFail,
    Faults,
    FaultInject,
    FaultClear,
    Spares,
    SpareAdd,
    SpareRemove,
    GroupPlan,
    GroupCreate,
    Groups,
    Group,
    GroupStop,
    GroupAssemble,
    GroupDelete,
    GroupUndelete,
    GroupAdopt,
    GroupRelease,
    GroupReadd,
    GroupReplace,
    GroupScrub,
    Scrub,
    GroupSet,
    GroupWait,
    Disks,
    Disk,
    DiskCreate,
    DiskExpose,
    DiskUnexpose,
    DiskResize,
    DiskDelete,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Which.
    pub op: Op,
    /// Whether it only looks.
    pub verb: Verb,
    /// Path, with parameters in braces.
    pub path: &'static str,
    /// The command of the CLI that does the same; also its operation id, with blanks as underscores.
    pub command: &'static str,
    /// A sentence.
    pub summary: &'static str,
}

const fn row(
    op: Op,
    verb: Verb,
    path: &'static str,
    command: &'static str,
    summary: &'static str,
) -> Operation {
    Operation { op, verb, path, command, summary }
}

/// Every operation.
#[rustfmt::skip]
pub const OPERATIONS: &[Operation] = &[
    row(Op::Status, Verb::Look, "/v1/status", "status", "Am I safe, why not, what do I type."),
    row(Op::Health, Verb::Look, "/v1/health", "health", "Health as a monitoring system wants it."),
    row(Op::Events, Verb::Look, "/v1/events", "events", "What happened, numbered; waits for news if asked to."),
    row(Op::History, Verb::Look, "/v1/history", "history", "Throughput, operations, latency and capacity over time."),
    row(Op::Explain, Verb::Look, "/v1/explain/{code}", "explain", "What a stable code means, and what to do."),
    row(Op::AlertTest, Verb::Change, "/v1/alerts:test", "alert test", "Sends a test event through everything an alert goes through."),
    row(Op::Upgrade, Verb::Change, "/v1/daemon:upgrade", "upgrade", "Another program takes the daemon's place; block devices in use wait and go on."),
    row(Op::Drives, Verb::Look, "/v1/drives", "drive list", "All drives."),
    row(Op::Drive, Verb::Look, "/v1/drives/{drive}", "drive show", "One drive, by path, serial or device uuid."),
    row(Op::DriveWipe, Verb::Change, "/v1/drives/{drive}/wipe", "drive wipe", "Takes every signature off a drive."),
    row(Op::DriveFail, Verb::Change, "/v1/drives/{drive}/fail", "drive fail", "Drops a member as if its drive had failed."),
    row(Op::Faults, Verb::Look, "/v1/faults", "fault list", "Faults that drives were told to have."),
    row(Op::FaultInject, Verb::Change, "/v1/faults", "fault inject", "Makes a drive do something wrong; only with serve --allow-faults."),
    row(Op::FaultClear, Verb::Change, "/v1/faults:clear", "fault clear", "Ends faults."),
    row(Op::Spares, Verb::Look, "/v1/spares", "spare list", "Drives kept for the loss of a member."),
    row(Op::SpareAdd, Verb::Change, "/v1/spares", "spare add", "Keeps a blank drive for the loss of a member."),
    row(Op::SpareRemove, Verb::Change, "/v1/spares:remove", "spare remove", "Gives a spare up."),
    row(Op::GroupPlan, Verb::Change, "/v1/groups:plan", "group plan", "What a group would be; writes nothing."),
    row(Op::GroupAssemble, Verb::Change, "/v1/groups:assemble", "group assemble", "Starts groups from their drives."),
    row(Op::GroupUndelete, Verb::Change, "/v1/groups:undelete", "group undelete", "Brings a deleted group back."),
    row(Op::GroupAdopt, Verb::Change, "/v1/groups:adopt", "group adopt", "Takes an array of Linux md over in place."),
    row(Op::Groups, Verb::Look, "/v1/groups", "group list", "All groups."),
    row(Op::GroupCreate, Verb::Change, "/v1/groups", "group create", "Makes a group: all or nothing."),
    row(Op::Group, Verb::Look, "/v1/groups/{group}", "group show", "One group, by name or uuid."),
    row(Op::GroupWait, Verb::Look, "/v1/groups/{group}/wait", "group wait", "Waits until a group is in a state."),
    row(Op::GroupStop, Verb::Change, "/v1/groups/{group}/stop", "group stop", "Stops a group cleanly."),
    row(Op::GroupDelete, Verb::Change, "/v1/groups/{group}/delete", "group delete", "Deletes a group; undelete brings it back until a member is reused."),
    row(Op::GroupRelease, Verb::Change, "/v1/groups/{group}/release", "group release", "Stops a group and gives it to Linux md."),
    row(Op::GroupReadd, Verb::Change, "/v1/groups/{group}/readd", "group readd", "Puts a dropped member back into its slot and resyncs what it lacks."),
    row(Op::GroupReplace, Verb::Change, "/v1/groups/{group}/replace", "group replace", "Puts a new drive in a member's place and rebuilds it."),
    row(Op::GroupScrub, Verb::Change, "/v1/groups/{group}/scrub", "group scrub", "Scrubs a group, or pauses, resumes, cancels, acknowledges."),
    row(Op::Scrub, Verb::Look, "/v1/groups/{group}/scrub", "group scrub --show", "The scrubs of a group: how far, what was found."),
    row(Op::GroupSet, Verb::Change, "/v1/groups/{group}/set", "group set", "Changes settings of a group."),
    row(Op::Disks, Verb::Look, "/v1/disks", "disk list", "All disks, or those of one group."),
    row(Op::DiskCreate, Verb::Change, "/v1/disks", "disk create", "Cuts a disk from a group."),
    row(Op::Disk, Verb::Look, "/v1/disks/{group}/{disk}", "disk show", "One disk."),
    row(Op::DiskExpose, Verb::Change, "/v1/disks/{group}/{disk}/expose", "disk expose", "Serves a disk."),
    row(Op::DiskUnexpose, Verb::Change, "/v1/disks/{group}/{disk}/unexpose", "disk unexpose", "Stops serving a disk."),
    row(Op::DiskResize, Verb::Change, "/v1/disks/{group}/{disk}/resize", "disk resize", "Grows a disk into the free space behind it."),
    row(Op::DiskDelete, Verb::Change, "/v1/disks/{group}/{disk}/delete", "disk delete", "Deletes a disk."),
];

/// The row of an operation.
#[must_use]
pub fn operation(op: Op) -> &'static Operation {
    OPERATIONS.iter().find(|row| row.op == op).expect("a test checks that every operation has a row")
}

/// A request, taken off HTTP.
#[derive(Debug, Default)]
pub struct Call {
    /// Path parameters by name, percent-decoded.
    pub path: HashMap<String, String>,
    /// The query, as it came.
    pub query: String,
    /// The body, as it came; bounded.
    pub body: Vec<u8>,
}

/// An answer ready for the envelope: the schema's name, the document, the warnings.
#[derive(Debug)]
pub struct Rendered {
    /// Name of the schema.
    pub name: &'static str,
    /// The document.
    pub data: serde_json::Value,
    /// Warnings.
    pub warnings: Vec<super::model::WarningDoc>,
}

fn rendered<T: Document>(answer: Answer<T>) -> Result<Rendered, ApiError> {
    let reply = answer?;
    let data = serde_json::to_value(&reply.data).map_err(|error| {
        ApiError::new(ErrorCode::Internal, format!("the answer cannot be written: {error}"))
    })?;
    Ok(Rendered { name: T::NAME, data, warnings: reply.warnings })
}

impl Call {
    fn param(&self, name: &str) -> String {
        self.path.get(name).cloned().unwrap_or_default()
    }

    fn drive(&self) -> Result<String, ApiError> {
        let drive = self.param("drive");
        names::drive_ref(&drive)?;
        Ok(drive)
    }

    fn group(&self) -> Result<String, ApiError> {
        let group = self.param("group");
        names::group_ref(&group)?;
        Ok(group)
    }

    fn disk(&self) -> Result<(String, String), ApiError> {
        let disk = self.param("disk");
        names::disk_name(&disk)?;
        Ok((self.group()?, disk))
    }

    /// The body; an empty one counts as `{}`. Only an object will do: serde would take an array for a struct, by position.
    fn body<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let text: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(ApiError::new(ErrorCode::RequestInvalid, "the request's body is not a JSON object"));
        }
        serde_json::from_slice(text)
            .map_err(|error| ApiError::new(ErrorCode::RequestInvalid, format!("the request's body: {error}")))
    }

    fn query<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_urlencoded::from_str(&self.query).map_err(|error| {
            ApiError::new(ErrorCode::RequestInvalid, format!("the request's query: {error}"))
        })
    }
}

/// A destructive verb needs `yes`, and where something exists already, its uuid (CASES AD-06). `expect` is none for a verb
/// that destroys nothing known by uuid. The command line asks this too, to know when to ask at the terminal.
///
/// # Errors
/// `confirm.missing`, naming the options that are.
pub fn meant(what: &str, yes: bool, expect: Option<&Option<String>>, dry_run: bool) -> Result<(), ApiError> {
    let missing = match (yes, expect) {
        _ if dry_run => return Ok(()),
        (true, Some(Some(_)) | None) => return Ok(()),
        (false, Some(None)) => "--yes and --expect-uuid UUID",
        (false, _) => "--yes",
        (true, Some(None)) => "--expect-uuid UUID",
    };
    let message = format!("{what} is destructive and was not confirmed: {missing} missing");
    Err(ApiError::new(ErrorCode::ConfirmMissing, message)
        .hint(format!("look with --dry-run first, then give {missing}")))
}

fn drives_ok(drives: &[String]) -> Result<(), ApiError> {
    drives.iter().try_for_each(|drive| names::drive_ref(drive))?;
    match drives.iter().enumerate().find(|(i, drive)| drives[..*i].contains(drive)) {
        Some((_, twice)) => {
            Err(ApiError::new(ErrorCode::DriveTwice, format!("the drive {twice} is named twice")))
        }
        None => Ok(()),
    }
}

/// Does what a request asks for.
///
/// # Errors
/// Whatever the verb answers; and here: names, bodies and queries that are none, a destructive verb not confirmed.
pub async fn call<C: Control>(op: Op, control: &C, call: &Call) -> Result<Rendered, ApiError> {
    match op {
        Op::Status => rendered::<StatusDoc>(control.status().await),
        Op::Health => rendered::<HealthDoc>(control.health().await),
        Op::History => {
            let of: HistoryOf = call.query()?;
            of.group.as_deref().map_or(Ok(()), names::group_ref)?;
            of.disk.as_deref().map_or(Ok(()), names::disk_name)?;
            if of.disk.is_some() && of.group.is_none() {
                return Err(ApiError::new(ErrorCode::RequestInvalid, "a disk without its group"));
            }
            rendered::<HistoryDoc>(control.history(of).await)
        }
        // The same for every daemon of this version: nobody has to be asked.
        Op::Explain => rendered::<ExplanationDoc>(explain::explain(&call.param("code")).map(Into::into)),
        Op::Events => {
            let of: EventsOf = call.query()?;
            of.group.as_deref().map_or(Ok(()), names::group_ref)?;
            rendered::<EventListDoc>(control.events(of).await)
        }
        Op::AlertTest => rendered::<ActionDoc>(control.alert_test(call.body::<AlertTest>()?).await),
        Op::Upgrade => rendered::<ActionDoc>(control.upgrade(call.body::<Upgrade>()?).await),
        Op::Drives => rendered::<DriveListDoc>(control.drives().await),
        Op::Drive => rendered::<DriveDoc>(control.drive(call.drive()?).await),
        Op::DriveWipe | Op::DriveFail => drive_change(op, control, call).await,
        Op::Faults => rendered::<FaultListDoc>(control.faults().await),
        Op::Spares => rendered::<SpareListDoc>(control.spares().await),
        Op::FaultInject | Op::FaultClear | Op::SpareAdd | Op::SpareRemove => {
            fault_or_spare(op, control, call).await
        }
        Op::Groups => rendered::<GroupListDoc>(control.groups().await),
        Op::Group => rendered::<GroupDoc>(control.group(call.group()?).await),
        Op::Scrub => rendered::<ScrubDoc>(control.scrub(call.group()?).await),
        Op::GroupWait => {
            rendered::<WaitDoc>(control.group_wait(call.group()?, call.query::<GroupWait>()?).await)
        }
        Op::GroupPlan => {
            let what: GroupPlan = call.body()?;
            drives_ok(&what.drives)?;
            rendered::<PlanDoc>(control.group_plan(what).await)
        }
        Op::GroupCreate
        | Op::GroupAssemble
        | Op::GroupUndelete
        | Op::GroupAdopt
        | Op::GroupRelease
        | Op::GroupStop
        | Op::GroupDelete
        | Op::GroupReadd
        | Op::GroupReplace
        | Op::GroupScrub
        | Op::GroupSet => group_change(op, control, call).await,
        Op::Disks => {
            let of: DisksOf = call.query()?;
            of.group.as_deref().map_or(Ok(()), names::group_ref)?;
            rendered::<DiskListDoc>(control.disks(of.group).await)
        }
        Op::Disk => {
            let (group, disk) = call.disk()?;
            rendered::<DiskDoc>(control.disk(group, disk).await)
        }
        Op::DiskCreate | Op::DiskExpose | Op::DiskUnexpose | Op::DiskResize | Op::DiskDelete => {
            disk_change(op, control, call).await
        }
    }
}

async fn drive_change<C: Control>(op: Op, control: &C, call: &Call) -> Result<Rendered, ApiError> {
    let drive = call.drive()?;
    if op == Op::DriveFail {
        return rendered::<ActionDoc>(control.drive_fail(drive, call.body::<DriveFail>()?).await);
    }
    let how: DriveWipe = call.body()?;
    meant(&format!("wiping {drive}"), how.yes, Some(&how.expect_uuid), how.dry_run)?;
    rendered::<ActionDoc>(control.drive_wipe(drive, how).await)
}

async fn fault_or_spare<C: Control>(op: Op, control: &C, call: &Call) -> Result<Rendered, ApiError> {
    rendered::<ActionDoc>(match op {
        Op::FaultInject => {
            let what: FaultInject = call.body()?;
            names::drive_ref(&what.drive)?;
            if matches!(what.what, FaultWhat::Flip | FaultWhat::LostWrite) {
                meant("a fault that can destroy data", what.yes, None, what.dry_run)?;
            }
            control.fault_inject(what).await
        }
        Op::FaultClear => {
            let what: FaultClear = call.body()?;
            what.drive.as_deref().map_or(Ok(()), names::drive_ref)?;
            let said = [what.id.is_some(), what.drive.is_some(), what.all];
            if said.into_iter().filter(|&said| said).count() != 1 {
                let message = "say which faults to clear: a number, a drive, or all";
                return Err(ApiError::new(ErrorCode::RequestInvalid, message));
            }
            control.fault_clear(what).await
        }
        Op::SpareAdd => {
            let what: SpareAdd = call.body()?;
            names::drive_ref(&what.drive)?;
            what.group.as_deref().map_or(Ok(()), names::group_ref)?;
            control.spare_add(what).await
        }
        _ => {
            let what: SpareRemove = call.body()?;
            names::drive_ref(&what.drive)?;
            control.spare_remove(what).await
        }
    })
}

async fn group_change<C: Control>(op: Op, control: &C, call: &Call) -> Result<Rendered, ApiError> {
    rendered::<ActionDoc>(match op {
        Op::GroupCreate => {
            let what: GroupCreate = call.body()?;
            names::group_name(&what.name)?;
            drives_ok(&what.drives)?;
            meant(&format!("creating group {}", what.name), what.yes, None, what.dry_run)?;
            control.group_create(what).await
        }
        Op::GroupAssemble => {
            let what: GroupAssemble = call.body()?;
            what.group.as_deref().map_or(Ok(()), names::group_ref)?;
            drives_ok(&what.drives)?;
            if what.group.is_some() == what.all {
                let message = "say which group to assemble: its name or uuid, or all";
                return Err(ApiError::new(ErrorCode::RequestInvalid, message));
            }
            if what.force {
                let subject = format!("a forced start of {}", what.group.as_deref().unwrap_or("all groups"));
                meant(&subject, what.yes, Some(&what.expect_uuid), what.dry_run)?;
            }
            control.group_assemble(what).await
        }
        Op::GroupUndelete => {
            let what: GroupUndelete = call.body()?;
            names::group_ref(&what.group)?;
            drives_ok(&what.drives)?;
            control.group_undelete(what).await
        }
        Op::GroupAdopt => {
            let what: GroupAdopt = call.body()?;
            names::group_name(&what.name)?;
            drives_ok(&what.drives)?;
            meant(&format!("adopting md's array as {}", what.name), what.yes, None, what.dry_run)?;
            control.group_adopt(what).await
        }
        Op::GroupRelease => {
            let (group, how): (String, GroupRelease) = (call.group()?, call.body()?);
            meant(&format!("releasing group {group} to md"), how.yes, None, how.dry_run)?;
            control.group_release(group, how).await
        }
        Op::GroupDelete => {
            let (group, how): (String, GroupDelete) = (call.group()?, call.body()?);
            meant(&format!("deleting group {group}"), how.yes, Some(&how.expect_uuid), how.dry_run)?;
            control.group_delete(group, how).await
        }
        Op::GroupReadd => {
            let (group, how): (String, GroupReadd) = (call.group()?, call.body()?);
            names::drive_ref(&how.drive)?;
            control.group_readd(group, how).await
        }
        Op::GroupReplace => {
            let (group, how): (String, GroupReplace) = (call.group()?, call.body()?);
            names::drive_ref(&how.new_drive)?;
            how.old_drive.as_deref().map_or(Ok(()), names::drive_ref)?;
            if how.slot.is_some() == how.old_drive.is_some() {
                let message = "say which member to replace: its slot, or its drive";
                return Err(ApiError::new(ErrorCode::RequestInvalid, message));
            }
            control.group_replace(group, how).await
        }
        Op::GroupScrub => control.group_scrub(call.group()?, call.body::<GroupScrub>()?).await,
        Op::GroupSet => {
            let (group, what): (String, GroupSet) = (call.group()?, call.body()?);
            what.check()?;
            control.group_set(group, what).await
        }
        _ => control.group_stop(call.group()?, call.body::<GroupStop>()?).await,
    })
}

async fn disk_change<C: Control>(op: Op, control: &C, call: &Call) -> Result<Rendered, ApiError> {
    if op == Op::DiskCreate {
        let what: DiskCreate = call.body()?;
        names::group_ref(&what.group)?;
        names::disk_name(&what.name)?;
        return rendered::<ActionDoc>(control.disk_create(what).await);
    }
    let (group, disk) = call.disk()?;
    rendered::<ActionDoc>(match op {
        Op::DiskExpose => control.disk_expose(group, disk, call.body::<DiskExpose>()?).await,
        Op::DiskUnexpose => control.disk_unexpose(group, disk, call.body::<DiskUnexpose>()?).await,
        Op::DiskResize => control.disk_resize(group, disk, call.body::<DiskResize>()?).await,
        _ => {
            let how: DiskDelete = call.body()?;
            let what = format!("deleting disk {group}/{disk}");
            meant(&what, how.yes, Some(&how.expect_uuid), how.dry_run)?;
            control.disk_delete(group, disk, how).await
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_one_row_and_its_own_place() {
        let places: BTreeSet<_> = OPERATIONS.iter().map(|row| (row.path, row.verb == Verb::Change)).collect();
        assert_eq!(places.len(), OPERATIONS.len());
        let commands: BTreeSet<_> = OPERATIONS.iter().map(|row| row.command).collect();
        assert_eq!(commands.len(), OPERATIONS.len());
        for row in OPERATIONS {
            assert_eq!(operation(row.op).path, row.path);
        }
        // One row per method of `Control` but `metrics`, and `explain`, which asks nobody.
        assert_eq!(OPERATIONS.len(), 40);
    }

    #[test]
    fn ad_06_what_is_missing_is_named() {
        let uuid = Some("u".to_owned());
        assert!(meant("x", true, Some(&uuid), false).is_ok());
        assert!(meant("x", true, None, false).is_ok());
        assert!(meant("x", false, Some(&None), true).is_ok());
        let message = |yes, expect| meant("x", yes, expect, false).unwrap_err().message;
        assert!(message(false, None).ends_with(": --yes missing"));
        assert!(message(false, Some(&uuid)).ends_with(": --yes missing"));
        assert!(message(true, Some(&None)).ends_with(": --expect-uuid UUID missing"));
        assert!(message(false, Some(&None)).ends_with(": --yes and --expect-uuid UUID missing"));
    }
}
