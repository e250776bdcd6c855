//! What depends on the host: default paths, the log, and the verbs that need no daemon (`serve`, `examine`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use server::control::model::ExamineDoc;
use server::control::{ApiError, ErrorCode, ServeOptions};

use crate::args::{ExamineArgs, ServeArgs};
use crate::output::{Ended, Failure, Output};
use crate::render::{fields, header, table, word};
use crate::units::{self, human, moment};

const SYSTEM_HOOKS: &str = "/etc/warpraid/hooks.d";
const SYSTEM_SOCKET: &str = "/run/warpraid/admin.sock";

/// The folder an XDG variable names, if it is set to an absolute path (others must be ignored).
fn xdg(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a daemon of this user listens.
fn own_socket() -> Option<PathBuf> {
    if is_root() {
        return Some(SYSTEM_SOCKET.into());
    }
    xdg("XDG_RUNTIME_DIR").map(|folder| folder.join("warpraid/admin.sock"))
}

/// Where a client looks: the user's own daemon if it is there, else the system's.
pub(crate) fn client_socket() -> PathBuf {
    own_socket().filter(|path| path.exists()).unwrap_or_else(|| SYSTEM_SOCKET.into())
}

fn state_dir() -> Option<PathBuf> {
    if is_root() {
        return Some("/var/lib/warpraid".into());
    }
    let home = || xdg("HOME").map(|home| home.join(".local/state"));
    xdg("XDG_STATE_HOME").or_else(home).map(|folder| folder.join("warpraid"))
}

/// Sends the log to stderr; `--log` before RUST_LOG before the default.
pub(crate) fn start_log(filter: Option<&str>, is_daemon: bool) -> Result<(), ApiError> {
    let from_env = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let default = if is_daemon { "info" } else { "warn" };
    let text = filter.or(from_env.as_deref()).unwrap_or(default);
    let filter = tracing_subscriber::EnvFilter::try_new(text).map_err(|error| {
        let message = format!("the log filter \"{}\": {error}", server::control::names::shown(text));
        ApiError::new(ErrorCode::UsageInvalid, message)
            .hint("write a level (error, warn, info, debug, trace) or TARGET=LEVEL")
    })?;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .init();
    Ok(())
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn serve(args: &ServeArgs, socket: Option<PathBuf>, output: &Output) -> Ended {
    let unset = |what: &str, option: &str| {
        let message = format!("there is no default for the {what} of a user without {option}");
        ApiError::new(ErrorCode::UsageInvalid, message)
    };
    let socket =
        socket.or_else(own_socket).ok_or_else(|| unset("socket", "XDG_RUNTIME_DIR").hint("--socket PATH"))?;
    let state = args
        .state_dir
        .clone()
        .or_else(state_dir)
        .ok_or_else(|| unset("state folder", "HOME").hint("--state-dir DIR"))?;
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| {
            ApiError::new(ErrorCode::UsageInvalid, format!("the path {}: {error}", path.display()))
        })
    };
    let mut options = ServeOptions::new(absolute(&state)?, absolute(&socket)?);
    options.lanes = args.lanes;
    options.memory_bytes = args
        .memory
        .as_deref()
        .map(|text| units::size(text, "memory", ErrorCode::UsageInvalid))
        .transpose()?;
    options.parity_kernel.clone_from(&args.parity_kernel);
    if let Some(text) = &args.drive_timeout {
        options.drive_timeout_ns = nanoseconds(units::time(text, "drive time-out")?);
    }
    options.drives = args.drives.iter().map(|path| absolute(path)).collect::<Result<_, _>>()?;
    options.assemble = !args.no_assemble;
    alerting(args, &mut options, absolute)?;
    options.allow_faults = args.allow_faults;
    options.error_budget = args.error_budget.unwrap_or(options.error_budget);
    if let Some(text) = &args.spare_wait {
        options.spare_wait_missing_ns = nanoseconds(units::time(text, "wait for a missing member")?);
    }
    if let Some(text) = &args.spare_wait_failed {
        options.spare_wait_failed_ns = nanoseconds(units::time(text, "wait after a failure")?);
    }
    if args.check {
        return output.text(&format!("warpraid {}\n", env!("CARGO_PKG_VERSION")));
    }
    server::daemon::serve(options)?;
    Ok(ExitCode::SUCCESS)
}

