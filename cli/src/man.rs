//! Manual pages, made from the same definitions as `--help` (`args.rs`), so that the two cannot differ.
//!
//! `warpraid man VERB` prints one page as roff, `warpraid man --dir DIR` writes one file a verb, named as git does it:
//! `warpraid-group-create.1`.

use std::path::Path;

use clap::CommandFactory;
use server::control::{ApiError, ErrorCode};

use crate::args::{Cli, ManArgs};
use crate::output::{Ended, Output};

/// The exit codes as a section of their own: what a script looks for in a manual page.
const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "Done as asked."),
    ("1", "Failed; the message says what."),
    ("2", "Usage: a name, size or option that cannot be; nothing was done."),
    ("3", "Refused for safety; the message says what would be lost and how to go on."),
    ("4", "Not found."),
    ("5", "The daemon cannot be reached."),
    ("6", "Not permitted."),
    ("7", "Busy: in use by someone; the message names the holder."),
];

/// What `warpraid health` answers instead.
const HEALTH_STATUS: &[(&str, &str)] =
    &[("0", "Ok."), ("1", "Warning."), ("2", "Critical."), ("3", "Unknown: the daemon cannot be asked.")];

/// Every command with a page: its words, and the command with its full name.
fn pages() -> Vec<(Vec<String>, clap::Command)> {
    let mut root = Cli::command();
    root.build();
    let mut pages = Vec::new();
    collect(&root, &mut Vec::new(), &mut pages);
    pages
}

fn collect(command: &clap::Command, words: &mut Vec<String>, pages: &mut Vec<(Vec<String>, clap::Command)>) {
    pages.push((words.clone(), command.clone()));
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set()) {
        words.push(verb.get_name().to_owned());
        collect(verb, words, pages);
        words.pop();
    }
}

fn page_name(words: &[String]) -> String {
    std::iter::once("warpraid").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join("-")
}

fn render(words: &[String], command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let mut roff = Vec::new();
    clap_mangen::Man::new(command.clone()).manual("warpraid manual").render(&mut roff)?;
    let codes = if words == ["health"] { HEALTH_STATUS } else { EXIT_STATUS };
    roff.extend_from_slice(b".SH \"EXIT STATUS\"\n");
    for (code, meaning) in codes {
        roff.extend_from_slice(format!(".TP\n\\fB{code}\\fR\n{meaning}\n").as_bytes());
    }
    roff.extend_from_slice(
        b".SH ENVIRONMENT\n.TP\n\\fBWARPRAID_SOCKET\\fR\nThe daemon's socket; --socket goes before it.\n",
    );
    Ok(roff)
}

fn failed(path: &Path, error: &std::io::Error) -> ApiError {
    let code = match error.kind() {
        std::io::ErrorKind::PermissionDenied => ErrorCode::NotPermitted,
        _ => ErrorCode::Io,
    };
    ApiError::new(code, format!("{}: {error}", path.display())).hint("give a folder that can be written to")
}

/// `warpraid man`.
pub(crate) fn run(args: &ManArgs, output: &Output) -> Ended {
    let pages = pages();
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).map_err(|error| failed(dir, &error))?;
        for (words, command) in &pages {
            let path = dir.join(format!("{}.1", page_name(words)));
            let roff = render(words, command).map_err(|error| failed(&path, &error))?;
            std::fs::write(&path, roff).map_err(|error| failed(&path, &error))?;
        }
        return output.text(&format!("{} manual pages in {}\n", pages.len(), dir.display()));
    }
    let Some((words, command)) = pages.iter().find(|(words, _)| *words == args.verb) else {
        let message = format!("there is no verb \"{}\"", args.verb.join(" "));
        return Err(ApiError::new(ErrorCode::UsageInvalid, message)
            .hint("warpraid help lists the verbs")
            .into());
    };
    let roff = render(words, command).map_err(|error| failed(Path::new("stdout"), &error))?;
    output.text(&String::from_utf8_lossy(&roff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_with_its_options_and_exit_codes() {
        let pages = pages();
        assert!(pages.len() > 30, "{}", pages.len());
        for (words, command) in &pages {
            let text = String::from_utf8(render(words, command).unwrap()).unwrap();
            assert!(text.contains(&page_name(words).replace('-', "\\-")), "{words:?}: {text}");
            assert!(text.contains("EXIT STATUS"), "{words:?}");
            for option in command.get_opts().filter(|option| !option.is_hide_set()) {
                let Some(long) = option.get_long() else { continue };
                let long = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(text.contains(&long), "{words:?} lacks {long}");
            }
        }
        let health = pages.iter().find(|(words, _)| *words == ["health"]).unwrap();
        let text = String::from_utf8(render(&health.0, &health.1).unwrap()).unwrap();
        assert!(text.contains("Critical") && !text.contains("Refused for safety"));
    }
}
