//! Looks at the members of a group from outside: do parity and copies on the drives agree with the data?
//!
//! Reads Linux md's superblock (version 1.2) and the whole data area of every member, and recomputes the redundancy of
//! each stripe from md's published layout, a byte-wise sum of g^i d_i over GF(2^8)/0x11d. Shares nothing with raid-core:
//! a mistake in its geometry or parity that is consistent with itself still shows here. The group must be quiet (no write
//! in flight), in sync, and complete.

use core::fmt;
use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const SUPER_AT: u64 = 4096;
const MAGIC: u32 = 0xa92b_4efc;
const SECTOR: u64 = 512;
/// RAID 1 has no chunk: it is compared in steps of this.
const MIRROR_STEP: u32 = 64 << 10;

/// What a member's superblock says of its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// RAID level: 0, 1, 5, 6 or 10.
    pub level: u32,
    /// Number of slots.
    pub members: usize,
    /// Chunk in bytes; 0 on RAID 1.
    pub chunk_bytes: u32,
    /// md's layout number.
    pub layout: u32,
    /// This member's slot; none for a spare or a failed one.
    pub slot: Option<usize>,
    /// First byte of data.
    pub data_at: u64,
    /// Bytes of data the group uses of this member.
    pub data_bytes: u64,
}

impl Place {
    /// Reads the superblock of the member in `drive`.
    pub fn read(drive: &File) -> io::Result<Self> {
        let mut block = [0; 4096];
        drive.read_exact_at(&mut block, SUPER_AT)?;
        let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
        if u32_at(0) != MAGIC || u32_at(4) != 1 {
            return Err(Error::new(ErrorKind::InvalidData, "no md superblock of version 1"));
        }
        let index = |n: u32| usize::try_from(n).expect("64-bit");
        let role_at = 256 + 2 * index(u32_at(160));
        let role = block.get(role_at..role_at + 2).map_or(0xffff, |b| u16::from_le_bytes([b[0], b[1]]));
        Ok(Self {
            level: u32_at(72),
            layout: u32_at(76),
            chunk_bytes: u32_at(88) * 512,
            members: index(u32_at(92)),
            slot: (role < 0xfff0).then(|| usize::from(role)),
            data_at: u64_at(128) * SECTOR,
            data_bytes: u64_at(80) * SECTOR,
        })
    }
}

/// A stripe whose redundancy does not fit its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Number of the stripe (chunk row).
    pub stripe: u64,
    /// What does not fit: `P`, `Q`, or `copy in slot 3`.
    pub what: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stripe {}: {} does not fit", self.stripe, self.what)
    }
}

/// What a check came to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Checked {
    /// Stripes compared.
    pub stripes: u64,
    /// Bytes read from all members.
    pub bytes: u64,
    /// What does not fit, in order.
    pub mismatches: Vec<Mismatch>,
}

/// Checks every stripe of the group whose members are in `drives` (all of them, in any order). `progress` is told the
/// share done, from 0 to 1000.
pub fn check<P: AsRef<Path>>(drives: &[P], mut progress: impl FnMut(u64)) -> io::Result<Checked> {
    let (place, members) = open(drives)?;
    let chunk_bytes = if place.level == 1 { MIRROR_STEP } else { place.chunk_bytes };
    let chunk_len = usize::try_from(chunk_bytes).expect("64-bit");
    let mut checked = Checked::default();
    let stripes = place.data_bytes.div_ceil(u64::from(chunk_bytes));
    let mut chunks = vec![vec![0; chunk_len]; place.members];
    for stripe in 0..stripes {
        let at = stripe * u64::from(chunk_bytes);
        let length = usize::try_from(place.data_bytes - at).map_or(chunk_len, |rest| rest.min(chunk_len));
        for ((drive, data_at), chunk) in members.iter().zip(&mut chunks) {
            chunk.resize(length, 0);
            drive.read_exact_at(chunk, data_at + at)?;
            checked.bytes += u64::try_from(length).expect("64-bit");
        }
        for what in misfits(&place, stripe, &chunks) {
            checked.mismatches.push(Mismatch { stripe, what });
        }
        checked.stripes += 1;
        if stripe % 64 == 0 {
            progress(stripe * 1000 / stripes);
        }
    }
    progress(1000);
    Ok(checked)
}

