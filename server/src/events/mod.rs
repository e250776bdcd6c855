//! What happened: numbered, kept over restarts, bounded, and handed to whoever waits for it.
//!
//! | file | what |
//! |---|---|
//! | `log` | the file in the state folder |
//! | `edges` | what changed between two looks at the same documents `status` is made of |
//! | `hooks` | executables that get every event |
//!
//! To tell of something new: a line in [`EventCode`]'s table, and `daemon.note(NewEvent::new(code, message))` where it
//! happens. What shows in a group's document (state, members, problems) needs neither: `edges` sees it.
//!
//! Invariants: numbers only grow, also over a crash (a number that was seen is never given again); an event is visible in
//! memory before it is on the disk and whether or not it gets there, so a state folder that hangs holds nobody up; memory
//! holds the last [`KEPT_MAX`] events and files a few more.

pub mod edges;
pub mod hooks;
mod log;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use self::log::Writer;
use crate::control::model::{EventDoc, EventListDoc, Health, ProblemDoc, Severity};
use crate::control::request::EventsOf;
use crate::control::{Code, EventCode};
use crate::daemon::host::unix_seconds;

/// Events kept in memory.
pub const KEPT_MAX: usize = 10_000;
/// Most events of one answer.
pub const LIMIT_MAX: u32 = 1000;
/// Events of one answer unless asked otherwise.
const LIMIT_DEFAULT: u32 = 100;
/// Longest wait for news.
const WAIT_S_MAX: u32 = 60;

/// An event that has no number yet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "an event that is not noted tells nobody"]
pub struct NewEvent(EventDoc);

impl NewEvent {
    /// An event with what happened in words.
    pub fn new(code: EventCode, message: impl Into<String>) -> Self {
        Self(EventDoc {
            id: 0,
            at_unix_s: 0,
            code: code.into(),
            severity: code.severity(),
            message: message.into(),
            group: None,
            disk: None,
            slot: None,
            drive: None,
            serial: None,
            health: None,
            problem: None,
            why: None,
            risk: None,
            next: None,
        })
    }

    /// The group it is about.
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.0.group = Some(name.into());
        self
    }

    /// The disk of that group.
    pub fn disk(mut self, name: impl Into<String>) -> Self {
        self.0.disk = Some(name.into());
        self
    }

    /// The slot.
    pub fn slot(mut self, slot: u8) -> Self {
        self.0.slot = Some(slot);
        self
    }

    /// Path and serial of the drive, as far as they are known.
    pub fn drive(mut self, path: Option<String>, serial: Option<String>) -> Self {
        (self.0.drive, self.0.serial) = (path, serial);
        self
    }

    /// How bad, where that differs from the code's own.
    pub fn severity(mut self, severity: Severity) -> Self {
        self.0.severity = severity;
        self
    }

    /// Health of the group after it.
    pub fn health(mut self, health: Health) -> Self {
        self.0.health = Some(health);
        self
    }

    /// The cause, in words.
    pub fn why(mut self, why: Option<String>) -> Self {
        self.0.why = why;
        self
    }

    /// The problem it is about: code, group, slot, drive, why, risk and next.
    pub fn problem(mut self, problem: &ProblemDoc) -> Self {
        let it = &mut self.0;
        it.group = problem.group.clone();
        it.slot = problem.slot;
        (it.drive, it.serial) = (problem.drive.clone(), problem.serial.clone());
        it.health = Some(problem.health);
        it.problem = Some(problem.code.clone());
        it.why = Some(problem.why.clone());
        it.risk = Some(problem.risk.clone());
        it.next = Some(problem.next.clone());
        self
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.0.code
    }

    /// What happened, in words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Its number-less document.
    #[must_use]
    pub fn doc(&self) -> &EventDoc {
        &self.0
    }
}

/// How bad an event is that brings this health.
#[must_use]
pub fn severity_of(health: Health) -> Severity {
    match health {
        Health::Ok => Severity::Info,
        Health::Warning => Severity::Warning,
        Health::Critical | Health::Unknown => Severity::Critical,
    }
}

struct Kept {
    events: VecDeque<Arc<EventDoc>>,
    next_id: u64,
    /// Since the daemon started, by code and severity.
    counts: BTreeMap<(String, Severity), u64>,
}

/// The record.
pub struct Events {
    kept: Mutex<Kept>,
    newest: watch::Sender<u64>,
    /// Nobody may wait any more: the daemon stops.
    is_closing: AtomicBool,
    writer: Writer,
}

