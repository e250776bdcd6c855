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
