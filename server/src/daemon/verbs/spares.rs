//! The verbs of spares.

use crate::control::Answer;
use crate::control::model::{ActionDoc, SpareListDoc};
use crate::control::request::{SpareAdd, SpareRemove};
use crate::daemon::api::Api;
use crate::daemon::look;

impl Api {
    pub(in crate::daemon) async fn spares(&self) -> Answer<SpareListDoc> {
        Ok(self.0.spare_docs().into())
    }

    pub(in crate::daemon) async fn spare_add(&self, what: SpareAdd) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let group = what.group.as_deref().map(|name| daemon.need_running(name)).transpose()?;
        let path = look::resolve_all(&[what.drive]).await?.remove(0);
        let steps = daemon.add_spare(&path, group.as_deref(), what.dry_run).await?;
        Ok(ActionDoc::new("spare add", path.display().to_string(), what.dry_run, steps).into())
    }

    pub(in crate::daemon) async fn spare_remove(&self, what: SpareRemove) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let path = daemon.spare_called(&what.drive)?;
        let shown = path.display().to_string();
        let steps = vec![format!("{shown} is no spare any more")];
        if !what.dry_run {
            daemon.remove_spare(&path).await?;
        }
        Ok(ActionDoc::new("spare remove", shown, what.dry_run, steps).into())
    }
}
