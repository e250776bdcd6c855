//! Every kernel against the definition, P = sum of d_i and Q = sum of g^i d_i, computed with the `galois_8` arithmetic
//! of an independent library.

use proptest::prelude::*;
use reed_solomon_erasure::galois_8;

use super::gf;
use super::kernel::{Differs, Kernel, LostTwo, NAMES, Place, available};
use super::{CpuParity, Picks};

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

const PLACES: [Place; 2] = [Place::Cache, Place::Memory];

fn check_pq(kernel: &dyn Kernel, srcs: &[&[u8]], shift: usize) {
    let (want_p, want_q) = by_definition(srcs);
    let blank = vec![0xcc; want_p.len()];
    let what = format!("{} k {} len {} shift {shift}", kernel.name(), srcs.len(), blank.len());
    for place in PLACES {
        let (mut p, mut q) = (Guarded::new(&blank, shift), Guarded::new(&blank, shift + 1));
        kernel.pq(srcs, p.get(), q.get(), place);
        p.expect(&want_p, &what);
        q.expect(&want_q, &what);
        let (mut p, mut q) = (Guarded::new(&blank, shift), Guarded::new(&blank, shift + 1));
        kernel.xor(srcs, p.get(), place);
        kernel.q(srcs, q.get(), place);
        p.expect(&want_p, &what);
        q.expect(&want_q, &what);
        let mut copies: Vec<Guarded> = srcs.iter().map(|_| Guarded::new(&blank, shift + 2)).collect();
        let (mut p, mut q) = (Guarded::new(&blank, shift), Guarded::new(&blank, shift + 1));
        let mut places: Vec<&mut [u8]> = copies.iter_mut().map(Guarded::get).collect();
        kernel.copy_pq(srcs, &mut places, p.get(), q.get(), place);
        p.expect(&want_p, &what);
        q.expect(&want_q, &what);
        for (copy, src) in copies.iter().zip(srcs) {
            copy.expect(src, &what);
        }
    }
    check_verify(kernel, srcs, (&want_p, &want_q), &what);
}

fn check_verify(kernel: &dyn Kernel, srcs: &[&[u8]], (p, q): (&[u8], &[u8]), what: &str) {
    let right = Differs::default();
    for (p, q) in [(Some(p), Some(q)), (Some(p), None), (None, Some(q)), (None, None)] {
        assert_eq!(kernel.verify(srcs, p, q), right, "{what}");
    }
    // One wrong bit, at the first byte, in the middle, and at the last one.
    for at in [0, p.len() / 2, p.len() - 1] {
        let (mut bad_p, mut bad_q) = (p.to_vec(), q.to_vec());
        bad_p[at] ^= 0x10;
        bad_q[at] ^= 0x80;
        let (bad_p, bad_q) = (Some(&bad_p[..]), Some(&bad_q[..]));
        let (p, q) = (Some(p), Some(q));
        assert_eq!(kernel.verify(srcs, bad_p, q), Differs { p: true, q: false }, "{what} at {at}");
        assert_eq!(kernel.verify(srcs, p, bad_q), Differs { p: false, q: true }, "{what} at {at}");
        assert_eq!(kernel.verify(srcs, bad_p, bad_q), Differs { p: true, q: true }, "{what} at {at}");
        assert_eq!(kernel.verify(srcs, bad_p, None), Differs { p: true, q: false }, "{what} at {at}");
        assert_eq!(kernel.verify(srcs, None, bad_q), Differs { p: false, q: true }, "{what} at {at}");
    }
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

/// The blocks without those of these indices.
fn without<'a>(srcs: &[&'a [u8]], lost: &[usize]) -> Vec<&'a [u8]> {
    srcs.iter().enumerate().filter(|(i, _)| !lost.contains(i)).map(|(_, src)| *src).collect()
}

/// Block x from Q; if y is another, blocks x and y from P and Q, and x alone from both.
fn check_solve(kernel: &dyn Kernel, srcs: &[&[u8]], (x, y): (usize, usize), shift: usize) {
    let (p, q) = by_definition(srcs);
    let blank = vec![0xcc; p.len()];
    let what = format!("{} solve {x} {y} of {}, len {}", kernel.name(), srcs.len(), p.len());
    for place in PLACES {
        let mut block = Guarded::new(&blank, shift);
        kernel.recover_by_q(&without(srcs, &[x]), x, &q, block.get(), place);
        block.expect(srcs[x], &what);
        if x == y {
            continue;
        }
        let known = without(srcs, &[x, y]);
        let (mut dx, mut dy) = (Guarded::new(&blank, shift), Guarded::new(&blank, shift + 5));
        kernel.recover_two(&known, LostTwo { x, dx: dx.get(), y, dy: Some(dy.get()) }, &p, &q, place);
        dx.expect(srcs[x], &what);
        dy.expect(srcs[y], &what);
        let mut dx = Guarded::new(&blank, shift);
        kernel.recover_two(&known, LostTwo { x, dx: dx.get(), y, dy: None }, &p, &q, place);
        dx.expect(srcs[x], &what);
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
        kernel.pq(&srcs, &mut p, &mut q, Place::Cache);
        assert_eq!((p, q), ([0x04], [0x29]), "{}", kernel.name());
    }
}

fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

#[test]
fn columns_of_different_lengths_are_refused() {
    const PLACE: Place = Place::Cache;
    for kernel in available() {
        let unequal = || {
            let (mut p, mut q) = ([0; 64], [0; 64]);
            kernel.pq(&[&[1; 64], &[1; 63]], &mut p, &mut q, PLACE);
        };
        let refused: [(&str, &dyn Fn()); 12] = [
            ("pq", &unequal),
            ("xor", &|| kernel.xor(&[&[1; 64]], &mut [0; 65], PLACE)),
            ("q", &|| kernel.q(&[&[1; 64]], &mut [0; 63], PLACE)),
            ("no data", &|| kernel.xor(&[], &mut [0; 64], PLACE)),
            ("too wide", &|| kernel.xor(&[&[1; 64][..]; 254], &mut [0; 64], PLACE)),
            ("delta", &|| kernel.delta(3, &[1; 64], &[2; 64], Some(&mut [0; 64]), Some(&mut [0; 96]))),
            ("copy", &|| {
                let (mut copy, mut p, mut q) = ([0; 32], [0; 64], [0; 64]);
                kernel.copy_pq(&[&[1; 64]], &mut [&mut copy], &mut p, &mut q, PLACE);
            }),
            ("fewer copies", &|| kernel.copy_pq(&[&[1; 64]], &mut [], &mut [0; 64], &mut [0; 64], PLACE)),
            ("by q", &|| kernel.recover_by_q(&[&[1; 64]], 0, &[0; 64], &mut [0; 32], PLACE)),
            ("by q, index", &|| kernel.recover_by_q(&[&[1; 64]], 2, &[0; 64], &mut [0; 64], PLACE)),
            ("two", &|| {
                let (mut dx, mut dy) = ([0; 64], [0; 32]);
                let lost = LostTwo { x: 0, dx: &mut dx, y: 1, dy: Some(&mut dy) };
                kernel.recover_two(&[], lost, &[1; 64], &[2; 64], PLACE);
            }),
            ("verify", &|| {
                kernel.verify(&[&[1; 64]], Some(&[1; 64]), Some(&[1; 63]));
            }),
        ];
        for (what, call) in refused {
            assert!(panics(call), "{} {what}", kernel.name());
        }
        let same_twice = || {
            let lost = LostTwo { x: 1, dx: &mut [0; 8], y: 1, dy: None };
            kernel.recover_two(&[], lost, &[1; 8], &[2; 8], PLACE);
        };
        assert!(panics(same_twice), "{} the same block twice", kernel.name());
    }
}

#[test]
fn kernels_this_processor_has_not_are_said() {
    let have: Vec<&str> = available().into_iter().map(Kernel::name).collect();
    assert_eq!(
        have,
        NAMES.into_iter().filter(|name| have.contains(name)).collect::<Vec<_>>(),
        "all are listed"
    );
    for name in NAMES.into_iter().filter(|name| !have.contains(name)) {
        println!("SKIPPED: kernel {name} is not tested, this processor cannot run it");
    }
}

#[test]
fn the_fastest_of_each_operation_is_picked() {
    use core::cell::Cell;
    // A clock that counts trials: two readings each, every kernel but the byte loop in turn, seven times an operation.
    let names: Vec<&str> = available().into_iter().skip(1).map(Kernel::name).collect();
    let (readings, now_ns) = (Cell::new(0), Cell::new(0));
    let picks = Picks::measured(|| {
        let (trial, is_end) = (readings.get() / 2, readings.get() % 2 == 1);
        readings.set(readings.get() + 1);
        let (operation, candidate) = (trial / (7 * names.len()), trial % names.len());
        // Operation i is done fastest by kernel i, and the first trials of all are disturbed.
        let took_ns = if candidate == operation % names.len() { 1000 } else { 1040 };
        let noise_ns = if trial / names.len() % 7 < 3 { 5000 } else { 0 };
        now_ns.set(now_ns.get() + if is_end { took_ns + noise_ns } else { 1 });
        now_ns.get()
    });
    for (i, (operation, name)) in picks.names().enumerate() {
        assert_eq!(name, names[i % names.len()], "{operation:?}");
        assert_eq!(picks.kernel(operation).name(), name);
    }
    let said = CpuParity::with_picks(picks).kernel_name();
    if names.len() > 1 {
        assert!(said.contains(&format!("xor {}, pq {},", names[0], names[1])), "{said}");
    }
    let widest = *names.last().unwrap();
    assert_eq!(Picks::measured(|| 7).to_string(), widest, "the widest of equals, said once");
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
