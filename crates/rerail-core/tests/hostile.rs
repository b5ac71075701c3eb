//! A process that is attacked: replayed, reflected, spoofed and invented handshakes, and what a peer may make it do.
//! Each test is one claim of `docs/security.md`. The engine is real; the world is the attacker.

mod alone;

use rerail_core::wire::frame::{FRAME_HEADER_BYTES, flags};
use rerail_core::wire::hello::{Accept, EPOCH_MAX, HELLO_BYTES, Hello};
use rerail_core::wire::onesided::{Order, OrderKind, OrderPiece, Status};
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PONG_ENTRY_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, PairKeys, PublicKey, Token};
use rerail_core::{
    Action, CloseReason, CompletionError, CompletionKind, CompletionLevel, Counters, CqId, Datagram, Engine,
    EpId, Health, Identity, IoVec, JoinOp, Locator, Options, PeerId, Protocol, RailId, Region, RemotePiece,
    RmaOp, SendOp, StreamId, Time, Window,
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

/// The public key behind a token.
fn key_of(token: Token) -> PublicKey {
    Identity::toy(token).public_key()
}

/// The keys of a process and the victim, on the side of the former.
fn keys_with(token: Token) -> PairKeys {
    Identity::toy(token).pair(&key_of(VICTIM)).expect("proper keys")
}

/// A hello of a process that does not know the victim's public key yet, or of a third one that does not have the keys
/// of the two.
fn hello(from: Address, epoch: u32, stream: u64, nonce: u8) -> [u8; HELLO_BYTES] {
    said(from, epoch, stream, nonce, None)
}

/// A hello that only the process can send that it names.
fn proved(from: Address, epoch: u32, stream: u64, nonce: u8) -> [u8; HELLO_BYTES] {
    let keys = keys_with(from.token);
    said(from, epoch, stream, nonce, Some(&keys))
}

fn said(from: Address, epoch: u32, stream: u64, nonce: u8, proof: Option<&PairKeys>) -> [u8; HELLO_BYTES] {
    let public_key = key_of(from.token);
    Hello { path: PATH, epoch, stream, lane: 0, nonce: [nonce; 16], from, public_key, session_key: None }
        .to_bytes(&VICTIM, proof)
}

/// The answer of the process that has these keys, in the name of the peer.
fn accept(keys: &PairKeys, epoch: u32, nonce: [u8; 16]) -> Vec<u8> {
    let public_key = key_of(PEER);
    Accept { path: PATH, epoch, stream: 0, lane: 0, nonce, public_key, session_key: None, answer: [0; 16] }
        .to_bytes(&PEER, &VICTIM, keys, None)
        .to_vec()
}

fn ping(epoch: u32, number: u64, room: usize) -> Vec<u8> {
    let mut b = vec![0; PACKET_HEADER_BYTES + room * PONG_ENTRY_BYTES];
    let cid = keys_with(PEER).cid_out;
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
        let (engine, cq, ep, now) = alone::engine(VICTIM, Options::default(), false);
        Self { engine, cq, ep, now, packets: 0, messages: 0, opened: vec![], closed: vec![] }
    }

    /// Connected with the peer in `epoch`, as the side that accepted.
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

    /// Bytes arrive on a stream.
    fn writes(&mut self, s: StreamId, bytes: &[u8]) {
        let mut w = Window::default();
        assert!(self.engine.stream_rx_window(s, &mut w));
        // SAFETY: the engine has just given this piece out for reading into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), w.pieces()[0].ptr, bytes.len()) };
        self.engine.stream_rx_done(s, bytes.len(), self.now);
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
    let old = proved(published(PEER, 2), 3, 0, 7);
    for _ in 0..50 {
        v.gets(&old);
    }
    let said = v.says();
    assert_eq!(v.path(), (Health::Up, 5), "the path stays in its epoch");
    assert_eq!(v.counted(|c| c.replays), before + 50);
    assert_eq!(bytes_to(&said, anybody()), 0, "its sender gets nothing");
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

/// The victim begins a handshake; returns the nonce of its hello, its epoch, and what it is under way with.
fn asks(v: &mut Victim) -> ([u8; 16], u32) {
    let dest = v.engine.endpoint_of(&published(PEER, 2));
    let op = SendOp {
        ep: EpId(0),
        dest,
        protocol: Protocol::Tagged,
        tag: 1,
        data: None,
        iov: &[],
        context: 1,
        completion: true,
        inject: false,
        level: CompletionLevel::Delivered,
    };
    // SAFETY: there is no memory.
    unsafe { v.engine.send(&op, v.now) }.expect("the send is taken");
    let said = v.says();
    let h = said.iter().find_map(|(_, b)| Hello::parse(b, &PEER).ok()).expect("it says hello");
    (h.nonce, h.epoch)
}

#[test]
fn a_replayed_accept_is_refused_because_it_answers_an_older_question() {
    let mut v = Victim::new();
    let (nonce, epoch) = asks(&mut v);
    // what the peer answered to earlier hellos, in the very epoch that is proposed now
    for old in 0..50 {
        assert_ne!([old; 16], nonce);
        v.gets(&accept(&keys_with(PEER), epoch, [old; 16]));
        assert_eq!(v.path().0, Health::Connecting);
    }
    assert_eq!(v.counted(|c| c.replays), 50);
    v.gets(&accept(&keys_with(PEER), epoch, nonce));
    assert_eq!(v.path(), (Health::Up, epoch));
}

/// A process that has every token, and its own key pair.
const THIRD: Token = Token([5; 16]);

#[test]
fn a_third_process_cannot_answer_in_anothers_name() {
    let mut v = Victim::new();
    let (nonce, epoch) = asks(&mut v);
    let third = Identity::toy(THIRD);
    let mut answers = vec![];
    for key in [third.public_key(), key_of(PEER)] {
        // its own key is not the one behind the peer's token; with the peer's it has not got what the two agree on
        let keys = third.pair(&key_of(VICTIM)).expect("proper keys");
        let a = Accept {
            path: PATH,
            epoch,
            stream: 0,
            lane: 0,
            nonce,
            public_key: key,
            session_key: None,
            answer: [0; 16],
        };
        answers.push(a.to_bytes(&PEER, &VICTIM, &keys, None).to_vec());
    }
    for a in answers {
        v.gets(&a);
        assert_eq!(v.path().0, Health::Connecting);
    }
    assert_eq!(v.counted(|c| c.strangers), 2);
}

#[test]
fn a_hello_in_anothers_name_ends_no_path_and_its_answer_is_for_that_one_only() {
    let mut v = Victim::connected(5);
    let downs = v.counted(|c| c.paths_down);
    for epoch in 6..56 {
        v.gets(&hello(published(PEER, 66), epoch, 0, epoch as u8));
        let own = keys_with(THIRD);
        v.gets(&said(published(PEER, 66), epoch, 0, epoch as u8, Some(&own)));
    }
    let said = v.says();
    assert_eq!((v.path(), v.counted(|c| c.paths_down)), ((Health::Up, 5), downs));
    assert_eq!(bytes_to(&said, addr(66)), 0, "the address in it is not that of the peer");
    // the peer's own hello takes effect
    v.gets(&proved(published(PEER, 2), 57, 0, 1));
    v.gets(&ping(57, 1, 1));
    // a path that failed proves itself first
    assert_eq!(v.path(), (Health::Probation, 57));
}

#[test]
fn a_hello_with_a_wrong_proof_is_a_strangers() {
    for known in [false, true] {
        let mut v = if known { Victim::connected(5) } else { Victim::new() };
        let before = v.counted(|c| c.strangers);
        // the keys that the third shares with the victim are not those of the peer
        v.gets(&said(published(PEER, 2), 6, 0, 1, Some(&keys_with(THIRD))));
        assert_eq!(v.counted(|c| c.strangers), before + 1, "{known}");
        assert_eq!(bytes_to(&v.says(), addr(2)), 0, "{known}: it is not answered");
    }
}

#[test]
fn a_token_speaks_only_with_the_public_key_that_it_is_the_hash_of() {
    for known in [false, true] {
        let mut v = if known { Victim::connected(5) } else { Victim::new() };
        let (before, paths) = (v.counted(|c| c.strangers), v.engine.paths().len());
        // the peer's name, the third's own key pair, and a proof that is right for that
        let (from, public_key) = (published(PEER, 66), key_of(THIRD));
        let h = Hello {
            path: PATH,
            epoch: 7,
            stream: 0,
            lane: 0,
            nonce: [1; 16],
            from,
            public_key,
            session_key: None,
        };
        v.gets(&h.to_bytes(&VICTIM, Some(&keys_with(THIRD))));
        assert_eq!(v.counted(|c| c.strangers), before + 1, "{known}");
        assert_eq!(v.engine.paths().len(), paths, "{known}: no process was made known");
        assert_eq!(bytes_to(&v.says(), addr(66)), 0, "{known}: it is not answered");
    }
}

#[test]
fn a_connection_in_anothers_name_carries_nothing() {
    for known in [false, true] {
        let mut v = if known { Victim::connected(5) } else { Victim::new() };
        // without a proof it gets a request for one, and is closed when none comes; with a false one it is closed at
        // once
        for proof in [None, Some(keys_with(THIRD))] {
            let s = v.engine.stream_accepted(RailId(0), anybody(), v.now);
            let from = published(PEER, 66);
            let hello = said(from, 7, 2, 1, proof.as_ref());
            v.writes(s, &hello);
            v.says_within(Duration::from_secs(3));
            assert!(v.closed.contains(&s), "{known}");
            assert!(v.engine.paths().iter().all(|p| p.streams == 0 || p.epoch.0 == 5), "nothing is attached");
        }
    }
}

#[test]
fn what_was_said_in_anothers_name_leaves_room_for_that_one() {
    let mut v = Victim::new();
    for epoch in [3, 1 << 20, EPOCH_MAX] {
        v.gets(&hello(published(PEER, 66), epoch, 0, 1));
    }
    v.says();
    // the address vector gives the peer's address
    v.engine.endpoint_of(&published(PEER, 2));
    assert_eq!(v.engine.paths()[0].remote, addr(2));
    v.gets(&proved(published(PEER, 2), 5, 0, 1));
    v.gets(&ping(5, 1, 1));
    assert_eq!(v.path(), (Health::Up, 5));
}

#[test]
fn what_a_process_said_cannot_be_sent_back_to_it() {
    let mut v = Victim::connected(5);
    v.gets(&proved(published(PEER, 2), 3, 0, 7));
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
    assert_eq!(v.counted(|c| c.partitions), 1, "a repeated old packet is no sign of the peer");
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
    // the keys are its own, the address is not
    v.writes(s, &proved(published(Token([3; 16]), 77), 3, 2, 1));
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
    assert!(most <= 1024, "{most} processes that were never proved");
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
        v.gets(&proved(published(PEER, 2), epoch, stream, 9));
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
    /// A packet of the peer's with one frame arrives, and every invariant holds.
    fn frame(&mut self, h: FrameHeader, payload: &[u8]) {
        self.unchecked(h, payload);
        self.engine.check();
    }

    /// The number of the peer.
    fn peer(&mut self) -> PeerId {
        self.engine.endpoint_of(&published(PEER, 2)).peer
    }

    /// A packet of the peer's with one frame arrives.
    fn unchecked(&mut self, h: FrameHeader, payload: &[u8]) {
        let mut b = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES];
        FrameHeader { len: payload.len() as u32, ..h }.write(&mut b[PACKET_HEADER_BYTES..]);
        b.extend_from_slice(payload);
        self.packets += 1;
        let header = PacketHeader {
            cid: keys_with(PEER).cid_out,
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

impl Victim {
    /// The same order again and again, as the peer's next messages.
    fn orders(&mut self, order: Order, piece: OrderPiece, payload: usize, times: usize) {
        let mut bytes = order.to_bytes(&[piece], payload);
        bytes.resize(bytes.len() + payload, RIGHT);
        for _ in 0..times {
            let seq = self.messages;
            self.messages += 1;
            self.repeat(seq, &bytes);
        }
        self.engine.check();
    }

    /// Order `seq` comes, perhaps not for the first time.
    fn repeat(&mut self, seq: u64, bytes: &[u8]) {
        let h = FrameHeader {
            flags: flags::ONE_SIDED,
            seq,
            total: bytes.len() as u64,
            x: GRANULE as u32,
            ..FrameHeader::new(FrameType::Eager)
        };
        self.unchecked(h, bytes);
    }
}

const MIB: usize = 1 << 20;

#[test]
fn small_reads_keep_bounded_copies() {
    let mut memory = vec![0; 8192];
    let mut v = Victim::connected(5);
    v.region(7, &mut memory);
    let order = Order { total: 8192, ..Order::new(OrderKind::Read, 1) };
    let times = 10_000;
    v.orders(order, OrderPiece { addr: 0, len: 8192, key: 7 }, 0, times);
    let (kept, copied, _) = v.engine.served_of_peer_max();
    assert!(copied <= 9 * MIB, "{copied} bytes of copies for a peer that acknowledges nothing");
    assert!(kept < 12 * MIB, "{kept} bytes in all");
    // closing the region ends the reads that are served in place, or copies what they read within another bound
    v.engine.unregister(0, 7, v.now);
    let (_, copied, _) = v.engine.served_of_peer_max();
    let errors = 32 * times;
    assert!(copied > 60 * MIB && copied <= 64 * MIB + errors, "{copied} bytes of copies");
    v.engine.check();
}

#[test]
fn orders_wait_until_their_peer_acknowledges_answers() {
    let mut memory = vec![0; 16384];
    let mut v = Victim::connected(5);
    v.region(7, &mut memory);
    let read = rerail_core::atomic::op::ATOMIC_READ;
    let datatype = rerail_core::atomic::datatype::UINT64;
    // no operands, 16 KiB of former values
    let order = Order { total: 16384, datatype, op: read, form: 1, ..Order::new(OrderKind::Atomic, 1) };
    v.orders(order, OrderPiece { addr: 0, len: 16384, key: 7 }, 0, 2500);
    let (kept, _, waiting) = v.engine.served_of_peer_max();
    assert!(kept <= 37 * MIB, "{kept} bytes are kept for a peer that acknowledges nothing");
    assert!(waiting > 0, "the rest of its orders wait");
    // the peer has all of them, or wants none: what waited is carried out
    let peer = v.peer();
    let sent = v.engine.sequence(peer).0;
    for seq in 0..sent {
        v.unchecked(FrameHeader { seq, ..FrameHeader::new(FrameType::Reject) }, &[]);
    }
    v.engine.check();
    let (_, _, waiting) = v.engine.served_of_peer_max();
    assert_eq!(waiting, 0, "nothing waits any more");
    assert_eq!(v.counted(|c| c.orders_received), 2500);
}

#[test]
fn orders_behind_a_gap_are_bounded_and_taken_when_it_is_closed() {
    let mut memory = vec![0; 8192];
    let mut v = Victim::connected(5);
    v.region(7, &mut memory);
    let piece = OrderPiece { addr: 0, len: 8192, key: 7 };
    let order = Order { total: 8192, ..Order::new(OrderKind::Write, 1) };
    let (first, times) = (v.messages, 9000);
    v.messages += 1;
    v.orders(order, piece, 8192, times);
    let (_, _, waiting) = v.engine.served_of_peer_max();
    assert!(waiting <= 64 * MIB, "{waiting} bytes of orders wait for their turn");
    assert!(v.counted(|c| c.refused) > 0, "the rest is not taken, and so not acknowledged");
    // announced ones are fetched in their turn only
    let large = 60_000;
    for _ in 0..200 {
        let (seq, total, x) = (v.messages, large, GRANULE as u32);
        v.messages += 1;
        let h = FrameHeader { flags: flags::ONE_SIDED, seq, total, x, ..FrameHeader::new(FrameType::Rts) };
        v.unchecked(h, &[]);
    }
    assert!(v.engine.served_of_peer_max().2 <= 64 * MIB);
    let mut bytes = order.to_bytes(&[piece], 8192);
    bytes.resize(bytes.len() + 8192, RIGHT);
    v.repeat(first, &bytes);
    // a correct peer sends again what was not acknowledged
    for seq in first + 1..=first + times as u64 {
        v.repeat(seq, &bytes);
    }
    assert_eq!(v.counted(|c| c.orders_received), times as u64 + 1, "each was carried out once");
    v.engine.check();
}

#[test]
fn announced_orders_are_fetched_within_a_bound() {
    let mut v = Victim::connected(5);
    // the first is missing: none of them is the next
    v.messages += 1;
    for _ in 0..1000 {
        let (seq, total, x) = (v.messages, 60_000, GRANULE as u32);
        v.messages += 1;
        let h = FrameHeader { flags: flags::ONE_SIDED, seq, total, x, ..FrameHeader::new(FrameType::Rts) };
        v.unchecked(h, &[]);
    }
    let (_, _, waiting) = v.engine.served_of_peer_max();
    assert!(waiting <= 5 * MIB, "{waiting} bytes for orders of which nothing is here");
    v.engine.check();
}

#[test]
fn an_announced_order_beyond_the_bound_is_fetched_in_its_turn() {
    let mut memory = vec![0; 8192];
    let mut v = Victim::connected(5);
    v.region(7, &mut memory);
    let piece = OrderPiece { addr: 0, len: 8192, key: 7 };
    let write = Order { total: 8192, ..Order::new(OrderKind::Write, 1) };
    // more than may be fetched waits behind a gap, and an announced order behind that
    let first = v.messages;
    v.messages += 1;
    v.orders(write, piece, 8192, 600);
    let (seq, total, x) = (v.messages, LARGE as u64, GRANULE as u32);
    v.messages += 1;
    let h = FrameHeader { flags: flags::ONE_SIDED, seq, total, x, ..FrameHeader::new(FrameType::Rts) };
    v.frame(h, &[]);
    v.fragments(seq, ALL, WRONG);
    let (_, _, waiting) = v.engine.served_of_peer_max();
    assert!(waiting < 601 * (8192 + 512), "{waiting} bytes: it was not fetched");
    let mut bytes = write.to_bytes(&[piece], 8192);
    bytes.resize(bytes.len() + 8192, RIGHT);
    v.repeat(first, &bytes);
    assert_eq!(v.counted(|c| c.orders_received), 601);
    v.fragments(seq, ALL, WRONG);
    assert_eq!(v.counted(|c| c.malformed), 1, "it was carried out, and is no order");
    assert_eq!(v.engine.served_of_peer_max().2, 0, "nothing waits any more");
}

#[test]
fn answers_are_taken_while_orders_wait() {
    let mut memory = vec![0; 16384];
    let mut v = Victim::connected(5);
    v.region(7, &mut memory);
    let mut results = [(); 3].map(|()| vec![0; LARGE]);
    results.iter_mut().zip(77..).for_each(|(into, context)| v.read(into, context));
    let (op, datatype) = (rerail_core::atomic::op::ATOMIC_READ, rerail_core::atomic::datatype::UINT64);
    let order = Order { total: 16384, datatype, op, form: 1, ..Order::new(OrderKind::Atomic, 1) };
    let mut piece = OrderPiece { addr: 0, len: 16384, key: 7 };
    while v.engine.served_of_peer_max().0 <= 36 * MIB {
        v.orders(order, piece, 0, 1);
    }
    // the second answer first, so that it waits for the other
    let next = v.messages;
    let answer = |id| Order { form: Status::Key as u8, ..Order::new(OrderKind::Answer, id) }.to_bytes(&[], 0);
    v.repeat(next + 1, &answer(2));
    v.repeat(next, &answer(1));
    let mut ended = [v.completed(), v.completed()].map(|c| c.map(|c| c.1));
    ended.sort_unstable();
    assert_eq!(ended, [Some(77), Some(78)], "a peer that is held up can still answer");
    // as many orders as may wait, behind a gap that the third answer closes
    v.messages += 3;
    let write = Order { total: 8192, ..Order::new(OrderKind::Write, 1) };
    piece.len = 8192;
    while v.counted(|c| c.refused) == 0 {
        v.orders(write, piece, 8192, 100);
    }
    // to the last byte, with orders as short as an answer
    let refused = v.counted(|c| c.refused);
    while v.counted(|c| c.refused) == refused {
        v.repeat(v.messages, &Order::new(OrderKind::Read, 1).to_bytes(&[], 0));
        v.messages += 1;
    }
    v.repeat(next + 2, &answer(3));
    assert_eq!(v.completed().map(|c| c.1), Some(79));
    assert!(v.engine.served_of_peer_max().2 > 60 * MIB, "its orders wait");
    v.engine.check();
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
