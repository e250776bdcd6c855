//! The engine on one lane: what a group costs above the drives it is made of. RAM and null drives are in this process,
//! so that only the engine is measured; tmpfs files go through the ring, judged by process CPU time.
//!
//! Everything that is written is read back and its parity checked, outside the measured time.

mod life;
mod meters;

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use benches::clock::{process_cpu_ns, thread_cpu_ns};
use benches::floors::{Floors, show};
use benches::record::{Case, Record};
use benches::stats::{SAMPLES_MIN, f64_of};
use benches::world::{Random, World, all};
use clap::Parser;
use nvme_backend::{Lane, LaneConfig, LaneDrive, OpenDrive, OpenOptions, block_on_lane};
use raid_core::geometry::Level;
use raid_core::lease::{Leases, Seg, Segs};
use raid_core::parity::{Column, CpuParity, ParityJob, ParityOp, Verdict, gf, kernel};
use raid_core::ports::{Drive, Durability, Pool, one_seg};
use raid_core::units::{BlockSize, DriveOffset, GroupOffset, Stripe, u32_of, u64_of, usize_of};

/// Measures the RAID engine.
#[derive(Parser)]
struct Args {
    /// Only the cases whose id contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Samples per case.
    #[arg(long, default_value_t = 9)]
    samples: usize,
    /// A folder on tmpfs for the file drives.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Where to write the record.
    #[arg(long)]
    out: Option<PathBuf>,
}

const BLOCK: u32 = 4096;
const CHUNK: u32 = 64 * 1024;
/// Requests in flight.
const DEPTH: usize = 64;

/// The bytes of a lease that were read are the fill of a block, or something is wrong.
fn fill_of(block: u64) -> u8 {
    // 0 is left to what was never written.
    u8::try_from(block % 251).expect("below 251") + 1
}

/// CPU nanoseconds per operation of `reads` 4K reads of `read`, [`DEPTH`] at a time.
async fn cost_of_reads<R, F>(lane: &Lane, reads: u64, clock: fn() -> u64, read: R) -> f64
where
    R: Fn(u64, Leases) -> F + Clone + 'static,
    F: Future<Output = Leases> + 'static,
{
    let each = reads / u64_of(DEPTH);
    let start_ns = clock();
    all(lane, DEPTH, |task| {
        let (lane, read) = (lane.clone(), read.clone());
        async move {
            let mut random = Random::new(u64_of(task) + 1);
            let mut leases = lane.arena().lease(Pool::Request, &[BLOCK]).await;
            for _ in 0..each {
                leases = read(random.word(), leases).await;
            }
        }
    })
    .await;
    f64_of(clock() - start_ns) / f64_of(each * u64_of(DEPTH))
}

/// A block at random: the low half of the word picks the drive, the high half the place.
fn raw_place(word: u64, drives: usize, blocks: u64) -> (usize, DriveOffset) {
    let (place, drive) = (word >> 32, word & 0xffff_ffff);
    let drive = usize_of((drive * u64_of(drives)) >> 32);
    (drive, DriveOffset(((place * blocks) >> 32) * u64::from(BLOCK)))
}

fn group_place(word: u64, blocks: u64) -> GroupOffset {
    GroupOffset((((word >> 32) * blocks) >> 32) * u64::from(BLOCK))
}

/// Parts of a sample: the bare drives and the group take turns this often, so that a drift of the machine's speed hits
/// both alike.
const TURNS: u64 = 16;

/// Engine cost of a 4K read above the bare drive call, nanoseconds per operation, one sample per round.
async fn read_overhead(world: &World, rounds: usize, reads: u64, clock: fn() -> u64) -> Vec<f64> {
    let mut samples = Vec::new();
    // The first round warms up.
    for round in 0..=rounds {
        let mut overhead = 0.0;
        for _ in 0..TURNS {
            let raw = raw_reads(world, reads / TURNS, clock).await;
            overhead += (group_reads(world, reads / TURNS, clock).await - raw) / f64_of(TURNS);
        }
        if round > 0 {
            samples.push(overhead);
        }
    }
    samples
}

