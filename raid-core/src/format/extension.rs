//! Our extension area: what md's superblock has no room for, and the authority on who is current (SAFETY M1).
//!
//! The area of a member holds copy A at its start, copy B at its end, and between them the range of the journal ring
//! (reserved; all zero until the journal is built). A copy is [`COPY_BYTES`] long and is always written whole, to the
//! place of the older one, so a torn write costs the new copy and never the last good one: of the copies whose CRC32C
//! holds, the one with the higher sequence number counts. Each copy carries a whole md superblock of its member, from
//! which a torn or rewritten one is put right.
//!
//! Bytes of a copy; integers are little-endian, uuids plain bytes, every offset is from the start of the drive:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `WARPRAID` |
//! | 8 | 4 | CRC32C of the whole copy with this field 0 |
//! | 12 | 4 | version, 1 |
//! | 16 | 8 | sequence: grows with every copy written to any member of the group |
//! | 24 | 16 | group uuid |
//! | 40 | 16 | device uuid of this member |
//! | 56 | 24 | epoch this member knows: counter, id |
//! | 80 | 8 | md `events` |
//! | 88 | 8 | md `events_cleared`: events when all members were last in sync (S4) |
//! | 96 | 8 | bytes used of each member's data area |
//! | 104 | 4 | chunk in bytes, 0 on RAID 1 |
//! | 108 | 1 | level, md's number |
//! | 109 | 1 | number of slots, 1 to 128 |
//! | 110 | 2 | this member's `dev_number` |
//! | 112 | 4 | marks: 1 creating, 2 clean, 4 unsynced, 8 torn, 16 forced, 32 deleted, 64 quiet, 128 adopted, 256 adopting, 512 releasing |
//! | 116 | 2 | entries of the chain, 1 to 64 |
//! | 118 | 2 | bytes of the md superblock, at most 3584 |
//! | 120 | 4 | group block size |
//! | 124 | 4 | zero |
//! | 128 | 32 | group name, NUL-padded |
//! | 160 | 8 | created, unix seconds |
//! | 168 | 8 | this copy written, unix seconds |
//! | 176 | 8 | epoch counter of the last forced start, 0 = never |
//! | 184 | 8 | deleted, unix seconds, 0 = not |
//! | 192 | 16 | data area: start, length |
//! | 208 | 16 | bitmap: start, end (0, 0 = none) |
//! | 224 | 16 | bad-block log: start, end (0, 0 = none) |
//! | 240 | 16 | this extension area: start, end |
//! | 256 | 16 | journal ring inside it: start, end |
//! | 272 | 8 | counter of the sealed epoch: every member in sync has taken it; 0 = none yet |
//! | 280 | 232 | zero |
//! | 512 | 1536 | chain: the last 64 epochs, oldest first: counter 8, id 16 |
//! | 2048 | 8192 | 128 slots of 64: device uuid 16, last in-sync epoch (counter 8, id 16), rebuild cursor 8, `dev_number` 2, state 1 (1 in sync, 2 rebuilding, 3 missing), flags 1 (1 by intents, 2 stays out, 4 distrusted), zero 4, counter of the newest epoch it surely took in sync 8 (0 = unknown) |
//! | 10240 | 3584 | md superblock of this member, zero-padded |
//! | 13824 | 2560 | zero |

use core::fmt;
use core::ops::Range;

use super::bytes::{array, put, text, u16_le, u32_le, u64_le};
use crate::geometry::{Level, MEMBERS_MAX};
use crate::units::{BlockSize, DriveOffset, Uuid, u64_of};
use crate::view::{Epoch, MemberLayout};

/// Bytes of one copy.
pub const COPY_BYTES: usize = 16 * 1024;
/// Most epochs a copy remembers (SAFETY M1).
pub const CHAIN_MAX: usize = 64;
/// Most bytes of a superblock in a copy: the superblock's slot without our anchor.
pub const SUPERBLOCK_BYTES_MAX: usize = 3584;

