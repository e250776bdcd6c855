//! What a process must do that serves pages to the kernel, and who uses a block device.

/// Keeps this process out of the way of the memory it serves pages for: it never waits for its own disks to be written
/// (PR_SET_IO_FLUSHER, of the calling thread and those it starts), is never swapped out, and is killed last when memory
/// runs out. Returns what was refused, in words.
#[must_use]
pub fn protect_process() -> Vec<String> {
    use rustix::mm::MlockAllFlags;
    let mut refused = Vec::new();
    // What is mapped now in full; later mappings (thread stacks) as they are touched.
    let locked = rustix::mm::mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| rustix::mm::mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT));
    if let Err(error) = locked {
        refused.push(format!("memory is not locked: {error}"));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        refused.push(format!("not protected when memory runs out: {error}"));
    }
    refused.extend(protect_thread());
    refused
}

/// The part of [`protect_process`] that is each thread's own.
#[must_use]
pub fn protect_thread() -> Option<String> {
    let set = rustix::process::configure_io_flusher_behavior(true);
    set.err().map(|error| format!("may wait for its own disks when memory is short: {error}"))
}

/// What uses a block device: holders, mounts, swap, and one process that has it open.
#[must_use]
pub fn users_of(path: &std::path::Path) -> Vec<String> {
    let mut users = holders_of(path);
    if users.is_empty()
        && let Some(pid) = crate::drive::pid_with_open(path)
    {
        users.push(format!("pid {pid}"));
    }
    users
}

/// What of the kernel uses a block device: holders, mounts, swap. Cheaper than [`users_of`].
#[must_use]
pub fn holders_of(path: &std::path::Path) -> Vec<String> {
    crate::drive::holders_of(path)
}
