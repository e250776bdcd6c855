//! Arrays of md become groups of ours and go back: whatever a crash leaves is one or the other, never neither, and not one
//! byte of data is written on the way.

use raid_core::format::adopt::{AdoptDrive, AdoptPlan, plan_adopt};
use raid_core::format::anchor::{ANCHOR_AT, Anchor};
use raid_core::format::extension::Extension;
use raid_core::format::superblock::{IN_SYNC, SUPERBLOCK_START, Superblock};
use raid_core::geometry::Level;
use raid_core::membership::{
    AdoptFailed, AdoptMember, Decision, MdMember, Observation, Policy, Refusal, ReleaseFailed, StartParts,
    adopt, decide, read_md, release, stop,
};
use raid_core::ports::{DriveKey, Env, IoError, IoKind};
use raid_core::units::{Slot, Uuid};

use crate::world::{Image, MIB, World, every_crash, forced, handles, shapes, waited};

const SLOT: core::ops::Range<u64> = SUPERBLOCK_START..SUPERBLOCK_START + 4096;

fn superblock(world: &World, drive: usize) -> Superblock {
    Superblock::decode(&world.drive(drive).peek(SLOT)).unwrap()
}

/// Stops and releases; what stayed behind.
fn try_release(world: &World, parts: StartParts) -> Result<Vec<(Slot, IoError)>, ReleaseFailed> {
    world.run(|env| async move {
        let drives = handles(&env, &parts.view);
        stop(&env, &parts.meta, &parts.view, &drives, true).await.unwrap();
        release(&env, &parts.meta, &parts.view, &drives).await
    })
}

fn plan_of(world: &World, drives: &[usize]) -> (AdoptPlan, Vec<AdoptMember<crate::world::TestDrive>>) {
    let found: Vec<(usize, AdoptDrive, Vec<u8>)> = drives
        .iter()
        .map(|&n| {
            let drive = world.drive(n);
            match world.run(|env| async move { read_md(&env, &drive).await }).unwrap() {
                MdMember::Found { drive, slot } => (n, AdoptDrive { name: format!("d{n}"), ..*drive }, slot),
                other => panic!("d{n}: {other:?}"),
            }
        })
        .collect();
    let list: Vec<AdoptDrive> = found.iter().map(|(_, drive, _)| drive.clone()).collect();
    let plan = plan_adopt(&list).unwrap_or_else(|error| panic!("{error}"));
    let slots = (0u8..).map(Slot).zip(&plan.slots);
    let members = slots
        .filter_map(|(slot, planned)| {
            let (n, drive, bytes) = &found[planned.drive?];
            let superblock = drive.superblock.clone();
            Some(AdoptMember { slot, drive: world.drive(*n), superblock, bytes: bytes.clone() })
        })
        .collect();
    (plan, members)
}

/// As the daemon does it: what the host remembered of the group is of another life.
fn try_adopt(world: &World, drives: &[usize]) -> Result<(), AdoptFailed> {
    *world.env.witness.borrow_mut() = None;
    let (plan, members) = plan_of(world, drives);
    world.run(|env| async move { adopt(&env, &plan, "taken", &members).await })
}

/// Puts recognisable bytes into every member's data, first and last sector; gives what is there.
fn mark_data(world: &World, n: usize) -> Vec<Vec<u8>> {
    for drive in 0..n {
        let sb = superblock(world, drive);
        let mark = vec![0xa0 | u8::try_from(drive).unwrap(); 512];
        for sector in [sb.data_offset, sb.data_offset + sb.data_size - 1] {
            world.drive(drive).poke(sector * 512, &mark);
        }
    }
    data(world, n)
}

fn data(world: &World, n: usize) -> Vec<Vec<u8>> {
    (0..n)
        .map(|drive| {
            let sb = superblock(world, drive);
            let start = sb.data_offset * 512;
            world.drive(drive).peek(start..start + sb.data_size * 512)
        })
        .collect()
}

/// A group of ours that was released: an array of md.
fn released(seed: u64, level: Level, n: usize) -> (World, Uuid) {
    let world = World::new(seed, n);
    let group = world.create(level, n, true);
    let parts = world.start(group, &(0..n).collect::<Vec<_>>(), Policy::default());
    mark_data(&world, n);
    assert_eq!(try_release(&world, parts), Ok(Vec::new()));
    *world.env.witness.borrow_mut() = None;
    (world, group)
}

