//! Slow and sick members: found, sat out within what redundancy allows, back again; error budgets.

use std::time::Instant;

use warpraid_tests::cli::Json;
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::{Daemon, StampedGroup, tool};

fn group(name: &str, level: u32, width: usize, options: &[&str]) -> StampedGroup {
    StampedGroup::new(name, level, width, "16M", &[options, &["--allow-faults"]].concat())
}

/// What the daemon knows of how fast a member answers.
fn latency(daemon: &Daemon, slot: usize) -> Option<Json> {
    let found = daemon.group("tank").list("members").swap_remove(slot).at("latency");
    (!found.0.is_null()).then_some(found)
}

fn says(daemon: &Daemon, slot: usize, what: &str) -> bool {
    latency(daemon, slot).is_some_and(|it| it.at(what).0 == serde_json::Value::Bool(true))
}

fn problem(daemon: &Daemon, code: &str) -> Option<Json> {
    daemon.ok(&["status"]).list("problems").into_iter().find(|problem| problem.text("code") == code)
}

fn slow_down(daemon: &Daemon, slot: usize) {
    daemon.ok(&["fault", "inject", &format!("tank:{slot}"), "slow", "--delay-ms", "150"]);
}

fn sits_out_and_returns(level: u32, width: usize) {
    let group = group(&format!("slow{level}"), level, width, &[]);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    slow_down(daemon, 1);
    stamped.load_while(export, 2, || {
        let since = Instant::now();
        tool::wait_until("it sits out", PATIENCE, || says(daemon, 1, "sits_out"));
        println!("sat out after {:?}", since.elapsed());
    });
    let slow = problem(daemon, "member.slow").expect("status says so");
    assert!(slow.number("slot") == 1 && slow.text("why").contains(" ms"), "{slow:?}");
    assert_eq!(daemon.run(&["health"]).exit, 1);
    assert_eq!(daemon.member_states("tank")[1], "in_sync");
    // Nothing is read from it, and everything is right.
    let before = latency(daemon, 1).unwrap().number("reads");
    stamped.verify(export);
    assert_eq!(latency(daemon, 1).unwrap().number("reads"), before, "reads avoid it");
    // Writes go on to it.
    let before = latency(daemon, 1).unwrap().number("writes");
    stamped.some(export, 5, 100);
    assert!(latency(daemon, 1).unwrap().number("writes") > before, "it stays in sync");
    daemon.ok(&["fault", "clear", "--all"]);
    tool::wait_until("it returns", PATIENCE, || !says(daemon, 1, "sits_out"));
    assert!(problem(daemon, "member.slow").is_none());
    let before = latency(daemon, 1).unwrap().number("reads");
    stamped.verify(export);
    assert!(latency(daemon, 1).unwrap().number("reads") > before, "it is read again");
}

#[test]
fn a_slow_member_of_raid5_sits_out_and_returns() {
    sits_out_and_returns(5, 4);
}

#[test]
fn a_slow_half_of_a_mirror_sits_out_and_returns() {
    sits_out_and_returns(1, 2);
}

#[test]
fn a_slow_member_of_a_degraded_raid5_is_reported_and_read() {
    let group = group("slowdegr", 5, 4, &[]);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    let path = daemon.group("tank").text("members.3.drive");
    daemon.fail(path.as_ref());
    slow_down(daemon, 1);
    stamped.load_while(export, 2, || {
        tool::wait_until("it is reported", PATIENCE * 2, || problem(daemon, "member.slow").is_some());
    });
    let slow = problem(daemon, "member.slow").unwrap();
    assert!(slow.text("why").contains("cannot do without it"), "{slow:?}");
    assert!((0..4).all(|slot| !says(daemon, slot, "sits_out")));
    stamped.verify(export);
}

#[test]
fn an_error_budget_drops_a_member_only_if_the_group_can_lose_another() {
    for (level, width, is_dropped) in [(6, 5, true), (5, 4, false)] {
        let group = group(&format!("budget{level}"), level, width, &["--error-budget", "4"]);
        let StampedGroup { stamped, export, daemon, .. } = &group;
        tool::wait_until("it is watched", PATIENCE, || latency(daemon, 1).is_some());
        let start = daemon.ok(&["examine", &daemon.group("tank").text("members.1.drive")]);
        let range = format!("{}+2M", start.number("superblock.data_offset_bytes"));
        daemon.ok(&["fault", "inject", "tank:1", "bad", "--range", &range]);
        stamped.verify(export);
        if is_dropped {
            tool::wait_until("it is dropped", PATIENCE, || daemon.member_states("tank")[1] == "failed");
        } else {
            tool::wait_until("it is reported", PATIENCE, || problem(daemon, "member.sick").is_some());
            assert_eq!(daemon.member_states("tank")[1], "in_sync");
        }
        stamped.verify(export);
    }
}

/// Two slow members of a RAID 5: the group can do without one of them. Both are reported, one is read.
#[test]
fn of_two_slow_members_of_raid5_only_one_sits_out() {
    let group = group("slowtwo", 5, 5, &[]);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    slow_down(daemon, 1);
    slow_down(daemon, 3);
    let slow = |slot| says(daemon, slot, "slow");
    stamped.load_while(export, 2, || {
        tool::wait_until("both are slow", PATIENCE * 2, || slow(1) && slow(3));
    });
    let out: Vec<usize> = [1, 3].into_iter().filter(|&slot| says(daemon, slot, "sits_out")).collect();
    assert_eq!(out.len(), 1, "never more than redundancy allows: {out:?}");
    let other = if out[0] == 1 { 3 } else { 1 };
    let problems = daemon.ok(&["status"]).list("problems");
    let of = |slot: usize| {
        let is_its = |problem: &&Json| {
            problem.text("code") == "member.slow" && usize::try_from(problem.number("slot")).unwrap() == slot
        };
        problems.iter().find(is_its).unwrap_or_else(|| panic!("no problem of slot {slot}: {problems:?}"))
    };
    assert!(of(out[0]).text("why").contains("reads avoid it"), "{:?}", of(out[0]));
    assert!(of(other).text("why").contains("cannot do without it"), "{:?}", of(other));
    assert_eq!(daemon.group("tank").text("state"), "healthy");
    // All of it is right, with reads from the one and not from the other.
    let reads = |slot: usize| latency(daemon, slot).unwrap().number("reads");
    let before = (reads(out[0]), reads(other));
    stamped.verify(export);
    assert_eq!(reads(out[0]), before.0);
    assert!(reads(other) > before.1);
    daemon.ok(&["fault", "clear", "--all"]);
    tool::wait_until("both return", PATIENCE * 2, || !slow(1) && !slow(3));
}
