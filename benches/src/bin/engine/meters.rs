//! What it costs to know: meters of drives and of the disk, the look of rebuild pacing and of slow-drive detection, on the
//! path of a 4K read.
//!
//! Two groups over the same files on tmpfs, on one lane: one with drives that count nothing and no counting around a read,
//! one with all that the daemon does for a client's read. They take turns, in an order that turns too, so that a drift of
//! the machine's speed hits both alike. Events are not on this path: they are made of documents, on another thread.

use std::path::Path;
use std::rc::Rc;

use benches::clock::process_cpu_ns;
use benches::world::World;
use nvme_backend::meter::{IoOp, LaneMeters};
use nvme_backend::{Lane, OpenDrive, OpenOptions};
use raid_core::geometry::Level;
use raid_core::units::BlockSize;

use super::{
    BLOCK, CHUNK, TURNS, cost_of_reads, fill_group, fill_of, group_place, parity_matches, reads_back,
};

const DRIVES: usize = 6;
/// Reads of each side in a sample.
const READS: u64 = 1 << 18;

/// The same files, opened to be counted or not. Shared: two groups of this program have them.
fn drives(dir: &Path, is_metered: bool) -> Vec<OpenDrive> {
    let open = |i: usize| {
        let path = dir.join(format!("meters-{i}.img"));
        let options = OpenOptions {
            block_size: Some(BlockSize::B4096),
            exclusive: false,
            is_metered,
            ..OpenOptions::default()
        };
        OpenDrive::open(&path, options).expect("a file of ours opens")
    };
    (0..DRIVES).map(open).collect()
}

/// CPU nanoseconds of a read with everything that counts it.
async fn counted_reads(world: &World, drives: &[OpenDrive], meters: &Rc<LaneMeters>, reads: u64) -> f64 {
    let blocks = world.geometry.capacity_bytes() / u64::from(BLOCK);
    let (lane, group, counts) = (world.lane.clone(), world.group.clone(), Rc::clone(meters));
    let cost = cost_of_reads(&world.lane, reads, process_cpu_ns, move |word, leases| {
        let (lane, group, counts) = (lane.clone(), group.clone(), Rc::clone(&counts));
        async move {
            let foreground = group.shared().foreground();
            let (began_ns, asked_ns) = (lane.round_ns(), foreground.begin(|| lane.now_ns()));
            let done = group.read(group_place(word, blocks), leases).await;
            foreground.end(lane.id().0, asked_ns, || lane.now_ns());
            let took_ns = lane.round_ns().saturating_sub(began_ns);
            counts.of(IoOp::Read).record(took_ns, u64::from(BLOCK), done.result.is_ok());
            done.result.expect("the group reads");
            done.buf.expect("the group gives its buffer back")
        }
    })
    .await;
    // The look of the watch over slow drives; the daemon's comes every 5 s.
    let seen: u64 = drives.iter().map(|drive| drive.metered(IoOp::Read).operations).sum();
    assert!(seen >= reads, "{seen} of {reads} reads were counted");
    cost
}

/// CPU of an uncounted read over that of a counted one, one sample a round.
pub(super) async fn cost(lane: Lane, rounds: usize, dir: &Path) -> (Vec<f64>, bool) {
    for i in 0..DRIVES {
        let file = std::fs::File::create(dir.join(format!("meters-{i}.img")));
        file.and_then(|file| file.set_len(64 << 20)).expect("tmpfs has room");
    }
    let (plain_drives, counted_drives) = (drives(dir, false), drives(dir, true));
    let plain = World::new(&lane, Level::Raid6, CHUNK, &plain_drives);
    let counted = World::new(&lane, Level::Raid6, CHUNK, &counted_drives);
    fill_group(&plain).await;
    let verified = reads_back(&counted, fill_of).await && parity_matches(&counted).await;
    let meters = Rc::new(LaneMeters::default());
    let mut samples = Vec::new();
    // The first round warms up.
    for round in 0..=rounds {
        let (mut plain_ns, mut counted_ns) = (0.0, 0.0);
        for turn in 0..TURNS {
            for side in [turn % 2, 1 - turn % 2] {
                if side == 0 {
                    plain_ns += super::group_reads(&plain, READS / TURNS, process_cpu_ns).await;
                } else {
                    counted_ns += counted_reads(&counted, &counted_drives, &meters, READS / TURNS).await;
                }
            }
        }
        if round > 0 {
            samples.push(plain_ns / counted_ns);
        }
    }
    let uncounted: u64 = plain_drives.iter().map(|drive| drive.metered(IoOp::Read).operations).sum();
    assert_eq!(uncounted, 0, "the plain side was counted, too");
    (samples, verified)
}
