//! A peer that lies (hazard H30): it holds every key, keeps the protocol byte by byte, and chooses numbers that are not its own. One
//! engine is real; the story plays the peer.

use super::Story;
use crate::world::one_lane;
use rerail_core::wire::frame::{FRAME_HEADER_BYTES, flags};
use rerail_core::wire::hello::Hello;
use rerail_core::wire::onesided::{Order, OrderKind, OrderPiece};
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, PairKeys, Token};
use rerail_core::{
    CompletionKind, CqId, Engine, EngineConfig, EpId, Identity, IoVec, Locator, RailDesc, RailId, Region,
    RemotePiece, RmaOp, Time,
};

const OWN: Token = Token([9; 16]);
const LIAR: Token = Token([1; 16]);
const EPOCH: u32 = 5;
/// Bytes of a large write or read, in fragments of [`GRANULE`].
const LARGE: usize = 20_000;
const GRANULE: usize = 4096;
/// Bytes of a read whose answer may be a copy.
const SMALL: usize = 8192;
/// What copies of one peer's answers may take, and orders of its that wait.
const COPIES_MAX: usize = 9 << 20;
const WAITING_MAX: usize = 64 << 20;
const RIGHT: u8 = 0x11;
const WRONG: u8 = 0xee;

/// The process that is lied to.
struct Victim {
    engine: Engine,
    cq: CqId,
    ep: EpId,
    now: Time,
    /// Packets and messages of the liar so far.
    packets: u64,
    messages: u64,
}

fn addr(last: u8) -> Locator {
    Locator::ip([10, 0, 0, last].into(), 4000)
}

/// The keys of the two, on the liar's side.
fn keys() -> PairKeys {
    Identity::toy(LIAR).pair(&Identity::toy(OWN).public_key()).expect("proper keys")
}

fn published() -> Address {
    Address { token: LIAR, endpoint: 0, encrypts: false, rails: vec![addr(2)] }
}

impl Victim {
    /// Connected with the liar, as the side that was asked.
    fn new(story: &Story) -> Self {
        let rail =
            RailDesc { speed_mbps: 1000, ..RailDesc::ip("eth0", ([10, 0, 0, 1], 4000).into(), 24, 1500) };
        let config = EngineConfig {
            identity: Identity::toy(OWN),
            rails: vec![rail],
            options: one_lane(),
            encrypts: false,
            seed: 1,
            host: 1,
            boot: 1,
            remedies: story.remedies,
        };
        let now = Time::from_ns(1_000_000_000);
        let mut engine = Engine::new(config, now).expect("a valid configuration");
        let cq = engine.open_cq(16);
        let ep = engine.open_endpoint(cq, cq).expect("the first");
        let mut v = Self { engine, cq, ep, now, packets: 0, messages: 0 };
        v.engine.endpoint_of(&published());
        let (nonce, public_key) = ([1; 16], Identity::toy(LIAR).public_key());
        let from = published();
        let hello =
            Hello { path: 0, epoch: EPOCH, stream: 0, lane: 0, nonce, from, public_key, session_key: None };
        v.gets(&hello.to_bytes(&OWN, None));
        v
    }

    fn gets(&mut self, bytes: &[u8]) {
        self.engine.handle_datagram(RailId(0), addr(2), bytes, self.now);
    }

    /// A packet with one frame.
    fn frame(&mut self, h: FrameHeader, payload: &[u8]) {
        let mut b = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES];
        FrameHeader { len: payload.len() as u32, ..h }.write(&mut b[PACKET_HEADER_BYTES..]);
        b.extend_from_slice(payload);
        self.packets += 1;
        let header = PacketHeader {
            cid: keys().cid_out,
            kind: PacketKind::Data,
            path: 0,
            epoch: EPOCH,
            number: self.packets,
            flags: 0,
            entries: 0,
            coverage: Coverage::Full,
        };
        header.seal(&mut b);
        self.gets(&b);
    }

    /// The liar's next message, announced or with all its bytes. Its number.
    fn message(&mut self, h: FrameHeader, payload: &[u8]) -> u64 {
        let seq = self.messages;
        self.messages += 1;
        self.frame(FrameHeader { seq, x: GRANULE as u32, ..h }, payload);
        seq
    }

    fn order_write(&mut self, id: u64, key: u64) {
        let order = Order { total: LARGE as u64, ..Order::new(OrderKind::WriteMessage, id) };
        self.order(&order.to_bytes(&[OrderPiece { addr: 0, len: LARGE as u64, key }], 0));
    }

    /// The liar's next message is this order.
    fn order(&mut self, bytes: &[u8]) {
        let total = bytes.len() as u64;
        let h = FrameHeader { flags: flags::ONE_SIDED, total, ..FrameHeader::new(FrameType::Eager) };
        self.message(h, bytes);
    }

    /// Announces the bytes of a write, or of a read.
    fn announce(&mut self, id: u64, answers_a_read: bool) -> u64 {
        let more = if answers_a_read { flags::CQ_DATA } else { 0 };
        let flags = flags::ONE_SIDED | flags::TAGGED | more;
        let h = FrameHeader { flags, a: id, total: LARGE as u64, ..FrameHeader::new(FrameType::Rts) };
        self.message(h, &[])
    }

    fn fragments(&mut self, seq: u64, byte: u8) {
        for at in (0..LARGE).step_by(GRANULE) {
            let h = FrameHeader { seq, a: at as u64, ..FrameHeader::new(FrameType::Frag) };
            self.frame(h, &vec![byte; GRANULE.min(LARGE - at)]);
        }
    }
}

