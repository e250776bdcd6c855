//! Membership changes of a running group: dropping a member (SAFETY M2) and giving a slot a new one to rebuild.
//!
//! Changes come one after the other (`Shared::change`). Each publishes the next view, waits until the operations under
//! the old one have ended, and makes the epoch durable; whoever ran under the new view before that waits in
//! `Shared::wait_settled`. A caller may hold stripe locks but no view.

use core::ops::Range;
use std::sync::Arc;

use super::Group;
use super::intent::SlotErrors;
use super::shared::is_offline;
use super::successor::gone;
use crate::geometry::{Geometry, Level};
use crate::membership;
use crate::ports::{Env, IoError, IoKind};
use crate::units::{Slot, Uuid};
use crate::view::{Epoch, Member, MemberState, View};

/// Whether blocks of this slot would have no copy left if it went.
fn is_last_copy(geometry: &Geometry, view: &View, slot: Slot) -> bool {
    let others_in_sync = |range: core::ops::Range<u8>| {
        range.filter(|&other| other != slot.0).any(|other| view.member(Slot(other)).is_in_sync())
    };
    match geometry.level() {
        Level::Raid0 => true,
        Level::Raid1 => !others_in_sync(0..geometry.members()),
        Level::Raid10 => !others_in_sync(slot.0 / 2 * 2..slot.0 / 2 * 2 + 2),
        Level::Raid5 | Level::Raid6 => false,
    }
}

/// Whether dropping the slot leaves its blocks without a source, so that no write may skip it: then the drop needs no
/// epoch, and must not have one, or the returning member could not complete the group (SAFETY M5).
fn is_beyond(geometry: &Geometry, before: &View, after: &View, slot: Slot) -> bool {
    if !before.member(slot).is_in_sync() {
        return false;
    }
    match geometry.level() {
        Level::Raid5 | Level::Raid6 => is_offline(geometry, after),
        _ => is_last_copy(geometry, before, slot),
    }
}

impl<E: Env> Group<E> {
    pub(super) fn next_view(&self, view: &View, slot: Slot, member: Member) -> View {
        let mut next = view.clone();
        next.version += 1;
        next.members[slot.index()] = member;
        next
    }

    /// Gives the view an epoch of its own.
    pub(super) fn raise_epoch(&self, view: &mut View) {
        let counter = view.epoch.counter + 1;
        view.epoch =
            Epoch { counter, id: Uuid::from_random(self.0.env.random_u64(), self.0.env.random_u64()) };
        for member in view.members.iter_mut().filter(|member| member.is_in_sync()) {
            member.last_in_sync = counter;
        }
    }

    /// Drops a member because of `why`, which an operation met in epoch `seen` (SAFETY M2). Returns the view without it
    /// once its epoch is durable on every member it lists; a member that cannot take the epoch is dropped by a further
    /// one. Also the verb `drive fail`. Reports about a member that has left its slot since do nothing.
    ///
    /// **Beyond tolerance** the drop is published in memory only and never becomes an epoch: no write may skip a member
    /// whose blocks have no other source, so when it returns it is as current as it was (SAFETY M5). A parity group then
    /// takes no write at all; RAID 0, 1 and 10 refuse exactly the blocks without a live copy. The last copy of a mirror or a
    /// member of RAID 0 is not dropped for a medium error: that would lose more than the blocks it is about.
    ///
    /// # Errors
    /// `why`, if the member was kept because it is the last copy of its blocks.
    pub async fn fail(&self, seen: Epoch, slot: Slot, why: IoKind) -> Result<Arc<View>, IoKind> {
        let shared = &self.0.shared;
        let _turn = shared.change.take().await;
        let view = shared.view();
        let joined = shared.joined[slot.index()].load(core::sync::atomic::Ordering::SeqCst);
        if view.member(slot).is_missing() || joined > seen.counter {
            return Ok(view);
        }
        let geometry = *shared.geometry();
        let alive = matches!(why, IoKind::Medium | IoKind::Protection);
        if alive && view.member(slot).is_in_sync() && is_last_copy(&geometry, &view, slot) {
            return Err(why);
        }
        let mut dropped = gone(view.member(slot), why);
        if view.member(slot).is_in_sync() {
            dropped.last_in_sync = view.epoch.counter;
        }
        let mut next = self.next_view(&view, slot, dropped);
        if is_beyond(&geometry, &view, &next, slot) {
            let version = next.version;
            shared.switch(next).await;
            shared.mark_settled(version);
            return Ok(shared.view());
        }
        self.raise_epoch(&mut next);
        if let Some(heir) = shared.heir(slot, view.member(slot)) {
            // The next failure may be about the old drive still.
            shared.joined[slot.index()].store(next.epoch.counter, core::sync::atomic::Ordering::SeqCst);
            shared.set_by_intents(slot, false);
            let dropped = core::mem::replace(&mut next.members[slot.index()], heir);
            shared.switch(next).await;
            self.check_heir(slot, dropped).await;
        } else {
            shared.switch(next).await;
        }
        self.make_durable(&view).await;
        Ok(shared.view())
    }

