//! md's superblock, metadata 1.2: `struct mdp_superblock_1`, at byte 4096 of every member.
//!
//! All integers are little-endian; uuids are plain bytes. The byte table is in `docs/on-disk-format.md`. Every field is
//! kept, also those warpraid refuses to work with (a reshape, a journal): what is read and written back is never changed
//! by the way.
//!
//! Invariants: a superblock we create has at most [`ROLES_ON_CREATE`] roles, so it is exactly one 512-byte sector and
//! cannot tear; `dev_roles` is indexed by `dev_number`, never by slot; the checksum is computed when encoding and
//! verified when decoding, so a [`Superblock`] in memory never carries one.

use core::fmt;

use super::bytes::{array, i32_le, put, u16_le, u32_le, u64_le};
use crate::geometry::{Geometry, Level, MEMBERS_MAX};
use crate::units::{Slot, Uuid, u64_of};
use crate::view::MemberLayout;

/// Where the superblock lies on a drive, in bytes.
pub const SUPERBLOCK_START: u64 = 4096;
/// The slot reserved for it, in bytes: superblock first, our anchor in the last sector.
pub const SUPERBLOCK_SLOT_BYTES: usize = 4096;
/// md's sector: the unit of its offsets and sizes, whatever the drive's logical block size.
pub const MD_SECTOR_BYTES: u64 = 512;
/// First bytes of every md superblock.
pub const MD_MAGIC: u32 = 0xa92b_4efc;
/// Number of roles in a superblock that fills one sector exactly.
pub const ROLES_ON_CREATE: usize = 128;
/// `resync_offset` and `recovery_offset` of a member that needs no resync.
pub const IN_SYNC: u64 = u64::MAX;
/// Feature bit unknown to md: while it is set, no kernel assembles the member (checked with kernel 6.12).
pub const CLAIM_BIT: u32 = 0x1000_0000;

/// `bitmap_offset` is valid: the member carries an internal bitmap.
pub const FEATURE_BITMAP: u32 = 1;
/// `recovery_offset` is valid: the member is in sync below it only.
pub const FEATURE_RECOVERY: u32 = 2;
/// A reshape is under way.
pub const FEATURE_RESHAPE: u32 = 4;
/// The bad-block log has entries.
pub const FEATURE_BAD_BLOCKS: u32 = 8;
/// The member is replacing an active one.
pub const FEATURE_REPLACEMENT: u32 = 16;
/// The reshape goes backwards.
pub const FEATURE_RESHAPE_BACKWARDS: u32 = 32;
/// `new_offset` is valid.
pub const FEATURE_NEW_OFFSET: u32 = 64;
/// Recovery goes by the bitmap.
pub const FEATURE_RECOVERY_BITMAP: u32 = 128;
/// Clustered bitmap.
pub const FEATURE_CLUSTERED: u32 = 256;
/// RAID 5/6 with an external journal device.
pub const FEATURE_JOURNAL: u32 = 512;
/// RAID 5 with a partial parity log.
pub const FEATURE_PPL: u32 = 1024;
/// The partial parity log has several entries.
pub const FEATURE_MULTIPLE_PPLS: u32 = 2048;
/// `layout` of RAID 0 says how zones are laid out.
pub const FEATURE_RAID0_LAYOUT: u32 = 4096;

/// In `devflags`: the member is read only where no other copy can be.
pub const WRITE_MOSTLY: u8 = 1;

/// `layout` of RAID 0 as mdadm writes it for members of one size; without its feature bit kernels do not look at it.
pub const LAYOUT_STRIPED: u32 = 1;
/// `layout` of left-symmetric RAID 5 and RAID 6.
pub const LAYOUT_LEFT_SYMMETRIC: u32 = 2;
/// `layout` of near-2 RAID 10.
pub const LAYOUT_NEAR_2: u32 = 0x102;

const ROLE_SPARE: u16 = 0xffff;
const ROLE_FAULTY: u16 = 0xfffe;
const ROLE_JOURNAL: u16 = 0xfffd;
const HEADER_BYTES: usize = 256;
const CHECKSUM_AT: usize = 216;
/// Most roles the 4 KiB slot has room for (md's own limit).
const ROLES_MAX: usize = (SUPERBLOCK_SLOT_BYTES - HEADER_BYTES) / 2;

