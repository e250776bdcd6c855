//! Lost data blocks by Horner's rule over the known ones, with a doubling for every lost one, and two multiplications at the
//! end.

#![allow(unsafe_code)]

use crate::parity::kernel::{LostTwo, Place, recovery_len, runs};
use crate::parity::x86_64::vector::{Vector, is_aligned, load, store};
use crate::parity::{gf, scalar};

/// The sum and the weighted sum of a block of the known columns. `runs` are those between the lost ones.
///
/// # Safety
/// The machine has V's instruction set, and every column is `at + N * V::BYTES` bytes or longer.
#[inline(always)]
unsafe fn sums<V: Vector, const N: usize>(
    runs: &[&[&[u8]]],
    at: usize,
    powers: V::Powers,
) -> ([V; N], [V; N]) {
    // SAFETY: as the caller promised.
    unsafe {
        let (mut p, mut q) = ([V::zero(); N], [V::zero(); N]);
        for (i, run) in runs.iter().enumerate().rev() {
            for column in run.iter().rev() {
                let data: [V; N] = load(column, at);
                for n in 0..N {
                    p[n] = p[n].add(data[n]);
                    q[n] = q[n].double(powers).add(data[n]);
                }
            }
            if i > 0 {
                // The lost block below this run.
                for register in &mut q {
                    *register = register.double(powers);
                }
            }
        }
        (p, q)
    }
}

/// One block of [`by_q`].
///
/// # Safety
/// As [`sums`], for `q` and `dst` too; with STREAM `dst` is aligned.
#[inline(always)]
unsafe fn one<V: Vector, const N: usize, const STREAM: bool>(
    runs: &[&[&[u8]]],
    at: usize,
    (powers, factor): (V::Powers, V::Factor),
    q: &[u8],
    dst: &mut [u8],
) {
    // SAFETY: as the caller promised.
    unsafe {
        let (_, mut sum) = sums::<V, N>(runs, at, powers);
        let stored: [V; N] = load(q, at);
        for i in 0..N {
            sum[i] = sum[i].add(stored[i]).times(factor);
        }
        store::<V, N, STREAM>(dst, at, sum);
    }
}

/// [`crate::parity::kernel::Kernel::recover_by_q`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(in crate::parity::x86_64) unsafe fn by_q<V: Vector, const LINE: usize>(
    known: &[&[u8]],
    x: usize,
    q: &[u8],
    dst: &mut [u8],
    place: Place,
) {
    let len = recovery_len(known, &[x], &[q.len(), dst.len()]);
    let runs = runs(known, &[x]);
    let is_streamed = place == Place::Memory && is_aligned::<V>(dst);
    let mut at = 0;
    // SAFETY: the instruction set as the caller promised, the lengths as just checked; the conditions of the loops keep the
    // blocks inside the columns; streamed stores are aligned.
    unsafe {
        let constants = (V::powers(), V::factor(gf::inverse(gf::power(x))));
        while is_streamed && at + LINE * V::BYTES <= len {
            one::<V, LINE, true>(&runs, at, constants, q, dst);
            at += LINE * V::BYTES;
        }
        while at + 4 * V::BYTES <= len {
            one::<V, 4, false>(&runs, at, constants, q, dst);
            at += 4 * V::BYTES;
        }
        while at + V::BYTES <= len {
            one::<V, 1, false>(&runs, at, constants, q, dst);
            at += V::BYTES;
        }
        if is_streamed {
            V::fence();
        }
    }
    scalar::by_q_from(known, x, q, dst, at);
}

/// One block of [`two`].
///
/// # Safety
/// As [`sums`], for P, Q and the lost blocks too; with STREAM these are aligned.
#[inline(always)]
unsafe fn both<V: Vector, const N: usize, const STREAM: bool>(
    runs: &[&[&[u8]]],
    at: usize,
    (powers, a, b): (V::Powers, V::Factor, V::Factor),
    (p, q): (&[u8], &[u8]),
    lost: &mut LostTwo<'_>,
) {
    // SAFETY: as the caller promised.
    unsafe {
        let (mut dp, mut dq) = sums::<V, N>(runs, at, powers);
        let (p, q): ([V; N], [V; N]) = (load(p, at), load(q, at));
        for i in 0..N {
            dp[i] = dp[i].add(p[i]);
            dq[i] = dp[i].times(a).add(dq[i].add(q[i]).times(b));
        }
        store::<V, N, STREAM>(lost.dx, at, dq);
        if let Some(dy) = &mut lost.dy {
            for i in 0..N {
                dp[i] = dp[i].add(dq[i]);
            }
            store::<V, N, STREAM>(dy, at, dp);
        }
    }
}

/// [`crate::parity::kernel::Kernel::recover_two`].
///
/// # Safety
/// The machine has V's instruction set.
#[inline(always)]
pub(in crate::parity::x86_64) unsafe fn two<V: Vector, const LINE: usize>(
    known: &[&[u8]],
    mut lost: LostTwo<'_>,
    p: &[u8],
    q: &[u8],
    place: Place,
) {
    let len = scalar::two_len(known, &lost, p, q);
    let runs = runs(known, &[lost.x, lost.y]);
    let (a, b) = gf::two_data_constants(lost.x, lost.y);
    let is_aligned = is_aligned::<V>(lost.dx) && lost.dy.as_deref().is_none_or(is_aligned::<V>);
    let is_streamed = place == Place::Memory && is_aligned;
    let mut at = 0;
    // SAFETY: the instruction set as the caller promised, the lengths as just checked; the conditions of the loops keep the
    // blocks inside the columns; streamed stores are aligned.
    unsafe {
        let constants = (V::powers(), V::factor(a), V::factor(b));
        while is_streamed && at + LINE * V::BYTES <= len {
            both::<V, LINE, true>(&runs, at, constants, (p, q), &mut lost);
            at += LINE * V::BYTES;
        }
        while at + 2 * V::BYTES <= len {
            both::<V, 2, false>(&runs, at, constants, (p, q), &mut lost);
            at += 2 * V::BYTES;
        }
        while at + V::BYTES <= len {
            both::<V, 1, false>(&runs, at, constants, (p, q), &mut lost);
            at += V::BYTES;
        }
        if is_streamed {
            V::fence();
        }
    }
    scalar::two_from(known, lost, p, q, at);
}
