//! The daemon as a service: what systemd is told, the unit and the rules, and upgrades on the host, without block devices.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use warpraid_tests::tool::text;
use warpraid_tests::{Lab, cli, tool};

const DRIVE: u64 = 32 << 20;
/// A time-out, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("contrib").join(name)
}

/// The next message to the service manager that has this line; those before it are skipped and given back.
fn awaited(manager: &UnixDatagram, line: &str) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "{line} was not told; told were {seen:?}");
        let mut bytes = [0; 512];
        let Ok(got) = manager.recv(&mut bytes) else { continue };
        let message = String::from_utf8(bytes[..got].to_vec()).expect("text");
        let is_it = message.lines().any(|one| one == line);
        seen.push(message);
        if is_it {
            return seen;
        }
    }
}

#[test]
fn the_service_manager_is_told_ready_alive_upgrading_and_stopping() {
    let lab = Lab::new("notify");
    let path = lab.join("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let socket = lab.join("admin.sock");
    let mut daemon = Command::new(cli::binary())
        .args(["serve", "--lanes", "2", "--memory", "64M", "--state-dir", text(&lab.join("state"))])
        .args(["--socket", text(&socket)])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "2000000")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    awaited(&manager, "READY=1");
    cli::run(&socket, &["status"]).data();
    for _ in 0..3 {
        awaited(&manager, "WATCHDOG=1");
    }
    // Another program in the same process: not an end, and ready again.
    cli::run(&socket, &["upgrade"]).data();
    awaited(&manager, "RELOADING=1");
    awaited(&manager, "READY=1");
    awaited(&manager, "WATCHDOG=1");
    // All of its threads stand still: no sign of life, which is what the service manager acts upon.
    tool::signal(daemon.id(), "STOP");
    std::thread::sleep(Duration::from_millis(300));
    while manager.recv(&mut [0; 512]).is_ok() {}
    tool::signal(daemon.id(), "CONT");
    awaited(&manager, "WATCHDOG=1");
    tool::signal(daemon.id(), "TERM");
    awaited(&manager, "STOPPING=1");
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn an_upgrade_keeps_process_groups_and_disks() {
    let lab = Lab::new("upgrade");
    let daemon = lab.daemon();
    let drives = lab.drives("d", 4, DRIVE);
    daemon.create("tank", 6, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/home", "16M");
    let address = format!("unix:{}", lab.join("home.sock").display());
    daemon.ok(&["disk", "expose", "tank/home", "--nbd", &address]);
    let uri = format!("nbd+unix:///tank/home?socket={}", lab.join("home.sock").display());
    let io = |what: &str| tool::run("qemu-io", &["-f", "raw", "-c", what, &uri]);
    io("write -P 0x5a 1M 1M");
    let next = lab.join("next");
    std::fs::copy(cli::binary(), &next).unwrap();
    let pid = daemon.pid();
    let plan = daemon.ok(&["upgrade", "--program", text(&next), "--dry-run"]);
    assert!(plan.at("steps").mentions("takes over"), "{plan:?}");
    let done = daemon.ok(&["upgrade", "--program", text(&next)]);
    assert_eq!(done.text("to_version"), done.text("from_version"));
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), next);
    assert_eq!(daemon.group("tank").text("state"), "healthy");
    io("read -P 0x5a 1M 1M");
    let told = daemon.ok(&["events", "--code", "daemon.upgraded"]);
    assert_eq!(told.list("events").len(), 1);
    // The same file again, by the name the daemon has been started from since.
    daemon.ok(&["upgrade"]);
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), next);
}

