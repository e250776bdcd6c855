//! What we write, judged by the tools of others: mdadm, sgdisk and blkid read members, bitmaps, bad-block logs and
//! partition tables that our codecs made; and our probe names what mkfs and friends made.
//!
//! A test without its tool says so and passes; `tests/run` installs the tools. Loop devices need root: without them the
//! same bytes are judged from plain files where the tool allows it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use raid_core::disks::{DiskTable, Step};
use raid_core::format::bad_blocks::BadBlocks;
use raid_core::format::bitmap::{AREA_BYTES, encode_area};
use raid_core::format::plan::{NewGroup, Plan, PlanDrive, plan};
use raid_core::format::probe::{Kind, Signature, needs, probe};
use raid_core::format::superblock::{
    FEATURE_BAD_BLOCKS, FEATURE_RECOVERY, MdRole, SUPERBLOCK_START, Superblock, set_name,
};
use raid_core::geometry::Level;
use raid_core::units::{BlockSize, Slot, Uuid, usize_of};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 40 * MIB;

/// Both streams of a tool, or `None` and a printed reason if it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<String> {
    match Command::new(name).args(args).env("LC_ALL", "C").output() {
        Ok(output) => {
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            Some(text.concat())
        }
        Err(error) => {
            eprintln!("SKIPPED: {name} cannot be run: {error}");
            None
        }
    }
}

/// A loop device over a file, detached on drop.
struct Loop(String);

impl Loop {
    fn attach(path: &Path, sector_bytes: u32) -> Option<Self> {
        let sector = sector_bytes.to_string();
        let said = tool("losetup", &["--show", "-f", "-r", "-b", &sector, path.to_str().unwrap()])?;
        let device = said.trim().to_owned();
        if device.starts_with("/dev/loop") {
            return Some(Self(device));
        }
        eprintln!("SKIPPED: no loop device here: {device}");
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup", &["-d", &self.0]);
    }
}

fn write_at(file: &mut File, at: u64, bytes: &[u8]) {
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

struct Made {
    folder: TempDir,
    plan: Plan,
    new: NewGroup,
}

impl Made {
    fn new(level: Level, members: u8, chunk: Option<u64>, is_claimed: bool, is_in_sync: bool) -> Self {
        let drive = |i| PlanDrive { name: format!("d{i}"), bytes: DRIVE_BYTES, block: BlockSize::B512 };
        let drives: Vec<PlanDrive> = (0..members).map(drive).collect();
        let new = NewGroup {
            group: Uuid([0xa5; 16]),
            set_name: set_name("host", "tank"),
            devices: (0..members).map(|i| Uuid([i + 1; 16])).collect(),
            created_unix_s: 1_800_000_000,
            events: 42,
            is_claimed,
            is_in_sync,
        };
        Self { folder: TempDir::new().unwrap(), plan: plan(level, chunk, &drives).unwrap(), new }
    }

    fn path(&self, slot: Slot) -> PathBuf {
        self.folder.path().join(format!("d{slot}"))
    }

    /// A whole member, with a superblock that `change` may alter, and these lost blocks.
    fn write(&self, slot: Slot, bad: &BadBlocks, change: impl FnOnce(&mut Superblock)) {
        let mut file = File::create(self.path(slot)).unwrap();
        file.set_len(DRIVE_BYTES).unwrap();
        let mut superblock = self.plan.superblock(&self.new, slot);
        change(&mut superblock);
        write_at(&mut file, SUPERBLOCK_START, &superblock.encode());
        if let Some((header, bits)) = self.plan.bitmap(&self.new) {
            let area = encode_area(&header, &bits, AREA_BYTES);
            write_at(&mut file, self.plan.layout.bitmap.as_ref().unwrap().start, &area);
            // mdadm takes a plain file for a bitmap of its own.
            fs::write(self.path(slot).with_extension("bitmap"), &area).unwrap();
        }
        let log = self.plan.layout.bad_blocks.as_ref().unwrap().start;
        write_at(&mut file, log, &bad.encode().unwrap());
    }
}

/// The value after `key :`.
fn said<'a>(text: &'a str, key: &str) -> &'a str {
    let is_it = |line: &&str| {
        line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("no {key:?} in\n{text}"));
    line.split_once(':').unwrap().1.trim()
}

