//! Parity per kernel, for the record: the same table as `warpraid bench parity`. Prints it; `--out` records it.

use std::path::PathBuf;
use std::process::ExitCode;

use benches::parity::{Table, measure};
use benches::record::Record;
use benches::report;
use benches::stats::SAMPLES_MIN;
use clap::Parser;

/// Measures the parity kernels of this machine.
#[derive(Parser)]
struct Args {
    /// Only the cases whose id contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Samples per case.
    #[arg(long, default_value_t = 9)]
    samples: usize,
    /// Where to write the record.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let table = Table {
        widths: vec![4, 8, 16, 22],
        lengths: vec![4096, 65536],
        only: args.only,
        samples: args.samples.max(SAMPLES_MIN),
    };
    let record = Record::of_this_run(measure(&table));
    print!("{}", report::text::record(&record));
    if let Some(path) = args.out
        && let Err(error) = record.write(&path)
    {
        eprintln!("parity: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
