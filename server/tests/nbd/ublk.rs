//! A tag's task against a script in the kernel's place: what each request does to the disk and how it is answered, and
//! what happens to it when the device is stopped or left.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::common::Gate;
use super::common::memory::{Change, MemoryDisk};
use nvme_backend::ublk::{Request, RequestOp};
use raid_core::lease::Lease;
use raid_core::ports::{Durability, IoKind};
use raid_core::units::{usize_of, usize_of_u32};
use server::ublk::serve::{Door, Served, serve_tag};
use sim::{Executor, SimEnv};

const MIB: u64 = 1 << 20;
const EIO: i32 = -5;
const EPERM: i32 = -1;
const EINVAL: i32 = -22;
const EOPNOTSUPP: i32 = -95;

struct Kernel {
    /// Requests and what writes bring.
    script: RefCell<VecDeque<(Request, Vec<u8>)>>,
    /// Of the request that is being served.
    data: RefCell<Vec<u8>>,
    results: RefCell<Vec<i32>>,
    read: RefCell<Vec<Vec<u8>>>,
    /// While shut, nothing comes after the script.
    stopped: Gate,
}

#[derive(Clone)]
struct Script(Rc<Kernel>);

impl Script {
    fn new(script: impl IntoIterator<Item = (Request, Vec<u8>)>) -> Self {
        let stopped = Gate::default();
        stopped.open();
        Self(Rc::new(Kernel {
            script: RefCell::new(script.into_iter().collect()),
            data: RefCell::default(),
            results: RefCell::default(),
            read: RefCell::default(),
            stopped,
        }))
    }

    async fn next(&self) -> io::Result<Request> {
        let next = self.0.script.borrow_mut().pop_front();
        match next {
            Some((request, data)) => {
                let len = if request.op == RequestOp::Read { usize_of(request.len) } else { 0 };
                *self.0.data.borrow_mut() = if len > 0 { vec![0xEE; len] } else { data };
                Ok(request)
            }
            None => {
                self.0.stopped.passed().await;
                Err(io::Error::from_raw_os_error(19))
            }
        }
    }
}

impl Door for Script {
    async fn fetch(&self, _tag: u16) -> io::Result<Request> {
        self.next().await
    }

    async fn commit(&self, _tag: u16, result: i32) -> io::Result<Request> {
        self.0.results.borrow_mut().push(result);
        let data = self.0.data.take();
        self.0.read.borrow_mut().push(data);
        self.next().await
    }

    fn copy_in(&self, _tag: u16, at: u32, into: &mut [Lease]) -> io::Result<()> {
        let mut data = self.0.data.borrow_mut();
        let mut next = usize_of_u32(at);
        for lease in into {
            let len = usize_of_u32(lease.len());
            lease.bytes_mut().copy_from_slice(&data[next..next + len]);
            // Whoever wrote may change its buffer at once: nothing looks at it twice (SAFETY S2).
            data[next..next + len].fill(0xDD);
            next += len;
        }
        Ok(())
    }

    fn copy_out(&self, _tag: u16, at: u32, from: &[Lease]) -> io::Result<()> {
        let mut next = usize_of_u32(at);
        for lease in from {
            let len = usize_of_u32(lease.len());
            self.0.data.borrow_mut()[next..next + len].copy_from_slice(lease.bytes());
            next += len;
        }
        Ok(())
    }
}

fn request(op: RequestOp, at: u64, len: u64) -> Request {
    Request { op, at, len, is_fua: false, keeps_space: false }
}

fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|n| seed ^ (n / 512).to_le_bytes()[0] ^ (n % 251).to_le_bytes()[0]).collect()
}

/// Serves the script to its end; returns the answers and what reads got.
fn served(disk: MemoryDisk, executor: &Executor, script: &Script) -> (Vec<i32>, Vec<Vec<u8>>) {
    let served = Arc::new(Served::default());
    let place = served.enter();
    let (door, all) = (script.clone(), Arc::clone(&served));
    executor.block_on(async move {
        serve_tag(place, door, 7, move || Some(disk.clone())).await;
        all.gone().await;
    });
    (script.0.results.take(), script.0.read.take())
}

fn world(seed: u64) -> (Executor, MemoryDisk) {
    let executor = Executor::new(seed);
    let disk = MemoryDisk::new(SimEnv::new(&executor), 64 * MIB);
    (executor, disk)
}

