//! Scrub: who is named, what is repaired, and above all what is not.

use std::io::Read as _;
use std::path::PathBuf;
use std::rc::Rc;

use parking_lot::Mutex;
use raid_core::engine::{Pace, ScrubMode, ScrubState, SweepError, What};
use raid_core::format::superblock::{MdRole, Superblock};
use raid_core::geometry::{Level, Role};
use raid_core::parity::gf;
use raid_core::ports::{Durability, IoKind};
use raid_core::units::{BlockSize, DataIndex, Slot, Stripe, usize_of, usize_of_u32};
use sim::{Shape, World, read_vec, write_slice};

pub(crate) const CHUNK: u64 = 2048;
const STRIPES: u64 = 8;

pub(crate) fn shape(level: Level, members: u8) -> Shape {
    let (chunk_bytes, member_bytes) =
        if level == Level::Raid1 { (0, 3 * 65536) } else { (2048, STRIPES * CHUNK) };
    Shape { level, members, chunk_bytes, member_bytes, block: BlockSize::B512 }
}

pub(crate) fn filled(level: Level, members: u8) -> World {
    let mut world = World::new(11, shape(level, members));
    world.set_latency(false);
    world.fill();
    if level == Level::Raid6 {
        // Seen to fit: from here on what is located is certain.
        assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0);
    }
    world
}

fn scrub_from(world: &World, mode: ScrubMode, state: ScrubState) -> ScrubState {
    let group = world.group.clone();
    world.executor.block_on(async move {
        let state = Mutex::new(state);
        group.scrub(mode, &Pace::default(), &state).await.unwrap();
        state.into_inner()
    })
}

pub(crate) fn scrub(world: &World, mode: ScrubMode) -> ScrubState {
    scrub_from(world, mode, ScrubState::default())
}

fn media(world: &World) -> Vec<Vec<u8>> {
    world.drives.iter().map(|drive| drive.medium().clone()).collect()
}

fn writes(world: &World) -> u64 {
    world.drives.iter().map(|drive| drive.counts().1).sum()
}

pub(crate) fn flip(world: &World, slot: u8, at: u64, by: u8) {
    let at = usize_of(world.data_at(at));
    world.drives[usize::from(slot)].medium()[at] ^= by;
}

#[test]
fn s8_a_flipped_block_on_each_member_in_turn_is_located_and_only_it_repaired() {
    for members in [4, 5, 8] {
        let world = filled(Level::Raid6, members);
        let right = media(&world);
        for stripe in [0, 3, 4, STRIPES - 1] {
            for slot in 0..members {
                for column in [0, 700, CHUNK - 1] {
                    let at = stripe * CHUNK + column;
                    for near in 0..(1 + (at % 3)) {
                        flip(&world, slot, at - at % 512 + (at + 97 * near) % 512, 0x41);
                    }
                    let wrong = media(&world);
                    let found = scrub(&world, ScrubMode::Report);
                    assert_eq!((found.checked, found.skipped, found.mismatched), (STRIPES, 0, 1));
                    let [finding] = &found.findings[..] else { panic!("{found:?}") };
                    let block = u32::try_from(column - column % 512).unwrap();
                    assert_eq!((finding.stripe, finding.what), (Stripe(stripe), What::Located));
                    assert_eq!(
                        (&finding.slots, &finding.columns),
                        (&vec![Slot(slot)], &(block..block + 512))
                    );
                    assert!(!finding.is_repaired && media(&world) == wrong, "a report writes nothing");
                    let before = writes(&world);
                    let mended = scrub(&world, ScrubMode::Repair);
                    assert_eq!((mended.repaired_blocks, mended.findings[0].is_repaired), (1, true));
                    assert_eq!(writes(&world) - before, 1, "exactly one block is written");
                    assert!(media(&world) == right, "members {members} slot {slot} stripe {stripe}");
                }
            }
        }
        assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0);
    }
}

