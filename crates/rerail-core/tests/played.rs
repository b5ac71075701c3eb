//! One engine, and a peer that the test plays: moments that two honest engines reach too seldom.

mod alone;

use rerail_core::wire::config::{NodeConfig, RailConfig};
use rerail_core::wire::frame::goodbye;
use rerail_core::wire::hello::Hello;
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, write_header};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, PairKeys, Token};
use rerail_core::{
    Action, CloseReason, Completion, CompletionError, CompletionLevel, CqId, Datagram, EndpointId, Engine,
    EpId, Identity, IoVec, Locator, Options, PeekOp, Place, Protocol, RailDesc, RailId, RecvOp, SendOp,
    StreamId, Time, Window,
};
use rerail_rail::{Kind, RemoteKey};
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

/// The keys of the two, on the peer's side.
fn keys() -> PairKeys {
    Identity::toy(PEER).pair(&Identity::toy(OWN).public_key()).expect("proper keys")
}

fn hello(stream: u64) -> Vec<u8> {
    let public_key = Identity::toy(PEER).public_key();
    Hello {
        path: 0,
        epoch: EPOCH,
        stream,
        lane: 0,
        nonce: [1; 16],
        from: published(),
        public_key,
        session_key: None,
    }
    .to_bytes(&OWN, Some(&keys()))
    .to_vec()
}

struct Process {
    engine: Engine,
    cq: CqId,
    peer: EndpointId,
    now: Time,
    number: u64,
    /// The largest number of its packets.
    said: u64,
    /// Payload of its last goodbye.
    list: Vec<u8>,
    /// Streams that it opens.
    opened: Vec<StreamId>,
}

impl Process {
    fn new() -> Self {
        Self::with(alone::engine(OWN, Options::default(), false))
    }

    fn with((mut engine, cq, _, now): (Engine, CqId, EpId, Time)) -> Self {
        let peer = engine.endpoint_of(&published());
        let mut r = Self { engine, cq, peer, now, number: 0, said: 0, list: vec![], opened: vec![] };
        r.gets(&hello(0));
        r
    }

    /// On a rail of an adapter, with a stream of it.
    fn on_an_adapter() -> (Self, StreamId) {
        let rail = RailDesc { places_max: 4, ..alone::rail() };
        let mut p = Self::with(alone::engine_on(rail, OWN, Options::default(), false));
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

    fn gets(&mut self, bytes: &[u8]) {
        self.engine.handle_datagram(RailId(0), addr(2), bytes, self.now);
    }

    /// A packet with one frame arrives.
    fn frame(&mut self, h: FrameHeader, payload: &[u8]) {
        let mut b = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES];
        h.write(&mut b[PACKET_HEADER_BYTES..]);
        b.extend_from_slice(payload);
        let cid = keys().cid_out;
        let (kind, number, coverage) = (PacketKind::Data, self.number, Coverage::Full);
        PacketHeader { cid, kind, path: 0, epoch: EPOCH, number, flags: 0, entries: 0, coverage }
            .seal(&mut b);
        self.number += 1;
        self.gets(&b);
    }

    /// Frames that are sent within a while: kind, sequence number, what is granted, and `x`.
    fn says(&mut self) -> Vec<(FrameType, u64, u64, u32)> {
        let mut all = vec![];
        let mut out = Datagram::default();
        for _ in 0..20 {
            self.now = self.now + Duration::from_millis(1);
            self.engine.handle_timeout(self.now);
            while let Some(action) = self.engine.poll_action() {
                if let Action::OpenStream { stream, .. } = action {
                    self.opened.push(stream);
                }
            }
            while self.engine.poll_datagram(self.now, &mut out) {
                let Ok((h, mut rest)) = PacketHeader::parse(&out.bytes) else { continue };
                if h.kind == PacketKind::Data {
                    self.said = self.said.max(h.number);
                }
                while h.kind == PacketKind::Data && !rest.is_empty() {
                    let f = FrameHeader::parse(rest).expect("our own frame");
                    all.push((f.kind, f.seq, f.total, f.x));
                    let (payload, more) = rest[FRAME_HEADER_BYTES..].split_at(f.len as usize);
                    if f.kind == FrameType::Goodbye {
                        self.list = payload.to_vec();
                    }
                    rest = more;
                }
            }
        }
        all
    }

