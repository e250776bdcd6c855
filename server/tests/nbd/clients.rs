//! Real clients against a real group over RAM drives: nbdinfo, nbdcopy, qemu-io, qemu-img, nbdsh, fio.
//!
//! A test whose client is not installed says so and does nothing; `tests/run` installs them all.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::common::served::{RAID6, Served, Shape, wait};
use raid_core::geometry::Level;
use raid_core::units::{BlockSize, usize_of};
use server::nbd::address::Address;
use server::nbd::server::{ExposeError, UnexposeError};

/// Far beyond what any of these takes, so that only a hang ends by it.
const DEADLINE: Duration = Duration::from_secs(240);

fn has(tool: &str) -> bool {
    let found =
        Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

/// A client that is ended at the deadline.
fn command(tool: &str, args: &[&str]) -> Command {
    let seconds = DEADLINE.as_secs().to_string();
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &seconds, tool]).args(args).stdin(Stdio::null());
    // nbdsh runs the first python3 of the path, and only the system's has its module.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:{path}"));
    command
}

/// Runs a client to its end.
fn run(tool: &str, args: &[&str]) -> Output {
    let output = command(tool, args).output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{tool} hung");
    assert_eq!(output.status.signal(), None, "{tool} was killed");
    output
}

/// The output of a client that must succeed.
fn succeeds(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {text}\n{errors}");
    text
}

/// A served RAID 6 and its URI on a unix socket.
fn served(folder: &Path) -> (Served, String) {
    let served = Served::ram(RAID6);
    let address: Address = format!("unix:{}", folder.join("d.nbd").display()).parse().unwrap();
    served.expose_all(&address);
    (served, address.uri("g/d"))
}

