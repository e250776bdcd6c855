//! Every kernel and operation of this machine against the definition of P and Q, computed with the `galois_8` arithmetic of an
//! independent library: every number of data drives, lengths from 1 byte to 1 MiB, every alignment, every pair of lost blocks.
//! All columns lie between pages that cannot be touched, or canaries.
//!
//! CI samples where the product explodes; `cargo test -p warpraid-raid-core --release --test parity_kernels --
//! --include-ignored` runs the whole of it.

#![allow(unsafe_code)]

mod guarded;

use guarded::{Edge, Guarded};
use raid_core::parity::gf;
use raid_core::parity::kernel::{Differs, Kernel, LostTwo, NAMES, Place, available};
use reed_solomon_erasure::galois_8;

const PLACES: [Place; 2] = [Place::Cache, Place::Memory];
const EDGES: [Edge; 2] = [Edge::Start, Edge::End];

fn widths() -> impl Iterator<Item = usize> {
    (1..=24).chain([64, 253])
}

/// Says which kernels are not tested here, in the output of the test.
fn kernels() -> impl Iterator<Item = &'static dyn Kernel> {
    let have: Vec<&str> = available().into_iter().map(Kernel::name).collect();
    for name in NAMES.into_iter().filter(|name| !have.contains(name)) {
        eprintln!("SKIPPED: kernel {name}: this processor cannot run it");
    }
    available().into_iter()
}

/// A stripe, its parity by definition, and what a change of one block makes of it.
struct Stripe {
    data: Vec<Vec<u8>>,
    p: Vec<u8>,
    q: Vec<u8>,
    changed: usize,
    new: Vec<u8>,
    new_p: Vec<u8>,
    new_q: Vec<u8>,
}

fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut state = u64::try_from(seed).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[5]
        })
        .collect()
}

fn definition(data: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let len = data[0].len();
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for (i, block) in data.iter().enumerate() {
        let weight = galois_8::exp(2, i);
        for ((p, q), byte) in p.iter_mut().zip(&mut q).zip(block) {
            *p = galois_8::add(*p, *byte);
            *q = galois_8::add(*q, galois_8::mul(weight, *byte));
        }
    }
    (p, q)
}

impl Stripe {
    fn new(k: usize, len: usize) -> Self {
        let data: Vec<Vec<u8>> = (0..k).map(|i| noise(1 + i * 131 + len, len)).collect();
        let (p, q) = definition(&data);
        let changed = (len * 7 + 3) % k;
        let new = noise(999_983 + len, len);
        let mut after = data.clone();
        after[changed].clone_from(&new);
        let (new_p, new_q) = definition(&after);
        Self { data, p, q, changed, new, new_p, new_q }
    }

    fn k(&self) -> usize {
        self.data.len()
    }
}

/// Guarded memory for all columns of a call.
struct Field {
    data: Vec<Guarded>,
    copies: Vec<Guarded>,
    /// P, Q, old and new data, and two outputs.
    rest: [Guarded; 6],
}

impl Field {
    fn new(k_max: usize, len_max: usize) -> Self {
        let many = || (0..k_max).map(|_| Guarded::new(len_max)).collect();
        Self { data: many(), copies: many(), rest: core::array::from_fn(|_| Guarded::new(len_max)) }
    }

    fn put(&mut self, stripe: &Stripe, edge: Edge) {
        for (column, bytes) in self.data.iter_mut().zip(&stripe.data) {
            column.put(bytes, edge);
        }
        let [p, q, old, new, ..] = &mut self.rest;
        p.put(&stripe.p, edge);
        q.put(&stripe.q, edge);
        old.put(&stripe.data[stripe.changed], edge);
        new.put(&stripe.new, edge);
    }
}

fn sources<'a>(columns: &'a [Guarded], k: usize, lost: &[usize]) -> Vec<&'a [u8]> {
    (0..k).filter(|i| !lost.contains(i)).map(|i| columns[i].bytes()).collect()
}

