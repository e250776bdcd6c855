//! A scratch group through its life: whole, with one and two members lost, and being rebuilt, with verification each time.
//!
//! A member that was lost misses writes, so it never comes back but by a rebuild; its drive is zeroed before each, so that a
//! rebuild that does nothing cannot look right. At the end the parity of every stripe and every byte are compared.

use std::sync::Arc;

use nvme_backend::{Lane, LaneConfig, OpenDrive, block_on_lane};
use parking_lot::Mutex;
use raid_core::engine::{Pace, ScrubMode, ScrubState};
use raid_core::geometry::{GeometryError, Level};
use raid_core::ports::Drive;
use raid_core::units::{Slot, u64_of};

use super::session::{PassResult, Session, SessionError, Target};
use super::steps::{Load, Step, Verified, short_size, verify};
use super::{Control, Op, Pass, Pattern};
use crate::detail::{Run, case};
use crate::floors::{Floors, Unit};
use crate::record::Case;
use crate::scratch::{Condition, ScratchGroup};
use crate::stats::f64_of;

/// A rebuild of small drives is over soon: it is done again until this has passed, nanoseconds.
const REBUILDING_NS_MIN: u64 = 1_000_000_000;
/// And at least so often: from so many samples on there is a median.
const ROUNDS_MIN: usize = 3;
/// But not more often.
const ROUNDS_MAX: usize = 50;

/// A group to measure.
#[derive(Clone)]
pub struct Shape {
    /// Its level.
    pub level: Level,
    /// Bytes per drive and stripe.
    pub chunk_bytes: u32,
    /// Its members, in slot order. What lies on them is lost.
    pub drives: Vec<OpenDrive>,
}

/// Why a group could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The shape is impossible.
    #[error("these drives, this level and this chunk do not make a group: {0:?}")]
    Geometry(GeometryError),
    /// The load could not begin.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// A rebuild or a check failed.
    #[error("{0}")]
    Sweep(String),
}

impl From<GeometryError> for GroupError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

impl Shape {
    /// The group with these members lost or being rebuilt.
    ///
    /// # Errors
    /// The shape is impossible.
    pub fn group(&self, condition: &Condition, lanes: u16) -> Result<Arc<ScratchGroup>, GeometryError> {
        let name = format!("RAID {} of {}", self.level.number(), self.drives.len());
        // Mirrors have no chunk.
        let chunk = if self.level == Level::Raid1 { 0 } else { self.chunk_bytes };
        ScratchGroup::new(&name, self.level, chunk, self.drives.clone(), condition, lanes).map(Arc::new)
    }

    /// Slots that may be lost one after the other, the group still serving.
    fn losses(&self) -> Vec<u8> {
        match self.level {
            Level::Raid0 => Vec::new(),
            Level::Raid1 if self.drives.len() > 2 => vec![0, 1],
            Level::Raid10 if self.drives.len() > 2 => vec![0, 2],
            Level::Raid6 => vec![0, 1],
            Level::Raid1 | Level::Raid5 | Level::Raid10 => vec![0],
        }
    }
}

fn lanes() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cores).unwrap_or(u16::MAX)
}

struct Bench<'a> {
    shape: &'a Shape,
    load: &'a Load,
    control: &'a Arc<Control>,
    session: Session,
    cases: Vec<Case>,
    /// Members that missed writes.
    stale: Vec<u8>,
}

