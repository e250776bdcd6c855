//! `layout plan|apply`: a whole node from one file. The file is compared with what the daemon says there is; what is missing
//! is made with the same verbs that a person would type, in order, and nothing is taken away.

mod file;
mod plan;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::Value;
use server::control::model::{
    DiskListDoc, DriveDoc, DriveListDoc, GroupDoc, GroupListDoc, LayoutDoc, LayoutStepDoc, LayoutStepState,
    PlanDoc, SpareListDoc,
};
use server::control::request::{DiskCreate, DisksOf, GroupCreate, GroupPlan};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode};

use self::file::{Drives, Layout};
use self::plan::{Node, Plan, Step, compare};
use crate::args::Writes;
use crate::client::Client;
use crate::confirm;
use crate::output::{Ended, Failure, Output, decoded};
use crate::render::{count_of, indented};

/// Verbs of a layout.
#[derive(Subcommand, Debug)]
pub(crate) enum LayoutVerb {
    /// What would change to make this node as the file says; writes nothing
    #[command(after_help = "Example:\n  warpraid layout plan storage-node.toml")]
    Plan {
        /// The layout: TOML, see docs/layout.md
        file: PathBuf,
    },
    /// Make this node as the file says: groups, spares, disks, how they are served; never takes anything away
    #[command(
        after_help = "Example:\n  warpraid layout apply storage-node.toml --dry-run\n  warpraid layout apply storage-node.toml --yes"
    )]
    Apply {
        /// The layout: TOML, see docs/layout.md
        file: PathBuf,
        #[command(flatten)]
        writes: Writes,
    },
}

pub(crate) fn run(verb: &LayoutVerb, client: &Client, output: &Output) -> Ended {
    match verb {
        LayoutVerb::Plan { file } => {
            let (_, doc) = planned(file, client)?;
            output.local(doc.into(), shown)
        }
        LayoutVerb::Apply { file, writes } => apply(file, *writes, client, output),
    }
}

fn planned(path: &Path, client: &Client) -> Result<(Plan, LayoutDoc), Failure> {
    let layout = file::read(path)?;
    let node = look(&layout, client)?;
    let plan = compare(&layout, &node, |what| ask(what, client));
    if let Some(error) = refusal(path, &plan.problems) {
        return Err(error.into());
    }
    let steps = plan.steps.iter().map(|(step, what)| {
        let (verb, subject) = step.names();
        LayoutStepDoc { verb: verb.into(), subject, what: what.clone(), state: LayoutStepState::Planned }
    });
    let doc = LayoutDoc {
        file: path.display().to_string(),
        dry_run: true,
        steps: steps.collect(),
        notes: plan.notes.clone(),
        disks: plan.disks.clone(),
    };
    Ok((plan, doc))
}

/// All that is wrong in one error: with the code of all of it, if that is one.
fn refusal(path: &Path, problems: &[ApiError]) -> Option<ApiError> {
    let first = problems.first()?;
    let is_same = problems.iter().all(|problem| problem.code == first.code);
    let code = if is_same { first.code } else { ErrorCode::LayoutRefused };
    let list: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    let message = format!("{}: nothing was changed; {}", path.display(), list.join("; "));
    let mut hints: Vec<&str> = problems.iter().filter_map(|problem| problem.hint.as_deref()).collect();
    hints.dedup();
    Some(ApiError::new(code, message).hint(hints.join("; ")))
}

/// The error of a failure of the daemon, for an error of ours that contains it.
fn error_of(failure: &Failure) -> ApiError {
    let code = ErrorCode::parse(&failure.code).unwrap_or(ErrorCode::Internal);
    let error = ApiError::new(code, failure.message.clone());
    match &failure.hint {
        Some(hint) => error.hint(hint.clone()),
        None => error,
    }
}

fn ask(what: &GroupCreate, client: &Client) -> Result<PlanDoc, ApiError> {
    let shape = GroupPlan { level: what.level, chunk_bytes: what.chunk_bytes, drives: what.drives.clone() };
    let answer = client.change(Op::GroupPlan, &[], &shape).map_err(|failure| error_of(&failure))?;
    decoded(&answer).map_err(|failure| error_of(&failure))
}

