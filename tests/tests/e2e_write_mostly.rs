//! Write-mostly members of mirrors: marked at create or later, kept on the drive, read only when no other copy can be.

use warpraid_tests::cli::Json;
use warpraid_tests::{Daemon, Lab, Stamped, tool};

const DRIVE: u64 = 64 << 20;

fn member(daemon: &Daemon, slot: usize) -> Json {
    daemon.group("tank").list("members").swap_remove(slot)
}

fn marks(daemon: &Daemon) -> Vec<bool> {
    let members = daemon.group("tank").list("members");
    members.iter().map(|member| member.at("write_mostly").0 == serde_json::Value::Bool(true)).collect()
}

/// Read commands to a slot's drive, by the daemon's own metrics of the drive.
fn reads(daemon: &Daemon, slot: usize) -> u64 {
    tool::wait_until("it is watched", warpraid_tests::daemon::PATIENCE, || {
        !member(daemon, slot).at("latency").0.is_null()
    });
    member(daemon, slot).at("latency").number("reads")
}

#[test]
fn a_write_mostly_half_is_written_and_not_read() {
    let lab = Lab::new("wmostly");
    let mut daemon = lab.daemon();
    let drives = lab.drives("d", 2, DRIVE);
    let text: Vec<&str> = drives.iter().map(|path| tool::text(path)).collect();
    let create = ["group", "create", "tank", "--level", "1", text[0], text[1], "--yes"];
    daemon
        .run(&[&create[..], &["--write-mostly", text[0], "--write-mostly", text[1]]].concat())
        .fails(2, &["every copy"]);
    daemon.run(&[&create[..], &["--write-mostly", "/no/such"]].concat()).fails(4, &["/no/such"]);
    let plan = daemon.ok(&[&create[..], &["--write-mostly", text[1], "--dry-run"]].concat());
    assert!(plan.mentions("write-mostly: slot 1"), "{plan:?}");
    daemon.ok(&[&create[..], &["--write-mostly", text[1]]].concat());
    daemon.wait("tank", "synced");
    assert_eq!(marks(&daemon), [false, true]);
    let shown = tool::run("mdadm", &["--examine", text[1]]);
    assert!(shown.contains("write-mostly"), "{shown}");
    daemon.disk("tank/disk", "16M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    let before = reads(&daemon, 1);
    stamped.verify(&export);
    stamped.some(&export, 1, 100);
    assert_eq!(reads(&daemon, 1), before, "it is not read");
    stamped.flush(&export);
    // It stays marked over a restart, and is read when it is all there is.
    daemon.stop();
    daemon.start_again();
    daemon.bring_up("tank", &drives);
    assert_eq!(marks(&daemon), [false, true]);
    let export = daemon.expose("tank/disk");
    daemon.fail(&drives[0]);
    stamped.verify(&export);
    // The other way round, and off.
    daemon.ok(&["group", "readd", "tank", text[0]]);
    daemon.wait("tank", "healthy");
    daemon.run(&["group", "set", "tank", "--write-mostly", "0,1"]).fails(2, &["every copy"]);
    daemon.run(&["group", "set", "tank", "--write-mostly", "x"]).fails(2, &["no slot"]);
    daemon.run(&["group", "set", "tank", "--write-mostly", "7"]).fails(2, &["no slot 7"]);
    daemon.ok(&["group", "set", "tank", "--write-mostly", "0", "--dry-run"]);
    assert_eq!(marks(&daemon), [false, true]);
    daemon.ok(&["group", "set", "tank", "--write-mostly", "0"]);
    assert_eq!(marks(&daemon), [true, false]);
    stamped.verify(&export);
    daemon.ok(&["group", "set", "tank", "--write-mostly", "none"]);
    assert_eq!(marks(&daemon), [false, false]);
    warpraid_tests::check::assert_redundant(&drives);
}

#[test]
fn write_mostly_is_for_copies_only() {
    let lab = Lab::new("wmlevel");
    let daemon = lab.daemon();
    let drives = lab.drives("d", 3, DRIVE);
    let text: Vec<&str> = drives.iter().map(|path| tool::text(path)).collect();
    let create = ["group", "create", "tank", "--level", "5", text[0], text[1], text[2], "--yes"];
    daemon.run(&[&create[..], &["--write-mostly", text[1]]].concat()).fails(2, &["no copies"]);
    daemon.ok(&create);
    daemon.run(&["group", "set", "tank", "--write-mostly", "1"]).fails(2, &["no copies"]);
    daemon.ok(&["group", "set", "tank", "--write-mostly", "none"]);
}
