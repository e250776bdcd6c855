//! AVX2: 32 bytes a register, with the byte shuffle that multiplies, in each half of it.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm_sfence, _mm256_add_epi8, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_testz_si256, _mm256_xor_si256,
};

use super::kernel::kernel;
use super::recover::horner;
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

    /// The products of the 16 low and the 16 high nibbles, in both halves.
    type Factor = (__m256i, __m256i);

    /// The polynomial in every byte.
    type Powers = __m256i;

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
        let table: &[u8; 32] = gf::nibbles(constant);
        // SAFETY: the table is 32 bytes, two halves of 16; the rest as the caller promised.
        unsafe {
            let start = table.as_ptr().cast::<__m128i>();
            let (low, high) = (_mm_loadu_si128(start), _mm_loadu_si128(start.add(1)));
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): Self::Factor) -> Self {
        // SAFETY: as the caller promised.
        unsafe {
            let mask = _mm256_set1_epi8(0x0f);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, mask));
            let high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16::<4>(self.0), mask));
            Self(_mm256_xor_si256(low, high))
        }
    }

    #[inline(always)]
    unsafe fn powers() -> Self::Powers {
        // SAFETY: as the caller promised.
        unsafe { _mm256_set1_epi8(gf::POLYNOMIAL_LOW.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn double(self, polynomial: Self::Powers) -> Self {
        // SAFETY: as the caller promised. The compare fills every byte whose top bit is set: exactly those that overflow.
        unsafe {
            let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            Self(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), _mm256_and_si256(carries, polynomial)))
        }
    }

    #[inline(always)]
    unsafe fn step(self, upper: Self, lower: Self, powers: Self::Powers) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.double(powers).add(upper).double(powers).add(lower) }
    }

    #[inline(always)]
    unsafe fn step4(self, [a, b, c, d]: [Self; 4], powers: Self::Powers) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.step(d, c, powers).step(b, a, powers) }
    }
}

kernel! {
    Avx2, "avx2", Register, "avx2",
    solve: horner, stacked: 4, line: 2, has: "avx2"
}
