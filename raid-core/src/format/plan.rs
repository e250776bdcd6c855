//! The plan of a create: from level, chunk and drives to the place of everything on every member, and the sums in words
//! (case OT-07). Pure: what `--dry-run` prints is what create does.
//!
//! All members of a group we create are laid out alike, cut to the smallest drive:
//!
//! | from | to | what |
//! |---|---|---|
//! | 0 | 4 KiB | nothing |
//! | 4 KiB | 8 KiB | md superblock, our anchor in its last 512 bytes |
//! | 8 KiB | 136 KiB | bitmap (not on RAID 0: what follows starts at 8 KiB there) |
//! | 136 KiB | 140 KiB | bad-block log |
//! | 140 KiB | D/2 | extension area: copy A, journal ring, copy B |
//! | D/2 | D | md's headroom for a later reshape, not ours |
//! | D | D + data | data; D is a whole MiB, 1/32 of the drive from 1 to 128 MiB |
//! | | end | slack of 1 MiB or 0.1 %, so that a slightly smaller replacement fits; the last MiB is never used |
//!
//! Invariant: the place of the extension area follows from the superblock alone ([`extension_of`]), so that it is found
//! again without our anchor.

use core::fmt;
use core::ops::Range;

use super::bad_blocks::LOG_BYTES;
use super::bitmap::{AREA_BYTES, BitmapHeader, Bits, choose_chunk_bytes, sync_bytes};
use super::bytes::{round_down, round_up};
use super::sums::{Sums, human, sums};
use super::superblock::{
    FEATURE_BITMAP, IN_SYNC, LAYOUT_LEFT_SYMMETRIC, LAYOUT_NEAR_2, LAYOUT_STRIPED, MD_SECTOR_BYTES, MdRole,
    ROLES_ON_CREATE, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock, sectors,
};
use crate::geometry::{Geometry, Level, MEMBERS_MAX};
use crate::units::{BlockSize, DriveOffset, Slot, Uuid};
use crate::view::MemberLayout;

const MIB: u64 = 1 << 20;
/// Chunk of a group that asks for none (RAID 1 has none).
pub const CHUNK_BYTES_DEFAULT: u32 = 64 * 1024;
/// Smallest and largest chunk.
pub const CHUNK_BYTES: core::ops::RangeInclusive<u32> = 4096..=1024 * 1024;
/// Smallest drive a member can be.
pub const DRIVE_BYTES_MIN: u64 = 8 * MIB;
const DATA_START_MAX: u64 = 128 * MIB;
const LAST_BYTES_UNUSED: u64 = MIB;
const EXTENSION_BYTES_MIN: u64 = 32 * 1024;
const AREAS_START: u64 = SUPERBLOCK_START + 4096;

const _: () = assert!(SUPERBLOCK_SLOT_BYTES == 4096);

/// A drive to be planned with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanDrive {
    /// What the user called it, for messages.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Logical block size.
    pub block: BlockSize,
}

/// Why a group cannot be created so. Every message names the thing and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// Too few, too many or an odd number of drives.
    Drives {
        /// The level.
        level: Level,
        /// How many were given.
        given: usize,
    },
    /// A drive was named twice.
    Twice(String),
    /// A chunk that is not a power of two from 4 KiB to 1 MiB.
    Chunk(u64),
    /// A chunk on RAID 1.
    ChunkOnMirror,
    /// A drive too small for any group, or for this one.
    DriveTooSmall {
        /// The drive.
        name: String,
        /// Its size in bytes.
        bytes: u64,
        /// The size needed in bytes.
        needed: u64,
    },
    /// A drive whose blocks are larger than the group's.
    Block {
        /// The drive.
        name: String,
        /// Its block size.
        block: BlockSize,
        /// The group's.
        group: BlockSize,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drives { level, given } => {
                let even = if *level == Level::Raid10 { "an even number of drives" } else { "drives" };
                let min = level.members_min();
                write!(f, "{level} needs {even} from {min} to {MEMBERS_MAX}, {given} given")
            }
            Self::Twice(name) => write!(f, "drive {name} is named twice"),
            Self::Chunk(bytes) => {
                write!(f, "chunk of {bytes} bytes: allowed are powers of two from 4096 (4K) to 1048576 (1M)")
            }
            Self::ChunkOnMirror => f.write_str("RAID 1 has no chunk: leave --chunk out"),
            Self::DriveTooSmall { name, bytes, needed } => {
                write!(
                    f,
                    "drive {name} has {} bytes, at least {needed} ({}) are needed",
                    bytes,
                    human(*needed)
                )
            }
            Self::Block { name, block, group } => write!(
                f,
                "drive {name} has blocks of {} bytes, the group of {}: its block size was fixed at create, larger does \
                 not fit",
                block.bytes(),
                group.bytes()
            ),
        }
    }
}

