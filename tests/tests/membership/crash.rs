//! Power loss at every write of every change of the metadata: what is left is the group before or the group after, never
//! none, and never with a member that should not be in it (SAFETY M2, P2, AD-07).

use std::collections::BTreeSet;

use crate::world::{Image, World, every_crash, handles, waited};
use raid_core::geometry::Level;
use raid_core::membership::{
    Decision, Observation, PlannedState, Policy, Refusal, StartParts, decide, delete, prepare_member, start,
    store_bad_blocks, store_cursor, undelete,
};
use raid_core::ports::Env;
use raid_core::units::{Slot, Uuid};

/// Devices that a start would use as in sync.
fn in_sync(decision: &Decision, context: &str) -> Vec<bool> {
    match decision {
        Decision::Start(plan) => plan.slots.iter().map(|slot| slot.state == PlannedState::InSync).collect(),
        other => panic!("{context}: {other}"),
    }
}

#[test]
fn a_crash_in_a_drop_leaves_the_old_or_the_new_epoch() {
    for (level, n) in [(Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)] {
        let world = World::new(51, n);
        let group = world.create(level, n, true);
        let all: Vec<usize> = (0..n).collect();
        let parts = world.start(group, &all, Policy::default());
        let (old, witness) = (parts.view.epoch, world.witness());
        let before = world.images();
        world.record();
        let (parts, failed) = world.drop_member(parts, Slot(1));
        assert!(failed.is_empty());
        let new = parts.view.epoch;
        drop(parts);
        let (mut olds, mut news) = (0, 0);
        let seen = every_crash(&world, &before, |world, context| {
            let observed = world.observe(&all);
            let decision = decide(group, &observed, witness.as_ref(), Policy::default());
            let in_sync = in_sync(&decision, context);
            let Decision::Start(plan) = decision else { unreachable!() };
            let epoch = plan.tip.copy.epoch();
            if epoch == new {
                news += 1;
                assert_eq!(in_sync.iter().filter(|in_sync| **in_sync).count(), n - 1, "{context}");
                assert!(!in_sync[1], "{level} {context}: the dropped member is current");
            } else {
                olds += 1;
                assert_eq!(epoch, old, "{context}");
                // Nothing was acknowledged under the new epoch yet: the member is as good as the others.
                assert!(in_sync.iter().all(|in_sync| *in_sync), "{level} {context}");
            }
        });
        assert!(olds > 0 && news > 0 && seen > 20, "{level}: {olds} old, {news} new of {seen}");
    }
}

/// Each sector boundary of each write of a publish, one write torn at a time.
#[test]
fn a_copy_or_superblock_torn_at_any_sector_is_recognised() {
    let world = World::new(52, 2);
    let group = world.create(Level::Raid1, 2, true);
    let parts = world.start(group, &[0, 1], Policy::default());
    let old = parts.view.epoch;
    let before = world.images();
    world.record();
    let (parts, _) = world.drop_member(parts, Slot(0));
    let new = parts.view.epoch;
    let events = world.recorded();
    let mut torn = 0;
    for cut in 0..=events {
        for sector in 0..=32 {
            for images in world.crash_images(&before, cut, sector) {
                world.set_images(&images);
                let seen = world.observe(&[1]);
                let Observation::Ours(ours) = &seen[0].what else { panic!("{}", seen[0].what) };
                assert!([old, new].contains(&ours.copy.epoch()));
                torn += usize::from(!ours.notes.is_empty());
            }
        }
    }
    assert!(torn > 10, "no torn copy was ever seen");
}

