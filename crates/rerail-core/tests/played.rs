//! One engine, and a peer that the test plays: moments that two honest engines reach too seldom.

mod alone;

use rerail_core::wire::hello::Hello;
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, write_header};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, SessionKeys, Token};
use rerail_core::{
    CloseReason, CqId, Datagram, EndpointId, Engine, EpId, IoVec, Locator, Options, Place, Protocol,
    RailDesc, RailId, RecvOp, SendOp, StreamId, Time, Window,
};
use std::time::Duration;

const OWN: Token = Token([9; 16]);
const PEER: Token = Token([1; 16]);
const EPOCH: u32 = 103;
const FRAME_HEADER_BYTES: usize = 48;

fn addr(last: u8) -> Locator {
    Locator::ip([10, 0, 0, last].into(), 4000)
}

fn published() -> Address {
    Address { token: PEER, endpoint: 0, encrypts: false, rails: vec![addr(2)] }
}

fn hello(stream: u64) -> Vec<u8> {
    Hello { path: 0, epoch: EPOCH, stream, nonce: [1; 16], from: published(), public_key: None }
        .to_bytes(&OWN)
        .to_vec()
}

struct Process {
    engine: Engine,
    cq: CqId,
    peer: EndpointId,
    now: Time,
    number: u64,
}

impl Process {
    fn new() -> Self {
        Self::with(alone::engine(OWN, Options::default(), None))
    }

    fn with((mut engine, cq, _, now): (Engine, CqId, EpId, Time)) -> Self {
        let peer = engine.endpoint_of(&published());
        let mut r = Self { engine, cq, peer, now, number: 0 };
        r.gets(&hello(0));
        r
    }

    /// On a rail of an adapter, with a stream of it.
    fn on_an_adapter() -> (Self, StreamId) {
        let rail = RailDesc { places_max: 4, ..alone::rail() };
        let mut p = Self::with(alone::engine_on(rail, OWN, Options::default(), None));
        let stream = p.attach();
        (p, stream)
    }

    /// A stream of the peer is attached.
    fn attach(&mut self) -> StreamId {
        // something in the epoch: the path is in use
        let eager = FrameHeader { seq: 0, total: 5, len: 5, x: 65_536, ..FrameHeader::new(FrameType::Eager) };
        self.frame(eager, b"hello");
        self.says();
        let stream = self.engine.stream_accepted(RailId(0), addr(2).with_service(5000), self.now);
        self.read(stream, &hello(2));
        while !written(self, stream, usize::MAX).is_empty() {}
        stream
    }

    /// Bytes come in on a stream.
    fn read(&mut self, stream: StreamId, bytes: &[u8]) {
        let mut w = Window::default();
        assert!(self.engine.stream_rx_window(stream, &mut w));
        // SAFETY: the engine has just given this piece out for reading into, and it has room for a whole frame.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), w.pieces()[0].ptr, bytes.len()) };
        self.engine.stream_rx_done(stream, bytes.len(), self.now);
    }

    /// A frame without payload comes in on a stream.
    fn stream_frame(&mut self, stream: StreamId, number: u64, h: FrameHeader) {
        let mut b = [0; STREAM_HEADER_BYTES];
        write_header(&mut b, number, &h, Coverage::Full);
        self.read(stream, &[&b[..], &Trailer { crc: 0, valid: true }.to_bytes()].concat());
    }

    /// A send of `message`, which must stay where it is until the test is over.
    fn sends(&mut self, message: &[u8]) {
        let op = SendOp {
            ep: EpId(0),
            dest: self.peer,
            protocol: Protocol::Tagged,
            tag: 1,
            data: None,
            iov: &[IoVec::from_ref(message)],
            context: 1,
            completion: true,
            inject: false,
            delivery: true,
        };
        // SAFETY: the message outlives the engine's use of it.
        unsafe { self.engine.send(&op, self.now) }.expect("the send is taken");
    }

    fn gets(&mut self, bytes: &[u8]) {
        self.engine.handle_datagram(RailId(0), addr(2), bytes, self.now);
    }

