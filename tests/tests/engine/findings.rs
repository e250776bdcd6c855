//! What a scrub found, and a member that is lost after it: nothing is computed from what is known to be wrong (RAID 6).

use raid_core::engine::{Pace, ScrubMode, ScrubState, What};
use raid_core::geometry::{Level, Place, Role};
use raid_core::ports::IoKind;
use raid_core::units::{DataIndex, Slot, Stripe, usize_of};
use sim::World;

use crate::scrub::{CHUNK, filled, flip, scrub};

fn tell(world: &World, found: &ScrubState) {
    world.shared.set_findings(found.findings.iter());
}

/// RAID 6 with a standing finding and one member out: what is known to be wrong is no source, for reads, for partial writes
/// and for the rebuild.
#[test]
fn p4_a_lost_member_is_not_computed_from_a_block_a_scrub_found_wrong() {
    let mut was_wrong = 0;
    for wrong in 0..5 {
        for gone in (0..5).filter(|&gone| gone != wrong) {
            for stripe in [2, 5] {
                let mut world = filled(Level::Raid6, 5);
                let geometry = world.geometry();
                let right = world.model.clone();
                flip(&world, wrong, stripe * CHUNK + 700, 0x41);
                let found = scrub(&world, ScrubMode::Report);
                assert_eq!(found.findings.len(), 1);
                world.fail(gone, IoKind::Gone).unwrap();
                let Role::Data(index) = geometry.role(Stripe(stripe), Slot(gone)) else { continue };
                let place = Place { stripe: Stripe(stripe), index, column: 0 };
                let at = geometry.group_offset(place).0;
                let lost = usize_of(at)..usize_of(at + CHUNK);
                world.shared.set_findings([].iter());
                was_wrong += u32::from(world.read(at, CHUNK).unwrap() != right[lost.clone()]);
                tell(&world, &found);
                let context = format!("{wrong} wrong, {gone} gone, stripe {stripe}");
                assert_eq!(world.read(at, CHUNK).unwrap(), right[lost.clone()], "{context}");
                // A write beside it, in another row of blocks of the lost column, leaves it so.
                world.write_random(at, 512).unwrap();
                let read = world.read(at, CHUNK).unwrap();
                world.compare(at, &read, &context);
                world.replace(gone).unwrap();
                let group = world.group.clone();
                let rebuilt =
                    world.executor.block_on(async move { group.rebuild(Slot(gone), &Pace::default()).await });
                assert_eq!(rebuilt, Ok(()), "{context}");
                let read = world.read(at, CHUNK).unwrap();
                world.compare(at, &read, &context);
            }
        }
    }
    assert!(was_wrong > 5, "{was_wrong}: without what the scrub found it is computed wrong");
}

/// Where nobody can tell what is wrong the lost blocks are errors, exactly those; rewriting the row ends that.
#[test]
fn p4_a_lost_block_of_a_row_in_which_two_are_wrong_is_an_error_until_rewritten() {
    let mut world = filled(Level::Raid6, 5);
    let geometry = world.geometry();
    let stripe = Stripe(2);
    let data: Vec<Slot> = (0..3).map(|index| geometry.data_slot(stripe, DataIndex(index))).collect();
    for slot in &data[..2] {
        let at = usize_of(world.data_at(stripe.0 * CHUNK + 512));
        let noise = world.random_bytes(512);
        world.drives[slot.index()].medium()[at..at + 512].copy_from_slice(&noise);
    }
    let found = scrub(&world, ScrubMode::Report);
    assert_eq!(found.findings[0].what, What::Ambiguous);
    tell(&world, &found);
    world.fail(data[2].0, IoKind::Gone).unwrap();
    let place = Place { stripe, index: DataIndex(2), column: 0 };
    let at = geometry.group_offset(place).0;
    assert_eq!(world.read(at + 512, 512), Err(IoKind::BeyondTolerance));
    for block in [0, 2, 3] {
        let read = world.read(at + block * 512, 512).unwrap();
        world.compare(at + block * 512, &read, "beside it");
    }
    let row = stripe.0 * geometry.stripe_data_bytes();
    world.write_random(row, geometry.stripe_data_bytes()).unwrap();
    let read = world.read(row, geometry.stripe_data_bytes()).unwrap();
    world.compare(row, &read, "rewritten");
}

/// Where data block `index` of a stripe lies in the group.
fn place(world: &World, stripe: u64, index: u8) -> u64 {
    world.geometry().group_offset(Place { stripe: Stripe(stripe), index: DataIndex(index), column: 0 }).0
}

