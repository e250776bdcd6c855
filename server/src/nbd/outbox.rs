//! What a connection has in flight and what it still has to send.
//!
//! Invariants: a request's place (`in_flight`) is given back only when its reply has been sent or can no longer be, and
//! the bytes of a reply's buffers likewise, so a client that stops reading stops being read from and its memory stays
//! bounded; every request is answered exactly once ([`Token`]); one send runs at a time.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use raid_core::lease::{Leases, leases_len};
use raid_core::units::u32_of;

use super::clients::Client;
use super::sync::{Signal, Turns, yield_now};
use super::transport::{Part, Transport};
use super::wire::{self, Errno, chunk};

/// Read data up to this size is copied behind its header: cheaper than two more entries in the send's vector, and the
/// buffer is free at once.
const COPY_BYTES_MAX: u64 = 4096;
/// Most parts given to one send (the kernel takes 1024 vector entries).
const PARTS_MAX: usize = 512;

/// How much a connection may have in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests received and not yet answered.
    pub requests: u32,
    /// Bytes of request buffers; one request may exceed it, alone.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests: 128, bytes: 8 * 1024 * 1024 }
    }
}

/// Replies that are ready to be sent, in the order in which they became so.
#[derive(Default)]
struct Batch {
    parts: Vec<Part>,
    /// Bytes behind the last part.
    tail: Vec<u8>,
    replies: u32,
    bytes: u64,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.replies == 0
    }

    fn push_data(&mut self, leases: Leases) {
        if leases_len(&leases) <= COPY_BYTES_MAX {
            for lease in &leases {
                self.tail.extend_from_slice(lease.bytes());
            }
            return;
        }
        self.close_tail();
        self.parts.extend(leases.into_iter().map(Part::Lease));
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push(Part::Bytes(core::mem::take(&mut self.tail)));
        }
    }
}

/// The state a connection's tasks share.
pub(crate) struct Outbox<T> {
    pub(crate) transport: Rc<T>,
    pub(crate) client: Arc<Client>,
    limits: Limits,
    ready: RefCell<Batch>,
    in_flight: Cell<u32>,
    in_flight_bytes: Cell<u64>,
    is_reader_done: Cell<bool>,
    is_writer_done: Cell<bool>,
    /// The client cannot be reached any more.
    is_broken: Cell<bool>,
    /// Something above changed.
    changed: Signal,
    /// There is something for the writer.
    work: Signal,
    /// Whose turn to send it is.
    pub(crate) sending: Turns,
    /// Whose turn it is to run a read too large for one window; taken before its leases, and those before `sending`.
    pub(crate) large_read: Turns,
}

impl<T: Transport> Outbox<T> {
    pub(crate) fn new(transport: Rc<T>, client: Arc<Client>, limits: Limits) -> Rc<Self> {
        Rc::new(Self {
            transport,
            client,
            limits,
            ready: RefCell::default(),
            in_flight: Cell::new(0),
            in_flight_bytes: Cell::new(0),
            is_reader_done: Cell::new(false),
            is_writer_done: Cell::new(false),
            is_broken: Cell::new(false),
            changed: Signal::default(),
            work: Signal::default(),
            sending: Turns::default(),
            large_read: Turns::default(),
        })
    }

    /// Waits for a place for one more request.
    pub(crate) async fn admit(self: &Rc<Self>, cookie: u64, is_structured: bool) -> Token<T> {
        self.changed.until(|| self.in_flight.get() < self.limits.requests).await;
        self.in_flight.set(self.in_flight.get() + 1);
        Token { outbox: Rc::clone(self), cookie, is_structured, is_answered: false }
    }

    /// Waits until `bytes` more may be in flight; [`Self::release_bytes`] gives them back. Only the reader asks, so
    /// requests get their bytes in the order they came.
    pub(crate) async fn admit_bytes(&self, bytes: u64) {
        let fits = || {
            let now = self.in_flight_bytes.get();
            now == 0 || now + bytes <= self.limits.bytes
        };
        self.changed.until(fits).await;
        self.in_flight_bytes.set(self.in_flight_bytes.get() + bytes);
    }

