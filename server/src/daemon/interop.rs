//! Arrays of Linux md taken over in place, and groups given back to md. What the members go through: `raid_core::membership`,
//! `adopt` and `release`; here is who may, and what it is called.

use std::path::PathBuf;
use std::sync::Arc;

use nvme_backend::OpenDrive;
use raid_core::format::adopt::{AdoptDrive, AdoptError, AdoptPlan, AdoptRefusal, missing_slots, plan_adopt};
use raid_core::format::probe::Kind;
use raid_core::format::superblock::MD_SECTOR_BYTES;
use raid_core::membership::{self, AdoptMember, MdMember, Policy};
use raid_core::ports::{DriveKey, Env};
use raid_core::units::Slot;

use super::look::{self, Looked};
use super::running::Running;
use super::start::Started;
use super::sweeps::member_drives;
use super::{Daemon, drives, io_failed, stopping};
use crate::control::{ApiError, ErrorCode};
use crate::lane::on_lane;

/// Drives of an array of md, opened, and the plan of their adopt.
pub(super) struct MdTaken {
    pub(super) plan: AdoptPlan,
    /// In the order in which they were named.
    pub(super) drives: Vec<(PathBuf, DriveKey)>,
    /// The same, with their superblock's slot.
    found: Vec<(AdoptDrive, Vec<u8>)>,
}

impl MdTaken {
    pub(super) fn keys(&self) -> Vec<DriveKey> {
        self.drives.iter().map(|(_, key)| *key).collect()
    }

    /// What an adopt under this name does.
    pub(super) fn steps(&self, name: &str) -> Vec<String> {
        let plan = &self.plan;
        let geometry = &plan.geometry;
        let mut steps = vec![format!(
            "md array {} ({}), {} of {}, becomes group {name}: {} bytes, none of them written",
            plan.md_name,
            plan.group,
            geometry.level(),
            geometry.members(),
            geometry.capacity_bytes()
        )];
        for (slot, planned) in (0u8..).zip(&plan.slots) {
            let Some(drive) = planned.drive else { continue };
            let (path, layout) = (self.drives[drive].0.display(), &planned.layout);
            let area = layout.extension.clone().unwrap_or(0..0);
            steps.push(format!(
                "{path} is slot {slot}: data stays at byte {}, our metadata goes to bytes {} to {}, which md does not use",
                layout.data_start.0, area.start, area.end
            ));
        }
        for slot in missing_slots(plan) {
            steps.push(format!("slot {slot} has no member in the array and stays without one"));
        }
        if geometry.level().is_redundant() && plan.slots.iter().all(|slot| slot.layout.bitmap.is_none()) {
            steps.push("the array has no write-intent bitmap: a crash resyncs all of it".to_owned());
        }
        steps
    }
}

fn adopt_error(error: &AdoptError) -> ApiError {
    let (code, hint) = match error.why {
        AdoptRefusal::Metadata => (
            ErrorCode::AdoptMetadata,
            "mdadm --examine DRIVE shows what is there; 1.2 is the one version we take",
        ),
        AdoptRefusal::Layout => (
            ErrorCode::AdoptLayout,
            "mdadm --grow can change chunk and layout; docs/md-interop.md lists what we take",
        ),
        AdoptRefusal::Reshape => {
            (ErrorCode::AdoptReshape, "assemble it with mdadm, let the reshape end, stop it, try again")
        }
        AdoptRefusal::Journal => (
            ErrorCode::AdoptJournal,
            "mdadm --grow --consistency-policy=resync, or take the journal device out",
        ),
        AdoptRefusal::Bitmap => {
            (ErrorCode::AdoptBitmap, "mdadm --grow --bitmap=none, then --bitmap=internal, makes it anew")
        }
        AdoptRefusal::Feature => (ErrorCode::AdoptFeature, "a newer warpraid may know it"),
        AdoptRefusal::Dirty => {
            (ErrorCode::AdoptDirty, "assemble it with mdadm, wait until it is in sync, mdadm --stop it")
        }
        AdoptRefusal::Rebuilding => {
            (ErrorCode::AdoptRebuilding, "assemble it with mdadm, wait for the rebuild, mdadm --stop it")
        }
        AdoptRefusal::Mixed => (ErrorCode::AdoptMixed, "name the drives of one array, each member once"),
        AdoptRefusal::NotInUse => (
            ErrorCode::AdoptNotInUse,
            "leave it out; once the group runs, wipe it and replace or spare add takes it",
        ),
        AdoptRefusal::Incomplete => (
            ErrorCode::AdoptIncomplete,
            "name them too; if they are gone: mdadm --assemble --run starts the array without them, then mdadm --stop",
        ),
        AdoptRefusal::NoRoom => {
            (ErrorCode::AdoptNoRoom, "mdadm --grow --bitmap=none makes room where a bitmap is in the way")
        }
        AdoptRefusal::BlockSize => (ErrorCode::AdoptBlockSize, "it stays md's"),
    };
    ApiError::new(code, error.message.clone()).hint(hint)
}

