//! Arrays of Linux md under the real daemon: arrays made by the real md are adopted, read, degraded, written and released,
//! and `mdadm` finds a clean array without a trace of ours; every refusal is named and writes nothing.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use md::{adopt_words, change_superblock, paths, read_superblock, said, sha256_of, unpack};
use raid_core::format::superblock::{FEATURE_JOURNAL, FEATURE_RECOVERY, FEATURE_RESHAPE, Superblock};
use warpraid_tests::check::assert_redundant;
use warpraid_tests::drives::{hashes, overwrite};
use warpraid_tests::{Lab, StampedGroup, tool};

mod md;

/// A released member: md's own words about it, and no trace of ours outside the data.
fn assert_clean_md(drive: &Path, before: &Superblock, before_said: &str, is_degraded: bool) {
    let now = read_superblock(drive);
    let text = tool::run("mdadm", &["--examine", tool::text(drive)]);
    assert!(said(&text, "Checksum").ends_with(" - correct"), "{text}");
    assert_eq!(said(&text, "State"), "clean", "{text}");
    for same in [
        "Feature Map",
        "Array UUID",
        "Raid Level",
        "Raid Devices",
        "Device UUID",
        "Device Role",
        "Data Offset",
    ] {
        assert_eq!(said(&text, same), said(before_said, same), "{same} of {}", drive.display());
    }
    assert_eq!(said(&text, "Array State"), said(before_said, "Array State"));
    assert!(
        now.events > before.events && now.events.is_multiple_of(2),
        "{} after {}",
        now.events,
        before.events
    );
    let mut as_before = now.clone();
    (as_before.events, as_before.utime) = (before.events, before.utime);
    if is_degraded {
        // md may call a number that is not used any more a spare, we call it faulty: both mean nobody.
        as_before.dev_roles.clone_from(&before.dev_roles);
    }
    assert_eq!(as_before, *before, "{}: only events and time of the last change differ", drive.display());
    let bytes = fs::read(drive).unwrap();
    let outside = &bytes[..usize::try_from(now.data_offset * 512).unwrap()];
    for magic in [b"WARPRAID", b"WRANCHOR"] {
        assert!(!outside.windows(8).any(|window| window == magic), "{}: a trace is left", drive.display());
    }
    if let Some(start) = now.bitmap_start() {
        // On a plain file mdadm looks for the bitmap at its start.
        let start = usize::try_from(start).unwrap();
        let file = drive.with_extension("bitmap");
        fs::write(&file, &bytes[start..start + 4096]).unwrap();
        let text = tool::run("mdadm", &["-X", tool::text(&file)]);
        assert_eq!(said(&text, "State"), "OK", "{text}");
        assert_eq!(said(&text, "Events"), now.events.to_string(), "{text}");
        let dirty = said(&text, "Bitmap").split_whitespace().nth(3).unwrap().to_owned();
        if is_degraded {
            assert_ne!(dirty, "0", "what the missing member lacks stays marked: {text}");
            assert_eq!(said(&text, "Events Cleared"), said(before_said, "Events Cleared"), "{text}");
        } else {
            assert_eq!(dirty, "0", "{text}");
            assert_eq!(said(&text, "Events Cleared"), now.events.to_string(), "{text}");
        }
    }
}

