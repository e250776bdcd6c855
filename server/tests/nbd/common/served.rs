//! A real group over RAM drives, served by the real front end on two real lanes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use nvme_backend::{Lane, LaneConfig, LaneDrive, OpenDrive, Remote, start_lane};
use raid_core::engine::{Group, GroupConfig, Shared};
use raid_core::geometry::{Geometry, Level};
use raid_core::lease::Leases;
use raid_core::membership::GroupMeta;
use raid_core::parity::CpuParity;
use raid_core::ports::{Clock, DriveKey, Env, IoError, Pool};
use raid_core::units::{BlockSize, GroupOffset, LaneId, Uuid};
use raid_core::view::{Epoch, Member, MemberLayout, MemberState, View, Witness};
use server::disk::Disk;
use server::nbd::Limits;
use server::nbd::address::Address;
use server::nbd::server::{NbdServer, Source};

pub(crate) struct TestClock(Lane);

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> {
        self.0.sleep_until(deadline_ns)
    }

    fn unix_seconds(&self) -> u64 {
        1_700_000_000
    }
}

pub(crate) struct Inner {
    lane: Lane,
    clock: TestClock,
    parity: CpuParity,
    drives: Arc<BTreeMap<DriveKey, OpenDrive>>,
    handles: RefCell<BTreeMap<DriveKey, LaneDrive>>,
}

/// A lane without a daemon.
#[derive(Clone)]
pub(crate) struct TestEnv(Rc<Inner>);

impl Env for TestEnv {
    type Drive = LaneDrive;
    type Parity = CpuParity;
    type Clock = TestClock;

    fn lane(&self) -> LaneId {
        self.0.lane.id()
    }

    fn clock(&self) -> &TestClock {
        &self.0.clock
    }

    fn parity(&self) -> &CpuParity {
        &self.0.parity
    }

    fn drive(&self, key: DriveKey) -> Option<LaneDrive> {
        let open = self.0.drives.get(&key)?;
        let mut handles = self.0.handles.borrow_mut();
        Some(handles.entry(key).or_insert_with(|| open.on_lane(&self.0.lane)).clone())
    }

    fn random_u64(&self) -> u64 {
        4
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

/// A disk of the served group.
pub(crate) struct TestSource {
    shared: Arc<Shared>,
    drives: Arc<BTreeMap<DriveKey, OpenDrive>>,
    start: u64,
    len: u64,
    is_read_only: bool,
}

impl Source for TestSource {
    type Env = TestEnv;
    type Export = Disk<TestEnv>;

    fn env(&self, lane: &Lane) -> Option<TestEnv> {
        Some(TestEnv(Rc::new(Inner {
            lane: lane.clone(),
            clock: TestClock(lane.clone()),
            parity: CpuParity::new(),
            drives: Arc::clone(&self.drives),
            handles: RefCell::default(),
        })))
    }

    fn export(&self, lane: &Lane) -> Option<Disk<TestEnv>> {
        let group = Group::new(self.env(lane)?, Arc::clone(&self.shared));
        Disk::new(group, GroupOffset(self.start), self.len, self.is_read_only)
    }
}

/// The shape of a served group.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) level: Level,
    pub(crate) members: u8,
    pub(crate) chunk_bytes: u32,
    pub(crate) member_bytes: u64,
    pub(crate) block: BlockSize,
}

/// RAID 6 of 5 over RAM, 192 MiB.
pub(crate) const RAID6: Shape = Shape {
    level: Level::Raid6,
    members: 5,
    chunk_bytes: 64 * 1024,
    member_bytes: 64 << 20,
    block: BlockSize::B512,
};

/// Lanes, a group and a front end.
pub(crate) struct Served {
    pub(crate) server: NbdServer<TestSource>,
    shared: Arc<Shared>,
    drives: Arc<BTreeMap<DriveKey, OpenDrive>>,
    lanes: Vec<(Remote, JoinHandle<()>)>,
}

impl Served {
    pub(crate) fn new(shape: Shape, drive: impl Fn(u64) -> OpenDrive) -> Self {
        let geometry =
            Geometry::new(shape.level, shape.members, shape.chunk_bytes, shape.member_bytes).unwrap();
        let keys = (0..u64::from(shape.members)).map(DriveKey);
        let drives: BTreeMap<_, _> = keys.map(|key| (key, drive(key.0))).collect();
        let member = |slot: u8| Member {
            state: MemberState::InSync,
            drive: Some(DriveKey(u64::from(slot))),
            device_uuid: Uuid::from_random(u64::from(slot), 7),
            dev_number: u16::from(slot),
            last_in_sync: 1,
            layout: MemberLayout::bare(shape.member_bytes),
            successor: None,
        };
        let epoch = Epoch { counter: 1, id: Uuid::from_random(1, 1) };
        let shared = Shared::new(GroupConfig {
            name: "g".into(),
            geometry,
            block_size: shape.block,
            view: View { version: 1, epoch, members: (0..shape.members).map(member).collect() },
            meta: Arc::new(GroupMeta::Volatile),
            intents: None,
            unsynced: Vec::new(),
            dirty: Vec::new(),
            bad_blocks: Vec::new(),
            rebuilding: Vec::new(),
            lanes: 2,
        });
        let lanes: Vec<_> = (0..2)
            .map(|n| start_lane(LaneConfig { id: LaneId(n), ..LaneConfig::default() }).unwrap())
            .collect();
        let remotes: Vec<Remote> = lanes.iter().map(|(remote, _)| remote.clone()).collect();
        let server = NbdServer::new(remotes, Limits::default());
        Self { server, shared, drives: Arc::new(drives), lanes }
    }

    /// A group in memory.
    pub(crate) fn ram(shape: Shape) -> Self {
        Self::new(shape, |_| OpenDrive::ram(shape.member_bytes, shape.block))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.shared.geometry().capacity_bytes()
    }

    /// A disk of the group.
    pub(crate) fn disk(&self, start: u64, len: u64, is_read_only: bool) -> Arc<TestSource> {
        let (shared, drives) = (Arc::clone(&self.shared), Arc::clone(&self.drives));
        Arc::new(TestSource { shared, drives, start, len, is_read_only })
    }

    /// Exposes the whole group.
    pub(crate) fn expose_all(&self, address: &Address) {
        self.server.expose("g/d", address, self.disk(0, self.capacity(), false)).unwrap();
    }

    /// Takes everything out of service and ends the lanes.
    pub(crate) fn stop(self) {
        wait(self.server.unexpose_all());
        for (remote, thread) in self.lanes {
            remote.stop();
            thread.join().unwrap();
        }
    }
}

/// Runs a future on this thread, which is no lane.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
