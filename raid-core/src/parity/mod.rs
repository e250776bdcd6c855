//! P and Q exactly as Linux md computes them: P = sum of d_i, Q = sum of g^i d_i over GF(2^8) mod 0x11d, g = 2, where i
//! is the data index inside the stripe (after H. P. Anvin, "The mathematics of RAID-6", 2004).
//!
//! This file holds the job that travels through the [`crate::ports::ParityEngine`] port. [`gf`] is the field, [`kernel`]
//! the arithmetic over slices with one implementation per instruction set (`scalar`, `x86_64/*`), `picks` the choice between
//! them by measurement, `ops` the operations of a job, `engine` the port.

mod engine;
pub mod gf;
pub mod kernel;
mod ops;
mod picks;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::ops::Range;

use crate::lease::{Lease, Seg};
use crate::units::DataIndex;

pub use engine::{CYCLE, CpuParity, UnknownKernel};
pub use picks::Picks;

/// What to compute. Columns of the job: `data[i]` is the data block with index i, then P and Q.
#[derive(Clone, Debug)]
pub enum ParityOp {
    /// All data columns are `In`; computes whichever of P and Q is `Out`.
    Encode,
    /// Read-modify-write of one data block: P ^= old ^ new, Q ^= g^index (old ^ new). P and Q are `Out` (in place)
    /// or `Absent`; data columns are unused and may be empty.
    Delta {
        /// Which data block changes.
        index: DataIndex,
        /// What it was.
        old: Seg,
        /// What it becomes.
        new: Seg,
    },
    /// Computes every column that is `Out` (at most two, data or parity) from those that are `In`. A column neither
    /// wanted nor needed may be `Absent` (RAID 5 has no Q; a lost parity need not be recomputed).
    Recover,
    /// All columns are `In` (Q `Absent` on RAID 5): does parity match data?
    Verify,
    /// RAID 6, all columns `In`: which single column is wrong over the whole length (SAFETY S8)?
    Locate,
}

/// One column of a job: `len` bytes.
#[derive(Debug)]
pub enum Column {
    /// Not there.
    Absent,
    /// Input: exactly `len` bytes.
    In(Seg),
    /// Output (for `Delta`: updated in place): `len` bytes at `range` of the lease.
    Out(Lease, Range<u32>),
}

/// One parity computation, owning its buffers while it runs.
#[derive(Debug)]
pub struct ParityJob {
    /// What to compute.
    pub op: ParityOp,
    /// Bytes per column; any length from 1.
    pub len: u32,
    /// Data columns by data index.
    pub data: Vec<Column>,
    /// P.
    pub p: Column,
    /// Q; `Absent` on RAID 5.
    pub q: Column,
}

/// Which column `Locate` found wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrongColumn {
    /// A data block.
    Data(DataIndex),
    /// P.
    P,
    /// Q.
    Q,
}

/// What a job found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// `Encode`, `Delta`, `Recover`: computed.
    Computed,
    /// `Verify`, `Locate`: parity matches.
    Clean,
    /// `Verify`: which parity does not match.
    Mismatch {
        /// P differs.
        p: bool,
        /// Q differs.
        q: bool,
    },
    /// `Locate`: the same single column explains every differing byte.
    Located(WrongColumn),
    /// `Locate`: no single column explains it.
    Ambiguous,
}

/// Why an engine could not run a job. The job comes back as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParityError {
    /// The device failed, timed out or was caught computing a wrong result.
    Device,
    /// The job's columns do not fit its operation: a bug of the caller.
    Invalid(&'static str),
}
