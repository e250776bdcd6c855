//! Control API: documents, the [`Control`] trait the daemon implements, HTTP + JSON over a unix socket.
//!
//! The daemon implements [`Control`]; [`http`] serves it; the command line is a client like any other. Names in requests
//! were checked by [`http`] before they arrive here; what the world holds (drives, groups, uuids) is for the daemon to
//! check.

pub mod error;
pub mod explain;
pub mod group_scrub;
pub mod group_set;
pub mod http;
pub mod model;
pub mod names;
pub mod openapi;
pub mod options;
pub mod request;
pub mod routes;
pub mod sockets;

use core::future::Future;

pub use error::{ApiError, ErrorCode, Exit};
pub use explain::{Code, EventCode, ProblemCode};
pub use options::ServeOptions;

use group_scrub::GroupScrub;
use group_set::GroupSet;
use model::{
    ActionDoc, DiskDoc, DiskListDoc, DriveDoc, DriveListDoc, EventListDoc, FaultListDoc, GroupDoc,
    GroupListDoc, HealthDoc, HistoryDoc, PlanDoc, ScrubDoc, SpareListDoc, StatusDoc, WaitDoc, WarningDoc,
};
use request::{
    AlertTest, DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose, DriveFail, DriveWipe, EventsOf,
    FaultClear, FaultInject, GroupAdopt, GroupAssemble, GroupCreate, GroupDelete, GroupPlan, GroupReadd,
    GroupRelease, GroupReplace, GroupStop, GroupUndelete, GroupWait, HistoryOf, SpareAdd, SpareRemove,
    Upgrade,
};

/// A document, and what the caller should know beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply<T> {
    /// The document.
    pub data: T,
    /// What the caller should know although the verb worked.
    pub warnings: Vec<WarningDoc>,
}

impl<T> Reply<T> {
    /// The document with one more warning.
    #[must_use]
    pub fn warn(mut self, code: impl Into<Code>, message: impl Into<String>) -> Self {
        self.warnings.push(WarningDoc { code: code.into(), message: message.into() });
        self
    }
}

impl<T> From<T> for Reply<T> {
    fn from(data: T) -> Self {
        Self { data, warnings: Vec::new() }
    }
}

/// What a verb answers.
pub type Answer<T> = Result<Reply<T>, ApiError>;

/// What the daemon can be asked. One method per verb; each may take as long as it needs without holding up the others.
///
/// `drive` is a path, a serial or a device uuid; `group` a name or uuid; `disk` a name.
pub trait Control: Send + Sync + 'static {
    /// Am I safe, why not, what do I type.
    fn status(&self) -> impl Future<Output = Answer<StatusDoc>> + Send;
    /// Health as a monitoring system wants it.
    fn health(&self) -> impl Future<Output = Answer<HealthDoc>> + Send;

    /// What happened, from the numbered record; waits for something new if asked to.
    fn events(&self, of: EventsOf) -> impl Future<Output = Answer<EventListDoc>> + Send;
    /// Throughput, operations, latency and capacity over time.
    fn history(&self, of: HistoryOf) -> impl Future<Output = Answer<HistoryDoc>> + Send;
    /// Sends a test event through everything an alert goes through.
    fn alert_test(&self, how: AlertTest) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Metrics in the text format of Prometheus.
    fn metrics(&self) -> impl Future<Output = String> + Send;

    /// Another program takes the daemon's place.
    fn upgrade(&self, how: Upgrade) -> impl Future<Output = Answer<ActionDoc>> + Send;

    /// All drives.
    fn drives(&self) -> impl Future<Output = Answer<DriveListDoc>> + Send;
    /// One drive.
    fn drive(&self, drive: String) -> impl Future<Output = Answer<DriveDoc>> + Send;
    /// Takes every signature off a drive.
    fn drive_wipe(&self, drive: String, how: DriveWipe) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Drops a member as if its drive had failed.
    fn drive_fail(&self, drive: String, how: DriveFail) -> impl Future<Output = Answer<ActionDoc>> + Send;

    /// Faults that drives were told to have.
    fn faults(&self) -> impl Future<Output = Answer<FaultListDoc>> + Send;
    /// Makes a drive do something wrong.
    fn fault_inject(&self, what: FaultInject) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Ends faults.
    fn fault_clear(&self, what: FaultClear) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// All spares.
    fn spares(&self) -> impl Future<Output = Answer<SpareListDoc>> + Send;
    /// Keeps a drive for the loss of a member.
    fn spare_add(&self, what: SpareAdd) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Gives a spare up.
    fn spare_remove(&self, what: SpareRemove) -> impl Future<Output = Answer<ActionDoc>> + Send;

    /// What a group would be; writes nothing.
    fn group_plan(&self, what: GroupPlan) -> impl Future<Output = Answer<PlanDoc>> + Send;
    /// Makes a group: all or nothing.
    fn group_create(&self, what: GroupCreate) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// All groups.
    fn groups(&self) -> impl Future<Output = Answer<GroupListDoc>> + Send;
    /// One group.
    fn group(&self, group: String) -> impl Future<Output = Answer<GroupDoc>> + Send;
    /// Stops a group cleanly.
    fn group_stop(&self, group: String, how: GroupStop) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Starts groups from what lies on their drives.
    fn group_assemble(&self, what: GroupAssemble) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Deletes a group.
    fn group_delete(&self, group: String, how: GroupDelete)
    -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Brings a deleted group back.
    fn group_undelete(&self, what: GroupUndelete) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Takes an array of Linux md over in place.
    fn group_adopt(&self, what: GroupAdopt) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Stops a group and gives it to Linux md.
    fn group_release(
        &self,
        group: String,
        how: GroupRelease,
    ) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Puts a dropped member back into its slot and starts its resync.
    fn group_readd(&self, group: String, how: GroupReadd) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Puts a new drive in a member's place and starts its rebuild.
    fn group_replace(
        &self,
        group: String,
        how: GroupReplace,
    ) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Scrubs a group, or pauses, resumes, cancels, acknowledges.
    fn group_scrub(&self, group: String, how: GroupScrub) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// The scrubs of a group.
    fn scrub(&self, group: String) -> impl Future<Output = Answer<ScrubDoc>> + Send;
    /// Changes settings of a group.
    fn group_set(&self, group: String, what: GroupSet) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Waits until a group is in a state.
    fn group_wait(&self, group: String, what: GroupWait) -> impl Future<Output = Answer<WaitDoc>> + Send;

    /// All disks, or those of one group.
    fn disks(&self, group: Option<String>) -> impl Future<Output = Answer<DiskListDoc>> + Send;
    /// One disk.
    fn disk(&self, group: String, disk: String) -> impl Future<Output = Answer<DiskDoc>> + Send;
    /// Cuts a disk from a group.
    fn disk_create(&self, what: DiskCreate) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Serves a disk.
    fn disk_expose(
        &self,
        group: String,
        disk: String,
        how: DiskExpose,
    ) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Stops serving a disk.
    fn disk_unexpose(
        &self,
        group: String,
        disk: String,
        how: DiskUnexpose,
    ) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Grows a disk.
    fn disk_resize(
        &self,
        group: String,
        disk: String,
        how: DiskResize,
    ) -> impl Future<Output = Answer<ActionDoc>> + Send;
    /// Deletes a disk.
    fn disk_delete(
        &self,
        group: String,
        disk: String,
        how: DiskDelete,
    ) -> impl Future<Output = Answer<ActionDoc>> + Send;
}
