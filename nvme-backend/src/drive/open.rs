//! Opening a drive: exclusively, directly if the device or file system can, and with errors that say what to do.
//!
//! Exclusive means O_EXCL for a block device (the kernel's holder lock, which mounts, md, dm and swap also take) and
//! flock for a file, taken before anything is read (SAFETY M8). Opening writes nothing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use raid_core::units::BlockSize;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::identity::{self, DriveKind, Identity};
use super::{Medium, Shared};

/// How to open a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Hold the drive against everybody else. Only inspection goes without.
    pub exclusive: bool,
    /// How long a command may take.
    pub timeout_ns: u64,
    /// Past the page cache where possible; otherwise buffered, and said so once.
    pub direct: bool,
    /// Block size of a regular file (default 512). A block device has its own.
    pub block_size: Option<BlockSize>,
    /// Alignment of the buffers that will be used: the lanes' arena stagger. A device that needs more is used buffered.
    pub buffer_align_bytes: u32,
    /// Count its commands (`crate::meter`). Only who measures what counting costs goes without.
    pub is_metered: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            exclusive: true,
            timeout_ns: 30_000_000_000,
            direct: true,
            block_size: None,
            buffer_align_bytes: 512,
            is_metered: true,
        }
    }
}

/// Why a drive was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is nothing at this path.
    #[error("{}: no such drive", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// The permissions do not allow it.
    #[error("{}: permission denied (run as root, or let this user read and write it)", path.display())]
    PermissionDenied {
        /// The path asked for.
        path: PathBuf,
    },
    /// Somebody holds it.
    #[error("{}: in use{}", path.display(), busy_by(pid, holders))]
    Busy {
        /// The path asked for.
        path: PathBuf,
        /// The process that holds it, if known.
        pid: Option<u32>,
        /// What of the kernel holds it: mounts, md, dm, swap.
        holders: Vec<String>,
    },
    /// It is neither a block device nor a regular file.
    #[error("{}: {what}, not a block device or file", path.display())]
    NotADrive {
        /// The path asked for.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Its block size is neither 512 nor 4096.
    #[error("{}: logical blocks of {bytes} bytes are not supported (512 and 4096 are)", path.display())]
    BlockSize {
        /// The path asked for.
        path: PathBuf,
        /// Its logical block size.
        bytes: u32,
    },
    /// It has not even one block.
    #[error("{}: {size_bytes} bytes, less than one block of {block_bytes}", path.display())]
    TooSmall {
        /// The path asked for.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// Its block size.
        block_bytes: u32,
    },
    /// Anything else.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Os {
        /// The path asked for.
        path: PathBuf,
        /// What failed.
        doing: &'static str,
        /// How.
        source: io::Error,
    },
}

fn busy_by(pid: &Option<u32>, holders: &[String]) -> String {
    let mut by = Vec::new();
    if let Some(pid) = pid {
        by.push(format!("process {pid}"));
    }
    by.extend(holders.iter().cloned());
    if by.is_empty() { String::new() } else { format!(" by {}", by.join(", ")) }
}

impl OpenError {
    fn of(path: &Path, doing: &'static str, error: Errno) -> Self {
        let path = path.to_owned();
        match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM => Self::NotFound { path },
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied { path },
            Errno::BUSY => {
                let holders = identity::holders_of(&path);
                Self::Busy { pid: identity::pid_with_open(&path), holders, path }
            }
            _ => Self::Os { path, doing, source: error.into() },
        }
    }
}

fn what(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile | FileType::BlockDevice => None,
        FileType::Directory => Some("a directory"),
        FileType::CharacterDevice => Some("a character device"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        _ => Some("something else"),
    }
}

/// Whether the file lies behind another process or machine (FUSE, NFS, CIFS, 9p). Their code takes sleeping locks although
/// io_uring asked it not to: seen with FUSE on kernel 6.18, where a write waits for the inode lock that a hung one holds.
fn is_remote(fd: &OwnedFd) -> bool {
    const MAGICS: [u64; 5] = [0x6573_5546, 0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];
    // A file system that does not say what it is gets the careful treatment.
    rustix::fs::fstatfs(fd)
        .map_or(true, |stat| u64::try_from(stat.f_type).map_or(true, |kind| MAGICS.contains(&kind)))
}

