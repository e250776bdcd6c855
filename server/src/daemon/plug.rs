//! Drives that come and go while the daemon runs, by the kernel's uevents.
//!
//! | what | then |
//! |---|---|
//! | a member's drive goes | the member is dropped at once (SAFETY M6), not when its next command fails |
//! | a spare goes | it counts as missing |
//! | a member comes back that was lost to contact | it is resynced by the intent bits, unless `group set --returning ask` |
//! | a member of a group that could not start comes | the group is tried again |
//! | a blank drive comes where a lost member's drive was | with `group set --new-drive take` it takes the slot and is rebuilt |
//!
//! What may join is decided as for the verbs, on what lies on the drive after it was opened exclusively (SAFETY M8).
//! A device is told from an earlier one of the same name by the kernel's sequence number, and its place by the address of
//! its controller and the number of its namespace. Where no uevents are to be had, drives that go are noticed by their
//! errors, and `group readd` brings them back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raid_core::membership::Observation;
use raid_core::ports::IoKind;
use raid_core::units::{Slot, Uuid};

use super::Daemon;
use super::look::Looked;
use super::running::{Place, Running};
use super::uevent::{self, Action, Heard};
use crate::control::model::{NewDrive, Returning};
use crate::control::{ErrorCode, EventCode};
use crate::events::NewEvent;
use crate::lane::on_lane;

/// How long a device that has just come is given: its node, and whoever looks at it first (udev).
const SETTLE: Duration = Duration::from_millis(300);
/// How often, that long apart, a device is tried that cannot be looked at yet.
const LOOKS: u32 = 5;
const LOOK_PERIOD: Duration = Duration::from_secs(1);

impl Daemon {
    /// Follows drives that come and go for as long as the daemon runs.
    pub(super) async fn keep_plugged(self: Arc<Self>) {
        let mut uevents = match uevent::listen() {
            Ok(uevents) => uevents,
            Err(error) => {
                tracing::info!(%error, "no uevents: drives that go are noticed by their errors");
                return;
            }
        };
        while let Some(heard) = uevents.recv().await {
            match heard {
                Heard::Device(event) => {
                    let path = Path::new("/dev").join(&event.name);
                    match event.action {
                        Action::Remove => self.drive_gone(&path, event.diskseq).await,
                        // Not in the way of the next removal: looking at a drive takes time, and may hang.
                        Action::Add => drop(tokio::spawn(Arc::clone(&self).drive_came(path))),
                    }
                }
                Heard::Lost => self.look_for_gone().await,
            }
        }
    }

    /// Slots whose member has this device, or had it when it was dropped.
    fn slots_on(&self, path: &Path, diskseq: Option<u64>) -> Vec<(Arc<Running>, Slot)> {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let mut found = Vec::new();
        for group in groups {
            let places = group.places.lock();
            let is_it = |place: &&Place| {
                // Without a number, only what is open is known to be this device.
                let is_known = place.key.is_some() || (place.diskseq.is_some() && diskseq.is_some());
                is_known
                    && place.path.as_deref().map(Path::new) == Some(path)
                    && is_same(place.diskseq, diskseq)
            };
            let slots = (0_u8..).map(Slot).zip(places.iter()).filter(|(_, place)| is_it(place));
            found.extend(slots.map(|(slot, _)| (Arc::clone(&group), slot)));
        }
        found
    }

    async fn drive_gone(self: &Arc<Self>, path: &Path, diskseq: Option<u64>) {
        for (group, slot) in self.slots_on(path, diskseq) {
            let serial = group.places.lock()[slot.index()].serial.clone();
            let shown = path.display().to_string();
            let message =
                format!("{shown} was removed: slot {slot} of group {} loses its drive", group.name());
            self.note(
                NewEvent::new(EventCode::DriveRemoved, message)
                    .group(group.name())
                    .slot(slot.0)
                    .drive(Some(shown), serial),
            );
            let view = group.shared.view();
            if view.member(slot).is_missing() {
                // A command was faster than the kernel's word.
                continue;
            }
            let (uuid, epoch) = (group.uuid, view.epoch);
            let dropped = on_lane(&group.home, move |state| async move {
                match state.group(uuid) {
                    Some(group) => group.fail(epoch, slot, IoKind::Gone).await.map(|_| ()),
                    None => Ok(()),
                }
            });
            if let Ok(Err(kind)) = dropped.await {
                tracing::warn!(group = group.name(), %slot, ?kind, "the member of a drive that is gone is not dropped");
            }
            group.release_dropped(&self.host, &self.lanes);
            self.look_for_changes();
        }
        self.spare_gone(path, diskseq).await;
    }

