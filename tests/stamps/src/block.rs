//! One stamp: a 512-byte block that says which write of which disk put it where.
//!
//! Invariant: all 512 bytes are a function of (disk, offset, write number), so a block found on a disk is either exactly
//! one stamp, or zeroes, or damage; nothing in between can pass.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic `WPSTAMP1` |
//! | 8..16 | disk id, little-endian like all below |
//! | 16..24 | offset on the disk in bytes |
//! | 24..32 | write number, from 1 |
//! | 32..504 | filler made from the three numbers |
//! | 504..512 | checksum of bytes 0..504 |

use crate::random::{Random, mix};

/// Size of a stamped block: the smallest unit a disk can be written in.
pub const BLOCK_BYTES: u64 = 512;
/// [`BLOCK_BYTES`] as the length of an array.
pub const BLOCK_LEN: usize = 512;

const MAGIC: [u8; 8] = *b"WPSTAMP1";
const SUM_AT: usize = BLOCK_LEN - 8;

/// The identity a stamped block carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Which disk the block was written to.
    pub disk: u64,
    /// Where on that disk, in bytes.
    pub offset_bytes: u64,
    /// By which write, from 1.
    pub write: u64,
}

/// What a 512-byte block is, judged by itself alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// An intact stamp, wherever it may belong.
    Stamp(Stamp),
    /// 512 zero bytes.
    Zeroes,
    /// The magic is there and the checksum is wrong; the header's claim is not to be trusted.
    Damaged(Stamp),
    /// Neither stamp nor zeroes.
    Garbage,
}

impl Stamp {
    /// Writes the stamp over the whole of `block`.
    pub fn fill(&self, block: &mut [u8; BLOCK_LEN]) {
        block[..8].copy_from_slice(&MAGIC);
        put(block, 8, self.disk);
        put(block, 16, self.offset_bytes);
        put(block, 24, self.write);
        let mut filler =
            Random::new(mix(self.disk) ^ mix(self.offset_bytes).rotate_left(21) ^ mix(self.write));
        for at in (32..SUM_AT).step_by(8) {
            put(block, at, filler.next_u64());
        }
        let sum = checksum(block);
        put(block, SUM_AT, sum);
    }

    /// The stamp as a block.
    #[must_use]
    pub fn block(&self) -> [u8; BLOCK_LEN] {
        let mut block = [0; BLOCK_LEN];
        self.fill(&mut block);
        block
    }

    /// What `block` is.
    #[must_use]
    pub fn find(block: &[u8; BLOCK_LEN]) -> Found {
        if block[..8] != MAGIC {
            return if block.iter().all(|byte| *byte == 0) { Found::Zeroes } else { Found::Garbage };
        }
        let stamp = Self { disk: get(block, 8), offset_bytes: get(block, 16), write: get(block, 24) };
        // The checksum decides first because it is cheap; equality of all bytes is what is promised.
        if checksum(block) == get(block, SUM_AT) && *block == stamp.block() {
            Found::Stamp(stamp)
        } else {
            Found::Damaged(stamp)
        }
    }
}

/// A 64-bit hash of the block without its last word: two multiply-and-rotate lanes, mixed. Our own, so that it shares
/// nothing with the CRCs of the engine; not a defence against an adversary.
fn checksum(block: &[u8; BLOCK_LEN]) -> u64 {
    let mut lanes = [0x243f_6a88_85a3_08d3_u64, 0x1319_8a2e_0370_7344];
    for at in (0..SUM_AT).step_by(8) {
        let lane = &mut lanes[at / 8 % 2];
        *lane = (*lane ^ get(block, at)).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }
    mix(lanes[0] ^ mix(lanes[1]))
}

fn put(block: &mut [u8; BLOCK_LEN], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(block: &[u8; BLOCK_LEN], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { disk: 7, offset_bytes: 512 * 99, write: 12 };

    #[test]
    fn a_stamp_is_found_again() {
        assert_eq!(Stamp::find(&STAMP.block()), Found::Stamp(STAMP));
        assert_eq!(Stamp::find(&[0; BLOCK_LEN]), Found::Zeroes);
        assert_eq!(Stamp::find(&[1; BLOCK_LEN]), Found::Garbage);
    }

    #[test]
    fn every_single_flipped_bit_is_caught() {
        let good = STAMP.block();
        for byte in 0..BLOCK_LEN {
            for bit in 0..8 {
                let mut bad = good;
                bad[byte] ^= 1 << bit;
                assert!(!matches!(Stamp::find(&bad), Found::Stamp(_)), "byte {byte} bit {bit}");
            }
        }
    }

    #[test]
    fn swapped_words_and_shifted_bytes_are_caught() {
        let good = STAMP.block();
        for a in 0..64 {
            for b in a + 1..64 {
                let mut bad = good;
                for i in 0..8 {
                    bad.swap(a * 8 + i, b * 8 + i);
                }
                assert!(!matches!(Stamp::find(&bad), Found::Stamp(_)), "words {a} and {b}");
            }
        }
        for by in 1..BLOCK_LEN {
            let mut bad = good;
            bad.rotate_left(by);
            assert_eq!(Stamp::find(&bad), Found::Garbage, "rotated by {by}");
        }
    }
}
