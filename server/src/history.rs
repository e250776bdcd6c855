//! What was, for charts: bounded rings of samples per subject (the daemon, a group, a disk).
//!
//! Three rings a subject: 300 samples of 1 s, 360 of 10 s, 288 of 5 min. Each ring keeps the counters its current sample
//! began with, so a sample of 5 min has the quantiles of 5 min of requests and not a mean of means.
//!
//! Invariants: memory is bounded by [`MEMORY_BYTES_MAX`] whatever is created and deleted; durations come from the monotonic
//! clock, the wall clock only labels; counters that fall (a group was stopped and started again) make a gap, never a spike.
//! In memory only: what must outlive the daemon is for a metrics system to collect.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use raid_core::units::u64_of;

use crate::control::model::{HistoryKind, HistorySeriesDoc};
use crate::control::request::HistoryRange;

/// Most subjects that are recorded.
pub const SUBJECTS_MAX: usize = 256;
/// Most latency buckets of a reading.
pub const BUCKETS_MAX: usize = 64;
/// Most bytes of all rings: 256 subjects x (948 samples of 80 bytes, and 3 x 2 x 64 bucket counters): 20 MiB. Rings grow
/// as they fill: a daemon with ten disks needs 1 MiB after a day.
pub const MEMORY_BYTES_MAX: u64 = 256 * (948 * 80 + 3 * 2 * 64 * 8 + 1024);

/// A ring's shape: seconds a sample covers, and how many are kept.
const RINGS: [(HistoryRange, u32, u32); 3] =
    [(HistoryRange::Minutes5, 1, 300), (HistoryRange::Hour, 10, 360), (HistoryRange::Day, 300, 288)];

/// Seconds a sample of the range covers, and how many are kept.
#[must_use]
pub fn shape(range: HistoryRange) -> (u32, u32) {
    let (_, period_s, samples) = RINGS[ring_of(range)];
    (period_s, samples)
}

fn ring_of(range: HistoryRange) -> usize {
    RINGS.iter().position(|(one, ..)| *one == range).expect("every range has a ring")
}

/// How much before its time a tick may come and still end a sample.
const EARLY_MAX: Duration = Duration::from_millis(100);

/// What a series is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// Everything together.
    Daemon,
    /// A group, by name.
    Group(String),
    /// A disk, by its group's name and its own.
    Disk(String, String),
}

/// Counters of one direction since some start.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Direction {
    /// Requests answered.
    pub ops: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Requests per latency bucket (not cumulative); the last one has no upper bound.
    pub latency: Vec<u64>,
}

/// What is read of a subject once a second.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reading {
    /// Reads since some start.
    pub read: Direction,
    /// Writes since some start.
    pub write: Direction,
    /// Bytes cut into disks.
    pub used_bytes: u64,
    /// Data bytes in all.
    pub capacity_bytes: u64,
}

impl Direction {
    /// Adds another's counters.
    pub fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        if self.latency.len() < other.latency.len() {
            self.latency.resize(other.latency.len(), 0);
        }
        self.latency.iter_mut().zip(&other.latency).for_each(|(sum, n)| *sum += n);
    }

    /// What was added since `before`; `None` if a counter fell.
    fn since(&self, before: &Self) -> Option<Self> {
        let latency = self.latency.iter().enumerate();
        let latency = latency.map(|(n, now)| now.checked_sub(before.latency.get(n).copied().unwrap_or(0)));
        Some(Self {
            ops: self.ops.checked_sub(before.ops)?,
            bytes: self.bytes.checked_sub(before.bytes)?,
            latency: latency.collect::<Option<_>>()?,
        })
    }
}

impl Reading {
    /// Adds another's counters and sizes.
    pub fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.used_bytes += other.used_bytes;
        self.capacity_bytes += other.capacity_bytes;
    }
}

/// The latency that `per_mille` of the requests stayed below, by linear interpolation inside its bucket as Prometheus'
/// `histogram_quantile` does; 0 if there were none. `bounds_ns` are the buckets' upper bounds; a request above all counts
/// as the last bound.
#[must_use]
pub fn quantile_ns(bounds_ns: &[u64], counts: &[u64], per_mille: u64) -> u64 {
    let total: u64 = counts.iter().sum();
    let rank = (total * per_mille).div_ceil(1000);
    if rank == 0 {
        return 0;
    }
    let mut below = 0;
    for (n, &count) in counts.iter().enumerate() {
        if below + count < rank {
            below += count;
            continue;
        }
        let low = if n == 0 { 0 } else { bounds_ns[(n - 1).min(bounds_ns.len() - 1)] };
        let high = bounds_ns.get(n).copied().unwrap_or(low);
        let inside = u128::from(high - low) * u128::from(rank - below) / u128::from(count);
        return low + u64::try_from(inside).expect("a part of a bucket");
    }
    unreachable!("the rank is at most the total")
}