/// What md would see: every superblock without the claim, clean, at one number of events.
fn is_md(world: &World, n: usize) -> bool {
    let events = superblock(world, 0).events;
    (0..n)
        .map(|drive| superblock(world, drive))
        .all(|sb| !sb.is_claimed() && sb.resync_offset == IN_SYNC && sb.events == events)
}

fn has_traces(world: &World, drive: usize) -> bool {
    let sb = superblock(world, drive);
    let before = world.drive(drive).peek(0..sb.data_offset * 512);
    let is_copy = |at: usize| Extension::decode(&before[at..]).is_ok();
    Anchor::is_there(&before[4096 + ANCHOR_AT..]) || (0..before.len()).step_by(4096).any(is_copy)
}

#[test]
fn a_released_group_is_an_array_of_md_without_a_trace_and_comes_back() {
    for (level, n) in shapes() {
        let (world, group) = released(71, level, n);
        let all: Vec<usize> = (0..n).collect();
        assert!(is_md(&world, n), "{level} of {n}");
        let before = data(&world, n);
        let sectors: Vec<Superblock> = all.iter().map(|&drive| superblock(&world, drive)).collect();
        for drive in 0..n {
            assert!(!has_traces(&world, drive), "{level} of {n}");
            assert!(matches!(world.observe(&[drive])[0].what, Observation::PlainMd(_)));
        }
        try_adopt(&world, &all).unwrap();
        for (drive, md) in sectors.iter().enumerate() {
            let mut now = superblock(&world, drive);
            assert!(now.is_claimed());
            now.set_claimed(false);
            assert_eq!(now, *md, "{level} of {n}: the adopt changes the claim and nothing else");
        }
        let parts = world.start(group, &all, Policy::default());
        assert!(
            parts.view.is_complete() && parts.warnings.is_empty(),
            "{level} of {n}: {:?}",
            parts.warnings
        );
        assert!(parts.bitmap.as_ref().is_none_or(|bitmap| bitmap.bits.dirty() == 0));
        assert_eq!(data(&world, n), before, "{level} of {n}");
        // And away again; md's counter only ever goes up.
        let events = superblock(&world, 0).events;
        assert_eq!(try_release(&world, parts), Ok(Vec::new()));
        assert!(is_md(&world, n) && superblock(&world, 0).events > events);
        assert_eq!(data(&world, n), before, "{level} of {n}");
    }
}

/// Whatever is left is ours as soon as all members are there, md's, or (between the two) startable by nobody alone.
fn check_either(world: &World, group: Uuid, n: usize, context: &str) -> Option<bool> {
    let all: Vec<usize> = (0..n).collect();
    let claimed = all.iter().filter(|&&drive| superblock(world, drive).is_claimed()).count();
    let decision = decide(group, &world.observe(&all), None, Policy::default());
    match &decision {
        Decision::Start(_) => assert!(claimed > 0, "{context}: started without any claim"),
        Decision::Refuse(Refusal::OwnedByMd { .. } | Refusal::NoMembers { .. }) => {
            assert!(claimed == 0 && is_md(world, n), "{context}: neither ours nor md's");
        }
        other => panic!("{context}: {other}"),
    }
    if claimed > 0 && claimed < n {
        for away in 0..n {
            let here: Vec<usize> = all.iter().copied().filter(|&drive| drive != away).collect();
            match decide(group, &world.observe(&here), None, waited()) {
                Decision::Refuse(Refusal::HalfHandedOver { missing, .. }) => {
                    assert_eq!(missing.len(), 1, "{context}");
                }
                // The one that is away has the only claim.
                Decision::Refuse(Refusal::OwnedByMd { .. } | Refusal::NoMembers { .. }) => {}
                other => panic!("{context}: without drive {away}: {other}"),
            }
        }
    }
    match decision {
        Decision::Start(_) => Some(claimed < n),
        _ => None,
    }
}

