//! Every verb of the command line against the real HTTP server: both formats, exit codes, confirmations, help.

mod common;

use common::fake::Scene;
use common::{Daemon, VERBS, code, envelope, stderr, stdout};
use server::control::{ApiError, ErrorCode, Exit};

#[test]
fn every_verb_answers_people_and_programs() {
    let daemon = Daemon::start();
    for (args, is_change) in VERBS {
        let human = daemon.run(args);
        assert_eq!(code(&human), 0, "{args}: {}", stderr(&human));
        assert!(!stdout(&human).trim().is_empty(), "{args}");
        assert!(!stdout(&human).contains("paper"), "a warning is no result: {args}");
        if *args != "status" {
            assert!(stderr(&human).contains("warning: this daemon is made of paper"), "{args}");
        }
        let json = daemon.run(&format!("{args} -o json"));
        assert_eq!(code(&json), 0, "{args}");
        assert_eq!(stderr(&json), "", "{args}");
        assert_eq!(envelope(&json)["ok"], true);
        // Both runs asked for the same.
        let calls = daemon.calls();
        assert_eq!(calls.len(), 2, "{args}: {calls:?}");
        assert_eq!(calls[0], calls[1]);
        if *is_change && !args.starts_with("group plan") {
            let dry = daemon.run(&format!("{args} --dry-run"));
            assert_eq!(code(&dry), 0, "{args}: {}", stderr(&dry));
            assert!(stdout(&dry).contains("nothing was written"), "{args}: {}", stdout(&dry));
            assert!(daemon.calls()[0].contains("dry_run: true"), "{args}");
        }
    }
}

#[test]
fn every_verb_in_every_state_keeps_to_its_schema() {
    let daemon = Daemon::start();
    for scene in [Scene::Healthy, Scene::Degraded, Scene::Rebuilding, Scene::Offline, Scene::Empty] {
        *daemon.fake.scene.lock().unwrap() = scene;
        for (args, _) in VERBS {
            assert_eq!(envelope(&daemon.run(&format!("{args} -o json")))["ok"], true, "{args} {scene:?}");
        }
    }
}

#[test]
fn explain_needs_no_daemon_and_knows_its_neighbours() {
    let nowhere = std::path::Path::new("/nonexistent/admin.sock");
    let list = common::run(nowhere, "explain -o json");
    let codes = envelope(&list)["data"]["codes"].as_array().unwrap().len();
    assert!(codes > 80, "{codes}");
    for code in ["group.degraded", "drive.used", "member.dropped"] {
        let json = envelope(&common::run(nowhere, &format!("explain {code} -o json")));
        assert_eq!(json["data"]["code"], code);
        let human = stdout(&common::run(nowhere, &format!("explain {code}")));
        assert!(
            ["MEANS   ", "RISK    ", "DO      1. ", "EXAMPLE "].iter().all(|word| human.contains(word)),
            "{human}"
        );
    }
    let unknown = common::run(nowhere, "explain group.degarded");
    assert_eq!(code(&unknown), 4);
    assert!(stderr(&unknown).contains("did you mean group.degraded"), "{}", stderr(&unknown));
    assert_eq!(envelope(&common::run(nowhere, "explain nonsense -o json"))["error"]["code"], "code.unknown");
}

#[test]
fn events_are_followed_one_envelope_a_line_and_end_at_their_limit() {
    let daemon = Daemon::start();
    let output = daemon.run("events --follow --since 44 -n 3 -o json");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 3, "{text}");
    for (i, line) in lines.iter().enumerate() {
        common::schema::check_envelope(line);
        assert_eq!(line["data"]["id"], 45 + i);
    }
    assert_eq!(code(&daemon.run("events --since yesterday")), 2);
}

