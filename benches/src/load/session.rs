//! Targets, their regions, and what was written where.
//!
//! Invariant: `written` of a region says for each transfer which pass wrote it last (0: none of ours, or a write failed), so a
//! read is compared with exactly what must be there.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use nvme_backend::{OpenDrive, StartError};
use raid_core::units::{u32_of, u64_of, usize_of};
use stamps::nbd::Endpoint;

use super::cells::{Cells, cell_bytes};
use super::meter::Meter;
use super::{Check, Control, Op, Pass, Pattern, lanes, nbd};
use crate::scratch::ScratchGroup;

/// Most transfers of a thread's region whose contents can be remembered: one byte each.
const PLACES_MAX: u64 = 1 << 26;
/// Most passes of a session that write.
const PASSES_MAX: usize = 250;

/// What is measured.
#[derive(Clone)]
pub enum Target {
    /// A drive or a file.
    Drive(OpenDrive),
    /// A group of our own over drives of its own.
    Group(Arc<ScratchGroup>),
    /// A disk over NBD.
    Nbd {
        /// Where its server listens.
        endpoint: Endpoint,
        /// The export's name.
        export: String,
        /// Its size.
        size_bytes: u64,
    },
}

impl Target {
    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Drive(drive) => drive.size_bytes(),
            Self::Group(group) => group.geometry().capacity_bytes(),
            Self::Nbd { size_bytes, .. } => *size_bytes,
        }
    }

    /// Its path or address.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Drive(drive) if drive.path().as_os_str().is_empty() => "ram".to_owned(),
            Self::Drive(drive) => drive.path().display().to_string(),
            Self::Group(group) => group.name().to_owned(),
            Self::Nbd { endpoint, export, .. } => match endpoint {
                Endpoint::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
                Endpoint::Tcp(at) => format!("nbd://{at}/{export}"),
            },
        }
    }

    fn is_nbd(&self) -> bool {
        matches!(self, Self::Nbd { .. })
    }
}

/// The part of a target that one thread moves.
#[derive(Clone)]
pub(super) struct Region {
    pub(super) target: usize,
    pub(super) start: u64,
    pub(super) places: u64,
    pub(super) written: Arc<[AtomicU8]>,
    pub(super) seed: u64,
}

/// What a runner of a pass needs to know of it.
pub(super) struct Work {
    pub(super) targets: Vec<Target>,
    pub(super) regions: Vec<Region>,
    pub(super) block_bytes: u32,
    /// Per target, per pass that wrote.
    pub(super) cells: Vec<Vec<Arc<Cells>>>,
    pub(super) pass: Pass,
    pub(super) seed: u64,
    pub(super) control: Arc<Control>,
    /// How the rebuild meanwhile ended.
    pub(super) rebuilt: OnceLock<Result<u64, String>>,
}

impl Work {
    /// Whether no further transfer shall begin.
    pub(super) fn is_over(&self) -> bool {
        self.control.is_stopped() || self.rebuilt.get().is_some()
    }

    /// The cells a write pass makes on this target.
    pub(super) fn writing(&self, target: usize) -> Option<&Cells> {
        (self.pass.op == Op::Write).then(|| self.cells[target].last()).flatten().map(|cells| &**cells)
    }

    /// The cells that must lie at a transfer; `None` where nothing is known.
    pub(super) fn expected(&self, region: &Region, place: u64) -> Option<&Cells> {
        let pass = region.written.get(usize_of(place))?.load(Ordering::Relaxed);
        let pass = usize::from(pass).checked_sub(1)?;
        self.cells[region.target].get(pass).map(|cells| &**cells)
    }

