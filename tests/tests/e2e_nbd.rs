//! The NBD door under clients that are wrong, rude or gone.

use std::io::Write as _;
use std::time::Duration;

use stamps::Random;
use stamps::nbd::{
    Client, Command, Endpoint, Error, Haggle, Options, errno, flag, kind, opt, rep, transmission,
};
use warpraid_tests::daemon::{Export, PATIENCE};
use warpraid_tests::faulty::Faulty;
use warpraid_tests::{Daemon, Lab, Stamped, tool};

const DRIVE: u64 = 96 << 20;

struct Served {
    export: Export,
    daemon: Daemon,
    // Last: the folder goes when nothing is in it any more.
    lab: Lab,
}

fn served(name: &str, options: &[&str]) -> Served {
    let lab = Lab::new(name);
    let drives = lab.drives("d", 3, DRIVE);
    let daemon = lab.daemon_with(options);
    daemon.create("tank", 5, &drives);
    daemon.disk("tank/disk", "64M");
    let export = daemon.expose("tank/disk");
    Served { export, daemon, lab }
}

/// The connection lives: a write reads back, and a flush is answered.
fn assert_lives(client: &mut Client) {
    let at = 1 << 20;
    client.write(at, &[0x5a; 4096]).unwrap();
    assert_eq!(client.read(at, 4096).unwrap(), [0x5a; 4096]);
    client.flush().unwrap();
}

fn answer(client: &mut Client, command: Command) -> Result<(), u32> {
    let shown = (command.kind, command.offset, command.length);
    match client.call(command) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.errno().unwrap_or_else(|| panic!("{shown:?} broke the connection: {error}"))),
    }
}

#[test]
fn ad_04_sizes_out_of_range_are_answered_and_the_connection_lives() {
    let served = served("ad04", &["--memory", "128M"]);
    let size = served.export.size_bytes;
    let mut client = served.export.connect();
    let commands = [kind::READ, kind::TRIM, kind::WRITE_ZEROES];
    for kind in commands {
        // Out of range: a write has no space, anything else is invalid.
        let outside = if kind == kind::WRITE_ZEROES { errno::ENOSPC } else { errno::EINVAL };
        for (offset, length) in [
            (size, 512),
            (size - 512, 1024),
            (u64::MAX, 512),
            (u64::MAX - 511, 512),
            (u64::MAX - 1023, 512),
            (1 << 63, 4096),
            (0, u32::MAX - 511),
        ] {
            let got = answer(&mut client, Command::new(kind, offset, length));
            assert_eq!(got, Err(outside), "kind {kind} at {offset}+{length}");
        }
        // Out of range and no whole blocks either: which fault is named is the server's choice.
        let got = answer(&mut client, Command::new(kind, 0, u32::MAX));
        assert!(got == Err(outside) || got == Err(errno::EINVAL), "kind {kind} at 0+{}: {got:?}", u32::MAX);
        // Not whole blocks.
        for (offset, length) in [(0, 1), (1, 512), (511, 1), (512, 513)] {
            let got = answer(&mut client, Command::new(kind, offset, length));
            assert_eq!(got, Err(errno::EINVAL), "kind {kind} at {offset}+{length}");
        }
        // Nothing at all: success or EINVAL, never a lost connection.
        let empty = answer(&mut client, Command::new(kind, 0, 0));
        assert!(empty.is_ok() || empty == Err(errno::EINVAL), "{empty:?}");
        assert_lives(&mut client);
    }
    let write = |offset, length| Command::write(offset, vec![1; length]);
    assert_eq!(answer(&mut client, write(size, 512)), Err(errno::ENOSPC));
    assert_eq!(answer(&mut client, write(size - 512, 1024)), Err(errno::ENOSPC));
    assert_eq!(answer(&mut client, write(0, 1)), Err(errno::EINVAL));
    assert_eq!(answer(&mut client, write(7, 512)), Err(errno::EINVAL));
    let empty = answer(&mut client, write(0, 0));
    assert!(empty.is_ok() || empty == Err(errno::EINVAL), "{empty:?}");
    assert_lives(&mut client);
    for unknown in [8, 77, u16::MAX] {
        assert_eq!(
            answer(&mut client, Command::new(unknown, 0, 512)),
            Err(errno::EINVAL),
            "command {unknown}"
        );
    }
    assert_eq!(answer(&mut client, Command::read(0, 512).with(1 << 14)), Err(errno::EINVAL), "unknown flag");
    assert_lives(&mut client);
}

