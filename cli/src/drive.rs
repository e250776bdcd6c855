//! `drive list|show|wipe|fail`.

use server::control::model::{ActionDoc, DriveDoc, DriveListDoc, DriveState};
use server::control::request::{DriveFail, DriveWipe};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode};

use crate::args::DriveVerb;
use crate::client::Client;
use crate::confirm;
use crate::output::{Ended, Output, decoded};
use crate::render::{action, count, fields, header, or_dash, table, word};
use crate::units::{self, human};

pub(crate) fn run(verb: &DriveVerb, client: &Client, output: &Output) -> Ended {
    match verb {
        DriveVerb::List => output.document(&client.look(Op::Drives, &[], &())?, list),
        DriveVerb::Show { drive } => {
            let drive = units::drive(drive)?;
            output.document(&client.look(Op::Drive, &[("drive", &drive)], &())?, |drive: &DriveDoc| {
                format!("{}\n{}", show(drive), health(drive))
            })
        }
        DriveVerb::Wipe { drive, expect_uuid, writes } => {
            let drive = units::drive(drive)?;
            let mut how =
                DriveWipe { expect_uuid: expect_uuid.clone(), yes: writes.yes, dry_run: writes.dry_run };
            if confirm::must_ask(output, &format!("wiping {drive}"), *writes, Some(expect_uuid))? {
                let found: DriveDoc = decoded(&client.look(Op::Drive, &[("drive", &drive)], &())?)?;
                let identity = identity(&found);
                if expect_uuid.as_ref().is_some_and(|expected| !identity.contains(&expected)) {
                    let message = format!(
                        "{} is not the serial or uuid of {drive}",
                        expect_uuid.as_deref().unwrap_or_default()
                    );
                    return Err(ApiError::new(ErrorCode::DriveIdentityMismatch, message).into());
                }
                let what = format!("{}\nEverything on it will be lost.", show(&found));
                confirm::typed(&what, &found.path)?;
                how.yes = true;
                how.expect_uuid = how.expect_uuid.or_else(|| identity.first().map(|&id| id.clone()));
            }
            let answer = client.change(Op::DriveWipe, &[("drive", &drive)], &how)?;
            output.document(&answer, |done: &ActionDoc| action(done, ""))
        }
        DriveVerb::Fail { drive, force, writes } => {
            let drive = units::drive(drive)?;
            let how = DriveFail { force: *force, dry_run: writes.dry_run };
            let answer = client.change(Op::DriveFail, &[("drive", &drive)], &how)?;
            output.document(&answer, |done: &ActionDoc| action(done, ""))
        }
    }
}

/// Everything a drive can be known by, beside its path; the path is the last resort of a drive with neither.
fn identity(drive: &DriveDoc) -> Vec<&String> {
    let known = drive.serial.iter().chain(&drive.device_uuid);
    let found: Vec<&String> =
        known.chain(drive.signatures.iter().filter_map(|found| found.uuid.as_ref())).collect();
    if found.is_empty() { vec![&drive.path] } else { found }
}

/// What a drive is to us, in a few words.
fn role(drive: &DriveDoc) -> String {
    let place = || {
        let group = drive.group.as_ref().or(drive.group_uuid.as_ref());
        let slot = drive.slot.map(|slot| format!(" slot {slot}")).unwrap_or_default();
        format!("{}{slot}", or_dash(group))
    };
    match drive.state {
        DriveState::Member => place(),
        DriveState::Claimed => {
            drive.why.clone().unwrap_or_else(|| format!("{}, which does not run here", place()))
        }
        DriveState::Held => drive.holders.join(", "),
        DriveState::Used => {
            drive.signatures.iter().map(|found| found.kind.as_str()).collect::<Vec<_>>().join(", ")
        }
        DriveState::Free | DriveState::Spare => String::new(),
        DriveState::Failed | DriveState::NotPermitted => drive.why.clone().unwrap_or_default(),
    }
}

fn list(drives: &DriveListDoc) -> String {
    if drives.drives.is_empty() {
        return "no drives\n".into();
    }
    let mut rows = vec![header(&["DRIVE", "STATE", "SIZE", "BLOCK", "SERIAL", "ERRORS", "WHAT"])];
    rows.extend(drives.drives.iter().map(|drive| {
        let errors = drive.errors.commands;
        vec![
            drive.path.clone(),
            word(&drive.state),
            human(drive.size_bytes),
            drive.block_size_bytes.to_string(),
            or_dash(drive.serial.as_ref()),
            errors.to_string(),
            role(drive),
        ]
    }));
    table(&rows)
}

/// What the drive says of its own health.
fn health(drive: &DriveDoc) -> String {
    let Some(smart) = &drive.smart else { return fields(&[("SMART", "not available".into())]) };
    let warnings = if smart.warnings.is_empty() { "none".into() } else { smart.warnings.join("; ") };
    fields(&[
        ("SMART warnings", warnings),
        ("temperature", format!("{} C", smart.temperature_c)),
        ("life used", format!("{} %", smart.used_percent)),
        (
            "spare left",
            format!("{} % (warns below {} %)", smart.spare_percent, smart.spare_threshold_percent),
        ),
        ("written", human(smart.written_bytes)),
        ("powered on", format!("{} hours", smart.power_on_hours)),
        ("unsafe shutdowns", smart.unsafe_shutdowns.to_string()),
        ("media errors", smart.media_errors.to_string()),
    ])
}

/// One drive, field by field; also the head of `examine`.
pub(crate) fn show(drive: &DriveDoc) -> String {
    let mut text = fields(&[
        ("drive", drive.path.clone()),
        ("state", word(&drive.state)),
        ("what", role(drive)),
        ("next", drive.next.clone().unwrap_or_default()),
        ("kind", word(&drive.kind)),
        ("size", format!("{} ({} bytes)", human(drive.size_bytes), drive.size_bytes)),
        ("block size", drive.block_size_bytes.to_string()),
        ("serial", drive.serial.clone().unwrap_or_default()),
        ("model", drive.model.clone().unwrap_or_default()),
        ("NUMA node", drive.numa_node.map(|node| node.to_string()).unwrap_or_default()),
        ("group uuid", drive.group_uuid.clone().unwrap_or_default()),
        ("device uuid", drive.device_uuid.clone().unwrap_or_default()),
        ("held by", drive.holders.join(", ")),
        ("errors", count(drive.errors.commands, "failed command")),
    ]);
    if !drive.signatures.is_empty() {
        let mut rows = vec![header(&["FOUND", "AT BYTE", "LABEL", "UUID"])];
        rows.extend(drive.signatures.iter().map(|found| {
            vec![
                found.kind.clone(),
                found.offset_bytes.to_string(),
                or_dash(found.label.as_ref()),
                or_dash(found.uuid.as_ref()),
            ]
        }));
        text.push('\n');
        text.push_str(&table(&rows));
    }
    text
}
