//! Jobs through the parity port on the CPU: every operation, every lost set, and the promise that an invalid job comes
//! back untouched. Parity is computed here a second time, by definition, with an independent library's arithmetic.

#![allow(unsafe_code)]

use core::ops::Range;
use core::pin::pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use std::rc::Rc;

use proptest::prelude::*;
use raid_core::lease::{Lease, LeaseHome, Seg};
use raid_core::parity::{
    CYCLE, Column, CpuParity, ParityError, ParityJob, ParityOp, UnknownKernel, Verdict, WrongColumn,
};
use raid_core::ports::ParityEngine;
use raid_core::units::DataIndex;
use reed_solomon_erasure::galois_8;

/// One heap block per lease; the home owns it.
struct Heap {
    _bytes: Box<[core::cell::UnsafeCell<u8>]>,
}

impl LeaseHome for Heap {
    fn give_back(&self, _key: u32) {}
}

fn lease(content: &[u8]) -> Lease {
    let bytes: Box<[core::cell::UnsafeCell<u8>]> =
        content.iter().map(|&byte| core::cell::UnsafeCell::new(byte)).collect();
    let len = u32::try_from(content.len()).unwrap();
    let start = NonNull::new(bytes[0].get()).unwrap();
    // SAFETY: the bytes are initialised, live in cells that only this lease reaches, and the home that the lease keeps
    // alive owns them.
    unsafe { Lease::new(start, len, len, 0, Rc::new(Heap { _bytes: bytes })) }
}

/// A segment at an odd place of its block.
fn seg(content: &[u8]) -> Seg {
    let mut padded = vec![0x77; 3];
    padded.extend_from_slice(content);
    padded.extend_from_slice(&[0x77; 2]);
    let len = u32::try_from(content.len()).unwrap();
    lease(&padded).share().slice(3..3 + len)
}

fn input(content: &[u8]) -> Column {
    Column::In(seg(content))
}

const GUARD: u8 = 0xee;

/// An output at an odd place of its lease, which holds `content` now.
fn output(content: &[u8]) -> Column {
    let mut padded = vec![GUARD; 5];
    padded.extend_from_slice(content);
    padded.extend_from_slice(&[GUARD; 9]);
    let len = u32::try_from(content.len()).unwrap();
    Column::Out(lease(&padded), 5..5 + len)
}

fn content(column: &Column) -> Vec<u8> {
    match column {
        Column::Absent => Vec::new(),
        Column::In(seg) => seg.bytes().to_vec(),
        Column::Out(lease, range) => {
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            let (before, after) = (&lease.bytes()[..range.start], &lease.bytes()[range.end..]);
            assert!(before.iter().chain(after).all(|&byte| byte == GUARD), "wrote outside an output");
            lease.bytes()[range].to_vec()
        }
    }
}

/// The engine is ready at the first poll.
fn run(engine: &CpuParity, job: ParityJob) -> (ParityJob, Result<Verdict, ParityError>) {
    match pin!(engine.run(job)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the CPU engine waits for nothing"),
    }
}

fn engines() -> Vec<CpuParity> {
    CpuParity::kernels().into_iter().map(|name| CpuParity::with_kernel(name).unwrap()).collect()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        })
        .collect()
}

/// A stripe by definition: k data blocks, then P, then Q.
fn stripe(seed: u64, k: usize, len: usize) -> Vec<Vec<u8>> {
    let mut columns: Vec<Vec<u8>> =
        (0..k).map(|i| bytes(seed ^ (u64::try_from(i).unwrap() * 0x1_0001 + 1), len)).collect();
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for (i, column) in columns.iter().enumerate() {
        for at in 0..len {
            p[at] = galois_8::add(p[at], column[at]);
            q[at] = galois_8::add(q[at], galois_8::mul(galois_8::exp(2, i), column[at]));
        }
    }
    columns.push(p);
    columns.push(q);
    columns
}

