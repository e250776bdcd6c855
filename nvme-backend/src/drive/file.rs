//! A file or block device as one lane sees it: each command is one operation on the lane's ring.
//!
//! Commands carry a deadline of now plus the drive's time-out. When it passes, the command resolves `TimedOut`; its
//! buffers stay with the ring until the kernel lets go, and the drive counts them as quarantined (SAFETY M7).
//! A short answer is never a success: a removed NVMe drive answers reads with 0 bytes and success (S5).

use std::future::Future;
use std::ops::Range;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use raid_core::lease::{Leases, Segs, leases_len, segs_len};
use raid_core::ports::{Done, Durability, IoError, IoKind};
use raid_core::units::BlockSize;

use super::errno::of_errno;
use super::{Medium, Shared};
use crate::lane::Lane;
use crate::meter::{IoOp, LaneMeters};
use crate::ring::{self, Finished, OpFuture, Owner, Payload, ZERO_WRITE_BYTES_MAX};

/// The most one `fallocate` zeroes, so that a slow device answers each within the time-out.
const ZERO_STEP_BYTES: u64 = 256 << 20;

/// A lane's handle of a drive behind a file descriptor.
pub(crate) struct FileLane {
    lane: Lane,
    pub(super) shared: Arc<Shared>,
    fd: RawFd,
    meters: Option<Arc<LaneMeters>>,
}

impl Owner for FileLane {
    fn fd(&self) -> RawFd {
        self.fd
    }

    fn cancels_dropped(&self) -> bool {
        false
    }

    fn may_block_lane(&self) -> bool {
        matches!(self.shared.medium, Medium::File { may_block_lane: true, .. })
    }

    fn wants_whole_pages(&self) -> bool {
        self.shared.block_size != BlockSize::B512
    }

    fn orphaned(&self) {
        self.shared.quarantined.fetch_add(1, Ordering::Relaxed);
    }

    fn orphan_ended(&self) {
        self.shared.quarantined.fetch_sub(1, Ordering::Release);
    }

    fn ended(&self, payload: &Payload, result: i32, took_ns: u64) {
        let (op, bytes) = match payload {
            Payload::Leases(leases) => (IoOp::Read, leases_len(leases)),
            Payload::Segs(segs) => (IoOp::Write, segs_len(segs)),
            Payload::Flush => (IoOp::Flush, 0),
            _ => return,
        };
        let is_ok = u64::try_from(result).is_ok_and(|done| done == bytes);
        self.record(op, took_ns, bytes, is_ok);
    }
}

/// The owner of an operation that a fault counts.
struct Unmetered(Rc<FileLane>);

impl Owner for Unmetered {
    fn fd(&self) -> RawFd {
        self.0.fd
    }

    fn cancels_dropped(&self) -> bool {
        false
    }

    fn may_block_lane(&self) -> bool {
        self.0.may_block_lane()
    }

    fn wants_whole_pages(&self) -> bool {
        self.0.wants_whole_pages()
    }

    fn orphaned(&self) {
        self.0.orphaned();
    }

    fn orphan_ended(&self) {
        self.0.orphan_ended();
    }
}

const TIMED_OUT: &str = "no answer within the drive time-out";

impl FileLane {
    pub(super) fn new(lane: &Lane, shared: &Arc<Shared>, fd: RawFd) -> Rc<Self> {
        let meters = shared.is_metered.then(|| Arc::new(LaneMeters::default()));
        shared.meters.lock().extend(meters.clone());
        Rc::new(Self { lane: lane.clone(), shared: Arc::clone(shared), fd, meters })
    }

    /// Counts an operation that ended.
    pub(super) fn record(&self, op: IoOp, took_ns: u64, bytes: u64, is_ok: bool) {
        if let Some(meters) = &self.meters {
            meters.of(op).record(took_ns, bytes, is_ok);
        }
    }

    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Itself as the owner of an operation that is counted when it ends, or of one that is not.
    fn metered(self: &Rc<Self>, is_metered: bool) -> Rc<dyn Owner> {
        if is_metered { self.owner() } else { Rc::new(Unmetered(Rc::clone(self))) }
    }

    fn owner(self: &Rc<Self>) -> Rc<dyn Owner> {
        self.clone()
    }

    fn deadline_ns(&self) -> u64 {
        self.lane.round_ns().saturating_add(self.shared.timeout_ns)
    }

    pub(super) fn read(self: &Rc<Self>, at: u64, into: Leases, is_metered: bool) -> FileRead {
        let expect = leases_len(&into);
        let op = ring::read(&self.lane, self.metered(is_metered), at, into, self.deadline_ns());
        FileRead { drive: Rc::clone(self), op, expect }
    }

