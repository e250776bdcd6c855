//! What a device has to compute right before it is used, at start and after every fault: each operation, over few and many
//! columns, short, odd and long ones, compared with the scalar twin byte for byte.

use raid_core::parity::gf;
use raid_core::units::{u64_of, usize_of, usize_of_u32};
use smallvec::SmallVec;

use crate::descriptor::{Batch, Op, Plan, StripeJob, Target};
use crate::device::{Device, DeviceError};
use crate::twin;

/// Columns and bytes of each.
const SHAPES: [(usize, u32); 12] = [
    (1, 1),
    (1, 4096),
    (2, 17),
    (3, 512),
    (4, 8192),
    (8, 1024),
    (8, 15),
    (16, 256),
    (22, 512),
    (22, 333),
    (64, 64),
    (253, 32),
];
/// Room for the columns of the largest shape.
const MEMORY_BYTES: usize = 64 << 10;
const PAGE: usize = 4096;

/// Numbers that look random and are the same at every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize_of(self.next() % u64_of(n))
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next().to_le_bytes()[3];
        }
    }
}

/// How many of the blocks and pairs that can be lost are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Some of them, spread over the columns.
    Some,
    /// All, up to 24 columns; of wider stripes, some.
    EveryPair,
}

/// Tests a device that nothing else uses, on its first stream.
///
/// # Errors
/// What it could not do or computed wrong.
pub fn run(device: &dyn Device) -> Result<(), DeviceError> {
    in_memory(device, MEMORY_BYTES, |memory| {
        let mut noise = Noise(0x5eed_1234_abcd_0001);
        SHAPES.iter().try_for_each(|&(columns, len)| {
            // Every other shape at an odd address: nothing says that columns are aligned.
            let skew = if len % 2 == 0 { 0 } else { 1 };
            shape(device, memory, (columns, len, skew), Depth::Some, &mut noise)
        })
    })
}

/// Tests one shape: so many columns of `len` bytes that begin `skew` bytes beyond a multiple of 16.
///
/// # Errors
/// What the device could not do or computed wrong.
pub fn shape_of(
    device: &dyn Device,
    columns: usize,
    len: u32,
    skew: usize,
    depth: Depth,
) -> Result<(), DeviceError> {
    let bytes = (columns + 2) * usize_of_u32(len).next_multiple_of(16) + skew;
    in_memory(device, bytes.next_multiple_of(PAGE), |memory| {
        let mut noise = Noise(0x5eed_0000 + u64_of(columns * 1000 + skew) + u64::from(len));
        shape(device, memory, (columns, len, skew), depth, &mut noise)
    })
}

/// Runs `test` with memory that the device may read.
fn in_memory(
    device: &dyn Device,
    bytes: usize,
    test: impl FnOnce(&mut [u8]) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let mut memory = vec![0_u8; bytes + PAGE];
    let skip = memory.as_ptr().align_offset(PAGE);
    let memory = &mut memory[skip..skip + bytes];
    let start = memory.as_ptr().expose_provenance();
    device.register(start, bytes)?;
    let tested = test(memory);
    device.unregister(start)?;
    tested
}

/// The columns of one shape in memory: data, P, Q.
struct Stripe<'m> {
    memory: &'m mut [u8],
    columns: usize,
    len: usize,
    pitch: usize,
    skew: usize,
}

impl Stripe<'_> {
    fn at(&self, column: usize) -> core::ops::Range<usize> {
        let start = self.skew + column * self.pitch;
        start..start + self.len
    }

    fn address(&self, column: usize) -> u64 {
        u64_of(self.memory[self.at(column)].as_ptr().expose_provenance())
    }

    /// The bytes of all data columns at `at`, those of `lost` as 0.
    fn bytes(&self, at: usize, lost: &[usize]) -> SmallVec<[u8; 32]> {
        let byte = |column| if lost.contains(&column) { 0 } else { self.memory[self.at(column)][at] };
        (0..self.columns).map(byte).collect()
    }

    fn parity(&self, which: usize, at: usize) -> u8 {
        self.memory[self.at(self.columns + which)][at]
    }
}

