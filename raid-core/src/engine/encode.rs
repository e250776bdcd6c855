//! Step 5, **encode**: the new parity of every part, through the parity port.

use smallvec::SmallVec;

use super::Group;
use super::plan::{Mode, Part, Plan};
use super::stripe::slot_of;
use crate::geometry::Role;
use crate::lease::{Lease, Seg};
use crate::parity::{Column, CpuParity, ParityError, ParityJob, ParityOp, Verdict};
use crate::ports::{Env, ParityEngine};
use crate::units::{DataIndex, Slot};

/// One segment to write to a member's data area.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) slot: Slot,
    /// Byte of the member's data area.
    pub(super) at: u64,
    pub(super) seg: Seg,
}

impl Put {
    /// The byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.at + u64::from(self.seg.len())
    }
}

fn column_of(lease: Lease) -> Column {
    let len = lease.len();
    Column::Out(lease, 0..len)
}

fn lease_of(column: Column) -> Lease {
    match column {
        Column::Out(lease, _) => lease,
        _ => unreachable!("an output column comes back as it was"),
    }
}

fn take(leases: &mut impl Iterator<Item = Option<Lease>>) -> Lease {
    leases.next().flatten().expect("the plan leased every column")
}

impl<E: Env> Group<E> {
    /// Runs a parity job. A device that fails is replaced by the CPU, which computes the same (SAFETY P5).
    pub(super) async fn compute(&self, job: ParityJob) -> (ParityJob, Verdict) {
        let (job, result) = self.0.env.parity().run(job).await;
        match result {
            Ok(verdict) => (job, verdict),
            Err(ParityError::Device) => match CpuParity::new().run(job).await {
                (job, Ok(verdict)) => (job, verdict),
                (_, Err(error)) => unreachable!("parity on the CPU failed: {error:?}"),
            },
            Err(ParityError::Invalid(why)) => unreachable!("a parity job that makes no sense: {why}"),
        }
    }

    /// Computes the parity of every part from the gathered leases; gives what has to be written beside the data.
    pub(super) async fn encode(&self, plan: &Plan, leases: Vec<Option<Lease>>) -> Vec<Put> {
        let geometry = self.0.shared.geometry();
        let mut leases = leases.into_iter();
        let mut puts = Vec::with_capacity(plan.parts.len() * 2);
        for part in &plan.parts {
            let parity = match part.mode {
                Mode::DataOnly => continue,
                Mode::Modify => self.modify(part, &mut leases).await,
                Mode::Full | Mode::Reconstruct => {
                    let old = part.read.iter().map(|&role| (role, take(&mut leases).share())).collect();
                    self.encode_part(part, old, &mut leases).await
                }
                Mode::Recover => {
                    let old = self.solve(part, &mut leases).await;
                    self.encode_part(part, old, &mut leases).await
                }
            };
            puts.extend(parity.into_iter().map(|(role, lease)| Put {
                slot: slot_of(geometry, part.stripe, role),
                at: geometry.member_offset(part.stripe, part.columns.start),
                seg: lease.share(),
            }));
        }
        puts
    }

    /// Read-modify-write: the change of each modified column, applied to the old parity in place.
    async fn modify(
        &self,
        part: &Part,
        leases: &mut impl Iterator<Item = Option<Lease>>,
    ) -> SmallVec<[(Role, Lease); 2]> {
        let old: SmallVec<[Seg; 2]> = part.modified.iter().map(|_| take(leases).share()).collect();
        let mut p = Column::Absent;
        let mut q = Column::Absent;
        for &role in &part.parity {
            *(if role == Role::P { &mut p } else { &mut q }) = column_of(take(leases));
        }
        let mut job = ParityJob { op: ParityOp::Encode, len: part.len(), data: Vec::new(), p, q };
        for ((index, new), old) in part.modified.iter().zip(old) {
            job.op = ParityOp::Delta { index: *index, old, new: new.clone() };
            job = self.compute(job).await.0;
        }
        outputs(part, job)
    }

    /// Parity from all data columns: the new ones of the part and `old` for the rest.
    async fn encode_part(
        &self,
        part: &Part,
        old: SmallVec<[(Role, Seg); 16]>,
        leases: &mut impl Iterator<Item = Option<Lease>>,
    ) -> SmallVec<[(Role, Lease); 2]> {
        let columns = usize::from(self.0.shared.geometry().data_columns());
        let mut data: Vec<Column> = (0..columns).map(|_| Column::Absent).collect();
        for (role, seg) in old {
            if let Role::Data(index) = role {
                data[index.index()] = Column::In(seg);
            }
        }
        for (index, seg) in &part.modified {
            data[index.index()] = Column::In(seg.clone());
        }
        let mut job =
            ParityJob { op: ParityOp::Encode, len: part.len(), data, p: Column::Absent, q: Column::Absent };
        for &role in &part.parity {
            let column = column_of(take(leases));
            *(if role == Role::P { &mut job.p } else { &mut job.q }) = column;
        }
        outputs(part, self.compute(job).await.0)
    }

    /// The old contents of all data columns, with the lost ones solved for.
    async fn solve(
        &self,
        part: &Part,
        leases: &mut impl Iterator<Item = Option<Lease>>,
    ) -> SmallVec<[(Role, Seg); 16]> {
        let known = part.read.iter().map(|&role| (role, take(leases).share())).collect::<Vec<_>>();
        let outs = part.solve.iter().map(|&role| (role, take(leases))).collect();
        let solved = self.recover(part.len(), &known, outs).await;
        known.into_iter().chain(solved.into_iter().map(|(role, lease)| (role, lease.share()))).collect()
    }

    /// Solves for lost columns from known ones ([`super::stripe::sources`] says which are needed).
    pub(super) async fn recover(
        &self,
        len: u32,
        known: &[(Role, Seg)],
        outs: SmallVec<[(Role, Lease); 2]>,
    ) -> SmallVec<[(Role, Lease); 2]> {
        let columns = usize::from(self.0.shared.geometry().data_columns());
        let mut job = ParityJob {
            op: ParityOp::Recover,
            len,
            data: (0..columns).map(|_| Column::Absent).collect(),
            p: Column::Absent,
            q: Column::Absent,
        };
        for (role, seg) in known {
            *column_in(&mut job, *role) = Column::In(seg.clone());
        }
        let roles: SmallVec<[Role; 2]> = outs.iter().map(|(role, _)| *role).collect();
        for (role, lease) in outs {
            *column_in(&mut job, role) = column_of(lease);
        }
        let (mut job, _) = self.compute(job).await;
        let mut solved = SmallVec::new();
        for role in roles {
            let column = core::mem::replace(column_in(&mut job, role), Column::Absent);
            solved.push((role, lease_of(column)));
        }
        solved
    }
}

/// The column of a role.
pub(super) fn column_in(job: &mut ParityJob, role: Role) -> &mut Column {
    match role {
        Role::Data(DataIndex(index)) => &mut job.data[usize::from(index)],
        Role::P => &mut job.p,
        Role::Q => &mut job.q,
    }
}

fn outputs(part: &Part, mut job: ParityJob) -> SmallVec<[(Role, Lease); 2]> {
    let mut outputs = SmallVec::new();
    for &role in &part.parity {
        let column = core::mem::replace(column_in(&mut job, role), Column::Absent);
        outputs.push((role, lease_of(column)));
    }
    outputs
}
