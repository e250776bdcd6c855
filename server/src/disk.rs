//! A virtual disk as a front end sees it: an extent of a group, requests of any size.

use core::future::Future;

use raid_core::engine::Group;
use raid_core::lease::{Lease, Leases, Seg, Segs, leases_len, segs_len};
use raid_core::ports::{Clock, Done, Durability, Env, IoError, Pool};
use raid_core::units::{BlockSize, GroupOffset, u32_of};

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

/// A virtual disk on ONE lane: an extent of a group.
///
/// Invariant: the extent lies inside the group and starts and ends at a block.
pub struct Disk<E: Env> {
    group: Group<E>,
    start: GroupOffset,
    len: u64,
    is_read_only: bool,
}

impl<E: Env> Clone for Disk<E> {
    fn clone(&self) -> Self {
        Self { group: self.group.clone(), ..*self }
    }
}

impl<E: Env> Disk<E> {
    /// The `len` bytes of the group from `start` on; `None` if they are not whole blocks inside the group.
    #[must_use]
    pub fn new(group: Group<E>, start: GroupOffset, len: u64, is_read_only: bool) -> Option<Self> {
        let shared = group.shared();
        let block = u64::from(shared.block_size().bytes());
        let is_inside = start.0.checked_add(len).is_some_and(|end| end <= shared.geometry().capacity_bytes());
        let is_whole = start.0.is_multiple_of(block) && len.is_multiple_of(block);
        (is_inside && is_whole).then_some(Self { group, start, len, is_read_only })
    }

    fn at(&self, at: u64) -> GroupOffset {
        self.start.plus(at)
    }

    /// Largest read or write the group takes at once.
    fn request_bytes_max(&self) -> u32 {
        let most = self.group.shared().max_request_bytes().min(u64::from(WINDOW_BYTES_MAX));
        u32_of(most)
    }
}

/// How many of the next buffers go into one request of at most `most` bytes, and their length; at least one.
fn fitting(sizes: impl Iterator<Item = u32>, most: u64) -> (usize, u64) {
    let (mut n, mut len) = (0, 0);
    for size in sizes {
        if n > 0 && len + u64::from(size) > most {
            break;
        }
        n += 1;
        len += u64::from(size);
    }
    (n, len)
}

impl<E: Env> Export for Disk<E> {
    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn block_size(&self) -> BlockSize {
        self.group.shared().block_size()
    }

    fn preferred_bytes(&self) -> u32 {
        u32::try_from(self.group.shared().geometry().stripe_data_bytes()).unwrap_or(u32::MAX)
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn pieces(&self, at: u64, len: u32) -> impl Iterator<Item = u32> {
        self.group.shared().geometry().pieces(self.at(at), u64::from(len))
    }

    fn window(&self, at: u64, len: u32) -> u32 {
        let most = self.request_bytes_max();
        if len <= most {
            return len;
        }
        // Up to the last stripe boundary in reach, so that all later windows are whole stripes.
        let stripe = self.group.shared().geometry().stripe_data_bytes();
        let at = self.at(at).0;
        let to = (at + u64::from(most)) / stripe * stripe;
        if to > at { u32_of(to - at) } else { most }
    }

    fn lease(&self, sizes: &[u32]) -> impl Future<Output = Leases> {
        self.group.env().lease(Pool::Request, sizes)
    }

    async fn read(&self, at: u64, into: Leases) -> Done<Leases> {
        let began_ns = self.began();
        let done = if leases_len(&into) <= self.group.shared().max_request_bytes() {
            self.group.read(self.at(at), into).await
        } else {
            self.read_parts(at, into).await
        };
        self.ended(began_ns);
        done
    }

    async fn write(&self, at: u64, from: Segs, how: Durability) -> Result<(), IoError> {
        let began_ns = self.began();
        let written = if segs_len(&from) <= self.group.shared().max_request_bytes() {
            self.group.write(self.at(at), from, how).await
        } else {
            self.write_parts(at, from, how).await
        };
        self.ended(began_ns);
        written
    }

    async fn zero(&self, at: u64, len: u64, unmap: bool, how: Durability) -> Result<(), IoError> {
        let start = self.at(at);
        self.group.zero(start.0..start.plus(len).0, unmap, how).await
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.group.flush().await
    }
}

impl<E: Env> Disk<E> {
    /// A client's request begins: when, if a sweep wants to know (`raid_core::pacing`).
    fn began(&self) -> Option<u64> {
        self.group.shared().foreground().begin(|| self.group.env().clock().now_ns())
    }

    fn ended(&self, began_ns: Option<u64>) {
        let env = self.group.env();
        self.group.shared().foreground().end(env.lane().0, began_ns, || env.clock().now_ns());
    }

    /// A read longer than the group takes at once.
    async fn read_parts(&self, at: u64, mut into: Leases) -> Done<Leases> {
        let most = self.group.shared().max_request_bytes();
        let mut at = self.at(at);
        let mut read = Leases::new();
        while !into.is_empty() {
            let (n, len) = fitting(into.iter().map(Lease::len), most);
            let done = self.group.read(at, into.drain(..n).collect()).await;
            at = at.plus(len);
            match done.buf {
                Some(buf) if done.result.is_ok() => read.extend(buf),
                _ => return Done { result: done.result, buf: None },
            }
        }
        Done { result: Ok(()), buf: Some(read) }
    }

    /// A write longer than the group takes at once.
    async fn write_parts(&self, at: u64, mut from: Segs, how: Durability) -> Result<(), IoError> {
        let most = self.group.shared().max_request_bytes();
        let mut at = self.at(at);
        while !from.is_empty() {
            let (n, len) = fitting(from.iter().map(Seg::len), most);
            self.group.write(at, from.drain(..n).collect(), how).await?;
            at = at.plus(len);
        }
        Ok(())
    }
}
