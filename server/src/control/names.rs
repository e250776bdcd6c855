//! How groups, disks and drives are named in requests: [`check_name`] with the API's error codes. CASES AD-02.

use raid_core::names::check_name;
use raid_core::units::Uuid;

use super::error::{ApiError, ErrorCode};

/// A text of unknown origin, fit to be shown: control characters escaped, cut at 64 characters.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    if text.chars().nth(64).is_some() {
        out.push_str("...");
    }
    out
}

/// Checks the name of a group to be made.
///
/// # Errors
/// `group.name.invalid` with the rule.
pub fn group_name(name: &str) -> Result<(), ApiError> {
    check_name("group", name).map_err(|error| ApiError::new(ErrorCode::GroupNameInvalid, error.to_string()))
}

/// Checks a name or uuid a group is asked for by.
///
/// # Errors
/// `group.name.invalid` with the rule.
pub fn group_ref(name: &str) -> Result<(), ApiError> {
    if Uuid::parse(name).is_some() { Ok(()) } else { group_name(name) }
}

/// Checks the name of a disk.
///
/// # Errors
/// `disk.name.invalid` with the rule.
pub fn disk_name(name: &str) -> Result<(), ApiError> {
    check_name("disk", name).map_err(|error| ApiError::new(ErrorCode::DiskNameInvalid, error.to_string()))
}

/// Splits and checks `GROUP/DISK`.
///
/// # Errors
/// `disk.name.invalid` or `group.name.invalid` with the rule.
pub fn disk_ref(text: &str) -> Result<(&str, &str), ApiError> {
    let Some((group, disk)) = text.split_once('/') else {
        let message = format!("\"{}\" is not a disk: write GROUP/DISK, e.g. tank/home", shown(text));
        return Err(ApiError::new(ErrorCode::DiskNameInvalid, message));
    };
    group_ref(group)?;
    disk_name(disk)?;
    Ok((group, disk))
}

/// Checks a path, serial or uuid a drive is asked for by.
///
/// # Errors
/// `drive.invalid` if it is empty, longer than 4095 bytes or holds control characters.
pub fn drive_ref(text: &str) -> Result<(), ApiError> {
    let fine = !text.is_empty() && text.len() <= 4095 && !text.chars().any(char::is_control);
    fine.then_some(()).ok_or_else(|| {
        let message = format!("\"{}\" is not a drive: give a path, a serial or a device uuid", shown(text));
        ApiError::new(ErrorCode::DriveInvalid, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ad_02_names_that_are_none_are_usage_errors() {
        for name in ["../x", "/dev/nvme0n1", ".", "", "a b", "a\nb", "-rf", "a\0b", "\u{1f600}", "a:b"] {
            for error in
                [group_name(name).unwrap_err(), group_ref(name).unwrap_err(), disk_name(name).unwrap_err()]
            {
                assert_eq!(error.exit().code(), 2, "{name:?}");
                assert!(error.message.contains("allowed are") && !error.message.contains('\n'), "{error}");
            }
        }
        assert!(group_name("tank").is_ok() && disk_name("A.b_c-d").is_ok());
    }

    #[test]
    fn references() {
        assert_eq!(disk_ref("tank/home").unwrap(), ("tank", "home"));
        assert!(disk_ref("01234567-89ab-4def-bedc-ba9876543210/home").is_ok());
        for bad in ["tank", "tank/", "/home", "tank/home/x", "../home", "tank/.."] {
            assert_eq!(disk_ref(bad).unwrap_err().exit().code(), 2, "{bad}");
        }
        assert!(drive_ref("/dev/nvme0n1").is_ok());
        for bad in ["", "a\0b", "a\nb", &"x".repeat(4096)] {
            assert_eq!(drive_ref(bad).unwrap_err().exit().code(), 2, "{bad:?}");
        }
    }
}
