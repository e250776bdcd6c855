//! Filesystems on our disks: made, mounted, filled while a drive fails, compared, checked. Need root.

use std::path::{Path, PathBuf};

use warpraid_tests::check::assert_redundant;
use warpraid_tests::mount::{Device, Mounted};
use warpraid_tests::tool::text;
use warpraid_tests::{Daemon, Lab, tool};

const DRIVE: u64 = 256 << 20;

struct Served {
    device: Device,
    daemon: Daemon,
    drives: Vec<PathBuf>,
    // Last: the folder goes when nothing is in it any more.
    lab: Lab,
}

/// A disk of 400 MiB (XFS wants 300) as a loop device; none without root.
fn served(test: &str, level: u32, width: usize) -> Option<Served> {
    served_of(test, level, width, DRIVE, "400M")
}

fn served_of(test: &str, level: u32, width: usize, drive_bytes: u64, disk: &str) -> Option<Served> {
    if !tool::is_root_or_skip(test) {
        return None;
    }
    let lab = Lab::new(test.get(..12).unwrap_or(test));
    let drives = lab.drives("d", width, drive_bytes);
    let daemon = lab.daemon();
    daemon.create("tank", level, &drives);
    daemon.disk("tank/disk", disk);
    let export = daemon.expose("tank/disk");
    daemon.wait("tank", "synced");
    let device = Device::attach(&export.uri, lab.path(), "export");
    Some(Served { device, daemon, drives, lab })
}

/// This project's own sources: a tree of many small files that is there wherever the tests are.
fn source_tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let (from, to) = (text(from), text(to));
    let copy = format!("tar -C '{from}' --exclude=./target --exclude=./.git -cf - . | tar -C '{to}' -xf -");
    tool::run("sh", &["-e", "-c", &copy]);
}

fn compare_trees(from: &Path, to: &Path) {
    tool::run("diff", &["-r", "--exclude=target", "--exclude=.git", text(from), text(to)]);
}

fn drop_caches() {
    // Read what is on the disk, not what the page cache remembers.
    tool::run("sh", &["-c", "sync; echo 3 > /proc/sys/vm/drop_caches"]);
}

/// Makes a filesystem, copies a source tree several times and fails a drive meanwhile, compares, checks, rebuilds,
/// compares again.
fn survives(served: &mut Served, mkfs: &[&str], check: &[&str]) {
    let device = text(served.device.path()).to_owned();
    tool::run(mkfs[0], &[&mkfs[1..], &[&device]].concat());
    let mounted = Mounted::mount(served.device.path(), &served.lab.join("mnt"));
    let source = source_tree();
    let copies: Vec<PathBuf> = (0..4).map(|i| mounted.folder().join(format!("copy{i}"))).collect();
    copy_tree(&source, &copies[0]);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            for copy in &copies[1..] {
                copy_tree(&source, copy);
            }
            tool::run("sync", &["-f", text(mounted.folder())]);
        });
        served.daemon.fail(&served.drives[1]);
        copying.join().expect("the copy works while a drive fails");
    });
    assert_eq!(served.daemon.group("tank").text("state"), "degraded");
    drop_caches();
    for copy in &copies {
        compare_trees(&source, copy);
    }
    mounted.unmount();
    tool::run(check[0], &[&check[1..], &[&device]].concat());

    let spare = served.lab.drive("spare", DRIVE);
    served.daemon.replace("tank", 1, &spare);
    served.drives[1] = spare;
    let mounted = Mounted::mount(served.device.path(), &served.lab.join("mnt"));
    served.daemon.wait("tank", "healthy");
    drop_caches();
    for copy in &copies {
        compare_trees(&source, copy);
    }
    // Space given back and taken again: discards and what follows them.
    std::fs::remove_dir_all(&copies[0]).unwrap();
    // Not every filesystem discards; those that do must find their data again.
    let _unsupported = tool::output("fstrim", &[text(mounted.folder())]);
    copy_tree(&source, &copies[0]);
    mounted.unmount();
    tool::run(check[0], &[&check[1..], &[&device]].concat());
    assert_redundant(&served.drives);
}

#[test]
fn mk_02_xfs_on_raid5_survives_a_failing_drive() {
    let Some(mut served) = served("mk_02_xfs_on_raid5_survives_a_failing_drive", 5, 4) else { return };
    survives(&mut served, &["mkfs.xfs", "-q"], &["xfs_repair", "-n"]);
}

#[test]
fn mk_02_ext4_on_raid6_survives_a_failing_drive() {
    let Some(mut served) = served("mk_02_ext4_on_raid6_survives_a_failing_drive", 6, 5) else { return };
    survives(&mut served, &["mkfs.ext4", "-q"], &["e2fsck", "-fn"]);
}

#[test]
fn mk_02_btrfs_on_raid10_survives_a_failing_drive() {
    let Some(mut served) = served("mk_02_btrfs_on_raid10_survives_a_failing_drive", 10, 4) else { return };
    survives(&mut served, &["mkfs.btrfs", "-q"], &["btrfs", "check", "--readonly"]);
}

/// The mkfs lines that `disk show` prints are lines that work.
#[test]
fn mk_02_the_printed_mkfs_lines_work() {
    // With a stripe width mkfs.xfs makes eight groups, and its log of 64 MiB must fit into one of them.
    let Some(served) = served_of("mk_02_the_printed_mkfs_lines_work", 5, 4, 384 << 20, "1G") else { return };
    let document = served.daemon.ok(&["disk", "show", "tank/disk"]);
    for kind in ["xfs", "ext4"] {
        let line = document.text(&format!("mkfs.{kind}"));
        assert!(line.contains("DEVICE"), "{line}");
        // Each must take the device as it is, so what the other left is wiped first.
        tool::run("wipefs", &["-aq", text(served.device.path())]);
        tool::run("sh", &["-e", "-c", &line.replace("DEVICE", text(served.device.path()))]);
    }
}

/// A mounted disk is in use: it is not deleted, and neither is its group.
#[test]
fn mk_06_a_mounted_disk_is_not_deleted() {
    let Some(served) = served_of("mk_06_a_mounted_disk_is_not_deleted", 1, 2, DRIVE, "200M") else { return };
    tool::run("mkfs.ext4", &["-q", text(served.device.path())]);
    let mounted = Mounted::mount(served.device.path(), &served.lab.join("mnt"));
    std::fs::write(mounted.folder().join("file"), "kept").unwrap();
    let uuid = served.daemon.ok(&["disk", "show", "tank/disk"]).text("uuid");
    served
        .daemon
        .run(&["disk", "delete", "tank/disk", "--yes", "--expect-uuid", &uuid])
        .fails(7, &["tank/disk"]);
    let uuid = served.daemon.group("tank").text("uuid");
    served.daemon.run(&["group", "delete", "tank", "--yes", "--expect-uuid", &uuid]).fails(7, &["tank"]);
    served.daemon.run(&["group", "stop", "tank"]).fails(7, &["tank"]);
    mounted.unmount();
    tool::run("e2fsck", &["-fn", text(served.device.path())]);
}
