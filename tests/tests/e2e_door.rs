//! Who and what is let in: used drives, sockets, drives with other block sizes.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use warpraid_tests::check::assert_redundant;
use warpraid_tests::drives::{LoopDevice, hashes};
use warpraid_tests::mount::Mounted;
use warpraid_tests::tool::{is_root_or_skip, text};
use warpraid_tests::{Daemon, Lab, Stamped, cli, tool};

const DRIVE: u64 = 64 << 20;

/// Asserts that a group over `used` and two blank drives is refused with exit 3, that the message says all of `words`, and
/// that nothing was written.
fn assert_refused(daemon: &Daemon, lab: &Lab, used: &Path, words: &[&str]) {
    let mut drives = lab.drives("blank", 2, DRIVE);
    let blanks = drives.clone();
    drives.insert(1, used.to_owned());
    let before = hashes(&drives);
    let refused = daemon.try_create("tank", "5", &drives, &[]);
    refused.fails(3, &[words, &[text(used)]].concat());
    assert_eq!(hashes(&drives), before, "{}: a refusal writes nothing", used.display());
    assert_eq!(daemon.ok(&["group", "list"]).list("groups").len(), 0);
    for blank in blanks {
        std::fs::remove_file(blank).unwrap();
    }
}

#[test]
fn ad_01_signatures_on_a_drive_are_listed_and_nothing_is_written() {
    let lab = Lab::new("ad01");
    let daemon = lab.daemon();

    let ext4 = lab.drive("ext4", DRIVE);
    tool::run("mkfs.ext4", &["-q", "-F", "-L", "precious", text(&ext4)]);
    assert_refused(&daemon, &lab, &ext4, &["ext4", "precious", "1080"]);

    let xfs = lab.drive("xfs", 400 << 20);
    tool::run("mkfs.xfs", &["-q", "-L", "treasure", text(&xfs)]);
    assert_refused(&daemon, &lab, &xfs, &["xfs", "treasure"]);

    let gpt = lab.drive("gpt", DRIVE);
    tool::run("sgdisk", &["--new=1:0:0", "--change-name=1:data", text(&gpt)]);
    assert_refused(&daemon, &lab, &gpt, &["gpt"]);
    // Only the copy at the end is left: still somebody's.
    warpraid_tests::drives::overwrite(&gpt, 0, &[0; 64 << 10]);
    assert_refused(&daemon, &lab, &gpt, &["gpt"]);

    let fat = lab.drive("fat", DRIVE);
    tool::run("mkfs.fat", &["-n", "STICK", text(&fat)]);
    assert_refused(&daemon, &lab, &fat, &["fat"]);

    let btrfs = lab.drive("btrfs", 200 << 20);
    tool::run("mkfs.btrfs", &["-q", "-L", "tree", text(&btrfs)]);
    assert_refused(&daemon, &lab, &btrfs, &["btrfs"]);
}

#[test]
fn ad_01_a_member_of_a_linux_md_array_is_refused() {
    let lab = Lab::new("ad01md");
    let daemon = lab.daemon();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/raid5/d0.img.gz");
    let member = lab.join("member");
    tool::run("sh", &["-e", "-c", &format!("gzip -dc '{}' > '{}'", text(&golden), text(&member))]);
    let file = std::fs::OpenOptions::new().write(true).open(&member).unwrap();
    file.set_len(DRIVE).unwrap();
    assert_refused(&daemon, &lab, &member, &["md"]);
}

#[test]
fn ad_01_our_own_stale_member_is_refused() {
    let lab = Lab::new("ad01own");
    let drives = lab.drives("d", 3, DRIVE);
    let daemon = lab.daemon();
    daemon.create("old", 5, &drives);
    daemon.wait("old", "synced");
    daemon.fail(&drives[0]);
    let mut again = lab.drives("blank", 2, DRIVE);
    again.insert(0, drives[0].clone());
    let before = hashes(&again);
    let refused = daemon.try_create("new", "5", &again, &[]);
    refused.fails(3, &["old"]);
    assert_eq!(hashes(&again), before);
}

