//! Which kernel does what: for each operation the one that was measured to be fastest on this machine.
//!
//! Measured, because it cannot be told from the features of a processor: wider registers may lower its clock, and what the
//! fused kernels win depends on its caches.

use core::fmt;

use super::gf;
use super::kernel::{Differs, Kernel, LostTwo, Operation, Place, available};

/// Data columns of a trial.
const COLUMNS: usize = 8;
/// Bytes of a column of a trial: a block, and all columns together stay near the core, so that kernels are compared and not
/// caches.
const LEN: usize = 4 << 10;
/// Trials of a kernel and operation; the best counts.
const TRIALS: usize = 7;
/// Calls of a trial: enough that the clock costs little beside them.
const CALLS: usize = 4;
/// A kernel is only preferred to a later one, with wider registers, if it is faster by more than this part: less is noise.
const NOISE_PART: u64 = 32;

/// A kernel for each operation. It is itself a kernel, which hands each call on.
#[derive(Clone, Copy, Debug)]
pub struct Picks {
    kernels: [&'static dyn Kernel; Operation::ALL.len()],
}

impl Picks {
    /// One kernel for everything.
    #[must_use]
    pub fn all(kernel: &'static dyn Kernel) -> Self {
        Self { kernels: [kernel; Operation::ALL.len()] }
    }

    /// The fastest by `now_ns`, a monotonic clock in nanoseconds (core has none of its own). Takes a few milliseconds.
    ///
    /// # Panics
    /// Never: the portable kernels are always there.
    #[must_use]
    pub fn measured(now_ns: impl Fn() -> u64) -> Self {
        let mut bench = Bench::new();
        let kernels = available();
        // The byte loop is for comparison and would only cost time here.
        let candidates = &kernels[1..];
        let picks = Operation::ALL.map(|operation| {
            let mut best_ns = [u64::MAX; 8];
            // In turn, so that a disturbance hits all alike.
            for _ in 0..TRIALS {
                for (best_ns, &kernel) in best_ns.iter_mut().zip(candidates) {
                    *best_ns = (*best_ns).min(bench.trial_ns(operation, kernel, &now_ns));
                }
            }
            let best = best_ns.into_iter().min().unwrap_or(0);
            let is_good = |ns: u64| ns <= best.saturating_add(best / NOISE_PART);
            let ranked = candidates.iter().zip(best_ns).rev();
            *ranked.filter(|&(_, ns)| is_good(ns)).map(|(kernel, _)| kernel).next().expect("the best is good")
        });
        Self { kernels: picks }
    }

    /// The kernel of an operation.
    ///
    /// # Panics
    /// Never: every operation is listed in [`Operation::ALL`].
    #[must_use]
    pub fn kernel(&self, operation: Operation) -> &'static dyn Kernel {
        let at = Operation::ALL.iter().position(|&listed| listed == operation);
        self.kernels[at.expect("every operation is listed")]
    }

    /// Operations and the names of their kernels.
    pub fn names(&self) -> impl Iterator<Item = (Operation, &'static str)> {
        Operation::ALL.into_iter().zip(self.kernels.map(Kernel::name))
    }
}

/// One name if one kernel does everything, else each operation with its kernel.
impl fmt::Display for Picks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.kernels[0].name();
        if self.names().all(|(_, name)| name == first) {
            return f.write_str(first);
        }
        for (i, (operation, name)) in self.names().enumerate() {
            write!(f, "{}{} {name}", if i > 0 { ", " } else { "" }, operation.name())?;
        }
        Ok(())
    }
}

impl Kernel for Picks {
    fn name(&self) -> &'static str {
        "picks"
    }

    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8], place: Place) {
        self.kernel(Operation::Xor).xor(srcs, dst, place);
    }

    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], place: Place) {
        self.kernel(Operation::Pq).pq(srcs, p, q, place);
    }

    fn q(&self, srcs: &[&[u8]], q: &mut [u8], place: Place) {
        self.kernel(Operation::Q).q(srcs, q, place);
    }

    fn copy_pq(&self, srcs: &[&[u8]], copies: &mut [&mut [u8]], p: &mut [u8], q: &mut [u8], place: Place) {
        self.kernel(Operation::CopyPq).copy_pq(srcs, copies, p, q, place);
    }

    fn delta(&self, factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        self.kernel(Operation::Delta).delta(factor, old, new, p, q);
    }

    fn recover_by_q(&self, known: &[&[u8]], x: usize, q: &[u8], dst: &mut [u8], place: Place) {
        self.kernel(Operation::RecoverByQ).recover_by_q(known, x, q, dst, place);
    }

    fn recover_two(&self, known: &[&[u8]], lost: LostTwo<'_>, p: &[u8], q: &[u8], place: Place) {
        self.kernel(Operation::RecoverTwo).recover_two(known, lost, p, q, place);
    }

    fn verify(&self, srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Differs {
        self.kernel(Operation::Verify).verify(srcs, p, q)
    }
}

/// The columns that are worked on: data, P, Q, and copies.
struct Bench {
    data: Vec<u8>,
    parity: Vec<u8>,
    copies: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        Self { data: vec![0x5a; COLUMNS * LEN], parity: vec![0; 2 * LEN], copies: vec![0; COLUMNS * LEN] }
    }

    /// How long one call takes, nanoseconds.
    fn trial_ns(&mut self, operation: Operation, kernel: &dyn Kernel, now_ns: &impl Fn() -> u64) -> u64 {
        let srcs: [&[u8]; COLUMNS] = core::array::from_fn(|i| &self.data[i * LEN..(i + 1) * LEN]);
        let srcs = core::hint::black_box(srcs);
        let (p, q) = self.parity.split_at_mut(LEN);
        let start_ns = now_ns();
        for _ in 0..CALLS {
            match operation {
                Operation::Xor => kernel.xor(&srcs, p, Place::Cache),
                Operation::Pq => kernel.pq(&srcs, p, q, Place::Cache),
                Operation::Q => kernel.q(&srcs, q, Place::Cache),
                Operation::CopyPq => {
                    let mut copies: Vec<&mut [u8]> = self.copies.chunks_exact_mut(LEN).collect();
                    kernel.copy_pq(&srcs, &mut copies, p, q, Place::Cache);
                }
                Operation::Delta => {
                    kernel.delta(gf::power(5), srcs[0], srcs[1], Some(&mut *p), Some(&mut *q))
                }
                Operation::RecoverByQ => kernel.recover_by_q(&srcs[1..], 3, srcs[0], q, Place::Cache),
                Operation::RecoverTwo => {
                    let lost = LostTwo { x: 1, dx: &mut *p, y: 4, dy: Some(&mut *q) };
                    kernel.recover_two(&srcs[2..], lost, srcs[0], srcs[1], Place::Cache);
                }
                Operation::Verify => {
                    core::hint::black_box(kernel.verify(&srcs[2..], Some(srcs[0]), Some(srcs[1])));
                }
            }
        }
        let spent_ns = now_ns() - start_ns;
        core::hint::black_box((p, q));
        spent_ns
    }
}
