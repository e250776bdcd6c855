//! A drive in memory that can do what drives in the field do: be slow, overtake, refuse blocks, hang, vanish.
//!
//! A command starts when it is called and goes on when its future is dropped, as the port demands: its effect happens
//! after a seeded time in a task of its own, whoever still waits. With latency off it happens at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use raid_core::lease::{Leases, Segs, leases_len, segs_len};
use raid_core::ports::{Done, Drive, Durability, IoError, IoKind};
use raid_core::units::{BlockSize, DriveOffset, u64_of, usize_of};

use crate::executor::Executor;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush; its range is empty.
    Flush,
    /// Write-zeroes.
    Zero,
}

/// One command, as hooks and logs see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// What it does.
    pub op: Op,
    /// Where.
    pub range: Range<u64>,
    /// Whether it was to be durable on completion.
    pub is_fua: bool,
}

/// Decides the fate of a command just before its effect: an error, or `None` to let it happen.
type Hook = dyn FnMut(&Command) -> Option<IoKind>;

struct State {
    bytes: RefCell<Vec<u8>>,
    /// What would be left after a power loss: the medium as of the last flush, plus FUA writes.
    durable: RefCell<Option<Vec<u8>>>,
    block_size: BlockSize,
    /// Every command fails with this from now on.
    fails: Cell<Option<IoKind>>,
    /// Blocks that cannot be read until they are rewritten: start to end.
    unreadable: RefCell<BTreeMap<u64, u64>>,
    /// Blocks that cannot be written.
    unwritable: RefCell<Vec<Range<u64>>>,
    hook: RefCell<Option<Box<Hook>>>,
    log: RefCell<Option<Vec<Command>>>,
    is_hung: Cell<bool>,
    hung: RefCell<Vec<Waker>>,
    has_latency: Cell<bool>,
    reads: Cell<u64>,
    writes: Cell<u64>,
    flushes: Cell<u64>,
}

/// Handle of a simulated drive; clones share the medium.
#[derive(Clone)]
pub struct SimDrive {
    executor: Executor,
    state: Rc<State>,
}

impl SimDrive {
    /// A drive of `size_bytes` zeroes.
    #[must_use]
    pub fn new(executor: &Executor, size_bytes: u64, block_size: BlockSize) -> Self {
        let state = State {
            bytes: RefCell::new(vec![0; usize_of(size_bytes)]),
            durable: RefCell::new(None),
            block_size,
            fails: Cell::new(None),
            unreadable: RefCell::default(),
            unwritable: RefCell::default(),
            hook: RefCell::new(None),
            log: RefCell::new(None),
            is_hung: Cell::new(false),
            hung: RefCell::default(),
            has_latency: Cell::new(true),
            reads: Cell::new(0),
            writes: Cell::new(0),
            flushes: Cell::new(0),
        };
        Self { executor: executor.clone(), state: Rc::new(state) }
    }

    /// From now on every command fails with `kind`; `None` heals it.
    pub fn fail_with(&self, kind: Option<IoKind>) {
        self.state.fails.set(kind);
    }

    /// Reads that touch `range` fail with [`IoKind::Medium`] until the range is rewritten.
    pub fn make_unreadable(&self, range: Range<u64>) {
        let block = u64::from(self.state.block_size.bytes());
        let mut unreadable = self.state.unreadable.borrow_mut();
        unreadable.extend(range.step_by(usize_of(block)).map(|at| (at, at + block)));
    }

    /// Whether some block of `range` cannot be read.
    #[must_use]
    pub fn is_unreadable(&self, range: &Range<u64>) -> bool {
        self.state
            .unreadable
            .borrow()
            .range(..range.end)
            .next_back()
            .is_some_and(|(_, &end)| end > range.start)
    }

    /// Writes and zeroes that touch `range` fail with [`IoKind::Medium`] for ever.
    pub fn make_unwritable(&self, range: Range<u64>) {
        self.state.unwritable.borrow_mut().push(range);
    }