/// One sample: 80 bytes. Latencies of 0 mean that there was no request.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_unix_s: u64,
    bytes_per_s: [u64; 2],
    ops_per_s: [u64; 2],
    p50_ns: [u64; 2],
    p99_ns: [u64; 2],
    used_bytes: u64,
}

const _: () = assert!(size_of::<Sample>() == 80);

struct Ring {
    since: Duration,
    /// The counters at `since`.
    began: Reading,
    samples: VecDeque<Sample>,
}

impl Ring {
    /// Grows in small exact steps, so that the bound on memory is one on what is allocated.
    fn push(&mut self, sample: Sample, samples_max: usize) {
        const STEP: usize = 60;
        if self.samples.len() >= samples_max {
            self.samples.pop_front();
        } else if self.samples.len() == self.samples.capacity() {
            self.samples.reserve_exact(STEP.min(samples_max - self.samples.len()));
        }
        self.samples.push_back(sample);
    }
}

struct Track {
    rings: [Ring; RINGS.len()],
    /// Bytes in all, now: it changes only with the group's shape, so the samples share it.
    capacity_bytes: u64,
    /// When it was last read.
    seen: Duration,
}

impl Track {
    fn new(at: Duration, reading: &Reading) -> Self {
        let ring = |_| Ring { since: at, began: reading.clone(), samples: VecDeque::new() };
        Self { rings: core::array::from_fn(ring), capacity_bytes: reading.capacity_bytes, seen: at }
    }

    fn note(&mut self, at: Duration, unix_s: u64, reading: &Reading, bounds_ns: &[u64]) {
        self.seen = at;
        self.capacity_bytes = reading.capacity_bytes;
        for (ring, (_, period_s, samples_max)) in self.rings.iter_mut().zip(RINGS) {
            let elapsed = at.saturating_sub(ring.since);
            if elapsed + EARLY_MAX < Duration::from_secs(u64::from(period_s)) {
                continue;
            }
            if let Some(sample) = sample(elapsed, unix_s, reading, &ring.began, bounds_ns) {
                ring.push(sample, usize::try_from(samples_max).expect("a few hundred"));
            }
            (ring.since, ring.began) = (at, reading.clone());
        }
    }
}

/// The sample between two readings; `None` if a counter fell.
fn sample(
    elapsed: Duration,
    unix_s: u64,
    now: &Reading,
    before: &Reading,
    bounds_ns: &[u64],
) -> Option<Sample> {
    let both = [now.read.since(&before.read)?, now.write.since(&before.write)?];
    let ms = elapsed.as_millis().max(1);
    let per_s = |n: u64| u64::try_from(u128::from(n) * 1000 / ms).unwrap_or(u64::MAX);
    let quantile = |one: &Direction, per_mille| quantile_ns(bounds_ns, &one.latency, per_mille);
    Some(Sample {
        at_unix_s: unix_s,
        bytes_per_s: [&both[0], &both[1]].map(|one| per_s(one.bytes)),
        ops_per_s: [&both[0], &both[1]].map(|one| per_s(one.ops)),
        p50_ns: [&both[0], &both[1]].map(|one| quantile(one, 500)),
        p99_ns: [&both[0], &both[1]].map(|one| quantile(one, 990)),
        used_bytes: now.used_bytes,
    })
}

/// The rings of every subject.
pub struct History {
    bounds_ns: &'static [u64],
    tracks: BTreeMap<Subject, Track>,
    left_out: u64,
}

impl History {
    /// An empty history; `bounds_ns` are the upper bounds of the latency buckets of every reading, rising.
    #[must_use]
    pub fn new(bounds_ns: &'static [u64]) -> Self {
        assert!(
            !bounds_ns.is_empty() && bounds_ns.len() < BUCKETS_MAX,
            "{} latency buckets",
            bounds_ns.len()
        );
        Self { bounds_ns, tracks: BTreeMap::new(), left_out: 0 }
    }