#[test]
fn s8_a_member_wrong_in_many_blocks_is_repaired_whole() {
    let world = filled(Level::Raid6, 5);
    let right = media(&world);
    for at in (0..STRIPES * CHUNK).step_by(300) {
        flip(&world, 3, at, 0xff);
    }
    let found = scrub(&world, ScrubMode::Repair);
    assert_eq!((found.mismatched, found.repaired_blocks), (STRIPES, STRIPES * CHUNK / 512));
    assert!(found.findings.iter().all(|finding| finding.slots == [Slot(3)] && finding.is_repaired));
    assert_eq!(found.findings.len(), usize_of(STRIPES), "neighbours are one finding");
    assert!(media(&world) == right);
}

#[test]
fn s8_raid_1_5_and_10_report_and_do_not_guess() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid10, 4)] {
        for slot in 0..members {
            let world = filled(level, members);
            flip(&world, slot, CHUNK * 2 + 513, 1);
            let wrong = media(&world);
            let before = writes(&world);
            for mode in [ScrubMode::Report, ScrubMode::Repair] {
                let found = scrub(&world, mode);
                assert_eq!(
                    (found.mismatched, found.repaired_blocks, found.findings.len()),
                    (1, 0, 1),
                    "{level}"
                );
                let finding = &found.findings[0];
                let expected: Vec<Slot> = match level {
                    Level::Raid10 => vec![Slot(slot / 2 * 2), Slot(slot / 2 * 2 + 1)],
                    _ => (0..members).map(Slot).collect(),
                };
                assert_eq!(finding.slots, expected, "{level}");
                let what = if level == Level::Raid5 { What::Parity } else { What::Copies };
                assert_eq!((finding.what, finding.columns.len()), (what, 512));
            }
            assert!(media(&world) == wrong && writes(&world) == before, "{level}: nothing is written");
        }
    }
}

#[test]
fn the_data_can_be_declared_right() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)] {
        let mut world = filled(level, members);
        // Wrong data, not parity: it becomes the truth.
        let slots = world.geometry();
        let wrong: Vec<u8> = (0..2)
            .map(|i| slots.data_slot(Stripe(0), DataIndex(if level == Level::Raid1 { 0 } else { i })).0)
            .collect();
        for (i, &slot) in wrong.iter().enumerate() {
            flip(&world, slot, 5 + u64::try_from(i).unwrap(), 0x10);
        }
        let found = scrub(&world, ScrubMode::AssumeDataRight);
        assert!(found.findings.iter().all(|finding| finding.is_repaired), "{level} {found:?}");
        assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0, "{level}");
        world.model = read_all(&world);
        world.check_media("after the data was declared right");
    }
}

fn read_all(world: &World) -> Vec<u8> {
    let step = world.shared.max_request_bytes();
    let capacity = world.geometry().capacity_bytes();
    let mut all = Vec::new();
    for at in (0..capacity).step_by(usize_of(step)) {
        all.extend(world.read(at, step.min(capacity - at)).unwrap());
    }
    all
}

/// Product in GF(2^8), by the definition.
fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1d };
        b >>= 1;
    }
    product
}

/// What an error `e` in a role adds to the syndromes of P and Q.
fn syndromes(role: Role, e: u8) -> (u8, u8) {
    match role {
        Role::Data(DataIndex(i)) => (e, mul(gf::power(usize::from(i)), e)),
        Role::P => (e, 0),
        Role::Q => (0, e),
    }
}

