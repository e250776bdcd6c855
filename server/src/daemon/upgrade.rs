//! `warpraid upgrade`: another program takes this one's place, in the same process, while disks are in use.
//!
//! In order: the new program is looked at and asked whether it takes the options this daemon was started with; block
//! devices are left (where the kernel can they are quiesced; what it has handed out and was not begun goes to the next
//! daemon); groups are stopped cleanly; rings and drives are closed; exec. The new program then starts as after any stop:
//! it opens every member exclusively, which waits for the last write of this one (SAFETY M8), starts the groups, takes the
//! devices over, and only then the kernel sends again what had not been answered.
//!
//! A note in the state folder (`upgrade.json`) tells it when clients began to wait. Should exec itself fail, the program
//! that runs is started again by the same way.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::api::Api;
use super::host::{random_u64, replace_file};
use super::running::Running;
use super::{Daemon, io_failed};
use crate::control::model::{ActionDoc, UpgradeDoc, UpgradedDiskDoc};
use crate::control::request::Upgrade as Request;
use crate::control::{Answer, ApiError, ErrorCode, EventCode};
use crate::events::NewEvent;

/// How long a new program may take to say that it takes our options.
const CHECK_WAIT: Duration = Duration::from_secs(30);
const FILE: &str = "upgrade.json";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What one program tells the next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Note {
    id: String,
    from_version: String,
    /// Of the boot the times belong to.
    boot: String,
    /// When clients of block devices began to wait (CLOCK_MONOTONIC).
    left_ns: u64,
    /// Why the new program was not started, if it was not.
    error: Option<String>,
}

/// The upgrade that is under way, and the one this daemon came from.
#[derive(Default)]
pub(super) struct Upgrade {
    wanted: Mutex<Option<(PathBuf, Note)>>,
    is_wanted: Notify,
    note: Mutex<Option<Note>>,
    resumed: Mutex<Vec<UpgradedDiskDoc>>,
    done: Mutex<Option<UpgradeDoc>>,
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// This program's own path: where the kernel started it from, also when another file has that name by now.
fn own_path() -> Option<PathBuf> {
    let path = fs::read_link("/proc/self/exe").ok()?;
    let text = path.to_str()?;
    Some(PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(text)))
}

fn invalid(path: &Path, why: impl core::fmt::Display) -> ApiError {
    let message = format!("{} cannot take over: {why}", path.display());
    ApiError::new(ErrorCode::UpgradeProgram, message)
        .hint("nothing was changed; name a program of warpraid that only root can change: --program PATH")
}

/// The numbers of a version, for an order.
fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

/// Refuses a file that others could change, or that is no program.
fn check_file(path: &Path) -> Result<(), ApiError> {
    let found = fs::metadata(path).map_err(|error| invalid(path, error))?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(invalid(path, "it is no program"));
    }
    if found.mode() & 0o002 != 0 || ![0, own].contains(&found.uid()) {
        return Err(invalid(path, "others than root and the daemon's user can change it"));
    }
    Ok(())
}

/// Asks a program whether it takes these options; its version.
async fn version_of(path: &Path, options: &[OsString]) -> Result<String, ApiError> {
    let mut command = tokio::process::Command::new(path);
    command.args(options).arg("--check").stdin(Stdio::null()).kill_on_drop(true);
    let asked = tokio::time::timeout(CHECK_WAIT, command.output()).await;
    let said = asked
        .map_err(|_| invalid(path, format!("it says nothing for {} s", CHECK_WAIT.as_secs())))?
        .map_err(|error| invalid(path, error))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let version = text.trim().strip_prefix("warpraid ").filter(|_| said.status.success());
    version.map(str::to_owned).ok_or_else(|| {
        let error = String::from_utf8_lossy(&said.stderr);
        let first = error.lines().find(|line| !line.is_empty()).unwrap_or("it says nothing of a warpraid");
        invalid(path, format!("it does not take this daemon's options: {first}"))
    })
}

