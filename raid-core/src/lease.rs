//! Leases: the only memory that I/O and parity ever touch.
//!
//! A [`Lease`] is one arena block: unique and mutable. [`Lease::share`] turns it into a [`Seg`], which is read-only and
//! can be cloned, because a mirror writes one buffer to two drives and a split extent writes parts of one. Neither is
//! `Send`: a buffer stays on the lane whose arena it came from. The last handle to be dropped gives the block back to
//! its arena through [`LeaseHome`]; dropping the future of an I/O never frees memory a drive may still write to, since
//! the driver owns the handle until the operation is over (SAFETY M7).
//!
//! Invariants: a block's memory is `capacity` bytes at `start`, valid while the block lives, never handed out twice at a
//! time; `len <= capacity`; a `Seg` never outlives unique access, because sharing consumes the lease.

#![allow(unsafe_code)]

use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::units::usize_of_u32;

/// The most bytes one lease can hold, and so the widest column window of a stripe the engine works on at once.
pub const LEASE_BYTES_MAX: u32 = 64 * 1024;

/// A few leases, in the order of the extent they cover.
pub type Leases = SmallVec<[Lease; 2]>;
/// A few segments, in the order of the extent they cover.
pub type Segs = SmallVec<[Seg; 2]>;

/// Where a block goes when its last handle is dropped: the arena it came from.
pub trait LeaseHome {
    /// Takes the block back. `key` is what the arena passed to [`Lease::new`].
    fn give_back(&self, key: u32);
}

struct Block {
    start: NonNull<u8>,
    capacity: u32,
    key: u32,
    home: Rc<dyn LeaseHome>,
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        self.home.give_back(self.key);
    }
}

/// One arena block, unique and mutable. Length is what was asked for, not the block's capacity.
pub struct Lease {
    block: Rc<Block>,
    len: u32,
}

impl Lease {
    /// Makes a lease of `len` bytes over the arena block at `start`.
    ///
    /// # Safety
    /// `start` must be valid for reads and writes of `capacity` initialised bytes, reached through no other handle, until
    /// `home.give_back(key)` is called; `home` must keep the memory alive as long as itself.
    ///
    /// # Panics
    /// If `len` is over `capacity`.
    #[must_use]
    #[inline]
    pub unsafe fn new(
        start: NonNull<u8>,
        capacity: u32,
        len: u32,
        key: u32,
        home: Rc<dyn LeaseHome>,
    ) -> Self {
        assert!(len <= capacity, "a lease of {len} bytes in a block of {capacity}");
        Self { block: Rc::new(Block { start, capacity, key, home }), len }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the length is 0.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens the lease to its first `len` bytes; does nothing if it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
    }

    /// First byte: what a driver passes to the kernel. Stable while the lease or a segment of it lives.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.block.start
    }

    /// The arena's key of this block, with which a driver finds its registered-buffer index.
    #[must_use]
    #[inline]
    pub fn key(&self) -> u32 {
        self.block.key
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        debug_assert!(self.len <= self.block.capacity);
        // SAFETY: `new` promised `capacity` valid, initialised bytes and `len <= capacity`; the lease is the only
        // handle (sharing consumes it), and `&self` keeps `bytes_mut` out while the slice lives.
        unsafe { core::slice::from_raw_parts(self.block.start.as_ptr(), usize_of_u32(self.len)) }
    }

    /// The bytes, mutable.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` on the unique handle excludes every other access.
        unsafe { core::slice::from_raw_parts_mut(self.block.start.as_ptr(), usize_of_u32(self.len)) }
    }

    /// Gives up unique access for a read-only segment over all of it.
    #[must_use]
    #[inline]
    pub fn share(self) -> Seg {
        let bytes = 0..self.len;
        Seg { block: self.block, bytes }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease(key {}, {} bytes)", self.block.key, self.len)
    }
}

/// A read-only part of an arena block; cheap to clone.
#[derive(Clone)]
pub struct Seg {
    block: Rc<Block>,
    bytes: Range<u32>,
}

impl Seg {
    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.bytes.end - self.bytes.start
    }

    /// Whether the length is 0.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The arena's key of the block, with which a driver finds its registered-buffer index.
    #[must_use]
    #[inline]
    pub fn key(&self) -> u32 {
        self.block.key
    }

    /// First byte of the segment: what a driver passes to the kernel. Stable while any handle of the block lives.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `bytes.start <= capacity`, so the result stays inside the block or one past its end.
        unsafe { self.block.start.add(usize_of_u32(self.bytes.start)) }
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` lies inside the block (checked in `slice`), whose memory `Lease::new` promised valid and
        // initialised; no mutable handle exists, because sharing consumed the lease.
        unsafe { core::slice::from_raw_parts(self.as_ptr().as_ptr(), usize_of_u32(self.len())) }
    }

    /// The part `range` of this segment, relative to its start.
    ///
    /// # Panics
    /// If the range is not inside the segment.
    #[must_use]
    #[inline]
    pub fn slice(&self, range: Range<u32>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of a segment of {}",
            self.len()
        );
        let start = self.bytes.start + range.start;
        Self { block: Rc::clone(&self.block), bytes: start..start + (range.end - range.start) }
    }

    /// Unique access back, if this is the only handle left of a block shared whole; the segment itself otherwise.
    ///
    /// # Errors
    /// The segment, unchanged, while another handle lives or when it covers only a part from inside the block.
    #[inline]
    pub fn into_lease(self) -> Result<Lease, Self> {
        if self.bytes.start == 0 && Rc::strong_count(&self.block) == 1 {
            Ok(Lease { len: self.bytes.end, block: self.block })
        } else {
            Err(self)
        }
    }
}

impl fmt::Debug for Seg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seg(key {}, bytes {:?})", self.block.key, self.bytes)
    }
}

/// Total length of leases in bytes.
#[must_use]
pub fn leases_len(leases: &[Lease]) -> u64 {
    leases.iter().map(|lease| u64::from(lease.len())).sum()
}

/// Total length of segments in bytes.
#[must_use]
pub fn segs_len(segs: &[Seg]) -> u64 {
    segs.iter().map(|seg| u64::from(seg.len())).sum()
}
