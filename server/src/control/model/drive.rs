//! A drive and what lies on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::group::ErrorCountsDoc;

/// What a drive is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// An NVMe namespace.
    Nvme,
    /// Another block device.
    Block,
    /// A regular file.
    File,
}

/// What a drive is to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveState {
    /// Blank: a group can be made on it.
    Free,
    /// Member of a running group.
    Member,
    /// Carries a member of a group that does not run in this daemon; it may run in another, or wait to be assembled.
    Claimed,
    /// Kept by this daemon for the loss of a member.
    Spare,
    /// Carries something else.
    Used,
    /// Mounted or held by someone else.
    Held,
    /// Cannot be read.
    Failed,
    /// The daemon may not open it; `why` says what is missing.
    NotPermitted,
}

/// Something found on a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SignatureDoc {
    /// What: `gpt`, `ext4`, `xfs`, `lvm2_pv`, `md`, `warpraid` ...
    pub kind: String,
    /// Where, from the start of the drive.
    pub offset_bytes: u64,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Its uuid, if it has one.
    pub uuid: Option<String>,
}

/// What a drive says of its own health (NVMe's SMART log).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SmartDoc {
    /// What it warns of, in words; empty: nothing.
    pub warnings: Vec<String>,
    /// Temperature in degrees Celsius.
    pub temperature_c: i32,
    /// Spare capacity left, percent.
    pub spare_percent: u8,
    /// The drive warns below this, percent.
    pub spare_threshold_percent: u8,
    /// Life used by the maker's estimate, percent; may exceed 100.
    pub used_percent: u8,
    /// Bytes written over its life.
    pub written_bytes: u64,
    /// Hours powered on.
    pub power_on_hours: u64,
    /// Times it lost power without notice.
    pub unsafe_shutdowns: u64,
    /// Blocks it could not store or give back.
    pub media_errors: u64,
}

/// A drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DriveDoc {
    /// Path it was found by.
    pub path: String,
    /// What it is.
    pub kind: DriveKind,
    /// Serial, as far as it has one.
    pub serial: Option<String>,
    /// Model, as far as it has one.
    pub model: Option<String>,
    /// Size.
    pub size_bytes: u64,
    /// Logical block size.
    pub block_size_bytes: u32,
    /// NUMA node, where known.
    pub numa_node: Option<u16>,
    /// What it is to us.
    pub state: DriveState,
    /// Why it cannot be used, or what the member on it is, where the state alone does not say it.
    pub why: Option<String>,
    /// The way on from there: a command.
    #[serde(default)]
    pub next: Option<String>,
    /// Name of the group whose member it is or was.
    pub group: Option<String>,
    /// Uuid of that group.
    pub group_uuid: Option<String>,
    /// Slot in that group.
    pub slot: Option<u8>,
    /// md's device uuid of the member.
    pub device_uuid: Option<String>,
    /// What lies on it.
    pub signatures: Vec<SignatureDoc>,
    /// Who holds it: mount points, device mappers, processes.
    pub holders: Vec<String>,
    /// Errors since the daemon started.
    pub errors: ErrorCountsDoc,
    /// What it says of its own health; none: it was not asked, or has nothing to say.
    pub smart: Option<SmartDoc>,
}

/// Drives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DriveListDoc {
    /// By path.
    pub drives: Vec<DriveDoc>,
}
