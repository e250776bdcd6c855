//! How fast rebuilds and other sweeps may go beside clients: governed by a target for the latency that clients see.
//!
//! [`Foreground`] counts client requests by latency, per lane, without locks; [`Governor`] looks at the counts of the last
//! half second ten times a second and sets a rate. What it does:
//!
//! - **No client in the window**: no limit.
//! - **A target**: explicit, or a preset's multiple of the latency without the sweep, which is measured: every 20 s the
//!   sweep goes at its floor for half a second, and the 99th percentile of that time is the base.
//! - **Additive increase, multiplicative decrease**: the 99th percentile above the target takes the rate to 3/4 (from no
//!   limit: to half of what was measured); below 7/8 of it the rate grows by a sixteenth, up to twice of what is used. After
//!   a cut the window starts anew, so that one bad moment is not counted twice.
//! - **The floor**: whatever the latency, a sweep advances at the preset's floor: redundancy that never comes back is worse
//!   than a slow answer.
//! - While there are clients a step is one stripe: a step holds its stripes' locks and its lane's processor.
//!
//! Invariants: nothing is timed unless a sweep has asked within the last second (a request then costs one relaxed load);
//! counters only grow, readers subtract, so nobody resets what another reads. Time is the caller's, so the same code runs
//! in the simulator.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;

use crate::units::usize_of;

/// How much a sweep may cost clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Speed {
    /// Clients hardly notice.
    Low,
    /// Clients wait at most about half as long again.
    #[default]
    Normal,
    /// Clients wait up to three times as long.
    High,
    /// As fast as it goes, whatever clients see.
    Max,
}

impl Speed {
    const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Max];

    /// Target over base, in quarters.
    const fn quarters(self) -> u64 {
        match self {
            Self::Low => 5,
            Self::Normal => 6,
            Self::High | Self::Max => 12,
        }
    }

    /// Bytes of a member a second that a sweep always gets.
    #[must_use]
    pub const fn floor_bytes_per_s(self) -> u64 {
        match self {
            Self::Low => 1 << 20,
            Self::Normal => 4 << 20,
            Self::High | Self::Max => 32 << 20,
        }
    }
}

/// Buckets of the histogram: eight to an octave, so a percentile is at most an eighth too high; the last one holds 18
/// minutes and more.
const BUCKETS: usize = 304;
const TICK_NS: u64 = 100_000_000;
/// Ticks of the sliding window.
const WINDOW_TICKS: usize = 5;
/// A percentile of fewer requests says nothing.
const REQUESTS_MIN: u64 = 32;
const PROBE_NS: u64 = 500_000_000;
const PROBE_EVERY_NS: u64 = 20_000_000_000;
const WATCH_NS: u64 = 1_000_000_000;

fn bucket_of(latency_ns: u64) -> usize {
    if latency_ns < 8 {
        return usize_of(latency_ns);
    }
    let octave = u64::from(latency_ns.ilog2());
    usize_of((octave - 2) * 8 + ((latency_ns >> (octave - 3)) & 7)).min(BUCKETS - 1)
}

/// The upper bound of a bucket.
fn bound_of(bucket: usize) -> u64 {
    let bucket = crate::units::u64_of(bucket);
    if bucket < 8 {
        return bucket + 1;
    }
    let (octave, part) = (bucket / 8 + 2, bucket % 8);
    (9 + part) << (octave - 3)
}

/// What one lane has counted.
struct Latencies(Box<[AtomicU32]>);

/// Client requests of a group by latency, and what operators want of its sweeps.
pub struct Foreground {
    is_watched: AtomicBool,
    watched_until_ns: AtomicU64,
    lanes: Vec<Latencies>,
    speed: AtomicU8,
    target_ns: AtomicU64,
}

impl Foreground {
    /// Nothing counted yet, on so many lanes.
    #[must_use]
    pub fn new(lanes: u16) -> Self {
        let buckets = || Latencies((0..BUCKETS).map(|_| AtomicU32::new(0)).collect());
        Self {
            is_watched: AtomicBool::new(false),
            watched_until_ns: AtomicU64::new(0),
            lanes: (0..lanes).map(|_| buckets()).collect(),
            speed: AtomicU8::new(1),
            target_ns: AtomicU64::new(0),
        }
    }

