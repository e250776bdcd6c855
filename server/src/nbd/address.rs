//! Where to listen: `unix:PATH` or `tcp:ADDR:PORT`, parsed and bound in this one place.
//!
//! Invariants (CASES AD-03): nobody but the daemon's own user can connect to a unix socket, from the first instant and
//! whatever the umask: it is bound under a private name, gets mode 0600, listens, and only then is moved to its path. The
//! folders above it belong to root or to us and others cannot rename what is in them. A socket somebody still answers on
//! is left alone, and so is anything that is not a socket. TCP listens on loopback only, since NBD here has neither
//! encryption nor passwords.

use std::fs::{self, Metadata};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// Longest path of a unix socket, in bytes (the kernel's 108 with the closing NUL).
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Connections the kernel keeps waiting for us to accept.
const BACKLOG: i32 = 128;

/// Where to listen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Address {
    /// A unix socket at an absolute path.
    Unix(PathBuf),
    /// A loopback TCP port.
    Tcp(SocketAddr),
}

/// Why a text is not an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// Neither form.
    #[error("NBD address {0:?}: expected unix:PATH or tcp:ADDR:PORT, such as tcp:127.0.0.1:10809")]
    Form(String),
    /// A relative path, or one that names no file.
    #[error(
        "NBD address {0:?}: the socket's path must be absolute and name a file, such as unix:/run/warpraid/d.nbd"
    )]
    Path(String),
    /// The kernel cannot take it.
    #[error(
        "NBD address {address:?}: the socket's path has {bytes} bytes; at most {UNIX_PATH_BYTES_MAX} are possible"
    )]
    TooLong {
        /// The address.
        address: String,
        /// Its length.
        bytes: usize,
    },
    /// Not an address and a port.
    #[error("NBD address {0:?}: expected tcp:ADDR:PORT with a numeric address and a port from 1 to 65535")]
    Socket(String),
    /// Reachable from outside.
    #[error(
        "NBD address {0:?}: only loopback addresses (127.0.0.0/8, [::1]) are allowed, as NBD is not encrypted"
    )]
    NotLoopback(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let shown = || text.to_owned();
        if let Some(path) = text.strip_prefix("unix:") {
            let bytes = path.len();
            if bytes > UNIX_PATH_BYTES_MAX {
                return Err(AddressError::TooLong { address: shown(), bytes });
            }
            let path = PathBuf::from(path);
            let is_plain = path.is_absolute() && path.file_name().is_some() && !text.ends_with(['/', '.']);
            if !is_plain || text.contains('\0') {
                return Err(AddressError::Path(shown()));
            }
            return Ok(Self::Unix(path));
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(AddressError::Form(shown()));
        };
        let address: SocketAddr = match rest.strip_prefix("localhost:") {
            Some(port) => {
                let port = port.parse().map_err(|_| AddressError::Socket(shown()))?;
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
            }
            None => rest.parse().map_err(|_| AddressError::Socket(shown()))?,
        };
        if address.port() == 0 {
            return Err(AddressError::Socket(shown()));
        }
        if !address.ip().is_loopback() {
            return Err(AddressError::NotLoopback(shown()));
        }
        Ok(Self::Tcp(address))
    }
}

