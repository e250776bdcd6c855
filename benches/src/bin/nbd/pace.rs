//! What clients feel of a rebuild: RAID 6 of 10 file drives on tmpfs, two members lost and replaced under load, with a target
//! set. The 99th percentile of fio's requests without a rebuild, against the same while both members are rebuilt.
//!
//! "Without" is the group whole and nothing going on. The target is what an operator would set who wants no more than twice
//! of that. A sample counts only if the rebuild was going on from its first to its last moment. At the end every block of the
//! disk must carry the stamp of a write (fio's own checksums), with both members rebuilt.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use benches::floors::{Floors, Unit};
use benches::record::Case;
use benches::stats::{SAMPLES_MIN, f64_of};

use super::{Args, Daemon, Result, fio, output};

/// The case.
pub(super) const ID: &str = "nbd.p99.rebuild.raid6_8p2";
const GROUP: &str = "paced";
const DRIVES: usize = 10;
const LOST: [usize; 2] = [2, 7];
/// Bytes of each drive file. Nearly all of it is written, so that the rebuild has something to do and lasts longer than what
/// is measured in it.
const BYTES: u64 = 768 << 20;
/// Bytes of the disk.
const DISK: &str = "5600M";
/// Requests in flight.
const DEPTH: u32 = 8;
/// What clients may wait during the rebuild, in times of what they wait without: the target that is set.
const TIMES: f64 = 2.0;
/// How long the governor has to find its rate before anything is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// Writes stamps of 4K over the whole disk; any later write of 4K leaves one, too.
fn fill(socket: &Path) -> Result<()> {
    let args = [
        "--rw=write",
        "--bs=128k",
        "--iodepth=8",
        "--verify=crc32c",
        "--verify_interval=4k",
        "--do_verify=0",
    ];
    output(&mut fio(socket, &args)).map(drop)
}

/// Whether every block carries a stamp that fits it.
fn verify(socket: &Path) -> Result<()> {
    let args = ["--rw=read", "--bs=4k", "--iodepth=32", "--verify=crc32c", "--verify_fatal=1"];
    output(&mut fio(socket, &args)).map(drop)
}

/// Runs the load for so long: the 99th percentile of all its requests, reads and writes alike, in nanoseconds.
fn p99_ns(socket: &Path, time: Duration) -> Result<f64> {
    let runtime = format!("--runtime={}", time.as_secs().max(1));
    let depth = format!("--iodepth={DEPTH}");
    let args = [
        "--rw=randrw",
        "--rwmixread=70",
        "--bs=4k",
        &depth,
        "--time_based",
        &runtime,
        "--norandommap",
        "--verify=crc32c",
        "--do_verify=0",
        "--unified_rw_reporting=1",
    ];
    let result = output(&mut fio(socket, &args))?;
    let json = result.find('{').map_or("", |start| &result[start..]);
    let value: serde_json::Value = serde_json::from_str(json).map_err(|error| format!("fio: {error}"))?;
    let job = &value["jobs"][0];
    let found = job["mixed"]["clat_ns"]["percentile"]["99.000000"].as_f64();
    found.filter(|_| job["error"] == 0).ok_or_else(|| format!("fio gave no percentile: {job}"))
}

struct Paced<'a> {
    daemon: &'a Daemon<'a>,
    socket: PathBuf,
    /// Where the member of each slot is.
    members: Vec<PathBuf>,
    made: usize,
}

