//! `warpraid demo`: the whole thing on six files.

use std::process::ExitCode;

use clap::Args;

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Leave it running and print how to connect
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> ExitCode {
    eprintln!("demo (keep: {}): built by the branch that owns this file", args.keep);
    ExitCode::FAILURE
}
