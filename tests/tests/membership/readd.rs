//! Members that come back and power that goes: at every write of a drop, of the writes after it, of the re-add and of the
//! resync, the next start brings nobody into sync who holds a stale block (SAFETY M6, S3, S4). The engine runs over drives
//! that carry its metadata.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::running::{
    Stamped, assert_consistent, assert_current, ours, places, rebuild, run, settle, stamp, start, write,
};
use crate::world::{Image, TestEnv, World, forced};
use raid_core::engine::{Group, Pace};
use raid_core::geometry::Level;
use raid_core::membership::{Decision, GroupMeta, NoReturn, Ours, Policy, prepare_return};
use raid_core::ports::{DriveKey, Env, IoKind};
use raid_core::units::{Slot, Uuid};
use raid_core::view::MemberState;

/// About so many cuts are tried of each life; `WARPRAID_ALL_CUTS` tries every one (minutes).
const CUTS: usize = 60;

/// Puts a drive back and rebuilds whatever is to be rebuilt.
async fn come_back(group: &Group<TestEnv>, ours: &Ours, drive: usize) -> Result<Slot, NoReturn> {
    let key = DriveKey(u64::try_from(drive).unwrap());
    let meta = Arc::clone(group.shared().meta());
    let (slot, member) = prepare_return(&meta, ours, key).await?;
    group.readd_member(slot, member, &[]).await.expect("joins");
    Ok(slot)
}

/// The life that is cut: slot 1 drops, three writes skip it, it comes back, is resynced, and one more write follows.
fn lived(world: &World, group: &Group<TestEnv>) -> Vec<Stamped> {
    let (group, image) = (group.clone(), ours(world, 1));
    world.run(|_| async move {
        let log = RefCell::default();
        let epoch = group.shared().view().epoch;
        group.fail(epoch, Slot(1), IoKind::Gone).await.unwrap();
        let places = places(&group);
        for (n, &at) in places[..3].iter().enumerate() {
            stamp(&group, &log, at, 10 + u8::try_from(n).unwrap()).await;
        }
        come_back(&group, &image, 1).await.unwrap();
        stamp(&group, &log, places[1], 21).await;
        rebuild(&group).await;
        stamp(&group, &log, places[3], 33).await;
        settle(&group).await;
        assert_eq!(group.shared().status().dirty_intents, 0, "complete again, so the bits go");
        log.into_inner()
    })
}

fn every_crash_of(level: Level, n: usize, seed: u64) {
    let world = World::new(seed, n);
    let all: Vec<usize> = (0..n).collect();
    let uuid = world.create(level, n, true);
    let group = run(&world, world.start(uuid, &all, Policy::default()));
    let first = group.clone();
    world.run(|_| async move {
        for at in places(&first) {
            write(&first, at, 1).await;
        }
        settle(&first).await;
    });
    let (before, witness) = (world.images(), world.witness());
    world.record();
    let log = Rc::new(lived(&world, &group));
    drop(group);
    let events = world.recorded();
    let (mut partial, mut cuts) = (0, 0);
    let all_cuts = std::env::var_os("WARPRAID_ALL_CUTS").is_some();
    let stride = if all_cuts { 1 } else { (events / CUTS).max(1) };
    for cut in (usize::try_from(seed).unwrap() % stride..=events).step_by(stride) {
        // The states in which all writes in flight are gone, or all of them done.
        let images: Vec<Vec<Image>> = world.crash_images(&before, cut, 31);
        let last = images.len() - 1;
        for which in [0, last] {
            world.set_images(&images[which]);
            world.env.witness.borrow_mut().clone_from(&witness);
            let context = format!("{level} after {cut} of {events} events, {which} of {last}");
            let Some(group) = start(&world, uuid, &all) else { panic!("{context}: no start") };
            cuts += 1;
            let view = group.shared().view();
            if view.member(Slot(1)).is_missing() {
                let image = ours(&world, 1);
                let again = group.clone();
                let back = world.run(|_| async move { come_back(&again, &image, 1).await });
                back.unwrap_or_else(|why| panic!("{context}: {why}"));
            }
            partial += usize::from(group.shared().status().slots[1].is_by_intents);
            let log = Rc::clone(&log);
            world.run(|_| async move {
                assert_current(&group, &log, cut, &context).await;
                rebuild(&group).await;
                group.resync(&Pace::default()).await.unwrap();
                assert_current(&group, &log, cut, &context).await;
                assert!(group.shared().view().is_complete(), "{context}");
                assert_consistent(&group, &context).await;
            });
        }
    }
    assert!(partial > 5 && cuts > partial, "{partial} of {cuts} cuts fell into the time without the member");
}

#[test]
fn m6_whatever_the_crash_a_raid_1_member_that_comes_back_is_never_stale() {
    every_crash_of(Level::Raid1, 2, 71);
}

