//! Reads under the stripe lock: of blocks whose member is lost, not rebuilt yet, or listed as bad, and of everything that
//! met a membership change or an error on its way (SAFETY M3, S2).

use core::ops::Range;

use smallvec::SmallVec;

use super::Group;
use super::gather::Want;
use super::lane::LaneView;
use super::locks::LockMode;
use super::read::ReadPiece;
use super::stripe::{self, Sources};
use super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use crate::geometry::Role;
use crate::lease::{Lease, Seg};
use crate::ports::{Env, IoError, IoKind};
use crate::units::{Slot, u64_of, usize_of_u32};

/// How one piece is read.
#[derive(PartialEq, Eq, Debug)]
enum Way {
    Direct(Slot),
    Solve(Sources),
}

impl Way {
    /// Leases it takes beside the one of the piece.
    fn leases(&self) -> usize {
        match self {
            Self::Direct(_) => 0,
            Self::Solve(sources) => sources.read.len() + sources.solve.len() - 1,
        }
    }
}

/// Why a lost block of a stripe that a crash may have left half written is not reconstructed.
pub(super) const DIRTY: IoError = IoError::new(
    IoKind::BeyondTolerance,
    "the block's member is lost and a crash interrupted a write to its stripe",
);

impl<E: Env> Group<E> {
    /// How a range of a data column is read under the lock.
    fn way(&self, lane: &LaneView<E>, piece: &ReadPiece) -> Result<Way, IoError> {
        if !piece.is_plain
            && let Some(sources) = self.way_around(lane, piece.stripe, piece.index, &piece.columns)
        {
            return Ok(Way::Solve(sources));
        }
        if let Some(slot) = self.direct(lane, piece.stripe, piece.index, &piece.columns) {
            return Ok(Way::Direct(slot));
        }
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let own = geometry.data_slot(piece.stripe, piece.index);
        let range = stripe::member_range(geometry, piece.stripe, &piece.columns);
        if geometry.level().parities() == 0 {
            // A mirror's source has a bad block: any other copy that has none.
            let mut copies = stripe::copies(geometry, piece.stripe, piece.index);
            return copies
                .find(|&slot| stripe::is_readable(shared, lane, piece.stripe, slot, &piece.columns))
                .map(Way::Direct)
                .ok_or_else(|| stripe::lost_error(shared, own, &range));
        }
        if shared.regions.is_dirty(piece.stripe.0) {
            let listed = shared.bad.overlaps(own, &range);
            return Err(if listed { stripe::lost_error(shared, own, &range) } else { DIRTY });
        }
        let is_source = |role| {
            let slot = stripe::slot_of(geometry, piece.stripe, role);
            slot != own && stripe::is_source(shared, lane, piece.stripe, slot, &piece.columns)
        };
        stripe::sources(geometry, &[Role::Data(piece.index)], is_source)
            .map(Way::Solve)
            .ok_or_else(|| stripe::lost_error(shared, own, &range))
    }

    fn ways(&self, lane: &LaneView<E>, pieces: &[ReadPiece]) -> Result<Vec<Way>, IoError> {
        pieces.iter().filter(|piece| !piece.is_done).map(|piece| self.way(lane, piece)).collect()
    }

