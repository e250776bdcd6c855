//! The obviously right parity: one byte at a time, by the definition, sharing no code with raid-core's kernels. Lost
//! columns are found by solving the two equations; nothing is fast here.

use raid_core::parity::{Column, CpuParity, ParityError, ParityJob, ParityOp, Verdict};
use raid_core::ports::ParityEngine;
use raid_core::units::usize_of_u32;

/// Product in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, bit by bit.
#[must_use]
pub fn gf_mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1d;
        }
        b >>= 1;
    }
    product
}

/// g^n for g = 2.
#[must_use]
pub fn gf_pow2(n: usize) -> u8 {
    (0..n).fold(1, |power, _| gf_mul(power, 2))
}

fn gf_inverse(a: u8) -> u8 {
    (1..=255).find(|&b| gf_mul(a, b) == 1).expect("every non-zero element has an inverse")
}

/// P and Q of one byte of each data column.
#[must_use]
pub fn syndrome(data: impl Iterator<Item = u8>) -> (u8, u8) {
    let mut power = 1;
    data.fold((0, 0), |(p, q), byte| {
        let term = gf_mul(power, byte);
        power = gf_mul(power, 2);
        (p ^ byte, q ^ term)
    })
}

/// Parity of the simulated world: the plain one above, or the real CPU engine.
pub enum SimParity {
    /// By definition.
    Plain,
    /// As in production.
    Cpu(CpuParity),
}

/// One byte of a column, if it is there.
fn byte(column: &Column, i: usize) -> Option<u8> {
    match column {
        Column::Absent => None,
        Column::In(seg) => Some(seg.bytes()[i]),
        Column::Out(lease, range) => Some(lease.bytes()[usize_of_u32(range.start) + i]),
    }
}

fn put(column: &mut Column, i: usize, value: u8) {
    if let Column::Out(lease, range) = column {
        lease.bytes_mut()[usize_of_u32(range.start) + i] = value;
    }
}

fn is_in(column: &Column) -> bool {
    matches!(column, Column::In(_))
}

/// Fills in the lost data bytes of one row from what is known.
fn solve(row: &mut [Option<u8>], p: Option<u8>, q: Option<u8>) {
    let lost: Vec<usize> = (0..row.len()).filter(|&i| row[i].is_none()).collect();
    let (p_known, q_known) = syndrome(row.iter().map(|byte| byte.unwrap_or(0)));
    match (&lost[..], p, q) {
        ([], ..) => {}
        (&[x], Some(p), _) => row[x] = Some(p ^ p_known),
        (&[x], None, Some(q)) => row[x] = Some(gf_mul(gf_inverse(gf_pow2(x)), q ^ q_known)),
        (&[x, y], Some(p), Some(q)) => {
            let (dp, dq) = (p ^ p_known, q ^ q_known);
            // dx + dy = dp and g^x dx + g^y dy = dq.
            let dx = gf_mul(gf_inverse(gf_pow2(x) ^ gf_pow2(y)), dq ^ gf_mul(gf_pow2(y), dp));
            row[x] = Some(dx);
            row[y] = Some(dp ^ dx);
        }
        _ => panic!("{} columns lost with P {} and Q {}", lost.len(), p.is_some(), q.is_some()),
    }
}

fn plain(job: &mut ParityJob) -> Verdict {
    let len = usize_of_u32(job.len);
    let (mut p_wrong, mut q_wrong) = (false, false);
    for i in 0..len {
        if let ParityOp::Delta { index, old, new } = &job.op {
            let change = old.bytes()[i] ^ new.bytes()[i];
            let index = usize::from(index.0);
            if let Some(p) = byte(&job.p, i) {
                put(&mut job.p, i, p ^ change);
            }
            if let Some(q) = byte(&job.q, i) {
                put(&mut job.q, i, q ^ gf_mul(gf_pow2(index), change));
            }
            continue;
        }
        let known = |column: &Column| if is_in(column) { byte(column, i) } else { None };
        let mut row: Vec<Option<u8>> = job.data.iter().map(known).collect();
        solve(&mut row, known(&job.p), known(&job.q));
        let (p, q) = syndrome(row.iter().map(|byte| byte.expect("solved")));
        for (column, value) in job.data.iter_mut().zip(row) {
            put(column, i, value.expect("solved"));
        }
        p_wrong |= known(&job.p).is_some_and(|known| known != p);
        q_wrong |= known(&job.q).is_some_and(|known| known != q);
        put(&mut job.p, i, p);
        put(&mut job.q, i, q);
    }
    match job.op {
        ParityOp::Verify if p_wrong || q_wrong => Verdict::Mismatch { p: p_wrong, q: q_wrong },
        ParityOp::Verify => Verdict::Clean,
        _ => Verdict::Computed,
    }
}

impl ParityEngine for SimParity {
    async fn run(&self, mut job: ParityJob) -> (ParityJob, Result<Verdict, ParityError>) {
        match self {
            Self::Cpu(cpu) => cpu.run(job).await,
            Self::Plain if matches!(job.op, ParityOp::Locate) => {
                (job, Err(ParityError::Invalid("the plain engine does not locate")))
            }
            Self::Plain => {
                let verdict = plain(&mut job);
                (job, Ok(verdict))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_arithmetic_is_mds() {
        assert_eq!(gf_mul(2, 0x80), 0x1d);
        assert_eq!((gf_pow2(1), gf_pow2(8), gf_pow2(255)), (2, 0x1d, 1));
        assert!((1..=255).all(|a| gf_mul(a, gf_inverse(a)) == 1));
        // k = 4 over 1, 2, 3, 4 as md computes it.
        assert_eq!(syndrome([1, 2, 3, 4].into_iter()), (4, 1 ^ 4 ^ 12 ^ 32));
    }

    #[test]
    fn every_loss_of_two_is_solved() {
        let data = [17, 99, 0, 255, 3];
        let (p, q) = syndrome(data.into_iter());
        for x in 0..5 {
            for y in 0..5 {
                let mut row: Vec<Option<u8>> = data.iter().copied().map(Some).collect();
                row[x] = None;
                row[y] = None;
                solve(&mut row, Some(p), Some(q));
                assert_eq!(row, data.map(Some));
            }
            for (p, q) in [(Some(p), None), (None, Some(q))] {
                let mut row: Vec<Option<u8>> = data.iter().copied().map(Some).collect();
                row[x] = None;
                solve(&mut row, p, q);
                assert_eq!(row, data.map(Some));
            }
        }
    }
}
