//! What operators have set for their groups: `settings.json` in the state folder, by group uuid.
//!
//! Belongs to this host, not to the drives: a group that moves to another host starts with the defaults there. The file
//! carries a version; one of a later version is left alone, its groups run with the defaults, and changes are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use raid_core::units::{Slot, Uuid};
use serde::{Deserialize, Serialize};

use super::api::Api;
use super::host::replace_file;
use super::write_mostly;
use crate::control::group_set::GroupSet;
use crate::control::model::{
    ActionDoc, GroupSettingsDoc, NewDrive, RebuildSpeed, Returning, ScrubEvery, SpareWait,
};
use crate::control::{Answer, ApiError, ErrorCode};

const VERSION: u32 = 1;

/// Settings of one group. Every field has a default, so that older files keep their meaning.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GroupSettings {
    /// How often it is scrubbed by itself.
    pub scrub: ScrubEvery,
    /// `HH:MM-HH:MM`; none: at any time.
    pub scrub_window: Option<String>,
    /// How much sweeps may cost clients.
    pub rebuild_speed: RebuildSpeed,
    /// Explicit latency target; none: the preset decides.
    pub rebuild_target_ns: Option<u64>,
    /// How long a member that was missing at start is waited for before a spare takes its place.
    pub spare_wait: SpareWait,
    /// The same for a member that failed while the daemon watched.
    pub spare_wait_failed: SpareWait,
    /// What becomes of a lost member whose drive is plugged in again.
    pub returning: Returning,
    /// What becomes of a blank drive in a lost member's place.
    pub new_drive: NewDrive,
}

impl GroupSettings {
    /// The document.
    #[must_use]
    pub(super) fn doc(&self) -> GroupSettingsDoc {
        GroupSettingsDoc {
            scrub: self.scrub,
            scrub_window: self.scrub_window.clone(),
            rebuild_speed: self.rebuild_speed,
            rebuild_target_ns: self.rebuild_target_ns,
            spare_wait: self.spare_wait,
            spare_wait_failed: self.spare_wait_failed,
            returning: self.returning,
            new_drive: self.new_drive,
        }
    }

    /// Takes over what is given; says what that is, a line each.
    fn change(&mut self, what: &GroupSet) -> Vec<String> {
        let mut steps = Vec::new();
        if let Some(scrub) = what.scrub {
            self.scrub = scrub;
            steps.push(match scrub.days() {
                None => "scheduled scrubs are off".to_owned(),
                Some(1) => "a scrub starts every day".to_owned(),
                Some(days) => format!("a scrub starts every {days} days"),
            });
        }
        if let Some(window) = &what.scrub_window {
            self.scrub_window = Some(window.clone()).filter(|window| window != "any");
            steps.push(match &self.scrub_window {
                None => "scheduled scrubs run at any time of the day".to_owned(),
                Some(window) => {
                    format!("scheduled scrubs run from {} (local time)", window.replace('-', " to "))
                }
            });
        }
        if let Some(speed) = what.rebuild_speed {
            self.rebuild_speed = speed;
            steps.push(match speed {
                RebuildSpeed::Low => "rebuilds give way to clients at once".to_owned(),
                RebuildSpeed::Normal => "rebuilds make clients wait at most half as long again".to_owned(),
                RebuildSpeed::High => "rebuilds make clients wait up to three times as long".to_owned(),
                RebuildSpeed::Max => "rebuilds go as fast as they can".to_owned(),
            });
        }
        if let Some(target_ns) = what.rebuild_target_ns {
            self.rebuild_target_ns = Some(target_ns).filter(|&ns| ns > 0);
            steps.push(match self.rebuild_target_ns {
                None => "the rebuild speed decides how long clients wait".to_owned(),
                Some(ns) => format!("rebuilds keep 99 of 100 client requests below {} us", ns / 1000),
            });
        }
        if let Some(wait) = what.spare_wait {
            self.spare_wait = wait;
            steps.push(spare_step("a member that is missing at start", wait));
        }
        if let Some(wait) = what.spare_wait_failed {
            self.spare_wait_failed = wait;
            steps.push(spare_step("a member that fails", wait));
        }
        if let Some(returning) = what.returning {
            self.returning = returning;
            steps.push(match returning {
                Returning::Resync => {
                    "a lost member whose drive is plugged in again is resynced by itself".to_owned()
                }
                Returning::Ask => {
                    "a lost member whose drive is plugged in again waits for group readd".to_owned()
                }
            });
        }
        if let Some(new_drive) = what.new_drive {
            self.new_drive = new_drive;
            steps.push(match new_drive {
                NewDrive::Ask => "a blank drive in a lost member's place waits for group replace".to_owned(),
                NewDrive::Take => {
                    "a blank drive in a lost member's place takes its slot and is rebuilt".to_owned()
                }
            });
        }
        steps
    }

    /// Puts into force what the engine has to know.
    pub(super) fn apply(&self, shared: &raid_core::engine::Shared) {
        shared.foreground().set(self.rebuild_speed.into(), self.rebuild_target_ns);
    }
}

