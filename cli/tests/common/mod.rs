//! The real HTTP server over a made-up control side, the real binary, and a plain HTTP caller.

#![allow(dead_code, unreachable_pub)] // Every test file uses its own part.

pub mod fake;
pub mod schema;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use server::control::http;
use server::control::sockets::{Sockets, read_socket_of};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub use fake::Fake;

/// Every verb with arguments it accepts, as the command line would be typed (split at blanks), and whether it changes
/// something.
pub const VERBS: &[(&str, bool)] = &[
    ("status", false),
    ("health", false),
    ("events", false),
    ("events --since 48 --group tank --code member.dropped --limit 2", false),
    ("history", false),
    ("history tank --range 1h", false),
    ("history tank/home --range 24h", false),
    ("alert test", true),
    ("drive list", false),
    ("drive show /dev/nvme3n1", false),
    ("drive wipe /dev/nvme3n1 --yes --expect-uuid S4X9NF0M0000003", true),
    ("drive fail /dev/nvme3n1 --force", true),
    ("fault list", false),
    ("fault inject tank:2 slow --delay-ms 50 --for 2m", true),
    ("fault inject /dev/nvme3n1 flip --range 64M+4K --seed 7 --yes", true),
    ("fault clear 3", true),
    ("fault clear --all", true),
    ("spare list", false),
    ("spare add /dev/nvme9n1 --group tank", true),
    ("spare remove /dev/nvme9n1", true),
    ("group plan --level 5 /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1", true),
    ("group create tank --level raid6 --chunk 64K --yes a b c d", true),
    ("group list", false),
    ("group show tank", false),
    ("group stop tank --force", true),
    ("group assemble tank /dev/nvme0n1", true),
    ("group assemble --all", true),
    ("group delete tank --yes --expect-uuid 01234567-89ab-4def-bedc-ba9876543210", true),
    ("group undelete tank", true),
    ("group replace tank --slot 3 /dev/nvme9n1", true),
    ("group replace tank --old S4X9NF0M0000003 /dev/nvme9n1", true),
    ("group scrub tank --repair", true),
    ("group scrub tank --pause", true),
    ("group scrub tank --show", false),
    ("group set tank --scrub weekly --scrub-window 01:00-05:00", true),
    ("group wait tank --for rebuilt --timeout 10m", false),
    ("disk create tank/home --size 10G", true),
    ("disk list", false),
    ("disk list tank", false),
    ("disk show tank/home", false),
    ("disk expose tank/home --nbd unix:/run/home.sock --read-only", true),
    ("disk unexpose tank/home --nbd unix:/run/home.sock --force", true),
    ("disk resize tank/home --size 20G", true),
    ("disk delete tank/home --yes --expect-uuid 11234567-89ab-4def-bedc-ba9876543211", true),
];

pub fn binary() -> PathBuf {
    env!("CARGO_BIN_EXE_warpraid").into()
}

/// The daemon's control side on sockets in a folder of its own.
pub struct Daemon {
    pub fake: Arc<Fake>,
    pub folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(Fake::default());
        let sockets = Sockets::open(&folder.path().join("admin.sock")).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let control = Arc::clone(&fake);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.block_on(http::serve(control, &sockets, stopped)).unwrap();
        });
        Self { fake, folder, stop: Some(stop), thread: Some(thread) }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    pub fn read_socket(&self) -> PathBuf {
        read_socket_of(&self.socket())
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.fake.calls.lock().unwrap())
    }

    /// Runs the binary against this daemon; stdin is no terminal.
    pub fn run(&self, args: &str) -> Output {
        run(&self.socket(), args)
    }

    /// Stops it and waits for its end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn command(socket: &Path) -> Command {
    let mut command = Command::new(binary());
    command.env_remove("RUST_LOG").env("WARPRAID_SOCKET", socket).stdin(Stdio::null());
    command
}

pub fn run(socket: &Path, args: &str) -> Output {
    run_words(socket, &args.split(' ').collect::<Vec<_>>())
}

pub fn run_words(socket: &Path, args: &[&str]) -> Output {
    command(socket).args(args).output().unwrap()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("the binary was killed")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one envelope on stdout, checked against its schema.
pub fn envelope(output: &Output) -> Value {
    let text = stdout(output);
    let value: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("stdout is not one JSON document ({error}): {text}"));
    schema::check_envelope(&value);
    value
}

/// A request in HTTP, without the client under test; the status and the body.
pub fn http(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    raw(socket, format!("{head}{body}").as_bytes())
}

pub fn raw(socket: &Path, request: &[u8]) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no HTTP answer: {text:?}")), body.to_owned())
}

/// The envelope of an HTTP answer, checked against its schema.
pub fn http_envelope(answer: &(u16, String)) -> Value {
    let value: Value = serde_json::from_str(&answer.1)
        .unwrap_or_else(|error| panic!("{error}: HTTP {} {}", answer.0, answer.1));
    schema::check_envelope(&value);
    assert_eq!(value["ok"] == Value::Bool(true), answer.0 == 200, "{value}");
    value
}
