//! What the demo prints: one line a step, and while a step takes time a line that moves (on a terminal) or a line now and
//! then (in a log).

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// How often a log gets a line of progress; a terminal gets one at each call.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Why the demo stopped, in words.
pub(super) type Failure = String;

/// Prints the steps of the demo on standard output, or on standard error where that is for a document.
#[derive(Debug)]
pub(super) struct Report {
    to_stderr: bool,
    terminal: bool,
    began: Instant,
    step_began: Instant,
    last_line: Option<Instant>,
    /// A moving line is on the screen and must be wiped before the next one.
    moving: bool,
}

impl Report {
    pub(super) fn new(to_stderr: bool) -> Self {
        let now = Instant::now();
        Self {
            to_stderr,
            terminal: if to_stderr {
                std::io::stderr().is_terminal()
            } else {
                std::io::stdout().is_terminal()
            },
            began: now,
            step_began: now,
            last_line: None,
            moving: false,
        }
    }

    /// How long the demo has run.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// A step begins.
    pub(super) fn step(&mut self, what: &str) {
        self.step_began = Instant::now();
        self.last_line = None;
        self.line(&format!("\n{}", self.bold(&format!("* {what}"))));
    }

    /// The verb that is run, as it would be typed.
    pub(super) fn command(&mut self, typed: &str) {
        let line = if self.terminal { format!("  \x1b[2m$ {typed}\x1b[0m") } else { format!("  $ {typed}") };
        self.line(&line);
    }

    /// Something that is so.
    pub(super) fn say(&mut self, what: &str) {
        self.line(&format!("  {what}"));
    }

    /// The step is done, with what it came to.
    pub(super) fn done(&mut self, what: &str) {
        let seconds = self.step_began.elapsed().as_secs_f64();
        self.line(&format!("  {what} ({seconds:.1} s)"));
    }

    /// How far the step is: replaces the previous such line.
    pub(super) fn progress(&mut self, what: &str) {
        if self.terminal {
            self.print(&format!("\r\x1b[K  {what}"));
            self.moving = true;
        } else if self.last_line.get_or_insert_with(Instant::now).elapsed() >= LOG_EVERY {
            self.last_line = Some(Instant::now());
            self.print(&format!("  ... {what}\n"));
        }
    }

    /// The demo failed: what comes next begins a line.
    pub(super) fn failed(&mut self) {
        self.line("");
    }

    fn bold(&self, text: &str) -> String {
        if self.terminal { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn line(&mut self, text: &str) {
        let wipe = if std::mem::take(&mut self.moving) { "\r\x1b[K" } else { "" };
        self.print(&format!("{wipe}{text}\n"));
    }

    fn print(&self, text: &str) {
        let mut out: Box<dyn std::io::Write> =
            if self.to_stderr { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };
        // Whoever closed our output does not want to read this; the demo still has to clean up.
        let _unread = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// Bytes for people.
pub(super) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(MIB))
}

/// A rate for people.
pub(super) fn rate(bytes: u64, took: Duration) -> String {
    let nanoseconds = took.as_nanos().max(1);
    let mib_per_s = u128::from(bytes) * 1_000_000_000 / nanoseconds / u128::from(MIB);
    format!("{mib_per_s} MiB/s")
}

/// A bar of 24 places for a share of 0 to 100.
pub(super) fn bar(percent: u64) -> String {
    let full = usize::try_from(percent.min(100) * 24 / 100).unwrap_or(24);
    format!("[{}{}]", "#".repeat(full), ".".repeat(24 - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_rates_stay_in_bounds() {
        assert_eq!(bar(0), format!("[{}]", ".".repeat(24)));
        assert_eq!(bar(100), format!("[{}]", "#".repeat(24)));
        assert_eq!(bar(1000), bar(100));
        assert_eq!(rate(10 << 20, Duration::from_secs(2)), "5 MiB/s");
        assert_eq!(rate(0, Duration::ZERO), "0 MiB/s");
    }
}
