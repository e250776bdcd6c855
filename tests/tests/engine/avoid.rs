//! Reads around members that are avoided: slow ones that sit out, write-mostly ones; what writes read. Whatever way a read goes, it is right.

use raid_core::geometry::Level;
use raid_core::ports::IoKind;
use raid_core::units::{BlockSize, Slot, usize_of};
use sim::{Op, Shape, World};

const CHUNK: u64 = 2048;

const REDUNDANT: [(Level, u8); 5] =
    [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)];

fn world(level: Level, members: u8, unsynced: bool) -> World {
    let (chunk_bytes, member_bytes) = if level == Level::Raid1 { (0, 3 * 65536) } else { (2048, 8 * CHUNK) };
    let shape = Shape { level, members, chunk_bytes, member_bytes, block: BlockSize::B512 };
    let mut world = World::with(11, shape, |config| {
        if unsynced {
            config.unsynced.push(0..config.geometry.stripes());
        }
    });
    world.set_latency(false);
    world.fill();
    world
}

fn avoid(world: &World, slots: &[u8]) {
    world.shared.set_avoided(|slot| slots.contains(&slot.0));
}

fn reads(world: &World, slot: u8) -> u64 {
    world.shared.status().slots[usize::from(slot)].reads
}

#[test]
fn an_avoided_member_is_not_read_and_is_written_as_ever() {
    for (level, members) in REDUNDANT {
        for slot in 0..members {
            let mut world = world(level, members, false);
            let before = reads(&world, slot);
            world.check_contents("healthy");
            assert!(
                reads(&world, slot) > before || level.parities() == 0,
                "{level}: the test reads everything"
            );
            avoid(&world, &[slot]);
            assert!(
                world.shared.is_avoided(Slot(slot)) && !world.shared.is_avoided(Slot((slot + 1) % members))
            );
            let before = reads(&world, slot);
            world.check_contents("around the avoided member");
            assert_eq!(reads(&world, slot), before, "{level} {slot}");
            let capacity = world.geometry().capacity_bytes();
            for at in (0..capacity).step_by(1024) {
                world.write_random(at, 1024).unwrap();
            }
            assert_eq!(
                reads(&world, slot),
                before,
                "{level} {slot}: partial-stripe writes do without it too"
            );
            world.check_contents("after writes");
            avoid(&world, &[]);
            world.check_contents("read from it again");
            world.check_media("it was written all the time");
            assert_eq!(world.shared.view().missing(), 0);
        }
    }
}

#[test]
fn raid6_reads_around_two_members_and_raid0_reads_everybody() {
    let six = world(Level::Raid6, 5, false);
    avoid(&six, &[1, 3]);
    let before = (reads(&six, 1), reads(&six, 3));
    six.check_contents("around two");
    assert_eq!((reads(&six, 1), reads(&six, 3)), before);
    let zero = world(Level::Raid0, 3, false);
    avoid(&zero, &[1]);
    let before = reads(&zero, 1);
    zero.check_contents("no redundancy");
    assert!(reads(&zero, 1) > before);
}

#[test]
fn s1_where_parity_or_copies_may_not_match_the_member_itself_is_read() {
    for (level, members) in REDUNDANT {
        for slot in 0..members {
            let world = world(level, members, true);
            // Resync reads the lowest copy of a mirror; the others may hold anything. Of a parity stripe, the parity may.
            let geometry = world.geometry();
            if level.parities() > 0 {
                for stripe in (0..geometry.stripes()).map(raid_core::units::Stripe) {
                    let places = geometry.parity_slots(stripe);
                    for parity in places.p.into_iter().chain(places.q) {
                        let at = world.data_at(geometry.member_offset(stripe, 0));
                        let at = usize_of(at)..usize_of(at + CHUNK);
                        world.drives[parity.index()].medium()[at].fill(0x5a);
                    }
                }
            }
            avoid(&world, &[slot]);
            world.check_contents("not in sync");
        }
    }
}

#[test]
fn p4_when_the_way_around_fails_the_avoided_member_is_read() {
    // Two other members cannot read the same columns: the avoided one has its own block.
    for kind in [IoKind::Medium, IoKind::Gone] {
        let world = world(Level::Raid5, 4, false);
        for other in [2_usize, 3] {
            let is_first = other == 2;
            world.drives[other].set_hook(move |command| {
                (command.op == Op::Read && (is_first || kind == IoKind::Medium)).then_some(kind)
            });
        }
        avoid(&world, &[1]);
        let geometry = world.geometry();
        let mut looked_at = 0;
        for stripe in (0..geometry.stripes()).map(raid_core::units::Stripe) {
            for index in (0..geometry.data_columns()).map(raid_core::units::DataIndex) {
                if geometry.data_slot(stripe, index) == Slot(1) {
                    let at = stripe.0 * geometry.stripe_data_bytes() + u64::from(index.0) * CHUNK;
                    let read = world.read(at, CHUNK).unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
                    world.compare(at, &read, "its own blocks");
                    looked_at += 1;
                }
            }
        }
        assert!(looked_at > 0);
        assert!(!world.shared.view().member(Slot(1)).is_missing());
    }
}

#[test]
fn a_write_mostly_copy_is_read_only_when_no_other_can_be() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)] {
        for slot in 0..members {
            let mut world = world(level, members, false);
            world.shared.set_write_mostly(|other| other == Slot(slot));
            let before = reads(&world, slot);
            world.check_contents("from the others");
            let capacity = world.geometry().capacity_bytes();
            for at in (0..capacity).step_by(8192) {
                world.write_random(at, 1024).unwrap();
            }
            // Even from one that is slow.
            avoid(&world, &[slot ^ 1]);
            world.check_contents("from a slow one");
            assert_eq!(reads(&world, slot), before, "{level} {slot}");
            world.check_media("it is written as ever");
            // Until it is all there is.
            for other in
                (0..members).filter(|&other| level == Level::Raid1 && other != slot || other == slot ^ 1)
            {
                world.fail(other, IoKind::Gone).unwrap();
            }
            world.check_contents("from what is left");
            assert!(reads(&world, slot) > before, "{level} {slot}");
        }
    }
}

#[test]
fn s1_an_unsynced_mirror_is_read_from_its_source_even_if_that_is_write_mostly() {
    let world = world(Level::Raid1, 2, true);
    world.shared.set_write_mostly(|slot| slot == Slot(0));
    let before = reads(&world, 1);
    world.check_contents("not in sync");
    assert_eq!(reads(&world, 1), before, "the other copy may hold anything");
}
