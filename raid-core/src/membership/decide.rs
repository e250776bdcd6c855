//! Who is current: a pure function from what lies on the drives and what the host remembers to one decision.
//!
//! The rules, in the order they are applied (SAFETY):
//!
//! 1. **History** (M1, P7). A member *follows* another if its epoch is in the other's chain, or is the one the other
//!    records as its last in sync. Members nobody else's history contains are *tips*; more than one tip is a split
//!    history (SL-01): nobody is overwritten, and unless only one side can ever have run, the operator chooses.
//! 2. **Newer elsewhere** (M4). A witness, or a damaged member, that knows a newer epoch refuses the start.
//! 3. **Who is current** (M1, M5). Those the tip lists as in sync. If these are too few to serve (the group went offline),
//!    those in sync in the last epoch that could: nothing was acknowledged after it.
//!    Before that: members between two owners (an adopt or release that was cut short) start only all together.
//! 4. **Enough** (S9). Else the missing members are named; a blank drive is never one of them.
//! 5. **The wait** (SL-04). Members that should be here are waited for before a degraded start.
//! 6. **Unproven** (M4). If the absent ones could have gone on without us, a clean mark or the witness must say they did
//!    not; else only by force.
//! 7. **Dirty and degraded** (P2, SL-09). A parity group without journal that was being written: only by force, marked for
//!    ever. One that was stopped, or is quiet (`Case::is_quiet`), has no torn stripe.
//!
//! Invariant: wall clock, device names, and the order or number of drives seen never matter (P7, OT-05).

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use super::observe::{Observation, Observed, Ours};
use super::refusal::{LeftOut, Lost, Refusal};
use crate::format::bitmap::{AREA_BYTES, Bits, choose_chunk_bytes, sync_bytes};
use crate::format::extension::{CHAIN_MAX, SlotRecord, SlotState};
use crate::ports::DriveKey;
use crate::units::{Slot, Uuid};
use crate::view::{Epoch, Witness};

/// What the operator, and the clock of the daemon, allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// Start against rules 2, 6 and 7; the group is marked for ever.
    pub force: bool,
    /// The wait for missing members is over.
    pub waited: bool,
    /// The side of a split history to go on with: device uuid of a member of it.
    pub choose: Option<Uuid>,
}

/// What is to be done with a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Start.
    Start(Box<StartPlan>),
    /// Could start without these slots, but only after they have been waited for.
    WaitFor {
        /// Slots whose members should be here, and their device uuids.
        missing: Vec<Lost>,
    },
    /// Do not start.
    Refuse(Refusal),
}

/// What a member starts as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlannedState {
    /// Current everywhere.
    InSync,
    /// Current below so many bytes of its data area.
    Rebuilding(u64),
    /// Nothing usable.
    Missing,
}

/// One slot of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedSlot {
    /// What it starts as.
    pub state: PlannedState,
    /// Its drive and what is on it, unless missing.
    pub member: Option<(DriveKey, Box<Ours>)>,
    /// What the tip records of the slot.
    pub record: SlotRecord,
}

/// How far the regions with a set intent bit can be believed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Doubt {
    /// They are consistent; the bits only tell what a missing member lacks.
    None,
    /// Parity or copies do not match yet (initial sync pending), but no write was cut short (SAFETY S1).
    Unsynced,
    /// Writes may have been cut short there by a crash.
    Torn,
}

/// A start that is allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartPlan {
    /// The member whose record of the group counts.
    pub tip: Box<Ours>,
    /// Every slot.
    pub slots: Vec<PlannedSlot>,
    /// Intent bits of all current members together; `None` on a group without a bitmap.
    pub bits: Option<Bits>,
    /// Bytes that one of them stands for.
    pub intent_chunk_bytes: Option<u64>,
    /// What the set bits mean.
    pub doubt: Doubt,
    /// The start broke a rule on the operator's word.
    pub is_forced: bool,
    /// The highest epoch counter heard of anywhere: the start goes above it.
    pub counter_floor: u64,
    /// Members whose drive is here, damaged or changed by others: they come back only by a rebuild of everything.
    pub distrusted: Vec<Uuid>,
    /// Members present but not used.
    pub left_out: Vec<LeftOut>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

