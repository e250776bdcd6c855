//! Levels and the place of every byte, exactly as Linux md lays data out (kernel `drivers/md/raid{0,1,5,10}.c`):
//! RAID 0 one zone, RAID 1 plain copies, RAID 5 and 6 left-symmetric (layout 2), RAID 10 near-2 (0x102).
//!
//! A **stripe** is one chunk row over all members; a **piece** is the part of a request inside one chunk and one column
//! window of [`LEASE_BYTES_MAX`] bytes, and always travels in one lease. Pure arithmetic, no state.

use core::fmt;

use crate::lease::LEASE_BYTES_MAX;
use crate::units::{DataIndex, GroupOffset, Slot, Stripe, u32_of, u64_of};

/// Row height of RAID 1, where md has no chunk: what locks and intent ranges count in.
pub const MIRROR_ROW_BYTES: u32 = LEASE_BYTES_MAX;
/// Most members of a group (md's own limit at create is 128 roles in one superblock sector).
pub const MEMBERS_MAX: u8 = 128;

/// RAID level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Striping.
    Raid0,
    /// Mirrors, any number of copies.
    Raid1,
    /// One rotating parity.
    Raid5,
    /// Two rotating parities.
    Raid6,
    /// Striped pairs (near-2, even number of members).
    Raid10,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 5] = [Self::Raid0, Self::Raid1, Self::Raid5, Self::Raid6, Self::Raid10];

    /// md's number of the level.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Raid0 => 0,
            Self::Raid1 => 1,
            Self::Raid5 => 5,
            Self::Raid6 => 6,
            Self::Raid10 => 10,
        }
    }

    /// The level of md's number.
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Raid0),
            1 => Some(Self::Raid1),
            5 => Some(Self::Raid5),
            6 => Some(Self::Raid6),
            10 => Some(Self::Raid10),
            _ => None,
        }
    }

    /// Fewest members.
    #[must_use]
    pub const fn members_min(self) -> u8 {
        match self {
            Self::Raid0 | Self::Raid1 => 2,
            Self::Raid5 => 3,
            Self::Raid6 | Self::Raid10 => 4,
        }
    }

    /// Parity blocks per stripe.
    #[must_use]
    pub const fn parities(self) -> u8 {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            _ => 0,
        }
    }

    /// Whether members hold copies (RAID 1 and 10).
    #[must_use]
    pub const fn is_mirrored(self) -> bool {
        matches!(self, Self::Raid1 | Self::Raid10)
    }

    /// Whether the level can lose any member at all.
    #[must_use]
    pub const fn is_redundant(self) -> bool {
        !matches!(self, Self::Raid0)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RAID {}", self.number())
    }
}

/// Why a combination of level, members, chunk and size is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// Too few or too many members, or an odd number for RAID 10.
    Members,
    /// Chunk not a power of two from one block to 1 MiB, or not 0 for RAID 1.
    Chunk,
    /// The members are smaller than one chunk.
    TooSmall,
}

/// Where one group byte lies: the data block (index and column) of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Stripe number.
    pub stripe: Stripe,
    /// Which data block of the stripe.
    pub index: DataIndex,
    /// Byte offset inside the chunk.
    pub column: u32,
}

/// The slots that hold the parity of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ParitySlots {
    /// P, on RAID 5 and 6.
    pub p: Option<Slot>,
    /// Q, on RAID 6.
    pub q: Option<Slot>,
}

/// What a member's chunk holds in one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The data block of this index (on mirrored levels: a copy of it).
    Data(DataIndex),
    /// P.
    P,
    /// Q.
    Q,
}

/// The shape of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    level: Level,
    members: u8,
    chunk_bytes: u32,
    member_bytes: u64,
}

