//! Step 3, **plan**: how each stripe of a write gets its parity, by fewest I/Os. Pure: computed once to know what to
//! lease, and again under the locks.
//!
//! A write is cut into **parts**: column ranges of one stripe in which every data column is modified as a whole or not at
//! all, so that a part is plain arithmetic over whole columns. Per part:
//!
//! | mode | when | reads |
//! |---|---|---|
//! | data only | no parity of the stripe is alive | nothing |
//! | full | every data column is modified | nothing |
//! | reconstruct | every unmodified column is readable, and it is cheaper (no reads of members that sit out, then fewest), or the stripe is not known in sync (S1) | the unmodified |
//! | modify | every modified column and every live parity is readable | those |
//! | recover | lost columns must be solved for first | all that is left |
//!
//! What a scrub found wrong and nobody has put right (`suspicion`) is no source: parity that is made from it, or changed by
//! what it differs from the new data, would make the wrong block the right one. Such a row is written by reconstruct, or by
//! recover without the wrong column; only where neither can be, as if nothing were known.
//!
//! A row that has lost more than its parity can give back takes writes all the same, or a lost block could never be
//! cleared by rewriting it alone (S6): parity that can no longer be known goes onto the bad-block list, durably and before
//! the data is written, so that nothing is ever solved from it; what parity still can follow is kept (modify).
//!
//! Modify keeps whatever the stripe's parity says about columns it does not touch, so it is right with lost unmodified
//! columns. Where the stripe is not known in sync it protects nothing, and is used only when the level has nothing
//! better left: one parity, or two lost columns.

use core::ops::Range;

use smallvec::SmallVec;

use super::gather::ReadFault;
use super::lane::LaneView;
use super::shared::{Shared, is_offline};
use super::stripe::{self, Roles};
use crate::geometry::{Geometry, Role};
use crate::lease::{LEASE_BYTES_MAX, Seg};
use crate::ports::{Env, IoError, IoKind};
use crate::units::{DataIndex, Slot, Stripe};

/// One piece of a write: the bytes of one column range of one data column.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) stripe: Stripe,
    pub(super) index: DataIndex,
    pub(super) column: u32,
    pub(super) seg: Seg,
}

impl Piece {
    pub(super) fn columns(&self) -> Range<u32> {
        self.column..self.column + self.seg.len()
    }

    fn window(&self) -> u32 {
        self.column / LEASE_BYTES_MAX
    }
}

/// How a part gets its parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    DataOnly,
    Full,
    Reconstruct,
    Modify,
    Recover,
}

/// A column range of one stripe in which every data column is modified whole or not at all.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) stripe: Stripe,
    pub(super) columns: Range<u32>,
    pub(super) modified: SmallVec<[(DataIndex, Seg); 2]>,
    pub(super) mode: Mode,
    /// Columns to read, in lease order.
    pub(super) read: Roles,
    /// Lost data columns to solve for, in lease order.
    pub(super) solve: SmallVec<[Role; 2]>,
    /// The parities that are alive and get written.
    pub(super) parity: SmallVec<[Role; 2]>,
    /// The parities that are alive, can no longer be known, and are not on the bad-block list yet.
    pub(super) forsaken: SmallVec<[Role; 2]>,
    /// Whether something it reads is known to be wrong.
    pub(super) reads_wrong: bool,
}

impl Part {
    pub(super) fn len(&self) -> u32 {
        self.columns.end - self.columns.start
    }

    /// How many leases the part takes: what it reads, what it solves for, and its parity unless that is updated in place.
    pub(super) fn leases(&self) -> usize {
        let parity = if self.mode == Mode::Modify { 0 } else { self.parity.len() };
        self.read.len() + self.solve.len() + parity
    }

    /// Whether after the write all columns of the part fit each other, whatever was wrong before.
    pub(super) fn makes_whole(&self) -> bool {
        matches!(self.mode, Mode::Full | Mode::Reconstruct) && !self.reads_wrong
    }

    /// Where the parities lie that have to go onto the bad-block list before this part is written.
    pub(super) fn forsaken_ranges(&self, geometry: &Geometry) -> SmallVec<[(Slot, Range<u64>); 2]> {
        let place = |&role: &Role| {
            let slot = stripe::slot_of(geometry, self.stripe, role);
            (slot, stripe::member_range(geometry, self.stripe, &self.columns))
        };
        self.forsaken.iter().map(place).collect()
    }

    fn is_modified(&self, index: DataIndex) -> bool {
        self.modified.iter().any(|(modified, _)| *modified == index)
    }
}

/// What a write does.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) version: u64,
    /// Whether nothing but another view can change this plan.
    pub(super) is_settled: bool,
    pub(super) parts: Vec<Part>,
}

impl Plan {
    pub(super) fn lease_sizes(&self) -> SmallVec<[u32; 16]> {
        self.parts.iter().flat_map(|part| core::iter::repeat_n(part.len(), part.leases())).collect()
    }
}

