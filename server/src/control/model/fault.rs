//! Faults on purpose, as `fault list` shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a drive does wrong because it was told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultWhat {
    /// Every command fails as on a drive that was removed.
    Fail,
    /// Commands are not answered until the fault is cleared.
    Hang,
    /// Commands take longer.
    Slow,
    /// Reads of a range fail with a medium error until its blocks are rewritten.
    Bad,
    /// One bit of each block of a range reads wrong until the block is rewritten.
    Flip,
    /// Writes of a range are acknowledged and not done.
    LostWrite,
}

/// Bytes of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RangeDoc {
    /// First byte, from the start of the drive.
    pub offset_bytes: u64,
    /// Bytes.
    pub len_bytes: u64,
}

/// One fault of one drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FaultDoc {
    /// Its number, by which it is cleared.
    pub id: u64,
    /// Path of the drive.
    pub drive: String,
    /// What it does.
    pub what: FaultWhat,
    /// Group whose member the drive is.
    pub group: Option<String>,
    /// Slot in that group.
    pub slot: Option<u8>,
    /// Added to each command, where it is slow.
    pub delay_ns: u64,
    /// Times the drive's own time, where it is slow.
    pub factor: u32,
    /// Where it still applies; none: everywhere.
    pub ranges: Option<Vec<RangeDoc>>,
    /// Commands it has applied to.
    pub hits: u64,
    /// Whether it still does anything: not used up, not rewritten away.
    pub active: bool,
    /// When it was injected.
    pub since_unix_s: u64,
    /// When it ends by itself.
    pub until_unix_s: Option<u64>,
}

/// Faults.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FaultListDoc {
    /// By number.
    pub faults: Vec<FaultDoc>,
}