#[test]
fn s8_two_wrong_members_are_never_repaired_wrong_unless_nothing_tells_them_from_one() {
    let (mut ambiguous, mut indistinguishable) = (0, 0);
    let world = filled(Level::Raid6, 6);
    let right = media(&world);
    for round in 0..600_u64 {
        let random = || world.executor.random_u64();
        let stripe = random() % STRIPES;
        let (x, y) = (random() % 6, random() % 5);
        let y = if y >= x { y + 1 } else { y };
        let same = round % 3 != 0;
        let count = 1 + random() % if round % 2 == 0 { 2 } else { 40 };
        let mut touched = Vec::new();
        for _ in 0..count {
            let at = random() % 512;
            let other = if same { at } else { random() % 512 };
            let (e, f) =
                (u8::try_from(1 + random() % 255).unwrap(), u8::try_from(1 + random() % 255).unwrap());
            touched.extend([(x, at, e), (y, other, f)]);
            flip(&world, u8::try_from(x).unwrap(), stripe * CHUNK + at, e);
            flip(&world, u8::try_from(y).unwrap(), stripe * CHUNK + other, f);
        }
        let wrong = media(&world);
        let found = scrub(&world, ScrubMode::Repair);
        let now = media(&world);
        let is_repaired = found.findings.iter().any(|finding| finding.is_repaired);
        if is_repaired && now != right {
            // Every differing byte must say the same one member: then no reader of the stripe could know better.
            let [finding] = &found.findings[..] else { panic!("{found:?}") };
            let role = |slot: u64| world.geometry().role(Stripe(stripe), Slot(u8::try_from(slot).unwrap()));
            let named = world.geometry().role(Stripe(stripe), finding.slots[0]);
            for at in 0..512 {
                let sum =
                    |slot: u64| touched.iter().filter(|t| t.0 == slot && t.1 == at).fold(0, |e, t| e ^ t.2);
                let ((px, qx), (py, qy)) = (syndromes(role(x), sum(x)), syndromes(role(y), sum(y)));
                let (p, q) = (px ^ py, qx ^ qy);
                let explained = (0..=255).any(|e| syndromes(named, e) == (p, q));
                assert!(explained, "round {round}: byte {at} does not blame {named:?}");
            }
            indistinguishable += 1;
        } else if !is_repaired {
            assert!(now == wrong, "round {round}: nothing is repaired, so nothing is written");
            ambiguous += 1;
        }
        for (drive, bytes) in world.drives.iter().zip(&right) {
            drive.medium().copy_from_slice(bytes);
        }
    }
    assert!(ambiguous > 400, "{ambiguous} ambiguous, {indistinguishable} that look like one");
}

#[test]
fn s8_two_errors_made_to_look_like_one_are_told_apart_by_one_more_byte() {
    let world = filled(Level::Raid6, 6);
    let right = media(&world);
    let slot = |index: u8| world.geometry().data_slot(Stripe(2), DataIndex(index)).0;
    let (gx, gy, gz) = (gf::power(0), gf::power(1), gf::power(3));
    for d in [1_u8, 0x55, 0xfe] {
        // e + f = d and gx e + gy f = gz d: x and y together look like z.
        let e = mul(mul(d, gz ^ gy), gf::inverse(gx ^ gy));
        let f = e ^ d;
        for at in 0..20 {
            flip(&world, slot(0), 2 * CHUNK + at, e);
            flip(&world, slot(1), 2 * CHUNK + at, f);
        }
        let found = scrub(&world, ScrubMode::Report);
        assert_eq!((found.findings[0].what, &found.findings[0].slots), (What::Located, &vec![Slot(slot(3))]));
        // Anything more that differs in one of them only, and nothing is certain any more.
        for more in [2 * CHUNK + 500, 2 * CHUNK + 512] {
            flip(&world, slot(1), more, 0x20);
            let wrong = media(&world);
            let found = scrub(&world, ScrubMode::Repair);
            assert_eq!((found.mismatched, found.repaired_blocks), (1, 0), "{found:?}");
            assert!(media(&world) == wrong, "nothing is written");
            flip(&world, slot(1), more, 0x20);
        }
        for (drive, bytes) in world.drives.iter().zip(&right) {
            drive.medium().copy_from_slice(bytes);
        }
    }
}

#[test]
fn a_scrub_under_writes_finds_nothing_and_repairs_nothing() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)] {
        for seed in 0..6 {
            let world = World::new(seed, shape(level, members));
            let capacity = world.geometry().capacity_bytes();
            let done = Rc::new(std::cell::Cell::new(0));
            for writer in 0..4_u64 {
                let (group, done, executor) = (world.group.clone(), Rc::clone(&done), world.executor.clone());
                world.executor.spawn(async move {
                    for n in 0..60_u64 {
                        let at = executor.random_u64() % (capacity / 512 - 6) * 512;
                        let len = 512 * usize_of(1 + executor.random_u64() % 6);
                        let byte = u8::try_from((writer * 60 + n) % 251).unwrap();
                        write_slice(&group, at, &vec![byte; len], Durability::Cached).await.unwrap();
                    }
                    done.set(done.get() + 1);
                });
            }
            let (group, executor) = (world.group.clone(), world.executor.clone());
            let done_again = Rc::clone(&done);
            let rounds = world.executor.block_on(async move {
                let mut rounds = 0;
                while done_again.get() < 4 {
                    let state = Mutex::default();
                    group.scrub(ScrubMode::Repair, &Pace::default(), &state).await.unwrap();
                    let found = state.into_inner();
                    assert_eq!((found.mismatched, found.repaired_blocks), (0, 0), "{level} {seed}");
                    rounds += 1;
                    executor.sleep_until(executor.now_ns() + 1).await;
                }
                rounds
            });
            assert!(rounds > 1, "{level} {seed}: the scrub ran while writes did");
        }
    }
}

