//! Disks served to this host as block devices: exposed, shown, taken over at start, left at the end.
//!
//! A disk is served in one way at a time: two would not see each other's caches. The device carries the first half of the
//! disk's uuid as its mark, so that after a restart nobody else's device is mistaken for it. `/dev/warpraid/GROUP/DISK` is
//! a link to it; the kernel's number changes from boot to boot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nvme_backend::ublk::{holders_of, protect_process, protect_thread};
use raid_core::disks::Disk as TableDisk;
use raid_core::geometry::Level;

use super::disks::DiskSource;
use super::running::Running;
use super::state::SavedExposure;
use super::{Daemon, stopping};
use crate::control::model::{ExposureDoc, ExposureKind};
use crate::control::{ApiError, ErrorCode, EventCode};
use crate::disk::Disk;
use crate::events::NewEvent;
use crate::lane::on_lane;
use crate::ublk::device::{Device, UblkError, open_control};
use crate::ublk::params::params_of;

/// What the state folder calls such an exposure: this and the device's number.
const ADDRESS: &str = "ublk:";
/// Where links to the devices are.
const LINKS: &str = "/dev/warpraid";

/// A disk served as a block device.
pub(super) struct BlockDevice {
    /// The disk's name in its group.
    pub disk: String,
    read_only: bool,
    pub(super) source: Arc<DiskSource>,
    device: Device,
}

/// What all devices of the daemon share.
pub(super) struct Ublk {
    began: Instant,
    is_protected: AtomicBool,
}

impl Default for Ublk {
    fn default() -> Self {
        Self { began: Instant::now(), is_protected: AtomicBool::new(false) }
    }
}

fn mark_of(disk: &TableDisk) -> u64 {
    let (half, _) = disk.id.0.split_at(8);
    u64::from_be_bytes(half.try_into().expect("half a uuid"))
}

fn link_of(group: &Running, disk: &str) -> PathBuf {
    Path::new(LINKS).join(group.name()).join(disk)
}

/// Makes the link, in place of an older one.
fn link(link: &Path, device: &Path) -> io::Result<()> {
    let folder = link.parent().expect("a link below a folder");
    fs::create_dir_all(folder)?;
    // No disk is called so: names do not begin with a dot.
    let fresh = folder.join(".new");
    // One that a killed daemon left.
    let _ = fs::remove_file(&fresh);
    std::os::unix::fs::symlink(device, &fresh)?;
    fs::rename(&fresh, link)
}

/// Whether a link leads to a device: ours by its whole path, one that udev made in its place by the way there.
fn leads_to(link: &Path, device: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.file_name() == device.file_name())
}

/// Tells udev which disk this is: a file that `63-warpraid.rules` reads, and the event at which it does. Without it
/// systemd would know no device of the link's name, and mounts in fstab would wait for one. Where there is no udev nobody
/// reads it.
fn tell_udev(folder: &Path, group: &str, disk: &str, device: &Path) -> io::Result<()> {
    let Some(name) = device.file_name() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    fs::write(folder.join(name), format!("WARPRAID_GROUP={group}\nWARPRAID_DISK={disk}\n"))?;
    fs::write(Path::new("/sys/class/block").join(name).join("uevent"), "change")
}

/// Removes the link, if it still leads to the device.
fn unlink(link: &Path, device: &Path) {
    if leads_to(link, device) {
        // The link of a device that is gone is harmless; the folder is kept while others are in it.
        let _ = fs::remove_file(link);
        let _ = link.parent().map(fs::remove_dir);
    }
}

/// The API error of a device that is not there.
fn api_error(subject: &str, error: &UblkError) -> ApiError {
    let over_nbd = format!("over NBD: warpraid disk expose {subject} --nbd unix:PATH");
    let (code, hint) = match error {
        UblkError::NoModule => {
            (ErrorCode::ExposeUblkUnavailable, format!("modprobe ublk_drv, or {over_nbd}"))
        }
        UblkError::NotPermitted(_) => {
            (ErrorCode::NotPermitted, format!("run the daemon as root, or {over_nbd}"))
        }
        UblkError::TooOld(_) => (ErrorCode::ExposeUblkUnavailable, over_nbd),
        UblkError::Busy { .. } => (ErrorCode::DiskBusy, "unmount and close it first, or use --force".into()),
        UblkError::NotOurs(_) | UblkError::Os { .. } => {
            (ErrorCode::Io, "dmesg | tail may say more; warpraid explain io".into())
        }
    };
    ApiError::new(code, format!("disk {subject}: {error}")).hint(hint)
}

