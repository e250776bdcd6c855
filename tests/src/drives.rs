//! What lies on drives: hashes to prove that nothing was written, damage, loop devices.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::tool;

/// A hash of the whole contents of each drive, to compare before and after.
#[must_use]
pub fn hashes<P: AsRef<Path>>(drives: &[P]) -> Vec<u64> {
    drives.iter().map(|drive| hash(drive.as_ref())).collect()
}

fn hash(drive: &Path) -> u64 {
    let mut file = File::open(drive).unwrap_or_else(|error| panic!("{}: {error}", drive.display()));
    let mut hasher = DefaultHasher::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut block).unwrap_or_else(|error| panic!("{}: {error}", drive.display()));
        if n == 0 {
            return hasher.finish();
        }
        hasher.write(&block[..n]);
    }
}

/// Overwrites part of a drive behind everybody's back.
pub fn overwrite(drive: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(drive).expect("drive opens");
    file.write_all_at(bytes, at).expect("drive takes it");
}

/// A loop device over a file, detached when dropped. Needs root.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `file` with logical blocks of `block_bytes`, with partitions if it has a table.
    #[must_use]
    pub fn attach(file: &Path, block_bytes: u32) -> Self {
        let size = block_bytes.to_string();
        let arguments = ["--find", "--show", "--partscan", "--sector-size", &size, tool::text(file)];
        Self { path: tool::run("losetup", &arguments).trim().into() }
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its `n`th partition, once it is there.
    #[must_use]
    pub fn partition(&self, n: u32) -> PathBuf {
        let path = PathBuf::from(format!("{}p{n}", self.path.display()));
        let name = path.file_name().and_then(|name| name.to_str()).expect("loop names are plain").to_owned();
        if !Path::new("/sys/class/block").join(&name).exists() {
            // A kernel that reads no partition tables takes partitions from those who do.
            tool::run("partx", &["--add", "--nr", &n.to_string(), tool::text(&self.path)]);
        }
        if !path.exists() {
            // Without udev or devtmpfs the node is ours to make: its number is in sysfs.
            let number = std::fs::read_to_string(format!("/sys/class/block/{name}/dev"))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let (major, minor) = number.trim().split_once(':').expect("major:minor");
            tool::run("mknod", &[tool::text(&path), "b", major, minor]);
        }
        path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Whoever still holds it keeps it until it lets go; there is no one left to tell.
        tool::attempt(tool::command("losetup").arg("--detach").arg(&self.path), tool::CLEANING_MAX);
    }
}
