//! A group's life after create: start, stop, delete, undelete.
//!
//! A start publishes a new epoch (SAFETY M1) and makes the merged intent bits durable on every member before any host
//! I/O; a stop is the only thing that sets the clean mark, after everything was flushed. Delete writes tombstones: the
//! extension copy first, then the superblock away, so that whatever a crash leaves is recognised as deleted and undelete
//! can put it back.

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;

use super::decide::{Doubt, PlannedState, StartPlan};
use super::io::{Job, flush_all, note, read, write_all};
use super::meta::{Identity, OnDrive, Persistent, State};
use super::observe::{BitmapImage, Observation, Observed, Ours};
use super::publish::{next_epoch, write_members};
use super::{GroupMeta, LeftOut, Refusal};
use crate::format::bitmap::{BitmapHeader, Bits, HEADER_BYTES, sync_bytes};
use crate::format::bytes::{put, round_up};
use crate::format::extension::{Marks, SlotState};
use crate::geometry::Geometry;
use crate::ports::{Clock, DriveKey, Durability, Env, IoError};
use crate::units::{DriveOffset, Slot, Uuid, usize_of};
use crate::view::{Epoch, Member, MemberState, View};

/// What a bitmap write is aligned to: a multiple of every block size.
pub(super) const BITMAP_ALIGN_BYTES: u64 = 4096;

