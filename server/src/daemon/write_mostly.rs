//! Members that are read only where no other copy can be: which slots may be, and marking them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use raid_core::geometry::{Geometry, Level};
use raid_core::units::{DataIndex, Slot, Stripe};

use super::running::Running;
use super::{Daemon, io_failed, look, stopping};
use crate::control::{ApiError, ErrorCode};
use crate::lane::on_lane;

fn invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::GroupSettingInvalid, message)
}

/// Refuses marks that make no sense for a group.
pub(super) fn check(geometry: &Geometry, slots: &BTreeSet<Slot>) -> Result<(), ApiError> {
    if slots.is_empty() {
        return Ok(());
    }
    if !matches!(geometry.level(), Level::Raid1 | Level::Raid10) {
        return Err(invalid(format!("{} has no copies: nothing can be write-mostly", geometry.level()))
            .hint("write-mostly is for RAID 1 and 10"));
    }
    if let Some(slot) = slots.iter().find(|slot| slot.0 >= geometry.members()) {
        let last = geometry.members() - 1;
        return Err(invalid(format!("the group has slots 0 to {last}, no slot {slot}")));
    }
    let first = |index| geometry.data_slot(Stripe(0), DataIndex(index)).0;
    let copies = |index| (first(index)..first(index) + geometry.copies()).map(Slot);
    for index in 0..geometry.data_columns() {
        if copies(index).all(|slot| slots.contains(&slot)) {
            let listed: Vec<String> = copies(index).map(|slot| slot.to_string()).collect();
            let message = format!("every copy would be write-mostly: slots {}", listed.join(" and "));
            return Err(invalid(message).hint("leave at least one of them out"));
        }
    }
    Ok(())
}

/// The slots of the drives named, among those of a new group.
pub(super) async fn slots_of(names: &[String], drives: &[PathBuf]) -> Result<Vec<Slot>, ApiError> {
    let mut slots = Vec::new();
    for path in look::resolve_all(names).await? {
        let at = drives.iter().position(|drive| *drive == path);
        let slot = at.and_then(|at| u8::try_from(at).ok()).ok_or_else(|| {
            invalid(format!("write-mostly: {} is none of the drives of the group", path.display()))
                .hint("name drives that are also given as members")
        })?;
        slots.push(Slot(slot));
    }
    Ok(slots)
}

/// What marking these slots does, in words.
pub(super) fn words(slots: &BTreeSet<Slot>) -> String {
    if slots.is_empty() {
        return "no member is write-mostly".to_owned();
    }
    let listed: Vec<String> = slots.iter().map(ToString::to_string).collect();
    format!("write-mostly: slot {}; read only where no other copy can be", listed.join(", "))
}

impl Daemon {
    /// Marks the members of these slots and no others.
    pub(super) async fn mark_write_mostly(
        &self,
        group: &Arc<Running>,
        slots: BTreeSet<Slot>,
    ) -> Result<(), ApiError> {
        let uuid = group.uuid;
        let marked = on_lane(&group.home, move |state| async move {
            match state.group(uuid) {
                Some(group) => group.mark_write_mostly(|slot| slots.contains(&slot)).await,
                None => Ok(()),
            }
        });
        let marked = marked.await.map_err(|_| stopping())?;
        marked.map_err(|error| io_failed(&format!("group {}: write-mostly", group.name()), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mirrors_and_never_every_copy() {
        let of = |level, members, slots: &[u8]| {
            let chunk = if level == Level::Raid1 { 0 } else { 65536 };
            let geometry = Geometry::new(level, members, chunk, 1 << 30).unwrap();
            check(&geometry, &slots.iter().copied().map(Slot).collect()).is_ok()
        };
        assert!(of(Level::Raid1, 2, &[1]) && of(Level::Raid1, 3, &[0, 2]) && of(Level::Raid10, 4, &[0, 3]));
        assert!(
            !of(Level::Raid1, 2, &[0, 1]) && !of(Level::Raid10, 4, &[2, 3]) && !of(Level::Raid1, 2, &[2])
        );
        assert!(!of(Level::Raid5, 3, &[1]) && of(Level::Raid5, 3, &[]) && !of(Level::Raid0, 2, &[0]));
    }
}
