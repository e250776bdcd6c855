//! What all lanes of a group share: the current view, the lock table, intents, unsynced stripes, bad blocks, counters.
//! It is `Send + Sync` and never touches a lease.
//!
//! Invariants: views have ascending versions, and one change is in progress at a time (`change`); `durable` is the newest
//! version whose epoch all its members hold, so an operation that ran under a later one waits before it is acknowledged
//! (SAFETY M2); a rebuild cursor only moves up, and only under the exclusive lock of the stripes it passes (SAFETY S3).

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::avoid::Avoided;
use super::badblocks::BadBlocks;
use super::intent::{IntentConfig, Intents};
use super::locks::{LockTable, STRIPES_MAX};
use super::regions::Regions;
use super::successor::Successors;
use crate::geometry::{Geometry, Level};
use crate::lease::LEASE_BYTES_MAX;
use crate::membership::GroupMeta;
use crate::pacing::Foreground;
use crate::ports::{IoError, IoKind};
use crate::sync::{Event, TurnLock};
use crate::units::{BlockSize, LaneId, Slot, Stripe};
use crate::view::{MemberState, View};

/// The scratch memory one request or sweep step is cut to, in bytes. What a lane must have is
/// [`Shared::scratch_bytes_max`]: more only for very wide groups of very large chunks.
pub const SCRATCH_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The longest request of any group, in bytes.
const REQUEST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Everything a running group starts from.
pub struct GroupConfig {
    /// The group's name, for people.
    pub name: String,
    /// Its shape.
    pub geometry: Geometry,
    /// Its logical block size, fixed at create.
    pub block_size: BlockSize,
    /// The first view; its epoch must be durable already.
    pub view: View,
    /// What publishing a view needs beside it.
    pub meta: Arc<GroupMeta>,
    /// The write-intent bitmap on the members; `None` where there is none (RAID 0, adopted arrays without, volatile).
    pub intents: Option<IntentConfig>,
    /// Ranges of stripes whose initial sync is pending: whatever was written there has matching parity.
    pub unsynced: Vec<Range<u64>>,
    /// Ranges of stripes that a crash may have left half written (dirty intent bits after an unclean stop): a lost block
    /// there is not reconstructed.
    pub dirty: Vec<Range<u64>>,
    /// Bad-block lists: ranges of a member's data area, in bytes.
    pub bad_blocks: Vec<(Slot, Range<u64>)>,
    /// Rebuild cursors of the slots that are being rebuilt, in bytes of the member's data area.
    pub rebuilding: Vec<(Slot, u64)>,
    /// Number of lanes that will serve the group; a lane's number is below it.
    pub lanes: u16,
}

/// One view with the operations that run under it.
pub(crate) struct Generation {
    pub(crate) view: Arc<View>,
    users: AtomicUsize,
    closed: AtomicBool,
    left: Event,
}

impl Generation {
    fn new(view: View) -> Arc<Self> {
        Arc::new(Self {
            view: Arc::new(view),
            users: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            left: Event::default(),
        })
    }

    pub(super) fn enter(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 && self.closed.load(Ordering::SeqCst) {
            self.left.notify();
        }
    }
}

#[derive(Default)]
struct SlotCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    errors: AtomicU64,
}

/// What one lane counts; only that lane writes it, so counting is a plain load and store.
pub(super) struct LaneCounters(Vec<SlotCounters>);

fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl LaneCounters {
    pub(super) fn read(&self, slot: Slot) {
        count(&self.0[slot.index()].reads);
    }

    pub(super) fn write(&self, slot: Slot) {
        count(&self.0[slot.index()].writes);
    }

    pub(super) fn error(&self, slot: Slot) {
        count(&self.0[slot.index()].errors);
    }
}

/// State of one slot, for people.
#[derive(Clone, Debug)]
pub struct SlotStatus {
    /// What its member is good for.
    pub state: MemberState,
    /// How far a rebuild has come, in bytes of the member's data area; the whole area when in sync.
    pub cursor_bytes: u64,
    /// Read commands sent to the member since start.
    pub reads: u64,
    /// Write and zero commands sent to the member since start.
    pub writes: u64,
    /// Commands that failed since start.
    pub errors: u64,
    /// Ranges of the member's data area whose contents are lost until rewritten.
    pub bad_blocks: Vec<Range<u64>>,
    /// Whether a rebuild copies only what intent bits cover: the member has been here before (SAFETY M6).
    pub is_by_intents: bool,
}

