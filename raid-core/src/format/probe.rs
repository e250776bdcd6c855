//! Signatures of used drives (case AD-01): what lies on a drive before warpraid may touch it.
//!
//! Looks for partition tables, file systems, swap, LVM, md, other RAID formats, ZFS, LUKS, bcache, Ceph and our own members
//! and tombstones in the first 512 KiB and the last 512 to 768 KiB. A magic number alone is enough: a damaged superblock
//! still means that somebody's data may lie there. Labels come from the drive and are reduced to printable ASCII.
//!
//! Places and magic numbers are those of each format's own documentation or header (named at each probe).

use core::fmt;
use core::ops::Range;

use super::bytes::{array, round_down, text, u16_le, u32_be, u32_le, u64_le};
use super::gpt::Gpt;
use super::superblock::{MD_MAGIC, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock};
use crate::units::{BlockSize, Uuid, u64_of, usize_of, usize_of_u32};

const KIB: u64 = 1024;
const HEAD_BYTES: u64 = 512 * KIB;
const ZFS_LABEL_BYTES: u64 = 256 * KIB;
/// Last sector of the superblock's slot: our anchor, which outlives the md magic of a deleted group.
const ANCHOR_START: u64 = SUPERBLOCK_START + 4096 - 512;
const ANCHOR_MAGIC: &[u8; 8] = b"WRANCHOR";

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)] // The names are the formats; `Display` spells them out.
pub enum Kind {
    Gpt,
    GptBackup,
    Mbr,
    Ext2,
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
    Vfat,
    Exfat,
    Ntfs,
    Swap,
    LvmPv,
    Luks,
    Bcache,
    Zfs,
    CephBluestore,
    Md090,
    Md10,
    Md11,
    Md12,
    /// A member of a warpraid group.
    Warpraid,
    /// What `group delete` leaves.
    WarpraidTombstone,
    IntelRaid,
    DdfRaid,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT partition table",
            Self::GptBackup => "GPT partition table (backup)",
            Self::Mbr => "MBR partition table",
            Self::Ext2 => "ext2 file system",
            Self::Ext3 => "ext3 file system",
            Self::Ext4 => "ext4 file system",
            Self::Xfs => "XFS file system",
            Self::Btrfs => "Btrfs file system",
            Self::Vfat => "FAT file system",
            Self::Exfat => "exFAT file system",
            Self::Ntfs => "NTFS file system",
            Self::Swap => "swap space",
            Self::LvmPv => "LVM physical volume",
            Self::Luks => "LUKS encrypted volume",
            Self::Bcache => "bcache or bcachefs device",
            Self::Zfs => "ZFS pool member",
            Self::CephBluestore => "Ceph BlueStore device",
            Self::Md090 => "Linux md member (metadata 0.90)",
            Self::Md10 => "Linux md member (metadata 1.0)",
            Self::Md11 => "Linux md member (metadata 1.1)",
            Self::Md12 => "Linux md member (metadata 1.2)",
            Self::Warpraid => "warpraid member",
            Self::WarpraidTombstone => "deleted warpraid member",
            Self::IntelRaid => "Intel firmware RAID member",
            Self::DdfRaid => "DDF firmware RAID member",
        })
    }
}

/// One signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// What it is.
    pub kind: Kind,
    /// Name its owner gave it, if any.
    pub label: Option<String>,
    /// Identity as its own tools print it, if any.
    pub uuid: Option<String>,
    /// Byte offset of the magic number on the drive.
    pub offset: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.kind, self.offset)?;
        if let Some(label) = &self.label {
            write!(f, ", label {label:?}")?;
        }
        if let Some(uuid) = &self.uuid {
            write!(f, ", uuid {uuid}")?;
        }
        Ok(())
    }
}

