//! Step 4, **gather**: read what the plan lacks, neighbours on a member as one command.

use core::ops::Range;

use smallvec::SmallVec;

use super::Group;
use super::lane::LaneView;
use super::plan::Plan;
use super::stripe;
use crate::lease::{Lease, Leases};
use crate::ports::{Env, IoError, IoKind};
use crate::units::{Slot, Stripe};

/// Most segments of one command.
pub(super) const SEGMENTS_MAX: usize = 64;

/// One column to read, into the lease with this number.
pub(super) struct Want {
    pub(super) slot: Slot,
    pub(super) stripe: Stripe,
    pub(super) columns: Range<u32>,
    /// Byte of the member's data area.
    pub(super) at: u64,
    pub(super) lease: usize,
}

/// A column that could not be read.
#[derive(Clone, Debug)]
pub(super) struct ReadFault {
    pub(super) slot: Slot,
    pub(super) stripe: Stripe,
    pub(super) columns: Range<u32>,
    pub(super) error: IoError,
}

/// What could not be read.
pub(super) type ReadFaults = SmallVec<[ReadFault; 1]>;

impl<E: Env> Group<E> {
    /// Reads everything the plan needs into the leases, which are in the plan's order.
    pub(super) async fn gather(
        &self,
        lane: &LaneView<E>,
        plan: &Plan,
        leases: &mut [Option<Lease>],
    ) -> Result<(), ReadFaults> {
        let geometry = self.0.shared.geometry();
        let mut wants: SmallVec<[Want; 8]> = SmallVec::new();
        let mut next = 0;
        for part in &plan.parts {
            for (i, &role) in part.read.iter().enumerate() {
                wants.push(Want {
                    slot: stripe::slot_of(geometry, part.stripe, role),
                    stripe: part.stripe,
                    columns: part.columns.clone(),
                    at: geometry.member_offset(part.stripe, part.columns.start),
                    lease: next + i,
                });
            }
            next += part.leases();
        }
        let faults = self.read_all(lane, &mut wants, leases).await;
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Reads all wanted columns, each into its lease; a lease that a timed-out command kept stays `None`.
    pub(super) async fn read_all(
        &self,
        lane: &LaneView<E>,
        wants: &mut [Want],
        leases: &mut [Option<Lease>],
    ) -> ReadFaults {
        wants.sort_by_key(|want| (want.slot, want.at));
        let mut commands = SmallVec::<[_; 4]>::new();
        let mut start = 0;
        while start < wants.len() {
            let first = &wants[start];
            let mut into = Leases::new();
            let mut end = start;
            let mut at = first.at;
            while let Some(want) = wants.get(end)
                && want.slot == first.slot
                && want.at == at
                && end - start < SEGMENTS_MAX
            {
                into.push(leases[want.lease].take().expect("one lease per wanted column"));
                at += u64::from(want.columns.end - want.columns.start);
                end += 1;
            }
            commands.push((start..end, self.start_read(lane, first.slot, first.at, into)));
            start = end;
        }
        let mut faults = ReadFaults::new();
        for (range, command) in commands {
            let done = command.finish_read().await;
            for (want, lease) in wants[range.clone()].iter().zip(done.buf.into_iter().flatten()) {
                leases[want.lease] = Some(lease);
            }
            if let Err(error) = done.result {
                self.count_error(wants[range.start].slot);
                faults.extend(wants[range].iter().map(|want| ReadFault {
                    slot: want.slot,
                    stripe: want.stripe,
                    columns: want.columns.clone(),
                    error,
                }));
            }
        }
        faults
    }

    /// Deals with failed reads so that the operation can be tried again: drops members that are gone, repairs blocks that
    /// cannot be read (SAFETY S5). The caller holds no lock and no view.
    pub(super) async fn handle_read_faults(
        &self,
        seen: crate::view::Epoch,
        faults: ReadFaults,
    ) -> Result<(), IoError> {
        for fault in faults {
            match fault.error.kind {
                kind if kind.drops_member_on_read() => {
                    self.fail(seen, fault.slot, kind).await.map_err(|_| fault.error)?;
                }
                IoKind::Medium | IoKind::Protection => self.repair(&fault).await?,
                _ => return Err(fault.error),
            }
        }
        Ok(())
    }
}
