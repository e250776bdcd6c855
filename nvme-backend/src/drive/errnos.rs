//! What the kernel last said when commands of a drive failed, by kind of error: kept for people, never acted upon.
//!
//! The engine acts on [`IoKind`] alone (SAFETY S5), which does not tell a full file system from a pulled drive. The
//! handle does not hold the drive open: it outlives a member that was dropped and let go of.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use raid_core::ports::{IoError, IoKind};

/// The last errno of each kind of error of one drive. Cheap to clone.
#[derive(Clone, Default, Debug)]
pub struct Errnos(Arc<[AtomicI32; 7]>);

/// Where a kind is kept; `None` for those that no drive reports.
const fn index(kind: IoKind) -> Option<usize> {
    Some(match kind {
        IoKind::Gone => 0,
        IoKind::TimedOut => 1,
        IoKind::Medium => 2,
        IoKind::Protection => 3,
        IoKind::Transport => 4,
        IoKind::Invalid => 5,
        IoKind::ShuttingDown => 6,
        IoKind::ShortRead | IoKind::BeyondTolerance | IoKind::BadBlock => return None,
    })
}

impl Errnos {
    /// Remembers the errno of an error, if it has one, and hands the error on.
    pub(crate) fn noted(&self, error: IoError) -> IoError {
        if let (Some(i), Some(errno)) = (index(error.kind), error.errno) {
            self.0[i].store(errno, Ordering::Relaxed);
        }
        error
    }

    /// The errno of the last error of this kind; `None` if there was none.
    #[must_use]
    pub fn last(&self, kind: IoKind) -> Option<i32> {
        index(kind).map(|i| self.0[i].load(Ordering::Relaxed)).filter(|errno| *errno != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::errno::of_errno;
    use super::*;

    #[test]
    fn each_kind_keeps_its_own_last_errno() {
        let errnos = Errnos::default();
        let kept = errnos.clone();
        assert_eq!(errnos.noted(of_errno(libc::ENOSPC, "write")).kind, IoKind::Gone);
        errnos.noted(of_errno(libc::EIO, "read"));
        errnos.noted(IoError::new(IoKind::Gone, "write: fewer bytes than given"));
        drop(errnos);
        assert_eq!(kept.last(IoKind::Gone), Some(libc::ENOSPC));
        assert_eq!(kept.last(IoKind::Medium), Some(libc::EIO));
        assert_eq!((kept.last(IoKind::Transport), kept.last(IoKind::BadBlock)), (None, None));
    }
}
