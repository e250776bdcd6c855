//! `events` and `alert`: what happened, as it happens; and a test of who is told.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use server::control::http::envelope;
use server::control::model::{Document, EventDoc, EventListDoc};
use server::control::request::{AlertTest, EventsOf};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode, Exit, names};

use crate::args::{AlertVerb, EventsArgs};
use crate::client::Client;
use crate::output::{Ended, Failure, Output, decoded};
use crate::render::{action, count, table, word};
use crate::units::moment;

/// How long the daemon may hold a request that waits for news.
const WAIT_S: u32 = 30;
/// How often a daemon that does not answer is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// `N`: after this number; a time such as `2h`: this long ago; a date: from then on.
fn since(text: &str, of: &mut EventsOf) -> Result<(), ApiError> {
    if let Ok(after) = text.parse::<u64>() {
        of.after = Some(after);
        return Ok(());
    }
    let ago = humantime::parse_duration(text).ok().and_then(|ago| SystemTime::now().checked_sub(ago));
    let date = || {
        let day = format!("{text} 00:00:00");
        humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339_weak(&day)).ok()
    };
    let Some(time) = ago.or_else(date) else {
        let message = format!("\"{}\" is neither a number of an event nor a time", names::shown(text));
        return Err(ApiError::new(ErrorCode::UsageInvalid, message).hint(
            "--since 1234 (after that event), --since 2h (ago), --since \"2026-01-31 13:00:00\" (UTC)",
        ));
    };
    of.since_unix_s = Some(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
    Ok(())
}

pub(crate) fn run(args: &EventsArgs, client: &Client, output: &Output) -> Ended {
    let mut of = EventsOf { group: args.group.clone(), code: args.code.clone(), ..EventsOf::default() };
    if let Some(text) = &args.since {
        since(text, &mut of)?;
    }
    if args.follow {
        return follow(of, args.limit, client, output);
    }
    of.limit = args.limit;
    let is_forward = of.after.is_some();
    output.document(&client.look(Op::Events, &[], &of)?, |doc| list(doc, is_forward))
}

/// The events, with what was left out: at the end where they were asked for from a number on, else before the first.
fn list(doc: &EventListDoc, is_forward: bool) -> String {
    let (Some(first), Some(last)) = (doc.events.first(), doc.events.last()) else {
        return "no events\n".to_owned();
    };
    let text = lines(&doc.events);
    if !doc.more {
        return text;
    }
    if is_forward {
        return format!("{text}{} left out: --since {}\n", count(doc.left_out, "newer event"), last.id);
    }
    let older = count(doc.left_out, "older event");
    format!(
        "{older} before {} left out: --limit N (at most 1000), or --since 0 from the beginning\n{text}",
        first.id
    )
}

fn lines(events: &[EventDoc]) -> String {
    let row = |event: &EventDoc| {
        let severity = word(&event.severity).to_uppercase();
        vec![
            event.id.to_string(),
            moment(event.at_unix_s),
            severity,
            event.code.to_string(),
            event.message.clone(),
        ]
    };
    table(&events.iter().map(row).collect::<Vec<_>>())
}

/// Prints events as they come, over restarts of the daemon, until interrupted or after `limit` events. With `-o json` one
/// envelope a line.
fn follow(mut of: EventsOf, limit: Option<u32>, client: &Client, output: &Output) -> Ended {
    let mut left = limit;
    if of.since_unix_s.is_some() {
        // From then on, oldest first.
        of.after = Some(0);
    } else if of.after.is_none() {
        let newest: EventListDoc = decoded(&client.look(Op::Events, &[], &of)?)?;
        of.after = Some(newest.newest_id);
    }
    let mut was_there = of.after.is_some();
    loop {
        of.wait_s = Some(WAIT_S);
        of.limit = left.map(|left| left.min(1000));
        let list: EventListDoc = match client.look(Op::Events, &[], &of) {
            Ok(answer) => decoded(&answer)?,
            Err(failure) if failure.exit == Exit::Unreachable && was_there => {
                std::thread::sleep(RETRY);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        was_there = true;
        let Some(last) = list.events.last().map(|event| event.id) else {
            // A state folder that was lost begins anew.
            of.after = of.after.map(|after| after.min(list.newest_id));
            continue;
        };
        (of.after, of.since_unix_s) = (Some(last), None);
        if !output.streamed(|is_json| if is_json { json_lines(&list.events) } else { lines(&list.events) })? {
            return Ok(std::process::ExitCode::SUCCESS);
        }
        left = left.map(|left| left.saturating_sub(u32::try_from(list.events.len()).unwrap_or(u32::MAX)));
        if left == Some(0) {
            return Ok(std::process::ExitCode::SUCCESS);
        }
    }
}

fn json_lines(events: &[EventDoc]) -> String {
    let line = |event: &EventDoc| {
        let text = serde_json::to_string(&envelope(EventDoc::NAME, event, Vec::new()));
        text.unwrap_or_default() + "\n"
    };
    events.iter().map(line).collect()
}

pub(crate) fn alert(
    verb: &AlertVerb,
    client: &Client,
    output: &Output,
) -> Result<std::process::ExitCode, Failure> {
    let AlertVerb::Test { dry_run } = verb;
    output.document(&client.change(Op::AlertTest, &[], &AlertTest { dry_run: *dry_run })?, |done| {
        action(done, "")
    })
}
