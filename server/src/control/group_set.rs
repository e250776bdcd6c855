//! The request of `group set`, and the window of times in it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::{NewDrive, RebuildSpeed, Returning, ScrubEvery, SpareWait};
use super::{ApiError, ErrorCode};

/// Changes settings of a group; what is not given stays.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSet {
    /// How often it is scrubbed by itself.
    #[serde(default)]
    pub scrub: Option<ScrubEvery>,
    /// When scheduled scrubs may run: `HH:MM-HH:MM` in local time, over midnight too; `any` for at any time.
    #[serde(default)]
    pub scrub_window: Option<String>,
    /// How much rebuilds and other sweeps may cost clients.
    #[serde(default)]
    pub rebuild_speed: Option<RebuildSpeed>,
    /// Latency that 99 of 100 client requests shall keep below meanwhile, in ns; 0: the preset decides.
    #[serde(default)]
    pub rebuild_target_ns: Option<u64>,
    /// Slots whose members are read only where no other copy can be (RAID 1 and 10), and no others.
    #[serde(default)]
    pub write_mostly: Option<Vec<u8>>,
    /// How long a member that was missing at start is waited for before a spare takes its place.
    #[serde(default)]
    pub spare_wait: Option<SpareWait>,
    /// The same for a member that failed while the daemon watched.
    #[serde(default)]
    pub spare_wait_failed: Option<SpareWait>,
    /// What becomes of a lost member whose drive is plugged in again.
    #[serde(default)]
    pub returning: Option<Returning>,
    /// What becomes of a blank drive that is plugged in where a lost member's drive was.
    #[serde(default)]
    pub new_drive: Option<NewDrive>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Targets that can be: below, no request of a client ends in time; above, no client waits that long.
const REBUILD_TARGET_NS: core::ops::RangeInclusive<u64> = 10_000..=10_000_000_000;

/// The longest wait for a lost member that is not for ever.
const SPARE_WAIT_NS_MAX: u64 = 30 * 86_400 * 1_000_000_000;

impl GroupSet {
    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self { dry_run: self.dry_run, ..Self::default() }
    }

    /// Refuses values that are none, and a request for nothing.
    ///
    /// # Errors
    /// `group.setting.invalid`.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.is_empty() {
            return Err(invalid("nothing to set was given").hint("for example: --scrub weekly"));
        }
        if self.rebuild_target_ns.is_some_and(|ns| ns > 0 && !REBUILD_TARGET_NS.contains(&ns)) {
            return Err(invalid("the rebuild target is not between 10us and 10s")
                .hint("for example: --rebuild-target 2ms, or auto for what the speed says"));
        }
        for wait in [self.spare_wait, self.spare_wait_failed].into_iter().flatten() {
            if matches!(wait, SpareWait::Ns(ns) if ns > SPARE_WAIT_NS_MAX) {
                return Err(invalid("a spare that waits longer than 30 days never comes")
                    .hint("for example: --spare-wait 10m, or never"));
            }
        }
        match self.scrub_window.as_deref() {
            None | Some("any") => Ok(()),
            Some(text) => DayWindow::parse(text).map(|_| ()).ok_or_else(|| {
                invalid(&format!("the scrub window {:?} is not HH:MM-HH:MM", super::names::shown(text)))
                    .hint("for example: --scrub-window 01:00-05:00, or any")
            }),
        }
    }
}

fn invalid(message: &str) -> ApiError {
    ApiError::new(ErrorCode::GroupSettingInvalid, message)
}

/// A part of every day, by minutes from midnight; one that ends before it starts goes over midnight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DayWindow {
    start_min: u32,
    end_min: u32,
}

impl DayWindow {
    /// `HH:MM-HH:MM`; none if it is not that, or empty.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (start, end) = text.split_once('-')?;
        let (start_min, end_min) = (minute(start)?, minute(end)?);
        (start_min != end_min).then_some(Self { start_min, end_min })
    }

    /// Whether this minute of the day is in it; its end is not.
    #[must_use]
    pub const fn contains(self, minute: u32) -> bool {
        if self.start_min < self.end_min {
            self.start_min <= minute && minute < self.end_min
        } else {
            self.start_min <= minute || minute < self.end_min
        }
    }
}

fn minute(text: &str) -> Option<u32> {
    let two = |part: &str| {
        (part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| part.parse::<u32>().ok())?
    };
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (minutes < 60 && (hours < 24 || (hours, minutes) == (24, 0))).then_some(hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_the_day() {
        let night = DayWindow::parse("22:30-05:00").unwrap();
        assert!(night.contains(23 * 60) && night.contains(0) && night.contains(299));
        assert!(!night.contains(300) && !night.contains(22 * 60 + 29));
        let day = DayWindow::parse("01:00-24:00").unwrap();
        assert!(day.contains(60) && day.contains(1439) && !day.contains(59));
        for bad in [
            "",
            "1:00-05:00",
            "01:00",
            "01:00-05:60",
            "25:00-26:00",
            "01:00-01:00",
            "01:00-05:00x",
            "+1:00-05:00",
        ] {
            assert_eq!(DayWindow::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_for_nothing_is_refused() {
        assert!(GroupSet::default().check().is_err());
        assert!(GroupSet { dry_run: true, ..GroupSet::default() }.check().is_err());
        assert!(GroupSet { scrub_window: Some("x".into()), ..GroupSet::default() }.check().is_err());
        assert!(GroupSet { scrub_window: Some("any".into()), ..GroupSet::default() }.check().is_ok());
        let waits = |wait| GroupSet { spare_wait: Some(wait), ..GroupSet::default() }.check().is_ok();
        assert!(waits(SpareWait::Never) && waits(SpareWait::Ns(SPARE_WAIT_NS_MAX)) && waits(SpareWait::Auto));
        assert!(!waits(SpareWait::Ns(SPARE_WAIT_NS_MAX + 1)));
        assert!(GroupSet { scrub: Some(ScrubEvery::Weekly), ..GroupSet::default() }.check().is_ok());
    }
}
