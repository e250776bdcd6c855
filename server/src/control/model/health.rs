//! How well things are: the documents of `status` and `health`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::group::GroupDoc;
use super::upgrade::UpgradeDoc;
use crate::control::explain::Code;

/// How well something is, worst last but for `unknown`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As it should be.
    Ok,
    /// Works, but something must be done.
    Warning,
    /// Data is unreachable or one failure away from it.
    Critical,
    /// Nobody can say.
    Unknown,
}

/// Something that is not as it should be: what, what it risks, what to type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProblemDoc {
    /// Stable code, e.g. `group.degraded`: `warpraid explain CODE`.
    pub code: Code,
    /// How bad.
    pub health: Health,
    /// The group it is about.
    pub group: Option<String>,
    /// The slot it is about.
    pub slot: Option<u8>,
    /// Path of the drive it is about.
    pub drive: Option<String>,
    /// Serial of that drive.
    pub serial: Option<String>,
    /// When it began.
    pub since_unix_s: Option<u64>,
    /// The cause, in words.
    pub why: String,
    /// What the next failure would cost, in words ("can lose 0 more drives").
    pub risk: String,
    /// One exact command.
    pub next: String,
}

/// The daemon itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DaemonDoc {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started.
    pub started_unix_s: u64,
    /// Its clock now.
    pub now_unix_s: u64,
    /// Lanes.
    pub lanes: u16,
    /// Bound of its buffer memory.
    pub memory_bytes: u64,
    /// The upgrade it came from, if it came from one.
    pub upgraded: Option<UpgradeDoc>,
    /// What computes parity: the name of a kernel, or names by operation.
    #[serde(default)]
    pub parity_kernel: String,
}

/// Am I safe, why not, what do I type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StatusDoc {
    /// The worst of all.
    pub health: Health,
    /// The daemon.
    pub daemon: DaemonDoc,
    /// Every group, running or known to be stopped.
    pub groups: Vec<GroupDoc>,
    /// Every problem, worst first: those of the groups, and those of none.
    pub problems: Vec<ProblemDoc>,
}

/// Health as a monitoring system wants it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HealthDoc {
    /// The worst of all; the exit code of `warpraid health` is 0 ok, 1 warning, 2 critical, 3 unknown.
    pub health: Health,
    /// One line.
    pub summary: String,
    /// Every problem, worst first.
    pub problems: Vec<ProblemDoc>,
}
