//! Scrub and lost blocks by the real daemon: named, repaired where it is certain, kept over restarts.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use stamps::load::Op;
use stamps::members::Place;
use warpraid_tests::bad_sectors::BadSectors;
use warpraid_tests::check::assert_redundant;
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::drives::overwrite;
use warpraid_tests::group::{DRIVE_BYTES, fill};
use warpraid_tests::{Answer, Daemon, Json, Lab, StampedGroup, tool};

const DRIVE: u64 = DRIVE_BYTES;
const SIZE: &str = "24M";
const CHUNK: u64 = 64 << 10;

fn group(name: &str, level: u32, width: usize) -> StampedGroup {
    StampedGroup::new(name, level, width, SIZE, &[])
}

/// Where group data begins on a drive.
fn data_at(drive: &Path) -> u64 {
    Place::read(&File::open(drive).unwrap()).unwrap().data_at
}

/// Changes a byte of a drive behind the daemon's back.
fn flip(drive: &Path, at: u64) {
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(drive).unwrap(), &mut byte, at).unwrap();
    overwrite(drive, at, &[byte[0] ^ 0x10]);
}

fn show(daemon: &Daemon) -> Json {
    daemon.ok(&["group", "scrub", "tank", "--show"])
}

/// The document of a scrub that was waited for, whatever it came to.
fn document(answer: &Answer) -> Json {
    assert!(answer.exit <= 1 && answer.envelope.at("ok").0 == true, "{answer}");
    answer.envelope.at("data")
}

fn problems(daemon: &Daemon) -> Vec<String> {
    daemon.group("tank").list("problems").iter().map(|problem| problem.text("code")).collect()
}

/// Codes of all problems but those of one member: that behind nbdkit and FUSE really is slower and sicker than the others,
/// and may be called so.
fn problems_but_of(daemon: &Daemon, slot: u64) -> Vec<String> {
    let of_others = |problem: &Json| problem.at("slot").0.as_u64() != Some(slot);
    let problems = daemon.group("tank").list("problems").into_iter().filter(of_others);
    problems.map(|problem| problem.text("code")).collect()
}

#[test]
fn raid6_names_the_wrong_member_and_repairs_only_it() {
    let group = group("scrub6", 6, 5);
    let StampedGroup { daemon, drives, stamped, export, .. } = &group;
    let clean = daemon.run(&["group", "scrub", "tank", "--wait"]);
    assert_eq!(clean.exit, 0, "{clean}");
    assert_eq!(clean.data().number("last.skipped_stripes"), 0);
    assert_eq!(clean.data().number("last.checked_stripes"), clean.data().number("last.stripes"));
    let first = data_at(&drives[3]);
    let right: Vec<Vec<u8>> = drives.iter().map(|drive| std::fs::read(drive).unwrap()).collect();
    flip(&drives[3], first + 5 * CHUNK + 1000);
    let found = daemon.run(&["group", "scrub", "tank", "--wait"]);
    assert_eq!(found.exit, 1, "{found}");
    let finding = document(&found).at("last.findings.0");
    assert_eq!((finding.text("what"), finding.number("stripe")), ("located".into(), 5));
    assert_eq!(finding.number("members.0.slot"), 3);
    assert_eq!(finding.text("members.0.drive"), drives[3].display().to_string());
    assert_eq!(finding.number("members.0.offset_bytes"), first + 5 * CHUNK + 512);
    assert_eq!(problems(daemon), ["group.mismatch"]);
    assert_eq!(daemon.run(&["health"]).exit, 1);
    let mended = daemon.run(&["group", "scrub", "tank", "--repair", "--wait"]);
    assert_eq!(mended.exit, 0, "{mended}");
    assert_eq!(mended.data().number("last.repaired_blocks"), 1);
    assert!(problems(daemon).is_empty());
    let area = |bytes: &[u8]| bytes[usize::try_from(first).unwrap()..].to_vec();
    for (drive, right) in drives.iter().zip(&right) {
        assert!(area(&std::fs::read(drive).unwrap()) == area(right), "{}", drive.display());
    }
    assert_redundant(drives);
    stamped.verify(export);
    assert!(daemon.ok(&["disk", "show", "tank/disk"]).at("scrub").mentions("ended_unix_s"));
}

