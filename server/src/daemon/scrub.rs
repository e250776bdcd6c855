//! Scrubs of a running group: start, pause, resume, cancel, schedule, and what is remembered of them.
//!
//! `scrub/UUID.json` in the state folder holds the scrub under way (mode, place, counts, findings) and the last one that
//! came to its end. It is written every few seconds and at every change, and is what a restart goes on from; if it is lost,
//! the scrub starts from the beginning and nothing else is. A scrub that was not told to run while the group is short of
//! members or out of sync waits then and goes on by itself.
//!
//! Invariant: counts and place are copied together out of the engine, so nothing is counted twice or left out.

mod findings;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raid_core::engine::{FINDINGS_MAX, Finding, Pace, ScrubMode, ScrubState, SweepError};
use raid_core::geometry::Level;
use raid_core::units::{Stripe, Uuid};
use serde::{Deserialize, Serialize};

use self::findings::{finding_doc, finding_words, state_of};
use super::host::{replace_file, unix_seconds};
use super::jobs::Job;
use super::running::Running;
use super::{Daemon, lost};
use crate::control::ProblemCode;
use crate::control::group_set::DayWindow;
use crate::control::model::{
    DiskScrubDoc, FindingDoc, FindingKind, GroupState, Health, Operation, ProblemDoc, ScrubActivity,
    ScrubDoc, ScrubModeDoc, ScrubRunDoc, ScrubSummaryDoc,
};
use crate::lane::on_lane;

const VERSION: u32 = 1;
/// How often the keeper of a group looks.
const PERIOD: Duration = Duration::from_millis(500);
/// How often a running scrub is written down: what a crash makes it do again.
const SAVE_PERIOD: Duration = Duration::from_secs(5);

/// What the file holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    current: Option<ScrubRunDoc>,
    paused: bool,
    last: Option<ScrubRunDoc>,
}

/// Why a running scrub was told to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Pause,
    Cancel,
    Wait,
}

/// A scrub that runs on a lane.
struct Live {
    state: Arc<Mutex<ScrubState>>,
    job: Arc<Job>,
    stop: Option<Stop>,
}

/// All about the scrubs of one group.
pub(super) struct Keeper {
    path: PathBuf,
    record: Record,
    live: Option<Live>,
    why: Option<String>,
    saved: Instant,
}

impl Keeper {
    /// What is remembered of a group.
    #[must_use]
    pub(super) fn open(state_dir: &Path, group: Uuid) -> Self {
        let path = state_dir.join("scrub").join(format!("{group}.json"));
        let read = fs::read(&path).ok().map(|bytes| serde_json::from_slice::<Record>(&bytes));
        let record = match read {
            Some(Ok(record)) if record.version <= VERSION => record,
            Some(_) => {
                tracing::warn!(path = %path.display(), "what is remembered of scrubs cannot be read; starting anew");
                Record::default()
            }
            None => Record::default(),
        };
        Self { path, record, live: None, why: None, saved: Instant::now() }
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        self.record.version = VERSION;
        let folder = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder
            .and_then(|()| serde_json::to_vec_pretty(&self.record).map_err(std::io::Error::from))
            .and_then(|bytes| replace_file(&self.path, &bytes));
        if let Err(error) = written {
            tracing::warn!(%error, "the place of a scrub cannot be stored; a restart would start it from the beginning");
        }
    }

    /// Takes over how far the running scrub is.
    fn collect(&mut self, group: &Running) {
        let (Some(live), Some(current)) = (&self.live, &mut self.record.current) else { return };
        let state = live.state.lock().clone();
        current.next_stripe = state.next;
        current.checked_stripes = state.checked;
        current.skipped_stripes = state.skipped;
        current.checked_bytes = state.checked * group.shared.geometry().stripe_data_bytes();
        current.mismatched_stripes = state.mismatched;
        current.repaired_blocks = state.repaired_blocks;
        current.rewritten_blocks = state.rewritten_blocks;
        current.lost_blocks = state.lost_blocks;
        current.findings_left_out = state.findings_left_out;
        // Drives are named as they are when something is found: later another may be in the slot.
        let known = current.findings.len();
        current
            .findings
            .extend(state.findings[known.min(state.findings.len())..].iter().map(|f| finding_doc(group, f)));
    }

