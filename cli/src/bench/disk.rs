//! `bench disk`: a disk of a running daemon, any NBD export, or a path.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use benches::load::steps::{Load, measure};
use benches::load::{OpenDrive, OpenOptions, Target};
use server::control::model::{DiskDoc, ExposureKind};
use server::control::routes::Op;
use server::control::{ApiError, ErrorCode, names};
use stamps::nbd::{Client as NbdClient, Endpoint, Options, transmission};

use super::args::{DiskArgs, Preset};
use super::drives::{block_size, blocks_fit, claimed, confirmed, destroys};
use super::load::{Usual, load};
use super::progress::Watched;
use super::{finish, planned, session_error};
use crate::client::Client;
use crate::confirm;
use crate::output::{Ended, Failure, Output, decoded};
use crate::units::human;

/// No answer of an NBD server for so long is an error.
const NBD_TIMEOUT: Duration = Duration::from_secs(30);

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Nbd { endpoint: Endpoint, export: String },
    Folder(PathBuf),
    Drive(PathBuf),
}

fn invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::UsageInvalid, message)
        .hint("give GROUP/DISK, a path, nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")
}

/// The server and export of an NBD URI.
fn uri(text: &str) -> Result<Option<Place>, ApiError> {
    let decode = |part: &str| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned();
    if let Some(rest) = text.strip_prefix("nbd+unix://") {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
        let socket = socket.filter(|socket| !socket.is_empty());
        let socket = socket.ok_or_else(|| invalid(format!("the URI \"{text}\" names no socket")))?;
        let export = decode(path.strip_prefix('/').unwrap_or(path));
        return Ok(Some(Place::Nbd { endpoint: Endpoint::Unix(decode(socket).into()), export }));
    }
    if let Some(rest) = text.strip_prefix("nbd://") {
        let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
        if server.is_empty() {
            return Err(invalid(format!("the URI \"{text}\" names no server")));
        }
        let has_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let server = if has_port { server.to_owned() } else { format!("{server}:10809") };
        return Ok(Some(Place::Nbd { endpoint: Endpoint::Tcp(server), export: decode(export) }));
    }
    Ok(None)
}

fn path(text: &str) -> Result<Option<Place>, ApiError> {
    let path = Path::new(text);
    let Ok(found) = std::fs::metadata(path) else {
        let is_path = text.starts_with(['/', '.']) || !text.contains('/');
        let message = format!("{text}: there is no such file or folder");
        return if is_path { Err(ApiError::new(ErrorCode::DriveNotFound, message)) } else { Ok(None) };
    };
    let kind = found.file_type();
    if kind.is_dir() {
        return Ok(Some(Place::Folder(path.to_owned())));
    }
    if kind.is_file() || kind.is_block_device() {
        return Ok(Some(Place::Drive(path.to_owned())));
    }
    Err(ApiError::new(
        ErrorCode::DriveInvalid,
        format!("{text} is neither a folder, a file nor a block device"),
    ))
}

/// How a disk of the daemon is reached. A disk to be written must have no other client.
fn of_daemon(text: &str, writes: bool, socket: Option<PathBuf>) -> Result<Place, Failure> {
    let (group, disk) = names::disk_ref(text)?;
    let client = Client::new(socket)?;
    let found: DiskDoc = decoded(&client.look(Op::Disk, &[("group", group), ("disk", disk)], &())?)?;
    let usable = |read_only: bool| !(writes && read_only);
    let exposure = found.exposures.iter().find(|exposure| usable(exposure.read_only)).ok_or_else(|| {
        ApiError::new(
            ErrorCode::ExposeNotFound,
            format!("{text} is not served{}", if writes { " for writing" } else { "" }),
        )
        .hint(format!("warpraid disk expose {text} --nbd unix:/tmp/bench.sock"))
    })?;
    if writes && let Some(other) = found.exposures.iter().flat_map(|exposure| &exposure.clients).next() {
        let message = format!("{text} is used by {other}");
        return Err(ApiError::new(ErrorCode::DiskBusy, message)
            .hint("disconnect it first, or only read")
            .into());
    }
    if exposure.kind == ExposureKind::Ublk {
        return Ok(Place::Drive(PathBuf::from(&exposure.uri)));
    }
    let endpoint = Endpoint::parse(&exposure.address)
        .ok_or_else(|| ApiError::new(ErrorCode::DaemonAnswer, format!("the address {}", exposure.address)))?;
    Ok(Place::Nbd { endpoint, export: exposure.export.clone() })
}

