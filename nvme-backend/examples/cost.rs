//! What the reactor and its drives cost, in nanoseconds of processor time: `cargo run --release --example cost [FOLDER]`
//! (FOLDER on tmpfs, default /dev/shm). Each line is the median of 9 interleaved samples, with the lowest and highest.
//!
//! Process time, not thread time: tmpfs I/O is done by the ring's kernel workers.
#![allow(unsafe_code)]

use std::future::Future;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Waker};

use io_uring::{IoUring, opcode, types};
use nvme_backend::{Lane, LaneConfig, LaneDrive, OpenDrive, OpenOptions, block_on_lane};
use raid_core::ports::{Drive, Durability, Pool, one_seg};
use raid_core::units::{BlockSize, DriveOffset, u64_of};
use rustix::time::{ClockId, clock_gettime};

const SIZE_BYTES: u64 = 64 << 20;
const SAMPLES: usize = 9;

fn process_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// A place in the drive that looks random.
fn place(i: u64) -> DriveOffset {
    DriveOffset(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE_BYTES / 4096) * 4096)
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("ready at the first poll"),
    }
}

fn memory_reads(lane: &Lane, drive: &LaneDrive, count: u64) {
    let mut leases = lane.arena().try_lease(Pool::Request, &[4096]).unwrap();
    for i in 0..count {
        let done = now(drive.read(place(i), leases));
        done.result.unwrap();
        leases = done.buf.unwrap();
    }
}

fn memory_writes(lane: &Lane, drive: &LaneDrive, count: u64) {
    let seg = lane.arena().try_lease(Pool::Request, &[4096]).unwrap().remove(0).share();
    for i in 0..count {
        now(drive.write(place(i), one_seg(seg.clone()), Durability::Cached)).unwrap();
    }
}

fn leases(lane: &Lane, sizes: &[u32], count: u64) {
    for _ in 0..count {
        drop(lane.arena().try_lease(Pool::Request, sizes).unwrap());
    }
}