#[test]
fn raid1_5_and_10_report_and_repair_nothing_until_the_data_is_declared_right() {
    for (level, width) in [(1, 2), (5, 4), (10, 4)] {
        let group = group(&format!("scrub{level}"), level, width);
        let StampedGroup { daemon, drives, .. } = &group;
        let at = data_at(&drives[1]) + 7 * CHUNK;
        flip(&drives[1], at);
        let wrong = std::fs::read(&drives[1]).unwrap();
        let found = daemon.run(&["group", "scrub", "tank", "--repair", "--wait"]);
        assert_eq!(found.exit, 1, "{found}");
        assert_eq!(document(&found).number("last.mismatched_stripes"), 1);
        assert_eq!(document(&found).number("last.repaired_blocks"), 0);
        let from = usize::try_from(at).unwrap();
        assert_eq!(std::fs::read(&drives[1]).unwrap()[from..from + 512], wrong[from..from + 512]);
        assert_eq!(problems(daemon), ["group.mismatch"], "level {level}");
        daemon.ok(&["group", "scrub", "tank", "--acknowledge"]);
        assert!(problems(daemon).is_empty(), "level {level}");
        daemon.run(&["group", "scrub", "tank", "--acknowledge"]).fails(2, &["tank"]);
        let declared = daemon.run(&["group", "scrub", "tank", "--assume-data-right", "--wait"]);
        assert_eq!(declared.exit, 0, "{declared}");
        assert_redundant(drives);
    }
}

#[test]
fn a_group_short_of_a_member_is_not_scrubbed_unless_told() {
    let group = group("scrubdeg", 6, 5);
    let StampedGroup { daemon, drives, .. } = &group;
    daemon.fail(&drives[2]);
    daemon.run(&["group", "scrub", "tank"]).fails(3, &["tank", "--even-degraded"]);
    daemon.run(&["group", "scrub", "tank", "--pause"]).fails(2, &["tank"]);
    let scrubbed = daemon.run(&["group", "scrub", "tank", "--even-degraded", "--wait"]).data();
    assert_eq!(scrubbed.number("last.checked_stripes"), 0);
    assert_eq!(scrubbed.number("last.skipped_stripes"), scrubbed.number("last.stripes"));
}

#[test]
fn a_paused_scrub_keeps_place_mode_and_counts_over_restarts() {
    let lab = Lab::new("scrubpause");
    let drives = lab.drives("d", 5, 3 << 30);
    let mut daemon = lab.daemon();
    daemon.try_create("tank", "6", &drives, &["--init", "zero"]).data();
    let first = data_at(&drives[1]);
    flip(&drives[1], first + CHUNK);
    daemon.ok(&["group", "scrub", "tank", "--repair"]);
    tool::wait_until("it is under way", PATIENCE, || show(&daemon).text("state") == "running");
    daemon.run(&["group", "scrub", "tank"]).fails(7, &["tank"]);
    tool::wait_until("it has found it", PATIENCE, || show(&daemon).number("current.repaired_blocks") == 1);
    daemon.ok(&["group", "scrub", "tank", "--pause"]);
    tool::wait_until("it is paused", PATIENCE, || show(&daemon).text("state") == "paused");
    let before = show(&daemon).at("current");
    let (next, stripes) = (before.number("next_stripe"), before.number("stripes"));
    assert!(0 < next && next < stripes, "paused in the middle: {next} of {stripes}");
    daemon.stop();
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    let after = show(&daemon);
    assert_eq!((after.text("state"), after.at("current").0), ("paused".into(), before.0));
    daemon.ok(&["group", "scrub", "tank", "--resume"]);
    tool::wait_until("it goes on", PATIENCE, || show(&daemon).text("state") != "paused");
    daemon.kill();
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    tool::wait_until("it ends", PATIENCE, || show(&daemon).text("state") == "idle");
    let last = show(&daemon).at("last");
    assert_eq!((last.number("checked_stripes"), last.number("skipped_stripes")), (stripes, 0));
    assert_eq!((last.number("mismatched_stripes"), last.number("repaired_blocks")), (1, 1));
    assert_eq!(last.text("mode"), "repair");
}

#[test]
fn a_schedule_starts_a_scrub_by_itself_and_survives_a_restart() {
    let mut group = group("scrubplan", 5, 3);
    let set = ["group", "set", "tank", "--scrub", "weekly", "--scrub-window", "any"];
    group.daemon.ok(&[&set[..], &["--dry-run"]].concat());
    assert_eq!(group.daemon.group("tank").text("settings.scrub"), "off");
    group.daemon.run(&["group", "set", "tank", "--scrub-window", "5-6"]).fails(2, &["5-6"]);
    group.daemon.ok(&set);
    let has_ended = |daemon: &Daemon| show(daemon).0["last"]["ended_unix_s"].is_u64();
    tool::wait_until("the scheduled scrub ends", PATIENCE, || has_ended(&group.daemon));
    let due = show(&group.daemon).number("next_due_unix_s");
    assert!(show(&group.daemon).at("last").mentions("scheduled"));
    group.daemon.stop();
    group.daemon.start_again();
    group.daemon.bring_up("tank", &group.drives);
    assert_eq!(group.daemon.group("tank").text("settings.scrub"), "weekly");
    assert_eq!(show(&group.daemon).number("next_due_unix_s"), due, "it is not due again");
}

