//! GUID partition tables (UEFI 2.10, chapter 5): inside a group, where a partition is a disk, and on foreign drives.
//!
//! A table lies twice: protective MBR, header and entries at the start, entries and header at the end. The header's
//! checksums cover itself and the entries, so a half-written copy is recognised. There is no version number; writers
//! must write the primary first and flush it before they touch the backup: then a sound primary is never older than the
//! backup, and at every instant one of the two is sound.
//!
//! Invariants of a [`Gpt`]: partitions lie inside the usable blocks, are not empty and do not overlap; what a foreign tool
//! wrote (boot code, attributes, names, types, the order of entries) is kept as it is.

use core::fmt;

use super::bytes::{array, put, u16_le, u32_le, u64_le};
use crate::units::{BlockSize, Uuid, u64_of, usize_of, usize_of_u32};

/// Entries in a table we create, and the most we read.
pub const ENTRIES: usize = 128;
/// Type of our disks: Linux filesystem data.
pub const TYPE_LINUX: Uuid =
    Uuid([0x0f, 0xc6, 0x3d, 0xaf, 0x84, 0x83, 0x47, 0x72, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4]);
/// Longest partition name, in UTF-16 units.
pub const NAME_UNITS: usize = 36;

const ENTRY_BYTES: usize = 128;
const ENTRIES_BYTES: usize = ENTRIES * ENTRY_BYTES;
const HEADER_BYTES: u32 = 92;
const SIGNATURE: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;
const MBR_BYTES: usize = 512;

/// Why bytes are no partition table we can use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GptError {
    /// There is none.
    Absent,
    /// There is one, and neither copy is sound; says what is wrong with the primary.
    Damaged(&'static str),
    /// A sound table of a shape we do not write.
    Unsupported(&'static str),
    /// The device is too small for a table.
    TooSmall,
}

impl fmt::Display for GptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no partition table"),
            Self::Damaged(what) => write!(f, "both copies of the partition table are damaged: {what}"),
            Self::Unsupported(what) => write!(f, "partition table not supported: {what}"),
            Self::TooSmall => f.write_str("too small for a partition table"),
        }
    }
}

impl std::error::Error for GptError {}

/// One partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Type.
    pub kind: Uuid,
    /// Identity.
    pub id: Uuid,
    /// First block.
    pub first: u64,
    /// Last block (inclusive).
    pub last: u64,
    /// Attribute bits.
    pub attributes: u64,
    name: [u16; NAME_UNITS],
}

impl Partition {
    /// A partition of ours: Linux data, no attributes.
    ///
    /// # Panics
    /// If the name has more than [`NAME_UNITS`] units, or the range is empty.
    #[must_use]
    pub fn new(id: Uuid, name: &str, first: u64, last: u64) -> Self {
        assert!(first <= last, "a partition of no blocks");
        let mut units = [0; NAME_UNITS];
        for (i, unit) in name.encode_utf16().enumerate() {
            units[i] = unit;
        }
        Self { kind: TYPE_LINUX, id, first, last, attributes: 0, name: units }
    }

    /// The name; units that are no text become U+FFFD.
    #[must_use]
    pub fn name(&self) -> String {
        let end = self.name.iter().position(|&unit| unit == 0).unwrap_or(NAME_UNITS);
        String::from_utf16_lossy(&self.name[..end])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = guid(bytes, 0);
        (kind != Uuid::default()).then(|| Self {
            kind,
            id: guid(bytes, 16),
            first: u64_le(bytes, 32),
            last: u64_le(bytes, 40),
            attributes: u64_le(bytes, 48),
            name: core::array::from_fn(|i| u16_le(bytes, 56 + 2 * i)),
        })
    }

    fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, &guid_bytes(self.kind));
        put(bytes, 16, &guid_bytes(self.id));
        put(bytes, 32, &self.first.to_le_bytes());
        put(bytes, 40, &self.last.to_le_bytes());
        put(bytes, 48, &self.attributes.to_le_bytes());
        for (i, unit) in self.name.iter().enumerate() {
            put(bytes, 56 + 2 * i, &unit.to_le_bytes());
        }
    }
}

/// The GUID at `at`: its first three fields are little-endian on disk.
fn guid(bytes: &[u8], at: usize) -> Uuid {
    Uuid(swap_fields(array(bytes, at)))
}

fn guid_bytes(uuid: Uuid) -> [u8; 16] {
    swap_fields(uuid.0)
}

