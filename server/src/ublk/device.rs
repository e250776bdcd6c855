//! A device: made, taken over from a daemon that died, removed, or left for the next daemon.
//!
//! Runs on the control thread; commands to the kernel block, so they run on threads of their own. Invariant: a device
//! that could not be brought up is deleted again, except one that was being taken over: that keeps its clients waiting
//! until somebody can serve it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme_backend::ublk::{
    CONTROL_PATH, Control, DeviceInfo, DeviceState, Params, Queue, SECTOR_BYTES, feature, open_device,
    users_of,
};
use nvme_backend::{Lane, Remote};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::params::negotiate;
use super::serve::{Served, serve_tag};
use crate::nbd::server::Source;

/// Requests in flight of one queue.
const DEPTH: u16 = 128;
/// How long the kernel may take to let go of a dead daemon's device: that one's I/O has to end first.
const TAKE_OVER_WAIT: Duration = Duration::from_secs(120);
/// How long a device node may take to appear or to be closed.
const NODE_WAIT: Duration = Duration::from_secs(30);
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// How long a busy queue may take to have an idle tag, in milliseconds, before a device is left without the kernel's help.
const QUIESCE_MS: u32 = 2000;

/// Why a device is not there.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The module is not loaded.
    #[error(
        "{CONTROL_PATH} is not there: the kernel module ublk_drv is not loaded (Linux 6.5 or newer, CONFIG_BLK_DEV_UBLK)"
    )]
    NoModule,
    /// Not root.
    #[error("{CONTROL_PATH}: {0}: serving block devices needs root (CAP_SYS_ADMIN)")]
    NotPermitted(io::Error),
    /// The kernel cannot do what is needed.
    #[error("this kernel's ublk is too old: it has no {} (Linux 6.5 or newer is needed)", .0.join(", "))]
    TooOld(Vec<&'static str>),
    /// Somebody uses it.
    #[error("{} is in use by {}", path.display(), users.join(", "))]
    Busy {
        /// The block device.
        path: PathBuf,
        /// Who.
        users: Vec<String>,
    },
    /// The device of this number is not the disk's.
    #[error("there is no ublk device {0} of this disk")]
    NotOurs(u32),
    /// What the kernel says.
    #[error("ublk: cannot {doing}: {source}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn os(doing: &'static str) -> impl Fn(io::Error) -> UblkError {
    move |source| UblkError::Os { doing, source }
}

/// Opens the control device; returns the features a device gets on this kernel, too.
///
/// # Errors
/// What is missing.
pub fn open_control() -> Result<(Control, u64), UblkError> {
    let control = Control::open().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => UblkError::NoModule,
        // The node may outlive its module.
        _ if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => UblkError::NoModule,
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted(error),
        _ => UblkError::Os { doing: "open the control device", source: error },
    })?;
    let features = match control.features() {
        Ok(features) => features,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(UblkError::NotPermitted(error));
        }
        // A kernel that does not know the question.
        Err(_) => 0,
    };
    Ok((control, negotiate(features).map_err(UblkError::TooOld)?))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UblkError> + Send + 'static,
) -> Result<T, UblkError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(UblkError::Os { doing: "ask the kernel", source: io::Error::other(error) }),
    }
}

/// A disk served by the kernel.
pub struct Device {
    id: u32,
    features: u64,
    served: Arc<Served>,
    /// The server's end; taken when the device is removed.
    chars: Mutex<Option<Arc<OwnedFd>>>,
}

