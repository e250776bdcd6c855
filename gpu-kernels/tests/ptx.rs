//! The committed PTX is what the sources make, and every GPU generation it is meant for takes it without spilling.

use std::path::PathBuf;
use std::process::Command;

fn make_ptx(argument: &str) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("make-ptx");
    let done = Command::new(script).arg(argument).output().expect("python3 is there");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "make-ptx {argument}: {out}{err}");
    println!("{out}");
    out.into_owned()
}

#[test]
fn the_ptx_is_what_the_sources_make() {
    make_ptx("--check");
}

#[test]
fn ptxas_takes_it_for_every_generation_without_spills() {
    let report = make_ptx("--assemble");
    for target in ["sm_80", "sm_90", "sm_100"] {
        let line = report.lines().find(|line| line.starts_with(target)).expect("a line for each target");
        assert!(line.contains("0 bytes stack, 0 bytes spilled"), "{line}");
    }
}
