//! Everything found on one member, for `warpraid examine DRIVE` with the daemon down: md's superblock field by field, claim,
//! role, bitmap and bad blocks. Read-only and pure: the caller reads [`wants`] and hands the bytes in.
//!
//! [`Examination::extra`] takes what is known beyond md's own metadata (extension area, anchor).

use core::fmt;
use core::ops::Range;

use super::bad_blocks::BadBlocks;
use super::bitmap::{AREA_BYTES, BitmapError, BitmapHeader, Bits, HEADER_BYTES};
use super::probe::Signature;
use super::sums::human;
use super::superblock::{
    FEATURE_BAD_BLOCKS, FEATURE_RECOVERY, IN_SYNC, MD_SECTOR_BYTES, MdRole, Superblock, SuperblockError,
};
use crate::geometry::Level;
use crate::units::u64_of;

/// The bitmap of a member, summed up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapSummary {
    /// Its header.
    pub header: BitmapHeader,
    /// Number of bits.
    pub bits: u64,
    /// How many of those read are dirty.
    pub dirty: u64,
    /// How many could be read; fewer than `bits` only on a foreign bitmap beyond 128 KiB.
    pub read: u64,
    /// Whether md would believe it: uuid and events fit the superblock and it is not stale.
    pub is_current: bool,
}

/// Everything found on one member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examination {
    /// Size of the drive in bytes.
    pub drive_bytes: u64,
    /// The superblock, or why there is none.
    pub superblock: Result<Superblock, SuperblockError>,
    /// The bitmap, if the superblock says there is one.
    pub bitmap: Option<Result<BitmapSummary, BitmapError>>,
    /// Lost blocks, if the superblock says the log counts.
    pub bad_blocks: BadBlocks,
    /// Every signature on the drive.
    pub signatures: Vec<Signature>,
    /// What others know: name and value.
    pub extra: Vec<(String, String)>,
}

/// The two areas to read after the superblock, bounded by the drive.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    /// The bitmap.
    pub bitmap: Option<Range<u64>>,
    /// The bad-block log.
    pub bad_blocks: Option<Range<u64>>,
}

/// What has to be read to examine a member with this superblock.
#[must_use]
pub fn wants(superblock: &Superblock, drive_bytes: u64) -> Wants {
    let bounded =
        |range: Range<u64>| Some(range.start..range.end.min(drive_bytes)).filter(|range| !range.is_empty());
    let log = superblock.bad_blocks_range().filter(|_| superblock.has_feature(FEATURE_BAD_BLOCKS));
    Wants {
        bitmap: superblock.bitmap_start().and_then(|start| bounded(start..start.saturating_add(AREA_BYTES))),
        bad_blocks: log.and_then(bounded),
    }
}

/// Examines a drive from its superblock's slot and the bytes of its [`wants`] (empty where it wants none or they could
/// not be read).
#[must_use]
pub fn examine(drive_bytes: u64, slot: &[u8], bitmap: &[u8], bad_blocks: &[u8]) -> Examination {
    let superblock = Superblock::decode(slot);
    let wants = superblock.as_ref().map(|superblock| wants(superblock, drive_bytes)).unwrap_or_default();
    let summary = superblock.as_ref().ok().filter(|_| wants.bitmap.is_some()).map(|superblock| {
        let header = BitmapHeader::decode(bitmap)?;
        let on_drive = u64_of(bitmap.len().saturating_sub(HEADER_BYTES)).saturating_mul(8);
        let read = header.bits().min(on_drive);
        Ok(BitmapSummary {
            bits: header.bits(),
            dirty: Bits::decode(read, bitmap).dirty(),
            read,
            is_current: header.is_current(superblock.set_uuid, superblock.events),
            header,
        })
    });
    let bad_blocks = match (&superblock, wants.bad_blocks) {
        (Ok(superblock), Some(_)) => BadBlocks::decode(bad_blocks, superblock.bblog_shift),
        _ => BadBlocks::default(),
    };
    Examination {
        drive_bytes,
        superblock,
        bitmap: summary,
        bad_blocks,
        signatures: Vec::new(),
        extra: Vec::new(),
    }
}

impl Examination {
    /// Everything as name and value, in the order to show it.
    #[must_use]
    pub fn fields(&self) -> Vec<(String, String)> {
        let mut fields = Fields::default();
        fields.add("drive size", size(self.drive_bytes));
        match &self.superblock {
            Ok(superblock) => {
                group_fields(superblock, &mut fields);
                member_fields(superblock, &mut fields);
            }
            Err(error) => fields.add("superblock", error.to_string()),
        }
        match &self.bitmap {
            Some(Ok(bitmap)) => bitmap_fields(bitmap, &mut fields),
            Some(Err(error)) => fields.add("bitmap", error.to_string()),
            None => fields.add("bitmap", "none".to_owned()),
        }
        self.bad_block_fields(&mut fields);
        fields.0.extend(self.extra.iter().cloned());
        for signature in &self.signatures {
            fields.add("signature", signature.to_string());
        }
        fields.0
    }

