//! What a group costs when it is not whole: a rebuild, and reads of what is lost. And what a second lane brings.

use std::rc::Rc;
use std::sync::{Arc, Barrier};

use benches::clock::thread_cpu_ns;
use benches::scratch::{Condition, ScratchGroup};
use benches::stats::f64_of;
use benches::world::{Random, World};
use nvme_backend::{Lane, LaneConfig, OpenDrive, block_on_lane};
use raid_core::engine::Pace;
use raid_core::geometry::{Geometry, Level, Role};
use raid_core::lease::{Lease, Segs};
use raid_core::ports::{Drive, Durability, Pool, one_seg};
use raid_core::units::{BlockSize, DriveOffset, GroupOffset, LaneId, Slot, Stripe, u32_of, u64_of, usize_of};

use super::{BLOCK, CHUNK, cost_of_reads, fill_group, fill_of, parity_matches, raw_cost, reads_back};

/// The member that is lost.
const LOST: u8 = 3;
const DATA: u64 = 8;

fn drives(mib: u64) -> Vec<OpenDrive> {
    (0..10).map(|_| OpenDrive::ram(mib << 20, BlockSize::B4096)).collect()
}

fn raid6(lane: &Lane, drives: &[OpenDrive], condition: &Condition) -> World {
    World::in_condition(lane, Level::Raid6, CHUNK, drives, condition)
}

fn without_one() -> Condition {
    Condition { lost: vec![LOST], rebuilding: None }
}

/// CPU time of what a rebuild cannot do without: of each stripe k chunks read and one written, over the same drives.
async fn raw_rebuild(world: &World) -> u64 {
    let seg = world.filled(CHUNK, 9).await.share();
    let mut leases = world.lane.arena().lease(Pool::Request, &[CHUNK]).await;
    let start_ns = thread_cpu_ns();
    for stripe in 0..world.geometry.stripes() {
        let at = DriveOffset(stripe * u64::from(CHUNK));
        for drive in world.drives.iter().skip(1).take(usize_of(DATA)) {
            leases = drive.read(at, leases).await.buf.expect("the drive gives its buffer back");
        }
        world.drives[0].write(at, one_seg(seg.clone()), Durability::Cached).await.expect("the drive writes");
    }
    thread_cpu_ns() - start_ns
}

/// A rebuild without foreground: raw cost over CPU time spent. The raw writes go to drives of their own.
pub(super) async fn rebuild(lane: Lane, rounds: usize) -> (Vec<f64>, bool) {
    let mut drives_of_group = drives(32);
    fill_group(&raid6(&lane, &drives_of_group, &Condition::default())).await;
    let others = drives(32);
    let raw = raid6(&lane, &others, &Condition::default());
    fill_group(&raw).await;
    let mut samples = Vec::new();
    let mut verified = true;
    for round in 0..=rounds {
        let raw_ns = raw_rebuild(&raw).await;
        // A blank member: what a rebuild leaves undone stays wrong.
        drives_of_group[usize::from(LOST)] = OpenDrive::ram(32 << 20, BlockSize::B4096);
        let target = &drives_of_group[usize::from(LOST)].on_lane(&lane);
        // Its memory is there before time is measured, as that of the raw drives is.
        let zeroes = raw.filled(CHUNK, 0).await.share();
        for stripe in 0..raw.geometry.stripes() {
            let at = DriveOffset(stripe * u64::from(CHUNK));
            target.write(at, one_seg(zeroes.clone()), Durability::Cached).await.expect("the drive writes");
        }
        let condition = Condition { lost: Vec::new(), rebuilding: Some(LOST) };
        let world = raid6(&lane, &drives_of_group, &condition);
        let start_ns = thread_cpu_ns();
        let rebuilt = world.group.rebuild(Slot(LOST), &Pace::default()).await;
        let spent_ns = thread_cpu_ns() - start_ns;
        verified &= rebuilt.is_ok();
        if round > 0 {
            samples.push(f64_of(raw_ns) / f64_of(spent_ns));
        }
    }
    let world = raid6(&lane, &drives_of_group, &Condition::default());
    verified &= parity_matches(&world).await && reads_back(&world, fill_of).await;
    (samples, verified)
}

