//! ublk, the kernel's block devices served by a process: the protocol (linux/ublk_cmd.h), the control device, and one
//! queue of a device on a lane.
//!
//! Data moves with UBLK_F_USER_COPY: pread and pwrite on the character device copy between a request's pages and leases.
//! Both are a copy in the kernel that waits for nothing (our memory is locked), so a lane does them itself, and what the
//! engine computes parity over is its own copy (SAFETY S2).
//!
//! Invariants: all commands of a queue are sent by the lane it lives on (the kernel insists); a tag has one command in
//! flight or one request being served, never both; a queue's file stays open while a command of it is in flight.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use raid_core::lease::Lease;
use raid_core::units::{u64_of, usize_of_u32};
use smallvec::SmallVec;

use crate::lane::Lane;
use crate::ring::ublk::{Descriptors, control, fetch};
use crate::ring::{Finished, Owner, Payload};

/// The device that makes devices.
pub const CONTROL_PATH: &str = "/dev/ublk-control";
/// Most bytes of one request (UBLK_IO_BUF_BITS).
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Sectors of the protocol, whatever the block size.
pub const SECTOR_BYTES: u32 = 512;

/// UBLK_F_*: what a kernel can do and what a device uses.
pub mod feature {
    /// The device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests in flight when the server died are sent again.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands have the numbers of ioctls.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Data is copied with pread and pwrite.
    pub const USER_COPY: u64 = 1 << 7;
    /// The size can change while the device is served.
    pub const UPDATE_SIZE: u64 = 1 << 10;
    /// The device can be told to wait for another server.
    pub const QUIESCE: u64 = 1 << 12;
    /// A device can be stopped only if nobody has it open.
    pub const SAFE_STOP_DEV: u64 = 1 << 17;
}

/// UBLK_S_DEV_*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server is gone; I/O waits for the next one.
    Quiesced,
    /// Its server is gone; I/O fails.
    FailIo,
    /// A state of a later kernel.
    Other(u16),
}

impl DeviceState {
    fn of(number: u16) -> Self {
        match number {
            0 => Self::Dead,
            1 => Self::Live,
            2 => Self::Quiesced,
            3 => Self::FailIo,
            other => Self::Other(other),
        }
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Number: `/dev/ublkbN`. `u32::MAX` asks for any.
    pub id: u32,
    /// Hardware queues.
    pub queues: u16,
    /// Requests in flight of each.
    pub depth: u16,
    /// What it is doing.
    pub state: DeviceState,
    /// Most bytes of one request.
    pub request_bytes_max: u32,
    /// Its server's pid, as the kernel was told.
    pub pid: i32,
    /// [`feature`]s it uses.
    pub features: u64,
    /// The server's own mark, which the kernel keeps and does not look at.
    pub mark: u64,
}

const INFO_BYTES: usize = 64;

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("inside the structure")
}

impl DeviceInfo {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; INFO_BYTES];
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.request_bytes_max.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.features.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.mark.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        Self {
            queues: u16::from_ne_bytes(field(bytes, 0)),
            depth: u16::from_ne_bytes(field(bytes, 2)),
            state: DeviceState::of(u16::from_ne_bytes(field(bytes, 4))),
            request_bytes_max: u32::from_ne_bytes(field(bytes, 8)),
            id: u32::from_ne_bytes(field(bytes, 12)),
            pid: i32::from_ne_bytes(field(bytes, 16)),
            features: u64::from_ne_bytes(field(bytes, 24)),
            mark: u64::from_ne_bytes(field(bytes, 32)),
        }
    }
}

/// What the kernel is told of a disk: `struct ublk_params`, basic and discard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Writes are refused.
    pub is_read_only: bool,
    /// Writes may sit in a volatile cache until a flush; without it the kernel sends no flush.
    pub has_volatile_cache: bool,
    /// Writes can be made durable one by one.
    pub has_fua: bool,
    /// Log2 of the smallest unit of a request.
    pub logical_shift: u8,
    /// Log2 of the unit that is written without reading.
    pub physical_shift: u8,
    /// Log2 of the size at which I/O is cheapest; 0: nothing to say.
    pub best_shift: u8,
    /// Log2 of the smallest size that is not slow.
    pub small_shift: u8,
    /// Most sectors of one request.
    pub sectors_max: u32,
    /// Size in sectors.
    pub sectors: u64,
    /// Unit of a discard in bytes.
    pub discard_unit_bytes: u32,
    /// Most sectors of one discard, and of one write-zeroes.
    pub zero_sectors_max: u32,
}

