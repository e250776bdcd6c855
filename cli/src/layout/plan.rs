//! What a layout asks of a node as it is now: a pure comparison. Nothing is ever taken away: what the file does not have
//! stays, and where the node contradicts it that is a problem, not a step.

use std::collections::BTreeMap;

use server::control::model::{
    DiskDoc, DriveDoc, DriveState, ExposureKind, GroupDoc, GroupState, LayoutDiskDoc, LevelDoc, PlanDoc,
    SpareDoc,
};
use server::control::request::{DiskCreate, DiskExpose, DiskResize, GroupCreate, SpareAdd};
use server::control::{ApiError, ErrorCode};

use super::file::{Disk, Drives, Expose, Group, Layout, Purpose, Select, Size, fits_model};
use crate::render;
use crate::units::human;

/// The node as it is.
#[derive(Default, Debug)]
pub(super) struct Node {
    pub(super) drives: Vec<DriveDoc>,
    pub(super) groups: Vec<GroupDoc>,
    pub(super) disks: Vec<DiskDoc>,
    pub(super) spares: Vec<SpareDoc>,
    /// Drives of the file by the name they have there; an error for those that cannot be found.
    pub(super) named: BTreeMap<String, Result<DriveDoc, ApiError>>,
}

/// A change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    CreateGroup(GroupCreate),
    AddSpare(SpareAdd),
    CreateDisk(DiskCreate),
    /// A disk of all that its group has left when its turn comes.
    CreateRest {
        group: String,
        name: String,
    },
    ResizeDisk {
        group: String,
        name: String,
        how: DiskResize,
    },
    Expose {
        group: String,
        name: String,
        how: DiskExpose,
    },
}

impl Step {
    /// The verb that does the same by hand, and what it is done to.
    pub(super) fn names(&self) -> (&'static str, String) {
        match self {
            Self::CreateGroup(what) => ("group create", what.name.clone()),
            Self::AddSpare(what) => ("spare add", what.drive.clone()),
            Self::CreateDisk(what) => ("disk create", format!("{}/{}", what.group, what.name)),
            Self::CreateRest { group, name } => ("disk create", format!("{group}/{name}")),
            Self::ResizeDisk { group, name, .. } => ("disk resize", format!("{group}/{name}")),
            Self::Expose { group, name, .. } => ("disk expose", format!("{group}/{name}")),
        }
    }
}

/// What a layout comes to.
#[derive(Default, Debug)]
pub(super) struct Plan {
    /// Each with what it does, in words.
    pub(super) steps: Vec<(Step, String)>,
    pub(super) problems: Vec<ApiError>,
    pub(super) notes: Vec<String>,
    pub(super) disks: Vec<LayoutDiskDoc>,
}

/// What is known of a group's shape: of one that exists, or of one that is to be.
struct Shape {
    capacity_bytes: u64,
    stripe_bytes: u64,
    chunk_bytes: u32,
    block_bytes: u32,
    /// What disks can still be cut from.
    free_bytes: u64,
}

impl Shape {
    fn of_group(group: &GroupDoc) -> Self {
        Self {
            capacity_bytes: group.capacity_bytes,
            stripe_bytes: group.stripe_bytes,
            chunk_bytes: group.chunk_bytes,
            block_bytes: group.block_size_bytes,
            free_bytes: group.free_bytes,
        }
    }

    /// Of a new group everything is free but what the partition table takes, in full stripes.
    fn of_plan(plan: &PlanDoc) -> Self {
        let block = u64::from(plan.block_size_bytes);
        // Protective MBR, header, 16 KiB of entries; at the end the same without the MBR.
        let (head, tail) = (2 * block + (16 << 10), block + (16 << 10));
        let (stripe, capacity) = (plan.stripe_bytes, plan.usable_bytes);
        let end = capacity.saturating_sub(tail) / stripe * stripe;
        Self {
            capacity_bytes: capacity,
            stripe_bytes: stripe,
            chunk_bytes: plan.chunk_bytes,
            block_bytes: plan.block_size_bytes,
            free_bytes: end.saturating_sub(head.div_ceil(stripe) * stripe),
        }
    }