/// Connects once, to know the export's size and, if it is to be written, that nothing lies on it.
fn nbd_target(endpoint: Endpoint, export: String, name: &str, writes: bool) -> Result<Target, ApiError> {
    let failed = |error: stamps::nbd::Error| {
        ApiError::new(ErrorCode::Io, format!("{name}: {error}"))
            .hint("is it served, and is this its address?")
    };
    let options = Options { timeout: NBD_TIMEOUT, ..Options::export(&export) };
    let mut client = NbdClient::connect(&endpoint, &options).map_err(failed)?;
    let size_bytes = client.export().size_bytes;
    if writes {
        if client.export().flags & transmission::READ_ONLY != 0 {
            return Err(ApiError::new(ErrorCode::UsageInvalid, format!("{name} refuses writes"))
                .hint("measure reading, or serve it for writing"));
        }
        let read = |at: u64, bytes: u32| client.read(at, bytes).map_err(|error| error.to_string());
        let found = benches::load::signatures(size_bytes, read);
        let found = found.map_err(|error| ApiError::new(ErrorCode::Io, format!("{name}: {error}")))?;
        if !found.is_empty() {
            let message = format!("{name} carries {}", found.join(", "));
            return Err(ApiError::new(ErrorCode::DriveUsed, message).hint("read it, or measure a blank disk"));
        }
    }
    client.disconnect().map_err(failed)?;
    Ok(Target::Nbd { endpoint, export, size_bytes })
}

/// Files of our own in a folder, one for each thread; they are gone when this is dropped.
struct Files {
    folder: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    fn new(folder: &Path, load: &Load) -> Result<Self, ApiError> {
        let failed = |what: &Path, error: &dyn std::fmt::Display| {
            ApiError::new(ErrorCode::Io, format!("{}: {error}", what.display()))
        };
        let size = load.size_bytes.unwrap_or(0);
        let wanted = size.saturating_mul(load.threads.into());
        let free = rustix::fs::statvfs(folder).map_err(|error| failed(folder, &error))?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        if wanted > free {
            let message =
                format!("{} has {} free, {} are needed", folder.display(), human(free), human(wanted));
            return Err(ApiError::new(ErrorCode::UsageInvalid, message)
                .hint("take a smaller --size or fewer --threads"));
        }
        let made = tempfile::Builder::new().prefix("warpraid-bench-").tempdir_in(folder);
        let folder = made.map_err(|error| failed(folder, &error))?;
        let mut paths = Vec::new();
        for thread in 1..=load.threads {
            let path = folder.path().join(format!("file-{thread}"));
            let file = std::fs::File::create_new(&path).map_err(|error| failed(&path, &error))?;
            file.set_len(size).map_err(|error| failed(&path, &error))?;
            paths.push(path);
        }
        Ok(Self { folder, paths })
    }

    fn targets(&self, load: &Load) -> Result<Vec<Target>, ApiError> {
        let options = OpenOptions { block_size: block_size(load), ..OpenOptions::default() };
        let open = |path: &PathBuf| {
            OpenDrive::open(path, options)
                .map(Target::Drive)
                .map_err(|error| ApiError::new(ErrorCode::Io, error.to_string()))
        };
        self.paths.iter().map(open).collect()
    }

    fn remove(self) -> Result<(), ApiError> {
        let path = self.folder.path().to_owned();
        self.folder.close().map_err(|error| {
            ApiError::new(ErrorCode::Io, format!("{}: cannot be removed: {error}", path.display()))
        })
    }
}

