//! Reads. A healthy read takes no lock, holds no view and allocates nothing: geometry, drive I/O, then a look whether the
//! view is still the same (SAFETY M3). Whatever cannot be read that way is read again under the stripe lock
//! (`degraded.rs`).

use core::ops::Range;

use smallvec::SmallVec;

use super::Group;
use super::lane::LaneView;
use super::stripe;
use crate::lease::{Lease, Leases, leases_len};
use crate::ports::{Done, Env, IoError, IoKind};
use crate::units::{DataIndex, GroupOffset, Slot, Stripe};

/// One piece of a read. The lease is `None` while a command has it, and after a time-out.
pub(super) struct ReadPiece {
    pub(super) stripe: Stripe,
    pub(super) index: DataIndex,
    pub(super) columns: Range<u32>,
    pub(super) lease: Option<Lease>,
    pub(super) is_done: bool,
    /// A way around an avoided member failed: the member itself is read.
    pub(super) is_plain: bool,
}

impl<E: Env> Group<E> {
    /// Reads from the group at `at` into the leases, which are cut by [`crate::geometry::Geometry::pieces`]; offset and
    /// length are multiples of the block size, at most [`super::Shared::max_request_bytes`] in all. The leases come back in
    /// order, though after a member timed out not the same ones.
    ///
    /// # Errors
    /// [`IoKind::Invalid`] for a request that does not fit; [`IoKind::BeyondTolerance`], [`IoKind::BadBlock`] or
    /// [`IoKind::Medium`] if any block of it has no source; [`IoKind::ShuttingDown`] after [`Group::quiesce`].
    pub async fn read(&self, at: GroupOffset, mut into: Leases) -> Done<Leases> {
        let len = leases_len(&into);
        if let Err(error) = self.validate_read(at, len) {
            return Done { result: Err(error), buf: Some(into) };
        }
        if into.len() == 1 {
            let geometry = self.0.shared.geometry();
            let place = geometry.place(at);
            let columns = place.column..place.column + into[0].len();
            let fits = columns.end <= geometry.chunk_bytes();
            let lane = self.lane_view();
            if fits && let Some(slot) = self.at_once(&lane, place.stripe, place.index, &columns) {
                let done = self.read_direct(&lane, place.stripe, slot, place.column, into).await;
                if done.result.is_ok() && lane.version() == self.0.shared.version() {
                    return done;
                }
                if done.result.is_err() {
                    self.count_error(slot);
                }
                into = done.buf.unwrap_or_default();
            }
        }
        // The rest is rare or long: kept out of the small future of a healthy read.
        Box::pin(self.read_pieces(at, len, into)).await
    }

    fn validate_read(&self, at: GroupOffset, len: u64) -> Result<(), IoError> {
        if self.0.shared.is_stopping() {
            return Err(IoError::new(IoKind::ShuttingDown, "the group is stopping"));
        }
        self.validate(at, len, self.0.shared.max_request_bytes())
    }

    async fn read_direct(
        &self,
        lane: &LaneView<E>,
        stripe: Stripe,
        slot: Slot,
        column: u32,
        into: Leases,
    ) -> Done<Leases> {
        let queued = lane.queued(slot);
        queued.set(queued.get() + 1);
        let at = self.0.shared.geometry().member_offset(stripe, column);
        let done = self.start_read(lane, slot, at, into).finish_read().await;
        queued.set(queued.get() - 1);
        done
    }

    /// As [`Group::direct`], but not a member that is avoided and can be read around.
    fn at_once(
        &self,
        lane: &LaneView<E>,
        stripe: Stripe,
        index: DataIndex,
        columns: &Range<u32>,
    ) -> Option<Slot> {
        if self.0.shared.avoided.any() && self.way_around(lane, stripe, index, columns).is_some() {
            return None;
        }
        self.direct(lane, stripe, index, columns)
    }

