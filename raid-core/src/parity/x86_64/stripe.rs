//! Sums over all columns of a stripe: P, Q, both, both with a copy of the data, and their comparison with what is stored.
//!
//! Q is Horner's rule from the last column down, as H. P. Anvin, "The mathematics of RAID-6" (2004) has it
//! with one; here four a step where there are as many, so that fewer products wait for each other. A block of N registers of
//! every column is worked on before the next block, and everything in between stays in registers.
//!
//! N is measured (docs/parity.md): in a cache 4, or more where the columns compete for cache sets; from memory one cache
//! line, which keeps as many columns' loads in flight as the processor can.

#![allow(unsafe_code)]

use super::vector::{Vector, is_aligned, load, store};
use crate::parity::kernel::{Differs, Place, common_len};
use crate::parity::scalar;

/// What is done with the sums of a block.
///
/// # Safety
/// Of every method: the machine has V's instruction set, and all columns of the pass are `at + N * V::BYTES` bytes or longer
/// (N = 1 for `seen`).
trait Pass<V: Vector> {
    /// A register of source `index` is loaded.
    #[inline(always)]
    unsafe fn seen(&mut self, index: usize, at: usize, register: V) {
        let _ = (index, at, register);
    }

    /// The block's P and Q are in registers. What is not used is not computed.
    unsafe fn done<const N: usize>(&mut self, at: usize, p: [V; N], q: [V; N]);
}

/// The sum and the weighted sum of a block.
///
/// # Safety
/// As [`Pass`] says, for all sources.
#[inline(always)]
unsafe fn sums<V: Vector, P: Pass<V>, const N: usize>(
    srcs: &[&[u8]],
    at: usize,
    powers: V::Powers,
    pass: &mut P,
) -> ([V; N], [V; N]) {
    let (last, rest) = srcs.split_last().expect("checked by the caller");
    // Quads of columns begin at column 0; between them and the last column there may be a pair, and above it a single one.
    let quads = rest.chunks_exact(4);
    let (first, upper) = (rest.len() - quads.remainder().len(), quads.remainder());
    // SAFETY: as the caller promised; register i of a block begins at `at + i * V::BYTES`.
    unsafe {
        let mut p: [V; N] = load(last, at);
        let mut q = p;
        for (i, &register) in p.iter().enumerate() {
            pass.seen(rest.len(), at + i * V::BYTES, register);
        }
        let pairs = upper.chunks_exact(2);
        if let [single] = pairs.remainder() {
            for i in 0..N {
                let [a]: [V; 1] = load(single, at + i * V::BYTES);
                pass.seen(rest.len() - 1, at + i * V::BYTES, a);
                p[i] = p[i].add(a);
                q[i] = q[i].double(powers).add(a);
            }
        }
        for pair in pairs {
            for i in 0..N {
                let at = at + i * V::BYTES;
                let ([a], [b]): ([V; 1], [V; 1]) = (load(pair[0], at), load(pair[1], at));
                pass.seen(first, at, a);
                pass.seen(first + 1, at, b);
                p[i] = p[i].add3(a, b);
                q[i] = q[i].step(b, a, powers);
            }
        }
        for (quad, columns) in quads.enumerate().rev() {
            for i in 0..N {
                let at = at + i * V::BYTES;
                let ([a], [b]): ([V; 1], [V; 1]) = (load(columns[0], at), load(columns[1], at));
                let ([c], [d]): ([V; 1], [V; 1]) = (load(columns[2], at), load(columns[3], at));
                for (i, register) in [a, b, c, d].into_iter().enumerate() {
                    pass.seen(4 * quad + i, at, register);
                }
                p[i] = p[i].add3(a, b).add3(c, d);
                q[i] = q[i].step4([a, b, c, d], powers);
            }
        }
        (p, q)
    }
}

/// Runs a pass with N registers of every column at a time, and then with one, and gives where the tail of less than a
/// register starts.
///
/// # Safety
/// The machine has V's instruction set, and all columns of the pass and the sources are `len` bytes.
#[inline(always)]
unsafe fn over<V: Vector, P: Pass<V>, const N: usize>(srcs: &[&[u8]], len: usize, pass: &mut P) -> usize {
    let mut at = 0;
    // SAFETY: as the caller promised; the conditions of the loops keep the blocks inside the columns.
    unsafe {
        let powers = V::powers();
        while at + N * V::BYTES <= len {
            let (p, q) = sums::<V, P, N>(srcs, at, powers, pass);
            pass.done(at, p, q);
            at += N * V::BYTES;
        }
        while at + V::BYTES <= len {
            let (p, q) = sums::<V, P, 1>(srcs, at, powers, pass);
            pass.done(at, p, q);
            at += V::BYTES;
        }
    }
    at
}

