//! Latencies in log-linear buckets: 64 to each power of two, so that a percentile is at most 1/64 too high.
//!
//! Our own and small, because the well-known crate for it has had no release for years. Invariant: every recorded value is
//! in exactly one bucket, and merging two histograms is the same as recording into one.

use raid_core::units::{u64_of, usize_of};

const SUB_BITS: u32 = 6;
const SUBS: u64 = 1 << SUB_BITS;
/// Buckets of all values of a `u64`.
const BUCKETS: usize = 59 * 64;

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, max_ns: 0 }
    }
}

/// The bucket of a value: its power of two, and the six bits below its highest.
fn bucket(ns: u64) -> usize {
    if ns < SUBS {
        return usize_of(ns);
    }
    let shift = 63 - ns.leading_zeros() - SUB_BITS;
    usize_of(u64::from(shift + 1) * SUBS + ((ns >> shift) & (SUBS - 1)))
}

/// The largest value of a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (row, sub) = (u64_of(bucket) / SUBS, u64_of(bucket) % SUBS);
    if row == 0 {
        return sub;
    }
    let shift = row - 1;
    let low = u128::from(SUBS + sub) << shift;
    u64::try_from(low + (1 << shift) - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest value, exactly.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The value that `per_10000` of 10,000 values do not exceed, at most 1/64 too high; 0 of no values.
    #[must_use]
    pub fn percentile_ns(&self, per_10000: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(per_10000)).div_ceil(10_000).max(1);
        let mut seen = 0_u128;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return upper_ns(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_bounds_are_close() {
        let mut value = 1_u64;
        let mut last = 0;
        for bit in 0..64 {
            for near in [value - 1, value, value + value / 3, value + value / 2] {
                let upper = upper_ns(bucket(near));
                assert!(upper >= near, "{near}: {upper}");
                assert!(upper - near <= near / 64, "{near}: {upper}");
            }
            assert!(bucket(value) > last || bit == 0);
            last = bucket(value);
            value = value.wrapping_mul(2).max(1);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(upper_ns(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut histogram = Histogram::default();
        let mut values: Vec<u64> = (0..10_000_u64).map(|i| (i * 7919) % 10_007 * 100).collect();
        for &value in &values {
            histogram.record(value);
        }
        values.sort_unstable();
        for per_10000 in [1, 5000, 9500, 9900, 9990, 10_000] {
            let exact = values[usize_of(per_10000) - 1];
            let got = histogram.percentile_ns(per_10000);
            assert!(got >= exact && got - exact <= exact / 64 + 1, "{per_10000}: {got} for {exact}");
        }
        assert_eq!(histogram.max_ns(), *values.last().unwrap());
        assert_eq!(Histogram::default().percentile_ns(5000), 0);
    }

    #[test]
    fn merging_is_recording_into_one() {
        let (mut a, mut b, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for i in 0..1000 {
            if i % 3 == 0 {
                a.record(i * i)
            } else {
                b.record(i * i)
            }
            both.record(i * i);
        }
        a.merge(&b);
        assert_eq!((a.counts, a.count, a.max_ns), (both.counts, both.count, both.max_ns));
    }
}