const MAGIC: [u8; 8] = *b"WARPRAID";
const VERSION: u32 = 1;
const CRC_AT: usize = 8;
const CHAIN_AT: usize = 512;
const EPOCH_BYTES: usize = 24;
const SLOTS_AT: usize = CHAIN_AT + CHAIN_MAX * EPOCH_BYTES;
const SLOT_BYTES: usize = 64;
const SUPERBLOCK_AT: usize = 10_240;
const USED_BYTES: usize = SUPERBLOCK_AT + SUPERBLOCK_BYTES_MAX;

const _: () = assert!(SLOTS_AT == 2048);
const _: () = assert!(SLOTS_AT + 128 * SLOT_BYTES == SUPERBLOCK_AT);
const _: () = assert!(USED_BYTES == 13_824 && USED_BYTES < COPY_BYTES);

/// The two places of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyPlace {
    /// At the start of the extension area.
    A,
    /// At its end.
    B,
}

impl CopyPlace {
    /// The other place: where the next copy goes.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Where the copy lies in an extension area.
    #[must_use]
    pub fn start(self, area: &Range<u64>) -> DriveOffset {
        match self {
            Self::A => DriveOffset(area.start),
            Self::B => DriveOffset(area.end - u64_of(COPY_BYTES)),
        }
    }
}

/// The part of an extension area between the copies, kept for the journal ring.
#[must_use]
pub fn journal_range(area: &Range<u64>) -> Range<u64> {
    area.start + u64_of(COPY_BYTES)..area.end - u64_of(COPY_BYTES)
}

/// Whether an area has room for two copies.
#[must_use]
pub fn is_large_enough(area: &Range<u64>) -> bool {
    area.end.saturating_sub(area.start) >= 2 * u64_of(COPY_BYTES)
}

/// What is true of a group as a whole, as flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// The member is not part of a running group yet: a create or a replacement that has not been finished.
    pub creating: bool,
    /// The group was stopped with nothing in flight.
    pub clean: bool,
    /// Regions whose intent bit is set are not known to be consistent, even after a clean stop (SAFETY S1).
    pub unsynced: bool,
    /// Regions whose intent bit is set may hold writes cut short by a crash: a block lost there cannot be trusted to its
    /// parity (case SL-09).
    pub torn: bool,
    /// The group was once started against the rules (SAFETY M4, case SL-09); never cleared.
    pub forced: bool,
    /// The group was deleted: a tombstone.
    pub deleted: bool,
    /// No write that could tear a stripe has begun since everything was flushed. Says nothing about who is newest: a
    /// running group may have dropped this member since.
    pub quiet: bool,
    /// The group was an array of md, whose contents are not ours to arrange: no disk table is made on it.
    pub adopted: bool,
    /// The claim is being put on the members of an array of md; until all have it, the group starts only with all of them.
    pub adopting: bool,
    /// The claim is being taken off the members; the same.
    pub releasing: bool,
}

impl Marks {
    const ALL: u32 = 1023;

    /// Whether members may differ in who owns them: md or us.
    #[must_use]
    pub const fn is_between_owners(self) -> bool {
        self.adopting || self.releasing
    }

    /// The flags as they lie on disk.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.creating)
            | u32::from(self.clean) << 1
            | u32::from(self.unsynced) << 2
            | u32::from(self.torn) << 3
            | u32::from(self.forced) << 4
            | u32::from(self.deleted) << 5
            | u32::from(self.quiet) << 6
            | u32::from(self.adopted) << 7
            | u32::from(self.adopting) << 8
            | u32::from(self.releasing) << 9
    }

    /// The flags of bits on disk; `None` if a bit is set that this version does not know.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        let has = |bit: u32| bits & (1 << bit) != 0;
        (bits & !Self::ALL == 0).then(|| Self {
            creating: has(0),
            clean: has(1),
            unsynced: has(2),
            torn: has(3),
            forced: has(4),
            deleted: has(5),
            quiet: has(6),
            adopted: has(7),
            adopting: has(8),
            releasing: has(9),
        })
    }
}