#[test]
fn ad_01_a_mounted_partition_an_lvm_volume_and_a_held_drive_are_refused_whatever_is_said() {
    let test = "ad_01_a_mounted_partition_an_lvm_volume_and_a_held_drive_are_refused_whatever_is_said";
    if !is_root_or_skip(test) {
        return;
    }
    let lab = Lab::new("ad01root");
    let daemon = lab.daemon();

    let disk = lab.drive("disk", 128 << 20);
    tool::run("sgdisk", &["--new=1:0:0", text(&disk)]);
    let device = LoopDevice::attach(&disk, 512);
    let partition = device.partition(1);
    tool::run("mkfs.ext4", &["-q", "-L", "home", text(&partition)]);
    let mounted = Mounted::mount(&partition, &lab.join("mnt"));
    std::fs::write(mounted.folder().join("file"), "kept").unwrap();
    tool::run("sync", &["-f", text(mounted.folder())]);
    assert_refused(&daemon, &lab, device.path(), &["mnt"]);
    let wipe = ["drive", "wipe", text(device.path()), "--yes", "--expect-uuid", "whatever"];
    let refused = daemon.run(&wipe);
    assert!(refused.exit == 3 || refused.exit == 7, "{refused}");
    mounted.unmount();
    assert_refused(&daemon, &lab, device.path(), &["gpt"]);
    drop(device);

    let volume = lab.drive("volume", DRIVE);
    let device = LoopDevice::attach(&volume, 512);
    tool::run("pvcreate", &["-q", "--config", "devices { use_devicesfile=0 }", text(device.path())]);
    assert_refused(&daemon, &lab, device.path(), &["lvm"]);
    if partition.exists() {
        // Made by the harness where there is no udev.
        let _gone = std::fs::remove_file(partition);
    }
}

#[test]
fn ad_03_sockets_have_their_modes_from_the_start_whatever_the_umask() {
    let lab = Lab::new("ad03");
    for umask in ["000", "022", "077"] {
        let (state, socket) =
            (lab.join(&format!("state{umask}")), lab.join(&format!("run{umask}/admin.sock")));
        let serve = format!(
            "umask {umask} && exec '{}' serve --state-dir '{}' --socket '{}' 2>/dev/null",
            text(cli::binary()),
            text(&state),
            text(&socket)
        );
        let mut child = Command::new("sh").args(["-c", &serve]).spawn().unwrap();
        // A folder that everybody may write to is refused, so it is made here, closed.
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        tool::wait_until("the socket", warpraid_tests::daemon::PATIENCE, || socket.exists());
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        let modes = (mode(&socket), mode(&socket.with_file_name("read.sock")));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(modes, (0o600, 0o660), "umask {umask}: {:o} {:o}", modes.0, modes.1);
    }
}

#[test]
fn ad_03_a_symlink_in_place_of_the_socket_is_refused_and_not_followed() {
    let lab = Lab::new("ad03link");
    let victim = lab.join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    std::fs::create_dir(lab.join("run")).unwrap();
    let socket = lab.join("run/admin.sock");
    std::os::unix::fs::symlink(&victim, &socket).unwrap();
    let mut serve = Command::new(cli::binary());
    serve.args(["-o", "json", "serve", "--state-dir"]).arg(lab.join("state")).arg("--socket").arg(&socket);
    let refused = cli::answer(serve, b"");
    assert!(refused.exit == 3 || refused.exit == 7, "{refused}");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    assert!(socket.is_symlink(), "somebody else's link is left alone");
}

#[test]
fn ad_03_another_user_is_refused_by_every_verb_that_changes_something() {
    if !is_root_or_skip("ad_03_another_user_is_refused_by_every_verb_that_changes_something") {
        return;
    }
    let lab = Lab::new("ad03uid");
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    open(lab.path());
    // The stranger must be able to run the binary at all.
    let binary = lab.join("warpraid");
    std::fs::copy(cli::binary(), &binary).unwrap();
    open(&binary);
    let daemon = lab.daemon();
    open(&lab.join("run"));
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/disk", "8M");
    let stranger = |arguments: &[&str]| {
        let mut command = tool::command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&binary);
        command.args(["-o", "json", "--socket"]).arg(&daemon.socket).args(arguments);
        cli::answer(command, b"")
    };
    let before = daemon.group("tank").at("members");
    let uuid = daemon.group("tank").text("uuid");
    for verb in [
        vec!["drive", "fail", text(&drives[0])],
        vec!["group", "create", "x", "--level", "5", "--yes", "a", "b", "c"],
        vec!["drive", "wipe", text(&drives[0]), "--yes", "--expect-uuid", &uuid],
        vec!["group", "assemble", "tank"],
        vec!["group", "assemble", "--all"],
        vec!["group", "undelete", "tank"],
        vec!["disk", "unexpose", "tank/disk"],
        vec!["group", "stop", "tank"],
        vec!["group", "delete", "tank", "--yes", "--expect-uuid", &uuid],
        vec!["group", "replace", "tank", "--slot", "0", text(&drives[0])],
        vec!["disk", "create", "tank/more", "--size", "1M"],
        vec!["disk", "expose", "tank/disk", "--nbd", "tcp:127.0.0.1:10809"],
        vec!["disk", "resize", "tank/disk", "--size", "9M"],
        vec!["disk", "delete", "tank/disk", "--yes", "--expect-uuid", &uuid],
    ] {
        stranger(&verb).fails(6, &["65534"]);
    }
    assert_eq!(daemon.group("tank").at("members"), before);
}

