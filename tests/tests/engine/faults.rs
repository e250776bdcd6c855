//! Faults of members, one at a time: what the host sees, what is left on the media, who is dropped.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use raid_core::engine::{
    GroupConfig, INTENT_HEADER_BYTES, IntentConfig, Pace, ScrubMode, ScrubState, SweepError,
};
use raid_core::geometry::Level;
use raid_core::ports::{Durability, IoKind};
use raid_core::units::{BlockSize, GroupOffset, Slot, Stripe, usize_of};
use raid_core::view::MemberState;
use sim::{Op, Shape, World, read_vec, write_slice};

const CHUNK: u64 = 2048;

fn shape(level: Level, members: u8) -> Shape {
    let (chunk_bytes, member_bytes) = if level == Level::Raid1 { (0, 3 * 65536) } else { (2048, 8 * CHUNK) };
    Shape { level, members, chunk_bytes, member_bytes, block: BlockSize::B512 }
}

fn still(shape: Shape) -> World {
    still_with(shape, |_| {})
}

fn still_with(shape: Shape, change: impl FnOnce(&mut GroupConfig)) -> World {
    let world = World::with(9, shape, change);
    world.set_latency(false);
    world
}

const REDUNDANT: [(Level, u8); 5] =
    [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)];

fn is_missing(world: &World, slot: u8) -> bool {
    world.shared.view().member(Slot(slot)).is_missing()
}

fn run_check(world: &World) -> ScrubState {
    let group = world.group.clone();
    world.executor.block_on(async move {
        let state = parking_lot::Mutex::default();
        group.scrub(ScrubMode::Report, &Pace::default(), &state).await.unwrap();
        state.into_inner()
    })
}

fn resync(world: &World) -> u64 {
    let group = world.group.clone();
    world.executor.block_on(async move { group.resync(&Pace::default()).await }).unwrap()
}

fn rebuild(world: &World, slot: u8) -> Result<(), SweepError> {
    let group = world.group.clone();
    world.executor.block_on(async move { group.rebuild(Slot(slot), &Pace::default()).await })
}

#[test]
fn sl_08_write_error_on_one_member_drops_it_and_the_host_sees_none() {
    for (level, members) in REDUNDANT {
        for slot in 0..members {
            for kind in [IoKind::Medium, IoKind::Gone, IoKind::TimedOut] {
                let mut world = still(shape(level, members));
                world.fill();
                world.drives[usize::from(slot)].set_hook(move |command| {
                    (command.op == Op::Write && command.range.start > 70_000).then_some(kind)
                });
                let capacity = world.geometry().capacity_bytes();
                for at in (0..capacity).step_by(1024) {
                    world.write_random(at, 1024).unwrap();
                }
                assert!(
                    is_missing(&world, slot),
                    "{level} {slot}: the member that failed a write is dropped"
                );
                assert_eq!(world.shared.view().missing(), 1);
                assert_eq!(world.shared.view().epoch.counter, 2, "one change, one epoch");
                world.check_contents("after the write errors");
                world.check_media("after the write errors");
            }
        }
    }
}

#[test]
fn zero_and_flush_errors_drop_the_member_too() {
    for (level, members) in REDUNDANT {
        for op in [Op::Zero, Op::Flush] {
            let mut world = still(shape(level, members));
            world.fill();
            world.drives[1].set_hook(move |command| (command.op == op).then_some(IoKind::Medium));
            let stripe = world.geometry().stripe_data_bytes();
            world.zero(stripe, stripe).unwrap();
            let group = world.group.clone();
            world.executor.block_on(async move { group.flush().await }).unwrap();
            assert!(is_missing(&world, 1), "{level} {op:?}");
            world.check_contents("after the error");
            world.check_media("after the error");
        }
    }
}

