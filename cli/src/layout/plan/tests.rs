//! Layouts against nodes that are made up: NUMA nodes, serials, models.

use std::path::Path;

use serde_json::{Value, json};

use super::super::file::parse;
use super::*;

const TIB: u64 = 1 << 40;

fn drive(n: usize, more: Value) -> DriveDoc {
    let mut doc = json!({
        "path": format!("/dev/nvme{n}n1"), "kind": "nvme", "serial": format!("S{n}"), "model": "ACME 1000",
        "size_bytes": 4 * TIB, "block_size_bytes": 512, "numa_node": n / 8, "state": "free", "why": null, "next": null,
        "group": null, "group_uuid": null, "slot": null, "device_uuid": null, "signatures": [], "holders": [],
        "errors": {"commands": 0}, "smart": null
    });
    let fields = doc.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    serde_json::from_value(doc).unwrap()
}

/// The node of the shipped example: 16 drives, 8 on each NUMA node.
fn node(layout: &Layout, change: impl Fn(usize) -> Value) -> Node {
    let drives: Vec<DriveDoc> = (0..16).map(|n| drive(n, change(n))).collect();
    let mut node = Node { drives, ..Node::default() };
    for group in &layout.groups {
        let Drives::Named(names) = &group.drives else { continue };
        for name in names.iter().chain(&group.spares) {
            let is_it = |drive: &&DriveDoc| drive.path == *name || drive.serial.as_deref() == Some(name);
            let found = node.drives.iter().find(is_it).cloned();
            let missing = || ApiError::new(ErrorCode::DriveNotFound, format!("{name}: no such drive"));
            node.named.insert(name.clone(), found.ok_or_else(missing));
        }
    }
    node
}

/// As the daemon plans a group.
fn asked(what: &GroupCreate) -> Result<PlanDoc, ApiError> {
    let n = u64::try_from(what.drives.len()).unwrap();
    let (columns, level, chunk) =
        if what.level == LevelDoc::Raid1 { (1, "raid1", 0) } else { (n - 1, "raid5", 128 << 10) };
    let stripe = if chunk == 0 { 65_536 } else { columns * chunk };
    let plan = json!({
        "level": level, "chunk_bytes": chunk, "stripe_bytes": stripe, "block_size_bytes": 512, "raw_bytes": 0,
        "parity_bytes": 0, "metadata_bytes": 0, "unused_bytes": 0, "usable_bytes": columns * (4 * TIB / stripe * stripe),
        "arithmetic": [], "tolerates": 1, "tolerance": "any 1 drive may be lost", "mkfs": {"xfs": "", "ext4": ""}, "drives": []
    });
    Ok(serde_json::from_value(plan).unwrap())
}

fn shipped() -> Layout {
    parse(include_str!("../../../../contrib/layouts/storage-node.toml"), "node.toml", Path::new("/")).unwrap()
}

fn layout(text: &str) -> Layout {
    parse(text, "node.toml", Path::new("/")).unwrap()
}

#[test]
fn the_reference_node_is_made_in_order_with_the_lines_that_fit() {
    let layout = shipped();
    let plan = compare(&layout, &node(&layout, |_| json!({})), asked);
    assert!(plan.problems.is_empty() && plan.notes.is_empty(), "{:?} {:?}", plan.problems, plan.notes);
    let verbs: Vec<&str> = plan.steps.iter().map(|(step, _)| step.names().0).collect();
    let pair = ["group create", "disk create", "disk expose"];
    let targets = ["disk create", "disk expose"];
    let half = [&pair[..], &pair, &targets, &targets].concat();
    assert_eq!(verbs, [half.clone(), half].concat());
    assert!(plan.steps.iter().any(|(_, what)| what == "serve disk data0/ost0 as /dev/warpraid/data0/ost0"));
    let lines: Vec<String> = plan.disks.iter().filter_map(|disk| disk.mkfs.clone()).collect();
    assert_eq!(
        lines[0],
        "mkfs.ext4 -b 4096 -i 2048 -I 512 -J size=400 -O dir_index,filetype /dev/warpraid/meta0/mdt0"
    );
    assert_eq!(
        lines[1],
        "mkfs.xfs -d su=128k,sw=5 -l version=2,su=128k -i size=512 /dev/warpraid/data0/ost0"
    );
    assert!(plan.disks[1].mount.as_ref().unwrap().ends_with(" /dev/warpraid/data0/ost0 /data/ost0"));
}

