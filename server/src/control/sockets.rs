//! The control sockets: made so that nobody else can ever be in them (CASES AD-03).
//!
//! Two sockets: the admin socket, 0600, and a read-only one beside it, 0660. Invariants: a socket has its mode before
//! anyone can connect (mode set on the descriptor before `bind`, again on the file, and only then `listen`; the process
//! umask does not matter); its folder is a real one that other users cannot change; a lock file beside the admin socket
//! says who serves it, so a file left by a dead daemon is told from one of a live daemon without guessing.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::error::{ApiError, ErrorCode};

/// Longest path the kernel takes for a unix socket, in bytes.
const PATH_BYTES_MAX: usize = 107;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 64;

/// The two listening sockets, and the lock that says they are ours. Dropping removes the socket files.
#[derive(Debug)]
pub struct Sockets {
    pub(super) admin: UnixListener,
    pub(super) read: UnixListener,
    admin_path: PathBuf,
    read_path: PathBuf,
    _lock: File,
}

/// Path of the read-only socket that belongs to this admin socket: `read.sock` beside `admin.sock`, and `NAME-read.sock`
/// beside `NAME.sock`, so that two daemons in one folder do not share it.
#[must_use]
pub fn read_socket_of(admin: &Path) -> PathBuf {
    match admin.file_stem().and_then(|stem| stem.to_str()) {
        Some("admin") | None => admin.with_file_name("read.sock"),
        Some(stem) => admin.with_file_name(format!("{stem}-read.sock")),
    }
}

impl Sockets {
    /// Makes and opens both sockets for this admin path. The folder is made (0755), and those above it.
    ///
    /// # Errors
    /// `socket.path.invalid`, `socket.unsafe`, `daemon.running` (with the pid), or `daemon.start.failed`; the message says
    /// what is in the way and how to clear it. Nothing is left behind.
    pub fn open(admin: &Path) -> Result<Self, ApiError> {
        let read = read_socket_of(admin);
        check_path(admin)?;
        check_path(&read)?;
        let folder = admin.parent().filter(|folder| !folder.as_os_str().is_empty());
        check_folder(folder.unwrap_or(Path::new(".")))?;
        let lock = lock(admin)?;
        clear(admin)?;
        clear(&read)?;
        let admin_listener = listen(admin, 0o600)?;
        let read_listener = listen(&read, 0o660).inspect_err(|_| remove(admin))?;
        Ok(Self {
            admin: admin_listener,
            read: read_listener,
            admin_path: admin.to_owned(),
            read_path: read,
            _lock: lock,
        })
    }

    /// Path of the admin socket.
    #[must_use]
    pub fn admin_path(&self) -> &Path {
        &self.admin_path
    }

    /// Path of the read-only socket.
    #[must_use]
    pub fn read_path(&self) -> &Path {
        &self.read_path
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        remove(&self.admin_path);
        remove(&self.read_path);
    }
}

/// Removes a socket file of ours; that it is gone already is no error, and any other is only worth a line in the log.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
    }
}

fn unsafe_socket(message: String, hint: String) -> ApiError {
    ApiError::new(ErrorCode::SocketUnsafe, message).hint(hint)
}

fn start_failed(what: &str, path: &Path, error: impl core::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::DaemonStart, format!("cannot {what} {}: {error}", path.display()))
}

fn check_path(path: &Path) -> Result<(), ApiError> {
    let bytes = path.as_os_str().len();
    let invalid = |why: String| {
        let message = format!("{} cannot be a socket: {why}", path.display());
        Err(ApiError::new(ErrorCode::SocketInvalid, message).hint("choose another path with --socket"))
    };
    if path.file_name().is_none() {
        return invalid("the path names no file".into());
    }
    if bytes > PATH_BYTES_MAX {
        return invalid(format!("the path has {bytes} bytes, the system allows {PATH_BYTES_MAX}"));
    }
    Ok(())
}

