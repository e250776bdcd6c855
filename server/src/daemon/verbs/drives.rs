//! The verbs of drives.

use std::path::PathBuf;
use std::sync::Arc;

use crate::control::model::{ActionDoc, DriveDoc, DriveListDoc};
use crate::control::request::{DriveFail, DriveWipe};
use crate::control::{Answer, ApiError, ErrorCode};
use crate::daemon::api::{Api, check_identity, confirm_missing};
use crate::daemon::{drives, look};

impl Api {
    pub(in crate::daemon) async fn drives(&self) -> Answer<DriveListDoc> {
        let daemon = self.daemon();
        let mut paths = daemon.known_paths();
        for group in daemon.groups.read().values() {
            paths
                .extend(group.places.lock().iter().filter_map(|place| place.path.clone()).map(PathBuf::from));
        }
        paths.sort();
        paths.dedup();
        let listed = nvme_backend::list_block_devices();
        let mut docs = Vec::new();
        for path in paths {
            match daemon.drive_doc(&path).await {
                Ok(doc) => docs.push(doc),
                Err(error) => {
                    let device = listed.iter().find(|device| device.identity.path == path);
                    docs.extend(drives::doc_of_unopened(&path, device, &error));
                }
            }
        }
        Ok(DriveListDoc { drives: docs }.into())
    }

    pub(in crate::daemon) async fn drive(&self, drive: String) -> Answer<DriveDoc> {
        let path = self.drive_path(&drive).await?;
        let mut doc = self.0.drive_doc(&path).await?;
        doc.smart = look::smart(&path).await.as_ref().map(drives::smart_doc);
        Ok(doc.into())
    }

    pub(in crate::daemon) async fn drive_wipe(&self, drive: String, how: DriveWipe) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        daemon.release_dropped().await;
        let path = self.drive_path(&drive).await?;
        let shown = path.display().to_string();
        if let Some((group, slot, _)) = daemon.member_at(&path) {
            let message = format!("{shown} is slot {slot} of the running group {}", group.name());
            return Err(
                ApiError::new(ErrorCode::DriveBusy, message).hint("warpraid drive fail takes it out first")
            );
        }
        daemon.refuse_spare(&path)?;
        let doc = daemon.drive_doc(&path).await?;
        if !doc.holders.is_empty() {
            let message = format!("{shown} is in use by {}", doc.holders.join(", "));
            return Err(ApiError::new(ErrorCode::DriveMounted, message).hint("unmount or stop it first"));
        }
        let mut known: Vec<String> = doc.device_uuid.iter().chain(&doc.serial).cloned().collect();
        known.extend(doc.signatures.iter().filter_map(|signature| signature.uuid.clone()));
        let steps: Vec<String> = if doc.signatures.is_empty() {
            vec![format!("{shown} carries nothing")]
        } else {
            doc.signatures
                .iter()
                .map(|it| format!("{shown}: {} at byte {} is erased", it.kind, it.offset_bytes))
                .collect()
        };
        if !how.dry_run {
            if !how.yes {
                return Err(confirm_missing(&format!("wiping {shown}")));
            }
            // A drive without any identity (a file with a signature that has none) is named by its path alone.
            if !known.is_empty() {
                check_identity(
                    &format!("drive {shown}"),
                    how.expect_uuid.as_deref(),
                    &known,
                    ErrorCode::DriveIdentityMismatch,
                )?;
            }
            daemon.wipe_drive(&path).await?;
        }
        let mut action = ActionDoc::new("drive wipe", shown, how.dry_run, steps);
        action.drive = Some(daemon.drive_doc(&path).await?);
        Ok(action.into())
    }

    pub(in crate::daemon) async fn drive_fail(&self, drive: String, how: DriveFail) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        if let Some((group, slot, shown)) = daemon.stop_filling(&drive, how.dry_run) {
            let steps = vec![format!(
                "{shown} is no longer filled for slot {slot} of group {}, whose drive keeps it; {shown} is wiped",
                group.name()
            )];
            let mut action = ActionDoc::new("drive fail", shown, how.dry_run, steps);
            action.groups.push(group.doc());
            return Ok(action.into());
        }
        let found = daemon
            .groups
            .read()
            .values()
            .find_map(|group| group.slot_called(&drive).map(|slot| (Arc::clone(group), slot)));
        let Some((group, slot)) = found else {
            let path = self.drive_path(&drive).await?;
            let message = format!("{} is no member of a running group", path.display());
            return Err(ApiError::new(ErrorCode::DriveNotFound, message)
                .hint("warpraid group show lists the members"));
        };
        if group.shared.view().member(slot).is_missing() {
            let message = format!("slot {slot} of group {} has no working drive", group.name());
            return Err(ApiError::new(ErrorCode::DriveNotFound, message)
                .hint(format!("warpraid group replace {} --slot {slot} NEW_DRIVE", group.name())));
        }
        let shown = group.places.lock()[slot.index()].path.clone().unwrap_or_else(|| drive.clone());
        let steps = vec![format!("{shown} is dropped from slot {slot} of group {}", group.name())];
        if !how.dry_run {
            daemon.fail_member(&group, slot, how.force).await?;
        }
        let mut action = ActionDoc::new("drive fail", shown, how.dry_run, steps);
        action.groups.push(group.doc());
        Ok(action.into())
    }

    /// The path of a drive that is named by path, serial, or the device uuid of a running member.
    pub(in crate::daemon) async fn drive_path(&self, name: &str) -> Result<PathBuf, ApiError> {
        let member = self.0.groups.read().values().find_map(|group| {
            let slot = group.slot_called(name)?;
            group.places.lock()[slot.index()].path.clone()
        });
        match member {
            Some(path) => Ok(PathBuf::from(path)),
            None => Ok(look::resolve_all(&[name.to_owned()]).await?.remove(0)),
        }
    }
}
