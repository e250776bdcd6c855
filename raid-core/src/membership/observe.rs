//! What lies on one drive, read and judged, never repaired.
//!
//! The extension copy is the authority (SAFETY M1). Superblock and anchor are compared with it: what a crash of ours can
//! leave (a superblock one step older than the copy, a torn copy beside a whole one) is taken as it is and put right by
//! the next publish; what only other software can leave is called so.

use core::fmt;

use super::io::read;
use crate::format::anchor::{ANCHOR_AT, Anchor};
use crate::format::bad_blocks::BadBlocks;
use crate::format::bitmap::{BitmapHeader, Bits, sync_bytes};
use crate::format::extension::{COPY_BYTES, CopyPlace, Extension, ExtensionError, is_large_enough};
use crate::format::superblock::{SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_START, Superblock, SuperblockError};
use crate::geometry::Geometry;
use crate::ports::{Drive, DriveKey, Env, IoError};
use crate::units::{BlockSize, Uuid, u64_of};
use crate::view::Epoch;

/// The write-intent bitmap as read from a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapImage {
    /// The header.
    pub header: BitmapHeader,
    /// The bits.
    pub bits: Bits,
}

/// A member of a group of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ours {
    /// The newest whole extension copy.
    pub copy: Extension,
    /// Where it lies.
    pub place: CopyPlace,
    /// The md superblock that belongs to it.
    pub superblock: Superblock,
    /// The group's shape.
    pub geometry: Geometry,
    /// The intent bits; `None` where the member has none, or where they cannot be believed (then a note says so).
    pub bitmap: Option<BitmapImage>,
    /// Its lost blocks.
    pub bad_blocks: BadBlocks,
    /// Whether the claim is on it. Without it md owns the member: an adopt that has not come to it, or a release that has.
    pub is_claimed: bool,
    /// What is not as it should be and will be put right by the next start, in words.
    pub notes: Vec<String>,
}

/// What a drive is to us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// A member; a tombstone if its copy is marked deleted, an unfinished one if marked creating.
    Ours(Box<Ours>),
    /// An md member that we do not own.
    PlainMd(Box<Superblock>),
    /// Was a member, and other software has written to its metadata since.
    Modified {
        /// The group it belonged to.
        group: Uuid,
        /// Its device uuid.
        device_uuid: Uuid,
        /// Whether md may have run the group meanwhile: then our record of the whole group is out of date.
        taken_over: bool,
        /// What differs, in words.
        what: String,
    },
    /// A member whose metadata cannot be read whole.
    Damaged {
        /// The group, if that can still be told.
        group: Option<Uuid>,
        /// The member, if that can still be told.
        device_uuid: Option<Uuid>,
        /// The newest epoch it is known to have known.
        epoch: Option<Epoch>,
        /// What is damaged, in words.
        what: String,
    },
    /// Nothing of ours and no md superblock: blank, or in use by something else (`format::probe` tells).
    NotOurs,
    /// It does not answer.
    Unreadable(IoError),
}

/// A drive and what was found on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// The drive.
    pub key: DriveKey,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its logical block size.
    pub block_size: BlockSize,
    /// What it is.
    pub what: Observation,
}

