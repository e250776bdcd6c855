//! The main job on every level: a group, a disk, clients that write, drives that fail and are replaced, everything right.

use std::path::PathBuf;

use warpraid_tests::check::{LEVELS, assert_redundant};
use warpraid_tests::daemon::{Daemon, PATIENCE};
use warpraid_tests::{Lab, Stamped, tool};

const DRIVE: u64 = 64 << 20;
const DISK: &str = "24M";

/// Load, failures up to the tolerance under load, everything read back, replaced under load, redundancy checked on the
/// drives.
fn live(level: u32, width: usize, tolerates: usize) {
    let lab = Lab::new(&format!("live{level}"));
    let mut drives = lab.drives("d", width, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", level, &drives);
    daemon.disk("tank/disk", DISK);
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(u64::from(level), export.size_bytes, 512);
    stamped.some(&export, 1, 300);
    daemon.wait("tank", "synced");

    let failed: Vec<usize> = (0..tolerates).map(|i| i * 2).collect();
    stamped.load_while(&export, 2, || {
        stamped.wait_for_requests(200);
        for slot in &failed {
            daemon.fail(&drives[*slot]);
            stamped.wait_for_requests(200);
        }
    });
    stamped.verify(&export);
    if tolerates > 0 {
        assert_eq!(daemon.group("tank").text("state"), "degraded");
        replace(&lab, &daemon, &mut drives, &failed, || stamped.wait_for_requests(100), &stamped, &export);
    }
    stamped.verify(&export);
    stamped.flush(&export);
    let group = daemon.group("tank");
    assert_eq!(group.text("state"), "healthy");
    if level != 0 {
        assert_redundant(&drives);
    }
}

fn replace(
    lab: &Lab,
    daemon: &Daemon,
    drives: &mut [PathBuf],
    slots: &[usize],
    more_load: impl Fn(),
    stamped: &Stamped,
    export: &warpraid_tests::daemon::Export,
) {
    stamped.load_while(export, 2, || {
        for slot in slots {
            let spare = lab.drive(&format!("spare{slot}"), DRIVE);
            daemon.replace("tank", u32::try_from(*slot).unwrap(), &spare);
            drives[*slot] = spare;
            more_load();
        }
        let end = daemon.wait("tank", "healthy");
        assert_eq!(end.text("group.state"), "healthy");
    });
}

#[test]
fn raid0_serves_and_tolerates_nothing() {
    let (level, width, tolerates) = LEVELS[0];
    live(level, width, tolerates);
}

#[test]
fn raid1_lives_through_load_failure_and_rebuild() {
    let (level, width, tolerates) = LEVELS[1];
    live(level, width, tolerates);
}

#[test]
fn raid5_lives_through_load_failure_and_rebuild() {
    let (level, width, tolerates) = LEVELS[2];
    live(level, width, tolerates);
}

#[test]
fn raid6_lives_through_load_two_failures_and_rebuild() {
    let (level, width, tolerates) = LEVELS[3];
    live(level, width, tolerates);
}

#[test]
fn raid10_lives_through_load_failure_and_rebuild() {
    let (level, width, tolerates) = LEVELS[4];
    live(level, width, tolerates);
}

/// Progress of a rebuild only grows, stays within bounds, and an ETA comes with a rate.
#[test]
fn a_rebuild_reports_honest_progress_and_group_wait_ends_with_it() {
    let lab = Lab::new("progress");
    let drives = lab.drives("d", 4, 256 << 20);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.fail(&drives[2]);
    let spare = lab.drive("spare", 256 << 20);
    daemon.replace("tank", 2, &spare);
    let mut last = 0;
    let mut seen = 0;
    tool::wait_until("the rebuild ends", PATIENCE, || {
        let group = daemon.group("tank");
        let progress = group.at("members.2.progress");
        if !progress.0.is_null() {
            let (done, total) = (progress.number("done_bytes"), progress.number("total_bytes"));
            assert!(last <= done && done <= total && progress.number("percent") <= 100, "{progress:?}");
            assert_eq!(progress.text("operation"), "rebuild");
            assert_eq!(progress.at("eta_s").0.is_null(), progress.at("rate_bytes_per_s").0.is_null());
            last = done;
            seen += 1;
        }
        group.text("state") == "healthy"
    });
    println!("progress was seen {seen} times");
    let end = daemon.wait("tank", "rebuilt");
    assert_eq!(end.text("group.members.2.drive"), spare.to_str().unwrap());
    assert_redundant(&[&drives[0], &drives[1], &spare, &drives[3]]);
}

#[test]
fn a_wait_that_cannot_come_true_or_takes_too_long_fails_and_says_so() {
    let lab = Lab::new("wait");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.fail(&drives[0]);
    daemon.run(&["group", "wait", "tank", "--for", "rebuilt", "--timeout", "1s"]).fails(1, &["tank"]);
    daemon.run(&["group", "wait", "nosuch", "--for", "rebuilt"]).fails(4, &["nosuch"]);
}

#[test]
fn beyond_tolerance_reads_fail_and_never_bring_wrong_data() {
    let lab = Lab::new("beyond");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/disk", DISK);
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    daemon.fail(&drives[0]);
    let mut client = export.connect();
    daemon.run(&["drive", "fail", drives[1].to_str().unwrap()]).fails(3, &["tank"]);
    stamped.verify(&export);
    daemon.ok(&["drive", "fail", drives[1].to_str().unwrap(), "--force"]);
    assert_eq!(daemon.group("tank").text("state"), "offline");
    for at in (0..export.size_bytes).step_by(1 << 20) {
        match client.read(at, 4096) {
            Ok(data) => assert_eq!(stamped.check(at, &data), [], "what is served must be right"),
            Err(error) => assert!(error.errno().is_some_and(|e| e == 5 || e == 108), "{error}"),
        }
    }
    let health = daemon.run(&["health"]);
    assert_eq!(health.exit, 2, "{health}");
}

#[test]
fn idle_memory_with_a_group_of_eight_drives_stays_below_100_mib() {
    let lab = Lab::new("memory");
    let drives = lab.drives("d", 8, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 6, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", DISK);
    let export = daemon.expose("tank/disk");
    drop(export.connect());
    let bytes = daemon.resident_bytes();
    println!("resident, idle: {} MiB", bytes >> 20);
    assert!(bytes < 100 << 20, "{bytes} bytes resident");
}
