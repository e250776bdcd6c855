//! What a job costs on the CPU and on the GPU, measured at start and corrected by every job that is timed.
//!
//! The CPU's cost is time of the lane: a constant and nanoseconds a byte, for each kind of work. The GPU's is time until
//! the answer: a latency, and nanoseconds a byte for this job and for all bytes that wait before it. Both are averages in
//! which a measurement counts a sixteenth, kept as whole picoseconds a byte in atomics: lanes share them without locks and
//! lose at most a correction to a race.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::descriptor::{Op, Plan};

/// Kinds of work with a rate of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// P alone, or a block by P.
    Xor,
    /// P and Q, or Q.
    Parities,
    /// One or two blocks with the help of Q.
    Recover,
    /// Reading and comparing.
    Check,
}

/// All kinds, in the order of their numbers.
pub const WORKS: [Work; 4] = [Work::Xor, Work::Parities, Work::Recover, Work::Check];

impl Work {
    /// The kind of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        match plan.op {
            Op::Verify | Op::Locate => Self::Check,
            Op::ByQ | Op::Two => Self::Recover,
            Op::Encode | Op::ByP | Op::Delta if plan.needs_q => Self::Parities,
            Op::Encode | Op::ByP | Op::Delta => Self::Xor,
        }
    }

    /// Its name in documents and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Parities => "parities",
            Self::Recover => "recover",
            Self::Check => "check",
        }
    }

    // The enum's discriminant is the index; `From` cannot be derived for it.
    #[allow(clippy::as_conversions)]
    const fn index(self) -> usize {
        self as usize
    }
}

/// Rates before anything was measured, picoseconds a byte: 20 GB/s on the CPU, 40 GB/s to the GPU.
const CPU_PS: u64 = 50;
const GPU_PS: u64 = 25;
/// Latency of the GPU before anything was measured.
const LATENCY_NS: u64 = 30_000;

/// The model.
#[derive(Debug)]
pub struct Costs {
    cpu_ps: [AtomicU64; 4],
    gpu_ps: AtomicU64,
    latency_ns: AtomicU64,
    /// Bytes that are on their way to the GPU.
    waiting_bytes: AtomicU64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            cpu_ps: [const { AtomicU64::new(CPU_PS) }; 4],
            gpu_ps: AtomicU64::new(GPU_PS),
            latency_ns: AtomicU64::new(LATENCY_NS),
            waiting_bytes: AtomicU64::new(0),
        }
    }
}

fn average(slot: &AtomicU64, measured: u64) {
    let old = slot.load(Ordering::Relaxed);
    // Rounded towards the measurement, so that small numbers move too.
    let step = old.abs_diff(measured).div_ceil(16);
    let new = if measured > old { old + step } else { old - step };
    slot.store(new.max(1), Ordering::Relaxed);
}

impl Costs {
    /// Nanoseconds of the lane for these bytes.
    #[must_use]
    pub fn cpu_ns(&self, work: Work, bytes: u64) -> u64 {
        bytes.saturating_mul(self.cpu_ps[work.index()].load(Ordering::Relaxed)) / 1000
    }

    /// Nanoseconds until the GPU's answer to a job of these bytes, behind what waits already.
    #[must_use]
    pub fn gpu_ns(&self, bytes: u64) -> u64 {
        let all = bytes + self.waiting_bytes.load(Ordering::Relaxed);
        let transfer = all.saturating_mul(self.gpu_ps.load(Ordering::Relaxed)) / 1000;
        self.latency_ns.load(Ordering::Relaxed) + transfer
    }

    /// A job took this long on the CPU.
    pub fn cpu_took(&self, work: Work, bytes: u64, took_ns: u64) {
        average(&self.cpu_ps[work.index()], took_ns.saturating_mul(1000) / bytes.max(1));
    }

    /// A job's bytes are on their way to the GPU; what waited before them.
    pub fn gpu_began(&self, bytes: u64) -> u64 {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed)
    }

    /// A job was answered after this long, behind `before` bytes: a lone one corrects the latency, others the rate.
    pub fn gpu_took(&self, bytes: u64, before: u64, took_ns: u64) {
        let rate = self.gpu_ps.load(Ordering::Relaxed);
        let latency = self.latency_ns.load(Ordering::Relaxed);
        if before == 0 {
            average(&self.latency_ns, took_ns.saturating_sub(bytes.saturating_mul(rate) / 1000));
        } else {
            average(&self.gpu_ps, took_ns.saturating_sub(latency).saturating_mul(1000) / (bytes + before));
        }
    }

    /// A job's bytes are no longer on their way, answered or not.
    pub fn gpu_ended(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The model in numbers: picoseconds a byte on the CPU for each kind of work and to the GPU, and the GPU's latency.
    #[must_use]
    pub fn numbers(&self) -> ([u64; 4], u64, u64) {
        let cpu = self.cpu_ps.each_ref().map(|rate| rate.load(Ordering::Relaxed));
        (cpu, self.gpu_ps.load(Ordering::Relaxed), self.latency_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_believed_in_the_end() {
        let costs = Costs::default();
        for _ in 0..200 {
            costs.cpu_took(Work::Parities, 1 << 20, 100_000);
            costs.gpu_took(1 << 20, 0, 50_000);
            costs.gpu_took(1 << 20, 15 << 20, 500_000);
        }
        assert!((95_000..=105_000).contains(&costs.cpu_ns(Work::Parities, 1 << 20)));
        assert_eq!(costs.cpu_ns(Work::Check, 1000), 50, "another kind of work is not touched");
        let lone = costs.gpu_ns(1 << 20);
        assert!((40_000..=60_000).contains(&lone), "{lone}");
        assert_eq!(costs.gpu_began(15 << 20), 0);
        let behind = costs.gpu_ns(1 << 20);
        assert!((450_000..=550_000).contains(&behind), "{behind}");
        costs.gpu_ended(15 << 20);
        assert_eq!(costs.gpu_ns(1 << 20), lone);
    }
}
