//! The verbs of disks.

use std::sync::Arc;

use crate::control::model::{ActionDoc, DiskDoc, DiskListDoc};
use crate::control::request::{DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose};
use crate::control::{Answer, ApiError, ErrorCode};
use crate::daemon::Daemon;
use crate::daemon::api::{Api, check_identity, confirm_missing};
use crate::daemon::disks::address_error;
use crate::daemon::running::Running;
use crate::nbd::address::Address;

impl Api {
    pub(in crate::daemon) fn find(
        &self,
        group: &str,
        disk: &str,
    ) -> Result<(Arc<Running>, raid_core::disks::Disk), ApiError> {
        let running = self.0.need_running(group)?;
        let found = Daemon::find_disk(&running, disk)?;
        Ok((running, found))
    }

    pub(in crate::daemon) fn disk_action(
        &self,
        verb: &str,
        group: &Running,
        disk: &raid_core::disks::Disk,
        dry_run: bool,
        step: String,
    ) -> ActionDoc {
        let subject = format!("{}/{}", group.name(), disk.name);
        let mut doc = ActionDoc::new(verb, subject, dry_run, vec![step]);
        doc.disk = Some(self.0.disk_doc(group, disk));
        doc
    }

    pub(in crate::daemon) async fn disks(&self, group: Option<String>) -> Answer<DiskListDoc> {
        let groups: Vec<Arc<Running>> = match group {
            Some(name) => vec![self.0.need_running(&name)?],
            None => self.0.groups.read().values().cloned().collect(),
        };
        let mut disks: Vec<DiskDoc> = Vec::new();
        for group in groups {
            let listed = group.table.lock().as_ref().map_or_else(Vec::new, raid_core::disks::DiskTable::list);
            disks.extend(listed.iter().map(|disk| self.0.disk_doc(&group, disk)));
        }
        disks.sort_by(|one, other| (&one.group, one.start_bytes).cmp(&(&other.group, other.start_bytes)));
        Ok(DiskListDoc { disks }.into())
    }

    pub(in crate::daemon) async fn disk(&self, group: String, disk: String) -> Answer<DiskDoc> {
        let (running, found) = self.find(&group, &disk)?;
        Ok(self.0.disk_doc(&running, &found).into())
    }

    pub(in crate::daemon) async fn disk_create(&self, what: DiskCreate) -> Answer<ActionDoc> {
        let running = self.0.need_running(&what.group)?;
        let (name, size, id) = (what.name.clone(), what.size_bytes, Daemon::new_disk_id());
        let edit = move |table: &mut raid_core::disks::DiskTable| table.create(&name, size, id);
        let disk = self.0.change_table(&running, &what.name, what.dry_run, edit).await?;
        let step = format!("disk {}/{} of {} bytes", running.name(), disk.name, disk.bytes);
        Ok(self.disk_action("disk create", &running, &disk, what.dry_run, step).into())
    }

    pub(in crate::daemon) async fn disk_expose(
        &self,
        group: String,
        disk: String,
        how: DiskExpose,
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let nbd = how.nbd.as_ref().map(|address| address.parse::<Address>());
        let nbd = nbd.transpose().map_err(|error| address_error(&error))?;
        let (running, found) = self.find(&group, &disk)?;
        let step = match nbd {
            Some(_) if how.ublk => {
                return Err(ApiError::new(
                    ErrorCode::RequestInvalid,
                    "over NBD or as a block device: one of them",
                )
                .hint("give nbd or ublk"));
            }
            Some(address) => {
                if !how.dry_run {
                    daemon.expose_disk(&running, &found, &address, how.read_only)?;
                }
                format!("served over NBD at {address}")
            }
            None if how.dry_run => {
                daemon.check_ublk(&running, &found.name)?;
                "served as a block device of this host".to_owned()
            }
            None => {
                daemon.expose_ublk(&running, &found, how.read_only).await?;
                let docs = Daemon::ublk_docs(&running, &found.name);
                let at = docs.first().map_or("", |doc| doc.uri.as_str());
                format!("served as a block device of this host: {at}")
            }
        };
        Ok(self.disk_action("disk expose", &running, &found, how.dry_run, step).into())
    }

    pub(in crate::daemon) async fn disk_unexpose(
        &self,
        group: String,
        disk: String,
        how: DiskUnexpose,
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let (running, found) = self.find(&group, &disk)?;
        let docs = daemon.exposure_docs(&running, &found.name);
        let exposed =
            docs.iter().any(|doc| how.address.as_ref().is_none_or(|address| *address == doc.address));
        if !exposed {
            let message = format!("disk {}/{} is not exposed there", running.name(), found.name);
            return Err(ApiError::new(ErrorCode::ExposeNotFound, message)
                .hint("warpraid disk show lists its addresses"));
        }
        if !how.dry_run {
            daemon.unexpose_disk(&running, &found.name, how.force).await?;
        }
        let step = "not served any more".to_owned();
        Ok(self.disk_action("disk unexpose", &running, &found, how.dry_run, step).into())
    }

    pub(in crate::daemon) async fn disk_resize(
        &self,
        group: String,
        disk: String,
        how: DiskResize,
    ) -> Answer<ActionDoc> {
        let running = self.0.need_running(&group)?;
        let (name, size) = (disk.clone(), how.size_bytes);
        let edit = move |table: &mut raid_core::disks::DiskTable| table.resize(&name, size);
        let resized = self.0.change_table(&running, &disk, how.dry_run, edit).await?;
        if !how.dry_run {
            Daemon::note_resized(&running, &resized).await;
        }
        let step = format!(
            "disk {}/{} has {} bytes; clients see it when they connect again",
            running.name(),
            resized.name,
            resized.bytes
        );
        Ok(self.disk_action("disk resize", &running, &resized, how.dry_run, step).into())
    }

    pub(in crate::daemon) async fn disk_delete(
        &self,
        group: String,
        disk: String,
        how: DiskDelete,
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let (running, found) = self.find(&group, &disk)?;
        let subject = format!("{}/{}", running.name(), found.name);
        if !how.dry_run {
            if !how.yes {
                return Err(confirm_missing(&format!("deleting disk {subject}")));
            }
            let known = [found.id.to_string()];
            check_identity(
                &format!("disk {subject}"),
                how.expect_uuid.as_deref(),
                &known,
                ErrorCode::DiskUuidMismatch,
            )?;
            daemon.unexpose_disk(&running, &found.name, how.force).await?;
            let name = found.name.clone();
            daemon.change_table(&running, &found.name, false, move |table| table.delete(&name)).await?;
        }
        let steps = vec![format!("disk {subject} is gone; its blocks are free")];
        Ok(ActionDoc::new("disk delete", subject, how.dry_run, steps).into())
    }
}