impl Device {
    /// Makes a device for a disk and brings it up. `mark` is found again by [`Self::take_over`].
    ///
    /// # Errors
    /// Why not; then there is none.
    pub async fn create<S: Source>(
        lanes: &[Remote],
        source: Arc<S>,
        params: Params,
        mark: u64,
    ) -> Result<Self, UblkError> {
        let queues = u16::try_from(lanes.len()).unwrap_or(u16::MAX);
        let info = blocking(move || {
            let (control, features) = open_control()?;
            let wanted = DeviceInfo {
                id: u32::MAX,
                queues,
                depth: DEPTH,
                state: DeviceState::Dead,
                request_bytes_max: params.sectors_max * SECTOR_BYTES,
                pid: -1,
                features,
                mark,
            };
            let info = control.add(&wanted).map_err(os("make a device"))?;
            if let Err(error) = control.set_params(info.id, &params) {
                // Nothing serves it yet, so nothing keeps it.
                let _ = control.delete(info.id);
                return Err(UblkError::Os { doing: "describe the disk to the kernel", source: error });
            }
            Ok(info)
        })
        .await?;
        let device = match Self::open(lanes, &source, &info).await {
            Ok(device) => device,
            Err(error) => {
                let _ = blocking(move || {
                    let (control, _) = open_control()?;
                    control.delete(info.id).map_err(os("delete the device"))
                })
                .await;
                return Err(error);
            }
        };
        let id = info.id;
        let started = blocking(move || open_control()?.0.start(id).map_err(os("start the device")));
        if let Err(error) = started.await {
            let _ = device.remove(true).await;
            return Err(error);
        }
        Ok(device)
    }

    /// Takes over the device of a daemon that is gone, if it has this mark. Returns the size it has, too.
    ///
    /// # Errors
    /// [`UblkError::NotOurs`] when there is nothing to take over; others leave it waiting for a daemon.
    pub async fn take_over<S: Source>(
        lanes: &[Remote],
        source: Arc<S>,
        id: u32,
        mark: u64,
    ) -> Result<(Self, u64), UblkError> {
        let (info, size) = blocking(move || {
            let (control, _) = open_control()?;
            let info = begin_recovery(&control, id, mark)?;
            let params = control.params(id).map_err(os("read the device's parameters"))?;
            Ok((info, params.sectors * u64::from(SECTOR_BYTES)))
        })
        .await?;
        let device = Self::open(lanes, &source, &info).await?;
        blocking(move || open_control()?.0.end_recovery(id).map_err(os("go on with the device"))).await?;
        Ok((device, size))
    }

    /// Opens the server's end and lets lanes wait for requests.
    async fn open<S: Source>(
        lanes: &[Remote],
        source: &Arc<S>,
        info: &DeviceInfo,
    ) -> Result<Self, UblkError> {
        let id = info.id;
        let chars = Arc::new(blocking(move || open_patiently(id)).await?);
        let served = Arc::new(Served::default());
        for number in 0..info.queues {
            let (done, answer) = oneshot::channel();
            let (source, chars, served) = (Arc::clone(source), Arc::clone(&chars), Arc::clone(&served));
            let depth = info.depth;
            lanes[usize::from(number) % lanes.len()].run(Box::new(move |lane| {
                // Whoever asked is gone only when the daemon stops.
                let _ = done.send(start_queue(lane, &source, chars, &served, number, depth));
            }));
            match answer.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(UblkError::Os { doing: "serve a queue", source: error }),
                Err(_) => return Err(os("serve a queue")(io::Error::other("the daemon is stopping"))),
            }
        }
        Ok(Self { id, features: info.features, served, chars: Mutex::new(Some(chars)) })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The block device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        block_path(self.id)
    }

    /// Takes the device away. Without `force` only if nobody uses it.
    ///
    /// # Errors
    /// [`UblkError::Busy`] with the users; then it goes on.
    pub async fn remove(&self, force: bool) -> Result<(), UblkError> {
        let (id, path) = (self.id, self.path());
        let is_safe = self.features & feature::SAFE_STOP_DEV != 0;
        blocking(move || {
            let (control, _) = open_control()?;
            if force {
                return control.stop(id).map_err(os("stop the device"));
            }
            let users = users_of(&path);
            if !users.is_empty() {
                return Err(UblkError::Busy { path, users });
            }
            // Older kernels leave a moment between the look and the stop.
            let stopped = if is_safe { control.try_stop(id) } else { control.stop(id) };
            stopped.map_err(|error| match error.kind() {
                io::ErrorKind::ResourceBusy => {
                    UblkError::Busy { path, users: vec!["somebody who has just opened it".into()] }
                }
                _ => UblkError::Os { doing: "stop the device", source: error },
            })
        })
        .await?;
        // Every fetch has come back with ENODEV. The kernel deletes the device when its other end is closed.
        self.served.gone().await;
        drop(self.chars.lock().take());
        blocking(move || open_control()?.0.delete(id).map_err(os("delete the device"))).await
    }

    /// Answers what was begun and begins no more: the device waits for the next daemon from the end of this one on. Where
    /// the kernel can, it hands out no more requests from here on; else those it still does are sent again to the next
    /// daemon, for none of them is begun.
    pub async fn leave(&self) {
        if self.features & feature::QUIESCE != 0 {
            let id = self.id;
            let quiesced =
                blocking(move || open_control()?.0.quiesce(id, QUIESCE_MS).map_err(os("quiesce the device")));
            if let Err(error) = quiesced.await {
                tracing::info!(id, %error, "the device is left without being quiesced");
            }
        }
        self.served.leave().await;
    }

    /// Lets the device have the disk's new size, where the kernel can; says whether it does.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn resize(&self, size_bytes: u64) -> Result<bool, UblkError> {
        if self.features & feature::UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.served.refresh();
        let (id, sectors) = (self.id, size_bytes / u64::from(SECTOR_BYTES));
        blocking(move || open_control()?.0.update_size(id, sectors).map_err(os("grow the device"))).await?;
        Ok(true)
    }
}

