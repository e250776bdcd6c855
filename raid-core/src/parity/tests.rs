//! Every kernel against the definition, P = sum of d_i and Q = sum of g^i d_i, computed with the `galois_8` arithmetic
//! of an independent library.

use proptest::prelude::*;
use reed_solomon_erasure::galois_8;

use super::gf;
use super::kernel::{Kernel, available};

/// Columns from a seed: xorshift, so that a failing case is small to print.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

fn columns(seed: u64, k: usize, len: usize) -> Vec<Vec<u8>> {
    (0..k).map(|i| bytes(seed.wrapping_add(u64::try_from(i).unwrap() * 7919), len)).collect()
}

/// P and Q by definition.
fn by_definition(columns: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let len = columns[0].len();
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for (i, column) in columns.iter().enumerate() {
        let weight = galois_8::exp(2, i);
        for at in 0..len {
            p[at] = galois_8::add(p[at], column[at]);
            q[at] = galois_8::add(q[at], galois_8::mul(weight, column[at]));
        }
    }
    (p, q)
}

/// An output at an odd place in a larger buffer, whose surroundings must survive.
struct Guarded {
    buf: Vec<u8>,
    shift: usize,
    len: usize,
}

impl Guarded {
    fn new(init: &[u8], shift: usize) -> Self {
        let mut buf = vec![0xee; shift + init.len() + 64];
        buf[shift..shift + init.len()].copy_from_slice(init);
        Self { buf, shift, len: init.len() }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.buf[self.shift..self.shift + self.len]
    }

    #[track_caller]
    fn expect(&self, want: &[u8], what: &str) {
        assert_eq!(&self.buf[self.shift..self.shift + self.len], want, "{what}");
        let outside = self.buf[..self.shift].iter().chain(&self.buf[self.shift + self.len..]);
        assert!(outside.copied().all(|byte| byte == 0xee), "{what}: wrote outside its output");
    }
}

fn check_pq(kernel: &dyn Kernel, srcs: &[&[u8]], shift: usize) {
    let (want_p, want_q) = by_definition(srcs);
    let blank = vec![0xcc; want_p.len()];
    let what = format!("{} k {} len {} shift {shift}", kernel.name(), srcs.len(), blank.len());
    let (mut p, mut q) = (Guarded::new(&blank, shift), Guarded::new(&blank, shift + 1));
    kernel.pq(srcs, p.get(), q.get());
    p.expect(&want_p, &what);
    q.expect(&want_q, &what);
    let (mut p, mut q) = (Guarded::new(&blank, shift), Guarded::new(&blank, shift + 1));
    kernel.xor(srcs, p.get());
    kernel.q(srcs, q.get());
    p.expect(&want_p, &what);
    q.expect(&want_q, &what);
}

fn check_delta(kernel: &dyn Kernel, srcs: &[&[u8]], index: usize, new: &[u8], shift: usize) {
    let (p0, q0) = by_definition(srcs);
    let mut changed = srcs.to_vec();
    changed[index] = new;
    let (p1, q1) = by_definition(&changed);
    let what = format!("{} delta of {index}, len {}", kernel.name(), new.len());
    for (with_p, with_q) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut p, mut q) = (Guarded::new(&p0, shift), Guarded::new(&q0, shift + 3));
        let (p_out, q_out) = (with_p.then(|| p.get()), with_q.then(|| q.get()));
        kernel.delta(gf::power(index), srcs[index], new, p_out, q_out);
        p.expect(if with_p { &p1 } else { &p0 }, &what);
        q.expect(if with_q { &q1 } else { &q0 }, &what);
    }
}

fn check_solve(kernel: &dyn Kernel, srcs: &[&[u8]], (x, y): (usize, usize), shift: usize) {
    let (p, q) = by_definition(srcs);
    let zero = vec![0; p.len()];
    let what = format!("{} solve {x} {y} of {}, len {}", kernel.name(), srcs.len(), p.len());
    let mut left = srcs.to_vec();
    left[x] = &zero;
    let (_, left_q) = by_definition(&left);
    let mut block = Guarded::new(&left_q, shift);
    kernel.solve_one(gf::inverse(gf::power(x)), &q, block.get());
    block.expect(srcs[x], &what);
    if x < y {
        left[y] = &zero;
        let (left_p, left_q) = by_definition(&left);
        let (mut dx, mut dy) = (Guarded::new(&left_p, shift), Guarded::new(&left_q, shift + 5));
        kernel.solve_two(gf::two_data_constants(x, y), &p, &q, dx.get(), dy.get());
        dx.expect(srcs[x], &what);
        dy.expect(srcs[y], &what);
    }
}

