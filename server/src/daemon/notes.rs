//! Where the daemon's events come from: [`Daemon::note`] where something is done, and a look at the states every
//! [`LOOK_PERIOD`] and after every verb.
//!
//! Problems are level-triggered too: while one stands, a reminder comes every `--remind`, and one when the daemon starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Daemon;
use super::api::Api;
use crate::control::model::{ActionDoc, EventListDoc, ProblemDoc};
use crate::control::request::{AlertTest, EventsOf};
use crate::control::{Answer, ApiError, ErrorCode, EventCode, ProblemCode};
use crate::events::NewEvent;
use crate::events::edges::{self, Key, Look};

/// How often states are looked at: a drop shows within a second.
const LOOK_PERIOD: Duration = Duration::from_millis(300);

/// What the last look saw, and when each problem was last told.
#[derive(Default)]
pub(super) struct Watched {
    last: Option<Look>,
    told: BTreeMap<Key, Instant>,
}

/// The event that a verb changed something; verbs without a code of their own are `operator.verb`.
fn event_of(done: &ActionDoc) -> NewEvent {
    let code = match done.verb.as_str() {
        "group create" => EventCode::GroupCreated,
        "group delete" => EventCode::GroupDeleted,
        "disk create" => EventCode::DiskCreated,
        "disk delete" => EventCode::DiskDeleted,
        "disk resize" => EventCode::DiskResized,
        "disk expose" => EventCode::DiskExposed,
        "disk unexpose" => EventCode::DiskUnexposed,
        _ => EventCode::OperatorVerb,
    };
    let steps = done.steps.first().map(|step| format!(": {step}")).unwrap_or_default();
    let mut event = NewEvent::new(code, format!("{} {}{steps}", done.verb, done.subject));
    let noun = done.verb.split(' ').next().unwrap_or_default();
    match (noun, done.subject.split_once('/')) {
        ("disk", Some((group, disk))) => event = event.group(group).disk(disk),
        ("group", _) => event = event.group(&done.subject),
        ("drive", _) => event = event.drive(Some(done.subject.clone()), None),
        _ => {}
    }
    event
}

impl Daemon {
    /// Something happened. The one way an event comes to be.
    pub(super) fn note(&self, event: NewEvent) {
        self.events.note(event);
    }

    /// Problems of the daemon itself, of no group.
    pub(super) fn own_problems(&self) -> Vec<ProblemDoc> {
        let mut problems = Vec::new();
        if self.events.is_unsaved() {
            problems.push(ProblemDoc {
                code: ProblemCode::EventsUnsaved.into(),
                health: crate::control::model::Health::Warning,
                group: None,
                slot: None,
                drive: None,
                serial: None,
                since_unix_s: None,
                why: "the state folder takes no events: they are kept in memory only".into(),
                risk: "after a restart the record of what happened has a hole".into(),
                next: format!("df -h {}", self.options.state_dir.display()),
            });
        }
        problems
    }

    /// Looks at the states and notes what changed since the last look.
    pub(super) fn look_for_changes(self: &Arc<Self>) {
        let mut watched = self.watched.lock();
        let api = Api(Arc::clone(self));
        let groups = api.group_docs();
        let problems = api.problems(&groups);
        let now = Look::new(groups, &problems);
        let found = match &watched.last {
            Some(before) => edges::between(before, &now),
            None => edges::first(&self.events.standing(), &now),
        };
        for event in found {
            self.note(event);
        }
        watched.told.retain(|key, _| now.problems().contains_key(key));
        for (key, problem) in now.problems() {
            let told = watched.told.entry(key.clone()).or_insert_with(Instant::now);
            if self.options.remind_every.is_some_and(|every| told.elapsed() >= every) {
                *told = Instant::now();
                self.note(edges::reminder(problem));
            }
        }
        watched.last = Some(now);
    }

    /// Looks for changes for ever.
    pub(super) async fn watch_states(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            self.look_for_changes();
        }
    }
}

impl Api {
    /// Tells of a verb that changed something, and of what followed from it; gives the answer back.
    pub(super) fn noted(&self, answer: Answer<ActionDoc>) -> Answer<ActionDoc> {
        match &answer {
            Ok(reply) if !reply.data.dry_run => self.0.note(event_of(&reply.data)),
            _ => {}
        }
        self.0.look_for_changes();
        answer
    }

    pub(super) async fn events(&self, of: EventsOf) -> Answer<EventListDoc> {
        Ok(self.0.events.list_waiting(&of).await.into())
    }

    pub(super) async fn alert_test(&self, how: AlertTest) -> Answer<ActionDoc> {
        let hooks = self.0.hooks.list();
        let folder = self.0.options.hooks_dir.display();
        if how.dry_run {
            let mut steps = vec!["an alert.test event is written".to_owned()];
            steps.extend(hooks.iter().map(|hook| format!("{} is run", hook.display())));
            return Ok(ActionDoc::new("alert test", "alerts", true, steps).into());
        }
        let event =
            self.0.events.note(NewEvent::new(EventCode::AlertTest, "this is a test: nothing is wrong"));
        let mut steps = vec![format!("event {} was written", event.id)];
        if hooks.is_empty() {
            steps.push(format!("no hook was run: {folder} has none"));
        }
        let mut failed = Vec::new();
        for (path, outcome) in self.0.hooks.run_now(&event).await {
            match outcome {
                Ok(()) => steps.push(format!("{}: ok", path.display())),
                Err(why) => failed.push(format!("{}: {why}", path.display())),
            }
        }
        if failed.is_empty() {
            return Ok(ActionDoc::new("alert test", "alerts", false, steps).into());
        }
        self.0.note(NewEvent::new(EventCode::HookFailed, failed.join("; ")));
        Err(ApiError::new(ErrorCode::AlertFailed, format!("the test alert failed: {}", failed.join("; ")))
            .hint("run the hook by hand; the daemon's log has all it said"))
    }
}
