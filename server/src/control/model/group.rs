//! A group and its members.

use raid_core::geometry::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::health::{Health, ProblemDoc};
use super::progress::ProgressDoc;
use super::scrub::{LostRangeDoc, ScrubSummaryDoc};
use super::settings::GroupSettingsDoc;

/// RAID level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LevelDoc {
    /// Striping.
    Raid0,
    /// Mirrors.
    Raid1,
    /// One parity.
    Raid5,
    /// Two parities.
    Raid6,
    /// Striped pairs.
    Raid10,
}

impl From<Level> for LevelDoc {
    fn from(level: Level) -> Self {
        match level {
            Level::Raid0 => Self::Raid0,
            Level::Raid1 => Self::Raid1,
            Level::Raid5 => Self::Raid5,
            Level::Raid6 => Self::Raid6,
            Level::Raid10 => Self::Raid10,
        }
    }
}

impl From<LevelDoc> for Level {
    fn from(level: LevelDoc) -> Self {
        match level {
            LevelDoc::Raid0 => Self::Raid0,
            LevelDoc::Raid1 => Self::Raid1,
            LevelDoc::Raid5 => Self::Raid5,
            LevelDoc::Raid6 => Self::Raid6,
            LevelDoc::Raid10 => Self::Raid10,
        }
    }
}

/// State of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupState {
    /// Every member in sync everywhere.
    Healthy,
    /// Every member present; redundancy is being made (initial sync, or resync after an unclean stop).
    Syncing,
    /// Members are missing; all data is served.
    Degraded,
    /// A member is being rebuilt; all data is served.
    Rebuilding,
    /// More members are missing than the level tolerates: nothing is served.
    Offline,
    /// Known, not running.
    Stopped,
}

/// State of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Current everywhere.
    InSync,
    /// Current below its rebuild cursor.
    Rebuilding,
    /// Was dropped for an error while the daemon watched.
    Failed,
    /// Was not there at start.
    Missing,
    /// There, but from an older epoch; it is a rebuild's target, never a source (SAFETY P3).
    Stale,
    /// There, from another history; the operator chooses (SAFETY M1).
    Conflict,
}

/// Version of a group's membership.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EpochDoc {
    /// Grows by one with every start and every membership change.
    pub counter: u64,
    /// Random, new with every counter value.
    pub id: String,
}

/// What closes the write hole of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Journal {
    /// Nothing: a dirty and degraded parity group refuses to start (SAFETY P2).
    None,
}

/// Errors counted since the daemon started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ErrorCountsDoc {
    /// Commands to the drive that failed.
    pub commands: u64,
}

/// How fast a member answers, over the last 15 seconds; medians only where there was enough to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LatencyDoc {
    /// Median of its reads.
    pub read_median_ns: Option<u64>,
    /// Median of its writes.
    pub write_median_ns: Option<u64>,
    /// Median over the other members of their medians of reads.
    pub others_read_median_ns: Option<u64>,
    /// The same of writes.
    pub others_write_median_ns: Option<u64>,
    /// Read commands sent to it since the group started.
    pub reads: u64,
    /// Write and zero commands sent to it since the group started.
    pub writes: u64,
    /// Whether it is much slower than the others.
    pub slow: bool,
    /// Whether reads avoid it.
    pub sits_out: bool,
    /// Commands that failed within the last hour and were made good.
    pub recent_errors: u64,
}

/// One member of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MemberDoc {
    /// Its place.
    pub slot: u8,
    /// What it is good for.
    pub state: MemberState,
    /// Path of its drive, while there is one.
    pub drive: Option<String>,
    /// Serial of the drive, as far as it has one.
    pub serial: Option<String>,
    /// md's device uuid of the member.
    pub device_uuid: Option<String>,
    /// Size of the drive.
    pub size_bytes: Option<u64>,
    /// Errors since the daemon started.
    pub errors: ErrorCountsDoc,
    /// Why it was dropped, in words.
    pub why: Option<String>,
    /// How far its rebuild is, or the filling of the drive that is to take its place.
    pub progress: Option<ProgressDoc>,
    /// Whether it is read only where no other copy can be.
    pub write_mostly: bool,
    /// Path of the drive that is being filled to take its place while it goes on serving.
    pub successor: Option<String>,
    /// How fast it answers; none until it was watched for a while.
    pub latency: Option<LatencyDoc>,
}

/// A group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GroupDoc {
    /// Its name, unique ignoring case.
    pub name: String,
    /// Its uuid.
    pub uuid: String,
    /// RAID level.
    pub level: LevelDoc,
    /// Chunk per drive; 0 on RAID 1.
    pub chunk_bytes: u32,
    /// Data bytes of a full stripe; on RAID 1 the row the engine works in.
    pub stripe_bytes: u64,
    /// Logical block size, fixed at create.
    pub block_size_bytes: u32,
    /// Data bytes that disks can be cut from.
    pub capacity_bytes: u64,
    /// All bytes of its drives, as far as they are known: capacity, parity and metadata together.
    pub raw_bytes: u64,
    /// Parity, or the copies beyond the first.
    pub parity_bytes: u64,
    /// Metadata, slack, and what drives have beyond the smallest.
    pub metadata_bytes: u64,
    /// Data bytes no disk uses.
    pub free_bytes: u64,
    /// State.
    pub state: GroupState,
    /// How well.
    pub health: Health,
    /// How many more drives it can lose, whichever they are.
    pub tolerates: u8,
    /// Version of the membership.
    pub epoch: EpochDoc,
    /// What closes the write hole.
    pub journal: Journal,
    /// Whether it was once started by force: some blocks may be wrong.
    pub forced: bool,
    /// One entry per slot, in slot order.
    pub members: Vec<MemberDoc>,
    /// Long operations on the whole group (sync, check); rebuilds are with their members too.
    pub progress: Vec<ProgressDoc>,
    /// Its scrubs, in short.
    pub scrub: ScrubSummaryDoc,
    /// Blocks of its disks that are lost.
    pub lost: Vec<LostRangeDoc>,
    /// What is set for it on this host.
    pub settings: GroupSettingsDoc,
    /// Names of its disks.
    pub disks: Vec<String>,
    /// What is not as it should be.
    pub problems: Vec<ProblemDoc>,
}

/// Groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GroupListDoc {
    /// By name.
    pub groups: Vec<GroupDoc>,
}

/// The end of a wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitDoc {
    /// How long it took.
    pub waited_ns: u64,
    /// The group now.
    pub group: GroupDoc,
}
