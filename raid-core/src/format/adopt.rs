//! Whether an array of Linux md can be adopted in place, and where our own things fit on its members. Pure.
//!
//! Nothing of md's moves: every member keeps its own data offset, bitmap and bad-block log. Our extension area goes into
//! the largest hole before the data, or behind it if there is none before; the anchor into the last sector of the
//! superblock's 4 KiB slot. What does not fit is refused, by kind and with the drive named.
//!
//! Invariant: no range of a planned [`MemberLayout`] overlaps another, the superblock's slot or the drive's end.

use core::fmt;
use core::ops::Range;

use super::anchor::ANCHOR_AT;
use super::bad_blocks::LOG_BYTES;
use super::bitmap::{BitmapError, BitmapHeader, Bits, STATE_STALE, sync_bytes};
use super::bytes::{round_down, round_up};
use super::extension::is_large_enough;
use super::superblock::{
    FEATURE_BITMAP, FEATURE_CLUSTERED, FEATURE_JOURNAL, FEATURE_MULTIPLE_PPLS, FEATURE_NEW_OFFSET,
    FEATURE_PPL, FEATURE_RECOVERY, FEATURE_REPLACEMENT, FEATURE_RESHAPE, FEATURE_RESHAPE_BACKWARDS, IN_SYNC,
    MD_SECTOR_BYTES, MdRole, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock,
};
use crate::geometry::{Geometry, Level};
use crate::units::{BlockSize, DriveOffset, Slot, Uuid, u64_of, usize_of_u32};
use crate::view::MemberLayout;

/// Most bytes of an extension area in a hole: what a group of ours has at most (`format::plan`).
const EXTENSION_BYTES_MAX: u64 = 64 << 20;
/// What areas are aligned to: a multiple of every block size.
const ALIGN_BYTES: u64 = 4096;

/// A drive named for an adopt, and what md has on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptDrive {
    /// What the user called it, for messages.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Logical block size.
    pub block: BlockSize,
    /// md's superblock, without our claim.
    pub superblock: Superblock,
    /// The bitmap, where the superblock says there is one.
    pub bitmap: Option<Result<(BitmapHeader, Bits), BitmapError>>,
}

/// Why an array is not adopted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AdoptRefusal {
    /// No superblock of metadata 1.2, or one that is damaged or contradicts the others.
    Metadata,
    /// Level, layout, chunk or number of members that we do not serve.
    Layout,
    /// A reshape is under way.
    Reshape,
    /// A journal device or a partial parity log.
    Journal,
    /// A bitmap of another kind, or one md itself would not believe.
    Bitmap,
    /// A feature this warpraid does not know.
    Feature,
    /// Not stopped cleanly, or a resync is pending.
    Dirty,
    /// A member is being rebuilt or replaced.
    Rebuilding,
    /// Drives of several arrays, or two for one slot.
    Mixed,
    /// A spare, or a member that the array has dropped.
    NotInUse,
    /// Members that md counts on were not named.
    Incomplete,
    /// No room for our own metadata.
    NoRoom,
    /// Sizes that are not whole blocks of the group.
    BlockSize,
}

/// A refusal, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptError {
    /// The kind.
    pub why: AdoptRefusal,
    /// The drive or the array, and what is wrong.
    pub message: String,
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for AdoptError {}

fn refuse<T>(why: AdoptRefusal, message: impl Into<String>) -> Result<T, AdoptError> {
    Err(AdoptError { why, message: message.into() })
}

/// One slot of an array to be adopted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptSlot {
    /// Index of its drive among those given; `None` where md's own record says that the slot has no member.
    pub drive: Option<usize>,
    /// md's device uuid of the member; all zero without one.
    pub device_uuid: Uuid,
    /// md's number of the member; without one, a number nobody has.
    pub dev_number: u16,
    /// Where things lie; of a slot without a member, as on its neighbour.
    pub layout: MemberLayout,
}

/// An array that can be adopted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptPlan {
    /// Shape of the group.
    pub geometry: Geometry,
    /// Block size of the group.
    pub block: BlockSize,
    /// md's set uuid, which stays the group's.
    pub group: Uuid,
    /// md's `host:name`, which stays in the superblock.
    pub md_name: String,
    /// Seconds since 1970 when md created it.
    pub created_unix_s: u64,
    /// md's `events` and the bitmap's `events_cleared`.
    pub events: (u64, u64),
    /// md's roles, by number.
    pub roles: Vec<u16>,
    /// The slots, in order.
    pub slots: Vec<AdoptSlot>,
    /// Dirty bits of the bitmap: what a missing member lacks.
    pub dirty_bits: u64,
}

