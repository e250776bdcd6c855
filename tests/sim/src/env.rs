//! The simulated lane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use raid_core::lease::Leases;
use raid_core::parity::CpuParity;
use raid_core::ports::{Clock, DriveKey, Env, IoError, Pool};
use raid_core::units::LaneId;
use raid_core::view::Witness;

use crate::drive::SimDrive;
use crate::executor::Executor;
use crate::heap;
use crate::parity::SimParity;

/// Virtual time of the executor.
pub struct SimClock(Executor);

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> {
        self.0.sleep_until(deadline_ns)
    }

    fn unix_seconds(&self) -> u64 {
        1_700_000_000 + self.0.now_ns() / 1_000_000_000
    }
}

struct Inner {
    executor: Executor,
    clock: SimClock,
    parity: SimParity,
    drives: Rc<RefCell<BTreeMap<DriveKey, SimDrive>>>,
    witness: Rc<RefCell<Option<Witness>>>,
    lane: LaneId,
}

/// A lane of the simulated world.
#[derive(Clone)]
pub struct SimEnv(Rc<Inner>);

impl SimEnv {
    /// Lane 0 of a new world on this executor.
    #[must_use]
    pub fn new(executor: &Executor) -> Self {
        Self(Rc::new(Inner {
            executor: executor.clone(),
            clock: SimClock(executor.clone()),
            parity: SimParity::Cpu(CpuParity::new()),
            drives: Rc::default(),
            witness: Rc::default(),
            lane: LaneId(0),
        }))
    }

    /// Lane 0 of a new world that computes parity by its definition, sharing no code with the engine's kernels.
    #[must_use]
    pub fn with_plain_parity(executor: &Executor) -> Self {
        Self(Rc::new(Inner {
            executor: executor.clone(),
            clock: SimClock(executor.clone()),
            parity: SimParity::Plain,
            drives: Rc::default(),
            witness: Rc::default(),
            lane: LaneId(0),
        }))
    }

    /// A further lane over the same drives.
    #[must_use]
    pub fn another_lane(&self, lane: LaneId) -> Self {
        Self(Rc::new(Inner {
            executor: self.0.executor.clone(),
            clock: SimClock(self.0.executor.clone()),
            parity: SimParity::Cpu(CpuParity::new()),
            drives: Rc::clone(&self.0.drives),
            witness: Rc::clone(&self.0.witness),
            lane,
        }))
    }

    /// Puts a drive into the world.
    pub fn add_drive(&self, key: DriveKey, drive: SimDrive) {
        self.0.drives.borrow_mut().insert(key, drive);
    }

    /// Takes a drive out of the world.
    pub fn remove_drive(&self, key: DriveKey) {
        self.0.drives.borrow_mut().remove(&key);
    }

    /// What the host remembers.
    #[must_use]
    pub fn witness(&self) -> Option<Witness> {
        self.0.witness.borrow().clone()
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.0.executor
    }
}

impl Env for SimEnv {
    type Drive = SimDrive;
    type Parity = SimParity;
    type Clock = SimClock;

    fn lane(&self) -> LaneId {
        self.0.lane
    }

    fn clock(&self) -> &SimClock {
        &self.0.clock
    }

    fn parity(&self) -> &SimParity {
        &self.0.parity
    }

    fn drive(&self, key: DriveKey) -> Option<SimDrive> {
        self.0.drives.borrow().get(&key).cloned()
    }

    fn random_u64(&self) -> u64 {
        self.0.executor.random_u64()
    }

    async fn lease(&self, pool: Pool, sizes: &[u32]) -> Leases {
        self.try_lease(pool, sizes).expect("the heap is not bounded")
    }

    fn try_lease(&self, _pool: Pool, sizes: &[u32]) -> Option<Leases> {
        Some(sizes.iter().map(|&size| heap::lease(size)).collect())
    }

    async fn store_witness(&self, witness: Witness) -> Result<(), IoError> {
        *self.0.witness.borrow_mut() = Some(witness);
        Ok(())
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(task);
    }
}
