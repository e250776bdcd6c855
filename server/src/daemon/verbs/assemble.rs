//! `group assemble` and `group undelete`: groups from what lies on drives.

use std::path::PathBuf;

use raid_core::membership::{Decision, Observation, Policy};
use raid_core::units::Uuid;

use crate::control::model::ActionDoc;
use crate::control::request::{GroupAssemble, GroupUndelete};
use crate::control::{Answer, ApiError, ErrorCode, Reply};
use crate::daemon::api::{Api, check_identity, confirm_missing};
use crate::daemon::look::Looked;
use crate::daemon::{look, refused};

/// The member that a side of a split history is called by: its uuid, or path or serial of its drive.
fn side_of(keep: &str, looked: &[Looked]) -> Result<Uuid, ApiError> {
    let is_called = |one: &&Looked| {
        one.path.as_os_str() == keep
            || one.serial.as_deref() == Some(keep)
            || one.device() == Uuid::parse(keep)
    };
    let found = looked.iter().find(|one| one.device().is_some() && is_called(one));
    found.and_then(Looked::device).ok_or_else(|| {
        ApiError::new(ErrorCode::DriveNotFound, format!("--keep {keep}: no member of the group is called so"))
            .hint("name a member by its uuid, or its drive by path or serial: warpraid examine DRIVE")
    })
}

impl Api {
    pub(in crate::daemon) async fn assemble_one(
        &self,
        name: &str,
        what: &GroupAssemble,
        extra: &[PathBuf],
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        if let Some(running) = daemon.running(name) {
            let message = format!("group {} runs already", running.name());
            return Err(
                ApiError::new(ErrorCode::GroupRunning, message).hint("warpraid group show tells its state")
            );
        }
        let (uuid, shown, looked) = daemon.find_group(name, extra).await?;
        let keys: Vec<_> = looked.iter().map(|one| one.key).collect();
        if what.force {
            let checked = if what.yes || what.dry_run {
                let known = [uuid.to_string()];
                check_identity(
                    &format!("group {shown}"),
                    what.expect_uuid.as_deref(),
                    &known,
                    ErrorCode::GroupUuidMismatch,
                )
            } else {
                Err(confirm_missing(&format!("a forced start of group {shown}")))
            };
            if let Err(error) = checked {
                daemon.release(keys).await;
                return Err(error);
            }
        }
        let choose = match what.keep.as_deref().map(|keep| side_of(keep, &looked)).transpose() {
            Ok(choose) => choose,
            Err(error) => {
                daemon.release(keys).await;
                return Err(error);
            }
        };
        let policy = Policy { force: what.force, waited: true, choose };
        let decided = daemon.decide(uuid, looked, policy);
        let looked = decided.looked;
        let steps = match &decided.decision {
            Decision::Start(plan) => refused::steps_of(plan, &looked),
            // The wait is over, so the rest are refusals.
            _ => Vec::new(),
        };
        if what.dry_run {
            daemon.release(keys).await;
            return match decided.decision {
                Decision::Refuse(refusal) => Err(refused::refused(&shown, &refusal, &looked)),
                _ => Ok(ActionDoc::new("group assemble", shown, true, steps).into()),
            };
        }
        let started = daemon.decide_and_start(&shown, uuid, looked, policy, false).await?;
        Ok(self.started(ActionDoc::new("group assemble", shown, false, steps), started).await)
    }

    pub(in crate::daemon) async fn assemble_all(
        &self,
        what: &GroupAssemble,
        extra: &[PathBuf],
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let mut paths = daemon.known_paths();
        paths.extend(extra.iter().cloned());
        let looked = daemon.take_members(&paths, |looked| looked.seen.group().is_some()).await?;
        let uuids: std::collections::BTreeSet<Uuid> =
            looked.iter().filter_map(|one| one.seen.group()).collect();
        daemon.release(looked.iter().map(|one| one.key).collect()).await;
        let mut doc = ActionDoc::new("group assemble", "all groups", what.dry_run, Vec::new());
        let (mut warnings, mut first_error) = (Vec::new(), None);
        for uuid in uuids.into_iter().filter(|uuid| !daemon.is_running(*uuid)) {
            match self.assemble_one(&uuid.to_string(), what, extra).await {
                Ok(reply) => {
                    doc.steps.extend(reply.data.steps);
                    doc.groups.extend(reply.data.groups);
                    warnings.extend(reply.warnings);
                }
                Err(error) => {
                    let (code, message) = (error.code.as_str().into(), error.message.clone());
                    warnings.push(crate::control::model::WarningDoc { code, message });
                    first_error = first_error.or(Some(error));
                }
            }
        }
        match first_error {
            // Nothing came of it: an error, with the first reason. What did start is told with the others as warnings.
            Some(error) if doc.groups.is_empty() && !what.dry_run => Err(error),
            _ => Ok(Reply { data: doc, warnings }),
        }
    }

    pub(in crate::daemon) async fn group_assemble(&self, what: GroupAssemble) -> Answer<ActionDoc> {
        let _change = self.0.change.lock().await;
        let extra = look::resolve_all(&what.drives).await?;
        match &what.group {
            Some(name) if !what.all => self.assemble_one(name, &what, &extra).await,
            None if what.all && what.keep.is_some() => {
                Err(ApiError::new(ErrorCode::UsageInvalid, "--keep is about one group, not all"))
            }
            None if what.all => self.assemble_all(&what, &extra).await,
            _ => Err(ApiError::new(ErrorCode::UsageInvalid, "name one group, or --all")
                .hint("warpraid group assemble NAME [DRIVE...]")),
        }
    }

    pub(in crate::daemon) async fn group_undelete(&self, what: GroupUndelete) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let extra = look::resolve_all(&what.drives).await?;
        if daemon.running(&what.group).is_some() {
            let message = format!("group {} runs: it is not deleted", what.group);
            return Err(ApiError::new(ErrorCode::GroupRunning, message).hint("nothing to do"));
        }
        if what.dry_run {
            let (uuid, shown, looked) = daemon.find_group(&what.group, &extra).await?;
            let steps =
                looked.iter().map(|one| format!("{}: {}", one.path.display(), one.seen.what)).collect();
            let deleted = looked
                .iter()
                .any(|one| matches!(&one.seen.what, Observation::Ours(ours) if ours.copy.marks.deleted));
            daemon.release(looked.iter().map(|one| one.key).collect()).await;
            if !deleted {
                let message = format!("group {shown} ({uuid}) is not deleted");
                return Err(ApiError::new(ErrorCode::GroupUndeleteImpossible, message)
                    .hint("warpraid group assemble starts it"));
            }
            return Ok(ActionDoc::new("group undelete", shown, true, steps).into());
        }
        let started = daemon.undelete_group(&what.group, &extra).await?;
        let name = started.group.name().to_owned();
        let steps = vec![format!("group {name} is back")];
        Ok(self.started(ActionDoc::new("group undelete", name, false, steps), started).await)
    }
}
