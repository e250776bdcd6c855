//! The change of one block, applied to parity in place. Always through the caches: every column is read before it is
//! written, and a streamed store would throw out of the cache what was just loaded.

#![allow(unsafe_code)]

use super::vector::{Vector, load, store};
use crate::parity::scalar;

/// Applies the change of the blocks from `at` to the parities that are wanted.
///
/// # Safety
/// The machine has V's instruction set, and `at + N * V::BYTES` bytes of every wanted column are there.
#[inline(always)]
unsafe fn block<V: Vector, const N: usize, const P: bool, const Q: bool>(
    factor: V::Factor,
    at: usize,
    (old, new): (&[u8], &[u8]),
    (p, q): (&mut [u8], &mut [u8]),
) {
    // SAFETY: as the caller promised.
    unsafe {
        let mut change: [V; N] = load(old, at);
        let new: [V; N] = load(new, at);
        for i in 0..N {
            change[i] = change[i].add(new[i]);
        }
        if P {
            let mut sum: [V; N] = load(p, at);
            for i in 0..N {
                sum[i] = sum[i].add(change[i]);
            }
            store::<V, N, false>(p, at, sum);
        }
        if Q {
            let mut sum: [V; N] = load(q, at);
            for i in 0..N {
                sum[i] = sum[i].add(change[i].times(factor));
            }
            store::<V, N, false>(q, at, sum);
        }
    }
}

/// Applies the change to the parities that are wanted; the other slice is empty. Gives where the tail starts.
///
/// # Safety
/// The machine has V's instruction set, and all wanted columns are as long as `old`.
#[inline(always)]
unsafe fn apply<V: Vector, const P: bool, const Q: bool>(
    factor: u8,
    old: &[u8],
    new: &[u8],
    p: &mut [u8],
    q: &mut [u8],
) -> usize {
    let mut at = 0;
    // SAFETY: as the caller promised; the conditions of the loops keep the blocks inside the columns.
    unsafe {
        let factor = V::factor(factor);
        while at + 4 * V::BYTES <= old.len() {
            block::<V, 4, P, Q>(factor, at, (old, new), (p, q));
            at += 4 * V::BYTES;
        }
        while at + V::BYTES <= old.len() {
            block::<V, 1, P, Q>(factor, at, (old, new), (p, q));
            at += V::BYTES;
        }
    }
    at
}

/// [`crate::parity::kernel::Kernel::delta`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(super) unsafe fn delta<V: Vector>(
    factor: u8,
    old: &[u8],
    new: &[u8],
    p: Option<&mut [u8]>,
    q: Option<&mut [u8]>,
) {
    scalar::delta_len(old, new, p.as_deref(), q.as_deref());
    // SAFETY: the instruction set as the caller promised, the lengths as just checked.
    unsafe {
        match (p, q) {
            (Some(p), Some(q)) => {
                let tail = apply::<V, true, true>(factor, old, new, p, q);
                scalar::delta_p_from(old, new, p, tail);
                scalar::delta_q_from(factor, old, new, q, tail);
            }
            (Some(p), None) => {
                let tail = apply::<V, true, false>(factor, old, new, p, &mut []);
                scalar::delta_p_from(old, new, p, tail);
            }
            (None, Some(q)) => {
                let tail = apply::<V, false, true>(factor, old, new, &mut [], q);
                scalar::delta_q_from(factor, old, new, q, tail);
            }
            (None, None) => {}
        }
    }
}
