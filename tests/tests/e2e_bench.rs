//! `warpraid bench` as it is used: it names the slow drive, refuses used drives, reports failing ones, and its numbers can be
//! written down and compared. No test here fails on a time.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use warpraid_tests::faulty::Faulty;
use warpraid_tests::mount::FuseFile;
use warpraid_tests::{Answer, Json, Lab, cli, tool};

const DRIVE: u64 = 16 << 20;

/// Runs `bench` without a daemon.
fn bench(lab: &Lab, words: &[&str], drives: &[PathBuf]) -> Answer {
    let mut arguments: Vec<String> = vec!["bench".into()];
    arguments.extend(words.iter().map(|word| (*word).to_owned()));
    arguments.extend(drives.iter().map(|drive| tool::text(drive).to_owned()));
    cli::run(&lab.join("no.sock"), &arguments)
}

/// A drive that moves no more than `rate` bits a second: a file behind nbdkit's rate filter.
fn throttled(lab: &Lab, name: &str, rate: &str) -> FuseFile {
    let backing = lab.drive(&format!("{name}.backing"), DRIVE);
    let socket = lab.join(&format!("{name}.nbd"));
    let server = tool::command("nbdkit")
        .args(["--foreground", "--exit-with-parent", "--unix"])
        .arg(&socket)
        .args(["--filter=rate", "file"])
        .arg(&backing)
        .arg(format!("rate={rate}"))
        .arg("burstiness=0.1")
        .stdin(Stdio::null())
        .spawn()
        .expect("nbdkit runs; `tests/run --stage tools` installs it");
    tool::wait_until("nbdkit listens", Duration::from_secs(30), || socket.exists());
    lab.servants().add(server);
    let (file, fuse) =
        FuseFile::mount_by(&format!("nbd+unix:///?socket={}", socket.display()), &lab.join(name));
    lab.servants().add(fuse);
    file
}

fn targets(case: &Json) -> Vec<Json> {
    case.list("detail.targets")
}

#[test]
fn the_throttled_one_of_six_drives_is_named() {
    let lab = Lab::new("bench-slow");
    let slow = throttled(&lab, "slow", "24M");
    let mut drives = lab.drives("d", 5, DRIVE);
    drives.insert(3, slow.path().to_owned());
    let words = ["drives", "--write", "--read", "--yes", "--threads", "2", "--size", "4M", "--lanes", "1"];
    let (record, html) = (lab.join("a.json"), lab.join("a.html"));
    let files = ["--record", tool::text(&record), "--html", tool::text(&html)];
    let answer = bench(&lab, &[&words[..], &files[..]].concat(), &drives);
    let data = answer.data();
    assert_eq!(data.text("schema.name"), "warpraid.bench");
    let cases = data.list("cases");
    assert_eq!(cases.len(), 2, "{answer}");
    for case in &cases {
        assert_eq!(case.at("verified").0, Value::Bool(true), "{answer}");
        assert_eq!(targets(case).len(), 6);
        let odd = case.list("detail.judgement.outliers");
        assert_eq!(odd[0].number("index"), 3, "{answer}");
        assert_eq!(odd[0].text("name"), tool::text(slow.path()));
        assert!(odd[0].at("score").0.as_f64().is_some_and(|score| score < -3.5), "{answer}");
    }
    assert!(std::fs::read_to_string(&html).expect("the report").contains("Outlier, slow"));
    let same = bench(&lab, &["compare"], &[record.clone(), record.clone()]).data();
    assert_eq!(same.list("cases").len(), 2);
    assert!(same.list("cases").iter().all(|case| case.text("verdict") != "better"), "{same:?}");
}

#[test]
fn a_drive_that_fails_is_reported_and_the_others_results_are_there() {
    let lab = Lab::new("bench-fail");
    let faulty = Faulty::new(&lab, "faulty", DRIVE);
    let mut drives = lab.drives("d", 4, DRIVE);
    drives[2] = faulty.path().to_owned();
    faulty.fail_reads(true);
    let words = ["drives", "--threads", "2", "--size", "2M", "--block-size", "64K"];
    let answer = bench(&lab, &words, &drives);
    assert_eq!(answer.exit, 1, "{answer}");
    assert_eq!(answer.envelope.at("ok").0, Value::Bool(true), "there is a record: {answer}");
    assert_eq!(answer.envelope.text("warnings.0.code"), "bench.target.failed");
    let case = answer.envelope.at("data.cases.0");
    for (index, target) in targets(&case).iter().enumerate() {
        let is_faulty = index == 2;
        assert_eq!(target.number("errors") > 0, is_faulty, "{answer}");
        assert_eq!(target.number("bytes"), if is_faulty { 0 } else { 4 << 20 }, "{answer}");
    }
    assert!(answer.envelope.at("warnings.0").mentions("faulty"), "{answer}");
}

