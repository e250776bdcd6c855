//! Rebuild of a slot's new member from the others.
//!
//! Invariants (SAFETY S2, S3): a step holds the exclusive lock of its stripes from the first read until the cursor is
//! past them; the cursor that is stored is one up to which the target was flushed before. A block without a source goes
//! to the target's bad-block list and the rebuild goes on (S6).

use core::ops::Range;
use core::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::super::Group;
use super::super::encode::Put;
use super::super::gather::{ReadFault, Want};
use super::super::lane::{Entered, LaneView};
use super::super::locks::LockMode;
use super::super::repair::one_error;
use super::super::shared::is_offline;
use super::super::stripe::{self, Roles};
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::{Pace, SweepError, Window, windows};
use crate::geometry::Role;
use crate::lease::{Lease, Seg};
use crate::membership;
use crate::ports::{Clock, Drive, Durability, Env, IoError, IoKind};
use crate::units::{Slot, Stripe};
use crate::view::MemberState;

/// The cursor is stored after this many bytes at the latest: what a restart may have to copy again.
const STORE_EVERY_BYTES: u64 = 256 * 1024 * 1024;

/// How one window of the target is made.
#[derive(PartialEq, Eq)]
enum Way {
    /// Read these columns and solve for those; the target's own is among them.
    Solve(Roles, SmallVec<[Role; 2]>),
    /// Copy from this member.
    Copy(Slot),
    /// No source: goes to the bad-block list.
    Lost,
}

impl Way {
    fn leases(&self) -> usize {
        match self {
            Self::Solve(read, solve) => read.len() + solve.len(),
            Self::Copy(_) => 1,
            Self::Lost => 0,
        }
    }
}

impl<E: Env> Group<E> {
    /// Rebuilds the member in `slot`, which a view lists as rebuilding, from its cursor on; foreground I/O goes on meanwhile.
    /// At the end it is flushed and published as in sync.
    ///
    /// # Errors
    /// [`SweepError::MemberGone`] if the member fails or is none that is being rebuilt; [`SweepError::Cancelled`]; an I/O
    /// error if the group has lost too much to rebuild from.
    pub async fn rebuild(&self, slot: Slot, pace: &Pace) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        pace.total_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
        pace.done_bytes.store(shared.cursor(slot), Ordering::Relaxed);
        let step = self.step(pace);
        let mut next = shared.cursor(slot) / chunk;
        let mut stored = shared.cursor(slot);
        while next < geometry.stripes() {
            self.go_on(pace)?;
            let began_ns = self.0.env.clock().now_ns();
            let stripes = next..geometry.stripes().min(next + step);
            self.rebuild_stripes(slot, &stripes).await?;
            next = stripes.end;
            let cursor = shared.cursor(slot);
            if cursor - stored >= STORE_EVERY_BYTES {
                self.store_cursor(slot, cursor).await?;
                stored = cursor;
            }
            self.keep_pace(pace, (stripes.end - stripes.start) * chunk, began_ns).await?;
        }
        self.store_cursor(slot, shared.cursor(slot)).await?;
        self.promote(slot).await.map_err(|_| SweepError::MemberGone(slot))?;
        pace.done_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Flushes the target, then stores the cursor as it was before (SAFETY S3).
    async fn store_cursor(&self, slot: Slot, cursor: u64) -> Result<(), SweepError> {
        let lane = self.lane_view();
        if lane.view().member(slot).state != MemberState::Rebuilding {
            return Err(SweepError::MemberGone(slot));
        }
        let flushed = match lane.drive(slot) {
            Ok((drive, _)) => drive.flush().await,
            Err(error) => Err(error),
        };
        let meta = self.0.shared.meta();
        let stored = match flushed {
            Ok(()) => {
                membership::store_cursor(&self.0.env, meta, lane.view(), slot, cursor, &lane.drives()).await
            }
            Err(error) => Err(error),
        };
        match stored {
            Ok(()) => Ok(()),
            Err(error) => {
                self.fail_all(lane.view().epoch, one_error(slot, error)).await?;
                Err(SweepError::MemberGone(slot))
            }
        }
    }

