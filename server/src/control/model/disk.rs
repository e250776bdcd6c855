//! A virtual disk and how it is reached.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scrub::{DiskScrubDoc, LostRangeDoc};

/// How a filesystem is best made on a disk of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MkfsDoc {
    /// The `mkfs.xfs` command, DEVICE to be filled in.
    pub xfs: String,
    /// The `mkfs.ext4` command, DEVICE to be filled in.
    pub ext4: String,
}

/// How a disk is reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExposureDoc {
    /// The front end.
    pub kind: ExposureKind,
    /// As given to expose: `unix:PATH` or `tcp:ADDR:PORT`; of a block device `ublk:N`.
    pub address: String,
    /// As NBD clients want it; of a block device its path.
    pub uri: String,
    /// The NBD export name.
    pub export: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Connected clients: peer address, or pid and uid of a local one; of a block device what holds it: mounts, other
    /// devices, swap.
    pub clients: Vec<String>,
}

/// A front end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExposureKind {
    /// NBD.
    Nbd,
    /// A block device of this host, through ublk.
    Ublk,
}

/// A virtual disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiskDoc {
    /// Its group.
    pub group: String,
    /// Its name in the group.
    pub name: String,
    /// Its uuid: the partition GUID.
    pub uuid: String,
    /// First byte in the group's data.
    pub start_bytes: u64,
    /// Size.
    pub size_bytes: u64,
    /// Logical block size.
    pub block_size_bytes: u32,
    /// How it is reached.
    pub exposures: Vec<ExposureDoc>,
    /// The last complete scrub, as far as it is about this disk.
    pub scrub: Option<DiskScrubDoc>,
    /// Its blocks that are lost.
    pub lost: Vec<LostRangeDoc>,
    /// How a filesystem is best made on it.
    pub mkfs: MkfsDoc,
}

/// Disks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiskListDoc {
    /// By group and start.
    pub disks: Vec<DiskDoc>,
}
