//! The demo, chapter by chapter. Every claim it prints was checked by reading bytes back.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use server::control::model::{DemoDiskDoc, DemoDoc, DemoKeptDoc};
use stamps::Model;
use stamps::load::{Counters, Mix, Op, Pipeline, whole};
use stamps::nbd::{Client, Endpoint, Options};

use super::DemoArgs;
use super::daemon::Daemon;
use super::report::{Failure, Report, bar, mib, rate};
use crate::output::Output;

const GROUP: &str = "demo";
const DISKS: [&str; 2] = ["alpha", "beta"];
const DRIVE_BYTES: u64 = 256 << 20;
/// Everything is read and written in units of this, so that the model of a disk stays small.
const UNIT_BYTES: u64 = 4096;
const DEPTH: usize = 16;
/// How long the load runs before, between and after the failures.
const BETWEEN: Duration = Duration::from_secs(3);
/// A rebuild that does not move for so long has hung.
const STALL: Duration = Duration::from_secs(120);

/// A disk of the demo: how to reach it, and what it must hold.
struct Disk {
    name: String,
    address: String,
    endpoint: Endpoint,
    uri: String,
    export: String,
    model: Mutex<Model>,
    counters: Counters,
}

/// Drives by slot: the first six, then what replaced them.
struct Drives {
    folder: PathBuf,
    slots: Vec<PathBuf>,
    made: usize,
}

/// Tells the whole story.
pub(super) fn tell(args: &DemoArgs, report: &mut Report, output: &Output) -> Result<DemoDoc, Failure> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    check_room(&parent, args.keep)?;
    let daemon = Daemon::start(&parent, *output)?;
    let told = chapters(&daemon, args, report);
    if told.is_err() {
        let log = daemon.log_tail();
        if !log.is_empty() {
            report.say(&format!("the end of the daemon's log:\n{log}"));
        }
    }
    told
}

fn chapters(daemon: &Daemon, args: &DemoArgs, report: &mut Report) -> Result<DemoDoc, Failure> {
    let folder = daemon.folder().display().to_string();
    report.say(&format!(
        "warpraid demo: no root, nothing installed; daemon (pid {}) and files in {folder}",
        daemon.pid()
    ));
    let mut drives = Drives { folder: daemon.folder().to_owned(), slots: Vec::new(), made: 0 };
    make_group(daemon, report, &mut drives)?;
    let disks = make_disks(daemon, report)?;
    fill(report, &disks)?;
    fail_under_load(daemon, report, &disks, &drives, [1, 4])?;
    verify(report, "Everything read back, with two drives gone", &disks)?;
    rebuild(daemon, report, &disks, &mut drives, [1, 4])?;
    check_parity(report, &disks, &drives)?;
    fail_others(daemon, report, &disks, &drives, [0, 3])?;
    if args.keep {
        rebuild(daemon, report, &disks, &mut drives, [0, 3])?;
    }
    let mut done = came_to(report, &disks);
    summary(report, &done);
    if args.keep {
        daemon.keep();
        explain(daemon, report, &disks);
        done.kept = Some(kept(daemon, &disks));
    }
    Ok(done)
}

fn make_group(daemon: &Daemon, report: &mut Report, drives: &mut Drives) -> Result<(), Failure> {
    report.step("A RAID 6 group over six drives (files here; NVMe namespaces in earnest)");
    for _ in 0..6 {
        let drive = drives.make()?;
        drives.slots.push(drive);
    }
    let paths = drives.slots.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    let mut arguments = vec!["group", "create", GROUP, "--level", "6", "--yes"];
    arguments.extend(paths.iter().map(String::as_str));
    daemon.typed(report, &arguments)?;
    report.command(&format!("warpraid group wait {GROUP} --for synced"));
    watch_group(daemon, report, "syncing", |group| {
        group["state"] != "syncing" && group["progress"].as_array().is_none_or(Vec::is_empty)
    })?;
    let group = daemon.verb(&["group", "wait", GROUP, "--for", "synced", "--timeout", "60s"])?;
    let capacity = number(&group["group"], "capacity_bytes")?;
    let raw = DRIVE_BYTES * 6;
    report.done(&format!("{} usable of {} raw; any two drives may fail", mib(capacity), mib(raw)));
    Ok(())
}

