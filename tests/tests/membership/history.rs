//! Who is current: split histories, drops in every order, members lost while down, half of a group alone (SAFETY M1 to
//! M5, P3).

use crate::world::{World, forced, handles, subsets, waited};
use raid_core::geometry::Level;
use raid_core::membership::{
    Decision, Doubt, Mark, Observation, PlannedState, Policy, Refusal, StartParts, decide, next_epoch,
    publish, start,
};
use raid_core::ports::{Env, IoKind};
use raid_core::units::{Slot, Uuid};

/// The block that stands for all data of a member: a version number at the start of its data area.
pub(crate) fn write_version(world: &World, parts: &StartParts, slot: Slot, version: u64) {
    let member = parts.view.member(slot);
    let drive = world.env.drive(member.drive.unwrap()).unwrap();
    let mut block = vec![0; 512];
    block[..8].copy_from_slice(&version.to_le_bytes());
    drive.poke(member.layout.data_start.0, &block);
}

pub(crate) fn version_of(world: &World, drive: usize, group_data_start: u64) -> u64 {
    let block = world.drive(drive).peek(group_data_start..group_data_start + 512);
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

/// Sets or clears the first intent bit on every member that takes part.
pub(crate) fn mark_intent(world: &World, parts: &StartParts, dirty: bool) {
    for slot in parts.view.slots() {
        let member = parts.view.member(slot);
        let (Some(place), false) = (&member.layout.bitmap, member.is_missing()) else { continue };
        let drive = world.env.drive(member.drive.unwrap()).unwrap();
        let mut block = drive.peek(place.start..place.start + 512);
        block[256] = (block[256] & !1) | u8::from(dirty);
        drive.poke(place.start, &block);
    }
}

/// A write that every in-sync member takes, after all took the dirty mark.
pub(crate) fn write(world: &World, parts: StartParts, version: u64) -> StartParts {
    let (parts, failed) = world.mark(parts, Mark::Dirty);
    assert!(failed.is_empty());
    mark_intent(world, &parts, true);
    for slot in parts.view.slots().filter(|slot| parts.view.member(*slot).is_in_sync()) {
        write_version(world, &parts, slot, version);
    }
    parts
}

fn run_alone(world: &World, group: Uuid, drives: &[usize], policy: Policy) {
    let parts = world.start(group, drives, policy);
    world.stop(parts);
}

#[test]
fn sl_01_split_history_is_refused_and_nothing_is_overwritten() {
    for (level, halves) in [
        (Level::Raid1, [vec![0], vec![1]]),
        (Level::Raid10, [vec![0, 2], vec![1, 3]]),
        (Level::Raid6, [vec![0, 1], vec![2, 3]]),
    ] {
        let n = halves[0].len() * 2;
        let all: Vec<usize> = (0..n).collect();
        let world = World::new(21, n);
        let group = world.create(level, n, true);
        world.stop(world.start(group, &all, Policy::default()));
        run_alone(&world, group, &halves[0], waited());
        // The host's witness knows of the first run: the other half alone is not the latest.
        let refusal = world.decide(group, &halves[1], waited());
        assert!(matches!(refusal, Decision::Refuse(Refusal::NewerEpochKnown { .. })), "{level}: {refusal}");
        // Another host has no witness.
        *world.env.witness.borrow_mut() = None;
        run_alone(&world, group, &halves[1], waited());
        let before = world.images();
        for witness in [world.witness(), None] {
            let observed = world.observe(&all);
            for policy in [Policy::default(), waited(), forced()] {
                let decision = decide(group, &observed, witness.as_ref(), policy);
                let Decision::Refuse(Refusal::Diverged { sides }) = &decision else {
                    panic!("{level}: {decision}");
                };
                assert_eq!(sides.len(), 2);
                assert!(sides.iter().all(|(_, members)| members.len() == n / 2), "{decision}");
            }
        }
        assert_eq!(world.images(), before, "{level}: nothing was overwritten");
        // The operator chooses the first half: the other one is left as it is.
        let seen = world.observe(&[halves[0][0]]);
        let Observation::Ours(ours) = &seen[0].what else { panic!("ours") };
        let choose = Some(ours.copy.device_uuid);
        let parts = world.start(group, &all, Policy { choose, ..waited() });
        assert_eq!(parts.left_out.len(), n / 2);
        assert!(parts.left_out.iter().all(|member| member.why.contains("conflict")), "{:?}", parts.left_out);
        for &drive in &halves[1] {
            assert_eq!(world.drive(drive).image(), before[drive], "{level}: the other side was written");
        }
    }
}

#[test]
fn sl_01_a_side_that_cannot_have_run_is_no_choice() {
    // RAID 5: three of four ran on; the fourth took part in a start that never got further.
    let world = World::new(22, 4);
    let group = world.create(Level::Raid5, 4, true);
    world.stop(world.start(group, &[0, 1, 2, 3], Policy::default()));
    let before = world.images();
    world.env.recorder.power.set(Some(0));
    let crashed = world.decide(group, &[0, 1, 2, 3], Policy::default());
    let Decision::Start(plan) = crashed else { panic!("{crashed}") };
    // Bitmaps of all four, then the copy of the first member only.
    world.env.recorder.power.set(Some(5));
    assert!(world.run(|env| async move { start(&env, *plan).await }).is_err());
    world.env.recorder.power.set(None);
    assert_ne!(world.images(), before);
    let ahead: Vec<usize> = (0..4)
        .filter(|&n| match &world.observe(&[n])[0].what {
            Observation::Ours(ours) => ours.copy.epoch().counter > 3,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(ahead.len(), 1, "one member knows the epoch of the start that failed");
    let others: Vec<usize> = (0..4).filter(|n| *n != ahead[0]).collect();
    run_alone(&world, group, &others, waited());
    let parts = world.start(group, &[0, 1, 2, 3], Policy::default());
    assert_eq!(parts.left_out.len(), 1);
    assert!(parts.left_out[0].why.contains("conflict"), "{}", parts.left_out[0].why);
}

#[test]
fn sl_02_dropped_in_every_order_a_stale_member_never_wins() {
    for (level, n, drops) in
        [(Level::Raid1, 4, 3), (Level::Raid6, 5, 2), (Level::Raid5, 3, 1), (Level::Raid10, 6, 3)]
    {
        for order in orders(n, drops) {
            sl_02_one_order(level, n, &order);
        }
    }
}

/// All ways to pick `k` of 0..n in order.
fn orders(n: usize, k: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..k {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..n).filter_map(move |next| {
                    let fresh = !order.contains(&next);
                    fresh.then(|| order.iter().copied().chain([next]).collect())
                })
            })
            .collect();
    }
    all
}