#[test]
fn s5_an_unreadable_block_is_reconstructed_and_rewritten() {
    for (level, members) in REDUNDANT {
        for slot in 0..members {
            let mut world = still(shape(level, members));
            world.fill();
            let bad = world.data_at(CHUNK)..world.data_at(CHUNK) + 512;
            world.drives[usize::from(slot)].make_unreadable(bad.clone());
            for _ in 0..3 {
                world.check_contents("with an unreadable block");
            }
            if level.parities() > 0 {
                // Parity is read by read-modify-write and by the check only.
                assert_eq!(run_check(&world).mismatched, 0);
            } else {
                run_check(&world);
            }
            assert_eq!(world.shared.view().missing(), 0, "{level}: a medium error drops nobody");
            assert!(!world.drives[usize::from(slot)].is_unreadable(&bad), "{level} {slot}: rewritten");
            world.check_media("after the repair");
        }
    }
}

#[test]
fn s5_two_members_with_bad_blocks_in_different_rows_of_one_column_are_both_repaired() {
    let mut world = still(shape(Level::Raid5, 4));
    world.fill();
    for (drive, column) in [(0, 0), (1, 512), (2, 1024), (3, 1536)] {
        let at = world.data_at(2 * CHUNK + column);
        world.drives[drive].make_unreadable(at..at + 512);
    }
    world.check_contents("four bad blocks in one stripe");
    assert_eq!(run_check(&world).mismatched, 0);
    assert_eq!(world.shared.view().missing(), 0);
    world.check_media("after the repairs");
    // A write that needs the old contents meets them too.
    let at = world.data_at(3 * CHUNK);
    world.drives.iter().for_each(|drive| drive.make_unreadable(at..at));
    world.drives[1].make_unreadable(at..at + 512);
    for column in 0..3 {
        world.write_random(3 * 3 * CHUNK + column * CHUNK, 512).unwrap();
    }
    world.check_contents("after writes over it");
    world.check_media("after writes over it");
}

#[test]
fn s5_a_member_that_cannot_take_the_rewrite_is_dropped() {
    for (level, members) in REDUNDANT {
        let mut world = still(shape(level, members));
        world.fill();
        let bad = world.data_at(0)..world.data_at(0) + 512;
        world.drives[0].make_unreadable(bad.clone());
        world.drives[0].make_unwritable(bad);
        world.check_contents("with a dead block");
        run_check(&world);
        assert!(is_missing(&world, 0), "{level}");
        world.check_contents("without the member");
    }
}

#[test]
fn a_block_that_two_members_cannot_read_errors_for_exactly_its_requests() {
    let mut world = still(shape(Level::Raid5, 4));
    world.fill();
    let at = world.data_at(0);
    world.drives[0].make_unreadable(at..at + 512);
    world.drives[1].make_unreadable(at..at + 512);
    assert_eq!(world.read(0, 512), Err(IoKind::Medium));
    assert_eq!(world.read(CHUNK, 512), Err(IoKind::Medium));
    for at in (512..world.geometry().capacity_bytes()).step_by(512).filter(|&at| at != CHUNK) {
        let read = world.read(at, 512).unwrap();
        world.compare(at, &read, "beside the lost blocks");
    }
    assert_eq!(world.shared.view().missing(), 0);
    // A full-stripe write brings both back.
    world.write_random(0, 3 * CHUNK).unwrap();
    world.check_contents("after the rewrite");
    world.check_media("after the rewrite");
}

#[test]
fn m3_a_read_whose_member_goes_is_answered_from_the_others() {
    for (level, members) in REDUNDANT {
        for kind in [IoKind::Gone, IoKind::TimedOut, IoKind::ShortRead, IoKind::Transport] {
            let mut world = still(shape(level, members));
            world.fill();
            world.drives[1].set_hook(move |command| (command.op == Op::Read).then_some(kind));
            world.check_contents("while the member goes");
            assert!(is_missing(&world, 1), "{level} {kind:?}");
            let why = world.shared.view().member(Slot(1)).state;
            assert_eq!(why, MemberState::Missing { why: Some(kind) });
        }
    }
}