/// The byte ranges of a drive of `size` bytes that [`probe`] wants: head and tail, or all of a tiny drive. They are also
/// what has to be zeroed so that nothing is found any more.
#[must_use]
pub fn needs(size: u64) -> Vec<Range<u64>> {
    let tail = round_down(size, ZFS_LABEL_BYTES).saturating_sub(2 * ZFS_LABEL_BYTES);
    if tail <= HEAD_BYTES {
        // One range, not a vector of its elements.
        return core::iter::once(0..size).filter(|range| !range.is_empty()).collect();
    }
    vec![0..HEAD_BYTES, tail..size]
}

/// Finds every signature of a drive of `size` bytes in the bytes at [`needs`], in the same order. Ranges that could not be
/// read may be left short: what is missing is not found.
#[must_use]
pub fn probe(size: u64, parts: &[Vec<u8>]) -> Vec<Signature> {
    let ranges = needs(size);
    let parts = ranges.iter().map(|range| range.start).zip(parts.iter().map(Vec::as_slice)).collect();
    let drive = Parts { size, parts };
    let mut found = Vec::new();
    probe_md(&drive, &mut found);
    probe_tables(&drive, &mut found);
    probe_filesystems(&drive, &mut found);
    probe_volumes(&drive, &mut found);
    probe_zfs(&drive, &mut found);
    probe_firmware_raid(&drive, &mut found);
    found.sort_by_key(|signature| (signature.offset, signature.kind));
    found
}

/// The bytes of a drive that were read.
struct Parts<'a> {
    size: u64,
    parts: Vec<(u64, &'a [u8])>,
}

impl Parts<'_> {
    /// `len` bytes at `at`, if they were read.
    fn get(&self, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len).filter(|&end| end <= self.size)?;
        let part =
            self.parts.iter().find(|(start, bytes)| *start <= at && end <= start + u64_of(bytes.len()))?;
        Some(&part.1[usize_of(at - part.0)..usize_of(end - part.0)])
    }

    fn has(&self, at: u64, magic: &[u8]) -> bool {
        self.get(at, u64_of(magic.len())).is_some_and(|bytes| bytes == magic)
    }

    fn label(&self, at: u64, len: u64) -> Option<String> {
        Some(text(self.get(at, len)?)).filter(|label| !label.is_empty())
    }

    fn uuid(&self, at: u64) -> Option<String> {
        let uuid = Uuid(array(self.get(at, 16)?, 0));
        (uuid != Uuid::default()).then(|| uuid.to_string())
    }

    /// Offset `back` bytes before the end.
    fn before_end(&self, back: u64) -> Option<u64> {
        self.size.checked_sub(back)
    }
}

fn plain(kind: Kind, offset: u64) -> Signature {
    Signature { kind, label: None, uuid: None, offset }
}

/// md and ours: kernel `include/uapi/linux/raid/md_p.h`, `drivers/md/md.c` (`super_1_load`, `calc_dev_sboffset`).
fn probe_md(drive: &Parts<'_>, found: &mut Vec<Signature>) {
    let magic = MD_MAGIC.to_le_bytes();
    let places = [
        (Kind::Md11, Some(0)),
        (Kind::Md12, Some(SUPERBLOCK_START)),
        (Kind::Md10, drive.before_end(8192).map(|at| round_down(at, 4096))),
    ];
    for (kind, at) in places.into_iter().filter_map(|(kind, at)| Some((kind, at?))) {
        let Some(bytes) = drive.get(at, 256).filter(|bytes| bytes[..4] == magic) else { continue };
        // A superblock names its own place: one in the wrong place is another member's, seen through a partition.
        if u64_le(bytes, 144).checked_mul(512) != Some(at) {
            continue;
        }
        let slot = drive.get(at, u64_of(SUPERBLOCK_SLOT_BYTES)).unwrap_or_default();
        let claimed = kind == Kind::Md12 && Superblock::decode(slot).is_ok_and(|sb| sb.is_claimed());
        found.push(Signature {
            kind: if claimed { Kind::Warpraid } else { kind },
            label: drive.label(at + 32, 32),
            uuid: drive.uuid(at + 16),
            offset: at,
        });
    }
    if let Some(at) = drive.before_end(64 * KIB).map(|at| round_down(at, 64 * KIB)) {
        let is_old = drive.has(at, &magic) || drive.has(at, &MD_MAGIC.to_be_bytes());
        if is_old && at != SUPERBLOCK_START && at != 0 {
            found.push(plain(Kind::Md090, at));
        }
    }
    if drive.has(ANCHOR_START, ANCHOR_MAGIC) && !drive.has(SUPERBLOCK_START, &magic) {
        let uuid = drive.uuid(ANCHOR_START + 16);
        found.push(Signature { uuid, ..plain(Kind::WarpraidTombstone, ANCHOR_START) });
    }
}

