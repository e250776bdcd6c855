//! Volatile groups over drives of one's own, for measuring: nothing is persistent, members are bare (data from byte 0), there
//! is no bitmap and no superblock, so that a group's cost is that of its data path alone.
//!
//! The same drives can be made a group again and again: whole, with members lost, or with one being rebuilt. That is what
//! happens to a real group between two views, without the rest of its life.

use std::sync::Arc;

use nvme_backend::{Lane, OpenDrive};
use raid_core::engine::{Group, GroupConfig, Shared};
use raid_core::geometry::{Geometry, GeometryError, Level};
use raid_core::membership::GroupMeta;
use raid_core::ports::DriveKey;
use raid_core::units::{BlockSize, Slot, Uuid, u64_of};
use raid_core::view::{Epoch, Member, MemberLayout, MemberState, View};

use crate::world::BenchEnv;

/// What becomes of the members of a scratch group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Condition {
    /// Slots without a member.
    pub lost: Vec<u8>,
    /// A slot whose member is being rebuilt.
    pub rebuilding: Option<u8>,
}

/// A group in this process, over drives that nobody else has.
pub struct ScratchGroup {
    name: String,
    shared: Arc<Shared>,
    drives: Vec<OpenDrive>,
}

impl ScratchGroup {
    /// A group of this level over the drives, in slot order, for `lanes` lanes.
    ///
    /// # Errors
    /// The shape is impossible.
    pub fn new(
        name: &str,
        level: Level,
        chunk_bytes: u32,
        drives: Vec<OpenDrive>,
        condition: &Condition,
        lanes: u16,
    ) -> Result<Self, GeometryError> {
        let size_bytes = drives.iter().map(OpenDrive::size_bytes).min().unwrap_or(0);
        let members = u8::try_from(drives.len()).unwrap_or(u8::MAX);
        let geometry = Geometry::new(level, members, chunk_bytes, size_bytes)?;
        let is_512 = drives.iter().all(|drive| drive.block_size() == BlockSize::B512);
        let shared = Shared::new(GroupConfig {
            name: name.to_owned(),
            geometry,
            block_size: if is_512 { BlockSize::B512 } else { BlockSize::B4096 },
            view: view(drives.len(), size_bytes, condition),
            meta: Arc::new(GroupMeta::Volatile),
            intents: None,
            unsynced: Vec::new(),
            dirty: Vec::new(),
            bad_blocks: Vec::new(),
            rebuilding: condition.rebuilding.map(|slot| (Slot(slot), 0)).into_iter().collect(),
            lanes,
        });
        Ok(Self { name: name.to_owned(), shared, drives })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.shared.geometry()
    }

    /// Its members' drives, in slot order.
    #[must_use]
    pub fn drives(&self) -> &[OpenDrive] {
        &self.drives
    }

    /// What all lanes share of it.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The group on one lane; its number is below that of lanes.
    #[must_use]
    pub fn on_lane(&self, lane: &Lane) -> Group<BenchEnv> {
        let handles = self.drives.iter().map(|drive| drive.on_lane(lane)).collect();
        Group::new(BenchEnv::new(lane, handles), Arc::clone(&self.shared))
    }

    /// As [`ScratchGroup::on_lane`], for a lane on which several things happen at once.
    #[must_use]
    pub fn giving_way_on_lane(&self, lane: &Lane) -> Group<BenchEnv> {
        let handles = self.drives.iter().map(|drive| drive.on_lane(lane)).collect();
        Group::new(BenchEnv::new(lane, handles).giving_way(), Arc::clone(&self.shared))
    }
}

fn view(members: usize, size_bytes: u64, condition: &Condition) -> View {
    let member = |slot: u8| {
        let is_lost = condition.lost.contains(&slot);
        let state = match slot {
            _ if is_lost => MemberState::Missing { why: None },
            _ if condition.rebuilding == Some(slot) => MemberState::Rebuilding,
            _ => MemberState::InSync,
        };
        Member {
            state,
            drive: (!is_lost).then(|| DriveKey(u64::from(slot))),
            device_uuid: Uuid::from_random(7, u64::from(slot)),
            dev_number: u16::from(slot),
            last_in_sync: 1,
            layout: MemberLayout::bare(size_bytes),
            successor: None,
        }
    };
    let members = u8::try_from(u64_of(members)).expect("a geometry has at most 128 members");
    View {
        version: 1,
        epoch: Epoch { counter: 1, id: Uuid::from_random(1, 1) },
        members: (0..members).map(member).collect(),
    }
}