    /// Publishes the current view's epoch to its members (SAFETY M2, step 2). Members that fail to take it are dropped by
    /// a further epoch until all take it or the group is beyond its tolerance. With the turn of `change`.
    /// `settled` is the view before the change.
    pub(super) async fn make_durable(&self, settled: &View) {
        let shared = &self.0.shared;
        loop {
            let lane = self.lane_view();
            let failed = membership::publish(&self.0.env, shared.meta(), lane.view(), &lane.drives()).await;
            let before = lane.view().clone();
            let mut next = before.clone();
            for (slot, error) in failed {
                self.count_error(slot);
                let last_copy = is_last_copy(shared.geometry(), &next, slot);
                let member = &mut next.members[slot.index()];
                // The last copy of its blocks is still as current as in the last epoch it surely took; any other is
                // stale from now on, whether it took this one or not.
                if last_copy {
                    member.last_in_sync = settled.member(slot).last_in_sync;
                }
                *member = gone(member, error.kind);
            }
            let geometry = shared.geometry();
            let changed = next.members.iter().zip(&before.members).any(|(a, b)| a.state != b.state);
            if !changed {
                shared.recall_write_mostly();
                shared.mark_settled(before.version);
                return;
            }
            next.version += 1;
            let parity_offline = geometry.level().parities() > 0 && is_offline(geometry, &next);
            if !parity_offline {
                self.raise_epoch(&mut next);
            }
            let version = next.version;
            shared.switch(next).await;
            if parity_offline {
                // Nothing runs under this view that would need an epoch: settle refuses every write of it.
                shared.mark_settled(version);
                return;
            }
        }
    }

    /// Drops every member that failed an operation of epoch `seen`; none because the daemon itself is stopping, which is no
    /// member's fault.
    pub(super) async fn fail_all(&self, seen: Epoch, errors: SlotErrors) -> Result<(), IoError> {
        let mut kept = Ok(());
        for (slot, error) in errors {
            let is_ours = error.kind == IoKind::ShuttingDown;
            if is_ours || self.fail(seen, slot, error.kind).await.is_err() {
                kept = Err(error);
            }
        }
        kept
    }

    /// Puts a new member into a missing slot, to be rebuilt from the start: publishes a view that lists it as rebuilding,
    /// once that epoch is durable, and writes the intent bitmap to it. Run [`Group::rebuild`] next.
    ///
    /// # Errors
    /// [`IoKind::Invalid`] if the slot has a member or the new one is not marked as rebuilding; [`IoKind::BeyondTolerance`]
    /// if the group has no source to rebuild from: adding drives never brings it back (SAFETY M5); the error of the new
    /// drive if it failed at once.
    pub async fn add_member(&self, slot: Slot, member: Member) -> Result<Arc<View>, IoKind> {
        self.join(slot, member, None).await
    }

    /// Puts a member back into its slot that was dropped from it ([`membership::prepare_return`]): as
    /// [`Group::add_member`], but [`Group::rebuild`] then copies only what intent bits cover, or what is on its list of
    /// lost blocks (SAFETY M6, S6). `bad_blocks` is that list: ranges of its data area.
    ///
    /// # Errors
    /// As [`Group::add_member`]; [`IoKind::Invalid`] also in a group without intent bits.
    pub async fn readd_member(
        &self,
        slot: Slot,
        member: Member,
        bad_blocks: &[Range<u64>],
    ) -> Result<Arc<View>, IoKind> {
        if self.0.shared.intents.is_none() {
            return Err(IoKind::Invalid);
        }
        self.join(slot, member, Some(bad_blocks)).await
    }

    /// `came_back`: the lost blocks of a member that needs only what intent bits cover; none: it is blank.
    async fn join(
        &self,
        slot: Slot,
        member: Member,
        came_back: Option<&[Range<u64>]>,
    ) -> Result<Arc<View>, IoKind> {
        let shared = &self.0.shared;
        {
            let _turn = shared.change.take().await;
            let view = shared.view();
            if !view.member(slot).is_missing() || member.state != MemberState::Rebuilding {
                return Err(IoKind::Invalid);
            }
            let geometry = *shared.geometry();
            let beyond = match geometry.level() {
                Level::Raid5 | Level::Raid6 => is_offline(&geometry, &view),
                _ => is_last_copy(&geometry, &view, slot),
            };
            if beyond {
                return Err(IoKind::BeyondTolerance);
            }
            shared.set_cursor(slot, 0);
            shared.bad.clear_slot(slot);
            if came_back.is_none() {
                // What was found wrong was on another drive.
                shared.suspect.clear_slot(slot);
            }
            for range in came_back.unwrap_or_default() {
                shared.bad.add(slot, range.clone());
            }
            shared.set_by_intents(slot, came_back.is_some());
            let mut next = self.next_view(&view, slot, member);
            self.raise_epoch(&mut next);
            shared.joined[slot.index()].store(next.epoch.counter, core::sync::atomic::Ordering::SeqCst);
            shared.switch(next).await;
            self.make_durable(&view).await;
        }
        let view = shared.view();
        if let MemberState::Missing { why } = view.member(slot).state {
            return Err(why.unwrap_or(IoKind::Gone));
        }
        if let Err(error) = self.copy_intents(slot).await {
            self.fail(view.epoch, slot, error.kind).await?;
            return Err(error.kind);
        }
        Ok(shared.view())
    }

    /// Publishes that a rebuilt member is in sync everywhere. `seen` is the epoch of its rebuild.
    pub(super) async fn promote(&self, slot: Slot) -> Result<(), IoKind> {
        let shared = &self.0.shared;
        let _turn = shared.change.take().await;
        let view = shared.view();
        if view.member(slot).state != MemberState::Rebuilding {
            return Err(IoKind::Gone);
        }
        let mut member = view.member(slot).clone();
        member.state = MemberState::InSync;
        let mut next = self.next_view(&view, slot, member);
        self.raise_epoch(&mut next);
        shared.switch(next).await;
        self.make_durable(&view).await;
        match shared.view().member(slot).state {
            MemberState::InSync => Ok(()),
            _ => Err(IoKind::Gone),
        }
    }
}