    /// A packet with one frame arrives.
    fn frame(&mut self, h: FrameHeader, payload: &[u8]) {
        let mut b = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES];
        h.write(&mut b[PACKET_HEADER_BYTES..]);
        b.extend_from_slice(payload);
        let cid = SessionKeys::derive(&PEER, &OWN).cid_out;
        let (kind, number, coverage) = (PacketKind::Data, self.number, Coverage::Full);
        PacketHeader { cid, kind, path: 0, epoch: EPOCH, number, flags: 0, entries: 0, coverage }
            .seal(&mut b);
        self.number += 1;
        self.gets(&b);
    }

    /// Frames that are said within a while, by kind, sequence number and what is granted.
    fn says(&mut self) -> Vec<(FrameType, u64, u64)> {
        let mut all = vec![];
        let mut out = Datagram::default();
        for _ in 0..20 {
            self.now = self.now + Duration::from_millis(1);
            self.engine.handle_timeout(self.now);
            while self.engine.poll_action().is_some() {}
            while self.engine.poll_datagram(self.now, &mut out) {
                let Ok((h, mut rest)) = PacketHeader::parse(&out.bytes) else { continue };
                while h.kind == PacketKind::Data && !rest.is_empty() {
                    let f = FrameHeader::parse(rest).expect("our own frame");
                    all.push((f.kind, f.seq, f.total));
                    rest = &rest[FRAME_HEADER_BYTES + f.len as usize..];
                }
            }
        }
        all
    }
}

/// The message was sent over a stream that is gone, its acknowledgement never came, and datagrams are too short for it. The receiver,
/// which has had it all along, must say so, or the sender waits for a grant for ever.
#[test]
fn who_announces_what_has_arrived_in_full_is_told_so() {
    let mut r = Process::new();
    let eager = FrameHeader { seq: 0, total: 5, len: 5, x: 65_536, ..FrameHeader::new(FrameType::Eager) };
    r.frame(eager, b"hello");
    assert!(!r.says().iter().any(|f| f.0 == FrameType::Cts), "nobody has asked for a grant");
    // no receive is posted: the payload waits here
    r.frame(FrameHeader { kind: FrameType::Rts, len: 0, ..eager }, b"");
    let said = r.says();
    assert!(said.contains(&(FrameType::Cts, 0, 0)), "granted nothing more, so it is done: {said:?}");
}

/// The bytes that a stream would write now, at most so many.
fn written(p: &mut Process, stream: StreamId, most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut w = Window::default();
    w.clear();
    if p.engine.stream_tx_window(stream, &mut w, p.now) {
        for piece in w.pieces() {
            // SAFETY: the engine has just given these pieces out for writing from.
            all.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) });
        }
        all.truncate(most);
        p.engine.stream_tx_done(stream, all.len(), p.now);
    }
    all
}

/// A frame of which all but the last bytes of the trailer are written loses its memory: it is whole, and must end as it began. Half
/// of the word for "valid" and half of that for "given back" would be taken for damage, and the rail be blamed.
#[test]
fn a_trailer_that_was_begun_ends_as_it_began() {
    const BYTES: usize = 5000;
    for left in 1..TRAILER_BYTES {
        let mut p = Process::new();
        let stream = p.attach();
        let mut message = vec![7; BYTES];
        p.sends(&message);
        p.says();
        let frame = 16 + FRAME_HEADER_BYTES + BYTES + TRAILER_BYTES;
        let mut all = written(&mut p, stream, frame - left);
        assert_eq!(all.len(), frame - left, "the message is the only frame");
        // the peer has no use for it: the send is over, and its memory the application's again
        p.frame(FrameHeader { seq: 0, ..FrameHeader::new(FrameType::Reject) }, b"");
        message.fill(0xee);
        all.extend(written(&mut p, stream, left));
        let trailer = Trailer::parse(&all[frame - TRAILER_BYTES..]).expect("one of the two words");
        assert!(trailer.valid, "all of the payload was written before");
    }
}

// ---- adapters ---------------------------------------------------------------------------------------------------

/// A large message is sent, granted, and may be written by a key: the writes that the engine posts for it.
fn posted(p: &mut Process, stream: StreamId, message: &[u8]) -> Vec<Place> {
    let total = message.len() as u64;
    p.sends(message);
    p.says();
    p.frame(FrameHeader { seq: 0, total, a: 0x5eed, ..FrameHeader::new(FrameType::Key) }, b"");
    p.frame(FrameHeader { seq: 0, total, ..FrameHeader::new(FrameType::Cts) }, b"");
    let mut w = Window::default();
    let mut places = Vec::new();
    while p.engine.stream_tx_window(stream, &mut w, p.now) {
        places.extend_from_slice(w.places());
        let bytes = w.bytes();
        p.engine.stream_tx_done(stream, bytes, p.now);
    }
    places
}