/// Offsets in the group of every block that lies on the lost member.
fn lost_blocks(geometry: &Geometry) -> Rc<[u64]> {
    let stripe_bytes = geometry.stripe_data_bytes();
    let chunk = u64::from(CHUNK);
    let mut found = Vec::new();
    for stripe in 0..geometry.stripes() {
        if let Role::Data(index) = geometry.role(Stripe(stripe), Slot(LOST)) {
            let start = stripe * stripe_bytes + u64::from(index.0) * chunk;
            found.extend((start..start + chunk).step_by(usize_of(u64::from(BLOCK))));
        }
    }
    found.into()
}

/// A 4K read of what is lost: k raw reads over CPU time spent.
pub(super) async fn lost_reads(lane: Lane, rounds: usize) -> (Vec<f64>, bool) {
    let drives = drives(16);
    fill_group(&raid6(&lane, &drives, &Condition::default())).await;
    let world = raid6(&lane, &drives, &without_one());
    let places = lost_blocks(&world.geometry);
    let mut samples = Vec::new();
    for round in 0..=rounds {
        let raw_ns = raw_cost(&world, 1 << 16, false).await;
        let (group, places) = (world.group.clone(), Rc::clone(&places));
        let spent_ns = cost_of_reads(&world.lane, 1 << 14, thread_cpu_ns, move |word, leases| {
            let group = group.clone();
            let at = places[usize_of(((word >> 32) * u64_of(places.len())) >> 32)];
            async move {
                let done = group.read(GroupOffset(at), leases).await;
                done.result.expect("the group reads what is lost");
                done.buf.expect("the group gives its buffer back")
            }
        })
        .await;
        if round > 0 {
            samples.push(f64_of(DATA) * raw_ns / spent_ns);
        }
    }
    (samples, reads_back(&world, fill_of).await)
}

/// CPU time of reading the whole group in order, 1 MiB at a time.
async fn sequential(world: &World) -> u64 {
    const MIB: u64 = 1 << 20;
    let start_ns = thread_cpu_ns();
    for at in (0..world.geometry.capacity_bytes() / MIB).map(|i| GroupOffset(i * MIB)) {
        let sizes: Vec<u32> = world.geometry.pieces(at, MIB).collect();
        let leases = world.lane.arena().lease(Pool::Request, &sizes).await;
        let done = world.group.read(at, leases).await;
        done.result.expect("the group reads");
        drop(core::hint::black_box(done.buf));
    }
    thread_cpu_ns() - start_ns
}

/// Sequential 1 MiB reads: CPU time of the whole group over that of the one without a member.
pub(super) async fn degraded_sequential(lane: Lane, rounds: usize) -> (Vec<f64>, bool) {
    let drives = drives(16);
    let whole = raid6(&lane, &drives, &Condition::default());
    fill_group(&whole).await;
    let degraded = raid6(&lane, &drives, &without_one());
    let mut samples = Vec::new();
    for round in 0..=rounds {
        let whole_ns = sequential(&whole).await;
        let degraded_ns = sequential(&degraded).await;
        if round > 0 {
            samples.push(f64_of(whole_ns) / f64_of(degraded_ns));
        }
    }
    (samples, reads_back(&degraded, fill_of).await)
}

/// What lanes do on stripes of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    FullStripe,
    Update,
}

