//! Filling a successor and making it the member: a drive is replaced while it goes on serving, and redundancy never falls.
//!
//! The copy reads the member itself, or around it where reads of it are avoided, a few stripes at a time under their
//! exclusive lock. Blocks the member cannot read come from the others (SAFETY S5); those without a source go to its list
//! of lost blocks, which the successor takes over (S6). When all is copied and flushed, writes are held for the moment in
//! which one published view puts the successor in the slot; if it fails even then, the old member is put back, which has
//! missed nothing.
//!
//! If the old member fails on the way the slot is the successor's to be rebuilt, from where the copy was
//! (`successor.rs`); if the successor fails, it is forgotten.

use core::ops::Range;
use core::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::super::Group;
use super::super::encode::Put;
use super::super::gather::{ReadFault, Want};
use super::super::lane::LaneView;
use super::super::locks::LockMode;
use super::super::shared::is_offline;
use super::super::stripe;
use super::super::successor::{listed, member_of};
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::rebuild::{Targets, Way, lease_sizes};
use super::sparse::take_zeroes;
use super::{Pace, SweepError, Window, windows};
use crate::geometry::Role;
use crate::membership;
use crate::ports::{Clock, Drive, DriveKey, Env, IoError, IoKind};
use crate::units::{Slot, Stripe, Uuid, usize_of_u32};
use crate::view::{MemberState, Successor, View};

/// How long writes under way are waited for before they go on first, and how often that is looked at.
const DRAIN_MAX_NS: u64 = 5_000_000_000;
const DRAIN_STEP_NS: u64 = 200_000;
/// How long writes have their way before they are held again.
const AGAIN_NS: u64 = 1_000_000_000;

/// How a replacement of a serving member ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Succession {
    /// The new drive is the member. The old one is out of the group, whole and no part of it any more.
    Done {
        /// The old member's drive.
        old: Option<DriveKey>,
    },
    /// The old member failed before; the new drive has its slot and is to be rebuilt from where the copy was.
    ToRebuild,
}

/// Why a successor did not take over.
enum Refused {
    /// Writes go on: once more.
    Busy,
    /// The member or its successor failed.
    Ended,
}

impl<E: Env> Group<E> {
    /// Fills `successor` ([`membership::prepare_successor`]) with what the member in sync in `slot` holds, while that one
    /// goes on serving, and then puts it in its place. Writes meanwhile go to both.
    ///
    /// # Errors
    /// The group is as it was before, except for [`SweepError::MemberGone`]: the slot has lost its member, and the
    /// successor was no use. [`SweepError::Cancelled`]; an I/O error of the successor; [`IoKind::Invalid`] if the slot has
    /// no member in sync, or a successor already.
    pub async fn succeed(
        &self,
        slot: Slot,
        successor: Successor,
        pace: &Pace,
    ) -> Result<Succession, SweepError> {
        let ours = successor.device_uuid;
        if let Err(kind) = self.attach(slot, successor).await {
            membership::forget_prepared(self.0.shared.meta(), ours);
            if self.0.shared.view().member(slot).is_missing() {
                return Err(SweepError::MemberGone(slot));
            }
            return Err(IoError::new(kind, "the slot has no member in sync to be replaced").into());
        }
        let ended = match self.fill(slot, ours, pace).await {
            Ok(()) => self.take_over(slot, ours, pace).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(old) => {
                pace.done_bytes.store(pace.total_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
                Ok(Succession::Done { old })
            }
            Err(error) => {
                self.detach(slot, ours).await;
                self.how_it_ended(slot, ours, error)
            }
        }
    }

    /// What became of a replacement that did not go through, whose successor is not listed any more.
    fn how_it_ended(&self, slot: Slot, ours: Uuid, error: SweepError) -> Result<Succession, SweepError> {
        let view = self.0.shared.view();
        let member = view.member(slot);
        match member.state {
            MemberState::Rebuilding if member.device_uuid == ours => Ok(Succession::ToRebuild),
            MemberState::InSync => Err(match self.0.shared.successors.error(slot) {
                Some(failed) if error != SweepError::Cancelled => failed.into(),
                _ => error,
            }),
            _ => Err(SweepError::MemberGone(slot)),
        }
    }

    /// Whether the copy is to go on.
    fn still_succeeding(&self, view: &View, slot: Slot, ours: Uuid) -> Result<(), SweepError> {
        if let Some(error) = self.0.shared.successors.error(slot) {
            return Err(error.into());
        }
        // Beyond tolerance no epoch may be made, or returning members could not complete the group (SAFETY M5).
        if is_offline(self.0.shared.geometry(), view) {
            return Err(IoError::new(IoKind::BeyondTolerance, "the group is offline").into());
        }
        let is_listed = view.member(slot).is_in_sync() && listed(view, slot, ours).is_some();
        if is_listed { Ok(()) } else { Err(SweepError::MemberGone(slot)) }
    }

    async fn fill(&self, slot: Slot, ours: Uuid, pace: &Pace) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        pace.total_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
        pace.done_bytes.store(0, Ordering::Relaxed);
        let mut next = 0;
        while next < geometry.stripes() {
            self.go_on(pace)?;
            let began_ns = self.0.env.clock().now_ns();
            let stripes = next..geometry.stripes().min(next + self.step(pace));
            self.copy_stripes(slot, ours, &stripes).await?;
            next = stripes.end;
            self.keep_pace(pace, (stripes.end - stripes.start) * chunk, began_ns).await?;
        }
        Ok(())
    }