fn shapes() -> Vec<(Level, u8, Option<u64>)> {
    vec![
        (Level::Raid0, 3, Some(65536)),
        (Level::Raid1, 2, None),
        (Level::Raid1, 3, None),
        (Level::Raid5, 3, Some(4096)),
        (Level::Raid5, 8, Some(65536)),
        (Level::Raid6, 4, Some(1 << 20)),
        (Level::Raid6, 7, Some(65536)),
        (Level::Raid10, 4, Some(65536)),
        (Level::Raid10, 6, Some(16384)),
    ]
}

#[test]
fn mdadm_examines_members_of_every_level() {
    for (level, members, chunk) in shapes() {
        for (is_claimed, is_in_sync) in [(true, false), (true, true), (false, true)] {
            let made = Made::new(level, members, chunk, is_claimed, is_in_sync);
            for slot in (0..members).map(Slot) {
                made.write(slot, &BadBlocks::default(), |_| {});
                let Some(text) = tool("mdadm", &["--examine", made.path(slot).to_str().unwrap()]) else {
                    return;
                };
                check_examine(&text, &made, slot, is_claimed, is_in_sync);
            }
        }
    }
}

fn check_examine(text: &str, made: &Made, slot: Slot, is_claimed: bool, is_in_sync: bool) {
    let geometry = &made.plan.geometry;
    let level = geometry.level();
    assert!(said(text, "Checksum").ends_with(" - correct"), "{text}");
    assert_eq!(said(text, "Version"), "1.2");
    assert_eq!(said(text, "Raid Level"), format!("raid{}", level.number()));
    assert_eq!(said(text, "Raid Devices"), geometry.members().to_string());
    // mdadm adds "(local to host ...)" where the machine has that name.
    assert!(said(text, "Name").starts_with("host:tank"), "{text}");
    assert_eq!(said(text, "Events"), "42");
    assert_eq!(said(text, "Array UUID"), "a5a5a5a5:a5a5a5a5:a5a5a5a5:a5a5a5a5");
    assert_eq!(
        said(text, "Device UUID").replace(':', ""),
        made.new.devices[slot.index()].to_string().replace('-', "")
    );
    assert_eq!(said(text, "Device Role"), format!("Active device {slot}"));
    let all = "A".repeat(usize::from(geometry.members()));
    assert!(said(text, "Array State").starts_with(&format!("{all} (")), "{text}");
    let clean = is_in_sync || level == Level::Raid0;
    assert_eq!(said(text, "State"), if clean { "clean" } else { "active" }, "{text}");
    assert!(
        said(text, "Data Offset").starts_with(&format!("{} sectors", made.plan.layout.data_start.0 / 512))
    );
    assert!(
        said(text, "Avail Dev Size").starts_with(&format!("{} sectors", made.plan.layout.data_bytes / 512))
    );
    if level != Level::Raid1 {
        let kib = geometry.chunk_bytes() / 1024;
        assert!(
            [format!("{kib}K"), format!("{}M", kib / 1024)].contains(&said(text, "Chunk Size").to_owned())
        );
    }
    match level {
        Level::Raid5 | Level::Raid6 => assert_eq!(said(text, "Layout"), "left-symmetric"),
        Level::Raid10 => assert_eq!(said(text, "Layout"), "near=2"),
        Level::Raid0 | Level::Raid1 => {}
    }
    let claim = if is_claimed { 0x1000_0000 } else { 0 };
    let log = said(text, "Bad Block Log");
    if level == Level::Raid0 {
        assert_eq!(said(text, "Feature Map"), format!("{claim:#x}"));
        assert_eq!(log, "512 entries available at offset 8 sectors");
    } else {
        assert_eq!(said(text, "Feature Map"), format!("{:#x}", claim | 1));
        assert_eq!(said(text, "Internal Bitmap"), "8 sectors from superblock");
        assert_eq!(log, "512 entries available at offset 264 sectors");
        let usable = geometry.capacity_bytes() / 1024;
        assert!(said(text, "Array Size").starts_with(&format!("{usable} KiB")), "{text}");
    }
}

