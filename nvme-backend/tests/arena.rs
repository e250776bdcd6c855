//! The arena: alignment, stagger, no overlap, first come first served, and that everything comes back.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::{on_lane, pattern};
use nvme_backend::{Arena, ArenaConfig};
use proptest::prelude::*;
use raid_core::lease::{Lease, Leases};
use raid_core::ports::Pool;

fn small(stagger_bytes: u32) -> ArenaConfig {
    ArenaConfig {
        request_bytes: 512 << 10,
        scratch_bytes: 256 << 10,
        metadata_bytes: 64 << 10,
        stagger_bytes,
        register: false,
    }
}

fn poll_once<T>(future: &mut Pin<Box<dyn Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn blocks_are_staggered_aligned_inside_their_pool_and_never_overlap() {
    for stagger in [0, 64, 512] {
        let arena = Arena::new(small(stagger)).unwrap();
        for pool in [Pool::Request, Pool::Scratch, Pool::Metadata] {
            for size in [512, 4096, 5000, 16_384, 20_000, 65_536] {
                let mut all = Vec::new();
                while let Some(leases) = arena.try_lease(pool, &[size]) {
                    all.extend(leases);
                }
                let capacity: u32 = if size <= 4096 {
                    4096
                } else if size <= 16_384 {
                    16_384
                } else {
                    65_536
                };
                let count = u64::try_from(all.len()).unwrap();
                assert_eq!(count * u64::from(capacity), arena.bytes_max(pool), "the whole pool can be used");
                assert_eq!(arena.bytes_out(pool), arena.bytes_max(pool));
                let align = if stagger == 0 { 4096 } else { usize::try_from(stagger).unwrap() };
                let mut starts: Vec<usize> = all.iter().map(|lease| lease.as_ptr().addr().get()).collect();
                starts.sort_unstable();
                assert!(starts.iter().all(|start| start.is_multiple_of(align)));
                assert!(
                    starts.windows(2).all(|pair| pair[1] - pair[0] >= usize::try_from(capacity).unwrap())
                );
                let mut phases: Vec<usize> = starts.iter().map(|start| start % 4096).collect();
                phases.sort_unstable();
                phases.dedup();
                if stagger == 512 && pool == Pool::Request {
                    assert_eq!(phases.len(), 8, "{size}: every phase of a page is used");
                }
                drop(all);
                assert_eq!(arena.bytes_out(pool), 0);
            }
        }
    }
}

#[test]
fn waiters_are_served_first_come_first_served_and_nobody_overtakes() {
    let arena = Arena::new(small(512)).unwrap();
    let all = arena.try_lease(Pool::Scratch, &[65_536; 4]).unwrap();
    let mut held: Vec<Lease> = all.into_iter().collect();
    let boxed = |sizes: &[u32]| -> Pin<Box<dyn Future<Output = Leases>>> {
        Box::pin(arena.lease(Pool::Scratch, sizes))
    };
    let mut large = boxed(&[65_536, 65_536]);
    let mut little = boxed(&[4096]);
    let mut last = boxed(&[65_536]);
    assert!(poll_once(&mut large).is_pending() && poll_once(&mut little).is_pending());
    drop(held.pop());
    assert!(poll_once(&mut little).is_pending(), "the little one stands behind the large one");
    assert!(arena.try_lease(Pool::Scratch, &[4096]).is_none(), "nobody jumps the queue");
    drop(held.pop());
    let Poll::Ready(got) = poll_once(&mut large) else { panic!("two blocks are free") };
    assert!(poll_once(&mut little).is_pending());
    drop(got);
    let Poll::Ready(one) = poll_once(&mut little) else { panic!("room for the little one") };
    let Poll::Ready(other) = poll_once(&mut last) else { panic!("and for the last one") };
    drop((one, other, held));
    assert_eq!(arena.bytes_out(Pool::Scratch), 0);
}

#[test]
fn a_waiter_that_gives_up_lets_those_behind_it_go_on() {
    let arena = Arena::new(small(512)).unwrap();
    let mut held: Vec<Lease> = arena.try_lease(Pool::Metadata, &[16_384; 4]).unwrap().into_iter().collect();
    let mut first: Pin<Box<dyn Future<Output = Leases>>> = Box::pin(arena.lease(Pool::Metadata, &[65_536]));
    let mut second: Pin<Box<dyn Future<Output = Leases>>> = Box::pin(arena.lease(Pool::Metadata, &[16_384]));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    drop(held.pop());
    assert!(poll_once(&mut second).is_pending());
    drop(first);
    assert!(poll_once(&mut second).is_ready());
    drop(second);
    // Granted but never polled again: given back when dropped.
    let mut third: Pin<Box<dyn Future<Output = Leases>>> = Box::pin(arena.lease(Pool::Metadata, &[65_536]));
    assert!(poll_once(&mut third).is_pending());
    drop(held);
    drop(third);
    assert_eq!(arena.bytes_out(Pool::Metadata), 0);
    assert!(arena.try_lease(Pool::Metadata, &[65_536]).is_some());
}

#[test]
fn exhaustion_is_back_pressure_across_tasks() {
    on_lane(async |lane| {
        let units = lane.arena().bytes_max(Pool::Request) / 65_536;
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks = units * 3;
        for task in 0..tasks {
            let (inner, order) = (lane.clone(), Rc::clone(&order));
            lane.spawn(async move {
                let leases = inner.arena().lease(Pool::Request, &[65_536]).await;
                order.borrow_mut().push(task);
                inner.sleep_until(inner.now_ns() + 1_000_000).await;
                drop(leases);
            });
        }
        while lane.tasks() > 0 {
            assert!(lane.arena().bytes_out(Pool::Request) <= lane.arena().bytes_max(Pool::Request));
            lane.sleep_until(lane.now_ns() + 500_000).await;
        }
        assert!(order.borrow().iter().copied().eq(0..tasks), "first come, first served");
        assert_eq!(lane.arena().bytes_out(Pool::Request), 0);
    });
}

#[test]
#[should_panic(expected = "give the lane a larger arena")]
fn asking_for_more_than_there_is_panics_instead_of_waiting_for_ever() {
    let arena = Arena::new(small(512)).unwrap();
    drop(arena.lease(Pool::Metadata, &[65_536, 512]));
}

#[test]
fn untouched_memory_costs_nothing() {
    let resident = || -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = resident();
    let config = ArenaConfig { request_bytes: 2 << 30, register: false, ..ArenaConfig::default() };
    let arena = Arena::new(config).unwrap();
    drop(arena.try_lease(Pool::Request, &[65_536]).unwrap());
    assert!(resident() - before.min(resident()) < 256 << 20);
}

proptest! {
    /// Any order of leasing and giving back: contents never mix, and everything comes home.
    #[test]
    fn any_order_of_leasing_and_dropping_keeps_every_block_apart(
        steps in proptest::collection::vec((any::<bool>(), any::<u16>(), 1_u32..=65_536), 1..400)
    ) {
        let arena = Arena::new(small(512)).unwrap();
        let mut held: BTreeMap<u64, Lease> = BTreeMap::new();
        for (number, (give_back, pick, size)) in (0_u64..).zip(steps) {
            let size = match size % 3 { 0 => size % 4096 + 1, 1 => size % 16_384 + 1, _ => size };
            if give_back && !held.is_empty() {
                let key = *held.keys().nth(usize::from(pick) % held.len()).unwrap();
                let lease = held.remove(&key).unwrap();
                prop_assert!(lease.bytes() == pattern(key, lease.bytes().len()));
            } else if let Some(mut leases) = arena.try_lease(Pool::Request, &[size]) {
                let mut lease = leases.remove(0);
                prop_assert_eq!(lease.len(), size);
                let bytes = pattern(number, lease.bytes().len());
                lease.bytes_mut().copy_from_slice(&bytes);
                held.insert(number, lease);
            }
        }
        for (key, lease) in held {
            prop_assert!(lease.bytes() == pattern(key, lease.bytes().len()));
        }
        prop_assert_eq!(arena.bytes_out(Pool::Request), 0);
        // Whatever the pattern of small blocks was, the pool can be carved anew.
        let units = arena.bytes_max(Pool::Request) / 65_536;
        prop_assert!(arena.try_lease(Pool::Request, &vec![65_536; usize::try_from(units).unwrap()]).is_some());
    }
}
