//! `warpraid demo`: the whole thing on six files, in about a minute, without root.
//!
//! A RAID 6 group, two disks over NBD, stamped writes, two drives failed under load and destroyed, everything read back,
//! two spares rebuilt under load, parity recomputed from the drives by code that shares nothing with the engine, then two
//! *other* drives failed, so that what was rebuilt has to carry. Every step is a verb of this same binary, printed as it
//! would be typed. The daemon is a child process; it and the folder are gone when the demo ends, also on Ctrl-C.

mod daemon;
mod report;
mod story;

use std::path::PathBuf;

use clap::Args;

use report::Report;
use server::control::model::DemoDoc;
use server::control::{ApiError, ErrorCode};

use crate::output::{Ended, Output};

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Leave it running and print how to connect
    #[arg(long)]
    pub(crate) keep: bool,
    /// Folder to make the demo's own folder in [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Runs the demo. What it does is told on stdout, or on stderr where stdout is for the one envelope.
pub(crate) fn run(args: &DemoArgs, output: &Output) -> Ended {
    let mut report = Report::new(output.is_json());
    match story::tell(args, &mut report, output) {
        Ok(done) => {
            // The story has told it all to people.
            output.local(done.into(), |_: &DemoDoc| String::new())
        }
        Err(failure) => {
            report.failed();
            Err(ApiError::new(ErrorCode::DemoFailed, format!("warpraid demo failed: {failure}")).into())
        }
    }
}