#[test]
fn a_drive_of_the_wrong_numa_node_is_refused_and_an_unknown_one_noted() {
    let layout = shipped();
    let plan =
        compare(&layout, &node(&layout, |n| if n == 3 { json!({"numa_node": 1}) } else { json!({}) }), asked);
    assert_eq!(plan.problems.len(), 1);
    let message = &plan.problems[0].message;
    assert!(message.contains("/dev/nvme3n1") && message.contains("node 1, not 0"), "{message}");
    let plan = compare(
        &layout,
        &node(&layout, |n| if n == 3 { json!({"numa_node": null}) } else { json!({}) }),
        asked,
    );
    assert!(plan.problems.is_empty() && plan.notes.len() == 1, "{:?}", plan.notes);
}

#[test]
fn drives_are_selected_by_what_they_are_and_never_twice() {
    let text = "[[group]]\nname = \"a\"\nlevel = 1\nnuma_node = 1\nselect = { count = 2, model = \"ACME*\", min_size = \"1T\" }\n\
                [[group]]\nname = \"b\"\nlevel = 5\nselect = { count = 3, max_size = \"4T\" }\n";
    let layout = layout(text);
    let small = |n: usize| match n {
        8 => json!({"size_bytes": 1 << 30}),
        9 => json!({"model": "OTHER"}),
        0 => json!({"state": "used"}),
        _ => json!({}),
    };
    let plan = compare(&layout, &node(&layout, small), asked);
    assert!(plan.problems.is_empty(), "{:?}", plan.problems);
    let drives = |i: usize| match &plan.steps[i].0 {
        Step::CreateGroup(what) => what.drives.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(drives(0), ["/dev/nvme10n1", "/dev/nvme11n1"]);
    assert_eq!(drives(1), ["/dev/nvme1n1", "/dev/nvme2n1", "/dev/nvme3n1"]);
    let plan = compare(&layout, &node(&layout, |_| json!({"state": "used"})), asked);
    assert!(plan.problems.len() == 2 && plan.steps.is_empty(), "{:?}", plan.problems);
}

#[test]
fn the_same_drive_by_path_and_serial_is_one_drive() {
    let layout = layout(
        "[[group]]\nname = \"a\"\nlevel = 1\ndrives = [\"/dev/nvme0n1\", \"S1\"]\nspares = [\"S0\"]\n",
    );
    let plan = compare(&layout, &node(&layout, |_| json!({})), asked);
    assert_eq!(plan.problems.len(), 1);
    let error = &plan.problems[0];
    assert!(error.code == ErrorCode::DriveTwice && error.message.contains("spare of group a"), "{error}");
}

#[test]
fn what_the_daemon_says_of_a_group_comes_with_its_name() {
    let layout = shipped();
    let plan = compare(&layout, &node(&layout, |_| json!({})), |what| {
        if what.name == "data1" {
            return Err(ApiError::new(ErrorCode::DriveUsed, "/dev/nvme12n1 carries XFS"));
        }
        asked(what)
    });
    assert_eq!(plan.problems.len(), 1);
    assert_eq!(plan.problems[0].message, "group data1: /dev/nvme12n1 carries XFS");
}

#[test]
fn numbers_in_paths_sort_as_numbers() {
    let mut paths = vec!["/dev/nvme10n1", "/dev/nvme2n1", "/dev/nvme1n2", "/dev/nvme1n1"];
    paths.sort_by_key(|path| natural(path));
    assert_eq!(paths, ["/dev/nvme1n1", "/dev/nvme1n2", "/dev/nvme2n1", "/dev/nvme10n1"]);
}

#[test]
fn sizes_are_whole_stripes() {
    let shape = Shape {
        capacity_bytes: 1000 << 20,
        stripe_bytes: 3 << 20,
        chunk_bytes: 1 << 20,
        block_bytes: 512,
        free_bytes: 0,
    };
    assert_eq!(shape.bytes_of(Size::Bytes(1)), Some(3 << 20));
    assert_eq!(shape.bytes_of(Size::Bytes(6 << 20)), Some(6 << 20));
    assert_eq!(shape.bytes_of(Size::Percent(50)), Some(498 << 20));
    assert_eq!(shape.bytes_of(Size::Percent(1)), Some(9 << 20));
    assert_eq!(shape.bytes_of(Size::Rest), None);
}
