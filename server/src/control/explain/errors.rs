//! What every error code means. A code without an explanation does not compile.

use super::Explanation;
use crate::control::ErrorCode;

const NOTHING: &str = "none: nothing was changed";

const fn e(
    title: &'static str,
    means: &'static str,
    risks: &'static str,
    steps: &'static [&'static str],
    example: &'static str,
) -> Explanation {
    Explanation { title, means, risks, steps, example }
}

/// Every code has an explanation, or this does not compile.
const _: () = {
    let mut i = 0;
    while i < ErrorCode::ALL.len() {
        assert!(!explanation(ErrorCode::ALL[i]).title.is_empty());
        i += 1;
    }
};

/// What a code means.
pub(super) const fn explanation(code: ErrorCode) -> Explanation {
    match general(code) {
        Some(it) => it,
        None => match group(code) {
            Some(it) => it,
            None => match interop(code) {
                Some(it) => it,
                None => things(code),
            },
        },
    }
}

#[allow(clippy::too_many_lines)] // A table.
#[rustfmt::skip]
const fn general(code: ErrorCode) -> Option<Explanation> {
    use ErrorCode as C;
    Some(match code {
        C::Internal => e("something unexpected", "The daemon or the program met a state it has no words for; the message has the details.",
            "unknown: look before you go on", &["warpraid status", "read the daemon's log around that time", "report it, with the log"], "journalctl -u warpraid -n 100"),
        C::Io => e("an I/O error", "A drive or a file could not be read or written, outside the service of a group's disks.",
            "the drive named may be failing", &["dmesg | tail: what the kernel says of the drive", "warpraid status", "take the drive out if it goes on"], "warpraid drive list"),
        C::ShuttingDown => e("the daemon is stopping", "The verb came while the daemon was about to end.",
            "what the verb had begun may or may not be done", &["wait for the daemon to be up again", "warpraid status, then the verb again if it is needed"], "warpraid status"),
        C::DaemonUnreachable => e("no daemon answers", "Nobody listens on the socket, or the daemon broke off in the middle of an answer.",
            "disks are not served while no daemon runs; nothing on the drives changes", &["is it running? pgrep -a warpraid", "is it this socket? --socket PATH, WARPRAID_SOCKET", "start it: warpraid serve"], "systemctl status warpraid"),
        C::DaemonRunning => e("another daemon is there", "Another daemon serves this socket or uses this state folder. Two must never share drives.",
            NOTHING, &["use the running daemon", "or stop it: kill the pid in the message", "or start with another --socket and --state-dir"], "warpraid status"),
        C::DaemonAnswer => e("an answer that is not ours", "What answers on the socket is no warpraid daemon, or one of a version this program does not understand.",
            NOTHING, &["check --socket and WARPRAID_SOCKET", "compare warpraid --version with the daemon's version in status -o json"], "warpraid --socket /run/warpraid/admin.sock status"),
        C::DaemonStart => e("the daemon cannot start", "The system refuses something it needs (io_uring, memory, a folder, a socket); the message names it.",
            "disks are not served", &["read the message: it names what is refused", "give it that, or other options", "warpraid serve again"], "warpraid serve --memory 256M --lanes 2"),
        C::SocketUnsafe => e("a socket others could take over", "The socket's folder or path could be changed by other users, so it is not used.",
            NOTHING, &["fix what the message names (chmod, chown)", "or choose a folder of your own: --socket PATH"], "chmod o-w /run/warpraid"),
        C::SocketInvalid => e("not a path for a socket", "The path is too long, names no file, or its folder is none.",
            NOTHING, &["choose a path of at most 107 bytes in a folder that exists"], "warpraid --socket /run/warpraid/admin.sock serve"),
        C::NotPermitted => e("you may not do this", "The admin socket is for root and the daemon's own user; the read-only socket and the HTTP port only look.",
            NOTHING, &["run it as root (sudo)", "to look only, use the read-only socket beside the admin socket"], "sudo warpraid status"),
        C::RequestInvalid => e("not a request", "The request is malformed: a field that does not exist, a value out of range, a body that is no JSON object.",
            NOTHING, &["read the message: it names the field", "docs/openapi.json describes every request"], "curl --unix-socket /run/warpraid/read.sock http://localhost/openapi.json"),
        C::RouteUnknown => e("no such page of the API", "The path is not one of the API.", NOTHING, &["GET /openapi.json lists all there is"],
            "curl --unix-socket /run/warpraid/read.sock http://localhost/openapi.json"),
        C::MethodUnknown => e("not that method", "The page exists, with another HTTP method: GET to look, POST to change.", NOTHING, &["GET /openapi.json lists all there is"],
            "curl --unix-socket /run/warpraid/read.sock http://localhost/v1/status"),
        C::UsageInvalid => e("not a command line", "A verb, an option or a value is wrong or missing.", NOTHING, &["warpraid help, or --help after the verb"], "warpraid group create --help"),
        C::ConfirmMissing => e("a destructive verb was not confirmed", "Without a terminal, --yes and the uuid (or serial) of the thing show that it is meant.",
            NOTHING, &["look first: the same command with --dry-run", "add --yes, and --expect-uuid where the message asks for it"], "warpraid group delete tank --yes --expect-uuid UUID"),
        C::ConfirmMismatch => e("what was typed is not its name", "The confirmation names another thing than the command.", NOTHING, &["check the name", "repeat the command, and type the name as shown"], "warpraid group show tank"),
        C::BenchRecordNotFound => e("no such record", "There is no file of this name, or it cannot be read.", NOTHING, &["give the file that --record wrote"], "warpraid bench compare before.json after.json"),
        C::BenchRecordInvalid => e("not a record of a benchmark", "The file is no JSON record of warpraid.bench, or of a newer major version.", NOTHING, &["give the file that --record wrote, or -o json"], "warpraid bench drives DRIVE... --read --record before.json"),
        C::LayoutNotFound => e("no such layout", "There is no file of this name.", NOTHING, &["give the path of the layout file"], "warpraid layout plan storage-node.toml"),
        C::LayoutInvalid => e("not a layout", "The file is no TOML, has a key that does not exist, or a value that is none; the message says where.", NOTHING, &["read the message: it has line and column, or the group and disk", "docs/layout.md has every key, contrib/layouts an example"], "warpraid layout plan storage-node.toml"),
        C::LayoutRefused => e("the node contradicts the layout", "Something of the layout exists in another shape, or its drives are not free. Applying a layout never takes anything away.", NOTHING, &["read the message: it names everything that is in the way", "change the file, or the node by hand"], "warpraid layout plan storage-node.toml"),
        C::BenchPeerMissing => e("what to compare with is not installed", "The comparison loads another program's library (libisal.so.2 for isal), which is not there or cannot be loaded.", NOTHING, &["install it: libisal2 on Debian and Ubuntu", "without --against the table of our own kernels needs nothing"], "warpraid bench parity --against isal"),
        C::CodeUnknown => e("no such code", "There is no problem, event or error of this code in this version.", NOTHING, &["warpraid explain lists all of them"], "warpraid explain group.degraded"),
        C::DemoFailed => e("the demo did not come to its end", "A step of it failed; the message says which.", "none: the demo uses files of its own", &["read the message", "try again with --keep, and look at its log"], "warpraid demo --keep"),
        C::AlertFailed => e("an alert did not get through", "warpraid alert test ran every hook, and at least one failed; the message says which and how.",
            "alerts of real problems would fail the same way", &["run the hook by hand", "fix it, then: warpraid alert test"], "warpraid alert test"),
        C::UpgradeProgram => e("a program that cannot take over", "The program named for an upgrade is none of warpraid, can be changed by others than root, or does not take the options that the daemon was started with; the message says which.",
            NOTHING, &["install the new version whole, then: warpraid upgrade", "or name it: warpraid upgrade --program PATH"], "warpraid upgrade --program /usr/bin/warpraid --dry-run"),
        C::UpgradeOlder => e("the program is older than the daemon", "An older version may not know what this one wrote.", NOTHING,
            &["read CHANGELOG.md for what changed between the two", "warpraid upgrade --force if the older one is meant"], "warpraid upgrade --dry-run"),
        C::UpgradeFailed => e("the upgrade did not come to its end", "The new program could not be started, so the old one went on; or it was started and does not serve.",
            "while no daemon serves, I/O of block devices waits; it does not fail", &["warpraid status: does a daemon answer?", "if not, start one: systemctl start warpraid, or the old program", "read the log: it says why"], "journalctl -u warpraid -n 100"),
        _ => return None,
    })
}

