//! Errors of the control API: one table of stable codes, each with the exit code of the command line and the HTTP status.
//!
//! Invariant: a code means the same for ever; its exit code is a property of the code and nothing else, so the API, the
//! command line and the documentation cannot disagree. New codes are added, old ones never change their meaning.

use core::fmt;

/// Exit code of the command line; every verb but `health` uses these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Exit {
    /// The verb was tried and failed.
    Failed,
    /// The request itself is wrong: name, size, level, option.
    Usage,
    /// Refused for safety; the message says what would be lost and what to do instead.
    Refused,
    /// The thing does not exist.
    NotFound,
    /// The daemon cannot be reached.
    Unreachable,
    /// The caller may not do this.
    NotPermitted,
    /// The thing is in use; the message names the holder.
    Busy,
}

impl Exit {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Failed,
        Self::Usage,
        Self::Refused,
        Self::NotFound,
        Self::Unreachable,
        Self::NotPermitted,
        Self::Busy,
    ];

    /// The process exit code, 1 to 7 (0 is success).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::NotFound => 4,
            Self::Unreachable => 5,
            Self::NotPermitted => 6,
            Self::Busy => 7,
        }
    }

    /// The HTTP status of an error with this exit code; different for each, so that a client that does not know a code
    /// still knows its exit.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Failed => 500,
            Self::Usage => 400,
            Self::Refused => 409,
            Self::NotFound => 404,
            Self::Unreachable => 503,
            Self::NotPermitted => 403,
            Self::Busy => 423,
        }
    }

    /// The exit code an HTTP status stands for; statuses that are none of ours count as failed, or as usage in 4xx.
    #[must_use]
    pub fn of_http_status(status: u16) -> Self {
        Self::ALL
            .into_iter()
            .find(|exit| exit.http_status() == status)
            .unwrap_or(if (400..500).contains(&status) { Self::Usage } else { Self::Failed })
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal => $exit:ident,)*) => {
        /// A stable error code: what scripts match on.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// All codes, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as scripts see it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The exit code of the command line.
            #[must_use]
            pub const fn exit(self) -> Exit {
                match self { $(Self::$name => Exit::$exit,)* }
            }
        }
    };
}