/// State of a group, for people.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// The current view.
    pub view: Arc<View>,
    /// One entry per slot.
    pub slots: Vec<SlotStatus>,
    /// Stripes not known in sync.
    pub unsynced_stripes: u64,
    /// All stripes.
    pub stripes: u64,
    /// Intent bits set.
    pub dirty_intents: u64,
    /// Whether more members are lost than the level tolerates: some blocks cannot be read.
    pub is_offline: bool,
    /// Whether the group takes no more requests.
    pub is_stopping: bool,
}

/// A group, as all lanes share it.
pub struct Shared {
    name: String,
    geometry: Geometry,
    block_size: BlockSize,
    meta: Arc<GroupMeta>,
    version: AtomicU64,
    generation: Mutex<Arc<Generation>>,
    durable: AtomicU64,
    settled: Event,
    pub(super) change: TurnLock,
    pub(super) locks: LockTable,
    pub(super) regions: Regions,
    pub(super) bad: BadBlocks,
    /// Blocks that a scrub found wrong and nobody has put right: no source of other blocks (RAID 6).
    pub(super) suspect: BadBlocks,
    /// What may be called certain of it.
    pub(super) vouched: super::suspicion::Vouched,
    pub(super) avoided: Avoided,
    pub(super) write_mostly: Avoided,
    pub(super) successors: Successors,
    pub(super) intents: Option<Intents>,
    cursors: Vec<AtomicU64>,
    /// Per slot, whether its rebuilding member came back and lacks only what intent bits cover.
    by_intents: Vec<AtomicBool>,
    /// Per slot, the epoch counter at which its present member joined: older failure reports are about another drive.
    pub(super) joined: Vec<AtomicU64>,
    offline: AtomicBool,
    stopping: AtomicBool,
    /// How many want new writes held back.
    held: AtomicUsize,
    writers: AtomicUsize,
    idle: Event,
    let_go: Event,
    counters: Vec<LaneCounters>,
    foreground: Foreground,
    request_bytes_max: u64,
}

impl Shared {
    /// A group that starts from `config`.
    ///
    /// # Panics
    /// If the view does not have one member per slot of the geometry, or there is no lane.
    #[must_use]
    pub fn new(config: GroupConfig) -> Arc<Self> {
        let geometry = config.geometry;
        let members = usize::from(geometry.members());
        assert_eq!(config.view.members.len(), members, "a view has one member per slot");
        assert!(config.lanes > 0, "a group is served by at least one lane");
        let cursors: Vec<AtomicU64> = (0..members).map(|_| AtomicU64::new(0)).collect();
        for &(slot, cursor) in &config.rebuilding {
            cursors[slot.index()].store(cursor, Ordering::Relaxed);
        }
        let came_back = |slot: u8| match config.meta.as_ref() {
            GroupMeta::Volatile => false,
            GroupMeta::Persistent(meta) => meta.is_by_intents(Slot(slot)),
        };
        let by_intents = (0..geometry.members()).map(|slot| AtomicBool::new(came_back(slot))).collect();
        let is_quiet = match &*config.meta {
            GroupMeta::Persistent(meta) => meta.marks().quiet,
            GroupMeta::Volatile => false,
        };
        let lane = || LaneCounters((0..members).map(|_| SlotCounters::default()).collect());
        let this = Self {
            name: config.name,
            geometry,
            block_size: config.block_size,
            meta: config.meta,
            version: AtomicU64::new(config.view.version),
            durable: AtomicU64::new(config.view.version),
            offline: AtomicBool::new(is_offline(&geometry, &config.view)),
            generation: Mutex::new(Generation::new(config.view)),
            settled: Event::default(),
            change: TurnLock::default(),
            locks: LockTable::new(),
            regions: Regions::new(geometry.stripes(), &config.unsynced, &config.dirty),
            bad: BadBlocks::new(members, &config.bad_blocks),
            suspect: BadBlocks::new(members, &[]),
            vouched: super::suspicion::Vouched::new(geometry.level(), geometry.stripes()),
            avoided: Avoided::new(members),
            write_mostly: Avoided::new(members),
            successors: Successors::new(members),
            intents: config
                .intents
                .filter(|_| geometry.level() != Level::Raid0)
                .map(|intents| Intents::new(intents, is_quiet)),
            cursors,
            by_intents,
            joined: (0..members).map(|_| AtomicU64::new(0)).collect(),
            stopping: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            idle: Event::default(),
            foreground: Foreground::new(config.lanes),
            let_go: Event::default(),
            counters: (0..config.lanes).map(|_| lane()).collect(),
            request_bytes_max: request_bytes_max(&geometry),
        };
        this.recall_write_mostly();
        Arc::new(this)
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group's shape.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The group's logical block size.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// What publishing needs beside a view.
    #[must_use]
    pub fn meta(&self) -> &Arc<GroupMeta> {
        &self.meta
    }

    /// The longest read or write one call takes, in bytes; a multiple of 4096. Front ends split longer ones.
    #[must_use]
    pub fn max_request_bytes(&self) -> u64 {
        self.request_bytes_max
    }

    /// The most scratch memory one request or sweep step of this group leases, in bytes: a lane's `Pool::Scratch` must be
    /// able to give this much at once, or a degraded write could wait for ever. [`SCRATCH_BYTES_MAX`] unless a single
    /// stripe is larger.
    #[must_use]
    pub fn scratch_bytes_max(&self) -> u64 {
        let stripe = u64::from(self.geometry.chunk_bytes()) * (u64::from(self.geometry.members()) + 1);
        stripe.max(SCRATCH_BYTES_MAX)
    }

    /// Client requests by latency, and how fast sweeps may go beside them.
    #[must_use]
    pub fn foreground(&self) -> &Foreground {
        &self.foreground
    }

    /// The current view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.generation.lock().view)
    }