/// The members in slot order, each with the start of its data.
fn open<P: AsRef<Path>>(drives: &[P]) -> io::Result<(Place, Vec<(File, u64)>)> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidData, what);
    let mut found: Vec<(Place, File)> = Vec::new();
    for path in drives {
        let file = File::open(path)?;
        let place = Place::read(&file).map_err(|e| invalid(format!("{}: {e}", path.as_ref().display())))?;
        found.push((place, file));
    }
    let first = found.first().map(|(place, _)| *place).ok_or_else(|| invalid("no drives".to_owned()))?;
    let layout = match first.level {
        1 => 0,
        5 | 6 => 2,
        10 => 0x102,
        level => return Err(invalid(format!("RAID {level} has nothing to check"))),
    };
    if first.layout != layout || (first.level != 1 && first.chunk_bytes == 0) {
        return Err(invalid(format!("layout {:#x} is not checked", first.layout)));
    }
    let mut members = Vec::new();
    for slot in 0..first.members {
        let mut here = found.iter().filter(|(place, _)| place.slot == Some(slot));
        let (Some((place, file)), None) = (here.next(), here.next()) else {
            return Err(invalid(format!("not exactly one member for slot {slot}")));
        };
        if *place != (Place { slot: place.slot, data_at: place.data_at, ..first }) {
            return Err(invalid(format!("the superblock of slot {slot} is of another group")));
        }
        members.push((file.try_clone()?, place.data_at));
    }
    Ok((first, members))
}

fn misfits(place: &Place, stripe: u64, chunks: &[Vec<u8>]) -> Vec<String> {
    let n = place.members;
    let copy = |slot: usize, of: usize| (chunks[slot] != chunks[of]).then(|| format!("copy in slot {slot}"));
    match place.level {
        1 => (1..n).filter_map(|slot| copy(slot, 0)).collect(),
        10 => (0..n / 2).filter_map(|pair| copy(2 * pair + 1, 2 * pair)).collect(),
        5 => {
            let sum = horner(chunks.iter(), |word| word);
            if sum.iter().any(|word| *word != 0) { vec!["P".to_owned()] } else { Vec::new() }
        }
        _ => {
            // md's left-symmetric: P moves down one slot a stripe, Q is next to it, data begins after Q.
            let turn = usize::try_from(stripe % u64::try_from(n).expect("64-bit")).expect("small");
            let p = n - 1 - turn;
            let data = || (2..n).map(|i| &chunks[(p + i) % n]);
            let same = |sum: Vec<u64>, slot: usize| sum == words(&chunks[slot]).collect::<Vec<u64>>();
            let mut wrong = Vec::new();
            if !same(horner(data(), |word| word), p) {
                wrong.push("P".to_owned());
            }
            if !same(horner(data().rev(), double), (p + 1) % n) {
                wrong.push("Q".to_owned());
            }
            wrong
        }
    }
}

fn words(chunk: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, rest) = chunk.as_chunks::<8>();
    assert!(rest.is_empty(), "chunks are whole words");
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// ((d_last · x) + d_before) · x ... + d_0, where `step` is the multiplication by x.
fn horner<'a>(chunks: impl Iterator<Item = &'a Vec<u8>>, step: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut sum: Vec<u64> = Vec::new();
    for chunk in chunks {
        sum.resize(chunk.len() / 8, 0);
        for (total, word) in sum.iter_mut().zip(words(chunk)) {
            *total = step(*total) ^ word;
        }
    }
    sum
}

/// Eight bytes at once times g = 2 in GF(2^8) with polynomial 0x11d.
const fn double(word: u64) -> u64 {
    let high = word & 0x8080_8080_8080_8080;
    let carry = (high << 1).wrapping_sub(high >> 7);
    ((word << 1) & 0xfefe_fefe_fefe_fefe) ^ (carry & 0x1d1d_1d1d_1d1d_1d1d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_is_the_multiplication_by_two_of_every_byte() {
        for byte in 0..=255_u8 {
            let right = (byte << 1) ^ if byte & 0x80 == 0 { 0 } else { 0x1d };
            for place in 0..8 {
                let mut bytes = [0x80, 0x01, 0x7f, 0xff, 0, 0x81, 0x40, 0xc0];
                bytes[place] = byte;
                let doubled = double(u64::from_le_bytes(bytes)).to_le_bytes();
                assert_eq!(doubled[place], right, "{byte:#x} at {place}");
            }
        }
    }

    #[test]
    fn p_and_q_of_the_documented_example() {
        // k = 4 over 1, 2, 3, 4: P = 1^2^3^4, Q = 1 ^ 2·2 ^ 4·3 ^ 8·4.
        let chunks: Vec<Vec<u8>> = (1..=4_u8).map(|byte| vec![byte; 8]).collect();
        assert_eq!(horner(chunks.iter(), |word| word)[0].to_le_bytes()[0], 0x04);
        assert_eq!(horner(chunks.iter().rev(), double)[0].to_le_bytes()[0], 1 ^ 4 ^ 12 ^ 32);
    }
}