#[test]
fn ad_01_writing_needs_a_blank_drive_and_a_word() {
    let lab = Lab::new("bench-used");
    let drives = lab.drives("d", 4, 64 << 20);
    let write = ["drives", "--write", "--size", "1M", "--threads", "1"];
    bench(&lab, &write, &drives).fails(3, &["--yes"]);
    let dry = bench(&lab, &[&write[..], &["--dry-run"]].concat(), &drives[..1]);
    assert_eq!(dry.data().at("dry_run").0, Value::Bool(true));
    assert!(is_zero(&drives[0]), "a dry run writes nothing");
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    let yes = [&write[..], &["--yes"]].concat();
    bench(&lab, &yes, &drives).fails(7, &["in use"]);
    daemon.wait("tank", "synced");
    let before = daemon.run(&["group", "show", "tank"]).data().text("state");
    // Reading members of a running group is allowed, and it does not mind.
    let read = bench(&lab, &["drives", "--size", "1M", "--threads", "1"], &drives);
    assert_eq!(read.data().list("cases").len(), 1);
    assert_eq!(
        read.data().at("cases.0.verified").0,
        Value::Bool(false),
        "nothing is known of what lies there"
    );
    assert_eq!(daemon.run(&["group", "show", "tank"]).data().text("state"), before);
    daemon.run(&["group", "stop", "tank"]).data();
    bench(&lab, &yes, &drives).fails(3, &["member of group tank"]);
    daemon.run(&["group", "assemble", "tank"]).data();
}

fn is_zero(path: &Path) -> bool {
    std::fs::read(path).expect("the drive").iter().all(|byte| *byte == 0)
}

#[test]
fn a_group_is_measured_whole_degraded_and_rebuilding() {
    let lab = Lab::new("bench-group");
    let load = ["--time", "100ms", "--threads", "2", "--queue-depth", "2", "--block-size", "64K"];
    let words = [&["group", "--level", "6", "--ram", "5x4M"][..], &load[..]].concat();
    let data = bench(&lab, &words, &[]).data();
    let ids: Vec<String> = data.list("cases").iter().map(|case| case.text("id")).collect();
    for state in ["healthy", "degraded", "degraded-2", "rebuilding"] {
        for op in ["read", "write"] {
            assert!(ids.contains(&format!("group.{state}.{op}.sequential.64K")), "{state} {op}: {ids:?}");
        }
    }
    assert!(ids.contains(&"group.rebuild.under-64K".to_owned()), "{ids:?}");
    assert!(data.list("cases").iter().all(|case| case.at("verified").0 == Value::Bool(true)), "{data:?}");
    let drives = lab.drives("d", 3, DRIVE);
    let words = [&["group", "--level", "5", "--yes"][..], &load[..]].concat();
    let data = bench(&lab, &words, &drives).data();
    assert!(data.list("cases").iter().all(|case| case.at("verified").0 == Value::Bool(true)), "{data:?}");
}

#[test]
fn a_disk_of_the_daemon_and_a_folder_are_measured() {
    let lab = Lab::new("bench-disk");
    let daemon = lab.daemon();
    daemon.create("tank", 5, &lab.drives("d", 3, 64 << 20));
    daemon.disk("tank/home", "32M");
    let words = ["bench", "disk", "tank/home", "--threads", "2", "--size", "4M", "--block-size", "64K"];
    daemon.run(&words).fails(4, &["not served"]);
    daemon.expose("tank/home");
    let both = [&words[..], &["--write", "--read", "--yes"]].concat();
    let data = daemon.run(&both).data();
    assert_eq!(data.list("cases").len(), 2);
    for case in data.list("cases") {
        assert_eq!(
            (case.at("verified").0, case.number("detail.bytes")),
            (Value::Bool(true), 8 << 20),
            "{case:?}"
        );
    }
    let folder = lab.join("folder");
    std::fs::create_dir(&folder).expect("a folder");
    let words = ["disk", "--preset", "iozone", "--threads", "2", "--size", "1M", "--block-size", "64K"];
    let data = bench(&lab, &words, std::slice::from_ref(&folder)).data();
    assert_eq!(data.list("cases").len(), 6, "{data:?}");
    assert!(data.list("cases").iter().all(|case| case.at("verified").0 == Value::Bool(true)), "{data:?}");
    assert_eq!(data.text("cases.0.id"), "disk.initial-writers.64K");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0, "its files are gone");
}

#[test]
fn parity_has_a_cell_for_every_kernel() {
    let lab = Lab::new("bench-parity");
    let words = ["parity", "--only", "pq.", "--data-drives", "4", "--lengths", "4K", "--samples", "1"];
    let data = bench(&lab, &words, &[]).data();
    let cases = data.list("cases");
    assert!(
        cases.len() >= 2 && cases.iter().all(|case| case.at("verified").0 == Value::Bool(true)),
        "{data:?}"
    );
}

