//! Completion of names as they are now: drives, groups and disks are asked of the daemon while the shell waits.
//!
//! The shell runs this same binary with `WARPRAID_COMPLETE` set. Which argument is which name is told by the argument's
//! own id, so a new verb completes without being listed here. A daemon that does not answer means no names, soon:
//! somebody has pressed a key and waits.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Command, CommandFactory};
use clap_complete::engine::ValueCompleter as _;
use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompleteEnv, CompletionCandidate, PathCompleter};
use serde_json::Value;
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode};

use crate::args::Cli;
use crate::client::Client;

const VARIABLE: &str = "WARPRAID_COMPLETE";
/// Longest wait for the daemon.
const WAIT: Duration = Duration::from_secs(2);

/// What an argument names.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Drive,
    Group,
    /// A disk that is there.
    Disk,
    /// `GROUP/`, of a disk that is to be.
    NewDisk,
}

/// Answers the shell and ends the process, if it is the shell that runs us.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(|| completing(Cli::command())).var(VARIABLE).complete();
}

/// The script that makes a shell ask us.
///
/// # Errors
/// `usage.invalid` for a shell that cannot ask.
pub(crate) fn script(shell: &str) -> Result<String, ApiError> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| {
        let known = shells.names().collect::<Vec<_>>().join(", ");
        ApiError::new(ErrorCode::UsageInvalid, format!("no completions for {shell}; there are: {known}"))
    })?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "warpraid", "warpraid", "warpraid", &mut script)
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the script: {error}")))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// The command line with a completer on every argument that is a name.
fn completing(command: Command) -> Command {
    let is_create = command.get_name() == "create";
    command
        .mut_args(|arg| {
            let kind = match arg.get_id().as_str() {
                "drive" | "drives" | "new_drive" | "old" | "keep" => Kind::Drive,
                "group" => Kind::Group,
                "disk" if is_create => Kind::NewDisk,
                "disk" => Kind::Disk,
                _ => return arg,
            };
            arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(kind, typed)))
        })
        .mut_subcommands(completing)
}

fn candidates(kind: Kind, typed: &OsStr) -> Vec<CompletionCandidate> {
    let start = typed.to_string_lossy().into_owned();
    let names = names(kind).into_iter().filter(|name| name.starts_with(&start));
    let mut found: Vec<CompletionCandidate> = names.map(CompletionCandidate::new).collect();
    if matches!(kind, Kind::Drive) {
        // A drive may also be one that the daemon does not know yet.
        found.extend(PathCompleter::any().complete(typed));
    }
    found
}

/// The names the daemon knows; none if it does not answer in time.
fn names(kind: Kind) -> Vec<String> {
    let (tell, told) = mpsc::channel();
    // Left behind when it takes too long; the process ends right after.
    std::thread::spawn(move || tell.send(asked(kind).unwrap_or_default()));
    told.recv_timeout(WAIT).unwrap_or_default()
}

fn asked(kind: Kind) -> Option<Vec<String>> {
    let client = Client::new(socket(std::env::args_os())).ok()?;
    let (op, list) = match kind {
        Kind::Drive => (Op::Drives, "drives"),
        Kind::Group | Kind::NewDisk => (Op::Groups, "groups"),
        Kind::Disk => (Op::Disks, "disks"),
    };
    let answer = client.look(op, &[], &()).ok()?;
    let text = |entry: &Value, field: &str| entry[field].as_str().map(str::to_owned);
    let entries = answer["data"][list].as_array()?;
    let names = entries.iter().filter_map(|entry| match kind {
        Kind::Drive => text(entry, "path"),
        Kind::Group => text(entry, "name"),
        Kind::NewDisk => Some(format!("{}/", text(entry, "name")?)),
        Kind::Disk => Some(format!("{}/{}", text(entry, "group")?, text(entry, "name")?)),
    });
    Some(names.collect())
}

/// The socket that is named in the words typed so far, or in the environment.
fn socket(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let words: Vec<OsString> = words.collect();
    let typed =
        words.iter().enumerate().find_map(|(i, word)| match word.to_str()?.strip_prefix("--socket")? {
            "" => words.get(i + 1).cloned(),
            rest => rest.strip_prefix('=').map(OsString::from),
        });
    typed.or_else(|| std::env::var_os("WARPRAID_SOCKET")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_taken_from_the_words_typed() {
        let of = |words: &str| socket(words.split(' ').map(OsString::from));
        assert_eq!(of("warpraid --socket /a group show t"), Some(PathBuf::from("/a")));
        assert_eq!(of("warpraid group show --socket=/b t"), Some(PathBuf::from("/b")));
    }
}
