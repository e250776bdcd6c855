//! Drives: opened once and exclusively ([`OpenDrive`], shared by all lanes), with a handle per lane ([`LaneDrive`]) that
//! implements `raid_core::ports::Drive`.
//!
//! Invariants: a drive opened exclusively is held until its last handle and its last operation in flight are gone (the
//! fence of SAFETY M8); a command outside the drive, or not in whole blocks, is refused before it reaches the kernel.

mod errno;
mod errnos;
mod fault;
mod file;
mod identity;
mod ioctl;
mod memory;
mod open;

use std::future::{Future, Ready, ready};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use parking_lot::RwLock;
use raid_core::lease::{Leases, Segs, leases_len, segs_len};
use raid_core::ports::{Done, Drive, Durability, IoError, IoKind};
use raid_core::units::{BlockSize, DriveOffset};

use crate::lane::Lane;
use crate::meter::{self, IoOp, LaneMeters, Metered};
use file::{FileFlush, FileLane, FileRead, FileWrite, FileZero};
use memory::Ram;

pub use errnos::Errnos;
pub use fault::{Fault, FaultKind};
pub use identity::{DeviceListing, DriveKind, Identity, diskseq_of, list_block_devices, port_of};
pub(crate) use identity::{holders_of, pid_with_open};
pub use ioctl::{Smart, read_smart};
pub use open::{OpenError, OpenOptions};

/// Where the bytes of a drive are.
enum Medium {
    /// `may_block_lane`: see [`crate::ring::Owner::may_block_lane`].
    File {
        fd: OwnedFd,
        is_block: bool,
        is_direct: bool,
        may_block_lane: bool,
    },
    Ram(Ram),
    Null,
}

/// An open drive, as all lanes share it.
struct Shared {
    medium: Medium,
    identity: Identity,
    size_bytes: u64,
    block_size: BlockSize,
    timeout_ns: u64,
    read_only: bool,
    /// Whether lanes count its commands.
    is_metered: bool,
    /// Commands that nobody waits for any more but the kernel still works on.
    quarantined: AtomicUsize,
    /// Whether `faults` has any: all a command of a sound drive looks at.
    is_faulty: AtomicBool,
    /// What it does wrong on purpose.
    faults: RwLock<Vec<Arc<Fault>>>,
    /// The device or file system refused FALLOC_FL_PUNCH_HOLE once.
    no_punch: AtomicBool,
    /// The device or file system refused FALLOC_FL_ZERO_RANGE once.
    no_zero_range: AtomicBool,
    /// Of every lane that ever had a handle.
    meters: parking_lot::Mutex<Vec<Arc<LaneMeters>>>,
    errnos: Errnos,
}

/// A drive opened once, for all lanes. Cheap to clone; closed (and its lock given up) when the last clone, lane handle
/// and operation in flight are gone.
#[derive(Clone)]
pub struct OpenDrive(Arc<Shared>);

