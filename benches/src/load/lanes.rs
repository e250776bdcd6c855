//! A pass over the reactor: one thread and ring per lane, the regions dealt out to the lanes in turn.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Barrier};

use nvme_backend::{ArenaConfig, Lane, LaneConfig, LaneDrive, OpenDrive, StartError, try_block_on_lane};
use raid_core::engine::{Group, Pace, SCRATCH_BYTES_MAX};
use raid_core::lease::{LEASE_BYTES_MAX, Lease, Leases, Seg, Segs};
use raid_core::ports::{Done, Drive, Durability, IoError, Pool};
use raid_core::units::{DriveOffset, GroupOffset, LaneId, Slot, u32_of, u64_of, usize_of_u32};

use super::Op;
use super::meter::{Meter, is_fatal};
use super::session::{Region, SessionError, Target, Work};
use super::walk::Walk;
use crate::world::{BenchEnv, all, give_way};

/// Most bytes in flight on one lane; [`run`] takes fewer transfers at once rather than more memory.
const FLIGHT_BYTES_MAX: u64 = 1 << 30;

/// A target as one lane sees it.
#[derive(Clone)]
enum Store {
    Drive(LaneDrive),
    Group(Group<BenchEnv>),
}

impl Store {
    /// How a transfer is cut into leases.
    fn sizes(&self, at: u64, bytes: u32) -> Vec<u32> {
        match self {
            Self::Drive(_) => {
                let whole = std::iter::repeat_n(LEASE_BYTES_MAX, usize_of_u32(bytes / LEASE_BYTES_MAX));
                let rest = bytes % LEASE_BYTES_MAX;
                whole.chain((rest > 0).then_some(rest)).collect()
            }
            Self::Group(group) => {
                group.shared().geometry().pieces(GroupOffset(at), u64::from(bytes)).collect()
            }
        }
    }

    async fn read(&self, at: u64, into: Leases) -> Done<Leases> {
        match self {
            Self::Drive(drive) => drive.read(DriveOffset(at), into).await,
            Self::Group(group) => group.read(GroupOffset(at), into).await,
        }
    }

    async fn write(&self, at: u64, from: Segs) -> Result<(), IoError> {
        match self {
            Self::Drive(drive) => drive.write(DriveOffset(at), from, Durability::Cached).await,
            Self::Group(group) => group.write(GroupOffset(at), from, Durability::Cached).await,
        }
    }

    async fn flush(&self) -> Result<(), IoError> {
        match self {
            Self::Drive(drive) => drive.flush().await,
            Self::Group(group) => group.flush().await,
        }
    }
}

/// One region on its lane.
struct Stream {
    store: Store,
    region: Region,
    /// Its drives are in memory: nobody waits for anything, so tasks have to give way by themselves.
    is_instant: bool,
    walk: RefCell<Walk>,
    meter: RefCell<Meter>,
}

impl Stream {
    fn next(&self, work: &Work, lane: &Lane) -> Option<u64> {
        if work.is_over() || self.meter.borrow().gave_up() {
            return None;
        }
        let now_ns = lane.now_ns();
        let mut walk = self.walk.borrow_mut();
        loop {
            let place = walk.next(now_ns)?;
            if !work.skips(&self.region, place) {
                return Some(place);
            }
        }
    }

    fn at(&self, work: &Work, place: u64) -> u64 {
        self.region.start + place * u64::from(work.block_bytes)
    }

    /// Counts how a transfer ended.
    fn settle(&self, work: &Work, times_ns: [u64; 2], at: u64, result: Result<(), IoError>) {
        let mut meter = self.meter.borrow_mut();
        match result {
            Ok(()) => {
                let [began_ns, ended_ns] = times_ns;
                let bytes = u64::from(work.block_bytes);
                if let Some(bytes) = meter.done(began_ns, ended_ns, bytes) {
                    work.control.add(bytes);
                }
            }
            Err(error) => {
                let what = format!("{} at byte {at}: {error}", work.pass.op.name());
                meter.failed(what, is_fatal(&error));
            }
        }
    }
}

async fn leased(lane: &Lane, kept: Option<Leases>, sizes: &[u32]) -> (Leases, bool) {
    match kept {
        Some(leases) if leases.iter().map(Lease::len).eq(sizes.iter().copied()) => (leases, false),
        // Given back first: waiting for new ones while holding others could wait for ever.
        other => {
            drop(other);
            (lane.arena().lease(Pool::Request, sizes).await, true)
        }
    }
}

