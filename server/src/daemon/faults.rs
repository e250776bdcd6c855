//! Faults that drives were told to have (`fault inject`): which drive has which, and what that does to health.
//!
//! A fault belongs to a path, not to an open drive: it follows the drive out of its group and into the next open, as a real
//! defect would. Faults live in memory only; a restart of the daemon ends them all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme_backend::{Fault, FaultKind, OpenDrive};
use parking_lot::Mutex;
use raid_core::units::Slot;

use super::host::unix_seconds;
use super::running::Running;
use super::{Daemon, look};
use crate::control::model::{FaultDoc, FaultWhat, Health, ProblemDoc, RangeDoc};
use crate::control::request::FaultInject;
use crate::control::{ApiError, ErrorCode, ProblemCode};

/// One fault of one drive.
#[derive(Clone)]
pub(super) struct Injected {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    what: FaultWhat,
    member: Option<(String, u8)>,
    fault: Arc<Fault>,
    since_unix_s: u64,
    until_unix_s: Option<u64>,
}

impl Injected {
    pub(super) fn doc(&self) -> FaultDoc {
        let (delay_ns, factor) = match self.fault.kind() {
            FaultKind::Slow { delay_ns, factor } => (delay_ns, factor),
            _ => (0, 1),
        };
        let ranges = self.fault.ranges().map(|ranges| {
            let doc = |range: &core::ops::Range<u64>| RangeDoc {
                offset_bytes: range.start,
                len_bytes: range.end - range.start,
            };
            ranges.iter().map(doc).collect()
        });
        FaultDoc {
            id: self.id,
            drive: self.path.display().to_string(),
            what: self.what,
            group: self.member.as_ref().map(|(group, _)| group.clone()),
            slot: self.member.as_ref().map(|(_, slot)| *slot),
            delay_ns,
            factor,
            ranges,
            hits: self.fault.hits(),
            active: !self.fault.is_over(),
            since_unix_s: self.since_unix_s,
            until_unix_s: self.until_unix_s,
        }
    }
}

/// Every fault of this host's drives.
#[derive(Default)]
pub struct Faults {
    list: Mutex<Vec<Injected>>,
}

impl Faults {
    /// Gives a drive that was opened just now the faults of its path.
    pub(super) fn meet(&self, drive: &OpenDrive) {
        let of_path = self.of_path(drive.path());
        if !of_path.is_empty() {
            drive.set_faults(of_path);
        }
    }

    fn of_path(&self, path: &Path) -> Vec<Arc<Fault>> {
        let list = self.list.lock();
        list.iter().filter(|one| one.path == path).map(|one| Arc::clone(&one.fault)).collect()
    }

    pub(super) fn all(&self) -> Vec<Injected> {
        self.list.lock().clone()
    }
}

/// A word for people.
#[must_use]
pub(super) fn word(what: FaultWhat) -> &'static str {
    match what {
        FaultWhat::Fail => "every command fails",
        FaultWhat::Hang => "no command is answered",
        FaultWhat::Slow => "commands take longer",
        FaultWhat::Bad => "blocks cannot be read",
        FaultWhat::Flip => "blocks read wrong",
        FaultWhat::LostWrite => "writes are lost",
    }
}

/// What a fault would be: all that can be wrong with it is found before anything is done.
pub(super) struct Wish {
    pub(super) path: PathBuf,
    pub(super) member: Option<(Arc<Running>, Slot)>,
    kind: FaultKind,
    pub(super) ranges: Option<Vec<core::ops::Range<u64>>>,
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::FaultInvalid, message).hint("warpraid fault inject --help")
}

fn kind_of(what: &FaultInject) -> Result<FaultKind, ApiError> {
    if what.what != FaultWhat::Slow && (what.delay_ns.is_some() || what.factor.is_some()) {
        return Err(invalid("a delay and a factor belong to a slow drive"));
    }
    if what.what == FaultWhat::Slow && what.delay_ns.unwrap_or(0) == 0 && what.factor.unwrap_or(1) <= 1 {
        return Err(invalid("how slow? give --delay-ms, or --factor of at least 2"));
    }
    if what.count == Some(0) || what.for_s == Some(0) {
        return Err(invalid("a fault that never applies is none"));
    }
    Ok(match what.what {
        FaultWhat::Fail => FaultKind::Fail,
        FaultWhat::Hang => FaultKind::Hang,
        FaultWhat::Slow => {
            FaultKind::Slow { delay_ns: what.delay_ns.unwrap_or(0), factor: what.factor.unwrap_or(1) }
        }
        FaultWhat::Bad => FaultKind::Bad,
        FaultWhat::Flip => FaultKind::Flip { seed: what.seed },
        FaultWhat::LostWrite => FaultKind::LostWrite,
    })
}

impl Daemon {
    /// # Errors
    /// `fault.not.allowed` unless the daemon was started with `--allow-faults`.
    pub(super) fn check_faults_allowed(&self) -> Result<(), ApiError> {
        if self.options.allow_faults {
            return Ok(());
        }
        let message = "faults are not allowed: the daemon was started without --allow-faults";
        Err(ApiError::new(ErrorCode::FaultNotAllowed, message)
            .hint("start it with warpraid serve --allow-faults, never over data you need"))
    }