    fn bad_block_fields(&self, fields: &mut Fields) {
        if self.bad_blocks.is_empty() {
            return fields.add("bad blocks", "none".to_owned());
        }
        let ranges = self.bad_blocks.ranges();
        fields.add("bad blocks", format!("{} in {} ranges", size(self.bad_blocks.bytes()), ranges.len()));
        for range in ranges {
            fields.add("bad block", format!("byte {} to {} of the drive", range.start, range.end));
        }
    }
}

impl fmt::Display for Examination {
    /// One field a line, names aligned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields();
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        fields.iter().try_for_each(|(name, value)| writeln!(f, "{name:>width$} : {value}"))
    }
}

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Fields {
    fn add(&mut self, name: &str, value: String) {
        self.0.push((name.to_owned(), value));
    }
}

fn size(bytes: u64) -> String {
    format!("{bytes} bytes ({})", human(bytes))
}

fn sectors(n: u64) -> String {
    n.checked_mul(MD_SECTOR_BYTES).map_or_else(|| format!("{n} sectors"), size)
}

/// Seconds and microseconds of md's packed time.
fn time(packed: u64) -> String {
    let seconds = packed & ((1 << 40) - 1);
    format!("{seconds} seconds since 1970, {} microseconds", packed >> 40)
}

fn group_fields(superblock: &Superblock, fields: &mut Fields) {
    let level = Level::from_number(superblock.level);
    fields.add("superblock", "md metadata 1.2, checksum correct".to_owned());
    let owner =
        if superblock.is_claimed() { "warpraid (claim bit set)" } else { "Linux md (claim bit clear)" };
    fields.add("owner", owner.to_owned());
    if let Some(obstacle) = superblock.obstacle() {
        fields.add("not servable", obstacle);
    }
    fields.add("group", superblock.name());
    fields.add("group uuid", superblock.set_uuid.to_string());
    fields.add("set name", super::bytes::text(&superblock.set_name));
    fields.add(
        "level",
        level.map_or_else(|| format!("md level {}", superblock.level), |level| level.to_string()),
    );
    fields.add("layout", format!("{:#x}", superblock.layout));
    let chunk = superblock.chunk_bytes();
    fields.add("chunk", if chunk == 0 { "none".to_owned() } else { size(chunk) });
    fields.add("slots", superblock.raid_disks.to_string());
    fields.add("used of each member", size(superblock.member_bytes()));
    fields.add("created", time(superblock.ctime));
    fields.add("updated", time(superblock.utime));
    fields.add("events", superblock.events.to_string());
    fields.add(
        "resync",
        match superblock.resync_offset {
            IN_SYNC => "clean".to_owned(),
            from => format!("needed from {}", sectors(from)),
        },
    );
    fields.add("feature map", format!("{:#x}", superblock.feature_map));
    let role = |(number, &role): (usize, &u16)| {
        let role = MdRole::from_number(role).filter(|role| *role != MdRole::Spare)?;
        Some(format!("{number}: {role}"))
    };
    let roles: Vec<String> = superblock.dev_roles.iter().enumerate().filter_map(role).collect();
    fields.add("roles", roles.join(", "));
}

fn member_fields(superblock: &Superblock, fields: &mut Fields) {
    fields.add("device uuid", superblock.device_uuid.to_string());
    fields.add("device number", superblock.dev_number.to_string());
    fields.add("role", superblock.role().to_string());
    if superblock.has_feature(FEATURE_RECOVERY) {
        fields.add("rebuilt up to", sectors(superblock.recovery_offset));
    }
    fields.add("data starts at", sectors(superblock.data_offset));
    fields.add("data area", sectors(superblock.data_size));
    if let Some(log) = superblock.bad_blocks_range() {
        fields.add("bad-block log at", format!("byte {} to {}", log.start, log.end));
    }
    fields.add("read errors repaired", superblock.cnt_corrected_read.to_string());
    let flags = [(1, "write-mostly"), (2, "failfast")];
    let set: Vec<&str> =
        flags.iter().filter(|(bit, _)| superblock.devflags & bit != 0).map(|(_, name)| *name).collect();
    if !set.is_empty() {
        fields.add("device flags", set.join(", "));
    }
    if superblock.logical_block_size != 0 {
        fields.add("logical block size", format!("{} bytes", superblock.logical_block_size));
    }
}

