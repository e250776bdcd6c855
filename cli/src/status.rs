//! `status` and `health`: am I safe, why not, what do I type. A healthy group is one line.

use core::fmt::Write;
use std::process::ExitCode;

use server::control::model::{GroupDoc, GroupState, Health, HealthDoc, MemberState, ProblemDoc, StatusDoc};
use server::control::routes::Op;

use crate::client::Client;
use crate::output::{Ended, Failure, Output, decoded};
use crate::render::{count_of, level, progress, table, word};
use crate::units::{human, moment, span};

pub(crate) fn status(client: &Client, output: &Output) -> Ended {
    output.document(&client.look(Op::Status, &[], &())?, text)
}

/// Exit code 0 ok, 1 warning, 2 critical, 3 unknown, and unknown is also what a daemon that does not answer means.
pub(crate) fn health(client: &Client, output: &Output) -> Ended {
    let answer = match client.look(Op::Health, &[], &()) {
        Ok(answer) => answer,
        Err(failure) => return Ok(unknown(output, failure)),
    };
    let health = match decoded::<HealthDoc>(&answer) {
        Ok(document) => document.health,
        Err(failure) => return Ok(unknown(output, failure)),
    };
    output.document(&answer, |health: &HealthDoc| {
        let lines = health.problems.iter().map(|problem| format!("  {}: {}\n", problem.code, problem.why));
        format!("{}: {}\n{}", word(&health.health).to_uppercase(), health.summary, lines.collect::<String>())
    })?;
    Ok(ExitCode::from(match health {
        Health::Ok => 0,
        Health::Warning => 1,
        Health::Critical => 2,
        Health::Unknown => 3,
    }))
}

fn unknown(output: &Output, failure: Failure) -> ExitCode {
    let _ = output.failed(failure);
    ExitCode::from(3)
}

pub(crate) fn text(status: &StatusDoc) -> String {
    let mut text = String::new();
    if status.groups.is_empty() {
        text.push_str("no groups\n");
    }
    let mut groups: Vec<&GroupDoc> = status.groups.iter().collect();
    // Worst first: the eye lands on the top line.
    groups.sort_by_key(|group| core::cmp::Reverse(group.health));
    let rows: Vec<Vec<String>> = groups.iter().map(|group| line(group)).collect();
    for (row, group) in table(&rows).lines().zip(groups) {
        let _ = writeln!(text, "{row}");
        for one in running(group) {
            let _ = writeln!(text, "  {one}");
        }
    }
    for problem in &status.problems {
        text.push('\n');
        text.push_str(&self::problem(problem, status.daemon.now_unix_s));
    }
    if status.problems.is_empty() && status.health != Health::Ok {
        let _ = writeln!(text, "\nHEALTH  {}", word(&status.health).to_uppercase());
    }
    if status.groups.is_empty() && status.problems.is_empty() {
        text.push_str("\nNEXT    warpraid drive list\n");
    }
    text
}

/// The one line of a group.
fn line(group: &GroupDoc) -> Vec<String> {
    let all = group.members.len();
    let in_sync = group.members.iter().filter(|member| member.state == MemberState::InSync).count();
    let drives = if in_sync == all {
        count_of(&group.members, "drive")
    } else {
        format!("{in_sync} of {all} drives in sync")
    };
    let losses = match (group.state, group.tolerates) {
        (GroupState::Offline, _) => "no service".to_owned(),
        (GroupState::Stopped, _) => String::new(),
        (GroupState::Healthy, n) => format!("can lose {n}"),
        (_, n) => format!("can lose {n} more"),
    };
    vec![
        group.name.clone(),
        level(group.level),
        word(&group.state),
        drives,
        losses,
        format!("{}, {} free", human(group.capacity_bytes), human(group.free_bytes)),
        count_of(&group.disks, "disk"),
    ]
}

/// Whatever runs on a group, a line each; a rebuild listed with the group and with its member counts once.
pub(crate) fn running(group: &GroupDoc) -> Vec<String> {
    let members = group.members.iter().filter_map(|member| member.progress.as_ref());
    let whole = group.progress.iter().filter(|one| {
        !group
            .members
            .iter()
            .any(|m| m.progress.as_ref().is_some_and(|p| p.slot == one.slot && p.operation == one.operation))
    });
    members.chain(whole).map(progress).collect()
}

/// HEALTH, WHY, RISK, NEXT, CODE.
pub(crate) fn problem(problem: &ProblemDoc, now_unix_s: u64) -> String {
    let health = word(&problem.health).to_uppercase();
    let mut text = match &problem.group {
        Some(group) => format!("HEALTH  {health}: group {group}\n"),
        None => format!("HEALTH  {health}\n"),
    };
    let _ = writeln!(text, "WHY     {}", problem.why);
    let serial = problem.serial.as_ref().map(|serial| format!("serial {serial}"));
    let since = problem
        .since_unix_s
        .map(|since| format!("since {}, {} ago", moment(since), span(now_unix_s.saturating_sub(since))));
    let more: Vec<String> = serial.into_iter().chain(since).collect();
    if !more.is_empty() {
        let _ = writeln!(text, "        {}", more.join(", "));
    }
    let _ = writeln!(text, "RISK    {}\nNEXT    {}\nCODE    {}", problem.risk, problem.next, problem.code);
    text
}
