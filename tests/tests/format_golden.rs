//! Members made by the real Linux md (tests/golden): our codecs and geometry against what md itself said and read back.
//!
//! Reconstruction and parity are done here byte by byte from the definition, not with the product's parity code: only the
//! format and the places of bytes are under test.

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;

use raid_core::format::bitmap::{BitmapHeader, Bits, HEADER_BYTES, IntentMap, sync_bytes};
use raid_core::format::examine::{examine, wants};
use raid_core::format::plan::{NewGroup, Plan, PlanDrive, plan};
use raid_core::format::probe::{Kind, needs, probe};
use raid_core::format::superblock::{FEATURE_BITMAP, MdRole, Superblock};
use raid_core::geometry::{Geometry, Level, Role};
use raid_core::units::{BlockSize, GroupOffset, Slot, Stripe, Uuid, u64_of, usize_of, usize_of_u32};
use sha2::{Digest, Sha256};

struct Member {
    bytes: Vec<u8>,
    superblock: Superblock,
    /// What `mdadm --examine` and `-X` printed.
    said: String,
}

struct Golden {
    name: &'static str,
    members: Vec<Member>,
    array_bytes: u64,
    sha256: String,
}

const FOLDERS: [&str; 8] =
    ["raid0", "raid1", "raid5", "raid6", "raid10", "raid5-nobitmap", "raid5-degraded", "raid6-degraded"];

fn load(name: &'static str) -> Golden {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let expected = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let (head, sections) = expected.split_once("== d0\n").unwrap();
    let mut lines = head.lines();
    let array_bytes = lines.next().unwrap().strip_prefix("array_size ").unwrap().parse().unwrap();
    let sha256 = lines.next().unwrap().split_whitespace().next().unwrap().to_owned();
    let member = |(i, said): (usize, &str)| {
        let file = fs::File::open(folder.join(format!("d{i}.img.gz"))).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        let superblock = Superblock::decode(&bytes[4096..8192]).unwrap();
        Member { bytes, superblock, said: said.to_owned() }
    };
    let members = sections.split("\n== d").enumerate().map(member).collect();
    Golden { name, members, array_bytes, sha256 }
}

impl Member {
    /// The value md printed after `key :`.
    fn said(&self, key: &str) -> Option<&str> {
        let is_it = |line: &&str| {
            line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
        };
        Some(self.said.lines().find(is_it)?.split_once(':')?.1.trim())
    }

    fn number(&self, key: &str) -> u64 {
        self.said(key).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    fn data(&self) -> &[u8] {
        &self.bytes[usize_of(self.superblock.data_offset * 512)..]
    }
}

type Columns<'a> = Vec<Option<&'a [u8]>>;

impl Golden {
    fn geometry(&self) -> Geometry {
        let sb = &self.members[0].superblock;
        let level = Level::from_number(sb.level).unwrap();
        let members = u8::try_from(sb.raid_disks).unwrap();
        Geometry::new(level, members, u32::try_from(sb.chunk_bytes()).unwrap(), sb.member_bytes()).unwrap()
    }

