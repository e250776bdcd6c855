//! One step of a rebuild: some stripes of one or more slots' new members, from the others in one pass.
//!
//! Invariants (SAFETY S2, S3): a step holds the exclusive lock of its stripes from the first read until the cursor is
//! past them; the cursor that is stored is one up to which the target was flushed before. A block without a source goes
//! to the target's bad-block list and the rebuild goes on (S6).

use core::ops::Range;

use smallvec::SmallVec;

use super::super::Group;
use super::super::encode::Put;
use super::super::gather::{ReadFault, Want};
use super::super::lane::{Entered, LaneView};
use super::super::locks::LockMode;
use super::super::shared::is_offline;
use super::super::stripe::{self, Roles};
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::{SweepError, Window, windows};
use crate::geometry::Role;
use crate::lease::{Lease, Seg};
use crate::ports::{Durability, Env, IoError, IoKind};
use crate::units::{Slot, Stripe};
use crate::view::MemberState;

/// The slots rebuilt together: on parity groups at most as many as there are parities, on mirrors copies of one column.
pub(super) type Targets = SmallVec<[Slot; 2]>;

/// How one window of the targets is made.
#[derive(PartialEq, Eq)]
pub(super) enum Way {
    /// Read these columns and solve for those; the targets' own are among them.
    Solve(Roles, SmallVec<[Role; 2]>),
    /// Copy from this member.
    Copy(Slot),
    /// No source: goes to the bad-block list.
    Lost,
}

impl Way {
    pub(super) fn leases(&self) -> usize {
        match self {
            Self::Solve(read, solve) => read.len() + solve.len(),
            Self::Copy(_) => 1,
            Self::Lost => 0,
        }
    }
}

