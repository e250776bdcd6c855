//! The engine under seeded load: several lanes, overlapping writes, members that fail at random points, rebuilds with
//! foreground writes, chunks of 64 KiB. Every block carries what wrote it, so that a wrong, stale or misplaced block is
//! recognised.

use std::cell::RefCell;
use std::rc::Rc;

use raid_core::engine::{Group, Pace};
use raid_core::geometry::Level;
use raid_core::ports::{Durability, IoKind};
use raid_core::units::{BlockSize, Slot, u64_of, usize_of};
use sim::{Executor, Shape, SimEnv, World, read_vec, write_slice};

/// One write that touched a block: its number, when it began, when it was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Touch {
    number: u64,
    began: u64,
    acked: Option<u64>,
}

/// What may be in every block, from the order in which writes began and were acknowledged.
struct History {
    block: u64,
    touches: Vec<Vec<Touch>>,
    clock: u64,
}

type Log = Rc<RefCell<History>>;

fn stamp(block_number: u64, write: u64, block: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize_of(block));
    while u64_of(bytes.len()) < block {
        let at = u64_of(bytes.len());
        bytes.extend((block_number ^ at.rotate_left(40)).to_le_bytes());
        bytes.extend(write.to_le_bytes());
    }
    bytes
}

impl History {
    fn new(capacity: u64, block: u64) -> Log {
        let touches = vec![Vec::new(); usize_of(capacity / block)];
        Rc::new(RefCell::new(Self { block, touches, clock: 0 }))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, at: u64, len: u64) -> (u64, Vec<u8>) {
        let number = self.tick();
        let mut data = Vec::new();
        for n in at / self.block..(at + len) / self.block {
            self.touches[usize_of(n)].push(Touch { number, began: number, acked: None });
            data.extend(stamp(n, number, self.block));
        }
        (number, data)
    }

    fn ack(&mut self, at: u64, len: u64, number: u64) {
        let now = self.tick();
        for n in at / self.block..(at + len) / self.block {
            let touch = self.touches[usize_of(n)].iter_mut().find(|touch| touch.number == number);
            touch.expect("began").acked = Some(now);
        }
    }

    /// Compares blocks read by a read that began at `began`: each holds a write that no write acknowledged before the read
    /// began has surely overwritten.
    fn check(&self, at: u64, read: &[u8], began: u64, context: &str) {
        for (i, bytes) in read.chunks(usize_of(self.block)).enumerate() {
            let n = at / self.block + u64_of(i);
            let touches = &self.touches[usize_of(n)];
            let replaced = |touch: &Touch| {
                touches.iter().any(|later| {
                    later.acked.is_some_and(|at| at < began)
                        && touch.acked.is_some_and(|acked| acked < later.began)
                })
            };
            let number = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            if number == 0 && bytes.iter().all(|&byte| byte == 0) {
                let any = touches.iter().any(|touch| touch.acked.is_some_and(|at| at < began));
                assert!(!any, "{context}: block {n} lost its writes {touches:?}");
                continue;
            }
            assert_eq!(bytes, stamp(n, number, self.block), "{context}: block {n} is garbage");
            let touch = touches.iter().find(|touch| touch.number == number);
            let touch = touch.unwrap_or_else(|| panic!("{context}: block {n} holds unknown write {number}"));
            assert!(!replaced(touch), "{context}: block {n} holds stale write {number} of {touches:?}");
        }
    }
}

/// An extent of up to `longest` bytes somewhere in the group.
fn extent(executor: &Executor, capacity: u64, block: u64, longest: u64) -> (u64, u64) {
    let len = (executor.random_u64() % (longest / block) + 1) * block;
    let at = executor.random_u64() % ((capacity - len) / block + 1) * block;
    (at, len)
}

