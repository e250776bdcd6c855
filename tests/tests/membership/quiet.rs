//! The quiet mark and the sealed epoch, with the engine over drives that lose power: a degraded parity group that idles
//! starts by itself after a crash (P2, S4), one that was being written never does (SL-09), a member lost while it idled
//! completes the group again (SL-03), and an older state of a drive is recognised after a crash too (P3).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::world::{TestEnv, World, every_crash, forced, handles, waited};
use raid_core::engine::{Group, GroupConfig, IntentConfig, Shared};
use raid_core::format::bitmap::IntentMap;
use raid_core::geometry::Level;
use raid_core::lease::{Lease, Segs};
use raid_core::membership::{
    Decision, Doubt, GroupMeta, Mark, Observation, PlannedState, Policy, Refusal, StartParts, decide,
    next_epoch, prepare_member, publish,
};
use raid_core::ports::{Clock, DriveKey, Durability, Env, IoKind, Pool};
use raid_core::units::{GroupOffset, Slot, Uuid};
use raid_core::view::MemberState;

const BLOCK: u64 = 4096;
/// Ticks after which a group that is not written is quiet.
const IDLE_TICKS: u32 = 8;

/// Parity groups, and how many members each is short of.
const SHORT: [(Level, usize, usize); 4] =
    [(Level::Raid5, 3, 1), (Level::Raid5, 4, 1), (Level::Raid6, 5, 1), (Level::Raid6, 5, 2)];

/// A started group on lane 0, as the daemon serves it.
fn serve(world: &World, parts: StartParts) -> Group<TestEnv> {
    let stripes = |image: &raid_core::membership::BitmapImage| {
        let map = IntentMap::new(&parts.geometry, u64::from(image.header.chunk_bytes));
        image.bits.iter_dirty().map(|bit| map.stripes_of(bit)).collect::<Vec<_>>()
    };
    let doubtful = parts.bitmap.as_ref().map(stripes).unwrap_or_default();
    let (unsynced, dirty) = match parts.doubt {
        Doubt::None => (Vec::new(), Vec::new()),
        Doubt::Unsynced => (doubtful, Vec::new()),
        Doubt::Torn => (Vec::new(), doubtful),
    };
    let GroupMeta::Persistent(meta) = &parts.meta else { panic!("a group on drives") };
    let shared = Shared::new(GroupConfig {
        name: "tank".into(),
        geometry: parts.geometry,
        block_size: meta.identity().block_size,
        view: parts.view,
        intents: parts.bitmap.as_ref().map(|image| IntentConfig {
            chunk_bytes: u64::from(image.header.chunk_bytes),
            bits: image.bits.len(),
            dirty_bits: image.bits.iter_dirty().collect(),
            header: image.header.encode().to_vec(),
        }),
        meta: Arc::new(parts.meta),
        unsynced,
        dirty,
        bad_blocks: parts.bad_blocks,
        rebuilding: parts.rebuilding,
        lanes: 1,
    });
    Group::new(world.env.clone(), shared)
}

async fn write_block(group: Group<TestEnv>, at: u64, version: u8) -> Result<(), IoKind> {
    let sizes: Vec<u32> = group.shared().geometry().pieces(GroupOffset(at), BLOCK).collect();
    let mut leases = group.env().lease(Pool::Request, &sizes).await;
    leases.iter_mut().for_each(|lease| lease.bytes_mut().fill(version));
    let from: Segs = leases.into_iter().map(Lease::share).collect();
    group.write(GroupOffset(at), from, Durability::Cached).await.map_err(|error| error.kind)
}

/// The version of a block; torn blocks have none.
async fn read_block(group: Group<TestEnv>, at: u64) -> Result<u8, IoKind> {
    let sizes: Vec<u32> = group.shared().geometry().pieces(GroupOffset(at), BLOCK).collect();
    let into = group.env().lease(Pool::Request, &sizes).await;
    let done = group.read(GroupOffset(at), into).await;
    done.result.map_err(|error| error.kind)?;
    let bytes: Vec<u8> =
        done.buf.expect("leases come back").iter().flat_map(|lease| lease.bytes().to_vec()).collect();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block at {at} holds pieces of several writes");
    Ok(bytes[0])
}

fn write(world: &World, group: &Group<TestEnv>, at: u64, version: u8) -> Result<(), IoKind> {
    let group = group.clone();
    world.run(|_| write_block(group, at, version))
}

fn read(world: &World, group: &Group<TestEnv>, at: u64) -> Result<u8, IoKind> {
    let group = group.clone();
    world.run(|_| read_block(group, at))
}