/// Whether the columns lie at one offset of their pages, and so fall into the same cache sets: then fewer visits of more
/// bytes each go better than many short ones.
fn is_stacked(srcs: &[&[u8]]) -> bool {
    let offset = |src: &&[u8]| src.as_ptr().addr() % 4096;
    srcs.len() >= 8 && srcs[1..].iter().all(|src| offset(src) == offset(&srcs[0]))
}

/// Stores P and Q as far as wanted.
struct Put<'a, const P: bool, const Q: bool, const STREAM: bool> {
    p: &'a mut [u8],
    q: &'a mut [u8],
}

impl<V: Vector, const P: bool, const Q: bool, const STREAM: bool> Pass<V> for Put<'_, P, Q, STREAM> {
    #[inline(always)]
    unsafe fn done<const N: usize>(&mut self, at: usize, p: [V; N], q: [V; N]) {
        // SAFETY: as the caller promised; STREAM is only asked for if the columns are aligned (`put`).
        unsafe {
            if P {
                store::<V, N, STREAM>(self.p, at, p);
            }
            if Q {
                store::<V, N, STREAM>(self.q, at, q);
            }
        }
    }
}

/// Computes the parities that are wanted; the other slice is empty.
///
/// # Safety
/// The machine has V's instruction set, and the sources and the wanted columns are `len` bytes.
#[inline(always)]
unsafe fn put<
    V: Vector,
    const P: bool,
    const Q: bool,
    const N: usize,
    const STACKED: usize,
    const LINE: usize,
>(
    srcs: &[&[u8]],
    len: usize,
    p: &mut [u8],
    q: &mut [u8],
    place: Place,
) -> usize {
    let is_streamed = place == Place::Memory && (!P || is_aligned::<V>(p)) && (!Q || is_aligned::<V>(q));
    // SAFETY: as the caller promised; streamed stores are aligned.
    unsafe {
        if is_streamed {
            let tail = over::<V, _, LINE>(srcs, len, &mut Put::<P, Q, true> { p, q });
            V::fence();
            tail
        } else if STACKED != N && is_stacked(srcs) {
            over::<V, _, STACKED>(srcs, len, &mut Put::<P, Q, false> { p, q })
        } else {
            over::<V, _, N>(srcs, len, &mut Put::<P, Q, false> { p, q })
        }
    }
}

/// [`crate::parity::kernel::Kernel::xor`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(super) unsafe fn xor<V: Vector, const LINE: usize>(srcs: &[&[u8]], dst: &mut [u8], place: Place) {
    let len = common_len(srcs, &[dst.len()]);
    // SAFETY: the instruction set as the caller promised, the lengths as just checked.
    let tail = unsafe { put::<V, true, false, 8, 8, LINE>(srcs, len, dst, &mut [], place) };
    scalar::xor_from(srcs, dst, tail);
}

/// [`crate::parity::kernel::Kernel::pq`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(super) unsafe fn pq<V: Vector, const STACKED: usize, const LINE: usize>(
    srcs: &[&[u8]],
    p: &mut [u8],
    q: &mut [u8],
    place: Place,
) {
    let len = common_len(srcs, &[p.len(), q.len()]);
    // SAFETY: the instruction set as the caller promised, the lengths as just checked.
    let tail = unsafe { put::<V, true, true, 4, STACKED, LINE>(srcs, len, p, q, place) };
    scalar::pq_from(srcs, p, q, tail);
}

/// [`crate::parity::kernel::Kernel::q`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(super) unsafe fn q<V: Vector, const STACKED: usize, const LINE: usize>(
    srcs: &[&[u8]],
    q: &mut [u8],
    place: Place,
) {
    let len = common_len(srcs, &[q.len()]);
    // SAFETY: the instruction set as the caller promised, the lengths as just checked.
    let tail = unsafe { put::<V, false, true, 4, STACKED, LINE>(srcs, len, &mut [], q, place) };
    scalar::q_from(srcs, q, tail);
}

