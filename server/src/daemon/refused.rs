//! A start that was refused, and one that was decided, as the operator reads them: drives by path and serial, and the
//! exact command for each way on.
//!
//! The core knows members by uuid and drives by key; people know paths. What is here is the only place that brings the
//! two together.

use raid_core::format::extension::SlotState;
use raid_core::membership::{Lost, Observation, PlannedState, Refusal, StartPlan};
use raid_core::units::Uuid;
use raid_core::view::Epoch;

use super::look::Looked;
use crate::control::{ApiError, ErrorCode};

/// The text with the drive named wherever the uuid of a member that is here stands.
fn named(text: String, looked: &[Looked]) -> String {
    let mut text = text;
    let mut done: Vec<Uuid> = Vec::new();
    for (one, device) in looked.iter().filter_map(|one| Some((one, one.device()?))) {
        // Two drives with one uuid are named by who tells of them.
        if !done.contains(&device) {
            text = text.replace(&device.to_string(), &format!("{device} at {}", one.shown()));
            done.push(device);
        }
    }
    text
}

/// One command for each side of a split history, which goes on with that side and leaves the others untouched.
fn keep_commands(name: &str, sides: &[(Epoch, Vec<Uuid>)], looked: &[Looked]) -> Vec<String> {
    let drives = |members: &[Uuid]| {
        let here = looked.iter().filter(|one| one.device().is_some_and(|device| members.contains(&device)));
        here.map(Looked::shown).collect::<Vec<_>>().join(", ")
    };
    let command = |(epoch, members): &(Epoch, Vec<Uuid>)| {
        let first = members.first()?;
        let drives = drives(members);
        Some(format!("warpraid group assemble {name} --keep {first}   (epoch {}: {drives})", epoch.counter))
    };
    sides.iter().filter_map(command).collect()
}

/// Slots that were being rebuilt when the group was cut off, with their drives.
fn being_rebuilt(looked: &[Looked]) -> Vec<String> {
    let newest = looked.iter().filter_map(|one| match &one.seen.what {
        Observation::Ours(ours) => Some(ours),
        _ => None,
    });
    let Some(newest) = newest.max_by_key(|ours| (ours.copy.epoch().counter, ours.copy.sequence)) else {
        return Vec::new();
    };
    let slots = (0u8..).zip(&newest.copy.slots);
    slots
        .filter(|(_, record)| record.state == SlotState::Rebuilding)
        .map(|(slot, record)| {
            let drive = looked.iter().find(|one| one.device() == Some(record.device_uuid));
            format!("slot {slot} ({})", drive.map_or("its drive is not here".to_owned(), Looked::shown))
        })
        .collect()
}

/// Whether a drive of these members is not here. One that is here and out of date is not used, and brings nothing back.
fn is_any_absent(missing: &[Lost], looked: &[Looked]) -> bool {
    missing.iter().any(|lost| looked.iter().all(|one| one.device() != Some(lost.device_uuid)))
}

fn dirty_hint(missing_any: bool, looked: &[Looked]) -> String {
    if missing_any {
        return "bring the missing members back; --force starts all the same and marks the group for ever"
            .to_owned();
    }
    let rebuilt = being_rebuilt(looked);
    let cause = match &rebuilt[..] {
        [] => "every member is here, but one of them is out of date".to_owned(),
        slots => format!("every member is here; {} was being rebuilt and is not complete", slots.join(", ")),
    };
    format!(
        "{cause}, so nothing more can be brought back: --force starts all the same, goes on with the rebuild and marks \
         the group for ever"
    )
}

