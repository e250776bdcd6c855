//! The operations of a parity job over a kernel: encode, delta, recover, verify, locate.
//!
//! Invariants: each operation checks everything before it writes the first byte; only `Out` columns are written; nothing
//! is allocated for jobs of up to [`COLUMNS_INLINE`] data columns. What needs room of its own (verify, locate, a lost
//! block that has to be known but is not wanted) works in tiles of [`TILE`] bytes on the stack.

use smallvec::SmallVec;

use super::kernel::Kernel;
use super::{Column, ParityJob, ParityOp, Verdict, WrongColumn, gf};
use crate::lease::Seg;
use crate::units::{DataIndex, usize_of_u32};

/// Data columns up to which a job is run without touching the heap.
const COLUMNS_INLINE: usize = 32;
/// Bytes worked on at a time where a result needs a place of its own: stays in the first-level cache with its columns.
const TILE: usize = 4096;
/// What a lost column counts as while the sum of the others is made.
static ZEROES: [u8; TILE] = [0; TILE];

type List<T> = SmallVec<[T; COLUMNS_INLINE]>;

/// Runs a job whose columns all have the job's length.
///
/// # Errors
/// What is wrong with the job, which is untouched then.
pub(super) fn run(kernel: &dyn Kernel, job: &mut ParityJob) -> Result<Verdict, &'static str> {
    if let ParityOp::Delta { index, old, new } = &job.op {
        return delta(kernel, *index, old, new, job.len, &mut job.p, &mut job.q);
    }
    if job.data.is_empty() || job.data.len() > gf::DATA_COLUMNS_MAX {
        return Err("parity over no data column, or over more than 253");
    }
    match job.op {
        ParityOp::Encode => encode(kernel, job),
        ParityOp::Recover => recover(kernel, job),
        ParityOp::Verify => verify(kernel, job),
        ParityOp::Locate => locate(kernel, job),
        ParityOp::Delta { .. } => unreachable!("handled above"),
    }
}

/// A column as bytes.
enum Side<'a> {
    Absent,
    In(&'a [u8]),
    Out(&'a mut [u8]),
}

impl<'a> Side<'a> {
    fn of(column: &'a mut Column) -> Self {
        match column {
            Column::Absent => Self::Absent,
            Column::In(seg) => Self::In(seg.bytes()),
            Column::Out(lease, range) => {
                Self::Out(&mut lease.bytes_mut()[usize_of_u32(range.start)..usize_of_u32(range.end)])
            }
        }
    }

    fn input(&self) -> Option<&'a [u8]> {
        match self {
            Self::In(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn output(self) -> Option<&'a mut [u8]> {
        match self {
            Self::Out(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The data columns of a job in which all of them must be inputs.
fn all_inputs(data: &[Column]) -> Result<List<&[u8]>, &'static str> {
    data.iter()
        .map(|column| match column {
            Column::In(seg) => Ok(seg.bytes()),
            _ => Err("a data column that is not an input"),
        })
        .collect()
}

fn encode(kernel: &dyn Kernel, job: &mut ParityJob) -> Result<Verdict, &'static str> {
    let srcs = all_inputs(&job.data)?;
    parities(kernel, &srcs, Side::of(&mut job.p).output(), Side::of(&mut job.q).output());
    Ok(Verdict::Computed)
}

/// Computes the parities that are wanted.
fn parities(kernel: &dyn Kernel, srcs: &[&[u8]], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
    match (p, q) {
        (Some(p), Some(q)) => kernel.pq(srcs, p, q),
        (Some(p), None) => kernel.xor(srcs, p),
        (None, Some(q)) => kernel.q(srcs, q),
        (None, None) => {}
    }
}

fn delta(
    kernel: &dyn Kernel,
    index: DataIndex,
    old: &Seg,
    new: &Seg,
    len: u32,
    p: &mut Column,
    q: &mut Column,
) -> Result<Verdict, &'static str> {
    if old.len() != len || new.len() != len {
        return Err("a delta whose old or new data is not as long as its job");
    }
    if index.index() >= gf::DATA_COLUMNS_MAX {
        return Err("a delta of a data index over 252");
    }
    if matches!(p, Column::In(_)) || matches!(q, Column::In(_)) {
        return Err("a delta whose parity is an input: it is updated in place");
    }
    let (p, q) = (Side::of(p).output(), Side::of(q).output());
    kernel.delta(gf::power(index.index()), old.bytes(), new.bytes(), p, q);
    Ok(Verdict::Computed)
}

/// A data column that is not an input: its index, and where to put it if it is wanted.
type Lost<'a> = (usize, Option<&'a mut [u8]>);

/// A recovery as bytes: the data columns (`None` where lost), and what is known and wanted of the rest.
struct Recovery<'a> {
    len: usize,
    data: List<Option<&'a [u8]>>,
    p: Side<'a>,
    q: Side<'a>,
}

fn recover(kernel: &dyn Kernel, job: &mut ParityJob) -> Result<Verdict, &'static str> {
    let is_input = |column: &Column| matches!(column, Column::In(_));
    let is_output = |column: &Column| matches!(column, Column::Out(..));
    let unknown = job.data.iter().filter(|column| !is_input(column)).count();
    let known_parities = usize::from(is_input(&job.p)) + usize::from(is_input(&job.q));
    let wanted = job.data.iter().chain([&job.p, &job.q]).filter(|column| is_output(column)).count();
    if wanted > 2 {
        return Err("recovery of more than two columns");
    }
    if unknown > known_parities {
        return Err("recovery of more data than there is parity for");
    }
    if wanted == 0 {
        return Ok(Verdict::Computed);
    }
    let mut lost: SmallVec<[Lost<'_>; 2]> = SmallVec::new();
    let mut data = List::new();
    for (index, column) in job.data.iter_mut().enumerate() {
        let side = Side::of(column);
        let input = side.input();
        data.push(input);
        if input.is_none() {
            lost.push((index, side.output()));
        }
    }
    let (p, q) = (Side::of(&mut job.p), Side::of(&mut job.q));
    let work = Recovery { len: usize_of_u32(job.len), data, p, q };
    let mut lost = lost.into_iter();
    match (lost.next(), lost.next()) {
        (None, _) => {
            let srcs: List<&[u8]> = work.data.iter().flatten().copied().collect();
            parities(kernel, &srcs, work.p.output(), work.q.output());
        }
        (Some(x), None) => recover_one(kernel, work, x),
        (Some(x), Some(y)) => recover_two(kernel, &work, x, y),
    }
    Ok(Verdict::Computed)
}

/// The data columns of one tile, with `missing` in place of a lost one; none means it is left out.
fn tile_srcs<'t>(
    data: &[Option<&'t [u8]>],
    tile: &core::ops::Range<usize>,
    missing: Option<&'t [u8]>,
) -> List<&'t [u8]> {
    data.iter().filter_map(|column| column.map(|bytes| &bytes[tile.clone()]).or(missing)).collect()
}