/// Up to and with `struct ublk_param_discard`.
const PARAMS_BYTES: usize = 60;
const PARAM_BASIC: u32 = 1;
const PARAM_DISCARD: u32 = 2;
const ATTR_READ_ONLY: u32 = 1;
const ATTR_VOLATILE_CACHE: u32 = 4;
const ATTR_FUA: u32 = 8;

impl Params {
    fn encode(&self) -> Vec<u8> {
        let attributes = [
            (self.is_read_only, ATTR_READ_ONLY),
            (self.has_volatile_cache, ATTR_VOLATILE_CACHE),
            (self.has_fua, ATTR_FUA),
        ];
        let attributes: u32 = attributes.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
        let mut bytes = vec![0; PARAMS_BYTES];
        bytes[0..4].copy_from_slice(&60_u32.to_ne_bytes());
        bytes[4..8].copy_from_slice(&(PARAM_BASIC | PARAM_DISCARD).to_ne_bytes());
        bytes[8..12].copy_from_slice(&attributes.to_ne_bytes());
        bytes[12] = self.logical_shift;
        bytes[13] = self.physical_shift;
        bytes[14] = self.best_shift;
        bytes[15] = self.small_shift;
        bytes[16..20].copy_from_slice(&self.sectors_max.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.sectors.to_ne_bytes());
        bytes[44..48].copy_from_slice(&self.discard_unit_bytes.to_ne_bytes());
        bytes[48..52].copy_from_slice(&self.zero_sectors_max.to_ne_bytes());
        bytes[52..56].copy_from_slice(&self.zero_sectors_max.to_ne_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let attributes = u32::from_ne_bytes(field(bytes, 8));
        Self {
            is_read_only: attributes & ATTR_READ_ONLY != 0,
            has_volatile_cache: attributes & ATTR_VOLATILE_CACHE != 0,
            has_fua: attributes & ATTR_FUA != 0,
            logical_shift: bytes[12],
            physical_shift: bytes[13],
            best_shift: bytes[14],
            small_shift: bytes[15],
            sectors_max: u32::from_ne_bytes(field(bytes, 16)),
            sectors: u64::from_ne_bytes(field(bytes, 24)),
            discard_unit_bytes: u32::from_ne_bytes(field(bytes, 44)),
            zero_sectors_max: u32::from_ne_bytes(field(bytes, 48)),
        }
    }
}

/// `_IOC('u', number)` over a command of `bytes`; `direction`: 2 for `_IOR`, 3 for `_IOWR`.
const fn op(direction: u32, number: u32, bytes: u32) -> u32 {
    (direction << 30) | (bytes << 16) | (0x75 << 8) | number
}
const fn control_op(direction: u32, number: u32) -> u32 {
    op(direction, number, 32)
}
const GET_DEV_INFO: u32 = control_op(2, 0x02);
const ADD_DEV: u32 = control_op(3, 0x04);
const DEL_DEV: u32 = control_op(3, 0x05);
const START_DEV: u32 = control_op(3, 0x06);
const STOP_DEV: u32 = control_op(3, 0x07);
const SET_PARAMS: u32 = control_op(3, 0x08);
const GET_PARAMS: u32 = control_op(2, 0x09);
const START_USER_RECOVERY: u32 = control_op(3, 0x10);
const END_USER_RECOVERY: u32 = control_op(3, 0x11);
const GET_FEATURES: u32 = control_op(2, 0x13);
const UPDATE_SIZE: u32 = control_op(3, 0x15);
const TRY_STOP_DEV: u32 = control_op(3, 0x17);
const FETCH_REQ: u32 = op(3, 0x20, 16);
const COMMIT_AND_FETCH_REQ: u32 = op(3, 0x21, 16);

/// The control device. Every call blocks its thread, some until lanes have done their part: never on a lane.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// `NotFound`: the module `ublk_drv` is not there; `PermissionDenied`: root is needed.
    pub fn open() -> io::Result<Self> {
        Ok(Self(OpenOptions::new().read(true).write(true).open(CONTROL_PATH)?))
    }

