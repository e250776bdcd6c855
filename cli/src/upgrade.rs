//! `upgrade`: asks the daemon to become another program, waits until that one serves, and says how long I/O waited.

use std::path::Path;
use std::time::{Duration, Instant};

use server::control::model::{ActionDoc, StatusDoc, UpgradeDoc};
use server::control::request::Upgrade;
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode, Exit};

use crate::args::UpgradeArgs;
use crate::client::Client;
use crate::output::{Ended, Failure, Output, decoded};
use crate::render::action;
use crate::units;

/// How long the new program may take until it serves, unless told otherwise: members that hang are waited for.
const WAIT: Duration = Duration::from_secs(300);
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How long a daemon whose process has ended may take to be there again.
const GRACE: Duration = Duration::from_secs(15);

pub(crate) fn run(args: &UpgradeArgs, client: &Client, output: &Output) -> Ended {
    let wait = args.timeout.as_deref().map(|text| units::time(text, "wait")).transpose()?.unwrap_or(WAIT);
    let program = args.program.as_ref().map(|path| absolute(path)).transpose()?;
    let how = Upgrade { program, force: args.force, dry_run: args.dry_run };
    if args.dry_run {
        let answer = client.change(Op::Upgrade, &[], &how)?;
        return output.document(&answer, |done: &ActionDoc| action(done, ""));
    }
    let before: StatusDoc = decoded(&client.look(Op::Status, &[], &())?)?;
    let begun = client.change(Op::Upgrade, &[], &how)?;
    if output.is_human() {
        eprint!("{}", action(&decoded::<ActionDoc>(&begun)?, ""));
    }
    let known = before.daemon.upgraded.map(|upgrade| upgrade.id);
    let done = await_next(client, before.daemon.pid, known.as_deref(), wait)?;
    match &done.error {
        None => output.local(done.into(), |done: &UpgradeDoc| format!("{done}\n")),
        Some(_) => Err(ApiError::new(ErrorCode::UpgradeFailed, done.to_string())
            .hint("warpraid upgrade again, with a program that can be started")
            .into()),
    }
}

fn absolute(path: &Path) -> Result<String, ApiError> {
    let failed =
        |why: String| ApiError::new(ErrorCode::UpgradeProgram, format!("the path {}: {why}", path.display()));
    let path = std::path::absolute(path).map_err(|error| failed(error.to_string()))?;
    path.into_os_string().into_string().map_err(|_| failed("it is not UTF-8".into()))
}

/// Waits for a daemon that came from an upgrade which is not `known`. The process stays the same: should it end, whoever
/// watches over it (systemd) has [`GRACE`] to start another.
fn await_next(client: &Client, pid: u32, known: Option<&str>, wait: Duration) -> Result<UpgradeDoc, Failure> {
    let process = Path::new("/proc").join(pid.to_string());
    let is_seen = process.exists();
    let mut seen = Instant::now();
    let deadline = seen + wait;
    loop {
        match client.look(Op::Status, &[], &()) {
            Ok(answer) => {
                let status: StatusDoc = decoded(&answer)?;
                if let Some(done) = status.daemon.upgraded.filter(|done| Some(done.id.as_str()) != known) {
                    return Ok(done);
                }
                seen = Instant::now();
            }
            // It is on its way.
            Err(failure) if failure.exit == Exit::Unreachable => {}
            Err(failure) => return Err(failure),
        }
        // In another pid namespace it is never seen; then only the time counts.
        if !is_seen || process.exists() {
            seen = Instant::now();
        }
        let is_gone = seen.elapsed() >= GRACE;
        if is_gone || Instant::now() >= deadline {
            let why = if is_gone { "has ended" } else { "does not serve yet" };
            let message =
                format!("the new program (pid {pid}) {why}; I/O of block devices waits until one serves");
            return Err(ApiError::new(ErrorCode::UpgradeFailed, message)
                .hint("look at its log; to go on with another program: start it as the daemon was started")
                .into());
        }
        std::thread::sleep(LOOK_PERIOD);
    }
}
