//! One queue of a device, on its lane.

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use raid_core::lease::Lease;
use raid_core::units::usize_of_u32;
use smallvec::SmallVec;

use super::control::op;
use super::protocol::Request;
use crate::lane::Lane;
use crate::ring::ublk::{Descriptors, fetch};
use crate::ring::{Finished, Owner, Payload};

const FETCH_REQ: u32 = op(3, 0x20, 16);
const COMMIT_AND_FETCH_REQ: u32 = op(3, 0x21, 16);

/// Opens the character device of a device: its server's end. The kernel lets one process have it.
///
/// # Errors
/// `NotFound` until devtmpfs has made it; `ResourceBusy` while another has it.
pub fn open_device(id: u32) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{id}"))?;
    Ok(file.into())
}
/// Keeps the character device open while a command is in flight.
struct Chars(Arc<OwnedFd>);

impl Owner for Chars {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn cancels_dropped(&self) -> bool {
        false
    }

    fn ends_with_ring(&self) -> bool {
        true
    }
}

struct Inner {
    lane: Lane,
    chars: Rc<Chars>,
    number: u16,
    descriptors: Descriptors,
}

/// One queue of a device, on its lane. Cheap to clone; `!Send`.
#[derive(Clone)]
pub struct Queue(Rc<Inner>);

impl Queue {
    /// Takes a queue to this lane.
    ///
    /// # Errors
    /// The kernel does not share its descriptors.
    pub fn open(lane: &Lane, device: Arc<OwnedFd>, number: u16, depth: u16) -> io::Result<Self> {
        let descriptors = Descriptors::map(device.as_fd(), number, depth)?;
        Ok(Self(Rc::new(Inner { lane: lane.clone(), chars: Rc::new(Chars(device)), number, descriptors })))
    }

    async fn send(&self, op: u32, tag: u16, result: i32) -> io::Result<Request> {
        let inner = &*self.0;
        let owner: Rc<dyn Owner> = inner.chars.clone();
        match fetch(&inner.lane, owner, op, inner.number, tag, result).await {
            Finished::Done(0, Payload::None) => Ok(Request::decode(&inner.descriptors.get(tag))),
            Finished::Done(result, _) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
            Finished::TimedOut => unreachable!("a fetch has no deadline"),
        }
    }

    /// Waits for the first request of a tag.
    ///
    /// # Errors
    /// `ENODEV`: the device was stopped. Others: the kernel does not take the queue.
    pub async fn fetch(&self, tag: u16) -> io::Result<Request> {
        self.send(FETCH_REQ, tag, 0).await
    }

    /// Answers the request of a tag (bytes moved, or a negative errno) and waits for its next one.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub async fn commit(&self, tag: u16, result: i32) -> io::Result<Request> {
        self.send(COMMIT_AND_FETCH_REQ, tag, result).await
    }

    fn place(&self, tag: u16, at: u32) -> u64 {
        0x8000_0000 + (u64::from(self.0.number) << 41) + (u64::from(tag) << 25) + u64::from(at)
    }

    /// Copies what a write request brings, from its byte `at` on, into the leases.
    ///
    /// # Errors
    /// What the kernel says; `UnexpectedEof` when the request is shorter.
    pub fn copy_in(&self, tag: u16, at: u32, into: &mut [Lease]) -> io::Result<()> {
        let whole: usize = into.iter().map(|lease| usize_of_u32(lease.len())).sum();
        let mut parts: SmallVec<[IoSliceMut<'_>; 16]> =
            into.iter_mut().map(|lease| IoSliceMut::new(lease.bytes_mut())).collect();
        let copied = rustix::io::preadv(&*self.0.chars.0, &mut parts, self.place(tag, at))?;
        if copied == whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Copies the leases into a read request, from its byte `at` on.
    ///
    /// # Errors
    /// What the kernel says; `WriteZero` when the request is shorter.
    pub fn copy_out(&self, tag: u16, at: u32, from: &[Lease]) -> io::Result<()> {
        let whole: usize = from.iter().map(|lease| usize_of_u32(lease.len())).sum();
        let parts: SmallVec<[IoSlice<'_>; 16]> =
            from.iter().map(|lease| IoSlice::new(lease.bytes())).collect();
        let copied = rustix::io::pwritev(&*self.0.chars.0, &parts, self.place(tag, at))?;
        if copied == whole { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_are_those_of_the_kernel() {
        // UBLK_U_IO_FETCH_REQ and UBLK_U_IO_COMMIT_AND_FETCH_REQ as a C compiler expands them.
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }
}