    fn send(&self, op: u32, id: u32, data: u64, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        match control(&self.0, op, id, data, buffer)? {
            (result, buffer) if result >= 0 => Ok(buffer),
            (result, _) => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    fn tell(&self, op: u32, id: u32, data: u64) -> io::Result<()> {
        self.send(op, id, data, Vec::new()).map(drop)
    }

    /// The [`feature`]s of this kernel.
    ///
    /// # Errors
    /// What the kernel says; before 6.5 it does not know the question.
    pub fn features(&self) -> io::Result<u64> {
        let bytes = self.send(GET_FEATURES, u32::MAX, 0, vec![0; 8])?;
        Ok(u64::from_ne_bytes(field(&bytes, 0)))
    }

    /// Makes a device; the kernel may give it fewer queues.
    ///
    /// # Errors
    /// What the kernel says; `EEXIST`, `ENOSPC` and `EACCES` among them.
    pub fn add(&self, wanted: &DeviceInfo) -> io::Result<DeviceInfo> {
        Ok(DeviceInfo::decode(&self.send(ADD_DEV, wanted.id, 0, wanted.encode())?))
    }

    /// What the kernel knows of a device.
    ///
    /// # Errors
    /// `ENODEV`: there is none.
    pub fn info(&self, id: u32) -> io::Result<DeviceInfo> {
        Ok(DeviceInfo::decode(&self.send(GET_DEV_INFO, id, 0, vec![0; INFO_BYTES])?))
    }

    /// Says what disk it is; before [`Self::start`].
    ///
    /// # Errors
    /// `EINVAL`: the kernel does not take these.
    pub fn set_params(&self, id: u32, params: &Params) -> io::Result<()> {
        self.send(SET_PARAMS, id, 0, params.encode()).map(drop)
    }

    /// What was said.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn params(&self, id: u32) -> io::Result<Params> {
        let mut bytes = vec![0; PARAMS_BYTES];
        bytes[0..4].copy_from_slice(&60_u32.to_ne_bytes());
        Ok(Params::decode(&self.send(GET_PARAMS, id, 0, bytes)?))
    }

    /// Brings the block device up; completes when every tag of every queue was fetched and partitions were looked for.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(&self, id: u32) -> io::Result<()> {
        self.tell(START_DEV, id, u64::from(std::process::id()))
    }

    /// Takes the block device away, whoever uses it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn stop(&self, id: u32) -> io::Result<()> {
        self.tell(STOP_DEV, id, 0)
    }

    /// Takes the block device away if nobody has it open ([`feature::SAFE_STOP_DEV`]).
    ///
    /// # Errors
    /// `EBUSY`: somebody has.
    pub fn try_stop(&self, id: u32) -> io::Result<()> {
        self.tell(TRY_STOP_DEV, id, 0)
    }

    /// Forgets the device; completes when its character device is closed everywhere.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete(&self, id: u32) -> io::Result<()> {
        self.tell(DEL_DEV, id, 0)
    }

    /// Begins to take over a device whose server is gone.
    ///
    /// # Errors
    /// `EBUSY`: the kernel is not done with the old one yet.
    pub fn start_recovery(&self, id: u32) -> io::Result<()> {
        self.tell(START_USER_RECOVERY, id, 0)
    }

    /// Ends that: requests that were in flight are sent again. Completes when every tag was fetched.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end_recovery(&self, id: u32) -> io::Result<()> {
        self.tell(END_USER_RECOVERY, id, u64::from(std::process::id()))
    }

    /// Changes the size of a device that is served ([`feature::UPDATE_SIZE`]).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn update_size(&self, id: u32, sectors: u64) -> io::Result<()> {
        self.tell(UPDATE_SIZE, id, sectors)
    }
}

/// Opens the character device of a device: its server's end. The kernel lets one process have it.
///
/// # Errors
/// `NotFound` until devtmpfs has made it; `ResourceBusy` while another has it.
pub fn open_device(id: u32) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{id}"))?;
    Ok(file.into())
}

/// What a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOp {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable what was written.
    Flush,
    /// The range is not needed any more.
    Discard,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// One that we did not ask for.
    Unknown(u8),
}

/// A request of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What it wants.
    pub op: RequestOp,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// It must be durable when it is answered.
    pub is_fua: bool,
    /// The space must not be given up.
    pub keeps_space: bool,
}

const FLAG_FUA: u32 = 1 << 13;
const FLAG_NOUNMAP: u32 = 1 << 15;

