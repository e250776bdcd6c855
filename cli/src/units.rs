//! Text to numbers and back: sizes, levels, times, and drives' paths.

use std::time::{Duration, UNIX_EPOCH};

use server::control::model::LevelDoc;
use server::control::names::shown;
use server::control::{ApiError, ErrorCode};

const UNITS: [(&str, u64); 7] =
    [("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("P", 1 << 50), ("E", 1 << 60)];

/// Bytes of a size like `64K`, `10G`, `1TiB` or `4096`; `what` names it in errors, `code` is theirs.
pub(crate) fn size(text: &str, what: &str, code: ErrorCode) -> Result<u64, ApiError> {
    let wrong = |why: &str| {
        let message = format!("the {what} \"{}\" {why}", shown(text));
        ApiError::new(code, message).hint("sizes are whole numbers in binary units: 4096, 64K, 500M, 10G, 1T")
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(wrong("is not a size"));
    }
    if unit.starts_with('.') || unit.starts_with(',') {
        return Err(wrong("is not a whole number; use the next smaller unit"));
    }
    let unit = unit.trim_start().to_ascii_uppercase();
    if unit.len() == 2 && unit.ends_with('B') {
        return Err(wrong(&format!("has a decimal unit; write {number}{} or {number}{0}iB", &unit[..1])));
    }
    let unit = if unit == "B" { "" } else { unit.strip_suffix("IB").unwrap_or(&unit) };
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(wrong("has an unknown unit"));
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*factor));
    match bytes {
        Some(0) => Err(wrong("is zero")),
        Some(bytes) => Ok(bytes),
        None => Err(wrong("is larger than 16E - 1")),
    }
}

/// A chunk size: what the group format can hold is checked here, what the level and drives allow by the daemon.
pub(crate) fn chunk(text: &str) -> Result<u32, ApiError> {
    let bytes = size(text, "chunk", ErrorCode::GroupChunkInvalid)?;
    let allowed = (512..=1 << 20).contains(&bytes) && bytes.is_power_of_two();
    allowed.then(|| u32::try_from(bytes).ok()).flatten().ok_or_else(|| {
        let message = format!("the chunk \"{}\" is not a power of two from 512 to 1M", shown(text));
        ApiError::new(ErrorCode::GroupChunkInvalid, message).hint("64K suits most")
    })
}

/// A level like `5`, `raid5`, `RAID 5` or `raid-5`.
pub(crate) fn level(text: &str) -> Result<LevelDoc, ApiError> {
    let lower = text.trim().to_ascii_lowercase();
    let number =
        lower.strip_prefix("raid").map_or(lower.as_str(), |rest| rest.trim_start_matches([' ', '-', '_']));
    match number {
        "0" => Ok(LevelDoc::Raid0),
        "1" => Ok(LevelDoc::Raid1),
        "5" => Ok(LevelDoc::Raid5),
        "6" => Ok(LevelDoc::Raid6),
        "10" => Ok(LevelDoc::Raid10),
        _ => Err(ApiError::new(
            ErrorCode::GroupLevelInvalid,
            format!("the level \"{}\" is not one of 0, 1, 5, 6, 10", shown(text)),
        )),
    }
}

/// A time like `90s`, `10m` or `2h`; a bare number is seconds.
pub(crate) fn time(text: &str, what: &str) -> Result<Duration, ApiError> {
    let seconds = text.parse::<u64>().ok().map(Duration::from_secs);
    seconds.or_else(|| humantime::parse_duration(text).ok()).filter(|time| !time.is_zero()).ok_or_else(|| {
        let message = format!("the {what} \"{}\" is not a time", shown(text));
        ApiError::new(ErrorCode::UsageInvalid, message).hint("times look like 90s, 10m, 2h")
    })
}

/// A drive as the daemon can find it: paths are made absolute, for the daemon's folder is not ours; a serial or uuid
/// stays as it is.
pub(crate) fn drive(text: &str) -> Result<String, ApiError> {
    server::control::names::drive_ref(text)?;
    let path = std::path::Path::new(text);
    if !text.contains('/') && !path.exists() {
        return Ok(text.to_owned());
    }
    // GROUP/SLOT, as people write it who know GROUP/DISK.
    if let Some((group, slot)) = text.split_once('/')
        && server::control::names::group_name(group).is_ok()
        && slot.parse::<u8>().is_ok()
        && !path.exists()
    {
        return Ok(format!("{group}:{slot}"));
    }
    std::path::absolute(path).map(|path| path.to_string_lossy().into_owned()).map_err(|error| {
        ApiError::new(
            ErrorCode::DriveInvalid,
            format!("the path {} cannot be followed: {error}", shown(text)),
        )
    })
}

/// An NBD address: `unix:PATH` made absolute, `tcp:ADDR:PORT` as it is.
pub(crate) fn address(text: &str) -> Result<String, ApiError> {
    let wrong = |why: &str| {
        let message = format!("the address \"{}\" {why}", shown(text));
        ApiError::new(ErrorCode::ExposeAddressInvalid, message)
            .hint("write unix:/run/warpraid/home.sock or tcp:127.0.0.1:10809")
    };
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() || path.chars().any(char::is_control) {
            return Err(wrong("names no socket"));
        }
        let path = std::path::absolute(path).map_err(|error| wrong(&error.to_string()))?;
        return Ok(format!("unix:{}", path.display()));
    }
    let tcp = text.strip_prefix("tcp:").ok_or_else(|| wrong("starts with neither unix: nor tcp:"))?;
    tcp.parse::<std::net::SocketAddr>().map_err(|_| wrong("is not an IP address and a port"))?;
    Ok(text.to_owned())
}

