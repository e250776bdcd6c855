//! An exported disk under stamped load: writes through our own NBD client, and what may be read is known.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use stamps::load::{Counters, Failure, Mix, Op, Pipeline, whole};
use stamps::{Finding, Model};

use crate::daemon::Export;

/// Requests in flight on each connection.
const DEPTH: usize = 16;

/// The model of a disk, with the load that writes it.
#[derive(Debug)]
pub struct Stamped {
    model: Mutex<Model>,
    /// What was done.
    pub counters: Counters,
    unit_bytes: u64,
}

impl Stamped {
    /// The model of a blank disk that is read and written in units of `unit_bytes`.
    #[must_use]
    pub fn new(disk: u64, size_bytes: u64, unit_bytes: u64) -> Self {
        let model = Mutex::new(Model::with_unit(disk, size_bytes, unit_bytes));
        Self { model, counters: Counters::default(), unit_bytes }
    }

    /// Writes and flushes the whole disk.
    pub fn fill(&self, export: &Export) {
        let mut client = export.connect();
        let mut pipeline = Pipeline::new(&mut client, &self.model, &self.counters, DEPTH);
        pipeline.fill(1 << 20).unwrap_or_else(|failure| panic!("fill: {failure}"));
    }

    /// Reads and checks the whole disk.
    pub fn verify(&self, export: &Export) {
        self.try_verify(export).unwrap_or_else(|failure| panic!("verify: {failure}"));
    }

    /// Reads and checks the whole disk.
    pub fn try_verify(&self, export: &Export) -> Result<(), Failure> {
        let mut client = export.connect();
        Pipeline::new(&mut client, &self.model, &self.counters, DEPTH).verify(1 << 20)
    }

    /// A random mix of everything, on one connection, until `stop`.
    pub fn load(&self, export: &Export, seed: u64, stop: &AtomicBool) -> Result<(), Failure> {
        let mut client = export.connect();
        let ops = self.mix(seed).requests(export.size_bytes);
        Pipeline::new(&mut client, &self.model, &self.counters, DEPTH).run(ops, stop)
    }

    /// A fixed number of requests of a random mix; must succeed.
    pub fn some(&self, export: &Export, seed: u64, requests: usize) {
        let ops = self.mix(seed).requests(export.size_bytes).take(requests);
        self.run(export, ops).unwrap_or_else(|failure| panic!("load: {failure}"));
    }

    /// Given requests, on one connection.
    pub fn run(&self, export: &Export, ops: impl IntoIterator<Item = Op>) -> Result<(), Failure> {
        let mut client = export.connect();
        Pipeline::new(&mut client, &self.model, &self.counters, DEPTH).run(ops, &AtomicBool::new(false))
    }

    /// Flushes; must succeed.
    pub fn flush(&self, export: &Export) {
        self.run(export, [Op::Flush]).unwrap_or_else(|failure| panic!("flush: {failure}"));
    }

    /// Runs load on `connections` connections while `meanwhile` runs; the load must not see an error.
    pub fn load_while<T>(&self, export: &Export, connections: u64, meanwhile: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let start = |seed| scope.spawn(move || self.load(export, seed, stop));
            let loads: Vec<_> = (1..=connections).map(start).collect();
            // Without it a `meanwhile` that panics would wait for loads that nobody stops.
            let stopper = Stopper(stop);
            let result = meanwhile();
            drop(stopper);
            for load in loads {
                load.join()
                    .expect("the load does not panic")
                    .unwrap_or_else(|failure| panic!("load: {failure}"));
            }
            result
        })
    }

    /// The server died.
    pub fn crash(&self) {
        self.model.lock().expect("not poisoned").crash();
    }

    /// Checks bytes of the disk that came another way than over our client; 0 findings are right.
    pub fn check(&self, at: u64, data: &[u8]) -> Vec<Finding> {
        let mut model = self.model.lock().expect("not poisoned");
        let read = model.begin_read(at, u64::try_from(data.len()).expect("64-bit"));
        model.check(read, data)
    }

    /// Bytes written and acknowledged so far.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.counters.written_bytes.load(Ordering::Relaxed)
    }

    /// Waits until the load has had `more` further requests answered.
    pub fn wait_for_requests(&self, more: u64) {
        let until = self.counters.requests.load(Ordering::Relaxed) + more;
        crate::tool::wait_until("the load goes on", crate::daemon::PATIENCE, || {
            self.counters.requests.load(Ordering::Relaxed) >= until
        });
    }

    /// Reads of the whole disk in requests of `bytes`.
    pub fn reads(&self, size_bytes: u64, bytes: u64) -> impl Iterator<Item = Op> + use<> {
        whole(size_bytes, bytes, |at, bytes| Op::Read { at, bytes })
    }

    fn mix(&self, seed: u64) -> Mix {
        Mix {
            seed,
            unit_bytes: self.unit_bytes,
            length_bytes_max: 512 << 10,
            reads: 40,
            zeroes: 4,
            flushes: 2,
            fua: 5,
        }
    }
}

struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
