//! What the operator is told when something is wrong: the cause, the drive by its path, and a command that works as it is
//! printed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use stamps::nbd::Command as Request;
use warpraid_tests::check::assert_redundant;
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::drives::hashes;
use warpraid_tests::faulty::Faulty;
use warpraid_tests::tool::{is_root_or_skip, text};
use warpraid_tests::{Answer, Daemon, Json, Lab, Stamped, cli, tool};

const DRIVE: u64 = 64 << 20;

/// The problem of this code, if status has it.
fn problem(daemon: &Daemon, code: &str) -> Option<Json> {
    daemon.ok(&["status"]).list("problems").into_iter().find(|problem| problem.text("code") == code)
}

/// The problem of this code, once status has it.
fn awaited(daemon: &Daemon, code: &str) -> Json {
    let mut found = None;
    tool::wait_until(code, PATIENCE, || {
        found = problem(daemon, code);
        found.is_some()
    });
    found.unwrap()
}

/// Runs the first command of a `next` as it is printed (what follows three blanks is for people).
fn follow(daemon: &Daemon, next: &str) -> Answer {
    let words: Vec<&str> = next.split("   ").next().unwrap().split(' ').collect();
    assert_eq!(words[0], "warpraid", "{next}");
    daemon.run(&words[1..])
}

#[test]
fn a_member_whose_file_was_deleted_is_a_problem_that_can_be_followed() {
    let lab = Lab::new("unlinked");
    let mut drives = lab.drives("d", 3, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    std::fs::remove_file(&drives[1]).unwrap();
    let told = awaited(&daemon, "member.unlinked");
    assert!(told.text("why").contains(text(&drives[1])), "{told:?}");
    assert_eq!((told.number("slot"), told.text("health")), (1, "warning".into()));
    assert_eq!(daemon.run(&["health"]).exit, 1);
    // Nothing is lost yet: it still serves.
    assert_eq!(daemon.member_states("tank"), ["in_sync"; 3]);
    stamped.verify(&export);

    follow(&daemon, &told.text("next")).data();
    let spare = lab.drive("spare", DRIVE);
    daemon.replace("tank", 1, &spare);
    drives[1] = spare;
    daemon.wait("tank", "healthy");
    assert!(problem(&daemon, "member.unlinked").is_none());
    assert_eq!(daemon.run(&["health"]).exit, 0);
    stamped.verify(&export);
    stamped.flush(&export);
    assert_redundant(&drives);
}

/// A tmpfs, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(folder: PathBuf, size: &str) -> Self {
        std::fs::create_dir(&folder).unwrap();
        tool::run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none", text(&folder)]);
        Self(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        tool::attempt(tool::command("umount").arg("-l").arg(&self.0), tool::CLEANING_MAX);
    }
}

