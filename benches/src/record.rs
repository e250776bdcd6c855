//! The record of a benchmark run: one JSON document per run, kept in `benches/record/`.
//!
//! Invariants: a record says on what machine, from which commit and by which command it was made; every case carries all
//! its samples, so that nothing has to be taken on trust.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::detail::Detail;
use crate::floors::{Claim, Floors, Unit};
use crate::stats::{SAMPLES_MIN, Summary};

/// The schema's name.
pub const SCHEMA_NAME: &str = "warpraid.bench";
/// The schema's major version: a reader refuses another one.
pub const SCHEMA_MAJOR: u32 = 1;

/// Name and version of the document's schema.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Schema {
    /// [`SCHEMA_NAME`].
    pub name: String,
    /// Raised when a reader must change.
    pub major: u32,
    /// Raised when a field was added.
    pub minor: u32,
}

/// The machine a record was made on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: u64,
    /// Main memory, bytes.
    pub mem_bytes: u64,
    /// Release of the operating system's kernel.
    pub kernel: String,
}

/// What a case was compared with, in the same run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// The peer's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its median, in the case's unit.
    pub median: f64,
}

/// One measured claim.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Case {
    /// Which claim.
    pub id: String,
    /// The unit of the samples.
    pub unit: Unit,
    /// All samples, in the order they were taken.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// What it was compared with.
    pub peer: Option<Peer>,
    /// Own median over the peer's.
    pub ratio: Option<f64>,
    /// The floor at the time of the run.
    pub floor: Option<f64>,
    /// The goal at the time of the run.
    pub goal: Option<f64>,
    /// Whether the data that was moved was also checked.
    pub verified: bool,
    /// Lanes (reactor threads) that took part.
    pub lanes: u32,
    /// Requests in flight.
    pub queue_depth: u32,
    /// Whether the floor held; `true` where there is none.
    pub pass: bool,
    /// Bytes of data that one call works on, where calls are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_bytes: Option<u64>,
    /// Targets, latencies and rates over time of a case of `warpraid bench`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
}

impl Case {
    /// A case from its samples, judged by `floors`.
    ///
    /// # Panics
    /// With fewer than [`SAMPLES_MIN`] samples, or one that is not a number: a bug of the benchmark.
    #[must_use]
    pub fn new(id: &str, unit: Unit, samples: Vec<f64>, peer: Option<Peer>, floors: &Floors) -> Self {
        assert!(samples.len() >= SAMPLES_MIN, "{id}: {} samples, {SAMPLES_MIN} needed", samples.len());
        Self::judged(id, unit, samples, peer, floors)
    }

    /// A case of somebody's own run, from however many samples it gave; `check` takes no claim from so few.
    ///
    /// # Panics
    /// Without a sample, or with one that is not a number: a bug of the benchmark.
    #[must_use]
    pub fn measured(id: &str, unit: Unit, samples: Vec<f64>, floors: &Floors) -> Self {
        Self::judged(id, unit, samples, None, floors)
    }

    /// [`Self::measured`], compared with a peer of the same run.
    ///
    /// # Panics
    /// As [`Self::measured`].
    #[must_use]
    pub fn measured_against(id: &str, unit: Unit, samples: Vec<f64>, peer: Peer, floors: &Floors) -> Self {
        Self::judged(id, unit, samples, Some(peer), floors)
    }

    fn judged(id: &str, unit: Unit, samples: Vec<f64>, peer: Option<Peer>, floors: &Floors) -> Self {
        let Summary { median, min, max } = Summary::of(&samples).expect("finite samples");
        let claim = floors.claim(id);
        let ratio = peer.as_ref().map(|peer| median / peer.median);
        let pass = claim.is_none_or(|claim| claim.holds(median, ratio));
        Self {
            id: id.to_owned(),
            unit,
            samples,
            median,
            min,
            max,
            peer,
            ratio,
            floor: claim.map(|claim| claim.floor),
            goal: claim.and_then(|claim: &Claim| claim.goal),
            verified: false,
            lanes: 1,
            queue_depth: 1,
            pass,
            work_bytes: None,
            detail: None,
        }
    }

    /// The same case with its load and whether its data was checked.
    #[must_use]
    pub fn with_load(self, lanes: u32, queue_depth: u32, verified: bool) -> Self {
        Self { lanes, queue_depth, verified, ..self }
    }
}

