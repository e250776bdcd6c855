//! Drives as the daemon names, opens and describes them.
//!
//! A drive is named by path, by serial or by the uuid of the member on it. It is opened exclusively before any read that
//! leads to a write and held from then on (SAFETY M8); only inspection opens it shared and read-only.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nvme_backend::{
    DeviceListing, DriveKind as BackendKind, Identity, OpenDrive, OpenError, OpenOptions, list_block_devices,
};
use raid_core::units::BlockSize;

use crate::control::model::{DriveDoc, DriveKind, DriveState, ErrorCountsDoc, SmartDoc};
use crate::control::{ApiError, ErrorCode};

/// Drives smaller than this cannot carry a member; such files in a folder are not looked at.
const BYTES_MIN: u64 = 4 * 1024 * 1024;

/// A look at a drive is not worth a longer wait: somebody waits for the answer.
const INSPECTION_TIMEOUT_NS: u64 = 5_000_000_000;

/// Whether this process is another warpraid daemon that lives: not this one, and not one that was killed and waits for its
/// last I/O (SAFETY M8: that one is waited for).
fn is_other_daemon(pid: u32) -> bool {
    const KILLED: u64 = 1 << (9 - 1);
    let of = |pid: u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let own = std::process::id();
    if pid == own || of(pid, "comm").is_empty() || of(pid, "comm") != of(own, "comm") {
        return false;
    }
    let status = of(pid, "status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_killed = ["SigPnd:", "ShdPnd:"].into_iter().any(|name| {
        field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_none_or(|mask| mask & KILLED != 0)
    });
    let is_gone = field("State:").is_none_or(|state| state.starts_with(['Z', 'X']));
    !is_killed && !is_gone
}

/// The error of the API for a drive that could not be opened.
#[must_use]
pub(super) fn open_error(error: &OpenError) -> ApiError {
    let (code, hint) = match error {
        OpenError::NotFound { .. } => {
            (ErrorCode::DriveNotFound, "warpraid drive list shows the drives of this host")
        }
        OpenError::PermissionDenied { .. } => {
            (ErrorCode::NotPermitted, "run the daemon as root, or change the drive's mode")
        }
        OpenError::Busy { holders, .. } if holders.iter().any(|holder| holder.contains("mount")) => {
            (ErrorCode::DriveMounted, "unmount it first; a mounted drive is never taken")
        }
        OpenError::Busy { pid: Some(pid), .. } if is_other_daemon(*pid) => {
            (ErrorCode::DriveHeld, "another warpraid daemon has it: use that one, or stop it first")
        }
        OpenError::Busy { .. } => (ErrorCode::DriveBusy, "stop what holds it, then try again"),
        OpenError::NotADrive { .. } => (ErrorCode::DriveInvalid, "name a block device or a regular file"),
        OpenError::BlockSize { .. } => {
            (ErrorCode::DriveBlockSize, "reformat the namespace to 512 or 4096 byte blocks")
        }
        OpenError::TooSmall { .. } => {
            let least = raid_core::format::plan::DRIVE_BYTES_MIN;
            let hint = format!("a member needs at least {least} bytes ({} MiB)", least >> 20);
            return ApiError::new(ErrorCode::DriveTooSmall, error.to_string()).hint(hint);
        }
        OpenError::Os { .. } => (ErrorCode::Io, "the kernel's log may say more"),
    };
    ApiError::new(code, error.to_string()).hint(hint)
}

/// A path as members and witnesses remember it: absolute, links resolved.
#[must_use]
pub(super) fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The path of the drive that is called `name`: a path if there is something there or it looks like one, else the serial
/// of a block device.
///
/// # Errors
/// `drive.not.found` with what was tried.
pub(super) fn resolve(name: &str) -> Result<PathBuf, ApiError> {
    let invalid = |why: &str| ApiError::new(ErrorCode::DriveInvalid, format!("drive {name:?}: {why}"));
    if name.is_empty() {
        return Err(invalid("the name is empty").hint("name a path such as /dev/nvme0n1, or a serial"));
    }
    if name.contains('\0') {
        return Err(invalid("a path has no NUL"));
    }
    let path = Path::new(name);
    if path.is_absolute() {
        return if path.exists() {
            Ok(canonical(path))
        } else {
            Err(ApiError::new(ErrorCode::DriveNotFound, format!("{name}: no such drive"))
                .hint("warpraid drive list shows the drives of this host"))
        };
    }
    if name.contains('/') {
        return Err(invalid("a relative path means nothing to the daemon").hint("name the whole path"));
    }
    let devices = list_block_devices().into_iter().map(|device| device.identity);
    named(name, &devices.collect::<Vec<_>>())
}

