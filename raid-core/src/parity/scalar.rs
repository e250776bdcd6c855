//! The portable kernels: [`ByteLoop`], the obviously right twin every other kernel is compared with, and [`Wide`], which
//! does the same eight bytes at a time.
//!
//! The functions over a byte range are also the tails of the vector kernels.

use super::gf;
use super::kernel::{Differs, Kernel, LostTwo, Place, common_len, recovery_len, runs};

/// One byte at a time, written as the definition reads.
#[derive(Debug)]
pub(super) struct ByteLoop;

/// Eight bytes at a time in a `u64`, without any instruction set extension.
#[derive(Debug)]
pub(super) struct Wide;

/// P of the bytes from `from` on.
pub(super) fn xor_from(srcs: &[&[u8]], dst: &mut [u8], from: usize) {
    for (at, byte) in dst.iter_mut().enumerate().skip(from) {
        *byte = p_at(srcs, at);
    }
}

fn p_at(srcs: &[&[u8]], at: usize) -> u8 {
    srcs.iter().fold(0, |sum, src| sum ^ src[at])
}

fn q_at(srcs: &[&[u8]], at: usize) -> u8 {
    // Horner: ((d_2 g) + d_1) g + d_0.
    srcs.iter().rev().fold(0, |sum, src| gf::double(sum) ^ src[at])
}

/// P and Q of the bytes from `from` on.
pub(super) fn pq_from(srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], from: usize) {
    xor_from(srcs, p, from);
    q_from(srcs, q, from);
}

/// Q of the bytes from `from` on.
pub(super) fn q_from(srcs: &[&[u8]], q: &mut [u8], from: usize) {
    for (at, byte) in q.iter_mut().enumerate().skip(from) {
        *byte = q_at(srcs, at);
    }
}

