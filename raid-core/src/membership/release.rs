//! Release: a stopped group becomes an array of md again.
//!
//! In this order, each step on all members before the next one begins:
//!
//! 1. extension copy, anchor and superblock with the mark "releasing";
//! 2. superblock without the claim, everything in sync: what md assembles;
//! 3. the anchor goes, then the extension area is zeroed.
//!
//! A crash before 2 leaves a group of ours, which starts. A crash during 2 leaves one that starts as soon as all members
//! are there, none of them written by md meanwhile ([`super::decide()`]). After 2 it is an array of md, with or without
//! traces of ours that md does not look at.

use core::fmt;

use super::GroupMeta;
use super::adopt::zero;
use super::io::{Job, note, read, write_all};
use super::publish::write_members;
use crate::format::anchor::ANCHOR_AT;
use crate::format::bytes::put;
use crate::format::superblock::{IN_SYNC, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock};
use crate::ports::{Drive, Durability, Env, IoError, IoKind};
use crate::units::{DriveOffset, Slot, u64_of};
use crate::view::View;

/// Why a group was not released.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReleaseFailed {
    /// Which members, and how.
    pub failed: Vec<(Slot, IoError)>,
    /// Members whose claim could not be put back: a start with all members ends it.
    pub not_restored: Vec<(Slot, IoError)>,
}

impl fmt::Display for ReleaseFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was released; failed:")?;
        self.failed.iter().try_for_each(|(slot, error)| write!(f, " slot {slot}: {error};"))?;
        self.not_restored.iter().try_for_each(|(slot, error)| {
            write!(f, " the claim on slot {slot} could not be put back: {error};")
        })
    }
}

impl std::error::Error for ReleaseFailed {}

/// Releases a group that was stopped cleanly with [`super::stop`]; its members are still held and nothing is rebuilt or
/// out of sync. Returns the members on which traces of ours stayed behind: they are md's all the same.
///
/// # Errors
/// [`ReleaseFailed`]: the group is ours, stopped, or the error says of which members that is not so.
///
/// # Panics
/// If the group was not stopped cleanly.
pub async fn release<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    drives: &[Option<E::Drive>],
) -> Result<Vec<(Slot, IoError)>, ReleaseFailed> {
    let GroupMeta::Persistent(meta) = meta else { return Ok(Vec::new()) };
    let _turn = meta.turn.take().await;
    {
        let marks = &mut meta.state.lock().marks;
        assert!(marks.clean && !marks.unsynced && !marks.torn, "release of a group that is not clean");
        marks.releasing = true;
    }
    let failed = write_members(env, meta, drives).await;
    if !failed.is_empty() {
        return Err(ReleaseFailed { failed, not_restored: Vec::new() });
    }
    let mut members = Vec::new();
    let mut failed = Vec::new();
    for slot in view.slots().filter(|slot| !view.member(*slot).is_missing()) {
        match Leaving::read::<E>(env, slot, drives[slot.index()].as_ref()).await {
            Ok(member) => members.push(member),
            Err(error) => note(&mut failed, slot, error),
        }
    }
    if failed.is_empty() {
        failed = write_slots::<E>(env, &members, |member| member.released.clone()).await;
    }
    if !failed.is_empty() {
        let not_restored = write_slots::<E>(env, &members, |member| member.claimed.clone()).await;
        return Err(ReleaseFailed { failed, not_restored });
    }
    let mut behind = write_slots::<E>(env, &members, Leaving::bare).await;
    for member in &members {
        let area = view.member(member.slot).layout.extension.clone();
        let Some(area) = area.filter(|_| behind.iter().all(|(slot, _)| *slot != member.slot)) else {
            continue;
        };
        let erased = zero(&member.drive, area).await;
        let erased = if erased.is_ok() { member.drive.flush().await } else { erased };
        if let Err(error) = erased {
            note(&mut behind, member.slot, error);
        }
    }
    Ok(behind)
}

/// A member that is given to md, with its superblock's slot as it is and as it will be.
struct Leaving<D> {
    slot: Slot,
    drive: D,
    claimed: Vec<u8>,
    released: Vec<u8>,
}

impl<D: Drive> Leaving<D> {
    /// As it lies on the drive: what was just written, with the claim.
    async fn read<E: Env<Drive = D>>(env: &E, slot: Slot, drive: Option<&D>) -> Result<Self, IoError> {
        let drive = drive.cloned().ok_or(IoError::new(IoKind::Gone, "release: the member has no drive"))?;
        let end = SUPERBLOCK_START + u64_of(SUPERBLOCK_SLOT_BYTES);
        let claimed = read(env, &drive, SUPERBLOCK_START..end).await?;
        let mut superblock = Superblock::decode(&claimed)
            .map_err(|_| IoError::new(IoKind::Medium, "release: the superblock reads back damaged"))?;
        superblock.set_claimed(false);
        superblock.resync_offset = IN_SYNC;
        let mut released = claimed.clone();
        put(&mut released, 0, &superblock.encode());
        Ok(Self { slot, drive, claimed, released })
    }

    fn bare(&self) -> Vec<u8> {
        let mut bytes = self.released.clone();
        bytes[ANCHOR_AT..].fill(0);
        bytes
    }
}

async fn write_slots<E: Env>(
    env: &E,
    members: &[Leaving<E::Drive>],
    bytes: impl Fn(&Leaving<E::Drive>) -> Vec<u8>,
) -> Vec<(Slot, IoError)> {
    let job = |member: &Leaving<E::Drive>| Job {
        slot: member.slot,
        drive: member.drive.clone(),
        at: DriveOffset(SUPERBLOCK_START),
        bytes: bytes(member),
    };
    write_all(env, members.iter().map(job).collect(), Durability::Fua).await
}
