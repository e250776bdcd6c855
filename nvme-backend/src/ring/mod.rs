//! The ring of a lane: one io_uring, and the table of operations that own what the kernel is working on.
//!
//! An operation is queued when it is made (one `io_uring_enter` per loop submits all that were queued and reaps what is
//! done). Its buffers, and the handle that keeps its file open, move into the table and stay there until its completion
//! has been reaped, whatever happens to the future: dropping it, or its deadline passing, makes the operation an orphan,
//! never frees memory the kernel may still touch (SAFETY M7).
//!
//! Invariants: every address in a submitted entry points into the payload, the vectors or the owner of its own slot,
//! or to static memory; a slot is reused only after its completion was reaped; slots carry a generation so that a
//! completion for the wrong one is caught. The table grows with the operations in flight, which leases and sockets bound.

#![allow(unsafe_code)]

mod future;
mod ops;
pub(crate) mod ublk;

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use raid_core::lease::{Lease, Leases, Segs};
use raid_core::units::{u64_of, usize_of, usize_of_u32};
use smallvec::SmallVec;

use crate::arena::Arena;
use crate::lane::{Lane, StartError};
use crate::socket::Part;

pub(crate) use future::OpFuture;
pub(crate) use ops::{
    ZERO_WRITE_BYTES_MAX, accept, fallocate, flush, hold, read, receive, receive_lease, send, write,
    write_zeroes,
};

/// `user_data` of the poll on the lane's eventfd.
const WAKE: u64 = u64::MAX;
/// `user_data` of cancel requests, whose own outcome nobody needs.
const CANCEL: u64 = u64::MAX - 1;
/// `user_data` of the timer for the first deadline.
const TIMER: u64 = u64::MAX - 2;
/// How long an ending lane waits for I/O in flight, first by itself, then cancelled.
const END_WAIT_NS: [u64; 2] = [2_000_000_000, 3_000_000_000];

/// What keeps the file of an operation open, and hears about orphans.
pub(crate) trait Owner {
    /// The file.
    fn fd(&self) -> RawFd;
    /// Whether an operation whose future was dropped is cancelled (sockets) or left to run (drives).
    fn cancels_dropped(&self) -> bool;
    /// Whether the file's own code may sleep where io_uring expects it to say "would block": such operations go to a
    /// kernel worker from the start, or a hung file would hang the whole lane with it (M7).
    fn may_block_lane(&self) -> bool {
        false
    }
    /// Whether the kernel is asked to cancel an operation past its deadline. A command that a fault holds hangs like one of
    /// a drive that does not answer: only the lane's end cancels it.
    fn cancels_late(&self) -> bool {
        true
    }
    /// Whether registered memory must begin at a page to be used as such. The kernel (6.12) wants each page of it to hold
    /// whole blocks of a block device, which staggered memory does not where blocks are larger than the stagger: EINVAL.
    fn wants_whole_pages(&self) -> bool {
        false
    }
    /// Whether its operations hold no memory and end only with the ring itself: an ending lane does not wait for them.
    fn ends_with_ring(&self) -> bool {
        false
    }
    /// An operation that somebody waits for ended `took_ns` after it was queued: when its completion was reaped or its
    /// deadline passed, which may be long before its future is polled (a batch is awaited one by one).
    fn ended(&self, _payload: &Payload, _result: i32, _took_ns: u64) {}
    /// An operation became an orphan: nobody waits for it, but the kernel still works on it.
    fn orphaned(&self) {}
    /// An orphan's completion arrived.
    fn orphan_ended(&self) {}
}

/// The buffers of an operation.
pub(crate) enum Payload {
    /// None, and it is a flush.
    Flush,
    None,
    Leases(Leases),
    Segs(Segs),
    Bytes(Vec<u8>),
    Lease(Lease),
    Parts(Vec<Part>),
    /// The result is a new file descriptor.
    Accept,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// In flight; a future waits.
    Waiting,
    /// In flight past its deadline; its future has not been told yet.
    Late,
    /// In flight; nobody waits.
    Orphan,
    /// Completed; its future has not been told yet.
    Done,
}

