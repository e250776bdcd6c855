//! Where a parity job is computed: on the CPU, at once, or on a GPU, later; and what becomes of it when the GPU fails.
//!
//! Small jobs and updates of single blocks stay on the CPU without a look. For the others `auto` compares what both would
//! cost (`cost`). A GPU's result is believed only as far as it is checked: eight bytes of each output, whole results now
//! and then and always after a fault, and every check that says something does not match. A wrong or missing result is
//! computed on the CPU before anything is written (SAFETY P5), and the device is left alone until it is tested again.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use raid_core::parity::{Column, CpuParity, ParityError, ParityJob, ParityOp, Verdict};
use raid_core::ports::ParityEngine;
use raid_core::units::{u64_of, usize_of, usize_of_u32};
use smallvec::SmallVec;

use crate::cost::{Costs, Work};
use crate::descriptor::{Op, Plan, Target};
use crate::engine::{Answer, Gpu};
use crate::threads::ns_of;
use crate::twin;

/// Who may compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Whoever is cheaper.
    #[default]
    Auto,
    /// The CPU only.
    Cpu,
    /// The GPU, for all it can do and that is not small.
    Cuda,
}

/// How the router decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouterConfig {
    /// Who may compute.
    pub mode: Mode,
    /// Jobs of fewer bytes are always the CPU's.
    pub min_bytes: u64,
    /// How many times as long as the CPU the GPU may take, in percent: 100 is speed alone; 300 frees lanes of work that
    /// takes up to three times as long elsewhere.
    pub patience_percent: u32,
    /// One result in so many is computed on the CPU too and compared whole. 0: none but those a fault makes due.
    pub whole_check_every: u32,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self { mode: Mode::Auto, min_bytes: 256 << 10, patience_percent: 100, whole_check_every: 64 }
    }
}

/// Bytes of each output that are compared with the twin, every time.
const GLANCE_BYTES: usize = 8;
/// One in so many decisions of `auto` goes the other way, so that both costs stay measured.
const EXPLORE_EVERY: u64 = 512;

/// Where jobs went. Counters only grow.
#[derive(Debug, Default)]
pub struct Decisions {
    /// To the GPU.
    pub gpu: AtomicU64,
    /// To the CPU: cheaper there.
    pub cpu_cheaper: AtomicU64,
    /// To the CPU: the GPU took none then.
    pub cpu_not_ready: AtomicU64,
    /// To the CPU after the GPU had them: no answer, an error, or a wrong result.
    pub cpu_again: AtomicU64,
}

/// What the routers of all lanes share.
#[derive(Debug)]
pub struct Routing {
    config: RouterConfig,
    gpu: Option<Arc<Gpu>>,
    costs: Costs,
    decisions: Decisions,
    /// Decisions so far.
    turn: AtomicU64,
    /// Answers looked at so far.
    answers: AtomicU64,
}

impl Routing {
    /// Routing between the CPU and `gpu`.
    #[must_use]
    pub fn new(config: RouterConfig, gpu: Option<Arc<Gpu>>) -> Arc<Self> {
        let (costs, decisions) = Default::default();
        Arc::new(Self { config, gpu, costs, decisions, turn: AtomicU64::new(0), answers: AtomicU64::new(0) })
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.gpu.as_ref()
    }

    /// The cost model.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Where jobs went.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// How it decides.
    #[must_use]
    pub fn config(&self) -> RouterConfig {
        self.config
    }

    /// Whether a job that both could do goes to the GPU.
    fn prefers_gpu(&self, work: Work, bytes: u64) -> bool {
        if self.config.mode == Mode::Cuda {
            return true;
        }
        let cpu_ns = self.costs.cpu_ns(work, bytes).saturating_mul(u64::from(self.config.patience_percent));
        let is_cheaper = self.costs.gpu_ns(bytes).saturating_mul(100) <= cpu_ns;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let explores = turn % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        is_cheaper != explores
    }
}

/// The parity engine of one lane.
#[derive(Debug)]
pub struct Router {
    cpu: CpuParity,
    routing: Option<Arc<Routing>>,
}

impl Router {
    /// The CPU alone.
    #[must_use]
    pub fn cpu(cpu: CpuParity) -> Self {
        Self { cpu, routing: None }
    }

    /// The CPU, and a GPU where routing has one.
    #[must_use]
    pub fn new(cpu: CpuParity, routing: &Arc<Routing>) -> Self {
        let has_choice = routing.gpu.is_some() && routing.config.mode != Mode::Cpu;
        Self { cpu, routing: has_choice.then(|| Arc::clone(routing)) }
    }

    /// The routing and the plan, if this job is worth a decision.
    fn candidate(&self, job: &ParityJob) -> Option<(&Arc<Routing>, Plan)> {
        let routing = self.routing.as_ref()?;
        let bytes = u64::from(job.len) * u64_of(job.data.len());
        if bytes < routing.config.min_bytes || matches!(job.op, ParityOp::Delta { .. }) {
            return None;
        }
        Plan::of(job).map(|plan| (routing, plan))
    }