fn flip_data(world: &World, stripe: u64, index: u8, column: u64) {
    let slot = world.geometry().data_slot(Stripe(stripe), DataIndex(index)).0;
    flip(world, slot, stripe * CHUNK + column, 0x41);
}

fn compare_all(world: &World, context: &str) {
    let capacity = world.geometry().capacity_bytes();
    let read = world.read(0, capacity).unwrap();
    world.compare(0, &read, context);
}

/// A scrub located a block, a client rewrote it, and `--repair` then put the old difference back into the new block: a write
/// in part of a stripe had taken the wrong old contents into P and Q.
#[test]
fn s8_a_block_that_was_rewritten_after_it_was_located_stays_as_it_was_written() {
    for members in [4, 5, 7, 8] {
        for index in 0..members - 2 {
            let mut world = filled(Level::Raid6, members);
            flip_data(&world, 2, index, 700);
            assert_eq!(scrub(&world, ScrubMode::Report).findings[0].what, What::Located);
            let at = place(&world, 2, index) + 512;
            world.write_random(at, 512).unwrap();
            compare_all(&world, "rewritten");
            let mended = scrub(&world, ScrubMode::Repair);
            assert_eq!((mended.mismatched, mended.repaired_blocks), (0, 0), "{members} members");
            compare_all(&world, "after --repair");
        }
    }
}

/// The same without a scrub before: nobody knew. What is located then may be right, and `--repair` leaves it alone.
#[test]
fn s8_a_block_that_was_rewritten_before_anybody_saw_that_it_was_wrong_is_not_repaired() {
    for members in [7, 8] {
        for index in 0..members - 2 {
            let mut world = filled(Level::Raid6, members);
            flip_data(&world, 2, index, 700);
            world.write_random(place(&world, 2, index) + 512, 512).unwrap();
            let mended = scrub(&world, ScrubMode::Repair);
            assert_eq!((mended.mismatched, mended.repaired_blocks), (1, 0));
            assert_eq!(mended.findings[0].what, What::Suspected);
            compare_all(&world, "what was acknowledged is what is read");
            let mended = scrub(&world, ScrubMode::AssumeDataRight);
            assert_eq!(mended.repaired_blocks, 1);
            compare_all(&world, "after the data was declared right");
            assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0);
        }
    }
}

/// A write beside a block that is known to be wrong made the parity from it: nothing could tell any more that it was wrong.
#[test]
fn s8_a_write_beside_a_located_block_leaves_it_to_be_repaired() {
    for members in [4, 5, 7] {
        for index in 1..members - 2 {
            let mut world = filled(Level::Raid6, members);
            flip_data(&world, 2, 0, 700);
            assert_eq!(scrub(&world, ScrubMode::Report).findings.len(), 1);
            world.write_random(place(&world, 2, index) + 512, 512).unwrap();
            let mended = scrub(&world, ScrubMode::Repair);
            assert_eq!((mended.mismatched, mended.repaired_blocks), (1, 1), "{members}, {index}");
            compare_all(&world, "after --repair");
        }
    }
}

/// What was found on a drive that was replaced since stood in the way of the new one's blocks.
#[test]
fn p4_what_was_found_wrong_leaves_with_its_member() {
    let mut world = filled(Level::Raid6, 5);
    flip_data(&world, 2, 0, 700);
    let found = scrub(&world, ScrubMode::Report);
    let wrong = found.findings[0].slots[0];
    world.fail(wrong.0, IoKind::Gone).unwrap();
    world.replace(wrong.0).unwrap();
    let group = world.group.clone();
    world.executor.block_on(async move { group.rebuild(wrong, &Pace::default()).await }).unwrap();
    assert!(!world.shared.is_standing(&found.findings[0]));
    for slot in (0..5).filter(|&slot| slot != wrong.0).take(2) {
        world.fail(slot, IoKind::Gone).unwrap();
    }
    compare_all(&world, "two others lost");
}

/// A finding that is remembered from before a start may be about blocks that were rewritten since: they are compared anew.
#[test]
fn p4_a_finding_that_is_no_longer_true_is_forgotten() {
    let mut world = filled(Level::Raid6, 5);
    flip_data(&world, 2, 0, 700);
    flip_data(&world, 2, 1, 701);
    let found = scrub(&world, ScrubMode::Report);
    assert_eq!(found.findings[0].what, What::Ambiguous);
    world.fill();
    assert!(!world.shared.is_standing(&found.findings[0]), "rewritten");
    tell(&world, &found);
    assert!(world.shared.is_standing(&found.findings[0]), "as after a start");
    let group = world.group.clone();
    let stripes = found.findings.iter().map(|finding| finding.stripe).collect::<Vec<_>>();
    world.executor.block_on(async move { group.look_again(stripes.into_iter()).await }).unwrap();
    assert!(!world.shared.is_standing(&found.findings[0]));
    world.fail(1, IoKind::Gone).unwrap();
    compare_all(&world, "a member lost");
}

