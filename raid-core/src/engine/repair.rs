//! Read repair (SAFETY S5): blocks that a member cannot read are reconstructed and rewritten on it, one by one, so that
//! two members with bad blocks in different places of one column are both repaired. Only a member that cannot take the
//! rewrite is dropped.

use core::ops::Range;

use smallvec::SmallVec;

use super::Group;
use super::degraded::DIRTY;
use super::gather::{ReadFault, ReadFaults, Want};
use super::intent::SlotErrors;
use super::lane::Entered;
use super::locks::LockMode;
use super::stripe::{self, Sources};
use crate::geometry::Role;
use crate::lease::{Lease, Leases, Seg};
use crate::ports::{Durability, Env, IoError, IoKind, one_seg};
use crate::units::{Slot, u64_of};

/// What became of one block.
enum Outcome {
    Readable,
    Rewritten,
    /// The rewrite failed, or the block still cannot be read: the member goes.
    Drop(IoError),
    /// A source of the block is gone: drop that member and look again.
    Source(Slot, IoError),
    /// The block has no source.
    Lost(IoError),
}

impl<E: Env> Group<E> {
    /// Repairs the columns of a fault. The caller holds no lock and no view.
    ///
    /// # Errors
    /// The fault's own error if a block has no source left.
    pub(super) async fn repair(&self, fault: &ReadFault) -> Result<(), IoError> {
        self.repair_counted(fault, &mut 0).await
    }

    /// The same; counts the blocks that were rewritten.
    pub(super) async fn repair_counted(&self, fault: &ReadFault, rewritten: &mut u64) -> Result<(), IoError> {
        let _writer = self.0.shared.start_writer()?;
        let members = usize::from(self.0.shared.geometry().members());
        for _ in 0..=members {
            let (epoch, outcome) = self.repair_once(fault, rewritten).await;
            let (slot, error) = match outcome {
                Outcome::Readable | Outcome::Rewritten => return Ok(()),
                Outcome::Lost(error) => return Err(error),
                Outcome::Drop(error) => (fault.slot, error),
                Outcome::Source(slot, error) => (slot, error),
            };
            self.fail(epoch, slot, error.kind).await.map_err(|_| fault.error)?;
        }
        Ok(())
    }

    async fn repair_once(&self, fault: &ReadFault, rewritten: &mut u64) -> (crate::view::Epoch, Outcome) {
        let shared = &self.0.shared;
        let block = shared.block_size().bytes();
        let count = usize::from(shared.geometry().members()) + 2;
        let sizes: SmallVec<[u32; 16]> = core::iter::repeat_n(block, count).collect();
        let mut leases = self.scratch(&sizes).await;
        let stripe = fault.stripe.0;
        let _locked = shared.locks.lock(stripe..stripe + 1, LockMode::Exclusive).await;
        let entered = self.enter();
        let epoch = entered.view().epoch;
        let mut at = fault.columns.start;
        while at < fault.columns.end {
            let block_fault = ReadFault { columns: at..at + block, ..fault.clone() };
            match self.repair_block(&entered, &block_fault, &mut leases).await {
                Outcome::Readable => at += block,
                Outcome::Rewritten => {
                    *rewritten += 1;
                    at += block;
                }
                other => return (epoch, other),
            }
            // Leases shared for a rewrite are gone: the next block needs a full set.
            if leases.iter().any(Option::is_none) {
                leases = match self.0.env.try_lease(crate::ports::Pool::Scratch, &sizes) {
                    Some(fresh) => fresh.into_iter().map(Some).collect(),
                    // Waiting under a lock is not allowed: the caller comes back for the rest.
                    None => return (epoch, Outcome::Readable),
                };
            }
        }
        (epoch, Outcome::Readable)
    }

    async fn repair_block(
        &self,
        entered: &Entered<E>,
        fault: &ReadFault,
        leases: &mut [Option<Lease>],
    ) -> Outcome {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        if !entered.is_live(shared, fault.slot, fault.stripe) {
            return Outcome::Readable;
        }
        let readable = |slot| stripe::is_readable(shared, entered, fault.stripe, slot, &fault.columns);
        match self.read_block(entered, fault.slot, fault, leases, 0).await {
            Ok(()) => return Outcome::Readable,
            Err(error) if error.kind.drops_member_on_read() => return Outcome::Drop(error),
            Err(_) => {}
        }
        let good: Seg = if geometry.level().parities() == 0 {
            match self.other_copy(entered, fault, leases, readable).await {
                Ok(seg) => seg,
                Err(outcome) => return outcome,
            }
        } else {
            let role = geometry.role(fault.stripe, fault.slot);
            if shared.regions.is_dirty(fault.stripe.0) && matches!(role, Role::Data(_)) {
                return Outcome::Lost(DIRTY);
            }
            let others = |role| {
                let slot = stripe::slot_of(geometry, fault.stripe, role);
                slot != fault.slot && stripe::is_source(shared, entered, fault.stripe, slot, &fault.columns)
            };
            let Some(sources) = stripe::sources(geometry, &[role], others) else {
                return Outcome::Lost(fault.error);
            };
            match self.solve_block(entered, fault, role, sources, leases).await {
                Ok(seg) => seg,
                Err(outcome) => return outcome,
            }
        };
        self.rewrite(entered, fault, good, leases).await
    }

