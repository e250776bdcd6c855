//! GFNI with AVX2: 32 bytes a register, and one instruction multiplies them all by a constant, which is an 8x8 bit matrix.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m256i, _mm_sfence, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_or_si256,
    _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm256_testz_si256,
    _mm256_xor_si256,
};

use super::kernel::kernel;
use super::recover::weights;
use super::vector::Vector;
use super::{stripe, update};
use crate::parity::gf;
use crate::parity::kernel::{Differs, LostTwo, Place};

/// 32 bytes.
#[derive(Clone, Copy)]
struct Register(__m256i);

// Everything below is a single instruction, or a few, on values; `load`, `store` and `stream` touch exactly 32 bytes.
impl Vector for Register {
    const BYTES: usize = 32;

    /// The matrix, four times.
    type Factor = __m256i;

    /// The matrices of g and g^2: sixteen registers have no room for more.
    type Powers = [__m256i; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn add3(self, second: Self, third: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.add(second).add(third) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as the caller promised.
        unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> Self::Factor {
        // SAFETY: as the caller promised.
        unsafe { _mm256_set1_epi64x(gf::matrix(constant).cast_signed()) }
    }

    #[inline(always)]
    unsafe fn times(self, matrix: Self::Factor) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm256_gf2p8affine_epi64_epi8::<0>(self.0, matrix)) }
    }

    #[inline(always)]
    unsafe fn powers() -> Self::Powers {
        // SAFETY: as the caller promised.
        unsafe { [Self::factor(gf::power(1)), Self::factor(gf::power(2))] }
    }

    #[inline(always)]
    unsafe fn double(self, [g, ..]: Self::Powers) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.times(g) }
    }

    #[inline(always)]
    unsafe fn step(self, upper: Self, lower: Self, [g, g2]: Self::Powers) -> Self {
        // SAFETY: as the caller promised. Both products at once: only one of them waits for the step before.
        unsafe { self.times(g2).add(upper.times(g).add(lower)) }
    }

    #[inline(always)]
    unsafe fn step4(self, [a, b, c, d]: [Self; 4], powers: Self::Powers) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.step(d, c, powers).step(b, a, powers) }
    }
}

kernel! {
    Gfni, "gfni", Register, "avx2,gfni",
    solve: weights, stacked: 8, line: 2, has: "avx2", "gfni"
}
