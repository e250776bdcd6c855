//! Virtual disks: the partitions of the GPT inside a group, as a pure table that says what to write.
//!
//! A disk's name is its partition's name, its identity the partition's GUID. Disks we create start and end on full
//! stripes; partitions of other tools are kept as they are and only reported as misaligned. Names are unique ignoring
//! case.
//!
//! Invariant: after every change [`DiskTable::writes`] is the whole truth in crash-safe order; a table loaded after a
//! crash anywhere in between is the one before or the one after.

use core::fmt;
use core::ops::Range;

use crate::format::bytes::{round_down, round_up};
use crate::format::gpt::{ENTRIES, Gpt, GptError, Partition, Repair};
use crate::names::{NameError, check_name, same_name};
use crate::units::{BlockSize, GroupOffset, Uuid};

/// Name of the one disk of an unpartitioned group.
pub const WHOLE: &str = "whole";

/// One virtual disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Name; `partN` for a foreign partition whose own name is empty, taken or not a name of ours.
    pub name: String,
    /// Identity.
    pub id: Uuid,
    /// First byte in the group.
    pub start: GroupOffset,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether start and end lie on full stripes. If not, writes at the edges cost more; nothing else.
    pub is_aligned: bool,
}

impl Disk {
    /// The disk's bytes in the group.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start.0..self.start.0 + self.bytes
    }
}

/// Why a change of the disk table is refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// The name is not a name.
    Name(NameError),
    /// A disk of that name (ignoring case) exists.
    Taken(String),
    /// There is no disk of that name.
    NotFound(String),
    /// Size 0.
    Empty,
    /// No gap is large enough.
    NoSpace {
        /// Bytes needed, rounded up to full stripes.
        needed: u64,
        /// Bytes of the largest gap (create) or the largest size reachable (resize).
        largest: u64,
    },
    /// All entries are in use.
    Full,
    /// The new size is smaller than the old one.
    Shrink {
        /// What it is now, in bytes.
        now: u64,
        /// What was asked for, in bytes.
        asked: u64,
    },
    /// The group is one unpartitioned disk.
    Whole,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Taken(name) => write!(f, "a disk named {name} exists in this group (names ignore case)"),
            Self::NotFound(name) => write!(f, "no disk named {name:?} in this group"),
            Self::Empty => f.write_str("a disk's size must be at least 1 byte"),
            Self::NoSpace { needed, largest } => {
                write!(
                    f,
                    "no room for {needed} bytes in full stripes; the largest possible size is {largest}"
                )
            }
            Self::Full => write!(f, "the group has {ENTRIES} disks, which is the most"),
            Self::Shrink { now, asked } => {
                write!(f, "disk has {now} bytes; shrinking it to {asked} would cut data off and is refused")
            }
            Self::Whole => write!(f, "the group is not partitioned: its one disk is {WHOLE:?}"),
        }
    }
}

impl std::error::Error for DiskError {}

/// One step of making a table durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write these bytes here.
    Write {
        /// Where in the group.
        at: GroupOffset,
        /// What.
        bytes: Vec<u8>,
    },
    /// Everything written so far must be durable before the next step.
    Flush,
}

/// The disks of one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskTable {
    /// `None`: the group is one disk, [`WHOLE`].
    gpt: Option<Gpt>,
    group: Uuid,
    capacity_bytes: u64,
    stripe_bytes: u64,
}

impl DiskTable {
    /// The table of a new group without disks. `id` becomes the GPT's GUID; `stripe_bytes` is the data of a full stripe.
    ///
    /// # Errors
    /// [`GptError::TooSmall`] if the group has no room for a table.
    ///
    /// # Panics
    /// If `stripe_bytes` is not a whole number of blocks.
    pub fn new(id: Uuid, block: BlockSize, capacity_bytes: u64, stripe_bytes: u64) -> Result<Self, GptError> {
        assert!(
            stripe_bytes > 0 && stripe_bytes.is_multiple_of(u64::from(block.bytes())),
            "stripe of part blocks"
        );
        Ok(Self { gpt: Some(Gpt::new(id, block, capacity_bytes)?), group: id, capacity_bytes, stripe_bytes })
    }

