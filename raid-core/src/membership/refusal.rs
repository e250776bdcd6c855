//! Why a group does not start, said so that the operator knows what is missing and what would help (SAFETY S9).

use core::fmt;

use crate::geometry::Level;
use crate::ports::DriveKey;
use crate::units::{Slot, Uuid};
use crate::view::Epoch;

/// A slot whose member is not here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The slot.
    pub slot: Slot,
    /// Device uuid of the member it needs.
    pub device_uuid: Uuid,
}

/// A drive of the group that is present and not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// The drive.
    pub drive: DriveKey,
    /// Its device uuid, if it can be told.
    pub device_uuid: Option<Uuid>,
    /// Why, in words.
    pub why: String,
}

/// Why a group does not start. All but [`Self::NotEnoughMembers`], [`Self::NoMembers`], [`Self::UnfinishedCreate`] and
/// [`Self::OwnedByMd`] are refusals for safety (exit code 3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No usable member was seen.
    NoMembers {
        /// What was seen of it.
        unusable: Vec<LeftOut>,
    },
    /// A newer epoch is known than the present members have (M4).
    NewerEpochKnown {
        /// The newer one.
        known: Epoch,
        /// What the present members have.
        have: Epoch,
        /// Members in sync in the newer one, where known.
        in_sync: Vec<Uuid>,
    },
    /// Members went separate ways and each side could have run (SL-01).
    Diverged {
        /// Epoch and members of each side.
        sides: Vec<(Epoch, Vec<Uuid>)>,
    },
    /// The side the operator chose is not one.
    NoSuchSide {
        /// What he named.
        device_uuid: Uuid,
    },
    /// A parity group without journal crashed and has lost members: blocks of writes in flight cannot be trusted (SL-09).
    DirtyAndDegraded {
        /// What is missing.
        missing: Vec<Lost>,
        /// Intent bits set, if there is a bitmap.
        dirty_regions: Option<u64>,
    },
    /// The absent members could have gone on without the present ones, and nothing proves that they did not (M4).
    LastMirrorUnproven {
        /// The absent ones.
        absent: Vec<Lost>,
    },
    /// Fewer members than the level needs (S9, M5).
    NotEnoughMembers {
        /// The level.
        level: Level,
        /// Its slots.
        slots: u8,
        /// Members present and in sync.
        present: usize,
        /// The members that would help.
        needs: Vec<Lost>,
        /// Present drives that do not.
        left_out: Vec<LeftOut>,
    },
    /// md may have run the group while it was ours.
    ModifiedByOtherSoftware {
        /// The drive that shows it.
        drive: DriveKey,
        /// Its device uuid.
        device_uuid: Uuid,
        /// What it shows.
        what: String,
    },
    /// The group was deleted.
    Tombstoned {
        /// Its name.
        name: String,
        /// When, unix seconds.
        deleted_unix_s: u64,
    },
    /// A create that was never finished: there is no group.
    UnfinishedCreate {
        /// The name it was to have.
        name: String,
    },
    /// Members may differ in who owns them, md or us: an adopt or release was cut short, and not all members are here.
    HalfHandedOver {
        /// The group's name.
        name: String,
        /// Members that are not here, or that md has written to since.
        missing: Vec<Lost>,
    },
    /// No member carries the claim: an adopt was cut short before it took anything, or a release after it gave everything.
    OwnedByMd {
        /// The group's name.
        name: String,
    },
    /// Two drives claim to be one member: one is a copy of the other.
    Twins {
        /// The member.
        device_uuid: Uuid,
        /// The drives.
        drives: [DriveKey; 2],
    },
}

impl Refusal {
    /// Whether the start is refused because it could lose data (exit code 3), not because something is not there.
    #[must_use]
    pub const fn is_for_safety(&self) -> bool {
        !matches!(
            self,
            Self::NoMembers { .. }
                | Self::NotEnoughMembers { .. }
                | Self::UnfinishedCreate { .. }
                | Self::OwnedByMd { .. }
        )
    }

