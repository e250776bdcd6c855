//! Asking before something is destroyed (CASES AD-06): at a terminal the thing's name is typed; without one `--yes`, and
//! for what exists `--expect-uuid`, must have been given.

use std::io::{BufRead, Write};

use server::control::routes::meant;
use server::control::{ApiError, ErrorCode};

use crate::args::Writes;
use crate::output::{Failure, Output};

/// Whether the terminal must be asked before this is sent; `Err` where it must but there is none.
pub(crate) fn must_ask(
    output: &Output,
    what: &str,
    writes: Writes,
    expect_uuid: Option<&Option<String>>,
) -> Result<bool, Failure> {
    match meant(what, writes.yes, expect_uuid, writes.dry_run) {
        Ok(()) => Ok(false),
        Err(_) if !writes.yes && output.is_interactive() => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Has `name` typed at the terminal.
pub(crate) fn typed(what: &str, name: &str) -> Result<(), Failure> {
    eprint!("{what}\nType {name} to go on: ");
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.is_ok() && line.trim_end_matches(['\n', '\r']) == name {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::ConfirmMismatch, format!("{name} was not typed: nothing was done")).into())
}