fn swap_fields(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[0..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

/// What has to be written again after loading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// The primary copy was damaged or torn: the backup was taken.
    Primary(&'static str),
    /// The backup copy is damaged or older (a crash came between the two writes).
    Backup(&'static str),
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary(why) => write!(f, "primary partition table: {why}; the backup is used"),
            Self::Backup(why) => write!(f, "backup partition table: {why}; the primary is used"),
        }
    }
}

/// A partition table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpt {
    block: BlockSize,
    blocks: u64,
    mbr: [u8; MBR_BYTES],
    disk: Uuid,
    first_usable: u64,
    last_usable: u64,
    entries: Vec<Option<Partition>>,
}

/// Bytes from the start of a device that [`Gpt::load`] wants.
#[must_use]
pub fn head_bytes(block: BlockSize) -> u64 {
    2 * u64::from(block.bytes()) + u64_of(ENTRIES_BYTES)
}

/// Bytes up to the end of a device that [`Gpt::load`] wants.
#[must_use]
pub fn tail_bytes(block: BlockSize) -> u64 {
    u64::from(block.bytes()) + u64_of(ENTRIES_BYTES)
}

impl Gpt {
    /// An empty table for a device of `bytes` bytes.
    ///
    /// # Errors
    /// [`GptError::TooSmall`] if no block would be left.
    pub fn new(disk: Uuid, block: BlockSize, bytes: u64) -> Result<Self, GptError> {
        let blocks = bytes / u64::from(block.bytes());
        let entry_blocks = entry_blocks(block);
        if blocks < 2 * entry_blocks + 4 {
            return Err(GptError::TooSmall);
        }
        Ok(Self {
            block,
            blocks,
            mbr: protective_mbr(blocks),
            disk,
            first_usable: 2 + entry_blocks,
            last_usable: blocks - 2 - entry_blocks,
            entries: vec![None; ENTRIES],
        })
    }

    /// Reads the table of a device of `bytes` bytes from its first [`head_bytes`] and last [`tail_bytes`].
    ///
    /// # Errors
    /// [`GptError`]: none there, neither copy sound, or one we could not write back as it is.
    pub fn load(
        head: &[u8],
        tail: &[u8],
        block: BlockSize,
        bytes: u64,
    ) -> Result<(Self, Option<Repair>), GptError> {
        let blank = Self::new(Uuid::default(), block, bytes)?;
        let block_bytes = usize_of_u32(block.bytes());
        if u64_of(head.len()) < head_bytes(block) || u64_of(tail.len()) < tail_bytes(block) {
            return Err(GptError::TooSmall);
        }
        let tail = &tail[tail.len() - usize_of(tail_bytes(block))..];
        let mbr: [u8; MBR_BYTES] = array(head, 0);
        let last = blank.blocks - 1;
        let primary = Copy { at: 1, other: last, entries_at: 2 }.decode(
            &blank,
            &head[block_bytes..],
            &head[2 * block_bytes..],
        );
        let backup = Copy { at: last, other: 1, entries_at: last - entry_blocks(block) }.decode(
            &blank,
            &tail[ENTRIES_BYTES..],
            tail,
        );
        let with_mbr = |mut gpt: Self| {
            // Without the protective partition other systems would take the device for unpartitioned.
            let protected = mbr[510..] == [0x55, 0xaa] && (0..4).any(|i| mbr[446 + 16 * i + 4] == 0xee);
            gpt.mbr = if protected { mbr } else { protective_mbr(gpt.blocks) };
            gpt
        };
        match (primary, backup) {
            (Ok(primary), Ok(backup)) => {
                let repair = (primary != backup).then_some(Repair::Backup("it is older"));
                Ok((with_mbr(primary), repair))
            }
            (Ok(primary), Err(bad)) => Ok((with_mbr(primary), Some(Repair::Backup(bad.reason())))),
            (Err(GptError::Unsupported(what)), _) | (Err(_), Err(GptError::Unsupported(what))) => {
                Err(GptError::Unsupported(what))
            }
            (Err(bad), Ok(backup)) => Ok((with_mbr(backup), Some(Repair::Primary(bad.reason())))),
            (Err(GptError::Absent), Err(GptError::Absent)) => Err(GptError::Absent),
            (Err(bad), Err(_)) => Err(GptError::Damaged(bad.reason())),
        }
    }

    /// Protective MBR, header and entries: the bytes from the start of the device.
    #[must_use]
    pub fn primary(&self) -> Vec<u8> {
        let block = usize_of_u32(self.block.bytes());
        let mut bytes = vec![0; usize_of(head_bytes(self.block))];
        put(&mut bytes, 0, &self.mbr);
        let entries = self.encode_entries();
        let copy = Copy { at: 1, other: self.blocks - 1, entries_at: 2 };
        put(&mut bytes, block, &copy.encode(self, &entries));
        put(&mut bytes, 2 * block, &entries);
        bytes
    }

