//! Whole sessions over a pipe, on the simulator's executor: every order of events follows from a seed, and a session
//! that waits for ever is a panic ("deadlock").

use super::common::World;
use super::common::client::TestClient;
use super::common::memory::{Change, MemoryDisk};
use raid_core::ports::{Durability, IoKind};
use raid_core::units::{BlockSize, usize_of, usize_of_u32};
use server::disk::Export;
use server::nbd::wire::{command, command_flags, transmission_flags};
use sim::Executor;

pub(crate) const MIB: u64 = 1024 * 1024;

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let random = Executor::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.random_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn world(seed: u64, size: u64) -> World {
    World::new(seed, |env| MemoryDisk::new(env, size))
}

/// Runs a test with one client, then leaves and waits for the session's end.
pub(crate) fn with_client<X: Export, F>(
    world: &World<X>,
    packet: usize,
    is_structured: bool,
    test: impl FnOnce(TestClient) -> F + 'static,
) where
    F: Future<Output = TestClient>,
{
    let (end, ended) = world.connect(packet);
    world.executor.block_on(async move {
        let client = TestClient::connect(end, is_structured).await.unwrap();
        let mut client = test(client).await;
        client.send(command::DISC, 0, 0, 0, &[]).await.unwrap();
        ended.passed().await;
    });
}

/// Random reads, writes, trims and zeroes of one client against a plain model of the disk.
pub(crate) async fn random_requests(mut client: TestClient, seed: u64, size: u64, rounds: u64) -> TestClient {
    let random = Executor::new(seed + 1000);
    let mut model = vec![0_u8; usize_of(size)];
    for round in 0..rounds {
        let at = random.random_u64() % (size / 512) * 512;
        let most = [8, 64, 2048, 8192][usize_of(random.random_u64() % 4)];
        let len = ((1 + random.random_u64() % most) * 512).min(size - at);
        let range = usize_of(at)..usize_of(at + len);
        let len = u32::try_from(len).unwrap();
        match random.random_u64() % 5 {
            0 | 1 => {
                let bytes = pattern(seed * 1000 + round, range.len());
                model[range].copy_from_slice(&bytes);
                assert_eq!(client.write(at, &bytes, 0).await.unwrap(), 0);
            }
            2 => {
                let number = [command::TRIM, command::WRITE_ZEROES][usize_of(random.random_u64() % 2)];
                model[range].fill(0);
                assert_eq!(client.call(number, 0, at, len, &[]).await.unwrap().error, 0);
            }
            _ => assert!(client.read(at, len).await.unwrap().unwrap() == model[range], "{at} {len}"),
        }
    }
    client
}

#[test]
fn random_requests_match_a_plain_model() {
    const SIZE: u64 = 4 * MIB;
    for seed in 0..40 {
        let world = world(seed, SIZE);
        let packet = [1 << 20, 4096, 100, 29][usize_of(seed % 4)];
        with_client(&world, packet, seed % 2 == 0, move |client| random_requests(client, seed, SIZE, 60));
    }
}

/// Many requests in flight on several connections, each in its own part of the disk; all replies come, in any order.
#[test]
fn pipelined_requests_are_all_answered() {
    for seed in 0..20 {
        let world = world(seed, 16 * MIB);
        let mut gates = Vec::new();
        for lane in 0..3_u64 {
            let (end, ended) = world.connect(if lane == 0 { 777 } else { 1 << 20 });
            gates.push(ended);
            world.executor.spawn(async move {
                let mut client = TestClient::connect(end, lane != 1).await.unwrap();
                let part = lane * 4 * MIB;
                let random = Executor::new(seed * 7 + lane);
                let lens: Vec<u32> =
                    (0..40).map(|_| 512 * (1 + u32::try_from(random.random_u64() % 200).unwrap())).collect();
                let mut at = part;
                let mut sent = Vec::new();
                for (i, &len) in (0_u64..).zip(&lens) {
                    let bytes = pattern(seed + lane * 100 + i, usize_of_u32(len));
                    sent.push((client.send(command::WRITE, 0, at, len, &bytes).await.unwrap(), at, bytes));
                    at += u64::from(len);
                }
                let mut cookies: Vec<u64> = Vec::new();
                for _ in &sent {
                    let reply = client.reply(0, 0).await.unwrap();
                    assert_eq!(reply.error, 0);
                    cookies.push(reply.cookie);
                }
                cookies.sort_unstable();
                assert_eq!(cookies, sent.iter().map(|(cookie, ..)| *cookie).collect::<Vec<_>>());
                for (_, at, bytes) in sent {
                    let len = u32::try_from(bytes.len()).unwrap();
                    assert_eq!(client.read(at, len).await.unwrap().unwrap(), bytes);
                }
                client.send(command::DISC, 0, 0, 0, &[]).await.unwrap();
            });
        }
        world.executor.block_on(async move {
            for gate in gates {
                gate.passed().await;
            }
        });
        assert!(world.directory.clients.names().is_empty());
    }
}