/// Partition tables: UEFI 2.10 chapter 5, and the MBR it describes there.
fn probe_tables(drive: &Parts<'_>, found: &mut Vec<Signature>) {
    let mut has_gpt = false;
    for block in [BlockSize::B512, BlockSize::B4096] {
        let bytes = u64::from(block.bytes());
        let places = [(Kind::Gpt, Some(bytes)), (Kind::GptBackup, drive.before_end(bytes))];
        for (kind, at) in places.into_iter().filter_map(|(kind, at)| Some((kind, at?))) {
            if drive.has(at, b"EFI PART") {
                has_gpt = true;
                let label = partitions(drive, block);
                let guid = drive.get(at, 92).map(|header| mixed_guid(&header[56..72]));
                found.push(Signature { kind, label, uuid: guid, offset: at });
            }
        }
    }
    let Some(sector) = drive.get(0, 512).filter(|sector| sector[510..] == [0x55, 0xaa]) else { return };
    if let Some(kind) = boot_sector(sector) {
        let (serial, label) = match kind {
            Kind::Vfat if &sector[82..85] == b"FAT" => (u32_le(sector, 67), text(&sector[71..82])),
            Kind::Vfat => (u32_le(sector, 39), text(&sector[43..54])),
            Kind::Exfat => (u32_le(sector, 100), String::new()),
            _ => (u32_le(sector, 72), String::new()),
        };
        let label = Some(label).filter(|label| !label.is_empty() && label != "NO NAME");
        let uuid = Some(format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff));
        found.push(Signature { label, uuid, ..plain(kind, 0) });
    } else if !has_gpt {
        found.push(Signature { label: mbr_label(sector), ..plain(Kind::Mbr, 510) });
    }
}

/// FAT, exFAT and NTFS share the MBR's signature but start with a jump and their own name.
fn boot_sector(sector: &[u8]) -> Option<Kind> {
    if !matches!(sector[0], 0xeb | 0xe9) {
        return None;
    }
    match (&sector[3..11], &sector[54..57], &sector[82..85]) {
        (b"NTFS    ", _, _) => Some(Kind::Ntfs),
        (b"EXFAT   ", _, _) => Some(Kind::Exfat),
        (_, b"FAT", _) | (_, _, b"FAT") => Some(Kind::Vfat),
        _ => None,
    }
}

fn mbr_label(sector: &[u8]) -> Option<String> {
    let kinds: Vec<u8> = (0..4).map(|i| sector[446 + 16 * i + 4]).filter(|&kind| kind != 0).collect();
    match kinds.as_slice() {
        [] => Some("no partitions".to_owned()),
        [0xee] => Some("protects a GPT that is gone".to_owned()),
        kinds => Some(format!("{} partitions", kinds.len())),
    }
}

/// Number and names of the partitions, if the table is sound.
fn partitions(drive: &Parts<'_>, block: BlockSize) -> Option<String> {
    let (head, tail) = (super::gpt::head_bytes(block), super::gpt::tail_bytes(block));
    let head = drive.get(0, head)?;
    let tail = drive.get(drive.before_end(tail)?, tail)?;
    let (gpt, _) = Gpt::load(head, tail, block, drive.size).ok()?;
    let names: Vec<String> =
        gpt.partitions().map(|(_, partition)| text(partition.name().as_bytes())).collect();
    Some(format!("{} partitions: {}", names.len(), names.join(", ")))
}