#[test]
fn a_write_whose_old_data_cannot_be_read_goes_on_without_the_member() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
        for kind in [IoKind::Gone, IoKind::TimedOut] {
            for slot in 0..members {
                let mut world = still(shape(level, members));
                world.fill();
                world.drives[usize::from(slot)]
                    .set_hook(move |command| (command.op == Op::Read).then_some(kind));
                for at in (0..world.geometry().capacity_bytes()).step_by(1536) {
                    world.write_random(at, 512).unwrap();
                }
                world.check_contents("without the member");
                world.check_media("without the member");
            }
        }
    }
}

#[test]
fn the_last_copy_is_not_dropped_for_a_medium_error() {
    let mut world = still(shape(Level::Raid1, 2));
    world.fill();
    world.fail(0, IoKind::Gone).unwrap();
    let at = world.data_at(512);
    world.drives[1].make_unwritable(at..at + 512);
    assert_eq!(world.write_random(512, 512), Err(IoKind::Medium));
    assert_eq!(world.write_random(1024, 512), Ok(()));
    assert!(!is_missing(&world, 1));
    world.check_contents("everything else is served");
}

#[test]
fn m5_a_drop_beyond_tolerance_has_no_epoch_and_blank_drives_do_not_help() {
    for (level, members, lost) in
        [(Level::Raid5, 4, 2_u64), (Level::Raid6, 5, 3), (Level::Raid1, 2, 2), (Level::Raid10, 4, 2)]
    {
        let mut world = still(shape(level, members));
        world.fill();
        for slot in 0..u8::try_from(lost).unwrap() {
            world.fail(slot, IoKind::Gone).unwrap();
        }
        let view = world.shared.view();
        assert_eq!(view.epoch.counter, lost, "the last drop has no epoch of its own");
        assert_eq!(view.member(Slot(u8::try_from(lost).unwrap() - 1)).last_in_sync, lost);
        assert!(world.shared.is_offline());
        assert_eq!(world.replace(0).err(), Some(IoKind::BeyondTolerance));
        assert!(world.shared.is_offline());
    }
}

#[test]
fn p1_fua_reaches_data_and_parity_and_a_flush_every_member() {
    for (level, members) in REDUNDANT {
        let world = still(shape(level, members));
        for drive in &world.drives {
            drive.start_log();
        }
        let group = world.group.clone();
        world.executor.block_on(async move {
            write_slice(&group, 0, &[1; 512], Durability::Fua).await.unwrap();
        });
        let logs: Vec<_> = world.drives.iter().flat_map(sim::SimDrive::take_log).collect();
        let writes: Vec<_> = logs.iter().filter(|command| command.op == Op::Write).collect();
        let expected = match level {
            Level::Raid1 => usize::from(members),
            Level::Raid6 => 3,
            _ => 2,
        };
        assert_eq!(writes.len(), expected, "{level}");
        assert!(writes.iter().all(|command| command.is_fua));
        let group = world.group.clone();
        world.executor.block_on(async move {
            write_slice(&group, 0, &[1; 512], Durability::Cached).await.unwrap();
            group.flush().await.unwrap();
        });
        for drive in &world.drives {
            let log = drive.take_log();
            assert_eq!(log.iter().filter(|command| command.op == Op::Flush).count(), 1);
            assert!(log.iter().all(|command| !command.is_fua));
        }
    }
}

