//! A drive without a daemon: read-only, nobody is locked out, everything found on it.

use core::ops::Range;
use std::path::Path;

use nvme_backend::{ArenaConfig, LaneConfig, LaneDrive, OpenDrive, try_block_on_lane};
use raid_core::format::anchor::{ANCHOR_AT, Anchor};
use raid_core::format::examine::{Examination, examine as examine_bytes, wants};
use raid_core::format::extension::{COPY_BYTES, CopyPlace, Extension, SlotState};
use raid_core::format::plan::layout_of;
use raid_core::format::probe;
use raid_core::format::superblock::{
    FEATURE_RECOVERY, IN_SYNC, MdRole, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock,
};
use raid_core::ports::{Drive, IoError, IoKind, Pool};
use raid_core::units::{DriveOffset, u32_of, u64_of};

use super::drives;
use crate::control::model::{
    DriveState, EpochDoc, ExamineDoc, ExtensionDoc, MemberState, RememberedMemberDoc, SignatureDoc,
    SuperblockDoc,
};
use crate::control::options::DRIVE_TIMEOUT_NS;
use crate::control::{Answer, ApiError, ErrorCode};

/// What was read of a drive.
struct Read {
    slot: Vec<u8>,
    examination: Examination,
    copies: [Option<Extension>; 2],
}

async fn read(lane: &nvme_backend::Lane, drive: &LaneDrive, range: Range<u64>) -> Result<Vec<u8>, IoError> {
    let block = u64::from(drive.block_size().bytes());
    let (start, end) = (range.start / block * block, range.end.div_ceil(block) * block);
    let mut bytes = Vec::new();
    let mut next = start;
    while next < end.min(drive.size_bytes()) {
        let len = (end.min(drive.size_bytes()) - next).min(u64::from(raid_core::lease::LEASE_BYTES_MAX));
        let leases = lane.arena().lease(Pool::Metadata, &[u32_of(len)]).await;
        let done = drive.read(DriveOffset(next), leases).await;
        done.result?;
        let lost = IoError::new(IoKind::TimedOut, "reading the drive");
        for lease in &done.buf.ok_or(lost)? {
            bytes.extend_from_slice(lease.bytes());
        }
        next += len;
    }
    let skip = raid_core::units::usize_of(range.start - start);
    Ok(bytes.into_iter().skip(skip).collect())
}

/// Reads what it can; a range that cannot be read counts as empty, and is said so.
async fn read_all(lane: &nvme_backend::Lane, drive: &LaneDrive) -> Result<Read, IoError> {
    let size = drive.size_bytes();
    let slot = read(lane, drive, SUPERBLOCK_START..SUPERBLOCK_START + u64_of(SUPERBLOCK_SLOT_BYTES)).await?;
    let superblock = Superblock::decode(&slot).ok();
    let wanted = superblock.as_ref().map(|superblock| wants(superblock, size)).unwrap_or_default();
    let mut areas = Vec::new();
    for range in [wanted.bitmap, wanted.bad_blocks] {
        areas.push(match range {
            Some(range) => read(lane, drive, range).await.unwrap_or_default(),
            None => Vec::new(),
        });
    }
    let mut examination = examine_bytes(size, &slot, &areas[0], &areas[1]);
    let mut parts = Vec::new();
    for range in probe::needs(size) {
        parts.push(read(lane, drive, range).await.unwrap_or_default());
    }
    examination.signatures = probe::probe(size, &parts);
    let area = match Anchor::decode(&slot[ANCHOR_AT.min(slot.len())..]) {
        Ok(anchor) => anchor.extension,
        Err(_) => superblock.as_ref().and_then(layout_of).and_then(|layout| layout.extension),
    };
    let mut copies = [None, None];
    if let Some(area) = area.filter(|area| area.end <= size) {
        for (copy, place) in copies.iter_mut().zip([CopyPlace::A, CopyPlace::B]) {
            let start = place.start(&area).0;
            let bytes = read(lane, drive, start..start + u64_of(COPY_BYTES)).await.unwrap_or_default();
            *copy = Extension::decode(&bytes).ok();
        }
    }
    Ok(Read { slot, examination, copies })
}

fn superblock_doc(superblock: &Superblock, examination: &Examination) -> SuperblockDoc {
    let sector = |sectors: u64| sectors.saturating_mul(512);
    let is_recovering = superblock.has_feature(FEATURE_RECOVERY);
    let bitmap = examination.bitmap.as_ref().and_then(|bitmap| bitmap.as_ref().ok());
    SuperblockDoc {
        valid: true,
        claimed: superblock.is_claimed(),
        group_uuid: superblock.set_uuid.to_string(),
        name: superblock.name(),
        level: superblock.level,
        layout: superblock.layout,
        chunk_bytes: superblock.chunksize.saturating_mul(512),
        members: u16::try_from(superblock.raid_disks).unwrap_or(u16::MAX),
        device_uuid: superblock.device_uuid.to_string(),
        slot: match superblock.role() {
            MdRole::Active(slot) => Some(u16::from(slot.0)),
            _ => None,
        },
        events: superblock.events,
        updated_unix_s: superblock.utime & ((1 << 40) - 1),
        data_offset_bytes: sector(superblock.data_offset),
        data_bytes: sector(superblock.data_size),
        resync_offset_bytes: (superblock.resync_offset != IN_SYNC).then(|| sector(superblock.resync_offset)),
        recovery_offset_bytes: is_recovering.then(|| sector(superblock.recovery_offset)),
        bad_blocks: u64_of(examination.bad_blocks.ranges().len()),
        intents_dirty: bitmap.map(|bitmap| bitmap.dirty),
    }
}