fn mixed_guid(bytes: &[u8]) -> String {
    let mut uuid: [u8; 16] = array(bytes, 0);
    uuid[0..4].reverse();
    uuid[4..6].reverse();
    uuid[6..8].reverse();
    Uuid(uuid).to_string()
}

/// File systems and swap: kernel `fs/ext4/ext4.h`, `fs/xfs/libxfs/xfs_format.h`, `include/uapi/linux/btrfs_tree.h`,
/// `include/linux/swap.h`.
fn probe_filesystems(drive: &Parts<'_>, found: &mut Vec<Signature>) {
    if let Some(superblock) = drive.get(1024, 1024).filter(|sb| u16_le(sb, 56) == 0xef53) {
        let (compat, incompat, ro_compat) =
            (u32_le(superblock, 92), u32_le(superblock, 96), u32_le(superblock, 100));
        // Anything beyond what ext3 knows (incompat: file types, recovery, meta_bg; ro: sparse, large files) is ext4.
        let kind = match (compat & 4 != 0, incompat & !0x16 != 0 || ro_compat & !0x3 != 0) {
            (_, true) => Kind::Ext4,
            (true, false) => Kind::Ext3,
            (false, false) => Kind::Ext2,
        };
        let (label, uuid) = (drive.label(1024 + 120, 16), drive.uuid(1024 + 104));
        found.push(Signature { kind, label, uuid, offset: 1024 + 56 });
    }
    if drive.has(0, b"XFSB") {
        found.push(Signature { label: drive.label(108, 12), uuid: drive.uuid(32), ..plain(Kind::Xfs, 0) });
    }
    let btrfs = 64 * KIB;
    if drive.has(btrfs + 64, b"_BHRfS_M") {
        let (label, uuid) = (drive.label(btrfs + 299, 256), drive.uuid(btrfs + 32));
        found.push(Signature { label, uuid, ..plain(Kind::Btrfs, btrfs + 64) });
    }
    for page in [4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB] {
        if drive.has(page - 10, b"SWAPSPACE2") || drive.has(page - 10, b"SWAP-SPACE") {
            let (label, uuid) = (drive.label(1024 + 28, 16), drive.uuid(1024 + 12));
            found.push(Signature { label, uuid, ..plain(Kind::Swap, page - 10) });
        }
    }
}

/// Volume managers and stores: lvm2 `lib/format_text/layout.h`, LUKS2 on-disk format 1.1.1, `bcache_ondisk.h`, Ceph
/// `BlueStore::_read_bdev_label`.
fn probe_volumes(drive: &Parts<'_>, found: &mut Vec<Signature>) {
    for at in [0, 512, 1024, 1536] {
        if drive.has(at, b"LABELONE") && drive.has(at + 24, b"LVM2 001") {
            let uuid = drive.label(at + 32, 32).map(|id| lvm_uuid(&id));
            found.push(Signature { uuid, ..plain(Kind::LvmPv, at) });
        }
    }
    let luks_second = 16 * KIB;
    if drive.has(0, b"LUKS\xba\xbe") {
        let is_second = drive.has(6, &[0, 2]);
        let label = if is_second { drive.label(24, 48) } else { None };
        found.push(Signature { label, uuid: drive.label(168, 40), ..plain(Kind::Luks, 0) });
    } else if drive.has(luks_second, b"SKUL\xba\xbe") {
        found.push(Signature { uuid: drive.label(luks_second + 168, 40), ..plain(Kind::Luks, luks_second) });
    }
    const BCACHE: [u8; 16] = *b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
    const BCACHEFS: [u8; 16] = *b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
    if drive.has(4096 + 24, &BCACHE) || drive.has(4096 + 24, &BCACHEFS) {
        let (label, uuid) = (drive.label(4096 + 72, 32), drive.uuid(4096 + 40));
        found.push(Signature { label, uuid, ..plain(Kind::Bcache, 4096 + 24) });
    }
    if drive.has(0, b"bluestore block device") {
        found.push(plain(Kind::CephBluestore, 0));
    }
}