#[test]
fn parity_is_compared_with_isal_or_says_what_to_install() {
    let lab = Lab::new("bench-isal");
    let words = ["parity", "--against", "isal", "--only", "pq.cached.k4.4k", "--samples", "1"];
    let answer = bench(&lab, &words, &[]);
    if answer.exit == 4 {
        println!("SKIPPED: the comparison with ISA-L, which is not installed; its message was tested");
        answer.fails(4, &["bench.peer.missing", "libisal"]);
        return;
    }
    let data = answer.data();
    assert!(data.at("geomean.pq_cached_vs_isal").0.as_f64().is_some_and(|mean| mean > 0.0), "{data:?}");
    assert!(!data.text("picks.pq").is_empty());
    let cell = &data.list("cases")[0];
    assert_eq!((cell.text("id"), cell.text("peer.name")), ("parity.pq.cached.k4.4k".into(), "isal".into()));
    assert_eq!(cell.at("verified").0, Value::Bool(true), "{cell:?}");
}

#[test]
fn parity_kernels_are_measured_at_start_or_as_asked_for() {
    let lab = Lab::new("parity-kernel");
    let daemon = lab.daemon();
    let measured = daemon.ok(&["status"]).text("daemon.parity_kernel");
    assert!(!measured.is_empty() && daemon.log().contains(&measured), "{measured}: {}", daemon.log());
    drop(daemon);
    let lab = Lab::new("parity-cycle");
    let daemon = lab.daemon_with(&["--parity-kernel", "cycle"]);
    assert_eq!(daemon.ok(&["status"]).text("daemon.parity_kernel"), "cycle");
    // Before anything is made: the names there are, and no state folder.
    let lab = Lab::new("parity-unknown");
    let state = lab.join("none");
    let folder = state.to_str().expect("a plain path");
    let words = ["serve", "--state-dir", folder, "--parity-kernel", "mmx"];
    let answer = cli::run(&lab.join("socket"), &words);
    assert_eq!(answer.exit, 2, "{answer}");
    assert!(answer.to_string().contains("mmx") && answer.to_string().contains("scalar"), "{answer}");
    assert!(!state.exists());
}

#[test]
fn bad_options_are_usage_errors_and_missing_things_are_not_found() {
    let lab = Lab::new("bench-usage");
    let drive = lab.drives("d", 1, DRIVE);
    for words in [
        &["drives", "--block-size", "1000"][..],
        &["drives", "--queue-depth", "0"],
        &["drives", "--threads", "1000"],
        &["drives", "--preset", "quick"],
        &["drives", "--size", "1M", "--block-size", "16M", "--threads", "1"],
        &["drives", "--threads", "256", "--block-size", "1M"],
        &["group", "--level", "7", "--ram", "4x4M"],
        &["group", "--level", "5", "--ram", "4"],
        &["group", "--level", "6", "--ram", "3x4M"],
        &["disk", "nbd+unix:///x"],
        &["parity", "--only", "nothing-like-it"],
        &["parity", "--against", "nobody"],
    ] {
        let on: &[PathBuf] = if words[0] == "drives" { &drive } else { &[] };
        bench(&lab, words, on).fails(2, &[]);
    }
    let twice = [drive[0].clone(), drive[0].clone()];
    bench(&lab, &["drives"], &twice).fails(2, &["twice"]);
    bench(&lab, &["drives"], &[lab.join("none")]).fails(4, &["none"]);
    bench(&lab, &["compare", "/nonexistent/a", "/nonexistent/b"], &[]).fails(4, &["/nonexistent/a"]);
    bench(&lab, &["compare"], &[drive[0].clone(), drive[0].clone()]).fails(2, &["record"]);
}

#[test]
fn an_interrupt_prints_what_was_measured() {
    let lab = Lab::new("bench-stop");
    let drive = lab.drive("d", DRIVE);
    let mut command = tool::command(tool::text(cli::binary()));
    command.args(["-o", "json", "bench", "drives", "--time", "120s"]).arg(&drive);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the binary runs");
    let pid = child.id();
    // Before its handler is there an interrupt would just end it.
    std::thread::sleep(Duration::from_secs(5));
    tool::signal(pid, "INT");
    let output = tool::wait_for(child, "bench drives");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let envelope = Json(serde_json::from_slice(&output.stdout).expect("an envelope"));
    assert_eq!(envelope.at("data.cases.0.detail.incomplete").0, Value::Bool(true));
    assert_eq!(envelope.text("warnings.0.code"), "bench.stopped");
}
