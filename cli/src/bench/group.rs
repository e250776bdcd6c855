//! `bench group`: a scratch group in this process, through all its conditions.

use benches::load::group::{GroupError, Shape, measure};
use benches::load::steps::Load;
use benches::load::{BlockSize, Level, OpenDrive};
use benches::scratch::Condition;
use server::control::{ApiError, ErrorCode};

use super::args::{GroupArgs, Preset};
use super::drives::{blocks_fit, claimed, confirmed, destroys, no_drive_twice};
use super::load::{Usual, load};
use super::progress::Watched;
use super::{finish, group_error, planned};
use crate::output::{Ended, Output};
use crate::units::{self, human};

/// Chunk when nothing is said.
const CHUNK_BYTES: u32 = 64 * 1024;
/// Most memory for drives in memory, of what the machine has free.
const RAM_PERCENT_MAX: u64 = 80;

/// The drives of `COUNTxSIZE`: how many, and how large each is.
fn ram(text: &str) -> Result<(u64, u64), ApiError> {
    let wrong = || {
        ApiError::new(ErrorCode::UsageInvalid, format!("\"{text}\" is not a count and a size of drives"))
            .hint("write for example 8x256M")
    };
    let (count, size) = text.split_once(['x', 'X']).ok_or_else(wrong)?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let size = units::size(size, "drive size", ErrorCode::UsageInvalid)?;
    if !(1..=128).contains(&count) || size < 1 << 20 {
        return Err(wrong().hint("1 to 128 drives of at least 1M, for example 8x256M"));
    }
    let bytes = count.saturating_mul(size);
    let free = free_memory_bytes();
    if free.is_some_and(|free| bytes / 100 >= free / RAM_PERCENT_MAX) {
        let message = format!("{} of drives in memory are more than this machine has free", human(bytes));
        return Err(
            ApiError::new(ErrorCode::UsageInvalid, message).hint("take smaller drives: they are filled")
        );
    }
    Ok((count, size))
}

fn free_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The steps that tell most of a group, unless a preset or an option says otherwise.
fn group_load(args: &GroupArgs) -> Result<Load, ApiError> {
    let mut load = load(&args.load, Preset::Storagebench, Usual::Both, 1)?;
    if args.load.preset.is_none() {
        if args.load.block_size.is_none() && !args.load.random {
            let asked: Vec<_> = load.steps.iter().map(|step| step.op).collect();
            load.steps = benches::load::group::usual_steps(benches::detail::Form::Storagebench);
            load.steps.retain(|step| asked.contains(&step.op));
        }
        load.threads = args.load.threads.unwrap_or(4);
        load.queue_depth = args.load.queue_depth.unwrap_or(8);
    }
    if args.load.size.is_none() {
        load.size_bytes = None;
    }
    Ok(load)
}

fn shape_fits(shape: &Shape) -> Result<(), ApiError> {
    shape.group(&Condition::default(), 1).map(drop).map_err(|error| group_error(&GroupError::from(error)))
}

pub(super) fn run(args: &GroupArgs, output: &Output) -> Ended {
    let load = group_load(args)?;
    let level = Level::from(units::level(&args.level)?);
    let chunk_bytes = match &args.chunk {
        Some(_) if level == Level::Raid1 => {
            let message = "mirrors (RAID 1) have no chunk";
            return Err(ApiError::new(ErrorCode::GroupChunkInvalid, message)
                .hint("leave --chunk out")
                .into());
        }
        Some(text) => units::chunk(text)?,
        None => CHUNK_BYTES,
    };
    no_drive_twice(&args.drives)?;
    let drives: Vec<OpenDrive> = match &args.ram {
        Some(text) => {
            let (count, size) = ram(text)?;
            (0..count).map(|_| OpenDrive::ram(size, BlockSize::B4096)).collect()
        }
        None => {
            if !args.writes.dry_run {
                confirmed(&args.drives, args.writes, output)?;
            }
            claimed(&args.drives, &load)?
        }
    };
    let shape = Shape { level, chunk_bytes, drives };
    shape_fits(&shape)?;
    blocks_fit(&shape.drives, &load)?;
    if args.writes.dry_run {
        let mut steps = destroys(&args.drives);
        steps.push(format!(
            "measure RAID {} of {}: whole, degraded, rebuilding",
            level.number(),
            shape.drives.len()
        ));
        return planned("bench group", &format!("RAID {}", level.number()), steps, output);
    }
    let watched = Watched::start(output)?;
    let cases = measure(&shape, &load, watched.control());
    let stopped = watched.finish();
    finish(cases.map_err(|error| group_error(&error))?, &args.report, stopped, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_in_memory_are_counted_and_bounded() {
        assert_eq!(ram("8x256M").unwrap(), (8, 256 << 20));
        assert_eq!(ram("3X1M").unwrap(), (3, 1 << 20));
        for text in ["8", "x1M", "0x1M", "129x1M", "3x512K", "8x", "8x9999T", "-1x1M"] {
            assert_eq!(ram(text).unwrap_err().code, ErrorCode::UsageInvalid, "{text}");
        }
    }
}