impl std::error::Error for PlanError {}

/// What identifies the group and its members that a plan does not decide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewGroup {
    /// The group's uuid.
    pub group: Uuid,
    /// md's `set_name`: see [`super::superblock::set_name`].
    pub set_name: [u8; 32],
    /// Device uuids in slot order.
    pub devices: Vec<Uuid>,
    /// Seconds since 1970.
    pub created_unix_s: u64,
    /// md's `events`.
    pub events: u64,
    /// Whether warpraid owns the group ([`super::superblock::CLAIM_BIT`]).
    pub is_claimed: bool,
    /// Whether parity and copies are known to match already.
    pub is_in_sync: bool,
}

/// The plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Shape of the group.
    pub geometry: Geometry,
    /// Block size of the group: the largest of its members.
    pub block: BlockSize,
    /// Where everything lies, on every member alike.
    pub layout: MemberLayout,
    /// Bytes per intent bit; `None` on RAID 0.
    pub intent_chunk_bytes: Option<u64>,
    /// The sums.
    pub sums: Sums,
}

/// Plans a group.
///
/// # Errors
/// [`PlanError`] if it is impossible; nothing but the arguments was looked at.
///
/// # Panics
/// Never: whatever the drives, the checks come first.
pub fn plan(level: Level, chunk_bytes: Option<u64>, drives: &[PlanDrive]) -> Result<Plan, PlanError> {
    let given = drives.len();
    let members = u8::try_from(given).ok().filter(|n| (level.members_min()..=MEMBERS_MAX).contains(n));
    let members = members.filter(|n| level != Level::Raid10 || n % 2 == 0);
    let members = members.ok_or(PlanError::Drives { level, given })?;
    if let Some((_, twice)) =
        drives.iter().enumerate().find(|(i, d)| drives[..*i].iter().any(|o| o.name == d.name))
    {
        return Err(PlanError::Twice(twice.name.clone()));
    }
    let chunk = match (level, chunk_bytes) {
        (Level::Raid1, None) => 0,
        (Level::Raid1, Some(_)) => return Err(PlanError::ChunkOnMirror),
        (_, None) => CHUNK_BYTES_DEFAULT,
        (_, Some(bytes)) => u32::try_from(bytes)
            .ok()
            .filter(|bytes| bytes.is_power_of_two() && CHUNK_BYTES.contains(bytes))
            .ok_or(PlanError::Chunk(bytes))?,
    };
    let smallest = drives.iter().min_by_key(|drive| drive.bytes).expect("at least two drives");
    if smallest.bytes < DRIVE_BYTES_MIN {
        let (name, bytes) = (smallest.name.clone(), smallest.bytes);
        return Err(PlanError::DriveTooSmall { name, bytes, needed: DRIVE_BYTES_MIN });
    }
    let block = drives.iter().map(|drive| drive.block).max().expect("at least two drives");
    let layout = member_layout(level, smallest.bytes);
    let geometry = Geometry::new(level, members, chunk, layout.data_bytes)
        .expect("members and chunk were checked, and the data area holds the largest chunk");
    let sync = sync_bytes(&geometry);
    let intent_chunk_bytes = layout.bitmap.is_some().then(|| choose_chunk_bytes(sync, AREA_BYTES));
    let sums = sums(&geometry, block, smallest.bytes, drives);
    Ok(Plan { geometry, block, layout, intent_chunk_bytes, sums })
}

/// Where everything lies on a member whose smallest fellow has `bytes` bytes.
fn member_layout(level: Level, bytes: u64) -> MemberLayout {
    let has_bitmap = level != Level::Raid0;
    let bitmap = AREAS_START..AREAS_START + AREA_BYTES;
    let log_start = if has_bitmap { bitmap.end } else { AREAS_START };
    let data_start = round_down(bytes / 32, MIB).clamp(MIB, DATA_START_MAX);
    let slack = round_up(bytes / 1000, MIB).max(MIB);
    let data_end = round_down(bytes, MIB) - LAST_BYTES_UNUSED - slack;
    assert!(data_start + MIB <= data_end, "a drive of {bytes} bytes has no room for data");
    MemberLayout {
        data_start: DriveOffset(data_start),
        data_bytes: data_end - data_start,
        superblock_start: DriveOffset(SUPERBLOCK_START),
        bitmap: has_bitmap.then_some(bitmap),
        bad_blocks: Some(log_start..log_start + LOG_BYTES),
        extension: Some(extension(log_start + LOG_BYTES, data_start)),
    }
}

