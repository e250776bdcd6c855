//! Slow and sick members: who answers much later than the others, who makes too many errors, and what is done about it.
//!
//! **Slow.** Every [`WINDOW`] the median time of each member's reads, and of its writes, over the last [`SPAN`] windows is
//! held against those of the other members (not counting members known to be slow): an outlier is above the upper fence of
//! the others, above [`TIMES_OTHERS`] times their median, and more than [`EXCESS_NS`] above it. The fence is Tukey's with
//! the spread taken from the lower half, Q2 + 8 (Q2 - Q1), because two slow members of four would hide each other behind a
//! Q3. Fewer than [`SAMPLES_MIN`] samples on either side say nothing, so idle groups are never judged. A member that is an
//! outlier [`WINDOWS_TO_SIT`] windows in a row is slow.
//!
//! A slow member **sits out**: its reads are served from redundancy while its writes go on and it stays in sync
//! (`raid_core::engine`, reads around). Never more members than the group can do without, missing ones included; a slow
//! member beyond that is reported and read all the same. While one sits out all members are probed, [`PROBES`] reads a
//! window, and it returns after [`WINDOWS_TO_RETURN`] windows below half of the bounds in a row.
//!
//! **Sick.** Commands that failed and were made good from redundancy count against a budget an hour. Half of it is
//! reported; a member that exceeds it is dropped if the group can lose another one after that, else it stays and is
//! reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme_backend::meter::{IoOp, Metered};
use parking_lot::Mutex;
use raid_core::ports::{Drive as _, DriveKey, Env as _, IoKind, Pool};
use raid_core::units::{DriveOffset, Slot, Uuid};

use super::host::{random_u64, unix_seconds};
use super::running::Running;
use super::{Daemon, drives, look};
use crate::control::ProblemCode;
use crate::control::model::{Health, LatencyDoc, ProblemDoc};
use crate::lane::on_lane;

/// How often members are judged.
const WINDOW: Duration = Duration::from_secs(5);
/// Windows a median is taken over.
const SPAN: usize = 3;
/// Fewest samples of a median.
const SAMPLES_MIN: u64 = 8;
/// How many times the others' median is slow.
const TIMES_OTHERS: u64 = 5;
/// How much more than the others' median is slow, at least.
const EXCESS_NS: u64 = 1_000_000;
/// Quarter spreads above the others' median where their fence stands.
const FENCE: u64 = 8;
/// Windows in a row that make a member slow.
const WINDOWS_TO_SIT: u8 = 3;
/// Windows in a row that bring it back.
const WINDOWS_TO_RETURN: u8 = 3;
/// Reads of a probe.
const PROBES: u64 = 8;
const PROBE_BYTES: u32 = 4096;
/// How many windows lie between two looks at the drives' own health.
const SMART_WINDOWS: u64 = 12;
/// What errors are counted over.
const BUDGET_SPAN: Duration = Duration::from_secs(3600);

/// Medians of one member, in ns; none without enough samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Medians {
    read_ns: Option<u64>,
    write_ns: Option<u64>,
}

/// What the daemon knows of one member.
struct Watch {
    key: DriveKey,
    /// Reads and writes of the drive as they were counted, a window apart.
    taken: VecDeque<[Metered; 2]>,
    medians: Medians,
    others: Medians,
    slow_windows: u8,
    good_windows: u8,
    is_slow: bool,
    sits_out: bool,
    since_unix_s: u64,
    /// The slot's failed commands, and when.
    errors: VecDeque<(Instant, u64)>,
}

impl Watch {
    fn new(key: DriveKey) -> Self {
        Self {
            key,
            taken: VecDeque::new(),
            medians: Medians::default(),
            others: Medians::default(),
            slow_windows: 0,
            good_windows: 0,
            is_slow: false,
            sits_out: false,
            since_unix_s: 0,
            errors: VecDeque::new(),
        }
    }

    fn take(&mut self, counted: [Metered; 2]) {
        let median = |of: usize| {
            let (operations, ns) = counted[of].median_since(&self.taken.front()?[of])?;
            (operations >= SAMPLES_MIN).then_some(ns)
        };
        self.medians = Medians { read_ns: median(0), write_ns: median(1) };
        self.taken.push_back(counted);
        if self.taken.len() > SPAN {
            self.taken.pop_front();
        }
    }