impl Upgrade {
    /// What the program before this one left in the state folder. The note is good once.
    pub(super) fn load(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let note: Option<Note> = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "upgrade.json is not removed");
        }
        let note = note.filter(|note| note.boot == boot_id());
        Self { note: Mutex::new(note), ..Self::default() }
    }

    /// Completes when an upgrade was asked for.
    pub(super) async fn asked_for(&self) {
        self.is_wanted.notified().await;
    }

    /// Whether one is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.wanted.lock().is_some()
    }

    /// A block device was taken over.
    pub(super) fn resumed(&self, disk: String) {
        if let Some(note) = self.note.lock().as_ref() {
            let paused_ms = monotonic_ns().saturating_sub(note.left_ns) / 1_000_000;
            self.resumed.lock().push(UpgradedDiskDoc { disk, paused_ms });
        }
    }

    /// The upgrade this daemon came from.
    pub(super) fn doc(&self) -> Option<UpgradeDoc> {
        self.done.lock().clone()
    }

    /// Becomes the new program; returns only why that did not work. Nothing of this daemon runs any more.
    pub(super) fn exec(&self, state_dir: &Path) -> Result<(), ApiError> {
        let Some((path, mut note)) = self.wanted.lock().take() else { return Ok(()) };
        let mut args = std::env::args_os();
        let name = args.next().unwrap_or_else(|| "warpraid".into());
        let options: Vec<OsString> = args.collect();
        let start = |path: &Path| Command::new(path).arg0(&name).args(&options).exec();
        let error = start(&path);
        tracing::error!(program = %path.display(), %error, "the new program cannot be started; this one starts again");
        note.error = Some(format!("{} cannot be started: {error}", path.display()));
        if let Err(error) = store(state_dir, &note) {
            tracing::warn!(%error, "upgrade.json is not written");
        }
        let error = start(Path::new("/proc/self/exe"));
        Err(io_failed("starting this program again", &error))
    }
}

fn store(state_dir: &Path, note: &Note) -> io::Result<()> {
    replace_file(&state_dir.join(FILE), &serde_json::to_vec_pretty(note)?)
}

impl Daemon {
    /// Leaves every block device to the program that comes, and notes since when clients wait.
    pub(super) async fn leave_for_upgrade(&self) {
        let left_ns = monotonic_ns();
        self.leave_all_ublk().await;
        let Some((_, note)) = &mut *self.upgrade.wanted.lock() else { return };
        note.left_ns = left_ns;
        if let Err(error) = store(&self.options.state_dir, note) {
            tracing::warn!(%error, "upgrade.json is not written: how long clients waited will not be known");
        }
    }

    /// Tells what came of the upgrade this daemon came from, once its disks are served again.
    pub(super) fn note_upgraded(&self) {
        let Some(note) = self.upgrade.note.lock().take() else { return };
        let disks = std::mem::take(&mut *self.upgrade.resumed.lock());
        let doc = UpgradeDoc {
            id: note.id,
            from_version: note.from_version,
            to_version: VERSION.into(),
            paused_ms: disks.iter().map(|disk| disk.paused_ms).max().unwrap_or(0),
            disks,
            error: note.error,
        };
        let message = format!("{doc}");
        self.note(match &doc.error {
            None => NewEvent::new(EventCode::DaemonUpgraded, message),
            Some(_) => NewEvent::new(EventCode::DaemonNotUpgraded, message),
        });
        *self.upgrade.done.lock() = Some(doc);
    }

    /// What an upgrade would cost others than users of block devices.
    fn upgrade_steps(&self, force: bool) -> Result<Vec<String>, ApiError> {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let over_nbd = self.nbd.exposures();
        let mut steps = Vec::new();
        for served in over_nbd.iter().filter(|served| !served.clients.is_empty()) {
            let clients = served.clients.join(", ");
            if !force {
                let message = format!("disk {} is in use over NBD by {clients}", served.disk);
                return Err(ApiError::new(ErrorCode::DiskBusy, message).hint(
                    "connections over NBD end with an upgrade: disconnect them first, or use --force",
                ));
            }
            steps.push(format!("disk {}: the connections over NBD end ({clients})", served.disk));
        }
        for group in &groups {
            let name = group.name();
            if group.shared.is_offline() {
                if !force {
                    let message = format!("group {name} is offline and would not start again by itself");
                    return Err(ApiError::new(ErrorCode::GroupOffline, message).hint(format!(
                        "bring its members back, or warpraid group stop {name} --force first"
                    )));
                }
                steps.push(format!("group {name} is offline: it stays stopped"));
            }
            for slot in group.fillings.lock().keys() {
                steps.push(format!("group {name}: the drive that is to take slot {slot} is filled anew"));
            }
            for served in group.ublk.lock().iter() {
                steps.push(format!("disk {name}/{}: I/O waits until the new program serves it", served.disk));
            }
        }
        Ok(steps)
    }
}