fn bitmap_fields(bitmap: &BitmapSummary, fields: &mut Fields) {
    let header = &bitmap.header;
    fields.add("bitmap", format!("version 4, {} per bit", size(u64::from(header.chunk_bytes))));
    let part =
        if bitmap.read < bitmap.bits { format!(" of the first {}", bitmap.read) } else { String::new() };
    fields.add("bitmap bits", format!("{}, {} dirty{part}", bitmap.bits, bitmap.dirty));
    let state = if bitmap.is_current { "current" } else { "out of date: everything counts as dirty" };
    fields.add("bitmap state", state.to_owned());
    fields.add("bitmap events", format!("{}, cleared at {}", header.events, header.events_cleared));
    fields.add("bitmap covers", sectors(header.sync_size));
}

#[cfg(test)]
mod tests {
    use super::super::plan::{NewGroup, PlanDrive, plan};
    use super::super::superblock::{SUPERBLOCK_SLOT_BYTES, set_name};
    use super::*;
    use crate::units::{BlockSize, Slot, Uuid};
    use proptest::prelude::*;

    fn member() -> (Superblock, Vec<u8>) {
        let drive = |i| PlanDrive { name: format!("d{i}"), bytes: 32 << 20, block: BlockSize::B512 };
        let plan = plan(Level::Raid5, None, &[drive(0), drive(1), drive(2)]).unwrap();
        let new = NewGroup {
            group: Uuid([1; 16]),
            set_name: set_name("host", "tank"),
            devices: vec![Uuid([2; 16]), Uuid([3; 16]), Uuid([4; 16])],
            created_unix_s: 1_800_000_000,
            events: 2,
            is_claimed: true,
            is_in_sync: false,
        };
        let (header, bits) = plan.bitmap(&new).unwrap();
        (plan.superblock(&new, Slot(1)), super::super::bitmap::encode_area(&header, &bits, AREA_BYTES))
    }

    fn slot(superblock: &Superblock) -> Vec<u8> {
        let mut bytes = superblock.encode();
        bytes.resize(SUPERBLOCK_SLOT_BYTES, 0);
        bytes
    }

    #[test]
    fn a_member_is_shown_whole() {
        let (mut superblock, bitmap) = member();
        superblock.set_feature(FEATURE_BAD_BLOCKS, true);
        let mut bad = BadBlocks::default();
        bad.insert(1 << 20..(1 << 20) + 1024);
        let mut shown = examine(32 << 20, &slot(&superblock), &bitmap, &bad.encode().unwrap());
        shown.extra.push(("epoch".to_owned(), "7".to_owned()));
        let text = shown.to_string();
        for line in [
            "owner : warpraid (claim bit set)",
            "group : tank",
            "level : RAID 5",
            "chunk : 65536 bytes (64 KiB)",
            "role : active in slot 1",
            "roles : 0: active in slot 0, 1: active in slot 1, 2: active in slot 2",
            "resync : needed from 0 bytes (0 B)",
            "bitmap bits : 29, 29 dirty",
            "bitmap state : current",
            "bad blocks : 1024 bytes (1 KiB) in 1 ranges",
            "bad block : byte 1048576 to 1049600 of the drive",
            "epoch : 7",
        ] {
            assert!(text.lines().any(|shown| shown.trim_start() == line), "{line:?} is missing in\n{text}");
        }
        let areas = wants(&superblock, 32 << 20);
        assert_eq!(areas.bitmap, Some(8192..8192 + AREA_BYTES));
        assert_eq!(areas.bad_blocks, Some(139_264..143_360));
    }

    #[test]
    fn nothing_and_damage_are_said() {
        let blank = examine(32 << 20, &[0; SUPERBLOCK_SLOT_BYTES], &[], &[]);
        assert!(blank.to_string().contains("no md superblock"), "{blank}");
        let (superblock, _) = member();
        let lost_bitmap = examine(32 << 20, &slot(&superblock), &[], &[]);
        assert!(lost_bitmap.to_string().contains("no md bitmap where the superblock says"), "{lost_bitmap}");
        let mut torn = slot(&superblock);
        torn[300] ^= 1;
        assert!(examine(32 << 20, &torn, &[], &[]).to_string().contains("checksum"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_examine_panic(
            noise in proptest::collection::vec((0usize..224, any::<u8>()), 0..40),
            bitmap in proptest::collection::vec(any::<u8>(), 0..600),
            size: u64,
        ) {
            let (superblock, sound) = member();
            let mut bytes = slot(&superblock);
            for (at, byte) in noise {
                bytes[at] = byte;
            }
            // A sound checksum over the noise, so that the fields are believed.
            if let Err(SuperblockError::BadChecksum { computed, .. }) = Superblock::decode(&bytes) {
                bytes[216..220].copy_from_slice(&computed.to_le_bytes());
            }
            let _ = examine(size, &bytes, &bitmap, &bitmap).to_string();
            let _ = examine(size, &bytes, &sound, &bitmap).to_string();
        }
    }
}
