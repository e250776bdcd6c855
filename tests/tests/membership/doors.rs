//! At the door: create over what is there, drives that fail, other software's hands on our metadata, delete and undelete
//! (AD-07, AD-08, ONDISK).

use crate::world::{MIB, World, forced, handles, waited};
use raid_core::format::bytes::put;
use raid_core::format::superblock::{SUPERBLOCK_SLOT_BYTES, Superblock};
use raid_core::geometry::Level;
use raid_core::membership::{
    CreateError, Decision, Observation, Policy, Refusal, UndeleteError, delete, undelete, wipe,
};
use raid_core::ports::{DriveKey, Env, IoKind};
use raid_core::units::{BlockSize, Slot, Uuid};

#[test]
fn ad_08_recreate_over_our_own_superblock_in_swapped_order() {
    let world = World::new(71, 3);
    let group = world.create(Level::Raid5, 3, true);
    let before = world.images();
    for order in [[2, 1, 0], [0, 1, 2]] {
        for overwrite in [false, true] {
            let refusal = world.try_create(Level::Raid5, &order, true, overwrite).unwrap_err();
            let CreateError::AlreadyMember { slot: Slot(0), name, group: of } = &refusal else {
                panic!("{refusal}")
            };
            assert_eq!((name.as_str(), *of), ("tank", group));
            assert!(refusal.to_string().contains("already a member of group tank"), "{refusal}");
            assert!(refusal.to_string().contains("use assemble"), "{refusal}");
        }
    }
    assert_eq!(world.images(), before, "nothing was written");
    assert!(matches!(world.decide(group, &[0, 1, 2], Policy::default()), Decision::Start(_)));
}

/// Every write of every member fails once: the other drives are as before, and the corrected command works at once.
#[test]
fn ad_07_create_is_all_or_nothing_at_every_failing_write() {
    for level in [Level::Raid1, Level::Raid5] {
        let n = usize::from(level.members_min());
        let world = World::new(72, n);
        // What lies on the drives is not nothing: it must come back.
        for i in 0..n {
            world.drive(i).poke(0, &[0x11; 1024]);
            world.drive(i).poke(300 * 1024, &[0x22; 512]);
            world.drive(i).poke(8 * MIB - 4096, &[0x33; 4096]);
        }
        let before = world.images();
        let all: Vec<usize> = (0..n).collect();
        for bad in 0..n {
            for writes in 0.. {
                world.drive(bad).fail_after(Some(writes));
                let result = world.try_create(level, &all, false, false);
                world.drive(bad).fail_after(None);
                let Err(error) = result else {
                    assert!(writes > 6, "create writes more than {writes} times");
                    world.set_images(&before);
                    break;
                };
                let CreateError::Failed { failed, not_restored } = &error else { panic!("{error}") };
                assert_eq!(failed.len(), 1, "{error}");
                assert_eq!(failed[0].0.index(), bad);
                assert!(not_restored.is_empty(), "{error}");
                for good in (0..n).filter(|good| *good != bad) {
                    assert_eq!(world.drive(good).image(), before[good], "drive {good}, {writes} writes");
                }
                world.set_images(&before);
            }
        }
        let group = world.try_create(level, &all, false, false).unwrap();
        assert!(matches!(world.decide(group, &all, Policy::default()), Decision::Start(_)));
    }
}

#[test]
fn ad_07_an_absent_drive_writes_nothing_anywhere() {
    let world = World::new(73, 3);
    world.drive(2).fail_with(Some(IoKind::Gone));
    let before = world.images();
    let error = world.try_create(Level::Raid5, &[0, 1, 2], true, true).unwrap_err();
    assert!(matches!(&error, CreateError::Failed { failed, .. } if failed[0].0 == Slot(2)), "{error}");
    assert_eq!(world.images(), before);
    assert_eq!((0..3).map(|n| world.drive(n).writes()).sum::<u64>(), 0);
}

#[test]
fn create_leaves_no_old_signature_at_either_end() {
    let world = World::new(74, 2);
    for i in 0..2 {
        world.drive(i).poke(0, &[0x55; 64 * 1024]);
        world.drive(i).poke(MIB - 512, &[0x55; 512]);
        world.drive(i).poke(8 * MIB - 64 * 1024, &[0x55; 64 * 1024]);
    }
    world.create(Level::Raid1, 2, true);
    for i in 0..2 {
        let image = world.drive(i).image();
        let ours = |sector: u64| (8..16).contains(&sector) || (16..280).contains(&sector) || sector >= 280;
        let stray: Vec<u64> = image
            .iter()
            .filter(|(sector, bytes)| !ours(**sector) || bytes.windows(8).any(|window| window == [0x55; 8]))
            .map(|(sector, _)| *sector)
            .collect();
        assert!(stray.is_empty(), "sectors {stray:?} still hold what was there before");
    }
}

