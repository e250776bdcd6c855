//! Parity per kernel: P + Q from data in cache, and a 4K read-modify-write update. Prints a table; `--out` records it.

use std::path::PathBuf;
use std::process::ExitCode;

use benches::clock::thread_cpu_ns;
use benches::floors::{Floors, Unit, show};
use benches::measure::{Bench, interleave};
use benches::record::{Case, Record};
use benches::stats::{SAMPLES_MIN, f64_of};
use clap::Parser;
use raid_core::parity::gf;
use raid_core::parity::kernel::{Kernel, available};
use raid_core::units::u64_of;

/// Measures the parity kernels of this machine.
#[derive(Parser)]
struct Args {
    /// Only the cases whose id contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Samples per case.
    #[arg(long, default_value_t = 9)]
    samples: usize,
    /// Where to write the record.
    #[arg(long)]
    out: Option<PathBuf>,
}

const WIDTHS: [usize; 4] = [4, 8, 16, 22];
const LENGTHS: [usize; 2] = [4096, 65536];
/// Buffers start 512 bytes further into a page than the one before: columns at one page offset share a cache set.
const STAGGER: usize = 512;
/// CPU time one sample aims at, nanoseconds: far above the clock's own cost.
const SAMPLE_NS: u64 = 4_000_000;

/// Columns in one allocation, staggered.
struct Columns {
    bytes: Vec<u8>,
    len: usize,
    stride: usize,
}

impl Columns {
    fn new(count: usize, len: usize) -> Self {
        let stride = len.next_multiple_of(4096) + STAGGER;
        let bytes = (0..count * stride).map(|i| i.to_le_bytes()[0].wrapping_mul(31) ^ i.to_le_bytes()[1]);
        Self { bytes: bytes.collect(), len, stride }
    }

    fn parts(&mut self) -> Vec<&mut [u8]> {
        self.bytes.chunks_exact_mut(self.stride).map(|chunk| &mut chunk[..self.len]).collect()
    }
}

/// CPU nanoseconds of one call, over enough calls to fill [`SAMPLE_NS`].
fn ns_per_call(mut call: impl FnMut()) -> f64 {
    let mut calls = 0_u64;
    let start_ns = thread_cpu_ns();
    loop {
        for _ in 0..16 {
            call();
        }
        calls += 16;
        let spent_ns = thread_cpu_ns() - start_ns;
        if spent_ns >= SAMPLE_NS {
            return f64_of(spent_ns) / f64_of(calls);
        }
    }
}

fn pq_bench(kernel: &'static dyn Kernel, k: usize, len: usize) -> Bench<'static> {
    let mut columns = Columns::new(k + 2, len);
    let size = if len >= 65536 { "64k" } else { "4k" };
    Bench::new(format!("parity.pq.{}.k{k}.{size}", kernel.name()), move || {
        let mut parts = columns.parts();
        let q = parts.pop().expect("two parities");
        let p = parts.pop().expect("two parities");
        let srcs: Vec<&[u8]> = parts.into_iter().map(|part| &*part).collect();
        let ns = ns_per_call(|| kernel.pq(core::hint::black_box(&srcs), p, q));
        f64_of(u64_of(k * len)) / ns * 1e9
    })
}

fn delta_bench(kernel: &'static dyn Kernel) -> Bench<'static> {
    let mut columns = Columns::new(4, 4096);
    Bench::new(format!("parity.delta4k.{}", kernel.name()), move || {
        let mut parts = columns.parts().into_iter();
        let mut next = || parts.next().expect("four columns");
        let (old, new, p, q) = (next(), next(), next(), next());
        ns_per_call(|| kernel.delta(gf::power(3), core::hint::black_box(old), new, Some(p), Some(q)))
    })
}

/// Whether a kernel agrees with the byte loop on the data that is measured.
fn is_right(kernel: &dyn Kernel, k: usize, len: usize) -> bool {
    let parity = |kernel: &dyn Kernel| {
        let mut columns = Columns::new(k, len);
        let srcs: Vec<&[u8]> = columns.parts().into_iter().map(|part| &*part).collect();
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        kernel.pq(&srcs, &mut p, &mut q);
        (p, q)
    };
    available().first().is_some_and(|byte_loop| parity(*byte_loop) == parity(kernel))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let floors = Floors::built_in();
    let mut benches = Vec::new();
    let mut verified = Vec::new();
    let mut add = |bench: Bench<'static>, is_right: bool| {
        if bench.name().contains(&args.only) {
            benches.push(bench);
            verified.push(is_right);
        }
    };
    for kernel in available() {
        for k in WIDTHS {
            for len in LENGTHS {
                add(pq_bench(kernel, k, len), is_right(kernel, k, len));
            }
        }
        add(delta_bench(kernel), is_right(kernel, 4, 4096));
    }
    let mut cases = Vec::new();
    for ((id, samples), verified) in
        interleave(benches, args.samples.max(SAMPLES_MIN)).into_iter().zip(verified)
    {
        let unit = if id.starts_with("parity.pq") { Unit::BytesPerS } else { Unit::CpuNsPerOp };
        let case = Case::new(&id, unit, samples, None, &floors).with_load(1, 1, verified);
        let (low, high) = (show(unit, case.min), show(unit, case.max));
        println!("{id:<32} {:>16}   ({low} to {high})", show(unit, case.median));
        cases.push(case);
    }
    if let Some(path) = args.out
        && let Err(error) = Record::of_this_run(cases).write(&path)
    {
        eprintln!("parity: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
