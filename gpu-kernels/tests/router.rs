//! The real engine and router over a mock device: what the GPU computes is what the CPU computes, whatever goes wrong and
//! whenever, and a device that failed comes back only after its self-test.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{block_on, bytes, check, content, delta, encode, recover, stripe};
use gpu_kernels::mock::{Fault, MockDriver};
use gpu_kernels::{Config, Gpu, GpuState, Mode, Notice, Router, RouterConfig, Routing};
use parking_lot::Mutex;
use raid_core::parity::{CpuParity, ParityJob, ParityOp, Verdict, WrongColumn};
use raid_core::ports::ParityEngine;
use raid_core::units::DataIndex;

/// All the memory a process can have: heap leases lie anywhere.
const ANYWHERE: [(usize, usize); 1] = [(0, 1 << 47)];

struct Bench {
    driver: MockDriver,
    gpu: Arc<Gpu>,
    notices: Arc<Mutex<Vec<Notice>>>,
}

fn quick() -> Config {
    let retry = (Duration::from_millis(1), Duration::from_millis(20));
    Config { deadline: Duration::from_secs(5), retry, checked_after_fault: 3, ..Config::default() }
}

impl Bench {
    fn new(config: Config) -> Self {
        let bench = Self::unsettled(config, MockDriver::new());
        assert_eq!(bench.gpu.settled(Duration::from_secs(30)), GpuState::Ready);
        bench
    }

    fn unsettled(config: Config, driver: MockDriver) -> Self {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&notices);
        let opened = driver.clone();
        let gpu = Gpu::start(
            Box::new(move || opened.open()),
            config,
            ANYWHERE.to_vec(),
            Box::new(move |notice| heard.lock().push(notice)),
        )
        .unwrap();
        Self { driver, gpu, notices }
    }

    /// A router that gives everything to the GPU and checks `every`.
    fn router(&self, every: u32) -> (Router, Arc<Routing>) {
        let config = RouterConfig {
            mode: Mode::Cuda,
            min_bytes: 0,
            whole_check_every: every,
            ..RouterConfig::default()
        };
        let routing = Routing::new(config, Some(Arc::clone(&self.gpu)));
        (Router::new(CpuParity::new(), &routing), routing)
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < end, "not within half a minute: {what}; {:?}", self.notices.lock());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs a job twice, by the router and by the byte loop, and compares everything that comes out.
fn same(router: &Router, make: impl Fn() -> ParityJob) -> Verdict {
    let (ours, verdict) = block_on(router.run(make()));
    let mut right = make();
    let expected = CpuParity::with_kernel("byte").unwrap().run_in_place(&mut right);
    assert_eq!(verdict, expected, "{:?}", ours.op);
    let columns = |job: &ParityJob| job.data.iter().chain([&job.p, &job.q]).map(content).collect::<Vec<_>>();
    assert!(columns(&ours) == columns(&right), "other bytes: {:?}", ours.op);
    verdict.unwrap()
}

/// Every operation on one stripe.
fn everything(router: &Router, seed: u64, k: usize, len: usize) {
    let mut columns = stripe(seed, k, len);
    for wants in [(true, true), (true, false), (false, true)] {
        same(router, || encode(&columns, wants));
    }
    for x in 0..k + 2 {
        same(router, || recover(&columns, &[x]));
        for y in x + 1..k + 2 {
            same(router, || recover(&columns, &[x, y]));
        }
    }
    let new = bytes(seed + 7, len);
    let index = u8::try_from(k - 1).unwrap();
    same(router, || delta(&columns, index, &new, true));
    same(router, || delta(&columns, 0, &new, false));
    assert_eq!(same(router, || check(&columns, ParityOp::Verify)), Verdict::Clean);
    assert_eq!(same(router, || check(&columns, ParityOp::Locate)), Verdict::Clean);
    columns[k - 1][len / 2] ^= 0x20;
    let wrong = Verdict::Located(WrongColumn::Data(DataIndex(index)));
    assert_eq!(same(router, || check(&columns, ParityOp::Locate)), wrong);
    assert_eq!(same(router, || check(&columns, ParityOp::Verify)), Verdict::Mismatch { p: true, q: true });
    columns[k - 1][len / 2] ^= 0x20;
    columns[k + 1][0] ^= 1;
    assert_eq!(same(router, || check(&columns, ParityOp::Locate)), Verdict::Located(WrongColumn::Q));
}

