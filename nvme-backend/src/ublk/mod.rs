//! ublk, the kernel's block devices served by a process (linux/ublk_cmd.h).
//!
//! | module | what |
//! |---|---|
//! | `protocol` | the structures, as the kernel reads and writes them |
//! | `control` | the device that makes devices |
//! | `queue` | one queue of a device, on a lane |
//! | `process` | what a process must do that serves pages to the kernel |
//!
//! Data moves with UBLK_F_USER_COPY: pread and pwrite on the character device copy between a request's pages and leases.
//! Both are a copy in the kernel that waits for nothing (our memory is locked), so a lane does them itself, and what the
//! engine computes parity over is its own copy (SAFETY S2).
//!
//! Invariants: all commands of a queue are sent by the lane it lives on (the kernel insists); a tag has one command in
//! flight or one request being served, never both; a queue's file stays open while a command of it is in flight.

mod control;
mod process;
mod protocol;
mod queue;

pub use control::{CONTROL_PATH, Control};
pub use process::{holders_of, protect_process, protect_thread, users_of};
pub use protocol::{
    DeviceInfo, DeviceState, Params, REQUEST_BYTES_MAX, Request, RequestOp, SECTOR_BYTES, feature,
};
pub use queue::{Queue, open_device};
