//! `bench drives`: raw drives, straight over the reactor.

use std::path::{Path, PathBuf};

use benches::load::steps::{Load, measure};
use benches::load::{BlockSize, OpenDrive, Target};
use server::control::{ApiError, ErrorCode};

use super::args::{DrivesArgs, Preset};
use super::load::{Usual, load};
use super::progress::Watched;
use super::{finish, planned, session_error};
use crate::confirm;
use crate::output::{Ended, Failure, Output};
use crate::units::human;

/// The block size a file is opened with: the largest that all transfers are multiples of.
pub(super) fn block_size(load: &Load) -> Option<BlockSize> {
    let fits = load.steps.iter().all(|step| step.block_bytes.is_multiple_of(4096));
    Some(if fits { BlockSize::B4096 } else { BlockSize::B512 })
}

/// Each drive once, under whatever names.
pub(super) fn no_drive_twice(drives: &[PathBuf]) -> Result<(), ApiError> {
    use std::os::unix::fs::MetadataExt;
    let mut seen = Vec::new();
    for drive in drives {
        server::control::names::drive_ref(&drive.to_string_lossy())?;
        let Ok(found) = std::fs::metadata(drive) else { continue };
        // A block device is what its node stands for, wherever the node lies.
        let identity = if found.rdev() == 0 { (found.dev(), found.ino()) } else { (0, found.rdev()) };
        if seen.contains(&identity) {
            let message = format!("the drive {} is named twice", drive.display());
            return Err(ApiError::new(ErrorCode::DriveTwice, message).hint("name each drive once"));
        }
        seen.push(identity);
    }
    Ok(())
}

/// Blank drives, taken to be written over.
pub(super) fn claimed(drives: &[PathBuf], load: &Load) -> Result<Vec<OpenDrive>, ApiError> {
    drives.iter().map(|path| server::daemon::claim_blank(path, block_size(load))).collect()
}

fn opened(path: &Path, load: &Load) -> Result<OpenDrive, ApiError> {
    server::daemon::open_to_read(path, block_size(load))
}

/// Transfers are whole blocks of the drive.
pub(super) fn blocks_fit(drives: &[OpenDrive], load: &Load) -> Result<(), ApiError> {
    for drive in drives {
        let block = drive.block_size().bytes();
        if let Some(step) = load.steps.iter().find(|step| !step.block_bytes.is_multiple_of(block)) {
            let message = format!(
                "{} has blocks of {block} bytes: transfers of {} bytes are not whole blocks",
                drive.path().display(),
                step.block_bytes
            );
            return Err(
                ApiError::new(ErrorCode::UsageInvalid, message).hint("take --block-size 4K or a multiple")
            );
        }
    }
    Ok(())
}

/// Asks before drives are written over; gives the plan's lines.
pub(super) fn destroys(drives: &[PathBuf]) -> Vec<String> {
    drives.iter().map(|drive| format!("write over {}", drive.display())).collect()
}

/// Has it confirmed that drives are written over.
pub(super) fn confirmed(
    drives: &[PathBuf],
    writes: crate::args::Writes,
    output: &Output,
) -> Result<(), Failure> {
    let names: Vec<String> = drives.iter().map(|drive| drive.display().to_string()).collect();
    let what = format!("writing over {}", names.join(", "));
    if confirm::must_ask(output, &what, writes, None)? {
        let count = drives.len();
        let word =
            if count == 1 { "overwrite 1 drive".to_owned() } else { format!("overwrite {count} drives") };
        confirm::typed(&format!("{what}\nEverything on them will be lost."), &word)?;
    }
    Ok(())
}

pub(super) fn run(args: &DrivesArgs, output: &Output) -> Ended {
    let load = load(&args.load, Preset::Storagebench, Usual::Read, args.drives.len())?;
    no_drive_twice(&args.drives)?;
    let drives: Vec<OpenDrive> = if load.writes() {
        if args.writes.dry_run {
            drop(claimed(&args.drives, &load)?);
            return planned(
                "bench drives",
                &format!("{} drives", args.drives.len()),
                destroys(&args.drives),
                output,
            );
        }
        confirmed(&args.drives, args.writes, output)?;
        claimed(&args.drives, &load)?
    } else {
        let opened: Vec<OpenDrive> =
            args.drives.iter().map(|path| opened(path, &load)).collect::<Result<_, _>>()?;
        if args.writes.dry_run {
            let steps = opened
                .iter()
                .map(|drive| format!("read {} ({})", drive.path().display(), human(drive.size_bytes())))
                .collect();
            return planned("bench drives", &format!("{} drives", opened.len()), steps, output);
        }
        opened
    };
    blocks_fit(&drives, &load)?;
    let targets: Vec<Target> = drives.into_iter().map(Target::Drive).collect();
    let watched = Watched::start(output)?;
    let cases = measure("drives", &targets, &load, load.writes(), watched.control());
    let stopped = watched.finish();
    finish(cases.map_err(|error| session_error(&error))?, &args.report, stopped, output)
}
