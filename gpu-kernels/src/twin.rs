//! The kernel's obviously right twin: one byte of a stripe at a time, written as the definitions read. The mock device
//! computes with it, the self-test and the router's checks compare with it, and tests compare the kernel's own functions.

use raid_core::parity::gf;

use crate::descriptor::{Op, StripeJob};

/// What one byte column of a stripe comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Byte {
    /// Both outputs, wanted or not.
    pub out: [u8; 2],
    /// Sums of P and Q plus the stored ones: 0 where they match.
    pub syndromes: (u8, u8),
}

/// Computes one byte. `data` has the byte of every data column, 0 for a lost one ([`Op::Delta`]: old and new); `p` and `q`
/// are the stored parities, 0 where there is none.
///
/// # Panics
/// On an [`Op::Delta`] without exactly two data bytes.
#[must_use]
pub fn byte(op: Op, (a, b): (u8, u8), data: &[u8], p: u8, q: u8) -> Byte {
    if op == Op::Delta {
        let [old, new] = *data else { panic!("a delta has an old and a new block") };
        let change = old ^ new;
        return Byte { out: [p ^ change, q ^ gf::mul(a, change)], syndromes: (0, 0) };
    }
    let sp = data.iter().fold(0, |sum, &d| sum ^ d);
    // Horner: ((d_2 g) + d_1) g + d_0.
    let sq = data.iter().rev().fold(0, |sum, &d| gf::double(sum) ^ d);
    let (dp, dq) = (sp ^ p, sq ^ q);
    let out = match op {
        Op::Encode => [sp, sq],
        Op::ByP => [dp, sq ^ gf::mul(a, dp)],
        Op::ByQ => {
            let x = gf::mul(a, dq);
            [x, sp ^ x]
        }
        Op::Two => {
            let x = gf::mul(a, dp) ^ gf::mul(b, dq);
            [x, dp ^ x]
        }
        Op::Verify | Op::Locate => [0, 0],
        Op::Delta => unreachable!("handled above"),
    };
    Byte { out, syndromes: (dp, dq) }
}

/// The result word of a check after one more byte with these syndromes; `job` says what is there to compare with.
#[must_use]
pub fn judge(op: Op, job: &StripeJob, result: u32, (dp, dq): (u8, u8)) -> u32 {
    match op {
        Op::Verify => result | u32::from(job.p != 0 && dp != 0) | u32::from(job.q != 0 && dq != 0) << 1,
        Op::Locate if (dp, dq) != (0, 0) => {
            let suspect = match gf::ratio_log(dq, dp) {
                None if dp == 0 => 0x101,
                None => 0x100,
                Some(z) => u32::try_from(z + 1).ok().filter(|&z| z <= job.data_columns).unwrap_or(0x1ff),
            };
            if result == 0 || result == suspect { suspect } else { 0x1ff }
        }
        _ => result,
    }
}