/// `depth` tasks of the lane that each read or write one block after the other.
async fn ring_io(lane: &Lane, drive: &LaneDrive, depth: u64, count: u64, is_write: bool) {
    let left = Rc::new(std::cell::Cell::new(depth));
    let waiter = Rc::new(std::cell::Cell::new(None::<Waker>));
    for task in 0..depth {
        let (lane_, drive, left, waiter) =
            (lane.clone(), drive.clone(), Rc::clone(&left), Rc::clone(&waiter));
        lane.spawn(async move {
            let mut leases = lane_.arena().try_lease(Pool::Request, &[4096]).unwrap();
            for i in 0..count / depth {
                let at = place(task * 1_000_003 + i);
                if is_write {
                    let seg = leases.remove(0).share();
                    drive.write(at, one_seg(seg.clone()), Durability::Cached).await.unwrap();
                    leases.push(seg.into_lease().expect("the drive let go of it"));
                } else {
                    let done = drive.read(at, leases).await;
                    done.result.unwrap();
                    leases = done.buf.unwrap();
                }
            }
            left.set(left.get() - 1);
            if let (0, Some(waker)) = (left.get(), waiter.take()) {
                waker.wake();
            }
        });
    }
    // No timer: one that is near makes each sleep of the lane set the processor's timer.
    std::future::poll_fn(|cx| {
        waiter.set(Some(cx.waker().clone()));
        if left.get() == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

async fn tasks(lane: &Lane, count: u64) {
    let done = Rc::new(std::cell::Cell::new(0));
    for _ in 0..count / 100 {
        for _ in 0..100 {
            let done = Rc::clone(&done);
            lane.spawn(async move { done.set(done.get() + 1) });
        }
        yield_now().await;
    }
    while done.get() < count / 100 * 100 {
        yield_now().await;
    }
}

async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

async fn yields(count: u64) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// The same reads in a plain loop over an io_uring, nothing else: the floor.
fn plain_loop(path: &Path, depth: u64, count: u64, is_write: bool) {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(256)
        .unwrap();
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut buffers = vec![vec![0_u8; 4096]; usize::try_from(depth).unwrap()];
    let fd = types::Fd(file.as_raw_fd());
    let mut entry = |buffer: u64, i: u64| {
        let memory = buffers[usize::try_from(buffer).unwrap()].as_mut_ptr();
        let at = place(buffer * 1_000_003 + i).0;
        if is_write {
            opcode::Write::new(fd, memory, 4096).offset(at).build().user_data(buffer)
        } else {
            opcode::Read::new(fd, memory, 4096).offset(at).build().user_data(buffer)
        }
    };
    let (mut started, mut ended) = (0, 0);
    while started < depth {
        // SAFETY: the buffers outlive the ring's operations, all of which are waited for below.
        unsafe { ring.submission().push(&entry(started, 0)).unwrap() };
        started += 1;
    }
    while ended < count {
        ring.submit_and_wait(1).unwrap();
        let done: Vec<u64> = ring
            .completion()
            .map(|completion| {
                assert_eq!(completion.result(), 4096);
                completion.user_data()
            })
            .collect();
        ended += u64_of(done.len());
        for buffer in done {
            if started < count {
                // SAFETY: as above; this buffer's operation has just completed.
                unsafe { ring.submission().push(&entry(buffer, started)).unwrap() };
                started += 1;
            }
        }
    }
}

struct Line {
    name: &'static str,
    samples: Vec<f64>,
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss)]
fn per_op(ns: u64, count: u64) -> f64 {
    ns as f64 / count as f64
}

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".to_owned());
    let file = tempfile::NamedTempFile::new_in(folder).expect("a folder to put a file in");
    file.as_file().set_len(SIZE_BYTES).unwrap();
    for block in 0..SIZE_BYTES / (1 << 20) {
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), &vec![7; 1 << 20], block << 20).unwrap();
    }
    let path = file.path().to_owned();
    let mut lines: Vec<Line> = Vec::new();
    for _ in 0..SAMPLES {
        let mut number = 0;
        let mut record = |name, ns, count| {
            if lines.len() == number {
                lines.push(Line { name, samples: Vec::new() });
            }
            lines[number].samples.push(per_op(ns, count));
            number += 1;
        };
        block_on_lane(LaneConfig::default(), async |lane| {
            let null = OpenDrive::null(SIZE_BYTES, BlockSize::B4096).on_lane(&lane);
            let ram = OpenDrive::ram(SIZE_BYTES, BlockSize::B4096).on_lane(&lane);
            memory_writes(&lane, &ram, 50_000);
            let options = OpenOptions { direct: false, ..OpenOptions::default() };
            let tmpfs = OpenDrive::open(&path, options).unwrap().on_lane(&lane);
            macro_rules! measure {
                ($name:literal, $count:expr, $what:expr) => {{
                    let before = process_ns();
                    $what;
                    record($name, process_ns() - before, $count);
                }};
            }
            measure!("null drive, 4K read", 1_000_000, memory_reads(&lane, &null, 1_000_000));
            measure!("null drive, 4K write", 1_000_000, memory_writes(&lane, &null, 1_000_000));
            measure!("RAM drive, 4K read", 200_000, memory_reads(&lane, &ram, 200_000));
            measure!("RAM drive, 4K write", 200_000, memory_writes(&lane, &ram, 200_000));
            measure!("lease and return, 1 x 4K", 1_000_000, leases(&lane, &[4096], 1_000_000));
            measure!("lease and return, 6 x 64K", 200_000, leases(&lane, &[65_536; 6], 200_000));
            measure!("spawn, run and end a task", 200_000, tasks(&lane, 200_000).await);
            measure!("yield: wake, loop round, poll", 200_000, yields(200_000).await);
            measure!("tmpfs 4K read QD1, lane", 50_000, ring_io(&lane, &tmpfs, 1, 50_000, false).await);
            measure!("tmpfs 4K read QD1, plain ring", 50_000, plain_loop(&path, 1, 50_000, false));
            measure!("tmpfs 4K read QD32, lane", 50_016, ring_io(&lane, &tmpfs, 32, 50_016, false).await);
            measure!("tmpfs 4K read QD32, plain ring", 50_016, plain_loop(&path, 32, 50_016, false));
            measure!("tmpfs 4K write QD32, lane", 50_016, ring_io(&lane, &tmpfs, 32, 50_016, true).await);
            measure!("tmpfs 4K write QD32, plain ring", 50_016, plain_loop(&path, 32, 50_016, true));
        });
    }
    for Line { name, mut samples } in lines {
        samples.sort_by(f64::total_cmp);
        println!(
            "{name:<34} {:>8.1} ns  ({:.1} to {:.1})",
            samples[SAMPLES / 2],
            samples[0],
            samples[SAMPLES - 1]
        );
    }
}
