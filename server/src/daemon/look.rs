//! A look at drives: open, observe, and what that means in words.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvme_backend::{OpenDrive, OpenOptions};
use raid_core::format::probe;
use raid_core::membership::{Observation, Observed, observe};
use raid_core::ports::{DriveKey, Env, IoError};
use raid_core::units::Uuid;

use super::Daemon;
use super::drives;
use crate::control::model::{DriveDoc, DriveState, SignatureDoc};
use crate::control::{ApiError, ErrorCode};
use crate::lane::{LaneState, on_lane};

/// How long a verb waits for a drive to open.
const OPEN_WAIT: Duration = Duration::from_secs(5);

/// A drive in the registry, and what was found on it.
#[derive(Clone, Debug)]
pub(super) struct Looked {
    /// Its key.
    pub key: DriveKey,
    /// Its path.
    pub path: PathBuf,
    /// Its serial, as far as it has one.
    pub serial: Option<String>,
    /// What membership makes of it.
    pub seen: Observed,
    /// What of other software lies on it.
    pub signatures: Vec<SignatureDoc>,
}

impl Looked {
    /// The uuid of the member on it, if that can be told.
    #[must_use]
    pub(super) fn device(&self) -> Option<Uuid> {
        match &self.seen.what {
            Observation::Ours(ours) => Some(ours.copy.device_uuid),
            Observation::Modified { device_uuid, .. } => Some(*device_uuid),
            _ => None,
        }
    }

    /// How people call it: the path, and the serial if it has one.
    #[must_use]
    pub(super) fn shown(&self) -> String {
        match &self.serial {
            Some(serial) => format!("{} (serial {serial})", self.path.display()),
            None => self.path.display().to_string(),
        }
    }

    /// What lies on it, in words; `None` if nothing does.
    #[must_use]
    pub(super) fn what(&self) -> Option<String> {
        match &self.seen.what {
            Observation::NotOurs => {}
            other => return Some(other.to_string()),
        }
        let list: Vec<String> = self.signatures.iter().map(signature_text).collect();
        (!list.is_empty()).then(|| list.join(", "))
    }
}

fn signature_text(signature: &SignatureDoc) -> String {
    let mut text = format!("{} at byte {}", signature.kind, signature.offset_bytes);
    if let Some(label) = &signature.label {
        text.push_str(&format!(" (label {label:?})"));
    }
    text
}

async fn signatures_of<E: Env>(
    env: &E,
    drive: &E::Drive,
    size_bytes: u64,
) -> Result<Vec<SignatureDoc>, IoError> {
    let mut pieces = Vec::new();
    for range in probe::needs(size_bytes) {
        let bytes = super::extent::read_drive(env, drive, range.clone()).await?;
        pieces.push(bytes);
    }
    let found = probe::probe(size_bytes, &pieces);
    Ok(found
        .into_iter()
        .map(|signature| SignatureDoc {
            kind: signature.kind.to_string(),
            offset_bytes: signature.offset,
            label: signature.label,
            uuid: signature.uuid,
        })
        .collect())
}

/// Observes drives of the registry on this lane, each with its signatures.
async fn look_here(state: &LaneState, keys: Vec<(DriveKey, PathBuf)>) -> Vec<Looked> {
    let mut looked = Vec::new();
    for (key, path) in keys {
        let Some(drive) = state.env().drive(key) else { continue };
        let seen = observe(state.env(), key, &drive).await;
        let signatures = match signatures_of(state.env(), &drive, seen.size_bytes).await {
            Ok(signatures) => signatures,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cannot read signatures");
                Vec::new()
            }
        };
        looked.push(Looked { key, path, serial: None, seen, signatures });
    }
    looked
}

/// Opens a drive off the control thread and gives up on one that does not answer: a hung drive must never hang the verbs.
/// The thread that waits for it is left behind until the drive lets go.
pub(super) async fn open(path: &Path, options: OpenOptions) -> Result<OpenDrive, ApiError> {
    let owned = path.to_owned();
    let opening = tokio::task::spawn_blocking(move || OpenDrive::open(&owned, options));
    match tokio::time::timeout(OPEN_WAIT, opening).await {
        Ok(Ok(opened)) => opened.map_err(|error| drives::open_error(&error)),
        Ok(Err(_)) => Err(super::stopping()),
        Err(_) => {
            let message = format!("{}: the drive does not answer", path.display());
            Err(ApiError::new(ErrorCode::Io, message).hint("take it out, or wait until it answers again"))
        }
    }
}

/// What the drive says of its own health, asked off the control thread; none where it does not answer or has no such log.
pub(super) async fn smart(path: &Path) -> Option<nvme_backend::Smart> {
    let owned = path.to_owned();
    let asking = tokio::task::spawn_blocking(move || nvme_backend::read_smart(&owned));
    match tokio::time::timeout(OPEN_WAIT, asking).await {
        Ok(Ok(Ok(smart))) => Some(smart),
        Ok(Ok(Err(error))) => {
            if error.kind() != std::io::ErrorKind::Unsupported {
                tracing::debug!(path = %path.display(), %error, "no SMART log");
            }
            None
        }
        _ => None,
    }
}

/// [`drives::resolve_all`] off the control thread, for the same reason.
pub(super) async fn resolve_all(names: &[String]) -> Result<Vec<PathBuf>, ApiError> {
    let owned = names.to_vec();
    let resolving = tokio::task::spawn_blocking(move || drives::resolve_all(&owned));
    match tokio::time::timeout(OPEN_WAIT, resolving).await {
        Ok(Ok(resolved)) => resolved,
        Ok(Err(_)) => Err(super::stopping()),
        Err(_) => {
            let message = format!("one of these drives does not answer: {}", names.join(", "));
            Err(ApiError::new(ErrorCode::Io, message).hint("leave it out, or wait until it answers again"))
        }
    }
}

