//! Stamped load over an NBD connection, each read checked against the model.
//!
//! One [`Pipeline`] is one connection with up to `depth` requests in flight, run by one thread. Several pipelines may share
//! the model of one disk: the model is told of a request before it is sent and after it is answered, under its lock, so
//! overlapping requests of different connections are judged rightly.

use core::fmt;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::model::{Finding, Flush, Model, Read, Write};
use crate::nbd::{Client, Command, Cookie, Error, flag};
use crate::random::Random;

/// What was done so far; shared with whoever prints it.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes of acknowledged writes.
    pub written_bytes: AtomicU64,
    /// Bytes of acknowledged zeroings and discards.
    pub zeroed_bytes: AtomicU64,
    /// Bytes read and found right.
    pub verified_bytes: AtomicU64,
    /// Requests answered.
    pub requests: AtomicU64,
    /// Flushes acknowledged.
    pub flushes: AtomicU64,
    /// The longest a request took, in nanoseconds.
    pub slowest_ns: AtomicU64,
}

/// Why a load ended early.
#[derive(Debug)]
pub enum Failure {
    /// The connection broke; requests in flight have no answer.
    Connection(Error),
    /// A request was answered with an error.
    Request {
        /// Which request.
        what: String,
        /// The error.
        error: Error,
    },
    /// A read brought what it must not.
    Wrong(Vec<Finding>),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "{error}"),
            Self::Request { what, error } => write!(f, "{what}: {error}"),
            Self::Wrong(findings) => {
                write!(f, "{} wrong blocks", findings.len())?;
                findings.iter().take(8).try_for_each(|finding| write!(f, "; {finding}"))
            }
        }
    }
}

impl std::error::Error for Failure {}

/// One request of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Stamped write, with FUA or not.
    Write {
        /// First byte.
        at: u64,
        /// Length.
        bytes: u64,
        /// Force unit access.
        fua: bool,
    },
    /// Write zeroes.
    Zero {
        /// First byte.
        at: u64,
        /// Length.
        bytes: u64,
    },
    /// Discard.
    Trim {
        /// First byte.
        at: u64,
        /// Length.
        bytes: u64,
    },
    /// Read and check.
    Read {
        /// First byte.
        at: u64,
        /// Length.
        bytes: u64,
    },
    /// Flush.
    Flush,
}

#[derive(Debug)]
enum Waiting {
    Write(Write, bool),
    Zero(Write),
    Read(Read),
    Flush(Flush),
}

/// A random mix of requests.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Seed of all choices.
    pub seed: u64,
    /// Offsets and lengths are multiples of this.
    pub unit_bytes: u64,
    /// Longest request.
    pub length_bytes_max: u64,
    /// Of 100 requests, how many read.
    pub reads: u64,
    /// Of 100 requests, how many zero or discard.
    pub zeroes: u64,
    /// Of 100 requests, how many flush.
    pub flushes: u64,
    /// Of 100 writes, how many carry FUA.
    pub fua: u64,
}

impl Mix {
    /// The requests of this mix on a disk of `size_bytes`, without end.
    pub fn requests(self, size_bytes: u64) -> impl Iterator<Item = Op> {
        let mut random = Random::new(self.seed);
        let units = size_bytes / self.unit_bytes;
        let longest = (self.length_bytes_max / self.unit_bytes).min(units);
        std::iter::repeat_with(move || {
            // Short ones as often as long ones: the exponent is uniform, not the length.
            let power = random.below(u64::from(longest.ilog2()) + 1);
            let length = (1_u64 << power) + random.below(1 << power);
            let length = length.min(longest);
            let at = random.below(units - length + 1) * self.unit_bytes;
            let bytes = length * self.unit_bytes;
            let kind = random.below(100);
            if kind < self.reads {
                Op::Read { at, bytes }
            } else if kind < self.reads + self.zeroes {
                if random.below(2) == 0 { Op::Zero { at, bytes } } else { Op::Trim { at, bytes } }
            } else if kind < self.reads + self.zeroes + self.flushes {
                Op::Flush
            } else {
                Op::Write { at, bytes, fua: random.below(100) < self.fua }
            }
        })
    }
}

/// The whole disk in order, in requests of `bytes` (the last one shorter), made by `op`.
pub fn whole(size_bytes: u64, bytes: u64, op: impl Fn(u64, u64) -> Op) -> impl Iterator<Item = Op> {
    (0..size_bytes.div_ceil(bytes)).map(move |i| op(i * bytes, bytes.min(size_bytes - i * bytes)))
}

