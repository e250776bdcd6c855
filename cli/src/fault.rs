//! `fault inject|list|clear`.

use server::control::model::{ActionDoc, FaultDoc, FaultListDoc, FaultWhat, RangeDoc};
use server::control::request::{FaultClear, FaultInject};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode};

use crate::args::{FaultArg, FaultVerb, InjectArgs};
use crate::client::Client;
use crate::output::{Ended, Output};
use crate::render::{action, header, table, word};
use crate::units::{self, human, moment};

pub(crate) fn run(verb: &FaultVerb, client: &Client, output: &Output) -> Ended {
    match verb {
        FaultVerb::List => output.document(&client.look(Op::Faults, &[], &())?, list),
        FaultVerb::Inject(args) => {
            let answer = client.change(Op::FaultInject, &[], &inject(args)?)?;
            output.document(&answer, |done: &ActionDoc| action(done, ""))
        }
        FaultVerb::Clear { which, all, writes } => {
            let id = which.as_deref().and_then(|which| which.parse::<u64>().ok());
            let drive = which.as_deref().filter(|_| id.is_none()).map(drive).transpose()?;
            let how = FaultClear { id, drive, all: *all, dry_run: writes.dry_run };
            let answer = client.change(Op::FaultClear, &[], &how)?;
            output.document(&answer, |done: &ActionDoc| action(done, ""))
        }
    }
}

/// A drive, or the member in a slot of a group.
fn drive(text: &str) -> Result<String, ApiError> {
    match text.split_once(':') {
        Some((group, slot)) if !group.contains('/') && slot.parse::<u8>().is_ok() => Ok(text.to_owned()),
        _ => units::drive(text),
    }
}

fn inject(args: &InjectArgs) -> Result<FaultInject, ApiError> {
    let delay_ns = args.delay_ms.map(|ms| {
        let too_long = || ApiError::new(ErrorCode::FaultInvalid, "--delay-ms is longer than any time-out");
        ms.checked_mul(1_000_000).ok_or_else(too_long)
    });
    Ok(FaultInject {
        drive: drive(&args.drive)?,
        what: match args.what {
            FaultArg::Fail => FaultWhat::Fail,
            FaultArg::Hang => FaultWhat::Hang,
            FaultArg::Slow => FaultWhat::Slow,
            FaultArg::Bad => FaultWhat::Bad,
            FaultArg::Flip => FaultWhat::Flip,
            FaultArg::LostWrite => FaultWhat::LostWrite,
        },
        delay_ns: delay_ns.transpose()?,
        factor: args.factor,
        range: args.range.as_deref().map(range).transpose()?,
        count: args.count,
        seed: args.seed,
        for_s: args
            .lasts
            .as_deref()
            .map(|text| units::time(text, "length of the fault"))
            .transpose()?
            .map(|time| time.as_secs().max(1)),
        yes: args.writes.yes,
        dry_run: args.writes.dry_run,
    })
}

/// `OFFSET+LEN`, both sizes; the offset may be 0.
fn range(text: &str) -> Result<RangeDoc, ApiError> {
    let Some((offset, len)) = text.split_once('+') else {
        let message = format!("the range \"{}\" is not OFFSET+LEN", server::control::names::shown(text));
        return Err(ApiError::new(ErrorCode::FaultInvalid, message).hint("for example: --range 64M+4K"));
    };
    let offset_bytes = match offset {
        "0" => 0,
        _ => units::size(offset, "offset of the range", ErrorCode::FaultInvalid)?,
    };
    let len_bytes = units::size(len, "length of the range", ErrorCode::FaultInvalid)?;
    Ok(RangeDoc { offset_bytes, len_bytes })
}

fn details(fault: &FaultDoc) -> String {
    let mut text = Vec::new();
    if fault.delay_ns > 0 {
        text.push(format!("{} ms more", fault.delay_ns / 1_000_000));
    }
    if fault.factor > 1 {
        text.push(format!("{} times as long", fault.factor));
    }
    for range in fault.ranges.iter().flatten().take(4) {
        text.push(format!("{} at byte {}", human(range.len_bytes), range.offset_bytes));
    }
    if fault.ranges.as_ref().is_some_and(|ranges| ranges.len() > 4) {
        text.push("...".into());
    }
    if let Some(until) = fault.until_unix_s {
        text.push(format!("until {}", moment(until)));
    }
    text.join(", ")
}

fn list(faults: &FaultListDoc) -> String {
    if faults.faults.is_empty() {
        return "no faults\n".into();
    }
    let mut rows = vec![header(&["ID", "DRIVE", "MEMBER", "FAULT", "STATE", "HITS", "WHAT"])];
    rows.extend(faults.faults.iter().map(|fault| {
        let member = match (&fault.group, fault.slot) {
            (Some(group), Some(slot)) => format!("{group}:{slot}"),
            _ => "-".into(),
        };
        vec![
            fault.id.to_string(),
            fault.drive.clone(),
            member,
            word(&fault.what),
            if fault.active { "active" } else { "over" }.into(),
            fault.hits.to_string(),
            details(fault),
        ]
    }));
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_an_offset_and_a_length() {
        assert_eq!(range("64M+4K").unwrap(), RangeDoc { offset_bytes: 64 << 20, len_bytes: 4096 });
        assert_eq!(range("0+512").unwrap(), RangeDoc { offset_bytes: 0, len_bytes: 512 });
        for wrong in ["64M", "+4K", "4K+", "a+b", "4K-8K", "1+0"] {
            assert_eq!(range(wrong).unwrap_err().code, ErrorCode::FaultInvalid, "{wrong}");
        }
    }

    #[test]
    fn a_member_may_be_named_by_its_slot() {
        assert_eq!(drive("tank:2").unwrap(), "tank:2");
        assert_eq!(drive("/dev/x:2").unwrap(), "/dev/x:2");
    }
}