/// State of a slot as it lies on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SlotState {
    /// Its member holds current data everywhere.
    InSync,
    /// Its member holds current data below its cursor.
    Rebuilding,
    /// It has no usable member.
    Missing,
}

impl SlotState {
    /// The byte on disk.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::InSync => 1,
            Self::Rebuilding => 2,
            Self::Missing => 3,
        }
    }

    /// The state of a byte on disk.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::InSync),
            2 => Some(Self::Rebuilding),
            3 => Some(Self::Missing),
            _ => None,
        }
    }
}

/// What a copy says about one slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotRecord {
    /// Device uuid of the member that holds, or last held, the slot.
    pub device_uuid: Uuid,
    /// The last epoch in which it was in sync; counter 0 = never.
    pub last_in_sync: Epoch,
    /// While rebuilding: bytes of its data area below which it is current. A low-water mark (SAFETY S3).
    pub cursor_bytes: u64,
    /// md's `dev_number` of that member.
    pub dev_number: u16,
    /// What it is good for.
    pub state: SlotState,
    /// While rebuilding: above the cursor only what a set intent bit covers is not current (SAFETY M6). A version that does
    /// not know this flag rebuilds everything above the cursor, which is right too.
    pub by_intents: bool,
    /// While missing: it does not come back by itself, because it was not contact that was lost.
    pub stays_out: bool,
    /// While missing: its drive was seen cut short, damaged or changed by others. Intent bits do not cover that: what it
    /// lacks is everything (SAFETY M6).
    pub distrusted: bool,
    /// Counter of the newest epoch that its member surely took while in sync: not above `last_in_sync`, below it when the
    /// member failed while it was to take that one. An older state of the drive is another drive (P3). 0 = unknown.
    pub known_counter: u64,
}

/// One copy, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extension {
    /// Order among the copies of a group: of two of the same epoch the higher one was written later.
    pub sequence: u64,
    /// The group.
    pub group: Uuid,
    /// The member the copy lies on.
    pub device_uuid: Uuid,
    /// Its `dev_number`.
    pub dev_number: u16,
    /// md's `events`.
    pub events: u64,
    /// `events` when all members were last in sync.
    pub events_cleared: u64,
    /// RAID level.
    pub level: Level,
    /// Chunk in bytes; 0 on RAID 1.
    pub chunk_bytes: u32,
    /// Bytes used of each member's data area.
    pub member_bytes: u64,
    /// Group block size.
    pub block_size: BlockSize,
    /// Group name.
    pub name: String,
    /// Flags.
    pub marks: Marks,
    /// When the group was created, unix seconds.
    pub created_unix_s: u64,
    /// When this copy was written, unix seconds; for people only (SAFETY P7).
    pub written_unix_s: u64,
    /// Epoch counter of the last forced start, 0 = never.
    pub forced_at: u64,
    /// When the group was deleted, unix seconds, 0 = not.
    pub deleted_unix_s: u64,
    /// Counter of the newest epoch that every member in sync is known to have taken, 0 = none: one in sync that shows an
    /// older epoch was rolled back (promise P3).
    pub sealed_at: u64,
    /// Where this member's areas lie.
    pub layout: MemberLayout,
    /// The last epochs, oldest first; the last one is the epoch this member knows.
    pub chain: Vec<Epoch>,
    /// Every slot.
    pub slots: Vec<SlotRecord>,
    /// This member's md superblock as it was to be written after this copy.
    pub superblock: Vec<u8>,
}

/// Why bytes are no extension copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtensionError {
    /// There is none.
    NoMagic,
    /// There is one, damaged or torn.
    BadChecksum,
    /// Written by a newer warpraid.
    Version(u32),
    /// Sound checksum, impossible contents; says which field.
    Impossible(&'static str),
}

impl fmt::Display for ExtensionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("no extension copy"),
            Self::BadChecksum => f.write_str("extension copy damaged or torn"),
            Self::Version(version) => {
                write!(f, "extension of version {version}, this warpraid knows {VERSION}")
            }
            Self::Impossible(field) => write!(f, "extension copy with an impossible {field}"),
        }
    }
}

