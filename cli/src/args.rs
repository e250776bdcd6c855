//! The command line: `warpraid NOUN VERB`. The one source of help, usage errors and completions.
//!
//! Names, sizes and levels arrive as text and are checked afterwards by [`crate::units`] and
//! [`server::control::names`], so that their errors carry their own codes.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use server::control::request::HistoryRange;

use crate::bench::args::BenchVerb;
use crate::demo::DemoArgs;
use crate::group_interop::{AdoptArgs, ReleaseArgs};
use crate::layout::LayoutVerb;
use crate::output::Format;

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 failed, 2 usage, 3 refused for safety, 4 not found, 5 daemon unreachable, \
6 not permitted, 7 busy. `health` has its own: 0 ok, 1 warning, 2 critical, 3 unknown.\n\n\
Example:\n  warpraid status\n  warpraid demo";

/// Software RAID for NVMe, in userspace: drives become groups, groups are cut into disks, disks are served.
#[derive(Parser, Debug)]
#[command(name = "warpraid", version, after_help = EXIT_CODES, disable_help_subcommand = false)]
pub(crate) struct Cli {
    /// How results are printed
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Human)]
    pub(crate) output: Format,
    /// The daemon's socket [default: /run/warpraid/admin.sock, or in XDG_RUNTIME_DIR as a user]
    #[arg(long, global = true, env = "WARPRAID_SOCKET", value_name = "PATH", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
    /// What is logged to stderr, e.g. `debug` or `server=debug` (or RUST_LOG)
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Am I safe, why not, what do I type
    #[command(
        after_help = "Example:\n  warpraid status\n  warpraid status --watch 5\n  warpraid status -o json | jq '.data.problems'"
    )]
    Status {
        /// Again and again, every so many seconds (2 unless given), until Ctrl-C; with -o json one envelope a line
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
        watch: Option<String>,
    },
    /// Health as an exit code: 0 ok, 1 warning, 2 critical, 3 unknown
    #[command(after_help = "Example:\n  warpraid health || mail -s 'storage' root")]
    Health,
    /// What a CODE of status, of an error or of an event means, and what to do; needs no daemon
    #[command(after_help = "Example:\n  warpraid explain\n  warpraid explain group.degraded")]
    Explain {
        /// The code; without one, all codes are listed
        code: Option<String>,
    },
    /// What happened, numbered; kept over restarts
    #[command(
        after_help = "Example:\n  warpraid events\n  warpraid events --since 2h\n  warpraid events --follow -o json | jq --unbuffered .data.message"
    )]
    Events(EventsArgs),
    /// Throughput, operations, latency and capacity over time, since the daemon started
    #[command(after_help = "Example:\n  warpraid history\n  warpraid history tank/home --range 1h")]
    History(HistoryArgs),
    /// Alerts: who is told
    #[command(subcommand, after_help = "Example:\n  warpraid alert test")]
    Alert(AlertVerb),
    /// Drives: what can be a member
    #[command(subcommand, after_help = "Example:\n  warpraid drive list")]
    Drive(DriveVerb),
    /// Spares: blank drives that take a lost member's place by themselves
    #[command(subcommand, after_help = "Example:\n  warpraid spare list")]
    Spare(SpareVerb),
    /// Faults: drives that fail on purpose, for drills; only with `serve --allow-faults`
    #[command(subcommand, after_help = "Example:\n  warpraid fault list")]
    Fault(FaultVerb),
    /// A whole node from one file
    #[command(subcommand)]
    Layout(LayoutVerb),
    /// Groups: RAID sets over drives
    #[command(subcommand, after_help = "Example:\n  warpraid group list")]
    Group(GroupVerb),
    /// Disks: virtual disks cut from a group
    #[command(subcommand, after_help = "Example:\n  warpraid disk list")]
    Disk(DiskVerb),
    /// Read what lies on a drive, without a daemon and without writing
    #[command(after_help = "Example:\n  warpraid examine /dev/nvme0n1")]
    Examine(ExamineArgs),
    /// Run the daemon
    #[command(
        after_help = "Example:\n  warpraid serve --state-dir /var/lib/warpraid --socket /run/warpraid/admin.sock"
    )]
    Serve(ServeArgs),
    /// Let another program take the running daemon's place; users of block devices wait and see no error
    #[command(
        after_help = "Example:\n  warpraid upgrade --dry-run\n  warpraid upgrade\n  warpraid upgrade --program /opt/warpraid-2/warpraid"
    )]
    Upgrade(UpgradeArgs),
    /// Show it all on six files: RAID 6, two disks over NBD, two drives failed under load, rebuilt, verified
    #[command(after_help = "Example:\n  warpraid demo\n  warpraid demo --keep")]
    Demo(DemoArgs),
    /// Measure drives, groups, disks, paths and parity; find the slow drive; compare two runs
    #[command(
        subcommand,
        after_help = "Example:\n  warpraid bench drives /dev/nvme{0..7}n1\n  warpraid bench group --level 6 --ram 8x256M"
    )]
    Bench(BenchVerb),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  warpraid completions bash > /usr/share/bash-completion/completions/warpraid"
    )]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page of a verb, or write all of them into a folder
    #[command(
        after_help = "Example:\n  warpraid man group create | man -l -\n  warpraid man --dir /usr/share/man/man1"
    )]
    Man(ManArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Write every page into this folder, one file a verb
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    pub(crate) dir: Option<PathBuf>,
    /// The verb, e.g. `group create` [default: the page of warpraid itself]
    pub(crate) verb: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// A group or a disk [default: the whole daemon]
    #[arg(value_name = "GROUP[/DISK]")]
    pub(crate) of: Option<String>,
    /// How far back
    #[arg(long, value_enum, default_value_t = RangeArg::Minutes5)]
    pub(crate) range: RangeArg,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum RangeArg {
    /// A sample a second
    #[value(name = "5m")]
    Minutes5,
    /// A sample every 10 seconds
    #[value(name = "1h")]
    Hour,
    /// A sample every 5 minutes
    #[value(name = "24h")]
    Day,
}

impl From<RangeArg> for HistoryRange {
    fn from(range: RangeArg) -> Self {
        match range {
            RangeArg::Minutes5 => Self::Minutes5,
            RangeArg::Hour => Self::Hour,
            RangeArg::Day => Self::Day,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Events after number N, or of the last so many s, m, h or d, or since a date (UTC)
    #[arg(long, value_name = "N|TIME")]
    pub(crate) since: Option<String>,
    /// Go on with new events as they come, over restarts of the daemon; with -o json one envelope a line
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// At most so many; with --follow, end after them [default: 100]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: Option<u32>,
    /// Only events about this group
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Only events of this code, or about a problem of this code
    #[arg(long, value_name = "CODE")]
    pub(crate) code: Option<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum AlertVerb {
    /// Send a test event through everything an alert goes through: the record, the hooks
    #[command(after_help = "Example:\n  warpraid alert test")]
    Test {
        /// Only say what would be done; write nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// For verbs that write.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Writes {
    /// Ask nothing; needed for destructive verbs where stdin is not a terminal
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only say what would be done; write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DriveVerb {
    /// All drives, and what they are to us
    #[command(after_help = "Example:\n  warpraid drive list")]
    List,
    /// One drive, and what lies on it
    #[command(after_help = "Example:\n  warpraid drive show /dev/nvme0n1")]
    Show {
        /// Path, serial, device uuid, or GROUP:SLOT
        drive: String,
    },
    /// Take every signature off a drive that no running group uses
    #[command(
        after_help = "Example:\n  warpraid drive wipe /dev/nvme0n1 --dry-run\n  warpraid drive wipe /dev/nvme0n1 --yes --expect-uuid S4X9NF0M123456"
    )]
    Wipe {
        /// Path, serial, device uuid, or GROUP:SLOT
        drive: String,
        /// The drive's serial, or the uuid of what lies on it; without a terminal this is needed
        #[arg(long, value_name = "SERIAL|UUID")]
        expect_uuid: Option<String>,
        #[command(flatten)]
        writes: Writes,
    },
    /// Drop a member as if its drive had failed
    #[command(after_help = "Example:\n  warpraid drive fail /dev/nvme0n1 --dry-run")]
    Fail {
        /// Path, serial, device uuid, or GROUP:SLOT
        drive: String,
        /// Also where the group goes offline by it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        writes: Writes,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum SpareVerb {
    /// Keep a blank drive for the loss of a member
    #[command(
        after_help = "Example:\n  warpraid spare add /dev/nvme9n1 --global\n  warpraid spare add /dev/nvme9n1 --group tank --dry-run",
        group = clap::ArgGroup::new("whose").required(true)
    )]
    Add {
        /// Path or serial
        drive: String,
        /// Only for this group: name or uuid
        #[arg(long, value_name = "GROUP", group = "whose")]
        group: Option<String>,
        /// For whichever group needs it first
        #[arg(long, group = "whose")]
        global: bool,
        #[command(flatten)]
        writes: Writes,
    },
    /// Give a spare up
    #[command(after_help = "Example:\n  warpraid spare remove /dev/nvme9n1")]
    Remove {
        /// Path or serial
        drive: String,
        #[command(flatten)]
        writes: Writes,
    },
    /// All spares, and whether each could be used now
    #[command(after_help = "Example:\n  warpraid spare list")]
    List,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FaultArg {
    /// Every command fails as on a removed drive
    Fail,
    /// No answer until cleared
    Hang,
    /// Every command takes longer: --delay-ms, --factor
    Slow,
    /// Reads of a range fail with a medium error until rewritten
    Bad,
    /// One bit of each block of a range reads wrong until rewritten
    Flip,
    /// Writes are acknowledged and not done
    LostWrite,
}

#[derive(Args, Debug)]
pub(crate) struct InjectArgs {
    /// Path, serial, device uuid, or GROUP:SLOT
    pub(crate) drive: String,
    /// What the drive does wrong
    #[arg(value_enum)]
    pub(crate) what: FaultArg,
    /// slow: milliseconds added to each command
    #[arg(long, value_name = "MS")]
    pub(crate) delay_ms: Option<u64>,
    /// slow: times the drive's own time
    #[arg(long, value_name = "N")]
    pub(crate) factor: Option<u32>,
    /// Where on the drive, in whole blocks, e.g. 64M+4K [default: bad and flip: one block of the data, by --seed;
    /// lost-write: all of the data; else everywhere]
    #[arg(long, value_name = "OFFSET+LEN")]
    pub(crate) range: Option<String>,
    /// Only the next N commands that it meets
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Chooses blocks and bits
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// End by itself after this time, e.g. 30s
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) lasts: Option<String>,
    #[command(flatten)]
    pub(crate) writes: Writes,
}

#[derive(Subcommand, Debug)]
pub(crate) enum FaultVerb {
    /// Make a drive do something wrong
    #[command(
        after_help = "Example:\n  warpraid fault inject tank:2 slow --delay-ms 50 --for 2m\n  warpraid fault inject tank:1 bad --seed 7\n  warpraid fault inject tank:0 flip --range 64M+4K --yes"
    )]
    Inject(InjectArgs),
    /// All faults
    #[command(after_help = "Example:\n  warpraid fault list")]
    List,
    /// End faults
    #[command(
        after_help = "Example:\n  warpraid fault clear 3\n  warpraid fault clear tank:2\n  warpraid fault clear --all",
        group = clap::ArgGroup::new("whichever").required(true)
    )]
    Clear {
        /// Number of a fault, or a drive: path, serial, device uuid, or GROUP:SLOT
        #[arg(value_name = "ID|DRIVE", group = "whichever")]
        which: Option<String>,
        /// All faults
        #[arg(long, group = "whichever")]
        all: bool,
        #[command(flatten)]
        writes: Writes,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Shape {
    /// RAID level: 0, 1, 5, 6 or 10
    #[arg(long, short, value_name = "LEVEL")]
    pub(crate) level: String,
    /// Bytes per drive and stripe, a power of two up to 1M; none on RAID 1 [default: 64K]
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk: Option<String>,
    /// Paths or serials, in slot order
    #[arg(required = true, value_name = "DRIVE")]
    pub(crate) drives: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum InitArg {
    /// Compute redundancy in the background, while the group serves
    Sync,
    /// Zero the drives first
    Zero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WaitArg {
    /// No member missing or being rebuilt
    Rebuilt,
    /// No region out of sync
    Synced,
    /// Both
    Healthy,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GroupVerb {
    /// What a group would be: raw, parity, metadata, usable, and the arithmetic; writes nothing
    #[command(after_help = "Example:\n  warpraid group plan --level 6 /dev/nvme{0..7}n1")]
    Plan {
        #[command(flatten)]
        shape: Shape,
    },
    /// Make a group of blank drives: all or nothing
    #[command(
        after_help = "Example:\n  warpraid group create tank --level 6 /dev/nvme{0..7}n1 --dry-run\n  warpraid group create tank --level 6 /dev/nvme{0..7}n1 --yes"
    )]
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        shape: Shape,
        /// How it gets its redundancy
        #[arg(long, value_enum, default_value_t = InitArg::Sync)]
        init: InitArg,
        /// One of the drives, read only where no other copy can be; RAID 1 and 10
        #[arg(long, value_name = "DRIVE")]
        write_mostly: Vec<String>,
        #[command(flatten)]
        writes: Writes,
    },
    /// All groups
    #[command(after_help = "Example:\n  warpraid group list")]
    List,
    /// One group, member by member
    #[command(after_help = "Example:\n  warpraid group show tank")]
    Show {
        /// Name or uuid
        group: String,
    },
    /// Stop a group cleanly
    #[command(after_help = "Example:\n  warpraid group stop tank")]
    Stop {
        /// Name or uuid
        group: String,
        /// Disconnect clients of its disks first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        writes: Writes,
    },
    /// Start a group from what lies on its drives
    #[command(
        after_help = "Example:\n  warpraid group assemble tank\n  warpraid group assemble tank disk0.img disk1.img disk2.img\n  warpraid group assemble --all"
    )]
    Assemble(AssembleArgs),
    /// Delete a group; undelete works until a member is reused
    #[command(
        after_help = "Example:\n  warpraid group delete tank --dry-run\n  warpraid group delete tank --yes --expect-uuid 01234567-89ab-4def-bedc-ba9876543210"
    )]
    Delete {
        /// Name or uuid
        group: String,
        /// The group's uuid, to be sure; without a terminal this is needed
        #[arg(long, value_name = "UUID")]
        expect_uuid: Option<String>,
        /// Disconnect clients of its disks first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        writes: Writes,
    },
    /// Bring a deleted group back
    #[command(after_help = "Example:\n  warpraid group undelete tank")]
    Undelete {
        /// Name or uuid it had
        group: String,
        /// Drives to look at beside the known ones
        #[arg(value_name = "DRIVE")]
        drives: Vec<String>,
        #[command(flatten)]
        writes: Writes,
    },
    /// Take an array of Linux md over in place; its data is not written
    #[command(
        after_help = "Example:\n  mdadm --stop /dev/md0\n  warpraid group adopt --name tank /dev/nvme{0..3}n1 --dry-run\n  warpraid group adopt --name tank /dev/nvme{0..3}n1 --yes"
    )]
    Adopt(AdoptArgs),
    /// Stop a group and give it to Linux md
    #[command(
        after_help = "Example:\n  warpraid group release tank --dry-run\n  warpraid group release tank --yes\n  mdadm --assemble --scan"
    )]
    Release(ReleaseArgs),
    /// Put a new drive in a member's place and rebuild it
    #[command(
        after_help = "Example:\n  warpraid group replace tank --slot 3 /dev/nvme9n1",
        group = clap::ArgGroup::new("old_member").required(true)
    )]
    Replace {
        /// Name or uuid
        group: String,
        /// Slot of the old member
        #[arg(long, value_name = "N", group = "old_member")]
        slot: Option<u8>,
        /// The old member: path, serial, device uuid, or GROUP:SLOT
        #[arg(long, value_name = "DRIVE", group = "old_member")]
        old: Option<String>,
        /// The new drive: path or serial
        new_drive: String,
        /// Drop a member that still serves at once, and rebuild; without this it serves until the new drive is filled
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        writes: Writes,
    },
    /// Compare data and redundancy of the whole group; name what does not fit, and repair what is certain
    #[command(
        after_help = "Example:\n  warpraid group scrub tank --wait\n  warpraid group scrub tank --repair\n  warpraid group scrub tank --show"
    )]
    Scrub(crate::group_scrub::ScrubArgs),
    /// Change settings of a group
    #[command(after_help = "Example:\n  warpraid group set tank --scrub monthly --scrub-window 01:00-05:00")]
    Set(crate::group_set::SetArgs),
    /// Put a dropped member back into its slot; only what changed meanwhile is copied
    #[command(
        after_help = "Example:\n  warpraid group readd tank /dev/nvme3n1 --dry-run\n  warpraid group readd tank /dev/nvme3n1"
    )]
    Readd {
        /// Name or uuid
        group: String,
        /// The old member: path, serial, or GROUP:SLOT
        drive: String,
        /// Its slot, to be sure; the drive knows it
        #[arg(long, value_name = "N")]
        slot: Option<u8>,
        #[command(flatten)]
        writes: Writes,
    },
    /// Wait until a group is in a state
    #[command(after_help = "Example:\n  warpraid group wait tank --for rebuilt --timeout 2h")]
    Wait {
        /// Name or uuid
        group: String,
        /// What for
        #[arg(long = "for", value_enum, default_value_t = WaitArg::Healthy)]
        what: WaitArg,
        /// Longest wait, e.g. 90s, 10m, 2h [default: as long as it takes]
        #[arg(long, value_name = "TIME")]
        timeout: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct AssembleArgs {
    /// Name or uuid; with --all, a drive like the others
    #[arg(required_unless_present = "all")]
    pub(crate) group: Option<String>,
    /// Drives to look at beside the known ones
    #[arg(value_name = "DRIVE")]
    pub(crate) drives: Vec<String>,
    /// Every group found
    #[arg(long)]
    pub(crate) all: bool,
    /// Of a history that was split, go on with the side of this member (uuid, path or serial); the others stay untouched
    #[arg(long, value_name = "MEMBER", conflicts_with = "all")]
    pub(crate) keep: Option<String>,
    /// Start although members are missing, or dirty and degraded: some blocks may be wrong, and the group is marked for ever
    #[arg(long)]
    pub(crate) force: bool,
    /// The group's uuid, to be sure; with --force and without a terminal this is needed
    #[arg(long, value_name = "UUID")]
    pub(crate) expect_uuid: Option<String>,
    #[command(flatten)]
    pub(crate) writes: Writes,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DiskVerb {
    /// Cut a disk from a group
    #[command(after_help = "Example:\n  warpraid disk create tank/home --size 500G")]
    Create {
        /// GROUP/DISK
        disk: String,
        /// Its size, e.g. 500G; rounded up to the full stripe
        #[arg(long, short, value_name = "SIZE")]
        size: String,
        #[command(flatten)]
        writes: Writes,
    },
    /// All disks, or those of one group
    #[command(after_help = "Example:\n  warpraid disk list\n  warpraid disk list tank")]
    List {
        /// Name or uuid
        group: Option<String>,
    },
    /// One disk, how it is reached, and how to make a filesystem on it
    #[command(after_help = "Example:\n  warpraid disk show tank/home")]
    Show {
        /// GROUP/DISK
        disk: String,
    },
    /// Serve a disk
    #[command(
        after_help = "Example:\n  warpraid disk expose tank/home\n  warpraid disk expose tank/home --nbd unix:/run/warpraid/home.sock\n  warpraid disk expose tank/home --nbd tcp:127.0.0.1:10809 --read-only"
    )]
    Expose {
        /// GROUP/DISK
        disk: String,
        /// Over NBD, at this address
        #[arg(long, value_name = "unix:PATH|tcp:ADDR:PORT", conflicts_with = "ublk")]
        nbd: Option<String>,
        /// As a block device of this host, /dev/warpraid/GROUP/DISK: the default
        #[arg(long)]
        ublk: bool,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        writes: Writes,
    },
    /// Stop serving a disk
    #[command(after_help = "Example:\n  warpraid disk unexpose tank/home")]
    Unexpose {
        /// GROUP/DISK
        disk: String,
        /// Only at this address
        #[arg(long, value_name = "unix:PATH|tcp:ADDR:PORT")]
        nbd: Option<String>,
        /// Disconnect clients
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        writes: Writes,
    },
    /// Grow a disk into the free space behind it
    #[command(after_help = "Example:\n  warpraid disk resize tank/home --size 800G")]
    Resize {
        /// GROUP/DISK
        disk: String,
        /// Its new size; disks only grow
        #[arg(long, short, value_name = "SIZE")]
        size: String,
        #[command(flatten)]
        writes: Writes,
    },
    /// Delete a disk and what lies on it
    #[command(
        after_help = "Example:\n  warpraid disk delete tank/home --dry-run\n  warpraid disk delete tank/home --yes --expect-uuid 01234567-89ab-4def-bedc-ba9876543210"
    )]
    Delete {
        /// GROUP/DISK
        disk: String,
        /// The disk's uuid, to be sure; without a terminal this is needed
        #[arg(long, value_name = "UUID")]
        expect_uuid: Option<String>,
        /// Disconnect clients first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        writes: Writes,
    },
}

