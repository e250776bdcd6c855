//! A serving member is replaced: its drive goes on serving while the new one is filled, under stamped load, whatever fails
//! or stops in the middle.

use std::path::{Path, PathBuf};

use warpraid_tests::check::assert_redundant;
use warpraid_tests::cli::Json;
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::{Daemon, StampedGroup, tool};

fn group(name: &str, level: u32, width: usize) -> StampedGroup {
    StampedGroup::new(name, level, width, "24M", &["--allow-faults"])
}

fn member(daemon: &Daemon, slot: usize) -> Json {
    daemon.group("tank").list("members").swap_remove(slot)
}

/// Makes the new drive slow, so that there is a middle.
fn slow_down(daemon: &Daemon, drive: &Path) {
    daemon.ok(&["fault", "inject", tool::text(drive), "slow", "--delay-ms", "30"]);
}

/// Waits until the copy is under way, and some of it done.
fn wait_for_the_middle(daemon: &Daemon, slot: usize) {
    tool::wait_until("some of it is copied", PATIENCE, || {
        let progress = member(daemon, slot).at("progress");
        !progress.0.is_null() && progress.text("operation") == "replace" && progress.number("done_bytes") > 0
    });
}

fn wait_for_the_end(daemon: &Daemon, slot: usize) {
    tool::wait_until("the replacement has ended", PATIENCE, || {
        let member = member(daemon, slot);
        member.at("successor").0.is_null() && member.text("state") == "in_sync"
    });
}

fn drive_of(daemon: &Daemon, slot: usize) -> PathBuf {
    member(daemon, slot).text("drive").into()
}

fn state_of(daemon: &Daemon, drive: &Path) -> String {
    daemon.ok(&["drive", "show", tool::text(drive)]).text("state")
}

#[test]
fn a_serving_member_is_replaced_under_load_on_every_level() {
    for (level, width) in [(0, 3), (1, 2), (5, 4), (6, 5), (10, 4)] {
        let mut group = group(&format!("succ{level}"), level, width);
        let new = group.lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
        let StampedGroup { stamped, export, daemon, .. } = &group;
        let plan = daemon.ok(&["group", "replace", "tank", "--slot", "1", tool::text(&new), "--dry-run"]);
        assert!(
            plan.mentions("serves meanwhile") && member(daemon, 1).at("successor").0.is_null(),
            "{plan:?}"
        );
        let epoch = daemon.group("tank").number("epoch.counter");
        stamped.load_while(export, 2, || {
            slow_down(daemon, &new);
            daemon.replace("tank", 1, &new);
            wait_for_the_middle(daemon, 1);
            let shown = daemon.group("tank");
            assert_eq!(shown.text("state"), "healthy", "redundancy never falls");
            assert_eq!(member(daemon, 1).text("successor"), tool::text(&new));
            assert_eq!(drive_of(daemon, 1), group.drives[1]);
            daemon.run(&["group", "replace", "tank", "--slot", "1", tool::text(&new)]).fails(2, &["already"]);
            daemon.run(&["drive", "wipe", tool::text(&new), "--dry-run"]).fails(7, &["slot 1"]);
            assert_eq!(state_of(daemon, &new), "member");
            daemon.ok(&["fault", "clear", "--all"]);
            daemon.wait("tank", "rebuilt");
            stamped.wait_for_requests(100);
        });
        wait_for_the_end(daemon, 1);
        assert_eq!(drive_of(daemon, 1), new);
        assert_eq!(daemon.group("tank").number("epoch.counter"), epoch + 1, "one change of membership");
        stamped.verify(export);
        stamped.flush(export);
        tool::wait_until("the old drive is blank", PATIENCE, || state_of(daemon, &group.drives[1]) == "free");
        let old = std::mem::replace(&mut group.drives[1], new);
        if level > 0 {
            assert_redundant(&group.drives);
        }
        // It starts again with the new one, and the old one is of use.
        group.daemon.stop();
        group.daemon.start_again();
        group.daemon.bring_up("tank", &group.drives);
        let export = group.daemon.expose("tank/disk");
        group.stamped.verify(&export);
        group.daemon.ok(&["spare", "add", tool::text(&old), "--global"]);
    }
}

