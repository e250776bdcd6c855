//! Kernels of x86-64 instruction set extensions: a folder for each, and the algorithms they have in common.
//!
//! [`vector`] is what an extension has to offer: a register with a few operations. The algorithms are generic over it:
//! [`stripe`] sums over the columns of a stripe (P, Q, both, verify, fused copy), [`recover`] solves for lost blocks, [`update`]
//! does what works on one block. A folder holds the register type and the [`crate::parity::kernel::Kernel`] made of the
//! algorithms that suit it.
//!
//! Why nothing is said twice and still every function is compiled for its instruction set: the generic code is
//! `#[inline(always)]`, and only the methods of a kernel, which carry the `target_feature`, call it. So it never exists
//! outside of them.

mod avx2;
mod avx512;
mod gfni;
mod kernel;
mod recover;
mod ssse3;
mod stripe;
mod update;
mod vector;

use super::kernel::Kernel;

/// The kernels of this machine, slowest first.
pub(super) fn available() -> impl Iterator<Item = &'static dyn Kernel> {
    let ssse3 = ssse3::Ssse3::get().map(|kernel| -> &'static dyn Kernel { kernel });
    let avx2 = avx2::Avx2::get().map(|kernel| -> &'static dyn Kernel { kernel });
    let gfni = gfni::Gfni::get().map(|kernel| -> &'static dyn Kernel { kernel });
    let avx512 = avx512::Avx512::get().map(|kernel| -> &'static dyn Kernel { kernel });
    [ssse3, avx2, gfni, avx512].into_iter().flatten()
}
