//! The numbers and byte layouts of the NBD protocol, and nothing else: no state, no I/O, no policy.
//!
//! Source: the NBD protocol document (fixed newstyle handshake, simple and structured replies). All integers on the
//! wire are big-endian.

/// First word of the greeting, `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting and first of every option, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, both directions.
pub mod handshake_flags {
    /// The fixed newstyle handshake.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The 124 zeroes after `EXPORT_NAME` are left out.
    pub const NO_ZEROES: u16 = 2;
}

/// Numbers of options.
pub mod option {
    /// Choose an export, the old way: no error can be answered.
    pub const EXPORT_NAME: u32 = 1;
    /// End the haggling.
    pub const ABORT: u32 = 2;
    /// Names of the exports.
    pub const LIST: u32 = 3;
    /// Encrypt.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start serving it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which metadata contexts an export has.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies; errors have the top bit.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// The option is known and forbidden here.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// The option's data is malformed.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// The option's data is longer than we take.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod transmission_flags {
    /// The other bits mean something.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The do-not-fragment flag works; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The fast-zero flag works (it may still answer ENOTSUP).
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Numbers of commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the request.
    pub const WRITE: u16 = 1;
    /// Disconnect; no reply.
    pub const DISC: u16 = 2;
    /// Make everything replied to durable.
    pub const FLUSH: u16 = 3;
    /// The range is not needed any more.
    pub const TRIM: u16 = 4;
    /// Read ahead; we never advertise it.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// What the chosen metadata contexts say about the range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flags {
    /// Durable before the reply. Valid on every command (existing clients set it on reads, too).
    pub const FUA: u16 = 1;
    /// Zeroes must stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One data chunk only.
    pub const DF: u16 = 1 << 2;
    /// One extent per context only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than zero slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of structured reply chunks.
pub mod chunk {
    /// The last chunk of its reply.
    pub const FLAG_DONE: u16 = 1;
    /// Nothing: the end of a reply.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error.
    pub const ERROR: u16 = 0x8001;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = 0x8002;
}

/// The errors a reply may carry, with their numbers on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Errno {
    /// Write to a read-only export.
    Perm,
    /// The blocks cannot be read or written.
    Io,
    /// The request is malformed, misaligned, unknown, or reads past the end.
    Invalid,
    /// A write past the end.
    NoSpace,
    /// Possible, but not fast.
    NotSupported,
    /// The export is going away.
    Shutdown,
}

impl Errno {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Perm => 1,
            Self::Io => 5,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::NotSupported => 95,
            Self::Shutdown => 108,
        }
    }
}

/// Longest string of the protocol, in bytes.
pub const STRING_BYTES_MAX: u32 = 4096;
/// Largest payload of a read or a write, in bytes; also the advertised maximum block size.
pub const PAYLOAD_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// The one metadata context we have.
pub const ALLOCATION_CONTEXT: &[u8] = b"base:allocation";
/// The number we give it.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 28;

/// A request as it came off the wire; nothing is checked but the magic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bits of [`command_flags`].
    pub flags: u16,
    /// One of [`command`], or anything else.
    pub command: u16,
    /// The client's name for the request, given back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// The stream is not NBD any more: nothing after it can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bad request magic {0:#010x}: the client lost the protocol")]
pub struct BadMagic(pub u32);

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (u64::from(u32_at(bytes, at)) << 32) | u64::from(u32_at(bytes, at + 4))
}

impl Request {
    /// Reads a request off the wire.
    ///
    /// # Errors
    /// [`BadMagic`] when it does not start like a request.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, BadMagic> {
        let magic = u32_at(bytes, 0);
        if magic != REQUEST_MAGIC {
            return Err(BadMagic(magic));
        }
        Ok(Self {
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            len: u32_at(bytes, 24),
        })
    }

    /// The request as a client writes it.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Appends a simple reply's header; a successful read's data follows it.
pub fn put_simple_reply(out: &mut Vec<u8>, cookie: u64, error: Option<Errno>) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.map_or(0, Errno::number).to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// Appends the header of a structured reply chunk; `len` bytes of payload follow it.
pub fn put_chunk(out: &mut Vec<u8>, cookie: u64, flags: u16, kind: u16, len: u32) {
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Appends the header of a data chunk; `len` bytes of data, which lie at `offset` of the export, follow it.
pub fn put_data_chunk(out: &mut Vec<u8>, cookie: u64, flags: u16, offset: u64, len: u32) {
    put_chunk(out, cookie, flags, chunk::OFFSET_DATA, len.checked_add(8).expect("a bounded payload"));
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Appends a whole structured error that ends its reply.
pub fn put_error_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno) {
    put_chunk(out, cookie, chunk::FLAG_DONE, chunk::ERROR, 6);
    out.extend_from_slice(&error.number().to_be_bytes());
    out.extend_from_slice(&0_u16.to_be_bytes());
}

/// Appends a whole structured error at an offset that ends its reply.
pub fn put_error_offset_chunk(out: &mut Vec<u8>, cookie: u64, error: Errno, offset: u64) {
    put_chunk(out, cookie, chunk::FLAG_DONE, chunk::ERROR_OFFSET, 14);
    out.extend_from_slice(&error.number().to_be_bytes());
    out.extend_from_slice(&0_u16.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Appends a whole block status reply: one extent of `len` bytes with these flags (0: allocated data).
pub fn put_block_status(out: &mut Vec<u8>, cookie: u64, len: u32, flags: u32) {
    put_chunk(out, cookie, chunk::FLAG_DONE, chunk::BLOCK_STATUS, 12);
    out.extend_from_slice(&ALLOCATION_CONTEXT_ID.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
}

/// Takes big-endian integers and strings off the front of a slice; `None` once it runs out.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    /// The next 16-bit integer.
    pub fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16_at(bytes, 0))
    }

    /// The next 32-bit integer.
    pub fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32_at(bytes, 0))
    }

    /// The next 64-bit integer.
    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64_at(bytes, 0))
    }

    /// The next string: a 32-bit length and that many bytes.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(raid_core::units::usize_of_u32(len))
    }
}