fn sl_02_one_order(level: Level, n: usize, order: &[usize]) {
    let world = World::new(23, n);
    let group = world.create(level, n, true);
    let all: Vec<usize> = (0..n).collect();
    let mut parts = world.start(group, &all, Policy::default());
    let data_start = parts.view.members[0].layout.data_start.0;
    let mut acknowledged = 1;
    parts = write(&world, parts, acknowledged);
    for &slot in order {
        let slot = Slot(u8::try_from(slot).unwrap());
        let left = |lost: Slot| parts.view.member(lost).is_in_sync() && lost != slot;
        if !parts.geometry.is_readable(left) {
            return;
        }
        // The write that meets the failure, then the drop, then the acknowledgement.
        acknowledged += 1;
        for other in
            parts.view.slots().filter(|other| *other != slot && parts.view.member(*other).is_in_sync())
        {
            write_version(&world, &parts, other, acknowledged);
        }
        let (next, failed) = world.drop_member(parts, slot);
        assert!(failed.is_empty());
        parts = next;
        acknowledged += 1;
        parts = write(&world, parts, acknowledged);
    }
    drop(parts);
    let everything = world.observe(&all);
    for present in subsets(n) {
        let observed: Vec<_> = present.iter().map(|&drive| everything[drive].clone()).collect();
        for witness in [world.witness(), None] {
            let Decision::Start(plan) = decide(group, &observed, witness.as_ref(), waited()) else {
                continue;
            };
            for slot in plan.slots.iter().filter(|slot| slot.state == PlannedState::InSync) {
                let drive = usize::try_from(slot.member.as_ref().unwrap().0.0).unwrap();
                assert_eq!(
                    version_of(&world, drive, data_start),
                    acknowledged,
                    "{level}: dropped {order:?}, present {present:?}, witness {}: drive {drive} is stale",
                    witness.is_some()
                );
            }
        }
    }
    // With every member back the group starts (parity: forced, it is dirty and degraded), without the dropped ones.
    let policy = if level.parities() > 0 { forced() } else { waited() };
    let parts = world.start(group, &all, policy);
    assert_eq!(parts.view.missing(), order.len());
}

