//! Parity against other people's code, cell by cell: Intel's ISA-L, and what a plain pass over the same memory takes.
//!
//! Every cell is checked first: both sides compute the same bytes. Then they take turns, and a ratio is that of medians; a
//! geometric mean is made for every round from the samples of that round, and its median is recorded. Rates are in data bytes
//! per second of thread CPU time.
//!
//! *Cached* columns are used again and again; *memory* walks through far more than the caches hold; both lie as a plain
//! allocation gives them. *Arena* is memory whose columns are staggered by 512 bytes, as the engine's own are.

use std::cell::RefCell;
use std::collections::BTreeMap;

use raid_core::parity::kernel::{Kernel, Operation, Place, available};
use raid_core::parity::{Picks, gf};
use raid_core::units::u64_of;

use super::field::{Field, Layout, Set};
use super::peer::{self, Isal, Tables};
use super::{STAGGER, call, layout, lost, rate, size, work_bytes};
use crate::clock::thread_cpu_ns;
use crate::floors::{Floors, Unit};
use crate::measure::{Bench, interleave};
use crate::record::{Case, Peer, Record};
use crate::stats::{Summary, f64_of};

/// Memory to walk through: several times the last-level cache.
const FIELD_BYTES: usize = 192 << 20;
const WIDTHS: [usize; 4] = [4, 8, 16, 22];
const LENGTHS: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 128 << 10];

/// Where the columns of a cell are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    Cached,
    Memory,
    Arena,
}

impl Home {
    const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Memory => "memory",
            Self::Arena => "arena",
        }
    }

    const fn place(self) -> Place {
        match self {
            Self::Cached => Place::Cache,
            Self::Memory | Self::Arena => Place::Memory,
        }
    }

    const fn stagger(self) -> usize {
        match self {
            Self::Cached | Self::Memory => 0,
            Self::Arena => STAGGER,
        }
    }
}

/// What a cell is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rival {
    Isal,
    /// The AVX2 code of ISA-L against our GFNI-256 kernel.
    IsalAvx2,
    /// Reading the data and nothing else.
    Read,
    /// Copying the data past the caches and nothing else.
    Copy,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
struct Cell {
    operation: Operation,
    home: Home,
    rival: Rival,
    k: usize,
    len: usize,
}

impl Cell {
    fn id(&self) -> String {
        let operation = self.operation.name();
        let rival = match self.rival {
            Rival::Isal => "",
            Rival::IsalAvx2 => ".gfni256_avx2",
            Rival::Read => ".read",
            Rival::Copy => ".copy",
        };
        let width = if self.operation == Operation::Delta { String::new() } else { format!(".k{}", self.k) };
        let len = size(u32::try_from(self.len).expect("short columns"));
        format!("parity.{operation}.{}{rival}{width}.{len}", self.home.name())
    }

    const fn layout(&self) -> Layout {
        layout(self.operation, self.k, self.len, self.home.stagger())
    }

    /// The cells whose geometric mean is recorded together.
    fn family(&self) -> String {
        let rival = match self.rival {
            Rival::Isal => "isal",
            Rival::IsalAvx2 => "isal_avx2",
            Rival::Read => "read",
            Rival::Copy => "copy",
        };
        format!("{}_{}_vs_{rival}", self.operation.name(), self.home.name())
    }
}

/// All cells, or those whose id contains `only`.
fn cells(isal: &Isal, only: &str) -> Vec<Cell> {
    use Home::{Arena, Cached, Memory};
    use Operation::{CopyPq, Delta, Pq, RecoverByQ, RecoverTwo, Xor};
    let mut cells = Vec::new();
    let mut add = |operation, home, rival, widths: &[usize], lengths: &[usize]| {
        for &k in widths {
            cells.extend(lengths.iter().map(|&len| Cell { operation, home, rival, k, len }));
        }
    };
    for home in [Cached, Memory] {
        add(Pq, home, Rival::Isal, &WIDTHS, &LENGTHS);
        add(Xor, home, Rival::Isal, &WIDTHS, &LENGTHS);
        add(RecoverByQ, home, Rival::Isal, &[8, 16], &[4 << 10, 64 << 10]);
        add(RecoverTwo, home, Rival::Isal, &[8, 16], &[4 << 10, 64 << 10]);
    }
    for rival in [Rival::Isal, Rival::Read] {
        add(Pq, Arena, rival, &[16, 22], &LENGTHS);
    }
    add(Delta, Cached, Rival::Isal, &[8], &[4 << 10]);
    add(CopyPq, Arena, Rival::Copy, &[8, 16], &[64 << 10]);
    if isal.has_avx2() && available().iter().any(|kernel| kernel.name() == "gfni") {
        add(Pq, Cached, Rival::IsalAvx2, &WIDTHS, &[4 << 10]);
    }
    cells.retain(|cell| cell.id().contains(only));
    cells
}

