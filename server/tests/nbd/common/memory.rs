//! A disk in memory that remembers what is durable, can hold and fail requests, and takes writes to it one at a time, in
//! the order in which they were started, as a stripe lock does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use raid_core::lease::{Leases, Segs};
use raid_core::ports::{Done, Durability, Env, IoError, IoKind, Pool};
use raid_core::units::{BlockSize, u64_of, usize_of};
use server::disk::{Export, WINDOW_BYTES_MAX};
use sim::SimEnv;

use super::Gate;

const PAGE: u64 = 4096;

/// Bytes by page; what is absent is zero.
#[derive(Clone, Default)]
pub(crate) struct Pages(BTreeMap<u64, Vec<u8>>);

impl Pages {
    pub(crate) fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = usize_of(at % PAGE);
            let n = bytes.len().min(usize_of(PAGE) - start);
            let page = self.0.entry(at / PAGE).or_insert_with(|| vec![0; usize_of(PAGE)]);
            page[start..start + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            at += u64_of(n);
        }
    }

    pub(crate) fn read(&self, mut at: u64, mut into: &mut [u8]) {
        while !into.is_empty() {
            let start = usize_of(at % PAGE);
            let n = into.len().min(usize_of(PAGE) - start);
            let (now, later) = into.split_at_mut(n);
            match self.0.get(&(at / PAGE)) {
                Some(page) => now.copy_from_slice(&page[start..start + n]),
                None => now.fill(0),
            }
            into = later;
            at += u64_of(n);
        }
    }

    pub(crate) fn zero(&mut self, range: Range<u64>) {
        let touched: Vec<u64> =
            self.0.range(range.start / PAGE..range.end.div_ceil(PAGE)).map(|(&page, _)| page).collect();
        for page in touched {
            let from = range.start.max(page * PAGE);
            let to = range.end.min((page + 1) * PAGE);
            self.0.get_mut(&page).unwrap()[usize_of(from - page * PAGE)..usize_of(to - page * PAGE)].fill(0);
        }
    }

    pub(crate) fn vec(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; len];
        self.read(at, &mut bytes);
        bytes
    }
}

/// A change that was started, and whether space may be given up (zeroes only).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Write(Range<u64>, Durability),
    Zero(Range<u64>, bool, Durability),
}

pub(crate) struct Inner {
    env: SimEnv,
    pub(crate) size: Cell<u64>,
    pub(crate) block: Cell<BlockSize>,
    pub(crate) piece: u64,
    pub(crate) is_read_only: Cell<bool>,
    pub(crate) now: RefCell<Pages>,
    pub(crate) durable: RefCell<Pages>,
    pub(crate) changes: RefCell<Vec<Change>>,
    pub(crate) flushes: Cell<u32>,
    pub(crate) reads: Cell<u32>,
    /// While shut, changes wait; the first one holds all others up.
    pub(crate) changing: Gate,
    /// Reads and writes that touch this range fail.
    pub(crate) broken: RefCell<Option<(Range<u64>, IoKind)>>,
    next: Cell<u64>,
    serving: Cell<u64>,
    waiting: RefCell<Vec<std::task::Waker>>,
}

/// What can stall on one lane and not on another.
#[derive(Clone)]
pub(crate) struct LaneGates {
    /// While shut, there is no memory.
    pub(crate) leasing: Gate,
    /// While shut, writes are started but wait before they take their turn, as for scratch memory before a stripe lock.
    pub(crate) entering: Gate,
}

impl LaneGates {
    fn opened() -> Self {
        let gates = Self { leasing: Gate::default(), entering: Gate::default() };
        gates.leasing.open();
        gates.entering.open();
        gates
    }
}

/// The disk on one lane.
#[derive(Clone)]
pub(crate) struct MemoryDisk(pub Rc<Inner>, pub LaneGates);

impl MemoryDisk {
    pub(crate) fn new(env: SimEnv, size: u64) -> Self {
        let changing = Gate::default();
        changing.open();
        let inner = Inner {
            env,
            size: Cell::new(size),
            block: Cell::new(BlockSize::B512),
            piece: 64 * 1024,
            is_read_only: Cell::new(false),
            now: RefCell::default(),
            durable: RefCell::default(),
            changes: RefCell::default(),
            flushes: Cell::new(0),
            reads: Cell::new(0),
            changing,
            broken: RefCell::new(None),
            next: Cell::new(0),
            serving: Cell::new(0),
            waiting: RefCell::default(),
        };
        Self(Rc::new(inner), LaneGates::opened())
    }

