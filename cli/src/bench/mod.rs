//! `warpraid bench`: raw drives, scratch groups, disks and paths, parity; two records side by side.
//!
//! The load generator and the reports are those of the `benches` crate; here the command line becomes a load, drives are
//! taken or refused, and the record is printed. Needs no daemon, except to find out how a GROUP/DISK is reached.
//!
//! Exit code 1 although there is a result: a target failed, data came back wrong, or the run was stopped. `ok` in the envelope
//! is true then, for there is a record; its warnings say what happened.

pub(crate) mod args;
mod disk;
mod doc;
mod drives;
mod group;
mod load;
mod parity;
mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use benches::load::SessionError;
use benches::load::group::GroupError;
use benches::record::{Case, Record};
use benches::{compare, report};
use server::control::model::ActionDoc;
use server::control::{ApiError, ErrorCode, Exit, ProblemCode, Reply};

use self::args::{BenchVerb, CompareArgs, ReportArgs};
use self::doc::{BenchDoc, CompareDoc};
use crate::output::{Ended, Output};

pub(crate) fn run(verb: &BenchVerb, socket: Option<PathBuf>, output: &Output) -> Ended {
    match verb {
        BenchVerb::Drives(args) => drives::run(args, output),
        BenchVerb::Group(args) => group::run(args, output),
        BenchVerb::Disk(args) => disk::run(args, socket, output),
        BenchVerb::Parity(args) => parity::run(args, output),
        BenchVerb::Compare(args) => compared(args, output),
    }
}

fn session_error(error: &SessionError) -> ApiError {
    let code = match error {
        SessionError::TooSmall { .. } => ErrorCode::UsageInvalid,
        SessionError::Nbd { .. } => ErrorCode::Io,
        SessionError::Start(_) | SessionError::Died => ErrorCode::Internal,
    };
    let error = ApiError::new(code, error.to_string());
    if code == ErrorCode::UsageInvalid {
        error.hint("take fewer threads or smaller transfers")
    } else {
        error
    }
}

fn group_error(error: &GroupError) -> ApiError {
    match error {
        GroupError::Geometry(_) => ApiError::new(ErrorCode::GroupDrivesInvalid, error.to_string())
            .hint("RAID 5 takes 3 drives or more, RAID 6 takes 4, RAID 10 an even number from 4 on"),
        GroupError::Session(error) => session_error(error),
        GroupError::Sweep(_) => ApiError::new(ErrorCode::Io, error.to_string()),
    }
}

/// Writes the files that were asked for, prints the record, and ends as it deserves.
fn finish(cases: Vec<Case>, files: &ReportArgs, stopped: bool, output: &Output) -> Ended {
    finish_record(record_of(cases), files, stopped, output)
}

/// The record of this program's run.
fn record_of(cases: Vec<Case>) -> Record {
    Record::of_commit(format!("v{}", env!("CARGO_PKG_VERSION")), cases)
}

/// [`finish`] with a record that has more than cases.
fn finish_record(record: Record, files: &ReportArgs, stopped: bool, output: &Output) -> Ended {
    let warnings = warnings(&record, stopped);
    let write = |path: &Path, result: Result<(), String>| {
        result.map_err(|error| {
            ApiError::new(ErrorCode::Io, format!("{}: cannot be written: {error}", path.display()))
        })
    };
    if let Some(path) = &files.record {
        write(path, record.write(path).map_err(|error| error.to_string()))?;
    }
    if let Some(path) = &files.html {
        let page = report::html::page(&record);
        write(path, std::fs::write(path, page).map_err(|error| error.to_string()))?;
    }
    let is_well = warnings.is_empty();
    let mut reply = Reply::from(BenchDoc(record));
    for (code, message) in warnings {
        reply = reply.warn(code, message);
    }
    let printed = output.local(reply, |doc: &BenchDoc| report::text::record(&doc.0))?;
    Ok(if is_well { printed } else { ExitCode::from(Exit::Failed.code()) })
}

/// What the caller should know although there is a record.
fn warnings(record: &Record, stopped: bool) -> Vec<(ProblemCode, String)> {
    let mut all = Vec::new();
    if stopped {
        all.push((ProblemCode::BenchStopped, "stopped before its end: the record is incomplete".to_owned()));
    }
    for case in &record.cases {
        let Some(detail) = &case.detail else {
            if !case.verified {
                all.push((ProblemCode::BenchWrong, format!("{}: the result could not be verified", case.id)));
            }
            continue;
        };
        for target in &detail.targets {
            if let Some(error) = &target.first_error {
                let message =
                    format!("{}: {} failed {} times, first: {error}", case.id, target.name, target.errors);
                all.push((ProblemCode::BenchTargetFailed, message));
            }
            if target.wrong > 0 {
                let at = target.first_wrong_at_bytes.unwrap_or(0);
                let message = format!(
                    "{}: {} gave back wrong data in {} transfers, first at byte {at}",
                    case.id, target.name, target.wrong
                );
                all.push((ProblemCode::BenchWrong, message));
            }
        }
    }
    all
}

/// What would be done, for `--dry-run`.
fn planned(verb: &str, subject: &str, steps: Vec<String>, output: &Output) -> Ended {
    let doc = ActionDoc::new(verb, subject, true, steps);
    output.local(Reply::from(doc), |doc: &ActionDoc| crate::render::action(doc, ""))
}

fn compared(args: &CompareArgs, output: &Output) -> Ended {
    let read = |path: &Path| {
        Record::read(path).map_err(|error| {
            let missing = !path.exists();
            let code = if missing { ErrorCode::BenchRecordNotFound } else { ErrorCode::BenchRecordInvalid };
            ApiError::new(code, error.to_string())
                .hint("records are made by warpraid bench ... --record FILE")
        })
    };
    let comparison = compare::compare(&read(&args.a)?, &read(&args.b)?);
    output.local(Reply::from(CompareDoc(comparison)), |doc: &CompareDoc| compare::text(&doc.0))
}
