//! A whole node from one file: what would be done, and what was.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a step of a layout is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayoutStepState {
    /// It would be done.
    Planned,
    /// It was done.
    Done,
}

/// One change that a layout asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayoutStepDoc {
    /// The verb that does the same by hand, e.g. `group create`.
    pub verb: String,
    /// What it is done to, e.g. `tank/home`.
    pub subject: String,
    /// What is done, in words, with the drives named.
    pub what: String,
    /// How far it is.
    pub state: LayoutStepState,
}

/// A disk of a layout, and how it is put to use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayoutDiskDoc {
    /// Its group.
    pub group: String,
    /// Its name.
    pub disk: String,
    /// Its size; of one that is to be made from the rest of its group, about that.
    pub size_bytes: u64,
    /// What the file says it is for.
    pub purpose: String,
    /// The block device it is or will be; null where it is not to be one.
    pub device: Option<String>,
    /// The command that makes its file system, for who wants one; never run here.
    pub mkfs: Option<String>,
    /// The command that mounts it.
    pub mount: Option<String>,
}

/// What a layout file asks of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayoutDoc {
    /// The file.
    pub file: String,
    /// True: nothing was changed.
    pub dry_run: bool,
    /// The changes, in order; none: the node is as the file says.
    pub steps: Vec<LayoutStepDoc>,
    /// Where the node differs and is left alone, and what could not be checked.
    pub notes: Vec<String>,
    /// The disks of the file.
    pub disks: Vec<LayoutDiskDoc>,
}