impl StartPlan {
    /// Whether a slot starts in sync.
    #[must_use]
    pub fn is_in_sync(&self, slot: Slot) -> bool {
        self.slots[slot.index()].state == PlannedState::InSync
    }
}

/// The groups that were seen: uuid and what is known of each.
#[must_use]
pub fn groups_of(observed: &[Observed]) -> BTreeSet<Uuid> {
    observed.iter().filter_map(Observed::group).collect()
}

/// A member of the group among the drives seen.
#[derive(Clone, Copy)]
struct Seen<'a> {
    key: DriveKey,
    ours: &'a Ours,
}

impl Seen<'_> {
    fn epoch(&self) -> Epoch {
        self.ours.copy.epoch()
    }

    fn device(&self) -> Uuid {
        self.ours.copy.device_uuid
    }

    fn own_record(&self) -> Option<&SlotRecord> {
        self.ours.copy.slots.iter().find(|slot| slot.device_uuid == self.device())
    }

    /// Whether this member's past is part of `other`'s history (M1).
    fn follows(&self, other: &Ours) -> bool {
        let epoch = self.epoch();
        let listed = other.copy.slots.iter().find(|slot| slot.device_uuid == self.device());
        let in_history =
            other.copy.chain.contains(&epoch) || listed.is_some_and(|slot| slot.last_in_sync == epoch);
        // In sync by its own word in an epoch in which the other says it was not: not one history (M1).
        let contradicts = listed.zip(self.own_record()).is_some_and(|(theirs, own)| {
            own.state == SlotState::InSync && epoch.counter > theirs.last_in_sync.counter
        });
        in_history && !contradicts
    }
}

/// Decides about one group. `observed` may hold drives of other groups; they are passed over.
#[must_use]
pub fn decide(group: Uuid, observed: &[Observed], witness: Option<&Witness>, policy: Policy) -> Decision {
    match try_decide(group, observed, witness.filter(|witness| witness.group == group), policy) {
        Ok(decision) => decision,
        Err(refusal) => Decision::Refuse(refusal),
    }
}

fn try_decide(
    group: Uuid,
    observed: &[Observed],
    witness: Option<&Witness>,
    policy: Policy,
) -> Result<Decision, Refusal> {
    let mut seen: Vec<Seen<'_>> = observed
        .iter()
        .filter_map(|drive| match &drive.what {
            Observation::Ours(ours) if ours.copy.group == group => Some(Seen { key: drive.key, ours }),
            _ => None,
        })
        .collect();
    // Not by drive: the order in which drives were found must not matter (OT-05).
    seen.sort_by_key(|member| (member.device(), member.ours.copy.sequence));
    if let Some(pair) = seen.windows(2).find(|pair| pair[0].device() == pair[1].device()) {
        return Err(Refusal::Twins { device_uuid: pair[0].device(), drives: [pair[0].key, pair[1].key] });
    }
    let mut left_out = others(group, observed);
    let distrusted = left_out.iter().filter_map(|member| member.device_uuid).collect();
    let tips = tips(&seen);
    let tip = choose_tip(&tips, &seen, policy)?;
    check_taken_over(group, observed, tip.map(|tip| tip.ours), policy)?;
    let Some(tip) = tip else {
        return Err(Refusal::NoMembers { unusable: left_out });
    };
    if tip.ours.copy.marks.deleted {
        let (name, deleted_unix_s) = (tip.ours.copy.name.clone(), tip.ours.copy.deleted_unix_s);
        return Err(Refusal::Tombstoned { name, deleted_unix_s });
    }
    let mut case = Case::new(tip, &seen, policy);
    case.distrusted = distrusted;
    left_out.append(&mut case.left_out);
    case.left_out = left_out;
    case.check_owner(&seen)?;
    case.check_newer(group, observed, witness)?;
    case.check_enough()?;
    if let Some(missing) = case.check_wait() {
        return Ok(Decision::WaitFor { missing });
    }
    case.check_proven(witness)?;
    case.check_torn()?;
    Ok(Decision::Start(Box::new(case.into_plan())))
}