#[test]
fn a_full_file_system_under_a_member_is_not_called_a_drive_that_is_gone() {
    if !is_root_or_skip("a_full_file_system_under_a_member_is_not_called_a_drive_that_is_gone") {
        return;
    }
    let lab = Lab::new("full");
    let small = Small::mount(lab.join("small"), "24M");
    let mut drives = lab.drives("d", 2, DRIVE);
    drives[1] = small.0.join("member");
    std::fs::File::create_new(&drives[1]).unwrap().set_len(DRIVE).unwrap();
    let daemon = lab.daemon();
    daemon.create("tank", 1, &drives);
    daemon.disk("tank/disk", "48M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    stamped.flush(&export);
    // S5: no room is a drive that cannot take writes, so it is dropped, and the host sees nothing of it.
    tool::wait_until("the member is dropped", PATIENCE, || daemon.member_states("tank")[1] == "failed");
    stamped.verify(&export);
    let told = awaited(&daemon, "group.degraded");
    let why = told.text("why");
    assert!(why.contains("file system") && why.contains("full") && !why.contains("gone"), "{told:?}");
    assert!(told.text("next").contains(text(&small.0)), "{told:?}");
    assert!(daemon.group("tank").text("members.1.why").contains("full"));
    drop(daemon);
    drop(small);
}

#[test]
fn h1_a_drive_that_hangs_does_not_hang_the_verbs() {
    let lab = Lab::new("h1");
    let member = Faulty::new(&lab, "member", DRIVE);
    let other = Faulty::new(&lab, "other", DRIVE);
    let mut drives = lab.drives("d", 3, DRIVE);
    drives[1] = member.path().to_owned();
    // Far longer than this test: nobody is dropped, everything really hangs.
    let daemon = lab.daemon_with(&["--drive-timeout", "10m", "--drive", text(other.path())]);
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    member.hang();
    other.hang();
    let mut client = export.connect();
    client.submit(Request::write(0, vec![7; 1 << 20])).unwrap();
    for verb in [
        vec!["status"],
        vec!["health"],
        vec!["group", "list"],
        vec!["group", "show", "tank"],
        vec!["disk", "list"],
        vec!["drive", "list"],
    ] {
        let since = Instant::now();
        let answer = daemon.run(&verb);
        assert!(answer.envelope.at("ok").0 == true, "{answer}");
        println!("{verb:?} took {} ms beside a drive that hangs", since.elapsed().as_millis());
    }
    let early = client.wait_for(Duration::from_millis(100)).unwrap();
    assert!(early.is_none() && daemon.member_states("tank")[1] == "in_sync", "the member does not hang");
    let listed = daemon.ok(&["drive", "list"]).list("drives");
    let shown = listed.iter().find(|drive| drive.text("path") == text(other.path()));
    let shown = shown.unwrap_or_else(|| panic!("a drive that hangs is not listed: {listed:?}"));
    assert_eq!(shown.text("state"), "failed", "{shown:?}");
    assert!(!shown.text("why").is_empty());
    member.resume();
    other.resume();
    client.wait().unwrap().result.unwrap();
    drop(daemon);
}

#[test]
fn s1_a_group_that_was_refused_at_start_is_listed_as_stopped_and_health_is_critical() {
    let lab = Lab::new("s1");
    let drives = lab.drives("d", 3, DRIVE);
    let mut daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.stop();
    let away: Vec<PathBuf> = (1..3).map(|i| lab.join(&format!("away{i}"))).collect();
    for (drive, away) in drives[1..].iter().zip(&away) {
        std::fs::rename(drive, away).unwrap();
    }
    daemon.start_again();
    let told = awaited(&daemon, "group.incomplete");
    assert_eq!(told.text("health"), "critical");
    let groups = daemon.ok(&["group", "list"]).list("groups");
    assert_eq!(
        (groups.len(), groups[0].text("name"), groups[0].text("state")),
        (1, "tank".into(), "stopped".into())
    );
    let states: Vec<String> = groups[0].list("members").iter().map(|member| member.text("state")).collect();
    assert_eq!(states, ["in_sync", "missing", "missing"]);
    assert_eq!(daemon.run(&["health"]).exit, 2);

    for (drive, away) in drives[1..].iter().zip(&away) {
        std::fs::rename(away, drive).unwrap();
    }
    follow(&daemon, &told.text("next")).data();
    assert_eq!(daemon.ok(&["group", "list"]).list("groups").len(), 1);
    daemon.wait("tank", "healthy");
    assert_eq!(daemon.run(&["health"]).exit, 0);
}

#[test]
fn n3_a_witness_that_cannot_be_stored_is_a_problem_until_it_can() {
    let lab = Lab::new("n3");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    let uuid = daemon.create("tank", 6, &drives).text("groups.0.uuid");
    daemon.wait("tank", "synced");
    assert!(problem(&daemon, "group.witness").is_none());
    // A folder where the temporary file has to go: the next epoch cannot be remembered, for root too.
    let block = daemon.state.join(format!("witness/{uuid}.new"));
    std::fs::create_dir(&block).unwrap();
    daemon.fail(&drives[0]);
    let told = awaited(&daemon, "group.witness");
    assert!(told.text("why").contains("state folder") && !told.text("next").is_empty(), "{told:?}");
    assert!(daemon.log().contains("witness"), "the log says which file");
    std::fs::remove_dir(&block).unwrap();
    let spare = lab.drive("spare", DRIVE);
    daemon.replace("tank", 0, &spare);
    daemon.wait("tank", "healthy");
    assert!(problem(&daemon, "group.witness").is_none());
    assert_eq!(daemon.run(&["health"]).exit, 0);
}

#[test]
fn sl_09_a_kill_during_a_rebuild_does_not_ask_for_members_that_are_there() {
    let lab = Lab::new("rebuildkill");
    let spare = Faulty::new(&lab, "spare", DRIVE);
    let mut drives = lab.drives("d", 3, DRIVE);
    let mut daemon = lab.daemon_with(&["--drive-timeout", "10m"]);
    let uuid = daemon.create("tank", 5, &drives).text("groups.0.uuid");
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "48M");
    let export = daemon.expose("tank/disk");
    Stamped::new(1, export.size_bytes, 512).fill(&export);
    daemon.fail(&drives[1]);
    let mut client = export.connect();
    client.write(0, &[3; 64 << 10]).unwrap();
    daemon.replace("tank", 1, spare.path());
    drives[1] = spare.path().to_owned();
    spare.hang();
    let is_rebuilding = daemon.member_states("tank")[1] == "rebuilding";
    for i in 0..16 {
        client.submit(Request::write(i << 20, vec![9; 64 << 10])).unwrap();
    }
    // Stopped first, so that nothing moves once the drive that it could not die of answers again.
    tool::signal(daemon.pid(), "STOP");
    spare.resume();
    daemon.kill();
    assert!(is_rebuilding, "the rebuild was over before the drive hung: a larger drive is needed");
    daemon.start_again();
    let told = awaited(&daemon, "group.dirty.degraded");
    let all = format!("{} {}", told.text("why"), told.text("risk"));
    assert!(!all.contains("bring the missing members back"), "{told:?}");
    assert!(all.contains("rebuilt") && all.contains(text(spare.path())), "{told:?}");
    assert!(told.text("next").contains(&uuid) && told.text("next").contains("--force"), "{told:?}");
    follow(&daemon, &told.text("next")).data();
    daemon.wait("tank", "healthy");
    drop(daemon);
}

