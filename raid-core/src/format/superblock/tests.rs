//! Tests of the superblock alone; against md's own: `tests/tests/format_golden.rs`.

use super::*;
use proptest::prelude::*;

fn arbitrary() -> impl Strategy<Value = Superblock> {
    (any::<[u8; 224]>(), 1u32..=128, 0usize..200, any::<u64>()).prop_map(|(noise, disks, roles, seed)| {
        let mut bytes = vec![0; SUPERBLOCK_SLOT_BYTES];
        bytes[..224].copy_from_slice(&noise);
        let mut superblock = Superblock::decode_fields(&bytes, 0);
        superblock.raid_disks = disks;
        superblock.super_offset = 8;
        superblock.dev_number = u32::try_from(seed % 256).unwrap();
        let role = |i: u64| match (seed.rotate_left(u32::try_from(i % 64).unwrap())) % 5 {
            0 => ROLE_SPARE,
            1 => ROLE_FAULTY,
            2 => ROLE_JOURNAL,
            n => u16::try_from(n % u64::from(disks)).unwrap(),
        };
        superblock.dev_roles = (0..u64_of(roles)).map(role).collect();
        superblock
    })
}

fn slot(superblock: &Superblock) -> Vec<u8> {
    let mut bytes = superblock.encode();
    bytes.resize(SUPERBLOCK_SLOT_BYTES, 0);
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_read(superblock in arbitrary()) {
        prop_assert_eq!(Superblock::decode(&slot(&superblock)), Ok(superblock));
    }

    #[test]
    fn no_bytes_make_decode_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..5000), fix in 0u8..3) {
        if fix > 0 && bytes.len() >= 256 {
            put(&mut bytes, 0, &MD_MAGIC.to_le_bytes());
            put(&mut bytes, 4, &1u32.to_le_bytes());
        }
        if fix > 1 && bytes.len() >= SUPERBLOCK_SLOT_BYTES {
            // Sound in all but the meaning of the fields.
            put(&mut bytes, 12, &[0; 4]);
            put(&mut bytes, 220, &128u32.to_le_bytes());
            bytes[228..256].fill(0);
            let sum = checksum(&bytes[..512]);
            put(&mut bytes, CHECKSUM_AT, &sum.to_le_bytes());
        }
        let decoded = Superblock::decode(&bytes);
        prop_assert!(fix > 1 || decoded.is_err(), "noise has no sound checksum");
    }

    /// Sound checksum over noise: every accessor copes with whatever the fields say.
    #[test]
    fn no_fields_make_an_accessor_panic(superblock in arbitrary()) {
        let _ = (superblock.role(), superblock.name());
        if superblock.obstacle().is_none() {
            prop_assert!(superblock.member_bytes() <= 1 << 56);
        }
        let _ = (superblock.bad_blocks_range(), superblock.bitmap_start());
        let _ = (superblock.member_bytes(), superblock.chunk_bytes());
    }

    #[test]
    fn a_flipped_bit_is_found(superblock in arbitrary(), bit in 0usize..256 * 8) {
        let mut bytes = slot(&superblock);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::decode(&bytes) != Ok(superblock));
        prop_assert!(Superblock::decode(&bytes).is_err());
    }

    /// Only superblocks of more than a sector can tear: half of one and half of another never pass as either.
    #[test]
    fn a_torn_superblock_is_found(old in arbitrary(), events in any::<u64>()) {
        let mut new = old.clone();
        new.events = events;
        new.dev_roles.resize(200, ROLE_SPARE);
        let mut old = old;
        old.dev_roles.resize(200, ROLE_FAULTY);
        let (old_bytes, new_bytes) = (slot(&old), slot(&new));
        let torn = [&new_bytes[..512], &old_bytes[512..]].concat();
        prop_assert!(Superblock::decode(&torn).is_err());
    }
}

#[test]
fn the_name_loses_its_host() {
    let mut superblock = Superblock::decode_fields(&[0; SUPERBLOCK_SLOT_BYTES], 128);
    superblock.set_name = set_name("storage1", "tank");
    assert_eq!(superblock.name(), "tank");
    superblock.set_name = set_name("", "tank");
    assert_eq!(superblock.name(), "tank");
    superblock.set_name = set_name("a-host-with-a-long-name", "a-group-with-a-long-name");
    assert_eq!(superblock.name(), "a-group-with-a-long-name");
}

#[test]
fn obstacles_name_what_is_in_the_way() {
    let mut sound = Superblock::decode_fields(&[0; SUPERBLOCK_SLOT_BYTES], ROLES_ON_CREATE);
    (sound.level, sound.layout, sound.raid_disks, sound.chunksize) = (5, LAYOUT_LEFT_SYMMETRIC, 4, 128);
    (sound.data_offset, sound.data_size, sound.size) = (2048, 10_240, 10_240);
    assert_eq!(sound.obstacle(), None);
    let with = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = sound.clone();
        change(&mut superblock);
        superblock.obstacle().unwrap()
    };
    assert!(with(&|sb| sb.feature_map = FEATURE_RESHAPE).contains("reshape"));
    assert!(with(&|sb| sb.feature_map = FEATURE_PPL).contains("partial parity log"));
    assert!(with(&|sb| sb.feature_map = FEATURE_JOURNAL).contains("journal"));
    assert!(with(&|sb| sb.feature_map = FEATURE_CLUSTERED).contains("clustered"));
    assert!(with(&|sb| sb.feature_map = FEATURE_REPLACEMENT).contains("replacement"));
    assert!(with(&|sb| sb.feature_map = 1 << 20).contains("0x100000"));
    assert!(with(&|sb| sb.level = -1).contains("level -1"));
    assert!(with(&|sb| sb.layout = 18).contains("0x12"));
    assert!(with(&|sb| sb.size = sb.data_size + 1).contains("impossible"));
    assert!(with(&|sb| sb.data_size = u64::MAX).contains("impossible"));
    assert!(with(&|sb| sb.data_offset = u64::MAX).contains("impossible"));
    assert!(with(&|sb| sb.chunksize = 96).contains("chunk 49152"));
    assert!(with(&|sb| sb.raid_disks = 2).contains("2 slots"));
    let odd_pairs = |sb: &mut Superblock| (sb.level, sb.layout, sb.raid_disks) = (10, LAYOUT_NEAR_2, 3);
    assert!(with(&odd_pairs).contains("3 slots"));
}

#[test]
fn created_superblocks_are_one_sector() {
    let superblock = Superblock::decode_fields(&[0; SUPERBLOCK_SLOT_BYTES], ROLES_ON_CREATE);
    assert_eq!(superblock.encode().len(), 512);
}
