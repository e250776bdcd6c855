//! Counters of I/O, cheap enough to be always on.
//!
//! A meter has one writer, its lane; anybody may read it. So counting is a relaxed load and a relaxed store, no locked
//! instruction, and a reader may see an operation in one counter and not yet in another. Times come from the clock of the
//! lane's round, which the loop reads anyway: no clock is read for a meter.

use std::sync::atomic::{AtomicU64, Ordering};

use raid_core::units::{u64_of, usize_of, usize_of_u32};

/// Buckets of latency: bucket `i` counts operations of up to [`bucket_ns`]`(i)`, the last one all that took longer.
pub const BUCKETS: usize = 22;

/// Upper end of the first bucket is 2 to this, in nanoseconds: 8 us.
const FIRST_BUCKET_LOG2: u32 = 13;

/// What is counted in: quarters of the powers of two from 2^10 to 2^37 ns (137 s), the last one open. A median is right
/// to 12 %, and whole powers of two are left for who wants [`BUCKETS`].
const QUARTERS: usize = 27 * 4;
const FIRST_QUARTER_LOG2: u32 = 10;

/// Upper end of a bucket in nanoseconds, 8192 ns and doubling; `None` for the last one.
#[must_use]
pub fn bucket_ns(bucket: usize) -> Option<u64> {
    let log2 = u32::try_from(bucket).ok()? + FIRST_BUCKET_LOG2;
    (bucket + 1 < BUCKETS).then_some(1 << log2)
}

/// The quarter of an operation that took this long; its upper end belongs to it.
fn quarter_of(ns: u64) -> usize {
    let ns = ns.saturating_sub(1).max(1 << FIRST_QUARTER_LOG2);
    let log2 = ns.ilog2();
    let quarter = (ns >> (log2 - 2)) & 3;
    usize_of(u64::from(log2 - FIRST_QUARTER_LOG2) * 4 + quarter).min(QUARTERS - 1)
}

/// Half way through a quarter, in nanoseconds.
fn middle_ns(quarter: usize) -> u64 {
    let unit = 1_u64 << (quarter / 4 + 8);
    u64_of(4 + quarter % 4) * unit + unit / 2
}

/// The bucket a quarter is a part of.
fn bucket_of(quarter: usize) -> usize {
    let octave = quarter / 4;
    (octave + 1).saturating_sub(usize_of_u32(FIRST_BUCKET_LOG2 - FIRST_QUARTER_LOG2)).min(BUCKETS - 1)
}

/// Counters of one kind of operation on one lane.
#[derive(Debug)]
pub struct Meter {
    bytes: AtomicU64,
    errors: AtomicU64,
    time_ns: AtomicU64,
    quarters: [AtomicU64; QUARTERS],
}

impl Default for Meter {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        Self { bytes: none(), errors: none(), time_ns: none(), quarters: core::array::from_fn(|_| none()) }
    }
}

/// The only writer's way to add.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Meter {
    /// Counts an operation. Only the meter's lane may call this.
    pub fn record(&self, ns: u64, bytes: u64, is_ok: bool) {
        add(&self.quarters[quarter_of(ns)], 1);
        add(&self.time_ns, ns);
        if is_ok {
            add(&self.bytes, bytes);
        } else {
            add(&self.errors, 1);
        }
    }
}

/// Sums of meters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metered {
    /// Operations that ended, failed ones too.
    pub operations: u64,
    /// Bytes of those that worked.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time all of them took together, in nanoseconds.
    pub time_ns: u64,
    /// Operations by latency, see [`bucket_ns`]; each counted in its own bucket only.
    pub buckets: [u64; BUCKETS],
    quarters: [u64; QUARTERS],
}

impl Default for Metered {
    fn default() -> Self {
        Self {
            operations: 0,
            bytes: 0,
            errors: 0,
            time_ns: 0,
            buckets: [0; BUCKETS],
            quarters: [0; QUARTERS],
        }
    }
}