struct Slot {
    state: State,
    generation: u32,
    result: i32,
    /// The round it was queued in.
    began_ns: u64,
    /// `u64::MAX`: none.
    deadline_ns: u64,
    waker: Option<Waker>,
    payload: Payload,
    owner: Option<Rc<dyn Owner>>,
    /// Kept from operation to operation, so that vectored I/O allocates only until the table is warm.
    iov: Vec<libc::iovec>,
    msg: Option<Box<libc::msghdr>>,
}

struct Inner {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<u32>,
    in_flight: usize,
    /// Those of them that end only with the ring.
    staying: usize,
    /// No deadline in the table is before this.
    next_deadline_ns: u64,
    /// When the ring's timer fires; `u64::MAX`: it is not armed.
    timer_ns: u64,
    /// What the timer's entry points to until it is submitted.
    timer: Box<Timespec>,
    /// Completions taken from a full queue before their turn.
    stash: Vec<(u64, i32, u32)>,
    wake_armed: bool,
    closing: bool,
    /// Per arena region: whether it is registered. Empty when registration is off.
    registered: Vec<Registered>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Registered {
    NotYet,
    Yes,
    Refused,
}

/// The ring of one lane.
pub(crate) struct Ring {
    inner: RefCell<Inner>,
}

/// How an operation ended for its future.
pub(crate) enum Finished {
    /// The kernel's result and the buffers.
    Done(i32, Payload),
    /// The deadline passed; the kernel keeps the buffers.
    TimedOut,
}

fn build(entries: u32) -> Result<IoUring, StartError> {
    let clamp = entries.clamp(8, 4096);
    let attempts: [fn(&mut io_uring::Builder); 3] = [
        |b| {
            b.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        },
        |b| {
            b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        },
        |_| {},
    ];
    let mut last = None;
    for attempt in attempts {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(clamp.saturating_mul(4)).setup_clamp();
        attempt(&mut builder);
        match builder.build(clamp) {
            Ok(ring) => return Ok(ring),
            Err(error) => {
                let is_flag = error.raw_os_error() == Some(libc::EINVAL);
                last = Some(StartError::of_ring(error));
                if !is_flag {
                    break;
                }
            }
        }
    }
    Err(last.expect("at least one attempt"))
}

impl Ring {
    pub(crate) fn new(entries: u32, arena: &Arena) -> Result<Self, StartError> {
        let uring = build(entries)?;
        let params = uring.params();
        if !params.is_feature_nodrop() || !params.is_feature_ext_arg() || !params.is_feature_submit_stable() {
            return Err(StartError::KernelTooOld);
        }
        let mut registered = Vec::new();
        if arena.config().register {
            match uring.submitter().register_buffers_sparse(arena.regions()) {
                Ok(()) => registered = vec![Registered::NotYet; usize_of_u32(arena.regions())],
                Err(error) => not_registered(&error),
            }
        }
        Ok(Self {
            inner: RefCell::new(Inner {
                uring,
                slots: Vec::new(),
                free: Vec::new(),
                in_flight: 0,
                staying: 0,
                next_deadline_ns: u64::MAX,
                timer_ns: u64::MAX,
                timer: Box::new(Timespec::new()),
                stash: Vec::new(),
                wake_armed: false,
                closing: false,
                registered,
            }),
        })
    }

    /// The registered-buffer index of the arena block `key`, registering its region at first use; `None` when memory is
    /// not (or may not be) registered.
    fn buffer_index(&self, arena: &Arena, key: u32) -> Option<u16> {
        let inner = &mut *self.inner.borrow_mut();
        let region = Arena::region_of(key);
        match inner.registered.get(usize_of_u32(region))? {
            Registered::Yes => {}
            Registered::Refused => return None,
            Registered::NotYet => {
                let (start, bytes) = arena.region(region);
                let iov = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes };
                // SAFETY: the region is mapped as long as the arena, and the lane closes the ring (or leaks both)
                // before it lets go of the arena.
                match unsafe { inner.uring.submitter().register_buffers_update(region, &[iov], None) } {
                    Ok(()) => inner.registered[usize_of_u32(region)] = Registered::Yes,
                    Err(error) => {
                        not_registered(&error);
                        inner.registered[usize_of_u32(region)] = Registered::Refused;
                        return None;
                    }
                }
            }
        }
        u16::try_from(region).ok()
    }