    /// Whether the operator's force would start it.
    #[must_use]
    pub const fn yields_to_force(&self) -> bool {
        matches!(
            self,
            Self::NewerEpochKnown { .. }
                | Self::DirtyAndDegraded { .. }
                | Self::LastMirrorUnproven { .. }
                | Self::ModifiedByOtherSoftware { .. }
                | Self::HalfHandedOver { .. }
        )
    }
}

/// Slots and uuids in one line.
pub(super) fn list(f: &mut fmt::Formatter<'_>, lost: &[Lost]) -> fmt::Result {
    for (i, member) in lost.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}slot {} (member {})", member.slot, member.device_uuid)?;
    }
    Ok(())
}

fn list_left_out(f: &mut fmt::Formatter<'_>, left_out: &[LeftOut]) -> fmt::Result {
    for member in left_out {
        match member.device_uuid {
            Some(uuid) => write!(f, "; member {uuid} is present but {}", member.why)?,
            None => write!(f, "; a member is present but {}", member.why)?,
        }
    }
    Ok(())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMembers { unusable } => {
                f.write_str("no usable member of the group is present")?;
                list_left_out(f, unusable)
            }
            Self::NewerEpochKnown { known, have, in_sync } => {
                write!(
                    f,
                    "the present members know epoch {}, but epoch {} exists",
                    have.counter, known.counter
                )?;
                for uuid in in_sync {
                    write!(f, "; member {uuid} was in sync in it")?;
                }
                Ok(())
            }
            Self::Diverged { sides } => {
                f.write_str("the members went separate ways; choose the side to keep:")?;
                for (epoch, members) in sides {
                    write!(f, " epoch {} on", epoch.counter)?;
                    for member in members {
                        write!(f, " {member}")?;
                    }
                    f.write_str(";")?;
                }
                f.write_str(" nothing was changed")
            }
            Self::NoSuchSide { device_uuid } => {
                write!(f, "member {device_uuid} is not at the tip of any side of the group")
            }
            Self::DirtyAndDegraded { missing, dirty_regions } => {
                f.write_str("the group was not stopped cleanly and is degraded")?;
                if !missing.is_empty() {
                    f.write_str(": it lacks ")?;
                    list(f, missing)?;
                }
                match dirty_regions {
                    Some(n) => write!(f, "; in {n} regions that were being written, ")?,
                    None => f.write_str("; anywhere on the group, ")?,
                }
                let whose =
                    if missing.is_empty() { "a member that is not complete" } else { "the missing members" };
                write!(f, "blocks of {whose} may be wrong (no journal)")
            }
            Self::LastMirrorUnproven { absent } => {
                f.write_str("the absent ")?;
                list(f, absent)?;
                f.write_str(" may hold newer data: the group was not stopped cleanly, and this host does not know better")
            }
            Self::NotEnoughMembers { level, slots, present, needs, left_out } => {
                write!(f, "{level} of {slots} has {present} members in sync, too few; it needs ")?;
                list(f, needs)?;
                list_left_out(f, left_out)
            }
            Self::ModifiedByOtherSoftware { device_uuid, what, .. } => {
                write!(f, "member {device_uuid} was modified by other software: {what}")
            }
            Self::Tombstoned { name, .. } => {
                write!(f, "group {name} was deleted; it can be undeleted until a member is reused")
            }
            Self::UnfinishedCreate { name } => {
                write!(f, "the create of group {name} was not finished; create it again")
            }
            Self::HalfHandedOver { name, missing } => {
                write!(
                    f,
                    "an adopt or release of group {name} was cut short, and members that md may have taken are not here \
                     as they were: "
                )?;
                list(f, missing)
            }
            Self::OwnedByMd { name } => {
                write!(f, "group {name} is an array of md: no member carries our claim")
            }
            Self::Twins { device_uuid, .. } => {
                write!(f, "two drives carry the same member {device_uuid}: take the copy out")
            }
        }
    }
}

impl std::error::Error for Refusal {}