#[test]
fn mdadm_reads_our_bitmaps() {
    for (level, members, chunk) in shapes().into_iter().filter(|shape| shape.0 != Level::Raid0) {
        for is_in_sync in [false, true] {
            let made = Made::new(level, members, chunk, true, is_in_sync);
            made.write(Slot(0), &BadBlocks::default(), |_| {});
            let path = made.path(Slot(0));
            let Some(text) = tool("mdadm", &["-X", path.with_extension("bitmap").to_str().unwrap()]) else {
                return;
            };
            check_bitmap(&text, &made);
            // On the member itself mdadm finds the bitmap by the superblock, which takes a block device.
            if let Some(device) = Loop::attach(&path, 512) {
                check_bitmap(&tool("mdadm", &["-X", &device.0]).unwrap(), &made);
            }
        }
    }
}

fn check_bitmap(text: &str, made: &Made) {
    let (header, bits) = made.plan.bitmap(&made.new).unwrap();
    assert_eq!(said(text, "Magic"), "6d746962", "{text}");
    assert_eq!(said(text, "Version"), "4");
    assert_eq!(said(text, "UUID"), "a5a5a5a5:a5a5a5a5:a5a5a5a5:a5a5a5a5");
    assert_eq!(said(text, "Events"), "42");
    assert_eq!(said(text, "Events Cleared"), "42");
    assert_eq!(said(text, "State"), "OK");
    assert_eq!(said(text, "Chunksize"), "1 MB");
    assert_eq!(said(text, "Daemon"), "5s flush period");
    assert!(said(text, "Sync Size").starts_with(&(header.sync_size / 2).to_string()), "{text}");
    let expected = format!("{} bits (chunks), {} dirty", bits.len(), bits.dirty());
    assert!(said(text, "Bitmap").starts_with(&expected), "{expected} in\n{text}");
}

#[test]
fn mdadm_sees_lost_blocks_lost_members_and_rebuilds() {
    let made = Made::new(Level::Raid6, 5, None, true, false);
    let mut bad = BadBlocks::default();
    bad.insert(2049 * 512..2052 * 512);
    bad.insert(30_000 * 512..31_000 * 512);
    made.write(Slot(0), &bad, |superblock| {
        superblock.set_feature(FEATURE_BAD_BLOCKS, true);
        superblock.dev_roles[1] = MdRole::Faulty.number();
        superblock.dev_roles[3] = MdRole::Faulty.number();
        // Slot 3's replacement got a new number, as replacements do.
        superblock.dev_roles[5] = 3;
    });
    let path = made.path(Slot(0));
    let Some(text) = tool("mdadm", &["--examine", path.to_str().unwrap()]) else { return };
    assert!(said(&text, "Array State").starts_with("A.AAA ("), "{text}");
    assert!(said(&text, "Bad Block Log").ends_with("bad blocks present."), "{text}");
    let log = tool("mdadm", &["--examine-badblocks", path.to_str().unwrap()]).unwrap();
    for line in ["2049 for 3 sectors", "30000 for 512 sectors", "30512 for 488 sectors"] {
        assert!(log.lines().any(|said| said.trim() == line), "{line:?} in\n{log}");
    }
    made.write(Slot(3), &BadBlocks::default(), |superblock| {
        superblock.set_feature(FEATURE_RECOVERY, true);
        superblock.recovery_offset = 2048;
        superblock.dev_number = 5;
        superblock.dev_roles[3] = MdRole::Faulty.number();
        superblock.dev_roles[5] = 3;
    });
    let text = tool("mdadm", &["--examine", made.path(Slot(3)).to_str().unwrap()]).unwrap();
    assert_eq!(said(&text, "Recovery Offset"), "2048 sectors");
    assert_eq!(said(&text, "Device Role"), "Active device 3");
    assert!(said(&text, "Checksum").ends_with(" - correct"), "{text}");
}