    /// A send of `message`, which must stay where it is until the test is over.
    fn sends(&mut self, message: &[u8], level: CompletionLevel) {
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
            level,
        };
        // SAFETY: each test declares the message before the process.
        unsafe { self.engine.send(&op, self.now) }.expect("the send is taken");
    }

    /// The completions so far.
    fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.engine.cq_pop(self.cq)).collect()
    }
}

/// How the only send so far has ended; `None`: it has not.
fn end_of(p: &mut Process) -> Option<Result<(), CompletionError>> {
    p.says();
    let all = p.completions();
    assert!(all.len() < 2, "completed twice: {all:?}");
    all.first().map(|c| c.error.map_or(Ok(()), Err))
}

const LEVELS: [CompletionLevel; 3] =
    [CompletionLevel::Buffered, CompletionLevel::Delivered, CompletionLevel::Matched];

/// A rejection ends a send. It fails only the send that promised a match, and only where no receive has matched.
#[test]
fn a_rejection_without_a_match_fails_the_send_that_promised_one() {
    for level in LEVELS {
        for x in [0, 1] {
            let message = vec![7; 100_000];
            let mut p = Process::new();
            p.sends(&message, level);
            let rejection = FrameHeader { seq: 0, x, ..FrameHeader::new(FrameType::Reject) };
            p.frame(rejection, b"");
            let fails = level == CompletionLevel::Matched && x == 1;
            let wanted = if fails { Err(CompletionError::PeerClosed) } else { Ok(()) };
            assert_eq!(end_of(&mut p), Some(wanted), "{level:?}, {x}");
            // again, and for messages that are not there
            for (seq, x) in [(0, 0), (0, 1), (1, 1), (u64::MAX, 1)] {
                p.frame(FrameHeader { seq, x, ..rejection }, b"");
            }
            assert_eq!(end_of(&mut p), None, "{level:?}, {x}: a send ends once");
        }
    }
}

/// What a goodbye reports of message 0, and how its send ends.
#[derive(Debug, Clone, Copy)]
struct Farewell {
    /// Bytes that were granted before.
    granted: Option<u64>,
    missing: &'static [u64],
    unmatched: &'static [u64],
    x: u32,
    /// By [`LEVELS`].
    ends: [Result<(), CompletionError>; 3],
}

/// The grant of a message without bytes, and a rejection, may be lost when the peer leaves. Its goodbye lists what no receive has matched.
#[test]
fn a_goodbye_fails_the_sends_whose_promised_match_it_denies() {
    const GONE: Result<(), CompletionError> = Err(CompletionError::PeerClosed);
    const ALL: [Result<(), CompletionError>; 3] = [Ok(()); 3];
    const BUT_MATCHES: [Result<(), CompletionError>; 3] = [Ok(()), Ok(()), GONE];
    let case = Farewell { granted: None, missing: &[], unmatched: &[], x: 0, ends: ALL };
    let cases = [
        case,
        Farewell { unmatched: &[0], ends: BUT_MATCHES, ..case },
        Farewell { unmatched: &[7, 0, 5], ends: BUT_MATCHES, ..case },
        Farewell { unmatched: &[7, 5], ..case },
        Farewell { x: goodbye::UNMATCHED_UNLISTED, ends: BUT_MATCHES, ..case },
        Farewell { missing: &[0], ends: [GONE; 3], ..case },
        Farewell { x: goodbye::MISSING_UNLISTED, ends: [GONE; 3], ..case },
        Farewell { granted: Some(100_000), x: goodbye::UNMATCHED_UNLISTED, ..case },
    ];
    for case @ Farewell { granted, missing, unmatched, x, ends } in cases {
        for (level, wanted) in LEVELS.into_iter().zip(ends) {
            let message = vec![7; 100_000];
            let mut p = Process::new();
            p.sends(&message, level);
            if let Some(total) = granted {
                p.frame(FrameHeader { seq: 0, total, ..FrameHeader::new(FrameType::Cts) }, b"");
                assert_eq!(end_of(&mut p), None, "{level:?}: the bytes are under way");
            }
            let list: Vec<u8> = missing.iter().chain(unmatched).flat_map(|s| s.to_le_bytes()).collect();
            let (len, total) = (list.len() as u32, unmatched.len() as u64);
            // all messages below 1 have arrived, but those
            p.frame(FrameHeader { b: 1, total, len, x, ..FrameHeader::new(FrameType::Goodbye) }, &list);
            assert_eq!(end_of(&mut p), Some(wanted), "{level:?} {case:?}");
        }
    }
}

