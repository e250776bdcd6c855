//! One metadata change of a group at a time: a mutex that tasks of any lane can wait for and hold over drive I/O.
//!
//! Invariant: a waiter is registered before the lock is looked at a second time, so no wake-up is lost; nothing inside
//! is held over an await.

use core::future::poll_fn;
use core::task::{Poll, Waker};

use parking_lot::Mutex;

#[derive(Default, Debug)]
struct State {
    taken: bool,
    waiters: Vec<Waker>,
}

/// The mutex.
#[derive(Default, Debug)]
pub(super) struct TurnLock(Mutex<State>);

/// The right to be the only one; given back when dropped.
pub(super) struct Turn<'a>(&'a TurnLock);

impl TurnLock {
    /// Waits for its turn.
    pub(super) async fn take(&self) -> Turn<'_> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if !state.taken {
                state.taken = true;
                return Poll::Ready(());
            }
            if !state.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiters = {
            let mut state = self.0.0.lock();
            state.taken = false;
            core::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}
