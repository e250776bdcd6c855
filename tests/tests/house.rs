//! The rules of the house that no compiler checks: who may use whom, file sizes, where `unsafe` may be, which cases have a
//! test, and documents whose links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What each package may use of ours, as in ARCHITECTURE.md.
const EDGES: &[(&str, &[&str])] = &[
    ("warpraid-raid-core", &[]),
    ("warpraid-gpu-kernels", &["warpraid-raid-core"]),
    ("warpraid-nvme-backend", &["warpraid-raid-core"]),
    ("warpraid-server", &["warpraid-raid-core", "warpraid-nvme-backend"]),
    // The demo judges the daemon by stamps; `bench` is the load generator of the benches.
    ("warpraid", &["warpraid-server", "warpraid-stamps", "warpraid-benches"]),
    ("warpraid-benches", &["warpraid-raid-core", "warpraid-nvme-backend", "warpraid-stamps"]),
    ("warpraid-sim", &["warpraid-raid-core"]),
    ("warpraid-stamps", &[]),
    ("warpraid-tests", &["warpraid-stamps"]),
];

/// Where `unsafe` may be: these files, and everything in these folders.
const UNSAFE_FILES: &[&str] = &["arena.rs", "ioctl.rs", "lease.rs", "ring.rs"];
const UNSAFE_FOLDERS: &[&str] = &[
    "benches/src/parity/peer.rs",
    "gpu-kernels/src/mock.rs",
    "gpu-kernels/tests/",
    "nvme-backend/examples/",
    "nvme-backend/src/ring/",
    "raid-core/src/parity/x86_64/",
    "raid-core/tests/parity",
    "tests/sim/src/",
];

/// The cases of the field that have a test: the name of a test begins with the id.
const CASES: &[&str] = &[
    "sl_01", "sl_02", "sl_03", "sl_04", "sl_05", "sl_08", "sl_09", "ad_01", "ad_02", "ad_03", "ad_04",
    "ad_05", "ad_06", "ad_07", "ad_08", "mk_01", "mk_02", "mk_03", "mk_04", "mk_05", "mk_06", "ot_01",
    "ot_05", "ot_07",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every file of the project with one of these extensions, its path from the root, and its text.
fn files(extensions: &[&str]) -> BTreeMap<String, String> {
    let root = root();
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if name != "target" && name != ".git" && name != ".cache" {
                    folders.push(path);
                }
            } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
                let relative = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.insert(relative, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

fn assert_none(what: &str, bad: &[String]) {
    assert!(bad.is_empty(), "{what}:\n  {}", bad.join("\n  "));
}

#[test]
fn packages_use_only_what_the_architecture_allows() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let listed: BTreeSet<String> = EDGES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(ours, listed, "every package has its line here");
    let mut bad = Vec::new();
    for package in packages {
        let name = text(&package["name"]);
        let (_, allowed) = EDGES.iter().find(|(listed, _)| *listed == name).unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = text(&dependency["name"]);
            // What tests use (kind "dev") ends up in no program.
            let shipped = dependency["kind"].is_null();
            if shipped && ours.contains(&used) && !allowed.contains(&used.as_str()) {
                bad.push(format!("{name} uses {used}"));
            }
        }
    }
    assert_none("forbidden edges", &bad);
}

#[test]
fn stamps_use_nothing_but_the_standard_library() {
    let manifest = std::fs::read_to_string(root().join("tests/stamps/Cargo.toml")).unwrap();
    assert!(!manifest.contains("dependencies]"), "the outside view shares no code with what it judges");
}

#[test]
fn raid_core_knows_no_world() {
    let mut bad = Vec::new();
    for (path, text) in files(&["rs"]) {
        let shipped = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in
            ["std::fs", "std::net", "std::thread", "std::time::Instant", "SystemTime", "tokio", "HashMap"]
        {
            if path.starts_with("raid-core/src/") && shipped.lines().any(|line| code(line).contains(word)) {
                bad.push(format!("{path} says {word}"));
            }
        }
    }
    assert_none("raid-core has no threads, clock, files, sockets or unordered maps", &bad);
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn no_file_is_a_thousand_lines_long() {
    let long = files(&["rs", "sh", "toml", "py"])
        .into_iter()
        .filter(|(_, text)| text.lines().count() >= 1000)
        .map(|(path, _)| path)
        .collect::<Vec<_>>();
    assert_none("files of 1000 lines or more", &long);
}

#[test]
fn every_source_file_says_first_what_it_is_for() {
    let mute = files(&["rs"])
        .into_iter()
        .filter(|(_, text)| {
            let first = text.lines().find(|line| !line.starts_with("#!") && !line.trim().is_empty());
            !first.is_some_and(|line| line.starts_with("//! "))
        })
        .map(|(path, _)| path)
        .collect::<Vec<_>>();
    assert_none("files without an opening line", &mute);
}

#[test]
fn unsafe_is_only_where_it_may_be() {
    let permit = concat!("allow(", "unsafe_code)");
    let mut bad = Vec::new();
    for (path, text) in files(&["rs"]) {
        if path.ends_with("tests/house.rs") || !text.contains(permit) {
            continue;
        }
        let name = path.rsplit('/').next().unwrap();
        let at_home =
            UNSAFE_FILES.contains(&name) || UNSAFE_FOLDERS.iter().any(|folder| path.starts_with(folder));
        if !at_home {
            bad.push(format!("{path}: not one of the files that may"));
        }
        let lines: Vec<&str> = text.lines().collect();
        let at_top = lines.iter().take(40).any(|line| line.starts_with("#![") && line.contains(permit));
        let on_module = lines.windows(2).any(|pair| pair[0].contains(permit) && pair[1].starts_with("mod "));
        if !at_top && !on_module {
            bad.push(format!("{path}: the permit is neither at its top nor on a module"));
        }
    }
    assert_none("unsafe", &bad);
}

#[test]
fn nothing_is_left_for_later() {
    let words =
        [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut bad = Vec::new();
    for (path, text) in files(&["rs", "toml", "sh", "md"]) {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                bad.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none("left for later", &bad);
}

#[test]
fn no_machine_of_ours_is_named() {
    let words = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut bad = Vec::new();
    for (path, text) in files(&["rs", "toml", "sh", "md", "py", "json"]) {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                bad.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none("paths of one machine", &bad);
}

#[test]
fn every_case_has_a_test_that_carries_its_id() {
    let mut tests: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, text) in files(&["rs"]) {
        for line in text.lines() {
            let Some(name) = line.trim_start().strip_prefix("fn ").and_then(|rest| rest.split('(').next())
            else {
                continue;
            };
            if let Some(id) = CASES.iter().find(|id| name.starts_with(&format!("{id}_"))) {
                tests.entry(id).or_default().push(format!("{path}: {name}"));
            }
        }
    }
    for id in CASES {
        let names = tests.get(id).map_or_else(|| "MISSING".to_owned(), |names| names.join("\n       "));
        println!("{}  {names}", id.to_uppercase().replace('_', "-"));
    }
    let missing: Vec<String> =
        CASES.iter().filter(|id| !tests.contains_key(*id)).map(|id| (*id).to_owned()).collect();
    assert_none("cases without a test", &missing);
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut bad = Vec::new();
    for (path, text) in files(&["md"]) {
        let folder = root().join(&path).parent().unwrap().to_owned();
        for piece in text.split("](").skip(1) {
            let target = piece.split([')', '#', ' ']).next().unwrap();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !folder.join(target).exists() {
                bad.push(format!("{path} -> {target}"));
            }
        }
    }
    assert_none("broken links", &bad);
}