/// One lane's part: its CPU time for `count` operations on the stripes whose number is `part` modulo `parts`.
async fn part(
    group: Arc<ScratchGroup>,
    lane: Lane,
    part: u64,
    work: Work,
    count: u64,
    start: &Barrier,
) -> u64 {
    const PARTS: u64 = 2;
    let handle = group.on_lane(&lane);
    let geometry = *group.geometry();
    let stripe_bytes = geometry.stripe_data_bytes();
    let full: Segs = match work {
        Work::FullStripe => {
            let sizes: Vec<u32> = geometry.pieces(GroupOffset(0), stripe_bytes).collect();
            let mut leases = lane.arena().lease(Pool::Request, &sizes).await;
            leases.iter_mut().for_each(|lease| lease.bytes_mut().fill(7));
            leases.into_iter().map(Lease::share).collect()
        }
        _ => {
            let mut lease = lane.arena().lease(Pool::Request, &[BLOCK]).await.pop().expect("one lease");
            lease.bytes_mut().fill(7);
            one_seg(lease.share())
        }
    };
    let mut leases = lane.arena().lease(Pool::Request, &[BLOCK]).await;
    let mut random = Random::new(part + 1);
    start.wait();
    let start_ns = thread_cpu_ns();
    for _ in 0..count {
        let stripe = random.below(geometry.stripes() / PARTS) * PARTS + part;
        let block = random.below(stripe_bytes / u64::from(BLOCK)) * u64::from(BLOCK);
        let at = stripe * stripe_bytes;
        match work {
            Work::Read => {
                let done = handle.read(GroupOffset(at + block), leases).await;
                done.result.expect("the group reads");
                leases = done.buf.expect("the group gives its buffer back");
            }
            Work::FullStripe => {
                handle
                    .write(GroupOffset(at), full.clone(), Durability::Cached)
                    .await
                    .expect("the group writes");
            }
            Work::Update => {
                let at = GroupOffset(at + block);
                handle.write(at, full.clone(), Durability::Cached).await.expect("the group writes");
            }
        }
    }
    thread_cpu_ns() - start_ns
}

/// CPU time of the slowest of `lanes` lanes that work at the same time.
fn at_once(drives: &[OpenDrive], lanes: u16, work: Work, count: u64) -> u64 {
    let group =
        ScratchGroup::new("lanes", Level::Raid6, CHUNK, drives.to_vec(), &Condition::default(), lanes);
    let group = Arc::new(group.expect("a possible shape"));
    let start = Barrier::new(usize::from(lanes));
    std::thread::scope(|scope| {
        let lane_of = |id: u16| {
            let (group, start) = (Arc::clone(&group), &start);
            scope.spawn(move || {
                let config =
                    LaneConfig { id: LaneId(id), cpu: Some(usize::from(id)), ..LaneConfig::default() };
                block_on_lane(config, |lane| part(group, lane, u64::from(id), work, count, start))
            })
        };
        let threads: Vec<_> = (0..lanes).map(lane_of).collect();
        threads.into_iter().map(|thread| thread.join().expect("the lane ends")).max().unwrap_or(1)
    })
}

/// How much more two lanes do than one, on stripes of their own: 2 t1 / t2, where t is the CPU time of the slowest lane for
/// the same number of operations each. CPU time, so that whoever else uses the machine does not count; nobody waits here,
/// for the stripes are apart and the drives are memory.
pub(super) fn two_lanes(rounds: usize, work: Work) -> (Vec<f64>, bool) {
    let drives = drives(16);
    let count = match work {
        Work::Read => 400_000,
        Work::FullStripe => 1_500,
        Work::Update => 20_000,
    };
    let mut samples = Vec::new();
    for round in 0..=rounds {
        let one_ns = at_once(&drives, 1, work, count);
        let two_ns = at_once(&drives, 2, work, count);
        if round > 0 {
            samples.push(2.0 * f64_of(one_ns) / f64_of(two_ns));
        }
    }
    let verified = block_on_lane(LaneConfig::default(), |lane| async move {
        let world = raid6(&lane, &drives, &Condition::default());
        let is_right = |byte: u8| byte == 0 || (byte == 7 && work != Work::Read);
        parity_matches(&world).await && holds_only(&world, is_right).await
    });
    (samples, verified)
}

async fn holds_only(world: &World, is_right: impl Fn(u8) -> bool) -> bool {
    for block in 0..world.geometry.capacity_bytes() / u64::from(BLOCK) {
        let leases = world.lane.arena().lease(Pool::Request, &[u32_of(u64::from(BLOCK))]).await;
        let done = world.group.read(GroupOffset(block * u64::from(BLOCK)), leases).await;
        let good = |leases: &raid_core::lease::Leases| {
            let bytes = leases[0].bytes();
            is_right(bytes[0]) && bytes.iter().all(|byte| *byte == bytes[0])
        };
        if done.result.is_err() || !done.buf.as_ref().is_some_and(good) {
            eprintln!("block {block} holds what nobody wrote");
            return false;
        }
    }
    true
}