impl std::error::Error for ExtensionError {}

impl Extension {
    /// The epoch this member knows.
    ///
    /// # Panics
    /// Never on a decoded copy: its chain is not empty.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        *self.chain.last().expect("a chain has at least one epoch")
    }

    /// The copy's bytes with its checksum.
    ///
    /// # Panics
    /// If a list is longer than the format has room for, or the member has no extension area: both bugs of the caller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let n = self.chain.len();
        assert!((1..=CHAIN_MAX).contains(&n), "a chain of {n} epochs");
        assert!((1..=usize::from(MEMBERS_MAX)).contains(&self.slots.len()), "{} slots", self.slots.len());
        assert!(self.superblock.len() <= SUPERBLOCK_BYTES_MAX, "superblock of {}", self.superblock.len());
        assert!(self.name.len() <= 32, "group name of {} bytes", self.name.len());
        let mut bytes = vec![0; COPY_BYTES];
        self.encode_header(&mut bytes);
        self.encode_layout(&mut bytes);
        for (i, epoch) in self.chain.iter().enumerate() {
            put_epoch(&mut bytes, CHAIN_AT + i * EPOCH_BYTES, *epoch);
        }
        for (i, slot) in self.slots.iter().enumerate() {
            let at = SLOTS_AT + i * SLOT_BYTES;
            put(&mut bytes, at, &slot.device_uuid.0);
            put_epoch(&mut bytes, at + 16, slot.last_in_sync);
            put(&mut bytes, at + 40, &slot.cursor_bytes.to_le_bytes());
            put(&mut bytes, at + 48, &slot.dev_number.to_le_bytes());
            let flags =
                u8::from(slot.by_intents) | u8::from(slot.stays_out) << 1 | u8::from(slot.distrusted) << 2;
            put(&mut bytes, at + 50, &[slot.state.number(), flags]);
            put(&mut bytes, at + 56, &slot.known_counter.to_le_bytes());
        }
        put(&mut bytes, SUPERBLOCK_AT, &self.superblock);
        let crc = crc32c::crc32c(&bytes);
        put(&mut bytes, CRC_AT, &crc.to_le_bytes());
        bytes
    }

    fn encode_header(&self, bytes: &mut [u8]) {
        let short = |n: usize| u16::try_from(n).expect("checked in encode").to_le_bytes();
        let slots = u8::try_from(self.slots.len()).expect("checked in encode");
        put(bytes, 0, &MAGIC);
        put(bytes, 12, &VERSION.to_le_bytes());
        put(bytes, 16, &self.sequence.to_le_bytes());
        put(bytes, 24, &self.group.0);
        put(bytes, 40, &self.device_uuid.0);
        put_epoch(bytes, 56, self.epoch());
        put(bytes, 80, &self.events.to_le_bytes());
        put(bytes, 88, &self.events_cleared.to_le_bytes());
        put(bytes, 96, &self.member_bytes.to_le_bytes());
        put(bytes, 104, &self.chunk_bytes.to_le_bytes());
        put(bytes, 108, &[self.level.number(), slots]);
        put(bytes, 110, &self.dev_number.to_le_bytes());
        put(bytes, 112, &self.marks.bits().to_le_bytes());
        put(bytes, 116, &short(self.chain.len()));
        put(bytes, 118, &short(self.superblock.len()));
        put(bytes, 120, &self.block_size.bytes().to_le_bytes());
        put(bytes, 128, self.name.as_bytes());
        put(bytes, 160, &self.created_unix_s.to_le_bytes());
        put(bytes, 168, &self.written_unix_s.to_le_bytes());
        put(bytes, 176, &self.forced_at.to_le_bytes());
        put(bytes, 184, &self.deleted_unix_s.to_le_bytes());
    }

    fn encode_layout(&self, bytes: &mut [u8]) {
        let area = self.layout.extension.clone().expect("a copy is only written into an extension area");
        assert!(is_large_enough(&area), "extension area {area:?}");
        let none = 0..0;
        put(bytes, 192, &self.layout.data_start.0.to_le_bytes());
        put(bytes, 200, &self.layout.data_bytes.to_le_bytes());
        put_range(bytes, 208, self.layout.bitmap.as_ref().unwrap_or(&none));
        put_range(bytes, 224, self.layout.bad_blocks.as_ref().unwrap_or(&none));
        put_range(bytes, 240, &area);
        put_range(bytes, 256, &journal_range(&area));
        put(bytes, 272, &self.sealed_at.to_le_bytes());
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// [`ExtensionError`]; any bytes are taken without a panic.
    pub fn decode(bytes: &[u8]) -> Result<Self, ExtensionError> {
        if bytes.len() < COPY_BYTES || bytes[..8] != MAGIC {
            return Err(ExtensionError::NoMagic);
        }
        let bytes = &bytes[..COPY_BYTES];
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &[0; 4]);
        if crc32c::crc32c_append(crc, &bytes[CRC_AT + 4..]) != u32_le(bytes, CRC_AT) {
            return Err(ExtensionError::BadChecksum);
        }
        if u32_le(bytes, 12) != VERSION {
            return Err(ExtensionError::Version(u32_le(bytes, 12)));
        }
        let superblock_bytes = usize::from(u16_le(bytes, 118));
        if superblock_bytes > SUPERBLOCK_BYTES_MAX {
            return Err(ExtensionError::Impossible("superblock length"));
        }
        let level = Level::from_number(i32::from(bytes[108])).ok_or(ExtensionError::Impossible("level"))?;
        let block_size =
            BlockSize::from_bytes(u32_le(bytes, 120)).ok_or(ExtensionError::Impossible("block size"))?;
        let extension = Self {
            sequence: u64_le(bytes, 16),
            group: Uuid(array(bytes, 24)),
            device_uuid: Uuid(array(bytes, 40)),
            dev_number: u16_le(bytes, 110),
            events: u64_le(bytes, 80),
            events_cleared: u64_le(bytes, 88),
            level,
            chunk_bytes: u32_le(bytes, 104),
            member_bytes: u64_le(bytes, 96),
            block_size,
            name: text(&bytes[128..160]),
            marks: Marks::from_bits(u32_le(bytes, 112)).ok_or(ExtensionError::Impossible("mark"))?,
            created_unix_s: u64_le(bytes, 160),
            written_unix_s: u64_le(bytes, 168),
            forced_at: u64_le(bytes, 176),
            deleted_unix_s: u64_le(bytes, 184),
            sealed_at: u64_le(bytes, 272),
            layout: decode_layout(bytes)?,
            chain: decode_chain(bytes)?,
            slots: decode_slots(bytes)?,
            superblock: bytes[SUPERBLOCK_AT..SUPERBLOCK_AT + superblock_bytes].to_vec(),
        };
        if get_epoch(bytes, 56) != extension.epoch() {
            return Err(ExtensionError::Impossible("epoch"));
        }
        Ok(extension)
    }
}