impl Daemon {
    /// Opens a drive into the registry.
    ///
    /// # Errors
    /// Those of the open, as API errors.
    async fn open_into_registry(&self, path: &Path, options: OpenOptions) -> Result<DriveKey, ApiError> {
        Ok(self.host.add_drive(open(path, options).await?))
    }

    /// The same, waiting for a drive that is busy until `deadline` (SAFETY M8).
    pub(super) async fn open_until(
        &self,
        path: &Path,
        options: OpenOptions,
        deadline: Instant,
    ) -> Result<DriveKey, ApiError> {
        loop {
            match self.open_into_registry(path, options).await {
                Err(error) if error.code == ErrorCode::DriveBusy && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                result => return result,
            }
        }
    }

    /// Takes drives out of the registry and lets go of them.
    pub(super) async fn release(&self, keys: Vec<DriveKey>) {
        for key in keys {
            for lane in &self.lanes {
                let _ = on_lane(lane, move |state| async move { state.env().forget_drive(key) }).await;
            }
            drop(self.host.remove_drive(key));
        }
    }

    /// Looks at drives of the registry, on lane 0.
    pub(super) async fn look(&self, keys: Vec<(DriveKey, PathBuf)>) -> Result<Vec<Looked>, ApiError> {
        let looked = on_lane(&self.lanes[0], move |state| async move { look_here(&state, keys).await });
        let mut looked = looked.await.map_err(|_| super::stopping())?;
        for one in &mut looked {
            one.serial = self.host.drive(one.key).and_then(|drive| drive.identity().serial.clone());
        }
        Ok(looked)
    }

    /// Looks at a drive that is not open, without taking it.
    pub(super) async fn inspect(&self, path: &Path) -> Result<(OpenDrive, Looked), ApiError> {
        let options = drives::inspection(self.options.drive_timeout_ns);
        let drive = open(path, options).await?;
        let key = self.host.add_drive(drive.clone());
        let looked = self.look(vec![(key, path.to_owned())]).await;
        self.release(vec![key]).await;
        let looked = looked?.pop().ok_or_else(super::stopping)?;
        Ok((drive, looked))
    }

    /// The document of a drive, whoever has it.
    pub(super) async fn drive_doc(&self, path: &Path) -> Result<DriveDoc, ApiError> {
        if let Some((group, slot, key)) = self.member_at(path) {
            let drive = self.host.drive(key).ok_or_else(super::stopping)?;
            let view = group.shared.view();
            let status = group.shared.status();
            let mut doc = drives::doc_of(&drive);
            doc.state = DriveState::Member;
            doc.holders = Vec::new();
            doc.group = Some(group.name().to_owned());
            doc.group_uuid = Some(group.uuid.to_string());
            doc.slot = Some(slot.0);
            if group.is_filling(key) {
                doc.why = Some(format!("is being filled to replace the drive of slot {slot}"));
                return Ok(doc);
            }
            doc.device_uuid = Some(view.member(slot).device_uuid.to_string());
            doc.errors.commands = status.slots[slot.index()].errors;
            return Ok(doc);
        }
        let (drive, looked) = self.inspect(path).await?;
        let mut doc = describe(&drive, &looked);
        self.say_claimed(&mut doc, &looked);
        if self.spares.has(path) {
            doc.state = DriveState::Spare;
        }
        Ok(doc)
    }

    /// Drives worth listing: every block device, what is remembered, and what runs.
    pub(super) fn known_paths(&self) -> Vec<PathBuf> {
        drives::candidates(&self.state.drive_paths(), &self.options.drives)
    }
}

/// The document of a drive that is not ours, with what lies on it.
#[must_use]
pub(super) fn describe(drive: &OpenDrive, looked: &Looked) -> DriveDoc {
    let mut doc = drives::doc_of(drive);
    doc.signatures = looked.signatures.clone();
    doc.state = match &looked.seen.what {
        Observation::Ours(ours) => {
            doc.group = Some(ours.copy.name.clone());
            doc.group_uuid = Some(ours.copy.group.to_string());
            doc.device_uuid = Some(ours.copy.device_uuid.to_string());
            let slot = ours.copy.slots.iter().position(|slot| slot.device_uuid == ours.copy.device_uuid);
            doc.slot = slot.and_then(|slot| u8::try_from(slot).ok());
            DriveState::Claimed
        }
        Observation::Modified { group, device_uuid, .. } => {
            doc.group_uuid = Some(group.to_string());
            doc.device_uuid = Some(device_uuid.to_string());
            DriveState::Claimed
        }
        Observation::Damaged { group, device_uuid, what, .. } => {
            doc.group_uuid = group.map(|group| group.to_string());
            doc.device_uuid = device_uuid.map(|device| device.to_string());
            doc.why = Some(format!("damaged: {what}"));
            DriveState::Claimed
        }
        Observation::PlainMd(_) => DriveState::Used,
        Observation::NotOurs if doc.signatures.is_empty() => DriveState::Free,
        Observation::NotOurs => DriveState::Used,
        Observation::Unreadable(error) => {
            doc.why = Some(format!("cannot be read: {error}"));
            DriveState::Failed
        }
    };
    if !doc.holders.is_empty() {
        doc.state = DriveState::Held;
    }
    doc
}
