//! A group under a real daemon with one stamped disk: where most end-to-end tests begin.

use std::path::PathBuf;

use crate::daemon::Export;
use crate::{Daemon, Lab, Stamped};

/// Bytes of each of its drives.
pub const DRIVE_BYTES: u64 = 64 << 20;

/// A group `tank` in sync, with the disk `tank/disk` served and filled with stamps that are flushed. Fields are dropped in
/// order: the folder goes when nothing is in it any more.
pub struct StampedGroup {
    /// Where the disk is served.
    pub export: Export,
    /// What was written to it.
    pub stamped: Stamped,
    /// Its daemon.
    pub daemon: Daemon,
    /// Its drives, in slot order.
    pub drives: Vec<PathBuf>,
    /// The folder of it all.
    pub lab: Lab,
}

impl StampedGroup {
    /// Makes the group of `width` file-backed drives under a daemon with these options.
    #[must_use]
    pub fn new(name: &str, level: u32, width: usize, size: &str, options: &[&str]) -> Self {
        let lab = Lab::new(name);
        let drives = lab.drives("d", width, DRIVE_BYTES);
        let daemon = lab.daemon_with(options);
        let (stamped, export) = fill(&daemon, level, &drives, size);
        Self { export, stamped, daemon, drives, lab }
    }
}

/// Makes `tank` of these drives, waits until it is in sync, and serves and fills a disk of `size`.
#[must_use]
pub fn fill(daemon: &Daemon, level: u32, drives: &[PathBuf], size: &str) -> (Stamped, Export) {
    daemon.create("tank", level, drives);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", size);
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    stamped.flush(&export);
    (stamped, export)
}
