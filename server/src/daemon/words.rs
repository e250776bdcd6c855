//! Words for what happened to a drive: from the kind of error the engine acted on and the number the kernel gave.
//!
//! The kind alone is not enough for a person: ENOSPC drops a member exactly as ENODEV does (SAFETY S5), but a full file
//! system needs room, and a pulled drive needs a hand.

use std::io;
use std::path::Path;

use raid_core::ports::IoKind;
use rustix::io::Errno;

/// What the kernel calls an errno, without Rust's own addition.
fn kernel_words(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// Whether the member was dropped because there is no room under it: its file system or quota, never a device.
#[must_use]
pub(super) fn is_out_of_room(kind: Option<IoKind>, errno: Option<i32>, is_file: bool) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
    is_file && kind == Some(IoKind::Gone) && errno.is_some_and(|errno| full.contains(&errno))
}

fn gone(errno: i32, is_file: bool) -> String {
    let words = kernel_words(errno);
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC if is_file => "the file system it lies on is full".to_owned(),
        Errno::DQUOT if is_file => "the quota of the file system it lies on is used up".to_owned(),
        Errno::NOSPC => "the drive has no space left: removed, or a thin volume that is full".to_owned(),
        Errno::ROFS => "the drive or its file system has become read-only".to_owned(),
        Errno::BADE => "another host holds a reservation on the drive".to_owned(),
        Errno::NODEV | Errno::NXIO | Errno::SHUTDOWN => format!("the drive is gone ({words})"),
        _ => format!("the drive is gone or useless ({words})"),
    }
}

/// Why a member was dropped. `errno` is the last one of that kind, where the kernel gave one.
#[must_use]
pub(super) fn why_dropped(kind: Option<IoKind>, errno: Option<i32>, is_file: bool) -> String {
    let with = |text: &str| match errno {
        Some(errno) => format!("{text} ({})", kernel_words(errno)),
        None => text.to_owned(),
    };
    match kind {
        None => "not there when the group started".to_owned(),
        Some(IoKind::Gone) => match errno {
            Some(errno) => gone(errno, is_file),
            None => "the drive is gone".to_owned(),
        },
        Some(IoKind::TimedOut) => "the drive did not answer within the drive time-out".to_owned(),
        Some(IoKind::Medium) => with("the drive could not store blocks"),
        Some(IoKind::ShortRead) => "the drive ends before its data (removed or cut short)".to_owned(),
        Some(IoKind::Protection) => with("the drive reports wrong protection information"),
        Some(IoKind::Transport) => with("the path to the drive failed"),
        Some(IoKind::Invalid) => with("the drive refuses requests it accepted before"),
        Some(IoKind::ShuttingDown | IoKind::BeyondTolerance | IoKind::BadBlock) => {
            "dropped by the operator".to_owned()
        }
    }
}

/// A path as a shell takes it.
#[must_use]
pub(super) fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) {
        return path.to_owned();
    }
    format!("'{}'", path.replace('\'', "'\\''"))
}

/// The folder a file lies in, as a shell takes it.
#[must_use]
pub(super) fn folder_of(path: &str) -> String {
    quoted(&Path::new(path).parent().unwrap_or(Path::new("/")).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_is_not_a_drive_that_is_gone() {
        let why = |errno: Errno, is_file| {
            let errno = Some(errno.raw_os_error());
            (
                why_dropped(Some(IoKind::Gone), errno, is_file),
                is_out_of_room(Some(IoKind::Gone), errno, is_file),
            )
        };
        assert_eq!(why(Errno::NOSPC, true), ("the file system it lies on is full".to_owned(), true));
        assert!(why(Errno::DQUOT, true).0.contains("quota") && why(Errno::DQUOT, true).1);
        let (device, no_room) = why(Errno::NOSPC, false);
        assert!(device.contains("removed") && !no_room, "{device}");
        assert_eq!(why(Errno::NODEV, true).0, "the drive is gone (no such device)");
        assert_eq!(why_dropped(Some(IoKind::Gone), None, true), "the drive is gone");
    }

    #[test]
    fn the_kernels_words_stand_beside_ours() {
        let io = Some(Errno::IO.raw_os_error());
        let why = why_dropped(Some(IoKind::Medium), io, false);
        assert_eq!(why, "the drive could not store blocks (input/output error)");
    }

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted("/dev/nvme0n1"), "/dev/nvme0n1");
        assert_eq!(quoted("/a b/it's"), "'/a b/it'\\''s'");
        assert_eq!(folder_of("/a b/c"), "'/a b'");
    }
}