#[test]
fn what_the_gpu_computes_is_what_the_cpu_computes() {
    let bench = Bench::new(quick());
    let (router, routing) = bench.router(0);
    for (seed, k, len) in [(1, 1, 33), (2, 2, 4096), (3, 3, 1), (4, 6, 777), (5, 14, 512)] {
        everything(&router, seed, k, len);
    }
    let stats = bench.gpu.stats();
    let jobs = routing.decisions().gpu.load(Ordering::Relaxed);
    assert_eq!(jobs, stats.jobs.load(Ordering::Relaxed));
    assert!(jobs > 100, "{jobs}: all but the deltas went there");
    assert_eq!(routing.decisions().cpu_again.load(Ordering::Relaxed), 0);
    assert_eq!(bench.notices.lock().as_slice(), [Notice::Ready("mock".into())]);
}

#[test]
fn a_fault_at_every_launch_in_turn_costs_no_byte() {
    for fault in [Fault::Start, Fault::Wait, Fault::Wrong, Fault::Garbage] {
        let bench = Bench::new(quick());
        // Whole checks of everything: a single wrong bit is found for sure.
        let (router, routing) = bench.router(1);
        for turn in 0..20 {
            let opens = bench.driver.opens();
            bench.wait_until("ready", || bench.gpu.is_ready());
            bench.driver.fail_at(bench.driver.launches() + turn % 5, fault);
            everything(&router, turn, 4, 600);
            assert!(bench.driver.has_failed(), "{fault:?} at {turn}");
            bench.wait_until("a fresh context", || bench.driver.opens() > opens);
        }
        assert!(bench.gpu.stats().faults.load(Ordering::Relaxed) >= 20);
        assert!(routing.decisions().gpu.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn rubbish_is_caught_by_a_glance() {
    let bench = Bench::new(quick());
    let (router, _) = bench.router(0);
    let columns = stripe(9, 5, 4096);
    bench.driver.fail_next(Fault::Garbage);
    same(&router, || encode(&columns, (true, true)));
    assert_eq!(bench.gpu.stats().wrong.load(Ordering::Relaxed), 1);
    let is_told = |notice: &Notice| matches!(notice, Notice::Failed(why) if why.contains("wrong result"));
    assert!(bench.notices.lock().iter().any(is_told));
}

#[test]
fn after_a_fault_whole_results_are_checked_for_a_while() {
    let bench = Bench::new(quick());
    let (router, _) = bench.router(0);
    let columns = stripe(9, 5, 4096);
    bench.driver.fail_next(Fault::Wait);
    same(&router, || encode(&columns, (true, true)));
    bench.wait_until("ready again", || bench.gpu.is_ready());
    // A single wrong bit, which a glance at eight of 4096 bytes would most likely miss.
    bench.driver.fail_next(Fault::Wrong);
    same(&router, || encode(&columns, (true, true)));
    assert_eq!(bench.gpu.stats().wrong.load(Ordering::Relaxed), 1);
}

#[test]
fn a_device_that_hangs_is_left_within_its_deadline_and_in_the_end_for_good() {
    let config = Config { deadline: Duration::from_millis(200), ..quick() };
    let bench = Bench::new(config);
    let (router, routing) = bench.router(0);
    let columns = stripe(3, 4, 4096);
    for turn in 0..3 {
        bench.wait_until("ready", || bench.gpu.is_ready());
        bench.driver.fail_next(Fault::Hang);
        let began = Instant::now();
        same(&router, || encode(&columns, (true, true)));
        assert!(began.elapsed() < Duration::from_secs(20), "turn {turn}");
        assert_eq!(routing.decisions().cpu_again.load(Ordering::Relaxed), turn + 1);
    }
    assert!(matches!(bench.gpu.state(), GpuState::Off(_)), "{:?}", bench.gpu.state());
    same(&router, || encode(&columns, (true, true)));
    assert_eq!(routing.decisions().cpu_not_ready.load(Ordering::Relaxed), 1);
    bench.driver.release();
}

#[test]
fn what_cannot_be_opened_or_fails_its_self_test_is_not_used() {
    let driver = MockDriver::new();
    driver.refuse_to_open(2);
    driver.fail_at(3, Fault::Garbage);
    let bench = Bench::unsettled(quick(), driver);
    bench.wait_until("ready", || bench.gpu.is_ready());
    assert_eq!(bench.driver.opens(), 2, "the first context failed its test");
    let heard = bench.notices.lock().clone();
    assert!(matches!(&heard[0], Notice::Failed(why) if why.contains("told not to open")), "{heard:?}");
    let tests = heard.iter().any(|notice| matches!(notice, Notice::Failed(why) if why.contains("self-test")));
    assert!(tests, "{heard:?}");
    assert_eq!(heard.last(), Some(&Notice::Ready("mock".into())));
}

#[test]
fn jobs_of_many_lanes_share_launches() {
    let bench = Bench::new(quick());
    let (_, routing) = bench.router(0);
    let launches = bench.driver.launches();
    std::thread::scope(|scope| {
        for lane in 0..8 {
            let routing = Arc::clone(&routing);
            scope.spawn(move || {
                let router = Router::new(CpuParity::new(), &routing);
                let columns = stripe(lane, 4, 2048);
                for _ in 0..40 {
                    same(&router, || encode(&columns, (true, true)));
                }
            });
        }
    });
    let stats = bench.gpu.stats();
    assert_eq!(stats.jobs.load(Ordering::Relaxed), 320);
    let launches = bench.driver.launches() - launches;
    assert!(launches < 320, "{launches} launches: none was shared");
    assert_eq!(stats.batches.load(Ordering::Relaxed), launches);
}

#[test]
fn five_hundred_faults_under_load_cost_nothing() {
    let config = Config { deadline: Duration::from_millis(500), ..quick() };
    let bench = Bench::new(config);
    let (_, routing) = bench.router(1);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 0..2 {
            let (routing, done) = (Arc::clone(&routing), &done);
            scope.spawn(move || {
                let router = Router::new(CpuParity::new(), &routing);
                let columns = stripe(lane, 5, 1024);
                while !done.load(Ordering::Relaxed) {
                    same(&router, || encode(&columns, (true, true)));
                    same(&router, || recover(&columns, &[0, 3]));
                    same(&router, || check(&columns, ParityOp::Verify));
                }
            });
        }
        for turn in 0..500 {
            bench.wait_until("ready", || bench.gpu.is_ready());
            let fault = [Fault::Start, Fault::Wait, Fault::Wrong, Fault::Garbage][turn % 4];
            bench.driver.fail_next(fault);
            bench.wait_until("the fault", || bench.driver.has_failed());
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(bench.gpu.stats().faults.load(Ordering::Relaxed) > 300, "the rest hit self-tests");
}

#[test]
fn small_jobs_and_updates_never_leave_the_cpu() {
    let bench = Bench::new(quick());
    let routing =
        Routing::new(RouterConfig { mode: Mode::Cuda, ..RouterConfig::default() }, Some(bench.gpu.clone()));
    let router = Router::new(CpuParity::new(), &routing);
    let launches = bench.driver.launches();
    let columns = stripe(1, 4, 4096);
    same(&router, || encode(&columns, (true, true)));
    let wide = stripe(2, 8, 65_536);
    let new = bytes(5, 65_536);
    same(&router, || delta(&wide, 3, &new, true));
    assert_eq!(bench.driver.launches(), launches);
    same(&router, || encode(&wide, (true, true)));
    assert_eq!(bench.driver.launches(), launches + 1, "512 KiB are worth it");
}

#[test]
fn auto_goes_where_it_is_cheaper() {
    let bench = Bench::new(quick());
    let config = RouterConfig { min_bytes: 0, ..RouterConfig::default() };
    let routing = Routing::new(config, Some(bench.gpu.clone()));
    let router = Router::new(CpuParity::new(), &routing);
    let columns = stripe(1, 4, 4096);
    // The mock computes byte by byte: the CPU is always cheaper, and the model has to find that out by itself.
    for _ in 0..200 {
        same(&router, || encode(&columns, (true, true)));
    }
    let decisions = routing.decisions();
    let gpu = decisions.gpu.load(Ordering::Relaxed);
    assert!(gpu < 50, "{gpu} of 200 went to a GPU that is slower, {:?}", routing.costs().numbers());
}
