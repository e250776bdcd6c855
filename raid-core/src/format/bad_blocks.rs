//! md's bad-block log: up to 512 little-endian u64 entries `sector << 10 | length`, ended by one of all ones.
//!
//! Sectors are 512 bytes from the start of the **drive** (data offset included), shifted right by the superblock's
//! `bblog_shift`. The log counts only while the superblock has [`FEATURE_BAD_BLOCKS`](super::superblock); mdadm leaves
//! the area as it finds it (zeroes) until the first entry. It is the only list of lost blocks (SAFETY S6).
//!
//! Encoding read in Linux `drivers/md/md.c`: `super_1_load`, `super_1_sync`. The field holds 10 bits of length, md's own
//! list 512 sectors per entry, so we write at most that. An entry of length 0 is skipped: md never writes one, and
//! kernels disagree on it.
//!
//! Invariant of [`BadBlocks`]: ranges are not empty, sorted, and neither overlap nor touch.

use core::ops::Range;

use super::bytes::u64_le;
use super::superblock::MD_SECTOR_BYTES;
use crate::units::u64_of;

/// Bytes of the log.
pub const LOG_BYTES: u64 = 4096;
/// Most entries.
pub const ENTRIES_MAX: usize = 512;
const ENTRY_SECTORS_MAX: u64 = 512;
const END: u64 = u64::MAX;
const LENGTH_BITS: u32 = 10;

/// The log is full: md drops the member then, and so must we.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogFull;

impl core::fmt::Display for LogFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the bad-block log holds {ENTRIES_MAX} entries and cannot take another")
    }
}

impl std::error::Error for LogFull {}

/// The lost blocks of one member, as byte ranges from the start of the drive.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BadBlocks {
    ranges: Vec<Range<u64>>,
}

impl BadBlocks {
    /// Reads a log whose unit is `512 << shift` bytes.
    #[must_use]
    pub fn decode(log: &[u8], shift: u8) -> Self {
        let mut list = Self::default();
        for at in (0..log.len() / 8).take(ENTRIES_MAX) {
            let entry = u64_le(log, at * 8);
            if entry == END {
                break;
            }
            // A shift that takes bits out of the number cannot come from md; such an entry covers all it can.
            let unit = MD_SECTOR_BYTES.checked_shl(u32::from(shift)).unwrap_or(u64::MAX);
            let start = (entry >> LENGTH_BITS).saturating_mul(unit);
            let len = (entry & ((1 << LENGTH_BITS) - 1)).saturating_mul(unit);
            list.insert(start..start.saturating_add(len));
        }
        list
    }

    /// The log's 4096 bytes in units of 512 bytes (shift 0). Ranges are widened to whole sectors.
    ///
    /// # Errors
    /// [`LogFull`] if there are more than [`ENTRIES_MAX`] entries.
    pub fn encode(&self) -> Result<Vec<u8>, LogFull> {
        let mut log = Vec::new();
        for range in &self.ranges {
            let end = range.end.div_ceil(MD_SECTOR_BYTES);
            let mut sector = range.start / MD_SECTOR_BYTES;
            while sector < end {
                let len = (end - sector).min(ENTRY_SECTORS_MAX);
                if log.len() == ENTRIES_MAX * 8 {
                    return Err(LogFull);
                }
                log.extend_from_slice(&(sector << LENGTH_BITS | len).to_le_bytes());
                sector += len;
            }
        }
        log.resize(ENTRIES_MAX * 8, 0xff);
        debug_assert_eq!(u64_of(log.len()), LOG_BYTES);
        Ok(log)
    }

    /// Whether no block is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The lost byte ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Lost bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether any byte of `range` is lost.
    #[must_use]
    pub fn overlaps(&self, range: Range<u64>) -> bool {
        !range.is_empty() && self.ranges.iter().any(|bad| bad.start < range.end && range.start < bad.end)
    }

    /// Adds a range; merges it with what it overlaps or touches.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut merged = range;
        self.ranges.retain(|old| {
            let apart = old.end < merged.start || merged.end < old.start;
            if !apart {
                merged = merged.start.min(old.start)..merged.end.max(old.end);
            }
            apart
        });
        let at = self.ranges.partition_point(|old| old.start < merged.start);
        self.ranges.insert(at, merged);
    }

    /// Takes a range out: its blocks were rewritten. True if any of it was lost.
    pub fn remove(&mut self, range: Range<u64>) -> bool {
        if !self.overlaps(range.clone()) {
            return false;
        }
        let cut = |old: &Range<u64>| {
            let before = old.start..old.end.min(range.start);
            let after = old.start.max(range.end)..old.end;
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.ranges = self.ranges.iter().flat_map(cut).collect();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SPAN: u64 = 3000;

    fn sectors(list: &BadBlocks) -> BTreeSet<u64> {
        list.ranges().iter().flat_map(|range| range.start / 512..range.end / 512).collect()
    }

    proptest! {
        /// Against a set of sectors: inserts and removals in any order, then through the log and back.
        #[test]
        fn behaves_like_a_set_of_sectors(steps in proptest::collection::vec((any::<bool>(), 0..SPAN, 0..700u64), 0..40)) {
            let mut list = BadBlocks::default();
            let mut model = BTreeSet::new();
            for (add, start, len) in steps {
                let range = start * 512..(start + len) * 512;
                let touched = (start..start + len).any(|sector| model.contains(&sector));
                prop_assert_eq!(list.overlaps(range.clone()), touched);
                if add {
                    list.insert(range);
                    model.extend(start..start + len);
                } else {
                    prop_assert_eq!(list.remove(range), touched);
                    model.retain(|sector| !(start..start + len).contains(sector));
                }
                prop_assert_eq!(sectors(&list), model.clone());
                prop_assert!(list.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
            }
            let read = BadBlocks::decode(&list.encode().unwrap(), 0);
            prop_assert_eq!(read, list);
        }

        #[test]
        fn no_bytes_make_decode_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000), shift: u8) {
            let list = BadBlocks::decode(&bytes, shift);
            prop_assert!(list.ranges().iter().all(|range| range.start < range.end));
        }
    }

    #[test]
    fn an_entry_is_sector_and_length_as_md_writes_them() {
        let mut list = BadBlocks::default();
        list.insert(2049 * 512..2052 * 512);
        let log = list.encode().unwrap();
        assert_eq!(u64_le(&log, 0), 2049 << 10 | 3);
        assert!(log[8..].iter().all(|&byte| byte == 0xff));
        let coarse = BadBlocks::decode(&log, 3);
        assert_eq!((coarse.ranges()[0].start, coarse.bytes()), (2049 * 4096, 3 * 4096));
    }

    #[test]
    fn long_ranges_take_several_entries_and_the_log_has_an_end() {
        let mut list = BadBlocks::default();
        list.insert(0..1025 * 512);
        let log = list.encode().unwrap();
        assert_eq!(
            [u64_le(&log, 0), u64_le(&log, 8), u64_le(&log, 16)],
            [512, 512 << 10 | 512, 1024 << 10 | 1]
        );
        assert_eq!(BadBlocks::decode(&log, 0), list);
        for i in 0..510 {
            list.insert((2000 + 2 * i) * 512..(2001 + 2 * i) * 512);
        }
        assert_eq!(list.encode(), Err(LogFull));
    }

    #[test]
    fn a_log_of_zeroes_lists_nothing() {
        assert!(BadBlocks::decode(&[0; 4096], 0).is_empty());
        assert!(BadBlocks::decode(&[0xff; 4096], 0).is_empty());
    }
}
