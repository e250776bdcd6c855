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
use crate::membership::{self, GroupMeta};
use crate::ports::{Env, IoError};
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

    fn set(&self, is_marked: impl Fn(Slot) -> bool) {
        let mut any = false;
        for (number, mark) in (0u8..).zip(&self.slots) {
            let is_marked = is_marked(Slot(number));
            any |= is_marked;
            mark.store(is_marked, Ordering::Relaxed);
        }
        self.any.store(any, Ordering::Relaxed);
    }

    pub(super) fn has(&self, slot: Slot) -> bool {
        self.any() && self.slots[slot.index()].load(Ordering::Relaxed)
    }
}

impl Shared {
    /// As [`Shared::set_avoided`] for members that are read only where no other copy can be; on mirrors only.
    pub fn set_write_mostly(&self, is_marked: impl Fn(Slot) -> bool) {
        self.write_mostly.set(is_marked);
    }

    /// Whether the slot's member is read only where no other copy can be.
    #[must_use]
    pub fn is_write_mostly(&self, slot: Slot) -> bool {
        self.write_mostly.has(slot)
    }

    /// Takes the marks over that lie on the members of now.
    pub(super) fn recall_write_mostly(&self) {
        if let GroupMeta::Persistent(meta) = &**self.meta() {
            self.set_write_mostly(|slot| meta.is_write_mostly(slot));
        }
    }

    /// Of copies that hold the same the one with the lowest rank is read: a write-mostly one only if there is no other.
    pub(super) fn read_rank(&self, slot: Slot) -> (bool, bool) {
        (self.write_mostly.has(slot), self.avoided.has(slot))
    }

    /// From now on reads of these slots, and no others, are avoided where the data has another source. The caller sees to
    /// it that the group stays readable without them.
    pub fn set_avoided(&self, avoided: impl Fn(Slot) -> bool) {
        self.avoided.set(avoided);
    }

    /// Whether reads of the slot are avoided.
    #[must_use]
    pub fn is_avoided(&self, slot: Slot) -> bool {
        self.avoided.has(slot)
    }
}

impl<E: Env> Group<E> {
    /// Marks the members of these slots write-mostly, and no others: durably, on their drives. A member that cannot take it
    /// is dropped.
    ///
    /// # Errors
    /// What a member failed with that could not be dropped.
    pub async fn mark_write_mostly(&self, is_marked: impl Fn(Slot) -> bool) -> Result<(), IoError> {
        let shared = &self.0.shared;
        let (epoch, failed) = {
            let _turn = shared.change.take().await;
            let lane = self.lane_view();
            let meta = shared.meta();
            let failed = membership::store_write_mostly(&self.0.env, meta, &is_marked, &lane.drives()).await;
            match **meta {
                GroupMeta::Persistent(_) => shared.recall_write_mostly(),
                GroupMeta::Volatile => shared.set_write_mostly(&is_marked),
            }
            (lane.view().epoch, failed)
        };
        self.fail_all(epoch, failed.into_iter().collect()).await
    }

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
            !shared.avoided.has(slot) && stripe::is_source(shared, lane, stripe, slot, columns)
        };
        stripe::sources(geometry, &[Role::Data(index)], readable)
    }
}
