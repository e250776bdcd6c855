//! Scrubs: how far, what was found, and what is lost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::progress::ProgressDoc;

/// What a scrub does about what does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubModeDoc {
    /// Only reports.
    #[default]
    Report,
    /// Rewrites what is certainly wrong: RAID 6, one member located (SAFETY S8).
    Repair,
    /// Also data blocks that are located in stripes which were written in part since they were last seen to fit.
    RepairSuspected,
    /// That, and takes the data (of mirrors: the first copy) for right where nobody can tell.
    AssumeDataRight,
}

/// What a group's scrub is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubActivity {
    /// None is under way.
    #[default]
    Idle,
    /// One runs.
    Running,
    /// One was paused; it keeps its place until it is resumed.
    Paused,
    /// One waits, for the group to be healthy or for its window, and goes on by itself.
    Waiting,
}

/// What does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// RAID 6: this one member is wrong.
    Located,
    /// RAID 6: this member's data does not fit, but its stripe was written in part since it was last seen to fit: it may be
    /// right, and the parities not.
    Suspected,
    /// RAID 6: more than one member is wrong; nobody can tell which.
    Ambiguous,
    /// RAID 5: data and parity do not fit; nobody can tell which member is wrong.
    Parity,
    /// RAID 1 and 10: copies differ; nobody can tell which is right.
    Copies,
    /// Too many members cannot read their block: it has no source left.
    Lost,
}

/// A member that is wrong, or may be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FindingMemberDoc {
    /// Its slot.
    pub slot: u8,
    /// What it holds there: `data`, `P` or `Q`.
    pub role: String,
    /// Path of its drive, as it was found.
    pub drive: Option<String>,
    /// Serial of that drive.
    pub serial: Option<String>,
    /// Byte of the drive where the blocks begin.
    pub offset_bytes: u64,
}

/// A part of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiskRangeDoc {
    /// The disk; none outside every disk.
    pub disk: Option<String>,
    /// First byte, of the disk (outside every disk: of the group).
    pub offset_bytes: u64,
    /// How many.
    pub length_bytes: u64,
}

/// Neighbouring blocks of one stripe about which there is the same to say.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FindingDoc {
    /// Number of the stripe.
    pub stripe: u64,
    /// First byte in the chunks of the stripe.
    pub chunk_offset_bytes: u32,
    /// How many.
    pub length_bytes: u32,
    /// What is wrong.
    pub what: FindingKind,
    /// The member that is wrong, or all that may be.
    pub members: Vec<FindingMemberDoc>,
    /// The disks' data that is wrong or may be; none for parity alone.
    pub disks: Vec<DiskRangeDoc>,
    /// Whether it was put right.
    pub repaired: bool,
}

/// One scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ScrubRunDoc {
    /// What it does about what does not fit.
    pub mode: ScrubModeDoc,
    /// Whether it also runs while members are missing or the group is not in sync.
    pub even_degraded: bool,
    /// Whether the schedule started it.
    pub scheduled: bool,
    /// When it started.
    pub started_unix_s: u64,
    /// When it came to its end.
    pub ended_unix_s: Option<u64>,
    /// Stripes of the group.
    pub stripes: u64,
    /// The next stripe to look at.
    pub next_stripe: u64,
    /// Stripes whose redundancy was compared.
    pub checked_stripes: u64,
    /// Stripes that could not be: short of a member, not in sync, or with blocks known to be lost.
    pub skipped_stripes: u64,
    /// Data bytes of the stripes compared.
    pub checked_bytes: u64,
    /// Stripes in which something does not fit.
    pub mismatched_stripes: u64,
    /// Blocks put right because one member was certainly wrong, or because the data was declared right.
    pub repaired_blocks: u64,
    /// Blocks a drive could not read, and that were rewritten from the others.
    pub rewritten_blocks: u64,
    /// Blocks that cannot be read and have no source.
    pub lost_blocks: u64,
    /// The first findings, in order.
    pub findings: Vec<FindingDoc>,
    /// How many more there were.
    pub findings_left_out: u64,
    /// Whether the operator has seen the findings: they are no problem any more.
    pub acknowledged: bool,
}

impl ScrubRunDoc {
    /// What does not fit and was not put right; lost blocks are told apart.
    #[must_use]
    pub fn mismatches_left(&self) -> u64 {
        let left = self.findings.iter().filter(|one| !one.repaired && one.what != FindingKind::Lost).count();
        u64::try_from(left).unwrap_or(u64::MAX).saturating_add(self.findings_left_out)
    }
}

/// The scrubs of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScrubDoc {
    /// The group.
    pub group: String,
    /// Its uuid.
    pub uuid: String,
    /// What is going on.
    pub state: ScrubActivity,
    /// Why it waits or was paused, in words.
    pub why: Option<String>,
    /// How far it is.
    pub progress: Option<ProgressDoc>,
    /// The scrub under way.
    pub current: Option<ScrubRunDoc>,
    /// The last one that came to its end: what is covered.
    pub last: Option<ScrubRunDoc>,
    /// When the schedule starts the next one at the earliest.
    pub next_due_unix_s: Option<u64>,
}

/// Scrubs of a group, in short.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ScrubSummaryDoc {
    /// What is going on.
    pub state: ScrubActivity,
    /// When the last one that came to its end did so.
    pub last_ended_unix_s: Option<u64>,
    /// Stripes it compared.
    pub checked_stripes: u64,
    /// Data bytes it compared.
    pub checked_bytes: u64,
    /// Stripes it could not compare.
    pub skipped_stripes: u64,
    /// What it found and did not put right.
    pub mismatches_left: u64,
    /// When the schedule starts the next one at the earliest.
    pub next_due_unix_s: Option<u64>,
}

/// The last complete scrub, as far as it is about one disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiskScrubDoc {
    /// When it ended.
    pub ended_unix_s: u64,
    /// Whether it compared every stripe of the group.
    pub complete: bool,
    /// Findings that touch the disk.
    pub findings: u64,
}

/// Blocks of a disk that cannot be read and have no source left; rewriting them clears them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LostRangeDoc {
    /// The disk; none outside every disk.
    pub disk: Option<String>,
    /// First byte, of the disk (outside every disk: of the group).
    pub offset_bytes: u64,
    /// How many.
    pub length_bytes: u64,
    /// The filesystem on the disk, if it is one we know.
    pub filesystem: Option<String>,
    /// Commands that find the file, DEVICE and MOUNTPOINT to be filled in.
    pub find: Vec<String>,
}
