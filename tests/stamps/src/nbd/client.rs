//! Transmission: pipelined requests, replies in any order.
//!
//! A thread of its own reads replies, so that a client with many megabytes of writes in flight can never stand in
//! `write` while the server stands in its own, both waiting for the other to read.

use std::collections::{HashMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::haggle::{Export, Haggle};
use super::wire::{Command, Endpoint, Error, REQUEST, SIMPLE, STRUCTURED, Socket, kind};
use super::{Options, errno};

const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = 0x8001;
const CHUNK_ERROR_OFFSET: u16 = 0x8002;
const CHUNK_DONE: u16 = 1;

/// Names a request of one connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cookie(pub u64);

/// An extent of a block status reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The context it belongs to, as numbered in [`Client::contexts`].
    pub context: u32,
    /// Length in bytes.
    pub length: u32,
    /// Status flags of the context.
    pub flags: u32,
}

/// The whole answer to one request.
#[derive(Debug)]
pub struct Reply {
    /// The request.
    pub cookie: Cookie,
    /// Bytes of a read (empty for other commands), or the error.
    pub result: Result<Vec<u8>, Error>,
    /// Extents of a block status.
    pub extents: Vec<Extent>,
}

/// What a request still needs.
#[derive(Debug)]
struct Waiting {
    kind: u16,
    offset: u64,
    data: Vec<u8>,
    /// Which bytes of a read have come, as (start, end), unordered.
    come: Vec<(u64, u64)>,
    extents: Vec<Extent>,
    error: Option<Error>,
    since: Instant,
}

type Table = Arc<Mutex<HashMap<u64, Waiting>>>;

/// A connection in transmission.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    export: Export,
    contexts: Vec<(u32, String)>,
    next: u64,
    in_flight: usize,
    waiting: Table,
    replies: Receiver<Result<Reply, Error>>,
    /// Replies that came while another was waited for.
    early: VecDeque<Reply>,
    reader: Option<JoinHandle<()>>,
}

impl Client {
    /// Connects and enters transmission.
    pub fn connect(endpoint: &Endpoint, options: &Options) -> Result<Self, Error> {
        Haggle::open(endpoint, options.timeout)?.go(options)
    }

    /// Takes over a socket on which GO was acknowledged.
    pub(super) fn start(
        socket: Socket,
        export: Export,
        contexts: Vec<(u32, String)>,
        structured: bool,
    ) -> Result<Self, Error> {
        let waiting = Table::default();
        let (send, replies) = channel();
        let (mut theirs, table) = (socket.try_clone()?, waiting.clone());
        let reader = std::thread::Builder::new()
            .name("nbd-replies".to_owned())
            .spawn(move || read_replies(&mut theirs, &table, &send, structured))?;
        Ok(Self {
            socket,
            export,
            contexts,
            next: 1,
            in_flight: 0,
            waiting,
            replies,
            early: VecDeque::new(),
            reader: Some(reader),
        })
    }

    /// What the server said of the export.
    #[must_use]
    pub const fn export(&self) -> &Export {
        &self.export
    }

    /// Metadata contexts the server gave, with their numbers.
    #[must_use]
    pub fn contexts(&self) -> &[(u32, String)] {
        &self.contexts
    }

    /// Requests without an answer.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Sends a request and does not wait for its answer.
    pub fn submit(&mut self, command: Command) -> Result<Cookie, Error> {
        let cookie = self.next;
        self.next += 1;
        let length = if command.kind == kind::READ { command.length } else { 0 };
        let waiting = Waiting {
            kind: command.kind,
            offset: command.offset,
            data: vec![0; usize::try_from(length).expect("64-bit")],
            come: Vec::new(),
            extents: Vec::new(),
            error: None,
            since: Instant::now(),
        };
        self.waiting.lock().expect("reader lives").insert(cookie, waiting);
        let mut header = [0; 28];
        header[..4].copy_from_slice(&REQUEST.to_be_bytes());
        header[4..6].copy_from_slice(&command.flags.to_be_bytes());
        header[6..8].copy_from_slice(&command.kind.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&command.offset.to_be_bytes());
        header[24..].copy_from_slice(&command.length.to_be_bytes());
        self.socket.write_all(&header)?;
        self.socket.write_all(&command.data)?;
        self.in_flight += 1;
        Ok(Cookie(cookie))
    }

