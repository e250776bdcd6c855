//! A dropped member that comes back is resynced by intent bits only, and never comes out stale (SAFETY M6, S4): the engine
//! over simulated drives. What a crash leaves: `membership/readd.rs`.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use raid_core::engine::{IntentConfig, Pace};
use raid_core::geometry::Level;
use raid_core::ports::IoKind;
use raid_core::units::{BlockSize, Slot};
use raid_core::view::MemberState;
use sim::{Op, Shape, World, write_slice};

const CHUNK: u64 = 2048;
const STRIPES: u64 = 256;
/// Bytes of a member that one bit stands for.
const BIT: u64 = 8192;

const REDUNDANT: [(Level, u8); 5] =
    [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)];

fn world(seed: u64, level: Level, members: u8) -> World {
    let (chunk_bytes, member_bytes) =
        if level == Level::Raid1 { (0, 32 * 65536) } else { (2048, STRIPES * CHUNK) };
    let shape = Shape { level, members, chunk_bytes, member_bytes, block: BlockSize::B512 };
    let world = World::with(seed, shape, |config| {
        let (chunk_bytes, bits) = match level {
            Level::Raid1 => (65536, 32),
            // Of the array.
            Level::Raid10 => (2 * BIT, STRIPES * CHUNK / BIT),
            _ => (BIT, STRIPES * CHUNK / BIT),
        };
        config.intents =
            Some(IntentConfig { chunk_bytes, bits, dirty_bits: Vec::new(), header: vec![7; 256] });
    });
    world.set_latency(false);
    world
}

/// Everything written is flushed and no bit is set.
fn settle(world: &World) {
    let group = world.group.clone();
    world.executor.block_on(async move {
        for _ in 0..8 {
            group.tick().await.unwrap();
        }
    });
    assert_eq!(world.shared.status().dirty_intents, 0, "quiet for long enough");
}

fn rebuild(world: &World, slot: u8) -> Pace {
    let group = world.group.clone();
    world.executor.block_on(async move {
        let pace = Pace::default();
        group.rebuild(Slot(slot), &pace).await.unwrap();
        pace
    })
}

/// Bytes of the data area that commands of a kind touched since the last call.
fn touched(world: &World, drive: usize, op: Op) -> u64 {
    let log = world.drives[drive].take_log();
    let data = log.iter().filter(|command| command.op == op && command.range.start >= world.data_at(0));
    data.map(|command| command.range.end - command.range.start).sum()
}

#[test]
fn ot_04_no_more_than_the_dirty_intent_chunks_is_copied() {
    for (level, members) in REDUNDANT {
        let mut world = world(4, level, members);
        world.fill();
        settle(&world);
        world.fail(1, IoKind::Gone).unwrap();
        // 1 % of the group in one contiguous range.
        let capacity = world.geometry().capacity_bytes();
        let (at, len) = (capacity / 2 / 512 * 512, capacity / 100 / 512 * 512);
        world.write_random(at, len).unwrap();
        let stripe = world.geometry().stripe_data_bytes();
        let dirty = world.shared.status().dirty_intents;
        let bit_bytes = if level == Level::Raid1 { 65536 } else { BIT };
        let written = (at + len).div_ceil(stripe) - at / stripe;
        assert!(dirty * bit_bytes <= written * u64::from(world.geometry().chunk_bytes()) + 2 * bit_bytes);
        world.readd(1, 1).unwrap();
        assert!(world.shared.status().slots[1].is_by_intents);
        assert!(world.shared.lacking_bytes(Slot(1)) <= dirty * bit_bytes, "{level}: what status promises");
        world.drives.iter().for_each(sim::SimDrive::start_log);
        let pace = rebuild(&world, 1);
        let copied = touched(&world, 1, Op::Write);
        assert!(copied > 0 && copied <= dirty * bit_bytes, "{level}: {copied} bytes for {dirty} bits");
        assert_eq!(pace.done_bytes.load(Ordering::Relaxed), pace.total_bytes.load(Ordering::Relaxed));
        for drive in (0..usize::from(members)).filter(|&drive| drive != 1) {
            assert!(touched(&world, drive, Op::Read) <= dirty * bit_bytes, "{level}: reads of drive {drive}");
        }
        assert!(world.shared.view().is_complete());
        world.check_contents("after the re-add");
        world.check_media("after the re-add");
        settle(&world);
    }
}

