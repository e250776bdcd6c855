//! Newtypes for every unit and index, so that a drive offset can never be used as a group offset.
//!
//! Invariant: all offsets and lengths are bytes unless the name says otherwise, and every conversion between integer
//! widths goes through the checked helpers at the bottom of this file (integer `as` is refused by the lints).

use core::fmt;

const _: () = assert!(usize::BITS == 64, "warpraid supports 64-bit machines only");

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit!(
    /// A byte offset from the start of a drive (a member device).
    DriveOffset(u64)
);
unit!(
    /// A byte offset from the start of a group's data (what the GPT inside the group is relative to).
    GroupOffset(u64)
);
unit!(
    /// A stripe's number: one chunk row over all members. For RAID 1 a row is [`crate::geometry::MIRROR_ROW_BYTES`].
    Stripe(u64)
);
unit!(
    /// A member's place in its group, from 0. Never an index of a drive list, never md's `dev_number`.
    Slot(u8)
);
unit!(
    /// Index of a data chunk inside its stripe, from 0; in RAID 5/6 the exponent of g in Q. Not a slot.
    DataIndex(u8)
);
unit!(
    /// A reactor thread. Lane 0 always exists.
    LaneId(u16)
);

impl DriveOffset {
    /// This offset moved up by `bytes`; panics on overflow, which would mean corrupt geometry.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("drive offset overflow"))
    }
}

impl GroupOffset {
    /// This offset moved up by `bytes`; panics on overflow, which would mean an unchecked request.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("group offset overflow"))
    }
}

impl Slot {
    /// The slot as an index into per-slot arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl DataIndex {
    /// The index as a position in per-column arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Logical block size of a drive or a group: the only two that exist in the field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes (4Kn).
    B4096,
}

impl BlockSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// The block size of `bytes` bytes, if it is one we support.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// A 128-bit identity as it lies on disk (big-endian byte order, md's own order).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// RFC 9562 form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Uuid {
    /// The 16 bytes made from two random words (RFC 9562 version 4, variant 1).
    #[must_use]
    pub fn from_random(high: u64, low: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Parses the form that `Display` prints, and md's `xxxxxxxx:xxxxxxxx:xxxxxxxx:xxxxxxxx`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut digits = 0;
        for c in text.chars().filter(|c| !matches!(c, '-' | ':')) {
            let digit = u8::try_from(c.to_digit(16)?).ok()?;
            if digits == 32 {
                return None;
            }
            bytes[digits / 2] = (bytes[digits / 2] << 4) | digit;
            digits += 1;
        }
        (digits == 32).then_some(Self(bytes))
    }
}

/// `u64` of a `usize`; cannot fail on the machines we support.
#[must_use]
pub const fn u64_of(n: usize) -> u64 {
    // The assertion at the top of this file makes this lossless.
    #[allow(clippy::as_conversions)]
    {
        n as u64
    }
}

/// `usize` of a `u64`; cannot fail on the machines we support.
#[must_use]
pub const fn usize_of(n: u64) -> usize {
    // The assertion at the top of this file makes this lossless.
    #[allow(clippy::as_conversions)]
    {
        n as usize
    }
}

/// `usize` of a `u32`; cannot fail on the machines we support.
#[must_use]
pub const fn usize_of_u32(n: u32) -> usize {
    // The assertion at the top of this file makes this lossless.
    #[allow(clippy::as_conversions)]
    {
        n as usize
    }
}

/// `u32` of a `u64` known to fit; panics where it does not, which would be a bug of the caller.
#[must_use]
pub fn u32_of(n: u64) -> u32 {
    u32::try_from(n).expect("length over 4 GiB where a piece was expected")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_prints_and_parses_both_forms() {
        let uuid = Uuid::from_random(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        assert_eq!(uuid.to_string(), "01234567-89ab-4def-bedc-ba9876543210");
        assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
        assert_eq!(Uuid::parse("01234567:89ab4def:bedcba98:76543210"), Some(uuid));
        assert_eq!(Uuid::parse("01234567"), None);
        assert_eq!(Uuid::parse("01234567-89ab-4def-bedc-ba98765432100"), None);
        assert_eq!(Uuid::parse("g1234567-89ab-4def-bedc-ba9876543210"), None);
    }
}