/// Plans an adopt of these drives.
///
/// # Errors
/// [`AdoptError`]: the first thing that forbids it.
pub fn plan_adopt(drives: &[AdoptDrive]) -> Result<AdoptPlan, AdoptError> {
    let Some(freshest) = drives.iter().max_by_key(|drive| drive.superblock.events) else {
        return refuse(AdoptRefusal::Incomplete, "no drives were named");
    };
    for drive in drives {
        check_kind(drive)?;
        check_same(freshest, drive)?;
    }
    let slots = slots_of(freshest, drives)?;
    for drive in drives {
        check_state(drive)?;
    }
    let (geometry, block) = shape(freshest, drives)?;
    check_enough(&geometry, &slots)?;
    let bitmap = check_bitmaps(&geometry, drives)?;
    let layouts = drives.iter().map(|drive| layout_of(drive, &geometry)).collect::<Result<Vec<_>, _>>()?;
    let sb = &freshest.superblock;
    let mut free = free_numbers(sb, &slots);
    let slot = |drive: &Option<usize>| match drive {
        Some(i) => Some(AdoptSlot {
            drive: Some(*i),
            device_uuid: drives[*i].superblock.device_uuid,
            dev_number: u16::try_from(drives[*i].superblock.dev_number).ok()?,
            layout: layouts[*i].clone(),
        }),
        None => Some(AdoptSlot {
            drive: None,
            device_uuid: Uuid::default(),
            dev_number: free.next()?,
            layout: layouts[0].clone(),
        }),
    };
    let no_number = AdoptError {
        why: AdoptRefusal::NoRoom,
        message: format!("array {}: md's {} member numbers are all in use", sb.name(), sb.max_dev()),
    };
    Ok(AdoptPlan {
        geometry,
        block,
        group: sb.set_uuid,
        md_name: super::bytes::text(&sb.set_name),
        created_unix_s: sb.ctime & ((1 << 40) - 1),
        events: (sb.events, bitmap.as_ref().map_or(sb.events, |(header, _)| header.events_cleared)),
        roles: sb.dev_roles.clone(),
        slots: slots.iter().map(slot).collect::<Option<_>>().ok_or(no_number)?,
        dirty_bits: bitmap.map_or(0, |(_, bits)| bits.dirty()),
    })
}

/// What kind of array it is: features, level, layout.
fn check_kind(drive: &AdoptDrive) -> Result<(), AdoptError> {
    use AdoptRefusal as Why;
    let (name, sb) = (&drive.name, &drive.superblock);
    let features: [(u32, Why, &str); 5] = [
        (
            FEATURE_RESHAPE | FEATURE_RESHAPE_BACKWARDS | FEATURE_NEW_OFFSET,
            Why::Reshape,
            "a reshape is under way",
        ),
        (FEATURE_REPLACEMENT, Why::Rebuilding, "a member is being replaced"),
        (FEATURE_CLUSTERED, Why::Bitmap, "its bitmap belongs to a cluster"),
        (FEATURE_JOURNAL, Why::Journal, "it has a journal device"),
        (FEATURE_PPL | FEATURE_MULTIPLE_PPLS, Why::Journal, "it has a partial parity log"),
    ];
    if let Some((_, why, what)) = features.iter().find(|(bits, _, _)| sb.feature_map & bits != 0) {
        return refuse(*why, format!("{name}: {what}"));
    }
    if sb.dev_roles.contains(&MdRole::Journal.number()) {
        return refuse(Why::Journal, format!("{name}: the array has a journal device"));
    }
    if let Some(what) = sb.obstacle() {
        let is_feature = what.starts_with("feature bits");
        return refuse(if is_feature { Why::Feature } else { Why::Layout }, format!("{name}: {what}"));
    }
    if sb.level == 0 && sb.has_feature(FEATURE_BITMAP) {
        return refuse(Why::Bitmap, format!("{name}: a bitmap on RAID 0"));
    }
    if sb.bblog_offset != 0
        && (sb.bblog_shift != 0 || u64::from(sb.bblog_size) * MD_SECTOR_BYTES != LOG_BYTES)
    {
        let what = format!("a bad-block log of {} sectors, unit 512 << {}", sb.bblog_size, sb.bblog_shift);
        return refuse(Why::Feature, format!("{name}: {what}"));
    }
    Ok(())
}

