//! Waiting: between the tasks of one lane (a condition signal, a first-come-first-served turn) and across lanes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Wakes tasks that wait for a condition over plain cells.
#[derive(Default)]
pub(crate) struct Signal(RefCell<Vec<Waker>>);

impl Signal {
    /// Completes when `condition` holds; whoever changes what it looks at calls [`Self::raise`].
    pub(crate) fn until(&self, condition: impl Fn() -> bool) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            if condition() {
                return Poll::Ready(());
            }
            let mut wakers = self.0.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Lets every waiting task look again.
    pub(crate) fn raise(&self) {
        // Taken out first: a waker may run code that comes back here.
        for waker in self.0.take() {
            waker.wake();
        }
    }
}

/// Exclusive turns, given in the order they were asked for.
#[derive(Default)]
pub(crate) struct Turns {
    next: Cell<u64>,
    serving: Cell<u64>,
    /// Tickets whose owners gave up waiting; skipped when they come up.
    given_up: RefCell<BTreeSet<u64>>,
    changed: Signal,
}

/// Somebody's place in the queue, then their turn; dropping it lets the next one go on.
pub(crate) struct Turn<'a>(&'a Turns, u64);

impl Turns {
    /// Waits for a turn.
    pub(crate) async fn take(&self) -> Turn<'_> {
        let turn = Turn(self, self.next.get());
        self.next.set(turn.1 + 1);
        self.changed.until(|| self.serving.get() == turn.1).await;
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Self(turns, ticket) = *self;
        if turns.serving.get() != ticket {
            turns.given_up.borrow_mut().insert(ticket);
            return;
        }
        let mut next = ticket + 1;
        while turns.given_up.borrow_mut().remove(&next) {
            next += 1;
        }
        turns.serving.set(next);
        turns.changed.raise();
    }
}

/// Lets every other ready task of the lane run once.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A [`Signal`] for conditions over atomics that tasks of several lanes look at.
#[derive(Default)]
pub(crate) struct SharedSignal(Mutex<Vec<Waker>>);

impl SharedSignal {
    /// Completes when `condition` holds; whoever changes what it looks at calls [`Self::raise`] afterwards.
    pub(crate) fn until(&self, condition: impl Fn() -> bool) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            if condition() {
                return Poll::Ready(());
            }
            let mut wakers = self.0.lock();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            drop(wakers);
            // Again, now that a change cannot be missed.
            if condition() { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Lets every waiting task look again.
    pub(crate) fn raise(&self) {
        let wakers = core::mem::take(&mut *self.0.lock());
        for waker in wakers {
            waker.wake();
        }
    }
}