    /// The members by slot, in whatever order they are given; those the freshest superblock does not count are left
    /// out.
    fn assemble<'a>(&self, members: impl Iterator<Item = &'a Member> + Clone) -> Vec<Option<&'a Member>> {
        let freshest = members.clone().max_by_key(|member| member.superblock.events).unwrap();
        let mut slots = vec![None; usize::from(self.geometry().members())];
        for member in members {
            let number = usize_of_u32(member.superblock.dev_number);
            let role = MdRole::from_number(freshest.superblock.dev_roles[number]).unwrap();
            if let MdRole::Active(slot) = role {
                assert_eq!(member.superblock.events, freshest.superblock.events);
                assert!(slots[slot.index()].replace(member).is_none(), "two members in slot {slot}");
            }
        }
        slots
    }

    fn columns<'a>(&self, slots: &[Option<&'a Member>]) -> Columns<'a> {
        let used = usize_of(self.geometry().member_bytes());
        slots.iter().map(|slot| slot.map(|member| &member.data()[..used])).collect()
    }

    /// SHA-256 of the whole array as read from these columns.
    fn read(&self, columns: &[Option<&[u8]>]) -> String {
        let geometry = self.geometry();
        let mut hash = Sha256::new();
        let mut at = 0;
        while at < self.array_bytes {
            let place = geometry.place(GroupOffset(at));
            let range = chunk_of(&geometry, place.stripe);
            let first = geometry.data_slot(place.stripe, place.index);
            let copy = (first.0..first.0 + geometry.copies()).find_map(|slot| columns[usize::from(slot)]);
            at += u64_of(range.len());
            match copy {
                Some(column) => hash.update(&column[range]),
                None => hash.update(recover(&geometry, columns, place.stripe, first, range)),
            }
        }
        assert_eq!(at, self.array_bytes, "{}", self.name);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A stripe's bytes in each column.
fn chunk_of(geometry: &Geometry, stripe: Stripe) -> Range<usize> {
    let start = usize_of(geometry.member_offset(stripe, 0));
    start..start + usize_of_u32(geometry.stripe_height(stripe))
}

/// Multiplication in GF(2^8) modulo 0x11d, bit by bit.
fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

fn power(n: u8) -> u8 {
    (0..n).fold(1, |g, _| mul(g, 2))
}

fn inverse(a: u8) -> u8 {
    (1..=255).find(|&b| mul(a, b) == 1).expect("every element but 0 has an inverse")
}

fn times(factor: u8, bytes: &mut [u8]) {
    let table: Vec<u8> = (0..=255).map(|byte| mul(factor, byte)).collect();
    for byte in bytes {
        *byte = table[usize::from(*byte)];
    }
}

fn add(into: &mut [u8], from: &[u8]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into ^= from;
    }
}

/// P- and Q-side sums over what is there, parity included: what the lost data columns sum up to. `None` without that
/// parity.
struct Sums {
    p: Option<Vec<u8>>,
    q: Option<Vec<u8>>,
    lost_data: Vec<u8>,
}

fn sums(geometry: &Geometry, columns: &[Option<&[u8]>], stripe: Stripe, range: &Range<usize>) -> Sums {
    let (mut p, mut q) = (vec![0; range.len()], vec![0; range.len()]);
    let (mut has_p, mut has_q) = (false, false);
    let mut lost_data = Vec::new();
    for slot in (0..geometry.members()).map(Slot) {
        let column = columns[slot.index()].map(|column| &column[range.clone()]);
        match (geometry.role(stripe, slot), column) {
            (Role::Data(index), None) => lost_data.push(index.0),
            (Role::Data(index), Some(data)) => {
                add(&mut p, data);
                let mut scaled = data.to_vec();
                times(power(index.0), &mut scaled);
                add(&mut q, &scaled);
            }
            (Role::P, Some(parity)) => {
                has_p = true;
                add(&mut p, parity);
            }
            (Role::Q, Some(parity)) => {
                has_q = true;
                add(&mut q, parity);
            }
            (Role::P | Role::Q, None) => {}
        }
    }
    Sums { p: has_p.then_some(p), q: has_q.then_some(q), lost_data }
}

/// The chunk of a lost slot from the definition: two unknowns, two equations at most.
fn recover(
    geometry: &Geometry,
    columns: &[Option<&[u8]>],
    stripe: Stripe,
    slot: Slot,
    range: Range<usize>,
) -> Vec<u8> {
    let Role::Data(wanted) = geometry.role(stripe, slot) else { panic!("parity is not read") };
    let sums = sums(geometry, columns, stripe, &range);
    let other = sums.lost_data.iter().copied().find(|&index| index != wanted.0);
    match (other, sums.p, sums.q) {
        (None, Some(p), _) => p,
        (None, None, Some(mut q)) => {
            times(inverse(power(wanted.0)), &mut q);
            q
        }
        (Some(other), Some(mut p), Some(mut q)) => {
            // p = x + y, q = g^a x + g^b y  =>  x = (q + g^b p) / (g^a + g^b)
            let (a, b) = (power(wanted.0), power(other));
            times(b, &mut p);
            add(&mut q, &p);
            times(inverse(a ^ b), &mut q);
            q
        }
        _ => panic!("beyond tolerance: {:?}", sums.lost_data),
    }
}