    /// Whether more members are lost than the level tolerates.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Acquire)
    }

    /// State of everything, for people.
    #[must_use]
    pub fn status(&self) -> GroupStatus {
        let view = self.view();
        let slots = view.slots().map(|slot| self.slot_status(&view, slot)).collect();
        GroupStatus {
            slots,
            unsynced_stripes: self.regions.unsynced_count(),
            stripes: self.geometry.stripes(),
            dirty_intents: self.intents.as_ref().map_or(0, Intents::set_count),
            is_offline: self.is_offline(),
            is_stopping: self.is_stopping(),
            view,
        }
    }

    fn slot_status(&self, view: &View, slot: Slot) -> SlotStatus {
        let sum = |pick: fn(&SlotCounters) -> &AtomicU64| {
            self.counters.iter().map(|lane| pick(&lane.0[slot.index()]).load(Ordering::Relaxed)).sum()
        };
        let state = view.member(slot).state;
        SlotStatus {
            state,
            cursor_bytes: match state {
                MemberState::InSync => self.geometry.member_bytes(),
                MemberState::Rebuilding => self.cursor(slot),
                MemberState::Missing { .. } => 0,
            },
            reads: sum(|slot| &slot.reads),
            writes: sum(|slot| &slot.writes),
            errors: sum(|slot| &slot.errors),
            bad_blocks: self.bad.list(slot),
            is_by_intents: state == MemberState::Rebuilding && self.is_by_intents(slot),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    pub(super) fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.generation.lock())
    }

    pub(super) fn counters(&self, lane: LaneId) -> &LaneCounters {
        &self.counters[usize::from(lane.0)]
    }

    pub(super) fn lanes(&self) -> usize {
        self.counters.len()
    }

    /// How far the rebuild of a slot has come, in bytes of its data area.
    pub(super) fn cursor(&self, slot: Slot) -> u64 {
        self.cursors[slot.index()].load(Ordering::Acquire)
    }

    pub(super) fn set_cursor(&self, slot: Slot, bytes: u64) {
        self.cursors[slot.index()].store(bytes, Ordering::Release);
    }

    /// Whether the member being rebuilt in the slot lacks only what intent bits cover.
    pub(super) fn is_by_intents(&self, slot: Slot) -> bool {
        self.by_intents[slot.index()].load(Ordering::Acquire)
    }

    pub(super) fn set_by_intents(&self, slot: Slot, by_intents: bool) {
        self.by_intents[slot.index()].store(by_intents, Ordering::Release);
    }

    /// Makes `next` the current view and waits until every operation under the old one has ended (SAFETY M2, step 1).
    /// Only with the turn of `change`.
    pub(super) async fn switch(&self, next: View) {
        let old = {
            let mut current = self.generation.lock();
            assert!(next.version > current.view.version, "views only move forward");
            self.offline.store(is_offline(&self.geometry, &next), Ordering::Release);
            let version = next.version;
            let old = core::mem::replace(&mut *current, Generation::new(next));
            self.version.store(version, Ordering::SeqCst);
            old
        };
        old.closed.store(true, Ordering::SeqCst);
        old.left.wait_for(|| (old.users.load(Ordering::SeqCst) == 0).then_some(())).await;
    }

    /// The epoch of every view up to `version` is durable, or needs not be.
    pub(super) fn mark_settled(&self, version: u64) {
        self.durable.fetch_max(version, Ordering::SeqCst);
        self.settled.notify();
    }

    /// Waits until what ran under `version` may be acknowledged (SAFETY M2, step 3). Holding no view.
    pub(super) async fn wait_settled(&self, version: u64) {
        if self.durable.load(Ordering::SeqCst) < version {
            self.settled.wait_for(|| (self.durable.load(Ordering::SeqCst) >= version).then_some(())).await;
        }
    }

    /// Whether the group takes no more requests.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Counts an operation that changes data, until the ticket is dropped; refused once the group is stopping.
    pub(super) fn start_writer(&self) -> Result<Writer<'_>, IoError> {
        self.writers.fetch_add(1, Ordering::SeqCst);
        let writer = Writer(self);
        if self.stopping.load(Ordering::SeqCst) {
            return Err(IoError::new(IoKind::ShuttingDown, "the group is stopping"));
        }
        Ok(writer)
    }

    /// As [`Shared::start_writer`], after writes are let go if they are held. Holding nothing that a writer waits for.
    pub(super) async fn admit_writer(&self) -> Result<Writer<'_>, IoError> {
        loop {
            let writer = self.start_writer()?;
            if self.held.load(Ordering::SeqCst) == 0 {
                return Ok(writer);
            }
            drop(writer);
            self.let_go.wait_for(|| (self.held.load(Ordering::SeqCst) == 0).then_some(())).await;
        }
    }

    /// Holds writes that are not admitted yet, until the guard is dropped.
    pub(super) fn hold_writers(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(self)
    }

    /// Operations that change data now.
    pub(super) fn writers(&self) -> usize {
        self.writers.load(Ordering::SeqCst)
    }

    /// No new requests from now on; waits for the writes that run.
    pub(super) async fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.idle.wait_for(|| (self.writers.load(Ordering::SeqCst) == 0).then_some(())).await;
    }

    /// Whether the slot's member holds (and must be given) current data in the stripe, going by its rebuild cursor.
    pub(super) fn below_cursor(&self, slot: Slot, stripe: Stripe) -> bool {
        let start = self.geometry.member_offset(stripe, 0);
        start + u64::from(self.geometry.stripe_height(stripe)) <= self.cursor(slot)
    }
}

