//! Drives without a daemon, for whoever measures them: taken to be written over, or only to be read.
//!
//! To be written means: opened exclusively before anything is read (SAFETY M8), then looked at, and refused if a person, the
//! kernel or a group has anything on it, by the same signatures that `group create` looks for (CASES AD-01, AD-08). To be read
//! means: opened for reading, shared, so that members of running groups can be measured, too.

use std::path::Path;

use nvme_backend::{OpenDrive, OpenOptions};
use raid_core::units::BlockSize;

use super::drives;
use super::examine::examine_drive;
use crate::control::model::{DriveState, ExamineDoc};
use crate::control::{ApiError, ErrorCode};

fn refuse_used(found: &ExamineDoc) -> Result<(), ApiError> {
    let drive = &found.drive;
    let path = &drive.path;
    if !drive.holders.is_empty() {
        let message = format!("{path} is in use by {}", drive.holders.join(", "));
        return Err(ApiError::new(ErrorCode::DriveMounted, message)
            .hint("unmount or stop it first; a drive in use is never taken"));
    }
    let is_deleted = found.extension.as_ref().is_some_and(|extension| extension.deleted);
    let kinds: Vec<String> = drive
        .signatures
        .iter()
        .map(|signature| format!("{} at byte {}", signature.kind, signature.offset_bytes))
        .collect();
    let hint = format!("if nothing on it is needed any more: warpraid drive wipe {path}");
    match drive.state {
        DriveState::Free => Ok(()),
        DriveState::Claimed if !is_deleted => {
            let group = drive.group.as_deref().unwrap_or("unknown");
            Err(ApiError::new(ErrorCode::DriveIsMember, format!("{path} is a member of group {group}"))
                .hint("read it instead, or measure drives that no group uses"))
        }
        _ if kinds.is_empty() => {
            Err(ApiError::new(ErrorCode::DriveUsed, format!("{path} was a member of a deleted group"))
                .hint(hint))
        }
        _ => {
            let message = format!("{path} carries {}", kinds.join(", "));
            Err(ApiError::new(ErrorCode::DriveUsed, message).hint(hint))
        }
    }
}

/// Takes a blank drive for writing over it. It is held as long as any clone lives. `block_size` is that of a file.
///
/// # Errors
/// It cannot be had, or something lies on it.
pub fn claim_blank(path: &Path, block_size: Option<BlockSize>) -> Result<OpenDrive, ApiError> {
    let path = drives::canonical(path);
    let options = OpenOptions { block_size, ..OpenOptions::default() };
    let drive = OpenDrive::open(&path, options).map_err(|error| drives::open_error(&error))?;
    refuse_used(&examine_drive(&drive)?.data)?;
    Ok(drive)
}

/// Opens a drive for reading, whoever else uses it.
///
/// # Errors
/// It cannot be opened.
pub fn open_to_read(path: &Path, block_size: Option<BlockSize>) -> Result<OpenDrive, ApiError> {
    let path = drives::canonical(path);
    let options = OpenOptions { read_only: true, exclusive: false, block_size, ..OpenOptions::default() };
    OpenDrive::open(&path, options).map_err(|error| drives::open_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ad_01_a_used_file_is_refused_and_a_blank_one_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d0");
        std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        let held = claim_blank(&path, None).unwrap();
        assert_eq!(claim_blank(&path, None).unwrap_err().code, ErrorCode::DriveBusy);
        assert!(open_to_read(&path, None).is_ok(), "reading is always allowed");
        drop(held);
        // The magic of ext4, in its superblock at byte 1024.
        let mut bytes = vec![0; 16 << 20];
        bytes[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
        std::fs::write(&path, bytes).unwrap();
        let refused = claim_blank(&path, None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::DriveUsed, "{refused}");
        assert!(refused.message.contains("ext"), "{refused}");
        assert!(open_to_read(&path, None).is_ok());
    }
}
