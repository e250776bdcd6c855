//! A dropped member comes back to its slot: by verb, or by itself when its group starts (SAFETY M6).
//!
//! Who may come back is decided by [`raid_core::membership::NoReturn`]'s rules, on what lies on the drive after it was
//! opened exclusively: a drive with a command of ours still unfinished is held by that command and cannot be opened
//! (SAFETY M7). By itself comes back only what was lost to contact; a member that the operator dropped, or that failed
//! writes, waits for the operator's word.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme_backend::OpenDrive;
use raid_core::membership::{self, NoReturn, Observation, Ours, prepare_return};
use raid_core::ports::{DriveKey, Env, IoKind};
use raid_core::units::{Slot, Uuid};

use super::api::Api;
use super::host::unix_seconds;
use super::look::Looked;
use super::replace::file_block_size;
use super::running::{Place, Running};
use super::sweeps::member_drives;
use super::{Daemon, drives, io_failed, stopping};
use crate::control::model::ActionDoc;
use crate::control::request::GroupReadd;
use crate::control::{Answer, ApiError, ErrorCode};
use crate::lane::on_lane;

/// How long a drive that is still busy is waited for.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How a member came back: its slot, and what of it has to be copied.
pub(super) struct Readded {
    pub(super) slot: Slot,
    pub(super) copy_bytes: u64,
}

fn refused(path: &str, group: &str, why: &NoReturn) -> ApiError {
    let code = match why {
        NoReturn::NotAMember | NoReturn::Replaced { .. } => ErrorCode::DriveNotFound,
        NoReturn::Taken(_) => ErrorCode::GroupSlotInvalid,
        NoReturn::Conflict { .. } => ErrorCode::GroupDiverged,
        NoReturn::NeverInSync(_)
        | NoReturn::RolledBack { .. }
        | NoReturn::Distrusted(_)
        | NoReturn::NoBitmap => ErrorCode::GroupStale,
    };
    let hint = match why {
        NoReturn::Taken(_) => format!("warpraid group show {group} lists the members"),
        _ => format!(
            "to use the drive as a blank one: warpraid drive wipe {path}, then warpraid group replace {group} --slot N {path}"
        ),
    };
    ApiError::new(code, format!("{path} cannot come back to group {group}: {why}")).hint(hint)
}

/// Its lost blocks, as ranges of its data area (SAFETY S6).
fn lost_blocks(ours: &Ours) -> Vec<core::ops::Range<u64>> {
    let start = ours.copy.layout.data_start.0;
    let end = start + ours.copy.layout.data_bytes;
    let inside = ours.bad_blocks.ranges().iter().map(|range| range.start.max(start)..range.end.min(end));
    inside.filter(|range| !range.is_empty()).map(|range| range.start - start..range.end - start).collect()
}

impl Daemon {
    /// Whether what lies on a drive may come back to this group, to which slot, and whether by itself.
    pub(super) fn may_return(group: &Running, looked: &Looked) -> Result<(Slot, bool), NoReturn> {
        match (&looked.seen.what, group.persistent()) {
            (Observation::Ours(ours), Some(meta)) => meta.may_return(ours),
            _ => Err(NoReturn::NotAMember),
        }
    }

    /// Records durably that a member's drive is not as the group left it.
    pub(super) async fn distrust(group: &Arc<Running>, device: Uuid) {
        let uuid = group.uuid;
        let stored = on_lane(&group.home, move |state| async move {
            let Some(group) = state.group(uuid) else { return Vec::new() };
            membership::distrust(group.env(), group.shared().meta(), device, &member_drives(&group)).await
        });
        // A member that fails to take it fails its next write, too, and is dropped then; the others know.
        for (slot, error) in stored.await.unwrap_or_default() {
            tracing::warn!(group = group.name(), %slot, %error, "the mark of a damaged member was not stored there");
        }
    }

    /// Puts the old member on the drive at `path` back into its slot and starts its rebuild by intent bits. `slot`: only
    /// there. With `dry_run` nothing is written, with `by_itself` only what comes back without being asked for.
    pub(super) async fn readd_member(
        self: &Arc<Self>,
        group: &Arc<Running>,
        path: &Path,
        slot: Option<Slot>,
        dry_run: bool,
        by_itself: bool,
    ) -> Result<Readded, ApiError> {
        if let Some((other, of, _)) = self.member_at(path) {
            let message =
                format!("{} is a member of group {} (slot {of}) already", path.display(), other.name());
            return Err(ApiError::new(ErrorCode::DriveIsMember, message));
        }
        if group.shared.is_offline() {
            let message = format!("group {} is offline: nobody can be resynced", group.name());
            return Err(ApiError::new(ErrorCode::GroupOffline, message).hint(format!(
                "warpraid group stop {}, then with all members there: warpraid group assemble {}",
                group.name(),
                group.name()
            )));
        }
        let block = file_block_size(path, group);
        // Commands of ours that are still on their way to it hold it (SAFETY M7), for a moment or until it answers.
        let wait = Duration::from_nanos(self.options.drive_timeout_ns).min(BUSY_WAIT);
        let options = drives::exclusive(self.options.drive_timeout_ns, block);
        let key = self.open_until(path, options, Instant::now() + wait).await?;
        let drive = self.host.drive(key).ok_or_else(stopping)?;
        let result = self.take_back(group, path, (key, &drive), slot, dry_run, by_itself).await;
        if result.is_err() || dry_run {
            self.release(vec![key]).await;
        }
        result
    }

