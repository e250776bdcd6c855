//! The portable kernels: [`ByteLoop`], the obviously right twin every other kernel is compared with, and [`Wide`], which
//! does the same eight bytes at a time.
//!
//! The functions over a byte range are also the tails of the vector kernels.

use super::gf;
use super::kernel::{Kernel, common_len};

/// One byte at a time, written as the definition reads.
#[derive(Debug)]
pub(super) struct ByteLoop;

/// Eight bytes at a time in a `u64`, without any instruction set extension.
#[derive(Debug)]
pub(super) struct Wide;

/// P of the bytes from `from` on.
pub(super) fn xor_from(srcs: &[&[u8]], dst: &mut [u8], from: usize) {
    for at in from..dst.len() {
        dst[at] = srcs.iter().fold(0, |sum, src| sum ^ src[at]);
    }
}

/// P and Q of the bytes from `from` on.
pub(super) fn pq_from(srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], from: usize) {
    xor_from(srcs, p, from);
    q_from(srcs, q, from);
}

/// Q of the bytes from `from` on.
pub(super) fn q_from(srcs: &[&[u8]], q: &mut [u8], from: usize) {
    for at in from..q.len() {
        // Horner: ((d_2 g) + d_1) g + d_0.
        q[at] = srcs.iter().rev().fold(0, |sum, src| gf::double(sum) ^ src[at]);
    }
}

/// The P side of a delta, from `from` on.
pub(super) fn delta_p_from(old: &[u8], new: &[u8], p: &mut [u8], from: usize) {
    for at in from..p.len() {
        p[at] ^= old[at] ^ new[at];
    }
}

/// The Q side of a delta, from `from` on.
pub(super) fn delta_q_from(factor: u8, old: &[u8], new: &[u8], q: &mut [u8], from: usize) {
    for at in from..q.len() {
        q[at] ^= gf::mul(factor, old[at] ^ new[at]);
    }
}

/// [`Kernel::solve_one`] from `from` on.
pub(super) fn solve_one_from(factor: u8, with: &[u8], dst: &mut [u8], from: usize) {
    for at in from..dst.len() {
        dst[at] = gf::mul(factor, dst[at] ^ with[at]);
    }
}

/// [`Kernel::solve_two`] from `from` on.
pub(super) fn solve_two_from((a, b): (u8, u8), p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8], from: usize) {
    for at in from..x.len() {
        let dp = p[at] ^ x[at];
        let dq = q[at] ^ y[at];
        x[at] = gf::mul(a, dp) ^ gf::mul(b, dq);
        y[at] = dp ^ x[at];
    }
}

/// Checks the lengths of a delta and gives the common one.
pub(super) fn delta_len(old: &[u8], new: &[u8], p: Option<&[u8]>, q: Option<&[u8]>) -> usize {
    let len = old.len();
    common_len(&[old], &[new.len(), p.map_or(len, <[u8]>::len), q.map_or(len, <[u8]>::len)])
}

impl Kernel for ByteLoop {
    fn name(&self) -> &'static str {
        "byte"
    }

    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8]) {
        common_len(srcs, &[dst.len()]);
        xor_from(srcs, dst, 0);
    }

    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        common_len(srcs, &[p.len(), q.len()]);
        pq_from(srcs, p, q, 0);
    }

    fn q(&self, srcs: &[&[u8]], q: &mut [u8]) {
        common_len(srcs, &[q.len()]);
        q_from(srcs, q, 0);
    }

    fn delta(&self, factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        delta_len(old, new, p.as_deref(), q.as_deref());
        if let Some(p) = p {
            delta_p_from(old, new, p, 0);
        }
        if let Some(q) = q {
            delta_q_from(factor, old, new, q, 0);
        }
    }

    fn solve_one(&self, factor: u8, with: &[u8], dst: &mut [u8]) {
        common_len(&[with], &[dst.len()]);
        solve_one_from(factor, with, dst, 0);
    }

    fn solve_two(&self, constants: (u8, u8), p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]) {
        common_len(&[p, q], &[x.len(), y.len()]);
        solve_two_from(constants, p, q, x, y, 0);
    }
}

