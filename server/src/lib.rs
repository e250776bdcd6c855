//! The daemon as a library: lanes, front ends, control API, events.
