//! What clients did, sampled once a second for the charts ([`crate::history`]).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use nvme_backend::meter::{BUCKETS, IoOp, Metered, bucket_ns};
use tokio::time::MissedTickBehavior;

use super::Daemon;
use super::api::Api;
use super::host::unix_seconds;
use super::running::Running;
use crate::control::model::HistoryDoc;
use crate::control::request::HistoryOf;
use crate::control::{Answer, ApiError, ErrorCode};
use crate::history::{self, Direction, History, Reading, Subject};

/// Upper bounds of the meters' buckets.
static BOUNDS_NS: LazyLock<Vec<u64>> = LazyLock::new(|| (0..BUCKETS).filter_map(bucket_ns).collect());

/// An empty history of what the meters count.
pub(super) fn empty() -> History {
    History::new(&BOUNDS_NS)
}

fn direction(metered: &Metered) -> Direction {
    Direction { ops: metered.operations, bytes: metered.bytes, latency: metered.buckets.to_vec() }
}

/// What the disks of a group and the group itself come to. A disk served at two addresses counts as one.
fn readings_of(group: &Running, into: &mut BTreeMap<Subject, Reading>) -> Reading {
    let capacity_bytes = group.shared.geometry().capacity_bytes();
    let name = group.name();
    let mut whole = Reading { capacity_bytes, ..Reading::default() };
    let disks = group.table.lock().as_ref().map_or_else(Vec::new, |table| table.list());
    let mut served: BTreeMap<String, Reading> = BTreeMap::new();
    for (disk, meters) in super::disks::meters(group) {
        let reading = served.entry(disk).or_default();
        reading.read.add(&direction(&meters.metered(IoOp::Read)));
        reading.write.add(&direction(&meters.metered(IoOp::Write)));
    }
    for disk in disks {
        let mut reading = served.remove(&disk.name).unwrap_or_default();
        reading.used_bytes = disk.bytes;
        whole.add(&reading);
        reading.capacity_bytes = capacity_bytes;
        into.insert(Subject::Disk(name.to_owned(), disk.name), reading);
    }
    into.insert(Subject::Group(name.to_owned()), whole.clone());
    whole
}

impl Daemon {
    fn readings(&self) -> BTreeMap<Subject, Reading> {
        let mut readings = BTreeMap::new();
        let mut all = Reading::default();
        for group in self.groups.read().values() {
            all.add(&readings_of(group, &mut readings));
        }
        readings.insert(Subject::Daemon, all);
        readings
    }

    /// Samples once a second for ever. A pause (a suspended machine, a control thread held up) makes one long sample.
    pub(super) async fn keep_history(self: Arc<Self>) {
        let began = Instant::now();
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tick.tick().await;
            let readings = self.readings();
            self.history.lock().note(began.elapsed(), unix_seconds(), &readings);
        }
    }
}

impl Api {
    pub(in crate::daemon) async fn history(&self, of: HistoryOf) -> Answer<HistoryDoc> {
        let subject = match (of.group, of.disk) {
            (None, _) => Subject::Daemon,
            (Some(group), None) => Subject::Group(group),
            (Some(group), Some(disk)) => Subject::Disk(group, disk),
        };
        let history = self.daemon().history.lock();
        let series = history.series(&subject, of.range);
        // The daemon's first second has no sample of anything, its own not either.
        if series.is_none() && subject != Subject::Daemon {
            return Err(no_history(&subject));
        }
        let (period_s, samples_max) = history::shape(of.range);
        let document = HistoryDoc {
            range: of.range,
            period_s,
            samples_max,
            now_unix_s: unix_seconds(),
            memory_bytes_max: history::MEMORY_BYTES_MAX,
            left_out: history.left_out(),
            series: series.into_iter().collect(),
        };
        Ok(document.into())
    }
}

fn no_history(subject: &Subject) -> ApiError {
    let (code, what) = match subject {
        Subject::Disk(group, disk) => (ErrorCode::DiskNotFound, format!("disk {group}/{disk}")),
        Subject::Group(group) => (ErrorCode::GroupNotFound, format!("group {group}")),
        Subject::Daemon => (ErrorCode::Internal, "the daemon".to_owned()),
    };
    ApiError::new(code, format!("nothing was recorded of {what}"))
        .hint("warpraid status lists the groups; recording begins a second after a disk is there")
}