#[test]
fn a_claimed_member_still_says_what_it_is() {
    let made = Made::new(Level::Raid5, 3, None, true, false);
    made.write(Slot(0), &BadBlocks::default(), |_| {});
    let path = made.path(Slot(0));
    let found = probe_file(&path);
    assert_eq!(found.iter().map(|signature| signature.kind).collect::<Vec<_>>(), [Kind::Warpraid]);
    assert_eq!(found[0].label.as_deref(), Some("host:tank"));
    let Some(kind) = tool("blkid", &["-p", "-o", "value", "-s", "TYPE", path.to_str().unwrap()]) else {
        return;
    };
    assert_eq!(kind.trim(), "linux_raid_member");
}

fn partitioned(folder: &Path, block: BlockSize) -> PathBuf {
    let (size, stripe) = (256 * MIB, 320 * 1024);
    let mut table = DiskTable::new(Uuid::from_random(1, 2), block, size, stripe).unwrap();
    for (i, name) in ["beegfs-meta", "scratch", "home"].into_iter().enumerate() {
        let id = Uuid::from_random(7, u64::try_from(i).unwrap());
        table.create(name, (20 + 40 * u64::try_from(i).unwrap()) * MIB, id).unwrap();
    }
    table.delete("scratch").unwrap();
    let path = folder.join(format!("group{}", block.bytes()));
    let mut file = File::create(&path).unwrap();
    file.set_len(size).unwrap();
    for step in table.writes() {
        if let Step::Write { at, bytes } = step {
            write_at(&mut file, at.0, &bytes);
        }
    }
    path
}

#[test]
fn sgdisk_accepts_our_partition_table() {
    let folder = TempDir::new().unwrap();
    let path = partitioned(folder.path(), BlockSize::B512);
    let Some(verdict) = tool("sgdisk", &["-v", path.to_str().unwrap()]) else { return };
    assert!(verdict.contains("No problems found"), "{verdict}");
    check_partitions(&tool("sgdisk", &["-p", path.to_str().unwrap()]).unwrap(), 512);
    let path = partitioned(folder.path(), BlockSize::B4096);
    if let Some(device) = Loop::attach(&path, 4096) {
        let verdict = tool("sgdisk", &["-v", &device.0]).unwrap();
        assert!(verdict.contains("No problems found"), "{verdict}");
        check_partitions(&tool("sgdisk", &["-p", &device.0]).unwrap(), 4096);
    }
}

fn check_partitions(text: &str, block: u32) {
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|row| row.len() > 6 && row[0].parse::<u32>().is_ok())
        .collect();
    let names: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], *row.last().unwrap())).collect();
    assert_eq!(names, [("1", "beegfs-meta"), ("3", "home")], "{text}");
    // The first disk starts on the first full stripe.
    assert_eq!(rows[0][1], (320 * 1024 / block).to_string(), "{text}");
}

