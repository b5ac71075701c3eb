//! A process that is attacked: replayed, reflected, spoofed and invented handshakes, and what a peer may make it do.
//! Each test is one claim of `docs/security.md`. The engine is real; the world is the attacker.

mod alone;

use rerail_core::wire::frame::{FRAME_HEADER_BYTES, flags};
use rerail_core::wire::hello::{Accept, EPOCH_MAX, HELLO_BYTES, Hello};
use rerail_core::wire::onesided::{Order, OrderKind, OrderPiece, Status};
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PONG_ENTRY_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, SessionKeys, Token};
use rerail_core::{
    Action, CloseReason, CompletionError, CompletionKind, Counters, CqId, Datagram, Engine, EpId, Health,
    IoVec, JoinOp, Locator, Options, RailId, Region, RemotePiece, RmaOp, StreamId, Time, Window,
};
use std::time::Duration;

const VICTIM: Token = Token([9; 16]);
const PEER: Token = Token([1; 16]);
/// Rail 0 on both sides.
const PATH: u16 = 0;

struct Victim {
    engine: Engine,
    cq: CqId,
    ep: EpId,
    now: Time,
    /// Packets and messages of the peer so far.
    packets: u64,
    messages: u64,
    /// Streams that the engine wants opened.
    opened: Vec<Locator>,
    closed: Vec<StreamId>,
}

fn addr(last: u8) -> Locator {
    Locator::ip([10, 0, 0, last].into(), 4000)
}

fn anybody() -> Locator {
    Locator::ip([10, 0, 0, 66].into(), 6666)
}

fn published(token: Token, last: u8) -> Address {
    Address { token, endpoint: 0, encrypts: false, rails: vec![addr(last)] }
}

fn hello(from: Address, epoch: u32, stream: u64, nonce: u8) -> [u8; HELLO_BYTES] {
    Hello { path: PATH, epoch, stream, nonce: [nonce; 16], from, public_key: None }.to_bytes(&VICTIM)
}

fn ping(epoch: u32, number: u64, room: usize) -> Vec<u8> {
    let mut b = vec![0; PACKET_HEADER_BYTES + room * PONG_ENTRY_BYTES];
    let cid = SessionKeys::derive(&PEER, &VICTIM).cid_out;
    PacketHeader {
        cid,
        kind: PacketKind::Ping,
        path: PATH,
        epoch,
        number,
        flags: 0,
        entries: 0,
        coverage: Coverage::Full,
    }
    .seal(&mut b);
    b
}

impl Victim {
    fn new() -> Self {
        let (engine, cq, ep, now) = alone::engine(VICTIM, Options::default(), None);
        Self { engine, cq, ep, now, packets: 0, messages: 0, opened: vec![], closed: vec![] }
    }

    /// Connected with the peer in `epoch`, as the side that was asked.
    fn connected(epoch: u32) -> Self {
        let mut v = Self::new();
        v.engine.endpoint_of(&published(PEER, 2));
        v.gets(&hello(published(PEER, 2), epoch, 0, 1));
        v.gets(&ping(epoch, 1, 1));
        assert_eq!(v.path(), (Health::Up, epoch));
        v.says();
        v
    }

    fn path(&self) -> (Health, u32) {
        let p = &self.engine.paths()[0];
        (p.health, p.epoch.0)
    }

    /// A datagram arrives, with the attacker's address as its source.
    fn gets(&mut self, bytes: &[u8]) {
        self.engine.handle_datagram(RailId(0), anybody(), bytes, self.now);
    }

    /// What is sent now.
    fn says(&mut self) -> Vec<(Locator, Vec<u8>)> {
        self.engine.handle_timeout(self.now);
        let mut all = vec![];
        let mut out = Datagram::default();
        loop {
            while let Some(a) = self.engine.poll_action() {
                match a {
                    Action::OpenStream { to, .. } => self.opened.push(to),
                    Action::CloseStream { stream } => {
                        self.engine.stream_closed(stream, CloseReason::Requested, self.now);
                        self.closed.push(stream);
                    }
                    _ => {}
                }
            }
            if !self.engine.poll_datagram(self.now, &mut out) {
                return all;
            }
            all.push((out.to, out.bytes.clone()));
        }
    }

