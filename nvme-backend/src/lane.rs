//! A lane: one thread, one ring, one executor, one arena, and the loop that drives them.
//!
//! Each round: messages from other threads, tasks that are ready, timers, deadlines, then one `io_uring_enter` that
//! submits everything queued and, if nothing else can run, sleeps until the first completion, timer or message.
//! A lane that has nothing to do is asleep in the kernel.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread::JoinHandle;

use raid_core::units::LaneId;
use rustix::time::{ClockId, clock_gettime};

use crate::arena::{Arena, ArenaConfig};
use crate::executor::{Executor, Header, MAIN};
use crate::remote::{LaneShared, Message, Remote};
use crate::ring::Ring;
use crate::timers::{Sleep, Timers};

/// Messages taken in per round, so that a flood of them cannot starve I/O.
const MESSAGES_PER_ROUND: usize = 256;

/// How a lane is set up.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// Its number.
    pub id: LaneId,
    /// The CPU to pin its thread to.
    pub cpu: Option<usize>,
    /// Entries of the submission queue (8 to 4096); more operations than this may be in flight.
    pub ring_entries: u32,
    /// Its memory.
    pub arena: ArenaConfig,
}

impl Default for LaneConfig {
    fn default() -> Self {
        Self { id: LaneId(0), cpu: None, ring_entries: 256, arena: ArenaConfig::default() }
    }
}

/// Why a lane could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel has no io_uring.
    #[error("this kernel has no io_uring (5.11 or newer, built with CONFIG_IO_URING, is needed)")]
    NoIoUring,
    /// The kernel's io_uring is too old.
    #[error("this kernel's io_uring is too old: 5.11 or newer is needed")]
    KernelTooOld,
    /// io_uring exists but may not be used.
    #[error("io_uring is refused: {reason}")]
    Refused {
        /// Who refuses it and what to do.
        reason: String,
    },
    /// RLIMIT_MEMLOCK is too low for a ring (kernels before 5.12).
    #[error("not enough lockable memory for an io_uring: raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=)")]
    MemoryLock,
    /// No more file descriptors.
    #[error("too many open files: raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE=)")]
    TooManyFiles,
    /// The arena's address space could not be mapped.
    #[error("cannot map the lane's I/O memory: {0}")]
    Arena(std::io::Error),
    /// The thread could not be made.
    #[error("cannot start the lane's thread: {0}")]
    Thread(std::io::Error),
    /// Anything else.
    #[error("cannot set up an io_uring: {0}")]
    Os(std::io::Error),
}

impl StartError {
    pub(crate) fn of_ring(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSYS) => Self::NoIoUring,
            Some(libc::EPERM | libc::EACCES) => Self::Refused { reason: refusal() },
            Some(libc::ENOMEM) => Self::MemoryLock,
            Some(libc::EMFILE | libc::ENFILE) => Self::TooManyFiles,
            _ => Self::Os(error),
        }
    }
}

fn refusal() -> String {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match disabled.trim() {
        "2" => "sysctl kernel.io_uring_disabled is 2 (set it to 0)".to_owned(),
        "1" => "sysctl kernel.io_uring_disabled is 1: run with CAP_SYS_ADMIN, join the group of \
                kernel.io_uring_group, or set it to 0"
            .to_owned(),
        _ => "by a seccomp filter or security module (in a container: allow io_uring_setup, io_uring_enter and \
              io_uring_register)"
            .to_owned(),
    }
}

struct Inner {
    id: LaneId,
    executor: Executor,
    timers: Timers,
    ring: Ring,
    arena: Arena,
    shared: Arc<LaneShared>,
    /// The clock as of this round, for deadlines that need no better.
    round_ns: Cell<u64>,
}

/// A lane as its own thread sees it. Cheap to clone; `!Send`.
#[derive(Clone)]
pub struct Lane(Rc<Inner>);

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the monotonic clock starts at 0");
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).expect("nanoseconds are not negative")
}

impl Lane {
    fn new(config: &LaneConfig, shared: &Arc<LaneShared>) -> Result<Self, StartError> {
        let arena = Arena::new(config.arena).map_err(StartError::Arena)?;
        let ring = Ring::new(config.ring_entries, &arena)?;
        Ok(Self(Rc::new(Inner {
            id: config.id,
            executor: Executor::new(shared),
            timers: Timers::default(),
            ring,
            arena,
            shared: Arc::clone(shared),
            round_ns: Cell::new(monotonic_ns()),
        })))
    }

    /// The lane's number.
    #[must_use]
    pub fn id(&self) -> LaneId {
        self.0.id
    }

