//! What an NVMe drive says of its own health: the SMART log page, asked for through the controller's character device.
//!
//! Blocks the thread until the drive answers or the kernel's time-out passes: never call it on a lane.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)` of linux/nvme_ioctl.h.
const NVME_IOCTL_ADMIN_CMD: u32 = 0xc048_4e41;
const GET_LOG_PAGE: u8 = 0x02;
const SMART_LOG: u32 = 0x02;
const LOG_BYTES: usize = 512;
const TIMEOUT_MS: u32 = 5_000;

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// The SMART log of an NVMe drive (NVMe Base Specification, Get Log Page 02h). Counters too large for 64 bits saturate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Smart {
    /// Bit 0 spare below its threshold, 1 temperature, 2 unreliable, 3 read-only, 4 backup of volatile memory failed.
    pub critical_warning: u8,
    /// Temperature in kelvin.
    pub temperature_k: u16,
    /// Spare capacity left, percent.
    pub spare_percent: u8,
    /// The drive warns below this, percent.
    pub spare_threshold_percent: u8,
    /// Life used by the maker's estimate, percent; may exceed 100.
    pub used_percent: u8,
    /// Bytes the host has written.
    pub written_bytes: u64,
    /// Hours powered on.
    pub power_on_hours: u64,
    /// Times it lost power without notice.
    pub unsafe_shutdowns: u64,
    /// Blocks it could not store or give back.
    pub media_errors: u64,
}

impl Smart {
    fn parse(log: &[u8; LOG_BYTES]) -> Self {
        let wide = |at: usize| {
            let bytes: [u8; 16] = log[at..at + 16].try_into().expect("16 bytes");
            u128::from_le_bytes(bytes)
        };
        let count = |at| u64::try_from(wide(at)).unwrap_or(u64::MAX);
        Self {
            critical_warning: log[0],
            temperature_k: u16::from_le_bytes([log[1], log[2]]),
            spare_percent: log[3],
            spare_threshold_percent: log[4],
            used_percent: log[5],
            // In units of 1000 blocks of 512 bytes.
            written_bytes: u64::try_from(wide(48).saturating_mul(512_000)).unwrap_or(u64::MAX),
            power_on_hours: count(128),
            unsafe_shutdowns: count(144),
            media_errors: count(160),
        }
    }
}

/// The character device of the controller behind `/dev/nvme0n1` (or a partition of it).
fn controller_of(path: &Path) -> Option<PathBuf> {
    let rest = path.file_name()?.to_str()?.strip_prefix("nvme")?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, space) = rest.split_at(digits);
    let is_namespace = space.strip_prefix('n').is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
    (digits > 0 && is_namespace).then(|| path.with_file_name(format!("nvme{number}")))
}

/// Asks an NVMe drive, by the path of its block device, for its SMART log.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if the path is no NVMe drive; those of the kernel; a status of the drive.
pub fn read_smart(path: &Path) -> io::Result<Smart> {
    let controller = controller_of(path).ok_or(io::ErrorKind::Unsupported)?;
    let file = File::open(controller)?;
    let mut log = [0_u8; LOG_BYTES];
    let dwords = u32::try_from(LOG_BYTES / 4 - 1).expect("small");
    let mut command = AdminCommand {
        opcode: GET_LOG_PAGE,
        // The whole controller.
        nsid: u32::MAX,
        addr: u64::try_from(log.as_mut_ptr().expose_provenance()).expect("an address has 64 bits"),
        data_len: u32::try_from(LOG_BYTES).expect("small"),
        cdw10: dwords << 16 | SMART_LOG,
        timeout_ms: TIMEOUT_MS,
        ..AdminCommand::default()
    };
    // SAFETY: `command` is the structure this request takes, alive and ours for the call; the kernel writes at most
    // `data_len` bytes to `addr`, which is `log`, of exactly that length and not otherwise used until the call returns.
    let status =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(NVME_IOCTL_ADMIN_CMD), &raw mut command) };
    match status {
        0 => Ok(Smart::parse(&log)),
        -1 => Err(io::Error::last_os_error()),
        status => Err(io::Error::other(format!("the drive answered with NVMe status {status:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_read_where_the_specification_says() {
        let mut log = [0_u8; LOG_BYTES];
        log[0] = 0b101;
        log[1..3].copy_from_slice(&310_u16.to_le_bytes());
        (log[3], log[4], log[5]) = (97, 10, 3);
        log[48..64].copy_from_slice(&7_u128.to_le_bytes());
        log[128..144].copy_from_slice(&1234_u128.to_le_bytes());
        log[144..160].copy_from_slice(&5_u128.to_le_bytes());
        log[160..176].copy_from_slice(&u128::MAX.to_le_bytes());
        let smart = Smart::parse(&log);
        assert_eq!((smart.critical_warning, smart.temperature_k), (5, 310));
        assert_eq!((smart.spare_percent, smart.spare_threshold_percent, smart.used_percent), (97, 10, 3));
        assert_eq!((smart.written_bytes, smart.power_on_hours, smart.unsafe_shutdowns), (3_584_000, 1234, 5));
        assert_eq!(smart.media_errors, u64::MAX);
    }

    #[test]
    fn only_nvme_namespaces_have_a_controller() {
        let of = |path: &str| controller_of(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(of("/dev/nvme0n1").as_deref(), Some("/dev/nvme0"));
        assert_eq!(of("/dev/nvme12n3p1").as_deref(), Some("/dev/nvme12"));
        for other in ["/dev/sda", "/dev/nvme0", "/dev/nvmen1", "/tmp/nvme.img", "/dev/nvme0c1n1"] {
            assert_eq!(of(other), None, "{other}");
        }
        let error = read_smart(Path::new("/dev/loop0")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
