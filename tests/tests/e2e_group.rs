//! Groups and disks by their verbs: made, refused, stopped, found again, deleted, brought back.

use std::path::PathBuf;

use serde_json::json;
use warpraid_tests::check::assert_redundant;
use warpraid_tests::drives::hashes;
use warpraid_tests::tool::text;
use warpraid_tests::{Daemon, Lab, Stamped, cli, http};

const DRIVE: u64 = 64 << 20;
const NO_UUID: &str = "00000000-0000-4000-8000-000000000000";

/// Names that are none, as they can stand on a command line (a NUL cannot).
fn bad_names() -> Vec<String> {
    let long = "x".repeat(300);
    [
        "../x",
        "/dev/nvme0n1",
        ".",
        "..",
        "",
        "a b",
        "a\nb",
        "-rf",
        "\u{1f600}",
        "a:b",
        ".a",
        "_a",
        "\u{e4}",
        &long,
    ]
    .map(str::to_owned)
    .to_vec()
}

fn assert_empty(daemon: &Daemon) {
    assert_eq!(daemon.ok(&["group", "list"]).list("groups").len(), 0);
    assert_eq!(daemon.ok(&["disk", "list"]).list("disks").len(), 0);
}

#[test]
fn ad_02_names_that_are_none_are_refused_by_cli_and_api_and_nothing_is_written() {
    let lab = Lab::new("ad02");
    let drives = lab.drives("d", 3, DRIVE);
    let before = hashes(&drives);
    let daemon = lab.daemon();
    let paths: Vec<&str> = drives.iter().map(|drive| text(drive)).collect();
    for name in bad_names() {
        let mut arguments = vec!["group", "create", "--level", "5", "--yes", "--", &name];
        arguments.extend(&paths);
        daemon.run(&arguments).fails(2, &[]);
    }
    for name in bad_names().into_iter().chain(["nul\0".to_owned()]) {
        let body = json!({"name": name, "level": "raid5", "drives": paths, "yes": true});
        let (status, answer) = http::request(&daemon.socket, "POST", "/v1/groups", &body);
        assert_eq!(status, 400, "'{}': {answer:?}", name.escape_debug());
        assert!(answer.at("ok").0 == false && !answer.text("error.message").is_empty());
    }
    assert_empty(&daemon);
    assert_eq!(hashes(&drives), before);

    daemon.create("Tank", 5, &drives);
    for name in bad_names() {
        daemon.run(&["disk", "create", "--size", "1M", "--", &format!("Tank/{name}")]).fails(2, &[]);
        let body = json!({"group": "Tank", "name": name, "size_bytes": 1 << 20});
        let (status, answer) = http::request(&daemon.socket, "POST", "/v1/disks", &body);
        assert_eq!(status, 400, "'{}': {answer:?}", name.escape_debug());
    }
    assert_eq!(daemon.ok(&["disk", "list"]).list("disks").len(), 0);
    daemon.disk("Tank/Home", "1M");
    // Twins that differ in case only.
    daemon.run(&["disk", "create", "Tank/hOME", "--size", "1M"]).fails(2, &["disk.name.taken", "home"]);
    let more = lab.drives("more", 3, DRIVE);
    let before = hashes(&more);
    daemon.try_create("tANK", "5", &more, &[]).fails(2, &["group.name.taken", "tank"]);
    assert_eq!(hashes(&more), before);
}