/// Everything but recoveries of one kernel, on columns at one edge.
fn check_sums(kernel: &dyn Kernel, stripe: &Stripe, field: &mut Field, edge: Edge) {
    let k = stripe.k();
    let blank = vec![0xcc; stripe.p.len()];
    let what = || format!("{} k {k} len {} {edge:?}", kernel.name(), stripe.p.len());
    field.put(stripe, edge);
    let Field { data, copies, rest: [p, q, old, new, out_p, out_q] } = field;
    let srcs = sources(data, k, &[]);
    for place in PLACES {
        out_p.put(&blank, edge);
        out_q.put(&blank, edge);
        kernel.pq(&srcs, out_p.column(), out_q.column(), place);
        out_p.expect(&stripe.p, what);
        out_q.expect(&stripe.q, what);
        out_p.put(&blank, edge);
        out_q.put(&blank, edge);
        kernel.xor(&srcs, out_p.column(), place);
        kernel.q(&srcs, out_q.column(), place);
        out_p.expect(&stripe.p, what);
        out_q.expect(&stripe.q, what);
        out_p.put(&blank, edge);
        out_q.put(&blank, edge);
        copies[..k].iter_mut().for_each(|copy| copy.put(&blank, edge));
        let mut places: Vec<&mut [u8]> = copies[..k].iter_mut().map(Guarded::column).collect();
        kernel.copy_pq(&srcs, &mut places, out_p.column(), out_q.column(), place);
        out_p.expect(&stripe.p, what);
        out_q.expect(&stripe.q, what);
        for (copy, block) in copies[..k].iter_mut().zip(&stripe.data) {
            copy.expect(block, what);
        }
    }
    let factor = gf::power(stripe.changed);
    for (with_p, with_q) in [(true, true), (true, false), (false, true)] {
        out_p.put(&stripe.p, edge);
        out_q.put(&stripe.q, edge);
        let outs = (with_p.then(|| out_p.column()), with_q.then(|| out_q.column()));
        kernel.delta(factor, old.bytes(), new.bytes(), outs.0, outs.1);
        out_p.expect(if with_p { &stripe.new_p } else { &stripe.p }, what);
        out_q.expect(if with_q { &stripe.new_q } else { &stripe.q }, what);
    }
    for (with_p, with_q) in [(true, true), (true, false), (false, true)] {
        let differs = |p: &Guarded, q: &Guarded| {
            kernel.verify(&srcs, with_p.then(|| p.bytes()), with_q.then(|| q.bytes()))
        };
        assert_eq!(differs(p, q), Differs::default(), "{}", what());
        // A single wrong bit, at a place that depends on the length.
        let at = (stripe.p.len() - 1).min(stripe.p.len() * 5 / 7);
        out_p.put(&stripe.p, edge);
        out_q.put(&stripe.q, edge);
        out_p.column()[at] ^= 0x40;
        assert_eq!(differs(out_p, q), Differs { p: with_p, q: false }, "{}", what());
        out_q.column()[at] ^= 0x01;
        assert_eq!(differs(p, out_q), Differs { p: false, q: with_q }, "{}", what());
    }
}

/// One lost block by Q.
fn check_by_q(kernel: &dyn Kernel, stripe: &Stripe, field: &mut Field, x: usize, edge: Edge) {
    let blank = vec![0xcc; stripe.p.len()];
    let what =
        || format!("{} block {x} of {} by Q, len {} {edge:?}", kernel.name(), stripe.k(), stripe.p.len());
    let Field { data, rest: [_, q, _, _, out, _], .. } = field;
    let known = sources(data, stripe.k(), &[x]);
    for place in PLACES {
        out.put(&blank, edge);
        kernel.recover_by_q(&known, x, q.bytes(), out.column(), place);
        out.expect(&stripe.data[x], what);
    }
}

/// Two lost blocks; of the pair in the other order only the first is wanted.
fn check_two(kernel: &dyn Kernel, stripe: &Stripe, field: &mut Field, (x, y): (usize, usize), edge: Edge) {
    let blank = vec![0xcc; stripe.p.len()];
    let what =
        || format!("{} blocks {x} and {y} of {}, len {} {edge:?}", kernel.name(), stripe.k(), stripe.p.len());
    let Field { data, rest: [p, q, _, _, dx, dy], .. } = field;
    let known = sources(data, stripe.k(), &[x, y]);
    for place in PLACES {
        dx.put(&blank, edge);
        dy.put(&blank, edge);
        let lost = LostTwo { x, dx: dx.column(), y, dy: Some(dy.column()) };
        kernel.recover_two(&known, lost, p.bytes(), q.bytes(), place);
        dx.expect(&stripe.data[x], what);
        dy.expect(&stripe.data[y], what);
        dx.put(&blank, edge);
        kernel.recover_two(
            &known,
            LostTwo { x: y, dx: dx.column(), y: x, dy: None },
            p.bytes(),
            q.bytes(),
            place,
        );
        dx.expect(&stripe.data[y], what);
    }
}

