//! Drives without a device: RAM (tests, demonstrations, engine benchmarks) and null (engine cost alone).
//!
//! Both are ready at the first poll. The RAM drive is safe code: 1 MiB shards behind reader-writer locks, so that lanes
//! share it, and a shard's pages are untouched until written. A command over several shards is not atomic as a whole,
//! which is what a drive promises too.

use std::ops::Range;

use parking_lot::RwLock;
use raid_core::lease::{Leases, Segs};
use raid_core::units::{u64_of, usize_of};

const SHARD_BYTES: usize = 1 << 20;

/// The medium of a RAM drive.
pub(crate) struct Ram {
    shards: Vec<RwLock<Box<[u8]>>>,
}

impl Ram {
    pub(crate) fn new(size_bytes: u64) -> Self {
        let shards = size_bytes.div_ceil(u64_of(SHARD_BYTES));
        // A zeroed allocation of this size is fresh zero pages, not a fill.
        let shards = (0..shards).map(|_| RwLock::new(vec![0; SHARD_BYTES].into_boxed_slice())).collect();
        Self { shards }
    }

    /// Calls `f` with each (shard, range in it, range in the command) of a command at `at` of `bytes` bytes.
    fn each(at: u64, bytes: usize, mut f: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let start = usize_of(at);
        let mut done = 0;
        while done < bytes {
            let inside = (start + done) % SHARD_BYTES;
            let now = (SHARD_BYTES - inside).min(bytes - done);
            f((start + done) / SHARD_BYTES, inside..inside + now, done..done + now);
            done += now;
        }
    }

    pub(crate) fn read(&self, at: u64, into: &mut Leases) {
        let mut at = at;
        for lease in into.iter_mut() {
            let bytes = lease.bytes_mut();
            Self::each(at, bytes.len(), |shard, inside, range| {
                bytes[range].copy_from_slice(&self.shards[shard].read()[inside]);
            });
            at += u64_of(bytes.len());
        }
    }

    pub(crate) fn write(&self, at: u64, from: &Segs) {
        let mut at = at;
        for seg in from {
            let bytes = seg.bytes();
            Self::each(at, bytes.len(), |shard, inside, range| {
                self.shards[shard].write()[inside].copy_from_slice(&bytes[range]);
            });
            at += u64_of(bytes.len());
        }
    }

    pub(crate) fn zero(&self, range: &Range<u64>) {
        Self::each(range.start, usize_of(range.end - range.start), |shard, inside, _| {
            let whole = inside.len() == SHARD_BYTES;
            let mut shard = self.shards[shard].write();
            if whole {
                // Gives the memory back, too.
                *shard = vec![0; SHARD_BYTES].into_boxed_slice();
            } else {
                shard[inside].fill(0);
            }
        });
    }
}
