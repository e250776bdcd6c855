//! A write, from **admit** to **settle**. Each step is the function of its name; what it does is in the file of its name.
//!
//! An attempt that meets a failed member before the first commit starts again from the plan, with nothing held; after
//! the commit it only settles. Attempts are bounded: every one that starts again has dropped a member or repaired a
//! block.

use core::ops::Range;

use smallvec::SmallVec;

use super::Group;
use super::gather::ReadFaults;
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
            match self.write_once(pieces, stripes, how).await {
                Ok(()) => return Ok(()),
                Err(attempt) => Box::pin(self.start_again(attempt)).await?,
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
    ) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let planned = plan::plan(shared, &self.lane_view(), pieces)?;
        let mut leases = self.scratch(&planned.lease_sizes()).await;
        let _locked = match shared.geometry().level() {
            Level::Raid0 => None,
            _ => Some(shared.locks.lock(stripes.clone(), LockMode::Exclusive).await),
        };
        let entered = self.enter();
        let plan = self.plan_again(&entered, planned, pieces)?;
        let epoch = entered.view().epoch;
        let ticket = shared.intents.as_ref().map(|intents| intents.begin(shared.geometry(), stripes));
        self.gather(&entered, &plan, &mut leases).await.map_err(|faults| Attempt::Reads(epoch, faults))?;
        let mut puts = self.encode(&plan, leases).await;
        self.data_puts(&entered, pieces, &mut puts);
        self.log(&entered, ticket.as_ref()).await.map_err(|errors| Attempt::Members(epoch, errors))?;
        let errors = self.commit(&entered, &mut puts, how).await;
        self.settle(entered, pieces, &puts, errors).await?;
        ticket.iter().for_each(IntentTicket::settle);
        Ok(())
    }

    /// The plan as it is under the locks; if it needs other leases than those taken, everything starts again.
    fn plan_again(
        &self,
        entered: &super::lane::Entered<E>,
        planned: Plan,
        pieces: &[Piece],
    ) -> Result<Plan, Attempt> {
        let shared = &self.0.shared;
        if planned.is_settled && planned.version == entered.version() && !shared.bad.any() {
            return Ok(planned);
        }
        let plan = plan::plan(shared, entered, pieces)?;
        if plan.lease_sizes() == planned.lease_sizes() { Ok(plan) } else { Err(Attempt::Replan) }
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