fn subject(group: &Running, disk: &str) -> String {
    format!("{}/{disk}", group.name())
}

impl Daemon {
    /// What can be said before a disk is served: it is not yet, and the kernel can.
    pub(super) fn check_ublk(&self, group: &Running, disk: &str) -> Result<(), ApiError> {
        if let Some(doc) = self.exposure_docs(group, disk).first() {
            let message = format!("disk {} is already exposed at {}", subject(group, disk), doc.address);
            return Err(ApiError::new(ErrorCode::DiskBusy, message)
                .hint("one disk is served in one way at a time: warpraid disk unexpose first"));
        }
        open_control().map(drop).map_err(|error| api_error(&subject(group, disk), &error))
    }

    /// Keeps reclaim from waiting for us, once.
    async fn protect(&self) {
        if self.ublk.is_protected.swap(true, Ordering::SeqCst) {
            return;
        }
        for lane in &self.lanes {
            lane.run(Box::new(|_| {
                if let Some(refused) = protect_thread() {
                    tracing::warn!("{refused}");
                }
            }));
        }
        let mut refused: Vec<String> = protect_thread().into_iter().collect();
        refused.extend(tokio::task::spawn_blocking(protect_process).await.unwrap_or_default());
        for what in refused {
            tracing::warn!("{what}");
        }
    }

    /// Serves a disk as a block device.
    pub(super) async fn expose_ublk(
        &self,
        group: &Arc<Running>,
        disk: &TableDisk,
        read_only: bool,
    ) -> Result<(), ApiError> {
        self.check_ublk(group, &disk.name)?;
        self.protect().await;
        let source = self.source_of(group, disk, read_only);
        let failed = |error: &UblkError| api_error(&subject(group, &disk.name), error);
        let geometry = group.shared.geometry();
        let chunk = (geometry.level() != Level::Raid1).then(|| geometry.chunk_bytes());
        let (uuid, start, bytes) = (group.uuid, disk.start, disk.bytes);
        let params = on_lane(&group.home, move |state| async move {
            let disk = Disk::new(state.group(uuid)?, start, bytes, read_only)?;
            Some(params_of(&disk, chunk))
        });
        let params = params.await.map_err(|_| stopping())?.ok_or_else(stopping)?;
        let device = Device::create(&self.lanes, Arc::clone(&source), params, mark_of(disk))
            .await
            .map_err(|error| failed(&error))?;
        self.serves(group, disk, device, source, read_only);
        Ok(())
    }

    /// Takes note of a device that is up.
    fn serves(
        &self,
        group: &Arc<Running>,
        disk: &TableDisk,
        device: Device,
        source: Arc<DiskSource>,
        read_only: bool,
    ) {
        let path = link_of(group, &disk.name);
        if let Err(error) = link(&path, &device.path()) {
            tracing::warn!(link = %path.display(), %error, "no link to the block device");
        }
        if let Err(error) = tell_udev(&self.udev_folder(), group.name(), &disk.name, &device.path()) {
            tracing::warn!(disk = disk.name, %error, "udev is not told what the block device is");
        }
        let key = Self::disk_key(group, &disk.name);
        self.state.forget_exposures(&key, None);
        let address = format!("{ADDRESS}{}", device.id());
        self.state.remember_exposure(&key, SavedExposure { address, read_only });
        let served = Arc::new(BlockDevice { disk: disk.name.clone(), read_only, source, device });
        group.ublk.lock().push(served);
    }

    /// Serves again what the state folder has at this address; `None` if it is not one of a block device.
    pub(super) async fn restore_ublk(
        &self,
        group: &Arc<Running>,
        disk: &TableDisk,
        saved: &SavedExposure,
    ) -> Option<Result<(), ApiError>> {
        let id = saved.address.strip_prefix(ADDRESS)?.parse().ok()?;
        let is_served = group.ublk.lock().iter().any(|served| served.disk == disk.name);
        if is_served {
            return Some(Ok(()));
        }
        self.protect().await;
        let source = self.source_of(group, disk, saved.read_only);
        let began = Instant::now();
        let taken = Device::take_over(&self.lanes, Arc::clone(&source), id, mark_of(disk)).await;
        let (device, size_bytes) = match taken {
            Ok(taken) => taken,
            Err(UblkError::NotOurs(_)) => return Some(self.expose_ublk(group, disk, saved.read_only).await),
            Err(error) => return Some(Err(api_error(&subject(group, &disk.name), &error))),
        };
        let message = format!(
            "disk {}: {} goes on {} ms after this daemon began, {} ms of them to take it over",
            subject(group, &disk.name),
            device.path().display(),
            self.ublk.began.elapsed().as_millis(),
            began.elapsed().as_millis()
        );
        tracing::info!("{message}");
        self.upgrade.resumed(subject(group, &disk.name));
        self.note(NewEvent::new(EventCode::DiskResumed, message).group(group.name()).disk(&disk.name));
        if size_bytes < disk.bytes
            && let Err(error) = device.resize(disk.bytes).await
        {
            tracing::warn!(disk = disk.name, %error, "the block device keeps its old size");
        }
        self.serves(group, disk, device, source, saved.read_only);
        Some(Ok(()))
    }

