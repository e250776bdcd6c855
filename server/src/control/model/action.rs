//! What a verb that changes something did.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::disk::DiskDoc;
use super::drive::DriveDoc;
use super::group::GroupDoc;
use super::plan::PlanDoc;

/// What a verb that changes something did, or with `dry_run` would do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ActionDoc {
    /// The verb, e.g. `group create`.
    pub verb: String,
    /// What it was done to, e.g. `tank/home`.
    pub subject: String,
    /// True: nothing was written; `steps` says what would be.
    pub dry_run: bool,
    /// Step by step, a line each, things named.
    pub steps: Vec<String>,
    /// The plan of a create.
    pub plan: Option<PlanDoc>,
    /// Groups it was about, as they are now.
    pub groups: Vec<GroupDoc>,
    /// The disk it was about, as it is now.
    pub disk: Option<DiskDoc>,
    /// The drive it was about, as it is now.
    pub drive: Option<DriveDoc>,
}

impl ActionDoc {
    /// An action with nothing to tell but its steps.
    pub fn new(
        verb: impl Into<String>,
        subject: impl Into<String>,
        dry_run: bool,
        steps: Vec<String>,
    ) -> Self {
        Self {
            verb: verb.into(),
            subject: subject.into(),
            dry_run,
            steps,
            plan: None,
            groups: Vec::new(),
            disk: None,
            drive: None,
        }
    }
}