#[test]
fn sl_03_blank_drive_never_brings_offline_group_online() {
    let world = World::new(24, 5);
    let group = world.create(Level::Raid5, 4, true);
    let parts = world.start(group, &[0, 1, 2, 3], Policy::default());
    let gone = [parts.view.member(Slot(1)).device_uuid, parts.view.member(Slot(2)).device_uuid];
    let (parts, _) = world.drop_member(parts, Slot(1));
    let (parts, _) = world.drop_member(parts, Slot(2));
    drop(parts);
    for policy in [Policy::default(), waited(), forced()] {
        // Drive 4 is blank.
        let decision = world.decide(group, &[0, 3, 4], policy);
        let Decision::Refuse(Refusal::NotEnoughMembers { needs, present, .. }) = &decision else {
            panic!("{decision}");
        };
        assert_eq!((*present, needs.len()), (2, 1));
        assert_eq!(needs[0].device_uuid, gone[1], "the one that completes the last epoch that could serve");
        assert!(decision.to_string().contains(&gone[1].to_string()), "{decision}");
    }
    // The first one lost is no help: writes were acknowledged without it.
    let decision = world.decide(group, &[0, 1, 3], forced());
    assert!(matches!(decision, Decision::Refuse(Refusal::NotEnoughMembers { .. })), "{decision}");
    // The real member brings it back: nothing was written meanwhile, so no bit is set.
    let parts = world.start(group, &[0, 2, 3], waited());
    assert!(parts.view.member(Slot(2)).is_in_sync());
    assert_eq!(parts.view.missing(), 1);
}

#[test]
fn sl_09_dirty_and_degraded_refuses_and_force_marks_the_group_for_ever() {
    for (level, n) in [(Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid6, 5)] {
        let world = World::new(25, n);
        let group = world.create(level, n, true);
        let all: Vec<usize> = (0..n).collect();
        let parts = world.start(group, &all, Policy::default());
        drop(write(&world, parts, 1));
        let present: Vec<usize> = (1..n).collect();
        let decision = world.decide(group, &present, waited());
        let Decision::Refuse(refusal @ Refusal::DirtyAndDegraded { missing, dirty_regions: Some(1) }) =
            &decision
        else {
            panic!("{level}: {decision}");
        };
        assert_eq!(missing.len(), 1);
        assert!(refusal.is_for_safety() && refusal.yields_to_force());
        // All present: a resync puts it right.
        let observed = world.observe(&all);
        let decision = decide(group, &observed, None, Policy::default());
        assert!(matches!(&decision, Decision::Start(plan) if plan.doubt == Doubt::Torn && !plan.is_forced));
        // By force it starts, and says so for ever.
        let parts = world.start(group, &present, forced());
        assert!(parts.warnings.iter().any(|warning| warning.contains("force")), "{:?}", parts.warnings);
        world.stop(parts);
        for _ in 0..3 {
            let parts = world.start(group, &present, waited());
            let raid_core::membership::GroupMeta::Persistent(meta) = &parts.meta else { panic!("on drives") };
            assert!(meta.marks().forced && meta.forced_at().is_some(), "{level}: the mark is gone");
            world.stop(parts);
        }
    }
}

#[test]
fn sl_09_without_a_write_in_flight_nothing_is_torn() {
    let world = World::new(26, 4);
    let group = world.create(Level::Raid5, 4, true);
    drop(world.start(group, &[0, 1, 2, 3], Policy::default()));
    // Crashed, and one member lost, but no intent bit is set: no stripe can be half written.
    assert_eq!(world.start(group, &[0, 1, 2], waited()).view.missing(), 1);
}

