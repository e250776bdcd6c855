//! Step 6, **log**: write-intent bits, durable on all members before the first commit (SAFETY S4).
//!
//! The bits live in Linux md's internal bitmap (version 4): a 256-byte header, then one bit per `chunk_bytes` of the sync
//! basis, little-endian in their bytes. The basis is the member's data area on RAID 1, 5 and 6 and the **array** on RAID
//! 10. Writers that need bits at the same time share one round of page writes; a bit stays set for some ticks after its
//! last write, so that a busy region costs nothing.
//!
//! Invariants: `durable` is a part of `set`; a bit with writes in flight is in `set`; page writes never overlap (`turn`),
//! so what lies on the members is always the image of one moment; a bit is cleared only when the group is complete, no
//! write is in flight in its chunk, its stripes are in sync, and every member was flushed after its last commit.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Group;
use super::lane::{Entered, LaneView};
use crate::geometry::{Geometry, Level};
use crate::ports::{Drive, Durability, Env, IoError, Pool, one_seg};
use crate::sync::TurnLock;
use crate::units::{DriveOffset, Slot, u32_of, u64_of, usize_of};

/// Bytes of md's bitmap superblock in front of the bits.
pub const INTENT_HEADER_BYTES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
/// Ticks a bit stays set after the last write in its chunk.
const LINGER_TICKS: u8 = 5;

/// The write-intent bitmap a group starts from.
pub struct IntentConfig {
    /// Bytes of the sync basis that one bit stands for: of the member's data area on RAID 1, 5 and 6, of the array on
    /// RAID 10.
    pub chunk_bytes: u64,
    /// Number of bits.
    pub bits: u64,
    /// The bits that are set on the members now.
    pub dirty_bits: Vec<u64>,
    /// The first 256 bytes of the bitmap area (md's bitmap superblock), kept as they are.
    pub header: Vec<u8>,
}

struct State {
    in_flight: Vec<u32>,
    /// Tick of the last end of a write, per bit.
    idle_tick: Vec<u8>,
    set: Vec<u64>,
    durable: Vec<u64>,
    tick: u8,
    /// Whether all members of the view carry the dirty mark.
    phase: Phase,
    /// Writes that may commit: those that have met [`Phase::Dirty`].
    armed: u32,
    /// Writes that have begun and wait to be armed.
    waiting: u32,
    /// Tick of the last end of an armed write.
    armed_tick: u8,
    /// A write ended somewhere between its commit and its settling: no stripe can be vouched for any more.
    is_spoiled: bool,
}

/// How far the quiet mark is (`quiet.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// No member of the view carries the mark; writes commit.
    Dirty,
    /// Members are being flushed, or the mark is being written.
    Quieting,
    /// Members carry it, or may.
    Quiet,
}

impl State {
    /// Whether no write is in flight in the bit's chunk, and none was for `linger` ticks.
    fn is_quiet(&self, bit: u64, linger: u8) -> bool {
        let i = usize_of(bit);
        self.in_flight[i] == 0 && self.tick.wrapping_sub(self.idle_tick[i]) >= linger
    }

    /// Lets one more write commit, if the members are marked dirty.
    fn arm(&mut self) -> bool {
        let is_dirty = self.phase == Phase::Dirty;
        self.armed += u32::from(is_dirty);
        is_dirty
    }

    fn get(words: &[u64], bit: u64) -> bool {
        words[usize_of(bit / 64)] & (1 << (bit % 64)) != 0
    }

    fn put(words: &mut [u64], bit: u64, value: bool) {
        let word = &mut words[usize_of(bit / 64)];
        if value {
            *word |= 1 << (bit % 64);
        } else {
            *word &= !(1 << (bit % 64));
        }
    }
}

/// The intent bits of a group.
pub(crate) struct Intents {
    chunk_bytes: u64,
    bits: u64,
    header: Vec<u8>,
    state: Mutex<State>,
    /// Whose page writes are under way.
    turn: TurnLock,
    /// Whose quiet or dirty mark is under way.
    pub(super) marking: TurnLock,
    /// Page writes so far, for tests of batching.
    rounds: AtomicU64,
}

