//! Zeroes (SAFETY S7, promise P6): whole stripes by the drives' own write-zeroes on all members (the parity of zeroes is
//! zero), edges by ordinary writes of zeroes. Discard is the same with `unmap` allowed.

use core::ops::Range;

use super::Group;
use super::intent::{IntentTicket, SlotErrors};
use super::locks::{LockMode, STRIPES_MAX};
use super::plan::Piece;
use super::shared::is_offline;
use super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use crate::geometry::Level;
use crate::lease::{LEASE_BYTES_MAX, Seg};
use crate::ports::{Drive, Durability, Env, IoError, IoKind, Pool};
use crate::units::{GroupOffset, Slot, Stripe, u32_of};

impl<E: Env> Group<E> {
    /// Makes a range of the group (multiples of the block size, any length) read as zeroes. `unmap` lets drives give the
    /// space up. With [`Durability::Fua`] the zeroes are durable on completion.
    ///
    /// # Errors
    /// As [`Group::write`]. On an error any part of the range may be zero.
    pub async fn zero(&self, range: Range<u64>, unmap: bool, how: Durability) -> Result<(), IoError> {
        if range.start > range.end {
            return Err(IoError::new(IoKind::Invalid, "a range that ends before it starts"));
        }
        self.validate(GroupOffset(range.start), range.end - range.start, u64::MAX)?;
        let _writer = self.0.shared.admit_writer().await?;
        if range.is_empty() {
            return Ok(());
        }
        let stripe = self.0.shared.geometry().stripe_data_bytes();
        let capacity = self.0.shared.geometry().capacity_bytes();
        let first = range.start.div_ceil(stripe);
        // The end of the group ends a whole stripe, also where RAID 1's last row is short.
        let last = if range.end == capacity { range.end.div_ceil(stripe) } else { range.end / stripe };
        if first >= last {
            return self.zero_edge(range, how).await;
        }
        self.zero_edge(range.start..first * stripe, how).await?;
        let mut next = first;
        while next < last {
            let end = last.min(next + STRIPES_MAX);
            self.zero_stripes(next..end, unmap).await?;
            next = end;
        }
        self.zero_edge((last * stripe).min(range.end)..range.end, how).await?;
        // The drives' zeroing has no FUA of its own.
        if how == Durability::Fua { self.flush().await } else { Ok(()) }
    }

    /// Writes zeroes to a range of less than a stripe on either side of whole ones.
    async fn zero_edge(&self, range: Range<u64>, how: Durability) -> Result<(), IoError> {
        if range.is_empty() {
            return Ok(());
        }
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let window = u64::from(geometry.chunk_bytes().min(LEASE_BYTES_MAX));
        let size = u32_of(window.min(range.end - range.start));
        let mut lease = self.0.env.lease(Pool::Request, &[size]).await.remove(0);
        lease.bytes_mut().fill(0);
        let zeroes: Seg = lease.share();
        let mut next = range.start;
        while next < range.end {
            // Up to a boundary of the longest request, so that parity of neighbours is computed together.
            let step = shared.max_request_bytes();
            let end = range.end.min((next / step + 1) * step);
            let mut at = next;
            let piece = |len: u32| {
                let place = geometry.place(GroupOffset(at));
                at += u64::from(len);
                let seg = zeroes.slice(0..len);
                Piece { stripe: place.stripe, index: place.index, column: place.column, seg }
            };
            let pieces: Vec<Piece> = geometry.pieces(GroupOffset(next), end - next).map(piece).collect();
            self.write_pieces(&pieces, &self.stripes_of(&(next..end)), how).await?;
            next = end;
        }
        Ok(())
    }

    /// Zeroes whole stripes on every live member.
    async fn zero_stripes(&self, stripes: Range<u64>, unmap: bool) -> Result<(), IoError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.zero_stripes_once(&stripes, unmap).await {
                Ok(()) => return Ok(()),
                Err(attempt) => Box::pin(self.start_again(attempt)).await?,
            }
        }
        Err(GAVE_UP)
    }

    async fn zero_stripes_once(&self, stripes: &Range<u64>, unmap: bool) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Exclusive).await;
        let entered = self.enter();
        if is_offline(geometry, entered.view()) {
            return Err(Attempt::Failed(IoError::new(
                IoKind::BeyondTolerance,
                "blocks of every stripe have no live member",
            )));
        }
        let (version, epoch) = (entered.version(), entered.view().epoch);
        let ticket = shared.intents.as_ref().map(|intents| intents.begin(geometry, stripes));
        self.log(&entered, ticket.as_ref()).await.map_err(|errors| Attempt::Members(epoch, errors))?;
        let mut errors = SlotErrors::new();
        let mut commands = Vec::new();
        let mut zeroed = Vec::new();
        for slot in entered.slots() {
            let Some(range) = self.live_range(&entered, slot, stripes) else { continue };
            shared.counters(self.0.env.lane()).write(slot);
            zeroed.push((slot, range.clone()));
            match entered.drive(slot) {
                Ok((drive, start)) => {
                    let range = start.plus(range.start).0..start.plus(range.end).0;
                    commands.push((slot, drive.zero(range, unmap)));
                }
                Err(error) => errors.push((slot, error)),
            }
        }
        let copies = self.start_zero_copies(&entered, &zeroed, unmap);
        for (slot, command) in commands {
            if let Err(error) = command.await {
                self.count_error(slot);
                errors.push((slot, error));
            }
        }
        Box::pin(self.finish_zero_copies(copies)).await;
        drop(entered);
        zeroed.retain(|(slot, _)| !errors.iter().any(|(failed, _)| failed == slot));
        self.fail_all(epoch, errors).await?;
        shared.wait_settled(version).await;
        if shared.is_offline() {
            let error = IoError::new(IoKind::BeyondTolerance, "too many members failed during the zeroing");
            return Err(Attempt::Failed(error));
        }
        for (slot, range) in &zeroed {
            shared.suspect.clear(*slot, range);
        }
        if shared.bad.any() {
            self.clear_bad_blocks(zeroed.into_iter()).await?;
        }
        ticket.iter().for_each(IntentTicket::settle);
        Ok(())
    }

    /// The part of some stripes, in bytes of the slot's data area, that its member takes part in.
    fn live_range(
        &self,
        lane: &super::lane::LaneView<E>,
        slot: Slot,
        stripes: &Range<u64>,
    ) -> Option<Range<u64>> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        // Stripes below a rebuild cursor come before those above it.
        let live = (stripes.start..stripes.end)
            .take_while(|&stripe| lane.is_live(shared, slot, Stripe(stripe)))
            .last()?;
        let end = geometry.member_offset(Stripe(live), 0) + u64::from(geometry.stripe_height(Stripe(live)));
        debug_assert!(geometry.level() != Level::Raid0 || live + 1 == stripes.end);
        Some(geometry.member_offset(Stripe(stripes.start), 0)..end)
    }
}
