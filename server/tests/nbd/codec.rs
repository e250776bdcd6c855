//! The handshake and request checks alone: any bytes, any splits, any order.

use super::common::client::{context_data, go_data, option_bytes};
use proptest::prelude::*;
use raid_core::ports::Durability;
use raid_core::units::usize_of_u32;
use server::nbd::check::{Op, check};
use server::nbd::haggle::{Agreed, Catalog, Described, Ended, Haggle, Progress};
use server::nbd::wire::{self, Cursor, Errno, Request, command, command_flags, option, option_reply};

/// Two exports; the second one is read-only.
struct Two;

impl Catalog for Two {
    fn find(&self, name: &str) -> Option<(String, Described)> {
        let is_read_only = match name {
            "g/a" => false,
            "g/b" => true,
            _ => return None,
        };
        Some((name.to_owned(), Described::new(1 << 30, 512, 196_608, is_read_only)))
    }

    fn names(&self) -> Vec<String> {
        vec!["g/a".to_owned(), "g/b".to_owned()]
    }
}

/// Feeds all of it in pieces of these lengths (over and over), sending whenever asked to; what came out, where it led
/// and how much was used.
fn feed(bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Progress, usize) {
    let mut machine = Haggle::new();
    let mut output = machine.take_output();
    let mut used = 0;
    for cut in cuts.iter().cycle() {
        let end = (used + cut.max(&1)).min(bytes.len());
        let mut piece = &bytes[used..end];
        while !piece.is_empty() {
            let (n, progress) = machine.feed(piece, &Two);
            let sent = machine.take_output();
            assert!(n > 0 || !sent.is_empty(), "no progress");
            output.extend(sent);
            used += n;
            piece = &piece[n..];
            if progress != Progress::More {
                return (output, progress, used);
            }
        }
        if used == bytes.len() {
            break;
        }
    }
    (output, Progress::More, used)
}

/// Option replies after the greeting: option, type, data length.
fn replies(output: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut cursor = Cursor(&output[18..]);
    let mut replies = Vec::new();
    while let Some(magic) = cursor.u64() {
        assert_eq!(magic, wire::OPTION_REPLY_MAGIC);
        let (option, kind) = (cursor.u32().unwrap(), cursor.u32().unwrap());
        replies.push((option, kind, cursor.string().unwrap().to_vec()));
    }
    replies
}

fn plausible_option() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0_u32..12, any::<u32>()];
    let name = prop_oneof![Just("g/a"), Just("g/b"), Just(""), Just("x")];
    let data = prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 0..64),
        (name.clone(), proptest::collection::vec(0_u16..5, 0..4))
            .prop_map(|(name, wants)| go_data(name.as_bytes(), &wants)),
        name.clone().prop_map(|name| context_data(name.as_bytes(), &[b"base:allocation", b"base:"])),
        name.prop_map(|name| name.as_bytes().to_vec()),
    ];
    (number, data).prop_map(|(number, data)| option_bytes(number, &data))
}

