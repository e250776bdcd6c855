//! What the drive carries that is being filled to take a member's place while that one still serves.
//!
//! It is prepared like any replacement and marked "creating": no start uses it (`decide`). Its own superblock shows it as
//! md's replacement of the slot (feature bit 16, nothing recovered), which is also how a start that finds it knows that
//! the operator had asked for it; no other member's metadata mentions it. The publish that makes it a member writes it
//! whole, like every member of the view; a crash in the middle leaves the old view, or the new one with a drive that was
//! complete and flushed before (SAFETY M2).

use super::GroupMeta;
use super::create::prepare;
use super::meta::OnDrive;
use super::observe::Ours;
use super::publish::write_member;
use crate::format::superblock::{FEATURE_REPLACEMENT, MdRole};
use crate::ports::{DriveKey, Env, IoError};
use crate::units::{Slot, Uuid};
use crate::view::{Successor, View};

/// Makes a drive ready to be filled for `slot`, whose member still serves. The caller has checked that it fits and that it
/// is nobody else's.
///
/// # Errors
/// As [`super::prepare_member`].
pub async fn prepare_successor<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    slot: Slot,
    target: (DriveKey, &E::Drive),
    drives: &[Option<E::Drive>],
) -> Result<Successor, IoError> {
    let member = prepare(env, meta, view, slot, target, drives, true).await?;
    Ok(Successor {
        drive: target.0,
        device_uuid: member.device_uuid,
        dev_number: member.dev_number,
        layout: member.layout,
    })
}

/// The slot for which a drive was being filled when its group ended.
#[must_use]
pub fn slot_succeeded(ours: &Ours) -> Option<Slot> {
    let is_one = ours.copy.marks.creating && ours.superblock.has_feature(FEATURE_REPLACEMENT);
    match ours.superblock.role() {
        MdRole::Active(slot) if is_one => Some(slot),
        _ => None,
    }
}

/// A drive that was prepared does not join after all.
pub fn forget_prepared(meta: &GroupMeta, device_uuid: Uuid) {
    let GroupMeta::Persistent(meta) = meta else { return };
    let on_drive = &mut meta.state.lock().on_drive;
    if on_drive.get(&device_uuid).is_some_and(|on_drive| on_drive.is_joining) {
        on_drive.remove(&device_uuid);
    }
}

/// Writes a successor's metadata anew: its history must be that of the group when it becomes a member, however long it took
/// to fill it.
pub(crate) async fn refresh<E: Env>(
    env: &E,
    meta: &GroupMeta,
    device_uuid: Uuid,
    drive: &E::Drive,
) -> Result<(), IoError> {
    let GroupMeta::Persistent(meta) = meta else { return Ok(()) };
    let _turn = meta.turn.take().await;
    write_member(env, meta, device_uuid, drive).await
}

/// What is known of a member that leaves, in case it has to come back at once.
pub(crate) struct Kept(Uuid, OnDrive);

/// Notes it.
pub(crate) fn keep(meta: &GroupMeta, device_uuid: Uuid) -> Option<Kept> {
    let GroupMeta::Persistent(meta) = meta else { return None };
    let on_drive = meta.state.lock().on_drive.get(&device_uuid).cloned();
    on_drive.map(|on_drive| Kept(device_uuid, on_drive))
}

/// Puts it back; nothing was written to it meanwhile.
pub(crate) fn put_back(meta: &GroupMeta, kept: Option<Kept>) {
    if let (GroupMeta::Persistent(meta), Some(Kept(device_uuid, on_drive))) = (meta, kept) {
        meta.state.lock().on_drive.entry(device_uuid).or_insert(on_drive);
    }
}
