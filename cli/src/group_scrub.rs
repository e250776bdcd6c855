//! `group scrub`: start, wait, pause, resume, cancel, acknowledge, show.

use core::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use server::control::group_scrub::{GroupScrub, ScrubOrder};
use server::control::model::{
    ActionDoc, FindingDoc, FindingKind, GroupDoc, ScrubActivity, ScrubDoc, ScrubModeDoc, ScrubRunDoc,
    ScrubSummaryDoc,
};
use server::control::names;
use server::control::routes::Op;

use crate::client::Client;
use crate::output::{Ended, Output, decoded};
use crate::render::{action, count, fields, indented, progress, word};
use crate::units::{human, moment};

/// How often a wait looks.
const WAIT_PERIOD: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools)] // One flag an order; clap keeps them apart.
pub(crate) struct ScrubArgs {
    /// Name or uuid
    group: String,
    /// Rewrite what is certainly wrong: RAID 6, one member located
    #[arg(long)]
    repair: bool,
    /// As --repair, and data that is located in stripes which were written in part since they were last seen to fit: if a
    /// client has rewritten the very block that had gone wrong before, what it wrote is lost
    #[arg(long, conflicts_with = "repair")]
    repair_suspected: bool,
    /// Take the data (of mirrors: the first copy) for right where nobody can tell, and make parity and copies anew from it:
    /// data that is wrong stays wrong, and no scrub finds it any more
    #[arg(long, conflicts_with_all = ["repair", "repair_suspected"])]
    assume_data_right: bool,
    /// Also while members are missing or the group is not in sync
    #[arg(long)]
    even_degraded: bool,
    /// Wait for its end; exit code 1 if something is left that does not fit or is lost
    #[arg(long)]
    wait: bool,
    /// Halt the scrub under way; it keeps its place, over restarts too
    #[arg(long, group = "order", conflicts_with_all = ["repair", "repair_suspected", "assume_data_right", "even_degraded", "wait"])]
    pause: bool,
    /// Go on with a paused one
    #[arg(long, group = "order", conflicts_with_all = ["repair", "repair_suspected", "assume_data_right", "even_degraded"])]
    resume: bool,
    /// Give the scrub under way up
    #[arg(long, group = "order", conflicts_with_all = ["repair", "repair_suspected", "assume_data_right", "even_degraded", "wait"])]
    cancel: bool,
    /// Take note of what the last one found: it is no problem any more
    #[arg(long, group = "order", conflicts_with_all = ["repair", "repair_suspected", "assume_data_right", "even_degraded", "wait"])]
    acknowledge: bool,
    /// How far it is, and what this one and the last one found
    #[arg(long, group = "order", conflicts_with_all = ["repair", "repair_suspected", "assume_data_right", "even_degraded"])]
    show: bool,
    /// Only say what would be done; write nothing
    #[arg(long)]
    dry_run: bool,
}

impl ScrubArgs {
    fn request(&self) -> GroupScrub {
        let order = match (self.pause, self.resume, self.cancel, self.acknowledge) {
            (true, _, _, _) => ScrubOrder::Pause,
            (_, true, _, _) => ScrubOrder::Resume,
            (_, _, true, _) => ScrubOrder::Cancel,
            (_, _, _, true) => ScrubOrder::Acknowledge,
            _ => ScrubOrder::Start,
        };
        let mode = match (self.repair, self.repair_suspected, self.assume_data_right) {
            (_, _, true) => ScrubModeDoc::AssumeDataRight,
            (_, true, _) => ScrubModeDoc::RepairSuspected,
            (true, _, _) => ScrubModeDoc::Repair,
            _ => ScrubModeDoc::Report,
        };
        GroupScrub { order, mode, even_degraded: self.even_degraded, dry_run: self.dry_run }
    }
}

pub(crate) fn run(args: &ScrubArgs, client: &Client, output: &Output) -> Ended {
    names::group_ref(&args.group)?;
    let params = &[("group", args.group.as_str())];
    if !args.show {
        let answer = client.change(Op::GroupScrub, params, &args.request())?;
        if !args.wait || args.dry_run {
            return output.document(&answer, done);
        }
    }
    loop {
        let answer = client.look(Op::Scrub, params, &())?;
        let now: ScrubDoc = decoded(&answer)?;
        let goes_on = args.wait && matches!(now.state, ScrubActivity::Running | ScrubActivity::Waiting);
        if goes_on {
            if output.shows_progress() {
                let line = now.progress.as_ref().map(progress).or(now.why).unwrap_or_default();
                eprint!("\r\x1b[K{line}");
            }
            std::thread::sleep(WAIT_PERIOD);
            continue;
        }
        if args.wait && output.shows_progress() {
            eprint!("\r\x1b[K");
        }
        output.document(&answer, show)?;
        let is_bad = |run: &ScrubRunDoc| run.mismatches_left() > 0 || run.lost_blocks > 0;
        let failed = args.wait && (now.state != ScrubActivity::Idle || now.last.as_ref().is_some_and(is_bad));
        return Ok(ExitCode::from(u8::from(failed)));
    }
}

fn done(done: &ActionDoc) -> String {
    let then = match done.groups.first() {
        Some(group) if !done.dry_run => format!("\nwarpraid group scrub {} --show\n", group.name),
        _ => String::new(),
    };
    action(done, &then)
}

