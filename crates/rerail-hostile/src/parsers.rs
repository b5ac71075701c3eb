//! One target for each parser. The first bytes may choose a variant; the rest is what the parser reads.
//!
//! Where a checksum or a keyed hash guards the parser, the target tries the bytes as they are, and once more with that
//! guard made right: a broken peer can compute it, and the code behind it must stand too.

use rerail_core::{
    Answerer, Datagram, Locator, Options, RailId, Respond, Responder, ResponderUpdate, Whereabouts,
};
use rerail_fault::Plan;
use rerail_lab::fabric::FabricPlan;
use rerail_lab::rate::Rate;
use rerail_lab::schedule::Schedule;
use rerail_lab::topology::{RailPlan, Topology};
use rerail_lab::wire::faults::Faults;
use rerail_launch::exchange::Exchange;
use rerail_launch::hosts;
use rerail_launch::message::{self, Gives, GroupAct, ToAgent, ToLauncher, Wants};
use rerail_launch::pmi::{Answer, Pmi};
use rerail_launch::proof::{Called, Calling, HELLO_BYTES as LAUNCH_HELLO_BYTES, Key};
use rerail_launch::session::{FRAME_BYTES, Session};
use rerail_runtime::control::Request;
use rerail_wire::ack::{RANGES_MAX, read_ranges};
use rerail_wire::address::ADDRESS_BYTES;
use rerail_wire::bulk::{BULK_HEADER_BYTES, BulkHeader};
use rerail_wire::bytes::{get_u16, get_u32, get_u64, put_u32, put_u64};
use rerail_wire::config::NodeConfig;
use rerail_wire::crc32c_append;
use rerail_wire::frame::FRAME_HEADER_BYTES;
use rerail_wire::hello::{ACCEPT_BYTES, Accept, HELLO_BYTES, Hello, Proof};
use rerail_wire::inquiry::{answer, question, read_answer, read_question};
use rerail_wire::onesided::{ORDER_HEADER_BYTES, Order, PIECES_MAX, pieces};
use rerail_wire::packet::{
    PACKET_HEADER_BYTES, PONG_ENTRIES_MAX, PacketHeader, PacketKind, PongEntry, SUM_HEADER, SUM_NONE, peek,
};
use rerail_wire::stream::{MAGICS, STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, parse_header, write_header};
use rerail_wire::{Address, FrameHeader, PairKeys, PublicKey, Token};
use std::collections::HashMap;

const OWN: Token = Token([0x11; 16]);
const PEER: Token = Token([0x22; 16]);

/// The published address, as users and address vectors hand it in, and the question for it and its answer.
pub fn address(b: &[u8]) {
    if let Ok(number) = read_question(b) {
        assert_eq!(read_question(&question(number)), Ok(number));
    }
    if let Ok((number, Ok(a))) = read_answer(b) {
        assert_eq!(answer(number, &a.to_bytes())[..], *b, "an answer is written as it was read");
    }
    if let Ok(a) = Address::parse(b) {
        assert_eq!(a.to_bytes()[..], b[..ADDRESS_BYTES], "an address is written as it was read");
        assert!(!a.rails.is_empty() && a.rails.iter().all(|r| r.service() != 0));
    }
}

/// The keys of two processes, on either side.
fn keys() -> [PairKeys; 2] {
    let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
    [PairKeys::derive(&[3; 32], &a, &b), PairKeys::derive(&[3; 32], &b, &a)]
}