#[test]
fn what_is_typed_is_what_is_asked_for() {
    let daemon = Daemon::start();
    let asked = |args: &str| {
        let output = daemon.run(args);
        assert_eq!(code(&output), 0, "{args}: {}", stderr(&output));
        daemon.calls().remove(0)
    };
    let here = std::env::current_dir().unwrap().display().to_string();
    assert_eq!(
        asked("group create tank --level RAID5 --chunk 128k --init zero --yes ./d0 /dev/../dev/x S4X9"),
        format!(
            "group create tank GroupCreate {{ name: \"tank\", level: Raid5, chunk_bytes: Some(131072), drives: \
            [\"{here}/d0\", \"/dev/../dev/x\", \"S4X9\"], init: Zero, write_mostly: [], yes: true, dry_run: false }}"
        )
    );
    assert_eq!(
        asked("group assemble --all d0 --force --yes --expect-uuid u"),
        "group assemble all GroupAssemble { group: None, all: true, drives: [\"d0\"], keep: None, force: true, \
        expect_uuid: Some(\"u\"), yes: true, dry_run: false }"
    );
    assert_eq!(
        asked("group replace tank --slot 3 S1"),
        "group replace tank GroupReplace { slot: Some(3), old_drive: None, new_drive: \"S1\", now: false, dry_run: false }"
    );
    assert_eq!(
        asked("group wait tank --for synced --timeout 90s"),
        "group wait tank GroupWait { what: Synced, timeout_s: Some(90) }"
    );
    assert_eq!(asked("group wait tank"), "group wait tank GroupWait { what: Healthy, timeout_s: None }");
    assert_eq!(asked("disk list"), "disks None");
    assert_eq!(asked("disk list tank"), "disks Some(\"tank\")");
    let odd = common::run_words(&daemon.socket(), &["drive", "show", "/dev/a b?c#d%2Fe&f=\u{e4}"]);
    assert_eq!(code(&odd), 0);
    assert_eq!(daemon.calls(), ["drive /dev/a b?c#d%2Fe&f=\u{e4}"]);
    assert_eq!(
        asked("disk create tank/home --size 1T"),
        "disk create tank/home DiskCreate { group: \"tank\", name: \"home\", size_bytes: 1099511627776, dry_run: false }"
    );
    assert_eq!(
        asked("disk unexpose tank/home"),
        "disk unexpose tank/home DiskUnexpose { address: None, force: false, dry_run: false }"
    );
}

#[test]
fn exit_codes_are_those_of_the_table() {
    let daemon = Daemon::start();
    for &error in ErrorCode::ALL {
        *daemon.fake.refusal.lock().unwrap() =
            Some(ApiError::new(error, format!("no, because of {error}")).hint("try something else"));
        let human = daemon.run("group show tank");
        assert_eq!(code(&human), i32::from(error.exit().code()), "{error}");
        assert_eq!(stdout(&human), "", "{error}");
        assert_eq!(stderr(&human), format!("error: no, because of {error}\nhint: try something else\n"));
        let json = daemon.run("group show tank -o json");
        assert_eq!(code(&json), i32::from(error.exit().code()), "{error}");
        let envelope = envelope(&json);
        assert_eq!(envelope["error"]["code"], error.as_str());
        assert_eq!(envelope["error"]["hint"], "try something else");
        assert_eq!(envelope["schema"]["name"], "warpraid.error");
    }
    for exit in Exit::ALL {
        let error = *ErrorCode::ALL.iter().find(|code| code.exit() == exit).unwrap();
        *daemon.fake.refusal.lock().unwrap() = Some(ApiError::new(error, "no"));
        for (args, _) in VERBS.iter().filter(|(args, _)| *args != "health") {
            assert_eq!(code(&daemon.run(args)), i32::from(exit.code()), "{args}");
        }
        assert_eq!(code(&daemon.run("health")), 3, "health knows only ok, warning, critical, unknown");
    }
}

