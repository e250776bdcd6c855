//! What an adopt keeps of an array of md, and a release gives back: flags of members, lists of lost blocks, places of data,
//! block sizes; and what the host forgets.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use md::{adopt_words, change_superblock, paths, read_superblock, said, sha256_of, unpack};
use raid_core::format::bad_blocks::BadBlocks;
use raid_core::format::superblock::FEATURE_BAD_BLOCKS;
use warpraid_tests::check::assert_redundant;
use warpraid_tests::drives::{LoopDevice, overwrite};
use warpraid_tests::{Lab, Stamped, tool};

mod md;

#[test]
fn flags_of_members_and_lists_of_lost_blocks_stay() {
    let lab = Lab::new("md-flags");
    let golden = unpack(&lab, "raid1");
    change_superblock(&golden.drives[1], |sb| sb.devflags = 3);
    let data = read_superblock(&golden.drives[0]).data_offset * 512;
    let mut lost = BadBlocks::default();
    lost.insert(data + 65_536..data + 65_536 + 4096);
    change_superblock(&golden.drives[0], |sb| sb.set_feature(FEATURE_BAD_BLOCKS, true));
    let log = read_superblock(&golden.drives[0]).bad_blocks_range().unwrap();
    overwrite(&golden.drives[0], log.start, &lost.encode().unwrap());
    let daemon = lab.daemon();
    daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--yes"]));
    let members = daemon.group("tank").list("members");
    let write_mostly: Vec<bool> = members.iter().map(|member| member.at("write_mostly").0 == true).collect();
    assert_eq!(write_mostly, [false, true]);
    let released = daemon.ok(&["group", "release", "tank", "--yes"]);
    assert!(released.mentions("4096 bytes of members are lost"), "{released:?}");
    assert_eq!(read_superblock(&golden.drives[1]).devflags, 3);
    let text = tool::run("mdadm", &["--examine-badblocks", tool::text(&golden.drives[0])]);
    assert!(text.contains(&format!("{} for 8 sectors", data / 512 + 128)), "{text}");

    // Once more: what is lost is read from the other copy, and rewritten.
    daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--yes"]));
    daemon.ok(&["group", "set", "tank", "--write-mostly", "none"]);
    assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256);
}

/// One member keeps its data 4 KiB further on than the other, as after a change of md's data offset.
#[test]
fn every_member_keeps_its_own_place_of_data() {
    let lab = Lab::new("md-offset");
    let golden = unpack(&lab, "raid5");
    let moved = &golden.drives[2];
    let at = usize::try_from(read_superblock(moved).data_offset * 512).unwrap();
    let mut bytes = fs::read(moved).unwrap();
    bytes.splice(at..at, vec![0; 4096]);
    fs::write(moved, bytes).unwrap();
    change_superblock(moved, |sb| sb.data_offset += 8);
    let daemon = lab.daemon();
    daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--yes"]));
    assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256);
    // The drive that takes its place is laid out like it, and needs as much room.
    daemon.fail(moved);
    let small = lab.drive("small", 8 << 20);
    daemon.run(&["group", "replace", "tank", "--slot", "2", tool::text(&small)]).fails(2, &["at least"]);
    let new = lab.drive("new", (8 << 20) + 4096);
    daemon.replace("tank", 2, &new);
    daemon.wait("tank", "healthy");
    assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256);
    daemon.ok(&["disk", "unexpose", "tank/whole"]);
    daemon.ok(&["group", "release", "tank", "--yes"]);
    let mut drives = golden.drives.clone();
    drives[2] = new;
    assert_eq!(read_superblock(&drives[2]).data_offset, 2056);
    assert_redundant(&drives);
}

#[test]
fn drives_of_4096_byte_blocks_go_both_ways() {
    if !tool::is_root_or_skip("drives_of_4096_byte_blocks_go_both_ways") {
        return;
    }
    let lab = Lab::new("md-4k");
    let files = lab.drives("d", 4, 64 << 20);
    let loops: Vec<LoopDevice> = files.iter().map(|file| LoopDevice::attach(file, 4096)).collect();
    let drives: Vec<PathBuf> = loops.iter().map(|device| device.path().to_owned()).collect();
    let daemon = lab.daemon();
    daemon.create("tank", 5, &drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "24M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 4096);
    stamped.fill(&export);
    stamped.flush(&export);
    daemon.ok(&["disk", "unexpose", "tank/disk"]);
    daemon.ok(&["group", "release", "tank", "--yes"]);
    for drive in &drives {
        let text = tool::run("mdadm", &["--examine", tool::text(drive)]);
        assert_eq!(said(&text, "State"), "clean", "{text}");
        let text = tool::run("mdadm", &["-X", tool::text(drive)]);
        assert_eq!(said(&text, "State"), "OK", "{text}");
    }
    daemon.ok(&adopt_words("back", &paths(&drives), &["--yes"]));
    assert_eq!(daemon.group("back").number("block_size_bytes"), 4096);
    stamped.verify(&daemon.expose("back/disk"));
    daemon.ok(&["disk", "unexpose", "back/disk"]);
    // Somebody holds one of them: not taken, and named.
    daemon.ok(&["group", "release", "back", "--yes"]);
    let held = open_as_md_does(&drives[1]);
    daemon.run(&adopt_words("back", &paths(&drives), &["--yes"])).fails(7, &[tool::text(&drives[1])]);
    drop(held);
    daemon.ok(&adopt_words("back", &paths(&drives), &["--yes"]));
}

/// Opens a block device as md holds its members: exclusively.
fn open_as_md_does(drive: &Path) -> fs::File {
    const O_EXCL: i32 = 0o200;
    fs::OpenOptions::new().read(true).custom_flags(O_EXCL).open(drive).unwrap()
}

#[test]
fn what_was_released_is_forgotten_by_the_daemon_and_by_the_next() {
    let lab = Lab::new("md-forgotten");
    let drives = lab.drives("d", 2, 64 << 20);
    let mut daemon = lab.daemon();
    // Mirrors remember most: a witness of an epoch that the next life of the group does not know.
    for round in 0..3 {
        daemon.create("tank", 1, &drives);
        daemon.wait("tank", "synced");
        daemon.ok(&["group", "release", "tank", "--yes"]);
        daemon.stop();
        daemon.start_again();
        assert!(daemon.ok(&["group", "list"]).list("groups").is_empty(), "round {round}");
        assert_eq!(daemon.run(&["health"]).exit, 0);
        daemon.ok(&adopt_words("tank", &paths(&drives), &["--yes"]));
        daemon.kill();
        daemon.start_again();
        daemon.wait("tank", "healthy");
        daemon.ok(&["group", "release", "tank", "--yes"]);
        for drive in &drives {
            let path = tool::text(drive);
            daemon.run(&["drive", "wipe", path, "--yes"]).fails(3, &["--expect-uuid"]);
            let uuid = read_superblock(drive).set_uuid.to_string();
            daemon.ok(&["drive", "wipe", path, "--yes", "--expect-uuid", &uuid]);
        }
    }
}
