//! The bad-block lists of a group in memory (SAFETY S6): per slot, the ranges of the member's data area whose contents
//! are lost until rewritten. Reads consult them behind one atomic that says whether there is anything at all.
//!
//! Invariant: the ranges of a slot are disjoint, not adjacent and in order.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::units::Slot;

/// Sorted disjoint ranges: start to end, bytes of a member's data area.
type Ranges = BTreeMap<u64, u64>;

pub(crate) struct BadBlocks {
    any: AtomicBool,
    slots: Mutex<Vec<Ranges>>,
}

impl BadBlocks {
    pub(crate) fn new(members: usize, initial: &[(Slot, Range<u64>)]) -> Self {
        let this = Self { any: AtomicBool::new(false), slots: Mutex::new(vec![Ranges::new(); members]) };
        for (slot, range) in initial {
            this.add(*slot, range.clone());
        }
        this
    }

    /// Whether any slot has a bad block.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether `range` of the slot's data area touches a bad block.
    pub(crate) fn overlaps(&self, slot: Slot, range: &Range<u64>) -> bool {
        self.any()
            && self.slots.lock()[slot.index()]
                .range(..range.end)
                .next_back()
                .is_some_and(|(_, &end)| end > range.start)
    }

    /// Whether all of `range` of the slot's data area is listed.
    pub(crate) fn covers(&self, slot: Slot, range: &Range<u64>) -> bool {
        self.any()
            && self.slots.lock()[slot.index()]
                .range(..=range.start)
                .next_back()
                .is_some_and(|(_, &end)| end >= range.end)
    }

    /// Records a range.
    pub(crate) fn add(&self, slot: Slot, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut slots = self.slots.lock();
        let ranges = &mut slots[slot.index()];
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        ranges.insert(start, end);
        self.any.store(true, Ordering::Release);
    }

    /// Forgets a range that was rewritten; says whether anything changed.
    pub(crate) fn clear(&self, slot: Slot, range: &Range<u64>) -> bool {
        if !self.overlaps(slot, range) {
            return false;
        }
        let mut slots = self.slots.lock();
        let ranges = &mut slots[slot.index()];
        while let Some((&s, &e)) = ranges.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            ranges.remove(&s);
            if s < range.start {
                ranges.insert(s, range.start);
            }
            if e > range.end {
                ranges.insert(range.end, e);
            }
        }
        let any = slots.iter().any(|ranges| !ranges.is_empty());
        self.any.store(any, Ordering::Release);
        true
    }

    /// Forgets everything about a slot: another member holds it now.
    pub(crate) fn clear_slot(&self, slot: Slot) {
        self.clear(slot, &(0..u64::MAX));
    }

    /// Takes over another list, in one step.
    pub(crate) fn replace(&self, other: Self) {
        let mut slots = self.slots.lock();
        *slots = other.slots.into_inner();
        let any = slots.iter().any(|ranges| !ranges.is_empty());
        self.any.store(any, Ordering::Release);
    }

    /// The ranges of a slot.
    pub(crate) fn list(&self, slot: Slot) -> Vec<Range<u64>> {
        self.slots.lock()[slot.index()].iter().map(|(&start, &end)| start..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let bad = BadBlocks::new(2, &[]);
        assert!(!bad.any());
        bad.add(Slot(1), 10..20);
        bad.add(Slot(1), 30..40);
        bad.add(Slot(1), 20..30);
        assert_eq!((bad.list(Slot(1)).len(), bad.list(Slot(1))[0].clone()), (1, 10..40));
        assert!(bad.overlaps(Slot(1), &(39..50)) && !bad.overlaps(Slot(1), &(40..50)));
        assert!(!bad.overlaps(Slot(0), &(0..100)));
        assert!(
            bad.covers(Slot(1), &(10..40))
                && !bad.covers(Slot(1), &(9..11))
                && !bad.covers(Slot(1), &(39..41))
        );
        assert!(bad.clear(Slot(1), &(15..20)));
        assert_eq!(bad.list(Slot(1)), [10..15, 20..40]);
        assert!(!bad.clear(Slot(1), &(15..20)));
        bad.clear(Slot(1), &(0..12));
        bad.clear(Slot(1), &(14..100));
        assert_eq!((bad.list(Slot(1)).len(), bad.list(Slot(1))[0].clone()), (1, 12..14));
        bad.clear_slot(Slot(1));
        assert!(!bad.any());
    }

    #[test]
    fn agrees_with_a_set_of_bytes() {
        let bad = BadBlocks::new(1, &[]);
        let mut model = std::collections::BTreeSet::new();
        let mut x = 7_u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (x >> 33) % 60;
            let range = start..start + 1 + (x >> 50) % 7;
            if (x >> 60).is_multiple_of(2) {
                bad.add(Slot(0), range.clone());
                model.extend(range);
            } else {
                let had = range.clone().any(|byte| model.contains(&byte));
                assert_eq!(bad.clear(Slot(0), &range), had);
                model.retain(|byte| !range.contains(byte));
            }
            let flat: Vec<u64> = bad.list(Slot(0)).into_iter().flatten().collect();
            assert_eq!(flat, model.iter().copied().collect::<Vec<_>>());
            assert_eq!(bad.any(), !model.is_empty());
        }
    }
}
