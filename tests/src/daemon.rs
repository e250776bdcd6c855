//! A daemon under test, and its verbs with the options the tests use.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stamps::nbd::{Client, Endpoint, Options};

use crate::cli::{self, Answer, Json};
use crate::servants::Servants;
use crate::tool;

/// Long enough for anything a test waits for on a loaded machine; a time-out, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running `warpraid serve`, killed when dropped; its log is shown if the test fails.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// The admin socket.
    pub socket: PathBuf,
    /// The state folder.
    pub state: PathBuf,
    options: Vec<String>,
    log: PathBuf,
    /// Who serves its drives. They end before it: a daemon that waits for a drive that hangs cannot die.
    servants: Servants,
}

impl Daemon {
    /// Starts a daemon and waits until it answers. `options` are further options of `serve`.
    #[must_use]
    pub fn start(state: PathBuf, socket: PathBuf, options: &[&str]) -> Self {
        Self::start_served(state, socket, options, Servants::default())
    }

    /// As [`Daemon::start`], for drives that `servants` serve.
    #[must_use]
    pub fn start_served(state: PathBuf, socket: PathBuf, options: &[&str], servants: Servants) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        let child = spawn(&state, &socket, &options);
        let log = log_of(&state);
        let mut daemon = Self { child, socket, state, options, log, servants };
        daemon.wait_ready();
        daemon
    }

    fn wait_ready(&mut self) {
        let since = std::time::Instant::now();
        while cli::run(&self.socket, &["status"]).exit != 0 {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                panic!("the daemon ended with {status}:\n{}", self.log());
            }
            assert!(since.elapsed() < PATIENCE, "the daemon does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Resident memory in bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// The most resident memory it ever had, in bytes.
    #[must_use]
    pub fn resident_bytes_max(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with(what)).expect("the kernel tells");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") * 1024
    }

    /// Asserts that it runs.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("the child is ours");
        assert!(ended.is_none(), "the daemon ended with {ended:?}:\n{}", self.log());
    }

    /// SIGKILL: no good-bye.
    pub fn kill(&mut self) {
        assert!(
            self.child.try_wait().expect("the child is ours").is_none(),
            "it ended before:\n{}",
            self.log()
        );
        assert!(tool::end(&mut self.child, PATIENCE), "SIGKILL did not end the daemon within {PATIENCE:?}");
    }

    /// SIGTERM, and waits for a clean end.
    pub fn stop(&mut self) {
        tool::signal(self.pid(), "TERM");
        let mut ended = None;
        tool::wait_until("the daemon stops on SIGTERM", PATIENCE, || {
            ended = self.child.try_wait().expect("the child is ours");
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}:\n{}", self.log());
    }

    /// Starts it again after [`Daemon::kill`] or [`Daemon::stop`].
    pub fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    /// As [`Daemon::start_again`], with other options of `serve` if there are any.
    pub fn start_again_with(&mut self, options: &[&str]) {
        assert!(self.child.try_wait().expect("the child is ours").is_some(), "it still runs");
        if !options.is_empty() {
            self.options = options.iter().map(|option| (*option).to_owned()).collect();
        }
        self.child = spawn(&self.state, &self.socket, &self.options);
        self.wait_ready();
    }

    /// Runs a verb.
    #[must_use]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Answer {
        cli::run(&self.socket, arguments)
    }

    /// Runs a verb that must work; its document.
    pub fn ok<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Json {
        self.run(arguments).data()
    }

    /// `group create`, which must work.
    pub fn create<P: AsRef<Path>>(&self, group: &str, level: u32, drives: &[P]) -> Json {
        self.try_create(group, &level.to_string(), drives, &[]).data()
    }

    /// `group create` with further options.
    #[must_use]
    pub fn try_create<P: AsRef<Path>>(
        &self,
        group: &str,
        level: &str,
        drives: &[P],
        options: &[&str],
    ) -> Answer {
        let mut arguments: Vec<&OsStr> =
            ["group", "create", group, "--level", level, "--yes"].map(OsStr::new).into();
        arguments.extend(options.iter().map(OsStr::new));
        arguments.extend(drives.iter().map(|drive| drive.as_ref().as_os_str()));
        self.run(&arguments)
    }

    /// `group show`.
    #[must_use]
    pub fn group(&self, group: &str) -> Json {
        self.ok(&["group", "show", group])
    }

    /// State of each member, in slot order.
    #[must_use]
    pub fn member_states(&self, group: &str) -> Vec<String> {
        self.group(group).list("members").iter().map(|member| member.text("state")).collect()
    }

    /// `group wait --for`, which must come true.
    pub fn wait(&self, group: &str, what: &str) -> Json {
        self.ok(&["group", "wait", group, "--for", what, "--timeout", &format!("{}s", PATIENCE.as_secs())])
    }

    /// `drive fail`, which must work.
    pub fn fail(&self, drive: &Path) -> Json {
        self.ok(&["drive", "fail", tool::text(drive)])
    }

    /// `group replace` of the member in `slot`, which must work.
    pub fn replace(&self, group: &str, slot: u32, new: &Path) -> Json {
        self.ok(&["group", "replace", group, "--slot", &slot.to_string(), tool::text(new)])
    }

    /// Whether a group of this name runs.
    #[must_use]
    pub fn runs(&self, group: &str) -> bool {
        let answer = self.run(&["group", "show", group]);
        answer.exit == 0 && !["stopped", "offline"].contains(&answer.data().text("state").as_str())
    }

    /// The group runs again after a restart: started by the daemon itself, or by `group assemble` from `drives`.
    pub fn bring_up<P: AsRef<Path>>(&self, group: &str, drives: &[P]) {
        if !self.runs(group) {
            self.assemble(group, drives, &[]).data();
        }
    }

    /// `group assemble` from `drives`, with further options.
    #[must_use]
    pub fn assemble<P: AsRef<Path>>(&self, group: &str, drives: &[P], options: &[&str]) -> Answer {
        let mut arguments: Vec<&OsStr> = ["group", "assemble", group].map(OsStr::new).into();
        arguments.extend(options.iter().map(OsStr::new));
        arguments.extend(drives.iter().map(|drive| drive.as_ref().as_os_str()));
        self.run(&arguments)
    }

    /// `disk create`, which must work.
    pub fn disk(&self, disk: &str, size: &str) -> Json {
        self.ok(&["disk", "create", disk, "--size", size])
    }

    /// `disk create` of all that is free, in bytes rounded down to the full stripe.
    pub fn disk_of_all(&self, group: &str, disk: &str) -> u64 {
        let document = self.group(group);
        let stripe = document.number("stripe_bytes");
        let size = document.number("free_bytes") / stripe * stripe;
        self.disk(&format!("{group}/{disk}"), &size.to_string());
        size
    }

    /// `disk expose` on a unix socket beside the admin socket, unless it is so already; how to reach it.
    pub fn expose(&self, disk: &str) -> Export {
        let path = self.socket.with_file_name(format!("{}.nbd", disk.replace('/', "-")));
        self.expose_at(disk, &format!("unix:{}", path.display()), &[])
    }

    /// `disk expose` at an address, with further options, unless it is so already; how to reach it.
    pub fn expose_at(&self, disk: &str, address: &str, options: &[&str]) -> Export {
        let exposures = self.ok(&["disk", "show", disk]).list("exposures");
        if !exposures.iter().any(|exposure| exposure.text("address") == address) {
            self.ok(&[&["disk", "expose", disk, "--nbd", address], options].concat());
        }
        self.exposed(disk, address)
    }

    /// How to reach an exposed disk.
    #[must_use]
    pub fn exposed(&self, disk: &str, address: &str) -> Export {
        let document = self.ok(&["disk", "show", disk]);
        let exposures = document.list("exposures");
        let found = exposures.iter().find(|exposure| exposure.text("address") == address);
        let found = found.unwrap_or_else(|| panic!("{disk} is not exposed on {address}: {document:?}"));
        Export {
            endpoint: Endpoint::parse(address).expect("as given to expose"),
            name: found.text("export"),
            uri: found.text("uri"),
            size_bytes: document.number("size_bytes"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let is_alive = !matches!(self.child.try_wait(), Ok(Some(_)));
        if is_alive {
            // First the signal, so that it does not act on drives that vanish; then the drives, so that it can die of it.
            let _gone = self.child.kill();
            self.servants.end();
            if !tool::end(&mut self.child, PATIENCE) {
                eprintln!("the daemon {} hangs in the kernel and is left behind", self.pid());
            }
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- end of the daemon's log\n{}\n---",
                lines[lines.len().saturating_sub(60)..].join("\n")
            );
        }
    }
}