fn tick(world: &World, group: &Group<TestEnv>, times: u32) {
    for _ in 0..times {
        let group = group.clone();
        world.run(|_| async move { group.tick().await }).unwrap();
    }
}

fn fail(world: &World, group: &Group<TestEnv>, slot: u8) {
    let group = group.clone();
    world.run(|_| async move {
        let epoch = group.shared().view().epoch;
        group.fail(epoch, Slot(slot), IoKind::Gone).await.unwrap();
    });
}

/// Offsets of a block on every data column of the first stripe.
fn columns(group: &Group<TestEnv>) -> Vec<u64> {
    let geometry = group.shared().geometry();
    (0..u64::from(geometry.data_columns())).map(|i| i * u64::from(geometry.chunk_bytes())).collect()
}

/// A group short of its first members, with version 1 everywhere in the first stripe and still dirty.
fn short(world: &World, level: Level, n: usize, lost: usize) -> (Uuid, Group<TestEnv>, Vec<usize>) {
    let id = world.create(level, n, true);
    let group = serve(world, world.start(id, &(0..n).collect::<Vec<_>>(), Policy::default()));
    for slot in 0..lost {
        fail(world, &group, u8::try_from(slot).unwrap());
    }
    for at in columns(&group) {
        write(world, &group, at, 1).unwrap();
    }
    (id, group, (lost..n).collect())
}

fn assert_refused(decision: &Decision, context: &str) {
    let refused = matches!(decision, Decision::Refuse(Refusal::DirtyAndDegraded { .. }));
    assert!(refused, "{context}: {decision}");
}

/// Starts without force or panics.
fn start_by_itself(world: &World, id: Uuid, present: &[usize], context: &str) -> Group<TestEnv> {
    match world.decide(id, present, waited()) {
        Decision::Start(plan) => {
            assert!(!plan.is_forced && plan.doubt == Doubt::None, "{context}: {:?}", plan.doubt);
            serve(world, world.start_plan(*plan))
        }
        other => panic!("{context}: {other}"),
    }
}

#[test]
fn s0_a_degraded_group_that_idles_starts_by_itself_after_a_crash() {
    for (level, n, lost) in SHORT {
        let context = format!("{level} of {n} short of {lost}");
        let world = World::new(70, n);
        let (id, group, present) = short(&world, level, n, lost);
        tick(&world, &group, 2);
        assert_refused(&world.decide(id, &present, waited()), &format!("{context}: written just now"));
        tick(&world, &group, IDLE_TICKS);
        drop(group);
        // Killed while idle; then killed again before anything was written.
        for _ in 0..2 {
            let group = start_by_itself(&world, id, &present, &context);
            for at in columns(&group) {
                assert_eq!(read(&world, &group, at), Ok(1), "{context}");
            }
        }
        let group = start_by_itself(&world, id, &present, &context);
        let metadata =
            |world: &World| present.iter().map(|&drive| world.drive(drive).writes()).collect::<Vec<_>>();
        let (before, at) = (metadata(&world), columns(&group)[0]);
        write(&world, &group, at, 2).unwrap();
        let first = metadata(&world);
        write(&world, &group, at, 3).unwrap();
        let second = metadata(&world);
        let grown = |a: &[u64], b: &[u64]| a.iter().zip(b).map(|(a, b)| b - a).sum::<u64>();
        let round = 2 * u64::try_from(present.len()).unwrap();
        assert_eq!(grown(&before, &first), grown(&first, &second) + round, "{context}: the dirty mark, once");
        drop(group);
        assert_refused(&world.decide(id, &present, waited()), &format!("{context}: killed in a write"));
    }
}

/// A complete group needs no quiet mark while it runs: its bits are cleared.
#[test]
fn a_complete_group_and_a_mirror_are_never_marked_while_they_run() {
    for (level, n) in [(Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid1, 3), (Level::Raid10, 4)] {
        let world = World::new(71, n);
        let id = world.create(level, n, true);
        let all: Vec<usize> = (0..n).collect();
        let group = serve(&world, world.start(id, &all, Policy::default()));
        write(&world, &group, 0, 1).unwrap();
        if level.parities() == 0 {
            fail(&world, &group, 0);
        }
        tick(&world, &group, IDLE_TICKS);
        let GroupMeta::Persistent(meta) = &**group.shared().meta() else { panic!("on drives") };
        assert!(!meta.marks().quiet, "{level}");
        assert!(!meta.wants_seal(), "{level}: sealed by a tick");
    }
}

