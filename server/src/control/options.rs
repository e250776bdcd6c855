//! What `warpraid serve` is started with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time a drive may take for one command before it counts as hung (SAFETY M7), unless set otherwise.
pub const DRIVE_TIMEOUT_NS: u64 = 30_000_000_000;

/// How often a problem that stands is told again, unless set otherwise.
pub const REMIND_EVERY: Duration = Duration::from_secs(12 * 3600);

/// How long a member that was missing at start is waited for before a spare takes its place, unless set otherwise.
pub const SPARE_WAIT_MISSING_NS: u64 = 30_000_000_000;

/// The same for a member that failed while the daemon watched.
pub const SPARE_WAIT_FAILED_NS: u64 = 5_000_000_000;

/// Failed commands of a member within an hour that are put up with, unless set otherwise.
pub const ERROR_BUDGET: u64 = 50;

/// Options of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// Folder of witnesses and events (a group lives on its drives, not here).
    pub state_dir: PathBuf,
    /// The admin socket; `read.sock` is made beside it.
    pub socket: PathBuf,
    /// Number of lanes; by default one per CPU the process may run on.
    pub lanes: Option<u16>,
    /// Bound of the buffer memory of all lanes together, in bytes.
    pub memory_bytes: Option<u64>,
    /// The parity kernel that does everything, or `cycle` for all in turn; unset: for each operation the fastest, by measurement.
    pub parity_kernel: Option<String>,
    /// Longest time a drive may take for one command, in nanoseconds.
    pub drive_timeout_ns: u64,
    /// Drives (or folders of file-backed drives) to look at beside the block devices of the host.
    pub drives: Vec<PathBuf>,
    /// Whether groups found on the drives are started.
    pub assemble: bool,
    /// Folder of the executables that get every event.
    pub hooks_dir: PathBuf,
    /// How often a problem that stands is told again; none: only once, and when the daemon starts.
    pub remind_every: Option<Duration>,
    /// Where to serve the read-only API and metrics over HTTP; none: nowhere.
    pub http: Option<SocketAddr>,
    /// Whether that may be an address others can reach.
    pub http_public: bool,
    /// Whether drives may be told to fail (`fault inject`).
    pub allow_faults: bool,
    /// Failed commands within an hour, made good from redundancy, after which a member is dropped if the group can lose
    /// another one after that; 0: never.
    pub error_budget: u64,
    /// How long a member that was missing at start is waited for before a spare takes its place, in nanoseconds.
    pub spare_wait_missing_ns: u64,
    /// The same for a member that failed while the daemon watched.
    pub spare_wait_failed_ns: u64,
}

impl ServeOptions {
    /// The defaults with this state folder and socket.
    pub fn new(state_dir: impl Into<PathBuf>, socket: impl Into<PathBuf>) -> Self {
        let state_dir: PathBuf = state_dir.into();
        Self {
            hooks_dir: state_dir.join("hooks.d"),
            remind_every: Some(REMIND_EVERY),
            http: None,
            http_public: false,
            state_dir,
            socket: socket.into(),
            lanes: None,
            memory_bytes: None,
            parity_kernel: None,
            drive_timeout_ns: DRIVE_TIMEOUT_NS,
            drives: Vec::new(),
            assemble: true,
            allow_faults: false,
            error_budget: ERROR_BUDGET,
            spare_wait_missing_ns: SPARE_WAIT_MISSING_NS,
            spare_wait_failed_ns: SPARE_WAIT_FAILED_NS,
        }
    }
}