#[test]
fn p1_flushed_and_fua_writes_survive_a_power_loss() {
    for seed in 0..40 {
        for (level, members) in [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid10, 4)]
        {
            let mut world = World::new(seed, shape(level, members));
            world.set_latency(false);
            world.fill();
            world.drives.iter().for_each(sim::SimDrive::track_durability);
            let capacity = world.geometry().capacity_bytes();
            for n in 0..20 {
                let at = world.executor.random_u64() % (capacity / 512 - 8) * 512;
                if n % 3 == 0 {
                    let (group, data) = (world.group.clone(), world.random_bytes(2048));
                    world.model[usize_of(at)..usize_of(at) + 2048].copy_from_slice(&data);
                    world.executor.block_on(async move {
                        write_slice(&group, at, &data, Durability::Fua).await.unwrap();
                    });
                } else {
                    world.write_random(at, 2048).unwrap();
                    let group = world.group.clone();
                    world.executor.block_on(async move { group.flush().await }).unwrap();
                }
            }
            let flushed = world.model.clone();
            // Not flushed: may be lost block by block.
            world.write_random(0, 2048).unwrap();
            world.drives.iter().for_each(sim::SimDrive::lose_power);
            world.model = flushed;
            for at in (2048..capacity).step_by(512) {
                let read = world.read(at, 512).unwrap();
                world.compare(at, &read, "after the power loss");
            }
        }
    }
}

#[test]
fn s1_writes_to_an_unsynced_parity_stripe_are_protected_at_once() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid6, 6)] {
        for lost in 0..members {
            let mut world = still_with(shape(level, members), |config| config.unsynced.push(0..8));
            // Whatever was on the drives before create.
            for drive in &world.drives {
                let len = drive.medium().len();
                let junk = world.random_bytes(u64::try_from(len).unwrap());
                drive.medium().copy_from_slice(&junk);
            }
            let capacity = world.geometry().capacity_bytes();
            let written: Vec<u64> = (0..capacity).step_by(512).filter(|at| (at / 512) % 3 != 1).collect();
            for &at in &written {
                world.write_random(at, 512).unwrap();
            }
            world.fail(lost, IoKind::Gone).unwrap();
            for &at in &written {
                let read = world.read(at, 512).unwrap();
                world.compare(at, &read, "one lost during the initial sync");
            }
            if level == Level::Raid6 {
                for &at in written.iter().rev().step_by(2) {
                    world.write_random(at, 512).unwrap();
                }
                world.fail((lost + 1) % members, IoKind::Gone).unwrap();
                for &at in written.iter().rev().step_by(2) {
                    let read = world.read(at, 512).unwrap();
                    world.compare(at, &read, "two lost during the initial sync");
                }
            }
        }
    }
}

#[test]
fn s1_unsynced_mirrors_are_read_from_one_member_and_resync_copies_it() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid10, 4)] {
        let mut world = still_with(shape(level, members), |config| config.unsynced.push(0..8));
        for drive in &world.drives {
            let len = drive.medium().len();
            let junk = world.random_bytes(u64::try_from(len).unwrap());
            drive.medium().copy_from_slice(&junk);
        }
        let capacity = world.geometry().capacity_bytes();
        let step = world.shared.max_request_bytes().min(capacity);
        world.model = world.read(0, step).unwrap();
        for _ in 0..3 {
            world.check_contents("always the same copy");
        }
        assert_eq!(run_check(&world).checked, 0, "nothing is compared before it is in sync");
        assert_eq!(resync(&world), 0);
        world.check_media("after resync");
        let report = run_check(&world);
        assert_eq!((report.skipped, report.mismatched), (0, 0));
        for slot in (0..members).step_by(2) {
            world.fail(slot, IoKind::Gone).unwrap();
        }
        world.check_contents("from the other copies");
    }
}

#[test]
fn resync_makes_parity_match_and_check_finds_what_does_not() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut world = still_with(shape(level, members), |config| config.dirty = vec![2..5, 7..8]);
        world.fill();
        let parity = world.geometry().parity_slots(Stripe(3)).p.unwrap();
        let at = usize_of(world.data_at(3 * CHUNK + 700));
        world.drives[parity.index()].medium()[at] ^= 1;
        assert_eq!(world.shared.status().unsynced_stripes, 4);
        assert_eq!(resync(&world), 0);
        assert_eq!(world.shared.status().unsynced_stripes, 0);
        world.check_media("after resync");
        assert_eq!(run_check(&world).checked, 8);
        world.drives[parity.index()].medium()[at] ^= 1;
        let report = run_check(&world);
        assert_eq!((report.mismatched, report.findings[0].stripe), (1, Stripe(3)));
    }
}