/// Every state a crash can leave while a degraded group is written, goes quiet, is written again and goes quiet again.
#[test]
fn sl_09_no_crash_around_the_quiet_mark_serves_a_torn_stripe() {
    for (level, n, lost) in [(Level::Raid5, 3, 1), (Level::Raid6, 4, 1), (Level::Raid6, 4, 2)] {
        let world = World::new(72, n);
        let (id, group, present) = short(&world, level, n, lost);
        tick(&world, &group, IDLE_TICKS);
        let at = columns(&group);
        let geometry = *group.shared().geometry();
        // A block that has a live member, in a stripe with data of a missing one.
        let is_live = |at: &u64| {
            let place = geometry.place(GroupOffset(*at));
            geometry.data_slot(place.stripe, place.index).index() >= lost
        };
        let written = *at.iter().find(|at| is_live(at)).expect("a live column");
        let (before, witness) = (world.images(), world.witness());
        world.record();
        write(&world, &group, written, 2).unwrap();
        tick(&world, &group, IDLE_TICKS);
        write(&world, &group, written, 3).unwrap();
        tick(&world, &group, IDLE_TICKS);
        drop(group);
        let (mut refused, mut started) = (0, 0);
        every_crash(&world, &before, |world, context| {
            world.env.witness.borrow_mut().clone_from(&witness);
            match world.decide(id, &present, waited()) {
                Decision::Start(plan) => {
                    assert!(!plan.is_forced, "{context}");
                    let group = serve(world, world.start_plan(*plan));
                    for &block in &at {
                        let version = read(world, &group, block).unwrap();
                        let allowed: &[u8] = if block == written { &[1, 2, 3] } else { &[1] };
                        assert!(
                            allowed.contains(&version),
                            "{level} {context}: block {block} reads {version}"
                        );
                    }
                    started += 1;
                }
                decision => {
                    assert_refused(&decision, context);
                    refused += 1;
                }
            }
        });
        assert!(refused > 10 && started > 10, "{level}: {refused} refused, {started} started");
        start_by_itself(&world, id, &present, "idle again");
    }
}

/// The member that completes a degraded group was lost while it idled: noticed by nobody, by a read, or by the write that
/// would have come next.
#[test]
fn sl_03_a_member_lost_while_idle_completes_the_group_without_force() {
    for (level, n, lost) in SHORT {
        for noticed_by in ["nobody", "a read", "a write"] {
            let context = format!("{level} of {n} short of {lost}, noticed by {noticed_by}");
            let world = World::new(73, n);
            let (id, group, present) = short(&world, level, n, lost);
            let spare = usize::from(level.parities()) - lost;
            tick(&world, &group, IDLE_TICKS);
            // One more than the level can spare.
            let gone: Vec<usize> = (lost..=lost + spare).collect();
            gone.iter().for_each(|&drive| world.drive(drive).fail_with(Some(IoKind::Gone)));
            let stripe = group.shared().geometry().stripe_data_bytes();
            match noticed_by {
                "a read" => {
                    let errors = columns(&group).into_iter().filter(|at| read(&world, &group, *at).is_err());
                    assert!(errors.count() > 0, "{context}");
                }
                "a write" => assert!(write(&world, &group, 7 * stripe, 2).is_err(), "{context}"),
                _ => {}
            }
            assert_eq!(group.shared().is_offline(), noticed_by != "nobody", "{context}");
            tick(&world, &group, IDLE_TICKS);
            drop(group);
            gone.iter().for_each(|&drive| world.drive(drive).fail_with(None));
            // A drop within tolerance is an epoch: then the member it dropped is stale and another completes the group.
            let Decision::Start(plan) = world.decide(id, &present, waited()) else {
                panic!("{context}: {}", world.decide(id, &present, waited()));
            };
            assert!(!plan.is_forced && plan.doubt == Doubt::None, "{context}");
            let group = serve(&world, world.start_plan(*plan));
            for at in columns(&group) {
                assert_eq!(read(&world, &group, at), Ok(1), "{context}");
            }
        }
    }
}

/// The same, lost in the middle of a write: nobody knows what it took.
#[test]
fn sl_03_a_member_lost_in_a_write_needs_force() {
    let world = World::new(74, 4);
    let (id, group, present) = short(&world, Level::Raid5, 4, 1);
    tick(&world, &group, IDLE_TICKS);
    let at = columns(&group);
    write(&world, &group, at[0], 2).unwrap();
    world.drive(2).fail_after(Some(0));
    let failed = at.iter().filter(|at| write(&world, &group, **at, 3).is_err()).count();
    assert!(failed > 0 && group.shared().is_offline());
    tick(&world, &group, 3 * IDLE_TICKS);
    world.drive(2).fail_after(None);
    drop(group);
    assert_refused(&world.decide(id, &present, waited()), "lost in a write");
    assert!(matches!(world.decide(id, &present, forced()), Decision::Start(_)));
}