#[test]
fn health_is_an_exit_code() {
    let daemon = Daemon::start();
    for (scene, expected, word) in
        [(Scene::Healthy, 0, "OK"), (Scene::Degraded, 1, "WARNING"), (Scene::Offline, 2, "CRITICAL")]
    {
        *daemon.fake.scene.lock().unwrap() = scene;
        let human = daemon.run("health");
        assert_eq!(code(&human), expected);
        assert!(stdout(&human).starts_with(&format!("{word}: ")), "{}", stdout(&human));
        let json = daemon.run("health -o json");
        assert_eq!(code(&json), expected);
        assert_eq!(envelope(&json)["data"]["health"], word.to_lowercase());
    }
}

#[test]
fn without_a_daemon_every_verb_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dead = folder.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for socket in [folder.path().join("none.sock"), folder.path().join("no/folder.sock"), dead, file] {
        for (args, _) in VERBS {
            let expected = if *args == "health" { 3 } else { 5 };
            let human = common::run(&socket, args);
            assert_eq!(code(&human), expected, "{args}: {}", stderr(&human));
            assert_eq!(stdout(&human), "", "{args}");
            assert!(stderr(&human).contains(&socket.display().to_string()), "{args}: {}", stderr(&human));
            assert!(stderr(&human).contains("hint: "), "{args}");
            let json = common::run(&socket, &format!("{args} -o json"));
            assert_eq!(code(&json), expected, "{args}");
            assert_eq!(envelope(&json)["error"]["code"], "daemon.unreachable", "{args}");
        }
    }
}

#[test]
fn something_else_on_the_socket_is_not_taken_for_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    for (name, answer, expected) in [
        ("a.sock", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", 1),
        ("e.sock", "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"ok\":true}", 1),
        ("f.sock", "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", 1),
        ("b.sock", "SSH-2.0-x\r\n", 5),
        ("c.sock", "", 5),
        ("d.sock", "HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"ok\":", 5),
    ] {
        let path = folder.path().join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let output = common::run(&path, "group list -o json");
        assert_eq!(code(&output), expected, "{name}: {}", stdout(&output));
        assert!(envelope(&output)["error"]["hint"].is_string());
        thread.join().unwrap();
    }
}

#[test]
fn usage_errors_are_envelopes_too() {
    let daemon = Daemon::start();
    for args in [
        "group",
        "group creat",
        "group show",
        "group replace tank NEW",
        "group replace tank --slot 1 --old x NEW",
        "group replace tank --slot 300 NEW",
        "disk expose",
        "disk expose tank/home --ublk --nbd unix:x",
        "drive show a b",
        "group list --bogus",
        "-o",
        "status -o yaml",
    ] {
        let human = daemon.run(args);
        assert_eq!(code(&human), 2, "{args}");
        assert_eq!(stdout(&human), "", "{args}");
        assert!(!stderr(&human).is_empty(), "{args}");
        if args.contains("-o") && !args.contains("bogus") {
            continue;
        }
        let json = daemon.run(&format!("-o json {args}"));
        assert_eq!(code(&json), 2, "{args}");
        assert_eq!(envelope(&json)["error"]["code"], "usage.invalid", "{args}");
    }
    for (args, error) in [
        ("group plan --level 4 a b c", "group.level.invalid"),
        ("group create tank --level 5 --chunk 48K a b c", "group.chunk.invalid"),
        ("group create tank --level 5 --chunk 1G a b c", "group.chunk.invalid"),
        ("group create tank --level 5 --yes a b a", "drive.named.twice"),
        ("disk create tank/home --size 10GB", "disk.size.invalid"),
        ("disk create tank/home --size 0", "disk.size.invalid"),
        ("disk resize tank/home --size -1", "usage.invalid"),
        ("disk create home --size 10G", "disk.name.invalid"),
        ("disk expose tank/home --nbd tcp:localhost", "disk.expose.address.invalid"),
        ("group wait tank --timeout soon", "usage.invalid"),
        ("status --log =x=y=", "usage.invalid"),
    ] {
        let json = daemon.run(&format!("{args} -o json"));
        assert_eq!(code(&json), 2, "{args}: {}", stdout(&json));
        assert_eq!(envelope(&json)["error"]["code"], error, "{args}");
    }
    assert_eq!(daemon.calls(), Vec::<String>::new());
}