    /// Runs a task on this lane. It is dropped unfinished when the lane ends.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(task);
    }

    /// CLOCK_MONOTONIC.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    /// Completes when [`Lane::now_ns`] has reached the deadline.
    pub fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> + use<> {
        Sleep::new(self.clone(), deadline_ns)
    }

    /// The lane's memory.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// The handle other threads reach this lane by.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.0.shared))
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.0.executor.tasks()
    }

    /// Operations the kernel works on for this lane.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.ring.in_flight()
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.0.ring
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.0.timers
    }

    /// The clock as of this round of the loop: never ahead of [`Lane::now_ns`].
    #[must_use]
    pub fn round_ns(&self) -> u64 {
        self.0.round_ns.get()
    }

    fn take_messages(&self) {
        for _ in 0..MESSAGES_PER_ROUND {
            match self.0.shared.pop() {
                Some(Message::Run(job)) => job(self),
                Some(Message::Wake(slot)) => self.0.executor.push_ready(slot),
                None => return,
            }
        }
    }

    /// Runs until `main` is done or, without one, until the lane is told to stop.
    fn run<T>(&self, mut main: Option<Pin<&mut dyn Future<Output = T>>>) -> Option<T> {
        let inner = &*self.0;
        let main_header = Header::new(MAIN, &inner.shared);
        let main_waker = Waker::from(Arc::clone(&main_header));
        if main.is_some() {
            main_waker.wake_by_ref();
        }
        loop {
            self.take_messages();
            if main.is_none() && inner.shared.is_stopping() {
                return None;
            }
            for _ in 0..inner.executor.ready_count() {
                match inner.executor.pop_ready() {
                    None => break,
                    Some(MAIN) => {
                        main_header.will_poll();
                        let Some(main) = &mut main else { continue };
                        let polled = main.as_mut().poll(&mut Context::from_waker(&main_waker));
                        if let std::task::Poll::Ready(value) = polled {
                            return Some(value);
                        }
                    }
                    Some(slot) => inner.executor.poll(slot),
                }
            }
            self.enter(main.is_none());
        }
    }

    /// The end of a round: submit, sleep if nothing else can run, reap, fire what is due.
    fn enter(&self, heeds_stop: bool) {
        let inner = &*self.0;
        let mut wait_ns = Some(0);
        if inner.executor.ready_count() == 0 && inner.shared.may_sleep(heeds_stop) {
            wait_ns = inner.timers.first_ns().map(|first_ns| first_ns.saturating_sub(monotonic_ns()));
        }
        inner.ring.enter(inner.shared.eventfd(), wait_ns);
        inner.shared.awake();
        let now_ns = monotonic_ns();
        inner.ring.reap(now_ns);
        inner.round_ns.set(now_ns);
        inner.timers.fire(now_ns);
        inner.ring.expire(now_ns);
    }
}

/// Ends a lane however its loop was left: tasks are dropped, and memory the kernel may still touch is waited for or,
/// if a device hangs for good, leaked (SAFETY M7).
struct EndGuard(Lane);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let inner = &*self.0.0;
        inner.shared.end();
        inner.executor.clear();
        inner.timers.clear();
        if !inner.ring.close(inner.shared.eventfd(), monotonic_ns) {
            tracing::error!(
                lane = inner.id.0,
                operations = inner.ring.in_flight(),
                "a drive still holds I/O memory of an ended lane; it is not freed"
            );
            std::mem::forget(self.0.clone());
        }
        inner.executor.leave_thread();
    }
}

fn pin(config: &LaneConfig) {
    let Some(cpu) = config.cpu else { return };
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        tracing::warn!(lane = config.id.0, cpu, "there is no such CPU; the lane is not pinned");
        return;
    }
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(lane = config.id.0, cpu, %error, "the lane is not pinned");
    }
}

/// Starts a lane on a thread of its own. The thread ends after [`Remote::stop`].
///
/// # Errors
/// Why the kernel would not have it.
pub fn start_lane(config: LaneConfig) -> Result<(Remote, JoinHandle<()>), StartError> {
    let shared = LaneShared::new(config.id).map_err(StartError::of_ring)?;
    let remote = Remote(Arc::clone(&shared));
    let (report, started) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("lane-{}", config.id))
        .spawn(move || {
            pin(&config);
            let lane = match Lane::new(&config, &shared) {
                Ok(lane) => lane,
                Err(error) => {
                    let _ = report.send(Err(error));
                    return;
                }
            };
            let guard = EndGuard(lane);
            if report.send(Ok(())).is_ok() {
                guard.0.run::<()>(None);
            }
        })
        .map_err(StartError::Thread)?;
    match started.recv() {
        Ok(Ok(())) => Ok((remote, thread)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(StartError::Os(std::io::Error::other("the lane's thread died at its start"))),
    }
}

/// Runs a lane on the current thread until the future that `f` makes is done; other tasks of the lane are dropped then.
///
/// # Errors
/// Why the kernel would not have it.
pub fn try_block_on_lane<T, F>(config: LaneConfig, f: impl FnOnce(Lane) -> F) -> Result<T, StartError>
where
    F: Future<Output = T>,
{
    let shared = LaneShared::new(config.id).map_err(StartError::of_ring)?;
    pin(&config);
    let guard = EndGuard(Lane::new(&config, &shared)?);
    let main = std::pin::pin!(f(guard.0.clone()));
    let value = guard.0.run(Some(main));
    Ok(value.expect("the loop ends with its main future"))
}

/// As [`try_block_on_lane`], for tools and tests that cannot go on without a lane.
///
/// # Panics
/// If the lane cannot start, with the reason.
pub fn block_on_lane<T, F>(config: LaneConfig, f: impl FnOnce(Lane) -> F) -> T
where
    F: Future<Output = T>,
{
    match try_block_on_lane(config, f) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