#[test]
fn m6_whatever_the_crash_a_raid_5_member_that_comes_back_is_never_stale() {
    every_crash_of(Level::Raid5, 3, 72);
}

#[test]
fn m6_whatever_the_crash_a_raid_6_member_that_comes_back_is_never_stale() {
    every_crash_of(Level::Raid6, 4, 73);
}

#[test]
fn m6_whatever_the_crash_a_raid_10_member_that_comes_back_is_never_stale() {
    every_crash_of(Level::Raid10, 4, 74);
}

/// A group whose slot 1 was dropped after a clean life, with writes since; and the state of drive 1 at some times before.
fn dropped(seed: u64, level: Level, n: usize) -> (World, Uuid, Group<TestEnv>, Image) {
    let world = World::new(seed, n + 1);
    let all: Vec<usize> = (0..n).collect();
    let uuid = world.create(level, n, true);
    let early = world.drive(1).image();
    world.stop(world.start(uuid, &all, Policy::default()));
    let group = run(&world, world.start(uuid, &all, Policy::default()));
    let running = group.clone();
    world.run(|_| async move {
        let epoch = running.shared().view().epoch;
        running.fail(epoch, Slot(1), IoKind::Gone).await.unwrap();
        write(&running, 0, 5).await;
    });
    (world, uuid, group, early)
}

#[test]
fn who_does_not_qualify_is_told_why() {
    let (world, _, group, early) = dropped(80, Level::Raid5, 3);
    let back = |group: &Group<TestEnv>, drive: usize| {
        let (group, image) = (group.clone(), ours(&world, drive));
        world.run(move |_| async move { come_back(&group, &image, drive).await })
    };
    assert_eq!(back(&group, 0), Err(NoReturn::Taken(Slot(0))));
    // An older state of the drive: what was written in its time is not in the bits any more.
    let now = world.drive(1).image();
    world.drive(1).set_image(early);
    assert!(matches!(back(&group, 1), Err(NoReturn::RolledBack { .. })), "{:?}", back(&group, 1));
    world.drive(1).set_image(now);
    // Another drive is put in the slot meanwhile.
    let replaced = group.clone();
    world.run(|env| async move {
        let (view, meta) = (replaced.shared().view(), Arc::clone(replaced.shared().meta()));
        let drives = crate::world::handles(&env, &view);
        let (key, drive) = (DriveKey(3), env.drive(DriveKey(3)).unwrap());
        let new = raid_core::membership::prepare_member(&env, &meta, &view, Slot(1), (key, &drive), &drives);
        replaced.add_member(Slot(1), new.await.unwrap()).await.unwrap();
    });
    assert!(matches!(back(&group, 1), Err(NoReturn::Replaced { .. })));
    assert!(!group.shared().status().slots[1].is_by_intents, "a blank drive is rebuilt whole");
}

#[test]
fn m1_a_member_that_ran_apart_does_not_come_back() {
    let (world, uuid, group, _) = dropped(81, Level::Raid1, 2);
    drop(group);
    // The other half alone, by force: it has a history of its own now.
    let kept = world.drive(0).image();
    drop(world.start(uuid, &[1], forced()));
    world.drive(0).set_image(kept);
    *world.env.witness.borrow_mut() = None;
    let Decision::Start(plan) = world.decide(uuid, &[0], forced()) else { panic!("forced") };
    let group = run(&world, world.start_plan(*plan));
    let image = ours(&world, 1);
    let back = world.run(|_| async move { come_back(&group, &image, 1).await });
    assert!(matches!(back, Err(NoReturn::Conflict { .. })), "{back:?}");
}

#[test]
fn when_all_bits_are_lost_everything_is_copied() {
    let (world, uuid, group, _) = dropped(82, Level::Raid5, 3);
    drop(group);
    for drive in [0, 2] {
        let bitmap = ours(&world, drive).copy.layout.bitmap.unwrap();
        world.drive(drive).poke(bitmap.start, &[0; 512]);
    }
    let group = start(&world, uuid, &[0, 1, 2]).unwrap();
    let image = ours(&world, 1);
    world.run(|_| async move {
        come_back(&group, &image, 1).await.unwrap();
        let all = group.shared().geometry().member_bytes();
        assert_eq!(group.shared().lacking_bytes(Slot(1)), all);
        rebuild(&group).await;
        group.resync(&Pace::default()).await.unwrap();
        assert!(group.shared().view().is_complete());
    });
}

