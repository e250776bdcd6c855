//! One GPU as all lanes share it: its state, the way in, and what is done when it fails.
//!
//! A generation is one opened device with its threads (`threads`). A failure ends the generation: everything outstanding is
//! answered with an error at once, so that lanes compute it on the CPU, and the supervisor opens the next generation after
//! a pause, which only serves once it has passed the self-test. A device that hangs takes its threads with it: they are
//! left behind, at most [`HUNG_MAX`] generations of them, then the GPU stays off.
//!
//! Invariants: a job is answered exactly once, by whoever is first; after the answer nobody reads its memory for a result
//! that counts; a stream's output memory is reused only when the last answer over it was dropped.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use parking_lot::{Condvar, Mutex};
use raid_core::parity::ParityError;

use crate::descriptor::Plan;
use crate::device::{Device, DeviceError, Outputs};
use crate::threads;

/// Generations that may hang before the GPU stays off: each leaves two threads and a context behind.
pub(crate) const HUNG_MAX: u32 = 3;

/// Opens the device.
pub type Open = Box<dyn Fn() -> Result<Arc<dyn Device>, DeviceError> + Send + Sync>;

/// Hears of changes of state.
pub type Listener = Box<dyn Fn(Notice) + Send + Sync>;

/// How the engine treats its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Jobs that may wait; a job beyond them goes to the CPU.
    pub queue_jobs: usize,
    /// How long a job may wait for others to share a launch with while the device is busy.
    pub linger: Duration,
    /// A job without an answer after this long means that the device hangs.
    pub deadline: Duration,
    /// Pause before a failed device is tried again: at first, and at most.
    pub retry: (Duration, Duration),
    /// Jobs after a fault whose results are all computed on the CPU too.
    pub checked_after_fault: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queue_jobs: 1024,
            linger: Duration::from_micros(20),
            deadline: Duration::from_secs(2),
            retry: (Duration::from_secs(1), Duration::from_secs(60)),
            checked_after_fault: 10_000,
        }
    }
}

/// What state a GPU is in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GpuState {
    /// Being opened and tested.
    Starting,
    /// Computes.
    Ready,
    /// Left alone, for this reason; tried again after a pause.
    Failed(String),
    /// Left alone until the process ends, for this reason.
    Off(String),
}

/// A change of state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The device of this name passed its self-test and is used.
    Ready(String),
    /// It is not used any more.
    Failed(String),
    /// It is not used any more and is not tried again.
    Off(String),
}

/// What was counted since the start. Counters only grow.
#[derive(Debug, Default)]
pub struct GpuStats {
    /// Jobs answered with a result.
    pub jobs: AtomicU64,
    /// Launches.
    pub batches: AtomicU64,
    /// Bytes of the inputs of answered jobs.
    pub bytes_in: AtomicU64,
    /// Jobs answered with an error and computed on the CPU.
    pub failed_jobs: AtomicU64,
    /// Times the device failed or was caught with a wrong result.
    pub faults: AtomicU64,
    /// Results compared with the CPU's, whole or in part.
    pub checks: AtomicU64,
    /// Results found wrong.
    pub wrong: AtomicU64,
    /// Nanoseconds from submission to answer, summed over jobs.
    pub latency_ns: AtomicU64,
}

/// The answer to a job: where its outputs lie and its result word.
pub(crate) struct Answer {
    pub(crate) outputs: Arc<dyn Outputs>,
    pub(crate) at: [Option<u32>; 2],
    pub(crate) result: u32,
    pub(crate) took_ns: u64,
    /// Keeps the stream from being started again.
    pub(crate) _stream: Arc<StreamHold>,
}

/// Gives a stream back when the last answer over its output memory is dropped.
pub(crate) struct StreamHold {
    pub(crate) stream: usize,
    pub(crate) free: Sender<usize>,
}

impl Drop for StreamHold {
    fn drop(&mut self) {
        // The launcher is gone when its generation ended: then nobody needs the stream.
        let _is_needed = self.free.send(self.stream);
    }
}

enum Reply {
    Waiting(Option<Waker>),
    There(Result<Answer, ParityError>),
    Taken,
}

/// One job's way back to its lane.
pub(crate) struct Ticket {
    reply: Mutex<Reply>,
    pub(crate) began: Instant,
}

impl Ticket {
    fn new() -> Arc<Self> {
        Arc::new(Self { reply: Mutex::new(Reply::Waiting(None)), began: Instant::now() })
    }

