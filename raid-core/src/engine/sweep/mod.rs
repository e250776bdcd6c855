//! Sweeps over whole stripes: rebuild of a member, resync of stripes not known in sync, scrub.
//!
//! Each works in steps of a few stripes: lease, lock, read, compute, write, move on. A step that meets a failed member or
//! an unreadable block deals with it, holding nothing, and is done again. Steps are bounded by the scratch memory.

mod mend;
mod partial;
mod pending;
mod rebuild;
mod resync;
mod scrub;
mod sparse;
mod succeed;

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Group;
use super::gather::Want;
use super::lane::LaneView;
use super::shared::stripes_per_step;
use super::stripe::{self, Roles};
use crate::geometry::{Geometry, Role};
use crate::lease::LEASE_BYTES_MAX;
use crate::pacing::Governor;
use crate::ports::{Clock, Env, IoError};
use crate::units::{Slot, Stripe};

pub use scrub::{FINDINGS_MAX, Finding, ScrubMode, ScrubState, What};
pub use succeed::Succession;

/// Longest wait before the pace is looked at again.
const NAP_NS: u64 = 100_000_000;

/// How fast a sweep may go, whether it shall stop, and how far it has come. Other threads read and set it.
#[derive(Debug, Default)]
pub struct Pace {
    /// Most bytes of a member per second; 0 for no limit.
    pub bytes_per_s_max: AtomicU64,
    /// Most bytes of a member in one step, during which writes to its stripes wait; 0 for what fits the scratch memory.
    pub step_bytes_max: AtomicU64,
    /// Set to end the sweep after its current step.
    pub cancel: AtomicBool,
    /// Bytes of a member done.
    pub done_bytes: AtomicU64,
    /// Bytes of a member in all.
    pub total_bytes: AtomicU64,
    /// Bytes that were done before the sweep began: what a restart found.
    pub resumed_bytes: AtomicU64,
    /// What clients leave it (`pacing`).
    governor: Mutex<Governor>,
    /// Whether steps are to be as small as they can be, for clients' sake.
    small_steps: AtomicBool,
}

/// Why a sweep ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SweepError {
    /// [`Pace::cancel`] was set, or the group is stopping.
    Cancelled,
    /// The member being rebuilt left its slot.
    MemberGone(Slot),
    /// Something could not be read or written.
    Io(IoError),
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("cancelled"),
            Self::MemberGone(slot) => {
                write!(f, "the member in slot {slot} failed while it was being rebuilt")
            }
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SweepError {}

impl From<IoError> for SweepError {
    fn from(error: IoError) -> Self {
        Self::Io(error)
    }
}

/// A column range of a stripe, at most one lease high.
#[derive(Clone, Debug)]
struct Window {
    stripe: Stripe,
    columns: Range<u32>,
}

/// The windows of some stripes, in order.
fn windows(geometry: &Geometry, stripes: &Range<u64>) -> Vec<Window> {
    let mut windows = Vec::new();
    for stripe in stripes.clone().map(Stripe) {
        let height = geometry.stripe_height(stripe);
        let mut start = 0;
        while start < height {
            let end = height.min(start + LEASE_BYTES_MAX);
            windows.push(Window { stripe, columns: start..end });
            start = end;
        }
    }
    windows
}

impl<E: Env> Group<E> {
    /// Counts a step of `bytes` that began at `began_ns`, and waits as long after it as the pace and the clients demand.
    async fn keep_pace(&self, pace: &Pace, bytes: u64, began_ns: u64) -> Result<(), SweepError> {
        let done_bytes = pace.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let clock = self.0.env.clock();
        loop {
            let now_ns = clock.now_ns();
            let limits = pace.governor.lock().limits(now_ns, done_bytes, self.0.shared.foreground());
            pace.small_steps.store(limits.small_steps, Ordering::Relaxed);
            let set = pace.bytes_per_s_max.load(Ordering::Relaxed);
            let rate = [set, limits.bytes_per_s].into_iter().filter(|&rate| rate > 0).min().unwrap_or(0);
            let takes_ns = bytes.saturating_mul(1_000_000_000).checked_div(rate).unwrap_or(0);
            let until_ns = began_ns.saturating_add(takes_ns);
            if now_ns >= until_ns {
                return self.go_on(pace);
            }
            // Not all at once: the limit may go up, or the sweep be stopped, before a long wait is over.
            clock.sleep_until(until_ns.min(now_ns + NAP_NS)).await;
            self.go_on(pace)?;
        }
    }

    /// Stripes of one step: bounded by the pace and the scratch memory, at least one.
    fn step(&self, pace: &Pace) -> u64 {
        let geometry = self.0.shared.geometry();
        if pace.small_steps.load(Ordering::Relaxed) {
            return 1;
        }
        let wanted = match pace.step_bytes_max.load(Ordering::Relaxed) {
            0 => u64::MAX,
            bytes => bytes / u64::from(geometry.chunk_bytes()),
        };
        stripes_per_step(geometry).min(wanted).max(1)
    }

    fn go_on(&self, pace: &Pace) -> Result<(), SweepError> {
        let stop = pace.cancel.load(Ordering::Relaxed) || self.0.shared.is_stopping();
        if stop { Err(SweepError::Cancelled) } else { Ok(()) }
    }

    /// What to read for some columns of a window, into leases from number `first` on.
    fn window_wants(&self, window: &Window, roles: &Roles, first: usize, wants: &mut Vec<Want>) {
        let geometry = self.0.shared.geometry();
        for (i, &role) in roles.iter().enumerate() {
            wants.push(Want {
                slot: stripe::slot_of(geometry, window.stripe, role),
                stripe: window.stripe,
                columns: window.columns.clone(),
                at: geometry.member_offset(window.stripe, window.columns.start),
                lease: first + i,
            });
        }
    }

    /// All columns of a stripe whose member takes part in it: data by index, then parity.
    fn live_roles(&self, lane: &LaneView<E>, window: &Window) -> Roles {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let parities = [Role::P, Role::Q];
        let all = stripe::data_indices(geometry)
            .map(Role::Data)
            .chain(parities.into_iter().take(usize::from(geometry.level().parities())));
        all.filter(|&role| {
            let slot = stripe::slot_of(geometry, window.stripe, role);
            stripe::is_readable(shared, lane, window.stripe, slot, &window.columns)
        })
        .collect()
    }
}

/// The live parities among roles.
fn parities(roles: &Roles) -> SmallVec<[Role; 2]> {
    roles.iter().copied().filter(|role| !matches!(role, Role::Data(_))).collect()
}
