//! A whole node from one file, on files: the shipped layout is planned, applied, applied again, changed, cut short; what
//! contradicts it is named before anything is changed.

use std::fs;
use std::path::{Path, PathBuf};

use warpraid_tests::cli::{Answer, Json};
use warpraid_tests::drives::{hashes, overwrite};
use warpraid_tests::{Daemon, Lab, Stamped, tool};

const DRIVE: u64 = 64 << 20;

/// The shipped layout with files for drives and NBD for block devices.
fn shipped(lab: &Lab) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/layouts/storage-node.toml");
    let mut text = fs::read_to_string(path).unwrap();
    for n in (0..16).rev() {
        text = text.replace(&format!("/dev/nvme{n}n1"), &format!("./nvme{n}"));
    }
    let disks = ["mdt0", "mdt1", "ost0", "ost1", "ost2", "ost3", "ost4", "ost5"];
    for disk in disks {
        let line = format!("name = \"{disk}\"\n");
        assert!(text.contains(&line), "{disk}");
        text = text.replace(&line, &format!("{line}expose = \"unix:{disk}.sock\"\n"));
    }
    let _drives: Vec<PathBuf> = (0..16).map(|n| lab.drive(&format!("nvme{n}"), DRIVE)).collect();
    text
}

fn write(lab: &Lab, text: &str) -> PathBuf {
    let file = lab.join("node.toml");
    fs::write(&file, text).unwrap();
    file
}

fn plan(daemon: &Daemon, file: &Path) -> Json {
    daemon.ok(&["layout", "plan", tool::text(file)])
}

fn steps(doc: &Json) -> Vec<String> {
    doc.list("steps").iter().map(|step| format!("{} {}", step.text("verb"), step.text("subject"))).collect()
}

fn drives_of(lab: &Lab) -> Vec<PathBuf> {
    (0..16).map(|n| lab.join(&format!("nvme{n}"))).collect()
}

#[test]
fn the_shipped_layout_is_planned_applied_and_then_asks_for_nothing() {
    let lab = Lab::new("layout");
    let text = shipped(&lab);
    let file = write(&lab, &text);
    let daemon = lab.daemon();
    let before = hashes(&drives_of(&lab));
    let planned = plan(&daemon, &file);
    assert_eq!(
        steps(&planned)[..6],
        [
            "group create meta0",
            "disk create meta0/mdt0",
            "disk expose meta0/mdt0",
            "group create data0",
            "disk create data0/ost0",
            "disk expose data0/ost0"
        ]
    );
    assert_eq!(steps(&planned).len(), 4 + 8 + 8);
    // Files have no NUMA node: that is said, not held against them.
    assert!(planned.list("notes").len() == 16 && planned.mentions("NUMA node"), "{planned:?}");
    daemon.run(&["layout", "apply", tool::text(&file)]).fails(3, &["--yes"]);
    daemon.ok(&["layout", "apply", tool::text(&file), "--dry-run"]);
    assert_eq!(hashes(&drives_of(&lab)), before, "looking changes nothing");

    let applied = daemon.ok(&["layout", "apply", tool::text(&file), "--yes"]);
    assert_eq!(steps(&applied), steps(&planned));
    assert!(applied.list("steps").iter().all(|step| step.text("state") == "done"));
    let groups = daemon.ok(&["group", "list"]).list("groups");
    let shapes: Vec<(String, String, usize, usize)> = groups
        .iter()
        .map(|group| {
            (group.text("name"), group.text("level"), group.list("members").len(), group.list("disks").len())
        })
        .collect();
    let shape = |name: &str, level: &str, drives, disks| (name.to_owned(), level.to_owned(), drives, disks);
    let mut expected = vec![
        shape("meta0", "raid1", 2, 1),
        shape("data0", "raid5", 6, 3),
        shape("meta1", "raid1", 2, 1),
        shape("data1", "raid5", 6, 3),
    ];
    expected.sort();
    let mut shapes = shapes;
    shapes.sort();
    assert_eq!(shapes, expected);
    for group in ["meta0", "meta1"] {
        assert_eq!(daemon.group(group).number("free_bytes"), 0, "the rest is all there was");
    }
    // Every disk works, and says what makes its file system.
    for disk in applied.list("disks") {
        let name = format!("{}/{}", disk.text("group"), disk.text("disk"));
        let address = format!("unix:{}", lab.join(&format!("{}.sock", disk.text("disk"))).display());
        let export = daemon.exposed(&name, &address);
        assert_eq!(export.size_bytes, disk.number("size_bytes"), "{name}: as planned");
        let stamped = Stamped::new(1, 1 << 20, 4096);
        stamped.fill(&export);
        stamped.verify(&export);
        let (mkfs, mount) = (disk.text("mkfs"), disk.text("mount"));
        if disk.text("purpose") == "xfs-storage" {
            assert!(mkfs.contains("mkfs.xfs -d su=128k,sw=5 -l version=2,su=128k"), "{mkfs}");
        } else {
            assert!(
                mkfs.starts_with("mkfs.ext4") && !mkfs.contains("stride"),
                "a mirror has no stripes: {mkfs}"
            );
        }
        assert!(mount.ends_with(&format!("DEVICE /data/{}", disk.text("disk"))), "{mount}");
    }

    let again = daemon.ok(&["layout", "apply", tool::text(&file)]);
    assert!(steps(&again).is_empty(), "{again:?}");
    // Another restart, and a drive that a spare or an operator has replaced, change nothing either.
    let new = lab.drive("new", DRIVE);
    daemon.wait("data0", "healthy");
    daemon.replace("data0", 2, &new);
    daemon.wait("data0", "healthy");
    let again = plan(&daemon, &file);
    assert!(steps(&again).is_empty() && again.mentions("left alone"), "{again:?}");
}

