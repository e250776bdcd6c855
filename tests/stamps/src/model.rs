//! What each block of a disk may hold, given which writes were begun, acknowledged and flushed.
//!
//! The model is told of every request before it is sent and after it is answered, and is asked about every read. It keeps
//! the promises of a block device exactly, neither more nor less:
//!
//! - A read shows, per 512-byte block, an acknowledged write that no later-begun acknowledged write has replaced, or a
//!   write that is still in flight (or failed, and may have happened). Two writes that overlapped in time may have
//!   landed in either order.
//! - After [`Model::crash`] (the server died, power was cut) a block shows the newest flushed write or any write begun
//!   after that one was answered: acknowledged but unflushed writes may be lost, flushed ones never.
//! - Zero writes and discards read as zeroes.
//!
//! Everything is ordered by one counter, the *tick*, raised at each call: `a` happened before `b` only if `a` ended at a
//! lower tick than `b` began.

use core::fmt;
use std::collections::BTreeMap;

use crate::block::{BLOCK_BYTES, BLOCK_LEN, Found, Stamp};

type Tick = u64;

/// A write (or zeroing) that the model knows of and that has no answer yet. Give it back with [`Model::acked`] or
/// [`Model::failed`]; dropped, it stays in flight for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Write {
    /// The write's number, from 1 and unique on the disk.
    pub number: u64,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u64,
    disk: u64,
    zero: bool,
}

/// A flush that was sent and has no answer yet.
#[derive(Debug)]
#[must_use]
pub struct Flush(Tick);

/// A read that was sent and has no answer yet.
#[derive(Debug)]
#[must_use]
pub struct Read {
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u64,
    began: Tick,
}

/// What is wrong with a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Neither a stamp nor zeroes.
    Garbage,
    /// A stamp with bytes changed.
    Corrupt,
    /// Part of one write and part of another.
    Torn {
        /// The writes the pieces come from.
        writes: [u64; 2],
    },
    /// A stamp of another disk.
    OtherDisk {
        /// The disk it says it belongs to.
        disk: u64,
    },
    /// A stamp of another place of this disk.
    Misplaced {
        /// The offset it says it belongs to.
        belongs_at: u64,
    },
    /// An older write than any that may be read.
    Stale {
        /// The write found.
        write: u64,
    },
    /// A write that was never sent to this block.
    NeverSent {
        /// The write found.
        write: u64,
    },
    /// Zeroes where a stamp must be.
    Zeroes,
}

/// One bad block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where the block was read.
    pub offset_bytes: u64,
    /// What is wrong.
    pub fault: Fault,
    /// The write numbers it might have shown; 0 stands for zeroes.
    pub allowed: Vec<u64>,
}

impl Finding {
    /// Whether this is a read that met a write under way: pieces of two writes that could both be read. A drive moves a
    /// block whole, memory (a file on tmpfs) does not, and nobody promises more to a reader that does not wait. Once no
    /// write is under way, a torn block is wrong.
    #[must_use]
    pub fn is_race(&self) -> bool {
        matches!(&self.fault, Fault::Torn { writes } if writes.iter().all(|write| self.allowed.contains(write)))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "offset {}: {:?}, allowed: writes {:?} (0 is zeroes)",
            self.offset_bytes, self.fault, self.allowed
        )
    }
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Not yet.
    InFlight,
    /// Acknowledged at this tick: it happened.
    Acked(Tick),
    /// Failed, or lost with a crash, at this tick: it may have happened.
    Maybe(Tick),
}