/// Whether a drive is of the same array as the freshest one, by everything that members have in common.
fn check_same(freshest: &AdoptDrive, drive: &AdoptDrive) -> Result<(), AdoptError> {
    let (one, other) = (&freshest.superblock, &drive.superblock);
    if one.set_uuid != other.set_uuid {
        let message = format!(
            "{} is of array {} ({}), {} of array {} ({})",
            freshest.name,
            one.name(),
            one.set_uuid,
            drive.name,
            other.name(),
            other.set_uuid
        );
        return refuse(AdoptRefusal::Mixed, message);
    }
    let shape = |sb: &Superblock| (sb.level, sb.layout, sb.size, sb.chunksize, sb.raid_disks, sb.ctime);
    if shape(one) != shape(other) {
        let message = format!("{} and {} describe the array differently", freshest.name, drive.name);
        return refuse(AdoptRefusal::Metadata, message);
    }
    Ok(())
}

/// The drive of each slot, by the record of the freshest member.
fn slots_of(freshest: &AdoptDrive, drives: &[AdoptDrive]) -> Result<Vec<Option<usize>>, AdoptError> {
    let sb = &freshest.superblock;
    let mut slots: Vec<Option<usize>> = vec![None; usize_of_u32(sb.raid_disks)];
    for (i, drive) in drives.iter().enumerate() {
        let (name, own) = (&drive.name, &drive.superblock);
        let twin = drives[..i].iter().find(|other| other.superblock.device_uuid == own.device_uuid);
        if let Some(twin) = twin {
            let message = format!("{} and {name} are the same member: one is a copy of the other", twin.name);
            return refuse(AdoptRefusal::Mixed, message);
        }
        let number = usize_of_u32(own.dev_number);
        let listed = sb.dev_roles.get(number).copied().and_then(MdRole::from_number);
        let slot = match (listed, own.role()) {
            (Some(MdRole::Active(slot)), MdRole::Active(mine)) if slot == mine => slot,
            (Some(MdRole::Spare) | None, MdRole::Spare) => {
                return refuse(AdoptRefusal::NotInUse, format!("{name} is a spare of the array"));
            }
            _ => {
                let message = format!("{name} was dropped from the array: the others do not count on it");
                return refuse(AdoptRefusal::NotInUse, message);
            }
        };
        if own.events != sb.events {
            let (old, new) = (own.events, sb.events);
            let message = format!("{name} is behind: its events are {old}, those of {} {new}", freshest.name);
            return refuse(AdoptRefusal::NotInUse, message);
        }
        if own.dev_roles != sb.dev_roles {
            let message = format!("{} and {name} list the members differently", freshest.name);
            return refuse(AdoptRefusal::Metadata, message);
        }
        let place = &mut slots[slot.index()];
        if let Some(other) = *place {
            let message = format!("{} and {name} both hold slot {slot}", drives[other].name);
            return refuse(AdoptRefusal::Mixed, message);
        }
        *place = Some(i);
    }
    let active = |role: &u16| match MdRole::from_number(*role) {
        Some(MdRole::Active(slot)) => Some(slot),
        _ => None,
    };
    let unnamed: Vec<String> = (0..sb.dev_roles.len())
        .zip(sb.dev_roles.iter().map(active))
        .filter_map(|(number, slot)| Some((number, slot?)))
        .filter(|(_, slot)| slots.get(slot.index()).is_none_or(Option::is_none))
        .map(|(number, slot)| format!("slot {slot} (md's number {number})"))
        .collect();
    if !unnamed.is_empty() {
        let (array, list) = (sb.name(), unnamed.join(", "));
        let message = format!("array {array} counts on members that were not named: {list}");
        return refuse(AdoptRefusal::Incomplete, message);
    }
    Ok(slots)
}

/// Clean, and nobody being rebuilt.
fn check_state(drive: &AdoptDrive) -> Result<(), AdoptError> {
    let (name, sb) = (&drive.name, &drive.superblock);
    if sb.has_feature(FEATURE_RECOVERY) {
        let message = format!("{name} is being rebuilt: only {} sectors are done", sb.recovery_offset);
        return refuse(AdoptRefusal::Rebuilding, message);
    }
    if sb.resync_offset != IN_SYNC && sb.level != 0 {
        let what = match sb.resync_offset {
            0 => "the array was not stopped cleanly".to_owned(),
            from => format!("a resync is pending from sector {from}"),
        };
        return refuse(AdoptRefusal::Dirty, format!("{name}: {what}"));
    }
    Ok(())
}

