//! The ports: everything the engine needs from the world, as traits, statically dispatched.
//!
//! The engine is plain `async fn`s over these and knows no runtime: the same code runs on the reactor in production and
//! on a seeded executor in the simulator. Frozen before several people built on it; a change here is a change of the
//! house and belongs in ARCHITECTURE.md.

use core::fmt;
use core::future::Future;
use core::ops::Range;

use crate::lease::{Leases, Seg, Segs};
use crate::parity::{ParityError, ParityJob, Verdict};
use crate::units::{BlockSize, DriveOffset, LaneId};
use crate::view::Witness;

/// What went wrong with an I/O, as far as the engine has to tell cases apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoKind {
    /// The drive is gone: removed, ENODEV, ENOSPC on a drive, a write of 0 bytes. The member is dropped.
    Gone,
    /// No answer within the drive time-out; the buffer is quarantined by the driver (SAFETY M7).
    TimedOut,
    /// The drive cannot read (or write) these blocks but is alive (EIO, EREMOTEIO, EBADMSG, ENODATA).
    Medium,
    /// Fewer bytes than asked for: what a removed NVMe drive answers. Treated as `Gone` for the member.
    ShortRead,
    /// Integrity (T10 PI) check failed: the blocks are treated like `Medium`.
    Protection,
    /// The path to the drive failed (reset, link); the member is dropped.
    Transport,
    /// The request itself was wrong (EINVAL, out of range): a bug, never the drive's fault.
    Invalid,
    /// The daemon is stopping.
    ShuttingDown,
    /// The group cannot serve these blocks: more members are lost than the level tolerates (SAFETY P4).
    BeyondTolerance,
    /// The blocks are in the bad-block log: their contents are lost until rewritten (SAFETY S6).
    BadBlock,
}

impl IoKind {
    /// Whether this error means the member itself is to be dropped, not only the blocks repaired (SAFETY S5).
    #[must_use]
    pub const fn drops_member_on_read(self) -> bool {
        matches!(self, Self::Gone | Self::TimedOut | Self::ShortRead | Self::Transport)
    }
}

/// An I/O error: kind, what was being done, and the operating system's number where there was one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError {
    /// The kind, on which the engine acts.
    pub kind: IoKind,
    /// What was being done, for people.
    pub context: &'static str,
    /// The errno, if the kernel gave one.
    pub errno: Option<i32>,
}

impl IoError {
    /// An error of this kind without an errno.
    #[must_use]
    pub const fn new(kind: IoKind, context: &'static str) -> Self {
        Self { kind, context, errno: None }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.context, self.kind)?;
        match self.errno {
            Some(errno) => write!(f, " (errno {errno})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for IoError {}

/// The end of an I/O that had buffers lent to it. `buf` is `None` only after a time-out, when the driver keeps it in
/// quarantine until the kernel lets go (SAFETY M7).
#[derive(Debug)]
pub struct Done<B> {
    /// How it went.
    pub result: Result<(), IoError>,
    /// The buffers, back.
    pub buf: Option<B>,
}

/// Whether a write must be durable when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Durable after the next completed flush.
    Cached,
    /// Force unit access: durable on completion.
    Fua,
}

/// A drive as ONE lane sees it. An operation starts when the method is called (not when polled); dropping the future
/// detaches the operation and never frees memory the device may still touch.
///
/// Offsets and lengths are multiples of the drive's block size.
pub trait Drive: Clone + 'static {
    /// Reads from `at` into the leases, one after the other, each to its full length, as one command.
    fn read(&self, at: DriveOffset, into: Leases) -> impl Future<Output = Done<Leases>> + use<Self>;

    /// Writes the segments one after the other from `at`, as one command.
    fn write(
        &self,
        at: DriveOffset,
        from: Segs,
        how: Durability,
    ) -> impl Future<Output = Result<(), IoError>> + use<Self>;

    /// Makes every write that COMPLETED before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), IoError>> + use<Self>;

    /// Makes the range read as zeroes (write-zeroes; never a plain deallocate: SAFETY S7). `unmap` allows the drive to
    /// give the space up as long as it still reads as zeroes.
    fn zero(&self, range: Range<u64>, unmap: bool) -> impl Future<Output = Result<(), IoError>> + use<Self>;

    /// Logical block size.
    fn block_size(&self) -> BlockSize;

    /// Size in bytes.
    fn size_bytes(&self) -> u64;
}

/// Parity arithmetic over a batch of columns. The CPU engine is ready at the first poll; a GPU engine is not. An error
/// hands the job back untouched so that it can be computed elsewhere (SAFETY P5).
pub trait ParityEngine: 'static {
    /// Runs one job and hands its buffers back.
    fn run(&self, job: ParityJob) -> impl Future<Output = (ParityJob, Result<Verdict, ParityError>)>;
}

/// Monotonic time of a lane.
pub trait Clock: 'static {
    /// Nanoseconds since an arbitrary start; never goes back.
    fn now_ns(&self) -> u64;

    /// Completes when `now_ns() >= deadline_ns`.
    fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()>;

    /// Seconds since 1970 for on-disk timestamps only; no decision is ever made from it (SAFETY P7).
    fn unix_seconds(&self) -> u64;
}

/// Which part of the lane's bounded memory a lease comes from. The order of waiting is: Request leases, Scratch leases (one
/// call, the worst case), stripe locks, the view, Metadata leases. Nobody waits for an earlier thing while holding a later
/// one, and nobody holding a Metadata lease waits for a lock or a view. So a full arena is back-pressure and never a deadlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pool {
    /// Data of client requests.
    Request,
    /// What the engine needs beyond the request: parity, old data, rebuild windows.
    Scratch,
    /// Superblocks, intent pages, epochs.
    Metadata,
}

/// Names a drive across lanes: every lane has its own handle under the same key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DriveKey(pub u64);

/// One lane, as core sees it: the only way to reach the world. Cheap to clone.
pub trait Env: Clone + 'static {
    /// Drive handle of this lane.
    type Drive: Drive;
    /// Parity engine of this lane.
    type Parity: ParityEngine;
    /// Clock of this lane.
    type Clock: Clock;

    /// This lane's number.
    fn lane(&self) -> LaneId;

    /// The clock.
    fn clock(&self) -> &Self::Clock;

    /// The parity engine.
    fn parity(&self) -> &Self::Parity;

    /// This lane's handle of a drive; `None` if the drive was taken away. Called when a view changes, not per I/O.
    fn drive(&self, key: DriveKey) -> Option<Self::Drive>;

    /// A random word; the only randomness core has (uuids, epochs).
    fn random_u64(&self) -> u64;

    /// One lease per size in `sizes` (each at most [`crate::lease::LEASE_BYTES_MAX`]); contents are undefined. Waits,
    /// first come first served, until all can be given at once: back-pressure, never allocation without limit.
    fn lease(&self, pool: Pool, sizes: &[u32]) -> impl Future<Output = Leases>;

    /// The same without waiting: `None` when the pool cannot give all of them now.
    fn try_lease(&self, pool: Pool, sizes: &[u32]) -> Option<Leases>;

    /// Stores what the host itself must remember of a group (SAFETY M4), durable on completion. Part of making a view
    /// durable: a witness older than the drives would let a dropped member start alone.
    fn store_witness(&self, witness: Witness) -> impl Future<Output = Result<(), IoError>>;

    /// Runs a task on this lane.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);
}

/// All of `seg`, as the list a drive takes.
#[must_use]
pub fn one_seg(seg: Seg) -> Segs {
    let mut segs = Segs::new();
    segs.push(seg);
    segs
}
