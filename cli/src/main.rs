//! The one binary: client verbs, `serve`, `demo` and `bench`.
//!
//! Results go to stdout, everything else to stderr. With `-o json` every verb, and every error, prints one envelope; the
//! human view is rendered from the same document. Exit codes: `server::control::Exit`, and `health` has its own.

mod args;
mod bench;
mod client;
mod complete;
mod confirm;
mod demo;
mod disk;
mod drive;
mod events;
mod explain;
mod fault;
mod group;
mod group_interop;
mod group_scrub;
mod group_set;
mod history;
mod layout;
mod man;
mod output;
mod render;
mod spare;
mod status;
mod system;
mod units;
mod upgrade;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use server::control::{ApiError, ErrorCode};

use crate::args::{Cli, Command};
use crate::client::Client;
use crate::output::{Ended, Format, Output};

fn main() -> ExitCode {
    complete::answer_shell();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = Output::new(cli.output);
    if let Err(error) = system::start_log(cli.log.as_deref(), matches!(cli.command, Command::Serve(_))) {
        return output.failed(error);
    }
    run(&cli, &output).unwrap_or_else(|error| output.failed(error))
}

fn run(cli: &Cli, output: &Output) -> Ended {
    match &cli.command {
        Command::Serve(args) => system::serve(args, cli.socket.clone(), output),
        Command::Examine(args) => system::examine(args, output),
        Command::Explain { code } => explain::run(code.as_deref(), output),
        Command::Bench(verb) => bench::run(verb, cli.socket.clone(), output),
        Command::Demo(args) => demo::run(args, output),
        Command::Completions { shell } => output.text(&complete::script(&shell.to_string())?),
        Command::Man(args) => man::run(args, output),
        command => {
            let client = Client::new(cli.socket.clone())?;
            match command {
                Command::Drive(verb) => drive::run(verb, &client, output),
                Command::Spare(verb) => spare::run(verb, &client, output),
                Command::Fault(verb) => fault::run(verb, &client, output),
                Command::Upgrade(args) => upgrade::run(args, &client, output),
                Command::Group(verb) => group::run(verb, &client, output),
                Command::Layout(verb) => layout::run(verb, &client, output),
                Command::Disk(verb) => disk::run(verb, &client, output),
                Command::Health => status::health(&client, output),
                Command::Events(args) => events::run(args, &client, output),
                Command::History(args) => history::run(args, &client, output),
                Command::Alert(verb) => events::alert(verb, &client, output),
                Command::Status { watch: Some(period) } => watch::run(period, &client, output),
                _ => status::status(&client, output),
            }
        }
    }
}

/// Help and version are results; anything else clap says is a usage error, in an envelope if JSON was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return Output::new(Format::Human).text(&error.render().to_string()).unwrap_or(ExitCode::FAILURE);
    }
    let text = error.render().to_string();
    if wants_json(std::env::args().skip(1)) {
        let text = text.trim_end();
        let message = text.strip_prefix("error: ").unwrap_or(text);
        let error = ApiError::new(ErrorCode::UsageInvalid, message).hint("warpraid help");
        return Output::new(Format::Json).failed(error);
    }
    eprint!("{text}");
    ExitCode::from(ErrorCode::UsageInvalid.exit().code())
}

/// Whether `-o json` is among arguments that could not be parsed.
fn wants_json(args: impl Iterator<Item = String>) -> bool {
    let mut is_value = false;
    for arg in args.take_while(|arg| arg != "--") {
        if is_value && arg == "json" {
            return true;
        }
        is_value = matches!(arg.as_str(), "-o" | "--output");
        if matches!(arg.as_str(), "-ojson" | "-o=json" | "--output=json") {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_recognised_where_parsing_failed() {
        let wants = |text: &str| wants_json(text.split(' ').map(str::to_owned));
        assert!(
            wants("group list -o json")
                && wants("-ojson bad")
                && wants("x --output=json")
                && wants("-o=json")
        );
        assert!(wants("--output json bad"));
        assert!(!wants("group show json") && !wants("-o human json") && !wants("drive show -- -o json"));
    }
}