async fn raw_reads(world: &World, reads: u64, clock: fn() -> u64) -> f64 {
    let blocks = world.geometry.member_bytes() / u64::from(BLOCK);
    let drives: Rc<[LaneDrive]> = world.drives.clone().into();
    cost_of_reads(&world.lane, reads, clock, move |word, leases| {
        let (drive, at) = raw_place(word, drives.len(), blocks);
        let reading = drives[drive].read(at, leases);
        async move {
            let done = reading.await;
            done.result.expect("the drive reads");
            done.buf.expect("the drive gives its buffer back")
        }
    })
    .await
}

async fn group_reads(world: &World, reads: u64, clock: fn() -> u64) -> f64 {
    let blocks = world.geometry.capacity_bytes() / u64::from(BLOCK);
    let group = world.group.clone();
    cost_of_reads(&world.lane, reads, clock, move |word, leases| {
        let group = group.clone();
        async move {
            let done = group.read(group_place(word, blocks), leases).await;
            done.result.expect("the group reads");
            done.buf.expect("the group gives its buffer back")
        }
    })
    .await
}

/// Writes every block of the group once, each with its own fill, in whole stripes.
async fn fill_group(world: &World) {
    let stripe_bytes = world.geometry.stripe_data_bytes();
    for stripe in 0..world.geometry.stripes() {
        let at = GroupOffset(stripe * stripe_bytes);
        let sizes: Vec<u32> = world.geometry.pieces(at, stripe_bytes).collect();
        let mut leases = world.lane.arena().lease(Pool::Request, &sizes).await;
        let mut block = at.0 / u64::from(BLOCK);
        for lease in &mut leases {
            for bytes in lease.bytes_mut().chunks_mut(usize_of(u64::from(BLOCK))) {
                bytes.fill(fill_of(block));
                block += 1;
            }
        }
        let segs: Segs = leases.into_iter().map(raid_core::lease::Lease::share).collect();
        world.group.write(at, segs, Durability::Cached).await.expect("the group writes");
    }
}

/// Whether every block of the group reads as `want` says.
async fn reads_back(world: &World, want: impl Fn(u64) -> u8) -> bool {
    let blocks = world.geometry.capacity_bytes() / u64::from(BLOCK);
    for block in 0..blocks {
        let leases = world.lane.arena().lease(Pool::Request, &[BLOCK]).await;
        let done = world.group.read(GroupOffset(block * u64::from(BLOCK)), leases).await;
        let is_right = done.result.is_ok()
            && done.buf.is_some_and(|leases| leases[0].bytes().iter().all(|&byte| byte == want(block)));
        if !is_right {
            eprintln!("block {block} does not read back");
            return false;
        }
    }
    true
}

/// Whether the parity of every stripe matches its data on the drives themselves.
async fn parity_matches(world: &World) -> bool {
    let geometry = world.geometry;
    let engine = CpuParity::new();
    for stripe in (0..geometry.stripes()).map(Stripe) {
        let column = async |slot: raid_core::units::Slot| {
            let leases = world.lane.arena().lease(Pool::Scratch, &[geometry.chunk_bytes()]).await;
            let at = DriveOffset(geometry.member_offset(stripe, 0));
            let done = world.drives[slot.index()].read(at, leases).await;
            done.result.expect("the drive reads");
            let lease = done.buf.and_then(|mut leases| leases.pop()).expect("its buffer");
            Column::In(lease.share())
        };
        let mut data = Vec::new();
        for index in 0..geometry.data_columns() {
            data.push(column(geometry.data_slot(stripe, raid_core::units::DataIndex(index))).await);
        }
        let slots = geometry.parity_slots(stripe);
        let mut parity = [Column::Absent, Column::Absent];
        for (parity, slot) in parity.iter_mut().zip([slots.p, slots.q]) {
            if let Some(slot) = slot {
                *parity = column(slot).await;
            }
        }
        let [p, q] = parity;
        let mut job = ParityJob { op: ParityOp::Verify, len: geometry.chunk_bytes(), data, p, q };
        if engine.run_in_place(&mut job) != Ok(Verdict::Clean) {
            eprintln!("the parity of stripe {stripe} does not match");
            return false;
        }
    }
    true
}