#[test]
fn both_members_of_a_raid_6_come_back_one_after_the_other() {
    for order in [[1, 3], [3, 1]] {
        for between in [false, true] {
            let mut world = world(5, Level::Raid6, 5);
            world.fill();
            settle(&world);
            for (n, slot) in [(0, 1), (1, 3)] {
                world.fail(slot, IoKind::Gone).unwrap();
                world.write_random(n * 50 * 3 * CHUNK, 4096).unwrap();
            }
            world.readd(order[0], usize::from(order[0])).unwrap();
            if between {
                // One is half way when the other comes.
                world.write_random(100 * 3 * CHUNK, 4096).unwrap();
                world.readd(order[1], usize::from(order[1])).unwrap();
                let group = world.group.clone();
                let ended = world.executor.block_on(async move {
                    group.rebuild_pending(|_| std::sync::Arc::new(Pace::default())).await
                });
                assert!(ended.len() == 2 && ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
            } else {
                rebuild(&world, order[0]);
                let group = world.group.clone();
                world.executor.block_on(async move {
                    for _ in 0..9 {
                        group.tick().await.unwrap()
                    }
                });
                assert!(world.shared.status().dirty_intents > 0, "S4: nothing is cleared while one is away");
                world.write_random(100 * 3 * CHUNK, 4096).unwrap();
                world.readd(order[1], usize::from(order[1])).unwrap();
                rebuild(&world, order[1]);
            }
            assert!(world.shared.view().is_complete());
            world.check_media("both are back");
            settle(&world);
            world.fail(order[0], IoKind::Gone).unwrap();
            world.fail((order[0] + 1) % 5, IoKind::Gone).unwrap();
            world.check_contents("without the first");
        }
    }
}

#[test]
fn s6_lost_blocks_of_a_member_that_comes_back_are_not_read_before_they_are_rewritten() {
    let mut world = world(6, Level::Raid5, 4);
    world.fill();
    settle(&world);
    world.fail(1, IoKind::Gone).unwrap();
    // A block of a region that nothing was written to: its contents are junk, and the list says so.
    let lost = 40 * CHUNK + 512..40 * CHUNK + 1024;
    let at = usize::try_from(world.data_at(lost.start)).unwrap();
    world.drives[1].medium()[at..at + 512].fill(0x5a);
    let group = world.group.clone();
    let member = raid_core::view::Member { state: MemberState::Rebuilding, ..returned(&world, 1) };
    let range = lost.clone();
    world
        .executor
        .block_on(async move { group.readd_member(Slot(1), member, std::slice::from_ref(&range)).await })
        .unwrap();
    world.check_contents("before the rebuild");
    rebuild(&world, 1);
    assert!(world.shared.status().slots[1].bad_blocks.is_empty(), "rewritten, so no longer lost");
    world.check_contents("after it");
    world.check_media("after it");
}

fn returned(world: &World, slot: u8) -> raid_core::view::Member {
    let mut member = world.shared.view().member(Slot(slot)).clone();
    member.drive = Some(raid_core::ports::DriveKey(u64::from(slot)));
    member
}

#[test]
fn a_group_without_intent_bits_takes_nobody_back_by_them() {
    let shape = Shape {
        level: Level::Raid5,
        members: 3,
        chunk_bytes: 2048,
        member_bytes: 8 * CHUNK,
        block: BlockSize::B512,
    };
    let mut world = World::new(1, shape);
    world.fail(0, IoKind::Gone).unwrap();
    assert_eq!(world.readd(0, 0).err(), Some(IoKind::Invalid));
}

/// Members go and come back at random, singly and two at once, under writes, flushes and the clearing of bits; whatever the
/// order, nobody is ever in sync with a stale block.
#[test]
fn m6_no_random_life_brings_a_stale_block_into_sync() {
    for seed in 0..60 {
        let (level, members) = REDUNDANT[usize::try_from(seed).unwrap() % REDUNDANT.len()];
        let mut world = world(100 + seed, level, members);
        world.set_latency(seed % 2 == 0);
        world.fill();
        let tolerated = u8::from(level == Level::Raid6) + 1;
        for round in 0..30 {
            let dice = world.executor.random_u64();
            let slot = u8::try_from(dice / 16 % u64::from(members)).unwrap();
            let view = world.shared.view();
            let missing = u8::try_from(view.missing()).unwrap();
            let rebuilding: Vec<Slot> =
                view.slots().filter(|&slot| view.member(slot).state == MemberState::Rebuilding).collect();
            match dice % 8 {
                0 if missing + u8::try_from(rebuilding.len()).unwrap() < tolerated
                    || view.member(Slot(slot)).state == MemberState::Rebuilding =>
                {
                    world.fail(slot, IoKind::Gone).unwrap();
                }
                1 | 2 if view.member(Slot(slot)).is_missing() => {
                    world.readd(slot, usize::from(slot)).unwrap();
                }
                3 if !rebuilding.is_empty() => churn(&mut world, dice.is_multiple_of(3)),
                4 => {
                    let group = world.group.clone();
                    world.executor.block_on(async move {
                        for _ in 0..7 {
                            group.tick().await.unwrap();
                        }
                    });
                }
                _ => {
                    let capacity = world.geometry().capacity_bytes();
                    let at = world.executor.random_u64() % (capacity / 512 - 40) * 512;
                    world.write_random(at, 512 * (1 + dice / 64 % 32)).unwrap();
                }
            }
            if round % 10 == 9 {
                let context = format!("seed {seed} round {round}");
                world.check_contents(&context);
                world.check_media(&context);
            }
        }
    }
}

/// A rebuild of everything that is to be rebuilt, with writes across its cursor; `is_cut`: it is stopped somewhere.
fn churn(world: &mut World, is_cut: bool) {
    let capacity = world.geometry().capacity_bytes();
    let writes: Vec<(u64, Vec<u8>)> = (0..6)
        .map(|_| (world.executor.random_u64() % (capacity / 512 - 8) * 512, world.random_bytes(2048)))
        .collect();
    for (at, data) in &writes {
        let at = usize::try_from(*at).unwrap();
        world.model[at..at + data.len()].copy_from_slice(data);
    }
    let (group, writer) = (world.group.clone(), world.lane(1));
    let pace = std::sync::Arc::new(Pace::default());
    let cancel = std::sync::Arc::clone(&pace);
    let done = Rc::new(std::cell::Cell::new(false));
    let told = Rc::clone(&done);
    raid_core::ports::Env::spawn(&world.env, async move {
        for (at, data) in writes {
            write_slice(&writer, at, &data, raid_core::ports::Durability::Cached).await.unwrap();
        }
        cancel.cancel.store(is_cut, Ordering::Relaxed);
        told.set(true);
    });
    world.executor.block_on(async move {
        let ended = group.rebuild_pending(|_| std::sync::Arc::clone(&pace)).await;
        assert!(is_cut || ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
        // The writes of the other lane too.
        while !done.get() {
            let clock = raid_core::ports::Env::clock(group.env());
            let soon = raid_core::ports::Clock::now_ns(clock) + 10_000;
            raid_core::ports::Clock::sleep_until(clock, soon).await;
        }
    });
}

#[test]
fn space_that_is_all_zero_is_zeroed_on_the_target_and_not_written() {
    for (level, members) in REDUNDANT {
        let mut world = world(7, level, members);
        // One block of data in the whole group; the new drive is full of junk.
        let at = world.geometry().capacity_bytes() / 3 / 4096 * 4096;
        world.write_random(at, 512).unwrap();
        world.fail(1, IoKind::Gone).unwrap();
        world.replace(1).unwrap();
        let target = usize::from(members);
        let junk = world.random_bytes(u64::try_from(world.drives[target].medium().len()).unwrap());
        world.drives[target].medium().copy_from_slice(&junk);
        world.drives[target].start_log();
        rebuild(&world, 1);
        let log = world.drives[target].take_log();
        let bytes = |op| {
            let of_op =
                log.iter().filter(|command| command.op == op && command.range.start >= world.data_at(0));
            of_op.map(|command| command.range.end - command.range.start).sum::<u64>()
        };
        let row = u64::from(world.geometry().chunk_bytes());
        assert!(bytes(Op::Write) <= row, "{level}: {} written", bytes(Op::Write));
        assert_eq!(bytes(Op::Write) + bytes(Op::Zero), world.geometry().member_bytes(), "{level}");
        world.check_contents("after the rebuild");
        world.check_media("after the rebuild");
    }
}
