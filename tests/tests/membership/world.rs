//! The world of the membership tests: sparse drives in memory that record every write and can lose power between any
//! two, and the few steps (create, observe, decide, start) that every test takes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use raid_core::format::plan::{NewGroup, Plan, PlanDrive, plan};
use raid_core::format::superblock::set_name;
use raid_core::geometry::Level;
use raid_core::lease::{Leases, Segs};
use raid_core::membership::{
    CreateError, CreateRequest, Decision, Mark, Observed, Policy, StartParts, StartPlan, create, decide,
    next_epoch, observe, publish, start, store_mark,
};
use raid_core::ports::{Done, Drive, DriveKey, Durability, Env, IoError, IoKind, Pool};
use raid_core::units::{BlockSize, DriveOffset, LaneId, Slot, Uuid};
use raid_core::view::{MemberState, View, Witness};
use sim::{Executor, SimClock, SimEnv};

/// Contents of a drive: the 512-byte sectors that are not zero.
pub(crate) type Image = BTreeMap<u64, Vec<u8>>;

/// A write as it began: which drive, where, what, and whether it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) drive: DriveKey,
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fua: bool,
}

/// What happened on the drives of a world, in order.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Began(usize),
    Ended(usize),
    Flushed(DriveKey),
}

#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) on: Cell<bool>,
    pub(crate) writes: RefCell<Vec<Written>>,
    pub(crate) events: RefCell<Vec<Event>>,
    /// Writes left before the power goes; `None` = it stays.
    pub(crate) power: Cell<Option<u64>>,
}

struct DriveState {
    key: DriveKey,
    size_bytes: u64,
    block_size: BlockSize,
    image: RefCell<Image>,
    fails: Cell<Option<IoKind>>,
    /// Writes this drive takes before it fails.
    writes_left: Cell<Option<u64>>,
    /// And with what.
    write_error: Cell<IoKind>,
    writes: Cell<u64>,
}

#[derive(Clone)]
pub(crate) struct TestDrive {
    executor: Executor,
    recorder: Rc<Recorder>,
    state: Rc<DriveState>,
}

pub(crate) fn apply(image: &mut Image, at: u64, bytes: &[u8]) {
    for (i, sector) in bytes.chunks(512).enumerate() {
        let number = at / 512 + u64::try_from(i).unwrap();
        if sector.iter().all(|&byte| byte == 0) {
            image.remove(&number);
        } else {
            image.insert(number, sector.to_vec());
        }
    }
}

impl TestDrive {
    pub(crate) fn image(&self) -> Image {
        self.state.image.borrow().clone()
    }

    pub(crate) fn set_image(&self, image: Image) {
        *self.state.image.borrow_mut() = image;
    }

    pub(crate) fn poke(&self, at: u64, bytes: &[u8]) {
        apply(&mut self.state.image.borrow_mut(), at, bytes);
    }

    pub(crate) fn peek(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        for (number, sector) in self.state.image.borrow().range(range.start / 512..range.end / 512) {
            let at = usize::try_from(number * 512 - range.start).unwrap();
            bytes[at..at + 512].copy_from_slice(sector);
        }
        bytes
    }

    pub(crate) fn fail_with(&self, kind: Option<IoKind>) {
        self.state.fails.set(kind);
    }

    /// The drive takes `n` more writes (zeroes and flushes included), then every write fails.
    pub(crate) fn fail_after(&self, n: Option<u64>) {
        self.state.writes_left.set(n);
    }

    /// What a write answers after [`Self::fail_after`].
    pub(crate) fn fail_writes_with(&self, kind: IoKind) {
        self.state.write_error.set(kind);
    }

    pub(crate) fn writes(&self) -> u64 {
        self.state.writes.get()
    }

    fn latency(&self) -> impl Future<Output = ()> + use<> {
        let deadline_ns = self.executor.now_ns() + 1000 + self.executor.random_u64() % 63_000;
        self.executor.sleep_until(deadline_ns)
    }