fn decode_layout(bytes: &[u8]) -> Result<MemberLayout, ExtensionError> {
    let optional = |at| Some(get_range(bytes, at)).filter(|range| *range != (0..0));
    let layout = MemberLayout {
        data_start: DriveOffset(u64_le(bytes, 192)),
        data_bytes: u64_le(bytes, 200),
        superblock_start: DriveOffset(super::superblock::SUPERBLOCK_START),
        bitmap: optional(208),
        bad_blocks: optional(224),
        extension: optional(240),
    };
    let area = layout.extension.as_ref().filter(|area| is_large_enough(area));
    let sound = layout.data_start.0.checked_add(layout.data_bytes).is_some()
        && layout.bitmap.as_ref().is_none_or(|range| range.start < range.end)
        && layout.bad_blocks.as_ref().is_none_or(|range| range.start < range.end)
        && area.is_some_and(|area| get_range(bytes, 256) == journal_range(area));
    if sound { Ok(layout) } else { Err(ExtensionError::Impossible("layout")) }
}

fn decode_chain(bytes: &[u8]) -> Result<Vec<Epoch>, ExtensionError> {
    let n = usize::from(u16_le(bytes, 116));
    if !(1..=CHAIN_MAX).contains(&n) {
        return Err(ExtensionError::Impossible("chain length"));
    }
    let chain: Vec<Epoch> = (0..n).map(|i| get_epoch(bytes, CHAIN_AT + i * EPOCH_BYTES)).collect();
    if chain.windows(2).all(|pair| pair[0].counter < pair[1].counter) {
        Ok(chain)
    } else {
        Err(ExtensionError::Impossible("chain order"))
    }
}