#[test]
fn ad_04_bad_sizes_leave_the_connection_alive() {
    for is_structured in [false, true] {
        let world = world(1, 64 * MIB);
        with_client(&world, 1 << 20, is_structured, move |mut client| async move {
            let data = pattern(5, 4096);
            assert_eq!(client.write(0, &data, 0).await.unwrap(), 0);
            let size = 64 * MIB;
            for (number, past_end) in
                [(command::READ, 22), (command::WRITE, 28), (command::TRIM, 22), (command::WRITE_ZEROES, 28)]
            {
                let has_payload = number == command::WRITE;
                for (at, len, error) in [
                    (size, 512, past_end),
                    (u64::MAX, 512, past_end),
                    (u64::MAX - 511, 512, past_end),
                    (size - 512, 1024, past_end),
                    (0, 1, 22),
                    (3, 512, 22),
                    (0, 0, 0),
                ] {
                    let payload = if has_payload { vec![9; usize_of_u32(len)] } else { Vec::new() };
                    let reply = client.call(number, 0, at, len, &payload).await.unwrap();
                    assert_eq!(reply.error, error, "command {number} at {at} of {len}");
                    assert_eq!(client.read(0, 4096).await.unwrap().unwrap(), data, "the next request works");
                }
            }
            for (number, error) in [(command::READ, 22), (command::TRIM, 22), (command::WRITE_ZEROES, 28)] {
                assert_eq!(client.call(number, 0, 0, u32::MAX, &[]).await.unwrap().error, error);
            }
            assert_eq!(client.call(command::CACHE, 0, 0, 512, &[]).await.unwrap().error, 22);
            assert_eq!(client.call(99, 0, 0, 512, &[]).await.unwrap().error, 22);
            client
        });
    }
}

#[test]
fn ad_04_payload_of_33_mib_is_drained_and_of_32_mib_works() {
    let world = world(2, 64 * MIB);
    with_client(&world, 1 << 20, true, |mut client| async move {
        assert_eq!(client.write(0, &vec![1; usize_of(33 * MIB)], 0).await.unwrap(), 22);
        assert_eq!(client.call(command::READ, 0, 0, 33 << 20, &[]).await.unwrap().error, 22);
        let data = pattern(3, usize_of(32 * MIB));
        assert_eq!(client.write(MIB / 2, &data, 0).await.unwrap(), 0);
        assert!(client.read(MIB / 2, 32 << 20).await.unwrap().unwrap() == data);
        client
    });
    let changes = world.directory.disk.0.changes.borrow();
    assert!(
        changes
            .iter()
            .all(|change| matches!(change, Change::Write(range, _) if range.end - range.start <= MIB))
    );
}

#[test]
fn large_reads_come_whole_in_every_reply_style() {
    let world = world(3, 16 * MIB);
    let data = pattern(8, usize_of(16 * MIB));
    world.directory.disk.0.now.borrow_mut().write(0, &data);
    for is_structured in [false, true] {
        let data = data.clone();
        with_client(&world, 1 << 20, is_structured, move |mut client| async move {
            for (at, len) in [
                (0, 16 * MIB),
                (512, MIB + 512),
                (MIB - 512, MIB + 1024),
                (3 * 512, 5 * MIB),
                (MIB, 2 * MIB),
                (7 * MIB + 1024, 4 * MIB),
            ] {
                let want = &data[usize_of(at)..usize_of(at + len)];
                let len = u32::try_from(len).unwrap();
                assert!(client.read(at, len).await.unwrap().unwrap() == want, "{at} {len}");
                if is_structured {
                    let flags = command_flags::DF;
                    let reply = client.call(command::READ, flags, at, len, &[]).await.unwrap();
                    assert_eq!(reply.data.len(), 1, "one chunk");
                    assert!(reply.data[0].1 == want);
                }
            }
            // Several at once, with small ones between: all are answered, none is torn.
            let mut asked = std::collections::BTreeMap::new();
            for i in 0..6_u64 {
                for (at, len) in [(i * 512, 3 << 20), (i * MIB, 4096)] {
                    asked.insert(client.send(command::READ, 0, at, len, &[]).await.unwrap(), (at, len));
                }
            }
            if is_structured {
                client = collect(client, asked, &data).await;
            } else {
                collect_simple(&client, asked, &data).await;
            }
            client
        });
    }
}