/// The copies of the bytes from `from` on.
pub(super) fn copy_from(srcs: &[&[u8]], copies: &mut [&mut [u8]], from: usize) {
    for (src, copy) in srcs.iter().zip(copies) {
        copy[from..].copy_from_slice(&src[from..]);
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

/// Q of a stripe with lost blocks, as far as the known ones make it up. `runs` are those between the lost ones.
fn q_of_runs_at(runs: &[&[&[u8]]], at: usize) -> u8 {
    let mut sum = 0;
    for (i, run) in runs.iter().enumerate().rev() {
        sum = run.iter().rev().fold(sum, |sum, src| gf::double(sum) ^ src[at]);
        if i > 0 {
            // The lost block below this run.
            sum = gf::double(sum);
        }
    }
    sum
}

/// [`Kernel::recover_by_q`] from `from` on.
pub(super) fn by_q_from(known: &[&[u8]], x: usize, q: &[u8], dst: &mut [u8], from: usize) {
    let runs = runs(known, &[x]);
    let factor = gf::inverse(gf::power(x));
    for at in from..dst.len() {
        dst[at] = gf::mul(factor, q[at] ^ q_of_runs_at(&runs, at));
    }
}

/// [`Kernel::recover_two`] from `from` on.
pub(super) fn two_from(known: &[&[u8]], lost: LostTwo<'_>, p: &[u8], q: &[u8], from: usize) {
    let runs = runs(known, &[lost.x, lost.y]);
    let (a, b) = gf::two_data_constants(lost.x, lost.y);
    let mut dy = lost.dy;
    for at in from..p.len() {
        let dp = p[at] ^ p_at(known, at);
        let dq = q[at] ^ q_of_runs_at(&runs, at);
        lost.dx[at] = gf::mul(a, dp) ^ gf::mul(b, dq);
        if let Some(dy) = &mut dy {
            dy[at] = dp ^ lost.dx[at];
        }
    }
}

/// [`Kernel::verify`] from `from` on.
pub(super) fn verify_from(srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>, from: usize) -> Differs {
    Differs {
        p: p.is_some_and(|p| (from..p.len()).any(|at| p[at] != p_at(srcs, at))),
        q: q.is_some_and(|q| (from..q.len()).any(|at| q[at] != q_at(srcs, at))),
    }
}

/// Checks the lengths of a fused copy and gives the common one.
pub(super) fn copy_len(srcs: &[&[u8]], copies: &[&mut [u8]], p: &[u8], q: &[u8]) -> usize {
    let len = common_len(srcs, &[p.len(), q.len()]);
    let fits = srcs.len() == copies.len() && copies.iter().all(|copy| copy.len() == len);
    assert!(fits, "copies that are not as many or as long as their sources");
    len
}

/// Checks the lengths of a delta and gives the common one.
pub(super) fn delta_len(old: &[u8], new: &[u8], p: Option<&[u8]>, q: Option<&[u8]>) -> usize {
    let len = old.len();
    common_len(&[old], &[new.len(), p.map_or(len, <[u8]>::len), q.map_or(len, <[u8]>::len)])
}

/// Checks the lengths of a recovery of two and gives the common one.
pub(super) fn two_len(known: &[&[u8]], lost: &LostTwo<'_>, p: &[u8], q: &[u8]) -> usize {
    let len = p.len();
    let dy = lost.dy.as_ref().map_or(len, |dy| dy.len());
    recovery_len(known, &[lost.x, lost.y], &[len, q.len(), lost.dx.len(), dy])
}

/// Checks the lengths of a verification and gives the common one.
pub(super) fn verify_len(srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> usize {
    let len = srcs.first().map_or(0, |src| src.len());
    common_len(srcs, &[p.map_or(len, <[u8]>::len), q.map_or(len, <[u8]>::len)])
}

impl Kernel for ByteLoop {
    fn name(&self) -> &'static str {
        "byte"
    }

    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8], _: Place) {
        common_len(srcs, &[dst.len()]);
        xor_from(srcs, dst, 0);
    }

    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], _: Place) {
        common_len(srcs, &[p.len(), q.len()]);
        pq_from(srcs, p, q, 0);
    }

    fn q(&self, srcs: &[&[u8]], q: &mut [u8], _: Place) {
        common_len(srcs, &[q.len()]);
        q_from(srcs, q, 0);
    }

    fn copy_pq(&self, srcs: &[&[u8]], copies: &mut [&mut [u8]], p: &mut [u8], q: &mut [u8], _: Place) {
        copy_len(srcs, copies, p, q);
        copy_from(srcs, copies, 0);
        pq_from(srcs, p, q, 0);
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

    fn recover_by_q(&self, known: &[&[u8]], x: usize, q: &[u8], dst: &mut [u8], _: Place) {
        recovery_len(known, &[x], &[q.len(), dst.len()]);
        by_q_from(known, x, q, dst, 0);
    }

    fn recover_two(&self, known: &[&[u8]], lost: LostTwo<'_>, p: &[u8], q: &[u8], _: Place) {
        two_len(known, &lost, p, q);
        two_from(known, lost, p, q, 0);
    }

    fn verify(&self, srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Differs {
        verify_len(srcs, p, q);
        verify_from(srcs, p, q, 0)
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

fn p_word(srcs: &[&[u8]], at: usize) -> u64 {
    srcs.iter().fold(0, |sum, src| sum ^ word(src, at))
}

fn q_word(srcs: &[&[u8]], at: usize) -> u64 {
    srcs.iter().rev().fold(0, |sum, src| double_word(sum) ^ word(src, at))
}

/// P and Q in one pass.
fn pq_word(srcs: &[&[u8]], at: usize) -> (u64, u64) {
    srcs.iter().rev().fold((0, 0), |(sum, weighted), src| {
        let data = word(src, at);
        (sum ^ data, double_word(weighted) ^ data)
    })
}

fn q_of_runs_word(runs: &[&[&[u8]]], at: usize) -> u64 {
    let mut sum = 0;
    for (i, run) in runs.iter().enumerate().rev() {
        sum = run.iter().rev().fold(sum, |sum, src| double_word(sum) ^ word(src, at));
        if i > 0 {
            sum = double_word(sum);
        }
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

    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8], _: Place) {
        let (offsets, tail) = words(common_len(srcs, &[dst.len()]));
        for at in offsets {
            put(dst, at, p_word(srcs, at));
        }
        xor_from(srcs, dst, tail);
    }

    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], _: Place) {
        let (offsets, tail) = words(common_len(srcs, &[p.len(), q.len()]));
        for at in offsets {
            let (sum, weighted) = pq_word(srcs, at);
            put(p, at, sum);
            put(q, at, weighted);
        }
        pq_from(srcs, p, q, tail);
    }

    fn q(&self, srcs: &[&[u8]], q: &mut [u8], _: Place) {
        let (offsets, tail) = words(common_len(srcs, &[q.len()]));
        for at in offsets {
            put(q, at, q_word(srcs, at));
        }
        q_from(srcs, q, tail);
    }

    fn copy_pq(&self, srcs: &[&[u8]], copies: &mut [&mut [u8]], p: &mut [u8], q: &mut [u8], place: Place) {
        copy_len(srcs, copies, p, q);
        copy_from(srcs, copies, 0);
        self.pq(srcs, p, q, place);
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

    fn recover_by_q(&self, known: &[&[u8]], x: usize, q: &[u8], dst: &mut [u8], _: Place) {
        let (offsets, tail) = words(recovery_len(known, &[x], &[q.len(), dst.len()]));
        let runs = runs(known, &[x]);
        let factor = gf::inverse(gf::power(x));
        for at in offsets {
            put(dst, at, mul_word(factor, word(q, at) ^ q_of_runs_word(&runs, at)));
        }
        by_q_from(known, x, q, dst, tail);
    }

    fn recover_two(&self, known: &[&[u8]], mut lost: LostTwo<'_>, p: &[u8], q: &[u8], _: Place) {
        let (offsets, tail) = words(two_len(known, &lost, p, q));
        let runs = runs(known, &[lost.x, lost.y]);
        let (a, b) = gf::two_data_constants(lost.x, lost.y);
        for at in offsets {
            let dp = word(p, at) ^ p_word(known, at);
            let dq = word(q, at) ^ q_of_runs_word(&runs, at);
            let dx = mul_word(a, dp) ^ mul_word(b, dq);
            put(lost.dx, at, dx);
            if let Some(dy) = &mut lost.dy {
                put(dy, at, dp ^ dx);
            }
        }
        two_from(known, lost, p, q, tail);
    }

    fn verify(&self, srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Differs {
        let (offsets, tail) = words(verify_len(srcs, p, q));
        let (mut p_bits, mut q_bits) = (0, 0);
        for at in offsets {
            let (sum, weighted) = pq_word(srcs, at);
            p_bits |= p.map_or(0, |p| word(p, at) ^ sum);
            q_bits |= q.map_or(0, |q| word(q, at) ^ weighted);
        }
        let rest = verify_from(srcs, p, q, tail);
        Differs { p: p_bits != 0 || rest.p, q: q_bits != 0 || rest.q }
    }
}