    pub(super) fn write(
        self: &Rc<Self>,
        at: u64,
        from: Segs,
        how: Durability,
        is_metered: bool,
    ) -> FileWrite {
        let expect = segs_len(&from);
        let fua = how == Durability::Fua;
        let op = ring::write(&self.lane, self.metered(is_metered), at, from, fua, self.deadline_ns());
        FileWrite { drive: Rc::clone(self), op, at, how, expect, continued: false }
    }

    pub(super) fn flush(self: &Rc<Self>) -> FileFlush {
        let op = ring::flush(&self.lane, self.owner(), self.deadline_ns());
        FileFlush { drive: Rc::clone(self), op }
    }

    /// A device that was removed fails what is in flight with many errnos (EIO, ENOSPC, EINVAL) and has no size any more:
    /// then it is gone, whatever it said (SAFETY S5), and not a drive whose blocks are bad.
    fn failed(&self, errno: i32, doing: &'static str) -> IoError {
        let errno = if self.is_removed() { libc::ENODEV } else { errno };
        self.shared.errnos.noted(of_errno(errno, doing))
    }

    fn is_removed(&self) -> bool {
        match &self.shared.medium {
            Medium::File { fd, is_block: true, .. } => {
                rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).is_ok_and(|size| size == 0)
            }
            _ => false,
        }
    }

    fn is_block(&self) -> bool {
        matches!(self.shared.medium, Medium::File { is_block: true, .. })
    }

    /// Zeroes a range as a task of its own, so that it goes on when the future is dropped.
    pub(super) fn zero(self: &Rc<Self>, range: Range<u64>, unmap: bool) -> FileZero {
        let (tell, told) = oneshot();
        let drive = Rc::clone(self);
        // The first command is made here, not when the task is first polled: an operation starts when it is called.
        let first = self.zero_step(range.start, step_end(&range) - range.start, unmap);
        self.lane.spawn(async move {
            let (began_ns, bytes) = (drive.lane.round_ns(), range.end - range.start);
            let result = drive.zero_all(range, unmap, first).await;
            let took_ns = drive.lane.round_ns().saturating_sub(began_ns);
            drive.record(IoOp::Zero, took_ns, bytes, result.is_ok());
            tell.set(result);
        });
        FileZero { told }
    }

    fn zero_step(self: &Rc<Self>, at: u64, bytes: u64, unmap: bool) -> ZeroStep {
        let shared = &self.shared;
        let mode = if unmap && !shared.no_punch.load(Ordering::Relaxed) {
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE
        } else if !shared.no_zero_range.load(Ordering::Relaxed) {
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE
        } else {
            let bytes = bytes.min(ZERO_WRITE_BYTES_MAX);
            let op = ring::write_zeroes(&self.lane, self.owner(), at, bytes, self.deadline_ns());
            return ZeroStep { op, at, bytes, mode: None };
        };
        let op = ring::fallocate(&self.lane, self.owner(), at, bytes, mode, self.deadline_ns());
        ZeroStep { op, at, bytes, mode: Some(mode) }
    }

    async fn zero_all(
        self: &Rc<Self>,
        range: Range<u64>,
        unmap: bool,
        first: ZeroStep,
    ) -> Result<(), IoError> {
        let mut step = first;
        loop {
            let ZeroStep { op, at, bytes, mode } = step;
            let next = match (op.await, mode) {
                (Finished::TimedOut, _) => return Err(IoError::new(IoKind::TimedOut, TIMED_OUT)),
                (Finished::Done(result, _), Some(mode))
                    if matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) =>
                {
                    let flag = match mode & libc::FALLOC_FL_PUNCH_HOLE {
                        0 => &self.shared.no_zero_range,
                        _ => &self.shared.no_punch,
                    };
                    flag.store(true, Ordering::Relaxed);
                    at
                }
                (Finished::Done(result, _), _) if result < 0 => return Err(self.failed(-result, "zero")),
                (Finished::Done(_, _), Some(_)) => at + bytes,
                (Finished::Done(result, _), None) => {
                    let block = u64::from(self.shared.block_size.bytes());
                    let written = u64::try_from(result).unwrap_or(0);
                    if written < bytes && (written < block || self.is_block()) {
                        return Err(IoError::new(IoKind::Gone, "zero: fewer bytes written than given"));
                    }
                    at + written - written % block
                }
            };
            if next >= range.end {
                return Ok(());
            }
            let rest = next..range.end;
            step = self.zero_step(next, step_end(&rest) - next, unmap);
        }
    }
}

fn step_end(range: &Range<u64>) -> u64 {
    range.end.min(range.start.saturating_add(ZERO_STEP_BYTES))
}

struct ZeroStep {
    op: OpFuture,
    at: u64,
    bytes: u64,
    /// The `fallocate` mode; `None`: zeroes are written.
    mode: Option<i32>,
}

