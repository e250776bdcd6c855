//! What is known to be wrong on the members of a RAID 6 and has not been put right yet, and what may be called certain.
//!
//! A block that a scrub found wrong is no source for others until its row was rewritten, repaired, or found to fit again.
//! The marks follow the rows: whoever compares a row says how it is now, under its lock.
//!
//! **Certain** is that a located data block is wrong only where no read-modify-write has gone over the row since all its
//! columns were last seen to fit ([`Vouched`]): one that meets a block that has gone wrong unnoticed takes the difference
//! between the wrong contents and the new ones into P and Q, and from then on the new, right block is the one that is
//! located. Without checksums the two histories cannot be told apart.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::badblocks::BadBlocks;
use super::shared::Shared;
use super::stripe::member_range;
use super::sweep::{Finding, What};
use crate::geometry::Level;
use crate::units::{Slot, Stripe, usize_of};

/// Stripes in which all columns fitted each other at a time since which no read-modify-write went over them: one bit each,
/// in memory only. Set under a stripe's lock by whoever saw or made it fit; after a start nothing is vouched for.
pub(crate) struct Vouched(Box<[AtomicU64]>);

impl Vouched {
    pub(crate) fn new(level: Level, stripes: u64) -> Self {
        let words = if level == Level::Raid6 { stripes.div_ceil(64) } else { 0 };
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, stripe: Stripe) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(usize_of(stripe.0 / 64))?, 1 << (stripe.0 % 64)))
    }

    pub(crate) fn vouch(&self, stripe: Stripe) {
        if let Some((word, mask)) = self.place(stripe) {
            word.fetch_or(mask, Ordering::AcqRel);
        }
    }

    /// A read-modify-write is about to change the stripe.
    pub(crate) fn withdraw(&self, stripe: Stripe) {
        if let Some((word, mask)) = self.place(stripe)
            && word.load(Ordering::Acquire) & mask != 0
        {
            word.fetch_and(!mask, Ordering::AcqRel);
        }
    }

    fn vouch_for_all(&self) {
        self.0.iter().for_each(|word| word.store(u64::MAX, Ordering::Release));
    }

    pub(crate) fn is_vouched(&self, stripe: Stripe) -> bool {
        self.place(stripe).is_some_and(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
    }
}

/// Whether a finding of this kind says that its members are wrong.
fn blames(what: What) -> bool {
    matches!(what, What::Located | What::Suspected | What::Ambiguous)
}

impl Shared {
    /// What scrubs have found wrong and nobody has put right, as far as it is remembered from before the group was started.
    /// On RAID 6 a lost block is from now on computed from the others without what is known to be wrong, and not at all where
    /// nobody can tell what is: then it reads as an error. [`super::Group::look_again`] says how it is now.
    pub fn set_findings<'a>(&self, findings: impl Iterator<Item = &'a Finding>) {
        let geometry = self.geometry();
        let fresh = BadBlocks::new(usize::from(geometry.members()), &[]);
        if geometry.level() == Level::Raid6 {
            for finding in findings.filter(|it| !it.is_repaired && it.stripe.0 < geometry.stripes()) {
                Self::blame(&fresh, self, finding);
            }
        }
        self.suspect.replace(fresh);
    }

    fn blame(list: &BadBlocks, shared: &Self, finding: &Finding) {
        let range = member_range(shared.geometry(), finding.stripe, &finding.columns);
        let members = shared.geometry().members();
        for &slot in finding.slots.iter().filter(|slot| blames(finding.what) && slot.0 < members) {
            list.add(slot, range.clone());
        }
    }

    /// All members of a group that was just made, and is not used yet, are zeroes: every stripe fits.
    pub fn vouch_for_all(&self) {
        self.vouched.vouch_for_all();
    }

    /// Whether a finding of a RAID 6 still holds: nobody has rewritten the row, repaired it or seen it fit since.
    #[must_use]
    pub fn is_standing(&self, finding: &Finding) -> bool {
        let range = member_range(self.geometry(), finding.stripe, &finding.columns);
        let members = self.geometry().members();
        let is_suspect = |slot: &Slot| slot.0 < members && self.suspect.overlaps(*slot, &range);
        !blames(finding.what) || finding.slots.iter().any(is_suspect)
    }

    /// The columns were compared, under their stripe's lock: this, in order, is all that is wrong with them.
    pub(super) fn compared(&self, stripe: Stripe, columns: &Range<u32>, findings: &[Finding]) {
        if self.geometry().level() != Level::Raid6 {
            return;
        }
        // Nothing that is still wrong may look right in between: a degraded read of another lane may be looking.
        let mut from = columns.start;
        for finding in findings {
            self.no_longer_suspect(stripe, &(from..finding.columns.start));
            Self::blame(&self.suspect, self, finding);
            let range = member_range(self.geometry(), stripe, &finding.columns);
            for slot in (0..self.geometry().members()).map(Slot).filter(|slot| !finding.slots.contains(slot))
            {
                self.suspect.clear(slot, &range);
            }
            from = finding.columns.end;
        }
        self.no_longer_suspect(stripe, &(from..columns.end));
    }

    /// The columns fit each other now.
    pub(super) fn no_longer_suspect(&self, stripe: Stripe, columns: &Range<u32>) {
        if self.suspect.any() && !columns.is_empty() {
            let range = member_range(self.geometry(), stripe, columns);
            for slot in (0..self.geometry().members()).map(Slot) {
                self.suspect.clear(slot, &range);
            }
        }
    }
}