#[test]
fn a_lost_block_of_a_dirty_stripe_is_an_error_and_never_wrong_data() {
    let mut world = still_with(shape(Level::Raid5, 4), |config| config.dirty.push(0..1));
    world.fill();
    // The crash: new data on one member, parity old.
    let at = usize_of(world.data_at(0));
    world.drives[0].medium()[at] ^= 0xff;
    world.fail(1, IoKind::Gone).unwrap();
    assert_eq!(world.read(CHUNK, 512), Err(IoKind::BeyondTolerance));
    assert!(world.read(2 * CHUNK, 512).is_ok());
    world.replace(1).unwrap();
    rebuild(&world, 1).unwrap();
    assert_eq!(world.read(CHUNK, 512), Err(IoKind::BadBlock), "the rebuild does not invent it either");
    let read = world.read(3 * CHUNK, 512).unwrap();
    world.compare(3 * CHUNK, &read, "another stripe");
    world.write_random(0, 3 * CHUNK).unwrap();
    world.check_contents("after the rewrite");
}

#[test]
fn s6_a_rebuild_over_unreadable_blocks_goes_on_and_lists_them() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid10, 4)] {
        let mut world = still(shape(level, members));
        world.fill();
        world.fail(1, IoKind::Gone).unwrap();
        let at = world.data_at(CHUNK + 512);
        world.drives[0].make_unreadable(at..at + 1024);
        world.replace(1).unwrap();
        rebuild(&world, 1).unwrap();
        assert!(world.shared.view().is_complete(), "{level}");
        let status = world.shared.status();
        let listed = &status.slots[1].bad_blocks;
        assert_eq!((listed.len(), &listed[0]), (1, &(CHUNK + 512..CHUNK + 1536)), "{level}");
        let mut lost = Vec::new();
        for at in (0..world.geometry().capacity_bytes()).step_by(512) {
            match world.read(at, 512) {
                Ok(read) => world.compare(at, &read, "after the rebuild"),
                Err(_) => lost.push(at),
            }
        }
        let place = |at: u64| world.geometry().place(GroupOffset(at));
        assert!(
            !lost.is_empty()
                && lost.iter().all(|&at| matches!(place(at).column, 512 | 1024) || level == Level::Raid1),
            "{level} {lost:?}"
        );
        let stripe = world.geometry().stripe_data_bytes();
        let first = lost[0] / stripe * stripe;
        world.write_random(first, stripe.min(world.geometry().capacity_bytes() - first)).unwrap();
        assert!(world.shared.status().slots.iter().all(|slot| slot.bad_blocks.is_empty()), "{level}");
        world.check_contents("after the rewrite");
        world.check_media("after the rewrite");
    }
}

#[test]
fn a_rebuild_ends_when_its_target_or_its_source_goes() {
    let mut world = still(shape(Level::Raid6, 5));
    world.fill();
    world.fail(2, IoKind::Gone).unwrap();
    world.replace(2).unwrap();
    world.drives[5]
        .set_hook(|command| (command.op == Op::Write && command.range.end > 70_000).then_some(IoKind::Gone));
    assert_eq!(rebuild(&world, 2), Err(SweepError::MemberGone(Slot(2))));
    world.replace(2).unwrap();
    world.drives[0]
        .set_hook(|command| (command.op == Op::Read && command.range.end > 70_000).then_some(IoKind::Gone));
    rebuild(&world, 2).unwrap();
    assert!(is_missing(&world, 0) && !is_missing(&world, 2));
    world.check_contents("after the rebuild lost a source");
    world.check_media("after the rebuild lost a source");
}

