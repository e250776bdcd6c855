//! Documents of the control API: what every verb answers, on the wire and behind `-o json`.
//!
//! The human view of the command line is rendered from these same documents, so neither can know more than the other.
//! All numbers are bytes, nanoseconds, unix seconds or counts, and say so in their names. Fields are only ever added
//! (raises [`MINOR`]); a change of meaning raises [`MAJOR`].

use raid_core::geometry::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    DriveDoc = "warpraid.drive",
    DriveListDoc = "warpraid.drives",
    GroupDoc = "warpraid.group",
    GroupListDoc = "warpraid.groups",
    PlanDoc = "warpraid.plan",
    WaitDoc = "warpraid.wait",
    DiskDoc = "warpraid.disk",
    DiskListDoc = "warpraid.disks",
    ExamineDoc = "warpraid.examine",
    ActionDoc = "warpraid.action",
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
    pub code: String,
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

/// What a long operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The first computation of redundancy.
    InitialSync,
    /// Redundancy remade after an unclean stop.
    Resync,
    /// A member's contents remade.
    Rebuild,
    /// Redundancy compared with the data.
    Check,
}

/// How far a long operation is. Honest: no rate, no ETA.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProgressDoc {
    /// What is being done.
    pub operation: Operation,
    /// The slot it is done to, where it is one.
    pub slot: Option<u8>,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Whole percent done, rounded down, 0 to 100.
    pub percent: u8,
    /// Rate of the last 60 s (or since the start), unknown before the first bytes.
    pub rate_bytes_per_s: Option<u64>,
    /// Seconds to go at that rate; unknown without one.
    pub eta_s: Option<u64>,
    /// When it started.
    pub started_unix_s: u64,
}

impl ProgressDoc {
    /// A progress with percent and ETA computed from bytes and rate.
    #[must_use]
    pub fn new(operation: Operation, slot: Option<u8>, done_bytes: u64, total_bytes: u64) -> Self {
        let done_bytes = done_bytes.min(total_bytes);
        let percent = u128::from(done_bytes) * 100 / u128::from(total_bytes.max(1));
        let percent = if total_bytes == 0 { 100 } else { u8::try_from(percent).unwrap_or(100) };
        Self {
            operation,
            slot,
            done_bytes,
            total_bytes,
            percent,
            rate_bytes_per_s: None,
            eta_s: None,
            started_unix_s: 0,
        }
    }

    /// The same with a start time and a measured rate (none or 0: unknown).
    #[must_use]
    pub fn measured(mut self, started_unix_s: u64, rate_bytes_per_s: Option<u64>) -> Self {
        self.started_unix_s = started_unix_s;
        self.rate_bytes_per_s = rate_bytes_per_s.filter(|&rate| rate > 0);
        self.eta_s = self.rate_bytes_per_s.map(|rate| (self.total_bytes - self.done_bytes).div_ceil(rate));
        self
    }
}

/// Something that is not as it should be: what, what it risks, what to type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProblemDoc {
    /// Stable code, e.g. `group.degraded`.
    pub code: String,
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
    /// How far its rebuild is.
    pub progress: Option<ProgressDoc>,
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

/// How a filesystem is best made on a disk of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MkfsDoc {
    /// The `mkfs.xfs` command, DEVICE to be filled in.
    pub xfs: String,
    /// The `mkfs.ext4` command, DEVICE to be filled in.
    pub ext4: String,
}

/// How a disk is reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExposureDoc {
    /// The front end.
    pub kind: ExposureKind,
    /// As given to expose: `unix:PATH` or `tcp:ADDR:PORT`.
    pub address: String,
    /// As NBD clients want it.
    pub uri: String,
    /// The NBD export name.
    pub export: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Connected clients: peer address, or pid and uid of a local one.
    pub clients: Vec<String>,
}

/// A front end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExposureKind {
    /// NBD.
    Nbd,
}

/// A virtual disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiskDoc {
    /// Its group.
    pub group: String,
    /// Its name in the group.
    pub name: String,
    /// Its uuid: the partition GUID.
    pub uuid: String,
    /// First byte in the group's data.
    pub start_bytes: u64,
    /// Size.
    pub size_bytes: u64,
    /// Logical block size.
    pub block_size_bytes: u32,
    /// How it is reached.
    pub exposures: Vec<ExposureDoc>,
    /// How a filesystem is best made on it.
    pub mkfs: MkfsDoc,
}

/// Disks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DiskListDoc {
    /// By group and start.
    pub disks: Vec<DiskDoc>,
}

/// What a drive is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// An NVMe namespace.
    Nvme,
    /// Another block device.
    Block,
    /// A regular file.
    File,
}

/// What a drive is to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveState {
    /// Blank: a group can be made on it.
    Free,
    /// Member of a running group.
    Member,
    /// Carries a member of a group that does not run in this daemon; it may run in another, or wait to be assembled.
    Claimed,
    /// Carries something else.
    Used,
    /// Mounted or held by someone else.
    Held,
    /// Cannot be read.
    Failed,
}

/// Something found on a drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SignatureDoc {
    /// What: `gpt`, `ext4`, `xfs`, `lvm2_pv`, `md`, `warpraid` ...
    pub kind: String,
    /// Where, from the start of the drive.
    pub offset_bytes: u64,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Its uuid, if it has one.
    pub uuid: Option<String>,
}