/// The extension area between the last of md's areas and the middle of what lies before the data.
fn extension(areas_end: u64, data_start: u64) -> Range<u64> {
    round_up(areas_end, 4096)..round_down(data_start / 2, 4096)
}

/// Where the extension area lies on a member we created, from its superblock alone; `None` if it cannot be one of ours.
#[must_use]
pub fn extension_of(superblock: &Superblock) -> Option<Range<u64>> {
    layout_of(superblock)?.extension
}

/// Where everything lies on a member we created, from its superblock alone; `None` if it cannot be one of ours.
#[must_use]
pub fn layout_of(superblock: &Superblock) -> Option<MemberLayout> {
    let data_start = superblock.data_offset.checked_mul(MD_SECTOR_BYTES)?;
    let data_bytes = superblock.data_size.checked_mul(MD_SECTOR_BYTES)?;
    let bitmap = superblock.bitmap_start().map(|start| start..start.saturating_add(AREA_BYTES));
    let bad_blocks = superblock.bad_blocks_range()?;
    let as_planned = bad_blocks.start == bitmap.as_ref().map_or(AREAS_START, |bitmap| bitmap.end)
        && bitmap.as_ref().is_none_or(|bitmap| bitmap.start == AREAS_START)
        && bad_blocks.end - bad_blocks.start == LOG_BYTES
        && data_start.is_multiple_of(MIB)
        && (MIB..=DATA_START_MAX).contains(&data_start)
        && data_start.checked_add(data_bytes).is_some();
    let extension = extension(bad_blocks.end, data_start);
    let has_room = extension.start.checked_add(EXTENSION_BYTES_MIN)? <= extension.end;
    (as_planned && has_room).then_some(MemberLayout {
        data_start: DriveOffset(data_start),
        data_bytes,
        superblock_start: DriveOffset(SUPERBLOCK_START),
        bitmap,
        bad_blocks: Some(bad_blocks),
        extension: Some(extension),
    })
}

/// Smallest drive that can take the place of a member with this layout, in bytes. A member of an adopted array may use its
/// drive to the end.
#[must_use]
pub fn replacement_bytes_min(layout: &MemberLayout) -> u64 {
    let data_end = layout.data_start.0 + layout.data_bytes;
    if is_as_created(layout) {
        data_end + LAST_BYTES_UNUSED
    } else {
        data_end.max(layout.extension.as_ref().map_or(0, |area| area.end))
    }
}

/// Whether a create would lay a member with this data area out like this; md's own layouts differ in the extension area.
fn is_as_created(layout: &MemberLayout) -> bool {
    let bitmap = AREAS_START..AREAS_START + AREA_BYTES;
    let is_its = layout.bitmap.as_ref().is_none_or(|range| *range == bitmap);
    let log_start = layout.bitmap.as_ref().map_or(AREAS_START, |range| range.end);
    is_its && layout.extension == Some(extension(log_start + LOG_BYTES, layout.data_start.0))
}

/// Whether a drive can take the place of a member with this layout in a group of this block size.
///
/// # Errors
/// [`PlanError`] names the drive and what it would need.
pub fn check_replacement(
    layout: &MemberLayout,
    group: BlockSize,
    drive: &PlanDrive,
) -> Result<(), PlanError> {
    let name = drive.name.clone();
    if drive.block > group {
        return Err(PlanError::Block { name, block: drive.block, group });
    }
    let needed = replacement_bytes_min(layout);
    if drive.bytes < needed {
        return Err(PlanError::DriveTooSmall { name, bytes: drive.bytes, needed });
    }
    Ok(())
}

