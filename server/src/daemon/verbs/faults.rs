//! The verbs of faults.

use crate::control::model::{ActionDoc, FaultListDoc};
use crate::control::request::{FaultClear, FaultInject};
use crate::control::{Answer, ApiError, ErrorCode};
use crate::daemon::api::Api;
use crate::daemon::faults::word;

impl Api {
    pub(in crate::daemon) async fn faults(&self) -> Answer<FaultListDoc> {
        self.0.check_faults_allowed()?;
        let faults = self.0.host.faults.all().iter().map(|one| one.doc()).collect();
        Ok(FaultListDoc { faults }.into())
    }

    pub(in crate::daemon) async fn fault_inject(&self, what: FaultInject) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        daemon.check_faults_allowed()?;
        let wish = daemon.wish_for(&what).await?;
        let shown = wish.path.display().to_string();
        let place = wish
            .member
            .as_ref()
            .map_or_else(String::new, |(group, slot)| format!(" (slot {slot} of group {})", group.name()));
        let mut step = format!("{shown}{place}: {}", word(what.what));
        for range in wish.ranges.iter().flatten() {
            step.push_str(&format!(", bytes {} to {}", range.start, range.end - 1));
        }
        if let Some(count) = what.count {
            step.push_str(&format!(", {count} commands"));
        }
        step.push_str(&match what.for_s {
            Some(seconds) => format!(", for {seconds} s"),
            None => ", until it is cleared".to_owned(),
        });
        if !what.dry_run {
            let id = daemon.inject(wish, &what)?;
            step.push_str(&format!(": fault {id}"));
        }
        Ok(ActionDoc::new("fault inject", shown, what.dry_run, vec![step]).into())
    }

    pub(in crate::daemon) async fn fault_clear(&self, what: FaultClear) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        daemon.check_faults_allowed()?;
        let (subject, path) = match (&what.drive, what.id) {
            (Some(drive), _) => (drive.clone(), Some(self.fault_path(drive).await?)),
            (None, Some(id)) => (id.to_string(), None),
            (None, None) => ("all".to_owned(), None),
        };
        let meant = |one: &crate::daemon::faults::Injected| {
            what.all || what.id == Some(one.id) || path.as_ref() == Some(&one.path)
        };
        let faults = daemon.host.faults.all();
        let steps: Vec<String> = faults
            .iter()
            .filter(|one| meant(one))
            .map(|one| format!("fault {} of {} ends", one.id, one.path.display()))
            .collect();
        if steps.is_empty() && !what.all {
            let message = format!("there is no fault {subject}");
            return Err(ApiError::new(ErrorCode::FaultNotFound, message).hint("warpraid fault list"));
        }
        if !what.dry_run {
            daemon.clear_faults(meant);
        }
        Ok(ActionDoc::new("fault clear", subject, what.dry_run, steps).into())
    }

    /// The path of a drive whose faults are cleared: that of a fault first, for the drive may not answer.
    async fn fault_path(&self, drive: &str) -> Result<std::path::PathBuf, ApiError> {
        let known = self.0.host.faults.all();
        let by_path = |one: &&crate::daemon::faults::Injected| one.path.as_os_str() == drive;
        match known.iter().find(by_path) {
            Some(one) => Ok(one.path.clone()),
            None => Ok(self.0.faulty_drive(drive).await?.0),
        }
    }
}
