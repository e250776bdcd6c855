//! A member is replaced while it goes on serving: the engine over simulated drives. What a crash leaves is
//! `membership/succeed.rs`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use raid_core::engine::{IntentConfig, Pace, Succession, SweepError};
use raid_core::geometry::Level;
use raid_core::ports::{Clock, DriveKey, Durability, Env, IoKind};
use raid_core::units::{BlockSize, Slot};
use raid_core::view::{MemberState, Successor};
use sim::{Op, Shape, World, write_slice};

const CHUNK: u64 = 2048;
const STRIPES: u64 = 64;
/// Bytes of a member that one intent bit stands for.
const BIT: u64 = 8192;

const LEVELS: [(Level, u8); 6] = [
    (Level::Raid0, 3),
    (Level::Raid1, 2),
    (Level::Raid1, 3),
    (Level::Raid5, 4),
    (Level::Raid6, 5),
    (Level::Raid10, 4),
];

fn world(seed: u64, level: Level, members: u8) -> World {
    let (chunk_bytes, member_bytes) =
        if level == Level::Raid1 { (0, 8 * 65536) } else { (2048, STRIPES * CHUNK) };
    let shape = Shape { level, members, chunk_bytes, member_bytes, block: BlockSize::B512 };
    let mut world = World::with(seed, shape, |config| {
        let (chunk_bytes, bits) = match level {
            Level::Raid1 => (65536, 8),
            Level::Raid10 => (2 * BIT, STRIPES * CHUNK / BIT),
            _ => (BIT, STRIPES * CHUNK / BIT),
        };
        config.intents =
            Some(IntentConfig { chunk_bytes, bits, dirty_bits: Vec::new(), header: vec![7; 256] });
    });
    world.fill();
    world
}

fn rows(world: &World) -> u64 {
    world.geometry().stripes()
}

/// Writes at random places of the group while something else runs; done when the cell says so.
fn write_meanwhile(world: &mut World, writes: u32, on_write: impl Fn(u32) + 'static) -> Rc<Cell<bool>> {
    let capacity = world.geometry().capacity_bytes();
    let writes: Vec<(u64, Vec<u8>)> = (0..writes)
        .map(|n| {
            let len = 512 * (1 + u64::from(n) % 20);
            (world.executor.random_u64() % ((capacity - len) / 512) * 512, world.random_bytes(len))
        })
        .collect();
    for (at, data) in &writes {
        let at = usize::try_from(*at).unwrap();
        world.model[at..at + data.len()].copy_from_slice(data);
    }
    let writer = world.lane(1);
    let done = Rc::new(Cell::new(false));
    let told = Rc::clone(&done);
    world.env.spawn(async move {
        for (n, (at, data)) in (0..).zip(writes) {
            on_write(n);
            write_slice(&writer, at, &data, Durability::Cached).await.unwrap();
        }
        told.set(true);
    });
    done
}

fn succeed_meanwhile(
    world: &World,
    slot: u8,
    successor: Successor,
    pace: &Arc<Pace>,
    done: Rc<Cell<bool>>,
) -> Result<Succession, SweepError> {
    let (group, pace) = (world.group.clone(), Arc::clone(pace));
    world.executor.block_on(async move {
        let ended = group.succeed(Slot(slot), successor, &pace).await;
        while !done.get() {
            let clock = group.env().clock();
            clock.sleep_until(clock.now_ns() + 10_000).await;
        }
        ended
    })
}

/// So that there is something between the steps.
fn one_row_at_a_time() -> Arc<Pace> {
    let pace = Pace::default();
    pace.step_bytes_max.store(1, std::sync::atomic::Ordering::Relaxed);
    Arc::new(pace)
}

fn succeed(world: &mut World, slot: u8) -> Result<Succession, SweepError> {
    let successor = world.successor();
    succeed_meanwhile(world, slot, successor, &one_row_at_a_time(), Rc::new(Cell::new(true)))
}