/// Stores P, Q and a copy of every source.
struct Copy<'a, 'c, const STREAM: bool> {
    copies: &'a mut [&'c mut [u8]],
    p: &'a mut [u8],
    q: &'a mut [u8],
}

impl<V: Vector, const STREAM: bool> Pass<V> for Copy<'_, '_, STREAM> {
    #[inline(always)]
    unsafe fn seen(&mut self, index: usize, at: usize, register: V) {
        // SAFETY: as the caller promised; STREAM is only asked for if the columns are aligned (`copy_pq`).
        unsafe { store::<V, 1, STREAM>(self.copies[index], at, [register]) }
    }

    #[inline(always)]
    unsafe fn done<const N: usize>(&mut self, at: usize, p: [V; N], q: [V; N]) {
        // SAFETY: as above.
        unsafe {
            store::<V, N, STREAM>(self.p, at, p);
            store::<V, N, STREAM>(self.q, at, q);
        }
    }
}

/// [`crate::parity::kernel::Kernel::copy_pq`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(super) unsafe fn copy_pq<V: Vector, const LINE: usize>(
    srcs: &[&[u8]],
    copies: &mut [&mut [u8]],
    p: &mut [u8],
    q: &mut [u8],
    place: Place,
) {
    let len = scalar::copy_len(srcs, copies, p, q);
    let is_aligned =
        is_aligned::<V>(p) && is_aligned::<V>(q) && copies.iter().all(|copy| is_aligned::<V>(copy));
    // SAFETY: the instruction set as the caller promised, the lengths as just checked; streamed stores are aligned.
    let tail = unsafe {
        if place == Place::Memory && is_aligned {
            let tail = over::<V, _, LINE>(srcs, len, &mut Copy::<true> { copies, p, q });
            V::fence();
            tail
        } else {
            over::<V, _, 4>(srcs, len, &mut Copy::<false> { copies, p, q })
        }
    };
    scalar::copy_from(srcs, copies, tail);
    scalar::pq_from(srcs, p, q, tail);
}

/// Collects the bits in which stored parity differs.
struct Compare<'a, V, const P: bool, const Q: bool> {
    p: &'a [u8],
    q: &'a [u8],
    p_bits: V,
    q_bits: V,
}

impl<V: Vector, const P: bool, const Q: bool> Pass<V> for Compare<'_, V, P, Q> {
    #[inline(always)]
    unsafe fn done<const N: usize>(&mut self, at: usize, p: [V; N], q: [V; N]) {
        // SAFETY: as the caller promised.
        unsafe {
            if P {
                let stored: [V; N] = load(self.p, at);
                for i in 0..N {
                    self.p_bits = self.p_bits.or(stored[i].add(p[i]));
                }
            }
            if Q {
                let stored: [V; N] = load(self.q, at);
                for i in 0..N {
                    self.q_bits = self.q_bits.or(stored[i].add(q[i]));
                }
            }
        }
    }
}

/// [`crate::parity::kernel::Kernel::verify`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(super) unsafe fn verify<V: Vector>(srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Differs {
    let len = scalar::verify_len(srcs, p, q);
    // SAFETY: the instruction set as the caller promised, the lengths as just checked.
    let (tail, found) = unsafe {
        match (p, q) {
            (Some(p), Some(q)) => compare::<V, true, true>(srcs, len, p, q),
            (Some(p), None) => compare::<V, true, false>(srcs, len, p, &[]),
            (None, Some(q)) => compare::<V, false, true>(srcs, len, &[], q),
            (None, None) => return Differs::default(),
        }
    };
    let rest = scalar::verify_from(srcs, p, q, tail);
    Differs { p: found.p || rest.p, q: found.q || rest.q }
}

/// Compares the parities that are wanted; the other slice is empty. Gives where the tail starts.
///
/// # Safety
/// The machine has V's instruction set, and the sources and the wanted columns are `len` bytes.
#[inline(always)]
unsafe fn compare<V: Vector, const P: bool, const Q: bool>(
    srcs: &[&[u8]],
    len: usize,
    p: &[u8],
    q: &[u8],
) -> (usize, Differs) {
    // SAFETY: as the caller promised.
    unsafe {
        let mut pass = Compare::<V, P, Q> { p, q, p_bits: V::zero(), q_bits: V::zero() };
        let tail = over::<V, _, 4>(srcs, len, &mut pass);
        (tail, Differs { p: !pass.p_bits.is_zero(), q: !pass.q_bits.is_zero() })
    }
}
