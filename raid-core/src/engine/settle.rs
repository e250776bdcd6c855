//! Step 8, **settle**: members that failed a write are dropped (SAFETY S5); the write is acknowledged once the epoch it
//! ran under is durable (SAFETY M2, step 3), and only if what it wrote can still be read.

use super::Group;
use super::encode::Put;
use super::intent::SlotErrors;
use super::lane::Entered;
use super::plan::Piece;
use super::stripe;
use crate::membership;
use crate::ports::{Env, IoError, IoKind};

impl<E: Env> Group<E> {
    /// Ends a write: `errors` are the members that failed it. The caller still holds the stripe locks.
    pub(super) async fn settle(
        &self,
        entered: Entered<E>,
        pieces: &[Piece],
        puts: &[Put],
        errors: SlotErrors,
    ) -> Result<(), IoError> {
        let shared = &self.0.shared;
        let (version, epoch) = (entered.version(), entered.view().epoch);
        // A change waits for everybody to leave the old view; we must not be among them when we wait for it.
        drop(entered);
        let failed: smallvec::SmallVec<[_; 2]> = errors.iter().map(|(slot, _)| *slot).collect();
        // Rare work is boxed, here and elsewhere: it would make the future of every write larger.
        if !errors.is_empty() {
            Box::pin(self.fail_all(epoch, errors)).await?;
        }
        shared.wait_settled(version).await;
        if shared.geometry().level().parities() > 0 {
            if shared.is_offline() {
                return Err(IoError::new(
                    IoKind::BeyondTolerance,
                    "too many members failed during the write",
                ));
            }
        } else {
            let view = shared.view();
            for piece in pieces {
                let mut copies = stripe::copies(shared.geometry(), piece.stripe, piece.index);
                if !copies.any(|slot| !failed.contains(&slot) && view.member(slot).is_in_sync()) {
                    return Err(IoError::new(IoKind::BeyondTolerance, "the last copy failed the write"));
                }
            }
        }
        if shared.bad.any() {
            let written = puts.iter().filter(|put| !failed.contains(&put.slot));
            let ranges = written.map(|put| (put.slot, put.at..put.at + u64::from(put.seg.len())));
            Box::pin(self.clear_bad_blocks(ranges)).await?;
        }
        Ok(())
    }

    /// Takes rewritten blocks off the bad-block lists, durably (SAFETY S6).
    pub(super) async fn clear_bad_blocks(
        &self,
        written: impl Iterator<Item = (crate::units::Slot, core::ops::Range<u64>)>,
    ) -> Result<(), IoError> {
        let mut slots: smallvec::SmallVec<[_; 2]> = smallvec::SmallVec::new();
        for (slot, range) in written {
            if self.0.shared.bad.clear(slot, &range) && !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        for slot in slots {
            self.store_bad_blocks(slot).await?;
        }
        Ok(())
    }

    /// Makes the bad-block list of a slot durable; a member that cannot take it is dropped.
    pub(super) async fn store_bad_blocks(&self, slot: crate::units::Slot) -> Result<(), IoError> {
        let shared = &self.0.shared;
        let lane = self.lane_view();
        if lane.is_missing(slot) {
            return Ok(());
        }
        let ranges = shared.bad.list(slot);
        let stored = membership::store_bad_blocks(
            &self.0.env,
            shared.meta(),
            lane.view(),
            slot,
            &ranges,
            &lane.drives(),
        )
        .await;
        match stored {
            Ok(()) => Ok(()),
            Err(error) => {
                let mut errors = SlotErrors::new();
                errors.push((slot, error));
                self.fail_all(lane.view().epoch, errors).await
            }
        }
    }
}
