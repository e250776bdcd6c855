//! A random life of a group against a model: whatever happened to its drives, a stale member never wins (SAFETY P3).

use std::collections::BTreeMap;

use raid_core::geometry::Level;
use raid_core::membership::{
    Decision, Doubt, Mark, Observation, Policy, StartParts, decide, next_epoch, prepare_member, publish,
    store_cursor,
};
use raid_core::ports::{Env, IoKind};
use raid_core::units::{Slot, Uuid};
use raid_core::view::MemberState;

use crate::history::{mark_intent, version_of, write, write_version};
use crate::world::{TestEnv, World, handles, shapes, waited};

/// One life of a group: writes, drops, crashes, clean stops, replacements, restarts with some of the drives.
struct Life {
    world: World,
    group: Uuid,
    level: Level,
    drives: usize,
    running: Option<StartParts>,
    acknowledged: u64,
    next: u64,
    data_start: u64,
    starts: u32,
    /// A host without memory of its groups. A clean mark would let half of a mirror start alone there (M4), so such a
    /// life has no clean stop.
    has_witness: bool,
    /// An older state of a drive, and the epoch it knows.
    old: Option<(usize, crate::world::Image, u64)>,
    rolled_back: u32,
}

impl Life {
    fn new(seed: u64, level: Level, n: usize, has_witness: bool) -> Self {
        let world = World::new(seed, n);
        let group = world.create(level, n, true);
        let parts = world.start(group, &(0..n).collect::<Vec<_>>(), Policy::default());
        let data_start = parts.view.members[0].layout.data_start.0;
        Self {
            world,
            group,
            level,
            drives: n,
            running: Some(parts),
            acknowledged: 0,
            next: 1,
            has_witness,
            data_start,
            starts: 0,
            old: None,
            rolled_back: 0,
        }
    }

    fn random(&self, below: usize) -> usize {
        let below = u64::try_from(below).unwrap();
        usize::try_from(self.world.env.random_u64() % below).unwrap()
    }

    fn version(&self, parts: &StartParts, slot: Slot) -> u64 {
        let drive = usize::try_from(parts.view.member(slot).drive.unwrap().0).unwrap();
        version_of(&self.world, drive, self.data_start)
    }

    fn can_serve(parts: &StartParts) -> bool {
        parts.geometry.is_readable(|slot| parts.view.member(slot).is_in_sync())
    }

    /// A mark round in which the power may go; `None` then.
    fn mark(&mut self, parts: StartParts, mark: Mark) -> Option<StartParts> {
        let power =
            (self.random(4) == 0).then(|| u64::try_from(self.random(2 * parts.view.members.len())).unwrap());
        self.world.env.recorder.power.set(power);
        let (parts, failed) = self.world.mark(parts, mark);
        self.world.env.recorder.power.set(None);
        failed.is_empty().then_some(parts)
    }

    fn write_acknowledged(&mut self) {
        let Some(parts) = self.running.take_if(|parts| Self::can_serve(parts)) else { return };
        let Some(parts) = self.mark(parts, Mark::Dirty) else { return };
        let parts = write(&self.world, parts, self.next);
        self.acknowledged = self.next;
        self.next += 1;
        if parts.view.is_complete() && self.random(2) == 0 {
            mark_intent(&self.world, &parts, false);
        }
        self.running = Some(parts);
    }

    /// Between two writes: a degraded parity group says that it is quiet, any other seals its epoch.
    fn idle(&mut self) {
        let Some(parts) = self.running.take_if(|parts| Self::can_serve(parts)) else { return };
        let is_for_quiet = self.level.parities() > 0 && !parts.view.is_complete();
        self.running = self.mark(parts, if is_for_quiet { Mark::Quiet } else { Mark::Sealed });
    }