impl Paced<'_> {
    fn group(&self) -> Result<serde_json::Value> {
        let text = self.daemon.client(&["group", "show", GROUP, "-o", "json"])?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(value["data"].clone())
    }

    fn is_rebuilding(&self) -> Result<bool> {
        let group = self.group()?;
        let members = group["members"].as_array().cloned().unwrap_or_default();
        Ok(LOST.iter().all(|&slot| members.get(slot).is_some_and(|member| member["state"] == "rebuilding")))
    }

    fn set(&self, what: &[&str]) -> Result<()> {
        self.daemon.client(&[&["group", "set", GROUP], what].concat()).map(drop)
    }

    /// Two members fail and two blank drives take their places.
    fn lose_two(&mut self) -> Result<()> {
        for slot in LOST {
            self.daemon.client(&["drive", "fail", &format!("{GROUP}:{slot}")])?;
        }
        for slot in LOST {
            self.made += 1;
            let new = self.daemon.new_drive(&format!("{GROUP}-new-{}", self.made), BYTES)?;
            let text = new.display().to_string();
            self.daemon.client(&["group", "replace", GROUP, "--slot", &slot.to_string(), &text])?;
            let old = std::mem::replace(&mut self.members[slot], new);
            std::fs::remove_file(&old).map_err(|error| format!("{}: {error}", old.display()))?;
        }
        Ok(())
    }

    /// Until the group is whole, as fast as it goes.
    fn mend(&self) -> Result<()> {
        self.set(&["--rebuild-speed", "max", "--rebuild-target", "auto"])?;
        self.daemon.client(&["group", "wait", GROUP, "--for", "healthy", "--timeout", "10m"])?;
        self.set(&["--rebuild-speed", "normal"])
    }

    /// What clients wait without a rebuild, over what they wait during one; none if it ended too early.
    fn sample(&mut self, time: Duration) -> Result<Option<f64>> {
        let idle_ns = p99_ns(&self.socket, time)?;
        let target_us = format!("{:.0}us", idle_ns * TIMES / 1000.0);
        self.set(&["--rebuild-target", &target_us])?;
        // Losing and replacing happen under load, as they do in life.
        let socket = self.socket.clone();
        let before = std::thread::spawn(move || p99_ns(&socket, SETTLE));
        std::thread::sleep(Duration::from_millis(300));
        self.lose_two()?;
        before.join().map_err(|_| "the load panicked")??;
        let (began, from) = (Instant::now(), self.done_bytes()?);
        let busy_ns = p99_ns(&self.socket, time)?;
        let was_rebuilding = self.is_rebuilding()?;
        let rate = f64_of(self.done_bytes()?.saturating_sub(from)) / began.elapsed().as_secs_f64();
        println!(
            "    p99 {:.0} us without, {:.0} us during a rebuild at {:.1} MB/s a member (target {target_us}){}",
            idle_ns / 1000.0,
            busy_ns / 1000.0,
            rate / 1e6,
            if was_rebuilding { "" } else { "; it ended too early" }
        );
        self.mend()?;
        Ok(was_rebuilding.then_some(idle_ns / busy_ns))
    }

    /// Bytes of a member that the rebuild has done.
    fn done_bytes(&self) -> Result<u64> {
        let group = self.group()?;
        Ok(group["progress"].as_array().and_then(|all| all.first()?["done_bytes"].as_u64()).unwrap_or(0))
    }
}

/// The case over a daemon of its own.
pub(super) fn case(warpraid: &Path, dir: &Path, args: &Args, floors: &Floors) -> Result<Case> {
    let daemon = Daemon::start(warpraid, dir.join(GROUP))?;
    let members = daemon.group(GROUP, "6", DRIVES, BYTES)?;
    let socket = daemon.expose(GROUP, DISK)?;
    fill(&socket)?;
    let mut paced = Paced { daemon: &daemon, socket, members, made: 0 };
    let (wanted, time) = (args.samples.max(SAMPLES_MIN), Duration::from_secs(args.seconds.into()));
    let mut samples = Vec::new();
    let mut tries = 0;
    // The first one warms up.
    while samples.len() <= wanted {
        tries += 1;
        if tries > 3 * wanted {
            return Err("the rebuild ends before it can be measured: give it less time, --seconds".to_owned());
        }
        samples.extend(paced.sample(time)?);
    }
    samples.remove(0);
    let verified = verify(&paced.socket).inspect_err(|error| eprintln!("{error}")).is_ok();
    Ok(Case::new(ID, Unit::Ratio, samples, None, floors).with_load(2, DEPTH, verified))
}
