//! Counters of I/O, cheap enough to be always on.
//!
//! A meter has one writer, its lane; anybody may read it. So counting is a relaxed load and a relaxed store, no locked
//! instruction, and a reader may see an operation in one counter and not yet in another. Times come from the clock of the
//! lane's round, which the loop reads anyway: no clock is read for a meter.

use std::sync::atomic::{AtomicU64, Ordering};

use raid_core::units::u64_of;

/// Buckets of latency: bucket `i` counts operations of up to [`bucket_ns`]`(i)`, the last one all that took longer.
pub const BUCKETS: usize = 22;

/// Upper end of the first bucket is 2 to this, in nanoseconds: 8 us.
const FIRST_BUCKET_LOG2: u32 = 13;

/// Upper end of a bucket in nanoseconds, 8192 ns and doubling; `None` for the last one.
#[must_use]
pub fn bucket_ns(bucket: usize) -> Option<u64> {
    let log2 = u32::try_from(bucket).ok()? + FIRST_BUCKET_LOG2;
    (bucket + 1 < BUCKETS).then_some(1 << log2)
}

/// The bucket of an operation that took this long.
fn bucket_of(ns: u64) -> usize {
    let above = ns.saturating_sub(1) >> FIRST_BUCKET_LOG2;
    let bits = usize::try_from(u64::BITS - above.leading_zeros()).unwrap_or(BUCKETS);
    bits.min(BUCKETS - 1)
}

/// Counters of one kind of operation on one lane.
#[derive(Default, Debug)]
pub struct Meter {
    bytes: AtomicU64,
    errors: AtomicU64,
    time_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The only writer's way to add.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Meter {
    /// Counts an operation. Only the meter's lane may call this.
    pub fn record(&self, ns: u64, bytes: u64, is_ok: bool) {
        add(&self.buckets[bucket_of(ns)], 1);
        add(&self.time_ns, ns);
        if is_ok {
            add(&self.bytes, bytes);
        } else {
            add(&self.errors, 1);
        }
    }
}

/// Sums of meters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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
}

impl Metered {
    /// Adds what a meter counted.
    pub fn add(&mut self, meter: &Meter) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.bytes = self.bytes.wrapping_add(load(&meter.bytes));
        self.errors = self.errors.wrapping_add(load(&meter.errors));
        self.time_ns = self.time_ns.wrapping_add(load(&meter.time_ns));
        for (sum, bucket) in self.buckets.iter_mut().zip(&meter.buckets) {
            let n = load(bucket);
            *sum += n;
            self.operations += n;
        }
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
            let bucket = bucket_of(ns);
            assert!(bucket_ns(bucket).is_none_or(|end| ns <= end), "{ns} in {bucket}");
            assert!(bucket == 0 || bucket_ns(bucket - 1).is_some_and(|end| ns > end), "{ns} in {bucket}");
        }
        assert_eq!((bucket_ns(0), bucket_ns(BUCKETS - 1)), (Some(8192), None));
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
