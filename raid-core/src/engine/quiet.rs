//! The quiet mark: a parity group short of a member that is not being written says so on its drives, so that a crash while
//! it idles leaves no doubt about its stripes (promise P2), and a member it loses then completes it again (SAFETY M5).
//!
//! Intent bits cannot do this: while the group is degraded they tell what the absent member lacks and stay set (SAFETY
//! S4). On a complete group they do, so only a start and degraded groups mark themselves quiet.
//!
//! Invariants: in [`Phase::Dirty`] every member in sync of the view carries the dirty mark, and only then writes are
//! **armed**, that is may commit. The phase leaves it only while no write is armed; then all members are flushed and the
//! mark is written. Whatever fails or is interrupted after that, the phase is not dirty again before all members of the
//! view of a write have taken the dirty mark. A write that did not settle spoils the run: it is never marked quiet again.
//!
//! A write waits for the turn of `marking` under its locks and its view; whoever has that turn waits for drives only.

use std::sync::Arc;

use super::Group;
use super::intent::{IntentTicket, Intents, Phase, SlotErrors};
use super::lane::LaneView;
use super::shared::is_offline;
use crate::membership::{self, GroupMeta, Mark};
use crate::ports::{Clock, Env, IoError, IoKind};
use crate::units::Slot;
use crate::view::{Epoch, View};

/// How long a drop on the operator's word waits for writes in flight, and how often it looks.
const DRAIN_MAX_NS: u64 = 5_000_000_000;
const DRAIN_STEP_NS: u64 = 1_000_000;

impl<E: Env> Group<E> {
    /// Lets a write commit that began while the members were marked quiet: makes the dirty mark durable on all of them.
    pub(super) async fn mark_dirty(
        &self,
        lane: &LaneView<E>,
        ticket: &IntentTicket<'_>,
    ) -> Result<(), SlotErrors> {
        let _turn = ticket.intents().marking.take().await;
        // Whoever had the turn before has done it for us, most of the time.
        if ticket.arm() {
            return Ok(());
        }
        let errors = self.store_mark(lane, Mark::Dirty).await;
        if !errors.is_empty() {
            return Err(errors);
        }
        ticket.arm_as_dirty();
        Ok(())
    }

    async fn store_mark(&self, lane: &LaneView<E>, mark: Mark) -> SlotErrors {
        let meta = self.0.shared.meta();
        let failed = membership::store_mark(&self.0.env, meta, lane.view(), mark, &lane.drives()).await;
        failed.iter().for_each(|(slot, _)| self.count_error(*slot));
        failed.into_iter().collect()
    }

    /// Whether a view is one that the quiet mark is for.
    fn may_be_quiet(&self, view: &View) -> bool {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let is_on_drives = matches!(**shared.meta(), GroupMeta::Persistent(_));
        is_on_drives && geometry.level().parities() > 0 && !view.is_complete() && !is_offline(geometry, view)
    }

    /// Marks a degraded parity group quiet if nothing was written for `linger` ticks. Does nothing while its membership
    /// changes.
    pub(super) async fn quiet_down(&self, linger: u8) -> Result<(), IoError> {
        let shared = &self.0.shared;
        let Some(intents) = &shared.intents else { return Ok(()) };
        if !self.may_be_quiet(&shared.view()) {
            return Ok(());
        }
        let (epoch, errors) = {
            let Some(_change) = shared.change.try_take() else { return Ok(()) };
            self.make_quiet(intents, linger).await
        };
        self.fail_all(epoch, errors).await
    }

    /// With the turn of `change`, so that the view is settled and stays as it is.
    async fn make_quiet(&self, intents: &Intents, linger: u8) -> (Epoch, SlotErrors) {
        let _turn = intents.marking.take().await;
        let lane = self.lane_view();
        let epoch = lane.view().epoch;
        if !self.may_be_quiet(lane.view()) || !intents.start_quieting(linger) {
            return (epoch, SlotErrors::new());
        }
        let errors = self.flush_members(&lane).await;
        if !errors.is_empty() || intents.has_waiting() {
            // No member was told anything yet.
            intents.end_quieting(Phase::Dirty);
            return (epoch, errors);
        }
        let errors = self.store_mark(&lane, Mark::Quiet).await;
        intents.end_quieting(Phase::Quiet);
        (epoch, errors)
    }

    /// Tells the members that all of them have taken the newest epoch, if no other mark has done so (promise P3).
    pub(super) async fn seal(&self) -> Result<(), IoError> {
        let wants = match &**self.0.shared.meta() {
            GroupMeta::Persistent(meta) => meta.wants_seal(),
            GroupMeta::Volatile => false,
        };
        if !wants {
            return Ok(());
        }
        let lane = self.lane_view();
        let errors = self.store_mark(&lane, Mark::Sealed).await;
        self.fail_all(lane.view().epoch, errors).await
    }

    /// Drops a member because the operator said so: [`Group::fail`]. If that takes a parity group offline, new writes are
    /// held first, and when those that run have ended the group is marked quiet: the member was current when it went, and
    /// completes the group again without force. Writes that do not end within seconds are not waited for.
    ///
    /// # Errors
    /// As [`Group::fail`].
    pub async fn fail_by_operator(&self, seen: Epoch, slot: Slot, why: IoKind) -> Result<Arc<View>, IoKind> {
        let shared = &self.0.shared;
        let view = shared.view();
        let left = |other: Slot| other != slot && view.member(other).is_in_sync();
        let goes_offline = self.may_be_quiet(&view) && !shared.geometry().is_readable(left);
        let Some(intents) = shared.intents.as_ref().filter(|_| goes_offline) else {
            return self.fail(seen, slot, why).await;
        };
        let _held = shared.hold_writers();
        let clock = self.0.env.clock();
        let deadline_ns = clock.now_ns() + DRAIN_MAX_NS;
        while shared.writers() > 0 && clock.now_ns() < deadline_ns {
            clock.sleep_until(clock.now_ns() + DRAIN_STEP_NS).await;
        }
        let (epoch, errors) = {
            let _change = shared.change.take().await;
            self.make_quiet(intents, 0).await
        };
        for (slot, error) in errors {
            self.fail(epoch, slot, error.kind).await?;
        }
        self.fail(seen, slot, why).await
    }
}
