//! A drive that carries a member, in words: of which group, what it was when last written, and the way on.
//!
//! For drives that no running group uses: a group that does not run here, was deleted, was never finished, or has gone on
//! without this drive.

use raid_core::format::extension::SlotState;
use raid_core::membership::{NoReturn, Observation, Ours};
use raid_core::units::{Slot, Uuid};

use super::Daemon;
use super::look::Looked;
use super::words::quoted;
use crate::control::model::DriveDoc;

fn wipe(path: &str) -> String {
    format!("warpraid drive wipe {}", quoted(path))
}

/// What the member last knew of itself.
fn role(ours: &Ours) -> Option<(Slot, &'static str)> {
    let slots = (0u8..).map(Slot).zip(&ours.copy.slots);
    let mine = slots.into_iter().find(|(_, record)| record.device_uuid == ours.copy.device_uuid)?;
    let state = match mine.1.state {
        SlotState::InSync => "in sync",
        SlotState::Rebuilding => "being rebuilt",
        SlotState::Missing => "out of it",
    };
    Some((mine.0, state))
}

impl Daemon {
    /// Says in the document of a drive what the member on it is, and what to type.
    pub(super) fn say_claimed(&self, doc: &mut DriveDoc, looked: &Looked) {
        let path = doc.path.clone();
        let (why, next) = match &looked.seen.what {
            Observation::Ours(ours) => self.say_ours(ours, looked, &path),
            Observation::Modified { group, .. } => (
                format!("a member of group {group} that other software has changed since"),
                format!("warpraid examine {}", quoted(&path)),
            ),
            Observation::Damaged { group, what, .. } => {
                let of =
                    group.map_or_else(|| "an unknown group".to_owned(), |group| format!("group {group}"));
                (format!("a damaged member of {of}: {what}"), format!("warpraid examine {}", quoted(&path)))
            }
            _ => return,
        };
        (doc.why, doc.next) = (Some(why), Some(next));
    }

    fn say_ours(&self, ours: &Ours, looked: &Looked, path: &str) -> (String, String) {
        let (name, group, marks) = (&ours.copy.name, ours.copy.group, &ours.copy.marks);
        if marks.creating {
            return (format!("left by a create of group {name} ({group}) that was not finished"), wipe(path));
        }
        let Some((slot, state)) = role(ours) else {
            return (format!("a member of group {name} ({group}) without a slot"), wipe(path));
        };
        let place = format!("slot {slot} of group {name} ({group})");
        if marks.deleted {
            let undelete = format!("warpraid group undelete {group} {}", quoted(path));
            return (format!("was {place}, which was deleted"), format!("{undelete}   (or: {})", wipe(path)));
        }
        if let Some(running) = self.groups.read().get(&group) {
            return match Self::may_return(running, looked) {
                Ok(_) => (
                    format!("{place}, out of it; it can come back"),
                    format!("warpraid group readd {name} {}", quoted(path)),
                ),
                Err(NoReturn::Replaced { .. } | NoReturn::Taken(_)) => {
                    (format!("was {place}, where another drive is now"), wipe(path))
                }
                Err(why) => (format!("{place}, out of it; it cannot come back: {why}"), wipe(path)),
            };
        }
        let last = format!("{state} when last written (epoch {})", ours.copy.epoch().counter);
        let is_known = |uuid: Uuid| self.unstarted_docs().iter().any(|doc| doc.uuid == uuid.to_string());
        let assemble = format!("warpraid group assemble {group}");
        let next = if is_known(group) { "warpraid status".to_owned() } else { assemble };
        let next = format!("{next}   (or, if nothing of the group is needed: {})", wipe(path));
        (format!("{place}, {last}; the group does not run here"), next)
    }
}