fn job_of(op: ParityOp, columns: &[Vec<u8>], with: impl Fn(usize, &[u8]) -> Column) -> ParityJob {
    let mut all: Vec<Column> = columns.iter().enumerate().map(|(i, bytes)| with(i, bytes)).collect();
    let q = all.pop().unwrap();
    let p = all.pop().unwrap();
    ParityJob { op, len: u32::try_from(columns[0].len()).unwrap(), data: all, p, q }
}

fn all_columns(job: &ParityJob) -> impl Iterator<Item = &Column> {
    job.data.iter().chain([&job.p, &job.q])
}

/// What a column of a recovery is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Is {
    Known,
    Wanted,
    Gone,
}

fn recover_job(columns: &[Vec<u8>], is: impl Fn(usize) -> Is) -> ParityJob {
    job_of(ParityOp::Recover, columns, |i, bytes| match is(i) {
        Is::Known => input(bytes),
        Is::Wanted => output(&vec![0xcc; bytes.len()]),
        Is::Gone => Column::Absent,
    })
}

#[track_caller]
fn expect_recovered(engine: &CpuParity, columns: &[Vec<u8>], is: impl Fn(usize) -> Is + Copy) {
    let (job, verdict) = run(engine, recover_job(columns, is));
    let kinds: Vec<Is> = (0..columns.len()).map(is).collect();
    assert_eq!(verdict, Ok(Verdict::Computed), "{kinds:?}");
    for (i, column) in all_columns(&job).enumerate() {
        if is(i) != Is::Gone {
            assert_eq!(content(column), columns[i], "{} column {i} of {kinds:?}", engine.kernel_name());
        }
    }
}

#[test]
fn encode_computes_what_is_wanted() {
    for engine in engines() {
        for k in 1..=10 {
            for len in [1, 31, 512, 4096 + 13] {
                let columns = stripe(3, k, len);
                for (p_wanted, q_wanted) in [(true, true), (true, false), (false, true), (false, false)] {
                    let wanted = |i| i < k || (i == k && p_wanted) || (i == k + 1 && q_wanted);
                    let job = job_of(ParityOp::Encode, &columns, |i, bytes| match i {
                        _ if !wanted(i) => Column::Absent,
                        i if i < k => input(bytes),
                        _ => output(&vec![0xcc; bytes.len()]),
                    });
                    let (job, verdict) = run(&engine, job);
                    assert_eq!(verdict, Ok(Verdict::Computed));
                    for (i, column) in all_columns(&job).enumerate().filter(|&(i, _)| wanted(i)) {
                        assert_eq!(content(column), columns[i], "{} k {k} len {len}", engine.kernel_name());
                    }
                }
            }
        }
    }
}

#[test]
fn every_lost_set_of_raid6_is_recovered() {
    for engine in engines() {
        for k in 1..=9 {
            // Over one tile, and a tail.
            let columns = stripe(11, k, 4096 + 77);
            for first in 0..k + 2 {
                for second in first..k + 2 {
                    let is_lost = |i| i == first || i == second;
                    expect_recovered(&engine, &columns, |i| if is_lost(i) { Is::Wanted } else { Is::Known });
                    // Both lost and only one of them wanted.
                    let only = |wanted| {
                        move |i| match i {
                            _ if i == wanted => Is::Wanted,
                            _ if is_lost(i) => Is::Gone,
                            _ => Is::Known,
                        }
                    };
                    expect_recovered(&engine, &columns, only(first));
                    expect_recovered(&engine, &columns, only(second));
                }
            }
        }
    }
}

#[test]
fn every_lost_column_of_raid5_is_recovered() {
    for engine in engines() {
        for k in 1..=9 {
            let columns = stripe(12, k, 700);
            for lost in 0..=k {
                expect_recovered(&engine, &columns, |i| match i {
                    _ if i == lost => Is::Wanted,
                    _ if i == k + 1 => Is::Gone,
                    _ => Is::Known,
                });
            }
        }
    }
}

