//! Other people's NBD clients against our exports: what they say must be what is there.

use std::path::{Path, PathBuf};

use warpraid_tests::check::assert_redundant;
use warpraid_tests::daemon::Export;
use warpraid_tests::tool::text;
use warpraid_tests::{Daemon, Json, Lab, tool};

const DRIVE: u64 = 64 << 20;

struct Served {
    export: Export,
    daemon: Daemon,
    drives: Vec<PathBuf>,
    // Last: the folder goes when nothing is in it any more.
    lab: Lab,
}

fn served(name: &str, level: u32, width: usize, size: &str) -> Served {
    let lab = Lab::new(name);
    let drives = lab.drives("d", width, DRIVE);
    let daemon = lab.daemon();
    daemon.create("tank", level, &drives);
    daemon.disk("tank/disk", size);
    let export = daemon.expose("tank/disk");
    Served { export, daemon, drives, lab }
}

/// A file of `size` bytes that compresses badly and has holes.
fn image(path: &Path, size: u64) {
    let mut random = stamps::Random::new(size);
    let mut data = Vec::new();
    while u64::try_from(data.len()).unwrap() < size {
        let hole = random.below(4) == 0;
        for _ in 0..8192 {
            data.extend(if hole { 0 } else { random.next_u64() }.to_le_bytes());
        }
    }
    data.truncate(usize::try_from(size).unwrap());
    std::fs::write(path, data).unwrap();
}

#[test]
fn nbdinfo_sees_what_is_there() {
    let served = served("nbdinfo", 5, 3, "48M");
    let listed = tool::run("nbdinfo", &["--list", "--json", &served.export.uri]);
    let listed = Json(serde_json::from_str(&listed).unwrap());
    assert!(listed.list("exports").iter().any(|export| export.text("export-name") == served.export.name));
    let shown = Json(serde_json::from_str(&tool::run("nbdinfo", &["--json", &served.export.uri])).unwrap());
    let export = shown.at("exports.0");
    assert_eq!(export.number("export-size"), served.export.size_bytes);
    for flag in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"] {
        assert!(export.at(flag).0 == true, "{flag}: {export:?}");
    }
    assert!(export.at("is_read_only").0 == false);
    assert_eq!(export.number("block_size_minimum"), 512);
    assert!(shown.at("structured").0 == true);
    let map = tool::run("nbdinfo", &["--map", &served.export.uri]);
    assert!(!map.trim().is_empty(), "a block status for the whole disk");
    assert_eq!(
        tool::run("nbdinfo", &["--size", &served.export.uri]).trim(),
        served.export.size_bytes.to_string()
    );
}

#[test]
fn nbdcopy_and_qemu_img_agree_both_ways() {
    let served = served("nbdcopy", 6, 5, "48M");
    let (source, back) = (served.lab.join("source"), served.lab.join("back"));
    image(&source, served.export.size_bytes);
    tool::run("nbdcopy", &["--flush", text(&source), &served.export.uri]);
    tool::run("nbdcopy", &[&served.export.uri, text(&back)]);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&back).unwrap(), "nbdcopy there and back");
    tool::run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &served.export.uri]);

    served.daemon.wait("tank", "synced");
    served.daemon.fail(&served.drives[1]);
    served.daemon.fail(&served.drives[3]);
    tool::run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&source), &served.export.uri]);
}

#[test]
fn qemu_io_patterns_hold_over_every_edge() {
    let served = served("qemuio", 5, 4, "48M");
    let mut commands = Vec::new();
    // Around chunk (64 KiB) and stripe (192 KiB) edges, single blocks and whole stripes, zeroes and discards.
    for (pattern, at, length) in [
        (1, 0, 512),
        (2, 65024, 1024),
        (3, 196_096, 1024),
        (4, 196_608, 196_608),
        (5, 393_216, 589_824),
        (6, 1_048_064, 65536),
        (7, 3_145_728, 1_048_576),
    ] {
        commands.push(format!("write -P {pattern} {at} {length}"));
        commands.push(format!("read -P {pattern} {at} {length}"));
    }
    commands.push("write -z 3211264 131072".to_owned());
    commands.push("read -P 0 3211264 131072".to_owned());
    commands.push("read -P 7 3145728 65536".to_owned());
    commands.push("discard 3145728 65536".to_owned());
    commands.push("write -f -P 8 4194304 512".to_owned());
    commands.push("aio_write -P 9 5242880 65536".to_owned());
    commands.push("aio_flush".to_owned());
    commands.push("read -P 9 5242880 65536".to_owned());
    commands.push("flush".to_owned());
    let mut arguments = vec!["-f", "raw", "-t", "none"];
    for command in &commands {
        arguments.extend(["-c", command.as_str()]);
    }
    arguments.push(&served.export.uri);
    let said = tool::run("qemu-io", &arguments);
    assert!(!said.contains("verification failed") && !said.contains("rror"), "{said}");
    served.daemon.wait("tank", "synced");
    assert_redundant(&served.drives);
}

#[test]
fn nbdsh_bad_requests_get_their_errors() {
    let served = served("nbdsh", 5, 3, "48M");
    let script = r#"
import errno, nbd, os
h.set_strict_mode(0)
h.connect_uri(os.environ["URI"])
size = h.get_size()

def fails(what, numbers, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum in numbers, (what, error.errnum, error.string)
    else:
        assert False, what + " worked"

big = bytearray(512)
fails("read past the end", [errno.EINVAL], lambda: h.pread(512, size))
fails("read over the end", [errno.EINVAL], lambda: h.pread(1024, size - 512))
fails("write past the end", [errno.ENOSPC], lambda: h.pwrite(big, size))
fails("trim past the end", [errno.EINVAL], lambda: h.trim(512, size))
fails("zero past the end", [errno.ENOSPC, errno.EINVAL], lambda: h.zero(512, size))
fails("odd read", [errno.EINVAL], lambda: h.pread(1, 0))
fails("odd write", [errno.EINVAL], lambda: h.pwrite(bytearray(100), 0))
h.pwrite(b"x" * 512, 0, nbd.CMD_FLAG_FUA)
assert h.pread(512, 0) == b"x" * 512
h.zero(512, 0)
assert h.pread(512, 0) == bytearray(512)
h.flush()
assert h.can_df() and h.can_multi_conn()
h.pread(1 << 20, 0)
h.shutdown()
print("all answered")
"#;
    let output = tool::finish(tool::command("nbdsh").args(["-c", script]).env("URI", &served.export.uri));
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all answered"), "{said}");
}

#[test]
fn fio_verifies_512_bytes_to_1_mib_over_several_connections() {
    for (level, width, seed) in [(5, 4, 11), (10, 4, 12)] {
        let served = served(&format!("fio{level}"), level, width, "48M");
        let job = format!(
            "[global]\nioengine=nbd\nuri={}\nrw=randwrite\nbsrange=512-1m\niodepth=16\nrandseed={seed}\n\
             size=10m\nio_size=20m\noffset_increment=12m\nnumjobs=4\nverify=crc32c\nverify_fatal=1\n\
             verify_backlog=64\nserialize_overlap=1\ngroup_reporting=1\n[job]\n",
            served.export.uri
        );
        let path = served.lab.join("job.fio");
        std::fs::write(&path, job).unwrap();
        // It leaves files about the state of its verification where it runs.
        let output = tool::finish(tool::command("fio").arg(&path).current_dir(served.lab.path()));
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        served.daemon.wait("tank", "synced");
        assert_redundant(&served.drives);
    }
}