impl Request {
    /// `struct ublksrv_io_desc`. A start beyond 64 bits of bytes (a flush has one) is the last byte there is: in no disk.
    #[must_use]
    pub fn decode(bytes: &[u8; 24]) -> Self {
        let op_flags = u32::from_ne_bytes(field(bytes, 0));
        let [op, ..] = op_flags.to_le_bytes();
        let sector = u64::from(SECTOR_BYTES);
        Self {
            op: match op {
                0 => RequestOp::Read,
                1 => RequestOp::Write,
                2 => RequestOp::Flush,
                3 => RequestOp::Discard,
                5 => RequestOp::WriteZeroes,
                other => RequestOp::Unknown(other),
            },
            at: u64::from_ne_bytes(field(bytes, 8)).saturating_mul(sector),
            len: u64::from(u32::from_ne_bytes(field(bytes, 4))) * sector,
            is_fua: op_flags & FLAG_FUA != 0,
            keeps_space: op_flags & FLAG_NOUNMAP != 0,
        }
    }
}

/// Keeps the character device open while a command is in flight.
struct Chars(Arc<OwnedFd>);

impl Owner for Chars {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn cancels_dropped(&self) -> bool {
        false
    }

    fn ends_with_ring(&self) -> bool {
        true
    }
}

struct Inner {
    lane: Lane,
    chars: Rc<Chars>,
    number: u16,
    descriptors: Descriptors,
}

/// One queue of a device, on its lane. Cheap to clone; `!Send`.
#[derive(Clone)]
pub struct Queue(Rc<Inner>);

impl Queue {
    /// Takes a queue to this lane.
    ///
    /// # Errors
    /// The kernel does not share its descriptors.
    pub fn open(lane: &Lane, device: Arc<OwnedFd>, number: u16, depth: u16) -> io::Result<Self> {
        let descriptors = Descriptors::map(device.as_fd(), number, depth)?;
        Ok(Self(Rc::new(Inner { lane: lane.clone(), chars: Rc::new(Chars(device)), number, descriptors })))
    }

    async fn send(&self, op: u32, tag: u16, result: i32) -> io::Result<Request> {
        let inner = &*self.0;
        let owner: Rc<dyn Owner> = inner.chars.clone();
        match fetch(&inner.lane, owner, op, inner.number, tag, result).await {
            Finished::Done(0, Payload::None) => Ok(Request::decode(&inner.descriptors.get(tag))),
            Finished::Done(result, _) => Err(io::Error::from_raw_os_error(result.saturating_neg())),
            Finished::TimedOut => unreachable!("a fetch has no deadline"),
        }
    }

    /// Waits for the first request of a tag.
    ///
    /// # Errors
    /// `ENODEV`: the device was stopped. Others: the kernel does not take the queue.
    pub async fn fetch(&self, tag: u16) -> io::Result<Request> {
        self.send(FETCH_REQ, tag, 0).await
    }

