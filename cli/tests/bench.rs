//! `bench` through the real binary, without a daemon: its documents are those of the shipped schemas, and what cannot be read
//! is an error of its own.

mod common;

use common::{code, envelope, stderr, stdout};

fn run(words: &[&str]) -> std::process::Output {
    common::run_words(std::path::Path::new("/nonexistent/socket"), words)
}

#[test]
fn every_document_of_bench_fits_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (drive, drives, parity) = (at("drive"), at("drives.json"), at("parity.json"));
    std::fs::File::create(&drive).unwrap().set_len(8 << 20).unwrap();
    let load = ["--threads", "1", "--size", "1M", "--block-size", "64K"];
    let bench = |words: &[&str]| {
        let output = run(&[&["-o", "json", "bench"], words].concat());
        assert_eq!(code(&output), 0, "{words:?}: {} {}", stdout(&output), stderr(&output));
        assert_eq!(stderr(&output), "", "{words:?}");
        envelope(&output)
    };
    let written = bench(
        &[&["drives", &drive, "--write", "--read", "--yes", "--record", &drives][..], &load[..]].concat(),
    );
    assert_eq!(written["schema"]["name"], "warpraid.bench");
    assert_eq!(written["data"]["cases"].as_array().unwrap().len(), 2);
    assert_eq!(written["data"]["cases"][0]["detail"]["judgement"]["judged"], false, "one drive cannot tell");
    let words = ["parity", "--only", "delta", "--lengths", "4K", "--samples", "2", "--record", &parity];
    assert!(bench(&words)["data"]["cases"][0]["work_bytes"].is_u64());
    bench(&[&["group", "--level", "1", "--ram", "2x1M", "--time", "20ms"][..], &load[..2]].concat());
    assert_eq!(bench(&["drives", &drive, "--dry-run"])["schema"]["name"], "warpraid.action");
    let compared = bench(&["compare", &drives, &parity]);
    assert_eq!(compared["schema"]["name"], "warpraid.bench.compare");
    assert_eq!(compared["data"]["only_in_a"].as_array().unwrap().len(), 2);
}

#[test]
fn people_read_the_form_they_know() {
    let folder = tempfile::tempdir().unwrap();
    let drive = folder.path().join("drive");
    std::fs::File::create(&drive).unwrap().set_len(8 << 20).unwrap();
    let drive = drive.to_str().unwrap();
    let output = run(&["bench", "drives", drive, "--threads", "1", "--size", "1M"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    for words in
        ["Read benchmark results:", "Min throughput:", "Aggregate throughput:", "List of all targets:\n1 "]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(
        said.contains("Outlier: cannot tell") && said.contains("Not verified: what lies there is not ours")
    );
}

#[test]
fn what_is_no_record_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let output = run(&["-o", "json", "bench", "compare", file, file]);
    assert_eq!(
        (code(&output), envelope(&output)["error"]["code"].as_str()),
        (2, Some("bench.record.invalid"))
    );
    let output = run(&["-o", "json", "bench", "compare", "/nonexistent/a", file]);
    assert_eq!(
        (code(&output), envelope(&output)["error"]["code"].as_str()),
        (4, Some("bench.record.not.found"))
    );
}
