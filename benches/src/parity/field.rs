//! The memory that parity is measured on: sets of input and output columns, one after the other.

use raid_core::units::{u64_of, usize_of};

/// Columns of one call.
pub(super) struct Set<'a> {
    pub(super) srcs: Vec<&'a [u8]>,
    pub(super) outs: Vec<&'a mut [u8]>,
}

/// How the columns of a set lie.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Bytes of a column.
    pub(super) len: usize,
    /// Every column starts this many bytes further into a page than the one before.
    pub(super) stagger: usize,
}

impl Layout {
    fn stride(&self) -> usize {
        self.len.next_multiple_of(4096) + self.stagger
    }

    fn set_bytes(&self) -> usize {
        (self.inputs + self.outputs) * self.stride()
    }

    /// The sets that fit into `bytes`, `most` at most.
    fn sets<'a>(&self, bytes: &'a mut [u8], most: usize) -> Vec<Set<'a>> {
        let mut sets = Vec::new();
        for region in bytes.chunks_exact_mut(self.set_bytes()).take(most) {
            let mut columns = region.chunks_exact_mut(self.stride()).map(|column| &mut column[..self.len]);
            let srcs = columns.by_ref().take(self.inputs).map(|column| &*column).collect();
            sets.push(Set { srcs, outs: columns.collect() });
        }
        sets
    }
}

/// Memory that begins at a page.
pub(super) struct Field {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Field {
    /// So many bytes of noise.
    pub(super) fn new(len: usize) -> Self {
        let mut bytes = vec![0; len.next_multiple_of(8) + 4096];
        let misplaced = u64_of(bytes.as_ptr().addr()) % 4096;
        let start = usize_of((4096 - misplaced) % 4096);
        let mut state = 1_u64;
        for word in bytes[start..].chunks_exact_mut(8) {
            // A multiplicative generator is random enough, and hundreds of megabytes are filled quickly.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        Self { bytes, start, len }
    }

    /// Memory for one set.
    pub(super) fn of(layout: Layout) -> Self {
        Self::new(layout.set_bytes())
    }

    /// One set of columns.
    pub(super) fn set(&mut self, layout: Layout) -> Set<'_> {
        layout.sets(&mut self.bytes[self.start..self.start + self.len], 1).pop().expect("memory for one set")
    }

    /// As many sets as there is memory for.
    pub(super) fn sets(&mut self, layout: Layout) -> Vec<Set<'_>> {
        layout.sets(&mut self.bytes[self.start..self.start + self.len], usize::MAX)
    }

    /// Everything as it is now.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}
