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
use crate::ports::{Durability, Env};

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

    /// Writes everything; returns the members that failed, each once.
    pub(super) async fn commit(&self, lane: &LaneView<E>, puts: &mut [Put], how: Durability) -> SlotErrors {
        puts.sort_by_key(|put| (put.slot, put.at));
        let mut commands = SmallVec::<[_; 4]>::new();
        let mut start = 0;
        while start < puts.len() {
            let (slot, first) = (puts[start].slot, puts[start].at);
            let mut from = Segs::new();
            let mut at = first;
            while let Some(put) = puts.get(start)
                && put.slot == slot
                && put.at == at
                && from.len() < SEGMENTS_MAX
            {
                at += u64::from(put.seg.len());
                from.push(put.seg.clone());
                start += 1;
            }
            commands.push((slot, self.start_write(lane, slot, first, from, how)));
        }
        let mut errors = SlotErrors::new();
        for (slot, command) in commands {
            if let Err(error) = command.finish().await {
                self.count_error(slot);
                if !errors.iter().any(|(failed, _)| *failed == slot) {
                    errors.push((slot, error));
                }
            }
        }
        errors
    }
}