impl Intents {
    /// Bits as they lie on the members; `is_quiet` says whether the members carry the quiet mark.
    pub(super) fn new(config: IntentConfig, is_quiet: bool) -> Self {
        let words = usize_of(config.bits.div_ceil(64));
        let mut set = vec![0; words];
        for &bit in config.dirty_bits.iter().filter(|&&bit| bit < config.bits) {
            State::put(&mut set, bit, true);
        }
        let bits = usize_of(config.bits);
        let state = State {
            in_flight: vec![0; bits],
            idle_tick: vec![0; bits],
            durable: set.clone(),
            set,
            tick: 0,
            phase: if is_quiet { Phase::Quiet } else { Phase::Dirty },
            armed: 0,
            waiting: 0,
            armed_tick: 0,
            is_spoiled: false,
        };
        Self {
            chunk_bytes: config.chunk_bytes,
            bits: config.bits,
            header: config.header,
            state: Mutex::new(state),
            turn: TurnLock::default(),
            marking: TurnLock::default(),
            rounds: AtomicU64::new(0),
        }
    }

    pub(super) fn set_count(&self) -> u64 {
        self.state.lock().set.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Bytes of the sync basis per stripe.
    fn basis(geometry: &Geometry) -> u64 {
        match geometry.level() {
            Level::Raid10 => geometry.stripe_data_bytes(),
            _ => u64::from(geometry.chunk_bytes()),
        }
    }

    /// The bits that stand for some stripes.
    fn bits_of(&self, geometry: &Geometry, stripes: &Range<u64>) -> Range<u64> {
        let basis = Self::basis(geometry);
        let end = (stripes.end * basis).div_ceil(self.chunk_bytes).min(self.bits);
        (stripes.start * basis / self.chunk_bytes).min(end)..end
    }

    /// The stripes that a bit stands for, in part or whole.
    fn stripes_of(&self, geometry: &Geometry, bit: u64) -> Range<u64> {
        let basis = Self::basis(geometry);
        bit * self.chunk_bytes / basis..((bit + 1) * self.chunk_bytes).div_ceil(basis).min(geometry.stripes())
    }

    /// The next stripes from `from` on that a set bit covers: what a member that came back lacks (SAFETY M6).
    pub(super) fn next_set(&self, geometry: &Geometry, from: u64) -> Option<Range<u64>> {
        let first = self.bits_of(geometry, &(from..from + 1)).start;
        let bit = {
            let state = self.state.lock();
            let mut word = usize_of(first / 64);
            let mut mask = u64::MAX << (first % 64);
            loop {
                let bits = state.set.get(word)? & mask;
                if bits != 0 {
                    break u64_of(word) * 64 + u64::from(bits.trailing_zeros());
                }
                (word, mask) = (word + 1, u64::MAX);
            }
        };
        let stripes = self.stripes_of(geometry, bit);
        let run = stripes.start.max(from)..stripes.end;
        (!run.is_empty()).then_some(run)
    }

    /// Counts a write in the stripes until the ticket is dropped.
    pub(super) fn begin(&self, geometry: &Geometry, stripes: &Range<u64>) -> IntentTicket<'_> {
        self.ticket(self.bits_of(geometry, stripes))
    }

