//! The layout file: TOML, checked as far as that can be done without looking at the node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use server::control::model::LevelDoc;
use server::control::request::Init;
use server::control::{ApiError, ErrorCode, names};

use crate::units;

/// A level as people write it in a file: `6`, or `"raid6"`.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum LevelText {
    Number(u8),
    Text(String),
}

/// Drives chosen by what they are.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct SelectText {
    count: usize,
    model: Option<String>,
    min_size: Option<String>,
    max_size: Option<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct DiskText {
    name: String,
    size: String,
    #[serde(default)]
    expose: Option<String>,
    #[serde(default)]
    purpose: Option<String>,
    #[serde(default)]
    mount: Option<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct GroupText {
    name: String,
    level: LevelText,
    chunk: Option<String>,
    #[serde(default)]
    init: Init,
    numa_node: Option<u16>,
    drives: Option<Vec<String>>,
    select: Option<SelectText>,
    #[serde(default)]
    spares: Vec<String>,
    #[serde(default, rename = "disk")]
    disks: Vec<DiskText>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default, rename = "group")]
    groups: Vec<GroupText>,
}

/// Drives chosen by what they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Select {
    pub(super) count: usize,
    /// With `*` for anything.
    pub(super) model: Option<String>,
    pub(super) size_bytes: core::ops::RangeInclusive<u64>,
}

/// Which drives a group is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Drives {
    /// These: absolute paths or serials, in slot order.
    Named(Vec<String>),
    /// Free ones that fit.
    Select(Select),
}

impl Drives {
    /// How many there are to be.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Named(names) => names.len(),
            Self::Select(select) => select.count,
        }
    }
}

/// How large a disk is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// Bytes, rounded up to full stripes.
    Bytes(u64),
    /// Of the group, rounded down to full stripes.
    Percent(u64),
    /// What the group's other disks leave.
    Rest,
}

/// What a disk is for: decides the commands that are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// ext4 with many small files.
    Ext4Metadata,
    /// XFS with large ones.
    XfsStorage,
    /// Nothing is printed.
    Other,
}

impl Purpose {
    const ALL: [(&'static str, Self); 3] =
        [("ext4-metadata", Self::Ext4Metadata), ("xfs-storage", Self::XfsStorage), ("other", Self::Other)];

    /// As the file spells it.
    pub(super) fn text(self) -> &'static str {
        Self::ALL.iter().find(|(_, purpose)| *purpose == self).map_or("other", |(text, _)| text)
    }
}

/// How a disk is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Expose {
    /// Not at all.
    No,
    /// As a block device.
    Ublk,
    /// Over NBD at this address.
    Nbd(String),
}

/// A disk of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) size: Size,
    pub(super) expose: Expose,
    pub(super) purpose: Purpose,
    pub(super) mount: Option<String>,
}

/// A group of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) level: LevelDoc,
    pub(super) chunk_bytes: Option<u32>,
    pub(super) init: Init,
    pub(super) numa_node: Option<u16>,
    pub(super) drives: Drives,
    pub(super) spares: Vec<String>,
    pub(super) disks: Vec<Disk>,
}

/// A layout file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) groups: Vec<Group>,
}

fn invalid(place: &str, what: impl core::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::LayoutInvalid, format!("{place}: {what}"))
        .hint("docs/layout.md has every key; contrib/layouts has an example")
}

/// An error about a value of the file, with its place in front.
fn at(place: &str, error: ApiError) -> ApiError {
    ApiError { message: format!("{place}: {}", error.message), ..error }
}

/// Reads a layout file.
///
/// # Errors
/// `layout.not.found`, `layout.invalid` with line and column, or what is wrong with a name, size, level or address.
pub(super) fn read(path: &Path) -> Result<Layout, ApiError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ApiError::new(ErrorCode::LayoutNotFound, format!("{shown}: there is no such file"))
        }
        _ => invalid(&shown.to_string(), error),
    })?;
    let folder = std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned));
    parse(&text, &shown.to_string(), &folder.unwrap_or_else(|| PathBuf::from("/")))
}

/// Reads the text of a layout file; relative paths in it are meant from `folder`.
pub(super) fn parse(text: &str, shown: &str, folder: &Path) -> Result<Layout, ApiError> {
    let file: FileText =
        toml::from_str(text).map_err(|error| invalid(shown, error.to_string().trim_end()))?;
    if file.groups.is_empty() {
        return Err(invalid(shown, "it has no [[group]]"));
    }
    let groups =
        file.groups.into_iter().map(|group| checked(group, shown, folder)).collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    for group in &groups {
        if !seen.insert(group.name.to_ascii_lowercase()) {
            return Err(invalid(shown, format!("group {} is there twice", group.name)));
        }
    }
    no_drive_twice(&groups, shown)?;
    Ok(Layout { groups })
}

