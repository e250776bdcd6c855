//! What a case of `warpraid bench` tells beside its samples: targets, latencies, rates over time, who is odd.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::floors::{Floors, Unit};
use crate::load::hist::Histogram;
use crate::load::{Meter, Op, PassResult, Pattern, Target};
use crate::outlier::{self, Judgement};
use crate::record::Case;
use crate::stats::f64_of;

/// Most points of a chart over time.
const POINTS_MAX: usize = 120;
/// A run with fewer whole slices than this is one sample.
const SLICES_MIN: usize = 3;

/// Latencies, nanoseconds; percentiles are at most 1/64 too high.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Half of the transfers took no longer.
    pub p50_ns: u64,
    /// 95 % took no longer.
    pub p95_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    fn of(histogram: &Histogram) -> Self {
        Self {
            p50_ns: histogram.percentile_ns(5000),
            p95_ns: histogram.percentile_ns(9500),
            p99_ns: histogram.percentile_ns(9900),
            p999_ns: histogram.percentile_ns(9990),
            max_ns: histogram.max_ns(),
        }
    }

    /// Names and values, in order.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("p50", self.p50_ns),
            ("p95", self.p95_ns),
            ("p99", self.p99_ns),
            ("p99.9", self.p999_ns),
            ("max", self.max_ns),
        ]
    }
}

/// Whose words a case is told in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// BeeGFS StorageBench: targets, least, most, average, aggregate.
    Storagebench,
    /// IOR: one line in MiB and MB.
    Ior,
    /// IOzone: what its children see.
    Iozone,
    /// fio: bandwidth and IOPS.
    Fio,
}

/// One target of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TargetRecord {
    /// Its path or address.
    pub name: String,
    /// Its serial, where it has one.
    pub serial: Option<String>,
    /// Its NUMA node, where it has one.
    pub numa_node: Option<u32>,
    /// Whether transfers went past the page cache; null where there is none.
    pub direct: Option<bool>,
    /// Transfers.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the beginning to the end of its last transfer, nanoseconds.
    pub elapsed_ns: u64,
    /// Bytes per second over that time.
    pub throughput_bytes_per_s: f64,
    /// How long its transfers took.
    pub latency: Latency,
    /// How long the flush after the writes took, nanoseconds. Part of the time where writes are buffered, else not.
    pub flush_ns: u64,
    /// Transfers that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
    /// Transfers that brought what was not written.
    pub wrong: u64,
    /// Offset of the first wrong block.
    pub first_wrong_at_bytes: Option<u64>,
}

impl TargetRecord {
    /// Whether something failed or came back wrong.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.errors > 0 || self.wrong > 0
    }
}

/// What a case tells beside its samples.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Detail {
    /// What was done, for people.
    pub what: String,
    /// Whose words it is told in.
    pub form: Form,
    /// The test's name there, such as `initial writers`.
    pub test: String,
    /// Which way: `read` or `write`.
    pub op: String,
    /// `sequential` or `random`.
    pub pattern: String,
    /// Bytes of a transfer.
    pub block_bytes: u32,
    /// Threads on each target.
    pub threads: u32,
    /// Transfers in flight for each thread.
    pub queue_depth: u32,
    /// Transfers of all targets.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the beginning to the end of the last transfer, nanoseconds.
    pub elapsed_ns: u64,
    /// Sum of the targets' throughputs, bytes per second.
    pub aggregate_bytes_per_s: f64,
    /// Transfers per second.
    pub iops: f64,
    /// Latencies over all targets.
    pub latency: Latency,
    /// Length of one entry of `ops_over_time`, nanoseconds.
    pub slice_ns: u64,
    /// Transfers that ended in each slice of time.
    pub ops_over_time: Vec<u64>,
    /// Every target.
    pub targets: Vec<TargetRecord>,
    /// Who is odd.
    pub judgement: Judgement,
    /// What was compared with what had been written.
    pub verification: String,
    /// Whether it was stopped before its end.
    pub incomplete: bool,
}

