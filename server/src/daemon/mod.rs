//! The daemon: groups, lanes and their life from start to stop.
//!
//! | file | what |
//! |---|---|
//! | `host` | what lanes share: open drives, witness files, randomness |
//! | `state` | the state folder: lock, hints, exposures to restore |
//! | `drives`, `look` | drives by name, and what lies on them |
//! | `start` | observe, decide, start: the one way to a running group |
//! | `refused` | why a start was refused, and what one came to, in words |
//! | `groups` | create, assemble, stop, delete, undelete |
//! | `interop` | arrays of Linux md taken over, and groups given back |
//! | `replace` | a new drive for a slot: rebuilt, or filled while the old one serves |
//! | `ublk` | disks as block devices of this host |
//! | `upgrade` | another program takes this one's place |
//! | `systemd` | what the service manager is told |
//! | `disks`, `extent` | disks of a group, their table, their exposure |
//! | `unstarted` | groups that were found and do not run |
//! | `readd`, `comeback` | a dropped member comes back; whether it could |
//! | `plug`, `uevent` | drives that come and go while the daemon runs |
//! | `sweeps`, `jobs` | rebuild and resync; progress |
//! | `scrub`, `lost` | scrubs and their schedule; which blocks are lost |
//! | `settings` | what operators set for a group: `group set` |
//! | `running`, `status` | a group as the control thread knows it; state, health, what to type |
//! | `words` | what happened to a drive, for people |
//! | `notes`, `metrics` | what becomes an event, what is counted |
//! | `faults` | drives that fail on purpose |
//! | `sick` | members that are slow or fail too often |
//! | `write_mostly` | members that are read only where no other copy can be |
//! | `spares` | drives that wait for a member to be lost |
//! | `samples` | what the charts are made of |
//! | `examine`, `claim` | a drive without a daemon: what lies on it; taken to be measured |
//! | `claimed` | a drive whose group does not run, in words |
//! | `api`, `verbs/` | the verbs, in terms of the above |
//!
//! Everything here runs on one control thread with a tokio runtime; I/O happens on the lanes, reached through
//! [`crate::lane::on_lane`]. One lifecycle change at a time (`change`): verbs that create, start, stop or delete take it.

mod api;
mod claim;
mod claimed;
mod comeback;
mod disks;
mod drives;
mod examine;
mod extent;
mod faults;
mod groups;
pub mod host;
mod interop;
mod jobs;
mod lane_ops;
mod look;
mod lost;
mod metrics;
mod notes;
mod plug;
mod readd;
mod refused;
mod replace;
mod running;
mod samples;
mod scrub;
mod settings;
mod sick;
mod spares;
mod start;
mod state;
pub mod status;
mod sweeps;
mod systemd;
mod ublk;
mod uevent;
mod unstarted;
mod upgrade;
mod verbs;
mod words;
mod write_mostly;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nvme_backend::{ArenaConfig, LaneConfig, Remote, start_lane};
use parking_lot::RwLock;
use raid_core::engine::SCRATCH_BYTES_MAX;
use raid_core::membership::{Decision, Observation, Policy};
use raid_core::parity::{CpuParity, Picks};
use raid_core::ports::DriveKey;
use raid_core::units::{LaneId, Slot, Uuid};
use tokio::signal::unix::{SignalKind, signal};

use self::host::Host;
use self::running::Running;
use self::state::{StateDir, StateError};
use crate::control::sockets::Sockets;
use crate::control::{ApiError, ErrorCode, EventCode, ServeOptions, http};
use crate::events::hooks::Hooks;
use crate::events::{Events, NewEvent};
use crate::lane;
use crate::nbd::Limits;

pub use claim::{claim_blank, open_to_read};
pub use examine::examine;

/// Buffer memory of one lane unless the operator sets a bound.
const LANE_BYTES_DEFAULT: u64 = 64 << 20;
/// Smallest buffer memory of one lane: a request, the largest scratch need of the engine, metadata.
const LANE_BYTES_MIN: u64 = 8 * (1 << 20) + SCRATCH_BYTES_MAX + METADATA_BYTES;
const METADATA_BYTES: u64 = 4 << 20;
/// Most lanes by default; more is for `--lanes`.
const LANES_DEFAULT_MAX: usize = 16;
/// How long a group whose members are not all there is waited for at start (SAFETY M4).
const ASSEMBLE_WAIT: Duration = Duration::from_secs(5);

