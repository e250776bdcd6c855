//! A serving member is replaced and power goes: at every write of the copy, of what clients write meanwhile, of the change
//! of membership and after it, the next start brings nobody into sync who holds a stale block, and the old drive or the
//! new one has the slot (SAFETY M2, P3). The engine runs over drives that carry its metadata.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::running::{
    Stamped, assert_consistent, assert_current, ours, places, rebuild, run, settle, stamp, start, write,
};
use crate::world::{Image, TestEnv, World, handles};
use raid_core::engine::{Group, Pace, Succession, SweepError};
use raid_core::geometry::Level;
use raid_core::membership::{Decision, Observation, Policy, prepare_successor, slot_succeeded};
use raid_core::ports::{Clock, DriveKey, Env, IoKind};
use raid_core::units::{Slot, Uuid};
use raid_core::view::Successor;

/// About so many cuts are tried of each life; `WARPRAID_ALL_CUTS` tries every one (minutes).
const CUTS: usize = 60;
/// The slot that is replaced.
const SLOT: Slot = Slot(1);

/// Makes drive `n` ready to succeed the member of [`SLOT`].
async fn prepared(env: &TestEnv, group: &Group<TestEnv>, n: usize) -> Successor {
    let (view, meta) = (group.shared().view(), Arc::clone(group.shared().meta()));
    let key = DriveKey(u64::try_from(n).unwrap());
    let drive = env.drive(key).unwrap();
    prepare_successor(env, &meta, &view, SLOT, (key, &drive), &handles(env, &view)).await.expect("prepared")
}

fn small_steps() -> Pace {
    let pace = Pace::default();
    pace.step_bytes_max.store(1, std::sync::atomic::Ordering::Relaxed);
    pace
}

/// A group that was written to, and a drive prepared to succeed its slot 1.
fn world_of(level: Level, n: usize, seed: u64) -> (World, Uuid, Group<TestEnv>, Successor) {
    let world = World::new(seed, n + 1);
    let all: Vec<usize> = (0..n).collect();
    let uuid = world.create(level, n, true);
    let group = run(&world, world.start(uuid, &all, Policy::default()));
    let first = group.clone();
    let successor = world.run(|env| async move {
        for at in places(&first) {
            write(&first, at, 1).await;
        }
        settle(&first).await;
        prepared(&env, &first, n).await
    });
    (world, uuid, group, successor)
}

/// The life that is cut: the copy, writes while it runs, the change, two more writes.
fn lived(world: &World, group: &Group<TestEnv>, successor: Successor) -> Vec<Stamped> {
    let group = group.clone();
    world.run(|env| async move {
        let log: Rc<RefCell<Vec<Stamped>>> = Rc::default();
        let (writer, written) = (group.clone(), Rc::clone(&log));
        env.spawn(async move {
            for n in 0..12_u8 {
                let at = places(&writer)[usize::from(n % 4)];
                stamp(&writer, &written, at, 10 + n).await;
            }
        });
        let ended = group.succeed(SLOT, successor, &small_steps()).await;
        assert!(matches!(ended, Ok(Succession::Done { .. })), "{ended:?}");
        while log.borrow().len() < 12 {
            let clock = env.clock();
            clock.sleep_until(clock.now_ns() + 10_000).await;
        }
        for (n, &at) in (0..).zip(&places(&group)[..2]) {
            stamp(&group, &log, at, 40 + n).await;
        }
        settle(&group).await;
        log.take()
    })
}

