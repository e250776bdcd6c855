//! What an upgrade of the daemon came to.

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A block device that went on with the new program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UpgradedDiskDoc {
    /// `GROUP/DISK`.
    pub disk: String,
    /// How long its I/O waited.
    pub paused_ms: u64,
}

/// An upgrade that is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeDoc {
    /// Different for each.
    pub id: String,
    /// Version before.
    pub from_version: String,
    /// Version after: of the daemon that tells this.
    pub to_version: String,
    /// Longest pause of a block device.
    pub paused_ms: u64,
    /// Block devices that were served before and are again.
    pub disks: Vec<UpgradedDiskDoc>,
    /// Why the new program was not started; the one before goes on.
    pub error: Option<String>,
}

impl fmt::Display for UpgradeDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            None => write!(f, "warpraid {} -> {}", self.from_version, self.to_version)?,
            Some(error) => write!(f, "{error}; warpraid {} goes on", self.to_version)?,
        }
        if !self.disks.is_empty() {
            write!(f, "; I/O of block devices waited at most {} ms", self.paused_ms)?;
        }
        let disks: Vec<String> =
            self.disks.iter().map(|disk| format!("{} {} ms", disk.disk, disk.paused_ms)).collect();
        if disks.len() > 1 { write!(f, " ({})", disks.join(", ")) } else { Ok(()) }
    }
}