/// An exposed disk.
#[derive(Clone, Debug)]
pub struct Export {
    /// Where.
    pub endpoint: Endpoint,
    /// Its export name.
    pub name: String,
    /// As NBD tools want it.
    pub uri: String,
    /// Size of the disk.
    pub size_bytes: u64,
}

impl Export {
    /// A connection in transmission.
    #[must_use]
    pub fn connect(&self) -> Client {
        self.connect_with(&Options { timeout: PATIENCE, ..Options::export(&self.name) })
    }

    /// A connection with other options.
    #[must_use]
    pub fn connect_with(&self, options: &Options) -> Client {
        Client::connect(&self.endpoint, options).unwrap_or_else(|error| panic!("{}: {error}", self.endpoint))
    }
}

fn log_of(state: &Path) -> PathBuf {
    state.with_extension("log")
}

fn spawn(state: &Path, socket: &Path, options: &[String]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log_of(state)).expect("log");
    let folder = socket.parent().expect("a socket lies in a folder");
    std::fs::create_dir_all(folder).expect("folder of the socket");
    Command::new(cli::binary())
        .args([OsStr::new("serve"), OsStr::new("--state-dir"), state.as_os_str()])
        .args([OsStr::new("--socket"), socket.as_os_str()])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the binary runs")
}