    /// Everything that is sent within `time`.
    fn says_within(&mut self, time: Duration) -> Vec<(Locator, Vec<u8>)> {
        let end = self.now + time;
        let mut all = self.says();
        while self.now < end {
            self.now = self.now + Duration::from_millis(5);
            all.extend(self.says());
        }
        all
    }

    fn counted(&self, what: impl Fn(&Counters) -> u64) -> u64 {
        what(&self.engine.counters())
    }
}

fn bytes_to(said: &[(Locator, Vec<u8>)], place: Locator) -> usize {
    said.iter().filter(|s| s.0.same_place(&place)).map(|s| s.1.len()).sum()
}

#[test]
fn a_replayed_hello_changes_nothing_and_is_answered_to_the_peer_only() {
    let mut v = Victim::connected(5);
    let before = v.counted(|c| c.replays);
    let old = hello(published(PEER, 2), 3, 0, 7);
    for _ in 0..50 {
        v.gets(&old);
    }
    let said = v.says();
    assert_eq!(v.path(), (Health::Up, 5), "the path stays in its epoch");
    assert_eq!(v.counted(|c| c.replays), before + 50);
    assert_eq!(bytes_to(&said, anybody()), 0, "who sent it gets nothing");
    assert!(bytes_to(&said, addr(2)) <= 50 * HELLO_BYTES, "no more is sent than came");
}

#[test]
fn the_hello_of_the_current_epoch_repeated_changes_nothing() {
    let mut v = Victim::connected(5);
    let downs = v.counted(|c| c.paths_down);
    for _ in 0..50 {
        v.gets(&hello(published(PEER, 2), 5, 0, 1));
    }
    v.says();
    assert_eq!((v.path(), v.counted(|c| c.paths_down)), ((Health::Up, 5), downs));
}

#[test]
fn a_replayed_accept_is_refused_because_it_answers_an_older_question() {
    let mut v = Victim::new();
    v.engine.endpoint_of(&published(PEER, 2));
    let keys = SessionKeys::derive(&PEER, &VICTIM);
    for nonce in 0..50 {
        let a = Accept { path: PATH, epoch: 3, stream: 0, nonce: [nonce; 16], public_key: None };
        v.gets(&a.to_bytes(&keys));
    }
    assert_eq!(v.path().0, Health::Idle);
}

#[test]
fn what_a_process_said_cannot_be_sent_back_to_it() {
    let mut v = Victim::connected(5);
    v.gets(&hello(published(PEER, 2), 3, 0, 7));
    let said = v.says_within(Duration::from_secs(1));
    let strangers = v.counted(|c| c.strangers);
    assert!(said.len() > 2, "an answer, and queries");
    for (_, bytes) in &said {
        v.gets(bytes);
    }
    assert_eq!(v.counted(|c| c.strangers), strangers + said.len() as u64);
}

#[test]
fn a_source_address_means_nothing() {
    let mut v = Victim::connected(5);
    // the peer's own bytes, from the attacker's address: the answer goes where the peer published that it is
    v.gets(&ping(5, 2, 1));
    let said = v.says();
    assert!(bytes_to(&said, addr(2)) > 0);
    assert_eq!(bytes_to(&said, anybody()), 0);
    assert_eq!(v.engine.paths()[0].remote, addr(2));
}