    /// Counts an operation that writes to members but leaves the bits as they are: a step of a resync.
    pub(super) fn begin_sweep(&self) -> IntentTicket<'_> {
        self.ticket(0..0)
    }

    fn ticket(&self, bits: Range<u64>) -> IntentTicket<'_> {
        let mut state = self.state.lock();
        for bit in bits.clone() {
            state.in_flight[usize_of(bit)] += 1;
            State::put(&mut state.set, bit, true);
        }
        let is_armed = state.arm();
        state.waiting += u32::from(!is_armed);
        IntentTicket { intents: self, bits, is_armed: Cell::new(is_armed), is_committing: Cell::new(false) }
    }

    /// Enters [`Phase::Quieting`] if nothing has written for `linger` ticks and nothing wants to.
    pub(super) fn start_quieting(&self, linger: u8) -> bool {
        let mut state = self.state.lock();
        let is_idle = state.armed == 0 && state.tick.wrapping_sub(state.armed_tick) >= linger;
        let may = state.phase == Phase::Dirty && is_idle && state.waiting == 0 && !state.is_spoiled;
        if may {
            state.phase = Phase::Quieting;
        }
        may
    }

    /// Whether a write has begun and waits to be armed.
    pub(super) fn has_waiting(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Leaves [`Phase::Quieting`]. With the turn of `marking`.
    pub(super) fn end_quieting(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    fn is_durable(&self, bits: &Range<u64>) -> bool {
        let state = self.state.lock();
        bits.clone().all(|bit| State::get(&state.durable, bit))
    }

    fn page_of(bit: u64) -> u64 {
        (INTENT_HEADER_BYTES + bit / 8) / PAGE_BYTES
    }

    /// Pages with bits that are set but not durable, and every such bit.
    fn pending(&self) -> (SmallVec<[u64; 4]>, Vec<u64>) {
        let state = self.state.lock();
        let mut pages = SmallVec::new();
        let mut bits = Vec::new();
        for (i, (&set, &durable)) in state.set.iter().zip(&state.durable).enumerate() {
            let mut fresh = set & !durable;
            while fresh != 0 {
                let bit = u64_of(i) * 64 + u64::from(fresh.trailing_zeros());
                fresh &= fresh - 1;
                bits.push(bit);
                if pages.last() != Some(&Self::page_of(bit)) {
                    pages.push(Self::page_of(bit));
                }
            }
        }
        (pages, bits)
    }

    /// The image of a page: header and the bits that are set.
    fn fill(&self, page: u64, into: &mut [u8]) {
        let state = self.state.lock();
        into.fill(0);
        for (i, byte) in into.iter_mut().enumerate() {
            let at = page * PAGE_BYTES + u64_of(i);
            if at < INTENT_HEADER_BYTES {
                *byte = self.header.get(usize_of(at)).copied().unwrap_or(0);
            } else if let Some(word) = state.set.get(usize_of((at - INTENT_HEADER_BYTES) / 8)) {
                *byte = word.to_le_bytes()[usize_of((at - INTENT_HEADER_BYTES) % 8)];
            }
        }
    }

    fn mark_durable(&self, bits: &[u64]) {
        let mut state = self.state.lock();
        for &bit in bits {
            State::put(&mut state.durable, bit, true);
        }
    }

    /// Bits that may be cleared once all members are flushed: nothing in flight, quiet for long enough, in sync.
    fn quiet(&self, linger: u8, may_clear: impl Fn(u64) -> bool) -> Vec<u64> {
        let state = self.state.lock();
        let mut quiet = Vec::new();
        for (i, &word) in state.durable.iter().enumerate() {
            let mut rest = word;
            while rest != 0 {
                let bit = u64_of(i) * 64 + u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                if state.is_quiet(bit, linger) && may_clear(bit) {
                    quiet.push(bit);
                }
            }
        }
        quiet
    }

    /// Clears the bits on which no write began meanwhile; returns the pages they lie on.
    fn clear(&self, bits: &[u64], linger: u8) -> SmallVec<[u64; 4]> {
        let mut state = self.state.lock();
        let mut pages: SmallVec<[u64; 4]> = SmallVec::new();
        for &bit in bits {
            if state.is_quiet(bit, linger) {
                State::put(&mut state.set, bit, false);
                State::put(&mut state.durable, bit, false);
                if pages.last() != Some(&Self::page_of(bit)) {
                    pages.push(Self::page_of(bit));
                }
            }
        }
        pages
    }

    fn all_pages(&self) -> Range<u64> {
        0..(INTENT_HEADER_BYTES + self.bits.div_ceil(8)).div_ceil(PAGE_BYTES)
    }
}

/// A write in flight in the chunks of some bits.
pub(super) struct IntentTicket<'a> {
    intents: &'a Intents,
    bits: Range<u64>,
    is_armed: Cell<bool>,
    is_committing: Cell<bool>,
}