#[test]
fn sizes_levels_and_options_out_of_range_exit_2_and_write_nothing() {
    let lab = Lab::new("range");
    let drives = lab.drives("d", 5, DRIVE);
    let tiny = lab.drives("tiny", 3, 1 << 20);
    let all: Vec<PathBuf> = drives.iter().chain(&tiny).cloned().collect();
    let before = hashes(&all);
    let daemon = lab.daemon();
    let refused = |level: &str, drives: &[PathBuf], options: &[&str], words: &[&str]| {
        daemon.try_create("tank", level, drives, options).fails(2, words);
    };
    for level in ["2", "3", "4", "7", "50", "-1", "", "six", "99999999999999999999"] {
        refused(level, &drives[..4], &[], &[]);
    }
    // Too few drives, an odd number on RAID 10: the range is named.
    for (level, too_few, least) in
        [("0", 1, "2"), ("1", 1, "2"), ("5", 2, "3"), ("6", 3, "4"), ("10", 2, "4"), ("10", 5, "even")]
    {
        refused(level, &drives[..too_few], &[], &[least]);
    }
    for chunk in ["0", "1", "513", "3K", "48K", "2M", "1G", "64X", "-64K", "1.5K", "99999999999999999999", ""]
    {
        refused("5", &drives[..3], &[&format!("--chunk={chunk}")], &[]);
    }
    refused("1", &drives[..2], &["--chunk", "64K"], &["chunk"]);
    refused("5", &tiny, &[], &["tiny0"]);
    refused("5", &[drives[0].clone(), drives[1].clone(), drives[0].clone()], &[], &[text(&drives[0])]);
    refused("5", &[drives[0].clone(), drives[1].clone(), lab.path().to_owned()], &[], &[]);
    assert_empty(&daemon);
    assert_eq!(hashes(&all), before);

    daemon.create("tank", 5, &drives[..3]);
    let capacity = daemon.group("tank").number("free_bytes");
    for size in
        ["0", "-1", "1.5G", "64X", "", "99999999999999999999", "16E", &(capacity + (64 << 10)).to_string()]
    {
        daemon.run(&["disk", "create", "tank/disk", &format!("--size={size}")]).fails(2, &[]);
    }
    for address in ["", "unix:", "tcp:127.0.0.1", "tcp:127.0.0.1:99999", "udp:1", "tcp:::1", "unix:\n"] {
        daemon.disk("tank/probe", "1M");
        daemon.run(&["disk", "expose", "tank/probe", &format!("--nbd={address}")]).fails(2, &[]);
        let uuid = daemon.ok(&["disk", "show", "tank/probe"]).text("uuid");
        daemon.ok(&["disk", "delete", "tank/probe", "--yes", "--expect-uuid", &uuid]);
    }
    daemon.run(&["group", "show", "nosuch"]).fails(4, &["nosuch"]);
    daemon.run(&["disk", "show", "tank/nosuch"]).fails(4, &["nosuch"]);
    daemon.run(&["group", "frobnicate"]).fails(2, &[]);
    daemon.run(&["group", "replace", "tank", "--slot", "9", text(&drives[3])]).fails(2, &["9"]);
    assert_eq!(hashes(&drives[3..]), before[3..5]);
}

#[test]
fn a_daemon_that_is_not_there_is_exit_5_and_says_how_to_start_it() {
    let lab = Lab::new("nodaemon");
    cli::run(&lab.join("none.sock"), &["status"]).fails(5, &["none.sock", "serve"]);
}

#[test]
fn every_verb_that_writes_has_a_dry_run_that_writes_nothing() {
    let lab = Lab::new("dry");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    let before = hashes(&drives);
    let planned = daemon.try_create("tank", "5", &drives[..3], &["--dry-run"]).data();
    assert!(planned.at("dry_run").0 == true && !planned.list("steps").is_empty());
    assert_empty(&daemon);
    assert_eq!(hashes(&drives), before);

    daemon.create("tank", 5, &drives[..3]);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "8M");
    let address = format!("unix:{}", lab.join("x.nbd").display());
    let (group, disk) = (daemon.group("tank"), daemon.ok(&["disk", "show", "tank/disk"]));
    let plans = |verb: &[&str]| {
        let answer = daemon.run(&[verb, &["--dry-run"]].concat());
        let planned = answer.data();
        assert!(planned.at("dry_run").0 == true && !planned.list("steps").is_empty(), "{answer}");
    };
    for verb in [
        vec!["drive", "fail", text(&drives[0])],
        vec!["disk", "create", "tank/more", "--size", "8M"],
        vec!["disk", "expose", "tank/disk", "--nbd", &address],
        vec!["disk", "resize", "tank/disk", "--size", "16M"],
        vec!["disk", "delete", "tank/disk"],
        vec!["group", "stop", "tank"],
        vec!["group", "delete", "tank"],
    ] {
        plans(&verb);
    }
    assert_eq!(daemon.group("tank").at("members"), group.at("members"));
    assert_eq!(daemon.group("tank").at("disks"), group.at("disks"));
    assert_eq!(daemon.ok(&["disk", "show", "tank/disk"]), disk);

    // A member that serves is replaced in another way than one that is out.
    let replace = ["group", "replace", "tank", "--slot", "0", text(&drives[3])];
    plans(&replace);
    plans(&[&replace[..], &["--now"]].concat());
    daemon.fail(&drives[0]);
    let states = daemon.member_states("tank");
    plans(&replace);
    assert_eq!(daemon.member_states("tank"), states);
    assert_eq!(hashes(&drives[3..]), before[3..]);
}

