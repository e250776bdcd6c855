//! The CPU behind the parity port: which kernel runs a job, and the check every job passes first. The operations
//! themselves are in [`super::ops`].
//!
//! Invariant: a job is checked completely before the first byte is written, so an invalid one comes back untouched, and
//! after the check nothing can fail.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::kernel::{Kernel, available};
use super::picks::Picks;
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
    Picks(Picks),
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

impl Clone for CpuParity {
    /// One that chooses as this one does; a rotation goes on where this one stands.
    fn clone(&self) -> Self {
        let choice = match &self.choice {
            Choice::Picks(picks) => Choice::Picks(*picks),
            Choice::Cycle(next) => Choice::Cycle(AtomicUsize::new(next.load(Ordering::Relaxed))),
        };
        Self { choice }
    }
}

impl Default for CpuParity {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuParity {
    /// An engine with the kernel that is best on machines of this kind. See [`Picks::measured`] for a measured choice.
    #[must_use]
    pub fn new() -> Self {
        let kernel = available().pop().expect("the portable kernels are always there");
        Self::with_picks(Picks::all(kernel))
    }

    /// An engine with these kernels.
    #[must_use]
    pub const fn with_picks(picks: Picks) -> Self {
        Self { choice: Choice::Picks(picks) }
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
            Some(kernel) => Ok(Self::with_picks(Picks::all(kernel))),
            None => Err(UnknownKernel { name: name.to_owned() }),
        }
    }

    /// The names of the kernels this machine has, slowest first.
    #[must_use]
    pub fn kernels() -> Vec<&'static str> {
        available().into_iter().map(Kernel::name).collect()
    }

    /// What this engine computes with, for people: a kernel's name, names by operation, or [`CYCLE`].
    #[must_use]
    pub fn kernel_name(&self) -> String {
        match &self.choice {
            Choice::Picks(picks) => picks.to_string(),
            Choice::Cycle(_) => CYCLE.to_owned(),
        }
    }

    /// Runs a job in place: what [`ParityEngine::run`] does, for callers that keep the job.
    ///
    /// # Errors
    /// [`ParityError::Invalid`] if the columns do not fit the operation; the job is untouched then.
    pub fn run_in_place(&self, job: &mut ParityJob) -> Result<Verdict, ParityError> {
        check_columns(job).map_err(ParityError::Invalid)?;
        let result = match &self.choice {
            Choice::Picks(picks) => ops::run(picks, job),
            Choice::Cycle(next) => {
                let kernels = available();
                ops::run(kernels[next.fetch_add(1, Ordering::Relaxed) % kernels.len()], job)
            }
        };
        result.map_err(ParityError::Invalid)
    }
}

impl ParityEngine for CpuParity {
    async fn run(&self, mut job: ParityJob) -> (ParityJob, Result<Verdict, ParityError>) {
        let verdict = self.run_in_place(&mut job);
        (job, verdict)
    }
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
