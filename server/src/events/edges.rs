//! What changed between two looks at the same documents that `status` is made of.
//!
//! The one place where states become events: status, health, metrics and events cannot disagree, because they are made of
//! the same documents, and a problem nobody thought of here is raised and cleared like any other.

use std::collections::BTreeMap;

use super::{NewEvent, severity_of};
use crate::control::model::{EventDoc, GroupDoc, GroupState, Health, MemberDoc, MemberState, ProblemDoc};
use crate::control::{Code, EventCode};

/// What makes a problem the same one at another time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Its code.
    pub code: Code,
    /// Its group.
    pub group: Option<String>,
    /// Its slot.
    pub slot: Option<u8>,
}

impl Key {
    /// The key of a problem.
    #[must_use]
    pub fn of(problem: &ProblemDoc) -> Self {
        Self { code: problem.code.clone(), group: problem.group.clone(), slot: problem.slot }
    }
}

/// One look: groups by uuid, problems by key.
#[derive(Clone, Default, Debug)]
pub struct Look {
    groups: BTreeMap<String, GroupDoc>,
    problems: BTreeMap<Key, ProblemDoc>,
}

impl Look {
    /// A look at these documents. Of problems with one key the worst counts.
    #[must_use]
    pub fn new(groups: Vec<GroupDoc>, problems: &[ProblemDoc]) -> Self {
        let mut by_key: BTreeMap<Key, ProblemDoc> = BTreeMap::new();
        for problem in problems {
            let known = by_key.get(&Key::of(problem));
            if known.is_none_or(|known| known.health < problem.health) {
                by_key.insert(Key::of(problem), problem.clone());
            }
        }
        Self {
            groups: groups.into_iter().map(|group| (group.uuid.clone(), group)).collect(),
            problems: by_key,
        }
    }

    /// Its problems.
    #[must_use]
    pub fn problems(&self) -> &BTreeMap<Key, ProblemDoc> {
        &self.problems
    }
}

fn subject(problem: &ProblemDoc) -> String {
    problem.group.as_ref().map_or_else(|| "daemon".to_owned(), |group| format!("group {group}"))
}

/// The event that a problem is there.
pub fn raised(problem: &ProblemDoc) -> NewEvent {
    let message = format!("{}: {}; {}", subject(problem), problem.why, problem.risk);
    NewEvent::new(EventCode::ProblemRaised, message).problem(problem).severity(severity_of(problem.health))
}

/// The event that it still is.
pub fn reminder(problem: &ProblemDoc) -> NewEvent {
    let message = format!("{}: still {}; {}", subject(problem), problem.why, problem.risk);
    NewEvent::new(EventCode::ProblemReminder, message).problem(problem).severity(severity_of(problem.health))
}

fn cleared(problem: &ProblemDoc) -> NewEvent {
    let message = format!("{}: no longer {} ({})", subject(problem), problem.code, problem.why);
    let mut quiet = problem.clone();
    quiet.health = Health::Ok;
    let mut event = NewEvent::new(EventCode::ProblemCleared, message).problem(&quiet);
    (event.0.why, event.0.risk, event.0.next) = (None, None, None);
    event
}

/// What a daemon that just started has to say, given what stood when the one before it ended: groups, problems that are
/// new, that still stand, that are gone.
#[must_use]
pub fn first(standing: &BTreeMap<Key, EventDoc>, now: &Look) -> Vec<NewEvent> {
    let mut events: Vec<NewEvent> = now.groups.values().filter_map(appeared).collect();
    for (key, problem) in &now.problems {
        events.push(if standing.contains_key(key) { reminder(problem) } else { raised(problem) });
    }
    for (key, event) in standing.iter().filter(|(key, _)| !now.problems.contains_key(key)) {
        let message = match &key.group {
            Some(group) => format!("group {group}: no longer {}", key.code),
            None => format!("daemon: no longer {}", key.code),
        };
        let mut gone = NewEvent::new(EventCode::ProblemCleared, message);
        gone.0.problem = Some(key.code.clone());
        (gone.0.group, gone.0.slot) = (key.group.clone(), key.slot);
        (gone.0.drive, gone.0.serial) = (event.drive.clone(), event.serial.clone());
        gone.0.health = Some(Health::Ok);
        events.push(gone);
    }
    events
}