fn pattern(len: usize) -> Vec<u8> {
    let random = sim::Executor::new(17);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.random_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn nbdinfo_sees_sizes_flags_and_names() {
    if !has("nbdinfo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let json = succeeds("nbdinfo", &["--json", &uri]);
    let doc: serde_json::Value = serde_json::from_str(&json).unwrap();
    let export = &doc["exports"][0];
    assert_eq!(doc["structured"], true);
    assert_eq!(export["export-size"], served.capacity());
    assert_eq!(export["block_size_minimum"], 512);
    assert_eq!(export["block_size_preferred"], 128 << 10, "the largest power of two in a stripe of 192 KiB");
    assert_eq!(export["block_size_maximum"], 32 << 20);
    for flag in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_df", "can_fast_zero"]
    {
        assert_eq!(export[flag], true, "{flag}");
    }
    for flag in ["can_cache", "is_read_only"] {
        assert_eq!(export[flag], false, "{flag}");
    }
    assert_eq!(export["contexts"][0], "base:allocation");
    let map = succeeds("nbdinfo", &["--map", &uri]);
    assert!(map.lines().all(|line| line.contains("data")), "{map}");

    // A second disk at the same address: no default any more, both listed, the read-only one says so.
    let address: Address = format!("unix:{}", folder.path().join("d.nbd").display()).parse().unwrap();
    let error = served.server.expose("g/d", &address, served.disk(0, 512, true)).unwrap_err();
    assert!(matches!(error, ExposeError::Already { .. }));
    let second = served.disk(1 << 20, 1 << 20, true);
    served.server.expose("g/e", &address, second).unwrap();
    let list = succeeds("nbdinfo", &["--list", &address.uri("")]);
    assert!(list.contains("g/d") && list.contains("g/e"), "{list}");
    assert!(!run("nbdinfo", &[&address.uri("")]).status.success(), "no default among two");
    assert!(!run("nbdinfo", &[&address.uri("g/x")]).status.success());
    succeeds("nbdinfo", &["--is", "read-only", &address.uri("g/e")]);
    wait(served.server.unexpose("g/e", false)).unwrap();
    assert_eq!(succeeds("nbdinfo", &["--size", &address.uri("")]).trim(), served.capacity().to_string());
    served.stop();
    assert!(!folder.path().join("d.nbd").exists());
}

#[test]
fn nbdcopy_both_ways_and_qemu_img_compare() {
    if !has("nbdcopy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let (source, back) = (folder.path().join("source"), folder.path().join("back"));
    fs::write(&source, pattern(usize_of(served.capacity()))).unwrap();
    let (source_arg, back_arg) = (source.to_str().unwrap(), back.to_str().unwrap());
    succeeds("nbdcopy", &["--flush", "--connections=4", source_arg, &uri]);
    succeeds("nbdcopy", &["--requests=64", &uri, back_arg]);
    assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap());
    succeeds("nbdcopy", &["--request-size=33554432", "--synchronous", &uri, back_arg]);
    assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap());
    if has("qemu-img") {
        let same = succeeds("qemu-img", &["compare", "-f", "raw", "-F", "raw", source_arg, &uri]);
        assert!(same.contains("identical"), "{same}");
    }
    served.stop();
}

#[test]
fn nbd_over_loopback_tcp() {
    if !has("nbdcopy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let served = Served::ram(RAID6);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address: Address = format!("tcp:127.0.0.1:{port}").parse().unwrap();
    served.expose_all(&address);
    let uri = address.uri("g/d");
    let (source, back) = (folder.path().join("source"), folder.path().join("back"));
    fs::write(&source, pattern(usize_of(served.capacity()))).unwrap();
    succeeds("nbdcopy", &[source.to_str().unwrap(), &uri]);
    succeeds("nbdcopy", &[&uri, back.to_str().unwrap()]);
    assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap());
    served.stop();
}

#[test]
fn qemu_io_writes_zeroes_discards_and_flushes() {
    if !has("qemu-io") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let mut args = vec!["-f", "raw"];
    for command in [
        "write -P 0x5a 0 4M",
        "write -f -P 0x5b 512 1024",
        "read -P 0x5a 0 512",
        "read -P 0x5b 512 1024",
        "read -P 0x5a 1536 3M",
        "write -z 1M 1M",
        "write -z -u -f 2M 512k",
        "discard 3M 1M",
        "read -P 0 1M 1572864",
        "read -P 0x5a 2621440 524288",
        "read -P 0 3M 1M",
        "aio_write -P 0x11 8M 1M",
        "aio_write -P 0x22 9M 1M",
        "aio_flush",
        "flush",
        "read -P 0x11 8M 1M",
        "read -P 0x22 9M 1M",
    ] {
        args.extend(["-c", command]);
    }
    args.push(&uri);
    let text = succeeds("qemu-io", &args);
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    served.stop();
}

/// AD-04 and AD-05 with libnbd, whose own checks are switched off.
#[test]
fn ad_04_nbdsh_bad_requests() {
    if !has("nbdsh") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let script = format!(
        r#"
import errno
h.set_strict_mode(0)
h.connect_uri("{uri}")
size = h.get_size()
def fails(call, want):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == want, (error, want)
    else:
        raise AssertionError("no error")
good = bytes(range(256)) * 16
h.pwrite(good, 4096)
cases = [(size, 512), (size - 512, 1024), (2**63, 512), (0, 1), (1, 512)]
for offset, count in cases:
    past = offset + count > size
    fails(lambda: h.pread(count, offset), errno.EINVAL)
    fails(lambda: h.pwrite(b"x" * count, offset), errno.ENOSPC if past else errno.EINVAL)
    fails(lambda: h.trim(count, offset), errno.EINVAL)
    fails(lambda: h.zero(count, offset), errno.ENOSPC if past else errno.EINVAL)
    assert h.pread(4096, 4096) == good
fails(lambda: h.cache(512, 0), errno.EINVAL)
fails(lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO), errno.ENOTSUP)
fails(lambda: h.trim(2**32 - 512, 0), errno.EINVAL)
h.trim(0, 0)
h.zero(0, 0)
h.flush()
big = bytes(32 * 1024 * 1024)
h.pwrite(big, 0)
fails(lambda: h.pwrite(bytes(33 * 1024 * 1024), 0), errno.EINVAL)
fails(lambda: h.pread(33 * 1024 * 1024, 0), errno.EINVAL)
assert h.pread(32 * 1024 * 1024, 0) == big
h.pwrite(good, 0, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 0) == good
h.shutdown()
"#
    );
    succeeds("nbdsh", &["-c", &script]);
    served.stop();
}

