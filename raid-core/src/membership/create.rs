//! New members: create a group, prepare a replacement, wipe a drive.
//!
//! Create is all or nothing (AD-07): all drives are looked at before one is written; then old signatures go, areas are
//! laid out, and every member gets an extension copy marked "creating" and its superblock; only when all have both is a
//! second copy written without the mark. A crash before that leaves nothing that assembles, a crash during it a group
//! that is whole, because its members were complete before. A failure puts back what was overwritten.

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;

use super::GroupMeta;
use super::io::{Job, flush_all, note, read, write, write_all};
use super::lifecycle::BITMAP_ALIGN_BYTES;
use super::meta::{Identity, OnDrive, Persistent, State};
use super::observe::{Observation, observe};
use super::publish::{next_epoch, write_member, write_members};
use crate::format::bad_blocks::BadBlocks;
use crate::format::bitmap::{BitmapHeader, Bits, encode_area};
use crate::format::bytes::round_down;
use crate::format::extension::{COPY_BYTES, CopyPlace, Marks, SlotRecord, SlotState};
use crate::format::plan::{NewGroup, Plan, replacement_bytes_min};
use crate::format::superblock::Superblock;
use crate::ports::{Drive, DriveKey, Durability, Env, IoError, IoKind};
use crate::units::{DriveOffset, Slot, Uuid, u64_of, usize_of};
use crate::view::{Epoch, Member, MemberLayout, MemberState, View};

/// Both ends of a drive where signatures of other software lie; our own areas begin inside the first.
const END_BYTES: u64 = 1 << 20;
/// What is saved and put back at a time.
const PIECE_BYTES: u64 = 64 * 1024;
/// Bytes zeroed by one command: bounds how long one takes.
const ZERO_BYTES: u64 = 1 << 30;

/// What is to be created.
#[derive(Clone, Debug)]
pub struct CreateRequest<'a> {
    /// Shape and layout.
    pub plan: &'a Plan,
    /// Identities. `is_in_sync` means the data areas are zeroed now, so that nothing is left to resync.
    pub new: &'a NewGroup,
    /// The group's name (checked by `names::check_name`).
    pub name: &'a str,
    /// Whether drives that carry md arrays, tombstones or damaged members may be overwritten. Members of a group of ours
    /// never are.
    pub overwrite: bool,
    /// Slots that are read only where no other copy can be (mirrors).
    pub write_mostly: &'a [Slot],
}

/// Why nothing was created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateError {
    /// A drive is a member of a group of ours (AD-08): assemble that, or delete it first.
    AlreadyMember {
        /// Which of the drives given.
        slot: Slot,
        /// The group's name.
        name: String,
        /// The group.
        group: Uuid,
    },
    /// A drive carries something and `overwrite` was not given.
    InUse {
        /// Which of the drives given.
        slot: Slot,
        /// What it is, in words.
        what: String,
    },
    /// A drive does not have the place the plan gives its areas.
    TooSmall {
        /// Which of the drives given.
        slot: Slot,
        /// Its size in bytes.
        bytes: u64,
        /// The size needed.
        needed: u64,
    },
    /// Drives failed. The others were put back as they were, except those in `not_restored`.
    Failed {
        /// Which, and how.
        failed: Vec<(Slot, IoError)>,
        /// Drives that could not be put back.
        not_restored: Vec<(Slot, IoError)>,
    },
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyMember { slot, name, group } => {
                write!(f, "drive {slot} is already a member of group {name} ({group}): use assemble")
            }
            Self::InUse { slot, what } => write!(f, "drive {slot} is in use: {what}"),
            Self::TooSmall { slot, bytes, needed } => {
                write!(f, "drive {slot} has {bytes} bytes, {needed} are needed")
            }
            Self::Failed { failed, not_restored } => {
                f.write_str("nothing was created; failed:")?;
                failed.iter().try_for_each(|(slot, error)| write!(f, " drive {slot}: {error};"))?;
                not_restored.iter().try_for_each(|(slot, error)| {
                    write!(f, " drive {slot} could not be put back as it was: {error};")
                })
            }
        }
    }
}

impl std::error::Error for CreateError {}