/// A started group, for the engine to run.
#[derive(Debug)]
pub struct StartParts {
    /// Level, members, chunk.
    pub geometry: Geometry,
    /// The first view, with the epoch of this start.
    pub view: View,
    /// The group's metadata.
    pub meta: GroupMeta,
    /// The intent bitmap as it now lies on every member; `None` on a group without one.
    pub bitmap: Option<BitmapImage>,
    /// What the set bits mean.
    pub doubt: Doubt,
    /// Slots being rebuilt, and the bytes of the data area below which each is current.
    pub rebuilding: Vec<(Slot, u64)>,
    /// Lost blocks: ranges of the member's data area (SAFETY S6).
    pub bad_blocks: Vec<(Slot, Range<u64>)>,
    /// Members present but not used.
    pub left_out: Vec<LeftOut>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// Why a start that was decided did not come about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartError {
    /// Members failed while the start was made durable, and without them it is not allowed.
    Lost {
        /// The members that failed.
        failed: Vec<(Slot, IoError)>,
        /// Why the others are not enough.
        why: &'static str,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Lost { failed, why } = self;
        write!(f, "start failed: {why}")?;
        for (slot, error) in failed {
            write!(f, "; slot {slot}: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for StartError {}

/// Starts a group as decided: a new epoch and the dirty mark on every member, the merged intent bits, the witness.
/// A member that fails meanwhile is dropped by a further epoch as long as the rules allow to go on without it.
///
/// # Errors
/// [`StartError`]: nothing runs; what was written is a start without host I/O, which a later start builds upon.
pub async fn start<E: Env>(env: &E, plan: StartPlan) -> Result<StartParts, StartError> {
    let floor = Epoch { counter: plan.counter_floor, id: Uuid::default() };
    let mut view = first_view(&plan, next_epoch(env, floor));
    let drives: Vec<Option<E::Drive>> =
        view.members.iter().map(|member| member.drive.and_then(|key| env.drive(key))).collect();
    let meta = Persistent::new(identity_of(&plan.tip), state_of(&plan, view.epoch));
    let bits = plan.bits.clone();
    let mut all_failed: Vec<(Slot, IoError)> = Vec::new();
    loop {
        let mut header = take_view(&meta, &view, bits.as_ref(), plan.intent_chunk_bytes);
        if let (Some(header), Some(image)) = (&mut header, &plan.tip.bitmap) {
            header.keep_settings(&image.header);
        }
        let mut failed = Vec::new();
        if let (Some(header), Some(bits)) = (&header, &bits) {
            failed = write_bitmaps(env, &view, &drives, header, bits).await;
        }
        if failed.is_empty() {
            failed = write_members(env, &meta, &drives).await;
        }
        if failed.is_empty() {
            meta.state.lock().is_taken = true;
            let bitmap = header.zip(bits).map(|(header, bits)| BitmapImage { header, bits });
            return Ok(parts(plan, view, meta, bitmap));
        }
        for (slot, error) in failed {
            let member = &mut view.members[slot.index()];
            member.state = MemberState::Missing { why: Some(error.kind) };
            member.drive = None;
            note(&mut all_failed, slot, error);
        }
        if let Some(why) = obstacle(&plan, &view) {
            return Err(StartError::Lost { failed: all_failed, why });
        }
        view.epoch = next_epoch(env, view.epoch);
    }
}

/// What forbids to go on without the members that failed during the start.
fn obstacle(plan: &StartPlan, view: &View) -> Option<&'static str> {
    let geometry = &plan.tip.geometry;
    if !geometry.is_readable(|slot| view.member(slot).is_in_sync()) {
        return Some("too few members are left");
    }
    let is_dirty = plan.bits.as_ref().is_none_or(|bits| bits.dirty() > 0);
    let is_torn = geometry.level().parities() > 0 && plan.doubt == Doubt::Torn && is_dirty;
    (is_torn && !plan.is_forced)
        .then_some("the group was not stopped cleanly and would be degraded (no journal)")
}

fn first_view(plan: &StartPlan, epoch: Epoch) -> View {
    let member = |slot: &super::decide::PlannedSlot| Member {
        state: match slot.state {
            PlannedState::InSync => MemberState::InSync,
            PlannedState::Rebuilding(_) => MemberState::Rebuilding,
            PlannedState::Missing => MemberState::Missing { why: None },
        },
        drive: slot.member.as_ref().map(|(key, _)| *key),
        device_uuid: slot.record.device_uuid,
        dev_number: slot.record.dev_number,
        last_in_sync: match slot.state {
            PlannedState::InSync => epoch.counter,
            _ => slot.record.last_in_sync.counter,
        },
        layout: match &slot.member {
            Some((_, ours)) => ours.copy.layout.clone(),
            None => plan.tip.copy.layout.clone(),
        },
        successor: None,
    };
    View { version: 1, epoch, members: plan.slots.iter().map(member).collect() }
}

pub(super) fn identity_of(ours: &Ours) -> Identity {
    Identity {
        group: ours.copy.group,
        name: ours.copy.name.clone(),
        geometry: ours.geometry,
        block_size: ours.copy.block_size,
        created_unix_s: ours.copy.created_unix_s,
    }
}

pub(super) fn on_drive_of(ours: &Ours) -> OnDrive {
    OnDrive {
        superblock: ours.superblock.clone(),
        layout: ours.copy.layout.clone(),
        newest: ours.place,
        is_joining: false,
        is_returning: false,
        succeeds: None,
    }
}

fn state_of(plan: &StartPlan, epoch: Epoch) -> State {
    let copy = &plan.tip.copy;
    let is_parity = plan.tip.geometry.level().parities() > 0;
    let members = plan.slots.iter().filter_map(|slot| slot.member.as_ref().map(|(_, ours)| ours));
    let mut slots = copy.slots.clone();
    for (record, slot) in slots.iter_mut().zip(&plan.slots) {
        if let PlannedState::Rebuilding(cursor_bytes) = slot.state {
            record.state = SlotState::Rebuilding;
            record.cursor_bytes = cursor_bytes;
        }
        record.distrusted |= plan.distrusted.contains(&record.device_uuid);
    }
    State {
        chain: copy.chain.clone(),
        sequence: members.clone().map(|ours| ours.copy.sequence).max().unwrap_or(copy.sequence),
        events: members.clone().map(|ours| ours.copy.events).max().unwrap_or(0).max(copy.events),
        events_cleared: copy.events_cleared,
        marks: Marks {
            creating: false,
            clean: false,
            unsynced: copy.marks.unsynced || (plan.is_forced && plan.doubt == Doubt::Unsynced),
            torn: plan.doubt == Doubt::Torn,
            forced: copy.marks.forced || plan.is_forced,
            deleted: false,
            // Whoever runs the group makes it dirty before its first write; only intents know of every write.
            quiet: is_parity && plan.bits.is_some() && plan.doubt != Doubt::Torn,
            adopted: copy.marks.adopted,
            // With this start the group is ours, on every member.
            adopting: false,
            releasing: false,
        },
        is_taken: false,
        sealed_at: copy.sealed_at,
        forced_at: if plan.is_forced { epoch.counter } else { copy.forced_at },
        deleted_unix_s: 0,
        roles: plan.tip.superblock.dev_roles.clone(),
        slots,
        on_drive: members.map(|ours| (ours.copy.device_uuid, on_drive_of(ours))).collect(),
        witness_error: None,
    }
}

/// Takes a view over and gives the bitmap header that belongs to it.
fn take_view(
    meta: &Persistent,
    view: &View,
    bits: Option<&Bits>,
    chunk_bytes: Option<u64>,
) -> Option<BitmapHeader> {
    let mut state = meta.state.lock();
    state.take_view(view);
    bits.zip(chunk_bytes).map(|(_, chunk_bytes)| header_of(meta.identity(), &state, chunk_bytes))
}

fn header_of(identity: &Identity, state: &State, chunk_bytes: u64) -> BitmapHeader {
    let sync = sync_bytes(&identity.geometry);
    let mut header = BitmapHeader::new(identity.group, state.events, sync, chunk_bytes);
    header.events_cleared = state.events_cleared;
    header
}

/// Writes header and bits to every member that takes part. A bit that one member lacked must not be lost with the
/// others, so all of them get the merged bits before the new epoch (SAFETY S4).
async fn write_bitmaps<E: Env>(
    env: &E,
    view: &View,
    drives: &[Option<E::Drive>],
    header: &BitmapHeader,
    bits: &Bits,
) -> Vec<(Slot, IoError)> {
    let used = round_up(header.len_bytes(), BITMAP_ALIGN_BYTES);
    let mut image = vec![0; usize_of(used)];
    put(&mut image, 0, &header.encode());
    put(&mut image, HEADER_BYTES, bits.as_bytes());
    let jobs = view.slots().filter_map(|slot| {
        let member = view.member(slot);
        let place = member.layout.bitmap.clone().filter(|_| !member.is_missing())?;
        let drive = drives[slot.index()].clone()?;
        Some(Job { slot, drive, at: DriveOffset(place.start), bytes: image.clone() })
    });
    write_all(env, jobs.collect(), Durability::Fua).await
}

fn parts(plan: StartPlan, view: View, meta: Persistent, bitmap: Option<BitmapImage>) -> StartParts {
    let mut bad_blocks = Vec::new();
    let mut rebuilding = Vec::new();
    for (slot, planned) in (0u8..).map(Slot).zip(&plan.slots) {
        if view.member(slot).is_missing() {
            continue;
        }
        if let PlannedState::Rebuilding(cursor_bytes) = planned.state {
            rebuilding.push((slot, cursor_bytes));
        }
        let Some((_, ours)) = &planned.member else { continue };
        let start = ours.copy.layout.data_start.0;
        let end = start + ours.copy.layout.data_bytes;
        for range in ours.bad_blocks.ranges() {
            let inside = range.start.max(start)..range.end.min(end);
            if inside.start < inside.end {
                bad_blocks.push((slot, inside.start - start..inside.end - start));
            }
        }
    }
    StartParts {
        geometry: plan.tip.geometry,
        view,
        meta: GroupMeta::Persistent(Box::new(meta)),
        bitmap,
        doubt: plan.doubt,
        rebuilding,
        bad_blocks,
        left_out: plan.left_out,
        warnings: plan.warnings,
    }
}

/// Records that every region is consistent again: the resync that a start asked for has ended. Same epoch.
pub async fn mark_synced<E: Env>(
    env: &E,
    meta: &GroupMeta,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let GroupMeta::Persistent(meta) = meta else { return Vec::new() };
    let _turn = meta.turn.take().await;
    {
        let marks = &mut meta.state.lock().marks;
        marks.unsynced = false;
        marks.torn = false;
    }
    write_members(env, meta, drives).await
}

/// Stops a group: flushes every member, brings the bitmap's counters up to date, then sets the clean mark. The caller
/// guarantees that no I/O is in flight and that none follows. `is_synced`: no region is left that a start asked to
/// resync. A group that cannot serve is left without the clean mark.
///
/// # Errors
/// The members that failed. If `flush` or bitmap failed, nothing was marked: drop them by a further epoch and stop
/// again. A member that fails only to take the mark itself is current all the same, and the group is stopped.
pub async fn stop<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    drives: &[Option<E::Drive>],
    is_synced: bool,
) -> Result<Vec<(Slot, IoError)>, Vec<(Slot, IoError)>> {
    let GroupMeta::Persistent(meta) = meta else { return Ok(Vec::new()) };
    let _turn = meta.turn.take().await;
    let taking_part: Vec<(Slot, E::Drive)> = view
        .slots()
        .filter(|slot| !view.member(*slot).is_missing())
        .filter_map(|slot| Some((slot, drives[slot.index()].clone()?)))
        .collect();
    let failed = flush_all(&taking_part).await;
    if !failed.is_empty() {
        return Err(failed);
    }
    let can_serve = meta.identity().geometry.is_readable(|slot| view.member(slot).is_in_sync());
    {
        let mut state = meta.state.lock();
        state.marks.clean = can_serve;
        state.seal();
        if is_synced && can_serve {
            state.marks.unsynced = false;
            state.marks.torn = false;
        }
        state.raise_events();
        if view.is_complete() {
            state.events_cleared = state.events;
        }
    }
    let failed = update_headers(env, meta, view, &taking_part).await;
    if !failed.is_empty() {
        meta.state.lock().marks.clean = false;
        return Err(failed);
    }
    Ok(write_members(env, meta, drives).await)
}

/// Rewrites the bitmap headers with the present counters and leaves the bits alone. The engine is at rest, so nobody
/// else writes the block they share with the first bits.
async fn update_headers<E: Env>(
    env: &E,
    meta: &Persistent,
    view: &View,
    members: &[(Slot, E::Drive)],
) -> Vec<(Slot, IoError)> {
    let mut failed = Vec::new();
    let mut jobs = Vec::new();
    for (slot, drive) in members {
        let Some(place) = view.member(*slot).layout.bitmap.clone() else { continue };
        match read(env, drive, place.start..place.start + BITMAP_ALIGN_BYTES).await {
            Ok(mut block) => {
                if let Ok(old) = BitmapHeader::decode(&block) {
                    let chunk_bytes = u64::from(old.chunk_bytes);
                    let mut header = header_of(meta.identity(), &meta.state.lock(), chunk_bytes);
                    header.keep_settings(&old);
                    put(&mut block, 0, &header.encode());
                    jobs.push(Job {
                        slot: *slot,
                        drive: drive.clone(),
                        at: DriveOffset(place.start),
                        bytes: block,
                    });
                }
            }
            Err(error) => note(&mut failed, *slot, error),
        }
    }
    for (slot, error) in write_all(env, jobs, Durability::Fua).await {
        note(&mut failed, slot, error);
    }
    failed
}

/// Deletes a stopped group: a new epoch whose members are tombstones. Their superblocks are gone, the extension copies
/// keep everything that [`undelete`] needs. `view` is the last one, `drives` as many of its members as are here.
/// Returns the members that could not be marked.
pub async fn delete<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let GroupMeta::Persistent(meta) = meta else { return Vec::new() };
    let _turn = meta.turn.take().await;
    let mut view = view.clone();
    view.epoch = next_epoch(env, meta.epoch());
    {
        let mut state = meta.state.lock();
        state.marks.deleted = true;
        state.deleted_unix_s = env.clock().unix_seconds().max(1);
        state.take_view(&view);
    }
    write_members(env, meta, drives).await
}

/// Why a group cannot be undeleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UndeleteError {
    /// There is no tombstone of this group.
    NotDeleted,
    /// Members were reused or are not here.
    Reused {
        /// Device uuids of those whose tombstone is gone.
        missing: Vec<Uuid>,
    },
    /// The group cannot be told from its members.
    Refused(Refusal),
    /// Writing failed on these; try again.
    Failed(Vec<(Slot, IoError)>),
}

