//! Every refusal of an adopt, and that the hole is a hole.

use proptest::prelude::*;

use super::*;
use crate::format::plan::{NewGroup, PlanDrive, plan};
use crate::format::superblock::{FEATURE_BAD_BLOCKS, set_name};
use crate::units::u64_of;

const MIB: u64 = 1 << 20;

/// The members of a clean array, as md would have left it.
fn array(level: Level, n: usize) -> Vec<AdoptDrive> {
    let drive = |i: usize| PlanDrive { name: format!("d{i}"), bytes: 64 * MIB, block: BlockSize::B512 };
    let drives: Vec<PlanDrive> = (0..n).map(drive).collect();
    let plan = plan(level, None, &drives).unwrap();
    let uuid = |i: usize| Uuid([u8::try_from(i).unwrap(); 16]);
    let new = NewGroup {
        group: uuid(200),
        set_name: set_name("host", "data"),
        devices: (0..n).map(uuid).collect(),
        created_unix_s: 1_800_000_000,
        events: 40,
        is_claimed: false,
        is_in_sync: true,
    };
    let bitmap = plan.bitmap(&new);
    (0..n)
        .map(|i| AdoptDrive {
            name: format!("d{i}"),
            bytes: 64 * MIB,
            block: BlockSize::B512,
            superblock: plan.superblock(&new, Slot(u8::try_from(i).unwrap())),
            bitmap: bitmap.clone().map(Ok),
        })
        .collect()
}

fn refused(drives: &[AdoptDrive]) -> (AdoptRefusal, String) {
    let error = plan_adopt(drives).expect_err("adopted");
    (error.why, error.to_string())
}

/// The refusal of an array with every member changed alike.
fn refused_with(level: Level, n: usize, change: impl Fn(&mut Superblock)) -> AdoptRefusal {
    let mut drives = array(level, n);
    drives.iter_mut().for_each(|drive| change(&mut drive.superblock));
    let (why, message) = refused(&drives);
    assert!(message.contains("d0") || message.contains("data"), "{message}: nothing is named");
    why
}

#[test]
fn every_level_is_adopted_in_whatever_order_its_drives_are_named() {
    for (level, n) in
        [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)]
    {
        let mut drives = array(level, n);
        drives.reverse();
        let plan = plan_adopt(&drives).unwrap();
        let order: Vec<Option<usize>> = plan.slots.iter().map(|slot| slot.drive).collect();
        assert_eq!(order, (0..n).rev().map(Some).collect::<Vec<_>>());
        assert_eq!((plan.geometry.level(), plan.events.0, plan.dirty_bits), (level, 40, 0));
        assert!(missing_slots(&plan).is_empty());
        assert_eq!(plan.md_name, "host:data");
    }
}

#[test]
fn kinds_of_arrays_we_do_not_serve_are_refused_by_kind() {
    use AdoptRefusal as Why;
    let raid5 = |change: fn(&mut Superblock)| refused_with(Level::Raid5, 4, change);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_RESHAPE, true)), Why::Reshape);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_NEW_OFFSET, true)), Why::Reshape);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_REPLACEMENT, true)), Why::Rebuilding);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_CLUSTERED, true)), Why::Bitmap);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_JOURNAL, true)), Why::Journal);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_PPL, true)), Why::Journal);
    assert_eq!(raid5(|sb| sb.dev_roles[9] = MdRole::Journal.number()), Why::Journal);
    assert_eq!(raid5(|sb| sb.set_feature(1 << 20, true)), Why::Feature);
    assert_eq!(raid5(|sb| sb.bblog_shift = 1), Why::Feature);
    assert_eq!(raid5(|sb| sb.layout = 0), Why::Layout);
    assert_eq!(raid5(|sb| sb.level = 4), Why::Layout);
    assert_eq!(raid5(|sb| sb.chunksize = 4096), Why::Layout);
    assert_eq!(raid5(|sb| sb.resync_offset = 0), Why::Dirty);
    assert_eq!(raid5(|sb| sb.resync_offset = 4096), Why::Dirty);
    assert_eq!(raid5(|sb| sb.set_feature(FEATURE_RECOVERY, true)), Why::Rebuilding);
    assert_eq!(raid5(|sb| sb.data_size *= 2), Why::Layout);
    assert_eq!(raid5(|sb| sb.dev_roles.resize(1700, 0xffff)), Why::NoRoom);
    assert_eq!(refused_with(Level::Raid6, 5, |sb| sb.layout = 18), Why::Layout);
    assert_eq!(refused_with(Level::Raid10, 4, |sb| sb.layout = 0x201), Why::Layout);
    assert_eq!(refused_with(Level::Raid0, 3, |sb| sb.set_feature(FEATURE_BITMAP, true)), Why::Bitmap);
}