impl Events {
    /// The record in this state folder: what was kept, and a thread that writes what comes.
    ///
    /// # Errors
    /// The thread cannot be started. A file that cannot be read or written is a problem (`events.unsaved`), no error.
    pub fn open(state_dir: &Path) -> std::io::Result<Self> {
        let (events, next_id, writer) = Writer::open(state_dir)?;
        let newest = events.back().map_or(0, |event| event.id);
        let kept = Kept { events, next_id, counts: BTreeMap::new() };
        Ok(Self {
            kept: Mutex::new(kept),
            newest: watch::Sender::new(newest),
            is_closing: AtomicBool::new(false),
            writer,
        })
    }

    /// Numbers an event, keeps it, and tells everybody who waits.
    pub fn note(&self, event: NewEvent) -> Arc<EventDoc> {
        let mut doc = event.0;
        let mut kept = self.kept.lock();
        doc.id = kept.next_id;
        doc.at_unix_s = unix_seconds();
        kept.next_id += 1;
        *kept.counts.entry((doc.code.to_string(), doc.severity)).or_default() += 1;
        match doc.severity {
            Severity::Info => tracing::info!(event = doc.id, code = %doc.code, "{}", doc.message),
            _ => tracing::warn!(event = doc.id, code = %doc.code, "{}", doc.message),
        }
        let doc = Arc::new(doc);
        if kept.events.len() == KEPT_MAX {
            kept.events.pop_front();
        }
        kept.events.push_back(Arc::clone(&doc));
        // Under the lock, so that the file and the waiting see them in order.
        self.writer.write(Arc::clone(&doc));
        self.newest.send_replace(doc.id);
        drop(kept);
        doc
    }

    /// Events after this number, oldest first.
    #[must_use]
    pub fn after(&self, id: u64) -> Vec<Arc<EventDoc>> {
        let kept = self.kept.lock();
        let from = kept.events.partition_point(|event| event.id <= id);
        kept.events.range(from..).cloned().collect()
    }

    /// Number of the newest event.
    #[must_use]
    pub fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    /// Tells of every new event.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Whether the state folder does not take events.
    #[must_use]
    pub fn is_unsaved(&self) -> bool {
        self.writer.is_unsaved()
    }

