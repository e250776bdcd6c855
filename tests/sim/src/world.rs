//! A group over simulated drives, with the plain model its contents are compared with, and a look at the media that
//! shares nothing with the engine but the geometry.

use std::sync::Arc;

use raid_core::engine::{Group, GroupConfig, Shared};
use raid_core::geometry::{Geometry, Level, Role};
use raid_core::lease::{Leases, Segs};
use raid_core::membership::GroupMeta;
use raid_core::ports::{DriveKey, Durability, Env, IoKind, Pool};
use raid_core::units::{
    BlockSize, DataIndex, DriveOffset, GroupOffset, LaneId, Slot, Stripe, Uuid, u64_of, usize_of,
    usize_of_u32,
};
use raid_core::view::{Epoch, Member, MemberLayout, MemberState, Successor, View};

use crate::drive::SimDrive;
use crate::env::SimEnv;
use crate::executor::Executor;
use crate::parity::syndrome;

/// What a group is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Level.
    pub level: Level,
    /// Members.
    pub members: u8,
    /// Chunk in bytes; 0 on RAID 1.
    pub chunk_bytes: u32,
    /// Data area of each member in bytes.
    pub member_bytes: u64,
    /// Logical block size.
    pub block: BlockSize,
}

/// A group in a world of its own.
pub struct World {
    /// The executor everything runs on.
    pub executor: Executor,
    /// Lane 0.
    pub env: SimEnv,
    /// Drives, by the number in their key.
    pub drives: Vec<SimDrive>,
    /// The group.
    pub shared: Arc<Shared>,
    /// The group on lane 0.
    pub group: Group<SimEnv>,
    /// What the group must contain.
    pub model: Vec<u8>,
    shape: Shape,
}

/// Where group data begins on a simulated member: behind an area of metadata.
const DATA_START: u64 = 64 * 1024;
/// Where the bitmap lies.
const BITMAP_START: u64 = 8 * 1024;
const BITMAP_BYTES: u64 = 8 * 1024;

/// The member of drive `key`.
#[must_use]
fn member(key: u64, state: MemberState, data_bytes: u64) -> Member {
    let mut layout = MemberLayout::bare(data_bytes);
    layout.data_start = DriveOffset(DATA_START);
    layout.bitmap = Some(BITMAP_START..BITMAP_START + BITMAP_BYTES);
    Member {
        state,
        drive: Some(DriveKey(key)),
        device_uuid: Uuid::from_random(key, 7),
        dev_number: u16::try_from(key).expect("few drives"),
        last_in_sync: 1,
        layout,
        successor: None,
    }
}

/// The first view of `members` members in sync, drive keys 0 and up.
#[must_use]
pub fn bare_view(members: u8, data_bytes: u64) -> View {
    let epoch = Epoch { counter: 1, id: Uuid::from_random(1, 1) };
    let member = |slot: u8| member(u64::from(slot), MemberState::InSync, data_bytes);
    View { version: 1, epoch, members: (0..members).map(member).collect() }
}

/// Reads through the engine into a vector.
pub async fn read_vec(group: &Group<SimEnv>, at: u64, len: u64) -> Result<Vec<u8>, IoKind> {
    let sizes: Vec<u32> = group.shared().geometry().pieces(GroupOffset(at), len).collect();
    let into: Leases = group.env().lease(Pool::Request, &sizes).await;
    let done = group.read(GroupOffset(at), into).await;
    done.result.map_err(|error| error.kind)?;
    let leases = done.buf.expect("a good read gives its leases back");
    Ok(leases.iter().flat_map(|lease| lease.bytes().iter().copied()).collect())
}

/// Writes a slice through the engine.
pub async fn write_slice(group: &Group<SimEnv>, at: u64, data: &[u8], how: Durability) -> Result<(), IoKind> {
    let sizes: Vec<u32> = group.shared().geometry().pieces(GroupOffset(at), u64_of(data.len())).collect();
    let mut leases = group.env().lease(Pool::Request, &sizes).await;
    let mut rest = data;
    for lease in &mut leases {
        let (piece, behind) = rest.split_at(lease.bytes().len());
        lease.bytes_mut().copy_from_slice(piece);
        rest = behind;
    }
    let from: Segs = leases.into_iter().map(raid_core::lease::Lease::share).collect();
    group.write(GroupOffset(at), from, how).await.map_err(|error| error.kind)
}