impl OpenDrive {
    /// Opens a block device or a regular file.
    ///
    /// # Errors
    /// Why not, with what to do about it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        open::open(path, options).map(|shared| Self(Arc::new(shared)))
    }

    /// As [`OpenDrive::open`], but a drive that somebody else holds is tried again until the deadline: a dying daemon's
    /// late I/O holds its drives (SAFETY M8). Blocks the thread: for the control thread, never on a lane.
    ///
    /// # Errors
    /// [`OpenError::Busy`] once the deadline has passed; any other error at once.
    pub fn open_waiting(path: &Path, options: OpenOptions, deadline: Instant) -> Result<Self, OpenError> {
        loop {
            match Self::open(path, options) {
                Err(OpenError::Busy { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                other => return other,
            }
        }
    }

    fn in_memory(kind: DriveKind, medium: Medium, size_bytes: u64, block_size: BlockSize) -> Self {
        let size_bytes = size_bytes - size_bytes % u64::from(block_size.bytes());
        assert!(size_bytes > 0, "a drive has at least one block");
        Self(Arc::new(Shared {
            medium,
            identity: Identity::in_memory(kind, block_size),
            size_bytes,
            block_size,
            timeout_ns: OpenOptions::default().timeout_ns,
            read_only: false,
            is_metered: false,
            quarantined: AtomicUsize::new(0),
            is_faulty: AtomicBool::new(false),
            faults: RwLock::default(),
            no_punch: AtomicBool::new(false),
            no_zero_range: AtomicBool::new(false),
            meters: parking_lot::Mutex::default(),
            errnos: Errnos::default(),
        }))
    }

    /// A drive of zeroes in memory.
    ///
    /// # Panics
    /// If it is smaller than one block.
    #[must_use]
    pub fn ram(size_bytes: u64, block_size: BlockSize) -> Self {
        Self::in_memory(DriveKind::Ram, Medium::Ram(Ram::new(size_bytes)), size_bytes, block_size)
    }

    /// A drive that does nothing: reads leave the buffer as it is, writes are forgotten. For measuring the engine.
    ///
    /// # Panics
    /// If it is smaller than one block.
    #[must_use]
    pub fn null(size_bytes: u64, block_size: BlockSize) -> Self {
        Self::in_memory(DriveKind::Null, Medium::Null, size_bytes, block_size)
    }

    /// The handle of one lane.
    #[must_use]
    pub fn on_lane(&self, lane: &Lane) -> LaneDrive {
        let handle = match &self.0.medium {
            Medium::File { fd, .. } => Handle::File(FileLane::new(lane, &self.0, fd.as_raw_fd())),
            Medium::Ram(_) => Handle::Ram(MemoryLane::new(lane, &self.0)),
            Medium::Null => Handle::Null(MemoryLane::new(lane, &self.0)),
        };
        LaneDrive(handle)
    }

    /// Whether a file is still as long as it was when it was opened. A file that was cut short and written to again has
    /// holes that read as zeroes and nothing that says so; a device cannot do that. Never asks files behind another
    /// process or machine, which may not answer.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match &self.0.medium {
            Medium::File { fd, is_block: false, may_block_lane: false, .. } => rustix::fs::fstat(fd)
                .is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|size| size >= self.0.size_bytes)),
            _ => true,
        }
    }

    /// Whether a file has no name any more: what is written to it is gone when it is closed. Files behind another process
    /// or machine are never asked, see [`Self::is_whole`].
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        match &self.0.medium {
            Medium::File { fd, is_block: false, may_block_lane: false, .. } => {
                rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_nlink == 0)
            }
            _ => false,
        }
    }

    /// What the kernel last said when commands failed; does not hold the drive open.
    #[must_use]
    pub fn errnos(&self) -> Errnos {
        self.0.errnos.clone()
    }

    /// What is known of it.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Commands that nobody waits for any more (they timed out, or their future was dropped) but the kernel still works
    /// on. A drive with any is not taken back into a group (SAFETY M7).
    #[must_use]
    pub fn quarantined(&self) -> usize {
        self.0.quarantined.load(Ordering::Acquire)
    }

    /// What all lanes together have done to it since it was opened. Drives in memory are not counted.
    #[must_use]
    pub fn metered(&self, op: IoOp) -> Metered {
        meter::sum(self.0.meters.lock().iter().map(|lane| &**lane), op)
    }

    /// Size in bytes, a multiple of the block size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    /// Logical block size.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.0.block_size
    }

    /// The path it was opened by; empty for drives in memory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.identity.path
    }

    /// Whether I/O goes past the page cache (O_DIRECT). Without it, data is safe after flush and FUA all the same.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        matches!(self.0.medium, Medium::File { is_direct: true, .. })
    }

    /// What the drive does wrong from now on, for all its handles; none: nothing. Commands that a fault holds already are
    /// let go by [`Fault::end`] only.
    pub fn set_faults(&self, faults: Vec<Arc<Fault>>) {
        let mut current = self.0.faults.write();
        self.0.is_faulty.store(!faults.is_empty(), Ordering::Relaxed);
        *current = faults;
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }
}

impl std::fmt::Debug for OpenDrive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenDrive({:?} {})", self.0.identity.kind, PathBuf::from(self.path()).display())
    }
}

#[derive(Clone)]
enum Handle {
    File(Rc<FileLane>),
    Ram(Rc<MemoryLane>),
    Null(Rc<MemoryLane>),
}

/// A lane's handle of a drive in memory: clones of it count on the lane, not across lanes.
struct MemoryLane {
    lane: Lane,
    shared: Arc<Shared>,
}

impl MemoryLane {
    fn new(lane: &Lane, shared: &Arc<Shared>) -> Rc<Self> {
        Rc::new(Self { lane: lane.clone(), shared: Arc::clone(shared) })
    }
}

/// A drive as one lane sees it. Cheap to clone; `!Send`.
#[derive(Clone)]
pub struct LaneDrive(Handle);

const BEYOND_END: IoError = IoError::new(IoKind::Invalid, "beyond the end of the drive");
const PART_BLOCK: IoError = IoError::new(IoKind::Invalid, "not in whole blocks of the drive");
const READ_ONLY: IoError = IoError::new(IoKind::Invalid, "the drive was opened read-only");

impl Shared {
    fn check(&self, at: u64, bytes: u64) -> Result<(), IoError> {
        let mask = u64::from(self.block_size.bytes()) - 1;
        if (at | bytes) & mask != 0 {
            return Err(PART_BLOCK);
        }
        match at.checked_add(bytes) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(BEYOND_END),
        }
    }

    fn check_write(&self, at: u64, bytes: u64) -> Result<(), IoError> {
        if self.read_only { Err(READ_ONLY) } else { self.check(at, bytes) }
    }
}

impl LaneDrive {
    fn shared(&self) -> &Arc<Shared> {
        match &self.0 {
            Handle::File(file) => &file.shared,
            Handle::Ram(memory) | Handle::Null(memory) => &memory.shared,
        }
    }

    fn lane(&self) -> &Lane {
        match &self.0 {
            Handle::File(file) => file.lane(),
            Handle::Ram(memory) | Handle::Null(memory) => &memory.lane,
        }
    }

