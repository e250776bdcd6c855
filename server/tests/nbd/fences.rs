//! Disks of a real group behind a session, and the fence at the end of a session: what a dead connection had sent never
//! follows what came after it (SL-05).

use std::rc::Rc;
use std::sync::Arc;

use super::common::client::TestClient;
use super::common::{Gate, World};
use raid_core::engine::{Group, GroupConfig, Shared};
use raid_core::geometry::{Geometry, Level};
use raid_core::membership::GroupMeta;
use raid_core::ports::DriveKey;
use raid_core::units::{BlockSize, GroupOffset, LaneId, Uuid, usize_of};
use raid_core::view::{Epoch, Member, MemberLayout, MemberState, View};
use server::disk::Disk;
use server::nbd::wire::command;
use sim::{SimDrive, SimEnv};

use super::session::{MIB, pattern, random_requests, with_client, world, yield_now};

/// Where the disk of [`group_world`] starts in its group: neither at a chunk nor at a stripe.
const DISK_START: u64 = 300 * 512;
const DISK_BYTES: u64 = 9 * MIB + 512;

/// A disk of a real group over simulated drives.
fn group_world(seed: u64, level: Level, members: u8) -> (World<Disk<SimEnv>>, Arc<Shared>) {
    const MEMBER_BYTES: u64 = 12 * MIB;
    let chunk = if level == Level::Raid1 { 0 } else { 16 * 1024 };
    let epoch = Epoch { counter: 1, id: Uuid::from_random(1, 1) };
    let member = |slot: u8| Member {
        state: MemberState::InSync,
        drive: Some(DriveKey(u64::from(slot))),
        device_uuid: Uuid::from_random(u64::from(slot), 7),
        dev_number: u16::from(slot),
        last_in_sync: 1,
        layout: MemberLayout::bare(MEMBER_BYTES),
        successor: None,
    };
    let shared = Shared::new(GroupConfig {
        name: "g".into(),
        geometry: Geometry::new(level, members, chunk, MEMBER_BYTES).unwrap(),
        block_size: BlockSize::B512,
        view: View { version: 1, epoch, members: (0..members).map(member).collect() },
        meta: Arc::new(GroupMeta::Volatile),
        intents: None,
        unsynced: Vec::new(),
        dirty: Vec::new(),
        bad_blocks: Vec::new(),
        rebuilding: Vec::new(),
        lanes: 2,
    });
    let world = World::new(seed, |env| {
        for key in 0..u64::from(members) {
            env.add_drive(DriveKey(key), SimDrive::new(env.executor(), MEMBER_BYTES, BlockSize::B512));
        }
        group_disk(env, &shared)
    });
    (world, shared)
}

fn group_disk(env: SimEnv, shared: &Arc<Shared>) -> Disk<SimEnv> {
    let group = Group::new(env, Arc::clone(shared));
    Disk::new(group, GroupOffset(DISK_START), DISK_BYTES, false).unwrap()
}

#[test]
fn random_requests_to_a_disk_of_a_group_match_a_plain_model() {
    for (seed, (level, members)) in (0..).zip([
        (Level::Raid0, 3),
        (Level::Raid1, 2),
        (Level::Raid5, 4),
        (Level::Raid6, 5),
        (Level::Raid10, 4),
    ]) {
        let (world, _) = group_world(seed, level, members);
        with_client(&world, 1 << 20, seed % 2 == 0, move |client| {
            random_requests(client, seed, DISK_BYTES, 60)
        });
    }
}

#[test]
fn a_disk_lies_in_whole_blocks_inside_its_group() {
    let (world, shared) = group_world(1, Level::Raid1, 2);
    let group = Group::new(world.env, Arc::clone(&shared));
    let capacity = shared.geometry().capacity_bytes();
    for (start, len, is_good) in [
        (0, capacity, true),
        (capacity, 0, true),
        (512, capacity - 512, true),
        (512, capacity, false),
        (0, 511, false),
        (7, 512, false),
        (u64::MAX - 511, 1024, false),
    ] {
        let disk = Disk::new(group.clone(), GroupOffset(start), len, false);
        assert_eq!(disk.is_some(), is_good, "{start} {len}");
    }
}

/// SL-05 over the real engine: the connection dies with writes in flight and more of them unread; its client comes back
/// on another lane and writes the same blocks newer.
#[test]
fn sl_05_newer_data_stays_over_a_real_group_and_two_lanes() {
    for seed in 0..60 {
        let (mut world, shared) = group_world(seed, [Level::Raid1, Level::Raid5][usize_of(seed % 2)], 3);
        world.limits.requests = 1 + u32::try_from(seed % 5).unwrap();
        let other_env = world.env.another_lane(LaneId(1));
        let other = world.on_lane(other_env.clone(), group_disk(other_env, &shared));
        let (first, first_ended) = world.connect(1 << 20);
        let (second, second_ended) = other.connect(1 << 20);
        let executor = world.executor.clone();
        world.executor.block_on(async move {
            let mut old = TestClient::connect(first, seed % 3 == 0).await.unwrap();
            for i in 0..12 {
                let bytes = vec![i; 48 * 1024];
                old.send(command::WRITE, 0, 4096, 48 * 1024, &bytes).await.unwrap();
            }
            executor.sleep_until(executor.now_ns() + executor.random_u64() % 300_000).await;
            old.end.close();
            let mut new = TestClient::connect(second, true).await.unwrap();
            let newest = pattern(seed, 64 * 1024);
            assert_eq!(new.write(0, &newest, 0).await.unwrap(), 0);
            assert_eq!(new.call(command::FLUSH, 0, 0, 0, &[]).await.unwrap().error, 0);
            first_ended.passed().await;
            assert!(new.read(0, 64 * 1024).await.unwrap().unwrap() == newest, "seed {seed}");
            new.send(command::DISC, 0, 0, 0, &[]).await.unwrap();
            second_ended.passed().await;
        });
    }
}

