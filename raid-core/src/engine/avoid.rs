//! Members whose reads are avoided while they stay in sync: slow ones that sit out, and write-mostly ones.
//!
//! Writes reach them as ever, so they stay a correct source: reads go another way where there is one (another copy, or the
//! rest of the stripe under its lock) and to the member itself where there is none. Only where the stripe is known in sync:
//! elsewhere parity and copies may not say what the member holds (SAFETY S1).
//!
//! A healthy read pays one relaxed load. The marks are hints and order nothing: whatever way a read goes, it is right.

use core::sync::atomic::{AtomicBool, Ordering};

use super::Group;
use super::lane::LaneView;
use super::shared::Shared;
use super::stripe::{self, Sources};
use crate::geometry::Role;
use crate::ports::Env;
use crate::units::{DataIndex, Slot, Stripe};

/// One mark a slot.
pub(super) struct Avoided {
    any: AtomicBool,
    slots: Box<[AtomicBool]>,
}

impl Avoided {
    pub(super) fn new(members: usize) -> Self {
        Self { any: AtomicBool::new(false), slots: (0..members).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Whether reads of any slot are avoided.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, slot: Slot) -> bool {
        self.any() && self.slots[slot.index()].load(Ordering::Relaxed)
    }
}

impl Shared {
    /// From now on reads of these slots, and no others, are avoided where the data has another source. The caller sees to
    /// it that the group stays readable without them.
    pub fn set_avoided(&self, avoided: impl Fn(Slot) -> bool) {
        let mut any = false;
        for (number, mark) in (0u8..).zip(&self.avoided.slots) {
            let is_avoided = avoided(Slot(number));
            any |= is_avoided;
            mark.store(is_avoided, Ordering::Relaxed);
        }
        self.avoided.any.store(any, Ordering::Relaxed);
    }

    /// Whether reads of the slot are avoided.
    #[must_use]
    pub fn is_avoided(&self, slot: Slot) -> bool {
        self.avoided.has(slot)
    }
}

impl<E: Env> Group<E> {
    /// What a data column of a member that is avoided is computed from instead; `None` where the member itself is to be
    /// read.
    pub(super) fn way_around(
        &self,
        lane: &LaneView<E>,
        stripe: Stripe,
        index: DataIndex,
        columns: &core::ops::Range<u32>,
    ) -> Option<Sources> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let own = geometry.data_slot(stripe, index);
        if geometry.level().parities() == 0 || !shared.avoided.has(own) {
            return None;
        }
        if !shared.regions.is_synced(stripe.0) || shared.regions.is_dirty(stripe.0) {
            return None;
        }
        let readable = |role| {
            let slot = stripe::slot_of(geometry, stripe, role);
            !shared.avoided.has(slot) && stripe::is_readable(shared, lane, stripe, slot, columns)
        };
        stripe::sources(geometry, &[Role::Data(index)], readable)
    }
}
