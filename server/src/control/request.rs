//! Requests of the control API. Unknown fields are refused: a misspelt `dry_run` must not write.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::{FaultWhat, LevelDoc, RangeDoc};

/// How a new group gets its redundancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Computed from what lies on the drives, in the background, while the group serves (SAFETY S1).
    #[default]
    Sync,
    /// The drives are zeroed by write-zeroes first; the group is in sync from the start.
    Zero,
}

/// What a group would be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupPlan {
    /// RAID level.
    pub level: LevelDoc,
    /// Chunk per drive; none: the default of the level (64 KiB, nothing on RAID 1).
    #[serde(default)]
    pub chunk_bytes: Option<u32>,
    /// Paths or serials, in slot order.
    pub drives: Vec<String>,
}

/// Makes a group: all or nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupCreate {
    /// Its name.
    pub name: String,
    /// RAID level.
    pub level: LevelDoc,
    /// Chunk per drive; none: the default of the level.
    #[serde(default)]
    pub chunk_bytes: Option<u32>,
    /// Paths or serials, in slot order.
    pub drives: Vec<String>,
    /// How it gets its redundancy.
    #[serde(default)]
    pub init: Init,
    /// Those of the drives that are read only where no other copy can be (RAID 1 and 10).
    #[serde(default)]
    pub write_mostly: Vec<String>,
    /// The word that shows it is meant; needed unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Stops a group cleanly: flushes, marks clean, lets go of the drives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupStop {
    /// Disconnect clients of its disks first.
    #[serde(default)]
    pub force: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Starts groups from what lies on their drives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupAssemble {
    /// Name or uuid; none with `all`.
    #[serde(default)]
    pub group: Option<String>,
    /// Every group found.
    #[serde(default)]
    pub all: bool,
    /// Paths to look at beside the known drives.
    #[serde(default)]
    pub drives: Vec<String>,
    /// Of a history that was split, go on with the side of this member (its uuid, or path or serial of its drive); the
    /// other sides are left untouched (SAFETY M1).
    #[serde(default)]
    pub keep: Option<String>,
    /// Start although members are missing or the group is dirty and degraded; marks the group for ever (SAFETY P2, M4).
    #[serde(default)]
    pub force: bool,
    /// The group's uuid, to be sure; needed with `force`.
    #[serde(default)]
    pub expect_uuid: Option<String>,
    /// The word that shows it is meant; needed with `force` unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Deletes a group; `undelete` works until a member is reused.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupDelete {
    /// The group's uuid; needed unless `dry_run`.
    #[serde(default)]
    pub expect_uuid: Option<String>,
    /// Disconnect clients of its disks first.
    #[serde(default)]
    pub force: bool,
    /// The word that shows it is meant; needed unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Brings a deleted group back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupUndelete {
    /// Name or uuid it had.
    pub group: String,
    /// Paths to look at beside the known drives.
    #[serde(default)]
    pub drives: Vec<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Takes an array of Linux md over in place: a group of ours with the same members, and not a byte of data written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupAdopt {
    /// The name it gets here; md's own name stays in its superblock.
    pub name: String,
    /// Paths or serials of all its members, in any order.
    pub drives: Vec<String>,
    /// The word that shows it is meant; needed unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Stops a group and gives it to Linux md.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupRelease {
    /// The word that shows it is meant; needed unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Puts a new drive in a member's place and rebuilds it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupReplace {
    /// The slot; or name the old drive.
    #[serde(default)]
    pub slot: Option<u8>,
    /// Path, serial or device uuid of the old member.
    #[serde(default)]
    pub old_drive: Option<String>,
    /// Path or serial of the new drive.
    pub new_drive: String,
    /// Drop a member that still serves at once, and rebuild, instead of filling the new drive while it serves.
    #[serde(default)]
    pub now: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Puts a dropped member back into its slot; only what changed meanwhile is copied.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupReadd {
    /// Path or serial of the old member.
    pub drive: String,
    /// Its slot, to be sure; the drive knows it.
    #[serde(default)]
    pub slot: Option<u8>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// No member is being rebuilt and none is missing.
    Rebuilt,
    /// No region is out of sync.
    Synced,
    /// Both.
    Healthy,
}

/// Waits until a group is in a state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupWait {
    /// What for.
    #[serde(rename = "for")]
    pub what: WaitFor,
    /// Longest wait; none: as long as it takes.
    #[serde(default)]
    pub timeout_s: Option<u64>,
}

/// Takes every signature off a drive that no running group uses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveWipe {
    /// The drive's serial, or the uuid of what lies on it (device uuid, filesystem); the path for a drive that has neither.
    /// Needed unless `dry_run`.
    #[serde(default)]
    pub expect_uuid: Option<String>,
    /// The word that shows it is meant; needed unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Drops a member as if its drive had failed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveFail {
    /// Also where the group goes offline by it.
    #[serde(default)]
    pub force: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Makes a drive do something wrong, for drills and tests; only where the daemon was started with `--allow-faults`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultInject {
    /// Path, serial, device uuid, or GROUP:SLOT.
    pub drive: String,
    /// What it does.
    pub what: FaultWhat,
    /// `slow`: added to each command.
    #[serde(default)]
    pub delay_ns: Option<u64>,
    /// `slow`: times the drive's own time.
    #[serde(default)]
    pub factor: Option<u32>,
    /// Where, in bytes from the start of the drive, whole blocks. None: `bad` and `flip` choose one block of the member's
    /// data by `seed`, `lost_write` applies to all of the member's data, the others to everything.
    #[serde(default)]
    pub range: Option<RangeDoc>,
    /// Commands it applies to; none: all.
    #[serde(default)]
    pub count: Option<u64>,
    /// Chooses blocks and bits.
    #[serde(default)]
    pub seed: u64,
    /// Ends by itself after this time.
    #[serde(default)]
    pub for_s: Option<u64>,
    /// The word that shows it is meant; needed for `flip` and `lost_write`, which can destroy data, unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Ends faults.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultClear {
    /// The fault of this number.
    #[serde(default)]
    pub id: Option<u64>,
    /// All faults of this drive: path, serial, device uuid, or GROUP:SLOT.
    #[serde(default)]
    pub drive: Option<String>,
    /// All faults.
    #[serde(default)]
    pub all: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Keeps a blank drive for the loss of a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpareAdd {
    /// Path or serial.
    pub drive: String,
    /// The group it is kept for: name or uuid; none: any group.
    #[serde(default)]
    pub group: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Gives a spare up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpareRemove {
    /// Path or serial.
    pub drive: String,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Lets another program take the daemon's place.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Its absolute path; none: where the running one was started from.
    #[serde(default)]
    pub program: Option<String>,
    /// Although it is older, connections over NBD end, or a group is offline.
    #[serde(default)]
    pub force: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// How far back a history goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum HistoryRange {
    /// The last 5 minutes, a sample a second.
    #[default]
    #[serde(rename = "5m")]
    Minutes5,
    /// The last hour, a sample every 10 seconds.
    #[serde(rename = "1h")]
    Hour,
    /// The last 24 hours, a sample every 5 minutes.
    #[serde(rename = "24h")]
    Day,
}

/// Which history.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryOf {
    /// How far back; the last 5 minutes unless given.
    #[serde(default)]
    pub range: HistoryRange,
    /// The group; none: the whole daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The disk of that group; none: the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// Which disks to list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisksOf {
    /// Only those of this group.
    #[serde(default)]
    pub group: Option<String>,
}

/// Cuts a disk from a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskCreate {
    /// The group.
    pub group: String,
    /// The disk's name.
    pub name: String,
    /// Size; rounded up to the full stripe.
    pub size_bytes: u64,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Serves a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskExpose {
    /// Over NBD, at `unix:PATH` or `tcp:ADDR:PORT`.
    #[serde(default)]
    pub nbd: Option<String>,
    /// As a block device of this host, which is also what happens when neither is given.
    #[serde(default)]
    pub ublk: bool,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Stops serving a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskUnexpose {
    /// Only this address; none: all.
    #[serde(default)]
    pub address: Option<String>,
    /// Disconnect clients.
    #[serde(default)]
    pub force: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Grows a disk into the free space behind it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskResize {
    /// The new size; rounded up to the full stripe.
    pub size_bytes: u64,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Deletes a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskDelete {
    /// The disk's uuid; needed unless `dry_run`.
    #[serde(default)]
    pub expect_uuid: Option<String>,
    /// Disconnect clients first.
    #[serde(default)]
    pub force: bool,
    /// The word that shows it is meant; needed unless `dry_run`.
    #[serde(default)]
    pub yes: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_field_is_refused() {
        let text = r#"{"expect_uuid":"u","yes":true,"dryrun":true}"#;
        let error = serde_json::from_str::<GroupDelete>(text).unwrap_err();
        assert!(error.to_string().contains("dryrun"), "{error}");
        assert!(serde_json::from_str::<GroupStop>("{}").is_ok());
        assert!(serde_json::from_str::<GroupWait>(r#"{"for":"rebuilt","timeout_s":5}"#).is_ok());
    }
}

/// Which events.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsOf {
    /// Only events with a higher number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Only events of this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_s: Option<u64>,
    /// Only events about this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only events of this code, or about a problem of this code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Most events, 1 to 1000 (100 unless given): the first of those that come after `after`, else the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// If none fits, wait this long for one, 0 to 60 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u32>,
}

/// Sends a test event through everything an alert goes through.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertTest {
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}
