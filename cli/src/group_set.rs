//! `group set`: settings of a group.

use clap::{Args, ValueEnum};
use server::control::group_set::GroupSet;
use server::control::model::{
    ActionDoc, GroupSettingsDoc, NewDrive, RebuildSpeed, Returning, ScrubEvery, SpareWait,
};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode, names};

use crate::client::Client;
use crate::output::{Ended, Output};
use crate::render::{action, fields, word};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ScrubArg {
    Off,
    Daily,
    Weekly,
    Biweekly,
    Monthly,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SpeedArg {
    /// Clients hardly notice
    Low,
    /// Clients wait at most about half as long again
    Normal,
    /// Clients wait up to three times as long
    High,
    /// As fast as it goes
    Max,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ReturningArg {
    /// It is resynced by itself: only what was written meanwhile is copied
    Resync,
    /// It waits for `group readd`
    Ask,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum NewDriveArg {
    /// It waits for `group replace`
    Ask,
    /// It takes the slot and is rebuilt
    Take,
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Name or uuid
    group: String,
    /// How often the group is scrubbed by itself
    #[arg(long, value_enum, value_name = "EVERY")]
    scrub: Option<ScrubArg>,
    /// When scheduled scrubs may run, in local time: 01:00-05:00, or any
    #[arg(long, value_name = "FROM-TO")]
    scrub_window: Option<String>,
    /// How much rebuilds and other sweeps may cost clients
    #[arg(long, value_enum, value_name = "SPEED")]
    rebuild_speed: Option<SpeedArg>,
    /// What 99 of 100 client requests shall keep below meanwhile, e.g. 2ms; auto: the speed decides
    #[arg(long, value_name = "TIME|auto")]
    rebuild_target: Option<String>,
    /// Slots whose members are read only where no other copy can be, and no others: 1,3 or none; RAID 1 and 10
    #[arg(long, value_name = "SLOT,..|none")]
    write_mostly: Option<String>,
    /// How long a member that is missing at start is waited for before a spare takes its place: 10m, never, or auto (as
    /// the daemon was started)
    #[arg(long, value_name = "TIME|never|auto")]
    spare_wait: Option<String>,
    /// The same for a member that fails while the daemon watches
    #[arg(long, value_name = "TIME|never|auto")]
    spare_wait_failed: Option<String>,
    /// What becomes of a lost member whose drive is plugged in again, if all that was lost was contact
    #[arg(long, value_enum, value_name = "WHAT")]
    returning: Option<ReturningArg>,
    /// What becomes of a blank drive that is plugged in where a lost member's drive was
    #[arg(long, value_enum, value_name = "WHAT")]
    new_drive: Option<NewDriveArg>,
    /// Only say what would be done; write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &SetArgs, client: &Client, output: &Output) -> Ended {
    names::group_ref(&args.group)?;
    let rebuild_target_ns = args.rebuild_target.as_deref().map(target_ns).transpose()?;
    let what = GroupSet {
        scrub: args.scrub.map(|every| match every {
            ScrubArg::Off => ScrubEvery::Off,
            ScrubArg::Daily => ScrubEvery::Daily,
            ScrubArg::Weekly => ScrubEvery::Weekly,
            ScrubArg::Biweekly => ScrubEvery::Biweekly,
            ScrubArg::Monthly => ScrubEvery::Monthly,
        }),
        scrub_window: args.scrub_window.clone(),
        rebuild_speed: args.rebuild_speed.map(|speed| match speed {
            SpeedArg::Low => RebuildSpeed::Low,
            SpeedArg::Normal => RebuildSpeed::Normal,
            SpeedArg::High => RebuildSpeed::High,
            SpeedArg::Max => RebuildSpeed::Max,
        }),
        rebuild_target_ns,
        write_mostly: args.write_mostly.as_deref().map(slots).transpose()?,
        spare_wait: args.spare_wait.as_deref().map(spare_wait).transpose()?,
        spare_wait_failed: args.spare_wait_failed.as_deref().map(spare_wait).transpose()?,
        returning: args.returning.map(|what| match what {
            ReturningArg::Resync => Returning::Resync,
            ReturningArg::Ask => Returning::Ask,
        }),
        new_drive: args.new_drive.map(|what| match what {
            NewDriveArg::Ask => NewDrive::Ask,
            NewDriveArg::Take => NewDrive::Take,
        }),
        dry_run: args.dry_run,
    };
    what.check()?;
    output.document(&client.change(Op::GroupSet, &[("group", &args.group)], &what)?, done)
}

fn slots(text: &str) -> Result<Vec<u8>, ApiError> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let number = |one: &str| {
        one.trim().parse().map_err(|_| {
            let message = format!("--write-mostly: {:?} is no slot", names::shown(one));
            ApiError::new(ErrorCode::GroupSettingInvalid, message)
                .hint("for example: --write-mostly 1,3, or none")
        })
    };
    text.split(',').map(number).collect()
}

fn spare_wait(text: &str) -> Result<SpareWait, ApiError> {
    Ok(match text {
        "auto" => SpareWait::Auto,
        "never" => SpareWait::Never,
        _ => {
            let time = crate::units::time(text, "wait before a spare joins")?;
            SpareWait::Ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        }
    })
}

/// A wait; nothing where the daemon's own holds.
fn wait_shown(wait: SpareWait) -> String {
    match wait {
        SpareWait::Auto => String::new(),
        SpareWait::Never => "never".to_owned(),
        SpareWait::Ns(ns) => humantime::format_duration(core::time::Duration::from_nanos(ns)).to_string(),
    }
}

fn target_ns(text: &str) -> Result<u64, ApiError> {
    if text == "auto" {
        return Ok(0);
    }
    let time = crate::units::time(text, "rebuild target")?;
    Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn done(done: &ActionDoc) -> String {
    let now = done.groups.iter().map(|group| format!("\n{}", show(&group.settings)));
    action(done, &if done.dry_run { String::new() } else { now.collect() })
}

/// The schedule of scrubs; nothing if there is none.
pub(crate) fn scrub_line(settings: &GroupSettingsDoc) -> String {
    match (&settings.scrub, &settings.scrub_window) {
        (ScrubEvery::Off, _) => String::new(),
        (every, None) => word(every),
        (every, Some(window)) => format!("{}, {window}", word(every)),
    }
}

/// When a spare takes the place of a lost member; nothing where that is the daemon's own wait.
pub(crate) fn spare_line(settings: &GroupSettingsDoc) -> String {
    match (wait_shown(settings.spare_wait_failed), wait_shown(settings.spare_wait)) {
        (failed, missing) if failed == missing => failed,
        (failed, missing) => {
            let shown = |text: String| if text.is_empty() { "auto".to_owned() } else { text };
            format!("{}; missing at start: {}", shown(failed), shown(missing))
        }
    }
}

/// Settings, a line each.
pub(crate) fn show(settings: &GroupSettingsDoc) -> String {
    fields(&[
        ("scheduled scrub", word(&settings.scrub)),
        ("scrub window", settings.scrub_window.clone().unwrap_or_default()),
        ("rebuild speed", word(&settings.rebuild_speed)),
        (
            "rebuild target",
            settings.rebuild_target_ns.map_or(String::new(), |ns| format!("{} us", ns / 1000)),
        ),
        ("spare joins after", spare_line(settings)),
        ("returning member", word(&settings.returning)),
        ("new drive", word(&settings.new_drive)),
    ])
}
