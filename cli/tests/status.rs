//! The human status, as it is read at 3 a.m.: snapshots in `snapshots/`, written anew with `WARPRAID_WRITE_DOCS=1`.

mod common;

use common::fake::Scene;
use common::{Daemon, code, stdout};

fn same_as_snapshot(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("WARPRAID_WRITE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let snapshot = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, snapshot,
        "{name} differs; if the new text is better, write it with WARPRAID_WRITE_DOCS=1"
    );
}

#[test]
fn status_for_people() {
    let daemon = Daemon::start();
    for (scene, name) in [
        (Scene::Healthy, "status-healthy.txt"),
        (Scene::Degraded, "status-degraded.txt"),
        (Scene::Rebuilding, "status-rebuilding.txt"),
        (Scene::Offline, "status-offline.txt"),
        (Scene::Empty, "status-empty.txt"),
    ] {
        *daemon.fake.scene.lock().unwrap() = scene;
        let output = daemon.run("status");
        assert_eq!(code(&output), 0);
        let text = stdout(&output);
        same_as_snapshot(name, &text);
        let words = ["HEALTH  ", "WHY     ", "RISK    ", "NEXT    warpraid ", "CODE    "];
        match scene {
            Scene::Healthy => assert_eq!(text.lines().count(), 2, "a healthy group is one line"),
            Scene::Empty => assert!(text.contains("NEXT    warpraid ")),
            _ => assert!(words.iter().all(|word| text.contains(word)), "{text}"),
        }
    }
}

#[test]
fn other_views_for_people() {
    let daemon = Daemon::start();
    *daemon.fake.scene.lock().unwrap() = Scene::Rebuilding;
    for (args, name) in [
        ("events", "events.txt"),
        ("history tank/home", "history.txt"),
        ("explain group.degraded", "explain.txt"),
        ("group show tank", "group-show.txt"),
        ("group list", "group-list.txt"),
        ("group plan --level 5 /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1", "group-plan.txt"),
        ("drive list", "drive-list.txt"),
        ("drive show /dev/nvme3n1", "drive-show.txt"),
        ("disk list", "disk-list.txt"),
        ("disk show tank/home", "disk-show.txt"),
        ("disk delete tank/home --dry-run", "disk-delete-dry-run.txt"),
    ] {
        let output = daemon.run(args);
        assert_eq!(code(&output), 0, "{args}");
        same_as_snapshot(name, &stdout(&output));
    }
}
