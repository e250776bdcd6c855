//! End to end: a warpraid daemon on tmpfs files, served over NBD to fio, against nbdkit's file plugin on tmpfs in the same
//! run; and the daemon's resident memory. Needs `fio` with its nbd engine, `nbdkit`, and a release build of `warpraid`.
//!
//! Before anything is timed, fio writes stamped blocks to every disk and reads them back; a case counts as verified only
//! if that passed. Reads are of a RAID 6 of 6, writes of a RAID 1 of 2. And what clients feel of a rebuild (`pace`).

mod pace;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use benches::floors::{Floors, Unit, show};
use benches::measure::{Bench, interleave};
use benches::record::{Case, Peer, Record, resident_bytes};
use benches::stats::{SAMPLES_MIN, Summary, f64_of};
use clap::Parser;

/// Measures the daemon over NBD, and its memory.
#[derive(Parser)]
struct Args {
    /// The daemon and client under test [default: `warpraid` beside this program].
    #[arg(long)]
    warpraid: Option<PathBuf>,
    /// A folder on tmpfs for the drives.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Samples per case.
    #[arg(long, default_value_t = 7)]
    samples: usize,
    /// Seconds of one fio run.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Only the cases whose id contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Where to write the record.
    #[arg(long)]
    out: Option<PathBuf>,
}

type Result<T> = core::result::Result<T, String>;

