//! Operations and bytes over time, in slices of equal length.
//!
//! Bounded: when there would be more than [`SLICES_MAX`] slices, two at a time become one and the length doubles.

use raid_core::units::{u64_of, usize_of};

/// Length of a slice at first, nanoseconds.
pub const SLICE_NS: u64 = 100_000_000;
/// Most slices.
pub const SLICES_MAX: usize = 2048;

/// What was done in one slice.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Slice {
    /// Operations that ended in it.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Slice {
    fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
    }
}

/// Slices from the start of the measured time on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    slice_ns: u64,
    slices: Vec<Slice>,
}

impl Default for Series {
    fn default() -> Self {
        Self { slice_ns: SLICE_NS, slices: Vec::new() }
    }
}

impl Series {
    /// Counts one operation that ended `at_ns` after the start.
    pub fn record(&mut self, at_ns: u64, bytes: u64) {
        while at_ns / self.slice_ns >= u64_of(SLICES_MAX) {
            self.coarsen();
        }
        let index = usize_of(at_ns / self.slice_ns);
        if self.slices.len() <= index {
            self.slices.resize(index + 1, Slice::default());
        }
        self.slices[index].add(Slice { ops: 1, bytes });
    }

    fn coarsen(&mut self) {
        self.slice_ns *= 2;
        self.slices = self
            .slices
            .chunks(2)
            .map(|pair| {
                let mut both = Slice::default();
                pair.iter().for_each(|slice| both.add(*slice));
                both
            })
            .collect();
    }

    /// Adds another series of the same start.
    pub fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.slice_ns < other.slice_ns {
            self.coarsen();
        }
        while other.slice_ns < self.slice_ns {
            other.coarsen();
        }
        if self.slices.len() < other.slices.len() {
            self.slices.resize(other.slices.len(), Slice::default());
        }
        for (own, more) in self.slices.iter_mut().zip(other.slices) {
            own.add(more);
        }
    }

    /// Moves everything to a later time, in whole slices.
    pub fn shift(&mut self, by_ns: u64) {
        let by = usize::try_from(by_ns / self.slice_ns).unwrap_or(usize::MAX).min(SLICES_MAX);
        self.slices.splice(0..0, std::iter::repeat_n(Slice::default(), by));
        while self.slices.len() > SLICES_MAX {
            self.coarsen();
        }
    }

    /// Length of a slice, nanoseconds.
    #[must_use]
    pub fn slice_ns(&self) -> u64 {
        self.slice_ns
    }

    /// The slices that lie wholly in the first `elapsed_ns`: the last one of a run is usually cut short.
    #[must_use]
    pub fn whole(&self, elapsed_ns: u64) -> &[Slice] {
        let whole = usize::try_from(elapsed_ns / self.slice_ns).unwrap_or(usize::MAX);
        &self.slices[..whole.min(self.slices.len())]
    }

    /// At most `count` points for a chart: neighbours are put together. Gives the length of one, too.
    #[must_use]
    pub fn at_most(&self, count: usize) -> (u64, Vec<Slice>) {
        let mut series = self.clone();
        while series.slices.len() > count.max(1) {
            series.coarsen();
        }
        (series.slice_ns, series.slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_slices_are_put_together() {
        let mut series = Series::default();
        for i in 0..5000 {
            series.record(i * SLICE_NS, 10);
        }
        assert!(series.slices.len() <= SLICES_MAX && series.slice_ns == 4 * SLICE_NS);
        let total = |slices: &[Slice]| slices.iter().map(|slice| slice.ops).sum::<u64>();
        assert_eq!(total(&series.slices), 5000);
        let mut young = Series::default();
        young.record(0, 1);
        young.merge(&series);
        assert_eq!(total(&young.slices), 5001);
        let (slice_ns, points) = young.at_most(60);
        assert!(points.len() <= 60 && slice_ns > SLICE_NS && total(&points) == 5001);
    }

    #[test]
    fn a_slice_cut_short_is_no_sample() {
        let mut series = Series::default();
        series.record(0, 1);
        series.record(SLICE_NS + 1, 1);
        assert_eq!(series.whole(SLICE_NS + SLICE_NS / 2).len(), 1);
        assert_eq!(series.whole(10 * SLICE_NS).len(), 2);
        assert_eq!(series.whole(SLICE_NS / 2).len(), 0);
    }
}
