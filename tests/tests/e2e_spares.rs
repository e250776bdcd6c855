//! Spares: kept blank and held, taken by themselves when a member is lost, and when not, status says why.

use std::path::Path;

use warpraid_tests::check::assert_redundant;
use warpraid_tests::cli::Json;
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::{Daemon, Lab, Stamped, tool};

const DRIVE: u64 = 64 << 20;
const QUICK: &[&str] = &["--spare-wait", "1s", "--spare-wait-failed", "1s"];

fn problem(daemon: &Daemon, code: &str) -> Option<Json> {
    daemon.ok(&["status"]).list("problems").into_iter().find(|problem| problem.text("code") == code)
}

fn add(daemon: &Daemon, drive: &Path, group: Option<&str>) -> Json {
    let scope = group.map_or(vec!["--global"], |group| vec!["--group", group]);
    daemon.ok(&[&["spare", "add", tool::text(drive)], &scope[..]].concat())
}

fn wait_for_spare(daemon: &Daemon, group: &str, slot: usize, spare: &Path) {
    tool::wait_until("the spare has the slot", PATIENCE, || {
        let member = daemon.group(group).list("members").swap_remove(slot);
        // Until it comes the slot has no drive at all.
        member.at("drive").0.as_str() == Some(tool::text(spare)) && member.text("state") == "in_sync"
    });
}

