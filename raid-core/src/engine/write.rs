//! A write, from **admit** to **settle**. Each step is the function of its name; what it does is in the file of its name.
//!
//! An attempt that meets a failed member before the first commit starts again from the plan, with nothing held; after
//! the commit it only settles. Attempts are bounded: every one that starts again has dropped a member or repaired a
//! block.

use core::ops::Range;

use smallvec::SmallVec;

use super::Group;
use super::gather::{ReadFault, ReadFaults};
use super::intent::{IntentTicket, SlotErrors};
use super::locks::LockMode;
use super::plan::{self, Piece, Plan};
use crate::geometry::Level;
use crate::lease::{Lease, Segs, segs_len};
use crate::ports::{Durability, Env, IoError, IoKind, Pool};
use crate::units::GroupOffset;
use crate::view::Epoch;

/// How often an operation starts again before it gives up: more than members can fail and blocks be repaired in one.
pub(super) const ATTEMPTS_MAX: u32 = 256;

/// How an attempt ended, if not well.
pub(super) enum Attempt {
    /// Something changed between plan and lock; nothing to do but plan again.
    Replan,
    /// Columns could not be read.
    Reads(Epoch, ReadFaults),
    /// Members could not take the intent bits.
    Members(Epoch, SlotErrors),
    /// The operation fails.
    Failed(IoError),
}

impl From<IoError> for Attempt {
    fn from(error: IoError) -> Self {
        Self::Failed(error)
    }
}

/// What an operation that started again too often says.
pub(super) const GAVE_UP: IoError =
    IoError::new(IoKind::Medium, "members keep failing; the operation was given up");

impl<E: Env> Group<E> {
    /// Writes `from` to the group at `at`, both multiples of the block size, at most [`super::Shared::max_request_bytes`]
    /// long, in segments cut by [`crate::geometry::Geometry::pieces`]. Completed, the data is in every live copy and its parity;
    /// with [`Durability::Fua`] durable. A write that spans stripes is not atomic as a whole.
    ///
    /// # Errors
    /// [`IoKind::Invalid`] for a request that does not fit; [`IoKind::BeyondTolerance`] where no live copy is left, or
    /// anywhere in a parity group beyond its tolerance; [`IoKind::ShuttingDown`] after [`Group::quiesce`].
    pub async fn write(&self, at: GroupOffset, from: Segs, how: Durability) -> Result<(), IoError> {
        let len = segs_len(&from);
        self.validate(at, len, self.0.shared.max_request_bytes())?;
        let _writer = self.0.shared.admit_writer().await?;
        if len == 0 {
            return Ok(());
        }
        let pieces = self.pieces(at, len, from)?;
        self.write_merged(pieces, how).await
    }

    /// Names the place of every segment of a write.
    fn pieces(&self, at: GroupOffset, len: u64, from: Segs) -> Result<SmallVec<[Piece; 2]>, IoError> {
        let geometry = self.0.shared.geometry();
        let sizes = geometry.pieces(at, len);
        if !sizes.eq(from.iter().map(crate::lease::Seg::len)) {
            return Err(IoError::new(IoKind::Invalid, "the segments are not cut by Geometry::pieces"));
        }
        let mut next = at;
        let piece = |seg: crate::lease::Seg| {
            let place = geometry.place(next);
            next = next.plus(u64::from(seg.len()));
            Piece { stripe: place.stripe, index: place.index, column: place.column, seg }
        };
        Ok(from.into_iter().map(piece).collect())
    }