/// Lists that are longer than the goodbye itself, and bits without a meaning.
#[test]
fn a_goodbye_that_makes_no_sense_ends_nothing() {
    for (len, total, x) in [
        (0, 1, 0),
        (8, 2, 0),
        (16, u64::MAX, 0),
        (16, 1 << 61, 0),
        (16, (1 << 61) + 1, 0),
        (7, 0, 0),
        (0, 0, 4),
        (0, 0, u32::MAX),
    ] {
        let message = vec![7; 100_000];
        let mut p = Process::new();
        p.sends(&message, CompletionLevel::Matched);
        let before = p.engine.counters().malformed;
        let list = vec![0; len as usize];
        p.frame(FrameHeader { b: 1, len, total, x, ..FrameHeader::new(FrameType::Goodbye) }, &list);
        assert_eq!(end_of(&mut p), None, "{len} {total} {x}");
        assert_eq!(p.engine.counters().malformed, before + 1, "{len} {total} {x}");
    }
}

/// What no receive has matched is listed until the sender has acknowledged the rejection; many are not listed but still denied.
#[test]
fn a_goodbye_lists_what_no_receive_has_matched() {
    for (count, acknowledged, listed, x) in
        [(0, false, 0, 0), (3, false, 3, 0), (3, true, 0, 0), (33, false, 0, goodbye::UNMATCHED_UNLISTED)]
    {
        let mut p = Process::new();
        for seq in 0..count {
            // there is no such endpoint
            p.frame(announced(seq, 9), b"");
        }
        // this one is discarded, which is as good as a receive
        p.frame(announced(count, 0), b"");
        p.engine.peek(&DISCARD, p.now).expect("a look is answered");
        p.says();
        if acknowledged {
            let (a, x) = (p.said, p.said as u32);
            p.frame(FrameHeader { a, x, b: u64::from(EPOCH) << 32, ..FrameHeader::new(FrameType::Ack) }, b"");
        }
        p.engine.close_endpoint(EpId(0), p.now);
        p.engine.shutdown(p.now);
        let said = p.says();
        assert!(said.contains(&(FrameType::Goodbye, 0, listed, x)), "{count}, {acknowledged}: {said:?}");
        let numbers: Vec<u8> = (0..listed).flat_map(u64::to_le_bytes).collect();
        assert_eq!(p.list, numbers, "{count}, {acknowledged}");
    }
}

/// An inject without a completion reports nothing later. It waits for no match, so it goes without an announcement.
#[test]
fn an_inject_that_reports_nothing_waits_for_no_match() {
    for completion in [false, true] {
        let mut p = Process::new();
        // something in the epoch: the path is in use
        p.frame(announced(0, 0), b"");
        p.says();
        let mut message = [7; 100];
        let op = SendOp {
            ep: EpId(0),
            dest: p.peer,
            protocol: Protocol::Tagged,
            tag: 1,
            data: None,
            iov: &[IoVec::from_mut(&mut message)],
            context: 1,
            completion,
            inject: true,
            level: CompletionLevel::Matched,
        };
        // SAFETY: an inject copies before it returns.
        unsafe { p.engine.send(&op, p.now) }.expect("there is room");
        let kinds: Vec<FrameType> = p.says().iter().filter(|f| f.1 == 0).map(|f| f.0).collect();
        let kind = if completion { FrameType::Rts } else { FrameType::Eager };
        assert!(kinds.contains(&kind), "completion: {completion}: {kinds:?}");
    }
}