    fn count_errors(&mut self, errors: u64) {
        let now = Instant::now();
        self.errors.push_back((now, errors));
        while self.errors.len() > 2 && now - self.errors[1].0 >= BUDGET_SPAN {
            self.errors.pop_front();
        }
    }

    /// Commands of the last hour that failed.
    fn recent_errors(&self) -> u64 {
        match (self.errors.front(), self.errors.back()) {
            (Some((_, first)), Some((_, last))) => last.saturating_sub(*first),
            _ => 0,
        }
    }

    /// Takes one window's verdict in; none: nothing to judge by.
    fn judge(&mut self, is_outlier: Option<bool>) {
        match (self.is_slow, is_outlier) {
            (_, None) => {}
            (false, Some(false)) => self.slow_windows = 0,
            (false, Some(true)) => {
                self.slow_windows += 1;
                if self.slow_windows >= WINDOWS_TO_SIT {
                    (self.is_slow, self.good_windows) = (true, 0);
                    self.since_unix_s = unix_seconds();
                }
            }
            (true, Some(true)) => self.good_windows = 0,
            (true, Some(false)) => {
                self.good_windows += 1;
                if self.good_windows >= WINDOWS_TO_RETURN {
                    (self.is_slow, self.slow_windows, self.sits_out) = (false, 0, false);
                }
            }
        }
    }
}

/// The value at a quarter (1, 2) of sorted values, the lower one between two.
fn quarter(sorted: &[u64], quarter: usize) -> u64 {
    sorted[(sorted.len() - 1) * quarter / 4]
}

/// Whether a median is an outlier above those of others; `is_slow`: it was before, and half of the bounds keep it so.
fn is_outlier(own: u64, others: &mut [u64], is_slow: bool) -> bool {
    others.sort_unstable();
    let (q1, q2) = (quarter(others, 1), quarter(others, 2));
    if is_slow {
        return own > q2.saturating_mul(TIMES_OTHERS) / 2 && own > q2.saturating_add(EXCESS_NS / 2);
    }
    own > q2.saturating_add(FENCE * (q2 - q1))
        && own > q2.saturating_mul(TIMES_OTHERS)
        && own > q2.saturating_add(EXCESS_NS)
}

/// The verdict about each member, and the median it was held against.
fn verdicts(members: &[(Medians, bool)]) -> Vec<(Option<bool>, Medians)> {
    let one = |number: usize, pick: fn(&Medians) -> Option<u64>| {
        let (medians, is_slow) = &members[number];
        let others = members.iter().enumerate().filter(|(other, (_, slow))| *other != number && !slow);
        let mut others: Vec<u64> = others.filter_map(|(_, (medians, _))| pick(medians)).collect();
        let own = pick(medians).filter(|_| !others.is_empty())?;
        Some((is_outlier(own, &mut others, *is_slow), quarter(&others, 2)))
    };
    let all = 0..members.len();
    all.map(|number| {
        let (read, write) = (one(number, |m| m.read_ns), one(number, |m| m.write_ns));
        let others = Medians { read_ns: read.map(|(_, ns)| ns), write_ns: write.map(|(_, ns)| ns) };
        let verdict = match (read, write) {
            (None, None) => None,
            (read, write) => Some(read.is_some_and(|it| it.0) || write.is_some_and(|it| it.0)),
        };
        (verdict, others)
    })
    .collect()
}

/// Who sits out: of the slow members (those that sit already first) as many as `is_readable` can do without.
fn sitters(slow: &[(Slot, bool)], is_readable: impl Fn(&BTreeSet<Slot>) -> bool) -> BTreeSet<Slot> {
    let mut slow = slow.to_vec();
    slow.sort_by_key(|&(slot, sits)| (!sits, slot));
    let mut out = BTreeSet::new();
    for (slot, _) in slow {
        out.insert(slot);
        if !is_readable(&out) {
            out.remove(&slot);
        }
    }
    out
}

fn milliseconds(ns: u64) -> String {
    format!("{}.{:02} ms", ns / 1_000_000, ns % 1_000_000 / 10_000)
}