/// How a case was run.
#[derive(Clone)]
pub struct Run<'a> {
    /// Id of the case.
    pub id: String,
    /// What was done, for people.
    pub what: String,
    /// Whose words it is told in.
    pub form: Form,
    /// The test's name there.
    pub test: String,
    /// Which way.
    pub op: Op,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes of a transfer.
    pub block_bytes: u32,
    /// Threads on each target.
    pub threads: u32,
    /// Transfers in flight for each thread.
    pub queue_depth: u32,
    /// What was measured.
    pub targets: &'a [Target],
    /// What was compared, in words.
    pub verification: String,
    /// Whether all that was moved was also compared, and right.
    pub verified: bool,
}

fn rate(bytes: u64, elapsed_ns: u64) -> f64 {
    if elapsed_ns == 0 { 0.0 } else { f64_of(bytes) * 1e9 / f64_of(elapsed_ns) }
}

fn target_record(target: &Target, meter: &Meter) -> TargetRecord {
    let (mut serial, mut numa_node, mut direct) = (None, None, None);
    if let Target::Drive(drive) = target {
        let identity = drive.identity();
        (serial, numa_node) = (identity.serial.clone(), identity.numa_node);
        direct = (!drive.path().as_os_str().is_empty()).then(|| drive.is_direct());
    }
    // What is still in the page cache was not written yet.
    let flushed_ns = if direct == Some(false) { meter.flush_ns } else { 0 };
    let elapsed_ns = meter.elapsed_ns() + flushed_ns;
    TargetRecord {
        name: target.name(),
        serial,
        numa_node,
        direct,
        ops: meter.ops,
        bytes: meter.bytes,
        elapsed_ns,
        throughput_bytes_per_s: rate(meter.bytes, elapsed_ns),
        latency: Latency::of(&meter.latency),
        flush_ns: meter.flush_ns,
        errors: meter.errors,
        first_error: meter.first_error.clone(),
        wrong: meter.wrong,
        first_wrong_at_bytes: meter.first_wrong,
    }
}

/// The case a pass makes. Its samples are the aggregate throughputs of the slices of time that all targets were busy in;
/// a short run is one sample.
#[must_use]
pub fn case(run: &Run<'_>, result: &PassResult) -> Case {
    let total = result.total();
    let targets: Vec<TargetRecord> = run
        .targets
        .iter()
        .zip(&result.targets)
        .map(|(target, result)| target_record(target, &result.meter))
        .collect();
    let aggregate: f64 = targets.iter().map(|target| target.throughput_bytes_per_s).sum();
    let busy_ns = result.targets.iter().map(|target| target.meter.elapsed_ns()).min().unwrap_or(0);
    let slices = total.series.whole(busy_ns);
    let slice_ns = total.series.slice_ns();
    let samples: Vec<f64> = match slices.len() {
        0..SLICES_MIN => vec![aggregate],
        _ => slices.iter().map(|slice| rate(slice.bytes, slice_ns)).collect(),
    };
    let (slice_ns, points) = total.series.at_most(POINTS_MAX);
    let list: Vec<(String, Option<String>, f64)> = targets
        .iter()
        .map(|target| (target.name.clone(), target.serial.clone(), target.throughput_bytes_per_s))
        .collect();
    let detail = Detail {
        what: run.what.clone(),
        form: run.form,
        test: run.test.clone(),
        op: run.op.name().to_owned(),
        pattern: run.pattern.name().to_owned(),
        block_bytes: run.block_bytes,
        threads: run.threads,
        queue_depth: run.queue_depth,
        ops: total.ops,
        bytes: total.bytes,
        elapsed_ns: total.elapsed_ns(),
        aggregate_bytes_per_s: aggregate,
        iops: rate(total.ops, total.elapsed_ns()),
        latency: Latency::of(&total.latency),
        slice_ns,
        ops_over_time: points.iter().map(|slice| slice.ops).collect(),
        judgement: outlier::judge(&list),
        targets,
        verification: run.verification.clone(),
        incomplete: result.incomplete,
    };
    let mut case = Case::measured(&run.id, Unit::BytesPerS, samples, &Floors::built_in()).with_load(
        result.lanes,
        run.queue_depth,
        run.verified,
    );
    case.detail = Some(detail);
    case
}
