//! The daemon: groups, lanes and their life from start to stop.