fn decode_slots(bytes: &[u8]) -> Result<Vec<SlotRecord>, ExtensionError> {
    let n = bytes[109];
    if !(1..=MEMBERS_MAX).contains(&n) {
        return Err(ExtensionError::Impossible("number of slots"));
    }
    (0..usize::from(n))
        .map(|i| {
            let at = SLOTS_AT + i * SLOT_BYTES;
            let state =
                SlotState::from_number(bytes[at + 50]).ok_or(ExtensionError::Impossible("slot state"))?;
            Ok(SlotRecord {
                device_uuid: Uuid(array(bytes, at)),
                last_in_sync: get_epoch(bytes, at + 16),
                cursor_bytes: u64_le(bytes, at + 40),
                dev_number: u16_le(bytes, at + 48),
                state,
                by_intents: bytes[at + 51] & 1 != 0,
                stays_out: bytes[at + 51] & 2 != 0,
                distrusted: bytes[at + 51] & 4 != 0,
                known_counter: u64_le(bytes, at + 56),
            })
        })
        .collect()
}

pub(super) fn put_epoch(bytes: &mut [u8], at: usize, epoch: Epoch) {
    put(bytes, at, &epoch.counter.to_le_bytes());
    put(bytes, at + 8, &epoch.id.0);
}

pub(super) fn get_epoch(bytes: &[u8], at: usize) -> Epoch {
    Epoch { counter: u64_le(bytes, at), id: Uuid(array(bytes, at + 8)) }
}

pub(super) fn put_range(bytes: &mut [u8], at: usize, range: &Range<u64>) {
    put(bytes, at, &range.start.to_le_bytes());
    put(bytes, at + 8, &range.end.to_le_bytes());
}

pub(super) fn get_range(bytes: &[u8], at: usize) -> Range<u64> {
    u64_le(bytes, at)..u64_le(bytes, at + 8)
}

