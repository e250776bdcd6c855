//! A drive in memory, with completions delayed by a seeded time so that operations overtake each other.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use raid_core::lease::{Leases, Segs};
use raid_core::ports::{Done, Drive, Durability, IoError, IoKind};
use raid_core::units::{BlockSize, DriveOffset, usize_of};

use crate::executor::Executor;

struct State {
    bytes: RefCell<Vec<u8>>,
    block_size: BlockSize,
    /// Every command fails with this from now on.
    fails: Cell<Option<IoKind>>,
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
            block_size,
            fails: Cell::new(None),
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

    /// The medium, for tests that look behind the engine.
    #[must_use]
    pub fn medium(&self) -> std::cell::RefMut<'_, Vec<u8>> {
        self.state.bytes.borrow_mut()
    }

    /// Commands so far: reads, writes, flushes.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.state.reads.get(), self.state.writes.get(), self.state.flushes.get())
    }

    fn check(&self, range: &Range<u64>) -> Result<(), IoError> {
        let block = u64::from(self.state.block_size.bytes());
        assert!(range.start.is_multiple_of(block) && range.end.is_multiple_of(block), "unaligned {range:?}");
        if let Some(kind) = self.state.fails.get() {
            return Err(IoError::new(kind, "simulated fault"));
        }
        if range.end > self.size_bytes() {
            return Err(IoError::new(IoKind::Invalid, "beyond the end of the drive"));
        }
        Ok(())
    }

    /// A seeded latency of 1 to 64 microseconds.
    fn latency(&self) -> impl Future<Output = ()> + use<> {
        let deadline_ns = self.executor.now_ns() + 1000 + self.executor.random_u64() % 63_000;
        self.executor.sleep_until(deadline_ns)
    }
}

impl Drive for SimDrive {
    fn read(&self, at: DriveOffset, mut into: Leases) -> impl Future<Output = Done<Leases>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            this.state.reads.set(this.state.reads.get() + 1);
            let end = at.0 + raid_core::lease::leases_len(&into);
            let result = this.check(&(at.0..end)).map(|()| {
                let medium = this.state.bytes.borrow();
                let mut next = usize_of(at.0);
                for lease in &mut into {
                    let bytes = lease.bytes_mut();
                    bytes.copy_from_slice(&medium[next..next + bytes.len()]);
                    next += bytes.len();
                }
            });
            Done { result, buf: Some(into) }
        }
    }

    fn write(
        &self,
        at: DriveOffset,
        from: Segs,
        _how: Durability,
    ) -> impl Future<Output = Result<(), IoError>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            this.state.writes.set(this.state.writes.get() + 1);
            let end = at.0 + raid_core::lease::segs_len(&from);
            this.check(&(at.0..end))?;
            let mut medium = this.state.bytes.borrow_mut();
            let mut next = usize_of(at.0);
            for seg in &from {
                medium[next..next + seg.bytes().len()].copy_from_slice(seg.bytes());
                next += seg.bytes().len();
            }
            Ok(())
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), IoError>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            this.state.flushes.set(this.state.flushes.get() + 1);
            this.check(&(0..0))
        }
    }

    fn zero(&self, range: Range<u64>, _unmap: bool) -> impl Future<Output = Result<(), IoError>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            this.check(&range)?;
            this.state.bytes.borrow_mut()[usize_of(range.start)..usize_of(range.end)].fill(0);
            Ok(())
        }
    }

    fn block_size(&self) -> BlockSize {
        self.state.block_size
    }

    fn size_bytes(&self) -> u64 {
        raid_core::units::u64_of(self.state.bytes.borrow().len())
    }
}