    async fn on_gpu(
        &self,
        routing: &Routing,
        mut job: ParityJob,
        plan: Plan,
    ) -> (ParityJob, Result<Verdict, ParityError>) {
        let (work, bytes) = (Work::of(&plan), plan.bytes_in());
        let Some(gpu) = routing.gpu.as_ref().filter(|gpu| gpu.is_ready()) else {
            routing.decisions.cpu_not_ready.fetch_add(1, Ordering::Relaxed);
            return self.on_cpu(routing, job, work, bytes);
        };
        if !routing.prefers_gpu(work, bytes) {
            routing.decisions.cpu_cheaper.fetch_add(1, Ordering::Relaxed);
            return self.on_cpu(routing, job, work, bytes);
        }
        let Some((generation, pending)) = gpu.submit(plan.clone()) else {
            routing.decisions.cpu_not_ready.fetch_add(1, Ordering::Relaxed);
            return self.on_cpu(routing, job, work, bytes);
        };
        routing.decisions.gpu.fetch_add(1, Ordering::Relaxed);
        let way = OnItsWay { before: routing.costs.gpu_began(bytes), bytes, costs: &routing.costs };
        let answer = pending.await;
        let before = way.before;
        drop(way);
        let believed = match answer {
            Err(_) => None,
            Ok(answer) => {
                routing.costs.gpu_took(bytes, before, answer.took_ns);
                self.believe(routing, gpu, generation, &mut job, &plan, &answer)
            }
        };
        match believed {
            Some(verdict) => (job, Ok(verdict)),
            None => {
                routing.decisions.cpu_again.fetch_add(1, Ordering::Relaxed);
                self.on_cpu(routing, job, work, bytes)
            }
        }
    }

    fn on_cpu(
        &self,
        routing: &Routing,
        mut job: ParityJob,
        work: Work,
        bytes: u64,
    ) -> (ParityJob, Result<Verdict, ParityError>) {
        let began = Instant::now();
        let verdict = self.cpu.run_in_place(&mut job);
        routing.costs.cpu_took(work, bytes, ns_of(began.elapsed()));
        (job, verdict)
    }

    /// Takes an answer over into the job, as far as it is right. `None`: it was not, the job is as it was.
    fn believe(
        &self,
        routing: &Routing,
        gpu: &Gpu,
        generation: u64,
        job: &mut ParityJob,
        plan: &Plan,
        answer: &Answer,
    ) -> Option<Verdict> {
        let Ok(verdict) = plan.verdict(answer.result) else {
            gpu.caught_wrong(generation, "a result word that means nothing");
            return None;
        };
        let every = u64::from(routing.config.whole_check_every);
        let number = routing.answers.fetch_add(1, Ordering::Relaxed);
        let is_due = every > 0 && number % every == every - 1;
        let says_wrong = !matches!(verdict, Verdict::Computed | Verdict::Clean);
        if gpu.takes_check() || is_due || says_wrong {
            gpu.stats().checks.fetch_add(1, Ordering::Relaxed);
            let right = self.cpu.run_in_place(job).ok()?;
            if right != verdict || !outputs_match(job, plan, answer) {
                gpu.caught_wrong(generation, "found by computing it again");
            }
            // The job holds the CPU's result either way.
            return Some(right);
        }
        if plan.targets.iter().any(Option::is_some) {
            gpu.stats().checks.fetch_add(1, Ordering::Relaxed);
            if !glance(number, job, plan, answer) {
                gpu.caught_wrong(generation, "found by a look at a few bytes");
                return None;
            }
        }
        for (at, target) in answer.at.iter().zip(plan.targets) {
            if let (Some(at), Some(target)) = (at, target) {
                output_of(job, target).copy_from_slice(answer.outputs.bytes(*at, plan.len));
            }
        }
        Some(verdict)
    }
}

impl ParityEngine for Router {
    async fn run(&self, mut job: ParityJob) -> (ParityJob, Result<Verdict, ParityError>) {
        match self.candidate(&job) {
            // In a box: the future of a job on the CPU, of which there is one in every request, stays small.
            Some((routing, plan)) => Box::pin(self.on_gpu(routing, job, plan)).await,
            None => {
                let verdict = self.cpu.run_in_place(&mut job);
                (job, verdict)
            }
        }
    }
}

/// Bytes that count as waiting for the GPU until this is dropped.
struct OnItsWay<'a> {
    before: u64,
    bytes: u64,
    costs: &'a Costs,
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.costs.gpu_ended(self.bytes);
    }
}

fn input_at(column: &Column, at: usize) -> u8 {
    match column {
        Column::In(seg) => seg.bytes()[at],
        _ => 0,
    }
}

fn output_of(job: &mut ParityJob, target: Target) -> &mut [u8] {
    let column = match target {
        Target::Data(index) => &mut job.data[index],
        Target::P => &mut job.p,
        Target::Q => &mut job.q,
    };
    match column {
        Column::Out(lease, range) => {
            &mut lease.bytes_mut()[usize_of_u32(range.start)..usize_of_u32(range.end)]
        }
        _ => unreachable!("a plan's targets are outputs of its job"),
    }
}

/// Whether the outputs of an answer are what the job holds.
fn outputs_match(job: &mut ParityJob, plan: &Plan, answer: &Answer) -> bool {
    answer.at.iter().zip(plan.targets).all(|(at, target)| match (at, target) {
        (Some(at), Some(target)) => *output_of(job, target) == *answer.outputs.bytes(*at, plan.len),
        _ => true,
    })
}

/// Whether a few bytes of each output are right.
fn glance(number: u64, job: &ParityJob, plan: &Plan, answer: &Answer) -> bool {
    let len = usize_of_u32(plan.len);
    // Any place that is not always the same; nobody tries to guess it.
    let turn = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    let start = usize_of(turn % u64_of(len.saturating_sub(GLANCE_BYTES) + 1));
    (start..(start + GLANCE_BYTES).min(len)).all(|at| {
        let data: SmallVec<[u8; 32]> = job.data.iter().map(|column| input_at(column, at)).collect();
        let (p, q) = match plan.op {
            Op::Encode => (0, 0),
            _ => (input_at(&job.p, at), input_at(&job.q, at)),
        };
        let right = twin::byte(plan.op, plan.constants, &data, p, q).out;
        answer.at.iter().zip(right).all(|(place, right)| {
            place.is_none_or(|place| answer.outputs.bytes(place, plan.len)[at] == right)
        })
    })
}