#[test]
fn sl_01_the_refusal_of_a_split_history_names_paths_and_a_command_for_each_side() {
    let lab = Lab::new("sl01");
    let drives = lab.drives("d", 2, DRIVE);
    let daemon = lab.daemon();
    let uuid = daemon.create("tank", 1, &drives).text("groups.0.uuid");
    daemon.wait("tank", "synced");
    let stop = || daemon.run(&["group", "stop", "tank", "--force"]).data();
    let away = lab.join("away");
    stop();
    for here in [0, 1] {
        // Each half runs without the other.
        std::fs::rename(&drives[1 - here], &away).unwrap();
        let options: &[&str] = if here == 0 { &[] } else { &["--force", "--yes", "--expect-uuid", &uuid] };
        daemon.assemble("tank", &drives[here..=here], options).data();
        stop();
        std::fs::rename(&away, &drives[1 - here]).unwrap();
    }
    let before = hashes(&drives);
    let refused = daemon.assemble("tank", &drives, &[]);
    refused.fails(3, &["group.diverged", text(&drives[0]), text(&drives[1]), "--keep"]);
    assert_eq!(hashes(&drives), before, "a refusal writes nothing");
    let next = problem(&daemon, "group.diverged").unwrap().text("next");
    let commands: Vec<&str> = next.split("warpraid ").filter(|part| part.contains("--keep")).collect();
    assert_eq!(commands.len(), 2, "{next}");
    daemon.assemble("tank", &drives, &["--keep", "nosuch"]).fails(4, &["nosuch"]);
    // By path instead of by uuid, the other side.
    daemon.assemble("tank", &drives, &["--keep", text(&drives[0]), "--dry-run"]).data();
    assert_eq!(hashes(&drives), before);
    let started = daemon.assemble("tank", &drives, &["--keep", text(&drives[0])]).data();
    assert!(started.mentions("conflict"), "{started:?}");
    assert_eq!(daemon.member_states("tank"), ["in_sync", "conflict"]);
    assert_eq!(hashes(&drives[1..]), before[1..], "the other side is left untouched");
}

