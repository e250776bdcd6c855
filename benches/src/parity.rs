//! Parity on the CPU: every kernel of this machine, every operation, some numbers of data drives and lengths.
//!
//! The rate of an operation is bytes of data over CPU time: k blocks for sums over a stripe, one block for an update or a
//! recovered one, two for two. A new kernel takes part by being in `raid_core::parity::kernel`; a new operation is a line in
//! [`Operation::ALL`] and an arm in `call`. Every kernel is first compared with the byte loop on what is measured.

use raid_core::parity::gf;
use raid_core::parity::kernel::{Kernel, available};
use raid_core::units::{u64_of, usize_of_u32};

use crate::clock::thread_cpu_ns;
use crate::floors::{Floors, Unit};
use crate::measure::{Bench, interleave};
use crate::record::Case;
use crate::stats::f64_of;

/// Buffers start 512 bytes further into a page than the one before: columns at one page offset share a cache set.
const STAGGER: usize = 512;
/// CPU time one sample aims at, nanoseconds: far above the clock's own cost.
const SAMPLE_NS: u64 = 4_000_000;

/// What a kernel does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// P of k blocks; also a lost block from P.
    Xor,
    /// P and Q of k blocks.
    Pq,
    /// Q of k blocks.
    Q,
    /// P and Q after one block changed.
    Delta,
    /// The last step of a block from Q.
    SolveOne,
    /// The last step of two blocks from P and Q.
    SolveTwo,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Xor, Self::Pq, Self::Q, Self::Delta, Self::SolveOne, Self::SolveTwo];

    /// Its word in ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Pq => "pq",
            Self::Q => "q",
            Self::Delta => "delta",
            Self::SolveOne => "solve1",
            Self::SolveTwo => "solve2",
        }
    }

    /// Whether its cost depends on the number of data drives.
    const fn has_width(self) -> bool {
        matches!(self, Self::Xor | Self::Pq | Self::Q)
    }

    fn columns(self, k: usize) -> usize {
        match self {
            Self::Xor | Self::Q => k + 1,
            Self::Pq => k + 2,
            Self::Delta | Self::SolveTwo => 4,
            Self::SolveOne => 2,
        }
    }

    fn work_bytes(self, k: usize, len: usize) -> u64 {
        let blocks = match self {
            Self::Xor | Self::Pq | Self::Q => k,
            Self::Delta | Self::SolveOne => 1,
            Self::SolveTwo => 2,
        };
        u64_of(blocks * len)
    }

    /// Runs it once over columns that [`Operation::columns`] counts.
    fn call(self, kernel: &dyn Kernel, mut parts: Vec<&mut [u8]>) {
        let mut last = || parts.pop().expect("as many columns as the operation has");
        match self {
            Self::Xor | Self::Q => {
                let out = last();
                let sources: Vec<&[u8]> = parts.into_iter().map(|part| &*part).collect();
                let sources = core::hint::black_box(&sources[..]);
                if self == Self::Q { kernel.q(sources, out) } else { kernel.xor(sources, out) }
            }
            Self::Pq => {
                let (q, p) = (last(), last());
                let sources: Vec<&[u8]> = parts.into_iter().map(|part| &*part).collect();
                kernel.pq(core::hint::black_box(&sources), p, q);
            }
            Self::Delta => {
                let (q, p, new, old) = (last(), last(), last(), last());
                kernel.delta(gf::power(3), core::hint::black_box(old), new, Some(p), Some(q));
            }
            Self::SolveOne => {
                let (out, with) = (last(), last());
                kernel.solve_one(gf::power(5), core::hint::black_box(with), out);
            }
            Self::SolveTwo => {
                let (y, x, q, p) = (last(), last(), last(), last());
                kernel.solve_two(gf::two_data_constants(1, 3), core::hint::black_box(p), q, x, y);
            }
        }
    }
}

/// Columns in one allocation, staggered.
struct Columns {
    bytes: Vec<u8>,
    len: usize,
    stride: usize,
}