#[test]
fn a_crash_in_an_adopt_leaves_an_array_of_md_or_a_group_of_ours() {
    for (level, n) in [(Level::Raid0, 2), (Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        let (world, group) = released(72, level, n);
        let all: Vec<usize> = (0..n).collect();
        let (before, bytes) = (world.images(), data(&world, n));
        let sectors: Vec<Superblock> = all.iter().map(|&drive| superblock(&world, drive)).collect();
        world.record();
        try_adopt(&world, &all).unwrap();
        let (mut md, mut ours, mut between) = (0, 0, 0);
        let seen = every_crash(&world, &before, |world, context| {
            let context = format!("{level} {context}");
            let left: Vec<Image> = world.images();
            match check_either(world, group, n, &context) {
                None => {
                    md += 1;
                    let now: Vec<Superblock> = all.iter().map(|&drive| superblock(world, drive)).collect();
                    assert_eq!(now, sectors, "{context}: md's own record changed");
                }
                Some(is_between) => {
                    ours += 1;
                    between += usize::from(is_between);
                    *world.env.witness.borrow_mut() = None;
                    let parts = world.start(group, &all, Policy::default());
                    assert!(parts.view.is_complete(), "{context}");
                    assert!(all.iter().all(|&drive| superblock(world, drive).is_claimed()), "{context}");
                    world.set_images(&left);
                }
            }
            assert_eq!(data(world, n), bytes, "{context}");
            // The same command again ends it, from wherever it was cut.
            try_adopt(world, &all).unwrap_or_else(|error| panic!("{context}: {error}"));
            let parts = world.start(group, &all, Policy::default());
            assert!(parts.view.is_complete(), "{context}");
        });
        assert!(md > 0 && ours > 0 && between > 0, "{level}: {md}, {ours}, {between} of {seen}");
    }
}

#[test]
fn a_crash_in_a_release_leaves_a_group_of_ours_or_an_array_of_md() {
    for (level, n) in [(Level::Raid0, 2), (Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        let world = World::new(73, n);
        let group = world.create(level, n, true);
        let all: Vec<usize> = (0..n).collect();
        let parts = world.start(group, &all, Policy::default());
        let bytes = mark_data(&world, n);
        let before = world.images();
        world.record();
        assert_eq!(try_release(&world, parts), Ok(Vec::new()));
        let witness = world.witness();
        let (mut md, mut ours, mut between) = (0, 0, 0);
        let seen = every_crash(&world, &before, |world, context| {
            let context = format!("{level} {context}");
            let left: Vec<Image> = world.images();
            match check_either(world, group, n, &context) {
                None => {
                    md += 1;
                    // md's or not, it can be adopted, whatever traces stayed behind.
                    try_adopt(world, &all).unwrap_or_else(|error| panic!("{context}: {error}"));
                }
                Some(is_between) => {
                    ours += 1;
                    between += usize::from(is_between);
                    world.env.witness.borrow_mut().clone_from(&witness);
                }
            }
            let parts = world.start(group, &all, Policy::default());
            assert!(parts.view.is_complete(), "{context}");
            assert_eq!(data(world, n), bytes, "{context}");
            // md writes to a member that has no claim: that one belongs to md, and the others do not start without it.
            world.set_images(&left);
            let open: Vec<usize> =
                all.iter().copied().filter(|&d| !superblock(world, d).is_claimed()).collect();
            if let Some(&drive) = open.first().filter(|_| open.len() < n) {
                let mut written = superblock(world, drive);
                written.utime += 7;
                world.drive(drive).poke(SUPERBLOCK_START, &written.encode());
                assert!(matches!(world.observe(&[drive])[0].what, Observation::PlainMd(_)), "{context}");
                let refused = decide(group, &world.observe(&all), None, waited());
                let Decision::Refuse(Refusal::HalfHandedOver { missing, .. }) = refused else {
                    panic!("{context}: {refused}")
                };
                assert_eq!(missing.len(), 1, "{context}");
                if level.is_redundant() {
                    let forced = decide(group, &world.observe(&all), None, forced());
                    assert!(matches!(forced, Decision::Start(_)), "{context}: {forced}");
                }
            }
        });
        assert!(md > 0 && ours > 0 && between > 0, "{level}: {md}, {ours}, {between} of {seen}");
    }
}

#[test]
fn a_drive_that_fails_during_an_adopt_leaves_the_array_to_md() {
    let (mut failed, mut done) = (0, 0);
    for (bad, writes) in (0..3).flat_map(|bad| (0..8).map(move |writes| (bad, writes))) {
        let (world, group) = released(74, Level::Raid5, 3);
        let before: Vec<Superblock> = (0..3).map(|drive| superblock(&world, drive)).collect();
        world.drive(bad).fail_writes_with(IoKind::Medium);
        world.drive(bad).fail_after(Some(writes));
        let result = try_adopt(&world, &[0, 1, 2]);
        world.drive(bad).fail_after(None);
        match result {
            Ok(()) => done += 1,
            Err(error) => {
                failed += 1;
                assert!(error.failed.iter().all(|(slot, _)| slot.index() == bad), "{error}");
                for (drive, md) in before.iter().enumerate() {
                    assert_eq!(superblock(&world, drive), *md, "drive {drive}, {writes} writes");
                }
                assert!(error.to_string().starts_with("nothing was adopted"));
                try_adopt(&world, &[0, 1, 2]).unwrap();
            }
        }
        assert!(world.start(group, &[0, 1, 2], Policy::default()).view.is_complete());
    }
    assert!(failed >= 9 && done >= 3, "{failed} failed, {done} done");
}

#[test]
fn a_drive_that_fails_during_a_release_leaves_the_group_ours() {
    let (mut failed, mut done) = (0, 0);
    for writes in 0..14 {
        let world = World::new(75, 3);
        let group = world.create(Level::Raid5, 3, true);
        let parts = world.start(group, &[0, 1, 2], Policy::default());
        let result = world.run(|env| async move {
            let drives = handles(&env, &parts.view);
            stop(&env, &parts.meta, &parts.view, &drives, true).await.unwrap();
            let bad = env.drive(DriveKey(1)).unwrap();
            bad.fail_writes_with(IoKind::Medium);
            bad.fail_after(Some(writes));
            let result = release(&env, &parts.meta, &parts.view, &drives).await;
            bad.fail_after(None);
            result
        });
        *world.env.witness.borrow_mut() = None;
        match result {
            Ok(behind) => {
                done += 1;
                assert!(is_md(&world, 3), "{writes} writes");
                assert!(behind.iter().all(|(slot, _)| *slot == Slot(1)));
                try_adopt(&world, &[0, 1, 2]).unwrap();
            }
            Err(error) => {
                failed += 1;
                assert!(error.to_string().starts_with("nothing was released"), "{error}");
            }
        }
        assert!(world.start(group, &[0, 1, 2], Policy::default()).view.is_complete(), "{writes} writes");
    }
    assert!(failed >= 2 && done >= 2, "{failed} failed, {done} done");
}

#[test]
fn a_missing_member_stays_missing_both_ways_and_its_place_can_be_filled() {
    let world = World::new(76, 5);
    world.add(8 * MIB, raid_core::units::BlockSize::B512);
    let group = world.create(Level::Raid6, 5, true);
    let parts = world.start(group, &[0, 1, 2, 3, 4], Policy::default());
    let (parts, _) = world.drop_member(parts, Slot(3));
    assert_eq!(try_release(&world, parts), Ok(Vec::new()));
    *world.env.witness.borrow_mut() = None;
    assert!([0, 1, 2, 4].iter().all(|&drive| !superblock(&world, drive).dev_roles.contains(&3)));
    try_adopt(&world, &[4, 2, 1, 0]).unwrap();
    let parts = world.start(group, &[0, 1, 2, 4], Policy::default());
    assert_eq!(parts.view.missing(), 1);
    assert!(parts.view.member(Slot(3)).is_missing());
    let prepared = world.run(|env| async move {
        let drives = handles(&env, &parts.view);
        let new = env.drive(DriveKey(5)).unwrap();
        let key = (DriveKey(5), &new);
        raid_core::membership::prepare_member(&env, &parts.meta, &parts.view, Slot(3), key, &drives).await
    });
    let prepared = prepared.unwrap();
    let sb = superblock(&world, 5);
    assert_eq!(
        (sb.data_offset, sb.data_size),
        (prepared.layout.data_start.0 / 512, prepared.layout.data_bytes / 512)
    );
    assert!([0, 1, 2, 4].iter().all(|&drive| superblock(&world, drive).dev_number != sb.dev_number));
}

#[test]
fn a_member_pulled_while_claimed_is_no_member_of_the_released_array() {
    let world = World::new(77, 3);
    let group = world.create(Level::Raid5, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    let (parts, _) = world.drop_member(parts, Slot(1));
    assert_eq!(try_release(&world, parts), Ok(Vec::new()));
    // md cannot take it: its claim is still on it.
    assert!(superblock(&world, 1).is_claimed());
    assert!(matches!(world.observe(&[1])[0].what, Observation::Ours(_)));
    let drive = world.drive(1);
    let read = world.run(|env| async move { read_md(&env, &drive).await }).unwrap();
    assert!(matches!(read, MdMember::Claimed(_)), "{read:?}");
}