fn checked(group: GroupText, shown: &str, folder: &Path) -> Result<Group, ApiError> {
    let place = format!("{shown}: group {}", names::shown(&group.name));
    names::group_name(&group.name).map_err(|error| at(shown, error))?;
    let level = match &group.level {
        LevelText::Number(number) => units::level(&number.to_string()),
        LevelText::Text(text) => units::level(text),
    };
    let named = |drives: Vec<String>| {
        drives.iter().map(|drive| absolute(drive, folder)).collect::<Result<Vec<_>, _>>()
    };
    let drives = match (group.drives, group.select) {
        (Some(drives), None) => Drives::Named(named(drives).map_err(|error| at(&place, error))?),
        (None, Some(select)) => Drives::Select(selected(&select).map_err(|error| at(&place, error))?),
        _ => return Err(invalid(&place, "give its drives, or select them: one of the two")),
    };
    let disks = group
        .disks
        .into_iter()
        .map(|disk| checked_disk(disk, &place, folder))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    for (i, disk) in disks.iter().enumerate() {
        if !seen.insert(disk.name.to_ascii_lowercase()) {
            return Err(invalid(&place, format!("disk {} is there twice", disk.name)));
        }
        if disk.size == Size::Rest && i + 1 != disks.len() {
            return Err(invalid(
                &place,
                format!("disk {} takes the rest, so it must be the last", disk.name),
            ));
        }
    }
    Ok(Group {
        level: level.map_err(|error| at(&place, error))?,
        chunk_bytes: group
            .chunk
            .as_deref()
            .map(units::chunk)
            .transpose()
            .map_err(|error| at(&place, error))?,
        init: group.init,
        numa_node: group.numa_node,
        drives,
        spares: named(group.spares).map_err(|error| at(&place, error))?,
        disks,
        name: group.name,
    })
}

/// A drive as the daemon can find it. A path in a file is meant from where the file lies.
fn absolute(drive: &str, folder: &Path) -> Result<String, ApiError> {
    names::drive_ref(drive)?;
    let is_path = drive.contains('/') || folder.join(drive).exists();
    Ok(if is_path { folder.join(drive).display().to_string() } else { drive.to_owned() })
}

fn selected(select: &SelectText) -> Result<Select, ApiError> {
    let size = |text: &Option<String>| {
        text.as_deref().map(|text| units::size(text, "size", ErrorCode::LayoutInvalid)).transpose()
    };
    let (least, most) = (size(&select.min_size)?.unwrap_or(0), size(&select.max_size)?.unwrap_or(u64::MAX));
    Ok(Select { count: select.count, model: select.model.clone(), size_bytes: least..=most })
}

fn checked_disk(disk: DiskText, place: &str, folder: &Path) -> Result<Disk, ApiError> {
    names::disk_name(&disk.name).map_err(|error| at(place, error))?;
    let place = format!("{place}, disk {}", disk.name);
    let purpose = match &disk.purpose {
        None => Purpose::Other,
        Some(text) => {
            let known = Purpose::ALL.iter().find(|(name, _)| name == text);
            let names: Vec<&str> = Purpose::ALL.iter().map(|(name, _)| *name).collect();
            known
                .ok_or_else(|| invalid(&place, format!("purpose {text:?} is none of {}", names.join(", "))))?
                .1
        }
    };
    let expose = match disk.expose.as_deref() {
        None | Some("ublk") => Expose::Ublk,
        Some("no") => Expose::No,
        Some(text) => {
            let text = match text.strip_prefix("unix:") {
                Some(path) => format!("unix:{}", folder.join(path).display()),
                None => text.to_owned(),
            };
            Expose::Nbd(units::address(&text).map_err(|error| at(&place, error))?)
        }
    };
    let size = size_of(&disk.size).map_err(|error| at(&place, error))?;
    Ok(Disk { name: disk.name, size, expose, purpose, mount: disk.mount })
}

fn size_of(text: &str) -> Result<Size, ApiError> {
    if text == "rest" {
        return Ok(Size::Rest);
    }
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim().parse::<u64>() {
            Ok(percent @ 1..=100) => Ok(Size::Percent(percent)),
            _ => Err(invalid("size", format!("{text:?} is not a percentage from 1% to 100%"))),
        },
        None => units::size(text, "size", ErrorCode::LayoutInvalid).map(Size::Bytes),
    }
}

/// Two groups, or one twice, over one drive, as far as the names alone tell.
fn no_drive_twice(groups: &[Group], shown: &str) -> Result<(), ApiError> {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for group in groups {
        let named: &[String] = match &group.drives {
            Drives::Named(names) => names,
            Drives::Select(_) => &[],
        };
        for drive in named.iter().chain(&group.spares) {
            if let Some((other, _)) = seen.iter().find(|(_, known)| known == drive) {
                let message =
                    format!("{shown}: drive {drive} is named twice, in group {other} and in {}", group.name);
                return Err(ApiError::new(ErrorCode::DriveTwice, message).hint("each drive has one place"));
            }
            seen.push((&group.name, drive));
        }
    }
    Ok(())
}