/// A write that fails without costing a member (the daemon itself was stopping) leaves nobody who vouches for its stripe.
#[test]
fn sl_09_a_write_that_did_not_settle_is_never_called_quiet() {
    let world = World::new(80, 4);
    let (id, group, present) = short(&world, Level::Raid5, 4, 1);
    let at = columns(&group);
    world.drive(2).fail_after(Some(0));
    world.drive(2).fail_writes_with(IoKind::ShuttingDown);
    let failed = at.iter().filter(|at| write(&world, &group, **at, 2).is_err()).count();
    assert!(failed > 0 && !group.shared().is_offline(), "no member is to blame");
    world.drive(2).fail_after(None);
    tick(&world, &group, 3 * IDLE_TICKS);
    drop(group);
    assert_refused(&world.decide(id, &present, waited()), "after a write that did not settle");
}

/// `drive fail --force` while clients write: what they were told is there, and the member completes the group by itself.
#[test]
fn sl_03_a_member_failed_by_the_operator_under_load_completes_the_group_without_force() {
    for (level, n, lost) in [(Level::Raid5, 4, 1), (Level::Raid6, 5, 2)] {
        for seed in 0..10 {
            let world = World::new(75 + seed, n);
            let (id, group, present) = short(&world, level, n, lost);
            let acked: Rc<RefCell<Vec<u8>>> = Rc::new(RefCell::new(vec![1; columns(&group).len()]));
            let ended = Rc::new(RefCell::new(0));
            for (i, at) in columns(&group).into_iter().enumerate() {
                let (group, acked, ended) = (group.clone(), Rc::clone(&acked), Rc::clone(&ended));
                world.executor.spawn(async move {
                    for version in 2..40 {
                        if write_block(group.clone(), at, version).await.is_err() {
                            break;
                        }
                        acked.borrow_mut()[i] = version;
                    }
                    *ended.borrow_mut() += 1;
                });
            }
            let served = group.clone();
            let slot = Slot(u8::try_from(lost).unwrap());
            world.run(|env| async move {
                env.clock().sleep_until(env.clock().now_ns() + 500_000 + seed * 37_000).await;
                let epoch = served.shared().view().epoch;
                served.fail_by_operator(epoch, slot, IoKind::Gone).await.unwrap();
                assert!(served.shared().is_offline());
                env.clock().sleep_until(env.clock().now_ns() + 50_000_000).await;
            });
            assert_eq!(*ended.borrow(), acked.borrow().len(), "held writes were let go, to fail");
            assert!(acked.borrow().iter().any(|version| *version > 1), "nothing was written: proves nothing");
            drop(group);
            let group = start_by_itself(&world, id, &present, "failed by the operator");
            for (at, version) in columns(&group).into_iter().zip(acked.borrow().iter()) {
                assert_eq!(read(&world, &group, at), Ok(*version), "{level}, seed {seed}");
            }
        }
    }
}

#[test]
fn m4_a_quiet_mark_proves_nothing_about_who_is_newest() {
    for (level, n, half) in
        [(Level::Raid1, 2, vec![0]), (Level::Raid10, 4, vec![0, 2]), (Level::Raid6, 4, vec![0, 1])]
    {
        let world = World::new(76, n);
        let id = world.create(level, n, true);
        let group = serve(&world, world.start(id, &(0..n).collect::<Vec<_>>(), Policy::default()));
        tick(&world, &group, IDLE_TICKS);
        drop(group);
        let observed = world.observe(&half);
        let decision = decide(id, &observed, None, waited());
        assert!(
            matches!(decision, Decision::Refuse(Refusal::LastMirrorUnproven { .. })),
            "{level}: {decision}"
        );
        let decision = decide(id, &observed, world.witness().as_ref(), waited());
        assert!(matches!(decision, Decision::Start(_)), "{level}: {decision}");
    }
}

