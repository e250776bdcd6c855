//! A connection as the sessions see it: the seam between the protocol and the ring, so that a session runs the same
//! over a socket and over a pipe in a test.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

pub use nvme_backend::Part;
use nvme_backend::Socket;
use raid_core::lease::Lease;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

impl Transport for Socket {
    fn recv(&self, buf: Vec<u8>, at: usize) -> impl Future<Output = (io::Result<usize>, Vec<u8>)> {
        Self::recv(self, buf, at)
    }

    fn recv_lease(&self, lease: Lease, at: u32) -> impl Future<Output = (io::Result<usize>, Lease)> {
        Self::recv_lease(self, lease, at)
    }

    fn send(&self, parts: Vec<Part>) -> impl Future<Output = io::Result<()>> {
        Self::send(self, parts)
    }

    fn shutdown(&self) {
        Self::shutdown(self);
    }
}

/// A connected socket as other lanes see it: a second descriptor of it.
pub struct SocketPeer(OwnedFd);

impl SocketPeer {
    /// Another handle of this socket.
    ///
    /// # Errors
    /// Too many open files.
    pub fn of(socket: &OwnedFd) -> io::Result<Self> {
        socket.try_clone().map(Self)
    }
}

impl Peer for SocketPeer {
    fn is_hung_up(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A poll that fails tells nothing; the reader will see what there is to see.
        matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0) && fds[0].revents().intersects(gone)
    }

    fn hang_up(&self) {
        // Fails only when the peer has already gone, which is what was wanted.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}