#[test]
fn assemble_says_what_each_drive_is_and_a_tiny_file_is_told_its_size() {
    let lab = Lab::new("steps");
    let drives = lab.drives("d", 3, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.fail(&drives[0]);
    daemon.ok(&["group", "stop", "tank"]);
    let started = daemon.assemble("tank", &drives, &[]).data();
    let steps: Vec<String> =
        started.list("steps").iter().map(|step| step.0.as_str().unwrap().to_owned()).collect();
    let of = |drive: &Path| {
        steps.iter().find(|step| step.starts_with(text(drive))).expect("each drive has a step")
    };
    assert!(of(&drives[0]).contains("stale") && !of(&drives[0]).contains("active"), "{steps:?}");
    assert!(of(&drives[1]).contains("slot 1") && of(&drives[1]).contains("in sync"), "{steps:?}");

    let tiny = lab.join("tiny");
    std::fs::write(&tiny, "tiny..").unwrap();
    let more = lab.drives("more", 2, DRIVE);
    let mut with_tiny = more.clone();
    with_tiny.push(tiny);
    daemon.try_create("other", "5", &with_tiny, &[]).fails(2, &["tiny: 6 bytes", "8 MiB"]);
}

#[test]
fn ad_03_a_daemon_without_root_says_what_is_missing() {
    if !is_root_or_skip("ad_03_a_daemon_without_root_says_what_is_missing") {
        return;
    }
    let lab = Lab::new("ad03user");
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(lab.path(), 0o755);
    let binary = lab.join("warpraid");
    std::fs::copy(cli::binary(), &binary).unwrap();
    open(&binary, 0o755);
    let own = lab.join("own");
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let closed = lab.drive("closed", DRIVE);
    open(&closed, 0o600);
    let as_user = |arguments: &[&str]| {
        let mut command = tool::command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&binary);
        command.args(["-o", "json"]).args(arguments);
        command
    };
    let serve = |state: &Path, socket: &Path| {
        cli::answer(as_user(&["serve", "--state-dir", text(state), "--socket", text(socket)]), b"")
    };
    serve(&lab.join("theirs/state"), &own.join("a.sock")).fails(6, &["theirs/state", "--state-dir"]);
    serve(&own.join("state"), &lab.join("theirs/run/a.sock")).fails(6, &["theirs/run", "--socket"]);
    serve(&own.join("state"), &lab.join("a.sock")).fails(6, &["a.sock", "--socket"]);

    // Folders that are not there yet are made, with what is above them.
    let (state, socket) = (own.join("a/b/state"), own.join("c/d/a.sock"));
    let mut child =
        as_user(&["serve", "--state-dir", text(&state), "--socket", text(&socket), "--drive", text(&closed)])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
    let list = || cli::answer(as_user(&["--socket", text(&socket), "drive", "list"]), b"");
    tool::wait_until("the daemon answers", PATIENCE, || list().exit == 0);
    let listed = list();
    child.kill().unwrap();
    child.wait().unwrap();
    let drives = listed.data().list("drives");
    let shown = drives.iter().find(|drive| drive.text("path") == text(&closed)).expect("it is listed");
    assert_eq!(shown.text("state"), "not_permitted");
    assert!(shown.text("why").contains("permission"), "{shown:?}");
}

#[test]
fn the_demo_answers_in_json_also_when_it_fails_or_is_stopped() {
    let lab = Lab::new("demo");
    let demo = |dir: &Path| {
        let mut command = Command::new(cli::binary());
        command.args(["-o", "json", "demo", "--dir"]).arg(dir);
        command
    };
    let failed = cli::answer(demo(&lab.join("nosuch")), b"");
    failed.fails(1, &["demo.failed", "nosuch"]);

    let mut command = demo(lab.path());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let child = command.spawn().unwrap();
    let made = || std::fs::read_dir(lab.path()).unwrap().flatten().next();
    tool::wait_until("the demo serves", PATIENCE, || {
        made().is_some_and(|entry| entry.path().join("alpha.sock").exists())
    });
    tool::signal(child.id(), "INT");
    let output = tool::wait_for(child, "demo");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let envelope: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (envelope["ok"].as_bool(), envelope["error"]["code"].as_str()),
        (Some(false), Some("demo.failed"))
    );
    assert!(made().is_none(), "the demo's folder is gone");
}
