//! What a group's metadata holds beside its view: identity, the chain of epochs, md's counters, and per member the
//! superblock and where its newest extension copy lies. From it every copy and superblock is made.
//!
//! Invariants: the chain is ascending and its last epoch is the newest one ever handed out for this group; `events` never
//! goes down and is even when clean, odd when dirty, as md has it; a member's next copy goes to the place of its older
//! one. The lock inside is never held over an await; one change runs at a time ([`TurnLock`]).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::format::anchor::{ANCHOR_AT, Anchor};
use crate::format::bytes::put;
use crate::format::extension::{CHAIN_MAX, CopyPlace, Extension, Marks, SlotRecord, SlotState};
use crate::format::superblock::{
    FEATURE_BITMAP, FEATURE_RECOVERY, FEATURE_RECOVERY_BITMAP, FEATURE_REPLACEMENT, IN_SYNC, MdRole,
    SUPERBLOCK_SLOT_BYTES, Superblock, sectors,
};
use crate::geometry::{Geometry, Level};
use crate::ports::{IoError, IoKind};
use crate::sync::TurnLock;
use crate::units::{BlockSize, DriveOffset, Slot, Uuid, usize_of_u32};
use crate::view::{Epoch, Member, MemberLayout, MemberState, View, Witness};

/// What never changes about a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// md's set uuid.
    pub group: Uuid,
    /// Name.
    pub name: String,
    /// Level, members, chunk, bytes used of each member.
    pub geometry: Geometry,
    /// Block size of the group: the largest of its members at create.
    pub block_size: BlockSize,
    /// When it was created, unix seconds.
    pub created_unix_s: u64,
}

/// A member's own metadata as it lies on its drive.
#[derive(Clone, Debug)]
pub(super) struct OnDrive {
    pub(super) superblock: Superblock,
    pub(super) layout: MemberLayout,
    pub(super) newest: CopyPlace,
    /// Prepared as a replacement, not in any view yet.
    pub(super) is_joining: bool,
    /// Prepared to come back by intents (SAFETY M6), not in any view yet.
    pub(super) is_returning: bool,
    /// Being filled to take this slot while its member still serves; no epoch lists it yet.
    pub(super) succeeds: Option<Slot>,
}

/// The part that changes.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) chain: Vec<Epoch>,
    /// Of the last copy staged for any member.
    pub(super) sequence: u64,
    pub(super) events: u64,
    pub(super) events_cleared: u64,
    pub(super) marks: Marks,
    /// Every member that takes part has the newest epoch: it may be sealed.
    pub(super) is_taken: bool,
    pub(super) sealed_at: u64,
    pub(super) forced_at: u64,
    pub(super) deleted_unix_s: u64,
    pub(super) roles: Vec<u16>,
    pub(super) slots: Vec<SlotRecord>,
    pub(super) on_drive: BTreeMap<Uuid, OnDrive>,
    pub(super) witness_error: Option<IoError>,
}

/// Metadata of a group whose members carry it.
#[derive(Debug)]
pub struct Persistent {
    identity: Identity,
    pub(super) turn: TurnLock,
    pub(super) state: Mutex<State>,
}

/// A copy and the superblock slot that follows it, ready to be written.
pub(super) struct Staged {
    pub(super) copy: Option<(DriveOffset, Vec<u8>)>,
    pub(super) slot: Vec<u8>,
}

impl Persistent {
    pub(super) fn new(identity: Identity, state: State) -> Self {
        Self { identity, turn: TurnLock::default(), state: Mutex::new(state) }
    }