    /// What operators want: a preset, and an explicit target for the 99th percentile (none: the preset's).
    pub fn set(&self, speed: Speed, target_ns: Option<u64>) {
        let number = Speed::ALL.iter().position(|&other| other == speed).unwrap_or(1);
        self.speed.store(u8::try_from(number).unwrap_or(1), Ordering::Relaxed);
        self.target_ns.store(target_ns.unwrap_or(0), Ordering::Relaxed);
    }

    /// The preset, and the explicit target if there is one.
    #[must_use]
    pub fn wanted(&self) -> (Speed, Option<u64>) {
        let target_ns = Some(self.target_ns.load(Ordering::Relaxed)).filter(|&ns| ns > 0);
        (Speed::ALL[usize::from(self.speed.load(Ordering::Relaxed)).min(3)], target_ns)
    }

    /// A client's request begins: when, if anybody wants to know.
    #[must_use]
    pub fn begin(&self, now_ns: impl FnOnce() -> u64) -> Option<u64> {
        self.is_watched.load(Ordering::Relaxed).then(now_ns)
    }

    /// It ended, on this lane.
    pub fn end(&self, lane: u16, began_ns: Option<u64>, now_ns: impl FnOnce() -> u64) {
        let (Some(began_ns), Some(lane)) = (began_ns, self.lanes.get(usize::from(lane))) else { return };
        let now_ns = now_ns();
        lane.0[bucket_of(now_ns.saturating_sub(began_ns))].fetch_add(1, Ordering::Relaxed);
        if now_ns > self.watched_until_ns.load(Ordering::Relaxed) {
            self.is_watched.store(false, Ordering::Relaxed);
        }
    }

    /// Counts of all lanes since the start, wrapping; keeps the counting going.
    fn look(&self, now_ns: u64) -> Vec<u32> {
        self.watched_until_ns.store(now_ns + WATCH_NS, Ordering::Relaxed);
        self.is_watched.store(true, Ordering::Relaxed);
        let sum = |bucket: usize| {
            let counts = self.lanes.iter().map(|lane| lane.0[bucket].load(Ordering::Relaxed));
            counts.fold(0, u32::wrapping_add)
        };
        (0..BUCKETS).map(sum).collect()
    }
}

/// Requests of a window, and the latency that 99 of 100 of them kept below.
fn percentile(first: &[u32], last: &[u32]) -> (u64, u64) {
    let counts = || last.iter().zip(first).map(|(last, first)| u64::from(last.wrapping_sub(*first)));
    let total: u64 = counts().sum();
    let mut left = total - total / 100;
    for (bucket, count) in counts().enumerate() {
        left = left.saturating_sub(count);
        if left == 0 {
            return (total, bound_of(bucket));
        }
    }
    (total, 0)
}

/// What a sweep may do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Most bytes of a member a second; 0 = no limit.
    pub bytes_per_s: u64,
    /// Whether steps are to be as small as they can be.
    pub small_steps: bool,
}

/// Sets the limits of one sweep.
#[derive(Debug, Default)]
pub struct Governor {
    next_ns: u64,
    /// Counts at each tick of the window, oldest first.
    window: VecDeque<Vec<u32>>,
    /// When, and how many bytes were done then.
    last: Option<(u64, u64)>,
    used_bytes_per_s: u64,
    limits: Limits,
    base_ns: Option<u64>,
    probe_until_ns: Option<u64>,
    next_probe_ns: u64,
    /// Rate to go on with after a probe.
    resume_bytes_per_s: u64,
}