#[test]
fn a_scrub_that_was_paused_goes_on_with_its_counts() {
    let world = filled(Level::Raid6, 5);
    for stripe in 0..STRIPES {
        flip(&world, u8::try_from(stripe % 5).unwrap(), stripe * CHUNK + 9, 3);
    }
    let at_once = scrub(&world, ScrubMode::Report);
    assert_eq!((at_once.mismatched, at_once.findings.len()), (STRIPES, usize_of(STRIPES)));
    let mut state = ScrubState::default();
    let mut rounds = 0;
    while state.next < STRIPES {
        let (group, before) = (world.group.clone(), state.clone());
        let (result, after) = world.executor.block_on(async move {
            let state = Rc::new(Mutex::new(before.clone()));
            let pace = Rc::new(Pace::default());
            pace.step_bytes_max.store(CHUNK, std::sync::atomic::Ordering::Relaxed);
            pace.bytes_per_s_max.store(CHUNK * 1000, std::sync::atomic::Ordering::Relaxed);
            let (stop, seen, executor) = (Rc::clone(&pace), Rc::clone(&state), group.env().clone());
            raid_core::ports::Env::spawn(&executor.clone(), async move {
                while seen.lock().next < before.next + 3 {
                    raid_core::ports::Clock::sleep_until(
                        raid_core::ports::Env::clock(&executor),
                        raid_core::ports::Clock::now_ns(raid_core::ports::Env::clock(&executor)) + 100_000,
                    )
                    .await;
                }
                stop.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            let result = group.scrub(ScrubMode::Report, &pace, &state).await;
            let after = state.lock().clone();
            (result, after)
        });
        assert!(result.is_ok() || result == Err(SweepError::Cancelled));
        assert_eq!(after.checked, after.next, "what is counted is what was passed");
        assert!(after.next > state.next);
        state = after;
        rounds += 1;
    }
    assert!(rounds >= 2, "it was interrupted");
    assert_eq!(state, at_once);
}

#[test]
fn s5_unreadable_blocks_are_rewritten_and_counted_and_lost_rows_do_not_stop_a_scrub() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)] {
        let world = filled(level, members);
        let right = media(&world);
        let at = |column: u64| world.data_at(CHUNK * 3 + column);
        world.drives[1].make_unreadable(at(512)..at(1536));
        let found = scrub(&world, ScrubMode::Report);
        assert_eq!((found.rewritten_blocks, found.lost_blocks, found.mismatched), (2, 0, 0), "{level}");
        assert!(!world.drives[1].is_unreadable(&(at(0)..at(CHUNK))) && media(&world) == right);
        // One more than the level can give back.
        let lost = 1 + level.parities().max(1);
        for slot in 0..lost {
            world.drives[usize::from(slot)].make_unreadable(at(512)..at(1024));
        }
        world.drives[1].make_unreadable(at(0)..at(512));
        let found = scrub(&world, ScrubMode::Repair);
        assert_eq!(
            (found.rewritten_blocks, found.lost_blocks, found.mismatched),
            (1, 1, 0),
            "{level} {found:?}"
        );
        let finding = &found.findings[0];
        assert_eq!(
            (finding.what, usize_of_u32(finding.columns.end - finding.columns.start)),
            (What::Lost, 512)
        );
        assert_eq!(finding.slots, (0..lost).map(Slot).collect::<Vec<_>>());
        let row =
            u64::from(finding.columns.start) + u64::from(world.geometry().chunk_bytes()) * finding.stripe.0;
        assert_eq!(world.data_at(row), at(512));
        assert_eq!(found.next, world.geometry().stripes(), "to the end");
        assert_eq!(world.shared.view().missing(), 0);
    }
}

