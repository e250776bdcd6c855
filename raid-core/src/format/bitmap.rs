//! md's write-intent bitmap, version 4: a 256-byte header, then one bit per chunk, little-endian from byte 256.
//!
//! A set bit says "members may differ here". What a bit covers is counted in member bytes on RAID 1, 5 and 6 but in
//! **array** bytes on RAID 10 ([`sync_bytes`], [`IntentMap`]). RAID 0 has no bitmap. When bits may be set and cleared is
//! SAFETY S4 and belongs to the engine; this file only knows where they are.
//!
//! Invariants: bits past the last chunk are never dirty, whatever is on the drive there (mdadm leaves them set); the
//! header and the bits of the first page share a page, so a writer keeps the whole page in memory.

use core::fmt;
use core::ops::Range;

use super::bytes::{array, put, u32_le, u64_le};
use crate::geometry::{Geometry, Level};
use crate::units::{Stripe, Uuid, u64_of, usize_of};

/// First bytes of every md bitmap.
pub const BITMAP_MAGIC: u32 = 0x6d74_6962;
/// The only version we read and write: 3 is host-endian, 5 clustered, 6 lockless.
pub const BITMAP_VERSION: u32 = 4;
/// Bytes before the first bit.
pub const HEADER_BYTES: usize = 256;
/// Bytes the bitmap area has on members we create.
pub const AREA_BYTES: u64 = 128 * 1024;
/// `state` bit: the bitmap is out of date.
pub const STATE_STALE: u32 = 2;
/// `state` bit: writing the bitmap failed.
pub const STATE_WRITE_ERROR: u32 = 4;
/// Seconds between md's lazy clearings, as mdadm sets it; md refuses 0.
pub const DAEMON_SLEEP_S: u32 = 5;

const CHUNK_BYTES_MIN: u64 = 1 << 20;
const CHUNK_BYTES_USUAL: u64 = 64 << 20;
const CHUNK_BYTES_MAX: u64 = 1 << 31;
/// Most bits we read (32 MiB of them): what a drive says must not make us allocate without bound.
const BITS_MAX: u64 = 1 << 28;
/// A group of less than this many usual chunks gets smaller ones, so that a crash of a small group resyncs little.
const BITS_WANTED: u64 = 4096;

/// Why bytes are no bitmap we can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitmapError {
    /// There is none.
    NoMagic,
    /// A version other than 4.
    Version(u32),
    /// A field md itself would refuse.
    Invalid(&'static str),
}

impl fmt::Display for BitmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("no md bitmap where the superblock says there is one"),
            Self::Version(version) => {
                write!(f, "md bitmap version {version}, only {BITMAP_VERSION} is supported")
            }
            Self::Invalid(what) => write!(f, "md bitmap header invalid: {what}"),
        }
    }
}

impl std::error::Error for BitmapError {}

/// The header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapHeader {
    /// The group's uuid.
    pub uuid: Uuid,
    /// Not below the superblock's `events`, or md takes the bitmap for out of date.
    pub events: u64,
    /// `events` when the group was last in sync everywhere (SAFETY S4).
    pub events_cleared: u64,
    /// What the bits cover, in sectors of 512 bytes.
    pub sync_size: u64,
    /// `STATE_*` bits.
    pub state: u32,
    /// Bytes per bit, a power of two from 512.
    pub chunk_bytes: u32,
    /// Seconds between md's lazy clearings.
    pub daemon_sleep_s: u32,
    /// md's write-behind limit.
    pub write_behind: u32,
    /// Sectors reserved for the bitmap, 0 = not recorded (mdadm 4.2 records none).
    pub sectors_reserved: u32,
    /// Nodes of a cluster, 0 otherwise.
    pub nodes: u32,
}

impl BitmapHeader {
    /// The header of a group we create.
    ///
    /// # Panics
    /// If `chunk_bytes` is none of [`choose_chunk_bytes`].
    #[must_use]
    pub fn new(uuid: Uuid, events: u64, sync_bytes: u64, chunk_bytes: u64) -> Self {
        Self {
            uuid,
            events,
            events_cleared: events,
            sync_size: sync_bytes / 512,
            state: 0,
            chunk_bytes: u32::try_from(chunk_bytes).expect("bitmap chunks are at most 2 GiB"),
            daemon_sleep_s: DAEMON_SLEEP_S,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
        }
    }

    /// Takes over what md's operator set, and the room that md reserved.
    pub fn keep_settings(&mut self, old: &Self) {
        self.daemon_sleep_s = old.daemon_sleep_s;
        self.write_behind = old.write_behind;
        self.sectors_reserved = old.sectors_reserved;
    }

