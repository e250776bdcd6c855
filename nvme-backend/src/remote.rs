//! Reaching a lane from other threads: a queue, and an eventfd that the lane's ring polls.
//!
//! Invariant (no lost wake-up): a sender pushes, then looks at `sleeping`; the lane sets `sleeping`, then looks at the
//! queue; both with sequentially consistent fences between, so at least one of the two sees the other. The eventfd is
//! written only when the lane is about to sleep, so a busy lane costs a sender no system call.
//!
//! The queue has no limit of its own: wake-ups are at most one per task (`Header::scheduled`), jobs are as many as their
//! senders let be outstanding.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam::queue::SegQueue;
use raid_core::units::LaneId;
use rustix::event::{EventfdFlags, eventfd};

use crate::lane::Lane;

/// Work for a lane, run on its thread.
pub type Job = Box<dyn FnOnce(&Lane) + Send>;

/// What other threads send to a lane.
pub(crate) enum Message {
    /// Run this.
    Run(Job),
    /// Poll the task in this slot.
    Wake(u32),
}

/// The part of a lane that other threads see.
pub(crate) struct LaneShared {
    pub(crate) id: LaneId,
    queue: SegQueue<Message>,
    eventfd: OwnedFd,
    /// The lane is in the kernel, or about to go there, without having seen the queue again.
    sleeping: AtomicBool,
    stopping: AtomicBool,
    ended: AtomicBool,
}

impl LaneShared {
    pub(crate) fn new(id: LaneId) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            id,
            queue: SegQueue::new(),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }))
    }

    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    pub(crate) fn send(&self, message: Message) {
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        self.queue.push(message);
        self.wake();
        if self.ended.load(Ordering::SeqCst) {
            self.end();
        }
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::SeqCst) {
            // The counter is at most one per sleep and is never near overflow, so the write cannot fail or block; if
            // the kernel refused it all the same, the lane would sleep on with work queued, so say so.
            let written = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
            assert!(matches!(written, Ok(8)), "waking lane {}: {written:?}", self.id);
        }
    }

    /// Called by the lane before it sleeps: whether it may. A lane that runs one future to its end heeds no stop.
    pub(crate) fn may_sleep(&self, heeds_stop: bool) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let may = self.queue.is_empty() && !(heeds_stop && self.stopping.load(Ordering::Relaxed));
        if !may {
            self.awake();
        }
        may
    }

    /// Called by the lane after it slept.
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    pub(crate) fn pop(&self) -> Option<Message> {
        self.queue.pop()
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The lane takes no more messages; what is queued is dropped (a job may hold a handle of its own lane).
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        while self.queue.pop().is_some() {}
    }
}

/// Handle of a running lane from any thread.
#[derive(Clone)]
pub struct Remote(pub(crate) Arc<LaneShared>);

impl Remote {
    /// The lane's number.
    #[must_use]
    pub fn id(&self) -> LaneId {
        self.0.id
    }

    /// Queues a job for the lane and wakes it. Jobs of one sender run in order. A lane that has ended drops the job
    /// unrun.
    pub fn run(&self, job: Job) {
        self.0.send(Message::Run(job));
    }

    /// Asks the lane to end: its tasks are dropped, I/O in flight is waited for (bounded), then the thread returns. A lane run by `block_on_lane` ends with its future and heeds no stop.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Whether the lane has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote(lane {})", self.0.id)
    }
}