    /// A write that reaches some members, then the power goes.
    fn crash_in_a_write(&mut self) {
        let Some(parts) = self.running.take_if(|parts| Self::can_serve(parts)) else { return };
        let Some(parts) = self.mark(parts, Mark::Dirty) else { return };
        mark_intent(&self.world, &parts, true);
        for slot in parts.view.slots().filter(|slot| parts.view.member(*slot).is_in_sync()) {
            if self.random(2) == 0 {
                write_version(&self.world, &parts, slot, self.next);
            }
        }
        self.next += 1;
    }

    /// A member fails in a write, before or after it took the dirty mark; the power may go anywhere in the drop, and then
    /// any part of the write is lost.
    fn drop_one(&mut self) {
        let Some(mut parts) = self.running.take() else { return };
        let slot = Slot(u8::try_from(self.random(parts.view.members.len())).unwrap());
        let left = |other: Slot| parts.view.member(other).is_in_sync() && other != slot;
        if parts.view.member(slot).is_missing() || !parts.geometry.is_readable(left) {
            self.running = Some(parts);
            return;
        }
        let others: Vec<Slot> = parts.view.slots().filter(|other| left(*other)).collect();
        let version = self.next;
        self.next += 1;
        if self.random(2) == 0 {
            parts.view.members[slot.index()].state = MemberState::Missing { why: Some(IoKind::Gone) };
        }
        let (parts, failed) = self.world.mark(parts, Mark::Dirty);
        assert!(failed.is_empty());
        mark_intent(&self.world, &parts, true);
        let power =
            (self.random(3) == 0).then(|| u64::try_from(self.random(2 * parts.view.members.len())).unwrap());
        for other in others {
            if power.is_none() || self.random(3) > 0 {
                write_version(&self.world, &parts, other, version);
            }
        }
        self.world.env.recorder.power.set(power);
        let (parts, failed) = self.world.drop_member(parts, slot);
        self.world.env.recorder.power.set(None);
        if failed.is_empty() && power.is_none() {
            self.acknowledged = version;
            self.running = Some(parts);
        }
    }

    /// Keeps the state of a drive, for [`Life::roll_back`].
    fn keep_old(&mut self) {
        let drive = self.random(self.drives);
        if let Observation::Ours(ours) = &self.world.observe(&[drive])[0].what {
            self.old = Some((drive, self.world.drive(drive).image(), ours.copy.epoch().counter));
        }
    }

    /// While the group is down, an older state of a drive comes back. Recognised only if all others know that its member had
    /// taken a later epoch.
    fn roll_back(&mut self) {
        if self.running.is_some() || self.random(2) == 0 {
            return;
        }
        let Some((drive, image, epoch)) = self.old.clone() else { return };
        let others: Vec<usize> = (0..self.drives).filter(|other| *other != drive).collect();
        let knows = |seen: &raid_core::membership::Observed| match &seen.what {
            Observation::Ours(ours) => ours.copy.sealed_at > epoch,
            _ => true,
        };
        if self.has_witness && self.world.observe(&others).iter().all(knows) {
            self.world.drive(drive).set_image(image);
            self.old = None;
            self.rolled_back += 1;
        }
    }

    fn replace_one(&mut self) {
        let Some(parts) = &self.running else { return };
        let missing = parts.view.slots().find(|slot| parts.view.member(*slot).is_missing());
        let (Some(slot), true) = (missing, self.drives < 12) else { return };
        let key = self.world.add(8 << 20, raid_core::units::BlockSize::B512);
        self.drives += 1;
        let mut parts = self.running.take().unwrap();
        parts = self.world.run(move |env| async move {
            let drives = handles(&env, &parts.view);
            let drive = env.drive(key).unwrap();
            let member = prepare_member(&env, &parts.meta, &parts.view, slot, (key, &drive), &drives).await;
            parts.view.members[slot.index()] = member.unwrap();
            publish_next(&env, &mut parts).await;
            let drives = handles(&env, &parts.view);
            store_cursor(&env, &parts.meta, &parts.view, slot, 65_536, &drives).await.unwrap();
            parts
        });
        self.running = Some(parts);
    }

