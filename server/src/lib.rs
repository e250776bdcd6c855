//! The daemon as a library: lanes, front ends, control API, events.

pub mod control;
pub mod daemon;
pub mod disk;
pub mod lane;
pub mod nbd;