    /// The table of an unpartitioned group: one disk of all its bytes, identified by the group's own uuid.
    #[must_use]
    pub fn whole(group: Uuid, capacity_bytes: u64, stripe_bytes: u64) -> Self {
        Self { gpt: None, group, capacity_bytes, stripe_bytes }
    }

    /// Reads the table from the group's first [`crate::format::gpt::head_bytes`] and last
    /// [`crate::format::gpt::tail_bytes`]. With a repair, [`Self::writes`] puts both copies right.
    ///
    /// # Errors
    /// [`GptError`]: no table, or none that could be written back whole.
    pub fn load(
        head: &[u8],
        tail: &[u8],
        block: BlockSize,
        capacity_bytes: u64,
        stripe_bytes: u64,
    ) -> Result<(Self, Option<Repair>), GptError> {
        let (gpt, repair) = Gpt::load(head, tail, block, capacity_bytes)?;
        let group = gpt.disk();
        Ok((Self { gpt: Some(gpt), group, capacity_bytes, stripe_bytes }, repair))
    }

    /// What makes the table durable: primary, flush, backup, flush. Never in another order: see
    /// [`crate::format::gpt`]. Empty for an unpartitioned group.
    #[must_use]
    pub fn writes(&self) -> Vec<Step> {
        let Some(gpt) = &self.gpt else { return Vec::new() };
        let (at, backup) = gpt.backup();
        vec![
            Step::Write { at: GroupOffset(0), bytes: gpt.primary() },
            Step::Flush,
            Step::Write { at: GroupOffset(at), bytes: backup },
            Step::Flush,
        ]
    }

    /// The disks, in the order of their entries.
    #[must_use]
    pub fn list(&self) -> Vec<Disk> {
        self.numbered().into_iter().map(|(_, disk)| disk).collect()
    }

    /// The disks with their entry numbers.
    fn numbered(&self) -> Vec<(usize, Disk)> {
        let Some(gpt) = &self.gpt else {
            let whole = self.disk(WHOLE.to_owned(), self.group, 0..self.capacity_bytes);
            return vec![(0, whole)];
        };
        let mut disks: Vec<(usize, Disk)> = Vec::new();
        for (entry, partition) in gpt.partitions() {
            let own = partition.name();
            let name = match check_name("disk", &own) {
                Ok(()) if !disks.iter().any(|(_, disk)| same_name(&disk.name, &own)) => own,
                _ => self.stand_in(gpt, entry),
            };
            let block = u64::from(gpt.block().bytes());
            let range = partition.first * block..(partition.last + 1) * block;
            disks.push((entry, self.disk(name, partition.id, range)));
        }
        disks
    }

    fn disk(&self, name: String, id: Uuid, range: Range<u64>) -> Disk {
        let is_aligned = [range.start, range.end].iter().all(|edge| edge.is_multiple_of(self.stripe_bytes));
        Disk { name, id, start: GroupOffset(range.start), bytes: range.end - range.start, is_aligned }
    }

    /// `partN`, or with as many dashes as it takes to differ from every partition's own name. Two stand-ins never meet:
    /// their numbers differ.
    fn stand_in(&self, gpt: &Gpt, entry: usize) -> String {
        let mut name = format!("part{}", entry + 1);
        while gpt.partitions().any(|(_, other)| same_name(&other.name(), &name)) {
            name.push('-');
        }
        name
    }