/// Bytes a [`Wide`] step handles.
const WORD: usize = 8;
/// The low bit of every byte of a word.
const ONES: u64 = 0x0101_0101_0101_0101;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + WORD].try_into().expect("a word of bytes"))
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + WORD].copy_from_slice(&word.to_ne_bytes());
}

/// Every byte of the word times g.
fn double_word(word: u64) -> u64 {
    let carries = (word >> 7) & ONES;
    ((word << 1) & !ONES) ^ (carries * u64::from(gf::POLYNOMIAL_LOW))
}

/// Every byte of the word times `factor`.
fn mul_word(factor: u8, word: u64) -> u64 {
    let mut sum = 0;
    let mut shifted = word;
    let mut bits = factor;
    while bits != 0 {
        if bits & 1 != 0 {
            sum ^= shifted;
        }
        shifted = double_word(shifted);
        bits >>= 1;
    }
    sum
}

/// Offsets of the whole words of `len` bytes, and where the tail starts.
fn words(len: usize) -> (impl Iterator<Item = usize>, usize) {
    let tail = len / WORD * WORD;
    ((0..tail).step_by(WORD), tail)
}

impl Kernel for Wide {
    fn name(&self) -> &'static str {
        "scalar"
    }

    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8]) {
        let (offsets, tail) = words(common_len(srcs, &[dst.len()]));
        for at in offsets {
            put(dst, at, srcs.iter().fold(0, |sum, src| sum ^ word(src, at)));
        }
        xor_from(srcs, dst, tail);
    }

    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        let (offsets, tail) = words(common_len(srcs, &[p.len(), q.len()]));
        for at in offsets {
            let (mut sum, mut weighted) = (0, 0);
            for src in srcs.iter().rev() {
                let data = word(src, at);
                sum ^= data;
                weighted = double_word(weighted) ^ data;
            }
            put(p, at, sum);
            put(q, at, weighted);
        }
        pq_from(srcs, p, q, tail);
    }

    fn q(&self, srcs: &[&[u8]], q: &mut [u8]) {
        let (offsets, tail) = words(common_len(srcs, &[q.len()]));
        for at in offsets {
            put(q, at, srcs.iter().rev().fold(0, |sum, src| double_word(sum) ^ word(src, at)));
        }
        q_from(srcs, q, tail);
    }

    fn delta(&self, factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let len = delta_len(old, new, p.as_deref(), q.as_deref());
        if let Some(p) = p {
            let (offsets, tail) = words(len);
            for at in offsets {
                put(p, at, word(p, at) ^ word(old, at) ^ word(new, at));
            }
            delta_p_from(old, new, p, tail);
        }
        if let Some(q) = q {
            let (offsets, tail) = words(len);
            for at in offsets {
                put(q, at, word(q, at) ^ mul_word(factor, word(old, at) ^ word(new, at)));
            }
            delta_q_from(factor, old, new, q, tail);
        }
    }

    fn solve_one(&self, factor: u8, with: &[u8], dst: &mut [u8]) {
        let (offsets, tail) = words(common_len(&[with], &[dst.len()]));
        for at in offsets {
            put(dst, at, mul_word(factor, word(dst, at) ^ word(with, at)));
        }
        solve_one_from(factor, with, dst, tail);
    }

    fn solve_two(&self, constants: (u8, u8), p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]) {
        let (offsets, tail) = words(common_len(&[p, q], &[x.len(), y.len()]));
        for at in offsets {
            let dp = word(p, at) ^ word(x, at);
            let dq = word(q, at) ^ word(y, at);
            let dx = mul_word(constants.0, dp) ^ mul_word(constants.1, dq);
            put(x, at, dx);
            put(y, at, dp ^ dx);
        }
        solve_two_from(constants, p, q, x, y, tail);
    }
}
