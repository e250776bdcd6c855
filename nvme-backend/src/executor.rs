//! The tasks of a lane: a slab of futures and a queue of those to poll.
//!
//! Wakers are `Send + Sync` and cheap on the lane's own thread: one atomic swap and a push to a thread-local queue. From
//! another thread the slot number goes through the lane's message queue. A slot keeps its waker when its task ends, so a
//! stale waker may poll the slot's next task once for nothing, which is harmless, and spawning allocates only the future.
//!
//! Invariants: a slot is queued at most once (`scheduled`); nothing of the slab is borrowed while a task is polled or
//! dropped, so tasks may spawn and wake freely.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use raid_core::units::usize_of_u32;

use crate::remote::{LaneShared, Message};

/// The slot number of the future that [`crate::block_on_lane`] runs, which lies on its caller's stack.
pub(crate) const MAIN: u32 = u32::MAX;

struct Local {
    /// Address of the `LaneShared` of the lane that runs on this thread; 0 while none does.
    owner: Cell<usize>,
    ready: RefCell<VecDeque<u32>>,
}

thread_local! {
    static LOCAL: Local = const { Local { owner: Cell::new(0), ready: RefCell::new(VecDeque::new()) } };
}

fn address(lane: &Arc<LaneShared>) -> usize {
    Arc::as_ptr(lane).addr()
}

/// What a waker points to.
pub(crate) struct Header {
    scheduled: AtomicBool,
    slot: u32,
    lane: Arc<LaneShared>,
}

impl Header {
    pub(crate) fn new(slot: u32, lane: &Arc<LaneShared>) -> Arc<Self> {
        Arc::new(Self { scheduled: AtomicBool::new(false), slot, lane: Arc::clone(lane) })
    }

    /// From now on a wake-up queues the slot again.
    pub(crate) fn will_poll(&self) {
        // A swap, not a store: what the waker's thread wrote before it woke us is visible from here on.
        self.scheduled.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let local = LOCAL.try_with(|local| {
            let is_local = local.owner.get() == address(&self.lane);
            if is_local {
                local.ready.borrow_mut().push_back(self.slot);
            }
            is_local
        });
        if !matches!(local, Ok(true)) {
            self.lane.send(Message::Wake(self.slot));
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    task: Option<Task>,
    /// Taken out while the task is polled.
    waker: Option<Waker>,
    header: Arc<Header>,
}

#[derive(Default)]
struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// The tasks of one lane.
pub(crate) struct Executor {
    shared: Arc<LaneShared>,
    slab: RefCell<Slab>,
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.leave_thread();
    }
}

impl Executor {
    /// Makes this thread the lane's own.
    ///
    /// # Panics
    /// If another lane runs on this thread.
    pub(crate) fn new(shared: &Arc<LaneShared>) -> Self {
        LOCAL.with(|local| {
            assert!(local.owner.get() == 0, "a thread runs one lane at a time");
            local.owner.set(address(shared));
        });
        Self { shared: Arc::clone(shared), slab: RefCell::default() }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let task: Task = Box::pin(task);
        let header = {
            let mut slab = self.slab.borrow_mut();
            let slot = match slab.free.pop() {
                Some(slot) => slot,
                None => {
                    let slot = u32::try_from(slab.slots.len()).expect("fewer than 2^32 tasks");
                    assert!(slot != MAIN, "fewer than 2^32 tasks");
                    let header = Header::new(slot, &self.shared);
                    let waker = Some(Waker::from(Arc::clone(&header)));
                    slab.slots.push(Slot { task: None, waker, header });
                    slot
                }
            };
            let slot = &mut slab.slots[usize_of_u32(slot)];
            slot.task = Some(task);
            Arc::clone(&slot.header)
        };
        header.wake_by_ref();
    }

    /// Queues a slot that another thread woke.
    pub(crate) fn push_ready(&self, slot: u32) {
        LOCAL.with(|local| local.ready.borrow_mut().push_back(slot));
    }

    pub(crate) fn pop_ready(&self) -> Option<u32> {
        LOCAL.with(|local| local.ready.borrow_mut().pop_front())
    }

    pub(crate) fn ready_count(&self) -> usize {
        LOCAL.with(|local| local.ready.borrow().len())
    }

    /// Polls the task in a slot, if there still is one.
    pub(crate) fn poll(&self, slot: u32) {
        let index = usize_of_u32(slot);
        let (mut task, waker) = {
            let mut slab = self.slab.borrow_mut();
            let Some(slot) = slab.slots.get_mut(index) else { return };
            slot.header.will_poll();
            let Some(task) = slot.task.take() else { return };
            (task, slot.waker.take().expect("a task is polled once at a time"))
        };
        let ended = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let ended_task = {
            let mut slab = self.slab.borrow_mut();
            let entry = &mut slab.slots[index];
            entry.waker = Some(waker);
            if ended {
                slab.free.push(slot);
                Some(task)
            } else {
                entry.task = Some(task);
                None
            }
        };
        drop(ended_task);
    }

    /// Number of tasks that have not ended.
    pub(crate) fn tasks(&self) -> usize {
        let slab = self.slab.borrow();
        slab.slots.len() - slab.free.len()
    }

    /// Drops all tasks, also those that dropping them spawns.
    pub(crate) fn clear(&self) {
        loop {
            let slots = std::mem::take(&mut *self.slab.borrow_mut());
            if slots.slots.is_empty() {
                return;
            }
            drop(slots);
        }
    }

    /// Drops all tasks and lets another lane have this thread; wake-ups from now on come to nothing.
    pub(crate) fn leave_thread(&self) {
        self.clear();
        // A lane may be dropped while its thread ends, after the thread's own storage; or, kept alive by a handle, when
        // another lane runs here.
        let _ = LOCAL.try_with(|local| {
            if local.owner.get() == address(&self.shared) {
                local.ready.borrow_mut().clear();
                local.owner.set(0);
            }
        });
    }
}