impl World {
    /// A healthy group of zeroes in sync.
    #[must_use]
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self::with(seed, shape, |_| {})
    }

    /// A group whose configuration `change` may alter before it starts; drives hold zeroes.
    ///
    /// # Panics
    /// If the shape is impossible.
    #[must_use]
    pub fn with(seed: u64, shape: Shape, change: impl FnOnce(&mut GroupConfig)) -> Self {
        let executor = Executor::new(seed);
        let env = SimEnv::new(&executor);
        let geometry = Geometry::new(shape.level, shape.members, shape.chunk_bytes, shape.member_bytes)
            .expect("a shape that exists");
        let mut config = GroupConfig {
            name: "sim".into(),
            geometry,
            block_size: shape.block,
            view: bare_view(shape.members, shape.member_bytes),
            meta: Arc::new(GroupMeta::Volatile),
            intents: None,
            unsynced: Vec::new(),
            dirty: Vec::new(),
            bad_blocks: Vec::new(),
            rebuilding: Vec::new(),
            lanes: 4,
        };
        change(&mut config);
        let shared = Shared::new(config);
        let capacity = usize_of(geometry.capacity_bytes());
        let mut world = Self {
            group: Group::new(env.clone(), Arc::clone(&shared)),
            executor,
            env,
            drives: Vec::new(),
            shared,
            model: vec![0; capacity],
            shape,
        };
        for _ in 0..shape.members {
            world.add_drive();
        }
        // Made before its drives existed, the group of lane 0 must look them up again.
        world.group = Group::new(world.env.clone(), Arc::clone(&world.shared));
        world
    }

    /// The same group on another lane.
    #[must_use]
    pub fn lane(&self, lane: u16) -> Group<SimEnv> {
        Group::new(self.env.another_lane(LaneId(lane)), Arc::clone(&self.shared))
    }

    /// Puts one more blank drive into the world; gives its number.
    pub fn add_drive(&mut self) -> usize {
        let drive = SimDrive::new(&self.executor, DATA_START + self.shape.member_bytes, self.shape.block);
        self.env.add_drive(DriveKey(u64_of(self.drives.len())), drive.clone());
        self.drives.push(drive);
        self.drives.len() - 1
    }

    /// Switches the latency of all drives.
    pub fn set_latency(&self, has_latency: bool) {
        self.drives.iter().for_each(|drive| drive.set_latency(has_latency));
    }

    /// The shape.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        *self.shared.geometry()
    }

    /// Byte of the drive where a byte of the slot's data area lies.
    #[must_use]
    pub fn data_at(&self, at: u64) -> u64 {
        DATA_START + at
    }

    /// The bytes of a drive's bitmap area.
    #[must_use]
    pub fn bitmap(&self, drive: usize) -> Vec<u8> {
        self.drives[drive].medium()[usize_of(BITMAP_START)..usize_of(BITMAP_START + BITMAP_BYTES)].to_vec()
    }

    /// The drive that holds a slot.
    #[must_use]
    pub fn drive_of(&self, slot: u8) -> Option<SimDrive> {
        let key = self.shared.view().member(Slot(slot)).drive?;
        Some(self.drives[usize_of(key.0)].clone())
    }

    /// Seeded bytes.
    #[must_use]
    pub fn random_bytes(&self, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(usize_of(len) + 8);
        while bytes.len() < usize_of(len) {
            bytes.extend(self.executor.random_u64().to_le_bytes());
        }
        bytes.truncate(usize_of(len));
        bytes
    }

    /// Reads.
    ///
    /// # Errors
    /// The engine's.
    pub fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, IoKind> {
        let group = self.group.clone();
        self.executor.block_on(async move { read_vec(&group, at, len).await })
    }

    /// Writes, to the model too if the engine took it.
    ///
    /// # Errors
    /// The engine's.
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<(), IoKind> {
        let (group, bytes) = (self.group.clone(), data.to_vec());
        self.executor.block_on(async move { write_slice(&group, at, &bytes, Durability::Cached).await })?;
        self.model[usize_of(at)..usize_of(at) + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Writes seeded bytes.
    ///
    /// # Errors
    /// The engine's.
    pub fn write_random(&mut self, at: u64, len: u64) -> Result<(), IoKind> {
        let data = self.random_bytes(len);
        self.write(at, &data)
    }

    /// Zeroes, in the model too if the engine did it.
    ///
    /// # Errors
    /// The engine's.
    pub fn zero(&mut self, at: u64, len: u64) -> Result<(), IoKind> {
        let group = self.group.clone();
        self.executor
            .block_on(async move { group.zero(at..at + len, true, Durability::Cached).await })
            .map_err(|error| error.kind)?;
        self.model[usize_of(at)..usize_of(at + len)].fill(0);
        Ok(())
    }

    /// Fills the whole group with seeded bytes.
    pub fn fill(&mut self) {
        let step = self.shared.max_request_bytes();
        let capacity = self.geometry().capacity_bytes();
        let mut at = 0;
        while at < capacity {
            let len = step.min(capacity - at);
            self.write_random(at, len).expect("a healthy group takes writes");
            at += len;
        }
    }

    /// Drops a slot as the verb `drive fail` does.
    pub fn fail(&self, slot: u8, why: IoKind) -> Result<Arc<View>, IoKind> {
        let group = self.group.clone();
        let epoch = self.shared.view().epoch;
        self.executor.block_on(async move { group.fail(epoch, Slot(slot), why).await })
    }

    /// Puts a new blank drive into a missing slot, to be rebuilt.
    ///
    /// # Errors
    /// The engine's.
    pub fn replace(&mut self, slot: u8) -> Result<Arc<View>, IoKind> {
        let number = self.add_drive();
        let group = self.group.clone();
        let member = member(u64_of(number), MemberState::Rebuilding, self.shape.member_bytes);
        self.executor.block_on(async move { group.add_member(Slot(slot), member).await })
    }

    /// A new blank drive, to succeed a member that still serves.
    #[must_use]
    pub fn successor(&mut self) -> Successor {
        let number = self.add_drive();
        let member = member(u64_of(number), MemberState::InSync, self.shape.member_bytes);
        Successor {
            drive: DriveKey(u64_of(number)),
            device_uuid: member.device_uuid,
            dev_number: member.dev_number,
            layout: member.layout,
        }
    }

    /// Puts the drive that was dropped from a slot back into it.
    ///
    /// # Errors
    /// The engine's.
    pub fn readd(&mut self, slot: u8, drive: usize) -> Result<Arc<View>, IoKind> {
        let group = self.group.clone();
        let member = member(u64_of(drive), MemberState::Rebuilding, self.shape.member_bytes);
        self.executor.block_on(async move { group.readd_member(Slot(slot), member, &[]).await })
    }

    /// Compares the whole group with the model, in requests of up to the longest.
    ///
    /// # Panics
    /// If a byte differs or cannot be read; `context` says where the test was.
    pub fn check_contents(&self, context: &str) {
        let capacity = self.geometry().capacity_bytes();
        let step = self.shared.max_request_bytes().min(256 * 1024);
        let mut at = 0;
        while at < capacity {
            let len = step.min(capacity - at);
            let read = self.read(at, len).unwrap_or_else(|kind| panic!("{context}: read at {at}: {kind:?}"));
            self.compare(at, &read, context);
            at += len;
        }
    }

    /// Compares bytes read at `at` with the model.
    ///
    /// # Panics
    /// If they differ.
    pub fn compare(&self, at: u64, read: &[u8], context: &str) {
        let expected = &self.model[usize_of(at)..usize_of(at) + read.len()];
        if read != expected {
            let byte = read.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
            let place = self.geometry().place(GroupOffset(at + u64_of(byte)));
            panic!("{context}: byte {} is wrong ({place:?}), {:?}", at + u64_of(byte), self.shape);
        }
    }

    /// Looks at the media of members in sync: data and copies as in the model, parity as by its definition.
    ///
    /// # Panics
    /// If anything differs.
    pub fn check_media(&self, context: &str) {
        let geometry = self.geometry();
        let view = self.shared.view();
        for slot in view.slots().filter(|&slot| view.member(slot).is_in_sync()) {
            let drive = self.drive_of(slot.0).expect("a member in sync has a drive");
            let medium = drive.medium();
            for stripe in (0..geometry.stripes()).map(Stripe) {
                let height = geometry.stripe_height(stripe);
                let at = usize_of(DATA_START + geometry.member_offset(stripe, 0));
                let found = &medium[at..at + usize_of_u32(height)];
                let expected = self.expected(stripe, geometry.role(stripe, slot), height);
                assert!(
                    found == expected,
                    "{context}: slot {slot} stripe {stripe} differs, {:?}",
                    self.shape
                );
            }
        }
    }

    fn expected(&self, stripe: Stripe, role: Role, height: u32) -> Vec<u8> {
        let geometry = self.geometry();
        let column = |index: u8| {
            let place = raid_core::geometry::Place { stripe, index: DataIndex(index), column: 0 };
            let at = usize_of(geometry.group_offset(place).0);
            &self.model[at..at + usize_of_u32(height)]
        };
        if let Role::Data(DataIndex(index)) = role {
            return column(index).to_vec();
        }
        let columns: Vec<&[u8]> = (0..geometry.data_columns()).map(column).collect();
        let row = |i: usize| syndrome(columns.iter().map(|column| column[i]));
        (0..usize_of_u32(height)).map(|i| if role == Role::P { row(i).0 } else { row(i).1 }).collect()
    }
}