impl Bench<'_> {
    fn turn(&mut self, condition: &Condition) -> Result<(), GroupError> {
        let group = self.shape.group(condition, lanes())?;
        self.session.replace_targets(vec![Target::Group(group)]);
        Ok(())
    }

    fn push(&mut self, state: &str, step: &Step, result: &PassResult, verified: Verified) {
        let kind = format!("group.{state}");
        let id =
            format!("{kind}.{}.{}.{}", step.op.name(), step.pattern.name(), short_size(step.block_bytes));
        let run = Run {
            id,
            what: format!("{state}, {}", self.load.what(step)),
            form: step.form,
            test: step.test.to_owned(),
            op: step.op,
            pattern: step.pattern,
            block_bytes: step.block_bytes,
            threads: self.load.threads,
            queue_depth: self.load.queue_depth,
            targets: self.session.targets(),
            verification: verified.text,
            verified: verified.is_right,
        };
        let case = case(&run, result);
        self.cases.push(case);
    }

    fn verified(&mut self, op: Op, result: &mut PassResult) -> Result<Verified, GroupError> {
        if !self.load.verify {
            return Ok(Verified { text: "not asked for".into(), is_right: false });
        }
        Ok(verify(&mut self.session, op, result, self.control)?)
    }

    /// The steps in this condition.
    fn steps(&mut self, state: &str, condition: &Condition, steps: &[Step]) -> Result<(), GroupError> {
        for step in steps {
            if self.control.is_stopped() {
                return Ok(());
            }
            self.turn(condition)?;
            let label = format!("{state}: {} {}", step.op.name(), step.pattern.name());
            let mut result = self.session.run(&label, self.load.pass(step), self.control)?;
            let verified = self.verified(step.op, &mut result)?;
            self.push(state, step, &result, verified);
        }
        for &slot in &condition.lost {
            if !self.stale.contains(&slot) {
                self.stale.push(slot);
            }
        }
        Ok(())
    }

    /// The steps while the first lost member is being rebuilt, again and again; the others stay lost.
    fn rebuilding(&mut self, steps: &[Step]) -> Result<(), GroupError> {
        let Some(&slot) = self.stale.first() else { return Ok(()) };
        let lost: Vec<u8> = self.stale.iter().copied().filter(|other| *other != slot).collect();
        let condition = Condition { lost, rebuilding: Some(slot) };
        let mut rates = Vec::new();
        for step in steps {
            let mut all: Option<PassResult> = None;
            let mut rounds_ns = 0;
            let mut rounds = 0;
            while !self.control.is_stopped()
                && rounds < ROUNDS_MAX
                && (rounds < ROUNDS_MIN || rounds_ns < self.load.time_ns.unwrap_or(REBUILDING_NS_MIN))
            {
                zero(&self.shape.drives[usize::from(slot)])?;
                self.turn(&condition)?;
                let pass = Pass {
                    time_ns: Some(u64::MAX / 4),
                    ramp_ns: 0,
                    rebuild: Some(slot),
                    ..self.load.pass(step)
                };
                let label = format!("rebuilding: {} {}", step.op.name(), step.pattern.name());
                let result = self.session.run(&label, pass, self.control)?;
                let Some(rebuild) = &result.rebuild else { break };
                let took_ns = rebuild.clone().map_err(GroupError::Sweep)?;
                if result.incomplete {
                    all.get_or_insert(result).incomplete = true;
                    break;
                }
                rates.push(f64_of(self.member_bytes()) * 1e9 / f64_of(took_ns.max(1)));
                rounds_ns += took_ns;
                rounds += 1;
                match &mut all {
                    Some(all) => all.append(result),
                    None => all = Some(result),
                }
            }
            let Some(mut result) = all else { continue };
            // The rebuilt member now has to carry: read with every other member that may be lost away.
            let carried = self.carried_by(slot);
            self.turn(&carried)?;
            let verified = self.verified(step.op, &mut result)?;
            self.push("rebuilding", step, &result, verified);
        }
        self.stale.retain(|other| *other != slot);
        if !rates.is_empty() {
            let verified = self.cases.last().is_some_and(|case| case.verified);
            let under = steps.first().map_or(0, |step| step.block_bytes);
            let id = format!("group.rebuild.under-{}", short_size(under));
            let case = Case::measured(&id, Unit::BytesPerS, rates, &Floors::built_in());
            self.cases.push(case.with_load(1, self.load.queue_depth, verified));
        }
        Ok(())
    }

    fn member_bytes(&self) -> u64 {
        match &self.session.targets()[0] {
            Target::Group(group) => group.geometry().member_bytes(),
            _ => unreachable!("this session is of a group"),
        }
    }

    /// The group with as many members away as it can do without, none of them the one that was just rebuilt.
    fn carried_by(&self, slot: u8) -> Condition {
        let mut lost: Vec<u8> = self.stale.iter().copied().filter(|other| *other != slot).collect();
        let tolerated = self.shape.losses().len();
        let last = u8::try_from(self.shape.drives.len()).unwrap_or(u8::MAX).saturating_sub(1);
        if lost.len() < tolerated
            && last != slot
            && !lost.contains(&last)
            && self.shape.level != Level::Raid10
        {
            lost.push(last);
        }
        if self.shape.level == Level::Raid10 && lost.is_empty() {
            // The other half of its pair.
            lost.push(slot ^ 1);
        }
        Condition { lost, rebuilding: None }
    }

    /// Rebuilds what is still lost, then compares the parity of every stripe.
    fn heal(&mut self) -> Result<(), GroupError> {
        while let Some(slot) = self.stale.pop() {
            if self.control.is_stopped() {
                return Ok(());
            }
            self.control.begin(&format!("rebuild of slot {slot}"), None, None);
            zero(&self.shape.drives[usize::from(slot)])?;
            let condition = Condition { lost: self.stale.clone(), rebuilding: Some(slot) };
            let group = self.shape.group(&condition, 1)?;
            let failed = block_on_lane(LaneConfig::default(), |lane: Lane| {
                let group = group.on_lane(&lane);
                async move { group.rebuild(Slot(slot), &Pace::default()).await.err() }
            });
            if let Some(error) = failed {
                return Err(GroupError::Sweep(format!("the rebuild of slot {slot}: {error}")));
            }
        }
        self.control.begin("scrub of every stripe", None, None);
        let group = self.shape.group(&Condition::default(), 1)?;
        let checked = block_on_lane(LaneConfig::default(), |lane: Lane| {
            let group = group.on_lane(&lane);
            async move {
                let state = Mutex::new(ScrubState::default());
                let ended = group.scrub(ScrubMode::Report, &Pace::default(), &state).await;
                ended.map(|()| state.into_inner())
            }
        });
        let report = checked.map_err(|error| GroupError::Sweep(format!("the scrub: {error}")))?;
        if report.mismatched > 0 {
            return Err(GroupError::Sweep(format!(
                "{} of {} stripes have redundancy that does not match their data: this is a bug of warpraid",
                report.mismatched, report.checked
            )));
        }
        Ok(())
    }
}