impl Governor {
    /// The limits at `now_ns`, when the sweep has done `done_bytes` of a member.
    pub fn limits(&mut self, now_ns: u64, done_bytes: u64, foreground: &Foreground) -> Limits {
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + TICK_NS;
            self.tick(now_ns, done_bytes, foreground);
        }
        self.limits
    }

    fn tick(&mut self, now_ns: u64, done_bytes: u64, foreground: &Foreground) {
        if let Some((then_ns, then_bytes)) = self.last {
            let (bytes, ns) = (done_bytes.saturating_sub(then_bytes), (now_ns - then_ns).max(1));
            let now = u128::from(bytes) * 1_000_000_000 / u128::from(ns);
            let now = u64::try_from(now).unwrap_or(u64::MAX);
            self.used_bytes_per_s = (self.used_bytes_per_s / 2).saturating_add(now / 2);
        }
        self.last = Some((now_ns, done_bytes));
        self.window.push_back(foreground.look(now_ns));
        while self.window.len() > WINDOW_TICKS + 1 {
            self.window.pop_front();
        }
        let (speed, target_ns) = foreground.wanted();
        if speed == Speed::Max && target_ns.is_none() {
            self.limits = Limits::default();
            return;
        }
        let (requests, p99_ns) = percentile(&self.window[0], &self.window[self.window.len() - 1]);
        if requests == 0 {
            // Nobody is there, or nobody has been timed yet: the first window after a look is empty.
            if self.window.len() > WINDOW_TICKS {
                (self.base_ns, self.probe_until_ns, self.next_probe_ns) = (None, None, 0);
                self.limits = Limits::default();
            }
            return;
        }
        self.limits.small_steps = true;
        if requests < REQUESTS_MIN {
            return;
        }
        let floor = speed.floor_bytes_per_s();
        let Some(goal_ns) = target_ns.or_else(|| self.probed(now_ns, p99_ns, speed, floor)) else { return };
        self.steer(p99_ns, goal_ns, floor);
    }

    /// The target of a preset; none while its base is measured.
    fn probed(&mut self, now_ns: u64, p99_ns: u64, speed: Speed, floor: u64) -> Option<u64> {
        match self.probe_until_ns {
            Some(until_ns) if now_ns < until_ns => return None,
            Some(_) => {
                self.base_ns = Some(p99_ns);
                self.probe_until_ns = None;
                self.next_probe_ns = now_ns + PROBE_EVERY_NS;
                self.limits.bytes_per_s = self.resume_bytes_per_s.max(floor);
                self.restart_window();
                return None;
            }
            None if now_ns >= self.next_probe_ns => {
                self.resume_bytes_per_s = match self.limits.bytes_per_s {
                    0 => self.used_bytes_per_s / 4,
                    rate => rate,
                };
                self.probe_until_ns = Some(now_ns + PROBE_NS);
                self.limits.bytes_per_s = floor;
                self.restart_window();
                return None;
            }
            None => {}
        }
        self.base_ns.map(|base_ns| base_ns.saturating_mul(speed.quarters()) / 4)
    }

    fn steer(&mut self, p99_ns: u64, goal_ns: u64, floor: u64) {
        let rate = self.limits.bytes_per_s;
        if p99_ns > goal_ns {
            let cut = if rate == 0 { self.used_bytes_per_s / 2 } else { rate / 4 * 3 };
            self.limits.bytes_per_s = cut.max(floor);
            self.restart_window();
        } else if rate > 0 && p99_ns < goal_ns / 8 * 7 {
            let most = self.used_bytes_per_s.saturating_mul(2).max(floor);
            self.limits.bytes_per_s = (rate + (rate / 16).max(floor / 4)).min(most.max(rate));
        }
    }

    /// What was counted before says nothing about what comes now.
    fn restart_window(&mut self) {
        let newest = self.window.pop_back();
        self.window.clear();
        self.window.extend(newest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_an_eighth_wide_and_in_order() {
        let mut last = 0;
        for shift in 0..40 {
            for part in 0..16 {
                let ns = (1_u64 << shift) + ((part << shift) / 16);
                let bucket = bucket_of(ns);
                assert!(bucket >= last && bound_of(bucket) > ns, "{ns}: {bucket}");
                assert!(bound_of(bucket) <= ns + ns / 8 + 1, "{ns}: bound {}", bound_of(bucket));
                last = bucket;
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_99th_percentile_is_that() {
        let first = vec![0; BUCKETS];
        let mut last = first.clone();
        last[bucket_of(1000)] = 990;
        last[bucket_of(50_000)] = 10;
        let (total, p99) = percentile(&first, &last);
        assert!(total == 1000 && (1000..1200).contains(&p99), "{p99}");
        last[bucket_of(50_000)] = 30;
        assert!(percentile(&first, &last).1 > 50_000);
        assert_eq!(percentile(&last, &last).0, 0, "nothing happened between");
    }

    /// A drive on which the sweep makes clients wait: 100 us alone, and more the faster the sweep is.
    struct Plant {
        foreground: Foreground,
        governor: Governor,
        now_ns: u64,
        done_bytes: u64,
    }

    /// What the sweep could do at most.
    const FULL: u64 = 2 << 30;

    impl Plant {
        fn new(speed: Speed, target_ns: Option<u64>) -> Self {
            let foreground = Foreground::new(2);
            foreground.set(speed, target_ns);
            Self { foreground, governor: Governor::default(), now_ns: 5, done_bytes: 0 }
        }

        fn latency_ns(rate: u64) -> u64 {
            100_000 + rate / 5000
        }

        /// Runs for some tenths of a second; the mean rate and the worst latency of the last half of them.
        fn run(&mut self, ticks: u64, with_clients: bool) -> (u64, u64) {
            let (mut sum, mut worst) = (0, 0);
            for tick in 0..ticks {
                let limits = self.governor.limits(self.now_ns, self.done_bytes, &self.foreground);
                let rate = if limits.bytes_per_s == 0 { FULL } else { limits.bytes_per_s.min(FULL) };
                let latency = Self::latency_ns(rate);
                for request in 0..if with_clients { 200 } else { 0 } {
                    let began = self.foreground.begin(|| self.now_ns);
                    self.foreground.end(request % 2, began, || self.now_ns + latency);
                }
                self.done_bytes += rate / 10;
                self.now_ns += TICK_NS;
                if tick >= ticks / 2 {
                    sum += rate;
                    worst = worst.max(latency);
                }
            }
            (sum / (ticks - ticks / 2), worst)
        }
    }

    #[test]
    fn without_clients_there_is_no_limit_and_with_them_it_comes_at_once() {
        let mut plant = Plant::new(Speed::Normal, None);
        assert_eq!(plant.run(50, false).0, FULL);
        let (rate, _) = plant.run(20, true);
        assert!(rate < FULL / 4, "{rate}");
        assert_eq!(plant.run(30, false).0, FULL, "and goes with them");
    }

    #[test]
    fn a_target_is_kept_and_the_rate_below_it_used() {
        let mut plant = Plant::new(Speed::Low, Some(150_000));
        let (rate, worst) = plant.run(600, true);
        assert!(worst <= 170_000, "{worst}");
        // 150 us are reached at 250 MB a second.
        assert!((100_000_000..300_000_000).contains(&rate), "{rate}");
    }

    #[test]
    fn presets_are_ordered_and_measured_from_the_base() {
        let mut rates = Vec::new();
        for speed in Speed::ALL {
            let mut plant = Plant::new(speed, None);
            let (rate, worst) = plant.run(600, true);
            let limit = Plant::latency_ns(0) * speed.quarters() / 4 * 5 / 4;
            assert!(speed == Speed::Max || worst <= limit, "{speed:?}: {worst}");
            rates.push(rate);
        }
        assert!(rates.is_sorted() && rates[3] == FULL, "{rates:?}");
    }

    #[test]
    fn an_impossible_target_leaves_the_floor() {
        let mut plant = Plant::new(Speed::Normal, Some(1000));
        let (rate, _) = plant.run(300, true);
        assert_eq!(rate, Speed::Normal.floor_bytes_per_s());
    }

    #[test]
    fn nothing_is_timed_unless_somebody_looks() {
        let foreground = Foreground::new(1);
        assert_eq!(foreground.begin(|| unreachable!("no clock is read")), None);
        foreground.look(0);
        let began = foreground.begin(|| 10);
        assert_eq!(began, Some(10));
        foreground.end(0, began, || WATCH_NS + 1);
        assert_eq!(foreground.begin(|| unreachable!("nobody has looked for a second")), None);
    }
}
