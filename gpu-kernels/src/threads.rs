//! The threads of a GPU: the supervisor, which opens, tests and watches generations, and for each generation a launcher,
//! which makes batches, and a completer, which answers them.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};
use raid_core::units::u64_of;

use crate::descriptor::Batch;
use crate::device::{Device, DeviceError};
use crate::engine::{Answer, Generation, GpuState, Queued, Shared, StreamHold, Ticket};
use crate::selftest;

/// How often the supervisor looks for a device that hangs, and an idle launcher whether its generation is over.
const TICK: Duration = Duration::from_millis(20);

/// Starts the supervisor.
pub(crate) fn supervise(shared: Arc<Shared>) -> std::io::Result<()> {
    spawn("gpu-supervisor", move || Supervisor { shared, generations: 0 }.run())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

struct Supervisor {
    shared: Arc<Shared>,
    generations: u64,
}

impl Supervisor {
    fn run(mut self) {
        let (first, most) = self.shared.config.retry;
        let mut pause = first;
        while !self.is_stopping() {
            match self.open() {
                Ok(()) => {
                    let began = Instant::now();
                    self.watch();
                    if matches!(self.shared.inner.lock().state, GpuState::Off(_)) {
                        return;
                    }
                    // One that worked for long is given another chance soon.
                    pause = if began.elapsed() > most { first } else { (pause * 2).min(most) };
                }
                Err(error) => {
                    self.shared.refuse(&error.0);
                    pause = (pause * 2).min(most);
                }
            }
            self.rest(pause);
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.inner.lock().is_stopping
    }

    fn rest(&self, pause: Duration) {
        let end = Instant::now() + pause;
        let mut inner = self.shared.inner.lock();
        while !inner.is_stopping && Instant::now() < end {
            self.shared.changed.wait_until(&mut inner, end);
        }
    }

    /// Opens and tests a generation and puts it into service.
    fn open(&mut self) -> Result<(), DeviceError> {
        let (opened, answer) = bounded(1);
        let (shared, deadline) = (Arc::clone(&self.shared), self.shared.config.deadline);
        // On a thread of its own: a driver that hangs while a device is opened must not take the supervisor with it.
        let work = move || {
            let tried = (shared.open)().and_then(|device| {
                shared.register_all(device.as_ref())?;
                selftest::run(device.as_ref())?;
                Ok(device)
            });
            // Nobody listens any more if it took too long.
            drop(opened.send(tried));
        };
        spawn("gpu-open", work).map_err(|error| DeviceError(format!("no thread to open it: {error}")))?;
        // Opening includes translating the kernels; ten times what a job may take is long for that.
        let device = match answer.recv_timeout(deadline.max(Duration::from_secs(6)) * 10) {
            Ok(tried) => tried?,
            Err(_) => return Err(DeviceError("it did not answer while it was opened and tested".into())),
        };
        self.generations += 1;
        let (sender, queue) = bounded(self.shared.config.queue_jobs);
        let generation = Generation::new(self.generations, sender);
        let name = device.name().to_owned();
        start_generation(&self.shared, &generation, device, queue)
            .map_err(|error| DeviceError(format!("no threads to run it: {error}")))?;
        self.shared.admit(generation, &name);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Until the generation has failed, or the GPU is closed.
    fn watch(&self) {
        loop {
            let generation = {
                let mut inner = self.shared.inner.lock();
                if inner.is_stopping || inner.generation.is_none() {
                    return;
                }
                self.shared.changed.wait_for(&mut inner, TICK);
                inner.generation.clone()
            };
            let Some(generation) = generation else { return };
            let deadline = self.shared.config.deadline;
            if generation.oldest().is_some_and(|age| age > deadline) {
                let why = format!("it has not answered for {} ms", deadline.as_millis());
                self.shared.fail(generation.number, &why, true);
            }
        }
    }
}

/// A batch on its stream.
struct Running {
    hold: Arc<StreamHold>,
    jobs: Vec<Launched>,
}

struct Launched {
    ticket: Arc<Ticket>,
    at: [Option<u32>; 2],
    bytes_in: u64,
}

fn start_generation(
    shared: &Arc<Shared>,
    generation: &Arc<Generation>,
    device: Arc<dyn Device>,
    queue: Receiver<Queued>,
) -> std::io::Result<()> {
    let (running, finished) = unbounded();
    let (free, streams) = unbounded();
    for stream in 0..device.limits().streams {
        free.send(stream).expect("the receiver is beside it");
    }
    let completer =
        Completer { shared: Arc::clone(shared), number: generation.number, device: Arc::clone(&device) };
    let launcher = Launcher {
        shared: Arc::clone(shared),
        generation: Arc::clone(generation),
        device,
        queue,
        free,
        streams,
        running,
        held: None,
    };
    spawn("gpu-launch", move || launcher.run())?;
    spawn("gpu-complete", move || completer.run(&finished))
}

struct Launcher {
    shared: Arc<Shared>,
    generation: Arc<Generation>,
    device: Arc<dyn Device>,
    queue: Receiver<Queued>,
    free: Sender<usize>,
    streams: Receiver<usize>,
    running: Sender<Running>,
    /// A job that did not fit the batch before.
    held: Option<Queued>,
}

impl Launcher {
    fn run(mut self) {
        let mut batch = Batch::default();
        while let Some(stream) = self.next_stream() {
            let Some(first) = self.next_job() else { return };
            batch.clear();
            let mut jobs = Vec::new();
            let is_busy = self.streams.len() + 1 < self.device.limits().streams;
            let until = first.ticket.began + self.shared.config.linger;
            self.add(&mut batch, &mut jobs, first);
            while let Some(queued) = self.companion(is_busy, until) {
                if !self.add(&mut batch, &mut jobs, queued) {
                    break;
                }
            }
            let hold = Arc::new(StreamHold { stream, free: self.free.clone() });
            if jobs.is_empty() {
                continue;
            }
            if let Err(error) = self.device.start(stream, &batch) {
                // The jobs are outstanding: failing answers them.
                self.shared.fail(self.generation.number, &error.0, false);
                return;
            }
            self.shared.stats.batches.fetch_add(1, Ordering::Relaxed);
            if self.running.send(Running { hold, jobs }).is_err() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.generation.is_over.load(Ordering::Acquire)
    }

    fn next_stream(&self) -> Option<usize> {
        loop {
            if self.is_over() {
                return None;
            }
            if let Ok(stream) = self.streams.recv_timeout(TICK) {
                return Some(stream);
            }
        }
    }

    fn next_job(&mut self) -> Option<Queued> {
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        loop {
            if self.is_over() {
                return None;
            }
            match self.queue.recv_timeout(TICK) {
                Ok(queued) => return Some(queued),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Another job for the batch: what is queued, and while the device is busy anyway, what comes in time.
    fn companion(&self, is_busy: bool, until: Instant) -> Option<Queued> {
        match self.queue.try_recv() {
            Ok(queued) => Some(queued),
            Err(TryRecvError::Empty) if is_busy => self.queue.recv_deadline(until).ok(),
            Err(_) => None,
        }
    }

    /// Adds a job, or keeps it for the next batch; whether the batch may take more.
    fn add(&mut self, batch: &mut Batch, jobs: &mut Vec<Launched>, queued: Queued) -> bool {
        if !queued.ticket.is_waiting() {
            // Answered meanwhile, with an error: its memory is not its own any more.
            return true;
        }
        let limits = self.device.limits();
        if !batch.fits(&queued.plan, limits.jobs, limits.columns, limits.out_bytes) {
            if batch.jobs.is_empty() {
                // Too large for this device by itself.
                queued.ticket.give_up(&self.shared.stats);
                return true;
            }
            self.held = Some(queued);
            return false;
        }
        let at = batch.push(&queued.plan);
        jobs.push(Launched { ticket: queued.ticket, at, bytes_in: queued.plan.bytes_in() });
        true
    }
}

struct Completer {
    shared: Arc<Shared>,
    number: u64,
    device: Arc<dyn Device>,
}

impl Completer {
    fn run(&self, finished: &Receiver<Running>) {
        for running in finished {
            if let Err(error) = self.device.wait(running.hold.stream) {
                self.shared.fail(self.number, &error.0, false);
                return;
            }
            let outputs = self.device.outputs(running.hold.stream);
            for (number, job) in running.jobs.into_iter().enumerate() {
                let took_ns = u64::try_from(job.ticket.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                let answer = Answer {
                    outputs: Arc::clone(&outputs),
                    at: job.at,
                    result: outputs.result(number),
                    took_ns,
                    _stream: Arc::clone(&running.hold),
                };
                let stats = &self.shared.stats;
                job.ticket.answer(Ok(answer), || {
                    stats.jobs.fetch_add(1, Ordering::Relaxed);
                    stats.bytes_in.fetch_add(job.bytes_in, Ordering::Relaxed);
                    stats.latency_ns.fetch_add(took_ns, Ordering::Relaxed);
                });
            }
        }
    }
}

/// Nanoseconds, as counters hold them.
#[must_use]
pub(crate) fn ns_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or_else(|_| u64_of(usize::MAX))
}
