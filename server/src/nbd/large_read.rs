//! A read larger than one window: read and sent window by window, with two sets of buffers whatever its length.
//!
//! With structured replies each window is a chunk of its own, and other replies may go between. With simple replies, or
//! when the client wants one chunk, the reply's header promises all data: nothing may come between, and a read error
//! after the first window can only be told by cutting the connection off, as the protocol asks.
//!
//! Invariant (no deadlock): a large read takes its turn among large reads, then its leases (once), then the turn to send;
//! whoever waits for the turn to send holds what it needs to send, so turn after turn is given up as the client reads.

use std::io;
use std::rc::Rc;

use raid_core::lease::{Lease, Leases, Seg};
use raid_core::units::u32_of;
use smallvec::SmallVec;

use super::check::errno_of;
use super::outbox::{Outbox, Token};
use super::sync::Turn;
use super::transport::{Part, Transport};
use super::wire::{self, Errno, chunk};
use crate::disk::{Export, WINDOW_BYTES_MAX};

/// The read.
pub(crate) struct LargeRead<T, X> {
    pub(crate) outbox: Rc<Outbox<T>>,
    pub(crate) export: X,
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) is_structured: bool,
    /// Each window is a chunk of its own.
    pub(crate) is_chunked: bool,
}

const WINDOW_BYTES: u64 = 1 << WINDOW_BYTES_MAX.ilog2();

/// Why it cannot go on.
enum Stop {
    /// The disk failed in the window at this offset.
    Read(Errno, u64),
    /// The client is gone.
    Send,
}

impl<T: Transport, X: Export> LargeRead<T, X> {
    /// Bytes of buffers it needs: the first window, which may be short, and one that serves all others.
    pub(crate) const BYTES: u64 = 2 * WINDOW_BYTES;

    /// Runs it. The caller has admitted [`Self::BYTES`].
    pub(crate) async fn run(self, token: Token<T>) {
        let turn = self.outbox.large_read.take().await;
        if self.outbox.is_broken() {
            token.cut_off();
        } else {
            match self.read_and_send(token.cookie()).await {
                Ok(()) => token.was_sent(),
                Err(Stop::Read(error, at)) if at == self.at => token.fail(error),
                Err(Stop::Read(error, at)) if self.is_chunked => token.fail_at(error, at),
                Err(Stop::Read(..) | Stop::Send) => token.cut_off(),
            }
        }
        drop(turn);
        self.outbox.release_bytes(Self::BYTES);
    }

    /// Length of the window at `at`: up to the next multiple of the window size, so that all but the first are cut into
    /// the same pieces (pieces repeat with every power of two of at least their own bound).
    fn window(&self, at: u64) -> u32 {
        let window = u64::from(WINDOW_BYTES_MAX);
        let end = self.at + u64::from(self.len);
        u32_of(((at / window + 1) * window).min(end) - at)
    }

    async fn read_and_send(&self, cookie: u64) -> Result<(), Stop> {
        let end = self.at + u64::from(self.len);
        let second = self.at + u64::from(self.window(self.at));
        let mut sizes: SmallVec<[u32; 32]> = self.export.pieces(self.at, self.window(self.at)).collect();
        let n = sizes.len();
        sizes.extend(self.export.pieces(second, self.window(second)));
        let mut first = self.export.lease(&sizes).await;
        let mut later: Leases = first.drain(n..).collect();

        let mut held: Option<Turn<'_>> = None;
        let mut at = self.at;
        while at < end {
            let len = self.window(at);
            let leases = core::mem::take(if at == self.at { &mut first } else { &mut later });
            let data = self.read_window(at, shortened(leases, len)).await?;
            let mut parts = Vec::with_capacity(data.len() + 1);
            if self.is_chunked || at == self.at {
                parts.push(Part::Bytes(self.header(cookie, at, len)));
            }
            let segs: SmallVec<[Seg; 16]> = data.into_iter().map(Lease::share).collect();
            parts.extend(segs.iter().cloned().map(Part::Seg));
            let turn = match held.take() {
                Some(turn) => turn,
                None => self.outbox.sending.take().await,
            };
            self.outbox.send(parts).await.map_err(|_| Stop::Send)?;
            if !self.is_chunked {
                held = Some(turn);
            }
            if at != self.at {
                later = reclaimed(segs).map_err(|_| Stop::Send)?;
            }
            at += u64::from(len);
        }
        Ok(())
    }

    async fn read_window(&self, at: u64, leases: Leases) -> Result<Leases, Stop> {
        let done = self.export.read(at, leases).await;
        if let Err(error) = done.result {
            return Err(Stop::Read(errno_of(error), at));
        }
        done.buf.ok_or(Stop::Read(Errno::Io, at))
    }

    /// What goes before the data of the window at `at`.
    fn header(&self, cookie: u64, at: u64, len: u32) -> Vec<u8> {
        let mut head = Vec::with_capacity(32);
        if !self.is_structured {
            wire::put_simple_reply(&mut head, cookie, None);
        } else if self.is_chunked {
            let is_last = at + u64::from(len) == self.at + u64::from(self.len);
            let flags = if is_last { chunk::FLAG_DONE } else { 0 };
            wire::put_data_chunk(&mut head, cookie, flags, at, len);
        } else {
            wire::put_data_chunk(&mut head, cookie, chunk::FLAG_DONE, at, self.len);
        }
        head
    }
}

/// The first `len` bytes of leases.
fn shortened(mut leases: Leases, len: u32) -> Leases {
    let mut left = len;
    let mut n = 0;
    for lease in &mut leases {
        if left == 0 {
            break;
        }
        lease.truncate(left);
        left -= lease.len();
        n += 1;
    }
    assert_eq!(left, 0, "buffers shorter than their window");
    leases.truncate(n);
    leases
}

/// Unique buffers again after a send.
fn reclaimed(segs: SmallVec<[Seg; 16]>) -> io::Result<Leases> {
    segs.into_iter()
        .map(|seg| seg.into_lease().map_err(|_| io::Error::other("a send kept its buffers after its end")))
        .collect()
}
