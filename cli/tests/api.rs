//! The API itself: names, sockets and their users, nonsense, long verbs, the documents about it.

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Daemon, VERBS, code, envelope, http, http_envelope, stderr};
use serde_json::{Value, json};
use server::control::routes::{OPERATIONS, Verb};

const BAD_NAMES: &[&str] = &[
    "../x",
    "/dev/nvme0n1",
    ".",
    "",
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
    "a b",
    "a\nb",
    "-rf",
    "\u{1f600}",
    "a:b",
    "a\u{301}",
];

#[test]
fn ad_02_bad_names_by_the_command_line() {
    let daemon = Daemon::start();
    let long = "a".repeat(300);
    for name in BAD_NAMES.iter().chain([&long.as_str()]) {
        let disk = format!("tank/{name}");
        let verbs: &[&[&str]] = &[
            &["group", "create", "--level", "5", "--yes", "--", name, "a", "b", "c"],
            &["group", "show", "--", name],
            &["group", "delete", "--yes", "--expect-uuid", "u", "--", name],
            &["group", "stop", "--", name],
            &["group", "assemble", "--", name],
            &["group", "undelete", "--", name],
            &["group", "wait", "--", name],
            &["disk", "list", "--", name],
            &["disk", "create", "--size", "1G", "--", &disk],
            &["disk", "show", "--", &disk],
            &["disk", "expose", "--nbd", "unix:/x", "--", &disk],
        ];
        for words in verbs {
            let words: Vec<&str> = ["-o", "json"].iter().chain(*words).copied().collect();
            let output = common::run_words(&daemon.socket(), &words);
            assert_eq!(code(&output), 2, "{words:?}");
            let envelope = envelope(&output);
            let error = envelope["error"]["code"].as_str().unwrap();
            assert!(["group.name.invalid", "disk.name.invalid"].contains(&error), "{words:?}: {envelope}");
        }
    }
    assert_eq!(daemon.calls(), Vec::<String>::new());
}

#[test]
fn ad_02_bad_names_by_the_api() {
    let daemon = Daemon::start();
    let long = "a".repeat(300);
    for name in BAD_NAMES.iter().chain([&long.as_str(), &"a\0b"]) {
        let escaped: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let create = json!({ "name": name, "level": "raid5", "drives": ["a"], "yes": true }).to_string();
        let cut = json!({ "group": "tank", "name": name, "size_bytes": 1 }).to_string();
        let cut_from = json!({ "group": name, "name": "home", "size_bytes": 1 }).to_string();
        let named = json!({ "group": name }).to_string();
        let mut requests = vec![
            ("POST", "/v1/groups".to_owned(), create),
            ("POST", "/v1/disks".to_owned(), cut),
            ("POST", "/v1/disks".to_owned(), cut_from),
            ("POST", "/v1/groups:assemble".to_owned(), named.clone()),
            ("POST", "/v1/groups:undelete".to_owned(), named),
            ("GET", format!("/v1/disks?group={escaped}"), String::new()),
        ];
        if !name.is_empty() {
            requests.push(("GET", format!("/v1/groups/{escaped}"), String::new()));
            requests.push(("GET", format!("/v1/disks/tank/{escaped}"), String::new()));
            requests.push(("POST", format!("/v1/groups/{escaped}/stop"), String::new()));
        }
        for (method, path, body) in requests {
            let answer = http(&daemon.socket(), method, &path, &body);
            assert_eq!(answer.0, 400, "{name:?} {path}: {}", answer.1);
            let envelope = http_envelope(&answer);
            assert!(envelope["error"]["code"].as_str().unwrap().ends_with(".name.invalid"), "{envelope}");
        }
    }
    assert_eq!(daemon.calls(), Vec::<String>::new());
}

