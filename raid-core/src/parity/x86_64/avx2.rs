//! AVX2: 32 bytes a register. P + Q by Horner with a doubling of four instructions a register; multiplication by any
//! other constant with two nibble shuffles (as in H. P. Anvin, "The mathematics of RAID-6", 2004).
//!
//! Invariants: an [`Avx2`] exists only on a machine that has AVX2 ([`Avx2::get`]), so calling the functions compiled for
//! it is sound; every function checks that its slices are equally long before it touches raw pointers, and reads or
//! writes registers only at `at + 32 N <= len`. The rest, less than a register, is the byte loop's.

#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi16, _mm256_storeu_si256, _mm256_xor_si256,
};

use crate::parity::gf;
use crate::parity::kernel::{Kernel, common_len};
use crate::parity::scalar;

/// Bytes of a register.
const REGISTER: usize = 32;

/// The AVX2 kernel; only [`Avx2::get`] makes one.
#[derive(Debug)]
pub(in crate::parity) struct Avx2(());

/// Whether this machine can run the kernel.
pub(in crate::parity) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

impl Avx2 {
    /// The kernel, on a machine that has AVX2.
    pub(in crate::parity) fn get() -> Option<&'static Self> {
        static KERNEL: Avx2 = Avx2(());
        is_available().then_some(&KERNEL)
    }
}

impl Kernel for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8]) {
        // SAFETY: `self` exists, so the machine has AVX2 (`get`).
        unsafe { xor(srcs, dst) }
    }

    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        // SAFETY: `self` exists, so the machine has AVX2 (`get`).
        unsafe { pq(srcs, p, q) }
    }

    fn q(&self, srcs: &[&[u8]], q: &mut [u8]) {
        // SAFETY: `self` exists, so the machine has AVX2 (`get`).
        unsafe { only_q(srcs, q) }
    }

    fn delta(&self, factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        // SAFETY: `self` exists, so the machine has AVX2 (`get`).
        unsafe {
            match (p, q) {
                (Some(p), Some(q)) => delta_pq(factor, old, new, p, q),
                (Some(p), None) => delta_p(old, new, p),
                (None, Some(q)) => delta_q(factor, old, new, q),
                (None, None) => {}
            }
        }
    }

    fn solve_one(&self, factor: u8, with: &[u8], dst: &mut [u8]) {
        // SAFETY: `self` exists, so the machine has AVX2 (`get`).
        unsafe { solve_one(factor, with, dst) }
    }

    fn solve_two(&self, constants: (u8, u8), p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]) {
        // SAFETY: `self` exists, so the machine has AVX2 (`get`).
        unsafe { solve_two(constants, p, q, x, y) }
    }
}

/// N registers from `at`.
///
/// # Safety
/// `at + N * REGISTER <= bytes.len()`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load<const N: usize>(bytes: &[u8], at: usize) -> [__m256i; N] {
    debug_assert!(at + N * REGISTER <= bytes.len());
    core::array::from_fn(|i| {
        // SAFETY: i < N, so the 32 bytes from `at + 32 i` lie inside the slice (caller); any alignment will do.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at + i * REGISTER).cast::<__m256i>()) }
    })
}

/// Stores N registers at `at`.
///
/// # Safety
/// `at + N * REGISTER <= bytes.len()`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const N: usize>(bytes: &mut [u8], at: usize, registers: [__m256i; N]) {
    debug_assert!(at + N * REGISTER <= bytes.len());
    for (i, register) in registers.into_iter().enumerate() {
        // SAFETY: i < N, so the 32 bytes from `at + 32 i` lie inside the slice (caller); any alignment will do.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().add(at + i * REGISTER).cast::<__m256i>(), register) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn add<const N: usize>(a: [__m256i; N], b: [__m256i; N]) -> [__m256i; N] {
    core::array::from_fn(|i| _mm256_xor_si256(a[i], b[i]))
}

/// Every byte times g.
#[inline]
#[target_feature(enable = "avx2")]
fn double<const N: usize>(a: [__m256i; N]) -> [__m256i; N] {
    let polynomial = _mm256_set1_epi8(gf::POLYNOMIAL_LOW.cast_signed());
    core::array::from_fn(|i| {
        // The compare fills every byte whose top bit is set: exactly those that overflow.
        let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), a[i]);
        _mm256_xor_si256(_mm256_add_epi8(a[i], a[i]), _mm256_and_si256(carries, polynomial))
    })
}

/// The shuffle tables of a constant.
#[derive(Clone, Copy)]
struct Factor {
    low: __m256i,
    high: __m256i,
}

impl Factor {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(constant: u8) -> Self {
        let table: &[u8; 32] = gf::nibbles(constant);
        // SAFETY: the table is 32 bytes, two halves of 16.
        let (low, high) = unsafe {
            let start = table.as_ptr().cast::<__m128i>();
            (_mm_loadu_si128(start), _mm_loadu_si128(start.add(1)))
        };
        Self { low: _mm256_broadcastsi128_si256(low), high: _mm256_broadcastsi128_si256(high) }
    }