#[test]
fn when_the_old_drive_dies_in_the_middle_the_new_one_is_rebuilt() {
    let mut group = group("succdies", 6, 5);
    let new = group.lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    stamped.load_while(export, 2, || {
        slow_down(daemon, &new);
        daemon.replace("tank", 2, &new);
        wait_for_the_middle(daemon, 2);
        daemon.ok(&["fault", "inject", "tank:2", "fail"]);
        tool::wait_until("it is dropped", PATIENCE, || drive_of(daemon, 2) == new);
        daemon.ok(&["fault", "clear", "--all"]);
        daemon.wait("tank", "rebuilt");
        stamped.wait_for_requests(100);
    });
    stamped.verify(export);
    stamped.flush(export);
    group.drives[2] = new;
    assert_redundant(&group.drives);
}

#[test]
fn when_the_new_drive_dies_the_group_is_as_it_was() {
    let group = group("succnew", 5, 4);
    let new = group.lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
    let StampedGroup { stamped, export, daemon, drives, .. } = &group;
    let epoch = daemon.group("tank").number("epoch.counter");
    stamped.load_while(export, 2, || {
        slow_down(daemon, &new);
        daemon.replace("tank", 0, &new);
        wait_for_the_middle(daemon, 0);
        daemon.ok(&["fault", "inject", tool::text(&new), "fail"]);
        wait_for_the_end(daemon, 0);
    });
    assert_eq!(drive_of(daemon, 0), drives[0]);
    assert_eq!(daemon.group("tank").number("epoch.counter"), epoch, "no change of membership");
    let events = daemon.ok(&["events", "--code", "rebuild.failed"]);
    assert!(events.mentions("keeps slot 0"), "{events:?}");
    stamped.verify(export);
    stamped.flush(export);
    assert_redundant(drives);
}

#[test]
fn the_operator_stops_a_replacement_and_the_new_drive_is_blank_again() {
    let group = group("succstop", 5, 4);
    let new = group.lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
    let StampedGroup { stamped, export, daemon, drives, .. } = &group;
    slow_down(daemon, &new);
    daemon.replace("tank", 3, &new);
    wait_for_the_middle(daemon, 3);
    assert!(daemon.ok(&["drive", "fail", tool::text(&new), "--dry-run"]).mentions("no longer filled"));
    assert!(!member(daemon, 3).at("successor").0.is_null());
    // While it is still slow: once it is filled it is the member, and this would drop it.
    daemon.fail(&new);
    daemon.ok(&["fault", "clear", "--all"]);
    wait_for_the_end(daemon, 3);
    assert_eq!(drive_of(daemon, 3), drives[3]);
    tool::wait_until("the new drive is blank", PATIENCE, || state_of(daemon, &new) == "free");
    stamped.verify(export);
    assert_redundant(drives);
}

#[test]
fn over_a_restart_and_over_a_crash_the_replacement_goes_on() {
    for is_crash in [false, true] {
        let mut group = group(&format!("succkill{is_crash}"), 6, 5);
        let new = group.lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
        slow_down(&group.daemon, &new);
        group.daemon.replace("tank", 1, &new);
        wait_for_the_middle(&group.daemon, 1);
        group.stamped.some(&group.export, 3, 50);
        if is_crash {
            group.daemon.kill();
            group.stamped.crash();
        } else {
            group.daemon.stop();
        }
        let examined = tool::run("mdadm", &["--examine", tool::text(&new)]);
        assert!(examined.contains("Replacement device 1"), "{examined}");
        group.daemon.start_again();
        group.daemon.bring_up("tank", &group.drives);
        let export = group.daemon.expose("tank/disk");
        group.stamped.verify(&export);
        wait_for_the_end(&group.daemon, 1);
        tool::wait_until("it has the slot", PATIENCE, || drive_of(&group.daemon, 1) == new);
        group.daemon.wait("tank", "healthy");
        group.stamped.verify(&export);
        group.stamped.flush(&export);
        group.drives[1] = new;
        assert_redundant(&group.drives);
    }
}

#[test]
fn with_now_the_old_drive_is_dropped_at_once() {
    let mut group = group("succnow", 6, 5);
    let new = group.lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
    let StampedGroup { stamped, export, daemon, .. } = &group;
    let words = ["group", "replace", "tank", "--slot", "1", "--now", tool::text(&new)];
    assert!(daemon.ok(&[&words[..], &["--dry-run"]].concat()).mentions("is dropped from slot 1"));
    daemon.ok(&words);
    assert_eq!(drive_of(daemon, 1), new);
    daemon.wait("tank", "rebuilt");
    stamped.verify(export);
    group.drives[1] = new;
    assert_redundant(&group.drives);
}