    /// Remembers what a write left.
    pub(super) fn wrote(&self, region: &Region, place: u64, cells: &Cells, worked: bool) {
        if let Some(written) = region.written.get(usize_of(place)) {
            written.store(if worked { cells.pass() } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Whether a pass goes past this transfer: nothing is known of it and the pass only compares.
    pub(super) fn skips(&self, region: &Region, place: u64) -> bool {
        self.pass.check == Check::Everything && self.expected(region, place).is_none()
    }

    /// Compares what a read brought, if there is anything to compare it with.
    pub(super) fn compare(&self, region: &Region, place: u64, at: u64, bytes: &[u8]) -> Option<Option<u64>> {
        if self.pass.check == Check::Nothing {
            return None;
        }
        let cells = self.expected(region, place)?;
        Some(match self.pass.check {
            Check::Everything => cells.first_wrong(at, bytes),
            _ => (!cells.heads_are_right(at, bytes)).then_some(at),
        })
    }
}

/// What a target did in a pass.
#[derive(Clone, Debug)]
pub struct TargetResult {
    /// Counts over its threads.
    pub meter: Meter,
}

/// What came of a pass, one entry per target.
#[derive(Clone, Debug)]
pub struct PassResult {
    /// One entry per target.
    pub targets: Vec<TargetResult>,
    /// Whether it was stopped before its end.
    pub incomplete: bool,
    /// Lanes, or threads of NBD clients, that moved it.
    pub lanes: u32,
    /// Nanoseconds the rebuild meanwhile took, or why it failed; `None` where there was none, or it was stopped.
    pub rebuild: Option<Result<u64, String>>,
}

impl PassResult {
    /// All targets together.
    #[must_use]
    pub fn total(&self) -> Meter {
        let mut total = Meter::default();
        self.targets.iter().for_each(|target| total.merge(&target.meter));
        total
    }

    /// Adds another pass of the same kind, as if it had gone on where this one ended.
    pub fn append(&mut self, other: Self) {
        for (own, more) in self.targets.iter_mut().zip(other.targets) {
            own.meter.append(&more.meter);
        }
        self.incomplete |= other.incomplete;
    }
}

/// Why a session or a pass could not begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel refuses a lane.
    #[error("{0}")]
    Start(#[from] StartError),
    /// A region would not even hold one transfer.
    #[error(
        "{name}: {size_bytes} bytes are too few for {threads} threads with transfers of {block_bytes} bytes"
    )]
    TooSmall {
        /// The target.
        name: String,
        /// Its size.
        size_bytes: u64,
        /// Threads asked for.
        threads: u32,
        /// Bytes of a transfer.
        block_bytes: u32,
    },
    /// An NBD server is not there or refuses.
    #[error("{name}: {reason}")]
    Nbd {
        /// The target.
        name: String,
        /// Why.
        reason: String,
    },
    /// A thread of the load died.
    #[error("a thread of the load generator died; this is a bug")]
    Died,
}

/// Targets and what was written on them.
pub struct Session {
    targets: Vec<Target>,
    regions: Vec<Region>,
    block_bytes: u32,
    cell_bytes: u32,
    /// Per target, per pass that wrote.
    cells: Vec<Vec<Arc<Cells>>>,
    lanes: u32,
    identity: u64,
    passes: u64,
}

impl Session {
    /// Regions of at most `size_bytes` for each of `threads` threads on each target, moved in transfers of `block_bytes`.
    /// `keeps_track`: what is written shall be known again, for which one byte a transfer is kept.
    ///
    /// # Errors
    /// [`SessionError::TooSmall`].
    pub fn new(
        targets: Vec<Target>,
        threads: u32,
        size_bytes: Option<u64>,
        block_bytes: u32,
        keeps_track: bool,
    ) -> Result<Self, SessionError> {
        let block = u64::from(block_bytes);
        let mut regions = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            let room = target.size_bytes() / u64::from(threads.max(1)) / block;
            let mut places = size_bytes.map_or(room, |bytes| (bytes / block).min(room));
            if keeps_track {
                places = places.min(PLACES_MAX);
            }
            if places == 0 {
                return Err(SessionError::TooSmall {
                    name: target.name(),
                    size_bytes: target.size_bytes(),
                    threads,
                    block_bytes,
                });
            }
            for thread in 0..u64::from(threads) {
                let track = if keeps_track { usize_of(places) } else { 0 };
                regions.push(Region {
                    target: index,
                    start: thread * places * block,
                    places,
                    written: (0..track).map(|_| AtomicU8::new(0)).collect(),
                    seed: u64_of(index) * 1009 + thread + 1,
                });
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let identity = crate::clock::wall_ns() >> 10;
        let cells = vec![Vec::new(); targets.len()];
        let lanes = u32_of(u64_of(cores.min(regions.len())));
        let cell_bytes = targets.iter().fold(cell_bytes(block_bytes), |cell, target| match target {
            Target::Group(group) => cell.min(group.geometry().chunk_bytes()),
            _ => cell,
        });
        Ok(Self { targets, regions, block_bytes, cell_bytes, cells, lanes, identity, passes: 0 })
    }

    /// Uses at most so many lanes.
    #[must_use]
    pub fn with_lanes(mut self, lanes: u32) -> Self {
        self.lanes = self.lanes.min(lanes.max(1));
        self
    }

    /// Bytes one pass over all regions moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.places * u64::from(self.block_bytes)).sum()
    }