    /// Puts an operation into the table and its entry into the submission queue.
    ///
    /// # Safety
    /// Every address `build` puts into the entry must point into the payload's buffers, the slot's vectors, or static
    /// memory, be valid for what the operation does with it, and the file must be `owner`'s.
    unsafe fn start(
        &self,
        lane: &Lane,
        owner: Rc<dyn Owner>,
        payload: Payload,
        deadline_ns: u64,
        build: impl FnOnce(&mut Slot, Fd) -> squeue::Entry,
    ) -> OpFuture {
        let inner = &mut *self.inner.borrow_mut();
        let index = match inner.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(inner.slots.len()).expect("fewer than 2^32 operations");
                inner.slots.push(Slot {
                    state: State::Free,
                    generation: 0,
                    result: 0,
                    began_ns: 0,
                    deadline_ns: u64::MAX,
                    waker: None,
                    payload: Payload::None,
                    owner: None,
                    iov: Vec::new(),
                    msg: None,
                });
                index
            }
        };
        let slot = &mut inner.slots[usize_of_u32(index)];
        assert!(slot.state == State::Free && slot.waker.is_none());
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        slot.payload = payload;
        slot.began_ns = lane.round_ns();
        slot.deadline_ns = deadline_ns;
        let fd = Fd(owner.fd());
        let may_block_lane = owner.may_block_lane();
        let is_staying = owner.ends_with_ring();
        slot.owner = Some(owner);
        let future = OpFuture { lane: lane.clone(), index, told: false };
        if inner.closing {
            slot.state = State::Done;
            slot.result = -libc::ECANCELED;
            return future;
        }
        slot.state = State::Waiting;
        let mut entry = build(slot, fd).user_data(u64::from(slot.generation) << 32 | u64::from(index));
        if may_block_lane {
            entry = entry.flags(squeue::Flags::ASYNC);
        }
        inner.next_deadline_ns = inner.next_deadline_ns.min(deadline_ns);
        inner.in_flight += 1;
        inner.staying += usize::from(is_staying);
        // SAFETY: the caller's promise; payload, vectors and owner now lie in a slot that is emptied only when the
        // completion is reaped. Moving the slot (the table grows) moves handles, not the memory they point to.
        unsafe { inner.push(&entry) };
        future
    }

    /// Submits what is queued and waits for a completion for at most `wait_ns` (`None`: without limit; 0: not at all).
    pub(crate) fn enter(&self, wake: BorrowedFd<'_>, wait_ns: Option<u64>) {
        let inner = &mut *self.inner.borrow_mut();
        if !inner.wake_armed {
            let entry =
                opcode::PollAdd::new(Fd(wake.as_raw_fd()), u32::from(rustix::event::PollFlags::IN.bits()))
                    .multi(true)
                    .build()
                    .user_data(WAKE);
            inner.wake_armed = true;
            // SAFETY: the entry holds no address, and the eventfd lives as long as the lane.
            unsafe { inner.push(&entry) };
        }
        inner.arm_timer();
        let wait_ns = if inner.stash.is_empty() { wait_ns } else { Some(0) };
        if wait_ns == Some(0) {
            let mut queue = inner.uring.submission();
            queue.sync();
            if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                return;
            }
        }
        let submitter = inner.uring.submitter();
        let entered = match wait_ns {
            Some(0) => submitter.submit_and_wait(0),
            None => submitter.submit_and_wait(1),
            Some(ns) => {
                let time = Timespec::from(Duration::from_nanos(ns));
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => {}
            // Timed out, interrupted, or the completion queue is full: in each case what comes next is to reap. EAGAIN
            // is the kernel out of memory for requests: the entries stay queued for the next round.
            Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
            Err((_, error)) => panic!("io_uring_enter failed: {error}"),
        }
    }

    /// Takes in all completions and wakes their futures; returns how many.
    pub(crate) fn reap(&self, now_ns: u64) -> usize {
        let mut total = 0;
        loop {
            let mut batch: SmallVec<[(u64, i32, u32); 64]> = SmallVec::new();
            {
                let inner = &mut *self.inner.borrow_mut();
                batch.extend(inner.stash.drain(..));
                for entry in inner.uring.completion().take(64) {
                    batch.push((entry.user_data(), entry.result(), entry.flags()));
                }
            }
            if batch.is_empty() {
                return total;
            }
            for &(user_data, result, flags) in &batch {
                match user_data {
                    CANCEL => {}
                    // Whoever is late is found by `expire`, which runs each round.
                    TIMER => self.inner.borrow_mut().timer_ns = u64::MAX,
                    WAKE => {
                        if !cqueue::more(flags) {
                            self.inner.borrow_mut().wake_armed = false;
                        }
                    }
                    _ => {
                        self.complete(user_data, result, now_ns);
                        total += 1;
                    }
                }
            }
        }
    }

    fn complete(&self, user_data: u64, result: i32, now_ns: u64) {
        let index = usize_of(user_data & 0xffff_ffff);
        let mut waker = None;
        let mut freed = None;
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.in_flight -= 1;
            let slot = &mut inner.slots[index];
            assert!(u64::from(slot.generation) == user_data >> 32, "a completion for another operation");
            inner.staying -= usize::from(slot.owner.as_ref().is_some_and(|owner| owner.ends_with_ring()));
            slot.result = result;
            match slot.state {
                State::Waiting => {
                    slot.state = State::Done;
                    waker = slot.waker.take();
                    if let Some(owner) = &slot.owner {
                        owner.ended(&slot.payload, result, now_ns.saturating_sub(slot.began_ns));
                    }
                }
                State::Late => {
                    // Its future was woken when it became late, and finds the buffers after all.
                    slot.state = State::Done;
                    if matches!(-result, libc::ECANCELED | libc::EINTR) {
                        slot.result = -libc::ETIMEDOUT;
                    }
                    if let Some(owner) = &slot.owner {
                        owner.orphan_ended();
                    }
                }
                State::Orphan => {
                    if let Some(owner) = &slot.owner {
                        owner.orphan_ended();
                    }
                    freed = Some(inner.release(index));
                }
                State::Free | State::Done => panic!("a completion for an operation that had ended"),
            }
        }
        if let Some((Payload::Accept, _)) = &freed
            && result >= 0
        {
            drop(take_fd(result));
        }
        // Buffers and owner are dropped here, with nothing of the table borrowed.
        drop(freed);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Tells the futures of operations past their deadline, and asks the kernel to cancel them.
    ///
    /// Deadlines are far and operations short, so the table is looked through about once per drive time-out, not once
    /// per operation, and the ring has one timer for the first deadline.
    pub(crate) fn expire(&self, now_ns: u64) {
        let mut wakers: SmallVec<[Waker; 8]> = SmallVec::new();
        {
            let inner = &mut *self.inner.borrow_mut();
            if now_ns < inner.next_deadline_ns {
                return;
            }
            let mut next_ns = u64::MAX;
            let mut late: SmallVec<[u64; 8]> = SmallVec::new();
            for (index, slot) in inner.slots.iter_mut().enumerate() {
                if !matches!(slot.state, State::Waiting | State::Orphan) {
                    continue;
                }
                if slot.deadline_ns > now_ns {
                    next_ns = next_ns.min(slot.deadline_ns);
                    continue;
                }
                slot.deadline_ns = u64::MAX;
                if slot.owner.as_ref().is_none_or(|owner| owner.cancels_late()) {
                    late.push(u64::from(slot.generation) << 32 | u64_of(index));
                }
                if slot.state == State::Waiting {
                    slot.state = State::Late;
                    wakers.extend(slot.waker.take());
                    if let Some(owner) = &slot.owner {
                        owner.ended(&slot.payload, -libc::ETIMEDOUT, now_ns.saturating_sub(slot.began_ns));
                        owner.orphaned();
                    }
                }
            }
            inner.next_deadline_ns = next_ns;
            for user_data in late {
                inner.cancel(user_data);
            }
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Operations the kernel works on.
    pub(crate) fn in_flight(&self) -> usize {
        self.inner.borrow().in_flight
    }

    /// Ends the ring: no operation starts any more, those in flight are waited for, then cancelled and waited for
    /// again. Returns whether the kernel has let go of everything; if not, ring and arena must never be freed.
    pub(crate) fn close(&self, wake: BorrowedFd<'_>, now_ns: impl Fn() -> u64) -> bool {
        self.inner.borrow_mut().closing = true;
        for (step, wait_ns) in END_WAIT_NS.into_iter().enumerate() {
            if step == 1 {
                let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCEL);
                // SAFETY: the entry holds no address.
                unsafe { self.inner.borrow_mut().push(&entry) };
            }
            let deadline_ns = now_ns() + wait_ns;
            loop {
                let now_ns = now_ns();
                if self.is_done() {
                    return true;
                }
                if now_ns >= deadline_ns {
                    break;
                }
                self.enter(wake, Some((deadline_ns - now_ns).min(100_000_000)));
                self.reap(now_ns);
            }
        }
        self.is_done()
    }

    /// Whether nothing is in flight but what ends with the ring and holds no memory.
    fn is_done(&self) -> bool {
        let inner = self.inner.borrow();
        inner.in_flight == inner.staying
    }
}

