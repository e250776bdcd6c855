//! A connected pair of byte streams in memory.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use raid_core::lease::Lease;
use raid_core::units::usize_of_u32;
use server::nbd::transport::{Part, Peer, Transport};

/// Bytes one direction holds before its sender waits.
const CAPACITY: usize = 256 * 1024;

#[derive(Default)]
struct Way {
    data: std::collections::VecDeque<u8>,
    is_closed: bool,
    wakers: Vec<Waker>,
}

impl Way {
    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

type Shared = Arc<Mutex<Way>>;

/// One end.
#[derive(Clone)]
pub(crate) struct End {
    inward: Shared,
    outward: Shared,
    packet: usize,
}

/// Two connected ends; the first one's receives bring at most `packet` bytes.
pub(crate) fn pipe(packet: usize) -> (End, End) {
    let (a, b) = (Shared::default(), Shared::default());
    let first = End { inward: Arc::clone(&a), outward: Arc::clone(&b), packet };
    (first, End { inward: b, outward: a, packet: usize::MAX })
}

impl End {
    pub(crate) fn peer(&self) -> PipePeer {
        PipePeer(self.clone())
    }

    /// Closes both directions, as a process that dies does; what was sent can still be received.
    pub(crate) fn close(&self) {
        for way in [&self.inward, &self.outward] {
            let mut way = way.lock().unwrap();
            way.is_closed = true;
            way.wake();
        }
    }

    async fn take(&self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut way = self.inward.lock().unwrap();
            if way.data.is_empty() && !way.is_closed {
                way.wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
            let n = way.data.len().min(into.len()).min(self.packet);
            for (to, from) in into.iter_mut().zip(way.data.drain(..n)) {
                *to = from;
            }
            way.wake();
            Poll::Ready(Ok(n))
        })
        .await
    }

    /// Sends all of it.
    pub(crate) async fn put(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        poll_fn(|cx| {
            let mut way = self.outward.lock().unwrap();
            if way.is_closed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let n = (bytes.len() - sent).min(CAPACITY - way.data.len());
            way.data.extend(&bytes[sent..sent + n]);
            sent += n;
            way.wake();
            if sent == bytes.len() {
                return Poll::Ready(Ok(()));
            }
            way.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Receives exactly `n` bytes.
    pub(crate) async fn get(&self, n: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        let mut at = 0;
        while at < n {
            match self.take(&mut bytes[at..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => at += got,
            }
        }
        Ok(bytes)
    }
}

impl Transport for End {
    async fn recv(&self, mut buf: Vec<u8>, at: usize) -> (io::Result<usize>, Vec<u8>) {
        let got = self.take(&mut buf[at..]).await;
        (got, buf)
    }

    async fn recv_lease(&self, mut lease: Lease, at: u32) -> (io::Result<usize>, Lease) {
        let got = self.take(&mut lease.bytes_mut()[usize_of_u32(at)..]).await;
        (got, lease)
    }

    async fn send(&self, parts: Vec<Part>) -> io::Result<()> {
        for part in &parts {
            self.put(part.bytes()).await?;
        }
        Ok(())
    }

    fn shutdown(&self) {
        self.close();
    }
}

/// What other lanes see of an end.
pub(crate) struct PipePeer(End);

impl Peer for PipePeer {
    fn is_hung_up(&self) -> bool {
        self.0.inward.lock().unwrap().is_closed
    }

    fn hang_up(&self) {
        self.0.close();
    }
}
