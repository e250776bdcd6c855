//! The operations themselves: each takes ownership of its buffers and builds its entry from them, so starting one is
//! safe for the rest of the crate.

#![allow(unsafe_code)]

use std::ptr;
use std::rc::Rc;

use io_uring::opcode;
use raid_core::lease::{Lease, Leases, Segs};
use raid_core::units::{usize_of, usize_of_u32};

use super::{OpFuture, Owner, Payload, Slot};
use crate::lane::Lane;
use crate::socket::Part;

/// A page-aligned block of zeroes, written wherever a file system cannot zero a range by itself.
#[repr(align(4096))]
struct Zeroes([u8; ZERO_BYTES]);
const ZERO_BYTES: usize = 64 * 1024;
static ZEROES: Zeroes = Zeroes([0; ZERO_BYTES]);

/// The most that [`write_zeroes`] writes at once.
pub(crate) const ZERO_WRITE_BYTES_MAX: u64 = 1 << 20;
/// The most vectors of one `sendmsg` (the kernel's UIO_MAXIOV).
const VECTORS_MAX: usize = 1024;

fn iovec(start: *const u8, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes }
}

/// Whether memory from `start` on may be used as registered memory for `owner`'s file.
fn may_be_fixed(owner: &Rc<dyn Owner>, start: ptr::NonNull<u8>) -> bool {
    !owner.wants_whole_pages() || start.addr().get().is_multiple_of(rustix::param::page_size())
}

fn count(vectors: &[libc::iovec]) -> u32 {
    u32::try_from(vectors.len()).expect("a list of a few vectors")
}

/// Keeps buffers until `owner`'s file can be read: an operation that does nothing but not end.
pub(crate) fn hold(lane: &Lane, owner: Rc<dyn Owner>, payload: Payload, deadline_ns: u64) -> OpFuture {
    let readable = u32::from(rustix::event::PollFlags::IN.bits());
    // SAFETY: the entry holds no address.
    unsafe {
        lane.ring()
            .start(lane, owner, payload, deadline_ns, |_, fd| opcode::PollAdd::new(fd, readable).build())
    }
}

/// Reads from `at` into the leases, in order.
pub(crate) fn read(lane: &Lane, owner: Rc<dyn Owner>, at: u64, leases: Leases, deadline_ns: u64) -> OpFuture {
    let fixed = match &leases[..] {
        [one] if may_be_fixed(&owner, one.as_ptr()) => lane.ring().buffer_index(lane.arena(), one.key()),
        _ => None,
    };
    // SAFETY: the addresses are those of the leases, unique and writable for their length, which the payload owns.
    unsafe {
        lane.ring().start(lane, owner, Payload::Leases(leases), deadline_ns, |slot, fd| {
            let Slot { payload: Payload::Leases(leases), iov, .. } = slot else {
                unreachable!("just put there")
            };
            match (&leases[..], fixed) {
                ([one], Some(index)) => {
                    opcode::ReadFixed::new(fd, one.as_ptr().as_ptr(), one.len(), index).offset(at).build()
                }
                ([one], None) => opcode::Read::new(fd, one.as_ptr().as_ptr(), one.len()).offset(at).build(),
                (many, _) => {
                    iov.clear();
                    iov.extend(many.iter().map(|one| iovec(one.as_ptr().as_ptr(), usize_of_u32(one.len()))));
                    opcode::Readv::new(fd, iov.as_ptr(), count(iov)).offset(at).build()
                }
            }
        })
    }
}

/// Writes the segments from `at`, in order; `fua`: durable on completion.
pub(crate) fn write(
    lane: &Lane,
    owner: Rc<dyn Owner>,
    at: u64,
    segs: Segs,
    fua: bool,
    deadline_ns: u64,
) -> OpFuture {
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    let fixed = match &segs[..] {
        [one] if may_be_fixed(&owner, one.as_ptr()) => lane.ring().buffer_index(lane.arena(), one.key()),
        _ => None,
    };
    // SAFETY: the addresses are those of the segments, readable for their length, which the payload owns.
    unsafe {
        lane.ring().start(lane, owner, Payload::Segs(segs), deadline_ns, |slot, fd| {
            let Slot { payload: Payload::Segs(segs), iov, .. } = slot else { unreachable!("just put there") };
            match (&segs[..], fixed) {
                ([one], Some(index)) => opcode::WriteFixed::new(fd, one.as_ptr().as_ptr(), one.len(), index)
                    .offset(at)
                    .rw_flags(flags)
                    .build(),
                ([one], None) => opcode::Write::new(fd, one.as_ptr().as_ptr(), one.len())
                    .offset(at)
                    .rw_flags(flags)
                    .build(),
                (many, _) => {
                    iov.clear();
                    iov.extend(many.iter().map(|one| iovec(one.as_ptr().as_ptr(), usize_of_u32(one.len()))));
                    opcode::Writev::new(fd, iov.as_ptr(), count(iov)).offset(at).rw_flags(flags).build()
                }
            }
        })
    }
}