    /// The same disk on another lane.
    pub(crate) fn another_lane(&self) -> Self {
        Self(Rc::clone(&self.0), LaneGates::opened())
    }

    fn failure(&self, range: Range<u64>) -> Option<IoError> {
        let broken = self.0.broken.borrow();
        let (bad, kind) = broken.as_ref()?;
        (bad.start < range.end && range.start < bad.end).then(|| IoError::new(*kind, "broken on purpose"))
    }

    /// Waits for all changes started before.
    async fn my_turn(&self) -> u64 {
        let ticket = self.0.next.get();
        self.0.next.set(ticket + 1);
        std::future::poll_fn(|cx| {
            if self.0.serving.get() == ticket {
                return std::task::Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
        self.0.changing.passed().await;
        ticket
    }

    fn end_turn(&self, ticket: u64) {
        self.0.serving.set(ticket + 1);
        for waker in self.0.waiting.take() {
            waker.wake();
        }
    }
}

impl Export for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        self.0.size.get()
    }

    fn block_size(&self) -> BlockSize {
        self.0.block.get()
    }

    fn preferred_bytes(&self) -> u32 {
        3 * 64 * 1024
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only.get()
    }

    fn pieces(&self, at: u64, len: u32) -> impl Iterator<Item = u32> {
        let (piece, end, mut next) = (self.0.piece, at + u64::from(len), at);
        std::iter::from_fn(move || {
            (next < end).then(|| {
                let to = ((next / piece + 1) * piece).min(end);
                let size = to - std::mem::replace(&mut next, to);
                u32::try_from(size).unwrap()
            })
        })
    }

    fn window(&self, at: u64, len: u32) -> u32 {
        // Whole stripes where the extent has any.
        let stripe = u64::from(self.preferred_bytes());
        let to = (at + u64::from(len.min(WINDOW_BYTES_MAX))) / stripe * stripe;
        if to > at && len > WINDOW_BYTES_MAX {
            u32::try_from(to - at).unwrap()
        } else {
            len.min(WINDOW_BYTES_MAX)
        }
    }

    async fn lease(&self, sizes: &[u32]) -> Leases {
        self.1.leasing.passed().await;
        self.0.env.lease(Pool::Request, sizes).await
    }

    async fn read(&self, at: u64, mut into: Leases) -> Done<Leases> {
        self.0.reads.set(self.0.reads.get() + 1);
        let mut next = at;
        for lease in &mut into {
            self.0.now.borrow().read(next, lease.bytes_mut());
            next += u64::from(lease.len());
        }
        let sizes: Vec<u32> = into.iter().map(|lease| lease.len()).collect();
        let total = u32::try_from(next - at).unwrap();
        assert_eq!(sizes, self.pieces(at, total).collect::<Vec<_>>(), "buffers cut wrong");
        Done { result: self.failure(at..next).map_or(Ok(()), Err), buf: Some(into) }
    }

    async fn write(&self, at: u64, from: Segs, how: Durability) -> Result<(), IoError> {
        let total: u64 = from.iter().map(|seg| u64::from(seg.len())).sum();
        let sizes: Vec<u32> = from.iter().map(|seg| seg.len()).collect();
        let cut: Vec<u32> = self.pieces(at, u32::try_from(total).unwrap()).collect();
        assert_eq!(sizes, cut, "buffers cut wrong");
        self.0.changes.borrow_mut().push(Change::Write(at..at + total, how));
        self.1.entering.passed().await;
        let ticket = self.my_turn().await;
        let failure = self.failure(at..at + total);
        if failure.is_none() {
            let mut next = at;
            for seg in &from {
                self.0.now.borrow_mut().write(next, seg.bytes());
                if how == Durability::Fua {
                    self.0.durable.borrow_mut().write(next, seg.bytes());
                }
                next += u64::from(seg.len());
            }
        }
        self.end_turn(ticket);
        failure.map_or(Ok(()), Err)
    }

    async fn zero(&self, at: u64, len: u64, unmap: bool, how: Durability) -> Result<(), IoError> {
        self.0.changes.borrow_mut().push(Change::Zero(at..at + len, unmap, how));
        let ticket = self.my_turn().await;
        self.0.now.borrow_mut().zero(at..at + len);
        if how == Durability::Fua {
            self.0.durable.borrow_mut().zero(at..at + len);
        }
        self.end_turn(ticket);
        Ok(())
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.0.flushes.set(self.0.flushes.get() + 1);
        let now = self.0.now.borrow().clone();
        self.0.durable.replace(now);
        Ok(())
    }
}