/// The drive of this serial or world-wide identifier (NGUID, EUI-64). Namespaces of one controller share its serial: then
/// it names none of them.
fn named(name: &str, devices: &[Identity]) -> Result<PathBuf, ApiError> {
    let has = |id: &Option<String>| id.as_deref() == Some(name);
    let by_serial: Vec<&Identity> = devices.iter().filter(|device| has(&device.serial)).collect();
    let by_wwid: Vec<&Identity> = devices.iter().filter(|device| has(&device.wwid)).collect();
    let found = if by_serial.is_empty() { by_wwid } else { by_serial };
    match &found[..] {
        [device] => Ok(device.path.clone()),
        [] => Err(ApiError::new(ErrorCode::DriveNotFound, format!("{name}: no drive with this serial"))
            .hint("name the whole path, or a serial from warpraid drive list")),
        several => {
            let paths: Vec<String> = several.iter().map(|device| device.path.display().to_string()).collect();
            let message = format!("{name}: several drives have this serial: {}", paths.join(", "));
            Err(ApiError::new(ErrorCode::DriveInvalid, message).hint("name the path, or the NGUID or EUI-64"))
        }
    }
}

/// The paths of `names`, in order.
///
/// # Errors
/// Those of [`resolve`]; `drive.named.twice` if two names lead to one drive.
pub(super) fn resolve_all(names: &[String]) -> Result<Vec<PathBuf>, ApiError> {
    let (mut seen, mut inodes) = (BTreeSet::new(), BTreeSet::new());
    let mut paths = Vec::new();
    for name in names {
        let path = resolve(name)?;
        // A hard link is the same drive under another path.
        let identity = fs::metadata(&path).map_or((0, 0), |meta| (meta.dev(), meta.ino()));
        let is_new = seen.insert(path.clone());
        if !is_new || (identity != (0, 0) && !inodes.insert(identity)) {
            let message = format!("{name}: the drive {} was named twice", path.display());
            return Err(ApiError::new(ErrorCode::DriveTwice, message).hint("name each drive once"));
        }
        paths.push(path);
    }
    Ok(paths)
}

/// Options for a drive the daemon takes for itself.
#[must_use]
pub(super) fn exclusive(timeout_ns: u64, block_size: Option<BlockSize>) -> OpenOptions {
    OpenOptions { timeout_ns, block_size, ..OpenOptions::default() }
}

/// Options for a look at a drive.
#[must_use]
pub(super) fn inspection(timeout_ns: u64) -> OpenOptions {
    let timeout_ns = timeout_ns.min(INSPECTION_TIMEOUT_NS);
    OpenOptions { read_only: true, exclusive: false, timeout_ns, ..OpenOptions::default() }
}

/// Every path worth looking at: the host's block devices, those remembered, and the regular files of named folders.
#[must_use]
pub(super) fn candidates(remembered: &[PathBuf], named: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = BTreeSet::new();
    for device in list_block_devices() {
        if device.size_bytes >= BYTES_MIN && device.partitions.is_empty() {
            paths.insert(device.identity.path);
        }
    }
    for path in named {
        if path.is_dir() {
            paths.extend(files_of(path));
        } else {
            paths.insert(canonical(path));
        }
    }
    // Not asked whether they are there: asking a drive that hangs would hang this thread. Who opens them finds out.
    paths.extend(remembered.iter().cloned());
    paths.into_iter().collect()
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let large =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() >= BYTES_MIN);
    entries.flatten().map(|entry| canonical(&entry.path())).filter(large).collect()
}

fn kind_of(kind: BackendKind, path: &Path) -> DriveKind {
    let is_nvme = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvme"));
    match kind {
        BackendKind::Block if is_nvme => DriveKind::Nvme,
        BackendKind::Block => DriveKind::Block,
        BackendKind::File | BackendKind::Ram | BackendKind::Null => DriveKind::File,
    }
}

/// What the bits of a critical warning mean.
#[must_use]
pub(super) fn smart_warnings(bits: u8) -> Vec<String> {
    let words = [
        "the spare capacity is below its threshold",
        "the temperature is out of bounds",
        "the drive is no longer reliable",
        "the drive has become read-only",
        "the backup of its volatile memory failed",
        "its persistent memory is read-only or unreliable",
    ];
    let set = words.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    set.map(|(_, word)| (*word).to_owned()).collect()
}

/// The document of a SMART log.
#[must_use]
pub(super) fn smart_doc(smart: &nvme_backend::Smart) -> SmartDoc {
    SmartDoc {
        warnings: smart_warnings(smart.critical_warning),
        temperature_c: i32::from(smart.temperature_k) - 273,
        spare_percent: smart.spare_percent,
        spare_threshold_percent: smart.spare_threshold_percent,
        used_percent: smart.used_percent,
        written_bytes: smart.written_bytes,
        power_on_hours: smart.power_on_hours,
        unsafe_shutdowns: smart.unsafe_shutdowns,
        media_errors: smart.media_errors,
    }
}