/// Bytes of each drive file.
const DRIVE_BYTES: u64 = 640 << 20;
/// Bytes of the served disks, and of the peer's file.
const DISK: &str = "512M";
/// How long a program may take to come up: a time-out, not a measurement.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A folder that goes when the run ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that ends when the run ends.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map(Self)
            .map_err(|error| format!("{name}: {error}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end and gives its standard output.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} ended with {}: {}", output.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wait_for(path: &Path) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while !path.exists() {
        if Instant::now() > deadline {
            return Err(format!("{} did not appear in {START_LIMIT:?}", path.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A daemon in a folder of its own.
struct Daemon<'a> {
    warpraid: &'a Path,
    dir: PathBuf,
    process: Running,
}

impl<'a> Daemon<'a> {
    fn start(warpraid: &'a Path, dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let socket = dir.join("admin.sock");
        let mut command = Command::new(warpraid);
        command.args(["serve", "--log", "warpraid=warn,server=error"]);
        command.arg("--state-dir").arg(dir.join("state")).arg("--socket").arg(&socket);
        let daemon = Self { warpraid, dir, process: Running::start(&mut command)? };
        let deadline = Instant::now() + START_LIMIT;
        while let Err(error) = daemon.client(&["status"]) {
            if Instant::now() > deadline {
                return Err(format!("the daemon does not answer: {error}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    fn client(&self, args: &[&str]) -> Result<String> {
        output(Command::new(self.warpraid).args(args).arg("--socket").arg(self.dir.join("admin.sock")))
    }

    /// Makes a group of fresh drives and waits until its initial sync is over, which would compete with what is measured.
    /// Gives its drives, in slot order.
    fn group(&self, name: &str, level: &str, drives: usize, drive_bytes: u64) -> Result<Vec<PathBuf>> {
        let mut args: Vec<String> =
            ["group", "create", name, "--level", level, "--yes"].map(str::to_owned).to_vec();
        let made: Result<Vec<PathBuf>> =
            (0..drives).map(|i| self.new_drive(&format!("{name}-{i}"), drive_bytes)).collect();
        let made = made?;
        args.extend(made.iter().map(|path| path.display().to_string()));
        self.client(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
        self.client(&["group", "wait", name, "--for", "synced", "--timeout", "10m"])?;
        Ok(made)
    }

    /// A blank file drive; sparse.
    fn new_drive(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.dir.join(format!("{name}.img"));
        let file = std::fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        file.set_len(bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Makes a disk of the group and serves it; gives its socket.
    fn expose(&self, group: &str, size: &str) -> Result<PathBuf> {
        let disk = format!("{group}/disk");
        let socket = self.dir.join(format!("{group}.nbd"));
        self.client(&["disk", "create", &disk, "--size", size])?;
        self.client(&["disk", "expose", &disk, "--nbd", &format!("unix:{}", socket.display())])?;
        wait_for(&socket)?;
        Ok(socket)
    }
}

/// nbdkit's file plugin over a file of the same size.
fn start_peer(dir: &Path) -> Result<(Running, PathBuf, String)> {
    let version = output(Command::new("nbdkit").arg("--version"))?;
    let version = version.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
    let (file, socket) = (dir.join("peer.img"), dir.join("peer.nbd"));
    output(Command::new("truncate").args(["-s", DISK]).arg(&file))?;
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(&file);
    let peer = Running::start(&mut command)?;
    wait_for(&socket)?;
    Ok((peer, socket, version))
}

fn fio(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command
        .args([
            "--name=bench",
            "--ioengine=nbd",
            "--output-format=json",
            "--randrepeat=0",
            "--verify_state_save=0",
        ])
        .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
        .args(args);
    command
}

/// Writes stamped blocks over the whole disk, so that nothing is read from a hole, and reads every one back.
fn fill_and_verify(socket: &Path) -> Result<()> {
    let args =
        ["--rw=write", "--bs=128k", "--iodepth=8", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"];
    output(&mut fio(socket, &args)).map(drop)
}

/// One timed run: `field` of the side (`read` or `write`) of fio's result.
fn timed(socket: &Path, seconds: u32, load: Load) -> f64 {
    let runtime = format!("--runtime={seconds}");
    let depth = format!("--iodepth={}", load.depth);
    let args = [load.rw, load.block, &depth, "--time_based", &runtime, "--norandommap"];
    let result = output(&mut fio(socket, &args)).unwrap_or_else(|error| panic!("{error}"));
    // fio may print a note before its JSON.
    let json = result.find('{').map_or("", |start| &result[start..]);
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("fio: {error}"));
    let job = &value["jobs"][0];
    assert_eq!(job["error"], 0, "fio reports an I/O error");
    job[load.side][load.field].as_f64().expect("fio reports the rate")
}

#[derive(Clone, Copy)]
struct Load {
    id: &'static str,
    unit: Unit,
    group: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
    side: &'static str,
    field: &'static str,
}

const LOADS: [Load; 3] = [
    Load {
        id: "nbd.randread4k.qd32",
        unit: Unit::Iops,
        group: "reads",
        rw: "--rw=randread",
        block: "--bs=4k",
        depth: 32,
        side: "read",
        field: "iops",
    },
    Load {
        id: "nbd.randwrite4k.qd32.raid1",
        unit: Unit::Iops,
        group: "writes",
        rw: "--rw=randwrite",
        block: "--bs=4k",
        depth: 32,
        side: "write",
        field: "iops",
    },
    Load {
        id: "nbd.read128k",
        unit: Unit::BytesPerS,
        group: "reads",
        rw: "--rw=read",
        block: "--bs=128k",
        depth: 8,
        side: "read",
        field: "bw_bytes",
    },
];

/// Resident memory of an idle daemon with one group of 8 drives.
fn idle_memory(warpraid: &Path, dir: PathBuf, samples: usize) -> Result<Vec<f64>> {
    let folder = Folder(dir);
    let daemon = Daemon::start(warpraid, folder.0.clone())?;
    daemon.group("idle", "6", 8, DRIVE_BYTES)?;
    let mut bytes = Vec::new();
    for _ in 0..samples {
        std::thread::sleep(Duration::from_millis(300));
        let pid = daemon.process.0.id();
        bytes.push(f64_of(resident_bytes(pid).ok_or("the daemon is gone")?));
    }
    Ok(bytes)
}

fn rates(warpraid: &Path, dir: &Path, args: &Args, floors: &Floors) -> Result<Vec<Case>> {
    let daemon = Daemon::start(warpraid, dir.join("served"))?;
    daemon.group("reads", "6", 6, DRIVE_BYTES)?;
    daemon.group("writes", "1", 2, DRIVE_BYTES)?;
    let (_peer, peer_socket, version) = start_peer(dir)?;
    let mut sockets = Vec::new();
    for group in ["reads", "writes"] {
        sockets.push((group, daemon.expose(group, DISK)?));
    }
    for socket in sockets.iter().map(|(_, socket)| socket).chain([&peer_socket]) {
        fill_and_verify(socket)?;
    }
    let mut benches = Vec::new();
    let loads = || LOADS.into_iter().filter(|load| load.id.contains(&args.only));
    for load in loads() {
        let own = sockets.iter().find(|(group, _)| *group == load.group).map(|(_, socket)| socket.clone());
        let own = own.expect("both groups are exposed");
        let peer = peer_socket.clone();
        let seconds = args.seconds;
        benches.push(Bench::new(load.id, move || timed(&own, seconds, load)));
        benches.push(Bench::new("peer", move || timed(&peer, seconds, load)));
    }
    let mut results = interleave(benches, args.samples.max(SAMPLES_MIN)).into_iter();
    let mut cases = Vec::new();
    for load in loads() {
        let (Some((_, own)), Some((_, peer))) = (results.next(), results.next()) else {
            unreachable!("two results per load");
        };
        let median = Summary::of(&peer).ok_or("the peer gave no rate")?.median;
        let peer = Peer { name: "nbdkit file".to_owned(), version: version.clone(), median };
        cases.push(Case::new(load.id, load.unit, own, Some(peer), floors).with_load(1, load.depth, true));
    }
    Ok(cases)
}

fn run(args: &Args) -> Result<()> {
    let beside = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("warpraid");
    let warpraid = args.warpraid.clone().unwrap_or(beside);
    let folder = Folder(args.dir.join(format!("warpraid-bench-{}", std::process::id())));
    let floors = Floors::built_in();
    let is_wanted = |id: &str| id.contains(&args.only);
    let mut cases = Vec::new();
    if is_wanted("memory.rss_idle") {
        // First, when nothing has run yet. Nothing is moved in this case, so there is nothing to verify.
        let idle = idle_memory(&warpraid, folder.0.join("idle"), args.samples.max(SAMPLES_MIN))?;
        cases.push(Case::new("memory.rss_idle", Unit::Bytes, idle, None, &floors).with_load(1, 0, true));
    }
    if LOADS.iter().any(|load| is_wanted(load.id)) {
        cases.extend(rates(&warpraid, &folder.0, args, &floors)?);
    }
    if is_wanted(pace::ID) {
        cases.push(pace::case(&warpraid, &folder.0, args, &floors)?);
    }
    for case in &cases {
        let peer = case.peer.as_ref().map_or_else(String::new, |peer| {
            format!(" against {} of {}", show(case.unit, peer.median), peer.name)
        });
        println!("{:<28} {:>16}{peer}", case.id, show(case.unit, case.median));
    }
    match &args.out {
        Some(path) => Record::of_this_run(cases).write(path).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nbd: {error}");
            ExitCode::FAILURE
        }
    }
}