fn shape(freshest: &AdoptDrive, drives: &[AdoptDrive]) -> Result<(Geometry, BlockSize), AdoptError> {
    let sb = &freshest.superblock;
    let geometry_of = |sb: &Superblock| {
        let level = Level::from_number(sb.level)?;
        let members = u8::try_from(sb.raid_disks).ok()?;
        let chunk = u32::try_from(sb.chunk_bytes()).ok()?;
        Geometry::new(level, members, chunk, sb.member_bytes()).ok()
    };
    let impossible = || AdoptError {
        why: AdoptRefusal::Layout,
        message: format!("array {}: impossible shape", sb.name()),
    };
    let geometry = geometry_of(sb).ok_or_else(impossible)?;
    for drive in drives {
        // RAID 0 has no common size: members that differ make a second zone.
        if geometry_of(&drive.superblock) != Some(geometry) {
            let message = format!(
                "{} and {} are of different sizes: RAID 0 has more than one zone",
                freshest.name, drive.name
            );
            return refuse(AdoptRefusal::Layout, message);
        }
    }
    let stored = drives.iter().filter_map(|drive| BlockSize::from_bytes(drive.superblock.logical_block_size));
    let block = drives.iter().map(|drive| drive.block).chain(stored).max().unwrap_or(BlockSize::B512);
    let bytes = u64::from(block.bytes());
    let is_whole = |n: u64| n.is_multiple_of(bytes);
    if !is_whole(geometry.member_bytes()) || !is_whole(u64::from(geometry.chunk_bytes())) {
        let message = format!(
            "array {}: {} bytes of each member in chunks of {} are not whole blocks of {bytes} bytes",
            sb.name(),
            geometry.member_bytes(),
            geometry.chunk_bytes()
        );
        return refuse(AdoptRefusal::BlockSize, message);
    }
    Ok((geometry, block))
}

fn check_enough(geometry: &Geometry, slots: &[Option<usize>]) -> Result<(), AdoptError> {
    if geometry.is_readable(|slot| slots[slot.index()].is_some()) {
        return Ok(());
    }
    let missing: Vec<String> =
        (0..slots.len()).filter(|i| slots[*i].is_none()).map(|i| i.to_string()).collect();
    let (level, list) = (geometry.level(), missing.join(", "));
    refuse(AdoptRefusal::Incomplete, format!("{level} cannot be read without the members of slots {list}"))
}

/// The bitmaps, merged; `None` on an array without.
fn check_bitmaps(
    geometry: &Geometry,
    drives: &[AdoptDrive],
) -> Result<Option<(BitmapHeader, Bits)>, AdoptError> {
    let mut merged: Option<(BitmapHeader, Bits)> = None;
    let mut without: Option<&str> = None;
    for drive in drives {
        let (name, sb) = (&drive.name, &drive.superblock);
        let image = match &drive.bitmap {
            None => {
                without = Some(name);
                continue;
            }
            Some(Err(error)) => return refuse(AdoptRefusal::Bitmap, format!("{name}: {error}")),
            Some(Ok(image)) => image,
        };
        let (header, bits) = image;
        let wrong = if header.uuid != sb.set_uuid {
            Some("is of another array".to_owned())
        } else if header.events < sb.events || header.state & STATE_STALE != 0 {
            Some(format!("is out of date (events {}, those of the array {})", header.events, sb.events))
        } else if header.sync_size != sync_bytes(geometry) / MD_SECTOR_BYTES {
            Some(format!("covers {} sectors, not those of the array", header.sync_size))
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return refuse(AdoptRefusal::Bitmap, format!("{name}: its bitmap {wrong}"));
        }
        match &mut merged {
            None => merged = Some(image.clone()),
            Some((first, all)) if first.chunk_bytes == header.chunk_bytes => all.merge(bits),
            Some(_) => {
                let message = format!("{name}: its bitmap has another chunk than those of the others");
                return refuse(AdoptRefusal::Bitmap, message);
            }
        }
    }
    match (merged.is_some(), without) {
        (true, Some(name)) => refuse(AdoptRefusal::Bitmap, format!("{name} has no bitmap, others have")),
        _ => Ok(merged),
    }
}