/// One client: writes and reads until `writes` are done; a refused write ends it if the group is offline.
async fn client(group: Group<SimEnv>, log: Log, executor: Executor, writes: u32, longest: u64) {
    let capacity = group.shared().geometry().capacity_bytes();
    let block = u64::from(group.shared().block_size().bytes());
    for n in 0..writes {
        let (at, len) = extent(&executor, capacity, block, longest);
        let (number, data) = log.borrow_mut().begin(at, len);
        let how = if n % 5 == 0 { Durability::Fua } else { Durability::Cached };
        match write_slice(&group, at, &data, how).await {
            Ok(()) => log.borrow_mut().ack(at, len, number),
            Err(kind) => {
                assert!(group.shared().is_offline(), "a write was refused: {kind:?}");
                return;
            }
        }
        let (at, len) = extent(&executor, capacity, block, longest);
        let began = log.borrow_mut().tick();
        match read_vec(&group, at, len).await {
            Ok(read) => log.borrow().check(at, &read, began, "while running"),
            Err(kind) => assert!(group.shared().is_offline(), "a read was refused: {kind:?}"),
        }
    }
}

/// Starts clients on all lanes; returns how many still run.
fn start_clients(world: &World, log: &Log, clients: u16, writes: u32, longest: u64) -> Rc<RefCell<u16>> {
    let running = Rc::new(RefCell::new(clients));
    for n in 0..clients {
        let (group, log, executor) = (world.lane(n % 4), Rc::clone(log), world.executor.clone());
        let running = Rc::clone(&running);
        world.executor.spawn(async move {
            client(group, log, executor, writes, longest).await;
            *running.borrow_mut() -= 1;
        });
    }
    running
}

async fn until_done(executor: &Executor, running: &RefCell<u16>) {
    while *running.borrow() > 0 {
        executor.sleep_until(executor.now_ns() + 100_000).await;
    }
}

/// Whether a block shares a stripe of a parity level with a write that was never acknowledged. When the group went beyond
/// its tolerance in the middle of it, parity may be half way: the write hole, which the journal closes (SAFETY P2).
fn is_in_write_hole(world: &World, log: &Log, block_number: u64) -> bool {
    let geometry = world.geometry();
    let blocks = geometry.stripe_data_bytes() / log.borrow().block;
    let first = usize_of(block_number / blocks * blocks);
    let stripe = log.borrow().touches.iter().skip(first).take(usize_of(blocks)).cloned().collect::<Vec<_>>();
    geometry.level().parities() > 0 && stripe.iter().flatten().any(|touch| touch.acked.is_none())
}

/// Reads everything and takes it as the model, checked against the history.
fn settle_model(world: &mut World, log: &Log, context: &str) {
    let capacity = world.geometry().capacity_bytes();
    let step = world.shared.max_request_bytes().min(1 << 20);
    let began = log.borrow_mut().tick();
    for at in (0..capacity).step_by(usize_of(step)) {
        let len = step.min(capacity - at);
        let read = world.read(at, len).unwrap_or_else(|kind| panic!("{context}: read at {at}: {kind:?}"));
        log.borrow().check(at, &read, began, context);
        world.model[usize_of(at)..usize_of(at + len)].copy_from_slice(&read);
    }
}

fn small(level: Level, members: u8) -> Shape {
    let (chunk_bytes, member_bytes) =
        if level == Level::Raid1 { (0, 65536 + 8192) } else { (2048, 12 * 2048) };
    Shape { level, members, chunk_bytes, member_bytes, block: BlockSize::B512 }
}

const LEVELS: [(Level, u8, usize); 7] = [
    (Level::Raid1, 2, 1),
    (Level::Raid1, 3, 2),
    (Level::Raid5, 3, 1),
    (Level::Raid5, 5, 1),
    (Level::Raid6, 4, 2),
    (Level::Raid6, 6, 2),
    (Level::Raid10, 4, 1),
];

#[test]
fn overlapping_writes_reach_all_members_in_one_order() {
    for (level, members, _) in LEVELS {
        for seed in 0..40 {
            let mut world = World::new(seed, small(level, members));
            let log = History::new(world.geometry().capacity_bytes(), 512);
            let running = start_clients(&world, &log, 6, 12, 12 * 512);
            let executor = world.executor.clone();
            world.executor.block_on(async move { until_done(&executor, &running).await });
            settle_model(&mut world, &log, &format!("{level} of {members}, seed {seed}"));
            world.check_media(&format!("{level} of {members}, seed {seed}"));
        }
    }
}

