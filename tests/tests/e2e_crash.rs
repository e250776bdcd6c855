//! The daemon dies without a good-bye: everything acknowledged and flushed is there when it comes back.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use raid_core::format::extension::{COPY_BYTES, Extension};
use stamps::load::Failure;
use warpraid_tests::check::{LEVELS, assert_redundant};
use warpraid_tests::daemon::{Export, PATIENCE};
use warpraid_tests::tool::wait_until;
use warpraid_tests::{Daemon, Lab, Stamped};

const DRIVE: u64 = 64 << 20;
/// Extension areas of drives this small lie in their first bytes.
const HEAD: usize = 2 << 20;

/// Kills the daemon in the middle of load on two connections, starts it again and brings the group up from `drives`.
fn kill_under_load(
    daemon: &mut Daemon,
    stamped: &Stamped,
    export: &Export,
    drives: &[PathBuf],
    seed: u64,
) -> Export {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let loads: Vec<_> =
            [seed, seed + 1].map(|s| scope.spawn(move || stamped.load(export, s, stop))).into();
        stamped.wait_for_requests(300);
        daemon.kill();
        for load in loads {
            let end = load.join().expect("the load does not panic");
            assert!(matches!(end, Err(Failure::Connection(_))), "the load ended with {end:?}");
        }
    });
    stamped.crash();
    daemon.start_again();
    daemon.bring_up("tank", drives);
    daemon.expose("tank/disk")
}

fn survives(level: u32, width: usize, lost: &[usize]) {
    let lab = Lab::new(&format!("crash{level}"));
    let mut drives = lab.drives("d", width, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", level, &drives);
    daemon.disk("tank/disk", "24M");
    let mut export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.some(&export, 1, 200);
    daemon.wait("tank", "synced");
    for slot in lost {
        daemon.fail(&drives[*slot]);
    }
    drives = drives.into_iter().enumerate().filter(|(i, _)| !lost.contains(i)).map(|(_, d)| d).collect();
    for round in 0..3 {
        export = kill_under_load(&mut daemon, &stamped, &export, &drives, 10 * round + 2);
        stamped.verify(&export);
        stamped.some(&export, 100 + round, 200);
    }
    stamped.verify(&export);
    if lost.is_empty() {
        daemon.wait("tank", "synced");
        stamped.flush(&export);
        if level != 0 {
            assert_redundant(&drives);
        }
    }
}

#[test]
fn kill_9_of_a_healthy_raid0_keeps_what_was_flushed() {
    survives(0, LEVELS[0].1, &[]);
}

#[test]
fn kill_9_of_a_healthy_raid1_keeps_what_was_flushed() {
    survives(1, LEVELS[1].1, &[]);
}

#[test]
fn kill_9_of_a_healthy_raid5_keeps_what_was_flushed() {
    survives(5, LEVELS[2].1, &[]);
}

#[test]
fn kill_9_of_a_healthy_raid6_keeps_what_was_flushed() {
    survives(6, LEVELS[3].1, &[]);
}

#[test]
fn kill_9_of_a_healthy_raid10_keeps_what_was_flushed() {
    survives(10, LEVELS[4].1, &[]);
}

#[test]
fn kill_9_of_a_degraded_raid1_keeps_what_was_flushed() {
    survives(1, 2, &[0]);
}

#[test]
fn kill_9_of_a_degraded_raid10_keeps_what_was_flushed() {
    survives(10, 4, &[1]);
}

/// A clean stop loses nothing at all, flushed or not, and the group comes back clean.
#[test]
fn a_clean_stop_keeps_everything_acknowledged() {
    let lab = Lab::new("clean");
    let drives = lab.drives("d", 4, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.some(&export, 1, 300);
    daemon.wait("tank", "synced");
    daemon.stop();
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    assert_eq!(daemon.group("tank").text("state"), "healthy", "after a clean stop nothing is to be resynced");
    let export = daemon.expose("tank/disk");
    stamped.verify(&export);
}

/// SL-09 without a journal: dirty and degraded, so blocks could read as what nobody wrote. Refused, with the risk named
/// and nothing written; forced, it starts and is marked for ever.
#[test]
fn sl_09_dirty_and_degraded_parity_refuses_to_start_and_force_marks_it_for_ever() {
    let lab = Lab::new("sl09");
    let drives = lab.drives("d", 4, DRIVE);
    let mut daemon = lab.daemon_with(&["--no-assemble"]);
    let uuid = daemon.create("tank", 5, &drives).text("groups.0.uuid");
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| stamped.load(&export, 5, &stop));
        stamped.wait_for_requests(200);
        daemon.kill();
        assert!(load.join().unwrap().is_err());
    });
    let rest = &drives[1..];
    std::fs::rename(&drives[0], lab.join("pulled")).unwrap();
    let before = warpraid_tests::drives::hashes(rest);
    daemon.start_again();
    let refused = daemon.assemble("tank", rest, &[]);
    refused.fails(3, &["degraded", "force"]);
    assert_eq!(refused.envelope.text("error.code"), "group.dirty.degraded");
    assert_eq!(warpraid_tests::drives::hashes(rest), before, "a refusal writes nothing");

    let wrong = "00000000-0000-4000-8000-000000000000";
    daemon.assemble("tank", rest, &["--force", "--yes", "--expect-uuid", wrong]).fails(3, &[]);
    daemon.assemble("tank", rest, &["--force"]).fails(3, &[]);
    assert_eq!(warpraid_tests::drives::hashes(rest), before, "a refusal writes nothing");

    daemon.assemble("tank", rest, &["--force", "--yes", "--expect-uuid", &uuid]).data();
    assert!(daemon.group("tank").at("forced").0 == true, "a forced start is marked");
    daemon.ok(&["group", "stop", "tank"]);
    daemon.assemble("tank", rest, &[]).data();
    assert!(daemon.group("tank").at("forced").0 == true, "the mark stays");
}

