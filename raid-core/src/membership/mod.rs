//! Membership: which members are current, and how a new view becomes durable (SAFETY M1 to M8).
//!
//! | file | what |
//! |---|---|
//! | `observe` | what lies on one drive |
//! | `decide`, `refusal` | who is current, or why the group does not start; pure |
//! | `lifecycle` | start, stop, delete, undelete |
//! | `create` | create a group, prepare a replacement, wipe |
//! | `succeed` | a drive that is filled to take a member's place while that one still serves |
//! | `adopt`, `release` | an array of md becomes a group of ours, and back |
//! | `readd` | which dropped member may come back, to be resynced by intent bits (M6) |
//! | `publish` | a view becomes durable (M2); marks between epochs, rebuild cursor and bad-block log |
//! | `meta` | what all of these write, and in which form |
//!
//! Every way to a running group is observe, decide, start, also right after create: there is one path to be right.

mod adopt;
mod create;
mod decide;
mod io;
mod lifecycle;
mod meta;
mod observe;
mod publish;
mod readd;
mod refusal;
mod release;
mod succeed;

pub use adopt::{AdoptFailed, AdoptMember, MdMember, adopt, read_md};
pub use create::{CreateError, CreateRequest, create, prepare_member, wipe};
pub use decide::{Decision, Doubt, PlannedSlot, PlannedState, Policy, StartPlan, decide, groups_of};
pub use lifecycle::{StartError, StartParts, UndeleteError, delete, mark_synced, start, stop, undelete};
pub use meta::{Identity, Persistent};
pub use observe::{BitmapImage, Observation, Observed, Ours, observe};
pub use publish::{
    Mark, next_epoch, publish, store_bad_blocks, store_cursor, store_mark, store_write_mostly,
};
pub use readd::{NoReturn, distrust, prepare_return};
pub use refusal::{LeftOut, Lost, Refusal};
pub use release::{ReleaseFailed, release};
pub use succeed::{forget_prepared, prepare_successor, slot_succeeded};
pub(crate) use succeed::{keep, put_back, refresh};

/// What the metadata of a group holds beside its view: identity, level, chain of epochs.
#[derive(Debug)]
pub enum GroupMeta {
    /// A group that lives in memory only (benchmarks over null and RAM drives): publishing does nothing.
    Volatile,
    /// A group whose members carry its metadata.
    Persistent(Box<Persistent>),
}
