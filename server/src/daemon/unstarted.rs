//! Groups that lie on the drives and do not run: as visible as those that do, with why and what to type.
//!
//! A group whose start was refused serves nothing, which is the worst state there is: health must say so.

use raid_core::format::extension::SlotState;
use raid_core::geometry::Level;
use raid_core::membership::{Observation, Ours, Refusal};
use raid_core::units::Uuid;

use super::Daemon;
use super::host::unix_seconds;
use super::look::Looked;
use super::refused::next_command;
use super::running::Space;
use crate::control::ApiError;
use crate::control::model::{
    EpochDoc, ErrorCountsDoc, GroupDoc, GroupState, Health, Journal, MemberDoc, MemberState, ProblemDoc,
    ScrubSummaryDoc,
};

/// A group that was found and not started.
#[derive(Clone)]
pub(super) struct Unstarted {
    doc: GroupDoc,
}

impl Unstarted {
    pub(super) fn doc(&self) -> GroupDoc {
        self.doc.clone()
    }
}

fn member_docs(ours: &Ours, looked: &[Looked]) -> Vec<MemberDoc> {
    let here = |device: Uuid| {
        looked.iter().find(|one| match &one.seen.what {
            Observation::Ours(other) => other.copy.device_uuid == device,
            _ => false,
        })
    };
    (0u8..)
        .zip(&ours.copy.slots)
        .map(|(slot, record)| {
            let drive = here(record.device_uuid);
            let state = match (record.state, drive.is_some()) {
                (SlotState::InSync, true) => MemberState::InSync,
                (SlotState::Rebuilding, true) => MemberState::Rebuilding,
                (SlotState::Missing, true) => MemberState::Stale,
                (_, false) => MemberState::Missing,
            };
            let why = match state {
                MemberState::Missing => Some("its drive was not found".to_owned()),
                MemberState::Stale => Some("dropped before the group stopped".to_owned()),
                _ => None,
            };
            MemberDoc {
                slot,
                state,
                drive: drive.map(|one| one.path.display().to_string()),
                serial: drive.and_then(|one| one.serial.clone()),
                device_uuid: Some(record.device_uuid.to_string()),
                size_bytes: drive.map(|one| one.seen.size_bytes),
                errors: ErrorCountsDoc::default(),
                why,
                progress: None,
                write_mostly: false,
                successor: None,
                latency: None,
            }
        })
        .collect()
}

impl Daemon {
    /// Remembers that a group was found and not started, for status and health. Deleted groups and creates that were
    /// never finished are no groups.
    pub(super) fn note_unstarted(
        &self,
        uuid: Uuid,
        looked: &[Looked],
        refusal: Option<&Refusal>,
        error: &ApiError,
    ) {
        let gone = matches!(
            refusal,
            Some(
                Refusal::Tombstoned { .. }
                    | Refusal::UnfinishedCreate { .. }
                    | Refusal::NoMembers { .. }
                    | Refusal::OwnedByMd { .. }
            )
        );
        let members = looked.iter().filter_map(|one| match &one.seen.what {
            Observation::Ours(ours) if ours.copy.group == uuid => Some(ours),
            _ => None,
        });
        let newest = members.max_by_key(|ours| (ours.copy.epoch().counter, ours.copy.sequence));
        let Some(ours) = newest.filter(|_| !gone) else {
            self.unstarted.lock().remove(&uuid);
            return;
        };
        let (name, geometry) = (&ours.copy.name, &ours.geometry);
        let problem = ProblemDoc {
            code: error.code.into(),
            health: Health::Critical,
            group: Some(name.clone()),
            slot: None,
            drive: None,
            serial: None,
            since_unix_s: Some(unix_seconds()),
            why: format!("not started: {}", error.message),
            risk: match &error.hint {
                Some(hint) => format!("nothing of the group is served; {hint}"),
                None => "nothing of the group is served".to_owned(),
            },
            next: next_command(name, uuid, refusal, looked),
        };
        let epoch = ours.copy.epoch();
        let members = member_docs(ours, looked);
        let space = Space::of(geometry, members.iter().map(|member| member.size_bytes));
        let doc = GroupDoc {
            name: name.clone(),
            uuid: uuid.to_string(),
            level: geometry.level().into(),
            chunk_bytes: if geometry.level() == Level::Raid1 { 0 } else { geometry.chunk_bytes() },
            stripe_bytes: geometry.stripe_data_bytes(),
            block_size_bytes: ours.copy.block_size.bytes(),
            capacity_bytes: geometry.capacity_bytes(),
            raw_bytes: space.raw,
            parity_bytes: space.parity,
            metadata_bytes: space.metadata,
            free_bytes: 0,
            state: GroupState::Stopped,
            health: Health::Critical,
            tolerates: 0,
            epoch: EpochDoc { counter: epoch.counter, id: epoch.id.to_string() },
            journal: Journal::None,
            forced: ours.copy.marks.forced,
            members,
            progress: Vec::new(),
            scrub: ScrubSummaryDoc::default(),
            lost: Vec::new(),
            settings: self.settings.of(uuid).doc(),
            disks: Vec::new(),
            problems: vec![problem],
        };
        self.unstarted.lock().insert(uuid, Unstarted { doc });
    }

    /// Documents of all groups that were found and not started.
    pub(super) fn unstarted_docs(&self) -> Vec<GroupDoc> {
        self.unstarted.lock().values().map(Unstarted::doc).collect()
    }
}
