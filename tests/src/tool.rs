//! Other people's programs: run, checked, found missing with a message, skipped without root.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

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
    command(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program}: {error}; `tests/run --stage tools` installs what is missing")
    })
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
    run("kill", &[&format!("-{name}"), &pid.to_string()]);
}