impl Plan {
    /// The superblock of the member in a slot of a new group. `dev_number` starts out as the slot.
    ///
    /// # Panics
    /// If the group has no such slot or `new` not one device uuid per slot.
    #[must_use]
    pub fn superblock(&self, new: &NewGroup, slot: Slot) -> Superblock {
        let (geometry, layout) = (&self.geometry, &self.layout);
        assert_eq!(new.devices.len(), usize::from(geometry.members()), "one device uuid per slot");
        let level = geometry.level();
        let relative =
            |at: u64| i32::try_from(sectors(at - SUPERBLOCK_START)).expect("areas lie before the data");
        let mut dev_roles = vec![MdRole::Spare.number(); ROLES_ON_CREATE];
        for n in 0..geometry.members() {
            dev_roles[usize::from(n)] = MdRole::Active(Slot(n)).number();
        }
        let is_in_sync = new.is_in_sync || level == Level::Raid0;
        let mut superblock = Superblock {
            feature_map: if layout.bitmap.is_some() { FEATURE_BITMAP } else { 0 },
            set_uuid: new.group,
            set_name: new.set_name,
            ctime: new.created_unix_s & ((1 << 40) - 1),
            level: i32::from(level.number()),
            layout: match level {
                Level::Raid0 => LAYOUT_STRIPED,
                Level::Raid1 => 0,
                Level::Raid5 | Level::Raid6 => LAYOUT_LEFT_SYMMETRIC,
                Level::Raid10 => LAYOUT_NEAR_2,
            },
            size: if level == Level::Raid0 { 0 } else { sectors(geometry.member_bytes()) },
            chunksize: if level == Level::Raid1 { 0 } else { geometry.chunk_bytes() / 512 },
            raid_disks: u32::from(geometry.members()),
            bitmap_offset: layout.bitmap.as_ref().map_or(0, |bitmap| relative(bitmap.start)),
            new_level: 0,
            reshape_position: 0,
            delta_disks: 0,
            new_layout: 0,
            new_chunk: 0,
            new_offset: 0,
            data_offset: sectors(layout.data_start.0),
            data_size: sectors(layout.data_bytes),
            super_offset: sectors(SUPERBLOCK_START),
            recovery_offset: 0,
            dev_number: u32::from(slot.0),
            cnt_corrected_read: 0,
            device_uuid: new.devices[slot.index()],
            devflags: 0,
            bblog_shift: 0,
            bblog_size: 0,
            bblog_offset: 0,
            utime: new.created_unix_s & ((1 << 40) - 1),
            events: new.events,
            resync_offset: if is_in_sync { IN_SYNC } else { 0 },
            logical_block_size: 0,
            dev_roles,
        };
        if let Some(log) = &layout.bad_blocks {
            superblock.bblog_offset = relative(log.start);
            superblock.bblog_size =
                u16::try_from(sectors(log.end - log.start)).expect("the log has 8 sectors");
        }
        superblock.set_claimed(new.is_claimed);
        superblock
    }