/// An operation that changes data; [`Shared::stop`] waits for it.
pub(super) struct Writer<'a>(&'a Shared);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.0.writers.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.stopping.load(Ordering::SeqCst) {
            self.0.idle.notify();
        }
    }
}

/// New writes wait; see [`Shared::hold_writers`].
pub(super) struct Held<'a>(&'a Shared);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.held.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.let_go.notify();
        }
    }
}

/// Whether a view has lost more than the level tolerates. A member being rebuilt does not count as held.
pub(super) fn is_offline(geometry: &Geometry, view: &View) -> bool {
    !geometry.is_readable(|slot| view.member(slot).is_in_sync())
}

/// The longest request whose worst case (every column of every window it touches in scratch memory) fits
/// [`SCRATCH_BYTES_MAX`], and whose stripes fit one lock.
fn request_bytes_max(geometry: &Geometry) -> u64 {
    let window = u64::from(geometry.chunk_bytes().min(LEASE_BYTES_MAX));
    let stripe = geometry.stripe_data_bytes();
    let fits = |len: u64| {
        let stripes = len / stripe + 2;
        // Inside one chunk every window is a window of its own; over whole stripes the columns share them.
        let windows = (len / window + 2).min(stripes * (u64::from(geometry.chunk_bytes()) / window));
        let scratch = windows * window * (u64::from(geometry.members()) + 1);
        stripes <= STRIPES_MAX && (geometry.level().parities() == 0 || scratch <= SCRATCH_BYTES_MAX)
    };
    let mut len = REQUEST_BYTES_MAX;
    while len > 4096 && !fits(len) {
        len /= 2;
    }
    len
}

/// Stripes of which every column fits a step's share of the scratch memory, at least 1 and at most 16.
pub(super) fn stripes_per_step(geometry: &Geometry) -> u64 {
    let stripe = u64::from(geometry.chunk_bytes()) * u64::from(geometry.members());
    (SCRATCH_BYTES_MAX / 4 / stripe).clamp(1, 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_on_other_threads_may_share_it() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Shared>();
    }

    #[test]
    fn the_longest_request_fits_the_scratch_memory_in_the_worst_case() {
        for level in Level::ALL {
            for members in [2, 3, 4, 8, 10, 24, 128] {
                for chunk in [512, 4096, 65536, 1 << 20] {
                    let chunk = if level == Level::Raid1 { 0 } else { chunk };
                    let Ok(geometry) = Geometry::new(level, members, chunk, 1 << 30) else { continue };
                    let len = request_bytes_max(&geometry);
                    assert!(len >= 4096 && len.is_multiple_of(4096), "{geometry:?}: {len}");
                    let common = level == Level::Raid6 && members == 10 && chunk == 65536;
                    assert!(!common || len >= 1 << 20, "{geometry:?}: {len}");
                    assert!((1..=16).contains(&stripes_per_step(&geometry)));
                }
            }
        }
    }
}
