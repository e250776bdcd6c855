//! The daemon's metrics: the documents of `status` as numbers, and the meters of drives, disks and lanes.

use std::sync::Arc;
use std::time::Duration;

use nvme_backend::meter::{IoOp, Metered};
use raid_core::ports::Pool;

use super::api::Api;
use super::running::Running;
use crate::control::EventCode;
use crate::control::model::{GroupDoc, GroupState, Health, MemberState, ProblemDoc};
use crate::lane::on_lane;
use crate::metrics::Text;

/// How long a scrape waits for a lane; the lanes that do not answer are left out of it.
const LANE_WAIT: Duration = Duration::from_secs(2);

const HEALTHS: [Health; 4] = [Health::Ok, Health::Warning, Health::Critical, Health::Unknown];
const GROUP_STATES: [GroupState; 6] = [
    GroupState::Healthy,
    GroupState::Syncing,
    GroupState::Degraded,
    GroupState::Rebuilding,
    GroupState::Offline,
    GroupState::Stopped,
];
const MEMBER_STATES: [MemberState; 6] = [
    MemberState::InSync,
    MemberState::Rebuilding,
    MemberState::Failed,
    MemberState::Missing,
    MemberState::Stale,
    MemberState::Conflict,
];
const POOLS: [(Pool, &str); 3] =
    [(Pool::Request, "request"), (Pool::Scratch, "scratch"), (Pool::Metadata, "metadata")];

/// The word of an enum as the API spells it.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

fn states<T: serde::Serialize>(text: &mut Text, labels: &[(&str, &str)], label: &str, all: &[T], is: &T) {
    let words: Vec<String> = all.iter().map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    text.states(labels, label, &words, &word(is));
}

fn of_daemon(text: &mut Text, api: &Api, problems: &[ProblemDoc]) {
    text.begin("warpraid_build_info");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.begin("warpraid_start_time_seconds");
    text.sample(&[], api.0.started_unix_s);
    text.begin("warpraid_health");
    states(text, &[], "state", &HEALTHS, &Api::worst(problems));
    text.begin("warpraid_problem");
    let mut told = std::collections::BTreeSet::new();
    for problem in problems {
        let slot = problem.slot.map(|slot| slot.to_string()).unwrap_or_default();
        let group = problem.group.as_deref().unwrap_or_default();
        if told.insert((problem.code.clone(), group, slot.clone())) {
            let severity = word(&problem.health);
            text.sample(
                &[("code", problem.code.as_str()), ("group", group), ("slot", &slot), ("health", &severity)],
                1,
            );
        }
    }
    text.begin("warpraid_events_total");
    let counts = api.0.events.counts();
    for code in EventCode::ALL {
        let of_code = counts.iter().filter(|((it, _), _)| it == code.as_str());
        text.sample(&[("code", code.as_str())], of_code.map(|(_, n)| n).sum());
    }
    text.begin("warpraid_events_newest_id");
    text.sample(&[], api.0.events.newest());
    text.begin("warpraid_resident_memory_bytes");
    text.sample(&[], resident_bytes());
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * raid_core::units::u64_of(rustix::param::page_size())
}

