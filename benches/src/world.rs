//! One lane with a volatile group on it: what the engine benchmarks measure in.
//!
//! Nothing is persistent: members are bare (data from byte 0), there is no bitmap and no superblock, so a group's cost is
//! that of its data path alone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use nvme_backend::{Lane, LaneDrive, OpenDrive};
use raid_core::engine::{Group, GroupConfig, Shared};
use raid_core::geometry::{Geometry, Level};
use raid_core::lease::{Lease, Leases};
use raid_core::membership::GroupMeta;
use raid_core::parity::CpuParity;
use raid_core::ports::{Clock, DriveKey, Env, IoError, Pool};
use raid_core::units::{BlockSize, LaneId, Uuid, u64_of};
use raid_core::view::{Epoch, Member, MemberLayout, MemberState, View, Witness};

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
}

/// A lane as raid-core sees it.
#[derive(Clone)]
pub struct BenchEnv(Rc<Inner>);

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

    fn lease(&self, pool: Pool, sizes: &[u32]) -> impl Future<Output = Leases> {
        self.0.lane.arena().lease(pool, sizes)
    }

    fn try_lease(&self, pool: Pool, sizes: &[u32]) -> Option<Leases> {
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
        let size_bytes = drives.iter().map(OpenDrive::size_bytes).min().expect("a group has drives");
        let members = u8::try_from(drives.len()).expect("few drives");
        let geometry = Geometry::new(level, members, chunk_bytes, size_bytes).expect("a possible shape");
        let handles: Vec<LaneDrive> = drives.iter().map(|drive| drive.on_lane(lane)).collect();
        let keyed = handles.iter().cloned().zip(0..).map(|(drive, key)| (DriveKey(key), drive));
        let env = BenchEnv(Rc::new(Inner {
            lane: lane.clone(),
            clock: LaneClock(lane.clone()),
            parity: CpuParity::new(),
            drives: keyed.collect(),
            random: RefCell::new(Random::new(1)),
        }));
        let shared = Shared::new(GroupConfig {
            name: "bench".to_owned(),
            geometry,
            block_size: BlockSize::B4096,
            view: first_view(drives.len(), size_bytes),
            meta: Arc::new(GroupMeta::Volatile),
            intents: None,
            unsynced: Vec::new(),
            dirty: Vec::new(),
            bad_blocks: Vec::new(),
            rebuilding: Vec::new(),
            lanes: 1,
        });
        Self { lane: lane.clone(), group: Group::new(env, shared), drives: handles, geometry }
    }

    /// A lease of `bytes` bytes filled with `fill`.
    pub async fn filled(&self, bytes: u32, fill: u8) -> Lease {
        let mut leases = self.lane.arena().lease(Pool::Request, &[bytes]).await;
        let mut lease = leases.pop().expect("one lease was asked for");
        lease.bytes_mut().fill(fill);
        lease
    }
}

fn first_view(members: usize, size_bytes: u64) -> View {
    let member = |slot: u64| Member {
        state: MemberState::InSync,
        drive: Some(DriveKey(slot)),
        device_uuid: Uuid::from_random(7, slot),
        dev_number: u16::try_from(slot).expect("few members"),
        last_in_sync: 1,
        layout: MemberLayout::bare(size_bytes),
    };
    View {
        version: 1,
        epoch: Epoch { counter: 1, id: Uuid::from_random(1, 1) },
        members: (0..u64_of(members)).map(member).collect(),
    }
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