/// Room for a tile of a block that has to be known but is not wanted; made only when there is one.
fn blank_tile() -> [u8; TILE] {
    [0; TILE]
}

/// The tiles of a job of `len` bytes.
fn tiles(len: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    (0..len).step_by(TILE).map(move |start| start..(start + TILE).min(len))
}

/// One data block is lost: by P if that is known, else by Q. Another parity that is wanted follows from the block.
fn recover_one(kernel: &dyn Kernel, work: Recovery<'_>, (x, out): Lost<'_>) {
    let Recovery { len, data, p, q } = work;
    let (p_in, q_in) = (p.input(), q.input());
    let (mut p_out, mut q_out) = (p.output(), q.output());
    let factor = gf::inverse(gf::power(x));
    let mut out = out;
    let mut scratch = None;
    for tile in tiles(len) {
        let block = match &mut out {
            Some(out) => &mut out[tile.clone()],
            None => &mut scratch.get_or_insert_with(blank_tile)[..tile.len()],
        };
        if let Some(p) = p_in {
            let mut srcs = tile_srcs(&data, &tile, None);
            srcs.push(&p[tile.clone()]);
            kernel.xor(&srcs, block);
        } else {
            let q = q_in.expect("checked: as many parities known as data blocks lost");
            kernel.q(&tile_srcs(&data, &tile, Some(&ZEROES[..tile.len()])), block);
            kernel.solve_one(factor, &q[tile.clone()], block);
        }
        let p_tile = p_out.as_mut().map(|p| &mut p[tile.clone()]);
        let q_tile = q_out.as_mut().map(|q| &mut q[tile.clone()]);
        if p_tile.is_some() || q_tile.is_some() {
            parities(kernel, &tile_srcs(&data, &tile, Some(block)), p_tile, q_tile);
        }
    }
}

/// Two data blocks are lost and both parities known.
fn recover_two(kernel: &dyn Kernel, work: &Recovery<'_>, (x, out_x): Lost<'_>, (y, out_y): Lost<'_>) {
    let p = work.p.input().expect("checked: as many parities known as data blocks lost");
    let q = work.q.input().expect("checked: as many parities known as data blocks lost");
    let constants = gf::two_data_constants(x, y);
    let (mut out_x, mut out_y) = (out_x, out_y);
    let mut scratch = None;
    for tile in tiles(work.len) {
        let mut unwanted = None;
        if out_x.is_none() || out_y.is_none() {
            unwanted = Some(&mut scratch.get_or_insert_with(blank_tile)[..tile.len()]);
        }
        // At most one of the two is unwanted: a job that wants neither was answered before.
        let block_x = out_x.as_mut().map(|out| &mut out[tile.clone()]).or_else(|| unwanted.take());
        let block_y = out_y.as_mut().map(|out| &mut out[tile.clone()]).or_else(|| unwanted.take());
        let (Some(block_x), Some(block_y)) = (block_x, block_y) else {
            unreachable!("a recovery of two data blocks that wants neither");
        };
        let srcs = tile_srcs(&work.data, &tile, Some(&ZEROES[..tile.len()]));
        kernel.pq(&srcs, block_x, block_y);
        kernel.solve_two(constants, &p[tile.clone()], &q[tile], block_x, block_y);
    }
}