/// A drive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DriveDoc {
    /// Path it was found by.
    pub path: String,
    /// What it is.
    pub kind: DriveKind,
    /// Serial, as far as it has one.
    pub serial: Option<String>,
    /// Model, as far as it has one.
    pub model: Option<String>,
    /// Size.
    pub size_bytes: u64,
    /// Logical block size.
    pub block_size_bytes: u32,
    /// NUMA node, where known.
    pub numa_node: Option<u16>,
    /// What it is to us.
    pub state: DriveState,
    /// Name of the group whose member it is or was.
    pub group: Option<String>,
    /// Uuid of that group.
    pub group_uuid: Option<String>,
    /// Slot in that group.
    pub slot: Option<u8>,
    /// md's device uuid of the member.
    pub device_uuid: Option<String>,
    /// What lies on it.
    pub signatures: Vec<SignatureDoc>,
    /// Who holds it: mount points, device mappers, processes.
    pub holders: Vec<String>,
    /// Errors since the daemon started.
    pub errors: ErrorCountsDoc,
}

/// Drives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DriveListDoc {
    /// By path.
    pub drives: Vec<DriveDoc>,
}

/// One drive of a plan. `data + metadata + unused = size`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanDriveDoc {
    /// The slot it would take.
    pub slot: u8,
    /// Path.
    pub path: String,
    /// Serial, as far as it has one.
    pub serial: Option<String>,
    /// NUMA node, where known.
    pub numa_node: Option<u16>,
    /// Size of the drive.
    pub size_bytes: u64,
    /// What the group would use for data and parity.
    pub data_bytes: u64,
    /// What lies before the data: superblock, bitmap, bad-block log, extension area.
    pub metadata_bytes: u64,
    /// What stays unused: rounding, so that a slightly smaller replacement fits, and what a larger drive has more.
    pub unused_bytes: u64,
}

/// What a group would be. `usable + parity + metadata + unused = raw`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanDoc {
    /// RAID level.
    pub level: LevelDoc,
    /// Chunk per drive; 0 on RAID 1.
    pub chunk_bytes: u32,
    /// Data bytes of a full stripe.
    pub stripe_bytes: u64,
    /// Logical block size the group would have.
    pub block_size_bytes: u32,
    /// All bytes of all drives.
    pub raw_bytes: u64,
    /// Parity, or the further copies on RAID 1 and 10.
    pub parity_bytes: u64,
    /// Metadata on all drives.
    pub metadata_bytes: u64,
    /// What stays unused on all drives.
    pub unused_bytes: u64,
    /// What disks can be cut from.
    pub usable_bytes: u64,
    /// The arithmetic, a line each.
    pub arithmetic: Vec<String>,
    /// How many drives it can lose, whichever they are.
    pub tolerates: u8,
    /// The same in words, with what more it may survive (RAID 10).
    pub tolerance: String,
    /// How a filesystem is best made on its disks.
    pub mkfs: MkfsDoc,
    /// Drive by drive.
    pub drives: Vec<PlanDriveDoc>,
}

/// The end of a wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitDoc {
    /// How long it took.
    pub waited_ns: u64,
    /// The group now.
    pub group: GroupDoc,
}

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

/// The md superblock on a drive, read without writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SuperblockDoc {
    /// Whether magic, version and checksum are right.
    pub valid: bool,
    /// Whether warpraid's claim bit is set, which keeps the kernel away.
    pub claimed: bool,
    /// Array uuid.
    pub group_uuid: String,
    /// Array name as md stores it (`host:name`).
    pub name: String,
    /// Level, as md's number.
    pub level: i32,
    /// md's layout number.
    pub layout: u32,
    /// Chunk.
    pub chunk_bytes: u32,
    /// Number of slots.
    pub members: u16,
    /// Device uuid.
    pub device_uuid: String,
    /// The slot, unless it is a spare or faulty.
    pub slot: Option<u16>,
    /// md's event count.
    pub events: u64,
    /// Last update.
    pub updated_unix_s: u64,
    /// First byte of data.
    pub data_offset_bytes: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// First block not yet in sync; none when clean.
    pub resync_offset_bytes: Option<u64>,
    /// How far the member's rebuild is, while it is one.
    pub recovery_offset_bytes: Option<u64>,
    /// Entries of the bad-block log.
    pub bad_blocks: u64,
    /// Bits set in the intent bitmap; none without a bitmap.
    pub intents_dirty: Option<u64>,
}

/// One slot as a member remembers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RememberedMemberDoc {
    /// Slot.
    pub slot: u8,
    /// State then.
    pub state: MemberState,
    /// Device uuid.
    pub device_uuid: String,
    /// Counter of the last epoch it was in sync in.
    pub last_in_sync: u64,
}

/// Our extension area on a drive, read without writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExtensionDoc {
    /// Which of the two copies are valid: A, B.
    pub copies_valid: [bool; 2],
    /// Whether the anchor agrees.
    pub anchor_valid: bool,
    /// The membership version it knows.
    pub epoch: EpochDoc,
    /// Whether the group was stopped cleanly in that epoch.
    pub clean: bool,
    /// Whether the group was once started by force.
    pub forced: bool,
    /// Whether this is the tombstone of a deleted group.
    pub deleted: bool,
    /// The members as it remembers them.
    pub members: Vec<RememberedMemberDoc>,
}

/// What lies on a drive, read without a daemon and without writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExamineDoc {
    /// The drive.
    pub drive: DriveDoc,
    /// The md superblock, where there is one.
    pub superblock: Option<SuperblockDoc>,
    /// Our extension area, where there is one.
    pub extension: Option<ExtensionDoc>,
    /// What it comes to, a line each: what this is, whether it is whole, what to do.
    pub findings: Vec<String>,
}

#[cfg(test)]
mod tests {
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
        assert_eq!(ProgressDoc::new(Operation::Check, None, 0, 0).percent, 100);
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
