//! How long a drive takes to answer: a histogram of reads and one of writes per lane, summed by whoever looks.
//!
//! Cheap enough for every command: the clock is the lane's, as of its round (no system call), and the lane is the only
//! writer of its counters, so counting is a plain load and store. A command counts from the round it was queued in to the
//! round its completion was reaped in. Buckets are quarters of a power of two, from 1 us up: a median is right to 12 %.

use std::sync::atomic::{AtomicU32, Ordering};

use raid_core::units::usize_of;

/// Quarters of the powers of two from 2^10 to 2^37 ns (137 s), the last one open.
const BUCKETS: usize = 27 * 4;
const FIRST_BIT: u32 = 10;

/// Which commands a histogram is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timed {
    Read,
    Write,
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST_BIT);
    let bit = 63 - ns.leading_zeros();
    let quarter = (ns >> (bit - 2)) & 3;
    usize_of(u64::from(bit - FIRST_BIT) * 4 + quarter).min(BUCKETS - 1)
}

/// Half way through a bucket, in ns.
fn middle_of(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4, bucket % 4);
    let unit = 1_u64 << (octave + 8);
    let quarters = u64::try_from(4 + quarter).unwrap_or(4);
    quarters * unit + unit / 2
}

/// What one lane counts.
pub(crate) struct LaneTimes {
    reads: [AtomicU32; BUCKETS],
    writes: [AtomicU32; BUCKETS],
}

impl Default for LaneTimes {
    fn default() -> Self {
        let none = || std::array::from_fn(|_| AtomicU32::new(0));
        Self { reads: none(), writes: none() }
    }
}

impl LaneTimes {
    /// Counts a command that took `ns`. Only the lane's own thread calls it.
    pub(crate) fn note(&self, timed: Timed, ns: u64) {
        let buckets = if timed == Timed::Read { &self.reads } else { &self.writes };
        let count = &buckets[bucket_of(ns)];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Commands counted by how long they took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram([u32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    fn add(&mut self, lane: &[AtomicU32; BUCKETS]) {
        for (sum, count) in self.0.iter_mut().zip(lane) {
            *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
        }
    }

    /// What was counted after `earlier` was taken of the same drive.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        for (now, then) in new.0.iter_mut().zip(earlier.0) {
            *now = now.wrapping_sub(then);
        }
        new
    }

    /// Commands counted.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.0.iter().map(|&count| u64::from(count)).sum()
    }

    /// The median in ns, right to 12 %; `None` if nothing was counted.
    #[must_use]
    pub fn median_ns(&self) -> Option<u64> {
        let half = self.samples().div_ceil(2);
        let mut seen = 0;
        self.0
            .iter()
            .position(|&count| {
                seen += u64::from(count);
                half > 0 && seen >= half
            })
            .map(middle_of)
    }
}

/// What was counted of a drive since it was opened, over all lanes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Reads that were answered.
    pub reads: Histogram,
    /// Writes that were answered.
    pub writes: Histogram,
}

impl Times {
    pub(crate) fn add(&mut self, lane: &LaneTimes) {
        self.reads.add(&lane.reads);
        self.writes.add(&lane.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_ascend_and_their_middles_lie_in_them() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(middle_of(bucket)), bucket);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
        let mut last = 0;
        for ns in (0..200_000_000).step_by(977) {
            assert!(bucket_of(ns) >= last);
            last = bucket_of(ns);
            let middle = middle_of(last);
            assert!(ns < 1024 || middle.abs_diff(ns) * 8 <= ns + 8, "{ns} {middle}");
        }
    }

    #[test]
    fn medians_are_of_what_was_counted_since() {
        let lane = LaneTimes::default();
        let times = |lane: &LaneTimes| {
            let mut times = Times::default();
            times.add(lane);
            times
        };
        assert_eq!(times(&lane).reads.median_ns(), None);
        (0..10).for_each(|_| lane.note(Timed::Read, 100_000));
        let before = times(&lane);
        (0..5).for_each(|_| lane.note(Timed::Read, 10_000_000));
        lane.note(Timed::Write, 1_000);
        let after = times(&lane);
        let new = after.reads.since(&before.reads);
        assert_eq!((new.samples(), after.reads.samples(), after.writes.samples()), (5, 15, 1));
        assert!(new.median_ns().unwrap().abs_diff(10_000_000) < 1_250_000);
        assert!(after.reads.median_ns().unwrap().abs_diff(100_000) < 12_500);
    }
}
