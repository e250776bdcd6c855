//! Adopt: an array of md becomes a group of ours where it lies; nothing of its data is written.
//!
//! In this order, each step on all members before the next one begins:
//!
//! 1. an old anchor goes, then the extension area is zeroed (both lie where md has nothing) and a bad-block log that does
//!    not count yet is made an empty one;
//! 2. an extension copy marked "adopting" is written, then the anchor that leads to it;
//! 3. the claim is set in the superblock, and nothing else.
//!
//! A crash before 3 leaves an array of md, which md assembles and another adopt takes. A crash during 3 leaves a group of
//! ours that starts as soon as all members are there ([`super::decide()`]), and that another adopt takes, too. What follows
//! is a start like any other: it takes the mark off.

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;

use super::io::{Job, flush_all, note, read, write_all};
use super::meta::{Identity, OnDrive, State};
use super::observe::{Observation, observe};
use super::publish::next_epoch;
use crate::format::adopt::{AdoptDrive, AdoptPlan};
use crate::format::anchor::{ANCHOR_AT, Anchor};
use crate::format::bad_blocks::BadBlocks;
use crate::format::bitmap::{BitmapHeader, Bits};
use crate::format::bytes::{put, round_up};
use crate::format::extension::{CopyPlace, Marks, SlotRecord, SlotState};
use crate::format::superblock::{
    FEATURE_BAD_BLOCKS, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock, SuperblockError,
};
use crate::ports::{Clock, Drive, DriveKey, Durability, Env, IoError};
use crate::units::{DriveOffset, Slot, u64_of};
use crate::view::Epoch;

/// Bytes zeroed by one command: bounds how long one takes.
const ZERO_BYTES: u64 = 16 << 20;

/// What a drive that was named for an adopt carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MdMember {
    /// A member of an array of md.
    Found {
        /// What the adopt is planned with; its name is for the caller to fill in.
        drive: Box<AdoptDrive>,
        /// The superblock's slot as it is.
        slot: Vec<u8>,
    },
    /// No superblock that can be used.
    None(SuperblockError),
    /// A member of a group of ours.
    Claimed(String),
}

/// Reads what md has on a drive. A member that an unfinished adopt has claimed already counts as md's.
///
/// # Errors
/// What the drive answered.
pub async fn read_md<E: Env>(env: &E, drive: &E::Drive) -> Result<MdMember, IoError> {
    let end = SUPERBLOCK_START + u64_of(SUPERBLOCK_SLOT_BYTES);
    if drive.size_bytes() < end {
        return Ok(MdMember::None(SuperblockError::NoMagic));
    }
    let mut slot = read(env, drive, SUPERBLOCK_START..end).await?;
    let mut superblock = match Superblock::decode(&slot) {
        Ok(superblock) => superblock,
        Err(error) => return Ok(MdMember::None(error)),
    };
    if superblock.is_claimed() {
        let what = observe(env, DriveKey(0), drive).await.what;
        match &what {
            Observation::Ours(ours) if ours.copy.marks.adopting => {}
            _ => return Ok(MdMember::Claimed(what.to_string())),
        }
        superblock.set_claimed(false);
        put(&mut slot, 0, &superblock.encode());
    }
    let bitmap = match superblock.bitmap_start() {
        None => None,
        Some(start) => {
            let bounded = |len: u64| start..start.saturating_add(len).min(drive.size_bytes());
            let head = bounded(4096);
            let head = if head.is_empty() { Vec::new() } else { read(env, drive, head).await? };
            Some(match BitmapHeader::decode(&head) {
                Err(error) => Err(error),
                Ok(header) => {
                    let area = read(env, drive, bounded(round_up(header.len_bytes(), 4096))).await?;
                    let bits = Bits::decode(header.bits(), &area);
                    Ok((header, bits))
                }
            })
        }
    };
    let (bytes, block) = (drive.size_bytes(), drive.block_size());
    let drive = Box::new(AdoptDrive { name: String::new(), bytes, block, superblock, bitmap });
    Ok(MdMember::Found { drive, slot })
}

