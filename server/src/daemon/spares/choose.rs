//! Which spare fits a slot, and which of those is taken.

use std::path::PathBuf;
use std::time::Instant;

use raid_core::format::plan::replacement_bytes_min;
use raid_core::ports::DriveKey;
use raid_core::units::{BlockSize, Uuid};
use raid_core::view::MemberLayout;
use serde::{Deserialize, Serialize};

use crate::control::model::SpareState;
use crate::daemon::host::unix_seconds;

/// What `spares.json` holds of a spare.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) path: PathBuf,
    pub(super) serial: Option<String>,
    /// Uuid of the group it is kept for.
    pub(super) group: Option<String>,
}

/// What of a spare decides whether and where it fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) size_bytes: u64,
    pub(super) block: BlockSize,
    /// A file is used with whatever block size the group has.
    pub(super) is_file: bool,
    pub(super) numa_node: Option<u16>,
}

#[derive(Clone, Debug)]
pub(super) struct Spare {
    pub(super) saved: Saved,
    pub(super) shape: Option<Shape>,
    pub(super) key: Option<DriveKey>,
    pub(super) state: SpareState,
    pub(super) why: Option<String>,
    pub(super) since_unix_s: u64,
    pub(super) checked: Option<Instant>,
}

impl Spare {
    pub(super) fn new(saved: Saved) -> Self {
        Self {
            saved,
            shape: None,
            key: None,
            state: SpareState::Missing,
            why: Some("not looked at yet".to_owned()),
            since_unix_s: unix_seconds(),
            checked: None,
        }
    }

    pub(super) fn is_for(&self, group: Uuid) -> bool {
        self.saved.group.as_deref().is_none_or(|kept| Uuid::parse(kept) == Some(group))
    }

    /// Whether it could take the place of a member with this layout; why not, in words, with by how much.
    pub(super) fn fits(&self, layout: &MemberLayout, group_block: BlockSize) -> Result<&Shape, String> {
        let shown = self.saved.path.display();
        let shape = match (self.state, &self.shape) {
            (SpareState::Ready, Some(shape)) => shape,
            _ => return Err(format!("{shown}: {}", self.why.as_deref().unwrap_or("not ready"))),
        };
        if !shape.is_file && shape.block > group_block {
            let (spare, group) = (shape.block.bytes(), group_block.bytes());
            return Err(format!("{shown} has {spare}-byte blocks, the group {group}-byte blocks"));
        }
        match replacement_bytes_min(layout).checked_sub(shape.size_bytes) {
            None | Some(0) => Ok(shape),
            Some(short) => Err(format!("{shown} is {} too small", amount(short))),
        }
    }
}

/// Bytes in a unit that shows a small difference: one digit behind the point.
fn amount(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            // Rounded up: a drive that is this much larger fits.
            let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} bytes"),
    }
}

/// The best of the spares for a member with this layout; why none, one line a spare.
pub(super) fn choose<'a>(
    spares: &'a [Spare],
    group: Uuid,
    layout: &MemberLayout,
    block: BlockSize,
    numa_node: Option<u16>,
) -> Result<&'a Spare, Vec<String>> {
    let mut best: Option<((bool, u64, bool), &Spare)> = None;
    let mut refused = Vec::new();
    for spare in spares.iter().filter(|spare| spare.is_for(group)) {
        match spare.fits(layout, block) {
            Err(why) => refused.push(why),
            Ok(shape) => {
                let is_far = numa_node.is_some() && shape.numa_node != numa_node;
                let rank = (spare.saved.group.is_none(), shape.size_bytes, is_far);
                if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                    best = Some((rank, spare));
                }
            }
        }
    }
    best.map(|(_, spare)| spare).ok_or(refused)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::daemon::spares) fn spare(
        path: &str,
        size_bytes: u64,
        block: BlockSize,
        group: Option<Uuid>,
        node: u16,
    ) -> Spare {
        let saved = Saved { path: path.into(), serial: None, group: group.map(|uuid| uuid.to_string()) };
        let shape = Shape { size_bytes, block, is_file: false, numa_node: Some(node) };
        let mut spare = Spare::new(saved);
        (spare.shape, spare.state, spare.why) = (Some(shape), SpareState::Ready, None);
        spare
    }

    pub(in crate::daemon::spares) const MIB: u64 = 1 << 20;

    fn chosen(spares: &[Spare], group: Uuid) -> Result<String, Vec<String>> {
        let layout = MemberLayout::bare(64 * MIB);
        let found = choose(spares, group, &layout, BlockSize::B512, Some(1));
        found.map(|spare| spare.saved.path.display().to_string())
    }

    #[test]
    fn the_smallest_that_fits_is_chosen_and_one_kept_for_the_group_before_a_global_one() {
        let (mine, other) = (Uuid::from_random(1, 2), Uuid::from_random(3, 4));
        let (large, small) = (200 * MIB, 100 * MIB);
        let b = BlockSize::B512;
        let mut spares = vec![
            spare("/large", large, b, None, 1),
            spare("/far", small, b, None, 0),
            spare("/near", small, b, None, 1),
            spare("/other", 80 * MIB, b, Some(other), 1),
        ];
        assert_eq!(chosen(&spares, mine).unwrap(), "/near");
        assert_eq!(chosen(&spares, other).unwrap(), "/other");
        spares.push(spare("/mine", 300 * MIB, b, Some(mine), 0));
        assert_eq!(chosen(&spares, mine).unwrap(), "/mine");
        spares[4].state = SpareState::Failed;
        assert_eq!(chosen(&spares, mine).unwrap(), "/near");
    }

    #[test]
    fn mk_04_a_spare_that_does_not_fit_says_by_how_much() {
        let group = Uuid::from_random(1, 2);
        let needed = replacement_bytes_min(&MemberLayout::bare(64 * MIB));
        let spares = [
            spare("/small", needed - 3 * MIB - MIB / 5, BlockSize::B512, None, 1),
            spare("/wide", needed, BlockSize::B4096, None, 1),
        ];
        let refused = chosen(&spares, group).unwrap_err();
        assert_eq!(
            refused,
            ["/small is 3.2 MiB too small", "/wide has 4096-byte blocks, the group 512-byte blocks"]
        );
        let exact = [spare("/exact", needed, BlockSize::B512, None, 1)];
        assert_eq!(chosen(&exact, group).unwrap(), "/exact");
        let short = [spare("/short", needed - 1, BlockSize::B512, None, 1)];
        assert_eq!(chosen(&short, group).unwrap_err(), ["/short is 1 bytes too small"]);
    }
}