impl End {
    const fn tick(self) -> Option<Tick> {
        match self {
            Self::InFlight => None,
            Self::Acked(tick) | Self::Maybe(tick) => Some(tick),
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    write: u64,
    zero: bool,
    began: Tick,
    end: End,
    /// Survives a crash.
    durable: bool,
    /// From this tick on no read that begins may show it.
    hidden_at: Option<Tick>,
}

impl Entry {
    /// The zeroes every disk starts with.
    const FIRST: Self =
        Self { write: 0, zero: true, began: 0, end: End::Acked(0), durable: true, hidden_at: None };

    /// Whether this entry certainly lies over `other`.
    fn replaces(&self, other: &Self) -> bool {
        matches!(self.end, End::Acked(_)) && other.end.tick().is_some_and(|ended| ended < self.began)
    }
}

/// The model of one disk.
#[derive(Debug)]
pub struct Model {
    disk: u64,
    unit_bytes: u64,
    /// One list a unit. Empty: zeroes, never written.
    blocks: Vec<Vec<Entry>>,
    tick: Tick,
    writes: u64,
    /// Acknowledged and not flushed.
    unflushed: Vec<(Tick, Write)>,
    in_flight: BTreeMap<u64, Write>,
    /// Begin ticks of reads without an answer, with their count: entries hidden later than the oldest stay.
    reading: BTreeMap<Tick, u64>,
}

impl Model {
    /// The model of a disk of `size_bytes` that reads as zeroes everywhere. Panics unless whole blocks.
    #[must_use]
    pub fn new(disk: u64, size_bytes: u64) -> Self {
        Self::with_unit(disk, size_bytes, BLOCK_BYTES)
    }

    /// As [`Model::new`], for a disk that is only written and read in units of `unit_bytes`: less memory, the same
    /// strictness (each 512-byte block of a unit is judged).
    #[must_use]
    pub fn with_unit(disk: u64, size_bytes: u64, unit_bytes: u64) -> Self {
        assert!(unit_bytes > 0 && unit_bytes.is_multiple_of(BLOCK_BYTES), "a unit is whole blocks");
        assert!(size_bytes.is_multiple_of(unit_bytes), "a disk is whole units");
        let blocks = usize::try_from(size_bytes / unit_bytes).expect("disk fits in memory");
        Self {
            disk,
            unit_bytes,
            blocks: vec![Vec::new(); blocks],
            tick: 0,
            writes: 0,
            unflushed: Vec::new(),
            in_flight: BTreeMap::new(),
            reading: BTreeMap::new(),
        }
    }

    /// Size of the disk.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        u64::try_from(self.blocks.len()).expect("64-bit") * self.unit_bytes
    }

    fn unit_len(&self) -> usize {
        usize::try_from(self.unit_bytes).expect("64-bit")
    }

    /// A write is about to be sent; [`Write::fill`] makes its bytes.
    pub fn begin_write(&mut self, offset_bytes: u64, length_bytes: u64) -> Write {
        self.begin(offset_bytes, length_bytes, false)
    }

    /// A write-zeroes or discard is about to be sent.
    pub fn begin_zero(&mut self, offset_bytes: u64, length_bytes: u64) -> Write {
        self.begin(offset_bytes, length_bytes, true)
    }

    fn begin(&mut self, offset_bytes: u64, length_bytes: u64, zero: bool) -> Write {
        let began = self.next_tick();
        self.writes += 1;
        let write = Write { number: self.writes, offset_bytes, length_bytes, disk: self.disk, zero };
        for block in self.range(offset_bytes, length_bytes) {
            let entries = &mut self.blocks[block];
            if entries.is_empty() {
                entries.push(Entry::FIRST);
            }
            entries.push(Entry {
                write: write.number,
                zero,
                began,
                end: End::InFlight,
                durable: false,
                hidden_at: None,
            });
        }
        self.in_flight.insert(write.number, write.clone());
        write
    }

    /// The write was acknowledged; `durable` if it was sent with FUA.
    pub fn acked(&mut self, write: Write, durable: bool) {
        let now = self.next_tick();
        self.end(&write, End::Acked(now), durable);
        if !durable {
            self.unflushed.push((now, write));
        }
    }

    /// The write was answered with an error: its blocks are old or new.
    pub fn failed(&mut self, write: &Write) {
        let now = self.next_tick();
        self.end(write, End::Maybe(now), false);
    }

    fn end(&mut self, write: &Write, end: End, durable: bool) {
        assert!(self.in_flight.remove(&write.number).is_some(), "write {} was answered twice", write.number);
        let (now, oldest_read) = (self.tick, self.oldest_read());
        for block in self.range(write.offset_bytes, write.length_bytes) {
            let entries = &mut self.blocks[block];
            let entry =
                entries.iter_mut().find(|e| e.write == write.number).expect("a write in flight is kept");
            entry.end = end;
            entry.durable = durable;
            settle(entries, now, oldest_read);
        }
    }

    /// A flush is about to be sent.
    pub fn begin_flush(&mut self) -> Flush {
        Flush(self.next_tick())
    }

    /// The flush was acknowledged: every write acknowledged before it was sent survives a crash.
    // By value: a flush is answered once.
    #[allow(clippy::needless_pass_by_value)]
    pub fn flushed(&mut self, flush: Flush) {
        let now = self.next_tick();
        let oldest_read = self.oldest_read();
        let (covered, rest) =
            core::mem::take(&mut self.unflushed).into_iter().partition(|(at, _)| *at < flush.0);
        self.unflushed = rest;
        let covered: Vec<(Tick, Write)> = covered;
        for (_, write) in covered {
            for block in self.range(write.offset_bytes, write.length_bytes) {
                let entries = &mut self.blocks[block];
                if let Some(entry) = entries.iter_mut().find(|e| e.write == write.number) {
                    entry.durable = true;
                    settle(entries, now, oldest_read);
                }
            }
        }
    }

    /// The server died or power was cut: what was in flight or acknowledged without a flush is old or new.
    pub fn crash(&mut self) {
        let now = self.next_tick();
        self.reading.clear();
        let lost = core::mem::take(&mut self.unflushed).into_iter().map(|(_, write)| write);
        let mut touched: Vec<Write> = core::mem::take(&mut self.in_flight).into_values().collect();
        touched.extend(lost);
        for write in touched {
            for block in self.range(write.offset_bytes, write.length_bytes) {
                let entries = &mut self.blocks[block];
                for entry in entries.iter_mut() {
                    entry.hidden_at = None;
                    if !entry.durable {
                        entry.end = End::Maybe(entry.end.tick().unwrap_or(now));
                    }
                }
                settle(entries, now, now);
            }
        }
    }

    /// A read is about to be sent.
    pub fn begin_read(&mut self, offset_bytes: u64, length_bytes: u64) -> Read {
        let began = self.next_tick();
        *self.reading.entry(began).or_default() += 1;
        Read { offset_bytes, length_bytes, began }
    }

    /// The read failed; nothing is learnt.
    // By value: a read is answered once.
    #[allow(clippy::needless_pass_by_value)]
    pub fn read_failed(&mut self, read: Read) {
        self.forget(read.began);
    }

    /// The read brought `data`: every block that may not be so, in order. Where nothing is in flight, what was read is
    /// from now on the only thing that may be read: a block that may be old or new must not alternate.
    // By value: a read is answered once.
    #[allow(clippy::needless_pass_by_value)]
    pub fn check(&mut self, read: Read, data: &[u8]) -> Vec<Finding> {
        assert_eq!(
            u64::try_from(data.len()).ok(),
            Some(read.length_bytes),
            "a read brings what was asked for"
        );
        let now = self.next_tick();
        let mut findings = Vec::new();
        let mut at = read.offset_bytes;
        let units = self.range(read.offset_bytes, read.length_bytes);
        for (index, unit) in units.zip(data.chunks_exact(self.unit_len())) {
            self.check_unit(index, at, unit, read.began, now, &mut findings);
            at += self.unit_bytes;
        }
        self.forget(read.began);
        findings
    }

    fn check_unit(
        &mut self,
        index: usize,
        at: u64,
        unit: &[u8],
        began: Tick,
        now: Tick,
        findings: &mut Vec<Finding>,
    ) {
        let (blocks, _) = unit.as_chunks::<BLOCK_LEN>();
        let places = || (at..).step_by(BLOCK_LEN).zip(blocks);
        let disk = self.disk;
        let fits = |e: &Entry, (at, block): (u64, &[u8; BLOCK_LEN])| match Stamp::find(block) {
            Found::Zeroes => e.zero,
            Found::Stamp(stamp) => !e.zero && stamp == Stamp { disk, offset_bytes: at, write: e.write },
            Found::Damaged(_) | Found::Garbage => false,
        };
        let readable = |e: &Entry| e.hidden_at.is_none_or(|hidden| hidden > began);
        let never_written = [Entry::FIRST];
        let written = &self.blocks[index];
        let entries = if written.is_empty() { &never_written[..] } else { written };
        if let Some(only) = entries.iter().position(|e| readable(e) && places().all(|place| fits(e, place))) {
            let settled = |e: &Entry| e.end.tick().is_some_and(|ended| ended < began);
            if entries.iter().all(settled) {
                for (i, entry) in self.blocks[index].iter_mut().enumerate() {
                    // Equal contents (two zeroings) cannot be told apart, so they stay.
                    let same = i == only || places().all(|place| fits(entry, place));
                    if !same && entry.hidden_at.is_none() {
                        entry.hidden_at = Some(now);
                    }
                }
            }
            return;
        }
        for place in places() {
            if !entries.iter().any(|e| readable(e) && fits(e, place)) {
                let allowed =
                    entries.iter().filter(|e| readable(e)).map(|e| if e.zero { 0 } else { e.write });
                let fault = name_fault(disk, entries, place.0, place.1);
                findings.push(Finding { offset_bytes: place.0, fault, allowed: allowed.collect() });
            }
        }
    }

    const fn next_tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    fn oldest_read(&self) -> Tick {
        self.reading.keys().next().copied().unwrap_or(self.tick)
    }

    fn forget(&mut self, began: Tick) {
        if let Some(count) = self.reading.get_mut(&began) {
            *count -= 1;
            if *count == 0 {
                self.reading.remove(&began);
            }
        }
    }

    fn range(&self, offset_bytes: u64, length_bytes: u64) -> core::ops::Range<usize> {
        let end = offset_bytes.checked_add(length_bytes).expect("offset overflow");
        assert!(end <= self.size_bytes(), "{offset_bytes}+{length_bytes} is outside the disk");
        let unit = self.unit_bytes;
        assert!(
            offset_bytes.is_multiple_of(unit) && length_bytes.is_multiple_of(unit),
            "whole units of {unit}"
        );
        let index = |bytes: u64| usize::try_from(bytes / unit).expect("64-bit");
        index(offset_bytes)..index(end)
    }
}

impl Write {
    /// Makes the bytes to send. Panics unless `data` has the write's length, or if it is a zeroing.
    pub fn fill(&self, data: &mut [u8]) {
        assert!(!self.zero, "a zeroing has no bytes");
        assert_eq!(u64::try_from(data.len()).ok(), Some(self.length_bytes), "the whole write");
        let (blocks, rest) = data.as_chunks_mut::<BLOCK_LEN>();
        assert!(rest.is_empty(), "whole blocks");
        let mut stamp = Stamp { disk: self.disk, offset_bytes: self.offset_bytes, write: self.number };
        for block in blocks {
            stamp.fill(block);
            stamp.offset_bytes += BLOCK_BYTES;
        }
    }

    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut data = vec![0; usize::try_from(self.length_bytes).expect("64-bit")];
        self.fill(&mut data);
        data
    }
}