/// All members under watch.
#[derive(Default)]
pub(super) struct Sick {
    members: Mutex<BTreeMap<(Uuid, Slot), Watch>>,
    probing: Mutex<BTreeSet<Uuid>>,
    /// Critical warnings of drives, by path, and since when.
    warnings: Mutex<BTreeMap<String, (u8, u64)>>,
}

impl Daemon {
    /// Watches over all members for as long as the daemon runs.
    pub(super) async fn keep_watch(self: Arc<Self>) {
        let mut windows = tokio::time::interval(WINDOW);
        windows.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for round in 0u64.. {
            windows.tick().await;
            if round.is_multiple_of(SMART_WINDOWS) {
                let daemon = Arc::clone(&self);
                tokio::spawn(async move { daemon.ask_drives().await });
            }
            let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
            self.sick.members.lock().retain(|(uuid, _), _| groups.iter().any(|group| group.uuid == *uuid));
            for group in groups {
                self.watch(&group);
                self.drop_over_budget(&group).await;
                self.probe(&group);
            }
        }
    }

    /// Asks every member's drive for its own view of its health.
    async fn ask_drives(&self) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let paths: BTreeSet<String> = groups
            .iter()
            .flat_map(|group| group.places.lock().iter().filter_map(|it| it.path.clone()).collect::<Vec<_>>())
            .collect();
        self.sick.warnings.lock().retain(|path, _| paths.contains(path));
        for path in paths {
            let Some(smart) = look::smart(std::path::Path::new(&path)).await else { continue };
            let mut warnings = self.sick.warnings.lock();
            match smart.critical_warning {
                0 => drop(warnings.remove(&path)),
                bits => warnings.entry(path).or_insert((bits, unix_seconds())).0 = bits,
            }
        }
    }

    /// One window of one group.
    fn watch(&self, group: &Arc<Running>) {
        let status = group.shared.status();
        let geometry = *group.shared.geometry();
        let in_sync = |slot: Slot| status.view.member(slot).is_in_sync();
        let keys: Vec<Option<DriveKey>> = group.places.lock().iter().map(|place| place.key).collect();
        let mut watched = self.sick.members.lock();
        let mut judged = Vec::new();
        for slot in status.view.slots() {
            let place = (group.uuid, slot);
            let drive = keys[slot.index()].filter(|_| in_sync(slot));
            let Some((key, drive)) = drive.and_then(|key| Some((key, self.host.drive(key)?))) else {
                watched.remove(&place);
                continue;
            };
            let watch = watched.entry(place).or_insert_with(|| Watch::new(key));
            if watch.key != key {
                *watch = Watch::new(key);
            }
            watch.take([drive.metered(IoOp::Read), drive.metered(IoOp::Write)]);
            watch.count_errors(status.slots[slot.index()].errors);
            // The operator has said that it may be slow, and it is hardly read.
            if !group.shared.is_write_mostly(slot) {
                judged.push((slot, (watch.medians, watch.is_slow)));
            }
        }
        let members: Vec<(Medians, bool)> = judged.iter().map(|(_, member)| *member).collect();
        for ((slot, _), (verdict, others)) in judged.iter().zip(verdicts(&members)) {
            let Some(watch) = watched.get_mut(&(group.uuid, *slot)) else { continue };
            let was_slow = watch.is_slow;
            watch.others = others;
            watch.judge(verdict);
            if was_slow != watch.is_slow {
                let what =
                    if watch.is_slow { "member is slow" } else { "member is as fast as the others again" };
                tracing::warn!(group = group.name(), %slot, medians = ?watch.medians, ?others, "{what}");
            }
        }
        let of_group = |(uuid, _): &(Uuid, Slot)| *uuid == group.uuid;
        let slow: Vec<(Slot, bool)> = watched
            .iter()
            .filter(|(place, watch)| of_group(place) && watch.is_slow)
            .map(|((_, slot), watch)| (*slot, watch.sits_out))
            .collect();
        let out = sitters(&slow, |out| {
            geometry.level().is_redundant()
                && geometry.is_readable(|slot| in_sync(slot) && !out.contains(&slot))
        });
        for ((_, slot), watch) in watched.iter_mut().filter(|(place, _)| of_group(place)) {
            watch.sits_out = out.contains(slot);
        }
        group.shared.set_avoided(|slot| out.contains(&slot));
    }

    /// Reads a few blocks of every member while one sits out, to see it recover, and to have something to hold it against.
    fn probe(self: &Arc<Self>, group: &Arc<Running>) {
        let sits = self.sick.members.lock().iter().any(|((uuid, _), it)| *uuid == group.uuid && it.sits_out);
        if !sits || !self.sick.probing.lock().insert(group.uuid) {
            return;
        }
        let (daemon, group) = (Arc::clone(self), Arc::clone(group));
        tokio::spawn(async move {
            let view = group.shared.view();
            let slots = view.slots().filter(|slot| view.member(*slot).is_in_sync());
            let probes: Vec<_> =
                slots.map(|slot| tokio::spawn(probe_member(Arc::clone(&group), slot))).collect();
            for probe in probes {
                drop(probe.await);
            }
            daemon.sick.probing.lock().remove(&group.uuid);
        });
    }

    /// Drops members over their error budget where the group can lose another one after that.
    async fn drop_over_budget(&self, group: &Arc<Running>) {
        let budget = self.options.error_budget;
        let view = group.shared.view();
        let over = view.slots().find(|slot| {
            let watched = self.sick.members.lock();
            let errors = watched.get(&(group.uuid, *slot)).map_or(0, Watch::recent_errors);
            budget > 0 && errors > budget && self.can_lose_another(group, *slot)
        });
        let Some(slot) = over else { return };
        tracing::error!(group = group.name(), %slot, budget, "more errors within an hour than allowed: dropped");
        let (uuid, epoch) = (group.uuid, view.epoch);
        let dropped = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => group.fail(epoch, slot, IoKind::Medium).await.map(|_| ()),
                None => Ok(()),
            }
        });
        if let Ok(Ok(())) = dropped.await {
            group.release_dropped(&self.host, &self.lanes);
        }
    }

    /// Whether the group stays readable when this member goes and any other after it.
    fn can_lose_another(&self, group: &Running, slot: Slot) -> bool {
        let (view, geometry) = (group.shared.view(), group.shared.geometry());
        let without = |gone: Slot, next: Slot| {
            geometry.is_readable(|s| s != gone && s != next && view.member(s).is_in_sync())
        };
        group.is_synced() && view.slots().all(|next| without(slot, next))
    }

    /// What is known of how fast a member answers.
    pub(super) fn latency_doc(&self, group: Uuid, slot: u8, reads: u64, writes: u64) -> Option<LatencyDoc> {
        let watched = self.sick.members.lock();
        let watch = watched.get(&(group, Slot(slot)))?;
        Some(LatencyDoc {
            read_median_ns: watch.medians.read_ns,
            write_median_ns: watch.medians.write_ns,
            others_read_median_ns: watch.others.read_ns,
            others_write_median_ns: watch.others.write_ns,
            reads,
            writes,
            slow: watch.is_slow,
            sits_out: watch.sits_out,
            recent_errors: watch.recent_errors(),
        })
    }

    /// A problem for each slow or sick member.
    pub(super) fn sick_problems(&self) -> Vec<ProblemDoc> {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let watched = self.sick.members.lock();
        let mut problems = Vec::new();
        for (path, (bits, since_unix_s)) in self.sick.warnings.lock().iter() {
            let found = groups.iter().find_map(|group| Some((group, group.slot_called(path)?)));
            let Some((group, slot)) = found else { continue };
            let why = format!("warns of itself: {}", drives::smart_warnings(*bits).join("; "));
            let mut problem = member_problem(group, slot, ProblemCode::DriveHealth, why, "it may fail soon");
            problem.since_unix_s = Some(*since_unix_s);
            problems.push(problem);
        }
        for ((uuid, slot), watch) in watched.iter() {
            let Some(group) = groups.iter().find(|group| group.uuid == *uuid) else { continue };
            if watch.is_slow {
                problems.push(slow_problem(group, *slot, watch));
            }
            let budget = self.options.error_budget;
            if budget > 0 && watch.recent_errors() * 2 >= budget.max(2) {
                problems.push(sick_problem(group, *slot, watch.recent_errors(), budget));
            }
        }
        problems
    }
}