/// A connection that keeps up to `depth` requests in flight.
#[derive(Debug)]
pub struct Pipeline<'a> {
    client: &'a mut Client,
    model: &'a Mutex<Model>,
    counters: &'a Counters,
    depth: usize,
    waiting: HashMap<Cookie, (Waiting, Op, Instant)>,
}

impl<'a> Pipeline<'a> {
    /// A pipeline over `client`, which has nothing in flight.
    pub fn new(
        client: &'a mut Client,
        model: &'a Mutex<Model>,
        counters: &'a Counters,
        depth: usize,
    ) -> Self {
        assert!(depth > 0 && client.in_flight() == 0, "a pipeline starts idle");
        Self { client, model, counters, depth, waiting: HashMap::new() }
    }

    /// Runs `ops` until they end or `stop` is set, then waits for all answers. On failure the answers of what is in flight
    /// are lost, and the model keeps those writes as in flight.
    pub fn run(&mut self, ops: impl IntoIterator<Item = Op>, stop: &AtomicBool) -> Result<(), Failure> {
        for op in ops {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            while self.waiting.len() >= self.depth {
                self.reap()?;
            }
            self.submit(op)?;
        }
        while !self.waiting.is_empty() {
            self.reap()?;
        }
        Ok(())
    }

    /// Stamps the whole disk.
    pub fn fill(&mut self, bytes: u64) -> Result<(), Failure> {
        let size_bytes = self.model.lock().expect("not poisoned").size_bytes();
        let ops = whole(size_bytes, bytes, |at, bytes| Op::Write { at, bytes, fua: false });
        self.run(ops.chain([Op::Flush]), &AtomicBool::new(false))
    }

    /// Reads the whole disk and checks it.
    pub fn verify(&mut self, bytes: u64) -> Result<(), Failure> {
        let size_bytes = self.model.lock().expect("not poisoned").size_bytes();
        self.run(whole(size_bytes, bytes, |at, bytes| Op::Read { at, bytes }), &AtomicBool::new(false))
    }

    fn submit(&mut self, op: Op) -> Result<(), Failure> {
        let length = |bytes| u32::try_from(bytes).expect("a request is below 4 GiB");
        let (command, waiting) = {
            let mut model = self.model.lock().expect("not poisoned");
            match op {
                Op::Write { at, bytes, fua } => {
                    let write = model.begin_write(at, bytes);
                    let command = Command::write(at, write.bytes());
                    (if fua { command.with(flag::FUA) } else { command }, Waiting::Write(write, fua))
                }
                Op::Zero { at, bytes } => {
                    (Command::zeroes(at, length(bytes)), Waiting::Zero(model.begin_zero(at, bytes)))
                }
                Op::Trim { at, bytes } => {
                    (Command::trim(at, length(bytes)), Waiting::Zero(model.begin_zero(at, bytes)))
                }
                Op::Read { at, bytes } => {
                    (Command::read(at, length(bytes)), Waiting::Read(model.begin_read(at, bytes)))
                }
                Op::Flush => (Command::flush(), Waiting::Flush(model.begin_flush())),
            }
        };
        let began = Instant::now();
        let cookie = self.client.submit(command).map_err(Failure::Connection)?;
        self.waiting.insert(cookie, (waiting, op, began));
        Ok(())
    }

    fn reap(&mut self) -> Result<(), Failure> {
        let reply = self.client.wait().map_err(Failure::Connection)?;
        let (waiting, op, began) =
            self.waiting.remove(&reply.cookie).expect("the client refuses unknown cookies");
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counters.slowest_ns.fetch_max(took_ns, Ordering::Relaxed);
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut model = self.model.lock().expect("not poisoned");
        let data = match reply.result {
            Ok(data) => data,
            Err(error) => {
                match waiting {
                    Waiting::Write(write, _) | Waiting::Zero(write) => model.failed(&write),
                    Waiting::Read(read) => model.read_failed(read),
                    Waiting::Flush(_) => {}
                }
                return Err(Failure::Request { what: format!("{op:?}"), error });
            }
        };
        match waiting {
            Waiting::Write(write, fua) => {
                self.counters.written_bytes.fetch_add(write.length_bytes, Ordering::Relaxed);
                model.acked(write, fua);
            }
            Waiting::Zero(write) => {
                self.counters.zeroed_bytes.fetch_add(write.length_bytes, Ordering::Relaxed);
                model.acked(write, false);
            }
            Waiting::Flush(flush) => {
                self.counters.flushes.fetch_add(1, Ordering::Relaxed);
                model.flushed(flush);
            }
            Waiting::Read(read) => {
                let bytes = read.length_bytes;
                let mut findings = model.check(read, &data);
                findings.retain(|finding| !finding.is_race());
                if !findings.is_empty() {
                    return Err(Failure::Wrong(findings));
                }
                self.counters.verified_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