pub(super) fn run(args: &DiskArgs, socket: Option<PathBuf>, output: &Output) -> Ended {
    let found = match uri(&args.target)? {
        Some(place) => Some(place),
        None => path(&args.target)?,
    };
    let usual = if matches!(found, Some(Place::Folder(_))) { Usual::Both } else { Usual::Read };
    let load = load(&args.load, Preset::Ior, usual, 1)?;
    let place = match found {
        Some(place) => place,
        None => of_daemon(&args.target, load.writes(), socket)?,
    };
    match place {
        Place::Folder(folder) => in_folder(&folder, args, load, output),
        Place::Drive(path) => on_drive(path, args, &load, output),
        Place::Nbd { endpoint, export } => over_nbd(endpoint, export, args, &load, output),
    }
}

fn measured(targets: &[Target], load: &Load, owns: bool, args: &DiskArgs, output: &Output) -> Ended {
    let watched = Watched::start(output)?;
    let cases = measure("disk", targets, load, owns, watched.control());
    let stopped = watched.finish();
    finish(cases.map_err(|error| session_error(&error))?, &args.report, stopped, output)
}

fn in_folder(folder: &Path, args: &DiskArgs, mut load: Load, output: &Output) -> Ended {
    let files = load.threads;
    if args.writes.dry_run {
        let size = human(load.size_bytes.unwrap_or(0));
        let step = format!("make {files} files of {size} each in {}, measure, remove them", folder.display());
        return planned("bench disk", &folder.display().to_string(), vec![step], output);
    }
    let made = Files::new(folder, &load)?;
    // A file for each thread: every file is a target with one thread.
    load.threads = 1;
    let ended = measured(&made.targets(&load)?, &load, true, args, output);
    made.remove()?;
    ended
}

fn on_drive(path: PathBuf, args: &DiskArgs, load: &Load, output: &Output) -> Ended {
    let drives = vec![path];
    let opened = if load.writes() {
        if !args.writes.dry_run {
            confirmed(&drives, args.writes, output)?;
        }
        claimed(&drives, load)?
    } else {
        vec![server::daemon::open_to_read(&drives[0], block_size(load))?]
    };
    blocks_fit(&opened, load)?;
    if args.writes.dry_run {
        let read = || vec![format!("read {}", drives[0].display())];
        let steps = if load.writes() { destroys(&drives) } else { read() };
        return planned("bench disk", &args.target, steps, output);
    }
    let targets: Vec<Target> = opened.into_iter().map(Target::Drive).collect();
    measured(&targets, load, load.writes(), args, output)
}

fn over_nbd(endpoint: Endpoint, export: String, args: &DiskArgs, load: &Load, output: &Output) -> Ended {
    let name = &args.target;
    let target = nbd_target(endpoint, export, name, load.writes())?;
    let size = human(target.size_bytes());
    if args.writes.dry_run {
        let word = if load.writes() { "write over" } else { "read" };
        return planned("bench disk", name, vec![format!("{word} {name} ({size})")], output);
    }
    if load.writes() && confirm::must_ask(output, &format!("writing over {name}"), args.writes, None)? {
        confirm::typed(&format!("{name} ({size}) will be written over."), name)?;
    }
    measured(&[target], load, load.writes(), args, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_a_server_and_an_export() {
        let unix = |socket: &str, export: &str| {
            Some(Place::Nbd { endpoint: Endpoint::Unix(socket.into()), export: export.into() })
        };
        let tcp = |at: &str, export: &str| {
            Some(Place::Nbd { endpoint: Endpoint::Tcp(at.into()), export: export.into() })
        };
        assert_eq!(uri("nbd+unix:///tank/home?socket=/tmp/a%20b").unwrap(), unix("/tmp/a b", "tank/home"));
        assert_eq!(uri("nbd+unix://?socket=/s").unwrap(), unix("/s", ""));
        assert_eq!(uri("nbd://127.0.0.1:1234/x").unwrap(), tcp("127.0.0.1:1234", "x"));
        assert_eq!(uri("nbd://host").unwrap(), tcp("host:10809", ""));
        assert_eq!(uri("tank/home").unwrap(), None);
        for bad in ["nbd+unix:///x", "nbd+unix:///x?socket=", "nbd:///x"] {
            assert_eq!(uri(bad).unwrap_err().code, ErrorCode::UsageInvalid, "{bad}");
        }
    }
}