    /// What never changes.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The newest epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.state.lock().epoch()
    }

    /// md's `events` and `events_cleared` as last written.
    #[must_use]
    pub fn events(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.events, state.events_cleared)
    }

    /// The group's flags.
    #[must_use]
    pub fn marks(&self) -> Marks {
        self.state.lock().marks
    }

    /// Whether all members have taken the newest epoch and none has been told so yet.
    #[must_use]
    pub fn wants_seal(&self) -> bool {
        let state = self.state.lock();
        state.is_taken && state.sealed_at < state.epoch().counter
    }

    /// Epoch counter of the last start that was forced against the rules; shown for ever (case SL-09).
    #[must_use]
    pub fn forced_at(&self) -> Option<u64> {
        Some(self.state.lock().forced_at).filter(|&counter| counter != 0)
    }

    /// Why the host's own memory of the group (the witness) could not be stored, if the last try failed. Until it can,
    /// half of the members must not be trusted to start alone (SAFETY M4): show it.
    #[must_use]
    pub fn witness_error(&self) -> Option<IoError> {
        self.state.lock().witness_error
    }

    /// The bytes below which a rebuilding member is current, as last made durable.
    #[must_use]
    pub fn cursor_bytes(&self, slot: Slot) -> u64 {
        self.state.lock().slots[slot.index()].cursor_bytes
    }

    /// Whether the member being rebuilt in the slot is one that came back: above its cursor only what intent bits cover is
    /// not current (SAFETY M6).
    #[must_use]
    pub fn is_by_intents(&self, slot: Slot) -> bool {
        let state = self.state.lock();
        let record = &state.slots[slot.index()];
        record.state == SlotState::Rebuilding && record.by_intents
    }

    /// Whether the member of a slot is marked write-mostly.
    #[must_use]
    pub fn is_write_mostly(&self, slot: Slot) -> bool {
        let state = self.state.lock();
        let on_drive = state.on_drive.get(&state.slots[slot.index()].device_uuid);
        on_drive.is_some_and(|on_drive| on_drive.superblock.is_write_mostly())
    }

    pub(super) fn witness(&self) -> Witness {
        let state = self.state.lock();
        Witness {
            group: self.identity.group,
            epoch: state.epoch(),
            is_clean: state.marks.clean,
            in_sync: state
                .slots
                .iter()
                .filter(|slot| slot.state == SlotState::InSync)
                .map(|slot| slot.device_uuid)
                .collect(),
        }
    }

    /// The next copy and superblock slot of a member, for the place of its older copy; `None` for a device we know
    /// nothing of.
    pub(super) fn stage(&self, device_uuid: Uuid, now_unix_s: u64) -> Option<Staged> {
        let mut state = self.state.lock();
        let superblock = state.superblock_of(device_uuid, &self.identity, now_unix_s)?;
        let bytes = superblock.encode();
        state.sequence += 1;
        let on_drive = state.on_drive.get_mut(&device_uuid)?;
        on_drive.superblock = superblock;
        let place = on_drive.newest.other();
        let on_drive = on_drive.clone();
        let mut copy = state.extension_of(&self.identity, &on_drive, bytes.clone(), now_unix_s);
        copy.marks.creating |= on_drive.is_joining;
        // It takes part in the writes of its first view before it can be told to be dirty (P2).
        copy.marks.quiet &= !on_drive.is_joining;
        let mut slot = if state.marks.deleted { Vec::new() } else { bytes };
        slot.resize(SUPERBLOCK_SLOT_BYTES, 0);
        put(&mut slot, ANCHOR_AT, &Anchor::of(&copy).encode());
        let area = on_drive.layout.extension;
        Some(Staged { copy: area.map(|area| (place.start(&area), copy.encode())), slot })
    }

    /// The staged copy of a member is on its drive.
    pub(super) fn copy_written(&self, device_uuid: Uuid) {
        if let Some(on_drive) = self.state.lock().on_drive.get_mut(&device_uuid) {
            on_drive.newest = on_drive.newest.other();
        }
    }
}

impl State {
    pub(super) fn epoch(&self) -> Epoch {
        *self.chain.last().expect("a chain has at least one epoch")
    }

    /// What is written from now on says that every member has the newest epoch, if that is so.
    pub(super) fn seal(&mut self) {
        if self.is_taken {
            self.sealed_at = self.epoch().counter;
        }
    }

    /// The smallest `events` at least 2 above the present one that is even if clean and odd if dirty (SAFETY M1).
    pub(super) fn raise_events(&mut self) {
        let next = self.events + 2;
        self.events = next + u64::from(next.is_multiple_of(2) != self.marks.clean);
    }

    /// Takes over a view: its epoch into the chain, its members into the slots.
    ///
    /// # Panics
    /// If the view is older than what was already taken over: epochs only go up.
    pub(super) fn take_view(&mut self, view: &View) {
        let newest = self.epoch();
        assert_eq!(view.members.len(), self.slots.len(), "a view of another group");
        if view.epoch != newest {
            assert!(view.epoch.counter > newest.counter, "epoch {} after {newest}", view.epoch);
            self.chain.push(view.epoch);
            let excess = self.chain.len().saturating_sub(CHAIN_MAX);
            self.chain.drain(..excess);
            self.raise_events();
            self.is_taken = false;
        }
        for (record, member) in self.slots.iter_mut().zip(&view.members) {
            let on_drive = self.on_drive.get_mut(&member.device_uuid);
            let returns = on_drive.as_ref().is_some_and(|on_drive| on_drive.is_returning);
            take_member(record, member, view.epoch, returns);
            if let Some(on_drive) = on_drive.filter(|_| record.state != SlotState::Missing) {
                on_drive.is_returning = false;
                on_drive.succeeds = None;
            }
        }
        self.roles = roles(&self.roles, &self.slots);
        let slots = &self.slots;
        self.on_drive.retain(|uuid, on_drive| {
            let is_member = slots.iter().any(|slot| slot.device_uuid == *uuid);
            on_drive.is_joining &= !is_member;
            is_member || on_drive.is_joining
        });
        if view.is_complete() {
            // S4: only while every member takes part do the bits tell all there is to tell.
            self.events_cleared = self.events;
        }
    }

