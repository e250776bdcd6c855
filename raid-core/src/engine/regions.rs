//! Which stripes are not known in sync (SAFETY S1), one bit a stripe, read without a lock by every lane.
//!
//! Two maps. `unsynced`: parity or copies may not match the data. `dirty`, a part of it: a write may have been cut short
//! there by a crash, so that reconstructing a lost block would give wrong data; it reads as an error instead. Where only
//! the first initial sync is pending, every block ever written was written with matching parity (reconstruct-write
//! only), and may be reconstructed.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::units::usize_of;

struct Bits {
    words: Box<[AtomicU64]>,
    set: AtomicU64,
}

impl Bits {
    fn new(bits: u64, ranges: &[Range<u64>]) -> Self {
        let wanted = if ranges.iter().all(Range::is_empty) { 0 } else { bits.div_ceil(64) };
        let this = Self { words: (0..wanted).map(|_| AtomicU64::new(0)).collect(), set: AtomicU64::new(0) };
        for range in ranges {
            for bit in range.start..range.end.min(bits) {
                let (word, mask) = (usize_of(bit / 64), 1 << (bit % 64));
                if this.words[word].fetch_or(mask, Ordering::Relaxed) & mask == 0 {
                    this.set.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        this
    }

    fn count(&self) -> u64 {
        self.set.load(Ordering::Acquire)
    }

    fn get(&self, bit: u64) -> bool {
        self.count() != 0
            && self
                .words
                .get(usize_of(bit / 64))
                .is_some_and(|word| word.load(Ordering::Acquire) & (1 << (bit % 64)) != 0)
    }

    fn clear(&self, bit: u64) {
        let mask = 1 << (bit % 64);
        if let Some(word) = self.words.get(usize_of(bit / 64))
            && word.fetch_and(!mask, Ordering::AcqRel) & mask != 0
        {
            self.set.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn next(&self, from: u64) -> Option<u64> {
        if self.count() == 0 {
            return None;
        }
        let mut word = usize_of(from / 64);
        let mut mask = u64::MAX << (from % 64);
        while let Some(bits) = self.words.get(word) {
            let bits = bits.load(Ordering::Acquire) & mask;
            if bits != 0 {
                return Some(crate::units::u64_of(word) * 64 + u64::from(bits.trailing_zeros()));
            }
            word += 1;
            mask = u64::MAX;
        }
        None
    }
}

pub(crate) struct Regions {
    unsynced: Bits,
    dirty: Bits,
}

impl Regions {
    pub(crate) fn new(stripes: u64, unsynced: &[Range<u64>], dirty: &[Range<u64>]) -> Self {
        let all: Vec<Range<u64>> = unsynced.iter().chain(dirty).cloned().collect();
        Self { unsynced: Bits::new(stripes, &all), dirty: Bits::new(stripes, dirty) }
    }

    /// Whether parity or copies of the stripe are known to match its data.
    pub(crate) fn is_synced(&self, stripe: u64) -> bool {
        !self.unsynced.get(stripe)
    }

    /// Whether a lost block of the stripe cannot be trusted to its parity.
    pub(crate) fn is_dirty(&self, stripe: u64) -> bool {
        self.dirty.get(stripe)
    }

    /// Resync made the stripe match. Under its exclusive lock only.
    pub(crate) fn mark_synced(&self, stripe: u64) {
        self.dirty.clear(stripe);
        self.unsynced.clear(stripe);
    }

    /// Stripes not known in sync.
    pub(crate) fn unsynced_count(&self) -> u64 {
        self.unsynced.count()
    }

    /// The first stripe from `from` on that is not known in sync.
    pub(crate) fn next_unsynced(&self, from: u64) -> Option<u64> {
        self.unsynced.next(from)
    }

    /// Whether any of the stripes is not known in sync.
    pub(crate) fn any_unsynced(&self, stripes: Range<u64>) -> bool {
        self.unsynced.next(stripes.start).is_some_and(|stripe| stripe < stripes.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_finds_and_clears() {
        let regions = Regions::new(200, &[3..5, 4..6, 100..500], std::slice::from_ref(&(63..65)));
        assert_eq!(regions.unsynced_count(), 3 + 100 + 2);
        assert!(
            regions.is_synced(2) && !regions.is_synced(3) && !regions.is_dirty(3) && regions.is_dirty(64)
        );
        assert_eq!(regions.next_unsynced(6), Some(63));
        assert!(regions.any_unsynced(60..64) && !regions.any_unsynced(6..63));
        for stripe in [63, 64, 64] {
            regions.mark_synced(stripe);
        }
        assert_eq!(regions.next_unsynced(6), Some(100));
        assert_eq!(regions.unsynced_count(), 103);
        assert!(Regions::new(1 << 40, &[], &[]).is_synced(5), "nothing unsynced costs no memory");
    }
}
