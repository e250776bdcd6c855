//! create, observe, decide, start, stop: the plain way round, on every level, and what mdadm reads from it.

use std::process::Command;

use crate::world::{MIB, World, handles, shapes, waited};
use raid_core::format::superblock::Superblock;
use raid_core::geometry::Level;
use raid_core::membership::{Decision, Doubt, GroupMeta, Mark, Observation, Policy, Refusal, StartParts};
use raid_core::ports::Drive;
use raid_core::units::{BlockSize, Slot};

fn persistent(parts: &StartParts) -> &raid_core::membership::Persistent {
    match &parts.meta {
        GroupMeta::Persistent(meta) => meta,
        GroupMeta::Volatile => panic!("a group on drives"),
    }
}

#[test]
fn every_level_goes_round_and_comes_back_in_its_slots() {
    for (level, n) in shapes() {
        for zeroed in [false, true] {
            let world = World::new(1, n);
            let group = world.create(level, n, zeroed);
            let all: Vec<usize> = (0..n).collect();
            let parts = world.start(group, &all, Policy::default());
            assert_eq!(parts.geometry.level(), level);
            assert_eq!(parts.bitmap.is_some(), level.is_redundant());
            let expected = if zeroed || !level.is_redundant() { Doubt::None } else { Doubt::Unsynced };
            assert_eq!(parts.doubt, expected, "{level} zeroed {zeroed}");
            if let Some(bitmap) = &parts.bitmap {
                let dirty = if zeroed { 0 } else { bitmap.bits.len() };
                assert_eq!(bitmap.bits.dirty(), dirty);
                assert_eq!(bitmap.header.events, persistent(&parts).events().0);
            }
            assert!(parts.view.is_complete() && parts.warnings.is_empty() && parts.left_out.is_empty());
            let first = parts.view.epoch;
            world.stop(parts);
            let again = world.start(group, &all, Policy::default());
            assert!(again.view.epoch.counter > first.counter);
            assert_eq!(again.doubt, Doubt::None, "stopped in sync");
            assert_eq!(world.witness().unwrap().epoch, again.view.epoch);
            assert!(!world.witness().unwrap().is_clean);
            world.stop(again);
            assert!(world.witness().unwrap().is_clean);
        }
    }
}

#[test]
fn ot_05_order_and_paths_change_nothing() {
    let world = World::new(5, 6);
    let group = world.create(Level::Raid6, 6, true);
    world.stop(world.start(group, &[0, 1, 2, 3, 4, 5], Policy::default()));
    let in_order = world.decide(group, &[0, 1, 2, 3, 4, 5], Policy::default());
    for order in [[5, 4, 3, 2, 1, 0], [2, 0, 5, 1, 4, 3], [1, 2, 3, 4, 5, 0]] {
        assert_eq!(world.decide(group, &order, Policy::default()), in_order);
    }
    // The same members behind other paths: keys rotate, slots stay with the member.
    let mut images = world.images();
    images.rotate_left(2);
    world.set_images(&images);
    let parts = world.start(group, &[0, 1, 2, 3, 4, 5], Policy::default());
    for slot in parts.view.slots() {
        let key = usize::try_from(parts.view.member(slot).drive.unwrap().0).unwrap();
        assert_eq!((key + 2) % 6, slot.index());
    }
}

#[test]
fn groups_on_4kn_drives_go_round() {
    let world = World::new(9, 0);
    for _ in 0..3 {
        world.add(16 * MIB, BlockSize::B4096);
    }
    let group = world.create(Level::Raid5, 3, false);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert_eq!(persistent(&parts).identity().block_size, BlockSize::B4096);
    world.stop(parts);
    assert!(matches!(world.decide(group, &[2, 1, 0], Policy::default()), Decision::Start(_)));
}

#[test]
fn a_crash_is_dirty_and_a_resync_that_ended_is_not_asked_for_again() {
    let world = World::new(3, 3);
    let group = world.create(Level::Raid5, 3, false);
    drop(world.start(group, &[0, 1, 2], Policy::default()));
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert_eq!(parts.doubt, Doubt::Unsynced, "nothing was written since the start");
    drop(world.mark(parts, Mark::Dirty));
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert_eq!(parts.doubt, Doubt::Torn, "no stop, no clean mark, and a write may have begun");
    // A stop in the middle of the resync keeps the doubt.
    world.run(|env| async move {
        let drives = handles(&env, &parts.view);
        raid_core::membership::stop(&env, &parts.meta, &parts.view, &drives, false).await.unwrap();
    });
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert_eq!(parts.doubt, Doubt::Torn);
    world.stop(parts);
    assert_eq!(world.start(group, &[0, 1, 2], Policy::default()).doubt, Doubt::None);
}