    fn superblock_of(&self, device_uuid: Uuid, identity: &Identity, now_unix_s: u64) -> Option<Superblock> {
        let on_drive = self.on_drive.get(&device_uuid)?;
        let record = self.slots.iter().find(|slot| slot.device_uuid == device_uuid);
        let mut superblock = on_drive.superblock.clone();
        superblock.dev_roles.clone_from(&self.roles);
        superblock.events = self.events;
        superblock.utime = now_unix_s & ((1 << 40) - 1);
        superblock.set_claimed(true);
        superblock.set_feature(FEATURE_BITMAP, on_drive.layout.bitmap.is_some());
        // Never ~0 while we own the group: only a release may tell md that everything is in sync.
        let is_striped = identity.geometry.level() == Level::Raid0;
        superblock.resync_offset = if is_striped { IN_SYNC } else { 0 };
        let cursor = record.filter(|slot| slot.state == SlotState::Rebuilding).map(|slot| slot.cursor_bytes);
        superblock.set_feature(FEATURE_RECOVERY, cursor.is_some() || on_drive.succeeds.is_some());
        // As md has it: the role of the member it is to replace, nothing recovered yet. Only its own superblock says so.
        superblock.set_feature(FEATURE_REPLACEMENT, on_drive.succeeds.is_some());
        if let Some(slot) = on_drive.succeeds
            && let Some(role) = superblock.dev_roles.get_mut(usize_of_u32(superblock.dev_number))
        {
            *role = MdRole::Active(slot).number();
        }
        let by_intents = record.is_some_and(|slot| slot.state == SlotState::Rebuilding && slot.by_intents);
        superblock.set_feature(FEATURE_RECOVERY_BITMAP, by_intents);
        superblock.recovery_offset = cursor.map_or(0, |bytes| sectors(bytes / 512 * 512));
        Some(superblock)
    }

    pub(super) fn extension_of(
        &self,
        identity: &Identity,
        on_drive: &OnDrive,
        superblock: Vec<u8>,
        now_unix_s: u64,
    ) -> Extension {
        let geometry = &identity.geometry;
        let is_mirror = geometry.level() == Level::Raid1;
        Extension {
            sequence: self.sequence,
            group: identity.group,
            device_uuid: on_drive.superblock.device_uuid,
            dev_number: u16::try_from(on_drive.superblock.dev_number)
                .expect("a dev_number indexes the roles"),
            events: self.events,
            events_cleared: self.events_cleared,
            level: geometry.level(),
            chunk_bytes: if is_mirror { 0 } else { geometry.chunk_bytes() },
            member_bytes: geometry.member_bytes(),
            block_size: identity.block_size,
            name: identity.name.clone(),
            marks: self.marks,
            created_unix_s: identity.created_unix_s,
            written_unix_s: now_unix_s,
            forced_at: self.forced_at,
            deleted_unix_s: self.deleted_unix_s,
            sealed_at: self.sealed_at,
            layout: on_drive.layout.clone(),
            chain: self.chain.clone(),
            slots: self.slots.clone(),
            superblock,
        }
    }

    /// A `dev_number` no member has: never used before if there is one, else one whose member is gone for good.
    pub(super) fn free_dev_number(&self) -> Option<u16> {
        let held = |n: u16| {
            self.slots.iter().any(|slot| slot.dev_number == n)
                || self.on_drive.values().any(|on_drive| on_drive.superblock.dev_number == u32::from(n))
        };
        let numbers = || (0u16..).zip(&self.roles).filter(|(n, _)| !held(*n));
        let spare = MdRole::Spare.number();
        let used = numbers().filter(|(_, role)| **role != spare).map(|(n, _)| n).max();
        let held_max = self.slots.iter().map(|slot| slot.dev_number).max();
        let fresh = numbers()
            .find(|(n, role)| **role == spare && used.max(held_max).is_none_or(|top| *n > top))
            .map(|(n, _)| n);
        fresh.or_else(|| numbers().next().map(|(n, _)| n))
    }
}

