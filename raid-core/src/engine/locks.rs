//! Stripe locks (SAFETY S2): first come first served, shared or exclusive, over ranges of stripes, across lanes.
//!
//! A stripe's lock is the bucket `stripe % BUCKETS`. Two stripes may share a bucket, which costs parallelism and never
//! correctness. A range takes its buckets in ascending order, so two ranges can never wait for each other; a range is at
//! most [`STRIPES_MAX`] stripes, so it never meets a bucket twice. Uncontended, a bucket costs one short mutex and no
//! allocation. Whoever waits here holds no view (a view change would wait for it for ever).

use core::future::poll_fn;
use core::ops::Range;
use core::task::{Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::units::usize_of;

const BUCKETS: usize = 4096;
/// Most stripes one guard can hold.
pub(crate) const STRIPES_MAX: u64 = 1024;

/// How a stripe is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    /// With other readers: reconstruction that writes nothing.
    Shared,
    /// Alone: everything that writes.
    Exclusive,
}

enum Wait {
    Queued(Option<Waker>),
    Granted,
}

struct Waiter {
    mode: LockMode,
    wait: Mutex<Wait>,
}

#[derive(Default)]
struct Bucket {
    /// Holders: readers, or `EXCLUSIVE`.
    holders: u32,
    queue: VecDeque<Arc<Waiter>>,
}

const EXCLUSIVE: u32 = u32::MAX;

impl Bucket {
    fn try_enter(&mut self, mode: LockMode) -> bool {
        match mode {
            LockMode::Exclusive if self.holders == 0 => self.holders = EXCLUSIVE,
            LockMode::Shared if self.holders < EXCLUSIVE - 1 => self.holders += 1,
            _ => return false,
        }
        true
    }

    fn leave(&mut self) {
        self.holders = if self.holders == EXCLUSIVE { 0 } else { self.holders - 1 };
        self.grant();
    }

    /// Lets in whoever is first in the queue, and the readers right behind a reader.
    fn grant(&mut self) {
        while let Some(mode) = self.queue.front().map(|waiter| waiter.mode) {
            if !self.try_enter(mode) {
                return;
            }
            let waiter = self.queue.pop_front().expect("the queue has a front");
            let old = core::mem::replace(&mut *waiter.wait.lock(), Wait::Granted);
            if let Wait::Queued(Some(waker)) = old {
                waker.wake();
            }
        }
    }
}

/// The lock table of one group.
pub(crate) struct LockTable {
    buckets: Box<[Mutex<Bucket>]>,
}

/// Stripes held; given back when dropped.
pub(crate) struct StripeGuard<'a> {
    table: &'a LockTable,
    /// First bucket of the part that does not wrap, and how many buckets wrap to the start of the table.
    start: usize,
    wrapped: usize,
    held: usize,
}

impl StripeGuard<'_> {
    fn bucket(&self, i: usize) -> &Mutex<Bucket> {
        let index = if i < self.wrapped { i } else { self.start + i - self.wrapped };
        &self.table.buckets[index]
    }
}

impl Drop for StripeGuard<'_> {
    fn drop(&mut self) {
        for i in 0..self.held {
            self.bucket(i).lock().leave();
        }
    }
}

impl LockTable {
    pub(crate) fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Mutex::default()).collect() }
    }

    /// Takes the stripes; waits for whoever came first.
    pub(crate) async fn lock(&self, stripes: Range<u64>, mode: LockMode) -> StripeGuard<'_> {
        assert!(stripes.end - stripes.start <= STRIPES_MAX, "{stripes:?} is too many stripes for one lock");
        let count = usize_of(stripes.end - stripes.start);
        let start = usize_of(stripes.start) % BUCKETS;
        let wrapped = (start + count).saturating_sub(BUCKETS);
        let mut guard = StripeGuard { table: self, start, wrapped, held: 0 };
        for i in 0..count {
            let entered = {
                let mut bucket = guard.bucket(i).lock();
                bucket.queue.is_empty() && bucket.try_enter(mode)
            };
            if !entered {
                wait_in(guard.bucket(i), mode).await;
            }
            guard.held = i + 1;
        }
        guard
    }
}

/// A place in a queue; leaves it (or gives the grant back) if the waiting task goes away.
struct Place<'a> {
    bucket: &'a Mutex<Bucket>,
    waiter: Arc<Waiter>,
    done: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut bucket = self.bucket.lock();
        if matches!(*self.waiter.wait.lock(), Wait::Granted) {
            bucket.leave();
        } else {
            bucket.queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            bucket.grant();
        }
    }
}

async fn wait_in(bucket: &Mutex<Bucket>, mode: LockMode) {
    let waiter = Arc::new(Waiter { mode, wait: Mutex::new(Wait::Queued(None)) });
    {
        let mut bucket = bucket.lock();
        bucket.queue.push_back(Arc::clone(&waiter));
        bucket.grant();
    }
    let mut place = Place { bucket, waiter, done: false };
    poll_fn(|cx| {
        let mut wait = place.waiter.wait.lock();
        match &mut *wait {
            Wait::Granted => Poll::Ready(()),
            Wait::Queued(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
    .await;
    place.done = true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;

    fn poll_once<F: Future>(future: core::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn writers_exclude_readers_do_not_and_nobody_overtakes() {
        let table = LockTable::new();
        let mut first = pin!(table.lock(4..6, LockMode::Shared));
        let first = poll_once(first.as_mut()).expect("free");
        let mut second = pin!(table.lock(5..7, LockMode::Shared));
        let second = poll_once(second.as_mut()).expect("readers share");
        let mut writer = pin!(table.lock(5..6, LockMode::Exclusive));
        assert!(poll_once(writer.as_mut()).is_none());
        let mut late = pin!(table.lock(5..6, LockMode::Shared));
        assert!(poll_once(late.as_mut()).is_none(), "a reader must not overtake a waiting writer");
        drop(first);
        drop(second);
        let writer = poll_once(writer.as_mut()).expect("its turn");
        assert!(poll_once(late.as_mut()).is_none());
        drop(writer);
        assert!(poll_once(late.as_mut()).is_some());
    }

    #[test]
    fn a_waiter_that_goes_away_blocks_nobody() {
        let table = LockTable::new();
        let held = poll_once(pin!(table.lock(0..1, LockMode::Shared)).as_mut()).expect("free");
        {
            let mut gone = pin!(table.lock(0..1, LockMode::Exclusive));
            assert!(poll_once(gone.as_mut()).is_none());
        }
        assert!(poll_once(pin!(table.lock(0..1, LockMode::Shared)).as_mut()).is_some());
        drop(held);
    }

    #[test]
    fn a_range_across_the_end_of_the_table_holds_every_bucket_once() {
        let table = LockTable::new();
        let at = 4096 - 2;
        let held = poll_once(pin!(table.lock(at..at + 5, LockMode::Exclusive)).as_mut()).expect("free");
        for stripe in at..at + 5 {
            assert!(poll_once(pin!(table.lock(stripe..stripe + 1, LockMode::Shared)).as_mut()).is_none());
        }
        assert!(poll_once(pin!(table.lock(3..4, LockMode::Shared)).as_mut()).is_some());
        drop(held);
        assert!(poll_once(pin!(table.lock(0..5, LockMode::Exclusive)).as_mut()).is_some());
    }
}
