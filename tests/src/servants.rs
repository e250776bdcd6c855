//! The processes that serve a lab's drives, known to everybody who may have to end them.
//!
//! A daemon that waits for a drive behind FUSE cannot die, not even of SIGKILL, until the drive answers or its server is
//! gone. Whichever goes out of scope first, daemon or drive, ends these first: a test that panics while a drive hangs
//! then ends instead of hanging with it.

use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::tool;

/// None of these processes takes long to die, as none of them waits in the kernel for another.
const DYING_MAX: Duration = Duration::from_secs(10);

/// Processes of a lab; clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Servants(Arc<Mutex<Vec<Child>>>);

impl Servants {
    /// Adds a process; its id.
    pub fn add(&self, child: Child) -> u32 {
        let pid = child.id();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        pid
    }

    /// Kills all of them, in the order in which they were added; a second call does nothing.
    pub fn end(&self) {
        self.end_where(|_| true);
    }

    /// Kills those of the ids in `pids` that still run, in the order in which they were added.
    pub fn end_these(&self, pids: &[u32]) {
        self.end_where(|pid| pids.contains(&pid));
    }

    fn end_where(&self, is_chosen: impl Fn(u32) -> bool) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for mut child in list.extract_if(.., |child| is_chosen(child.id())) {
            if !tool::end(&mut child, DYING_MAX) {
                eprintln!("process {} does not die and is left behind", child.id());
            }
        }
    }
}
