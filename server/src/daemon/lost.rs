//! What of a group's data is lost: which blocks of which disk, and the commands that find the file (SAFETY S6).
//!
//! The bad-block lists and the scrubs name rows of blocks; which data of a row is really lost is found by reading it, as a
//! client would. That is done when the lists change, and again now and then while something is lost, so that what was
//! rewritten disappears from here by itself.

use core::ops::Range;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use raid_core::engine::Group;
use raid_core::format::probe::{Kind, needs, probe};
use raid_core::geometry::Place;
use raid_core::units::{DataIndex, Stripe, usize_of_u32};

use super::extent::read_bytes;
use super::running::Running;
use crate::control::ProblemCode;
use crate::control::model::{DiskRangeDoc, Health, LostRangeDoc, ProblemDoc};
use crate::lane::{LaneEnv, on_lane};

/// Blocks of some stripe's chunks.
pub(super) type Row = (Stripe, Range<u32>);

/// Most rows of blocks looked at: bounds the time a look takes.
const ROWS_MAX: usize = 4096;
/// How often what is lost is looked at again.
const AGAIN: Duration = Duration::from_secs(10);

/// What is known to be lost.
#[derive(Default)]
pub(super) struct Lost {
    rows: BTreeSet<(u64, u32)>,
    ranges: Vec<LostRangeDoc>,
    looked: Option<Instant>,
}

impl Lost {
    /// What is lost, by disk and offset.
    pub(super) fn ranges(&self) -> &[LostRangeDoc] {
        &self.ranges
    }

    /// The problem, if anything is.
    pub(super) fn problem(&self, group: &str) -> Option<ProblemDoc> {
        let first = self.ranges.first()?;
        let bytes: u64 = self.ranges.iter().map(|range| range.length_bytes).sum();
        let place = |range: &LostRangeDoc| match &range.disk {
            Some(disk) => format!("disk {group}/{disk} byte {} + {}", range.offset_bytes, range.length_bytes),
            None => format!("byte {} + {} of the group", range.offset_bytes, range.length_bytes),
        };
        let listed: Vec<String> = self.ranges.iter().take(3).map(place).collect();
        let more = if self.ranges.len() > 3 { ", ..." } else { "" };
        let next = match &first.disk {
            Some(disk) => format!("warpraid disk show {group}/{disk}"),
            None => format!("warpraid group show {group}"),
        };
        Some(ProblemDoc {
            code: ProblemCode::GroupBadblocks.into(),
            health: Health::Critical,
            group: Some(group.to_owned()),
            slot: None,
            drive: None,
            serial: None,
            since_unix_s: None,
            why: format!("{bytes} bytes are lost: {}{more}", listed.join(", ")),
            risk: "they read as I/O errors until they are written again; everything else is served".into(),
            next,
        })
    }
}

/// The rows of blocks that may have lost something.
fn rows_of(group: &Running) -> BTreeSet<(u64, u32)> {
    let geometry = *group.shared.geometry();
    let block = group.shared.block_size().bytes();
    let mut rows = BTreeSet::new();
    let chunk = u64::from(geometry.chunk_bytes());
    for range in group.shared.status().slots.iter().flat_map(|slot| &slot.bad_blocks) {
        for at in range.clone().step_by(usize_of_u32(block)).take(ROWS_MAX) {
            rows.insert((at / chunk, u32::try_from(at % chunk).unwrap_or(0)));
        }
    }
    for (stripe, columns) in group.scrub.lock().lost_rows() {
        rows.extend(columns.step_by(usize_of_u32(block)).map(|at| (stripe.0, at)));
    }
    while rows.len() > ROWS_MAX {
        rows.pop_last();
    }
    rows
}

/// Finds out what is lost, if it may have changed.
pub(super) async fn look(group: &Running) {
    let rows = rows_of(group);
    {
        let lost = group.lost.lock();
        let is_old = lost.looked.is_none_or(|looked| looked.elapsed() >= AGAIN);
        if rows == lost.rows && (rows.is_empty() || !is_old) {
            return;
        }
    }
    let (uuid, wanted) = (group.uuid, rows.clone());
    let read = on_lane(&group.home, move |lane| async move {
        match lane.group(uuid) {
            Some(group) => lost_of(&group, &wanted).await,
            None => Vec::new(),
        }
    });
    let Ok(lost) = read.await else { return };
    let mut ranges = Vec::new();
    for range in lost {
        for part in disk_ranges(group, range) {
            ranges.push(located(group, part).await);
        }
    }
    let mut known = group.lost.lock();
    *known = Lost { rows, ranges, looked: Some(Instant::now()) };
}

/// The data of these rows that cannot be read, as ranges of the group.
async fn lost_of(group: &Group<LaneEnv>, rows: &BTreeSet<(u64, u32)>) -> Vec<Range<u64>> {
    let geometry = *group.shared().geometry();
    let block = u64::from(group.shared().block_size().bytes());
    let mut lost = Vec::new();
    for &(stripe, column) in rows {
        for index in (0..geometry.data_columns()).map(DataIndex) {
            let at = geometry.group_offset(Place { stripe: Stripe(stripe), index, column }).0;
            if read_bytes(group, at, block).await.is_err() && !group.shared().is_stopping() {
                lost.push(at..at + block);
            }
        }
    }
    lost.sort_by_key(|range| range.start);
    lost.dedup_by(|next, last| {
        let joins = last.end == next.start;
        if joins {
            last.end = next.end;
        }
        joins
    });
    lost
}