    /// The disk of this name, ignoring case.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Disk> {
        self.list().into_iter().find(|disk| same_name(&disk.name, name))
    }

    fn entry_of(&self, name: &str) -> Result<(usize, Disk), DiskError> {
        let found = self.numbered().into_iter().find(|(_, disk)| same_name(&disk.name, name));
        found.ok_or_else(|| DiskError::NotFound(name.to_owned()))
    }

    /// The gaps disks can be put into: full stripes only, ascending.
    #[must_use]
    pub fn free(&self) -> Vec<Range<u64>> {
        let Some(gpt) = &self.gpt else { return Vec::new() };
        let block = u64::from(gpt.block().bytes());
        let mut used: Vec<Range<u64>> = self.list().iter().map(Disk::range).collect();
        used.sort_unstable_by_key(|range| range.start);
        let end = (gpt.usable().1 + 1) * block;
        used.push(end..end);
        let mut next = gpt.usable().0 * block;
        let mut gaps = Vec::new();
        for range in used {
            let gap = round_up(next, self.stripe_bytes)..round_down(range.start, self.stripe_bytes);
            if gap.start < gap.end {
                gaps.push(gap);
            }
            next = range.end;
        }
        gaps
    }

    /// Adds a disk of `bytes` bytes, rounded up to full stripes, in the first gap it fits into.
    ///
    /// # Errors
    /// [`DiskError`]; nothing is changed then.
    pub fn create(&mut self, name: &str, bytes: u64, id: Uuid) -> Result<Disk, DiskError> {
        check_name("disk", name).map_err(DiskError::Name)?;
        let gaps = self.free();
        let taken = self.find(name);
        let Some(gpt) = &mut self.gpt else { return Err(DiskError::Whole) };
        if let Some(other) = taken {
            return Err(DiskError::Taken(other.name));
        }
        let needed = stripes_up(bytes, self.stripe_bytes)?;
        let entry = gpt.free_entry().ok_or(DiskError::Full)?;
        let largest = gaps.iter().map(|gap| gap.end - gap.start).max().unwrap_or(0);
        let gap = gaps.into_iter().find(|gap| gap.end - gap.start >= needed);
        let start = gap.ok_or(DiskError::NoSpace { needed, largest })?.start;
        let block = u64::from(gpt.block().bytes());
        let partition = Partition::new(id, name, start / block, (start + needed) / block - 1);
        gpt.set(entry, Some(partition));
        Ok(self.disk(name.to_owned(), id, start..start + needed))
    }

    /// Grows a disk to `bytes` bytes, rounded up to full stripes, into the free space right behind it.
    ///
    /// # Errors
    /// [`DiskError`]; nothing is changed then. Shrinking is refused.
    pub fn resize(&mut self, name: &str, bytes: u64) -> Result<Disk, DiskError> {
        let (entry, disk) = self.entry_of(name)?;
        if bytes < disk.bytes {
            return Err(DiskError::Shrink { now: disk.bytes, asked: bytes });
        }
        if bytes == disk.bytes {
            return Ok(disk);
        }
        let others = self.list();
        let Some(gpt) = &mut self.gpt else { return Err(DiskError::Whole) };
        let block = u64::from(gpt.block().bytes());
        let following = others.iter().map(|other| other.start.0).filter(|&start| start > disk.start.0).min();
        let limit = following.unwrap_or((gpt.usable().1 + 1) * block);
        let wanted = disk
            .start
            .0
            .checked_add(bytes)
            .ok_or(DiskError::NoSpace { needed: bytes, largest: limit - disk.start.0 })?;
        let end = wanted.checked_next_multiple_of(self.stripe_bytes).unwrap_or(u64::MAX);
        if end > limit {
            let largest = round_down(limit, self.stripe_bytes).saturating_sub(disk.start.0).max(disk.bytes);
            return Err(DiskError::NoSpace { needed: end - disk.start.0, largest });
        }
        let (_, partition) = gpt.partitions().find(|(i, _)| *i == entry).expect("the entry was just listed");
        let mut partition = partition.clone();
        partition.last = end / block - 1;
        gpt.set(entry, Some(partition));
        Ok(self.disk(disk.name, disk.id, disk.start.0..end))
    }

    /// Removes a disk; its data stays where it is until something else is put there.
    ///
    /// # Errors
    /// [`DiskError`]; nothing is changed then.
    pub fn delete(&mut self, name: &str) -> Result<Disk, DiskError> {
        let (entry, disk) = self.entry_of(name)?;
        let Some(gpt) = &mut self.gpt else { return Err(DiskError::Whole) };
        gpt.set(entry, None);
        Ok(disk)
    }
}

