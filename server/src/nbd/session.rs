//! One connection: the handshake, then requests until the client leaves.
//!
//! A reader takes requests off the stream and starts a task for each; the tasks answer in whatever order the disk does;
//! a writer sends the answers. Payload is copied once, from the receive buffer into the request's leases, or received
//! right into them when it is large. Requests beyond one window ([`WINDOW_BYTES_MAX`]) are run as several, so no request
//! needs more memory than two windows, whatever its length.
//!
//! Invariants:
//! - A change is started (the export's future first polled) in the same poll that finds its connection not fenced.
//! - When [`run`] completes, no request of the connection is in flight.
//! - Leases are asked for in one call per window, by a task that holds no others.

use std::cell::Cell;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use raid_core::lease::{Leases, Segs, segs_len};
use raid_core::ports::{Clock, Durability, Env};
use raid_core::units::{u32_of, u64_of, usize_of_u32};
use smallvec::SmallVec;

use super::check::{Op, check, errno_of};
use super::clients::{Changing, Client, Clients};
use super::haggle::{Agreed, Catalog, Haggle, Progress};
use super::large_read::LargeRead;
use super::outbox::{Limits, Outbox, Token};
use super::transport::{Part, Transport};
use super::wire::{Errno, REQUEST_BYTES, Request, command};
use crate::disk::{Export, WINDOW_BYTES_MAX};

/// Size of the receive buffer: dozens of small requests in one receive.
const INPUT_BYTES: usize = 128 * 1024;
/// What is missing of a lease's payload is received straight into it from this size on.
const DIRECT_BYTES_MIN: u32 = 8 * 1024;
/// A client that has not chosen an export by then is cut off.
pub const HANDSHAKE_NS_MAX: u64 = 120 * 1_000_000_000;

/// What a listener serves, as one lane sees it.
pub trait Directory: Catalog {
    /// How a disk is reached.
    type Export: Export;

    /// The export of this canonical name, and who is connected to it.
    fn open(&self, name: &str) -> Option<(Self::Export, Arc<Clients>)>;
}

/// Bytes received and not yet used.
struct Input {
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn new() -> Self {
        Self { buf: vec![0; INPUT_BYTES], start: 0, end: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    fn consume(&mut self, n: usize) {
        self.start += n;
        assert!(self.start <= self.end, "more consumed than received");
    }

    /// Receives more.
    async fn fill(&mut self, transport: &impl Transport) -> io::Result<()> {
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let buf = core::mem::take(&mut self.buf);
        let (received, buf) = transport.recv(buf, self.end).await;
        self.buf = buf;
        match received? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.end += n;
                assert!(self.end <= self.buf.len(), "a receive of more than its buffer");
                Ok(())
            }
        }
    }
}

/// Runs a connection to its end. When this completes, nothing of it is in flight any more.
pub async fn run<E: Env, T: Transport, D: Directory>(
    env: E,
    transport: T,
    directory: D,
    client: Arc<Client>,
    limits: Limits,
) {
    let transport = Rc::new(transport);
    let mut input = Input::new();
    let agreed = Rc::new(Cell::new(false));
    env.spawn(cut_off_silent(env.clone(), Rc::downgrade(&transport), Rc::clone(&agreed)));
    let outcome = haggle(&*transport, &mut input, &directory).await;
    agreed.set(true);
    match outcome {
        Ok(Some(agreed)) => {
            serve(&env, &transport, input, &directory, agreed, &client, limits).await;
        }
        Ok(None) => {}
        Err(error) => {
            tracing::debug!(client = client.name(), %error, "connection lost in the handshake");
        }
    }
    transport.shutdown();
}

/// Ends a connection whose handshake takes too long.
async fn cut_off_silent<E: Env, T: Transport>(env: E, transport: Weak<T>, has_agreed: Rc<Cell<bool>>) {
    let deadline_ns = env.clock().now_ns().saturating_add(HANDSHAKE_NS_MAX);
    env.clock().sleep_until(deadline_ns).await;
    if let (false, Some(transport)) = (has_agreed.get(), transport.upgrade()) {
        transport.shutdown();
    }
}

/// The handshake; `None` when it ended without an agreement.
async fn haggle<T: Transport>(
    transport: &T,
    input: &mut Input,
    directory: &impl Directory,
) -> io::Result<Option<Agreed>> {
    let mut machine = Haggle::new();
    let mut progress = Progress::More;
    loop {
        let output = machine.take_output();
        if !output.is_empty() {
            transport.send(vec![Part::Bytes(output)]).await?;
        }
        match progress {
            Progress::More if input.bytes().is_empty() => input.fill(transport).await?,
            Progress::More => {}
            Progress::Agreed(agreed) => return Ok(Some(agreed)),
            Progress::Ended(why) => {
                tracing::debug!(%why, "handshake without an agreement");
                return Ok(None);
            }
        }
        let (used, next) = machine.feed(input.bytes(), directory);
        input.consume(used);
        progress = next;
    }
}