type Asked = std::collections::BTreeMap<u64, (u64, u32)>;

/// Takes interleaved structured replies until all that was asked is there.
async fn collect(mut client: TestClient, mut asked: Asked, data: &[u8]) -> TestClient {
    while !asked.is_empty() {
        // Chunks of different replies interleave, so the collected data may be of several cookies; each chunk says where
        // it belongs, and the last one of a reply carries the flag.
        let reply = client.reply(0, 0).await.unwrap();
        assert_eq!(reply.error, 0);
        for (at, bytes) in &reply.data {
            assert!(bytes[..] == data[usize_of(*at)..usize_of(*at) + bytes.len()]);
        }
        assert!(asked.remove(&reply.cookie).is_some());
    }
    client
}

async fn collect_simple(client: &TestClient, mut asked: Asked, data: &[u8]) {
    while !asked.is_empty() {
        let head = client.end.get(16).await.unwrap();
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let (at, len) = asked.remove(&cookie).unwrap();
        let bytes = client.end.get(usize_of_u32(len)).await.unwrap();
        assert!(bytes[..] == data[usize_of(at)..][..usize_of_u32(len)]);
    }
}

#[test]
fn read_errors_are_told_and_never_become_data() {
    for is_structured in [false, true] {
        let world = world(4, 16 * MIB);
        *world.directory.disk.0.broken.borrow_mut() = Some((4 * MIB..4 * MIB + 512, IoKind::BeyondTolerance));
        with_client(&world, 1 << 20, is_structured, move |mut client| async move {
            assert_eq!(client.read(4 * MIB, 512).await.unwrap(), Err(5));
            assert_eq!(client.read(4 * MIB, 2 << 20).await.unwrap(), Err(5), "in the first window");
            assert_eq!(client.write(4 * MIB, &[1; 512], 0).await.unwrap(), 5);
            assert_eq!(client.write(2 * MIB, &vec![1; 4 << 20], 0).await.unwrap(), 5);
            assert!(client.read(4 * MIB + 512, 512).await.unwrap().is_ok());
            if is_structured {
                let reply = client.call(command::READ, 0, 2 * MIB, 6 << 20, &[]).await.unwrap();
                assert_eq!(reply.error, 5);
                assert_eq!(reply.data.last().unwrap(), &(4 * MIB, Vec::new()), "the offset of the error");
                assert!(client.read(0, 512).await.unwrap().is_ok());
            }
            client
        });
    }
    // A simple reply has begun: the connection is cut off rather than wrong data sent.
    let world = world(5, 16 * MIB);
    *world.directory.disk.0.broken.borrow_mut() = Some((4 * MIB..4 * MIB + 512, IoKind::BeyondTolerance));
    let (end, ended) = world.connect(1 << 20);
    world.executor.block_on(async move {
        let mut client = TestClient::connect(end, false).await.unwrap();
        assert!(client.read(2 * MIB, 6 << 20).await.is_err());
        ended.passed().await;
    });
}

#[test]
fn read_only_exports_refuse_changes_and_say_so() {
    let world = world(6, 16 * MIB);
    world.directory.disk.0.is_read_only.set(true);
    with_client(&world, 1 << 20, true, |mut client| async move {
        assert_ne!(client.told.flags & transmission_flags::READ_ONLY, 0);
        assert_eq!(client.told.flags & transmission_flags::SEND_TRIM, 0);
        assert_eq!(client.write(0, &[1; 512], 0).await.unwrap(), 1);
        for number in [command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(client.call(number, 0, 0, 512, &[]).await.unwrap().error, 1);
        }
        assert_eq!(client.call(command::FLUSH, 0, 0, 0, &[]).await.unwrap().error, 0);
        assert!(client.read(0, 512).await.unwrap().is_ok());
        client
    });
    assert!(world.directory.disk.0.changes.borrow().is_empty());
}

