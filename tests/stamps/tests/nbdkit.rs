//! The client, the load and the model against nbdkit, a server that is not ours: what they say of it must be that it is
//! right, and of a damaged disk that it is not.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use stamps::Model;
use stamps::load::{Counters, Failure, Mix, Op, Pipeline};
use stamps::nbd::{Client, Command, Endpoint, Haggle, Options, errno, flag, kind, opt, rep, transmission};

const SIZE: u64 = 8 << 20;

/// A running nbdkit, killed when dropped.
struct Server {
    child: Child,
    endpoint: Endpoint,
    folder: std::path::PathBuf,
}

impl Server {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("warpraid-stamps-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("nbd");
        let child = Process::new("nbdkit")
            .arg("--foreground")
            .arg("--unix")
            .arg(&socket)
            .args(arguments)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdkit runs (Debian package nbdkit; tests/run installs it)");
        let since = Instant::now();
        while !socket.exists() {
            assert!(since.elapsed() < Duration::from_secs(30), "nbdkit listens");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, endpoint: Endpoint::Unix(socket), folder }
    }

    fn client(&self, structured: bool) -> Client {
        let options = Options { structured, ..Options::export("") };
        Client::connect(&self.endpoint, &options).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        let _left = std::fs::remove_dir_all(&self.folder);
    }
}

fn file(name: &str) -> Server {
    let folder = std::env::temp_dir().join(format!("warpraid-stamps-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::File::create(folder.join("disk")).unwrap().set_len(SIZE).unwrap();
    Server::start(name, &["file", "disk"])
}

fn mix(seed: u64) -> Mix {
    Mix { seed, unit_bytes: 512, length_bytes_max: 256 << 10, reads: 40, zeroes: 5, flushes: 3, fua: 10 }
}

#[test]
fn an_honest_server_passes_over_many_connections_with_both_reply_kinds() {
    let server = file("honest");
    let model = Mutex::new(Model::new(1, SIZE));
    let counters = Counters::default();
    std::thread::scope(|scope| {
        for (seed, structured) in [(1, true), (2, false), (3, true)] {
            let (server, model, counters) = (&server, &model, &counters);
            scope.spawn(move || {
                let mut client = server.client(structured);
                let ops = mix(seed).requests(SIZE).take(400);
                Pipeline::new(&mut client, model, counters, 16).run(ops, &AtomicBool::new(false)).unwrap();
                client.disconnect().unwrap();
            });
        }
    });
    let mut client = server.client(true);
    let mut pipeline = Pipeline::new(&mut client, &model, &counters, 8);
    pipeline.verify(1 << 20).unwrap();
    pipeline.fill(1 << 20).unwrap();
    pipeline.verify(64 << 10).unwrap();
}

#[test]
fn damage_behind_the_servers_back_is_found_where_it_is() {
    let server = file("damage");
    let model = Mutex::new(Model::new(1, SIZE));
    let counters = Counters::default();
    let mut client = server.client(true);
    Pipeline::new(&mut client, &model, &counters, 4).fill(1 << 20).unwrap();
    let disk = Path::new(&server.folder).join("disk");
    let disk = std::fs::OpenOptions::new().read(true).write(true).open(disk).unwrap();
    let mut moved = [0; 512];
    disk.read_exact_at(&mut moved, 512 * 100).unwrap();
    disk.write_all_at(&moved, 512 * 300).unwrap();
    disk.write_all_at(&[0xff], 512 * 400 + 7).unwrap();
    disk.write_all_at(&[0; 512], 512 * 500).unwrap();
    let Err(Failure::Wrong(findings)) = Pipeline::new(&mut client, &model, &counters, 1).verify(SIZE) else {
        panic!("damage was not found");
    };
    let places: Vec<u64> = findings.iter().map(|finding| finding.offset_bytes / 512).collect();
    assert_eq!(places, [300, 400, 500]);
}

#[test]
fn errors_reach_the_caller_and_the_connection_lives() {
    let server =
        Server::start("errors", &["--filter=error", "memory", "1M", "error-pread=EIO", "error-pread-rate=1"]);
    let mut client = server.client(true);
    assert_eq!(client.read(0, 512).unwrap_err().errno(), Some(errno::EIO));
    client.write(0, &[7; 512]).unwrap();
    assert_eq!(client.read(1 << 20, 512).unwrap_err().errno(), Some(errno::EINVAL));
    client.flush().unwrap();
    let model = Mutex::new(Model::new(1, 1 << 20));
    let counters = Counters::default();
    let read = [Op::Read { at: 0, bytes: 512 }];
    let failed = Pipeline::new(&mut client, &model, &counters, 1).run(read, &AtomicBool::new(false));
    assert!(matches!(failed, Err(Failure::Request { .. })), "{failed:?}");
}

#[test]
fn the_handshake_lists_informs_refuses_and_aborts() {
    let server = Server::start("haggle", &["memory", "1M"]);
    let timeout = Duration::from_secs(20);
    let mut haggle = Haggle::open(&server.endpoint, timeout).unwrap();
    assert_eq!(haggle.list().unwrap(), [""]);
    let export = haggle.info("").unwrap();
    assert_eq!(export.size_bytes, 1 << 20);
    assert_ne!(export.flags & transmission::SEND_FLUSH, 0);
    let replies = haggle.option(0x7777, &[1, 2, 3]).unwrap();
    assert_eq!(replies.last().unwrap().kind, rep::ERR_UNSUP);
    haggle.must(opt::STRUCTURED_REPLY, &[]).unwrap();
    haggle.abort().unwrap();

    let options = Options { contexts: vec!["base:allocation".to_owned()], ..Options::export("") };
    let mut client = Client::connect(&server.endpoint, &options).unwrap();
    assert_eq!(client.contexts().len(), 1);
    let extents = client.block_status(0, 1 << 20).unwrap();
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u32>(), 1 << 20);
    let mut fua = Command::write(4096, vec![1; 4096]).with(flag::FUA);
    client.call(fua.clone()).unwrap();
    fua.kind = kind::WRITE_ZEROES;
    fua.data.clear();
    client.call(fua).unwrap();
    client.call(Command::trim(0, 4096)).unwrap();
    assert_eq!(client.read(4096, 4096).unwrap(), vec![0; 4096]);
    client.disconnect().unwrap();
}

#[test]
fn a_server_that_does_not_answer_is_a_time_out_and_not_a_hang() {
    let server = Server::start("hang", &["--filter=delay", "memory", "1M", "delay-read=30"]);
    let options = Options { timeout: Duration::from_millis(300), ..Options::export("") };
    let mut client = Client::connect(&server.endpoint, &options).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    client.write(0, &[1; 512]).unwrap();
    assert!(client.read(0, 512).unwrap_err().is_fatal());
}