/// The transmission.
async fn serve<E: Env, T: Transport, D: Directory>(
    env: &E,
    transport: &Rc<T>,
    input: Input,
    directory: &D,
    agreed: Agreed,
    client: &Arc<Client>,
    limits: Limits,
) {
    let Some((export, clients)) = directory.open(&agreed.export) else { return };
    let Some((membership, fence)) = clients.join(Arc::clone(client)) else { return };
    tracing::debug!(client = client.name(), export = agreed.export, "connected");
    fence.passed().await;
    let outbox = Outbox::new(Rc::clone(transport), Arc::clone(client), limits);
    env.spawn(Rc::clone(&outbox).write_replies());
    let mut reader = Reader { env, input, outbox: &outbox, export, agreed };
    match reader.read_requests().await {
        Ok(()) => tracing::debug!(client = client.name(), "disconnected"),
        Err(error) => {
            // What was received but not started must not run any more: a newer connection may be writing already.
            client.fence();
            tracing::debug!(client = client.name(), %error, "connection lost");
        }
    }
    outbox.finish().await;
    drop(membership);
}

struct Reader<'a, E, T: Transport, X> {
    env: &'a E,
    input: Input,
    outbox: &'a Rc<Outbox<T>>,
    export: X,
    agreed: Agreed,
}

impl<E: Env, T: Transport, X: Export> Reader<'_, E, T, X> {
    /// Reads and starts requests until the client says that it leaves.
    async fn read_requests(&mut self) -> io::Result<()> {
        loop {
            let request = self.next_request().await?;
            let is_read = request.command == command::READ;
            // Block status exists only where structured replies do.
            let is_structured =
                self.agreed.has_structured_replies && (is_read || request.command == command::BLOCK_STATUS);
            let op = check(&request, &self.agreed);
            if op == Ok(Op::Disconnect) {
                return Ok(());
            }
            let token = self.outbox.admit(request.cookie, is_structured).await;
            match op {
                Ok(Op::Write { at, len, how }) => self.write(token, at, len, how).await?,
                Ok(Op::Read { at, len, is_whole }) => self.read(token, at, len, is_whole).await,
                Ok(Op::Zero { at, len, unmap, how }) => self.zero(token, at, len, unmap, how),
                Ok(Op::Flush) => self.flush(token),
                Ok(Op::Status { len }) => token.status(len),
                Ok(Op::Nothing) => token.done(),
                Ok(Op::Disconnect) => unreachable!("handled above"),
                Err(error) => {
                    if request.command == command::WRITE
                        && let Err(lost) = self.skip(u64::from(request.len)).await
                    {
                        token.cut_off();
                        return Err(lost);
                    }
                    token.fail(error);
                }
            }
        }
    }

    async fn next_request(&mut self) -> io::Result<Request> {
        while self.input.bytes().len() < REQUEST_BYTES {
            self.input.fill(&*self.outbox.transport).await?;
        }
        let bytes = self.input.bytes().first_chunk().expect("enough bytes");
        let request =
            Request::decode(bytes).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
        self.input.consume(REQUEST_BYTES);
        Ok(request)
    }

    /// Skips the payload of a refused write, without keeping it.
    async fn skip(&mut self, mut left: u64) -> io::Result<()> {
        while left > 0 {
            if self.input.bytes().is_empty() {
                self.input.fill(&*self.outbox.transport).await?;
            }
            let n = left.min(u64_of(self.input.bytes().len()));
            self.input.consume(usize_of_u32(u32_of(n)));
            left -= n;
        }
        Ok(())
    }

    async fn read(&self, token: Token<T>, at: u64, len: u32, is_whole: bool) {
        let outbox = Rc::clone(self.outbox);
        let export = self.export.clone();
        if len > WINDOW_BYTES_MAX {
            outbox.admit_bytes(LargeRead::<T, X>::BYTES).await;
            let is_structured = self.agreed.has_structured_replies;
            let is_chunked = is_structured && !is_whole;
            let large = LargeRead { outbox, export, at, len, is_structured, is_chunked };
            self.env.spawn(async move { large.run(token).await });
            return;
        }
        outbox.admit_bytes(u64::from(len)).await;
        self.env.spawn(async move {
            if outbox.is_broken() {
                outbox.release_bytes(u64::from(len));
                token.cut_off();
                return;
            }
            let sizes: SmallVec<[u32; 4]> = export.pieces(at, len).collect();
            let leases = export.lease(&sizes).await;
            let done = export.read(at, leases).await;
            let failure = done.result.err().map_or(Errno::Io, errno_of);
            match done.buf {
                Some(leases) if done.result.is_ok() => token.data(at, leases),
                _ => {
                    outbox.release_bytes(u64::from(len));
                    token.fail(failure);
                }
            }
        });
    }

    fn zero(&self, token: Token<T>, at: u64, len: u32, unmap: bool, how: Durability) {
        let outbox = Rc::clone(self.outbox);
        let export = self.export.clone();
        let changing = outbox.client.changing();
        self.env.spawn(async move {
            if outbox.is_broken() {
                token.cut_off();
                return;
            }
            let result = export.zero(at, u64::from(len), unmap, how).await;
            drop(changing);
            answer(token, result.err().map(errno_of));
        });
    }

    fn flush(&self, token: Token<T>) {
        let export = self.export.clone();
        self.env.spawn(async move {
            let result = export.flush().await;
            answer(token, result.err().map(errno_of));
        });
    }

    /// Receives the payload of a write and starts it, window by window.
    async fn write(&mut self, token: Token<T>, at: u64, len: u32, how: Durability) -> io::Result<()> {
        let changing = self.outbox.client.changing();
        let whole = Rc::new(Write {
            token: Cell::new(Some(token)),
            is_received: Cell::new(false),
            is_cut_off: Cell::new(false),
            error: Cell::new(None),
            _changing: changing,
        });
        let mut done = 0;
        while done < len {
            let start = at + u64::from(done);
            let window = self.export.window(start, len - done).min(WINDOW_BYTES_MAX);
            assert!(window > 0 && window <= len - done, "a window of {window} bytes of {}", len - done);
            if whole.error.get().is_some() {
                // The answer is known; the rest only has to leave the wire.
                self.skip(u64::from(window)).await?;
            } else {
                let segs = self.receive_window(start, window).await?;
                let (outbox, export) = (Rc::clone(self.outbox), self.export.clone());
                self.env.spawn(write_window(outbox, export, start, segs, how, Rc::clone(&whole)));
            }
            done += window;
        }
        whole.is_received.set(true);
        Ok(())
    }

    /// Leases for a window, filled with payload. On an error the admitted bytes are given back.
    async fn receive_window(&mut self, at: u64, len: u32) -> io::Result<Segs> {
        let sizes: SmallVec<[u32; 4]> = self.export.pieces(at, len).collect();
        let has_waited = Cell::new(false);
        noting(self.outbox.admit_bytes(u64::from(len)), &has_waited).await;
        let leases = noting(self.export.lease(&sizes), &has_waited).await;
        let received = self.receive(leases).await;
        // While we waited the client may have left and come back on another lane; what it sent here before is older
        // than what it sends there and must not follow it.
        let is_late = has_waited.get() && self.outbox.client.is_hung_up();
        match received {
            Ok(segs) if !is_late => Ok(segs),
            other => {
                self.outbox.release_bytes(u64::from(len));
                Err(other.err().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()))
            }
        }
    }

    async fn receive(&mut self, leases: Leases) -> io::Result<Segs> {
        let mut segs = Segs::new();
        for mut lease in leases {
            let mut at = 0;
            while at < lease.len() {
                let left = lease.len() - at;
                let buffered = self.input.bytes();
                if !buffered.is_empty() {
                    let n = buffered.len().min(usize_of_u32(left));
                    let start = usize_of_u32(at);
                    lease.bytes_mut()[start..start + n].copy_from_slice(&buffered[..n]);
                    self.input.consume(n);
                    at += u32_of(u64_of(n));
                } else if left < DIRECT_BYTES_MIN {
                    self.input.fill(&*self.outbox.transport).await?;
                } else {
                    let (received, back) = self.outbox.transport.recv_lease(lease, at).await;
                    lease = back;
                    match received? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        n => at += u32_of(u64_of(n)),
                    }
                }
            }
            segs.push(lease.share());
        }
        Ok(segs)
    }
}