#[test]
fn ad_04_thirty_two_mib_always_works_and_more_is_refused_whole() {
    let served = served("ad04big", &["--memory", "128M"]);
    let mut client = served.export.connect();
    let big = 32 << 20;
    let data: Vec<u8> = (0..big).map(|i: usize| u8::try_from(i / 4096 % 251).unwrap()).collect();
    client.write(0, &data).unwrap();
    assert_eq!(client.read(0, 32 << 20).unwrap(), data);
    let more = 33 << 20;
    let read = client.read(0, more);
    let written = client.call(Command::write(0, vec![3; 33 << 20]));
    let max = client.export().block_bytes.map_or(32 << 20, |blocks| blocks[2]);
    for (what, got) in [("read", read), ("write", written)] {
        match got {
            Ok(_) => assert!(max >= more, "{what} of 33 MiB worked although the limit is {max}"),
            Err(error) => assert!(error.errno().is_some(), "{what} of 33 MiB: {error}"),
        }
    }
    assert_lives(&mut client);

    // A header that announces 4 GiB, and then nothing: the daemon must neither wait with 4 GiB in hand nor die.
    let mut liar = Command::write(0, Vec::new());
    liar.length = u32::MAX;
    let mut rude = served.export.connect();
    rude.submit(liar).unwrap();
    drop(rude);
    assert_lives(&mut client);
}

/// The bound that the README states. The arena takes 72 KiB of address space for each 64 KiB of buffers, all of which
/// staggering can touch; a connection has its receive buffer (128 KiB), and for each of the 128 requests it may have in
/// flight up to 4 KiB of copied reply and the state of its task; the rest is the program, its control thread, and the tables
/// of its groups.
fn resident_bytes_bound(memory_bytes: u64, connections: u64) -> u64 {
    memory_bytes / 8 * 9 + connections * (2 << 20) + (48 << 20)
}

#[test]
fn ad_04_memory_stays_bounded_with_two_gib_in_flight_on_several_connections() {
    const CONNECTIONS: u64 = 16;
    let served = served("ad04flight", &["--memory", "128M"]);
    let memory = served.daemon.ok(&["status"]).number("daemon.memory_bytes");
    assert!(memory <= 128 << 20, "the daemon takes {memory} bytes, more than it was given");
    let idle = served.daemon.resident_bytes_max();
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let mut client = served.export.connect();
            scope.spawn(move || {
                let fill = u8::try_from(number).unwrap();
                // Nothing is taken off the wire until all are asked for.
                for _ in 0..4 {
                    client.submit(Command::read(0, 32 << 20)).unwrap();
                }
                while client.in_flight() > 0 {
                    assert_eq!(client.wait().unwrap().result.unwrap().len(), 32 << 20);
                }
                for _ in 0..4 {
                    client.submit(Command::write(0, vec![fill; 32 << 20])).unwrap();
                }
                while client.in_flight() > 0 {
                    client.wait().unwrap().result.unwrap();
                }
                // As many requests as a connection may have: their state, not their data, is what counts.
                for i in 0..512 {
                    client.submit(Command::read(i * 4096, 4096)).unwrap();
                }
                while client.in_flight() > 0 {
                    client.wait().unwrap().result.unwrap();
                }
            });
        }
    });
    let peak = served.daemon.resident_bytes_max();
    let bound = resident_bytes_bound(memory, CONNECTIONS);
    println!("{} MiB resident at rest, {} MiB at most, bound {} MiB", idle >> 20, peak >> 20, bound >> 20);
    assert!(peak <= bound, "{peak} bytes resident, the bound is {bound}");
    assert!(peak > idle, "the load was none");
    assert_lives(&mut served.export.connect());
}

