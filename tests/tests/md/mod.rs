//! Arrays that the real md made, for the tests that adopt them.

#![allow(dead_code)] // Each test program uses a part of it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use raid_core::format::superblock::Superblock;
use sha2::{Digest, Sha256};
use warpraid_tests::drives::overwrite;
use warpraid_tests::{Daemon, Lab, tool};

/// An array that the real md made, unpacked.
pub(crate) struct Golden {
    pub(crate) drives: Vec<PathBuf>,
    pub(crate) array_bytes: u64,
    pub(crate) sha256: String,
    pub(crate) said: Vec<String>,
}

pub(crate) fn unpack(lab: &Lab, name: &str) -> Golden {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let expected = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let (head, sections) = expected.split_once("== d0\n").unwrap();
    let mut lines = head.lines();
    let array_bytes = lines.next().unwrap().strip_prefix("array_size ").unwrap().parse().unwrap();
    let sha256 = lines.next().unwrap().split_whitespace().next().unwrap().to_owned();
    let said: Vec<String> = sections.split("\n== d").map(str::to_owned).collect();
    let drives = (0..said.len())
        .map(|i| {
            let mut bytes = Vec::new();
            let packed = fs::File::open(folder.join(format!("d{i}.img.gz"))).unwrap();
            flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
            let path = lab.join(&format!("{name}-{i}"));
            fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    Golden { drives, array_bytes, sha256, said }
}

pub(crate) fn read_superblock(drive: &Path) -> Superblock {
    let mut bytes = vec![0; 4096];
    fs::File::open(drive).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    Superblock::decode(&bytes).unwrap()
}

pub(crate) fn change_superblock(drive: &Path, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = read_superblock(drive);
    change(&mut superblock);
    overwrite(drive, 4096, &superblock.encode());
}

pub(crate) fn adopt_words<'a>(name: &'a str, drives: &[&'a Path], more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["group", "adopt", "--name", name];
    words.extend(drives.iter().map(|drive| tool::text(drive)));
    words.extend(more);
    words
}

pub(crate) fn paths(drives: &[PathBuf]) -> Vec<&Path> {
    drives.iter().map(PathBuf::as_path).collect()
}

/// SHA-256 of a whole disk as a client reads it.
pub(crate) fn sha256_of(daemon: &Daemon, disk: &str) -> String {
    let export = daemon.expose(disk);
    let mut client = export.connect();
    let mut hash = Sha256::new();
    for at in (0..export.size_bytes).step_by(1 << 20) {
        let len = (export.size_bytes - at).min(1 << 20);
        hash.update(client.read(at, u32::try_from(len).unwrap()).unwrap());
    }
    client.disconnect().unwrap();
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value after `key :` in what mdadm printed.
pub(crate) fn said<'a>(text: &'a str, key: &str) -> &'a str {
    let is_it = |line: &&str| {
        line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("no {key} in {text}"));
    line.split_once(':').unwrap().1.trim()
}
