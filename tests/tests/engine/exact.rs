//! The engine against a plain model, byte by byte, in small worlds: every level, widths, both block sizes, chunks of four
//! blocks, healthy and with every tolerated loss; after each scenario the media are compared with an independent sum.

use raid_core::engine::Pace;
use raid_core::geometry::{Geometry, Level};
use raid_core::ports::IoKind;
use raid_core::units::{BlockSize, GroupOffset, Slot};
use sim::{Shape, World};

const STRIPES: u64 = 5;

fn shape(level: Level, members: u8, block: BlockSize) -> Shape {
    let block_bytes = u64::from(block.bytes());
    let (chunk_bytes, member_bytes) = match level {
        // Two rows and a short one of three blocks.
        Level::Raid1 => (0, 2 * 65536 + 3 * block_bytes),
        _ => (4 * block.bytes(), STRIPES * 4 * block_bytes),
    };
    Shape { level, members, chunk_bytes, member_bytes, block }
}

fn still(seed: u64, shape: Shape) -> World {
    let world = World::new(seed, shape);
    world.set_latency(false);
    world
}

/// Offsets within three blocks of an edge, in bytes.
fn offsets(world: &World, edge: u64, block: u64) -> Vec<u64> {
    let capacity = world.geometry().capacity_bytes();
    let near = |at: &u64| {
        let behind = at % edge / block;
        behind <= 3 || edge / block - behind <= 3 || capacity - at <= 3 * block
    };
    (0..capacity / block).map(|n| n * block).filter(near).collect()
}

/// Every offset near an edge times every length from one block to three stripes: write, read back, sometimes all.
fn exhaust(level: Level, members: u8, block: BlockSize) {
    let mut world = still(1, shape(level, members, block));
    let block = u64::from(block.bytes());
    let geometry = world.geometry();
    let capacity = geometry.capacity_bytes();
    world.fill();
    let mut done = 0_u32;
    for at in offsets(&world, u64::from(geometry.chunk_bytes()), block) {
        let longest = (3 * geometry.stripe_data_bytes()).min(capacity - at);
        let mut len = block;
        while len <= longest {
            world.write_random(at, len).unwrap();
            let first = at.saturating_sub(block);
            let read = world.read(first, (len + 2 * block).min(capacity - first)).unwrap();
            world.compare(first, &read, "after a write");
            done += 1;
            if done.is_multiple_of(500) {
                world.check_contents("now and then");
                world.check_media("now and then");
            }
            // RAID 1 has rows of 64 KiB whatever the block: only ends near their edges are of interest.
            let end = (at + len) % u64::from(geometry.chunk_bytes()) / block;
            let blocks_left = u64::from(geometry.chunk_bytes()) / block - end;
            let is_far = level == Level::Raid1 && end > 3 && blocks_left > 4;
            len += if is_far { block * (blocks_left - 4) } else { block };
        }
    }
    world.check_contents("at the end");
    world.check_media("at the end");
}

#[test]
fn mk_05_every_offset_and_length_raid0() {
    [2, 3, 8].into_iter().for_each(|members| exhaust(Level::Raid0, members, BlockSize::B512));
    exhaust(Level::Raid0, 3, BlockSize::B4096);
}

#[test]
fn mk_05_every_offset_and_length_raid1() {
    exhaust(Level::Raid1, 2, BlockSize::B512);
    exhaust(Level::Raid1, 3, BlockSize::B4096);
}

#[test]
fn mk_05_every_offset_and_length_raid5() {
    [3, 4, 5, 8].into_iter().for_each(|members| exhaust(Level::Raid5, members, BlockSize::B512));
    exhaust(Level::Raid5, 4, BlockSize::B4096);
}

#[test]
fn mk_05_every_offset_and_length_raid6() {
    [4, 5, 6, 7, 8].into_iter().for_each(|members| exhaust(Level::Raid6, members, BlockSize::B512));
    exhaust(Level::Raid6, 4, BlockSize::B4096);
}

#[test]
fn mk_05_every_offset_and_length_raid10() {
    [4, 6, 8].into_iter().for_each(|members| exhaust(Level::Raid10, members, BlockSize::B512));
    exhaust(Level::Raid10, 4, BlockSize::B4096);
}

/// Every set of one and two slots (RAID 10: up to one of every pair) the group survives.
fn survivable(geometry: &Geometry) -> Vec<Vec<u8>> {
    let n = geometry.members();
    (1_u32..1 << n)
        .map(|mask| (0..n).filter(|slot| mask & (1 << slot) != 0).collect::<Vec<u8>>())
        .filter(|lost| geometry.is_readable(|slot| !lost.contains(&slot.0)))
        .filter(|lost| geometry.level() == Level::Raid10 || lost.len() <= 2)
        .collect()
}

/// Offsets and lengths of every class: inside a chunk, across chunks, across stripes, full stripes, the end.
fn classes(world: &World, block: u64) -> Vec<(u64, u64)> {
    let geometry = world.geometry();
    let chunk = u64::from(geometry.chunk_bytes());
    let stripe = geometry.stripe_data_bytes();
    let capacity = geometry.capacity_bytes();
    let mut classes = vec![
        (0, block),
        (chunk - block, block),
        (chunk - block, 2 * block),
        (block, 2 * block),
        (0, stripe),
        (stripe, stripe),
        (stripe - block, 2 * block),
        (stripe - block, stripe + 2 * block),
        (block, stripe),
        (capacity - block, block),
        (capacity - stripe - block, stripe + block),
    ];
    // Every single data column of two rows, whole and in part: each lost slot is modified and not modified.
    for column in 0..u64::from(geometry.data_columns()) * 2 {
        classes.push((column * chunk, block));
        classes.push((column * chunk, chunk));
        classes.push((column * chunk + block, 2 * block));
    }
    classes.retain(|(at, len)| at + len <= capacity);
    classes
}

