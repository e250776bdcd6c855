//! Resync of the stripes that are not known in sync (SAFETY S1): parity is computed from data, mirrors are copied from
//! their one source. Stripes that have lost data are left as they are; a rebuild comes first.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::super::Group;
use super::super::encode::{Put, column_in};
use super::super::gather::Want;
use super::super::intent::{IntentTicket, Intents};
use super::super::lane::LaneView;
use super::super::locks::LockMode;
use super::super::stripe::{self, Roles};
use super::super::write::{ATTEMPTS_MAX, Attempt, GAVE_UP};
use super::{Pace, SweepError, Window, parities, windows};
use crate::geometry::Role;
use crate::lease::{Lease, Seg};
use crate::parity::{Column, ParityJob, ParityOp};
use crate::ports::{Clock, Durability, Env, IoError, IoKind};
use crate::units::{Slot, Stripe, u64_of};

/// What resync reads of a window and where the result goes.
#[derive(PartialEq, Eq)]
struct Way {
    read: Roles,
    /// Mirrors: the source and the copies to write, per data column in `read`.
    copies: Vec<(Slot, Vec<Slot>)>,
    /// Parity to compute.
    parity: smallvec::SmallVec<[Role; 2]>,
}

impl<E: Env> Group<E> {
    /// Brings every stripe that is not known in sync, and has all its data, into sync; flushes at the end. Returns how many
    /// stripes are left because they have lost data, or blocks that cannot be read.
    ///
    /// # Errors
    /// [`SweepError::Cancelled`]; an I/O error if something could not be read.
    pub async fn resync(&self, pace: &Pace) -> Result<u64, SweepError> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        pace.total_bytes.store(shared.regions.unsynced_count() * chunk, Ordering::Relaxed);
        pace.done_bytes.store(0, Ordering::Relaxed);
        let mut from = 0;
        while let Some(start) = shared.regions.next_unsynced(from) {
            self.go_on(pace)?;
            let began_ns = self.0.env.clock().now_ns();
            let run = (start..geometry.stripes().min(start + self.step(pace)))
                .take_while(|&stripe| !shared.regions.is_synced(stripe));
            let stripes = start..start + u64_of(run.count());
            self.resync_what_can_be(&stripes).await?;
            from = stripes.end;
            self.keep_pace(pace, (stripes.end - stripes.start) * chunk, began_ns).await?;
        }
        self.flush().await?;
        Ok(shared.regions.unsynced_count())
    }

    /// As far as the stripes can be read: one that cannot is left as it is and stands in nobody's way.
    async fn resync_what_can_be(&self, stripes: &Range<u64>) -> Result<(), SweepError> {
        match self.resync_stripes(stripes).await {
            Err(SweepError::Io(error)) if is_about_blocks(error) && !self.0.shared.is_offline() => {}
            other => return other,
        }
        for stripe in stripes.clone() {
            match self.resync_stripes(&(stripe..stripe + 1)).await {
                Err(SweepError::Io(error)) if is_about_blocks(error) && !self.0.shared.is_offline() => {}
                other => other?,
            }
        }
        Ok(())
    }

    async fn resync_stripes(&self, stripes: &Range<u64>) -> Result<(), SweepError> {
        let _writer = self.0.shared.admit_writer().await.map_err(|_| SweepError::Cancelled)?;
        for _ in 0..ATTEMPTS_MAX {
            match self.resync_once(stripes).await {
                Ok(()) => return Ok(()),
                Err(attempt) => self.start_again(attempt).await?,
            }
        }
        Err(GAVE_UP.into())
    }

    /// How a window is brought into sync; `None` where data is lost.
    fn resync_way(&self, lane: &LaneView<E>, window: &Window) -> Option<Way> {
        let shared = &self.0.shared;
        let geometry = shared.geometry();
        let data = usize::from(geometry.data_columns());
        if geometry.level().parities() > 0 {
            let live = self.live_roles(lane, window);
            let read: Roles = live.iter().copied().filter(|role| matches!(role, Role::Data(_))).collect();
            return (read.len() == data).then(|| Way { read, copies: Vec::new(), parity: parities(&live) });
        }
        let mut way = Way { read: Roles::new(), copies: Vec::new(), parity: smallvec::SmallVec::new() };
        for index in stripe::data_indices(geometry) {
            let source = stripe::mirror_source(geometry, lane, window.stripe, index)?;
            if !stripe::is_readable(shared, lane, window.stripe, source, &window.columns) {
                return None;
            }
            let others = stripe::copies(geometry, window.stripe, index)
                .filter(|&slot| slot != source && lane.is_live(shared, slot, window.stripe));
            way.read.push(Role::Data(index));
            way.copies.push((source, others.collect()));
        }
        Some(way)
    }

    async fn resync_once(&self, stripes: &Range<u64>) -> Result<(), Attempt> {
        let shared = &self.0.shared;
        let todo = windows(shared.geometry(), stripes);
        let ways_of = |lane: &LaneView<E>| todo.iter().map(|window| self.resync_way(lane, window)).collect();
        let planned: Vec<Option<Way>> = ways_of(&self.lane_view());
        let mut leases = self.scratch(&lease_sizes(&todo, &planned)).await;
        let _locked = shared.locks.lock(stripes.clone(), LockMode::Exclusive).await;
        let entered = self.enter();
        let ways: Vec<Option<Way>> = ways_of(&entered);
        if ways != planned {
            return Err(Attempt::Replan);
        }
        let epoch = entered.view().epoch;
        let mut wants: Vec<Want> = Vec::new();
        let mut next = 0;
        for (window, way) in todo.iter().zip(&ways) {
            let Some(way) = way else { continue };
            let first = wants.len();
            self.window_wants(window, &way.read, next, &mut wants);
            for (want, (source, _)) in wants[first..].iter_mut().zip(&way.copies) {
                want.slot = *source;
            }
            next += way.read.len() + way.parity.len();
        }
        let faults = self.read_all(&entered, &mut wants, &mut leases).await;
        if !faults.is_empty() {
            return Err(Attempt::Reads(epoch, faults));
        }
        let mut puts = self.resynced(&todo, &ways, leases).await;
        // The bits of these stripes are set; the quiet mark has to go.
        let ticket = shared.intents.as_ref().map(Intents::begin_sweep);
        self.log(&entered, ticket.as_ref()).await.map_err(|errors| Attempt::Members(epoch, errors))?;
        let errors = self.commit(&entered, &mut puts, Durability::Cached).await;
        // What failed is still listed as not in sync.
        ticket.iter().for_each(IntentTicket::settle);
        if !errors.is_empty() {
            return Err(Attempt::Members(epoch, errors));
        }
        for stripe in stripes.clone() {
            let mut own = todo.iter().zip(&ways).filter(|(window, _)| window.stripe == Stripe(stripe));
            let is_whole = |way: &Option<Way>| {
                let written = way.as_ref().map(|way| way.parity.len());
                written.is_some_and(|parities| parities == usize::from(shared.geometry().level().parities()))
            };
            if own.clone().all(|(_, way)| way.is_some()) {
                shared.regions.mark_synced(stripe);
            }
            if own.all(|(_, way)| is_whole(way)) {
                shared.vouched.vouch(Stripe(stripe));
                let columns = 0..shared.geometry().stripe_height(Stripe(stripe));
                shared.no_longer_suspect(Stripe(stripe), &columns);
            }
        }
        Ok(())
    }

    async fn resynced(&self, todo: &[Window], ways: &[Option<Way>], leases: Vec<Option<Lease>>) -> Vec<Put> {
        let geometry = self.0.shared.geometry();
        let mut leases = leases.into_iter().map(|lease| lease.expect("read without an error"));
        let mut puts = Vec::new();
        for (window, way) in todo.iter().zip(ways) {
            let Some(way) = way else { continue };
            let at = geometry.member_offset(window.stripe, window.columns.start);
            let read: Vec<Seg> = way.read.iter().map(|_| leases.next().expect("leased").share()).collect();
            for (seg, (_, others)) in read.iter().zip(&way.copies) {
                puts.extend(others.iter().map(|&slot| Put { slot, at, seg: seg.clone() }));
            }
            if way.parity.is_empty() {
                continue;
            }
            let mut job = ParityJob {
                op: ParityOp::Encode,
                len: window.columns.end - window.columns.start,
                data: read.into_iter().map(Column::In).collect(),
                p: Column::Absent,
                q: Column::Absent,
            };
            for &role in &way.parity {
                let lease = leases.next().expect("leased");
                let len = lease.len();
                *column_in(&mut job, role) = Column::Out(lease, 0..len);
            }
            let (mut job, _) = self.compute(job).await;
            for &role in &way.parity {
                let slot = stripe::slot_of(geometry, window.stripe, role);
                if let Column::Out(lease, _) = core::mem::replace(column_in(&mut job, role), Column::Absent) {
                    puts.push(Put { slot, at, seg: lease.share() });
                }
            }
        }
        puts
    }
}

/// Whether an error is about blocks that cannot be read, not about their member.
fn is_about_blocks(error: IoError) -> bool {
    use IoKind::{BadBlock, BeyondTolerance, Medium, Protection};
    matches!(error.kind, Medium | Protection | BadBlock | BeyondTolerance)
}

fn lease_sizes(todo: &[Window], ways: &[Option<Way>]) -> Vec<u32> {
    let sizes = todo.iter().zip(ways).flat_map(|(window, way)| {
        let count = way.as_ref().map_or(0, |way| way.read.len() + way.parity.len());
        core::iter::repeat_n(window.columns.end - window.columns.start, count)
    });
    sizes.collect()
}
