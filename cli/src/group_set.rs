//! `group set`: settings of a group.

use clap::{Args, ValueEnum};
use server::control::group_set::GroupSet;
use server::control::model::{ActionDoc, GroupSettingsDoc, ScrubEvery};
use server::control::names;
use server::control::routes::Op;

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
    /// Only say what would be done; write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &SetArgs, client: &Client, output: &Output) -> Ended {
    names::group_ref(&args.group)?;
    let what = GroupSet {
        scrub: args.scrub.map(|every| match every {
            ScrubArg::Off => ScrubEvery::Off,
            ScrubArg::Daily => ScrubEvery::Daily,
            ScrubArg::Weekly => ScrubEvery::Weekly,
            ScrubArg::Biweekly => ScrubEvery::Biweekly,
            ScrubArg::Monthly => ScrubEvery::Monthly,
        }),
        scrub_window: args.scrub_window.clone(),
        dry_run: args.dry_run,
    };
    what.check()?;
    output.document(&client.change(Op::GroupSet, &[("group", &args.group)], &what)?, done)
}

fn done(done: &ActionDoc) -> String {
    let now = done.groups.iter().map(|group| format!("\n{}", show(&group.settings)));
    action(done, &if done.dry_run { String::new() } else { now.collect() })
}

/// Settings, a line each.
pub(crate) fn show(settings: &GroupSettingsDoc) -> String {
    fields(&[
        ("scheduled scrub", word(&settings.scrub)),
        ("scrub window", settings.scrub_window.clone().unwrap_or_default()),
    ])
}
