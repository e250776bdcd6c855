//! Metadata I/O: whole byte strings to and from members, through leases of [`Pool::Metadata`].
//!
//! Invariants: no lease is held while another is asked for (a full pool is back-pressure, never a deadlock); writes of
//! one batch start together and are all waited for, so nothing of a step is in flight when the next step begins.

use core::ops::Range;

use crate::lease::{LEASE_BYTES_MAX, Lease, Leases};
use crate::ports::{Drive, Durability, Env, IoError, IoKind, Pool, one_seg};
use crate::units::{DriveOffset, Slot, u64_of, usize_of, usize_of_u32};

/// Most members written at once: bounds the leases of one batch to 1 MiB.
const BATCH: usize = 16;

/// Bytes to be written to one member.
pub(super) struct Job<D> {
    /// Whose slot it is for, for reporting.
    pub(super) slot: Slot,
    /// The member.
    pub(super) drive: D,
    /// Where to.
    pub(super) at: DriveOffset,
    /// What.
    pub(super) bytes: Vec<u8>,
}

/// Writes all jobs, each to its end, several members at a time. Returns the slots that failed, each once, with its
/// first error.
pub(super) async fn write_all<E: Env>(
    env: &E,
    jobs: Vec<Job<E::Drive>>,
    how: Durability,
) -> Vec<(Slot, IoError)> {
    let mut failed: Vec<(Slot, IoError)> = Vec::new();
    let piece_bytes = usize_of_u32(LEASE_BYTES_MAX);
    for batch in jobs.chunks(BATCH) {
        let longest = batch.iter().map(|job| job.bytes.len()).max().unwrap_or(0);
        for start in (0..longest).step_by(piece_bytes) {
            let piece = |job: &Job<E::Drive>| {
                let end = job.bytes.len().min(start + piece_bytes);
                (start < end).then_some(start..end)
            };
            let wanted: Vec<(&Job<E::Drive>, Range<usize>)> = batch
                .iter()
                .filter(|job| failed.iter().all(|(slot, _)| *slot != job.slot))
                .filter_map(|job| piece(job).map(|range| (job, range)))
                .collect();
            let sizes: Vec<u32> = wanted
                .iter()
                .map(|(_, range)| u32::try_from(range.len()).expect("a piece fits a lease"))
                .collect();
            if sizes.is_empty() {
                continue;
            }
            let leases = env.lease(Pool::Metadata, &sizes).await;
            let mut running = Vec::with_capacity(wanted.len());
            for ((job, range), mut lease) in wanted.into_iter().zip(leases) {
                lease.bytes_mut().copy_from_slice(&job.bytes[range.clone()]);
                let at = job.at.plus(u64_of(range.start));
                running.push((job.slot, job.drive.write(at, one_seg(lease.share()), how)));
            }
            for (slot, write) in running {
                if let Err(error) = write.await {
                    note(&mut failed, slot, error);
                }
            }
        }
    }
    failed
}

/// Adds a failure; a slot is named once, with its first error.
pub(super) fn note(failed: &mut Vec<(Slot, IoError)>, slot: Slot, error: IoError) {
    if failed.iter().all(|(known, _)| *known != slot) {
        failed.push((slot, error));
    }
}

/// Flushes all drives together. Returns the slots that failed.
pub(super) async fn flush_all<D: Drive>(drives: &[(Slot, D)]) -> Vec<(Slot, IoError)> {
    let running: Vec<_> = drives.iter().map(|(slot, drive)| (*slot, drive.flush())).collect();
    let mut failed = Vec::new();
    for (slot, flush) in running {
        if let Err(error) = flush.await {
            note(&mut failed, slot, error);
        }
    }
    failed
}

/// Reads a range of a drive. Offsets and length are widened to whole blocks of the drive by the caller.
pub(super) async fn read<E: Env>(env: &E, drive: &E::Drive, range: Range<u64>) -> Result<Vec<u8>, IoError> {
    if range.end > drive.size_bytes() || range.start > range.end {
        return Err(IoError::new(IoKind::Invalid, "metadata lies beyond the end of the drive"));
    }
    let mut bytes = Vec::with_capacity(usize_of(range.end - range.start));
    let mut at = range.start;
    while at < range.end {
        let len = u32::try_from((range.end - at).min(u64::from(LEASE_BYTES_MAX))).expect("a lease");
        let leases: Leases = env.lease(Pool::Metadata, &[len]).await;
        let done = drive.read(DriveOffset(at), leases).await;
        done.result?;
        let buf = done.buf.ok_or(IoError::new(IoKind::TimedOut, "read of metadata"))?;
        bytes.extend_from_slice(buf.first().map_or(&[][..], Lease::bytes));
        at += u64::from(len);
    }
    Ok(bytes)
}

/// Writes one byte string to one drive.
pub(super) async fn write<E: Env>(
    env: &E,
    drive: &E::Drive,
    at: DriveOffset,
    bytes: Vec<u8>,
    how: Durability,
) -> Result<(), IoError> {
    let jobs = vec![Job { slot: Slot(0), drive: drive.clone(), at, bytes }];
    write_all(env, jobs, how).await.pop().map_or(Ok(()), |(_, error)| Err(error))
}