/// Creates a group on drives in slot order. It is then on the drives, stopped: start it like any other, by observing,
/// deciding and starting.
///
/// # Errors
/// [`CreateError`]: nothing was created.
///
/// # Panics
/// If the plan is not for as many drives.
pub async fn create<E: Env>(
    env: &E,
    request: &CreateRequest<'_>,
    drives: &[E::Drive],
) -> Result<(), CreateError> {
    let members = usize::from(request.plan.geometry.members());
    assert_eq!(drives.len(), members, "a plan for {members} drives");
    check(env, request, drives).await?;
    let drives: Vec<(Slot, E::Drive)> = (0u8..).map(Slot).zip(drives.iter().cloned()).collect();
    let places = [0..END_BYTES, copy_b(&request.plan.layout)];
    let mut saved = Vec::new();
    for (slot, drive) in &drives {
        let tail = round_down(drive.size_bytes(), BITMAP_ALIGN_BYTES) - END_BYTES..drive.size_bytes();
        let ranges = places.iter().cloned().chain([tail]);
        match save(env, drive, ranges).await {
            Ok(kept) => saved.push(kept),
            Err(error) => {
                return Err(CreateError::Failed { failed: vec![(*slot, error)], not_restored: Vec::new() });
            }
        }
    }
    let Err(failed) = write_group(env, request, &drives).await else { return Ok(()) };
    let mut not_restored = Vec::new();
    for ((slot, drive), kept) in drives.iter().zip(saved) {
        if let Err(error) = restore(env, drive, kept).await
            && failed.iter().all(|(known, _)| known != slot)
        {
            not_restored.push((*slot, error));
        }
    }
    Err(CreateError::Failed { failed, not_restored })
}

async fn check<E: Env>(env: &E, request: &CreateRequest<'_>, drives: &[E::Drive]) -> Result<(), CreateError> {
    let layout = &request.plan.layout;
    let needed = layout.data_start.0 + layout.data_bytes + END_BYTES;
    for (slot, drive) in (0u8..).map(Slot).zip(drives) {
        let bytes = drive.size_bytes();
        if bytes < needed {
            return Err(CreateError::TooSmall { slot, bytes, needed });
        }
        let seen = observe(env, DriveKey(u64::from(slot.0)), drive).await.what;
        match &seen {
            Observation::NotOurs => {}
            Observation::Ours(ours) if ours.copy.marks.creating => {}
            Observation::Ours(ours) if !ours.copy.marks.deleted => {
                let (name, group) = (ours.copy.name.clone(), ours.copy.group);
                return Err(CreateError::AlreadyMember { slot, name, group });
            }
            Observation::Unreadable(error) => {
                return Err(CreateError::Failed { failed: vec![(slot, *error)], not_restored: Vec::new() });
            }
            _ if request.overwrite => {}
            _ => return Err(CreateError::InUse { slot, what: seen.to_string() }),
        }
    }
    Ok(())
}

fn copy_b(layout: &MemberLayout) -> Range<u64> {
    let area = layout.extension.as_ref().expect("a created member has an extension area");
    let start = CopyPlace::B.start(area).0;
    start..start + u64_of(COPY_BYTES)
}

/// Everything of a create that writes.
async fn write_group<E: Env>(
    env: &E,
    request: &CreateRequest<'_>,
    drives: &[(Slot, E::Drive)],
) -> Result<(), Vec<(Slot, IoError)>> {
    let (plan, new) = (request.plan, request.new);
    let ok = |failed: Vec<(Slot, IoError)>| if failed.is_empty() { Ok(()) } else { Err(failed) };
    ok(zero_all(drives, |drive| ends(drive.size_bytes())).await)?;
    let data = plan.layout.data_start.0..plan.layout.data_start.0 + plan.layout.data_bytes;
    ok(zero_all(drives, |_| one(END_BYTES..data.start)).await)?;
    if new.is_in_sync {
        ok(zero_all(drives, |_| one(data.clone())).await)?;
    }
    let (meta, view) = new_meta(env, request);
    let bitmap = plan.bitmap(new);
    let mut jobs = Vec::new();
    for (slot, drive) in drives {
        for (at, bytes) in areas(&plan.layout, bitmap.as_ref()) {
            jobs.push(Job { slot: *slot, drive: drive.clone(), at, bytes });
        }
    }
    ok(write_all(env, jobs, Durability::Cached).await)?;
    ok(flush_all(drives).await)?;
    let handles: Vec<Option<E::Drive>> = drives.iter().map(|(_, drive)| Some(drive.clone())).collect();
    ok(write_members(env, &meta, &handles).await)?;
    let mut created = view;
    created.epoch = next_epoch(env, meta.epoch());
    {
        let mut state = meta.state.lock();
        state.marks.creating = false;
        state.take_view(&created);
    }
    ok(write_members(env, &meta, &handles).await)
}

