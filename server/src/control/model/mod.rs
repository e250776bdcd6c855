//! Documents of the control API: what every verb answers, on the wire and behind `-o json`.
//!
//! The human view of the command line is rendered from these same documents, so neither can know more than the other.
//! All numbers are bytes, nanoseconds, unix seconds or counts, and say so in their names. Fields are only ever added
//! (raises [`MINOR`]); a change of meaning raises [`MAJOR`].

mod action;
mod demo;
mod disk;
mod drive;
mod events;
mod examine;
mod explain;
mod fault;
mod group;
mod health;
mod history;
mod layout;
mod plan;
mod progress;
mod scrub;
mod settings;
mod spare;
mod upgrade;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::explain::Code;

pub use action::ActionDoc;
pub use demo::{DemoDiskDoc, DemoDoc, DemoKeptDoc};
pub use disk::{DiskDoc, DiskListDoc, ExposureDoc, ExposureKind, MkfsDoc};
pub use drive::{DriveDoc, DriveKind, DriveListDoc, DriveState, SignatureDoc, SmartDoc};
pub use events::{EventDoc, EventListDoc, Severity};
pub use examine::{ExamineDoc, ExtensionDoc, RememberedMemberDoc, SuperblockDoc};
pub use explain::{ExplanationDoc, ExplanationListDoc};
pub use fault::{FaultDoc, FaultListDoc, FaultWhat, RangeDoc};
pub use group::{
    EpochDoc, ErrorCountsDoc, GroupDoc, GroupListDoc, GroupState, Journal, LatencyDoc, LevelDoc, MemberDoc,
    MemberState, WaitDoc,
};
pub use health::{DaemonDoc, Health, HealthDoc, ProblemDoc, StatusDoc};
pub use history::{HistoryDoc, HistoryKind, HistorySeriesDoc};
pub use layout::{LayoutDiskDoc, LayoutDoc, LayoutStepDoc, LayoutStepState};
pub use plan::{PlanDoc, PlanDriveDoc};
pub use progress::{Operation, ProgressDoc};
pub use scrub::{
    DiskRangeDoc, DiskScrubDoc, FindingDoc, FindingKind, FindingMemberDoc, LostRangeDoc, ScrubActivity,
    ScrubDoc, ScrubModeDoc, ScrubRunDoc, ScrubSummaryDoc,
};
pub use settings::{GroupSettingsDoc, NewDrive, RebuildSpeed, Returning, ScrubEvery, SpareWait};
pub use spare::{SpareDoc, SpareListDoc, SpareState};
pub use upgrade::{UpgradeDoc, UpgradedDiskDoc};

/// Major version of every document.
pub const MAJOR: u16 = 1;

/// Minor version of every document.
pub const MINOR: u16 = 0;

/// A document that travels in the envelope, and its schema's name there.
pub trait Document: Serialize + JsonSchema {
    /// The schema's name, `warpraid.` and a word.
    const NAME: &'static str;
}

macro_rules! documents {
    ($($name:ty = $text:literal,)*) => {
        $(impl Document for $name { const NAME: &'static str = $text; })*

        /// Name and JSON schema (of the whole envelope) of every document: the files in `docs/schemas`.
        #[must_use]
        pub fn document_schemas() -> Vec<(&'static str, schemars::Schema)> {
            let settings = || schemars::generate::SchemaSettings::draft2020_12().for_serialize();
            vec![$(($text, settings().into_generator().into_root_schema_for::<Envelope<$name>>()),)*]
        }
    };
}

documents! {
    StatusDoc = "warpraid.status",
    HealthDoc = "warpraid.health",
    HistoryDoc = "warpraid.history",
    DriveDoc = "warpraid.drive",
    DriveListDoc = "warpraid.drives",
    GroupDoc = "warpraid.group",
    GroupListDoc = "warpraid.groups",
    PlanDoc = "warpraid.plan",
    WaitDoc = "warpraid.wait",
    ScrubDoc = "warpraid.scrub",
    DiskDoc = "warpraid.disk",
    DiskListDoc = "warpraid.disks",
    ExamineDoc = "warpraid.examine",
    FaultListDoc = "warpraid.faults",
    SpareListDoc = "warpraid.spares",
    ActionDoc = "warpraid.action",
    EventDoc = "warpraid.event",
    EventListDoc = "warpraid.events",
    ExplanationDoc = "warpraid.explanation",
    ExplanationListDoc = "warpraid.explanations",
    LayoutDoc = "warpraid.layout",
    DemoDoc = "warpraid.demo",
    UpgradeDoc = "warpraid.upgrade",
    NothingDoc = "warpraid.error",
}

/// What every answer is wrapped in, errors too.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<T> {
    /// Which document `data` is.
    pub schema: SchemaDoc,
    /// Whether the verb did what it was asked.
    pub ok: bool,
    /// The document; null when `ok` is false.
    pub data: Option<T>,
    /// What the caller should know although the verb worked.
    pub warnings: Vec<WarningDoc>,
    /// What went wrong; null when `ok` is true.
    pub error: Option<ErrorDoc>,
}

/// Which document, and its version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SchemaDoc {
    /// `warpraid.` and a word.
    pub name: String,
    /// Raised when a meaning changes.
    pub major: u16,
    /// Raised when a field is added.
    pub minor: u16,
}

/// Something the caller should know although the verb worked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WarningDoc {
    /// Stable code.
    pub code: Code,
    /// What, in words.
    pub message: String,
}

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDoc {
    /// Stable code; decides the exit code.
    pub code: String,
    /// What is wrong, with the thing named.
    pub message: String,
    /// The way on, where there is one.
    pub hint: Option<String>,
}

/// The `data` of an error: always null.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NothingDoc {}

#[cfg(test)]
mod tests {
    use raid_core::geometry::Level;

    use super::*;

    #[test]
    fn progress_is_honest_at_both_ends() {
        let none = ProgressDoc::new(Operation::Rebuild, Some(1), 0, 1000).measured(5, None);
        assert_eq!((none.percent, none.rate_bytes_per_s, none.eta_s), (0, None, None));
        let stuck = ProgressDoc::new(Operation::Rebuild, None, 10, 1000).measured(5, Some(0));
        assert_eq!((stuck.rate_bytes_per_s, stuck.eta_s), (None, None));
        let near = ProgressDoc::new(Operation::Rebuild, None, u64::MAX - 1, u64::MAX).measured(5, Some(1));
        assert_eq!((near.percent, near.eta_s), (99, Some(1)));
        let done = ProgressDoc::new(Operation::Check, None, 7, 7).measured(5, Some(3));
        assert_eq!((done.percent, done.eta_s), (100, Some(0)));
        assert_eq!(ProgressDoc::new(Operation::Check, None, 0, 0).percent, 0);
        assert_eq!(ProgressDoc::new(Operation::Check, None, 9, 7).done_bytes, 7);
    }

    #[test]
    fn levels_go_both_ways() {
        for level in Level::ALL {
            let doc = LevelDoc::from(level);
            assert_eq!(Level::from(doc), level);
            let text = serde_json::to_string(&doc).unwrap();
            assert_eq!(text, format!("\"raid{}\"", level.number()));
        }
    }

    #[test]
    fn health_orders_worst_last() {
        assert!(Health::Ok < Health::Warning && Health::Warning < Health::Critical);
    }
}
