//! The request of `group scrub`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::ScrubModeDoc;

/// What to do with a group's scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubOrder {
    /// Starts one.
    #[default]
    Start,
    /// Halts it; it keeps its place and counts, over restarts too.
    Pause,
    /// Goes on with it.
    Resume,
    /// Gives it up.
    Cancel,
    /// Takes note of what the last one found: it is no problem any more.
    Acknowledge,
}

/// Scrubs a group, or pauses, resumes, cancels, acknowledges.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupScrub {
    /// What to do.
    #[serde(default)]
    pub order: ScrubOrder,
    /// Of a start: what to do about what does not fit.
    #[serde(default)]
    pub mode: ScrubModeDoc,
    /// Of a start: also while members are missing or the group is not in sync.
    #[serde(default)]
    pub even_degraded: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}