    /// Header and bits of the bitmap of a new group: all dirty unless it is known in sync. `None` on RAID 0.
    #[must_use]
    pub fn bitmap(&self, new: &NewGroup) -> Option<(BitmapHeader, Bits)> {
        let sync = sync_bytes(&self.geometry);
        let header = BitmapHeader::new(new.group, new.events, sync, self.intent_chunk_bytes?);
        let count = header.bits();
        Some((header, if new.is_in_sync { Bits::clear(count) } else { Bits::all_dirty(count) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drives(n: usize, bytes: u64) -> Vec<PlanDrive> {
        (0..n).map(|i| PlanDrive { name: format!("d{i}"), bytes, block: BlockSize::B512 }).collect()
    }

    fn new_group(n: usize) -> NewGroup {
        NewGroup {
            group: Uuid([1; 16]),
            set_name: [b'x'; 32],
            devices: (0..n).map(|i| Uuid([u8::try_from(i).unwrap(); 16])).collect(),
            created_unix_s: 1_800_000_000,
            events: 2,
            is_claimed: true,
            is_in_sync: false,
        }
    }

    #[test]
    fn ad_07_impossible_plans_name_the_thing_and_the_range() {
        let say = |level, chunk, drives: &[PlanDrive]| plan(level, chunk, drives).unwrap_err().to_string();
        let four = drives(4, 1 << 30);
        assert_eq!(say(Level::Raid6, None, &four[..3]), "RAID 6 needs drives from 4 to 128, 3 given");
        let odd = drives(5, 1 << 30);
        assert_eq!(
            say(Level::Raid10, None, &odd),
            "RAID 10 needs an even number of drives from 4 to 128, 5 given"
        );
        assert!(say(Level::Raid0, None, &drives(129, 1 << 30)).contains("to 128, 129 given"));
        assert!(say(Level::Raid1, Some(65536), &four).contains("leave --chunk out"));
        for chunk in [0, 1, 2048, 65535, 96 * 1024, 2 << 20, u64::MAX] {
            let message = say(Level::Raid5, Some(chunk), &four);
            assert!(
                message.contains(&format!("chunk of {chunk} bytes")) && message.contains("4K"),
                "{message}"
            );
        }
        let message = say(Level::Raid1, None, &drives(2, 8 * MIB - 1));
        assert!(message.contains("drive d0") && message.contains("8388608 (8 MiB)"), "{message}");
        let mut twice = drives(3, 1 << 30);
        twice[2].name = "d0".to_owned();
        assert!(say(Level::Raid5, None, &twice).contains("d0 is named twice"));
    }

    #[test]
    fn the_group_has_the_largest_block_and_refuses_larger_ones_later() {
        let mut mixed = drives(3, 1 << 30);
        let plan_512 = plan(Level::Raid5, None, &mixed).unwrap();
        mixed[1].block = BlockSize::B4096;
        assert_eq!(plan(Level::Raid5, None, &mixed).unwrap().block, BlockSize::B4096);
        let refusal = check_replacement(&plan_512.layout, plan_512.block, &mixed[1]).unwrap_err();
        assert!(refusal.to_string().contains("blocks of 4096 bytes, the group of 512"), "{refusal}");
    }

    #[test]
    fn a_slightly_smaller_replacement_fits() {
        for bytes in [8 * MIB, 32 * MIB, 1 << 30, 1_920_383_410_176, 15_362_991_415_296] {
            let plan = plan(Level::Raid5, None, &drives(3, bytes)).unwrap();
            let drive = |bytes| PlanDrive { name: "new".to_owned(), bytes, block: BlockSize::B512 };
            let less = MIB.max(bytes / 1000);
            assert_eq!(check_replacement(&plan.layout, plan.block, &drive(bytes - less)), Ok(()));
            let refusal = check_replacement(&plan.layout, plan.block, &drive(bytes - 2 * less - 3 * MIB));
            assert!(matches!(refusal, Err(PlanError::DriveTooSmall { .. })), "{bytes}");
        }
    }

    #[test]
    fn extension_areas_of_some_sizes() {
        let extension =
            |bytes| plan(Level::Raid6, None, &drives(4, bytes)).unwrap().layout.extension.unwrap();
        assert_eq!(extension(8 * MIB), 140 * 1024..512 * 1024);
        assert_eq!(extension(2 << 30), 140 * 1024..32 * MIB);
        assert_eq!(extension(1 << 40), 140 * 1024..64 * MIB);
    }

    proptest! {
        #[test]
        fn whatever_is_planned_holds_together(
            level in proptest::sample::select(Level::ALL.to_vec()),
            n in 2usize..=128,
            shift in 12u32..=20,
            smallest in DRIVE_BYTES_MIN..1 << 45,
            more in 0u64..1 << 30,
        ) {
            let mut all = drives(n, smallest);
            all[0].bytes += more;
            let chunk = (level != Level::Raid1).then_some(1 << shift);
            let Ok(plan) = plan(level, chunk, &all) else {
                prop_assert!(n < usize::from(level.members_min()) || (level == Level::Raid10 && n % 2 == 1));
                return Ok(());
            };
            let s = &plan.sums;
            prop_assert_eq!(s.raw_bytes, s.usable_bytes + s.redundancy_bytes + s.metadata_bytes + s.unused_bytes);
            let layout = &plan.layout;
            let mut areas: Vec<Range<u64>> = layout.bitmap.clone().into_iter().collect();
            areas.insert(0, SUPERBLOCK_START..SUPERBLOCK_START + 4096);
            areas.extend(layout.bad_blocks.clone());
            areas.extend(layout.extension.clone());
            areas.push(layout.data_start.0..layout.data_start.0 + layout.data_bytes);
            areas.push(smallest - MIB..smallest);
            prop_assert!(areas.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(areas.iter().all(|area| area.start < area.end));
            prop_assert!(areas[..areas.len() - 1].iter().all(|area| area.start % 4096 == 0 && area.end % 4096 == 0));
            prop_assert!(plan.geometry.member_bytes() == layout.data_bytes && s.largest_disk_bytes > 0);

            let superblock = plan.superblock(&new_group(n), Slot(0));
            prop_assert_eq!(layout_of(&superblock), Some(layout.clone()));
            prop_assert_eq!(superblock.obstacle(), None);
            prop_assert_eq!(superblock.encode().len(), 512);
            if let Some((header, bits)) = plan.bitmap(&new_group(n)) {
                prop_assert!(header.len_bytes() <= AREA_BYTES && bits.dirty() == bits.len());
            }
        }
    }
}