/// Runs a future and notes whether it had to wait.
async fn noting<F: Future>(future: F, has_waited: &Cell<bool>) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let poll = future.as_mut().poll(cx);
        has_waited.set(has_waited.get() || poll.is_pending());
        poll
    })
    .await
}

fn answer<T: Transport>(token: Token<T>, error: Option<Errno>) {
    match error {
        Some(error) => token.fail(error),
        None => token.done(),
    }
}

/// A write request in as many windows as it takes; answered when the last one lets go of it.
struct Write<T: Transport> {
    token: Cell<Option<Token<T>>>,
    /// All payload was received.
    is_received: Cell<bool>,
    /// A window was dropped because the client is gone.
    is_cut_off: Cell<bool>,
    error: Cell<Option<Errno>>,
    _changing: Changing,
}

impl<T: Transport> Drop for Write<T> {
    fn drop(&mut self) {
        let token = self.token.take().expect("answered once");
        if self.is_received.get() && !self.is_cut_off.get() {
            answer(token, self.error.get());
        } else {
            token.cut_off();
        }
    }
}

/// Writes one window.
async fn write_window<T: Transport, X: Export>(
    outbox: Rc<Outbox<T>>,
    export: X,
    at: u64,
    segs: Segs,
    how: Durability,
    whole: Rc<Write<T>>,
) {
    let bytes = segs_len(&segs);
    if outbox.is_broken() {
        whole.is_cut_off.set(true);
    } else if let Err(error) = export.write(at, segs, how).await {
        whole.error.set(Some(errno_of(error)));
    }
    outbox.release_bytes(bytes);
}
