//! What a group would be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disk::MkfsDoc;
use super::group::LevelDoc;

/// One drive of a plan. `data + metadata + unused = size`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanDriveDoc {
    /// The slot it would take.
    pub slot: u8,
    /// Path.
    pub path: String,
    /// Serial, as far as it has one.
    pub serial: Option<String>,
    /// NUMA node, where known.
    pub numa_node: Option<u16>,
    /// Size of the drive.
    pub size_bytes: u64,
    /// What the group would use for data and parity.
    pub data_bytes: u64,
    /// What lies before the data: superblock, bitmap, bad-block log, extension area.
    pub metadata_bytes: u64,
    /// What stays unused: rounding, so that a slightly smaller replacement fits, and what a larger drive has more.
    pub unused_bytes: u64,
}

/// What a group would be. `usable + parity + metadata + unused = raw`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanDoc {
    /// RAID level.
    pub level: LevelDoc,
    /// Chunk per drive; 0 on RAID 1.
    pub chunk_bytes: u32,
    /// Data bytes of a full stripe.
    pub stripe_bytes: u64,
    /// Logical block size the group would have.
    pub block_size_bytes: u32,
    /// All bytes of all drives.
    pub raw_bytes: u64,
    /// Parity, or the further copies on RAID 1 and 10.
    pub parity_bytes: u64,
    /// Metadata on all drives.
    pub metadata_bytes: u64,
    /// What stays unused on all drives.
    pub unused_bytes: u64,
    /// What disks can be cut from.
    pub usable_bytes: u64,
    /// The arithmetic, a line each.
    pub arithmetic: Vec<String>,
    /// How many drives it can lose, whichever they are.
    pub tolerates: u8,
    /// The same in words, with what more it may survive (RAID 10).
    pub tolerance: String,
    /// How a filesystem is best made on its disks.
    pub mkfs: MkfsDoc,
    /// Drive by drive.
    pub drives: Vec<PlanDriveDoc>,
}