/// LVM's own way to print its 32 characters: in groups of 6, 4, 4, 4, 4, 4 and 6.
fn lvm_uuid(id: &str) -> String {
    let mut shown = String::new();
    for (i, c) in id.chars().enumerate() {
        if matches!(i, 6 | 10 | 14 | 18 | 22 | 26) {
            shown.push('-');
        }
        shown.push(c);
    }
    shown
}

/// ZFS: four labels of 256 KiB, two at each end; in each an XDR name-value list at 16 KiB and uberblocks from 128 KiB
/// (ZFS On-Disk Specification, chapter 1).
fn probe_zfs(drive: &Parts<'_>, found: &mut Vec<Signature>) {
    const UBERBLOCK: u64 = 0x00ba_b10c;
    let end = round_down(drive.size, ZFS_LABEL_BYTES);
    let labels = [
        Some(0),
        Some(ZFS_LABEL_BYTES),
        end.checked_sub(2 * ZFS_LABEL_BYTES),
        end.checked_sub(ZFS_LABEL_BYTES),
    ];
    for label in labels.into_iter().flatten() {
        let list = drive.get(label + 16 * KIB, 112 * KIB).unwrap_or_default();
        // Header 12, sizes 8, length of the first name 4, then the name, which is always "version".
        let has_list = list.len() > 64 && list[0] == 1 && &list[24..31] == b"version";
        let ring = drive.get(label + 128 * KIB, 128 * KIB).unwrap_or_default();
        let uberblock = ring.chunks(1024).position(|slot| {
            slot.len() >= 8 && (u64_le(slot, 0) == UBERBLOCK || u64_le(slot, 0).swap_bytes() == UBERBLOCK)
        });
        let offset = match (has_list, uberblock) {
            (true, _) => label + 16 * KIB,
            (false, Some(slot)) => label + 128 * KIB + u64_of(slot) * 1024,
            (false, None) => continue,
        };
        found.push(Signature { label: xdr_string(list, "name"), ..plain(Kind::Zfs, offset) });
        return;
    }
}

/// The string value of a name in an XDR name-value list.
fn xdr_string(list: &[u8], name: &str) -> Option<String> {
    let mut key = u32::try_from(name.len()).ok()?.to_be_bytes().to_vec();
    key.extend_from_slice(name.as_bytes());
    key.resize(key.len().next_multiple_of(4), 0);
    // Type 9 is a string, of which there is one.
    key.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 1]);
    let at = list.windows(key.len()).position(|window| window == key)? + key.len();
    let len = usize_of_u32(u32_be(list.get(at..at + 4)?, 0));
    Some(text(list.get(at + 4..(at + 4).checked_add(len)?)?)).filter(|value| !value.is_empty())
}