/// The folder must be a real one which only we or root can change; a sticky one (`/tmp`) protects what is in it.
fn check_folder(folder: &Path) -> Result<(), ApiError> {
    let made = fs::create_dir(folder).or_else(|error| match folder.parent() {
        // Whatever the umask, nobody else may change what is above our sockets.
        Some(parent) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o755);
            builder.recursive(true).create(parent).and_then(|()| fs::create_dir(folder))
        }
        _ => Err(error),
    });
    match made {
        Ok(()) => {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(folder, mode).map_err(|e| start_failed("set the mode of", folder, e))?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(folder_not_made(folder, &error)),
    }
    let found = fs::symlink_metadata(folder).map_err(|e| start_failed("look at the folder", folder, e))?;
    let shown = folder.display();
    if found.is_symlink() {
        let hint = format!("use the folder it points to, or remove it: rm {shown}");
        return Err(unsafe_socket(format!("the socket's folder {shown} is a symlink"), hint));
    }
    if !found.is_dir() {
        let message = format!("the socket's folder {shown} is not a folder");
        return Err(ApiError::new(ErrorCode::SocketInvalid, message));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us && found.uid() != 0 {
        let message =
            format!("the socket's folder {shown} belongs to uid {}, not to us (uid {us})", found.uid());
        return Err(unsafe_socket(message, "choose a folder of your own with --socket".into()));
    }
    let sticky = found.mode() & 0o1000 != 0;
    let ours_to_group = found.gid() == rustix::process::getegid().as_raw();
    let open_to = match found.mode() {
        mode if mode & 0o002 != 0 => Some(("everybody", "o-w")),
        mode if mode & 0o020 != 0 && !ours_to_group => Some(("its group", "g-w")),
        _ => None,
    };
    if let (Some((who, change)), false) = (open_to, sticky) {
        let message = format!("the socket's folder {shown} can be changed by {who}");
        return Err(unsafe_socket(message, format!("chmod {change} {shown}")));
    }
    Ok(())
}

fn folder_not_made(folder: &Path, error: &std::io::Error) -> ApiError {
    let shown = folder.display();
    match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            let message =
                format!("the socket's folder {shown} does not exist and we may not make it: {error}");
            ApiError::new(ErrorCode::NotPermitted, message)
                .hint("start as root, or choose a folder of your own with --socket")
        }
        _ => start_failed("make the socket's folder", folder, error)
            .hint("choose a folder of your own with --socket"),
    }
}

/// Takes the lock beside the socket, and writes our pid into it.
fn lock(admin: &Path) -> Result<File, ApiError> {
    let mut name = admin.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let path = admin.with_file_name(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| match errno {
        Errno::LOOP => {
            let hint = format!("rm {}", path.display());
            unsafe_socket(format!("{} is a symlink where our lock file belongs", path.display()), hint)
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            let message = format!("we may not write {} (uid {})", path.display(), rustix::process::geteuid());
            ApiError::new(ErrorCode::NotPermitted, message)
                .hint("start as root, or choose a folder of your own with --socket")
        }
        errno => start_failed("open", &path, errno),
    })?;
    let mut file = File::from(fd);
    if let Err(errno) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if errno != Errno::WOULDBLOCK {
            return Err(start_failed("lock", &path, errno));
        }
        let mut pid = String::new();
        // The pid is for people: without it the message still says all that matters.
        let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut pid);
        let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
        let message = format!("another warpraid daemon (pid {pid}) serves {}", admin.display());
        return Err(ApiError::new(ErrorCode::DaemonRunning, message)
            .hint(format!("stop it first (kill {pid}), or choose another --socket")));
    }
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|error| start_failed("write", &path, error))?;
    Ok(file)
}

/// Clears the way for a socket: only a socket is removed, only under the lock, and only if nobody listens on it, so
/// neither a daemon of ours nor another program loses its own to a mistyped path.
fn clear(path: &Path) -> Result<(), ApiError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(start_failed("look at", path, error)),
    };
    if found.file_type().is_socket() {
        if UnixStream::connect(path).is_ok() {
            let message = format!("another program listens on {}", path.display());
            return Err(unsafe_socket(message, "choose another path with --socket".into()));
        }
        return fs::remove_file(path).map_err(|error| start_failed("remove the stale socket", path, error));
    }
    let what = if found.is_symlink() { "a symlink" } else { "not a socket" };
    let shown = path.display();
    Err(unsafe_socket(format!("{shown} exists and is {what}"), format!("look at it, then: rm {shown}")))
}