#[test]
fn drives_that_do_not_belong_together_are_refused() {
    use AdoptRefusal as Why;
    let good = array(Level::Raid6, 5);
    let with = |change: fn(&mut AdoptDrive)| {
        let mut drives = good.clone();
        change(&mut drives[2]);
        let (why, message) = refused(&drives);
        assert!(message.contains("d2"), "{message}");
        why
    };
    assert_eq!(with(|drive| drive.superblock.set_uuid = Uuid([9; 16])), Why::Mixed);
    assert_eq!(with(|drive| drive.superblock.device_uuid = Uuid([1; 16])), Why::Mixed);
    assert_eq!(with(|drive| drive.superblock.size -= 128), Why::Metadata);
    assert_eq!(with(|drive| drive.superblock.events -= 1), Why::NotInUse);
    assert_eq!(with(|drive| drive.superblock.dev_roles[2] = 0xfffe), Why::NotInUse);
    assert_eq!(with(|drive| drive.superblock.dev_number = 40), Why::NotInUse);
    assert_eq!(with(|drive| drive.superblock.dev_roles[7] = 0xfffe), Why::Metadata);
    assert_eq!(with(|drive| drive.bitmap = None), Why::Bitmap);
    assert_eq!(with(|drive| drive.bitmap = Some(Err(BitmapError::Version(6)))), Why::Bitmap);
    let header = |change: fn(&mut BitmapHeader)| {
        let mut drives = good.clone();
        let Some(Ok((header, _))) = &mut drives[2].bitmap else { panic!("it has one") };
        change(header);
        refused(&drives).0
    };
    assert_eq!(header(|header| header.events -= 1), Why::Bitmap);
    assert_eq!(header(|header| header.state = STATE_STALE), Why::Bitmap);
    assert_eq!(header(|header| header.uuid = Uuid([9; 16])), Why::Bitmap);
    assert_eq!(header(|header| header.sync_size -= 8), Why::Bitmap);
    assert_eq!(refused(&[]).0, Why::Incomplete);
    // RAID 0 members of two sizes are laid out in two zones.
    let mut drives = array(Level::Raid0, 3);
    drives[1].superblock.data_size -= 4096;
    assert_eq!(refused(&drives).0, Why::Layout);
}

#[test]
fn a_member_that_was_not_named_is_missed_and_one_that_md_lacks_is_not() {
    let mut drives = array(Level::Raid6, 5);
    let mut gone = drives.remove(3);
    gone.superblock.events -= 2;
    let (why, message) = refused(&drives);
    assert_eq!(why, AdoptRefusal::Incomplete);
    assert!(message.contains("slot 3 (md's number 3)"), "{message}");
    for drive in &mut drives {
        drive.superblock.dev_roles[3] = 0xfffe;
    }
    let plan = plan_adopt(&drives).unwrap();
    assert_eq!(missing_slots(&plan), [Slot(3)]);
    let slot = &plan.slots[3];
    assert_eq!((slot.drive, slot.dev_number), (None, 3), "the number md has given up comes first");
    // What md dropped is not taken by the back door.
    drives.push(gone);
    assert_eq!(refused(&drives).0, AdoptRefusal::NotInUse);
    // More are gone than the level can do without: md cannot run it either.
    drives.truncate(2);
    for drive in &mut drives {
        drive.superblock.dev_roles[2..5].fill(0xfffe);
    }
    assert_eq!(refused(&drives).0, AdoptRefusal::Incomplete);
}

#[test]
fn blocks_of_4096_bytes_need_sizes_of_whole_blocks() {
    let mut drives = array(Level::Raid1, 2);
    drives[0].block = BlockSize::B4096;
    assert_eq!(plan_adopt(&drives).unwrap().block, BlockSize::B4096);
    drives[0].block = BlockSize::B512;
    drives[1].superblock.logical_block_size = 4096;
    assert_eq!(plan_adopt(&drives).unwrap().block, BlockSize::B4096, "newer kernels store it");
    for drive in &mut drives {
        drive.superblock.size -= 1;
        drive.bitmap = None;
        drive.superblock.set_feature(FEATURE_BITMAP, false);
    }
    assert_eq!(refused(&drives).0, AdoptRefusal::BlockSize);
}

#[test]
fn the_dirty_bits_of_all_members_count_together() {
    let mut drives = array(Level::Raid5, 4);
    for (i, drive) in drives.iter_mut().enumerate() {
        let Some(Ok((_, bits))) = &mut drive.bitmap else { panic!("it has one") };
        bits.set(u64_of(i) * 2, true);
    }
    assert_eq!(plan_adopt(&drives).unwrap().dirty_bits, 4);
}

proptest! {
    /// Whatever md's areas lie at: planned ranges are on the drive, in the hole, and nothing overlaps.
    #[test]
    fn the_hole_is_a_hole(
        data_offset in 0u64..40_000,
        bitmap_offset in -8i32..600,
        bblog_offset in -8i32..600,
        has_bitmap: bool,
        tail in 0u64..200_000,
    ) {
        let mut drives = array(Level::Raid1, 2);
        for drive in &mut drives {
            let sb = &mut drive.superblock;
            sb.data_offset = data_offset;
            sb.bblog_offset = bblog_offset;
            sb.bitmap_offset = bitmap_offset;
            sb.set_feature(FEATURE_BAD_BLOCKS, true);
            drive.bytes = (data_offset + sb.data_size + tail) * 512;
            if !has_bitmap {
                sb.set_feature(FEATURE_BITMAP, false);
                drive.bitmap = None;
            }
        }
        let Ok(plan) = plan_adopt(&drives) else { return Ok(()) };
        for (slot, drive) in plan.slots.iter().zip(&drives) {
            let layout = &slot.layout;
            let area = layout.extension.clone().unwrap();
            prop_assert!(is_large_enough(&area) && area.start.is_multiple_of(4096) && area.end.is_multiple_of(4096));
            let data = layout.data_start.0..layout.data_start.0 + layout.data_bytes;
            let mut ranges = vec![area, data, 4096..8192];
            ranges.extend(layout.bitmap.clone());
            ranges.extend(layout.bad_blocks.clone());
            ranges.sort_by_key(|range| range.start);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
            prop_assert!(ranges.last().unwrap().end <= drive.bytes);
        }
    }
}