/// A member to be adopted.
#[derive(Clone, Debug)]
pub struct AdoptMember<D> {
    /// Its slot.
    pub slot: Slot,
    /// Its drive.
    pub drive: D,
    /// md's superblock.
    pub superblock: Superblock,
    /// The superblock's slot as [`read_md`] gave it.
    pub bytes: Vec<u8>,
}

/// Why nothing was adopted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdoptFailed {
    /// Which drives, and how.
    pub failed: Vec<(Slot, IoError)>,
    /// Drives on which the claim could not be taken back: another adopt, or a start with all members, ends it.
    pub not_restored: Vec<(Slot, IoError)>,
}

impl fmt::Display for AdoptFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was adopted; failed:")?;
        self.failed.iter().try_for_each(|(slot, error)| write!(f, " slot {slot}: {error};"))?;
        self.not_restored.iter().try_for_each(|(slot, error)| {
            write!(f, " the claim on slot {slot} could not be taken back: {error};")
        })
    }
}

impl std::error::Error for AdoptFailed {}

/// Takes an array over. It is then on the drives as a stopped group: start it like any other.
///
/// # Errors
/// [`AdoptFailed`]: the array is md's as before, or the error says which members are not.
///
/// # Panics
/// If the members are not those of the plan.
pub async fn adopt<E: Env>(
    env: &E,
    plan: &AdoptPlan,
    name: &str,
    members: &[AdoptMember<E::Drive>],
) -> Result<(), AdoptFailed> {
    let planned = plan.slots.iter().filter(|slot| slot.drive.is_some()).count();
    assert_eq!(members.len(), planned, "an adopt of {planned} members");
    let failed = |failed: Vec<(Slot, IoError)>| AdoptFailed { failed, not_restored: Vec::new() };
    let ok = |list: Vec<(Slot, IoError)>| if list.is_empty() { Ok(()) } else { Err(failed(list)) };
    ok(write_slots(env, members, |member| without_anchor(&member.bytes)).await)?;
    ok(prepare(env, plan, members).await)?;
    let (copies, slots) = encoded(env, plan, name, members);
    ok(write_all(env, copies, Durability::Fua).await)?;
    ok(write_slots(env, members, |member| slots[&member.slot].0.clone()).await)?;
    let list = write_slots(env, members, |member| slots[&member.slot].1.clone()).await;
    if list.is_empty() {
        return Ok(());
    }
    let not_restored = write_slots(env, members, |member| without_anchor(&member.bytes)).await;
    Err(AdoptFailed { failed: list, not_restored })
}

fn without_anchor(slot: &[u8]) -> Vec<u8> {
    let mut bytes = slot.to_vec();
    if Anchor::is_there(&bytes[ANCHOR_AT..]) {
        bytes[ANCHOR_AT..].fill(0);
    }
    bytes
}

async fn write_slots<E: Env>(
    env: &E,
    members: &[AdoptMember<E::Drive>],
    bytes: impl Fn(&AdoptMember<E::Drive>) -> Vec<u8>,
) -> Vec<(Slot, IoError)> {
    let job = |member: &AdoptMember<E::Drive>| Job {
        slot: member.slot,
        drive: member.drive.clone(),
        at: DriveOffset(SUPERBLOCK_START),
        bytes: bytes(member),
    };
    write_all(env, members.iter().map(job).collect(), Durability::Fua).await
}

/// Zeroes the extension areas and empties bad-block logs that do not count.
async fn prepare<E: Env>(
    env: &E,
    plan: &AdoptPlan,
    members: &[AdoptMember<E::Drive>],
) -> Vec<(Slot, IoError)> {
    let mut failed: Vec<(Slot, IoError)> = Vec::new();
    let mut jobs = Vec::new();
    for member in members {
        let layout = &plan.slots[member.slot.index()].layout;
        let area = layout.extension.clone().expect("planned with one");
        if let Err(error) = zero(&member.drive, area).await {
            note(&mut failed, member.slot, error);
        }
        // mdadm leaves the area as it found it until the first entry; we read it whenever it is there.
        let counts = member.superblock.has_feature(FEATURE_BAD_BLOCKS);
        if let Some(log) = layout.bad_blocks.as_ref().filter(|_| !counts) {
            let bytes = BadBlocks::default().encode().expect("an empty log is not full");
            let (slot, drive) = (member.slot, member.drive.clone());
            jobs.push(Job { slot, drive, at: DriveOffset(log.start), bytes });
        }
    }
    let drives: Vec<(Slot, E::Drive)> =
        members.iter().map(|member| (member.slot, member.drive.clone())).collect();
    for (slot, error) in
        write_all(env, jobs, Durability::Fua).await.into_iter().chain(flush_all(&drives).await)
    {
        note(&mut failed, slot, error);
    }
    failed
}