    /// The header's 256 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 0, &BITMAP_MAGIC.to_le_bytes());
        put(&mut bytes, 4, &BITMAP_VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.uuid.0);
        put(&mut bytes, 24, &self.events.to_le_bytes());
        put(&mut bytes, 32, &self.events_cleared.to_le_bytes());
        put(&mut bytes, 40, &self.sync_size.to_le_bytes());
        put(&mut bytes, 48, &self.state.to_le_bytes());
        put(&mut bytes, 52, &self.chunk_bytes.to_le_bytes());
        put(&mut bytes, 56, &self.daemon_sleep_s.to_le_bytes());
        put(&mut bytes, 60, &self.write_behind.to_le_bytes());
        put(&mut bytes, 64, &self.sectors_reserved.to_le_bytes());
        put(&mut bytes, 68, &self.nodes.to_le_bytes());
        bytes
    }

    /// Reads a header from the first 256 bytes of a bitmap; checks what md checks.
    ///
    /// # Errors
    /// [`BitmapError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BitmapError> {
        if bytes.len() < HEADER_BYTES || u32_le(bytes, 0) != BITMAP_MAGIC {
            return Err(BitmapError::NoMagic);
        }
        if u32_le(bytes, 4) != BITMAP_VERSION {
            return Err(BitmapError::Version(u32_le(bytes, 4)));
        }
        let header = Self {
            uuid: Uuid(array(bytes, 8)),
            events: u64_le(bytes, 24),
            events_cleared: u64_le(bytes, 32),
            sync_size: u64_le(bytes, 40),
            state: u32_le(bytes, 48),
            chunk_bytes: u32_le(bytes, 52),
            daemon_sleep_s: u32_le(bytes, 56),
            write_behind: u32_le(bytes, 60),
            sectors_reserved: u32_le(bytes, 64),
            nodes: u32_le(bytes, 68),
        };
        if !header.chunk_bytes.is_power_of_two() || header.chunk_bytes < 512 {
            return Err(BitmapError::Invalid("chunk is not a power of two from 512 bytes"));
        }
        if header.daemon_sleep_s == 0 {
            return Err(BitmapError::Invalid("daemon sleep is 0"));
        }
        if header.nodes != 0 {
            return Err(BitmapError::Invalid("it belongs to a cluster"));
        }
        if header.bits() > BITS_MAX {
            return Err(BitmapError::Invalid("it covers more chunks than any group has"));
        }
        Ok(header)
    }

    /// Number of bits.
    #[must_use]
    pub fn bits(&self) -> u64 {
        // In sectors: a foreign sync_size can be anything, and bytes could overflow.
        self.sync_size.div_ceil(u64::from(self.chunk_bytes) / 512)
    }

    /// Bytes of header and bits together.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64_of(HEADER_BYTES) + self.bits().div_ceil(8)
    }

    /// Whether the bits can be believed for a group with these superblock values; what md itself asks.
    #[must_use]
    pub fn is_current(&self, set_uuid: Uuid, events: u64) -> bool {
        self.uuid == set_uuid && self.events >= events && self.state & STATE_STALE == 0
    }
}

/// The bits, bounded by the number of chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bits {
    bytes: Vec<u8>,
    count: u64,
}

impl Bits {
    /// `count` clear bits.
    #[must_use]
    pub fn clear(count: u64) -> Self {
        Self { bytes: vec![0; usize_of(count.div_ceil(8))], count }
    }

    /// `count` bits, all dirty: what a group is created with while its members have not been synced.
    #[must_use]
    pub fn all_dirty(count: u64) -> Self {
        let mut bits = Self { bytes: vec![0xff; usize_of(count.div_ceil(8))], count };
        bits.clip();
        bits
    }

    /// Reads `count` bits from a bitmap's bytes (header included). Bits that the slice is too short for are dirty: to
    /// resync too much is safe.
    #[must_use]
    pub fn decode(count: u64, bitmap: &[u8]) -> Self {
        let mut bits = Self::all_dirty(count);
        let on_drive = bitmap.get(HEADER_BYTES..).unwrap_or_default();
        for (bit, &read) in bits.bytes.iter_mut().zip(on_drive) {
            *bit = read;
        }
        bits.clip();
        bits
    }

    /// Clears what is past the last bit.
    fn clip(&mut self) {
        if let (Some(last), used @ 1..) = (self.bytes.last_mut(), self.count % 8) {
            *last &= (1 << used) - 1;
        }
    }