#[test]
fn ad_06_destroying_needs_the_word_the_uuid_and_an_idle_disk_and_can_be_undone() {
    let lab = Lab::new("ad06");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    let uuid = daemon.create("tank", 5, &drives).text("groups.0.uuid");
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);

    // Standard input is no terminal, whatever is typed into it.
    for input in [&b""[..], b"tank\n", b"yes\n"] {
        cli::run_with_input(&daemon.socket, &["group", "delete", "tank"], input)
            .fails(3, &["yes", "expect-uuid"]);
    }
    daemon.run(&["group", "delete", "tank", "--yes"]).fails(3, &["expect-uuid"]);
    daemon.run(&["group", "delete", "tank", "--yes", "--expect-uuid", NO_UUID]).fails(3, &[&uuid]);
    let disk = daemon.ok(&["disk", "show", "tank/disk"]).text("uuid");
    daemon.run(&["disk", "delete", "tank/disk"]).fails(3, &[]);
    daemon.run(&["disk", "delete", "tank/disk", "--yes", "--expect-uuid", &uuid]).fails(3, &[&disk]);
    stamped.verify(&export);

    let client = export.connect();
    let delete = ["group", "delete", "tank", "--yes", "--expect-uuid", &uuid];
    daemon.run(&delete).fails(7, &["tank", &std::process::id().to_string()]);
    client.disconnect().unwrap();
    daemon.ok(&delete);
    daemon.run(&["group", "show", "tank"]).fails(4, &["tank"]);

    let mut undelete = vec!["group", "undelete", "tank"];
    undelete.extend(drives.iter().map(|drive| text(drive)));
    daemon.ok(&undelete);
    daemon.bring_up("tank", &drives);
    assert_eq!(daemon.group("tank").text("uuid"), uuid);
    stamped.verify(&daemon.expose("tank/disk"));

    // Once a member is reused there is no way back, and the answer says so.
    daemon.ok(&["group", "stop", "tank", "--force"]);
    daemon.assemble("tank", &drives, &[]).data();
    daemon.ok(&delete);
    let blank = lab.drives("other", 1, DRIVE);
    let reuse = [drives[0].clone(), blank[0].clone()];
    let device = daemon.ok(&["drive", "show", text(&drives[0])]);
    let identity = device.list("signatures").iter().find_map(|s| s.at("uuid").0.as_str().map(str::to_owned));
    if let Some(identity) = identity {
        daemon.ok(&["drive", "wipe", text(&drives[0]), "--yes", "--expect-uuid", &identity]);
    }
    daemon.create("other", 1, &reuse);
    daemon.run(&undelete).fails(3, &["tank"]);
}

#[test]
fn ad_07_a_create_that_cannot_work_leaves_nothing_and_the_right_one_works_at_once() {
    let lab = Lab::new("ad07");
    let drives = lab.drives("d", 4, DRIVE);
    let before = hashes(&drives);
    let daemon = lab.daemon();
    let absent = [drives[0].clone(), drives[1].clone(), lab.join("absent")];
    let answer = daemon.try_create("tank", "5", &absent, &[]);
    answer.fails(4, &["absent"]);
    daemon.try_create("tank", "1", &drives[..2], &["--chunk", "64K"]).fails(2, &["chunk"]);
    assert_empty(&daemon);
    assert_eq!(hashes(&drives), before);
    assert!(!lab.join("absent").exists(), "a drive that is not there is not made");
    daemon.create("tank", 5, &drives[..3]);
}