/// Hello and accept: as they are, and with connection ids, masks and keyed hashes made right.
pub fn hello(b: &[u8]) {
    let [ours, theirs] = keys();
    let _ = (Hello::parse(b, &OWN), Accept::parse(b, &PEER, &OWN));
    let _ = (Hello::proof(b, &ours), Accept::is_proved(b, &ours, None));
    if let Some(x) = b.first_chunk::<HELLO_BYTES>() {
        let mut x = *x;
        put_u64(&mut x, 0, OWN.hello_cid());
        let mac = OWN.hello_mac(&x[..HELLO_BYTES - 16]);
        x[HELLO_BYTES - 16..].copy_from_slice(&mac);
        let proof = Hello::proof(&x, &ours);
        if let Ok(h) = Hello::parse(&x, &OWN) {
            let proved = h.to_bytes(&OWN, Some(&theirs));
            assert_eq!(Hello::proof(&proved, &ours), Proof::Right, "a proof is believed");
            if proof == Proof::None {
                assert_eq!(h.to_bytes(&OWN, None), x, "a hello is written as it was read");
            }
            assert!(Hello::parse(&x, &PEER).is_err(), "a hello is for one process");
        }
    }
    if let Some(x) = b.first_chunk::<ACCEPT_BYTES>() {
        let mut x = *x;
        put_u64(&mut x, 0, PEER.accept_cid(&OWN));
        if let Ok(a) = Accept::parse(&x, &PEER, &OWN) {
            let mac = theirs.mac(&[&x[..ACCEPT_BYTES - 16], &[0; 32]]);
            x[ACCEPT_BYTES - 16..].copy_from_slice(&mac);
            assert!(Accept::is_proved(&x, &ours, None), "a proof is believed");
            assert_eq!(a.to_bytes(&PEER, &OWN, &theirs, None), x, "an accept is written as it was read");
            assert!(Accept::parse(&x, &OWN, &PEER).is_err(), "an accept cannot be reflected");
        }
    }
}

/// A datagram: header, then frames or a table; as it is, and with the checksum made right.
pub fn packet(b: &[u8]) {
    let _ = (peek(b), PacketHeader::parse(b));
    let Some(x) = sealed(b) else { return };
    let Ok((h, rest)) = PacketHeader::parse(&x) else { return };
    assert_eq!(peek(&x), Some((h.cid, h.kind)), "a first look sees what the parser sees");
    let mut again = x.clone();
    h.seal(&mut again);
    assert_eq!(again, x, "a packet header is written as it was read");
    match h.kind {
        PacketKind::Pong => {
            let table = &rest[..h.table_bytes()];
            assert_eq!(PongEntry::read_all(table).count(), usize::from(h.entries));
        }
        PacketKind::Data => frames(rest),
        PacketKind::Bulk => {
            if let Ok((h, piece)) = BulkHeader::parse(rest) {
                assert_eq!(piece.len(), usize::from(h.len));
                let mut out = [0; BULK_HEADER_BYTES];
                h.write(&mut out);
                assert_eq!(out[..], rest[..BULK_HEADER_BYTES], "a piece is written as it was read");
            }
        }
        _ => {}
    }
}

/// The datagram with version and checksum made right, if it is long enough to have them.
pub(crate) fn sealed(b: &[u8]) -> Option<Vec<u8>> {
    if b.len() < PACKET_HEADER_BYTES {
        return None;
    }
    let mut x = b.to_vec();
    x[8] = rerail_wire::VERSION;
    let crc = match x[28] & (SUM_HEADER | SUM_NONE) {
        SUM_NONE => 0,
        SUM_HEADER => crc_of_headers(&x),
        _ => crc32c_append(crc32c_append(0, &x[..24]), &x[28..]),
    };
    put_u32(&mut x, 24, crc);
    Some(x)
}

/// What covers the headers only, written once more: the payload of the frames that carry the user's bytes is left out.
fn crc_of_headers(x: &[u8]) -> u32 {
    let mut crc = crc32c_append(crc32c_append(0, &x[..24]), &x[28..PACKET_HEADER_BYTES]);
    let mut rest = &x[PACKET_HEADER_BYTES..];
    if x[9] == PacketKind::Bulk as u8 {
        return crc32c_append(crc, &rest[..rest.len().min(BULK_HEADER_BYTES)]);
    }
    while rest.len() >= FRAME_HEADER_BYTES {
        let len = get_u32(rest, 40) as usize;
        let end = (FRAME_HEADER_BYTES + len).min(rest.len());
        let users = matches!(rest[0], 1 | 4);
        crc = crc32c_append(crc, &rest[..if users { FRAME_HEADER_BYTES } else { end }]);
        rest = &rest[end..];
    }
    crc
}

