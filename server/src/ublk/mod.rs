//! ublk: disks served to this host as block devices, `/dev/ublkbN`, one queue a lane.
//!
//! [`params`] what the kernel is told of a disk and what is asked of a kernel (no I/O), [`serve`] one tag of a queue on
//! its lane, [`device`] a device from its making (or taking over from a daemon that died) to its end.
//!
//! A device outlives its daemon: the kernel holds requests back while nobody serves, sends those that were in flight
//! again to the next daemon, and nobody who has it mounted sees an error. That daemon has opened every member exclusively
//! before it takes the device over, which waits for the last write of the dead one (SAFETY M8); so a write that is sent
//! again follows every write that was begun, and no request that was answered is ever sent again.

pub mod device;
pub mod params;
pub mod serve;