/// SL-05: a write hangs, its client dies and comes back, writes the same block newer and flushes; then the hung write is
/// let go. Requests that the dead connection had sent and that were not started by then must never run.
#[test]
fn sl_05_newer_data_stays_when_a_dead_sessions_write_ends() {
    for seed in 0..60 {
        let mut world = world(seed, 16 * MIB);
        // Few places: most of what the first client sends is still unread when it dies.
        world.limits.requests = 1 + u32::try_from(seed % 4).unwrap();
        let disk = world.directory.disk.clone();
        disk.0.changing.shut();
        let (first, first_ended) = world.connect(1 << 20);
        let (second, second_ended) = world.connect(1 << 20);
        let result = Rc::new(std::cell::Cell::new(false));
        let (done, held) = (Rc::clone(&result), disk.clone());
        let answered = Gate::default();
        let newer_answered = answered.clone();
        world.executor.spawn(async move {
            // Connected, but nothing chosen yet.
            let mut old = TestClient::connect(first, seed % 2 == 0).await.unwrap();
            for i in 0..8 {
                let number = if i % 3 == 2 { command::WRITE_ZEROES } else { command::WRITE };
                let payload = if i % 3 == 2 { Vec::new() } else { vec![0x0D; 4096] };
                old.send(number, 0, 0, 4096, &payload).await.unwrap();
            }
            // Let some of it get started.
            while held.0.changes.borrow().is_empty() {
                yield_now().await;
            }
            old.end.close();
            let mut new = TestClient::connect(second, true).await.unwrap();
            new.send(command::WRITE, 0, 0, 4096, &[0x4E; 4096]).await.unwrap();
            new.send(command::FLUSH, 0, 0, 0, &[]).await.unwrap();
            for _ in 0..seed {
                yield_now().await;
            }
            held.0.changing.open();
            for _ in 0..2 {
                assert_eq!(new.reply(0, 0).await.unwrap().error, 0);
            }
            assert_eq!(new.call(command::FLUSH, 0, 0, 0, &[]).await.unwrap().error, 0);
            newer_answered.open();
            first_ended.passed().await;
            assert_eq!(new.read(0, 4096).await.unwrap().unwrap(), vec![0x4E; 4096], "seed {seed}");
            new.send(command::DISC, 0, 0, 0, &[]).await.unwrap();
            second_ended.passed().await;
            done.set(true);
        });
        world.executor.block_on(async move { answered.passed().await });
        // The rest of the first task: the dead session has ended too.
        let finished = Rc::clone(&result);
        world.executor.block_on(async move {
            while !finished.get() {
                yield_now().await;
            }
        });
        assert_eq!(disk.0.durable.borrow().vec(0, 4096), vec![0x4E; 4096], "seed {seed}");
    }
}

/// SL-05, where the stripe locks alone cannot help: the dead connection's write waits for memory on its lane, before it
/// has any lock, while the newer one comes in on another lane.
#[test]
fn sl_05_a_write_stalled_before_its_lock_never_follows_a_newer_one() {
    for seed in 0..40 {
        let is_started = seed % 2 == 0;
        let world = world(seed, 16 * MIB);
        let disk = world.directory.disk.clone();
        let other = world.on_lane(world.env.another_lane(LaneId(1)), disk.another_lane());
        let stalled = if is_started { disk.1.entering.clone() } else { disk.1.leasing.clone() };
        stalled.shut();
        let (first, first_ended) = world.connect(1 << 20);
        let (second, second_ended) = other.connect(1 << 20);
        world.executor.block_on(async move {
            let mut old = TestClient::connect(first, true).await.unwrap();
            for _ in 0..3 {
                old.send(command::WRITE, 0, 0, 4096, &[0x0D; 4096]).await.unwrap();
            }
            for _ in 0..200 {
                yield_now().await;
            }
            assert_eq!(!disk.0.changes.borrow().is_empty(), is_started);
            old.end.close();
            let mut new = TestClient::connect(second, true).await.unwrap();
            new.send(command::WRITE, 0, 0, 4096, &[0x4E; 4096]).await.unwrap();
            new.send(command::FLUSH, 0, 0, 0, &[]).await.unwrap();
            for _ in 0..200 {
                yield_now().await;
            }
            stalled.open();
            for _ in 0..2 {
                assert_eq!(new.reply(0, 0).await.unwrap().error, 0);
            }
            first_ended.passed().await;
            assert_eq!(new.read(0, 4096).await.unwrap().unwrap(), vec![0x4E; 4096], "seed {seed}");
            if !is_started {
                assert_eq!(disk.0.changes.borrow().len(), 1, "what had not started was dropped");
            }
            new.send(command::DISC, 0, 0, 0, &[]).await.unwrap();
            second_ended.passed().await;
        });
    }
}
