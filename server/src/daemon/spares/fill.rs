//! Lost members and what becomes of their slots: a spare whose time has come, or why none takes it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::ports::DriveKey;
use raid_core::units::Slot;
use raid_core::view::MemberState as CoreState;

use super::choose::{Spare, choose};
use crate::control::ProblemCode;
use crate::control::model::{Health, MemberState, ProblemDoc, SpareState, SpareWait};
use crate::daemon::Daemon;
use crate::daemon::host::unix_seconds;
use crate::daemon::running::Running;

/// What becomes of a slot without a member.
enum Outlook {
    /// This spare takes it after this time.
    Takes(PathBuf, Duration),
    /// No spare fits, one reason each.
    NoneFits(Vec<String>),
    /// Spares leave it alone.
    LeftAlone(&'static str),
    /// There are no spares for this group.
    NoSpares,
}

impl Daemon {
    /// The NUMA node of most members of a group.
    fn node_of(&self, group: &Running) -> Option<u16> {
        let keys: Vec<DriveKey> = group.places.lock().iter().filter_map(|place| place.key).collect();
        let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
        for drive in keys.into_iter().filter_map(|key| self.host.drive(key)) {
            if let Some(node) = drive.identity().numa_node.and_then(|node| u16::try_from(node).ok()) {
                *counts.entry(node).or_default() += 1;
            }
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(node, _)| node)
    }

    fn outlook(&self, group: &Running, slot: Slot) -> Outlook {
        let view = group.shared.view();
        let CoreState::Missing { why } = view.member(slot).state else { return Outlook::NoSpares };
        let list = self.spares.list.lock().clone();
        if !list.iter().any(|spare| spare.is_for(group.uuid)) {
            return Outlook::NoSpares;
        }
        let left_out = group.places.lock()[slot.index()].left_out.as_ref().map(|(state, _)| *state);
        if why.is_none() && left_out == Some(MemberState::Conflict) {
            return Outlook::LeftAlone("its drive holds another history of the group: the operator chooses");
        }
        if group.shared.is_offline() {
            return Outlook::LeftAlone("the group is offline: only its own members bring it back");
        }
        let (layout, block) = (&view.member(slot).layout, group.shared.block_size());
        let settings = group.settings.of(group.uuid);
        let (wait, default_ns) = match why {
            None => (settings.spare_wait, self.options.spare_wait_missing_ns),
            Some(_) => (settings.spare_wait_failed, self.options.spare_wait_failed_ns),
        };
        let wait_ns = match wait {
            SpareWait::Never => return Outlook::LeftAlone("this group takes no spare by itself (group set)"),
            SpareWait::Auto => default_ns,
            SpareWait::Ns(ns) => ns,
        };
        let since = self.spares.lost.lock().get(&(group.uuid, slot)).copied();
        let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
        match choose(&list, group.uuid, layout, block, self.node_of(group)) {
            Ok(spare) => {
                let left = Duration::from_nanos(wait_ns).saturating_sub(waited);
                Outlook::Takes(spare.saved.path.clone(), left)
            }
            Err(refused) => Outlook::NoneFits(refused),
        }
    }

    /// Whether a spare takes this slot, now or when its time has come.
    pub(in crate::daemon) fn spare_comes(&self, group: &Running, slot: Slot) -> bool {
        matches!(self.outlook(group, slot), Outlook::Takes(..))
    }

    /// Gives every slot that lacks a member a spare whose time has come.
    pub(super) async fn fill_slots(self: &Arc<Self>) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let mut lost: Vec<(Arc<Running>, Slot)> = Vec::new();
        for group in groups {
            let view = group.shared.view();
            let missing = view.slots().filter(|slot| view.member(*slot).is_missing());
            lost.extend(missing.map(|slot| (Arc::clone(&group), slot)));
        }
        {
            let mut since = self.spares.lost.lock();
            since.retain(|(uuid, slot), _| lost.iter().any(|(group, s)| group.uuid == *uuid && s == slot));
            for (group, slot) in &lost {
                since.entry((group.uuid, *slot)).or_insert_with(Instant::now);
            }
        }
        for (group, slot) in lost {
            if matches!(self.outlook(&group, slot), Outlook::Takes(_, Duration::ZERO)) {
                self.fill_slot(&group, slot).await;
            }
        }
    }