/// A message of a process to itself waits for its receive as well, copied or not. It fails when the endpoint closes without one.
#[test]
fn a_match_is_promised_by_a_process_to_itself_too() {
    for inject in [false, true] {
        for taken in [false, true] {
            let (mut message, mut room) = ([7; 100], [0; 100]);
            let mut p = Process::new();
            let other = p.engine.open_endpoint(p.cq, p.cq).expect("there is room");
            let address = p.engine.address(other);
            let op = SendOp {
                ep: EpId(0),
                dest: p.engine.endpoint_of(&address),
                protocol: Protocol::Tagged,
                tag: 1,
                data: None,
                iov: &[IoVec::from_mut(&mut message)],
                context: 1,
                completion: true,
                inject,
                level: CompletionLevel::Matched,
            };
            // SAFETY: the message is declared before the process.
            unsafe { p.engine.send(&op, p.now) }.expect("the send is taken");
            if inject {
                message.fill(0xee);
            }
            assert_eq!(end_of(&mut p), None, "inject: {inject}");
            if !taken {
                p.engine.close_endpoint(other, p.now);
                assert_eq!(end_of(&mut p), Some(Err(CompletionError::PeerClosed)), "inject: {inject}");
                continue;
            }
            let receive = RecvOp {
                ep: other,
                protocol: Protocol::Tagged,
                tag: 1,
                ignore: 0,
                src: None,
                iov: &[IoVec::from_mut(&mut room)],
                context: 2,
                completion: true,
                multi: false,
            };
            // SAFETY: the memory is declared before the process.
            unsafe { p.engine.recv(&receive, p.now) }.expect("the receive is taken");
            let ends: Vec<_> = p.completions().iter().map(|c| (c.context, c.error)).collect();
            assert_eq!(ends, [(2, None), (1, None)], "inject: {inject}");
            assert_eq!(room, [7; 100], "inject: {inject}");
        }
    }
}

/// A grant or a rejection with a value that is neither of its two ends nothing, whatever else the peer has put in.
#[test]
fn a_rejection_that_makes_no_sense_ends_nothing() {
    for kind in [FrameType::Reject, FrameType::Cts] {
        for x in [2, 3, 65_536, 1 << 31, u32::MAX] {
            let message = vec![7; 100_000];
            let mut p = Process::new();
            p.sends(&message, CompletionLevel::Matched);
            let before = p.engine.counters().malformed;
            p.frame(FrameHeader { seq: 0, x, ..FrameHeader::new(kind) }, b"");
            assert_eq!(end_of(&mut p), None, "{kind:?}, {x}");
            assert_eq!(p.engine.counters().malformed, before + 1, "{kind:?}, {x}");
        }
    }
}

/// "Over" answers an announcement that was repeated. The receiver may have rejected the message, so only a grant proves a match.
#[test]
fn a_message_that_is_over_is_not_taken_for_matched() {
    for level in LEVELS {
        let message = vec![7; 100_000];
        let mut p = Process::new();
        p.sends(&message, level);
        let over = FrameHeader { seq: 0, x: 1, ..FrameHeader::new(FrameType::Cts) };
        p.frame(over, b"");
        let matched = level == CompletionLevel::Matched;
        assert_eq!(end_of(&mut p), (!matched).then_some(Ok(())), "{level:?}");
        // a receive without room took it
        p.frame(FrameHeader { x: 0, ..over }, b"");
        assert_eq!(end_of(&mut p), matched.then_some(Ok(())), "{level:?}");
    }
}

/// Discards the oldest message.
const DISCARD: PeekOp = PeekOp {
    ep: EpId(0),
    protocol: Protocol::Tagged,
    tag: 1,
    ignore: 0,
    src: None,
    context: 2,
    claim: false,
    discard: true,
};

/// A message with this number, for endpoint `ep`, is announced.
fn announced(seq: u64, dst_ep: u16) -> FrameHeader {
    let flags = rerail_core::wire::frame::flags::TAGGED;
    FrameHeader { flags, seq, dst_ep, a: 1, total: 5000, x: 65_536, ..FrameHeader::new(FrameType::Rts) }
}