    /// In full stripes; none for the rest.
    fn bytes_of(&self, size: Size) -> Option<u64> {
        let stripe = self.stripe_bytes;
        match size {
            Size::Bytes(bytes) => Some(bytes.div_ceil(stripe).saturating_mul(stripe)),
            Size::Percent(percent) => {
                let part = u128::from(self.capacity_bytes) * u128::from(percent) / 100;
                let part = u64::try_from(part).unwrap_or(u64::MAX);
                Some((part / stripe * stripe).max(stripe))
            }
            Size::Rest => None,
        }
    }
}

fn refused(what: String, hint: &str) -> ApiError {
    ApiError::new(ErrorCode::LayoutRefused, what).hint(hint)
}

/// Compares a layout with a node. `ask` plans a new group, which looks at its drives: what cannot become a group is told
/// by the daemon in the same words as `group create` tells it.
pub(super) fn compare(
    layout: &Layout,
    node: &Node,
    mut ask: impl FnMut(&GroupCreate) -> Result<PlanDoc, ApiError>,
) -> Plan {
    let mut plan = Plan::default();
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    for group in &layout.groups {
        let found = node.groups.iter().find(|known| known.name.eq_ignore_ascii_case(&group.name));
        let shape = match found {
            Some(known) => existing_group(&mut plan, group, known, node, &mut taken),
            None => new_group(&mut plan, group, node, &mut taken, &mut ask),
        };
        spares(&mut plan, group, node, &mut taken);
        if let Some(shape) = shape {
            disks(&mut plan, group, &shape, node);
        }
    }
    let is_in_file = |name: &str| layout.groups.iter().any(|group| group.name.eq_ignore_ascii_case(name));
    for other in node.groups.iter().filter(|other| !is_in_file(&other.name)) {
        plan.notes.push(format!("group {} is not in the file: it is left alone", other.name));
    }
    plan
}

/// A drive has one place in a file, whatever names it is called by.
fn take(plan: &mut Plan, taken: &mut BTreeMap<String, String>, drive: &DriveDoc, place: String) -> bool {
    match taken.insert(drive.path.clone(), place.clone()) {
        None => true,
        Some(other) => {
            let message = format!("drive {} is named twice: for {other} and for {place}", drive.path);
            plan.problems.push(
                ApiError::new(ErrorCode::DriveTwice, message).hint("each drive has one place in the file"),
            );
            false
        }
    }
}

fn named<'a>(plan: &mut Plan, node: &'a Node, place: &str, name: &str) -> Option<&'a DriveDoc> {
    match node.named.get(name) {
        Some(Ok(drive)) => Some(drive),
        Some(Err(error)) => {
            plan.problems.push(ApiError { message: format!("{place}: {}", error.message), ..error.clone() });
            None
        }
        None => None,
    }
}

/// Drives on another node than the file says are refused; those of which it is not known are told.
fn check_numa(plan: &mut Plan, group: &Group, drive: &DriveDoc) {
    let Some(wanted) = group.numa_node else { return };
    match drive.numa_node {
        Some(node) if node == wanted => {}
        Some(node) => plan.problems.push(refused(
            format!("group {}: drive {} is on NUMA node {node}, not {wanted}", group.name, drive.path),
            "name a drive of that node, or take numa_node out",
        )),
        None => plan.notes.push(format!(
            "group {}: the NUMA node of {} is not known, so it was not checked",
            group.name, drive.path
        )),
    }
}