#[test]
fn ad_04_read_only_exports_refuse_every_write_with_eperm() {
    let served = served("readonly", &[]);
    let address = format!("unix:{}", served.lab.join("run/ro.nbd").display());
    // A disk is exposed at one address at a time.
    served
        .daemon
        .run(&["disk", "expose", "tank/disk", "--nbd", &address, "--read-only"])
        .fails(7, &["unexpose"]);
    served.daemon.ok(&["disk", "unexpose", "tank/disk"]);
    let export = served.daemon.expose_at("tank/disk", &address, &["--read-only"]);
    let mut client = export.connect();
    assert_ne!(client.export().flags & transmission::READ_ONLY, 0);
    assert_eq!(answer(&mut client, Command::write(0, vec![1; 512])), Err(errno::EPERM));
    assert_eq!(answer(&mut client, Command::trim(0, 512)), Err(errno::EPERM));
    assert_eq!(answer(&mut client, Command::zeroes(0, 512)), Err(errno::EPERM));
    assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
}

fn handshake(export: &Export) -> Vec<Vec<u8>> {
    vec![
        3_u32.to_be_bytes().to_vec(),
        Haggle::option_bytes(opt::LIST, &[]),
        Haggle::option_bytes(opt::STRUCTURED_REPLY, &[]),
        Haggle::option_bytes(opt::INFO, &Haggle::info_data(&export.name)),
        Haggle::option_bytes(opt::GO, &Haggle::info_data(&export.name)),
    ]
}

#[test]
fn ad_05_unknown_options_of_any_size_are_refused_and_the_haggling_goes_on() {
    let served = served("ad05", &[]);
    let mut haggle = Haggle::open(&served.export.endpoint, PATIENCE).unwrap();
    for option in [0, 4, 12, 0x7777, u32::MAX] {
        for length in [0, 1, 64 << 10] {
            let replies = haggle.option(option, &vec![0xee; length]).unwrap();
            assert_eq!(replies.len(), 1);
            assert_eq!(replies[0].kind, rep::ERR_UNSUP, "option {option} with {length} bytes");
        }
    }
    // Known options with data that makes no sense.
    for option in [opt::LIST, opt::INFO, opt::STRUCTURED_REPLY, opt::LIST_META_CONTEXT, opt::STARTTLS] {
        let replies = haggle.option(option, &[0xff; 9]).unwrap();
        assert_ne!(replies.last().unwrap().kind & rep::ERR, 0, "option {option} took nonsense");
    }
    let mut client = haggle.go(&Options::export(&served.export.name)).unwrap();
    assert_lives(&mut client);
}

#[test]
fn ad_05_options_in_all_orders_end_in_a_connection_that_works() {
    let served = served("ad05order", &[]);
    let name = &served.export.name;
    let contexts = ["base:allocation".to_owned()];
    let context = Haggle::context_data(name, &contexts);
    let options = [
        (opt::INFO, Haggle::info_data(name)),
        (opt::LIST, Vec::new()),
        (opt::STRUCTURED_REPLY, Vec::new()),
        (opt::LIST_META_CONTEXT, context.clone()),
        (opt::SET_META_CONTEXT, context),
        (opt::STARTTLS, Vec::new()),
        (0x4242, vec![1, 2, 3]),
    ];
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut haggle = Haggle::open(&served.export.endpoint, PATIENCE).unwrap();
        let mut structured = false;
        for _ in 0..random.below(10) {
            let pick = usize::try_from(random.below(7)).unwrap();
            let (option, data) = &options[pick];
            let last = haggle.option(*option, data).unwrap().pop().unwrap().kind;
            let expected = match *option {
                opt::STARTTLS | 0x4242 => last & rep::ERR != 0,
                // Contexts need structured replies first.
                opt::SET_META_CONTEXT if !structured => last & rep::ERR != 0,
                opt::LIST_META_CONTEXT => true,
                _ => last == rep::ACK,
            };
            assert!(expected, "seed {seed}: option {option} answered with {last:#x}");
            structured |= *option == opt::STRUCTURED_REPLY;
        }
        if seed % 10 == 0 {
            haggle.abort().unwrap();
        } else {
            let wanted = Options { structured: seed % 2 == 0, ..Options::export(name) };
            assert_lives(&mut haggle.go(&wanted).unwrap());
        }
    }
}

