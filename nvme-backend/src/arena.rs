//! The arena: all memory that I/O of one lane touches, in three bounded pools, mapped once and untouched until used.
//!
//! A pool is a row of *units* of 72 KiB of address space. A unit is carved, on demand, into one block of 64 KiB, four of
//! 16 KiB or sixteen of 4 KiB, and falls back to an uncarved unit when its last block comes home; so small blocks can
//! never wear the pool out for large ones for longer than the requests that hold them live. The slack of a unit staggers
//! blocks by [`ArenaConfig::stagger_bytes`]: buffers at the same offset of a page fall into one cache set, which costs
//! parity loops over many columns most of their speed.
//!
//! Invariants: a block has one holder at a time (the free mask of its unit); waiters are served strictly first come
//! first served and all at once, nobody overtakes; memory is bounded by the configuration, and a full pool is
//! back-pressure. A block held by a hung command (SAFETY M7) is simply a block that has not come home.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use raid_core::lease::{LEASE_BYTES_MAX, Lease, LeaseHome, Leases};
use raid_core::ports::Pool;
use raid_core::units::{u64_of, usize_of_u32};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use smallvec::SmallVec;

/// Address space of a unit: 64 KiB of blocks and room to stagger them.
const UNIT_BYTES: u32 = LEASE_BYTES_MAX + 8192;
/// Block keys of one unit (the most blocks it is ever carved into).
const KEYS_PER_UNIT: u32 = 16;
/// Units of one region: what is registered with the ring in one piece, when it is first used.
const UNITS_PER_REGION: u32 = 16;

/// How much memory a lane may use for I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// Bytes of [`Pool::Request`], rounded up to 64 KiB.
    pub request_bytes: u64,
    /// Bytes of [`Pool::Scratch`], rounded up to 64 KiB.
    pub scratch_bytes: u64,
    /// Bytes of [`Pool::Metadata`], rounded up to 64 KiB.
    pub metadata_bytes: u64,
    /// By how much neighbouring blocks are staggered inside a page: 0, or a power of two up to 512. It is also the
    /// alignment that every block keeps (0: 4096).
    pub stagger_bytes: u32,
    /// Whether to register the memory with the ring, region by region as it comes into use (it is then pinned).
    pub register: bool,
}