/// Hides what is certainly overwritten and forgets what can be read neither now nor after a crash.
fn settle(entries: &mut Vec<Entry>, now: Tick, oldest_read: Tick) {
    for i in 0..entries.len() {
        if entries[i].hidden_at.is_none() && entries.iter().any(|over| over.replaces(&entries[i])) {
            entries[i].hidden_at = Some(now);
        }
    }
    let lost: Vec<bool> = entries
        .iter()
        .map(|e| {
            let unreadable = e.hidden_at.is_some_and(|hidden| hidden <= oldest_read);
            unreadable && entries.iter().any(|over| over.durable && over.replaces(e))
        })
        .collect();
    let mut lost = lost.into_iter();
    entries.retain(|_| !lost.next().expect("one answer for each entry"));
}

fn name_fault(disk: u64, entries: &[Entry], at: u64, bytes: &[u8; BLOCK_LEN]) -> Fault {
    let found = Stamp::find(bytes);
    match found {
        Found::Zeroes => Fault::Zeroes,
        Found::Stamp(stamp) if stamp.disk != disk => Fault::OtherDisk { disk: stamp.disk },
        Found::Stamp(stamp) if stamp.offset_bytes != at => {
            Fault::Misplaced { belongs_at: stamp.offset_bytes }
        }
        Found::Stamp(stamp) => {
            let newest = entries.iter().map(|e| e.write).max().unwrap_or(0);
            if stamp.write < newest {
                Fault::Stale { write: stamp.write }
            } else {
                Fault::NeverSent { write: stamp.write }
            }
        }
        Found::Damaged(_) | Found::Garbage => torn(disk, entries, at, bytes).unwrap_or(match found {
            Found::Damaged(_) => Fault::Corrupt,
            _ => Fault::Garbage,
        }),
    }
}

/// Whether every word of `bytes` comes from one of two contents the block has had; zeroes are one.
fn torn(disk: u64, entries: &[Entry], at: u64, bytes: &[u8; BLOCK_LEN]) -> Option<Fault> {
    let mut contents = vec![(0, [0; BLOCK_LEN])];
    contents.extend(
        entries
            .iter()
            .filter(|e| !e.zero)
            .map(|e| (e.write, Stamp { disk, offset_bytes: at, write: e.write }.block())),
    );
    for (i, (first, a)) in contents.iter().enumerate() {
        for (second, b) in &contents[i + 1..] {
            let words = (0..BLOCK_LEN).step_by(8).map(|at| at..at + 8);
            if words.into_iter().all(|w| bytes[w.clone()] == a[w.clone()] || bytes[w.clone()] == b[w.clone()])
            {
                return Some(Fault::Torn { writes: [*first, *second] });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
