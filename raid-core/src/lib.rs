//! RAID logic only: no threads, clock, RNG, files, sockets or HashMap iteration; everything else comes through [`ports`].

pub mod disks;
pub mod engine;
pub mod format;
pub mod geometry;
pub mod lease;
pub mod membership;
pub mod names;
pub mod pacing;
pub mod parity;
pub mod ports;
mod sync;
pub mod units;
pub mod view;
