//! Waiting between lanes: an event that tasks of any thread can wait on, and a mutex made of it.
//!
//! Invariants: a waker is registered before the condition is looked at a second time, so no wake-up is lost; nothing
//! here is held over an await except [`Turn`], whose holder is the one membership change in progress.

use core::future::poll_fn;
use core::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Wakes everybody who waits for a condition, whenever it may have changed.
#[derive(Default, Debug)]
pub(crate) struct Event {
    waiters: Mutex<Vec<Waker>>,
}

impl Event {
    /// The condition may hold now.
    pub(crate) fn notify(&self) {
        let waiters = core::mem::take(&mut *self.waiters.lock());
        for waker in waiters {
            waker.wake();
        }
    }

    fn register(&self, cx: &Context<'_>) {
        let mut waiters = self.waiters.lock();
        if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
    }

    /// Waits until `condition` gives a value.
    pub(crate) async fn wait_for<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            self.register(cx);
            condition().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// A mutex that tasks of several lanes can wait for and hold over awaits.
#[derive(Default, Debug)]
pub(crate) struct TurnLock {
    taken: Mutex<bool>,
    freed: Event,
}

/// The right to be the only one; given back when dropped.
pub(crate) struct Turn<'a>(&'a TurnLock);

impl TurnLock {
    /// Waits for its turn.
    pub(crate) async fn take(&self) -> Turn<'_> {
        self.freed.wait_for(|| self.try_take()).await
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_take(&self) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock();
        if *taken {
            return None;
        }
        *taken = true;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.freed.notify();
    }
}