impl core::fmt::Display for Address {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

impl Address {
    /// The NBD URI of an export, as clients want it.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        let export = percent_encoded(export.as_bytes());
        match self {
            Self::Unix(path) => {
                let path = percent_encoded(path.as_os_str().as_bytes());
                format!("nbd+unix:///{export}?socket={path}")
            }
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there.
    #[error("{0}: somebody already listens there")]
    InUse(Address),
    /// Something else is there.
    #[error("{0}: exists and is not a socket; nothing was changed")]
    NotASocket(PathBuf),
    /// Somebody else's socket is there.
    #[error("{path}: is a socket of uid {uid}; nothing was changed")]
    Foreign {
        /// Where.
        path: PathBuf,
        /// Whose.
        uid: u32,
    },
    /// Somebody else could swap the socket.
    #[error("{folder}: {why}; put the socket into a folder that only its owner can write to")]
    UnsafeFolder {
        /// The folder or link.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What the kernel says.
    #[error("{address}: cannot {doing}: {source}")]
    Os {
        /// The address.
        address: Address,
        /// What was tried.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A socket that listens.
#[derive(Debug)]
pub struct Bound {
    /// The socket.
    pub fd: OwnedFd,
    /// The file of a unix socket, to be removed with it: path, device, inode.
    file: Option<(PathBuf, u64, u64)>,
}

impl Bound {
    /// Removes a unix socket's file, if it is still the one that was made.
    pub fn remove_file(&self) {
        let Some((path, device, inode)) = &self.file else { return };
        let is_ours = fs::symlink_metadata(path).is_ok_and(|is| is.dev() == *device && is.ino() == *inode);
        if is_ours && let Err(error) = fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "the NBD socket's file stays behind");
        }
    }
}

/// Listens on an address.
///
/// # Errors
/// [`BindError`]; then nothing has changed.
pub fn bind_address(address: &Address) -> Result<Bound, BindError> {
    let os = |doing, source| BindError::Os { address: address.clone(), doing, source };
    match address {
        Address::Tcp(socket) => match TcpListener::bind(socket) {
            Ok(listener) => Ok(Bound { fd: listener.into(), file: None }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(BindError::InUse(address.clone())),
            Err(error) => Err(os("listen", error)),
        },
        Address::Unix(path) => {
            let folder = path.parent().expect("an absolute path of a file has a parent");
            check_folder(folder, address)?;
            check_place(path, address)?;
            bind_unix(path, folder, address)
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Refuses folders and links through which somebody else could put another socket in place of ours.
fn check_folder(folder: &Path, address: &Address) -> Result<(), BindError> {
    let os =
        |source| BindError::Os { address: address.clone(), doing: "look at the socket's folder", source };
    let trusts = |meta: &Metadata| meta.uid() == 0 || meta.uid() == own_uid();
    // Every step of the path as written, then every folder it really leads through.
    let real = fs::canonicalize(folder).map_err(os)?;
    for step in folder.ancestors().chain(real.ancestors()) {
        let meta = fs::symlink_metadata(step).map_err(os)?;
        let refuse = |why: String| Err(BindError::UnsafeFolder { folder: step.to_owned(), why });
        if !trusts(&meta) {
            return refuse(format!("belongs to uid {}", meta.uid()));
        }
        if meta.is_symlink() {
            continue;
        }
        let mode = meta.mode();
        let is_sticky = mode & 0o1000 != 0;
        let own_group = meta.gid() == 0 || meta.gid() == rustix::process::getegid().as_raw();
        if mode & 0o002 != 0 && !is_sticky {
            return refuse("can be written to by everybody".to_owned());
        }
        if mode & 0o020 != 0 && !is_sticky && !own_group {
            return refuse(format!("can be written to by group {}", meta.gid()));
        }
    }
    Ok(())
}

/// Refuses a path on which there is anything but a dead socket of ours.
fn check_place(path: &Path, address: &Address) -> Result<(), BindError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(BindError::Os { address: address.clone(), doing: "look at the socket", source });
        }
    };
    if !meta.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    if meta.uid() != own_uid() {
        return Err(BindError::Foreign { path: path.to_owned(), uid: meta.uid() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(_) => Err(BindError::InUse(address.clone())),
        Err(source) => {
            Err(BindError::Os { address: address.clone(), doing: "see whether somebody answers", source })
        }
    }
}

fn bind_unix(path: &Path, folder: &Path, address: &Address) -> Result<Bound, BindError> {
    let os = |doing, source| BindError::Os { address: address.clone(), doing, source };
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| os("draw a name", error.into()))?;
    let private = folder.join(format!(".{:08x}", u32::from_ne_bytes(random)));
    let name = SocketAddrUnix::new(&private).map_err(|error| os("use so long a path", error.into()))?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| os("make a socket", error.into()))?;
    bind(&fd, &name).map_err(|error| os("bind", error.into()))?;
    // Nobody can connect before `listen`, whatever mode the umask left.
    let published = fs::set_permissions(&private, fs::Permissions::from_mode(0o600))
        .map_err(|error| os("set the socket's mode", error))
        .and_then(|()| listen(&fd, BACKLOG).map_err(|error| os("listen", error.into())))
        .and_then(|()| fs::symlink_metadata(&private).map_err(|error| os("look at the socket", error)))
        .and_then(|meta| {
            fs::rename(&private, path).map_err(|error| os("move the socket to its path", error))?;
            Ok(meta)
        });
    match published {
        Ok(meta) => Ok(Bound { fd, file: Some((path.to_owned(), meta.dev(), meta.ino())) }),
        Err(error) => {
            // Best effort: the name is random and nobody listens behind it.
            let _ = fs::remove_file(&private);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in ["unix:/run/x.nbd", "tcp:127.0.0.1:10809", "tcp:[::1]:1", "tcp:127.9.9.9:65535"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("tcp:localhost:5".parse::<Address>().unwrap().to_string(), "tcp:127.0.0.1:5");
        let unix: Address = "unix:/run/a b.nbd".parse().unwrap();
        assert_eq!(unix.uri("g/d"), "nbd+unix:///g/d?socket=/run/a%20b.nbd");
        let tcp: Address = "tcp:[::1]:10809".parse().unwrap();
        assert_eq!(tcp.uri("g/d"), "nbd://[::1]:10809/g/d");
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        let error = |text: &str| text.parse::<Address>().unwrap_err().to_string();
        for text in ["", "x", "/run/x", "udp:127.0.0.1:5", "UNIX:/x"] {
            assert!(error(text).contains("unix:PATH or tcp:ADDR:PORT"), "{text}");
        }
        for text in ["unix:", "unix:x", "unix:/", "unix:/run/", "unix:/run/..", "unix:/run/.", "unix:/a\0b"] {
            assert!(error(text).contains("absolute"), "{text:?}");
        }
        assert!(error(&format!("unix:/{}", "x".repeat(107))).contains("107"));
        for text in
            ["tcp:", "tcp:127.0.0.1", "tcp:127.0.0.1:0", "tcp:127.0.0.1:65536", "tcp:host:5", "tcp:::1:5"]
        {
            assert!(error(text).contains("1 to 65535"), "{text}");
        }
        for text in ["tcp:0.0.0.0:5", "tcp:192.168.1.1:5", "tcp:[::]:5", "tcp:[::ffff:1.2.3.4]:5"] {
            assert!(error(text).contains("loopback"), "{text}");
        }
    }

    fn unix(path: &Path) -> Address {
        format!("unix:{}", path.display()).parse().unwrap()
    }

    #[test]
    fn ad_03_socket_is_private_before_it_listens_and_leaves_with_us() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let bound = bind_address(&unix(&path)).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the private name is gone");
        UnixStream::connect(&path).unwrap();
        assert!(matches!(bind_address(&unix(&path)), Err(BindError::InUse(_))));
        bound.remove_file();
        assert!(!path.exists());
    }

    #[test]
    fn ad_03_only_a_dead_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let dead = bind_address(&unix(&path)).unwrap();
        drop(dead.fd);
        assert!(path.exists(), "a killed daemon leaves its socket");
        let again = bind_address(&unix(&path)).unwrap();
        UnixStream::connect(&path).unwrap();
        // Not the file it made any more: another socket has taken its place.
        drop(again.fd.try_clone());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        again.remove_file();
        assert!(matches!(bind_address(&unix(&path)), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(bind_address(&unix(&link)), Err(BindError::NotASocket(_))));
    }

    #[test]
    fn ad_03_folders_others_can_write_to_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("open");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
        let error = bind_address(&unix(&inner.join("s"))).unwrap_err();
        assert!(matches!(&error, BindError::UnsafeFolder { .. }), "{error}");
        // Through a link it is no better, and the folder further up counts, too.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&inner, &link).unwrap();
        assert!(matches!(bind_address(&unix(&link.join("s"))), Err(BindError::UnsafeFolder { .. })));
        let below = inner.join("below");
        fs::create_dir(&below).unwrap();
        assert!(matches!(bind_address(&unix(&below.join("s"))), Err(BindError::UnsafeFolder { .. })));
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o1777)).unwrap();
        bind_address(&unix(&below.join("s"))).unwrap();
        let missing = folder.path().join("missing/s");
        assert!(bind_address(&unix(&missing)).unwrap_err().to_string().contains("missing/s"));
    }
}