fn make_disks(daemon: &Daemon, report: &mut Report) -> Result<Vec<Disk>, Failure> {
    report.step("Two disks cut from it, served over NBD");
    let group = daemon.verb(&["group", "show", GROUP])?;
    // A twentieth stays free, so that the sizes are round whatever the metadata takes.
    let share = number(&group, "free_bytes")? / 40 * 19;
    let size = format!("{}M", share >> 20);
    let mut disks = Vec::new();
    for (id, short) in (1..).zip(DISKS) {
        let name = format!("{GROUP}/{short}");
        let address = format!("unix:{}", daemon.folder().join(format!("{short}.sock")).display());
        daemon.typed(report, &["disk", "create", &name, "--size", &size])?;
        daemon.typed(report, &["disk", "expose", &name, "--nbd", &address])?;
        let document = daemon.verb(&["disk", "show", &name])?;
        let exposure = &document["exposures"][0];
        let text = |field: &str| exposure[field].as_str().unwrap_or_default().to_owned();
        let endpoint = Endpoint::parse(&address).ok_or_else(|| format!("{address} is no address"))?;
        let bytes = number(&document, "size_bytes")? / UNIT_BYTES * UNIT_BYTES;
        disks.push(Disk {
            name,
            endpoint,
            address,
            uri: text("uri"),
            export: text("export"),
            model: Mutex::new(Model::with_unit(id, bytes, UNIT_BYTES)),
            counters: Counters::default(),
        });
    }
    report.done(&format!("two disks of {size}iB"));
    Ok(disks)
}

fn fill(report: &mut Report, disks: &[Disk]) -> Result<(), Failure> {
    report.step("Every block stamped with its disk, offset, write number and checksum");
    let began = Instant::now();
    let written = |disks: &[Disk]| sum(disks, |counters| &counters.written_bytes);
    let total: u64 = disks.iter().map(Disk::size_bytes).sum();
    on_each(
        disks,
        |disk| {
            disk.run(
                DEPTH,
                whole(disk.size_bytes(), 1 << 20, write_op).chain([Op::Flush]),
                &AtomicBool::new(false),
            )
        },
        || {
            let done = written(disks);
            report.progress(&format!(
                "{} {} of {}, {}",
                bar(done * 100 / total),
                mib(done),
                mib(total),
                rate(done, began.elapsed())
            ));
        },
    )?;
    report.done(&format!("{} written and flushed at {}", mib(total), rate(total, began.elapsed())));
    Ok(())
}

fn fail_under_load(
    daemon: &Daemon,
    report: &mut Report,
    disks: &[Disk],
    drives: &Drives,
    slots: [usize; 2],
) -> Result<(), Failure> {
    report.step("Two drives fail under load, one after the other, and are destroyed");
    let before = sum(disks, |counters| &counters.requests);
    let began = Instant::now();
    under_load(disks, DEPTH, || {
        watch_load(report, disks, "healthy", BETWEEN);
        for (slot, how) in slots.into_iter().zip(["one drive gone", "two drives gone"]) {
            drives.fail(daemon, report, slot)?;
            watch_load(report, disks, how, BETWEEN);
        }
        Ok(())
    })?;
    let requests = sum(disks, |counters| &counters.requests) - before;
    let per_s = u128::from(requests) * 1000 / began.elapsed().as_millis().max(1);
    report.done(&format!(
        "{requests} requests of 4 to 256 KiB answered, {per_s} a second, not one error, every read right"
    ));
    Ok(())
}

fn verify(report: &mut Report, what: &str, disks: &[Disk]) -> Result<(), Failure> {
    report.step(what);
    let began = Instant::now();
    let before = sum(disks, |counters| &counters.verified_bytes);
    let total: u64 = disks.iter().map(Disk::size_bytes).sum();
    on_each(
        disks,
        |disk| disk.run(DEPTH, whole(disk.size_bytes(), 1 << 20, read_op), &AtomicBool::new(false)),
        || {
            let done = sum(disks, |counters| &counters.verified_bytes) - before;
            report.progress(&format!(
                "{} {} of {}, {}",
                bar(done * 100 / total),
                mib(done),
                mib(total),
                rate(done, began.elapsed())
            ));
        },
    )?;
    report.done(&format!("{} read and right, at {}", mib(total), rate(total, began.elapsed())));
    Ok(())
}