fn frames(mut rest: &[u8]) {
    while let Ok(f) = FrameHeader::parse(rest) {
        let Some(after) = rest.get(FRAME_HEADER_BYTES + f.len as usize..) else { return };
        rest = after;
    }
}

/// A frame header.
pub fn frame(b: &[u8]) {
    if let Ok(h) = FrameHeader::parse(b) {
        let mut out = [0; FRAME_HEADER_BYTES];
        h.write(&mut out);
        assert_eq!(out[..], b[..FRAME_HEADER_BYTES], "a frame header is written as it was read");
        let _ = h.kind.elicits_ack();
    }
}

/// Header and trailer of a frame on a stream; as they are, and with magic and checksum made right.
pub fn stream(b: &[u8]) {
    let _ = parse_header(b);
    if let Ok(t) = Trailer::parse(b) {
        assert_eq!(t.to_bytes()[..], b[..TRAILER_BYTES], "a trailer is written as it was read");
    }
    if b.len() >= STREAM_HEADER_BYTES {
        let mut x = b.to_vec();
        let coverage = usize::from(x[0]) % MAGICS.len();
        put_u32(&mut x, 0, MAGICS[coverage]);
        let crc = if coverage == 0 { 0 } else { crc32c_append(0, &x[8..STREAM_HEADER_BYTES]) };
        put_u32(&mut x, 4, crc);
        if let Ok((number, f, said)) = parse_header(&x) {
            assert_eq!(said as usize, coverage);
            let mut out = [0; STREAM_HEADER_BYTES];
            write_header(&mut out, number, &f, said);
            assert_eq!(out[..], x[..STREAM_HEADER_BYTES], "a stream header is written as it was read");
        }
    }
}

/// Acknowledged ranges: largest number, length of the first range, then the payload.
pub fn ack(b: &[u8]) {
    if b.len() < 12 {
        return;
    }
    let (largest, first, payload) = (get_u64(b, 0), get_u32(b, 8), &b[12..]);
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let taken = read_ranges(largest, first, payload, |low, high| seen.push((low, high)));
    if taken.is_err() {
        assert!(seen.is_empty(), "a malformed acknowledgement has no effect at all");
        return;
    }
    assert!(seen.len() <= RANGES_MAX + 1 && seen[0].1 == largest);
    assert!(seen.iter().all(|r| r.0 <= r.1), "no range is empty");
    assert!(seen.windows(2).all(|w| w[1].1 < w[0].0), "ranges are apart, newest first");
}

/// Node configuration.
pub fn config(b: &[u8]) {
    if let Ok(c) = NodeConfig::parse(b) {
        assert_eq!(c.to_bytes(), b, "a configuration is written as it was read");
    }
}

/// Orders of one-sided operations.
pub fn order(b: &[u8]) {
    let Ok((order, list, payload)) = Order::parse(b) else { return };
    let all: Vec<_> = pieces(list).collect();
    assert!(all.len() <= PIECES_MAX, "an order has few pieces");
    assert_eq!(ORDER_HEADER_BYTES + list.len() + payload.len(), b.len(), "nothing is left over");
    let mut again = order.to_bytes(&all, payload.len());
    again.extend_from_slice(payload);
    let (same, ..) = Order::parse(&again).expect("what was read can be written and read");
    assert_eq!(same, order);
}