#[test]
fn recovery_prefers_p_and_never_reads_a_block_that_is_not_there() {
    let engine = CpuParity::new();
    let mut columns = stripe(13, 5, 64);
    // With P known, a wrong Q does not spoil the block.
    columns[6][3] ^= 1;
    expect_recovered(&engine, &columns, |i| if i == 2 { Is::Wanted } else { Is::Known });
}

#[test]
fn wide_groups_recover_too() {
    for engine in engines() {
        for k in [64, 253] {
            let columns = stripe(14, k, 100);
            let pairs = [(0, 1), (0, k - 1), (k / 2, k - 1), (k - 1, k), (k - 1, k + 1), (k, k + 1), (7, 7)];
            for (x, y) in pairs {
                expect_recovered(
                    &engine,
                    &columns,
                    |i| if i == x || i == y { Is::Wanted } else { Is::Known },
                );
            }
        }
    }
}

#[test]
fn more_lost_than_parity_is_refused_untouched() {
    let engine = CpuParity::new();
    let columns = stripe(15, 4, 128);
    let refused = |is: &dyn Fn(usize) -> Is| {
        let (job, verdict) = run(&engine, recover_job(&columns, is));
        assert!(matches!(verdict, Err(ParityError::Invalid(_))), "{verdict:?}");
        for (i, column) in all_columns(&job).enumerate() {
            match is(i) {
                Is::Wanted => assert_eq!(content(column), vec![0xcc; 128], "an invalid job was touched"),
                Is::Known => assert_eq!(content(column), columns[i]),
                Is::Gone => assert!(matches!(column, Column::Absent)),
            }
        }
    };
    // RAID 5 with two lost, RAID 6 with three, data with neither parity, data and P lost without Q.
    refused(&|i| [Is::Wanted, Is::Wanted, Is::Known, Is::Known, Is::Known, Is::Gone][i]);
    refused(&|i| [Is::Wanted, Is::Wanted, Is::Gone, Is::Known, Is::Known, Is::Known][i]);
    refused(&|i| [Is::Wanted, Is::Wanted, Is::Wanted, Is::Known, Is::Known, Is::Known][i]);
    refused(&|i| [Is::Wanted, Is::Known, Is::Known, Is::Known, Is::Gone, Is::Gone][i]);
    refused(&|i| [Is::Wanted, Is::Known, Is::Known, Is::Known, Is::Wanted, Is::Gone][i]);
    refused(&|i| [Is::Wanted, Is::Known, Is::Known, Is::Known, Is::Wanted, Is::Wanted][i]);
    refused(&|i| [Is::Wanted, Is::Gone, Is::Known, Is::Known, Is::Known, Is::Wanted][i]);
}

fn delta_job(columns: &[Vec<u8>], index: usize, new: &[u8], with: (bool, bool)) -> ParityJob {
    let k = columns.len() - 2;
    let parity = |i: usize, is_there: bool| if is_there { output(&columns[i]) } else { Column::Absent };
    let index_of = DataIndex(u8::try_from(index).unwrap());
    ParityJob {
        op: ParityOp::Delta { index: index_of, old: seg(&columns[index]), new: seg(new) },
        len: u32::try_from(new.len()).unwrap(),
        data: Vec::new(),
        p: parity(k, with.0),
        q: parity(k + 1, with.1),
    }
}

/// The stripe with one data block replaced, parity by definition.
fn changed(columns: &[Vec<u8>], index: usize, new: &[u8]) -> Vec<Vec<u8>> {
    let k = columns.len() - 2;
    let weight = galois_8::exp(2, index);
    let mut result = columns.to_vec();
    for at in 0..new.len() {
        let change = columns[index][at] ^ new[at];
        result[k][at] ^= change;
        result[k + 1][at] ^= galois_8::mul(weight, change);
    }
    result[index] = new.to_vec();
    result
}

