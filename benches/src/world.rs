//! One lane with a volatile group on it: what the engine benchmarks measure in.
//!
//! The groups are those of [`crate::scratch`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use nvme_backend::{Lane, LaneDrive, OpenDrive};
use raid_core::engine::Group;
use raid_core::geometry::{Geometry, Level};
use raid_core::lease::{Lease, Leases};
use raid_core::parity::CpuParity;
use raid_core::ports::{Clock, DriveKey, Env, IoError, Pool};
use raid_core::units::LaneId;
use raid_core::view::Witness;

use crate::scratch::{Condition, ScratchGroup};

/// The lane's clock.
pub struct LaneClock(Lane);

impl Clock for LaneClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> {
        self.0.sleep_until(deadline_ns)
    }

    fn unix_seconds(&self) -> u64 {
        // Volatile groups write no timestamps.
        0
    }
}

struct Inner {
    lane: Lane,
    clock: LaneClock,
    parity: CpuParity,
    drives: BTreeMap<DriveKey, LaneDrive>,
    random: RefCell<Random>,
    /// Let other tasks run before each step that needs scratch memory: drives in memory never make anybody wait, and a
    /// rebuild over them would keep its lane to itself.
    gives_way: bool,
}

/// A lane as raid-core sees it.
#[derive(Clone)]
pub struct BenchEnv(Rc<Inner>);

impl BenchEnv {
    /// The lane with these drives, whose keys are their places in the list.
    #[must_use]
    pub fn new(lane: &Lane, drives: Vec<LaneDrive>) -> Self {
        Self(Rc::new(Inner {
            lane: lane.clone(),
            clock: LaneClock(lane.clone()),
            parity: CpuParity::new(),
            drives: drives.into_iter().zip(0..).map(|(drive, key)| (DriveKey(key), drive)).collect(),
            random: RefCell::new(Random::new(1)),
            gives_way: false,
        }))
    }

    /// The same lane, on which nobody works without letting others.
    #[must_use]
    pub fn giving_way(self) -> Self {
        let inner = &*self.0;
        Self(Rc::new(Inner {
            lane: inner.lane.clone(),
            clock: LaneClock(inner.lane.clone()),
            parity: CpuParity::new(),
            drives: inner.drives.clone(),
            random: RefCell::new(Random::new(1)),
            gives_way: true,
        }))
    }
}

impl Env for BenchEnv {
    type Drive = LaneDrive;
    type Parity = CpuParity;
    type Clock = LaneClock;

    fn lane(&self) -> LaneId {
        self.0.lane.id()
    }

    fn clock(&self) -> &LaneClock {
        &self.0.clock
    }

    fn parity(&self) -> &CpuParity {
        &self.0.parity
    }

    fn drive(&self, key: DriveKey) -> Option<LaneDrive> {
        self.0.drives.get(&key).cloned()
    }

    fn random_u64(&self) -> u64 {
        self.0.random.borrow_mut().word()
    }

    async fn lease(&self, pool: Pool, sizes: &[u32]) -> Leases {
        if self.0.gives_way && pool == Pool::Scratch {
            give_way().await;
        }
        self.0.lane.arena().lease(pool, sizes).await
    }

    fn try_lease(&self, pool: Pool, sizes: &[u32]) -> Option<Leases> {
        if self.0.gives_way && pool == Pool::Scratch {
            return None;
        }
        self.0.lane.arena().try_lease(pool, sizes)
    }

    async fn store_witness(&self, _witness: Witness) -> Result<(), IoError> {
        Ok(())
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.lane.spawn(task);
    }
}

/// A fast generator with a fixed seed: every run does the same work.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: no division.
        let product = u128::from(self.word()) * u128::from(end);
        u64::try_from(product >> 64).expect("a high half")
    }
}

/// A group over drives, on one lane, and the drives themselves.
pub struct World {
    /// The lane.
    pub lane: Lane,
    /// The group.
    pub group: Group<BenchEnv>,
    /// Its members, in slot order, to be used raw.
    pub drives: Vec<LaneDrive>,
    /// Its shape.
    pub geometry: Geometry,
}

impl World {
    /// A volatile group of this level over the drives; all members in sync.
    ///
    /// # Panics
    /// If the shape is impossible.
    #[must_use]
    pub fn new(lane: &Lane, level: Level, chunk_bytes: u32, drives: &[OpenDrive]) -> Self {
        Self::in_condition(lane, level, chunk_bytes, drives, &Condition::default())
    }

    /// As [`World::new`], with members lost or being rebuilt.
    ///
    /// # Panics
    /// If the shape is impossible.
    #[must_use]
    pub fn in_condition(
        lane: &Lane,
        level: Level,
        chunk_bytes: u32,
        drives: &[OpenDrive],
        condition: &Condition,
    ) -> Self {
        let scratch = ScratchGroup::new("bench", level, chunk_bytes, drives.to_vec(), condition, 1)
            .expect("a possible shape");
        Self {
            lane: lane.clone(),
            group: scratch.on_lane(lane),
            drives: drives.iter().map(|drive| drive.on_lane(lane)).collect(),
            geometry: *scratch.geometry(),
        }
    }

    /// A lease of `bytes` bytes filled with `fill`.
    pub async fn filled(&self, bytes: u32, fill: u8) -> Lease {
        let mut leases = self.lane.arena().lease(Pool::Request, &[bytes]).await;
        let mut lease = leases.pop().expect("one lease was asked for");
        lease.bytes_mut().fill(fill);
        lease
    }
}

/// Lets every task that is ready run once.
pub(crate) async fn give_way() {
    let mut has_waited = false;
    poll_fn(|context| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct Crew {
    running: Cell<usize>,
    waiting: Cell<Option<Waker>>,
}

/// Runs `count` tasks on the lane at the same time and waits for all of them.
pub async fn all<F: Future<Output = ()> + 'static>(lane: &Lane, count: usize, task: impl Fn(usize) -> F) {
    let crew = Rc::new(Crew { running: Cell::new(count), waiting: Cell::new(None) });
    for i in 0..count {
        let (work, crew) = (task(i), Rc::clone(&crew));
        lane.spawn(async move {
            work.await;
            crew.running.set(crew.running.get() - 1);
            if crew.running.get() == 0
                && let Some(waker) = crew.waiting.take()
            {
                waker.wake();
            }
        });
    }
    poll_fn(|context| {
        if crew.running.get() == 0 {
            return Poll::Ready(());
        }
        crew.waiting.set(Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
}