/// Plans a write of `pieces` under a view. `lost` are blocks this write has found unreadable and without a source.
pub(super) fn plan<E: Env>(
    shared: &Shared,
    lane: &LaneView<E>,
    pieces: &[Piece],
    lost: &[ReadFault],
) -> Result<Plan, IoError> {
    let geometry = shared.geometry();
    let is_settled = lane.view().is_complete()
        && shared.regions.unsynced_count() == 0
        && !shared.bad.any()
        && !shared.suspect.any()
        && lost.is_empty();
    let mut plan = Plan { version: lane.version(), is_settled, parts: Vec::new() };
    if geometry.level().parities() > 0 {
        if is_offline(geometry, lane.view()) {
            return Err(IoError::new(
                IoKind::BeyondTolerance,
                "more members are lost than the level tolerates: the group takes no writes",
            ));
        }
        plan.parts = parts(pieces);
        for part in &mut plan.parts {
            plan_part(shared, lane, part, lost)?;
        }
        return Ok(plan);
    }
    for piece in pieces {
        if !stripe::copies(geometry, piece.stripe, piece.index).any(|slot| lane.is_in_sync(slot)) {
            return Err(IoError::new(IoKind::BeyondTolerance, "no live copy of the blocks is left"));
        }
    }
    Ok(plan)
}