    /// Events since the daemon started, by code and severity.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<(String, Severity), u64> {
        self.kept.lock().counts.clone()
    }

    /// Those asked for, without waiting.
    #[must_use]
    pub fn list(&self, of: &EventsOf) -> EventListDoc {
        let limit = usize::try_from(of.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX)).unwrap_or(1);
        let fits = |event: &&Arc<EventDoc>| {
            of.since_unix_s.is_none_or(|since| event.at_unix_s >= since)
                && of.group.as_ref().is_none_or(|group| event.group.as_ref() == Some(group))
                && of.code.as_ref().is_none_or(|code| {
                    event.code == code.as_str()
                        || event.problem.as_ref().is_some_and(|it| it == code.as_str())
                })
        };
        let kept = self.kept.lock();
        let from = kept.events.partition_point(|event| of.after.is_some_and(|after| event.id <= after));
        let range = kept.events.range(from..).filter(fits);
        let found: Vec<&Arc<EventDoc>> = range.collect();
        let left_out = found.len().saturating_sub(limit);
        // Who goes on from a number reads forward; who asks what happened wants to know the latest.
        let given = if of.after.is_some() { &found[..found.len() - left_out] } else { &found[left_out..] };
        EventListDoc {
            events: given.iter().map(|event| (***event).clone()).collect(),
            oldest_id: kept.events.front().map_or(0, |event| event.id),
            newest_id: kept.events.back().map_or(0, |event| event.id),
            more: left_out > 0,
            left_out: raid_core::units::u64_of(left_out),
        }
    }

    /// Those asked for; if there are none and it was asked to wait, as soon as there are.
    pub async fn list_waiting(&self, of: &EventsOf) -> EventListDoc {
        let mut watch = self.watch();
        let wait = Duration::from_secs(of.wait_s.unwrap_or(0).min(WAIT_S_MAX).into());
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            watch.mark_unchanged();
            let list = self.list(of);
            if !list.events.is_empty() || wait.is_zero() || self.is_closing.load(Ordering::Relaxed) {
                return list;
            }
            match tokio::time::timeout_at(deadline, watch.changed()).await {
                Ok(Ok(())) => {}
                _ => return self.list(of),
            }
        }
    }

    /// Answers everybody who waits, and lets nobody wait from now on: the daemon stops.
    pub fn release_waiting(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.newest.send_modify(|_| {});
    }

    /// Problems that stood when the last event was written: those raised and not cleared, by the last word on each.
    #[must_use]
    pub fn standing(&self) -> BTreeMap<edges::Key, EventDoc> {
        let mut standing = BTreeMap::new();
        for event in &self.kept.lock().events {
            let Some(problem) = &event.problem else { continue };
            let key = edges::Key { code: problem.clone(), group: event.group.clone(), slot: event.slot };
            if event.code == EventCode::ProblemCleared.as_str() {
                standing.remove(&key);
            } else if event.code == EventCode::ProblemRaised.as_str()
                || event.code == EventCode::ProblemReminder.as_str()
            {
                standing.insert(key, (**event).clone());
            }
        }
        standing
    }

    /// Ends the writing thread after everything noted is on the disk.
    pub fn stop(&self) {
        self.writer.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> NewEvent {
        NewEvent::new(EventCode::OperatorVerb, text)
    }

    #[test]
    fn numbers_grow_over_restarts_and_never_come_twice() {
        let dir = tempfile::tempdir().unwrap();
        let mut last = 0;
        for round in 0..4 {
            let events = Events::open(dir.path()).unwrap();
            assert_eq!(events.newest(), last);
            for _ in 0..3 {
                let id = events.note(event("x").group("tank")).id;
                assert!(id > last, "{id} after {last}");
                last = id;
            }
            if round % 2 == 0 {
                last = events.note(NewEvent::new(EventCode::DaemonStopped, "bye")).id;
            }
            events.stop();
        }
        let events = Events::open(dir.path()).unwrap();
        let list = events.list(&EventsOf::default());
        assert_eq!((list.events.len(), list.newest_id, list.more), (14, last, false));
    }

    #[test]
    fn what_was_asked_for_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::open(dir.path()).unwrap();
        for i in 0..20 {
            events.note(event(&i.to_string()).group(if i % 2 == 0 { "even" } else { "odd" }));
        }
        let list = |of: EventsOf| {
            let list = events.list(&of);
            (list.events.iter().map(|it| it.message.clone()).collect::<Vec<_>>().join(" "), list.more)
        };
        let limit = Some(3);
        assert_eq!(list(EventsOf { limit, ..EventsOf::default() }), ("17 18 19".into(), true));
        assert_eq!(list(EventsOf { limit, after: Some(0), ..EventsOf::default() }), ("0 1 2".into(), true));
        let now = EventsOf { limit, since_unix_s: Some(0), ..EventsOf::default() };
        assert_eq!(list(now.clone()), ("17 18 19".into(), true), "the newest of what was since then");
        assert_eq!(events.list(&now).left_out, 17);
        assert_eq!(list(EventsOf { after: Some(0), ..now }), ("0 1 2".into(), true), "who follows reads on");
        let group = Some("odd".to_owned());
        let of = EventsOf { after: Some(15), group, ..EventsOf::default() };
        assert_eq!(list(of), ("15 17 19".into(), false));
        assert_eq!(
            list(EventsOf { since_unix_s: Some(u64::MAX), ..EventsOf::default() }),
            (String::new(), false)
        );
        assert_eq!(list(EventsOf { code: Some("alert.test".into()), ..EventsOf::default() }).0, "");
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let events = Arc::new(Events::open(dir.path()).unwrap());
        let of = EventsOf { after: Some(0), wait_s: Some(60), ..EventsOf::default() };
        let (other, asked) = (Arc::clone(&events), of.clone());
        let waiting = tokio::spawn(async move { other.list_waiting(&asked).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        events.note(event("now"));
        assert_eq!(waiting.await.unwrap().events[0].message, "now");
        let of_next = EventsOf { after: Some(events.newest()), ..of.clone() };
        let other = Arc::clone(&events);
        let waiting = tokio::spawn(async move { other.list_waiting(&of_next).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        events.release_waiting();
        assert!(waiting.await.unwrap().events.is_empty(), "a daemon that stops lets nobody wait");
        let none = EventsOf { after: Some(events.newest()), wait_s: Some(0), ..of };
        assert!(events.list_waiting(&none).await.events.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::open(dir.path()).unwrap();
        for _ in 0..KEPT_MAX + 10 {
            events.note(event("x"));
        }
        assert_eq!(events.after(0).len(), KEPT_MAX);
    }
}