    /// Notes what was read of every subject `at` (monotonic, from any start) and `unix_s`: once a second.
    pub fn note(&mut self, at: Duration, unix_s: u64, readings: &BTreeMap<Subject, Reading>) {
        self.forget(at);
        self.left_out = 0;
        for (subject, reading) in readings {
            if let Some(track) = self.tracks.get_mut(subject) {
                track.note(at, unix_s, reading, self.bounds_ns);
            } else if self.make_room(at) {
                self.tracks.insert(subject.clone(), Track::new(at, reading));
            } else {
                self.left_out += 1;
            }
        }
    }

    /// Forgets subjects that are gone for longer than the longest range.
    fn forget(&mut self, at: Duration) {
        let longest = RINGS.map(|(_, period_s, samples)| u64::from(period_s) * u64::from(samples));
        let longest = Duration::from_secs(longest.into_iter().max().expect("three rings"));
        self.tracks.retain(|_, track| at.saturating_sub(track.seen) <= longest);
    }

    /// Whether one more subject can be recorded; the one that is gone for longest gives way.
    fn make_room(&mut self, at: Duration) -> bool {
        if self.tracks.len() < SUBJECTS_MAX {
            return true;
        }
        let gone =
            self.tracks.iter().filter(|(_, track)| at.saturating_sub(track.seen) > Duration::from_secs(5));
        let oldest = gone.min_by_key(|(_, track)| track.seen).map(|(subject, _)| subject.clone());
        oldest.is_some_and(|subject| self.tracks.remove(&subject).is_some())
    }

    /// Subjects that were not recorded at the last [`Self::note`].
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The samples of a subject, oldest first; none if it was never seen.
    #[must_use]
    pub fn series(&self, subject: &Subject, range: HistoryRange) -> Option<HistorySeriesDoc> {
        let track = self.tracks.get(subject)?;
        let samples = &track.rings[ring_of(range)].samples;
        let column = |of: fn(&Sample) -> u64| samples.iter().map(of).collect::<Vec<u64>>();
        let latency = |of: fn(&Sample) -> u64| {
            samples.iter().map(|one| Some(of(one)).filter(|&ns| ns > 0)).collect::<Vec<Option<u64>>>()
        };
        let (kind, group, disk) = match subject {
            Subject::Daemon => (HistoryKind::Daemon, None, None),
            Subject::Group(group) => (HistoryKind::Group, Some(group.clone()), None),
            Subject::Disk(group, disk) => (HistoryKind::Disk, Some(group.clone()), Some(disk.clone())),
        };
        Some(HistorySeriesDoc {
            kind,
            group,
            disk,
            at_unix_s: column(|one| one.at_unix_s),
            read_bytes_per_s: column(|one| one.bytes_per_s[0]),
            write_bytes_per_s: column(|one| one.bytes_per_s[1]),
            read_ops_per_s: column(|one| one.ops_per_s[0]),
            write_ops_per_s: column(|one| one.ops_per_s[1]),
            read_p50_ns: latency(|one| one.p50_ns[0]),
            read_p99_ns: latency(|one| one.p99_ns[0]),
            write_p50_ns: latency(|one| one.p50_ns[1]),
            write_p99_ns: latency(|one| one.p99_ns[1]),
            used_bytes: column(|one| one.used_bytes),
            capacity_bytes: vec![track.capacity_bytes; samples.len()],
        })
    }