#[test]
fn delta_updates_whichever_parity_is_there() {
    for engine in engines() {
        for k in [1, 2, 5, 24, 253] {
            let columns = stripe(16, k, 333);
            for index in [0, k / 2, k - 1] {
                let new = bytes(99, 333);
                let want = changed(&columns, index, &new);
                for with in [(true, true), (true, false), (false, true), (false, false)] {
                    let (job, verdict) = run(&engine, delta_job(&columns, index, &new, with));
                    assert_eq!(verdict, Ok(Verdict::Computed));
                    for (column, want, is_there) in
                        [(&job.p, &want[k], with.0), (&job.q, &want[k + 1], with.1)]
                    {
                        assert!(!is_there || content(column) == *want, "{} {index}", engine.kernel_name());
                    }
                }
            }
        }
    }
}

#[test]
fn verify_tells_p_from_q_and_sees_every_byte() {
    for engine in engines() {
        let k = 3;
        for len in [1, 33, 4096, 2 * 4096 + 5] {
            let good = stripe(17, k, len);
            let verdict = |columns: &[Vec<u8>], with_q: bool| {
                let job = job_of(ParityOp::Verify, columns, |i, bytes| match i {
                    i if i == k + 1 && !with_q => Column::Absent,
                    _ => input(bytes),
                });
                run(&engine, job).1
            };
            assert_eq!(verdict(&good, true), Ok(Verdict::Clean));
            assert_eq!(verdict(&good, false), Ok(Verdict::Clean));
            for at in [0, len / 2, len - 1] {
                for column in 0..k + 2 {
                    let mut bad = good.clone();
                    bad[column][at] ^= 0x40;
                    let (p, q) = (column != k + 1, column != k);
                    assert_eq!(verdict(&bad, true), Ok(Verdict::Mismatch { p, q }), "{column} at {at}");
                    let want = if p { Verdict::Mismatch { p, q: false } } else { Verdict::Clean };
                    assert_eq!(verdict(&bad, false), Ok(want), "RAID 5, {column} at {at}");
                }
            }
        }
    }
}

fn locate(engine: &CpuParity, columns: &[Vec<u8>]) -> Result<Verdict, ParityError> {
    run(engine, job_of(ParityOp::Locate, columns, |_, bytes| input(bytes))).1
}

fn column_of(i: usize, k: usize) -> WrongColumn {
    match i {
        _ if i == k => WrongColumn::P,
        _ if i == k + 1 => WrongColumn::Q,
        _ => WrongColumn::Data(DataIndex(u8::try_from(i).unwrap())),
    }
}

#[test]
fn locate_names_every_column_by_every_flip() {
    for engine in engines() {
        for k in [1, 2, 3, 8, 24, 253] {
            let good = stripe(18, k, 9);
            assert_eq!(locate(&engine, &good), Ok(Verdict::Clean));
            for column in 0..k + 2 {
                for flip in if k <= 3 { 1..=u8::MAX } else { 0x7f..=0x83 } {
                    let mut bad = good.clone();
                    bad[column][usize::from(flip) % 9] ^= flip;
                    let want = Verdict::Located(column_of(column, k));
                    assert_eq!(locate(&engine, &bad), Ok(want), "k {k} column {column} flip {flip:#x}");
                    // A second byte of the same column, whatever its flip, changes nothing.
                    bad[column][(usize::from(flip) + 4) % 9] ^= flip.wrapping_mul(29) | 1;
                    assert_eq!(locate(&engine, &bad), Ok(want));
                }
            }
        }
    }
}

#[test]
fn s8_two_wrong_columns_at_different_bytes_are_ambiguous() {
    for engine in engines() {
        let k = 6;
        // The second byte lies in another tile.
        let good = stripe(19, k, 4096 + 40);
        for first in 0..k + 2 {
            for second in (0..k + 2).filter(|&second| second != first) {
                let mut bad = good.clone();
                bad[first][7] ^= 0x11;
                bad[second][4096 + 21] ^= 0x80;
                assert_eq!(locate(&engine, &bad), Ok(Verdict::Ambiguous), "{first} and {second}");
            }
        }
    }
}