fn every_crash_of(level: Level, n: usize, seed: u64) {
    let (world, uuid, group, successor) = world_of(level, n, seed);
    let all: Vec<usize> = (0..=n).collect();
    let new = successor.device_uuid;
    let (before, witness) = (world.images(), world.witness());
    world.record();
    let log = Rc::new(lived(&world, &group, successor));
    drop(group);
    let events = world.recorded();
    let all_cuts = std::env::var_os("WARPRAID_ALL_CUTS").is_some();
    let stride = if all_cuts { 1 } else { (events / CUTS).max(1) };
    let (mut by_old, mut by_new) = (0, 0);
    for cut in (usize::try_from(seed).unwrap() % stride..=events).step_by(stride) {
        let images: Vec<Vec<Image>> = world.crash_images(&before, cut, 31);
        let last = images.len() - 1;
        for which in [0, last] {
            world.set_images(&images[which]);
            // What the host remembers was stored at some time of this life: at worst nothing of it.
            world.env.witness.borrow_mut().clone_from(&witness);
            let context = format!("{level} after {cut} of {events} events, {which} of {last}");
            let Some(group) = start(&world, uuid, &all) else { panic!("{context}: no start") };
            let view = group.shared().view();
            assert!(view.is_complete(), "{context}: all drives are here, so somebody has every slot");
            let is_new = view.member(SLOT).device_uuid == new;
            *(if is_new { &mut by_new } else { &mut by_old }) += 1;
            let log = Rc::clone(&log);
            world.run(|env| async move {
                assert_current(&group, &log, cut, &context).await;
                group.resync(&Pace::default()).await.unwrap();
                assert_current(&group, &log, cut, &context).await;
                if group.shared().geometry().level().is_redundant() {
                    assert_consistent(&group, &context).await;
                }
                if is_new {
                    return;
                }
                // Once more, from the start.
                let again = prepared(&env, &group, n).await;
                let ended = group.succeed(SLOT, again, &Pace::default()).await;
                assert!(matches!(ended, Ok(Succession::Done { .. })), "{context}: {ended:?}");
                assert_current(&group, &log, cut, &context).await;
                if group.shared().geometry().level().is_redundant() {
                    assert_consistent(&group, &context).await;
                }
            });
        }
    }
    assert!(by_old > 10 && by_new > 2, "{level}: {by_old} cuts before the change, {by_new} after it");
}

#[test]
fn whatever_the_crash_a_raid_0_member_that_is_replaced_is_never_stale() {
    every_crash_of(Level::Raid0, 2, 90);
}

#[test]
fn whatever_the_crash_a_raid_1_member_that_is_replaced_is_never_stale() {
    every_crash_of(Level::Raid1, 2, 91);
}

#[test]
fn whatever_the_crash_a_raid_5_member_that_is_replaced_is_never_stale() {
    every_crash_of(Level::Raid5, 3, 92);
}

#[test]
fn whatever_the_crash_a_raid_6_member_that_is_replaced_is_never_stale() {
    every_crash_of(Level::Raid6, 4, 93);
}

#[test]
fn whatever_the_crash_a_raid_10_member_that_is_replaced_is_never_stale() {
    every_crash_of(Level::Raid10, 4, 94);
}