#[test]
fn the_file_system_lines_are_ones_that_mkfs_takes() {
    let lab = Lab::new("layout-mkfs");
    let text = shipped(&lab)
        .replace("mdt1\"\nexpose", "mdt1\"\nmount = \"/m\"\nexpose")
        .replace("mount = \"/data/mdt1\"\n", "");
    // ext4 over parity too.
    let text = text.replacen("purpose = \"xfs-storage\"", "purpose = \"ext4-metadata\"", 1);
    let file = write(&lab, &text);
    let daemon = lab.daemon();
    let image = lab.drive("image", 8 << 30);
    let mut tried = 0;
    for disk in plan(&daemon, &file).list("disks") {
        let line = disk.text("mkfs").replace("DEVICE", tool::text(&image));
        let mut words: Vec<&str> = line.split(' ').collect();
        let program = words.remove(0);
        // Only what it would do.
        words.insert(0, if program == "mkfs.xfs" { "-N" } else { "-n" });
        if program == "mkfs.ext4" {
            words.insert(0, "-F");
        }
        let said = tool::run(program, &words);
        tried += 1;
        if program == "mkfs.xfs" {
            assert!(said.contains("sunit=32") && said.contains("swidth=160"), "{said}");
        } else if line.contains("stride") {
            assert!(line.contains("-E stride=32,stripe_width=160"), "{line}");
        }
    }
    assert_eq!(tried, 8);
}

#[test]
fn a_changed_size_grows_and_a_smaller_one_is_refused() {
    let lab = Lab::new("layout-size");
    let _drives: Vec<PathBuf> = (0..3).map(|n| lab.drive(&format!("d{n}"), DRIVE)).collect();
    let spare = lab.drive("spare", DRIVE);
    let text = "[[group]]\nname = \"tank\"\nlevel = 5\ndrives = [\"./d0\", \"./d1\", \"./d2\"]\n\n\
                [[group.disk]]\nname = \"home\"\nsize = \"16M\"\nexpose = \"no\"\n";
    let file = write(&lab, text);
    let daemon = lab.daemon();
    daemon.ok(&["layout", "apply", tool::text(&file), "--yes"]);

    write(&lab, &text.replace("16M", "20M").replace("level = 5", "level = 5\nspares = [\"./spare\"]"));
    let grown = plan(&daemon, &file);
    assert_eq!(steps(&grown), [format!("spare add {}", spare.display()), "disk resize tank/home".into()]);
    assert!(grown.mentions("from 16 MiB to 20 MiB"), "{grown:?}");
    daemon.ok(&["layout", "apply", tool::text(&file), "--yes"]);
    assert_eq!(daemon.ok(&["disk", "show", "tank/home"]).number("size_bytes"), 20 << 20);
    assert!(steps(&plan(&daemon, &file)).is_empty());

    let refused = |text: String, exit: i32, code: &str, words: &[&str]| {
        write(&lab, &text);
        let answer = daemon.run(&["layout", "apply", tool::text(&file), "--yes"]);
        answer.fails(exit, words);
        assert_eq!(answer.envelope.text("error.code"), code, "{answer}");
    };
    refused(text.replace("16M", "8M"), 3, "disk.shrink.refused", &["tank/home", "only grow"]);
    refused(text.replace("16M", "1T"), 2, "disk.size.invalid", &["tank/home", "free"]);
    refused(text.replace("level = 5", "level = 1"), 3, "layout.refused", &["it is RAID 5", "RAID 1"]);
    refused(
        text.replace("level = 5", "level = 5\nchunk = \"16K\""),
        3,
        "layout.refused",
        &["chunk is 64 KiB"],
    );
    refused(text.replace(", \"./d2\"", ""), 3, "layout.refused", &["it has 3 drives, the file 2"]);
    // Several things at once are all named.
    refused(
        text.replace("16M", "8M").replace("level = 5", "level = 1"),
        3,
        "layout.refused",
        &["only grow", "it is RAID 5"],
    );
    assert_eq!(
        daemon.ok(&["disk", "show", "tank/home"]).number("size_bytes"),
        20 << 20,
        "nothing was changed"
    );
    // What the file does not have stays.
    write(&lab, &text.replace("home", "other").replace("16M", "rest"));
    let other = daemon.ok(&["layout", "apply", tool::text(&file), "--yes"]);
    assert!(other.mentions("tank/home is not in the file"), "{other:?}");
    assert_eq!(daemon.group("tank").list("disks").len(), 2);
    assert_eq!(daemon.group("tank").number("free_bytes"), 0);
}