/// The document of an open drive, without what lies on it.
#[must_use]
pub(super) fn doc_of(drive: &OpenDrive) -> DriveDoc {
    let identity = drive.identity();
    DriveDoc {
        path: identity.path.display().to_string(),
        kind: kind_of(identity.kind, &identity.path),
        serial: identity.serial.clone(),
        model: identity.model.clone(),
        size_bytes: drive.size_bytes(),
        block_size_bytes: drive.block_size().bytes(),
        numa_node: identity.numa_node.and_then(|node| u16::try_from(node).ok()),
        state: DriveState::Free,
        why: None,
        next: None,
        group: None,
        group_uuid: None,
        slot: None,
        device_uuid: None,
        signatures: Vec::new(),
        holders: identity.holders.clone(),
        errors: ErrorCountsDoc::default(),
        smart: None,
    }
}

/// The document of a drive that could not be opened: `device` if the kernel lists it. `None` if there is nothing to tell:
/// a remembered file that is not there any more.
#[must_use]
pub(super) fn doc_of_unopened(
    path: &Path,
    device: Option<&DeviceListing>,
    error: &ApiError,
) -> Option<DriveDoc> {
    let state = match error.code {
        ErrorCode::DriveMounted | ErrorCode::DriveBusy | ErrorCode::DriveHeld => DriveState::Held,
        ErrorCode::NotPermitted => DriveState::NotPermitted,
        ErrorCode::DriveNotFound if device.is_none() => return None,
        _ => DriveState::Failed,
    };
    let identity = device.map(|device| &device.identity);
    let why = match &error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    };
    Some(DriveDoc {
        path: path.display().to_string(),
        kind: kind_of(identity.map_or(BackendKind::File, |identity| identity.kind), path),
        serial: identity.and_then(|identity| identity.serial.clone()),
        model: identity.and_then(|identity| identity.model.clone()),
        size_bytes: device.map_or(0, |device| device.size_bytes),
        block_size_bytes: identity.map_or(0, |identity| identity.logical_block.bytes()),
        numa_node: identity.and_then(|identity| identity.numa_node).and_then(|node| u16::try_from(node).ok()),
        state,
        why: Some(why),
        next: None,
        group: None,
        group_uuid: None,
        slot: None,
        device_uuid: None,
        signatures: Vec::new(),
        holders: identity.map(|identity| identity.holders.clone()).unwrap_or_default(),
        errors: ErrorCountsDoc::default(),
        smart: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_warnings_are_said_in_words() {
        assert!(smart_warnings(0).is_empty());
        let words = smart_warnings(0b1001);
        assert!(words.len() == 2 && words[0].contains("spare") && words[1].contains("read-only"));
    }

    #[test]
    fn a_serial_that_two_namespaces_share_names_neither() {
        let any = OpenDrive::ram(1 << 20, BlockSize::B512).identity().clone();
        let of = |path: &str, serial: &str, wwid: &str| Identity {
            path: path.into(),
            serial: Some(serial.into()),
            wwid: Some(wwid.into()),
            ..any.clone()
        };
        let devices =
            [of("/dev/a1", "S1", "eui.1"), of("/dev/a2", "S1", "eui.2"), of("/dev/b1", "S2", "eui.3")];
        assert_eq!(named("S2", &devices).unwrap(), Path::new("/dev/b1"));
        assert_eq!(named("eui.2", &devices).unwrap(), Path::new("/dev/a2"));
        let error = named("S1", &devices).unwrap_err();
        assert_eq!(error.code, ErrorCode::DriveInvalid);
        assert!(error.message.contains("/dev/a1, /dev/a2"), "{error}");
        assert_eq!(named("S3", &devices).unwrap_err().code, ErrorCode::DriveNotFound);
    }

    #[test]
    fn ad_02_odd_drive_names_are_refused_by_name() {
        for name in ["", "../x", "a\0b", "no-such-serial", "/no/such/drive"] {
            let error = resolve(name).unwrap_err();
            assert!(
                matches!(error.code, ErrorCode::DriveInvalid | ErrorCode::DriveNotFound),
                "{name:?}: {error}"
            );
        }
    }

    #[test]
    fn one_drive_under_two_names_is_one_drive() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("d0"), dir.path().join("link"));
        fs::write(&file, [0; 512]).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let hard = dir.path().join("hard");
        fs::hard_link(&file, &hard).unwrap();
        for other in [link, hard] {
            let names = [&file, &other].map(|path| path.display().to_string());
            assert_eq!(resolve_all(&names).unwrap_err().code, ErrorCode::DriveTwice);
        }
    }

    #[test]
    fn candidates_are_large_files_of_named_folders() {
        let dir = tempfile::tempdir().unwrap();
        let (large, small) = (dir.path().join("d0"), dir.path().join("note"));
        fs::File::create(&large).unwrap().set_len(BYTES_MIN).unwrap();
        fs::write(&small, b"x").unwrap();
        let found = candidates(&[], &[dir.path().to_owned()]);
        assert!(found.contains(&canonical(&large)) && !found.contains(&canonical(&small)));
    }
}
