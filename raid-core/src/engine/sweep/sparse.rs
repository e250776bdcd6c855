//! Blocks that come out all zero are made zero on the target instead of being written: space that was never written stays
//! unallocated on a drive or file that can do that (write-zeroes with unmap allowed, SAFETY S7).

use core::ops::Range;

use super::super::Group;
use super::super::encode::Put;
use super::super::intent::SlotErrors;
use super::super::lane::LaneView;
use crate::ports::{Drive, Env};
use crate::units::Slot;

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let is_clear = |block: &[u8; 64]| block.iter().fold(0, |any, &byte| any | byte) == 0;
    blocks.iter().all(is_clear) && rest.iter().all(|&byte| byte == 0)
}

/// Takes the puts of zeroes out; gives the ranges they were for, neighbours joined.
pub(super) fn take_zeroes(puts: &mut Vec<Put>) -> Vec<(Slot, Range<u64>)> {
    let (zeroes, rest) = core::mem::take(puts).into_iter().partition(|put| is_zero(put.seg.bytes()));
    *puts = rest;
    let mut zeroes: Vec<Put> = zeroes;
    zeroes.sort_by_key(|put| (put.slot, put.at));
    let mut ranges: Vec<(Slot, Range<u64>)> = Vec::new();
    for put in zeroes {
        let end = put.at + u64::from(put.seg.len());
        match ranges.last_mut() {
            Some((slot, range)) if *slot == put.slot && range.end == put.at => range.end = end,
            _ => ranges.push((put.slot, put.at..end)),
        }
    }
    ranges
}

impl<E: Env> Group<E> {
    /// Zeroes what the puts of zeroes are for and takes them out; returns the members that failed.
    pub(super) async fn zero_empty(&self, lane: &LaneView<E>, puts: &mut Vec<Put>) -> SlotErrors {
        let mut errors = SlotErrors::new();
        let mut commands = Vec::new();
        for (slot, range) in take_zeroes(puts) {
            self.0.shared.counters(self.0.env.lane()).write(slot);
            match lane.drive(slot) {
                Ok((drive, start)) => {
                    commands
                        .push((slot, drive.zero(start.plus(range.start).0..start.plus(range.end).0, true)));
                }
                Err(error) => errors.push((slot, error)),
            }
        }
        for (slot, command) in commands {
            if let Err(error) = command.await {
                self.count_error(slot);
                errors.push((slot, error));
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_is_not_zero() {
        let mut bytes = vec![0; 200];
        assert!(is_zero(&bytes) && is_zero(&[]));
        for at in 0..bytes.len() {
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "byte {at}");
            bytes[at] = 0;
        }
    }
}
