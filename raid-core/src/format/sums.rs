//! The sums of a plan in numbers and words (case OT-07): where the bytes of the drives go, which losses the group
//! survives, and the file-system commands that know its stripe.

use super::plan::PlanDrive;
use crate::disks::DiskTable;
use crate::geometry::{Geometry, Level};
use crate::units::{BlockSize, Uuid};

/// Where the bytes of the drives go: `raw = usable + redundancy + metadata + left over`, always.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    /// All bytes of all drives.
    pub raw_bytes: u64,
    /// What the group offers.
    pub usable_bytes: u64,
    /// Parity, or the copies beyond the first.
    pub redundancy_bytes: u64,
    /// Metadata, headroom and slack of all members.
    pub metadata_bytes: u64,
    /// What larger drives have beyond the smallest.
    pub unused_bytes: u64,
    /// The largest disk that can be cut from the group.
    pub largest_disk_bytes: u64,
    /// Losses the group survives whatever the members, and at best.
    pub losses: Losses,
    /// The arithmetic, a sentence a line.
    pub words: Vec<String>,
    /// The file-system commands that know the stripe; `DEVICE` stands for the disk.
    pub mkfs: Vec<String>,
}

/// Member losses a group survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Of any members.
    pub any: u8,
    /// If they are the right ones (RAID 10: one of each pair).
    pub at_best: u8,
}

pub(super) fn sums(geometry: &Geometry, block: BlockSize, smallest: u64, drives: &[PlanDrive]) -> Sums {
    let n = u64::from(geometry.members());
    let member = geometry.member_bytes();
    let raw: u64 = drives.iter().map(|drive| drive.bytes).sum();
    let usable = geometry.capacity_bytes();
    let mut sums = Sums {
        raw_bytes: raw,
        usable_bytes: usable,
        redundancy_bytes: member * n - usable,
        metadata_bytes: (smallest - member) * n,
        unused_bytes: raw - smallest * n,
        largest_disk_bytes: largest_disk(geometry, block),
        losses: losses(geometry),
        words: Vec::new(),
        mkfs: mkfs(geometry),
    };
    sums.words = words(geometry, &sums, smallest, drives);
    sums
}

fn largest_disk(geometry: &Geometry, block: BlockSize) -> u64 {
    let table =
        DiskTable::new(Uuid::default(), block, geometry.capacity_bytes(), geometry.stripe_data_bytes());
    table.ok().and_then(|table| table.free().iter().map(|gap| gap.end - gap.start).max()).unwrap_or(0)
}

fn losses(geometry: &Geometry) -> Losses {
    let n = geometry.members();
    match geometry.level() {
        Level::Raid0 => Losses { any: 0, at_best: 0 },
        Level::Raid1 => Losses { any: n - 1, at_best: n - 1 },
        Level::Raid5 => Losses { any: 1, at_best: 1 },
        Level::Raid6 => Losses { any: 2, at_best: 2 },
        Level::Raid10 => Losses { any: 1, at_best: n / 2 },
    }
}