/// Options: the first byte chooses the row, the rest is what a user wrote.
pub fn option(b: &[u8]) {
    let Some((&row, text)) = b.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let table = rerail_core::OPTION_TABLE;
    let row = &table[usize::from(row) % table.len()];
    let before = Options::default();
    let mut o = before.clone();
    match o.set(row.name, text) {
        Ok(()) => {
            let mut again = before;
            again.set(row.name, text).expect("what was taken is taken again");
            assert_eq!(o, again, "a value means the same each time");
            let _ = o.check_rails(&["eth0", "eth1"]);
        }
        Err(e) => {
            assert_eq!(o, before, "what is refused changes nothing");
            let said = e.to_string();
            assert!(said.contains(&row.name.to_uppercase()), "the sentence names the variable: {said}");
        }
    }
}

/// Requests of the control socket.
pub fn control(b: &[u8]) {
    match Request::parse(b) {
        Ok(r) => {
            let line = r.line();
            let (text, end) = line.split_at(line.len() - 1);
            assert_eq!(end, "\n");
            assert_eq!(Request::parse(text.as_bytes()), Ok(r), "a request is read as it is written");
        }
        Err(said) => assert!(!said.is_empty() && !said.contains('\n'), "a refusal is one sentence"),
    }
}

/// Schedules of faults in the lab, without a fabric and with one, and fabrics, as a user writes them.
pub fn schedule(b: &[u8]) {
    let Ok(text) = std::str::from_utf8(b) else { return };
    let fabric = "leaf-spine:2x2".parse::<FabricPlan>().expect("it is one");
    for fabric in [None, Some(fabric)] {
        let rails = vec![RailPlan::veth(Rate::Unshaped); 2];
        let topology = Topology { nodes: 2, rails, congctl: None, rdma: None, fabric };
        match Schedule::parse(text, &topology) {
            Ok(s) => assert!(s.items.is_sorted_by_key(|i| i.at)),
            Err(e) => assert!(e.to_string().contains("line"), "an error says where: {e}"),
        }
    }
    if let Ok(plan) = text.parse::<FabricPlan>() {
        assert_eq!(plan.to_string().parse(), Ok(plan), "a fabric is read as it is shown");
    }
}

/// What `rerail launch` reads: lists of hosts, PMI of ranks, the bytes of agents and of other processes, and what PMIx servers exchange. The first
/// byte chooses.
pub fn launch(b: &[u8]) {
    let Some((which, b)) = b.split_first() else { return };
    let text = String::from_utf8_lossy(b);
    match which % 7 {
        0 => {
            for read in [hosts::list(&text), hosts::file(&text, "hosts")] {
                placed(read);
            }
        }
        1 => {
            let (nodes, tasks) = text.split_once('\n').unwrap_or((&text, ""));
            placed(hosts::slurm(nodes, (!tasks.is_empty()).then_some(tasks)));
        }
        2 => {
            let mut host = Pmi::new("job", 4, 2, 2, "(vector,(0,2,2))");
            for line in text.lines() {
                let rank = line.len() % 2;
                for answer in host.line(rank, line) {
                    match answer {
                        Answer::Line(of, text) => assert!(of == rank && !text.contains('\n'), "{text:?}"),
                        Answer::Fence(put) => {
                            let answers = host.fenced(put);
                            assert_eq!(answers.len(), 2, "both ranks go on");
                        }
                        Answer::Abort(of, _) => assert_eq!(of, rank),
                        Answer::Wrong(why) => assert!(why.contains(&format!("rank {}", 2 + rank)), "{why}"),
                    }
                }
            }
        }
        3 => {
            let (mut session, mut sent, mut next) = (Session::default(), 0u8, 1u64);
            for frame in b.chunks(FRAME_BYTES + 2) {
                if frame.len() % 3 == 0 {
                    sent = sent.wrapping_add(1);
                    session.push(vec![sent]);
                    let _ = session.poll();
                }
                if let Ok(Some(_)) = session.arrived(frame) {
                    assert_eq!(frame[..8], next.to_le_bytes(), "every message once, and in order");
                    next += 1;
                }
            }
        }
        4 => {
            if let Some(m) = message::read::<ToAgent>(b) {
                assert_eq!(message::read(&message::write(&m)), Some(m));
            }
            if let Some(m) = message::read::<ToLauncher>(b) {
                assert_eq!(message::read(&message::write(&m)), Some(m));
            }
        }
        5 => {
            let secret = Key::new([3; 32]);
            let mut hello = Calling::new(secret.of_agent(1), 1, [1; 16]).1;
            hello.iter_mut().zip(b).for_each(|(to, from)| *to ^= from);
            let Some((called, _, answer)) = Called::new(&secret, &hello, [2; 16]) else { return };
            let proof = b
                .get(LAUNCH_HELLO_BYTES..)
                .and_then(|b| b.first_chunk())
                .copied()
                .unwrap_or(answer[16..].try_into().expect("32"));
            assert!(called.proved(&proof).is_none(), "a stranger proved itself");
        }
        _ => exchanged(b),
    }
}

