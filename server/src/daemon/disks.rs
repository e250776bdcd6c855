//! Disks of a running group: their table, and how they are reached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvme_backend::Lane;
use nvme_backend::meter::{IoOp, Metered};
use raid_core::disks::{Disk as TableDisk, DiskError, DiskTable};
use raid_core::geometry::{Geometry, Level};
use raid_core::units::{GroupOffset, Uuid};

use super::extent::store_table;
use super::host::random_u64;
use super::running::Running;
use super::state::SavedExposure;
use super::{Daemon, io_failed, stopping};
use crate::control::model::{DiskDoc, ExposureDoc, ExposureKind, LostRangeDoc, MkfsDoc};
use crate::control::{ApiError, ErrorCode, EventCode};
use crate::disk::Disk;
use crate::events::NewEvent;
use crate::lane::{LaneEnv, current, on_lane};
use crate::metrics::{DiskMeters, MeteredExport};
use crate::nbd::address::{Address, AddressError, BindError};
use crate::nbd::server::{ExposeError, NbdServer, Source, UnexposeError};

/// How long a restored exposure waits for its address.
const RESTORE_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

/// How lanes reach one exposed disk. The length grows with the disk; connections see it when they open the export.
pub(super) struct DiskSource {
    group: Uuid,
    start: GroupOffset,
    len: AtomicU64,
    read_only: bool,
    meters: DiskMeters,
}

impl Source for DiskSource {
    type Env = LaneEnv;
    type Export = MeteredExport<Disk<LaneEnv>>;

    fn env(&self, _lane: &Lane) -> Option<LaneEnv> {
        current().map(|state| state.env().clone())
    }

    fn export(&self, lane: &Lane) -> Option<MeteredExport<Disk<LaneEnv>>> {
        let group = current()?.group(self.group)?;
        let disk = Disk::new(group, self.start, self.len.load(Ordering::Acquire), self.read_only)?;
        Some(MeteredExport::new(disk, lane, self.meters.of_lane(lane)?))
    }
}

/// The NBD front end of the daemon.
pub(super) type Nbd = NbdServer<DiskSource>;

/// One way a disk is reached.
#[derive(Clone)]
pub(super) struct Exposure {
    /// The disk's name in its group.
    pub disk: String,
    /// Where.
    pub address: Address,
    /// Whether writes are refused.
    pub read_only: bool,
    source: Arc<DiskSource>,
}

pub(super) fn disk_error(group: &str, name: &str, error: &DiskError) -> ApiError {
    let code = match error {
        DiskError::Name(_) => ErrorCode::DiskNameInvalid,
        DiskError::Taken(_) => ErrorCode::DiskNameTaken,
        DiskError::NotFound(_) => ErrorCode::DiskNotFound,
        DiskError::Empty | DiskError::NoSpace { .. } => ErrorCode::DiskSizeInvalid,
        DiskError::Full | DiskError::Whole => ErrorCode::DiskTableRefused,
        DiskError::Shrink { .. } => ErrorCode::DiskShrinkRefused,
    };
    let hint = match error {
        DiskError::NoSpace { .. } => format!("warpraid group show {group} tells what is free"),
        DiskError::NotFound(_) => "warpraid disk list shows the disks".to_owned(),
        DiskError::Shrink { .. } => "make a smaller disk and copy to it".to_owned(),
        DiskError::Taken(_) => "choose another name; warpraid disk list shows those in use".to_owned(),
        _ => "warpraid disk create --help".to_owned(),
    };
    ApiError::new(code, format!("disk {group}/{name}: {error}")).hint(hint)
}

/// The commands that make file systems that know the stripe.
pub(super) fn mkfs_doc(geometry: &Geometry) -> MkfsDoc {
    let chunk_kib = geometry.chunk_bytes() / 1024;
    let columns = geometry.data_columns();
    if geometry.level() == Level::Raid1 {
        return MkfsDoc { xfs: "mkfs.xfs DEVICE".into(), ext4: "mkfs.ext4 DEVICE".into() };
    }
    let stride = (geometry.chunk_bytes() / 4096).max(1);
    let width = stride * u32::from(columns);
    MkfsDoc {
        xfs: format!("mkfs.xfs -d su={chunk_kib}k,sw={columns} DEVICE"),
        ext4: format!("mkfs.ext4 -E stride={stride},stripe-width={width} DEVICE"),
    }
}