#[test]
fn every_superblock_says_what_mdadm_said_and_encodes_to_the_same_bytes() {
    for golden in FOLDERS.map(load) {
        for (i, member) in golden.members.iter().enumerate() {
            let (sb, name) = (&member.superblock, format!("{} d{i}", golden.name));
            let bytes = sb.encode();
            assert_eq!(bytes, member.bytes[4096..4608], "{name}");
            let plain = |uuid: Uuid| uuid.to_string().replace('-', "");
            let stored = u32::from_le_bytes(bytes[216..220].try_into().unwrap());
            assert_eq!(member.said("Checksum").unwrap(), format!("{stored:x} - correct"), "{name}");
            assert_eq!(member.said("Array UUID").unwrap().replace(':', ""), plain(sb.set_uuid), "{name}");
            assert_eq!(member.said("Device UUID").unwrap().replace(':', ""), plain(sb.device_uuid), "{name}");
            assert_eq!(member.said("Name").unwrap(), format!("golden:{}", sb.name()), "{name}");
            assert_eq!(sb.name(), golden.name);
            assert_eq!(member.said("Raid Level").unwrap(), format!("raid{}", sb.level), "{name}");
            assert_eq!(member.number("Raid Devices"), u64::from(sb.raid_disks), "{name}");
            assert_eq!(member.number("Avail Dev Size"), sb.data_size, "{name}");
            assert_eq!(member.number("Data Offset"), sb.data_offset, "{name}");
            assert_eq!(member.number("Super Offset"), sb.super_offset, "{name}");
            assert_eq!(member.number("Events"), sb.events, "{name}");
            let chunk =
                member.said("Chunk Size").map(|text| text.trim_end_matches('K').parse::<u64>().unwrap());
            assert_eq!(chunk.unwrap_or(0) * 1024, sb.chunk_bytes(), "{name}");
            assert_eq!(
                member.said("State"),
                Some("clean").filter(|_| sb.resync_offset == u64::MAX),
                "{name}"
            );
            let MdRole::Active(slot) = sb.role() else { panic!("{name} is no active member") };
            assert_eq!(member.said("Device Role").unwrap(), format!("Active device {slot}"), "{name}");
            let log = sb.bad_blocks_range().unwrap();
            let said = format!("512 entries available at offset {} sectors", log.start / 512 - 8);
            assert_eq!(member.said("Bad Block Log").unwrap(), said, "{name}");
            assert_eq!((sb.obstacle(), sb.is_claimed()), (None, false), "{name}");
            assert_eq!(member.said("Feature Map").unwrap(), format!("{:#x}", sb.feature_map), "{name}");
        }
    }
}

#[test]
fn every_bitmap_says_what_mdadm_said() {
    for golden in FOLDERS.map(load) {
        let geometry = golden.geometry();
        for (i, member) in golden.members.iter().enumerate() {
            let (sb, name) = (&member.superblock, format!("{} d{i}", golden.name));
            let Some(start) = sb.bitmap_start() else {
                assert!(!sb.has_feature(FEATURE_BITMAP) && !member.said.contains("Events Cleared"), "{name}");
                continue;
            };
            let bitmap = &member.bytes[usize_of(start)..];
            let header = BitmapHeader::decode(bitmap).unwrap();
            assert_eq!(header.encode(), bitmap[..HEADER_BYTES], "{name}");
            assert_eq!(header.sync_size * 512, sync_bytes(&geometry), "{name}");
            assert_eq!(member.number("Sync Size") * 1024, sync_bytes(&geometry), "{name}");
            assert_eq!(member.number("Events Cleared"), header.events_cleared, "{name}");
            assert!(header.is_current(sb.set_uuid, sb.events), "{name}");
            assert_eq!(
                member.said("Chunksize").unwrap(),
                format!("{} MB", header.chunk_bytes >> 20),
                "{name}"
            );
            let bits = Bits::decode(header.bits(), bitmap);
            let said = format!("{} bits (chunks), {} dirty", bits.len(), bits.dirty());
            assert!(member.said("Bitmap").unwrap().starts_with(&said), "{name}: {said}");
            assert_eq!(IntentMap::new(&geometry, u64::from(header.chunk_bytes)).bits(), bits.len(), "{name}");
        }
    }
}

