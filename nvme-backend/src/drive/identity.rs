//! What a drive is: serial, model, place and who holds it, from sysfs and /proc. Read-only and best effort: what the
//! kernel does not tell is `None`, and nothing here decides about data.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use raid_core::units::BlockSize;
use rustix::fs::{Dev, FileType, major, makedev, minor};

/// Kinds of drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriveKind {
    /// A regular file.
    File,
    /// A block device.
    Block,
    /// In memory.
    Ram,
    /// Nowhere.
    Null,
}

/// What is known of a drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Kind.
    pub kind: DriveKind,
    /// The path it was opened by; empty for drives in memory.
    pub path: PathBuf,
    /// Serial number, as the drive says it.
    pub serial: Option<String>,
    /// World-wide identifier (NGUID, EUI-64, NAA).
    pub wwid: Option<String>,
    /// Model.
    pub model: Option<String>,
    /// NUMA node of its controller.
    pub numa_node: Option<u32>,
    /// Whether it is a spinning disk.
    pub rotational: bool,
    /// Logical block size.
    pub logical_block: BlockSize,
    /// Physical block size in bytes, where the device tells one.
    pub physical_block_bytes: u32,
    /// Who holds it or one of its partitions: mounts, md, dm, swap. Empty for a free drive.
    pub holders: Vec<String>,
    /// The kernel's number of this very device (Linux 5.15): never given again, unlike the name.
    pub diskseq: Option<u64>,
    /// The place it is plugged in, where that can be told: see [`port_of`].
    pub port: Option<String>,
}

impl Identity {
    pub(super) fn in_memory(kind: DriveKind, block_size: BlockSize) -> Self {
        Self {
            kind,
            path: PathBuf::new(),
            serial: None,
            wwid: None,
            model: None,
            numa_node: None,
            rotational: false,
            logical_block: block_size,
            physical_block_bytes: block_size.bytes(),
            holders: Vec::new(),
            diskseq: None,
            port: None,
        }
    }

    pub(super) fn of_file(path: &Path, block_size: BlockSize) -> Self {
        Self { kind: DriveKind::File, path: path.to_owned(), ..Self::in_memory(DriveKind::File, block_size) }
    }
}

/// A block device as a listing shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceListing {
    /// Kernel name, such as `nvme0n1`.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the kernel lets nobody write to it.
    pub read_only: bool,
    /// Whether its medium can be taken out.
    pub removable: bool,
    /// Kernel names of its partitions.
    pub partitions: Vec<String>,
    /// All else.
    pub identity: Identity,
}

fn attribute(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    let text = text.trim().trim_matches('\0').trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number<T: std::str::FromStr>(folder: &Path, name: &str) -> Option<T> {
    attribute(folder, name)?.parse().ok()
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn rdev(path: &Path) -> Option<Dev> {
    let stat = rustix::fs::stat(path).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then_some(stat.st_rdev)
}

/// The sysfs folder of a block device node.
fn sysfs_of(path: &Path) -> Option<PathBuf> {
    let dev = rdev(path)?;
    fs::canonicalize(format!("/sys/dev/block/{}:{}", major(dev), minor(dev))).ok()
}

fn partitions(sysfs: &Path) -> Vec<String> {
    names(sysfs).into_iter().filter(|name| sysfs.join(name).join("partition").exists()).collect()
}

/// `major:minor` of the device at `sysfs` and of its partitions.
fn numbers(sysfs: &Path) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = attribute(sysfs, "dev").into_iter().collect();
    all.extend(partitions(sysfs).iter().filter_map(|name| attribute(&sysfs.join(name), "dev")));
    all
}

fn holders(sysfs: &Path) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![sysfs.to_owned()];
    folders.extend(partitions(sysfs).iter().map(|name| sysfs.join(name)));
    for folder in &folders {
        found.extend(names(&folder.join("holders")));
    }
    let numbers = numbers(sysfs);
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
        let mut fields = line.split(' ');
        if let (Some(number), Some(place)) = (fields.nth(2), fields.nth(1))
            && numbers.contains(number)
        {
            found.insert(format!("mounted on {}", unescape(place)));
        }
    }
    for line in fs::read_to_string("/proc/swaps").unwrap_or_default().lines().skip(1) {
        let path = unescape(line.split_whitespace().next().unwrap_or_default());
        if let Some(dev) = rdev(Path::new(&path))
            && numbers.contains(&format!("{}:{}", major(dev), minor(dev)))
        {
            found.insert(format!("swap on {path}"));
        }
    }
    found.into_iter().collect()
}