    /// The next answer, of whichever request. An `Err` means that the connection is of no use any more.
    pub fn wait(&mut self) -> Result<Reply, Error> {
        if let Some(reply) = self.early.pop_front() {
            return Ok(reply);
        }
        assert!(self.in_flight > 0, "nothing to wait for");
        let reply = self.replies.recv().map_err(|_| Error::Protocol("connection closed".to_owned()))??;
        self.in_flight -= 1;
        Ok(reply)
    }

    /// As [`Client::wait`], `None` if nothing came in `timeout`.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<Option<Reply>, Error> {
        if let Some(reply) = self.early.pop_front() {
            return Ok(Some(reply));
        }
        match self.replies.recv_timeout(timeout) {
            Ok(reply) => {
                self.in_flight -= 1;
                reply.map(Some)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Protocol("connection closed".to_owned())),
        }
    }

    /// Sends a request and waits for its own answer, whatever else comes before it.
    pub fn call(&mut self, command: Command) -> Result<Vec<u8>, Error> {
        self.call_whole(command)?.result
    }

    fn call_whole(&mut self, command: Command) -> Result<Reply, Error> {
        let cookie = self.submit(command)?;
        let mut early = std::mem::take(&mut self.early);
        let found = loop {
            match self.wait() {
                Ok(reply) if reply.cookie == cookie => break Ok(reply),
                Ok(reply) => early.push_back(reply),
                Err(error) => break Err(error),
            }
        };
        self.early = early;
        found
    }

    /// Reads `length` bytes.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, Error> {
        self.call(Command::read(offset, length))
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.call(Command::write(offset, data.to_vec())).map(drop)
    }

    /// Flushes.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.call(Command::flush()).map(drop)
    }

    /// Block status of a range.
    pub fn block_status(&mut self, offset: u64, length: u32) -> Result<Vec<Extent>, Error> {
        let reply = self.call_whole(Command::new(kind::BLOCK_STATUS, offset, length))?;
        reply.result.map(|_| reply.extents)
    }

    /// Says good-bye, and waits until the server has closed the connection.
    pub fn disconnect(mut self) -> Result<(), Error> {
        self.submit(Command::new(kind::DISC, 0, 0))?;
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| Error::Protocol("the reader panicked".to_owned()))?;
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.socket.close();
        if let Some(reader) = self.reader.take() {
            // Its panic was reported by the closed channel already.
            let _panicked = reader.join();
        }
    }
}

