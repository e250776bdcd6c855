//! The model against an honest disk, and against every kind of lie.

use super::*;

const SIZE: u64 = 64 * BLOCK_BYTES;

fn read(model: &mut Model, offset_bytes: u64, data: &[u8]) -> Vec<Finding> {
    let read = model.begin_read(offset_bytes, u64::try_from(data.len()).unwrap());
    model.check(read, data)
}

fn faults(model: &mut Model, offset_bytes: u64, data: &[u8]) -> Vec<Fault> {
    read(model, offset_bytes, data).into_iter().map(|finding| finding.fault).collect()
}

fn written(model: &mut Model, offset_bytes: u64, length_bytes: u64) -> (u64, Vec<u8>) {
    let write = model.begin_write(offset_bytes, length_bytes);
    let (number, data) = (write.number, write.bytes());
    model.acked(write, false);
    (number, data)
}

#[test]
fn corrupted_stale_misplaced_and_swapped_blocks_are_each_caught_and_named() {
    let mut model = Model::new(1, SIZE);
    let (first, old) = written(&mut model, 0, 4 * 512);
    let (_, new) = written(&mut model, 0, 4 * 512);
    assert_eq!(faults(&mut model, 0, &new), []);

    let mut corrupt = new.clone();
    corrupt[512 + 100] ^= 1;
    assert_eq!(faults(&mut model, 0, &corrupt), [Fault::Corrupt]);

    let mut stale = new.clone();
    stale[1024..1536].copy_from_slice(&old[1024..1536]);
    assert_eq!(faults(&mut model, 0, &stale), [Fault::Stale { write: first }]);

    let mut misplaced = new.clone();
    misplaced.copy_within(0..512, 1536);
    assert_eq!(faults(&mut model, 0, &misplaced), [Fault::Misplaced { belongs_at: 0 }]);

    let mut swapped = new.clone();
    swapped[..512].copy_from_slice(&new[512..1024]);
    swapped[512..1024].copy_from_slice(&new[..512]);
    let expected = [Fault::Misplaced { belongs_at: 512 }, Fault::Misplaced { belongs_at: 0 }];
    assert_eq!(faults(&mut model, 0, &swapped), expected);

    let mut torn = new.clone();
    torn[256..512].copy_from_slice(&old[256..512]);
    assert_eq!(faults(&mut model, 0, &torn), [Fault::Torn { writes: [first, first + 1] }]);

    let zeroes = vec![0; 512];
    assert_eq!(faults(&mut model, 0, &zeroes), [Fault::Zeroes]);
    let garbage = vec![0xa5; 512];
    assert_eq!(faults(&mut model, 0, &garbage), [Fault::Garbage]);

    let mut other = Model::new(2, SIZE);
    let (_, theirs) = written(&mut other, 0, 512);
    assert_eq!(faults(&mut model, 0, &theirs), [Fault::OtherDisk { disk: 2 }]);

    let never = Stamp { disk: 1, offset_bytes: 0, write: 99 }.block();
    assert_eq!(faults(&mut model, 0, &never), [Fault::NeverSent { write: 99 }]);
    assert_eq!(faults(&mut model, 0, &new), [], "a bad read changes nothing");
}

#[test]
fn a_block_torn_between_two_writes_is_named() {
    let mut model = Model::new(1, SIZE);
    let (first, old) = written(&mut model, 0, 512);
    let second = model.begin_write(0, 512);
    let mut torn = second.bytes();
    torn[128..].copy_from_slice(&old[128..]);
    assert_eq!(faults(&mut model, 0, &torn), [Fault::Torn { writes: [first, second.number] }]);
}

#[test]
fn a_write_in_flight_may_show_and_an_acknowledged_one_must() {
    let mut model = Model::new(1, SIZE);
    let (_, old) = written(&mut model, 512, 512);
    let write = model.begin_write(512, 512);
    let new = write.bytes();
    assert_eq!(faults(&mut model, 512, &old), []);
    assert_eq!(faults(&mut model, 512, &new), []);
    assert_eq!(faults(&mut model, 512, &old), [], "in flight: either, as often as asked");
    model.acked(write, false);
    assert_eq!(faults(&mut model, 512, &old).len(), 1);
    assert_eq!(faults(&mut model, 512, &new), []);
}

#[test]
fn overlapping_writes_may_land_in_either_order_but_not_alternate() {
    for keep_first in [true, false] {
        let mut model = Model::new(1, SIZE);
        let (a, b) = (model.begin_write(0, 512), model.begin_write(0, 512));
        let contents = [a.bytes(), b.bytes()];
        model.acked(b, false);
        model.acked(a, false);
        let (kept, gone) = if keep_first { (0, 1) } else { (1, 0) };
        assert_eq!(faults(&mut model, 0, &contents[kept]), []);
        assert_eq!(faults(&mut model, 0, &contents[gone]).len(), 1);
        assert_eq!(faults(&mut model, 0, &contents[kept]), []);
    }
}

