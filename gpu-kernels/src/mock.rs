//! A device without a GPU, for tests and drills: it computes with the scalar twin, and fails, hangs or lies when told to.
//!
//! It reads the same addresses a GPU would. Invariant: it reads nothing while it hangs, and nothing afterwards.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use raid_core::units::{u64_of, usize_of, usize_of_u32};

use crate::descriptor::{Batch, Op, StripeJob};
use crate::device::{Device, DeviceError, Limits, Outputs};
use crate::twin;

/// What a mock does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The launch is refused.
    Start,
    /// The work fails.
    Wait,
    /// The work never ends, until [`MockDriver::release`].
    Hang,
    /// One bit of an output, or of a result word where there is no output, is wrong.
    Wrong,
    /// Every output is wrong all over.
    Garbage,
}

#[derive(Default)]
struct State {
    launches: u64,
    opens: u64,
    /// Fails at the launch of this number, counted from 0 over all contexts.
    fault: Option<(u64, Fault)>,
    /// What an opened context does at its next launches.
    refuses_to_open: u32,
    released: bool,
    hanging: u32,
}

/// What mock devices are opened from, like a driver: counts launches over all contexts and knows what is to go wrong.
#[derive(Clone, Default)]
pub struct MockDriver(Arc<(Mutex<State>, Condvar)>);

impl MockDriver {
    /// A driver of a sound device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Launches so far, self-tests among them.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.0.0.lock().launches
    }

    /// Contexts opened so far.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.0.0.lock().opens
    }

    /// Launch number `launch` (from 0) goes wrong, and that one only.
    pub fn fail_at(&self, launch: u64, fault: Fault) {
        self.0.0.lock().fault = Some((launch, fault));
    }

    /// The next launch goes wrong.
    pub fn fail_next(&self, fault: Fault) {
        let mut state = self.0.0.lock();
        state.fault = Some((state.launches, fault));
    }

    /// Whether the fault that was ordered has happened.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.0.0.lock().fault.is_none()
    }

    /// The next `times` contexts cannot be opened.
    pub fn refuse_to_open(&self, times: u32) {
        self.0.0.lock().refuses_to_open = times;
    }

    /// Lets everything that hangs end, with an error.
    pub fn release(&self) {
        self.0.0.lock().released = true;
        self.0.1.notify_all();
    }

    /// Opens a device.
    ///
    /// # Errors
    /// If it was told to refuse.
    pub fn open(&self) -> Result<Arc<dyn Device>, DeviceError> {
        let mut state = self.0.0.lock();
        if state.refuses_to_open > 0 {
            state.refuses_to_open -= 1;
            return Err(DeviceError("the mock was told not to open".into()));
        }
        state.opens += 1;
        let streams = (0..LIMITS.streams).map(|_| Mutex::default()).collect();
        Ok(Arc::new(MockDevice { driver: self.clone(), regions: Mutex::default(), streams }))
    }

    fn take_fault(&self) -> Option<Fault> {
        let mut state = self.0.0.lock();
        let launch = state.launches;
        state.launches += 1;
        let (_, fault) = state.fault.take_if(|(at, _)| *at == launch)?;
        Some(fault)
    }

    fn hang(&self) {
        let mut state = self.0.0.lock();
        state.hanging += 1;
        while !state.released {
            // For ever is a minute in a test.
            if self.0.1.wait_for(&mut state, Duration::from_secs(60)).timed_out() {
                break;
            }
        }
        state.hanging -= 1;
    }
}

const LIMITS: Limits = Limits { streams: 3, jobs: 64, columns: 1024, out_bytes: 1 << 20 };

struct MockDevice {
    driver: MockDriver,
    regions: Mutex<Vec<(usize, usize)>>,
    streams: Vec<Mutex<Stream>>,
}

#[derive(Default)]
struct Stream {
    batch: Batch,
    fault: Option<Fault>,
    outputs: Option<Arc<MockOutputs>>,
}

struct MockOutputs {
    bytes: Vec<u8>,
    results: Vec<u32>,
}

impl Outputs for MockOutputs {
    fn bytes(&self, at: u32, len: u32) -> &[u8] {
        &self.bytes[usize_of_u32(at)..][..usize_of_u32(len)]
    }

    fn result(&self, job: usize) -> u32 {
        self.results[job]
    }
}

impl MockDevice {
    /// Whether the device may read there: a real one answers with an error that poisons its context.
    fn is_registered(&self, address: u64, len: u32) -> bool {
        self.regions.lock().iter().any(|&(start, bytes)| {
            address >= u64_of(start) && address + u64::from(len) <= u64_of(start + bytes)
        })
    }

