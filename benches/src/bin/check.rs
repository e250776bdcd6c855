//! `check FILE...`: compares recorded benchmark runs with `floors.toml`. Exit 0 if every floor holds, 1 if one does not,
//! 2 if a file cannot be read.

use std::path::PathBuf;
use std::process::ExitCode;

use benches::floors::Floors;
use benches::record::Record;
use clap::Parser;

/// Checks recorded benchmark runs against floors.toml.
#[derive(Parser)]
struct Args {
    /// Fail if a claim of floors.toml is in none of the files.
    #[arg(long)]
    complete: bool,
    /// Records, as the benchmark binaries write them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let records: Result<Vec<Record>, _> = args.files.iter().map(|path| Record::read(path)).collect();
    let records = match records {
        Ok(records) => records,
        Err(error) => {
            eprintln!("check: {error}");
            return ExitCode::from(2);
        }
    };
    let floors = Floors::built_in();
    let mut all_pass = true;
    for (path, record) in args.files.iter().zip(&records) {
        println!("{}: commit {}, {}", path.display(), record.commit, record.machine.cpu);
        for finding in floors.check(record) {
            let word = if finding.pass { "holds" } else { "FAILS" };
            println!("  {word}  {:<34} {}", finding.id, finding.text);
            all_pass &= finding.pass;
        }
    }
    for claim in floors.missing(&records) {
        println!("  not measured  {:<26} {}", claim.id, claim.what);
        all_pass &= !args.complete;
    }
    if all_pass { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