#[test]
fn ot_05_arrays_read_back_whatever_the_order_of_their_members() {
    for golden in FOLDERS.map(load) {
        assert_eq!(golden.geometry().capacity_bytes(), golden.array_bytes, "{}", golden.name);
        let n = golden.members.len();
        let by_slot = golden.assemble(golden.members.iter());
        let uuids = |slots: &[Option<&Member>]| -> Vec<Option<Uuid>> {
            slots.iter().map(|slot| slot.map(|member| member.superblock.device_uuid)).collect()
        };
        for turn in 0..n {
            let rotated = golden.assemble((0..n).map(|i| &golden.members[(i + turn) % n]));
            let reversed = golden.assemble((0..n).rev().map(|i| &golden.members[(i + turn) % n]));
            assert_eq!(uuids(&rotated), uuids(&by_slot), "{}", golden.name);
            assert_eq!(uuids(&reversed), uuids(&by_slot), "{}", golden.name);
        }
        assert_eq!(golden.read(&golden.columns(&by_slot)), golden.sha256, "{}", golden.name);
    }
}

#[test]
fn arrays_read_back_with_every_tolerated_loss() {
    for golden in FOLDERS.map(load) {
        let geometry = golden.geometry();
        let all = golden.columns(&golden.assemble(golden.members.iter()));
        let mut losses = 0;
        for lost in 1u32..1 << geometry.members() {
            let is_lost = |slot: usize| lost & (1 << slot) != 0;
            let columns: Columns<'_> =
                all.iter().enumerate().map(|(slot, column)| column.filter(|_| !is_lost(slot))).collect();
            let gone_before = all.iter().enumerate().any(|(slot, column)| is_lost(slot) && column.is_none());
            let readable = geometry.is_readable(|slot| columns[slot.index()].is_some());
            if !gone_before && readable {
                assert_eq!(golden.read(&columns), golden.sha256, "{} without {lost:#b}", golden.name);
                losses += 1;
            }
        }
        // Singles and pairs that the level survives; a degraded array has one loss behind it.
        let expected = match golden.name {
            "raid0" | "raid5-degraded" => 0,
            "raid1" => 2,
            "raid5" | "raid6-degraded" => 4,
            "raid5-nobitmap" => 3,
            "raid6" => 5 + 10,
            "raid10" => 4 + 4,
            other => panic!("{other}"),
        };
        assert_eq!(losses, expected, "{}", golden.name);
    }
}

#[test]
fn parity_and_copies_of_md_verify() {
    for golden in FOLDERS.map(load) {
        let geometry = golden.geometry();
        let columns = golden.columns(&golden.assemble(golden.members.iter()));
        let mut verified = 0;
        for stripe in (0..geometry.stripes()).map(Stripe) {
            let range = chunk_of(&geometry, stripe);
            if geometry.level().is_mirrored() {
                let chunk = |slot: u8| columns[usize::from(slot)].map(|column| &column[range.clone()]);
                for first in (0..geometry.members()).step_by(usize::from(geometry.copies())) {
                    let equal = (first..first + geometry.copies()).all(|slot| chunk(slot) == chunk(first));
                    assert!(equal && chunk(first).is_some(), "{} stripe {stripe}", golden.name);
                    verified += 1;
                }
            } else {
                let sums = sums(&geometry, &columns, stripe, &range);
                let complete = sums.lost_data.is_empty();
                for sum in [sums.p, sums.q].into_iter().flatten().filter(|_| complete) {
                    assert!(sum.iter().all(|&byte| byte == 0), "{} stripe {stripe}", golden.name);
                    verified += 1;
                }
            }
        }
        assert_eq!(verified > 0, geometry.level().is_redundant() && golden.name != "raid5-degraded");
    }
}

#[test]
fn the_stale_member_of_a_degraded_array_is_recognised_and_would_spoil_the_data() {
    for golden in ["raid5-degraded", "raid6-degraded"].map(load) {
        let newest = golden.members.iter().map(|member| member.superblock.events).max().unwrap();
        let is_stale = |&i: &usize| golden.members[i].superblock.events < newest;
        assert_eq!((0..golden.members.len()).filter(is_stale).collect::<Vec<_>>(), [1], "{}", golden.name);
        let slots = golden.assemble(golden.members.iter());
        assert!(slots[1].is_none() && slots.iter().flatten().count() == golden.members.len() - 1);
        // Its own superblock still claims its slot: only the fresher ones know better.
        let d1 = &golden.members[1];
        assert_eq!(d1.superblock.role(), MdRole::Active(Slot(1)));
        let mut wrong = slots.clone();
        wrong[1] = Some(d1);
        assert_ne!(golden.read(&golden.columns(&wrong)), golden.sha256, "{}", golden.name);
        // The bits that were set since it left cover what differs.
        let fresh = &golden.members[0];
        let header = BitmapHeader::decode(&fresh.bytes[8192..]).unwrap();
        assert!(header.events_cleared <= d1.superblock.events && header.events_cleared < newest);
        assert_eq!(Bits::decode(header.bits(), &fresh.bytes[8192..]).dirty(), 1);
    }
}

