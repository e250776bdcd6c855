//! A virtual disk as a front end sees it: an extent of a group, requests of any size.

use core::future::Future;

use raid_core::lease::{Leases, Segs};
use raid_core::ports::{Done, Durability, IoError};
use raid_core::units::BlockSize;

/// Most bytes a front end asks for in one read or write; larger requests come as several.
pub const WINDOW_BYTES_MAX: u32 = 1024 * 1024;

/// What a session serves: a disk as ONE lane sees it. Cheap to clone.
///
/// Offsets and lengths are multiples of the block size and inside the disk; the front end has checked both.
pub trait Export: Clone + 'static {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Smallest unit and alignment of every request.
    fn block_size(&self) -> BlockSize;

    /// Bytes of a full stripe: the size at which writes are cheapest.
    fn preferred_bytes(&self) -> u32;

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// How the buffers of a request must be cut.
    fn pieces(&self, at: u64, len: u32) -> impl Iterator<Item = u32>;

    /// How much of a larger write is best sent on as its first part: from 1 block to `len`, at most
    /// [`WINDOW_BYTES_MAX`].
    fn window(&self, at: u64, len: u32) -> u32;

    /// Memory for a request: bounded, waits its turn.
    fn lease(&self, sizes: &[u32]) -> impl Future<Output = Leases>;

    /// Reads into leases cut by [`Self::pieces`].
    fn read(&self, at: u64, into: Leases) -> impl Future<Output = Done<Leases>>;

    /// Writes segments cut by [`Self::pieces`].
    fn write(&self, at: u64, from: Segs, how: Durability) -> impl Future<Output = Result<(), IoError>>;

    /// Makes a range read as zeroes, of any length (SAFETY S7).
    fn zero(
        &self,
        at: u64,
        len: u64,
        unmap: bool,
        how: Durability,
    ) -> impl Future<Output = Result<(), IoError>>;

    /// Makes every write completed before, through any clone on any lane, durable (SAFETY P1).
    fn flush(&self) -> impl Future<Output = Result<(), IoError>>;
}
