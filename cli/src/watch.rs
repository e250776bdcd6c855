//! `status --watch`: status again and again, over restarts of the daemon, until interrupted.

use std::time::Duration;

use serde_json::Value;
use server::control::Exit;
use server::control::model::StatusDoc;
use server::control::routes::Op;

use crate::client::Client;
use crate::output::{Ended, Output, decoded};
use crate::{status, units};

/// Cursor home, and everything after it cleared: no flicker, as the old text is overwritten first.
const HOME: &str = "\x1b[H";
const CLEAR_REST: &str = "\x1b[J";
const CLEAR_LINE: &str = "\x1b[K";

pub(crate) fn run(period: &str, client: &Client, output: &Output) -> Ended {
    let period = units::time(period, "period of --watch")?;
    let mut was_there = false;
    loop {
        let text = match client.look(Op::Status, &[], &()) {
            Ok(answer) => {
                was_there = true;
                let document: StatusDoc = decoded(&answer)?;
                (answer, status::text(&document))
            }
            Err(failure) if failure.exit == Exit::Unreachable && was_there => {
                let text = format!("HEALTH  UNKNOWN\nWHY     {}\nNEXT    warpraid serve\n", failure.message);
                (failure.envelope(), text)
            }
            Err(failure) => return Err(failure),
        };
        if !show(&text.0, &text.1, output)? {
            return Ok(std::process::ExitCode::SUCCESS);
        }
        std::thread::sleep(period.max(Duration::from_millis(100)));
    }
}

fn show(answer: &Value, text: &str, output: &Output) -> Result<bool, crate::output::Failure> {
    let is_screen = output.redraws();
    output.streamed(|is_json| match (is_json, is_screen) {
        (true, _) => format!("{answer}\n"),
        (false, true) => {
            format!("{HOME}{}{CLEAR_REST}", text.replace('\n', &format!("{CLEAR_LINE}\n")))
        }
        (false, false) => format!("{text}\n"),
    })
}
