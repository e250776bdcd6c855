//! Spares: drives that wait for a member to be lost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a spare could be used now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpareState {
    /// Held by the daemon, blank, and answering.
    Ready,
    /// It is not there, or somebody else has it.
    Missing,
    /// It is there and cannot be used: it fails, or something lies on it.
    Failed,
}

/// A spare.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpareDoc {
    /// Path of the drive.
    pub drive: String,
    /// Serial, as far as it has one.
    pub serial: Option<String>,
    /// Size.
    pub size_bytes: u64,
    /// Logical block size; of a file the smallest it can be used with.
    pub block_size_bytes: u32,
    /// NUMA node, where known.
    pub numa_node: Option<u16>,
    /// The group it is kept for; none: any.
    pub group: Option<String>,
    /// Uuid of that group.
    pub group_uuid: Option<String>,
    /// Whether it could be used now.
    pub state: SpareState,
    /// Why not, in words.
    pub why: Option<String>,
}

/// Spares.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpareListDoc {
    /// By path.
    pub spares: Vec<SpareDoc>,
}