impl Metered {
    /// Adds what a meter counted.
    pub fn add(&mut self, meter: &Meter) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.bytes = self.bytes.wrapping_add(load(&meter.bytes));
        self.errors = self.errors.wrapping_add(load(&meter.errors));
        self.time_ns = self.time_ns.wrapping_add(load(&meter.time_ns));
        for (quarter, (sum, counter)) in self.quarters.iter_mut().zip(&meter.quarters).enumerate() {
            let n = load(counter);
            *sum += n;
            self.buckets[bucket_of(quarter)] += n;
            self.operations += n;
        }
    }

    /// How many operations ended since `earlier` was summed of the same meters, and the median of what they took in
    /// nanoseconds, right to 12 %; `None` if there were none.
    #[must_use]
    pub fn median_since(&self, earlier: &Self) -> Option<(u64, u64)> {
        let new: Vec<u64> =
            self.quarters.iter().zip(&earlier.quarters).map(|(now, then)| now.wrapping_sub(*then)).collect();
        let operations: u64 = new.iter().sum();
        let mut seen = 0;
        let middle = new.iter().position(|&n| {
            seen += n;
            operations > 0 && seen >= operations.div_ceil(2)
        })?;
        Some((operations, middle_ns(middle)))
    }
}

/// Kinds of operations that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Write-zeroes and discards.
    Zero,
    /// Flushes.
    Flush,
}

impl IoOp {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Zero, Self::Flush];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zero => "zero",
            Self::Flush => "flush",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Zero => 2,
            Self::Flush => 3,
        }
    }
}

/// A meter for each kind of operation, of one lane.
#[derive(Default, Debug)]
pub struct LaneMeters([Meter; 4]);

impl LaneMeters {
    /// The meter of a kind of operation.
    #[must_use]
    pub fn of(&self, op: IoOp) -> &Meter {
        &self.0[op.index()]
    }
}

/// Sums of the meters of several lanes.
#[must_use]
pub fn sum<'a>(lanes: impl Iterator<Item = &'a LaneMeters>, op: IoOp) -> Metered {
    let mut sum = Metered::default();
    lanes.for_each(|lane| sum.add(lane.of(op)));
    debug_assert_eq!(sum.operations, sum.buckets.iter().sum::<u64>(), "{} buckets", u64_of(BUCKETS));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_the_bucket_that_says_so() {
        for ns in (0..64).flat_map(|log2| [(1u64 << log2) - 1, 1 << log2, (1 << log2) + 1]).chain([u64::MAX])
        {
            let bucket = bucket_of(quarter_of(ns));
            assert!(bucket_ns(bucket).is_none_or(|end| ns <= end), "{ns} in {bucket}");
            assert!(bucket == 0 || bucket_ns(bucket - 1).is_some_and(|end| ns > end), "{ns} in {bucket}");
        }
        assert_eq!((bucket_ns(0), bucket_ns(BUCKETS - 1)), (Some(8192), None));
    }

    #[test]
    fn quarters_ascend_and_their_middles_lie_in_them() {
        for quarter in 0..QUARTERS {
            assert_eq!(quarter_of(middle_ns(quarter)), quarter);
        }
        assert_eq!((quarter_of(0), quarter_of(u64::MAX)), (0, QUARTERS - 1));
        let mut last = 0;
        for ns in (0..200_000_000).step_by(977) {
            assert!(quarter_of(ns) >= last);
            last = quarter_of(ns);
            assert!(ns <= 1024 || middle_ns(last).abs_diff(ns) * 8 <= ns + 8, "{ns} {}", middle_ns(last));
        }
    }

    #[test]
    fn a_median_is_of_what_came_since() {
        let lane = LaneMeters::default();
        let read = || sum([&lane].into_iter(), IoOp::Read);
        assert_eq!(read().median_since(&read()), None);
        (0..100).for_each(|_| lane.of(IoOp::Read).record(1_000_000, 1, true));
        let before = read();
        for ns in [50_000, 60_000, 70_000] {
            lane.of(IoOp::Read).record(ns, 1, true);
        }
        let (operations, ns) = read().median_since(&before).unwrap();
        assert!(operations == 3 && ns.abs_diff(60_000) * 8 <= 60_000, "{operations} {ns}");
        assert_eq!(read().median_since(&read()), None);
    }

    #[test]
    fn lanes_are_summed_and_failures_carry_no_bytes() {
        let lanes = [LaneMeters::default(), LaneMeters::default()];
        lanes[0].of(IoOp::Read).record(10_000, 4096, true);
        lanes[1].of(IoOp::Read).record(5_000, 4096, false);
        lanes[1].of(IoOp::Write).record(1, 512, true);
        let read = sum(lanes.iter(), IoOp::Read);
        assert_eq!((read.operations, read.bytes, read.errors, read.time_ns), (2, 4096, 1, 15_000));
        assert_eq!((read.buckets[0], read.buckets[1]), (1, 1));
        assert_eq!(sum(lanes.iter(), IoOp::Flush), Metered::default());
    }
}