/// Whether a model fits a pattern with `*` for anything.
pub(super) fn fits_model(pattern: &str, model: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = model.strip_prefix(first) else { return false };
    let mut is_open = false;
    for part in parts {
        is_open = true;
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    // The last part must end the model, unless the pattern ends with a star.
    rest.is_empty()
        || (is_open
            && (pattern.ends_with('*') || model.ends_with(pattern.rsplit('*').next().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Layout, ApiError> {
        parse(text, "node.toml", Path::new("/where"))
    }

    #[test]
    fn the_shipped_example_is_sound() {
        let text = include_str!("../../../contrib/layouts/storage-node.toml");
        let layout = parsed(text).unwrap();
        let drives: usize = layout.groups.iter().map(|group| group.drives.count()).sum();
        let disks: usize = layout.groups.iter().map(|group| group.disks.len()).sum();
        assert_eq!((drives, layout.groups.len(), disks), (16, 4, 8));
        assert!(layout.groups.iter().all(|group| group.numa_node.is_some()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let group = |rest: &str| {
            format!("[[group]]\nname = \"tank\"\nlevel = 5\ndrives = [\"a\", \"b\", \"c\"]\n{rest}")
        };
        let disk = |rest: &str| group(&format!("[[group.disk]]\nname = \"home\"\n{rest}"));
        for (text, code, words) in [
            (String::new(), ErrorCode::LayoutInvalid, "no [[group]]"),
            (group("colour = 3"), ErrorCode::LayoutInvalid, "line 5"),
            (group("chunk = \"3K\""), ErrorCode::GroupChunkInvalid, "group tank"),
            (group("select = { count = 3 }"), ErrorCode::LayoutInvalid, "one of the two"),
            (group("spares = [\"b\"]"), ErrorCode::DriveTwice, "drive b"),
            (group("").replace('5', "7"), ErrorCode::GroupLevelInvalid, "group tank"),
            (group("").replace("tank", ".x"), ErrorCode::GroupNameInvalid, ".x"),
            (format!("{}{}", group(""), group("")), ErrorCode::LayoutInvalid, "group tank is there twice"),
            (
                format!("{}{}", group(""), group("").replace("tank", "two")),
                ErrorCode::DriveTwice,
                "group tank and in two",
            ),
            (disk("size = \"1.5G\""), ErrorCode::LayoutInvalid, "disk home"),
            (disk("size = \"0%\""), ErrorCode::LayoutInvalid, "percentage"),
            (disk("size = \"1G\"\npurpose = \"zfs\""), ErrorCode::LayoutInvalid, "ext4-metadata"),
            (disk("size = \"1G\"\nexpose = \"somehow\""), ErrorCode::ExposeAddressInvalid, "somehow"),
            (
                disk("size = \"rest\"\n[[group.disk]]\nname = \"two\"\nsize = \"1G\""),
                ErrorCode::LayoutInvalid,
                "last",
            ),
            (
                disk("size = \"1G\"\n[[group.disk]]\nname = \"HOME\"\nsize = \"1G\""),
                ErrorCode::LayoutInvalid,
                "twice",
            ),
        ] {
            let error = parsed(&text).expect_err(&text);
            assert_eq!(error.code, code, "{text}: {error}");
            assert!(error.message.contains("node.toml") && error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn paths_are_meant_from_where_the_file_lies() {
        let text = "[[group]]\nname = \"a\"\nlevel = 1\ndrives = [\"./d0\", \"/dev/x\"]\nspares = [\"SERIAL1\"]\n\
                    [[group.disk]]\nname = \"d\"\nsize = \"50%\"\nexpose = \"unix:d.sock\"";
        let group = parsed(text).unwrap().groups.remove(0);
        let Drives::Named(drives) = &group.drives else { panic!("named") };
        assert_eq!(drives[1], "/dev/x");
        assert!(drives[0].starts_with("/where/") && group.spares == ["SERIAL1"]);
        assert_eq!(group.disks[0].expose, Expose::Nbd("unix:/where/d.sock".into()));
        assert_eq!(group.disks[0].size, Size::Percent(50));
    }

    #[test]
    fn models_fit_patterns() {
        for (pattern, model, fits) in [
            ("ACME 1", "ACME 1", true),
            ("ACME 1", "ACME 12", false),
            ("ACME*", "ACME 12", true),
            ("*12", "ACME 12", true),
            ("*12", "ACME 123", false),
            ("A*E*2", "ACME 12", true),
            ("A*X*2", "ACME 12", false),
            ("*", "", true),
            ("*1*", "ACME 12", true),
        ] {
            assert_eq!(fits_model(pattern, model), fits, "{pattern} {model}");
        }
    }
}