impl IntentTicket<'_> {
    /// Arms a write that waits, if the phase is dirty now. With the turn of `marking`.
    pub(super) fn arm(&self) -> bool {
        let mut state = self.intents.state.lock();
        let is_armed = state.arm();
        state.waiting -= u32::from(is_armed);
        self.is_armed.set(is_armed);
        is_armed
    }

    /// All members of the view of this write carry the dirty mark: it and all others may commit. With the turn of
    /// `marking`.
    pub(super) fn arm_as_dirty(&self) {
        self.intents.state.lock().phase = Phase::Dirty;
        self.arm();
    }

    /// The intents this write is counted by.
    pub(super) fn intents(&self) -> &Intents {
        self.intents
    }

    /// Data goes to the members now: unless [`IntentTicket::settle`] follows, its stripes may stay torn.
    fn commits(&self) {
        self.is_committing.set(true);
    }

    /// Every member holds the whole write or is dropped.
    pub(super) fn settle(&self) {
        self.is_committing.set(false);
    }
}

impl Drop for IntentTicket<'_> {
    fn drop(&mut self) {
        let mut state = self.intents.state.lock();
        for bit in self.bits.clone() {
            state.in_flight[usize_of(bit)] -= 1;
            state.idle_tick[usize_of(bit)] = state.tick;
        }
        if self.is_armed.get() {
            state.armed -= 1;
            state.armed_tick = state.tick;
        } else {
            state.waiting -= 1;
        }
        state.is_spoiled |= self.is_committing.get();
    }
}

/// Errors of several members.
pub(super) type SlotErrors = SmallVec<[(Slot, IoError); 2]>;

impl<E: Env> Group<E> {
    /// Makes the intent bits of a write durable on all members of the view, and before that the dirty mark if they are
    /// marked quiet. What follows is the commit.
    pub(super) async fn log(
        &self,
        entered: &Entered<E>,
        ticket: Option<&IntentTicket<'_>>,
    ) -> Result<(), SlotErrors> {
        let Some(ticket) = ticket else { return Ok(()) };
        if !ticket.is_armed.get() {
            Box::pin(self.mark_dirty(entered, ticket)).await?;
        }
        if !ticket.intents.is_durable(&ticket.bits) {
            Box::pin(self.log_pages(entered, ticket)).await?;
        }
        ticket.commits();
        Ok(())
    }

    async fn log_pages(&self, entered: &Entered<E>, ticket: &IntentTicket<'_>) -> Result<(), SlotErrors> {
        let intents = ticket.intents;
        let _turn = intents.turn.take().await;
        // Whoever had the turn before has taken our bits along, most of the time.
        if intents.is_durable(&ticket.bits) {
            return Ok(());
        }
        let (pages, bits) = intents.pending();
        for page in pages {
            let errors = self.write_intent_page(entered, intents, page).await;
            if !errors.is_empty() {
                return Err(errors);
            }
        }
        intents.mark_durable(&bits);
        Ok(())
    }

    /// Writes one page of the bitmap to every member that has one, with FUA.
    async fn write_intent_page(&self, lane: &LaneView<E>, intents: &Intents, page: u64) -> SlotErrors {
        let slots: SmallVec<[Slot; 16]> = lane.slots().filter(|&slot| !lane.is_missing(slot)).collect();
        self.write_intent_page_to(lane, intents, page, &slots).await
    }

