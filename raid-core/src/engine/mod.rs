//! The group engine: a request from admit to settle, one file per step.
//!
//! A write reads top to bottom in `write.rs`: **admit** (validate, map, lease, lock, read the view), **plan**
//! (`plan.rs`: full-stripe, reconstruct-write or read-modify-write per column range by fewest I/Os), **gather**
//! (`gather.rs`: read what the plan lacks), **encode** (`encode.rs`), **log** (`intent.rs`), **commit** (`commit.rs`),
//! **settle** (`settle.rs`: errors drop the member; acknowledged once the epoch is durable). A read is `read.rs`; what
//! it cannot read directly goes through `degraded.rs`, and a medium error through `repair.rs`.
//!
//! Invariants, over all files:
//! - Order of waiting: Request leases, Scratch leases (one call, worst case of the plan), stripe locks (ascending), the
//!   view, Metadata leases. Nobody waits for an earlier thing while it holds a later one (SAFETY S2).
//! - Everything that writes to members holds the exclusive lock of its stripes and an entered (`lane.rs`) view; the only
//!   exceptions are metadata pages, which have an order of their own.
//! - In a parity group beyond its tolerance nothing is written any more, so that returning members complete it (M5).

mod avoid;
mod badblocks;
mod commit;
mod degraded;
mod encode;
mod flush;
mod gather;
mod intent;
mod lane;
mod locks;
mod member;
mod merge;
mod plan;
mod quiet;
mod read;
mod regions;
mod repair;
mod settle;
mod shared;
mod stripe;
mod successor;
mod suspicion;
mod sweep;
mod write;
mod zero;

use core::cell::RefCell;
use core::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::ports::{Env, IoError, IoKind};
use crate::units::GroupOffset;

pub use intent::{INTENT_HEADER_BYTES, IntentConfig};
pub use shared::{GroupConfig, GroupStatus, SCRATCH_BYTES_MAX, Shared, SlotStatus};
pub use sweep::{FINDINGS_MAX, Finding, Pace, ScrubMode, ScrubState, Succession, SweepError, What};

struct Inner<E: Env> {
    env: E,
    shared: Arc<Shared>,
    lane: RefCell<Rc<lane::LaneView<E>>>,
    merge: merge::Queues,
}

/// A group on one lane. Clones are the same group on the same lane.
pub struct Group<E: Env>(Rc<Inner<E>>);

impl<E: Env> Clone for Group<E> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<E: Env> Group<E> {
    /// The group `shared` as the lane of `env` serves it.
    ///
    /// # Panics
    /// If the lane's number is not below the configured number of lanes.
    #[must_use]
    pub fn new(env: E, shared: Arc<Shared>) -> Self {
        assert!(usize::from(env.lane().0) < shared.lanes(), "lane {} of {}", env.lane(), shared.lanes());
        let lane = RefCell::new(Rc::new(lane::LaneView::new(&env, shared.generation())));
        Self(Rc::new(Inner { env, shared, lane, merge: merge::Queues::default() }))
    }

    /// The lane's world.
    #[must_use]
    pub fn env(&self) -> &E {
        &self.0.env
    }

    /// Takes the current view over now instead of with the next request, so that an idle lane lets go of the drives of
    /// members that were dropped.
    pub fn refresh(&self) {
        drop(self.lane_view());
    }

    /// What all lanes share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Refuses what lies outside the group or between blocks.
    fn validate(&self, at: GroupOffset, len: u64, len_max: u64) -> Result<(), IoError> {
        let shared = &self.0.shared;
        let block = u64::from(shared.block_size().bytes());
        if !at.0.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(IoError::new(
                IoKind::Invalid,
                "offset and length must be multiples of the block size",
            ));
        }
        let capacity = shared.geometry().capacity_bytes();
        if at.0 > capacity || len > capacity - at.0 {
            return Err(IoError::new(IoKind::Invalid, "the request ends behind the end of the group"));
        }
        if len > len_max {
            return Err(IoError::new(IoKind::Invalid, "the request is longer than max_request_bytes"));
        }
        Ok(())
    }

    /// The stripes of an extent that is not empty.
    fn stripes_of(&self, range: &Range<u64>) -> Range<u64> {
        let stripe = self.0.shared.geometry().stripe_data_bytes();
        range.start / stripe..(range.end - 1) / stripe + 1
    }
}