    async fn rebuild_stripes(&self, slot: Slot, stripes: &Range<u64>) -> Result<(), SweepError> {
        let _writer = self.0.shared.admit_writer().await.map_err(|_| SweepError::Cancelled)?;
        let todo = windows(self.0.shared.geometry(), stripes);
        for _ in 0..ATTEMPTS_MAX {
            let attempt = match self.rebuild_once(slot, stripes, &todo).await {
                Ok(()) => return Ok(()),
                Err(attempt) => attempt,
            };
            self.still_rebuilding(slot)?;
            match attempt {
                Attempt::Reads(epoch, faults) => {
                    let lost: Vec<ReadFault> = faults
                        .iter()
                        .filter(|fault| matches!(fault.error.kind, IoKind::Medium | IoKind::Protection))
                        .cloned()
                        .collect();
                    let rest = faults.into_iter().filter(|fault| fault.error.kind.drops_member_on_read());
                    self.handle_read_faults(epoch, rest.collect()).await?;
                    for fault in lost {
                        if self.repair(&fault).await.is_err() {
                            return self.rebuild_by_blocks(slot, stripes).await;
                        }
                    }
                }
                other => self.start_again(other).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    fn still_rebuilding(&self, slot: Slot) -> Result<(), SweepError> {
        let view = self.0.shared.view();
        if view.member(slot).state != MemberState::Rebuilding {
            return Err(SweepError::MemberGone(slot));
        }
        let geometry = self.0.shared.geometry();
        // The member being rebuilt counts as lost: more than the tolerance means nothing to rebuild from.
        if geometry.level().parities() > 0 && is_offline(geometry, &view) {
            return Err(IoError::new(IoKind::BeyondTolerance, "too many members are lost to rebuild").into());
        }
        Ok(())
    }

    /// The slow way past unreadable blocks: every block for itself, those without a source onto the bad-block list.
    async fn rebuild_by_blocks(&self, slot: Slot, stripes: &Range<u64>) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let block = shared.block_size().bytes();
        for stripe in stripes.clone() {
            let height = geometry.stripe_height(Stripe(stripe));
            let mut attempts = 0;
            let mut lost: Vec<Range<u32>> = Vec::new();
            loop {
                self.still_rebuilding(slot)?;
                let blocks = (0..height).step_by(crate::units::usize_of_u32(block));
                let todo: Vec<Window> = blocks
                    .map(|at| Window { stripe: Stripe(stripe), columns: at..at + block })
                    .filter(|window| !lost.contains(&window.columns))
                    .collect();
                match self.rebuild_once(slot, &(stripe..stripe + 1), &todo).await {
                    Ok(()) => break,
                    Err(Attempt::Reads(epoch, faults)) => {
                        for fault in faults {
                            let columns = fault.columns.clone();
                            let medium = !fault.error.kind.drops_member_on_read();
                            let dealt = self.handle_read_faults(epoch, SmallVec::from_iter([fault])).await;
                            if let Err(error) = dealt {
                                if !medium {
                                    return Err(error.into());
                                }
                                let range = stripe::member_range(geometry, Stripe(stripe), &columns);
                                self.record_bad_blocks(slot, range).await?;
                                lost.push(columns);
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

    fn rebuild_way(&self, lane: &LaneView<E>, slot: Slot, window: &Window) -> Way {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let role = geometry.role(window.stripe, slot);
        let readable =
            |other| other != slot && stripe::is_readable(shared, lane, window.stripe, other, &window.columns);
        if geometry.level().parities() == 0 {
            let Role::Data(index) = role else { return Way::Lost };
            let source = match shared.regions.is_synced(window.stripe.0) {
                true => stripe::copies(geometry, window.stripe, index).find(|&other| readable(other)),
                false => stripe::mirror_source(geometry, lane, window.stripe, index),
            };
            return source.filter(|&other| readable(other)).map_or(Way::Lost, Way::Copy);
        }
        if shared.regions.is_dirty(window.stripe.0) && matches!(role, Role::Data(_)) {
            // Half a write may be in the parity: the block would come out wrong.
            return Way::Lost;
        }
        let readable_role = |role| readable(stripe::slot_of(geometry, window.stripe, role));
        match stripe::sources(geometry, &[role], readable_role) {
            Some(sources) => Way::Solve(sources.read, sources.solve),
            None => Way::Lost,
        }
    }

    async fn rebuild_once(&self, slot: Slot, stripes: &Range<u64>, todo: &[Window]) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let ways_of =
            |lane: &LaneView<E>| todo.iter().map(|window| self.rebuild_way(lane, slot, window)).collect();
        let planned: Vec<Way> = ways_of(&self.lane_view());
        let mut leases = self.scratch(&lease_sizes(todo, &planned)).await;
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Exclusive).await;
        let entered = self.enter();
        let ways: Vec<Way> = ways_of(&entered);
        if lease_sizes(todo, &ways) != lease_sizes(todo, &planned) {
            return Err(Attempt::Replan);
        }
        let epoch = entered.view().epoch;
        // A cursor below this step belongs to another member, which has taken the slot meanwhile.
        let is_ours = shared.cursor(slot) >= shared.geometry().member_offset(Stripe(stripes.start), 0);
        if entered.view().member(slot).state != MemberState::Rebuilding || !is_ours {
            let error = IoError::new(IoKind::Gone, "the member being rebuilt left its slot");
            return Err(Attempt::Failed(error));
        }
        let mut wants = Vec::new();
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
        let mut puts = self.rebuilt(slot, todo, &ways, leases).await;
        let errors = self.commit(&entered, &mut puts, Durability::Cached).await;
        if !errors.is_empty() {
            return Err(Attempt::Members(epoch, errors));
        }
        self.finish_step(entered, slot, stripes, todo, &ways).await
    }

    /// Records what had no source and moves the cursor, still under the lock.
    async fn finish_step(
        &self,
        entered: Entered<E>,
        slot: Slot,
        stripes: &Range<u64>,
        todo: &[Window],
        ways: &[Way],
    ) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let mut any_lost = false;
        for (window, _) in todo.iter().zip(ways).filter(|(_, way)| **way == Way::Lost) {
            any_lost = true;
            shared.bad.add(slot, stripe::member_range(geometry, window.stripe, &window.columns));
        }
        let last = Stripe(stripes.end - 1);
        let end = geometry.member_offset(last, 0) + u64::from(geometry.stripe_height(last));
        // Still in the view: a member that takes the slot next starts at 0 after we left.
        shared.set_cursor(slot, end.max(shared.cursor(slot)));
        drop(entered);
        if any_lost {
            self.store_bad_blocks(slot).await?;
        }
        Ok(())
    }

    fn copy_want(&self, window: &Window, from: Slot, lease: usize) -> Want {
        Want {
            slot: from,
            stripe: window.stripe,
            columns: window.columns.clone(),
            at: self.0.shared.geometry().member_offset(window.stripe, window.columns.start),
            lease,
        }
    }

    /// The target's columns, computed from what was read.
    async fn rebuilt(
        &self,
        slot: Slot,
        todo: &[Window],
        ways: &[Way],
        leases: Vec<Option<Lease>>,
    ) -> Vec<Put> {
        let geometry = self.0.shared.geometry();
        let mut leases = leases.into_iter().map(|lease| lease.expect("read without an error"));
        let mut puts = Vec::with_capacity(todo.len());
        for (window, way) in todo.iter().zip(ways) {
            let seg: Seg = match way {
                Way::Lost => continue,
                Way::Copy(_) => leases.next().expect("one lease per copy").share(),
                Way::Solve(read, solve) => {
                    let known: Vec<(Role, Seg)> =
                        read.iter().map(|&role| (role, leases.next().expect("leased").share())).collect();
                    let outs = solve.iter().map(|&role| (role, leases.next().expect("leased"))).collect();
                    let len = window.columns.end - window.columns.start;
                    let solved = self.recover(len, &known, outs).await;
                    let own = geometry.role(window.stripe, slot);
                    let mine = solved.into_iter().find(|(role, _)| *role == own);
                    mine.expect("the target's column is solved for").1.share()
                }
            };
            let at = geometry.member_offset(window.stripe, window.columns.start);
            puts.push(Put { slot, at, seg });
        }
        puts
    }
}

fn lease_sizes(todo: &[Window], ways: &[Way]) -> Vec<u32> {
    let sizes = todo.iter().zip(ways).flat_map(|(window, way)| {
        core::iter::repeat_n(window.columns.end - window.columns.start, way.leases())
    });
    sizes.collect()
}
