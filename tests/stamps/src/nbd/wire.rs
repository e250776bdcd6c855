//! Numbers of the protocol, sockets, and errors.

use core::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Error numbers a reply may carry.
pub mod errno {
    #![allow(missing_docs)]
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
}

/// Command types.
pub mod kind {
    #![allow(missing_docs)]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod flag {
    #![allow(missing_docs)]
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Transmission flags of an export.
pub mod transmission {
    #![allow(missing_docs)]
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Options of the handshake.
pub mod opt {
    #![allow(missing_docs)]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Reply types of the handshake.
pub mod rep {
    #![allow(missing_docs)]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERR + 1;
    pub const ERR_POLICY: u32 = ERR + 2;
    pub const ERR_INVALID: u32 = ERR + 3;
    pub const ERR_TLS_REQD: u32 = ERR + 5;
    pub const ERR_UNKNOWN: u32 = ERR + 6;
    pub const ERR_SHUTDOWN: u32 = ERR + 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERR + 8;
    pub const ERR_TOO_BIG: u32 = ERR + 9;
}

pub(super) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub(super) const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST: u32 = 0x2560_9513;
pub(super) const SIMPLE: u32 = 0x6744_6698;
pub(super) const STRUCTURED: u32 = 0x668e_33ef;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// `ADDRESS:PORT`.
    Tcp(String),
}

impl Endpoint {
    /// Parses `unix:PATH` or `tcp:ADDRESS:PORT`, as `disk expose --nbd` takes them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            Some(Self::Unix(path.into()))
        } else {
            text.strip_prefix("tcp:").map(|at| Self::Tcp(at.to_owned()))
        }
    }

    /// Opens a connection on which nothing waits longer than `timeout`.
    pub fn open(&self, timeout: Duration) -> io::Result<Socket> {
        let socket = match self {
            Self::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            Self::Tcp(at) => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        };
        socket.set_timeout(timeout)?;
        Ok(socket)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
        }
    }
}

/// A connected socket of either family.
#[derive(Debug)]
pub enum Socket {
    /// A unix stream.
    Unix(UnixStream),
    /// A TCP stream.
    Tcp(TcpStream),
}

impl Socket {
    /// A second handle of the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// Closes the connection in both directions, also for the other handles.
    pub fn close(&self) {
        // A connection that is gone already is closed too.
        let _gone = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// The time-out the connection was opened with.
    pub(super) fn timeout(&self) -> Duration {
        let timeout = match self {
            Self::Unix(stream) => stream.read_timeout(),
            Self::Tcp(stream) => stream.read_timeout(),
        };
        timeout.ok().flatten().unwrap_or(Duration::ZERO)
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
        }
    }

    pub(super) fn read_u16(&mut self) -> io::Result<u16> {
        self.read_bytes().map(u16::from_be_bytes)
    }

    pub(super) fn read_u32(&mut self) -> io::Result<u32> {
        self.read_bytes().map(u32::from_be_bytes)
    }

    pub(super) fn read_u64(&mut self) -> io::Result<u64> {
        self.read_bytes().map(u64::from_be_bytes)
    }

    fn read_bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read_vec(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).expect("64-bit")];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buf),
            Self::Tcp(stream) => stream.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buf),
            Self::Tcp(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One request. Every field goes onto the wire as it is, sensible or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Command type, see [`kind`].
    pub kind: u16,
    /// Command flags, see [`flag`].
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Length as announced; `data` may be of another length only if a test wants to break the stream.
    pub length: u32,
    /// Payload of a write.
    pub data: Vec<u8>,
}

impl Command {
    /// A command without payload.
    #[must_use]
    pub const fn new(kind: u16, offset: u64, length: u32) -> Self {
        Self { kind, flags: 0, offset, length, data: Vec::new() }
    }

    /// A read.
    #[must_use]
    pub const fn read(offset: u64, length: u32) -> Self {
        Self::new(kind::READ, offset, length)
    }

    /// A write of `data`. Panics at 4 GiB.
    #[must_use]
    pub fn write(offset: u64, data: Vec<u8>) -> Self {
        let length = u32::try_from(data.len()).expect("a write is below 4 GiB");
        Self { kind: kind::WRITE, flags: 0, offset, length, data }
    }

    /// A flush.
    #[must_use]
    pub const fn flush() -> Self {
        Self::new(kind::FLUSH, 0, 0)
    }

    /// A discard.
    #[must_use]
    pub const fn trim(offset: u64, length: u32) -> Self {
        Self::new(kind::TRIM, offset, length)
    }

    /// A write of zeroes.
    #[must_use]
    pub const fn zeroes(offset: u64, length: u32) -> Self {
        Self::new(kind::WRITE_ZEROES, offset, length)
    }

    /// The same command with `flags` added.
    #[must_use]
    pub const fn with(mut self, flags: u16) -> Self {
        self.flags |= flags;
        self
    }
}

/// Why something did not work.
#[derive(Debug)]
pub enum Error {
    /// The connection.
    Io(io::Error),
    /// The server broke the protocol.
    Protocol(String),
    /// The server refused an option, with its reply type (see [`rep`]) and message.
    Refused {
        /// The option.
        option: u32,
        /// Its reply type.
        reply: u32,
        /// What the server said.
        message: String,
    },
    /// The server answered a command with an error number, see [`errno`].
    Command {
        /// The error number.
        errno: u32,
        /// What the server said; empty with simple replies.
        message: String,
        /// The offset a structured error names.
        offset: Option<u64>,
    },
}

impl Error {
    /// The error number of a command, if that is what this is.
    #[must_use]
    pub const fn errno(&self) -> Option<u32> {
        match self {
            Self::Command { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the connection is of no use any more.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Protocol(_))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connection: {error}"),
            Self::Protocol(what) => write!(f, "the server broke the protocol: {what}"),
            Self::Refused { option, reply, message } => {
                write!(f, "option {option} refused with {reply:#x}: {message}")
            }
            Self::Command { errno, message, offset } => {
                write!(f, "error {errno} at {offset:?}: {message}")
            }
        }
    }
}

impl std::error::Error for Error {}
