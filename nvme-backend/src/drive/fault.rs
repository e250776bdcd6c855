//! Faults on purpose: what a drive does wrong because it was told to, for drills and tests (`fault inject`).
//!
//! The layer lies between the engine's handle and the drive, so every path above it is the real one: a command that hangs
//! is an operation on the lane's ring whose completion does not come, with the drive's own deadline and quarantine
//! (SAFETY M7). A drive without faults pays one relaxed load per command. Nothing here is ever written to a drive: a flipped
//! bit is flipped in what is read until the block is rewritten, which nobody above can tell from a bit flipped on the
//! medium, and ends without a trace when the fault is cleared.
//!
//! Invariants: a fault only ever gets weaker (its count runs down, its blocks are rewritten, it ends); a command held by a
//! fault keeps its buffers until the gate opens, whoever still waits for it.

use std::future::Future;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use raid_core::lease::{Leases, Segs, leases_len, segs_len};
use raid_core::ports::{Done, Durability, IoError, IoKind};
use raid_core::units::{u64_of, usize_of};
use rustix::event::{EventfdFlags, eventfd};

use super::{LaneDrive, Shared};
use crate::lane::Lane;
use crate::meter::IoOp;
use crate::ring::{self, Finished, OpFuture, Owner, Payload};

/// What a drive does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Every command fails as on a drive that was removed.
    Fail,
    /// Commands are not answered until the fault is cleared. A command that timed out meanwhile never reaches the drive.
    Hang,
    /// Commands take longer: by `delay_ns` before, and `factor` times as long as the drive took (1: no longer).
    Slow {
        /// Added to each command.
        delay_ns: u64,
        /// Times the drive's own time.
        factor: u32,
    },
    /// Reads that touch the ranges fail with a medium error until the blocks are rewritten.
    Bad,
    /// One bit of each block of the ranges reads wrong until the block is rewritten; `seed` chooses which.
    Flip {
        /// Chooses the bits.
        seed: u64,
    },
    /// Writes and zeroes that touch the ranges are acknowledged and not done.
    LostWrite,
}

/// Counts up when opened; operations of rings wait for it.
struct Gate(OwnedFd);

impl Gate {
    fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    fn open(&self) {
        // Opened once: the counter cannot overflow. If the kernel refused all the same, the time-out ends the wait.
        if let Err(error) = rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            tracing::warn!(%error, "a command held by a fault could not be let go");
        }
    }
}

/// The owner of a held operation: the gate is its file, the drive counts its orphans.
struct Held {
    gate: Arc<Gate>,
    shared: Arc<Shared>,
}

impl Owner for Held {
    fn fd(&self) -> RawFd {
        self.gate.0.as_raw_fd()
    }

    fn cancels_dropped(&self) -> bool {
        false
    }

    fn cancels_late(&self) -> bool {
        false
    }

    fn orphaned(&self) {
        self.shared.quarantined.fetch_add(1, Ordering::Relaxed);
    }

    fn orphan_ended(&self) {
        self.shared.quarantined.fetch_sub(1, Ordering::Release);
    }
}

struct State {
    /// Where it applies; `None`: everywhere.
    ranges: Option<Vec<Range<u64>>>,
    /// Commands it still applies to; `None`: no limit.
    left: Option<u64>,
}

/// One fault of one drive, shared by all its handles.
pub struct Fault {
    kind: FaultKind,
    state: Mutex<State>,
    hits: AtomicU64,
    over: AtomicBool,
    gate: Arc<Gate>,
}

