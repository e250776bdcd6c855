//! Merging of queued writes (the second half of step 3): a small write to a stripe that a write of the same lane is busy
//! with leaves its pieces in a queue; whoever comes next takes all of them along as one operation, so that a sequential
//! stream of small writes pays for parity once a batch.
//!
//! Invariants: at most one write per stripe and lane is busy; a queue is served in order; a batch has no two pieces that
//! overlap, so that later writes stay later. All local to one lane, no lock.

use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;

use super::Group;
use super::plan::Piece;
use crate::geometry::Level;
use crate::ports::{Durability, Env, IoError};

/// Most pieces of one batch.
const BATCH_PIECES_MAX: usize = 64;

/// What a queued write waits for.
enum Turn {
    Queued(Option<Waker>),
    /// Its turn to write, its own pieces and whatever queues behind it.
    Leads,
    /// Somebody took it along.
    Done(Result<(), IoError>),
}

struct Queued {
    pieces: SmallVec<[Piece; 2]>,
    how: Durability,
    turn: Rc<RefCell<Turn>>,
}

fn set(turn: &RefCell<Turn>, value: Turn) {
    let old = core::mem::replace(&mut *turn.borrow_mut(), value);
    if let Turn::Queued(Some(waker)) = old {
        waker.wake();
    }
}

/// The stripes this lane is writing, and who waits for each.
#[derive(Default)]
pub(super) struct Queues(RefCell<BTreeMap<u64, VecDeque<Queued>>>);

impl Queues {
    /// Takes the writes waiting for a stripe that can go along with `pieces`: in order, up to the first that overlaps.
    fn take_along(&self, stripe: u64, pieces: &mut SmallVec<[Piece; 2]>, how: Durability) -> Vec<Queued> {
        let mut taken: Vec<Queued> = Vec::new();
        let mut queues = self.0.borrow_mut();
        let Some(queue) = queues.get_mut(&stripe) else { return taken };
        while let Some(next) = queue.front() {
            let overlaps = next.pieces.iter().any(|piece| pieces.iter().any(|other| overlap(piece, other)));
            if overlaps || next.how != how || pieces.len() + next.pieces.len() > BATCH_PIECES_MAX {
                break;
            }
            pieces.extend(next.pieces.iter().cloned());
            taken.extend(queue.pop_front());
        }
        taken
    }

    /// The busy write is over: the next one leads.
    fn pass_on(&self, stripe: u64) {
        let mut queues = self.0.borrow_mut();
        match queues.get_mut(&stripe).and_then(VecDeque::pop_front) {
            Some(next) => set(&next.turn, Turn::Leads),
            None => {
                queues.remove(&stripe);
            }
        }
    }
}

fn overlap(a: &Piece, b: &Piece) -> bool {
    a.index == b.index && a.columns().start < b.columns().end && b.columns().start < a.columns().end
}

impl<E: Env> Group<E> {
    /// Writes pieces, together with others of the same stripe where that saves parity work.
    pub(super) async fn write_merged(
        &self,
        mut pieces: SmallVec<[Piece; 2]>,
        how: Durability,
    ) -> Result<(), IoError> {
        let first = pieces[0].stripe.0;
        let last = pieces[pieces.len() - 1].stripe.0;
        let stripes = first..last + 1;
        if first != last || self.0.shared.geometry().level() == Level::Raid0 {
            return self.write_pieces(&pieces, &stripes, how).await;
        }
        let turn = {
            let mut queues = self.0.merge.0.borrow_mut();
            match queues.get_mut(&first) {
                None => {
                    queues.insert(first, VecDeque::new());
                    None
                }
                Some(queue) => {
                    let turn = Rc::new(RefCell::new(Turn::Queued(None)));
                    queue.push_back(Queued { pieces: pieces.clone(), how, turn: Rc::clone(&turn) });
                    Some(turn)
                }
            }
        };
        if let Some(turn) = turn
            && let Some(result) = wait_turn(&turn).await
        {
            return result;
        }
        let own = pieces.len();
        let taken = self.0.merge.take_along(first, &mut pieces, how);
        let mut result = self.write_pieces(&pieces, &stripes, how).await;
        if result.is_err() && !taken.is_empty() {
            // An error belongs to exactly the blocks it is about (promise P4): each write for itself.
            result = Box::pin(self.write_pieces(&pieces[..own], &stripes, how)).await;
            for queued in taken {
                let alone = Box::pin(self.write_pieces(&queued.pieces, &stripes, how)).await;
                set(&queued.turn, Turn::Done(alone));
            }
        } else {
            for queued in taken {
                set(&queued.turn, Turn::Done(result));
            }
        }
        self.0.merge.pass_on(first);
        result
    }
}

/// Waits for the turn to lead (`None`) or for the result of whoever took the write along.
async fn wait_turn(turn: &RefCell<Turn>) -> Option<Result<(), IoError>> {
    poll_fn(|cx| match &mut *turn.borrow_mut() {
        Turn::Queued(waker) => {
            *waker = Some(cx.waker().clone());
            Poll::Pending
        }
        Turn::Leads => Poll::Ready(None),
        Turn::Done(result) => Poll::Ready(Some(*result)),
    })
    .await
}