#[test]
fn a_group_short_of_a_member_compares_what_it_can_and_counts_the_rest() {
    for (level, members, checked) in
        [(Level::Raid1, 3, 3), (Level::Raid1, 2, 0), (Level::Raid5, 4, 0), (Level::Raid6, 5, 0)]
    {
        let world = filled(level, members);
        world.fail(1, IoKind::Gone).unwrap();
        let found = scrub(&world, ScrubMode::Repair);
        assert_eq!(
            (found.checked, found.checked + found.skipped),
            (checked, world.geometry().stripes()),
            "{level}"
        );
        assert_eq!(found.mismatched, 0);
    }
}

/// The members of a golden array that mdadm made, over simulated drives.
fn golden(name: &str) -> World {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let mut members = Vec::new();
    while let Ok(file) = std::fs::File::open(folder.join(format!("d{}.img.gz", members.len()))) {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        members.push((Superblock::decode(&bytes[4096..8192]).unwrap(), bytes));
    }
    let first = members[0].0.clone();
    let shape = Shape {
        level: Level::from_number(first.level).unwrap(),
        members: u8::try_from(members.len()).unwrap(),
        chunk_bytes: u32::try_from(first.chunk_bytes()).unwrap(),
        member_bytes: first.member_bytes(),
        block: BlockSize::B512,
    };
    let world = World::new(1, shape);
    world.set_latency(false);
    for (superblock, bytes) in &members {
        let role = MdRole::from_number(first.dev_roles[usize_of_u32(superblock.dev_number)]).unwrap();
        let MdRole::Active(slot) = role else { panic!("{name}: {role:?}") };
        let data = &bytes[usize_of(superblock.data_offset * 512)..][..usize_of(shape.member_bytes)];
        let start = usize_of(world.data_at(0));
        world.drives[slot.index()].medium()[start..start + data.len()].copy_from_slice(data);
    }
    world
}

#[test]
fn what_md_wrote_is_clean_and_a_flip_in_it_is_found() {
    for name in ["raid1", "raid5", "raid6", "raid10", "raid5-nobitmap"] {
        let world = golden(name);
        let found = scrub(&world, ScrubMode::Report);
        assert_eq!((found.mismatched, found.skipped), (0, 0), "{name}");
        assert_eq!(found.checked, world.geometry().stripes(), "{name}");
        flip(&world, 1, 4 * 65536 + 77, 0x80);
        assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 1, "{name}");
    }
}

/// Reads every block alone; those that are errors.
fn lost_blocks(world: &World) -> Vec<u64> {
    let mut lost = Vec::new();
    for at in (0..world.geometry().capacity_bytes()).step_by(512) {
        match world.read(at, 512) {
            Ok(read) => world.compare(at, &read, "what can be read is right"),
            Err(_) => lost.push(at),
        }
    }
    lost
}

#[test]
fn s6_a_lost_pair_is_cleared_by_rewriting_just_the_lost_blocks() {
    for (level, members) in [(Level::Raid5, 3), (Level::Raid5, 4), (Level::Raid6, 5)] {
        for turn in 0..u64::from(members) {
            for first in 0..2 {
                let mut world = filled(level, members);
                let at = world.data_at(CHUNK * turn + 512);
                for slot in 0..=level.parities() {
                    world.drives[usize::from(slot)].make_unreadable(at..at + 512);
                }
                let mut lost = lost_blocks(&world);
                assert!(!lost.is_empty(), "{level} {turn}");
                if first == 1 {
                    lost.reverse();
                }
                // A block beside them in the same row takes writes and keeps them.
                for &at in &lost.clone() {
                    world.write_random(at, 512).unwrap_or_else(|kind| panic!("{level} {turn}: {kind:?}"));
                    lost.retain(|&other| other != at);
                    let mut now = lost_blocks(&world);
                    now.sort_unstable();
                    let mut expected = lost.clone();
                    expected.sort_unstable();
                    assert_eq!(now, expected, "{level} {turn}: exactly the others are still lost");
                }
                assert_eq!(scrub(&world, ScrubMode::Report).lost_blocks, 0);
                let listed = |world: &World| {
                    world.shared.status().slots.iter().map(|s| s.bad_blocks.len()).sum::<usize>()
                };
                if listed(&world) == 0 {
                    world.check_media("after the rewrites");
                    assert_eq!(scrub(&world, ScrubMode::Report).mismatched, 0);
                }
                assert_eq!(listed(&world), 0, "{level} {turn}: nothing is listed any more");
                world.fail(0, IoKind::Gone).unwrap();
                world.check_contents("after one more loss");
            }
        }
    }
}