#[test]
fn arrays_of_the_real_md_are_adopted_read_written_and_released() {
    for (name, losses) in
        [("raid0", 0), ("raid1", 1), ("raid5", 1), ("raid5-nobitmap", 1), ("raid6", 2), ("raid10", 1)]
    {
        let lab = Lab::new(&format!("md-{name}"));
        let golden = unpack(&lab, name);
        let before: Vec<Superblock> = golden.drives.iter().map(|drive| read_superblock(drive)).collect();
        let daemon = lab.daemon();
        let untouched = hashes(&golden.drives);
        let dry = daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--dry-run"]));
        assert!(
            dry.mentions(&golden.array_bytes.to_string()) && dry.mentions("becomes group tank"),
            "{dry:?}"
        );
        daemon.run(&adopt_words("tank", &paths(&golden.drives), &[])).fails(3, &["--yes"]);
        assert_eq!(hashes(&golden.drives), untouched, "{name}: looking writes nothing");
        // In any order.
        let mut named = paths(&golden.drives);
        named.reverse();
        daemon.ok(&adopt_words("tank", &named, &["--yes"]));
        let group = daemon.group("tank");
        assert_eq!(group.text("state"), "healthy", "{name}");
        assert_eq!(group.number("capacity_bytes"), golden.array_bytes);
        let disks: Vec<String> =
            group.list("disks").iter().map(|disk| disk.0.as_str().unwrap().to_owned()).collect();
        assert_eq!(disks, ["whole"]);
        assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256, "{name}: as md read it");
        daemon.run(&["disk", "create", "tank/more", "--size", "1M"]).fails(3, &["whole"]);

        for lost in 0..if losses == 0 { 0 } else { golden.drives.len() } {
            let mut gone = vec![&golden.drives[lost]];
            gone.extend(golden.drives.get(lost + 1).filter(|_| losses == 2));
            gone.iter().for_each(|drive| drop(daemon.fail(drive)));
            assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256, "{name} without slot {lost}");
            if before[0].bitmap_start().is_none() {
                // Nothing tells what it lacks; the array is made anew for the next loss.
                daemon.run(&["group", "readd", "tank", tool::text(gone[0])]).fails(3, &["no intent bits"]);
                daemon.ok(&["disk", "unexpose", "tank/whole"]);
                daemon.ok(&["group", "stop", "tank"]);
                let again = unpack(&lab, name);
                daemon.ok(&adopt_words("tank", &paths(&again.drives), &["--yes"]));
                continue;
            }
            for drive in gone {
                daemon.ok(&["group", "readd", "tank", tool::text(drive)]);
            }
            daemon.wait("tank", "rebuilt");
        }

        let export = daemon.expose("tank/whole");
        let mut client = export.connect();
        let marks: Vec<(u64, u8)> = vec![(0, 1), (65_536, 2), (export.size_bytes - 4096, 3)];
        for (at, byte) in &marks {
            client.write(*at, &vec![*byte; 4096]).unwrap();
        }
        client.flush().unwrap();
        client.disconnect().unwrap();
        let written = sha256_of(&daemon, "tank/whole");
        assert_ne!(written, golden.sha256);
        let claimed = tool::run("mdadm", &["--examine", tool::text(&golden.drives[0])]);
        assert!(said(&claimed, "Feature Map").starts_with("0x1000000"), "{claimed}");

        daemon.run(&["group", "release", "tank", "--yes"]).fails(7, &["serves whole", "unexpose"]);
        daemon.ok(&["disk", "unexpose", "tank/whole"]);
        let dry = daemon.ok(&["group", "release", "tank", "--dry-run"]);
        assert!(dry.mentions("mdadm --assemble"), "{dry:?}");
        daemon.run(&["group", "release", "tank"]).fails(3, &["--yes"]);
        assert_eq!(daemon.group("tank").text("state"), "healthy", "it still runs");
        daemon.wait("tank", "healthy");
        daemon.ok(&["group", "release", "tank", "--yes"]);
        daemon.run(&["group", "show", "tank"]).fails(4, &["tank"]);
        for (i, drive) in golden.drives.iter().enumerate() {
            assert_clean_md(drive, &before[i], &golden.said[i], false);
            assert!(daemon.ok(&["drive", "show", tool::text(drive)]).text("state") == "used");
        }
        if losses > 0 {
            assert_redundant(&golden.drives);
        }
        // And back again, from the released array.
        daemon.ok(&adopt_words("other", &paths(&golden.drives), &["--yes"]));
        assert_eq!(sha256_of(&daemon, "other/whole"), written, "{name}");
    }
}

