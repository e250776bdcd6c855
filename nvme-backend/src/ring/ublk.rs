//! What of ublk takes an address: commands on a lane's ring, the descriptors the kernel shares, and commands to the
//! control device. Everything else of the protocol is in `crate::ublk`, without `unsafe`.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use raid_core::units::{u64_of, usize_of_u32};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{OpFuture, Owner, Payload};
use crate::lane::Lane;

/// `struct ublksrv_io_desc`.
pub(crate) const DESCRIPTOR_BYTES: u32 = 24;
/// UBLK_MAX_QUEUE_DEPTH.
const DEPTH_MAX: u32 = 4096;

/// Queues FETCH_REQ or COMMIT_AND_FETCH_REQ of one tag. It completes when the kernel has the next request for it; only
/// the end of the device or of the ring ends it otherwise.
pub(crate) fn fetch(
    lane: &Lane,
    owner: Rc<dyn Owner>,
    op: u32,
    queue: u16,
    tag: u16,
    result: i32,
) -> OpFuture {
    // `struct ublksrv_io_cmd`. Its address stays 0: data is copied with pread and pwrite (UBLK_F_USER_COPY).
    let mut command = [0; 16];
    command[0..2].copy_from_slice(&queue.to_ne_bytes());
    command[2..4].copy_from_slice(&tag.to_ne_bytes());
    command[4..8].copy_from_slice(&result.to_ne_bytes());
    // SAFETY: the entry holds no address, and neither does the command in it.
    unsafe {
        lane.ring().start(lane, owner, Payload::None, u64::MAX, |_, fd| {
            opcode::UringCmd16::new(fd, op).cmd(command).build()
        })
    }
}

/// The descriptors of one queue: the kernel's memory, mapped to be read.
pub(crate) struct Descriptors {
    start: NonNull<u8>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    /// Maps those of `queue`.
    pub(crate) fn map(device: BorrowedFd<'_>, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = usize_of_u32(u32::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page);
        let spacing = usize_of_u32(DEPTH_MAX * DESCRIPTOR_BYTES).next_multiple_of(page);
        let offset = u64::from(queue) * u64_of(spacing);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                device,
                offset,
            )?
        };
        let start = NonNull::new(start.cast()).expect("mmap does not place mappings at address 0");
        Ok(Self { start, bytes, depth })
    }

    /// The descriptor of a tag whose fetch has completed.
    pub(crate) fn get(&self, tag: u16) -> [u8; 24] {
        assert!(tag < self.depth, "tag {tag} of a queue of {}", self.depth);
        let at = usize_of_u32(u32::from(tag) * DESCRIPTOR_BYTES);
        // SAFETY: the assertion keeps it inside the mapping, which lives as long as `self`; any bytes are valid. The
        // kernel wrote them before it completed the fetch (the ring orders that) and does not again until the commit;
        // should it all the same, a volatile copy is judged once and never looked at again.
        unsafe { self.start.add(at).cast::<[u8; 24]>().as_ptr().read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are what `mmap` gave; `get` hands out copies, so nobody reaches the memory.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Sends one command to the control device and waits for its end: `struct ublksrv_ctrl_cmd` but for its buffer, which is
/// `buffer`, read or written by the kernel as the command has it. Returns the kernel's result and the buffer.
pub(crate) fn control(
    device: &File,
    op: u32,
    id: u32,
    data: u64,
    mut buffer: Vec<u8>,
) -> io::Result<(i32, Vec<u8>)> {
    let mut ring: IoUring<squeue::Entry128> = IoUring::builder().build(4)?;
    let len = u16::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = if len == 0 { 0 } else { u64_of(buffer.as_mut_ptr().expose_provenance()) };
    let mut command = [0; 80];
    command[0..4].copy_from_slice(&id.to_ne_bytes());
    command[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    command[6..8].copy_from_slice(&len.to_ne_bytes());
    command[8..16].copy_from_slice(&address.to_ne_bytes());
    command[16..24].copy_from_slice(&data.to_ne_bytes());
    let entry = opcode::UringCmd80::new(Fd(device.as_raw_fd()), op).cmd(command).build();
    // SAFETY: the command's address is the buffer's, valid for its `len` bytes. The buffer lives until the completion
    // was reaped below, or for ever.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    loop {
        let entered = ring.submit_and_wait(1);
        if let Some(done) = ring.completion().next() {
            return Ok((done.result(), buffer));
        }
        match entered {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
                ) => {}
            Err(error) => {
                // What the kernel may still write to is never freed.
                std::mem::forget(buffer);
                return Err(error);
            }
        }
    }
}