/// Five loop devices over files, with 4096-byte blocks or not.
fn loops(lab: &Lab, prefix: &str, count: usize, block_bytes: u32) -> (Vec<LoopDevice>, Vec<PathBuf>) {
    let files = lab.drives(prefix, count, DRIVE);
    let devices: Vec<LoopDevice> = files.iter().map(|file| LoopDevice::attach(file, block_bytes)).collect();
    let paths = devices.iter().map(|device| device.path().to_owned()).collect();
    (devices, paths)
}

#[test]
fn mk_03_a_group_on_4kn_members_advertises_4096_and_serves_it() {
    if !is_root_or_skip("mk_03_a_group_on_4kn_members_advertises_4096_and_serves_it") {
        return;
    }
    let lab = Lab::new("mk03");
    let (devices, paths) = loops(&lab, "d", 4, 4096);
    let daemon = lab.daemon();
    // Block devices are everybody's: a daemon of another test that starts now sees this name too.
    daemon.create("fourkn", 5, &paths);
    assert_eq!(daemon.group("fourkn").number("block_size_bytes"), 4096);
    daemon.disk("fourkn/disk", "24M");
    let export = daemon.expose("fourkn/disk");
    let mut client = export.connect();
    let least = client.export().block_bytes.expect("block sizes are told")[0];
    assert_eq!(least, 4096);
    // Smaller is either right or an error, never wrong.
    client.write(0, &[1; 8192]).unwrap();
    let small = client.write(512, &[2; 512]);
    let mut expected = vec![1; 8192];
    if small.is_ok() {
        expected[512..1024].fill(2);
    }
    assert_eq!(client.read(0, 8192).unwrap(), expected);
    client.write(0, &[0; 8192]).unwrap();
    let stamped = Stamped::new(1, export.size_bytes, 4096);
    // The model starts blank, and so is the disk but for what was just zeroed.
    stamped.some(&export, 1, 400);
    daemon.wait("fourkn", "synced");
    daemon.fail(&paths[2]);
    stamped.verify(&export);
    stamped.some(&export, 2, 400);
    let (spare, spare_path) = loops(&lab, "spare", 1, 4096);
    daemon.replace("fourkn", 2, &spare_path[0]);
    daemon.wait("fourkn", "healthy");
    stamped.verify(&export);
    stamped.flush(&export);
    assert_redundant(&[&paths[0], &paths[1], &spare_path[0], &paths[3]]);
    drop((daemon, devices, spare));
}

#[test]
fn mk_04_a_4kn_drive_is_refused_by_a_group_of_512_byte_blocks() {
    if !is_root_or_skip("mk_04_a_4kn_drive_is_refused_by_a_group_of_512_byte_blocks") {
        return;
    }
    let lab = Lab::new("mk04");
    let drives = lab.drives("d", 3, DRIVE);
    let (devices, paths) = loops(&lab, "big", 1, 4096);
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    assert_eq!(daemon.group("tank").number("block_size_bytes"), 512);
    daemon.fail(&drives[1]);
    let before = hashes(&paths);
    daemon.run(&["group", "replace", "tank", "--slot", "1", text(&paths[0])]).fails(3, &["4096", "512"]);
    assert_eq!(hashes(&paths), before);
    assert_eq!(daemon.group("tank").number("block_size_bytes"), 512);
    drop((daemon, devices));
}