    /// Reads the fault's columns of any slot into lease `number`.
    async fn read_block(
        &self,
        entered: &Entered<E>,
        slot: Slot,
        fault: &ReadFault,
        leases: &mut [Option<Lease>],
        number: usize,
    ) -> Result<(), IoError> {
        let at = self.0.shared.geometry().member_offset(fault.stripe, fault.columns.start);
        let into: Leases = leases[number].take().into_iter().collect();
        let done = self.start_read(entered, slot, at, into).finish_read().await;
        leases[number] = done.buf.into_iter().flatten().next();
        done.result.inspect_err(|_| self.count_error(slot))
    }

    async fn other_copy(
        &self,
        entered: &Entered<E>,
        fault: &ReadFault,
        leases: &mut [Option<Lease>],
        readable: impl Fn(Slot) -> bool,
    ) -> Result<Seg, Outcome> {
        let geometry = self.0.shared.geometry();
        let Role::Data(index) = geometry.role(fault.stripe, fault.slot) else {
            return Err(Outcome::Lost(fault.error));
        };
        let copies = stripe::copies(geometry, fault.stripe, index);
        for slot in copies.filter(|&slot| slot != fault.slot && readable(slot)) {
            match self.read_block(entered, slot, fault, leases, 1).await {
                Ok(()) => return leases[1].take().map(Lease::share).ok_or(Outcome::Lost(fault.error)),
                Err(error) if error.kind.drops_member_on_read() => return Err(Outcome::Source(slot, error)),
                Err(_) => {}
            }
        }
        Err(Outcome::Lost(fault.error))
    }

    /// The block from the rest of its stripe.
    async fn solve_block(
        &self,
        entered: &Entered<E>,
        fault: &ReadFault,
        role: Role,
        sources: Sources,
        leases: &mut [Option<Lease>],
    ) -> Result<Seg, Outcome> {
        let geometry = self.0.shared.geometry();
        let at = geometry.member_offset(fault.stripe, fault.columns.start);
        let want = |(i, &role): (usize, &Role)| Want {
            slot: stripe::slot_of(geometry, fault.stripe, role),
            stripe: fault.stripe,
            columns: fault.columns.clone(),
            at,
            lease: i + 1,
        };
        let mut wants: SmallVec<[Want; 16]> = sources.read.iter().enumerate().map(want).collect();
        let faults: ReadFaults = self.read_all(entered, &mut wants, leases).await;
        if let Some(fault) = faults.iter().find(|fault| fault.error.kind.drops_member_on_read()) {
            return Err(Outcome::Source(fault.slot, fault.error));
        }
        if !faults.is_empty() {
            return Err(Outcome::Lost(fault.error));
        }
        let mut known = Vec::with_capacity(sources.read.len());
        for (i, &role) in sources.read.iter().enumerate() {
            known.push((role, leases[i + 1].take().expect("read without an error").share()));
        }
        let mut spare = leases.iter_mut().filter(|lease| lease.is_some());
        let outs = sources
            .solve
            .iter()
            .map(|&role| (role, spare.next().and_then(Option::take).expect("two more leases than members")));
        let outs = outs.collect();
        let solved = self.recover(fault.columns.end - fault.columns.start, &known, outs).await;
        let wanted = solved.into_iter().find(|(solved, _)| *solved == role);
        wanted.map(|(_, lease)| lease.share()).ok_or(Outcome::Lost(fault.error))
    }

    /// Rewrites the block and reads it once more.
    async fn rewrite(
        &self,
        entered: &Entered<E>,
        fault: &ReadFault,
        good: Seg,
        leases: &mut [Option<Lease>],
    ) -> Outcome {
        let at = self.0.shared.geometry().member_offset(fault.stripe, fault.columns.start);
        let write = self.start_write(entered, fault.slot, at, one_seg(good.clone()), Durability::Cached);
        if let Err(error) = write.finish().await {
            self.count_error(fault.slot);
            return Outcome::Drop(error);
        }
        let Some(number) = leases.iter().position(Option::is_some) else { return Outcome::Rewritten };
        match self.read_block(entered, fault.slot, fault, leases, number).await {
            Ok(()) if leases[number].as_ref().is_some_and(|lease| lease.bytes() == good.bytes()) => {
                Outcome::Rewritten
            }
            Ok(()) => {
                Outcome::Drop(IoError::new(IoKind::Protection, "a rewritten block reads back differently"))
            }
            Err(error) => Outcome::Drop(error),
        }
    }

    /// Records blocks of a slot as lost, durably (SAFETY S6).
    pub(super) async fn record_bad_blocks(&self, slot: Slot, range: Range<u64>) -> Result<(), IoError> {
        assert!(u64_of(usize::from(slot.0)) < u64::from(self.0.shared.geometry().members()));
        self.0.shared.bad.add(slot, range);
        self.store_bad_blocks(slot).await
    }
}

/// Errors of one member, as [`Group::fail_all`] takes them.
pub(super) fn one_error(slot: Slot, error: IoError) -> SlotErrors {
    let mut errors = SlotErrors::new();
    errors.push((slot, error));
    errors
}