#[test]
fn ad_01_md_members_are_found_by_the_probe_and_shown_by_examine() {
    for golden in FOLDERS.map(load) {
        for member in &golden.members {
            let size = u64_of(member.bytes.len());
            let cut = |range: Range<u64>| &member.bytes[usize_of(range.start)..usize_of(range.end)];
            let parts: Vec<Vec<u8>> = needs(size).into_iter().map(|range| cut(range).to_vec()).collect();
            let found = probe(size, &parts);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].kind, found[0].offset), (Kind::Md12, 4096));
            assert_eq!(found[0].label, Some(format!("golden:{}", golden.name)));
            assert_eq!(found[0].uuid, Some(member.superblock.set_uuid.to_string()));
            let bitmap = wants(&member.superblock, size).bitmap.map_or(&[][..], cut);
            let text = examine(size, &member.bytes[4096..8192], bitmap, &[]).to_string();
            assert!(text.contains("owner : Linux md (claim bit clear)"), "{text}");
            assert!(text.contains(&format!("events : {}\n", member.superblock.events)), "{text}");
        }
    }
}

/// Names of the fields in which two superblocks differ.
macro_rules! differing {
    ($one:expr, $other:expr, $($field:ident),+ $(,)?) => {{
        // Without `..`: a new field of the superblock must be named here to compile.
        let Superblock { $($field: _),+ } = $one;
        let mut names: Vec<&str> = Vec::new();
        $(if $one.$field != $other.$field { names.push(stringify!($field)); })+
        names
    }};
}

fn differences(ours: &Superblock, md: &Superblock) -> Vec<&'static str> {
    differing!(
        ours,
        md,
        feature_map,
        set_uuid,
        set_name,
        ctime,
        level,
        layout,
        size,
        chunksize,
        raid_disks,
        bitmap_offset,
        new_level,
        reshape_position,
        delta_disks,
        new_layout,
        new_chunk,
        new_offset,
        data_offset,
        data_size,
        super_offset,
        recovery_offset,
        dev_number,
        cnt_corrected_read,
        device_uuid,
        devflags,
        bblog_shift,
        bblog_size,
        bblog_offset,
        utime,
        events,
        resync_offset,
        logical_block_size,
        dev_roles,
    )
}

/// The plan for the same level, chunk and drives, and md's identity.
fn ours_like(golden: &Golden) -> (Plan, NewGroup) {
    let md = &golden.members[0].superblock;
    let drive = |i| PlanDrive { name: format!("d{i}"), bytes: 8 << 20, block: BlockSize::B512 };
    let drives: Vec<PlanDrive> = (0..golden.members.len()).map(drive).collect();
    let chunk = (md.chunksize != 0).then_some(md.chunk_bytes());
    let plan = plan(golden.geometry().level(), chunk, &drives).unwrap();
    let new = NewGroup {
        group: md.set_uuid,
        set_name: md.set_name,
        devices: golden.members.iter().map(|member| member.superblock.device_uuid).collect(),
        created_unix_s: md.ctime,
        events: md.events,
        is_claimed: true,
        is_in_sync: false,
    };
    (plan, new)
}

/// The fields that docs/on-disk-format.md lists, from its own table.
fn documented_differences() -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/on-disk-format.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("## Where our superblock differs from mdadm's").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let field = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(field).collect()
}

#[test]
fn our_superblock_differs_from_mds_only_where_the_format_document_says() {
    let documented = documented_differences();
    let mut seen = std::collections::BTreeSet::new();
    for golden in FOLDERS.into_iter().filter(|name| !name.contains('-')).map(load) {
        let (plan, new) = ours_like(&golden);
        for (i, member) in (0u8..).zip(&golden.members) {
            for name in differences(&plan.superblock(&new, Slot(i)), &member.superblock) {
                assert!(documented.iter().any(|field| field == name), "{} d{i}: {name}", golden.name);
                seen.insert(name);
            }
        }
    }
    // The document lists nothing beyond that, except what 8 MiB drives do not show.
    let never: Vec<&String> = documented.iter().filter(|field| !seen.contains(field.as_str())).collect();
    assert_eq!(never, ["data_offset"]);
}