    fn compute(&self, batch: &Batch) -> Result<MockOutputs, DeviceError> {
        let mut outputs =
            MockOutputs { bytes: vec![0; usize_of_u32(batch.out_bytes)], results: vec![0; batch.jobs.len()] };
        for job in &batch.jobs {
            let columns = &batch.columns[usize_of_u32(job.first)..][..usize_of_u32(job.data_columns)];
            for &address in columns.iter().chain([&job.p, &job.q]) {
                if address != 0 && !self.is_registered(address, job.len) {
                    return Err(DeviceError("an illegal memory access was encountered (mock)".into()));
                }
            }
            run_job(job, columns, &mut outputs);
        }
        Ok(outputs)
    }
}

fn op_of(code: u8) -> Op {
    [Op::Encode, Op::ByP, Op::ByQ, Op::Two, Op::Verify, Op::Locate, Op::Delta][usize::from(code)]
}

fn run_job(job: &StripeJob, columns: &[u64], outputs: &mut MockOutputs) {
    let op = op_of(job.op);
    let read = |address: u64, at: u32| {
        if address == 0 {
            return 0;
        }
        let place = core::ptr::with_exposed_provenance::<u8>(usize_of(address) + usize_of_u32(at));
        // SAFETY: `compute` has checked that the column lies in memory that was registered, which stays mapped as long as
        // the device lives (`Device::register`); whoever submitted the job keeps it from being written until it is answered.
        unsafe { place.read() }
    };
    let mut data = Vec::with_capacity(columns.len());
    for at in 0..job.len {
        data.clear();
        data.extend(columns.iter().map(|&column| read(column, at)));
        let (p, q) = if op == Op::Encode { (0, 0) } else { (read(job.p, at), read(job.q, at)) };
        let byte = twin::byte(op, (job.a, job.b), &data, p, q);
        for (out, byte) in [job.out0, job.out1].into_iter().zip(byte.out) {
            if let Some(start) = out.checked_sub(1) {
                outputs.bytes[usize_of(start) + usize_of_u32(at)] = byte;
            }
        }
        let result = &mut outputs.results[usize_of_u32(job.result)];
        *result = twin::judge(op, job, *result, byte.syndromes);
    }
}

impl Device for MockDevice {
    fn name(&self) -> &str {
        "mock"
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn register(&self, start: usize, len: usize) -> Result<(), DeviceError> {
        self.regions.lock().push((start, len));
        Ok(())
    }

    fn unregister(&self, start: usize) -> Result<(), DeviceError> {
        self.regions.lock().retain(|&(other, _)| other != start);
        Ok(())
    }

    fn start(&self, stream: usize, batch: &Batch) -> Result<(), DeviceError> {
        let fault = self.driver.take_fault();
        if fault == Some(Fault::Start) {
            return Err(DeviceError("the launch was refused (mock)".into()));
        }
        let mut stream = self.streams[stream].lock();
        stream.batch = batch.clone();
        stream.fault = fault;
        Ok(())
    }

    fn wait(&self, stream: usize) -> Result<(), DeviceError> {
        let mut stream = self.streams[stream].lock();
        match stream.fault.take() {
            Some(Fault::Wait) => return Err(DeviceError("the work failed (mock)".into())),
            Some(Fault::Hang) => {
                self.driver.hang();
                return Err(DeviceError("it hung (mock)".into()));
            }
            fault => {
                let mut outputs = self.compute(&stream.batch)?;
                match fault {
                    Some(Fault::Wrong) => spoil(&stream.batch, &mut outputs),
                    Some(Fault::Garbage) => {
                        outputs.bytes.iter_mut().for_each(|byte| *byte ^= 0xa5);
                        outputs.results.iter_mut().for_each(|word| *word ^= 1);
                    }
                    _ => {}
                }
                stream.outputs = Some(Arc::new(outputs));
            }
        }
        Ok(())
    }

    fn outputs(&self, stream: usize) -> Arc<dyn Outputs> {
        let stream = self.streams[stream].lock();
        let outputs = stream.outputs.as_ref().expect("outputs are asked for after the work is done");
        Arc::<MockOutputs>::clone(outputs)
    }
}

/// One bit of the first job.
fn spoil(batch: &Batch, outputs: &mut MockOutputs) {
    let job = &batch.jobs[0];
    match job.out0.max(job.out1).checked_sub(1) {
        Some(start) => outputs.bytes[usize_of(start) + usize_of_u32(job.len / 2)] ^= 0x10,
        None => outputs.results[0] ^= 1,
    }
}