/// Lengths around every block size of the kernels.
const LENGTHS: [usize; 22] =
    [1, 2, 7, 8, 9, 15, 31, 32, 33, 63, 64, 65, 95, 127, 128, 129, 159, 255, 256, 257, 300, 511];

#[test]
fn every_width_and_length_matches_the_definition() {
    let widths = (1..=24).chain([64, 253]);
    for k in widths {
        for len in LENGTHS {
            let owned = columns(u64::try_from(k * 1000 + len).unwrap(), k, len);
            let srcs: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
            for kernel in available() {
                check_pq(kernel, &srcs, len % 5);
            }
        }
    }
}

#[test]
fn every_pair_of_lost_data_is_solved() {
    for k in [1, 2, 3, 5, 8, 24] {
        let owned = columns(5, k, 133);
        let srcs: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
        for x in 0..k {
            for y in 0..k {
                for kernel in available() {
                    check_solve(kernel, &srcs, (x, y), 1);
                }
            }
        }
    }
}

#[test]
fn every_factor_changes_q_right() {
    let owned = columns(17, 253, 40);
    let srcs: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
    let new: Vec<u8> = (0..40).map(|i| i * 6 + 1).collect();
    for kernel in available() {
        for index in (0..253).step_by(4).chain([252]) {
            check_delta(kernel, &srcs, index, &new, 2);
        }
    }
}

#[test]
fn the_known_answer_of_md() {
    // k = 4 over bytes 1, 2, 3, 4: P = 1^2^3^4, Q = 1 + 2*2 + 4*3 + 8*4 = 0x29 with g = 2 and no carry.
    let srcs: [&[u8]; 4] = [&[1], &[2], &[3], &[4]];
    for kernel in available() {
        let (mut p, mut q) = ([0], [0]);
        kernel.pq(&srcs, &mut p, &mut q);
        assert_eq!((p, q), ([0x04], [0x29]), "{}", kernel.name());
    }
}

fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

#[test]
fn columns_of_different_lengths_are_refused() {
    for kernel in available() {
        let unequal = || {
            let (mut p, mut q) = ([0; 64], [0; 64]);
            kernel.pq(&[&[1; 64], &[1; 63]], &mut p, &mut q);
        };
        assert!(panics(unequal), "{}", kernel.name());
        let short_output = || kernel.xor(&[&[1; 64]], &mut [0; 65]);
        assert!(panics(short_output), "{}", kernel.name());
        let short_delta = || kernel.delta(3, &[1; 64], &[2; 64], Some(&mut [0; 64]), Some(&mut [0; 96]));
        assert!(panics(short_delta), "{}", kernel.name());
        let short_solve = || kernel.solve_two((1, 2), &[1; 64], &[2; 64], &mut [0; 64], &mut [0; 32]);
        assert!(panics(short_solve), "{}", kernel.name());
    }
}

fn width() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1_usize..=24, 1 => Just(64), 1 => Just(253)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn kernels_match_the_definition(
        k in width(), len in 1_usize..1500, seed: u64, shift in 0_usize..64, skew in 0_usize..40,
        picks: (prop::sample::Index, prop::sample::Index),
    ) {
        let owned = columns(seed, k, len + k * skew % 64);
        // Every column starts at another alignment.
        let srcs: Vec<&[u8]> = owned.iter().enumerate().map(|(i, column)| {
            let start = (i * skew) % (column.len() - len + 1);
            &column[start..start + len]
        }).collect();
        let new = bytes(seed ^ 0x55, len);
        let (x, y) = (picks.0.index(k), picks.1.index(k));
        for kernel in available() {
            check_pq(kernel, &srcs, shift);
            check_delta(kernel, &srcs, x, &new, shift);
            check_solve(kernel, &srcs, (x, y), shift);
        }
    }
}