/// Disks of a group that are served, with a way to read their meters.
pub(super) fn meters(group: &Running) -> Vec<(String, Arc<DiskSource>)> {
    let exposures = group.exposures.lock();
    let devices = group.ublk.lock();
    let over_nbd = exposures.iter().map(|exposure| (exposure.disk.clone(), Arc::clone(&exposure.source)));
    let as_devices = devices.iter().map(|served| (served.disk.clone(), Arc::clone(&served.source)));
    over_nbd.chain(as_devices).collect()
}

impl DiskSource {
    /// A disk of a group, for so many lanes.
    pub(super) fn new(group: Uuid, disk: &TableDisk, read_only: bool, lanes: usize) -> Self {
        let len = AtomicU64::new(disk.bytes);
        Self { group, start: disk.start, len, read_only, meters: DiskMeters::new(lanes) }
    }

    /// Lets exports made from now on see the new size.
    fn resize(&self, size_bytes: u64) {
        self.len.store(size_bytes, Ordering::Release);
    }

    /// What clients have done since the disk is served.
    pub(super) fn metered(&self, op: IoOp) -> Metered {
        self.meters.metered(op)
    }
}

impl Daemon {
    /// How the state folder calls a disk.
    pub(super) fn disk_key(group: &Running, disk: &str) -> String {
        format!("{}/{disk}", group.uuid)
    }

    /// How the state folder calls all disks of a group.
    pub(super) fn disk_keys(&self, group: &Running) -> Vec<String> {
        let table = group.table.lock();
        let disks = table.as_ref().map_or_else(Vec::new, DiskTable::list);
        disks.iter().map(|disk| Self::disk_key(group, &disk.name)).collect()
    }

    /// A disk of a running group.
    pub(super) fn find_disk(group: &Running, name: &str) -> Result<TableDisk, ApiError> {
        let table = group.table.lock();
        let table = table.as_ref().ok_or_else(|| no_table(group))?;
        let not_found = || disk_error(group.name(), name, &DiskError::NotFound(name.to_owned()));
        table.find(name).ok_or_else(not_found)
    }

    /// How a disk is reached.
    pub(super) fn exposure_docs(&self, group: &Running, disk: &str) -> Vec<ExposureDoc> {
        let export = format!("{}/{disk}", group.name());
        let served: BTreeMap<String, Vec<String>> =
            self.nbd.exposures().into_iter().map(|it| (it.disk, it.clients)).collect();
        let mut docs: Vec<ExposureDoc> = group
            .exposures
            .lock()
            .iter()
            .filter(|exposure| exposure.disk == disk)
            .map(|exposure| ExposureDoc {
                kind: ExposureKind::Nbd,
                address: exposure.address.to_string(),
                uri: exposure.address.uri(&export),
                export: export.clone(),
                read_only: exposure.read_only,
                clients: served.get(&export).cloned().unwrap_or_default(),
            })
            .collect();
        docs.extend(Self::ublk_docs(group, disk));
        docs
    }

    /// The document of a disk.
    pub(super) fn disk_doc(&self, group: &Running, disk: &TableDisk) -> DiskDoc {
        DiskDoc {
            group: group.name().to_owned(),
            name: disk.name.clone(),
            uuid: disk.id.to_string(),
            start_bytes: disk.start.0,
            size_bytes: disk.bytes,
            block_size_bytes: group.shared.block_size().bytes(),
            exposures: self.exposure_docs(group, &disk.name),
            scrub: group.scrub.lock().of_disk(&disk.name),
            lost: lost_of(group, &disk.name),
            mkfs: mkfs_doc(group.shared.geometry()),
        }
    }

