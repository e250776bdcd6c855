//! Kernels: the arithmetic of parity over plain byte slices, one implementation per instruction set.
//!
//! Invariants: every kernel gives the same bytes for the same input (tests compare each with the byte loop and with an
//! independent library); lengths and alignments are arbitrary; outputs never overlap inputs, because a mutable slice is
//! unique. A kernel of an instruction set can only be reached on a machine that has it.

use core::fmt;

use smallvec::SmallVec;

use super::scalar::{ByteLoop, Wide};

/// The arithmetic that all parity operations are made of. `srcs[i]` is the data block with index i. All slices of a call
/// have the same length.
///
/// # Panics
/// Every method panics if the slices of a call differ in length, or on an empty list of sources: a bug of the caller.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// The name it is chosen and logged by.
    fn name(&self) -> &'static str;

    /// `dst` = sum of the sources (P, and everything recovered through P).
    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8]);

    /// `p` = sum of the sources, `q` = sum of g^i times source i.
    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]);

    /// `q` = sum of g^i times source i.
    fn q(&self, srcs: &[&[u8]], q: &mut [u8]);

    /// The change of one data block from `old` to `new`: `p` += old + new, `q` += `factor` (old + new).
    fn delta(&self, factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>);

    /// `dst` = `factor` (`dst` + `with`).
    fn solve_one(&self, factor: u8, with: &[u8], dst: &mut [u8]);

    /// Both lost data blocks from the parity and the parity of the blocks that are left. On entry `x` holds the P and
    /// `y` the Q of the blocks that are left; on return they hold the lost blocks. `constants` are
    /// [`super::gf::two_data_constants`] of their indices.
    fn solve_two(&self, constants: (u8, u8), p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]);
}

/// The kernels this machine can run, slowest first.
#[must_use]
pub fn available() -> SmallVec<[&'static dyn Kernel; 4]> {
    let mut kernels: SmallVec<[&'static dyn Kernel; 4]> = SmallVec::new();
    kernels.push(&ByteLoop);
    kernels.push(&Wide);
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = super::x86_64::avx2::Avx2::get() {
        kernels.push(kernel);
    }
    kernels
}

/// Checks that all slices of a call are equally long, and gives that length in bytes.
pub(super) fn common_len(srcs: &[&[u8]], others: &[usize]) -> usize {
    let len = srcs.first().expect("parity of no data at all").len();
    let is_equal = srcs.iter().all(|src| src.len() == len) && others.iter().all(|&other| other == len);
    assert!(is_equal, "columns of different lengths in one parity computation");
    len
}
