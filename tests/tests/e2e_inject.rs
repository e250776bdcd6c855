//! Faults injected into a running daemon's drives: off unless asked for, each kind as the host and the operator see it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::group::DRIVE_BYTES;
use warpraid_tests::{Daemon, Lab, StampedGroup, tool};

const DRIVE: u64 = DRIVE_BYTES;

fn group(name: &str, level: u32, width: usize, options: &[&str]) -> StampedGroup {
    StampedGroup::new(name, level, width, "8M", &[options, &["--allow-faults"]].concat())
}

fn problem(daemon: &Daemon, code: &str) -> bool {
    daemon.ok(&["status"]).list("problems").iter().any(|problem| problem.text("code") == code)
}

#[test]
fn without_the_option_nothing_can_be_injected() {
    let lab = Lab::new("nofault");
    let daemon = lab.daemon();
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.run(&["fault", "inject", "tank:1", "fail"]).fails(3, &["--allow-faults"]);
    daemon
        .run(&["fault", "inject", tool::text(&drives[1]), "fail", "--dry-run"])
        .fails(3, &["--allow-faults"]);
    daemon.run(&["fault", "list"]).fails(3, &["--allow-faults"]);
    daemon.run(&["fault", "clear", "--all"]).fails(3, &["--allow-faults"]);
    daemon.wait("tank", "healthy");
}

#[test]
fn a_fault_is_shown_checked_cleared_and_never_outlives_the_daemon() {
    let mut group = group("faultlife", 5, 4, &[]);
    let daemon = &group.daemon;
    let before = daemon.ok(&["fault", "inject", "tank:1", "fail", "--dry-run"]);
    assert!(
        before.mentions("slot 1 of group tank") && daemon.ok(&["fault", "list"]).list("faults").is_empty()
    );
    for wrong in [
        &["slow"][..],
        &["fail", "--delay-ms", "5"],
        &["bad", "--range", "1+512"],
        &["bad", "--range", "1G+4K"],
        &["bad", "--range", "512"],
        &["hang", "--count", "0"],
    ] {
        daemon.run(&[&["fault", "inject", "tank:1"], wrong].concat()).fails(2, &[]);
    }
    daemon.run(&["fault", "inject", "tank:1", "flip"]).fails(3, &["--yes"]);
    daemon.run(&["fault", "inject", "tank:1", "lost-write"]).fails(3, &["--yes"]);
    daemon.run(&["fault", "inject", "tank:9", "fail"]).fails(2, &["slots 0 to 3"]);
    daemon.run(&["fault", "clear", "7"]).fails(4, &["7"]);
    daemon.ok(&["fault", "inject", "tank:1", "slow", "--delay-ms", "1"]);
    daemon.ok(&["fault", "inject", "tank:2", "bad", "--seed", "3", "--for", "1s"]);
    assert!(problem(daemon, "fault.active") && daemon.run(&["health"]).exit == 1);
    let faults = daemon.ok(&["fault", "list"]).list("faults");
    assert_eq!((faults.len(), faults[0].text("group"), faults[0].number("slot")), (2, "tank".into(), 1));
    tool::wait_until("the second fault ends by itself", PATIENCE, || {
        daemon.ok(&["fault", "list"]).list("faults").len() == 1
    });
    group.stamped.verify(&group.export);
    daemon.ok(&["fault", "clear", "tank:1", "--dry-run"]);
    assert_eq!(daemon.ok(&["fault", "list"]).list("faults").len(), 1);
    daemon.ok(&["fault", "clear", "tank:1"]);
    assert!(!problem(daemon, "fault.active") && daemon.run(&["health"]).exit == 0);
    daemon.ok(&["fault", "inject", "tank:1", "slow", "--delay-ms", "1"]);
    group.daemon.stop();
    group.daemon.start_again();
    assert!(group.daemon.ok(&["fault", "list"]).list("faults").is_empty());
}

#[test]
fn a_failing_drive_is_dropped_and_stays_failed_until_cleared() {
    let group = group("faultfail", 5, 4, &[]);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    let path = daemon.group("tank").text("members.1.drive");
    stamped.load_while(export, 2, || {
        stamped.wait_for_requests(100);
        daemon.ok(&["fault", "inject", "tank:1", "fail"]);
        tool::wait_until("it is dropped", PATIENCE, || daemon.member_states("tank")[1] == "failed");
        stamped.wait_for_requests(200);
    });
    stamped.verify(export);
    daemon.run(&["drive", "wipe", &path, "--yes", "--expect-uuid", &path]).fails(1, &[]);
    daemon.ok(&["fault", "clear", &path]);
    let uuid = daemon.ok(&["drive", "show", &path]).text("device_uuid");
    daemon.ok(&["drive", "wipe", &path, "--yes", "--expect-uuid", &uuid]);
    daemon.replace("tank", 1, path.as_ref());
    daemon.wait("tank", "healthy");
    stamped.verify(export);
}

#[test]
fn m7_a_hanging_member_is_dropped_within_the_time_out_and_no_client_waits_longer() {
    let group = group("faulthang", 6, 5, &["--drive-timeout", "1s"]);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    let injected = stamped.load_while(export, 2, || {
        stamped.wait_for_requests(100);
        daemon.ok(&["fault", "inject", "tank:1", "hang"]);
        let injected = Instant::now();
        tool::wait_until("it is dropped", PATIENCE, || daemon.member_states("tank")[1] == "failed");
        let took = injected.elapsed();
        stamped.wait_for_requests(300);
        took
    });
    let slowest = Duration::from_nanos(stamped.counters.slowest_ns.load(Ordering::Relaxed));
    println!("dropped {injected:?} after the fault; the slowest request took {slowest:?}; time-out 1 s");
    // Times five, for a loaded machine: a time-out and the drop, not the 30 s of a client that was forgotten.
    assert!(injected < Duration::from_secs(10) && slowest < Duration::from_secs(10));
    stamped.verify(export);
    daemon.ok(&["fault", "clear", "--all"]);
}

#[test]
fn bad_blocks_are_repaired_from_redundancy_and_flips_are_not_seen_by_luck() {
    let group = group("faultbad", 5, 4, &[]);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    let start = data_start(daemon);
    for slot in 0..4 {
        let range = format!("{}+16K", start + slot * (64 << 10));
        daemon.ok(&["fault", "inject", &format!("tank:{slot}"), "bad", "--range", &range]);
    }
    // Reads of the whole disk find every bad data block, rewrite it, and give the host the right bytes.
    stamped.verify(export);
    let active = daemon.ok(&["fault", "list"]).list("faults");
    let healed = active.iter().filter(|fault| fault.at("active").0 == serde_json::Value::Bool(false)).count();
    assert!(healed >= 2, "{active:?}");
    assert_eq!(daemon.member_states("tank"), ["in_sync"; 4]);
    daemon.ok(&["fault", "clear", "--all"]);
    // A flipped bit reaches the reader: RAID 5 reads no parity. That is what scrub is for.
    let range = format!("{start}+1M");
    for slot in 0..4 {
        daemon.ok(&["fault", "inject", &format!("tank:{slot}"), "flip", "--range", &range, "--yes"]);
    }
    assert!(stamped.try_verify(export).is_err(), "flipped bits were not read");
    daemon.ok(&["fault", "clear", "--all"]);
    stamped.verify(export);
}

/// First byte of group data on a member.
fn data_start(daemon: &Daemon) -> u64 {
    let path = daemon.group("tank").text("members.0.drive");
    daemon.ok(&["examine", &path]).number("superblock.data_offset_bytes")
}
