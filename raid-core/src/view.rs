//! Views: immutable snapshots of a group's membership, and the epochs that order them (SAFETY M1, P7).
//!
//! A membership change never edits a view: it publishes a new one with the next epoch, waits until every operation that
//! started under the old one has ended, and makes the new epoch durable before anything that relies on it is
//! acknowledged (SAFETY M2).

use core::fmt;
use core::ops::Range;

use crate::ports::{DriveKey, IoKind};
use crate::units::{DriveOffset, Slot, Uuid, u64_of};

/// Membership version: a counter that orders, and a random id that tells two histories with equal counters apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Epoch {
    /// Grows by one with every start and every membership change.
    pub counter: u64,
    /// Random, new with every counter value.
    pub id: Uuid,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.counter, self.id)
    }
}

/// What the host remembers of a group outside its drives (state folder): enough to know that a set of members is not
/// the latest (SAFETY M4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Witness {
    /// The group.
    pub group: Uuid,
    /// The newest epoch made durable.
    pub epoch: Epoch,
    /// Whether the group was stopped cleanly in that epoch.
    pub is_clean: bool,
    /// Device uuids of the members in sync in that epoch, in slot order.
    pub in_sync: Vec<Uuid>,
}

/// Where things lie on one member. Offsets are from the start of the drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberLayout {
    /// First byte of group data.
    pub data_start: DriveOffset,
    /// Bytes of the data area (the geometry may use less).
    pub data_bytes: u64,
    /// md's v1.2 superblock: always 4096.
    pub superblock_start: DriveOffset,
    /// md's internal bitmap (write intents); `None` on RAID 0 and on arrays without one.
    pub bitmap: Option<Range<u64>>,
    /// md's bad-block log; `None` if the array has none.
    pub bad_blocks: Option<Range<u64>>,
    /// Our extension area (copy A, journal ring, copy B); `None` on an adopted array without a hole for it.
    pub extension: Option<Range<u64>>,
}

impl MemberLayout {
    /// A member without any metadata: data from byte 0. For groups that live in memory only.
    #[must_use]
    pub fn bare(data_bytes: u64) -> Self {
        Self {
            data_start: DriveOffset(0),
            data_bytes,
            superblock_start: DriveOffset(4096),
            bitmap: None,
            bad_blocks: None,
            extension: None,
        }
    }
}

/// What a slot's member is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// Holds current data everywhere.
    InSync,
    /// Holds current data below its rebuild cursor only.
    Rebuilding,
    /// Nothing usable in this slot. `why` is what it was dropped for, if it was dropped while we watched.
    Missing {
        /// The error that dropped it.
        why: Option<IoKind>,
    },
}

/// A drive that is being filled to take a member's place while that one still serves (`engine/sweep/succeed.rs`). Nobody
/// reads it and nothing durable but its own metadata knows of it: until one published view makes it the member, it is
/// a blank drive as far as the group is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Successor {
    /// Its drive.
    pub drive: DriveKey,
    /// md's device uuid it will have; new with every try.
    pub device_uuid: Uuid,
    /// md's `dev_number` it will have.
    pub dev_number: u16,
    /// Where its areas lie.
    pub layout: MemberLayout,
}

/// One slot of a view.
#[derive(Clone, Debug)]
pub struct Member {
    /// What it is good for.
    pub state: MemberState,
    /// Its drive, while there is one.
    pub drive: Option<DriveKey>,
    /// md's device uuid of the member that holds (or last held) the slot.
    pub device_uuid: Uuid,
    /// md's `dev_number` of that member: the index of its role, never a slot (ONDISK, "fields that bite").
    pub dev_number: u16,
    /// Counter of the last epoch in which this member was in sync.
    pub last_in_sync: u64,
    /// Where its areas lie.
    pub layout: MemberLayout,
    /// The drive that is being filled to take its place; only of a member in sync.
    pub successor: Option<Box<Successor>>,
}

impl Member {
    /// Whether the member is in sync everywhere.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.state == MemberState::InSync
    }

    /// Whether nothing can be read from or written to the slot.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.state, MemberState::Missing { .. })
    }
}

/// An immutable membership snapshot.
#[derive(Clone, Debug)]
pub struct View {
    /// Number of this view inside the running daemon, from 1; what lanes compare.
    pub version: u64,
    /// The durable epoch it belongs to.
    pub epoch: Epoch,
    /// One entry per slot, in slot order.
    pub members: Vec<Member>,
}

impl View {
    /// The member in a slot.
    #[must_use]
    pub fn member(&self, slot: Slot) -> &Member {
        &self.members[slot.index()]
    }

    /// All slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let n = u8::try_from(u64_of(self.members.len())).expect("at most 128 members");
        (0..n).map(Slot)
    }

    /// Number of slots without a usable member.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.members.iter().filter(|member| member.is_missing()).count()
    }

    /// Whether every slot is in sync.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.members.iter().all(Member::is_in_sync)
    }
}