/// Whether a member that was dropped for this comes back by itself: what was lost is contact, not trust.
fn is_contact_lost(why: Option<IoKind>) -> bool {
    use IoKind::{Gone, ShortRead, TimedOut, Transport};
    matches!(why, None | Some(Gone | TimedOut | ShortRead | Transport))
}

fn take_member(record: &mut SlotRecord, member: &Member, epoch: Epoch, returns: bool) {
    let is_new = record.device_uuid != member.device_uuid;
    if is_new {
        record.device_uuid = member.device_uuid;
        record.dev_number = member.dev_number;
        record.last_in_sync = Epoch::default();
        record.known_counter = 0;
        record.distrusted = false;
    }
    match member.state {
        MemberState::InSync => {
            record.state = SlotState::InSync;
            record.last_in_sync = epoch;
            record.cursor_bytes = 0;
            (record.by_intents, record.stays_out, record.distrusted) = (false, false, false);
        }
        MemberState::Rebuilding => {
            if is_new || record.state != SlotState::Rebuilding {
                record.cursor_bytes = 0;
                record.by_intents = returns && !is_new;
            }
            record.state = SlotState::Rebuilding;
            record.stays_out = false;
        }
        MemberState::Missing { why } => {
            if record.state != SlotState::Missing {
                record.stays_out = !is_contact_lost(why);
            }
            record.state = SlotState::Missing;
            record.cursor_bytes = 0;
            record.by_intents = false;
        }
    }
}

/// md's roles of the slots: indexed by `dev_number`, never by slot (ONDISK). Numbers once used stay "faulty".
fn roles(before: &[u16], slots: &[SlotRecord]) -> Vec<u16> {
    let spare = MdRole::Spare.number();
    let faulty = MdRole::Faulty.number();
    let mut roles: Vec<u16> = before.iter().map(|&role| if role == spare { spare } else { faulty }).collect();
    for (slot, record) in (0u8..).map(Slot).zip(slots) {
        let role = match record.state {
            SlotState::InSync | SlotState::Rebuilding => MdRole::Active(slot).number(),
            SlotState::Missing => faulty,
        };
        if let Some(entry) = roles.get_mut(usize::from(record.dev_number)) {
            *entry = role;
        }
    }
    roles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(clean: bool) -> State {
        let slot = |n: u8| SlotRecord {
            device_uuid: Uuid([n; 16]),
            last_in_sync: Epoch { counter: 1, id: Uuid([9; 16]) },
            cursor_bytes: 0,
            dev_number: u16::from(n),
            state: SlotState::InSync,
            by_intents: false,
            stays_out: false,
            distrusted: false,
            known_counter: 0,
        };
        State {
            chain: vec![Epoch { counter: 1, id: Uuid([9; 16]) }],
            sequence: 1,
            events: 2,
            events_cleared: 2,
            marks: Marks { clean, ..Marks::default() },
            is_taken: true,
            sealed_at: 0,
            forced_at: 0,
            deleted_unix_s: 0,
            roles: [0, 1].into_iter().chain([0xffff; 126]).collect(),
            slots: vec![slot(0), slot(1)],
            on_drive: BTreeMap::new(),
            witness_error: None,
        }
    }

    #[test]
    fn events_rise_by_two_or_three_and_are_odd_when_dirty() {
        for events in 0..10 {
            for clean in [false, true] {
                let mut state = state(clean);
                state.events = events;
                state.raise_events();
                assert!((2..=3).contains(&(state.events - events)), "{events} -> {}", state.events);
                assert_eq!(state.events.is_multiple_of(2), clean);
            }
        }
    }

    #[test]
    fn a_dev_number_is_never_given_to_two_members() {
        let mut state = state(false);
        let mut seen = vec![0, 1];
        for n in 2..=127 {
            let number = state.free_dev_number().unwrap();
            assert!(!seen.contains(&number), "{number} again");
            assert_eq!(number, n);
            seen.push(number);
            state.slots[1].dev_number = number;
            state.roles = roles(&state.roles, &state.slots);
            assert_eq!(state.roles.iter().filter(|&&role| role == 1).count(), 1);
        }
        // All numbers used: the oldest one whose member is gone comes again.
        assert_eq!(state.free_dev_number(), Some(1));
    }
}
