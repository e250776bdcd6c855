//! Sockets on the ring: what the NBD front end reads and writes with.
//!
//! A [`Socket`] belongs to one lane and can be shared there by a reading and a writing task. Sends are not serialised
//! here: two tasks that send at once interleave their bytes. Dropping a future of a socket cancels its operation; bytes
//! it had received are lost, and what it had begun to send may be cut off, so whoever drops one closes the connection.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use raid_core::lease::{Lease, Seg};
use raid_core::units::usize_of_u32;

use crate::lane::Lane;
use crate::ring::{Finished, Owner, Payload, accept, receive, receive_lease, send, take_fd};

struct Inner {
    fd: OwnedFd,
}

impl Owner for Inner {
    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn cancels_dropped(&self) -> bool {
        true
    }
}

/// A piece of what is sent; kept alive until the kernel has taken it.
pub enum Part {
    /// Bytes of the heap: headers and small replies.
    Bytes(Vec<u8>),
    /// A whole lease.
    Lease(Lease),
    /// A part of a shared block.
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

fn result(result: i32) -> io::Result<usize> {
    match usize::try_from(result) {
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(io::Error::from_raw_os_error(-result)),
    }
}

/// A listening socket, unix or TCP.
#[derive(Clone)]
pub struct Listener {
    lane: Lane,
    inner: Rc<Inner>,
}

impl Listener {
    /// Takes over a socket that already listens.
    #[must_use]
    pub fn from_fd(lane: &Lane, fd: OwnedFd) -> Self {
        Self { lane: lane.clone(), inner: Rc::new(Inner { fd }) }
    }

    /// The next connection (close-on-exec). It may be handed to another lane.
    ///
    /// # Errors
    /// What accept(2) says; EMFILE and ENFILE pass once descriptors are closed.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        match accept(&self.lane, self.inner.clone()).await {
            Finished::Done(result, Payload::Accept) if result >= 0 => Ok(take_fd(result)),
            Finished::Done(result, _) => Err(io::Error::from_raw_os_error(-result)),
            Finished::TimedOut => unreachable!("accept has no deadline"),
        }
    }
}

/// A connected stream socket. Clones share it.
#[derive(Clone)]
pub struct Socket {
    lane: Lane,
    inner: Rc<Inner>,
}

impl Socket {
    /// Takes over a connected socket.
    #[must_use]
    pub fn from_fd(lane: &Lane, fd: OwnedFd) -> Self {
        Self { lane: lane.clone(), inner: Rc::new(Inner { fd }) }
    }

    fn owner(&self) -> Rc<dyn Owner> {
        self.inner.clone()
    }

    /// Receives some bytes into `buf[at..]`; 0 is the end of the stream. The buffer comes back either way.
    ///
    /// # Panics
    /// If `at` is not inside the buffer.
    pub async fn recv(&self, buf: Vec<u8>, at: usize) -> (io::Result<usize>, Vec<u8>) {
        match receive(&self.lane, self.owner(), buf, at).await {
            Finished::Done(got, Payload::Bytes(buf)) => (result(got), buf),
            _ => unreachable!("receiving hands its buffer back and has no deadline"),
        }
    }

    /// Receives some bytes into the lease from byte `at`; 0 is the end of the stream.
    ///
    /// # Panics
    /// If `at` is not inside the lease.
    pub async fn recv_lease(&self, lease: Lease, at: u32) -> (io::Result<usize>, Lease) {
        match receive_lease(&self.lane, self.owner(), lease, at).await {
            Finished::Done(got, Payload::Lease(lease)) => (result(got), lease),
            _ => unreachable!("receiving hands its buffer back and has no deadline"),
        }
    }

    /// Fills `lease[at..]`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends first; what recv(2) says.
    pub async fn recv_lease_exact(&self, mut lease: Lease, mut at: u32) -> (io::Result<()>, Lease) {
        while at < lease.len() {
            let (got, back) = self.recv_lease(lease, at).await;
            lease = back;
            match got {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), lease),
                Ok(bytes) => at += u32::try_from(bytes).expect("no more than the lease holds"),
                Err(error) => return (Err(error), lease),
            }
        }
        (Ok(()), lease)
    }

    /// Sends all parts, in order, as one stream of bytes.
    ///
    /// # Errors
    /// What sendmsg(2) says; how much was sent is then unknown, and the connection is of no more use.
    pub async fn send(&self, parts: Vec<Part>) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.bytes().len()).sum();
        let mut sent = 0;
        let mut parts = parts;
        while sent < total {
            match send(&self.lane, self.owner(), parts, sent).await {
                Finished::Done(now, Payload::Parts(back)) => {
                    parts = back;
                    match result(now)? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        now => sent += now,
                    }
                }
                _ => unreachable!("sending hands its parts back and has no deadline"),
            }
        }
        Ok(())
    }

    /// Ends the connection in both directions: pending receives complete with 0 bytes, sends with an error.
    pub fn shutdown(&self) {
        // Fails only when the peer has already gone, which is what was wanted.
        let _ = rustix::net::shutdown(&self.inner.fd, rustix::net::Shutdown::Both);
    }
}

/// Bytes of a list of parts.
#[must_use]
pub fn parts_len(parts: &[Part]) -> usize {
    parts
        .iter()
        .map(|part| match part {
            Part::Bytes(bytes) => bytes.len(),
            Part::Lease(lease) => usize_of_u32(lease.len()),
            Part::Seg(seg) => usize_of_u32(seg.len()),
        })
        .sum()
}
