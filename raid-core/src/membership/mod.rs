//! Membership: which members are current, and how a new view becomes durable (SAFETY M1 to M8).

mod io;
mod meta;
mod publish;
mod turn;

pub use meta::{Identity, Persistent};
pub use publish::{next_epoch, publish, store_bad_blocks, store_cursor};

use crate::view::Epoch;

/// What the metadata of a group holds beside its view: identity, level, chain of epochs.
#[derive(Debug)]
pub enum GroupMeta {
    /// A group that lives in memory only (benchmarks over null and RAM drives): publishing does nothing.
    Volatile,
    /// A group whose members carry its metadata.
    Persistent(Box<Persistent>),
}
