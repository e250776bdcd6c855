//! A view as one lane sees it, with the lane's own drive handles, and the guard that an operation under stripe locks
//! holds so that a membership change waits for it (SAFETY M2, step 1).

use core::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::Group;
use super::shared::{Generation, Shared};
use crate::lease::{Leases, Segs};
use crate::ports::{Done, Drive, Durability, Env, IoError, IoKind};
use crate::units::{DriveOffset, Slot, Stripe};
use crate::view::{MemberState, View};

struct LaneSlot<D> {
    state: MemberState,
    drive: Option<D>,
    data_start: DriveOffset,
    /// The drive that is being filled to take the member's place, and where its data begins.
    successor: Option<(Option<D>, DriveOffset)>,
    /// Reads of this lane on their way, to choose the less busy copy of a mirror.
    queued: Cell<u32>,
}

/// A view with this lane's handles.
pub(super) struct LaneView<E: Env> {
    generation: Arc<Generation>,
    slots: Vec<LaneSlot<E::Drive>>,
    has_successors: bool,
}

/// What a member without a drive handle answers.
const NO_DRIVE: IoError = IoError::new(IoKind::Gone, "the member's drive was taken away");

impl<E: Env> LaneView<E> {
    pub(super) fn new(env: &E, generation: Arc<Generation>) -> Self {
        let slot = |member: &crate::view::Member| LaneSlot {
            state: member.state,
            drive: member.drive.filter(|_| !member.is_missing()).and_then(|key| env.drive(key)),
            data_start: member.layout.data_start,
            successor: member.successor.as_ref().map(|it| (env.drive(it.drive), it.layout.data_start)),
            queued: Cell::new(0),
        };
        let slots: Vec<_> = generation.view.members.iter().map(slot).collect();
        let has_successors = slots.iter().any(|slot| slot.successor.is_some());
        Self { generation, slots, has_successors }
    }

    pub(super) fn version(&self) -> u64 {
        self.generation.view.version
    }

    pub(super) fn view(&self) -> &View {
        &self.generation.view
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<E> {
        self.generation.view.slots()
    }

    pub(super) fn is_in_sync(&self, slot: Slot) -> bool {
        self.slots[slot.index()].state == MemberState::InSync
    }

    pub(super) fn is_missing(&self, slot: Slot) -> bool {
        matches!(self.slots[slot.index()].state, MemberState::Missing { .. })
    }

    /// Whether the slot takes part in the stripe: what is written must reach it, and what it holds is current.
    pub(super) fn is_live(&self, shared: &Shared, slot: Slot, stripe: Stripe) -> bool {
        match self.slots[slot.index()].state {
            MemberState::InSync => true,
            MemberState::Rebuilding => shared.below_cursor(slot, stripe),
            MemberState::Missing { .. } => false,
        }
    }

    pub(super) fn queued(&self, slot: Slot) -> &Cell<u32> {
        &self.slots[slot.index()].queued
    }

    /// The lane's handle and the start of the member's data; an error if the drive was taken away.
    pub(super) fn drive(&self, slot: Slot) -> Result<(&E::Drive, DriveOffset), IoError> {
        let slot = &self.slots[slot.index()];
        slot.drive.as_ref().map(|drive| (drive, slot.data_start)).ok_or(NO_DRIVE)
    }

    /// Whether any member has a successor.
    pub(super) fn has_successors(&self) -> bool {
        self.has_successors
    }

    /// As [`LaneView::drive`], of the slot's successor; `None` if it has none.
    pub(super) fn successor(&self, slot: Slot) -> Option<Result<(&E::Drive, DriveOffset), IoError>> {
        let (drive, data_start) = self.slots[slot.index()].successor.as_ref()?;
        Some(drive.as_ref().map(|drive| (drive, *data_start)).ok_or(NO_DRIVE))
    }

    /// This lane's handles in slot order, as publishing takes them.
    pub(super) fn drives(&self) -> Vec<Option<E::Drive>> {
        self.slots.iter().map(|slot| slot.drive.clone()).collect()
    }
}

/// The current view, held while an operation under stripe locks uses it.
pub(super) struct Entered<E: Env> {
    lane: Rc<LaneView<E>>,
}

impl<E: Env> core::ops::Deref for Entered<E> {
    type Target = LaneView<E>;

    fn deref(&self) -> &LaneView<E> {
        &self.lane
    }
}

impl<E: Env> Drop for Entered<E> {
    fn drop(&mut self) {
        self.lane.generation.leave();
    }
}

impl<E: Env> Group<E> {
    /// This lane's handles for the current view, without holding it.
    pub(super) fn lane_view(&self) -> Rc<LaneView<E>> {
        let cached = Rc::clone(&self.0.lane.borrow());
        if cached.version() == self.0.shared.version() {
            return cached;
        }
        let fresh = Rc::new(LaneView::new(&self.0.env, self.0.shared.generation()));
        *self.0.lane.borrow_mut() = Rc::clone(&fresh);
        fresh
    }

    /// Holds the current view. The caller holds its stripe locks already: whoever waits for a lock must hold no view.
    pub(super) fn enter(&self) -> Entered<E> {
        loop {
            let lane = self.lane_view();
            lane.generation.enter();
            let entered = Entered { lane };
            // Counted before the look at the version: a change that this look misses sees the count.
            if entered.version() == self.0.shared.version() {
                return entered;
            }
        }
    }

    /// Starts a read of the slot's data area; counts it.
    pub(super) fn start_read(
        &self,
        lane: &LaneView<E>,
        slot: Slot,
        at: u64,
        into: Leases,
    ) -> Started<impl Future<Output = Done<Leases>> + use<E>> {
        self.0.shared.counters(self.0.env.lane()).read(slot);
        match lane.drive(slot) {
            Ok((drive, start)) => Started::Running(drive.read(start.plus(at), into)),
            Err(error) => Started::Refused(error, Some(into)),
        }
    }

    /// Starts a write to the slot's data area; counts it.
    pub(super) fn start_write(
        &self,
        lane: &LaneView<E>,
        slot: Slot,
        at: u64,
        from: Segs,
        how: Durability,
    ) -> Started<impl Future<Output = Result<(), IoError>> + use<E>> {
        self.0.shared.counters(self.0.env.lane()).write(slot);
        Self::write_on(lane.drive(slot), at, from, how)
    }

    /// Starts a write to a data area, of which `target` says where it begins.
    pub(super) fn write_on(
        target: Result<(&E::Drive, DriveOffset), IoError>,
        at: u64,
        from: Segs,
        how: Durability,
    ) -> Started<impl Future<Output = Result<(), IoError>> + use<E>> {
        match target {
            Ok((drive, start)) => Started::Running(drive.write(start.plus(at), from, how)),
            Err(error) => Started::Refused(error, None),
        }
    }

    /// Counts a failed command of the slot.
    pub(super) fn count_error(&self, slot: Slot) {
        self.0.shared.counters(self.0.env.lane()).error(slot);
    }
}

/// A command on its way, or refused because there is no drive.
pub(super) enum Started<F> {
    Running(F),
    Refused(IoError, Option<Leases>),
}

impl<F: Future<Output = Done<Leases>>> Started<F> {
    pub(super) async fn finish_read(self) -> Done<Leases> {
        match self {
            Self::Running(command) => command.await,
            Self::Refused(error, buf) => Done { result: Err(error), buf },
        }
    }
}

impl<F: Future<Output = Result<(), IoError>>> Started<F> {
    pub(super) async fn finish(self) -> Result<(), IoError> {
        match self {
            Self::Running(command) => command.await,
            Self::Refused(error, _) => Err(error),
        }
    }
}
