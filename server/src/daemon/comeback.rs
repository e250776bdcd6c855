//! Whether the drive of a member that is out is there again, and whether a re-add would do: what makes the NEXT of a
//! degraded group `group readd` or `group replace`.
//!
//! Looked at every [`LOOK_PERIOD`] where the drive last was, read-only and shared, off the control thread; what is found
//! decides nothing (a re-add looks again, exclusively, SAFETY M8) and is only said.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raid_core::membership::{NoReturn, Observation};
use raid_core::ports::IoKind;
use raid_core::units::Slot;
use raid_core::view::MemberState as CoreState;

use super::Daemon;
use super::running::Running;
use super::state::LastSeen;
use super::status::Comeback;

/// How often the place of a lost drive is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// Whether a drive that was dropped for this must not be trusted with data again, even if it answers.
#[must_use]
pub(super) const fn is_worn(kind: Option<IoKind>) -> bool {
    matches!(kind, Some(IoKind::Medium | IoKind::Protection | IoKind::Invalid))
}

impl Daemon {
    /// Remembers where the members of a group are, so that a drive that is not there at the next start can be named.
    pub(super) fn remember_members(&self, group: &Running) {
        let view = group.shared.view();
        let places = group.places.lock();
        let here = view.slots().filter_map(|slot| {
            let place = &places[slot.index()];
            let path = place.path.as_ref().filter(|_| place.key.is_some())?;
            let seen = LastSeen { path: path.into(), serial: place.serial.clone(), port: place.port.clone() };
            Some((slot, view.member(slot).device_uuid, seen))
        });
        self.state.remember_members(group.uuid, here.collect());
    }

    /// Looks for the drives of a group's missing members for as long as it runs.
    pub(super) async fn look_back(self: Arc<Self>, group: Arc<Running>) {
        while self.is_running(group.uuid) {
            for (slot, path) in lost_places(&group) {
                let found = self.comeback_of(&group, slot, &path).await;
                let mut places = group.places.lock();
                let place = &mut places[slot.index()];
                // Taken back, or taken by another drive, meanwhile.
                if place.key.is_none() && place.path.as_deref().map(Path::new) == Some(path.as_path()) {
                    place.comeback = found;
                }
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    async fn comeback_of(&self, group: &Running, slot: Slot, path: &Path) -> Comeback {
        // Somebody's member, or on its way to become one.
        if self.host.key_of_path(path).is_some() {
            return Comeback::Unknown;
        }
        let Ok((_, looked)) = self.inspect(path).await else { return Comeback::Unknown };
        match Self::may_return(group, &looked) {
            Ok((its, _)) if its == slot => Comeback::Possible,
            Ok(_) => Comeback::Unknown,
            // A slot that was filled meanwhile, or another drive at the same place, says nothing of this member.
            Err(NoReturn::NotAMember | NoReturn::Replaced { .. } | NoReturn::Taken(_)) => {
                match looked.seen.what {
                    Observation::Damaged { what, .. } => Comeback::Impossible(format!("damaged: {what}")),
                    _ => Comeback::Unknown,
                }
            }
            Err(why) => Comeback::Impossible(why.to_string()),
        }
    }
}

/// Slots without a member, and where the drive of each was.
fn lost_places(group: &Running) -> Vec<(Slot, PathBuf)> {
    let view = group.shared.view();
    let places = group.places.lock();
    let lost = view.slots().filter(|slot| matches!(view.member(*slot).state, CoreState::Missing { .. }));
    lost.filter_map(|slot| {
        let place = &places[slot.index()];
        let path = place.path.as_ref().filter(|_| place.key.is_none())?;
        Some((slot, PathBuf::from(path)))
    })
    .collect()
}