#[test]
fn s8_two_wrong_columns_at_one_byte_pass_for_a_third_only_where_the_sums_agree() {
    let engine = CpuParity::new();
    let k = 5;
    let good = stripe(20, k, 1);
    // The syndromes of one wrong column, by definition, and which column they belong to.
    let syndromes = |column: usize, e: u8| match column {
        _ if column == k => (e, 0),
        _ if column == k + 1 => (0, e),
        _ => (e, galois_8::mul(galois_8::exp(2, column), e)),
    };
    let mut culprit = std::collections::BTreeMap::new();
    for column in 0..k + 2 {
        for e in 1..=u8::MAX {
            assert_eq!(culprit.insert(syndromes(column, e), column), None, "two columns look alike");
        }
    }
    let (mut taken_for_one, mut ambiguous) = (0, 0);
    for first in 0..k + 2 {
        for second in first + 1..k + 2 {
            for flips in 0..=u16::MAX {
                let [e, f] = flips.to_le_bytes();
                if e == 0 || f == 0 {
                    continue;
                }
                let mut bad = good.clone();
                bad[first][0] ^= e;
                bad[second][0] ^= f;
                let verdict = locate(&engine, &bad).unwrap();
                let (a, b) = (syndromes(first, e), syndromes(second, f));
                let sums = (a.0 ^ b.0, a.1 ^ b.1);
                let third = culprit.get(&sums).copied();
                let want = third.map_or(Verdict::Ambiguous, |i| Verdict::Located(column_of(i, k)));
                assert_eq!(verdict, want, "{first}^{e:#x} {second}^{f:#x}");
                assert_ne!(verdict, Verdict::Clean, "two wrong columns can never cancel");
                match verdict {
                    Verdict::Ambiguous => ambiguous += 1,
                    _ => taken_for_one += 1,
                }
                // Never one of the two guilty ones alone: the other's error would be left over.
                assert!(third.is_none_or(|third| third != first && third != second));
            }
        }
    }
    assert!(taken_for_one > 0 && ambiguous > taken_for_one, "{taken_for_one} of {ambiguous}");
}

#[test]
fn invalid_jobs_are_refused_untouched() {
    let engine = CpuParity::new();
    let columns = stripe(21, 3, 64);
    let encode = || {
        job_of(ParityOp::Encode, &columns, |i, bytes| if i < 3 { input(bytes) } else { output(&[0xcc; 64]) })
    };
    let all_in = |op| job_of(op, &columns, |_, bytes| input(bytes));
    let refused = |what: &str, job: ParityJob| {
        let before: Vec<_> = all_columns(&job).map(column_bytes).collect();
        let (job, verdict) = run(&engine, job);
        assert!(matches!(verdict, Err(ParityError::Invalid(_))), "{what}: {verdict:?}");
        let after: Vec<_> = all_columns(&job).map(column_bytes).collect();
        assert_eq!(before, after, "{what}: touched");
    };
    refused("no bytes", ParityJob { len: 0, ..encode() });
    refused("other length", ParityJob { len: 63, ..encode() });
    refused("no data", ParityJob { data: Vec::new(), ..encode() });
    let many = || (0..254).map(|_| input(&[1; 64])).collect();
    refused("too wide", ParityJob { data: many(), ..encode() });
    refused("absent data", with_data(encode(), 1, Column::Absent));
    refused("output data", with_data(encode(), 1, output(&[0xcc; 64])));
    refused("short data", with_data(encode(), 2, input(&[1; 63])));
    let beyond = |range: Range<u32>| Column::Out(lease(&[GUARD; 100]), range);
    refused("outside its lease", ParityJob { p: beyond(50..114), ..encode() });
    refused("short output", ParityJob { q: beyond(10..73), ..encode() });
    #[allow(clippy::reversed_empty_ranges)]
    refused("backward output", ParityJob { q: beyond(74..10), ..encode() });

    refused("verify an output", ParityJob { p: output(&[1; 64]), ..all_in(ParityOp::Verify) });
    refused("verify nothing", ParityJob { p: Column::Absent, q: Column::Absent, ..all_in(ParityOp::Verify) });
    refused("verify a gap", with_data(all_in(ParityOp::Verify), 0, Column::Absent));
    refused("locate by P alone", ParityJob { q: Column::Absent, ..all_in(ParityOp::Locate) });
    refused("locate an output", ParityJob { q: output(&[1; 64]), ..all_in(ParityOp::Locate) });

    let delta = |index: u8, old: usize, new: usize| ParityJob {
        op: ParityOp::Delta { index: DataIndex(index), old: seg(&vec![1; old]), new: seg(&vec![2; new]) },
        ..delta_job(&columns, 1, &[9; 64], (true, true))
    };
    refused("delta of 253", delta(253, 64, 64));
    refused("delta, short old", delta(1, 63, 64));
    refused("delta, long new", delta(1, 64, 65));
    refused("delta of an input", ParityJob { p: input(&[1; 64]), ..delta(1, 64, 64) });
    refused("delta of a short P", ParityJob { p: beyond(1..64), ..delta(1, 64, 64) });
}

