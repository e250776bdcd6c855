//! What a GPU is told of a parity job: its operation, constants and addresses, in the layout `cuda/parity.cuh` reads.
//!
//! Invariants: numbers of operations and results and the layout of [`StripeJob`] are those of that header (tests run its
//! functions on what is made here); a [`Plan`] names memory and owns none: whoever submits it keeps the job's buffers until
//! it is answered.

use raid_core::parity::{Column, ParityError, ParityJob, ParityOp, Verdict, WrongColumn, gf};
use raid_core::units::{DataIndex, u64_of, usize_of_u32};
use smallvec::SmallVec;

/// Most data columns of one stripe, as on the CPU.
pub use raid_core::parity::gf::DATA_COLUMNS_MAX;

/// What a thread does with the sums of the data columns; the numbers are those of `cuda/parity.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// Both parities, or one.
    Encode = 0,
    /// A lost data block by P, and Q.
    ByP = 1,
    /// A lost data block by Q, and P.
    ByQ = 2,
    /// Two lost data blocks.
    Two = 3,
    /// Whether the parities match.
    Verify = 4,
    /// Which column is wrong.
    Locate = 5,
    /// The change of one block added to the parities.
    Delta = 6,
}

/// One stripe's job as the kernel reads it, 56 bytes. Addresses are 0 where a column is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StripeJob {
    /// Stored P.
    pub p: u64,
    /// Stored Q.
    pub q: u64,
    /// First output.
    pub out0: u64,
    /// Second output.
    pub out1: u64,
    /// Where its data columns begin in the table of columns.
    pub first: u32,
    /// How many data columns.
    pub data_columns: u32,
    /// Bytes of a column.
    pub len: u32,
    /// Its word in the results.
    pub result: u32,
    /// The [`Op`].
    pub op: u8,
    /// First constant.
    pub a: u8,
    /// Second constant.
    pub b: u8,
    /// 1 if the sum of Q is used.
    pub needs_q: u8,
    /// 1 if all addresses are multiples of 16.
    pub is_aligned: u32,
}

const _: () = assert!(size_of::<StripeJob>() == 56, "the layout that cuda/parity.cuh reads");

/// Results of [`Op::Locate`] beside data block z, which is z + 1.
const CLEAN: u32 = 0;
const WRONG_P: u32 = 0x100;
const WRONG_Q: u32 = 0x101;

/// Which column of a job an output becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The data column with this index.
    Data(usize),
    /// P.
    P,
    /// Q.
    Q,
}

/// One input column: where it lies in this process. 0: not there, counts as zeroes.
pub type Address = u64;

/// A job as a GPU gets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What to do with the sums.
    pub op: Op,
    /// Constants.
    pub constants: (u8, u8),
    /// Whether the sum of Q is used.
    pub needs_q: bool,
    /// Bytes of a column.
    pub len: u32,
    /// The data columns, by index ([`Op::Delta`]: old, new).
    pub data: SmallVec<[Address; 32]>,
    /// Stored P.
    pub p: Address,
    /// Stored Q.
    pub q: Address,
    /// What the outputs become.
    pub targets: [Option<Target>; 2],
}

fn exposed(start: core::ptr::NonNull<u8>) -> Address {
    u64_of(start.as_ptr().expose_provenance())
}

fn input(column: &Column) -> Address {
    match column {
        Column::In(seg) => exposed(seg.as_ptr()),
        _ => 0,
    }
}

/// Where the old contents of a column that is updated in place lie.
fn updated(column: &Column) -> Address {
    match column {
        Column::Out(lease, range) => exposed(lease.as_ptr()) + u64::from(range.start),
        _ => 0,
    }
}

fn is_output(column: &Column) -> bool {
    matches!(column, Column::Out(..))
}