impl Observed {
    /// The group this drive belongs or belonged to.
    #[must_use]
    pub fn group(&self) -> Option<Uuid> {
        match &self.what {
            Observation::Ours(ours) => Some(ours.copy.group),
            Observation::Modified { group, .. } => Some(*group),
            Observation::Damaged { group, .. } => *group,
            Observation::PlainMd(_) | Observation::NotOurs | Observation::Unreadable(_) => None,
        }
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(ours) if ours.copy.marks.deleted => {
                write!(f, "member of the deleted group {} ({})", ours.copy.name, ours.copy.group)
            }
            Self::Ours(ours) if ours.copy.marks.creating => {
                write!(f, "unfinished member of group {} ({})", ours.copy.name, ours.copy.group)
            }
            Self::Ours(ours) if !ours.is_claimed => {
                let (name, group) = (&ours.copy.name, ours.copy.group);
                let what = if ours.copy.marks.adopting { "adopt" } else { "release" };
                write!(f, "member of an md array, left by an unfinished {what} of group {name} ({group})")
            }
            Self::Ours(ours) => {
                write!(
                    f,
                    "member of group {} ({}), {}",
                    ours.copy.name,
                    ours.copy.group,
                    ours.superblock.role()
                )
            }
            Self::PlainMd(superblock) => {
                write!(f, "member of md array {} ({})", superblock.name(), superblock.set_uuid)
            }
            Self::Modified { group, what, .. } => {
                write!(f, "was a member of group {group}, modified by other software: {what}")
            }
            Self::Damaged { what, .. } => write!(f, "damaged member: {what}"),
            Self::NotOurs => f.write_str("no member of a group"),
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

/// Reads and judges one drive. Repairs nothing, writes nothing.
pub async fn observe<E: Env>(env: &E, key: DriveKey, drive: &E::Drive) -> Observed {
    let what = match look::<E>(env, drive).await {
        Ok(what) => what,
        Err(error) => Observation::Unreadable(error),
    };
    Observed { key, size_bytes: drive.size_bytes(), block_size: drive.block_size(), what }
}

async fn look<E: Env>(env: &E, drive: &E::Drive) -> Result<Observation, IoError> {
    let slot_end = SUPERBLOCK_START + u64_of(SUPERBLOCK_SLOT_BYTES);
    if drive.size_bytes() < slot_end {
        return Ok(Observation::NotOurs);
    }
    let slot = read(env, drive, SUPERBLOCK_START..slot_end).await?;
    let superblock = Superblock::decode(&slot);
    let anchor = Anchor::decode(&slot[ANCHOR_AT..]);
    let area = match (&anchor, &superblock) {
        (Ok(anchor), _) => anchor.extension.clone(),
        (Err(_), Ok(superblock)) if superblock.is_claimed() => crate::format::plan::extension_of(superblock),
        _ => None,
    };
    let area = area.filter(|area| is_large_enough(area) && area.end <= drive.size_bytes());
    let (mut a, mut b) = (Err(ExtensionError::NoMagic), Err(ExtensionError::NoMagic));
    if let Some(area) = area {
        let len = u64_of(COPY_BYTES);
        for (place, copy) in [(CopyPlace::A, &mut a), (CopyPlace::B, &mut b)] {
            let start = place.start(&area).0;
            // A copy that cannot be read is a copy that is not there: the other one decides.
            *copy = match read(env, drive, start..start + len).await {
                Ok(bytes) => Extension::decode(&bytes),
                Err(_) => Err(ExtensionError::BadChecksum),
            };
        }
    }
    let is_erased = slot[..ANCHOR_AT].iter().all(|&byte| byte == 0);
    match judge(superblock, anchor, a, b, is_erased) {
        Judged::Member { copy, place, is_claimed, notes } => {
            complete(env, drive, *copy, place, (is_claimed, notes)).await
        }
        Judged::Other(what) => Ok(what),
    }
}

enum Judged {
    Member { copy: Box<Extension>, place: CopyPlace, is_claimed: bool, notes: Vec<String> },
    Other(Observation),
}

/// The newest copy that belongs to this member of this group, and the older one.
fn newest(
    a: Result<Extension, ExtensionError>,
    b: Result<Extension, ExtensionError>,
    id: (Uuid, Uuid),
) -> (Option<(Extension, CopyPlace)>, Option<Extension>) {
    let of_member = |copy: Result<Extension, ExtensionError>| {
        copy.ok().filter(|copy| (copy.group, copy.device_uuid) == id)
    };
    match (of_member(a), of_member(b)) {
        (Some(a), Some(b)) if a.sequence > b.sequence => (Some((a, CopyPlace::A)), Some(b)),
        (a, Some(b)) => (Some((b, CopyPlace::B)), a),
        (Some(a), None) => (Some((a, CopyPlace::A)), None),
        (None, None) => (None, None),
    }
}

/// Group and device uuid of the member a drive claims to be; what it is instead if it claims none.
fn identify(
    superblock: &Result<Superblock, SuperblockError>,
    anchor: &Result<Anchor, ExtensionError>,
    notes: &mut Vec<String>,
) -> Result<(Uuid, Uuid), Observation> {
    match (anchor, superblock) {
        (Ok(anchor), _) => Ok((anchor.group, anchor.device_uuid)),
        (Err(error), Ok(superblock)) if superblock.is_claimed() => {
            notes.push(format!("anchor: {error}"));
            Ok((superblock.set_uuid, superblock.device_uuid))
        }
        (Err(_), Ok(superblock)) => Err(Observation::PlainMd(Box::new(superblock.clone()))),
        (Err(_), Err(error @ SuperblockError::BadChecksum { .. })) => {
            Err(Observation::Damaged { group: None, device_uuid: None, epoch: None, what: error.to_string() })
        }
        (Err(_), Err(_)) => Err(Observation::NotOurs),
    }
}

fn judge(
    superblock: Result<Superblock, SuperblockError>,
    anchor: Result<Anchor, ExtensionError>,
    a: Result<Extension, ExtensionError>,
    b: Result<Extension, ExtensionError>,
    is_erased: bool,
) -> Judged {
    let mut notes = Vec::new();
    let id = match identify(&superblock, &anchor, &mut notes) {
        Ok(id) => id,
        Err(other) => return Judged::Other(other),
    };
    let broken = [("A", &a), ("B", &b)].map(|(place, copy)| match copy {
        Err(error @ (ExtensionError::BadChecksum | ExtensionError::Impossible(_))) => {
            Some(format!("extension copy {place}: {error}"))
        }
        _ => None,
    });
    notes.extend(broken.into_iter().flatten());
    let anchor = anchor.ok();
    let modified = |(taken_over, what): (bool, String)| {
        let (group, device_uuid) = id;
        Judged::Other(Observation::Modified { group, device_uuid, taken_over, what })
    };
    let (newest, older) = newest(a, b, id);
    let Some((copy, place)) = newest else {
        if let Ok(superblock) = &superblock
            && let Some(difference) = foreign_hand(superblock, id)
        {
            return modified(difference);
        }
        let epoch = anchor.as_ref().map(Anchor::epoch);
        let what = "no whole extension copy".to_owned();
        let (group, device_uuid) = (Some(id.0), Some(id.1));
        return Judged::Other(Observation::Damaged { group, device_uuid, epoch, what });
    };
    if let Some(anchor) = anchor.as_ref().filter(|anchor| anchor.sequence > copy.sequence) {
        // The anchor is written after its copy: that copy was whole once and is lost now. The older one must not speak
        // for the member, it does not know who was dropped since.
        if let Ok(superblock) = &superblock
            && let Some(difference) = foreign_hand(superblock, id)
        {
            return modified(difference);
        }
        let what = "the newest extension copy is lost, only an older one is whole".to_owned();
        let epoch = Some(anchor.epoch());
        let (group, device_uuid) = (Some(id.0), Some(id.1));
        return Judged::Other(Observation::Damaged { group, device_uuid, epoch, what });
    }
    if let Ok(superblock) = &superblock
        && copy.marks.is_between_owners()
        && !superblock.is_claimed()
        && (superblock.set_uuid, superblock.device_uuid) == id
    {
        // md's, unless another member has the claim: then it belongs with that one, if md has not written to it since.
        if is_as_handed_over(superblock, &copy) {
            return Judged::Member { copy: Box::new(copy), place, is_claimed: false, notes };
        }
        return Judged::Other(Observation::PlainMd(Box::new(superblock.clone())));
    }
    let is_tombstone = copy.marks.deleted || anchor.as_ref().is_some_and(|anchor| anchor.marks.deleted);
    match &superblock {
        Ok(superblock) => match difference(superblock, &copy, older.as_ref(), id) {
            Ok(note) => notes.extend(note),
            Err(difference) => return modified(difference),
        },
        Err(SuperblockError::NoMagic) if is_tombstone => {}
        Err(SuperblockError::NoMagic) if is_erased => {
            return modified((false, "superblock erased".to_owned()));
        }
        Err(error @ (SuperblockError::NoMagic | SuperblockError::BadChecksum { .. })) => {
            notes.push(error.to_string());
        }
        Err(error @ SuperblockError::Unsupported(_)) => return modified((false, error.to_string())),
    }
    Judged::Member { copy: Box::new(copy), place, is_claimed: true, notes }
}

/// Whether a superblock without the claim is the one that was left for md, or that md had left: an adopt changes nothing but
/// the claim, a release also says that everything is in sync. Whatever md writes comes with another time.
fn is_as_handed_over(superblock: &Superblock, copy: &Extension) -> bool {
    recorded_superblock(copy).is_some_and(|recorded| {
        let mut claimed = superblock.clone();
        claimed.set_claimed(true);
        claimed.resync_offset = recorded.resync_offset;
        claimed == recorded
    })
}

/// What shows at the superblock alone that other software owns the drive now.
fn foreign_hand(superblock: &Superblock, id: (Uuid, Uuid)) -> Option<(bool, String)> {
    if superblock.set_uuid != id.0 {
        let (name, uuid) = (superblock.name(), superblock.set_uuid);
        return Some((false, format!("it carries md array {name} ({uuid}) now")));
    }
    if superblock.device_uuid != id.1 {
        return Some((false, format!("its device uuid is {} now", superblock.device_uuid)));
    }
    (!superblock.is_claimed())
        .then(|| (true, "the claim was taken off: md may have run the group".to_owned()))
}

/// Compares a superblock with the one recorded: `Ok` if it is ours or only differs where that does no harm.
fn difference(
    superblock: &Superblock,
    copy: &Extension,
    older: Option<&Extension>,
    id: (Uuid, Uuid),
) -> Result<Option<String>, (bool, String)> {
    if let Some(difference) = foreign_hand(superblock, id) {
        return Err(difference);
    }
    if superblock.events > copy.events {
        return Err((true, format!("events {} on the drive, {} recorded", superblock.events, copy.events)));
    }
    let Some(recorded) = recorded_superblock(copy) else {
        return Ok(None);
    };
    let place = |sb: &Superblock| {
        (
            (sb.level, sb.layout, sb.chunksize, sb.raid_disks, sb.size),
            (sb.data_offset, sb.data_size, sb.dev_number, sb.bitmap_offset, sb.bblog_offset, sb.bblog_size),
        )
    };
    if place(superblock) != place(&recorded) {
        return Err((false, "level, size or layout in the superblock were changed".to_owned()));
    }
    let is_older = older.and_then(recorded_superblock).is_some_and(|older| older == *superblock);
    if *superblock == recorded || is_older {
        return Ok(None);
    }
    Ok(Some("md superblock rewritten by other software without harm".to_owned()))
}

fn recorded_superblock(copy: &Extension) -> Option<Superblock> {
    let mut bytes = copy.superblock.clone();
    bytes.resize(SUPERBLOCK_SLOT_BYTES, 0);
    Superblock::decode(&bytes).ok()
}

/// Reads what else belongs to a member: bitmap and bad-block log.
async fn complete<E: Env>(
    env: &E,
    drive: &E::Drive,
    copy: Extension,
    place: CopyPlace,
    (is_claimed, mut notes): (bool, Vec<String>),
) -> Result<Observation, IoError> {
    let damaged = |what: &str| Observation::Damaged {
        group: Some(copy.group),
        device_uuid: Some(copy.device_uuid),
        epoch: Some(copy.epoch()),
        what: what.to_owned(),
    };
    let slots = u8::try_from(copy.slots.len()).expect("decoded: at most 128");
    let shape = Geometry::new(copy.level, slots, copy.chunk_bytes, copy.member_bytes);
    let Ok(geometry) = shape else {
        return Ok(damaged("the group's shape in the extension copy is impossible"));
    };
    let Some(superblock) = recorded_superblock(&copy) else {
        return Ok(damaged("the superblock inside the extension copy is unreadable"));
    };
    let layout = &copy.layout;
    let data_end = layout.data_start.plus(layout.data_bytes).0;
    if data_end > drive.size_bytes() || geometry.member_bytes() > layout.data_bytes {
        return Ok(damaged("the drive is smaller than the member on it"));
    }
    let bad_blocks = match layout.bad_blocks.clone() {
        None => BadBlocks::default(),
        Some(range) => match read(env, drive, range).await {
            Ok(log) => BadBlocks::decode(&log, superblock.bblog_shift),
            // Without the list, lost blocks would read as data (SAFETY S6).
            Err(_) => return Ok(damaged("its bad-block log cannot be read")),
        },
    };
    let bitmap = match layout.bitmap.clone() {
        None => None,
        Some(range) => match read(env, drive, range).await {
            Ok(area) => match judge_bitmap(&area, &geometry, copy.group) {
                Ok(image) => Some(image),
                Err(why) => {
                    notes.push(why);
                    None
                }
            },
            Err(error) => {
                notes.push(format!("bitmap: {error}"));
                None
            }
        },
    };
    Ok(Observation::Ours(Box::new(Ours {
        copy,
        place,
        superblock,
        geometry,
        bitmap,
        bad_blocks,
        is_claimed,
        notes,
    })))
}

fn judge_bitmap(area: &[u8], geometry: &Geometry, group: Uuid) -> Result<BitmapImage, String> {
    let header = BitmapHeader::decode(area).map_err(|error| error.to_string())?;
    if header.uuid != group {
        return Err(format!("bitmap of another group ({})", header.uuid));
    }
    if header.sync_size != sync_bytes(geometry) / 512 || header.len_bytes() > u64_of(area.len()) {
        return Err("bitmap of another size".to_owned());
    }
    let bits = Bits::decode(header.bits(), area);
    Ok(BitmapImage { header, bits })
}