#[test]
fn old_datagrams_with_a_bit_turned_accuse_no_rail() {
    let mut v = Victim::connected(5);
    let spoofed = addr(2);
    let damaged = |v: &mut Victim, bytes: &[u8], byte: usize| {
        let mut b = bytes.to_vec();
        b[byte] ^= 4;
        v.engine.handle_datagram(RailId(0), spoofed, &b, v.now);
    };
    v.gets(&ping(5, 400, 1));
    let (old, before) = (ping(5, 400, 1), v.counted(|c| c.replays));
    // the number that arrived, others that cannot be under way, another path or epoch: whatever is damaged beside them
    for byte in (10..24).chain([24, 30, PACKET_HEADER_BYTES, old.len() - 1]).filter(|&b| b != 16) {
        damaged(&mut v, &old, byte);
    }
    let counted = |v: &Victim| (v.counted(|c| c.corrupt), v.counted(|c| c.replays) - before);
    assert_eq!(counted(&v), (0, 17));
    // and what the peer may be sending just now is evidence
    damaged(&mut v, &ping(5, 401, 1), PACKET_HEADER_BYTES);
    assert_eq!(counted(&v), (1, 17));
}

#[test]
fn an_answer_is_no_longer_than_its_question() {
    let mut v = Victim::connected(5);
    let q = ping(5, 2, 0);
    v.gets(&q);
    let pongs: usize = bytes_to(&v.says(), addr(2));
    assert!(pongs <= q.len(), "{pongs} bytes for {}", q.len());
}

#[test]
fn a_repeated_packet_is_no_sign_of_life() {
    let mut v = Victim::connected(5);
    let q = ping(5, 2, 1);
    v.gets(&q);
    v.says();
    for _ in 0..100 {
        v.now = v.now + Duration::from_millis(50);
        v.gets(&q);
        v.says();
    }
    assert_eq!(v.counted(|c| c.partitions), 1, "who only repeats an old packet is not the peer");
}

#[test]
fn a_hello_from_nowhere_gets_its_answer_and_no_more() {
    let mut v = Victim::new();
    let from = published(Token([3; 16]), 77);
    v.gets(&hello(from, 3, 0, 1));
    let said = v.says_within(Duration::from_secs(5));
    let back = bytes_to(&said, addr(77));
    assert!(back > 0 && back <= HELLO_BYTES, "{back} bytes for {HELLO_BYTES}");
    assert_eq!(v.opened, [], "and no connection");
}

#[test]
fn a_connection_that_lies_about_its_address_is_refused() {
    let mut v = Victim::new();
    let s = v.engine.stream_accepted(RailId(0), anybody(), v.now);
    let bytes = hello(published(Token([3; 16]), 77), 3, 2, 1);
    let mut w = Window::default();
    assert!(v.engine.stream_rx_window(s, &mut w));
    // SAFETY: the engine has just given this piece out for reading into.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), w.pieces()[0].ptr, bytes.len()) };
    v.engine.stream_rx_done(s, bytes.len(), v.now);
    let said = v.says_within(Duration::from_secs(5));
    assert_eq!((bytes_to(&said, addr(77)), v.opened.len(), v.closed.len()), (0, 0, 1));
}

#[test]
fn a_flood_of_invented_processes_fills_a_bounded_list_that_empties_itself() {
    let mut v = Victim::new();
    let invented = |n: u32| {
        let mut token = [0xaa; 16];
        token[..4].copy_from_slice(&n.to_le_bytes());
        published(Token(token), 77)
    };
    for n in 0..5000 {
        v.gets(&hello(invented(n), 3, 0, 1));
    }
    let most = v.engine.paths().len();
    assert!(most <= 1024, "{most} processes that nobody has seen");
    let refused = v.counted(|c| c.strangers);
    assert!(refused >= 3900, "the rest were refused and counted: {refused}");
    // a real one that comes later finds room, and the list does not grow
    v.says_within(Duration::from_secs(3));
    v.gets(&hello(published(PEER, 2), 3, 0, 1));
    v.gets(&ping(3, 1, 1));
    let up = v.engine.paths().iter().filter(|p| p.health == Health::Up).count();
    assert_eq!((up, v.engine.paths().len()), (1, most));
    v.engine.check();
}