/// The daemon.
pub struct Daemon {
    host: Arc<Host>,
    state: StateDir,
    options: ServeOptions,
    lanes: Vec<Remote>,
    memory_bytes: u64,
    started_unix_s: u64,
    groups: RwLock<BTreeMap<Uuid, Arc<Running>>>,
    unstarted: parking_lot::Mutex<BTreeMap<Uuid, unstarted::Unstarted>>,
    nbd: disks::Nbd,
    ublk: ublk::Ublk,
    upgrade: upgrade::Upgrade,
    manager: systemd::Manager,
    settings: Arc<settings::SettingsStore>,
    spares: spares::Spares,
    sick: sick::Sick,
    change: tokio::sync::Mutex<()>,
    events: Arc<Events>,
    hooks: Arc<Hooks>,
    watched: parking_lot::Mutex<notes::Watched>,
    history: parking_lot::Mutex<crate::history::History>,
}

/// The daemon is stopping.
fn stopping() -> ApiError {
    ApiError::new(ErrorCode::ShuttingDown, "the daemon is stopping")
}

fn io_failed(what: &str, error: &dyn core::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::Io, format!("{what}: {error}")).hint("warpraid status shows the drives")
}

fn start_failed(message: impl core::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::DaemonStart, message.to_string())
}

/// Splits a lane's buffer memory over its pools.
fn arena_of(lane_bytes: u64) -> ArenaConfig {
    let rest = lane_bytes - METADATA_BYTES;
    let scratch_bytes = (rest * 2 / 5).max(SCRATCH_BYTES_MAX);
    ArenaConfig {
        request_bytes: rest - scratch_bytes,
        scratch_bytes,
        metadata_bytes: METADATA_BYTES,
        ..ArenaConfig::default()
    }
}

/// Lanes, each on its own thread.
struct Lanes {
    remotes: Vec<Remote>,
    threads: Vec<JoinHandle<()>>,
    memory_bytes: u64,
}

impl Lanes {
    fn start(options: &ServeOptions, host: &Arc<Host>) -> Result<Self, ApiError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let count = options.lanes.map_or(cpus.min(LANES_DEFAULT_MAX), usize::from);
        if count == 0 {
            return Err(ApiError::new(ErrorCode::UsageInvalid, "--lanes 0: at least one lane is needed"));
        }
        let lanes = raid_core::units::u64_of(count);
        let lane_bytes = options.memory_bytes.map_or(LANE_BYTES_DEFAULT, |bytes| bytes / lanes);
        if lane_bytes < LANE_BYTES_MIN {
            let message = format!(
                "--memory is too small: {count} lanes need at least {} bytes",
                LANE_BYTES_MIN * lanes
            );
            return Err(
                ApiError::new(ErrorCode::UsageInvalid, message).hint("give more memory or fewer --lanes")
            );
        }
        let mut started = Self { remotes: Vec::new(), threads: Vec::new(), memory_bytes: lane_bytes * lanes };
        for number in 0..count {
            let id = LaneId(u16::try_from(number).map_err(start_failed)?);
            let cpu = (count > 1 && number < cpus).then_some(number);
            let config = LaneConfig { id, cpu, arena: arena_of(lane_bytes), ..LaneConfig::default() };
            match start_lane(config) {
                Ok((remote, thread)) => {
                    lane::install(&remote, Arc::clone(host));
                    started.remotes.push(remote);
                    started.threads.push(thread);
                }
                Err(error) => {
                    started.stop();
                    return Err(start_failed(error));
                }
            }
        }
        Ok(started)
    }

    fn stop(self) {
        for remote in &self.remotes {
            remote.stop();
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a lane panicked");
            }
        }
    }
}

/// What computes parity: the kernel that was asked for, or for each operation the one that is fastest here.
fn parity(options: &ServeOptions) -> Result<CpuParity, ApiError> {
    let start = std::time::Instant::now();
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let parity = match &options.parity_kernel {
        Some(name) => CpuParity::with_kernel(name).map_err(|error| {
            ApiError::new(ErrorCode::UsageInvalid, error.to_string())
                .hint("without --parity-kernel the fastest are found by measurement")
        })?,
        None => CpuParity::with_picks(Picks::measured(now_ns)),
    };
    let how = if options.parity_kernel.is_some() { "as asked for" } else { "measured" };
    tracing::info!("parity kernel: {} ({how} in {} us)", parity.kernel_name(), start.elapsed().as_micros());
    Ok(parity)
}