fn read_replies(socket: &mut Socket, table: &Table, send: &Sender<Result<Reply, Error>>, structured: bool) {
    loop {
        let reply = match wait_for_byte(socket, table)
            .and_then(|first| read_reply(socket, table, first, structured))
        {
            Ok(None) => continue,
            Ok(Some(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        let stop = reply.is_err();
        if send.send(reply).is_err() || stop {
            return;
        }
    }
}

/// The first byte of the next reply. A connection on which nothing is asked may be quiet for ever; one that owes an answer
/// may not.
fn wait_for_byte(socket: &mut Socket, table: &Table) -> Result<u8, Error> {
    loop {
        let mut byte = [0];
        match socket.read_exact(&mut byte) {
            Ok(()) => return Ok(byte[0]),
            Err(error) if timed_out(&error) && !overdue(table, socket.timeout()) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a request has waited for the whole time-out; one sent a moment ago has not, however quiet it was before.
fn overdue(table: &Table, timeout: Duration) -> bool {
    table.lock().expect("not poisoned").values().any(|waiting| waiting.since.elapsed() >= timeout)
}

fn timed_out(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// Reads one simple reply or one chunk; the request's whole answer if that completed it.
fn read_reply(
    socket: &mut Socket,
    table: &Table,
    first: u8,
    structured: bool,
) -> Result<Option<Reply>, Error> {
    let mut magic = [first, 0, 0, 0];
    socket.read_exact(&mut magic[1..])?;
    match u32::from_be_bytes(magic) {
        SIMPLE => {
            let (errno, cookie) = (socket.read_u32()?, socket.read_u64()?);
            let mut waiting = take(table, cookie)?;
            if structured && waiting.kind == kind::READ {
                return Err(Error::Protocol(
                    "simple reply to a read after structured replies were agreed on".to_owned(),
                ));
            }
            if errno == 0 {
                socket.read_exact(&mut waiting.data)?;
                waiting.come.push((0, u64::try_from(waiting.data.len()).expect("64-bit")));
            } else {
                waiting.error = Some(Error::Command { errno, message: String::new(), offset: None });
            }
            finish(cookie, waiting).map(Some)
        }
        STRUCTURED if structured => read_chunk(socket, table),
        _ => Err(Error::Protocol(format!("reply magic {magic:02x?}"))),
    }
}

fn read_chunk(socket: &mut Socket, table: &Table) -> Result<Option<Reply>, Error> {
    let (flags, kind) = (socket.read_u16()?, socket.read_u16()?);
    let (cookie, length) = (socket.read_u64()?, socket.read_u32()?);
    let mut waiting = take(table, cookie)?;
    let bad = |what: &str| Error::Protocol(format!("chunk type {kind} of {length} bytes: {what}"));
    match kind {
        CHUNK_NONE if length == 0 => {}
        CHUNK_DATA if length > 8 => {
            let offset = socket.read_u64()?;
            let range = waiting.range(offset, length - 8)?;
            socket.read_exact(&mut waiting.data[range])?;
        }
        CHUNK_HOLE if length == 12 => {
            let offset = socket.read_u64()?;
            let hole = socket.read_u32()?;
            let range = waiting.range(offset, hole)?;
            waiting.data[range].fill(0);
        }
        CHUNK_STATUS if length >= 12 && (length - 4) % 8 == 0 => {
            let context = socket.read_u32()?;
            for _ in 0..(length - 4) / 8 {
                let (length, flags) = (socket.read_u32()?, socket.read_u32()?);
                waiting.extents.push(Extent { context, length, flags });
            }
        }
        CHUNK_ERROR | CHUNK_ERROR_OFFSET if length >= 6 => {
            let errno = socket.read_u32()?;
            let text_length = u32::from(socket.read_u16()?);
            let rest = length - 6;
            let expected = if kind == CHUNK_ERROR { text_length } else { text_length + 8 };
            if rest != expected || errno == 0 {
                return Err(bad("error chunk does not add up"));
            }
            let message = String::from_utf8_lossy(&socket.read_vec(text_length)?).into_owned();
            let offset = if kind == CHUNK_ERROR { None } else { Some(socket.read_u64()?) };
            waiting.error.get_or_insert(Error::Command { errno, message, offset });
        }
        _ => return Err(bad("unknown or of the wrong length")),
    }
    if flags & CHUNK_DONE != 0 {
        return finish(cookie, waiting).map(Some);
    }
    table.lock().expect("not poisoned").insert(cookie, waiting);
    Ok(None)
}

fn take(table: &Table, cookie: u64) -> Result<Waiting, Error> {
    let waiting = table.lock().expect("not poisoned").remove(&cookie);
    waiting.ok_or_else(|| Error::Protocol(format!("reply to unknown cookie {cookie}")))
}

impl Waiting {
    /// The place of a chunk in the data, claimed: a byte that comes twice is an error.
    fn range(&mut self, offset: u64, length: u32) -> Result<std::ops::Range<usize>, Error> {
        let what = |what: &str| Error::Protocol(format!("data chunk {offset}+{length}: {what}"));
        let start = offset.checked_sub(self.offset).ok_or_else(|| what("before the read"))?;
        let end = start + u64::from(length);
        if length == 0 || end > u64::try_from(self.data.len()).expect("64-bit") {
            return Err(what("outside the read"));
        }
        if self.come.iter().any(|(s, e)| start < *e && *s < end) {
            return Err(what("came twice"));
        }
        self.come.push((start, end));
        let index = |n| usize::try_from(n).expect("64-bit");
        Ok(index(start)..index(end))
    }
}

fn finish(cookie: u64, waiting: Waiting) -> Result<Reply, Error> {
    let Waiting { kind, data, come, extents, error, .. } = waiting;
    let came: u64 = come.iter().map(|(start, end)| end - start).sum();
    if error.is_none() && kind == kind::READ && usize::try_from(came).ok() != Some(data.len()) {
        return Err(Error::Protocol(format!("{came} bytes for a read of {}", data.len())));
    }
    if let Some(Error::Command { errno, .. }) = &error {
        let known = [
            errno::EPERM,
            errno::EIO,
            errno::ENOMEM,
            errno::EINVAL,
            errno::ENOSPC,
            errno::EOVERFLOW,
            errno::ENOTSUP,
            errno::ESHUTDOWN,
        ];
        if !known.contains(errno) {
            return Err(Error::Protocol(format!("error number {errno} is not one of the protocol")));
        }
    }
    Ok(Reply { cookie: Cookie(cookie), result: error.map_or(Ok(data), Err), extents })
}