#[test]
fn nonsense_is_answered_in_the_envelope_and_the_daemon_lives_on() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let large = "x".repeat(70_000);
    for (method, path, body, status, error) in [
        ("GET", "/", "", 404, "route.unknown"),
        ("GET", "/v1/nothing", "", 404, "route.unknown"),
        ("GET", "/v1/groups/tank/", "", 404, "route.unknown"),
        ("DELETE", "/v1/groups/tank", "", 400, "method.unknown"),
        ("GET", "/v1/groups/tank/stop", "", 400, "method.unknown"),
        ("BREW", "/v1/status", "", 400, "method.unknown"),
        ("POST", "/v1/groups/tank/stop", "{", 400, "request.invalid"),
        ("POST", "/v1/groups/tank/stop", "[]", 400, "request.invalid"),
        ("POST", "/v1/groups/tank/stop", r#"{"dryrun":true}"#, 400, "request.invalid"),
        ("POST", "/v1/groups/tank/stop", r#"{"force":1}"#, 400, "request.invalid"),
        ("POST", "/v1/groups/tank/stop", &large, 400, "request.invalid"),
        ("POST", "/v1/groups/tank/replace", r#"{"new_drive":"x"}"#, 400, "request.invalid"),
        (
            "POST",
            "/v1/groups/tank/replace",
            r#"{"new_drive":"x","slot":1,"old_drive":"y"}"#,
            400,
            "request.invalid",
        ),
        ("POST", "/v1/groups:assemble", "", 400, "request.invalid"),
        ("POST", "/v1/groups:assemble", r#"{"group":"tank","all":true}"#, 400, "request.invalid"),
        ("POST", "/v1/disks", r#"{"group":"tank","name":"a","size_bytes":-1}"#, 400, "request.invalid"),
        ("POST", "/v1/groups/tank/set", "{}", 400, "group.setting.invalid"),
        ("GET", "/v1/groups/tank/wait", "", 400, "request.invalid"),
        ("GET", "/v1/groups/tank/wait?for=ever", "", 400, "request.invalid"),
        ("GET", "/v1/groups/%ff%fe", "", 400, "request.invalid"),
        ("GET", "/v1/drives/%00", "", 400, "drive.invalid"),
    ] {
        let answer = http(&socket, method, path, body);
        assert_eq!(answer.0, status, "{method} {path}: {}", answer.1);
        assert_eq!(http_envelope(&answer)["error"]["code"], error, "{method} {path}");
    }
    // Not even HTTP: the connection ends, with or without an answer.
    for garbage in [&b"\0\0\0\0"[..], b"NBDMAGIC", &[0xff; 100_000]] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    }
    assert_eq!(http(&socket, "GET", "/v1/groups", "").0, 200);
    assert_eq!(daemon.calls(), ["groups"]);
}

#[test]
fn a_verb_that_dies_is_an_error_and_not_the_end() {
    let daemon = Daemon::start();
    let body = json!({ "name": "dies", "level": "raid5", "drives": ["a"], "yes": true }).to_string();
    let answer = http(&daemon.socket(), "POST", "/v1/groups", &body);
    assert_eq!(answer.0, 500);
    assert_eq!(http_envelope(&answer)["error"]["code"], "internal");
    assert_eq!(http(&daemon.socket(), "GET", "/v1/groups", "").0, 200);
}

#[test]
fn long_waits_hold_up_nobody() {
    let mut daemon = Daemon::start();
    let waiting: Vec<UnixStream> = (0..40)
        .map(|_| {
            let mut stream = UnixStream::connect(daemon.socket()).unwrap();
            stream.write_all(b"GET /v1/groups/never/wait?for=rebuilt HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert_eq!(http(&daemon.socket(), "GET", "/v1/groups", "").0, 200);
    assert_eq!(code(&daemon.run("group list")), 0);
    let started = Instant::now();
    daemon.stop();
    assert!(started.elapsed() < Duration::from_secs(30), "a waiting client must not keep the daemon");
    drop(waiting);
    assert!(!daemon.socket().exists() && !daemon.read_socket().exists());
}

#[test]
fn a_caller_that_goes_away_does_not_stop_a_change_half_way() {
    let daemon = Daemon::start();
    let body = json!({ "name": "slow", "level": "raid5", "drives": ["a"], "yes": true }).to_string();
    let head = format!("POST /v1/groups HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(60);
    while daemon.fake.calls.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the verb never ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(daemon.calls()[0].starts_with("group create slow"));
}

#[test]
fn the_read_only_socket_only_looks() {
    let daemon = Daemon::start();
    for (args, is_change) in VERBS {
        let output = common::run(&daemon.read_socket(), args);
        let expected = if *is_change { 6 } else { 0 };
        assert_eq!(code(&output), expected, "{args}: {}", stderr(&output));
        if *is_change {
            assert!(stderr(&output).contains("read-only"), "{args}: {}", stderr(&output));
            assert!(stderr(&output).contains(&daemon.socket().display().to_string()), "names the way on");
        }
    }
    assert!(daemon.calls().iter().all(|call| !call.contains("yes")), "no change may arrive");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/v1/groups", "/v1/status", "/openapi.json"] {
            let answer = http(&daemon.read_socket(), method, path, "{}");
            assert_eq!(answer.0, 403, "{method} {path}");
            assert_eq!(http_envelope(&answer)["error"]["code"], "not.permitted");
        }
    }
}

/// The binary as another user; none where this process may not become one.
fn as_nobody(
    daemon: &Daemon,
    groups: &str,
    socket: &std::path::Path,
    args: &str,
) -> Option<std::process::Output> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    // A copy where everybody can reach it: the build folder may lie under a private one.
    let copy = daemon.folder.path().join("warpraid");
    if !copy.exists() {
        std::fs::copy(common::binary(), &copy).unwrap();
        std::fs::set_permissions(daemon.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", groups, "--"])
        .arg(&copy)
        .args(args.split(' '))
        .env("WARPRAID_SOCKET", socket)
        .env_remove("RUST_LOG")
        .stdin(std::process::Stdio::null())
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: setpriv: {error}");
            None
        }
    }
}

#[test]
fn ad_03_another_user_gets_nothing_through_the_admin_socket() {
    let daemon = Daemon::start();
    for (args, is_change) in VERBS {
        // Neither socket may be used: 0600 and 0660.
        let Some(output) = as_nobody(&daemon, "--clear-groups", &daemon.socket(), args) else { return };
        let expected = if *args == "health" { 3 } else { 6 };
        assert_eq!(code(&output), expected, "{args}: {}", stderr(&output));
        assert!(stderr(&output).contains("uid 65534 may not use"), "{args}: {}", stderr(&output));
        // In the group of the read-only socket: looking works, also by way of the admin socket's name.
        let output = as_nobody(&daemon, "--groups=0", &daemon.socket(), args).unwrap();
        assert_eq!(code(&output), if *is_change { 6 } else { 0 }, "{args}: {}", stderr(&output));
    }
    let asked = daemon.calls();
    assert_eq!(asked.len(), VERBS.iter().filter(|(_, is_change)| !is_change).count(), "{asked:?}");
}

#[test]
fn ad_03_the_peer_is_checked_even_where_the_mode_lets_it_in() {
    let daemon = Daemon::start();
    std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    for (args, _) in VERBS {
        let Some(output) = as_nobody(&daemon, "--clear-groups", &daemon.socket(), args) else { return };
        let expected = if *args == "health" { 3 } else { 6 };
        assert_eq!(code(&output), expected, "{args}: {}", stderr(&output));
        assert!(stderr(&output).contains("serves root and uid 0 only"), "{args}: {}", stderr(&output));
        let json =
            as_nobody(&daemon, "--clear-groups", &daemon.socket(), &format!("{args} -o json")).unwrap();
        assert_eq!(envelope(&json)["error"]["code"], "not.permitted", "{args}");
    }
    assert_eq!(daemon.calls(), Vec::<String>::new());
}

/// Compares a file under `docs/` with what the code makes; `WARPRAID_WRITE_DOCS=1` writes it instead.
fn same_as_file(name: &str, text: &str) {
    let path = common::schema::docs().join(name);
    if std::env::var_os("WARPRAID_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(file == text, "docs/{name} is out of date: run the tests once with WARPRAID_WRITE_DOCS=1");
}

#[test]
fn the_documents_about_the_api_agree_with_it() {
    for (name, schema) in server::control::model::document_schemas() {
        let mut text = serde_json::to_string_pretty(&schema).unwrap();
        text.push('\n');
        same_as_file(&format!("schemas/{name}.json"), &text);
    }
    let daemon = Daemon::start();
    let (status, served) = http(&daemon.socket(), "GET", "/openapi.json", "");
    assert_eq!(status, 200);
    same_as_file("openapi.json", &served);
    let document: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let listed: usize = paths.values().map(|methods| methods.as_object().unwrap().len()).sum();
    assert_eq!(listed, OPERATIONS.len());
    for row in OPERATIONS {
        let (method, http_method) = if row.verb == Verb::Look { ("get", "GET") } else { ("post", "POST") };
        let described = &paths[row.path][method];
        assert_eq!(described["operationId"], row.command.replace(' ', "_"));
        // Whatever the path is filled with, it is a page of the API.
        let path = row.path.replace("{drive}", "x").replace("{group}", "tank").replace("{disk}", "home");
        let answer = http(&daemon.socket(), http_method, &path, "");
        let error = &http_envelope(&answer)["error"]["code"];
        assert!(error != "route.unknown" && error != "method.unknown", "{path}: {error}");
        assert_eq!(described.get("requestBody").is_some(), row.verb == Verb::Change, "{path}");
    }
    // Every reference leads somewhere.
    let mut todo = vec![&document];
    let mut references = 0;
    while let Some(value) = todo.pop() {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(to)) = object.get("$ref") {
                    assert!(document.pointer(to.trim_start_matches('#')).is_some(), "{to}");
                    references += 1;
                }
                todo.extend(object.values());
            }
            Value::Array(array) => todo.extend(array),
            _ => {}
        }
    }
    assert!(references > OPERATIONS.len());
}