/// Zeroes a range of a drive.
pub(super) async fn zero<D: Drive>(drive: &D, range: Range<u64>) -> Result<(), IoError> {
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + ZERO_BYTES);
        drive.zero(at..end, true).await?;
        at = end;
    }
    Ok(())
}

/// The copies, and by slot the superblock's slot with the anchor alone and with the claim.
type Encoded<D> = (Vec<Job<D>>, BTreeMap<Slot, (Vec<u8>, Vec<u8>)>);

fn encoded<E: Env>(
    env: &E,
    plan: &AdoptPlan,
    name: &str,
    members: &[AdoptMember<E::Drive>],
) -> Encoded<E::Drive> {
    let now_unix_s = env.clock().unix_seconds();
    let identity = Identity {
        group: plan.group,
        name: name.to_owned(),
        geometry: plan.geometry,
        block_size: plan.block,
        created_unix_s: plan.created_unix_s,
    };
    let mut state = state_of(env, plan);
    let (mut copies, mut slots) = (Vec::new(), BTreeMap::new());
    for member in members {
        let mut superblock = member.superblock.clone();
        superblock.set_claimed(true);
        let claimed = superblock.encode();
        let on_drive = OnDrive {
            superblock,
            layout: plan.slots[member.slot.index()].layout.clone(),
            newest: CopyPlace::B,
            is_joining: false,
            is_returning: false,
            succeeds: None,
        };
        state.sequence += 1;
        let copy = state.extension_of(&identity, &on_drive, claimed.clone(), now_unix_s);
        let area = on_drive.layout.extension.as_ref().expect("planned with one");
        let (slot, drive) = (member.slot, member.drive.clone());
        copies.push(Job { slot, drive, at: CopyPlace::A.start(area), bytes: copy.encode() });
        let mut with_anchor = member.bytes.clone();
        put(&mut with_anchor, ANCHOR_AT, &Anchor::of(&copy).encode());
        let mut with_claim = with_anchor.clone();
        put(&mut with_claim, 0, &claimed);
        slots.insert(slot, (with_anchor, with_claim));
    }
    (copies, slots)
}

fn state_of<E: Env>(env: &E, plan: &AdoptPlan) -> State {
    let epoch = next_epoch(env, Epoch::default());
    let record = |slot: &crate::format::adopt::AdoptSlot| {
        let is_here = slot.drive.is_some();
        SlotRecord {
            // A uuid no drive has, and another one for each slot.
            device_uuid: if is_here {
                slot.device_uuid
            } else {
                crate::units::Uuid::from_random(env.random_u64(), env.random_u64())
            },
            last_in_sync: if is_here { epoch } else { Epoch::default() },
            cursor_bytes: 0,
            dev_number: slot.dev_number,
            state: if is_here { SlotState::InSync } else { SlotState::Missing },
            by_intents: false,
            stays_out: false,
            distrusted: false,
            known_counter: 0,
        }
    };
    State {
        chain: vec![epoch],
        sequence: 0,
        events: plan.events.0,
        events_cleared: plan.events.1,
        marks: Marks { clean: true, adopted: true, adopting: true, ..Marks::default() },
        is_taken: false,
        sealed_at: 0,
        forced_at: 0,
        deleted_unix_s: 0,
        roles: plan.roles.clone(),
        slots: plan.slots.iter().map(record).collect(),
        on_drive: BTreeMap::new(),
        witness_error: None,
    }
}