    /// Entries and header at the end of the device: byte offset and bytes.
    #[must_use]
    pub fn backup(&self) -> (u64, Vec<u8>) {
        let mut bytes = vec![0; usize_of(tail_bytes(self.block))];
        let entries = self.encode_entries();
        let (last, entry_blocks) = (self.blocks - 1, entry_blocks(self.block));
        let copy = Copy { at: last, other: 1, entries_at: last - entry_blocks };
        put(&mut bytes, 0, &entries);
        put(&mut bytes, ENTRIES_BYTES, &copy.encode(self, &entries));
        (copy.entries_at * u64::from(self.block.bytes()), bytes)
    }

    /// Logical block size, in which partitions count.
    #[must_use]
    pub fn block(&self) -> BlockSize {
        self.block
    }

    /// Identity of the table.
    #[must_use]
    pub fn disk(&self) -> Uuid {
        self.disk
    }

    /// First and last block partitions may use.
    #[must_use]
    pub fn usable(&self) -> (u64, u64) {
        (self.first_usable, self.last_usable)
    }

    /// The partitions with their entry numbers from 0, in entry order.
    pub fn partitions(&self) -> impl Iterator<Item = (usize, &Partition)> {
        self.entries.iter().enumerate().filter_map(|(i, entry)| Some((i, entry.as_ref()?)))
    }

    /// Puts a partition (or none) into an entry.
    ///
    /// # Panics
    /// If there is no such entry, or the partition leaves the usable blocks or overlaps another: callers place it first.
    pub fn set(&mut self, entry: usize, partition: Option<Partition>) {
        self.entries[entry] = partition;
        assert!(self.fault().is_none(), "partition misplaced: {:?}", self.fault());
    }

    /// Number of an unused entry.
    #[must_use]
    pub fn free_entry(&self) -> Option<usize> {
        self.entries.iter().position(Option::is_none)
    }

    /// What is wrong with the places of the partitions.
    fn fault(&self) -> Option<&'static str> {
        let mut ranges: Vec<(u64, u64)> = self.partitions().map(|(_, p)| (p.first, p.last)).collect();
        ranges.sort_unstable();
        if ranges.iter().any(|&(first, last)| first > last) {
            return Some("a partition ends before it starts");
        }
        if ranges.iter().any(|&(first, last)| first < self.first_usable || last > self.last_usable) {
            return Some("a partition lies outside the usable blocks");
        }
        ranges.windows(2).any(|pair| pair[1].0 <= pair[0].1).then_some("partitions overlap")
    }

    fn encode_entries(&self) -> Vec<u8> {
        let mut bytes = vec![0; ENTRIES_BYTES];
        for (i, partition) in self.partitions() {
            partition.encode(&mut bytes[i * ENTRY_BYTES..(i + 1) * ENTRY_BYTES]);
        }
        bytes
    }
}

/// Blocks that the entries take.
fn entry_blocks(block: BlockSize) -> u64 {
    u64_of(ENTRIES_BYTES) / u64::from(block.bytes())
}

/// An MBR whose one partition, of type 0xEE, covers the device.
fn protective_mbr(blocks: u64) -> [u8; MBR_BYTES] {
    let mut mbr = [0; MBR_BYTES];
    let len = u32::try_from(blocks - 1).unwrap_or(u32::MAX);
    // Start and end in cylinders, heads and sectors as the specification fixes them: 0/0/2 and "beyond CHS".
    put(&mut mbr, 446, &[0x00, 0x00, 0x02, 0x00, 0xee, 0xff, 0xff, 0xff]);
    put(&mut mbr, 454, &1u32.to_le_bytes());
    put(&mut mbr, 458, &len.to_le_bytes());
    put(&mut mbr, 510, &[0x55, 0xaa]);
    mbr
}

/// One of the two copies: where its parts lie, in blocks.
struct Copy {
    at: u64,
    other: u64,
    entries_at: u64,
}