/// Reads until the walk ends.
async fn read(lane: &Lane, work: &Work, stream: &Stream) {
    let mut kept = None;
    while let Some(place) = stream.next(work, lane) {
        let at = stream.at(work, place);
        let sizes = stream.store.sizes(at, work.block_bytes);
        let (leases, _) = leased(lane, kept.take(), &sizes).await;
        let began_ns = lane.now_ns();
        let done = stream.store.read(at, leases).await;
        let ended_ns = lane.now_ns();
        if done.result.is_ok()
            && let Some(leases) = &done.buf
        {
            compare(work, stream, place, at, leases);
        }
        stream.settle(work, [began_ns, ended_ns], at, done.result);
        kept = done.buf;
        if stream.is_instant {
            give_way().await;
        }
    }
}

/// Compares what a read brought; leases hold whole cells.
fn compare(work: &Work, stream: &Stream, place: u64, at: u64, leases: &Leases) {
    let mut result: Option<Option<u64>> = None;
    let mut next = at;
    for lease in leases {
        let found = work.compare(&stream.region, place, next, lease.bytes());
        result = found.map(|wrong| result.flatten().or(wrong));
        next += u64::from(lease.len());
    }
    if let Some(wrong_at) = result {
        stream.meter.borrow_mut().compared(wrong_at);
    }
}

/// Writes until the walk ends.
async fn write(lane: &Lane, work: &Work, stream: &Stream) {
    let cells = work.writing(stream.region.target).expect("a pass that writes has cells");
    let mut kept = None;
    while let Some(place) = stream.next(work, lane) {
        let at = stream.at(work, place);
        let sizes = stream.store.sizes(at, work.block_bytes);
        let (mut leases, is_new) = leased(lane, kept.take(), &sizes).await;
        let mut next = at;
        for lease in &mut leases {
            if is_new {
                cells.prepare(lease.bytes_mut());
            }
            cells.stamp(next, lease.bytes_mut());
            next += u64::from(lease.len());
        }
        let segs: Segs = leases.into_iter().map(Lease::share).collect();
        let began_ns = lane.now_ns();
        let result = stream.store.write(at, segs.clone()).await;
        let ended_ns = lane.now_ns();
        work.wrote(&stream.region, place, cells, result.is_ok());
        stream.settle(work, [began_ns, ended_ns], at, result);
        // None while the drive still holds a buffer, as after a time-out.
        kept = segs.into_iter().map(Seg::into_lease).collect::<Result<Leases, Seg>>().ok();
        if stream.is_instant {
            give_way().await;
        }
    }
}

async fn flush(lane: &Lane, stream: &Stream) {
    let began_ns = lane.now_ns();
    let result = stream.store.flush().await;
    let mut meter = stream.meter.borrow_mut();
    meter.flush_ns = lane.now_ns() - began_ns;
    if let Err(error) = result {
        meter.failed(format!("flush: {error}"), true);
    }
}

/// The regions of one lane, ready to run.
fn streams(lane: &Lane, work: &Work, mine: &[usize], began_ns: u64) -> Vec<Rc<Stream>> {
    let from_ns = began_ns + work.pass.ramp_ns;
    let deadline_ns = work.pass.time_ns.map(|time_ns| from_ns + time_ns);
    let mut stores: BTreeMap<usize, Store> = BTreeMap::new();
    let stream = |&index: &usize| {
        let region = work.regions[index].clone();
        let store = stores.entry(region.target).or_insert_with(|| store(lane, &work.targets[region.target]));
        let seed = region.seed ^ (work.seed << 20);
        Rc::new(Stream {
            store: store.clone(),
            is_instant: is_instant(&work.targets[region.target]),
            walk: RefCell::new(Walk::new(work.pass.pattern, region.places, deadline_ns, seed)),
            meter: RefCell::new(Meter::new(from_ns)),
            region,
        })
    };
    mine.iter().map(stream).collect()
}

/// Rebuilds a member while the streams run; its end is theirs.
async fn rebuild(lane: Lane, group: Group<BenchEnv>, slot: u8, work: Arc<Work>) {
    let began_ns = lane.now_ns();
    let result = group.rebuild(Slot(slot), &Pace::default()).await;
    let took_ns = lane.now_ns() - began_ns;
    let result = result.map(|()| took_ns).map_err(|error| format!("the rebuild of slot {slot}: {error}"));
    let _first = work.rebuilt.set(result);
}

