//! One lane: the environment raid-core runs in, over the reactor.
//!
//! Every lane thread has one [`LaneState`] in a thread-local slot, put there before anything else runs on it. The control
//! thread reaches it with [`on_lane`]: a closure is sent over, makes a future there, and the answer comes back through a
//! oneshot channel. Nothing that is not `Send` ever leaves its lane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use nvme_backend::{Lane, LaneDrive, Remote};
use raid_core::engine::Group;
use raid_core::lease::Leases;
use raid_core::parity::CpuParity;
use raid_core::ports::{Clock, DriveKey, Env, IoError, Pool};
use raid_core::units::{LaneId, Uuid};
use raid_core::view::Witness;
use tokio::sync::oneshot;

use crate::daemon::host::Host;

/// The lane's monotonic clock.
pub struct LaneClock(Lane);

impl Clock for LaneClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn sleep_until(&self, deadline_ns: u64) -> impl Future<Output = ()> {
        self.0.sleep_until(deadline_ns)
    }

    fn unix_seconds(&self) -> u64 {
        crate::daemon::host::unix_seconds()
    }
}

struct Inner {
    lane: Lane,
    clock: LaneClock,
    parity: CpuParity,
    drives: RefCell<BTreeMap<DriveKey, LaneDrive>>,
    host: Arc<Host>,
}

/// A lane as raid-core sees it.
#[derive(Clone)]
pub struct LaneEnv(Rc<Inner>);

impl LaneEnv {
    /// The environment of `lane` in this daemon.
    #[must_use]
    pub fn new(lane: &Lane, host: Arc<Host>) -> Self {
        let parity = host.parity().clone();
        Self(Rc::new(Inner {
            lane: lane.clone(),
            clock: LaneClock(lane.clone()),
            parity,
            drives: RefCell::default(),
            host,
        }))
    }

    /// The reactor's lane.
    #[must_use]
    pub fn reactor(&self) -> &Lane {
        &self.0.lane
    }

    /// Forgets this lane's handle of a drive that was taken away, so that its descriptor can close.
    pub fn forget_drive(&self, key: DriveKey) {
        self.0.drives.borrow_mut().remove(&key);
    }
}

impl Env for LaneEnv {
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
        if let Some(drive) = self.0.drives.borrow().get(&key) {
            return Some(drive.clone());
        }
        let drive = self.0.host.drive(key)?.on_lane(&self.0.lane);
        self.0.drives.borrow_mut().insert(key, drive.clone());
        Some(drive)
    }

    fn random_u64(&self) -> u64 {
        crate::daemon::host::random_u64()
    }

    fn lease(&self, pool: Pool, sizes: &[u32]) -> impl Future<Output = Leases> {
        self.0.lane.arena().lease(pool, sizes)
    }

    fn try_lease(&self, pool: Pool, sizes: &[u32]) -> Option<Leases> {
        self.0.lane.arena().try_lease(pool, sizes)
    }

    fn store_witness(&self, witness: Witness) -> impl Future<Output = Result<(), IoError>> {
        self.0.host.store_witness(witness)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.lane.spawn(task);
    }
}

/// What lives on one lane.
pub struct LaneState {
    env: LaneEnv,
    groups: RefCell<BTreeMap<Uuid, Group<LaneEnv>>>,
}

impl LaneState {
    /// The environment.
    #[must_use]
    pub fn env(&self) -> &LaneEnv {
        &self.env
    }

    /// This lane's handle of a running group.
    #[must_use]
    pub fn group(&self, uuid: Uuid) -> Option<Group<LaneEnv>> {
        self.groups.borrow().get(&uuid).cloned()
    }

    /// Adds this lane's handle of a group that was started.
    pub fn insert_group(&self, uuid: Uuid, group: Group<LaneEnv>) {
        self.groups.borrow_mut().insert(uuid, group);
    }

    /// Drops this lane's handle of a group that was stopped.
    pub fn remove_group(&self, uuid: Uuid) {
        let removed = self.groups.borrow_mut().remove(&uuid);
        drop(removed);
    }
}

thread_local! {
    static STATE: RefCell<Option<Rc<LaneState>>> = const { RefCell::new(None) };
}

/// Gives a lane that just started its state. Must be the first job of the lane.
pub fn install(remote: &Remote, host: Arc<Host>) {
    remote.run(Box::new(move |lane| {
        let state = LaneState { env: LaneEnv::new(lane, host), groups: RefCell::default() };
        STATE.with(|slot| *slot.borrow_mut() = Some(Rc::new(state)));
    }));
}

/// The state of the lane this thread is; `None` on any other thread.
#[must_use]
pub fn current() -> Option<Rc<LaneState>> {
    STATE.with(|slot| slot.borrow().clone())
}

/// The lane ended before it answered: the daemon is stopping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneGone;

/// Runs `make` on the lane, drives its future there to the end and hands the result back. The future runs to its end
/// even if the returned one is dropped: nothing on a drive is left half done because a client hung up.
///
/// # Errors
/// [`LaneGone`] if the lane stopped first.
pub async fn on_lane<T, M, F>(remote: &Remote, make: M) -> Result<T, LaneGone>
where
    T: Send + 'static,
    M: FnOnce(Rc<LaneState>) -> F + Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, receiver) = oneshot::channel();
    remote.run(Box::new(move |lane| {
        let state = current().expect("`install` is the lane's first job");
        let future = make(state);
        lane.spawn(async move {
            // The receiver is gone when the client hung up; the work was done all the same.
            drop(sender.send(future.await));
        });
    }));
    receiver.await.map_err(|_| LaneGone)
}
