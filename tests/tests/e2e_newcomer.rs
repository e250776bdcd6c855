//! What somebody finds who uses warpraid for the first time: names as the screen shows them, commands that help as printed,
//! what is lost before it is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use warpraid_tests::cli::{self, Json};
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::tool::{self, text};
use warpraid_tests::{Answer, Daemon, Lab, StampedGroup};

const DRIVE: u64 = 32 << 20;

fn problem(daemon: &Daemon, code: &str) -> Option<Json> {
    daemon.ok(&["status"]).list("problems").into_iter().find(|problem| problem.text("code") == code)
}

/// The `next` of a problem once it contains this.
fn next_becomes(daemon: &Daemon, code: &str, wanted: &str) -> Json {
    let mut last = None;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = problem(daemon, code);
        if let Some(told) = told.as_ref().filter(|told| told.text("next").contains(wanted)) {
            return told.clone();
        }
        assert!(Instant::now() < deadline, "NEXT never says {wanted}: {last:?}");
        last = told;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Runs the first command of a `next` as it is printed (what follows three blanks is for people).
fn follow(daemon: &Daemon, next: &str) -> Answer {
    let words: Vec<&str> = next.split("   ").next().unwrap().split(' ').collect();
    assert_eq!(words[0], "warpraid", "{next}");
    daemon.run(&words[1..])
}

fn set_len(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn events_of_the_last_hours_are_the_newest_and_what_is_left_out_is_said() {
    let lab = Lab::new("many");
    let daemon = lab.daemon();
    for _ in 0..110 {
        daemon.ok(&["alert", "test"]);
    }
    let list = daemon.ok(&["events", "--since", "2h"]);
    let events = list.list("events");
    assert_eq!(events.len(), 100);
    assert_eq!(events.last().unwrap().number("id"), list.number("newest_id"));
    assert_eq!(list.number("left_out"), 11, "110 and the start");
    let human = |arguments: &[&str]| {
        let mut all = vec!["--socket", text(&daemon.socket), "events"];
        all.extend(arguments);
        tool::run(text(cli::binary()), &all)
    };
    assert!(human(&["--since", "2h"]).starts_with("11 older events before "));
    // Paging forward goes on where it stopped.
    let first = human(&["--since", "0"]);
    let hint = first.lines().last().unwrap();
    let after = hint.strip_prefix("11 newer events left out: --since ").unwrap_or_else(|| panic!("{hint}"));
    assert_eq!(human(&["--since", after]).lines().count(), 11);
}

#[test]
fn a_member_is_called_as_status_shows_it() {
    let lab = Lab::new("called");
    let daemon = lab.daemon();
    let drives = lab.drives("d", 5, DRIVE);
    daemon.create("tank", 6, &drives[..4]);
    daemon.wait("tank", "synced");
    for name in ["tank:2", "tank/2", "TANK:2"] {
        assert_eq!(daemon.ok(&["drive", "show", name]).text("path"), text(&drives[2]), "{name}");
        let dry = daemon.ok(&["drive", "fail", name, "--dry-run"]);
        assert!(dry.mentions("slot 2") && dry.mentions(text(&drives[2])), "{name}: {dry:?}");
    }
    daemon.run(&["drive", "fail", "tank:9"]).fails(2, &["slots 0 to 3"]);
    daemon.run(&["drive", "fail", "nobody:1"]).fails(4, &["nobody:1"]);
    daemon.ok(&["drive", "fail", "tank:2"]);
    daemon.run(&["drive", "fail", "tank:2"]).fails(4, &["slot 2"]);
    daemon.ok(&["group", "readd", "tank", "tank:2"]);
    daemon.wait("tank", "healthy");
    daemon.ok(&["drive", "fail", "tank:2"]);
    daemon.ok(&["group", "replace", "tank", "--old", "tank:2", text(&drives[4])]);
    daemon.wait("tank", "healthy");
}

#[test]
fn next_is_a_re_add_where_the_drive_is_there_and_a_replacement_where_it_is_not() {
    let lab = Lab::new("next");
    let mut daemon = lab.daemon();
    let drives = lab.drives("d", 4, DRIVE);
    daemon.create("tank", 6, &drives);
    daemon.wait("tank", "synced");
    daemon.fail(&drives[1]);
    let told = problem(&daemon, "group.degraded").unwrap();
    assert_eq!(told.text("next"), format!("warpraid group readd tank {}", text(&drives[1])));
    follow(&daemon, &told.text("next")).data();
    daemon.wait("tank", "healthy");
    // Gone while the daemon was down: still called by its path, and to be replaced.
    let away = lab.join("away");
    daemon.stop();
    std::fs::rename(&drives[2], &away).unwrap();
    daemon.start_again();
    let told = next_becomes(&daemon, "group.degraded", "group replace tank --slot 2");
    assert!(told.text("why").contains(text(&drives[2])), "{told:?}");
    assert_eq!(daemon.group("tank").text("members.2.drive"), text(&drives[2]));
    // As soon as it is there again, a re-add will do, and does.
    std::fs::rename(&away, &drives[2]).unwrap();
    let told = next_becomes(&daemon, "group.degraded", "group readd tank");
    assert!(told.text("why").contains("can come back"), "{told:?}");
    follow(&daemon, &told.text("next")).data();
    daemon.wait("tank", "healthy");
    // Another drive at its place is not it.
    daemon.fail(&drives[3]);
    std::fs::rename(&drives[3], &away).unwrap();
    let _other = lab.drive("d3", DRIVE);
    next_becomes(&daemon, "group.degraded", "group replace tank --slot 3");
}

#[test]
fn next_waits_for_a_spare_that_takes_the_slot_by_itself() {
    let lab = Lab::new("nextspare");
    let daemon = lab.daemon_with(&["--spare-wait-failed", "8s"]);
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    let spare = lab.drive("spare", DRIVE);
    daemon.ok(&["spare", "add", text(&spare), "--global"]);
    daemon.fail(&drives[0]);
    let told = problem(&daemon, "group.degraded").unwrap();
    assert!(told.text("why").contains(text(&spare)), "{told:?}");
    // It does what it says: the spare comes, and the wait sees it through.
    follow(&daemon, &told.text("next")).data();
    daemon.wait("tank", "healthy");
    assert_eq!(daemon.group("tank").text("members.0.drive"), text(&spare));
}

#[test]
fn a_member_that_was_cut_short_is_named_with_what_happened_to_it() {
    let lab = Lab::new("cutname");
    let mut daemon = lab.daemon();
    let drives = lab.drives("d", 4, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.stop();
    set_len(&drives[1], 4 << 20);
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    daemon.stop();
    set_len(&drives[1], DRIVE);
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    let told = next_becomes(&daemon, "member.stale", "group replace tank --slot 1");
    assert!(told.text("why").contains(text(&drives[1])), "{told:?}");
    let mut why = String::new();
    tool::wait_until("status says what happened", PATIENCE, || {
        why = problem(&daemon, "member.stale").unwrap().text("why");
        why.contains("cut short")
    });
    assert!(why.contains("cannot come back"), "{why}");
}

#[test]
fn a_drive_list_says_whose_a_member_is_and_a_wipe_what_it_takes() {
    let lab = Lab::new("whose");
    let daemon = lab.daemon();
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    let uuid = daemon.group("tank").text("uuid");
    daemon.run(&["drive", "wipe", text(&drives[0]), "--dry-run"]).fails(7, &["slot 0", "tank"]);
    daemon.ok(&["group", "stop", "tank"]);
    let listed = |slot: usize| {
        let all = daemon.ok(&["drive", "list"]).list("drives");
        all.into_iter().find(|one| one.text("path") == text(&drives[slot])).unwrap()
    };
    let stopped = listed(1);
    for word in ["slot 1", "tank", &uuid, "in sync", "does not run here"] {
        assert!(stopped.text("why").contains(word), "{word}: {stopped:?}");
    }
    let dry = daemon.ok(&["drive", "wipe", text(&drives[1]), "--dry-run"]);
    let device = stopped.text("device_uuid");
    for word in ["slot 1 of group tank", &uuid, "lost", &format!("--expect-uuid {device}")] {
        assert!(dry.mentions(word), "{word}: {dry:?}");
    }
    // NEXT of the drive brings the group back.
    follow(&daemon, &stopped.text("next")).data();
    daemon.ok(&["group", "delete", "tank", "--yes", "--expect-uuid", &uuid]);
    assert!(listed(1).text("why").contains("deleted"), "{:?}", listed(1));
    follow(&daemon, &listed(1).text("next")).data();
    daemon.wait("tank", "healthy");
}

#[test]
fn m8_a_second_daemon_is_told_at_once_who_has_the_state_folder_and_who_the_drives() {
    let lab = Lab::new("second");
    let first = lab.daemon();
    let drives = lab.drives("d", 3, DRIVE);
    first.create("tank", 5, &drives);
    let (pid, socket) = (first.pid().to_string(), text(&first.socket).to_owned());
    let since = Instant::now();
    let same = cli::run(&lab.join("other/admin.sock"), &["serve", "--state-dir", text(&first.state)]);
    same.fails(7, &[&pid, &socket]);
    // Over the same drives with a folder of its own: it answers at once, and takes nothing.
    let named: Vec<&str> = drives.iter().flat_map(|drive| ["--drive", text(drive)]).collect();
    let second = Daemon::start(lab.join("state2"), lab.join("run2/admin.sock"), &named);
    assert!(
        since.elapsed() < Duration::from_secs(25),
        "it waited {:?} for drives of a daemon that lives",
        since.elapsed()
    );
    assert!(second.ok(&["group", "list"]).list("groups").is_empty());
    let refused = second.assemble("tank", &drives, &[]);
    refused.fails(7, &[&format!("process {pid}"), "another warpraid daemon"]);
    second.run(&["drive", "wipe", text(&drives[0]), "--dry-run"]).fails(7, &[&format!("process {pid}")]);
    first.wait("tank", "healthy");
}

#[test]
fn a_crash_during_a_re_add_with_every_drive_there_does_not_ask_for_drives() {
    let mut group = StampedGroup::new("crashback", 5, 4, "24M", &["--allow-faults"]);
    let path = text(&group.drives[1]).to_owned();
    let StampedGroup { daemon, stamped, export, .. } = &group;
    daemon.fail(path.as_ref());
    stamped.some(export, 3, 200);
    daemon.ok(&["fault", "inject", &path, "slow", "--delay-ms", "300"]);
    daemon.ok(&["group", "readd", "tank", &path]);
    // Writes in flight, so that bits are set.
    stamped.load_while(export, 1, || stamped.wait_for_requests(5));
    group.daemon.kill();
    group.stamped.crash();
    group.daemon.start_again();
    let status = group.daemon.ok(&["status"]);
    println!("{:#}", status.at("problems").0);
    let told = status.list("problems").remove(0);
    if told.text("code") == "group.dirty.degraded" {
        assert!(!told.text("risk").contains("bring the missing"), "{told:?}");
        assert!(told.text("risk").contains("every member is here"), "{told:?}");
        assert!(told.text("next").contains("--force"), "{told:?}");
        follow(&group.daemon, &told.text("next")).data();
    }
    group.daemon.wait("tank", "healthy");
    let export = group.daemon.expose("tank/disk");
    group.stamped.verify(&export);
}