    /// Asks `hook` about every command just before its effect.
    pub fn set_hook(&self, hook: impl FnMut(&Command) -> Option<IoKind> + 'static) {
        *self.state.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// No hook any more.
    pub fn clear_hook(&self) {
        *self.state.hook.borrow_mut() = None;
    }

    /// Keeps a log of all commands that took effect from now on.
    pub fn start_log(&self) {
        *self.state.log.borrow_mut() = Some(Vec::new());
    }

    /// The commands logged since the last call.
    #[must_use]
    pub fn take_log(&self) -> Vec<Command> {
        self.state.log.borrow_mut().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// While hung, no command takes effect or completes; when released, all that waited do.
    pub fn set_hung(&self, is_hung: bool) {
        self.state.is_hung.set(is_hung);
        if !is_hung {
            for waker in self.state.hung.take() {
                waker.wake();
            }
        }
    }

    /// Whether commands take a seeded time (the default) or happen at once.
    pub fn set_latency(&self, has_latency: bool) {
        self.state.has_latency.set(has_latency);
    }

    /// From now on writes are volatile until flushed or FUA, and [`Self::lose_power`] takes back the others.
    pub fn track_durability(&self) {
        *self.state.durable.borrow_mut() = Some(self.state.bytes.borrow().clone());
    }

    /// Everything not durable is gone, block by block or not at all as the seeded generator says.
    ///
    /// # Panics
    /// If durability was not tracked.
    pub fn lose_power(&self) {
        let durable = self.state.durable.borrow();
        let durable = durable.as_ref().expect("durability was tracked");
        let mut bytes = self.state.bytes.borrow_mut();
        let block = usize_of(u64::from(self.state.block_size.bytes()));
        for (now, then) in bytes.chunks_mut(block).zip(durable.chunks(block)) {
            if now != then && self.executor.random_u64().is_multiple_of(2) {
                now.copy_from_slice(then);
            }
        }
    }

    /// The medium, for tests that look behind the engine.
    #[must_use]
    pub fn medium(&self) -> std::cell::RefMut<'_, Vec<u8>> {
        self.state.bytes.borrow_mut()
    }

    /// Commands so far: reads, writes (with zeroes), flushes.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.state.reads.get(), self.state.writes.get(), self.state.flushes.get())
    }

    fn check(&self, command: &Command) -> Result<(), IoError> {
        let range = &command.range;
        let block = u64::from(self.state.block_size.bytes());
        assert!(range.start.is_multiple_of(block) && range.end.is_multiple_of(block), "unaligned {range:?}");
        let counter = match command.op {
            Op::Read => &self.state.reads,
            Op::Write | Op::Zero => &self.state.writes,
            Op::Flush => &self.state.flushes,
        };
        counter.set(counter.get() + 1);
        if let Some(hook) = &mut *self.state.hook.borrow_mut()
            && let Some(kind) = hook(command)
        {
            return Err(IoError::new(kind, "simulated fault of a command"));
        }
        if let Some(kind) = self.state.fails.get() {
            return Err(IoError::new(kind, "simulated fault"));
        }
        if range.end > self.size_bytes() {
            return Err(IoError::new(IoKind::Invalid, "beyond the end of the drive"));
        }
        let touches = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        match command.op {
            Op::Read if self.is_unreadable(range) => {
                return Err(IoError::new(IoKind::Medium, "simulated unreadable block"));
            }
            Op::Write | Op::Zero if self.state.unwritable.borrow().iter().any(touches) => {
                return Err(IoError::new(IoKind::Medium, "simulated unwritable block"));
            }
            _ => {}
        }
        if let Some(log) = &mut *self.state.log.borrow_mut() {
            log.push(command.clone());
        }
        Ok(())
    }

    fn store(&self, command: &Command, fill: impl FnOnce(&mut [u8])) {
        let range = usize_of(command.range.start)..usize_of(command.range.end);
        let mut medium = self.state.bytes.borrow_mut();
        fill(&mut medium[range.clone()]);
        self.state.unreadable.borrow_mut().retain(|&start, _| !command.range.contains(&start));
        if command.is_fua
            && let Some(durable) = &mut *self.state.durable.borrow_mut()
        {
            durable[range.clone()].copy_from_slice(&medium[range]);
        }
    }