impl Api {
    pub(super) async fn upgrade(&self, how: Request) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        if daemon.upgrade.is_under_way() {
            return Err(ApiError::new(ErrorCode::ShuttingDown, "an upgrade is under way"));
        }
        let path = how.program.map(PathBuf::from).or_else(own_path);
        let path = path.ok_or_else(|| {
            let message = "it is not known where this program was started from";
            ApiError::new(ErrorCode::UpgradeProgram, message).hint("--program PATH")
        })?;
        if !path.is_absolute() {
            return Err(invalid(&path, "a relative path means nothing to the daemon"));
        }
        check_file(&path)?;
        let options: Vec<OsString> = std::env::args_os().skip(1).collect();
        let to = version_of(&path, &options).await?;
        if numbers(&to) < numbers(VERSION) && !how.force {
            let message = format!("{} is older ({to}) than what runs ({VERSION})", path.display());
            return Err(ApiError::new(ErrorCode::UpgradeOlder, message)
                .hint("it may not know what this version wrote; --force if it is known to"));
        }
        let mut steps = daemon.upgrade_steps(how.force)?;
        steps.insert(0, format!("warpraid {VERSION} -> {to}: {} takes over", path.display()));
        if !how.dry_run {
            let id = format!("{:016x}", random_u64());
            let note = Note { id, from_version: VERSION.into(), boot: boot_id(), left_ns: 0, error: None };
            *daemon.upgrade.wanted.lock() = Some((path, note));
            daemon.upgrade.is_wanted.notify_one();
        }
        Ok(ActionDoc::new("upgrade", "daemon", how.dry_run, steps).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &Path, text: &str, mode: u32) -> PathBuf {
        let path = folder.join("program");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn versions_are_in_order() {
        for (older, newer) in [("0.1.0", "0.1.1"), ("0.9.0", "0.10.0"), ("0.1.0", "1.0.0-rc1")] {
            assert!(numbers(older) < numbers(newer), "{older} {newer}");
        }
    }

    #[test]
    fn programs_that_others_can_change_or_that_are_none_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(folder.path(), "#!/bin/sh\n", 0o755);
        assert!(check_file(&path).is_ok());
        for mode in [0o757, 0o644] {
            program(folder.path(), "#!/bin/sh\n", mode);
            assert_eq!(check_file(&path).unwrap_err().code, ErrorCode::UpgradeProgram, "{mode:o}");
        }
        assert!(check_file(folder.path()).is_err() && check_file(Path::new("/no/such")).is_err());
    }

    #[test]
    fn a_program_says_its_version_or_is_refused_with_what_it_said() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |text: &str| {
            let path = program(folder.path(), text, 0o755);
            runtime.block_on(version_of(&path, &["serve".into()]))
        };
        let good = "#!/bin/sh\n[ \"$*\" = 'serve --check' ] && echo warpraid 7.1.2\n";
        assert_eq!(ask(good).unwrap(), "7.1.2");
        let error =
            ask("#!/bin/sh\necho \"error: unexpected argument '--lanes'\" >&2; exit 2\n").unwrap_err();
        assert!(error.message.contains("--lanes"), "{error}");
        assert!(ask("#!/bin/sh\necho something else\n").is_err());
    }

    #[test]
    fn a_note_is_good_once_and_in_its_own_boot() {
        let folder = tempfile::tempdir().unwrap();
        let mut note = Note {
            id: "1".into(),
            from_version: "0.0.9".into(),
            boot: boot_id(),
            left_ns: monotonic_ns(),
            error: None,
        };
        store(folder.path(), &note).unwrap();
        let upgrade = Upgrade::load(folder.path());
        upgrade.resumed("tank/home".into());
        assert_eq!(upgrade.note.lock().as_ref(), Some(&note));
        let resumed = upgrade.resumed.lock().clone();
        assert!(resumed.len() == 1 && resumed[0].paused_ms < 60_000, "{resumed:?}");
        assert!(Upgrade::load(folder.path()).note.lock().is_none());
        note.boot = "another".into();
        store(folder.path(), &note).unwrap();
        assert!(Upgrade::load(folder.path()).note.lock().is_none());
    }
}