/// The inputs of a verification.
struct Stored<'a> {
    data: List<&'a [u8]>,
    p: Option<&'a [u8]>,
    q: Option<&'a [u8]>,
}

impl<'a> Stored<'a> {
    fn of(job: &'a ParityJob) -> Result<Self, &'static str> {
        let parity = |column: &'a Column| match column {
            Column::Absent => Ok(None),
            Column::In(seg) => Ok(Some(seg.bytes())),
            Column::Out(..) => Err("a parity to be compared that is an output"),
        };
        Ok(Self { data: all_inputs(&job.data)?, p: parity(&job.p)?, q: parity(&job.q)? })
    }

    /// Computes P and Q of a tile, as far as they are there to compare with.
    fn compute(&self, kernel: &dyn Kernel, tile: &core::ops::Range<usize>, p: &mut [u8], q: &mut [u8]) {
        let srcs: List<&[u8]> = self.data.iter().map(|bytes| &bytes[tile.clone()]).collect();
        parities(kernel, &srcs, self.p.map(|_| p), self.q.map(|_| q));
    }
}

fn verify(kernel: &dyn Kernel, job: &ParityJob) -> Result<Verdict, &'static str> {
    let stored = Stored::of(job)?;
    if stored.p.is_none() && stored.q.is_none() {
        return Err("a verification without parity");
    }
    let (mut p_tile, mut q_tile) = ([0; TILE], [0; TILE]);
    let (mut p_differs, mut q_differs) = (false, false);
    for tile in tiles(usize_of_u32(job.len)) {
        let (p, q) = (&mut p_tile[..tile.len()], &mut q_tile[..tile.len()]);
        stored.compute(kernel, &tile, p, q);
        p_differs |= stored.p.is_some_and(|stored| stored[tile.clone()] != *p);
        q_differs |= stored.q.is_some_and(|stored| stored[tile] != *q);
    }
    if p_differs || q_differs {
        return Ok(Verdict::Mismatch { p: p_differs, q: q_differs });
    }
    Ok(Verdict::Clean)
}

/// SAFETY S8: a column is named only if it alone explains every differing byte of the whole block. With syndromes
/// `sp` and `sq` (stored + computed), data block z wrong by e gives `sp = e` and `sq = g^z e`, so each differing byte
/// names exactly one column, or none (an exponent that is no data index). Two wrong columns pass for one only if at every
/// differing byte their syndromes add up to those of one and the same third column: that is why S8 asks for more than
/// this verdict before anything is repaired.
fn locate(kernel: &dyn Kernel, job: &ParityJob) -> Result<Verdict, &'static str> {
    let stored = Stored::of(job)?;
    let (Some(stored_p), Some(stored_q)) = (stored.p, stored.q) else {
        return Err("locating a wrong column takes P and Q");
    };
    let (mut p_tile, mut q_tile) = ([0; TILE], [0; TILE]);
    let mut found = None;
    for tile in tiles(usize_of_u32(job.len)) {
        let (p, q) = (&mut p_tile[..tile.len()], &mut q_tile[..tile.len()]);
        stored.compute(kernel, &tile, p, q);
        let (tile_p, tile_q) = (&stored_p[tile.clone()], &stored_q[tile]);
        if tile_p == p && tile_q == q {
            continue;
        }
        for at in 0..p.len() {
            let (sp, sq) = (p[at] ^ tile_p[at], q[at] ^ tile_q[at]);
            if sp == 0 && sq == 0 {
                continue;
            }
            let suspect = suspect(sp, sq, stored.data.len());
            if suspect.is_none() || found.is_some_and(|found| Some(found) != suspect) {
                return Ok(Verdict::Ambiguous);
            }
            found = suspect;
        }
    }
    Ok(found.map_or(Verdict::Clean, Verdict::Located))
}

/// The one column that explains these syndromes, not both 0.
fn suspect(sp: u8, sq: u8, columns: usize) -> Option<WrongColumn> {
    match gf::ratio_log(sq, sp) {
        None if sp == 0 => Some(WrongColumn::Q),
        None => Some(WrongColumn::P),
        Some(z) if z < columns => u8::try_from(z).ok().map(|z| WrongColumn::Data(DataIndex(z))),
        Some(_) => None,
    }
}