/// The API error of a refused start. `looked`: the drives it was decided upon.
pub(super) fn refused(name: &str, refusal: &Refusal, looked: &[Looked]) -> ApiError {
    let code = match refusal {
        Refusal::NoMembers { .. }
        | Refusal::Tombstoned { .. }
        | Refusal::UnfinishedCreate { .. }
        | Refusal::OwnedByMd { .. } => ErrorCode::GroupNotFound,
        Refusal::HalfHandedOver { .. } => ErrorCode::GroupHalfHandedOver,
        Refusal::NewerEpochKnown { .. } | Refusal::LastMirrorUnproven { .. } => ErrorCode::GroupStale,
        Refusal::Diverged { .. } | Refusal::NoSuchSide { .. } | Refusal::ModifiedByOtherSoftware { .. } => {
            ErrorCode::GroupDiverged
        }
        Refusal::DirtyAndDegraded { .. } => ErrorCode::GroupDirtyDegraded,
        Refusal::NotEnoughMembers { .. } => ErrorCode::GroupIncomplete,
        Refusal::Twins { .. } => ErrorCode::GroupAmbiguous,
    };
    let hint = match refusal {
        Refusal::NoMembers { .. } => "name the drives that carry it: warpraid examine DRIVE tells".to_owned(),
        Refusal::NewerEpochKnown { .. } => {
            "bring the newer members back; --force starts without them and loses what was written since"
                .to_owned()
        }
        Refusal::Diverged { sides } => format!(
            "warpraid examine DRIVE shows each side; to go on with one and leave the others untouched: {}",
            keep_commands(name, sides, looked).join("; or ")
        ),
        Refusal::NoSuchSide { .. } => "warpraid examine DRIVE shows each side".to_owned(),
        Refusal::DirtyAndDegraded { missing, .. } => dirty_hint(is_any_absent(missing, looked), looked),
        Refusal::LastMirrorUnproven { .. } => {
            "bring the absent members back; --force starts without them".to_owned()
        }
        Refusal::NotEnoughMembers { .. } => {
            "bring the named members back; blank drives cannot replace them".to_owned()
        }
        Refusal::ModifiedByOtherSoftware { .. } => {
            "find out what wrote to the drive; --force starts from our own record".to_owned()
        }
        Refusal::Tombstoned { .. } => format!("warpraid group undelete {name} brings it back"),
        Refusal::UnfinishedCreate { .. } => "create the group again".to_owned(),
        Refusal::HalfHandedOver { .. } => {
            "bring them back as they were, all together; --force starts without them: they may be running under md".to_owned()
        }
        Refusal::OwnedByMd { .. } => format!("warpraid group adopt --name {name} DRIVE... takes it over"),
        Refusal::Twins { .. } => "take one of the two drives away".to_owned(),
    };
    let message = match refusal {
        Refusal::Twins { device_uuid, drives } => {
            let twins = looked.iter().filter(|one| drives.contains(&one.key));
            let shown = twins.map(Looked::shown).collect::<Vec<_>>().join(" and ");
            format!("{shown} carry the same member {device_uuid}: one is a copy of the other")
        }
        refusal => named(refusal.to_string(), looked),
    };
    ApiError::new(code, format!("group {name}: {message}")).hint(hint)
}

/// The one command that may start a group that was refused.
pub(super) fn next_command(name: &str, uuid: Uuid, refusal: Option<&Refusal>, looked: &[Looked]) -> String {
    match refusal {
        Some(Refusal::Diverged { sides }) => keep_commands(name, sides, looked).join("   or   "),
        // Only where nobody is missing who could come back: else --force is for who has read the refusal and knows better.
        Some(Refusal::DirtyAndDegraded { missing, .. }) if !is_any_absent(missing, looked) => {
            format!("warpraid group assemble {name} --force --yes --expect-uuid {uuid}")
        }
        _ => format!("warpraid group assemble {name}"),
    }
}

/// What a decided start makes of each drive and of each slot without one.
pub(super) fn steps_of(plan: &StartPlan, looked: &[Looked]) -> Vec<String> {
    let (name, uuid) = (&plan.tip.copy.name, plan.tip.copy.group);
    let slot_of = |one: &Looked| {
        (0u8..)
            .zip(&plan.slots)
            .find(|(_, slot)| slot.member.as_ref().is_some_and(|(key, _)| *key == one.key))
    };
    let told = |one: &Looked| {
        let what = match slot_of(one) {
            Some((slot, planned)) => match planned.state {
                PlannedState::InSync => format!("slot {slot} of group {name} ({uuid}), in sync"),
                PlannedState::Rebuilding(done) => {
                    format!("slot {slot} of group {name} ({uuid}), to be rebuilt from byte {done}")
                }
                PlannedState::Missing => format!("slot {slot} of group {name} ({uuid}), not used"),
            },
            None => match plan.left_out.iter().find(|out| out.drive == one.key) {
                Some(out) => format!("not used: {}", out.why),
                None => format!("not used: {}", one.seen.what),
            },
        };
        format!("{}: {what}", one.shown())
    };
    let mut steps: Vec<String> = looked.iter().map(told).collect();
    let empty = (0u8..).zip(&plan.slots).filter(|(_, slot)| slot.member.is_none());
    steps.extend(empty.map(|(slot, planned)| {
        let device = planned.record.device_uuid;
        match looked.iter().find(|one| one.device() == Some(device)) {
            Some(_) => format!("slot {slot}: starts without its member"),
            None => format!("slot {slot}: missing (member {device})"),
        }
    }));
    steps
}