fn spare_step(whom: &str, wait: SpareWait) -> String {
    match wait {
        SpareWait::Auto => {
            format!("{whom} is waited for as the daemon was started before a spare takes its place")
        }
        SpareWait::Never => format!("no spare takes the place of {whom} by itself"),
        SpareWait::Ns(ns) => {
            format!("{whom} is waited for {} ms before a spare takes its place", ns / 1_000_000)
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SettingsFile {
    version: u32,
    groups: BTreeMap<String, GroupSettings>,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// The settings of all groups of this host.
pub(super) struct SettingsStore {
    path: PathBuf,
    groups: Mutex<BTreeMap<String, GroupSettings>>,
    /// The version of a file that is not ours to write.
    foreign: Option<u32>,
}

impl SettingsStore {
    /// Reads the store of a state folder. A file that cannot be read counts as empty, said in the log.
    #[must_use]
    pub(super) fn open(state_dir: &Path) -> Arc<Self> {
        let path = state_dir.join("settings.json");
        let (mut groups, mut foreign) = (BTreeMap::new(), None);
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<VersionOnly>(&bytes) {
                Ok(file) if file.version > VERSION => {
                    tracing::warn!(
                        version = file.version,
                        "settings.json is of a later version; defaults apply"
                    );
                    foreign = Some(file.version);
                }
                _ => match serde_json::from_slice::<SettingsFile>(&bytes) {
                    Ok(file) => groups = file.groups,
                    Err(error) => tracing::warn!(%error, "settings.json cannot be read; defaults apply"),
                },
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "settings.json cannot be read; defaults apply"),
        }
        Arc::new(Self { path, groups: Mutex::new(groups), foreign })
    }

    /// The settings of a group.
    #[must_use]
    pub(super) fn of(&self, group: Uuid) -> GroupSettings {
        self.groups.lock().get(&group.to_string()).cloned().unwrap_or_default()
    }

    /// Changes the settings of a group, durably.
    ///
    /// # Errors
    /// The file cannot be written, or is of a later version: nothing is changed then.
    fn set(&self, group: Uuid, settings: GroupSettings) -> io::Result<()> {
        if let Some(version) = self.foreign {
            return Err(io::Error::other(format!(
                "settings.json is of version {version}; this daemon knows {VERSION}"
            )));
        }
        let mut groups = self.groups.lock();
        let mut next = groups.clone();
        next.insert(group.to_string(), settings);
        let file = SettingsFile { version: VERSION, groups: next };
        replace_file(&self.path, &serde_json::to_vec_pretty(&file)?)?;
        *groups = file.groups;
        Ok(())
    }
}

impl Api {
    pub(super) async fn group_set(&self, group: String, what: GroupSet) -> Answer<ActionDoc> {
        let daemon = self.daemon();
        let _change = daemon.change.lock().await;
        let running = daemon.need_running(&group)?;
        let mut settings = running.settings.of(running.uuid);
        let mut steps = settings.change(&what);
        let marked: Option<BTreeSet<Slot>> =
            what.write_mostly.as_ref().map(|slots| slots.iter().copied().map(Slot).collect());
        if let Some(slots) = &marked {
            write_mostly::check(running.shared.geometry(), slots)?;
            let view = running.shared.view();
            if let Some(slot) = slots.iter().find(|slot| view.member(**slot).is_missing()) {
                let message = format!("slot {slot} of group {} has no drive to be marked", running.name());
                return Err(ApiError::new(ErrorCode::GroupSlotInvalid, message).hint("replace it first"));
            }
            steps.push(write_mostly::words(slots));
        }
        let mut action = ActionDoc::new("group set", running.name(), what.dry_run, steps);
        if !what.dry_run {
            running.settings.set(running.uuid, settings.clone()).map_err(|error| {
                ApiError::new(
                    ErrorCode::Io,
                    format!("the settings of group {group} were not stored: {error}"),
                )
                .hint("look at the folder given as --state-dir; nothing was changed")
            })?;
            settings.apply(&running.shared);
            if let Some(slots) = marked {
                daemon.mark_write_mostly(&running, slots).await?;
            }
        }
        action.groups.push(running.doc());
        Ok(action.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_and_later_versions_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Uuid::from_random(1, 2), Uuid::from_random(3, 4));
        let store = SettingsStore::open(dir.path());
        let mut settings = store.of(one);
        let what = GroupSet {
            scrub: Some(ScrubEvery::Biweekly),
            scrub_window: Some("01:00-05:00".into()),
            spare_wait: Some(SpareWait::Ns(600_000_000_000)),
            spare_wait_failed: Some(SpareWait::Never),
            ..GroupSet::default()
        };
        assert_eq!(settings.change(&what).len(), 4);
        store.set(one, settings.clone()).unwrap();
        let again = SettingsStore::open(dir.path());
        assert_eq!(again.of(one), settings);
        assert_eq!(again.of(other), GroupSettings::default());
        let any = GroupSet { scrub_window: Some("any".into()), ..GroupSet::default() };
        settings.change(&any);
        assert_eq!((settings.scrub, settings.scrub_window.clone()), (ScrubEvery::Biweekly, None));

        let later = br#"{"version":2,"groups":[]}"#;
        fs::write(dir.path().join("settings.json"), later).unwrap();
        let foreign = SettingsStore::open(dir.path());
        assert_eq!(foreign.of(one), GroupSettings::default());
        assert!(foreign.set(one, settings).is_err());
        assert_eq!(fs::read(dir.path().join("settings.json")).unwrap(), later);
    }

    #[test]
    fn a_file_without_a_later_field_is_read() {
        let settings: GroupSettings = serde_json::from_str(r#"{"scrub":"daily","unknown":1}"#).unwrap();
        assert_eq!(settings, GroupSettings { scrub: ScrubEvery::Daily, ..GroupSettings::default() });
    }
}
