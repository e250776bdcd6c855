//! What one thread of a pass measures, and the sum over several.

use raid_core::ports::{IoError, IoKind};

use super::hist::Histogram;
use super::series::Series;

/// A thread gives up its region after so many failed transfers.
const ERRORS_MAX: u64 = 16;
/// Progress is published after so many bytes.
const PUBLISH_BYTES: u64 = 4 << 20;

/// Counts of a pass. Times are of the monotonic clock, nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// When measuring began: after the ramp.
    pub from_ns: u64,
    /// When the last measured transfer ended.
    pub to_ns: u64,
    /// Measured transfers.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies.
    pub latency: Histogram,
    /// When they ended.
    pub series: Series,
    /// Transfers that failed.
    pub errors: u64,
    /// The first of them, for people.
    pub first_error: Option<String>,
    /// Transfers that brought what was not written.
    pub wrong: u64,
    /// Where the first wrong byte was found on the target.
    pub first_wrong: Option<u64>,
    /// Transfers that were compared.
    pub checked: u64,
    /// How long the flush at the end took.
    pub flush_ns: u64,
    unpublished_bytes: u64,
    gave_up: bool,
}

impl Meter {
    pub(super) fn new(from_ns: u64) -> Self {
        Self { from_ns, to_ns: from_ns, ..Self::default() }
    }

    /// Counts a transfer that worked. Gives bytes to publish as progress, now and then.
    pub(super) fn done(&mut self, began_ns: u64, ended_ns: u64, bytes: u64) -> Option<u64> {
        if began_ns >= self.from_ns {
            self.ops += 1;
            self.bytes += bytes;
            self.latency.record(ended_ns - began_ns);
            self.series.record(ended_ns - self.from_ns, bytes);
            self.to_ns = self.to_ns.max(ended_ns);
        }
        self.unpublished_bytes += bytes;
        (self.unpublished_bytes >= PUBLISH_BYTES).then(|| core::mem::take(&mut self.unpublished_bytes))
    }

    /// Counts a transfer that failed; `is_fatal` if there is no use in trying others.
    pub(super) fn failed(&mut self, what: String, is_fatal: bool) {
        self.errors += 1;
        self.first_error.get_or_insert(what);
        self.gave_up |= is_fatal || self.errors >= ERRORS_MAX;
    }

    /// Counts a comparison.
    pub(super) fn compared(&mut self, wrong_at: Option<u64>) {
        self.checked += 1;
        if let Some(at) = wrong_at {
            self.wrong += 1;
            self.first_wrong = Some(self.first_wrong.map_or(at, |first| first.min(at)));
        }
    }

    /// Whether the thread shall not go on.
    pub(super) fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// What is left to publish.
    pub(super) fn rest_bytes(&mut self) -> u64 {
        core::mem::take(&mut self.unpublished_bytes)
    }

    /// Adds a meter of another thread of the same pass.
    pub fn merge(&mut self, other: &Self) {
        let is_first = self.ops == 0 && self.from_ns == 0;
        self.from_ns = if is_first { other.from_ns } else { self.from_ns.min(other.from_ns) };
        self.to_ns = self.to_ns.max(other.to_ns);
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
        self.series.merge(&other.series);
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.into_iter().chain(other.first_wrong).min();
        self.checked += other.checked;
        self.flush_ns = self.flush_ns.max(other.flush_ns);
        self.gave_up |= other.gave_up;
    }

    /// Takes over what another pass found wrong, and nothing of its times.
    pub fn blame(&mut self, other: &Self) {
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.into_iter().chain(other.first_wrong).min();
    }

    /// Adds a meter of a later pass as if it had begun where this one ended.
    pub fn append(&mut self, other: &Self) {
        let before_ns = self.elapsed_ns();
        let mut later = other.clone();
        later.series.shift(before_ns);
        later.from_ns = self.from_ns;
        later.to_ns = self.from_ns + before_ns + other.elapsed_ns();
        self.merge(&later);
    }

    /// From the beginning to the end of the last transfer, nanoseconds.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

/// Whether more commands to a drive that answered so are of no use.
pub(super) fn is_fatal(error: &IoError) -> bool {
    error.kind.drops_member_on_read() || matches!(error.kind, IoKind::Invalid | IoKind::ShuttingDown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_is_not_measured() {
        let mut meter = Meter::new(1000);
        assert_eq!(meter.done(900, 1100, 512), None);
        assert_eq!((meter.ops, meter.elapsed_ns()), (0, 0));
        meter.done(1000, 1500, 512);
        assert_eq!((meter.ops, meter.bytes, meter.elapsed_ns(), meter.latency.max_ns()), (1, 512, 500, 500));
        assert_eq!(meter.done(1000, 1500, PUBLISH_BYTES), Some(PUBLISH_BYTES + 1024));
    }

    #[test]
    fn a_thread_gives_up_at_once_or_after_many_errors() {
        let mut meter = Meter::new(0);
        for _ in 0..ERRORS_MAX {
            assert!(!meter.gave_up());
            meter.failed("a".into(), false);
        }
        assert!(meter.gave_up());
        let mut sum = Meter::default();
        let mut gone = Meter::new(70);
        gone.failed("b".into(), true);
        gone.compared(Some(8192));
        gone.compared(None);
        sum.merge(&gone);
        sum.merge(&meter);
        assert_eq!((sum.errors, sum.first_error.as_deref(), sum.first_wrong), (17, Some("b"), Some(8192)));
        assert_eq!((sum.wrong, sum.checked), (1, 2));
    }
}
