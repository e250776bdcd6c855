//! Making a view durable (SAFETY M2, step 2), and the other metadata writes of a running group.
//!
//! A step is written to all members together, the next step only when it has ended everywhere: extension copies first,
//! each over its member's older copy, then superblock slots (superblock and anchor), all FUA. A crash anywhere leaves
//! each member with a whole copy of the old or of the new epoch; then the superblock is put right from the copy. Last
//! comes the host's witness: it is never newer than what the drives know, and the caller relies on a view only when the
//! witness knows it too.

use core::ops::Range;

use super::GroupMeta;
use super::io::{Job, note, write, write_all};
use super::meta::{Persistent, State};
use crate::format::bad_blocks::BadBlocks;
use crate::format::extension::SlotState;
use crate::format::superblock::{FEATURE_BAD_BLOCKS, SUPERBLOCK_START};
use crate::ports::{Clock, Durability, Env, IoError, IoKind};
use crate::units::{DriveOffset, Slot, Uuid};
use crate::view::{Epoch, View};

/// Tries to store the witness before the failure is kept for all to see.
const WITNESS_TRIES: u32 = 3;

/// The epoch after `current`: the next counter under a new random id.
pub fn next_epoch<E: Env>(env: &E, current: Epoch) -> Epoch {
    let counter = current.counter.checked_add(1).expect("fewer than 2^64 epochs");
    Epoch { counter, id: Uuid::from_random(env.random_u64(), env.random_u64()) }
}

/// Makes `view` durable on every member it lists as in sync or rebuilding: extension copy, then md superblock, both FUA
/// (SAFETY M2, step 2), then the witness. Returns the members that failed to take it; the caller drops them by a further
/// epoch.
///
/// # Panics
/// If the view is older than one already published.
pub async fn publish<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let GroupMeta::Persistent(meta) = meta else { return Vec::new() };
    let _turn = meta.turn.take().await;
    meta.state.lock().take_view(view);
    let failed = write_members(env, meta, drives).await;
    if failed.is_empty() {
        meta.state.lock().is_taken = true;
    }
    failed
}

/// What a running group says about itself between two epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Everything was flushed and no write has begun since: no stripe is torn.
    Quiet,
    /// From now on writes may be in flight.
    Dirty,
    /// Nothing but that every member has taken the epoch; the others say that too.
    Sealed,
}

/// Makes a mark durable on every member of the view, within the epoch. Returns the members that failed to take it.
///
/// Before the first write that follows [`Mark::Quiet`] (also the one that a start sets) the caller makes
/// [`Mark::Dirty`] durable on **all** members of the view of that write; with [`Mark::Quiet`] no write is in flight and
/// all members of the view were flushed after the last one.
pub async fn store_mark<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    mark: Mark,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let GroupMeta::Persistent(meta) = meta else { return Vec::new() };
    let _turn = meta.turn.take().await;
    let members = {
        let mut state = meta.state.lock();
        state.seal();
        match mark {
            Mark::Quiet => state.marks.quiet = true,
            Mark::Dirty => state.marks.quiet = false,
            Mark::Sealed => {}
        }
        // Whoever is dropped from the view already gets nothing; its epoch comes next, or it was the last that counts.
        let mut members = taking_part(&state);
        members.retain(|member| {
            let listed = view.member(member.slot);
            !listed.is_missing() && listed.device_uuid == member.device_uuid
        });
        members
    };
    write_to(env, meta, &members, drives).await
}

/// Marks the members of these slots write-mostly, and no others, durably. Returns the members that failed to take it.
pub async fn store_write_mostly<E: Env>(
    env: &E,
    meta: &GroupMeta,
    is_marked: impl Fn(Slot) -> bool,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let GroupMeta::Persistent(meta) = meta else { return Vec::new() };
    let _turn = meta.turn.take().await;
    let members = {
        let mut state = meta.state.lock();
        let mut members = taking_part(&state);
        members.retain(|member| {
            let on_drive = state.on_drive.get_mut(&member.device_uuid);
            on_drive.is_some_and(|on_drive| {
                let before = on_drive.superblock.is_write_mostly();
                on_drive.superblock.set_write_mostly(is_marked(member.slot));
                before != on_drive.superblock.is_write_mostly()
            })
        });
        members
    };
    write_to(env, meta, &members, drives).await
}

/// A member that the present state lists.
struct TakingPart {
    slot: Slot,
    device_uuid: Uuid,
    is_in_sync: bool,
}

fn taking_part(state: &State) -> Vec<TakingPart> {
    let slots = (0u8..).map(Slot).zip(&state.slots);
    slots
        .filter(|(_, record)| record.state != SlotState::Missing)
        .map(|(slot, record)| TakingPart {
            slot,
            device_uuid: record.device_uuid,
            is_in_sync: record.state == SlotState::InSync,
        })
        .collect()
}

/// Writes the present state to every member that takes part, then the witness.
pub(super) async fn write_members<E: Env>(
    env: &E,
    meta: &Persistent,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let members = taking_part(&meta.state.lock());
    let failed = write_to(env, meta, &members, drives).await;
    // An epoch that no member in sync knows must not bind the host to it.
    let is_known = members.iter().any(|member| member.is_in_sync && !has_failed(&failed, member.slot));
    let is_creating = meta.state.lock().marks.creating;
    if is_known && !is_creating {
        store_witness(env, meta).await;
    }
    failed
}

fn has_failed(failed: &[(Slot, IoError)], slot: Slot) -> bool {
    failed.iter().any(|(known, _)| *known == slot)
}

