//! AVX-512 with GFNI: 64 bytes a register and 32 of them, sums of three in one instruction, and one instruction multiplies
//! by a constant, which is an 8x8 bit matrix.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m512i, _mm_sfence, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_or_si512,
    _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_ternarylogic_epi64, _mm512_test_epi64_mask, _mm512_xor_si512,
};

use super::kernel::kernel;
use super::recover::weights;
use super::vector::Vector;
use super::{stripe, update};
use crate::parity::gf;
use crate::parity::kernel::{Differs, LostTwo, Place};

/// The truth table of a XOR b XOR c.
const XOR3: i32 = 0x96;

/// 64 bytes.
#[derive(Clone, Copy)]
struct Register(__m512i);

// Everything below is a single instruction, or a few, on values; `load`, `store` and `stream` touch exactly 64 bytes.
impl Vector for Register {
    const BYTES: usize = 64;

    /// The matrix, eight times.
    type Factor = __m512i;

    /// The matrices of g to g^4.
    type Powers = [__m512i; 4];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn add3(self, second: Self, third: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm512_ternarylogic_epi64::<XOR3>(self.0, second.0, third.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as the caller promised.
        unsafe { _mm512_test_epi64_mask(self.0, self.0) == 0 }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> Self::Factor {
        // SAFETY: as the caller promised.
        unsafe { _mm512_set1_epi64(gf::matrix(constant).cast_signed()) }
    }

    #[inline(always)]
    unsafe fn times(self, matrix: Self::Factor) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm512_gf2p8affine_epi64_epi8::<0>(self.0, matrix)) }
    }

    #[inline(always)]
    unsafe fn powers() -> Self::Powers {
        // SAFETY: as the caller promised.
        unsafe {
            [
                Self::factor(gf::power(1)),
                Self::factor(gf::power(2)),
                Self::factor(gf::power(3)),
                Self::factor(gf::power(4)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn double(self, [g, ..]: Self::Powers) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.times(g) }
    }

    #[inline(always)]
    unsafe fn step(self, upper: Self, lower: Self, [g, g2, ..]: Self::Powers) -> Self {
        // SAFETY: as the caller promised. Both products at once: only one of them waits for the step before.
        unsafe { self.times(g2).add3(upper.times(g), lower) }
    }

    #[inline(always)]
    unsafe fn step4(self, [a, b, c, d]: [Self; 4], [g, g2, g3, g4]: Self::Powers) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.times(g4).add3(d.times(g3), c.times(g2)).add3(b.times(g), a) }
    }
}

kernel! {
    Avx512, "avx512", Register, "avx512f,avx512bw,avx512vl,gfni",
    solve: weights, stacked: 8, line: 1, has: "avx512f", "avx512bw", "avx512vl", "gfni"
}