    fn check(&self, range: &Range<u64>) -> Result<(), IoError> {
        let block = u64::from(self.state.block_size.bytes());
        assert!(range.start.is_multiple_of(block) && range.end.is_multiple_of(block), "unaligned {range:?}");
        assert!(range.end <= self.state.size_bytes, "beyond the end: {range:?}");
        match self.state.fails.get() {
            Some(kind) => Err(IoError::new(kind, "simulated fault")),
            None => Ok(()),
        }
    }

    /// Whether a changing command still happens.
    fn may_change(&self) -> Result<(), IoError> {
        self.state.writes.set(self.state.writes.get() + 1);
        for cell in [&self.state.writes_left, &self.recorder.power] {
            match cell.get() {
                Some(0) => return Err(IoError::new(self.state.write_error.get(), "no more writes")),
                Some(n) => cell.set(Some(n - 1)),
                None => {}
            }
        }
        Ok(())
    }

    fn record(&self, at: u64, bytes: Vec<u8>, fua: bool) -> Option<usize> {
        self.recorder.on.get().then(|| {
            let mut writes = self.recorder.writes.borrow_mut();
            writes.push(Written { drive: self.state.key, at, bytes, fua });
            self.recorder.events.borrow_mut().push(Event::Began(writes.len() - 1));
            writes.len() - 1
        })
    }

    fn change(
        &self,
        at: u64,
        bytes: Vec<u8>,
        fua: bool,
    ) -> impl Future<Output = Result<(), IoError>> + use<> {
        let this = self.clone();
        let end = at + u64::try_from(bytes.len()).unwrap();
        let allowed = this.check(&(at..end)).and_then(|()| this.may_change());
        let id = allowed.is_ok().then(|| this.record(at, bytes.clone(), fua)).flatten();
        let latency = this.latency();
        async move {
            latency.await;
            allowed?;
            apply(&mut this.state.image.borrow_mut(), at, &bytes);
            if let Some(id) = id {
                this.recorder.events.borrow_mut().push(Event::Ended(id));
            }
            Ok(())
        }
    }
}

impl Drive for TestDrive {
    fn read(&self, at: DriveOffset, mut into: Leases) -> impl Future<Output = Done<Leases>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            let end = at.0 + raid_core::lease::leases_len(&into);
            let result = this.check(&(at.0..end)).map(|()| {
                let mut next = at.0;
                for lease in &mut into {
                    let end = next + u64::from(lease.len());
                    lease.bytes_mut().copy_from_slice(&this.peek(next..end));
                    next = end;
                }
            });
            Done { result, buf: Some(into) }
        }
    }

    fn write(
        &self,
        at: DriveOffset,
        from: Segs,
        how: Durability,
    ) -> impl Future<Output = Result<(), IoError>> + use<> {
        let bytes: Vec<u8> = from.iter().flat_map(|seg| seg.bytes().to_vec()).collect();
        self.change(at.0, bytes, how == Durability::Fua)
    }

    fn flush(&self) -> impl Future<Output = Result<(), IoError>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            this.check(&(0..0))?;
            this.may_change()?;
            if this.recorder.on.get() {
                this.recorder.events.borrow_mut().push(Event::Flushed(this.state.key));
            }
            Ok(())
        }
    }

    fn zero(&self, range: Range<u64>, _unmap: bool) -> impl Future<Output = Result<(), IoError>> + use<> {
        let this = self.clone();
        let latency = self.latency();
        async move {
            latency.await;
            this.check(&range)?;
            this.may_change()?;
            let sectors = range.start / 512..range.end / 512;
            this.state.image.borrow_mut().retain(|number, _| !sectors.contains(number));
            Ok(())
        }
    }

    fn block_size(&self) -> BlockSize {
        self.state.block_size
    }

    fn size_bytes(&self) -> u64 {
        self.state.size_bytes
    }
}

#[derive(Clone)]
pub(crate) struct TestEnv {
    sim: SimEnv,
    pub(crate) recorder: Rc<Recorder>,
    drives: Rc<RefCell<BTreeMap<DriveKey, TestDrive>>>,
    pub(crate) witness: Rc<RefCell<Option<Witness>>>,
    pub(crate) witness_fails: Rc<Cell<bool>>,
}