    /// Ends a rebuild, if one runs: the data is copied, flushed, then the member is in sync.
    fn finish_rebuild(&mut self) {
        let Some(mut parts) = self.running.take() else { return };
        let rebuilding = |slot: &Slot| parts.view.member(*slot).state == MemberState::Rebuilding;
        if let Some(slot) = parts.view.slots().find(rebuilding) {
            write_version(&self.world, &parts, slot, self.acknowledged);
            parts.view.members[slot.index()].state = MemberState::InSync;
            parts = self.world.run(|env| async move {
                publish_next(&env, &mut parts).await;
                parts
            });
        }
        self.running = Some(parts);
    }

    fn stop(&mut self) {
        if let Some(parts) = self.running.take_if(|_| self.has_witness) {
            self.world.stop(parts);
        }
    }

    fn restart(&mut self) {
        if self.running.is_some() {
            return;
        }
        let present: Vec<usize> = (0..self.drives).filter(|_| self.random(4) > 0).collect();
        let observed = self.world.observe(&present);
        let witness = self.world.witness().filter(|_| self.has_witness);
        let Decision::Start(plan) = decide(self.group, &observed, witness.as_ref(), waited()) else { return };
        assert!(!plan.is_forced);
        let doubt = plan.doubt;
        let parts = self.world.start_plan(*plan);
        self.starts += 1;
        let versions: BTreeMap<Slot, u64> = parts
            .view
            .slots()
            .filter(|slot| parts.view.member(*slot).is_in_sync())
            .map(|slot| (slot, self.version(&parts, slot)))
            .collect();
        let at_least = self.acknowledged;
        assert!(
            versions.values().all(|version| *version >= at_least),
            "{} drives {present:?}: acknowledged {at_least}, members have {versions:?}",
            self.level
        );
        let torn = versions.values().any(|version| Some(version) != versions.values().next());
        if torn {
            assert_eq!(doubt, Doubt::Torn, "members differ and nobody resyncs them");
            let bits = &parts.bitmap.as_ref().unwrap().bits;
            assert!(bits.is_dirty(0), "the intent bit of a torn write is lost");
            let parity_is_complete = parts.view.is_complete() || self.level.parities() == 0;
            assert!(parity_is_complete, "dirty and degraded parity group started by itself");
        }
        // The resync: all take the version of the first.
        let version = *versions.values().next().unwrap();
        for slot in versions.keys() {
            write_version(&self.world, &parts, *slot, version);
        }
        self.acknowledged = version;
        if parts.view.is_complete() {
            mark_intent(&self.world, &parts, false);
        }
        self.running = Some(parts);
    }
}

async fn publish_next(env: &TestEnv, parts: &mut StartParts) {
    parts.view.epoch = next_epoch(env, parts.view.epoch);
    parts.view.version += 1;
    let failed = publish(env, &parts.meta, &parts.view, &handles(env, &parts.view)).await;
    assert!(failed.is_empty());
}

#[test]
fn p3_no_random_life_lets_a_stale_member_win() {
    let (mut starts, mut rolled_back) = (0, 0);
    for (level, n) in shapes().into_iter().filter(|(level, _)| level.is_redundant()) {
        for seed in 0..12 {
            let mut life = Life::new(seed * 1000 + u64::from(level.number()), level, n, seed % 3 > 0);
            for _ in 0..60 {
                match life.random(10) {
                    0 | 1 => life.write_acknowledged(),
                    2 => life.crash_in_a_write(),
                    3 => life.drop_one(),
                    4 => life.replace_one(),
                    5 => life.finish_rebuild(),
                    6 => life.stop(),
                    7 => life.idle(),
                    8 => life.keep_old(),
                    _ => {}
                }
                life.roll_back();
                life.restart();
            }
            starts += life.starts;
            rolled_back += life.rolled_back;
        }
    }
    assert!(starts > 500, "the lives hardly ever restart ({starts}): the test proves little");
    assert!(rolled_back > 50, "hardly ever an old state of a drive ({rolled_back}): the test proves little");
}
