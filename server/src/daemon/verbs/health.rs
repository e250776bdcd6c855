//! `status` and `health`.

use crate::control::model::{DaemonDoc, GroupDoc, Health, HealthDoc, ProblemDoc, StatusDoc};
use crate::control::{Answer, ProblemCode};
use crate::daemon::api::Api;
use crate::daemon::host::unix_seconds;

/// Where a spare takes a slot by itself, nothing is to be replaced: the problem of its member points to it.
fn point_to_spares(problems: &mut [ProblemDoc], more: &[ProblemDoc]) {
    let waiting = more.iter().filter(|one| one.code == ProblemCode::GroupSpareWaiting.as_str());
    for spare in waiting {
        for problem in problems.iter_mut().filter(|one| one.slot == spare.slot) {
            if problem.code == ProblemCode::GroupDegraded.as_str()
                || problem.code == ProblemCode::MemberStale.as_str()
            {
                problem.why = format!("{}; {}", problem.why, spare.why);
                problem.next.clone_from(&spare.next);
            }
        }
    }
}

impl Api {
    /// Problems that others than the groups themselves know of: faults, spares, slow and sick members.
    fn more_problems(&self) -> Vec<ProblemDoc> {
        let mut more = self.0.fault_problems();
        more.extend(self.0.spare_problems());
        more.extend(self.0.sick_problems());
        more
    }

    /// The document with everything that is known beside what the group itself knows.
    pub(in crate::daemon) fn completed(&self, mut doc: GroupDoc) -> GroupDoc {
        let mine = |problem: &ProblemDoc| problem.group.as_deref() == Some(doc.name.as_str());
        let more: Vec<ProblemDoc> = self.more_problems().into_iter().filter(mine).collect();
        point_to_spares(&mut doc.problems, &more);
        doc.problems.extend(more);
        doc.problems.sort_by_key(|problem| std::cmp::Reverse(problem.health));
        doc.health = Self::worst(&doc.problems).max(doc.health);
        if let Some(group) = self.0.running(&doc.uuid) {
            let status = group.shared.status();
            for (member, counts) in doc.members.iter_mut().zip(&status.slots) {
                member.latency = self.0.latency_doc(group.uuid, member.slot, counts.reads, counts.writes);
            }
        }
        doc
    }

    pub(in crate::daemon) fn group_docs(&self) -> Vec<GroupDoc> {
        let mut docs: Vec<GroupDoc> = self.0.groups.read().values().map(|group| group.doc()).collect();
        docs.extend(self.0.unstarted_docs());
        docs.sort_by(|one, other| one.name.cmp(&other.name));
        docs.into_iter().map(|doc| self.completed(doc)).collect()
    }

    /// Every problem, worst first: those of the groups, and the daemon's own.
    pub(in crate::daemon) fn problems(&self, groups: &[GroupDoc]) -> Vec<ProblemDoc> {
        let mut all: Vec<ProblemDoc> = groups.iter().flat_map(|group| group.problems.clone()).collect();
        all.extend(self.0.own_problems());
        all.extend(self.more_problems().into_iter().filter(|problem| problem.group.is_none()));
        all.sort_by_key(|problem| std::cmp::Reverse(problem.health));
        all
    }

    pub(in crate::daemon) fn worst(problems: &[ProblemDoc]) -> Health {
        problems.iter().map(|problem| problem.health).max().unwrap_or(Health::Ok)
    }

    pub(in crate::daemon) async fn status(&self) -> Answer<StatusDoc> {
        let groups = self.group_docs();
        let problems = self.problems(&groups);
        let daemon = DaemonDoc {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_unix_s: self.0.started_unix_s,
            now_unix_s: unix_seconds(),
            lanes: u16::try_from(self.0.lanes.len()).unwrap_or(u16::MAX),
            memory_bytes: self.0.memory_bytes,
            upgraded: self.0.upgrade.doc(),
            parity_kernel: self.0.host.parity().kernel_name(),
        };
        Ok(StatusDoc { health: Self::worst(&problems), daemon, groups, problems }.into())
    }

    pub(in crate::daemon) async fn health(&self) -> Answer<HealthDoc> {
        let groups = self.group_docs();
        let problems = self.problems(&groups);
        let health = Self::worst(&problems);
        let summary = match problems.first() {
            None => format!("{} group{} healthy", groups.len(), if groups.len() == 1 { "" } else { "s" }),
            Some(worst) => {
                let group = worst.group.as_deref().unwrap_or("warpraid");
                format!("{group}: {}; {}", worst.why, worst.risk)
            }
        };
        Ok(HealthDoc { health, summary, problems }.into())
    }
}