fn rebuild(
    daemon: &Daemon,
    report: &mut Report,
    disks: &[Disk],
    drives: &mut Drives,
    slots: [usize; 2],
) -> Result<(), Failure> {
    report.step("Two spares take their place and are rebuilt, while the load goes on");
    let began = Instant::now();
    under_load(disks, 4, || {
        for slot in slots {
            let spare = drives.make()?;
            let arguments =
                ["group", "replace", GROUP, "--slot", &slot.to_string(), &spare.display().to_string()];
            daemon.typed(report, &arguments)?;
            drives.slots[slot] = spare;
        }
        report.command(&format!("warpraid group wait {GROUP} --for healthy"));
        watch_group(daemon, report, "rebuilding", |group| group["state"] == "healthy")
    })?;
    daemon.verb(&["group", "wait", GROUP, "--for", "healthy", "--timeout", "60s"])?;
    let group = daemon.verb(&["group", "show", GROUP])?;
    let tolerates = number(&group, "tolerates")?;
    if tolerates != 2 {
        return Err(format!("after the rebuild the group tolerates {tolerates} drives, not 2"));
    }
    report.done(&format!(
        "{} rebuilt, {} with the load; any two drives may fail again",
        mib(DRIVE_BYTES * 2),
        rate(DRIVE_BYTES * 2, began.elapsed())
    ));
    Ok(())
}

fn check_parity(report: &mut Report, disks: &[Disk], drives: &Drives) -> Result<(), Failure> {
    report.step("Full parity check, on the drives themselves, by code that shares nothing with the engine");
    for disk in disks {
        disk.run(1, [Op::Flush], &AtomicBool::new(false))?;
    }
    let began = Instant::now();
    let checked = stamps::members::check(&drives.slots, |thousandths| {
        report.progress(&format!("{} {} %", bar(thousandths / 10), thousandths / 10));
    })
    .map_err(|error| format!("the parity check: {error}"))?;
    if let Some(mismatch) = checked.mismatches.first() {
        return Err(format!(
            "{} mismatches in {} stripes, the first: {mismatch}",
            checked.mismatches.len(),
            checked.stripes
        ));
    }
    report.done(&format!(
        "{} stripes, {} read at {}: P and Q fit everywhere",
        checked.stripes,
        mib(checked.bytes),
        rate(checked.bytes, began.elapsed())
    ));
    Ok(())
}

fn fail_others(
    daemon: &Daemon,
    report: &mut Report,
    disks: &[Disk],
    drives: &Drives,
    slots: [usize; 2],
) -> Result<(), Failure> {
    report.step("Two other drives fail: now the rebuilt ones have to carry");
    for slot in slots {
        drives.fail(daemon, report, slot)?;
    }
    report.done("two of the first six drives are left beside the two rebuilt ones");
    verify(report, "Everything read back once more", disks)
}

fn came_to(report: &Report, disks: &[Disk]) -> DemoDoc {
    let total = |field: fn(&Counters) -> &std::sync::atomic::AtomicU64| sum(disks, field);
    let slowest = disks.iter().map(|disk| disk.counters.slowest_ns.load(Ordering::Relaxed)).max();
    DemoDoc {
        written_bytes: total(|counters| &counters.written_bytes),
        zeroed_bytes: total(|counters| &counters.zeroed_bytes),
        verified_bytes: total(|counters| &counters.verified_bytes),
        requests: total(|counters| &counters.requests),
        flushes: total(|counters| &counters.flushes),
        slowest_ns: slowest.unwrap_or(0),
        elapsed_ns: u64::try_from(report.elapsed().as_nanos()).unwrap_or(u64::MAX),
        kept: None,
    }
}