/// Runs the daemon until it is told to stop (SIGTERM, SIGINT).
///
/// # Errors
/// What kept it from starting; once it serves, nothing but the end.
pub fn serve(options: ServeOptions) -> Result<(), ApiError> {
    let parity = parity(&options)?;
    let state = StateDir::open(&options.state_dir, &options.socket).map_err(|error| match &error {
        StateError::Locked { socket, .. } => ApiError::new(ErrorCode::DaemonRunning, error.to_string())
            .hint(format!("use the running daemon (--socket {socket}), or another --state-dir")),
        StateError::Io { source, .. } => match source.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                ApiError::new(ErrorCode::NotPermitted, error.to_string())
                    .hint("start as root, or choose a folder of your own with --state-dir")
            }
            _ => start_failed(&error).hint("choose another folder with --state-dir"),
        },
    })?;
    let sockets = Sockets::open(&options.socket)?;
    let host = Arc::new(Host::new(&options.state_dir, parity).map_err(start_failed)?);
    let lanes = Lanes::start(&options, &host)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(start_failed)?;
    let events = Arc::new(Events::open(&options.state_dir).map_err(start_failed)?);
    let hooks = Hooks::new(options.hooks_dir.clone(), sockets.admin_path().to_owned(), Arc::clone(&events));
    let settings = settings::SettingsStore::open(&options.state_dir);
    let upgrade = upgrade::Upgrade::load(&options.state_dir);
    let daemon = Arc::new(Daemon {
        host: Arc::clone(&host),
        state,
        spares: spares::Spares::load(&options.state_dir),
        sick: sick::Sick::default(),
        options,
        lanes: lanes.remotes.clone(),
        memory_bytes: lanes.memory_bytes,
        started_unix_s: host::unix_seconds(),
        groups: RwLock::default(),
        unstarted: parking_lot::Mutex::default(),
        settings,
        ublk: ublk::Ublk::default(),
        upgrade,
        manager: systemd::Manager::from_environment(),
        nbd: disks::Nbd::new(lanes.remotes.clone(), Limits::default()),
        change: tokio::sync::Mutex::default(),
        events,
        hooks: Arc::new(hooks),
        watched: parking_lot::Mutex::default(),
        history: parking_lot::Mutex::new(samples::empty()),
    });
    let result = runtime.block_on(daemon.run(&sockets));
    // Not waiting for threads that wait for drives which do not answer.
    runtime.shutdown_timeout(Duration::from_secs(1));
    lanes.stop();
    host.stop();
    drop(sockets);
    match result {
        Ok(()) => daemon.upgrade.exec(&daemon.options.state_dir),
        error => error,
    }
}

impl Daemon {
    async fn run(self: &Arc<Self>, sockets: &Sockets) -> Result<(), ApiError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(start_failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(start_failed)?;
        let events = Arc::clone(&self.events);
        let daemon = Arc::clone(self);
        let stop = async move {
            tokio::select! {
                () = daemon.upgrade.asked_for() => tracing::info!("stopping to be upgraded"),
                _ = terminate.recv() => tracing::info!("stopping (SIGTERM)"),
                _ = interrupt.recv() => tracing::info!("stopping (SIGINT)"),
            }
            events.release_waiting();
        };
        let tcp = match self.options.http {
            Some(address) => Some(http::Tcp::bind(address, self.options.http_public).await?),
            None => None,
        };
        tokio::spawn(Arc::clone(&self.hooks).run(self.events.newest()));
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        self.note(NewEvent::new(EventCode::DaemonStarted, format!("warpraid {version} started, pid {pid}")));
        let alive = tokio::spawn(Arc::clone(self).keep_alive());
        if self.options.assemble {
            self.assemble_known().await;
        }
        self.note_upgraded();
        self.look_for_changes();
        let watching = tokio::spawn(Arc::clone(self).watch_states());
        let keeper = tokio::spawn(Arc::clone(self).keep_spares());
        let watcher = tokio::spawn(Arc::clone(self).keep_watch());
        let plugged = tokio::spawn(Arc::clone(self).keep_plugged());
        let sampling = tokio::spawn(Arc::clone(self).keep_history());
        tracing::info!(socket = %sockets.admin_path().display(), lanes = self.lanes.len(), "serving");
        self.manager.ready();
        let result = http::serve_with(Arc::new(api::Api(Arc::clone(self))), sockets, tcp, stop).await;
        let is_upgrade = self.upgrade.is_under_way();
        self.manager.stopping(is_upgrade);
        // That the daemon's own stop ends its groups' problems is no news.
        watching.abort();
        // Not in the middle of a change.
        let change = self.change.lock().await;
        keeper.abort();
        watcher.abort();
        plugged.abort();
        drop(change);
        sampling.abort();
        if is_upgrade {
            self.leave_for_upgrade().await;
        } else {
            self.leave_ublk().await;
        }
        let running: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        for group in running {
            if let Err(error) = self.stop_group(&group, true).await {
                tracing::error!(group = group.name(), %error, "the group could not be stopped cleanly");
            }
        }
        let why = if is_upgrade { "the daemon stopped to be upgraded" } else { "the daemon stopped" };
        self.note(NewEvent::new(EventCode::DaemonStopped, why));
        alive.abort();
        self.events.stop();
        result
    }

