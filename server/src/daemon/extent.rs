//! Small reads and writes by the daemon itself: the disk table of a group, signatures of a drive.

use core::ops::Range;

use raid_core::disks::{DiskTable, Step};
use raid_core::engine::Group;
use raid_core::format::gpt::{GptError, Repair, head_bytes, tail_bytes};
use raid_core::lease::{LEASE_BYTES_MAX, Segs};
use raid_core::ports::{Drive, Durability, Env, IoError, IoKind, Pool};
use raid_core::units::{DriveOffset, GroupOffset, Uuid, u32_of, u64_of};

/// Reads a range of a drive; both ends on block boundaries.
///
/// # Errors
/// The drive's.
pub(super) async fn read_drive<E: Env>(
    env: &E,
    drive: &E::Drive,
    range: Range<u64>,
) -> Result<Vec<u8>, IoError> {
    let mut bytes = Vec::new();
    let mut next = range.start;
    while next < range.end {
        let len = u32_of((range.end - next).min(u64::from(LEASE_BYTES_MAX)));
        let lease = env.lease(Pool::Metadata, &[len]).await;
        let done = drive.read(DriveOffset(next), lease).await;
        done.result?;
        let lost = IoError::new(IoKind::TimedOut, "reading a drive");
        for lease in &done.buf.ok_or(lost)? {
            bytes.extend_from_slice(lease.bytes());
        }
        next += u64::from(len);
    }
    Ok(bytes)
}

/// Reads `len` bytes of the group at `at`; both whole blocks.
///
/// # Errors
/// Those of the group.
pub(super) async fn read_bytes<E: Env>(group: &Group<E>, at: u64, len: u64) -> Result<Vec<u8>, IoError> {
    let shared = group.shared();
    let mut bytes = Vec::new();
    while u64_of(bytes.len()) < len {
        let next = at + u64_of(bytes.len());
        let part = (len - u64_of(bytes.len())).min(shared.max_request_bytes());
        let sizes: Vec<u32> = shared.geometry().pieces(GroupOffset(next), part).collect();
        let leases = group.env().lease(Pool::Request, &sizes).await;
        let done = group.read(GroupOffset(next), leases).await;
        done.result?;
        let stopped = IoError::new(IoKind::TimedOut, "reading the disk table");
        for lease in &done.buf.ok_or(stopped)? {
            bytes.extend_from_slice(lease.bytes());
        }
    }
    Ok(bytes)
}

/// Writes `bytes` to the group at `at`; both whole blocks.
async fn write_bytes<E: Env>(group: &Group<E>, at: u64, bytes: &[u8]) -> Result<(), IoError> {
    let shared = group.shared();
    let mut done = 0;
    while done < bytes.len() {
        let next = GroupOffset(at + u64_of(done));
        let part = u64_of(bytes.len() - done).min(shared.max_request_bytes());
        let sizes: Vec<u32> = shared.geometry().pieces(next, part).collect();
        let mut segs = Segs::new();
        for mut lease in group.env().lease(Pool::Request, &sizes).await {
            let target = lease.bytes_mut();
            target.copy_from_slice(&bytes[done..done + target.len()]);
            done += target.len();
            segs.push(lease.share());
        }
        group.write(next, segs, Durability::Cached).await?;
    }
    Ok(())
}

/// Reads what would hold the first copy of a disk table.
///
/// # Errors
/// Those of the group.
pub(super) async fn read_head<E: Env>(group: &Group<E>) -> Result<Vec<u8>, IoError> {
    let shared = group.shared();
    let len = head_bytes(shared.block_size()).min(shared.geometry().capacity_bytes());
    read_bytes(group, 0, len).await
}

/// Makes a disk table durable in its crash-safe order.
///
/// # Errors
/// Those of the group; the table on the group is then the old or the new one.
pub(super) async fn store_table<E: Env>(group: &Group<E>, table: &DiskTable) -> Result<(), IoError> {
    for step in table.writes() {
        match step {
            Step::Write { at, bytes } => write_bytes(group, at.0, &bytes).await?,
            Step::Flush => group.flush().await?,
        }
    }
    Ok(())
}

/// What a group's own first and last blocks say about its disks.
pub(super) enum Loaded {
    /// A table; with what was repaired in memory and is still to be stored.
    Table(Box<DiskTable>, Option<Repair>),
    /// No table: never cut (a new group), or a bare filesystem of an adopted array.
    Nothing(GptError),
}

/// Reads the disk table of a group.
///
/// # Errors
/// Those of the group.
pub(super) async fn load_table<E: Env>(group: &Group<E>) -> Result<Loaded, IoError> {
    let shared = group.shared();
    let (geometry, block) = (*shared.geometry(), shared.block_size());
    let capacity = geometry.capacity_bytes();
    let (head_len, tail_len) = (head_bytes(block), tail_bytes(block));
    if capacity < head_len + tail_len {
        return Ok(Loaded::Nothing(GptError::TooSmall));
    }
    let head = read_bytes(group, 0, head_len).await?;
    let tail = read_bytes(group, capacity - tail_len, tail_len).await?;
    let stripe = geometry.stripe_data_bytes();
    Ok(match DiskTable::load(&head, &tail, block, capacity, stripe) {
        Ok((table, repair)) => Loaded::Table(Box::new(table), repair),
        Err(error) => Loaded::Nothing(error),
    })
}

/// The empty table of a new group.
///
/// # Errors
/// [`GptError::TooSmall`] if the group has no room for one.
pub(super) fn new_table<E: Env>(group: &Group<E>, uuid: Uuid) -> Result<DiskTable, GptError> {
    let shared = group.shared();
    let geometry = shared.geometry();
    DiskTable::new(uuid, shared.block_size(), geometry.capacity_bytes(), geometry.stripe_data_bytes())
}
