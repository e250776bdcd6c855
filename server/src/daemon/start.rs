//! From drives to a running group: observe, decide, start (the one way, also right after a create).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::disks::DiskTable;
use raid_core::engine::{GroupConfig, IntentConfig, Shared};
use raid_core::format::bitmap::IntentMap;
use raid_core::format::gpt::GptError;
use raid_core::membership::{
    BitmapImage, Decision, Doubt, Observation, Policy, StartParts, StartPlan, decide, start,
};
use raid_core::names::same_name;
use raid_core::ports::DriveKey;
use raid_core::units::Uuid;

use super::extent::{Loaded, load_table, new_table, store_table};
use super::look::Looked;
use super::running::{Place, Running};
use super::{Daemon, drives, lane_ops, stopping};
use crate::control::model::{MemberState, WarningDoc};
use crate::control::{ApiError, ErrorCode, ProblemCode};
use crate::lane::on_lane;

/// A started group and what its operator should know.
pub(super) struct Started {
    pub(super) group: Arc<Running>,
    pub(super) warnings: Vec<WarningDoc>,
}

/// What `decide` says, with the drives that it speaks of.
pub(super) struct Decided {
    pub(super) decision: Decision,
    pub(super) looked: Vec<Looked>,
}

fn intents_of(image: &BitmapImage) -> IntentConfig {
    IntentConfig {
        chunk_bytes: u64::from(image.header.chunk_bytes),
        bits: image.bits.len(),
        dirty_bits: image.bits.iter_dirty().collect(),
        header: image.header.encode().to_vec(),
    }
}

/// The stripes that the set bits cover; all of them where there is no bitmap to tell.
fn doubtful(parts: &StartParts) -> Vec<core::ops::Range<u64>> {
    let Some(image) = &parts.bitmap else {
        let all = 0..parts.geometry.stripes();
        return if parts.geometry.level().is_redundant() { Vec::from([all]) } else { Vec::new() };
    };
    let map = IntentMap::new(&parts.geometry, u64::from(image.header.chunk_bytes));
    image.bits.iter_dirty().map(|bit| map.stripes_of(bit)).collect()
}

fn config_of(
    name: String,
    block_size: raid_core::units::BlockSize,
    parts: StartParts,
    lanes: u16,
) -> GroupConfig {
    let doubtful = doubtful(&parts);
    let (unsynced, dirty) = match parts.doubt {
        Doubt::None => (Vec::new(), Vec::new()),
        Doubt::Unsynced => (doubtful, Vec::new()),
        Doubt::Torn => (Vec::new(), doubtful),
    };
    GroupConfig {
        name,
        geometry: parts.geometry,
        block_size,
        view: parts.view,
        meta: Arc::new(parts.meta),
        intents: parts.bitmap.as_ref().map(intents_of),
        unsynced,
        dirty,
        bad_blocks: parts.bad_blocks,
        rebuilding: parts.rebuilding,
        lanes,
    }
}