/// Mount tables escape space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn of_sysfs(path: &Path, sysfs: &Path, block_size: BlockSize) -> Identity {
    // A partition's attributes are those of the drive it lies on.
    let is_partition = sysfs.join("partition").exists();
    let drive = if is_partition { sysfs.parent().unwrap_or(sysfs) } else { sysfs };
    let first = |names: &[&str]| names.iter().find_map(|name| attribute(drive, name));
    let numa_node = ["device/numa_node", "device/device/numa_node"]
        .iter()
        .find_map(|name| number::<i64>(drive, name))
        .and_then(|node| u32::try_from(node).ok());
    Identity {
        kind: DriveKind::Block,
        path: path.to_owned(),
        serial: first(&["device/serial", "serial"]),
        wwid: first(&["wwid", "device/wwid", "nguid", "eui"]),
        model: first(&["device/model"]),
        numa_node,
        rotational: number::<u8>(drive, "queue/rotational") == Some(1),
        logical_block: block_size,
        physical_block_bytes: number(drive, "queue/physical_block_size").unwrap_or(block_size.bytes()),
        holders: holders(sysfs),
        diskseq: number(drive, "diskseq"),
        port: port(sysfs, drive),
    }
}

/// Address of the controller (of NVMe drives the PCI slot's), number of the namespace, and of the partition if it is one.
fn port(sysfs: &Path, drive: &Path) -> Option<String> {
    let device = drive.join("device");
    // With native multipath the device is a subsystem, and its controllers lie below it; two ways in are no place.
    let controllers: Vec<PathBuf> = match attribute(&device, "address") {
        Some(_) => vec![device],
        None => names(&device)
            .into_iter()
            .filter(|name| name.starts_with("nvme"))
            .map(|name| device.join(name))
            .filter(|folder| folder.join("address").exists())
            .collect(),
    };
    let [controller] = &controllers[..] else { return None };
    let address = attribute(controller, "address")?;
    let namespace = attribute(drive, "nsid").unwrap_or_else(|| "1".into());
    let partition =
        attribute(sysfs, "partition").map(|number| format!(" partition {number}")).unwrap_or_default();
    Some(format!("{address} namespace {namespace}{partition}"))
}

/// The place a block device is plugged in: another drive put there has the same.
#[must_use]
pub fn port_of(path: &Path) -> Option<String> {
    let sysfs = sysfs_of(path)?;
    let is_partition = sysfs.join("partition").exists();
    let drive = if is_partition { sysfs.parent()? } else { &sysfs };
    port(&sysfs, drive)
}

/// The kernel's number of the block device that has this name now.
#[must_use]
pub fn diskseq_of(path: &Path) -> Option<u64> {
    let sysfs = sysfs_of(path)?;
    let is_partition = sysfs.join("partition").exists();
    number(if is_partition { sysfs.parent()? } else { &sysfs }, "diskseq")
}

/// What sysfs knows of a block device.
pub(super) fn of_block_device(path: &Path, block_size: BlockSize) -> Identity {
    match sysfs_of(path) {
        Some(sysfs) => of_sysfs(path, &sysfs, block_size),
        None => Identity {
            kind: DriveKind::Block,
            path: path.to_owned(),
            ..Identity::in_memory(DriveKind::Block, block_size)
        },
    }
}