/// Firmware RAID: Intel's anchor in the second last sector (mdadm `super-intel.c`), SNIA DDF 2.0 anchor in the last one.
fn probe_firmware_raid(drive: &Parts<'_>, found: &mut Vec<Signature>) {
    for sector in [512, 4096] {
        if let Some(at) =
            drive.before_end(2 * sector).filter(|&at| drive.has(at, b"Intel Raid ISM Cfg Sig. "))
        {
            found.push(plain(Kind::IntelRaid, at));
        }
        if let Some(at) = drive.before_end(sector).filter(|&at| drive.has(at, &[0xde, 0x11, 0xde, 0x11])) {
            found.push(plain(Kind::DdfRaid, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 8 << 20;

    fn find(size: u64, marks: &[(u64, &[u8])]) -> Vec<Signature> {
        let mut parts: Vec<Vec<u8>> =
            needs(size).into_iter().map(|range| vec![0; usize_of(range.end - range.start)]).collect();
        for (at, mark) in marks {
            let ranges = needs(size);
            let i = ranges.iter().position(|range| range.contains(at)).unwrap();
            let start = usize_of(at - ranges[i].start);
            parts[i][start..start + mark.len()].copy_from_slice(mark);
        }
        probe(size, &parts)
    }

    fn kinds(marks: &[(u64, &[u8])]) -> Vec<(Kind, u64)> {
        find(SIZE, marks).into_iter().map(|signature| (signature.kind, signature.offset)).collect()
    }

    #[test]
    fn a_blank_drive_of_any_size_has_none() {
        for size in [0, 512, 4096, 100_000, 512 * 1024, 1 << 20, (1 << 20) + 512, SIZE, SIZE + 512] {
            assert_eq!(find(size, &[]), []);
            let ranges = needs(size);
            assert!(ranges.iter().all(|range| range.end <= size && range.start < range.end));
        }
    }

    #[test]
    fn ad_01_formats_whose_tools_are_not_at_hand() {
        assert_eq!(kinds(&[(0, b"LUKS\xba\xbe\0\x02")]), [(Kind::Luks, 0)]);
        assert_eq!(kinds(&[(16384, b"SKUL\xba\xbe\0\x02")]), [(Kind::Luks, 16384)]);
        let bcache = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
        assert_eq!(kinds(&[(4120, bcache)]), [(Kind::Bcache, 4120)]);
        assert_eq!(kinds(&[(0, b"bluestore block device\n")]), [(Kind::CephBluestore, 0)]);
        assert_eq!(kinds(&[(SIZE - 1024, b"Intel Raid ISM Cfg Sig. ")]), [(Kind::IntelRaid, SIZE - 1024)]);
        assert_eq!(kinds(&[(SIZE - 512, &[0xde, 0x11, 0xde, 0x11])]), [(Kind::DdfRaid, SIZE - 512)]);
        assert_eq!(kinds(&[(SIZE - 65536, &MD_MAGIC.to_le_bytes())]), [(Kind::Md090, SIZE - 65536)]);
        let ntfs = [(0, b"\xeb\x52\x90NTFS    ".as_slice()), (510, &[0x55, 0xaa])];
        assert_eq!(kinds(&ntfs), [(Kind::Ntfs, 0)]);
        let exfat = [(0, b"\xeb\x76\x90EXFAT   ".as_slice()), (510, &[0x55, 0xaa])];
        assert_eq!(kinds(&exfat), [(Kind::Exfat, 0)]);
    }

    #[test]
    fn ad_01_lvm_and_md_at_every_place_they_can_have() {
        for at in [0, 512, 1024, 1536] {
            let id = b"abcdefghijklmnopqrstuvwxyz012345";
            let found = find(SIZE, &[(at, b"LABELONE"), (at + 24, b"LVM2 001"), (at + 32, id)]);
            assert_eq!((found[0].kind, found[0].offset), (Kind::LvmPv, at));
            assert_eq!(found[0].uuid.as_deref(), Some("abcdef-ghij-klmn-opqr-stuv-wxyz-012345"));
        }
        for (kind, at) in [(Kind::Md11, 0), (Kind::Md12, 4096), (Kind::Md10, SIZE - 8192)] {
            let (magic, place) = (MD_MAGIC.to_le_bytes(), (at / 512).to_le_bytes());
            let marks: [(u64, &[u8]); 3] = [(at, &magic), (at + 144, &place), (at + 32, b"host:tank")];
            let found = find(SIZE, &marks);
            assert_eq!((found[0].kind, found[0].offset, found.len()), (kind, at, 1));
            assert_eq!(found[0].label.as_deref(), Some("host:tank"));
            // The same bytes one place further belong to somebody's partition.
            assert_eq!(kinds(&[(at, MD_MAGIC.to_le_bytes().as_slice()), (at + 144, &[77])]), []);
        }
    }

    #[test]
    fn ad_01_zfs_by_label_or_uberblock_at_either_end() {
        let list = b"\x01\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x24\0\0\0\x20\0\0\0\x07version\0\0\0\0\x08\0\0\0\x01\0\0\0\0\
            \0\0\x13\x88\0\0\0\x20\0\0\0\x20\0\0\0\x04name\0\0\0\x09\0\0\0\x01\0\0\0\x04tank";
        let found = find(SIZE, &[(16384, list)]);
        assert_eq!((found[0].kind, found[0].label.as_deref()), (Kind::Zfs, Some("tank")));
        let uberblock = 0x00ba_b10cu64.to_be_bytes();
        let last_label = SIZE - 256 * 1024;
        let at = last_label + 128 * 1024 + 5 * 1024;
        assert_eq!(kinds(&[(at, &uberblock)]), [(Kind::Zfs, at)]);
    }

    #[test]
    fn ad_01_a_deleted_group_leaves_a_tombstone_and_a_live_one_none() {
        let mut anchor = ANCHOR_MAGIC.to_vec();
        anchor.resize(16, 0);
        anchor.extend_from_slice(&[7; 16]);
        let found = find(SIZE, &[(ANCHOR_START, &anchor)]);
        assert_eq!((found[0].kind, found[0].offset), (Kind::WarpraidTombstone, 7680));
        assert_eq!(found[0].uuid, Some(Uuid([7; 16]).to_string()));
        let live = kinds(&[(ANCHOR_START, &anchor), (4096, &MD_MAGIC.to_le_bytes()), (4096 + 144, &[8])]);
        assert_eq!(live, [(Kind::Md12, 4096)]);
    }

    #[test]
    fn ad_01_a_protective_mbr_without_its_gpt_is_named() {
        let mut mbr = Gpt::new(Uuid([1; 16]), BlockSize::B512, SIZE).unwrap().primary();
        mbr.truncate(512);
        let found = find(SIZE, &[(0, &mbr)]);
        assert_eq!(
            found[0].to_string(),
            "MBR partition table at byte 510, label \"protects a GPT that is gone\""
        );
    }

    #[test]
    fn labels_cannot_reach_a_terminal_raw() {
        let found = find(SIZE, &[(0, b"XFSB"), (108, b"a\x1b[31m\xffb\n")]);
        assert_eq!(found[0].label.as_deref(), Some("a?[31m?b?"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_probe_panic(
            size in 0u64..(3 << 20),
            seed in proptest::collection::vec(any::<u8>(), 1..4096),
            magics in proptest::collection::vec((0usize..9, 0u64..200), 0..8),
        ) {
            let words: [&[u8]; 9] = [
                b"EFI PART", b"XFSB", b"LABELONE", b"LUKS\xba\xbe", b"SWAPSPACE2", b"\xfc\x4e\x2b\xa9", b"\x53\xef",
                b"\x55\xaa", b"WRANCHOR",
            ];
            let mut parts: Vec<Vec<u8>> = needs(size)
                .into_iter()
                .map(|range| (0..usize_of(range.end - range.start)).map(|i| seed[i % seed.len()]).collect())
                .collect();
            for (word, sector) in magics {
                for part in &mut parts {
                    let at = usize_of(sector * 512).min(part.len());
                    let len = words[word].len().min(part.len() - at);
                    part[at..at + len].copy_from_slice(&words[word][..len]);
                }
            }
            let found = probe(size, &parts);
            prop_assert!(found.iter().all(|signature| signature.offset < size));
            // A range that could not be read is simply not searched.
            let _ = probe(size, &parts[..parts.len().min(1)]);
        }
    }
}