codes! {
    /// Something that has no code of its own went wrong; the message says what.
    Internal = "internal" => Failed,
    /// An I/O error outside any group.
    Io = "io" => Failed,
    /// The daemon is stopping.
    ShuttingDown = "daemon.stopping" => Failed,
    /// No daemon answers on the socket.
    DaemonUnreachable = "daemon.unreachable" => Unreachable,
    /// Another daemon serves this socket or state folder.
    DaemonRunning = "daemon.running" => Busy,
    /// The daemon answered something that is not our envelope.
    DaemonAnswer = "daemon.answer.invalid" => Failed,
    /// The daemon cannot start: the message names what the system lacks or refuses.
    DaemonStart = "daemon.start.failed" => Failed,
    /// The demo did not come to its end; the message says what went wrong.
    DemoFailed = "demo.failed" => Failed,
    /// The socket's path, folder or file cannot be used safely.
    SocketUnsafe = "socket.unsafe" => Refused,
    /// The socket's path is not one.
    SocketInvalid = "socket.path.invalid" => Usage,
    /// The caller may not use this socket, or not for this verb.
    NotPermitted = "not.permitted" => NotPermitted,
    /// The request is not one: malformed, unknown field, out of range.
    RequestInvalid = "request.invalid" => Usage,
    /// No such page of the API.
    RouteUnknown = "route.unknown" => NotFound,
    /// The page of the API has other methods.
    MethodUnknown = "method.unknown" => Usage,
    /// The command line is wrong.
    UsageInvalid = "usage.invalid" => Usage,
    /// A destructive verb without the words that show it is meant.
    ConfirmMissing = "confirm.missing" => Refused,
    /// The words typed or the uuid given do not match the thing.
    ConfirmMismatch = "confirm.mismatch" => Refused,
    /// No problem, event or error has this code.
    CodeUnknown = "code.unknown" => NotFound,
    /// A program that cannot take the daemon's place.
    UpgradeProgram = "upgrade.program.invalid" => Usage,
    /// A program that is older than the daemon.
    UpgradeOlder = "upgrade.program.older" => Refused,
    /// The new program was not started, or does not serve.
    UpgradeFailed = "upgrade.failed" => Failed,
    /// A hook failed on a test of the alerts.
    AlertFailed = "alert.failed" => Failed,

    /// Not a group name.
    GroupNameInvalid = "group.name.invalid" => Usage,
    /// A group of this name exists (names are unique ignoring case, CASES AD-02).
    GroupNameTaken = "group.name.taken" => Usage,
    /// No such group.
    GroupNotFound = "group.not.found" => NotFound,
    /// Several groups fit; the uuid decides.
    GroupAmbiguous = "group.ambiguous" => Usage,
    /// Level and number of drives do not fit.
    GroupDrivesInvalid = "group.drives.invalid" => Usage,
    /// Chunk size out of range or given where there is none (RAID 1).
    GroupChunkInvalid = "group.chunk.invalid" => Usage,
    /// The level is not one of 0, 1, 5, 6, 10.
    GroupLevelInvalid = "group.level.invalid" => Usage,
    /// The uuid given is not the group's.
    GroupUuidMismatch = "group.uuid.mismatch" => Refused,
    /// Disks of the group are in use; the message names the clients.
    GroupBusy = "group.busy" => Busy,
    /// The group is not running.
    GroupNotRunning = "group.not.running" => Failed,
    /// The group runs already.
    GroupRunning = "group.running" => Busy,
    /// The group is offline: more members are lost than the level tolerates (SAFETY P4).
    GroupOffline = "group.offline" => Failed,
    /// Members are missing and the group cannot start without them (SAFETY M4, M5).
    GroupIncomplete = "group.incomplete" => Refused,
    /// Dirty and degraded, and no journal: a forced start could give wrong data (SAFETY P2).
    GroupDirtyDegraded = "group.dirty.degraded" => Refused,
    /// A newer epoch exists than the members present know (SAFETY M4).
    GroupStale = "group.stale" => Refused,
    /// Two histories of the group exist; the operator chooses (SAFETY M1).
    GroupDiverged = "group.diverged" => Refused,
    /// The drive has no md superblock of version 1.2, or one that is damaged or contradicts the others.
    AdoptMetadata = "group.adopt.metadata" => Refused,
    /// The array's level, layout, chunk or size is not one we serve.
    AdoptLayout = "group.adopt.layout" => Refused,
    /// The array is being reshaped.
    AdoptReshape = "group.adopt.reshape" => Refused,
    /// The array has a journal device or a partial parity log.
    AdoptJournal = "group.adopt.journal" => Refused,
    /// The array's bitmap is of a kind we do not read, or out of date.
    AdoptBitmap = "group.adopt.bitmap" => Refused,
    /// The array uses a feature we do not know.
    AdoptFeature = "group.adopt.feature" => Refused,
    /// The array was not stopped cleanly, or has to be resynced.
    AdoptDirty = "group.adopt.dirty" => Refused,
    /// A member of the array is being rebuilt or replaced.
    AdoptRebuilding = "group.adopt.rebuilding" => Refused,
    /// The drives are of several arrays, or one is a copy of another.
    AdoptMixed = "group.adopt.mixed" => Refused,
    /// The drive is a spare of the array, or was dropped from it.
    AdoptNotInUse = "group.adopt.not.in.use" => Refused,
    /// The array counts on members that were not named.
    AdoptIncomplete = "group.adopt.incomplete" => Refused,
    /// There is no room for our metadata beside md's.
    AdoptNoRoom = "group.adopt.no.room" => Refused,
    /// Sizes of the array are not whole blocks.
    AdoptBlockSize = "group.adopt.block.size" => Refused,
    /// An adopt or release was cut short, and not all members are here.
    GroupHalfHandedOver = "group.half.handed.over" => Refused,
    /// The group is not in sync, so md cannot have it yet.
    ReleaseUnsynced = "group.release.unsynced" => Refused,
    /// A member is being rebuilt or replaced, so md cannot have the group yet.
    ReleaseRebuilding = "group.release.rebuilding" => Refused,
    /// The group is of a kind we do not start (layout, feature, version).
    GroupUnsupported = "group.unsupported" => Refused,
    /// Dropping this member would take the group offline.
    GroupToleranceSpent = "group.tolerance.spent" => Refused,
    /// The slot does not exist or is not in the state this verb needs.
    GroupSlotInvalid = "group.slot.invalid" => Usage,
    /// A scrub is under way already.
    ScrubBusy = "group.scrub.running" => Busy,
    /// Members are missing or the group is not in sync, and the scrub was not told to run all the same.
    ScrubDegraded = "group.scrub.degraded" => Refused,
    /// There is nothing to scrub, pause, resume, cancel or acknowledge.
    ScrubImpossible = "group.scrub.impossible" => Usage,
    /// A setting that does not exist or cannot have this value.
    GroupSettingInvalid = "group.setting.invalid" => Usage,
    /// The tombstone of a deleted group is gone or a member was reused.
    GroupUndeleteImpossible = "group.undelete.impossible" => Refused,
    /// The state waited for was not reached in time.
    GroupWaitTimeout = "group.wait.timeout" => Failed,
    /// The state waited for cannot be reached without help.
    GroupWaitImpossible = "group.wait.impossible" => Failed,

    /// Not a disk name.
    DiskNameInvalid = "disk.name.invalid" => Usage,
    /// A disk of this name exists in the group.
    DiskNameTaken = "disk.name.taken" => Usage,
    /// No such disk.
    DiskNotFound = "disk.not.found" => NotFound,
    /// Size out of range or more than is free.
    DiskSizeInvalid = "disk.size.invalid" => Usage,
    /// Disks only grow.
    DiskShrinkRefused = "disk.shrink.refused" => Refused,
    /// The uuid given is not the disk's.
    DiskUuidMismatch = "disk.uuid.mismatch" => Refused,
    /// The disk is in use; the message names the clients.
    DiskBusy = "disk.busy" => Busy,
    /// The group cannot be cut (an adopted array with a bare filesystem, a full table).
    DiskTableRefused = "disk.table.refused" => Refused,
    /// The address is not one we can serve on.
    ExposeAddressInvalid = "disk.expose.address.invalid" => Usage,
    /// The address is taken.
    ExposeAddressBusy = "disk.expose.address.busy" => Busy,
    /// This host cannot serve block devices: its kernel lacks ublk or what is needed of it.
    ExposeUblkUnavailable = "disk.expose.ublk.unavailable" => Failed,
    /// The disk is not exposed there.
    ExposeNotFound = "disk.expose.not.found" => NotFound,

    /// No such drive.
    DriveNotFound = "drive.not.found" => NotFound,
    /// The path is not a drive: neither block device nor regular file.
    DriveInvalid = "drive.invalid" => Usage,
    /// The same drive was named twice.
    DriveTwice = "drive.named.twice" => Usage,
    /// Something lies on the drive; the message lists it (CASES AD-01).
    DriveUsed = "drive.used" => Refused,
    /// The drive is a member of a group of ours (CASES AD-08).
    DriveIsMember = "drive.is.member" => Refused,
    /// The drive or a part of it is mounted: never, not even by force.
    DriveMounted = "drive.mounted" => Refused,
    /// Someone holds the drive open; the message names the holder.
    DriveBusy = "drive.busy" => Busy,
    /// Another warpraid daemon that runs on this host holds the drive; the message names its pid.
    DriveHeld = "drive.held" => Busy,
    /// The drive is too small.
    DriveTooSmall = "drive.too.small" => Usage,
    /// The drive's blocks are larger than the group's (CASES MK-04).
    DriveBlockSize = "drive.block.size" => Refused,
    /// The drive is a spare: it waits for the loss of a member.
    DriveIsSpare = "drive.is.spare" => Refused,
    /// No such spare.
    SpareNotFound = "spare.not.found" => NotFound,
    /// The daemon was not started with `--allow-faults`.
    FaultNotAllowed = "fault.not.allowed" => Refused,
    /// No such fault.
    FaultNotFound = "fault.not.found" => NotFound,
    /// The fault is not one: its options do not go together, or its range is not on the drive.
    FaultInvalid = "fault.invalid" => Usage,
    /// The serial or uuid given is not the drive's.
    DriveIdentityMismatch = "drive.identity.mismatch" => Refused,

    /// There is no layout file at this path.
    LayoutNotFound = "layout.not.found" => NotFound,
    /// The file is no layout: no TOML, an unknown key, a value that is none.
    LayoutInvalid = "layout.invalid" => Usage,
    /// The node contradicts the layout, and what is there is never taken away.
    LayoutRefused = "layout.refused" => Refused,

    /// There is no record of benchmarks at this path.
    BenchRecordNotFound = "bench.record.not.found" => NotFound,
    /// The file is no record of benchmarks, or of a schema this program does not know.
    BenchRecordInvalid = "bench.record.invalid" => Usage,
    /// What a benchmark is to be compared with is not installed.
    BenchPeerMissing = "bench.peer.missing" => NotFound,
}

impl ErrorCode {
    /// The code of this text, if it is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error of the control API. `message` names the thing and what is wrong with it; `hint` says the way on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError {
    /// What scripts match on; decides the exit code.
    pub code: ErrorCode,
    /// What is wrong, with the thing named.
    pub message: String,
    /// The way on: a command where there is one.
    pub hint: Option<String>,
}

impl ApiError {
    /// An error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The same error with a way on.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The exit code of the command line.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.code.exit()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_parse_back() {
        let texts: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), ErrorCode::ALL.len());
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(code));
        }
        assert_eq!(ErrorCode::parse("no.such.code"), None);
    }

    #[test]
    fn exits_are_1_to_7_and_follow_from_the_http_status() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7]);
        for exit in Exit::ALL {
            assert_eq!(Exit::of_http_status(exit.http_status()), exit);
        }
        assert_eq!(Exit::of_http_status(413), Exit::Usage);
        assert_eq!(Exit::of_http_status(502), Exit::Failed);
    }
}