/// Refuses a drive that somebody uses, or that carries something beside md's superblock where md has no data.
fn refuse_foreign(looked: &Looked, drive: &OpenDrive, md: &AdoptDrive) -> Result<(), ApiError> {
    let path = looked.path.display();
    let holders = &drive.identity().holders;
    if !holders.is_empty() {
        let message = format!("{path} is in use by {}", holders.join(", "));
        return Err(ApiError::new(ErrorCode::DriveMounted, message)
            .hint("if that is the array itself: mdadm --stop it first; a drive in use is never taken"));
    }
    let start = md.superblock.data_offset.saturating_mul(MD_SECTOR_BYTES);
    let data = start..start.saturating_add(md.superblock.data_size.saturating_mul(MD_SECTOR_BYTES));
    let ours = [Kind::Md12, Kind::Warpraid, Kind::WarpraidTombstone].map(|kind| kind.to_string());
    let foreign: Vec<String> = looked
        .signatures
        .iter()
        .filter(|found| !ours.contains(&found.kind) && !data.contains(&found.offset_bytes))
        .map(|found| format!("{} at byte {}", found.kind, found.offset_bytes))
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let message = format!("{path} also carries {}, outside the array's data", foreign.join(", "));
    Err(ApiError::new(ErrorCode::DriveUsed, message)
        .hint("if it is a leftover: wipefs --offset BYTE DRIVE takes it off"))
}

impl Daemon {
    /// Opens drives for an adopt, and plans it. `exclusive`: to be written.
    ///
    /// # Errors
    /// The first thing that is wrong; every drive is let go of then.
    pub(super) async fn take_md(&self, names: &[String], exclusive: bool) -> Result<MdTaken, ApiError> {
        let paths = look::resolve_all(names).await?;
        let mut opened = Vec::new();
        let result = self.take_md_inner(&paths, exclusive, &mut opened).await;
        if result.is_err() {
            self.release(opened.iter().map(|(_, _, key)| *key).collect()).await;
        }
        let (plan, found) = result?;
        let drives = opened.into_iter().map(|(path, _, key)| (path, key)).collect();
        Ok(MdTaken { plan, drives, found })
    }

    async fn take_md_inner(
        &self,
        paths: &[PathBuf],
        exclusive: bool,
        opened: &mut Vec<(PathBuf, OpenDrive, DriveKey)>,
    ) -> Result<(AdoptPlan, Vec<(AdoptDrive, Vec<u8>)>), ApiError> {
        for path in paths {
            if let Some((group, slot, _)) = self.member_at(path) {
                let message = format!("{} is slot {slot} of group {}", path.display(), group.name());
                return Err(ApiError::new(ErrorCode::DriveIsMember, message).hint("it is ours already"));
            }
            self.refuse_spare(path)?;
            let timeout_ns = self.options.drive_timeout_ns;
            let options =
                if exclusive { drives::exclusive(timeout_ns, None) } else { drives::inspection(timeout_ns) };
            let drive = look::open(path, options).await?;
            let key = self.host.add_drive(drive.clone());
            opened.push((path.clone(), drive, key));
        }
        let looked = self.look(opened.iter().map(|(path, _, key)| (*key, path.clone())).collect()).await?;
        let mut found = Vec::new();
        for (one, (path, drive, key)) in looked.iter().zip(opened.iter()) {
            let (key, shown) = (*key, path.display().to_string());
            let read = on_lane(&self.lanes[0], move |state| async move {
                let drive = state.env().drive(key).expect("in the registry");
                membership::read_md(state.env(), &drive).await
            });
            let read = read.await.map_err(|_| stopping())?.map_err(|error| io_failed(&shown, &error))?;
            match read {
                MdMember::Found { drive: md, slot } => {
                    refuse_foreign(one, drive, &md)?;
                    found.push((AdoptDrive { name: shown, ..*md }, slot));
                }
                MdMember::None(error) => {
                    let carries = one.what().map_or(String::new(), |what| format!("; it carries {what}"));
                    let message = format!("{shown}: {error}{carries}");
                    return Err(adopt_error(&AdoptError { why: AdoptRefusal::Metadata, message }));
                }
                MdMember::Claimed(what) => {
                    let message = format!("{shown} is ours already: {what}");
                    return Err(ApiError::new(ErrorCode::DriveIsMember, message)
                        .hint("warpraid group assemble starts its group"));
                }
            }
        }
        let list: Vec<AdoptDrive> = found.iter().map(|(drive, _)| drive.clone()).collect();
        let plan = plan_adopt(&list).map_err(|error| adopt_error(&error))?;
        Ok((plan, found))
    }

