//! `bench parity`: the table of this machine's kernels.

use benches::parity::{Table, measure};
use server::control::{ApiError, ErrorCode};

use super::args::ParityArgs;
use super::finish;
use crate::output::{Ended, Output};
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
    let table = Table {
        widths: args.data_drives.clone(),
        lengths: args.lengths.iter().map(|text| length(text)).collect::<Result<_, _>>()?,
        only: args.only.clone(),
        samples: args.samples.into(),
    };
    let cases = measure(&table);
    if cases.is_empty() {
        let message = format!("no cell of the table contains \"{}\"", args.only);
        return Err(ApiError::new(ErrorCode::UsageInvalid, message)
            .hint("ids look like parity.pq.avx2.k8.64k: see warpraid bench parity")
            .into());
    }
    finish(cases, &args.report, false, output)
}
