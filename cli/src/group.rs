//! `group plan|create|list|show|stop|assemble|delete|undelete|replace|readd|wait`.

use core::fmt::Write;
use std::time::{Duration, Instant};

use server::control::model::{ActionDoc, GroupDoc, GroupListDoc, MemberDoc, PlanDoc, WaitDoc};
use server::control::request::{
    GroupAssemble, GroupCreate, GroupDelete, GroupPlan, GroupReadd, GroupReplace, GroupStop, GroupUndelete,
    GroupWait, Init, WaitFor,
};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode, names};

use crate::args::{AssembleArgs, GroupVerb, InitArg, Shape, WaitArg, Writes};
use crate::client::Client;
use crate::confirm;
use crate::output::{Ended, Failure, Output, decoded};
use crate::render::{action, count, count_of, fields, header, indented, level, mkfs, or_dash, table, word};
use crate::status::running;
use crate::units::{self, human, span};

pub(crate) fn run(verb: &GroupVerb, client: &Client, output: &Output) -> Ended {
    match verb {
        GroupVerb::Plan { shape } => {
            output.document(&client.change(Op::GroupPlan, &[], &planned(shape)?)?, plan)
        }
        GroupVerb::Create { name, shape, init, write_mostly, writes } => {
            create(name, shape, (*init, write_mostly), *writes, client, output)
        }
        GroupVerb::List => output.document(&client.look(Op::Groups, &[], &())?, list),
        GroupVerb::Show { group } => {
            names::group_ref(group)?;
            output.document(&client.look(Op::Group, &[("group", group)], &())?, show)
        }
        GroupVerb::Stop { group, force, writes } => {
            names::group_ref(group)?;
            let how = GroupStop { force: *force, dry_run: writes.dry_run };
            output.document(&client.change(Op::GroupStop, &[("group", group)], &how)?, done)
        }
        GroupVerb::Assemble(args) => assemble(args, client, output),
        GroupVerb::Delete { group, expect_uuid, force, writes } => {
            names::group_ref(group)?;
            let mut how = GroupDelete {
                expect_uuid: expect_uuid.clone(),
                force: *force,
                yes: writes.yes,
                dry_run: writes.dry_run,
            };
            if confirm::must_ask(output, &format!("deleting group {group}"), *writes, Some(expect_uuid))? {
                how.expect_uuid =
                    Some(confirmed(group, expect_uuid.as_ref(), "It will be deleted.", client)?);
                how.yes = true;
            }
            output.document(&client.change(Op::GroupDelete, &[("group", group)], &how)?, done)
        }
        GroupVerb::Undelete { group, drives, writes } => {
            names::group_ref(group)?;
            let what =
                GroupUndelete { group: group.clone(), drives: paths(drives)?, dry_run: writes.dry_run };
            output.document(&client.change(Op::GroupUndelete, &[], &what)?, done)
        }
        GroupVerb::Adopt(args) => crate::group_interop::adopt(args, client, output),
        GroupVerb::Release(args) => crate::group_interop::release(args, client, output),
        GroupVerb::Replace { group, slot, old, new_drive, now, writes } => {
            names::group_ref(group)?;
            let how = GroupReplace {
                slot: *slot,
                old_drive: old.as_deref().map(units::drive).transpose()?,
                new_drive: units::drive(new_drive)?,
                now: *now,
                dry_run: writes.dry_run,
            };
            output.document(&client.change(Op::GroupReplace, &[("group", group)], &how)?, done)
        }
        GroupVerb::Scrub(args) => crate::group_scrub::run(args, client, output),
        GroupVerb::Set(args) => crate::group_set::run(args, client, output),
        GroupVerb::Readd { group, drive, slot, writes } => {
            names::group_ref(group)?;
            let how = GroupReadd { drive: units::drive(drive)?, slot: *slot, dry_run: writes.dry_run };
            output.document(&client.change(Op::GroupReadd, &[("group", group)], &how)?, done)
        }
        GroupVerb::Wait { group, what, timeout } => {
            names::group_ref(group)?;
            wait(group, *what, timeout.as_deref(), client, output)
        }
    }
}

pub(crate) fn paths(drives: &[String]) -> Result<Vec<String>, ApiError> {
    drives.iter().map(|drive| units::drive(drive)).collect()
}

fn planned(shape: &Shape) -> Result<GroupPlan, ApiError> {
    Ok(GroupPlan {
        level: units::level(&shape.level)?,
        chunk_bytes: shape.chunk.as_deref().map(units::chunk).transpose()?,
        drives: paths(&shape.drives)?,
    })
}