fn shape(
    device: &dyn Device,
    memory: &mut [u8],
    (columns, len, skew): (usize, u32, usize),
    depth: Depth,
    noise: &mut Noise,
) -> Result<(), DeviceError> {
    let len_bytes = usize_of_u32(len);
    let pitch = len_bytes.next_multiple_of(16);
    let stripe = Stripe { memory, columns, len: len_bytes, pitch, skew };
    assert!(skew + (columns + 2) * pitch <= stripe.memory.len(), "a shape larger than the memory for it");
    let all = skew + (columns + 2) * pitch;
    noise.fill(&mut stripe.memory[..all]);
    for at in 0..len_bytes {
        let sums = twin::byte(Op::Encode, (0, 0), &stripe.bytes(at, &[]), 0, 0).out;
        for (which, sum) in sums.into_iter().enumerate() {
            let place = stripe.at(columns + which).start + at;
            stripe.memory[place] = sum;
        }
    }
    let mut cases = computations(&stripe, depth, noise);
    cases.push(check(&stripe, Op::Verify));
    cases.push(check(&stripe, Op::Locate));
    compare(device, &stripe, &cases)?;
    // One wrong byte in every column in turn (in wide stripes, in some), then two.
    let step = step(columns, depth);
    for wrong in (0..columns).step_by(step).chain([columns, columns + 1]) {
        let place = stripe.at(wrong).start + noise.below(len_bytes);
        stripe.memory[place] ^= 0x41;
        compare(device, &stripe, &[check(&stripe, Op::Verify), check(&stripe, Op::Locate)])?;
        stripe.memory[place] ^= 0x41;
    }
    let places = [0, columns].map(|column| stripe.at(column).start + len_bytes - 1);
    places.iter().for_each(|&place| stripe.memory[place] ^= 0x17);
    compare(device, &stripe, &[check(&stripe, Op::Verify), check(&stripe, Op::Locate)])
}

/// A plan, and which data columns it does without.
struct Case {
    plan: Plan,
    lost: SmallVec<[usize; 2]>,
}

fn check(stripe: &Stripe<'_>, op: Op) -> Case {
    let plan = plan(stripe, op, (0, 0), &[], [None, None]);
    Case { plan, lost: SmallVec::new() }
}

fn plan(
    stripe: &Stripe<'_>,
    op: Op,
    constants: (u8, u8),
    lost: &[usize],
    targets: [Option<Target>; 2],
) -> Plan {
    let address = |column| if lost.contains(&column) { 0 } else { stripe.address(column) };
    let data = (0..stripe.columns).map(address).collect();
    let (p, q) = (stripe.address(stripe.columns), stripe.address(stripe.columns + 1));
    Plan { op, constants, needs_q: true, len: u32::try_from(stripe.len).expect("short"), data, p, q, targets }
}

/// Every which column is tried.
fn step(columns: usize, depth: Depth) -> usize {
    if depth == Depth::EveryPair && columns <= 24 { 1 } else { (columns / 8).max(1) }
}