    /// Answers the request of a tag (bytes moved, or a negative errno) and waits for its next one.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub async fn commit(&self, tag: u16, result: i32) -> io::Result<Request> {
        self.send(COMMIT_AND_FETCH_REQ, tag, result).await
    }

    fn place(&self, tag: u16, at: u32) -> u64 {
        0x8000_0000 + (u64::from(self.0.number) << 41) + (u64::from(tag) << 25) + u64::from(at)
    }

    /// Copies what a write request brings, from its byte `at` on, into the leases.
    ///
    /// # Errors
    /// What the kernel says; `UnexpectedEof` when the request is shorter.
    pub fn copy_in(&self, tag: u16, at: u32, into: &mut [Lease]) -> io::Result<()> {
        let whole: usize = into.iter().map(|lease| usize_of_u32(lease.len())).sum();
        let mut parts: SmallVec<[IoSliceMut<'_>; 16]> =
            into.iter_mut().map(|lease| IoSliceMut::new(lease.bytes_mut())).collect();
        let copied = rustix::io::preadv(&*self.0.chars.0, &mut parts, self.place(tag, at))?;
        if copied == whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Copies the leases into a read request, from its byte `at` on.
    ///
    /// # Errors
    /// What the kernel says; `WriteZero` when the request is shorter.
    pub fn copy_out(&self, tag: u16, at: u32, from: &[Lease]) -> io::Result<()> {
        let whole: usize = from.iter().map(|lease| usize_of_u32(lease.len())).sum();
        let parts: SmallVec<[IoSlice<'_>; 16]> =
            from.iter().map(|lease| IoSlice::new(lease.bytes())).collect();
        let copied = rustix::io::pwritev(&*self.0.chars.0, &parts, self.place(tag, at))?;
        if copied == whole { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Keeps this process out of the way of the memory it serves pages for: it never waits for its own disks to be written
/// (PR_SET_IO_FLUSHER, of the calling thread and those it starts), is never swapped out, and is killed last when memory
/// runs out. Returns what was refused, in words.
#[must_use]
pub fn protect_process() -> Vec<String> {
    use rustix::mm::MlockAllFlags;
    let mut refused = Vec::new();
    // What is mapped now in full; later mappings (thread stacks) as they are touched.
    let locked = rustix::mm::mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| rustix::mm::mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT));
    if let Err(error) = locked {
        refused.push(format!("memory is not locked: {error}"));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        refused.push(format!("not protected when memory runs out: {error}"));
    }
    refused.extend(protect_thread());
    refused
}

/// The part of [`protect_process`] that is each thread's own.
#[must_use]
pub fn protect_thread() -> Option<String> {
    let set = rustix::process::configure_io_flusher_behavior(true);
    set.err().map(|error| format!("may wait for its own disks when memory is short: {error}"))
}

/// What uses a block device: holders, mounts, swap, and one process that has it open.
#[must_use]
pub fn users_of(path: &std::path::Path) -> Vec<String> {
    let mut users = holders_of(path);
    if users.is_empty()
        && let Some(pid) = crate::drive::pid_with_open(path)
    {
        users.push(format!("pid {pid}"));
    }
    users
}

/// What of the kernel uses a block device: holders, mounts, swap. Cheaper than [`users_of`].
#[must_use]
pub fn holders_of(path: &std::path::Path) -> Vec<String> {
    crate::drive::holders_of(path)
}

/// Size of the structures, as the kernel has them.
const _: () = assert!(u64_of(INFO_BYTES) == 64 && u64_of(PARAMS_BYTES) == 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_are_those_of_the_kernel() {
        // UBLK_U_CMD_ADD_DEV and UBLK_U_IO_FETCH_REQ as a C compiler expands them.
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_FEATURES, 0x8020_7513);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    #[test]
    fn structures_come_back_as_they_were_sent() {
        let info = DeviceInfo {
            id: 7,
            queues: 3,
            depth: 128,
            state: DeviceState::Dead,
            request_bytes_max: 1 << 20,
            pid: -1,
            features: feature::USER_COPY | feature::USER_RECOVERY,
            mark: 0x0102_0304_0506_0708,
        };
        assert_eq!(DeviceInfo::decode(&info.encode()), info);
        let params = Params {
            is_read_only: true,
            has_volatile_cache: true,
            has_fua: false,
            logical_shift: 9,
            physical_shift: 12,
            best_shift: 18,
            small_shift: 12,
            sectors_max: 2048,
            sectors: 1 << 40,
            discard_unit_bytes: 4096,
            zero_sectors_max: 4_194_296,
        };
        let bytes = params.encode();
        assert_eq!(Params::decode(&bytes), params);
        // Places of fields behind holes: dev_sectors, max_discard_sectors, max_discard_segments.
        assert_eq!(u64::from_ne_bytes(field(&bytes, 24)), 1 << 40);
        assert_eq!(u32::from_ne_bytes(field(&bytes, 48)), 4_194_296);
        assert_eq!(u16::from_ne_bytes(field(&bytes, 56)), 1);
    }

    #[test]
    fn requests_are_read_as_the_kernel_writes_them() {
        let mut bytes = [0; 24];
        bytes[0..4].copy_from_slice(&(1 | FLAG_FUA).to_ne_bytes());
        bytes[4..8].copy_from_slice(&8_u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&100_u64.to_ne_bytes());
        let request = Request::decode(&bytes);
        let wanted =
            Request { op: RequestOp::Write, at: 51_200, len: 4096, is_fua: true, keeps_space: false };
        assert_eq!(request, wanted);
        // A flush, as the kernel sends it.
        bytes[0..4].copy_from_slice(&2_u32.to_ne_bytes());
        bytes[4..8].copy_from_slice(&0_u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
        let flush = Request::decode(&bytes);
        assert_eq!((flush.op, flush.at, flush.len), (RequestOp::Flush, u64::MAX, 0));
    }
}
