//! The reactor: wake-ups across threads, timers, tasks, and the end of a lane.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use nvme_backend::{LaneConfig, OpenDrive, OpenOptions, Remote, block_on_lane, start_lane};
use parking_lot::Mutex;
use raid_core::ports::{Drive, Pool};
use raid_core::units::{DriveOffset, LaneId};

fn lane_numbered(id: u16) -> LaneConfig {
    LaneConfig { id: LaneId(id), ..LaneConfig::default() }
}

async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn jobs_from_many_threads_all_run_in_the_order_of_their_sender() {
    const SENDERS: usize = 8;
    const JOBS: usize = 12_500;
    let (remote, thread) = start_lane(lane_numbered(1)).unwrap();
    let seen: Arc<Mutex<Vec<Vec<usize>>>> = Arc::new(Mutex::new(vec![Vec::new(); SENDERS]));
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (remote, seen) = (remote.clone(), Arc::clone(&seen));
            scope.spawn(move || {
                for job in 0..JOBS {
                    let seen = Arc::clone(&seen);
                    remote.run(Box::new(move |_| seen.lock()[sender].push(job)));
                    if job % 64 == 0 {
                        // Lets the lane fall asleep now and then, so that waking it is part of the test.
                        std::thread::sleep(Duration::from_micros(20));
                    }
                }
            });
        }
    });
    let (done, finished) = std::sync::mpsc::channel();
    remote.run(Box::new(move |_| done.send(()).unwrap()));
    finished.recv_timeout(Duration::from_secs(60)).expect("the lane runs what it was sent");
    for jobs in seen.lock().iter() {
        assert!(jobs.iter().copied().eq(0..JOBS));
    }
    remote.stop();
    thread.join().unwrap();
    assert!(remote.has_ended());
}

#[test]
fn one_wake_up_at_a_time_of_a_sleeping_lane_is_never_lost() {
    const ROUNDS: usize = 100_000;
    let (remote, thread) = start_lane(lane_numbered(2)).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let this = std::thread::current();
    for round in 0..ROUNDS {
        let (counter, this) = (Arc::clone(&count), this.clone());
        remote.run(Box::new(move |_| {
            counter.fetch_add(1, Ordering::Release);
            this.unpark();
        }));
        let began = Instant::now();
        while count.load(Ordering::Acquire) <= round {
            std::thread::park_timeout(Duration::from_secs(1));
            assert!(began.elapsed() < Duration::from_secs(30), "wake-up {round} was lost");
        }
    }
    remote.stop();
    thread.join().unwrap();
}