/// Members fail one after the other at random points, by the drive or by the operator, within tolerance.
#[test]
fn sl_02_members_that_fail_one_after_the_other_lose_nothing() {
    for (level, members, tolerated) in LEVELS {
        for seed in 0..40 {
            let context = format!("{level} of {members}, seed {seed}");
            let mut world = World::new(seed, small(level, members));
            let log = History::new(world.geometry().capacity_bytes(), 512);
            let running = start_clients(&world, &log, 5, 20, 12 * 512);
            let executor = world.executor.clone();
            let (drives, group) = (world.drives.clone(), world.group.clone());
            world.executor.block_on(async move {
                let first = executor.random_u64() % u64::from(members);
                for n in 0..u64_of(tolerated) {
                    let after_ns = executor.random_u64() % 600_000;
                    executor.sleep_until(executor.now_ns() + after_ns).await;
                    let slot = (first + n) % u64::from(members);
                    match executor.random_u64() % 4 {
                        0 => drives[usize_of(slot)].fail_with(Some(IoKind::Gone)),
                        1 => drives[usize_of(slot)].fail_with(Some(IoKind::TimedOut)),
                        2 => drives[usize_of(slot)]
                            .set_hook(|command| (command.op == sim::Op::Write).then_some(IoKind::Medium)),
                        _ => {
                            let slot = Slot(u8::try_from(slot).unwrap());
                            let epoch = group.shared().view().epoch;
                            group.fail(epoch, slot, IoKind::Gone).await.unwrap();
                        }
                    }
                }
                until_done(&executor, &running).await;
                group.flush().await.unwrap();
            });
            settle_model(&mut world, &log, &context);
            world.check_media(&context);
        }
    }
}

/// All members a level can lose go, then one more: nothing acknowledged is lost if the last one comes back as it was.
#[test]
fn sl_02_the_member_dropped_last_completes_the_group() {
    for (level, members, tolerated) in LEVELS {
        if level == Level::Raid10 {
            continue;
        }
        for seed in 0..30 {
            let context = format!("{level} of {members}, seed {seed}");
            let world = World::new(seed, small(level, members));
            let log = History::new(world.geometry().capacity_bytes(), 512);
            let running = start_clients(&world, &log, 4, 30, 8 * 512);
            let executor = world.executor.clone();
            let drives = world.drives.clone();
            let dropped: Vec<u8> = world.executor.block_on(async move {
                let first = executor.random_u64() % u64::from(members);
                let mut order = Vec::new();
                for n in 0..=u64_of(tolerated) {
                    executor.sleep_until(executor.now_ns() + 100_000).await;
                    let slot = (first + n) % u64::from(members);
                    drives[usize_of(slot)].fail_with(Some(IoKind::Gone));
                    order.push(u8::try_from(slot).unwrap());
                    executor.sleep_until(executor.now_ns() + 400_000).await;
                }
                until_done(&executor, &running).await;
                order
            });
            let view = world.shared.view();
            let last = dropped[tolerated];
            if !view.member(Slot(last)).is_missing() {
                // The load had ended before: nothing has touched the last one since.
                continue;
            }
            // Back as it was, by the rule of M5: its last-in-sync epoch is the newest of those missing.
            let newest = dropped.iter().map(|&slot| view.member(Slot(slot)).last_in_sync).max();
            assert_eq!(newest, Some(view.member(Slot(last)).last_in_sync), "{context}");
            let back = World::with(seed, small(level, members), |config| {
                let earlier = &dropped[..tolerated];
                for &slot in earlier.iter().filter(|&&slot| view.member(Slot(slot)).is_missing()) {
                    config.view.members[usize::from(slot)].state =
                        raid_core::view::MemberState::Missing { why: None };
                }
            });
            for (from, to) in world.drives.iter().zip(&back.drives) {
                to.medium().copy_from_slice(&from.medium());
            }
            let began = log.borrow_mut().tick();
            let holes = (0..back.geometry().capacity_bytes()).step_by(512);
            for at in holes.filter(|at| !is_in_write_hole(&back, &log, at / 512)) {
                let read = back.read(at, 512).unwrap();
                log.borrow().check(at, &read, began, &context);
            }
        }
    }
}