fn of_groups(text: &mut Text, groups: &[GroupDoc]) {
    text.begin("warpraid_group_info");
    for group in groups {
        text.sample(&[("group", &group.name), ("uuid", &group.uuid), ("level", &word(&group.level))], 1);
    }
    text.begin("warpraid_group_health");
    for group in groups {
        states(text, &[("group", &group.name)], "health", &HEALTHS, &group.health);
    }
    text.begin("warpraid_group_state");
    for group in groups {
        states(text, &[("group", &group.name)], "state", &GROUP_STATES, &group.state);
    }
    type Number = fn(&GroupDoc) -> u64;
    let numbers: [(&'static str, Number); 3] = [
        ("warpraid_group_redundancy_left", |group| group.tolerates.into()),
        ("warpraid_group_capacity_bytes", |group| group.capacity_bytes),
        ("warpraid_group_free_bytes", |group| group.free_bytes),
    ];
    for (name, number) in numbers {
        text.begin(name);
        for group in groups {
            text.sample(&[("group", &group.name)], number(group));
        }
    }
    for is_total in [false, true] {
        let what = if is_total { "total" } else { "done" };
        text.begin(if is_total {
            "warpraid_group_operation_total_bytes"
        } else {
            "warpraid_group_operation_done_bytes"
        });
        for group in groups {
            for progress in &group.progress {
                let slot = progress.slot.map(|slot| slot.to_string()).unwrap_or_default();
                let value = if what == "total" { progress.total_bytes } else { progress.done_bytes };
                let operation = word(&progress.operation);
                text.sample(&[("group", &group.name), ("operation", &operation), ("slot", &slot)], value);
            }
        }
    }
}

fn of_members(text: &mut Text, groups: &[GroupDoc]) {
    let members = || groups.iter().flat_map(|group| group.members.iter().map(move |member| (group, member)));
    text.begin("warpraid_member_info");
    for (group, member) in members() {
        let (drive, serial) = (member.drive.as_deref(), member.serial.as_deref());
        let slot = member.slot.to_string();
        let labels = [
            ("group", group.name.as_str()),
            ("slot", &slot),
            ("drive", drive.unwrap_or_default()),
            ("serial", serial.unwrap_or_default()),
        ];
        text.sample(&labels, 1);
    }
    text.begin("warpraid_member_state");
    for (group, member) in members() {
        let labels = [("group", group.name.as_str()), ("slot", &member.slot.to_string())];
        states(text, &labels, "state", &MEMBER_STATES, &member.state);
    }
    text.begin("warpraid_member_errors_total");
    for (group, member) in members() {
        text.sample(&[("group", &group.name), ("slot", &member.slot.to_string())], member.errors.commands);
    }
}

/// Labels of something that is metered, and how to read its meters.
struct MeteredThing<'a> {
    labels: Vec<(&'a str, String)>,
    read: Box<dyn Fn(IoOp) -> Metered + 'a>,
}

/// Operations, bytes, errors and latency, of drives or of disks.
fn of_meters(text: &mut Text, names: [&'static str; 4], things: &[MeteredThing<'_>]) {
    for (i, name) in names.into_iter().enumerate() {
        text.begin(name);
        for thing in things {
            for op in IoOp::ALL {
                let mut labels: Vec<(&str, &str)> =
                    thing.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                labels.push(("op", op.name()));
                let of = (thing.read)(op);
                match i {
                    0 => text.sample(&labels, of.operations),
                    1 => text.sample(&labels, of.bytes),
                    2 => text.sample(&labels, of.errors),
                    _ => text.histogram(&labels, &of),
                }
            }
        }
    }
}

fn of_drives(text: &mut Text, api: &Api, groups: &[Arc<Running>]) {
    let mut things = Vec::new();
    for group in groups {
        let keys: Vec<_> = group.places.lock().iter().map(|place| place.key).collect();
        for (slot, key) in keys.into_iter().enumerate() {
            let Some(drive) = key.and_then(|key| api.0.host.drive(key)) else { continue };
            things.push(MeteredThing {
                labels: vec![("group", group.name().to_owned()), ("slot", slot.to_string())],
                read: Box::new(move |op| drive.metered(op)),
            });
        }
    }
    let names = [
        "warpraid_drive_operations_total",
        "warpraid_drive_bytes_total",
        "warpraid_drive_errors_total",
        "warpraid_drive_latency_seconds",
    ];
    of_meters(text, names, &things);
}

fn of_disks(text: &mut Text, api: &Api, groups: &[Arc<Running>]) {
    let mut docs = Vec::new();
    for group in groups {
        let disks = group.table.lock().as_ref().map_or_else(Vec::new, raid_core::disks::DiskTable::list);
        docs.extend(disks.iter().map(|disk| api.0.disk_doc(group, disk)));
    }
    text.begin("warpraid_disk_info");
    for disk in &docs {
        text.sample(&[("group", &disk.group), ("disk", &disk.name), ("uuid", &disk.uuid)], 1);
    }
    text.begin("warpraid_disk_size_bytes");
    for disk in &docs {
        text.sample(&[("group", &disk.group), ("disk", &disk.name)], disk.size_bytes);
    }
    text.begin("warpraid_disk_exposed");
    for disk in &docs {
        text.sample(&[("group", &disk.group), ("disk", &disk.name)], u64::from(!disk.exposures.is_empty()));
    }
    text.begin("warpraid_disk_clients");
    for disk in &docs {
        let clients = disk.exposures.iter().map(|exposure| raid_core::units::u64_of(exposure.clients.len()));
        text.sample(&[("group", &disk.group), ("disk", &disk.name)], clients.sum());
    }
    let mut things = Vec::new();
    for group in groups {
        for (disk, meters) in super::disks::meters(group) {
            things.push(MeteredThing {
                labels: vec![("group", group.name().to_owned()), ("disk", disk)],
                read: Box::new(move |op| meters.metered(op)),
            });
        }
    }
    let names = [
        "warpraid_disk_operations_total",
        "warpraid_disk_bytes_total",
        "warpraid_disk_errors_total",
        "warpraid_disk_latency_seconds",
    ];
    of_meters(text, names, &things);
}

/// What a lane says of itself: per pool bytes out and bound, tasks, operations in flight.
#[derive(Clone, Copy)]
struct LaneFacts {
    pools: [(u64, u64); 3],
    tasks: u64,
    in_flight: u64,
}

async fn lane_facts(api: &Api) -> Vec<(String, LaneFacts)> {
    let mut facts = Vec::new();
    for (number, lane) in api.0.lanes.iter().enumerate() {
        let asked = on_lane(lane, |state| async move {
            let lane = state.env().reactor();
            let pools = POOLS.map(|(pool, _)| (lane.arena().bytes_out(pool), lane.arena().bytes_max(pool)));
            let number = raid_core::units::u64_of;
            LaneFacts { pools, tasks: number(lane.tasks()), in_flight: number(lane.in_flight()) }
        });
        if let Ok(Ok(answer)) = tokio::time::timeout(LANE_WAIT, asked).await {
            facts.push((number.to_string(), answer));
        }
    }
    facts
}

fn of_lanes(text: &mut Text, facts: &[(String, LaneFacts)]) {
    type Pick = fn(&LaneFacts, usize) -> u64;
    let of_pools: [(&'static str, Pick); 2] = [
        ("warpraid_lane_arena_used_bytes", |facts, pool| facts.pools[pool].0),
        ("warpraid_lane_arena_size_bytes", |facts, pool| facts.pools[pool].1),
    ];
    for (name, pick) in of_pools {
        text.begin(name);
        for (lane, facts) in facts {
            for (i, (_, pool)) in POOLS.iter().enumerate() {
                text.sample(&[("lane", lane), ("pool", pool)], pick(facts, i));
            }
        }
    }
    text.begin("warpraid_lane_tasks");
    for (lane, facts) in facts {
        text.sample(&[("lane", lane)], facts.tasks);
    }
    text.begin("warpraid_lane_in_flight");
    for (lane, facts) in facts {
        text.sample(&[("lane", lane)], facts.in_flight);
    }
}

impl Api {
    /// The page of metrics.
    pub(super) async fn metrics_text(&self) -> String {
        let lanes = lane_facts(self).await;
        let docs = self.group_docs();
        let problems = self.problems(&docs);
        let running: Vec<Arc<Running>> = self.0.groups.read().values().cloned().collect();
        let mut text = Text::default();
        of_daemon(&mut text, self, &problems);
        of_groups(&mut text, &docs);
        of_members(&mut text, &docs);
        of_drives(&mut text, self, &running);
        of_disks(&mut text, self, &running);
        of_lanes(&mut text, &lanes);
        text.finish()
    }
}