fn with_data(mut job: ParityJob, index: usize, column: Column) -> ParityJob {
    job.data[index] = column;
    job
}

/// All bytes behind a column, also outside its range.
fn column_bytes(column: &Column) -> Vec<u8> {
    match column {
        Column::Absent => Vec::new(),
        Column::In(seg) => seg.bytes().to_vec(),
        Column::Out(lease, _) => lease.bytes().to_vec(),
    }
}

#[test]
fn kernels_are_chosen_by_name_by_measurement_or_in_turn() {
    let names = CpuParity::kernels();
    assert_eq!(names[..2], ["byte", "scalar"]);
    assert_eq!(CpuParity::new().kernel_name(), *names.last().unwrap());
    assert_eq!(CpuParity::default().kernel_name(), CpuParity::new().kernel_name());
    for name in &names {
        assert_eq!(CpuParity::with_kernel(name).unwrap().kernel_name(), *name);
    }
    let unknown = CpuParity::with_kernel("mmx").unwrap_err();
    assert_eq!(unknown, UnknownKernel { name: "mmx".to_owned() });
    let message = unknown.to_string();
    assert!(names.iter().chain([&CYCLE]).all(|name| message.contains(name)), "{message}");

    let cycle = CpuParity::with_kernel(CYCLE).unwrap();
    assert_eq!(cycle.kernel_name(), CYCLE);
    let columns = stripe(22, 4, 50);
    for _ in 0..2 * names.len() {
        expect_recovered(&cycle, &columns, |i| if i < 2 { Is::Wanted } else { Is::Known });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn jobs_of_any_shape(
        k in prop_oneof![8 => 1_usize..=24, 1 => Just(64), 1 => Just(253)],
        len in prop_oneof![1_usize..600, 3900_usize..4300, 8000_usize..8400],
        seed: u64, picks: (prop::sample::Index, prop::sample::Index), kinds: (bool, bool),
    ) {
        let engine = CpuParity::with_kernel(CYCLE).unwrap();
        let columns = stripe(seed, k, len);
        let (x, y) = (picks.0.index(k + 2), picks.1.index(k + 2));
        let kind = |wanted| if wanted { Is::Wanted } else { Is::Gone };
        for _ in CpuParity::kernels() {
            expect_recovered(&engine, &columns, |i| match i {
                _ if i == x => kind(kinds.0),
                _ if i == y => kind(kinds.1),
                _ => Is::Known,
            });
            let new = bytes(seed ^ 0xabc, len);
            let want = changed(&columns, x % k, &new);
            let (job, _) = run(&engine, delta_job(&columns, x % k, &new, (true, true)));
            prop_assert_eq!(content(&job.p), &want[k][..]);
            prop_assert_eq!(content(&job.q), &want[k + 1][..]);
            let verdict = run(&engine, job_of(ParityOp::Verify, &want, |_, bytes| input(bytes))).1;
            prop_assert_eq!(verdict, Ok(Verdict::Clean));
            let mut bad = want;
            bad[y][len / 3] ^= 0x20;
            prop_assert_eq!(locate(&engine, &bad), Ok(Verdict::Located(column_of(y, k))));
        }
    }
}