/// A slow rebuild with writes on both sides of its cursor; then every further tolerated loss is verified.
fn rebuild_under_load(level: Level, members: u8, seed: u64) {
    let context = format!("{level} of {members}, seed {seed}");
    let mut world = World::new(seed, small(level, members));
    world.set_latency(false);
    let log = History::new(world.geometry().capacity_bytes(), 512);
    world.set_latency(true);
    let slot = u8::try_from(seed % u64::from(members)).unwrap();
    world.fail(slot, IoKind::Gone).unwrap();
    world.replace(slot).unwrap();
    let running = start_clients(&world, &log, 3, 6, 8 * 512);
    let (group, executor) = (world.group.clone(), world.executor.clone());
    world.executor.block_on(async move {
        // One stripe a step: the cursor passes between the writes.
        let pace = Pace::default();
        pace.step_bytes_max.store(1, std::sync::atomic::Ordering::Relaxed);
        group.rebuild(Slot(slot), &pace).await.unwrap();
        until_done(&executor, &running).await;
        group.flush().await.unwrap();
    });
    assert!(world.shared.view().is_complete());
    settle_model(&mut world, &log, &context);
    world.check_media(&context);
    // Drop others: the rebuilt member is now needed.
    world.set_latency(false);
    for n in 1..members {
        let next = (slot + n) % members;
        let geometry = world.geometry();
        let view = world.shared.view();
        let survives = geometry.is_readable(|s| s.0 != next && view.member(s).is_in_sync());
        if survives {
            world.fail(next, IoKind::Gone).unwrap();
        }
    }
    world.check_contents(&context);
}

fn rebuilds_under_load(seeds: core::ops::Range<u64>) {
    for seed in seeds {
        let (level, members, _) = LEVELS[usize_of(seed % u64_of(LEVELS.len()))];
        rebuild_under_load(level, members, seed);
    }
}

// The 10,000 loops of the case, in two halves that run beside each other.

#[test]
fn sl_06_writes_across_the_rebuild_cursor() {
    rebuilds_under_load(0..5_000);
}

#[test]
fn sl_06_writes_across_the_rebuild_cursor_second_half() {
    rebuilds_under_load(5_000..10_000);
}

/// Chunks as in the field: long and short requests, 512 and 4096 blocks, members failing, rebuilds.
#[test]
fn real_chunks_by_seeded_sampling() {
    for (n, (level, members, _)) in
        LEVELS.into_iter().chain([(Level::Raid6, 8, 2), (Level::Raid0, 3, 0)]).enumerate()
    {
        for (seed, chunk) in [(0, 65536), (1, 65536), (2, 262_144)] {
            let block = if (n + seed) % 2 == 0 { BlockSize::B512 } else { BlockSize::B4096 };
            let context = format!("{level} of {members}, {chunk} chunk, {block:?}");
            let chunk_bytes = if level == Level::Raid1 { 0 } else { chunk };
            let member_bytes = 5 * u64::from(chunk) + 3 * 4096;
            let shape = Shape { level, members, chunk_bytes, member_bytes, block };
            let mut world = World::new(u64_of(seed), shape);
            let log = History::new(world.geometry().capacity_bytes(), u64::from(block.bytes()));
            let longest = (2 * world.geometry().stripe_data_bytes()).min(world.shared.max_request_bytes());
            let running = start_clients(&world, &log, 4, 12, longest);
            let short = start_clients(&world, &log, 4, 20, 16384);
            let slot = u8::try_from(n % usize::from(members)).unwrap();
            let (group, executor) = (world.group.clone(), world.executor.clone());
            let redundant = level.is_redundant();
            let drive = world.drives[usize::from(slot)].clone();
            world.executor.block_on(async move {
                executor.sleep_until(300_000).await;
                if redundant {
                    drive.fail_with(Some(IoKind::Gone));
                }
                until_done(&executor, &running).await;
                until_done(&executor, &short).await;
                group.flush().await.unwrap();
            });
            if redundant {
                assert!(world.shared.view().member(Slot(slot)).is_missing());
                world.replace(slot).unwrap();
                let running = start_clients(&world, &log, 3, 6, longest);
                let (group, executor) = (world.group.clone(), world.executor.clone());
                world.executor.block_on(async move {
                    group.rebuild(Slot(slot), &Pace::default()).await.unwrap();
                    until_done(&executor, &running).await;
                });
            }
            settle_model(&mut world, &log, &context);
            world.check_media(&context);
        }
    }
}