/// A read in flight.
pub(crate) struct FileRead {
    drive: Rc<FileLane>,
    op: OpFuture,
    expect: u64,
}

impl Future for FileRead {
    type Output = Done<Leases>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done<Leases>> {
        let (result, leases) = match ready!(Pin::new(&mut self.op).poll(cx)) {
            Finished::TimedOut => {
                let error = IoError::new(IoKind::TimedOut, TIMED_OUT);
                return Poll::Ready(Done { result: Err(error), buf: None });
            }
            Finished::Done(result, Payload::Leases(leases)) => (result, leases),
            Finished::Done(..) => unreachable!("a read hands its leases back"),
        };
        let result = match u64::try_from(result) {
            Ok(got) if got == self.expect => Ok(()),
            Ok(_) => Err(IoError::new(IoKind::ShortRead, "read: fewer bytes than asked for")),
            Err(_) => Err(self.drive.failed(-result, "read")),
        };
        Poll::Ready(Done { result, buf: Some(leases) })
    }
}

/// A write in flight.
pub(crate) struct FileWrite {
    drive: Rc<FileLane>,
    op: OpFuture,
    at: u64,
    how: Durability,
    expect: u64,
    /// A short write to a file was continued once.
    continued: bool,
}

/// What is left of `segs` after their first `skip` bytes.
fn rest(segs: &Segs, mut skip: u64) -> Segs {
    let mut rest = Segs::new();
    for seg in segs {
        let len = u64::from(seg.len());
        if skip >= len {
            skip -= len;
        } else {
            let from = u32::try_from(skip).expect("less than a segment");
            rest.push(seg.slice(from..seg.len()));
            skip = 0;
        }
    }
    rest
}

impl Future for FileWrite {
    type Output = Result<(), IoError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let (result, segs) = match ready!(Pin::new(&mut self.op).poll(cx)) {
                Finished::TimedOut => {
                    return Poll::Ready(Err(IoError::new(IoKind::TimedOut, TIMED_OUT)));
                }
                Finished::Done(result, Payload::Segs(segs)) => (result, segs),
                Finished::Done(..) => unreachable!("a write hands its segments back"),
            };
            let wrote = match u64::try_from(result) {
                Ok(wrote) if wrote == self.expect => {
                    return Poll::Ready(Ok(()));
                }
                Ok(wrote) => wrote,
                Err(_) => return Poll::Ready(Err(self.drive.failed(-result, "write"))),
            };
            // Whole blocks of it: direct I/O takes no others, and writing a part of a block twice does no harm.
            let wrote = wrote - wrote % u64::from(self.drive.shared.block_size.bytes());
            if wrote == 0 || self.continued || self.drive.is_block() {
                return Poll::Ready(Err(IoError::new(IoKind::Gone, "write: fewer bytes than given")));
            }
            // A regular file may stop short at a limit or a signal; the rest then says why.
            let (at, how) = (self.at + wrote, self.how);
            let next = self.drive.write(at, rest(&segs, wrote), how, true);
            *self = FileWrite { continued: true, ..next };
        }
    }
}

/// A flush in flight.
pub(crate) struct FileFlush {
    drive: Rc<FileLane>,
    op: OpFuture,
}

impl Future for FileFlush {
    type Output = Result<(), IoError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.op).poll(cx)) {
            Finished::TimedOut => Err(IoError::new(IoKind::TimedOut, TIMED_OUT)),
            Finished::Done(result, _) if result < 0 => Err(self.drive.failed(-result, "flush")),
            Finished::Done(..) => Ok(()),
        })
    }
}

/// A zeroing in flight.
pub(crate) struct FileZero {
    told: Rc<OneshotState>,
}

impl Future for FileZero {
    type Output = Result<(), IoError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.told.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                let before = self.told.waker.replace(Some(cx.waker().clone()));
                drop(before);
                Poll::Pending
            }
        }
    }
}

/// One value from a task to a future of the same lane.
#[derive(Default)]
struct OneshotState {
    value: std::cell::Cell<Option<Result<(), IoError>>>,
    waker: std::cell::Cell<Option<std::task::Waker>>,
}

struct Tell(Rc<OneshotState>);

fn oneshot() -> (Tell, Rc<OneshotState>) {
    let state = Rc::new(OneshotState::default());
    (Tell(Rc::clone(&state)), state)
}

impl Tell {
    fn set(&self, value: Result<(), IoError>) {
        self.0.value.set(Some(value));
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Tell {
    /// A lane that ends drops the task; whoever still polls hears of it.
    fn drop(&mut self) {
        if Rc::strong_count(&self.0) > 1 {
            let value = self.0.value.take();
            let value = value.unwrap_or(Err(IoError::new(IoKind::ShuttingDown, "the lane ended")));
            self.set(value);
        }
    }
}