/// The node as it is, and each drive that the file names.
fn look(layout: &Layout, client: &Client) -> Result<Node, Failure> {
    let drives: DriveListDoc = decoded(&client.look(Op::Drives, &[], &())?)?;
    let groups: GroupListDoc = decoded(&client.look(Op::Groups, &[], &())?)?;
    let disks: DiskListDoc = decoded(&client.look(Op::Disks, &[], &DisksOf::default())?)?;
    let spares: SpareListDoc = decoded(&client.look(Op::Spares, &[], &())?)?;
    let mut node = Node {
        drives: drives.drives,
        groups: groups.groups,
        disks: disks.disks,
        spares: spares.spares,
        ..Node::default()
    };
    for group in &layout.groups {
        let named: &[String] = match &group.drives {
            Drives::Named(names) => names,
            Drives::Select(_) => &[],
        };
        for name in named.iter().chain(&group.spares) {
            let is_it = |drive: &&DriveDoc| drive.path == *name || drive.serial.as_deref() == Some(name);
            let drive = match node.drives.iter().find(is_it) {
                Some(drive) => Ok(drive.clone()),
                None => match client.look(Op::Drive, &[("drive", name)], &()) {
                    Ok(answer) => Ok(decoded(&answer)?),
                    Err(failure) if failure.code == ErrorCode::DaemonUnreachable.as_str() => {
                        return Err(failure);
                    }
                    Err(failure) => Err(error_of(&failure)),
                },
            };
            node.named.insert(name.clone(), drive);
        }
    }
    Ok(node)
}

fn apply(path: &Path, writes: Writes, client: &Client, output: &Output) -> Ended {
    let (plan, mut doc) = planned(path, client)?;
    if writes.dry_run {
        return output.local(doc.into(), shown);
    }
    let name = path.file_name().map_or_else(|| doc.file.clone(), |name| name.to_string_lossy().into_owned());
    if !plan.steps.is_empty() && confirm::must_ask(output, &format!("applying {name}"), writes, None)? {
        confirm::typed(&shown(&doc), &name)?;
    }
    for (i, (step, what)) in plan.steps.iter().enumerate() {
        if output.is_human() {
            eprintln!("{} of {}: {what}", i + 1, plan.steps.len());
        }
        if let Err(failure) = done(step, client) {
            return Err(stopped(path, &plan, i, &failure).into());
        }
        doc.steps[i].state = LayoutStepState::Done;
    }
    doc.dry_run = false;
    output.local(doc.into(), shown)
}

/// What was done, what failed, and what was not done.
fn stopped(path: &Path, plan: &Plan, at: usize, failure: &Failure) -> ApiError {
    let list = |steps: &[(Step, String)]| match steps {
        [] => "nothing".to_owned(),
        steps => steps.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>().join("; "),
    };
    let (done, rest) = plan.steps.split_at(at);
    let message = format!(
        "{}: stopped at step {} of {} ({}): {}\ndone: {}\nnot done: {}",
        path.display(),
        at + 1,
        plan.steps.len(),
        plan.steps[at].1,
        failure.message,
        list(done),
        list(&rest[1..])
    );
    let again = "see to it, then the same command goes on from there";
    let hint = failure.hint.as_ref().map_or_else(|| again.to_owned(), |hint| format!("{hint}; {again}"));
    let code = ErrorCode::parse(&failure.code).unwrap_or(ErrorCode::Internal);
    ApiError::new(code, message).hint(hint)
}

fn done(step: &Step, client: &Client) -> Result<Value, Failure> {
    match step {
        Step::CreateGroup(what) => client.change(Op::GroupCreate, &[], what),
        Step::AddSpare(what) => client.change(Op::SpareAdd, &[], what),
        Step::CreateDisk(what) => client.change(Op::DiskCreate, &[], what),
        Step::CreateRest { group, name } => {
            let now: GroupDoc = decoded(&client.look(Op::Group, &[("group", group)], &())?)?;
            let what = DiskCreate {
                group: group.clone(),
                name: name.clone(),
                size_bytes: now.free_bytes,
                dry_run: false,
            };
            client.change(Op::DiskCreate, &[], &what)
        }
        Step::ResizeDisk { group, name, how } => {
            client.change(Op::DiskResize, &[("group", group), ("disk", name)], how)
        }
        Step::Expose { group, name, how } => {
            client.change(Op::DiskExpose, &[("group", group), ("disk", name)], how)
        }
    }
}

/// What there is to do or was done, what was left alone, and the commands that use the disks.
fn shown(doc: &LayoutDoc) -> String {
    let mut text = match (&doc.steps[..], doc.dry_run) {
        ([], _) => format!("{}: no change, this node is as it says\n", doc.file),
        (steps, true) => format!("{}: {} (nothing was changed yet)\n", doc.file, count_of(steps, "change")),
        (steps, false) => format!("{}: {} made\n", doc.file, count_of(steps, "change")),
    };
    let steps: Vec<&str> = doc.steps.iter().map(|step| step.what.as_str()).collect();
    text.push_str(&indented(&steps.join("\n")));
    for note in &doc.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    let lines: Vec<&str> = doc.disks.iter().filter_map(|disk| disk.mkfs.as_deref()).collect();
    if !lines.is_empty() {
        text.push_str("\nfile systems, to be made by hand where there is none yet:\n");
        text.push_str(&indented(&lines.join("\n")));
    }
    let lines: Vec<&str> = doc.disks.iter().filter_map(|disk| disk.mount.as_deref()).collect();
    if !lines.is_empty() {
        text.push_str("\nmounts:\n");
        text.push_str(&indented(&lines.join("\n")));
    }
    text
}