    /// Reads the pieces that are not done, a bounded part of them at a time.
    pub(super) async fn read_locked(&self, pieces: &mut [ReadPiece]) -> Result<(), IoError> {
        let members = u64::from(self.0.shared.geometry().members());
        let per_step = usize::try_from(super::SCRATCH_BYTES_MAX / 65536 / (members + 1)).unwrap_or(1).max(1);
        for step in pieces.chunks_mut(per_step) {
            let mut attempts = 0;
            while let Err(attempt) = self.read_locked_once(step).await {
                let goes_around = self.0.shared.avoided.any() && step.iter().any(|piece| !piece.is_plain);
                let again = match self.start_again(attempt).await {
                    Err(error) if !goes_around => self.read_by_blocks(step, error).await,
                    again => again,
                };
                attempts += 1;
                match again {
                    Ok(()) if attempts < ATTEMPTS_MAX => {}
                    // What cannot be read around an avoided member is read from it.
                    _ if goes_around => {
                        step.iter_mut().for_each(|piece| piece.is_plain = true);
                        attempts = 0;
                    }
                    Ok(()) => return Err(GAVE_UP),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// What is left after an error that may be about other blocks: each for itself, so that lost blocks in different rows of
    /// a request do not pass for one lost row. Only blocks that really have no source fail it.
    async fn read_by_blocks(&self, pieces: &mut [ReadPiece], error: IoError) -> Result<(), IoError> {
        let block = self.0.shared.block_size().bytes();
        let of_blocks = matches!(
            error.kind,
            IoKind::Medium | IoKind::Protection | IoKind::BadBlock | IoKind::BeyondTolerance
        );
        for piece in pieces.iter_mut().filter(|piece| !piece.is_done) {
            let columns = piece.columns.clone();
            let Some(into) = piece.lease.as_mut() else { return Err(error) };
            if !of_blocks || columns.end - columns.start <= block {
                return Err(error);
            }
            for at in columns.clone().step_by(usize_of_u32(block)) {
                let columns_of_block = at..at + block;
                let (stripe, index) = (piece.stripe, piece.index);
                let mut one = [ReadPiece {
                    stripe,
                    index,
                    columns: columns_of_block,
                    lease: None,
                    is_done: false,
                    is_plain: true,
                }];
                let mut attempts = 0;
                while let Err(attempt) = self.read_locked_once(&mut one).await {
                    self.start_again(attempt).await?;
                    attempts += 1;
                    if attempts == ATTEMPTS_MAX {
                        return Err(GAVE_UP);
                    }
                }
                let [ReadPiece { lease: Some(read), .. }] = &one else { return Err(error) };
                let from = usize_of_u32(at - columns.start);
                into.bytes_mut()[from..from + usize_of_u32(block)].copy_from_slice(read.bytes());
            }
            piece.is_done = true;
        }
        Ok(())
    }

    async fn read_locked_once(&self, pieces: &mut [ReadPiece]) -> Result<(), Attempt> {
        if pieces.iter().all(|piece| piece.is_done) {
            return Ok(());
        }
        let shared = &self.0.shared;
        let planned = self.ways(&self.lane_view(), pieces)?;
        let sizes = lease_sizes(pieces, &planned);
        let mut leases = self.scratch(&sizes).await;
        let stripes: Range<u64> = pieces[0].stripe.0..pieces[pieces.len() - 1].stripe.0 + 1;
        let _locked = shared.locks.lock(stripes, LockMode::Shared).await;
        let entered = self.enter();
        let ways = self.ways(&entered, pieces)?;
        if lease_sizes(pieces, &ways) != sizes {
            return Err(Attempt::Replan);
        }
        let epoch = entered.view().epoch;
        let (mut wants, outs) = self.wants(pieces, &ways, &mut leases);
        let faults = self.read_all(&entered, &mut wants, &mut leases).await;
        if !faults.is_empty() {
            give_back(pieces, &outs, &mut leases);
            return Err(Attempt::Reads(epoch, faults));
        }
        self.solve_pieces(pieces, ways, outs, leases).await;
        Ok(())
    }

    /// What to read, and per piece the number of its first lease. The pieces' own leases are moved behind the others.
    fn wants(
        &self,
        pieces: &mut [ReadPiece],
        ways: &[Way],
        leases: &mut Vec<Option<Lease>>,
    ) -> (SmallVec<[Want; 8]>, Vec<usize>) {
        let geometry = self.0.shared.geometry();
        let mut wants = SmallVec::new();
        let mut firsts = Vec::with_capacity(ways.len());
        let mut next = 0;
        for (piece, way) in pieces.iter_mut().filter(|piece| !piece.is_done).zip(ways) {
            let own = match piece.lease.take() {
                Some(lease) => {
                    leases.push(Some(lease));
                    leases.len() - 1
                }
                None => {
                    next += 1;
                    next - 1
                }
            };
            firsts.push(own);
            let mut want = |slot, lease| {
                wants.push(Want {
                    slot,
                    stripe: piece.stripe,
                    columns: piece.columns.clone(),
                    at: geometry.member_offset(piece.stripe, piece.columns.start),
                    lease,
                });
            };
            match way {
                Way::Direct(slot) => want(*slot, own),
                Way::Solve(sources) => {
                    for &role in &sources.read {
                        want(stripe::slot_of(geometry, piece.stripe, role), next);
                        next += 1;
                    }
                    next += sources.solve.len() - 1;
                }
            }
        }
        (wants, firsts)
    }

    async fn solve_pieces(
        &self,
        pieces: &mut [ReadPiece],
        ways: Vec<Way>,
        owns: Vec<usize>,
        mut leases: Vec<Option<Lease>>,
    ) {
        let mut next = 0;
        let pending = pieces.iter_mut().filter(|piece| !piece.is_done);
        for ((piece, way), own) in pending.zip(ways).zip(owns) {
            if own == next {
                next += 1;
            }
            let mine = leases[own].take().expect("a read without an error gives its lease back");
            piece.is_done = true;
            let Way::Solve(sources) = way else {
                piece.lease = Some(mine);
                continue;
            };
            let mut known: Vec<(Role, Seg)> = Vec::with_capacity(sources.read.len());
            for &role in &sources.read {
                known.push((role, leases[next].take().expect("read without an error").share()));
                next += 1;
            }
            let mut mine = Some(mine);
            let mut outs = SmallVec::new();
            for &role in &sources.solve {
                let lease = if role == Role::Data(piece.index) {
                    mine.take()
                } else {
                    next += 1;
                    leases[next - 1].take()
                };
                outs.push((role, lease.expect("one lease per solved column")));
            }
            let len = piece.columns.end - piece.columns.start;
            let solved = self.recover(len, &known, outs).await;
            let wanted = solved.into_iter().find(|(role, _)| *role == Role::Data(piece.index));
            piece.lease = wanted.map(|(_, lease)| lease);
        }
    }
}

/// Sizes to lease: per piece one for a lost lease, its sources, and the second of two solved columns.
fn lease_sizes(pieces: &[ReadPiece], ways: &[Way]) -> Vec<u32> {
    let mut sizes = Vec::new();
    for (piece, way) in pieces.iter().filter(|piece| !piece.is_done).zip(ways) {
        let lost = usize::from(piece.lease.is_none());
        let count = lost + way.leases();
        sizes.extend(core::iter::repeat_n(piece.columns.end - piece.columns.start, count));
    }
    debug_assert!(u64_of(sizes.len()) <= super::SCRATCH_BYTES_MAX / 512, "bounded by the step");
    sizes
}

/// After an error: the pieces keep the leases that came back.
fn give_back(pieces: &mut [ReadPiece], owns: &[usize], leases: &mut [Option<Lease>]) {
    for (piece, &own) in pieces.iter_mut().filter(|piece| !piece.is_done).zip(owns) {
        piece.lease = leases[own].take();
    }
}