#[test]
fn ad_06_destructive_verbs_without_a_terminal_need_the_words() {
    let daemon = Daemon::start();
    let uuid = common::fake::GROUP_UUID;
    for (args, missing) in [
        ("group create tank --level 5 a b c".to_owned(), "--yes"),
        ("group delete tank".to_owned(), "--yes and --expect-uuid UUID"),
        ("group delete tank --yes".to_owned(), "--expect-uuid UUID"),
        (format!("group delete tank --expect-uuid {uuid}"), "--yes"),
        ("disk delete tank/home".to_owned(), "--yes and --expect-uuid UUID"),
        ("disk delete tank/home --yes --force".to_owned(), "--expect-uuid UUID"),
        ("drive wipe /dev/nvme3n1".to_owned(), "--yes and --expect-uuid UUID"),
        ("drive wipe /dev/nvme3n1 --yes".to_owned(), "--expect-uuid UUID"),
        ("group assemble tank --force".to_owned(), "--yes and --expect-uuid UUID"),
        ("group assemble --all --force --yes".to_owned(), "--expect-uuid UUID"),
    ] {
        let human = daemon.run(&args);
        assert_eq!(code(&human), 3, "{args}");
        assert!(stderr(&human).contains(&format!(": {missing} missing\n")), "{args}: {}", stderr(&human));
        let json = daemon.run(&format!("{args} -o json"));
        assert_eq!(code(&json), 3, "{args}");
        assert_eq!(envelope(&json)["error"]["code"], "confirm.missing");
    }
    assert_eq!(daemon.calls(), Vec::<String>::new(), "nothing may reach the daemon");
    // The API asks for the same words, whatever the client.
    for (path, body) in [
        ("/v1/groups", r#"{"name":"tank","level":"raid5","drives":["a","b","c"]}"#),
        ("/v1/groups/tank/delete", "{}"),
        ("/v1/groups/tank/delete", r#"{"yes":true}"#),
        ("/v1/groups/tank/delete", r#"{"expect_uuid":"u"}"#),
        ("/v1/disks/tank/home/delete", r#"{"yes":true,"force":true}"#),
        ("/v1/drives/%2Fdev%2Fx/wipe", r#"{"yes":true}"#),
        ("/v1/groups:assemble", r#"{"group":"tank","force":true}"#),
    ] {
        let answer = common::http(&daemon.socket(), "POST", path, body);
        assert_eq!(answer.0, 409, "{path} {body}");
        assert_eq!(common::http_envelope(&answer)["error"]["code"], "confirm.missing");
    }
    assert_eq!(daemon.calls(), Vec::<String>::new(), "nothing may reach the daemon");
}

/// Runs the binary at a terminal (`script` makes one) and types `typed`.
fn at_a_terminal(daemon: &Daemon, args: &str, typed: &str) -> Option<(i32, String)> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let line = format!("{} {args}", common::binary().display());
    let child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("WARPRAID_SOCKET", daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: this machine has no script(1) to make a terminal with");
        return None;
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    Some((output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn ad_06_at_a_terminal_the_name_is_typed() {
    let daemon = Daemon::start();
    let uuid = common::fake::GROUP_UUID;
    for (args, name, shown) in [
        ("group delete tank", "tank", uuid),
        ("disk delete tank/home", "tank/home", common::fake::DISK_UUID),
        ("drive wipe /dev/nvme3n1", "/dev/nvme3n1", "ext4"),
        ("group create tank --level 5 a b c", "tank", "usable"),
        ("group assemble tank --force", "tank", "marked for ever"),
    ] {
        for wrong in ["\n", "yes\n", "Tank\n", " tank\n"] {
            let Some((code, text)) = at_a_terminal(&daemon, args, wrong) else { return };
            assert_eq!(code, 3, "{args}: {text}");
            assert!(text.contains("nothing was done"), "{args}: {text}");
            assert!(daemon.calls().iter().all(|call| !call.contains("yes: true")), "{args}");
        }
        let (code, text) = at_a_terminal(&daemon, args, &format!("{name}\n")).unwrap();
        assert_eq!(code, 0, "{args}: {text}");
        assert!(text.contains(shown), "what is lost is shown first: {args}: {text}");
        let calls = daemon.calls();
        assert!(calls.last().unwrap().contains("yes: true"), "{args}: {calls:?}");
    }
    let (code, text) = at_a_terminal(&daemon, "group delete tank --expect-uuid other", "tank\n").unwrap();
    assert_eq!(code, 3, "{text}");
    assert!(daemon.calls().iter().all(|call| !call.contains("yes: true")));
}

#[test]
fn completions_for_every_shell() {
    let nowhere = std::path::Path::new("/nonexistent/socket");
    for shell in ["bash", "zsh", "fish"] {
        let output = common::run(nowhere, &format!("completions {shell}"));
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("WARPRAID_COMPLETE"), "{shell}: {}", stdout(&output));
    }
}

/// What a shell is offered for the last of these words; it asks as the script of `completions bash` does.
fn offered(socket: &std::path::Path, words: &[&str]) -> Vec<String> {
    let output = common::command(socket)
        .env("WARPRAID_COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "true")
        .args(["--", "warpraid"])
        .args(words)
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn names_complete_as_the_daemon_knows_them() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let offers = |words: &[&str], name: &str| {
        let found = offered(&socket, words);
        assert!(found.iter().any(|one| one == name), "{words:?}: {found:?}");
    };
    offers(&["group", "show", ""], "tank");
    offers(&["group", "replace", "ta"], "tank");
    offers(&["disk", "show", ""], "tank/home");
    offers(&["disk", "create", ""], "tank/");
    offers(&["drive", "wipe", "/dev/nv"], "/dev/nvme3n1");
    offers(&["group", "replace", "tank", "--slot", "1", "/dev/nv"], "/dev/nvme3n1");
}

#[test]
fn verbs_complete_without_a_daemon_and_no_name_is_made_up() {
    let nowhere = std::path::Path::new("/nonexistent/socket");
    assert_eq!(offered(nowhere, &["group", "undel"]), ["undelete"]);
    let flags = offered(nowhere, &["group", "show", "-"]);
    assert!(flags.iter().all(|flag| flag.starts_with('-')) && !flags.is_empty(), "{flags:?}");
}

#[test]
fn help_of_every_verb_has_an_example() {
    let nowhere = std::path::Path::new("/nonexistent/socket");
    let own = ["", "explain", "alert", "drive", "group", "disk", "examine", "serve", "demo", "completions"];
    let bench = ["bench", "bench drives", "bench group", "bench disk", "bench parity", "bench compare"];
    let verbs = VERBS.iter().map(|(args, _)| {
        let words: Vec<&str> = args.split(' ').collect();
        words[..words.len().min(if matches!(words[0], "status" | "health" | "events") { 1 } else { 2 })]
            .join(" ")
    });
    for verb in own.into_iter().chain(bench).map(str::to_owned).chain(verbs) {
        let output = common::run(nowhere, format!("{verb} --help").trim());
        assert_eq!(code(&output), 0, "{verb}");
        assert_eq!(stderr(&output), "", "{verb}");
        let text = stdout(&output);
        let example = text.split_once("Example:\n").unwrap_or_else(|| panic!("no example: {verb}: {text}")).1;
        assert!(example.contains(&format!("  warpraid {verb}").trim_end().to_owned()), "{verb}: {example}");
    }
    let version = common::run(nowhere, "--version");
    assert_eq!(stdout(&version), format!("warpraid {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let daemon = Daemon::start();
    let mut child = common::command(&daemon.socket())
        .arg("status")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = common::command(&daemon.socket()).arg("status").stdout(full).output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot be written"));
}
