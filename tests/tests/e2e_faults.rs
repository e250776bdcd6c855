//! Drives that fail while they are used, by themselves and not by our own `drive fail`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use warpraid_tests::check::assert_redundant;
use warpraid_tests::daemon::{Export, PATIENCE};
use warpraid_tests::faulty::Faulty;
use warpraid_tests::{Daemon, Lab, Stamped, tool};

const DRIVE: u64 = 64 << 20;

struct Group {
    export: Export,
    stamped: Stamped,
    daemon: Daemon,
    drives: Vec<PathBuf>,
    faulty: Faulty,
    // Last: the folder goes when nothing is in it any more.
    lab: Lab,
}

/// A synced, stamped group whose member in slot 1 fails on command.
fn group(name: &str, level: u32, width: usize, options: &[&str]) -> Group {
    let lab = Lab::new(name);
    let faulty = Faulty::new(&lab, "faulty", DRIVE);
    let mut drives = lab.drives("d", width, DRIVE);
    drives[1] = faulty.path().to_owned();
    let daemon = lab.daemon_with(options);
    daemon.create("tank", level, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    Group { export, stamped, daemon, drives, faulty, lab }
}

impl Group {
    /// Replaces the faulty member and checks everything.
    fn heal(&mut self) {
        let spare = self.lab.drive("spare", DRIVE);
        self.daemon.replace("tank", 1, &spare);
        self.drives[1] = spare;
        self.daemon.wait("tank", "healthy");
        self.stamped.verify(&self.export);
        self.stamped.flush(&self.export);
        assert_redundant(&self.drives);
    }
}

fn write_errors_drop_the_member(level: u32, width: usize) {
    let mut group = group(&format!("sl08-{level}"), level, width, &[]);
    let Group { stamped, export, daemon, faulty, .. } = &group;
    stamped.load_while(export, 2, || {
        stamped.wait_for_requests(100);
        faulty.fail_writes(true);
        // A time-out, not the promise of one second: that one is for a machine that does nothing else.
        tool::wait_until("health is not ok", PATIENCE, || daemon.run(&["health"]).exit != 0);
        stamped.wait_for_requests(200);
    });
    assert_eq!(daemon.member_states("tank")[1], "failed");
    let member = daemon.group("tank").at("members.1");
    assert!(member.at("why").0.is_string(), "{member:?}");
    assert!(daemon.ok(&["status"]).mentions("tank"), "status names the group");
    stamped.verify(export);
    group.heal();
}

#[test]
fn sl_08_a_write_error_on_raid1_drops_the_member_and_the_host_sees_nothing() {
    write_errors_drop_the_member(1, 2);
}

#[test]
fn sl_08_a_write_error_on_raid5_drops_the_member_and_the_host_sees_nothing() {
    write_errors_drop_the_member(5, 4);
}

#[test]
fn sl_08_a_write_error_on_raid6_drops_the_member_and_the_host_sees_nothing() {
    write_errors_drop_the_member(6, 5);
}

#[test]
fn sl_08_a_write_error_on_raid10_drops_the_member_and_the_host_sees_nothing() {
    write_errors_drop_the_member(10, 4);
}

/// A read error is repaired or worked around; the host sees right data either way.
#[test]
fn read_errors_are_reconstructed_and_the_host_sees_nothing() {
    let mut group = group("readerr", 5, 4, &[]);
    group.faulty.fail_reads(true);
    group.stamped.verify(&group.export);
    group.stamped.some(&group.export, 3, 300);
    group.stamped.verify(&group.export);
    group.faulty.fail_reads(false);
    if group.daemon.member_states("tank")[1] == "in_sync" {
        group.stamped.verify(&group.export);
        group.stamped.flush(&group.export);
        assert_redundant(&group.drives);
    } else {
        group.heal();
    }
}

/// A member that hangs is dropped after the drive time-out, and until then nothing is lost or answered wrongly.
#[test]
fn a_hanging_member_is_dropped_and_io_goes_on() {
    let mut group = group("hang", 6, 5, &["--drive-timeout", "2s"]);
    let Group { stamped, export, daemon, faulty, .. } = &group;
    stamped.load_while(export, 2, || {
        stamped.wait_for_requests(100);
        faulty.hang();
        tool::wait_until("the member is dropped", PATIENCE, || daemon.member_states("tank")[1] != "in_sync");
        stamped.wait_for_requests(300);
        faulty.resume();
        stamped.wait_for_requests(100);
    });
    let slowest_ms = stamped.counters.slowest_ns.load(Ordering::Relaxed) / 1_000_000;
    println!("the slowest request took {slowest_ms} ms with a drive time-out of 2 s");
    stamped.verify(export);
    group.heal();
}

/// Both: a second member fails while the first one's replacement is being rebuilt.
#[test]
fn raid6_survives_a_second_failure_during_a_rebuild() {
    let mut group = group("second", 6, 5, &[]);
    group.daemon.fail(&group.drives[3]);
    let spare = group.lab.drive("spare3", DRIVE);
    group.daemon.replace("tank", 3, &spare);
    group.drives[3] = spare;
    let Group { stamped, export, daemon, faulty, .. } = &group;
    stamped.load_while(export, 2, || {
        faulty.fail_writes(true);
        tool::wait_until("the member is dropped", PATIENCE, || daemon.member_states("tank")[1] == "failed");
        tool::wait_until("the rebuild ends", PATIENCE, || daemon.member_states("tank")[3] == "in_sync");
    });
    stamped.verify(export);
    group.heal();
}
