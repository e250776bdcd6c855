//! A benchmark as a list of steps, each a measured pass, with what is filled before and compared after.
//!
//! Steps with transfers of one length share a session, so what one step wrote the next one can check.

use std::sync::Arc;

use super::session::{PassResult, Session, SessionError, Target};
use super::{Check, Control, Op, Pass, Pattern};
use crate::detail::{Form, Run, case};
use crate::record::Case;

/// One measured pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which way.
    pub op: Op,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes of a transfer.
    pub block_bytes: u32,
    /// Whose words it is told in.
    pub form: Form,
    /// The test's name there.
    pub test: &'static str,
}

impl Step {
    fn id(&self, prefix: &str) -> String {
        let size = short_size(self.block_bytes);
        match self.form {
            Form::Iozone => format!("{prefix}.{}.{size}", self.test.replace(' ', "-")),
            _ => format!("{prefix}.{}.{}.{size}", self.op.name(), self.pattern.name()),
        }
    }
}

/// `512K`, `1M`.
#[must_use]
pub fn short_size(bytes: u32) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// How steps are run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// In this order.
    pub steps: Vec<Step>,
    /// Threads on each target.
    pub threads: u32,
    /// Transfers in flight for each thread.
    pub queue_depth: u32,
    /// Bytes of each thread's region; `None`: its share of the target.
    pub size_bytes: Option<u64>,
    /// For so long; `None`: each region once. Nanoseconds.
    pub time_ns: Option<u64>,
    /// Not measured at the beginning of each step, nanoseconds.
    pub ramp_ns: u64,
    /// Compare what comes back with what was written.
    pub verify: bool,
    /// Most lanes; `None`: one per core.
    pub lanes: Option<u32>,
}

impl Load {
    /// Whether any step writes.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.steps.iter().any(|step| step.op == Op::Write)
    }

    /// The steps in runs of one transfer length.
    #[must_use]
    pub fn by_block(&self) -> Vec<&[Step]> {
        self.steps.chunk_by(|a, b| a.block_bytes == b.block_bytes).collect()
    }

    pub(crate) fn session(
        &self,
        targets: Vec<Target>,
        block_bytes: u32,
        tracks: bool,
    ) -> Result<Session, SessionError> {
        let session = Session::new(targets, self.threads, self.size_bytes, block_bytes, tracks)?;
        Ok(match self.lanes {
            Some(lanes) => session.with_lanes(lanes),
            None => session,
        })
    }

    pub(crate) fn pass(&self, step: &Step) -> Pass {
        Pass {
            op: step.op,
            pattern: step.pattern,
            time_ns: self.time_ns,
            ramp_ns: if self.time_ns.is_some() { self.ramp_ns } else { 0 },
            queue_depth: self.queue_depth,
            check: if self.verify { Check::Heads } else { Check::Nothing },
            rebuild: None,
        }
    }

    /// What a step is, for people.
    #[must_use]
    pub fn what(&self, step: &Step) -> String {
        let threads =
            if self.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", self.threads) };
        let time = self
            .time_ns
            .map(|time_ns| format!(", {}", crate::report::text::time(time_ns)))
            .unwrap_or_default();
        format!(
            "{}, {} transfers, {threads} a target, queue depth {}{time}",
            step.pattern.name(),
            short_size(step.block_bytes),
            self.queue_depth
        )
    }
}

/// What came of comparing.
pub(crate) struct Verified {
    pub(crate) text: String,
    pub(crate) is_right: bool,
}

/// Compares everything a session wrote, and blames what is wrong on the targets of `result`.
pub(crate) fn verify(
    session: &mut Session,
    op: Op,
    result: &mut PassResult,
    control: &Arc<Control>,
) -> Result<Verified, SessionError> {
    let stopped = || Verified { text: "stopped before everything was compared".into(), is_right: false };
    if control.is_stopped() {
        return Ok(stopped());
    }
    let compared = session.verify(control)?;
    let mut checked = 0;
    let mut is_right = true;
    for (target, found) in result.targets.iter_mut().zip(&compared.targets) {
        checked += found.meter.checked;
        target.meter.blame(&found.meter);
        is_right &= target.meter.errors == 0 && target.meter.wrong == 0;
    }
    if compared.incomplete {
        return Ok(stopped());
    }
    let when = match op {
        Op::Write => "after the measured time",
        Op::Read => "after the measured time; while measuring, one stamp of each cell (up to 64 KiB)",
    };
    let text = format!("every block of {checked} transfers was compared with what was written, {when}");
    Ok(Verified { text, is_right: is_right && checked > 0 })
}