#[derive(Args, Debug)]
pub(crate) struct UpgradeArgs {
    /// The new program [default: the file the daemon was started from]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// How long to wait until it serves [default: 5m]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Although it is older, connections over NBD end, or a group is offline
    #[arg(long)]
    pub(crate) force: bool,
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ExamineArgs {
    /// Path of the drive
    pub(crate) drive: PathBuf,
    /// For a rule of udev: only whether it is a member of a group of warpraid's, as KEY=VALUE lines; nothing if not
    #[arg(long)]
    pub(crate) udev: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Folder of witnesses and events [default: /var/lib/warpraid, or in XDG_STATE_HOME as a user]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Number of lanes, 1 to 1024 [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) lanes: Option<u16>,
    /// Bound of the buffer memory, e.g. 256M
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Compute parity with this kernel (`bench parity` names them), or with all in turn: cycle [default: for each operation
    /// the fastest, by measurement]
    #[arg(long, value_name = "NAME")]
    pub(crate) parity_kernel: Option<String>,
    /// Longest time a drive may take for one command, e.g. 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) drive_timeout: Option<String>,
    /// A drive to look at beside the block devices of the host (may be repeated)
    #[arg(long = "drive", value_name = "PATH")]
    pub(crate) drives: Vec<PathBuf>,
    /// Allow `fault inject`: drives that fail on purpose, for drills; never on data you need
    #[arg(long)]
    pub(crate) allow_faults: bool,
    /// Failed commands of a member within an hour, made good from redundancy, after which it is dropped if the group can
    /// lose another one after that; 0: never [default: 50]
    #[arg(long, value_name = "N")]
    pub(crate) error_budget: Option<u64>,
    /// How long a member that is missing at start is waited for before a spare takes its place [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) spare_wait: Option<String>,
    /// The same for a member that failed while the daemon watched [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub(crate) spare_wait_failed: Option<String>,
    /// Do not start the groups found on the drives
    #[arg(long)]
    pub(crate) no_assemble: bool,
    /// Serve the read-only API, metrics and a page over HTTP here, e.g. 127.0.0.1:9469 [default: nowhere]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) http: Option<String>,
    /// Let --http be an address that others can reach: anybody there reads the state of all groups
    #[arg(long, requires = "http")]
    pub(crate) http_public: bool,
    /// Folder of executables that get every event [default: /etc/warpraid/hooks.d, or hooks.d in the state folder as a user]
    #[arg(long, value_name = "DIR")]
    pub(crate) hooks_dir: Option<PathBuf>,
    /// Only check these options and print the version; nothing is started
    #[arg(long)]
    pub(crate) check: bool,
    /// How often a problem that still stands is told again, or `never` [default: 12h]
    #[arg(long, value_name = "TIME")]
    pub(crate) remind: Option<String>,
}
