//! Hooks: executables that are run for every event.
//!
//! Every executable of the hooks folder gets each event as JSON on stdin and as `WARPRAID_*` variables. Each hook has its own
//! queue and runs one event at a time, in order, so a hook that hangs delays no other; a run ends after [`RUN_MAX`], with all
//! processes it started. What a hook says goes to the log. A hook that fails is an event, which itself goes to no hook.
//!
//! A hook runs with the daemon's rights, so only files that nobody but root and the daemon's own user can change are run;
//! what is left out for that is told once. Names are those of letters, digits, dashes, underscores and dots, beginning with
//! none of the last: editors' and packagers' left-overs (`x~`, `x.bak`, `x.dpkg-old`) are no hooks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::{Events, NewEvent};
use crate::control::EventCode;
use crate::control::model::{EventDoc, Severity};

/// Longest run of a hook.
pub const RUN_MAX: Duration = Duration::from_secs(30);
/// Events that wait for one hook.
const QUEUE_MAX: usize = 256;
/// Most hooks.
const HOOKS_MAX: usize = 32;
/// What a hook says beyond this is dropped, in bytes.
const SAID_BYTES_MAX: u64 = 4096;

/// The hooks of a folder.
pub struct Hooks {
    folder: PathBuf,
    socket: PathBuf,
    events: Arc<Events>,
    queues: Mutex<BTreeMap<PathBuf, mpsc::Sender<Arc<EventDoc>>>>,
    /// What was told to be unsafe already, with why.
    told: Mutex<BTreeSet<String>>,
}

/// What one run came to: nothing, or why it failed.
pub type Outcome = Result<(), String>;

fn is_hook_name(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    let left_over = [".bak", ".orig", ".old", ".new", ".tmp", ".swp"].iter().any(|end| name.ends_with(end));
    let packaged = [".dpkg-", ".rpm", ".ucf-"].iter().any(|part| name.contains(part));
    plain && !name.is_empty() && !name.starts_with('.') && !left_over && !packaged
}

/// Why this file or folder is not safe to run (from): somebody else can change it.
fn why_unsafe(found: &fs::Metadata) -> Option<String> {
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != 0 && found.uid() != us {
        return Some(format!("it belongs to uid {}", found.uid()));
    }
    match found.mode() & 0o022 {
        0 => None,
        _ => Some(format!("others may write to it (mode {:o})", found.mode() & 0o7777)),
    }
}

impl Hooks {
    /// The hooks in this folder; it need not exist. `socket` is told to them, for their own calls of `warpraid`.
    #[must_use]
    pub fn new(folder: PathBuf, socket: PathBuf, events: Arc<Events>) -> Self {
        Self { folder, socket, events, queues: Mutex::default(), told: Mutex::default() }
    }

    fn tell_unsafe(&self, path: &Path, why: &str) {
        let message = format!("{} is not run: {why}", path.display());
        let is_new = self.told.lock().insert(message.clone());
        if is_new {
            self.events.note(NewEvent::new(EventCode::HookUnsafe, message));
        }
    }