/// The arithmetic of OT-07, a sentence a line.
fn words(geometry: &Geometry, sums: &Sums, smallest: u64, drives: &[PlanDrive]) -> Vec<String> {
    let (n, member) = (u64::from(geometry.members()), geometry.member_bytes());
    let (level, columns) = (geometry.level(), u64::from(geometry.data_columns()));
    let h = human;
    let mut words = vec![format!("raw: {n} drives, {} together", h(sums.raw_bytes))];
    if sums.unused_bytes > 0 {
        let larger = drives.iter().filter(|drive| drive.bytes > smallest).count();
        let each = h(smallest);
        words.push(format!(
            "left over: {} of {larger} drives larger than the smallest ({each})",
            h(sums.unused_bytes)
        ));
    }
    words.push(format!(
        "metadata: {n} x {} = {} (superblock, intent bitmap, journal space, headroom, slack for replacements)",
        h(smallest - member),
        h(sums.metadata_bytes)
    ));
    words.push(match level {
        Level::Raid0 => "redundancy: none; one lost drive loses the group".to_owned(),
        Level::Raid1 => format!("copies: {} x {} = {}", n - 1, h(member), h(sums.redundancy_bytes)),
        Level::Raid10 => format!("copies: {} x {} = {}", n / 2, h(member), h(sums.redundancy_bytes)),
        Level::Raid5 | Level::Raid6 => {
            format!("parity: {} x {} = {}", level.parities(), h(member), h(sums.redundancy_bytes))
        }
    });
    words.push(format!("usable: {columns} x {} = {}", h(member), h(sums.usable_bytes)));
    words.push(format!(
        "largest disk: {} (after the partition table, in full stripes)",
        h(sums.largest_disk_bytes)
    ));
    let Losses { any, at_best } = sums.losses;
    words.push(match (any, at_best) {
        (0, _) => "survives the loss of no drive".to_owned(),
        (1, 1) => "survives the loss of any 1 drive".to_owned(),
        (any, best) if any == best => format!("survives the loss of any {any} drives"),
        (any, best) => {
            format!("survives the loss of any {any} drive, of up to {best} if each is of another pair")
        }
    });
    words
}

/// mkfs commands that align to the stripe; RAID 1 has none to align to.
fn mkfs(geometry: &Geometry) -> Vec<String> {
    if geometry.level() == Level::Raid1 {
        return vec!["mkfs.xfs DEVICE".to_owned(), "mkfs.ext4 DEVICE".to_owned()];
    }
    let (kib, columns) = (geometry.chunk_bytes() / 1024, u32::from(geometry.data_columns()));
    let stride = geometry.chunk_bytes() / 4096;
    vec![
        format!("mkfs.xfs -d su={kib}k,sw={columns} DEVICE"),
        format!("mkfs.ext4 -b 4096 -E stride={stride},stripe-width={} DEVICE", stride * columns),
    ]
}

/// Bytes for people: exact in the largest binary unit that divides them, else to two decimals.
#[must_use]
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (0..UNITS.len()).rev().find(|&i| bytes >= 1 << (10 * i)).unwrap_or(0);
    let scale = 1u64 << (10 * unit);
    let (whole, rest) = (bytes / scale, bytes % scale);
    if rest == 0 {
        return format!("{whole} {}", UNITS[unit]);
    }
    // Rounded down: a size shown is never more than there is.
    let hundredths = u128::from(rest) * 100 / u128::from(scale);
    format!("{whole}.{hundredths:02} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::super::plan::plan;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ot_07_three_small_drives_in_raid_5() {
        let drive = |i| PlanDrive { name: format!("d{i}"), bytes: 32 * MIB, block: BlockSize::B512 };
        let sums = plan(Level::Raid5, None, &[drive(0), drive(1), drive(2)]).unwrap().sums;
        assert_eq!((sums.raw_bytes, sums.usable_bytes), (96 * MIB, 58 * MIB));
        assert_eq!((sums.redundancy_bytes, sums.metadata_bytes, sums.unused_bytes), (29 * MIB, 9 * MIB, 0));
        assert_eq!(
            sums.words,
            [
                "raw: 3 drives, 96 MiB together",
                "metadata: 3 x 3 MiB = 9 MiB (superblock, intent bitmap, journal space, headroom, slack for replacements)",
                "parity: 1 x 29 MiB = 29 MiB",
                "usable: 2 x 29 MiB = 58 MiB",
                "largest disk: 57.75 MiB (after the partition table, in full stripes)",
                "survives the loss of any 1 drive",
            ]
        );
        assert_eq!(
            sums.mkfs,
            ["mkfs.xfs -d su=64k,sw=2 DEVICE", "mkfs.ext4 -b 4096 -E stride=16,stripe-width=32 DEVICE",]
        );
    }

    #[test]
    fn bytes_for_people_never_show_more_than_there_is() {
        let shown = [0, 1023, 1024, 1536, MIB - 1, 29 * MIB, u64::MAX].map(human);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.50 KiB", "1023.99 KiB", "29 MiB", "15.99 EiB"]);
    }
}