    /// Bytes the samples and kept counters take now.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let ring = |ring: &Ring| {
            ring.samples.capacity() * size_of::<Sample>()
                + (ring.began.read.latency.capacity() + ring.began.write.latency.capacity())
                    * size_of::<u64>()
        };
        let track = |track: &Track| size_of::<Track>() + track.rings.iter().map(ring).sum::<usize>();
        u64_of(self.tracks.values().map(track).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[u64] = &[1000, 10_000, 100_000];

    fn disk(n: usize) -> Subject {
        Subject::Disk("tank".into(), format!("d{n}"))
    }

    /// After `s` seconds of 100 reads of 4 KiB a second, all between 1 and 10 us.
    fn reading(s: u64) -> Reading {
        let read = Direction { ops: 100 * s, bytes: 409_600 * s, latency: vec![0, 100 * s, 0, 0] };
        Reading { read, write: Direction::default(), used_bytes: 7, capacity_bytes: 9 }
    }

    fn one(subject: Subject, reading: Reading) -> BTreeMap<Subject, Reading> {
        BTreeMap::from([(subject, reading)])
    }

    #[test]
    fn rates_and_quantiles_of_every_range_are_those_of_its_own_period() {
        let mut history = History::new(BOUNDS);
        for s in 0..=900 {
            history.note(Duration::from_secs(s), 5000 + s, &one(disk(0), reading(s)));
        }
        for (range, samples, last) in [
            (HistoryRange::Minutes5, 300, 5900),
            (HistoryRange::Hour, 90, 5900),
            (HistoryRange::Day, 3, 5900),
        ] {
            let series = history.series(&disk(0), range).unwrap();
            assert_eq!(series.at_unix_s.len(), samples, "{range:?}");
            assert_eq!(series.at_unix_s.last(), Some(&last));
            assert!(series.read_ops_per_s.iter().all(|&n| n == 100), "{series:?}");
            assert!(series.read_bytes_per_s.iter().all(|&n| n == 409_600));
            assert!(series.read_p50_ns.iter().all(|&ns| ns == Some(1000 + 9000 / 2)), "{series:?}");
            assert!(series.write_p99_ns.iter().all(Option::is_none));
            assert_eq!((series.used_bytes[0], series.capacity_bytes[0]), (7, 9));
        }
        assert!(history.series(&disk(1), HistoryRange::Day).is_none());
    }

    #[test]
    fn a_counter_that_falls_makes_a_gap_and_no_spike() {
        let mut history = History::new(BOUNDS);
        for (s, counted) in [(0, 50), (1, 51), (2, 0), (3, 1)] {
            history.note(Duration::from_secs(s), s, &one(Subject::Daemon, reading(counted)));
        }
        let series = history.series(&Subject::Daemon, HistoryRange::Minutes5).unwrap();
        assert_eq!(series.at_unix_s, [1, 3]);
        assert_eq!(series.read_ops_per_s, [100, 100]);
    }

    #[test]
    fn a_pause_is_one_sample_at_its_true_rate() {
        let mut history = History::new(BOUNDS);
        for s in [0, 1, 41] {
            history.note(Duration::from_secs(s), s, &one(Subject::Daemon, reading(s)));
        }
        let series = history.series(&Subject::Daemon, HistoryRange::Minutes5).unwrap();
        assert_eq!((series.at_unix_s, series.read_ops_per_s), (vec![1, 41], vec![100, 100]));
    }

    #[test]
    fn quantiles_are_inside_their_bucket_and_ordered() {
        assert_eq!(quantile_ns(BOUNDS, &[0, 0, 0, 0], 990), 0);
        assert_eq!(quantile_ns(BOUNDS, &[1, 0, 0, 0], 500), 1000);
        // 99 of a hundred below 1 us, one above all bounds: p99 is still in the first bucket, the maximum is not.
        assert_eq!(quantile_ns(BOUNDS, &[99, 0, 0, 1], 990), 1000);
        assert_eq!(quantile_ns(BOUNDS, &[99, 0, 0, 1], 1000), 100_000);
        let counts = [3, 50, 40, 7];
        let all: Vec<u64> = (1..=1000).map(|q| quantile_ns(BOUNDS, &counts, q)).collect();
        assert!(all.is_sorted() && all[0] > 0, "{all:?}");
    }

    #[test]
    fn memory_is_bounded_whatever_comes_and_goes() {
        static MANY: [u64; BUCKETS_MAX - 1] = [1; BUCKETS_MAX - 1];
        let full = |s: u64| {
            let latency = vec![s; BUCKETS_MAX];
            let one = Direction { ops: s, bytes: s, latency };
            Reading { read: one.clone(), write: one, used_bytes: 0, capacity_bytes: 0 }
        };
        let mut history = History::new(&MANY);
        let all = |s: u64| (0..SUBJECTS_MAX + 10).map(|n| (disk(n), full(s))).collect::<BTreeMap<_, _>>();
        // In steps of 5 min every ring gets a sample at each.
        for s in 0..370 {
            history.note(Duration::from_secs(s * 300), s, &all(s));
            assert_eq!(history.left_out(), 10);
        }
        assert!(history.memory_bytes() <= MEMORY_BYTES_MAX, "{}", history.memory_bytes());
        // Those that are gone give way to new ones, at once when there is no room.
        let end = Duration::from_secs(370 * 300 + 60);
        history.note(end, 0, &one(Subject::Daemon, full(1)));
        assert!(history.series(&Subject::Daemon, HistoryRange::Hour).is_some());
        assert_eq!((history.left_out(), history.tracks.len()), (0, SUBJECTS_MAX));
        history.note(end + Duration::from_secs(2 * 86400), 0, &one(Subject::Daemon, full(2)));
        assert_eq!(history.tracks.len(), 1);
    }
}
