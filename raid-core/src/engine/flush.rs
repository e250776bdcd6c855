//! Flush: every write acknowledged before it, on whichever lane, is durable when it completes (promise P1); and the end
//! of a group's service.

use super::Group;
use super::intent::SlotErrors;
use super::lane::LaneView;
use super::write::{ATTEMPTS_MAX, GAVE_UP};
use crate::ports::{Drive, Env, IoError, IoKind};

impl<E: Env> Group<E> {
    /// Makes every write acknowledged before this call durable. A member that cannot flush is dropped, because it may
    /// have lost what it had taken (SAFETY M2).
    ///
    /// # Errors
    /// [`IoKind::BeyondTolerance`] while blocks of the group have no live member: what was acknowledged there may be lost.
    pub async fn flush(&self) -> Result<(), IoError> {
        for _ in 0..ATTEMPTS_MAX {
            let entered = self.enter();
            let (version, epoch) = (entered.version(), entered.view().epoch);
            let errors = self.flush_members(&entered).await;
            drop(entered);
            let is_done = errors.is_empty();
            if !is_done {
                Box::pin(self.fail_all(epoch, errors)).await?;
                continue;
            }
            self.0.shared.wait_settled(version).await;
            return match self.0.shared.is_offline() {
                false => Ok(()),
                true => Err(IoError::new(
                    IoKind::BeyondTolerance,
                    "blocks of the group have no live member: what was written there may be lost",
                )),
            };
        }
        Err(GAVE_UP)
    }

    /// Ends service: no new requests ([`IoKind::ShuttingDown`]), waits for the writes that run, flushes, and clears the
    /// intent bits if the group is complete and in sync.
    ///
    /// # Errors
    /// As [`Group::flush`]; the group is stopping all the same.
    pub async fn quiesce(&self) -> Result<(), IoError> {
        self.0.shared.stop().await;
        self.flush().await?;
        self.clear_intents(0).await
    }

    /// Flushes every member of a view that is there, all at once; the members that failed.
    pub(super) async fn flush_members(&self, lane: &LaneView<E>) -> SlotErrors {
        let mut errors = SlotErrors::new();
        let mut commands = Vec::new();
        for slot in lane.slots().filter(|&slot| !lane.is_missing(slot)) {
            match lane.drive(slot) {
                Ok((drive, _)) => commands.push((slot, drive.flush())),
                Err(error) => errors.push((slot, error)),
            }
        }
        for (slot, command) in commands {
            if let Err(error) = command.await {
                self.count_error(slot);
                errors.push((slot, error));
            }
        }
        errors
    }
}
