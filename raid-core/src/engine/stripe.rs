//! What is left of one stripe under one view: which columns can be read, and what a lost one is computed from.

use core::ops::Range;

use smallvec::SmallVec;

use super::lane::LaneView;
use super::shared::Shared;
use crate::geometry::{Geometry, Role};
use crate::ports::{Env, IoError, IoKind};
use crate::units::{DataIndex, Slot, Stripe, u64_of};

/// Roles in a stripe.
pub(super) type Roles = SmallVec<[Role; 16]>;

/// The member that plays a role in a stripe (on mirrors: the first copy).
pub(super) fn slot_of(geometry: &Geometry, stripe: Stripe, role: Role) -> Slot {
    match role {
        Role::Data(index) => geometry.data_slot(stripe, index),
        Role::P => geometry.parity_slots(stripe).p.expect("the level has a P"),
        Role::Q => geometry.parity_slots(stripe).q.expect("the level has a Q"),
    }
}

/// The data columns of any stripe.
pub(super) fn data_indices(geometry: &Geometry) -> impl Iterator<Item = DataIndex> + use<> {
    (0..geometry.data_columns()).map(DataIndex)
}

/// What reconstructs lost columns: columns to read, and columns to solve for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) read: Roles,
    pub(super) solve: SmallVec<[Role; 2]>,
}

/// The columns from which `wanted` (lost ones) can be computed, if they can. `readable` is false for every lost column.
pub(super) fn sources(
    geometry: &Geometry,
    wanted: &[Role],
    readable: impl Fn(Role) -> bool,
) -> Option<Sources> {
    let mut read: Roles = Roles::new();
    let mut solve: SmallVec<[Role; 2]> = SmallVec::new();
    let mut lost = 0;
    for role in data_indices(geometry).map(Role::Data) {
        if readable(role) {
            read.push(role);
        } else {
            lost += 1;
            if lost > 2 {
                return None;
            }
            solve.push(role);
        }
    }
    let parities = usize::from(geometry.level().parities());
    let all = [Role::P, Role::Q];
    // P first: where P and Q disagree (initial sync pending) every reconstruction must give the same answer.
    let usable = all[..parities].iter().copied().filter(|&role| readable(role) && !wanted.contains(&role));
    let used: SmallVec<[Role; 2]> = usable.take(lost).collect();
    if used.len() < lost {
        return None;
    }
    read.extend(used);
    for &role in wanted {
        if !solve.contains(&role) {
            solve.push(role);
        }
    }
    (solve.len() <= 2 && u64_of(solve.len()) <= u64::from(geometry.level().parities()))
        .then_some(Sources { read, solve })
}

/// Where a column range of a stripe lies on its members.
pub(super) fn member_range(geometry: &Geometry, stripe: Stripe, columns: &Range<u32>) -> Range<u64> {
    geometry.member_offset(stripe, columns.start)..geometry.member_offset(stripe, columns.end)
}

/// Whether what the slot holds there is current and readable.
pub(super) fn is_readable<E: Env>(
    shared: &Shared,
    lane: &LaneView<E>,
    stripe: Stripe,
    slot: Slot,
    columns: &Range<u32>,
) -> bool {
    lane.is_live(shared, slot, stripe)
        && !shared.bad.overlaps(slot, &member_range(shared.geometry(), stripe, columns))
}

/// As [`is_readable`], and not known to be wrong: what other blocks may be computed from.
pub(super) fn is_source<E: Env>(
    shared: &Shared,
    lane: &LaneView<E>,
    stripe: Stripe,
    slot: Slot,
    columns: &Range<u32>,
) -> bool {
    is_readable(shared, lane, stripe, slot, columns)
        && !shared.suspect.overlaps(slot, &member_range(shared.geometry(), stripe, columns))
}

/// The copy that resync uses as the source of a mirrored stripe: its lowest member in sync (SAFETY S1).
pub(super) fn mirror_source<E: Env>(
    geometry: &Geometry,
    lane: &LaneView<E>,
    stripe: Stripe,
    index: DataIndex,
) -> Option<Slot> {
    copies(geometry, stripe, index).find(|&slot| lane.is_in_sync(slot))
}

/// The slots of all copies of a data column.
pub(super) fn copies(
    geometry: &Geometry,
    stripe: Stripe,
    index: DataIndex,
) -> impl Iterator<Item = Slot> + use<> {
    let first = geometry.data_slot(stripe, index).0;
    (first..first + geometry.copies()).map(Slot)
}

/// Why a lost block cannot be given: bad-block list or too many members lost.
pub(super) fn lost_error(shared: &Shared, slot: Slot, range: &Range<u64>) -> IoError {
    if shared.bad.overlaps(slot, range) {
        IoError::new(IoKind::BadBlock, "the block's contents are lost until it is rewritten")
    } else {
        IoError::new(IoKind::BeyondTolerance, "the block has no source left")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Level;

    #[test]
    fn every_loss_within_tolerance_has_sources_and_none_beyond() {
        for level in [Level::Raid5, Level::Raid6] {
            let g = Geometry::new(level, 5, 2048, 1 << 20).unwrap();
            let mut roles: Vec<Role> = data_indices(&g).map(Role::Data).collect();
            roles.push(Role::P);
            if level == Level::Raid6 {
                roles.push(Role::Q);
            }
            for mask in 1_u32..1 << roles.len() {
                let lost: Vec<Role> =
                    (0..roles.len()).filter(|i| mask & (1 << i) != 0).map(|i| roles[i]).collect();
                let found = sources(&g, &lost, |role| !lost.contains(&role));
                let tolerated = u64_of(lost.len()) <= u64::from(level.parities());
                assert_eq!(found.is_some(), tolerated, "{level:?} {lost:?}");
                if let Some(found) = found {
                    assert!(found.read.iter().all(|role| !lost.contains(role)));
                    assert!(lost.iter().all(|role| found.solve.contains(role)));
                }
            }
        }
    }
}
