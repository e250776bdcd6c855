//! Kernels: the arithmetic of parity over plain byte slices, one implementation per instruction set.
//!
//! Invariants: every kernel gives the same bytes for the same input (tests compare each with the byte loop and with an
//! independent library); lengths and alignments are arbitrary; outputs never overlap inputs, because a mutable slice is
//! unique. A kernel of an instruction set can only be reached on a machine that has it.

use core::fmt;

use smallvec::SmallVec;

use super::gf;
use super::scalar::{ByteLoop, Wide};

/// Where the columns of a call are believed to be. It changes nothing but the time a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a cache, and the result will be read from there.
    Cache,
    /// In memory, and the result will not be read soon: outputs go past the caches.
    Memory,
}

/// What a kernel computes; each operation may be given to another kernel ([`super::Picks`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// [`Kernel::xor`].
    Xor,
    /// [`Kernel::pq`].
    Pq,
    /// [`Kernel::q`].
    Q,
    /// [`Kernel::copy_pq`].
    CopyPq,
    /// [`Kernel::delta`].
    Delta,
    /// [`Kernel::recover_by_q`].
    RecoverByQ,
    /// [`Kernel::recover_two`].
    RecoverTwo,
    /// [`Kernel::verify`].
    Verify,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Xor,
        Self::Pq,
        Self::Q,
        Self::CopyPq,
        Self::Delta,
        Self::RecoverByQ,
        Self::RecoverTwo,
        Self::Verify,
    ];

    /// Its word in logs and ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Pq => "pq",
            Self::Q => "q",
            Self::CopyPq => "copy_pq",
            Self::Delta => "delta",
            Self::RecoverByQ => "recover_by_q",
            Self::RecoverTwo => "recover_two",
            Self::Verify => "verify",
        }
    }
}

/// What [`Kernel::verify`] found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Differs {
    /// The stored P is not that of the data.
    pub p: bool,
    /// The stored Q is not that of the data.
    pub q: bool,
}

/// The arithmetic that all parity operations are made of. `srcs[i]` is the data block with index i. All slices of a call
/// have the same length.
///
/// # Panics
/// Every method panics if the slices of a call differ in length, on more than [`gf::DATA_COLUMNS_MAX`] sources, and on
/// none at all unless it says so: a bug of the caller.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// The name it is chosen and logged by.
    fn name(&self) -> &'static str;

    /// `dst` = sum of the sources (P, and everything recovered through P).
    fn xor(&self, srcs: &[&[u8]], dst: &mut [u8], place: Place);

    /// `p` = sum of the sources, `q` = sum of g^i times source i.
    fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], place: Place);

    /// `q` = sum of g^i times source i.
    fn q(&self, srcs: &[&[u8]], q: &mut [u8], place: Place);

    /// [`Self::pq`], and `copies[i]` = source i on the way.
    fn copy_pq(&self, srcs: &[&[u8]], copies: &mut [&mut [u8]], p: &mut [u8], q: &mut [u8], place: Place);

    /// The change of one data block from `old` to `new`: `p` += old + new, `q` += `factor` (old + new).
    fn delta(&self, factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>);

    /// `dst` = the lost data block `x`, from Q and the data blocks that are left (`known`, in order, none if x was the
    /// only one).
    fn recover_by_q(&self, known: &[&[u8]], x: usize, q: &[u8], dst: &mut [u8], place: Place);

    /// The lost data blocks `x` and `y` from the data blocks that are left (`known`, in order, may be none), P and Q. x is
    /// wanted; y only if there is a place for it.
    fn recover_two(&self, known: &[&[u8]], lost: LostTwo<'_>, p: &[u8], q: &[u8], place: Place);

    /// Whether the parities that are there are those of the sources.
    fn verify(&self, srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Differs;
}

/// The two lost data blocks of a stripe, in any order.
#[derive(Debug)]
pub struct LostTwo<'a> {
    /// Index of the first.
    pub x: usize,
    /// Its place.
    pub dx: &'a mut [u8],
    /// Index of the second.
    pub y: usize,
    /// Its place, if it is wanted.
    pub dy: Option<&'a mut [u8]>,
}

/// The kernels this machine can run, slowest first.
#[must_use]
pub fn available() -> SmallVec<[&'static dyn Kernel; 8]> {
    let mut kernels: SmallVec<[&'static dyn Kernel; 8]> = SmallVec::new();
    kernels.push(&ByteLoop);
    kernels.push(&Wide);
    #[cfg(target_arch = "x86_64")]
    kernels.extend(super::x86_64::available());
    kernels
}

/// The names of all kernels there are, on whatever machine.
pub const NAMES: [&str; 6] = ["byte", "scalar", "ssse3", "avx2", "gfni", "avx512"];

/// Checks that all slices of a call are equally long, and gives that length in bytes.
pub(super) fn common_len(srcs: &[&[u8]], others: &[usize]) -> usize {
    let len = srcs.first().expect("parity of no data at all").len();
    let is_equal = srcs.iter().all(|src| src.len() == len) && others.iter().all(|&other| other == len);
    assert!(is_equal, "columns of different lengths in one parity computation");
    assert!(
        srcs.len() <= gf::DATA_COLUMNS_MAX,
        "parity over more than {} data columns",
        gf::DATA_COLUMNS_MAX
    );
    len
}

/// Checks the columns of a recovery: `known` may be empty, `lost` are the indices that it leaves out.
pub(super) fn recovery_len(known: &[&[u8]], lost: &[usize], others: &[usize]) -> usize {
    let len = others.first().copied().expect("a recovery without parity");
    let is_equal = known.iter().all(|src| src.len() == len) && others.iter().all(|&other| other == len);
    assert!(is_equal, "columns of different lengths in one parity computation");
    let columns = known.len() + lost.len();
    assert!(columns <= gf::DATA_COLUMNS_MAX, "parity over more than {} data columns", gf::DATA_COLUMNS_MAX);
    let is_inside = lost.iter().all(|&index| index < columns);
    assert!(is_inside && (lost.len() < 2 || lost[0] != lost[1]), "lost columns {lost:?} of {columns}");
    len
}

/// The known data blocks between the lost ones, by rising index: each gap between two runs is a lost block.
pub(super) fn runs<'k, 'a>(known: &'k [&'a [u8]], lost: &[usize]) -> SmallVec<[&'k [&'a [u8]]; 3]> {
    let mut sorted: SmallVec<[usize; 2]> = lost.iter().copied().collect();
    sorted.sort_unstable();
    let mut runs = SmallVec::new();
    let mut from = 0;
    for (before, index) in sorted.into_iter().enumerate() {
        runs.push(&known[from..index - before]);
        from = index - before;
    }
    runs.push(&known[from..]);
    runs
}