    async fn copy_stripes(&self, slot: Slot, ours: Uuid, stripes: &Range<u64>) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let span = geometry.member_offset(Stripe(stripes.start), 0)
            ..geometry.member_offset(Stripe(stripes.end - 1), 0) + u64::from(geometry.chunk_bytes());
        let _writer = shared.admit_writer().await.map_err(|_| SweepError::Cancelled)?;
        // The way around an avoided member is tried once.
        let mut may_avoid = true;
        for _ in 0..ATTEMPTS_MAX {
            self.still_succeeding(&shared.view(), slot, ours)?;
            if shared.bad.overlaps(slot, &span) {
                return self.copy_by_blocks(slot, ours, stripes).await;
            }
            let todo = windows(geometry, stripes);
            match self.copy_once(slot, ours, stripes, &todo, may_avoid).await {
                Ok(()) => return Ok(()),
                Err(Attempt::Reads(epoch, faults)) => {
                    may_avoid = false;
                    let is_block = |fault: &ReadFault| !fault.error.kind.drops_member_on_read();
                    let of_blocks = faults.iter().any(is_block);
                    let dealt = self.handle_read_faults(epoch, faults).await;
                    self.still_succeeding(&shared.view(), slot, ours)?;
                    match dealt {
                        Err(_) if of_blocks => return self.copy_by_blocks(slot, ours, stripes).await,
                        dealt => dealt?,
                    }
                }
                Err(other) => self.start_again(other).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    /// The slow way past unreadable blocks: every block for itself; those without a source go to the member's list.
    async fn copy_by_blocks(&self, slot: Slot, ours: Uuid, stripes: &Range<u64>) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let block = shared.block_size().bytes();
        for stripe in stripes.clone() {
            let height = geometry.stripe_height(Stripe(stripe));
            let blocks = (0..height).step_by(usize_of_u32(block));
            let todo: Vec<Window> =
                blocks.map(|at| Window { stripe: Stripe(stripe), columns: at..at + block }).collect();
            let mut attempts = 0;
            loop {
                self.still_succeeding(&shared.view(), slot, ours)?;
                match self.copy_once(slot, ours, &(stripe..stripe + 1), &todo, false).await {
                    Ok(()) => break,
                    Err(Attempt::Reads(epoch, faults)) => {
                        for fault in faults {
                            let columns = fault.columns.clone();
                            let is_block = !fault.error.kind.drops_member_on_read();
                            let dealt = self.handle_read_faults(epoch, SmallVec::from_iter([fault])).await;
                            self.still_succeeding(&shared.view(), slot, ours)?;
                            match dealt {
                                Err(_) if is_block => {
                                    let range = stripe::member_range(geometry, Stripe(stripe), &columns);
                                    self.record_bad_blocks(slot, range).await?;
                                }
                                dealt => dealt?,
                            }
                        }
                    }
                    Err(other) => self.start_again(other).await?,
                }
                attempts += 1;
                if attempts > height / block + ATTEMPTS_MAX {
                    return Err(GAVE_UP.into());
                }
            }
        }
        Ok(())
    }

    /// Where a window of the successor comes from. Whatever the member holds is right for it, in sync with the rest of the
    /// stripe or not; another source only where that is known to say the same (SAFETY S1).
    fn copy_way(&self, lane: &LaneView<E>, slot: Slot, window: &Window, may_avoid: bool) -> Way {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let (stripe, columns) = (window.stripe, &window.columns);
        if shared.bad.overlaps(slot, &stripe::member_range(geometry, stripe, columns)) {
            return Way::Lost;
        }
        let is_known = shared.regions.is_synced(stripe.0) && !shared.regions.is_dirty(stripe.0);
        let rank = shared.read_rank(slot);
        if !may_avoid || rank == (false, false) || !is_known || !geometry.level().is_redundant() {
            return Way::Copy(slot);
        }
        let readable =
            |other| shared.read_rank(other) < rank && stripe::is_source(shared, lane, stripe, other, columns);
        let role = geometry.role(stripe, slot);
        if geometry.level().parities() == 0 {
            let Role::Data(index) = role else { return Way::Copy(slot) };
            let other = stripe::copies(geometry, stripe, index).find(|&other| readable(other));
            return Way::Copy(other.unwrap_or(slot));
        }
        let others = |role| readable(stripe::slot_of(geometry, stripe, role));
        match stripe::sources(geometry, &[role], others) {
            Some(sources) => Way::Solve(sources.read, sources.solve),
            None => Way::Copy(slot),
        }
    }

    async fn copy_once(
        &self,
        slot: Slot,
        ours: Uuid,
        stripes: &Range<u64>,
        todo: &[Window],
        may_avoid: bool,
    ) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let ways_of = |lane: &LaneView<E>| {
            todo.iter().map(|window| self.copy_way(lane, slot, window, may_avoid)).collect()
        };
        let planned: Vec<Way> = ways_of(&self.lane_view());
        let mut leases = self.scratch(&lease_sizes(todo, &planned)).await;
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Exclusive).await;
        let entered = self.enter();
        let ways: Vec<Way> = ways_of(&entered);
        let block = shared.block_size().bytes();
        let is_torn_window = |(window, way): (&Window, &Way)| {
            *way == Way::Lost && window.columns.end - window.columns.start > block
        };
        if ways != planned || todo.iter().zip(&ways).any(is_torn_window) {
            return Err(Attempt::Replan);
        }
        if self.still_succeeding(entered.view(), slot, ours).is_err() {
            return Err(Attempt::Replan);
        }
        let epoch = entered.view().epoch;
        let mut wants: Vec<Want> = Vec::new();
        let mut next = 0;
        for (window, way) in todo.iter().zip(&ways) {
            match way {
                Way::Solve(read, _) => self.window_wants(window, read, next, &mut wants),
                Way::Copy(from) => wants.push(self.copy_want(window, *from, next)),
                Way::Lost => {}
            }
            next += way.leases();
        }
        let faults = self.read_all(&entered, &mut wants, &mut leases).await;
        if !faults.is_empty() {
            return Err(Attempt::Reads(epoch, faults));
        }
        let mut puts = self.rebuilt(&Targets::from_iter([slot]), todo, &ways, leases).await;
        self.give_successor(&entered, &mut puts).await;
        if let Some(error) = shared.successors.error(slot) {
            return Err(Attempt::Failed(error));
        }
        let last = Stripe(stripes.end - 1);
        let end = geometry.member_offset(last, 0) + u64::from(geometry.stripe_height(last));
        shared.set_cursor(slot, end.max(shared.cursor(slot)));
        Ok(())
    }

    /// Writes what was copied, zeroes what is zero; a successor that fails is marked.
    async fn give_successor(&self, lane: &LaneView<E>, puts: &mut Vec<Put>) {
        let successors = &self.0.shared.successors;
        let mut zeroes = Vec::new();
        for (slot, range) in take_zeroes(puts) {
            match lane.successor(slot) {
                Some(Ok((drive, start))) => {
                    let range = start.plus(range.start).0..start.plus(range.end).0;
                    zeroes.push((slot, drive.zero(range, true)));
                }
                Some(Err(error)) => successors.fail(slot, error),
                None => {}
            }
        }
        puts.sort_by_key(|put| (put.slot, put.at));
        let copies = self.start_on_successors(lane, puts);
        self.finish_zero_copies(zeroes).await;
        self.finish_copies(copies).await;
    }

    /// Puts a filled successor in its member's place; gives the old member's drive.
    async fn take_over(&self, slot: Slot, ours: Uuid, pace: &Pace) -> Result<Option<DriveKey>, SweepError> {
        loop {
            self.go_on(pace)?;
            self.still_succeeding(&self.0.shared.view(), slot, ours)?;
            // Most of it before anybody has to wait.
            self.flush_successor(slot).await;
            let old = self.0.shared.view().member(slot).drive;
            match self.take_over_once(slot, ours).await {
                Ok(()) => {
                    // A block that was found lost in the same moment.
                    if !self.0.shared.bad.list(slot).is_empty() {
                        self.store_bad_blocks(slot).await?;
                    }
                    return Ok(old);
                }
                Err(Refused::Busy) => {
                    let clock = self.0.env.clock();
                    clock.sleep_until(clock.now_ns() + AGAIN_NS).await;
                }
                Err(Refused::Ended) => {
                    self.still_succeeding(&self.0.shared.view(), slot, ours)?;
                }
            }
        }
    }

    async fn flush_successor(&self, slot: Slot) {
        let lane = self.lane_view();
        let flushed = match lane.successor(slot) {
            Some(Ok((drive, _))) => drive.flush().await,
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        if let Err(error) = flushed {
            self.0.shared.successors.fail(slot, error);
        }
    }

    async fn take_over_once(&self, slot: Slot, ours: Uuid) -> Result<(), Refused> {
        let shared = &self.0.shared;
        let _held = shared.hold_writers();
        let clock = self.0.env.clock();
        let deadline_ns = clock.now_ns() + DRAIN_MAX_NS;
        while shared.writers() > 0 {
            if clock.now_ns() >= deadline_ns {
                return Err(Refused::Busy);
            }
            clock.sleep_until(clock.now_ns() + DRAIN_STEP_NS).await;
        }
        let _turn = shared.change.take().await;
        let before = shared.view();
        self.still_succeeding(&before, slot, ours).map_err(|_| Refused::Ended)?;
        let Some(successor) = listed(&before, slot, ours).cloned() else { return Err(Refused::Ended) };
        let mut next = self.next_view(&before, slot, member_of(&successor, MemberState::InSync));
        self.make_ready(&next, slot, ours).await;
        if shared.successors.error(slot).is_some() {
            return Err(Refused::Ended);
        }
        let kept = membership::keep(shared.meta(), before.member(slot).device_uuid);
        self.raise_epoch(&mut next);
        let joined = next.epoch.counter;
        shared.joined[slot.index()].store(joined, Ordering::SeqCst);
        shared.switch(next).await;
        let lane = self.lane_view();
        let failed = membership::publish(&self.0.env, shared.meta(), lane.view(), &lane.drives()).await;
        if let Some((_, error)) = failed.iter().find(|(failed, _)| *failed == slot) {
            shared.successors.fail(slot, *error);
        }
        if shared.successors.error(slot).is_none() {
            match failed.is_empty() {
                true => {
                    shared.recall_write_mostly();
                    shared.mark_settled(lane.version());
                }
                // Others that could not take it are dropped, as ever.
                false => self.make_durable(&before).await,
            }
            return Ok(());
        }
        // Nothing was written since: the old member is as current as it was.
        membership::put_back(shared.meta(), kept);
        let mut old = before.member(slot).clone();
        old.successor = None;
        let now = shared.view();
        let mut back = self.next_view(&now, slot, old);
        self.raise_epoch(&mut back);
        shared.switch(back).await;
        self.make_durable(&now).await;
        Err(Refused::Ended)
    }

    /// Everything durable on the successor that a member must have before a view lists it as in sync: data, lost blocks,
    /// history.
    async fn make_ready(&self, next: &View, slot: Slot, ours: Uuid) {
        let shared = &self.0.shared;
        self.flush_successor(slot).await;
        let lane = self.lane_view();
        let Some(Ok((drive, _))) = lane.successor(slot) else { return };
        let mut drives = lane.drives();
        drives[slot.index()] = Some(drive.clone());
        let (env, meta) = (&self.0.env, shared.meta());
        let lost = shared.bad.list(slot);
        let mut stored = Ok(());
        if !lost.is_empty() {
            stored = membership::store_bad_blocks(env, meta, next, slot, &lost, &drives).await;
        }
        if stored.is_ok() {
            stored = membership::refresh(env, meta, ours, drive).await;
        }
        if let Err(error) = stored {
            shared.successors.fail(slot, error);
        }
    }
}
