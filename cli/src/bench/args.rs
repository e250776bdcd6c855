//! The command line of `warpraid bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::Writes;

/// What is measured.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchVerb {
    /// Raw drives, all at once, and which of them is not like the others
    ///
    /// Without options the drives are read, which is allowed on any drive, also on members of running groups. Writing takes
    /// --write and --yes, destroys what lies there, and is refused on a drive that is mounted, held, a member of a group, or
    /// carries anything warpraid recognises. What a run writes it reads back and compares.
    #[command(
        after_help = "Example:\n  warpraid bench drives /dev/nvme{0..7}n1\n  warpraid bench drives /dev/nvme{0..7}n1 --write --size 4G --threads 16 --yes --html drives.html"
    )]
    Drives(DrivesArgs),
    /// A group of its own: whole, with one and two members lost, and being rebuilt
    ///
    /// The group lives in this process and is gone at the end; no running group is touched. Its members are drives in memory
    /// (--ram) or blank drives, which are written over. Every condition is verified, at the end every stripe is.
    #[command(
        after_help = "Example:\n  warpraid bench group --level 6 --ram 8x256M\n  warpraid bench group --level 5 /dev/nvme{0..4}n1 --time 20s --yes"
    )]
    Group(GroupArgs),
    /// A disk of a running daemon, any NBD export, or a path: a folder, a file or a block device
    ///
    /// A folder gets a file for each thread, which are removed at the end; it is measured writing and reading. Everything else
    /// is read unless --write is given; writing destroys what lies there and is refused where something is recognised.
    #[command(
        after_help = "Example:\n  warpraid bench disk tank/home\n  warpraid bench disk /mnt/beegfs --preset ior --threads 8 --size 1G\n  warpraid bench disk 'nbd+unix:///tank/home?socket=/run/warpraid/home.sock' --write --yes"
    )]
    Disk(DiskArgs),
    /// Parity on this CPU: every kernel, operation, number of data drives and length
    #[command(
        after_help = "Example:\n  warpraid bench parity\n  warpraid bench parity --only pq.avx2 --data-drives 8,10"
    )]
    Parity(ParityArgs),
    /// Two records side by side, and which differences are more than noise
    #[command(after_help = "Example:\n  warpraid bench compare before.json after.json")]
    Compare(CompareArgs),
}

/// Loads that storage people know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Preset {
    /// BeeGFS StorageBench: 512K sequential, 16 threads a target, one transfer each at a time
    Storagebench,
    /// IOR: 1M sequential, 8 threads
    Ior,
    /// IOzone: initial write, rewrite, read, re-read, random read, random write, with records of 4K, 64K and 1M
    Iozone,
    /// Graid's set for fio: 4K random and 1M sequential, queue depth 64, 60 s each after a ramp of 10 s
    Graid,
}

/// What is moved, and how.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// A known load; single options change it
    #[arg(long, value_enum)]
    pub(crate) preset: Option<Preset>,
    /// Measure reading
    #[arg(long)]
    pub(crate) read: bool,
    /// Measure writing
    #[arg(long)]
    pub(crate) write: bool,
    /// At random places instead of in order
    #[arg(long)]
    pub(crate) random: bool,
    /// Bytes of a transfer, e.g. 4K, 512K, 1M
    #[arg(long, value_name = "SIZE")]
    pub(crate) block_size: Option<String>,
    /// Transfers in flight for each thread, 1 to 1024
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) queue_depth: Option<u32>,
    /// Threads on each target, each with a region of its own, 1 to 256
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// Bytes each thread moves, e.g. 1G [default: 256M, at most its share of the target]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Go on for so long, e.g. 30s, instead of moving every region once
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Not measured at the beginning of each --time, e.g. 5s
    #[arg(long, value_name = "TIME", requires = "time")]
    pub(crate) ramp: Option<String>,
    /// Lanes (threads with a ring each) of the load generator [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) lanes: Option<u32>,
    /// Do not compare what comes back with what was written
    #[arg(long)]
    pub(crate) no_verify: bool,
}

/// Where results go beside stdout.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Write the record (JSON) to this file, for `bench compare`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Write a report with charts (one HTML file) to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Arguments of `bench drives`.
#[derive(Args, Debug)]
pub(crate) struct DrivesArgs {
    /// Block devices or files
    #[arg(required = true, value_name = "DRIVE")]
    pub(crate) drives: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) writes: Writes,
}

/// Arguments of `bench group`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("made_of").required(true))]
pub(crate) struct GroupArgs {
    /// Blank drives to make it of, in slot order; they are written over
    #[arg(value_name = "DRIVE", group = "made_of")]
    pub(crate) drives: Vec<PathBuf>,
    /// Drives in memory: how many and how large, e.g. 8x256M
    #[arg(long, value_name = "COUNTxSIZE", group = "made_of")]
    pub(crate) ram: Option<String>,
    /// RAID level: 0, 1, 5, 6 or 10
    #[arg(long, short, value_name = "LEVEL")]
    pub(crate) level: String,
    /// Bytes per drive and stripe [default: 64K]
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk: Option<String>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) writes: Writes,
}

/// Arguments of `bench disk`.
#[derive(Args, Debug)]
pub(crate) struct DiskArgs {
    /// GROUP/DISK, an NBD URI, or a path
    #[arg(value_name = "DISK|URI|PATH")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) writes: Writes,
}

/// Arguments of `bench parity`.
#[derive(Args, Debug)]
pub(crate) struct ParityArgs {
    /// Numbers of data drives, 1 to 250
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [4, 8, 16, 22], value_parser = clap::value_parser!(u32).range(1..=250))]
    pub(crate) data_drives: Vec<u32>,
    /// Bytes of a column
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_values_t = ["4K".to_owned(), "64K".to_owned()])]
    pub(crate) lengths: Vec<String>,
    /// Only the cells whose id contains this, e.g. pq.avx2
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) only: String,
    /// Compare with other people's code, cell by cell, instead of kernel with kernel: Intel's ISA-L, which must be installed
    #[arg(long, value_name = "PEER", value_parser = clap::builder::PossibleValuesParser::new(["isal"]), conflicts_with_all = ["data_drives", "lengths"])]
    pub(crate) against: Option<String>,
    /// Samples of each cell, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) samples: u16,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Arguments of `bench compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// The record of before
    pub(crate) a: PathBuf,
    /// The record of after
    pub(crate) b: PathBuf,
}