fn existing_group(
    plan: &mut Plan,
    group: &Group,
    known: &GroupDoc,
    node: &Node,
    taken: &mut BTreeMap<String, String>,
) -> Option<Shape> {
    let place = format!("group {}", group.name);
    let chunk = group.chunk_bytes.filter(|bytes| *bytes != known.chunk_bytes);
    let mut wrong = Vec::new();
    if known.level != group.level {
        wrong.push(format!(
            "it is {}, the file says {}",
            render::level(known.level),
            render::level(group.level)
        ));
    }
    if let Some(chunk) = chunk {
        let (is, wanted) = (human(u64::from(known.chunk_bytes)), human(u64::from(chunk)));
        wrong.push(format!("its chunk is {is}, the file says {wanted}"));
    }
    if known.members.len() != group.drives.count() {
        wrong.push(format!("it has {} drives, the file {}", known.members.len(), group.drives.count()));
    }
    for what in wrong {
        plan.problems.push(refused(
            format!("{place} exists, and {what}"),
            "a group's shape is fixed when it is made: change the file, or the group's name in it",
        ));
    }
    if let Drives::Named(names) = &group.drives {
        for (slot, name) in names.iter().enumerate() {
            let Some(drive) = named(plan, node, &place, name) else { continue };
            take(plan, taken, drive, place.clone());
            match drive.group.as_deref() {
                Some(other) if other.eq_ignore_ascii_case(&group.name) => check_numa(plan, group, drive),
                Some(other) if drive.state == DriveState::Member => plan.problems.push(refused(
                    format!("{place}: drive {} is a member of group {other}", drive.path),
                    "each drive has one place",
                )),
                _ => {
                    let now = known.members.get(slot).and_then(|member| member.drive.as_deref());
                    plan.notes.push(format!(
                        "{place}: {} is no member of it; slot {slot} has {}: it is left alone",
                        drive.path,
                        now.unwrap_or("no drive")
                    ));
                }
            }
        }
    }
    if known.state == GroupState::Stopped {
        plan.problems.push(
            ApiError::new(ErrorCode::GroupNotRunning, format!("{place} exists and does not run"))
                .hint(format!("warpraid group assemble {}", group.name)),
        );
        return None;
    }
    Some(Shape::of_group(known))
}

fn new_group(
    plan: &mut Plan,
    group: &Group,
    node: &Node,
    taken: &mut BTreeMap<String, String>,
    ask: &mut impl FnMut(&GroupCreate) -> Result<PlanDoc, ApiError>,
) -> Option<Shape> {
    let place = format!("group {}", group.name);
    let before = plan.problems.len();
    let mut drives = Vec::new();
    match &group.drives {
        Drives::Named(names) => {
            for name in names {
                let Some(drive) = named(plan, node, &place, name) else { continue };
                if take(plan, taken, drive, place.clone()) {
                    check_numa(plan, group, drive);
                    drives.push(drive.path.clone());
                }
            }
        }
        Drives::Select(select) => {
            let fitting = free_drives(select, group.numa_node, node, taken);
            if fitting.len() < select.count {
                let message = format!(
                    "{place}: {} are selected, {} free drives fit",
                    render::count(u64::try_from(select.count).unwrap_or(u64::MAX), "drive"),
                    fitting.len()
                );
                plan.problems.push(
                    ApiError::new(ErrorCode::DriveNotFound, message)
                        .hint("warpraid drive list shows them all"),
                );
            }
            for drive in fitting.into_iter().take(select.count) {
                take(plan, taken, drive, place.clone());
                drives.push(drive.path.clone());
            }
        }
    }
    if plan.problems.len() > before {
        return None;
    }
    let what = GroupCreate {
        name: group.name.clone(),
        level: group.level,
        chunk_bytes: group.chunk_bytes,
        drives,
        init: group.init,
        write_mostly: Vec::new(),
        yes: true,
        dry_run: false,
    };
    match ask(&what) {
        Ok(planned) => {
            let shape = Shape::of_plan(&planned);
            let words = format!(
                "create group {}: {} of {}, {} usable; {}",
                group.name,
                render::level(group.level),
                what.drives.join(" "),
                human(planned.usable_bytes),
                planned.tolerance
            );
            plan.steps.push((Step::CreateGroup(what), words));
            Some(shape)
        }
        Err(error) => {
            plan.problems.push(ApiError { message: format!("{place}: {}", error.message), ..error });
            None
        }
    }
}

/// Free drives that a selection fits, by path, numbers in it in their order.
fn free_drives<'a>(
    select: &Select,
    numa_node: Option<u16>,
    node: &'a Node,
    taken: &BTreeMap<String, String>,
) -> Vec<&'a DriveDoc> {
    let fits = |drive: &&DriveDoc| {
        let model = drive.model.as_deref().unwrap_or_default().trim();
        drive.state == DriveState::Free
            && !taken.contains_key(&drive.path)
            && select.size_bytes.contains(&drive.size_bytes)
            && select.model.as_deref().is_none_or(|pattern| fits_model(pattern, model))
            && numa_node.is_none_or(|node| drive.numa_node == Some(node))
    };
    let mut fitting: Vec<&DriveDoc> = node.drives.iter().filter(fits).collect();
    fitting.sort_by_key(|drive| natural(&drive.path));
    fitting
}