/// After any crash the next start works and leaves nothing torn behind.
#[test]
fn a_start_after_a_crash_in_a_start_repairs_what_was_torn() {
    let world = World::new(53, 3);
    let group = world.create(Level::Raid5, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    world.stop(parts);
    let (before, witness) = (world.images(), world.witness());
    world.record();
    drop(world.start(group, &[0, 1, 2], Policy::default()));
    let seen = every_crash(&world, &before, |world, context| {
        world.env.witness.borrow_mut().clone_from(&witness);
        let parts = world.start(group, &[2, 0, 1], Policy::default());
        assert!(parts.view.is_complete(), "{context}");
        drop(parts);
        for drive in world.observe(&[0, 1, 2]) {
            let Observation::Ours(ours) = &drive.what else { panic!("{context}: {}", drive.what) };
            assert!(
                ours.notes.is_empty() || ours.notes.iter().all(|note| note.contains("copy")),
                "{context}"
            );
        }
        // And once more, so that the older copies are rewritten too.
        drop(world.start(group, &[0, 1, 2], Policy::default()));
        for drive in world.observe(&[0, 1, 2]) {
            let Observation::Ours(ours) = &drive.what else { panic!("{context}: {}", drive.what) };
            assert_eq!(ours.notes, Vec::<String>::new(), "{context}");
        }
    });
    assert!(seen > 50, "{seen}");
}

#[test]
fn a_crash_in_a_stop_is_clean_only_if_everything_was_flushed() {
    let world = World::new(54, 2);
    let group = world.create(Level::Raid1, 2, true);
    let parts = world.start(group, &[0, 1], Policy::default());
    let before = world.images();
    world.record();
    world.stop(parts);
    let (mut clean, mut dirty) = (0, 0);
    every_crash(&world, &before, |world, context| {
        let decision = decide(group, &world.observe(&[0, 1]), None, Policy::default());
        assert_eq!(in_sync(&decision, context), [true, true]);
        let Decision::Start(plan) = decision else { unreachable!() };
        if plan.tip.copy.marks.clean { clean += 1 } else { dirty += 1 }
    });
    assert!(clean > 0 && dirty > 0);
}

#[test]
fn ad_07_a_crash_in_a_create_leaves_nothing_or_everything() {
    for (level, n) in [(Level::Raid0, 2), (Level::Raid1, 2), (Level::Raid5, 3)] {
        let world = World::new(55, n);
        let before = world.images();
        let all: Vec<usize> = (0..n).collect();
        world.record();
        let group = world.create(level, n, true);
        let (mut nothing, mut everything) = (0, 0);
        let seen = every_crash(&world, &before, |world, context| {
            let observed = world.observe(&all);
            match decide(group, &observed, None, Policy::default()) {
                Decision::Start(plan) => {
                    everything += 1;
                    assert!(plan.slots.iter().all(|slot| slot.state == PlannedState::InSync), "{context}");
                    assert!(plan.bits.is_none_or(|bits| bits.dirty() == 0), "{context}: its areas are whole");
                }
                Decision::Refuse(Refusal::NoMembers { .. } | Refusal::UnfinishedCreate { .. }) => {
                    nothing += 1;
                    // Any one of them alone is nothing either.
                    for drive in &all {
                        let alone = decide(group, &world.observe(&[*drive]), None, waited());
                        assert!(!matches!(alone, Decision::Start(_)), "{context}");
                    }
                }
                other => panic!("{level} {context}: {other}"),
            }
        });
        assert!(
            nothing > 0 && everything > 0,
            "{level}: {nothing} nothing, {everything} everything of {seen}"
        );
    }
}

#[test]
fn after_a_crashed_create_the_same_command_works_at_once() {
    let world = World::new(56, 2);
    for power in 0..30 {
        world.set_images(&[Image::new(), Image::new()]);
        world.env.recorder.power.set(Some(power));
        let crashed = world.try_create(Level::Raid1, &[0, 1], true, false);
        world.env.recorder.power.set(None);
        if let Ok(group) = crashed {
            assert!(power > 10, "create writes more than {power} times");
            assert!(matches!(world.decide(group, &[0, 1], Policy::default()), Decision::Start(_)));
            return;
        }
        // Whoever asked may try again, in another order too; or the group is there, whole.
        let group = match world.try_create(Level::Raid1, &[1, 0], true, false) {
            Ok(group) => group,
            Err(raid_core::membership::CreateError::AlreadyMember { group, .. }) => group,
            Err(error) => panic!("after {power} writes: {error}"),
        };
        assert!(matches!(world.decide(group, &[0, 1], Policy::default()), Decision::Start(_)));
    }
    panic!("create never ended");
}

#[test]
fn a_crash_in_a_delete_or_undelete_is_undone_or_finished() {
    let world = World::new(57, 3);
    let group = world.create(Level::Raid5, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    let view = parts.view.clone();
    world.stop(parts);
    let alive = world.images();
    let delete_it = |world: &World| {
        let parts = world.start(group, &[0, 1, 2], Policy::default());
        let before = world.images();
        world.record();
        world.run(|env| async move {
            let drives = handles(&env, &parts.view);
            assert_eq!(delete(&env, &parts.meta, &parts.view, &drives).await, Vec::new());
        });
        before
    };
    let back = |world: &World, context: &str| {
        let observed = world.observe(&[0, 1, 2]);
        world.run(|env| async move { undelete(&env, group, &observed).await }).unwrap_or_else(|error| {
            panic!("{context}: {error}");
        });
        let decision = world.decide(group, &[0, 1, 2], Policy::default());
        assert_eq!(in_sync(&decision, context), [true; 3]);
    };
    let before = delete_it(&world);
    let deleted = world.images();
    let (mut still, mut gone) = (0, 0);
    every_crash(&world, &before, |world, context| {
        match decide(group, &world.observe(&[0, 1, 2]), None, Policy::default()) {
            Decision::Start(_) => still += 1,
            Decision::Refuse(Refusal::Tombstoned { .. }) => {
                gone += 1;
                back(world, context);
            }
            other => panic!("{context}: {other}"),
        }
    });
    assert!(still > 0 && gone > 0);
    // The way back, cut anywhere: deleted or alive, and a second undelete finishes it.
    world.set_images(&deleted);
    world.record();
    back(&world, "whole");
    every_crash(&world, &deleted, |world, context| {
        match decide(group, &world.observe(&[0, 1, 2]), None, Policy::default()) {
            Decision::Start(_) => {}
            Decision::Refuse(Refusal::Tombstoned { .. }) => back(world, context),
            other => panic!("{context}: {other}"),
        }
    });
    drop((view, alive));
}

/// A group with a replacement being rebuilt in slot 2.
fn rebuilding(world: &World, group: Uuid, key_of_new: usize) -> StartParts {
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    let (parts, _) = world.drop_member(parts, Slot(2));
    let key = raid_core::ports::DriveKey(u64::try_from(key_of_new).unwrap());
    world.run(move |env| async move {
        let mut parts = parts;
        let drives = handles(&env, &parts.view);
        let drive = env.drive(key).unwrap();
        let member =
            prepare_member(&env, &parts.meta, &parts.view, Slot(2), (key, &drive), &drives).await.unwrap();
        assert_eq!(member.dev_number, 3, "a replacement gets a new number");
        parts.view.members[2] = member;
        parts.view.epoch = raid_core::membership::next_epoch(&env, parts.view.epoch);
        let drives = handles(&env, &parts.view);
        let failed = raid_core::membership::publish(&env, &parts.meta, &parts.view, &drives).await;
        assert!(failed.is_empty());
        parts
    })
}

#[test]
fn a_crash_in_a_prepare_leaves_the_group_as_it_was() {
    let world = World::new(58, 4);
    let group = world.create(Level::Raid1, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    let (parts, _) = world.drop_member(parts, Slot(2));
    let before = world.images();
    world.record();
    world.run(move |env| async move {
        let drives = handles(&env, &parts.view);
        let (key, drive) = (raid_core::ports::DriveKey(3), env.drive(raid_core::ports::DriveKey(3)).unwrap());
        prepare_member(&env, &parts.meta, &parts.view, Slot(2), (key, &drive), &drives).await.unwrap();
    });
    every_crash(&world, &before, |world, context| {
        let decision = decide(group, &world.observe(&[0, 1, 2, 3]), None, Policy::default());
        assert_eq!(in_sync(&decision, context), [true, true, false]);
    });
}

#[test]
fn s3_the_rebuild_cursor_is_a_low_water_mark_whatever_the_crash() {
    let world = World::new(59, 4);
    let group = world.create(Level::Raid5, 3, true);
    let parts = rebuilding(&world, group, 3);
    let before = world.images();
    world.record();
    world.run(move |env| async move {
        let drives = handles(&env, &parts.view);
        for cursor in [65_536, 131_072] {
            store_cursor(&env, &parts.meta, &parts.view, Slot(2), cursor, &drives).await.unwrap();
        }
        // It never goes back.
        store_cursor(&env, &parts.meta, &parts.view, Slot(2), 1024, &drives).await.unwrap();
        let gone = store_cursor(&env, &parts.meta, &parts.view, Slot(0), 1024, &drives).await;
        assert!(gone.is_err(), "slot 0 is not being rebuilt");
    });
    let mut cursors = BTreeSet::new();
    every_crash(&world, &before, |world, context| {
        let decision = decide(group, &world.observe(&[0, 1, 3]), None, Policy::default());
        let Decision::Start(plan) = decision else { panic!("{context}: {decision}") };
        let PlannedState::Rebuilding(cursor) = plan.slots[2].state else {
            panic!("{context}: not rebuilding")
        };
        cursors.insert(cursor);
    });
    assert_eq!(cursors.into_iter().collect::<Vec<_>>(), [0, 65_536, 131_072]);
    // The start goes on from there, and says so to the engine.
    let parts = world.start(group, &[0, 1, 3], Policy::default());
    assert_eq!(parts.rebuilding, [(Slot(2), 131_072)]);
}

#[test]
fn s6_lost_blocks_survive_any_crash_of_the_next_write() {
    let world = World::new(60, 3);
    let group = world.create(Level::Raid5, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    let parts = world.run(move |env| async move {
        let drives = handles(&env, &parts.view);
        let lost = [4096..8192, 20_480..24_576];
        store_bad_blocks(&env, &parts.meta, &parts.view, Slot(1), &lost, &drives).await.unwrap();
        parts
    });
    let before = world.images();
    world.record();
    world.run(move |env| async move {
        let drives = handles(&env, &parts.view);
        let lost = [4096..8192, 20_480..24_576, 65_536..66_048];
        store_bad_blocks(&env, &parts.meta, &parts.view, Slot(1), &lost, &drives).await.unwrap();
    });
    every_crash(&world, &before, |world, context| {
        let decision = decide(group, &world.observe(&[0, 1, 2]), None, Policy::default());
        let Decision::Start(plan) = decision else { panic!("{context}: {decision}") };
        let parts = world.run(|env| async move { start(&env, *plan).await }).unwrap();
        let lost: Vec<_> = parts.bad_blocks.iter().map(|(slot, range)| (*slot, range.clone())).collect();
        assert!(lost.contains(&(Slot(1), 4096..8192)), "{context}: {lost:?}");
        assert!(lost.contains(&(Slot(1), 20_480..24_576)), "{context}: {lost:?}");
    });
}