#[test]
fn a_send_is_not_reported_while_an_adapter_reads_its_memory() {
    let message = vec![7; 100_000];
    let (mut p, stream) = Process::on_an_adapter();
    let places = posted(&mut p, stream, &message);
    let written: Vec<(u64, usize)> = places.iter().map(|p| (p.offset, p.source.len)).collect();
    assert_eq!(written, [(0, 65_536), (65_536, 34_464)], "each fragment by the adapter, and once");
    assert!(places.iter().all(|p| p.key.0 == 0x5eed));
    p.frame(FrameHeader { seq: 0, a: 0, b: 0b11, ..FrameHeader::new(FrameType::Vack) }, b"");
    assert!(
        p.engine.cq_pop(p.cq).is_none() && p.engine.lends(None),
        "the peer has it, and the adapter as well"
    );
    p.engine.placed(places[0].work, p.now);
    assert!(p.engine.cq_pop(p.cq).is_none());
    p.engine.placed(places[1].work, p.now);
    assert!(p.engine.cq_pop(p.cq).is_some_and(|c| c.error.is_none()) && !p.engine.lends(None));
}

#[test]
fn what_an_adapter_may_have_written_is_fenced_when_its_stream_breaks() {
    let message = vec![7; 100_000];
    let (mut p, stream) = Process::on_an_adapter();
    let places = posted(&mut p, stream, &message);
    p.engine.stream_closed(stream, CloseReason::Reset, p.now);
    assert!(p.says().iter().any(|f| f.0 == FrameType::Fence), "the receiver is asked to close its end");
    p.frame(FrameHeader { seq: 0, a: 0, b: 0b11, ..FrameHeader::new(FrameType::Vack) }, b"");
    assert!(p.engine.cq_pop(p.cq).is_none(), "a broken stream is not a closed one");
    p.engine.stream_closed(stream, CloseReason::Requested, p.now);
    assert!(p.engine.cq_pop(p.cq).is_some_and(|c| c.error.is_none()));
    p.engine.placed(places[0].work, p.now);
}

/// A receive of `bytes` is posted, and the peer announces a message for it, whose number is 1.
fn granted(p: &mut Process, target: &mut [u8]) {
    let total = target.len() as u64;
    let op = RecvOp {
        ep: EpId(0),
        protocol: Protocol::Msg,
        src: None,
        tag: 0,
        ignore: 0,
        iov: &[IoVec::from_mut(target)],
        context: 2,
        completion: true,
        multi: false,
    };
    for _ in 0..2 {
        // the first takes what came when the stream was attached
        // SAFETY: the memory outlives the engine's use of it.
        unsafe { p.engine.recv(&op, p.now) }.expect("the receive is taken");
    }
    while p.engine.cq_pop(p.cq).is_some() {}
    p.frame(FrameHeader { seq: 1, total, x: 65_536, ..FrameHeader::new(FrameType::Rts) }, b"");
}

#[test]
fn bytes_beside_the_stream_count_only_on_the_stream_of_their_adapter_and_with_a_key() {
    let mut target = vec![0; 50_000];
    let (mut p, stream) = Process::on_an_adapter();
    granted(&mut p, &mut target);
    let h = FrameHeader { seq: 1, total: 50_000, ..FrameHeader::new(FrameType::Placed) };
    let before = p.engine.counters().malformed;
    p.frame(h, b"");
    assert_eq!(p.engine.counters().malformed, before + 1, "a datagram comes in no order with the writes");
    p.stream_frame(stream, 0, h);
    assert_eq!(p.engine.counters().malformed, before + 2, "no key was sent, so nothing can be there");
    assert!(p.engine.cq_pop(p.cq).is_none(), "the message is not complete");
}

#[test]
fn fences_that_are_asked_for_without_end_take_no_memory_without_end() {
    let (mut p, _) = Process::on_an_adapter();
    for number in 100..1100 {
        p.frame(FrameHeader { a: 1, b: number, ..FrameHeader::new(FrameType::Fence) }, b"");
    }
    let answers = p.says().iter().filter(|f| f.0 == FrameType::Fenced).count();
    assert!((200..=256).contains(&answers), "{answers} answers were kept");
}