#[test]
fn mk_01_big_trims_and_zeroes_in_one_request() {
    let size = 8 << 30;
    let world = world(7, size);
    let disk = world.directory.disk.clone();
    disk.0.now.borrow_mut().write(1 << 31, &[7; 4096]);
    with_client(&world, 1 << 20, true, |mut client| async move {
        for len in [(1_u32 << 31) - 512, 1 << 31, u32::MAX - 511] {
            for number in [command::TRIM, command::WRITE_ZEROES] {
                assert_eq!(client.call(number, 0, 512, len, &[]).await.unwrap().error, 0);
            }
        }
        assert_eq!(client.read(1 << 31, 4096).await.unwrap().unwrap(), vec![0; 4096]);
        client
    });
    let lens: Vec<u64> = disk
        .0
        .changes
        .borrow()
        .iter()
        .map(|change| match change {
            Change::Zero(range, true, Durability::Cached) => range.end - range.start,
            other => panic!("{other:?}"),
        })
        .collect();
    let want = [(1 << 31) - 512, 1 << 31, (1_u64 << 32) - 512].map(|len| [len, len]).concat();
    assert_eq!(lens, want);
}

#[test]
fn mk_03_minimum_block_is_the_groups() {
    let world = world(8, 16 * MIB);
    world.directory.disk.0.block.set(BlockSize::B4096);
    with_client(&world, 1 << 20, true, |mut client| async move {
        assert_eq!(client.told.blocks, (4096, 2 * 65536, 32 << 20));
        assert_eq!(client.told.size, 16 * MIB);
        assert_eq!(client.write(512, &[1; 512], 0).await.unwrap(), 22);
        assert_eq!(client.write(4096, &[1; 4096], 0).await.unwrap(), 0);
        client
    });
}

#[test]
fn flush_on_one_connection_covers_the_others() {
    let world = world(9, 16 * MIB);
    let disk = world.directory.disk.clone();
    let (first, _) = world.connect(1 << 20);
    let (second, _) = world.connect(1 << 20);
    world.executor.block_on(async move {
        let mut a = TestClient::connect(first, true).await.unwrap();
        let mut b = TestClient::connect(second, false).await.unwrap();
        assert_ne!(a.told.flags & transmission_flags::CAN_MULTI_CONN, 0);
        let data = pattern(1, 8192);
        assert_eq!(a.write(4096, &data, 0).await.unwrap(), 0);
        assert_eq!(disk.0.durable.borrow().vec(4096, 8192), vec![0; 8192]);
        assert_eq!(b.call(command::FLUSH, 0, 0, 0, &[]).await.unwrap().error, 0);
        assert_eq!(disk.0.durable.borrow().vec(4096, 8192), data);
        assert_eq!(a.write(0, &data, command_flags::FUA).await.unwrap(), 0);
        assert_eq!(disk.0.durable.borrow().vec(0, 8192), data, "FUA needs no flush");
        let flags = command_flags::FUA;
        assert_eq!(b.call(command::WRITE_ZEROES, flags, 0, 4096, &[]).await.unwrap().error, 0);
        assert_eq!(disk.0.durable.borrow().vec(0, 4096), vec![0; 4096]);
        // `durable` of a cached write and the FUA write that overlaps it are what flush and FUA promise.
        assert_eq!(disk.0.flushes.get(), 1);
    });
}

#[test]
fn block_status_tells_one_allocated_extent() {
    let world = world(10, 16 * MIB);
    with_client(&world, 1 << 20, true, |mut client| async move {
        for (flags, len) in [(0, 1 << 20), (command_flags::REQ_ONE, 512)] {
            let reply = client.call(command::BLOCK_STATUS, flags, 512, len, &[]).await.unwrap();
            assert_eq!((reply.error, reply.extents), (0, vec![(len, 0)]));
        }
        assert_eq!(client.call(command::BLOCK_STATUS, 0, 0, 0, &[]).await.unwrap().error, 22);
        client
    });
    with_client(&world, 1 << 20, false, |mut client| async move {
        assert_eq!(client.call(command::BLOCK_STATUS, 0, 0, 512, &[]).await.unwrap().error, 22);
        client
    });
}

pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut has_yielded, true) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// AD-05: the client is gone after every byte of a whole conversation; the session ends, and nothing hangs.
#[test]
fn ad_05_close_at_every_byte() {
    use super::common::client::{context_data, go_data, option_bytes};
    use server::nbd::wire::{Request, option};
    let mut script = 3_u32.to_be_bytes().to_vec();
    script.extend(option_bytes(77, &[1, 2, 3]));
    script.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    script.extend(option_bytes(option::SET_META_CONTEXT, &context_data(b"g/d", &[b"base:allocation"])));
    script.extend(option_bytes(option::LIST, &[]));
    script.extend(option_bytes(option::GO, &go_data(b"g/d", &[3])));
    let mut request = |command, len: u32, payload: &[u8]| {
        script.extend(Request { flags: 0, command, cookie: 1, offset: 0, len }.encode());
        script.extend(payload);
    };
    request(command::WRITE, 512, &[1; 512]);
    request(command::READ, 512, &[]);
    request(command::WRITE_ZEROES, 512, &[]);
    request(command::FLUSH, 0, &[]);
    request(command::WRITE, 1, &[1]);
    request(command::READ, 2 << 20, &[]);
    request(command::DISC, 0, &[]);
    for cut in 0..=script.len() {
        let world = world(1, 16 * MIB);
        let (end, ended) = world.connect(if cut % 2 == 0 { 1 } else { 1 << 20 });
        let bytes = script[..cut].to_vec();
        world.executor.block_on(async move {
            end.put(&bytes).await.unwrap();
            end.close();
            ended.passed().await;
        });
        assert!(world.directory.clients.names().is_empty());
    }
}

#[test]
fn a_client_that_lost_the_protocol_is_cut_off() {
    let world = world(1, 16 * MIB);
    let (end, ended) = world.connect(1 << 20);
    world.executor.block_on(async move {
        let client = TestClient::connect(end, false).await.unwrap();
        client.end.put(&[0xFF; 28]).await.unwrap();
        assert!(client.end.get(1).await.is_err());
        ended.passed().await;
    });
}

#[test]
fn a_silent_client_is_cut_off_in_the_handshake_but_not_later() {
    let world = world(1, 16 * MIB);
    let (end, ended) = world.connect(1 << 20);
    let (patient, _) = world.connect(1 << 20);
    let executor = world.executor.clone();
    world.executor.block_on(async move {
        let mut patient = TestClient::connect(patient, false).await.unwrap();
        end.get(18).await.unwrap();
        assert!(end.get(1).await.is_err());
        ended.passed().await;
        executor.sleep_until(executor.now_ns() * 10).await;
        assert!(patient.read(0, 512).await.unwrap().is_ok());
    });
}

/// MK-06: closing an export in use is refused and names the client; forced, the client sees a clean end, in-flight
/// writes are finished, and nobody comes in any more.
#[test]
fn mk_06_close_in_use_is_refused_unless_forced() {
    let world = world(1, 16 * MIB);
    let (end, ended) = world.connect(1 << 20);
    let (late, _) = world.connect(1 << 20);
    let clients = world.directory.clients.clone();
    let disk = world.directory.disk.clone();
    world.executor.block_on(async move {
        let mut client = TestClient::connect(end, false).await.unwrap();
        assert!(client.read(0, 512).await.unwrap().is_ok());
        assert_eq!(clients.close(false), Err(vec!["test".to_owned()]));
        assert!(client.read(0, 512).await.unwrap().is_ok(), "nothing has changed");
        disk.0.changing.shut();
        client.send(command::WRITE, 0, 0, 512, &[7; 512]).await.unwrap();
        while disk.0.changes.borrow().is_empty() {
            yield_now().await;
        }
        assert_eq!(clients.close(true), Ok(()));
        assert!(client.reply(0, 0).await.is_err());
        assert_eq!(clients.names().len(), 1, "a write is still in flight");
        disk.0.changing.open();
        clients.gone().await;
        assert_eq!(disk.0.now.borrow().vec(0, 512), vec![7; 512]);
        ended.passed().await;
        assert!(TestClient::connect(late, false).await.unwrap().read(0, 512).await.is_err());
    });
}

/// A client that sends and never reads is stopped by back-pressure, not by memory.
#[test]
fn requests_in_flight_are_bounded() {
    let mut world = world(1, 16 * MIB);
    world.limits = server::nbd::Limits { requests: 16, bytes: MIB };
    let disk = world.directory.disk.clone();
    let (end, ended) = world.connect(1 << 20);
    world.executor.block_on(async move {
        let mut client = TestClient::connect(end, false).await.unwrap();
        for _ in 0..200 {
            client.send(command::READ, 0, 0, 128 << 10, &[]).await.unwrap();
        }
        for _ in 0..20_000 {
            yield_now().await;
        }
        // What was sent to the pipe and what may be in flight: far from 200.
        assert!(disk.0.reads.get() <= 12, "{} reads", disk.0.reads.get());
        for _ in 0..200 {
            assert_eq!(client.reply(0, 128 << 10).await.unwrap().error, 0);
        }
        client.send(command::DISC, 0, 0, 0, &[]).await.unwrap();
        ended.passed().await;
    });
    assert_eq!(world.directory.disk.window(0, 512), 512);
}