fn create(
    name: &str,
    shape: &Shape,
    (init, write_mostly): (InitArg, &[String]),
    writes: Writes,
    client: &Client,
    output: &Output,
) -> Ended {
    names::group_name(name)?;
    let shape = planned(shape)?;
    let mut yes = writes.yes;
    if confirm::must_ask(output, &format!("creating group {name}"), writes, None)? {
        let answer = client.change(Op::GroupPlan, &[], &shape)?;
        let what = format!("{}\nThe drives will be written.", plan(&decoded(&answer)?));
        confirm::typed(&what, name)?;
        yes = true;
    }
    let init = match init {
        InitArg::Sync => Init::Sync,
        InitArg::Zero => Init::Zero,
    };
    let GroupPlan { level, chunk_bytes, drives } = shape;
    let what = GroupCreate {
        name: name.to_owned(),
        level,
        chunk_bytes,
        drives,
        init,
        write_mostly: paths(write_mostly)?,
        yes,
        dry_run: writes.dry_run,
    };
    output.document(&client.change(Op::GroupCreate, &[], &what)?, done)
}

fn assemble(args: &AssembleArgs, client: &Client, output: &Output) -> Ended {
    let (group, first) = if args.all { (None, args.group.as_ref()) } else { (args.group.clone(), None) };
    group.as_deref().map_or(Ok(()), names::group_ref)?;
    let mut drives =
        first.map(|drive| units::drive(drive)).transpose()?.map_or(Vec::new(), |drive| vec![drive]);
    drives.extend(paths(&args.drives)?);
    let mut what = GroupAssemble {
        group: group.clone(),
        all: args.all,
        drives,
        keep: args.keep.as_deref().map(units::drive).transpose()?,
        force: args.force,
        expect_uuid: args.expect_uuid.clone(),
        yes: args.writes.yes,
        dry_run: args.writes.dry_run,
    };
    let subject = group.as_deref().unwrap_or("all groups");
    if args.force
        && confirm::must_ask(
            output,
            &format!("a forced start of {subject}"),
            args.writes,
            Some(&args.expect_uuid),
        )?
    {
        let risk = "A forced start can give wrong data in blocks written just before the crash; the group is marked for ever.";
        what.expect_uuid = Some(confirmed(subject, args.expect_uuid.as_ref(), risk, client)?);
        what.yes = true;
    }
    output.document(&client.change(Op::GroupAssemble, &[], &what)?, done)
}

/// Shows a group, has its name typed, and returns its uuid.
fn confirmed(group: &str, expected: Option<&String>, risk: &str, client: &Client) -> Result<String, Failure> {
    let found: GroupDoc = decoded(&client.look(Op::Group, &[("group", group)], &())?)?;
    if expected.is_some_and(|expected| *expected != found.uuid) {
        let message = format!("group {} has the uuid {}", found.name, found.uuid);
        return Err(ApiError::new(ErrorCode::GroupUuidMismatch, message).into());
    }
    confirm::typed(&format!("{}\n{risk}", show(&found)), &found.name)?;
    Ok(found.uuid)
}

/// Waits in the daemon; where stderr is a terminal in steps of a second, so that progress can be drawn between them.
fn wait(group: &str, what: WaitArg, timeout: Option<&str>, client: &Client, output: &Output) -> Ended {
    let timeout = timeout.map(|text| units::time(text, "timeout")).transpose()?;
    let what = match what {
        WaitArg::Rebuilt => WaitFor::Rebuilt,
        WaitArg::Synced => WaitFor::Synced,
        WaitArg::Healthy => WaitFor::Healthy,
    };
    let seconds = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let ask = |timeout_s| client.look(Op::GroupWait, &[("group", group)], &GroupWait { what, timeout_s });
    if !output.shows_progress() {
        return output.document(&ask(timeout.map(seconds))?, waited);
    }
    let started = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        let is_last = left.is_some_and(|left| left <= Duration::from_secs(1));
        let answer = ask(Some(1));
        match answer {
            Err(failure) if failure.code == ErrorCode::GroupWaitTimeout.as_str() && !is_last => {
                let now: GroupDoc = decoded(&client.look(Op::Group, &[("group", group)], &())?)?;
                eprint!("\r\x1b[K{}", running(&now).join("; "));
            }
            answer => {
                eprint!("\r\x1b[K");
                return output.document(&answer?, waited);
            }
        }
    }
}

fn waited(wait: &WaitDoc) -> String {
    let time = span(wait.waited_ns / 1_000_000_000);
    format!("{} is {} after {time}\n", wait.group.name, word(&wait.group.state))
}

pub(crate) fn done(done: &ActionDoc) -> String {
    let mut then = match &done.plan {
        Some(one) => format!("\n{}", plan(one)),
        None => String::new(),
    };
    if !done.dry_run {
        then.extend(done.groups.iter().map(|group| format!("\n{}", show(group))));
    }
    action(done, &then)
}