/// Options of who is told and who may look.
fn alerting(
    args: &ServeArgs,
    options: &mut ServeOptions,
    absolute: impl Fn(&Path) -> Result<PathBuf, ApiError>,
) -> Result<(), ApiError> {
    if let Some(folder) = &args.hooks_dir {
        options.hooks_dir = absolute(folder)?;
    } else if is_root() && args.state_dir.is_none() {
        options.hooks_dir = SYSTEM_HOOKS.into();
    }
    match args.remind.as_deref() {
        None => {}
        Some("never") => options.remind_every = None,
        Some(text) => options.remind_every = Some(units::time(text, "period of reminders")?),
    }
    if let Some(text) = &args.http {
        let address = text.parse().map_err(|_| {
            let message = format!("\"{}\" is no address and port", server::control::names::shown(text));
            ApiError::new(ErrorCode::UsageInvalid, message).hint("--http 127.0.0.1:9469")
        })?;
        options.http = Some(address);
    }
    options.http_public = args.http_public;
    Ok(())
}

pub(crate) fn examine(args: &ExamineArgs, output: &Output) -> Ended {
    server::control::names::drive_ref(&args.drive.to_string_lossy())?;
    let reply = server::daemon::examine(&args.drive).map_err(Failure::from)?;
    if args.udev {
        return output.text(&for_udev(&reply.data));
    }
    output.local(reply, examined)
}

/// What udev's database gets of a member that md must leave alone.
fn for_udev(doc: &ExamineDoc) -> String {
    match &doc.superblock {
        Some(sb) if sb.valid && sb.claimed => {
            let slot = sb.slot.map(|slot| format!("WARPRAID_SLOT={slot}\n")).unwrap_or_default();
            // A name is from the drive: what is no name of ours is not put into the database.
            let is_name = server::control::names::group_name(&sb.name).is_ok();
            let name = if is_name { format!("WARPRAID_GROUP={}\n", sb.name) } else { String::new() };
            format!("WARPRAID_MEMBER=1\nWARPRAID_GROUP_UUID={}\n{name}{slot}", sb.group_uuid)
        }
        _ => String::new(),
    }
}

fn examined(doc: &ExamineDoc) -> String {
    let mut text = crate::drive::show(&doc.drive);
    if let Some(sb) = &doc.superblock {
        let slot = sb.slot.map_or("none (spare or faulty)".into(), |slot| slot.to_string());
        text.push_str("\nmd superblock\n");
        text.push_str(&fields(&[
            ("  valid", if sb.valid { "yes".into() } else { "NO".into() }),
            ("  owner", if sb.claimed { "warpraid (claimed)".into() } else { "md".into() }),
            ("  group", format!("{} {}", sb.name, sb.group_uuid)),
            ("  level", format!("RAID {}, layout {}", sb.level, sb.layout)),
            ("  chunk", human(u64::from(sb.chunk_bytes))),
            ("  slot", format!("{slot} of {}", sb.members)),
            ("  device uuid", sb.device_uuid.clone()),
            ("  events", sb.events.to_string()),
            ("  updated", moment(sb.updated_unix_s)),
            ("  data", format!("{} from byte {}", human(sb.data_bytes), sb.data_offset_bytes)),
            ("  not in sync from", sb.resync_offset_bytes.map(|at| format!("byte {at}")).unwrap_or_default()),
            ("  rebuilt up to", sb.recovery_offset_bytes.map(|at| format!("byte {at}")).unwrap_or_default()),
            ("  bad blocks", sb.bad_blocks.to_string()),
            ("  intents", sb.intents_dirty.map_or("no bitmap".into(), |bits| format!("{bits} dirty"))),
        ]));
    }
    if let Some(ext) = &doc.extension {
        let yes = |is: bool| if is { "yes".to_owned() } else { "NO".to_owned() };
        text.push_str("\nwarpraid extension\n");
        text.push_str(&fields(&[
            ("  copies valid", format!("A {}, B {}", yes(ext.copies_valid[0]), yes(ext.copies_valid[1]))),
            ("  anchor valid", yes(ext.anchor_valid)),
            ("  epoch", format!("{} {}", ext.epoch.counter, ext.epoch.id)),
            ("  stopped cleanly", yes(ext.clean)),
            ("  forced", if ext.forced { "yes".into() } else { String::new() }),
            ("  deleted", if ext.deleted { "yes: undelete brings it back".into() } else { String::new() }),
        ]));
        let mut rows = vec![header(&["  SLOT", "STATE", "LAST IN SYNC", "DEVICE UUID"])];
        rows.extend(ext.members.iter().map(|member| {
            vec![
                format!("  {}", member.slot),
                word(&member.state),
                format!("epoch {}", member.last_in_sync),
                member.device_uuid.clone(),
            ]
        }));
        text.push_str(&table(&rows));
    }
    if !doc.findings.is_empty() {
        text.push('\n');
        text.push_str(&doc.findings.iter().fold(String::new(), |out, finding| out + finding + "\n"));
    }
    text
}