/// What a role number means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MdRole {
    /// Holds (or is being rebuilt to hold) this slot.
    Active(Slot),
    /// Belongs to the group, holds no slot.
    Spare,
    /// Was dropped.
    Faulty,
    /// md's journal device.
    Journal,
}

impl MdRole {
    /// The role of md's number; `None` for a slot no group of ours can have.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            ROLE_SPARE => Some(Self::Spare),
            ROLE_FAULTY => Some(Self::Faulty),
            ROLE_JOURNAL => Some(Self::Journal),
            _ => u8::try_from(number).ok().filter(|&slot| slot < MEMBERS_MAX).map(|n| Self::Active(Slot(n))),
        }
    }

    /// md's number of the role.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Active(slot) => u16::from(slot.0),
            Self::Spare => ROLE_SPARE,
            Self::Faulty => ROLE_FAULTY,
            Self::Journal => ROLE_JOURNAL,
        }
    }
}

impl fmt::Display for MdRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active(slot) => write!(f, "active in slot {slot}"),
            Self::Spare => f.write_str("spare"),
            Self::Faulty => f.write_str("faulty"),
            Self::Journal => f.write_str("journal"),
        }
    }
}

/// Why bytes are no superblock we can use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// There is none.
    NoMagic,
    /// There is one, damaged or torn.
    BadChecksum {
        /// The checksum it carries.
        stored: u32,
        /// The checksum its bytes have.
        computed: u32,
    },
    /// A sound superblock of a kind we do not work with; says which.
    Unsupported(String),
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("no md superblock (version 1.2) at byte 4096"),
            Self::BadChecksum { stored, computed } => {
                write!(f, "md superblock damaged: checksum {stored:08x}, its bytes give {computed:08x}")
            }
            Self::Unsupported(what) => write!(f, "md superblock not supported: {what}"),
        }
    }
}

impl std::error::Error for SuperblockError {}

/// Every field of a member's superblock. Offsets and sizes are md sectors of 512 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// `FEATURE_*` bits, and [`CLAIM_BIT`] while warpraid owns the group.
    pub feature_map: u32,
    /// The group's uuid.
    pub set_uuid: Uuid,
    /// `host:name`, NUL-padded.
    pub set_name: [u8; 32],
    /// Creation time: seconds since 1970 in the low 40 bits, microseconds in the high 24.
    pub ctime: u64,
    /// md's level number; see [`Level::from_number`].
    pub level: i32,
    /// [`LAYOUT_STRIPED`], 0 on RAID 1, [`LAYOUT_LEFT_SYMMETRIC`], [`LAYOUT_NEAR_2`], or one we refuse.
    pub layout: u32,
    /// Sectors used of each member, a multiple of the chunk; 0 on RAID 0.
    pub size: u64,
    /// Chunk in sectors; 0 on RAID 1.
    pub chunksize: u32,
    /// Number of slots.
    pub raid_disks: u32,
    /// Bitmap's first sector, relative to the superblock (may be negative); valid with [`FEATURE_BITMAP`]. With
    /// [`FEATURE_PPL`] these four bytes are the log's place instead.
    pub bitmap_offset: i32,
    /// Reshape: level being changed to.
    pub new_level: i32,
    /// Reshape: next address to be moved.
    pub reshape_position: u64,
    /// Reshape: change of the number of slots.
    pub delta_disks: i32,
    /// Reshape: layout being changed to.
    pub new_layout: u32,
    /// Reshape: chunk being changed to, in sectors.
    pub new_chunk: u32,
    /// Reshape: signed change of `data_offset` in sectors.
    pub new_offset: i32,
    /// First sector of data.
    pub data_offset: u64,
    /// Sectors of the data area.
    pub data_size: u64,
    /// First sector of this superblock: always 8.
    pub super_offset: u64,
    /// Sectors (from `data_offset`) already rebuilt; valid with [`FEATURE_RECOVERY`]. The journal's tail on a journal
    /// device.
    pub recovery_offset: u64,
    /// This member's index in `dev_roles`.
    pub dev_number: u32,
    /// Read errors repaired by rewriting.
    pub cnt_corrected_read: u32,
    /// This member's uuid.
    pub device_uuid: Uuid,
    /// [`WRITE_MOSTLY`]; bit 1 failfast.
    pub devflags: u8,
    /// Unit of the bad-block log as a shift of sectors.
    pub bblog_shift: u8,
    /// Sectors of the bad-block log.
    pub bblog_size: u16,
    /// Bad-block log's first sector, relative to the superblock; 0 = none.
    pub bblog_offset: i32,
    /// Last update, like `ctime`.
    pub utime: u64,
    /// Update counter. Derived from the epoch and never the authority (SAFETY M1).
    pub events: u64,
    /// Sectors known in sync: 0 while owned and dirty, [`IN_SYNC`] when clean.
    pub resync_offset: u64,
    /// Logical block size in bytes as kernels from 6.19 on store it; 0 = not stored.
    pub logical_block_size: u32,
    /// Role number per `dev_number`; its length is md's `max_dev`.
    pub dev_roles: Vec<u16>,
}

