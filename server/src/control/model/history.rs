//! What was, for charts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::request::HistoryRange;

/// What a series is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    /// Everything the daemon serves.
    Daemon,
    /// A group.
    Group,
    /// A disk.
    Disk,
}

/// Samples of one subject, column by column: entry `n` of each list belongs to the same moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HistorySeriesDoc {
    /// What it is about.
    pub kind: HistoryKind,
    /// The group, unless it is the daemon.
    pub group: Option<String>,
    /// The disk, if it is one.
    pub disk: Option<String>,
    /// End of each sample, by the daemon's clock; oldest first, with gaps where nothing was recorded.
    pub at_unix_s: Vec<u64>,
    /// Bytes read by clients.
    pub read_bytes_per_s: Vec<u64>,
    /// Bytes written by clients.
    pub write_bytes_per_s: Vec<u64>,
    /// Reads.
    pub read_ops_per_s: Vec<u64>,
    /// Writes.
    pub write_ops_per_s: Vec<u64>,
    /// Median latency of reads; null where there was none.
    pub read_p50_ns: Vec<Option<u64>>,
    /// Latency that 99 of 100 reads stayed below.
    pub read_p99_ns: Vec<Option<u64>>,
    /// Median latency of writes.
    pub write_p50_ns: Vec<Option<u64>>,
    /// Latency that 99 of 100 writes stayed below.
    pub write_p99_ns: Vec<Option<u64>>,
    /// Bytes cut into disks.
    pub used_bytes: Vec<u64>,
    /// Data bytes in all.
    pub capacity_bytes: Vec<u64>,
}

/// Throughput, operations, latency and capacity over time, kept in memory since the daemon started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HistoryDoc {
    /// How far back.
    pub range: HistoryRange,
    /// Seconds a sample covers.
    pub period_s: u32,
    /// Most samples kept of this range.
    pub samples_max: u32,
    /// The daemon's clock now.
    pub now_unix_s: u64,
    /// Most bytes all samples of all ranges and subjects can take.
    pub memory_bytes_max: u64,
    /// Disks and groups that are not recorded because there are too many.
    pub left_out: u64,
    /// The subject asked for: one series.
    pub series: Vec<HistorySeriesDoc>,
}