#[test]
fn what_cannot_take_over_is_refused_and_nothing_changes() {
    let lab = Lab::new("refused-upgrade");
    let daemon = lab.daemon();
    let script = |name: &str, body: &str, mode: u32| {
        let path = lab.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let older = script("older", "echo warpraid 0.0.1", 0o755);
    let other = script("other", "echo 'error: no such option' >&2; exit 2", 0o755);
    let open = script("open", "echo warpraid 9.9.9", 0o777);
    let started = daemon.ok(&["status"]);
    for (path, exit, words) in [
        (older, 3, "older"),
        (other, 2, "no such option"),
        (open, 2, "others than root"),
        (lab.join("nowhere"), 2, "No such file"),
    ] {
        let path: PathBuf = path;
        daemon.run(&["upgrade", "--program", text(&path)]).fails(exit, &[words]);
    }
    let now = daemon.ok(&["status"]);
    assert_eq!(now.at("daemon.started_unix_s"), started.at("daemon.started_unix_s"));
    assert_eq!(now.at("daemon.upgraded").0, serde_json::Value::Null);
    // Says the right words and cannot be started: the program before it goes on, in the same process.
    let body = "case \"$*\" in *--check*) echo warpraid 9.9.9; chmod 644 \"$0\" ;; esac";
    let liar = script("liar", body, 0o755);
    daemon.run(&["upgrade", "--program", text(&liar)]).fails(1, &["cannot be started", "goes on"]);
    daemon.ok(&["status"]);
    assert_eq!(daemon.ok(&["events", "--code", "daemon.not_upgraded"]).list("events").len(), 1);
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let unit = std::fs::read_to_string(contrib("systemd/warpraid.service")).unwrap();
    for line in ["Type=notify", "DefaultDependencies=no", "Before=local-fs.target", "IgnoreOnIsolate=yes"] {
        assert!(unit.lines().any(|one| one == line), "no {line}");
    }
    // Spared when systemd ends all processes at shutdown, and not stopped before that.
    assert!(unit.contains("ExecStart=@/usr/bin/warpraid @warpraid serve"));
    assert!(!unit.lines().any(|line| line.starts_with("Conflicts=")));
    // A mount namespace of its own would keep its disks mounted.
    for option in
        ["ProtectSystem", "PrivateTmp", "ProtectHome", "PrivateMounts", "ReadOnlyPaths", "InaccessiblePaths"]
    {
        assert!(!unit.lines().any(|line| line.starts_with(option)), "{option}");
    }
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        eprintln!("skipped: systemd-analyze is not there");
        return;
    }
    let lab = Lab::new("unit");
    let path = lab.join("warpraid.service");
    std::fs::write(&path, unit.replace("/usr/bin/warpraid", text(cli::binary()))).unwrap();
    let said = tool::output("systemd-analyze", &["verify", "--man=no", text(&path)]);
    let errors = String::from_utf8_lossy(&said.stderr);
    let ours: Vec<&str> = errors.lines().filter(|line| line.contains("warpraid")).collect();
    assert!(said.status.success() && ours.is_empty(), "{ours:?}");
}

#[test]
fn udev_is_told_which_drives_are_members() {
    let lab = Lab::new("udev");
    let daemon = lab.daemon();
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    let ask = |drive: &Path| {
        let said = tool::finish(Command::new(cli::binary()).args(["examine", "--udev"]).arg(drive));
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let said = ask(&drives[2]);
    for line in ["WARPRAID_MEMBER=1", "WARPRAID_GROUP=tank", "WARPRAID_SLOT=2"] {
        assert!(said.lines().any(|one| one == line), "{said}");
    }
    assert!(
        said.lines().all(|line| line.split_once('=').is_some_and(|(key, _)| key.starts_with("WARPRAID_")))
    );
    assert_eq!(ask(&lab.drive("blank", DRIVE)), "");
    // The rule asks only for what looks like md's, and comes before md's own.
    let rules = std::fs::read_to_string(contrib("udev/63-warpraid.rules")).unwrap();
    assert!(rules.contains("ENV{ID_FS_TYPE}==\"linux_raid_member\", IMPORT{program}=\"/usr/bin/warpraid examine --udev $devnode\""));
}
