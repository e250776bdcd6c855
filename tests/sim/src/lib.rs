//! A simulated world for raid-core: a seeded single-threaded executor, RAM drives, a virtual clock and heap leases.
//!
//! Everything is deterministic for a seed. The engine's own code runs here unchanged; only the ports differ.

#![allow(unsafe_code)]

mod drive;
mod env;
mod executor;
mod heap;

pub use drive::SimDrive;
pub use env::{SimClock, SimEnv};
pub use executor::Executor;
