//! Step 7, **commit**: data and parity to the members, one batch, neighbours on a member as one command.

use smallvec::SmallVec;

use super::Group;
use super::encode::Put;
use super::gather::SEGMENTS_MAX;
use super::intent::SlotErrors;
use super::lane::LaneView;
use super::plan::Piece;
use super::stripe;
use crate::lease::Segs;
use crate::ports::{Durability, Env, one_seg};
use crate::units::Slot;

impl<E: Env> Group<E> {
    /// What the pieces of a write put where: every live copy of each.
    pub(super) fn data_puts(&self, lane: &LaneView<E>, pieces: &[Piece], puts: &mut Vec<Put>) {
        let geometry = self.0.shared.geometry();
        for piece in pieces {
            for slot in stripe::copies(geometry, piece.stripe, piece.index) {
                if lane.is_live(&self.0.shared, slot, piece.stripe) {
                    let at = geometry.member_offset(piece.stripe, piece.column);
                    puts.push(Put { slot, at, seg: piece.seg.clone() });
                }
            }
        }
    }

    /// Writes everything, and to successors what they have already been given; returns the members that failed, each once.
    pub(super) async fn commit(&self, lane: &LaneView<E>, puts: &mut [Put], how: Durability) -> SlotErrors {
        puts.sort_by_key(|put| (put.slot, put.at));
        let mut commands = SmallVec::<[_; 4]>::new();
        for (slot, at, from) in runs(puts.iter()) {
            commands.push((slot, self.start_write(lane, slot, at, from, how)));
        }
        let copies = self.start_copies(lane, puts);
        let mut errors = SlotErrors::new();
        for (slot, command) in commands {
            if let Err(error) = command.finish().await {
                self.count_error(slot);
                if !errors.iter().any(|(failed, _)| *failed == slot) {
                    errors.push((slot, error));
                }
            }
        }
        if !copies.is_empty() {
            // Boxed: rare work would make the future of every write larger.
            Box::pin(self.finish_copies(copies)).await;
        }
        errors
    }
}

/// Sorted puts as commands: neighbours on a member are one.
pub(super) fn runs<'a>(puts: impl Iterator<Item = &'a Put>) -> impl Iterator<Item = (Slot, u64, Segs)> {
    let mut puts = puts.peekable();
    core::iter::from_fn(move || {
        let first = puts.next()?;
        let mut end = first.end();
        let mut from = one_seg(first.seg.clone());
        while from.len() < SEGMENTS_MAX
            && let Some(put) = puts.next_if(|put| put.slot == first.slot && put.at == end)
        {
            end = put.end();
            from.push(put.seg.clone());
        }
        Some((first.slot, first.at, from))
    })
}
