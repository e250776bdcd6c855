//! A single-threaded executor that polls ready tasks in seeded random order, and moves the virtual clock forward only
//! when nothing else can run.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    ready: Arc<Flag>,
}

#[derive(Default)]
struct State {
    spawned: RefCell<Vec<Task>>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    now_ns: Cell<u64>,
    timer_number: Cell<u64>,
    random: Cell<u64>,
}

/// Handle of the executor; clones share it.
#[derive(Clone)]
pub struct Executor {
    state: Rc<State>,
}

impl Executor {
    /// An executor whose choices all follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = Rc::new(State::default());
        state.random.set(seed);
        Self { state }
    }

    /// The next word of the seeded generator (splitmix64).
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        let next = self.state.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.random.set(next);
        let z = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Virtual time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.now_ns.get()
    }

    /// Adds a task.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let ready = Arc::new(Flag(AtomicBool::new(true)));
        self.state.spawned.borrow_mut().push(Task { future: Box::pin(future), ready });
    }

    /// Completes when the virtual clock reaches `deadline_ns`.
    pub fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> + use<> {
        let state = Rc::clone(&self.state);
        let number = state.timer_number.get();
        state.timer_number.set(number + 1);
        std::future::poll_fn(move |cx| {
            if state.now_ns.get() >= deadline_ns {
                return Poll::Ready(());
            }
            state.timers.borrow_mut().insert((deadline_ns, number), cx.waker().clone());
            Poll::Pending
        })
    }

    /// Runs `main` and everything spawned until `main` is done.
    ///
    /// # Panics
    /// If nothing can make progress any more: a lost wake-up or a deadlock.
    pub fn block_on<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        self.spawn(async move {
            let value = main.await;
            *slot.borrow_mut() = Some(value);
        });
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            tasks.append(&mut self.state.spawned.borrow_mut());
            let ready: Vec<usize> =
                (0..tasks.len()).filter(|&i| tasks[i].ready.0.load(Ordering::Acquire)).collect();
            if ready.is_empty() {
                let next = self.state.timers.borrow_mut().pop_first();
                let Some(((deadline_ns, _), waker)) = next else {
                    panic!("deadlock: {} tasks wait and no timer is set", tasks.len());
                };
                self.state.now_ns.set(deadline_ns.max(self.state.now_ns.get()));
                waker.wake();
                continue;
            }
            let pick =
                ready[raid_core::units::usize_of(self.random_u64() % raid_core::units::u64_of(ready.len()))];
            tasks[pick].ready.0.store(false, Ordering::Release);
            let waker = Waker::from(Arc::clone(&tasks[pick].ready));
            if tasks[pick].future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                drop(tasks.swap_remove(pick));
            }
            if let Some(value) = result.borrow_mut().take() {
                // What still runs goes on in the next call.
                self.state.spawned.borrow_mut().append(&mut tasks);
                return value;
            }
        }
    }
}