/// The change itself, at every single write of it, torn ones too: the old drive or the new one has the slot, and with
/// whichever is absent the group still knows who is current.
#[test]
fn m2_a_crash_in_the_change_leaves_the_old_or_the_new_member() {
    for (level, n) in [(Level::Raid1, 2), (Level::Raid5, 3)] {
        let (world, uuid, group, successor) = world_of(level, n, 95);
        let all: Vec<usize> = (0..=n).collect();
        let (old, new) = (group.shared().view().member(SLOT).device_uuid, successor.device_uuid);
        let began = Rc::new(std::cell::Cell::new(None));
        let witness = world.witness();
        let before = Rc::new(RefCell::new(Vec::new()));
        let (running, told, kept) = (group.clone(), Rc::clone(&began), Rc::clone(&before));
        let drives: Vec<_> = all.iter().map(|&n| world.drive(n)).collect();
        world.run(|env| async move {
            let watched = running.clone();
            env.spawn(async move {
                // The last moment before the change: everything is copied.
                let total = watched.shared().geometry().member_bytes();
                while watched.shared().successor_bytes(SLOT) != Some(total) {
                    let clock = watched.env().clock();
                    clock.sleep_until(clock.now_ns() + 1_000).await;
                }
                *kept.borrow_mut() = drives.iter().map(crate::world::TestDrive::image).collect();
                watched.env().recorder.on.set(true);
                told.set(Some(()));
            });
            let ended = running.succeed(SLOT, successor, &Pace::default()).await;
            assert!(matches!(ended, Ok(Succession::Done { .. })), "{ended:?}");
        });
        drop(group);
        let before = before.take();
        // The host's memory comes last of all: in every cut but the very end it is the old one.
        *world.env.witness.borrow_mut() = witness;
        assert!(began.get().is_some() && !before.is_empty());
        let mut seen = [0, 0];
        crate::world::every_crash(&world, &before, |world, context| {
            let holder = |drives: &[usize]| match world.decide(uuid, drives, crate::world::waited()) {
                Decision::Start(plan) => Some(plan.slots[SLOT.index()].record.device_uuid),
                _ => None,
            };
            let has = holder(&all).unwrap_or_else(|| panic!("{level} {context}: no start"));
            assert!(has == old || has == new, "{level} {context}");
            seen[usize::from(has == new)] += 1;
            // Without the other one it is still the same.
            let without_old: Vec<usize> = all.iter().copied().filter(|&drive| drive != 1).collect();
            if has == new {
                assert_eq!(holder(&without_old), Some(new), "{level} {context}: the old one is not needed");
            }
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{level}: {seen:?}");
    }
}

#[test]
fn a_start_leaves_the_successor_alone_and_knows_whose_it_was() {
    let (world, uuid, group, successor) = world_of(Level::Raid5, 3, 96);
    let stopped = group.clone();
    let cancelled = small_steps();
    cancelled.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let ended = world.run(|_| async move { stopped.succeed(SLOT, successor, &cancelled).await });
    assert_eq!(ended, Err(SweepError::Cancelled));
    drop(group);
    let seen = ours(&world, 3);
    assert_eq!(slot_succeeded(&seen), Some(SLOT));
    assert_eq!(slot_succeeded(&ours(&world, 1)), None, "a member is nobody's successor");
    let Decision::Start(plan) = world.decide(uuid, &[0, 1, 2, 3], Policy::default()) else {
        panic!("starts")
    };
    assert!(plan.is_in_sync(SLOT));
    assert_eq!(plan.left_out.len(), 1);
    assert!(plan.left_out[0].why.contains("prepared as a replacement"), "{}", plan.left_out[0].why);
}

#[test]
fn a_successor_that_fails_in_the_change_gives_the_slot_back() {
    // From the last flush on it takes so many more writes: its refreshed metadata, then those of the change.
    let mut given_back = 0;
    for writes_left in 0..12 {
        let (world, uuid, group, successor) = world_of(Level::Raid6, 4, 97);
        let new = successor.device_uuid;
        let running = group.clone();
        let drive = world.drive(4);
        let (ended, view) = world.run(|env| async move {
            let watched = running.clone();
            env.spawn(async move {
                let total = watched.shared().geometry().member_bytes();
                while watched.shared().successor_bytes(SLOT) != Some(total) {
                    let clock = watched.env().clock();
                    clock.sleep_until(clock.now_ns() + 1_000).await;
                }
                drive.fail_after(Some(writes_left));
            });
            let ended = running.succeed(SLOT, successor, &Pace::default()).await;
            (ended, running.shared().view())
        });
        world.drive(4).fail_after(None);
        match ended {
            Ok(Succession::Done { .. }) => assert_eq!(view.member(SLOT).device_uuid, new),
            Err(SweepError::Io(error)) => {
                given_back += 1;
                assert_eq!(error.kind, IoKind::Gone);
                assert!(view.is_complete() && view.member(SLOT).device_uuid != new, "{writes_left}");
            }
            other => panic!("{writes_left}: {other:?}"),
        }
        world.run(|_| async move {
            write(&group, 0, 77).await;
            assert_consistent(&group, &format!("{writes_left}")).await;
        });
        let Decision::Start(plan) = world.decide(uuid, &[0, 1, 2, 3, 4], crate::world::waited()) else {
            panic!("{writes_left}: starts")
        };
        let holder = plan.slots[1].record.device_uuid;
        assert_eq!(holder, view.member(SLOT).device_uuid, "{writes_left}: as it ran");
    }
    assert!(given_back >= 3, "{given_back}");
}

#[test]
fn a_long_copy_does_not_make_its_drive_a_stranger() {
    // More membership changes than a history remembers, while it is filled; then power goes in the middle of the change.
    let (world, uuid, group, successor) = world_of(Level::Raid5, 4, 98);
    let new = successor.device_uuid;
    let running = group.clone();
    world.run(|env| async move {
        let pace = small_steps();
        pace.bytes_per_s_max.store(1, std::sync::atomic::Ordering::Relaxed);
        let pace = Rc::new(pace);
        let (fast, other) = (Rc::clone(&pace), running.clone());
        env.spawn(async move {
            let drops = other.shared().view();
            for _ in 0..70 {
                let epoch = other.shared().view().epoch;
                other.fail(epoch, Slot(3), IoKind::Gone).await.unwrap();
                let mut member = drops.member(Slot(3)).clone();
                member.state = raid_core::view::MemberState::Rebuilding;
                other.add_member(Slot(3), member).await.unwrap();
                other.rebuild(Slot(3), &Pace::default()).await.unwrap();
            }
            fast.bytes_per_s_max.store(0, std::sync::atomic::Ordering::Relaxed);
        });
        let ended = running.succeed(SLOT, successor, &pace).await;
        assert!(matches!(ended, Ok(Succession::Done { .. })), "{ended:?}");
        rebuild(&running).await;
    });
    drop(group);
    // The change reached everybody but the new drive: it still has what it was refreshed with just before.
    let Observation::Ours(mut seen) = world.observe(&[4]).remove(0).what else { panic!("ours") };
    seen.copy.chain.clear();
    let Decision::Start(plan) = world.decide(uuid, &[0, 1, 2, 3, 4], Policy::default()) else {
        panic!("starts")
    };
    assert_eq!(plan.slots[1].record.device_uuid, new);
    assert!(plan.is_in_sync(SLOT));
}

/// The bytes of md's superblock that tell a successor from a member, and what they are when it is one.
#[test]
fn its_superblock_is_that_of_mds_replacement_until_it_is_a_member() {
    let (world, _, group, successor) = world_of(Level::Raid6, 4, 99);
    let number = usize::from(successor.dev_number);
    let superblock = |drive: usize| {
        let bytes = world.drive(drive).peek(4096..8192);
        assert!(raid_core::format::superblock::Superblock::decode(&bytes).is_ok(), "its checksum is right");
        bytes
    };
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    // Bitmap, recovery offset, replacement, and our claim; nothing recovered; the role of slot 1, as md has it.
    let before = superblock(4);
    assert_eq!(word(&before, 8), 0x1000_0000 | 1 | 2 | 16);
    assert_eq!(before[152..160], [0; 8]);
    assert_eq!(word(&before, 160), u32::from(successor.dev_number));
    assert_eq!(before[256 + 2 * number..258 + 2 * number], [1, 0]);
    // The members' own say nothing of it: that number is nobody's.
    assert_eq!(world.drive(1).peek(4096..8192)[256 + 2 * number..258 + 2 * number], [0xff, 0xff]);
    let ended = world.run(|_| async move { group.succeed(SLOT, successor, &Pace::default()).await });
    assert!(matches!(ended, Ok(Succession::Done { .. })), "{ended:?}");
    for drive in [0, 2, 3, 4] {
        let after = superblock(drive);
        assert_eq!(word(&after, 8), 0x1000_0000 | 1);
        assert_eq!(after[256 + 2 * number..258 + 2 * number], [1, 0], "drive {drive}");
        assert_eq!(after[258..260], [0xfe, 0xff], "drive {drive}: the old number is faulty");
    }
}

/// The mark of a write-mostly member is the drive's: it survives restarts and a return, and a successor has none.
#[test]
fn write_mostly_goes_with_the_drive() {
    let (world, uuid, group, _) = world_of(Level::Raid1, 2, 100);
    let marking = group.clone();
    world.run(|_| async move { marking.mark_write_mostly(|slot| slot == SLOT).await.unwrap() });
    assert!(group.shared().is_write_mostly(SLOT) && !group.shared().is_write_mostly(Slot(0)));
    let flag = |drive: usize| world.drive(drive).peek(4096..8192)[184];
    assert_eq!((flag(0), flag(1)), (0, 1));
    let stopping = group.clone();
    world.run(|_| async move { stopping.quiesce().await.unwrap() });
    let group = run(&world, world.start(uuid, &[0, 1, 2], crate::world::waited()));
    assert!(group.shared().is_write_mostly(SLOT), "after a start");
    let again = group.clone();
    let back = world.run(|env| async move {
        let epoch = again.shared().view().epoch;
        again.fail(epoch, SLOT, IoKind::Gone).await.unwrap();
        assert!(!again.shared().is_write_mostly(Slot(0)));
        let Observation::Ours(seen) =
            raid_core::membership::observe(&env, DriveKey(1), &env.drive(DriveKey(1)).unwrap()).await.what
        else {
            panic!("ours")
        };
        let meta = Arc::clone(again.shared().meta());
        let (slot, member) = raid_core::membership::prepare_return(&meta, &seen, DriveKey(1)).await.unwrap();
        again.readd_member(slot, member, &[]).await.unwrap();
        rebuild(&again).await;
        again.shared().is_write_mostly(SLOT)
    });
    assert!(back, "after its return");
    let replaced = group.clone();
    let ended = world.run(|env| async move {
        let successor = prepared(&env, &replaced, 2).await;
        replaced.succeed(SLOT, successor, &Pace::default()).await
    });
    assert!(matches!(ended, Ok(Succession::Done { .. })), "{ended:?}");
    assert!(!group.shared().is_write_mostly(SLOT) && flag(2) == 0, "another drive");
}