/// A size for people: three significant digits, binary units.
pub(crate) fn human(bytes: u64) -> String {
    let (name, factor) = UNITS.into_iter().rev().find(|(_, factor)| bytes >= *factor).unwrap_or(("", 1));
    if factor == 1 {
        return format!("{bytes} B");
    }
    let whole = bytes / factor;
    let rest = u128::from(bytes % factor);
    let digit = |scale: u128| rest * scale / u128::from(factor);
    match whole {
        _ if rest == 0 => format!("{whole} {name}iB"),
        0..10 => format!("{whole}.{:02} {name}iB", digit(100)),
        10..100 => format!("{whole}.{} {name}iB", digit(10)),
        _ => format!("{whole} {name}iB"),
    }
}

/// Seconds for people: the two largest units.
pub(crate) fn span(seconds: u64) -> String {
    let parts =
        [(seconds / 86400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "min"), (seconds % 60, "s")];
    let first = parts.iter().position(|(n, _)| *n > 0).unwrap_or(3);
    let shown = parts[first..].iter().take(2).filter(|(n, unit)| *n > 0 || *unit == "s" && first == 3);
    shown.map(|(n, unit)| format!("{n} {unit}")).collect::<Vec<_>>().join(" ")
}

/// A moment for people: UTC, to the second.
pub(crate) fn moment(unix_s: u64) -> String {
    // Beyond the year 9999 there is no date to show, and the library would panic.
    let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(253_402_300_799));
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<u64, String> {
        size(text, "size", ErrorCode::DiskSizeInvalid).map_err(|error| error.message)
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512B", 512),
            ("64K", 65536),
            ("64k", 65536),
            ("64KiB", 65536),
            ("500M", 500 << 20),
            ("10G", 10 << 30),
            ("10 GiB", 10 << 30),
            ("1T", 1 << 40),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parsed(text), Ok(bytes), "{text}");
        }
        for (text, why) in [
            ("", "is not a size"),
            ("G", "is not a size"),
            ("-1", "is not a size"),
            ("1.5T", "whole number"),
            ("10GB", "write 10G or 10GiB"),
            ("10X", "unknown unit"),
            ("10KiBB", "unknown unit"),
            ("0", "is zero"),
            ("0G", "is zero"),
            ("16E", "larger than"),
            ("99999999999999999999", "larger than"),
            ("1\u{661}", "unknown unit"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn chunks_and_levels() {
        assert_eq!(chunk("64K").unwrap(), 65536);
        assert_eq!(chunk("1M").unwrap(), 1 << 20);
        for bad in ["2M", "48K", "256", "x"] {
            assert_eq!(chunk(bad).unwrap_err().exit().code(), 2, "{bad}");
        }
        for text in ["5", "raid5", "RAID5", "RAID 5", "raid-5", " 5 "] {
            assert_eq!(level(text).unwrap(), LevelDoc::Raid5, "{text:?}");
        }
        assert_eq!(level("10").unwrap(), LevelDoc::Raid10);
        for bad in ["", "raid", "4", "50", "five", "55"] {
            assert_eq!(level(bad).unwrap_err().code, ErrorCode::GroupLevelInvalid, "{bad}");
        }
    }

    #[test]
    fn times_addresses_and_drives() {
        assert_eq!(time("90", "timeout").unwrap(), Duration::from_secs(90));
        assert_eq!(time("2h", "timeout").unwrap(), Duration::from_secs(7200));
        assert!(time("soon", "timeout").is_err() && time("0s", "timeout").is_err());
        assert_eq!(address("tcp:127.0.0.1:10809").unwrap(), "tcp:127.0.0.1:10809");
        assert_eq!(address("tcp:[::1]:10809").unwrap(), "tcp:[::1]:10809");
        assert_eq!(address("unix:/a/b").unwrap(), "unix:/a/b");
        assert!(address("unix:b").unwrap().starts_with("unix:/"));
        for bad in ["", "unix:", "tcp:", "tcp:localhost", "tcp:1.2.3.4:99999", "http://x", "unix:a\nb"] {
            assert_eq!(address(bad).unwrap_err().exit().code(), 2, "{bad}");
        }
        assert_eq!(drive("S4X9NF0M").unwrap(), "S4X9NF0M");
        assert_eq!(drive("/dev/nvme0n1").unwrap(), "/dev/nvme0n1");
        assert!(drive("./x").unwrap().starts_with('/'));
    }

    #[test]
    fn numbers_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (10 * 1024 + 512, "10.5 KiB"),
            (1000 << 20, "1000 MiB"),
            ((1 << 40) - 1, "1023 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90061, "1 d 1 h")]
        {
            assert_eq!(span(seconds), text);
        }
        assert_eq!(moment(1_764_519_305), "2025-11-30 16:15:05 UTC");
        assert!(moment(u64::MAX).starts_with("9999"));
    }
}