/// Whatever goes wrong at rest, whatever is written and scrubbed in any order: `--repair` never changes what a client wrote
/// and was told is written.
#[test]
fn s8_repair_never_changes_an_acknowledged_byte() {
    for seed in 0..60 {
        let members = [4, 5, 6, 7, 8][usize_of(seed % 5)];
        let mut world = filled(Level::Raid6, members);
        let mut random = seed * 77 + 5;
        let mut next = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        let capacity = world.geometry().capacity_bytes();
        let mut written: Vec<bool> = vec![false; usize_of(capacity / 512)];
        for _ in 0..24 {
            match next(4) {
                0 => {
                    let slot = u8::try_from(next(u64::from(members))).unwrap();
                    let at = next(world.geometry().stripes()) * CHUNK + next(CHUNK);
                    flip(&world, slot, at, 0x5a);
                    // What had been written there has gone wrong at rest: that is not what this is about.
                    if let Role::Data(index) = world.geometry().role(Stripe(at / CHUNK), Slot(slot)) {
                        let block = (place(&world, at / CHUNK, index.0) + at % CHUNK) / 512;
                        written[usize_of(block)] = false;
                    }
                }
                1 => drop(scrub(&world, ScrubMode::Report)),
                2 => drop(scrub(&world, ScrubMode::Repair)),
                _ => {
                    let from = next(capacity / 512);
                    let blocks = (1 + next(7)).min(capacity / 512 - from);
                    world.write_random(from * 512, blocks * 512).unwrap();
                    written[usize_of(from)..usize_of(from + blocks)].fill(true);
                }
            }
            for (block, _) in written.iter().enumerate().filter(|(_, is_written)| **is_written) {
                let at = u64::try_from(block).unwrap() * 512;
                let read = world.read(at, 512).unwrap();
                world.compare(at, &read, &format!("seed {seed}, block {block}"));
            }
        }
    }
}

/// One block that cannot be read, in a stripe that a crash left in doubt, ended the resync of the whole group for ever.
#[test]
fn s1_a_stripe_that_cannot_be_read_stands_in_the_way_of_no_other() {
    for level in [Level::Raid5, Level::Raid6] {
        let all = 0..8;
        let mut world = World::with(7, crate::scrub::shape(level, 5), |config| {
            config.unsynced = vec![all.clone()];
            config.dirty = vec![all.clone()];
        });
        world.set_latency(false);
        world.fill();
        let slot = world.geometry().data_slot(Stripe(2), DataIndex(1)).0;
        let at = world.data_at(2 * CHUNK + 512);
        world.drives[usize::from(slot)].make_unreadable(at..at + 512);
        let resync = |world: &World| {
            let group = world.group.clone();
            world.executor.block_on(async move { group.resync(&Pace::default()).await })
        };
        assert_eq!(resync(&world), Ok(1), "{level}: the others are synced");
        let lost = place(&world, 2, 1) + 512;
        assert!(world.read(lost, 512).is_err());
        world.write_random(lost, 512).unwrap();
        assert_eq!(resync(&world), Ok(0), "{level}: written again");
        compare_all(&world, "synced");
        assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0);
    }
}

/// Rows in which nobody can tell what is wrong, rewritten bit by bit: the last write makes the row whole, and what was written is
/// safe from the loss of members then.
#[test]
fn p4_a_row_in_doubt_that_is_rewritten_block_by_block_is_whole_in_the_end() {
    for (members, order) in [(5, [2, 0, 1]), (5, [0, 1, 2]), (4, [1, 0, 0])] {
        let mut world = filled(Level::Raid6, members);
        flip_data(&world, 2, 0, 700);
        flip_data(&world, 2, 1, 701);
        let found = scrub(&world, ScrubMode::Report);
        assert_eq!(found.findings[0].what, What::Ambiguous);
        for index in order {
            world.write_random(place(&world, 2, index) + 512, 512).unwrap();
            compare_block(&world, place(&world, 2, index) + 512);
        }
        assert!(!world.shared.is_standing(&found.findings[0]), "{members} members, {order:?}");
        assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0);
        for slot in 0..2 {
            world.fail(slot, IoKind::Gone).unwrap();
        }
        compare_all(&world, "two members lost");
    }
}

fn compare_block(world: &World, at: u64) {
    let read = world.read(at, 512).unwrap();
    world.compare(at, &read, "just written");
}
