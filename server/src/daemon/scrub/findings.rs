//! Findings of a scrub: as the engine has them, as documents, and in words.

use raid_core::engine::{Finding, ScrubState, What};
use raid_core::geometry::{Place as DataPlace, Role};
use raid_core::units::{Slot, Stripe};

use crate::control::model::{DiskRangeDoc, FindingDoc, FindingKind, FindingMemberDoc, ScrubRunDoc};
use crate::daemon::lost;
use crate::daemon::running::Running;

/// A finding in words.
pub(super) fn finding_words(one: &FindingDoc) -> String {
    let at = format!("stripe {}, {} bytes", one.stripe, one.length_bytes);
    match (one.what, one.members.first()) {
        (FindingKind::Located, Some(member)) => format!(
            "{at}: slot {} ({}) is wrong at byte {}",
            member.slot,
            member.drive.as_deref().unwrap_or("unknown drive"),
            member.offset_bytes
        ),
        (FindingKind::Suspected, Some(member)) => format!(
            "{at}: slot {} ({}) or the parities are wrong at byte {}",
            member.slot,
            member.drive.as_deref().unwrap_or("unknown drive"),
            member.offset_bytes
        ),
        (FindingKind::Ambiguous, _) => format!("{at}: more than one member is wrong"),
        _ => format!("{at}: cannot tell which is right"),
    }
}

pub(super) fn kind_of(what: What) -> FindingKind {
    match what {
        What::Located => FindingKind::Located,
        What::Suspected => FindingKind::Suspected,
        What::Ambiguous => FindingKind::Ambiguous,
        What::Parity => FindingKind::Parity,
        What::Copies => FindingKind::Copies,
        What::Lost => FindingKind::Lost,
    }
}

pub(super) fn finding_doc(group: &Running, finding: &Finding) -> FindingDoc {
    let geometry = *group.shared.geometry();
    let view = group.shared.view();
    let places = group.places.lock();
    let length = finding.columns.end - finding.columns.start;
    let mut members = Vec::new();
    let mut ranges = Vec::new();
    for &slot in &finding.slots {
        let role = geometry.role(finding.stripe, slot);
        if let Role::Data(index) = role {
            let place = DataPlace { stripe: finding.stripe, index, column: finding.columns.start };
            ranges.push(geometry.group_offset(place).0);
        }
        let place = &places[slot.index()];
        let start = view.member(slot).layout.data_start;
        members.push(FindingMemberDoc {
            slot: slot.0,
            role: match role {
                Role::Data(_) => "data".to_owned(),
                Role::P => "P".to_owned(),
                Role::Q => "Q".to_owned(),
            },
            drive: place.path.clone(),
            serial: place.serial.clone(),
            offset_bytes: start.plus(geometry.member_offset(finding.stripe, finding.columns.start)).0,
        });
    }
    drop(places);
    ranges.sort_unstable();
    ranges.dedup();
    let disks = ranges.into_iter().flat_map(|at| lost::disk_ranges(group, at..at + u64::from(length)));
    FindingDoc {
        stripe: finding.stripe.0,
        chunk_offset_bytes: finding.columns.start,
        length_bytes: length,
        what: kind_of(finding.what),
        members,
        disks: disks.collect::<Vec<DiskRangeDoc>>(),
        repaired: finding.is_repaired,
    }
}

/// The engine's state of a scrub that is to go on.
pub(super) fn state_of(run: &ScrubRunDoc) -> ScrubState {
    let finding = |one: &FindingDoc| Finding {
        stripe: Stripe(one.stripe),
        columns: one.chunk_offset_bytes..one.chunk_offset_bytes.saturating_add(one.length_bytes),
        what: match one.what {
            FindingKind::Located => What::Located,
            FindingKind::Suspected => What::Suspected,
            FindingKind::Ambiguous => What::Ambiguous,
            FindingKind::Parity => What::Parity,
            FindingKind::Copies => What::Copies,
            FindingKind::Lost => What::Lost,
        },
        slots: one.members.iter().map(|member| Slot(member.slot)).collect(),
        is_repaired: one.repaired,
    };
    ScrubState {
        next: run.next_stripe,
        checked: run.checked_stripes,
        skipped: run.skipped_stripes,
        mismatched: run.mismatched_stripes,
        repaired_blocks: run.repaired_blocks,
        rewritten_blocks: run.rewritten_blocks,
        lost_blocks: run.lost_blocks,
        findings: run.findings.iter().map(finding).collect(),
        findings_left_out: run.findings_left_out,
    }
}
