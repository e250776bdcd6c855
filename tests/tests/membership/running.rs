//! Lives of a group whose engine runs over drives that carry its metadata: what crash tests write, and what must be there
//! after any crash.

use std::cell::RefCell;
use std::sync::Arc;

use raid_core::engine::{Group, GroupConfig, IntentConfig, Pace, ScrubMode, Shared};
use raid_core::format::bitmap::IntentMap;
use raid_core::lease::{Lease, Segs};
use raid_core::membership::{Decision, Doubt, Observation, Ours, StartParts};
use raid_core::ports::{Durability, Env, IoKind, Pool};
use raid_core::units::{GroupOffset, Uuid};

use crate::world::{TestEnv, World, forced, waited};

pub(crate) const BLOCK: u64 = 4096;

/// What the server makes of a start.
pub(crate) fn run(world: &World, parts: StartParts) -> Group<TestEnv> {
    let doubtful: Vec<_> = parts.bitmap.as_ref().map_or_else(Vec::new, |image| {
        let map = IntentMap::new(&parts.geometry, u64::from(image.header.chunk_bytes));
        image.bits.iter_dirty().map(|bit| map.stripes_of(bit)).collect()
    });
    let (unsynced, dirty) = match parts.doubt {
        Doubt::None => (Vec::new(), Vec::new()),
        Doubt::Unsynced => (doubtful, Vec::new()),
        Doubt::Torn => (Vec::new(), doubtful),
    };
    let intents = parts.bitmap.as_ref().map(|image| IntentConfig {
        chunk_bytes: u64::from(image.header.chunk_bytes),
        bits: image.bits.len(),
        dirty_bits: image.bits.iter_dirty().collect(),
        header: image.header.encode().to_vec(),
    });
    let shared = Shared::new(GroupConfig {
        name: "tank".into(),
        geometry: parts.geometry,
        block_size: raid_core::units::BlockSize::B512,
        view: parts.view,
        meta: Arc::new(parts.meta),
        intents,
        unsynced,
        dirty,
        bad_blocks: parts.bad_blocks,
        rebuilding: parts.rebuilding,
        lanes: 1,
    });
    Group::new(world.env.clone(), shared)
}

pub(crate) async fn write(group: &Group<TestEnv>, at: u64, stamp: u8) {
    let sizes: Vec<u32> = group.shared().geometry().pieces(GroupOffset(at), BLOCK).collect();
    let mut leases = group.env().lease(Pool::Request, &sizes).await;
    leases.iter_mut().for_each(|lease| lease.bytes_mut().fill(stamp));
    let from: Segs = leases.into_iter().map(Lease::share).collect();
    group.write(GroupOffset(at), from, Durability::Fua).await.expect("within the tolerance");
}

pub(crate) async fn read(group: &Group<TestEnv>, at: u64) -> Result<Vec<u8>, IoKind> {
    let sizes: Vec<u32> = group.shared().geometry().pieces(GroupOffset(at), BLOCK).collect();
    let done = group.read(GroupOffset(at), group.env().lease(Pool::Request, &sizes).await).await;
    done.result.map_err(|error| error.kind)?;
    Ok(done.buf.unwrap().iter().flat_map(|lease| lease.bytes().to_vec()).collect())
}

pub(crate) async fn settle(group: &Group<TestEnv>) {
    for _ in 0..8 {
        group.tick().await.unwrap();
    }
}

pub(crate) fn ours(world: &World, drive: usize) -> Ours {
    let seen = world.observe(&[drive]).remove(0);
    match seen.what {
        Observation::Ours(ours) => *ours,
        other => panic!("{other}"),
    }
}

pub(crate) async fn rebuild(group: &Group<TestEnv>) {
    for (slot, result) in group.rebuild_pending(|_| Arc::new(Pace::default())).await {
        result.unwrap_or_else(|error| panic!("slot {slot}: {error}"));
    }
}

/// Where the test writes: blocks in different stripes and under different bits.
pub(crate) fn places(group: &Group<TestEnv>) -> Vec<u64> {
    let capacity = group.shared().geometry().capacity_bytes();
    (0..4).map(|n| capacity / 4 * n / BLOCK * BLOCK + 3 * BLOCK).collect()
}

pub(crate) fn start(world: &World, group: Uuid, all: &[usize]) -> Option<Group<TestEnv>> {
    let plan = match world.decide(group, all, waited()) {
        Decision::Start(plan) => plan,
        // Dirty and degraded, without a journal: the operator's word.
        Decision::Refuse(refusal) if refusal.yields_to_force() => match world.decide(group, all, forced()) {
            Decision::Start(plan) => plan,
            other => panic!("{other}"),
        },
        _ => return None,
    };
    Some(run(world, world.start_plan(*plan)))
}

/// A write to one of the places: recorded events before it began and when it was acknowledged.
pub(crate) struct Stamped {
    pub(crate) began: usize,
    pub(crate) acknowledged: usize,
    pub(crate) at: u64,
    pub(crate) stamp: u8,
}

/// Writes that block, and notes when.
pub(crate) async fn stamp(group: &Group<TestEnv>, log: &RefCell<Vec<Stamped>>, at: u64, stamp: u8) {
    let events = || group.env().recorder.events.borrow().len();
    let began = events();
    write(group, at, stamp).await;
    log.borrow_mut().push(Stamped { began, acknowledged: events(), at, stamp });
}

/// Every place holds the last write acknowledged before the cut, or one that had begun.
pub(crate) async fn assert_current(group: &Group<TestEnv>, log: &[Stamped], cut: usize, context: &str) {
    for at in places(group) {
        let block = read(group, at).await.unwrap_or_else(|kind| panic!("{context}: {at}: {kind:?}"));
        let mut may: Vec<u8> = vec![1];
        for write in log.iter().filter(|write| write.at == at && write.began <= cut) {
            if write.acknowledged <= cut {
                may.clear();
            }
            may.push(write.stamp);
        }
        assert!(may.contains(&block[0]), "{context}: {} at {at}, may be {may:?}", block[0]);
    }
}

/// Every block reads, and all redundancy matches: whatever subset of the members serves, a read gives the same.
pub(crate) async fn assert_consistent(group: &Group<TestEnv>, context: &str) {
    for at in places(group) {
        let block = read(group, at).await.unwrap_or_else(|kind| panic!("{context}: {at}: {kind:?}"));
        assert!(block.iter().all(|&byte| byte == block[0]), "{context}: a torn block at {at}");
    }
    let state = parking_lot::Mutex::default();
    group.scrub(ScrubMode::Report, &Pace::default(), &state).await.unwrap();
    let report = state.into_inner();
    assert_eq!(report.mismatched, 0, "{context}: redundancy does not match");
    assert_eq!(report.skipped, 0, "{context}");
}