    fn activity(&self) -> ScrubActivity {
        match (&self.live, &self.record.current, self.record.paused) {
            (Some(_), _, _) => ScrubActivity::Running,
            (None, Some(_), true) => ScrubActivity::Paused,
            (None, Some(_), false) => ScrubActivity::Waiting,
            (None, None, _) => ScrubActivity::Idle,
        }
    }

    fn next_due_unix_s(&self, group: &Running) -> Option<u64> {
        let days = group.settings.of(group.uuid).scrub.days()?;
        let last = self.record.last.as_ref().map(|run| run.started_unix_s);
        Some(last.map_or(0, |started| started + days * 86_400))
    }

    /// Tells the running scrub to stop.
    fn halt(&mut self, stop: Stop) {
        if let Some(live) = &mut self.live {
            live.stop = Some(if stop == Stop::Wait { live.stop.unwrap_or(stop) } else { stop });
            live.job.pace.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the current scrub up or keeps it for later, at an order.
    pub(super) fn order(&mut self, group: &Running, what: &str) {
        self.collect(group);
        match what {
            "pause" => {
                self.record.paused = true;
                self.why = None;
                self.halt(Stop::Pause);
            }
            "resume" => {
                self.record.paused = false;
                self.why = None;
            }
            "cancel" if self.live.is_some() => self.halt(Stop::Cancel),
            "cancel" => self.record.current = None,
            _ => {
                if let Some(last) = &mut self.record.last {
                    last.acknowledged = true;
                }
            }
        }
        self.save();
    }

    /// Begins a new scrub; the keeper starts it.
    pub(super) fn begin(
        &mut self,
        group: &Running,
        mode: ScrubModeDoc,
        even_degraded: bool,
        scheduled: bool,
    ) {
        let stripes = group.shared.geometry().stripes();
        let started_unix_s = unix_seconds();
        let run =
            ScrubRunDoc { mode, even_degraded, scheduled, started_unix_s, stripes, ..ScrubRunDoc::default() };
        self.record.current = Some(run);
        self.record.paused = false;
        self.why = None;
        self.save();
    }

    /// Whether a scrub is under way, running or not.
    pub(super) fn is_busy(&self) -> bool {
        self.record.current.is_some()
    }

    /// Whether one that is under way was paused.
    pub(super) fn is_paused(&self) -> bool {
        self.record.paused
    }

    /// Whether the last one left something to acknowledge.
    pub(super) fn has_findings(&self) -> bool {
        self.record.last.as_ref().is_some_and(|last| !last.findings.is_empty() && !last.acknowledged)
    }

    /// The document.
    pub(super) fn doc(&mut self, group: &Running) -> ScrubDoc {
        self.collect(group);
        ScrubDoc {
            group: group.name().to_owned(),
            uuid: group.uuid.to_string(),
            state: self.activity(),
            why: self.why.clone(),
            progress: self.live.as_ref().map(|live| live.job.doc()),
            current: self.record.current.clone(),
            last: self.record.last.clone(),
            next_due_unix_s: self.next_due_unix_s(group),
        }
    }

    /// In short.
    pub(super) fn summary(&self, group: &Running) -> ScrubSummaryDoc {
        let last = self.record.last.as_ref();
        ScrubSummaryDoc {
            state: self.activity(),
            last_ended_unix_s: last.and_then(|run| run.ended_unix_s),
            checked_stripes: last.map_or(0, |run| run.checked_stripes),
            checked_bytes: last.map_or(0, |run| run.checked_bytes),
            skipped_stripes: last.map_or(0, |run| run.skipped_stripes),
            mismatches_left: last.map_or(0, ScrubRunDoc::mismatches_left),
            next_due_unix_s: self.next_due_unix_s(group),
        }
    }

    /// The last complete scrub, as far as it is about one disk.
    pub(super) fn of_disk(&self, disk: &str) -> Option<DiskScrubDoc> {
        let last = self.record.last.as_ref()?;
        let touches = |one: &&FindingDoc| one.disks.iter().any(|range| range.disk.as_deref() == Some(disk));
        Some(DiskScrubDoc {
            ended_unix_s: last.ended_unix_s?,
            complete: last.skipped_stripes == 0,
            findings: u64::try_from(last.findings.iter().filter(touches).count()).unwrap_or(u64::MAX),
        })
    }

    /// Tells the engine of a group that was just started what is remembered to be wrong. From then on the engine knows
    /// better: it sees what is rewritten.
    pub(super) fn tell(&self, group: &Running) {
        let runs = self.record.last.iter().chain(&self.record.current);
        let findings: Vec<Finding> = runs.flat_map(|run| state_of(run).findings).collect();
        group.shared.set_findings(findings.iter());
    }

    /// The stripes with something wrong that nobody has put right, as far as it is remembered.
    fn doubtful(&self) -> Vec<Stripe> {
        let runs = self.record.last.iter().chain(&self.record.current);
        let open = runs.flat_map(|run| &run.findings).filter(|one| !one.repaired);
        let mut stripes: Vec<Stripe> = open.map(|one| Stripe(one.stripe)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes
    }

    /// Takes off what the engine has seen put right: rewritten by a client, or on a member that is another now.
    fn settle(&mut self, group: &Running) {
        if group.shared.geometry().level() != Level::Raid6 {
            return;
        }
        let mut is_changed = false;
        for run in self.record.last.iter_mut().chain(&mut self.record.current) {
            let standing: Vec<bool> =
                state_of(run).findings.iter().map(|finding| group.shared.is_standing(finding)).collect();
            for (one, stands) in run.findings.iter_mut().zip(standing) {
                is_changed |= !stands && !one.repaired;
                one.repaired |= !stands;
            }
        }
        if is_changed {
            self.save();
        }
    }

    /// Blocks that scrubs found without a source.
    pub(super) fn lost_rows(&self) -> Vec<lost::Row> {
        let runs = self.record.last.iter().chain(&self.record.current);
        runs.flat_map(|run| &run.findings)
            .filter(|one| one.what == FindingKind::Lost)
            .map(|one| {
                (Stripe(one.stripe), one.chunk_offset_bytes..one.chunk_offset_bytes + one.length_bytes)
            })
            .collect()
    }

    /// What does not fit and nobody has put right or acknowledged.
    pub(super) fn problem(&mut self, group: &Running) -> Option<ProblemDoc> {
        self.collect(group);
        self.settle(group);
        let runs =
            [self.record.current.as_ref(), self.record.last.as_ref().filter(|last| !last.acknowledged)];
        let run = runs.into_iter().flatten().find(|run| run.mismatches_left() > 0)?;
        let first = run.findings.iter().find(|one| !one.repaired && one.what != FindingKind::Lost);
        let located = run.findings.iter().any(|one| !one.repaired && one.what == FindingKind::Located);
        let can_repair = located && run.mode == ScrubModeDoc::Report && obstacle(group, false).is_none();
        let name = group.name();
        let more = if can_repair { " --repair" } else { " --show" };
        let member = first.filter(|one| one.what == FindingKind::Located).and_then(|one| one.members.first());
        let first = first.map_or_else(String::new, |one| format!("; first: {}", finding_words(one)));
        Some(ProblemDoc {
            code: ProblemCode::GroupMismatch.into(),
            health: Health::Warning,
            group: Some(name.to_owned()),
            slot: member.map(|member| member.slot),
            drive: member.and_then(|member| member.drive.clone()),
            serial: member.and_then(|member| member.serial.clone()),
            since_unix_s: Some(run.ended_unix_s.unwrap_or(run.started_unix_s)),
            why: format!(
                "a scrub found {} place{} where data and redundancy do not fit{first}",
                run.mismatches_left(),
                if run.mismatches_left() == 1 { "" } else { "s" }
            ),
            risk: "data may be wrong there, and after a drive failure it may be rebuilt wrong".into(),
            next: format!("warpraid group scrub {name}{more}"),
        })
    }
}

/// Minute of the day by the local clock.
fn local_minute() -> u32 {
    let now = jiff::Zoned::now();
    u32::try_from(now.hour()).unwrap_or(0) * 60 + u32::try_from(now.minute()).unwrap_or(0)
}

/// What keeps a scrub from running now, in words.
pub(super) fn obstacle(group: &Running, even_degraded: bool) -> Option<String> {
    match super::status::judge(&group.facts()).state {
        GroupState::Healthy => None,
        GroupState::Offline => Some("the group is offline".to_owned()),
        _ if even_degraded => None,
        GroupState::Syncing => Some("the group is not in sync yet".to_owned()),
        GroupState::Rebuilding => Some("a member is being rebuilt".to_owned()),
        _ => Some("members are missing".to_owned()),
    }
}

impl Daemon {
    /// Looks after the scrubs of a group, and what is lost in it, as long as it runs.
    pub(super) async fn keep_scrubs(self: Arc<Self>, group: Arc<Running>) {
        Self::look_again(&group).await;
        while self.is_running(group.uuid) {
            if !group.shared.is_stopping() {
                group.scrub.lock().settle(&group);
                self.look_after_scrub(&group);
                lost::look(&group).await;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Compares what is remembered to be wrong from before the start: it may have been rewritten since it was noted. What
    /// cannot be compared now, because members are missing, stays in doubt.
    async fn look_again(group: &Arc<Running>) {
        let doubtful = group.scrub.lock().doubtful();
        if doubtful.is_empty() || group.shared.geometry().level() != Level::Raid6 {
            return;
        }
        let uuid = group.uuid;
        let looked = on_lane(&group.home, move |lane| async move {
            match lane.group(uuid) {
                Some(group) => group.look_again(doubtful.into_iter()).await,
                None => Ok(()),
            }
        });
        if let Ok(Err(error)) = looked.await {
            tracing::warn!(group = group.name(), %error, "what scrubs had found could not be looked at again");
        }
    }

    fn look_after_scrub(self: &Arc<Self>, group: &Arc<Running>) {
        let settings = group.settings.of(group.uuid);
        let window = settings.scrub_window.as_deref().and_then(DayWindow::parse);
        let mut keeper = group.scrub.lock();
        if keeper.record.current.is_none() {
            let is_due = keeper.next_due_unix_s(group).is_some_and(|due| due <= unix_seconds());
            let is_open = window.is_none_or(|window| window.contains(local_minute()));
            if is_due
                && is_open
                && group.shared.geometry().level().is_redundant()
                && obstacle(group, false).is_none()
            {
                keeper.begin(group, ScrubModeDoc::Report, false, true);
            }
        }
        let Some(run) = keeper.record.current.clone() else { return };
        let closed = run.scheduled && window.is_some_and(|window| !window.contains(local_minute()));
        let why = obstacle(group, run.even_degraded)
            .or_else(|| closed.then(|| "it is outside the scrub window".to_owned()));
        if keeper.live.is_some() {
            if keeper.saved.elapsed() >= SAVE_PERIOD {
                keeper.collect(group);
                keeper.save();
            }
            if why.is_some() {
                keeper.why = why;
                keeper.halt(Stop::Wait);
            }
        } else if !keeper.record.paused {
            keeper.why = why;
            if keeper.why.is_none() {
                self.start_scrub(group, &mut keeper, &run);
            }
        }
    }

    fn start_scrub(self: &Arc<Self>, group: &Arc<Running>, keeper: &mut Keeper, run: &ScrubRunDoc) {
        let pace = Arc::new(Pace::default());
        let geometry = group.shared.geometry();
        pace.total_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
        pace.done_bytes.store(run.next_stripe * u64::from(geometry.chunk_bytes()), Ordering::Relaxed);
        let job = Job::new(Operation::Check, None, Arc::clone(&pace));
        group.jobs.lock().push(Arc::clone(&job));
        let state = Arc::new(Mutex::new(state_of(run)));
        keeper.live = Some(Live { state: Arc::clone(&state), job: Arc::clone(&job), stop: None });
        let mode = match run.mode {
            ScrubModeDoc::Report => ScrubMode::Report,
            ScrubModeDoc::Repair => ScrubMode::Repair,
            ScrubModeDoc::RepairSuspected => ScrubMode::RepairSuspected,
            ScrubModeDoc::AssumeDataRight => ScrubMode::AssumeDataRight,
        };
        tracing::info!(group = group.name(), ?mode, stripe = run.next_stripe, "scrub started");
        let group = Arc::clone(group);
        tokio::spawn(async move {
            let uuid = group.uuid;
            let ended = on_lane(&group.home, move |lane| async move {
                match lane.group(uuid) {
                    Some(group) => group.scrub(mode, &pace, &state).await,
                    None => Err(SweepError::Cancelled),
                }
            })
            .await;
            end_scrub(&group, ended.unwrap_or(Err(SweepError::Cancelled)));
            group.jobs.lock().retain(|other| !Arc::ptr_eq(other, &job));
        });
    }
}

/// A scrub that could not compare everything settles nothing that it may not have looked at: what an earlier one found and
/// nobody put right or acknowledged stays.
fn keep_unsettled(run: &mut ScrubRunDoc, last: ScrubRunDoc) {
    if run.skipped_stripes == 0 || last.acknowledged {
        return;
    }
    run.findings_left_out = run.findings_left_out.saturating_add(last.findings_left_out);
    for old in last.findings.into_iter().filter(|old| !old.repaired) {
        let found_again = |new: &FindingDoc| {
            (new.stripe, new.chunk_offset_bytes, new.what) == (old.stripe, old.chunk_offset_bytes, old.what)
        };
        if run.findings.iter().any(found_again) {
            continue;
        }
        if run.findings.len() < FINDINGS_MAX {
            run.findings.push(old);
        } else {
            run.findings_left_out = run.findings_left_out.saturating_add(1);
        }
    }
}

fn end_scrub(group: &Running, result: Result<(), SweepError>) {
    let mut keeper = group.scrub.lock();
    keeper.collect(group);
    let stop = keeper.live.take().and_then(|live| live.stop);
    let name = group.name();
    match (result, stop) {
        (Ok(()), _) => {
            let mut run = keeper.record.current.take().unwrap_or_default();
            run.ended_unix_s = Some(unix_seconds());
            let (mismatched, lost) = (run.mismatched_stripes, run.lost_blocks);
            tracing::info!(group = name, mismatched, lost, repaired = run.repaired_blocks, "scrub finished");
            if let Some(last) = keeper.record.last.take() {
                keep_unsettled(&mut run, last);
            }
            keeper.record.last = Some(run);
            keeper.record.paused = false;
        }
        (Err(SweepError::Cancelled), Some(Stop::Cancel)) => {
            tracing::info!(group = name, "scrub cancelled");
            keeper.record.current = None;
        }
        (Err(SweepError::Cancelled), _) => {
            tracing::info!(group = name, "scrub interrupted; it keeps its place")
        }
        (Err(error), _) => {
            tracing::error!(group = name, %error, "scrub failed; it is paused");
            keeper.record.paused = true;
            keeper.why = Some(error.to_string());
        }
    }
    keeper.save();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_that_compared_nothing_settles_nothing() {
        let finding = |stripe, repaired| FindingDoc {
            stripe,
            chunk_offset_bytes: 0,
            length_bytes: 512,
            what: FindingKind::Located,
            members: Vec::new(),
            disks: Vec::new(),
            repaired,
        };
        let found = ScrubRunDoc {
            findings: vec![finding(1, false), finding(2, true), finding(3, false)],
            ..ScrubRunDoc::default()
        };
        let later = |skipped_stripes| ScrubRunDoc {
            skipped_stripes,
            findings: vec![finding(3, false)],
            ..ScrubRunDoc::default()
        };
        let left = |mut run: ScrubRunDoc, last: &ScrubRunDoc| {
            keep_unsettled(&mut run, last.clone());
            run.mismatches_left()
        };
        assert_eq!(left(later(7), &found), 2, "what was skipped is still wrong");
        assert_eq!(left(later(0), &found), 1, "a whole scrub says how it is now");
        let acknowledged = ScrubRunDoc { acknowledged: true, ..found };
        assert_eq!(left(later(7), &acknowledged), 1);
    }

    #[test]
    fn a_scrub_under_way_survives_a_restart_and_a_damaged_file_is_started_anew() {
        let dir = tempfile::tempdir().unwrap();
        let uuid = Uuid::from_random(1, 2);
        let mut keeper = Keeper::open(dir.path(), uuid);
        let run =
            ScrubRunDoc { next_stripe: 7, checked_stripes: 6, skipped_stripes: 1, ..ScrubRunDoc::default() };
        keeper.record.current = Some(run.clone());
        keeper.record.paused = true;
        keeper.save();
        let again = Keeper::open(dir.path(), uuid);
        assert_eq!((again.record.current.clone(), again.activity()), (Some(run), ScrubActivity::Paused));
        let state = state_of(again.record.current.as_ref().unwrap());
        assert_eq!((state.next, state.checked, state.skipped), (7, 6, 1));
        fs::write(&again.path, b"{").unwrap();
        assert_eq!(Keeper::open(dir.path(), uuid).activity(), ScrubActivity::Idle);
    }
}