/// Our side of a cell.
fn ours(cell: Cell, picks: &Picks, set: &mut Set<'_>) {
    let gfni = || available().into_iter().find(|kernel| kernel.name() == "gfni");
    let kernel: &dyn Kernel = match cell.rival {
        Rival::IsalAvx2 => gfni().expect("the cell is there because the kernel is"),
        _ => picks,
    };
    call(cell.operation, kernel, cell.home.place(), &set.srcs, &mut set.outs);
}

/// What the other side needs beside the columns.
struct Rivalry<'a> {
    isal: &'a Isal,
    tables: Tables,
    change: Vec<u8>,
}

impl<'a> Rivalry<'a> {
    fn new(cell: Cell, isal: &'a Isal) -> Self {
        let rows = match cell.operation {
            Operation::RecoverByQ => {
                let x = lost(cell.k).0;
                let data = (0..cell.k).filter(|&i| i != x).map(|i| gf::power(255 + i - x));
                vec![data.chain([gf::inverse(gf::power(x))]).collect()]
            }
            Operation::RecoverTwo => {
                let (x, y) = lost(cell.k);
                let row = |x, y| {
                    let (a, b) = gf::two_data_constants(x, y);
                    let data = (0..cell.k).filter(|&i| i != x && i != y);
                    data.map(|i| a ^ gf::mul(b, gf::power(i))).chain([a, b]).collect()
                };
                vec![row(x, y), row(y, x)]
            }
            // P and Q of the block that an update changes.
            _ => vec![vec![1, 1], vec![1, gf::power(3)]],
        };
        Self { isal, tables: isal.tables(&rows), change: vec![0; cell.len] }
    }

    fn run(&mut self, cell: Cell, set: &mut Set<'_>) {
        let srcs = core::hint::black_box(&set.srcs[..]);
        match (cell.rival, cell.operation, &mut set.outs[..]) {
            (Rival::IsalAvx2, _, [p, q]) => self.isal.pq_avx2(srcs, p, q),
            (Rival::Read, ..) => {
                core::hint::black_box(peer::read(srcs));
            }
            (Rival::Copy, _, [_, _, copies @ ..]) => peer::stream_copies(srcs, copies),
            (Rival::Isal, Operation::Pq, [p, q]) => self.isal.pq(srcs, p, q),
            (Rival::Isal, Operation::Xor, [p]) => self.isal.xor(srcs, p),
            (Rival::Isal, Operation::Delta, outs) => {
                self.isal.xor(srcs, &mut self.change);
                self.isal.update(&mut self.tables, 1, &mut self.change, outs);
            }
            (Rival::Isal, _, outs) => self.isal.encode(&mut self.tables, srcs, outs),
            (rival, operation, outs) => unreachable!("{rival:?} {operation:?} with {} outputs", outs.len()),
        }
    }

    /// Whether both sides leave the same.
    fn agrees(&mut self, cell: Cell, picks: &Picks) -> bool {
        let layout = cell.layout();
        let field = || Field::of(layout);
        let (mut a, mut b, mut checked) = (field(), field(), field());
        ours(cell, picks, &mut a.set(layout));
        match cell.rival {
            Rival::Isal | Rival::IsalAvx2 => self.run(cell, &mut b.set(layout)),
            // What only reads or copies has no parity to compare with: the byte loop has.
            Rival::Read | Rival::Copy => {
                let mut set = b.set(layout);
                call(cell.operation, available()[0], Place::Cache, &set.srcs, &mut set.outs);
                let mut copies = checked.set(layout);
                self.run(cell, &mut copies);
                let is_copied = copies.outs.iter().skip(2).zip(&copies.srcs).all(|(out, src)| *out == *src);
                if cell.rival == Rival::Copy && !is_copied {
                    return false;
                }
            }
        }
        a.bytes() == b.bytes()
    }
}