#[test]
fn an_accepted_epoch_without_a_word_in_it_is_given_up() {
    let mut v = Victim::new();
    v.engine.endpoint_of(&published(PEER, 2));
    v.gets(&hello(published(PEER, 2), 3, 0, 1));
    v.says_within(Duration::from_secs(3));
    v.gets(&ping(3, 1, 1));
    assert_ne!(v.path(), (Health::Up, 3), "the epoch is over");
    let said = v.says_within(Duration::from_secs(1));
    assert!(said.iter().any(|s| s.1.len() == HELLO_BYTES), "and a larger one is proposed");
}

#[test]
fn numbers_that_would_leave_no_larger_one_are_refused() {
    let mut v = Victim::connected(5);
    for (epoch, stream) in [(u32::MAX, 0), (EPOCH_MAX + 1, 0), (7, u64::MAX)] {
        v.gets(&hello(published(PEER, 2), epoch, stream, 9));
        v.says();
        assert_eq!(v.path(), (Health::Up, 5));
    }
}

#[test]
fn silent_connections_are_bounded_and_have_a_deadline() {
    let mut v = Victim::connected(5);
    let mut strays = Vec::new();
    for _ in 0..10_000 {
        strays.push(v.engine.stream_accepted(RailId(0), anybody(), v.now));
        v.says();
    }
    let closed = |v: &Victim| v.closed.iter().filter(|s| strays.binary_search(s).is_ok()).count();
    assert_eq!(closed(&v), 10_000 - 128, "the oldest makes room for the next");
    v.says_within(Duration::from_secs(3));
    assert_eq!(closed(&v), 10_000, "the rest had their time");
    assert_eq!(v.path(), (Health::Up, 5));
}

// ---- one-sided operations --------------------------------------------------------------------------------------

/// Bytes of a large write or read, in fragments of [`GRANULE`].
const LARGE: usize = 20_000;
const GRANULE: usize = 4096;
const RIGHT: u8 = 0x11;
const WRONG: u8 = 0xee;