/// Cuts pieces into parts, in order of stripe and column.
fn parts(pieces: &[Piece]) -> Vec<Part> {
    let mut order: SmallVec<[&Piece; 8]> = pieces.iter().collect();
    order.sort_by_key(|piece| (piece.stripe, piece.window(), piece.index));
    let mut parts = Vec::with_capacity(order.len());
    for group in order.chunk_by(|a, b| a.stripe == b.stripe && a.window() == b.window()) {
        let mut cuts: SmallVec<[u32; 16]> =
            group.iter().flat_map(|piece| [piece.column, piece.column + piece.seg.len()]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for cut in cuts.windows(2) {
            let columns = cut[0]..cut[1];
            let covering =
                group.iter().filter(|p| p.column <= columns.start && p.columns().end >= columns.end);
            let modified: SmallVec<[(DataIndex, Seg); 2]> = covering
                .map(|p| (p.index, p.seg.slice(columns.start - p.column..columns.end - p.column)))
                .collect();
            if !modified.is_empty() {
                parts.push(Part {
                    stripe: group[0].stripe,
                    columns,
                    modified,
                    mode: Mode::DataOnly,
                    read: Roles::new(),
                    solve: SmallVec::new(),
                    parity: SmallVec::new(),
                    forsaken: SmallVec::new(),
                    reads_wrong: false,
                });
            }
        }
    }
    parts
}

/// Chooses the mode of a part and what it reads.
fn plan_part<E: Env>(
    shared: &Shared,
    lane: &LaneView<E>,
    part: &mut Part,
    unreadable: &[ReadFault],
) -> Result<(), IoError> {
    let geometry = shared.geometry();
    let slots = geometry.parity_slots(part.stripe);
    for (role, slot) in [(Role::P, slots.p), (Role::Q, slots.q)] {
        if slot.is_some_and(|slot| lane.is_live(shared, slot, part.stripe)) {
            part.parity.push(role);
        }
    }
    let columns = usize::from(geometry.data_columns());
    let modified = part.modified.len();
    if part.parity.is_empty() || modified == columns {
        part.mode = if part.parity.is_empty() { Mode::DataOnly } else { Mode::Full };
        return Ok(());
    }
    let (row, row_columns) = (part.stripe, part.columns.clone());
    let readable = |role| {
        let slot = stripe::slot_of(geometry, row, role);
        let is_unreadable = unreadable.iter().any(|fault| {
            (fault.slot, fault.stripe) == (slot, row)
                && fault.columns.start < row_columns.end
                && row_columns.start < fault.columns.end
        });
        !is_unreadable && stripe::is_readable(shared, lane, row, slot, &row_columns)
    };
    if shared.suspect.any() && plan_around_wrong(shared, lane, part, &readable) {
        return Ok(());
    }
    let lost: SmallVec<[DataIndex; 2]> =
        stripe::data_indices(geometry).filter(|&index| !readable(Role::Data(index))).collect();
    let lost_modified = lost.iter().filter(|&&index| part.is_modified(index)).count();
    let lost_others = lost.len() - lost_modified;
    let is_synced = shared.regions.is_synced(part.stripe.0);
    let may_modify = lost_modified == 0 && part.parity.iter().all(|&role| readable(role));
    let is_cheaper = is_reconstruct_cheaper(shared, part);
    // Where something wrong has to be read, the parity at least keeps saying so.
    let keeps_doubt = part.reads_wrong && is_synced && may_modify;
    if lost_others == 0 && !keeps_doubt && (is_cheaper || !is_synced || !may_modify) {
        part.mode = Mode::Reconstruct;
        part.read =
            stripe::data_indices(geometry).filter(|&i| !part.is_modified(i)).map(Role::Data).collect();
    } else if may_modify && (is_synced || part.parity.len() == 1 || lost_others == 2) {
        part.mode = Mode::Modify;
        part.read = part.modified.iter().map(|(index, _)| Role::Data(*index)).collect();
        part.read.extend(part.parity.iter().copied());
    } else {
        let wanted: SmallVec<[Role; 2]> = lost.iter().copied().map(Role::Data).collect();
        let Some(sources) = stripe::sources(geometry, &wanted, readable) else {
            let kept: SmallVec<[Role; 2]> = match lost_modified {
                0 => part.parity.iter().copied().filter(|&role| readable(role)).collect(),
                _ => SmallVec::new(),
            };
            return plan_beyond(shared, lane, part, kept, &lost);
        };
        part.mode = Mode::Recover;
        part.read = sources.read;
        part.solve = sources.solve;
    }
    Ok(())
}

/// Plans a part in whose row something is known to be wrong from what is right; whether it could. Else the part only notes
/// that it reads something wrong.
fn plan_around_wrong<E: Env>(
    shared: &Shared,
    lane: &LaneView<E>,
    part: &mut Part,
    readable: &impl Fn(Role) -> bool,
) -> bool {
    let geometry = shared.geometry();
    let is_wrong = |role: Role| {
        let slot = stripe::slot_of(geometry, part.stripe, role);
        readable(role) && !stripe::is_source(shared, lane, part.stripe, slot, &part.columns)
    };
    let is_right = |role: Role| readable(role) && !is_wrong(role);
    let data = || stripe::data_indices(geometry);
    if !data().map(Role::Data).chain(part.parity.iter().copied()).any(is_wrong) {
        return false;
    }
    let unmodified: Roles = data().filter(|&index| !part.is_modified(index)).map(Role::Data).collect();
    if unmodified.iter().copied().all(is_right) {
        part.mode = Mode::Reconstruct;
        part.read = unmodified;
        return true;
    }
    let wanted: SmallVec<[Role; 2]> = data().map(Role::Data).filter(|&role| !is_right(role)).collect();
    match stripe::sources(geometry, &wanted, is_right) {
        Some(sources) => {
            part.mode = Mode::Recover;
            part.read = sources.read;
            part.solve = sources.solve;
            true
        }
        None => {
            part.reads_wrong = true;
            false
        }
    }
}

/// Whether a part is written with less effort by reading what it does not modify. A read of a member that sits out for
/// slowness is worse than any number of others; each is needed in one of the two ways only.
fn is_reconstruct_cheaper(shared: &Shared, part: &Part) -> bool {
    let geometry = shared.geometry();
    let columns = usize::from(geometry.data_columns());
    let modified = part.modified.len();
    let (mut reconstruct, mut modify) = ((0, columns - modified), (0, modified + part.parity.len()));
    if shared.avoided.any() {
        let is_avoided = |role| shared.avoided.has(stripe::slot_of(geometry, part.stripe, role));
        for index in stripe::data_indices(geometry).filter(|&index| is_avoided(Role::Data(index))) {
            *(if part.is_modified(index) { &mut modify.0 } else { &mut reconstruct.0 }) += 1;
        }
        modify.0 += part.parity.iter().filter(|&&role| is_avoided(role)).count();
    }
    reconstruct <= modify
}

/// A part whose row has lost more than parity can give back: the parities in `kept` follow the change, the others are
/// given up. Data that has no live member of its own cannot be written: it would be in the parity alone.
fn plan_beyond<E: Env>(
    shared: &Shared,
    lane: &LaneView<E>,
    part: &mut Part,
    kept: SmallVec<[Role; 2]>,
    lost: &[DataIndex],
) -> Result<(), IoError> {
    let geometry = shared.geometry();
    let range = stripe::member_range(geometry, part.stripe, &part.columns);
    let is_held = |(index, _): &(DataIndex, Seg)| {
        lane.is_live(shared, geometry.data_slot(part.stripe, *index), part.stripe)
    };
    // Only a single row: in a longer part the lost blocks may be in different rows, each of which can be written.
    if part.len() > shared.block_size().bytes() || !part.modified.iter().all(is_held) {
        let slot = lost.first().map_or(Slot(0), |&index| geometry.data_slot(part.stripe, index));
        return Err(stripe::lost_error(shared, slot, &range));
    }
    let is_listed = |role| shared.bad.covers(stripe::slot_of(geometry, part.stripe, role), &range);
    let given_up = part.parity.iter().copied().filter(|role| !kept.contains(role));
    part.forsaken = given_up.filter(|&role| !is_listed(role)).collect();
    part.mode = if kept.is_empty() { Mode::DataOnly } else { Mode::Modify };
    part.read = match part.mode {
        Mode::Modify => {
            part.modified.iter().map(|(index, _)| Role::Data(*index)).chain(kept.iter().copied()).collect()
        }
        _ => Roles::new(),
    };
    part.parity = kept;
    Ok(())
}
