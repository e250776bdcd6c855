//! The verbs of drives.

use std::path::PathBuf;
use std::sync::Arc;

use raid_core::units::Slot;

use crate::control::model::{ActionDoc, DriveDoc, DriveListDoc};
use crate::control::request::{DriveFail, DriveWipe};
use crate::control::{Answer, ApiError, ErrorCode};
use crate::daemon::api::{Api, check_identity, confirm_missing};
use crate::daemon::running::Running;
use crate::daemon::{Daemon, drives, look};

/// What wiping a drive takes away, and the word that it is meant.
fn wipe_steps(doc: &DriveDoc, known: &[String]) -> Vec<String> {
    let shown = &doc.path;
    if doc.signatures.is_empty() && doc.device_uuid.is_none() {
        return vec![format!("{shown} carries nothing")];
    }
    let mut steps: Vec<String> =
        doc.why.iter().map(|why| format!("{shown} is {why}; that is lost")).collect();
    steps.extend(doc.signatures.iter().map(|it| {
        let label = it.label.as_ref().map(|label| format!(" labelled {label:?}")).unwrap_or_default();
        let uuid = it.uuid.as_ref().map(|uuid| format!(", uuid {uuid}")).unwrap_or_default();
        format!("{shown}: {}{label} at byte {} is erased{uuid}", it.kind, it.offset_bytes)
    }));
    steps.extend(known.first().map(|uuid| format!("to confirm: --yes --expect-uuid {uuid}")));
    steps
}

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
        let steps = wipe_steps(&doc, &known);
        if how.dry_run {
            // Who holds it is said now, not when it is meant; nothing is written.
            drop(look::open(&path, drives::exclusive(daemon.options.drive_timeout_ns, None)).await?);
        } else {
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
        let Some((group, slot)) = daemon.member_called(&drive)? else {
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

    /// The path of a drive that is named by path, serial, GROUP:SLOT, or the device uuid of a running member.
    pub(in crate::daemon) async fn drive_path(&self, name: &str) -> Result<PathBuf, ApiError> {
        match self.0.member_called(name)? {
            Some((group, slot)) => group.drive_path_of(slot),
            None => Ok(look::resolve_all(&[name.to_owned()]).await?.remove(0)),
        }
    }
}

impl Daemon {
    /// The member of a running group that is called by path, serial, device uuid or GROUP:SLOT; of several, one that is
    /// there.
    ///
    /// # Errors
    /// `group.slot.invalid` for a slot that a running group does not have.
    pub(in crate::daemon) fn member_called(
        &self,
        name: &str,
    ) -> Result<Option<(Arc<Running>, Slot)>, ApiError> {
        let by_slot = name.rsplit_once(':').and_then(|(group, slot)| {
            let slot: u8 = slot.parse().ok()?;
            Some((self.running(group)?, Slot(slot)))
        });
        if let Some((group, slot)) = by_slot {
            let members = group.shared.geometry().members();
            if slot.0 < members {
                return Ok(Some((group, slot)));
            }
            let message = format!("group {} has slots 0 to {}, no slot {slot}", group.name(), members - 1);
            return Err(ApiError::new(ErrorCode::GroupSlotInvalid, message)
                .hint(format!("warpraid group show {} lists the members", group.name())));
        }
        let groups = self.groups.read();
        let called =
            || groups.values().filter_map(|group| Some((Arc::clone(group), group.slot_called(name)?)));
        let is_there = |(group, slot): &(Arc<Running>, Slot)| !group.shared.view().member(*slot).is_missing();
        Ok(called().find(is_there).or_else(|| called().next()))
    }
}