    /// Writes pieces that do not overlap, all in `stripes`.
    pub(super) async fn write_pieces(
        &self,
        pieces: &[Piece],
        stripes: &Range<u64>,
        how: Durability,
    ) -> Result<(), IoError> {
        for _ in 0..ATTEMPTS_MAX {
            let Err(attempt) = self.write_once(pieces, stripes, how, &[]).await else { return Ok(()) };
            match Box::pin(self.start_again(attempt)).await {
                Ok(()) => {}
                Err(error) if self.may_be_few_blocks(error) => {
                    return Box::pin(self.write_by_rows(pieces, how)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Err(GAVE_UP)
    }

    /// Whether an error is about some blocks of a stripe, so that the others can still be written.
    fn may_be_few_blocks(&self, error: IoError) -> bool {
        let of_blocks = matches!(
            error.kind,
            IoKind::Medium | IoKind::Protection | IoKind::BadBlock | IoKind::BeyondTolerance
        );
        of_blocks && self.0.shared.geometry().level().parities() > 0 && !self.0.shared.is_offline()
    }

    /// The slow way past lost blocks: every row of blocks for itself, so that a block without a source stands in the way of
    /// nothing but its own row, and its rewrite clears it (SAFETY S6).
    async fn write_by_rows(&self, pieces: &[Piece], how: Durability) -> Result<(), IoError> {
        let block = self.0.shared.block_size().bytes();
        let mut rows: Vec<(crate::units::Stripe, u32)> = pieces
            .iter()
            .flat_map(|piece| {
                piece.columns().step_by(crate::units::usize_of_u32(block)).map(|at| (piece.stripe, at))
            })
            .collect();
        rows.sort_unstable();
        rows.dedup();
        let mut result = Ok(());
        for (stripe, at) in rows {
            let row: Vec<Piece> = pieces
                .iter()
                .filter(|piece| piece.stripe == stripe && piece.columns().contains(&at))
                .map(|piece| {
                    let from = at - piece.column;
                    Piece { column: at, seg: piece.seg.slice(from..from + block), ..piece.clone() }
                })
                .collect();
            result = result.and(self.write_row(&row, &(stripe.0..stripe.0 + 1), how).await);
        }
        result
    }

    /// Writes pieces of one row of blocks, whatever else of the row cannot be read any more.
    async fn write_row(&self, row: &[Piece], stripes: &Range<u64>, how: Durability) -> Result<(), IoError> {
        let mut lost: Vec<ReadFault> = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            match self.write_once(row, stripes, how, &lost).await {
                Ok(()) => return Ok(()),
                Err(Attempt::Reads(epoch, faults)) => {
                    for fault in faults {
                        let is_medium = matches!(fault.error.kind, IoKind::Medium | IoKind::Protection);
                        let dealt = self.handle_read_faults(epoch, core::iter::once(fault.clone()).collect());
                        match dealt.await {
                            Err(error) if is_medium && self.may_be_few_blocks(error) => lost.push(fault),
                            other => other?,
                        }
                    }
                }
                Err(other) => self.start_again(other).await?,
            }
        }
        Err(GAVE_UP)
    }

    /// Deals with what made an attempt end, holding nothing.
    pub(super) async fn start_again(&self, attempt: Attempt) -> Result<(), IoError> {
        match attempt {
            Attempt::Replan => Ok(()),
            Attempt::Reads(epoch, faults) => self.handle_read_faults(epoch, faults).await,
            Attempt::Members(epoch, errors) => self.fail_all(epoch, errors).await,
            Attempt::Failed(error) => Err(error),
        }
    }

    async fn write_once(
        &self,
        pieces: &[Piece],
        stripes: &Range<u64>,
        how: Durability,
        lost: &[ReadFault],
    ) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let planned = plan::plan(shared, &self.lane_view(), pieces, lost)?;
        let mut leases = self.scratch(&planned.lease_sizes()).await;
        let locked = match shared.geometry().level() {
            // Without redundancy there is nothing to keep in step, but a successor.
            Level::Raid0 if !self.lane_view().has_successors() => None,
            _ => Some(shared.locks.lock(stripes.clone(), LockMode::Exclusive).await),
        };
        let entered = self.enter();
        if locked.is_none() && entered.has_successors() {
            return Err(Attempt::Replan);
        }
        let plan = self.plan_again(&entered, planned, pieces, lost)?;
        if plan.parts.iter().any(|part| !part.forsaken.is_empty()) {
            drop(entered);
            return Err(Box::pin(self.forsake_parity(&plan)).await);
        }
        let epoch = entered.view().epoch;
        let ticket = shared.intents.as_ref().map(|intents| intents.begin(shared.geometry(), stripes));
        self.gather(&entered, &plan, &mut leases).await.map_err(|faults| Attempt::Reads(epoch, faults))?;
        for part in plan.parts.iter().filter(|part| part.mode == plan::Mode::Modify) {
            shared.vouched.withdraw(part.stripe);
        }
        let mut puts = self.encode(&plan, leases).await;
        self.data_puts(&entered, pieces, &mut puts);
        self.log(&entered, ticket.as_ref()).await.map_err(|errors| Attempt::Members(epoch, errors))?;
        let errors = self.commit(&entered, &mut puts, how).await;
        self.settle(entered, pieces, &puts, errors).await?;
        ticket.iter().for_each(IntentTicket::settle);
        if shared.suspect.any() {
            for part in &plan.parts {
                if part.makes_whole() {
                    shared.no_longer_suspect(part.stripe, &part.columns);
                } else {
                    // What was written is right. Column by column: the last write of a row in doubt makes it whole.
                    let geometry = shared.geometry();
                    let range = super::stripe::member_range(geometry, part.stripe, &part.columns);
                    for (index, _) in &part.modified {
                        shared.suspect.clear(geometry.data_slot(part.stripe, *index), &range);
                    }
                }
            }
        }
        Ok(())
    }

    /// The plan as it is under the locks; if it needs other leases than those taken, everything starts again.
    fn plan_again(
        &self,
        entered: &super::lane::Entered<E>,
        planned: Plan,
        pieces: &[Piece],
        lost: &[ReadFault],
    ) -> Result<Plan, Attempt> {
        let shared = &self.0.shared;
        let is_clear = !shared.bad.any() && !shared.suspect.any();
        if planned.is_settled && planned.version == entered.version() && is_clear {
            return Ok(planned);
        }
        let plan = plan::plan(shared, entered, pieces, lost)?;
        if plan.lease_sizes() == planned.lease_sizes() { Ok(plan) } else { Err(Attempt::Replan) }
    }

    /// Lists parity that the write is about to make unknowable, durably, before any data is written (SAFETY S6): a crash
    /// between the two must not leave parity that fits neither the old nor the new data. Under the stripe lock, holding no
    /// view; then the write is planned again.
    async fn forsake_parity(&self, plan: &Plan) -> Attempt {
        let geometry = self.0.shared.geometry();
        for (slot, range) in plan.parts.iter().flat_map(|part| part.forsaken_ranges(geometry)) {
            if let Err(error) = self.record_bad_blocks(slot, range).await {
                return Attempt::Failed(error);
            }
        }
        Attempt::Replan
    }

    /// Scratch leases, waiting if there are none; before any lock.
    pub(super) async fn scratch(&self, sizes: &[u32]) -> Vec<Option<Lease>> {
        if sizes.is_empty() {
            return Vec::new();
        }
        let leases = match self.0.env.try_lease(Pool::Scratch, sizes) {
            Some(leases) => leases,
            None => self.0.env.lease(Pool::Scratch, sizes).await,
        };
        leases.into_iter().map(Some).collect()
    }
}