    async fn write_intent_page_to(
        &self,
        lane: &LaneView<E>,
        intents: &Intents,
        page: u64,
        slots: &[Slot],
    ) -> SlotErrors {
        intents.rounds.fetch_add(1, Ordering::Relaxed);
        // Metadata is the innermost pool: whoever holds some waits for drives only, so asking under a lock is safe.
        let mut lease = self.0.env.lease(Pool::Metadata, &[u32_of(PAGE_BYTES)]).await.remove(0);
        intents.fill(page, lease.bytes_mut());
        let seg = lease.share();
        let mut errors = SlotErrors::new();
        let mut commands = SmallVec::<[_; 16]>::new();
        for &slot in slots {
            let Some(area) = lane.view().member(slot).layout.bitmap.clone() else { continue };
            let at = area.start + page * PAGE_BYTES;
            let len = area.end.saturating_sub(at).min(PAGE_BYTES);
            match lane.drive(slot) {
                _ if len == 0 => {}
                Ok((drive, _)) => {
                    let part = one_seg(seg.slice(0..u32_of(len)));
                    commands.push((slot, drive.write(DriveOffset(at), part, Durability::Fua)));
                }
                Err(error) => errors.push((slot, error)),
            }
        }
        let copies = self.start_intent_copies(lane, page * PAGE_BYTES, &seg);
        for (slot, command) in commands {
            if let Err(error) = command.await {
                self.count_error(slot);
                errors.push((slot, error));
            }
        }
        for (slot, command) in copies {
            if let Err(error) = command.await {
                self.0.shared.successors.fail(slot, error);
            }
        }
        errors
    }

    /// Writes the whole bitmap to the successors that the view lists; later bits reach them like every member.
    pub(super) async fn copy_intents_to_successors(&self) {
        let Some(intents) = &self.0.shared.intents else { return };
        let _turn = intents.turn.take().await;
        let entered = self.enter();
        for page in intents.all_pages() {
            // Its members: none. A successor that fails is noted as such.
            let _ = self.write_intent_page_to(&entered, intents, page, &[]).await;
        }
    }

    /// Writes the whole bitmap to a member that has just joined; later bits reach it like every other.
    pub(super) async fn copy_intents(&self, slot: Slot) -> Result<(), IoError> {
        let Some(intents) = &self.0.shared.intents else { return Ok(()) };
        let _turn = intents.turn.take().await;
        let entered = self.enter();
        for page in intents.all_pages() {
            if let Some((_, error)) =
                self.write_intent_page_to(&entered, intents, page, &[slot]).await.into_iter().next()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Housekeeping; the server calls it once a second on one lane, and each call is one tick. Clears intent bits of quiet
    /// chunks while the group is complete (SAFETY S4), marks a degraded parity group quiet, seals a new epoch.
    ///
    /// # Errors
    /// A member failed and could not be dropped.
    pub async fn tick(&self) -> Result<(), IoError> {
        if let Some(intents) = &self.0.shared.intents {
            {
                let mut state = intents.state.lock();
                state.tick = state.tick.wrapping_add(1);
            }
            self.clear_intents(LINGER_TICKS).await?;
            self.quiet_down(LINGER_TICKS).await?;
        }
        self.seal().await
    }

    /// Clears the bits that were quiet for `linger` ticks and whose stripes are in sync.
    pub(super) async fn clear_intents(&self, linger: u8) -> Result<(), IoError> {
        let shared = &self.0.shared;
        let Some(intents) = &shared.intents else { return Ok(()) };
        let geometry = shared.geometry();
        let may_clear = |bit| !shared.regions.any_unsynced(intents.stripes_of(geometry, bit));
        let quiet = intents.quiet(linger, may_clear);
        if quiet.is_empty() || !shared.view().is_complete() {
            return Ok(());
        }
        self.flush().await?;
        let _turn = intents.turn.take().await;
        let entered = self.enter();
        if !entered.view().is_complete() {
            return Ok(());
        }
        let mut errors = SlotErrors::new();
        for page in intents.clear(&quiet, linger) {
            errors.extend(self.write_intent_page(&entered, intents, page).await);
        }
        let epoch = entered.view().epoch;
        drop(entered);
        drop(_turn);
        self.fail_all(epoch, errors).await
    }
}