/// Bitmap and bad-block log of a new member.
fn areas(layout: &MemberLayout, bitmap: Option<&(BitmapHeader, Bits)>) -> Vec<(DriveOffset, Vec<u8>)> {
    let mut areas = Vec::new();
    if let (Some(place), Some((header, bits))) = (&layout.bitmap, bitmap) {
        let bytes = encode_area(header, bits, place.end - place.start);
        areas.push((DriveOffset(place.start), bytes));
    }
    if let Some(place) = &layout.bad_blocks {
        let empty = BadBlocks::default().encode().expect("an empty log is not full");
        areas.push((DriveOffset(place.start), empty));
    }
    areas
}

fn new_meta<E: Env>(env: &E, request: &CreateRequest<'_>) -> (Persistent, View) {
    let (plan, new) = (request.plan, request.new);
    let epoch = next_epoch(env, Epoch::default());
    let slots: Vec<Slot> = (0..plan.geometry.members()).map(Slot).collect();
    let superblock = |slot: &Slot| {
        let mut superblock = plan.superblock(new, *slot);
        superblock.set_write_mostly(request.write_mostly.contains(slot));
        superblock
    };
    let superblocks: Vec<Superblock> = slots.iter().map(superblock).collect();
    let is_striped = !plan.geometry.level().is_redundant();
    let identity = Identity {
        group: new.group,
        name: request.name.to_owned(),
        geometry: plan.geometry,
        block_size: plan.block,
        created_unix_s: new.created_unix_s,
    };
    let record = |superblock: &Superblock| SlotRecord {
        device_uuid: superblock.device_uuid,
        last_in_sync: epoch,
        cursor_bytes: 0,
        dev_number: u16::try_from(superblock.dev_number).expect("a new dev_number is a slot"),
        state: SlotState::InSync,
        by_intents: false,
        stays_out: false,
        distrusted: false,
        known_counter: 0,
    };
    let on_drive = |superblock: &Superblock| {
        let on_drive = OnDrive {
            superblock: superblock.clone(),
            layout: plan.layout.clone(),
            newest: CopyPlace::B,
            is_joining: false,
            is_returning: false,
            succeeds: None,
        };
        (superblock.device_uuid, on_drive)
    };
    let marks =
        Marks { creating: true, clean: true, unsynced: !new.is_in_sync && !is_striped, ..Marks::default() };
    let state = State {
        chain: vec![epoch],
        sequence: 0,
        events: new.events,
        events_cleared: new.events,
        marks,
        is_taken: false,
        sealed_at: 0,
        forced_at: 0,
        deleted_unix_s: 0,
        roles: superblocks[0].dev_roles.clone(),
        slots: superblocks.iter().map(record).collect(),
        on_drive: superblocks.iter().map(on_drive).collect::<BTreeMap<_, _>>(),
        witness_error: None,
    };
    let member = |superblock: &Superblock| Member {
        state: MemberState::InSync,
        drive: None,
        device_uuid: superblock.device_uuid,
        dev_number: u16::try_from(superblock.dev_number).expect("a new dev_number is a slot"),
        last_in_sync: epoch.counter,
        layout: plan.layout.clone(),
        successor: None,
    };
    let view = View { version: 1, epoch, members: superblocks.iter().map(member).collect() };
    (Persistent::new(identity, state), view)
}

