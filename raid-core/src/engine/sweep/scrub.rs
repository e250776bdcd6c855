//! Scrub: reads every block of the group, compares parity or copies, and says where they do not fit and who is wrong.
//!
//! A step holds the shared stripe lock while it reads (SAFETY S2), so writes under way are never taken for mismatches.
//! Blocks that a drive cannot read are rewritten from the others (SAFETY S5); those without a source are reported. What
//! does not fit is narrowed down to blocks:
//!
//! - RAID 6 names the member if one alone explains every differing byte of the block; in two members' errors each such
//!   byte names one and the same innocent third only by chance (k in 255 for the first, 1 in 255 for each further byte).
//! - RAID 5, 1 and 10 cannot tell which block is right: all that may be wrong are named, nothing is changed.
//!
//! Repairs are in `mend.rs`. The state of a scrub is a plain value that moves step by step: a copy taken at any time and
//! given back later goes on from there, with nothing counted twice.

use core::ops::Range;
use core::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::super::Group;
use super::super::encode::column_in;
use super::super::gather::{ReadFault, ReadFaults, Want};
use super::super::lane::{Entered, LaneView};
use super::super::locks::LockMode;
use super::super::stripe;
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::{Pace, SweepError, Window, windows};
use crate::geometry::Role;
use crate::lease::{Lease, Seg};
use crate::parity::{Column, ParityJob, ParityOp, Verdict, WrongColumn};
use crate::ports::{Clock, Env, IoKind};
use crate::units::{DataIndex, Slot, Stripe, u64_of, usize_of_u32};

/// Most findings a scrub keeps; the rest is counted.
pub const FINDINGS_MAX: usize = 1000;

/// What a scrub does about what does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScrubMode {
    /// Only reports.
    #[default]
    Report,
    /// Rewrites what is certainly wrong: RAID 6, one member located (SAFETY S8), and where it is a data block, in a stripe that
    /// was seen to fit since the last read-modify-write went over it.
    Repair,
    /// Also data blocks that are located in other stripes: right, unless a client has rewritten, in part of its stripe,
    /// the very block that had gone wrong before; then the client's data is lost.
    RepairSuspected,
    /// That, and takes the data (of mirrors: the first copy) for right where nobody can tell: parity and the other copies
    /// are made anew from it. Wrong data stays wrong and is no longer found.
    AssumeDataRight,
}

/// What does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// RAID 6: this one member is wrong.
    Located,
    /// RAID 6: this member's data block does not fit, but its stripe was written in part since it was last seen to fit: the
    /// block may be wrong, or it is right and the parities hold on to what was wrong before.
    Suspected,
    /// RAID 6: more than one member is wrong.
    Ambiguous,
    /// RAID 5: data and parity do not fit; nobody can tell which member is wrong.
    Parity,
    /// RAID 1 and 10: copies differ; nobody can tell which is right.
    Copies,
    /// Too many members cannot read their block: it has no source left.
    Lost,
}

/// Neighbouring blocks of one stripe about which there is the same to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The stripe.
    pub stripe: Stripe,
    /// Bytes of the chunk.
    pub columns: Range<u32>,
    /// What is wrong.
    pub what: What,
    /// The member that is wrong, or all that may be.
    pub slots: Vec<Slot>,
    /// Whether it was put right.
    pub is_repaired: bool,
}

/// How far a scrub is and what it has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubState {
    /// The next stripe to look at.
    pub next: u64,
    /// Stripes whose redundancy was compared.
    pub checked: u64,
    /// Stripes that were not: short of a member, not known in sync, or with blocks known to be lost.
    pub skipped: u64,
    /// Stripes in which something does not fit.
    pub mismatched: u64,
    /// Blocks put right because one member was certainly wrong, or because the data was declared right.
    pub repaired_blocks: u64,
    /// Blocks that a drive could not read, and that were rewritten.
    pub rewritten_blocks: u64,
    /// Block rows that cannot be read and have no source.
    pub lost_blocks: u64,
    /// The first findings, in order.
    pub findings: Vec<Finding>,
    /// How many more there were.
    pub findings_left_out: u64,
}

impl ScrubState {
    fn add(&mut self, step: Step, block: u32) {
        self.next += step.stripes;
        self.checked += step.checked;
        self.skipped += step.stripes - step.checked;
        self.rewritten_blocks += step.rewritten;
        let mut last = None;
        for finding in step.findings {
            let blocks = u64::from((finding.columns.end - finding.columns.start) / block);
            match finding.what {
                What::Lost => self.lost_blocks += blocks,
                _ if last != Some(finding.stripe) => {
                    self.mismatched += 1;
                    last = Some(finding.stripe);
                }
                _ => {}
            }
            self.repaired_blocks += if finding.is_repaired { blocks } else { 0 };
            if self.findings.len() < FINDINGS_MAX {
                self.findings.push(finding);
            } else {
                self.findings_left_out += 1;
            }
        }
    }
}

