//! What a request may do: every rule about flags, ranges and alignment in one pure function.
//!
//! The order of the checks decides which error a request with two faults gets: unknown command, flags, read-only, range,
//! payload size, alignment. The connection survives all of them.

use raid_core::ports::{Durability, IoError, IoKind};

use super::haggle::Agreed;
use super::wire::{Errno, PAYLOAD_BYTES_MAX, Request, command, command_flags};

/// A request that may be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read `len` bytes (1 to the largest payload) at `at`.
    Read {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// All data in one chunk.
        is_whole: bool,
    },
    /// Write the `len` bytes of payload at `at`.
    Write {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// When it is durable.
        how: Durability,
    },
    /// Make the range read as zeroes. TRIM is this, too (SAFETY S7).
    Zero {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// The space may be given up.
        unmap: bool,
        /// When it is durable.
        how: Durability,
    },
    /// Make every write replied to, on any connection, durable.
    Flush,
    /// Tell what is allocated.
    Status {
        /// Bytes.
        len: u32,
    },
    /// A request for 0 bytes: nothing to do, done at once.
    Nothing,
    /// The client leaves.
    Disconnect,
}

/// Decides what a request may do on a connection with this agreement.
///
/// # Errors
/// What the client is answered instead. A refused WRITE still has its payload on the wire.
pub fn check(request: &Request, agreed: &Agreed) -> Result<Op, Errno> {
    let Request { flags, offset: at, len, .. } = *request;
    let allowed = match request.command {
        command::READ if agreed.has_structured_replies => command_flags::DF,
        command::READ | command::WRITE | command::TRIM | command::FLUSH => 0,
        command::WRITE_ZEROES => command_flags::NO_HOLE | command_flags::FAST_ZERO,
        command::BLOCK_STATUS => command_flags::REQ_ONE,
        command::DISC => return Ok(Op::Disconnect),
        _ => return Err(Errno::Invalid),
    };
    if flags & !(allowed | command_flags::FUA) != 0 {
        return Err(Errno::Invalid);
    }
    let is_change = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if is_change && agreed.described.is_read_only {
        return Err(Errno::Perm);
    }
    if request.command == command::FLUSH {
        return Ok(Op::Flush);
    }
    let is_inside = at.checked_add(u64::from(len)).is_some_and(|end| end <= agreed.described.size_bytes);
    if !is_inside {
        let is_write = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
        return Err(if is_write { Errno::NoSpace } else { Errno::Invalid });
    }
    if matches!(request.command, command::READ | command::WRITE) && len > PAYLOAD_BYTES_MAX {
        return Err(Errno::Invalid);
    }
    let block = agreed.described.block_bytes;
    if !at.is_multiple_of(u64::from(block)) || !len.is_multiple_of(block) {
        return Err(Errno::Invalid);
    }
    let how = if flags & command_flags::FUA == 0 { Durability::Cached } else { Durability::Fua };
    match request.command {
        command::BLOCK_STATUS if !agreed.has_allocation || len == 0 => Err(Errno::Invalid),
        command::BLOCK_STATUS => Ok(Op::Status { len }),
        // Whether the drives zero faster than they write is not known to us, so a promise would be a guess.
        command::WRITE_ZEROES if flags & command_flags::FAST_ZERO != 0 => Err(Errno::NotSupported),
        _ if len == 0 => Ok(Op::Nothing),
        command::READ => Ok(Op::Read { at, len, is_whole: flags & command_flags::DF != 0 }),
        command::WRITE => Ok(Op::Write { at, len, how }),
        command::TRIM => Ok(Op::Zero { at, len, unmap: true, how }),
        _ => Ok(Op::Zero { at, len, unmap: flags & command_flags::NO_HOLE == 0, how }),
    }
}

/// What a client is told of an I/O error.
#[must_use]
pub fn errno_of(error: IoError) -> Errno {
    match error.kind {
        IoKind::ShuttingDown => Errno::Shutdown,
        IoKind::Invalid => Errno::Invalid,
        _ => Errno::Io,
    }
}