    /// Starts every group that the drives of this host carry; those short of members after a wait.
    async fn assemble_known(self: &Arc<Self>) {
        let change = self.change.lock().await;
        let deadline = tokio::time::Instant::now() + ASSEMBLE_WAIT;
        loop {
            let waited = tokio::time::Instant::now() >= deadline;
            let is_waiting = self.assemble_round(waited, None).await;
            if !is_waiting || waited {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        drop(change);
        self.restore_exposures().await;
    }

    /// One look at all known drives, for the members of every group or of one; true if a group waits for members.
    async fn assemble_round(self: &Arc<Self>, waited: bool, only: Option<Uuid>) -> bool {
        let paths = self.known_paths();
        let wanted = |looked: &look::Looked| match (looked.seen.group(), only) {
            (Some(group), Some(only)) => group == only,
            (group, _) => group.is_some(),
        };
        let looked = match self.take_members(&paths, wanted).await {
            Ok(looked) => looked,
            Err(error) => {
                tracing::error!(%error, "cannot look for groups");
                return false;
            }
        };
        let groups: std::collections::BTreeSet<Uuid> =
            looked.iter().filter_map(|one| one.seen.group()).collect();
        let mut is_waiting = false;
        for uuid in groups {
            let (mine, _): (Vec<_>, Vec<_>) =
                looked.iter().cloned().partition(|one| one.seen.group() == Some(uuid));
            let keys: Vec<DriveKey> = mine.iter().map(|one| one.key).collect();
            if self.is_running(uuid) {
                self.release(keys).await;
                continue;
            }
            let policy = Policy { waited, ..Policy::default() };
            let decided = self.decide(uuid, mine, policy);
            match decided.decision {
                Decision::Start(plan) => {
                    if let Err(error) = self.start_planned(*plan, decided.looked, false).await {
                        tracing::error!(%error, "group not started");
                    }
                    continue;
                }
                Decision::WaitFor { missing } => {
                    is_waiting = true;
                    tracing::info!(group = %uuid, missing = missing.len(), "waiting for members");
                }
                Decision::Refuse(refusal) => {
                    // Members may still come; after the wait the refusal is the answer.
                    is_waiting = true;
                    let error = refused::refused(&name_of(&decided.looked, uuid), &refusal, &decided.looked);
                    self.note_unstarted(uuid, &decided.looked, Some(&refusal), &error);
                    if waited {
                        tracing::error!("{error}");
                    }
                }
            }
            self.release(keys).await;
        }
        is_waiting
    }

    /// Lets go of the drives of members that were dropped since housekeeping looked, so that a verb can have them.
    async fn release_dropped(&self) {
        let running: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        for group in running {
            self.drop_cut_files(&group).await;
            group.release_dropped(&self.host, &self.lanes);
        }
    }

    /// The running group whose member is the drive at this path.
    fn member_at(&self, path: &Path) -> Option<(Arc<Running>, Slot, DriveKey)> {
        let key = self.host.key_of_path(path)?;
        let groups = self.groups.read();
        groups.values().find_map(|group| group.slot_of(key).map(|slot| (Arc::clone(group), slot, key)))
    }

    /// The running group of this name or uuid.
    fn running(&self, name: &str) -> Option<Arc<Running>> {
        let uuid = Uuid::parse(name);
        let groups = self.groups.read();
        let by_name = |group: &&Arc<Running>| {
            raid_core::names::same_name(group.name(), name) || uuid == Some(group.uuid)
        };
        groups.values().find(by_name).cloned()
    }

    /// The running group of this name or uuid.
    ///
    /// # Errors
    /// `group.not.found`.
    fn need_running(&self, name: &str) -> Result<Arc<Running>, ApiError> {
        self.running(name).ok_or_else(|| {
            ApiError::new(ErrorCode::GroupNotFound, format!("no group {name:?} is running")).hint(
                "warpraid group list shows the groups; warpraid group assemble starts one from its drives",
            )
        })
    }
}

/// The name of a group as its members have it; its uuid if none can be read.
fn name_of(looked: &[look::Looked], uuid: Uuid) -> String {
    let name = looked.iter().find_map(|one| match &one.seen.what {
        Observation::Ours(ours) if ours.copy.group == uuid => Some(ours.copy.name.clone()),
        _ => None,
    });
    name.unwrap_or_else(|| uuid.to_string())
}
