//! `bench parity`: the table of this machine's kernels, or of the best of them against other people's code.

use benches::parity::peer::Isal;
use benches::parity::{Table, against, measure};
use server::control::{ApiError, ErrorCode};

use super::args::ParityArgs;
use super::{finish, finish_record, record_of};
use crate::output::{Ended, Failure, Output};
use crate::units;

/// Longest column.
const LENGTH_BYTES_MAX: u64 = 16 << 20;

fn length(text: &str) -> Result<u32, ApiError> {
    let bytes = units::size(text, "length", ErrorCode::UsageInvalid)?;
    let fits = bytes <= LENGTH_BYTES_MAX;
    fits.then(|| u32::try_from(bytes).ok()).flatten().ok_or_else(|| {
        ApiError::new(ErrorCode::UsageInvalid, format!("the length \"{text}\" is more than 16M"))
    })
}

pub(super) fn run(args: &ParityArgs, output: &Output) -> Ended {
    if args.against.is_some() {
        return run_against(args, output);
    }
    let table = Table {
        widths: args.data_drives.clone(),
        lengths: args.lengths.iter().map(|text| length(text)).collect::<Result<_, _>>()?,
        only: args.only.clone(),
        samples: args.samples.into(),
    };
    let cases = measure(&table);
    if cases.is_empty() {
        return Err(nothing(args, "parity.pq.avx2.k8.64k"));
    }
    finish(cases, &args.report, false, output)
}

fn nothing(args: &ParityArgs, example: &str) -> Failure {
    let message = format!("no cell of the table contains \"{}\"", args.only);
    let hint = format!("ids look like {example}: see warpraid bench parity");
    ApiError::new(ErrorCode::UsageInvalid, message).hint(hint).into()
}

fn run_against(args: &ParityArgs, output: &Output) -> Ended {
    let isal = Isal::load().map_err(|error| {
        ApiError::new(ErrorCode::BenchPeerMissing, format!("ISA-L cannot be loaded: {error}"))
            .hint("apt install libisal2, or your distribution's package of libisal.so.2")
    })?;
    let against = against::run(&isal, &args.only, args.samples.into());
    if against.cases.is_empty() {
        return Err(nothing(args, "parity.pq.cached.k8.64k"));
    }
    let mut record = record_of(Vec::new());
    against.record_in(&mut record);
    finish_record(record, &args.report, false, output)
}
