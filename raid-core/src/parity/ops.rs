//! The operations of a parity job over a kernel: encode, delta, recover, verify, locate.
//!
//! Invariants: each operation checks everything before it writes the first byte; only `Out` columns are written; nothing
//! is allocated for jobs of up to [`COLUMNS_INLINE`] data columns. What a kernel does in one pass is one call over whole
//! columns; what takes two passes (a lost block and a lost parity, locate) goes tile by tile, so that the second pass finds the
//! columns in the first-level cache.

use smallvec::SmallVec;

use super::kernel::{Differs, Kernel, LostTwo, Place};
use super::{Column, ParityJob, ParityOp, Verdict, WrongColumn, gf};
use crate::lease::Seg;
use crate::units::{DataIndex, usize_of_u32};

/// Data columns up to which a job is run without touching the heap.
const COLUMNS_INLINE: usize = 32;
/// Bytes worked on at a time where a result needs a place of its own: stays in the first-level cache with its columns.
const TILE: usize = 4096;
/// Bytes of all columns of a job from which on they are taken to be in memory, not in a cache of this core: more than half
/// of the second-level cache of the machines this was measured on (docs/parity.md).
const MEMORY_BYTES_MIN: usize = 2 << 20;

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
    let place = place_of(srcs.len(), usize_of_u32(job.len));
    parities(kernel, &srcs, Side::of(&mut job.p).output(), Side::of(&mut job.q).output(), place);
    Ok(Verdict::Computed)
}

/// Where the columns of a job are believed to be. A job just came from a client or a drive, so small ones are in a cache.
fn place_of(columns: usize, len: usize) -> Place {
    if (columns + 2) * len < MEMORY_BYTES_MIN { Place::Cache } else { Place::Memory }
}

/// Computes the parities that are wanted.
fn parities(kernel: &dyn Kernel, srcs: &[&[u8]], p: Option<&mut [u8]>, q: Option<&mut [u8]>, place: Place) {
    match (p, q) {
        (Some(p), Some(q)) => kernel.pq(srcs, p, q, place),
        (Some(p), None) => kernel.xor(srcs, p, place),
        (None, Some(q)) => kernel.q(srcs, q, place),
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
            let srcs = work.known();
            let place = place_of(srcs.len(), work.len);
            parities(kernel, &srcs, work.p.output(), work.q.output(), place);
        }
        (Some(x), None) => recover_one(kernel, work, x),
        (Some(x), Some(y)) => recover_two(kernel, &work, x, y),
    }
    Ok(Verdict::Computed)
}

impl<'a> Recovery<'a> {
    /// The data blocks that are left.
    fn known(&self) -> List<&'a [u8]> {
        self.data.iter().flatten().copied().collect()
    }
}

/// The tiles of a job of `len` bytes.
fn tiles(len: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    (0..len).step_by(TILE).map(move |start| start..(start + TILE).min(len))
}

/// One tile of columns.
fn tile_of<'t>(columns: &[&'t [u8]], tile: &core::ops::Range<usize>) -> List<&'t [u8]> {
    columns.iter().map(|column| &column[tile.clone()]).collect()
}

/// The lost data block: by P if that is known, else by Q.
fn solve_one(
    kernel: &dyn Kernel,
    known: &[&[u8]],
    x: usize,
    (p, q): (Option<&[u8]>, Option<&[u8]>),
    block: &mut [u8],
    place: Place,
) {
    if let Some(p) = p {
        let mut srcs: List<&[u8]> = known.iter().copied().collect();
        srcs.push(p);
        kernel.xor(&srcs, block, place);
    } else {
        let q = q.expect("checked: as many parities known as data blocks lost");
        kernel.recover_by_q(known, x, q, block, place);
    }
}

/// One data block is lost. Another parity that is wanted follows from the block, which then need not be wanted itself.
fn recover_one(kernel: &dyn Kernel, work: Recovery<'_>, (x, mut out): Lost<'_>) {
    let known = work.known();
    let (p_in, q_in) = (work.p.input(), work.q.input());
    let (mut p_out, mut q_out) = (work.p.output(), work.q.output());
    if p_out.is_none() && q_out.is_none() {
        let block = out.expect("checked: something is wanted");
        solve_one(kernel, &known, x, (p_in, q_in), block, place_of(known.len(), work.len));
        return;
    }
    let mut scratch = [0; TILE];
    for tile in tiles(work.len) {
        let block = match &mut out {
            Some(out) => &mut out[tile.clone()],
            None => &mut scratch[..tile.len()],
        };
        let mut srcs = tile_of(&known, &tile);
        let parity = (p_in.map(|p| &p[tile.clone()]), q_in.map(|q| &q[tile.clone()]));
        solve_one(kernel, &srcs, x, parity, block, Place::Cache);
        srcs.insert(x, block);
        let (p, q) = (p_out.as_mut().map(|p| &mut p[tile.clone()]), q_out.as_mut().map(|q| &mut q[tile]));
        parities(kernel, &srcs, p, q, Place::Cache);
    }
}

/// Two data blocks are lost and both parities known. At least one of the two is wanted.
fn recover_two(kernel: &dyn Kernel, work: &Recovery<'_>, (x, out_x): Lost<'_>, (y, out_y): Lost<'_>) {
    let p = work.p.input().expect("checked: as many parities known as data blocks lost");
    let q = work.q.input().expect("checked: as many parities known as data blocks lost");
    let lost = match (out_x, out_y) {
        (Some(dx), dy) => LostTwo { x, dx, y, dy },
        (None, Some(dy)) => LostTwo { x: y, dx: dy, y: x, dy: None },
        (None, None) => unreachable!("a recovery of two data blocks that wants neither"),
    };
    let known = work.known();
    kernel.recover_two(&known, lost, p, q, place_of(known.len(), work.len));
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
}

fn verify(kernel: &dyn Kernel, job: &ParityJob) -> Result<Verdict, &'static str> {
    let stored = Stored::of(job)?;
    if stored.p.is_none() && stored.q.is_none() {
        return Err("a verification without parity");
    }
    Ok(match kernel.verify(&stored.data, stored.p, stored.q) {
        Differs { p: false, q: false } => Verdict::Clean,
        Differs { p, q } => Verdict::Mismatch { p, q },
    })
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
        let srcs = tile_of(&stored.data, &tile);
        let (tile_p, tile_q) = (&stored_p[tile.clone()], &stored_q[tile]);
        if kernel.verify(&srcs, Some(tile_p), Some(tile_q)) == Differs::default() {
            continue;
        }
        let (p, q) = (&mut p_tile[..tile_p.len()], &mut q_tile[..tile_p.len()]);
        kernel.pq(&srcs, p, q, Place::Cache);
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