fn rebuild(world: &World, slot: u8) {
    let group = world.group.clone();
    world.executor.block_on(async move { group.rebuild(Slot(slot), &Pace::default()).await }).unwrap();
}

/// Degraded by `lost`: reads, writes of every class, zeroes; then rebuilt; media compared all along.
fn degrade(level: Level, members: u8, block: BlockSize, lost: &[u8]) {
    let context = format!("RAID {} of {members} without {lost:?}", level.number());
    let mut world = still(2, shape(level, members, block));
    world.fill();
    let block = u64::from(block.bytes());
    for &slot in lost {
        world.fail(slot, IoKind::Gone).unwrap();
    }
    world.check_contents(&context);
    for (at, len) in classes(&world, block) {
        world.write_random(at, len).unwrap();
        let read = world.read(at, len).unwrap();
        world.compare(at, &read, &context);
    }
    world.check_contents(&context);
    world.check_media(&context);
    for (at, len) in classes(&world, block) {
        world.zero(at, len).unwrap();
        let read = world.read(at, len).unwrap();
        world.compare(at, &read, &context);
        world.write_random(at, len).unwrap();
    }
    world.check_contents(&context);
    for &slot in lost {
        world.replace(slot).unwrap();
        rebuild(&world, slot);
    }
    assert!(world.shared.view().is_complete());
    world.check_media(&format!("{context}, rebuilt"));
    world.check_contents(&format!("{context}, rebuilt"));
}

fn degrade_all(level: Level, members: u8, block: BlockSize) {
    for lost in survivable(&still(0, shape(level, members, block)).geometry()) {
        degrade(level, members, block, &lost);
    }
}

#[test]
fn every_tolerated_loss_raid1() {
    degrade_all(Level::Raid1, 2, BlockSize::B4096);
    degrade_all(Level::Raid1, 3, BlockSize::B512);
}

#[test]
fn every_tolerated_loss_raid5() {
    [3, 4, 8].into_iter().for_each(|members| degrade_all(Level::Raid5, members, BlockSize::B512));
    degrade_all(Level::Raid5, 3, BlockSize::B4096);
}

#[test]
fn every_tolerated_loss_raid6() {
    [4, 5, 8].into_iter().for_each(|members| degrade_all(Level::Raid6, members, BlockSize::B512));
    degrade_all(Level::Raid6, 5, BlockSize::B4096);
}

#[test]
fn every_tolerated_loss_raid10() {
    [4, 6].into_iter().for_each(|members| degrade_all(Level::Raid10, members, BlockSize::B512));
    degrade_all(Level::Raid10, 4, BlockSize::B4096);
}

/// Whether a block has a source left.
fn is_served(geometry: &Geometry, at: u64, lost: &[u8]) -> bool {
    let place = geometry.place(GroupOffset(at));
    let first = geometry.data_slot(place.stripe, place.index).0;
    (first..first + geometry.copies()).any(|slot| !lost.contains(&slot))
}

/// Beyond tolerance: an error on exactly the blocks without a source; parity groups take no write at all, mirrors and
/// RAID 0 take those that have a live copy.
fn beyond(level: Level, members: u8, lost: &[u8]) {
    let context = format!("RAID {} of {members} without {lost:?}", level.number());
    let mut world = still(3, shape(level, members, BlockSize::B512));
    world.fill();
    for &slot in lost {
        world.fail(slot, IoKind::Gone).unwrap();
    }
    let geometry = world.geometry();
    let takes_writes = geometry.level().parities() == 0;
    for at in (0..geometry.capacity_bytes()).step_by(512) {
        let served = is_served(&geometry, at, lost);
        match world.read(at, 512) {
            Ok(read) if served => world.compare(at, &read, &context),
            Err(IoKind::BeyondTolerance) if !served => {}
            other => panic!("{context}: {other:?} at {at}, served: {served}"),
        }
        let wrote = world.write_random(at, 512);
        assert_eq!(wrote.is_ok(), served && takes_writes, "{context}: write at {at}");
        assert_eq!(world.zero(at, 512).is_ok(), served && takes_writes, "{context}: zero at {at}");
    }
    assert!(world.shared.status().is_offline);
}

#[test]
fn p4_beyond_tolerance_errors_on_exactly_the_affected_blocks() {
    beyond(Level::Raid0, 3, &[1]);
    beyond(Level::Raid1, 2, &[0, 1]);
    beyond(Level::Raid1, 2, &[1, 0]);
    beyond(Level::Raid5, 4, &[0, 2]);
    beyond(Level::Raid6, 5, &[0, 1, 4]);
    beyond(Level::Raid10, 4, &[2, 3]);
    beyond(Level::Raid10, 6, &[0, 5, 4]);
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut world = still(4, shape(Level::Raid5, 4, BlockSize::B512));
    let capacity = world.geometry().capacity_bytes();
    assert_eq!(world.read(256, 512), Err(IoKind::Invalid));
    assert_eq!(world.read(capacity, 512), Err(IoKind::Invalid));
    assert_eq!(world.read(capacity - 512, 1024), Err(IoKind::Invalid));
    assert_eq!(world.write(100, &[1; 512]), Err(IoKind::Invalid));
    assert_eq!(world.write(512, &[1; 100]), Err(IoKind::Invalid));
    assert_eq!(world.zero(capacity - 512, 1024), Err(IoKind::Invalid));
    assert_eq!(world.read(capacity, 0), Ok(Vec::new()));
    assert_eq!(world.write(0, &[]), Ok(()));
    world.check_contents("nothing was written");
}