impl Superblock {
    /// The superblock's bytes with its checksum: one 512-byte sector for up to [`ROLES_ON_CREATE`] roles, else as many
    /// as it takes. On a 4Kn drive the caller writes the whole 4 KiB slot.
    ///
    /// # Panics
    /// With more roles than the slot has room for.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.dev_roles.len() <= ROLES_MAX, "{} roles in one superblock", self.dev_roles.len());
        let len = HEADER_BYTES + 2 * self.dev_roles.len();
        let mut bytes = vec![0; len.next_multiple_of(512)];
        self.encode_group(&mut bytes);
        self.encode_member(&mut bytes);
        for (i, role) in self.dev_roles.iter().enumerate() {
            put(&mut bytes, HEADER_BYTES + 2 * i, &role.to_le_bytes());
        }
        let checksum = checksum(&bytes[..len]);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Bytes 0 to 127: what all members of the group have in common.
    fn encode_group(&self, bytes: &mut [u8]) {
        put(bytes, 0, &MD_MAGIC.to_le_bytes());
        put(bytes, 4, &1u32.to_le_bytes());
        put(bytes, 8, &self.feature_map.to_le_bytes());
        put(bytes, 16, &self.set_uuid.0);
        put(bytes, 32, &self.set_name);
        put(bytes, 64, &self.ctime.to_le_bytes());
        put(bytes, 72, &self.level.to_le_bytes());
        put(bytes, 76, &self.layout.to_le_bytes());
        put(bytes, 80, &self.size.to_le_bytes());
        put(bytes, 88, &self.chunksize.to_le_bytes());
        put(bytes, 92, &self.raid_disks.to_le_bytes());
        put(bytes, 96, &self.bitmap_offset.to_le_bytes());
        put(bytes, 100, &self.new_level.to_le_bytes());
        put(bytes, 104, &self.reshape_position.to_le_bytes());
        put(bytes, 112, &self.delta_disks.to_le_bytes());
        put(bytes, 116, &self.new_layout.to_le_bytes());
        put(bytes, 120, &self.new_chunk.to_le_bytes());
        put(bytes, 124, &self.new_offset.to_le_bytes());
    }

    /// Bytes 128 to 255 except the checksum: this member, and the group's state.
    fn encode_member(&self, bytes: &mut [u8]) {
        put(bytes, 128, &self.data_offset.to_le_bytes());
        put(bytes, 136, &self.data_size.to_le_bytes());
        put(bytes, 144, &self.super_offset.to_le_bytes());
        put(bytes, 152, &self.recovery_offset.to_le_bytes());
        put(bytes, 160, &self.dev_number.to_le_bytes());
        put(bytes, 164, &self.cnt_corrected_read.to_le_bytes());
        put(bytes, 168, &self.device_uuid.0);
        put(bytes, 184, &[self.devflags, self.bblog_shift]);
        put(bytes, 186, &self.bblog_size.to_le_bytes());
        put(bytes, 188, &self.bblog_offset.to_le_bytes());
        put(bytes, 192, &self.utime.to_le_bytes());
        put(bytes, 200, &self.events.to_le_bytes());
        put(bytes, 208, &self.resync_offset.to_le_bytes());
        put(bytes, 220, &self.max_dev().to_le_bytes());
        put(bytes, 224, &self.logical_block_size.to_le_bytes());
    }

