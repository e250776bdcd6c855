//! Clocks of a measurement. CPU time is steadier than wall time on a shared machine; process CPU time also sees the
//! kernel workers that io_uring punts to, which thread CPU time misses.

use rustix::time::{ClockId, clock_gettime};

fn read_ns(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let part = |n: i64| u64::try_from(n).expect("these clocks never show a negative time");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// CPU time of the calling thread, nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

/// CPU time of the whole process, nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read_ns(ClockId::ProcessCPUTime)
}

/// Monotonic wall time, nanoseconds.
#[must_use]
pub fn wall_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_on_every_clock() {
        for clock in [thread_cpu_ns, process_cpu_ns, wall_ns] {
            let start = clock();
            let mut n = 1_u64;
            while clock() == start {
                n = core::hint::black_box(n.wrapping_mul(3));
            }
            assert!(clock() > start);
        }
    }
}