#[test]
fn ad_08_making_a_group_over_its_own_members_in_another_order_is_refused() {
    let lab = Lab::new("ad08");
    let mut drives = lab.drives("d", 3, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    let right_order = drives.clone();
    drives.swap(0, 2);
    let running = daemon.try_create("tank2", "5", &drives, &[]);
    assert!(running.exit == 3 || running.exit == 7, "{running}");
    assert!(running.envelope.at("error").mentions("tank"), "{running}");
    stamped.verify(&export);

    daemon.ok(&["group", "stop", "tank", "--force"]);
    let before = hashes(&drives);
    daemon.try_create("tank2", "5", &drives, &[]).fails(3, &["tank", "assemble"]);
    daemon.try_create("tank", "5", &drives, &[]).fails(3, &["assemble"]);
    assert_eq!(hashes(&drives), before);
    daemon.assert_alive();
    daemon.assemble("tank", &right_order, &[]).data();
    stamped.verify(&daemon.expose("tank/disk"));
}

#[test]
fn ot_05_drives_in_another_order_and_under_other_names_keep_their_slots() {
    let lab = Lab::new("ot05");
    let drives = lab.drives("d", 6, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", 6, &drives);
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    let slots = |daemon: &Daemon| -> Vec<String> {
        daemon.group("tank").list("members").iter().map(|member| member.text("device_uuid")).collect()
    };
    let before = slots(&daemon);
    daemon.stop();
    // Each drive gets the name of another: a cycle, by way of names nobody had.
    let moved: Vec<PathBuf> = (0..6).map(|i| lab.join(&format!("new{}", (i * 5 + 2) % 6))).collect();
    for (from, to) in drives.iter().zip(&moved) {
        std::fs::rename(from, to).unwrap();
    }
    for (from, to) in moved.iter().zip(drives.iter().rev()) {
        std::fs::rename(from, to).unwrap();
    }
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    assert_eq!(slots(&daemon), before);
    assert_eq!(daemon.group("tank").text("state"), "healthy");
    stamped.verify(&daemon.expose("tank/disk"));
    assert_redundant(&drives);
}

#[test]
fn ot_07_plan_and_show_account_for_every_byte() {
    let lab = Lab::new("ot07");
    let drives = lab.drives("d", 3, 32 << 20);
    let before = hashes(&drives);
    let daemon = lab.daemon();
    let mut arguments = vec!["group", "plan", "--level", "5"];
    arguments.extend(drives.iter().map(|drive| text(drive)));
    let plan = daemon.ok(&arguments);
    assert_eq!(hashes(&drives), before);
    let bytes = |what: &str| plan.number(&format!("{what}_bytes"));
    assert_eq!(bytes("raw"), 3 * (32 << 20));
    assert_eq!(bytes("usable") + bytes("parity") + bytes("metadata") + bytes("unused"), bytes("raw"));
    assert!(bytes("usable") > 0 && bytes("parity") * 2 >= bytes("usable"), "{plan:?}");
    for drive in plan.list("drives") {
        let sum = drive.number("data_bytes") + drive.number("metadata_bytes") + drive.number("unused_bytes");
        assert_eq!(sum, drive.number("size_bytes"));
    }
    assert_eq!(plan.number("tolerates"), 1);
    let arithmetic = plan.list("arithmetic");
    assert!(arithmetic.len() >= 4, "raw, parity, metadata, usable: {arithmetic:?}");
    assert!(plan.mentions("mkfs.xfs") && plan.mentions("mkfs.ext4"));

    daemon.create("tank", 5, &drives);
    let group = daemon.group("tank");
    assert_eq!(group.number("capacity_bytes"), bytes("usable"), "what was planned is what there is");
    assert_eq!(group.number("raw_bytes"), bytes("raw"));
    assert_eq!(group.number("parity_bytes"), bytes("parity"));
    assert_eq!(group.number("metadata_bytes"), bytes("metadata") + bytes("unused"));
    let size = daemon.disk_of_all("tank", "all");
    assert_eq!(daemon.expose("tank/all").size_bytes, size);
}

#[test]
fn sl_03_a_blank_drive_never_brings_an_offline_group_online_and_its_members_do() {
    let lab = Lab::new("sl03");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    daemon.fail(&drives[0]);
    stamped.some(&export, 7, 300);
    stamped.flush(&export);
    daemon.ok(&["drive", "fail", text(&drives[1]), "--force"]);
    assert_eq!(daemon.group("tank").text("state"), "offline");

    let blank = lab.drive("blank", DRIVE);
    let before = hashes(&[&blank]);
    for slot in ["0", "1"] {
        let answer = daemon.run(&["group", "replace", "tank", "--slot", slot, text(&blank)]);
        assert_ne!(answer.exit, 0, "{answer}");
        assert_eq!(daemon.group("tank").text("state"), "offline");
    }
    assert_eq!(hashes(&[&blank]), before);
    daemon.run(&["group", "stop", "tank", "--force"]).data();
    // An assemble looks at the drives it knows, too: the member that would complete the group is taken away.
    let pulled = lab.join("pulled");
    std::fs::rename(&drives[1], &pulled).unwrap();
    let with_blank = [blank.clone(), drives[2].clone(), drives[3].clone()];
    let answer = daemon.assemble("tank", &with_blank, &[]);
    assert_eq!(answer.exit, 3, "{answer}");
    assert!(answer.envelope.at("error").mentions("slot"), "says which members it needs: {answer}");

    // The member dropped first is stale and completes nothing; the one dropped last does, without force: the operator
    // dropped it, so the group was made quiet first.
    let stale = [drives[0].clone(), drives[2].clone(), drives[3].clone()];
    assert_eq!(daemon.assemble("tank", &stale, &[]).exit, 3);
    std::fs::rename(&pulled, &drives[1]).unwrap();
    daemon.assemble("tank", &drives[1..], &[]).data();
    assert_eq!(daemon.group("tank").text("state"), "degraded");
    assert!(daemon.group("tank").at("forced").0 != true);
    stamped.verify(&daemon.expose("tank/disk"));

    // The same with the second member lost while the group was stopped cleanly: nothing is in doubt, no force is needed.
    daemon.run(&["group", "stop", "tank", "--force"]).data();
    std::fs::rename(&drives[1], &pulled).unwrap();
    let answer = daemon.assemble("tank", &with_blank, &[]);
    assert_eq!(answer.exit, 3, "{answer}");
    assert_eq!(hashes(&[&blank]), before);
    std::fs::rename(&pulled, &drives[1]).unwrap();
    daemon.assemble("tank", &drives[1..], &[]).data();
    assert_eq!(daemon.group("tank").text("state"), "degraded");
    daemon.run(&["disk", "unexpose", "tank/disk"]).data();
    stamped.verify(&daemon.expose("tank/disk"));
}

fn starts_degraded_without_a_member(level: u32, width: usize) {
    let lab = Lab::new(&format!("sl04-{level}"));
    let drives = lab.drives("d", width, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", level, &drives);
    daemon.disk("tank/disk", "16M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    daemon.stop();
    std::fs::rename(&drives[1], lab.join("gone")).unwrap();
    let mut rest = drives.clone();
    rest.remove(1);
    daemon.start_again();
    daemon.bring_up("tank", &rest);
    assert_eq!(daemon.group("tank").text("state"), "degraded", "RAID {level}");
    assert_eq!(daemon.member_states("tank")[1], "missing");
    let export = daemon.expose("tank/disk");
    stamped.verify(&export);
    stamped.some(&export, 9, 200);
    let spare = lab.drive("spare", DRIVE);
    daemon.replace("tank", 1, &spare);
    daemon.wait("tank", "healthy");
    stamped.verify(&export);
}

#[test]
fn sl_04_a_member_lost_while_the_daemon_was_down_is_a_degraded_start() {
    // All levels at once: most of the time goes into waiting for the member that does not come.
    std::thread::scope(|scope| {
        for (level, width) in [(5, 4), (6, 5), (1, 2), (10, 4)] {
            scope.spawn(move || starts_degraded_without_a_member(level, width));
        }
    });
}

/// SL-04 and M4: the last copy of a mirror that was not stopped cleanly starts alone only where a witness says that no
/// other copy went on without it.
#[test]
fn sl_04_the_last_mirror_member_needs_a_clean_mark_a_witness_or_force() {
    let lab = Lab::new("sl04mirror");
    let drives = lab.drives("d", 2, DRIVE);
    let mut daemon = lab.daemon_with(&["--no-assemble"]);
    let uuid = daemon.create("tank", 1, &drives).text("groups.0.uuid");
    daemon.disk("tank/disk", "16M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.wait("tank", "synced");
    daemon.kill();
    stamped.crash();
    let last = [drives[0].clone()];

    // Another host: another state folder, so no witness.
    let stranger = Daemon::start(lab.join("state2"), lab.join("run2/admin.sock"), &["--no-assemble"]);
    let before = hashes(&last);
    stranger.assemble("tank", &last, &[]).fails(3, &["force"]);
    assert_eq!(hashes(&last), before, "a refusal writes nothing");
    drop(stranger);

    daemon.start_again();
    daemon.assemble("tank", &last, &[]).data();
    assert_eq!(daemon.group("tank").text("uuid"), uuid);
    stamped.verify(&daemon.expose("tank/disk"));
}

#[test]
fn ad_07_two_daemons_never_share_drives_and_the_second_is_told_the_pid() {
    let lab = Lab::new("two");
    let drives = lab.drives("d", 3, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    // It waits for drives that are in use as long as for a slow one (SAFETY M8).
    let options = ["--no-assemble", "--drive-timeout", "1s"];
    let second = Daemon::start(lab.join("state2"), lab.join("run2/admin.sock"), &options);
    let pid = daemon.pid().to_string();
    let refused = second.assemble("tank", &drives, &[]);
    assert!(refused.exit == 7 || refused.exit == 3, "{refused}");
    assert!(refused.envelope.at("error").mentions(&pid), "{refused}");
    let refused = second.try_create("other", "5", &drives, &[]);
    assert!(refused.exit == 7 || refused.exit == 3, "{refused}");
    assert_eq!(daemon.group("tank").list("members").len(), 3);
    daemon.assert_alive();

    // The same socket and state folder: the second says so and leaves the first alone.
    let mut serve = std::process::Command::new(cli::binary());
    serve.args(["-o", "json", "serve", "--state-dir"]).arg(&daemon.state).arg("--socket").arg(&daemon.socket);
    let refused = cli::answer(serve, b"");
    refused.fails(7, &[&pid]);
    daemon.assert_alive();
    assert_eq!(daemon.group("tank").text("name"), "tank");
}

#[test]
fn disks_grow_into_following_free_space_keep_their_data_and_never_shrink() {
    let lab = Lab::new("resize");
    let drives = lab.drives("d", 3, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/a", "8M");
    daemon.disk("tank/b", "8M");
    let export = daemon.expose("tank/b");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    daemon.run(&["disk", "resize", "tank/a", "--size", "16M"]).fails(2, &["tank/a"]);
    daemon.run(&["disk", "resize", "tank/b", "--size", "4M"]).fails(3, &["tank/b"]);
    daemon.ok(&["disk", "resize", "tank/b", "--size", "32M"]);
    let grown = daemon.ok(&["disk", "show", "tank/b"]);
    assert!(grown.number("size_bytes") >= 32 << 20);
    stamped.verify(&export);
}

#[test]
fn examine_reads_a_member_without_a_daemon_and_writes_nothing() {
    let lab = Lab::new("examine");
    let drives = lab.drives("d", 3, DRIVE);
    let mut daemon = lab.daemon();
    let uuid = daemon.create("tank", 5, &drives).text("groups.0.uuid");
    daemon.wait("tank", "synced");
    daemon.stop();
    let before = hashes(&drives);
    for (slot, drive) in (0..).zip(&drives) {
        let examined = cli::run(&lab.join("none.sock"), &["examine", text(drive)]).data();
        assert_eq!(examined.text("superblock.group_uuid").replace(['-', ':'], ""), uuid.replace('-', ""));
        assert_eq!(examined.number("superblock.slot"), slot);
        assert!(examined.at("superblock.valid").0 == true && examined.at("superblock.claimed").0 == true);
        assert!(examined.at("extension.clean").0 == true, "stopped cleanly: {examined:?}");
    }
    let blank = lab.drive("blank", DRIVE);
    let examined = cli::run(&lab.join("none.sock"), &["examine", text(&blank)]).data();
    assert!(examined.at("superblock").0.is_null());
    assert_eq!(hashes(&drives), before);
}