#[test]
fn degraded_arrays_stay_degraded_both_ways_and_take_a_new_drive() {
    for name in ["raid5-degraded", "raid6-degraded"] {
        let lab = Lab::new(&format!("md-{name}"));
        let golden = unpack(&lab, name);
        let daemon = lab.daemon();
        let stale = golden.drives[1].clone();
        daemon
            .run(&adopt_words("tank", &paths(&golden.drives), &["--yes"]))
            .fails(3, &[tool::text(&stale), "dropped"]);
        let members: Vec<&Path> =
            golden.drives.iter().filter(|drive| **drive != stale).map(PathBuf::as_path).collect();
        let before: Vec<Superblock> = members.iter().map(|drive| read_superblock(drive)).collect();
        daemon.ok(&adopt_words("tank", &members, &["--yes"]));
        assert_eq!(daemon.group("tank").text("state"), "degraded");
        assert_eq!(daemon.member_states("tank")[1], "missing");
        assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256, "{name}");
        daemon.ok(&["disk", "unexpose", "tank/whole"]);
        let released = daemon.ok(&["group", "release", "tank", "--yes"]);
        assert!(released.mentions("slot 1 stays without a member"), "{released:?}");
        for (i, drive) in members.iter().enumerate() {
            let said = golden.drives.iter().position(|other| other == drive).unwrap();
            assert_clean_md(drive, &before[i], &golden.said[said], true);
        }
        // A drive of the same size takes the place: md's arrays use theirs to the end.
        daemon.ok(&adopt_words("tank", &members, &["--yes"]));
        let new = lab.drive("new", fs::metadata(&stale).unwrap().len());
        daemon.replace("tank", 1, &new);
        daemon.wait("tank", "healthy");
        assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256, "{name}");
        daemon.ok(&["disk", "unexpose", "tank/whole"]);
        daemon.ok(&["group", "release", "tank", "--yes"]);
        let mut whole = golden.drives.clone();
        whole[1] = new;
        assert_redundant(&whole);
        let text = tool::run("mdadm", &["--examine", tool::text(&whole[1])]);
        assert!(said(&text, "Device Role").starts_with("Active device 1"), "{text}");
        assert!(
            !said(&text, "Array State").contains('.') || said(&text, "Array State").starts_with('A'),
            "{text}"
        );
        assert_eq!(said(&text, "State"), "clean");
    }
}

#[test]
fn every_refusal_of_an_adopt_is_named_and_writes_nothing() {
    let lab = Lab::new("md-refused");
    let daemon = lab.daemon();
    let refused = |drives: &[PathBuf], code: &str, words: &[&str]| {
        let before = hashes(drives);
        let answer = daemon.run(&adopt_words("tank", &paths(drives), &["--yes"]));
        answer.fails(3, words);
        assert_eq!(answer.envelope.text("error.code"), code, "{answer}");
        assert!(!answer.envelope.text("error.hint").is_empty(), "{answer}");
        let dry = daemon.run(&adopt_words("tank", &paths(drives), &["--dry-run"]));
        assert_eq!(dry.envelope.text("error.code"), code, "a dry run says the same: {dry}");
        assert_eq!(hashes(drives), before, "{code}");
    };
    let with = |change: &dyn Fn(&mut Superblock)| {
        let golden = unpack(&lab, "raid5");
        golden.drives.iter().for_each(|drive| change_superblock(drive, change));
        golden.drives
    };
    refused(&with(&|sb| sb.resync_offset = 0), "group.adopt.dirty", &["not stopped cleanly"]);
    refused(&with(&|sb| sb.layout = 0), "group.adopt.layout", &["layout 0x0"]);
    refused(&with(&|sb| sb.set_feature(FEATURE_RESHAPE, true)), "group.adopt.reshape", &["reshape"]);
    refused(&with(&|sb| sb.set_feature(FEATURE_JOURNAL, true)), "group.adopt.journal", &["journal"]);
    refused(
        &with(&|sb| sb.set_feature(FEATURE_RECOVERY, true)),
        "group.adopt.rebuilding",
        &["being rebuilt"],
    );
    refused(&with(&|sb| sb.set_feature(1 << 20, true)), "group.adopt.feature", &["0x100000"]);
    refused(&with(&|sb| sb.dev_roles.resize(1700, 0xffff)), "group.adopt.no.room", &["anchor"]);
    refused(&with(&|sb| sb.events += 2), "group.adopt.bitmap", &["out of date"]);

    let golden = unpack(&lab, "raid5");
    refused(&golden.drives[..3], "group.adopt.incomplete", &["slot 3"]);
    let blank = lab.drive("blank", 8 << 20);
    let mut drives = golden.drives.clone();
    drives[3] = blank;
    refused(&drives, "group.adopt.metadata", &["no md superblock"]);
    let other = unpack(&lab, "raid6");
    drives[3] = other.drives[3].clone();
    refused(&drives, "group.adopt.mixed", &["raid6"]);
    let copy = lab.join("copy");
    fs::copy(&golden.drives[0], &copy).unwrap();
    drives[3] = copy;
    refused(&drives, "group.adopt.mixed", &["copy"]);
    overwrite(&golden.drives[2], 0, b"LUKS\xba\xbe\x00\x01");
    refused(&golden.drives, "drive.used", &["LUKS", "byte 0"]);
    overwrite(&golden.drives[2], 0, &[0; 512]);
    change_superblock(&golden.drives[1], |sb| sb.events -= 2);
    refused(&golden.drives, "group.adopt.not.in.use", &["behind"]);
    change_superblock(&golden.drives[1], |sb| sb.events += 2);

    // Ours already, as a member or as a spare; and a name that is taken.
    daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--yes"]));
    daemon.run(&adopt_words("again", &paths(&golden.drives), &["--yes"])).fails(3, &["group tank"]);
    daemon.run(&adopt_words("TANK", &paths(&other.drives), &["--yes"])).fails(2, &["tank exists"]);
    daemon.run(&adopt_words(".bad", &paths(&other.drives), &["--yes"])).fails(2, &[".bad"]);
    daemon.ok(&["group", "stop", "tank"]);
    refused(&golden.drives, "drive.is.member", &["ours already"]);
    daemon.ok(&["group", "assemble", "tank"]);
    assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256);
}