    pub(crate) fn release_bytes(&self, bytes: u64) {
        let now = self.in_flight_bytes.get();
        self.in_flight_bytes.set(now.checked_sub(bytes).expect("more bytes released than admitted"));
        self.changed.raise();
    }

    /// Whether a request that has not started is not worth starting: nobody would hear of it.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.get() || self.client.is_fenced()
    }

    /// The client cannot be reached any more: the reader is made to see it, too.
    fn break_off(&self) {
        if !self.is_broken.replace(true) {
            self.client.fence();
            self.transport.shutdown();
        }
    }

    /// Sends parts while it is the caller's turn.
    pub(crate) async fn send(&self, parts: Vec<Part>) -> io::Result<()> {
        if self.is_broken.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = self.transport.send(parts).await;
        if sent.is_err() {
            self.break_off();
        }
        sent
    }

    /// The places and bytes of replies that were sent, or never will be.
    fn is_sent(&self, replies: u32, bytes: u64) {
        let now = self.in_flight.get();
        self.in_flight.set(now.checked_sub(replies).expect("more replies than requests"));
        self.release_bytes(bytes);
        if self.is_over() {
            self.work.raise();
        }
    }

    fn is_over(&self) -> bool {
        self.is_reader_done.get() && self.in_flight.get() == 0
    }

    /// Sends what is ready until the reader is done and everything is answered. Replies that become ready in one turn of
    /// the lane, or while a send is in progress, go out in one send.
    pub(crate) async fn write_replies(self: Rc<Self>) {
        loop {
            self.work.until(|| !self.ready.borrow().is_empty() || self.is_over()).await;
            if self.ready.borrow().is_empty() {
                self.is_writer_done.set(true);
                self.changed.raise();
                return;
            }
            yield_now().await;
            let turn = self.sending.take().await;
            let mut batch = self.ready.take();
            batch.close_tail();
            let mut parts = batch.parts;
            while !parts.is_empty() {
                let later = parts.split_off(parts.len().min(PARTS_MAX));
                if self.send(core::mem::replace(&mut parts, later)).await.is_err() {
                    break;
                }
            }
            drop(parts);
            drop(turn);
            self.is_sent(batch.replies, batch.bytes);
        }
    }

    /// No more requests will come; completes when every request has ended and what could be sent is sent.
    pub(crate) async fn finish(&self) {
        self.is_reader_done.set(true);
        self.work.raise();
        self.changed.until(|| self.is_writer_done.get()).await;
    }

    /// Adds one reply.
    fn put(&self, reply: impl FnOnce(&mut Batch)) {
        if self.is_broken.get() {
            self.is_sent(1, 0);
            return;
        }
        let mut ready = self.ready.borrow_mut();
        reply(&mut ready);
        ready.replies += 1;
        drop(ready);
        self.work.raise();
    }
}

/// A request that must be answered. Dropping it unanswered while its client can be reached is a bug: it panics in debug
/// builds and answers EIO in release builds. (A lane that ends drops the requests of clients it has cut off.)
pub(crate) struct Token<T: Transport> {
    outbox: Rc<Outbox<T>>,
    cookie: u64,
    /// The reply must be a structured one.
    is_structured: bool,
    is_answered: bool,
}

impl<T: Transport> Token<T> {
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Success without data.
    pub(crate) fn done(mut self) {
        self.is_answered = true;
        self.outbox.put(|batch| {
            if self.is_structured {
                wire::put_chunk(&mut batch.tail, self.cookie, chunk::FLAG_DONE, chunk::NONE, 0);
            } else {
                wire::put_simple_reply(&mut batch.tail, self.cookie, None);
            }
        });
    }

    /// Failure.
    pub(crate) fn fail(mut self, error: Errno) {
        self.put_failure(error);
    }

    fn put_failure(&mut self, error: Errno) {
        self.is_answered = true;
        self.outbox.put(|batch| {
            if self.is_structured {
                wire::put_error_chunk(&mut batch.tail, self.cookie, error);
            } else {
                wire::put_simple_reply(&mut batch.tail, self.cookie, Some(error));
            }
        });
    }

    /// Failure from `offset` on of a read whose first chunks were sent.
    pub(crate) fn fail_at(mut self, error: Errno, offset: u64) {
        self.is_answered = true;
        self.outbox.put(|batch| {
            wire::put_error_offset_chunk(&mut batch.tail, self.cookie, error, offset);
        });
    }

