//! Timers of a lane: an ordered map from deadline to waker. The lane sleeps at most until the first of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::lane::Lane;

/// The timers of one lane.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    next_number: Cell<u64>,
}

impl Timers {
    fn number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    /// The first deadline, if any timer waits.
    pub(crate) fn first_ns(&self) -> Option<u64> {
        self.waiting.borrow().first_key_value().map(|((deadline_ns, _), _)| *deadline_ns)
    }

    /// Wakes all whose deadline has come.
    pub(crate) fn fire(&self, now_ns: u64) {
        let mut due: SmallVec<[Waker; 8]> = SmallVec::new();
        {
            let mut waiting = self.waiting.borrow_mut();
            while let Some(first) = waiting.first_entry() {
                if first.key().0 > now_ns {
                    break;
                }
                due.push(first.remove());
            }
        }
        for waker in due {
            waker.wake();
        }
    }

    /// Forgets all timers.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }
}

/// Completes when the lane's clock reaches the deadline.
pub(crate) struct Sleep {
    lane: Lane,
    deadline_ns: u64,
    number: u64,
}

impl Sleep {
    pub(crate) fn new(lane: Lane, deadline_ns: u64) -> Self {
        let number = lane.timers().number();
        Self { lane, deadline_ns, number }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.lane.now_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        let before = self.lane.timers().waiting.borrow_mut().insert((self.deadline_ns, self.number), waker);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.lane.timers().waiting.borrow_mut().remove(&(self.deadline_ns, self.number));
        drop(waker);
    }
}
