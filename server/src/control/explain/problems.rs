//! Codes of problems: what `status` and `health` show, and `problem.raised` events carry.

use super::Explanation;

macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident = $text:literal {
        title: $title:literal, means: $means:literal, risks: $risks:literal, steps: $steps:expr, example: $example:literal $(,)?
    })*) => {
        /// A stable code of a problem. A new one is one entry of this table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        pub enum ProblemCode {
            $($(#[$doc])* $name,)*
        }

        impl ProblemCode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as scripts see it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What it means.
            #[must_use]
            pub const fn explanation(self) -> Explanation {
                match self { $(Self::$name => Explanation {
                    title: $title, means: $means, risks: $risks, steps: $steps, example: $example,
                },)* }
            }
        }
    };
}

problems! {
    /// A member is missing; all data is served.
    GroupDegraded = "group.degraded" {
        title: "a member of the group is missing",
        means: "A drive failed, was taken out, or was not there when the group started. All data is served: what lay on \
            that drive is computed from the others.",
        risks: "Less redundancy than the level promises until a drive takes the slot and is rebuilt. RISK in status says how \
            many more drives may fail.",
        steps: &[
            "warpraid status: note slot, drive and serial of the member that is missing",
            "find a free drive at least as large: warpraid drive list",
            "warpraid group replace GROUP --slot N NEW_DRIVE",
            "warpraid group wait GROUP --for rebuilt",
        ],
        example: "warpraid group replace tank --slot 3 /dev/nvme9n1",
    }
    /// More members are missing than the level tolerates.
    GroupOffline = "group.offline" {
        title: "more drives are missing than the level tolerates",
        means: "Blocks cannot be served any more, so nothing of the group is. What lies on the missing drives is not lost as \
            long as the drives come back.",
        risks: "Service is down. Data written last may exist only on the missing drives: do not wipe or reuse any of them.",
        steps: &[
            "look for the common cause first: a cable, a backplane, a controller, a power rail",
            "bring the drives named under WHY back",
            "warpraid group stop GROUP",
            "warpraid group assemble GROUP",
        ],
        example: "warpraid group stop tank && warpraid group assemble tank",
    }
    /// A member is being rebuilt.
    GroupRebuilding = "group.rebuilding" {
        title: "a member is being rebuilt",
        means: "A drive that joined is filled with what belongs on it, while the group serves.",
        risks: "Until it is done the drive does not count: the group can lose as many fewer drives.",
        steps: &[
            "warpraid status: progress, rate and time to go",
            "warpraid group wait GROUP --for rebuilt",
        ],
        example: "warpraid group wait tank --for rebuilt",
    }
    /// Redundancy is being made.
    GroupSyncing = "group.syncing" {
        title: "redundancy is still being made",
        means: "After create, or after a stop that was not clean, parity or copies are computed in the background.",
        risks: "A drive failure before it is done can lose blocks in the part that is not synced yet.",
        steps: &[
            "warpraid status: progress, rate and time to go",
            "warpraid group wait GROUP --for synced",
        ],
        example: "warpraid group wait tank --for synced",
    }
    /// Once started by force.
    GroupForced = "group.forced" {
        title: "the group was once started by force",
        means: "It was started although it was dirty and short of a member, or without its newest member. The mark stays for \
            ever.",
        risks: "Blocks that were being written just before the crash may be wrong, and nothing can say which.",
        steps: &[
            "check the filesystems on its disks (xfs_repair -n, fsck -n)",
            "compare with a backup; restore what is wrong",
            "to get rid of the mark, make a new group and copy",
        ],
        example: "warpraid group show tank",
    }
    /// The witness could not be stored.
    GroupWitness = "group.witness" {
        title: "the state folder could not be written",
        means: "This host must remember the newest epoch of each group, so that an old half of its drives never starts alone. \
            It could not store it.",
        risks: "After a restart with only a part of the drives, older data may be served.",
        steps: &[
            "see whether the file system of the state folder is full, read-only or broken: df -h, dmesg",
            "make room or repair it; the next change of the group stores it again",
            "warpraid status: the problem is gone",
        ],
        example: "df -h /var/lib/warpraid",
    }
    /// A member that is out of date.
    MemberStale = "member.stale" {
        title: "a drive of the group is out of date",
        means: "The drive is there, but was dropped or away while the group was written. Its contents are never used.",
        risks: "Less redundancy until the slot has a current member.",
        steps: &[
            "warpraid drive wipe DRIVE, if this is the drive to use again",
            "warpraid group replace GROUP --slot N DRIVE",
            "warpraid group wait GROUP --for rebuilt",
        ],
        example: "warpraid group replace tank --slot 3 /dev/nvme3n1",
    }
    /// A member with another history.
    MemberConflict = "member.conflict" {
        title: "a drive holds another history of the group",
        means: "The drive was written as a part of this group while the others were not there. Both sides have data the other \
            has not. Nobody overwrites it: you choose.",
        risks: "What was written to this drive alone is not in the running group; wiping the drive loses it for good.",
        steps: &[
            "warpraid examine DRIVE: epoch and time of its last change",
            "decide which side to keep; copy from the other one what is needed",
            "warpraid drive wipe DRIVE, then warpraid group replace GROUP --slot N DRIVE",
        ],
        example: "warpraid examine /dev/nvme3n1",
    }
    /// A member whose file has no name any more.
    MemberUnlinked = "member.unlinked" {
        title: "the file of a member was deleted",
        means: "Somebody deleted or replaced the file while it was a member. The daemon still holds it and serves it, but \
            nobody can open it again.",
        risks: "The member is lost when the daemon stops.",
        steps: &[
            "do not stop the daemon, nor the group, yet",
            "if RISK in status says the group can do without it: warpraid drive fail FILE",
            "warpraid group replace GROUP --slot N NEW_DRIVE, and wait for its rebuild",
            "otherwise copy its disks elsewhere first: nbdcopy URI FILE",
        ],
        example: "warpraid group replace tank --slot 1 /var/lib/drives/new.img",
    }
    /// A scrub found what does not fit.
    GroupMismatch = "group.mismatch" {
        title: "data and redundancy do not fit",
        means: "A scrub found places where parity or copies do not match the data. On RAID 6 it names the wrong member where \
            that is certain; on RAID 1, 5 and 10 nobody can tell from the drives which side is right.",
        risks: "Data may be wrong there already, and after a drive failure it may be rebuilt wrong.",
        steps: &[
            "warpraid group scrub GROUP --show: which members, which parts of which disk",
            "RAID 6: warpraid group scrub GROUP --repair rewrites what is certainly wrong, and nothing else",
            "RAID 6, where data was written in part since it last fitted: it or the parities are wrong; compare the files there, \
                then --repair-suspected if the data is wrong, --assume-data-right if it is right",
            "otherwise compare the files there with a backup, and write them again where they are wrong",
            "if the data is known to be right: warpraid group scrub GROUP --assume-data-right",
            "warpraid group scrub GROUP --wait, or --acknowledge",
        ],
        example: "warpraid group scrub tank --show",
    }
    /// Blocks are lost.
    GroupBadblocks = "group.badblocks" {
        title: "blocks are lost",
        means: "A drive could not read them, and too little of their row was left to compute them. They are listed on the \
            drives, and read as I/O errors; everything else is served.",
        risks: "The files they belong to cannot be read there.",
        steps: &[
            "warpraid disk show GROUP/DISK: where they lie, and the command that finds the file",
            "restore the file from a backup, or delete it: writing the blocks brings them back",
            "replace the drive that could not read them, if it happens again",
        ],
        example: "warpraid disk show tank/home",
    }
    /// A drive fails on purpose.
    FaultActive = "fault.active" {
        title: "a drive fails on purpose",
        means: "Somebody injected a fault (fault inject), and it is still active.",
        risks: "What the drive does is not real, what it does to data and redundancy is.",
        steps: &["warpraid fault list", "warpraid fault clear --all, when the drill is over", "serve without --allow-faults in service"],
        example: "warpraid fault clear --all",
    }
    /// A spare is not there.
    SpareMissing = "spare.missing" {
        title: "a spare is not there",
        means: "The drive is kept as a spare, and was not found, or is not blank any more.",
        risks: "The next drive that fails is not replaced by it.",
        steps: &["warpraid spare list: which one, and why", "bring it back, or warpraid spare remove DRIVE", "warpraid spare add DRIVE --global"],
        example: "warpraid spare list",
    }
    /// A spare failed idle.
    SpareFailed = "spare.failed" {
        title: "a spare failed while it waited",
        means: "It is read from time to time, and could not be.",
        risks: "The next drive that fails is not replaced by it.",
        steps: &["warpraid spare list: the error", "warpraid spare remove DRIVE", "warpraid spare add NEW_DRIVE --global"],
        example: "warpraid spare list",
    }
    /// A spare is about to take a slot.
    GroupSpareWaiting = "group.spare.waiting" {
        title: "a spare will take the place of a lost member",
        means: "The lost member is waited for (serve --spare-wait, --spare-wait-failed); then the spare named takes its place \
            and is rebuilt.",
        risks: "Until that rebuild is done the group has less redundancy.",
        steps: &["bring the member back, if it was only pulled", "otherwise nothing: warpraid status shows the rebuild"],
        example: "warpraid status",
    }
    /// No spare fits.
    GroupSpareMissing = "group.spare.missing" {
        title: "no spare can take the place of a lost member",
        means: "There is none, or none that fits; the status says why each does not, and by how much.",
        risks: "Redundancy stays spent until somebody replaces the member.",
        steps: &[
            "warpraid group replace GROUP --slot N NEW_DRIVE",
            "warpraid spare add DRIVE --group GROUP, for the next time",
        ],
        example: "warpraid spare add /dev/nvme9n1 --group tank",
    }
    /// A member is slower than the others.
    MemberSlow = "member.slow" {
        title: "a member is much slower than the others",
        means: "The median time of its commands is far outside that of the other members (docs/operations.md has the rule). As \
            long as redundancy allows, its reads are served from the others while its writes go on, and it returns by itself.",
        risks: "Slow drives often fail soon; while it sits out, every read of it costs reads of the others.",
        steps: &[
            "warpraid group show GROUP -o json: latency of every member",
            "warpraid drive show DRIVE: its SMART log",
            "look at temperature, PCIe link width and speed, firmware",
            "if it stays: warpraid drive fail DRIVE, then warpraid group replace GROUP --slot N NEW_DRIVE",
        ],
        example: "warpraid drive show /dev/nvme3n1",
    }
    /// A member fails too often.
    MemberSick = "member.sick" {
        title: "a member fails too often",
        means: "Commands to it failed and were made good from redundancy, more often than half the budget of an hour (serve \
            --error-budget).",
        risks: "At the whole budget it is dropped, if the group can then lose yet another one.",
        steps: &[
            "warpraid drive show DRIVE: its SMART log; dmesg | tail",
            "warpraid drive fail DRIVE, then warpraid group replace GROUP --slot N NEW_DRIVE",
        ],
        example: "warpraid drive show /dev/nvme3n1",
    }
    /// The drive itself says it is not well.
    DriveHealth = "drive.health" {
        title: "a drive reports that it is not well",
        means: "Its SMART log has critical warnings: spare blocks used up, too hot, reliability degraded, read-only, or backup of \
            its memory failed.",
        risks: "It may fail or turn read-only soon.",
        steps: &[
            "warpraid drive show DRIVE: which warning",
            "too hot: look after the cooling",
            "otherwise replace it: warpraid drive fail DRIVE, then warpraid group replace GROUP --slot N NEW_DRIVE",
        ],
        example: "warpraid drive show /dev/nvme3n1",
    }
    /// A benchmark was stopped early.
    BenchStopped = "bench.stopped" {
        title: "the benchmark was stopped before its end",
        means: "What was measured until then is in the record, which is marked incomplete.",
        risks: "none",
        steps: &["run it again, and let it come to its end"],
        example: "warpraid bench drives DRIVE... --read",
    }
    /// A target of a benchmark failed.
    BenchTargetFailed = "bench.target.failed" {
        title: "a target of the benchmark failed",
        means: "Commands to it failed; the figures of the other targets are in the record all the same.",
        risks: "The drive or disk may be failing.",
        steps: &["read the warning: it has the first error", "dmesg | tail, warpraid drive show DRIVE", "warpraid status"],
        example: "warpraid drive show /dev/nvme3n1",
    }
    /// A benchmark read what it had not written.
    BenchWrong = "bench.wrong" {
        title: "a benchmark read what it had not written",
        means: "The stamps that were read back are not those that were written, or could not be compared.",
        risks: "Something between the program and the medium changes data. Trust nothing behind it until it is found.",
        steps: &[
            "repeat it: does it happen at the same offset?",
            "test the drives one by one: warpraid bench drives DRIVE --write --yes",
            "check memory, cables and firmware; warpraid group scrub GROUP for groups in service",
        ],
        example: "warpraid group scrub tank --wait",
    }
    /// Something to know about a start that worked.
    GroupStart = "group.start" {
        title: "something to know about a start",
        means: "The group started, and something about it is worth knowing: a drive that was left out, a copy of the metadata \
            that was repaired, time that was waited. The warning says what.",
        risks: "none beyond what the warning says",
        steps: &["read the warning", "warpraid status: whether anything is left to do"],
        example: "warpraid status",
    }
    /// Events cannot be stored.
    EventsUnsaved = "events.unsaved" {
        title: "events cannot be stored",
        means: "The events of this daemon are kept in memory and given to hooks, but the state folder does not take them.",
        risks: "After a restart of the daemon the record of what happened has a hole.",
        steps: &[
            "see whether the file system of the state folder is full, read-only or broken: df -h, dmesg",
            "make room or repair it; the next event is stored again",
        ],
        example: "df -h /var/lib/warpraid",
    }
}

impl ProblemCode {
    /// The code of this text, if it is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}