/// What happened between two looks.
#[must_use]
pub fn between(before: &Look, now: &Look) -> Vec<NewEvent> {
    let mut events = Vec::new();
    for (uuid, group) in &now.groups {
        match before.groups.get(uuid) {
            None => events.extend(appeared(group)),
            Some(old) => changed(old, group, &mut events),
        }
    }
    for (uuid, group) in &before.groups {
        if !now.groups.contains_key(uuid) && group.state != GroupState::Stopped {
            events.push(about(EventCode::GroupStopped, group, format!("group {} stopped", group.name)));
        }
    }
    for (key, problem) in &now.problems {
        let old = before.problems.get(key);
        if old.is_none_or(|old| old.health < problem.health) {
            events.push(raised(problem));
        }
    }
    for (key, problem) in &before.problems {
        if !now.problems.contains_key(key) {
            events.push(cleared(problem));
        }
    }
    events
}

fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text.replace('_', " "),
        _ => String::new(),
    }
}

fn about(code: EventCode, group: &GroupDoc, message: String) -> NewEvent {
    NewEvent::new(code, message).group(&group.name).health(group.health)
}

fn appeared(group: &GroupDoc) -> Option<NewEvent> {
    if group.state != GroupState::Stopped {
        let message = format!("group {} started: {}", group.name, word(&group.state));
        return Some(about(EventCode::GroupStarted, group, message));
    }
    let problem = group.problems.first()?;
    let mut event = about(EventCode::GroupRefused, group, problem.why.clone());
    (event.0.why, event.0.risk) = (Some(problem.why.clone()), Some(problem.risk.clone()));
    event.0.next = Some(problem.next.clone());
    Some(event)
}

fn changed(old: &GroupDoc, group: &GroupDoc, events: &mut Vec<NewEvent>) {
    let was_running = old.state != GroupState::Stopped;
    if was_running != (group.state != GroupState::Stopped) {
        if was_running {
            events.push(about(EventCode::GroupStopped, group, format!("group {} stopped", group.name)));
        }
        events.extend(appeared(group));
    } else if was_running {
        for (was, member) in old.members.iter().zip(&group.members) {
            member_changed(was, member, group, events);
        }
        if old.state != group.state {
            let message =
                format!("group {} is {} (was {})", group.name, word(&group.state), word(&old.state));
            events.push(about(EventCode::GroupState, group, message));
        }
    }
    if old.health != group.health {
        let message =
            format!("group {}: health {} (was {})", group.name, word(&group.health), word(&old.health));
        let event = about(EventCode::HealthChanged, group, message);
        events.push(event.severity(severity_of(group.health)));
    }
}

fn is_in(member: &MemberDoc) -> bool {
    matches!(member.state, MemberState::InSync | MemberState::Rebuilding)
}

fn member_changed(was: &MemberDoc, member: &MemberDoc, group: &GroupDoc, events: &mut Vec<NewEvent>) {
    let slot = member.slot;
    let is_other = was.device_uuid != member.device_uuid;
    if is_in(was) && (!is_in(member) || is_other) {
        let drive = was.drive.as_deref().unwrap_or("unknown drive");
        let why = member.why.clone().filter(|_| !is_in(member));
        // One that served until another had taken its slot was not lost.
        let (severity, message) = if is_in(member) {
            let heir = member.drive.as_deref().unwrap_or("another drive");
            (group.health, format!("group {}: slot {slot} ({drive}) left: {heir} took its place", group.name))
        } else {
            let cause = why.as_deref().unwrap_or("no reason is known");
            let message = format!("group {}: slot {slot} ({drive}) was dropped: {cause}", group.name);
            (group.health.max(Health::Warning), message)
        };
        let event = about(EventCode::MemberDropped, group, message).slot(slot);
        let mut event = event.drive(was.drive.clone(), was.serial.clone()).why(why);
        let problem = group.problems.iter().find(|problem| problem.slot == Some(slot));
        event.0.next = problem.map(|problem| problem.next.clone());
        events.push(event.severity(severity_of(severity)));
    }
    if is_in(member) && (!is_in(was) || is_other) {
        let drive = member.drive.as_deref().unwrap_or("unknown drive");
        let message = format!("group {}: {drive} joined as slot {slot}: {}", group.name, word(&member.state));
        let event = about(EventCode::MemberJoined, group, message).slot(slot);
        events.push(event.drive(member.drive.clone(), member.serial.clone()));
    }
}