    /// The targets.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Takes other targets of the same sizes and contents: the same drives as another group.
    pub fn replace_targets(&mut self, targets: Vec<Target>) {
        assert_eq!(targets.len(), self.targets.len(), "one for one");
        self.targets = targets;
    }

    /// Runs a pass over all targets at once.
    ///
    /// # Errors
    /// Why it could not begin; what goes wrong later is in the result.
    pub fn run(
        &mut self,
        label: &str,
        pass: Pass,
        control: &Arc<Control>,
    ) -> Result<PassResult, SessionError> {
        if pass.op == Op::Write {
            for (index, cells) in (0_u64..).zip(&mut self.cells) {
                assert!(cells.len() < PASSES_MAX, "a session writes few times");
                let number = u8::try_from(cells.len() + 1).expect("few passes");
                cells.push(Arc::new(Cells::new(self.identity + index, number, self.cell_bytes)));
            }
        }
        let total = pass.time_ns.is_none().then(|| self.bytes());
        let time_ns = pass.time_ns.filter(|_| pass.rebuild.is_none()).map(|time_ns| time_ns + pass.ramp_ns);
        control.begin(label, total, time_ns);
        self.passes += 1;
        let work = Arc::new(Work {
            targets: self.targets.clone(),
            regions: self.regions.clone(),
            block_bytes: self.block_bytes,
            cells: self.cells.clone(),
            pass,
            seed: self.passes,
            control: Arc::clone(control),
            rebuilt: OnceLock::new(),
        });
        let is_nbd = self.targets.iter().any(Target::is_nbd);
        let (meters, lanes) = if is_nbd { nbd::run(&work)? } else { lanes::run(&work, self.lanes)? };
        let mut targets = vec![TargetResult { meter: Meter::default() }; self.targets.len()];
        for (region, meter) in self.regions.iter().zip(&meters) {
            targets[region.target].meter.merge(meter);
        }
        Ok(PassResult {
            targets,
            incomplete: control.is_stopped(),
            lanes,
            rebuild: work.rebuilt.get().cloned(),
        })
    }

    /// Reads everything this session wrote and compares every byte.
    ///
    /// # Errors
    /// Why it could not begin.
    pub fn verify(&mut self, control: &Arc<Control>) -> Result<PassResult, SessionError> {
        let pass = Pass {
            op: Op::Read,
            pattern: Pattern::Sequential,
            time_ns: None,
            ramp_ns: 0,
            queue_depth: 4,
            check: Check::Everything,
            rebuild: None,
        };
        self.run("verify", pass, control)
    }

    /// Writes every region once, not measured.
    ///
    /// # Errors
    /// Why it could not begin.
    pub fn fill(&mut self, control: &Arc<Control>) -> Result<PassResult, SessionError> {
        let pass = Pass {
            op: Op::Write,
            pattern: Pattern::Sequential,
            time_ns: None,
            ramp_ns: 0,
            queue_depth: 4,
            check: Check::Nothing,
            rebuild: None,
        };
        self.run("fill", pass, control)
    }

    /// Paths of the targets that are files or devices.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let path = |target: &Target| match target {
            Target::Drive(drive) => Some(drive.path().to_owned()),
            _ => None,
        };
        self.targets.iter().filter_map(path).collect()
    }
}