    /// Number of bits.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are no bits at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn check(&self, bit: u64) -> (usize, u8) {
        assert!(bit < self.count, "intent bit {bit} of {}", self.count);
        (usize_of(bit / 8), 1 << (bit % 8))
    }

    /// Whether a bit is dirty.
    ///
    /// # Panics
    /// If there is no such bit.
    #[must_use]
    pub fn is_dirty(&self, bit: u64) -> bool {
        let (byte, mask) = self.check(bit);
        self.bytes[byte] & mask != 0
    }

    /// Makes a bit dirty or clean.
    ///
    /// # Panics
    /// If there is no such bit.
    pub fn set(&mut self, bit: u64, dirty: bool) {
        let (byte, mask) = self.check(bit);
        if dirty {
            self.bytes[byte] |= mask;
        } else {
            self.bytes[byte] &= !mask;
        }
    }

    /// Makes dirty what is dirty in `other`: members disagree, the more careful one wins.
    ///
    /// # Panics
    /// If the two are not of one length.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.count, other.count, "bitmaps of two different groups");
        for (mine, theirs) in self.bytes.iter_mut().zip(&other.bytes) {
            *mine |= theirs;
        }
    }

    /// Number of dirty bits.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        self.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// The dirty bits, ascending.
    pub fn iter_dirty(&self) -> impl Iterator<Item = u64> + '_ {
        (0..).zip(&self.bytes).filter(|(_, byte)| **byte != 0).flat_map(|(at, &byte)| {
            (0..8u64).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| at * 8 + bit)
        })
    }

    /// The bits as they lie on disk from byte 256 of the bitmap on.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A whole bitmap area: header, bits, zeroes up to `area_bytes`.
///
/// # Panics
/// If the area is too small for the bits.
#[must_use]
pub fn encode_area(header: &BitmapHeader, bits: &Bits, area_bytes: u64) -> Vec<u8> {
    assert!(header.bits() == bits.len() && header.len_bytes() <= area_bytes, "bitmap does not fit its area");
    let mut area = vec![0; usize_of(area_bytes)];
    put(&mut area, 0, &header.encode());
    put(&mut area, HEADER_BYTES, bits.as_bytes());
    area
}

/// Bytes per bit for bits over `sync_bytes` in an area of `space_bytes`: 64 MiB as mdadm, less (down to 1 MiB, the
/// largest RAID chunk) on groups with fewer than 4096 of those, more where they would not fit.
///
/// # Panics
/// If the bits of the largest chunk md knows (2 GiB) do not fit: 2 PiB in the 128 KiB area.
#[must_use]
pub fn choose_chunk_bytes(sync_bytes: u64, space_bytes: u64) -> u64 {
    let room = space_bytes.saturating_sub(u64_of(HEADER_BYTES)) * 8;
    let wanted = (sync_bytes / BITS_WANTED).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_USUAL);
    // Round down to a power of two: more bits rather than fewer.
    let mut chunk = 1u64 << wanted.ilog2();
    while sync_bytes.div_ceil(chunk) > room {
        chunk *= 2;
        assert!(chunk <= CHUNK_BYTES_MAX, "no bitmap of {space_bytes} bytes covers {sync_bytes}");
    }
    chunk
}

/// What a group's bits cover, in bytes: a member's used bytes on RAID 1, 5 and 6, the array on RAID 10.
#[must_use]
pub fn sync_bytes(geometry: &Geometry) -> u64 {
    match geometry.level() {
        Level::Raid10 => geometry.capacity_bytes(),
        _ => geometry.member_bytes(),
    }
}

/// Which bits cover which stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntentMap {
    stripe_bytes: u64,
    stripes: u64,
    chunk_bytes: u64,
    sync_bytes: u64,
}

impl IntentMap {
    /// The map of a group with `chunk_bytes` per bit.
    ///
    /// # Panics
    /// If `chunk_bytes` is 0.
    #[must_use]
    pub fn new(geometry: &Geometry, chunk_bytes: u64) -> Self {
        assert!(chunk_bytes > 0, "intent chunks of 0 bytes");
        let stripe_bytes = match geometry.level() {
            Level::Raid10 => geometry.stripe_data_bytes(),
            _ => u64::from(geometry.chunk_bytes()),
        };
        Self { stripe_bytes, stripes: geometry.stripes(), chunk_bytes, sync_bytes: sync_bytes(geometry) }
    }