/// Runs the regions of one lane to their end.
async fn on_lane(lane: Lane, work: Arc<Work>, mine: Vec<usize>, start: Arc<Barrier>) -> Vec<(usize, Meter)> {
    start.wait();
    let streams = streams(&lane, &work, &mine, lane.now_ns());
    if let Some(slot) = work.pass.rebuild
        && mine.contains(&0)
        && let Some(Store::Group(group)) = streams.first().map(|stream| &stream.store)
    {
        lane.spawn(rebuild(lane.clone(), group.clone(), slot, Arc::clone(&work)));
    }
    let depth = usize_of_u32(work.pass.queue_depth);
    all(&lane, streams.len() * depth, |task| {
        let (lane, stream) = (lane.clone(), Rc::clone(&streams[task % streams.len()]));
        let work = Arc::clone(&work);
        async move {
            match work.pass.op {
                Op::Read => read(&lane, &work, &stream).await,
                Op::Write => write(&lane, &work, &stream).await,
            }
        }
    })
    .await;
    let mut meters = Vec::new();
    for (stream, index) in streams.iter().zip(mine) {
        let gave_up = stream.meter.borrow().gave_up();
        if work.pass.op == Op::Write && !gave_up {
            flush(&lane, stream).await;
        }
        let mut meter = stream.meter.borrow().clone();
        work.control.add(meter.rest_bytes());
        meters.push((index, meter));
    }
    meters
}

fn is_instant(target: &Target) -> bool {
    let in_memory = |drive: &OpenDrive| drive.path().as_os_str().is_empty();
    match target {
        Target::Drive(drive) => in_memory(drive),
        Target::Group(group) => group.drives().iter().any(in_memory),
        Target::Nbd { .. } => false,
    }
}

fn store(lane: &Lane, target: &Target) -> Store {
    match target {
        Target::Drive(drive) => Store::Drive(drive.on_lane(lane)),
        Target::Group(group) => Store::Group(group.giving_way_on_lane(lane)),
        Target::Nbd { .. } => unreachable!("NBD disks have a runner of their own"),
    }
}

/// How a lane is set up for its share of the work.
fn config(work: &Work, lane: usize, regions: usize) -> LaneConfig {
    let block = u64::from(work.block_bytes).next_multiple_of(4096);
    let in_flight = block * u64::from(work.pass.queue_depth) * u64_of(regions);
    let is_group = work.targets.iter().any(|target| matches!(target, Target::Group(_)));
    let arena = ArenaConfig {
        // Small blocks share units of 64 KiB, and a unit serves one size at a time.
        request_bytes: in_flight.min(FLIGHT_BYTES_MAX) + (4 << 20),
        scratch_bytes: if is_group { SCRATCH_BYTES_MAX + (8 << 20) } else { 1 << 20 },
        metadata_bytes: 4 << 20,
        // Page-aligned buffers suit any drive; columns of parity want to be staggered.
        stagger_bytes: if is_group { 512 } else { 0 },
        ..ArenaConfig::default()
    };
    let id = LaneId(u16::try_from(lane).expect("few lanes"));
    LaneConfig { id, arena, ..LaneConfig::default() }
}

/// Runs a pass on up to `lanes` lanes. Gives the meter of each region, and how many lanes there were.
pub(super) fn run(work: &Arc<Work>, lanes: u32) -> Result<(Vec<Meter>, u32), SessionError> {
    let lanes = usize_of_u32(lanes).clamp(1, work.regions.len());
    let start = Arc::new(Barrier::new(lanes));
    let mut threads = Vec::new();
    for lane in 0..lanes {
        let mine: Vec<usize> = (0..work.regions.len()).filter(|index| index % lanes == lane).collect();
        let (work, start) = (Arc::clone(work), Arc::clone(&start));
        let config = config(&work, lane, mine.len());
        let release = Arc::clone(&start);
        let run = move || {
            let result = try_block_on_lane(config, |lane| on_lane(lane, work, mine, start));
            if result.is_err() {
                // The others wait for it.
                release.wait();
            }
            result
        };
        let thread = std::thread::Builder::new().name(format!("bench-{lane}")).spawn(run);
        threads.push(thread.map_err(StartError::Thread)?);
    }
    let mut meters = vec![Meter::default(); work.regions.len()];
    for thread in threads {
        for (index, meter) in thread.join().map_err(|_| SessionError::Died)?? {
            meters[index] = meter;
        }
    }
    Ok((meters, u32_of(u64_of(lanes))))
}