impl Copy {
    fn encode(&self, gpt: &Gpt, entries: &[u8]) -> Vec<u8> {
        let mut header = vec![0; usize_of_u32(HEADER_BYTES)];
        put(&mut header, 0, SIGNATURE);
        put(&mut header, 8, &REVISION.to_le_bytes());
        put(&mut header, 12, &HEADER_BYTES.to_le_bytes());
        put(&mut header, 24, &self.at.to_le_bytes());
        put(&mut header, 32, &self.other.to_le_bytes());
        put(&mut header, 40, &gpt.first_usable.to_le_bytes());
        put(&mut header, 48, &gpt.last_usable.to_le_bytes());
        put(&mut header, 56, &guid_bytes(gpt.disk));
        put(&mut header, 72, &self.entries_at.to_le_bytes());
        put(&mut header, 80, &u32::try_from(ENTRIES).expect("128").to_le_bytes());
        put(&mut header, 84, &u32::try_from(ENTRY_BYTES).expect("128").to_le_bytes());
        put(&mut header, 88, &crc32fast::hash(entries).to_le_bytes());
        let crc = crc32fast::hash(&header);
        put(&mut header, 16, &crc.to_le_bytes());
        header
    }

    /// Reads one copy; `blank` is an empty table of the device. `Absent` if there is no header at all.
    fn decode(&self, blank: &Gpt, header: &[u8], entries: &[u8]) -> Result<Gpt, GptError> {
        let block = usize_of_u32(blank.block.bytes());
        let header = &header[..block];
        if &header[..8] != SIGNATURE {
            return Err(GptError::Absent);
        }
        let len = usize_of_u32(u32_le(header, 12));
        if !(usize_of_u32(HEADER_BYTES)..=block).contains(&len) {
            return Err(GptError::Damaged("header length out of range"));
        }
        let mut plain = header[..len].to_vec();
        put(&mut plain, 16, &[0; 4]);
        if crc32fast::hash(&plain) != u32_le(header, 16) {
            return Err(GptError::Damaged("header checksum"));
        }
        if u32_le(header, 8) != REVISION {
            return Err(GptError::Unsupported("a revision other than 1.0"));
        }
        let number = usize_of_u32(u32_le(header, 80));
        if usize_of_u32(u32_le(header, 84)) != ENTRY_BYTES || number != ENTRIES {
            return Err(GptError::Unsupported("other than 128 entries of 128 bytes"));
        }
        if u64_le(header, 24) != self.at || u64_le(header, 72) != self.entries_at {
            return Err(GptError::Damaged("it belongs to another place"));
        }
        let entries = &entries[..ENTRIES_BYTES];
        if crc32fast::hash(entries) != u32_le(header, 88) {
            return Err(GptError::Damaged("entries checksum"));
        }
        let mut gpt = blank.clone();
        gpt.disk = guid(header, 56);
        gpt.first_usable = u64_le(header, 40);
        gpt.last_usable = u64_le(header, 48);
        gpt.entries = entries.chunks_exact(ENTRY_BYTES).map(Partition::decode).collect();
        if gpt.first_usable < blank.first_usable || gpt.last_usable > blank.last_usable {
            return Err(GptError::Damaged("usable blocks overlap the table"));
        }
        if gpt.first_usable > gpt.last_usable {
            return Err(GptError::Damaged("no usable blocks"));
        }
        match gpt.fault() {
            Some(what) => Err(GptError::Damaged(what)),
            None => Ok(gpt),
        }
    }
}