    /// The devices of a group, or of one of its disks.
    fn devices_of(group: &Running, disk: Option<&str>) -> Vec<Arc<BlockDevice>> {
        let all = group.ublk.lock();
        all.iter().filter(|served| disk.is_none_or(|name| served.disk == name)).cloned().collect()
    }

    /// Takes block devices of a group out of service: all, or those of one disk.
    ///
    /// # Errors
    /// `disk.busy` with who uses it; then what was taken out before stays out.
    pub(super) async fn close_ublk(
        &self,
        group: &Running,
        disk: Option<&str>,
        force: bool,
    ) -> Result<(), ApiError> {
        for served in Self::devices_of(group, disk) {
            let removed = served.device.remove(force).await;
            removed.map_err(|error| api_error(&subject(group, &served.disk), &error))?;
            let path = served.device.path();
            unlink(&link_of(group, &served.disk), &path);
            if let Some(name) = path.file_name() {
                // Only a reader of its name would miss it, and the name is free for another device.
                let _ = fs::remove_file(self.udev_folder().join(name));
            }
            group.ublk.lock().retain(|other| !Arc::ptr_eq(other, &served));
        }
        Ok(())
    }

    /// At the daemon's end: devices in use are left to the next daemon, their clients wait; the others go.
    pub(super) async fn leave_ublk(&self) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        for group in groups {
            for served in Self::devices_of(&group, None) {
                let path = served.device.path();
                if self.close_ublk(&group, Some(&served.disk), false).await.is_ok() {
                    continue;
                }
                served.device.leave().await;
                tracing::info!(
                    "disk {}: {} is in use and waits for the next daemon",
                    subject(&group, &served.disk),
                    path.display()
                );
                group.ublk.lock().retain(|other| !Arc::ptr_eq(other, &served));
            }
        }
    }

    /// Before another program takes over: every device is left to it, in use or not.
    pub(super) async fn leave_all_ublk(&self) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        for group in groups {
            for served in Self::devices_of(&group, None) {
                served.device.leave().await;
                group.ublk.lock().retain(|other| !Arc::ptr_eq(other, &served));
            }
        }
    }

    /// How a disk is served as a block device, if it is.
    pub(super) fn ublk_docs(group: &Running, disk: &str) -> Vec<ExposureDoc> {
        let doc = |served: Arc<BlockDevice>| {
            let (link, device) = (link_of(group, disk), served.device.path());
            let is_linked = leads_to(&link, &device);
            ExposureDoc {
                kind: ExposureKind::Ublk,
                address: format!("{ADDRESS}{}", served.device.id()),
                uri: if is_linked { &link } else { &device }.display().to_string(),
                export: subject(group, disk),
                read_only: served.read_only,
                clients: holders_of(&device),
            }
        };
        Self::devices_of(group, Some(disk)).into_iter().map(doc).collect()
    }

    /// Lets a block device grow with its disk, where the kernel can.
    pub(super) async fn resize_ublk(group: &Running, disk: &TableDisk) {
        for served in Self::devices_of(group, Some(&disk.name)) {
            match served.device.resize(disk.bytes).await {
                Ok(true) => {}
                Ok(false) => tracing::info!(
                    disk = disk.name,
                    "this kernel cannot grow a block device in use: unexpose and expose it"
                ),
                Err(error) => tracing::warn!(disk = disk.name, %error, "the block device keeps its old size"),
            }
        }
    }

    /// Where udev finds what our block devices are: beside the socket.
    fn udev_folder(&self) -> PathBuf {
        self.options.socket.with_file_name("block")
    }

    /// How lanes reach a disk.
    fn source_of(&self, group: &Running, disk: &TableDisk, read_only: bool) -> Arc<DiskSource> {
        Arc::new(DiskSource::new(group.uuid, disk, read_only, self.lanes.len()))
    }
}