async fn null_reads(lane: Lane, rounds: usize) -> (Vec<f64>, bool) {
    let drives: Vec<OpenDrive> = (0..10).map(|_| OpenDrive::null(1 << 30, BlockSize::B4096)).collect();
    let world = World::new(&lane, Level::Raid6, CHUNK, &drives);
    // What a null drive gives cannot be checked; the same code over RAM drives can.
    let small: Vec<OpenDrive> = (0..10).map(|_| OpenDrive::ram(1 << 20, BlockSize::B4096)).collect();
    let twin = World::new(&lane, Level::Raid6, CHUNK, &small);
    fill_group(&twin).await;
    let verified = reads_back(&twin, fill_of).await && parity_matches(&twin).await;
    (read_overhead(&world, rounds, 1 << 19, thread_cpu_ns).await, verified)
}

async fn tmpfs_reads(lane: Lane, rounds: usize, dir: PathBuf) -> (Vec<f64>, bool) {
    let mut drives = Vec::new();
    for i in 0..6 {
        let path = dir.join(format!("drive-{i}.img"));
        let file = std::fs::File::create(&path).expect("the folder can be written");
        file.set_len(64 << 20).expect("tmpfs has room");
        let options = OpenOptions { block_size: Some(BlockSize::B4096), ..OpenOptions::default() };
        drives.push(OpenDrive::open(&path, options).expect("a fresh file opens"));
    }
    let world = World::new(&lane, Level::Raid6, CHUNK, &drives);
    fill_group(&world).await;
    let verified = reads_back(&world, fill_of).await && parity_matches(&world).await;
    (read_overhead(&world, rounds, 1 << 16, process_cpu_ns).await, verified)
}

async fn full_stripes(lane: Lane, rounds: usize) -> (Vec<f64>, bool) {
    let drives: Vec<OpenDrive> = (0..10).map(|_| OpenDrive::ram(16 << 20, BlockSize::B4096)).collect();
    let world = World::new(&lane, Level::Raid6, CHUNK, &drives);
    fill_group(&world).await;
    let stripes = world.geometry.stripes();
    let stripe_bytes = world.geometry.stripe_data_bytes();
    let mut columns = Vec::new();
    for fill in 0..10 {
        columns.push(world.filled(CHUNK, fill * 3 + 5).await.share());
    }
    let data: Segs = columns[..8].iter().cloned().collect();
    let mut samples = Vec::new();
    for round in 0..=rounds {
        let start_ns = thread_cpu_ns();
        for stripe in 0..stripes {
            for (drive, seg) in world.drives.iter().zip(&columns) {
                let at = DriveOffset(stripe * u64::from(CHUNK));
                drive.write(at, one_seg(seg.clone()), Durability::Cached).await.expect("the drive writes");
            }
        }
        let raw_ns = thread_cpu_ns() - start_ns;
        let start_ns = thread_cpu_ns();
        for stripe in 0..stripes {
            let at = GroupOffset(stripe * stripe_bytes);
            world.group.write(at, data.clone(), Durability::Cached).await.expect("the group writes");
        }
        let engine_ns = thread_cpu_ns() - start_ns;
        if round > 0 {
            // Both moved the same bytes to the same drives: data x (k + m) / k.
            samples.push(f64_of(raw_ns) / f64_of(engine_ns));
        }
    }
    let chunk_blocks = u64::from(CHUNK / BLOCK);
    let want = |block: u64| u8::try_from(block / chunk_blocks % 8).expect("below 8") * 3 + 5;
    (samples, reads_back(&world, want).await && parity_matches(&world).await)
}

