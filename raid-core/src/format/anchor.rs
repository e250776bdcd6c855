//! The anchor: 512 bytes in the last sector of the superblock's 4 KiB slot, which md leaves alone.
//!
//! It says where the extension area lies, so that this need not be guessed, and by itself carries enough of the epoch
//! (chain, role and age of every slot) to know that a member is not the latest, also on an array without a hole for an
//! extension area. It is written together with the superblock, after the extension copy of the same epoch: so an anchor
//! is never newer than the newest copy that was written.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `WRANCHOR` |
//! | 8 | 4 | CRC32C of the sector with this field 0 |
//! | 12 | 4 | version, 1 |
//! | 16 | 16 | group uuid |
//! | 32 | 16 | device uuid of this member |
//! | 48 | 24 | epoch: counter, id |
//! | 72 | 16 | extension area: start, end (0, 0 = none) |
//! | 88 | 8 | md `events` |
//! | 96 | 8 | sequence of the extension copy written before it |
//! | 104 | 4 | marks, as in the extension |
//! | 108 | 2 | `dev_number` |
//! | 110 | 1 | number of slots |
//! | 111 | 1 | entries of the chain, 1 to 10 |
//! | 112 | 16 | zero |
//! | 128 | 128 | a byte per slot: bits 0-1 state (1 in sync, 2 rebuilding, 3 missing), bits 2-7 epochs since it was in sync, 63 = 63 or more |
//! | 256 | 240 | chain: the last 10 epochs, oldest first |
//! | 496 | 16 | zero |

use core::ops::Range;

use super::bytes::{array, put, u16_le, u32_le, u64_le};
use super::extension::{
    Extension, ExtensionError, Marks, SlotState, get_epoch, get_range, is_large_enough, put_epoch, put_range,
};
use super::superblock::SUPERBLOCK_SLOT_BYTES;
use crate::geometry::MEMBERS_MAX;
use crate::units::Uuid;
use crate::view::Epoch;

/// Bytes of an anchor.
pub const ANCHOR_BYTES: usize = 512;
/// Where it lies in the superblock's slot.
pub const ANCHOR_AT: usize = SUPERBLOCK_SLOT_BYTES - ANCHOR_BYTES;

const MAGIC: [u8; 8] = *b"WRANCHOR";
const VERSION: u32 = 1;
const CRC_AT: usize = 8;
const SLOTS_AT: usize = 128;
const CHAIN_AT: usize = 256;
const CHAIN_MAX: usize = 10;
const EPOCH_BYTES: usize = 24;
const AGE_MAX: u64 = 63;

const _: () = assert!(CHAIN_AT + CHAIN_MAX * EPOCH_BYTES == 496);
const _: () = assert!(ANCHOR_AT == 3584);

/// What an anchor says about one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnchorSlot {
    /// What its member is good for.
    pub state: SlotState,
    /// Epochs since the member was in sync, at most 63.
    pub age: u8,
}

/// An anchor, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The group.
    pub group: Uuid,
    /// The member it lies on.
    pub device_uuid: Uuid,
    /// Its `dev_number`.
    pub dev_number: u16,
    /// Where the extension area lies.
    pub extension: Option<Range<u64>>,
    /// md's `events`.
    pub events: u64,
    /// Sequence of the extension copy written before it.
    pub sequence: u64,
    /// Flags.
    pub marks: Marks,
    /// The last epochs, oldest first; the last one is this member's.
    pub chain: Vec<Epoch>,
    /// Every slot.
    pub slots: Vec<AnchorSlot>,
}

impl Anchor {
    /// The anchor that belongs to an extension copy.
    #[must_use]
    pub fn of(copy: &Extension) -> Self {
        let now = copy.epoch().counter;
        let age = |last: u64| u8::try_from(now.saturating_sub(last).min(AGE_MAX)).expect("at most 63");
        Self {
            group: copy.group,
            device_uuid: copy.device_uuid,
            dev_number: copy.dev_number,
            extension: copy.layout.extension.clone(),
            events: copy.events,
            sequence: copy.sequence,
            marks: copy.marks,
            chain: copy.chain[copy.chain.len().saturating_sub(CHAIN_MAX)..].to_vec(),
            slots: copy
                .slots
                .iter()
                .map(|slot| AnchorSlot { state: slot.state, age: age(slot.last_in_sync.counter) })
                .collect(),
        }
    }

    /// Whether these bytes begin like an anchor, sound or not.
    #[must_use]
    pub fn is_there(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The epoch this member knows.
    ///
    /// # Panics
    /// Never on a decoded anchor: its chain is not empty.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        *self.chain.last().expect("a chain has at least one epoch")
    }