/// What of the kernel holds a block device.
pub(crate) fn holders_of(path: &Path) -> Vec<String> {
    sysfs_of(path).map(|sysfs| holders(&sysfs)).unwrap_or_default()
}

/// All block devices with a size but those of ublk, by name, with who holds them. For a listing: reads sysfs, opens no device.
#[must_use]
pub fn list_block_devices() -> Vec<DeviceListing> {
    let mut all = Vec::new();
    for name in names(Path::new("/sys/block")) {
        // Served by a process: ourselves, who would wait for ourselves, or somebody whose end would hang us.
        if name.starts_with("ublkb") {
            continue;
        }
        let Ok(sysfs) = fs::canonicalize(Path::new("/sys/block").join(&name)) else { continue };
        let sectors: u64 = number(&sysfs, "size").unwrap_or(0);
        let logical = number(&sysfs, "queue/logical_block_size").and_then(BlockSize::from_bytes);
        let (Some(logical), true) = (logical, sectors > 0) else { continue };
        // sysfs writes `!` for the `/` of names such as cciss/c0d0.
        let path = Path::new("/dev").join(name.replace('!', "/"));
        all.push(DeviceListing {
            // Sysfs counts 512-byte sectors whatever the block size.
            size_bytes: sectors * 512,
            read_only: number::<u8>(&sysfs, "ro") == Some(1),
            removable: number::<u8>(&sysfs, "removable") == Some(1),
            partitions: partitions(&sysfs),
            identity: of_sysfs(&path, &sysfs, logical),
            name,
        });
    }
    all
}

/// The process that holds a flock on the file that `fd` is also open on, from /proc/locks.
pub(super) fn pid_with_lock(fd: &OwnedFd) -> Option<u32> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let text = fs::read_to_string("/proc/locks").ok()?;
    pid_in_locks(&text, stat.st_dev, stat.st_ino)
}

/// Lines are `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`, the device in hexadecimal; waiters have a `->`.
fn pid_in_locks(text: &str, dev: Dev, inode: u64) -> Option<u32> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else { return None };
        let mut place = place.split(':');
        let major = u32::from_str_radix(place.next()?, 16).ok()?;
        let minor = u32::from_str_radix(place.next()?, 16).ok()?;
        let found: u64 = place.next()?.parse().ok()?;
        if found == inode && makedev(major, minor) == dev { pid.parse().ok() } else { None }
    })
}

/// Some process that has this block device open (perhaps this one), found through /proc as far as we may look.
pub(crate) fn pid_with_open(path: &Path) -> Option<u32> {
    let dev = rdev(path)?;
    names(Path::new("/proc")).iter().filter_map(|name| name.parse::<u32>().ok()).find(|pid| {
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        names(&folder).iter().any(|fd| {
            // Only what lies in /dev is asked further: a stat of somebody's file on a hung FUSE or NFS mount never ends.
            let link = folder.join(fd);
            fs::read_link(&link).is_ok_and(|target| target.starts_with("/dev")) && rdev(&link) == Some(dev)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_of_a_lock_is_found_by_device_and_inode() {
        let text = "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 12 fe:00:78 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 13 fe:00:77 0 EOF\n\
                    3: FLOCK  ADVISORY  WRITE 14 fe:00:77 0 EOF\n";
        assert_eq!(pid_in_locks(text, makedev(0xfe, 0), 77), Some(14));
        assert_eq!(pid_in_locks(text, makedev(0xfe, 1), 77), None);
        assert_eq!(pid_in_locks(text, makedev(0xfe, 0), 79), None);
    }

    #[test]
    fn octal_escapes_of_mount_tables_are_undone() {
        assert_eq!(unescape(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescape(r"/mnt/x\9"), r"/mnt/x\9");
    }

    #[test]
    fn listing_has_each_name_once_and_whole_sectors() {
        let devices = list_block_devices();
        let mut names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        names.dedup();
        assert_eq!(names.len(), devices.len());
        assert!(devices.iter().all(|device| device.size_bytes > 0 && device.size_bytes.is_multiple_of(512)));
    }
}
