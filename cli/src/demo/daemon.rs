//! The demo's own daemon: a child process of this same binary, its folder, and the verbs that are sent to it.
//!
//! Invariant: whatever way the demo ends (done, failed, Ctrl-C, SIGTERM), [`Cleanup`] is run once: it ends the daemon and
//! removes the folder.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use server::control::{ApiError, ErrorCode};

use super::report::{Failure, Report};
use crate::output::Output;

/// Long enough for a loaded machine: a time-out, not an expectation.
const START: Duration = Duration::from_secs(60);

/// What must be undone.
struct Cleanup {
    child: Option<Child>,
    folder: Option<TempDir>,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have died by itself.
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// The running daemon.
pub(super) struct Daemon {
    cleanup: Arc<Mutex<Option<Cleanup>>>,
    binary: PathBuf,
    folder: PathBuf,
    pid: u32,
}

impl Daemon {
    /// Makes a folder in `parent`, starts a daemon in it, and waits until it answers.
    pub(super) fn start(parent: &Path, output: Output) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("warpraid-demo-")
            .tempdir_in(parent)
            .map_err(|error| format!("a folder in {}: {error}", parent.display()))?;
        let binary = std::env::current_exe().map_err(|error| format!("where this program lies: {error}"))?;
        let path = folder.path().to_owned();
        let cleanup = Arc::new(Mutex::new(Some(Cleanup { child: None, folder: Some(folder) })));
        clean_up_on_signal(cleanup.clone(), output)?;
        let log =
            File::create(path.join("daemon.log")).map_err(|error| format!("the daemon's log: {error}"))?;
        let child = Command::new(&binary)
            .args(["serve", "--no-assemble", "--state-dir"])
            .arg(path.join("state"))
            .arg("--socket")
            .arg(path.join("admin.sock"))
            .current_dir(&path)
            // Ctrl-C goes to the foreground process group: the demo ends the daemon itself, in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let pid = child.id();
        if let Some(cleanup) = cleanup.lock().map_err(|_| "a thread died".to_owned())?.as_mut() {
            cleanup.child = Some(child);
        }
        let daemon = Self { cleanup, binary, folder: path, pid };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    fn wait_ready(&self) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let error = match self.verb(&["status"]) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let ended =
                self.cleanup.lock().map_err(|_| "a thread died".to_owned())?.as_mut().and_then(|cleanup| {
                    cleanup.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
                });
            if let Some(status) = ended {
                return Err(format!("the daemon ended with {status}\n{}", self.log_tail()));
            }
            if since.elapsed() > START {
                return Err(format!("the daemon does not answer: {error}\n{}", self.log_tail()));
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its process id.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// The admin socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("admin.sock")
    }

    /// Runs a verb and shows it, with paths of the demo's folder shortened; the document of its answer.
    pub(super) fn typed(&self, report: &mut Report, arguments: &[&str]) -> Result<Value, Failure> {
        let typed = arguments.join(" ").replace(&format!("{}/", self.folder.display()), "");
        report.command(&format!("warpraid {typed}"));
        self.verb(arguments)
    }

    /// Runs a verb silently; the document of its answer.
    pub(super) fn verb(&self, arguments: &[&str]) -> Result<Value, Failure> {
        let output = Command::new(&self.binary)
            .args(["-o", "json", "--socket"])
            .arg(self.socket())
            .args(arguments)
            .current_dir(&self.folder)
            .process_group(0)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", self.binary.display()))?;
        let shown = || format!("warpraid {}", arguments.join(" "));
        let mut answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
            format!(
                "{}: {} and no JSON ({error}): {}",
                shown(),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )
        })?;
        if output.status.success() {
            return Ok(answer["data"].take());
        }
        let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
        Err(format!("{}: {} {}", shown(), text("message"), text("hint")))
    }

    /// The end of the daemon's log, for a failure.
    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Leaves daemon and folder as they are.
    pub(super) fn keep(&self) {
        let Ok(mut cleanup) = self.cleanup.lock() else { return };
        if let Some(mut cleanup) = cleanup.take() {
            cleanup.child = None;
            if let Some(folder) = cleanup.folder.take() {
                let _kept = folder.keep();
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(mut cleanup) = self.cleanup.lock() {
            drop(cleanup.take());
        }
    }
}

/// From now on Ctrl-C and SIGTERM clean up and end the process.
fn clean_up_on_signal(cleanup: Arc<Mutex<Option<Cleanup>>>, output: Output) -> Result<(), Failure> {
    let failed = |error| format!("waiting for Ctrl-C: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _context = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
    };
    let wait = move || {
        let code = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            }
        });
        // Held to the end: the story, whose daemon is gone now, waits here instead of telling a failure of its own.
        let mut held = cleanup.lock();
        if let Ok(cleanup) = &mut held {
            drop(cleanup.take());
        }
        let stopped = "stopped; the daemon and the folder are gone";
        if output.is_json() {
            // The exit code is the signal's, as a shell expects it.
            let _failed = output.failed(ApiError::new(ErrorCode::DemoFailed, stopped));
        } else {
            eprintln!("\n{stopped}");
        }
        std::process::exit(code);
    };
    std::thread::Builder::new().name("demo-signals".to_owned()).spawn(wait).map(drop).map_err(failed)
}
