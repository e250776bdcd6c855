//! What an errno of a drive means to the engine (SAFETY S5).
//!
//! The kernel's block layer turns a device's status into these numbers (`blk_errors` in block/blk-core.c): ENODATA is a
//! medium error, EREMOTEIO a target failure, EILSEQ a protection error, ENOLINK a transport error, EBADE a reservation
//! conflict. A removed NVMe drive answers ENODEV, ENXIO or EIO, and its block device ENOSPC to writes.

use raid_core::ports::{IoError, IoKind};

/// The error of an operation (`context`) that failed with this errno (positive).
pub(crate) fn of_errno(errno: i32, context: &'static str) -> IoError {
    let kind = match errno {
        libc::EIO | libc::EREMOTEIO | libc::ENODATA | libc::EBADMSG | libc::EUCLEAN => IoKind::Medium,
        libc::EILSEQ => IoKind::Protection,
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOMEDIUM | libc::EROFS | libc::EBADE => {
            IoKind::Gone
        }
        // On a block device: the drive is gone (its size is 0). On a file: its file system is full.
        libc::ENOSPC | libc::EDQUOT => IoKind::Gone,
        libc::EINVAL | libc::EFBIG | libc::EBADF | libc::EFAULT | libc::EPERM => IoKind::Invalid,
        libc::ETIMEDOUT | libc::ETIME => IoKind::TimedOut,
        libc::ECANCELED => IoKind::ShuttingDown,
        // ENOLINK, ECONNRESET, EAGAIN, ENOMEM, EINTR and whatever else: the way to the drive failed, its data may be
        // sound; but what an unknown error left behind is unknown, so the member is dropped.
        _ => IoKind::Transport,
    };
    let context = match errno {
        libc::ENOSPC | libc::EDQUOT => no_space(context),
        _ => context,
    };
    IoError { kind, context, errno: Some(errno) }
}

fn no_space(context: &'static str) -> &'static str {
    match context {
        "write" => "write: no space left (block device: removed; file: its file system is full)",
        "zero" => "zero: no space left (block device: removed; file: its file system is full)",
        "flush" => "flush: no space left (its file system is full)",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_of_the_block_layer_have_their_kinds() {
        let kind = |errno| of_errno(errno, "read").kind;
        assert_eq!(kind(libc::EIO), IoKind::Medium);
        assert_eq!(kind(libc::ENODATA), IoKind::Medium);
        assert_eq!(kind(libc::EREMOTEIO), IoKind::Medium);
        assert_eq!(kind(libc::EBADMSG), IoKind::Medium);
        assert_eq!(kind(libc::EILSEQ), IoKind::Protection);
        assert_eq!(kind(libc::ENODEV), IoKind::Gone);
        assert_eq!(kind(libc::ENXIO), IoKind::Gone);
        assert_eq!(kind(libc::ESHUTDOWN), IoKind::Gone);
        assert_eq!(kind(libc::EINVAL), IoKind::Invalid);
        assert_eq!(kind(libc::ETIMEDOUT), IoKind::TimedOut);
        assert_eq!(kind(libc::ENOLINK), IoKind::Transport);
        assert_eq!(kind(libc::ECONNRESET), IoKind::Transport);
        let full = of_errno(libc::ENOSPC, "write");
        assert_eq!(full.kind, IoKind::Gone);
        assert!(full.context.contains("no space left"), "{}", full.context);
    }
}