/// The sender must be able to tell from the answer whether a receive has taken its message.
#[test]
fn the_answer_to_an_announcement_says_whether_a_receive_has_taken_it() {
    let mut p = Process::new();
    // there is no such endpoint
    p.frame(announced(0, 9), b"");
    let said = p.says();
    assert!(said.contains(&(FrameType::Reject, 0, 0, 1)), "{said:?}");
    assert!(!said.iter().any(|f| f.0 == FrameType::Cts), "{said:?}");
    p.frame(announced(0, 9), b"");
    let said = p.says();
    assert!(said.contains(&(FrameType::Cts, 0, 0, 1)), "it is over, and was not matched: {said:?}");

    // the application discards one
    p.frame(announced(1, 0), b"");
    p.engine.peek(&DISCARD, p.now).expect("a look is answered");
    let said = p.says();
    assert!(said.contains(&(FrameType::Reject, 1, 0, 0)), "{said:?}");

    // a receive without room takes one, which is over at once
    let receive = RecvOp {
        ep: EpId(0),
        protocol: Protocol::Tagged,
        tag: 1,
        ignore: 0,
        src: None,
        iov: &[],
        context: 3,
        completion: true,
        multi: false,
    };
    // SAFETY: there is no memory.
    unsafe { p.engine.recv(&receive, p.now) }.expect("the receive is taken");
    p.frame(announced(2, 0), b"");
    let said = p.says();
    assert!(said.contains(&(FrameType::Cts, 2, 0, 0)), "matched: {said:?}");

    // a receive waits for the bytes of one, one waits for a receive, and the endpoint closes
    let mut room = [0; 5000];
    let receive = RecvOp { iov: &[IoVec::from_mut(&mut room)], ..receive };
    // SAFETY: the memory is there until the endpoint is closed.
    unsafe { p.engine.recv(&receive, p.now) }.expect("the receive is taken");
    p.frame(announced(3, 0), b"");
    p.frame(announced(4, 0), b"");
    p.says();
    p.engine.close_endpoint(EpId(0), p.now);
    let said = p.says();
    assert!(said.contains(&(FrameType::Reject, 3, 0, 0)), "a receive had taken it: {said:?}");
    assert!(said.contains(&(FrameType::Reject, 4, 0, 1)), "no receive had taken it: {said:?}");
}

