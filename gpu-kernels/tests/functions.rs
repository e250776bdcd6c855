//! The kernel's own functions, compiled for the CPU by g++, against the scalar twin bit for bit: every operation, few and
//! many columns, short, odd and unaligned ones, every pair of lost blocks.

#![allow(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use gpu_kernels::descriptor::{Batch, StripeJob};
use gpu_kernels::device::{Device, DeviceError, Limits, Outputs};
use gpu_kernels::selftest;
use parking_lot::Mutex;
use raid_core::units::{u64_of, usize_of_u32};

type OnHost = unsafe extern "C" fn(*const StripeJob, u32, *const u64, *mut u32);

/// The kernel's threads on the CPU, as a device.
struct HostDevice {
    library: libloading::Library,
    done: Mutex<Option<Arc<Written>>>,
}

struct Written {
    bytes: Vec<u8>,
    skip: usize,
    results: Vec<u32>,
}

impl Outputs for Written {
    fn bytes(&self, at: u32, len: u32) -> &[u8] {
        &self.bytes[self.skip + usize_of_u32(at)..][..usize_of_u32(len)]
    }

    fn result(&self, job: usize) -> u32 {
        self.results[job]
    }
}

/// What no output may touch.
const GUARD: u8 = 0xd7;
const OUT_BYTES: u32 = 1 << 20;

fn compile() -> libloading::Library {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let library =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("parity-{}.so", std::process::id()));
    let done = Command::new("g++")
        .args([
            "-std=c++17",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-shared",
            "-fPIC",
            "-o",
        ])
        .arg(&library)
        .arg(here.join("cuda/host.cpp"))
        .output()
        .expect("g++ is there: tests/run installs it");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // SAFETY: a library of plain functions without initialisers.
    unsafe { libloading::Library::new(&library) }.unwrap()
}

impl Device for HostDevice {
    fn name(&self) -> &str {
        "the kernel's functions on the CPU"
    }

    fn limits(&self) -> Limits {
        Limits { streams: 1, jobs: 64, columns: 4096, out_bytes: OUT_BYTES }
    }

    fn register(&self, _start: usize, _len: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn unregister(&self, _start: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn start(&self, _stream: usize, batch: &Batch) -> Result<(), DeviceError> {
        let mut bytes = vec![GUARD; usize_of_u32(OUT_BYTES) + 4096];
        let skip = bytes.as_ptr().align_offset(256);
        let base = u64_of(bytes[skip..].as_mut_ptr().expose_provenance());
        let mut jobs = batch.jobs.clone();
        for job in &mut jobs {
            for out in [&mut job.out0, &mut job.out1] {
                *out = out.checked_sub(1).map_or(0, |at| base + at);
            }
        }
        let mut results = vec![0; jobs.len()];
        let count = u32::try_from(jobs.len()).unwrap();
        // SAFETY: the signature is that of cuda/host.cpp; the jobs name live memory of the self-test and the outputs above.
        unsafe {
            let run: libloading::Symbol<'_, OnHost> = self.library.get(b"warpraid_parity_on_host").unwrap();
            run(jobs.as_ptr(), count, batch.columns.as_ptr(), results.as_mut_ptr());
        }
        let mut is_free = vec![true; bytes.len()];
        for job in &batch.jobs {
            for at in [job.out0, job.out1].iter().filter_map(|out| out.checked_sub(1)) {
                let start = skip + usize::try_from(at).unwrap();
                is_free[start..start + usize_of_u32(job.len)].fill(false);
            }
        }
        let is_kept = bytes.iter().zip(&is_free).all(|(&byte, &is_free)| !is_free || byte == GUARD);
        assert!(is_kept, "a thread wrote outside its output");
        *self.done.lock() = Some(Arc::new(Written { bytes, skip, results }));
        Ok(())
    }

    fn wait(&self, _stream: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn outputs(&self, _stream: usize) -> Arc<dyn Outputs> {
        let done = self.done.lock();
        let written: Arc<Written> = Arc::clone(done.as_ref().unwrap());
        written
    }
}

fn device() -> HostDevice {
    HostDevice { library: compile(), done: Mutex::new(None) }
}

#[test]
fn the_kernels_functions_pass_the_self_test() {
    selftest::run(&device()).unwrap();
}

#[test]
fn every_operation_every_width_every_lost_pair_equals_the_twin() {
    let device = device();
    for columns in (1..=24).chain([64, 253]) {
        for len in [1, 7, 16, 31, 48] {
            for skew in [0, 1, 8] {
                selftest::shape_of(&device, columns, len, skew, selftest::Depth::EveryPair).unwrap();
            }
        }
    }
    for len in [4096, 65_536, 65_521, 1 << 18] {
        selftest::shape_of(&device, 3, len, 3, selftest::Depth::EveryPair).unwrap();
    }
}