impl Fault {
    /// A fault that applies to these ranges of the drive in bytes, whole blocks (`None`: everywhere), and to the next
    /// `count` commands it meets (`None`: to all).
    ///
    /// # Errors
    /// The kernel has no file descriptor left.
    pub fn new(
        kind: FaultKind,
        ranges: Option<Vec<Range<u64>>>,
        count: Option<u64>,
    ) -> std::io::Result<Arc<Self>> {
        let state = Mutex::new(State { ranges, left: count });
        let (hits, over) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Arc::new(Self { kind, state, hits, over, gate: Gate::new()? }))
    }

    /// What it does.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// Commands it has applied to.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Where it still applies; `None`: everywhere.
    #[must_use]
    pub fn ranges(&self) -> Option<Vec<Range<u64>>> {
        self.state.lock().ranges.clone()
    }

    /// Whether it does nothing any more: cleared, used up, or all its blocks rewritten.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends it, and lets go of what it holds.
    pub fn end(&self) {
        if !self.over.swap(true, Ordering::AcqRel) || self.kind == FaultKind::Hang {
            self.gate.open();
        }
    }

    /// Whether it applies to a command on `range`; counts it then.
    fn meets(&self, range: &Range<u64>) -> bool {
        if self.is_over() {
            return false;
        }
        let mut state = self.state.lock();
        let touches = |one: &Range<u64>| one.start < range.end && range.start < one.end;
        let applies = state.ranges.as_ref().is_none_or(|ranges| ranges.iter().any(touches));
        if !applies || state.left == Some(0) {
            return false;
        }
        if let Some(left) = &mut state.left {
            *left -= 1;
            if *left == 0 {
                self.over.store(true, Ordering::Release);
            }
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Blocks that are rewritten are sound again.
    fn rewritten(&self, written: &Range<u64>) {
        let mut state = self.state.lock();
        let Some(ranges) = &mut state.ranges else { return };
        let cut = |one: &Range<u64>| {
            let before = one.start..one.end.min(written.start);
            let after = one.start.max(written.end)..one.end;
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        *ranges = ranges.iter().flat_map(cut).collect();
        if ranges.is_empty() {
            self.over.store(true, Ordering::Release);
        }
    }

    /// Flips what was read of the fault's blocks.
    fn flip(&self, at: u64, block_bytes: u64, seed: u64, leases: &mut Leases) {
        let ranges = self.ranges();
        let is_here = |at: u64| ranges.as_ref().is_none_or(|all| all.iter().any(|range| range.contains(&at)));
        let mut start = at;
        for lease in leases.iter_mut() {
            for block in lease.bytes_mut().chunks_mut(usize_of(block_bytes)) {
                if is_here(start) {
                    let word = mixed(seed ^ start);
                    let byte = usize_of(word % u64_of(block.len()));
                    block[byte] ^= 1 << ((word >> 32) % 8);
                }
                start += u64_of(block.len());
            }
        }
    }
}

/// A number that looks random and follows from `word` alone (splitmix64).
fn mixed(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a command comes to.
#[derive(Default)]
struct Verdict {
    error: Option<IoError>,
    gate: Option<Arc<Gate>>,
    delay_ns: u64,
    factor: u32,
    is_lost: bool,
    flips: Vec<(Arc<Fault>, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Read,
    Write,
    Flush,
}

const FAILED: IoError =
    IoError { kind: IoKind::Gone, context: "fault injected: fail", errno: Some(libc::ENODEV) };
const BAD: IoError =
    IoError { kind: IoKind::Medium, context: "fault injected: bad range", errno: Some(libc::EIO) };
const TIMED_OUT: IoError = IoError::new(IoKind::TimedOut, "no answer within the drive time-out");
const ENDING: IoError = IoError::new(IoKind::ShuttingDown, "the lane ended");

impl Verdict {
    fn of(shared: &Shared, command: Command, range: &Range<u64>) -> Self {
        let mut verdict = Self { factor: 1, ..Self::default() };
        let all = 0..u64::MAX;
        let range = if command == Command::Flush { &all } else { range };
        for fault in shared.faults.read().iter() {
            match (fault.kind, command) {
                (FaultKind::Fail, _) if fault.meets(range) => verdict.error = verdict.error.or(Some(FAILED)),
                (FaultKind::Hang, _) if fault.meets(range) => verdict.gate = Some(Arc::clone(&fault.gate)),
                (FaultKind::Slow { delay_ns, factor }, _) if fault.meets(range) => {
                    verdict.delay_ns = verdict.delay_ns.max(delay_ns);
                    verdict.factor = verdict.factor.max(factor);
                }
                (FaultKind::LostWrite, Command::Write) => verdict.is_lost |= fault.meets(range),
                (FaultKind::Bad, Command::Read) if fault.meets(range) => {
                    verdict.error = verdict.error.or(Some(BAD));
                }
                (FaultKind::Flip { seed }, Command::Read) if fault.meets(range) => {
                    verdict.flips.push((Arc::clone(fault), seed));
                }
                _ => {}
            }
        }
        if command == Command::Write && !verdict.is_lost && verdict.error.is_none() {
            let heals = |kind| matches!(kind, FaultKind::Bad | FaultKind::Flip { .. });
            shared.faults.read().iter().filter(|fault| heals(fault.kind)).for_each(|f| f.rewritten(range));
        }
        verdict
    }

    /// Holds the command's buffers before it reaches the drive, if the verdict says so; else gives them back.
    fn held(&self, drive: &LaneDrive, payload: Payload) -> Result<OpFuture, Payload> {
        match (&self.gate, self.delay_ns) {
            (Some(gate), _) => Ok(hold(drive, Arc::clone(gate), payload)),
            (None, 0) => Err(payload),
            (None, delay_ns) => delayed(drive, delay_ns, payload),
        }
    }

    /// How much longer a command must take that took the drive `took_ns`.
    fn more_ns(&self, took_ns: u64) -> u64 {
        took_ns.saturating_mul(u64::from(self.factor.max(1)) - 1)
    }
}

fn hold(drive: &LaneDrive, gate: Arc<Gate>, payload: Payload) -> OpFuture {
    let (lane, shared) = (drive.lane(), Arc::clone(drive.shared()));
    let deadline_ns = lane.round_ns().saturating_add(shared.timeout_ns);
    ring::hold(lane, Rc::new(Held { gate, shared }), payload, deadline_ns)
}

fn delayed(drive: &LaneDrive, delay_ns: u64, payload: Payload) -> Result<OpFuture, Payload> {
    // Without a descriptor the command is not delayed: a drill must not break what it tries.
    let Ok(gate) = Gate::new() else { return Err(payload) };
    let lane: Lane = drive.lane().clone();
    let until_ns = lane.now_ns().saturating_add(delay_ns);
    let opens = Arc::clone(&gate);
    let sleeper = lane.clone();
    lane.spawn(async move {
        sleeper.sleep_until(until_ns).await;
        opens.open();
    });
    Ok(hold(drive, gate, payload))
}

/// Waits out a held operation; the payload, or why there is none.
async fn let_go(held: OpFuture) -> Result<Payload, (IoError, Option<Payload>)> {
    match held.await {
        Finished::TimedOut => Err((TIMED_OUT, None)),
        Finished::Done(result, payload) if result >= 0 => Ok(payload),
        Finished::Done(_, payload) => Err((ENDING, Some(payload))),
    }
}

fn leases_of(payload: Payload) -> Leases {
    match payload {
        Payload::Leases(leases) => leases,
        _ => unreachable!("a read keeps leases"),
    }
}

fn segs_of(payload: Payload) -> Segs {
    match payload {
        Payload::Segs(segs) => segs,
        _ => unreachable!("a write keeps segments"),
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;
type Ended = (Result<(), IoError>, Option<Payload>);

/// Does `command` as the verdict lets it; what it starts, it starts now.
fn run(
    drive: &LaneDrive,
    verdict: Verdict,
    payload: Payload,
    command: impl FnOnce(&LaneDrive, Payload) -> Boxed<Ended> + 'static,
) -> Boxed<(Ended, Verdict)> {
    enum First<C> {
        Held(OpFuture, C),
        Running(Boxed<Ended>),
        Skipped(Payload),
    }
    let drive = drive.clone();
    let skips = verdict.error.is_some() || verdict.is_lost;
    let outcome = verdict.error.map_or(Ok(()), Err);
    let first = match verdict.held(&drive, payload) {
        Ok(held) => First::Held(held, command),
        Err(payload) if skips => First::Skipped(payload),
        Err(payload) => First::Running(command(&drive, payload)),
    };
    Box::pin(async move {
        let mut began_ns = drive.lane().now_ns();
        let (result, payload) = match first {
            First::Skipped(payload) => return ((outcome, Some(payload)), verdict),
            First::Running(running) => running.await,
            First::Held(held, command) => match let_go(held).await {
                Err((error, payload)) => return ((Err(error), payload), verdict),
                Ok(payload) if skips => return ((outcome, Some(payload)), verdict),
                Ok(payload) => {
                    began_ns = drive.lane().now_ns();
                    command(&drive, payload).await
                }
            },
        };
        let more_ns = verdict.more_ns(drive.lane().now_ns().saturating_sub(began_ns));
        // A read that timed out has nothing to hold, and has been waited for long enough.
        if more_ns == 0 || result.is_err() {
            return ((result, payload), verdict);
        }
        match delayed(&drive, more_ns, payload.unwrap_or(Payload::None)) {
            Err(payload) => ((result, Some(payload)), verdict),
            Ok(held) => match let_go(held).await {
                Ok(payload) => ((result, Some(payload)), verdict),
                Err((error, payload)) => ((Err(error), payload), verdict),
            },
        }
    })
}

/// A read of a drive that has faults.
pub(super) fn read(drive: &LaneDrive, at: u64, into: Leases) -> Boxed<Done<Leases>> {
    let bytes = leases_len(&into);
    let verdict = Verdict::of(drive.shared(), Command::Read, &(at..at + bytes));
    let block_bytes = u64::from(drive.shared().block_size.bytes());
    let running = run(drive, verdict, Payload::Leases(into), move |drive, payload| {
        let reading = drive.sound_read(at, leases_of(payload), false);
        Box::pin(async move {
            let done = reading.await;
            (done.result, done.buf.map(Payload::Leases))
        })
    });
    let (drive, began_ns) = (drive.clone(), drive.lane().now_ns());
    Box::pin(async move {
        let ((result, payload), verdict) = running.await;
        drive.record(IoOp::Read, drive.lane().now_ns().saturating_sub(began_ns), bytes, result.is_ok());
        let mut buf = payload.map(leases_of);
        if let (Ok(()), Some(leases)) = (&result, &mut buf) {
            verdict.flips.iter().for_each(|(fault, seed)| fault.flip(at, block_bytes, *seed, leases));
        }
        Done { result, buf }
    })
}

/// A write to a drive that has faults.
pub(super) fn write(drive: &LaneDrive, at: u64, from: Segs, how: Durability) -> Boxed<Result<(), IoError>> {
    let bytes = segs_len(&from);
    let verdict = Verdict::of(drive.shared(), Command::Write, &(at..at + bytes));
    let running = run(drive, verdict, Payload::Segs(from), move |drive, payload| {
        let writing = drive.sound_write(at, segs_of(payload), how, false);
        Box::pin(async move { (writing.await, None) })
    });
    let (drive, began_ns) = (drive.clone(), drive.lane().now_ns());
    Box::pin(async move {
        let result = running.await.0.0;
        drive.record(IoOp::Write, drive.lane().now_ns().saturating_sub(began_ns), bytes, result.is_ok());
        result
    })
}

/// A flush of a drive that has faults.
pub(super) fn flush(drive: &LaneDrive) -> Boxed<Result<(), IoError>> {
    let verdict = Verdict::of(drive.shared(), Command::Flush, &(0..0));
    let running = run(drive, verdict, Payload::None, move |drive, _| {
        let flushing = drive.sound_flush();
        Box::pin(async move { (flushing.await, None) })
    });
    Box::pin(async move { running.await.0.0 })
}

/// A zeroing of a drive that has faults.
pub(super) fn zero(drive: &LaneDrive, range: Range<u64>, unmap: bool) -> Boxed<Result<(), IoError>> {
    let verdict = Verdict::of(drive.shared(), Command::Write, &range);
    let running = run(drive, verdict, Payload::None, move |drive, _| {
        let zeroing = drive.sound_zero(range, unmap);
        Box::pin(async move { (zeroing.await, None) })
    });
    Box::pin(async move { running.await.0.0 })
}