/// The message was sent over a stream that is gone, its acknowledgement never came, and datagrams are too short for it.
/// The receiver, which has had it all along, must report that, or the sender waits for a grant for ever.
#[test]
fn who_announces_what_has_arrived_in_full_is_told_so() {
    let mut r = Process::new();
    let eager = FrameHeader { seq: 0, total: 5, len: 5, x: 65_536, ..FrameHeader::new(FrameType::Eager) };
    r.frame(eager, b"hello");
    assert!(!r.says().iter().any(|f| f.0 == FrameType::Cts), "no grant was requested");
    // no receive is posted: the payload waits here
    r.frame(FrameHeader { kind: FrameType::Rts, len: 0, ..eager }, b"");
    let said = r.says();
    assert!(said.contains(&(FrameType::Cts, 0, 0, 1)), "granted nothing more, so it is done: {said:?}");
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

/// A frame of which all but the last bytes of the trailer are written loses its memory: it is whole, and must end as it
/// began. Half of the word for "valid" and half of that for "given back" would be taken for damage, and count against
/// the rail.
#[test]
fn a_trailer_that_was_begun_ends_as_it_began() {
    const BYTES: usize = 5000;
    for left in 1..TRAILER_BYTES {
        let mut p = Process::new();
        let stream = p.attach();
        let mut message = vec![7; BYTES];
        p.sends(&message, CompletionLevel::Delivered);
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
    p.sends(message, CompletionLevel::Delivered);
    p.says();
    p.frame(FrameHeader { seq: 0, total, a: 0x5eed, b: 0xfeed, ..FrameHeader::new(FrameType::Key) }, b"");
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
    assert!(places.iter().all(|p| p.key.words() == (0x5eed, 0xfeed)), "by both words of the key");
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

/// The peer attaches a stream that we open when it has read our hello, and its adapter writes at once. When the stream breaks before we
/// have read the answer, it breaks in an attempt, and the peer's fence is of that attempt.
#[test]
fn a_fence_waits_for_the_end_of_a_stream_that_only_the_peer_had_attached() {
    for broken_first in [true, false] {
        let rail = RailDesc { places_max: 4, ..alone::rail() };
        let mut p = Process::with(alone::engine_on(rail, OWN, Options::default(), false));
        let eager = FrameHeader { seq: 0, total: 5, len: 5, x: 65_536, ..FrameHeader::new(FrameType::Eager) };
        p.frame(eager, b"hello");
        let opens = |p: &mut Process| {
            let opened = (0..100).find_map(|_| {
                p.says();
                p.opened.pop()
            });
            let stream = opened.expect("the peer opens none");
            p.engine.stream_connected(stream, p.now);
            (stream, Hello::parse(&written(p, stream, usize::MAX), &PEER).expect("a hello"))
        };
        let (stream, said) = opens(&mut p);
        if broken_first {
            p.engine.stream_closed(stream, CloseReason::Reset, p.now);
        }
        let fence = FrameHeader { a: EPOCH.into(), b: said.stream, ..FrameHeader::new(FrameType::Fence) };
        p.frame(fence, b"");
        let answered = |p: &mut Process| p.says().iter().any(|f| f.0 == FrameType::Fenced);
        assert!(!answered(&mut p), "our end is not closed, and the peer's adapter may write");
        p.engine.stream_closed(stream, CloseReason::Requested, p.now);
        assert!(answered(&mut p), "it is closed");
        assert!(opens(&mut p).1.stream > said.stream, "the peer refuses a number that it has attached");
    }
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

/// The frames that go out now.
fn frames(p: &mut Process) -> Vec<FrameHeader> {
    let (mut frames, mut out) = (vec![], Datagram::default());
    while p.engine.poll_datagram(p.now, &mut out) {
        let Ok((h, mut rest)) = PacketHeader::parse(&out.bytes) else { continue };
        while h.kind == PacketKind::Data && !rest.is_empty() {
            let f = FrameHeader::parse(rest).expect("our own frame");
            frames.push(f);
            rest = &rest[FRAME_HEADER_BYTES + f.len as usize..];
        }
    }
    frames
}

#[test]
fn a_peer_is_sent_both_words_of_a_key_and_no_grant_before() {
    let mut target = vec![0; 100_000];
    let (mut p, _) = Process::on_an_adapter();
    granted(&mut p, &mut target);
    let mut region = None;
    while let Some(action) = p.engine.poll_action() {
        if let Action::Register { region: one, .. } = action {
            region = Some(one);
        }
    }
    p.now = p.now + Duration::from_millis(1);
    p.engine.handle_timeout(p.now);
    assert!(!frames(&mut p).iter().any(|f| f.kind == FrameType::Cts), "the grant waits for the key");
    p.engine.registered(region.expect("the memory is registered"), RemoteKey::of(0x5eed, 0xfeed), p.now);
    let (mut keys, mut grants) = (vec![], vec![]);
    for f in frames(&mut p) {
        match f.kind {
            FrameType::Key => keys.push((f.seq, f.a, f.b, f.total)),
            FrameType::Cts => grants.push((f.seq, f.total)),
            _ => {}
        }
    }
    assert_eq!(keys.first(), Some(&(1, 0x5eed, 0xfeed, 100_000)));
    assert_eq!(grants.first(), Some(&(1, 100_000)));
}

#[test]
fn a_message_of_one_fragment_is_granted_at_once_and_its_memory_is_not_registered() {
    for (bytes, waits) in [(65_536, false), (65_537, true)] {
        let mut target = vec![0; bytes];
        let (mut p, _) = Process::on_an_adapter();
        granted(&mut p, &mut target);
        let actions = std::iter::from_fn(|| p.engine.poll_action()).collect::<Vec<_>>();
        let registers = actions.iter().any(|a| matches!(a, Action::Register { .. }));
        assert_eq!(registers, waits, "{bytes}");
        assert_eq!(!frames(&mut p).iter().any(|f| f.kind == FrameType::Cts), waits, "{bytes}");
    }
}

#[test]
fn bytes_beside_the_stream_count_only_on_the_stream_of_their_adapter_and_with_a_key() {
    let mut target = vec![0; 100_000];
    let (mut p, stream) = Process::on_an_adapter();
    granted(&mut p, &mut target);
    let h = FrameHeader { seq: 1, total: 65_536, ..FrameHeader::new(FrameType::Placed) };
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

/// A path joins rails of one kind. A configuration that names another kind for them is no configuration of this peer.
#[test]
fn a_configuration_with_a_rail_of_another_kind_is_malformed() {
    for (kind, malformed) in [(Kind::IP, 0), (Kind::EXAMPLE, 1)] {
        let mut p = Process::new();
        let rail =
            RailConfig { kind: kind.0, datagram_bytes: 1472, name: "eth0".into(), ..RailConfig::default() };
        let config = NodeConfig { host: 7, boot: 7, rails: vec![rail] }.to_bytes();
        p.frame(FrameHeader { len: config.len() as u32, ..FrameHeader::new(FrameType::Config) }, &config);
        p.says();
        assert_eq!(p.engine.counters().malformed, malformed, "{kind:?}");
    }
}