#[test]
fn ad_05_one_byte_a_packet_and_a_close_at_every_byte() {
    let served = served("ad05bytes", &[]);
    let bytes = handshake(&served.export).concat();
    for end in 0..bytes.len() {
        let mut socket = served.export.endpoint.open(PATIENCE).unwrap();
        socket.write_all(&bytes[..end]).unwrap();
    }
    // The same, slowly, over TCP, where each byte is a packet.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    served.daemon.disk("tank/slow", "8M");
    let export = served.daemon.expose_at("tank/slow", &format!("tcp:{free}"), &[]);
    let mut haggle = Haggle::open(&export.endpoint, PATIENCE).unwrap();
    for (i, part) in handshake(&export).into_iter().enumerate().skip(1) {
        for byte in part {
            haggle.socket().write_all(&[byte]).unwrap();
            if i == 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        loop {
            let reply = haggle.reply().unwrap();
            assert_eq!(reply.kind & rep::ERR, 0, "{reply:?}");
            if reply.is_last() {
                break;
            }
        }
    }
    drop(haggle);
    assert_lives(&mut served.export.connect());
    assert_lives(&mut export.connect());
}

#[test]
fn ad_02_export_names_that_are_none_are_refused_and_the_haggling_goes_on() {
    let served = served("ad02nbd", &[]);
    let mut haggle = Haggle::open(&served.export.endpoint, PATIENCE).unwrap();
    let long = "x".repeat(300);
    let longest = "x".repeat(4096);
    for name in
        ["../x", "/dev/nvme0n1", ".", "a b", "\n", "-rf", "\0", "\u{1f600}", "a:b", "nosuch", &long, &longest]
    {
        let got = haggle.info(name);
        assert!(matches!(got, Err(Error::Refused { .. })), "'{}': {got:?}", name.escape_debug());
        let got = haggle.option(opt::GO, &Haggle::info_data(name)).unwrap();
        assert_ne!(got.last().unwrap().kind & rep::ERR, 0, "'{}'", name.escape_debug());
    }
    assert_eq!(haggle.info(&served.export.name).unwrap().size_bytes, served.export.size_bytes);
}

#[test]
fn mk_01_discards_and_zeroes_of_two_gib_and_more_work_or_are_advertised_as_too_big() {
    let lab = Lab::new("mk01");
    let drives = lab.drives("d", 3, 2300 << 20);
    let daemon = lab.daemon();
    // Nothing to compute: the test is about sizes, not about four gigabytes of parity.
    daemon.try_create("tank", "5", &drives, &["--init", "zero"]).data();
    daemon.disk("tank/disk", "4352M");
    let export = daemon.expose("tank/disk");
    let mut client = export.connect();
    let gib = 1_u32 << 30;
    for length in [2 * gib - 512, 2 * gib, u32::MAX - 511] {
        for command in [Command::trim(0, length), Command::zeroes(0, length)] {
            let edge = u64::from(length);
            client.write(edge - 512, &[9; 1024]).unwrap();
            let inside = [0, u64::from(gib) - 512, edge / 4096 * 2048];
            for at in inside {
                client.write(at, &[8; 1024]).unwrap();
            }
            client.call(command).unwrap();
            for at in inside {
                assert_eq!(client.read(at, 1024).unwrap(), [0; 1024], "{length} bytes: not zeroed at {at}");
            }
            let edges = client.read(edge - 512, 1024).unwrap();
            assert_eq!(edges[..512], [0; 512], "the last block is zeroed");
            assert_eq!(edges[512..], [9; 512], "the block after it is not");
        }
    }
    client.flush().unwrap();
}

/// SL-05, the half a block server sees: a write hangs in a member, its connection is gone, a newer write comes over
/// another one, and only then the member wakes up.
#[test]
fn sl_05_a_stalled_write_of_a_dead_connection_never_lands_over_a_newer_one() {
    let lab = Lab::new("sl05");
    let stuck = Faulty::new(&lab, "stuck", DRIVE);
    let good = lab.drive("good", DRIVE);
    let daemon = lab.daemon_with(&["--drive-timeout", "2s"]);
    daemon.create("tank", 1, &[stuck.path(), &good]);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "32M");
    let export = daemon.expose("tank/disk");
    let stamped = Stamped::new(1, export.size_bytes, 512);
    stamped.fill(&export);
    stuck.hang();
    let mut first = export.connect();
    first.submit(Command::write(0, vec![0xaa; 64 << 10])).unwrap();
    let early = first.wait_for(Duration::from_millis(300)).unwrap();
    assert!(early.is_none(), "acknowledged although one copy hangs: {early:?}");
    drop(first);
    let mut second = export.connect();
    second.call(Command::write(0, vec![0xbb; 64 << 10]).with(flag::FUA)).unwrap();
    second.flush().unwrap();
    stuck.resume();
    for _ in 0..20 {
        assert_eq!(second.read(0, 64 << 10).unwrap(), vec![0xbb; 64 << 10]);
        std::thread::sleep(Duration::from_millis(20));
    }
    // The member that hung has missed a write: it was dropped and is no source.
    assert_ne!(daemon.member_states("tank")[0], "in_sync");
    let spare = lab.drive("spare", DRIVE);
    daemon.replace("tank", 0, &spare);
    daemon.wait("tank", "healthy");
    assert_eq!(second.read(0, 64 << 10).unwrap(), vec![0xbb; 64 << 10]);
    warpraid_tests::check::assert_redundant(&[&spare, &good]);
}