/// Runs a load over targets. `owns`: what lies on them may be written over, so reads find what was written before.
///
/// # Errors
/// Why it could not begin. What fails later is in the cases.
pub fn measure(
    noun: &str,
    targets: &[Target],
    load: &Load,
    owns: bool,
    control: &Arc<Control>,
) -> Result<Vec<Case>, SessionError> {
    let mut cases = Vec::new();
    for steps in load.by_block() {
        let Some(first) = steps.first() else { continue };
        let tracks = owns && load.verify;
        let mut session = load.session(targets.to_vec(), first.block_bytes, tracks)?;
        let is_partial = load.time_ns.is_some() || first.pattern == Pattern::Random;
        if owns && (first.op == Op::Read || is_partial) && !control.is_stopped() {
            session.fill(control)?;
        }
        for step in steps {
            if control.is_stopped() {
                break;
            }
            let id = step.id(noun);
            let mut result = session.run(&id, load.pass(step), control)?;
            let verified = if tracks {
                verify(&mut session, step.op, &mut result, control)?
            } else if owns {
                Verified { text: "not asked for".into(), is_right: false }
            } else {
                let text = "what lies there is not ours, so there is nothing to compare with";
                Verified { text: text.into(), is_right: false }
            };
            cases.push(case(
                &Run {
                    id,
                    what: load.what(step),
                    form: step.form,
                    test: step.test.to_owned(),
                    op: step.op,
                    pattern: step.pattern,
                    block_bytes: step.block_bytes,
                    threads: load.threads,
                    queue_depth: load.queue_depth,
                    targets,
                    verification: verified.text,
                    verified: verified.is_right,
                },
                &result,
            ));
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use nvme_backend::OpenDrive;
    use raid_core::units::BlockSize;

    use super::*;

    pub(crate) fn load(steps: Vec<Step>) -> Load {
        Load {
            steps,
            threads: 2,
            queue_depth: 4,
            size_bytes: None,
            time_ns: None,
            ramp_ns: 0,
            verify: true,
            lanes: None,
        }
    }

    fn step(op: Op, pattern: Pattern, block_bytes: u32) -> Step {
        Step { op, pattern, block_bytes, form: Form::Storagebench, test: "" }
    }

    fn ram(count: usize) -> Vec<Target> {
        (0..count).map(|_| Target::Drive(OpenDrive::ram(4 << 20, BlockSize::B4096))).collect()
    }

    #[test]
    fn steps_move_everything_once_and_verify_it() {
        let steps = vec![
            step(Op::Write, Pattern::Sequential, 512 << 10),
            step(Op::Read, Pattern::Sequential, 512 << 10),
            step(Op::Read, Pattern::Random, 4096),
            step(Op::Write, Pattern::Random, 4096),
        ];
        let cases = measure("drives", &ram(4), &load(steps), true, &Arc::default()).unwrap();
        assert_eq!(cases.len(), 4);
        for case in &cases {
            let detail = case.detail.as_ref().unwrap();
            assert!(case.verified, "{}: {}", case.id, detail.verification);
            assert_eq!(detail.bytes, 16 << 20, "{}", case.id);
            assert_eq!(detail.ops, (16 << 20) / u64::from(detail.block_bytes));
            assert!(detail.targets.iter().all(|target| target.bytes == 4 << 20 && !target.has_failed()));
            assert!(detail.latency.max_ns > 0 && case.median > 0.0 && detail.judgement.judged);
        }
        assert_eq!(cases[0].id, "drives.write.sequential.512K");
        assert_eq!(cases[3].id, "drives.write.random.4K");
    }

    #[test]
    fn a_drive_that_loses_what_it_is_given_is_found_out() {
        let mut targets = ram(3);
        targets[1] = Target::Drive(OpenDrive::null(4 << 20, BlockSize::B4096));
        let steps = vec![step(Op::Write, Pattern::Sequential, 64 << 10)];
        let cases = measure("drives", &targets, &load(steps), true, &Arc::default()).unwrap();
        let detail = cases[0].detail.as_ref().unwrap();
        let wrong: Vec<bool> = detail.targets.iter().map(|target| target.wrong > 0).collect();
        assert_eq!((cases[0].verified, wrong), (false, vec![false, true, false]));
    }

    #[test]
    fn a_stop_leaves_what_was_measured() {
        let control = Arc::new(Control::default());
        control.stop();
        let steps = vec![step(Op::Read, Pattern::Sequential, 4096)];
        assert!(measure("drives", &ram(1), &load(steps.clone()), false, &control).unwrap().is_empty());
        let control = Arc::new(Control::default());
        let stopper = Arc::clone(&control);
        let thread = std::thread::spawn(move || {
            while stopper.progress().is_none() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            stopper.stop();
        });
        let load = Load { time_ns: Some(600_000_000_000), ..load(steps) };
        let cases = measure("drives", &ram(1), &load, false, &control).unwrap();
        thread.join().unwrap();
        let detail = cases[0].detail.as_ref().unwrap();
        assert!(detail.incomplete && !cases[0].verified);
    }

    #[test]
    fn a_region_too_small_for_one_transfer_is_refused() {
        let steps = vec![step(Op::Read, Pattern::Sequential, 4 << 20)];
        let refused = measure("drives", &ram(1), &load(steps), false, &Arc::default());
        assert!(matches!(refused, Err(SessionError::TooSmall { .. })));
    }
}