fn rebuild_all(world: &World) {
    let group = world.group.clone();
    let ended = world.executor.block_on(async move { group.rebuild_pending(|_| Arc::default()).await });
    assert!(ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
}

fn is_in_sync(world: &World, slot: u8) -> bool {
    world.shared.view().member(Slot(slot)).is_in_sync()
}

#[test]
fn a_serving_member_is_replaced_under_writes_and_redundancy_never_falls() {
    for (level, members) in LEVELS {
        for slot in 0..members {
            let mut world = world(u64::from(slot), level, members);
            let epoch = world.shared.view().epoch.counter;
            let watched = Arc::clone(&world.shared);
            let done = write_meanwhile(&mut world, 60, move |_| {
                assert!(watched.view().is_complete() && watched.view().missing() == 0);
            });
            let successor = world.successor();
            let pace = one_row_at_a_time();
            let ended = succeed_meanwhile(&world, slot, successor, &pace, done);
            let old = DriveKey(u64::from(slot));
            assert_eq!(ended, Ok(Succession::Done { old: Some(old) }), "{level} slot {slot}");
            let view = world.shared.view();
            assert_eq!(view.epoch.counter, epoch + 1, "one membership change");
            assert_eq!(view.member(Slot(slot)).drive, Some(DriveKey(u64::from(members))));
            assert!(view.is_complete() && view.member(Slot(slot)).successor.is_none());
            assert_eq!(
                pace.done_bytes.load(std::sync::atomic::Ordering::Relaxed),
                world.geometry().member_bytes()
            );
            let before = world.drives[usize::from(slot)].counts();
            world.check_contents("after the replacement");
            world.check_media("after the replacement");
            world.write_random(0, 4096).unwrap();
            assert_eq!(world.drives[usize::from(slot)].counts(), before, "the old drive is let go of");
            if level.is_redundant() {
                let intents = world.bitmap(usize::from(members));
                assert_eq!(intents, world.bitmap(usize::from((slot + 1) % members)), "the bits came along");
                world.fail((slot + 1) % members, IoKind::Gone).unwrap();
                world.check_contents("without another member");
            }
        }
    }
}

#[test]
fn when_the_old_drive_fails_the_new_one_is_rebuilt_from_where_the_copy_was() {
    for (level, members) in LEVELS.into_iter().filter(|(level, _)| level.is_redundant()) {
        let mut world = world(20, level, members);
        let successor = world.successor();
        let target = usize::from(members);
        let rows = rows(&world);
        let chunk = u64::from(world.geometry().chunk_bytes());
        let start = world.data_at(0);
        let old = world.drives[1].clone();
        // The drive dies when two thirds are copied.
        let until = start + rows * 2 / 3 * chunk;
        old.set_hook(move |command| {
            (command.op == Op::Read && command.range.start >= until).then_some(IoKind::Gone)
        });
        let done = Rc::new(Cell::new(true));
        world.drives[target].start_log();
        let ended = succeed_meanwhile(&world, 1, successor, &one_row_at_a_time(), done);
        assert_eq!(ended, Ok(Succession::ToRebuild), "{level}");
        let slot = world.shared.status().slots[1].clone();
        assert_eq!(slot.state, MemberState::Rebuilding);
        assert!(slot.cursor_bytes >= world.geometry().member_bytes() / 3, "{level}: {}", slot.cursor_bytes);
        world.write_random(0, 40 * 512).unwrap();
        world.check_contents("between copy and rebuild");
        drop(world.drives[target].take_log());
        world.drives[target].start_log();
        rebuild_all(&world);
        let log = world.drives[target].take_log();
        let lowest = log
            .iter()
            .filter(|command| command.op != Op::Flush && command.range.start >= start)
            .map(|command| command.range.start)
            .min();
        assert_eq!(lowest, Some(start + slot.cursor_bytes), "{level}: what was copied is not made again");
        assert!(is_in_sync(&world, 1));
        world.check_contents("after the rebuild");
        world.check_media("after the rebuild");
    }
}

#[test]
fn the_operator_drops_the_old_drive_in_the_middle() {
    for (level, members) in LEVELS.into_iter().filter(|(level, _)| level.is_redundant()) {
        let mut world = world(21, level, members);
        let successor = world.successor();
        let group = world.group.clone();
        let shared = Arc::clone(&world.shared);
        let seen = Arc::clone(&world.shared);
        let half = world.geometry().member_bytes() / 2;
        world.env.spawn(async move {
            let clock = group.env().clock();
            while shared.view().member(Slot(1)).successor.is_none()
                || group.shared().status().slots[1].reads < 3
            {
                clock.sleep_until(clock.now_ns() + 5_000).await;
            }
            group.fail(shared.view().epoch, Slot(1), IoKind::ShuttingDown).await.unwrap();
        });
        let done = write_meanwhile(&mut world, 30, |_| {});
        let ended = succeed_meanwhile(&world, 1, successor, &one_row_at_a_time(), done);
        assert_eq!(ended, Ok(Succession::ToRebuild), "{level}");
        assert!(seen.status().slots[1].cursor_bytes <= half.max(2 * 65536), "{level}");
        rebuild_all(&world);
        world.check_contents("after the rebuild");
        world.check_media("after the rebuild");
    }
}

#[test]
fn when_the_new_drive_fails_the_group_is_as_before() {
    for (level, members) in LEVELS {
        for op in [Op::Write, Op::Flush] {
            let mut world = world(22, level, members);
            let successor = world.successor();
            let epoch = world.shared.view().epoch;
            let left = Cell::new(4_u32);
            world.drives[usize::from(members)].set_hook(move |command| {
                let counts = command.op == op && (op == Op::Flush || command.range.start >= 65536);
                left.set(left.get().saturating_sub(u32::from(counts && op == Op::Write)));
                (counts && (op == Op::Flush || left.get() == 0)).then_some(IoKind::Gone)
            });
            let done = write_meanwhile(&mut world, 40, |_| {});
            let ended = succeed_meanwhile(&world, 1, successor, &one_row_at_a_time(), done);
            assert!(
                matches!(ended, Err(SweepError::Io(error)) if error.kind == IoKind::Gone),
                "{level} {op:?}: {ended:?}"
            );
            let view = world.shared.view();
            assert_eq!((view.epoch, view.is_complete()), (epoch, true), "{level}: nobody was dropped");
            assert!(view.members.iter().all(|member| member.successor.is_none()));
            world.check_contents("as before");
            world.check_media("as before");
            // And the next drive takes the place.
            assert!(matches!(succeed(&mut world, 1), Ok(Succession::Done { .. })));
            world.check_media("the second try");
        }
    }
}

#[test]
fn a_copy_that_is_cancelled_leaves_the_group_as_it_was() {
    let mut world = world(23, Level::Raid6, 5);
    let successor = world.successor();
    let pace = one_row_at_a_time();
    let stop = Arc::clone(&pace);
    let done = write_meanwhile(&mut world, 6, move |n| {
        stop.cancel.store(n > 2, std::sync::atomic::Ordering::Relaxed);
    });
    let ended = succeed_meanwhile(&world, 2, successor, &pace, done);
    assert_eq!(ended, Err(SweepError::Cancelled));
    assert!(world.shared.view().is_complete());
    let counts = world.drives[5].counts();
    world.write_random(0, 1 << 16).unwrap();
    assert_eq!(world.drives[5].counts(), counts, "nobody writes to it any more");
    world.check_media("as before");
}

#[test]
fn only_a_member_in_sync_gets_a_successor_and_only_one() {
    let mut world = world(24, Level::Raid5, 4);
    world.fail(1, IoKind::Gone).unwrap();
    assert_eq!(succeed(&mut world, 1), Err(SweepError::MemberGone(Slot(1))));
    let (first, second) = (world.successor(), world.successor());
    let group = world.group.clone();
    let other = world.group.clone();
    let ended = world.executor.block_on(async move {
        let again = Rc::new(Cell::new(None));
        let told = Rc::clone(&again);
        group.env().spawn(async move {
            while other.shared().view().member(Slot(2)).successor.is_none() {
                let clock = other.env().clock();
                clock.sleep_until(clock.now_ns() + 1000).await;
            }
            told.set(Some(other.succeed(Slot(2), second, &Pace::default()).await));
        });
        (group.succeed(Slot(2), first, &Pace::default()).await, again.take())
    });
    assert!(matches!(ended.0, Ok(Succession::Done { .. })), "{ended:?}");
    assert!(
        matches!(ended.1, Some(Err(SweepError::Io(error))) if error.kind == IoKind::Invalid),
        "{ended:?}"
    );
}

#[test]
fn s6_blocks_the_old_drive_cannot_read_come_from_the_others_or_are_listed() {
    for (level, members) in LEVELS {
        for is_degraded in [false, true] {
            let has_source = level == Level::Raid6
                || (level.is_redundant() && !is_degraded)
                || (level, members) == (Level::Raid1, 3);
            if is_degraded && !level.is_redundant() {
                continue;
            }
            let mut world = world(25, level, members);
            if is_degraded {
                // The other half of its pair, or anyone.
                world.fail(0, IoKind::Gone).unwrap();
            }
            let bad = 20 * 512..23 * 512;
            world.drives[1].make_unreadable(world.data_at(bad.start)..world.data_at(bad.end));
            let ended = succeed(&mut world, 1);
            assert!(matches!(ended, Ok(Succession::Done { .. })), "{level}: {ended:?}");
            let lost = world.shared.status().slots[1].bad_blocks.clone();
            if has_source {
                assert!(lost.is_empty(), "{level}: {lost:?}");
                world.check_contents("the others had it");
                continue;
            }
            assert_eq!(lost.as_slice(), std::slice::from_ref(&bad), "{level}: exactly those");
            // Rewriting everything clears the list.
            world.fill();
            assert!(world.shared.status().slots[1].bad_blocks.is_empty(), "{level}");
            world.check_contents("after the rewrite");
        }
    }
}

#[test]
fn an_old_drive_that_sits_out_is_read_around() {
    for (level, members) in LEVELS.into_iter().filter(|(level, _)| level.is_redundant()) {
        let mut world = world(26, level, members);
        world.shared.set_avoided(|slot| slot == Slot(1));
        let before = world.shared.status().slots[1].reads;
        assert!(matches!(succeed(&mut world, 1), Ok(Succession::Done { .. })), "{level}");
        assert_eq!(world.shared.status().slots[1].reads, before, "{level}: a slow drive is no source");
        world.check_media("copied around it");
    }
}

#[test]
fn zeroes_and_discards_reach_the_new_drive_too() {
    for (level, members) in LEVELS {
        let mut world = world(27, level, members);
        let successor = world.successor();
        let capacity = world.geometry().capacity_bytes();
        let group = world.lane(1);
        let done = Rc::new(Cell::new(false));
        let told = Rc::clone(&done);
        world.env.spawn(async move {
            for n in 0..8 {
                let start = capacity / 8 * n / 512 * 512;
                group.zero(start..start + capacity / 16 / 512 * 512, true, Durability::Cached).await.unwrap();
            }
            told.set(true);
        });
        for n in 0..8 {
            let start = usize::try_from(capacity / 8 * n / 512 * 512).unwrap();
            world.model[start..start + usize::try_from(capacity / 16 / 512 * 512).unwrap()].fill(0);
        }
        let ended = succeed_meanwhile(&world, 1, successor, &one_row_at_a_time(), done);
        assert!(matches!(ended, Ok(Succession::Done { .. })), "{level}: {ended:?}");
        world.check_contents("after it");
        world.check_media("after it");
    }
}

#[test]
fn several_members_are_replaced_at_once() {
    for (level, members) in LEVELS {
        let mut world = world(28, level, members);
        let successors: Vec<Successor> = (0..members).map(|_| world.successor()).collect();
        let epoch = world.shared.view().epoch.counter;
        let done = write_meanwhile(&mut world, 80, |_| {});
        let ended: Rc<std::cell::RefCell<Vec<_>>> = Rc::default();
        for (slot, successor) in (0..).zip(successors) {
            let (group, told) = (world.lane(u16::from(slot) % 4), Rc::clone(&ended));
            world.env.spawn(async move {
                let result = group.succeed(Slot(slot), successor, &one_row_at_a_time()).await;
                told.borrow_mut().push(result.is_ok());
            });
        }
        let (group, told) = (world.group.clone(), Rc::clone(&ended));
        world.executor.block_on(async move {
            while !done.get() || told.borrow().len() < usize::from(members) {
                let clock = group.env().clock();
                clock.sleep_until(clock.now_ns() + 10_000).await;
            }
        });
        assert_eq!(*ended.borrow(), vec![true; usize::from(members)], "{level}");
        let view = world.shared.view();
        assert_eq!(view.epoch.counter, epoch + u64::from(members));
        assert!(view.members.iter().all(|member| member.drive.unwrap().0 >= u64::from(members)));
        world.check_contents("all new");
        world.check_media("all new");
    }
}

/// Replacements at random times of random lives: writes, losses of the old, the new and other drives, several at once.
#[test]
fn no_random_life_with_replacements_reads_a_stale_block() {
    for seed in 0..80 {
        let (level, members) = LEVELS[usize::try_from(seed).unwrap() % LEVELS.len()];
        let mut world = world(300 + seed, level, members);
        world.set_latency(seed % 3 != 0);
        for round in 0..8 {
            let dice = world.executor.random_u64();
            let slot = u8::try_from(dice / 16 % u64::from(members)).unwrap();
            if !is_in_sync(&world, slot) {
                let view = world.shared.view();
                if view.member(Slot(slot)).is_missing() {
                    world.replace(slot).unwrap();
                }
                rebuild_all(&world);
                continue;
            }
            let successor = world.successor();
            let new = world.drives.last().unwrap().clone();
            let fate = dice % 5;
            let (group, shared) = (world.group.clone(), Arc::clone(&world.shared));
            let done = write_meanwhile(&mut world, 12, move |n| {
                let is_listed = shared.view().member(Slot(slot)).successor.is_some();
                if n != u32::try_from(dice / 1024 % 12).unwrap() || !is_listed {
                    return;
                }
                match fate {
                    0 => new.fail_with(Some(IoKind::Gone)),
                    1 if level.is_redundant() && shared.view().is_complete() => {
                        let (group, epoch) = (group.clone(), shared.view().epoch);
                        let env = group.env().clone();
                        env.spawn(async move {
                            let _ = group.fail(epoch, Slot(slot), IoKind::Gone).await;
                        });
                    }
                    2 if level.is_redundant() && shared.view().is_complete() => {
                        let (group, epoch) = (group.clone(), shared.view().epoch);
                        let env = group.env().clone();
                        env.spawn(async move {
                            let _ = group.fail(epoch, Slot((slot + 1) % members), IoKind::Gone).await;
                        });
                    }
                    _ => {}
                }
            });
            let ended = succeed_meanwhile(&world, slot, successor, &one_row_at_a_time(), done);
            let context = format!("seed {seed} round {round} {level} fate {fate}: {ended:?}");
            if fate > 2 {
                assert!(matches!(ended, Ok(Succession::Done { .. })), "{context}");
            }
            if matches!(ended, Ok(Succession::ToRebuild)) && dice.is_multiple_of(3) {
                rebuild_all(&world);
            }
            world.check_contents(&context);
            world.check_media(&context);
        }
    }
}
