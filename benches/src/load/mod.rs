//! The load generator behind `warpraid bench`: passes of transfers over drives, files, scratch groups and NBD disks, measured
//! and verified.
//!
//! A [`Session`] is a set of targets, each cut into one region a thread. A [`Pass`] moves every region once, or for a time.
//! What a write pass leaves is remembered transfer by transfer, so that reads know what must come back.
//!
//! - `cells`: what is written and how it is known again; `walk`: in which order; `meter`: what is measured
//! - `lanes`: over the reactor (drives, files, groups); `nbd`: over an NBD client of our own
//! - [`hist`], [`series`]: latencies, and rates over time
//!
//! Measured time holds what any client has to do: filling the first 512 bytes of each cell, the transfer, and on reads a look
//! at these same bytes. The comparison of every byte is a pass of its own, outside the measured time.

mod cells;
pub mod group;
pub mod hist;
mod lanes;
mod meter;
mod nbd;
pub mod series;
mod session;
pub mod steps;
mod walk;

use core::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raid_core::format::probe;
use raid_core::units::u32_of;

pub use meter::Meter;
pub use nvme_backend::{OpenDrive, OpenOptions};
pub use raid_core::geometry::Level;
pub use raid_core::units::BlockSize;
pub use session::{PassResult, Session, SessionError, Target, TargetResult};

/// Which way data moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// From the target.
    Read,
    /// To the target.
    Write,
}

impl Op {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// In which order a region is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// From its start to its end.
    Sequential,
    /// At random places, as many as the region has.
    Random,
}

impl Pattern {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// What reads are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Nothing: what lies there is not ours.
    Nothing,
    /// The first block of each cell, wherever this session wrote.
    Heads,
    /// Every byte; places that this session did not write are left out.
    Everything,
}

/// One run over all targets at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Which way.
    pub op: Op,
    /// In which order.
    pub pattern: Pattern,
    /// For so long, again and again over the regions; `None`: each region once. Nanoseconds.
    pub time_ns: Option<u64>,
    /// Not measured at the beginning, nanoseconds.
    pub ramp_ns: u64,
    /// Transfers in flight, per thread.
    pub queue_depth: u32,
    /// What reads are compared with.
    pub check: Check,
    /// The member of a scratch group that is rebuilt meanwhile: the pass ends when it is.
    pub rebuild: Option<u8>,
}

/// What is going on, shared with whoever shows it, and the wish that it end.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    done_bytes: AtomicU64,
    current: Mutex<Current>,
}

#[derive(Clone, Debug, Default)]
struct Current {
    label: String,
    total_bytes: Option<u64>,
    time_ns: Option<u64>,
    began: Option<Instant>,
}

/// How far a pass is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is being done.
    pub label: String,
    /// Bytes moved.
    pub done_bytes: u64,
    /// Bytes to move, where that is known.
    pub total_bytes: Option<u64>,
    /// Time since its start.
    pub elapsed: Duration,
    /// Time it will take, where that is fixed.
    pub time: Option<Duration>,
}

impl Control {
    /// Ends the pass that runs, and those to come.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether all shall end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says what begins; `total_bytes` or `time_ns` say how much there is of it.
    pub fn begin(&self, label: &str, total_bytes: Option<u64>, time_ns: Option<u64>) {
        self.done_bytes.store(0, Ordering::Relaxed);
        let now = Current { label: label.to_owned(), total_bytes, time_ns, began: Some(Instant::now()) };
        *self.current.lock().expect("nobody panics with it") = now;
    }

    /// Counts bytes of what was begun.
    pub fn add(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What is going on; `None` before anything has begun.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        let current = self.current.lock().expect("nobody panics with it").clone();
        Some(Progress {
            elapsed: current.began?.elapsed(),
            label: current.label,
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            total_bytes: current.total_bytes,
            time: current.time_ns.map(Duration::from_nanos),
        })
    }
}

/// What is recognised on a disk of `size_bytes` that `read` reads (offset and length), in words.
///
/// # Errors
/// What `read` says.
pub fn signatures(
    size_bytes: u64,
    mut read: impl FnMut(u64, u32) -> Result<Vec<u8>, String>,
) -> Result<Vec<String>, String> {
    const PIECE: u64 = 1 << 20;
    let mut parts = Vec::new();
    for Range { start, end } in probe::needs(size_bytes) {
        let mut part = Vec::new();
        let mut at = start;
        while at < end {
            let bytes = PIECE.min(end - at);
            part.extend(read(at, u32_of(bytes))?);
            at += bytes;
        }
        parts.push(part);
    }
    Ok(probe::probe(size_bytes, &parts).iter().map(ToString::to_string).collect())
}
