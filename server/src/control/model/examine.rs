//! A drive examined without a daemon.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::drive::DriveDoc;
use super::group::{EpochDoc, MemberState};

/// The md superblock on a drive, read without writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SuperblockDoc {
    /// Whether magic, version and checksum are right.
    pub valid: bool,
    /// Whether warpraid's claim bit is set, which keeps the kernel away.
    pub claimed: bool,
    /// Array uuid.
    pub group_uuid: String,
    /// Array name as md stores it (`host:name`).
    pub name: String,
    /// Level, as md's number.
    pub level: i32,
    /// md's layout number.
    pub layout: u32,
    /// Chunk.
    pub chunk_bytes: u32,
    /// Number of slots.
    pub members: u16,
    /// Device uuid.
    pub device_uuid: String,
    /// The slot, unless it is a spare or faulty.
    pub slot: Option<u16>,
    /// md's event count.
    pub events: u64,
    /// Last update.
    pub updated_unix_s: u64,
    /// First byte of data.
    pub data_offset_bytes: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// First block not yet in sync; none when clean.
    pub resync_offset_bytes: Option<u64>,
    /// How far the member's rebuild is, while it is one.
    pub recovery_offset_bytes: Option<u64>,
    /// Entries of the bad-block log.
    pub bad_blocks: u64,
    /// Bits set in the intent bitmap; none without a bitmap.
    pub intents_dirty: Option<u64>,
}

/// One slot as a member remembers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RememberedMemberDoc {
    /// Slot.
    pub slot: u8,
    /// State then.
    pub state: MemberState,
    /// Device uuid.
    pub device_uuid: String,
    /// Counter of the last epoch it was in sync in.
    pub last_in_sync: u64,
}

/// Our extension area on a drive, read without writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExtensionDoc {
    /// Which of the two copies are valid: A, B.
    pub copies_valid: [bool; 2],
    /// Whether the anchor agrees.
    pub anchor_valid: bool,
    /// The membership version it knows.
    pub epoch: EpochDoc,
    /// Whether the group was stopped cleanly in that epoch.
    pub clean: bool,
    /// Whether the group was once started by force.
    pub forced: bool,
    /// Whether this is the tombstone of a deleted group.
    pub deleted: bool,
    /// The members as it remembers them.
    pub members: Vec<RememberedMemberDoc>,
}

/// What lies on a drive, read without a daemon and without writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExamineDoc {
    /// The drive.
    pub drive: DriveDoc,
    /// The md superblock, where there is one.
    pub superblock: Option<SuperblockDoc>,
    /// Our extension area, where there is one.
    pub extension: Option<ExtensionDoc>,
    /// What it comes to, a line each: what this is, whether it is whole, what to do.
    pub findings: Vec<String>,
}