impl Default for ArenaConfig {
    /// 64 MiB in all: room for a 32 MiB NBD request, its scratch, and metadata.
    fn default() -> Self {
        Self {
            request_bytes: 36 << 20,
            scratch_bytes: 24 << 20,
            metadata_bytes: 4 << 20,
            stagger_bytes: 512,
            register: true,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    K4,
    K16,
    K64,
}

impl Class {
    fn of(bytes: u32) -> Self {
        match bytes {
            0..=4096 => Self::K4,
            4097..=16_384 => Self::K16,
            16_385..=LEASE_BYTES_MAX => Self::K64,
            _ => panic!("a lease of {bytes} bytes was asked for; the most is {LEASE_BYTES_MAX}"),
        }
    }

    const fn bytes(self) -> u32 {
        match self {
            Self::K4 => 4096,
            Self::K16 => 16_384,
            Self::K64 => LEASE_BYTES_MAX,
        }
    }

    /// A bit for each block of a unit of this class.
    const fn full_mask(self) -> u16 {
        match self {
            Self::K4 => u16::MAX,
            Self::K16 => 0b1111,
            Self::K64 => 1,
        }
    }

    /// Where block `sub` lies in unit `unit`. The sums stay inside the unit for any stagger up to 512 (asserted by a
    /// test over all of them).
    const fn offset(self, unit: u32, sub: u32, stagger: u32) -> u32 {
        match self {
            Self::K4 => sub * (4096 + stagger),
            Self::K16 => sub * (16_384 + stagger) + (unit % 2) * 4 * stagger,
            Self::K64 => (unit % 8) * stagger,
        }
    }
}

/// Units that have been carved into this class and have a free block, per class.
const fn partial_index(class: Class) -> usize {
    match class {
        Class::K4 => 0,
        Class::K16 => 1,
        Class::K64 => 2,
    }
}

#[derive(Clone, Copy)]
struct Unit {
    class: Class,
    /// A set bit is a free block; meaningless while the unit lies in `free_units`.
    free: u16,
    /// Position in `partial` of its class while it has free and taken blocks.
    position: u32,
}

type Keys = SmallVec<[u32; 2]>;

enum Grant {
    Waiting(Option<Waker>),
    Granted(Keys),
    Taken,
}

struct Waiter {
    sizes: SmallVec<[u32; 8]>,
    grant: RefCell<Grant>,
}

struct PoolState {
    first_unit: u32,
    units: Vec<Unit>,
    free_units: Vec<u32>,
    partial: [Vec<u32>; 3],
    waiters: VecDeque<Rc<Waiter>>,
    bytes_out: u64,
}

impl PoolState {
    fn new(first_unit: u32, count: u32) -> Self {
        let unit = Unit { class: Class::K64, free: 0, position: 0 };
        Self {
            first_unit,
            units: vec![unit; usize_of_u32(count)],
            free_units: (0..count).rev().collect(),
            partial: [Vec::new(), Vec::new(), Vec::new()],
            waiters: VecDeque::new(),
            bytes_out: 0,
        }
    }

    fn take_one(&mut self, class: Class) -> Option<u32> {
        let list = partial_index(class);
        let index = match self.partial[list].last() {
            Some(&index) => index,
            None => {
                let index = self.free_units.pop()?;
                let unit = &mut self.units[usize_of_u32(index)];
                let position = u32::try_from(self.partial[list].len()).expect("a list of u32 indices");
                *unit = Unit { class, free: class.full_mask(), position };
                self.partial[list].push(index);
                index
            }
        };
        let unit = &mut self.units[usize_of_u32(index)];
        let sub = unit.free.trailing_zeros();
        unit.free &= unit.free - 1;
        if unit.free == 0 {
            // It was the last of the list, so nobody's position moves.
            self.partial[list].pop();
        }
        self.bytes_out += u64::from(class.bytes());
        Some((self.first_unit + index) * KEYS_PER_UNIT + sub)
    }

    /// Blocks for all sizes, or none.
    fn take(&mut self, sizes: &[u32]) -> Option<Keys> {
        let mut keys = Keys::new();
        for &size in sizes {
            match self.take_one(Class::of(size)) {
                Some(key) => keys.push(key),
                None => {
                    for key in keys {
                        self.put(key);
                    }
                    return None;
                }
            }
        }
        Some(keys)
    }

    fn put(&mut self, key: u32) {
        let index = key / KEYS_PER_UNIT - self.first_unit;
        let bit = 1_u16 << (key % KEYS_PER_UNIT);
        let unit = &mut self.units[usize_of_u32(index)];
        assert!(unit.free & bit == 0, "block {key} came home twice");
        let list = partial_index(unit.class);
        let was_empty = unit.free == 0;
        unit.free |= bit;
        self.bytes_out -= u64::from(unit.class.bytes());
        if unit.free == unit.class.full_mask() {
            if !was_empty {
                let position = usize_of_u32(unit.position);
                self.partial[list].swap_remove(position);
                if let Some(&moved) = self.partial[list].get(position) {
                    self.units[usize_of_u32(moved)].position =
                        u32::try_from(position).expect("a list of u32 indices");
                }
            }
            self.free_units.push(index);
        } else if was_empty {
            unit.position = u32::try_from(self.partial[list].len()).expect("a list of u32 indices");
            self.partial[list].push(index);
        }
    }

    /// Serves waiters in order until one has to go on waiting; returns whom to wake.
    fn serve(&mut self) -> SmallVec<[Waker; 2]> {
        let mut wakers = SmallVec::new();
        while let Some(waiter) = self.waiters.front().cloned() {
            let Some(keys) = self.take(&waiter.sizes) else { break };
            self.waiters.pop_front();
            let before = waiter.grant.replace(Grant::Granted(keys));
            if let Grant::Waiting(Some(waker)) = before {
                wakers.push(waker);
            }
        }
        wakers
    }

    fn could_ever_give(&self, sizes: &[u32]) -> bool {
        let count = |class| sizes.iter().filter(|&&size| Class::of(size) == class).count();
        let need = count(Class::K64) + count(Class::K16).div_ceil(4) + count(Class::K4).div_ceil(16);
        need <= self.units.len()
    }
}

/// The mapped memory; unmapped when the last lease and the arena are gone.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize) -> Result<Self, rustix::io::Errno> {
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let start = NonNull::new(start.cast()).expect("mmap does not place mappings at address 0");
        Ok(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are what `mmap_anonymous` gave. Every lease holds its arena's `Rc`, and every
        // operation in flight holds its leases (or the lane leaks itself), so nobody reaches the memory any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

struct Inner {
    me: Weak<Inner>,
    config: ArenaConfig,
    pools: [RefCell<PoolState>; 3],
    /// First units of the second and third pool.
    first_units: [u32; 2],
    mapping: Mapping,
}

impl Inner {
    fn pool(&self, pool: Pool) -> &RefCell<PoolState> {
        match pool {
            Pool::Request => &self.pools[0],
            Pool::Scratch => &self.pools[1],
            Pool::Metadata => &self.pools[2],
        }
    }

    fn pool_of_unit(&self, unit: u32) -> &RefCell<PoolState> {
        let past = self.first_units.iter().filter(|&&first| unit >= first).count();
        &self.pools[past]
    }

    fn leases(&self, keys: &Keys, sizes: &[u32]) -> Leases {
        let home: Rc<dyn LeaseHome> = self.me.upgrade().expect("the arena outlives its leases");
        keys.iter()
            .zip(sizes)
            .map(|(&key, &len)| {
                let class = Class::of(len);
                let unit = key / KEYS_PER_UNIT;
                let offset = usize_of_u32(class.offset(unit, key % KEYS_PER_UNIT, self.config.stagger_bytes));
                let offset = usize_of_u32(unit) * usize_of_u32(UNIT_BYTES) + offset;
                assert!(offset + usize_of_u32(class.bytes()) <= self.mapping.bytes);
                // SAFETY: the assertion keeps the block inside the mapping. Anonymous memory is initialised (zero); no
                // two keys handed out overlap (a unit is carved for one class at a time, and its free mask gives a
                // block to one holder until `give_back`); `home` owns the mapping.
                unsafe {
                    let start = self.mapping.start.add(offset);
                    Lease::new(start, class.bytes(), len, key, Rc::clone(&home))
                }
            })
            .collect()
    }

    fn give_back_all(&self, keys: &[u32]) {
        for &key in keys {
            self.give_back(key);
        }
    }
}

impl LeaseHome for Inner {
    fn give_back(&self, key: u32) {
        let wakers = {
            let mut pool = self.pool_of_unit(key / KEYS_PER_UNIT).borrow_mut();
            pool.put(key);
            if pool.waiters.is_empty() { SmallVec::new() } else { pool.serve() }
        };
        for waker in wakers {
            waker.wake();
        }
    }
}

/// The memory of one lane. Cheap to clone; `!Send`.
#[derive(Clone)]
pub struct Arena(Rc<Inner>);

impl Arena {
    /// Maps the memory of an arena.
    ///
    /// # Errors
    /// The kernel's refusal to map it (address space limit).
    ///
    /// # Panics
    /// If the stagger is neither 0 nor a power of two up to 512, or a pool is over 64 GiB.
    pub fn new(config: ArenaConfig) -> Result<Self, std::io::Error> {
        assert!(
            config.stagger_bytes <= 512
                && (config.stagger_bytes == 0 || config.stagger_bytes.is_power_of_two()),
            "a stagger of {} bytes",
            config.stagger_bytes
        );
        let units = |bytes: u64| {
            let units = bytes.div_ceil(u64::from(LEASE_BYTES_MAX)).max(1);
            assert!(units <= 1 << 20, "a pool of {bytes} bytes");
            u32::try_from(units).expect("at most 2^20")
        };
        let counts = [units(config.request_bytes), units(config.scratch_bytes), units(config.metadata_bytes)];
        let total: u32 = counts.iter().sum();
        let mapping = Mapping::new(usize_of_u32(total) * usize_of_u32(UNIT_BYTES))?;
        let pools = [
            RefCell::new(PoolState::new(0, counts[0])),
            RefCell::new(PoolState::new(counts[0], counts[1])),
            RefCell::new(PoolState::new(counts[0] + counts[1], counts[2])),
        ];
        let first_units = [counts[0], counts[0] + counts[1]];
        Ok(Self(Rc::new_cyclic(|me| Inner { me: me.clone(), config, pools, first_units, mapping })))
    }

    /// One lease per size, each at most [`LEASE_BYTES_MAX`], contents undefined; `None` when the pool cannot give all of
    /// them now or others wait for it.
    ///
    /// # Panics
    /// If a size is over [`LEASE_BYTES_MAX`].
    #[must_use]
    pub fn try_lease(&self, pool: Pool, sizes: &[u32]) -> Option<Leases> {
        let keys = {
            let mut pool = self.0.pool(pool).borrow_mut();
            if !pool.waiters.is_empty() {
                return None;
            }
            pool.take(sizes)?
        };
        Some(self.0.leases(&keys, sizes))
    }

    /// The same, waiting in line until all can be given at once. The place in line is taken by the call, and given up
    /// when the future is dropped.
    ///
    /// # Panics
    /// If the pool could not give this much even when empty: waiting would be for ever.
    pub fn lease(&self, pool: Pool, sizes: &[u32]) -> impl Future<Output = Leases> + use<> {
        if let Some(leases) = self.try_lease(pool, sizes) {
            return LeaseFuture { arena: self.clone(), pool, state: LeaseState::Ready(Some(leases)) };
        }
        let mut state = self.0.pool(pool).borrow_mut();
        assert!(
            state.could_ever_give(sizes),
            "{} leases from pool {pool:?}, which holds {} units of 64 KiB: give the lane a larger arena",
            sizes.len(),
            state.units.len()
        );
        let waiter =
            Rc::new(Waiter { sizes: SmallVec::from_slice(sizes), grant: RefCell::new(Grant::Waiting(None)) });
        state.waiters.push_back(Rc::clone(&waiter));
        LeaseFuture { arena: self.clone(), pool, state: LeaseState::Waiting(waiter) }
    }

    /// Bytes of a pool that are out on leases now (by block, not by length).
    #[must_use]
    pub fn bytes_out(&self, pool: Pool) -> u64 {
        self.0.pool(pool).borrow().bytes_out
    }

    /// Bytes a pool can give in all.
    #[must_use]
    pub fn bytes_max(&self, pool: Pool) -> u64 {
        u64_of(self.0.pool(pool).borrow().units.len()) * u64::from(LEASE_BYTES_MAX)
    }

    /// How it was configured.
    #[must_use]
    pub fn config(&self) -> &ArenaConfig {
        &self.0.config
    }

    /// Number of regions to register with a ring.
    pub(crate) fn regions(&self) -> u32 {
        let units: usize = self.0.pools.iter().map(|pool| pool.borrow().units.len()).sum();
        u32::try_from(units).expect("at most 3 * 2^20").div_ceil(UNITS_PER_REGION)
    }

    /// The region a block lies in.
    pub(crate) fn region_of(key: u32) -> u32 {
        key / KEYS_PER_UNIT / UNITS_PER_REGION
    }

    /// Start and length of a region.
    pub(crate) fn region(&self, region: u32) -> (NonNull<u8>, usize) {
        let start = usize_of_u32(region) * usize_of_u32(UNITS_PER_REGION * UNIT_BYTES);
        let end = (start + usize_of_u32(UNITS_PER_REGION * UNIT_BYTES)).min(self.0.mapping.bytes);
        assert!(start < end, "region {region} of {}", self.regions());
        // SAFETY: `start` is inside the mapping by the assertion.
        (unsafe { self.0.mapping.start.add(start) }, end - start)
    }
}

enum LeaseState {
    Ready(Option<Leases>),
    Waiting(Rc<Waiter>),
}

struct LeaseFuture {
    arena: Arena,
    pool: Pool,
    state: LeaseState,
}

impl Future for LeaseFuture {
    type Output = Leases;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Leases> {
        let this = &mut *self;
        match &mut this.state {
            LeaseState::Ready(leases) => Poll::Ready(leases.take().expect("polled after completion")),
            LeaseState::Waiting(waiter) => {
                let mut grant = waiter.grant.borrow_mut();
                match &mut *grant {
                    Grant::Waiting(waker) => {
                        *waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                    Grant::Granted(_) => {
                        let Grant::Granted(keys) = std::mem::replace(&mut *grant, Grant::Taken) else {
                            unreachable!("matched above")
                        };
                        drop(grant);
                        Poll::Ready(this.arena.0.leases(&keys, &waiter.sizes))
                    }
                    Grant::Taken => panic!("polled after completion"),
                }
            }
        }
    }
}

impl Drop for LeaseFuture {
    fn drop(&mut self) {
        let LeaseState::Waiting(waiter) = &self.state else { return };
        let inner = &self.arena.0;
        match waiter.grant.replace(Grant::Taken) {
            Grant::Taken => {}
            Grant::Granted(keys) => inner.give_back_all(&keys),
            Grant::Waiting(_) => {
                let wakers = {
                    let mut pool = inner.pool(self.pool).borrow_mut();
                    pool.waiters.retain(|other| !Rc::ptr_eq(other, waiter));
                    // Whoever stood behind a large request may fit now.
                    pool.serve()
                };
                for waker in wakers {
                    waker.wake();
                }
            }
        }
    }
}