impl fmt::Display for UndeleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDeleted => f.write_str("no deleted group of this uuid is on the drives"),
            Self::Reused { missing } => {
                f.write_str("the group cannot be undeleted, these members are reused or absent:")?;
                missing.iter().try_for_each(|uuid| write!(f, " {uuid}"))
            }
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(failed) => {
                f.write_str("undelete failed, try again")?;
                failed.iter().try_for_each(|(slot, error)| write!(f, "; slot {slot}: {error}"))
            }
        }
    }
}

impl std::error::Error for UndeleteError {}

/// Takes the tombstones of a group back. Works until any member that was in sync is reused; also finishes an undelete or
/// takes back a delete that was cut short.
///
/// # Errors
/// [`UndeleteError`].
pub async fn undelete<E: Env>(env: &E, group: Uuid, observed: &[Observed]) -> Result<(), UndeleteError> {
    let members: BTreeMap<Uuid, (DriveKey, &Ours)> = observed
        .iter()
        .filter_map(|drive| match &drive.what {
            Observation::Ours(ours) if ours.copy.group == group => {
                Some((ours.copy.device_uuid, (drive.key, &**ours)))
            }
            _ => None,
        })
        .collect();
    let newest = |(_, ours): &&(DriveKey, &Ours)| (ours.copy.epoch().counter, ours.copy.sequence);
    let Some((_, tip)) = members.values().max_by_key(newest).copied() else {
        return Err(UndeleteError::NotDeleted);
    };
    if !members.values().any(|(_, ours)| ours.copy.marks.deleted) {
        return Err(UndeleteError::NotDeleted);
    }
    let is_here =
        |uuid: &Uuid| members.get(uuid).is_some_and(|(_, ours)| tip.copy.chain.contains(&ours.copy.epoch()));
    let in_sync = tip.copy.slots.iter().filter(|slot| slot.state == SlotState::InSync);
    let missing: Vec<Uuid> = in_sync.map(|slot| slot.device_uuid).filter(|uuid| !is_here(uuid)).collect();
    if !missing.is_empty() {
        return Err(UndeleteError::Reused { missing });
    }
    let epoch = next_epoch(env, tip.copy.epoch());
    let mut state = state_from(tip, members.values().map(|(_, ours)| *ours));
    state.marks.deleted = false;
    state.deleted_unix_s = 0;
    state.chain.push(epoch);
    let excess = state.chain.len().saturating_sub(crate::format::extension::CHAIN_MAX);
    state.chain.drain(..excess);
    state.raise_events();
    for slot in &mut state.slots {
        if slot.state == SlotState::InSync {
            slot.last_in_sync = epoch;
        }
    }
    let drives: Vec<Option<E::Drive>> = state
        .slots
        .iter()
        .map(|slot| members.get(&slot.device_uuid).and_then(|(key, _)| env.drive(*key)))
        .collect();
    let failed = write_members(env, &Persistent::new(identity_of(tip), state), &drives).await;
    if failed.is_empty() { Ok(()) } else { Err(UndeleteError::Failed(failed)) }
}

/// A state that continues what `tip` records, with the members given.
fn state_from<'a>(tip: &Ours, members: impl Iterator<Item = &'a Ours> + Clone) -> State {
    let copy = &tip.copy;
    State {
        chain: copy.chain.clone(),
        sequence: members.clone().map(|ours| ours.copy.sequence).max().unwrap_or(copy.sequence),
        events: copy.events,
        events_cleared: copy.events_cleared,
        marks: copy.marks,
        is_taken: false,
        sealed_at: copy.sealed_at,
        forced_at: copy.forced_at,
        deleted_unix_s: copy.deleted_unix_s,
        roles: tip.superblock.dev_roles.clone(),
        slots: copy.slots.clone(),
        on_drive: members.map(|ours| (ours.copy.device_uuid, on_drive_of(ours))).collect(),
        witness_error: None,
    }
}