#[test]
fn sl_04_lost_while_down_starts_after_the_wait() {
    for (level, n) in shapes().into_iter().filter(|(level, _)| level.is_redundant()) {
        let world = World::new(4, n);
        let group = world.create(level, n, true);
        world.stop(world.start(group, &(0..n).collect::<Vec<_>>(), Policy::default()));
        let present: Vec<usize> = (1..n).collect();
        let Decision::WaitFor { missing } = world.decide(group, &present, Policy::default()) else {
            panic!("{level}: must wait");
        };
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].slot, Slot(0));
        let parts = world.start(group, &present, waited());
        assert_eq!(parts.view.missing(), 1);
        // Its epoch is dropped for good: it comes back stale.
        world.stop(parts);
        let parts = world.start(group, &(0..n).collect::<Vec<_>>(), Policy::default());
        assert_eq!(parts.view.missing(), 1, "{level}");
        assert!(parts.left_out[0].why.contains("stale"), "{}", parts.left_out[0].why);
    }
}

#[test]
fn a_striped_group_names_what_it_lacks() {
    let world = World::new(4, 2);
    let group = world.create(Level::Raid0, 2, true);
    let refusal = world.decide(group, &[1], waited());
    let Decision::Refuse(Refusal::NotEnoughMembers { needs, present: 1, .. }) = &refusal else {
        panic!("{refusal}");
    };
    assert_eq!(needs.len(), 1);
    assert!(refusal.to_string().contains(&needs[0].device_uuid.to_string()), "{refusal}");
}

/// What mdadm says about one member. Of a file, `--examine` wants all of it, `-X` the bitmap alone.
fn mdadm(world: &World, n: usize, flag: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("member");
    let drive = world.drive(n);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(drive.size_bytes()).unwrap();
    let first = if flag == "-X" { 8192 / 512 } else { 0 };
    for (sector, bytes) in drive.image().into_iter().filter(|(sector, _)| *sector >= first) {
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, (sector - first) * 512).unwrap();
    }
    let output = Command::new("/sbin/mdadm").arg(flag).arg(&path).output().expect("mdadm is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.is_empty(), "mdadm {flag}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{key} :")));
    line.unwrap_or_else(|| panic!("no {key:?} in\n{text}")).split_once(" : ").unwrap().1.trim()
}

#[test]
fn mdadm_examines_members_of_every_level() {
    for (level, n) in shapes() {
        let world = World::new(11, n);
        let group = world.create(level, n, false);
        let parts = world.start(group, &(0..n).collect::<Vec<_>>(), Policy::default());
        world.stop(parts);
        for i in 0..n {
            let text = mdadm(&world, i, "--examine");
            assert_eq!(value(&text, "Raid Level"), format!("raid{}", level.number()));
            assert_eq!(value(&text, "Raid Devices"), n.to_string());
            assert_eq!(value(&text, "Device Role"), format!("Active device {i}"));
            assert!(value(&text, "Array State").starts_with(&"A".repeat(n)), "{text}");
            assert!(value(&text, "Checksum").ends_with("correct"), "{text}");
            assert_eq!(value(&text, "Name"), "host:tank");
            if level == Level::Raid5 || level == Level::Raid6 {
                assert_eq!(value(&text, "Layout"), "left-symmetric");
            }
            if level == Level::Raid10 {
                assert_eq!(value(&text, "Layout"), "near=2");
            }
            if level != Level::Raid1 {
                assert_eq!(value(&text, "Chunk Size"), "64K");
            }
            let events: u64 = value(&text, "Events").parse().unwrap();
            assert!(events.is_multiple_of(2), "clean is even");
            if level.is_redundant() {
                let text = mdadm(&world, i, "-X");
                let uuid = raid_core::units::Uuid::parse(value(&text, "UUID")).unwrap();
                assert_eq!(uuid, group, "{text}");
                assert_eq!(value(&text, "Events"), events.to_string());
                assert_eq!(value(&text, "Events Cleared"), events.to_string());
                assert_eq!(value(&text, "State"), "OK");
                assert_eq!(value(&text, "Version"), "4");
            }
        }
    }
}

#[test]
fn mdadm_sees_a_dropped_member_as_missing() {
    let world = World::new(12, 4);
    let group = world.create(Level::Raid6, 4, true);
    let parts = world.start(group, &[0, 1, 2, 3], Policy::default());
    let (parts, failed) = world.drop_member(parts, Slot(2));
    assert!(failed.is_empty());
    let text = mdadm(&world, 0, "--examine");
    assert!(value(&text, "Array State").starts_with("AA.A"), "{text}");
    assert!(value(&text, "Checksum").ends_with("correct"), "{text}");
    drop(parts);
}

#[test]
fn the_superblock_on_the_drive_is_the_one_in_the_newest_copy() {
    let world = World::new(13, 2);
    let group = world.create(Level::Raid1, 2, true);
    let parts = world.start(group, &[0, 1], Policy::default());
    let seen = world.observe(&[0]);
    let Observation::Ours(ours) = &seen[0].what else { panic!("{}", seen[0].what) };
    let on_drive = Superblock::decode(&world.drive(0).peek(4096..8192)).unwrap();
    assert_eq!(on_drive, ours.superblock);
    assert!(on_drive.is_claimed() && on_drive.resync_offset == 0);
    assert_eq!(on_drive.events % 2, 1, "running is dirty, and dirty is odd");
    assert_eq!(ours.copy.epoch(), parts.view.epoch);
    assert!(ours.notes.is_empty());
}
