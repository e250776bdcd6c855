//! The benchmark programs run, verify what they moved, and write records that `check` can judge. How fast they were is
//! nobody's business here: a test never fails on a time.

use std::path::Path;
use std::process::{Command, Output};

use benches::record::Record;

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("a program of this package starts")
}

fn recorded(program: &str, only: &str, file: &Path) -> Record {
    let path = file.to_str().expect("a plain path");
    let output = run(program, &["--only", only, "--out", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record = Record::read(file).expect("the record that was just written");
    assert!(!record.cases.is_empty() && record.cases.iter().all(|case| case.verified), "{record:?}");
    record
}

#[test]
fn runs_are_recorded_verified_and_judged() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (engine, parity) = (dir.path().join("engine.json"), dir.path().join("parity.json"));
    let record = recorded(env!("CARGO_BIN_EXE_engine"), "fullstripe", &engine);
    assert_eq!(record.cases[0].id, "engine.fullstripe.ram.raid6_8p2");
    let kernels = recorded(env!("CARGO_BIN_EXE_parity"), "parity.delta.", &parity).cases.len();
    assert_eq!(kernels, 2 * raid_core::parity::CpuParity::kernels().len(), "two lengths");

    let check = env!("CARGO_BIN_EXE_check");
    let both = [engine.to_str().expect("plain"), parity.to_str().expect("plain")];
    let output = run(check, &both);
    // 1 means that a floor does not hold, which a test does not mind.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("engine.fullstripe.ram.raid6_8p2") && said.contains("not measured"), "{said}");
    assert_eq!(run(check, &["--complete", both[1]]).status.code(), Some(1), "claims are missing");

    // A record that was touched up is found out.
    let text = std::fs::read_to_string(&parity).expect("the record");
    let median = format!(
        "\"median\": {}",
        serde_json::to_string(&Record::read(&parity).unwrap().cases[0].median).unwrap()
    );
    assert!(text.contains(&median));
    std::fs::write(&parity, text.replacen(&median, "\"median\": 1.0", 1)).expect("the record can be written");
    assert_eq!(run(check, &[both[1]]).status.code(), Some(1));
    std::fs::write(&parity, "{}").expect("the record can be written");
    assert_eq!(run(check, &[both[1]]).status.code(), Some(2));
}
