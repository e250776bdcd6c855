//! The verbs of the control API, one file per noun: inherent methods of [`super::api::Api`]. Checks first, then `dry_run`
//! answers, then deeds.

mod assemble;
mod disks;
mod drives;
mod faults;
mod groups;
mod health;
mod interop;
mod scrub;
mod spares;