fn probe_file(path: &Path) -> Vec<Signature> {
    let mut file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut parts = Vec::new();
    for range in needs(size) {
        let mut bytes = vec![0; usize_of(range.end - range.start)];
        file.seek(SeekFrom::Start(range.start)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        parts.push(bytes);
    }
    probe(size, &parts)
}

/// Tool, its arguments before the file, size in MiB, what it makes, its label.
const MAKERS: [(&str, &[&str], u64, Kind, &str); 8] = [
    ("mkfs.ext2", &["-q", "-F", "-L", "old"], 8, Kind::Ext2, "old"),
    ("mkfs.ext3", &["-q", "-F", "-L", "middle"], 16, Kind::Ext3, "middle"),
    ("mkfs.ext4", &["-q", "-F", "-L", "new"], 16, Kind::Ext4, "new"),
    ("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", "-L", "bare"], 16, Kind::Ext4, "bare"),
    ("mkfs.xfs", &["-q", "-f", "-L", "xlabel"], 320, Kind::Xfs, "xlabel"),
    ("mkfs.btrfs", &["-q", "-f", "-L", "blabel"], 256, Kind::Btrfs, "blabel"),
    ("mkfs.vfat", &["-n", "FATLABEL"], 64, Kind::Vfat, "FATLABEL"),
    ("mkswap", &["-q", "-L", "slabel"], 16, Kind::Swap, "slabel"),
];

#[test]
fn ad_01_used_drives_are_recognised_as_blkid_does() {
    let folder = TempDir::new().unwrap();
    for (maker, args, mib, kind, label) in MAKERS {
        let path = folder.path().join("drive");
        File::create(&path).unwrap().set_len(mib * MIB).unwrap();
        let name = path.to_str().unwrap();
        let Some(said) = tool(maker, &[args, &[name]].concat()) else { continue };
        let found = probe_file(&path);
        assert_eq!(found.len(), 1, "{maker}: {found:?}\n{said}");
        assert_eq!((found[0].kind, found[0].label.as_deref()), (kind, Some(label)), "{maker}");
        if let Some(uuid) = tool("blkid", &["-p", "-o", "value", "-s", "UUID", name]) {
            assert_eq!(found[0].uuid.as_deref(), Some(uuid.trim()), "{maker}");
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn ad_01_partitioned_drives_are_recognised_from_either_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("drive");
    File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let name = path.to_str().unwrap();
    if tool("sgdisk", &["-n", "1:2048:+8M", "-c", "1:EFI System", "-n", "2:0:0", "-c", "2:root", name])
        .is_none()
    {
        return;
    }
    let found = probe_file(&path);
    let kinds: Vec<(Kind, u64)> = found.iter().map(|signature| (signature.kind, signature.offset)).collect();
    assert_eq!(kinds, [(Kind::Gpt, 512), (Kind::GptBackup, 64 * MIB - 512)]);
    assert_eq!(found[0].label.as_deref(), Some("2 partitions: EFI System, root"));
    // The head was overwritten, the tail not: still somebody's drive.
    let mut file = File::options().write(true).open(&path).unwrap();
    write_at(&mut file, 0, &[0; 32 * 1024]);
    let found = probe_file(&path);
    assert_eq!(found.iter().map(|signature| signature.kind).collect::<Vec<_>>(), [Kind::GptBackup]);
    // What the probe reads is what has to be zeroed.
    for range in needs(64 * MIB) {
        write_at(&mut file, range.start, &vec![0; usize_of(range.end - range.start)]);
    }
    assert_eq!(probe_file(&path), []);
}

#[test]
fn mdadm_sees_write_mostly_members() {
    let made = Made::new(Level::Raid1, 2, None, true, true);
    for (slot, is_marked) in [(Slot(0), false), (Slot(1), true)] {
        made.write(slot, &BadBlocks::default(), |superblock| superblock.set_write_mostly(is_marked));
        let Some(text) = tool("mdadm", &["--examine", made.path(slot).to_str().unwrap()]) else { return };
        assert_eq!(text.contains("write-mostly"), is_marked, "{text}");
        if is_marked {
            assert_eq!(said(&text, "Flags"), "write-mostly");
        }
        // Nothing else differs: one byte of the superblock, and its checksum.
        let bytes = fs::read(made.path(slot)).unwrap();
        assert_eq!(bytes[4096 + 184], u8::from(is_marked));
        assert!(said(&text, "Checksum").ends_with("correct"), "{text}");
    }
}