impl Env for TestEnv {
    type Drive = TestDrive;
    type Parity = sim::SimParity;
    type Clock = SimClock;

    fn lane(&self) -> LaneId {
        self.sim.lane()
    }

    fn clock(&self) -> &SimClock {
        self.sim.clock()
    }

    fn parity(&self) -> &sim::SimParity {
        self.sim.parity()
    }

    fn drive(&self, key: DriveKey) -> Option<TestDrive> {
        self.drives.borrow().get(&key).cloned()
    }

    fn random_u64(&self) -> u64 {
        self.sim.random_u64()
    }

    async fn lease(&self, pool: Pool, sizes: &[u32]) -> Leases {
        self.sim.lease(pool, sizes).await
    }

    fn try_lease(&self, pool: Pool, sizes: &[u32]) -> Option<Leases> {
        self.sim.try_lease(pool, sizes)
    }

    async fn store_witness(&self, witness: Witness) -> Result<(), IoError> {
        if self.witness_fails.get() || self.recorder.power.get() == Some(0) {
            return Err(IoError::new(IoKind::Medium, "state folder is full"));
        }
        *self.witness.borrow_mut() = Some(witness);
        Ok(())
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.sim.spawn(task);
    }
}

pub(crate) const MIB: u64 = 1 << 20;

/// A world of `n` equal drives with keys 0 to n-1.
pub(crate) struct World {
    pub(crate) executor: Executor,
    pub(crate) env: TestEnv,
}

impl World {
    pub(crate) fn new(seed: u64, n: usize) -> Self {
        let executor = Executor::new(seed);
        let sim = SimEnv::new(&executor);
        let env = TestEnv {
            sim,
            recorder: Rc::default(),
            drives: Rc::default(),
            witness: Rc::default(),
            witness_fails: Rc::default(),
        };
        let world = Self { executor, env };
        for _ in 0..n {
            world.add(8 * MIB, BlockSize::B512);
        }
        world
    }

    /// Adds a blank drive under the next key.
    pub(crate) fn add(&self, size_bytes: u64, block_size: BlockSize) -> DriveKey {
        let mut drives = self.env.drives.borrow_mut();
        let key = DriveKey(drives.keys().next_back().map_or(0, |key| key.0 + 1));
        let state = DriveState {
            key,
            size_bytes,
            block_size,
            image: RefCell::default(),
            fails: Cell::default(),
            writes_left: Cell::default(),
            write_error: Cell::new(IoKind::Gone),
            writes: Cell::default(),
        };
        let recorder = Rc::clone(&self.env.recorder);
        drives.insert(key, TestDrive { executor: self.executor.clone(), recorder, state: Rc::new(state) });
        key
    }

    pub(crate) fn drive(&self, n: usize) -> TestDrive {
        self.env.drives.borrow()[&DriveKey(u64::try_from(n).unwrap())].clone()
    }

    pub(crate) fn images(&self) -> Vec<Image> {
        self.env.drives.borrow().values().map(TestDrive::image).collect()
    }

    pub(crate) fn set_images(&self, images: &[Image]) {
        for (drive, image) in self.env.drives.borrow().values().zip(images) {
            drive.set_image(image.clone());
        }
    }

    pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        body: impl FnOnce(TestEnv) -> F,
    ) -> T {
        self.executor.block_on(body(self.env.clone()))
    }

    pub(crate) fn plan(&self, level: Level, members: &[usize]) -> Plan {
        let drives: Vec<PlanDrive> = members
            .iter()
            .map(|&n| {
                let drive = self.drive(n);
                PlanDrive { name: format!("d{n}"), bytes: drive.size_bytes(), block: drive.block_size() }
            })
            .collect();
        plan(level, None, &drives).expect("a possible group")
    }

    pub(crate) fn try_create(
        &self,
        level: Level,
        members: &[usize],
        is_in_sync: bool,
        overwrite: bool,
    ) -> Result<Uuid, CreateError> {
        let plan = self.plan(level, members);
        let drives: Vec<TestDrive> = members.iter().map(|&n| self.drive(n)).collect();
        self.run(|env| async move {
            let uuid = || Uuid::from_random(env.random_u64(), env.random_u64());
            let group = uuid();
            let new = NewGroup {
                group,
                set_name: set_name("host", "tank"),
                devices: drives.iter().map(|_| uuid()).collect(),
                created_unix_s: 1_800_000_000,
                events: 2,
                is_claimed: true,
                is_in_sync,
            };
            let request =
                CreateRequest { plan: &plan, new: &new, name: "tank", overwrite, write_mostly: &[] };
            create(&env, &request, &drives).await.map(|()| group)
        })
    }

    /// Creates a group over the drives 0 to n-1.
    pub(crate) fn create(&self, level: Level, n: usize, is_in_sync: bool) -> Uuid {
        self.try_create(level, &(0..n).collect::<Vec<_>>(), is_in_sync, false).expect("created")
    }

    /// Observes these drives, in this order.
    pub(crate) fn observe(&self, drives: &[usize]) -> Vec<Observed> {
        let drives: Vec<(DriveKey, TestDrive)> =
            drives.iter().map(|&n| (DriveKey(u64::try_from(n).unwrap()), self.drive(n))).collect();
        self.run(|env| async move {
            let mut seen = Vec::new();
            for (key, drive) in drives {
                seen.push(observe(&env, key, &drive).await);
            }
            seen
        })
    }

    pub(crate) fn witness(&self) -> Option<Witness> {
        self.env.witness.borrow().clone()
    }

    /// Decides with the host's witness.
    pub(crate) fn decide(&self, group: Uuid, drives: &[usize], policy: Policy) -> Decision {
        decide(group, &self.observe(drives), self.witness().as_ref(), policy)
    }

    pub(crate) fn start_plan(&self, plan: StartPlan) -> StartParts {
        self.run(|env| async move { start(&env, plan).await }).expect("started")
    }

    /// Decides and starts; panics with the refusal if it is not to be.
    pub(crate) fn start(&self, group: Uuid, drives: &[usize], policy: Policy) -> StartParts {
        match self.decide(group, drives, policy) {
            Decision::Start(plan) => self.start_plan(*plan),
            other => panic!("no start: {other}"),
        }
    }

    /// Makes a member missing and publishes that; returns the members that failed to take it.
    pub(crate) fn drop_member(&self, parts: StartParts, slot: Slot) -> (StartParts, Vec<(Slot, IoError)>) {
        self.run(|env| async move {
            let mut parts = parts;
            parts.view.members[slot.index()].state = MemberState::Missing { why: Some(IoKind::Gone) };
            parts.view.epoch = next_epoch(&env, parts.view.epoch);
            parts.view.version += 1;
            let failed = publish(&env, &parts.meta, &parts.view, &handles(&env, &parts.view)).await;
            (parts, failed)
        })
    }

    /// Makes a mark durable; returns the members that failed to take it.
    pub(crate) fn mark(&self, parts: StartParts, mark: Mark) -> (StartParts, Vec<(Slot, IoError)>) {
        self.run(|env| async move {
            let drives = handles(&env, &parts.view);
            let failed = store_mark(&env, &parts.meta, &parts.view, mark, &drives).await;
            (parts, failed)
        })
    }

    /// Stops cleanly.
    pub(crate) fn stop(&self, parts: StartParts) {
        self.run(|env| async move {
            let drives = handles(&env, &parts.view);
            let stopped = raid_core::membership::stop(&env, &parts.meta, &parts.view, &drives, true).await;
            assert_eq!(stopped, Ok(Vec::new()));
        });
    }

    /// What a crash after the first `events` recorded events leaves: for every choice of what became of the writes in
    /// flight (nothing, all, or torn after `torn` sectors), the images of all drives.
    pub(crate) fn crash_images(&self, before: &[Image], events: usize, torn: usize) -> Vec<Vec<Image>> {
        let (writes, all) = (self.env.recorder.writes.borrow(), self.env.recorder.events.borrow());
        let mut images = before.to_vec();
        let mut flying: Vec<usize> = Vec::new();
        for event in &all[..events] {
            match event {
                Event::Began(id) => flying.push(*id),
                Event::Ended(id) => {
                    let write = &writes[*id];
                    if write.fua {
                        flying.retain(|other| other != id);
                        apply(&mut images[usize::try_from(write.drive.0).unwrap()], write.at, &write.bytes);
                    }
                }
                Event::Flushed(key) => {
                    // What ended before and was not FUA is durable now; writes of one drive in flight are not.
                    let (mine, others): (Vec<usize>, Vec<usize>) = flying
                        .iter()
                        .partition(|&&id| writes[id].drive == *key && ended_before(&all[..events], id));
                    for id in mine {
                        let write = &writes[id];
                        apply(&mut images[usize::try_from(write.drive.0).unwrap()], write.at, &write.bytes);
                    }
                    flying = others;
                }
            }
        }
        let mut worlds = vec![images];
        for id in flying {
            let write = &writes[id];
            let drive = usize::try_from(write.drive.0).unwrap();
            let cut = (torn * 512).min(write.bytes.len());
            let lens: BTreeSet<usize> = [0, cut, write.bytes.len()].into_iter().collect();
            worlds = worlds
                .into_iter()
                .flat_map(|world| {
                    lens.iter().map(move |&len| {
                        let mut world = world.clone();
                        apply(&mut world[drive], write.at, &write.bytes[..len]);
                        world
                    })
                })
                .collect();
        }
        worlds
    }

    /// Starts recording.
    pub(crate) fn record(&self) {
        self.env.recorder.writes.borrow_mut().clear();
        self.env.recorder.events.borrow_mut().clear();
        self.env.recorder.on.set(true);
    }

    /// Ends recording; the number of events.
    pub(crate) fn recorded(&self) -> usize {
        self.env.recorder.on.set(false);
        self.env.recorder.events.borrow().len()
    }
}