/// Writes the present state to some members: all copies, then all superblocks.
async fn write_to<E: Env>(
    env: &E,
    meta: &Persistent,
    members: &[TakingPart],
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let now_unix_s = env.clock().unix_seconds();
    let mut failed = Vec::new();
    let (mut copies, mut superblocks) = (Vec::new(), Vec::new());
    for TakingPart { slot, device_uuid, .. } in members {
        let drive = drives.get(slot.index()).and_then(Clone::clone);
        let (Some(drive), Some(staged)) = (drive, meta.stage(*device_uuid, now_unix_s)) else {
            note(&mut failed, *slot, IoError::new(IoKind::Gone, "publish: the member has no drive"));
            continue;
        };
        if let Some((at, bytes)) = staged.copy {
            copies.push(Job { slot: *slot, drive: drive.clone(), at, bytes });
        }
        let at = DriveOffset(SUPERBLOCK_START);
        superblocks.push(Job { slot: *slot, drive, at, bytes: staged.slot });
    }
    for (slot, error) in write_all(env, copies, Durability::Fua).await {
        note(&mut failed, slot, error);
    }
    for member in members {
        if !has_failed(&failed, member.slot) {
            meta.copy_written(member.device_uuid);
        }
    }
    superblocks.retain(|job| !has_failed(&failed, job.slot));
    for (slot, error) in write_all(env, superblocks, Durability::Fua).await {
        note(&mut failed, slot, error);
    }
    let mut state = meta.state.lock();
    let counter = state.epoch().counter;
    for member in members.iter().filter(|member| member.is_in_sync && !has_failed(&failed, member.slot)) {
        state.slots[member.slot.index()].known_counter = counter;
    }
    drop(state);
    failed
}

async fn store_witness<E: Env>(env: &E, meta: &Persistent) {
    let mut result = Ok(());
    for _ in 0..WITNESS_TRIES {
        result = env.store_witness(meta.witness()).await;
        if result.is_ok() {
            break;
        }
    }
    meta.state.lock().witness_error = result.err();
}

/// Writes one member's copy and superblock anew, same epoch.
pub(super) async fn write_member<E: Env>(
    env: &E,
    meta: &Persistent,
    device_uuid: Uuid,
    drive: &E::Drive,
) -> Result<(), IoError> {
    let staged = meta
        .stage(device_uuid, env.clock().unix_seconds())
        .ok_or(IoError::new(IoKind::Invalid, "a member this group does not know"))?;
    if let Some((at, bytes)) = staged.copy {
        write(env, drive, at, bytes, Durability::Fua).await?;
        meta.copy_written(device_uuid);
    }
    write(env, drive, DriveOffset(SUPERBLOCK_START), staged.slot, Durability::Fua).await
}

/// Makes a rebuild's progress durable on its target: everything below `cursor_bytes` of its data area is current. The
/// caller has flushed the target first (SAFETY S3), so the cursor is a low-water mark; it never goes back here.
///
/// # Errors
/// What the target answered; the caller drops it. `Invalid` if the slot is not being rebuilt any more: nothing written.
pub async fn store_cursor<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    slot: Slot,
    cursor_bytes: u64,
    drives: &[Option<E::Drive>],
) -> Result<(), IoError> {
    let GroupMeta::Persistent(meta) = meta else { return Ok(()) };
    let _turn = meta.turn.take().await;
    let device_uuid = view.member(slot).device_uuid;
    {
        let mut state = meta.state.lock();
        let record = &mut state.slots[slot.index()];
        if record.state != SlotState::Rebuilding || record.device_uuid != device_uuid {
            return Err(IoError::new(IoKind::Invalid, "rebuild cursor of a member that is not rebuilding"));
        }
        record.cursor_bytes = record.cursor_bytes.max(cursor_bytes);
    }
    let drive = drives[slot.index()].as_ref().ok_or(IoError::new(IoKind::Gone, "rebuild cursor"))?;
    write_member(env, meta, device_uuid, drive).await
}

/// Makes a member's list of lost blocks durable (SAFETY S6): md's bad-block log, then the superblock's feature bit.
/// `ranges` is the whole list, in bytes of the member's data area.
///
/// # Errors
/// What the member answered, or `Invalid` when the log cannot take the list (full, or the member has none): in both
/// cases the caller drops the member, as md does.
pub async fn store_bad_blocks<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    slot: Slot,
    ranges: &[Range<u64>],
    drives: &[Option<E::Drive>],
) -> Result<(), IoError> {
    let GroupMeta::Persistent(meta) = meta else { return Ok(()) };
    let _turn = meta.turn.take().await;
    let member = view.member(slot);
    let drive = drives[slot.index()].as_ref().ok_or(IoError::new(IoKind::Gone, "bad-block log"))?;
    let place = member.layout.bad_blocks.clone().ok_or(IoError::new(IoKind::Invalid, "no bad-block log"))?;
    let mut list = BadBlocks::default();
    for range in ranges {
        let start = member.layout.data_start;
        list.insert(start.plus(range.start).0..start.plus(range.end).0);
    }
    let bytes = list.encode().map_err(|_| IoError::new(IoKind::Invalid, "bad-block log is full"))?;
    write(env, drive, DriveOffset(place.start), bytes, Durability::Fua).await?;
    let changed = {
        let mut state = meta.state.lock();
        state.on_drive.get_mut(&member.device_uuid).is_some_and(|on_drive| {
            let had = on_drive.superblock.has_feature(FEATURE_BAD_BLOCKS);
            on_drive.superblock.set_feature(FEATURE_BAD_BLOCKS, !list.is_empty());
            had == list.is_empty()
        })
    };
    if changed { write_member(env, meta, member.device_uuid, drive).await } else { Ok(()) }
}