/// CPU nanoseconds per raw 4K operation at random places of the drives.
async fn raw_cost(world: &World, count: u64, is_write: bool) -> f64 {
    let seg = world.filled(BLOCK, 0).await.share();
    let mut leases = world.lane.arena().lease(Pool::Request, &[BLOCK]).await;
    let blocks = world.geometry.member_bytes() / u64::from(BLOCK);
    let mut random = Random::new(77);
    let start_ns = thread_cpu_ns();
    for _ in 0..count {
        let (drive, at) = raw_place(random.word(), world.drives.len(), blocks);
        let drive = &world.drives[drive];
        if is_write {
            drive.write(at, one_seg(seg.clone()), Durability::Cached).await.expect("the drive writes");
        } else {
            leases = drive.read(at, leases).await.buf.expect("the drive gives its buffer back");
        }
    }
    f64_of(thread_cpu_ns() - start_ns) / f64_of(count)
}

/// CPU nanoseconds of one 4K parity update.
fn delta_cost(with_q: bool) -> f64 {
    let kernel = kernel::available().pop().expect("there are always kernels");
    let (old, new) = ([1; 4096], [2; 4096]);
    let (mut p, mut q) = ([3; 4096], [4; 4096]);
    let count = 20_000;
    let start_ns = thread_cpu_ns();
    for _ in 0..count {
        let q = with_q.then_some(&mut q[..]);
        kernel.delta(gf::power(3), core::hint::black_box(&old), &new, Some(&mut p), q);
    }
    f64_of(thread_cpu_ns() - start_ns) / f64::from(count)
}

/// CPU nanoseconds per random 4K write through the group. Task i writes blocks i, i + [`DEPTH`], ... only, so that what
/// each block holds in the end is known.
async fn write_cost(
    world: &World,
    segs: &Rc<[Seg]>,
    round: usize,
    written: &Rc<[std::cell::Cell<u8>]>,
) -> f64 {
    const EACH: u64 = 512;
    let start_ns = thread_cpu_ns();
    all(&world.lane, DEPTH, |task| {
        let (group, segs, written) = (world.group.clone(), Rc::clone(segs), Rc::clone(written));
        async move {
            let mut random = Random::new(u64_of(round * DEPTH + task) + 9);
            let rows = u64_of(written.len() / DEPTH);
            for _ in 0..EACH {
                let block = random.below(rows) * u64_of(DEPTH) + u64_of(task);
                let seg = &segs[usize_of(random.below(u64_of(segs.len())))];
                let at = GroupOffset(block * u64::from(BLOCK));
                group.write(at, one_seg(seg.clone()), Durability::Cached).await.expect("the group writes");
                written[usize_of(block)].set(seg.bytes()[0]);
            }
        }
    })
    .await;
    f64_of(thread_cpu_ns() - start_ns) / f64_of(EACH * u64_of(DEPTH))
}

async fn random_writes(lane: Lane, rounds: usize, level: Level, members: usize) -> (Vec<f64>, bool) {
    let drives: Vec<OpenDrive> = (0..members).map(|_| OpenDrive::ram(32 << 20, BlockSize::B4096)).collect();
    let world = World::new(&lane, level, CHUNK, &drives);
    let blocks = world.geometry.capacity_bytes() / u64::from(BLOCK);
    let mut segs = Vec::new();
    for fill in 1..=64 {
        segs.push(world.filled(BLOCK, fill * 3).await.share());
    }
    let segs: Rc<[Seg]> = segs.into();
    let written: Rc<[std::cell::Cell<u8>]> = (0..blocks).map(|block| fill_of(block).into()).collect();
    let accesses = if level == Level::Raid6 { 3.0 } else { 2.0 };
    let mut samples = Vec::new();
    let mut verified = true;
    for round in 0..=rounds {
        let raw_read = raw_cost(&world, 1 << 15, false).await;
        let raw_write = raw_cost(&world, 1 << 15, true).await;
        // The raw writes went past the parity: a fresh start for the group.
        fill_group(&world).await;
        (0..blocks).zip(written.iter()).for_each(|(block, cell)| cell.set(fill_of(block)));
        let own = write_cost(&world, &segs, round, &written).await;
        if round > 0 {
            let bare = accesses * (raw_read + raw_write) + delta_cost(level == Level::Raid6);
            samples.push(bare / own);
        }
        if round == rounds {
            verified &= reads_back(&world, |block| written[usize_of(block)].get()).await;
            verified &= parity_matches(&world).await;
        }
    }
    (samples, verified)
}