impl Daemon {
    /// Opens every path that carries something of a group of ours, exclusively, and looks at it again: what is decided
    /// upon is what nobody else can change any more (SAFETY M8). Paths already open are left alone.
    ///
    /// # Errors
    /// `drive.busy` with the holder if every member found is held by somebody else.
    pub(super) async fn take_members(
        &self,
        paths: &[PathBuf],
        wanted: impl Fn(&Looked) -> bool,
    ) -> Result<Vec<Looked>, ApiError> {
        let mut keys = Vec::new();
        let mut busy = None;
        // One wait for all of them: whoever holds one most likely holds them all.
        let deadline = Instant::now() + Duration::from_nanos(self.options.drive_timeout_ns);
        for path in paths {
            if self.host.key_of_path(path).is_some() {
                continue;
            }
            let looked = match self.inspect(path).await {
                Ok((_, looked)) => looked,
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "not looked at");
                    continue;
                }
            };
            if !wanted(&looked) {
                continue;
            }
            let block_size = looked_block_size(&looked);
            let options = drives::exclusive(self.options.drive_timeout_ns, block_size);
            match self.open_until(path, options, deadline).await {
                Ok(key) => keys.push((key, path.clone())),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "member cannot be opened; counted as absent");
                    let is_held = matches!(error.code, ErrorCode::DriveBusy | ErrorCode::DriveHeld);
                    busy = busy.or(Some(error).filter(|_| is_held));
                }
            }
        }
        match busy {
            // Nothing but what others hold: that is the answer, not an empty list.
            Some(error) if keys.is_empty() => Err(error),
            _ => self.look(keys).await,
        }
    }

    /// Decides about a group, with the witness of this host (SAFETY M4).
    pub(super) fn decide(&self, group: Uuid, looked: Vec<Looked>, policy: Policy) -> Decided {
        let observed: Vec<_> = looked.iter().map(|one| one.seen.clone()).collect();
        let witness = self.host.witness(group);
        Decided { decision: decide(group, &observed, witness.as_ref(), policy), looked }
    }

    /// Starts a group as decided and serves it on all lanes. Drives that take no part are let go of. A new group gets an
    /// empty disk table, whatever its drives held before.
    pub(super) async fn start_planned(
        self: &Arc<Self>,
        plan: StartPlan,
        looked: Vec<Looked>,
        is_new: bool,
    ) -> Result<Started, ApiError> {
        let tip = &plan.tip.copy;
        let (name, uuid, block_size) = (tip.name.clone(), tip.group, tip.block_size);
        if self.groups.read().values().any(|group| same_name(group.name(), &name) && group.uuid != uuid) {
            self.release(looked.iter().map(|one| one.key).collect()).await;
            let message = format!("group {name}: another running group has this name");
            return Err(ApiError::new(ErrorCode::GroupNameTaken, message).hint("stop the other group first"));
        }
        let is_adopted = tip.marks.adopted;
        let devices: Vec<Uuid> = plan.slots.iter().map(|slot| slot.record.device_uuid).collect();
        let left_out = left_out_by_device(&plan, &looked);
        let stale = stale_paths(&plan, &looked);
        let interrupted = super::replace::interrupted(&looked);
        let started = on_lane(&self.lanes[0], move |state| async move { start(state.env(), plan).await })
            .await
            .map_err(|_| stopping())?;
        let parts = match started {
            Ok(parts) => parts,
            Err(error) => {
                self.release(looked.iter().map(|one| one.key).collect()).await;
                return Err(ApiError::new(ErrorCode::Io, format!("group {name}: {error}")));
            }
        };
        let warnings = parts
            .warnings
            .iter()
            .map(|text| WarningDoc { code: ProblemCode::GroupStart.into(), message: text.clone() })
            .collect();
        let lanes = u16::try_from(self.lanes.len()).expect("lanes are counted in 16 bits");
        let rebuilding: Vec<_> = parts.rebuilding.iter().map(|(slot, _)| *slot).collect();
        let shared = Shared::new(config_of(name, block_size, parts, lanes));
        let places = self.places_of(&shared, &looked, &devices, &left_out);
        let used: BTreeSet<DriveKey> = places.iter().filter_map(|place| place.key).collect();
        self.release(looked.iter().map(|one| one.key).filter(|key| !used.contains(key)).collect()).await;
        lane_ops::install_group(&self.lanes, uuid, &shared).await;
        let table = self.load_or_make_table(uuid, &shared, (is_new, is_adopted)).await;
        let group = Arc::new(Running {
            uuid,
            shared,
            home: self.lanes[0].clone(),
            places: parking_lot::Mutex::new(places),
            table: parking_lot::Mutex::new(table),
            table_change: tokio::sync::Mutex::default(),
            exposures: parking_lot::Mutex::default(),
            ublk: parking_lot::Mutex::default(),
            scrub: parking_lot::Mutex::new(super::scrub::Keeper::open(&self.options.state_dir, uuid)),
            lost: parking_lot::Mutex::default(),
            settings: Arc::clone(&self.settings),
            fillings: parking_lot::Mutex::default(),
            jobs: parking_lot::Mutex::default(),
            rebuild_turn: tokio::sync::Mutex::default(),
        });
        group.settings.of(uuid).apply(&group.shared);
        group.scrub.lock().tell(&group);
        self.groups.write().insert(uuid, Arc::clone(&group));
        self.unstarted.lock().remove(&uuid);
        let paths: Vec<PathBuf> =
            group.places.lock().iter().filter_map(|place| place.path.clone()).map(PathBuf::from).collect();
        self.state.remember_drives(paths);
        self.remember_members(&group);
        tracing::info!(group = group.name(), %uuid, epoch = group.shared.view().epoch.counter, "group started");
        self.start_jobs(&group, rebuilding);
        self.take_back_left_out(&group, stale).await;
        self.resume_filling(&group, interrupted).await;
        Ok(Started { group, warnings })
    }

    fn places_of(
        &self,
        shared: &Shared,
        looked: &[Looked],
        devices: &[Uuid],
        left_out: &[(Uuid, MemberState, String)],
    ) -> Vec<Place> {
        let view = shared.view();
        let now = super::host::unix_seconds();
        view.members
            .iter()
            .zip(devices)
            .map(|(member, device)| {
                let key = member.drive;
                let by_key = |one: &&Looked| Some(one.key) == key;
                let path = looked.iter().find(by_key).map(|one| one.path.display().to_string());
                let drive = key.and_then(|key| self.host.drive(key));
                let out = left_out.iter().find(|(uuid, _, _)| uuid == device);
                let place = match (key, path, drive) {
                    (Some(key), Some(path), Some(drive)) => Place::of(key, path, &drive),
                    _ => self.last_place(*device, looked),
                };
                Place {
                    since_unix_s: (!member.is_in_sync()).then_some(now),
                    left_out: out.map(|(_, state, why)| (*state, why.clone())),
                    ..place
                }
            })
            .collect()
    }

    /// Where the drive of a member that takes no part is, or was when this host last had it, unless another one is there.
    fn last_place(&self, device: Uuid, looked: &[Looked]) -> Place {
        let here = looked.iter().find(|one| one.device() == Some(device));
        if let Some(one) = here {
            let path = Some(one.path.display().to_string());
            return Place { path, serial: one.serial.clone(), ..Place::default() };
        }
        let Some(seen) = self.state.last_seen(device) else { return Place::default() };
        if looked.iter().any(|one| one.path == seen.path && one.device().is_some()) {
            return Place { serial: seen.serial, port: seen.port, ..Place::default() };
        }
        let path = Some(seen.path.display().to_string());
        Place { path, serial: seen.serial, port: seen.port, ..Place::default() }
    }

    /// The group's disks; an untouched group gets an empty table. On an array that was adopted nothing is written: without
    /// a table it is one disk, whatever its first blocks hold.
    async fn load_or_make_table(
        &self,
        uuid: Uuid,
        shared: &Arc<Shared>,
        (is_new, is_adopted): (bool, bool),
    ) -> Option<DiskTable> {
        let capacity = shared.geometry().capacity_bytes();
        let stripe = shared.geometry().stripe_data_bytes();
        let name = shared.name().to_owned();
        let loaded = on_lane(&self.lanes[0], move |state| async move {
            let group = state.group(uuid).expect("installed on every lane before");
            let loaded =
                if is_new { Ok(Loaded::Nothing(GptError::Absent)) } else { load_table(&group).await };
            match loaded {
                Ok(Loaded::Table(table, repair)) => {
                    if let Some(repair) = repair.filter(|_| !is_adopted) {
                        tracing::warn!(
                            group = name,
                            ?repair,
                            "one copy of the disk table was damaged; written again"
                        );
                        store_table(&group, &table).await?;
                    }
                    Ok(Some(*table))
                }
                Ok(Loaded::Nothing(GptError::Absent | GptError::TooSmall)) if is_adopted => {
                    Ok(Some(DiskTable::whole(uuid, capacity, stripe)))
                }
                Ok(Loaded::Nothing(GptError::Absent)) if is_new || is_blank(&group).await? => {
                    let Ok(table) = new_table(&group, uuid) else { return Ok(None) };
                    store_table(&group, &table).await?;
                    Ok(Some(table))
                }
                Ok(Loaded::Nothing(GptError::TooSmall)) => Ok(None),
                Ok(Loaded::Nothing(GptError::Absent)) => {
                    tracing::info!(group = name, "no disk table: the group is one disk");
                    Ok(Some(DiskTable::whole(uuid, capacity, stripe)))
                }
                Ok(Loaded::Nothing(error)) => {
                    tracing::error!(group = name, %error, "the group's disks cannot be told");
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        })
        .await;
        match loaded {
            Ok(Ok(table)) => table,
            Ok(Err(error)) => {
                tracing::error!(group = shared.name(), %error, "the disk table cannot be read");
                None
            }
            Err(_) => None,
        }
    }
}

/// The block size a file must be opened with to be the member it says it is.
pub(super) fn looked_block_size(looked: &Looked) -> Option<raid_core::units::BlockSize> {
    match &looked.seen.what {
        Observation::Ours(ours) => Some(ours.copy.block_size),
        _ => None,
    }
}

/// Whether the group's first blocks are all zero: nobody has put anything there.
async fn is_blank<E: raid_core::ports::Env>(
    group: &raid_core::engine::Group<E>,
) -> Result<bool, raid_core::ports::IoError> {
    let head = super::extent::read_head(group).await?;
    Ok(head.iter().all(|&byte| byte == 0))
}

/// Where the members lie that were left out because they were dropped before.
fn stale_paths(plan: &StartPlan, looked: &[Looked]) -> Vec<PathBuf> {
    let is_stale =
        |one: &&Looked| plan.left_out.iter().any(|out| out.drive == one.key && out.why.starts_with("stale"));
    looked.iter().filter(is_stale).map(|one| one.path.clone()).collect()
}

fn left_out_by_device(plan: &StartPlan, looked: &[Looked]) -> Vec<(Uuid, MemberState, String)> {
    plan.left_out
        .iter()
        .filter_map(|out| {
            let device = out.device_uuid?;
            let diverged = out.why.starts_with("conflict");
            let state = if diverged { MemberState::Conflict } else { MemberState::Stale };
            let path =
                looked.iter().find(|one| one.key == out.drive).map(|one| one.path.display().to_string());
            let why = match path {
                Some(path) => format!("{path}: {}", out.why),
                None => out.why.clone(),
            };
            Some((device, state, why))
        })
        .collect()
}
