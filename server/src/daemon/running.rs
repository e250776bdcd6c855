//! A running group as the control thread knows it: the engine's shared part, where its members are, what runs on it.
//!
//! Invariant: a drive in the host's registry that a slot names here is open and ours; when the engine has dropped its
//! member, [`Running::release_dropped`] lets go of it, so that the drive can be looked at, wiped or put back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nvme_backend::{DriveKind, Errnos, OpenDrive, Remote};
use parking_lot::Mutex;
use raid_core::disks::DiskTable;
use raid_core::engine::{GroupStatus, Shared};
use raid_core::geometry::{Geometry, Level};
use raid_core::membership::{GroupMeta, Persistent};
use raid_core::ports::{DriveKey, IoKind};
use raid_core::units::{Slot, Uuid};
use raid_core::view::MemberState as CoreState;

use super::comeback::is_worn;
use super::disks::Exposure;
use super::host::{Host, unix_seconds};
use super::jobs::Job;
use super::lane_ops;
use super::lost::Lost;
use super::replace::Filling;
use super::scrub::Keeper;
use super::settings::SettingsStore;
use super::status::{Comeback, GroupFacts, MemberFacts, judge};
use super::words;
use crate::control::model::{
    EpochDoc, ErrorCountsDoc, GroupDoc, Health, Journal, MemberDoc, MemberState, Operation, ProgressDoc,
};
use crate::control::{ApiError, ErrorCode};

/// Where the member of a slot is, or last was.
#[derive(Clone, Default, Debug)]
pub(super) struct Place {
    /// The open drive.
    pub key: Option<DriveKey>,
    /// Path of the drive.
    pub path: Option<String>,
    /// Serial of the drive.
    pub serial: Option<String>,
    /// Size of the drive.
    pub size_bytes: Option<u64>,
    /// Since when the member is not in sync.
    pub since_unix_s: Option<u64>,
    /// What a drive that was left out at start is, in words, and what that makes of the slot.
    pub left_out: Option<(MemberState, String)>,
    /// What the kernel said when its commands failed.
    pub errnos: Errnos,
    /// Whether it is a file.
    pub is_file: bool,
    /// Whether that file has no name any more.
    pub is_unlinked: bool,
    /// Where it is plugged in, as far as that can be told.
    pub port: Option<String>,
    /// The kernel's number of the device, also after its member was dropped.
    pub diskseq: Option<u64>,
    /// While the member is out: whether its drive could come back as it is.
    pub comeback: Comeback,
}

impl Place {
    /// The place of an open drive.
    #[must_use]
    pub(super) fn of(key: DriveKey, path: String, drive: &OpenDrive) -> Self {
        Self {
            key: Some(key),
            path: Some(path),
            serial: drive.identity().serial.clone(),
            size_bytes: Some(drive.size_bytes()),
            errnos: drive.errnos(),
            is_file: drive.identity().kind == DriveKind::File,
            port: drive.identity().port.clone(),
            diskseq: drive.identity().diskseq,
            ..Self::default()
        }
    }

    /// Why it was dropped, with the kernel's word for it.
    pub(super) fn why_dropped(&self, kind: Option<IoKind>) -> String {
        words::why_dropped(kind, kind.and_then(|kind| self.errnos.last(kind)), self.is_file)
    }

    fn is_out_of_room(&self, kind: Option<IoKind>) -> bool {
        words::is_out_of_room(kind, kind.and_then(|kind| self.errnos.last(kind)), self.is_file)
    }
}

/// Where the bytes of a group's drives are: raw = capacity + parity + metadata.
pub(super) struct Space {
    pub raw: u64,
    pub parity: u64,
    pub metadata: u64,
}

impl Space {
    /// A drive that is not here counts with what the group uses of it.
    pub(super) fn of(geometry: &Geometry, sizes: impl Iterator<Item = Option<u64>>) -> Self {
        let used = geometry.member_bytes();
        let raw: u64 = sizes.map(|size| size.unwrap_or(used).max(used)).sum();
        let all_used = used * u64::from(geometry.members());
        Self { raw, parity: all_used - geometry.capacity_bytes(), metadata: raw.saturating_sub(all_used) }
    }
}