/// A cell that a task of one lane waits on and a task of another lane fills.
#[derive(Default)]
struct Baton {
    turn: AtomicUsize,
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl Baton {
    async fn wait_for(&self, turn: usize) {
        poll_fn(|cx| {
            if self.turn.load(Ordering::Acquire) >= turn {
                return Poll::Ready(());
            }
            self.wakers.lock()[turn % 2] = Some(cx.waker().clone());
            if self.turn.load(Ordering::Acquire) >= turn { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn pass(&self, turn: usize) {
        self.turn.store(turn, Ordering::Release);
        if let Some(waker) = self.wakers.lock()[turn % 2].take() {
            waker.wake();
        }
    }
}

#[test]
fn wakers_work_across_lanes() {
    const TURNS: usize = 20_000;
    let lanes = [start_lane(lane_numbered(3)).unwrap(), start_lane(lane_numbered(4)).unwrap()];
    let baton = Arc::new(Baton::default());
    let (done, finished) = std::sync::mpsc::channel();
    for (side, (remote, _)) in lanes.iter().enumerate() {
        let (baton, done) = (Arc::clone(&baton), done.clone());
        remote.run(Box::new(move |lane| {
            lane.spawn(async move {
                let mut turn = side;
                while turn < TURNS {
                    baton.wait_for(turn).await;
                    baton.pass(turn + 1);
                    turn += 2;
                }
                done.send(()).unwrap();
            });
        }));
    }
    for _ in 0..2 {
        finished.recv_timeout(Duration::from_secs(60)).expect("the baton goes round");
    }
    for (remote, thread) in lanes {
        remote.stop();
        thread.join().unwrap();
    }
}

#[test]
fn timers_fire_in_order_and_dropped_ones_do_not() {
    block_on_lane(LaneConfig::default(), async |lane| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let start_ns = lane.now_ns();
        for ms in [30_u64, 10, 20] {
            let (lane, order) = (lane.clone(), Rc::clone(&order));
            lane.clone().spawn(async move {
                lane.sleep_until(start_ns + ms * 1_000_000).await;
                assert!(lane.now_ns() >= start_ns + ms * 1_000_000);
                order.borrow_mut().push(ms);
            });
        }
        let dropped = Box::pin(lane.sleep_until(start_ns + 5_000_000));
        drop(dropped);
        lane.sleep_until(start_ns + 50_000_000).await;
        assert_eq!(*order.borrow(), [10, 20, 30]);
        assert_eq!(lane.tasks(), 0);
    });
}

#[test]
fn an_idle_lane_uses_no_processor_time() {
    let cpu_ns = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
    };
    block_on_lane(LaneConfig::default(), async |lane| {
        lane.sleep_until(lane.now_ns() + 10_000_000).await;
        let before_ns = cpu_ns();
        lane.sleep_until(lane.now_ns() + 300_000_000).await;
        let used_ns = cpu_ns() - before_ns;
        assert!(used_ns < 30_000_000, "{used_ns} ns of processor time in 0.3 s of sleep");
    });
}

#[test]
fn tasks_spawn_tasks_and_yield_fairly() {
    block_on_lane(LaneConfig::default(), async |lane| {
        let steps = Rc::new(RefCell::new(Vec::new()));
        let left = Rc::new(Cell::new(3));
        for task in 0..3 {
            let (steps, left, inner) = (Rc::clone(&steps), Rc::clone(&left), lane.clone());
            lane.spawn(async move {
                for step in 0..4 {
                    steps.borrow_mut().push((step, task));
                    yield_now().await;
                }
                inner.spawn(async move { left.set(left.get() - 1) });
            });
        }
        while left.get() > 0 {
            yield_now().await;
        }
        let steps = steps.borrow();
        assert!(steps.is_sorted(), "{steps:?}");
        assert_eq!(steps.len(), 12);
    });
}

#[test]
fn stopping_a_lane_drops_its_tasks_and_later_jobs() {
    struct Flag(Arc<AtomicUsize>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Release);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (remote, thread) = start_lane(lane_numbered(5)).unwrap();
    let flag = Flag(Arc::clone(&dropped));
    let (started, has_started) = std::sync::mpsc::channel();
    remote.run(Box::new(move |lane| {
        let inner: Remote = lane.remote();
        lane.spawn(async move {
            let _held = (flag, inner);
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        });
    }));
    has_started.recv_timeout(Duration::from_secs(30)).unwrap();
    remote.stop();
    thread.join().unwrap();
    assert_eq!(dropped.load(Ordering::Acquire), 1);
    let late = Flag(Arc::clone(&dropped));
    remote.run(Box::new(move |_| drop(late)));
    assert_eq!(dropped.load(Ordering::Acquire), 2);
}

#[test]
fn a_thread_runs_one_lane_after_another_even_if_a_handle_outlives_its_lane() {
    let outlives = block_on_lane(lane_numbered(6), async |lane| {
        lane.spawn(std::future::pending());
        lane.clone()
    });
    block_on_lane(lane_numbered(7), async |lane| {
        let count = Rc::new(Cell::new(0));
        for _ in 0..10 {
            let count = Rc::clone(&count);
            lane.spawn(async move { count.set(count.get() + 1) });
        }
        // Nothing of the lane that has ended reaches into this one.
        outlives.remote().run(Box::new(|_| panic!("its lane has ended")));
        drop(outlives);
        yield_now().await;
        assert_eq!(count.get(), 10);
    });
}

#[test]
fn a_lane_that_runs_one_future_heeds_no_stop_and_still_sleeps() {
    let cpu_ns = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
    };
    block_on_lane(lane_numbered(8), async |lane| {
        lane.remote().stop();
        let before_ns = cpu_ns();
        lane.sleep_until(lane.now_ns() + 200_000_000).await;
        assert!(cpu_ns() - before_ns < 50_000_000);
    });
}

#[test]
fn more_operations_than_the_ring_has_entries_all_complete() {
    let config = LaneConfig { ring_entries: 8, ..LaneConfig::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    std::fs::write(&path, vec![9; 1 << 20]).unwrap();
    let open = OpenDrive::open(&path, OpenOptions::default()).unwrap();
    block_on_lane(config, async |lane| {
        let drive = open.on_lane(&lane);
        let commands: Vec<_> = (0..2000_u64)
            .map(|i| {
                let lease = lane.arena().try_lease(Pool::Request, &[4096]).unwrap();
                drive.read(DriveOffset(i % 256 * 4096), lease)
            })
            .collect();
        assert_eq!(lane.in_flight(), 2000);
        for command in commands {
            let done = command.await;
            done.result.unwrap();
            assert!(done.buf.unwrap()[0].bytes().iter().all(|&byte| byte == 9));
        }
        assert_eq!(lane.in_flight(), 0);
    });
}