#[test]
fn a_plain_md_member_is_reported_and_needs_the_word() {
    let world = World::new(75, 3);
    let group = world.create(Level::Raid1, 2, true);
    // What md's own members look like: the claim taken off, no anchor, no copies.
    let mut superblock = Superblock::decode(&world.drive(0).peek(4096..8192)).unwrap();
    superblock.set_claimed(false);
    superblock.set_uuid = Uuid([9; 16]);
    let mut slot = superblock.encode();
    slot.resize(SUPERBLOCK_SLOT_BYTES, 0);
    world.drive(2).poke(4096, &slot);
    let seen = world.observe(&[2]);
    assert!(
        matches!(&seen[0].what, Observation::PlainMd(md) if md.set_uuid == Uuid([9; 16])),
        "{}",
        seen[0].what
    );
    world.add(8 * MIB, BlockSize::B512);
    let before = world.images();
    let refusal = world.try_create(Level::Raid1, &[3, 2], true, false).unwrap_err();
    assert!(matches!(&refusal, CreateError::InUse { slot: Slot(1), .. }), "{refusal}");
    assert!(refusal.to_string().contains("md array tank"), "{refusal}");
    assert_eq!(world.images(), before);
    let second = world.try_create(Level::Raid1, &[3, 2], true, true).unwrap();
    assert_ne!(second, group);
}

/// Rewrites the superblock of a drive.
fn edit(world: &World, drive: usize, change: impl FnOnce(&mut Superblock)) {
    let mut slot = world.drive(drive).peek(4096..8192);
    let mut superblock = Superblock::decode(&slot).unwrap();
    change(&mut superblock);
    let bytes = superblock.encode();
    put(&mut slot, 0, &bytes);
    world.drive(drive).poke(4096, &slot);
}

fn stopped(world: &World, level: Level, n: usize) -> Uuid {
    let group = world.create(level, n, true);
    world.stop(world.start(group, &(0..n).collect::<Vec<_>>(), Policy::default()));
    group
}

#[test]
fn what_mdadm_update_changes_without_harm_starts_unchanged() {
    let world = World::new(76, 3);
    let group = stopped(&world, Level::Raid5, 3);
    edit(&world, 1, |superblock| {
        superblock.set_name[..9].copy_from_slice(b"other:new");
        superblock.resync_offset = u64::MAX;
        superblock.utime += 1000;
    });
    edit(&world, 2, |superblock| superblock.events -= 2);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert!(parts.view.is_complete());
    assert!(
        parts.warnings.iter().any(|warning| warning.contains("rewritten by other software")),
        "{:?}",
        parts.warnings
    );
    let after = Superblock::decode(&world.drive(1).peek(4096..8192)).unwrap();
    assert_eq!((after.name(), after.resync_offset), ("tank".to_owned(), 0), "ours is put back");
}

#[test]
fn what_md_may_have_run_is_refused_as_modified() {
    type Edit = fn(&mut Superblock);
    let changes: [(&str, Edit); 2] = [
        ("claim", |superblock| superblock.set_claimed(false)),
        ("events", |superblock| superblock.events += 10),
    ];
    for (what, change) in changes {
        let world = World::new(77, 3);
        let group = stopped(&world, Level::Raid5, 3);
        edit(&world, 1, change);
        let before = world.images();
        let decision = world.decide(group, &[0, 1, 2], waited());
        let Decision::Refuse(refusal @ Refusal::ModifiedByOtherSoftware { drive: DriveKey(1), .. }) =
            &decision
        else {
            panic!("{what}: {decision}");
        };
        assert!(refusal.to_string().contains("modified by other software"), "{refusal}");
        assert!(refusal.to_string().contains(what), "{refusal}");
        assert!(refusal.is_for_safety());
        assert_eq!(world.images(), before);
        // Once the group has gone on without it, it is only a stale drive.
        let dropped = World::new(77, 3);
        let group_of_dropped = dropped.create(Level::Raid1, 3, true);
        let parts = dropped.start(group_of_dropped, &[0, 1, 2], Policy::default());
        let (parts, _) = dropped.drop_member(parts, Slot(1));
        dropped.stop(parts);
        edit(&dropped, 1, change);
        assert_eq!(
            dropped.start(group_of_dropped, &[0, 1, 2], Policy::default()).view.missing(),
            1,
            "{what}"
        );
        // By force: without that member.
        let parts = world.start(group, &[0, 1, 2], forced());
        assert_eq!(parts.view.missing(), 1);
    }
}