    /// Takes an array over and starts it as a group of this name.
    pub(super) async fn adopt_group(
        self: &Arc<Self>,
        name: &str,
        taken: MdTaken,
    ) -> Result<Started, ApiError> {
        let keys = taken.keys();
        let uuid = taken.plan.group;
        // What this host remembers of the group is of a life before md had it.
        self.host.forget_witness(uuid);
        let slots: Vec<(Slot, usize)> = (0u8..)
            .map(Slot)
            .zip(&taken.plan.slots)
            .filter_map(|(slot, planned)| Some((slot, planned.drive?)))
            .collect();
        let (plan, found, shown, lane_keys) = (taken.plan, taken.found, name.to_owned(), keys.clone());
        let adopted = on_lane(&self.lanes[0], move |state| async move {
            let member = |(slot, drive): &(Slot, usize)| {
                let (md, bytes) = &found[*drive];
                let drive = state.env().drive(lane_keys[*drive]).expect("in the registry");
                AdoptMember { slot: *slot, drive, superblock: md.superblock.clone(), bytes: bytes.clone() }
            };
            let members: Vec<_> = slots.iter().map(member).collect();
            membership::adopt(state.env(), &plan, &shown, &members).await
        });
        let adopted = adopted.await.map_err(|_| stopping()).and_then(|result| {
            result.map_err(|error| {
                let hint = match error.not_restored[..] {
                    [] => "the array is md's as before; see to the drive named, then try again",
                    _ => "do not start the array with mdadm: see to the drive named, then adopt again",
                };
                ApiError::new(ErrorCode::Io, format!("group {name}: {error}")).hint(hint)
            })
        });
        if let Err(error) = adopted {
            self.release(keys).await;
            return Err(error);
        }
        let paths = taken.drives.into_iter().map(|(path, key)| (key, path)).collect();
        let looked = self.look(paths).await?;
        self.decide_and_start(name, uuid, looked, Policy::default(), false).await
    }

    /// Refuses a release that md could not go on from.
    pub(super) fn check_release(group: &Running) -> Result<(), ApiError> {
        let name = group.name();
        if group.shared.is_offline() {
            let message = format!("group {name} is offline: too many members are lost");
            return Err(ApiError::new(ErrorCode::GroupOffline, message).hint("bring the members back first"));
        }
        let mut served: Vec<String> =
            group.exposures.lock().iter().map(|exposure| exposure.disk.clone()).collect();
        served.extend(group.ublk.lock().iter().map(|device| device.disk.clone()));
        if !served.is_empty() {
            served.sort();
            served.dedup();
            let message = format!("group {name} serves {}", served.join(", "));
            let hint = format!("unmount first, then: warpraid disk unexpose {name}/{}", served[0]);
            return Err(ApiError::new(ErrorCode::GroupBusy, message).hint(hint));
        }
        if !group.is_synced() {
            let bytes = group.facts().unsynced_bytes;
            let message = format!("group {name} is not in sync: {bytes} bytes of each member are left");
            return Err(ApiError::new(ErrorCode::ReleaseUnsynced, message)
                .hint(format!("warpraid group wait {name} --for synced")));
        }
        let view = group.shared.view();
        let rebuilding = view.slots().find(|slot| {
            let member = view.member(*slot);
            !member.is_missing() && !member.is_in_sync()
        });
        let filling = group.fillings.lock().keys().next().copied();
        if let Some(slot) = rebuilding.or(filling) {
            let message = format!("group {name}: slot {slot} is being rebuilt or replaced");
            return Err(ApiError::new(ErrorCode::ReleaseRebuilding, message)
                .hint(format!("warpraid group wait {name} --for rebuilt")));
        }
        Ok(())
    }