#[test]
fn sl_05_a_stalled_older_write_never_lands_on_a_newer_one() {
    for (level, members) in REDUNDANT {
        let mut world = World::new(5, shape(level, members));
        world.fill();
        world.drives[1].set_hung(true);
        let (old, new) = (world.random_bytes(1024), world.random_bytes(1024));
        let at = if level == Level::Raid5 || level == Level::Raid6 { CHUNK } else { 0 };
        world.model[usize_of(at)..usize_of(at) + 1024].copy_from_slice(&new);
        let done = Rc::new(RefCell::new(Vec::new()));
        for (name, data) in [("old", old), ("new", new)] {
            let (group, done, executor) = (world.lane(1), Rc::clone(&done), world.executor.clone());
            let later = world.executor.now_ns() + if name == "new" { 1_000_000 } else { 0 };
            world.executor.spawn(async move {
                executor.sleep_until(later).await;
                write_slice(&group, at, &data, Durability::Cached).await.unwrap();
                done.borrow_mut().push(name);
            });
        }
        let (executor, drive) = (world.executor.clone(), world.drives[1].clone());
        let until = executor.now_ns() + 50_000_000;
        let group = world.group.clone();
        world.executor.block_on(async move {
            executor.sleep_until(until).await;
            drive.set_hung(false);
            executor.sleep_until(until + 50_000_000).await;
            group.flush().await.unwrap();
        });
        assert_eq!(*done.borrow(), ["old", "new"], "{level}: one after the other, in the order they came");
        world.check_contents("the newer data stays");
        world.check_media("the newer data stays");
    }
}

/// A bitmap of one bit per two chunks over a small group.
fn intents(config: &mut GroupConfig) {
    config.intents = Some(IntentConfig {
        chunk_bytes: 2 * CHUNK,
        bits: 4 * 2,
        dirty_bits: Vec::new(),
        header: (0..=255).collect(),
    });
}

fn set_bits(bitmap: &[u8]) -> Vec<usize> {
    let bits = &bitmap[usize_of(INTENT_HEADER_BYTES)..];
    (0..bits.len() * 8).filter(|bit| bits[bit / 8] & (1 << (bit % 8)) != 0).collect()
}

fn tick(world: &World) {
    let group = world.group.clone();
    world.executor.block_on(async move { group.tick().await }).unwrap();
}

#[test]
fn s4_bits_are_durable_on_all_members_before_the_first_commit() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)] {
        let world = World::with(6, shape(level, members), intents);
        let group = world.group.clone();
        let stripes: Vec<u64> = vec![0, 5, 2];
        for (n, stripe) in stripes.iter().enumerate() {
            let bit = match level {
                Level::Raid10 => usize_of(stripe * 2 * CHUNK / (2 * CHUNK)),
                _ => usize_of(stripe / 2),
            };
            let seen = Rc::new(Cell::new(0));
            for drive in &world.drives {
                let (all, seen) = (world.drives.clone(), Rc::clone(&seen));
                drive.set_hook(move |command| {
                    if command.op == Op::Write && command.range.start >= 65536 {
                        seen.set(seen.get() + 1);
                        for member in &all {
                            let bitmap = member.medium()[8192..8192 + 512].to_vec();
                            assert!(set_bits(&bitmap).contains(&bit), "bit {bit} before the commit");
                            assert_eq!(bitmap[..256], (0..=255).collect::<Vec<u8>>(), "header kept");
                        }
                    }
                    None
                });
            }
            let group = group.clone();
            let at = stripe * world.geometry().stripe_data_bytes();
            world.executor.block_on(async move {
                write_slice(&group, at, &[7; 512], Durability::Cached).await.unwrap();
            });
            assert!(seen.get() >= 2);
            assert_eq!(world.shared.status().dirty_intents, u64::try_from(n).unwrap() + 1);
        }
    }
}

