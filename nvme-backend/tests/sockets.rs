//! Sockets on the ring: echo in small pieces, large gathered sends, accept on unix and TCP, dropped operations.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use common::{fill, lease_filled, lease_one, on_lane, pattern};
use nvme_backend::{Listener, Part, Socket};

fn bytes(parts: &[&[u8]]) -> Vec<Part> {
    parts.iter().map(|part| Part::Bytes(part.to_vec())).collect()
}

#[test]
fn an_echo_in_single_bytes_keeps_every_byte_in_order() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let message = pattern(1, 5000);
    let sent = message.clone();
    let peer = std::thread::spawn(move || {
        // Writes and reads at once: thousands of single bytes are more than the socket's buffers hold.
        let (mut writer, mut reader) = (theirs.try_clone().unwrap(), theirs);
        let bytes = sent.len();
        let writing = std::thread::spawn(move || {
            for byte in sent.chunks(1) {
                writer.write_all(byte).unwrap();
            }
        });
        let mut back = vec![0; bytes];
        reader.read_exact(&mut back).unwrap();
        writing.join().unwrap();
        back
    });
    on_lane(async |lane| {
        let socket = Socket::from_fd(&lane, OwnedFd::from(ours));
        let mut echoed = 0;
        while echoed < message.len() {
            let (got, buf) = socket.recv(vec![0; 64], 3).await;
            let got = got.unwrap();
            assert!(got > 0 && got <= 61);
            for byte in &buf[3..3 + got] {
                socket.send(bytes(&[&[*byte]])).await.unwrap();
            }
            echoed += got;
        }
    });
    assert_eq!(peer.join().unwrap(), message);
}

#[test]
fn a_large_gathered_send_arrives_whole_though_the_peer_reads_slowly() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let peer = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 7001];
        loop {
            match theirs.read(&mut piece).unwrap() {
                0 => return all,
                got => all.extend_from_slice(&piece[..got]),
            }
        }
    });
    let expected = on_lane(async |lane| {
        let socket = Socket::from_fd(&lane, OwnedFd::from(ours));
        let mut expected = Vec::new();
        let mut parts = Vec::new();
        for seed in 0..40 {
            expected.extend_from_slice(&pattern(seed, 28));
            parts.push(Part::Bytes(pattern(seed, 28)));
            let seg = lease_filled(&lane, 65_536, seed);
            expected.extend_from_slice(&seg.bytes()[100..65_000]);
            parts.push(Part::Seg(seg.slice(100..65_000)));
            let lease = fill(lease_one(&lane, 4096).remove(0), seed);
            expected.extend_from_slice(lease.bytes());
            parts.push(Part::Lease(lease));
        }
        socket.send(parts).await.unwrap();
        socket.send(Vec::new()).await.unwrap();
        // More parts than one sendmsg takes.
        let many: Vec<Vec<u8>> = (0..3000).map(|seed| pattern(seed, 5)).collect();
        expected.extend(many.iter().flatten());
        socket.send(many.into_iter().map(Part::Bytes).collect()).await.unwrap();
        socket.shutdown();
        expected
    });
    assert!(peer.join().unwrap() == expected);
}

#[test]
fn a_lease_is_filled_across_pieces_and_the_end_of_the_stream_is_told() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let sent = pattern(3, 70_000);
    let to_send = sent.clone();
    let peer = std::thread::spawn(move || {
        for piece in to_send.chunks(999) {
            theirs.write_all(piece).unwrap();
        }
    });
    on_lane(async |lane| {
        let socket = Socket::from_fd(&lane, OwnedFd::from(ours));
        let (result, lease) = socket.recv_lease_exact(lease_one(&lane, 65_536).remove(0), 0).await;
        result.unwrap();
        assert!(lease.bytes() == &sent[..65_536]);
        let (result, lease) = socket.recv_lease_exact(lease, 1000).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(lease.bytes()[..1000] == sent[..1000]);
        let rest = 70_000 - 65_536;
        assert!(lease.bytes()[1000..1000 + rest] == sent[65_536..]);
        let (got, _) = socket.recv(vec![0; 10], 0).await;
        assert_eq!(got.unwrap(), 0);
    });
    peer.join().unwrap();
}

#[test]
fn sending_to_a_closed_peer_is_an_error_and_no_signal() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    on_lane(async |lane| {
        let socket = Socket::from_fd(&lane, OwnedFd::from(ours));
        let error = socket.send(bytes(&[b"hello"])).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn shutting_down_ends_a_pending_receive() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    on_lane(async |lane| {
        let socket = Socket::from_fd(&lane, OwnedFd::from(ours));
        let (closer, timer) = (socket.clone(), lane.clone());
        lane.spawn(async move {
            timer.sleep_until(timer.now_ns() + 20_000_000).await;
            closer.shutdown();
        });
        let (got, _) = socket.recv(vec![0; 16], 0).await;
        assert_eq!(got.unwrap(), 0);
    });
}

async fn answer_one(listener: &Listener, lane: &nvme_backend::Lane) {
    let fd = listener.accept().await.unwrap();
    let flags = rustix::io::fcntl_getfd(&fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let socket = Socket::from_fd(lane, fd);
    let (got, buf) = socket.recv(vec![0; 16], 0).await;
    socket.send(vec![Part::Bytes(buf[..got.unwrap()].to_vec())]).await.unwrap();
}

#[test]
fn connections_are_accepted_on_unix_and_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        for _ in 0..3 {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"unix").unwrap();
            let mut back = [0; 4];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"unix");
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"tcp!").unwrap();
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"tcp!");
        }
    });
    on_lane(async |lane| {
        let unix = Listener::from_fd(&lane, OwnedFd::from(unix));
        let tcp = Listener::from_fd(&lane, OwnedFd::from(tcp));
        for _ in 0..3 {
            answer_one(&unix, &lane).await;
            answer_one(&tcp, &lane).await;
        }
    });
    peer.join().unwrap();
}

#[test]
fn dropping_a_receive_gives_its_buffer_back_and_keeps_the_connection() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    on_lane(async |lane| {
        let socket = Socket::from_fd(&lane, OwnedFd::from(ours));
        for _ in 0..10 {
            let mut receive = Box::pin(socket.recv_lease(lease_one(&lane, 4096).remove(0), 0));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(receive.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            assert_eq!(lane.in_flight(), 1);
            drop(receive);
            while lane.in_flight() > 0 {
                lane.sleep_until(lane.now_ns() + 100_000).await;
            }
            assert_eq!(lane.arena().bytes_out(raid_core::ports::Pool::Request), 0);
        }
        theirs.write_all(b"still here").unwrap();
        let (got, buf) = socket.recv(vec![0; 32], 0).await;
        assert_eq!(&buf[..got.unwrap()], b"still here");
    });
}

#[test]
fn a_dropped_accept_leaks_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    on_lane(async |lane| {
        let listener = Listener::from_fd(&lane, OwnedFd::from(unix));
        let mut accept = Box::pin(listener.accept());
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(accept.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        // Submit it, so that the connection below completes it before it is dropped.
        lane.sleep_until(lane.now_ns() + 1_000_000).await;
        let mut stream = UnixStream::connect(&path).unwrap();
        lane.sleep_until(lane.now_ns() + 10_000_000).await;
        assert_eq!(lane.in_flight(), 0, "the accept has completed");
        drop(accept);
        // The accepted end was closed with it.
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    });
}