async fn probe_member(group: Arc<Running>, slot: Slot) {
    let uuid = group.uuid;
    let home = group.home.clone();
    let probed = on_lane(&home, move |state| async move {
        let Some(group) = state.group(uuid) else { return };
        let view = group.shared().view();
        let member = view.member(slot);
        let Some(drive) = member.drive.and_then(|key| state.env().drive(key)) else { return };
        let blocks = group.shared().geometry().member_bytes() / u64::from(PROBE_BYTES);
        for _ in 0..PROBES {
            let at = random_u64() % blocks.max(1) * u64::from(PROBE_BYTES);
            let into = state.env().lease(Pool::Metadata, &[PROBE_BYTES]).await;
            let done = drive.read(DriveOffset(member.layout.data_start.0 + at), into).await;
            if let Err(error) = done.result {
                // Nobody else reads it: a member that hangs or went away would go unnoticed.
                if error.kind.drops_member_on_read() {
                    drop(group.fail(view.epoch, slot, error.kind).await);
                }
                return;
            }
        }
    });
    // A lane that has gone takes the daemon down with it.
    let _ = probed.await;
}

fn member_problem(group: &Running, slot: Slot, code: ProblemCode, why: String, risk: &str) -> ProblemDoc {
    let place = group.places.lock()[slot.index()].clone();
    let drive = place.path.clone().unwrap_or_default();
    ProblemDoc {
        code: code.into(),
        health: Health::Warning,
        group: Some(group.name().to_owned()),
        slot: Some(slot.0),
        drive: place.path,
        serial: place.serial,
        since_unix_s: None,
        why: format!("slot {slot} ({drive}) {why}"),
        risk: risk.into(),
        next: format!("warpraid drive show {drive}"),
    }
}

