//! The rebuild of a member that came back: what it lacks, and how its cursor passes what it does not lack.
//!
//! Invariant (SAFETY M6, S4): the cursor passes a stripe without a copy only under its exclusive lock, and only when no
//! intent bit covers the stripe at that moment. Whoever writes sets the bit before the commit and holds the lock over both,
//! and no bit is cleared before the group is complete again; so a write that skipped the member is never missed.

use core::future::poll_fn;
use core::ops::Range;
use core::task::Poll;

use super::super::Group;
use super::super::locks::{LockMode, STRIPES_MAX};
use super::super::shared::Shared;
use super::SweepError;
use crate::ports::Env;
use crate::units::{Slot, Stripe};
use crate::view::MemberState;

/// Locks taken in a row before others get their turn on the lane.
const LOCKS_IN_A_ROW: u32 = 64;

impl Shared {
    /// The next stripes from `from` on that a member which came back lacks: covered by an intent bit, or with blocks on
    /// its own list of lost ones.
    pub(super) fn next_lacking(&self, slot: Slot, from: u64) -> Option<Range<u64>> {
        let geometry = self.geometry();
        let written = self.intents.as_ref().and_then(|intents| intents.next_set(geometry, from));
        let chunk = u64::from(geometry.chunk_bytes());
        let lost = self.bad.list(slot).into_iter().find_map(|range| {
            let stripes = (range.start / chunk).max(from)..range.end.div_ceil(chunk).min(geometry.stripes());
            (!stripes.is_empty()).then_some(stripes)
        });
        match (written, lost) {
            (Some(written), Some(lost)) if lost.start < written.start => {
                Some(lost.start..lost.end.min(written.start))
            }
            (None, lost) => lost,
            (written, _) => written,
        }
    }

    /// How many stripes of a range a member that came back lacks.
    pub(super) fn lacking(&self, slot: Slot, stripes: Range<u64>) -> u64 {
        let (mut count, mut from) = (0, stripes.start);
        while let Some(run) = self.next_lacking(slot, from).filter(|run| run.start < stripes.end) {
            count += run.end.min(stripes.end) - run.start;
            from = run.end;
        }
        count
    }

    /// What a member that came back to the slot would have copied to it now, in bytes of a member.
    #[must_use]
    pub fn lacking_bytes(&self, slot: Slot) -> u64 {
        let geometry = self.geometry();
        self.lacking(slot, 0..geometry.stripes()) * u64::from(geometry.chunk_bytes())
    }
}

impl<E: Env> Group<E> {
    /// Moves the cursor from stripe `from` to the next one the member lacks, or to the end; returns that stripe.
    pub(super) async fn pass_current(&self, slot: Slot, from: u64) -> Result<u64, SweepError> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let (mut next, mut locks) = (from, 0);
        loop {
            let clean_until = shared.next_lacking(slot, next).map_or(geometry.stripes(), |run| run.start);
            if clean_until == next {
                return Ok(next);
            }
            let stripes = next..clean_until.min(next + STRIPES_MAX);
            let _writer = shared.admit_writer().await.map_err(|_| SweepError::Cancelled)?;
            let _locked = shared.locks.lock(stripes.clone(), LockMode::Exclusive).await;
            let entered = self.enter();
            let is_ours = shared.cursor(slot) >= geometry.member_offset(Stripe(next), 0);
            if entered.view().member(slot).state != MemberState::Rebuilding || !is_ours {
                return Err(SweepError::MemberGone(slot));
            }
            // Again, now that nobody writes there: a bit may have been set meanwhile.
            let end = shared.next_lacking(slot, next).map_or(stripes.end, |run| run.start.min(stripes.end));
            if end > next {
                let last = Stripe(end - 1);
                let bytes = geometry.member_offset(last, 0) + u64::from(geometry.stripe_height(last));
                shared.set_cursor(slot, bytes.max(shared.cursor(slot)));
            }
            next = end;
            locks += 1;
            if locks % LOCKS_IN_A_ROW == 0 {
                drop((entered, _locked, _writer));
                give_way().await;
            }
        }
    }
}

/// Lets the lane's other tasks run once.
async fn give_way() {
    let mut is_back = false;
    poll_fn(|cx| {
        if is_back {
            return Poll::Ready(());
        }
        is_back = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