#[test]
fn a_read_that_began_before_the_answer_may_show_the_old_block() {
    let mut model = Model::new(1, SIZE);
    let (_, old) = written(&mut model, 0, 512);
    let flush = model.begin_flush();
    model.flushed(flush);
    let early = model.begin_read(0, 512);
    let write = model.begin_write(0, 512);
    model.acked(write, true);
    assert_eq!(model.check(early, &old), []);
    assert_eq!(faults(&mut model, 0, &old).len(), 1);
}

#[test]
fn a_crash_keeps_the_flushed_and_may_lose_the_acknowledged() {
    let mut model = Model::new(1, SIZE);
    let (_, lost) = written(&mut model, 0, 512);
    let (_, flushed) = written(&mut model, 0, 512);
    let flush = model.begin_flush();
    let (_, late) = written(&mut model, 0, 512);
    model.flushed(flush);
    model.crash();
    assert_eq!(faults(&mut model, 0, &lost).len(), 1, "older than what was flushed");
    assert_eq!(faults(&mut model, 0, &vec![0; 512]), [Fault::Zeroes]);
    assert_eq!(faults(&mut model, 0, &flushed), [], "the flush did not cover the late write");
    assert_eq!(faults(&mut model, 0, &late).len(), 1, "once seen old, it stays old");

    let mut model = Model::new(1, SIZE);
    let write = model.begin_write(0, 512);
    let (fua, flight) = (write.bytes(), model.begin_write(512, 512));
    model.acked(write, true);
    let in_flight = flight.bytes();
    model.crash();
    assert_eq!(faults(&mut model, 0, &vec![0; 512]), [Fault::Zeroes], "FUA survives");
    assert_eq!(faults(&mut model, 0, &fua), []);
    assert_eq!(faults(&mut model, 512, &in_flight), [], "in flight: old or new");
}

#[test]
fn a_failed_write_may_have_happened_until_it_is_written_over() {
    let mut model = Model::new(1, SIZE);
    let write = model.begin_write(0, 512);
    let maybe = write.bytes();
    model.failed(&write);
    assert_eq!(faults(&mut model, 0, &maybe), []);
    let (_, sure) = written(&mut model, 0, 512);
    assert_eq!(faults(&mut model, 0, &maybe).len(), 1);
    assert_eq!(faults(&mut model, 0, &sure), []);
}

#[test]
fn zeroed_blocks_read_as_zeroes_only() {
    let mut model = Model::new(1, SIZE);
    assert_eq!(faults(&mut model, 0, &vec![0; 1024]), []);
    let (_, data) = written(&mut model, 0, 1024);
    let zero = model.begin_zero(512, 512);
    model.acked(zero, false);
    assert_eq!(faults(&mut model, 0, &data).len(), 1);
    let mut right = data;
    right[512..].fill(0);
    assert_eq!(faults(&mut model, 0, &right), []);
}

/// A disk that obeys, against the model: whatever order requests end in, no read is a finding; and one wrong block is.
#[test]
fn only_pieces_of_writes_that_may_both_be_read_are_a_race() {
    let torn = |allowed: &[u64]| Finding {
        offset_bytes: 0,
        fault: Fault::Torn { writes: [3, 4] },
        allowed: allowed.to_vec(),
    };
    assert!(torn(&[4, 3]).is_race());
    assert!(!torn(&[4]).is_race());
    assert!(!Finding { fault: Fault::Corrupt, ..torn(&[4, 3]) }.is_race());
}

#[test]
fn an_honest_disk_is_never_accused_and_one_lie_always_is() {
    for seed in 0..200 {
        let mut random = crate::Random::new(seed);
        let unit = if seed % 2 == 0 { 512 } else { 4096 };
        let mut model = Model::with_unit(9, SIZE, unit);
        let mut disk = vec![0; usize::try_from(SIZE).unwrap()];
        let mut flight: Vec<Write> = Vec::new();
        for _ in 0..200 {
            if random.below(2) == 0 {
                let at = random.below(SIZE / unit);
                let length = 1 + random.below(SIZE / unit - at);
                flight.push(model.begin_write(at * unit, length * unit));
            } else if !flight.is_empty() {
                let pick = usize::try_from(random.below(u64::try_from(flight.len()).unwrap())).unwrap();
                let write = flight.swap_remove(pick);
                let at = usize::try_from(write.offset_bytes).unwrap();
                disk[at..at + usize::try_from(write.length_bytes).unwrap()].copy_from_slice(&write.bytes());
                model.acked(write, random.below(4) == 0);
            }
            if random.below(8) == 0 {
                let flush = model.begin_flush();
                model.flushed(flush);
            }
            assert_eq!(read(&mut model, 0, &disk), [], "seed {seed}");
        }
        let lie = usize::try_from(random.below(SIZE)).unwrap();
        disk[lie] ^= 1 << random.below(8);
        assert_eq!(read(&mut model, 0, &disk).len(), 1, "seed {seed}: byte {lie}");
    }
}