/// A key that sorts `nvme2` before `nvme10`.
fn natural(path: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, more) = rest.split_at(text);
        let digits = more.find(|c: char| !c.is_ascii_digit()).unwrap_or(more.len());
        let (number, more) = more.split_at(digits);
        parts.push((0, word.to_owned()));
        parts.push((number.parse().unwrap_or(u64::MAX), number.to_owned()));
        rest = more;
    }
    parts
}

fn spares(plan: &mut Plan, group: &Group, node: &Node, taken: &mut BTreeMap<String, String>) {
    let place = format!("spare of group {}", group.name);
    for name in &group.spares {
        let Some(drive) = named(plan, node, &place, name) else { continue };
        if !take(plan, taken, drive, place.clone()) {
            continue;
        }
        if let Some(spare) = node.spares.iter().find(|spare| spare.drive == drive.path) {
            let kept = spare.group.as_deref();
            if !kept.is_some_and(|kept| kept.eq_ignore_ascii_case(&group.name)) {
                plan.notes.push(format!(
                    "{} is a spare of {} already",
                    drive.path,
                    kept.unwrap_or("any group")
                ));
            }
            continue;
        }
        match (drive.state, drive.group.as_deref()) {
            (DriveState::Member, Some(other)) if other.eq_ignore_ascii_case(&group.name) => plan.notes.push(
                format!("{place}: {} has taken a slot of the group: it is no spare any more", drive.path),
            ),
            (DriveState::Free, _) => {
                let what =
                    SpareAdd { drive: drive.path.clone(), group: Some(group.name.clone()), dry_run: false };
                let words = format!("keep {} as a spare of group {}", drive.path, group.name);
                plan.steps.push((Step::AddSpare(what), words));
            }
            (_, other) => {
                let kinds: Vec<&str> = drive.signatures.iter().map(|found| found.kind.as_str()).collect();
                let carries = match other {
                    Some(other) => format!("belongs to group {other}"),
                    None if kinds.is_empty() => format!("is {}", render::word(&drive.state)),
                    None => format!("carries {}", kinds.join(", ")),
                };
                plan.problems.push(
                    ApiError::new(ErrorCode::DriveUsed, format!("{place}: {} {carries}", drive.path))
                        .hint("a spare must be blank; nothing is wiped here"),
                );
            }
        }
    }
}

fn disks(plan: &mut Plan, group: &Group, shape: &Shape, node: &Node) {
    let mut free = shape.free_bytes;
    for disk in &group.disks {
        let known = node.disks.iter().find(|known| {
            known.group.eq_ignore_ascii_case(&group.name) && known.name.eq_ignore_ascii_case(&disk.name)
        });
        let subject = format!("{}/{}", group.name, disk.name);
        let wanted = shape.bytes_of(disk.size);
        let now = known.map_or(0, |known| known.size_bytes);
        let more = wanted.unwrap_or(if known.is_some() { now } else { free.max(1) }).saturating_sub(now);
        if more > free {
            let message = format!("disk {subject} needs {} more, {} is free", human(more), human(free));
            plan.problems.push(
                ApiError::new(ErrorCode::DiskSizeInvalid, message).hint("make it smaller, or another disk"),
            );
            continue;
        }
        free -= more;
        let name = disk.name.clone();
        let size = match (known, wanted) {
            (None, Some(size_bytes)) => {
                let what = DiskCreate { group: group.name.clone(), name, size_bytes, dry_run: false };
                plan.steps.push((
                    Step::CreateDisk(what),
                    format!("create disk {subject} of {}", human(size_bytes)),
                ));
                size_bytes
            }
            (None, None) => {
                let step = Step::CreateRest { group: group.name.clone(), name };
                plan.steps.push((step, format!("create disk {subject} of the rest, about {}", human(more))));
                more
            }
            (Some(_), Some(size_bytes)) if size_bytes > now => {
                let how = DiskResize { size_bytes, dry_run: false };
                let words = format!("grow disk {subject} from {} to {}", human(now), human(size_bytes));
                plan.steps.push((Step::ResizeDisk { group: group.name.clone(), name, how }, words));
                size_bytes
            }
            (Some(_), Some(size_bytes)) if size_bytes < now => {
                let message = format!(
                    "disk {subject} has {}, the file says {}: disks only grow",
                    human(now),
                    human(size_bytes)
                );
                plan.problems.push(
                    ApiError::new(ErrorCode::DiskShrinkRefused, message)
                        .hint("write its present size, or a larger one"),
                );
                continue;
            }
            _ => now,
        };
        expose(plan, group, disk, known, &subject);
        plan.disks.push(use_of(group, disk, shape, size));
    }
    let is_in_file = |name: &str| group.disks.iter().any(|disk| disk.name.eq_ignore_ascii_case(name));
    for other in &node.disks {
        if other.group.eq_ignore_ascii_case(&group.name) && !is_in_file(&other.name) {
            plan.notes
                .push(format!("disk {}/{} is not in the file: it is left alone", other.group, other.name));
        }
    }
}