/// What one step came to.
#[derive(Default)]
struct Step {
    stripes: u64,
    checked: u64,
    rewritten: u64,
    findings: Vec<Finding>,
}

/// Joins neighbours with the same to say.
fn merge(findings: &mut Vec<Finding>) {
    findings.sort_by(|one, other| {
        let key = |finding: &Finding| (finding.stripe, finding.what == What::Lost);
        (key(one), &one.slots, one.columns.start).cmp(&(key(other), &other.slots, other.columns.start))
    });
    findings.dedup_by(|next, last| {
        let joins = last.stripe == next.stripe
            && last.columns.end == next.columns.start
            && (last.what, last.is_repaired) == (next.what, next.is_repaired)
            && last.slots == next.slots;
        if joins {
            last.columns.end = next.columns.end;
        }
        joins
    });
}

impl<E: Env> Group<E> {
    /// Scrubs from where `state` is to the end of the group; `state` moves with every step, and what it says is true
    /// whenever it is looked at.
    ///
    /// # Errors
    /// [`SweepError::Cancelled`]; an I/O error if members keep failing.
    pub async fn scrub(
        &self,
        mode: ScrubMode,
        pace: &Pace,
        state: &Mutex<ScrubState>,
    ) -> Result<(), SweepError> {
        let geometry = *self.0.shared.geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        let block = self.0.shared.block_size().bytes();
        let mut next = state.lock().next;
        pace.total_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
        pace.done_bytes.store((next * chunk).min(geometry.member_bytes()), Ordering::Relaxed);
        while next < geometry.stripes() {
            self.go_on(pace)?;
            let began_ns = self.0.env.clock().now_ns();
            // Anew for every step: the pace changes with what clients notice.
            let stripes = next..geometry.stripes().min(next + self.step(pace));
            let mut found = self.scrub_stripes(&stripes).await?;
            if mode != ScrubMode::Report {
                self.mend(mode, &mut found.findings).await?;
            }
            merge(&mut found.findings);
            state.lock().add(found, block);
            next = stripes.end;
            self.keep_pace(pace, (stripes.end - stripes.start) * chunk, began_ns).await?;
        }
        Ok(())
    }

    /// Compares some stripes again that scrubs found something wrong with, so that what is suspected is true now.
    ///
    /// # Errors
    /// [`SweepError::Cancelled`]; an I/O error if members keep failing.
    pub async fn look_again(&self, stripes: impl Iterator<Item = Stripe>) -> Result<(), SweepError> {
        for stripe in stripes.filter(|stripe| stripe.0 < self.0.shared.geometry().stripes()) {
            self.scrub_stripes(&(stripe.0..stripe.0 + 1)).await?;
        }
        Ok(())
    }