/// A member ends its rebuild, the source of it fails at that moment, and the new one goes on alone: the source must not
/// start by itself, as its record still lists the other as being rebuilt.
#[test]
fn m4_a_member_that_was_being_rebuilt_may_have_gone_on_alone() {
    let world = World::new(77, 3);
    let id = world.create(Level::Raid1, 2, true);
    let parts = world.start(id, &[0, 1], Policy::default());
    let (mut parts, _) = world.drop_member(parts, Slot(1));
    let source = world.drive(0);
    world.run(|env| async move {
        let key = DriveKey(2);
        let drives = handles(&env, &parts.view);
        let drive = env.drive(key).unwrap();
        let member = prepare_member(&env, &parts.meta, &parts.view, Slot(1), (key, &drive), &drives).await;
        parts.view.members[1] = member.unwrap();
        for step in 0..3 {
            match step {
                0 => {}
                1 => {
                    parts.view.members[1].state = MemberState::InSync;
                    source.fail_with(Some(IoKind::Gone));
                }
                _ => parts.view.members[0].state = MemberState::Missing { why: Some(IoKind::Gone) },
            }
            parts.view.epoch = next_epoch(&env, parts.view.epoch);
            let failed = publish(&env, &parts.meta, &parts.view, &handles(&env, &parts.view)).await;
            assert_eq!(failed.len(), usize::from(step == 1));
        }
        source.fail_with(None);
    });
    let decision = decide(id, &world.observe(&[0]), None, waited());
    assert!(matches!(decision, Decision::Refuse(Refusal::LastMirrorUnproven { .. })), "{decision}");
    assert!(matches!(decide(id, &world.observe(&[0, 2]), None, waited()), Decision::Start(_)));
}

/// An older state of a drive comes back after a crash: from before the last start, from before the last drop.
#[test]
fn p3_a_member_rolled_back_is_recognised_after_a_crash() {
    for (level, n) in [(Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)] {
        for writes in [false, true] {
            let world = World::new(78, n);
            let id = world.create(level, n, true);
            let all: Vec<usize> = (0..n).collect();
            world.stop(world.start(id, &all, Policy::default()));
            let before_start = world.drive(0).image();
            let group = serve(&world, world.start(id, &all, Policy::default()));
            // A write seals by its dirty mark on a parity group, a tick everywhere.
            if writes && level.parities() > 0 {
                write(&world, &group, 0, 1).unwrap();
            } else {
                tick(&world, &group, 1);
            }
            let before_drop = world.drive(0).image();
            let now = world.images();
            let check = |image, context: &str| {
                world.drive(0).set_image(image);
                let left_out = match world.decide(id, &all, waited()) {
                    Decision::Start(plan) => {
                        assert_eq!(plan.slots[0].state, PlannedState::Missing, "{level} {context}");
                        plan.left_out
                    }
                    // Beside a dropped member it is one too few.
                    Decision::Refuse(Refusal::NotEnoughMembers { left_out, .. }) => left_out,
                    // Beside a write in flight too.
                    Decision::Refuse(Refusal::DirtyAndDegraded { missing, .. }) => {
                        assert_eq!(missing[0].slot, Slot(0), "{level} {context}");
                        return;
                    }
                    other => panic!("{level} {context}: {other}"),
                };
                assert!(
                    left_out.iter().any(|out| out.why.contains("older state")),
                    "{context}: {left_out:?}"
                );
            };
            check(before_start, "before the start");
            world.set_images(&now);
            fail(&world, &group, 1);
            tick(&world, &group, 1);
            drop(group);
            check(before_drop, "before the drop");
        }
    }
}

/// A crash anywhere in a drop and the seal after it never throws a good member out.
#[test]
fn p3_a_crash_in_a_publish_or_a_seal_costs_no_good_member() {
    for (level, n) in [(Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid10, 4)] {
        let world = World::new(79, n);
        let id = world.create(level, n, true);
        let all: Vec<usize> = (0..n).collect();
        let parts = world.start(id, &all, Policy::default());
        let before = world.images();
        world.record();
        let (parts, failed) = world.mark(parts, Mark::Sealed);
        assert!(failed.is_empty());
        let (parts, failed) = world.drop_member(parts, Slot(1));
        assert!(failed.is_empty());
        let new = parts.view.epoch;
        drop(world.mark(parts, Mark::Sealed));
        let mut sealed = 0;
        every_crash(&world, &before, |world, context| {
            let decision = decide(id, &world.observe(&all), None, waited());
            let Decision::Start(plan) = decision else { panic!("{level} {context}: {decision}") };
            let used = plan.slots.iter().filter(|slot| slot.state == PlannedState::InSync).count();
            let is_new = plan.tip.copy.epoch() == new;
            assert_eq!(used, if is_new { n - 1 } else { n }, "{level} {context}");
            sealed += usize::from(is_new && plan.tip.copy.sealed_at == new.counter);
        });
        assert!(sealed > 0, "{level}");
        let Observation::Ours(ours) = &world.observe(&[0])[0].what else { panic!("ours") };
        assert_eq!(ours.copy.sealed_at, new.counter);
    }
}
