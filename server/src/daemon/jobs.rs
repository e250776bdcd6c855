//! Long operations of a group: what runs, how far it is, how fast.
//!
//! Honest progress: bytes done and total as the engine counts them, the rate of the last 60 seconds by the monotonic
//! clock, an ETA only where there is a rate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raid_core::engine::Pace;
use raid_core::units::Slot;

use super::host::unix_seconds;
use crate::control::model::{Operation, ProgressDoc};

/// Over how long the rate is measured.
const WINDOW: Duration = Duration::from_secs(60);

/// One long operation.
pub(super) struct Job {
    /// What it is.
    pub operation: Operation,
    /// The slot it is done to, where it is one.
    pub slot: Option<Slot>,
    /// What the engine reports and listens to.
    pub pace: Arc<Pace>,
    started_unix_s: u64,
    samples: Mutex<VecDeque<(Instant, u64)>>,
    percent_max: AtomicU8,
}

impl Job {
    /// A job that starts now.
    #[must_use]
    pub(super) fn new(operation: Operation, slot: Option<Slot>, pace: Arc<Pace>) -> Arc<Self> {
        let first = (Instant::now(), pace.done_bytes.load(Ordering::Relaxed));
        let samples = Mutex::new(VecDeque::from([first]));
        Arc::new(Self {
            operation,
            slot,
            pace,
            started_unix_s: unix_seconds(),
            samples,
            percent_max: AtomicU8::new(0),
        })
    }

    /// Notes how far it is now; called a few times a second.
    pub(super) fn sample(&self) {
        let now = Instant::now();
        let mut samples = self.samples.lock();
        samples.push_back((now, self.pace.done_bytes.load(Ordering::Relaxed)));
        while samples.len() > 2 && now - samples[1].0 >= WINDOW {
            samples.pop_front();
        }
    }

    fn rate_bytes_per_s(&self) -> Option<u64> {
        let samples = self.samples.lock();
        let (first, done_first) = *samples.front()?;
        let elapsed_ms = first.elapsed().as_millis();
        // What an earlier run has done was not done now.
        let done_first = done_first.max(self.pace.resumed_bytes.load(Ordering::Relaxed));
        let done = self.pace.done_bytes.load(Ordering::Relaxed).checked_sub(done_first)?;
        let rate = u128::from(done) * 1000 / elapsed_ms.max(1);
        u64::try_from(rate).ok().filter(|&rate| rate > 0)
    }

    /// The document.
    #[must_use]
    pub(super) fn doc(&self) -> ProgressDoc {
        let (done, total) =
            (self.pace.done_bytes.load(Ordering::Relaxed), self.pace.total_bytes.load(Ordering::Relaxed));
        let mut doc = ProgressDoc::new(self.operation, self.slot.map(|slot| slot.0), done, total)
            .measured(self.started_unix_s, self.rate_bytes_per_s());
        // What clients write meanwhile can add to the total; the percent shown never falls.
        doc.percent = self.percent_max.fetch_max(doc.percent, Ordering::Relaxed).max(doc.percent);
        doc
    }
}