    /// Answers, if nobody has before; then `count` is called, before anybody sees the answer.
    pub(crate) fn answer(&self, answer: Result<Answer, ParityError>, count: impl FnOnce()) {
        let waker = {
            let mut reply = self.reply.lock();
            let Reply::Waiting(waker) = &mut *reply else { return };
            count();
            let waker = waker.take();
            *reply = Reply::There(answer);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Answers that the device has failed.
    pub(crate) fn give_up(&self, stats: &GpuStats) {
        self.answer(Err(ParityError::Device), || {
            stats.failed_jobs.fetch_add(1, Ordering::Relaxed);
        });
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.reply.lock(), Reply::Waiting(_))
    }
}

/// A submitted job's answer to come.
pub(crate) struct Pending(Arc<Ticket>);

impl Future for Pending {
    type Output = Result<Answer, ParityError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut reply = self.0.reply.lock();
        match &mut *reply {
            Reply::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Reply::There(_) => match core::mem::replace(&mut *reply, Reply::Taken) {
                Reply::There(answer) => Poll::Ready(answer),
                _ => unreachable!("just seen"),
            },
            Reply::Taken => panic!("a GPU answer polled after it was given"),
        }
    }
}

/// A job on its way to the launcher.
pub(crate) struct Queued {
    pub(crate) plan: Plan,
    pub(crate) ticket: Arc<Ticket>,
}

/// One opened device.
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) queue: Sender<Queued>,
    pub(crate) is_over: AtomicBool,
    outstanding: Mutex<VecDeque<Weak<Ticket>>>,
}

impl Generation {
    pub(crate) fn new(number: u64, queue: Sender<Queued>) -> Arc<Self> {
        Arc::new(Self { number, queue, is_over: AtomicBool::new(false), outstanding: Mutex::default() })
    }

    /// How long the oldest job without an answer has waited.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        let mut outstanding = self.outstanding.lock();
        while let Some(first) = outstanding.front() {
            match first.upgrade().filter(|ticket| ticket.is_waiting()) {
                Some(ticket) => return Some(ticket.began.elapsed()),
                None => drop(outstanding.pop_front()),
            }
        }
        None
    }

    fn end(&self) -> Vec<Arc<Ticket>> {
        self.is_over.store(true, Ordering::Release);
        self.outstanding.lock().drain(..).filter_map(|ticket| ticket.upgrade()).collect()
    }
}

pub(crate) struct Inner {
    pub(crate) state: GpuState,
    pub(crate) generation: Option<Arc<Generation>>,
    pub(crate) name: Option<String>,
    pub(crate) hung: u32,
    pub(crate) is_stopping: bool,
    /// Memory of this process that the device may read.
    regions: Vec<(usize, usize)>,
}

/// What the handles and the threads share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) open: Open,
    listener: Listener,
    pub(crate) inner: Mutex<Inner>,
    pub(crate) changed: Condvar,
    pub(crate) stats: GpuStats,
    /// Jobs that are still to be checked whole.
    checks_due: AtomicU64,
}

impl Shared {
    /// Ends generation `number` if it is the current one, and answers everything outstanding with an error.
    pub(crate) fn fail(&self, number: u64, why: &str, is_hung: bool) {
        let (generation, notice) = {
            let mut inner = self.inner.lock();
            let Some(generation) = inner.generation.take_if(|generation| generation.number == number) else {
                return;
            };
            inner.hung += u32::from(is_hung);
            let notice = if inner.hung >= HUNG_MAX {
                let why =
                    format!("{why}; it hung {HUNG_MAX} times and is left alone until the daemon starts anew");
                inner.state = GpuState::Off(why.clone());
                Notice::Off(why)
            } else {
                inner.state = GpuState::Failed(why.to_owned());
                Notice::Failed(why.to_owned())
            };
            (generation, notice)
        };
        self.stats.faults.fetch_add(1, Ordering::Relaxed);
        self.checks_due.store(self.config.checked_after_fault, Ordering::Relaxed);
        for ticket in generation.end() {
            ticket.give_up(&self.stats);
        }
        tracing::warn!(why, "the GPU failed; parity goes on on the CPU");
        self.changed.notify_all();
        (self.listener)(notice);
    }

    /// Puts a tested generation into service.
    pub(crate) fn admit(&self, generation: Arc<Generation>, name: &str) {
        {
            let mut inner = self.inner.lock();
            inner.state = GpuState::Ready;
            inner.generation = Some(generation);
            inner.name = Some(name.to_owned());
        }
        tracing::info!(name, "the GPU passed its self-test and computes parity");
        (self.listener)(Notice::Ready(name.to_owned()));
    }

