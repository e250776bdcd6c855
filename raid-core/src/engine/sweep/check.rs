//! Check: reads every stripe and compares parity or copies. It repairs nothing but blocks a drive cannot read.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::super::Group;
use super::super::encode::column_in;
use super::super::gather::Want;
use super::super::lane::LaneView;
use super::super::locks::LockMode;
use super::super::shared::stripes_per_step;
use super::super::stripe::{self, Roles};
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::{Pace, SweepError, Window, windows};
use crate::lease::{Lease, Seg};
use crate::parity::{Column, ParityJob, ParityOp, Verdict};
use crate::ports::{Clock, Env};
use crate::units::{Slot, Stripe, u64_of};

/// Most stripe numbers a report lists.
const LISTED_MAX: usize = 1000;

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Stripes whose redundancy was compared.
    pub checked: u64,
    /// Stripes that could not be: a member is missing, not rebuilt yet, or the stripe is not known in sync.
    pub skipped: u64,
    /// Stripes whose parity or copies do not match.
    pub mismatched: u64,
    /// The first of them.
    pub mismatches: Vec<Stripe>,
}

impl<E: Env> Group<E> {
    /// Compares the redundancy of every stripe that is complete and known in sync.
    ///
    /// # Errors
    /// [`SweepError::Cancelled`]; an I/O error if a block has no source left.
    pub async fn check(&self, pace: &Pace) -> Result<CheckReport, SweepError> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        pace.total_bytes.store(geometry.member_bytes(), Ordering::Relaxed);
        pace.done_bytes.store(0, Ordering::Relaxed);
        let step = stripes_per_step(&geometry, geometry.members());
        let mut report = CheckReport::default();
        let mut next = 0;
        while next < geometry.stripes() {
            self.go_on(pace)?;
            let began_ns = self.0.env.clock().now_ns();
            let stripes = next..geometry.stripes().min(next + step);
            self.check_stripes(&stripes, &mut report).await?;
            next = stripes.end;
            self.keep_pace(pace, (stripes.end - stripes.start) * chunk, began_ns).await?;
        }
        Ok(report)
    }

    async fn check_stripes(&self, stripes: &Range<u64>, report: &mut CheckReport) -> Result<(), SweepError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.check_once(stripes).await {
                Ok(found) => {
                    report.skipped += (stripes.end - stripes.start) - found.checked;
                    report.checked += found.checked;
                    report.mismatched += found.mismatched;
                    report.mismatches.extend(found.mismatches);
                    report.mismatches.truncate(LISTED_MAX);
                    return Ok(());
                }
                Err(attempt) => self.start_again(attempt).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    /// The columns of a window to compare, per slot; empty if the stripe cannot be compared.
    fn check_slots(&self, lane: &LaneView<E>, window: &Window) -> Vec<Slot> {
        let shared = &self.0.shared;
        let all: Vec<Slot> = lane.slots().collect();
        let redundant = shared.geometry().level().is_redundant();
        let complete = redundant
            && shared.regions.is_synced(window.stripe.0)
            && all
                .iter()
                .all(|&slot| stripe::is_readable(shared, lane, window.stripe, slot, &window.columns));
        if complete { all } else { Vec::new() }
    }

    async fn check_once(&self, stripes: &Range<u64>) -> Result<CheckReport, Attempt> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let todo = windows(geometry, stripes);
        let slots_of =
            |lane: &LaneView<E>| todo.iter().map(|window| self.check_slots(lane, window)).collect();
        let planned: Vec<Vec<Slot>> = slots_of(&self.lane_view());
        let sizes: Vec<u32> = todo
            .iter()
            .zip(&planned)
            .flat_map(|(w, slots)| core::iter::repeat_n(w.columns.end - w.columns.start, slots.len()))
            .collect();
        let mut leases = self.scratch(&sizes).await;
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Shared).await;
        let entered = self.enter();
        let slots: Vec<Vec<Slot>> = slots_of(&entered);
        if slots != planned {
            return Err(Attempt::Replan);
        }
        let mut wants: Vec<Want> = Vec::new();
        for (window, slots) in todo.iter().zip(&slots) {
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
        let faults = self.read_all(&entered, &mut wants, &mut leases).await;
        if !faults.is_empty() {
            return Err(Attempt::Reads(entered.view().epoch, faults));
        }
        let mut report = CheckReport::default();
        let mut leases = leases.into_iter();
        for run in todo.iter().zip(slots).collect::<Vec<_>>().chunk_by(|a, b| a.0.stripe == b.0.stripe) {
            let mut is_clean = true;
            for (window, slots) in run {
                let columns = leases.by_ref().take(slots.len());
                is_clean &= slots.is_empty() || self.is_clean(window, columns).await;
            }
            report.checked += u64::from(run.iter().all(|(_, slots)| !slots.is_empty()));
            if !is_clean {
                report.mismatched += 1;
                report.mismatches.push(run[0].0.stripe);
            }
        }
        Ok(report)
    }

    /// Whether the columns of one window, in slot order, match.
    async fn is_clean(&self, window: &Window, columns: impl Iterator<Item = Option<Lease>>) -> bool {
        let geometry = self.0.shared.geometry();
        let segs: Vec<Seg> = columns.map(|lease| lease.expect("read without an error").share()).collect();
        if geometry.level().parities() == 0 {
            let copies = usize::from(geometry.copies());
            return segs.chunks(copies).all(|same| same.iter().all(|seg| seg.bytes() == same[0].bytes()));
        }
        let data = usize::from(geometry.data_columns());
        let mut job = ParityJob {
            op: ParityOp::Verify,
            len: window.columns.end - window.columns.start,
            data: (0..data).map(|_| Column::Absent).collect(),
            p: Column::Absent,
            q: Column::Absent,
        };
        let roles: Roles =
            (0..geometry.members()).map(|slot| geometry.role(window.stripe, Slot(slot))).collect();
        debug_assert_eq!(u64_of(roles.len()), u64_of(segs.len()));
        for (role, seg) in roles.into_iter().zip(segs) {
            *column_in(&mut job, role) = Column::In(seg);
        }
        debug_assert!(job.data.iter().all(|column| matches!(column, Column::In(_))));
        matches!(self.compute(job).await.1, Verdict::Clean)
    }
}