impl Victim {
    /// A packet of the peer's with one frame arrives.
    fn frame(&mut self, h: FrameHeader, payload: &[u8]) {
        let mut b = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES];
        FrameHeader { len: payload.len() as u32, ..h }.write(&mut b[PACKET_HEADER_BYTES..]);
        b.extend_from_slice(payload);
        self.packets += 1;
        let header = PacketHeader {
            cid: SessionKeys::derive(&PEER, &VICTIM).cid_out,
            kind: PacketKind::Data,
            path: PATH,
            epoch: 5,
            number: self.packets,
            flags: 0,
            entries: 0,
            coverage: Coverage::Full,
        };
        header.seal(&mut b);
        self.gets(&b);
        self.engine.check();
    }

    /// The peer's next message is this order.
    fn order(&mut self, order: Order, pieces: &[OrderPiece]) {
        let bytes = order.to_bytes(pieces, 0);
        let h = FrameHeader {
            flags: flags::ONE_SIDED,
            seq: self.messages,
            total: bytes.len() as u64,
            x: GRANULE as u32,
            ..FrameHeader::new(FrameType::Eager)
        };
        self.messages += 1;
        self.frame(h, &bytes);
    }

    /// The peer orders a write of [`LARGE`] bytes at the beginning of a region.
    fn order_write(&mut self, id: u64, key: u64) {
        let order = Order { total: LARGE as u64, ..Order::new(OrderKind::WriteMessage, id) };
        self.order(order, &[OrderPiece { addr: 0, len: LARGE as u64, key }]);
    }

    /// The peer announces a message beside the order `id`. Its number.
    fn announce(&mut self, id: u64, answers_a_read: bool) -> u64 {
        let more = if answers_a_read { flags::CQ_DATA } else { 0 };
        let h = FrameHeader {
            flags: flags::ONE_SIDED | flags::TAGGED | more,
            seq: self.messages,
            a: id,
            total: LARGE as u64,
            x: GRANULE as u32,
            ..FrameHeader::new(FrameType::Rts)
        };
        self.messages += 1;
        self.frame(h, &[]);
        self.messages - 1
    }

    /// Fragments of message `seq` arrive.
    fn fragments(&mut self, seq: u64, which: impl Iterator<Item = usize>, byte: u8) {
        for n in which {
            let at = n * GRANULE;
            let h = FrameHeader { seq, a: at as u64, ..FrameHeader::new(FrameType::Frag) };
            self.frame(h, &vec![byte; GRANULE.min(LARGE - at)]);
        }
    }

    /// Makes memory known under a key, for reading and writing.
    fn region(&mut self, key: u64, memory: &mut [u8]) {
        let pieces = [IoVec::from_mut(memory)];
        let region = Region { domain: 0, key, pieces: &pieces, origin: 0, readable: true, writable: true };
        // SAFETY: the memory of the tests lives longer than the engine, or until it is unregistered.
        unsafe { self.engine.register(&region) }.expect("the key is free");
    }

    /// Reads [`LARGE`] bytes of the peer's memory. The ids of operations count from 1.
    fn read(&mut self, into: &mut [u8], context: usize) {
        let dest = self.engine.endpoint_of(&published(PEER, 2));
        let (iov, remote) = ([IoVec::from_mut(into)], [RemotePiece { addr: 0, len: LARGE, key: 1 }]);
        let op = RmaOp {
            ep: self.ep,
            dest,
            read: true,
            iov: &iov,
            remote: &remote,
            data: None,
            context,
            completion: true,
            inject: false,
        };
        // SAFETY: the memory of the tests lives longer than the engine.
        unsafe { self.engine.rma(&op, self.now) }.expect("there is room");
    }

    fn completed(&mut self) -> Option<(CompletionKind, usize, Option<CompletionError>)> {
        self.engine.cq_pop(self.cq).map(|c| (c.kind, c.context, c.error))
    }
}

const ALL: std::ops::Range<usize> = 0..LARGE.div_ceil(GRANULE);

#[test]
fn two_messages_for_one_write_get_its_memory_once() {
    let mut memory = vec![0; LARGE];
    let mut v = Victim::connected(5);
    v.region(7, &mut memory);
    v.order_write(3, 7);
    let (first, second) = (v.announce(3, false), v.announce(3, false));
    v.fragments(second, 0..1, WRONG);
    v.fragments(first, ALL, RIGHT);
    assert!(memory.iter().all(|&b| b == RIGHT), "the write is there");
    // the region is closed, and its memory the application's again
    v.engine.unregister(0, 7, v.now);
    memory.fill(0);
    v.fragments(second, ALL, WRONG);
    assert!(memory.iter().all(|&b| b == 0), "nothing is written after the region is closed");
    assert!(v.counted(|c| c.malformed) > 0, "and the peer's fault is counted");
}

#[test]
fn a_repeated_order_id_takes_no_memory_from_the_first() {
    let (mut one, mut other) = (vec![0; LARGE], vec![0; LARGE]);
    let mut v = Victim::connected(5);
    v.region(7, &mut one);
    v.region(8, &mut other);
    v.order_write(3, 7);
    let first = v.announce(3, false);
    v.fragments(first, 0..2, RIGHT);
    v.order_write(3, 8);
    let second = v.announce(3, false);
    v.engine.unregister(0, 7, v.now);
    one.fill(0);
    v.fragments(first, ALL, WRONG);
    assert!(one.iter().all(|&b| b == 0), "closing a region takes its memory from the message that has it");
    v.fragments(second, ALL, WRONG);
    assert!(other.iter().all(|&b| b == 0), "an order whose id is taken is not carried out");
    // an id is free again when its order is over
    v.order_write(3, 8);
    let third = v.announce(3, false);
    v.fragments(third, ALL, RIGHT);
    assert!(other.iter().all(|&b| b == RIGHT));
}