/// What a row of member blocks holds of the disk: the offsets in the disk of the data of these slots.
fn disk_offsets(width: u64, parities: u64, start: u64, at: u64, slots: &[u64]) -> Vec<u64> {
    let (stripe, column) = (at / CHUNK, at % CHUNK);
    let p = width - 1 - stripe % width;
    let index = |slot: u64| ((slot + width - p) % width).checked_sub(parities);
    let data = width - parities;
    slots.iter().filter_map(|&slot| Some((stripe * data + index(slot)?) * CHUNK + column - start)).collect()
}

fn lost(daemon: &Daemon) -> Vec<Range<u64>> {
    let disk = daemon.ok(&["disk", "show", "tank/disk"]);
    let range = |range: &Json| {
        range.number("offset_bytes")..range.number("offset_bytes") + range.number("length_bytes")
    };
    disk.list("lost").iter().map(range).collect()
}

#[test]
fn ot_02_a_rebuild_over_unreadable_sectors_loses_exactly_those_and_a_rewrite_brings_them_back() {
    let lab = Lab::new("ot02");
    let bad = BadSectors::new(&lab, "bad", DRIVE);
    let mut drives = lab.drives("d", 4, DRIVE);
    drives[1] = bad.path().to_owned();
    let mut daemon = lab.daemon();
    let (stamped, mut export) = fill(&daemon, 5, &drives, SIZE);
    let start = daemon.ok(&["disk", "show", "tank/disk"]).number("start_bytes");
    daemon.fail(&drives[0]);
    let first_stripe = start / (3 * CHUNK);
    let rows: Vec<u64> = [(3, 0), (4, 4096), (9, 61440)].map(|(s, c)| (first_stripe + s) * CHUNK + c).into();
    let first = data_at(bad.backing());
    bad.spoil(&rows.iter().map(|at| first + at..first + at + 4096).collect::<Vec<_>>());
    let spare = lab.drive("spare", DRIVE);
    daemon.replace("tank", 0, &spare);
    drives[0] = spare;
    daemon.wait("tank", "healthy");
    let mut expected: Vec<u64> = rows.iter().flat_map(|&at| disk_offsets(4, 1, start, at, &[0, 1])).collect();
    expected.sort_unstable();
    assert!(expected.len() >= 3);
    for round in 0..2 {
        let mut client = export.connect();
        let failing: Vec<u64> = (0..export.size_bytes)
            .step_by(4096)
            .filter(|&at| match client.read(at, 4096) {
                Ok(data) => {
                    assert_eq!(stamped.check(at, &data), [], "round {round}");
                    false
                }
                Err(error) => {
                    assert_eq!(error.errno(), Some(5), "{error}");
                    true
                }
            })
            .collect();
        assert_eq!(failing, expected, "round {round}: exactly those blocks");
        let listed: Vec<Range<u64>> = expected.iter().map(|&at| at..at + 4096).collect();
        tool::wait_until("they are listed by disk offset", PATIENCE, || lost(&daemon) == listed);
        assert_eq!(problems_but_of(&daemon, 1), ["group.badblocks"]);
        assert_eq!(daemon.run(&["health"]).exit, 2);
        if round == 0 {
            daemon.stop();
            daemon.start_again();
            daemon.bring_up("tank", &drives);
            export = daemon.expose("tank/disk");
        }
    }
    stamped.run(&export, expected.iter().map(|&at| Op::Write { at, bytes: 4096, fua: false })).unwrap();
    stamped.verify(&export);
    tool::wait_until("nothing is lost any more", PATIENCE, || lost(&daemon).is_empty());
    assert_eq!(problems_but_of(&daemon, 1), [""; 0]);
    let scrubbed = daemon.run(&["group", "scrub", "tank", "--wait"]);
    assert_eq!(scrubbed.exit, 0, "{scrubbed}");
    assert_eq!(bad.unreadable(), 0, "every sector was rewritten");
}

#[test]
fn ot_02_raid6_is_rebuilt_whole_and_the_unreadable_sectors_are_rewritten() {
    let lab = Lab::new("ot02r6");
    let bad = BadSectors::new(&lab, "bad", DRIVE);
    let mut drives = lab.drives("d", 5, DRIVE);
    drives[1] = bad.path().to_owned();
    let daemon = lab.daemon();
    let (stamped, export) = fill(&daemon, 6, &drives, SIZE);
    daemon.fail(&drives[0]);
    let first = data_at(bad.backing());
    bad.spoil(&[5, 6, 70].map(|stripe| first + stripe * CHUNK + 512..first + stripe * CHUNK + 1024));
    let spare = lab.drive("spare", DRIVE);
    daemon.replace("tank", 0, &spare);
    drives[0] = spare;
    daemon.wait("tank", "healthy");
    assert_eq!(bad.unreadable(), 0, "rewritten by the rebuild");
    assert_eq!(daemon.member_states("tank"), ["in_sync"; 5]);
    stamped.verify(&export);
    assert!(lost(&daemon).is_empty());
    assert_eq!(problems_but_of(&daemon, 1), [""; 0]);
    drives[1] = bad.backing().to_owned();
    assert_redundant(&drives);
}
