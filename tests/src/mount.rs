//! An NBD export as a mounted filesystem, without a kernel NBD driver: nbdfuse makes a file of it, a loop device of that,
//! and the filesystem is mounted from there. Needs root.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::drives::LoopDevice;
use crate::tool::{self, CLEANING_MAX};

/// An NBD export as a file, through FUSE.
#[derive(Debug)]
pub struct FuseFile {
    path: PathBuf,
    child: Option<Child>,
}

impl FuseFile {
    /// Mounts the export at `uri` as the file `path`, which is made.
    #[must_use]
    pub fn mount(uri: &str, path: &Path) -> Self {
        let (mut file, child) = Self::mount_by(uri, path);
        file.child = Some(child);
        file
    }

    /// As [`FuseFile::mount`], and the process that serves the file is left to the caller to end.
    #[must_use]
    pub fn mount_by(uri: &str, path: &Path) -> (Self, Child) {
        std::fs::File::create_new(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let child = tool::command("nbdfuse")
            .arg(path)
            .arg(uri)
            .stdin(Stdio::null())
            // It tells of every request that fails, and failing is what some tests are about.
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdfuse runs; `tests/run --stage tools` installs it");
        let file = Self { path: path.to_owned(), child: None };
        tool::wait_until("nbdfuse mounts", Duration::from_secs(30), || {
            path.metadata().is_ok_and(|meta| meta.len() > 0)
        });
        (file, child)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        // Lazy, so that a file still held does not leave the mount behind.
        tool::attempt(tool::command("fusermount3").arg("-uz").arg(&self.path), CLEANING_MAX);
        if let Some(child) = &mut self.child
            && !tool::end(child, Duration::from_secs(10))
        {
            eprintln!("nbdfuse of {} does not die and is left behind", self.path.display());
        }
    }
}

/// A mounted filesystem.
#[derive(Debug)]
pub struct Mounted {
    folder: PathBuf,
}

impl Mounted {
    /// Mounts `device` on `folder`, which is made.
    #[must_use]
    pub fn mount(device: &Path, folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        tool::run("mount", &[tool::text(device), tool::text(folder)]);
        Self { folder: folder.to_owned() }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Unmounts; a filesystem that cannot be unmounted fails the test.
    pub fn unmount(self) {
        tool::run("umount", &[tool::text(&self.folder)]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After `unmount` there is nothing to do, which is no error here.
        tool::attempt(tool::command("umount").arg("-l").arg(&self.folder), CLEANING_MAX);
    }
}

/// An export as a loop device.
#[derive(Debug)]
pub struct Device {
    // Dropped in this order: the loop device lets go of the file first.
    device: LoopDevice,
    _file: FuseFile,
}

impl Device {
    /// Makes a loop device of the export at `uri`, with files named `name` in `folder`.
    #[must_use]
    pub fn attach(uri: &str, folder: &Path, name: &str) -> Self {
        let file = FuseFile::mount(uri, &folder.join(name));
        let device = LoopDevice::attach(file.path(), 512);
        Self { device, _file: file }
    }

    /// The loop device.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.device.path()
    }
}