    /// The hooks that are there and safe to run, by name.
    #[must_use]
    pub fn list(&self) -> Vec<PathBuf> {
        let Ok(folder) = fs::metadata(&self.folder) else { return Vec::new() };
        if let Some(why) = why_unsafe(&folder) {
            self.tell_unsafe(&self.folder, &why);
            return Vec::new();
        }
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let named = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_hook_name));
        let mut hooks: Vec<PathBuf> =
            named.map(|entry| entry.path()).filter(|path| self.is_hook(path)).collect();
        hooks.sort();
        hooks.truncate(HOOKS_MAX);
        hooks
    }

    fn is_hook(&self, path: &Path) -> bool {
        let Ok(found) = fs::metadata(path) else { return false };
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return false;
        }
        let why = why_unsafe(&found);
        if let Some(why) = &why {
            self.tell_unsafe(path, why);
        }
        why.is_none()
    }

    /// Hands every event that comes to every hook, until the daemon ends.
    pub async fn run(self: Arc<Self>, mut after: u64) {
        let mut watch = self.events.watch();
        loop {
            watch.mark_unchanged();
            for event in self.events.after(after) {
                after = event.id;
                if goes_to_hooks(&event) {
                    self.hand_out(&event);
                }
            }
            if watch.changed().await.is_err() {
                return;
            }
        }
    }

    fn hand_out(self: &Arc<Self>, event: &Arc<EventDoc>) {
        let hooks = self.list();
        let mut overrun = Vec::new();
        let mut queues = self.queues.lock();
        // A hook that is gone ends its task once its queue is empty.
        queues.retain(|path, _| hooks.contains(path));
        for path in hooks {
            let queue = queues.entry(path.clone()).or_insert_with(|| self.start(path.clone()));
            if queue.try_send(Arc::clone(event)).is_err() {
                overrun.push(path);
            }
        }
        drop(queues);
        for path in overrun {
            let message = format!("{} missed event {}: {QUEUE_MAX} wait already", path.display(), event.id);
            self.events.note(NewEvent::new(EventCode::HookOverrun, message));
        }
    }

    fn start(self: &Arc<Self>, path: PathBuf) -> mpsc::Sender<Arc<EventDoc>> {
        let (sender, mut receiver) = mpsc::channel::<Arc<EventDoc>>(QUEUE_MAX);
        let hooks = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                if let Err(why) = hooks.run_one(&path, &event).await {
                    let message = format!("{} failed on event {}: {why}", path.display(), event.id);
                    hooks.events.note(NewEvent::new(EventCode::HookFailed, message));
                }
            }
        });
        sender
    }

    /// Runs every hook for an event now, and waits: for a test.
    pub async fn run_now(&self, event: &EventDoc) -> Vec<(PathBuf, Outcome)> {
        let mut runs = Vec::new();
        for path in self.list() {
            let outcome = self.run_one(&path, event).await;
            runs.push((path, outcome));
        }
        runs
    }

    /// Runs a hook for an event.
    ///
    /// # Errors
    /// Why that is no success, in words.
    async fn run_one(&self, path: &Path, event: &EventDoc) -> Outcome {
        // It may have been changed since it was queued.
        if !self.is_hook(path) {
            return Err("it is no executable that only we can change".into());
        }
        let mut command = Command::new(path);
        command.env_clear().envs(variables(event)).env("WARPRAID_SOCKET", &self.socket);
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own, so that what it started ends with it.
        let mut child = command
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot run it: {error}"))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        let finished = tokio::time::timeout(RUN_MAX, talk(&mut child, event)).await;
        let Ok((status, said)) = finished else {
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            // It was killed: this takes no time worth bounding.
            drop(child.wait().await);
            return Err(format!("it did not end within {} s and was killed", RUN_MAX.as_secs()));
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for line in String::from_utf8_lossy(&said).lines() {
            tracing::info!(hook = %name, event = event.id, "{}", crate::control::names::shown(line));
        }
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let last = String::from_utf8_lossy(&said);
                let last =
                    last.lines().last().map(|line| format!(": {}", crate::control::names::shown(line)));
                Err(format!("{status}{}", last.unwrap_or_default()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What hooks say is no news to hooks: a failing one would call itself for ever.
fn goes_to_hooks(event: &EventDoc) -> bool {
    !event.code.as_str().starts_with("hook.") && event.code != EventCode::AlertTest.as_str()
}

/// Gives the hook its event and takes what it says, both at the same time; a hook that reads nothing is fine.
async fn talk(child: &mut Child, event: &EventDoc) -> (std::io::Result<std::process::ExitStatus>, Vec<u8>) {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let give = async {
        if let Some(mut stdin) = stdin {
            let mut text = serde_json::to_vec(event).unwrap_or_default();
            text.push(b'\n');
            drop(stdin.write_all(&text).await);
        }
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let take_out = async {
        if let Some(mut stdout) = stdout {
            drop((&mut stdout).take(SAID_BYTES_MAX).read_to_end(&mut out).await);
            drop(tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await);
        }
    };
    let take_err = async {
        if let Some(mut stderr) = stderr {
            drop((&mut stderr).take(SAID_BYTES_MAX).read_to_end(&mut err).await);
            drop(tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await);
        }
    };
    let ((), (), (), status) = tokio::join!(give, take_out, take_err, child.wait());
    out.extend(err);
    (status, out)
}

/// The environment of a hook. Only what is known is set.
fn variables(event: &EventDoc) -> Vec<(&'static str, String)> {
    let severity = match event.severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    };
    let health = event.health.and_then(|health| serde_json::to_value(health).ok());
    let health = health.and_then(|health| health.as_str().map(str::to_owned));
    let code = event.problem.as_ref().unwrap_or(&event.code);
    let known = [
        ("PATH", Some("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned())),
        ("WARPRAID_ID", Some(event.id.to_string())),
        ("WARPRAID_TIME", Some(event.at_unix_s.to_string())),
        ("WARPRAID_EVENT", Some(event.code.to_string())),
        ("WARPRAID_CODE", Some(code.to_string())),
        ("WARPRAID_SEVERITY", Some(severity.to_owned())),
        ("WARPRAID_MESSAGE", Some(event.message.clone())),
        ("WARPRAID_GROUP", event.group.clone()),
        ("WARPRAID_DISK", event.disk.clone()),
        ("WARPRAID_HEALTH", health),
        ("WARPRAID_SLOT", event.slot.map(|slot| slot.to_string())),
        ("WARPRAID_DRIVE", event.drive.clone()),
        ("WARPRAID_SERIAL", event.serial.clone()),
        ("WARPRAID_WHY", event.why.clone()),
        ("WARPRAID_RISK", event.risk.clone()),
        ("WARPRAID_NEXT", event.next.clone()),
    ];
    // No variable can hold a NUL, and none of ours comes with one but by a drive's own text.
    known.into_iter().filter_map(|(name, value)| value.map(|value| (name, value.replace('\0', "")))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        dir: tempfile::TempDir,
        hooks: Arc<Hooks>,
        events: Arc<Events>,
    }

    fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("hooks.d");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let events = Arc::new(Events::open(dir.path()).unwrap());
        let hooks = Arc::new(Hooks::new(folder, "/run/x.sock".into(), Arc::clone(&events)));
        World { dir, hooks, events }
    }

    impl World {
        fn hook(&self, name: &str, script: &str, mode: u32) -> PathBuf {
            let path = self.dir.path().join("hooks.d").join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
        }

        fn out(&self, name: &str) -> String {
            self.dir.path().join(name).display().to_string()
        }
    }

    async fn until(mut is_so: impl FnMut() -> bool) {
        for _ in 0..1000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it did not come true within 20 s");
    }

    #[tokio::test]
    async fn hooks_get_every_event_in_order_with_environment_and_json() {
        let w = world();
        let out = w.out("seen");
        let fds = w.out("fds");
        let script = format!(
            "read -r line; echo \"$WARPRAID_ID $WARPRAID_EVENT $WARPRAID_SLOT $WARPRAID_SERIAL $line\" >> {out}\n\
             ls -l /proc/self/fd > {fds}"
        );
        let drive = w.out("drive.img");
        let _held = std::fs::File::create(&drive).unwrap();
        w.hook("10-note", &script, 0o755);
        let task = tokio::spawn(Arc::clone(&w.hooks).run(0));
        for i in 0..5 {
            let event = NewEvent::new(EventCode::MemberDropped, format!("m{i}\" $(x)"));
            w.events.note(event.slot(3).drive(None, Some("S1".into())));
        }
        until(|| w.text("seen").lines().count() == 5).await;
        for (i, line) in w.text("seen").lines().enumerate() {
            let (words, json) = line.split_at(line.find('{').unwrap());
            assert_eq!(words, format!("{} member.dropped 3 S1 ", i + 1));
            let event: EventDoc = serde_json::from_str(json).unwrap();
            assert_eq!(event.message, format!("m{i}\" $(x)"));
        }
        // A hook must never hold a drive open. (Descriptors that this process itself was given are not ours to close.)
        until(|| w.text("fds").contains("/dev/null") || w.text("fds").lines().count() > 3).await;
        assert!(!w.text("fds").contains("drive.img"), "{}", w.text("fds"));
        task.abort();
    }

    #[tokio::test]
    async fn a_hook_that_fails_is_told_once_and_calls_nobody() {
        let w = world();
        w.hook("bad", "echo broken pipe dream >&2; exit 3", 0o755);
        w.hook("noise", "yes | head -c 100000; exit 0", 0o755);
        let task = tokio::spawn(Arc::clone(&w.hooks).run(0));
        w.events.note(NewEvent::new(EventCode::OperatorVerb, "x"));
        until(|| w.events.after(1).len() == 1).await;
        let failed = w.events.after(1);
        assert_eq!(failed[0].code, "hook.failed");
        assert!(failed[0].message.contains("exit status: 3: broken pipe dream"), "{}", failed[0].message);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(w.events.newest(), 2, "the failure of a hook goes to no hook");
        let runs = w.hooks.run_now(&w.events.after(0)[0]).await;
        assert_eq!(runs.iter().map(|(_, outcome)| outcome.is_ok()).collect::<Vec<_>>(), [false, true]);
        task.abort();
    }

    #[tokio::test]
    async fn what_others_can_change_is_not_run() {
        let w = world();
        w.hook("open", "true", 0o777);
        w.hook("plain", "true", 0o644);
        w.hook(".hidden", "true", 0o755);
        w.hook("x.bak", "true", 0o755);
        w.hook("x~", "true", 0o755);
        let good = w.hook("good.sh", "true", 0o700);
        assert_eq!(w.hooks.list(), std::slice::from_ref(&good));
        assert_eq!(w.hooks.list(), [good]);
        let told: Vec<String> = w.events.after(0).iter().map(|event| event.message.clone()).collect();
        assert_eq!(told.len(), 1, "told once: {told:?}");
        assert!(told[0].contains("open is not run: others may write to it (mode 777)"), "{told:?}");
        let folder = w.dir.path().join("hooks.d");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(w.hooks.list().is_empty());
        fs::remove_dir_all(&folder).unwrap();
        assert!(w.hooks.list().is_empty(), "no folder is no error");
    }

    #[tokio::test]
    async fn a_slow_hook_delays_no_other_and_misses_only_what_its_queue_cannot_hold() {
        let w = world();
        let out = w.out("fast");
        w.hook("slow", "exec sleep 1000", 0o755);
        w.hook("fast", &format!("echo x >> {out}"), 0o755);
        let task = tokio::spawn(Arc::clone(&w.hooks).run(0));
        w.events.note(NewEvent::new(EventCode::OperatorVerb, "x"));
        w.events.note(NewEvent::new(EventCode::OperatorVerb, "y"));
        until(|| w.text("fast").lines().count() == 2).await;
        task.abort();
    }
}