fn kept(daemon: &Daemon, disks: &[Disk]) -> DemoKeptDoc {
    let disk = |disk: &Disk| DemoDiskDoc { name: disk.name.clone(), uri: disk.uri.clone() };
    DemoKeptDoc {
        pid: daemon.pid(),
        socket: daemon.socket().display().to_string(),
        folder: daemon.folder().display().to_string(),
        disks: disks.iter().map(disk).collect(),
    }
}

fn summary(report: &mut Report, done: &DemoDoc) {
    report.step("Summary");
    report.say(&format!("written    {:>9}", mib(done.written_bytes)));
    report.say(&format!("zeroed     {:>9}", mib(done.zeroed_bytes)));
    report.say(&format!(
        "verified   {:>9}   every byte compared with what was written: 0 wrong",
        mib(done.verified_bytes)
    ));
    report.say(&format!(
        "requests   {:>9}   {} flushes; 0 errors; the slowest took {} ms",
        done.requests,
        done.flushes,
        done.slowest_ns / 1_000_000
    ));
    report.say(&format!("time       {:>7} s", done.elapsed_ns / 1_000_000_000));
}

fn explain(daemon: &Daemon, report: &mut Report, disks: &[Disk]) {
    report.step("Kept running; try");
    let socket = daemon.socket();
    report.say(&format!("export WARPRAID_SOCKET={}", socket.display()));
    report.say("warpraid status");
    for disk in disks {
        report.say(&format!("nbdinfo '{}'", disk.uri));
    }
    if let (Some(disk), Some(path)) =
        (disks.first(), disks.first().and_then(|disk| disk.address.strip_prefix("unix:")))
    {
        report.say(&format!("qemu-img info '{}'", disk.uri));
        report.say(&format!("nbdcopy '{}' {}.img", disk.uri, disk.name.replace('/', "-")));
        report.say(&format!("nbd-client -unix {path} /dev/nbd0 -N {} -b 4096   # as root", disk.export));
    }
    report.say(&format!("kill {} && rm -r {}   # the end of it", daemon.pid(), daemon.folder().display()));
}

impl Disk {
    fn size_bytes(&self) -> u64 {
        self.model.lock().map_or(0, |model| model.size_bytes())
    }

    fn run(&self, depth: usize, ops: impl IntoIterator<Item = Op>, stop: &AtomicBool) -> Result<(), Failure> {
        let mut client = Client::connect(&self.endpoint, &Options::export(&self.export))
            .map_err(|error| format!("{} at {}: {error}", self.name, self.endpoint))?;
        Pipeline::new(&mut client, &self.model, &self.counters, depth)
            .run(ops, stop)
            .map_err(|failure| format!("{}: {failure}", self.name))
    }
}

impl Drives {
    /// A new blank drive.
    fn make(&mut self) -> Result<PathBuf, Failure> {
        let path = self.folder.join(format!("drive{}", self.made));
        self.made += 1;
        std::fs::File::create_new(&path)
            .and_then(|file| file.set_len(DRIVE_BYTES))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Fails the drive in `slot` and removes its file.
    fn fail(&self, daemon: &Daemon, report: &mut Report, slot: usize) -> Result<(), Failure> {
        let path = &self.slots[slot];
        daemon.typed(report, &["drive", "fail", &path.display().to_string()])?;
        std::fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Runs `work` for each disk in a thread of its own and `tick` ten times a second until all are done.
fn on_each(
    disks: &[Disk],
    work: impl Fn(&Disk) -> Result<(), Failure> + Sync,
    mut tick: impl FnMut(),
) -> Result<(), Failure> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = disks.iter().map(|disk| scope.spawn(move || work(disk))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            tick();
            std::thread::sleep(Duration::from_millis(100));
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a client thread died".to_owned())?)
    })
}

/// Runs `meanwhile` under random load on every disk; an error or a wrong byte of the load is a failure.
fn under_load(
    disks: &[Disk],
    depth: usize,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = |(seed, disk): (u64, _)| {
            scope.spawn(move || {
                let disk: &Disk = disk;
                disk.run(depth, mix(seed).requests(disk.size_bytes()), stop)
            })
        };
        let threads: Vec<_> = (1..).zip(disks).map(load).collect();
        let told = {
            // Also when `meanwhile` panics: the scope waits for loads that nobody else would stop.
            let _stopper = Stopper(stop);
            meanwhile()
        };
        let loads: Result<(), Failure> = threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a client thread died".to_owned())?);
        // A load that failed is the better story than what it made fail.
        loads.and(told)
    })
}

struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Shows the load for `time`.
fn watch_load(report: &mut Report, disks: &[Disk], how: &str, time: Duration) {
    let began = Instant::now();
    let moved = || sum(disks, |c| &c.written_bytes) + sum(disks, |c| &c.verified_bytes);
    let before = moved();
    while began.elapsed() < time {
        std::thread::sleep(Duration::from_millis(100));
        report.progress(&format!("{how}: {}", rate(moved() - before, began.elapsed())));
    }
}

/// Shows the long operations of the group until `done`.
fn watch_group(
    daemon: &Daemon,
    report: &mut Report,
    what: &str,
    done: impl Fn(&Value) -> bool,
) -> Result<(), Failure> {
    let mut last_move = (0, Instant::now());
    loop {
        let group = daemon.verb(&["group", "show", GROUP])?;
        if done(&group) {
            return Ok(());
        }
        if group["state"] == "offline" {
            return Err(format!("the group went offline: {}", group["problems"]));
        }
        let members = group["members"].as_array().into_iter().flatten().map(|member| &member["progress"]);
        let whole = group["progress"].as_array().into_iter().flatten();
        let running: Vec<&Value> = members.chain(whole).filter(|progress| !progress.is_null()).collect();
        let bytes: u64 = running.iter().filter_map(|progress| progress["done_bytes"].as_u64()).sum();
        if bytes != last_move.0 {
            last_move = (bytes, Instant::now());
        } else if last_move.1.elapsed() > STALL {
            return Err(format!("{what} does not move: {group:#}"));
        }
        // The one that is behind decides how long it takes.
        let behind = running.iter().min_by_key(|progress| progress["percent"].as_u64());
        report.progress(&behind.map_or_else(|| what.to_owned(), |progress| progress_line(what, progress)));
        std::thread::sleep(Duration::from_millis(150));
    }
}

fn progress_line(what: &str, progress: &Value) -> String {
    let percent = progress["percent"].as_u64().unwrap_or(0);
    let rate =
        progress["rate_bytes_per_s"].as_u64().map_or_else(String::new, |rate| format!(", {}/s", mib(rate)));
    let eta =
        progress["eta_s"].as_u64().map_or_else(|| "ETA unknown".to_owned(), |eta| format!("ETA {eta} s"));
    format!("{} {percent:>3} % {what}{rate}, {eta}", bar(percent))
}

const fn mix(seed: u64) -> Mix {
    Mix {
        seed,
        unit_bytes: UNIT_BYTES,
        length_bytes_max: 256 << 10,
        reads: 40,
        zeroes: 3,
        flushes: 1,
        fua: 3,
    }
}

const fn write_op(at: u64, bytes: u64) -> Op {
    Op::Write { at, bytes, fua: false }
}

const fn read_op(at: u64, bytes: u64) -> Op {
    Op::Read { at, bytes }
}

fn sum(disks: &[Disk], field: impl Fn(&Counters) -> &std::sync::atomic::AtomicU64) -> u64 {
    disks.iter().map(|disk| field(&disk.counters).load(Ordering::Relaxed)).sum()
}

fn number(document: &Value, field: &str) -> Result<u64, Failure> {
    document[field].as_u64().ok_or_else(|| format!("no {field} in {document}"))
}

/// Refuses before anything is made if the files would not fit: they are sparse, so running out would come late.
fn check_room(parent: &Path, keep: bool) -> Result<(), Failure> {
    let stat = rustix::fs::statvfs(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    // Removed files are held by the daemon until it ends, so all drives ever made count.
    let needed = DRIVE_BYTES * if keep { 10 } else { 8 } + (64 << 20);
    if free >= needed {
        return Ok(());
    }
    let room = format!("{} has {} free and the demo needs {}", parent.display(), mib(free), mib(needed));
    Err(format!("{room}; choose another folder with --dir"))
}