/// Members that are no use: named, never written.
fn others(group: Uuid, observed: &[Observed]) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    for drive in observed.iter().filter(|drive| drive.group() == Some(group)) {
        let (device_uuid, why) = match &drive.what {
            Observation::Modified { device_uuid, what, .. } => {
                (Some(*device_uuid), format!("modified by other software: {what}"))
            }
            Observation::Damaged { device_uuid, what, .. } => (*device_uuid, format!("damaged: {what}")),
            _ => continue,
        };
        left_out.push(LeftOut { drive: drive.key, device_uuid, why });
    }
    left_out.sort_by_key(|member| (member.device_uuid, member.drive));
    left_out
}

/// Refuses if md may have run the group meanwhile: a member that should be in it shows so.
fn check_taken_over(
    group: Uuid,
    observed: &[Observed],
    tip: Option<&Ours>,
    policy: Policy,
) -> Result<(), Refusal> {
    let belongs = |uuid: &Uuid| {
        tip.is_none_or(|tip| {
            let listed = tip.copy.slots.iter().find(|slot| slot.device_uuid == *uuid);
            listed.is_some_and(|slot| slot.state != SlotState::Missing)
        })
    };
    let shows = observed.iter().find_map(|drive| match &drive.what {
        Observation::Modified { group: of, device_uuid, taken_over: true, what }
            if *of == group && belongs(device_uuid) =>
        {
            Some((drive.key, *device_uuid, what.clone()))
        }
        _ => None,
    });
    match shows {
        Some((drive, device_uuid, what)) if !policy.force => {
            Err(Refusal::ModifiedByOtherSoftware { drive, device_uuid, what })
        }
        _ => Ok(()),
    }
}

/// One member per tip of history: of those that know the tip's epoch, the one written last.
fn tips<'a>(seen: &[Seen<'a>]) -> Vec<Seen<'a>> {
    let mut tips: BTreeMap<(u64, Uuid), Seen<'a>> = BTreeMap::new();
    for member in seen.iter().filter(|member| !member.ours.copy.marks.creating) {
        let epoch = member.epoch();
        if seen.iter().any(|other| {
            other.epoch() != epoch && !other.ours.copy.marks.creating && member.follows(other.ours)
        }) {
            continue;
        }
        let known = tips.entry((epoch.counter, epoch.id)).or_insert(*member);
        if member.ours.copy.sequence > known.ours.copy.sequence {
            *known = *member;
        }
    }
    tips.into_values().rev().collect()
}

/// The tip to go on from; `None` if there is no member at all.
fn choose_tip<'a>(tips: &[Seen<'a>], seen: &[Seen<'a>], policy: Policy) -> Result<Option<Seen<'a>>, Refusal> {
    if let Some(wanted) = policy.choose {
        let knows = |tip: &&Seen<'a>| {
            seen.iter().any(|member| member.device() == wanted && member.epoch() == tip.epoch())
        };
        return match tips.iter().find(knows) {
            Some(tip) => Ok(Some(*tip)),
            None => Err(Refusal::NoSuchSide { device_uuid: wanted }),
        };
    }
    match tips {
        [] if seen.is_empty() => Ok(None),
        [] => Err(Refusal::UnfinishedCreate { name: seen[0].ours.copy.name.clone() }),
        [tip] => Ok(Some(*tip)),
        _ => {
            // A side that could not serve even with every absent member of its own cannot have run apart.
            let able: Vec<&Seen<'a>> = tips
                .iter()
                .filter(|tip| could_have_run(tip, seen) && !tips.iter().any(|other| is_forgotten(tip, other)))
                .collect();
            match able[..] {
                [tip] => Ok(Some(*tip)),
                _ => Err(Refusal::Diverged { sides: sides(tips, seen) }),
            }
        }
    }
}

/// Whether `tip` is older than all that `other` remembers of its own history. Such a member was away for at least a whole
/// chain of epochs; it is left alone, and does not hold up the group.
fn is_forgotten(tip: &Seen<'_>, other: &Seen<'_>) -> bool {
    let chain = &other.ours.copy.chain;
    chain.len() == CHAIN_MAX && tip.epoch().counter < chain[0].counter
}