fn pairs(k: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..k).flat_map(move |x| (x + 1..k).map(move |y| (x, y)))
}

/// All lost blocks and pairs of a stripe that `is_taken` takes.
fn check_recoveries(stripe: &Stripe, field: &mut Field, edge: Edge, is_taken: impl Fn(usize, usize) -> bool) {
    field.put(stripe, edge);
    for kernel in kernels() {
        for x in (0..stripe.k()).filter(|&x| is_taken(x, x)) {
            check_by_q(kernel, stripe, field, x, edge);
        }
        for (x, y) in pairs(stripe.k()).filter(|&(x, y)| is_taken(x, y)) {
            check_two(kernel, stripe, field, (x, y), edge);
        }
    }
}

#[test]
fn every_kernel_operation_and_width_matches_the_definition() {
    let mut field = Field::new(253, 1500);
    for k in widths() {
        for len in [1, 47, 64, 129, 255, 512, 1021] {
            let stripe = Stripe::new(k, len);
            for kernel in kernels() {
                for edge in EDGES {
                    check_sums(kernel, &stripe, &mut field, edge);
                }
            }
        }
    }
}

#[test]
fn every_lost_block_and_pair_is_recovered() {
    let mut field = Field::new(253, 400);
    for k in widths() {
        for (len, edge) in [(257 + k, Edge::End), (64, Edge::Start)] {
            let stripe = Stripe::new(k, len);
            // Of the wide ones the neighbours, the ends, and every 97th pair.
            let is_taken = |x, y| {
                k <= 24 || (x == 0 && y == k - 1) || ((x * k + y) % 97 == 0) || (y - x <= 1 && x % 16 == 0)
            };
            check_recoveries(&stripe, &mut field, edge, is_taken);
        }
    }
}

#[test]
#[ignore = "every pair of 253 takes minutes"]
fn every_lost_block_and_pair_of_the_widest_is_recovered() {
    let mut field = Field::new(253, 400);
    for k in [64, 253] {
        let stripe = Stripe::new(k, 193);
        check_recoveries(&stripe, &mut field, Edge::End, |_, _| true);
    }
}

#[test]
fn every_length_around_the_registers_and_long_ones() {
    let mut field = Field::new(13, 1 << 20);
    let long = [4095, 4096, 4097, 65_535, 65_536, 65_537, 262_144, (1 << 20) - 1, 1 << 20];
    // Five columns: a quad and one; thirteen: three quads and one.
    for (k, lens) in
        [(5, (1..=700).step_by(1).collect::<Vec<_>>()), (3, long.to_vec()), (13, vec![131_071, 1 << 20])]
    {
        for len in lens {
            let stripe = Stripe::new(k, len);
            for kernel in kernels() {
                // The byte loop is the definition itself, and slow.
                if len > 70_000 && kernel.name() == "byte" {
                    continue;
                }
                let edge = if len % 2 == 0 { Edge::Start } else { Edge::End };
                check_sums(kernel, &stripe, &mut field, edge);
                check_by_q(kernel, &stripe, &mut field, k / 2, edge);
                check_two(kernel, &stripe, &mut field, (0, k - 1), edge);
            }
        }
    }
}

#[test]
fn every_alignment() {
    let mut field = Field::new(6, 2048);
    for shift in 0..64 {
        let edge = Edge::Shifted(shift);
        for len in [600, 1024] {
            let stripe = Stripe::new(6, len);
            for kernel in kernels() {
                check_sums(kernel, &stripe, &mut field, edge);
                check_by_q(kernel, &stripe, &mut field, 2, edge);
                check_two(kernel, &stripe, &mut field, (1, 4), edge);
            }
        }
    }
}

#[test]
#[ignore = "the whole product of widths and lengths takes minutes"]
fn the_whole_product() {
    let mut field = Field::new(253, 1 << 20);
    for k in widths() {
        for len in (1..=200).chain([511, 513, 4095, 4096, 4097, 16_383, 65_536, 65_539, 262_143, 1 << 20]) {
            if k * len > 32 << 20 {
                continue;
            }
            let stripe = Stripe::new(k, len);
            for kernel in kernels().filter(|kernel| kernel.name() != "byte" || k * len <= 1 << 20) {
                for edge in EDGES {
                    check_sums(kernel, &stripe, &mut field, edge);
                }
                check_by_q(kernel, &stripe, &mut field, len % k, Edge::End);
                if k > 1 {
                    check_two(kernel, &stripe, &mut field, (0, 1 + len % (k - 1)), Edge::End);
                }
            }
        }
    }
}