#[test]
fn a_spare_takes_a_failed_members_place_and_the_data_is_right() {
    let lab = Lab::new("spare");
    let daemon = lab.daemon_with(&[QUICK, &["--allow-faults"]].concat());
    let mut drives = lab.drives("d", 5, DRIVE);
    daemon.create("tank", 6, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "16M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    let spares = lab.drives("s", 2, DRIVE);
    add(&daemon, &spares[0], None);
    add(&daemon, &spares[1], Some("tank"));
    stamped.load_while(&export, 2, || {
        daemon.ok(&["fault", "inject", "tank:1", "fail"]);
        daemon.ok(&["fault", "inject", "tank:3", "fail"]);
        // The one kept for the group goes first.
        wait_for_spare(&daemon, "tank", 1, &spares[1]);
        wait_for_spare(&daemon, "tank", 3, &spares[0]);
        stamped.wait_for_requests(100);
    });
    daemon.ok(&["fault", "clear", "--all"]);
    assert!(daemon.ok(&["spare", "list"]).list("spares").is_empty());
    daemon.wait("tank", "healthy");
    stamped.verify(&export);
    stamped.flush(&export);
    (drives[1], drives[3]) = (spares[1].clone(), spares[0].clone());
    assert_redundant(&drives);
}

#[test]
fn ot_01_a_drive_missing_at_power_on_is_replaced_after_the_wait() {
    let lab = Lab::new("ot01");
    let mut daemon = lab.daemon_with(&["--spare-wait", "6s", "--spare-wait-failed", "1s"]);
    let drives = lab.drives("d", 4, DRIVE);
    let spare = lab.drive("spare", DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    add(&daemon, &spare, None);
    daemon.stop();
    std::fs::remove_file(&drives[2]).unwrap();
    daemon.start_again();
    tool::wait_until("the group runs without it", PATIENCE, || daemon.runs("tank"));
    tool::wait_until("status says what will happen", PATIENCE, || {
        problem(&daemon, "group.spare.waiting").is_some()
    });
    let waiting = problem(&daemon, "group.spare.waiting").unwrap();
    assert!(waiting.text("why").contains("takes slot 2"), "{waiting:?}");
    wait_for_spare(&daemon, "tank", 2, &spare);
    daemon.wait("tank", "healthy");
    assert!(problem(&daemon, "group.spare.waiting").is_none());
    // It stays a member, and is no spare, after the next start.
    daemon.stop();
    daemon.start_again();
    daemon.wait("tank", "healthy");
    assert!(daemon.ok(&["spare", "list"]).list("spares").is_empty());
}

#[test]
fn ot_01_when_no_spare_fits_status_says_why_and_by_how_much() {
    let lab = Lab::new("nofit");
    let daemon = lab.daemon_with(QUICK);
    let drives = lab.drives("d", 4, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    let small = lab.drive("small", DRIVE - (8 << 20));
    daemon.run(&["spare", "add", tool::text(&small), "--group", "tank"]).fails(2, &["too small"]);
    let added = add(&daemon, &small, None);
    assert!(added.mentions("no help to group tank") && added.mentions("MiB too small"), "{added:?}");
    daemon.fail(&drives[2]);
    tool::wait_until("status says why", PATIENCE, || problem(&daemon, "group.spare.missing").is_some());
    let missing = problem(&daemon, "group.spare.missing").unwrap();
    assert!(missing.text("why").contains("MiB too small") && missing.number("slot") == 2, "{missing:?}");
    assert_eq!(daemon.run(&["health"]).exit, 2, "RAID 5 without a member");
    // One that fits helps at once.
    let fits = lab.drive("fits", DRIVE);
    add(&daemon, &fits, Some("tank"));
    wait_for_spare(&daemon, "tank", 2, &fits);
    daemon.wait("tank", "healthy");
}

#[test]
fn two_groups_never_take_the_same_spare() {
    let lab = Lab::new("twospare");
    let daemon = lab.daemon_with(QUICK);
    let (one, two) = (lab.drives("a", 3, DRIVE), lab.drives("b", 3, DRIVE));
    daemon.create("one", 5, &one);
    daemon.create("two", 5, &two);
    daemon.wait("one", "synced");
    daemon.wait("two", "synced");
    daemon.fail(&one[1]);
    daemon.fail(&two[1]);
    let spare = lab.drive("spare", DRIVE);
    add(&daemon, &spare, None);
    let on_spare = |group: &str| daemon.group(group).mentions(tool::text(&spare));
    tool::wait_until("one of them is whole", PATIENCE, || on_spare("one") || on_spare("two"));
    std::thread::sleep(std::time::Duration::from_secs(3));
    let (lucky, other) = if on_spare("one") { ("one", "two") } else { ("two", "one") };
    daemon.wait(lucky, "healthy");
    assert!(!on_spare(other) && daemon.member_states(other)[1] == "failed");
}

#[test]
fn a_spare_is_held_checked_and_refused_for_anything_else() {
    let lab = Lab::new("spareheld");
    let mut daemon = lab.daemon_with(&["--allow-faults"]);
    let drives = lab.drives("d", 3, DRIVE);
    let spare = lab.drive("spare", DRIVE);
    let path = tool::text(&spare);
    assert!(daemon.ok(&["spare", "add", path, "--global", "--dry-run"]).mentions("spare"));
    assert!(daemon.ok(&["spare", "list"]).list("spares").is_empty());
    add(&daemon, &spare, None);
    daemon.run(&["spare", "add", path, "--global"]).fails(3, &["is a spare"]);
    daemon.run(&["drive", "wipe", path, "--yes"]).fails(3, &[]);
    let with_spare = [drives[0].clone(), drives[1].clone(), spare.clone()];
    daemon.try_create("tank", "5", &with_spare, &[]).fails(3, &["spare remove"]);
    assert_eq!(daemon.ok(&["drive", "show", path]).text("state"), "spare");
    daemon.run(&["spare", "add", tool::text(&lab.join("none")), "--global"]).fails(4, &[]);
    daemon.run(&["spare", "remove", "none"]).fails(4, &["no spare"]);
    daemon.create("tank", 5, &drives);
    daemon.run(&["spare", "add", tool::text(&drives[0]), "--global"]).fails(3, &["already a member"]);
    // Held: another process cannot lock it.
    let file = std::fs::File::open(&spare).unwrap();
    assert!(file.try_lock().is_err(), "the daemon does not hold its spare");
    drop(file);
    // One that dies idle is reported.
    daemon.ok(&["fault", "inject", path, "fail"]);
    tool::wait_until("the dead spare is reported", PATIENCE, || problem(&daemon, "spare.failed").is_some());
    daemon.ok(&["fault", "clear", "--all"]);
    tool::wait_until("it is ready again", PATIENCE, || problem(&daemon, "spare.failed").is_none());
    // Remembered over a restart; one that was used meanwhile is no spare.
    daemon.stop();
    daemon.start_again();
    tool::wait_until("it is ready", PATIENCE, || {
        daemon.ok(&["spare", "list"]).list("spares").iter().any(|spare| spare.text("state") == "ready")
    });
    daemon.stop();
    let made = tool::command("mkfs.ext4").args(["-q", "-F", path]).status().unwrap();
    assert!(made.success());
    daemon.start_again();
    tool::wait_until("the used spare is reported", PATIENCE, || problem(&daemon, "spare.failed").is_some());
    assert!(problem(&daemon, "spare.failed").unwrap().text("why").contains("ext4"));
    daemon.stop();
    std::fs::remove_file(&spare).unwrap();
    daemon.start_again();
    tool::wait_until("the absent spare is reported", PATIENCE, || {
        problem(&daemon, "spare.missing").is_some()
    });
    daemon.ok(&["spare", "remove", path]);
    assert!(
        daemon.ok(&["spare", "list"]).list("spares").is_empty()
            && problem(&daemon, "spare.missing").is_none()
    );
}

#[test]
fn a_group_may_wait_longer_for_a_lost_member_than_others_or_for_ever() {
    let lab = Lab::new("sparewait");
    let mut daemon = lab.daemon_with(QUICK);
    let drives = lab.drives("d", 6, DRIVE);
    daemon.create("one", 5, &drives[..3]);
    daemon.create("two", 5, &drives[3..]);
    daemon.wait("one", "synced");
    daemon.wait("two", "synced");
    for bad in ["soon", "0s", "31d"] {
        daemon.run(&["group", "set", "one", "--spare-wait-failed", bad]).fails(2, &["wait"]);
    }
    let dry = daemon.ok(&["group", "set", "one", "--spare-wait-failed", "never", "--dry-run"]);
    assert!(dry.mentions("no spare") && daemon.group("one").text("settings.spare_wait_failed") == "auto");
    daemon.ok(&["group", "set", "one", "--spare-wait-failed", "never", "--spare-wait", "10m"]);
    // Kept over a restart.
    daemon.stop();
    daemon.start_again();
    let settings = daemon.group("one").at("settings");
    assert_eq!(settings.text("spare_wait_failed"), "never");
    assert_eq!(settings.number("spare_wait.ns"), 600_000_000_000);
    let spares = lab.drives("s", 2, DRIVE);
    add(&daemon, &spares[0], None);
    add(&daemon, &spares[1], None);
    daemon.fail(&drives[1]);
    daemon.fail(&drives[4]);
    // The other group waits as the daemon was told, one second.
    daemon.wait("two", "healthy");
    let told = problem(&daemon, "group.spare.missing").unwrap();
    assert!(told.text("group") == "one" && told.text("why").contains("group set"), "{told:?}");
    assert_eq!(daemon.member_states("one")[1], "failed");
    // As soon as it may, the spare that is left takes it.
    daemon.ok(&["group", "set", "one", "--spare-wait-failed", "1s"]);
    daemon.wait("one", "healthy");
    assert!(daemon.ok(&["spare", "list"]).list("spares").is_empty());
}