fn two_groups(first: &str, second: &str) -> String {
    format!(
        "[[group]]\nname = \"one\"\nlevel = 1\ndrives = [{first}]\n\n[[group]]\nname = \"two\"\nlevel = 1\ndrives = [{second}]\n"
    )
}

#[test]
fn what_is_in_the_way_is_named_before_anything_is_changed() {
    let lab = Lab::new("layout-refused");
    let drives = lab.drives("d", 4, DRIVE);
    let used = lab.drive("used", DRIVE);
    tool::run("mkfs.ext4", &["-q", "-F", tool::text(&used)]);
    std::os::unix::fs::symlink(&drives[0], lab.join("link")).unwrap();
    let daemon = lab.daemon();
    let all: Vec<PathBuf> = drives.iter().cloned().chain([used.clone()]).collect();
    let before = hashes(&all);
    let refused = |text: &str, exit: i32, code: &str, words: &[&str]| -> Answer {
        let file = write(&lab, text);
        let answer = daemon.run(&["layout", "apply", tool::text(&file), "--yes"]);
        answer.fails(exit, words);
        assert_eq!(answer.envelope.text("error.code"), code, "{answer}");
        assert_eq!(hashes(&all), before, "{code}: nothing was changed");
        assert!(daemon.ok(&["group", "list"]).list("groups").is_empty());
        answer
    };
    refused(
        &two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"./d1\""),
        2,
        "drive.named.twice",
        &["d1", "one", "two"],
    );
    // The same drive under another name.
    refused(
        &two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"./link\""),
        2,
        "drive.named.twice",
        &["d0", "one", "two"],
    );
    refused(
        &two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"SERIAL-9\""),
        4,
        "drive.not.found",
        &["SERIAL-9", "two"],
    );
    refused(&two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"./none\""), 4, "drive.not.found", &["none"]);
    refused(&two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"./used\""), 3, "drive.used", &["used", "ext4"]);
    refused(&two_groups("\"./d0\"", "\"./d2\", \"./d3\""), 2, "group.drives.invalid", &["one"]);
    refused(
        &two_groups("\"./d0\", \"SERIAL-9\"", "\"./d2\", \"./used\""),
        3,
        "layout.refused",
        &["SERIAL-9", "ext4"],
    );
    let spare = format!("{}spares = [\"./used\"]\n", two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"./d3\""));
    refused(&spare, 3, "drive.used", &["spare of group two", "ext4"]);
    let select = "[[group]]\nname = \"one\"\nlevel = 1\nselect = { count = 2, model = \"No such *\" }\n";
    refused(select, 4, "drive.not.found", &["2 drives are selected, 0 free"]);
    refused("[[group]\n", 2, "layout.invalid", &["line 1"]);
    daemon.run(&["layout", "plan", "/no/such/file"]).fails(4, &["/no/such/file"]);
    // A member of a group that runs.
    daemon.create("mine", 1, &drives[..2]);
    let file = write(&lab, &two_groups("\"./d2\", \"./d3\"", "\"./d0\", \"./d1\""));
    daemon.run(&["layout", "plan", tool::text(&file)]).fails(3, &["group two", "mine"]);
}

#[test]
fn a_step_that_fails_stops_it_and_the_same_command_goes_on() {
    let lab = Lab::new("layout-stop");
    let drives = lab.drives("d", 4, DRIVE);
    let daemon = lab.daemon();
    // The socket of the first disk is taken by somebody else.
    let taken = std::os::unix::net::UnixListener::bind(lab.join("taken.sock")).unwrap();
    let text = two_groups("\"./d0\", \"./d1\"", "\"./d2\", \"./d3\"").replacen(
        "\n\n",
        "\n\n[[group.disk]]\nname = \"a\"\nsize = \"50%\"\nexpose = \"unix:taken.sock\"\n\n",
        1,
    );
    let file = write(&lab, &text);
    let stopped = daemon.run(&["layout", "apply", tool::text(&file), "--yes"]);
    stopped.fails(
        7,
        &[
            "stopped at step 3 of 4",
            "done: create group one",
            "not done: create group two",
            "goes on from there",
        ],
    );
    assert_eq!(daemon.group("one").list("disks").len(), 1);
    assert!(!daemon.runs("two"));
    let left = plan(&daemon, &file);
    assert_eq!(steps(&left), ["disk expose one/a", "group create two"]);
    drop(taken);
    fs::remove_file(lab.join("taken.sock")).unwrap();
    daemon.ok(&["layout", "apply", tool::text(&file), "--yes"]);
    assert!(daemon.runs("two") && steps(&plan(&daemon, &file)).is_empty());
    // A group that is there and does not run is not made again over its drives.
    daemon.ok(&["group", "stop", "two"]);
    overwrite(&drives[2], 32 << 20, &[7; 4096]);
    daemon.run(&["layout", "apply", tool::text(&file), "--yes"]).fails(3, &["two"]);
}