#[test]
fn a_read_that_is_answered_by_two_messages_lands_once() {
    let mut memory = vec![0; LARGE];
    let mut v = Victim::connected(5);
    v.read(&mut memory, 77);
    let (first, second) = (v.announce(1, true), v.announce(1, true));
    v.fragments(second, 0..1, WRONG);
    v.fragments(first, ALL, RIGHT);
    assert!(memory.iter().all(|&b| b == RIGHT));
    assert_eq!(v.completed(), Some((CompletionKind::Read, 77, None)));
    memory.fill(0);
    v.fragments(second, ALL, WRONG);
    assert!(memory.iter().all(|&b| b == 0), "nothing is written after the completion");
    assert_eq!(v.completed(), None, "it completes once");
}

#[test]
fn a_read_that_is_answered_while_its_bytes_arrive_completes_with_the_last_of_them() {
    let mut memory = vec![0; LARGE];
    let mut v = Victim::connected(5);
    v.read(&mut memory, 77);
    let bytes = v.announce(1, true);
    v.fragments(bytes, 0..1, RIGHT);
    v.order(Order { form: Status::Done as u8, ..Order::new(OrderKind::Answer, 1) }, &[]);
    assert_eq!(v.completed(), None, "a second answer says nothing");
    v.fragments(bytes, ALL, RIGHT);
    assert!(memory.iter().all(|&b| b == RIGHT));
    assert_eq!(v.completed(), Some((CompletionKind::Read, 77, None)));
}

#[test]
fn a_read_that_is_refused_while_its_bytes_arrive_writes_no_more() {
    let mut memory = vec![0; LARGE];
    let mut v = Victim::connected(5);
    v.read(&mut memory, 77);
    let bytes = v.announce(1, true);
    v.fragments(bytes, 0..1, RIGHT);
    v.order(Order { form: Status::Key as u8, ..Order::new(OrderKind::Answer, 1) }, &[]);
    let (kind, context, error) = v.completed().expect("the read is over");
    assert_eq!((kind, context, error.is_some()), (CompletionKind::Read, 77, true));
    memory.fill(0);
    v.fragments(bytes, ALL, WRONG);
    assert!(memory.iter().all(|&b| b == 0), "nothing is written after the completion");
}

// ---- collective operations -------------------------------------------------------------------------------------

impl Victim {
    /// The tag of the collective messages that the victim sends now.
    fn collective_tag(&mut self) -> u64 {
        let said = self.says();
        let frames =
            said.iter().filter_map(|(_, bytes)| FrameHeader::parse(bytes.get(PACKET_HEADER_BYTES..)?).ok());
        let tags: Vec<u64> = frames.filter(|f| f.flags & flags::COLLECTIVE != 0).map(|f| f.a).collect();
        *tags.first().expect("a member says its number of the group")
    }
}

#[test]
fn a_member_that_says_again_and_again_that_it_has_no_group_is_remembered_once() {
    let mut v = Victim::connected(5);
    let peer = v.engine.endpoint_of(&published(PEER, 2));
    let own = v.engine.address(v.ep);
    let own = v.engine.endpoint_of(&own);
    let join = JoinOp { ep: v.ep, members: &[own, peer], cq: v.cq, context: 3 };
    v.engine.join(&join, v.now).expect("both are known");
    let failed = v.collective_tag() | 1 << 62;
    for _ in 0..100 {
        let h = FrameHeader {
            flags: flags::COLLECTIVE | flags::CQ_DATA,
            seq: v.messages,
            a: failed,
            b: 2,
            x: GRANULE as u32,
            ..FrameHeader::new(FrameType::Eager)
        };
        v.messages += 1;
        // this checks every invariant
        v.frame(h, &[]);
    }
    let peer = v.engine.endpoint_of(&published(PEER, 2)).peer;
    assert_eq!(v.engine.sequence(peer).1, 100, "all of them were taken");
}
