//! The structures of ublk, as the kernel reads and writes them.

use raid_core::units::u64_of;

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

pub(super) const INFO_BYTES: usize = 64;

pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("inside the structure")
}

impl DeviceInfo {
    pub(super) fn encode(&self) -> Vec<u8> {
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

    pub(super) fn decode(bytes: &[u8]) -> Self {
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
pub(super) const PARAMS_BYTES: usize = 60;
const PARAM_BASIC: u32 = 1;
const PARAM_DISCARD: u32 = 2;
const ATTR_READ_ONLY: u32 = 1;
const ATTR_VOLATILE_CACHE: u32 = 4;
const ATTR_FUA: u32 = 8;

impl Params {
    pub(super) fn encode(&self) -> Vec<u8> {
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

    pub(super) fn decode(bytes: &[u8]) -> Self {
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
/// Size of the structures, as the kernel has them.
const _: () = assert!(u64_of(INFO_BYTES) == 64 && u64_of(PARAMS_BYTES) == 60);
#[cfg(test)]
mod tests {
    use super::*;

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
