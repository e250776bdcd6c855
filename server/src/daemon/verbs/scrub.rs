//! The verb `group scrub`.

use crate::control::group_scrub::{GroupScrub, ScrubOrder};
use crate::control::model::{ActionDoc, GroupState, ScrubDoc, ScrubModeDoc};
use crate::control::{Answer, ApiError, ErrorCode};
use crate::daemon::api::Api;
use crate::daemon::running::Running;
use crate::daemon::scrub::obstacle;
use crate::daemon::status::judge;

fn mode_words(mode: ScrubModeDoc) -> &'static str {
    match mode {
        ScrubModeDoc::Report => "mismatches are reported, nothing is repaired but blocks a drive cannot read",
        ScrubModeDoc::Repair => "what is certainly wrong (RAID 6, one member located) is rewritten",
        ScrubModeDoc::RepairSuspected => {
            "what is located as wrong (RAID 6) is rewritten, also where it was written since it was last seen to fit"
        }
        ScrubModeDoc::AssumeDataRight => {
            "data (of mirrors: the first copy) is taken for right, the rest made anew from it"
        }
    }
}

/// Refuses a start that cannot be, or is not meant.
fn check_start(group: &Running, how: &GroupScrub) -> Result<(), ApiError> {
    let name = group.name();
    if !group.shared.geometry().level().is_redundant() {
        let message = format!("group {name} is RAID 0: it has nothing to compare");
        return Err(ApiError::new(ErrorCode::ScrubImpossible, message));
    }
    if group.scrub.lock().is_busy() {
        let message = format!("a scrub of group {name} is under way");
        return Err(ApiError::new(ErrorCode::ScrubBusy, message).hint(format!(
            "warpraid group scrub {name} --show; --resume goes on with it, --cancel gives it up"
        )));
    }
    if judge(&group.facts()).state == GroupState::Offline {
        let message = format!("group {name} is offline: it cannot be read");
        return Err(ApiError::new(ErrorCode::GroupOffline, message).hint("warpraid status says what to do"));
    }
    match obstacle(group, how.even_degraded) {
        None => Ok(()),
        Some(why) => {
            let message = format!("group {name} is not scrubbed: {why}");
            Err(ApiError::new(ErrorCode::ScrubDegraded, message).hint(format!(
                "wait for it: warpraid group wait {name} --for healthy; or add --even-degraded: what is complete is compared"
            )))
        }
    }
}

impl Api {
    pub(in crate::daemon) async fn group_scrub(&self, group: String, how: GroupScrub) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let running = daemon.need_running(&group)?;
        let name = running.name();
        let order = match how.order {
            ScrubOrder::Start => "start",
            ScrubOrder::Pause => "pause",
            ScrubOrder::Resume => "resume",
            ScrubOrder::Cancel => "cancel",
            ScrubOrder::Acknowledge => "acknowledge",
        };
        let step = match how.order {
            ScrubOrder::Start => {
                check_start(&running, &how)?;
                format!("group {name} is scrubbed: {}", mode_words(how.mode))
            }
            ScrubOrder::Acknowledge => {
                if !running.scrub.lock().has_findings() {
                    return Err(nothing(name, "found nothing that waits to be acknowledged"));
                }
                format!("what the last scrub of group {name} found is acknowledged")
            }
            _ => {
                let keeper = running.scrub.lock();
                if !keeper.is_busy() || (how.order == ScrubOrder::Resume && !keeper.is_paused()) {
                    let what = if keeper.is_busy() { "is not paused" } else { "is not under way" };
                    return Err(nothing(name, what));
                }
                match how.order {
                    ScrubOrder::Pause => format!("the scrub of group {name} is paused; it keeps its place"),
                    ScrubOrder::Resume => format!("the scrub of group {name} goes on"),
                    _ => format!("the scrub of group {name} is given up"),
                }
            }
        };
        let mut action = ActionDoc::new("group scrub", name, how.dry_run, vec![step]);
        if !how.dry_run {
            let mut keeper = running.scrub.lock();
            match how.order {
                ScrubOrder::Start => keeper.begin(&running, how.mode, how.even_degraded, false),
                _ => keeper.order(&running, order),
            }
        }
        action.groups.push(running.doc());
        Ok(action.into())
    }

    pub(in crate::daemon) async fn scrub(&self, group: String) -> Answer<ScrubDoc> {
        let running = self.0.need_running(&group)?;
        let doc = running.scrub.lock().doc(&running);
        Ok(doc.into())
    }
}

fn nothing(name: &str, what: &str) -> ApiError {
    ApiError::new(ErrorCode::ScrubImpossible, format!("a scrub of group {name} {what}"))
        .hint(format!("warpraid group scrub {name} --show"))
}