#[test]
fn mk_06_a_connected_disk_is_not_deleted_and_force_ends_its_clients_cleanly() {
    let served = served("mk06", &[]);
    let daemon = &served.daemon;
    let uuid = daemon.ok(&["disk", "show", "tank/disk"]).text("uuid");
    let mut client = served.export.connect();
    assert_lives(&mut client);
    let delete = ["disk", "delete", "tank/disk", "--yes", "--expect-uuid", &uuid];
    let pid = std::process::id().to_string();
    daemon.run(&delete).fails(7, &["tank/disk", &pid]);
    daemon.run(&["disk", "unexpose", "tank/disk"]).fails(7, &[&pid]);
    assert_lives(&mut client);
    let forced = [&delete[..], &["--force"]].concat();
    daemon.run(&forced).data();
    // Errors or an ended connection; never success, never a hang (the client's own time-out is PATIENCE).
    let after = client.read(0, 4096);
    assert!(after.is_err(), "a deleted disk was read");
    assert!(Client::connect(&served.export.endpoint, &Options::export(&served.export.name)).is_err());
    daemon.run(&["disk", "show", "tank/disk"]).fails(4, &["disk"]);
    daemon.disk("tank/disk", "32M");
    assert_lives(&mut daemon.expose("tank/disk").connect());
}

/// A flush on one connection covers what another was told is written: that is what multi-conn promises.
#[test]
fn multi_conn_is_offered_and_a_flush_covers_every_connection() {
    let lab = Lab::new("multiconn");
    let members = [Faulty::new(&lab, "a", DRIVE), Faulty::new(&lab, "b", DRIVE)];
    let daemon = lab.daemon();
    daemon.create("tank", 1, &[members[0].path(), members[1].path()]);
    daemon.wait("tank", "synced");
    daemon.disk("tank/disk", "32M");
    let export = daemon.expose("tank/disk");
    let (mut one, mut other) = (export.connect(), export.connect());
    let flags = one.export().flags;
    assert_ne!(flags & transmission::CAN_MULTI_CONN, 0);
    assert_ne!(flags & transmission::SEND_FLUSH, 0);
    assert_ne!(flags & transmission::SEND_FUA, 0);
    one.write(0, &[1; 4096]).unwrap();
    let before: Vec<usize> = members.iter().map(Faulty::flushes).collect();
    other.flush().unwrap();
    for (member, before) in members.iter().zip(before) {
        assert!(member.flushes() > before, "a flush did not reach a member");
    }
}

#[test]
fn tcp_serves_the_loopback_only_and_the_same_disk() {
    let served = served("tcp", &[]);
    let mut unix = served.export.connect();
    unix.write(0, &[7; 4096]).unwrap();
    unix.disconnect().unwrap();
    // A disk is exposed at one address at a time.
    served.daemon.ok(&["disk", "unexpose", "tank/disk"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let export = served.daemon.expose_at("tank/disk", &format!("tcp:{free}"), &[]);
    assert_eq!(export.endpoint, Endpoint::Tcp(free.to_string()));
    let mut tcp = export.connect();
    assert_eq!(tcp.read(0, 4096).unwrap(), [7; 4096]);
    tool::run("nbdinfo", &[&export.uri]);
}