    /// The sector's bytes with its checksum.
    ///
    /// # Panics
    /// If a list is longer than the format has room for.
    #[must_use]
    pub fn encode(&self) -> [u8; ANCHOR_BYTES] {
        assert!((1..=CHAIN_MAX).contains(&self.chain.len()), "a chain of {}", self.chain.len());
        assert!((1..=usize::from(MEMBERS_MAX)).contains(&self.slots.len()), "{} slots", self.slots.len());
        let byte = |n: usize| u8::try_from(n).expect("checked above");
        let mut bytes = [0; ANCHOR_BYTES];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 12, &VERSION.to_le_bytes());
        put(&mut bytes, 16, &self.group.0);
        put(&mut bytes, 32, &self.device_uuid.0);
        put_epoch(&mut bytes, 48, self.epoch());
        put_range(&mut bytes, 72, self.extension.as_ref().unwrap_or(&(0..0)));
        put(&mut bytes, 88, &self.events.to_le_bytes());
        put(&mut bytes, 96, &self.sequence.to_le_bytes());
        put(&mut bytes, 104, &self.marks.bits().to_le_bytes());
        put(&mut bytes, 108, &self.dev_number.to_le_bytes());
        put(&mut bytes, 110, &[byte(self.slots.len()), byte(self.chain.len())]);
        for (i, slot) in self.slots.iter().enumerate() {
            assert!(u64::from(slot.age) <= AGE_MAX, "age {}", slot.age);
            bytes[SLOTS_AT + i] = slot.state.number() | slot.age << 2;
        }
        for (i, epoch) in self.chain.iter().enumerate() {
            put_epoch(&mut bytes, CHAIN_AT + i * EPOCH_BYTES, *epoch);
        }
        let crc = crc32c::crc32c(&bytes);
        put(&mut bytes, CRC_AT, &crc.to_le_bytes());
        bytes
    }

    /// Reads an anchor from the last sector of a superblock's slot.
    ///
    /// # Errors
    /// [`ExtensionError`]; any bytes are taken without a panic.
    pub fn decode(bytes: &[u8]) -> Result<Self, ExtensionError> {
        if bytes.len() != ANCHOR_BYTES || bytes[..8] != MAGIC {
            return Err(ExtensionError::NoMagic);
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &[0; 4]);
        if crc32c::crc32c_append(crc, &bytes[CRC_AT + 4..]) != u32_le(bytes, CRC_AT) {
            return Err(ExtensionError::BadChecksum);
        }
        if u32_le(bytes, 12) != VERSION {
            return Err(ExtensionError::Version(u32_le(bytes, 12)));
        }
        let (slots, chain) = (usize::from(bytes[110]), usize::from(bytes[111]));
        if !(1..=usize::from(MEMBERS_MAX)).contains(&slots) {
            return Err(ExtensionError::Impossible("number of slots"));
        }
        if !(1..=CHAIN_MAX).contains(&chain) {
            return Err(ExtensionError::Impossible("chain length"));
        }
        let extension = Some(get_range(bytes, 72)).filter(|range| *range != (0..0));
        if extension.as_ref().is_some_and(|area| !is_large_enough(area)) {
            return Err(ExtensionError::Impossible("extension area"));
        }
        let slot = |byte: &u8| {
            let state = SlotState::from_number(byte & 3).ok_or(ExtensionError::Impossible("slot state"))?;
            Ok(AnchorSlot { state, age: byte >> 2 })
        };
        let anchor = Self {
            group: Uuid(array(bytes, 16)),
            device_uuid: Uuid(array(bytes, 32)),
            dev_number: u16_le(bytes, 108),
            extension,
            events: u64_le(bytes, 88),
            sequence: u64_le(bytes, 96),
            marks: Marks::from_bits(u32_le(bytes, 104)).ok_or(ExtensionError::Impossible("mark"))?,
            chain: (0..chain).map(|i| get_epoch(bytes, CHAIN_AT + i * EPOCH_BYTES)).collect(),
            slots: bytes[SLOTS_AT..SLOTS_AT + slots].iter().map(slot).collect::<Result<_, _>>()?,
        };
        let ascending = anchor.chain.windows(2).all(|pair| pair[0].counter < pair[1].counter);
        if !ascending || get_epoch(bytes, 48) != anchor.epoch() {
            return Err(ExtensionError::Impossible("epoch"));
        }
        Ok(anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::extension::sample;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(words in any::<[u64; 8]>(), chain in 1usize..=64, slots in 1u8..=128) {
            let anchor = Anchor::of(&sample(&words, chain, slots));
            prop_assert_eq!(anchor.epoch(), sample(&words, chain, slots).epoch());
            prop_assert_eq!(Anchor::decode(&anchor.encode()), Ok(anchor));
        }

        #[test]
        fn no_bytes_make_decode_panic(mut bytes in any::<[u8; ANCHOR_BYTES]>(), seal: bool) {
            if seal {
                put(&mut bytes, 0, &MAGIC);
                put(&mut bytes, CRC_AT, &[0; 4]);
                put(&mut bytes, 12, &VERSION.to_le_bytes());
                let crc = crc32c::crc32c(&bytes);
                put(&mut bytes, CRC_AT, &crc.to_le_bytes());
            }
            prop_assert!(Anchor::decode(&bytes).is_err());
        }

        #[test]
        fn a_flipped_bit_is_found(words in any::<[u64; 8]>(), bit in 0usize..ANCHOR_BYTES * 8) {
            let mut bytes = Anchor::of(&sample(&words, 10, 128)).encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Anchor::decode(&bytes).is_err());
        }
    }

    #[test]
    fn the_age_of_a_slot_saturates() {
        let mut copy = sample(&[7; 8], 64, 3);
        let now = 10_000;
        copy.chain = vec![Epoch { counter: now, id: Uuid::default() }];
        for (slot, last) in copy.slots.iter_mut().zip([now, now - 62, 1]) {
            slot.last_in_sync.counter = last;
        }
        let ages: Vec<u8> = Anchor::of(&copy).slots.iter().map(|slot| slot.age).collect();
        assert_eq!(ages, [0, 62, 63]);
        assert!(Anchor::decode(&Anchor::of(&copy).encode()).is_ok());
    }
}