/// Two messages for one write, one order id for two writes, two answers to one read: nothing lands after the region is closed or the
/// read has completed.
pub fn repeated_ids(story: &Story) {
    let closed = |memory: &[u8]| {
        assert!(memory.iter().all(|&b| b == 0), "fenced: a peer wrote to memory that was closed");
    };
    let mut memory = vec![0; LARGE];
    let mut v = Victim::new(story);
    let pieces = [IoVec::from_mut(&mut memory)];
    let region = Region { domain: 0, key: 7, pieces: &pieces, origin: 0, readable: true, writable: true };
    // SAFETY: the memory outlives the engine.
    unsafe { v.engine.register(&region) }.expect("the key is free");
    v.order_write(3, 7);
    let twins = [v.announce(3, false), v.announce(3, false)];
    v.fragments(twins[0], RIGHT);
    assert!(memory.iter().all(|&b| b == RIGHT), "live: the first message is not there");
    v.engine.unregister(0, 7, v.now);
    memory.fill(0);
    v.fragments(twins[1], WRONG);
    closed(&memory);

    let mut v = Victim::new(story);
    let mut other = vec![0; LARGE];
    for (key, memory) in [(7, &mut memory), (8, &mut other)] {
        let pieces = [IoVec::from_mut(memory)];
        let region = Region { domain: 0, key, pieces: &pieces, origin: 0, readable: true, writable: true };
        // SAFETY: as above.
        unsafe { v.engine.register(&region) }.expect("the key is free");
    }
    v.order_write(3, 7);
    let first = v.announce(3, false);
    v.order_write(3, 8);
    v.engine.unregister(0, 7, v.now);
    v.fragments(first, WRONG);
    closed(&memory);

    let mut v = Victim::new(story);
    let dest = v.engine.endpoint_of(&published());
    let (iov, remote) = ([IoVec::from_mut(&mut memory)], [RemotePiece { addr: 0, len: LARGE, key: 1 }]);
    let op = RmaOp {
        ep: v.ep,
        dest,
        read: true,
        iov: &iov,
        remote: &remote,
        data: None,
        context: 0,
        completion: true,
        inject: false,
    };
    // SAFETY: as above.
    unsafe { v.engine.rma(&op, v.now) }.expect("there is room");
    // ids of operations count from 1
    let twins = [v.announce(1, true), v.announce(1, true)];
    v.fragments(twins[0], RIGHT);
    let done = v.engine.cq_pop(v.cq).map(|c| (c.kind, c.error));
    assert_eq!(done, Some((CompletionKind::Read, None)), "live: the read is not done");
    memory.fill(0);
    v.fragments(twins[1], WRONG);
    closed(&memory);
}

/// More reads of 8 KiB than there is room for copies, by a peer that acknowledges nothing, and a flood of orders behind a gap: what is
/// kept has its bounds.
pub fn greedy_orders(story: &Story) {
    let mut memory = vec![0; SMALL];
    let mut v = Victim::new(story);
    let pieces = [IoVec::from_mut(&mut memory)];
    let region = Region { domain: 0, key: 7, pieces: &pieces, origin: 0, readable: true, writable: true };
    // SAFETY: the memory outlives the engine.
    unsafe { v.engine.register(&region) }.expect("the key is free");
    let piece = OrderPiece { addr: 0, len: SMALL as u64, key: 7 };
    for id in 0..(COPIES_MAX / SMALL + 500) as u64 {
        let order = Order { total: SMALL as u64, ..Order::new(OrderKind::Read, id) };
        v.order(&order.to_bytes(&[piece], 0));
    }
    let (_, copied, _) = v.engine.served_of_peer_max();
    assert!(copied <= COPIES_MAX, "bounded: a peer that reads keeps {copied} bytes of copies here");
    // one message is missing, and what lies behind it waits
    v.messages += 1;
    let order = Order { total: SMALL as u64, ..Order::new(OrderKind::Write, 5000) };
    let mut bytes = order.to_bytes(&[piece], SMALL);
    bytes.resize(bytes.len() + SMALL, RIGHT);
    for _ in 0..WAITING_MAX / SMALL + 500 {
        v.order(&bytes);
    }
    let (_, _, waiting) = v.engine.served_of_peer_max();
    assert!(waiting <= WAITING_MAX, "bounded: {waiting} bytes of a peer's orders wait here");
}