/// Opens the path, directly if `direct`.
fn open_fd(path: &Path, options: &OpenOptions, is_block: bool, direct: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if is_block && options.exclusive {
        flags |= OFlags::EXCL;
    }
    if direct {
        flags |= OFlags::DIRECT;
    }
    rustix::fs::open(path, flags, Mode::empty())
}

/// Whether direct I/O with our buffers and blocks is possible on an open file. Kernels before 6.1 do not say: then the
/// device's own logical block size, which our blocks are multiples of, is what they ask for.
fn direct_fits(fd: &OwnedFd, options: &OpenOptions, block_size: BlockSize) -> bool {
    let Ok(stat) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return true };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    stat.stx_dio_mem_align != 0
        && stat.stx_dio_mem_align <= options.buffer_align_bytes.max(1)
        && stat.stx_dio_offset_align <= block_size.bytes()
}

fn lock(path: &Path, fd: &OwnedFd) -> Result<(), OpenError> {
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::Busy {
            path: path.to_owned(),
            pid: identity::pid_with_lock(fd),
            holders: Vec::new(),
        }),
        Err(error) => Err(OpenError::of(path, "lock it", error)),
    }
}

fn say_buffered(path: &Path) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            drive = %path.display(),
            "direct I/O is not possible here: buffered, with fdatasync at each flush (said once)"
        );
    });
}

pub(super) fn open(path: &Path, options: OpenOptions) -> Result<Shared, OpenError> {
    let os = |doing| move |error: Errno| OpenError::of(path, doing, error);
    let stat = rustix::fs::stat(path).map_err(os("look at it"))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if let Some(what) = what(kind) {
        return Err(OpenError::NotADrive { path: path.to_owned(), what });
    }
    let is_block = kind == FileType::BlockDevice;
    let mut is_direct = options.direct;
    let fd = match open_fd(path, &options, is_block, is_direct) {
        Err(Errno::INVAL) if is_direct => {
            is_direct = false;
            open_fd(path, &options, is_block, false)
        }
        other => other,
    }
    .map_err(os("open it"))?;
    if !is_block && options.exclusive {
        lock(path, &fd)?;
    }
    let block_size = if is_block {
        let bytes = rustix::fs::ioctl_blksszget(&fd).map_err(os("ask for its block size"))?;
        BlockSize::from_bytes(bytes).ok_or_else(|| OpenError::BlockSize { path: path.to_owned(), bytes })?
    } else {
        options.block_size.unwrap_or(BlockSize::B512)
    };
    if is_direct && !direct_fits(&fd, &options, block_size) {
        is_direct = false;
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(os("ask for its flags"))?;
        rustix::fs::fcntl_setfl(&fd, flags - OFlags::DIRECT).map_err(os("open it buffered"))?;
    }
    if options.direct && !is_direct {
        say_buffered(path);
    }
    let size_bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(os("ask for its size"))?;
    let block_bytes = block_size.bytes();
    if size_bytes < u64::from(block_bytes) {
        return Err(OpenError::TooSmall { path: path.to_owned(), size_bytes, block_bytes });
    }
    let size_bytes = size_bytes - size_bytes % u64::from(block_bytes);
    let identity = if is_block {
        identity::of_block_device(path, block_size)
    } else {
        Identity::of_file(path, block_size)
    };
    debug_assert!(matches!(identity.kind, DriveKind::Block | DriveKind::File));
    Ok(Shared {
        medium: Medium::File { may_block_lane: !is_block && is_remote(&fd), fd, is_block, is_direct },
        identity,
        size_bytes,
        block_size,
        timeout_ns: options.timeout_ns,
        read_only: options.read_only,
        is_metered: options.is_metered,
        quarantined: AtomicUsize::new(0),
        is_faulty: AtomicBool::new(false),
        faults: parking_lot::RwLock::default(),
        no_punch: AtomicBool::new(false),
        no_zero_range: AtomicBool::new(false),
        meters: parking_lot::Mutex::default(),
        errnos: super::Errnos::default(),
    })
}
