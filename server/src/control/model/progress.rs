//! How far a long operation is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a long operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The first computation of redundancy.
    InitialSync,
    /// Redundancy remade after an unclean stop.
    Resync,
    /// A member's contents remade.
    Rebuild,
    /// A new drive filled with what a member holds that goes on serving.
    Replace,
    /// Redundancy compared with the data.
    Check,
}

/// How far a long operation is. Honest: no rate, no ETA.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProgressDoc {
    /// What is being done.
    pub operation: Operation,
    /// The slot it is done to, where it is one.
    pub slot: Option<u8>,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all; 0 while they have not been counted yet.
    pub total_bytes: u64,
    /// Whole percent done, rounded down, 0 to 100.
    pub percent: u8,
    /// Rate of the last 60 s (or since the start), unknown before the first bytes.
    pub rate_bytes_per_s: Option<u64>,
    /// Seconds to go at that rate; unknown without one.
    pub eta_s: Option<u64>,
    /// When it started.
    pub started_unix_s: u64,
}

impl ProgressDoc {
    /// A progress with percent and ETA computed from bytes and rate.
    #[must_use]
    pub fn new(operation: Operation, slot: Option<u8>, done_bytes: u64, total_bytes: u64) -> Self {
        let done_bytes = done_bytes.min(total_bytes);
        let percent = u128::from(done_bytes) * 100 / u128::from(total_bytes.max(1));
        let percent = u8::try_from(percent).unwrap_or(100);
        Self {
            operation,
            slot,
            done_bytes,
            total_bytes,
            percent,
            rate_bytes_per_s: None,
            eta_s: None,
            started_unix_s: 0,
        }
    }

    /// The same with a start time and a measured rate (none or 0: unknown).
    #[must_use]
    pub fn measured(mut self, started_unix_s: u64, rate_bytes_per_s: Option<u64>) -> Self {
        self.started_unix_s = started_unix_s;
        self.rate_bytes_per_s = rate_bytes_per_s.filter(|&rate| rate > 0);
        self.eta_s = self.rate_bytes_per_s.map(|rate| (self.total_bytes - self.done_bytes).div_ceil(rate));
        self
    }
}
