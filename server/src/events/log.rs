//! The record of events on the disk: `events/events.jsonl` in the state folder, one JSON document a line.
//!
//! A thread of its own appends, so that a slow or full file system holds up nobody. Each write is followed by fdatasync;
//! events that came meanwhile share the next one. At [`FILE_BYTES_MAX`] the file becomes `events.1.jsonl` (the one before
//! is dropped) and a new one begins. A line that was cut off, by a crash or a full disk, is skipped when read.
//!
//! Numbers: events wait in a queue of [`QUEUE_MAX`]. After an end that was not clean, up to that many may have been seen and
//! not written, so numbering goes on beyond them.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use raid_core::units::u64_of;

use super::KEPT_MAX;
use crate::control::EventCode;
use crate::control::model::EventDoc;

/// Size at which a file is put aside.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Events noted and not yet written.
const QUEUE_MAX: usize = 1024;
/// Events that could not be written and are tried again; beyond that the oldest are given up.
const WAITING_MAX: usize = 4 * QUEUE_MAX;
/// How often.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// Hands events to the thread that writes them.
pub(super) struct Writer {
    queue: Mutex<Option<SyncSender<Arc<EventDoc>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_unsaved: Arc<AtomicBool>,
}

impl Writer {
    /// What was kept, the next number, and the writer.
    pub(super) fn open(state_dir: &Path) -> io::Result<(VecDeque<Arc<EventDoc>>, u64, Self)> {
        let folder = state_dir.join("events");
        let mut builder = fs::DirBuilder::new();
        let made = builder.mode(0o700).recursive(true).create(&folder);
        if let Err(error) = made {
            tracing::error!(folder = %folder.display(), %error, "cannot make the folder of events");
        }
        let mut events = VecDeque::new();
        for name in [OLD, CURRENT] {
            read(&folder.join(name), &mut events);
        }
        let next = match events.back() {
            None => 1,
            Some(last) if last.code == EventCode::DaemonStopped.as_str() => last.id + 1,
            Some(last) => last.id + u64_of(QUEUE_MAX) + 1,
        };
        let is_unsaved = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let mut file = LogFile { folder, file: None, bytes: 0 };
        let unsaved = Arc::clone(&is_unsaved);
        let thread =
            std::thread::Builder::new().name("events".into()).spawn(move || file.run(&receiver, &unsaved))?;
        let writer = Self { queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), is_unsaved };
        Ok((events, next, writer))
    }

    /// Writes an event soon; one that the queue has no room for stays in memory only.
    pub(super) fn write(&self, event: Arc<EventDoc>) {
        let sent = self.queue.lock().as_ref().is_some_and(|queue| queue.try_send(event).is_ok());
        if !sent {
            self.is_unsaved.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the last attempt failed.
    pub(super) fn is_unsaved(&self) -> bool {
        self.is_unsaved.load(Ordering::Relaxed)
    }

    /// Waits until all is written, and ends.
    pub(super) fn stop(&self) {
        drop(self.queue.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
    }
}

const CURRENT: &str = "events.jsonl";
const OLD: &str = "events.1.jsonl";

/// Adds the events of a file; lines that are none, and numbers that do not grow, are skipped.
fn read(path: &Path, events: &mut VecDeque<Arc<EventDoc>>) {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(2 * FILE_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => tracing::error!(path = %path.display(), %error, "cannot read events"),
    }
    let mut skipped = 0;
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice::<EventDoc>(line) {
            Ok(event) if events.back().is_none_or(|last| last.id < event.id) => {
                if events.len() == KEPT_MAX {
                    events.pop_front();
                }
                events.push_back(Arc::new(event));
            }
            _ => skipped += 1,
        }
    }
    if skipped > 0 {
        tracing::warn!(path = %path.display(), lines = skipped, "lines of the record of events were skipped");
    }
}

struct LogFile {
    folder: PathBuf,
    file: Option<File>,
    bytes: u64,
}

impl LogFile {
    fn run(&mut self, receiver: &Receiver<Arc<EventDoc>>, is_unsaved: &AtomicBool) {
        // What could not be written waits here, so that a folder that takes events again has no hole in its record, and
        // nobody has to wait for the next event to hear that it does.
        let mut waiting: VecDeque<Arc<EventDoc>> = VecDeque::new();
        let mut is_over = false;
        while !is_over {
            if waiting.is_empty() {
                match receiver.recv() {
                    Ok(event) => waiting.push_back(event),
                    Err(_) => return,
                }
            } else {
                match receiver.recv_timeout(RETRY_PERIOD) {
                    Ok(event) => waiting.push_back(event),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => is_over = true,
                }
            }
            waiting.extend(receiver.try_iter().take(QUEUE_MAX));
            while waiting.len() > WAITING_MAX {
                waiting.pop_front();
            }
            let mut lines = Vec::new();
            for event in &waiting {
                // A document of strings and numbers can always be written.
                let written = serde_json::to_writer(&mut lines, &**event);
                debug_assert!(written.is_ok());
                lines.push(b'\n');
            }
            match self.append(&lines) {
                Ok(()) => waiting.clear(),
                Err(error) => {
                    if !is_unsaved.load(Ordering::Relaxed) {
                        tracing::error!(folder = %self.folder.display(), %error, "events cannot be stored");
                    }
                    // Opened anew next time, which also closes a line that was cut off; lines that were written come again
                    // and are skipped when read, because their numbers do not grow.
                    self.file = None;
                }
            }
            is_unsaved.store(!waiting.is_empty(), Ordering::Relaxed);
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let path = self.folder.join(CURRENT);
        if self.file.is_some() && self.bytes >= FILE_BYTES_MAX {
            self.file = None;
            fs::rename(&path, self.folder.join(OLD))?;
            File::open(&self.folder)?.sync_all()?;
        }
        if self.file.is_none() {
            // Whoever put something in the way may have taken it away again.
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700).recursive(true).create(&self.folder)?;
            self.file = Some(self.open(&path)?);
        }
        let file = self.file.as_mut().expect("opened above");
        file.write_all(lines)?;
        file.sync_data()?;
        self.bytes += u64_of(lines.len());
        Ok(())
    }

    fn open(&mut self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        self.bytes = file.metadata()?.len();
        if self.bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                self.bytes += 1;
            }
        }
        File::open(&self.folder)?.sync_all()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Events, NewEvent};
    use super::*;
    use crate::control::request::EventsOf;

    fn note(events: &Events, text: &str) -> u64 {
        events.note(NewEvent::new(EventCode::OperatorVerb, text)).id
    }

    #[test]
    fn a_line_cut_off_is_skipped_and_the_record_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events").join(CURRENT);
        let events = Events::open(dir.path()).unwrap();
        let ids = [note(&events, "one"), note(&events, "two")];
        events.stop();
        let whole = fs::read(&path).unwrap();
        for cut in [1, 2, 20, whole.len() / 2 - 1] {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let events = Events::open(dir.path()).unwrap();
            let next = note(&events, "three");
            events.stop();
            let again = Events::open(dir.path()).unwrap();
            let kept: Vec<u64> = again.after(0).iter().map(|event| event.id).collect();
            assert!(kept.starts_with(&ids[..1]) && kept.ends_with(&[next]), "cut {cut}: {kept:?}");
            assert!(next > ids[1], "the number of the lost event may have been seen");
            assert_eq!(kept.len(), if cut == 1 { 3 } else { 2 });
        }
        fs::write(&path, b"\0\xff{}\n\n{\"id\":1}\n").unwrap();
        assert_eq!(Events::open(dir.path()).unwrap().after(0).len(), 0);
    }

    #[test]
    fn files_are_put_aside_at_their_size_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::open(dir.path()).unwrap();
        let text = "x".repeat(1 << 20);
        let size = |name: &str| fs::metadata(dir.path().join("events").join(name)).map_or(0, |it| it.len());
        for _ in 0..14 {
            let before = (size(OLD), size(CURRENT));
            note(&events, &text);
            // As slowly as real events come: each in a write of its own, however long the disk takes.
            while (size(OLD), size(CURRENT)) == before {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        events.stop();
        assert!(size(OLD) >= FILE_BYTES_MAX, "{}", size(OLD));
        assert!(size(CURRENT) + size(OLD) < 14 << 20, "the oldest are gone");
        let again = Events::open(dir.path()).unwrap();
        assert!(again.list(&EventsOf::default()).events.len() < 14);
    }

    #[test]
    fn a_folder_that_takes_nothing_is_told_and_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("events"), "a file where the folder should be").unwrap();
        let events = Events::open(dir.path()).unwrap();
        note(&events, "kept in memory");
        let is_unsaved = |wanted: bool| {
            let since = std::time::Instant::now();
            while events.is_unsaved() != wanted {
                assert!(since.elapsed() < Duration::from_secs(30), "unsaved is not {wanted}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        is_unsaved(true);
        assert_eq!(events.after(0).len(), 1);
        // As soon as there is room it is written, though nothing new happens, and nothing is unsaved any more.
        fs::remove_file(dir.path().join("events")).unwrap();
        is_unsaved(false);
        events.stop();
        assert_eq!(Events::open(dir.path()).unwrap().after(0)[0].message, "kept in memory");
    }
}
