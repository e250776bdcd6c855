//! One tag of a queue: a request is fetched, done, answered, and the next one fetched, for ever.
//!
//! A task for each tag, all of a queue on its lane. Memory is leased when a request is there, window by window, so that
//! idle tags hold none; what a write brings is copied once, before anything is computed from it (SAFETY S2).
//!
//! Invariants: a request is answered at most once; between [`Served::leave`] and the end of the ring no request is begun,
//! and whoever leaves waits until those that were begun are answered, so the kernel sends only such again as changed
//! nothing or were not acknowledged.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use nvme_backend::ublk::{Queue, Request, RequestOp};
use raid_core::lease::{Lease, Leases, Segs};
use raid_core::ports::{Durability, IoError, IoKind};
use raid_core::units::u32_of;
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::disk::Export;
use crate::nbd::sync::SharedSignal;

/// A queue as a tag's task uses it: the kernel, or a script in tests.
pub trait Door {
    /// Waits for the first request of a tag.
    fn fetch(&self, tag: u16) -> impl Future<Output = io::Result<Request>>;
    /// Answers a request and waits for the next.
    fn commit(&self, tag: u16, result: i32) -> impl Future<Output = io::Result<Request>>;
    /// Copies what a write brings.
    fn copy_in(&self, tag: u16, at: u32, into: &mut [Lease]) -> io::Result<()>;
    /// Copies what a read wants.
    fn copy_out(&self, tag: u16, at: u32, from: &[Lease]) -> io::Result<()>;
}

impl Door for Queue {
    fn fetch(&self, tag: u16) -> impl Future<Output = io::Result<Request>> {
        Self::fetch(self, tag)
    }

    fn commit(&self, tag: u16, result: i32) -> impl Future<Output = io::Result<Request>> {
        Self::commit(self, tag, result)
    }

    fn copy_in(&self, tag: u16, at: u32, into: &mut [Lease]) -> io::Result<()> {
        Self::copy_in(self, tag, at, into)
    }

    fn copy_out(&self, tag: u16, at: u32, from: &[Lease]) -> io::Result<()> {
        Self::copy_out(self, tag, at, from)
    }
}

/// What the tasks of a device share with whoever watches over it.
#[derive(Default)]
pub struct Served {
    is_leaving: AtomicBool,
    /// Requests begun and not answered.
    busy: AtomicUsize,
    /// Tasks that have not ended.
    tags: AtomicUsize,
    /// Raised when the disk itself changed: exports are made anew.
    version: AtomicU64,
    changed: SharedSignal,
}

impl Served {
    /// A place for one task.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Place {
        self.tags.fetch_add(1, Ordering::SeqCst);
        Place(Arc::clone(self))
    }

    /// Completes when every task has ended, and with it every handle of the device on a lane.
    pub fn gone(&self) -> impl Future<Output = ()> {
        self.changed.until(|| self.tags.load(Ordering::SeqCst) == 0)
    }

    /// Lets no request begin any more; completes when those begun are answered. The device then waits for another daemon.
    pub async fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        self.changed.until(|| self.busy.load(Ordering::SeqCst) == 0).await;
    }

    /// From now on requests see the disk as it is now.
    pub fn refresh(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins a request, unless the device is being left. Raised before it looks: whoever leaves sets the flag before it
    /// counts, so either this sees the flag or that sees the count.
    fn begin(&self) -> Option<Busy<'_>> {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let busy = Busy(self);
        (!self.is_leaving.load(Ordering::SeqCst)).then_some(busy)
    }
}

/// A request begun.
struct Busy<'a>(&'a Served);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if self.0.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.raise();
        }
    }
}

/// A task's place among those of its device; dropped when the task has ended.
pub struct Place(Arc<Served>);

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.tags.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.raise();
        }
    }
}

