//! What the kernel is told of a disk, and what a kernel must be able to do.

use nvme_backend::ublk::{Params, REQUEST_BYTES_MAX, SECTOR_BYTES, feature};

use crate::disk::Export;

/// Features without which a disk is not served: copies that the engine may rely on (SAFETY S2), and a device that
/// outlives its daemon without an error (Linux 6.5).
const NEEDED: [(u64, &str); 4] = [
    (feature::CMD_IOCTL_ENCODE, "CMD_IOCTL_ENCODE"),
    (feature::USER_COPY, "USER_COPY"),
    (feature::USER_RECOVERY, "USER_RECOVERY"),
    (feature::USER_RECOVERY_REISSUE, "USER_RECOVERY_REISSUE"),
];
/// Features used where they are.
const WELCOME: u64 = feature::UPDATE_SIZE | feature::QUIESCE | feature::SAFE_STOP_DEV;

/// A request may be this large, or a stripe if that is larger.
const REQUEST_BYTES: u32 = 1 << 20;
/// Most bytes of one discard or write-zeroes: below 2 GiB, for the protocol's result has 31 bits (CASES MK-01).
const ZERO_BYTES_MAX: u32 = (2 << 30) - (1 << 20);

/// The features a device gets on a kernel that has these.
///
/// # Errors
/// The names of those that are missing.
pub fn negotiate(kernel: u64) -> Result<u64, Vec<&'static str>> {
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(bit, _)| kernel & bit == 0).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        return Err(missing);
    }
    Ok(NEEDED.iter().map(|(bit, _)| bit).sum::<u64>() | (kernel & WELCOME))
}

/// Log2 of a power of two.
fn shift(bytes: u32) -> u8 {
    u8::try_from(bytes.trailing_zeros()).expect("at most 31")
}

/// What the kernel is told of a disk whose group puts `chunk_bytes` on a drive before it goes on with the next; `None` for
/// groups without chunks.
///
/// The sizes at which I/O is best can be told only as powers of two: a stripe that is none is not told at all, for a wrong
/// hint would misplace file systems (the mkfs line says it right).
#[must_use]
pub fn params_of(export: &impl Export, chunk_bytes: Option<u32>) -> Params {
    let block = export.block_size().bytes();
    let stripe = export.preferred_bytes();
    let told = chunk_bytes.filter(|chunk| chunk.is_power_of_two() && stripe.is_power_of_two());
    let (small, best) = told.map_or((block, block), |chunk| (chunk.max(block), stripe.max(block)));
    Params {
        is_read_only: export.is_read_only(),
        has_volatile_cache: true,
        has_fua: true,
        logical_shift: shift(block),
        // One block is what is old or new after a power cut (SAFETY P2), so it is the physical one, too.
        physical_shift: shift(block),
        best_shift: shift(best),
        small_shift: shift(small),
        sectors_max: request_bytes_max(stripe) / SECTOR_BYTES,
        sectors: export.size_bytes() / u64::from(SECTOR_BYTES),
        discard_unit_bytes: block,
        zero_sectors_max: ZERO_BYTES_MAX / SECTOR_BYTES,
    }
}

/// Most bytes of one request: whole stripes, at least one, about [`REQUEST_BYTES`].
fn request_bytes_max(stripe: u32) -> u32 {
    if !(1..=REQUEST_BYTES_MAX).contains(&stripe) || !stripe.is_multiple_of(4096) {
        return REQUEST_BYTES;
    }
    stripe * (REQUEST_BYTES / stripe).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_recovery_are_told_what_they_lack() {
        let linux_6_12 = 0x1ff;
        assert_eq!(negotiate(linux_6_12), Ok(0xd8));
        let later = linux_6_12 | WELCOME | 1 << 13;
        assert_eq!(negotiate(later), Ok(0xd8 | WELCOME));
        assert_eq!(negotiate(linux_6_12 & !feature::USER_COPY), Err(vec!["USER_COPY"]));
        assert_eq!(negotiate(0).unwrap_err().len(), 4);
    }

    #[test]
    fn a_request_holds_whole_stripes_and_at_least_one() {
        for (stripe, bytes) in [
            (256 << 10, 1 << 20),
            (320 << 10, 960 << 10),
            (3 << 20, 3 << 20),
            (32 << 20, 32 << 20),
            (33 << 20, 1 << 20),
            (u32::MAX, 1 << 20),
        ] {
            assert_eq!(request_bytes_max(stripe), bytes, "{stripe}");
        }
    }

    #[test]
    fn mk_01_zeroing_stays_below_what_the_protocol_can_count() {
        assert!(i32::try_from(ZERO_BYTES_MAX).is_ok());
        assert!(ZERO_BYTES_MAX.is_multiple_of(4096));
    }
}
