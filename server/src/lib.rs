//! The daemon as a library: lanes, front ends, control API, events.

pub mod control;
pub mod daemon;
pub mod disk;
pub mod events;
pub mod history;
pub mod lane;
pub mod metrics;
pub mod nbd;
pub mod page;
pub mod ublk;
