//! Fixed-width integers at fixed places of a byte slice: what every codec of this folder is made of.
//!
//! Reading past the end is a bug of the caller (codecs check their slice's length once, first), so it panics.

/// The `N` bytes at `at`.
#[must_use]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

/// Little-endian `u16` at `at`.
#[must_use]
pub fn u16_le(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// Little-endian `u32` at `at`.
#[must_use]
pub fn u32_le(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// Little-endian `i32` at `at`.
#[must_use]
pub fn i32_le(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(array(bytes, at))
}

/// Little-endian `u64` at `at`.
#[must_use]
pub fn u64_le(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Big-endian `u32` at `at`.
#[must_use]
pub fn u32_be(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// Writes `value` at `at`.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The text before the first NUL, with anything that is not printable ASCII shown as `?`: labels of foreign
/// signatures come from drives nobody vouches for and end on terminals.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    bytes[..end].iter().map(printable).collect::<String>().trim_end().to_owned()
}

/// `n` rounded down to a multiple of `unit`.
#[must_use]
pub const fn round_down(n: u64, unit: u64) -> u64 {
    n / unit * unit
}

/// `n` rounded up to a multiple of `unit`; panics on overflow, which no drive is large enough for.
#[must_use]
pub const fn round_up(n: u64, unit: u64) -> u64 {
    n.div_ceil(unit) * unit
}