impl GptError {
    /// The reason alone, for a copy that is not used.
    fn reason(&self) -> &'static str {
        match self {
            Self::Absent => "missing",
            Self::Damaged(what) | Self::Unsupported(what) => what,
            Self::TooSmall => "too small",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 8 << 20;

    fn sample(block: BlockSize, seed: u8) -> Gpt {
        let mut gpt = Gpt::new(Uuid([seed; 16]), block, SIZE).unwrap();
        let (first, last) = gpt.usable();
        gpt.set(0, Some(Partition::new(Uuid([1; 16]), "one", first, first + 9)));
        gpt.set(5, Some(Partition::new(Uuid([2; 16]), "two", last - u64::from(seed), last)));
        gpt
    }

    fn device(gpt: &Gpt) -> Vec<u8> {
        let mut bytes = vec![0; usize_of(SIZE)];
        put(&mut bytes, 0, &gpt.primary());
        let (at, backup) = gpt.backup();
        put(&mut bytes, usize_of(at), &backup);
        bytes
    }

    fn load(bytes: &[u8], block: BlockSize) -> Result<(Gpt, Option<Repair>), GptError> {
        let head = &bytes[..usize_of(head_bytes(block))];
        let tail = &bytes[bytes.len() - usize_of(tail_bytes(block))..];
        Gpt::load(head, tail, block, u64_of(bytes.len()))
    }

    #[test]
    fn both_copies_read_back_and_fill_the_ends() {
        for block in [BlockSize::B512, BlockSize::B4096] {
            let gpt = sample(block, 3);
            let bytes = device(&gpt);
            assert_eq!(load(&bytes, block), Ok((gpt.clone(), None)));
            assert_eq!(&bytes[bytes.len() - usize_of_u32(block.bytes())..][..8], SIGNATURE);
            assert_eq!(
                gpt.partitions().map(|(i, p)| (i, p.name())).collect::<Vec<_>>()[1],
                (5, "two".to_owned())
            );
        }
    }

    /// Every prefix of the update (in blocks, in write order) leaves the old table or the new one, and says so.
    #[test]
    fn an_update_cut_off_anywhere_leaves_old_or_new() {
        for block in [BlockSize::B512, BlockSize::B4096] {
            let (old, new) = (sample(block, 3), sample(block, 4));
            let before = device(&old);
            let (at, backup) = new.backup();
            let step = usize_of_u32(block.bytes());
            for done in 0..=new.primary().len() / step {
                // Sectors of one write reach the drive in any order: first part only, and last part only.
                for keep_start in [true, false] {
                    let mut bytes = before.clone();
                    let cut = done * step;
                    let range =
                        if keep_start { 0..cut } else { new.primary().len() - cut..new.primary().len() };
                    put(&mut bytes, range.start, &new.primary()[range.clone()]);
                    let (read, _) = load(&bytes, block).unwrap();
                    assert!(read == old || read == new, "primary cut at {cut}");
                }
            }
            let mut flushed = before;
            put(&mut flushed, 0, &new.primary());
            for done in 0..=backup.len() / step {
                let mut bytes = flushed.clone();
                put(&mut bytes, usize_of(at), &backup[..done * step]);
                let (read, repair) = load(&bytes, block).unwrap();
                assert_eq!(read, new, "backup cut at block {done}");
                assert_eq!(repair.is_none(), bytes == device(&new));
            }
        }
    }

    #[test]
    fn damage_of_one_copy_is_survived_and_of_both_is_refused() {
        let gpt = sample(BlockSize::B512, 3);
        let mut bytes = device(&gpt);
        bytes[1024 + 7] ^= 1;
        assert_eq!(load(&bytes, BlockSize::B512), Ok((gpt, Some(Repair::Primary("entries checksum")))));
        let last = bytes.len() - 500;
        bytes[last] ^= 1;
        assert_eq!(load(&bytes, BlockSize::B512), Err(GptError::Damaged("entries checksum")));
        assert_eq!(load(&vec![0; bytes.len()], BlockSize::B512), Err(GptError::Absent));
        assert_eq!(load(&vec![0; 40_000], BlockSize::B512).unwrap_err(), GptError::Absent);
        assert_eq!(Gpt::new(Uuid::default(), BlockSize::B4096, 40_000).unwrap_err(), GptError::TooSmall);
    }

    #[test]
    fn boot_code_and_foreign_fields_are_kept() {
        let gpt = sample(BlockSize::B512, 3);
        let mut bytes = device(&gpt);
        bytes[..440].fill(0x90);
        let (read, repair) = load(&bytes, BlockSize::B512).unwrap();
        assert_eq!(repair, None);
        assert_eq!(read.primary(), bytes[..usize_of(head_bytes(BlockSize::B512))]);
    }

    #[test]
    fn guids_have_the_mixed_order_of_the_specification() {
        let bytes = guid_bytes(Uuid::parse("0fc63daf-8483-4772-8e79-3d69d8477de4").unwrap());
        assert_eq!(bytes[..8], [0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47]);
        assert_eq!(guid(&bytes, 0), TYPE_LINUX);
    }

    proptest! {
        #[test]
        fn no_bytes_make_load_panic(at in 0usize..20_000, noise in proptest::collection::vec(any::<u8>(), 1..400), fix: bool) {
            let block = BlockSize::B512;
            let mut bytes = device(&sample(block, 9));
            let end = (at + noise.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&noise[..end - at]);
            if fix {
                // A header of nonsense with sound checksums.
                let crc = crc32fast::hash(&bytes[1024..1024 + ENTRIES_BYTES]);
                put(&mut bytes, 512 + 88, &crc.to_le_bytes());
                put(&mut bytes, 512 + 16, &[0; 4]);
                let len = usize_of_u32(u32_le(&bytes, 512 + 12)).min(512);
                let crc = crc32fast::hash(&bytes[512..512 + len]);
                put(&mut bytes, 512 + 16, &crc.to_le_bytes());
            }
            if let Ok((gpt, _)) = load(&bytes, block) {
                prop_assert!(gpt.fault().is_none());
            }
        }
    }
}