    /// Reads a superblock from the bytes of a drive from [`SUPERBLOCK_START`] on; 4096 of them, fewer are no superblock.
    ///
    /// Sound superblocks of groups we would not serve (a level, layout or feature we refuse) are decoded all the same:
    /// see [`Self::obstacle`].
    ///
    /// # Errors
    /// [`SuperblockError`]: nothing there, damaged, or of a structure we cannot keep whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        if bytes.len() < SUPERBLOCK_SLOT_BYTES || u32_le(bytes, 0) != MD_MAGIC {
            return Err(SuperblockError::NoMagic);
        }
        let unsupported = |what: String| Err(SuperblockError::Unsupported(what));
        let major = u32_le(bytes, 4);
        if major != 1 {
            return unsupported(format!("metadata version {major}, expected 1"));
        }
        let roles = match usize::try_from(u32_le(bytes, 220)) {
            Ok(roles) if roles <= ROLES_MAX => roles,
            _ => return unsupported(format!("max_dev {}, at most {ROLES_MAX}", u32_le(bytes, 220))),
        };
        let (stored, computed) = (u32_le(bytes, CHECKSUM_AT), checksum(&bytes[..HEADER_BYTES + 2 * roles]));
        if stored != computed {
            return Err(SuperblockError::BadChecksum { stored, computed });
        }
        if bytes[12..16].iter().chain(&bytes[228..256]).any(|&byte| byte != 0) {
            return unsupported("padding in use, by a feature newer than this warpraid".to_owned());
        }
        let superblock = Self::decode_fields(bytes, roles);
        if superblock.super_offset != SUPERBLOCK_START / MD_SECTOR_BYTES {
            let at = superblock.super_offset;
            return unsupported(format!("superblock belongs at sector {at}, metadata 1.2 has it at 8"));
        }
        if !(1..=u32::from(MEMBERS_MAX)).contains(&superblock.raid_disks) {
            return unsupported(format!("{} slots, allowed 1 to {MEMBERS_MAX}", superblock.raid_disks));
        }
        let number = superblock.role_number();
        match MdRole::from_number(number) {
            Some(MdRole::Active(slot)) if u32::from(slot.0) >= superblock.raid_disks => {
                unsupported(format!("slot {slot} of a group of {}", superblock.raid_disks))
            }
            None => unsupported(format!("role number {number:#x}")),
            Some(_) => Ok(superblock),
        }
    }

    fn decode_fields(bytes: &[u8], roles: usize) -> Self {
        Self {
            feature_map: u32_le(bytes, 8),
            set_uuid: Uuid(array(bytes, 16)),
            set_name: array(bytes, 32),
            ctime: u64_le(bytes, 64),
            level: i32_le(bytes, 72),
            layout: u32_le(bytes, 76),
            size: u64_le(bytes, 80),
            chunksize: u32_le(bytes, 88),
            raid_disks: u32_le(bytes, 92),
            bitmap_offset: i32_le(bytes, 96),
            new_level: i32_le(bytes, 100),
            reshape_position: u64_le(bytes, 104),
            delta_disks: i32_le(bytes, 112),
            new_layout: u32_le(bytes, 116),
            new_chunk: u32_le(bytes, 120),
            new_offset: i32_le(bytes, 124),
            data_offset: u64_le(bytes, 128),
            data_size: u64_le(bytes, 136),
            super_offset: u64_le(bytes, 144),
            recovery_offset: u64_le(bytes, 152),
            dev_number: u32_le(bytes, 160),
            cnt_corrected_read: u32_le(bytes, 164),
            device_uuid: Uuid(array(bytes, 168)),
            devflags: bytes[184],
            bblog_shift: bytes[185],
            bblog_size: u16_le(bytes, 186),
            bblog_offset: i32_le(bytes, 188),
            utime: u64_le(bytes, 192),
            events: u64_le(bytes, 200),
            resync_offset: u64_le(bytes, 208),
            logical_block_size: u32_le(bytes, 224),
            dev_roles: (0..roles).map(|i| u16_le(bytes, HEADER_BYTES + 2 * i)).collect(),
        }
    }

    /// md's `max_dev`: the number of roles.
    ///
    /// # Panics
    /// Never: `encode` and `decode` bound the number of roles.
    #[must_use]
    pub fn max_dev(&self) -> u32 {
        u32::try_from(self.dev_roles.len()).expect("at most a slot full of roles")
    }

    /// The number md would read as this member's role: a `dev_number` outside the roles is a spare.
    fn role_number(&self) -> u16 {
        let index = usize::try_from(self.dev_number).unwrap_or(usize::MAX);
        self.dev_roles.get(index).copied().unwrap_or(ROLE_SPARE)
    }

    /// Whether the member is to be read only where no other copy can be.
    #[must_use]
    pub const fn is_write_mostly(&self) -> bool {
        self.devflags & WRITE_MOSTLY != 0
    }

    /// Marks the member, or takes the mark off.
    pub fn set_write_mostly(&mut self, write_mostly: bool) {
        self.devflags = self.devflags & !WRITE_MOSTLY | if write_mostly { WRITE_MOSTLY } else { 0 };
    }

    /// This member's role; a number that means nothing counts as faulty (`decode` lets none through).
    #[must_use]
    pub fn role(&self) -> MdRole {
        MdRole::from_number(self.role_number()).unwrap_or(MdRole::Faulty)
    }

    /// Whether warpraid owns the group.
    #[must_use]
    pub const fn is_claimed(&self) -> bool {
        self.feature_map & CLAIM_BIT != 0
    }

    /// Sets or clears [`CLAIM_BIT`].
    pub fn set_claimed(&mut self, claimed: bool) {
        self.set_feature(CLAIM_BIT, claimed);
    }

    /// Sets or clears feature bits.
    pub fn set_feature(&mut self, bits: u32, on: bool) {
        self.feature_map = if on { self.feature_map | bits } else { self.feature_map & !bits };
    }

    /// Whether all of these feature bits are set.
    #[must_use]
    pub const fn has_feature(&self, bits: u32) -> bool {
        self.feature_map & bits == bits
    }

    /// The group's name: `set_name` without the `host:` before it.
    #[must_use]
    pub fn name(&self) -> String {
        let text = super::bytes::text(&self.set_name);
        text.split_once(':').map_or(text.clone(), |(_, name)| name.to_owned())
    }

    /// Absolute byte range of the bad-block log, if there is one.
    #[must_use]
    pub fn bad_blocks_range(&self) -> Option<core::ops::Range<u64>> {
        let start = self.relative(self.bblog_offset)?;
        (self.bblog_size != 0).then(|| start..start + u64::from(self.bblog_size) * MD_SECTOR_BYTES)
    }

    /// First byte of the internal bitmap on the drive, if there is one. The superblock does not say how long it is.
    #[must_use]
    pub fn bitmap_start(&self) -> Option<u64> {
        self.has_feature(FEATURE_BITMAP).then(|| self.relative(self.bitmap_offset)).flatten()
    }

    /// Absolute byte offset of a sector relative to the superblock; `None` for 0 (absent) and before the drive's start.
    fn relative(&self, sectors: i32) -> Option<u64> {
        let sector = i64::from(sectors) + i64::try_from(self.super_offset).ok()?;
        (sectors != 0).then_some(u64::try_from(sector).ok()? * MD_SECTOR_BYTES)
    }

    /// Puts the place of every area of a member into its superblock.
    ///
    /// # Panics
    /// If an area does not lie at whole sectors within 1 TiB of the superblock: layouts of ours and of md do.
    pub fn set_layout(&mut self, layout: &MemberLayout) {
        let relative = |range: &core::ops::Range<u64>| {
            let at = i64::try_from(sectors(range.start)).expect("a drive") - 8;
            i32::try_from(at).expect("areas lie near the superblock")
        };
        self.data_offset = sectors(layout.data_start.0);
        self.data_size = sectors(layout.data_bytes);
        self.bitmap_offset = layout.bitmap.as_ref().map_or(0, relative);
        self.bblog_offset = layout.bad_blocks.as_ref().map_or(0, relative);
        let log_sectors = layout.bad_blocks.as_ref().map_or(0, |range| sectors(range.end - range.start));
        self.bblog_size = u16::try_from(log_sectors).expect("a log has 8 sectors");
    }

    /// What keeps warpraid from serving this group, in words; `None` if nothing in the superblock does.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        const KNOWN: u32 = CLAIM_BIT
            | FEATURE_BITMAP
            | FEATURE_RECOVERY
            | FEATURE_BAD_BLOCKS
            | FEATURE_RECOVERY_BITMAP
            | FEATURE_RAID0_LAYOUT;
        let refused = [
            (FEATURE_RESHAPE | FEATURE_RESHAPE_BACKWARDS | FEATURE_NEW_OFFSET, "a reshape is under way"),
            (FEATURE_REPLACEMENT, "a replacement is in progress"),
            (FEATURE_CLUSTERED, "its bitmap is clustered"),
            (FEATURE_JOURNAL, "it has an external journal"),
            (FEATURE_PPL | FEATURE_MULTIPLE_PPLS, "it has a partial parity log"),
        ];
        if let Some((_, why)) = refused.iter().find(|(bits, _)| self.feature_map & bits != 0) {
            return Some((*why).to_owned());
        }
        if self.feature_map & !KNOWN != 0 {
            return Some(format!("feature bits {:#x} are unknown", self.feature_map & !KNOWN));
        }
        let Some(level) = Level::from_number(self.level) else {
            return Some(format!("md level {} is not one of 0, 1, 5, 6, 10", self.level));
        };
        let fits = match level {
            // md reads layouts 0, 1 and 2 the same when all members are of one size, which is all we serve.
            Level::Raid0 => self.layout <= 2 && self.size == 0,
            Level::Raid1 => self.layout == 0 && self.chunksize == 0,
            Level::Raid5 | Level::Raid6 => self.layout == LAYOUT_LEFT_SYMMETRIC,
            Level::Raid10 => self.layout == LAYOUT_NEAR_2,
        };
        if !fits {
            return Some(format!("{level} layout {:#x} is not one we serve", self.layout));
        }
        self.shape_obstacle(level)
    }

    /// Sizes and numbers no group of ours can have. They bound every later sum of offsets.
    fn shape_obstacle(&self, level: Level) -> Option<String> {
        const SECTORS_MAX: u64 = 1 << 47;
        let is_bounded = self.data_offset <= SECTORS_MAX && self.data_size <= SECTORS_MAX;
        if !is_bounded || self.size > self.data_size {
            let (at, len, size) = (self.data_offset, self.data_size, self.size);
            return Some(format!("{size} sectors used of {len} from sector {at} is impossible"));
        }
        let members = u8::try_from(self.raid_disks).unwrap_or(u8::MAX);
        let chunk = u32::try_from(self.chunk_bytes()).unwrap_or(u32::MAX);
        let shape = Geometry::new(level, members, chunk, self.member_bytes());
        shape.is_err().then(|| format!("{level} of {members} slots and chunk {chunk} is not one we serve"))
    }

    /// Bytes of each member the group uses: `size`, or on RAID 0 the data area.
    #[must_use]
    pub fn member_bytes(&self) -> u64 {
        let sectors = if self.size == 0 { self.data_size } else { self.size };
        sectors.saturating_mul(MD_SECTOR_BYTES)
    }

    /// Chunk in bytes, 0 on RAID 1.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        u64::from(self.chunksize) * MD_SECTOR_BYTES
    }
}