#[test]
fn s6_random_writes_over_lost_rows_never_give_wrong_data() {
    let mut seen = 0;
    for seed in 0..120 {
        let (level, members) =
            [(Level::Raid5, 3), (Level::Raid5, 4), (Level::Raid6, 4), (Level::Raid6, 5)][usize_of(seed % 4)];
        let mut world = World::new(seed, shape(level, members));
        world.set_latency(false);
        world.fill();
        let capacity = world.geometry().capacity_bytes();
        for _ in 0..6 {
            let at = world.data_at(world.executor.random_u64() % (2 * CHUNK / 512) * 512);
            let slot = usize_of(world.executor.random_u64() % u64::from(members));
            world.drives[slot].make_unreadable(at..at + 512);
        }
        for round in 0..40 {
            let blocks = 1 + world.executor.random_u64() % 9;
            let at = world.executor.random_u64()
                % (capacity.min(3 * CHUNK * u64::from(members)) / 512 - blocks)
                * 512;
            let data = world.random_bytes(blocks * 512);
            if world.write(at, &data).is_err() {
                // Each block is old or new; what can be read says which.
                for block in (at..at + blocks * 512).step_by(512) {
                    let from = usize_of(block - at);
                    match world.read(block, 512) {
                        Ok(read) if read == data[from..from + 512] => {
                            world.model[usize_of(block)..usize_of(block) + 512].copy_from_slice(&read);
                        }
                        Ok(read) => world.compare(block, &read, "old or new"),
                        Err(_) => {}
                    }
                }
            }
            if round % 8 == 0 {
                seen += lost_blocks(&world).len();
            }
        }
        seen += lost_blocks(&world).len();
        // Write everything block by block: nothing stays lost.
        for at in (0..capacity).step_by(512) {
            world.write_random(at, 512).unwrap_or_else(|kind| panic!("seed {seed} at {at}: {kind:?}"));
        }
        world.check_contents("all rewritten");
        assert!(world.shared.status().slots.iter().all(|slot| slot.bad_blocks.is_empty()), "seed {seed}");
        world.check_media("all rewritten");
    }
    assert!(seen > 50, "{seen} lost blocks were met");
}

#[test]
fn lost_blocks_in_different_rows_of_one_request_do_not_fail_it() {
    let mut world = filled(Level::Raid5, 4);
    world.fail(1, IoKind::Gone).unwrap();
    let at = world.data_at(CHUNK);
    world.drives[0].make_unreadable(at..at + 512);
    world.replace(1).unwrap();
    let group = world.group.clone();
    world.executor.block_on(async move { group.rebuild(Slot(1), &Pace::default()).await }).unwrap();
    // Slot 1 has a listed block in row 0, slot 2 an unreadable one in row 1: each row has a source for the other.
    world.drives[2].make_unreadable(at + 512..at + 1024);
    let lost = lost_blocks(&world);
    let stripe = world.geometry().stripe_data_bytes();
    let group = world.group.clone();
    for start in (stripe..2 * stripe).step_by(usize_of(CHUNK)) {
        let group = group.clone();
        let read = world.executor.block_on(async move { read_vec(&group, start, CHUNK).await });
        let has_lost = lost.iter().any(|&at| (start..start + CHUNK).contains(&at));
        assert_eq!(read.is_err(), has_lost, "{start}");
    }
    for &at in &lost {
        world.write_random(at, 512).unwrap();
    }
    world.check_contents("after rewriting the lost blocks");
}