    /// Lets `effect` happen after the drive's latency, detached from whoever waits for the result.
    fn start<T: 'static>(&self, effect: impl FnOnce(&Self) -> T + 'static) -> Running<T> {
        let answer = Rc::new(Answer { value: RefCell::new(None), waker: RefCell::new(None) });
        if !self.state.has_latency.get() && !self.state.is_hung.get() {
            *answer.value.borrow_mut() = Some(effect(self));
            return Running(answer);
        }
        let deadline_ns = self.executor.now_ns() + 1000 + self.executor.random_u64() % 63_000;
        let latency = self.executor.sleep_until(deadline_ns);
        let (this, to) = (self.clone(), Rc::clone(&answer));
        self.executor.spawn(async move {
            latency.await;
            std::future::poll_fn(|cx| {
                if this.state.is_hung.get() {
                    this.state.hung.borrow_mut().push(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            *to.value.borrow_mut() = Some(effect(&this));
            if let Some(waker) = to.waker.take() {
                waker.wake();
            }
        });
        Running(answer)
    }
}

struct Answer<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

/// A command on its way.
pub struct Running<T>(Rc<Answer<T>>);

impl<T> Future for Running<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(value) = self.0.value.borrow_mut().take() {
            return Poll::Ready(value);
        }
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drive for SimDrive {
    fn read(&self, at: DriveOffset, mut into: Leases) -> impl Future<Output = Done<Leases>> + use<> {
        let command = Command { op: Op::Read, range: at.0..at.0 + leases_len(&into), is_fua: false };
        self.start(move |this| {
            let result = this.check(&command).map(|()| {
                let medium = this.state.bytes.borrow();
                let mut next = usize_of(at.0);
                for lease in &mut into {
                    let bytes = lease.bytes_mut();
                    bytes.copy_from_slice(&medium[next..next + bytes.len()]);
                    next += bytes.len();
                }
            });
            // A timed-out command keeps its buffers, as the port says.
            let keeps = matches!(result, Err(IoError { kind: IoKind::TimedOut, .. }));
            Done { result, buf: (!keeps).then_some(into) }
        })
    }

    fn write(
        &self,
        at: DriveOffset,
        from: Segs,
        how: Durability,
    ) -> impl Future<Output = Result<(), IoError>> + use<> {
        let range = at.0..at.0 + segs_len(&from);
        let command = Command { op: Op::Write, range, is_fua: how == Durability::Fua };
        self.start(move |this| {
            this.check(&command)?;
            this.store(&command, |medium| {
                let mut next = 0;
                for seg in &from {
                    medium[next..next + seg.bytes().len()].copy_from_slice(seg.bytes());
                    next += seg.bytes().len();
                }
            });
            Ok(())
        })
    }

    fn flush(&self) -> impl Future<Output = Result<(), IoError>> + use<> {
        // Covers what had completed before the call, not what completes while it runs.
        let before = self.state.durable.borrow().is_some().then(|| self.state.bytes.borrow().clone());
        self.start(move |this| {
            this.check(&Command { op: Op::Flush, range: 0..0, is_fua: false })?;
            if let (Some(durable), Some(before)) = (&mut *this.state.durable.borrow_mut(), before) {
                *durable = before;
            }
            Ok(())
        })
    }

    fn zero(&self, range: Range<u64>, _unmap: bool) -> impl Future<Output = Result<(), IoError>> + use<> {
        let command = Command { op: Op::Zero, range, is_fua: false };
        self.start(move |this| {
            this.check(&command)?;
            this.store(&command, |medium| medium.fill(0));
            Ok(())
        })
    }

    fn block_size(&self) -> BlockSize {
        self.state.block_size
    }

    fn size_bytes(&self) -> u64 {
        u64_of(self.state.bytes.borrow().len())
    }
}