    /// The data of a read; its admitted bytes are released when it has been sent.
    pub(crate) fn data(mut self, offset: u64, leases: Leases) {
        self.is_answered = true;
        let bytes = leases_len(&leases);
        if self.outbox.is_broken.get() {
            drop(leases);
            self.outbox.is_sent(1, bytes);
            return;
        }
        self.outbox.put(|batch| {
            if self.is_structured {
                let len = u32_of(bytes);
                wire::put_data_chunk(&mut batch.tail, self.cookie, chunk::FLAG_DONE, offset, len);
            } else {
                wire::put_simple_reply(&mut batch.tail, self.cookie, None);
            }
            batch.push_data(leases);
            batch.bytes += bytes;
        });
    }

    /// One extent of `len` bytes, all allocated.
    pub(crate) fn status(mut self, len: u32) {
        self.is_answered = true;
        self.outbox.put(|batch| wire::put_block_status(&mut batch.tail, self.cookie, len, 0));
    }

    /// The reply was sent by the caller.
    pub(crate) fn was_sent(mut self) {
        self.is_answered = true;
        self.outbox.is_sent(1, 0);
    }

    /// The client is gone, or is cut off in the middle of a reply: no answer is possible.
    pub(crate) fn cut_off(mut self) {
        self.is_answered = true;
        self.outbox.break_off();
        self.outbox.is_sent(1, 0);
    }
}

impl<T: Transport> Drop for Token<T> {
    fn drop(&mut self) {
        if self.is_answered || self.outbox.is_broken() || self.outbox.client.is_hung_up() {
            return;
        }
        debug_assert!(std::thread::panicking(), "request {} was dropped unanswered", self.cookie);
        tracing::error!(cookie = self.cookie, "request dropped unanswered: answering EIO");
        self.put_failure(Errno::Io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::transport::Peer;
    use raid_core::lease::Lease;
    use std::future::pending;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    struct Nowhere;

    impl Transport for Nowhere {
        async fn recv(&self, _buf: Vec<u8>, _at: usize) -> (io::Result<usize>, Vec<u8>) {
            pending().await
        }

        async fn recv_lease(&self, _lease: Lease, _at: u32) -> (io::Result<usize>, Lease) {
            pending().await
        }

        async fn send(&self, _parts: Vec<Part>) -> io::Result<()> {
            Ok(())
        }

        fn shutdown(&self) {}
    }

    impl Peer for Nowhere {
        fn is_hung_up(&self) -> bool {
            false
        }

        fn hang_up(&self) {}
    }

    fn outbox(limits: Limits) -> Rc<Outbox<Nowhere>> {
        Outbox::new(Rc::new(Nowhere), Client::new("nobody".to_owned(), Box::new(Nowhere)), limits)
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "request 7 was dropped unanswered")]
    fn a_request_dropped_unanswered_is_noticed() {
        drop(now(outbox(Limits::default()).admit(7, false)));
    }

    #[test]
    fn places_and_bytes_are_bounded_and_come_back() {
        let outbox = outbox(Limits { requests: 2, bytes: 100 });
        let first = now(outbox.admit(1, false)).unwrap();
        let second = now(outbox.admit(2, false)).unwrap();
        assert!(now(outbox.admit(3, false)).is_none());
        first.done();
        assert!(now(outbox.admit(3, false)).is_none(), "answered, but not sent");
        assert!(now(Rc::clone(&outbox).write_replies()).is_none(), "waits for its turn of the lane");
        outbox.is_sent(1, 0);
        let third = now(outbox.admit(3, false)).unwrap();
        assert!(now(outbox.admit_bytes(1000)).is_some(), "one may exceed the bound, alone");
        assert!(now(outbox.admit_bytes(1)).is_none());
        outbox.release_bytes(1000);
        assert!(now(outbox.admit_bytes(60)).is_some());
        assert!(now(outbox.admit_bytes(41)).is_none());
        assert!(now(outbox.admit_bytes(40)).is_some());
        second.cut_off();
        third.done();
        assert!(outbox.is_broken());
        assert_eq!(outbox.in_flight.get(), 0);
    }
}
