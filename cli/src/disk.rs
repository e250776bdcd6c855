//! `disk create|list|show|expose|unexpose|resize|delete`.

use core::fmt::Write;

use server::control::model::{ActionDoc, DiskDoc, DiskListDoc, DiskScrubDoc};
use server::control::request::{DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose, DisksOf};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode, names};

use crate::args::{DiskVerb, Writes};
use crate::client::Client;
use crate::confirm;
use crate::output::{Ended, Output, decoded};
use crate::render::{action, count, fields, header, indented, mkfs, table};
use crate::units::{self, human, moment};

pub(crate) fn run(verb: &DiskVerb, client: &Client, output: &Output) -> Ended {
    match verb {
        DiskVerb::List { group } => {
            group.as_deref().map_or(Ok(()), names::group_ref)?;
            output.document(&client.look(Op::Disks, &[], &DisksOf { group: group.clone() })?, list)
        }
        DiskVerb::Show { disk } => {
            let (group, disk) = names::disk_ref(disk)?;
            output.document(&client.look(Op::Disk, &[("group", group), ("disk", disk)], &())?, show)
        }
        DiskVerb::Create { disk, size, writes } => {
            let (group, name) = names::disk_ref(disk)?;
            let what = DiskCreate {
                group: group.to_owned(),
                name: name.to_owned(),
                size_bytes: units::size(size, "size", ErrorCode::DiskSizeInvalid)?,
                dry_run: writes.dry_run,
            };
            output.document(&client.change(Op::DiskCreate, &[], &what)?, done)
        }
        DiskVerb::Expose { disk, nbd, ublk, read_only, writes } => {
            let nbd = nbd.as_deref().map(units::address).transpose()?;
            let how = DiskExpose { nbd, ublk: *ublk, read_only: *read_only, dry_run: writes.dry_run };
            change(Op::DiskExpose, disk, &how, client, output)
        }
        DiskVerb::Unexpose { disk, nbd, force, writes } => {
            let address = nbd.as_deref().map(units::address).transpose()?;
            let how = DiskUnexpose { address, force: *force, dry_run: writes.dry_run };
            change(Op::DiskUnexpose, disk, &how, client, output)
        }
        DiskVerb::Resize { disk, size, writes } => {
            let size_bytes = units::size(size, "size", ErrorCode::DiskSizeInvalid)?;
            let how = DiskResize { size_bytes, dry_run: writes.dry_run };
            change(Op::DiskResize, disk, &how, client, output)
        }
        DiskVerb::Delete { disk, expect_uuid, force, writes } => {
            delete(disk, expect_uuid.as_ref(), *force, *writes, client, output)
        }
    }
}

fn change(op: Op, disk: &str, how: &impl serde::Serialize, client: &Client, output: &Output) -> Ended {
    let (group, disk) = names::disk_ref(disk)?;
    output.document(&client.change(op, &[("group", group), ("disk", disk)], how)?, done)
}

fn delete(
    disk: &str,
    expect_uuid: Option<&String>,
    force: bool,
    writes: Writes,
    client: &Client,
    output: &Output,
) -> Ended {
    let (group, name) = names::disk_ref(disk)?;
    let expect_uuid = expect_uuid.cloned();
    let mut how =
        DiskDelete { expect_uuid: expect_uuid.clone(), force, yes: writes.yes, dry_run: writes.dry_run };
    if confirm::must_ask(output, &format!("deleting disk {disk}"), writes, Some(&expect_uuid))? {
        let found: DiskDoc = decoded(&client.look(Op::Disk, &[("group", group), ("disk", name)], &())?)?;
        if expect_uuid.is_some_and(|expected| expected != found.uuid) {
            let message = format!("{disk} has the uuid {}", found.uuid);
            return Err(ApiError::new(ErrorCode::DiskUuidMismatch, message).into());
        }
        confirm::typed(&format!("{}\nEverything on it will be lost.", show(&found)), disk)?;
        how.yes = true;
        how.expect_uuid = Some(found.uuid);
    }
    change(Op::DiskDelete, disk, &how, client, output)
}

fn done(done: &ActionDoc) -> String {
    let then = match &done.disk {
        Some(disk) if !done.dry_run => show(disk),
        _ => String::new(),
    };
    action(done, &then)
}

fn list(disks: &DiskListDoc) -> String {
    if disks.disks.is_empty() {
        return "no disks\n".into();
    }
    let mut rows = vec![header(&["DISK", "SIZE", "UUID", "CLIENTS", "SERVED AT"])];
    rows.extend(disks.disks.iter().map(|disk| {
        let clients: usize = disk.exposures.iter().map(|exposure| exposure.clients.len()).sum();
        let at: Vec<String> = disk
            .exposures
            .iter()
            .map(|exposure| {
                format!("{}{}", exposure.uri, if exposure.read_only { " (read-only)" } else { "" })
            })
            .collect();
        vec![
            format!("{}/{}", disk.group, disk.name),
            human(disk.size_bytes),
            disk.uuid.clone(),
            clients.to_string(),
            if at.is_empty() { "-".into() } else { at.join(" ") },
        ]
    }));
    table(&rows)
}

fn scrubbed(scrub: &DiskScrubDoc) -> String {
    let part = if scrub.complete { "" } else { ", not every stripe" };
    let found = if scrub.findings == 0 { "nothing found".into() } else { count(scrub.findings, "finding") };
    format!("last complete {}{part}, {found}", moment(scrub.ended_unix_s))
}

fn show(disk: &DiskDoc) -> String {
    let mut text = fields(&[
        ("disk", format!("{}/{}", disk.group, disk.name)),
        ("uuid", disk.uuid.clone()),
        ("size", format!("{} ({} bytes)", human(disk.size_bytes), disk.size_bytes)),
        ("starts at", format!("byte {} of the group", disk.start_bytes)),
        ("block size", disk.block_size_bytes.to_string()),
        ("scrubbed", disk.scrub.as_ref().map(scrubbed).unwrap_or_default()),
    ]);
    for exposure in &disk.exposures {
        let how = if exposure.read_only { ", read-only" } else { "" };
        let _ = writeln!(text, "served at   {}{how}", exposure.uri);
        for client in &exposure.clients {
            let _ = writeln!(text, "  client    {client}");
        }
    }
    text.push_str(&crate::group_scrub::lost(&disk.lost));
    let _ =
        write!(text, "make a filesystem, DEVICE being the disk's device:\n{}", indented(&mkfs(&disk.mkfs)));
    text
}