fn handshake() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(3_u32), 1 => 0_u32..5, 1 => any::<u32>()];
    (
        flags,
        proptest::collection::vec(plausible_option(), 0..12),
        proptest::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(|(flags, options, rest)| {
            let mut bytes = flags.to_be_bytes().to_vec();
            bytes.extend(options.concat());
            bytes.extend(rest);
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_answered_or_end_the_handshake(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let (_, _, used) = feed(&bytes, &[7]);
        prop_assert!(used <= bytes.len());
    }

    #[test]
    fn ad_05_packets_do_not_matter(bytes in handshake(), cuts in proptest::collection::vec(1_usize..50, 1..20)) {
        let whole = feed(&bytes, &[usize::MAX / 2]);
        prop_assert_eq!(&feed(&bytes, &[1]), &whole);
        prop_assert_eq!(&feed(&bytes, &cuts), &whole);
    }

    #[test]
    fn requests_survive_the_wire(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        let request = Request { flags, command, cookie, offset, len };
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn what_is_allowed_is_inside_and_aligned(
        flags in prop_oneof![Just(0_u16), 0_u16..64, any::<u16>()],
        command in prop_oneof![0_u16..9, any::<u16>()],
        offset in prop_oneof![(0_u64..5000).prop_map(|n| n * 512), any::<u64>()],
        len in prop_oneof![(0_u32..5000).prop_map(|n| n * 512), any::<u32>()],
        is_read_only: bool,
        has_structured_replies: bool,
        has_allocation: bool,
    ) {
        let described = Described::new(2000 * 512, 512, 65536, is_read_only);
        let agreed = Agreed { export: String::new(), described, has_structured_replies, has_allocation };
        let request = Request { flags, command, cookie: 1, offset, len };
        match check(&request, &agreed) {
            Ok(Op::Read { at, len, .. }) => {
                prop_assert!(at + u64::from(len) <= described.size_bytes && len > 0 && len % 512 == 0);
            }
            Ok(Op::Write { at, len, .. } | Op::Zero { at, len, .. }) => {
                prop_assert!(!is_read_only);
                prop_assert!(at + u64::from(len) <= described.size_bytes && len > 0 && len % 512 == 0);
            }
            Ok(Op::Status { len }) => prop_assert!(has_allocation && len > 0),
            Ok(Op::Flush | Op::Nothing | Op::Disconnect) | Err(_) => {}
        }
    }
}

#[test]
fn described_sizes_are_what_the_protocol_allows() {
    for (stripe, block, preferred) in [
        (0, 512, 4096),
        (512, 512, 4096),
        (5 * 65536, 4096, 4 * 65536),
        (65536, 4096, 65536),
        (u32::MAX, 4096, wire::PAYLOAD_BYTES_MAX),
    ] {
        let described = Described::new(1 << 20, block, stripe, false);
        assert_eq!(described.preferred_bytes, preferred);
    }
}

/// What the first option of each kind is answered with, given whether structured replies were agreed on before.
fn expected(number: u32, is_structured: bool) -> Vec<u32> {
    match number {
        option::INFO | option::GO => vec![option_reply::INFO, option_reply::INFO, option_reply::ACK],
        option::LIST => vec![option_reply::SERVER, option_reply::SERVER, option_reply::ACK],
        option::ABORT | option::STRUCTURED_REPLY => vec![option_reply::ACK],
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT if is_structured => {
            vec![option_reply::META_CONTEXT, option_reply::ACK]
        }
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => vec![option_reply::ERR_INVALID],
        option::STARTTLS => vec![option_reply::ERR_POLICY],
        _ => vec![option_reply::ERR_UNSUP],
    }
}

#[test]
fn ad_05_haggling_in_all_orders() {
    let options = [
        (99, vec![0; 65536]),
        (11, vec![1]),
        (option::INFO, go_data(b"g/a", &[3])),
        (option::LIST, Vec::new()),
        (option::STRUCTURED_REPLY, Vec::new()),
        (option::SET_META_CONTEXT, context_data(b"g/a", &[b"base:allocation"])),
        (option::STARTTLS, Vec::new()),
    ];
    let mut order: Vec<usize> = (0..options.len()).collect();
    let mut orders = 0;
    permute(&mut order, 0, &mut |order| {
        orders += 1;
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        let mut want = Vec::new();
        let mut is_structured = false;
        let mut has_allocation = false;
        for &i in order {
            let (number, data) = &options[i];
            bytes.extend(option_bytes(*number, data));
            want.extend(expected(*number, is_structured).into_iter().map(|kind| (*number, kind)));
            is_structured |= *number == option::STRUCTURED_REPLY;
            has_allocation |= *number == option::SET_META_CONTEXT && is_structured;
        }
        for (number, data) in [(option::GO, go_data(b"g/a", &[])), (option::ABORT, Vec::new())] {
            let mut bytes = bytes.clone();
            bytes.extend(option_bytes(number, &data));
            bytes.extend(b"the transmission's");
            let mut want = want.clone();
            want.extend(expected(number, is_structured).into_iter().map(|kind| (number, kind)));
            let (output, progress, used) = feed(&bytes, &[usize::MAX / 2]);
            assert_eq!(used, bytes.len() - 18);
            let got: Vec<_> = replies(&output).into_iter().map(|(number, kind, _)| (number, kind)).collect();
            assert_eq!(got, want);
            match progress {
                Progress::Agreed(agreed) => {
                    assert_eq!(number, option::GO);
                    assert_eq!(
                        (agreed.has_structured_replies, agreed.has_allocation, agreed.export.as_str()),
                        (true, has_allocation, "g/a")
                    );
                }
                other => assert_eq!(other, Progress::Ended(Ended::Aborted)),
            }
        }
    });
    assert_eq!(orders, 5040);
}

fn permute(order: &mut Vec<usize>, from: usize, each: &mut impl FnMut(&[usize])) {
    if from == order.len() {
        each(order);
        return;
    }
    for i in from..order.len() {
        order.swap(from, i);
        permute(order, from + 1, each);
        order.swap(from, i);
    }
}

/// The replies to options after the client flags.
fn answers(options: &[(u32, Vec<u8>)]) -> (Vec<(u32, Vec<u8>)>, Progress) {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for (number, data) in options {
        bytes.extend(option_bytes(*number, data));
    }
    let (output, progress, _) = feed(&bytes, &[1000]);
    (replies(&output).into_iter().map(|(_, kind, data)| (kind, data)).collect(), progress)
}

#[test]
fn ad_05_malformed_options_get_their_own_errors() {
    let first = |number: u32, data: Vec<u8>| answers(&[(number, data)]).0[0].0;
    assert_eq!(first(option::GO, go_data(b"g/zzz", &[])), option_reply::ERR_UNKNOWN);
    assert_eq!(first(option::INFO, go_data(b"", &[])), option_reply::ERR_UNKNOWN);
    assert_eq!(first(option::GO, go_data(b"\xff\xfe", &[])), option_reply::ERR_UNKNOWN);
    assert_eq!(first(option::GO, go_data(&[b'x'; 4096], &[])), option_reply::ERR_UNKNOWN);
    assert_eq!(first(option::GO, go_data(&[b'x'; 4097], &[])), option_reply::ERR_TOO_BIG);
    assert_eq!(first(option::GO, Vec::new()), option_reply::ERR_INVALID);
    assert_eq!(first(option::GO, vec![0; 5]), option_reply::ERR_INVALID);
    assert_eq!(first(option::GO, vec![255; 40]), option_reply::ERR_INVALID);
    assert_eq!(first(option::GO, [go_data(b"g/a", &[]), vec![0]].concat()), option_reply::ERR_INVALID);
    assert_eq!(first(option::GO, vec![0; 20_000]), option_reply::ERR_TOO_BIG);
    assert_eq!(first(option::LIST, vec![0; 3]), option_reply::ERR_INVALID);
    assert_eq!(first(option::STRUCTURED_REPLY, vec![0; 3]), option_reply::ERR_INVALID);
    assert_eq!(first(option::STARTTLS, vec![0; 3]), option_reply::ERR_INVALID);
    let structured = (option::STRUCTURED_REPLY, Vec::new());
    let second = |number: u32, data: Vec<u8>| answers(&[structured.clone(), (number, data)]).0[1].0;
    assert_eq!(second(option::SET_META_CONTEXT, vec![9; 9]), option_reply::ERR_INVALID);
    let many = [&super::common::client::string(b"g/a")[..], &u32::MAX.to_be_bytes()].concat();
    assert_eq!(second(option::SET_META_CONTEXT, many), option_reply::ERR_INVALID);
    assert_eq!(second(option::SET_META_CONTEXT, context_data(b"x", &[])), option_reply::ERR_UNKNOWN);
}

#[test]
fn contexts_belong_to_the_export_they_were_chosen_for() {
    let structured = (option::STRUCTURED_REPLY, Vec::new());
    let choose = |name: &[u8], query: &[u8]| (option::SET_META_CONTEXT, context_data(name, &[query]));
    let go = |name: &[u8]| (option::GO, go_data(name, &[]));
    let has = |options: &[(u32, Vec<u8>)]| match answers(options).1 {
        Progress::Agreed(agreed) => agreed.has_allocation,
        other => panic!("{other:?}"),
    };
    let alloc = b"base:allocation".as_slice();
    assert!(has(&[structured.clone(), choose(b"g/a", alloc), go(b"g/a")]));
    assert!(!has(&[structured.clone(), choose(b"g/a", alloc), go(b"g/b")]));
    assert!(!has(&[structured.clone(), choose(b"g/a", alloc), choose(b"g/a", b"x:y"), go(b"g/a")]));
    assert!(!has(&[structured.clone(), choose(b"g/a", alloc), choose(b"nope", alloc), go(b"g/a")]));
    assert!(!has(&[structured.clone(), choose(b"g/a", b"base:"), go(b"g/a")]));
    let list = (option::LIST_META_CONTEXT, context_data(b"g/a", &[]));
    assert_eq!(answers(&[structured.clone(), list]).0[1].0, option_reply::META_CONTEXT);
    let list = (option::LIST_META_CONTEXT, context_data(b"g/a", &[b"qemu:dirty"]));
    assert_eq!(answers(&[structured, list]).0[1].0, option_reply::ACK);
}

#[test]
fn the_old_way_to_choose_an_export() {
    for (flags, zeroes) in [(3_u32, 0), (1, 124), (0, 124), (2, 0)] {
        let bytes = [&flags.to_be_bytes()[..], &option_bytes(option::EXPORT_NAME, b"g/b")].concat();
        let (output, progress, _) = feed(&bytes, &[3]);
        assert_eq!(output.len(), 18 + 10 + zeroes);
        assert_eq!(&output[18..26], &(1_u64 << 30).to_be_bytes());
        assert!(matches!(progress, Progress::Agreed(agreed) if agreed.described.is_read_only));
    }
    for name in [b"nope".to_vec(), vec![b'x'; 4096], vec![b'x'; 5000]] {
        let end = answers(&[(option::EXPORT_NAME, name)]).1;
        assert_eq!(end, Progress::Ended(Ended::Unanswerable(option::EXPORT_NAME)));
    }
}

#[test]
fn endless_haggling_ends() {
    let (output, progress) = answers(&vec![(option::LIST, Vec::new()); 2000]);
    assert_eq!(progress, Progress::Ended(Ended::TooMany));
    assert_eq!(output.len(), 3000);
    let bytes =
        [&3_u32.to_be_bytes()[..], &wire::OPTION_MAGIC.to_be_bytes(), &[0, 0, 0, 77], &[255; 4]].concat();
    assert!(matches!(feed(&bytes, &[5]).1, Progress::Ended(Ended::TooBig { option: 77, len: u32::MAX })));
    let plain = [&0_u32.to_be_bytes()[..], &option_bytes(option::LIST, &[])].concat();
    assert_eq!(feed(&plain, &[5]).1, Progress::Ended(Ended::Unanswerable(option::LIST)));
    assert_eq!(feed(&[0, 0, 0, 4], &[5]).1, Progress::Ended(Ended::ClientFlags(4)));
}

#[test]
fn ad_04_every_bad_request_has_its_error() {
    const SIZE: u64 = 1 << 20;
    const BLOCK: u32 = 4096;
    let agreed = |is_read_only| Agreed {
        export: String::new(),
        described: Described::new(SIZE, BLOCK, 65536, is_read_only),
        has_structured_replies: true,
        has_allocation: true,
    };
    let run = |command, flags, offset, len| {
        check(&Request { flags, command, cookie: 0, offset, len }, &agreed(false))
    };
    use command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
    let all = [READ, WRITE, TRIM, WRITE_ZEROES, BLOCK_STATUS];
    for number in all {
        let beyond = if matches!(number, WRITE | WRITE_ZEROES) { Errno::NoSpace } else { Errno::Invalid };
        for (offset, len) in [
            (SIZE, BLOCK),
            (SIZE - u64::from(BLOCK), 2 * BLOCK),
            (u64::MAX, 1),
            (u64::MAX - 4095, BLOCK),
            (u64::MAX, u32::MAX),
            (0, u32::MAX),
            (SIZE + 1, 0),
        ] {
            assert_eq!(run(number, 0, offset, len), Err(beyond), "{number} {offset} {len}");
        }
        for (offset, len) in [(0, 1), (1, BLOCK), (512, BLOCK), (0, 512), (0, BLOCK + 1)] {
            assert_eq!(run(number, 0, offset, len), Err(Errno::Invalid), "{number} {offset} {len}");
        }
        let nothing = if number == BLOCK_STATUS { Err(Errno::Invalid) } else { Ok(Op::Nothing) };
        assert_eq!(run(number, 0, SIZE, 0), nothing);
        assert!(run(number, 0, SIZE - u64::from(BLOCK), BLOCK).is_ok());
        assert!(run(number, command_flags::FUA, 0, BLOCK).is_ok());
        assert_eq!(run(number, 1 << 9, 0, BLOCK), Err(Errno::Invalid));
    }
    assert_eq!(run(WRITE, command_flags::DF, 0, BLOCK), Err(Errno::Invalid));
    assert_eq!(run(READ, command_flags::NO_HOLE, 0, BLOCK), Err(Errno::Invalid));
    assert_eq!(run(WRITE_ZEROES, command_flags::FAST_ZERO, 0, BLOCK), Err(Errno::NotSupported));
    assert_eq!(run(WRITE_ZEROES, command_flags::FAST_ZERO, SIZE, BLOCK), Err(Errno::NoSpace));
    for number in [CACHE, 8, 77, u16::MAX] {
        assert_eq!(run(number, 0, 0, BLOCK), Err(Errno::Invalid));
    }
    assert_eq!(run(FLUSH, 0, 7, 7), Ok(Op::Flush));
    assert_eq!(run(DISC, 0xffff, 7, 7), Ok(Op::Disconnect));
    let zero = |unmap, how| Ok(Op::Zero { at: 0, len: BLOCK, unmap, how });
    assert_eq!(run(TRIM, command_flags::FUA, 0, BLOCK), zero(true, Durability::Fua));
    assert_eq!(run(WRITE_ZEROES, 0, 0, BLOCK), zero(true, Durability::Cached));
    assert_eq!(run(WRITE_ZEROES, command_flags::NO_HOLE, 0, BLOCK), zero(false, Durability::Cached));
    for number in [WRITE, TRIM, WRITE_ZEROES] {
        for (offset, len) in [(0, BLOCK), (SIZE, BLOCK), (0, 1)] {
            let request = Request { flags: 0, command: number, cookie: 0, offset, len };
            assert_eq!(check(&request, &agreed(true)), Err(Errno::Perm));
        }
    }
}

#[test]
fn ad_04_payloads_over_the_limit_are_refused() {
    let described = Described::new(1 << 40, 512, 65536, false);
    let agreed =
        Agreed { export: String::new(), described, has_structured_replies: false, has_allocation: false };
    let run = |command, len| check(&Request { flags: 0, command, cookie: 0, offset: 0, len }, &agreed);
    for number in [command::READ, command::WRITE] {
        assert!(run(number, wire::PAYLOAD_BYTES_MAX).is_ok());
        assert_eq!(run(number, wire::PAYLOAD_BYTES_MAX + 512), Err(Errno::Invalid));
        assert_eq!(run(number, u32::MAX), Err(Errno::Invalid));
    }
    // MK-01: no payload, no limit.
    for len in [1 << 31, (1 << 31) - 512, u32::MAX - 511] {
        for number in [command::TRIM, command::WRITE_ZEROES] {
            assert!(matches!(run(number, len), Ok(Op::Zero { len: l, .. }) if l == len), "{len}");
        }
    }
    assert_eq!(usize_of_u32(wire::PAYLOAD_BYTES_MAX), 1 << 25);
    let status = Request { flags: 0, command: command::BLOCK_STATUS, cookie: 0, offset: 0, len: 512 };
    assert_eq!(check(&status, &agreed), Err(Errno::Invalid), "no context was chosen");
    let whole = Request { flags: command_flags::DF, command: command::READ, cookie: 0, offset: 0, len: 512 };
    assert_eq!(check(&whole, &agreed), Err(Errno::Invalid), "no structured replies");
}