    /// Messages were lost: every member's device is asked for.
    async fn look_for_gone(self: &Arc<Self>) {
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        let mut gone = Vec::new();
        for group in groups {
            for place in group.places.lock().iter() {
                let drive = place.key.and_then(|key| self.host.drive(key));
                let Some(seq) = drive.as_ref().and_then(|drive| drive.identity().diskseq) else { continue };
                let path = drive.map(|drive| drive.path().to_owned()).unwrap_or_default();
                if nvme_backend::diskseq_of(&path) != Some(seq) {
                    gone.push((path, seq));
                }
            }
        }
        for (path, seq) in gone {
            self.drive_gone(&path, Some(seq)).await;
        }
    }

    async fn drive_came(self: Arc<Self>, path: PathBuf) {
        tokio::time::sleep(SETTLE).await;
        let _change = self.change.lock().await;
        self.release_dropped().await;
        self.look_at_spares_again();
        // Not whether it is open at all: looks at it open it, too.
        if self.member_at(&path).is_some() || self.spares.has(&path) {
            return;
        }
        let mut looks = 0;
        let looked = loop {
            looks += 1;
            match self.inspect(&path).await {
                Ok((_, looked)) => break looked,
                // What is in use, or too small for a member, is none.
                Err(error) if error.code != ErrorCode::Io || looks == LOOKS => {
                    tracing::debug!(path = %path.display(), %error, "a device that came is not looked at");
                    return;
                }
                Err(_) => tokio::time::sleep(LOOK_PERIOD).await,
            }
        };
        match &looked.seen.what {
            Observation::Ours(ours) => self.member_came(ours.copy.group, &path, &looked).await,
            Observation::NotOurs if looked.what().is_none() => self.blank_came(&path).await,
            _ => {}
        }
    }

    async fn member_came(self: &Arc<Self>, uuid: Uuid, path: &Path, looked: &Looked) {
        let running = self.groups.read().get(&uuid).cloned();
        let Some(group) = running else {
            // One that was found and could not start; never one that the operator stopped.
            if self.unstarted.lock().contains_key(&uuid) {
                tracing::info!(drive = %path.display(), group = %uuid, "a member came: the group is tried again");
                self.assemble_round(true, Some(uuid)).await;
                let started = self.groups.read().get(&uuid).cloned();
                if let Some(group) = started {
                    self.restore_exposures_of(&group).await;
                }
            }
            return;
        };
        let may = Self::may_return(&group, looked);
        let settings = group.settings.of(uuid);
        match may {
            Ok((slot, true)) if settings.returning == Returning::Resync => {
                tracing::info!(group = group.name(), %slot, drive = %path.display(), "a member's drive is back");
                if let Err(error) = self.readd_member(&group, path, Some(slot), false, true).await {
                    tracing::warn!(group = group.name(), %slot, %error, "it could not be taken back");
                }
                self.look_for_changes();
            }
            Ok((slot, _)) => {
                tracing::info!(group = group.name(), %slot, drive = %path.display(), "a member's drive is back and waits for group readd");
            }
            Err(why) => {
                tracing::info!(group = group.name(), drive = %path.display(), %why, "a drive that was a member came")
            }
        }
    }

    /// A blank drive takes the slot whose drive was in the same place, where the operator wants that.
    async fn blank_came(self: &Arc<Self>, path: &Path) {
        let Some(port) = nvme_backend::port_of(path) else { return };
        if self.spares.has(path) {
            return;
        }
        let groups: Vec<Arc<Running>> = self.groups.read().values().cloned().collect();
        for group in groups {
            let settings = group.settings.of(group.uuid);
            let view = group.shared.view();
            let lost = view.slots().find(|slot| {
                let place = &group.places.lock()[slot.index()];
                view.member(*slot).is_missing() && place.port.as_deref() == Some(port.as_str())
            });
            let Some(slot) = lost.filter(|_| settings.new_drive == NewDrive::Take) else { continue };
            let shown = path.display().to_string();
            tracing::warn!(group = group.name(), %slot, drive = shown, "a blank drive in the lost member's place takes its slot");
            if let Err(error) = self.replace_member(&group, slot, &shown, false).await {
                tracing::error!(group = group.name(), %slot, drive = shown, %error, "the new drive could not join");
            }
            self.look_for_changes();
            return;
        }
    }
}

/// Whether two sequence numbers are of one device, as far as the kernel has them.
fn is_same(open: Option<u64>, told: Option<u64>) -> bool {
    match (open, told) {
        (Some(open), Some(told)) => open == told,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_from_an_earlier_one_of_the_same_name() {
        assert!(is_same(Some(7), Some(7)) && !is_same(Some(7), Some(8)));
        // An older kernel: the name is all there is.
        assert!(is_same(None, Some(8)) && is_same(Some(7), None));
    }
}