    /// Every byte times the constant.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn times<const N: usize>(self, a: [__m256i; N]) -> [__m256i; N] {
        let mask = _mm256_set1_epi8(0x0f);
        core::array::from_fn(|i| {
            let low = _mm256_shuffle_epi8(self.low, _mm256_and_si256(a[i], mask));
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(a[i]), mask);
            _mm256_xor_si256(low, _mm256_shuffle_epi8(self.high, high))
        })
    }
}

/// Runs `$step` with N = `$wide` registers while they fit into `$len`, then with single registers, and returns where the
/// tail of less than one register starts. A macro, because a closure does not inherit the target feature reliably.
macro_rules! blocks {
    ($len:expr, $wide:literal, |$at:ident, $n:ident| $step:block) => {{
        let len: usize = $len;
        let mut $at = 0;
        while $at + $wide * REGISTER <= len {
            const $n: usize = $wide;
            $step
            $at += $wide * REGISTER;
        }
        while $at + REGISTER <= len {
            const $n: usize = 1;
            $step
            $at += REGISTER;
        }
        $at
    }};
}

#[target_feature(enable = "avx2")]
fn xor(srcs: &[&[u8]], dst: &mut [u8]) {
    let len = common_len(srcs, &[dst.len()]);
    let (first, rest) = srcs.split_first().expect("checked above");
    let tail = blocks!(len, 8, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let mut sum: [__m256i; N] = load(first, at);
            for src in rest {
                sum = add(sum, load(src, at));
            }
            store(dst, at, sum);
        }
    });
    scalar::xor_from(srcs, dst, tail);
}

#[target_feature(enable = "avx2")]
fn pq(srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let len = common_len(srcs, &[p.len(), q.len()]);
    let (last, rest) = srcs.split_last().expect("checked above");
    let tail = blocks!(len, 4, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let mut sum: [__m256i; N] = load(last, at);
            let mut weighted = sum;
            for src in rest.iter().rev() {
                let data = load(src, at);
                sum = add(sum, data);
                weighted = add(double(weighted), data);
            }
            store(p, at, sum);
            store(q, at, weighted);
        }
    });
    scalar::pq_from(srcs, p, q, tail);
}

#[target_feature(enable = "avx2")]
fn only_q(srcs: &[&[u8]], q: &mut [u8]) {
    let len = common_len(srcs, &[q.len()]);
    let (last, rest) = srcs.split_last().expect("checked above");
    let tail = blocks!(len, 4, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let mut weighted: [__m256i; N] = load(last, at);
            for src in rest.iter().rev() {
                weighted = add(double(weighted), load(src, at));
            }
            store(q, at, weighted);
        }
    });
    scalar::q_from(srcs, q, tail);
}

#[target_feature(enable = "avx2")]
fn delta_pq(factor: u8, old: &[u8], new: &[u8], p: &mut [u8], q: &mut [u8]) {
    let len = scalar::delta_len(old, new, Some(p), Some(q));
    let times = Factor::new(factor);
    let tail = blocks!(len, 2, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let change: [__m256i; N] = add(load(old, at), load(new, at));
            store(p, at, add(load(p, at), change));
            store(q, at, add(load(q, at), times.times(change)));
        }
    });
    scalar::delta_p_from(old, new, p, tail);
    scalar::delta_q_from(factor, old, new, q, tail);
}

#[target_feature(enable = "avx2")]
fn delta_p(old: &[u8], new: &[u8], p: &mut [u8]) {
    let len = scalar::delta_len(old, new, Some(p), None);
    let tail = blocks!(len, 4, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let change: [__m256i; N] = add(load(old, at), load(new, at));
            store(p, at, add(load(p, at), change));
        }
    });
    scalar::delta_p_from(old, new, p, tail);
}

#[target_feature(enable = "avx2")]
fn delta_q(factor: u8, old: &[u8], new: &[u8], q: &mut [u8]) {
    let len = scalar::delta_len(old, new, None, Some(q));
    let times = Factor::new(factor);
    let tail = blocks!(len, 2, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let change: [__m256i; N] = add(load(old, at), load(new, at));
            store(q, at, add(load(q, at), times.times(change)));
        }
    });
    scalar::delta_q_from(factor, old, new, q, tail);
}

#[target_feature(enable = "avx2")]
fn solve_one(factor: u8, with: &[u8], dst: &mut [u8]) {
    let len = common_len(&[with], &[dst.len()]);
    let times = Factor::new(factor);
    let tail = blocks!(len, 2, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let sum: [__m256i; N] = add(load(dst, at), load(with, at));
            store(dst, at, times.times(sum));
        }
    });
    scalar::solve_one_from(factor, with, dst, tail);
}

#[target_feature(enable = "avx2")]
fn solve_two(constants: (u8, u8), p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]) {
    let len = common_len(&[p, q], &[x.len(), y.len()]);
    let (times_a, times_b) = (Factor::new(constants.0), Factor::new(constants.1));
    let tail = blocks!(len, 2, |at, N| {
        // SAFETY: every slice is `len` bytes and `blocks!` keeps `at + N * REGISTER <= len`.
        unsafe {
            let dp: [__m256i; N] = add(load(p, at), load(x, at));
            let dq: [__m256i; N] = add(load(q, at), load(y, at));
            let dx = add(times_a.times(dp), times_b.times(dq));
            store(x, at, dx);
            store(y, at, add(dp, dx));
        }
    });
    scalar::solve_two_from(constants, p, q, x, y, tail);
}