fn ended_before(events: &[Event], id: usize) -> bool {
    events.iter().any(|event| matches!(event, Event::Ended(other) if *other == id))
}

/// Looks at every state a crash can leave: after each event, each write in flight gone, whole, or torn at a sector.
pub(crate) fn every_crash(world: &World, before: &[Image], mut check: impl FnMut(&World, &str)) -> usize {
    let events = world.recorded();
    let mut seen = 0;
    let mut known: BTreeSet<Vec<u64>> = BTreeSet::new();
    for cut in 0..=events {
        for torn in [1, 8, 31] {
            for images in world.crash_images(before, cut, torn) {
                if !known.insert(images.iter().map(digest).collect()) {
                    continue;
                }
                world.set_images(&images);
                check(world, &format!("after {cut} of {events} events, torn at {torn}"));
                seen += 1;
            }
        }
    }
    seen
}

fn digest(image: &Image) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (number, sector) in image {
        for byte in number.to_le_bytes().iter().chain(sector) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// The drives of a view's members.
pub(crate) fn handles(env: &TestEnv, view: &View) -> Vec<Option<TestDrive>> {
    view.members.iter().map(|member| member.drive.and_then(|key| env.drive(key))).collect()
}

pub(crate) fn waited() -> Policy {
    Policy { waited: true, ..Policy::default() }
}

pub(crate) fn forced() -> Policy {
    Policy { waited: true, force: true, choose: None }
}

/// Every level with its smallest and one larger number of members.
pub(crate) fn shapes() -> Vec<(Level, usize)> {
    vec![
        (Level::Raid0, 2),
        (Level::Raid1, 2),
        (Level::Raid1, 3),
        (Level::Raid5, 3),
        (Level::Raid5, 4),
        (Level::Raid6, 4),
        (Level::Raid6, 5),
        (Level::Raid10, 4),
        (Level::Raid10, 6),
    ]
}

/// All subsets of 0..n, as lists.
pub(crate) fn subsets(n: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1u32 << n).map(move |bits| (0..n).filter(|i| bits & (1 << i) != 0).collect())
}
