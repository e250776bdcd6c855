//! What the demo came to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A disk that a kept demo still serves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DemoDiskDoc {
    /// `GROUP/DISK`.
    pub name: String,
    /// As NBD clients want it.
    pub uri: String,
}

/// A demo that was left running.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DemoKeptDoc {
    /// The daemon's process id.
    pub pid: u32,
    /// The daemon's socket.
    pub socket: String,
    /// Everything of the demo lies here.
    pub folder: String,
    /// What is served.
    pub disks: Vec<DemoDiskDoc>,
}

/// What the demo did; every byte it counts as verified was compared with what was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DemoDoc {
    /// Bytes written by NBD clients.
    pub written_bytes: u64,
    /// Bytes zeroed by NBD clients.
    pub zeroed_bytes: u64,
    /// Bytes read back and found right; a wrong one would have ended the demo.
    pub verified_bytes: u64,
    /// Requests answered, none with an error.
    pub requests: u64,
    /// Flushes among them.
    pub flushes: u64,
    /// The slowest request.
    pub slowest_ns: u64,
    /// The whole demo.
    pub elapsed_ns: u64,
    /// How to reach what was left running; null unless asked for.
    pub kept: Option<DemoKeptDoc>,
}
