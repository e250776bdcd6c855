//! What is written, and how it is known again.
//!
//! A transfer is made of *cells*: the largest power of two that divides its length, at most 64 KiB. The first 512 bytes of a
//! cell are a stamp of the place where it was written and of the number of the pass; all further blocks are stamps of their
//! place inside the cell, made once for a whole pass. So a write costs one stamp a cell (about 0.2 us) and a read is
//! compared at the speed of memory, and still every byte that comes back is known: lost, torn, misplaced or flipped blocks
//! are found. Only two cells of one pass that trade blocks of the same place inside them would pass unseen, and no transfer
//! does that to less than 512 bytes in 64 KiB.

use raid_core::units::{u64_of, usize_of_u32};
use stamps::block::{BLOCK_BYTES, BLOCK_LEN, Stamp};

/// Largest cell.
pub(super) const CELL_BYTES_MAX: u32 = 64 * 1024;
/// Set in the identity of the stamps that carry their place inside the cell.
const INNER: u64 = 1 << 63;

/// The cell of transfers of `block_bytes`.
pub(super) fn cell_bytes(block_bytes: u32) -> u32 {
    (1 << block_bytes.trailing_zeros().min(31)).min(CELL_BYTES_MAX)
}

/// What one pass writes.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    disk: u64,
    pass: u8,
    cell: usize,
    /// A whole cell; its first block is of no meaning.
    inner: Vec<u8>,
}

fn block_of(bytes: &mut [u8]) -> &mut [u8; BLOCK_LEN] {
    bytes.first_chunk_mut().expect("a cell has at least one block")
}

impl Cells {
    /// The cells of pass number `pass` (from 1) over the target `disk`.
    pub(super) fn new(disk: u64, pass: u8, cell_bytes: u32) -> Self {
        let mut inner = vec![0; usize_of_u32(cell_bytes)];
        for (i, block) in inner.chunks_exact_mut(BLOCK_LEN).enumerate() {
            let stamp =
                Stamp { disk: disk | INNER, offset_bytes: u64_of(i) * BLOCK_BYTES, write: u64::from(pass) };
            stamp.fill(block_of(block));
        }
        Self { disk, pass, cell: usize_of_u32(cell_bytes), inner }
    }

    /// The pass.
    pub(super) fn pass(&self) -> u8 {
        self.pass
    }

    fn first(&self, at: u64) -> [u8; BLOCK_LEN] {
        Stamp { disk: self.disk, offset_bytes: at, write: u64::from(self.pass) }.block()
    }

    /// Writes everything but the first block of each cell: once for a buffer.
    pub(super) fn prepare(&self, bytes: &mut [u8]) {
        for cell in bytes.chunks_exact_mut(self.cell) {
            cell.copy_from_slice(&self.inner);
        }
    }

    /// Writes the first block of each cell of a prepared buffer that goes to `at`.
    pub(super) fn stamp(&self, at: u64, bytes: &mut [u8]) {
        for (i, cell) in bytes.chunks_exact_mut(self.cell).enumerate() {
            let stamp = Stamp {
                disk: self.disk,
                offset_bytes: at + u64_of(i * self.cell),
                write: u64::from(self.pass),
            };
            stamp.fill(block_of(cell));
        }
    }

    /// Whether the first block of each cell is right: what is looked at while time is measured.
    pub(super) fn heads_are_right(&self, at: u64, bytes: &[u8]) -> bool {
        bytes
            .chunks_exact(self.cell)
            .enumerate()
            .all(|(i, cell)| cell[..BLOCK_LEN] == self.first(at + u64_of(i * self.cell)))
    }

    /// The first block that is not right, as an offset on the target.
    pub(super) fn first_wrong(&self, at: u64, bytes: &[u8]) -> Option<u64> {
        bytes.chunks_exact(self.cell).enumerate().find_map(|(i, cell)| {
            let start = at + u64_of(i * self.cell);
            if cell[..BLOCK_LEN] != self.first(start) {
                return Some(start);
            }
            if cell[BLOCK_LEN..] == self.inner[BLOCK_LEN..] {
                return None;
            }
            let blocks = cell.chunks_exact(BLOCK_LEN).zip(self.inner.chunks_exact(BLOCK_LEN));
            let wrong = blocks.enumerate().skip(1).find(|(_, (found, want))| found != want);
            wrong.map(|(block, _)| start + u64_of(block) * BLOCK_BYTES)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_divide_transfers() {
        let cases =
            [(512, 512), (4096, 4096), (96 << 10, 32 << 10), (512 << 10, 64 << 10), (1 << 20, 64 << 10)];
        for (block, cell) in cases {
            assert_eq!(cell_bytes(block), cell);
        }
    }

    #[test]
    fn what_was_written_is_known_and_every_damaged_block_is_named() {
        for cell in [512, 4096, 65536] {
            let cells = Cells::new(5, 2, cell);
            let mut bytes = vec![0; 128 << 10];
            cells.prepare(&mut bytes);
            cells.stamp(1 << 20, &mut bytes);
            assert_eq!(cells.first_wrong(1 << 20, &bytes), None);
            assert!(cells.heads_are_right(1 << 20, &bytes));
            // Elsewhere, of another pass, or of another target it is wrong at its first byte.
            assert_eq!(cells.first_wrong(2 << 20, &bytes), Some(2 << 20));
            assert_eq!(Cells::new(5, 1, cell).first_wrong(1 << 20, &bytes), Some(1 << 20));
            assert_eq!(Cells::new(6, 2, cell).first_wrong(1 << 20, &bytes), Some(1 << 20));
            assert!(!Cells::new(5, 3, cell).heads_are_right(1 << 20, &bytes));
            for block in 0..bytes.len() / 512 {
                let mut bad = bytes.clone();
                bad[block * 512 + block % 512] ^= 4;
                assert_eq!(cells.first_wrong(1 << 20, &bad), Some((1 << 20) + u64_of(block) * 512));
            }
        }
    }

    #[test]
    fn the_blocks_are_stamps_that_others_can_read() {
        let cells = Cells::new(5, 1, 4096);
        let mut bytes = vec![0; 4096];
        cells.prepare(&mut bytes);
        cells.stamp(8192, &mut bytes);
        for block in bytes.chunks_exact(512) {
            let found = Stamp::find(block.try_into().expect("a block"));
            assert!(matches!(found, stamps::Found::Stamp(_)), "{found:?}");
        }
    }
}
