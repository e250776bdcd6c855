//! Lost data blocks as weighted sums of all known columns: what each one counts is worked out once a call.

#![allow(unsafe_code)]

use smallvec::SmallVec;

use crate::parity::kernel::{LostTwo, Place, recovery_len};
use crate::parity::x86_64::vector::{Vector, is_aligned, load, store};
use crate::parity::{gf, scalar};

/// A column and what it counts in the result.
struct Term<'a> {
    column: &'a [u8],
    weight: u8,
}

type Terms<'a> = SmallVec<[Term<'a>; 32]>;

/// The known data blocks; the one with index i counts `constant` + `first` g^i.
fn terms<'a>(known: &[&'a [u8]], lost: &[usize], constant: u8, first: u8) -> Terms<'a> {
    let (mut index, mut power) = (0, first);
    let mut terms = Terms::new();
    for column in known {
        while lost.contains(&index) {
            index += 1;
            power = gf::double(power);
        }
        terms.push(Term { column, weight: constant ^ power });
        index += 1;
        power = gf::double(power);
    }
    terms
}

/// The plain and the weighted sum of a block of the terms.
///
/// # Safety
/// The machine has V's instruction set, and every column is `at + N * V::BYTES` bytes or longer.
#[inline(always)]
unsafe fn sums<V: Vector, const N: usize>(terms: &[Term<'_>], at: usize) -> ([V; N], [V; N]) {
    // SAFETY: as the caller promised.
    unsafe {
        let (mut plain, mut weighted) = ([V::zero(); N], [V::zero(); N]);
        let quads = terms.chunks_exact(4);
        for term in quads.remainder() {
            let factor = V::factor(term.weight);
            let data: [V; N] = load(term.column, at);
            for i in 0..N {
                plain[i] = plain[i].add(data[i]);
                weighted[i] = weighted[i].add(data[i].times(factor));
            }
        }
        for quad in quads {
            let by = [
                V::factor(quad[0].weight),
                V::factor(quad[1].weight),
                V::factor(quad[2].weight),
                V::factor(quad[3].weight),
            ];
            for i in 0..N {
                let at = at + i * V::BYTES;
                let ([a], [b]): ([V; 1], [V; 1]) = (load(quad[0].column, at), load(quad[1].column, at));
                let ([c], [d]): ([V; 1], [V; 1]) = (load(quad[2].column, at), load(quad[3].column, at));
                plain[i] = plain[i].add3(a, b).add3(c, d);
                weighted[i] = weighted[i].add3(a.times(by[0]), b.times(by[1]));
                weighted[i] = weighted[i].add3(c.times(by[2]), d.times(by[3]));
            }
        }
        (plain, weighted)
    }
}

/// The weighted sum of all terms into `dst`. Gives where the tail starts.
///
/// # Safety
/// The machine has V's instruction set, all columns are as long as `dst`; with STREAM `dst` is aligned.
#[inline(always)]
unsafe fn sum_into<V: Vector, const N: usize, const STREAM: bool>(
    terms: &[Term<'_>],
    dst: &mut [u8],
) -> usize {
    let mut at = 0;
    // SAFETY: as the caller promised; the conditions of the loops keep the blocks inside the columns.
    unsafe {
        while at + N * V::BYTES <= dst.len() {
            let (_, sum) = sums::<V, N>(terms, at);
            store::<V, N, STREAM>(dst, at, sum);
            at += N * V::BYTES;
        }
        while at + V::BYTES <= dst.len() {
            let (_, sum) = sums::<V, 1>(terms, at);
            store::<V, 1, STREAM>(dst, at, sum);
            at += V::BYTES;
        }
        if STREAM {
            V::fence();
        }
    }
    at
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
    recovery_len(known, &[x], &[q.len(), dst.len()]);
    // d_x = g^-x (Q + sum of g^i d_i).
    let weight = gf::inverse(gf::power(x));
    let mut all = terms(known, &[x], 0, weight);
    all.push(Term { column: q, weight });
    // SAFETY: the instruction set as the caller promised, the lengths as just checked.
    let tail = unsafe {
        if place == Place::Memory && is_aligned::<V>(dst) {
            sum_into::<V, LINE, true>(&all, dst)
        } else {
            sum_into::<V, 4, false>(&all, dst)
        }
    };
    scalar::by_q_from(known, x, q, dst, tail);
}

/// Both lost blocks. `terms` are the known data blocks and P with what they count in block x, as Q counts `q_weight`; block
/// y is then the plain sum of the terms and block x. Gives where the tail starts.
///
/// # Safety
/// The machine has V's instruction set, all columns are as long as `dx`; with STREAM `dx` and `dy` are aligned.
#[inline(always)]
unsafe fn both_into<V: Vector, const N: usize, const STREAM: bool>(
    terms: &[Term<'_>],
    (q, q_weight): (&[u8], u8),
    dx: &mut [u8],
    dy: &mut [u8],
) -> usize {
    let mut at = 0;
    // SAFETY: as the caller promised; the conditions of the loops keep the blocks inside the columns.
    unsafe {
        let by_q = V::factor(q_weight);
        while at + N * V::BYTES <= dx.len() {
            both::<V, N, STREAM>(terms, at, (q, by_q), dx, dy);
            at += N * V::BYTES;
        }
        while at + V::BYTES <= dx.len() {
            both::<V, 1, STREAM>(terms, at, (q, by_q), dx, dy);
            at += V::BYTES;
        }
        if STREAM {
            V::fence();
        }
    }
    at
}

/// One block of [`both_into`].
///
/// # Safety
/// The machine has V's instruction set, and every column is `at + N * V::BYTES` bytes or longer; with STREAM `dx` and `dy`
/// are aligned.
#[inline(always)]
unsafe fn both<V: Vector, const N: usize, const STREAM: bool>(
    terms: &[Term<'_>],
    at: usize,
    (q, by_q): (&[u8], V::Factor),
    dx: &mut [u8],
    dy: &mut [u8],
) {
    // SAFETY: as the caller promised.
    unsafe {
        let (mut y, mut x) = sums::<V, N>(terms, at);
        let q: [V; N] = load(q, at);
        for i in 0..N {
            x[i] = x[i].add(q[i].times(by_q));
            y[i] = y[i].add(x[i]);
        }
        store::<V, N, STREAM>(dx, at, x);
        store::<V, N, STREAM>(dy, at, y);
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
    scalar::two_len(known, &lost, p, q);
    // d_x = a dp + b dq, where dp = P + sum of d_i and dq = Q + sum of g^i d_i.
    let (a, b) = gf::two_data_constants(lost.x, lost.y);
    let mut all = terms(known, &[lost.x, lost.y], a, b);
    all.push(Term { column: p, weight: a });
    let is_aligned = is_aligned::<V>(lost.dx) && lost.dy.as_deref().is_none_or(is_aligned::<V>);
    let is_streamed = place == Place::Memory && is_aligned;
    // SAFETY: the instruction set as the caller promised, the lengths as just checked; streamed stores are aligned.
    let tail = unsafe {
        match (&mut lost.dy, is_streamed) {
            (Some(dy), true) => both_into::<V, LINE, true>(&all, (q, b), lost.dx, dy),
            (Some(dy), false) => both_into::<V, 4, false>(&all, (q, b), lost.dx, dy),
            (None, is_streamed) => {
                all.push(Term { column: q, weight: b });
                if is_streamed {
                    sum_into::<V, LINE, true>(&all, lost.dx)
                } else {
                    sum_into::<V, 4, false>(&all, lost.dx)
                }
            }
        }
    };
    scalar::two_from(known, lost, p, q, tail);
}