#[allow(clippy::too_many_lines)] // A table.
#[rustfmt::skip]
const fn group(code: ErrorCode) -> Option<Explanation> {
    use ErrorCode as C;
    Some(match code {
        C::GroupNameInvalid => e("not a group name", "Names have 1 to 31 letters, digits, dots, dashes and underscores, and begin with a letter or digit.", NOTHING, &["choose another name"], "warpraid group create tank --level 6 DRIVE..."),
        C::GroupNameTaken => e("the name is taken", "A group of this name exists, running or not; names are unique ignoring case.", NOTHING, &["choose another name", "or look at the one that has it: warpraid group list"], "warpraid group list"),
        C::GroupNotFound => e("no such group", "No group of this name or uuid runs or was found on the drives.", NOTHING, &["warpraid group list", "name its drives: warpraid group assemble NAME DRIVE..."], "warpraid group assemble tank"),
        C::GroupAmbiguous => e("several groups fit", "Drives of different groups carry this name.", NOTHING, &["warpraid drive list shows the uuids", "use the uuid instead of the name"], "warpraid group assemble 01234567-89ab-4def-bedc-ba9876543210"),
        C::GroupDrivesInvalid => e("not that number of drives", "RAID 0 and 1 need 2 drives, 5 needs 3, 6 needs 4, 10 an even number from 4 on.", NOTHING, &["give the number of drives the level needs", "warpraid group plan shows the arithmetic"], "warpraid group plan --level 6 DRIVE DRIVE DRIVE DRIVE"),
        C::GroupChunkInvalid => e("not a chunk size", "A power of two up to 1M; RAID 1 has none.", NOTHING, &["leave --chunk out: 64K fits most uses"], "warpraid group plan --level 5 --chunk 64K DRIVE..."),
        C::GroupLevelInvalid => e("not a RAID level", "Levels are 0, 1, 5, 6 and 10.", NOTHING, &["give one of 0, 1, 5, 6, 10"], "warpraid group plan --level 6 DRIVE..."),
        C::GroupUuidMismatch => e("not the uuid of this group", "The uuid given belongs to another group than the name.", NOTHING, &["warpraid group show NAME: its uuid", "check that this is the group you mean"], "warpraid group show tank"),
        C::GroupBusy => e("disks of the group are in use", "Clients are connected; the message names them.", "cutting them off loses what they have not written yet", &["unmount and disconnect the clients", "or --force, which disconnects them"], "warpraid disk list tank"),
        C::GroupNotRunning => e("the group does not run", "The verb needs a running group, or it stopped meanwhile.", NOTHING, &["warpraid status: why it does not run", "warpraid group assemble NAME"], "warpraid group assemble tank"),
        C::GroupRunning => e("the group runs already", "There is nothing to assemble.", NOTHING, &["warpraid group show NAME"], "warpraid group show tank"),
        C::GroupOffline => ProblemTwin::OFFLINE,
        C::GroupIncomplete => e("members are missing", "The group cannot start without them, or would start with what may be older data.",
            "--force starts it all the same where that is possible: some blocks may be wrong, and the group is marked for ever", &["bring the drives back", "name them if they are elsewhere: warpraid group assemble NAME DRIVE...", "--force only when they are gone for good"], "warpraid group assemble tank /dev/nvme3n1"),
        C::GroupDirtyDegraded => e("it crashed, and it is short of a member", "Parity of stripes being written at the crash cannot be trusted, and the missing member's blocks there would be computed from it.",
            "--force: blocks that were being written, and their neighbours in the stripe, may be wrong", &["bring the missing member back: then nothing is lost", "--force only when it is gone for good; check the filesystems after"], "warpraid group assemble tank"),
        C::GroupStale => e("newer data exists elsewhere", "These drives were left behind: the group ran on without them.",
            "--force would serve old data as if it were current", &["bring the drives that have the newest epoch", "warpraid examine DRIVE shows each one's epoch"], "warpraid examine /dev/nvme0n1"),
        C::GroupDiverged => e("two histories exist", "Both halves of the group were written while the other was away. Only you can say which one counts.",
            "what the other half has alone is lost for the group", &["warpraid examine DRIVE on each: epoch and time", "assemble with the drives of the half to keep", "wipe and replace the others"], "warpraid group assemble tank /dev/nvme0n1 /dev/nvme1n1"),
        C::GroupUnsupported => e("a group of another kind", "Its layout, a feature or its version is not one this version starts.", NOTHING, &["warpraid examine DRIVE: what it is", "use the software that made it"], "warpraid examine /dev/nvme0n1"),
        C::GroupToleranceSpent => e("it would go offline", "The group cannot lose this member: too many others are missing.", "--force takes the group offline", &["replace the missing members first", "wait for their rebuild, then try again"], "warpraid group wait tank --for rebuilt"),
        C::ScrubBusy => e("a scrub is under way", "One scrub a group at a time.", NOTHING, &["warpraid group scrub NAME --show: how far it is", "wait for it, or --cancel it"], "warpraid group scrub tank --show"),
        C::ScrubDegraded => e("the group is not whole", "A scrub compares what is redundant; a group that is short of members, rebuilding or not in sync has nothing to compare there.",
            NOTHING, &["warpraid status: what is missing", "warpraid group wait NAME --for healthy, then scrub", "or --even-degraded, which compares what can be compared"], "warpraid group wait tank --for healthy"),
        C::ScrubImpossible => e("there is nothing to scrub", "RAID 0 has no redundancy to compare, or there is no scrub to pause, resume, cancel or acknowledge.",
            NOTHING, &["warpraid group scrub NAME --show: what there is"], "warpraid group scrub tank --show"),
        C::GroupSettingInvalid => e("not that setting", "The setting does not exist, or not with this value.", NOTHING, &["warpraid group set --help lists settings and values", "warpraid group show NAME shows those in force"], "warpraid group set --help"),
        C::GroupSlotInvalid => e("not that slot", "The slot does not exist, or is not in the state the verb needs.", NOTHING, &["warpraid group show NAME lists the slots"], "warpraid group show tank"),
        C::GroupUndeleteImpossible => e("it cannot come back", "A member of the deleted group was reused, or its tombstone is gone.", NOTHING, &["warpraid examine DRIVE on each of its drives", "restore from a backup"], "warpraid examine /dev/nvme0n1"),
        C::GroupWaitTimeout => e("not yet", "The state waited for was not reached in time.", "none: what runs goes on", &["warpraid status: progress and time to go", "wait again, or longer"], "warpraid group wait tank --for rebuilt --timeout 8h"),
        C::GroupWaitImpossible => e("waiting is in vain", "Nothing runs that would bring the group there.", NOTHING, &["warpraid status: NEXT is the command"], "warpraid group replace tank --slot 3 NEW_DRIVE"),
        _ => return None,
    })
}