    /// Changes the table: on the group first, then here. With `dry_run` only the checks are made.
    pub(super) async fn change_table<T: Send>(
        &self,
        group: &Arc<Running>,
        name: &str,
        dry_run: bool,
        edit: impl FnOnce(&mut DiskTable) -> Result<T, DiskError> + Send,
    ) -> Result<T, ApiError> {
        let _change = group.table_change.lock().await;
        let mut table = group.table.lock().clone().ok_or_else(|| no_table(group))?;
        let result = edit(&mut table).map_err(|error| disk_error(group.name(), name, &error))?;
        if dry_run {
            return Ok(result);
        }
        if group.shared.is_offline() {
            return Err(ApiError::new(ErrorCode::GroupOffline, format!("group {} is offline", group.name())));
        }
        let (uuid, stored) = (group.uuid, table.clone());
        let written = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => store_table(&group, &stored).await.map(|()| true),
                None => Ok(false),
            }
        });
        match written.await.map_err(|_| stopping())? {
            Ok(true) => {}
            Ok(false) => return Err(stopping()),
            Err(error) => return Err(io_failed(&format!("disk table of group {}", group.name()), &error)),
        }
        *group.table.lock() = Some(table);
        Ok(result)
    }

    /// A fresh identity for a disk.
    pub(super) fn new_disk_id() -> Uuid {
        Uuid::from_random(random_u64(), random_u64())
    }

    /// Serves a disk.
    pub(super) fn expose_disk(
        &self,
        group: &Arc<Running>,
        disk: &TableDisk,
        address: &Address,
        read_only: bool,
    ) -> Result<(), ApiError> {
        let source = Arc::new(DiskSource::new(group.uuid, disk, read_only, self.lanes.len()));
        let export = format!("{}/{}", group.name(), disk.name);
        if let Some(doc) = Self::ublk_docs(group, &disk.name).first() {
            let message = format!("disk {export} is already exposed at {}", doc.address);
            return Err(ApiError::new(ErrorCode::DiskBusy, message)
                .hint("one disk is served in one way at a time: warpraid disk unexpose first"));
        }
        self.nbd.expose(&export, address, Arc::clone(&source)).map_err(|error| expose_error(&error))?;
        let exposure = Exposure { disk: disk.name.clone(), address: address.clone(), read_only, source };
        group.exposures.lock().push(exposure);
        let saved = SavedExposure { address: address.to_string(), read_only };
        self.state.remember_exposure(&Self::disk_key(group, &disk.name), saved);
        Ok(())
    }

    /// Takes exposures of a group out of service: all, or those of one disk. What the state folder remembers stays.
    ///
    /// # Errors
    /// `disk.busy` with the clients; then what was taken out before stays out.
    pub(super) async fn close_exposures(
        &self,
        group: &Arc<Running>,
        disk: Option<&str>,
        force: bool,
    ) -> Result<(), ApiError> {
        let list: Vec<Exposure> = group.exposures.lock().clone();
        let wanted: Vec<&Exposure> =
            list.iter().filter(|exposure| disk.is_none_or(|name| exposure.disk == name)).collect();
        if !force {
            self.refuse_connected(group, &wanted)?;
        }
        for exposure in wanted {
            let export = format!("{}/{}", group.name(), exposure.disk);
            match self.nbd.unexpose(&export, force).await {
                Ok(()) | Err(UnexposeError::NotExposed(_)) => {}
                Err(UnexposeError::Busy { clients, .. }) => return Err(busy(&export, &clients)),
            }
            group.exposures.lock().retain(|other| !Arc::ptr_eq(&other.source, &exposure.source));
        }
        self.close_ublk(group, disk, force).await
    }

    fn refuse_connected(&self, group: &Running, wanted: &[&Exposure]) -> Result<(), ApiError> {
        let served = self.nbd.exposures();
        for exposure in wanted {
            let export = format!("{}/{}", group.name(), exposure.disk);
            let clients = served.iter().find(|it| it.disk == export).map(|it| &it.clients);
            if let Some(clients) = clients.filter(|clients| !clients.is_empty()) {
                return Err(busy(&export, clients));
            }
        }
        Ok(())
    }

    /// Takes a disk out of service for good.
    pub(super) async fn unexpose_disk(
        &self,
        group: &Arc<Running>,
        disk: &str,
        force: bool,
    ) -> Result<(), ApiError> {
        self.close_exposures(group, Some(disk), force).await?;
        self.state.forget_exposures(&Self::disk_key(group, disk), None);
        Ok(())
    }

    /// Lets connections opened from now on see the new size.
    pub(super) async fn note_resized(group: &Running, disk: &TableDisk) {
        for (_, source) in meters(group).iter().filter(|(name, _)| *name == disk.name) {
            source.resize(disk.bytes);
        }
        Self::resize_ublk(group, disk).await;
    }

    /// Serves again what was served when the daemon ended.
    pub(super) async fn restore_exposures(&self) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        for group in groups {
            self.restore_exposures_of(&group).await;
        }
    }

    /// Serves a disk; an address in use is tried again for a while, because the sockets of a daemon that was killed live on
    /// until the kernel has taken its rings down.
    async fn expose_patiently(
        &self,
        group: &Arc<Running>,
        disk: &TableDisk,
        address: &Address,
        read_only: bool,
    ) -> Result<(), ApiError> {
        let deadline = std::time::Instant::now() + RESTORE_WAIT;
        loop {
            match self.expose_disk(group, disk, address, read_only) {
                Err(error)
                    if error.code == ErrorCode::ExposeAddressBusy && std::time::Instant::now() < deadline =>
                {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                result => return result,
            }
        }
    }

    /// Serves again what was served of this group.
    pub(super) async fn restore_exposures_of(&self, group: &Arc<Running>) {
        let disks = group.table.lock().as_ref().map_or_else(Vec::new, DiskTable::list);
        for disk in disks {
            for saved in self.state.exposures(&Self::disk_key(group, &disk.name)) {
                let restored = if let Some(restored) = self.restore_ublk(group, &disk, &saved).await {
                    restored
                } else {
                    match saved.address.parse::<Address>() {
                        Ok(address) => self.expose_patiently(group, &disk, &address, saved.read_only).await,
                        Err(error) => Err(address_error(&error)),
                    }
                };
                if let Err(error) = restored {
                    let (name, address) = (group.name(), &saved.address);
                    let message =
                        format!("disk {name}/{} is not served again at {address}: {error}", disk.name);
                    self.note(NewEvent::new(EventCode::DiskNotExposed, message).group(name).disk(&disk.name));
                }
            }
        }
    }
}

