//! Small things done on every lane.

use std::sync::Arc;

use nvme_backend::Remote;
use raid_core::engine::{Group, Shared};
use raid_core::ports::DriveKey;
use raid_core::units::Uuid;

use crate::lane::{current, on_lane};

/// Gives every lane its handle of a group that was started.
pub(super) async fn install_group(lanes: &[Remote], uuid: Uuid, shared: &Arc<Shared>) {
    for lane in lanes {
        let shared = Arc::clone(shared);
        let done = on_lane(lane, move |state| async move {
            let group = Group::new(state.env().clone(), shared);
            state.insert_group(uuid, group);
        });
        // A lane that has gone takes the daemon down with it; nothing to do here.
        let _ = done.await;
    }
}

/// Takes the handles of a stopped group away, and every lane's handle of its drives.
pub(super) async fn remove_group(lanes: &[Remote], uuid: Uuid, keys: Vec<DriveKey>) {
    for lane in lanes {
        let keys = keys.clone();
        let done = on_lane(lane, move |state| async move {
            state.remove_group(uuid);
            for key in keys {
                state.env().forget_drive(key);
            }
        });
        let _ = done.await;
    }
}

/// Makes every lane forget a drive that left its group, so that its descriptor closes.
pub(super) fn forget_drive(lanes: &[Remote], group: Uuid, key: DriveKey) {
    for lane in lanes {
        lane.run(Box::new(move |_| {
            let Some(state) = current() else { return };
            state.env().forget_drive(key);
            if let Some(group) = state.group(group) {
                group.refresh();
            }
        }));
    }
}