impl<E: Env> Group<E> {
    /// Makes some stripes of the targets and moves their cursors past them.
    pub(super) async fn rebuild_stripes(
        &self,
        slots: &Targets,
        stripes: &Range<u64>,
    ) -> Result<(), SweepError> {
        let _writer = self.0.shared.admit_writer().await.map_err(|_| SweepError::Cancelled)?;
        let todo = windows(self.0.shared.geometry(), stripes);
        for _ in 0..ATTEMPTS_MAX {
            let attempt = match self.rebuild_once(slots, stripes, &todo).await {
                Ok(()) => return Ok(()),
                Err(attempt) => attempt,
            };
            self.still_rebuilding(slots)?;
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
                            return self.rebuild_by_blocks(slots, stripes).await;
                        }
                    }
                }
                other => self.start_again(other).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    fn still_rebuilding(&self, slots: &Targets) -> Result<(), SweepError> {
        let view = self.0.shared.view();
        if let Some(&gone) = slots.iter().find(|slot| view.member(**slot).state != MemberState::Rebuilding) {
            return Err(SweepError::MemberGone(gone));
        }
        let geometry = self.0.shared.geometry();
        // The member being rebuilt counts as lost: more than the tolerance means nothing to rebuild from.
        if geometry.level().parities() > 0 && is_offline(geometry, &view) {
            return Err(IoError::new(IoKind::BeyondTolerance, "too many members are lost to rebuild").into());
        }
        Ok(())
    }

    /// The slow way past unreadable blocks: every block for itself, those without a source onto the bad-block list.
    async fn rebuild_by_blocks(&self, slots: &Targets, stripes: &Range<u64>) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let block = shared.block_size().bytes();
        for stripe in stripes.clone() {
            let height = geometry.stripe_height(Stripe(stripe));
            let mut attempts = 0;
            let mut lost: Vec<Range<u32>> = Vec::new();
            loop {
                self.still_rebuilding(slots)?;
                let blocks = (0..height).step_by(crate::units::usize_of_u32(block));
                let todo: Vec<Window> = blocks
                    .map(|at| Window { stripe: Stripe(stripe), columns: at..at + block })
                    .filter(|window| !lost.contains(&window.columns))
                    .collect();
                match self.rebuild_once(slots, &(stripe..stripe + 1), &todo).await {
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
                                for &slot in slots {
                                    self.record_bad_blocks(slot, range.clone()).await?;
                                }
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

    fn rebuild_way(&self, lane: &LaneView<E>, slots: &Targets, window: &Window) -> Way {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let roles: SmallVec<[Role; 2]> =
            slots.iter().map(|&slot| geometry.role(window.stripe, slot)).collect();
        let readable = |other| {
            !slots.contains(&other)
                && stripe::is_readable(shared, lane, window.stripe, other, &window.columns)
        };
        if geometry.level().parities() == 0 {
            let Role::Data(index) = roles[0] else { return Way::Lost };
            let source = match shared.regions.is_synced(window.stripe.0) {
                true => stripe::copies(geometry, window.stripe, index)
                    .filter(|&other| readable(other))
                    .min_by_key(|&other| shared.read_rank(other)),
                false => stripe::mirror_source(geometry, lane, window.stripe, index),
            };
            return source.filter(|&other| readable(other)).map_or(Way::Lost, Way::Copy);
        }
        let is_data = |role: &Role| matches!(role, Role::Data(_));
        if shared.regions.is_dirty(window.stripe.0) && roles.iter().any(is_data) {
            // Half a write may be in the parity: the block would come out wrong.
            return Way::Lost;
        }
        let is_source = |role| {
            let slot = stripe::slot_of(geometry, window.stripe, role);
            !slots.contains(&slot) && stripe::is_source(shared, lane, window.stripe, slot, &window.columns)
        };
        match stripe::sources(geometry, &roles, is_source) {
            Some(sources) => Way::Solve(sources.read, sources.solve),
            None => Way::Lost,
        }
    }

    async fn rebuild_once(
        &self,
        slots: &Targets,
        stripes: &Range<u64>,
        todo: &[Window],
    ) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let ways_of =
            |lane: &LaneView<E>| todo.iter().map(|window| self.rebuild_way(lane, slots, window)).collect();
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
        let start = shared.geometry().member_offset(Stripe(stripes.start), 0);
        let is_ours = |slot: &Slot| {
            entered.view().member(*slot).state == MemberState::Rebuilding && shared.cursor(*slot) >= start
        };
        if !slots.iter().all(is_ours) {
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
        let mut puts = self.rebuilt(slots, todo, &ways, leases).await;
        let mut errors = self.zero_empty(&entered, &mut puts).await;
        errors.extend(self.commit(&entered, &mut puts, Durability::Cached).await);
        if !errors.is_empty() {
            return Err(Attempt::Members(epoch, errors));
        }
        self.finish_step(entered, slots, stripes, todo, &ways).await
    }

    /// Records what had no source, forgets as lost what was rewritten, and moves the cursors, still under the lock.
    async fn finish_step(
        &self,
        entered: Entered<E>,
        slots: &Targets,
        stripes: &Range<u64>,
        todo: &[Window],
        ways: &[Way],
    ) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let mut changed = Targets::new();
        let last = Stripe(stripes.end - 1);
        let end = geometry.member_offset(last, 0) + u64::from(geometry.stripe_height(last));
        for &slot in slots {
            let mut is_changed = false;
            for (window, way) in todo.iter().zip(ways) {
                let range = stripe::member_range(geometry, window.stripe, &window.columns);
                if *way == Way::Lost {
                    is_changed = true;
                    shared.bad.add(slot, range);
                } else {
                    // Of a member that came back (S6): its lost blocks are whole again.
                    is_changed |= shared.bad.clear(slot, &range);
                    shared.suspect.clear(slot, &range);
                }
            }
            if is_changed {
                changed.push(slot);
            }
            // Still in the view: a member that takes the slot next starts at 0 after we left.
            shared.set_cursor(slot, end.max(shared.cursor(slot)));
        }
        drop(entered);
        for slot in changed {
            self.store_bad_blocks(slot).await?;
        }
        Ok(())
    }

    pub(super) fn copy_want(&self, window: &Window, from: Slot, lease: usize) -> Want {
        Want {
            slot: from,
            stripe: window.stripe,
            columns: window.columns.clone(),
            at: self.0.shared.geometry().member_offset(window.stripe, window.columns.start),
            lease,
        }
    }

    /// The targets' columns, computed from what was read.
    pub(super) async fn rebuilt(
        &self,
        slots: &Targets,
        todo: &[Window],
        ways: &[Way],
        leases: Vec<Option<Lease>>,
    ) -> Vec<Put> {
        let geometry = self.0.shared.geometry();
        let mut leases = leases.into_iter().map(|lease| lease.expect("read without an error"));
        let mut puts = Vec::with_capacity(todo.len());
        for (window, way) in todo.iter().zip(ways) {
            let at = geometry.member_offset(window.stripe, window.columns.start);
            match way {
                Way::Lost => {}
                Way::Copy(_) => {
                    let seg = leases.next().expect("one lease per copy").share();
                    puts.extend(slots.iter().map(|&slot| Put { slot, at, seg: seg.clone() }));
                }
                Way::Solve(read, solve) => {
                    let known: Vec<(Role, Seg)> =
                        read.iter().map(|&role| (role, leases.next().expect("leased").share())).collect();
                    let outs = solve.iter().map(|&role| (role, leases.next().expect("leased"))).collect();
                    let len = window.columns.end - window.columns.start;
                    let solved = self.recover(len, &known, outs).await;
                    for (role, lease) in solved {
                        let slot = stripe::slot_of(geometry, window.stripe, role);
                        if slots.contains(&slot) {
                            puts.push(Put { slot, at, seg: lease.share() });
                        }
                    }
                }
            }
        }
        puts
    }
}

pub(super) fn lease_sizes(todo: &[Window], ways: &[Way]) -> Vec<u32> {
    let sizes = todo.iter().zip(ways).flat_map(|(window, way)| {
        core::iter::repeat_n(window.columns.end - window.columns.start, way.leases())
    });
    sizes.collect()
}