/// Both ends of a drive.
fn ends(drive_bytes: u64) -> Vec<Range<u64>> {
    let end = END_BYTES.min(drive_bytes);
    let tail = round_down(drive_bytes - end, BITMAP_ALIGN_BYTES).max(end);
    vec![0..end, tail..drive_bytes]
}

fn one(range: Range<u64>) -> Vec<Range<u64>> {
    core::iter::once(range).collect()
}

/// Zeroes ranges of all drives, the drives together, and flushes them.
async fn zero_all<D: Drive>(
    drives: &[(Slot, D)],
    ranges: impl Fn(&D) -> Vec<Range<u64>>,
) -> Vec<(Slot, IoError)> {
    let pieces: Vec<Vec<Range<u64>>> = drives
        .iter()
        .map(|(_, drive)| ranges(drive).into_iter().flat_map(|range| split(range, ZERO_BYTES)).collect())
        .collect();
    let mut failed: Vec<(Slot, IoError)> = Vec::new();
    for i in 0..pieces.iter().map(Vec::len).max().unwrap_or(0) {
        let alive = drives.iter().zip(&pieces).filter_map(|((slot, drive), pieces)| {
            let piece = pieces.get(i).filter(|_| failed.iter().all(|(known, _)| known != slot))?;
            Some((*slot, drive.zero(piece.clone(), true)))
        });
        let running: Vec<_> = alive.collect();
        for (slot, zero) in running {
            if let Err(error) = zero.await {
                note(&mut failed, slot, error);
            }
        }
    }
    for (slot, error) in flush_all(drives).await {
        note(&mut failed, slot, error);
    }
    failed
}

fn split(range: Range<u64>, step: u64) -> Vec<Range<u64>> {
    let pieces = (range.end.saturating_sub(range.start)).div_ceil(step);
    (0..pieces).map(|i| range.start + i * step..(range.start + (i + 1) * step).min(range.end)).collect()
}

/// What lay in some ranges of a drive: the ranges, and the pieces of them that were not zero.
struct Saved {
    ranges: Vec<Range<u64>>,
    pieces: Vec<(u64, Vec<u8>)>,
}

async fn save<E: Env>(
    env: &E,
    drive: &E::Drive,
    ranges: impl Iterator<Item = Range<u64>>,
) -> Result<Saved, IoError> {
    let mut saved = Saved { ranges: ranges.collect(), pieces: Vec::new() };
    for range in saved.ranges.clone() {
        for piece in split(range, PIECE_BYTES) {
            let bytes = read(env, drive, piece.clone()).await?;
            if bytes.iter().any(|&byte| byte != 0) {
                saved.pieces.push((piece.start, bytes));
            }
        }
    }
    Ok(saved)
}

/// Puts back what was saved; the superblock's slot goes first, with the first range.
async fn restore<E: Env>(env: &E, drive: &E::Drive, saved: Saved) -> Result<(), IoError> {
    for range in saved.ranges {
        drive.zero(range, true).await?;
    }
    drive.flush().await?;
    for (at, bytes) in saved.pieces {
        write(env, drive, DriveOffset(at), bytes, Durability::Cached).await?;
    }
    drive.flush().await
}

/// Makes a drive ready to replace the member of `slot`: everything on it, but not in the group before a view that lists
/// the returned member as rebuilding is published. Its bitmap is copied from a member in sync. The caller has checked
/// that it fits (`format::plan::check_replacement`) and that it is nobody else's.
///
/// # Errors
/// What a drive answered; the group is unchanged. `Invalid` if md's numbers for members are used up.
pub async fn prepare_member<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    slot: Slot,
    (key, drive): (DriveKey, &E::Drive),
    drives: &[Option<E::Drive>],
) -> Result<Member, IoError> {
    prepare(env, meta, view, slot, (key, drive), drives, false).await
}