/// `host:name` as md stores it; the name alone where both do not fit. Longer names are cut, which our validator rules
/// out.
#[must_use]
pub fn set_name(host: &str, name: &str) -> [u8; 32] {
    let full = format!("{host}:{name}");
    let text = if host.is_empty() || full.len() > 32 { name } else { &full };
    let mut bytes = [0; 32];
    let len = text.len().min(32);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

/// md's checksum: the sum of all little-endian words with the checksum's own word as 0 (and a last half word, if any),
/// the high half added to the low once. Kernel: `calc_sb_1_csum`.
fn checksum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(4).enumerate().filter(|(i, _)| i * 4 != CHECKSUM_AT);
    let sum: u64 = words
        .map(|(_, word)| match word.len() {
            4 => u64::from(u32_le(word, 0)),
            _ => u64::from(u16_le(word, 0)),
        })
        .sum();
    let folded = (sum & 0xffff_ffff) + (sum >> 32);
    u32::try_from(folded & 0xffff_ffff).expect("masked to 32 bits")
}

/// `n` bytes in md sectors.
///
/// # Panics
/// If it is not a whole number of them: our layouts are.
#[must_use]
pub fn sectors(bytes: u64) -> u64 {
    assert!(bytes.is_multiple_of(MD_SECTOR_BYTES), "{bytes} bytes are not whole md sectors");
    bytes / MD_SECTOR_BYTES
}

/// Sectors of `len` bytes of a slice, as md counts them.
#[must_use]
pub fn sectors_of(bytes: &[u8]) -> u64 {
    sectors(u64_of(bytes.len()))
}

#[cfg(test)]
mod tests;