/// Whether the member says that nothing was written since everything was flushed, by its newest extension copy.
fn is_quiet(drive: &Path) -> bool {
    let mut bytes = vec![0; HEAD];
    std::fs::File::open(drive).unwrap().read_exact(&mut bytes).unwrap();
    let copies = bytes.windows(COPY_BYTES).step_by(4096).filter_map(|at| Extension::decode(at).ok());
    copies.max_by_key(|copy| copy.sequence).expect("a member").marks.quiet
}

fn starts_by_itself_when_idle(level: u32, width: usize, lost: usize) {
    let lab = Lab::new(&format!("idle{level}"));
    let drives = lab.drives("d", width, DRIVE);
    let mut daemon = lab.daemon_with(&["--no-assemble"]);
    daemon.create("tank", level, &drives);
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    drives[..lost].iter().for_each(|drive| drop(daemon.fail(drive)));
    stamped.some(&export, 2, 300);
    let rest = &drives[lost..];
    for round in 0..2 {
        wait_until("the group is quiet", PATIENCE, || rest.iter().all(|drive| is_quiet(drive)));
        daemon.kill();
        daemon.start_again();
        daemon.assemble("tank", rest, &[]).data();
        assert_eq!(daemon.group("tank").text("state"), "degraded");
        assert!(daemon.group("tank").at("forced").0 != true, "nobody forced it");
        let export = daemon.expose("tank/disk");
        // Quiet means flushed: what was acknowledged is there, flushed by the client or not.
        stamped.verify(&export);
        stamped.some(&export, 10 + round, 200);
    }
    // Written a moment ago: a write may be torn.
    assert!(!rest.iter().any(|drive| is_quiet(drive)));
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.assemble("tank", rest, &[]).envelope.text("error.code"), "group.dirty.degraded");
}

/// A degraded parity group that idles starts by itself after a kill -9, and so it does again; one that was being written
/// asks.
#[test]
fn sl_09_kill_9_of_an_idle_degraded_parity_group_needs_no_force() {
    std::thread::scope(|scope| {
        for (level, width, lost) in [(5, 4, 1), (6, 5, 2)] {
            scope.spawn(move || starts_by_itself_when_idle(level, width, lost));
        }
    });
}

/// The same crash with all members present starts by itself and is resynced.
#[test]
fn sl_09_dirty_and_complete_starts_and_is_resynced() {
    survives(5, 3, &[]);
}