#[test]
fn m4_a_mirrors_last_member_needs_a_clean_mark_a_witness_or_force() {
    for (clean, witness, starts) in [(false, false, false), (true, false, true), (false, true, true)] {
        let world = World::new(27, 2);
        let group = world.create(Level::Raid1, 2, true);
        let parts = world.start(group, &[0, 1], Policy::default());
        if clean {
            world.stop(parts)
        } else {
            drop(parts)
        }
        let known = world.witness().filter(|_| witness);
        let observed = world.observe(&[0]);
        assert!(matches!(
            decide(group, &observed, known.as_ref(), Policy::default()),
            Decision::WaitFor { .. }
        ));
        let decision = decide(group, &observed, known.as_ref(), waited());
        if starts {
            assert!(matches!(&decision, Decision::Start(plan) if !plan.is_forced), "{decision}");
        } else {
            let unproven = matches!(&decision, Decision::Refuse(Refusal::LastMirrorUnproven { absent }) if absent.len() == 1);
            assert!(unproven, "{decision}");
            let decision = decide(group, &observed, None, forced());
            assert!(matches!(&decision, Decision::Start(plan) if plan.is_forced), "{decision}");
        }
    }
}

#[test]
fn m4_of_raid_10_another_pair_decides() {
    let world = World::new(28, 4);
    let group = world.create(Level::Raid10, 4, true);
    let parts = world.start(group, &[0, 1, 2, 3], Policy::default());
    let parts = write(&world, parts, 1);
    // Slot 0 is dropped, 1, 2 and 3 go on.
    let (parts, _) = world.drop_member(parts, Slot(0));
    drop(write(&world, parts, 2));
    // 0 comes back with the other pair, its own twin is absent: the other pair knows better.
    let observed = world.observe(&[0, 2, 3]);
    let decision = decide(group, &observed, None, forced());
    assert!(
        matches!(&decision, Decision::Refuse(Refusal::NotEnoughMembers { needs, .. }) if needs[0].slot == Slot(1))
    );
    // One half of each pair, the other halves absent and able to have gone on: not without proof.
    let decision = decide(group, &world.observe(&[1, 2]), None, waited());
    assert!(matches!(&decision, Decision::Start(_)), "slot 3 alone cannot have gone on: {decision}");
    let world = World::new(29, 4);
    let group = world.create(Level::Raid10, 4, true);
    drop(world.start(group, &[0, 1, 2, 3], Policy::default()));
    let decision = decide(group, &world.observe(&[1, 2]), None, waited());
    assert!(matches!(decision, Decision::Refuse(Refusal::LastMirrorUnproven { .. })), "{decision}");
}

#[test]
fn a_witness_that_cannot_be_stored_is_shown_and_does_not_stop_the_group() {
    let world = World::new(30, 2);
    let group = world.create(Level::Raid1, 2, true);
    world.env.witness_fails.set(true);
    let parts = world.start(group, &[0, 1], Policy::default());
    let raid_core::membership::GroupMeta::Persistent(meta) = &parts.meta else { panic!("on drives") };
    assert!(meta.witness_error().is_some());
    world.env.witness_fails.set(false);
    let (parts, failed) = world.drop_member(parts, Slot(1));
    let raid_core::membership::GroupMeta::Persistent(meta) = &parts.meta else { panic!("on drives") };
    assert!(failed.is_empty() && meta.witness_error().is_none());
}

#[test]
fn a_member_that_cannot_take_an_epoch_is_reported_and_never_current_again() {
    let world = World::new(31, 3);
    let group = world.create(Level::Raid1, 3, true);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    world.drive(1).fail_with(Some(IoKind::Transport));
    let (parts, failed) = world.drop_member(parts, Slot(0));
    assert_eq!(
        failed.iter().map(|(slot, error)| (*slot, error.kind)).collect::<Vec<_>>(),
        [(Slot(1), IoKind::Transport)]
    );
    let (parts, failed) = world.drop_member(parts, Slot(1));
    assert!(failed.is_empty());
    drop(parts);
    world.drive(1).fail_with(None);
    let parts = world.start(group, &[0, 1, 2], Policy::default());
    assert_eq!(
        parts.view.members.iter().map(|member| member.is_in_sync()).collect::<Vec<_>>(),
        [false, false, true]
    );
}