/// Serves a tag until the device is stopped or left. `export` gives the disk as it is; `None` when its group is not
/// running any more.
pub async fn serve_tag<D: Door, X: Export>(place: Place, door: D, tag: u16, export: impl Fn() -> Option<X>) {
    let served = Arc::clone(&place.0);
    let mut seen = served.version.load(Ordering::SeqCst);
    let mut disk = export();
    let mut fetched = door.fetch(tag).await;
    loop {
        let request = match fetched {
            Ok(request) => request,
            Err(error) => {
                // ENODEV is the end of a device that was stopped.
                if error.raw_os_error() != Some(Errno::NODEV.raw_os_error()) {
                    tracing::warn!(tag, %error, "a tag of a ublk queue is not served any more");
                }
                break;
            }
        };
        let Some(busy) = served.begin() else { break };
        let version = served.version.load(Ordering::SeqCst);
        if version != seen {
            (seen, disk) = (version, export());
        }
        let result = match &disk {
            Some(disk) => answer(run(&door, tag, disk, request).await),
            None => answer(Err(Errno::IO)),
        };
        // The first poll puts the commit into the ring: whoever waits for the count may end the lane after that.
        let next = door.commit(tag, result);
        let mut next = std::pin::pin!(next);
        let first = std::future::poll_fn(|cx| std::task::Poll::Ready(next.as_mut().poll(cx))).await;
        drop(busy);
        fetched = match first {
            std::task::Poll::Ready(fetched) => fetched,
            std::task::Poll::Pending => next.await,
        };
    }
    drop(door);
    drop(place);
}

/// The protocol's result: bytes, or a negative errno.
fn answer(result: Result<u32, Errno>) -> i32 {
    match result {
        Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// What the kernel is told of an error.
fn errno_of(error: IoError) -> Errno {
    tracing::debug!(%error, "a request of a block device failed");
    match error.kind {
        IoKind::Invalid => Errno::INVAL,
        _ => Errno::IO,
    }
}

async fn run<D: Door, X: Export>(door: &D, tag: u16, disk: &X, request: Request) -> Result<u32, Errno> {
    let Request { op, at, len, is_fua, keeps_space } = request;
    let how = if is_fua { Durability::Fua } else { Durability::Cached };
    if op == RequestOp::Flush {
        return disk.flush().await.map(|()| 0).map_err(errno_of);
    }
    let block = u64::from(disk.block_size().bytes());
    if !at.is_multiple_of(block) || !len.is_multiple_of(block) {
        return Err(Errno::INVAL);
    }
    if at.checked_add(len).is_none_or(|end| end > disk.size_bytes()) {
        return Err(Errno::IO);
    }
    if op != RequestOp::Read && disk.is_read_only() {
        return Err(Errno::PERM);
    }
    match op {
        RequestOp::Read => read(door, tag, disk, at, u32_of(len)).await,
        RequestOp::Write => write(door, tag, disk, at, u32_of(len), how).await,
        // Discard is write-zeroes that may give the space up (SAFETY S7).
        RequestOp::Discard => disk.zero(at, len, true, how).await.map(|()| 0).map_err(errno_of),
        RequestOp::WriteZeroes => disk.zero(at, len, !keeps_space, how).await.map(|()| 0).map_err(errno_of),
        RequestOp::Flush | RequestOp::Unknown(_) => Err(Errno::OPNOTSUPP),
    }
}

/// Copies between the kernel and us fail only when the device was stopped meanwhile.
fn not_copied(error: &io::Error) -> Errno {
    tracing::debug!(%error, "a ublk request's data was not copied");
    Errno::IO
}

async fn windows_of<X: Export>(disk: &X, at: u64, len: u32) -> (u32, Leases) {
    let window = disk.window(at, len);
    let sizes: SmallVec<[u32; 16]> = disk.pieces(at, window).collect();
    (window, disk.lease(&sizes).await)
}

async fn read<D: Door, X: Export>(door: &D, tag: u16, disk: &X, at: u64, len: u32) -> Result<u32, Errno> {
    let mut moved = 0;
    while moved < len {
        let from = at + u64::from(moved);
        let (window, leases) = windows_of(disk, from, len - moved).await;
        let done = disk.read(from, leases).await;
        done.result.map_err(errno_of)?;
        let leases = done.buf.ok_or(Errno::IO)?;
        door.copy_out(tag, moved, &leases).map_err(|error| not_copied(&error))?;
        moved += window;
    }
    Ok(len)
}

async fn write<D: Door, X: Export>(
    door: &D,
    tag: u16,
    disk: &X,
    at: u64,
    len: u32,
    how: Durability,
) -> Result<u32, Errno> {
    let mut moved = 0;
    while moved < len {
        let to = at + u64::from(moved);
        let (window, mut leases) = windows_of(disk, to, len - moved).await;
        door.copy_in(tag, moved, &mut leases).map_err(|error| not_copied(&error))?;
        let segs: Segs = leases.into_iter().map(Lease::share).collect();
        disk.write(to, segs, how).await.map_err(errno_of)?;
        moved += window;
    }
    Ok(len)
}
