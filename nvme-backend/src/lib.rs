//! The reactor (one io_uring per lane) and the drives behind it: file and block device, RAM, null; the DMA arena.
//!
//! | module | what |
//! |---|---|
//! | `lane` | one thread, one ring, one loop; [`start_lane`], [`block_on_lane`] |
//! | `ring` | io_uring and the table of operations that own what the kernel works on |
//! | `executor`, `timers`, `remote` | tasks, time, other threads |
//! | [`meter`] | counters of I/O |
//! | [`arena`] | the bounded memory all I/O uses |
//! | [`socket`] | what the NBD front end reads and writes with |
//! | [`ublk`] | the kernel's block devices served by lanes |
//! | [`drive`] | opened once, a handle per lane: `raid_core::ports::Drive` |

pub mod arena;
pub mod drive;
mod executor;
mod lane;
pub mod meter;
mod remote;
mod ring;
pub mod socket;
mod timers;
pub mod ublk;

pub use arena::{Arena, ArenaConfig};
pub use drive::{
    DeviceListing, DriveKind, Errnos, Fault, FaultKind, Identity, LaneDrive, OpenDrive, OpenError,
    OpenOptions, Smart, diskseq_of, list_block_devices, port_of, read_smart,
};
pub use lane::{Lane, LaneConfig, StartError, block_on_lane, start_lane, try_block_on_lane};
pub use remote::{Job, Remote};
pub use socket::{Listener, Part, Socket};
