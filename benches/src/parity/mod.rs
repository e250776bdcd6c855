//! Parity on the CPU: every kernel of this machine, every operation, some numbers of data drives and lengths; and against
//! other people's code, in [`against`].
//!
//! The rate of an operation is bytes of data over CPU time: k blocks for sums over a stripe and for what is recovered from
//! one, one block for an update. A new kernel takes part by being in `raid_core::parity::kernel`; a new operation is an arm in
//! `call`. Every kernel is first compared with the byte loop on what is measured.

pub mod against;
mod field;
pub mod peer;

use raid_core::parity::gf;
use raid_core::parity::kernel::{Kernel, LostTwo, Operation, Place, available};
use raid_core::units::{u64_of, usize_of_u32};

use crate::clock::thread_cpu_ns;
use crate::floors::{Floors, Unit};
use crate::measure::{Bench, interleave};
use crate::record::Case;
use crate::stats::f64_of;

use self::field::{Field, Layout};

/// Buffers start 512 bytes further into a page than the one before: columns at one page offset share a cache set.
const STAGGER: usize = 512;
/// CPU time one sample aims at, nanoseconds: far above the clock's own cost.
const SAMPLE_NS: u64 = 4_000_000;
/// Bytes worked on between two looks at the clock, which costs as much as a call.
const BATCH_BYTES: u64 = 8 << 20;

/// Whether its cost depends on the number of data drives.
const fn has_width(operation: Operation) -> bool {
    !matches!(operation, Operation::Delta)
}

/// The columns of an operation over k data drives.
const fn layout(operation: Operation, k: usize, len: usize, stagger: usize) -> Layout {
    let (inputs, outputs) = match operation {
        Operation::Xor | Operation::Q => (k, 1),
        Operation::Pq => (k, 2),
        Operation::CopyPq => (k, k + 2),
        Operation::Delta => (2, 2),
        // What is left of the data, and the parities.
        Operation::RecoverByQ => (k, 1),
        Operation::RecoverTwo => (k, 2),
        Operation::Verify => (k + 2, 0),
    };
    Layout { inputs, outputs, len, stagger }
}

fn work_bytes(operation: Operation, k: usize, len: usize) -> u64 {
    u64_of(if has_width(operation) { k * len } else { len })
}

/// The lost blocks of a recovery over k data drives.
pub(crate) const fn lost(k: usize) -> (usize, usize) {
    (0, k / 2)
}

/// Runs an operation once over columns as [`layout`] counts them. A recovery's inputs are the known blocks,
/// then P for two, then Q.
fn call(operation: Operation, kernel: &dyn Kernel, place: Place, srcs: &[&[u8]], outs: &mut [&mut [u8]]) {
    let srcs = core::hint::black_box(srcs);
    match (operation, outs) {
        (Operation::Xor, [p]) => kernel.xor(srcs, p, place),
        (Operation::Q, [q]) => kernel.q(srcs, q, place),
        (Operation::Pq, [p, q]) => kernel.pq(srcs, p, q, place),
        (Operation::CopyPq, [p, q, copies @ ..]) => kernel.copy_pq(srcs, copies, p, q, place),
        (Operation::Delta, [p, q]) => kernel.delta(gf::power(3), srcs[0], srcs[1], Some(p), Some(q)),
        (Operation::RecoverByQ, [x]) => {
            let (q, known) = srcs.split_last().expect("Q is the last");
            kernel.recover_by_q(known, lost(srcs.len()).0, q, x, place);
        }
        (Operation::RecoverTwo, [dx, dy]) => {
            let (known, parity) = srcs.split_at(srcs.len() - 2);
            let (x, y) = lost(srcs.len());
            kernel.recover_two(known, LostTwo { x, dx, y, dy: Some(dy) }, parity[0], parity[1], place);
        }
        (Operation::Verify, []) => {
            let (data, parity) = srcs.split_at(srcs.len() - 2);
            core::hint::black_box(kernel.verify(data, Some(parity[0]), Some(parity[1])));
        }
        (operation, outs) => unreachable!("{operation:?} with {} outputs", outs.len()),
    }
}

/// Data bytes per second of CPU time, over enough calls to fill [`SAMPLE_NS`].
pub(crate) fn rate(work_bytes: u64, mut call: impl FnMut()) -> f64 {
    let batch = BATCH_BYTES.div_ceil(work_bytes).clamp(8, 4096);
    let mut calls = 0_u64;
    let start_ns = thread_cpu_ns();
    loop {
        for _ in 0..batch {
            call();
        }
        calls += batch;
        let spent_ns = thread_cpu_ns() - start_ns;
        if spent_ns >= SAMPLE_NS {
            return f64_of(work_bytes) * f64_of(calls) * 1e9 / f64_of(spent_ns);
        }
    }
}

/// Whether a kernel agrees with the byte loop on the data that is measured.
fn is_right(operation: Operation, kernel: &dyn Kernel, k: usize, len: usize) -> bool {
    let layout = layout(operation, k, len, STAGGER);
    let after = |kernel: &dyn Kernel| {
        let mut field = Field::of(layout);
        let mut set = field.set(layout);
        call(operation, kernel, Place::Cache, &set.srcs, &mut set.outs);
        field.bytes().to_vec()
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
            let widths = if has_width(operation) { &table.widths[..] } else { &[0][..] };
            for &k in widths {
                for &len in &table.lengths {
                    if operation == Operation::RecoverTwo && k < 2 {
                        continue;
                    }
                    let width = if has_width(operation) { format!(".k{k}") } else { String::new() };
                    let id = format!("parity.{}.{}{width}.{}", operation.name(), kernel.name(), size(len));
                    if !id.contains(&table.only) {
                        continue;
                    }
                    let (k, len) = (usize_of_u32(k), usize_of_u32(len));
                    let work_bytes = work_bytes(operation, k, len);
                    about.push((work_bytes, is_right(operation, kernel, k, len)));
                    let layout = layout(operation, k, len, STAGGER);
                    let mut field = Field::of(layout);
                    benches.push(Bench::new(id, move || {
                        let mut set = field.set(layout);
                        rate(work_bytes, || call(operation, kernel, Place::Cache, &set.srcs, &mut set.outs))
                    }));
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
        assert_eq!(cases.len(), available().len() * (7 * 2 + 1));
        assert!(cases.iter().all(|case| case.verified && case.median > 0.0 && case.work_bytes.is_some()));
        let only = measure(&Table { only: "delta".into(), ..table });
        assert_eq!(only.len(), available().len());
    }

    #[test]
    fn a_kernel_that_computes_wrong_is_found_out() {
        // What is compared is what the operation leaves in its columns.
        for operation in Operation::ALL.into_iter().filter(|operation| *operation != Operation::Verify) {
            let layout = layout(operation, 4, 512, STAGGER);
            let mut field = Field::of(layout);
            let mut set = field.set(layout);
            call(operation, available()[0], Place::Cache, &set.srcs, &mut set.outs);
            let untouched = Field::of(layout);
            assert_ne!(field.bytes(), untouched.bytes(), "{operation:?} leaves a result");
        }
    }
}
