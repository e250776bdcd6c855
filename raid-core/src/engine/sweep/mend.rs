//! The repairs of a scrub (SAFETY S8): only what is certain, unless the operator has declared the data right.
//!
//! Certain is: one member is located in every block of the stripe that does not fit, the stripe is known in sync, a data
//! block is in a stripe that is vouched for (`suspicion`), and all of this holds again when it is read a second time under the exclusive lock, so that neither a write under way nor a
//! read that went wrong once is taken for a wrong block. The new contents must make P and Q both fit before they are
//! written, and are read back after. Everything else on the members stays as it is.

use smallvec::SmallVec;

use super::super::Group;
use super::super::encode::{Put, column_in};
use super::super::intent::{IntentTicket, SlotErrors};
use super::super::lane::Entered;
use super::super::locks::LockMode;
use super::super::stripe;
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::scrub::{Finding, ScrubMode, What, read_lease};
use super::{SweepError, Window};
use crate::geometry::Role;
use crate::lease::{LEASE_BYTES_MAX, Lease, Leases, Seg};
use crate::parity::{Column, ParityOp, Verdict};
use crate::ports::{Durability, Env, IoError, IoKind};
use crate::units::{Slot, Stripe};

/// The member every block of the stripe blames, if there is one and the mode takes that for certain.
fn culprit(mode: ScrubMode, findings: &[Finding]) -> Option<Slot> {
    let first = *findings.first()?.slots.first()?;
    let is_certain = |what| match what {
        What::Located => true,
        What::Suspected => mode == ScrubMode::RepairSuspected,
        _ => false,
    };
    findings.iter().all(|finding| is_certain(finding.what) && finding.slots == [first]).then_some(first)
}

impl<E: Env> Group<E> {
    /// Repairs what may be, stripe by stripe; marks what was.
    pub(super) async fn mend(&self, mode: ScrubMode, findings: &mut [Finding]) -> Result<(), SweepError> {
        for of_stripe in findings.chunk_by_mut(|one, other| one.stripe == other.stripe) {
            if of_stripe.iter().any(|finding| finding.what == What::Lost) {
                continue;
            }
            let wrong = culprit(mode, of_stripe);
            if wrong.is_none() && mode != ScrubMode::AssumeDataRight {
                continue;
            }
            for of_window in of_stripe
                .chunk_by_mut(|a, b| a.columns.start / LEASE_BYTES_MAX == b.columns.start / LEASE_BYTES_MAX)
            {
                self.mend_window(wrong, of_window).await?;
            }
        }
        Ok(())
    }

