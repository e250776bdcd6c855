//! Codes of events: what happened. A new one is one line of this table; `Daemon::note` writes it.

use super::Explanation;
use crate::control::model::Severity;

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $severity:ident, $title:literal, $means:literal, $step:literal;)*) => {
        /// A stable code of an event.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        pub enum EventCode {
            $($(#[$doc])* $name,)*
        }

        impl EventCode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as scripts see it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// How bad, unless the event says otherwise.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }

            /// What it means.
            #[must_use]
            pub const fn explanation(self) -> Explanation {
                match self { $(Self::$name => Explanation {
                    title: $title, means: $means, risks: severity_words(Severity::$severity), steps: &[$step],
                    example: concat!("warpraid events --code ", $text),
                },)* }
            }
        }
    };
}

const fn severity_words(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "none: it is told for the record",
        Severity::Warning => "something needs attention; the message says what",
        Severity::Critical => "data is unreachable or one failure away from it",
    }
}

events! {
    /// The daemon started.
    DaemonStarted = "daemon.started", Info, "the daemon started",
        "A daemon runs on this state folder. If no daemon.stopped stands before it, the one before did not end cleanly.",
        "nothing to do; warpraid status shows the groups";
    /// The daemon stops.
    DaemonStopped = "daemon.stopped", Info, "the daemon stopped cleanly",
        "The daemon was told to stop; its groups were stopped and marked clean before.",
        "nothing to do; warpraid serve starts it again";
    /// Another program took the daemon's place.
    DaemonUpgraded = "daemon.upgraded", Info, "the daemon was upgraded",
        "Another program took its place. Users of block devices waited and saw no error; the message has how long.",
        "nothing to do";
    /// That was tried in vain.
    DaemonNotUpgraded = "daemon.not_upgraded", Warning, "an upgrade of the daemon failed",
        "The new program could not be started; the one before was started again. The message says why, and how long users of block devices waited.",
        "look at the program the message names, then: warpraid upgrade";
    /// A problem is there.
    ProblemRaised = "problem.raised", Warning, "a problem began",
        "Something is not as it should be since now. `problem` is its code, with why, risk and next as in status.",
        "warpraid status, or warpraid explain with the code in `problem`";
    /// A problem still stands.
    ProblemReminder = "problem.reminder", Warning, "a problem still stands",
        "Repeated while a problem stands (serve --remind) and once when the daemon starts, so that nobody who missed the \
         first alert stays without one.",
        "warpraid status: type what NEXT says";
    /// A problem is gone.
    ProblemCleared = "problem.cleared", Info, "a problem ended",
        "What `problem` names is no longer so.",
        "nothing to do";
    /// The health of a group changed.
    HealthChanged = "health.changed", Info, "the health of a group changed",
        "The message has the health before and after; `health` is the one after.",
        "warpraid status";
    /// A group runs.
    GroupStarted = "group.started", Info, "a group started",
        "Its drives were found and opened; its disks can be served.",
        "nothing to do";
    /// A group does not run any more.
    GroupStopped = "group.stopped", Info, "a group stopped",
        "Its drives were let go of.",
        "warpraid group assemble starts it again";
    /// A group was found and not started.
    GroupRefused = "group.refused", Critical, "a group was found and not started",
        "Starting it could serve old or wrong data; the message says what is missing.",
        "warpraid status: NEXT is the command, RISK what it costs";
    /// A group was made.
    GroupCreated = "group.created", Info, "a group was created",
        "An operator made it.",
        "nothing to do";
    /// A group was deleted.
    GroupDeleted = "group.deleted", Info, "a group was deleted",
        "An operator deleted it; its members are tombstones.",
        "warpraid group undelete brings it back until a member is reused";
    /// A group changed its state.
    GroupState = "group.state", Info, "a group changed its state",
        "For example from healthy to degraded; the message has both.",
        "warpraid status";
    /// A member is out.
    MemberDropped = "member.dropped", Warning, "a member was dropped",
        "Its drive failed, vanished, or was taken out by an operator; the message says why, with slot, drive and serial.",
        "warpraid status: NEXT is the command that puts a drive in its place";
    /// A member's drive was pulled.
    DriveRemoved = "drive.removed", Warning, "a member's drive was removed",
        "The kernel says that the drive is gone: pulled, or its controller failed. Its member is dropped at once.",
        "plug it in again: it is resynced by itself (group set --returning); or put another one in: group replace";
    /// A member came.
    MemberJoined = "member.joined", Info, "a drive joined a group",
        "It takes the slot and is rebuilt.",
        "warpraid group wait waits for the rebuild";
    /// A rebuild runs.
    RebuildStarted = "rebuild.started", Info, "a rebuild started",
        "A member's contents are being made.",
        "warpraid status shows progress and time to go";
    /// A rebuild is done.
    RebuildFinished = "rebuild.finished", Info, "a rebuild finished",
        "The member is in sync.",
        "nothing to do";
    /// A rebuild is not done.
    RebuildFailed = "rebuild.failed", Warning, "a rebuild failed",
        "The message says why; the slot is without redundancy still.",
        "warpraid status";
    /// A sync runs.
    SyncStarted = "sync.started", Info, "a sync started",
        "Redundancy is being made: the first time, or after a stop that was not clean.",
        "warpraid status shows progress and time to go";
    /// A sync is done.
    SyncFinished = "sync.finished", Info, "a sync finished",
        "Redundancy is complete again.",
        "nothing to do";
    /// A sync is not done.
    SyncFailed = "sync.failed", Warning, "a sync failed",
        "The message says why; parts of the group are without redundancy.",
        "warpraid status";
    /// A disk was made.
    DiskCreated = "disk.created", Info, "a disk was created", "An operator cut it from its group.", "nothing to do";
    /// A disk was deleted.
    DiskDeleted = "disk.deleted", Info, "a disk was deleted", "An operator deleted it.", "nothing to do";
    /// A disk grew.
    DiskResized = "disk.resized", Info, "a disk was resized", "Clients see the new size when they connect again.",
        "connect again, then grow the filesystem (xfs_growfs, resize2fs)";
    /// A disk is served.
    DiskExposed = "disk.exposed", Info, "a disk is served", "The message has the address.", "nothing to do";
    /// A disk is not served any more.
    DiskUnexposed = "disk.unexposed", Info, "a disk is not served any more", "An operator took it out of service.",
        "warpraid disk expose serves it again";
    /// A disk is not served although it was.
    DiskNotExposed = "disk.not_exposed", Warning, "a disk could not be served again",
        "It was served before the daemon or the group stopped, and its address cannot be used now.",
        "free the address, then warpraid disk expose";
    /// A block device was taken over from a daemon that died.
    DiskResumed = "disk.resumed", Info, "a disk's block device goes on",
        "The daemon before this one ended while the device was in use. Its clients waited and saw no error; what was in flight is done again.",
        "nothing to do; the message has how long it took";
    /// An operator changed something else.
    OperatorVerb = "operator.verb", Info, "an operator changed something", "The message has the verb and what it was done to.",
        "nothing to do";
    /// A test of the alerts.
    AlertTest = "alert.test", Warning, "a test of the alerts", "warpraid alert test was typed: everything works, nothing is wrong.",
        "nothing to do";
    /// A hook did not work.
    HookFailed = "hook.failed", Warning, "a hook failed",
        "An executable in the hooks folder ended with an error, ran too long, or could not be run.",
        "run it by hand with the environment of docs/operations.md; then warpraid alert test";
    /// A hook is not run.
    HookUnsafe = "hook.unsafe", Warning, "a hook is not run because others can change it",
        "The folder or the file belongs to somebody else, or its group or everybody may write to it.",
        "chown root and chmod go-w what the message names";
    /// Hooks missed events.
    HookOverrun = "hook.overrun", Warning, "a hook missed events",
        "It is slower than events come; its queue was full.",
        "make the hook return at once (put work in the background); warpraid events has all of them";
}
