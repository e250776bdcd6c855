//! Metrics in the text format of Prometheus: names, text, and counting what clients do.
//!
//! [`FAMILIES`] is the one list of names; [`Text`] refuses any other, and the shipped rules and dashboard are tested
//! against it. Units are base units (bytes, seconds), states are series of 0 and 1, counters end in `_total`.
//! The values come from the same documents as `status` (`daemon/metrics.rs`) and from meters of one lane each, summed at
//! scrape.

mod export;
mod text;

pub use export::{DiskMeters, MeteredExport};
pub use text::Text;

/// What kind of metric a family is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows, from 0 at the start of what it counts.
    Counter,
    /// Counters by upper bound.
    Histogram,
}

/// A name, and what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// What kind.
    pub kind: Kind,
    /// One line.
    pub help: &'static str,
}

const fn family(kind: Kind, name: &'static str, help: &'static str) -> Family {
    Family { name, kind, help }
}

/// Every metric there is.
#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    family(Kind::Gauge, "warpraid_build_info", "Always 1; the version is a label."),
    family(Kind::Gauge, "warpraid_start_time_seconds", "When the daemon started."),
    family(Kind::Gauge, "warpraid_health", "1 for the worst health of all groups, 0 for the other states."),
    family(Kind::Gauge, "warpraid_problem", "1 for every problem in status, by its code."),
    family(Kind::Gauge, "warpraid_group_info", "Always 1; level and uuid are labels."),
    family(Kind::Gauge, "warpraid_group_health", "1 for the health of the group, 0 for the others."),
    family(Kind::Gauge, "warpraid_group_state", "1 for the state of the group, 0 for the others."),
    family(Kind::Gauge, "warpraid_group_redundancy_left", "How many more drives the group can lose, whichever they are."),
    family(Kind::Gauge, "warpraid_group_capacity_bytes", "Data bytes that disks can be cut from."),
    family(Kind::Gauge, "warpraid_group_free_bytes", "Data bytes no disk uses."),
    family(Kind::Gauge, "warpraid_group_operation_done_bytes", "Bytes done of a long operation (rebuild, resync, ...)."),
    family(Kind::Gauge, "warpraid_group_operation_total_bytes", "Bytes in all of a long operation."),
    family(Kind::Gauge, "warpraid_member_info", "Always 1; path and serial of the slot's drive are labels."),
    family(Kind::Gauge, "warpraid_member_state", "1 for the state of the member, 0 for the others."),
    family(Kind::Counter, "warpraid_member_errors_total", "Commands to the member's drive that failed."),
    family(Kind::Counter, "warpraid_drive_operations_total", "Operations of the member's drive that ended."),
    family(Kind::Counter, "warpraid_drive_bytes_total", "Bytes of the operations that worked."),
    family(Kind::Counter, "warpraid_drive_errors_total", "Operations of the member's drive that failed."),
    family(Kind::Histogram, "warpraid_drive_latency_seconds", "Time an operation of the member's drive took."),
    family(Kind::Gauge, "warpraid_disk_info", "Always 1; uuid is a label."),
    family(Kind::Gauge, "warpraid_disk_size_bytes", "Size of the disk."),
    family(Kind::Gauge, "warpraid_disk_clients", "Clients connected to the disk."),
    family(Kind::Gauge, "warpraid_disk_exposed", "1 if the disk is served."),
    family(Kind::Counter, "warpraid_disk_operations_total", "Requests of clients that ended; one of more than 1 MiB counts as several."),
    family(Kind::Counter, "warpraid_disk_bytes_total", "Bytes of the requests that worked."),
    family(Kind::Counter, "warpraid_disk_errors_total", "Requests of clients that failed."),
    family(Kind::Histogram, "warpraid_disk_latency_seconds", "Time from a request's arrival to its answer."),
    family(Kind::Counter, "warpraid_events_total", "Events since the daemon started, by code."),
    family(Kind::Gauge, "warpraid_events_newest_id", "Number of the newest event."),
    family(Kind::Gauge, "warpraid_lane_arena_used_bytes", "Buffer memory of the lane that is in use."),
    family(Kind::Gauge, "warpraid_lane_arena_size_bytes", "Bound of the lane's buffer memory."),
    family(Kind::Gauge, "warpraid_lane_tasks", "Tasks of the lane that have not ended."),
    family(Kind::Gauge, "warpraid_lane_in_flight", "Operations the kernel works on for the lane."),
    family(Kind::Gauge, "warpraid_resident_memory_bytes", "Resident memory of the daemon."),
];
