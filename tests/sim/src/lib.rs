//! A simulated world for raid-core: a seeded single-threaded executor, drives in memory that fail like real ones, a
//! virtual clock, heap leases, parity by definition, and a group with a plain model of its contents.
//!
//! Everything is deterministic for a seed. The engine's own code runs here unchanged; only the ports differ.

#![allow(unsafe_code)]

mod drive;
mod env;
mod executor;
mod heap;
mod parity;
mod world;

pub use drive::{Command, Op, Running, SimDrive};
pub use env::{SimClock, SimEnv};
pub use executor::Executor;
pub use parity::{SimParity, gf_mul, gf_pow2, syndrome};
pub use world::{Shape, World, bare_view, read_vec, write_slice};