/// Data bytes per second of one side over the sets of a cell, one after the other. `field` is far more than the caches hold.
fn rate_over(cell: Cell, field: &mut Field, mut call: impl FnMut(&mut Set<'_>)) -> f64 {
    let mut sets = match cell.home {
        Home::Cached => vec![field.set(cell.layout())],
        Home::Memory | Home::Arena => field.sets(cell.layout()),
    };
    let count = sets.len();
    let mut next = 0;
    rate(work_bytes(cell.operation, cell.k, cell.len), || {
        call(&mut sets[next]);
        next = if next + 1 == count { 0 } else { next + 1 };
    })
}

/// What was measured.
#[derive(Debug)]
pub struct Against {
    /// A case for each cell, each geometric mean and the scaling over cores.
    pub cases: Vec<Case>,
    /// The geometric means by name.
    pub geomean: BTreeMap<String, f64>,
    /// Our kernels, by operation.
    pub picks: Picks,
}

impl Against {
    /// Puts the measurement into a record.
    pub fn record_in(self, record: &mut Record) {
        record.cases = self.cases;
        record.geomean = self.geomean;
        let name = |(operation, kernel): (Operation, &str)| (operation.name().to_owned(), kernel.to_owned());
        record.picks = self.picks.names().map(name).collect();
    }
}

/// [`measure`] with the kernels that are fastest here.
#[must_use]
pub fn run(isal: &Isal, only: &str, samples: usize) -> Against {
    measure(isal, &Picks::measured(thread_cpu_ns), only, samples)
}

/// Measures all cells whose id contains `only`, `samples` times each.
#[must_use]
pub fn measure(isal: &Isal, picks: &Picks, only: &str, samples: usize) -> Against {
    let floors = Floors::built_in();
    let cells = cells(isal, only);
    let field = RefCell::new(Field::new(FIELD_BYTES));
    let mut benches = Vec::new();
    let mut verified = Vec::new();
    for &cell in &cells {
        let mut rivalry = Rivalry::new(cell, isal);
        verified.push(rivalry.agrees(cell, picks));
        let field = &field;
        benches.push(Bench::new(cell.id(), move || {
            rate_over(cell, &mut field.borrow_mut(), |set| ours(cell, picks, set))
        }));
        benches.push(Bench::new(cell.id(), move || {
            rate_over(cell, &mut field.borrow_mut(), |set| rivalry.run(cell, set))
        }));
    }
    let results = interleave(benches, samples);
    let mut rounds: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    let mut cases = Vec::new();
    for ((cell, pair), verified) in cells.iter().zip(results.chunks_exact(2)).zip(verified) {
        let (own, other) = (&pair[0].1, &pair[1].1);
        let ratios = own.iter().zip(other).map(|(own, other)| own / other).collect();
        rounds.entry(cell.family()).or_default().push(ratios);
        cases.push(case_of(*cell, own.clone(), other, isal, &floors, verified));
    }
    let mut geomean = BTreeMap::new();
    let all_verified = cases.iter().all(|case: &Case| case.verified);
    for (family, cells) in rounds {
        let means = (0..samples).map(|round| geometric_mean(cells.iter().map(|cell| cell[round]))).collect();
        let case = Case::measured(&format!("parity.geomean.{family}"), Unit::Ratio, means, &floors);
        geomean.insert(family, case.median);
        cases.push(case.with_load(1, 1, all_verified));
    }
    if CORES_ID.contains(only) {
        cases.push(cores(picks, samples, &floors));
    }
    Against { cases, geomean, picks: *picks }
}

fn case_of(
    cell: Cell,
    samples: Vec<f64>,
    other: &[f64],
    isal: &Isal,
    floors: &Floors,
    verified: bool,
) -> Case {
    let (name, version) = match cell.rival {
        Rival::Isal => ("isal", isal.version()),
        Rival::IsalAvx2 => ("isal avx2", isal.version()),
        Rival::Read => ("memory read", "1"),
        Rival::Copy => ("memory copy", "1"),
    };
    let median = Summary::of(other).expect("rates are numbers").median;
    let peer = Peer { name: name.to_owned(), version: version.to_owned(), median };
    let mut case = Case::measured_against(&cell.id(), Unit::BytesPerS, samples, peer, floors);
    case.work_bytes = Some(work_bytes(cell.operation, cell.k, cell.len));
    case.with_load(1, 1, verified)
}

fn geometric_mean(ratios: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = f64_of(u64_of(ratios.len()));
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

const CORES_ID: &str = "parity.pq.cores";

/// P and Q on two threads at once, each with its own columns, against one: by the CPU time of each.
fn cores(picks: &Picks, samples: usize, floors: &Floors) -> Case {
    let cell = Cell { operation: Operation::Pq, home: Home::Cached, rival: Rival::Isal, k: 8, len: 16 << 10 };
    let alone = || {
        let mut field = Field::of(cell.layout());
        rate_over(cell, &mut field, |set| ours(cell, picks, set))
    };
    alone();
    let ratios = (0..samples).map(|_| {
        let one = alone();
        let two = std::thread::scope(|scope| {
            let other = scope.spawn(alone);
            alone() + other.join().expect("a measurement does not fail")
        });
        two / one
    });
    Case::measured(CORES_ID, Unit::Ratio, ratios.collect(), floors).with_load(2, 1, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_ratios() {
        assert!((geometric_mean([2.0, 8.0].into_iter()) - 4.0).abs() < 1e-12);
        assert!((geometric_mean([0.5].into_iter()) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn every_cell_has_an_id_of_its_own_and_both_sides_agree() {
        let Ok(isal) = Isal::load() else {
            println!("SKIPPED: the comparison with ISA-L is not tested, libisal2 is not installed");
            return;
        };
        let picks = Picks::measured(thread_cpu_ns);
        let all = cells(&isal, "");
        let ids: std::collections::BTreeSet<String> = all.iter().map(Cell::id).collect();
        assert_eq!(ids.len(), all.len());
        for &cell in all.iter().filter(|cell| cell.len == 4 << 10 || cell.operation == Operation::CopyPq) {
            assert!(Rivalry::new(cell, &isal).agrees(cell, &picks), "{}", cell.id());
        }
        let few = measure(&isal, &picks, "parity.pq.cached.k4", 1);
        assert_eq!(few.cases.len(), 5, "four lengths and their mean");
        assert!(few.geomean["pq_cached_vs_isal"] > 0.0);
        assert!(isal.version().starts_with('2'), "{}", isal.version());
    }
}