impl Geometry {
    /// The shape of a group whose members each give `member_bytes` of data area. `chunk_bytes` is 0 for RAID 1, else a
    /// power of two from 512 bytes to 1 MiB; `member_bytes` is rounded down to whole chunks (RAID 1: to 512 bytes).
    ///
    /// # Errors
    /// [`GeometryError`] when the combination is impossible.
    pub fn new(
        level: Level,
        members: u8,
        chunk_bytes: u32,
        member_bytes: u64,
    ) -> Result<Self, GeometryError> {
        let odd_pairs = level == Level::Raid10 && members % 2 == 1;
        if members < level.members_min() || members > MEMBERS_MAX || odd_pairs {
            return Err(GeometryError::Members);
        }
        let (row, unit) = match level {
            Level::Raid1 if chunk_bytes == 0 => (MIRROR_ROW_BYTES, 512),
            Level::Raid1 => return Err(GeometryError::Chunk),
            _ => (chunk_bytes, u64::from(chunk_bytes)),
        };
        if !row.is_power_of_two() || !(512..=1024 * 1024).contains(&row) {
            return Err(GeometryError::Chunk);
        }
        let member_bytes = member_bytes / unit * unit;
        if member_bytes == 0 {
            return Err(GeometryError::TooSmall);
        }
        Ok(Self { level, members, chunk_bytes: row, member_bytes })
    }

    /// The level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Number of slots.
    #[must_use]
    pub const fn members(&self) -> u8 {
        self.members
    }

    /// Height of a stripe on one member: the chunk, or [`MIRROR_ROW_BYTES`] on RAID 1.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Bytes of each member's data area that the group uses.
    #[must_use]
    pub const fn member_bytes(&self) -> u64 {
        self.member_bytes
    }

    /// Data blocks per stripe: n, 1, n-1, n-2, n/2.
    #[must_use]
    pub const fn data_columns(&self) -> u8 {
        match self.level {
            Level::Raid0 => self.members,
            Level::Raid1 => 1,
            Level::Raid5 => self.members - 1,
            Level::Raid6 => self.members - 2,
            Level::Raid10 => self.members / 2,
        }
    }

    /// Data bytes of a full stripe.
    #[must_use]
    pub fn stripe_data_bytes(&self) -> u64 {
        u64::from(self.chunk_bytes) * u64::from(self.data_columns())
    }

    /// Number of stripes; on RAID 1 the last one may be short.
    #[must_use]
    pub fn stripes(&self) -> u64 {
        self.member_bytes.div_ceil(u64::from(self.chunk_bytes))
    }