fn extension_doc(read: &Read) -> Option<ExtensionDoc> {
    let newest = read.copies.iter().flatten().max_by_key(|copy| copy.sequence)?;
    let anchor = Anchor::decode(&read.slot[ANCHOR_AT.min(read.slot.len())..]).ok();
    let epoch = newest.epoch();
    let members = (0u8..)
        .zip(&newest.slots)
        .map(|(slot, record)| RememberedMemberDoc {
            slot,
            state: match record.state {
                SlotState::InSync => MemberState::InSync,
                SlotState::Rebuilding => MemberState::Rebuilding,
                SlotState::Missing => MemberState::Missing,
            },
            device_uuid: record.device_uuid.to_string(),
            last_in_sync: record.last_in_sync.counter,
        })
        .collect();
    Some(ExtensionDoc {
        copies_valid: [read.copies[0].is_some(), read.copies[1].is_some()],
        anchor_valid: anchor.is_some_and(|anchor| anchor.epoch() == epoch),
        epoch: EpochDoc { counter: epoch.counter, id: epoch.id.to_string() },
        clean: newest.marks.clean,
        forced: newest.marks.forced,
        deleted: newest.marks.deleted,
        members,
    })
}

fn findings(read: &Read, extension: Option<&ExtensionDoc>) -> Vec<String> {
    let mut lines = Vec::new();
    match (&read.examination.superblock, extension) {
        (Ok(superblock), Some(extension)) => {
            let name = superblock.name();
            lines.push(format!("member of warpraid group {name}, {}", superblock.role()));
            let state = if extension.clean { "stopped cleanly" } else { "running, or not stopped cleanly" };
            lines.push(format!("epoch {}, {state}", extension.epoch.counter));
            if !extension.copies_valid.iter().all(|valid| *valid) {
                lines.push("one copy of the extension area is not readable; the other one counts".into());
            }
            lines.push("warpraid group assemble starts the group when enough members are here".into());
        }
        (Ok(superblock), None) if superblock.is_claimed() => {
            lines.push("claimed by warpraid, but neither copy of its extension area is readable".into());
        }
        (Ok(superblock), None) => {
            lines.push(format!("member of Linux md array {}; not warpraid's", superblock.name()));
        }
        (Err(_), Some(extension)) if extension.deleted => {
            lines.push("member of a deleted warpraid group; warpraid group undelete brings it back".into());
        }
        (Err(error), Some(_)) => {
            lines.push(format!("member of a warpraid group without a whole superblock: {error}"))
        }
        (Err(_), None) if read.examination.signatures.is_empty() => {
            lines.push("nothing on it: free for use".into())
        }
        (Err(_), None) => {}
    }
    for signature in &read.examination.signatures {
        lines.push(format!("carries {signature}"));
    }
    lines
}

/// Reads what lies on a drive, without a daemon and without writing.
///
/// # Errors
/// The drive cannot be opened or read.
pub fn examine(path: &Path) -> Answer<ExamineDoc> {
    let path = drives::canonical(path);
    let drive = OpenDrive::open(&path, drives::inspection(DRIVE_TIMEOUT_NS))
        .map_err(|error| drives::open_error(&error))?;
    examine_drive(&drive)
}

/// As [`examine`], of a drive that is open already.
pub(super) fn examine_drive(drive: &OpenDrive) -> Answer<ExamineDoc> {
    let path = drive.path();
    let arena = ArenaConfig {
        request_bytes: 1 << 20,
        scratch_bytes: 1 << 20,
        metadata_bytes: 1 << 20,
        ..ArenaConfig::default()
    };
    let config = LaneConfig { arena, ..LaneConfig::default() };
    let opened = drive.clone();
    let read = try_block_on_lane(config, |lane| async move {
        let on_lane = opened.on_lane(&lane);
        read_all(&lane, &on_lane).await
    })
    .map_err(|error| ApiError::new(ErrorCode::Internal, format!("cannot read drives: {error}")))?
    .map_err(|error| ApiError::new(ErrorCode::Io, format!("{}: {error}", path.display())))?;
    let mut doc = drives::doc_of(drive);
    doc.signatures = read
        .examination
        .signatures
        .iter()
        .map(|it| SignatureDoc {
            kind: it.kind.to_string(),
            offset_bytes: it.offset,
            label: it.label.clone(),
            uuid: it.uuid.clone(),
        })
        .collect();
    let superblock =
        read.examination.superblock.as_ref().ok().map(|it| superblock_doc(it, &read.examination));
    let extension = extension_doc(&read);
    let newest = read.copies.iter().flatten().max_by_key(|copy| copy.sequence);
    if let Some(copy) = newest {
        doc.group = Some(copy.name.clone());
        doc.group_uuid = Some(copy.group.to_string());
        doc.device_uuid = Some(copy.device_uuid.to_string());
        doc.slot = superblock.as_ref().and_then(|it| it.slot).and_then(|slot| u8::try_from(slot).ok());
    }
    doc.state = match (newest.is_some(), doc.signatures.is_empty()) {
        (true, _) => DriveState::Claimed,
        (false, true) => DriveState::Free,
        (false, false) => DriveState::Used,
    };
    let findings = findings(&read, extension.as_ref());
    Ok(ExamineDoc { drive: doc, superblock, extension, findings }.into())
}