/// The first blocks of btrfs or LVM are zero, too: they are not ours to put a table on.
#[test]
fn an_adopted_array_that_begins_with_zeroes_gets_no_table() {
    let mut lab_daemon = {
        let lab = Lab::new("md-zeroes");
        let golden = unpack(&lab, "raid1");
        for drive in &golden.drives {
            overwrite(drive, read_superblock(drive).data_offset * 512, &vec![0; 1 << 20]);
        }
        let daemon = lab.daemon();
        daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--yes"]));
        (daemon, golden, lab)
    };
    let (daemon, golden, _lab) = &mut lab_daemon;
    let expected = sha256_of(daemon, "tank/whole");
    for _ in 0..2 {
        daemon.kill();
        daemon.start_again();
        daemon.wait("tank", "healthy");
        assert_eq!(daemon.group("tank").list("disks").len(), 1);
        assert_eq!(sha256_of(daemon, "tank/whole"), expected, "nothing was written to it");
    }
    daemon.ok(&["disk", "unexpose", "tank/whole"]);
    daemon.ok(&["group", "release", "tank", "--yes"]);
    let start = read_superblock(&golden.drives[0]).data_offset * 512;
    let mut head = vec![1; 1 << 20];
    fs::File::open(&golden.drives[0]).unwrap().read_exact_at(&mut head, start).unwrap();
    assert!(head.iter().all(|&byte| byte == 0));
}

#[test]
fn a_group_of_ours_comes_back_from_md_with_its_disks() {
    for (level, width) in [(0, 3), (1, 2), (5, 4), (6, 5), (10, 4)] {
        let group = StampedGroup::new(&format!("md-own{level}"), level, width, "24M", &[]);
        let StampedGroup { stamped, export, daemon, drives, .. } = &group;
        let uuid = daemon.ok(&["disk", "show", "tank/disk"]).text("uuid");
        daemon.ok(&["disk", "unexpose", "tank/disk"]);
        daemon.ok(&["group", "release", "tank", "--yes"]);
        for drive in drives {
            let text = tool::run("mdadm", &["--examine", tool::text(drive)]);
            assert!(said(&text, "Checksum").ends_with(" - correct"), "{text}");
            assert_eq!(said(&text, "State"), "clean", "{text}");
            assert!(said(&text, "Name").contains(":tank"), "{text}");
            assert_eq!(
                read_superblock(drive).feature_map,
                u32::from(level != 0),
                "a bitmap, and nothing else"
            );
        }
        if level != 0 {
            assert_redundant(drives);
        }
        daemon.ok(&adopt_words("tank", &paths(drives), &["--yes"]));
        assert_eq!(daemon.ok(&["disk", "show", "tank/disk"]).text("uuid"), uuid);
        let again = daemon.expose("tank/disk");
        assert_eq!(again.size_bytes, export.size_bytes);
        stamped.verify(&again);
        daemon.disk("tank/new", "1M");
    }
}