impl Columns {
    fn new(count: usize, len: usize) -> Self {
        let stride = len.next_multiple_of(4096) + STAGGER;
        let bytes = (0..count * stride).map(|i| i.to_le_bytes()[0].wrapping_mul(31) ^ i.to_le_bytes()[1]);
        Self { bytes: bytes.collect(), len, stride }
    }

    fn parts(&mut self) -> Vec<&mut [u8]> {
        self.bytes.chunks_exact_mut(self.stride).map(|chunk| &mut chunk[..self.len]).collect()
    }
}

/// Data bytes per second of CPU time, over enough calls to fill [`SAMPLE_NS`].
fn rate(operation: Operation, kernel: &dyn Kernel, columns: &mut Columns, work_bytes: u64) -> f64 {
    let mut calls = 0_u64;
    let start_ns = thread_cpu_ns();
    loop {
        for _ in 0..8 {
            operation.call(kernel, columns.parts());
        }
        calls += 8;
        let spent_ns = thread_cpu_ns() - start_ns;
        if spent_ns >= SAMPLE_NS {
            return f64_of(work_bytes) * f64_of(calls) * 1e9 / f64_of(spent_ns);
        }
    }
}

/// Whether a kernel agrees with the byte loop on the data that is measured.
fn is_right(operation: Operation, kernel: &dyn Kernel, k: usize, len: usize) -> bool {
    let after = |kernel: &dyn Kernel| {
        let mut columns = Columns::new(operation.columns(k), len);
        operation.call(kernel, columns.parts());
        columns.bytes
    };
    available().first().is_some_and(|byte_loop| after(*byte_loop) == after(kernel))
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Table {
    /// Numbers of data drives.
    pub widths: Vec<u32>,
    /// Bytes of a column.
    pub lengths: Vec<u32>,
    /// Only ids that contain this.
    pub only: String,
    /// Samples of each case.
    pub samples: usize,
}

fn size(len: u32) -> String {
    if len.is_multiple_of(1024) { format!("{}k", len / 1024) } else { len.to_string() }
}

/// The table, one case for each kernel, operation, width and length.
#[must_use]
pub fn measure(table: &Table) -> Vec<Case> {
    let mut benches = Vec::new();
    let mut about = Vec::new();
    for kernel in available() {
        for operation in Operation::ALL {
            let widths = if operation.has_width() { &table.widths[..] } else { &[0][..] };
            for &k in widths {
                for &len in &table.lengths {
                    let width = if operation.has_width() { format!(".k{k}") } else { String::new() };
                    let id = format!("parity.{}.{}{width}.{}", operation.name(), kernel.name(), size(len));
                    if !id.contains(&table.only) {
                        continue;
                    }
                    let (k, len) = (usize_of_u32(k), usize_of_u32(len));
                    let work_bytes = operation.work_bytes(k, len);
                    about.push((work_bytes, is_right(operation, kernel, k, len)));
                    let mut columns = Columns::new(operation.columns(k), len);
                    benches.push(Bench::new(id, move || rate(operation, kernel, &mut columns, work_bytes)));
                }
            }
        }
    }
    let floors = Floors::built_in();
    let results = interleave(benches, table.samples).into_iter().zip(about);
    results
        .map(|((id, samples), (work_bytes, verified))| {
            let mut case = Case::measured(&id, Unit::BytesPerS, samples, &floors).with_load(1, 1, verified);
            case.work_bytes = Some(work_bytes);
            case
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_and_operation_has_its_cells_and_is_right() {
        let table = Table { widths: vec![4, 9], lengths: vec![512], only: String::new(), samples: 1 };
        let cases = measure(&table);
        assert_eq!(cases.len(), available().len() * (3 * 2 + 3));
        assert!(cases.iter().all(|case| case.verified && case.median > 0.0 && case.work_bytes.is_some()));
        let only = measure(&Table { only: "delta".into(), ..table });
        assert_eq!(only.len(), available().len());
    }

    #[test]
    fn a_kernel_that_computes_wrong_is_found_out() {
        // The same columns with one block changed are what a wrong kernel would leave.
        let mut columns = Columns::new(3, 512);
        let before = columns.bytes.clone();
        Operation::Xor.call(available()[0], columns.parts());
        assert_ne!(columns.bytes, before, "an operation leaves its result in its columns");
    }
}
