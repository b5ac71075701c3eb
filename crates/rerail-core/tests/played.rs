//! One engine, and a peer that the test plays: moments that two honest engines reach too seldom.

mod alone;

use rerail_core::wire::hello::Hello;
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::stream::{TRAILER_BYTES, Trailer};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, SessionKeys, Token};
use rerail_core::{
    CompletionLevel, Datagram, EndpointId, Engine, EpId, IoVec, Locator, Options, Protocol, RailId, SendOp,
    StreamId, Time, Window,
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
    peer: EndpointId,
    now: Time,
    number: u64,
}

impl Process {
    fn new() -> Self {
        let (mut engine, _, _, now) = alone::engine(OWN, Options::default(), None);
        let peer = engine.endpoint_of(&published());
        let mut r = Self { engine, peer, now, number: 0 };
        r.gets(&hello(0));
        r
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
        // something in the epoch: the path is in use
        p.frame(
            FrameHeader { seq: 0, total: 5, len: 5, x: 65_536, ..FrameHeader::new(FrameType::Eager) },
            b"hello",
        );
        p.says();
        let stream = p.engine.stream_accepted(RailId(0), addr(2).with_service(5000), p.now);
        let bytes = hello(2);
        let mut w = Window::default();
        assert!(p.engine.stream_rx_window(stream, &mut w));
        // SAFETY: the engine has just given this piece out for reading into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), w.pieces()[0].ptr, bytes.len()) };
        p.engine.stream_rx_done(stream, bytes.len(), p.now);
        while !written(&mut p, stream, usize::MAX).is_empty() {}
        let mut message = vec![7; BYTES];
        let op = SendOp {
            ep: EpId(0),
            dest: p.peer,
            protocol: Protocol::Tagged,
            tag: 1,
            data: None,
            iov: &[IoVec::from_mut(&mut message)],
            context: 1,
            completion: true,
            inject: false,
            level: CompletionLevel::Delivered,
        };
        // SAFETY: the message outlives the engine's use of it.
        unsafe { p.engine.send(&op, p.now) }.expect("the send is taken");
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
