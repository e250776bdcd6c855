//! Progress on stderr, and Ctrl-C: the first one ends the pass and what was measured is printed, a second one ends the process.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use benches::load::{Control, Progress};
use server::control::{ApiError, ErrorCode};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::Output;
use crate::units::{human, span};

/// How often a line at a terminal is drawn anew.
const DRAW_PERIOD: Duration = Duration::from_millis(200);
/// How often a line is written elsewhere.
const LINE_PERIOD: Duration = Duration::from_secs(5);

/// A run that can be watched and stopped. Its line is gone when it is dropped.
pub(super) struct Watched {
    control: Arc<Control>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    pub(super) fn start(output: &Output) -> Result<Self, ApiError> {
        let control = Arc::new(Control::default());
        stop_on_signal(Arc::clone(&control))?;
        let (stop, stopped) = channel();
        let is_terminal = std::io::stderr().is_terminal();
        let shown = Arc::clone(&control);
        // Programs that ask for JSON and are no terminal want nothing but errors on stderr.
        let shows = is_terminal || output.is_human();
        let draw = move || {
            let period = if is_terminal { DRAW_PERIOD } else { LINE_PERIOD };
            while matches!(stopped.recv_timeout(period), Err(RecvTimeoutError::Timeout)) {
                if let Some(progress) = shown.progress().filter(|_| shows) {
                    draw(&line(&progress), is_terminal);
                }
            }
            if is_terminal {
                let _gone = write!(std::io::stderr(), "\r\x1b[K");
            }
        };
        let thread = std::thread::Builder::new().name("bench-progress".to_owned()).spawn(draw);
        let thread = thread
            .map_err(|error| ApiError::new(ErrorCode::Internal, format!("a thread for progress: {error}")))?;
        Ok(Self { control, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Ends the line; says whether the run was stopped.
    pub(super) fn finish(self) -> bool {
        self.control.is_stopped()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed already.
            let _panicked = thread.join();
        }
    }
}

fn draw(line: &str, is_terminal: bool) {
    let mut stderr = std::io::stderr().lock();
    // A terminal that went away is no reason to stop.
    let _gone = if is_terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
    let _gone = stderr.flush();
}

fn line(progress: &Progress) -> String {
    let elapsed_ms = progress.elapsed.as_millis().max(1);
    let rate = u128::from(progress.done_bytes) * 1000 / elapsed_ms;
    let rate = human(u64::try_from(rate).unwrap_or(u64::MAX));
    let part = |done: u128, total: u128| (done * 100).checked_div(total).unwrap_or(0).min(100);
    match (progress.total_bytes, progress.time) {
        (Some(total), _) => {
            let left = u128::from(total.saturating_sub(progress.done_bytes));
            let eta = (left * elapsed_ms).checked_div(u128::from(progress.done_bytes)).map_or_else(
                || "time to go unknown".to_owned(),
                |ms| format!("{} to go", span(u64::try_from(ms / 1000).unwrap_or(u64::MAX))),
            );
            let percent = part(progress.done_bytes.into(), total.into());
            format!("{}: {percent} %, {rate}/s, {eta}", progress.label)
        }
        (None, Some(time)) => {
            let left = time.saturating_sub(progress.elapsed);
            let percent = part(elapsed_ms, time.as_millis());
            format!("{}: {percent} %, {rate}/s, {} to go", progress.label, span(left.as_secs()))
        }
        (None, None) => format!("{}: {rate}/s, {}", progress.label, span(progress.elapsed.as_secs())),
    }
}

fn stop_on_signal(control: Arc<Control>) -> Result<(), ApiError> {
    let failed =
        |error: std::io::Error| ApiError::new(ErrorCode::Internal, format!("waiting for Ctrl-C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _context = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
    };
    let wait = move || {
        let mut next = || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                }
            })
        };
        next();
        control.stop();
        eprintln!("\nstopping; once more to give up at once");
        std::process::exit(next());
    };
    std::thread::Builder::new().name("bench-signals".to_owned()).spawn(wait).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_far_how_fast_and_how_long() {
        let mut progress = Progress {
            label: "read".into(),
            done_bytes: 1 << 30,
            total_bytes: Some(4 << 30),
            elapsed: Duration::from_secs(2),
            time: None,
        };
        assert_eq!(line(&progress), "read: 25 %, 512 MiB/s, 6 s to go");
        progress.done_bytes = 0;
        assert_eq!(line(&progress), "read: 0 %, 0 B/s, time to go unknown");
        progress.total_bytes = None;
        progress.time = Some(Duration::from_secs(4));
        assert_eq!(line(&progress), "read: 50 %, 0 B/s, 2 s to go");
    }
}