/// A running group.
pub(super) struct Running {
    /// Uuid.
    pub uuid: Uuid,
    /// What all lanes share.
    pub shared: Arc<Shared>,
    /// The lane that does the group's housekeeping.
    pub home: Remote,
    /// Slots.
    pub places: Mutex<Vec<Place>>,
    /// Disks; `None` on a group too small for a table.
    pub table: Mutex<Option<DiskTable>>,
    /// Held while the table changes on the drives.
    pub table_change: tokio::sync::Mutex<()>,
    /// How disks are reached.
    pub exposures: Mutex<Vec<Exposure>>,
    /// Disks served as block devices.
    pub ublk: Mutex<Vec<Arc<super::ublk::BlockDevice>>>,
    /// Its scrubs.
    pub scrub: Mutex<Keeper>,
    /// What of its data is lost.
    pub lost: Mutex<Lost>,
    /// What is set for groups on this host.
    pub settings: Arc<SettingsStore>,
    /// Drives that are being filled to take a slot whose member still serves.
    pub fillings: Mutex<BTreeMap<Slot, Filling>>,
    /// Long operations.
    pub jobs: Mutex<Vec<Arc<Job>>>,
    /// Held by whoever rebuilds: one pass takes all slots along.
    pub rebuild_turn: tokio::sync::Mutex<()>,
}

impl Running {
    /// Name.
    #[must_use]
    pub(super) fn name(&self) -> &str {
        self.shared.name()
    }

    /// The metadata of its members.
    #[must_use]
    pub(super) fn persistent(&self) -> Option<&Persistent> {
        match self.shared.meta().as_ref() {
            GroupMeta::Volatile => None,
            GroupMeta::Persistent(meta) => Some(meta),
        }
    }

    /// The slot whose drive has this key, or is to be this one.
    #[must_use]
    pub(super) fn slot_of(&self, key: DriveKey) -> Option<Slot> {
        let is_it = |place: &Place| place.key == Some(key);
        let member = (0u8..)
            .map(Slot)
            .zip(self.places.lock().iter())
            .find(|(_, place)| is_it(place))
            .map(|(slot, _)| slot);
        member.or_else(|| {
            let fillings = self.fillings.lock();
            fillings.iter().find(|(_, filling)| is_it(&filling.place)).map(|(slot, _)| *slot)
        })
    }

    /// Whether the drive with this key is being filled.
    #[must_use]
    pub(super) fn is_filling(&self, key: DriveKey) -> bool {
        self.fillings.lock().values().any(|filling| filling.place.key == Some(key))
    }

    /// The slot whose member has this path, serial or device uuid.
    #[must_use]
    pub(super) fn slot_called(&self, name: &str) -> Option<Slot> {
        let view = self.shared.view();
        let uuid = Uuid::parse(name);
        let named = |path: &str| {
            let places = self.places.lock();
            let is_called = |slot: &Slot| {
                let place = &places[slot.index()];
                place.path.as_deref() == Some(path)
                    || place.serial.as_deref() == Some(name)
                    || uuid == Some(view.member(*slot).device_uuid)
            };
            // The drive that is at a path comes before one that was there once.
            let is_there = |slot: &Slot| places[slot.index()].key.is_some();
            let called = || view.slots().filter(is_called);
            called().find(is_there).or_else(|| called().next())
        };
        // As it was given first: looking at a path that hangs would hang this thread.
        named(name)
            .or_else(|| named(&super::drives::canonical(std::path::Path::new(name)).display().to_string()))
    }

    /// Where the drive of a slot is, or last was.
    ///
    /// # Errors
    /// `drive.not.found` if that is not known.
    pub(super) fn drive_path_of(&self, slot: Slot) -> Result<PathBuf, ApiError> {
        let path = self.places.lock()[slot.index()].path.clone().map(PathBuf::from);
        path.ok_or_else(|| {
            let message = format!("slot {slot} of group {} has no drive", self.name());
            ApiError::new(ErrorCode::DriveNotFound, message)
        })
    }