#[test]
fn a_member_that_others_overwrote_is_named_and_left_out() {
    type Change = fn(&World);
    let changes: [(&str, Change); 4] = [
        ("superblock erased", |world| world.drive(1).poke(4096, &[0; 512])),
        ("it carries md array", |world| edit(world, 1, |superblock| superblock.set_uuid = Uuid([3; 16]))),
        ("its device uuid", |world| edit(world, 1, |superblock| superblock.device_uuid = Uuid([3; 16]))),
        ("layout in the superblock", |world| edit(world, 1, |superblock| superblock.data_offset += 8)),
    ];
    for (what, change) in changes {
        let world = World::new(78, 3);
        let group = stopped(&world, Level::Raid5, 3);
        change(&world);
        let seen = world.observe(&[1]);
        assert!(seen[0].what.to_string().contains(what), "{}", seen[0].what);
        assert!(matches!(world.decide(group, &[0, 1, 2], Policy::default()), Decision::WaitFor { .. }));
        let parts = world.start(group, &[0, 1, 2], waited());
        assert_eq!(parts.view.missing(), 1, "{what}");
        assert!(parts.left_out[0].why.contains("modified by other software"), "{}", parts.left_out[0].why);
    }
}

#[test]
fn single_damages_are_repaired_from_the_copy() {
    let damages: [(&str, u64, usize); 4] = [
        ("superblock", 4096 + 100, 8),
        ("anchor", 4096 + 3600, 8),
        ("copy A", 140 * 1024 + 700, 8),
        ("copy B", 512 * 1024 - 16_384 + 700, 8),
    ];
    for (what, at, len) in damages {
        let world = World::new(79, 4);
        let group = stopped(&world, Level::Raid6, 4);
        let sector = at / 512 * 512;
        let mut bytes = world.drive(0).peek(sector..sector + 512);
        let start = usize::try_from(at - sector).unwrap();
        bytes[start..start + len].iter_mut().for_each(|byte| *byte ^= 0x5a);
        world.drive(0).poke(sector, &bytes);
        let seen = world.observe(&[0]);
        match &seen[0].what {
            Observation::Ours(ours) => assert!(!ours.notes.is_empty(), "{what}: nobody noticed"),
            // The newest copy is the one that was hit: the older one must not speak for the member.
            Observation::Damaged { epoch: Some(_), .. } => assert!(what.starts_with("copy"), "{what}"),
            other => panic!("{what}: {other}"),
        }
        let parts = world.start(group, &[0, 1, 2, 3], waited());
        assert!(parts.view.missing() <= 1);
    }
}

#[test]
fn a_lost_newest_copy_never_lets_the_older_one_speak() {
    // A mirror: slot 0 saw slot 1 dropped, then its newest copy rots. The older copy says that both are current.
    let world = World::new(80, 2);
    let group = world.create(Level::Raid1, 2, true);
    let parts = world.start(group, &[0, 1], Policy::default());
    let (parts, _) = world.drop_member(parts, Slot(1));
    drop(parts);
    let newest = [140 * 1024, 512 * 1024 - 16_384].into_iter().max_by_key(|at| {
        let copy = world.drive(0).peek(*at..*at + 16_384);
        raid_core::format::extension::Extension::decode(&copy).map_or(0, |copy| copy.sequence)
    });
    world.drive(0).poke(newest.unwrap() + 512, &[0xee; 512]);
    let seen = world.observe(&[0]);
    assert!(matches!(seen[0].what, Observation::Damaged { epoch: Some(_), .. }), "{}", seen[0].what);
    for policy in [Policy::default(), waited()] {
        let decision = raid_core::membership::decide(group, &world.observe(&[0, 1]), None, policy);
        let refused = matches!(decision, Decision::Refuse(Refusal::NewerEpochKnown { .. }));
        assert!(refused, "the dropped member alone is not the group: {decision}");
    }
}