    /// Notes that a generation could not be opened or failed its self-test.
    pub(crate) fn refuse(&self, why: &str) {
        let is_news = {
            let mut inner = self.inner.lock();
            let state = GpuState::Failed(why.to_owned());
            let is_news = inner.state != state;
            inner.state = state;
            is_news
        };
        self.checks_due.store(self.config.checked_after_fault, Ordering::Relaxed);
        if is_news {
            tracing::warn!(why, "the GPU cannot be used");
            (self.listener)(Notice::Failed(why.to_owned()));
        }
    }

    /// Lets a device read all memory that was named so far.
    pub(crate) fn register_all(&self, device: &dyn Device) -> Result<(), DeviceError> {
        let regions = self.inner.lock().regions.clone();
        regions.into_iter().try_for_each(|(start, len)| device.register(start, len))
    }
}

/// One GPU, shared by all lanes. Dropped, it is closed.
pub struct Gpu {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({:?})", self.state())
    }
}

impl Gpu {
    /// Begins to open and test a device, in the background. `regions` (start, bytes) is all memory that leases lie in: jobs
    /// with inputs elsewhere are none for the GPU. It stays mapped while the process lives. `listener` hears every change
    /// of state, on a thread of the engine's.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        open: Open,
        config: Config,
        regions: Vec<(usize, usize)>,
        listener: Listener,
    ) -> std::io::Result<Arc<Self>> {
        let inner = Inner {
            state: GpuState::Starting,
            generation: None,
            name: None,
            hung: 0,
            is_stopping: false,
            regions,
        };
        let shared = Arc::new(Shared {
            config,
            open,
            listener,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            stats: GpuStats::default(),
            checks_due: AtomicU64::new(0),
        });
        threads::supervise(Arc::clone(&shared))?;
        Ok(Arc::new(Self { shared }))
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> GpuState {
        self.shared.inner.lock().state.clone()
    }

    /// What the device is called, once one was opened.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.shared.inner.lock().name.clone()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &GpuStats {
        &self.shared.stats
    }

    /// Waits until it computes or has failed; the state then.
    #[must_use]
    pub fn settled(&self, at_most: Duration) -> GpuState {
        let end = Instant::now() + at_most;
        let mut inner = self.shared.inner.lock();
        while inner.state == GpuState::Starting && Instant::now() < end {
            let nap = Duration::from_millis(5);
            self.shared.changed.wait_for(&mut inner, nap);
        }
        inner.state.clone()
    }

    /// Whether it takes jobs now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.inner.lock().generation.is_some()
    }

    /// Hands a job over: its generation and the answer to come. The caller keeps the job's buffers until then. `None` if the
    /// GPU takes none now: it failed, its queue is full, or the inputs lie where it cannot read.
    pub(crate) fn submit(&self, plan: Plan) -> Option<(u64, Pending)> {
        let generation = {
            let inner = self.shared.inner.lock();
            let generation = inner.generation.as_ref()?;
            let len = u64::from(plan.len);
            let is_inside = |&address: &u64| {
                address == 0
                    || inner.regions.iter().any(|&(start, bytes)| {
                        let start = raid_core::units::u64_of(start);
                        address >= start && address + len <= start + raid_core::units::u64_of(bytes)
                    })
            };
            if !plan.data.iter().chain([&plan.p, &plan.q]).all(is_inside) {
                return None;
            }
            Arc::clone(generation)
        };
        let ticket = Ticket::new();
        // Noted before it is queued: a generation that ends in between answers it.
        generation.outstanding.lock().push_back(Arc::downgrade(&ticket));
        if generation.queue.try_send(Queued { plan, ticket: Arc::clone(&ticket) }).is_err() {
            return None;
        }
        if generation.is_over.load(Ordering::Acquire) {
            ticket.give_up(&self.shared.stats);
        }
        Some((generation.number, Pending(ticket)))
    }

    /// Whether the next result has to be checked whole because the device failed not long ago; counts it.
    pub(crate) fn takes_check(&self) -> bool {
        let take = |due: u64| due.checked_sub(1);
        self.shared.checks_due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// A result of this generation was wrong: the device is not to be trusted.
    pub(crate) fn caught_wrong(&self, generation: u64, what: &str) {
        self.shared.stats.wrong.fetch_add(1, Ordering::Relaxed);
        self.shared.fail(generation, &format!("it computed a wrong result ({what})"), false);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let generation = {
            let mut inner = self.shared.inner.lock();
            inner.is_stopping = true;
            inner.generation.take()
        };
        for ticket in generation.iter().flat_map(|generation| generation.end()) {
            ticket.give_up(&self.shared.stats);
        }
        self.shared.changed.notify_all();
    }
}