impl Plan {
    /// What a GPU is to do for `job`. `None` for a job that is none for a GPU: one the CPU is asked about first, because
    /// its columns do not fit its operation, or because there is nothing to compute.
    #[must_use]
    pub fn of(job: &ParityJob) -> Option<Self> {
        let data: SmallVec<[Address; 32]> = job.data.iter().map(input).collect();
        let mut plan = Self {
            op: Op::Encode,
            constants: (0, 0),
            needs_q: is_output(&job.q),
            len: job.len,
            data,
            p: input(&job.p),
            q: input(&job.q),
            targets: [is_output(&job.p).then_some(Target::P), is_output(&job.q).then_some(Target::Q)],
        };
        if let ParityOp::Delta { index, old, new } = &job.op {
            plan.op = Op::Delta;
            plan.constants.0 = gf::power(index.index());
            plan.data = SmallVec::from_iter([exposed(old.as_ptr()), exposed(new.as_ptr())]);
            (plan.p, plan.q) = (updated(&job.p), updated(&job.q));
            let is_fit = old.len() == job.len && new.len() == job.len && index.index() < DATA_COLUMNS_MAX;
            return (is_fit && plan.p != 0).then_some(plan);
        }
        if job.data.is_empty() || job.data.len() > DATA_COLUMNS_MAX {
            return None;
        }
        let is_whole = plan.data.iter().all(|&address| address != 0);
        match job.op {
            ParityOp::Encode => (is_whole && plan.targets.iter().any(Option::is_some)).then_some(plan),
            ParityOp::Recover => plan.recover(job),
            ParityOp::Verify => {
                (plan.op, plan.needs_q) = (Op::Verify, plan.q != 0);
                (is_whole && (plan.p != 0 || plan.q != 0)).then_some(plan)
            }
            ParityOp::Locate => {
                (plan.op, plan.needs_q) = (Op::Locate, true);
                (is_whole && plan.p != 0 && plan.q != 0).then_some(plan)
            }
            ParityOp::Delta { .. } => unreachable!("handled above"),
        }
    }

    fn recover(mut self, job: &ParityJob) -> Option<Self> {
        let lost: SmallVec<[usize; 4]> =
            (0..self.data.len()).filter(|&index| self.data[index] == 0).collect();
        let wanted = |index: usize| is_output(&job.data[index]).then_some(Target::Data(index));
        let outputs = job.data.iter().chain([&job.p, &job.q]).filter(|column| is_output(column)).count();
        if outputs == 0 || outputs > 2 {
            return None;
        }
        match *lost.as_slice() {
            [] => Some(self),
            [x] if self.p != 0 => {
                self.op = Op::ByP;
                self.constants.0 = gf::power(x);
                self.targets = [wanted(x), self.targets[1]];
                Some(self)
            }
            [x] if self.q != 0 => {
                (self.op, self.needs_q) = (Op::ByQ, true);
                self.constants.0 = gf::inverse(gf::power(x));
                self.targets = [wanted(x), self.targets[0]];
                Some(self)
            }
            [x, y] if self.p != 0 && self.q != 0 => {
                (self.op, self.needs_q) = (Op::Two, true);
                self.constants = gf::two_data_constants(x, y);
                self.targets = [wanted(x), wanted(y)];
                Some(self)
            }
            _ => None,
        }
    }