#[test]
fn drives_of_other_groups_and_keys_beside_it_change_nothing() {
    let world = World::new(40, 4);
    let first = world.try_create(Level::Raid1, &[0, 1], true, false).unwrap();
    let second = world.try_create(Level::Raid1, &[2, 3], true, false).unwrap();
    let both = world.observe(&[3, 0, 2, 1]);
    assert_eq!(raid_core::membership::groups_of(&both).len(), 2);
    for (group, drives) in [(first, [0, 1]), (second, [2, 3])] {
        let decision = decide(group, &both, None, Policy::default());
        let Decision::Start(plan) = decision else { panic!("{decision}") };
        let used: Vec<u64> = plan.slots.iter().map(|slot| slot.member.as_ref().unwrap().0.0).collect();
        assert_eq!(used, drives);
    }
    let unknown = decide(Uuid([7; 16]), &both, None, forced());
    assert!(matches!(unknown, Decision::Refuse(Refusal::NoMembers { .. })));
}

#[test]
fn a_copied_drive_is_a_twin_and_refused() {
    let world = World::new(41, 3);
    let group = world.create(Level::Raid1, 2, true);
    world.stop(world.start(group, &[0, 1], Policy::default()));
    world.drive(2).set_image(world.drive(1).image());
    let decision = world.decide(group, &[0, 1, 2], forced());
    let Decision::Refuse(Refusal::Twins { drives, .. }) = &decision else { panic!("{decision}") };
    let mut drives = drives.map(|key| key.0);
    drives.sort_unstable();
    assert_eq!(drives, [1, 2]);
}

#[test]
fn a_member_away_for_more_epochs_than_are_remembered_does_not_hold_up_the_group() {
    let world = World::new(42, 2);
    let group = world.create(Level::Raid1, 2, true);
    let parts = world.start(group, &[0, 1], Policy::default());
    // Slot 1 misses the last epoch that lists it, so nobody remembers the epoch it knows for long.
    world.drive(1).fail_with(Some(IoKind::Gone));
    let parts = world.run(|env| async move {
        let mut parts = parts;
        parts.view.epoch = next_epoch(&env, parts.view.epoch);
        let drives = handles(&env, &parts.view);
        assert_eq!(publish(&env, &parts.meta, &parts.view, &drives).await.len(), 1);
        parts
    });
    let (mut parts, _) = world.drop_member(parts, Slot(1));
    world.drive(1).fail_with(None);
    for _ in 0..70 {
        world.stop(parts);
        parts = world.start(group, &[0], Policy::default());
    }
    world.stop(parts);
    let parts = world.start(group, &[0, 1], Policy::default());
    assert!(parts.view.member(Slot(0)).is_in_sync() && parts.view.member(Slot(1)).is_missing());
    assert_eq!(parts.left_out.len(), 1);
}

/// A drive is stopped with its group, an old image of it comes back (a restored snapshot, a drive array rolled back): it
/// lists itself as in sync, and so does the record of the others. It must not be read.
#[test]
fn p3_a_member_rolled_back_to_an_older_state_is_stale_not_in_sync() {
    for (level, n) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)] {
        for starts_behind in 1..4 {
            let world = World::new(43, n);
            let group = world.create(level, n, true);
            let all: Vec<usize> = (0..n).collect();
            world.stop(world.start(group, &all, Policy::default()));
            let old = world.drive(0).image();
            for _ in 0..starts_behind {
                world.stop(world.start(group, &all, Policy::default()));
            }
            world.drive(0).set_image(old);
            let decision = world.decide(group, &all, waited());
            let Decision::Start(plan) = decision else { panic!("{level}: {decision}") };
            assert_eq!(plan.slots[0].state, PlannedState::Missing, "{level}, {starts_behind} starts behind");
            assert!(plan.slots[1..].iter().all(|slot| slot.state == PlannedState::InSync));
            assert!(plan.left_out[0].why.starts_with("stale"), "{:?}", plan.left_out);
        }
    }
}