    async fn mend_window(&self, wrong: Option<Slot>, findings: &mut [Finding]) -> Result<(), SweepError> {
        let _writer = self.0.shared.admit_writer().await.map_err(|_| SweepError::Cancelled)?;
        for _ in 0..ATTEMPTS_MAX {
            match self.mend_once(wrong, findings).await {
                Ok(is_repaired) => {
                    findings.iter_mut().for_each(|finding| finding.is_repaired = is_repaired);
                    return Ok(());
                }
                // A block that became unreadable meanwhile: left to the next scrub.
                Err(Attempt::Reads(epoch, faults)) => {
                    if self.handle_read_faults(epoch, faults).await.is_err() {
                        return Ok(());
                    }
                }
                Err(other) => self.start_again(other).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    /// Looks again, alone, and rewrites; false if it looks different now or is not certain.
    async fn mend_once(&self, wrong: Option<Slot>, findings: &[Finding]) -> Result<bool, Attempt> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let stripe = findings[0].stripe;
        let start = findings.iter().map(|finding| finding.columns.start).min().unwrap_or_default();
        let end = findings.iter().map(|finding| finding.columns.end).max().unwrap_or(start);
        let window = [Window { stripe, columns: start..end }];
        let slots = vec![self.scrub_slots(&self.lane_view(), &window[0])];
        let spare = usize::from(geometry.level().parities());
        let sizes: Vec<u32> = core::iter::repeat_n(end - start, slots[0].len() + spare + 1).collect();
        let mut leases = self.scratch(&sizes).await;
        let stripes = stripe.0..stripe.0 + 1;
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Exclusive).await;
        let entered = self.enter();
        if self.scrub_slots(&entered, &window[0]) != slots[0] {
            return Err(Attempt::Replan);
        }
        if slots[0].is_empty() {
            return Ok(false);
        }
        let epoch = entered.view().epoch;
        let ticket = shared.intents.as_ref().map(|intents| intents.begin(geometry, &stripes));
        self.read_windows(&entered, &window, &slots, &mut leases).await?;
        let mut leases: Vec<Option<Lease>> = leases;
        let spares = leases.split_off(slots[0].len());
        let segs = leases.into_iter().map(read_lease);
        let columns: Vec<(Slot, Seg)> = slots[0].iter().copied().zip(segs).collect();
        if self.compare(&window[0], &columns).await != findings {
            return Ok(false);
        }
        let mut spares: SmallVec<[Lease; 3]> = spares.into_iter().flatten().collect();
        let back = spares.pop();
        let Some(fresh) = self.mended(wrong, stripe, columns, spares).await else { return Ok(false) };
        let mut puts: Vec<Put> = Vec::new();
        for finding in findings {
            let of_copies = |slot: &Slot| finding.what != What::Copies || finding.slots.contains(slot);
            for (slot, seg) in fresh.iter().filter(|(slot, _)| of_copies(slot)) {
                let at = geometry.member_offset(stripe, finding.columns.start);
                let seg = seg.slice(finding.columns.start - start..finding.columns.end - start);
                puts.push(Put { slot: *slot, at, seg });
            }
        }
        self.log(&entered, ticket.as_ref()).await.map_err(|errors| Attempt::Members(epoch, errors))?;
        let mut errors = self.commit(&entered, &mut puts, Durability::Cached).await;
        if errors.is_empty() {
            errors = self.read_back(&entered, &puts, back).await;
        }
        if !errors.is_empty() {
            return Err(Attempt::Members(epoch, errors));
        }
        ticket.iter().for_each(IntentTicket::settle);
        findings.iter().for_each(|finding| shared.no_longer_suspect(stripe, &finding.columns));
        Ok(true)
    }

    /// The contents that make the window fit, by slot; none if they would not.
    async fn mended(
        &self,
        wrong: Option<Slot>,
        stripe: Stripe,
        mut columns: Vec<(Slot, Seg)>,
        spares: SmallVec<[Lease; 3]>,
    ) -> Option<Vec<(Slot, Seg)>> {
        let geometry = self.0.shared.geometry();
        if geometry.level().parities() == 0 {
            return Some(self.first_copies(stripe, &columns));
        }
        let len = columns.first()?.1.len();
        let replaced: SmallVec<[Role; 2]> = match wrong {
            Some(slot) => core::iter::once(geometry.role(stripe, slot)).collect(),
            None => [Role::P, Role::Q].into_iter().take(usize::from(geometry.level().parities())).collect(),
        };
        let op = if wrong.is_some() { ParityOp::Recover } else { ParityOp::Encode };
        let mut job = self.parity_job(op, stripe, &columns, &(0..len));
        for (&role, lease) in replaced.iter().zip(spares) {
            *column_in(&mut job, role) = Column::Out(lease, 0..len);
        }
        let mut job = self.compute(job).await.0;
        let mut fresh = Vec::new();
        for &role in &replaced {
            let slot = stripe::slot_of(geometry, stripe, role);
            let Column::Out(lease, _) = core::mem::replace(column_in(&mut job, role), Column::Absent) else {
                return None;
            };
            let seg = lease.share();
            columns.iter_mut().filter(|(other, _)| *other == slot).for_each(|column| column.1 = seg.clone());
            fresh.push((slot, seg));
        }
        drop(job);
        // P and Q must both fit now, or the located member was not all that is wrong.
        let job = self.parity_job(ParityOp::Verify, stripe, &columns, &(0..len));
        (self.compute(job).await.1 == Verdict::Clean).then_some(fresh)
    }

    /// For every further copy of a data column, the contents of its first one.
    fn first_copies(&self, stripe: Stripe, columns: &[(Slot, Seg)]) -> Vec<(Slot, Seg)> {
        let geometry = self.0.shared.geometry();
        let mut fresh = Vec::new();
        for index in stripe::data_indices(geometry) {
            let of: Vec<Slot> = stripe::copies(geometry, stripe, index).collect();
            let mut copies = columns.iter().filter(|(slot, _)| of.contains(slot));
            if let Some((_, first)) = copies.next() {
                fresh.extend(copies.map(|(slot, _)| (*slot, first.clone())));
            }
        }
        fresh
    }

    /// Reads what was written once more.
    async fn read_back(&self, entered: &Entered<E>, puts: &[Put], lease: Option<Lease>) -> SlotErrors {
        let mut errors = SlotErrors::new();
        let mut lease = lease;
        // Longest first: the one lease only gets shorter.
        let mut order: Vec<&Put> = puts.iter().collect();
        order.sort_by_key(|put| core::cmp::Reverse(put.seg.len()));
        for put in order {
            let Some(mut into) = lease.take() else { return errors };
            into.truncate(put.seg.len());
            let command =
                self.start_read(entered, put.slot, put.at, core::iter::once(into).collect::<Leases>());
            let done = command.finish_read().await;
            let read = done.buf.into_iter().flatten().next();
            let error = match (done.result, &read) {
                (Err(error), _) => Some(error),
                (Ok(()), Some(read)) if read.bytes() == put.seg.bytes() => None,
                (Ok(()), _) => {
                    Some(IoError::new(IoKind::Protection, "a rewritten block reads back differently"))
                }
            };
            if let Some(error) = error {
                self.count_error(put.slot);
                errors.push((put.slot, error));
                return errors;
            }
            lease = read;
        }
        errors
    }
}