    /// The member from which a range of a data column can be read without a lock, if any. Of mirrors the least busy copy;
    /// only the source of resync where they may differ (SAFETY S1).
    pub(super) fn direct(
        &self,
        lane: &LaneView<E>,
        stripe: Stripe,
        index: DataIndex,
        columns: &Range<u32>,
    ) -> Option<Slot> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let readable = |slot| stripe::is_readable(shared, lane, stripe, slot, columns);
        if geometry.copies() == 1 {
            return Some(geometry.data_slot(stripe, index)).filter(|&slot| readable(slot));
        }
        if !shared.regions.is_synced(stripe.0) {
            return stripe::mirror_source(geometry, lane, stripe, index).filter(|&slot| readable(slot));
        }
        // Starting from another copy every row spreads idle load without breaking up sequential reads.
        let turn = u8::try_from(stripe.0 % u64::from(geometry.copies())).expect("below the number of copies");
        let first = geometry.data_slot(stripe, index).0;
        let rotated = (0..geometry.copies()).map(|i| Slot(first + (i + turn) % geometry.copies()));
        rotated
            .filter(|&slot| readable(slot))
            .min_by_key(|&slot| (shared.read_rank(slot), lane.queued(slot).get()))
    }

    /// Any read: directly what can be, the rest under the stripe locks.
    async fn read_pieces(&self, at: GroupOffset, len: u64, into: Leases) -> Done<Leases> {
        let had_leases = !into.is_empty();
        let mut pieces = match self.cut_read(at, len, into) {
            Ok(pieces) => pieces,
            Err(into) => {
                let error = IoError::new(IoKind::Invalid, "the leases are not cut by Geometry::pieces");
                return Done { result: Err(error), buf: Some(into) };
            }
        };
        let lane = self.lane_view();
        if had_leases {
            self.read_directly(&lane, &mut pieces).await;
        }
        if lane.version() != self.0.shared.version() {
            pieces.iter_mut().for_each(|piece| piece.is_done = false);
        }
        let result = match pieces.iter().all(|piece| piece.is_done) {
            true => Ok(()),
            false => self.read_locked(&mut pieces).await,
        };
        let leases: Option<Leases> = pieces.into_iter().map(|piece| piece.lease).collect();
        Done { result, buf: leases }
    }

    /// The pieces of a read. A single lease may be missing: a timed-out member has kept it.
    fn cut_read(&self, at: GroupOffset, len: u64, into: Leases) -> Result<Vec<ReadPiece>, Leases> {
        let geometry = self.0.shared.geometry();
        let lost = into.is_empty();
        if !lost && !geometry.pieces(at, len).eq(into.iter().map(Lease::len)) {
            return Err(into);
        }
        let mut leases = into.into_iter();
        let mut next = at;
        let piece = |size: u32| {
            let place = geometry.place(next);
            next = next.plus(u64::from(size));
            ReadPiece {
                stripe: place.stripe,
                index: place.index,
                columns: place.column..place.column + size,
                lease: leases.next(),
                is_done: false,
                is_plain: false,
            }
        };
        Ok(geometry.pieces(at, len).map(piece).collect())
    }

    /// Reads what can be read without a lock; windows of one chunk as one command.
    async fn read_directly(&self, lane: &LaneView<E>, pieces: &mut [ReadPiece]) {
        let mut commands = SmallVec::<[_; 4]>::new();
        let mut start = 0;
        while start < pieces.len() {
            let (stripe, index) = (pieces[start].stripe, pieces[start].index);
            let same = pieces[start..].iter().take_while(|p| p.stripe == stripe && p.index == index).count();
            let run = start..start + same;
            start = run.end;
            let columns = pieces[run.start].columns.start..pieces[run.end - 1].columns.end;
            if let Some(slot) = self.at_once(lane, stripe, index, &columns) {
                let into = pieces[run.clone()].iter_mut().filter_map(|piece| piece.lease.take()).collect();
                let at = self.0.shared.geometry().member_offset(stripe, columns.start);
                lane.queued(slot).set(lane.queued(slot).get() + 1);
                commands.push((run, slot, self.start_read(lane, slot, at, into)));
            }
        }
        for (run, slot, command) in commands {
            let done = command.finish_read().await;
            lane.queued(slot).set(lane.queued(slot).get() - 1);
            if done.result.is_err() {
                self.count_error(slot);
            }
            for (piece, lease) in pieces[run].iter_mut().zip(done.buf.into_iter().flatten()) {
                piece.lease = Some(lease);
                piece.is_done = done.result.is_ok();
            }
        }
    }
}