/// A benchmark run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Schema of the document.
    pub schema: Schema,
    /// Commit of the code that ran; with `-dirty` if the tree had changes.
    pub commit: String,
    /// When, seconds since 1970.
    pub date_unix_s: u64,
    /// Where.
    pub machine: Machine,
    /// The command line.
    pub command: String,
    /// The measured claims.
    pub cases: Vec<Case>,
    /// Geometric means of ratios over cells, by what was compared: medians over the rounds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub geomean: BTreeMap<String, f64>,
    /// The parity kernel that was measured to be fastest, by operation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub picks: BTreeMap<String, String>,
}

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The contents.
    #[error("{path}: not a record of benchmarks: {reason}")]
    Malformed {
        /// Which file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

impl Record {
    /// The record of this run, with these cases.
    #[must_use]
    pub fn of_this_run(cases: Vec<Case>) -> Self {
        Self::of_commit(commit(), cases)
    }

    /// The record of a program that knows what it was built from.
    #[must_use]
    pub fn of_commit(commit: String, cases: Vec<Case>) -> Self {
        Self {
            schema: Schema { name: SCHEMA_NAME.to_owned(), major: SCHEMA_MAJOR, minor: 1 },
            commit,
            date_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            machine: machine(),
            command: command_line(),
            cases,
            geomean: BTreeMap::new(),
            picks: BTreeMap::new(),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`RecordError`] if the file cannot be read or is not a record of a schema we know.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let name = path.display().to_string();
        let text =
            fs::read_to_string(path).map_err(|source| RecordError::Io { path: name.clone(), source })?;
        Self::parse(&text).map_err(|reason| RecordError::Malformed { path: name, reason })
    }

    /// The record in this text.
    fn parse(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let schema = &record.schema;
        if schema.name != SCHEMA_NAME || schema.major != SCHEMA_MAJOR {
            return Err(format!(
                "schema {} {}, this program reads {SCHEMA_NAME} {SCHEMA_MAJOR}",
                schema.name, schema.major
            ));
        }
        Ok(record)
    }

    /// Writes the record, replacing a file of that name.
    ///
    /// # Errors
    /// [`RecordError::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let mut text = serde_json::to_string_pretty(self).expect("a record is plain data");
        text.push('\n');
        fs::write(path, text).map_err(|source| RecordError::Io { path: path.display().to_string(), source })
    }
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}-dirty"),
        (None, _) => "unknown".to_owned(),
    }
}

/// The program's name without its folder, then the arguments: the same on every machine.
fn command_line() -> String {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program).file_name().map(|name| name.to_string_lossy().into_owned());
    name.into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

fn machine() -> Machine {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
        cores: u64::try_from(cores).expect("cores fit"),
        mem_bytes: field(&read("/proc/meminfo"), "MemTotal").and_then(kib).unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    }
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// The bytes of `N kB`.
fn kib(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Resident memory of a process, bytes; `None` if there is no such process.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS").and_then(kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_own_file_and_names_its_machine() {
        let floors = Floors::built_in();
        let peer = Peer { name: "peer".to_owned(), version: "1".to_owned(), median: 8.0 };
        let case = Case::new("x", Unit::Iops, vec![4.0; 7], Some(peer), &floors).with_load(2, 64, true);
        assert_eq!((case.ratio, case.floor, case.pass), (Some(0.5), None, true));
        let record = Record::of_this_run(vec![case]);
        assert!(record.machine.cores > 0 && record.machine.mem_bytes > 1 << 20);
        assert!(!record.machine.kernel.is_empty() && !record.command.contains('/'));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record);
        assert!(text.contains(r#""unit":"iops""#), "{text}");
    }

    #[test]
    fn another_schema_is_refused() {
        let mut record = Record::of_this_run(Vec::new());
        record.schema.major = 2;
        let reason = Record::parse(&serde_json::to_string(&record).unwrap()).unwrap_err();
        assert!(reason.contains("warpraid.bench 2"), "{reason}");
        assert!(Record::parse("{}").is_err());
    }

    #[test]
    fn proc_fields() {
        assert_eq!(field("a : b\nMemTotal:  12 kB\n", "MemTotal").and_then(kib), Some(12 * 1024));
        assert_eq!(field("a : b", "c"), None);
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
    }
}