#[test]
fn what_is_written_is_read_in_every_size() {
    let (executor, disk) = world(1);
    let sizes = [512, 4096, 65_536, MIB, 3 * MIB + 512];
    let mut script = Vec::new();
    let mut at = 512;
    for (seed, len) in (1..).zip(sizes) {
        script.push((request(RequestOp::Write, at, len), pattern(len, seed)));
        script.push((request(RequestOp::Read, at, len), Vec::new()));
        at += len;
    }
    let (results, read) = served(disk, &executor, &Script::new(script));
    for (index, (seed, len)) in (1..).zip(sizes).enumerate() {
        let bytes = i32::try_from(len).unwrap();
        assert_eq!(results[2 * index..2 * index + 2], [bytes, bytes]);
        assert!(read[2 * index + 1] == pattern(len, seed), "{len}");
    }
}

#[test]
fn flush_fua_discard_and_zeroes_are_what_they_say() {
    let (executor, disk) = world(2);
    let fua = Request { is_fua: true, ..request(RequestOp::Write, 0, 512) };
    let keep = Request { keeps_space: true, ..request(RequestOp::WriteZeroes, 4096, 4096) };
    let flush = Request { at: u64::MAX, ..request(RequestOp::Flush, 0, 0) };
    let script = Script::new([
        (fua, pattern(512, 1)),
        (request(RequestOp::Write, 4096, 4096), pattern(4096, 2)),
        (keep, Vec::new()),
        (request(RequestOp::Discard, 8192, MIB), Vec::new()),
        (flush, Vec::new()),
    ]);
    let (results, _) = served(disk.clone(), &executor, &script);
    assert_eq!(results, [512, 4096, 0, 0, 0]);
    assert_eq!(
        *disk.0.changes.borrow(),
        [
            Change::Write(0..512, Durability::Fua),
            Change::Write(4096..8192, Durability::Cached),
            Change::Zero(4096..8192, false, Durability::Cached),
            Change::Zero(8192..8192 + MIB, true, Durability::Cached),
        ]
    );
    assert_eq!(disk.0.flushes.get(), 1);
    assert!(disk.0.durable.borrow().vec(4096, 4096).iter().all(|&byte| byte == 0));
}

#[test]
fn errors_are_answered_and_the_tag_goes_on() {
    let (executor, disk) = world(3);
    *disk.0.broken.borrow_mut() = Some((MIB..MIB + 512, IoKind::BeyondTolerance));
    let write = |at, len| (request(RequestOp::Write, at, len), pattern(len, 5));
    let script = Script::new([
        (request(RequestOp::Read, MIB, 4096), Vec::new()),
        write(MIB, 512),
        write(64 * MIB, 512),
        (request(RequestOp::Read, 64 * MIB - 512, 1024), Vec::new()),
        (request(RequestOp::Unknown(15), 0, 512), Vec::new()),
        write(100, 512),
        write(0, 512),
    ]);
    let (results, _) = served(disk.clone(), &executor, &script);
    assert_eq!(results, [EIO, EIO, EIO, EIO, EOPNOTSUPP, EINVAL, 512]);
    disk.0.is_read_only.set(true);
    let script = Script::new([write(0, 512), (request(RequestOp::Read, 0, 512), Vec::new())]);
    assert_eq!(served(disk, &executor, &script).0, [EPERM, 512]);
}

#[test]
fn m8_whoever_leaves_waits_for_what_was_begun_and_begins_no_more() {
    let (executor, disk) = world(4);
    disk.0.changing.shut();
    let script = Script::new([
        (request(RequestOp::Write, 0, 512), pattern(512, 1)),
        (request(RequestOp::Write, 512, 512), pattern(512, 2)),
    ]);
    let served = Arc::new(Served::default());
    let (place, watched) = (served.enter(), Arc::clone(&served));
    let (door, export) = (script.clone(), disk.clone());
    executor.spawn(serve_tag(place, door, 0, move || Some(export.clone())));
    let (gate, sleeper, answered) = (disk.0.changing.clone(), SimEnv::new(&executor), script.clone());
    executor.block_on(async move {
        while answered.0.script.borrow().len() == 2 {
            sleeper.executor().sleep_until(sleeper.executor().now_ns() + 1000).await;
        }
        let open = gate.clone();
        let opener = sleeper.clone();
        sleeper.executor().spawn(async move {
            opener.executor().sleep_until(opener.executor().now_ns() + 1_000_000).await;
            open.open();
        });
        watched.leave().await;
        assert!(gate.passed_now(), "left before the write that was begun had ended");
        assert_eq!(*answered.0.results.borrow(), [512]);
        // The second request was fetched and is the next daemon's.
        watched.gone().await;
        assert_eq!(*answered.0.results.borrow(), [512]);
    });
    assert_eq!(*disk.0.changes.borrow(), [Change::Write(0..512, Durability::Cached)]);
}
