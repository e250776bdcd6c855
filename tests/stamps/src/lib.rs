//! Stamps: blocks that carry their own offset, write number and checksum, and a plain NBD client; shares no code with the engine.
//!
//! This crate is the outside view that checks warpraid: it knows the NBD protocol and its own blocks, and nothing about
//! RAID. It uses the standard library only, so that a bug of the engine (or of a library the engine uses) cannot hide
//! itself by being on both sides of a comparison.
//!
//! - [`block`]: one 512-byte stamp: how it is written, and what a block found on a disk is.
//! - [`model`]: what each block of a disk may hold, given which writes were begun, acknowledged and flushed.
//! - [`nbd`]: a blocking, pipelined NBD client.
//! - [`load`]: stamped load over NBD connections, each read checked against the model.
//! - [`members`]: do parity and copies on the drives of a group agree with the data?

pub mod block;
pub mod load;
pub mod members;
pub mod model;
pub mod nbd;
mod random;

pub use block::{BLOCK_BYTES, Found, Stamp};
pub use model::{Fault, Finding, Model};
pub use random::Random;