/// Where md's things lie on a member, and the hole that takes ours.
fn layout_of(drive: &AdoptDrive, geometry: &Geometry) -> Result<MemberLayout, AdoptError> {
    let (name, sb) = (&drive.name, &drive.superblock);
    let data_start = sb.data_offset * MD_SECTOR_BYTES;
    let data_bytes = sb.data_size * MD_SECTOR_BYTES;
    let data = data_start..data_start + data_bytes;
    if data.end > drive.bytes || geometry.member_bytes() > data_bytes {
        let message = format!("{name} has {} bytes, its superblock speaks of {}", drive.bytes, data.end);
        return refuse(AdoptRefusal::Layout, message);
    }
    let bitmap = match (&drive.bitmap, sb.bitmap_start()) {
        (Some(Ok((header, _))), Some(start)) => {
            let len = round_up(header.len_bytes(), ALIGN_BYTES);
            Some(start..start.saturating_add(len))
        }
        _ => None,
    };
    let slot = SUPERBLOCK_START..SUPERBLOCK_START + u64_of(SUPERBLOCK_SLOT_BYTES);
    let log = sb.bad_blocks_range();
    let mut used = vec![("data", data.clone()), ("superblock and anchor", slot)];
    used.extend(bitmap.clone().map(|range| ("bitmap", range)));
    used.extend(log.clone().map(|range| ("bad-block log", range)));
    used.sort_unstable_by_key(|(_, range)| range.start);
    if let Some(pair) = used.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        let [(a, _), (b, _)] = pair else { unreachable!("windows of two") };
        return refuse(AdoptRefusal::NoRoom, format!("{name}: no room for its {a} beside its {b}"));
    }
    let block = u64::from(drive.block.bytes());
    if let Some((what, range)) = used.iter().find(|(_, range)| !range.start.is_multiple_of(block)) {
        let message = format!("{name}: its {what} at byte {} begins inside a block of {block}", range.start);
        return refuse(AdoptRefusal::BlockSize, message);
    }
    let roles_end = 256 + 2 * sb.dev_roles.len();
    if roles_end > ANCHOR_AT {
        let message = format!("{name}: a superblock of {} roles leaves no room for our anchor", sb.max_dev());
        return refuse(AdoptRefusal::NoRoom, message);
    }
    let ranges: Vec<Range<u64>> = used.into_iter().map(|(_, range)| range).collect();
    let Some(extension) = hole(&ranges, data.start, drive.bytes) else {
        let message = format!("{name}: md leaves no hole of 32 KiB for our metadata");
        return refuse(AdoptRefusal::NoRoom, message);
    };
    Ok(MemberLayout {
        data_start: DriveOffset(data_start),
        data_bytes,
        superblock_start: DriveOffset(SUPERBLOCK_START),
        bitmap,
        bad_blocks: log,
        extension: Some(extension),
    })
}

/// The largest hole between the used ranges (sorted, not overlapping) before the data, else behind it.
fn hole(used: &[Range<u64>], data_start: u64, drive_bytes: u64) -> Option<Range<u64>> {
    // What lies before the superblock belongs to boot loaders.
    let mut next = SUPERBLOCK_START;
    let mut holes = Vec::new();
    for range in used.iter().cloned().chain(core::iter::once(drive_bytes..drive_bytes)) {
        let (start, end) = (round_up(next, ALIGN_BYTES), round_down(range.start.max(next), ALIGN_BYTES));
        let hole = start..end.min(start.saturating_add(EXTENSION_BYTES_MAX));
        if is_large_enough(&hole) {
            holes.push(hole);
        }
        next = next.max(range.end);
    }
    let is_before = |hole: &Range<u64>| hole.start < data_start;
    holes.into_iter().max_by_key(|hole| (is_before(hole), hole.end - hole.start))
}

/// Numbers no member has, for slots without one: those that md has given up first.
fn free_numbers(sb: &Superblock, slots: &[Option<usize>]) -> impl Iterator<Item = u16> + use<> {
    let missing = slots.iter().filter(|slot| slot.is_none()).count();
    let is_free = |role: &u16| !matches!(MdRole::from_number(*role), Some(MdRole::Active(_)));
    let mut numbers: Vec<(bool, u16)> = (0u16..)
        .zip(&sb.dev_roles)
        .filter(|(_, role)| is_free(role))
        .map(|(number, role)| (*role == MdRole::Spare.number(), number))
        .collect();
    numbers.sort_unstable();
    numbers.truncate(missing);
    numbers.into_iter().map(|(_, number)| number)
}

/// The slots without a member.
#[must_use]
pub fn missing_slots(plan: &AdoptPlan) -> Vec<Slot> {
    let slots = (0u8..).map(Slot).zip(&plan.slots);
    slots.filter(|(_, slot)| slot.drive.is_none()).map(|(slot, _)| slot).collect()
}

#[cfg(test)]
mod tests;
