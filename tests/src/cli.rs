//! Runs `warpraid -o json` as a script would, and reads its envelope.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The binary under test: `WARPRAID_BIN`, or the newest build of this workspace, made if there is none.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("WARPRAID_BIN") {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "WARPRAID_BIN={} is not a file", path.display());
            return path;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let candidates = ["release", "debug"].map(|profile| target.join(profile).join("warpraid"));
        let built = |path: &&PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
        if let Some(newest) = candidates.iter().filter(|path| path.is_file()).max_by_key(built) {
            return newest.clone();
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "--release", "-p", "warpraid"])
            .current_dir(&root)
            .status()
            .expect("cargo runs");
        assert!(status.success(), "cargo build --release -p warpraid");
        candidates[0].clone()
    })
}

/// A JSON document with short access to its fields; every method panics with the document if the field is not there.
#[derive(Clone, PartialEq, Debug)]
pub struct Json(pub Value);

impl Json {
    /// The field at a path such as `groups.0.members.2.state`.
    #[must_use]
    pub fn at(&self, path: &str) -> Self {
        let pointer = format!("/{}", path.replace('.', "/"));
        Self(self.0.pointer(&pointer).unwrap_or_else(|| panic!("no {path} in {:#}", self.0)).clone())
    }

    /// A text.
    #[must_use]
    pub fn text(&self, path: &str) -> String {
        let value = self.at(path);
        value.0.as_str().unwrap_or_else(|| panic!("{path} is no text in {:#}", self.0)).to_owned()
    }

    /// A number.
    #[must_use]
    pub fn number(&self, path: &str) -> u64 {
        self.at(path).0.as_u64().unwrap_or_else(|| panic!("{path} is no number in {:#}", self.0))
    }

    /// A list.
    #[must_use]
    pub fn list(&self, path: &str) -> Vec<Self> {
        let value = self.at(path).0;
        let list = value.as_array().unwrap_or_else(|| panic!("{path} is no list in {:#}", self.0));
        list.iter().cloned().map(Self).collect()
    }

    /// Whether the document contains `needle` anywhere, ignoring case.
    #[must_use]
    pub fn mentions(&self, needle: &str) -> bool {
        self.0.to_string().to_lowercase().contains(&needle.to_lowercase())
    }
}

/// What one run of the command line came to.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The command, for messages.
    pub command: String,
    /// Exit code; 128 and the signal's number when it was killed.
    pub exit: i32,
    /// The envelope; null when stdout was no JSON.
    pub envelope: Json,
    /// Standard output as it was.
    pub stdout: String,
    /// Standard error as it was.
    pub stderr: String,
}

impl Answer {
    /// The document of a verb that worked; panics if it did not.
    #[allow(clippy::must_use_candidate)]
    pub fn data(&self) -> Json {
        assert!(self.exit == 0 && self.envelope.at("ok").0 == Value::Bool(true), "{self}");
        self.envelope.at("data")
    }

    /// Asserts that the verb failed with `exit`, said so in the envelope, and names every one of `words`.
    pub fn fails(&self, exit: i32, words: &[&str]) -> &Self {
        assert_eq!(self.exit, exit, "{self}");
        assert_eq!(self.envelope.at("ok").0, Value::Bool(false), "{self}");
        assert!(!self.envelope.text("error.code").is_empty() && !self.message().is_empty(), "{self}");
        for word in words {
            assert!(self.envelope.at("error").mentions(word), "'{word}' is not in {self}");
        }
        self
    }

    /// The message of an error.
    #[must_use]
    pub fn message(&self) -> String {
        self.envelope.text("error.message")
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: exit {}\n{}\n{}", self.command, self.exit, self.stdout, self.stderr)
    }
}

/// Runs the binary with `-o json` and `arguments`; `socket` is what it should talk to. Standard input is no terminal.
#[must_use]
pub fn run<S: AsRef<std::ffi::OsStr>>(socket: &Path, arguments: &[S]) -> Answer {
    run_with_input(socket, arguments, b"")
}

/// As [`run`], with `input` on standard input.
#[must_use]
pub fn run_with_input<S: AsRef<std::ffi::OsStr>>(socket: &Path, arguments: &[S], input: &[u8]) -> Answer {
    let mut command = Command::new(binary());
    command.args(["-o", "json"]).arg("--socket").arg(socket).args(arguments);
    answer(command, input)
}

/// Runs `command` and reads its envelope.
#[must_use]
pub fn answer(mut command: Command, input: &[u8]) -> Answer {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    // A command that does not read its input may be gone already.
    let _unread = child.stdin.take().expect("piped").write_all(input);
    let output = crate::tool::wait_for(child, &shown);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let signal = || std::os::unix::process::ExitStatusExt::signal(&output.status).unwrap_or(0);
    Answer {
        command: shown,
        exit: output.status.code().unwrap_or_else(|| 128 + signal()),
        envelope: Json(serde_json::from_str(&stdout).unwrap_or(Value::Null)),
        stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