#[test]
fn s4_bits_are_cleared_after_a_flush_when_quiet_and_never_while_degraded() {
    let mut world = still_with(shape(Level::Raid5, 4), intents);
    world.write_random(0, 512).unwrap();
    assert_eq!(set_bits(&world.bitmap(0)), [0]);
    world.drives.iter().for_each(sim::SimDrive::start_log);
    (0..4).for_each(|_| tick(&world));
    assert_eq!(set_bits(&world.bitmap(0)), [0], "it lingers");
    (0..2).for_each(|_| tick(&world));
    for number in 0..4 {
        assert_eq!(set_bits(&world.bitmap(number)), [0_usize; 0]);
        let ops: Vec<Op> = world.drives[number].take_log().iter().map(|command| command.op).collect();
        assert_eq!(ops, [Op::Flush, Op::Write], "flushed before it was cleared");
    }
    world.write_random(0, 512).unwrap();
    world.fail(3, IoKind::Gone).unwrap();
    world.write_random(4 * 3 * CHUNK, 512).unwrap();
    (0..20).for_each(|_| tick(&world));
    assert_eq!(set_bits(&world.bitmap(0)), [0, 2], "never while degraded");
    world.replace(3).unwrap();
    assert_eq!(set_bits(&world.bitmap(4)), [0, 2], "a new member gets the bitmap");
    rebuild(&world, 3).unwrap();
    (0..20).for_each(|_| tick(&world));
    assert_eq!(set_bits(&world.bitmap(0)), [0_usize; 0]);
    assert_eq!(set_bits(&world.bitmap(4)), [0_usize; 0]);
}

#[test]
fn a_member_that_cannot_take_its_intent_bits_is_dropped() {
    let mut world = still_with(shape(Level::Raid6, 5), intents);
    world.drives[2].set_hook(|command| {
        (command.op == Op::Write && command.range.start < 65536).then_some(IoKind::Medium)
    });
    world.write_random(0, 512).unwrap();
    assert!(is_missing(&world, 2));
    assert_eq!(set_bits(&world.bitmap(0)), [0]);
    world.check_contents("after the drop");
    world.check_media("after the drop");
}

#[test]
fn quiesce_flushes_clears_the_bits_and_refuses_what_comes_later() {
    let mut world = still_with(shape(Level::Raid5, 4), intents);
    world.write_random(0, 512).unwrap();
    let group = world.group.clone();
    world.executor.block_on(async move { group.quiesce().await }).unwrap();
    assert_eq!(set_bits(&world.bitmap(1)), [0_usize; 0]);
    assert_eq!(world.write_random(0, 512), Err(IoKind::ShuttingDown));
    assert_eq!(world.read(0, 512), Err(IoKind::ShuttingDown));
    assert_eq!(world.zero(0, 512), Err(IoKind::ShuttingDown));
}

#[test]
fn sequential_small_writes_are_merged() {
    let world = World::new(8, shape(Level::Raid5, 4));
    let stripe = world.geometry().stripe_data_bytes();
    let data = world.random_bytes(stripe);
    for at in (0..stripe).step_by(512) {
        let (group, data) = (world.group.clone(), data[usize_of(at)..usize_of(at) + 512].to_vec());
        world.executor.spawn(async move {
            write_slice(&group, at, &data, Durability::Cached).await.unwrap();
        });
    }
    let group = world.group.clone();
    let executor = world.executor.clone();
    let read = world.executor.block_on(async move {
        executor.sleep_until(10_000_000).await;
        read_vec(&group, 0, stripe).await.unwrap()
    });
    assert_eq!(read, data);
    let (mut reads, mut writes) = (0, 0);
    for drive in &world.drives {
        reads += drive.counts().0;
        writes += drive.counts().1;
    }
    // Alone, each of the 12 writes would read 2 and write 2 columns.
    assert!(reads + writes < 24, "{reads} reads and {writes} writes");
}