    async fn scrub_stripes(&self, stripes: &Range<u64>) -> Result<Step, SweepError> {
        let mut todo = windows(self.0.shared.geometry(), stripes);
        let mut step = Step { stripes: stripes.end - stripes.start, ..Step::default() };
        let mut lost = Vec::new();
        // Every round that starts again has dropped a member, rewritten a block or set lost ones aside.
        for _ in 0..ATTEMPTS_MAX {
            match self.scrub_once(stripes, &todo).await {
                Ok((checked, mut findings)) => {
                    findings.append(&mut lost);
                    findings.sort_by_key(|finding| finding.stripe);
                    step.checked = checked;
                    step.findings = findings;
                    return Ok(step);
                }
                Err(Attempt::Reads(epoch, faults)) => {
                    let (gone, medium): (ReadFaults, ReadFaults) =
                        faults.into_iter().partition(|fault| fault.error.kind.drops_member_on_read());
                    self.handle_read_faults(epoch, gone).await?;
                    for fault in medium {
                        for finding in self.rewrite_or_lose(&fault, &mut step.rewritten).await? {
                            cut(&mut todo, &finding);
                            add_lost(&mut lost, finding);
                        }
                    }
                }
                Err(other) => self.start_again(other).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    /// Rewrites the blocks of a fault from the others, block by block; gives those without a source.
    async fn rewrite_or_lose(
        &self,
        fault: &ReadFault,
        rewritten: &mut u64,
    ) -> Result<Vec<Finding>, SweepError> {
        let block = self.0.shared.block_size().bytes();
        let mut lost = Vec::new();
        for start in fault.columns.clone().step_by(usize_of_u32(block)) {
            let one = ReadFault { columns: start..start + block, ..fault.clone() };
            match self.repair_counted(&one, rewritten).await {
                Ok(()) => {}
                Err(error) if error.kind == IoKind::ShuttingDown => return Err(SweepError::Cancelled),
                Err(_) => lost.push(Finding {
                    stripe: fault.stripe,
                    columns: one.columns,
                    what: What::Lost,
                    slots: vec![fault.slot],
                    is_repaired: false,
                }),
            }
        }
        Ok(lost)
    }

    /// The members of a window to compare; empty if it cannot be compared. Mirrors compare the copies there are.
    pub(super) fn scrub_slots(&self, lane: &LaneView<E>, window: &Window) -> Vec<Slot> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        if !geometry.level().is_redundant() || !shared.regions.is_synced(window.stripe.0) {
            return Vec::new();
        }
        let readable = |slot: &Slot| stripe::is_readable(shared, lane, window.stripe, *slot, &window.columns);
        let slots: Vec<Slot> = lane.slots().filter(readable).collect();
        let is_enough = if geometry.level().parities() > 0 {
            slots.len() == usize::from(geometry.members())
        } else {
            stripe::data_indices(geometry).all(|index| {
                stripe::copies(geometry, window.stripe, index).filter(|slot| slots.contains(slot)).count() > 1
            })
        };
        if is_enough { slots } else { Vec::new() }
    }

    /// Reads and compares; how many stripes could be, and what does not fit.
    async fn scrub_once(
        &self,
        stripes: &Range<u64>,
        todo: &[Window],
    ) -> Result<(u64, Vec<Finding>), Attempt> {
        let shared = &self.0.shared;
        let slots_of =
            |lane: &LaneView<E>| todo.iter().map(|window| self.scrub_slots(lane, window)).collect();
        let planned: Vec<Vec<Slot>> = slots_of(&self.lane_view());
        let sizes: Vec<u32> = todo
            .iter()
            .zip(&planned)
            .flat_map(|(window, slots)| {
                core::iter::repeat_n(window.columns.end - window.columns.start, slots.len())
            })
            .collect();
        let mut leases = self.scratch(&sizes).await;
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Shared).await;
        let entered = self.enter();
        let slots: Vec<Vec<Slot>> = slots_of(&entered);
        if slots != planned {
            return Err(Attempt::Replan);
        }
        self.read_windows(&entered, todo, &slots, &mut leases).await?;
        let mut leases = leases.into_iter();
        let mut skipped: Vec<Stripe> = Vec::new();
        let mut findings = Vec::new();
        for (window, slots) in todo.iter().zip(slots) {
            if slots.is_empty() {
                skipped.push(window.stripe);
                continue;
            }
            let segs = leases.by_ref().take(slots.len()).map(read_lease);
            let columns: Vec<(Slot, Seg)> = slots.into_iter().zip(segs).collect();
            let found = self.compare(window, &columns).await;
            shared.compared(window.stripe, &window.columns, &found);
            findings.extend(found);
        }
        skipped.dedup();
        for stripe in stripes.clone().map(Stripe) {
            let own = todo.iter().filter(|window| window.stripe == stripe);
            let seen: u32 = own.map(|window| window.columns.end - window.columns.start).sum();
            let is_whole = seen == shared.geometry().stripe_height(stripe) && !skipped.contains(&stripe);
            if is_whole && findings.iter().all(|finding| finding.stripe != stripe) {
                shared.vouched.vouch(stripe);
            }
        }
        Ok((stripes.end - stripes.start - u64_of(skipped.len()), findings))
    }

    /// Reads the windows' columns of these slots into the leases, in order.
    pub(super) async fn read_windows(
        &self,
        entered: &Entered<E>,
        todo: &[Window],
        slots: &[Vec<Slot>],
        leases: &mut [Option<Lease>],
    ) -> Result<(), Attempt> {
        let geometry = self.0.shared.geometry();
        let mut wants: Vec<Want> = Vec::new();
        for (window, slots) in todo.iter().zip(slots) {
            for &slot in slots {
                wants.push(Want {
                    slot,
                    stripe: window.stripe,
                    columns: window.columns.clone(),
                    at: geometry.member_offset(window.stripe, window.columns.start),
                    lease: wants.len(),
                });
            }
        }
        let faults = self.read_all(entered, &mut wants, leases).await;
        if faults.is_empty() { Ok(()) } else { Err(Attempt::Reads(entered.view().epoch, faults)) }
    }

    /// What does not fit in a window, block by block.
    pub(super) async fn compare(&self, window: &Window, columns: &[(Slot, Seg)]) -> Vec<Finding> {
        let geometry = self.0.shared.geometry();
        let len = window.columns.end - window.columns.start;
        let block = self.0.shared.block_size().bytes();
        let blocks = (0..len).step_by(usize_of_u32(block)).map(|at| at..len.min(at + block));
        let mut findings = Vec::new();
        let mut found = |range: &Range<u32>, what, slots| {
            let columns = window.columns.start + range.start..window.columns.start + range.end;
            findings.push(Finding { stripe: window.stripe, columns, what, slots, is_repaired: false });
        };
        if geometry.level().parities() == 0 {
            for index in stripe::data_indices(geometry) {
                let of: Vec<Slot> = stripe::copies(geometry, window.stripe, index).collect();
                let copies: Vec<&(Slot, Seg)> =
                    columns.iter().filter(|(slot, _)| of.contains(slot)).collect();
                let differ = |range: &Range<u32>| {
                    let bytes = |seg: &Seg| seg.slice(range.clone());
                    copies.iter().any(|(_, seg)| bytes(seg).bytes() != bytes(&copies[0].1).bytes())
                };
                if differ(&(0..len)) {
                    for range in blocks.clone().filter(differ) {
                        found(&range, What::Copies, copies.iter().map(|(slot, _)| *slot).collect());
                    }
                }
            }
            return findings;
        }
        let job = self.parity_job(ParityOp::Verify, window.stripe, columns, &(0..len));
        if self.compute(job).await.1 == Verdict::Clean {
            return findings;
        }
        let all = || columns.iter().map(|(slot, _)| *slot).collect::<Vec<Slot>>();
        let op = if geometry.level().parities() == 2 { ParityOp::Locate } else { ParityOp::Verify };
        for range in blocks {
            let job = self.parity_job(op.clone(), window.stripe, columns, &range);
            match self.compute(job).await.1 {
                Verdict::Mismatch { .. } => found(&range, What::Parity, all()),
                Verdict::Ambiguous => found(&range, What::Ambiguous, all()),
                Verdict::Located(column) => {
                    let slot = stripe::slot_of(geometry, window.stripe, role_of(column));
                    let is_certain = matches!(role_of(column), Role::P | Role::Q)
                        || self.0.shared.vouched.is_vouched(window.stripe);
                    found(&range, if is_certain { What::Located } else { What::Suspected }, vec![slot]);
                }
                Verdict::Clean | Verdict::Computed => {}
            }
        }
        findings
    }

    /// A parity job over a part of a window's columns, all of them inputs.
    pub(super) fn parity_job(
        &self,
        op: ParityOp,
        stripe: Stripe,
        columns: &[(Slot, Seg)],
        range: &Range<u32>,
    ) -> ParityJob {
        let geometry = self.0.shared.geometry();
        let mut job = ParityJob {
            op,
            len: range.end - range.start,
            data: (0..geometry.data_columns()).map(|_| Column::Absent).collect(),
            p: Column::Absent,
            q: Column::Absent,
        };
        for (slot, seg) in columns {
            *column_in(&mut job, geometry.role(stripe, *slot)) = Column::In(seg.slice(range.clone()));
        }
        job
    }
}

fn role_of(column: WrongColumn) -> Role {
    match column {
        WrongColumn::Data(DataIndex(index)) => Role::Data(DataIndex(index)),
        WrongColumn::P => Role::P,
        WrongColumn::Q => Role::Q,
    }
}

/// A column that was read.
pub(super) fn read_lease(lease: Option<Lease>) -> Seg {
    lease.expect("read without an error").share()
}

/// Adds a lost block; one row is one finding.
fn add_lost(lost: &mut Vec<Finding>, finding: Finding) {
    let same = |other: &&mut Finding| (other.stripe, &other.columns) == (finding.stripe, &finding.columns);
    match lost.iter_mut().find(same) {
        Some(row) => row.slots.extend(
            finding.slots.iter().filter(|slot| !row.slots.contains(slot)).copied().collect::<Vec<_>>(),
        ),
        None => lost.push(finding),
    }
}

/// Takes the blocks of a lost row out of the windows: there is nothing to compare them with.
fn cut(todo: &mut Vec<Window>, lost: &Finding) {
    let pieces = todo.drain(..).flat_map(|window| {
        let apart = window.stripe != lost.stripe
            || lost.columns.end <= window.columns.start
            || window.columns.end <= lost.columns.start;
        let keep = |columns: Range<u32>| Window { stripe: window.stripe, columns };
        let parts = if apart {
            vec![window.columns.clone()]
        } else {
            vec![window.columns.start..lost.columns.start, lost.columns.end..window.columns.end]
        };
        parts.into_iter().filter(|columns| columns.start < columns.end).map(keep).collect::<Vec<_>>()
    });
    let pieces: Vec<Window> = pieces.collect();
    *todo = pieces;
}
