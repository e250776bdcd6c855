//! Other people's programs: run, checked, found missing with a message, skipped without root.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The longest any program may run: a time-out, not a measurement.
pub const TOOL_LIMIT: Duration = Duration::from_secs(150);

/// The longest an unmount or detach at the end of a test may take before it is left behind.
pub const CLEANING_MAX: Duration = Duration::from_secs(30);

/// A command found as the system's own tools are: Debian's Python before any other, and the administrator's folders too.
#[must_use]
pub fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("/usr/sbin:/usr/bin:/sbin:/bin:{path}")).env("LC_ALL", "C");
    command
}

/// Runs a tool that must exist, whatever it answers.
#[must_use]
pub fn output(program: &str, arguments: &[&str]) -> Output {
    finish(command(program).args(arguments))
}

/// Runs a command to its end, with no input, within [`TOOL_LIMIT`].
#[must_use]
pub fn finish(command: &mut Command) -> Output {
    let shown = format!("{command:?}");
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own: who runs into the limit is killed with what it started.
    let child = command.process_group(0).spawn();
    let child = child.unwrap_or_else(|error| {
        panic!("{shown}: {error}; `tests/run --stage tools` installs what is missing")
    });
    wait_for(child, &shown)
}

/// Waits for the end of a program whose pipes are ours, within [`TOOL_LIMIT`]; kills it and panics if it takes longer.
///
/// A thread waits, because a program that hangs in the kernel does not even die: the test must go on without it.
#[must_use]
pub fn wait_for(child: Child, shown: &str) -> Output {
    let pid = child.id();
    let (send, receive) = mpsc::channel();
    // Nobody receives when the limit has passed, and then nobody needs to.
    std::thread::spawn(move || drop(send.send(child.wait_with_output())));
    match receive.recv_timeout(TOOL_LIMIT) {
        Ok(output) => output.expect("the child is ours"),
        Err(_) => {
            let group = attempt(command("kill").args(["-KILL", "--", &format!("-{pid}")]), CLEANING_MAX);
            if !group {
                // It has no group of its own.
                signal(pid, "KILL");
            }
            panic!("{shown}: no end within {TOOL_LIMIT:?}");
        }
    }
}

/// Runs a command that cleans up and may have nothing to do: whether it worked, at most `timeout` long.
pub fn attempt(command: &mut Command, timeout: Duration) -> bool {
    let Ok(mut child) = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn() else { return false };
    let since = Instant::now();
    while since.elapsed() < timeout {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _left = end(&mut child, Duration::ZERO);
    false
}

/// Kills a child and reaps it; false if it did not die within `timeout`, as a process that hangs in the kernel.
pub fn end(child: &mut Child, timeout: Duration) -> bool {
    // It may be dead already.
    let _gone = child.kill();
    let since = Instant::now();
    while !matches!(child.try_wait(), Ok(Some(_))) {
        if since.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Runs a tool that must succeed; its standard output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}\n{err}", output.status);
    out
}

/// A path as the UTF-8 text that test folders always are.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test folders have UTF-8 names")
}

/// Whether the test runs as root. If not, notes that it is skipped (`tests/run` prints the list) and says why.
#[must_use]
pub fn is_root_or_skip(test: &str) -> bool {
    let root = run("id", &["-u"]).trim() == "0";
    if !root {
        skip(test, "needs root (loop devices, mount)");
    }
    root
}

/// Notes that a test is skipped, and why.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    if let Some(list) = std::env::var_os("WARPRAID_SKIPPED") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
        file.and_then(|mut file| writeln!(file, "{test}: {why}"))
            .expect("the list of skipped tests is writable");
    }
}

/// Waits until `done`, at most `timeout`, which is a time-out and no measurement.
pub fn wait_until(what: &str, timeout: Duration, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < timeout, "{what}: not within {timeout:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal, named without `SIG`, to a process of ours.
pub fn signal(pid: u32, name: &str) {
    let sent = command("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "SIG{name} to {pid}");
}
