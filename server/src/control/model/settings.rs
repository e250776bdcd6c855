//! What an operator has set for a group.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often a group is scrubbed by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubEvery {
    /// Never.
    #[default]
    Off,
    /// A day after the last one began.
    Daily,
    /// 7 days after.
    Weekly,
    /// 14 days after.
    Biweekly,
    /// 30 days after.
    Monthly,
}

impl ScrubEvery {
    /// Days from the start of one to the start of the next.
    #[must_use]
    pub const fn days(self) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::Daily => Some(1),
            Self::Weekly => Some(7),
            Self::Biweekly => Some(14),
            Self::Monthly => Some(30),
        }
    }
}

/// How much a rebuild may cost clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebuildSpeed {
    /// Clients hardly notice.
    Low,
    /// Clients wait at most about half as long again.
    #[default]
    Normal,
    /// Clients wait up to three times as long.
    High,
    /// As fast as it goes, whatever clients see.
    Max,
}

impl From<RebuildSpeed> for raid_core::pacing::Speed {
    fn from(speed: RebuildSpeed) -> Self {
        match speed {
            RebuildSpeed::Low => Self::Low,
            RebuildSpeed::Normal => Self::Normal,
            RebuildSpeed::High => Self::High,
            RebuildSpeed::Max => Self::Max,
        }
    }
}

/// How long a lost member of a group is waited for before a spare takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpareWait {
    /// As the daemon was started: `serve --spare-wait`, `--spare-wait-failed`.
    #[default]
    Auto,
    /// For ever: no spare takes it by itself.
    Never,
    /// This long, in nanoseconds.
    Ns(u64),
}

/// What becomes of a lost member whose drive is plugged in again, if all that was lost was contact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Returning {
    /// It is resynced by the intent bits, by itself.
    #[default]
    Resync,
    /// It waits for `group readd`.
    Ask,
}

/// What becomes of a blank drive that is plugged in where a lost member's drive was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NewDrive {
    /// It waits for `group replace`: raw data without a signature cannot be told from a blank drive.
    #[default]
    Ask,
    /// It takes the slot and is rebuilt.
    Take,
}

/// Settings of a group, as they are in force.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct GroupSettingsDoc {
    /// How often it is scrubbed by itself.
    pub scrub: ScrubEvery,
    /// When scheduled scrubs may run, `HH:MM-HH:MM` in local time; none: at any time.
    pub scrub_window: Option<String>,
    /// How much rebuilds and other sweeps may cost clients.
    pub rebuild_speed: RebuildSpeed,
    /// Latency that 99 of 100 client requests shall keep below meanwhile; none: the preset's multiple of what it is without.
    pub rebuild_target_ns: Option<u64>,
    /// How long a member that was missing at start is waited for before a spare takes its place.
    #[serde(default)]
    pub spare_wait: SpareWait,
    /// The same for a member that failed while the daemon watched.
    #[serde(default)]
    pub spare_wait_failed: SpareWait,
    /// What becomes of a lost member whose drive is plugged in again.
    #[serde(default)]
    pub returning: Returning,
    /// What becomes of a blank drive in a lost member's place.
    #[serde(default)]
    pub new_drive: NewDrive,
}