/// A listening socket with exactly this mode, from before the first connection is possible.
fn listen(path: &Path, mode: u32) -> Result<UnixListener, ApiError> {
    let failed = |errno: Errno| start_failed("listen on", path, errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    // Linux makes the file with the mode of the descriptor, less the umask: it is never wider than asked for.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::net::bind(&fd, &address).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            ApiError::new(ErrorCode::NotPermitted, format!("we may not make {}: {errno}", path.display()))
                .hint("start as root, or choose a folder of your own with --socket")
        }
        errno => failed(errno),
    })?;
    // A narrow umask may have made it narrower; before `listen` nobody can connect.
    let finished = fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| start_failed("set the mode of", path, error))
        .and_then(|()| rustix::net::listen(&fd, BACKLOG).map_err(failed));
    finished.inspect_err(|_| remove(path))?;
    Ok(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder only we can change, whatever the umask.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        dir
    }

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    /// The umask belongs to the whole process, so each one gets a process of its own: this test, run again.
    #[test]
    fn ad_03_modes_hold_under_any_umask() {
        const CHILD: &str = "WARPRAID_TEST_UMASK_CHILD";
        if std::env::var_os(CHILD).is_some() {
            let dir = folder();
            let path = dir.path().join("admin.sock");
            let sockets = Sockets::open(&path).unwrap();
            assert_eq!(mode_of(&path), 0o600);
            assert_eq!(mode_of(sockets.read_path()), 0o660);
            drop(sockets);
            assert!(!path.exists() && !dir.path().join("read.sock").exists());
            return;
        }
        for umask in ["000", "022", "077"] {
            let output = std::process::Command::new("sh")
                .args(["-c", "umask $0; exec \"$1\" --exact \"$2\"", umask])
                .arg(std::env::current_exe().unwrap())
                .arg("control::sockets::tests::ad_03_modes_hold_under_any_umask")
                .env(CHILD, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "umask {umask}: {text}");
        }
    }

    #[test]
    fn ad_03_symlinks_and_strange_files_are_refused_and_left_alone() {
        let dir = folder();
        let path = dir.path().join("admin.sock");
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for name in ["admin.sock", "read.sock", "admin.sock.lock"] {
            let link = dir.path().join(name);
            let _ = fs::remove_file(dir.path().join("admin.sock.lock"));
            symlink(&victim, &link).unwrap();
            let error = Sockets::open(&path).unwrap_err();
            assert_eq!(error.code, ErrorCode::SocketUnsafe, "{name}: {error}");
            assert!(error.message.contains("symlink") && error.hint.is_some(), "{error}");
            fs::remove_file(&link).unwrap();
        }
        fs::write(&path, "a file").unwrap();
        assert_eq!(Sockets::open(&path).unwrap_err().code, ErrorCode::SocketUnsafe);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn ad_03_folders_others_can_change_are_refused() {
        let dir = folder();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Sockets::open(&open.join("admin.sock")).unwrap_err();
        assert_eq!(error.code, ErrorCode::SocketUnsafe);
        assert_eq!(error.hint.unwrap(), format!("chmod o-w {}", open.display()));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(Sockets::open(&open.join("admin.sock")).is_ok());

        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        let error = Sockets::open(&link.join("admin.sock")).unwrap_err();
        assert_eq!(error.code, ErrorCode::SocketUnsafe);

        let fresh = dir.path().join("above/fresh");
        drop(Sockets::open(&fresh.join("admin.sock")).unwrap());
        assert_eq!((mode_of(&fresh), mode_of(&dir.path().join("above")) & 0o022), (0o755, 0));
    }

    #[test]
    fn a_second_daemon_is_refused_and_told_the_pid_and_a_stale_socket_is_not_in_the_way() {
        let dir = folder();
        let path = dir.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket left by a dead daemon");
        let other = dir.path().join("other.sock");
        let listener = UnixListener::bind(&other).unwrap();
        let error = Sockets::open(&other).unwrap_err();
        assert_eq!(error.code, ErrorCode::SocketUnsafe, "{error}");
        assert!(other.exists(), "another program's socket must stay");
        drop(listener);
        let first = Sockets::open(&path).unwrap();
        let error = Sockets::open(&path).unwrap_err();
        assert_eq!(error.code, ErrorCode::DaemonRunning);
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        assert!(path.exists(), "the refused one must not take the socket away");
        drop(first);
        assert!(Sockets::open(&path).is_ok());
    }

    #[test]
    fn paths_that_are_none() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        for path in [Path::new("/"), Path::new(""), Path::new(".."), &long] {
            assert_eq!(Sockets::open(path).unwrap_err().code, ErrorCode::SocketInvalid, "{path:?}");
        }
        assert_eq!(
            read_socket_of(Path::new("/run/warpraid/admin.sock")),
            Path::new("/run/warpraid/read.sock")
        );
        assert_eq!(read_socket_of(Path::new("/tmp/a.sock")), Path::new("/tmp/a-read.sock"));
    }
}
