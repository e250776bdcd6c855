//! SSSE3: 16 bytes a register, with the byte shuffle that multiplies.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, _mm_add_epi8, _mm_and_si128, _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_loadu_si128, _mm_movemask_epi8,
    _mm_or_si128, _mm_set1_epi8, _mm_setzero_si128, _mm_sfence, _mm_shuffle_epi8, _mm_srli_epi16,
    _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
};

use super::kernel::kernel;
use super::recover::horner;
use super::vector::Vector;
use super::{stripe, update};
use crate::parity::gf;
use crate::parity::kernel::{Differs, LostTwo, Place};

/// 16 bytes.
#[derive(Clone, Copy)]
struct Register(__m128i);

// Everything below is a single instruction, or a few, on values; `load`, `store` and `stream` touch exactly 16 bytes.
impl Vector for Register {
    const BYTES: usize = 16;

    /// The products of the 16 low and the 16 high nibbles.
    type Factor = (__m128i, __m128i);

    /// The polynomial in every byte.
    type Powers = __m128i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the caller promised.
        unsafe { _mm_stream_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm_setzero_si128()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm_xor_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn add3(self, second: Self, third: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { self.add(second).add(third) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self(_mm_or_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as the caller promised.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_setzero_si128())) == 0xffff }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> Self::Factor {
        let table: &[u8; 32] = gf::nibbles(constant);
        // SAFETY: the table is 32 bytes, two halves of 16; the rest as the caller promised.
        unsafe {
            let start = table.as_ptr().cast::<__m128i>();
            (_mm_loadu_si128(start), _mm_loadu_si128(start.add(1)))
        }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): Self::Factor) -> Self {
        // SAFETY: as the caller promised.
        unsafe {
            let mask = _mm_set1_epi8(0x0f);
            let low = _mm_shuffle_epi8(low, _mm_and_si128(self.0, mask));
            let high = _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi16::<4>(self.0), mask));
            Self(_mm_xor_si128(low, high))
        }
    }

    #[inline(always)]
    unsafe fn powers() -> Self::Powers {
        // SAFETY: as the caller promised.
        unsafe { _mm_set1_epi8(gf::POLYNOMIAL_LOW.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn double(self, polynomial: Self::Powers) -> Self {
        // SAFETY: as the caller promised. The compare fills every byte whose top bit is set: exactly those that overflow.
        unsafe {
            let carries = _mm_cmplt_epi8(self.0, _mm_setzero_si128());
            Self(_mm_xor_si128(_mm_add_epi8(self.0, self.0), _mm_and_si128(carries, polynomial)))
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
    Ssse3, "ssse3", Register, "ssse3",
    solve: horner, stacked: 4, line: 4, has: "ssse3"
}