/// Writes `bytes` zeroes from `at`, at most [`ZERO_WRITE_BYTES_MAX`].
pub(crate) fn write_zeroes(
    lane: &Lane,
    owner: Rc<dyn Owner>,
    at: u64,
    bytes: u64,
    deadline_ns: u64,
) -> OpFuture {
    assert!(bytes <= ZERO_WRITE_BYTES_MAX);
    // SAFETY: the addresses are those of static memory, only read.
    unsafe {
        lane.ring().start(lane, owner, Payload::None, deadline_ns, |slot, fd| {
            slot.iov.clear();
            let mut left = usize_of(bytes);
            while left > 0 {
                let now = left.min(ZERO_BYTES);
                slot.iov.push(iovec(ZEROES.0.as_ptr(), now));
                left -= now;
            }
            opcode::Writev::new(fd, slot.iov.as_ptr(), count(&slot.iov)).offset(at).build()
        })
    }
}

/// `fdatasync`: on a block device, a flush of its cache.
pub(crate) fn flush(lane: &Lane, owner: Rc<dyn Owner>, deadline_ns: u64) -> OpFuture {
    // SAFETY: the entry holds no address.
    unsafe {
        lane.ring().start(lane, owner, Payload::Flush, deadline_ns, |_, fd| {
            opcode::Fsync::new(fd).flags(io_uring::types::FsyncFlags::DATASYNC).build()
        })
    }
}

/// `fallocate` with the given mode over a range.
pub(crate) fn fallocate(
    lane: &Lane,
    owner: Rc<dyn Owner>,
    at: u64,
    bytes: u64,
    mode: i32,
    deadline_ns: u64,
) -> OpFuture {
    // SAFETY: the entry holds no address.
    unsafe {
        lane.ring().start(lane, owner, Payload::None, deadline_ns, |_, fd| {
            opcode::Fallocate::new(fd, bytes).offset(at).mode(mode).build()
        })
    }
}

/// Waits for a connection; the result is its descriptor.
pub(crate) fn accept(lane: &Lane, owner: Rc<dyn Owner>) -> OpFuture {
    // SAFETY: the entry's addresses are null, which the operation allows.
    unsafe {
        lane.ring().start(lane, owner, Payload::Accept, u64::MAX, |_, fd| {
            opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
        })
    }
}

/// Receives into `buf[at..]`.
pub(crate) fn receive(lane: &Lane, owner: Rc<dyn Owner>, buf: Vec<u8>, at: usize) -> OpFuture {
    assert!(at < buf.len(), "receiving into nothing would look like the end of the stream");
    // SAFETY: the address lies in the vector's initialised heap memory, which the payload owns and nobody touches; a
    // vector that is moved keeps its heap memory.
    unsafe {
        lane.ring().start(lane, owner, Payload::Bytes(buf), u64::MAX, |slot, fd| {
            let Payload::Bytes(buf) = &mut slot.payload else { unreachable!("just put there") };
            let room = &mut buf[at..];
            let bytes = u32::try_from(room.len()).unwrap_or(1 << 30);
            opcode::Recv::new(fd, room.as_mut_ptr(), bytes).build()
        })
    }
}

/// Receives into the lease from byte `at`.
pub(crate) fn receive_lease(lane: &Lane, owner: Rc<dyn Owner>, lease: Lease, at: u32) -> OpFuture {
    assert!(at < lease.len(), "receiving into nothing would look like the end of the stream");
    // SAFETY: the address lies in the lease by the assertion, unique and writable, and the payload owns it.
    unsafe {
        lane.ring().start(lane, owner, Payload::Lease(lease), u64::MAX, |slot, fd| {
            let Payload::Lease(lease) = &mut slot.payload else { unreachable!("just put there") };
            let room = lease.as_ptr().as_ptr().add(usize_of_u32(at));
            opcode::Recv::new(fd, room, lease.len() - at).build()
        })
    }
}

/// Sends the parts from byte `skip` of them all. The result may be short.
pub(crate) fn send(lane: &Lane, owner: Rc<dyn Owner>, parts: Vec<Part>, skip: usize) -> OpFuture {
    // SAFETY: the vectors point into the parts, which the payload owns, readable for their length; the message header
    // is boxed and the vectors lie on the heap, so neither moves with the slot.
    unsafe {
        lane.ring().start(lane, owner, Payload::Parts(parts), u64::MAX, |slot, fd| {
            let Slot { payload: Payload::Parts(parts), iov, msg, .. } = slot else {
                unreachable!("just put there")
            };
            iov.clear();
            let mut skip = skip;
            for part in parts.iter() {
                let bytes = part.bytes();
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                let bytes = &bytes[skipped..];
                if !bytes.is_empty() && iov.len() < VECTORS_MAX {
                    iov.push(iovec(bytes.as_ptr(), bytes.len()));
                }
            }
            // All zero is a valid header: no name, no control data.
            let msg = msg.get_or_insert_with(|| Box::new(std::mem::zeroed()));
            msg.msg_iov = iov.as_mut_ptr();
            msg.msg_iovlen = iov.len();
            // MSG_WAITALL: the kernel itself goes on with a short send.
            let flags = u32::try_from(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).expect("two small flags");
            opcode::SendMsg::new(fd, &raw const **msg).flags(flags).build()
        })
    }
}