    /// Size of the group's data in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.member_bytes * u64::from(self.data_columns())
    }

    /// Height of this stripe: the chunk, except for a short last row of RAID 1.
    #[must_use]
    pub fn stripe_height(&self, stripe: Stripe) -> u32 {
        let start = self.member_offset(stripe, 0);
        u32_of((self.member_bytes - start).min(u64::from(self.chunk_bytes)))
    }

    /// The place of a group offset.
    #[must_use]
    pub fn place(&self, at: GroupOffset) -> Place {
        let chunk = u64::from(self.chunk_bytes);
        let columns = u64::from(self.data_columns());
        let number = at.0 / chunk;
        let index = u8::try_from(number % columns).expect("data columns fit a byte");
        Place { stripe: Stripe(number / columns), index: DataIndex(index), column: u32_of(at.0 % chunk) }
    }

    /// The group offset of a place: the inverse of [`Self::place`].
    #[must_use]
    pub fn group_offset(&self, place: Place) -> GroupOffset {
        let number = place.stripe.0 * u64::from(self.data_columns()) + u64::from(place.index.0);
        GroupOffset(number * u64::from(self.chunk_bytes) + u64::from(place.column))
    }

    /// Byte offset of a stripe's column inside a member's data area (add the member's own data offset).
    #[must_use]
    pub fn member_offset(&self, stripe: Stripe, column: u32) -> u64 {
        stripe.0 * u64::from(self.chunk_bytes) + u64::from(column)
    }

    /// The slots of P and Q of a stripe (left-symmetric: P walks down from the last slot, Q follows it).
    #[must_use]
    pub fn parity_slots(&self, stripe: Stripe) -> ParitySlots {
        let n = u64::from(self.members);
        let slot = |i: u64| Some(Slot(u8::try_from(i % n).expect("slots fit a byte")));
        let p = n - 1 - stripe.0 % n;
        match self.level {
            Level::Raid5 => ParitySlots { p: slot(p), q: None },
            Level::Raid6 => ParitySlots { p: slot(p), q: slot(p + 1) },
            _ => ParitySlots::default(),
        }
    }

    /// The slot of a data block; on mirrored levels its first copy (the others follow directly: see [`Self::copies`]).
    #[must_use]
    pub fn data_slot(&self, stripe: Stripe, index: DataIndex) -> Slot {
        let n = u64::from(self.members);
        let i = u64::from(index.0);
        let slot = match self.level {
            Level::Raid0 => i,
            Level::Raid1 => 0,
            Level::Raid10 => 2 * i,
            // Data starts right after the last parity of the row and wraps around.
            Level::Raid5 => (n - 1 - stripe.0 % n + 1 + i) % n,
            Level::Raid6 => (n - 1 - stripe.0 % n + 2 + i) % n,
        };
        Slot(u8::try_from(slot).expect("slots fit a byte"))
    }

    /// Copies of each data block: members on RAID 1, 2 on RAID 10, else 1. They lie in consecutive slots.
    #[must_use]
    pub const fn copies(&self) -> u8 {
        match self.level {
            Level::Raid1 => self.members,
            Level::Raid10 => 2,
            _ => 1,
        }
    }

    /// What a slot holds in a stripe: the inverse of [`Self::data_slot`] and [`Self::parity_slots`].
    #[must_use]
    pub fn role(&self, stripe: Stripe, slot: Slot) -> Role {
        let n = u64::from(self.members);
        let s = u64::from(slot.0);
        let parities = u64::from(self.level.parities());
        let index = match self.level {
            Level::Raid0 => s,
            Level::Raid1 => 0,
            Level::Raid10 => s / 2,
            Level::Raid5 | Level::Raid6 => {
                let after_p = (s + n - (n - 1 - stripe.0 % n)) % n;
                match after_p {
                    0 => return Role::P,
                    1 if parities == 2 => return Role::Q,
                    _ => after_p - parities,
                }
            }
        };
        Role::Data(DataIndex(u8::try_from(index).expect("data columns fit a byte")))
    }

    /// The lease sizes for a request: one piece per chunk and column window, in order. A request's buffers must be cut
    /// exactly so.
    pub fn pieces(&self, at: GroupOffset, len: u64) -> impl Iterator<Item = u32> + use<> {
        let window = u64::from(self.chunk_bytes.min(LEASE_BYTES_MAX));
        let end = at.0 + len;
        let mut next = at.0;
        core::iter::from_fn(move || {
            (next < end).then(|| {
                let piece_end = (next / window * window + window).min(end);
                let piece = u32_of(piece_end - next);
                next = piece_end;
                piece
            })
        })
    }

    /// The slots of which the group can lose none more, given which are usable now: true if every block is readable.
    #[must_use]
    pub fn is_readable(&self, usable: impl Fn(Slot) -> bool) -> bool {
        let lost = |range: core::ops::Range<u8>| range.filter(|&slot| !usable(Slot(slot))).count();
        match self.level {
            Level::Raid0 => lost(0..self.members) == 0,
            Level::Raid1 => lost(0..self.members) < usize::from(self.members),
            Level::Raid5 | Level::Raid6 => u64_of(lost(0..self.members)) <= u64::from(self.level.parities()),
            Level::Raid10 => (0..self.members).step_by(2).all(|first| lost(first..first + 2) < 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = Geometry> {
        Level::ALL.into_iter().flat_map(|level| {
            (level.members_min()..=10).filter_map(move |members| {
                let chunk = if level == Level::Raid1 { 0 } else { 2048 };
                Geometry::new(level, members, chunk, 40 * 2048 + 512).ok()
            })
        })
    }

    #[test]
    fn every_offset_has_one_place_and_every_chunk_one_role() {
        for geometry in shapes() {
            let mut seen = std::collections::BTreeSet::new();
            for at in (0..geometry.capacity_bytes()).step_by(512) {
                let place = geometry.place(GroupOffset(at));
                assert_eq!(geometry.group_offset(place), GroupOffset(at), "{geometry:?}");
                let first = geometry.data_slot(place.stripe, place.index);
                for copy in 0..geometry.copies() {
                    let slot = Slot(first.0 + copy);
                    assert_eq!(geometry.role(place.stripe, slot), Role::Data(place.index), "{geometry:?}");
                    let offset = geometry.member_offset(place.stripe, place.column);
                    assert!(offset < geometry.member_bytes());
                    assert!(seen.insert((slot, offset)), "two group blocks on one member block");
                }
            }
            for stripe in (0..geometry.stripes()).map(Stripe) {
                let parity = geometry.parity_slots(stripe);
                assert!(parity.p.is_none_or(|slot| geometry.role(stripe, slot) == Role::P));
                assert!(parity.q.is_none_or(|slot| geometry.role(stripe, slot) == Role::Q));
            }
        }
    }

    #[test]
    fn left_symmetric_as_in_the_md_manual() {
        let g = Geometry::new(Level::Raid5, 4, 4096, 1 << 20).unwrap();
        let row = |s| [0, 1, 2, 3].map(|slot| g.role(Stripe(s), Slot(slot)));
        let d = |i| Role::Data(DataIndex(i));
        assert_eq!(row(0), [d(0), d(1), d(2), Role::P]);
        assert_eq!(row(1), [d(1), d(2), Role::P, d(0)]);
        assert_eq!(row(3), [Role::P, d(0), d(1), d(2)]);
        let g = Geometry::new(Level::Raid6, 4, 4096, 1 << 20).unwrap();
        let row = |s| [0, 1, 2, 3].map(|slot| g.role(Stripe(s), Slot(slot)));
        assert_eq!(row(0), [Role::Q, d(0), d(1), Role::P]);
        assert_eq!(row(1), [d(0), d(1), Role::P, Role::Q]);
    }

    #[test]
    fn pieces_cover_the_request_and_stay_inside_a_window() {
        let g = Geometry::new(Level::Raid5, 4, 256 * 1024, 1 << 30).unwrap();
        let pieces: Vec<u32> = g.pieces(GroupOffset(60 * 1024), 200 * 1024).collect();
        assert_eq!(pieces, [4096, 65536, 65536, 65536, 4096]);
        let g = Geometry::new(Level::Raid5, 3, 2048, 1 << 20).unwrap();
        assert_eq!(g.pieces(GroupOffset(512), 4096).collect::<Vec<_>>(), [1536, 2048, 512]);
        assert_eq!(g.pieces(GroupOffset(512), 0).count(), 0);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(Geometry::new(Level::Raid10, 5, 4096, 1 << 20), Err(GeometryError::Members));
        assert_eq!(Geometry::new(Level::Raid6, 3, 4096, 1 << 20), Err(GeometryError::Members));
        assert_eq!(Geometry::new(Level::Raid1, 2, 4096, 1 << 20), Err(GeometryError::Chunk));
        assert_eq!(Geometry::new(Level::Raid0, 2, 3000, 1 << 20), Err(GeometryError::Chunk));
        assert_eq!(Geometry::new(Level::Raid0, 2, 65536, 4096), Err(GeometryError::TooSmall));
    }

    #[test]
    fn readable_is_exactly_the_levels_tolerance() {
        let g = Geometry::new(Level::Raid10, 4, 4096, 1 << 20).unwrap();
        assert!(g.is_readable(|slot| slot.0 != 0 && slot.0 != 3));
        assert!(!g.is_readable(|slot| slot.0 > 1));
        let g = Geometry::new(Level::Raid6, 5, 4096, 1 << 20).unwrap();
        assert!(g.is_readable(|slot| slot.0 > 1));
        assert!(!g.is_readable(|slot| slot.0 > 2));
    }
}