    /// Counts a command that a fault had its hands in.
    fn record(&self, op: IoOp, took_ns: u64, bytes: u64, is_ok: bool) {
        if let Handle::File(file) = &self.0 {
            file.record(op, took_ns, bytes, is_ok);
        }
    }

    fn is_faulty(&self) -> bool {
        self.shared().is_faulty.load(Ordering::Relaxed)
    }

    /// A read that was checked, of a drive without faults; `is_metered`: counted when it ends.
    fn sound_read(&self, at: u64, mut into: Leases, is_metered: bool) -> Either<Done<Leases>, FileRead> {
        match &self.0 {
            Handle::File(file) => return Either::Ring(file.read(at, into, is_metered)),
            Handle::Ram(memory) => {
                let Medium::Ram(ram) = &memory.shared.medium else { unreachable!("its handle is Ram") };
                ram.read(at, &mut into);
            }
            Handle::Null(_) => {}
        }
        Either::now(Done { result: Ok(()), buf: Some(into) })
    }

    /// A write that was checked, to a drive without faults.
    fn sound_write(
        &self,
        at: u64,
        from: Segs,
        how: Durability,
        is_metered: bool,
    ) -> Either<Result<(), IoError>, FileWrite> {
        match &self.0 {
            Handle::File(file) => return Either::Ring(file.write(at, from, how, is_metered)),
            Handle::Ram(memory) => {
                let Medium::Ram(ram) = &memory.shared.medium else { unreachable!("its handle is Ram") };
                ram.write(at, &from);
            }
            Handle::Null(_) => {}
        }
        Either::now(Ok(()))
    }

    fn sound_flush(&self) -> Either<Result<(), IoError>, FileFlush> {
        match &self.0 {
            // A drive opened read-only has nothing of ours to flush.
            Handle::File(file) if !file.shared.read_only => Either::Ring(file.flush()),
            _ => Either::now(Ok(())),
        }
    }

    /// A zeroing that was checked, of a drive without faults.
    fn sound_zero(&self, range: Range<u64>, unmap: bool) -> Either<Result<(), IoError>, FileZero> {
        match &self.0 {
            Handle::File(file) => return Either::Ring(file.zero(range, unmap)),
            Handle::Ram(memory) => {
                let Medium::Ram(ram) = &memory.shared.medium else { unreachable!("its handle is Ram") };
                ram.zero(&range);
            }
            Handle::Null(_) => {}
        }
        Either::now(Ok(()))
    }
}

/// Ready at once, an operation of the ring, or one that a fault has its hands in.
enum Either<T, F> {
    Now(Ready<T>),
    Ring(F),
    Faulty(Pin<Box<dyn Future<Output = T>>>),
}

impl<T, F> Either<T, F> {
    fn now(value: T) -> Self {
        Self::Now(ready(value))
    }
}

impl<T, F: Future<Output = T> + Unpin> Future for Either<T, F> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Self::Now(value) => Pin::new(value).poll(cx),
            Self::Ring(operation) => Pin::new(operation).poll(cx),
            Self::Faulty(operation) => operation.as_mut().poll(cx),
        }
    }
}

impl Drive for LaneDrive {
    fn read(&self, at: DriveOffset, into: Leases) -> impl Future<Output = Done<Leases>> + use<> {
        let bytes = leases_len(&into);
        match self.shared().check(at.0, bytes) {
            Ok(()) if bytes > 0 && self.is_faulty() => Either::Faulty(fault::read(self, at.0, into)),
            Ok(()) if bytes > 0 => self.sound_read(at.0, into, true),
            result => Either::<_, FileRead>::now(Done { result, buf: Some(into) }),
        }
    }

    fn write(
        &self,
        at: DriveOffset,
        from: Segs,
        how: Durability,
    ) -> impl Future<Output = Result<(), IoError>> + use<> {
        let bytes = segs_len(&from);
        match self.shared().check_write(at.0, bytes) {
            Ok(()) if bytes > 0 && self.is_faulty() => Either::Faulty(fault::write(self, at.0, from, how)),
            Ok(()) if bytes > 0 => self.sound_write(at.0, from, how, true),
            result => Either::<_, FileWrite>::now(result),
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), IoError>> + use<> {
        if self.is_faulty() { Either::Faulty(fault::flush(self)) } else { self.sound_flush() }
    }

    fn zero(&self, range: Range<u64>, unmap: bool) -> impl Future<Output = Result<(), IoError>> + use<> {
        let result = match range.end.checked_sub(range.start) {
            Some(bytes) => self.shared().check_write(range.start, bytes),
            None => Err(BEYOND_END),
        };
        match result {
            Ok(()) if !range.is_empty() && self.is_faulty() => {
                Either::Faulty(fault::zero(self, range, unmap))
            }
            Ok(()) if !range.is_empty() => self.sound_zero(range, unmap),
            result => Either::<_, FileZero>::now(result),
        }
    }

    fn block_size(&self) -> BlockSize {
        self.shared().block_size
    }

    fn size_bytes(&self) -> u64 {
        self.shared().size_bytes
    }
}
