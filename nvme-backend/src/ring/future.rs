//! What waits for an operation of the ring. Dropping it never frees what the kernel may still touch: the slot becomes an
//! orphan's, and is freed when its completion is reaped (SAFETY M7).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use raid_core::units::usize_of_u32;

use super::{Finished, Payload, State, take_fd};
use crate::lane::Lane;

/// An operation in the table.
pub(crate) struct OpFuture {
    pub(super) lane: Lane,
    pub(super) index: u32,
    pub(super) told: bool,
}

impl Future for OpFuture {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        assert!(!self.told, "polled after completion");
        let index = usize_of_u32(self.index);
        let old_waker;
        let freed;
        {
            let inner = &mut *self.lane.ring().inner.borrow_mut();
            let slot = &mut inner.slots[index];
            match slot.state {
                State::Waiting => {
                    let is_same = slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
                    old_waker = if is_same { None } else { slot.waker.replace(cx.waker().clone()) };
                    freed = None;
                }
                State::Late => {
                    slot.state = State::Orphan;
                    old_waker = None;
                    freed = Some(Finished::TimedOut);
                }
                State::Done => {
                    let result = slot.result;
                    let (payload, owner) = inner.release(index);
                    old_waker = None;
                    freed = Some(Finished::Done(result, payload));
                    // The future's own drive or socket handle is another one; dropping this is a count.
                    drop(owner);
                }
                State::Free | State::Orphan => unreachable!("the future holds its slot until it is told"),
            }
        }
        drop(old_waker);
        match freed {
            Some(finished) => {
                self.told = true;
                Poll::Ready(finished)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        let index = usize_of_u32(self.index);
        let waker;
        let mut freed = None;
        let mut accepted = None;
        {
            let inner = &mut *self.lane.ring().inner.borrow_mut();
            let slot = &mut inner.slots[index];
            waker = slot.waker.take();
            match slot.state {
                State::Waiting => {
                    slot.state = State::Orphan;
                    let user_data = u64::from(slot.generation) << 32 | u64::from(self.index);
                    if let Some(owner) = &slot.owner {
                        owner.orphaned();
                        if owner.cancels_dropped() && !inner.closing {
                            inner.cancel(user_data);
                        }
                    }
                }
                State::Late => slot.state = State::Orphan,
                State::Done => {
                    if matches!(slot.payload, Payload::Accept) && slot.result >= 0 {
                        accepted = Some(slot.result);
                    }
                    freed = Some(inner.release(index));
                }
                State::Free | State::Orphan => unreachable!("the future holds its slot until it is told"),
            }
        }
        if let Some(fd) = accepted {
            drop(take_fd(fd));
        }
        drop((waker, freed));
    }
}