    async fn take_back(
        self: &Arc<Self>,
        group: &Arc<Running>,
        path: &Path,
        (key, drive): (DriveKey, &OpenDrive),
        wanted: Option<Slot>,
        dry_run: bool,
        by_itself: bool,
    ) -> Result<Readded, ApiError> {
        let shown = path.display().to_string();
        let looked = self.look(vec![(key, path.to_owned())]).await?.pop().ok_or_else(stopping)?;
        let ours = match looked.seen.what.clone() {
            Observation::Ours(ours) => ours,
            Observation::Unreadable(error) => return Err(io_failed(&shown, &error)),
            Observation::Damaged { group: of, device_uuid: Some(device), what, .. }
                if of == Some(group.uuid) =>
            {
                Self::distrust(group, device).await;
                let message = format!("{shown} cannot come back to group {}: damaged: {what}", group.name());
                return Err(ApiError::new(ErrorCode::GroupStale, message)
                    .hint("replace it: warpraid group replace GROUP --slot N NEW_DRIVE"));
            }
            _ => return Err(refused(&shown, group.name(), &NoReturn::NotAMember)),
        };
        let may = Self::may_return(group, &looked).map_err(|why| refused(&shown, group.name(), &why))?;
        let (slot, comes_by_itself) = may;
        if wanted.is_some_and(|wanted| wanted != slot) {
            let message = format!("{shown} was the member of slot {slot} of group {}", group.name());
            return Err(ApiError::new(ErrorCode::GroupSlotInvalid, message).hint("leave --slot out"));
        }
        if by_itself && !comes_by_itself {
            let message =
                format!("{shown} was dropped for more than lost contact; it does not come back by itself");
            return Err(ApiError::new(ErrorCode::GroupStale, message)
                .hint(format!("if it is sound: warpraid group readd {} {shown}", group.name())));
        }
        if dry_run {
            return Ok(Readded { slot, copy_bytes: group.shared.lacking_bytes(slot) });
        }
        let (uuid, lost) = (group.uuid, lost_blocks(&ours));
        let joined = on_lane(&group.home, move |state| async move {
            let group = state.group(uuid).ok_or(Joined::Failed(IoKind::ShuttingDown))?;
            let meta = std::sync::Arc::clone(group.shared().meta());
            let (slot, member) = prepare_return(&meta, &ours, key).await.map_err(Joined::Refused)?;
            state.env().drive(key).ok_or(Joined::Failed(IoKind::Gone))?;
            group.readd_member(slot, member, &lost).await.map(|_| ()).map_err(Joined::Failed)
        });
        joined.await.map_err(|_| stopping())?.map_err(|why| match why {
            Joined::Refused(why) => refused(&shown, group.name(), &why),
            Joined::Failed(IoKind::BeyondTolerance) => ApiError::new(
                ErrorCode::GroupOffline,
                format!("group {} has no source for what {shown} lacks", group.name()),
            ),
            Joined::Failed(kind) => ApiError::new(
                ErrorCode::Io,
                format!("{shown} could not join group {}: {kind:?}", group.name()),
            ),
        })?;
        let place = Place::of(key, shown.clone(), drive);
        group.places.lock()[slot.index()] = Place { since_unix_s: Some(unix_seconds()), ..place };
        self.state.remember_drives([path.to_owned()]);
        self.remember_members(group);
        let copy_bytes = group.shared.lacking_bytes(slot);
        tracing::info!(group = group.name(), %slot, drive = shown, copy_bytes, "member is back");
        self.start_rebuild(group, slot);
        Ok(Readded { slot, copy_bytes })
    }

    /// Takes back the members that a start left out as stale, where they may come back by themselves.
    pub(super) async fn take_back_left_out(self: &Arc<Self>, group: &Arc<Running>, paths: Vec<PathBuf>) {
        for path in paths {
            match self.readd_member(group, &path, None, false, true).await {
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(group = group.name(), path = %path.display(), %error, "left out");
                }
            }
        }
    }
}

enum Joined {
    Refused(NoReturn),
    Failed(IoKind),
}

impl Api {
    pub(super) async fn group_readd(&self, group: String, how: GroupReadd) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        daemon.release_dropped().await;
        let running = daemon.need_running(&group)?;
        let path = self.drive_path(&how.drive).await?;
        let slot = how.slot.map(Slot);
        let back = daemon.readd_member(&running, &path, slot, how.dry_run, false).await?;
        let steps = vec![
            format!("{} comes back to slot {} of group {}", path.display(), back.slot, running.name()),
            format!("what it lacks by the intent bits is copied: {} bytes", back.copy_bytes),
        ];
        let mut action = ActionDoc::new("group readd", running.name(), how.dry_run, steps);
        action.groups.push(running.doc());
        Ok(action.into())
    }
}