fn could_have_run(tip: &Seen<'_>, seen: &[Seen<'_>]) -> bool {
    let current = current_slots(tip.ours);
    tip.ours.geometry.is_readable(|slot| {
        let device = tip.ours.copy.slots[slot.index()].device_uuid;
        let elsewhere = seen.iter().any(|member| member.device() == device && !member.follows(tip.ours));
        current[slot.index()] && !elsewhere
    })
}

fn sides(tips: &[Seen<'_>], seen: &[Seen<'_>]) -> Vec<(Epoch, Vec<Uuid>)> {
    let members = |tip: &Seen<'_>| {
        let of_side = seen.iter().filter(|member| member.epoch() == tip.epoch());
        (tip.epoch(), of_side.map(Seen::device).collect())
    };
    tips.iter().map(members).collect()
}

/// Which slots hold current data by the record of `tip`: those in sync; or, if these are too few to serve, those that
/// were in sync in the last epoch in which there were enough (M5: nothing was acknowledged after it).
fn current_slots(tip: &Ours) -> Vec<bool> {
    let slots = &tip.copy.slots;
    let in_sync: Vec<bool> = slots.iter().map(|slot| slot.state == SlotState::InSync).collect();
    if tip.geometry.is_readable(|slot| in_sync[slot.index()]) {
        return in_sync;
    }
    let counters: BTreeSet<u64> =
        slots.iter().map(|slot| slot.last_in_sync.counter).filter(|&counter| counter > 0).collect();
    let at = |counter: u64| -> Vec<bool> {
        slots.iter().map(|slot| slot.last_in_sync.counter >= counter).collect()
    };
    let enough = |counter: &u64| {
        let current = at(*counter);
        tip.geometry.is_readable(|slot| current[slot.index()])
    };
    counters.into_iter().rev().find(enough).map_or(in_sync, at)
}

/// The side being decided about.
struct Case<'a> {
    tip: Seen<'a>,
    policy: Policy,
    /// By the record of the tip, per slot.
    current: Vec<bool>,
    /// Present members that may be used, per slot.
    present: Vec<Option<Seen<'a>>>,
    states: Vec<PlannedState>,
    bits: Option<Bits>,
    intent_chunk_bytes: Option<u64>,
    doubt: Doubt,
    is_forced: bool,
    counter_floor: u64,
    distrusted: Vec<Uuid>,
    left_out: Vec<LeftOut>,
    warnings: Vec<String>,
}