/// Raw, parity, metadata, usable, and the arithmetic (CASES OT-07).
pub(crate) fn plan(plan: &PlanDoc) -> String {
    let bytes = |bytes: u64| format!("{:>10}  {bytes} bytes", human(bytes));
    let mut text = fields(&[
        ("level", format!("{}, {}", level(plan.level), count_of(&plan.drives, "drive"))),
        ("tolerates", plan.tolerance.clone()),
        ("chunk", if plan.chunk_bytes == 0 { "-".into() } else { human(u64::from(plan.chunk_bytes)) }),
        ("stripe", format!("{} of data", human(plan.stripe_bytes))),
        ("block size", plan.block_size_bytes.to_string()),
    ]);
    text.push('\n');
    text.push_str(&fields(&[
        ("raw", bytes(plan.raw_bytes)),
        ("parity", bytes(plan.parity_bytes)),
        ("metadata", bytes(plan.metadata_bytes)),
        ("unused", bytes(plan.unused_bytes)),
        ("usable", bytes(plan.usable_bytes)),
    ]));
    text.push_str(&indented(&plan.arithmetic.join("\n")));
    let mut rows = vec![header(&["SLOT", "DRIVE", "SERIAL", "NUMA", "SIZE", "DATA", "METADATA", "UNUSED"])];
    rows.extend(plan.drives.iter().map(|drive| {
        vec![
            drive.slot.to_string(),
            drive.path.clone(),
            or_dash(drive.serial.as_ref()),
            drive.numa_node.map_or("-".into(), |node| node.to_string()),
            human(drive.size_bytes),
            human(drive.data_bytes),
            human(drive.metadata_bytes),
            human(drive.unused_bytes),
        ]
    }));
    let _ = write!(text, "\n{}\nfilesystems on its disks:\n{}", table(&rows), indented(&mkfs(&plan.mkfs)));
    text
}

fn list(groups: &GroupListDoc) -> String {
    if groups.groups.is_empty() {
        return "no groups\n".into();
    }
    let mut rows = vec![header(&["GROUP", "LEVEL", "STATE", "DRIVES", "CAPACITY", "FREE", "DISKS", "UUID"])];
    rows.extend(groups.groups.iter().map(|group| {
        vec![
            group.name.clone(),
            level(group.level),
            word(&group.state),
            group.members.len().to_string(),
            human(group.capacity_bytes),
            human(group.free_bytes),
            group.disks.len().to_string(),
            group.uuid.clone(),
        ]
    }));
    table(&rows)
}

/// What there is to say of a member beside its state.
fn remark(member: &MemberDoc) -> String {
    let successor = member.successor.as_ref().map(|drive| format!("serves until {drive} has replaced it"));
    let write_mostly = member.write_mostly.then(|| "write-mostly".to_owned());
    member.why.iter().cloned().chain(successor).chain(write_mostly).collect::<Vec<_>>().join("; ")
}

/// One group, member by member.
pub(crate) fn show(group: &GroupDoc) -> String {
    let chunk = if group.chunk_bytes == 0 { "-".into() } else { human(u64::from(group.chunk_bytes)) };
    let mut text = fields(&[
        ("group", group.name.clone()),
        ("uuid", group.uuid.clone()),
        (
            "state",
            format!("{}, can lose {}", word(&group.state), count(u64::from(group.tolerates), "more drive")),
        ),
        (
            "level",
            format!("{}, chunk {chunk}, {} of data a stripe", level(group.level), human(group.stripe_bytes)),
        ),
        ("block size", group.block_size_bytes.to_string()),
        ("capacity", format!("{}, {} free", human(group.capacity_bytes), human(group.free_bytes))),
        (
            "raw",
            format!(
                "{} = {} capacity + {} parity or copies + {} metadata and unused",
                human(group.raw_bytes),
                human(group.capacity_bytes),
                human(group.parity_bytes),
                human(group.metadata_bytes)
            ),
        ),
        ("disks", group.disks.join(", ")),
        ("epoch", format!("{} {}", group.epoch.counter, group.epoch.id)),
        ("journal", word(&group.journal)),
        crate::group_scrub::of_group(group),
        ("scheduled scrub", crate::group_set::scrub_line(&group.settings)),
        ("spare joins after", crate::group_set::spare_line(&group.settings)),
        (
            "forced",
            if group.forced {
                "once started by force: some blocks may be wrong".into()
            } else {
                String::new()
            },
        ),
    ]);
    for line in running(group) {
        let _ = writeln!(text, "{line}");
    }
    let mut rows = vec![header(&["SLOT", "STATE", "DRIVE", "SERIAL", "SIZE", "ERRORS", "WHY"])];
    rows.extend(group.members.iter().map(|member| {
        let errors = member.errors.commands;
        vec![
            member.slot.to_string(),
            word(&member.state),
            or_dash(member.drive.as_ref()),
            or_dash(member.serial.as_ref()),
            member.size_bytes.map_or("-".into(), human),
            errors.to_string(),
            remark(member),
        ]
    }));
    let _ = write!(text, "\n{}", table(&rows));
    text.push_str(&crate::group_scrub::lost(&group.lost));
    for problem in &group.problems {
        let _ = write!(text, "\n{}: {}\nNEXT  {}\n", problem.code, problem.why, problem.next);
    }
    text
}