/// The block device of a number.
#[must_use]
pub fn block_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

fn start_queue<S: Source>(
    lane: &Lane,
    source: &Arc<S>,
    chars: Arc<OwnedFd>,
    served: &Arc<Served>,
    number: u16,
    depth: u16,
) -> io::Result<()> {
    let queue = Queue::open(lane, chars, number, depth)?;
    for tag in 0..depth {
        let (place, queue, source, here) = (served.enter(), queue.clone(), Arc::clone(source), lane.clone());
        lane.spawn(serve_tag(place, queue, tag, move || source.export(&here)));
    }
    Ok(())
}

/// Opens the server's end: it appears a moment after the device was made, and is closed a moment after a daemon died.
fn open_patiently(id: u32) -> Result<OwnedFd, UblkError> {
    let deadline = Instant::now() + NODE_WAIT;
    loop {
        match open_device(id) {
            Ok(chars) => return Ok(chars),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(LOOK_PERIOD);
            }
            Err(error) => return Err(UblkError::Os { doing: "open the device's other end", source: error }),
        }
    }
}

/// Waits until the kernel has let go of the dead daemon, and begins to take the device over.
fn begin_recovery(control: &Control, id: u32, mark: u64) -> Result<DeviceInfo, UblkError> {
    let deadline = Instant::now() + TAKE_OVER_WAIT;
    loop {
        let info = match control.info(id) {
            Ok(info) => info,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                return Err(UblkError::NotOurs(id));
            }
            Err(error) => return Err(UblkError::Os { doing: "look at the device", source: error }),
        };
        if info.mark != mark {
            return Err(UblkError::NotOurs(id));
        }
        let begun = match info.state {
            DeviceState::Dead => {
                // Half made or half removed: nobody can have it open.
                control.delete(id).map_err(os("delete a dead device"))?;
                return Err(UblkError::NotOurs(id));
            }
            DeviceState::Quiesced | DeviceState::FailIo => control.start_recovery(id),
            DeviceState::Live | DeviceState::Other(_) => Err(io::ErrorKind::ResourceBusy.into()),
        };
        match begun {
            Ok(()) => return Ok(info),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(LOOK_PERIOD);
            }
            Err(source) => return Err(UblkError::Os { doing: "take the device over", source }),
        }
    }
}
