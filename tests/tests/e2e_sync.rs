//! A member lost while a new group is still being synced, under load: what was written is right after every further loss,
//! and nobody is told of redundancy that is not made yet.

use warpraid_tests::check::assert_redundant;
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::group::DRIVE_BYTES;
use warpraid_tests::{Daemon, Lab, Stamped, http, tool};

/// What everybody says of the redundancy that is left.
fn redundancy_left(daemon: &Daemon) -> u64 {
    let page = http::get_text(&daemon.socket, "/metrics");
    let line = page.lines().find(|line| line.starts_with("warpraid_group_redundancy_left")).unwrap();
    let told: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(daemon.group("tank").number("tolerates"), told, "metric and document");
    told
}

fn lost_during_sync(level: u32, width: usize) {
    let lab = Lab::new(&format!("sl07-{level}"));
    let daemon = lab.daemon_with(&["--allow-faults"]);
    let mut drives = lab.drives("d", width, DRIVE_BYTES);
    // The sync takes long enough for all of this to happen in it.
    for drive in &drives {
        daemon.ok(&["fault", "inject", tool::text(drive), "slow", "--delay-ms", "10"]);
    }
    daemon.create("tank", level, &drives);
    daemon.ok(&["group", "set", "tank", "--rebuild-speed", "low"]);
    daemon.disk("tank/disk", "16M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.load_while(&export, 2, || {
        stamped.wait_for_requests(50);
        assert_eq!(daemon.group("tank").text("state"), "syncing");
        assert_eq!(redundancy_left(&daemon), 0, "RAID {level}: not before it is made");
        daemon.fail(&drives[1]);
        stamped.wait_for_requests(100);
        let status = daemon.ok(&["status"]);
        let codes: Vec<String> = status.list("problems").iter().map(|one| one.text("code")).collect();
        assert!(codes.contains(&"group.syncing".to_owned()), "RAID {level}: {codes:?}");
        assert_eq!(redundancy_left(&daemon), 0, "RAID {level}: a member short and not synced");
        assert_eq!(daemon.run(&["health"]).exit, 2, "RAID {level}: the next loss may lose data");
    });
    stamped.verify(&export);
    daemon.ok(&["fault", "clear", "--all"]);
    drives[1] = lab.drive("new", DRIVE_BYTES);
    daemon.replace("tank", 1, &drives[1]);
    daemon.wait("tank", "healthy");
    let whole = redundancy_left(&daemon);
    assert!(whole > 0 && daemon.run(&["health"]).exit == 0);
    stamped.verify(&export);
    stamped.flush(&export);
    assert_redundant(&drives);
    for (seed, drive) in (7..).zip(&drives) {
        daemon.fail(drive);
        stamped.verify(&export);
        stamped.some(&export, seed, 20);
        daemon.ok(&["group", "readd", "tank", tool::text(drive)]);
        tool::wait_until("it is whole again", PATIENCE, || daemon.run(&["health"]).exit == 0);
        assert_eq!(redundancy_left(&daemon), whole);
    }
    stamped.verify(&export);
    stamped.flush(&export);
    assert_redundant(&drives);
}

#[test]
fn sl_07_a_member_lost_during_the_initial_sync_of_raid5_under_load() {
    lost_during_sync(5, 4);
}

#[test]
fn sl_07_a_member_lost_during_the_initial_sync_of_raid6_under_load() {
    lost_during_sync(6, 5);
}

#[test]
fn sl_07_a_member_lost_during_the_initial_sync_of_mirrors_under_load() {
    lost_during_sync(1, 3);
    lost_during_sync(10, 4);
}