/// Fences and groups of five ranks on three hosts. Four bytes for each step: a host, what it does, the ranks that take part, a name.
fn exchanged(b: &[u8]) {
    let mut hosts = Exchange::new([0..2, 2..3, 3..5]);
    let mut waits: HashMap<(usize, u64), Vec<u32>> = HashMap::new();
    let (mut numbers, mut ended) = (0, Vec::new());
    for (step, of) in b.chunks_exact(4).enumerate() {
        let (agent, ticket) = (usize::from(of[0]) % 3, step as u64);
        let ranks: Vec<u32> = (0..5).filter(|rank| of[2] >> rank & 1 == 1).collect();
        let is_in = |ranks: &[u32], rank| ranks.is_empty() || ranks.contains(&rank);
        let group = |act, whole| {
            let (name, ranks, data) = (vec![of[3] % 4], ranks.clone(), vec![of[3]]);
            Wants::Group { ticket, act, name, ranks, data, whole }
        };
        let wants = match of[1] % 8 {
            0 | 1 => Wants::Fence { ticket, ranks: ranks.clone(), data: vec![of[3]] },
            2 | 3 => group(GroupAct::Construct { numbered: true }, true),
            4 => group(GroupAct::Construct { numbered: false }, true),
            5 => group(GroupAct::Destruct, true),
            6 => group(GroupAct::Construct { numbered: true }, false),
            _ => {
                let rank = u32::from(of[3]) % 5;
                for (agent, gives) in hosts.ended(rank) {
                    let Gives::Broken { ticket } = gives else {
                        panic!("{gives:?} for a rank that has ended")
                    };
                    let ranks = waits.remove(&(agent, ticket)).expect("it waited");
                    assert!(is_in(&ranks, rank), "rank {rank} is not one of {ranks:?}");
                }
                assert!(!waits.values().any(|ranks| is_in(ranks, rank)), "something waits for rank {rank}");
                ended.push(rank);
                continue;
            }
        };
        let is_lost = ended.iter().any(|rank| is_in(&ranks, *rank));
        waits.insert((agent, ticket), ranks);
        let answers = hosts.receive(agent, wants).expect("it fits");
        assert!(!is_lost || answers == [(agent, Gives::Broken { ticket })], "{answers:?}");
        let mut given = None;
        for (agent, gives) in answers {
            let (ticket, data) = match gives {
                Gives::Data { ticket, data } => (ticket, data.expect("a fence has data")),
                Gives::Group { ticket, number, data } => {
                    given = number.or(given);
                    (ticket, data)
                }
                Gives::Broken { ticket } => (ticket, Vec::new()),
                Gives::Fetch { .. } => panic!("nothing was fetched"),
            };
            assert!(waits.remove(&(agent, ticket)).is_some(), "it waited, and is answered once");
            assert!(data.len() <= 3, "each host has put one byte");
        }
        if let Some(number) = given {
            assert_eq!(number, numbers + 1, "no other group has this number");
            numbers = number;
        }
    }
}

