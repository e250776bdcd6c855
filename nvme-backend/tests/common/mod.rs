//! Helpers of the tests over real drives.

#![allow(dead_code)]

use std::future::Future;

use nvme_backend::{Lane, LaneConfig, LaneDrive, block_on_lane};
use raid_core::lease::{Lease, Leases, Seg};
use raid_core::ports::{Drive, Pool};
use raid_core::units::DriveOffset;

pub(crate) fn on_lane<T, F: Future<Output = T>>(f: impl FnOnce(Lane) -> F) -> T {
    block_on_lane(LaneConfig::default(), f)
}

/// Bytes that follow from a seed (xorshift).
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

pub(crate) fn fill(mut lease: Lease, seed: u64) -> Lease {
    let bytes = lease.bytes_mut();
    bytes.copy_from_slice(&pattern(seed, bytes.len()));
    lease
}

pub(crate) fn lease_one(lane: &Lane, bytes: u32) -> Leases {
    lane.arena().try_lease(Pool::Request, &[bytes]).expect("room for one more")
}

pub(crate) fn lease_filled(lane: &Lane, bytes: u32, seed: u64) -> Seg {
    fill(lease_one(lane, bytes).remove(0), seed).share()
}

pub(crate) async fn read_all(lane: &Lane, drive: &LaneDrive) -> Vec<u8> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < drive.size_bytes() {
        let bytes = u32::try_from((drive.size_bytes() - at).min(65_536)).unwrap();
        let done = drive.read(DriveOffset(at), lease_one(lane, bytes)).await;
        done.result.unwrap();
        all.extend_from_slice(done.buf.unwrap()[0].bytes());
        at += u64::from(bytes);
    }
    all
}