/// A sound copy out of random words, for the tests of this folder.
#[cfg(test)]
pub(super) fn sample(words: &[u64; 8], chain: usize, slots: u8) -> Extension {
    let uuid = |i: u64| Uuid::from_random(words[0].wrapping_add(i), words[1]);
    let epoch = |i: u64| Epoch { counter: words[2] % (1 << 40) + i, id: uuid(i) };
    let area_start = (words[3] % 1024) * 4096;
    let state = |i: u8| [SlotState::InSync, SlotState::Rebuilding, SlotState::Missing][usize::from(i % 3)];
    Extension {
        sequence: words[4],
        group: uuid(1000),
        device_uuid: uuid(1001),
        dev_number: 3,
        events: words[5],
        events_cleared: words[6],
        level: Level::Raid6,
        chunk_bytes: 65_536,
        member_bytes: words[7],
        block_size: BlockSize::B512,
        name: "tank".to_owned(),
        marks: Marks::from_bits(u32::try_from(words[7] % 1024).unwrap()).unwrap(),
        created_unix_s: words[3],
        written_unix_s: words[4],
        forced_at: words[5],
        deleted_unix_s: words[6],
        sealed_at: words[2] ^ words[3],
        layout: MemberLayout {
            data_start: DriveOffset(words[6] / 2),
            data_bytes: words[7] / 2,
            superblock_start: DriveOffset(4096),
            bitmap: words[3].is_multiple_of(2).then_some(8192..139_264),
            bad_blocks: words[4].is_multiple_of(2).then_some(139_264..143_360),
            extension: Some(area_start..area_start + 65_536),
        },
        chain: (0..u64_of(chain)).map(epoch).collect(),
        slots: (0..slots)
            .map(|i| SlotRecord {
                device_uuid: uuid(2000 + u64::from(i)),
                last_in_sync: epoch(u64::from(i)),
                cursor_bytes: words[5] ^ u64::from(i),
                dev_number: u16::from(i),
                state: state(i),
                by_intents: words[0] & 1 != 0,
                stays_out: words[0] & 2 != 0,
                distrusted: words[0] & 4 != 0,
                known_counter: words[1],
            })
            .collect(),
        superblock: vec![0x5a; 512],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(words in any::<[u64; 8]>(), chain in 1usize..=64, slots in 1u8..=128) {
            let extension = sample(&words, chain, slots);
            let bytes = extension.encode();
            prop_assert_eq!(bytes.len(), COPY_BYTES);
            prop_assert_eq!(Extension::decode(&bytes), Ok(extension));
        }

        #[test]
        fn no_bytes_make_decode_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), seal: bool) {
            if seal {
                // A sound magic, version and checksum over noise: every field check is reached.
                bytes.resize(COPY_BYTES, 0);
                put(&mut bytes, 0, &MAGIC);
                put(&mut bytes, CRC_AT, &[0; 4]);
                put(&mut bytes, 12, &VERSION.to_le_bytes());
                let crc = crc32c::crc32c(&bytes);
                put(&mut bytes, CRC_AT, &crc.to_le_bytes());
            }
            let decoded = Extension::decode(&bytes);
            prop_assert!(decoded.is_err(), "noise passed as {:?}", decoded);
        }

        #[test]
        fn sealed_single_field_noise_never_panics(words in any::<[u64; 8]>(), at in 12usize..COPY_BYTES, byte: u8) {
            let mut bytes = sample(&words, 5, 6).encode();
            bytes[at] = byte;
            put(&mut bytes, CRC_AT, &[0; 4]);
            let crc = crc32c::crc32c(&bytes);
            put(&mut bytes, CRC_AT, &crc.to_le_bytes());
            if let Ok(decoded) = Extension::decode(&bytes) {
                prop_assert_eq!(Extension::decode(&decoded.encode()), Ok(decoded));
            }
        }

        #[test]
        fn a_flipped_bit_is_found(words in any::<[u64; 8]>(), bit in 0usize..COPY_BYTES * 8) {
            let mut bytes = sample(&words, 64, 128).encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Extension::decode(&bytes).is_err());
        }

        #[test]
        fn a_torn_copy_is_found(words in any::<[u64; 8]>(), sector in 1usize..COPY_BYTES / 512) {
            let old = sample(&words, 4, 4);
            let mut new = sample(&words, 5, 4);
            new.sequence = old.sequence.wrapping_add(2);
            let (old, new) = (old.encode(), new.encode());
            for (head, tail) in [(&old, &new), (&new, &old)] {
                let torn = [&head[..sector * 512], &tail[sector * 512..]].concat();
                if torn != old && torn != new {
                    prop_assert_eq!(Extension::decode(&torn), Err(ExtensionError::BadChecksum));
                }
            }
        }
    }

    #[test]
    fn the_copies_and_the_journal_fill_the_area() {
        let area = 1 << 20..17 << 20;
        assert_eq!(CopyPlace::A.start(&area), DriveOffset(1 << 20));
        assert_eq!(CopyPlace::B.start(&area), DriveOffset((17 << 20) - 16_384));
        assert_eq!(journal_range(&area), (1 << 20) + 16_384..(17 << 20) - 16_384);
        assert!(is_large_enough(&(0..32_768)) && !is_large_enough(&(0..32_767)));
    }
}