    /// Number of bits.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.sync_bytes.div_ceil(self.chunk_bytes)
    }

    /// The bits that a stripe touches.
    ///
    /// # Panics
    /// If the group has no such stripe.
    #[must_use]
    pub fn bits_of(&self, stripe: Stripe) -> Range<u64> {
        assert!(stripe.0 < self.stripes, "stripe {stripe} of {}", self.stripes);
        let start = stripe.0 * self.stripe_bytes;
        let end = (start + self.stripe_bytes).min(self.sync_bytes);
        start / self.chunk_bytes..end.div_ceil(self.chunk_bytes)
    }

    /// The stripes that a bit touches.
    ///
    /// # Panics
    /// If there is no such bit.
    #[must_use]
    pub fn stripes_of(&self, bit: u64) -> Range<u64> {
        assert!(bit < self.bits(), "intent bit {bit} of {}", self.bits());
        let start = bit * self.chunk_bytes;
        let end = (start + self.chunk_bytes).min(self.sync_bytes);
        start / self.stripe_bytes..end.div_ceil(self.stripe_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_decode_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), magic: bool) {
            if magic && bytes.len() >= 8 {
                put(&mut bytes, 0, &BITMAP_MAGIC.to_le_bytes());
                put(&mut bytes, 4, &BITMAP_VERSION.to_le_bytes());
            }
            if let Ok(header) = BitmapHeader::decode(&bytes) {
                prop_assert!(header.len_bytes() <= (BITS_MAX / 8) + 256);
                let again = BitmapHeader::decode(&header.encode());
                prop_assert_eq!(again, Ok(header));
            }
        }

        #[test]
        fn bits_round_trip_through_an_area(count in 1u64..5000, dirty in proptest::collection::vec(any::<u64>(), 0..50)) {
            let mut bits = Bits::clear(count);
            let mut model = std::collections::BTreeSet::new();
            for bit in dirty {
                bits.set(bit % count, true);
                model.insert(bit % count);
            }
            let header = BitmapHeader::new(Uuid([7; 16]), 3, count << 20, 1 << 20);
            let area = encode_area(&header, &bits, 4096);
            let header = BitmapHeader::decode(&area).unwrap();
            let read = Bits::decode(header.bits(), &area);
            prop_assert_eq!(read.iter_dirty().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(&read, &bits);
        }

        #[test]
        fn the_chosen_chunk_fits_and_md_accepts_it(sync in 1u64..1 << 50) {
            let chunk = choose_chunk_bytes(sync, AREA_BYTES);
            prop_assert!(chunk.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk));
            let header = BitmapHeader::new(Uuid::default(), 0, sync.next_multiple_of(512), chunk);
            prop_assert!(header.len_bytes() <= AREA_BYTES);
        }
    }

    #[test]
    fn chunks_of_some_sizes() {
        let chunk = |sync| choose_chunk_bytes(sync, AREA_BYTES);
        assert_eq!(chunk(5 << 20), 1 << 20);
        assert_eq!(chunk(16 << 30), 4 << 20);
        assert_eq!(chunk(1 << 40), 64 << 20);
        assert_eq!(chunk(60 << 40), 64 << 20);
        assert_eq!(chunk(64 << 40), 128 << 20, "64 MiB need one bit more than the area has");
    }

    #[test]
    fn every_stripe_is_covered_and_no_other() {
        for level in [Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10] {
            let chunk = if level == Level::Raid1 { 0 } else { 4096 };
            let geometry = Geometry::new(level, 6, chunk, (5 << 20) + 512).unwrap();
            for bit_bytes in [512, 4096, 65536, 1 << 20] {
                let map = IntentMap::new(&geometry, bit_bytes);
                for stripe in 0..geometry.stripes() {
                    for bit in 0..map.bits() {
                        let says_stripe = map.bits_of(Stripe(stripe)).contains(&bit);
                        assert_eq!(
                            says_stripe,
                            map.stripes_of(bit).contains(&stripe),
                            "{geometry:?} {bit_bytes}"
                        );
                    }
                    if stripe > 20 && bit_bytes < 65536 {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn a_short_read_is_dirty() {
        let bits = Bits::decode(20, &[0; HEADER_BYTES + 1]);
        assert_eq!(bits.iter_dirty().collect::<Vec<_>>(), (8..20).collect::<Vec<_>>());
        assert_eq!(Bits::decode(3, &[]).dirty(), 3);
    }

    #[test]
    fn merging_keeps_both_sides_intents() {
        let mut one = Bits::clear(16);
        one.set(3, true);
        let mut two = Bits::clear(16);
        two.set(9, true);
        one.merge(&two);
        assert_eq!(one.iter_dirty().collect::<Vec<_>>(), [3, 9]);
        one.set(3, false);
        assert!(!one.is_dirty(3) && one.is_dirty(9));
    }
}