fn lane_config() -> LaneConfig {
    LaneConfig { cpu: None, ..LaneConfig::default() }
}

/// A folder that goes when the run ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(args: &Args) -> Result<(), String> {
    let rounds = args.samples.max(SAMPLES_MIN);
    let floors = Floors::built_in();
    let dir = Folder(args.dir.join(format!("warpraid-bench-{}", std::process::id())));
    let mut cases = Vec::new();
    for claim in floors.claims().iter().filter(|claim| claim.id.contains(&args.only)) {
        let config = lane_config();
        let (samples, verified) = match claim.id.as_str() {
            "engine.read4k.null.raid6_10" => block_on_lane(config, |lane| null_reads(lane, rounds)),
            "engine.read4k.tmpfs.raid6" => {
                std::fs::create_dir_all(&dir.0).map_err(|error| format!("{}: {error}", dir.0.display()))?;
                block_on_lane(config, |lane| tmpfs_reads(lane, rounds, dir.0.clone()))
            }
            "engine.fullstripe.ram.raid6_8p2" => block_on_lane(config, |lane| full_stripes(lane, rounds)),
            "engine.write4k.ram.raid5" => {
                block_on_lane(config, |lane| random_writes(lane, rounds, Level::Raid5, 5))
            }
            "engine.write4k.ram.raid6" => {
                block_on_lane(config, |lane| random_writes(lane, rounds, Level::Raid6, 8))
            }
            "engine.rebuild.ram.raid6_8p2" => block_on_lane(config, |lane| life::rebuild(lane, rounds)),
            "engine.read4k.lost.ram.raid6_8p2" => {
                block_on_lane(config, |lane| life::lost_reads(lane, rounds))
            }
            "engine.read1m.degraded.ram.raid6_8p2" => {
                block_on_lane(config, |lane| life::degraded_sequential(lane, rounds))
            }
            "engine.meters.read4k.tmpfs.raid6" => {
                std::fs::create_dir_all(&dir.0).map_err(|error| format!("{}: {error}", dir.0.display()))?;
                let dir = dir.0.clone();
                block_on_lane(config, |lane| async move { meters::cost(lane, rounds, &dir).await })
            }
            "engine.lanes.read4k.ram.raid6_8p2" => life::two_lanes(rounds, life::Work::Read),
            "engine.lanes.fullstripe.ram.raid6_8p2" => life::two_lanes(rounds, life::Work::FullStripe),
            "engine.lanes.write4k.ram.raid6_8p2" => life::two_lanes(rounds, life::Work::Update),
            _ => continue,
        };
        let is_single =
            ["fullstripe", "rebuild", "read1m", "lanes"].iter().any(|word| claim.id.contains(word));
        let depth = if is_single { 1 } else { u32_of(u64_of(DEPTH)) };
        let lanes = if claim.id.contains("lanes") { 2 } else { 1 };
        let case = Case::new(&claim.id, claim.unit, samples, None, &floors).with_load(lanes, depth, verified);
        let (low, high) = (show(case.unit, case.min), show(case.unit, case.max));
        let checked = if verified { "verified" } else { "NOT VERIFIED" };
        println!("{:<34} {:>14}   ({low} to {high}), {checked}", case.id, show(case.unit, case.median));
        cases.push(case);
    }
    match &args.out {
        Some(path) => Record::of_this_run(cases).write(path).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine: {error}");
            ExitCode::FAILURE
        }
    }
}
