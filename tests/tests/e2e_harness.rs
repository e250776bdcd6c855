//! The lab itself: a fault that is not injected, or damage that is not seen, would make every other test prove nothing.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use stamps::nbd::Command;
use warpraid_tests::faulty::Faulty;
use warpraid_tests::mount::{Device, Mounted};
use warpraid_tests::{Lab, drives, tool};

#[test]
fn a_faulty_drive_fails_hangs_and_recovers_on_command() {
    let lab = Lab::new("faulty");
    let faulty = Faulty::new(&lab, "bad", 4 << 20);
    let file = OpenOptions::new().read(true).write(true).open(faulty.path()).unwrap();
    let mut block = [0; 4096];
    file.write_all_at(&[7; 4096], 8192).unwrap();

    faulty.fail_writes(true);
    assert_eq!(file.write_all_at(&[8; 4096], 8192).unwrap_err().raw_os_error(), Some(5));
    file.read_exact_at(&mut block, 8192).unwrap();
    assert_eq!(block, [7; 4096]);
    faulty.fail_writes(false);
    file.write_all_at(&[9; 4096], 8192).unwrap();

    let flushes = faulty.flushes();
    file.sync_all().unwrap();
    assert_eq!(faulty.flushes(), flushes + 1);

    faulty.hang();
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let file = &file;
        scope.spawn(move || send.send(file.write_all_at(&[10; 4096], 4096)));
        let hung = receive.recv_timeout(Duration::from_millis(300));
        faulty.resume();
        assert!(hung.is_err(), "the write went through a hanging drive");
        receive.recv().unwrap().unwrap();
    });

    faulty.fail_reads(true);
    let fresh = OpenOptions::new().read(true).open(faulty.path()).unwrap();
    let error = fresh.read_exact_at(&mut block, 1 << 20).unwrap_err();
    assert!(error.raw_os_error() == Some(5) || error.kind() == ErrorKind::UnexpectedEof, "{error}");
    faulty.fail_reads(false);
}

/// A process that waits for a drive behind FUSE survives SIGKILL; a test that fails then must end all the same.
#[test]
fn a_daemon_whose_drive_hangs_ends_with_its_test() {
    let lab = Lab::new("ends");
    let faulty = Faulty::new(&lab, "bad", 64 << 20);
    let good = lab.drive("good", 64 << 20);
    let daemon = lab.daemon();
    daemon.create("tank", 1, &[faulty.path(), &good]);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "8M");
    let export = daemon.expose("tank/disk");
    let mut client = export.connect();
    faulty.hang();
    // Many at once: one alone may be waiting where a signal still reaches it.
    for i in 0..64 {
        client.submit(Command::write(i << 16, vec![1; 4096])).unwrap();
    }
    assert!(client.wait_for(Duration::from_millis(200)).unwrap().is_none(), "it hangs");
    let pid = daemon.pid();
    // As when a test panics: the daemon goes first, and the drive still hangs.
    drop(daemon);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the daemon is left behind");
}

#[test]
fn hashes_see_one_changed_byte() {
    let lab = Lab::new("hashes");
    let paths = lab.drives("d", 2, 3 << 20);
    let before = drives::hashes(&paths);
    drives::overwrite(&paths[1], (3 << 20) - 1, &[1]);
    let after = drives::hashes(&paths);
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
}

#[test]
fn an_export_of_another_server_mounts_as_a_filesystem() {
    if !tool::is_root_or_skip("an_export_of_another_server_mounts_as_a_filesystem") {
        return;
    }
    let lab = Lab::new("mount");
    let faulty = Faulty::new(&lab, "disk", 64 << 20);
    let uri = format!("nbd+unix:///?socket={}", lab.join("disk.nbd").display());
    let device = Device::attach(&uri, lab.path(), "export");
    tool::run("mkfs.ext4", &["-q", tool::text(device.path())]);
    let mounted = Mounted::mount(device.path(), &lab.join("mnt"));
    std::fs::write(mounted.folder().join("file"), "kept").unwrap();
    mounted.unmount();
    tool::run("e2fsck", &["-fn", tool::text(device.path())]);
    drop((device, faulty));
}