    /// Lets go of the drives of members that the engine has dropped, and says so in the log.
    pub(super) fn release_dropped(&self, host: &Host, lanes: &[Remote]) {
        let view = self.shared.view();
        for slot in view.slots().filter(|slot| view.member(*slot).is_missing()) {
            let released = {
                let mut places = self.places.lock();
                let place = &mut places[slot.index()];
                let key = place.key.take();
                if key.is_some() {
                    place.since_unix_s = Some(unix_seconds());
                }
                place.is_unlinked = false;
                let CoreState::Missing { why: kind } = view.member(slot).state else {
                    unreachable!("the slot was missing in this view")
                };
                if key.is_some() {
                    // What the operator takes out is there and sound, until a look says otherwise.
                    let is_sound = kind == Some(BY_OPERATOR);
                    place.comeback = if is_sound { Comeback::Possible } else { Comeback::Unknown };
                }
                let why = place.why_dropped(kind);
                key.map(|key| (key, place.path.clone().unwrap_or_default(), why))
            };
            let Some((key, path, why)) = released else { continue };
            tracing::warn!(group = self.name(), %slot, drive = path, epoch = view.epoch.counter, "member dropped: {why}");
            lane_ops::forget_drive(lanes, self.uuid, key);
            drop(host.remove_drive(key));
        }
    }

    /// Notes members whose files were deleted behind our back: their data lives only as long as we hold them.
    pub(super) fn note_unlinked(&self, host: &Host) {
        for place in self.places.lock().iter_mut() {
            let drive = place.key.and_then(|key| host.drive(key));
            let is_unlinked = drive.is_some_and(|drive| drive.is_unlinked());
            if is_unlinked && !place.is_unlinked {
                let path = place.path.as_deref().unwrap_or_default();
                tracing::warn!(group = self.name(), drive = path, "the member's file was deleted");
            }
            place.is_unlinked = is_unlinked;
        }
    }

    fn member_facts(&self, status: &GroupStatus) -> Vec<MemberFacts> {
        let places = self.places.lock();
        status
            .slots
            .iter()
            .zip(places.iter())
            .map(|(slot, place)| {
                let (state, why) = match (slot.state, &place.left_out) {
                    (CoreState::InSync, _) => (MemberState::InSync, None),
                    (CoreState::Rebuilding, _) if slot.is_by_intents => (
                        MemberState::Rebuilding,
                        Some("came back; only what changed meanwhile is copied".to_owned()),
                    ),
                    (CoreState::Rebuilding, _) => (MemberState::Rebuilding, Some("being rebuilt".to_owned())),
                    (CoreState::Missing { why: Some(kind) }, _) => {
                        (MemberState::Failed, Some(place.why_dropped(Some(kind))))
                    }
                    (CoreState::Missing { why: None }, Some((state, why))) => (*state, Some(why.clone())),
                    (CoreState::Missing { why: None }, None) => {
                        (MemberState::Missing, Some(place.why_dropped(None)))
                    }
                };
                MemberFacts {
                    state,
                    drive: place.path.clone(),
                    serial: place.serial.clone(),
                    why,
                    since_unix_s: place.since_unix_s,
                    is_out_of_room: match slot.state {
                        CoreState::Missing { why } => place.is_out_of_room(why),
                        _ => false,
                    },
                    is_unlinked: place.is_unlinked,
                    comeback: match slot.state {
                        CoreState::Missing { why } if is_worn(why) => Comeback::Unknown,
                        _ => place.comeback.clone(),
                    },
                }
            })
            .collect()
    }

    /// What the health of the group is judged by.
    #[must_use]
    pub(super) fn facts(&self) -> GroupFacts {
        let status = self.shared.status();
        let geometry = *self.shared.geometry();
        GroupFacts {
            name: self.name().to_owned(),
            geometry,
            members: self.member_facts(&status),
            unsynced_bytes: status.unsynced_stripes * u64::from(geometry.chunk_bytes()),
            forced: self.persistent().is_some_and(|meta| meta.marks().forced),
            is_forgotten: self.persistent().is_some_and(|meta| meta.witness_error().is_some()),
        }
    }

