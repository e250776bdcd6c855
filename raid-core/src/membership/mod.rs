//! Membership: which members are current, and how a new view becomes durable (SAFETY M1 to M8).

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