#[test]
fn ad_06_delete_and_undelete_until_a_member_is_reused() {
    let world = World::new(81, 4);
    let group = world.create(Level::Raid5, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    let view = parts.view.clone();
    let parts = world.run(|env| async move {
        let drives = handles(&env, &parts.view);
        raid_core::membership::stop(&env, &parts.meta, &parts.view, &drives, true).await.unwrap();
        assert_eq!(delete(&env, &parts.meta, &parts.view, &drives).await, Vec::new());
        parts
    });
    drop((parts, view));
    for n in 0..3 {
        assert!(Superblock::decode(&world.drive(n).peek(4096..8192)).is_err(), "md sees nothing");
    }
    let decision = world.decide(group, &[0, 1, 2], forced());
    assert!(
        matches!(&decision, Decision::Refuse(Refusal::Tombstoned { name, deleted_unix_s }) if name == "tank" && *deleted_unix_s > 0)
    );
    // A create without the word does not take a tombstone.
    let refusal = world.try_create(Level::Raid1, &[2, 3], true, false).unwrap_err();
    assert!(refusal.to_string().contains("deleted group tank"), "{refusal}");
    let bring_back = |world: &World, drives: &[usize]| {
        let observed = world.observe(drives);
        world.run(|env| async move { undelete(&env, group, &observed).await })
    };
    assert!(
        matches!(bring_back(&world, &[0, 1]), Err(UndeleteError::Reused { missing }) if missing.len() == 1)
    );
    assert_eq!(bring_back(&world, &[2, 1, 0]), Ok(()));
    assert_eq!(bring_back(&world, &[2, 1, 0]), Err(UndeleteError::NotDeleted));
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert!(parts.view.is_complete());
    // Deleted again, and one member reused: gone for good.
    world.run(|env| async move {
        let drives = handles(&env, &parts.view);
        delete(&env, &parts.meta, &parts.view, &drives).await;
    });
    world.try_create(Level::Raid1, &[2, 3], true, true).unwrap();
    let error = bring_back(&world, &[0, 1, 2]).unwrap_err();
    assert!(matches!(&error, UndeleteError::Reused { missing } if missing.len() == 1), "{error}");
}

#[test]
fn a_member_absent_at_the_delete_does_not_bring_the_group_back() {
    let world = World::new(82, 2);
    let group = world.create(Level::Raid1, 2, true);
    world.stop(world.start(group, &[0, 1], Policy::default()));
    let parts = world.start(group, &[0], waited());
    world.run(|env| async move {
        let drives = handles(&env, &parts.view);
        delete(&env, &parts.meta, &parts.view, &drives).await;
    });
    // Only the one that was away is plugged in again: this host knows better.
    let decision = world.decide(group, &[1], waited());
    assert!(matches!(decision, Decision::Refuse(Refusal::NewerEpochKnown { .. })), "{decision}");
}

#[test]
fn a_wiped_drive_is_nothing_and_the_group_goes_on_without_it() {
    let world = World::new(83, 3);
    let group = stopped(&world, Level::Raid1, 3);
    world.run(|env| async move {
        let drive = env.drive(DriveKey(2)).unwrap();
        wipe(&env, &drive).await.unwrap();
    });
    assert!(world.drive(2).image().is_empty(), "an empty group left nothing else on it");
    assert_eq!(world.observe(&[2])[0].what, Observation::NotOurs);
    assert_eq!(world.start(group, &[0, 1, 2], waited()).view.missing(), 1);
}

#[test]
fn no_drive_contents_make_observe_panic() {
    let world = World::new(84, 1);
    stopped_noise(&world);
}

/// Noise over a member's metadata, many times.
fn stopped_noise(world: &World) {
    world.add(8 * MIB, BlockSize::B512);
    let group = stopped(world, Level::Raid1, 2);
    let before = world.images();
    let mut kinds = std::collections::BTreeSet::new();
    for round in 0..400_u64 {
        world.set_images(&before);
        let random = |below: u64| world.env.random_u64() % below;
        for _ in 0..=random(3) {
            let area = [4096, 7680, 8192, 136 * 1024, 140 * 1024, 512 * 1024 - 16_384]
                [usize::try_from(random(6)).unwrap()];
            let sector = area + random(4) * 512;
            let mut bytes = world.drive(0).peek(sector..sector + 512);
            for _ in 0..=random(8) {
                let i = usize::try_from(random(512)).unwrap();
                bytes[i] ^= u8::try_from(random(255) + 1).unwrap();
            }
            world.drive(0).poke(sector, &bytes);
        }
        let seen = world.observe(&[0]);
        kinds.insert(match &seen[0].what {
            Observation::Ours(_) => "ours",
            Observation::Modified { .. } => "modified",
            Observation::Damaged { .. } => "damaged",
            Observation::NotOurs => "nothing",
            _ => "other",
        });
        // Whatever it is, the other member alone can always tell what to do.
        let decision = world.decide(group, &[0, 1], waited());
        assert!(!matches!(decision, Decision::WaitFor { .. }), "round {round}: {decision}");
    }
    assert!(kinds.len() >= 2, "{kinds:?}");
}