/// AD-04: 64 reads and writes of 32 MiB in flight on several connections, with memory bounded by the lanes' arenas.
#[test]
fn ad_04_many_large_requests_in_flight() {
    if !has("nbdsh") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let script = format!(
        r#"
import os
handles = []
for i in range(4):
    c = nbd.NBD()
    c.connect_uri("{uri}")
    handles.append(c)
n = 32 * 1024 * 1024
data = [nbd.Buffer.from_bytearray(bytearray(os.urandom(n))) for i in range(4)]
def drain(sent):
    for c, cookie in sent:
        while not c.aio_command_completed(cookie):
            c.poll(-1)
drain([(c, c.aio_pwrite(data[i], i * n)) for i, c in enumerate(handles) for _ in range(16)])
for i, c in enumerate(handles):
    bufs = [nbd.Buffer(n) for _ in range(16)]
    drain([(c, c.aio_pread(buf, i * n)) for buf in bufs])
    for buf in bufs:
        assert buf.to_bytearray() == data[i].to_bytearray()
for c in handles:
    c.flush()
    c.shutdown()
"#
    );
    succeeds("nbdsh", &["-c", &script]);
    served.stop();
}

#[test]
fn fio_verifies_mixed_sizes_on_several_connections() {
    if !has("fio") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let uri = format!("--uri={uri}");
    let args = [
        "--name=mixed",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bsrange=512-1m",
        "--bs_unaligned=0",
        "--iodepth=32",
        "--numjobs=3",
        "--size=48m",
        "--offset_increment=48m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        // No files about the state of the verification where the tests run.
        "--verify_state_save=0",
        "--fsync=64",
        "--group_reporting",
    ];
    succeeds("fio", &args);
    served.stop();
}

#[test]
fn mk_03_group_of_4k_blocks() {
    if !has("nbdsh") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let served = Served::ram(Shape {
        level: Level::Raid1,
        members: 2,
        chunk_bytes: 0,
        member_bytes: 16 << 20,
        block: BlockSize::B4096,
    });
    let address: Address = format!("unix:{}", folder.path().join("d.nbd").display()).parse().unwrap();
    served.expose_all(&address);
    let script = format!(
        r#"
import errno
h.set_strict_mode(0)
h.connect_uri("{}")
assert h.get_block_size(nbd.SIZE_MINIMUM) == 4096
h.pwrite(b"a" * 4096, 4096)
try:
    h.pwrite(b"b" * 512, 4096)
    raise AssertionError("a sub-block write went through")
except nbd.Error as error:
    assert error.errnum == errno.EINVAL
assert h.pread(8192, 0) == bytes(4096) + b"a" * 4096
"#,
        address.uri("g/d")
    );
    succeeds("nbdsh", &["-c", &script]);
    served.stop();
}

/// MK-06: a disk with a client is not taken away; forced, the client gets clean errors and nothing hangs.
#[test]
fn mk_06_unexpose_with_a_connected_client() {
    if !has("nbdsh") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (served, uri) = served(folder.path());
    let (ready, go) = (folder.path().join("ready"), folder.path().join("go"));
    let script = format!(
        r#"
import os, time
h.connect_uri("{uri}")
h.pwrite(b"x" * 512, 0)
open("{}", "w").close()
while not os.path.exists("{}"):
    time.sleep(0.01)
try:
    h.pread(512, 0)
    raise AssertionError("served on")
except nbd.Error:
    pass
"#,
        ready.display(),
        go.display()
    );
    let mut client = command("nbdsh", &["-c", &script]).spawn().unwrap();
    let start = Instant::now();
    while !ready.exists() {
        assert!(start.elapsed() < DEADLINE, "the client never connected");
        assert_eq!(client.try_wait().unwrap(), None, "the client has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    let busy = wait(served.server.unexpose("g/d", false)).unwrap_err();
    let UnexposeError::Busy { clients, .. } = &busy else { panic!("{busy}") };
    assert!(clients[0].starts_with("pid "), "{busy}");
    assert_eq!(served.server.exposures()[0].clients, *clients);
    wait(served.server.unexpose("g/d", true)).unwrap();
    fs::write(&go, "").unwrap();
    assert!(client.wait().unwrap().success());
    assert!(served.server.exposures().is_empty());
    assert!(!folder.path().join("d.nbd").exists());
    let gone = wait(served.server.unexpose("g/d", true)).unwrap_err();
    assert_eq!(gone, UnexposeError::NotExposed("g/d".to_owned()));
    served.stop();
}
