//! What happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::health::Health;
use crate::control::explain::Code;

/// How bad an event is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For the record.
    Info,
    /// Something needs attention.
    Warning,
    /// Data is unreachable or one failure away from it.
    Critical,
}

/// Something that happened. Numbers only grow, over restarts too; there may be gaps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventDoc {
    /// Its number.
    pub id: u64,
    /// When, by the daemon's wall clock. Order is by number, never by time.
    pub at_unix_s: u64,
    /// Stable code, e.g. `member.dropped`.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// What happened, in words, things named.
    pub message: String,
    /// The group it is about.
    pub group: Option<String>,
    /// The disk of that group it is about.
    pub disk: Option<String>,
    /// The slot it is about.
    pub slot: Option<u8>,
    /// Path of the drive it is about.
    pub drive: Option<String>,
    /// Serial of that drive.
    pub serial: Option<String>,
    /// Health of the group after it, where it is about one that is known.
    pub health: Option<Health>,
    /// The code of the problem it is about, as in status.
    pub problem: Option<Code>,
    /// The cause, in words.
    pub why: Option<String>,
    /// What the next failure would cost, in words.
    pub risk: Option<String>,
    /// One exact command.
    pub next: Option<String>,
}

/// Events, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventListDoc {
    /// Those asked for.
    pub events: Vec<EventDoc>,
    /// Number of the oldest event that is kept; 0 if there is none.
    pub oldest_id: u64,
    /// Number of the newest event; 0 if there is none. Ask for what comes after it.
    pub newest_id: u64,
    /// Whether more events fit what was asked than were given.
    pub more: bool,
    /// How many more: newer ones where it was asked for those after a number, else older ones.
    #[serde(default)]
    pub left_out: u64,
}
