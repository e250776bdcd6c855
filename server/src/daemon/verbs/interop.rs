//! The verbs that take arrays of Linux md over and give groups back.

use crate::control::model::ActionDoc;
use crate::control::request::{GroupAdopt, GroupRelease};
use crate::control::{Answer, Reply};
use crate::daemon::Daemon;
use crate::daemon::api::{Api, confirm_missing};

impl Api {
    pub(in crate::daemon) async fn group_adopt(&self, what: GroupAdopt) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        daemon.check_group_name(&what.name)?;
        if !what.dry_run && !what.yes {
            return Err(confirm_missing(&format!("adopting md's array as {}", what.name)));
        }
        let taken = daemon.take_md(&what.drives, !what.dry_run).await?;
        let action = ActionDoc::new("group adopt", what.name.clone(), what.dry_run, taken.steps(&what.name));
        if what.dry_run {
            daemon.release(taken.keys()).await;
            return Ok(action.into());
        }
        let started = daemon.adopt_group(&what.name, taken).await?;
        let misaligned = Daemon::misaligned(&started.group);
        let mut reply: Reply<ActionDoc> = self.started(action, started).await;
        reply.data.steps.extend(misaligned);
        Ok(reply)
    }

    pub(in crate::daemon) async fn group_release(
        &self,
        group: String,
        how: GroupRelease,
    ) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let running = daemon.need_running(&group)?;
        let name = running.name().to_owned();
        Daemon::check_release(&running)?;
        let mut steps = Daemon::release_steps(&running);
        if !how.dry_run {
            if !how.yes {
                return Err(confirm_missing(&format!("releasing group {name} to md")));
            }
            steps.extend(daemon.release_group(&running).await?);
        }
        Ok(ActionDoc::new("group release", name, how.dry_run, steps).into())
    }
}