    /// The drive that is meant, and its member if it is one.
    pub(super) async fn faulty_drive(
        &self,
        name: &str,
    ) -> Result<(PathBuf, Option<(Arc<Running>, Slot)>), ApiError> {
        match self.member_called(name)? {
            Some((group, slot)) => {
                let path = group.drive_path_of(slot)?;
                let is_there = !group.shared.view().member(slot).is_missing();
                Ok((path, is_there.then_some((group, slot))))
            }
            None => Ok((look::resolve_all(&[name.to_owned()]).await?.remove(0), None)),
        }
    }

    /// Checks a fault that is asked for.
    pub(super) async fn wish_for(&self, what: &FaultInject) -> Result<Wish, ApiError> {
        let kind = kind_of(what)?;
        let (path, member) = self.faulty_drive(&what.drive).await?;
        let open = self.host.key_of_path(&path).and_then(|key| self.host.drive(key));
        let (size, block) = match open {
            Some(drive) => (drive.size_bytes(), drive.block_size().bytes()),
            None => {
                let (drive, _) = self.inspect(&path).await?;
                (drive.size_bytes(), drive.block_size().bytes())
            }
        };
        // What is not told otherwise leaves the metadata alone: a drill is about data.
        let data = member.as_ref().map_or(0..size, |(group, slot)| {
            let start = group.shared.view().member(*slot).layout.data_start.0;
            start..start + group.shared.geometry().member_bytes()
        });
        let block = u64::from(block);
        let one = |range| Some(Vec::from_iter(std::iter::once(range)));
        let ranges = match (&what.range, what.what) {
            (Some(range), _) => {
                let end = range.offset_bytes.checked_add(range.len_bytes).filter(|&end| end <= size);
                let end = end.ok_or_else(|| {
                    invalid(format!("the range is not on the drive, which has {size} bytes"))
                })?;
                let is_whole = (range.offset_bytes | range.len_bytes).is_multiple_of(block);
                if range.len_bytes == 0 || !is_whole {
                    return Err(invalid(format!("the range is not in whole blocks of {block} bytes")));
                }
                one(range.offset_bytes..end)
            }
            (None, FaultWhat::Bad | FaultWhat::Flip) => {
                let blocks = (data.end - data.start) / block;
                let at = data.start + what.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks * block;
                one(at..at + block)
            }
            (None, FaultWhat::LostWrite) => one(data),
            (None, FaultWhat::Fail | FaultWhat::Hang | FaultWhat::Slow) => None,
        };
        Ok(Wish { path, member, kind, ranges })
    }

    /// Gives the drive its fault; the number of it.
    pub(super) fn inject(self: &Arc<Self>, wish: Wish, what: &FaultInject) -> Result<u64, ApiError> {
        let fault = Fault::new(wish.kind, wish.ranges, what.count).map_err(|error| {
            ApiError::new(ErrorCode::Io, format!("no file descriptor for the fault: {error}"))
        })?;
        let id = {
            let mut list = self.host.faults.list.lock();
            let id = list.last().map_or(1, |last| last.id + 1);
            list.push(Injected {
                id,
                path: wish.path.clone(),
                what: what.what,
                member: wish.member.map(|(group, slot)| (group.name().to_owned(), slot.0)),
                fault,
                since_unix_s: unix_seconds(),
                until_unix_s: what.for_s.map(|seconds| unix_seconds().saturating_add(seconds)),
            });
            id
        };
        self.apply_faults(&wish.path);
        tracing::warn!(id, drive = %wish.path.display(), fault = word(what.what), "fault injected");
        if let Some(seconds) = what.for_s {
            let daemon = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
                daemon.clear_faults(|one| one.id == id);
            });
        }
        Ok(id)
    }

    /// Ends faults; those that were.
    pub(super) fn clear_faults(&self, which: impl Fn(&Injected) -> bool) -> Vec<Injected> {
        let ended = {
            let mut list = self.host.faults.list.lock();
            let (ended, left): (Vec<_>, Vec<_>) = list.drain(..).partition(|one| which(one));
            *list = left;
            ended
        };
        for one in &ended {
            self.apply_faults(&one.path);
            one.fault.end();
            tracing::warn!(id = one.id, drive = %one.path.display(), "fault cleared");
        }
        ended
    }

    fn apply_faults(&self, path: &Path) {
        let faults = self.host.faults.of_path(path);
        for drive in self.host.drives_at(path) {
            drive.set_faults(faults.clone());
        }
    }

    /// A problem for each fault, so that nobody forgets one.
    pub(super) fn fault_problems(&self) -> Vec<ProblemDoc> {
        let active = self.host.faults.all().into_iter().filter(|one| !one.fault.is_over());
        active
            .map(|one| ProblemDoc {
                code: ProblemCode::FaultActive.into(),
                health: Health::Warning,
                group: one.member.as_ref().map(|(group, _)| group.clone()),
                slot: one.member.as_ref().map(|(_, slot)| *slot),
                drive: Some(one.path.display().to_string()),
                serial: None,
                since_unix_s: Some(one.since_unix_s),
                why: format!("{} was told to fail: {}", one.path.display(), word(one.what)),
                risk: "what this drive does is not real, what it does to the data is".into(),
                next: format!("warpraid fault clear {}", one.id),
            })
            .collect()
    }
}