    /// Whether something runs that brings members or stripes into sync; a scrub does not.
    #[must_use]
    pub(super) fn is_mending(&self) -> bool {
        self.jobs.lock().iter().any(|job| job.operation != Operation::Check)
    }

    /// Whether nothing waits for a sync and no job that makes one runs.
    #[must_use]
    pub(super) fn is_synced(&self) -> bool {
        self.shared.status().unsynced_stripes == 0
    }

    /// The document.
    #[must_use]
    pub(super) fn doc(&self) -> GroupDoc {
        let status = self.shared.status();
        let geometry = *self.shared.geometry();
        let facts = self.facts();
        let mut verdict = judge(&facts);
        verdict.problems.extend(self.scrub.lock().problem(self));
        verdict.problems.extend(self.lost.lock().problem(self.name()));
        verdict.problems.sort_by_key(|problem| std::cmp::Reverse(problem.health));
        let health = verdict.problems.first().map_or(Health::Ok, |worst| worst.health);
        let scrub = self.scrub.lock().summary(self);
        let lost = self.lost.lock().ranges().to_vec();
        let jobs: Vec<_> = self.jobs.lock().iter().map(|job| job.doc()).collect();
        let table = self.table.lock();
        let free = table.as_ref().map_or(0, |table| table.free().iter().map(|gap| gap.end - gap.start).sum());
        let disks = table
            .as_ref()
            .map_or_else(Vec::new, |table| table.list().into_iter().map(|disk| disk.name).collect());
        drop(table);
        let space = Space::of(&geometry, self.places.lock().iter().map(|place| place.size_bytes));
        let members = (0u8..)
            .zip(status.slots.iter())
            .zip(facts.members)
            .map(|((slot, counts), member)| self.member_doc(slot, counts, member, &status, &jobs))
            .collect();
        GroupDoc {
            name: self.name().to_owned(),
            uuid: self.uuid.to_string(),
            level: geometry.level().into(),
            chunk_bytes: if geometry.level() == Level::Raid1 { 0 } else { geometry.chunk_bytes() },
            stripe_bytes: geometry.stripe_data_bytes(),
            block_size_bytes: self.shared.block_size().bytes(),
            capacity_bytes: geometry.capacity_bytes(),
            raw_bytes: space.raw,
            parity_bytes: space.parity,
            metadata_bytes: space.metadata,
            free_bytes: free,
            state: verdict.state,
            health,
            tolerates: verdict.tolerates,
            epoch: EpochDoc { counter: status.view.epoch.counter, id: status.view.epoch.id.to_string() },
            journal: Journal::None,
            forced: facts.forced,
            members,
            progress: jobs,
            scrub,
            lost,
            settings: self.settings.of(self.uuid).doc(),
            disks,
            problems: verdict.problems,
        }
    }

    fn member_doc(
        &self,
        slot: u8,
        counts: &raid_core::engine::SlotStatus,
        facts: MemberFacts,
        status: &GroupStatus,
        jobs: &[ProgressDoc],
    ) -> MemberDoc {
        let member = status.view.member(Slot(slot));
        let of_member = [Operation::Rebuild, Operation::Replace];
        let is_its = |job: &&ProgressDoc| job.slot == Some(slot) && of_member.contains(&job.operation);
        let progress = jobs.iter().find(is_its).cloned();
        let successor = self.fillings.lock().get(&Slot(slot)).and_then(|filling| filling.place.path.clone());
        MemberDoc {
            slot,
            state: facts.state,
            drive: facts.drive,
            serial: facts.serial,
            device_uuid: Some(member.device_uuid.to_string()),
            size_bytes: self.places.lock()[usize::from(slot)].size_bytes,
            errors: ErrorCountsDoc { commands: counts.errors },
            why: if facts.state == MemberState::InSync { None } else { facts.why },
            progress,
            write_mostly: self.shared.is_write_mostly(Slot(slot)),
            successor,
            latency: None,
        }
    }
}

/// The kind under which the operator's own drop goes into a view.
pub(super) const BY_OPERATOR: IoKind = IoKind::ShuttingDown;