/// A range of the group as ranges of its disks; what is in none stays as it is.
pub(super) fn disk_ranges(group: &Running, range: Range<u64>) -> Vec<DiskRangeDoc> {
    let disks = group.table.lock().as_ref().map_or_else(Vec::new, raid_core::disks::DiskTable::list);
    let mut found = Vec::new();
    let mut next = range.start;
    for disk in disks {
        let (start, end) = (disk.start.0.max(range.start), disk.range().end.min(range.end));
        if start >= end {
            continue;
        }
        if next < start {
            found.push(DiskRangeDoc { disk: None, offset_bytes: next, length_bytes: start - next });
        }
        let offset_bytes = start - disk.start.0;
        found.push(DiskRangeDoc { disk: Some(disk.name), offset_bytes, length_bytes: end - start });
        next = end;
    }
    if next < range.end {
        found.push(DiskRangeDoc { disk: None, offset_bytes: next, length_bytes: range.end - next });
    }
    found
}

/// Adds the filesystem on the disk and how to find the file.
async fn located(group: &Running, range: DiskRangeDoc) -> LostRangeDoc {
    let disk = range.disk.as_ref().and_then(|name| Some(group.table.lock().as_ref()?.find(name)?.range()));
    let filesystem = match disk {
        Some(disk) => filesystem_on(group, disk).await,
        None => None,
    };
    let find = filesystem.as_ref().map_or_else(Vec::new, |(kind, block)| {
        find_commands(*kind, *block, range.offset_bytes..range.offset_bytes + range.length_bytes)
    });
    LostRangeDoc {
        disk: range.disk,
        offset_bytes: range.offset_bytes,
        length_bytes: range.length_bytes,
        filesystem: filesystem.map(|(kind, _)| kind.to_string()),
        find,
    }
}

/// What filesystem a disk carries, and its block size in bytes.
async fn filesystem_on(group: &Running, disk: Range<u64>) -> Option<(Kind, u64)> {
    let size = disk.end - disk.start;
    let uuid = group.uuid;
    let read = on_lane(&group.home, move |lane| async move {
        let mut parts = Vec::new();
        let Some(group) = lane.group(uuid) else { return parts };
        for part in needs(size) {
            // What cannot be read is not found.
            let bytes = read_bytes(&group, disk.start + part.start, part.end - part.start).await;
            parts.push(bytes.unwrap_or_default());
        }
        parts
    });
    let parts = read.await.ok()?;
    let kind = probe(size, &parts)
        .into_iter()
        .map(|signature| signature.kind)
        .find(|kind| matches!(kind, Kind::Ext2 | Kind::Ext3 | Kind::Ext4 | Kind::Xfs))?;
    let word = |at: usize| parts.first()?.get(at..at + 4)?.try_into().ok();
    let block = match kind {
        Kind::Xfs => u64::from(u32::from_be_bytes(word(4)?)),
        _ => 1024_u64.checked_shl(u32::from_le_bytes(word(1024 + 24)?))?,
    };
    (512..=65_536).contains(&block).then_some((kind, block))
}

/// The commands that find the file a range of the disk belongs to.
fn find_commands(kind: Kind, block: u64, range: Range<u64>) -> Vec<String> {
    match kind {
        Kind::Xfs => vec![
            format!("xfs_io -r -c 'fsmap -d {} {}' MOUNTPOINT", range.start / 512, (range.end - 1) / 512),
            "find MOUNTPOINT -xdev -inum INODE   (the owner that fsmap names)".to_owned(),
        ],
        _ => {
            let blocks: Vec<String> =
                (range.start / block..range.end.div_ceil(block)).take(64).map(|n| n.to_string()).collect();
            vec![
                format!("debugfs -R 'icheck {}' DEVICE", blocks.join(" ")),
                "debugfs -R 'ncheck INODE' DEVICE   (the inode that icheck names)".to_owned(),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_count_in_blocks_of_their_own() {
        let xfs = find_commands(Kind::Xfs, 4096, 1 << 20..(1 << 20) + 1536);
        assert_eq!(xfs[0], "xfs_io -r -c 'fsmap -d 2048 2050' MOUNTPOINT");
        let ext4 = find_commands(Kind::Ext4, 4096, 8192 + 3584..8192 + 4608);
        assert_eq!(ext4[0], "debugfs -R 'icheck 2 3' DEVICE");
    }

    #[test]
    fn the_problem_names_disk_and_offset() {
        let range = |disk: Option<&str>, offset_bytes| LostRangeDoc {
            disk: disk.map(str::to_owned),
            offset_bytes,
            length_bytes: 512,
            filesystem: None,
            find: Vec::new(),
        };
        let lost = Lost { ranges: vec![range(Some("home"), 4096), range(None, 0)], ..Lost::default() };
        let problem = lost.problem("tank").unwrap();
        assert!(
            problem.why.starts_with("1024 bytes are lost: disk tank/home byte 4096 + 512"),
            "{}",
            problem.why
        );
        assert_eq!(problem.next, "warpraid disk show tank/home");
        assert!(Lost::default().problem("tank").is_none());
    }
}