    async fn fill_slot(self: &Arc<Self>, group: &Arc<Running>, slot: Slot) {
        let _change = self.change.lock().await;
        // Looked at again under the lock: an operator, or another slot, may have been faster.
        let Outlook::Takes(path, Duration::ZERO) = self.outlook(group, slot) else { return };
        if !self.is_running(group.uuid) || group.shared.is_stopping() {
            return;
        }
        let Some(spare) = self.spares.take_out(&path) else { return };
        if let Some(key) = spare.key {
            self.release(vec![key]).await;
        }
        let shown = path.display().to_string();
        tracing::warn!(group = group.name(), %slot, drive = shown, "a spare takes the lost member's place");
        match self.replace_member(group, slot, &shown, false).await {
            Ok(_) => {
                if let Err(error) = self.spares.save() {
                    tracing::error!(%error, "the spare that joined a group is still listed");
                }
            }
            Err(error) => {
                tracing::error!(group = group.name(), %slot, drive = shown, %error, "the spare could not join");
                let mut spare = Spare { key: None, state: SpareState::Failed, ..spare };
                spare.why = Some(error.message);
                (spare.since_unix_s, spare.checked) = (unix_seconds(), Some(Instant::now()));
                self.spares.list.lock().push(spare);
            }
        }
    }

    /// What is wrong with spares, and what becomes of slots without a member.
    pub(in crate::daemon) fn spare_problems(&self) -> Vec<ProblemDoc> {
        let mut problems: Vec<ProblemDoc> = Vec::new();
        for spare in self.spares.list.lock().iter().filter(|spare| spare.state != SpareState::Ready) {
            let shown = spare.saved.path.display().to_string();
            let why = spare.why.clone().unwrap_or_default();
            problems.push(ProblemDoc {
                code: if spare.state == SpareState::Missing {
                    ProblemCode::SpareMissing
                } else {
                    ProblemCode::SpareFailed
                }
                .into(),
                health: Health::Warning,
                group: None,
                slot: None,
                drive: Some(shown.clone()),
                serial: spare.saved.serial.clone(),
                since_unix_s: Some(spare.since_unix_s),
                why: format!("the spare {shown} cannot be used: {why}"),
                risk: "a lost member is not replaced by it".into(),
                next: format!("warpraid spare remove {shown}"),
            });
        }
        for group in self.groups.read().values() {
            let view = group.shared.view();
            let missing = view.slots().filter(|slot| view.member(*slot).is_missing());
            problems.extend(missing.filter_map(|slot| self.slot_problem(group, slot)));
        }
        problems
    }

    fn slot_problem(&self, group: &Running, slot: Slot) -> Option<ProblemDoc> {
        let name = group.name();
        let (code, why, next) = match self.outlook(group, slot) {
            Outlook::NoSpares => return None,
            Outlook::Takes(path, left) => (
                ProblemCode::GroupSpareWaiting,
                format!("the spare {} takes slot {slot} in {} s", path.display(), left.as_secs()),
                format!("warpraid group wait {name} --for rebuilt"),
            ),
            Outlook::NoneFits(refused) => (
                ProblemCode::GroupSpareMissing,
                format!("no spare fits slot {slot}: {}", refused.join("; ")),
                format!("warpraid spare add NEW_DRIVE --group {name}"),
            ),
            Outlook::LeftAlone(why) => (
                ProblemCode::GroupSpareMissing,
                format!("no spare takes slot {slot}: {why}"),
                format!("warpraid group show {name}"),
            ),
        };
        Some(ProblemDoc {
            code: code.into(),
            health: Health::Warning,
            group: Some(name.to_owned()),
            slot: Some(slot.0),
            drive: None,
            serial: None,
            since_unix_s: None,
            why,
            risk: "until a drive takes its place, redundancy is short of this member".into(),
            next,
        })
    }
}