#[test]
fn a_release_is_refused_where_md_could_not_go_on() {
    let group = StampedGroup::new("md-norelease", 6, 5, "24M", &["--allow-faults"]);
    let StampedGroup { daemon, drives, lab, .. } = &group;
    let refused = |exit: i32, code: &str, words: &[&str]| {
        let answer = daemon.run(&["group", "release", "tank", "--yes"]);
        answer.fails(exit, words);
        assert_eq!(answer.envelope.text("error.code"), code, "{answer}");
    };
    refused(7, "group.busy", &["serves disk"]);
    daemon.ok(&["disk", "unexpose", "tank/disk"]);
    let new = lab.drive("new", warpraid_tests::group::DRIVE_BYTES);
    daemon.ok(&["fault", "inject", tool::text(&new), "slow", "--delay-ms", "100"]);
    daemon.fail(&drives[2]);
    daemon.replace("tank", 2, &new);
    refused(3, "group.release.rebuilding", &["slot 2"]);
    daemon.ok(&["fault", "clear", "--all"]);
    daemon.wait("tank", "healthy");
    daemon.run(&["group", "release", "nobody", "--yes"]).fails(4, &["nobody"]);
    // A pulled member is named: its claim is still on it.
    daemon.fail(&drives[0]);
    let released = daemon.ok(&["group", "release", "tank", "--yes"]);
    assert!(released.mentions(tool::text(&drives[0])) && released.mentions("must be wiped"), "{released:?}");
    assert!(read_superblock(&drives[0]).is_claimed() && !read_superblock(&drives[1]).is_claimed());
    // It is no member of the array any more, whoever asks.
    let mut named: Vec<&Path> = vec![&drives[0], &drives[1], &new, &drives[3], &drives[4]];
    daemon.run(&adopt_words("tank", &named, &["--yes"])).fails(3, &["ours already"]);
    named.remove(0);
    daemon.ok(&adopt_words("tank", &named, &["--yes"]));
    assert_eq!(daemon.group("tank").text("state"), "degraded");
}

/// mdadm writes to members without asking the kernel: the group starts unchanged, or says what was done to it.
#[test]
fn what_mdadm_does_to_a_claimed_member_is_recognised() {
    let lab = Lab::new("md-claimed");
    let golden = unpack(&lab, "raid5");
    let daemon = lab.daemon();
    daemon.ok(&adopt_words("tank", &paths(&golden.drives), &["--yes"]));
    daemon.ok(&["group", "stop", "tank"]);
    let saved = fs::read(&golden.drives[2]).unwrap();
    tool::run("mdadm", &["--zero-superblock", tool::text(&golden.drives[2])]);
    daemon.ok(&["group", "assemble", "tank"]);
    let group = daemon.group("tank");
    assert_eq!(group.text("state"), "degraded");
    assert!(group.mentions("modified by other software"), "{group:?}");
    assert_eq!(sha256_of(&daemon, "tank/whole"), golden.sha256);
    daemon.ok(&["disk", "unexpose", "tank/whole"]);
    daemon.ok(&["group", "stop", "tank"]);
    fs::write(&golden.drives[2], saved).unwrap();
    // Somebody takes the claim off one member and md may have run it: not without a word.
    change_superblock(&golden.drives[0], |sb| sb.set_claimed(false));
    daemon.run(&["group", "assemble", "tank"]).fails(3, &["modified by other software", "claim"]);
}