    /// What a release does, and what the operator has to know before md takes the drives.
    pub(super) fn release_steps(group: &Running) -> Vec<String> {
        let name = group.name();
        let view = group.shared.view();
        let places = group.places.lock();
        let drives: Vec<&str> = places
            .iter()
            .zip(&view.members)
            .filter(|(_, member)| !member.is_missing())
            .filter_map(|(place, _)| place.path.as_deref())
            .collect();
        let mut steps = vec![
            format!("group {name} is flushed, marked clean and stopped"),
            format!("the claim is taken off its {} members, then our metadata", drives.len()),
            format!("then it is md's: mdadm --assemble /dev/md/{name} {}", drives.join(" ")),
        ];
        for slot in view.slots().filter(|slot| view.member(*slot).is_missing()) {
            let shown = places[slot.index()].path.as_deref().unwrap_or("the drive that was in it");
            steps.push(format!(
                "slot {slot} stays without a member; {shown} must be wiped before md can use it: it may carry our claim"
            ));
        }
        let status = group.shared.status();
        let ranges = status.slots.iter().flat_map(|slot| &slot.bad_blocks);
        let lost: u64 = ranges.map(|range| range.end - range.start).sum();
        if lost > 0 {
            steps.push(format!("{lost} bytes of members are lost and stay listed in md's bad-block logs"));
        }
        if group.persistent().is_some_and(|meta| meta.marks().forced) {
            steps.push(
                "the group was once started by force, which md does not know: some blocks may be wrong"
                    .into(),
            );
        }
        steps
    }

    /// Gives a group to md.
    pub(super) async fn release_group(
        self: &Arc<Self>,
        group: &Arc<Running>,
    ) -> Result<Vec<String>, ApiError> {
        self.quiesce(group, false).await?;
        if let Err(error) = self.mark_stopped(group).await {
            self.forget(group).await;
            return Err(error);
        }
        let uuid = group.uuid;
        let released = on_lane(&group.home, move |state| async move {
            let Some(group) = state.group(uuid) else { return Ok(Vec::new()) };
            let (view, drives) = (group.shared().view(), member_drives(&group));
            membership::release(state.env(), group.shared().meta(), &view, &drives).await
        });
        let released = released.await.map_err(|_| stopping())?;
        let name = group.name().to_owned();
        let behind = match released {
            Ok(behind) => behind,
            Err(error) => {
                self.forget(group).await;
                return Err(ApiError::new(ErrorCode::Io, format!("group {name}: {error}")).hint(format!(
                    "it is stopped; see to the drive named, then: warpraid group assemble {name}"
                )));
            }
        };
        let traces = behind
            .iter()
            .map(|(slot, error)| {
                let path = group.places.lock()[slot.index()].path.clone().unwrap_or_default();
                format!("{path} is md's, but traces of ours stayed on it: {error}")
            })
            .collect();
        self.host.forget_witness(uuid);
        for disk in self.disk_keys(group) {
            self.state.forget_exposures(&disk, None);
        }
        self.state.forget_members(uuid);
        self.forget(group).await;
        self.unstarted.lock().remove(&uuid);
        Ok(traces)
    }

    /// Disks of an adopted array whose edges do not lie on full stripes, in words.
    pub(super) fn misaligned(group: &Running) -> Vec<String> {
        let table = group.table.lock();
        let disks = table.as_ref().map_or_else(Vec::new, raid_core::disks::DiskTable::list);
        disks
            .iter()
            .filter(|disk| !disk.is_aligned)
            .map(|disk| {
                format!(
                    "disk {} does not begin or end on a full stripe: writes at its edges cost more",
                    disk.name
                )
            })
            .collect()
    }
}