fn show(scrub: &ScrubDoc) -> String {
    let mut text = fields(&[
        ("group", scrub.group.clone()),
        ("scrub", word(&scrub.state)),
        ("why", scrub.why.clone().unwrap_or_default()),
        ("next", scrub.next_due_unix_s.map(due).unwrap_or_default()),
    ]);
    if let Some(now) = &scrub.progress {
        let _ = writeln!(text, "{}", progress(now));
    }
    for (title, run) in [("this scrub", &scrub.current), ("last complete scrub", &scrub.last)] {
        if let Some(run) = run {
            let _ = write!(text, "\n{title}\n{}", indented(&one(run)));
        }
    }
    if scrub.current.is_none() && scrub.last.is_none() {
        let _ = writeln!(text, "never scrubbed to the end");
    }
    text
}

fn due(unix_s: u64) -> String {
    if unix_s == 0 { "as soon as it may".to_owned() } else { format!("not before {}", moment(unix_s)) }
}

fn one(run: &ScrubRunDoc) -> String {
    let some = |n: u64, noun: &str| if n == 0 { String::new() } else { count(n, noun) };
    let mut text = fields(&[
        ("mode", word(&run.mode)),
        ("started", moment(run.started_unix_s)),
        ("ended", run.ended_unix_s.map(moment).unwrap_or_default()),
        (
            "compared",
            format!("{} of {} stripes, {}", run.checked_stripes, run.stripes, human(run.checked_bytes)),
        ),
        ("not compared", some(run.skipped_stripes, "stripe")),
        ("mismatched", count(run.mismatched_stripes, "stripe")),
        ("repaired", some(run.repaired_blocks, "block")),
        ("rewritten", some(run.rewritten_blocks, "unreadable block")),
        ("lost", some(run.lost_blocks, "block")),
        ("acknowledged", if run.acknowledged { "yes".into() } else { String::new() }),
    ]);
    for finding in &run.findings {
        text.push_str(&self::finding(finding));
    }
    if run.findings_left_out > 0 {
        let _ = writeln!(text, "and {} not listed", count(run.findings_left_out, "more"));
    }
    text
}

fn finding(one: &FindingDoc) -> String {
    let what = match one.what {
        FindingKind::Located => "this member is wrong",
        FindingKind::Suspected => {
            "this member's data does not fit; it was written in part since it last did, and may be right"
        }
        FindingKind::Ambiguous => "more than one member is wrong, cannot tell which",
        FindingKind::Parity => "data and parity differ, cannot tell which is right",
        FindingKind::Copies => "copies differ, cannot tell which is right",
        FindingKind::Lost => "cannot be read, and has no source left",
    };
    let repaired = if one.repaired { "; repaired" } else { "" };
    let mut text = format!(
        "stripe {} + {} for {} bytes: {what}{repaired}\n",
        one.stripe, one.chunk_offset_bytes, one.length_bytes
    );
    for member in &one.members {
        let serial = member.serial.as_ref().map(|serial| format!(", serial {serial}")).unwrap_or_default();
        let drive = member.drive.as_deref().unwrap_or("unknown drive");
        let _ = writeln!(
            text,
            "  slot {} ({drive}{serial}), {} at byte {}",
            member.slot, member.role, member.offset_bytes
        );
    }
    for range in &one.disks {
        let disk = range
            .disk
            .as_deref()
            .map_or("outside every disk, group".to_owned(), |disk| format!("disk {disk}"));
        let _ = writeln!(text, "  {disk} byte {} + {}", range.offset_bytes, range.length_bytes);
    }
    text
}

/// The scrubs of a group, in a line; nothing before the first.
pub(crate) fn summary(scrub: &ScrubSummaryDoc) -> String {
    let Some(ended) = scrub.last_ended_unix_s else {
        return if scrub.state == ScrubActivity::Idle { "never".into() } else { word(&scrub.state) };
    };
    let left = if scrub.mismatches_left == 0 {
        String::new()
    } else {
        format!(", {} left that do not fit", scrub.mismatches_left)
    };
    let skipped = if scrub.skipped_stripes == 0 {
        String::new()
    } else {
        format!(", {} stripes not compared", scrub.skipped_stripes)
    };
    let now = if scrub.state == ScrubActivity::Idle {
        String::new()
    } else {
        format!("; now {}", word(&scrub.state))
    };
    format!("last complete {}, {}{skipped}{left}{now}", moment(ended), human(scrub.checked_bytes))
}

/// What is lost in a group, and how to find the files.
pub(crate) fn lost(ranges: &[server::control::model::LostRangeDoc]) -> String {
    let mut text = String::new();
    for range in ranges {
        let disk = range
            .disk
            .as_deref()
            .map_or("outside every disk, group".to_owned(), |disk| format!("disk {disk}"));
        let _ = writeln!(
            text,
            "LOST  {disk} byte {} + {} (until it is written again)",
            range.offset_bytes, range.length_bytes
        );
        for command in &range.find {
            let _ = writeln!(text, "      {command}");
        }
    }
    text
}

/// The part of `group show` about scrubs.
pub(crate) fn of_group(group: &GroupDoc) -> (&'static str, String) {
    ("scrubbed", summary(&group.scrub))
}
