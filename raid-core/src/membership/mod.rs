//! Membership: which members are current, and how a new view becomes durable (SAFETY M1 to M8).

use core::ops::Range;

use crate::ports::{Env, IoError};
use crate::units::Slot;
use crate::view::View;

/// What the metadata of a group holds beside its view: identity, level, chain of epochs.
#[derive(Debug)]
pub enum GroupMeta {
    /// A group that lives in memory only (benchmarks over null and RAM drives): publishing does nothing.
    Volatile,
}

/// Makes `view` durable on every member it lists as in sync or rebuilding: extension copy, then md superblock, both FUA
/// (SAFETY M2, step 2). Returns the members that failed to take it; the caller drops them by a further epoch.
pub async fn publish<E: Env>(
    _env: &E,
    meta: &GroupMeta,
    _view: &View,
    _drives: &[Option<E::Drive>],
) -> Vec<(Slot, IoError)> {
    match meta {
        GroupMeta::Volatile => Vec::new(),
    }
}

/// Makes the bad-block list of a slot's member durable (SAFETY S6). `ranges` are bytes of the member's data area, in
/// order, disjoint.
///
/// # Errors
/// The member's error; the caller drops the member.
pub async fn store_bad_blocks<E: Env>(
    _env: &E,
    meta: &GroupMeta,
    _view: &View,
    _slot: Slot,
    _ranges: &[Range<u64>],
    _drives: &[Option<E::Drive>],
) -> Result<(), IoError> {
    match meta {
        GroupMeta::Volatile => Ok(()),
    }
}

/// Makes the low-water mark of a rebuild durable on its target: everything below `cursor_bytes` of the member's data area
/// was written and flushed before this call (SAFETY S3).
///
/// # Errors
/// The member's error; the caller drops the member.
pub async fn store_cursor<E: Env>(
    _env: &E,
    meta: &GroupMeta,
    _view: &View,
    _slot: Slot,
    _cursor_bytes: u64,
    _drives: &[Option<E::Drive>],
) -> Result<(), IoError> {
    match meta {
        GroupMeta::Volatile => Ok(()),
    }
}
