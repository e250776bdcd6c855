//! Which members are rebuilt next, and how far their stored cursors may lag behind.
//!
//! The order serves the stripes that lack most, soonest:
//!
//! 1. A member that came back (`partial.rs`) goes first and alone: it lacks little and gives its redundancy back quickly.
//! 2. Members whose cursors are level go together: the others are read once for all of them, and every stripe gets all it
//!    lacks at once.
//! 3. Of members whose cursors are apart, the one furthest behind catches up if that is little, and then they go together;
//!    else the one furthest ahead goes on: above its cursor the stripes lack most.
//!
//! Stored cursors (SAFETY S3) lag by at most half a percent of the member or five seconds, whichever comes first, so that
//! a restart costs less than one percent of what was done.

use core::ops::Deref;
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Group;
use super::super::repair::one_error;
use super::rebuild::Targets;
use super::{Pace, SweepError};
use crate::geometry::Level;
use crate::membership::{self, GroupMeta};
use crate::ports::{Clock, Drive, Env};
use crate::units::Slot;
use crate::view::MemberState;

/// A cursor is stored after this part of the member at the latest.
const STORE_EVERY_PART: u64 = 200;
/// And after this many bytes.
const STORE_EVERY_BYTES: u64 = 256 * 1024 * 1024;
/// And after this time.
const STORE_EVERY_NS: u64 = 5_000_000_000;
/// A member this part of its size behind another catches up first.
const CATCH_UP_PART: u64 = 16;
/// Steps of a member that came back between two counts of what it lacks.
const RECOUNT_STEPS: u64 = 64;

/// What the next step is for.
#[derive(PartialEq, Eq, Debug)]
struct Turn {
    slots: Targets,
    /// First stripe.
    start: u64,
    /// Stripe to stop before.
    end: u64,
}

/// Cursor (in stripes) and kind of every member that is to be rebuilt, by slot.
fn choose(level: Level, stripes: u64, pending: &[(Slot, u64, bool)]) -> Option<Turn> {
    let one = |&(slot, start, _): &(Slot, u64, bool)| Turn {
        slots: Targets::from_iter([slot]),
        start,
        end: stripes,
    };
    if let Some(partial) = pending.iter().find(|(_, _, is_partial)| *is_partial) {
        return Some(one(partial));
    }
    let highest = pending.iter().max_by_key(|(slot, at, _)| (*at, core::cmp::Reverse(*slot)))?;
    if level == Level::Raid10 {
        return Some(one(highest));
    }
    let lowest = pending.iter().map(|(_, at, _)| *at).min()?;
    let gap = highest.1 - lowest;
    let start = if gap <= (stripes / CATCH_UP_PART).max(1) { lowest } else { highest.1 };
    let level_with = pending.iter().filter(|(_, at, _)| *at == start).map(|(slot, _, _)| *slot);
    let next_above = pending.iter().map(|(_, at, _)| *at).filter(|at| *at > start).min();
    Some(Turn { slots: level_with.collect(), start, end: next_above.unwrap_or(stripes) })
}

/// What is known of a member while it is rebuilt.
struct Track<P> {
    pace: P,
    stored_bytes: u64,
    stored_ns: u64,
    steps: u64,
}

impl<E: Env> Group<E> {
    /// Rebuilds the member in `slot`, which a view lists as rebuilding, from its cursor on; foreground I/O goes on meanwhile.
    /// At the end it is flushed and published as in sync. A member that came back ([`Group::readd_member`]) gets only what
    /// it lacks. Others that are to be rebuilt are left alone: [`Group::rebuild_pending`] takes them along.
    ///
    /// # Errors
    /// [`SweepError::MemberGone`] if the member fails or is none that is being rebuilt; [`SweepError::Cancelled`]; an I/O
    /// error if the group has lost too much to rebuild from.
    pub async fn rebuild(&self, slot: Slot, pace: &Pace) -> Result<(), SweepError> {
        let ended = self.rebuild_while(|other| other == slot, |_| pace).await;
        let own = ended.into_iter().find(|(ended, _)| *ended == slot);
        own.map_or(Err(SweepError::MemberGone(slot)), |(_, result)| result)
    }

    /// Rebuilds every member that is to be rebuilt, also those that join meanwhile, until none is left; as [`Group::rebuild`].
    /// `pace_of` gives the pace of a slot, once for each. Returns how each ended.
    pub async fn rebuild_pending(
        &self,
        pace_of: impl FnMut(Slot) -> Arc<Pace>,
    ) -> Vec<(Slot, Result<(), SweepError>)> {
        self.rebuild_while(|_| true, pace_of).await
    }