/// As [`prepare_member`]; `succeeds`: it says so in its superblock.
pub(super) async fn prepare<E: Env>(
    env: &E,
    meta: &GroupMeta,
    view: &View,
    slot: Slot,
    (key, drive): (DriveKey, &E::Drive),
    drives: &[Option<E::Drive>],
    succeeds: bool,
) -> Result<Member, IoError> {
    let device_uuid = Uuid::from_random(env.random_u64(), env.random_u64());
    let mut member = Member {
        state: MemberState::Rebuilding,
        drive: Some(key),
        device_uuid,
        dev_number: 0,
        last_in_sync: 0,
        layout: view.member(slot).layout.clone(),
        successor: None,
    };
    let GroupMeta::Persistent(meta) = meta else { return Ok(member) };
    if drive.size_bytes() < replacement_bytes_min(&member.layout) {
        return Err(IoError::new(
            IoKind::Invalid,
            "prepare: the drive is smaller than the member it replaces",
        ));
    }
    let source = view.slots().find(|slot| view.member(*slot).is_in_sync());
    let bitmap = match (&member.layout.bitmap, source) {
        (Some(place), Some(source)) => {
            let from = drives[source.index()].as_ref();
            let from = from.ok_or(IoError::new(IoKind::Gone, "prepare: source of the bitmap"))?;
            let range = view.member(source).layout.bitmap.clone().unwrap_or(0..0);
            let mut bytes = read(env, from, range).await?;
            bytes.resize(usize_of(place.end - place.start), 0);
            Some((DriveOffset(place.start), bytes))
        }
        _ => None,
    };
    let target = [(slot, drive.clone())];
    let data_start = member.layout.data_start.0;
    let zeroed = zero_all(&target, |drive| {
        let mut ranges = ends(drive.size_bytes());
        ranges.push(END_BYTES..data_start);
        ranges
    });
    first_error(zeroed.await)?;
    let mut jobs: Vec<_> = areas(&member.layout, None);
    jobs.extend(bitmap);
    for (at, bytes) in jobs {
        write(env, drive, at, bytes, Durability::Cached).await?;
    }
    drive.flush().await?;
    let _turn = meta.turn.take().await;
    member.dev_number = join(meta, &member, succeeds.then_some(slot))?;
    let written = write_member(env, meta, device_uuid, drive).await;
    if written.is_err() {
        meta.state.lock().on_drive.remove(&device_uuid);
    }
    written.map(|()| member)
}

fn first_error(failed: Vec<(Slot, IoError)>) -> Result<(), IoError> {
    failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Notes the coming member; gives its `dev_number`.
fn join(meta: &Persistent, member: &Member, succeeds: Option<Slot>) -> Result<u16, IoError> {
    let mut state = meta.state.lock();
    let full = IoError::new(IoKind::Invalid, "prepare: md's 128 member numbers are all held");
    let dev_number = state.free_dev_number().ok_or(full)?;
    let template = state.on_drive.values().next().map(|on_drive| on_drive.superblock.clone());
    let mut superblock = template.ok_or(IoError::new(IoKind::Gone, "prepare: the group has no member"))?;
    superblock.dev_number = u32::from(dev_number);
    superblock.device_uuid = member.device_uuid;
    // Members of an adopted array may be laid out differently.
    superblock.set_layout(&member.layout);
    superblock.devflags = 0;
    superblock.cnt_corrected_read = 0;
    superblock.set_feature(crate::format::superblock::FEATURE_BAD_BLOCKS, false);
    let on_drive = OnDrive {
        superblock,
        layout: member.layout.clone(),
        newest: CopyPlace::B,
        is_joining: true,
        is_returning: false,
        succeeds,
    };
    state.on_drive.insert(member.device_uuid, on_drive);
    Ok(dev_number)
}

/// Erases what identifies a drive: ours, md's, and whatever else lies at either end (partition tables, file systems).
/// The caller has made sure that nobody uses it. Data beyond the first and before the last MiB stays, unreachable.
///
/// # Errors
/// What the drive answered.
pub async fn wipe<E: Env>(env: &E, drive: &E::Drive) -> Result<(), IoError> {
    let mut ranges = ends(drive.size_bytes());
    if let Observation::Ours(ours) = observe(env, DriveKey(0), drive).await.what
        && let Some(area) = &ours.copy.layout.extension
    {
        let len = u64_of(COPY_BYTES);
        ranges
            .extend([CopyPlace::A, CopyPlace::B].map(|place| place.start(area).0..place.start(area).0 + len));
    }
    first_error(zero_all(&[(Slot(0), drive.clone())], |_| ranges.clone()).await)
}