#[rustfmt::skip]
const fn interop(code: ErrorCode) -> Option<Explanation> {
    use ErrorCode as C;
    Some(match code {
        C::AdoptMetadata => e("no metadata 1.2 of md", "Only arrays with md superblocks of version 1.2 are adopted, sound and the same on all members. Versions 0.90, 1.0 and 1.1, DDF and Intel RAID stay with md.", NOTHING, &["mdadm --examine DRIVE: what there is", "name the member itself, not the array nor a partition beside it"], "mdadm --examine /dev/nvme0n1"),
        C::AdoptLayout => e("not a layout we serve", "Levels 0, 1, 5 and 6 (left-symmetric) and 10 (near-2), chunks of up to 1 MiB, RAID 0 over members of one size.", NOTHING, &["mdadm --grow can change level, layout and chunk of some arrays", "else leave it to md"], "mdadm --grow /dev/md0 --layout=normalise"),
        C::AdoptReshape => e("a reshape is under way", "While md moves data to another shape, nobody else can know where a block is.", NOTHING, &["mdadm --assemble the array, wait for the reshape to end", "mdadm --stop it, then adopt"], "cat /proc/mdstat"),
        C::AdoptJournal => e("it has a journal", "Writes may still be in md's journal device or partial parity log.", "adopted without it, data could be lost", &["take it out with mdadm: --consistency-policy=resync, or --fail and --remove the journal", "mdadm --stop, then adopt"], "mdadm --grow /dev/md0 --consistency-policy=resync"),
        C::AdoptBitmap => e("not that bitmap", "Only bitmaps of version 4 inside the members are read: none of clusters, none in files, none that md itself would not believe.", NOTHING, &["mdadm --assemble the array", "mdadm --grow --bitmap=none, then --bitmap=internal", "mdadm --stop, then adopt"], "mdadm --grow /dev/md0 --bitmap=none"),
        C::AdoptFeature => e("a feature we do not know", "The superblock says that the array uses something newer or rarer than this version understands.", "adopted all the same, it could be damaged", &["mdadm --examine DRIVE: its feature map", "leave it to md, or try a newer warpraid"], "mdadm --examine /dev/nvme0n1"),
        C::AdoptDirty => e("it is not clean", "md did not stop it cleanly, or has not finished a resync.", "adopted all the same, parity and copies could be wrong", &["mdadm --assemble it, wait until it is in sync", "mdadm --stop it, then adopt"], "mdadm --wait /dev/md0"),
        C::AdoptRebuilding => e("a member is being rebuilt", "md has not finished to rebuild or replace a member.", NOTHING, &["mdadm --assemble the array, wait for the rebuild", "mdadm --stop it, then adopt"], "mdadm --wait /dev/md0"),
        C::AdoptMixed => e("not one array", "The drives named belong to several arrays, or two of them carry the same member.", NOTHING, &["mdadm --examine DRIVE: Array UUID and Device Role of each", "name the members of one array, each once"], "mdadm --examine --scan --verbose"),
        C::AdoptNotInUse => e("not a member in use", "The drive is a spare, or the array has dropped it and gone on without it.", "as a member it would bring old data", &["leave it out of the adopt", "later, once the group runs: drive wipe, then group replace or spare add"], "warpraid spare add /dev/nvme9n1 --group tank"),
        C::AdoptIncomplete => e("members were not named", "The array counts on drives that were not named. One that is missing for good must be missing by md's own record, too.", "without them the group would start degraded, and they could run apart", &["name all members", "if one is gone: mdadm --assemble --run, which records that, then mdadm --stop", "adopt the rest"], "mdadm --assemble --run /dev/md0 /dev/nvme0n1 /dev/nvme1n1"),
        C::AdoptNoRoom => e("no room for our metadata", "Nothing of md's is moved, and it leaves no hole of 32 KiB, or not the last sector of the superblock's 4 KiB.", NOTHING, &["mdadm --grow --bitmap=none, if the bitmap is in the way", "else leave it to md, or copy the data to a new group"], "mdadm --grow /dev/md0 --bitmap=none"),
        C::AdoptBlockSize => e("no whole blocks", "Sizes or places of the array are not multiples of the logical block size of its members.", NOTHING, &["leave it to md, or copy the data to a new group"], "warpraid drive show /dev/nvme0n1"),
        C::GroupHalfHandedOver => e("an adopt or release was cut short", "Some members may be md's by now. With all of them here, as they were, the group starts by itself or is adopted again.", "--force: what md wrote to the others since is lost, or both write on their own", &["bring all members back", "make sure that md does not run any of them: cat /proc/mdstat", "warpraid group assemble NAME"], "warpraid group assemble tank"),
        C::ReleaseUnsynced => e("not in sync yet", "md is told that everything is in sync when it gets the group, so that has to be true.", NOTHING, &["warpraid group wait NAME --for synced", "warpraid group release NAME again"], "warpraid group wait tank --for synced"),
        C::ReleaseRebuilding => e("a member is being rebuilt", "A group is given to md with members that are whole or missing, none in between.", NOTHING, &["warpraid group wait NAME --for rebuilt", "warpraid group release NAME again"], "warpraid group wait tank --for rebuilt"),
        _ => return None,
    })
}