fn slow_problem(group: &Running, slot: Slot, watch: &Watch) -> ProblemDoc {
    let pair = |what: &str, own: Option<u64>, others: Option<u64>| {
        let (own, others) = (milliseconds(own?), milliseconds(others?));
        Some(format!("{what} in {own}, the other members in {others}"))
    };
    let figures = pair("answers reads", watch.medians.read_ns, watch.others.read_ns).into_iter().chain(pair(
        "answers writes",
        watch.medians.write_ns,
        watch.others.write_ns,
    ));
    let figures = figures.collect::<Vec<_>>().join("; ");
    let figures = if figures.is_empty() { "was slow when it was last used".to_owned() } else { figures };
    let (end, risk) = if watch.sits_out {
        ("reads avoid it", "writes still wait for it; reads are served from redundancy")
    } else {
        ("it is read all the same: the group cannot do without it", "reads and writes wait for it")
    };
    let mut problem = member_problem(group, slot, ProblemCode::MemberSlow, format!("{figures}; {end}"), risk);
    problem.since_unix_s = Some(watch.since_unix_s);
    problem
}

fn sick_problem(group: &Running, slot: Slot, errors: u64, budget: u64) -> ProblemDoc {
    let why = format!("failed {errors} commands within an hour (allowed: {budget}); all were made good");
    let risk = if errors > budget {
        "it would be dropped if the group could lose another drive after that; it may fail for good"
    } else {
        "it may fail for good"
    };
    member_problem(group, slot, ProblemCode::MemberSick, why, risk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn reads(ns: &[u64]) -> Vec<Option<bool>> {
        let members: Vec<_> =
            ns.iter().map(|&ns| (Medians { read_ns: Some(ns), write_ns: None }, false)).collect();
        verdicts(&members).into_iter().map(|(verdict, _)| verdict).collect()
    }

    #[test]
    fn a_member_far_above_the_others_is_an_outlier_and_small_differences_are_not() {
        let yes = |ns: &[u64], slow: &[usize]| {
            let found: Vec<usize> =
                reads(ns).iter().enumerate().filter(|(_, it)| **it == Some(true)).map(|(i, _)| i).collect();
            assert_eq!(found, slow, "{ns:?}");
        };
        yes(&[100 * US, 100 * US, 10 * MS, 110 * US], &[2]);
        yes(&[100 * US, 10 * MS], &[1]);
        // Two of four hide from a Q3, not from the lower half.
        yes(&[100 * US, 20 * MS, 10 * MS, 110 * US], &[1, 2]);
        yes(&[100 * US, 20 * MS, 10 * MS], &[1, 2]);
        // Ten times slower, but by less than a millisecond: nobody feels it.
        yes(&[20 * US, 20 * US, 200 * US, 20 * US], &[]);
        // Slow drives that differ: below five times.
        yes(&[10 * MS, 12 * MS, 30 * MS, 11 * MS], &[]);
        // A wide spread of sound members moves the fence.
        yes(&[MS, 4 * MS, 4 * MS, 5 * MS, 25 * MS], &[]);
        yes(&[5 * MS; 6], &[]);
        assert_eq!(reads(&[10 * MS]), [None], "nothing to hold it against");
    }

    #[test]
    fn too_few_samples_say_nothing_and_writes_count_too() {
        let fast = (Medians { read_ns: None, write_ns: Some(50 * US) }, false);
        let slow = (Medians { read_ns: None, write_ns: Some(9 * MS) }, false);
        let idle = (Medians::default(), false);
        let found: Vec<_> = verdicts(&[fast, slow, idle, fast]).into_iter().map(|(it, _)| it).collect();
        assert_eq!(found, [Some(false), Some(true), None, Some(false)]);
    }

    #[test]
    fn three_windows_in_a_row_make_a_member_slow_and_three_bring_it_back() {
        let mut watch = Watch::new(DriveKey(1));
        for verdict in [true, true, false, true, true] {
            watch.judge(Some(verdict));
        }
        assert!(!watch.is_slow);
        watch.judge(None);
        watch.judge(Some(true));
        assert!(watch.is_slow);
        for verdict in [false, false, true, false, false] {
            watch.judge(Some(verdict));
        }
        assert!(watch.is_slow);
        watch.judge(Some(false));
        assert!(!watch.is_slow && watch.slow_windows == 0);
        // Hysteresis: what would not make it slow keeps it slow.
        assert!(!is_outlier(4 * MS, &mut [MS, MS], false) && is_outlier(4 * MS, &mut [MS, MS], true));
        assert!(!is_outlier(2 * MS, &mut [MS, MS], true));
    }

    #[test]
    fn never_more_sit_out_than_the_group_can_do_without() {
        use raid_core::geometry::{Geometry, Level};
        let out = |level, members, slow: &[(u8, bool)], missing: &[u8]| -> Vec<u8> {
            let chunk = if level == Level::Raid1 { 0 } else { 65536 };
            let geometry = Geometry::new(level, members, chunk, 1 << 30).unwrap();
            let slow: Vec<_> = slow.iter().map(|&(slot, sits)| (Slot(slot), sits)).collect();
            let out = sitters(&slow, |out| {
                geometry.is_readable(|slot| !missing.contains(&slot.0) && !out.contains(&slot))
            });
            out.into_iter().map(|slot| slot.0).collect()
        };
        assert_eq!(out(Level::Raid5, 4, &[(1, false), (3, false)], &[]), [1]);
        assert_eq!(out(Level::Raid5, 4, &[(1, false), (3, true)], &[]), [3]);
        assert_eq!(out(Level::Raid5, 4, &[(1, true)], &[2]), [0_u8; 0]);
        assert_eq!(out(Level::Raid6, 5, &[(0, false), (1, false), (2, false)], &[]), [0, 1]);
        assert_eq!(out(Level::Raid6, 5, &[(0, false), (1, false)], &[4]), [0]);
        assert_eq!(out(Level::Raid1, 2, &[(0, false), (1, false)], &[]), [0]);
        assert_eq!(out(Level::Raid10, 4, &[(0, false), (1, false), (2, false)], &[]), [0, 2]);
        assert_eq!(out(Level::Raid0, 3, &[(0, false)], &[]), [0_u8; 0]);
    }

    #[test]
    fn errors_are_counted_from_when_the_member_was_first_seen() {
        let mut watch = Watch::new(DriveKey(1));
        for errors in [40, 40, 47, 52] {
            watch.count_errors(errors);
        }
        assert_eq!(watch.recent_errors(), 12);
    }
}