/// Every operation that has outputs.
fn computations(stripe: &Stripe<'_>, depth: Depth, noise: &mut Noise) -> Vec<Case> {
    let both = [Some(Target::P), Some(Target::Q)];
    let mut cases = Vec::new();
    let mut add = |plan: Plan, lost: &[usize]| cases.push(Case { plan, lost: SmallVec::from_slice(lost) });
    for targets in [both, [Some(Target::P), None], [None, Some(Target::Q)]] {
        let mut encode = plan(stripe, Op::Encode, (0, 0), &[], targets);
        encode.needs_q = targets[1].is_some();
        add(encode, &[]);
    }
    let step = step(stripe.columns, depth);
    for x in (0..stripe.columns).step_by(step) {
        let target = Some(Target::Data(x));
        let mut alone = plan(stripe, Op::ByP, (gf::power(x), 0), &[x], [target, None]);
        alone.needs_q = false;
        add(alone, &[x]);
        add(plan(stripe, Op::ByP, (gf::power(x), 0), &[x], [target, Some(Target::Q)]), &[x]);
        add(plan(stripe, Op::ByP, (gf::power(x), 0), &[x], [None, Some(Target::Q)]), &[x]);
        let factor = gf::inverse(gf::power(x));
        add(plan(stripe, Op::ByQ, (factor, 0), &[x], [target, Some(Target::P)]), &[x]);
        for y in others(stripe.columns, x, depth, noise) {
            let constants = gf::two_data_constants(x, y);
            add(plan(stripe, Op::Two, constants, &[x, y], [target, Some(Target::Data(y))]), &[x, y]);
            add(plan(stripe, Op::Two, constants, &[x, y], [None, Some(Target::Data(y))]), &[x, y]);
        }
    }
    let mut delta = plan(stripe, Op::Delta, (gf::power(noise.below(stripe.columns)), 0), &[], both);
    // Any two columns will do as the old and the new block.
    delta.data = SmallVec::from_iter([stripe.address(0), stripe.address(stripe.columns - 1)]);
    add(delta, &[]);
    cases
}

/// The columns beyond `x` that are lost together with it.
fn others(columns: usize, x: usize, depth: Depth, noise: &mut Noise) -> Vec<usize> {
    if depth == Depth::EveryPair && columns <= 24 {
        return (x + 1..columns).collect();
    }
    let left = columns - x - 1;
    if left == 0 { Vec::new() } else { vec![x + 1 + noise.below(left)] }
}

/// Runs the cases as one batch and compares outputs and results.
fn compare(device: &dyn Device, stripe: &Stripe<'_>, cases: &[Case]) -> Result<(), DeviceError> {
    let limits = device.limits();
    let mut rest = cases;
    while !rest.is_empty() {
        let mut batch = Batch::default();
        let mut places = Vec::new();
        while let Some(case) = rest.get(places.len()) {
            if !batch.fits(&case.plan, limits.jobs, limits.columns, limits.out_bytes) {
                break;
            }
            places.push(batch.push(&case.plan));
        }
        if places.is_empty() {
            return Err(DeviceError("its memory is too small for one stripe".into()));
        }
        device.start(0, &batch)?;
        device.wait(0)?;
        let outputs = device.outputs(0);
        for (number, (case, at)) in rest.iter().zip(&places).enumerate() {
            let stripe_job = &batch.jobs[number];
            let got = at.map(|at| at.map(|at| outputs.bytes(at, case.plan.len)));
            judge(stripe, case, stripe_job, got, outputs.result(number))?;
        }
        rest = &rest[places.len()..];
    }
    Ok(())
}

fn judge(
    stripe: &Stripe<'_>,
    case: &Case,
    job: &StripeJob,
    got: [Option<&[u8]>; 2],
    result: u32,
) -> Result<(), DeviceError> {
    let plan = &case.plan;
    let mut expected = 0;
    for at in 0..stripe.len {
        let data = match plan.op {
            Op::Delta => {
                SmallVec::from_iter([0, stripe.columns - 1].map(|c| stripe.memory[stripe.at(c)][at]))
            }
            _ => stripe.bytes(at, &case.lost),
        };
        let (p, q) = match plan.op {
            Op::Encode => (0, 0),
            _ => (stripe.parity(0, at), stripe.parity(1, at)),
        };
        let byte = twin::byte(plan.op, plan.constants, &data, p, q);
        let is_right = got.iter().zip(byte.out).all(|(got, right)| got.is_none_or(|got| got[at] == right));
        if !is_right {
            let (k, len) = (stripe.columns, stripe.len);
            return Err(DeviceError(format!(
                "wrong in its self-test: {:?} of {k} columns of {len}, byte {at}",
                plan.op
            )));
        }
        expected = twin::judge(plan.op, job, expected, byte.syndromes);
    }
    if result != expected {
        let (k, len) = (stripe.columns, stripe.len);
        let what = format!("{:?} of {k} columns of {len}: {result:#x} for {expected:#x}", plan.op);
        return Err(DeviceError(format!("wrong in its self-test: {what}")));
    }
    Ok(())
}