#[allow(clippy::too_many_lines)] // A table.
#[rustfmt::skip]
const fn things(code: ErrorCode) -> Explanation {
    use ErrorCode as C;
    match code {
        C::DiskNameInvalid => e("not a disk name", "Names have 1 to 31 letters, digits, dots, dashes and underscores, and begin with a letter or digit.", NOTHING, &["choose another name: GROUP/DISK"], "warpraid disk create tank/home --size 500G"),
        C::DiskNameTaken => e("the name is taken", "The group has a disk of this name.", NOTHING, &["choose another name; warpraid disk list shows those in use"], "warpraid disk list tank"),
        C::DiskNotFound => e("no such disk", "The group has no disk of this name.", NOTHING, &["warpraid disk list shows the disks"], "warpraid disk list tank"),
        C::DiskSizeInvalid => e("not that size", "The size is not one, or more than is free in one piece.", NOTHING, &["warpraid group show NAME: what is free", "give a size such as 500G"], "warpraid disk create tank/home --size 500G"),
        C::DiskShrinkRefused => e("disks only grow", "A filesystem may use the part that would be cut off.", NOTHING, &["make a smaller disk", "copy to it"], "warpraid disk create tank/small --size 100G"),
        C::DiskUuidMismatch => e("not the uuid of this disk", "The uuid given belongs to another disk than the name.", NOTHING, &["warpraid disk show GROUP/DISK: its uuid"], "warpraid disk show tank/home"),
        C::DiskBusy => e("the disk is in use", "Clients are connected, or it is served already; the message names them.", "cutting clients off loses what they have not written yet", &["unmount and disconnect the clients", "or --force, which disconnects them"], "warpraid disk show tank/home"),
        C::DiskTableRefused => e("the group cannot be cut", "Its table of disks is full, unreadable, or not there because the group is one filesystem.", NOTHING, &["the daemon's log says which", "warpraid disk list GROUP"], "warpraid disk list tank"),
        C::ExposeAddressInvalid => e("not an address", "Addresses are unix:/absolute/path and tcp:127.0.0.1:PORT.", NOTHING, &["give one of these"], "warpraid disk expose tank/home --nbd unix:/run/warpraid/home.sock"),
        C::ExposeAddressBusy => e("the address is taken", "Somebody listens there.", NOTHING, &["choose another address", "or stop who has it: ss -lxp, ss -ltp"], "ss -ltp"),
        C::ExposeUblkUnavailable => e("no block devices on this host", "Block devices are served through the kernel's ublk: the module ublk_drv of Linux 6.5 or newer.", NOTHING, &["modprobe ublk_drv", "or a newer kernel", "or serve the disk over NBD: warpraid disk expose GROUP/DISK --nbd unix:PATH"], "modprobe ublk_drv"),
        C::ExposeNotFound => e("not served there", "The disk is not exposed at this address.", NOTHING, &["warpraid disk show GROUP/DISK lists its addresses"], "warpraid disk show tank/home"),
        C::DriveNotFound => e("no such drive", "No drive has this path, serial or uuid, or it is no member.", NOTHING, &["warpraid drive list", "is it plugged in? dmesg | tail"], "warpraid drive list"),
        C::DriveInvalid => e("not a drive", "The path is neither a block device nor a regular file.", NOTHING, &["name a block device or a file"], "warpraid drive show /dev/nvme0n1"),
        C::DriveTwice => e("a drive was named twice", "Two of the names are the same drive.", NOTHING, &["name each drive once"], "warpraid drive list"),
        C::DriveUsed => e("something lies on the drive", "A partition table, a filesystem, LVM, md, ZFS or the like was found; the message lists it.", "wiping loses what lies there", &["warpraid drive show DRIVE: what and where", "if nothing of it is needed: warpraid drive wipe DRIVE"], "warpraid drive wipe /dev/nvme0n1 --dry-run"),
        C::DriveIsMember => e("a member of a group", "The drive belongs to a group of ours.", "wiping it takes its redundancy from that group", &["warpraid group assemble NAME, to use the group", "or delete that group first"], "warpraid drive show /dev/nvme0n1"),
        C::DriveMounted => e("the drive is mounted or held", "It, or a part of it, is in use. Such a drive is never taken, not even by force.", NOTHING, &["unmount it, or stop what holds it (swapoff, vgchange -an)", "try again"], "lsblk /dev/nvme0n1"),
        C::DriveBusy => e("somebody has the drive open", "The message names who, where that can be found out.", NOTHING, &["stop who holds it: fuser -v DRIVE", "warpraid drive fail takes a member out of a running group first"], "fuser -v /dev/nvme0n1"),
        C::DriveHeld => e("another warpraid daemon has the drive", "A second daemon runs on this host, with a state folder of its own, and its group uses the drive.", "two daemons must never share drives: none is taken from the other", &["use that daemon: its pid is in the message, ps shows its --socket", "or stop it, then start or assemble here"], "ps -o args= -p PID"),
        C::DriveTooSmall => e("the drive is too small", "A replacement must hold what its slot holds.", NOTHING, &["use a drive at least as large as the message says"], "warpraid drive list"),
        C::DriveBlockSize => e("its blocks are larger", "A drive with 4096-byte blocks cannot serve a group of 512-byte blocks.", NOTHING, &["use a drive with the group's block size", "or format the drive so: nvme format --lbaf"], "nvme id-ns -H /dev/nvme0n1"),
        C::DriveIdentityMismatch => e("not the serial or uuid of this drive", "The identity given belongs to another drive than the name.", NOTHING, &["warpraid drive show DRIVE: its serial", "check that this is the drive you mean"], "warpraid drive show /dev/nvme0n1"),
        C::DriveIsSpare => e("the drive is a spare", "It is kept for a member that fails.", NOTHING, &["use another drive", "or first: warpraid spare remove DRIVE"], "warpraid spare list"),
        C::SpareNotFound => e("no such spare", "No drive of this path, serial or name is kept as a spare.", NOTHING, &["warpraid spare list"], "warpraid spare list"),
        C::FaultNotAllowed => e("faults on purpose are not allowed here", "The daemon was not started with --allow-faults.", NOTHING, &["never on a system in service", "on one to practise with: warpraid serve --allow-faults"], "warpraid serve --allow-faults"),
        C::FaultNotFound => e("no such fault", "No fault of this number, or on this drive, is active.", NOTHING, &["warpraid fault list"], "warpraid fault list"),
        C::FaultInvalid => e("not that fault", "The kind, the range or another option is not possible on this drive.", NOTHING, &["warpraid fault inject --help"], "warpraid fault inject tank:2 slow --delay-ms 50 --for 2m"),
        _ => panic!("a code without an explanation"),
    }
}

/// The error whose problem has the same text.
struct ProblemTwin;

impl ProblemTwin {
    const OFFLINE: Explanation = super::ProblemCode::GroupOffline.explanation();
}