    async fn rebuild_while<P: Deref<Target = Pace> + Clone>(
        &self,
        wanted: impl Fn(Slot) -> bool,
        mut pace_of: impl FnMut(Slot) -> P,
    ) -> Vec<(Slot, Result<(), SweepError>)> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let mut tracks: BTreeMap<Slot, Track<P>> = BTreeMap::new();
        let mut ended: Vec<(Slot, Result<(), SweepError>)> = Vec::new();
        loop {
            let view = shared.view();
            let is_open = |slot: &Slot| {
                view.member(*slot).state == MemberState::Rebuilding
                    && wanted(*slot)
                    && ended.iter().all(|(other, _)| other != slot)
            };
            let pending: Vec<(Slot, u64, bool)> = view
                .slots()
                .filter(is_open)
                .map(|slot| (slot, self.cursor_stripe(slot), shared.is_by_intents(slot)))
                .collect();
            let Some(turn) = choose(geometry.level(), geometry.stripes(), &pending) else { break };
            for &slot in &turn.slots {
                tracks.entry(slot).or_insert_with(|| self.track(slot, pace_of(slot)));
            }
            match self.take_turn(&turn, &mut tracks).await {
                Ok(true) => ended.extend(turn.slots.iter().map(|&slot| (slot, Ok(())))),
                Ok(false) => {}
                Err(SweepError::MemberGone(slot)) => ended.push((slot, Err(SweepError::MemberGone(slot)))),
                Err(SweepError::Cancelled) => {
                    self.store_all(&tracks).await;
                    ended.extend(pending.iter().map(|(slot, _, _)| (*slot, Err(SweepError::Cancelled))));
                }
                Err(error) => ended.extend(turn.slots.iter().map(|&slot| (slot, Err(error)))),
            }
        }
        ended
    }

    /// The first stripe that the cursor of a slot is not past.
    fn cursor_stripe(&self, slot: Slot) -> u64 {
        let (geometry, cursor) = (self.0.shared.geometry(), self.0.shared.cursor(slot));
        match cursor >= geometry.member_bytes() {
            true => geometry.stripes(),
            false => cursor / u64::from(geometry.chunk_bytes()),
        }
    }

    fn track<P: Deref<Target = Pace>>(&self, slot: Slot, pace: P) -> Track<P> {
        let shared = &self.0.shared;
        pace.total_bytes.store(shared.geometry().member_bytes(), Ordering::Relaxed);
        pace.done_bytes.store(shared.cursor(slot), Ordering::Relaxed);
        // A slot whose successor was made its member is further than its drive says.
        let stored_bytes = match &**shared.meta() {
            GroupMeta::Persistent(meta) => meta.cursor_bytes(slot),
            GroupMeta::Volatile => shared.cursor(slot),
        };
        let track = Track { pace, stored_bytes, stored_ns: self.0.env.clock().now_ns(), steps: 0 };
        self.recount(slot, &track);
        let resumed_bytes = track.pace.done_bytes.load(Ordering::Relaxed);
        track.pace.resumed_bytes.store(resumed_bytes, Ordering::Relaxed);
        track
    }

    /// How much a member that came back lacks, below its cursor (done) and above it.
    fn recount<P: Deref<Target = Pace>>(&self, slot: Slot, track: &Track<P>) {
        let shared = &self.0.shared;
        if shared.is_by_intents(slot) {
            let geometry = shared.geometry();
            let chunk = u64::from(geometry.chunk_bytes());
            let cursor = self.cursor_stripe(slot);
            let (done, left) =
                (shared.lacking(slot, 0..cursor), shared.lacking(slot, cursor..geometry.stripes()));
            track.pace.total_bytes.store((done + left) * chunk, Ordering::Relaxed);
            track.pace.done_bytes.store(done * chunk, Ordering::Relaxed);
        }
    }

    /// One step, or the end of the turn's members: then true.
    async fn take_turn<P: Deref<Target = Pace> + Clone>(
        &self,
        turn: &Turn,
        tracks: &mut BTreeMap<Slot, Track<P>>,
    ) -> Result<bool, SweepError> {
        let shared = &self.0.shared;
        let geometry = *shared.geometry();
        let first = turn.slots[0];
        let pace = tracks[&first].pace.clone();
        for slot in &turn.slots {
            self.go_on(&tracks[slot].pace)?;
        }
        let is_partial = shared.is_by_intents(first);
        let start = if is_partial { self.pass_current(first, turn.start).await? } else { turn.start };
        if start >= geometry.stripes() {
            for &slot in &turn.slots {
                self.finish(slot, &tracks[&slot]).await?;
            }
            return Ok(true);
        }
        let began_ns = self.0.env.clock().now_ns();
        let step = self.step(&pace).min((geometry.stripes() / STORE_EVERY_PART).max(1));
        let lacking = if is_partial {
            shared.next_lacking(first, start).map_or(start + 1, |run| run.end)
        } else {
            turn.end
        };
        let stripes = start..turn.end.min(start + step).min(lacking);
        self.rebuild_stripes(&turn.slots, &stripes).await?;
        let bytes = (stripes.end - stripes.start) * u64::from(geometry.chunk_bytes());
        for &slot in &turn.slots {
            let track = tracks.get_mut(&slot).expect("made when the turn began");
            if slot != first {
                // The first one's is counted with its pace.
                track.pace.done_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            track.steps += 1;
            self.store_if_due(slot, track).await?;
        }
        self.keep_pace(&pace, bytes, began_ns).await?;
        if is_partial && tracks[&first].steps.is_multiple_of(RECOUNT_STEPS) {
            self.recount(first, &tracks[&first]);
        }
        Ok(false)
    }

    async fn finish<P: Deref<Target = Pace>>(&self, slot: Slot, track: &Track<P>) -> Result<(), SweepError> {
        self.store_cursor(slot, self.0.shared.cursor(slot)).await?;
        self.promote(slot).await.map_err(|_| SweepError::MemberGone(slot))?;
        track.pace.done_bytes.store(track.pace.total_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    async fn store_if_due<P>(&self, slot: Slot, track: &mut Track<P>) -> Result<(), SweepError> {
        let shared = &self.0.shared;
        let (cursor, now_ns) = (shared.cursor(slot), self.0.env.clock().now_ns());
        let every = (shared.geometry().member_bytes() / STORE_EVERY_PART).clamp(1, STORE_EVERY_BYTES);
        let is_due = cursor - track.stored_bytes >= every || now_ns - track.stored_ns >= STORE_EVERY_NS;
        if is_due && cursor > track.stored_bytes {
            self.store_cursor(slot, cursor).await?;
            (track.stored_bytes, track.stored_ns) = (cursor, now_ns);
        }
        Ok(())
    }

    /// On the way out: what was done needs not be done again.
    async fn store_all<P: Deref<Target = Pace> + Clone>(&self, tracks: &BTreeMap<Slot, Track<P>>) {
        for (&slot, track) in tracks {
            let cursor = self.0.shared.cursor(slot);
            if cursor > track.stored_bytes && self.store_cursor(slot, cursor).await.is_err() {
                // The member failed and was dropped: there is nothing to go on with.
            }
        }
    }

    /// Flushes the target, then stores the cursor as it was before (SAFETY S3).
    async fn store_cursor(&self, slot: Slot, cursor: u64) -> Result<(), SweepError> {
        let lane = self.lane_view();
        if lane.view().member(slot).state != MemberState::Rebuilding {
            return Err(SweepError::MemberGone(slot));
        }
        let flushed = match lane.drive(slot) {
            Ok((drive, _)) => drive.flush().await,
            Err(error) => Err(error),
        };
        let meta = self.0.shared.meta();
        let stored = match flushed {
            Ok(()) => {
                membership::store_cursor(&self.0.env, meta, lane.view(), slot, cursor, &lane.drives()).await
            }
            Err(error) => Err(error),
        };
        match stored {
            Ok(()) => Ok(()),
            Err(error) => {
                self.fail_all(lane.view().epoch, one_error(slot, error)).await?;
                Err(SweepError::MemberGone(slot))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(slots: &[u8], start: u64, end: u64) -> Option<Turn> {
        Some(Turn { slots: slots.iter().map(|&slot| Slot(slot)).collect(), start, end })
    }

    #[test]
    fn the_stripes_that_lack_most_come_first() {
        let whole = |slot, at| (Slot(slot), at, false);
        let choose6 = |pending: &[(Slot, u64, bool)]| choose(Level::Raid6, 1600, pending);
        assert_eq!(choose6(&[]), None);
        assert_eq!(choose6(&[whole(2, 7)]), turn(&[2], 7, 1600));
        assert_eq!(choose6(&[whole(1, 7), whole(4, 7)]), turn(&[1, 4], 7, 1600), "together");
        assert_eq!(choose6(&[whole(1, 90), whole(4, 0)]), turn(&[4], 0, 90), "catches up");
        assert_eq!(
            choose6(&[whole(1, 0), whole(4, 800)]),
            turn(&[4], 800, 1600),
            "goes on where two are lacking"
        );
        assert_eq!(
            choose6(&[whole(1, 0), (Slot(4), 800, true)]),
            turn(&[4], 800, 1600),
            "the quick one first"
        );
        let pairs = [whole(0, 5), whole(2, 5)];
        assert_eq!(choose(Level::Raid10, 1600, &pairs), turn(&[0], 5, 1600), "pairs have nothing to share");
        assert_eq!(choose(Level::Raid1, 1600, &pairs), turn(&[0, 2], 5, 1600));
    }
}