fn placed(read: Result<Vec<hosts::Host>, String>) {
    match read {
        Ok(all) => {
            let ranks = hosts::place(all.len(), Some(1), &all).expect("one for each");
            assert_eq!(ranks.len(), all.len());
            assert!(all.iter().all(|h| !h.name.starts_with('-') && !h.name.contains(char::is_whitespace)));
        }
        Err(said) => assert!(!said.is_empty()),
    }
}

/// Faults of the lab's wire, as a user writes them.
pub fn faults(b: &[u8]) {
    let Ok(text) = std::str::from_utf8(b) else { return };
    if let Ok(f) = text.parse::<Faults>() {
        let shown = f.to_string();
        let again = shown.parse::<Faults>().expect("what is shown can be read");
        assert_eq!(again.to_string(), shown, "faults are read as they are shown");
    }
}

/// Faults that a process plants in its own rails (`FI_RERAIL_FAULTS`), as a user writes them.
pub fn plan(b: &[u8]) {
    let Ok(text) = std::str::from_utf8(b) else { return };
    let rails = ["eth0", "ib0"];
    match Plan::parse(text, &rails) {
        Ok(p) => {
            let shown = p.to_string();
            let again = Plan::parse(&shown, &rails).expect("what is shown can be read");
            assert_eq!(again.to_string(), shown, "faults are read as they are shown");
        }
        Err(e) => assert!(!e.is_empty() && !e.contains('\n'), "one sentence: {e}"),
    }
}

/// Queries answered without the engine. Two bytes of length before each datagram.
pub fn responder(mut b: &[u8]) {
    let [keys, _] = keys();
    let published = Address {
        token: PEER,
        endpoint: 0,
        encrypts: false,
        rails: vec![Locator::ip([10, 0, 0, 2].into(), 4000)],
    };
    let at = Whereabouts::new(&published, false);
    let mut r = Responder::default();
    r.update(ResponderUpdate::Add { cid_in: keys.cid_in, cid_out: keys.cid_out, at });
    let mut out = Datagram::default();
    while b.len() > 2 {
        let len = usize::from(get_u16(b, 0)).min(b.len() - 2);
        let (one, rest) = b[2..].split_at(len);
        b = rest;
        assert_ne!(
            r.respond(RailId(0), one, Answerer::Bypass, &mut out),
            Respond::Answered,
            "the id is secret"
        );
        let Some(mut x) = sealed(one) else { continue };
        put_u64(&mut x, 0, keys.cid_in);
        let Some(x) = sealed(&x) else { continue };
        if r.respond(RailId(0), &x, Answerer::Bypass, &mut out) == Respond::Answered {
            let (h, rest) = PacketHeader::parse(&out.bytes).expect("an answer is well formed");
            assert_eq!((h.cid, h.kind, h.number), (keys.cid_out, PacketKind::Pong, get_u64(&x, 16)));
            assert!(PongEntry::read_all(&rest[..h.table_bytes()]).count() <= PONG_ENTRIES_MAX);
            assert!(out.bytes.len() <= x.len(), "an answer is no longer than its question");
            assert_eq!(out.to, published.rails[0], "it goes where the peer is");
        }
    }
}

/// The private data of an RDMA connection, and the header of a message on it.
pub fn verbs(b: &[u8]) {
    rerail_verbs::hostile::headers(b);
}

/// Connections without RDMA-CM: the input says what their user does and what peers send.
pub fn exchange(b: &[u8]) {
    rerail_verbs::hostile::exchange(b);
}

/// A lane over an RDMA adapter: the input says what its user does and what its peer sends.
pub fn lane(b: &[u8]) {
    rerail_verbs::hostile::lane(b);
    rerail_verbs::hostile::alternates(b);
}
