//! GF(2^8) as RAID 6 uses it: polynomials over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), generator g = 2 (after
//! H. P. Anvin, "The mathematics of RAID-6", 2004). Addition is XOR.
//!
//! Invariants: the tables are computed at compile time from [`double`] alone, so there is one place where the polynomial
//! is written down; g generates all 255 non-zero elements, so `power(i)` differs for every data index below 255.

use crate::units::{u64_of, usize_of};

/// The polynomial without its x^8 term: what a bit shifted out of a byte comes back as.
pub const POLYNOMIAL_LOW: u8 = 0x1d;

/// Most data columns of one job. Beyond it the exponents of g would start to repeat (at 255), and two data blocks could
/// not be told apart; md's own limit is far lower.
pub const DATA_COLUMNS_MAX: usize = 253;

/// The product of `a` and g.
#[must_use]
pub const fn double(a: u8) -> u8 {
    let carry = if a & 0x80 == 0 { 0 } else { POLYNOMIAL_LOW };
    (a << 1) ^ carry
}

/// The product of `a` and `b`, by shift and add: slow and obviously right.
#[must_use]
pub const fn mul(a: u8, b: u8) -> u8 {
    let mut sum = 0;
    let mut shifted = a;
    let mut bits = b;
    while bits != 0 {
        if bits & 1 != 0 {
            sum ^= shifted;
        }
        shifted = double(shifted);
        bits >>= 1;
    }
    sum
}

/// g^i for i below 255.
const EXP: [u8; 255] = exp_table();
/// The i with g^i = a, for every a but 0 (whose entry is unused).
const LOG: [u8; 256] = log_table();
/// Products of every constant with every low nibble (first 16 bytes) and every high nibble (last 16 bytes): the two
/// shuffle tables of a constant multiply.
static NIBBLES: [[u8; 32]; 256] = nibble_tables();
/// The multiplication by every constant as a matrix over GF(2), as GFNI takes it.
static MATRICES: [u64; 256] = matrices();

const fn exp_table() -> [u8; 255] {
    let mut table = [0; 255];
    let mut power = 1;
    let mut i = 0;
    while i < 255 {
        table[i] = power;
        power = double(power);
        i += 1;
    }
    table
}

// `From` is not const yet; every cast below is of a value shown to fit by the loop bound beside it.
#[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
const fn log_table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

#[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
const fn nibble_tables() -> [[u8; 32]; 256] {
    let mut tables = [[0; 32]; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            tables[constant][nibble] = mul(constant as u8, nibble as u8);
            tables[constant][16 + nibble] = mul(constant as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        constant += 1;
    }
    tables
}

#[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
const fn matrices() -> [u64; 256] {
    let mut all = [0; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut bit_in = 0;
        while bit_in < 8 {
            // Column `bit_in` of the matrix is the product of the constant and that bit.
            let column = mul(constant as u8, 1 << bit_in);
            let mut bit_out = 0;
            while bit_out < 8 {
                let is_set = (column >> bit_out & 1) as u64;
                all[constant] |= is_set << (8 * (7 - bit_out) + bit_in);
                bit_out += 1;
            }
            bit_in += 1;
        }
        constant += 1;
    }
    all
}

/// g to the power `exponent`.
#[must_use]
pub fn power(exponent: usize) -> u8 {
    EXP[exponent % 255]
}

/// The inverse of `a`.
///
/// # Panics
/// If `a` is 0, which has none.
#[must_use]
pub fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse in GF(2^8)");
    power(255 - usize::from(LOG[usize::from(a)]))
}

/// The exponent i below 255 with `g^i * a = b`; `None` if either is 0.
#[must_use]
pub fn ratio_log(b: u8, a: u8) -> Option<usize> {
    let log = |x: u8| (x != 0).then(|| u64::from(LOG[usize::from(x)]));
    let difference = log(b)? + 255 - log(a)?;
    Some(usize_of(difference % u64_of(EXP.len())))
}

/// The shuffle tables of a constant: products of the 16 low nibbles, then of the 16 high nibbles.
#[must_use]
pub fn nibbles(constant: u8) -> &'static [u8; 32] {
    &NIBBLES[usize::from(constant)]
}

/// The constant as the 8x8 bit matrix of the instruction `gf2p8affineqb`: the row of output bit i is byte 7 - i, its bit j
/// says whether input bit j counts. (The multiplication of the same extension, `gf2p8mulb`, has another polynomial.)
#[must_use]
pub fn matrix(constant: u8) -> u64 {
    MATRICES[usize::from(constant)]
}

/// What recovers data block x, with y lost too, from their sums: with `dp = d_x + d_y` and `dq = g^x d_x + g^y d_y`, the
/// pair (a, b) with `d_x = a dp + b dq` (Anvin 2004, section 4).
///
/// # Panics
/// If x and y are the same or not both data indices.
#[must_use]
pub fn two_data_constants(x: usize, y: usize) -> (u8, u8) {
    assert!(x != y && x.max(y) < DATA_COLUMNS_MAX, "data indices {x} and {y} are not two of a stripe");
    let distance = power(255 + y - x);
    let divisor = inverse(distance ^ 1);
    (mul(distance, divisor), mul(inverse(power(x)), divisor))
}

#[cfg(test)]
mod tests {
    use reed_solomon_erasure::galois_8;

    use super::*;

    /// What `gf2p8affineqb` does to a byte, as Intel's manual has it.
    fn affine(matrix: u64, byte: u8) -> u8 {
        let bit = |i: usize| u32::from(matrix.to_le_bytes()[7 - i] & byte).count_ones() % 2;
        (0..8).map(|i| u8::try_from(bit(i)).unwrap() << i).sum()
    }

    #[test]
    fn arithmetic_is_that_of_an_independent_library() {
        for a in 0..=u8::MAX {
            assert_eq!(double(a), galois_8::mul(a, 2));
            for b in 0..=u8::MAX {
                assert_eq!(mul(a, b), galois_8::mul(a, b), "{a} * {b}");
                let tables = nibbles(a);
                let shuffled = tables[usize::from(b & 15)] ^ tables[16 + usize::from(b >> 4)];
                assert_eq!(shuffled, galois_8::mul(a, b), "nibbles of {a} * {b}");
                assert_eq!(affine(matrix(a), b), galois_8::mul(a, b), "matrix of {a} * {b}");
                if a != 0 && b != 0 {
                    let i = ratio_log(b, a).unwrap();
                    assert!(i < 255);
                    assert_eq!(galois_8::mul(galois_8::exp(2, i), a), b);
                }
            }
            if a != 0 {
                assert_eq!(inverse(a), galois_8::div(1, a));
                assert_eq!(ratio_log(0, a), None);
                assert_eq!(ratio_log(a, 0), None);
            }
        }
        for i in 0..600 {
            assert_eq!(power(i), galois_8::exp(2, i), "g^{i}");
        }
    }

    #[test]
    fn two_data_constants_solve_every_pair() {
        for x in 0..DATA_COLUMNS_MAX {
            for y in (0..DATA_COLUMNS_MAX).filter(|&y| y != x) {
                let (a, b) = two_data_constants(x, y);
                let (dx, dy) = (0xa7, 0x3c);
                let dp = dx ^ dy;
                let dq = galois_8::mul(galois_8::exp(2, x), dx) ^ galois_8::mul(galois_8::exp(2, y), dy);
                assert_eq!(galois_8::mul(a, dp) ^ galois_8::mul(b, dq), dx, "{x} and {y}");
            }
        }
    }
}