    /// Bytes that are read.
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        let columns = self.data.iter().chain([&self.p, &self.q]).filter(|&&address| address != 0).count();
        u64_of(columns) * u64::from(self.len)
    }

    /// Bytes that are written.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        u64_of(self.targets.iter().flatten().count()) * u64::from(self.len)
    }

    /// What a result word of this operation means.
    ///
    /// # Errors
    /// [`ParityError::Device`] for a word that means nothing: the device is not to be trusted.
    pub fn verdict(&self, result: u32) -> Result<Verdict, ParityError> {
        match self.op {
            Op::Verify => match result {
                CLEAN => Ok(Verdict::Clean),
                1..=3 => Ok(Verdict::Mismatch { p: result & 1 != 0, q: result & 2 != 0 }),
                _ => Err(ParityError::Device),
            },
            Op::Locate => match result {
                CLEAN => Ok(Verdict::Clean),
                WRONG_P => Ok(Verdict::Located(WrongColumn::P)),
                WRONG_Q => Ok(Verdict::Located(WrongColumn::Q)),
                AMBIGUOUS => Ok(Verdict::Ambiguous),
                z if usize_of_u32(z) <= self.data.len() => u8::try_from(z - 1)
                    .map(|z| Verdict::Located(WrongColumn::Data(DataIndex(z))))
                    .map_err(|_| ParityError::Device),
                _ => Err(ParityError::Device),
            },
            _ if result == CLEAN => Ok(Verdict::Computed),
            _ => Err(ParityError::Device),
        }
    }
}

/// More than one column would have to be wrong.
const AMBIGUOUS: u32 = 0x1ff;

/// Several plans as one launch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// One for each plan. Inputs are addresses of this process, outputs offsets + 1 into the output memory: a device
    /// replaces both by addresses of its own.
    pub jobs: Vec<StripeJob>,
    /// The data columns of all jobs, one after the other.
    pub columns: Vec<Address>,
    /// Bytes of output memory used.
    pub out_bytes: u32,
    /// The longest column.
    pub len_max: u32,
    /// Bytes that are read.
    pub in_bytes: u64,
}

/// Outputs begin at multiples of this many bytes, so that threads can store 16 at a time.
const OUT_ALIGN: u32 = 256;

impl Batch {
    /// Whether `plan` fits beside what is in it, with room for `jobs_max` jobs, `columns_max` columns and `out_max` bytes.
    #[must_use]
    pub fn fits(&self, plan: &Plan, jobs_max: usize, columns_max: usize, out_max: u32) -> bool {
        let out = u64::from(self.out_bytes) + 2 * u64::from(plan.len.next_multiple_of(OUT_ALIGN));
        self.jobs.len() < jobs_max
            && self.columns.len() + plan.data.len() <= columns_max
            && out <= u64::from(out_max)
    }

    /// Adds a plan; where its outputs will lie in the output memory.
    ///
    /// # Panics
    /// If it does not fit 32-bit offsets: [`Batch::fits`] is asked first.
    pub fn push(&mut self, plan: &Plan) -> [Option<u32>; 2] {
        let outs = plan.targets.map(|target| {
            let at = self.out_bytes;
            target.map(|_| {
                self.out_bytes = at.checked_add(plan.len.next_multiple_of(OUT_ALIGN)).expect("asked before");
                at
            })
        });
        let number = |n: usize| u32::try_from(n).expect("a batch is small");
        let inputs = || plan.data.iter().chain([&plan.p, &plan.q]);
        let is_aligned = inputs().all(|address| address % 16 == 0);
        self.jobs.push(StripeJob {
            p: plan.p,
            q: plan.q,
            out0: outs[0].map_or(0, |at| u64::from(at) + 1),
            out1: outs[1].map_or(0, |at| u64::from(at) + 1),
            first: number(self.columns.len()),
            data_columns: number(plan.data.len()),
            len: plan.len,
            result: number(self.jobs.len()),
            op: plan.op_code(),
            a: plan.constants.0,
            b: plan.constants.1,
            needs_q: u8::from(plan.needs_q),
            is_aligned: u32::from(is_aligned),
        });
        self.columns.extend_from_slice(&plan.data);
        self.len_max = self.len_max.max(plan.len);
        self.in_bytes += plan.bytes_in();
        outs
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.columns.clear();
        (self.out_bytes, self.len_max, self.in_bytes) = (0, 0, 0);
    }
}

impl Plan {
    // The enum's discriminant is the number; `From` cannot be derived for it.
    #[allow(clippy::as_conversions)]
    const fn op_code(&self) -> u8 {
        self.op as u8
    }
}
