//! Successors: drives that are filled to take a member's place while that one goes on serving. Here is how they are kept
//! in step with it, and how they come and go; the copy itself is `sweep/succeed.rs`.
//!
//! Invariants:
//! - A successor is never read, and no epoch lists it: whatever happens to it, the group is as it was without it.
//! - It belongs to the view, so no operation misses it: everything that writes to its member, and all of the bitmap, goes to
//!   it too, as far as it has been copied (the slot's cursor, which a member in sync has no use for). The cursor moves
//!   under the exclusive lock of the stripes it passes, as a rebuild's does (SAFETY S2, S3).
//! - One that fails anything is marked before the operation ends, and is not made a member after that.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Group;
use super::commit::runs;
use super::encode::Put;
use super::lane::{LaneView, Started};
use super::shared::Shared;
use crate::lease::Seg;
use crate::membership;
use crate::ports::{Drive, Durability, Env, IoError, IoKind, one_seg};
use crate::units::{DriveOffset, Slot, Uuid, u32_of};
use crate::view::{Member, MemberState, Successor, View};

/// Per slot, what its successor failed with.
pub(super) struct Successors {
    failed: Box<[AtomicBool]>,
    errors: Mutex<Vec<Option<IoError>>>,
}

impl Successors {
    pub(super) fn new(members: usize) -> Self {
        let failed = (0..members).map(|_| AtomicBool::new(false)).collect();
        Self { failed, errors: Mutex::new(vec![None; members]) }
    }

    /// From now on the slot's successor is out of step.
    pub(super) fn fail(&self, slot: Slot, error: IoError) {
        self.errors.lock()[slot.index()].get_or_insert(error);
        self.failed[slot.index()].store(true, Ordering::SeqCst);
    }

    /// What the slot's successor failed with.
    pub(super) fn error(&self, slot: Slot) -> Option<IoError> {
        if self.failed[slot.index()].load(Ordering::SeqCst) { self.errors.lock()[slot.index()] } else { None }
    }

    /// Another one comes. With the turn of `change`, and no view that lists the one before.
    fn forget(&self, slot: Slot) {
        self.errors.lock()[slot.index()] = None;
        self.failed[slot.index()].store(false, Ordering::SeqCst);
    }
}

impl Shared {
    /// The member that a successor becomes: current below the slot's cursor. None if it is out of step, or if its member has
    /// lost blocks, of which it would have to know.
    pub(super) fn heir(&self, slot: Slot, member: &Member) -> Option<Member> {
        let successor = member.successor.as_deref().filter(|_| self.is_in_step(slot))?;
        Some(member_of(successor, MemberState::Rebuilding))
    }

    /// How many bytes of a member in sync its successor has been given; none without one.
    #[must_use]
    pub fn successor_bytes(&self, slot: Slot) -> Option<u64> {
        let view = self.view();
        view.member(slot).successor.as_ref().map(|_| self.cursor(slot).min(self.geometry().member_bytes()))
    }

    fn is_in_step(&self, slot: Slot) -> bool {
        self.successors.error(slot).is_none() && self.bad.list(slot).is_empty()
    }
}

/// A member as the slot without it remembers it.
pub(super) fn gone(member: &Member, why: IoKind) -> Member {
    let mut dropped = member.clone();
    dropped.state = MemberState::Missing { why: Some(why) };
    dropped.drive = None;
    dropped.successor = None;
    dropped
}

/// What a successor is as a member.
pub(super) fn member_of(successor: &Successor, state: MemberState) -> Member {
    Member {
        state,
        drive: Some(successor.drive),
        device_uuid: successor.device_uuid,
        dev_number: successor.dev_number,
        last_in_sync: 0,
        layout: successor.layout.clone(),
        successor: None,
    }
}

/// The successor of a slot in a view, if it is this one.
pub(super) fn listed(view: &View, slot: Slot, device_uuid: Uuid) -> Option<&Successor> {
    let successor = view.member(slot).successor.as_deref();
    successor.filter(|successor| successor.device_uuid == device_uuid)
}

impl<E: Env> Group<E> {
    /// Gives successors what their members are given, where they have been copied. The caller holds the stripe locks.
    pub(super) fn start_copies(
        &self,
        lane: &LaneView<E>,
        puts: &[Put],
    ) -> Vec<(Slot, Started<impl Future<Output = Result<(), IoError>> + use<E>>)> {
        if !lane.has_successors() {
            return Vec::new();
        }
        let shared = &self.0.shared;
        let is_due = |put: &&Put| {
            lane.successor(put.slot).is_some()
                && shared.successors.error(put.slot).is_none()
                && put.end() <= shared.cursor(put.slot)
        };
        let due: Vec<Put> = puts.iter().filter(is_due).cloned().collect();
        self.start_on_successors(lane, &due)
    }

    /// Starts sorted puts on the successors of their slots.
    pub(super) fn start_on_successors(
        &self,
        lane: &LaneView<E>,
        puts: &[Put],
    ) -> Vec<(Slot, Started<impl Future<Output = Result<(), IoError>> + use<E>>)> {
        let start = |(slot, at, from)| {
            let target = lane.successor(slot)?;
            Some((slot, Self::write_on(target, at, from, Durability::Cached)))
        };
        runs(puts.iter()).filter_map(start).collect()
    }