/// `bytes` in full stripes, rounded up.
fn stripes_up(bytes: u64, stripe_bytes: u64) -> Result<u64, DiskError> {
    match bytes.checked_next_multiple_of(stripe_bytes) {
        _ if bytes == 0 => Err(DiskError::Empty),
        Some(rounded) => Ok(rounded),
        None => Err(DiskError::NoSpace { needed: bytes, largest: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::gpt::{head_bytes, tail_bytes};
    use crate::units::{u64_of, usize_of};
    use proptest::prelude::*;

    const STRIPE: u64 = 192 * 1024;
    const SIZE: u64 = 64 << 20;

    fn table() -> DiskTable {
        DiskTable::new(Uuid([9; 16]), BlockSize::B512, SIZE, STRIPE).unwrap()
    }

    /// The two ends of a group: all that a table ever touches.
    #[derive(Clone)]
    struct Ends {
        head: Vec<u8>,
        tail: Vec<u8>,
    }

    impl Ends {
        fn blank() -> Self {
            let zeroes = |len| vec![0; usize_of(len)];
            Self { head: zeroes(head_bytes(BlockSize::B512)), tail: zeroes(tail_bytes(BlockSize::B512)) }
        }

        fn apply(&mut self, steps: &[Step]) {
            for step in steps {
                match step {
                    Step::Write { at: GroupOffset(0), bytes } => self.head.copy_from_slice(bytes),
                    Step::Write { at, bytes } => {
                        assert_eq!(at.0 + u64_of(bytes.len()), SIZE, "the backup ends the group");
                        self.tail.copy_from_slice(bytes);
                    }
                    Step::Flush => {}
                }
            }
        }

        fn load(&self) -> (DiskTable, Option<Repair>) {
            DiskTable::load(&self.head, &self.tail, BlockSize::B512, SIZE, STRIPE).unwrap()
        }
    }

    #[test]
    fn disks_lie_on_full_stripes_first_fit() {
        let mut t = table();
        let a = t.create("a", 1, Uuid([1; 16])).unwrap();
        assert_eq!((a.start, a.bytes, a.is_aligned), (GroupOffset(STRIPE), STRIPE, true));
        let b = t.create("b", STRIPE + 1, Uuid([2; 16])).unwrap();
        assert_eq!(b.range(), 2 * STRIPE..4 * STRIPE);
        t.delete("A").unwrap();
        assert_eq!(t.create("c", 2 * STRIPE, Uuid([3; 16])).unwrap().start, GroupOffset(4 * STRIPE));
        assert_eq!(t.create("d", STRIPE, Uuid([4; 16])).unwrap().start, GroupOffset(STRIPE));
        assert_eq!(t.find("D").unwrap().name, "d");
    }

    #[test]
    fn refusals_change_nothing() {
        let mut t = table();
        t.create("a", STRIPE, Uuid([1; 16])).unwrap();
        t.create("b", STRIPE, Uuid([2; 16])).unwrap();
        let before = t.clone();
        assert_eq!(t.create("A", 1, Uuid([3; 16])), Err(DiskError::Taken("a".to_owned())));
        assert!(matches!(t.create("a/b", 1, Uuid([3; 16])), Err(DiskError::Name(_))));
        assert_eq!(t.create("c", 0, Uuid([3; 16])), Err(DiskError::Empty));
        assert!(matches!(t.create("c", SIZE, Uuid([3; 16])), Err(DiskError::NoSpace { .. })));
        assert!(matches!(t.create("c", u64::MAX, Uuid([3; 16])), Err(DiskError::NoSpace { .. })));
        assert!(matches!(t.resize("b", u64::MAX), Err(DiskError::NoSpace { .. })));
        assert_eq!(t.resize("b", 1), Err(DiskError::Shrink { now: STRIPE, asked: 1 }));
        assert_eq!(
            t.resize("a", STRIPE + 1),
            Err(DiskError::NoSpace { needed: 2 * STRIPE, largest: STRIPE })
        );
        assert_eq!(t.delete("c"), Err(DiskError::NotFound("c".to_owned())));
        assert_eq!(t, before);
    }

    #[test]
    fn the_largest_size_named_in_a_refusal_is_possible() {
        let mut t = table();
        t.create("a", 5 * STRIPE, Uuid([1; 16])).unwrap();
        let Err(DiskError::NoSpace { largest, .. }) = t.create("b", SIZE, Uuid([2; 16])) else { panic!() };
        t.clone().create("b", largest, Uuid([2; 16])).unwrap();
        let Err(DiskError::NoSpace { largest, .. }) = t.resize("a", SIZE) else { panic!() };
        assert_eq!(t.resize("a", largest).unwrap().bytes, largest);
        assert_eq!(t.free(), []);
        assert_eq!(t.resize("a", largest).unwrap().bytes, largest, "growing by nothing is no change");
    }

    #[test]
    fn a_table_holds_128_disks() {
        let mut t = table();
        for i in 0..128 {
            t.create(&format!("disk{i}"), 1, Uuid([i; 16])).unwrap();
        }
        assert_eq!(t.create("one-more", 1, Uuid([200; 16])), Err(DiskError::Full));
    }

    #[test]
    fn an_unpartitioned_group_is_one_disk() {
        let mut t = DiskTable::whole(Uuid([5; 16]), SIZE, STRIPE);
        assert_eq!(t.find("WHOLE").unwrap().range(), 0..SIZE);
        assert_eq!(t.create("a", 1, Uuid([1; 16])), Err(DiskError::Whole));
        assert_eq!(t.delete("whole"), Err(DiskError::Whole));
        assert_eq!(t.resize("whole", SIZE + 1), Err(DiskError::Whole));
        assert_eq!(t.writes(), []);
    }

    #[test]
    fn foreign_partitions_are_kept_and_get_usable_names() {
        let mut gpt = Gpt::new(Uuid([9; 16]), BlockSize::B512, SIZE).unwrap();
        for (i, name) in ["EFI System", "part1", "data", "DATA", ""].iter().enumerate() {
            let first = 2048 * (u64_of(i) + 1);
            let mut partition = Partition::new(Uuid([1; 16]), name, first, first + 99);
            partition.attributes = 1 << 60;
            gpt.set(i, Some(partition));
        }
        let mut ends = Ends { head: gpt.primary(), ..Ends::blank() };
        let (mut t, repair) = ends.load();
        assert_eq!(repair, Some(Repair::Backup("missing")));
        let names: Vec<String> = t.list().into_iter().map(|disk| disk.name).collect();
        assert_eq!(names, ["part1-", "part1", "data", "part4", "part5"]);
        assert!(t.list().iter().all(|disk| !disk.is_aligned));
        t.create("new", STRIPE, Uuid([2; 16])).unwrap();
        ends.apply(&t.writes());
        let (again, repair) = ends.load();
        assert_eq!((&again, repair), (&t, None));
        assert_eq!(again.delete_all_but("new"), gpt_names(&gpt));
    }

    impl DiskTable {
        fn delete_all_but(&self, name: &str) -> Vec<(String, u64)> {
            let gpt = self.gpt.as_ref().unwrap();
            gpt.partitions().map(|(_, p)| (p.name(), p.attributes)).filter(|(own, _)| own != name).collect()
        }
    }

    fn gpt_names(gpt: &Gpt) -> Vec<(String, u64)> {
        gpt.partitions().map(|(_, p)| (p.name(), p.attributes)).collect()
    }

    proptest! {
        /// Any run of operations keeps disks apart, on full stripes, inside the usable bytes; and after a crash between
        /// any two steps of the last update the table is the one before it or the one after.
        #[test]
        fn disks_never_overlap_and_updates_are_atomic(
            steps in proptest::collection::vec((0u8..3, 0u8..6, 1u64..40), 1..30),
            crash in 0usize..=4,
        ) {
            let mut t = table();
            let mut ends = Ends::blank();
            ends.apply(&t.writes());
            for (op, name, stripes) in steps {
                let before = t.clone();
                let label = format!("d{name}");
                let changed = match op {
                    0 => t.create(&label, stripes * STRIPE - 7, Uuid([name; 16])).is_ok(),
                    1 => t.resize(&label, stripes * STRIPE).is_ok(),
                    _ => t.delete(&label).is_ok(),
                };
                prop_assert!(changed || t == before);
                let mut ranges: Vec<_> = t.list().iter().map(Disk::range).collect();
                ranges.extend(t.free());
                ranges.sort_unstable_by_key(|range| range.start);
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
                prop_assert!(ranges.iter().all(|range| range.start % STRIPE == 0 && range.end % STRIPE == 0));
                prop_assert!(ranges.iter().all(|range| range.start >= STRIPE && range.end < SIZE));
                let mut crashed = ends.clone();
                crashed.apply(&t.writes()[..crash]);
                let (read, _) = crashed.load();
                prop_assert!(read == before || read == t);
                ends.apply(&t.writes());
            }
        }
    }
}