fn lost_of(group: &Running, disk: &str) -> Vec<LostRangeDoc> {
    let lost = group.lost.lock();
    lost.ranges().iter().filter(|range| range.disk.as_deref() == Some(disk)).cloned().collect()
}

fn no_table(group: &Running) -> ApiError {
    let message = format!("group {} has no readable disk table", group.name());
    ApiError::new(ErrorCode::DiskTableRefused, message).hint("the daemon's log says why")
}

fn busy(export: &str, clients: &[String]) -> ApiError {
    let message = format!("disk {export} is in use by {}", clients.join(", "));
    ApiError::new(ErrorCode::DiskBusy, message).hint("disconnect them first, or use --force")
}

/// The API error of a text that is no address.
pub(super) fn address_error(error: &AddressError) -> ApiError {
    ApiError::new(ErrorCode::ExposeAddressInvalid, error.to_string())
        .hint("unix:/absolute/path or tcp:127.0.0.1:10809")
}

fn expose_error(error: &ExposeError) -> ApiError {
    let code = match error {
        ExposeError::Already { .. } => ErrorCode::DiskBusy,
        ExposeError::Bind(BindError::Os { .. }) => ErrorCode::Io,
        ExposeError::Bind(_) => ErrorCode::ExposeAddressBusy,
    };
    let hint = match error {
        ExposeError::Already { .. } => {
            "one disk is served at one address at a time: warpraid disk unexpose first"
        }
        ExposeError::Bind(_) => "choose another address",
    };
    ApiError::new(code, error.to_string()).hint(hint)
}