fn expose(plan: &mut Plan, group: &Group, disk: &Disk, known: Option<&DiskDoc>, subject: &str) {
    let served = known.map_or(&[][..], |known| &known.exposures);
    let is_it = |address: &str, kind: ExposureKind| match &disk.expose {
        Expose::No => false,
        Expose::Ublk => kind == ExposureKind::Ublk,
        Expose::Nbd(wanted) => address == wanted,
    };
    let other = served.iter().find(|exposure| !is_it(&exposure.address, exposure.kind));
    match (&disk.expose, other) {
        (Expose::No, Some(other)) => {
            plan.notes.push(format!("disk {subject} is served at {}: it is left alone", other.address));
        }
        (_, Some(other)) => plan.problems.push(refused(
            format!("disk {subject} is served at {}, the file says otherwise", other.address),
            "warpraid disk unexpose it first",
        )),
        (Expose::No, None) => {}
        (_, None) if !served.is_empty() => {}
        (wanted, None) => {
            let nbd = if let Expose::Nbd(address) = wanted { Some(address.clone()) } else { None };
            let words = match &nbd {
                Some(address) => format!("serve disk {subject} over NBD at {address}"),
                None => format!("serve disk {subject} as /dev/warpraid/{subject}"),
            };
            let how = DiskExpose { ublk: nbd.is_none(), nbd, read_only: false, dry_run: false };
            plan.steps
                .push((Step::Expose { group: group.name.clone(), name: disk.name.clone(), how }, words));
        }
    }
}

/// The commands that put a disk to its use.
fn use_of(group: &Group, disk: &Disk, shape: &Shape, size_bytes: u64) -> LayoutDiskDoc {
    let device = (disk.expose == Expose::Ublk).then(|| format!("/dev/warpraid/{}/{}", group.name, disk.name));
    let shown = device.as_deref().unwrap_or("DEVICE");
    let chunk = u64::from(shape.chunk_bytes);
    let columns = if group.level == LevelDoc::Raid1 || chunk == 0 { 0 } else { shape.stripe_bytes / chunk };
    let mkfs = match disk.purpose {
        Purpose::Other => None,
        Purpose::Ext4Metadata => {
            let stride = (chunk / 4096).max(1);
            let stripes = match columns {
                0 => String::new(),
                columns => format!(" -E stride={stride},stripe_width={}", stride * columns),
            };
            Some(format!(
                "mkfs.ext4 -b 4096 -i 2048 -I 512 -J size=400 -O dir_index,filetype{stripes} {shown}"
            ))
        }
        Purpose::XfsStorage => {
            let stripes = match columns {
                0 => String::new(),
                // The log cannot be aligned to more than 256 KiB.
                columns if chunk <= 256 << 10 => {
                    format!(" -d su={0}k,sw={columns} -l version=2,su={0}k", chunk >> 10)
                }
                columns => format!(" -d su={}k,sw={columns}", chunk >> 10),
            };
            let sectors = if shape.block_bytes > 512 {
                format!(" -s size={}", shape.block_bytes)
            } else {
                String::new()
            };
            Some(format!("mkfs.xfs{stripes} -i size=512{sectors} {shown}"))
        }
    };
    let options = match disk.purpose {
        Purpose::XfsStorage => "noatime,nodiratime,logbufs=8,logbsize=256k,largeio,inode64,swalloc",
        _ => "noatime,nodiratime",
    };
    let mount = disk.mount.as_ref().map(|at| format!("mount -o {options} {shown} {at}"));
    LayoutDiskDoc {
        group: group.name.clone(),
        disk: disk.name.clone(),
        size_bytes,
        purpose: disk.purpose.text().to_owned(),
        device,
        mkfs,
        mount,
    }
}

#[cfg(test)]
mod tests;
