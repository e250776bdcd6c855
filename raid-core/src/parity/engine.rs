//! The CPU behind the parity port: which kernel runs a job, and the check every job passes first. The operations
//! themselves are in [`super::ops`].
//!
//! Invariant: a job is checked completely before the first byte is written, so an invalid one comes back untouched, and
//! after the check nothing can fail.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::kernel::{Kernel, available};
use super::{Column, ParityError, ParityJob, ParityOp, Verdict, ops};
use crate::ports::ParityEngine;

/// The name under which [`CpuParity::with_kernel`] gives an engine that rotates through all kernels, one per job: every
/// test that runs on it tests all of them.
pub const CYCLE: &str = "cycle";

/// Parity on the CPU.
#[derive(Debug)]
pub struct CpuParity {
    choice: Choice,
}

#[derive(Debug)]
enum Choice {
    One(&'static dyn Kernel),
    Cycle(AtomicUsize),
}

/// There is no kernel of this name on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownKernel {
    /// What was asked for.
    pub name: String,
}

impl fmt::Display for UnknownKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no parity kernel {:?} on this machine; there are ", self.name)?;
        for name in CpuParity::kernels() {
            write!(f, "{name}, ")?;
        }
        f.write_str(CYCLE)
    }
}

impl std::error::Error for UnknownKernel {}

impl Default for CpuParity {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuParity {
    /// An engine with the kernel that is best on machines of this kind. See [`Self::fastest`] for a measured choice.
    #[must_use]
    pub fn new() -> Self {
        let kernel = available().pop().expect("the portable kernels are always there");
        Self { choice: Choice::One(kernel) }
    }

    /// An engine with the kernel of this name, or with [`CYCLE`].
    ///
    /// # Errors
    /// [`UnknownKernel`] if this machine has none of that name; the message lists those it has.
    pub fn with_kernel(name: &str) -> Result<Self, UnknownKernel> {
        if name == CYCLE {
            return Ok(Self { choice: Choice::Cycle(AtomicUsize::new(0)) });
        }
        match available().into_iter().find(|kernel| kernel.name() == name) {
            Some(kernel) => Ok(Self { choice: Choice::One(kernel) }),
            None => Err(UnknownKernel { name: name.to_owned() }),
        }
    }

    /// An engine with the kernel that is fastest by `now_ns`, a monotonic clock in nanoseconds (core has none of its
    /// own). Takes about a millisecond.
    #[must_use]
    pub fn fastest(now_ns: impl Fn() -> u64) -> Self {
        let fastest = available().into_iter().min_by_key(|&kernel| trial_ns(kernel, &now_ns));
        Self { choice: Choice::One(fastest.expect("the portable kernels are always there")) }
    }

    /// The names of the kernels this machine has, slowest first.
    #[must_use]
    pub fn kernels() -> Vec<&'static str> {
        available().into_iter().map(Kernel::name).collect()
    }

    /// The name of the kernel this engine uses, for the log.
    #[must_use]
    pub fn kernel_name(&self) -> &'static str {
        match &self.choice {
            Choice::One(kernel) => kernel.name(),
            Choice::Cycle(_) => CYCLE,
        }
    }

    fn kernel(&self) -> &'static dyn Kernel {
        match &self.choice {
            Choice::One(kernel) => *kernel,
            Choice::Cycle(next) => {
                let kernels = available();
                kernels[next.fetch_add(1, Ordering::Relaxed) % kernels.len()]
            }
        }
    }

    /// Runs a job in place: what [`ParityEngine::run`] does, for callers that keep the job.
    ///
    /// # Errors
    /// [`ParityError::Invalid`] if the columns do not fit the operation; the job is untouched then.
    pub fn run_in_place(&self, job: &mut ParityJob) -> Result<Verdict, ParityError> {
        check_columns(job).map_err(ParityError::Invalid)?;
        ops::run(self.kernel(), job).map_err(ParityError::Invalid)
    }
}

impl ParityEngine for CpuParity {
    async fn run(&self, mut job: ParityJob) -> (ParityJob, Result<Verdict, ParityError>) {
        let verdict = self.run_in_place(&mut job);
        (job, verdict)
    }
}

/// The best time of a few encodes of 8 columns of 4 KiB, nanoseconds.
fn trial_ns(kernel: &dyn Kernel, now_ns: &impl Fn() -> u64) -> u64 {
    let data = [[0x5a; 4096]; 8];
    let srcs = data.each_ref().map(|column| &column[..]);
    let (mut p, mut q) = ([0; 4096], [0; 4096]);
    let once = |p: &mut [u8], q: &mut [u8]| {
        let start_ns = now_ns();
        kernel.pq(core::hint::black_box(&srcs), p, q);
        core::hint::black_box((p, q));
        now_ns() - start_ns
    };
    (0..9).map(|_| once(&mut p, &mut q)).min().expect("nine trials")
}

/// Every column that is there must be exactly `len` bytes, and `len` at least 1.
fn check_columns(job: &ParityJob) -> Result<(), &'static str> {
    if job.len == 0 {
        return Err("a parity job of 0 bytes");
    }
    let fits = |column: &Column| match column {
        Column::Absent => true,
        Column::In(seg) => seg.len() == job.len,
        Column::Out(lease, range) => {
            range.start <= range.end && range.end <= lease.len() && range.end - range.start == job.len
        }
    };
    // A delta ignores the data columns.
    let is_delta = matches!(job.op, ParityOp::Delta { .. });
    if !fits(&job.p) || !fits(&job.q) || !(is_delta || job.data.iter().all(fits)) {
        return Err("a column that is not as long as its job");
    }
    Ok(())
}
