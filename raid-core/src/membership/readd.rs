//! Which dropped member may come back to its slot and be resynced by intent bits only (SAFETY M6, S4).
//!
//! Why that is enough: a bit is cleared only while the group is complete and only after a flush of every member, so where
//! no bit is set a member that was in sync then holds what it should, durably. While a slot has no member in sync nothing
//! is cleared, whatever restarts, forced starts and other losses follow: bits of all current members are merged at every
//! start, and all of them are set when none can be read. So the bits of now hold everything that was written since before
//! the drop, as long as four things are true, and they are checked here:
//!
//! - the slot is still that member's: nobody was put in its place, or the group was complete without it meanwhile;
//! - its history is the group's (M1): it did not run apart;
//! - nobody but the group has changed the drive, as far as was ever seen: one that was met cut short or damaged is not
//!   trusted again, even if it looks whole later;
//! - the drive is in the state it had when it was dropped, not in an older one (P3): its epoch is not below the newest it
//!   surely took while in sync.
//!
//! That it has no unfinished I/O (M7) is for who opens the drive to know.

use core::fmt;

use super::GroupMeta;
use super::lifecycle::on_drive_of;
use super::meta::Persistent;
use super::observe::Ours;
use super::publish::write_members;
use crate::format::extension::SlotState;
use crate::ports::{DriveKey, Env, IoError};
use crate::units::{Slot, Uuid};
use crate::view::{Epoch, Member, MemberState};

/// Why a drive does not come back by intents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoReturn {
    /// It never was a member of this group, or its create or delete was not finished.
    NotAMember,
    /// Its slot is another drive's now.
    Replaced {
        /// Device uuid of the drive that came back.
        device_uuid: Uuid,
    },
    /// Its slot has a member.
    Taken(Slot),
    /// Its history is not that of the group (SAFETY M1).
    Conflict {
        /// What it has.
        have: Epoch,
    },
    /// It was never in sync, or is being rebuilt whole.
    NeverInSync(Slot),
    /// An older state of the drive came back (SAFETY P3).
    RolledBack {
        /// Epoch counter it has.
        have: u64,
        /// Epoch counter it surely had.
        needed: u64,
    },
    /// Its drive was seen cut short, damaged or changed by others since: what it lacks is not known.
    Distrusted(Slot),
    /// The group or the member has no intent bitmap.
    NoBitmap,
}

impl fmt::Display for NoReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAMember => f.write_str("it is no member that was dropped from this group"),
            Self::Replaced { device_uuid } => {
                write!(f, "another drive has taken its place in the group (it was {device_uuid})")
            }
            Self::Taken(slot) => write!(f, "slot {slot} has a working member"),
            Self::Conflict { have } => {
                write!(f, "conflict: its history (epoch {have}) is not that of the group")
            }
            Self::NeverInSync(slot) => write!(f, "the member of slot {slot} was never in sync"),
            Self::RolledBack { have, needed } => write!(
                f,
                "it is at epoch {have}, but took epoch {needed}: an older state of the drive came back"
            ),
            Self::Distrusted(slot) => write!(
                f,
                "the drive of slot {slot} was seen cut short, damaged or changed by others: it has to be rebuilt whole"
            ),
            Self::NoBitmap => f.write_str("there are no intent bits that tell what it lacks"),
        }
    }
}

impl std::error::Error for NoReturn {}

impl Persistent {
    /// The slot to which the member on a drive may come back, and whether it is to do so by itself.
    ///
    /// # Errors
    /// Why it may not; it can still be wiped and put in as a blank drive.
    pub fn may_return(&self, ours: &Ours) -> Result<(Slot, bool), NoReturn> {
        let (identity, copy) = (self.identity(), &ours.copy);
        if copy.group != identity.group
            || ours.geometry != identity.geometry
            || copy.block_size != identity.block_size
            || copy.marks.creating
            || copy.marks.deleted
        {
            return Err(NoReturn::NotAMember);
        }
        let state = self.state.lock();
        let device_uuid = copy.device_uuid;
        let mut slots = (0u8..).map(Slot).zip(&state.slots);
        let Some((slot, record)) = slots.find(|(_, record)| record.device_uuid == device_uuid) else {
            return Err(NoReturn::Replaced { device_uuid });
        };
        if record.state != SlotState::Missing {
            return Err(NoReturn::Taken(slot));
        }
        if record.distrusted {
            return Err(NoReturn::Distrusted(slot));
        }
        if record.dev_number != copy.dev_number {
            return Err(NoReturn::Replaced { device_uuid });
        }
        let (epoch, last) = (copy.epoch(), record.last_in_sync);
        let own = copy.slots.get(slot.index()).filter(|own| own.device_uuid == device_uuid);
        let Some(own) = own else { return Err(NoReturn::NeverInSync(slot)) };
        let is_resuming = own.state == SlotState::Rebuilding && own.by_intents;
        let is_known = state.chain.contains(&epoch) || last == epoch;
        if !is_known || (own.state == SlotState::InSync && epoch.counter > last.counter) {
            return Err(NoReturn::Conflict { have: epoch });
        }
        if last.counter == 0 || (own.state != SlotState::InSync && !is_resuming) {
            return Err(NoReturn::NeverInSync(slot));
        }
        let needed = if record.known_counter == 0 { last.counter } else { record.known_counter };
        if epoch.counter < needed {
            return Err(NoReturn::RolledBack { have: epoch.counter, needed });
        }
        if copy.layout.bitmap.is_none() {
            return Err(NoReturn::NoBitmap);
        }
        Ok((slot, !record.stays_out))
    }
}

/// The member of a drive that comes back, ready for [`crate::engine::Group::readd_member`]. Writes nothing.
///
/// # Errors
/// As [`Persistent::may_return`]. A group in memory only has no members that could come back.
pub async fn prepare_return(
    meta: &GroupMeta,
    ours: &Ours,
    key: DriveKey,
) -> Result<(Slot, Member), NoReturn> {
    let GroupMeta::Persistent(meta) = meta else { return Err(NoReturn::NotAMember) };
    let _turn = meta.turn.take().await;
    let (slot, _) = meta.may_return(ours)?;
    let mut state = meta.state.lock();
    // The next copies must count as newer than its own.
    state.sequence = state.sequence.max(ours.copy.sequence);
    let mut on_drive = on_drive_of(ours);
    on_drive.is_returning = true;
    state.on_drive.insert(ours.copy.device_uuid, on_drive);
    let record = &state.slots[slot.index()];
    let member = Member {
        state: MemberState::Rebuilding,
        drive: Some(key),
        device_uuid: record.device_uuid,
        dev_number: record.dev_number,
        last_in_sync: record.last_in_sync.counter,
        layout: ours.copy.layout.clone(),
        successor: None,
    };
    Ok((slot, member))
}

/// Records that what lies on a member's drive is not what the group wrote: it was seen cut short, damaged or changed by
/// others. From then on it comes back only as a blank drive. Returns the members that failed to take this; a member the
/// group does not know is none.
pub async fn distrust<E: Env>(
    env: &E,
    meta: &GroupMeta,
    device_uuid: Uuid,
    drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let GroupMeta::Persistent(meta) = meta else { return Vec::new() };
    let _turn = meta.turn.take().await;
    {
        let mut state = meta.state.lock();
        let record = state.slots.iter_mut().find(|record| record.device_uuid == device_uuid);
        let Some(record) = record.filter(|record| !record.distrusted) else { return Vec::new() };
        record.distrusted = true;
    }
    write_members(env, meta, drives).await
}