#[test]
fn s3_a_restart_in_the_middle_goes_on_by_intents_from_the_stored_cursor() {
    let (world, uuid, group, _) = dropped(83, Level::Raid5, 3);
    let image = ours(&world, 1);
    world.run(|_| async move {
        for at in places(&group) {
            write(&group, at, 9).await;
        }
        come_back(&group, &image, 1).await.unwrap();
        let pace = Arc::new(Pace::default());
        let (stop, stopper) = (Arc::clone(&pace), group.clone());
        group.env().spawn(async move {
            // As a service manager stops a daemon: after the first half.
            while stop.done_bytes.load(std::sync::atomic::Ordering::Relaxed) * 2
                < stop.total_bytes.load(std::sync::atomic::Ordering::Relaxed).max(1)
            {
                let clock = stopper.env().clock();
                let soon = raid_core::ports::Clock::now_ns(clock) + 50_000;
                raid_core::ports::Clock::sleep_until(clock, soon).await;
            }
            stop.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let ended = group.rebuild_pending(|_| Arc::clone(&pace)).await;
        assert_eq!(ended, [(Slot(1), Err(raid_core::engine::SweepError::Cancelled))]);
        assert!(group.shared().status().slots[1].cursor_bytes > 0);
    });
    let plan = match world.decide(uuid, &[0, 1, 2], forced()) {
        Decision::Start(plan) => plan,
        other => panic!("{other}"),
    };
    let parts = world.start_plan(*plan);
    assert!(parts.rebuilding[0].1 > 0, "{:?}", parts.rebuilding);
    assert_eq!(parts.view.member(Slot(1)).state, MemberState::Rebuilding);
    let GroupMeta::Persistent(meta) = &parts.meta else { panic!("on drives") };
    assert!(meta.is_by_intents(Slot(1)));
    let group = run(&world, parts);
    let left = group.shared().lacking_bytes(Slot(1));
    assert!(left < group.shared().geometry().member_bytes(), "{left}");
    world.run(|_| async move {
        rebuild(&group).await;
        group.resync(&Pace::default()).await.unwrap();
        assert_consistent(&group, "after the restart").await;
    });
}

/// A daemon that is killed when a whole rebuild is so far: at most one percent is done again.
#[test]
fn a_restart_at_10_50_and_95_percent_loses_at_most_one_percent() {
    for percent in [10, 50, 95] {
        let (world, uuid) = large(84);
        let group = run(&world, world.start(uuid, &[0, 1, 2], Policy::default()));
        let running = group.clone();
        let images = Rc::new(RefCell::new(None));
        let (taken, drives) = (Rc::clone(&images), [0, 1, 2, 3].map(|n| world.drive(n)));
        let at = world.run(|env| async move {
            let epoch = running.shared().view().epoch;
            running.fail(epoch, Slot(1), IoKind::Gone).await.unwrap();
            let (view, meta) = (running.shared().view(), Arc::clone(running.shared().meta()));
            let handles = crate::world::handles(&env, &view);
            let (key, drive) = (DriveKey(3), env.drive(DriveKey(3)).unwrap());
            let new =
                raid_core::membership::prepare_member(&env, &meta, &view, Slot(1), (key, &drive), &handles);
            running.add_member(Slot(1), new.await.unwrap()).await.unwrap();
            let watched = running.clone();
            let total = running.shared().geometry().member_bytes();
            let killed_at = Rc::new(std::cell::Cell::new(0));
            let noted = Rc::clone(&killed_at);
            env.spawn(async move {
                while watched.shared().status().slots[1].cursor_bytes < total / 100 * percent {
                    let clock = watched.env().clock();
                    let soon = raid_core::ports::Clock::now_ns(clock) + 20_000;
                    raid_core::ports::Clock::sleep_until(clock, soon).await;
                }
                // As it lies on the drives now, with nothing stored on the way out.
                noted.set(watched.shared().status().slots[1].cursor_bytes);
                *taken.borrow_mut() = Some(drives.map(|drive| drive.image()));
            });
            rebuild(&running).await;
            killed_at.get()
        });
        drop(group);
        for (n, image) in images.borrow_mut().take().expect("taken in passing").into_iter().enumerate() {
            world.drive(n).set_image(image);
        }
        *world.env.witness.borrow_mut() = None;
        let Decision::Start(plan) = world.decide(uuid, &[0, 2, 3], forced()) else { panic!("starts") };
        let parts = world.start_plan(*plan);
        let (total, found) = (parts.geometry.member_bytes(), parts.rebuilding[0].1);
        assert!(at >= total / 100 * percent && at < total, "{at} of {total}");
        assert!(at - found <= total / 100, "{percent} %: {found} of {at} was stored, of {total}");
    }
}

/// A RAID 5 of three drives of 40 MiB, so that a percent is several stripes, and a spare.
fn large(seed: u64) -> (World, Uuid) {
    let world = World::new(seed, 0);
    for _ in 0..4 {
        world.add(40 << 20, raid_core::units::BlockSize::B512);
    }
    let uuid = world.create(Level::Raid5, 3, true);
    (world, uuid)
}