/// Zeroes a drive, so that nothing on it is right by chance.
fn zero(drive: &OpenDrive) -> Result<(), GroupError> {
    const PIECE: u64 = 64 << 20;
    let drive = drive.clone();
    block_on_lane(LaneConfig::default(), |lane| async move {
        let (size, drive) = (drive.size_bytes(), drive.on_lane(&lane));
        let mut at = 0;
        while at < size {
            let end = size.min(at + PIECE);
            drive
                .zero(at..end, false)
                .await
                .map_err(|error| GroupError::Sweep(format!("zeroing: {error}")))?;
            at = end;
        }
        Ok(())
    })
}

/// Measures a group in every condition its level knows. `parts` are run for each transfer length of the load.
///
/// # Errors
/// What could not begin, or a rebuild or check that failed.
pub fn measure(shape: &Shape, load: &Load, control: &Arc<Control>) -> Result<Vec<Case>, GroupError> {
    let mut cases = Vec::new();
    for steps in load.by_block() {
        let Some(first) = steps.first() else { continue };
        let whole = shape.group(&Condition::default(), lanes())?;
        let session = load.session(vec![Target::Group(whole)], first.block_bytes, load.verify)?;
        let mut bench = Bench { shape, load, control, session, cases: Vec::new(), stale: Vec::new() };
        // A scratch group is made of whatever lies on its drives: only what was written through it has parity.
        for drive in &shape.drives {
            zero(drive)?;
        }
        bench.session.fill(control)?;
        bench.steps("healthy", &Condition::default(), steps)?;
        let losses = shape.losses();
        for count in 1..=losses.len() {
            let condition = Condition { lost: losses[..count].to_vec(), rebuilding: None };
            let state =
                if count == 1 { "degraded".to_owned() } else { format!("degraded-{}", u64_of(count)) };
            bench.steps(&state, &condition, steps)?;
        }
        bench.rebuilding(steps)?;
        if !control.is_stopped() && !shape.losses().is_empty() {
            bench.heal()?;
        }
        cases.append(&mut bench.cases);
    }
    Ok(cases)
}

/// What a load over a group writes and reads when nothing else is asked for.
#[must_use]
pub fn usual_steps(form: crate::detail::Form) -> Vec<Step> {
    let step = |op, pattern, block_bytes| Step { op, pattern, block_bytes, form, test: op.name() };
    vec![
        step(Op::Read, Pattern::Sequential, 1 << 20),
        step(Op::Write, Pattern::Sequential, 1 << 20),
        step(Op::Read, Pattern::Random, 4096),
        step(Op::Write, Pattern::Random, 4096),
    ]
}

#[cfg(test)]
mod tests {
    use raid_core::units::BlockSize;

    use super::*;
    use crate::detail::Form;

    fn load(blocks: &[u32]) -> Load {
        let step = |op, block_bytes| Step {
            op,
            pattern: Pattern::Sequential,
            block_bytes,
            form: Form::Storagebench,
            test: "",
        };
        Load {
            steps: blocks.iter().flat_map(|&block| [step(Op::Read, block), step(Op::Write, block)]).collect(),
            threads: 2,
            queue_depth: 2,
            size_bytes: None,
            time_ns: Some(20_000_000),
            ramp_ns: 0,
            verify: true,
            lanes: None,
        }
    }

    #[test]
    fn every_level_is_measured_whole_degraded_and_rebuilding_and_is_right() {
        for (level, members, states) in [
            (Level::Raid0, 3, 1),
            (Level::Raid1, 2, 3),
            (Level::Raid5, 4, 3),
            (Level::Raid6, 5, 4),
            (Level::Raid10, 4, 4),
        ] {
            let drives = (0..members).map(|_| OpenDrive::ram(2 << 20, BlockSize::B4096)).collect();
            let shape = Shape { level, chunk_bytes: 16 << 10, drives };
            let cases = measure(&shape, &load(&[128 << 10]), &Arc::default()).unwrap();
            let rebuilds = usize::from(level != Level::Raid0);
            assert_eq!(cases.len(), states * 2 + rebuilds, "{level:?}");
            for case in &cases {
                let said = case.detail.as_ref().map(|detail| detail.verification.as_str());
                assert!(case.verified && case.median > 0.0, "{level:?} {}: {said:?}", case.id);
            }
        }
    }
}
