//! A connection as the sessions see it: the seam between the protocol and the ring, so that a session runs the same
//! over a socket and over a pipe in a test.

use std::future::Future;
use std::io;

use raid_core::lease::{Lease, Seg};

/// One piece of what is sent.
#[derive(Debug)]
pub enum Part {
    /// Headers and small data.
    Bytes(Vec<u8>),
    /// Data of a read.
    Lease(Lease),
    /// Data of a read whose buffer is used again after sending.
    Seg(Seg),
}

impl Part {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Lease(lease) => lease.bytes(),
            Self::Seg(seg) => seg.bytes(),
        }
    }
}

/// What other lanes may know and do about a connection.
pub trait Peer: Send + Sync {
    /// Whether the client has closed its end, even if bytes from it are still unread.
    fn is_hung_up(&self) -> bool;

    /// Ends the connection: receives see its end, sends fail.
    fn hang_up(&self);
}

/// A connected byte stream on one lane. One receive and one send run at a time, each beside the other.
pub trait Transport: 'static {
    /// Receives at least one byte into `buf[at..]`; 0 is the end of the stream.
    fn recv(&self, buf: Vec<u8>, at: usize) -> impl Future<Output = (io::Result<usize>, Vec<u8>)>;

    /// Receives at least one byte into the lease from its byte `at`; 0 is the end of the stream.
    fn recv_lease(&self, lease: Lease, at: u32) -> impl Future<Output = (io::Result<usize>, Lease)>;

    /// Sends all parts, in order, to the last byte.
    fn send(&self, parts: Vec<Part>) -> impl Future<Output = io::Result<()>>;

    /// Ends the connection: a receive in progress sees its end.
    fn shutdown(&self);
}