/// Takes ownership of a descriptor that the kernel returned from a successful accept.
pub(crate) fn take_fd(result: i32) -> OwnedFd {
    assert!(result >= 0);
    // SAFETY: accept made this descriptor for the operation whose result is consumed here, so nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(result) }
}

fn not_registered(error: &std::io::Error) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::info!(
            %error,
            "not all I/O memory is registered with the ring (RLIMIT_MEMLOCK, or an old kernel): commands map their \
             buffers one by one (said once)"
        );
    });
}

impl Inner {
    /// Puts an entry into the submission queue, submitting what is there if it is full.
    ///
    /// # Safety
    /// As [`Ring::start`].
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        let mut tries = 0;
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(entry) }.is_ok() {
                return;
            }
            // A full queue empties with one submission, unless the kernel is short of memory for a moment, or the
            // completion queue has overflowed: then that is emptied first.
            let Self { uring, stash, .. } = self;
            stash.extend(uring.completion().map(|entry| (entry.user_data(), entry.result(), entry.flags())));
            match self.uring.submit() {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ENOMEM)
                    ) => {}
                Err(error) => panic!("io_uring_enter failed: {error}"),
            }
            tries += 1;
            assert!(tries < 10_000, "the kernel takes no more entries into the ring");
        }
    }

    /// Sees to it that the kernel wakes the lane at the first deadline.
    fn arm_timer(&mut self) {
        if self.next_deadline_ns >= self.timer_ns {
            return;
        }
        self.timer_ns = self.next_deadline_ns;
        *self.timer = Timespec::from(Duration::from_nanos(self.timer_ns));
        let entry =
            opcode::Timeout::new(&raw const *self.timer).flags(TimeoutFlags::ABS).build().user_data(TIMER);
        // SAFETY: the kernel copies the time when the entry is submitted (FEAT_SUBMIT_STABLE), and the box lives as
        // long as the ring. A timer armed before may still be queued: it then fires at the new, earlier time, too.
        unsafe { self.push(&entry) };
    }

    fn cancel(&mut self, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build().user_data(CANCEL);
        // SAFETY: the entry holds no address.
        unsafe { self.push(&entry) };
    }

    /// Frees a slot; what it held is the caller's to drop once the table is no longer borrowed.
    fn release(&mut self, index: usize) -> (Payload, Option<Rc<dyn Owner>>) {
        let slot = &mut self.slots[index];
        slot.state = State::Free;
        slot.deadline_ns = u64::MAX;
        self.free.push(u32::try_from(index).expect("fewer than 2^32 operations"));
        (std::mem::replace(&mut slot.payload, Payload::None), slot.owner.take())
    }
}
