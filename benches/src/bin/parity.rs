//! Parity per kernel, for the record: the same tables as `warpraid bench parity`. Prints it; `--out` records it.

use std::path::PathBuf;
use std::process::ExitCode;

use benches::parity::peer::Isal;
use benches::parity::{Table, against, measure};
use benches::record::Record;
use benches::report;
use benches::stats::SAMPLES_MIN;
use clap::Parser;
use clap::builder::PossibleValuesParser;

/// Measures the parity kernels of this machine.
#[derive(Parser)]
struct Args {
    /// Only the cases whose id contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Samples per case.
    #[arg(long, default_value_t = 9)]
    samples: usize,
    /// Compare with other people's code instead of kernel with kernel.
    #[arg(long, value_parser = PossibleValuesParser::new(["isal"]))]
    against: Option<String>,
    /// Where to write the record.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn measured(args: &Args) -> Result<Record, String> {
    let samples = args.samples.max(SAMPLES_MIN);
    if args.against.is_none() {
        let (widths, lengths) = (vec![4, 8, 16, 22], vec![4096, 65536]);
        let table = Table { widths, lengths, only: args.only.clone(), samples };
        return Ok(Record::of_this_run(measure(&table)));
    }
    let isal = Isal::load().map_err(|error| format!("{error}; Debian's package is libisal2"))?;
    let against = against::run(&isal, &args.only, samples);
    let mut record = Record::of_this_run(Vec::new());
    against.record_in(&mut record);
    Ok(record)
}

fn main() -> ExitCode {
    let args = Args::parse();
    let record = match measured(&args) {
        Ok(record) => record,
        Err(error) => {
            eprintln!("parity: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", report::text::record(&record));
    if let Some(path) = args.out
        && let Err(error) = record.write(&path)
    {
        eprintln!("parity: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