    /// Waits for them; one that fails is out of step.
    pub(super) async fn finish_copies(
        &self,
        copies: Vec<(Slot, Started<impl Future<Output = Result<(), IoError>>>)>,
    ) {
        for (slot, copy) in copies {
            if let Err(error) = copy.finish().await {
                self.0.shared.successors.fail(slot, error);
            }
        }
    }

    /// As [`Group::start_copies`], for zeroes.
    pub(super) fn start_zero_copies(
        &self,
        lane: &LaneView<E>,
        zeroed: &[(Slot, Range<u64>)],
        unmap: bool,
    ) -> Vec<(Slot, impl Future<Output = Result<(), IoError>> + use<E>)> {
        let shared = &self.0.shared;
        let mut copies = Vec::new();
        for (slot, range) in zeroed.iter().filter(|_| lane.has_successors()) {
            let range = range.start..range.end.min(shared.cursor(*slot));
            match lane.successor(*slot).filter(|_| !range.is_empty()) {
                None => {}
                Some(Ok((drive, start))) => {
                    let range = start.plus(range.start).0..start.plus(range.end).0;
                    copies.push((*slot, drive.zero(range, unmap)));
                }
                Some(Err(error)) => shared.successors.fail(*slot, error),
            }
        }
        copies
    }

    /// Waits for them; one that fails is out of step.
    pub(super) async fn finish_zero_copies(
        &self,
        copies: Vec<(Slot, impl Future<Output = Result<(), IoError>>)>,
    ) {
        for (slot, copy) in copies {
            if let Err(error) = copy.await {
                self.0.shared.successors.fail(slot, error);
            }
        }
    }

    /// Writes some bytes of the bitmap, `at` from its start, to all successors.
    pub(super) fn start_intent_copies(
        &self,
        lane: &LaneView<E>,
        at: u64,
        page: &Seg,
    ) -> Vec<(Slot, impl Future<Output = Result<(), IoError>> + use<E>)> {
        let mut copies = Vec::new();
        for slot in lane.slots().filter(|_| lane.has_successors()) {
            let Some(successor) = lane.view().member(slot).successor.as_deref() else { continue };
            let Some(area) = successor.layout.bitmap.clone() else { continue };
            let at = area.start + at;
            let len = area.end.saturating_sub(at).min(u64::from(page.len()));
            match lane.successor(slot) {
                Some(Ok((drive, _))) if len > 0 => {
                    let part = one_seg(page.slice(0..u32_of(len)));
                    copies.push((slot, drive.write(DriveOffset(at), part, Durability::Fua)));
                }
                Some(Err(error)) => self.0.shared.successors.fail(slot, error),
                _ => {}
            }
        }
        copies
    }

    /// Makes a drive the successor of a member in sync: from now on it is kept in step where it has been copied, which is
    /// nowhere yet. In memory only.
    ///
    /// # Errors
    /// [`IoKind::Invalid`] if the slot's member is not in sync or has a successor already; [`IoKind::BeyondTolerance`] in a
    /// group that is offline.
    pub(super) async fn attach(&self, slot: Slot, successor: Successor) -> Result<(), IoKind> {
        let shared = &self.0.shared;
        {
            let _turn = shared.change.take().await;
            let view = shared.view();
            let mut member = view.member(slot).clone();
            if !member.is_in_sync() || member.successor.is_some() {
                return Err(IoKind::Invalid);
            }
            if shared.is_offline() {
                return Err(IoKind::BeyondTolerance);
            }
            shared.successors.forget(slot);
            shared.set_cursor(slot, 0);
            member.successor = Some(Box::new(successor));
            self.relist(&view, slot, member).await;
        }
        self.copy_intents_to_successors().await;
        Ok(())
    }

    /// Takes a successor out again; the group is as it was before.
    pub(super) async fn detach(&self, slot: Slot, device_uuid: Uuid) {
        let shared = &self.0.shared;
        let _turn = shared.change.take().await;
        let view = shared.view();
        if listed(&view, slot, device_uuid).is_some() {
            let mut member = view.member(slot).clone();
            member.successor = None;
            self.relist(&view, slot, member).await;
        }
        membership::forget_prepared(shared.meta(), device_uuid);
    }

    /// Publishes a view of the same epoch that differs in nothing an epoch tells. With the turn of `change`.
    async fn relist(&self, view: &View, slot: Slot, member: Member) {
        let next = self.next_view(view, slot, member);
        let version = next.version;
        self.0.shared.switch(next).await;
        self.0.shared.mark_settled(version);
    }

    /// After all have entered the view that made a successor the slot's member, and before it is durable: one that fell out
    /// of step on the way leaves the slot as `dropped` says. With the turn of `change`.
    pub(super) async fn check_heir(&self, slot: Slot, dropped: Member) {
        let shared = &self.0.shared;
        if !shared.is_in_step(slot) {
            let next = self.next_view(&shared.view(), slot, dropped);
            shared.switch(next).await;
        }
    }
}