impl<'a> Case<'a> {
    fn new(tip: Seen<'a>, seen: &[Seen<'a>], policy: Policy) -> Self {
        let slots = &tip.ours.copy.slots;
        let current = current_slots(tip.ours);
        let mut this = Self {
            tip,
            policy,
            present: vec![None; slots.len()],
            states: vec![PlannedState::Missing; slots.len()],
            current,
            bits: None,
            intent_chunk_bytes: None,
            doubt: Doubt::None,
            is_forced: false,
            counter_floor: seen.iter().map(|member| member.epoch().counter).max().unwrap_or(0),
            distrusted: Vec::new(),
            left_out: Vec::new(),
            warnings: Vec::new(),
        };
        for member in seen {
            if let Err(why) = this.place(member) {
                let device_uuid = Some(member.device());
                this.left_out.push(LeftOut { drive: member.key, device_uuid, why });
            }
        }
        this.merge_bits();
        this.doubt = this.doubt();
        this
    }

    /// What the set intent bits mean.
    fn doubt(&self) -> Doubt {
        let marks = self.tip.ours.copy.marks;
        if marks.torn || !(self.was_stopped() || self.is_quiet()) {
            Doubt::Torn
        } else if marks.unsynced {
            Doubt::Unsynced
        } else {
            Doubt::None
        }
    }

    /// Stopped cleanly while it could serve: nothing is written after that.
    fn was_stopped(&self) -> bool {
        let slots = &self.tip.ours.copy.slots;
        let went_offline =
            self.current.iter().zip(slots).any(|(current, slot)| *current && slot.state != SlotState::InSync);
        self.tip.ours.copy.marks.clean && !went_offline
    }

    /// Whether no stripe of a parity group can be torn, although it was not stopped (P2).
    ///
    /// A write makes every member of its view dirty before its first commit. So none began, since it was marked, under a
    /// view with a member that is quiet (or clean) now. If all present members are, no unfinished write touched any of
    /// them. If only some are (a crash, or a lost member, while they were being made dirty), one of them must still have
    /// been in that view: a view that could write lacks at most as many of the current members as parity makes up for.
    fn is_quiet(&self) -> bool {
        let geometry = &self.tip.ours.geometry;
        let parities = usize::from(geometry.level().parities());
        let current = self.current.iter().filter(|current| **current).count();
        let spare = (parities + current).saturating_sub(usize::from(geometry.members()));
        let slots = (0u8..).map(Slot).take(self.states.len());
        let used = slots.filter(|slot| self.is_in_sync(*slot)).filter_map(|slot| self.present[slot.index()]);
        let marks: Vec<_> = used.map(|member| member.ours.copy.marks).collect();
        let quiet = marks.iter().filter(|marks| marks.quiet || marks.clean).count();
        parities > 0 && quiet > 0 && (quiet == marks.len() || quiet > spare)
    }

    /// Puts a present member into its slot, or says why it is not used.
    fn place(&mut self, member: &Seen<'a>) -> Result<(), String> {
        if !member.follows(self.tip.ours) {
            return Err(format!(
                "conflict: its history (epoch {}) is not that of the group; left untouched until you choose a side",
                member.epoch()
            ));
        }
        let device = member.device();
        let slots = &self.tip.ours.copy.slots;
        let Some(i) = slots.iter().position(|slot| slot.device_uuid == device) else {
            if member.ours.copy.marks.creating {
                return Err("prepared as a replacement, but never taken into the group".to_owned());
            }
            return Err("another drive has taken its place in the group".to_owned());
        };
        if self.current[i] && self.is_rolled_back(member, &slots[i]) {
            return Err(format!(
                "stale: it is at epoch {}, but had taken epoch {} with all others: an older state of the drive came back",
                member.epoch().counter,
                self.tip.ours.copy.sealed_at
            ));
        }
        if self.current[i] {
            self.states[i] = PlannedState::InSync;
        } else if slots[i].state == SlotState::Rebuilding {
            let is_tips = member.epoch() == self.tip.epoch();
            let own = member.own_record().filter(|own| own.state == SlotState::Rebuilding);
            // A member that came back may have been here before under the same device uuid: the cursor of that time says
            // nothing about what was written since (M6). A replacement's uuid is new every time.
            let own = own.filter(|own| is_tips || !(own.by_intents || slots[i].by_intents));
            self.states[i] = PlannedState::Rebuilding(own.map_or(0, |own| own.cursor_bytes));
        } else {
            return Err(format!(
                "stale: last in sync in epoch {}, the group is at {}",
                slots[i].last_in_sync.counter,
                self.tip.epoch().counter
            ));
        }
        self.present[i] = Some(*member);
        for note in &member.ours.notes {
            self.warnings.push(format!("slot {i} ({device}): {note}"));
        }
        Ok(())
    }

    /// Whether a member that counts as in sync carries an older epoch than it must have had (P3). An epoch is sealed only
    /// after every member in sync has taken it, so a crash in the middle of a publish, which leaves members behind, never
    /// leaves one behind a sealed epoch.
    fn is_rolled_back(&self, member: &Seen<'_>, record: &SlotRecord) -> bool {
        record.state == SlotState::InSync && member.epoch().counter < self.tip.ours.copy.sealed_at
    }

    fn is_in_sync(&self, slot: Slot) -> bool {
        self.states[slot.index()] == PlannedState::InSync
    }

    /// The intent bits of all current members together: a bit that one of them has is set.
    fn merge_bits(&mut self) {
        let slots = 0..u8::try_from(self.states.len()).expect("at most 128 slots");
        let current: Vec<&Ours> = slots
            .map(Slot)
            .filter(|slot| self.is_in_sync(*slot))
            .filter_map(|slot| self.present[slot.index()].map(|member| member.ours))
            .collect();
        if current.iter().all(|ours| ours.copy.layout.bitmap.is_none()) {
            return;
        }
        let mut merged: Option<Bits> = None;
        for image in current.iter().filter_map(|ours| ours.bitmap.as_ref()) {
            match &mut merged {
                None => {
                    merged = Some(image.bits.clone());
                    self.intent_chunk_bytes = Some(u64::from(image.header.chunk_bytes));
                }
                Some(bits) if bits.len() == image.bits.len() => bits.merge(&image.bits),
                Some(bits) => *bits = Bits::all_dirty(bits.len()),
            }
        }
        if merged.is_none() {
            self.warnings.push("no member has a usable bitmap: everything is resynced".to_owned());
            let geometry = &self.tip.ours.geometry;
            let sync = sync_bytes(geometry);
            // An adopted array's bitmap has the room that md gave it.
            let rooms = current.iter().filter_map(|ours| ours.copy.layout.bitmap.as_ref());
            let space = rooms.map(|range| range.end - range.start).min().unwrap_or(AREA_BYTES);
            let chunk = choose_chunk_bytes(sync, space);
            merged = Some(Bits::all_dirty(sync.div_ceil(chunk)));
            self.intent_chunk_bytes = Some(chunk);
        }
        self.bits = merged;
    }

    fn lost(&self, wanted: impl Fn(usize) -> bool) -> Vec<Lost> {
        let slots = (0u8..).map(Slot).zip(&self.tip.ours.copy.slots);
        slots
            .filter(|(slot, _)| wanted(slot.index()) && self.present[slot.index()].is_none())
            .map(|(slot, record)| Lost { slot, device_uuid: record.device_uuid })
            .collect()
    }

    /// Breaks a rule if the operator said so, else refuses.
    fn unless_forced(&mut self, refusal: Refusal) -> Result<(), Refusal> {
        if !self.policy.force {
            return Err(refusal);
        }
        self.warnings.push(format!("started by force: {refusal}"));
        self.is_forced = true;
        Ok(())
    }

    /// An adopt or a release that was cut short. As soon as one member has the claim, and as long as one still has it, the
    /// group is ours; but one that is not here may be without it, and md may have run that one since (M4).
    fn check_owner(&mut self, seen: &[Seen<'a>]) -> Result<(), Refusal> {
        let name = self.tip.ours.copy.name.clone();
        if !seen.iter().any(|member| member.ours.is_claimed) {
            return Err(Refusal::OwnedByMd { name });
        }
        if !self.tip.ours.copy.marks.is_between_owners() {
            return Ok(());
        }
        let slots = &self.tip.ours.copy.slots;
        let missing = self.lost(|i| slots[i].state != SlotState::Missing);
        if missing.is_empty() {
            return Ok(());
        }
        self.unless_forced(Refusal::HalfHandedOver { name, missing })
    }

    /// M4: nobody may know a newer epoch than the tip.
    fn check_newer(
        &mut self,
        group: Uuid,
        observed: &[Observed],
        witness: Option<&Witness>,
    ) -> Result<(), Refusal> {
        let chain = &self.tip.ours.copy.chain;
        let unknown = |epoch: Epoch| !chain.contains(&epoch) && epoch.counter >= chain[0].counter;
        let mut newer: Vec<(Epoch, Vec<Uuid>)> = Vec::new();
        for drive in observed {
            if let Observation::Damaged { group: Some(of), epoch: Some(epoch), .. } = &drive.what
                && *of == group
                && unknown(*epoch)
            {
                newer.push((*epoch, Vec::new()));
            }
        }
        // A side the operator chose himself may well be another than the one this host ran last.
        if let Some(witness) = witness
            && unknown(witness.epoch)
            && self.policy.choose.is_none()
        {
            newer.push((witness.epoch, witness.in_sync.clone()));
        }
        self.counter_floor = self.counter_floor.max(witness.map_or(0, |witness| witness.epoch.counter));
        for (known, in_sync) in newer {
            self.counter_floor = self.counter_floor.max(known.counter);
            let have = self.tip.epoch();
            self.unless_forced(Refusal::NewerEpochKnown { known, have, in_sync })?;
        }
        Ok(())
    }

    /// S9, M5: enough members that are current, or the names of those that are missing.
    fn check_enough(&self) -> Result<(), Refusal> {
        let geometry = &self.tip.ours.geometry;
        if geometry.is_readable(|slot| self.is_in_sync(slot)) {
            return Ok(());
        }
        Err(Refusal::NotEnoughMembers {
            level: geometry.level(),
            slots: geometry.members(),
            present: self.states.iter().filter(|state| **state == PlannedState::InSync).count(),
            needs: self.lost(|i| self.current[i]),
            left_out: self.left_out.clone(),
        })
    }

    /// Members that should be here and are not, until the wait is over.
    fn check_wait(&self) -> Option<Vec<Lost>> {
        let rebuilding = |i: usize| self.tip.ours.copy.slots[i].state == SlotState::Rebuilding;
        let missing = self.lost(|i| self.current[i] || rebuilding(i));
        (!missing.is_empty() && !self.policy.waited).then_some(missing)
    }

    /// M4: could the absent members have dropped all the present ones and gone on? Then something must prove they did
    /// not. A mirror's last member is the plain case; half of a RAID 6 of 4 is another. Of RAID 10 only a whole set of
    /// absent halves can: another pair that is present and knows nothing newer proves it.
    fn check_proven(&mut self, witness: Option<&Witness>) -> Result<(), Refusal> {
        // One that was being rebuilt may have ended that since.
        let rebuilding = |i: usize| self.tip.ours.copy.slots[i].state == SlotState::Rebuilding;
        let listed = |i: usize| self.current[i] || rebuilding(i);
        let absent = |slot: Slot| listed(slot.index()) && self.present[slot.index()].is_none();
        let could_go_on = self.tip.ours.geometry.is_readable(absent);
        let is_proven = self.tip.ours.copy.marks.clean
            || witness.is_some_and(|witness| witness.epoch == self.tip.epoch());
        if !could_go_on || is_proven {
            return Ok(());
        }
        let absent = self.lost(listed);
        self.unless_forced(Refusal::LastMirrorUnproven { absent })
    }

    /// P2, SL-09: without a journal, writes cut short by a crash cannot be told from whole ones once a member is gone.
    fn check_torn(&mut self) -> Result<(), Refusal> {
        let is_parity = self.tip.ours.geometry.level().parities() > 0;
        let is_degraded = self.states.iter().any(|state| *state != PlannedState::InSync);
        let dirty = self.bits.as_ref().map(Bits::dirty);
        if !is_parity || !is_degraded || self.doubt != Doubt::Torn || dirty == Some(0) {
            return Ok(());
        }
        let missing = self.lost(|_| true);
        self.unless_forced(Refusal::DirtyAndDegraded { missing, dirty_regions: dirty })?;
        // The operator took the risk: from now on parity counts as it is, or every later start would ask again and the
        // missing blocks there could never be rebuilt. What may be wrong stays marked for ever (`forced_at`).
        self.doubt = Doubt::Unsynced;
        Ok(())
    }

    fn into_plan(self) -> StartPlan {
        let slots = self
            .states
            .into_iter()
            .zip(self.present)
            .zip(&self.tip.ours.copy.slots)
            .map(|((state, member), record)| PlannedSlot {
                state,
                member: member.map(|member| (member.key, Box::new(member.ours.clone()))),
                record: record.clone(),
            })
            .collect();
        StartPlan {
            tip: Box::new(self.tip.ours.clone()),
            slots,
            bits: self.bits,
            intent_chunk_bytes: self.intent_chunk_bytes,
            doubt: self.doubt,
            is_forced: self.is_forced,
            counter_floor: self.counter_floor,
            distrusted: self.distrusted,
            left_out: self.left_out,
            warnings: self.warnings,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(plan) => {
                let n = plan.slots.iter().filter(|slot| slot.state == PlannedState::InSync).count();
                write!(f, "start {} with {n} of {} members in sync", plan.tip.copy.name, plan.slots.len())
            }
            Self::WaitFor { missing } => {
                f.write_str("waiting for ")?;
                super::refusal::list(f, missing)
            }
            Self::Refuse(refusal) => refusal.fmt(f),
        }
    }
}
