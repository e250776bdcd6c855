//! The engine on simulated drives, byte for byte against plain models: every level, whole and degraded, with drives that
//! fail, lie, are slow, or come back. One program, so that what all of it is made of is compiled once.

mod avoid;
mod exact;
mod faults;
mod findings;
mod random;
mod readd;
mod scrub;
mod succeed;
