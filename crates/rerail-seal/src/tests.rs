//! The contract of a rail holds with encryption over it; what is damaged on the way is never given out.

use crate::keys::tests::{identity, met, pair};
use crate::{Keyring, SealedDatagrams, SealedStreams};
use rerail_core::{KeysUpdate, SecretKey, SessionIds};
use rerail_fault::{Injector, Plan, with_faults};
use rerail_rail::conformance::{at, eventually};
use rerail_rail::{
    Arrived, CloseReason, Condition, DatagramPort, IoVec, Locator, Moved, RailId, Rails, SendOutcome,
    StreamEvent, StreamId, StreamPort, TrainOutcome, conformance_tests,
};
use rerail_wire::VERSION;
use rerail_wire::hello::{ACCEPT_BYTES, HELLO_BYTES, NONCE};
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketKind};
use rerail_wire::sealed::SEALED_EXTRA_BYTES;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// Gives every datagram the header with its connection id, as the engine does.
struct Headed {
    inner: SealedDatagrams,
    cid_out: u64,
}

impl Headed {
    fn packet(&self, bytes: &[u8]) -> Vec<u8> {
        let mut p = vec![0; PACKET_HEADER_BYTES];
        p[..8].copy_from_slice(&self.cid_out.to_le_bytes());
        (p[8], p[9]) = (VERSION, PacketKind::Data as u8);
        p.extend_from_slice(bytes);
        p
    }
}

impl DatagramPort for Headed {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        self.inner.send(rail, to, &self.packet(bytes))
    }

    fn recv(&self, buf: &mut [u8]) -> std::io::Result<Option<Arrived>> {
        let mut room = vec![0; buf.len() + PACKET_HEADER_BYTES];
        let Some(mut a) = self.inner.recv(&mut room)? else { return Ok(None) };
        assert_eq!(a.condition, Condition::Whole);
        a.len -= PACKET_HEADER_BYTES;
        buf[..a.len].copy_from_slice(&room[PACKET_HEADER_BYTES..PACKET_HEADER_BYTES + a.len]);
        Ok(Some(a))
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        let packets: Vec<u8> = bytes.chunks(segment).flat_map(|d| self.packet(d)).collect();
        self.inner.send_train(rail, to, &packets, segment + PACKET_HEADER_BYTES)
    }

    fn recv_train(&self, buf: &mut [u8]) -> std::io::Result<Option<rerail_rail::ArrivedTrain>> {
        let Some(mut t) = self.inner.recv_train(buf)? else { return Ok(None) };
        assert_eq!(t.condition, Condition::Whole);
        let plain: Vec<u8> =
            buf[..t.len].chunks(t.segment).flat_map(|d| d[PACKET_HEADER_BYTES..].to_vec()).collect();
        t.segment -= PACKET_HEADER_BYTES;
        t.len = plain.len();
        buf[..t.len].copy_from_slice(&plain);
        Ok(Some(t))
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> std::io::Result<Option<rerail_rail::ArrivedTrain>> {
        self.recv_train(buf)
    }

    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        self.inner.keep_neighbour(rail, to);
    }

    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        self.inner.lead(rail, to, route);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn before_sleep(&self, streams: bool) -> bool {
        self.inner.before_sleep(streams)
    }

    fn after_sleep(&self) {
        self.inner.after_sleep();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
    }
}

fn plain() -> (Rails, Rails) {
    (rerail_ip::attach_loopback(1..3).unwrap(), rerail_ip::attach_loopback(11..13).unwrap())
}

fn sealed(rails: Rails, keys: &Arc<Keyring>, cid_out: u64) -> Rails {
    let session = keys.session(cid_out).unwrap();
    let streams = SealedStreams::new(rails.streams, keys.clone()).map_err(|e| e.1).unwrap().preset(session);
    let mut all = Rails {
        datagrams: Arc::new(Headed { inner: SealedDatagrams::new(rails.datagrams, keys.clone()), cid_out }),
        streams: Box::new(streams),
        ..rails
    };
    for rail in &mut all.rails {
        for bytes in [&mut rail.datagram_bytes_max, &mut rail.datagram_bytes_safe] {
            *bytes -= (SEALED_EXTRA_BYTES + PACKET_HEADER_BYTES) as u16;
        }
    }
    all
}

fn both(plan: &str) -> (Rails, Rails) {
    let (a, b) = plain();
    let (ka, kb, session) = pair();
    (sealed(planted(a, plan), &ka, session.cid_out), sealed(planted(b, plan), &kb, session.cid_in))
}

fn planted(rails: Rails, plan: &str) -> Rails {
    if plan.is_empty() {
        return rails;
    }
    let names: Vec<String> = rails.rails.iter().map(|r| r.name.clone()).collect();
    let injector = Injector::new(names.clone());
    injector.set(Plan::parse(plan, &names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap());
    with_faults(rails, &injector).unwrap()
}

mod contract {
    use super::*;

    conformance_tests!(|| both(""));
}

/// Adapters below, which are not used to place, because that would not be encrypted.
mod contract_over_adapters {
    use super::*;

    fn example(keys: &Arc<Keyring>, cid_out: u64) -> Rails {
        let mut rails = sealed(rerail_example::attach(2).unwrap(), keys, cid_out);
        rails.rails.iter_mut().for_each(|rail| rail.places_max = 0);
        rails
    }

    conformance_tests!(|| {
        let (ka, kb, session) = pair();
        (example(&ka, session.cid_out), example(&kb, session.cid_in))
    });

    fn descriptors(side: &Rails) -> usize {
        let mut all = Vec::new();
        side.streams.descriptors(&mut all);
        all.len()
    }

    fn has(side: &mut Rails, event: StreamEvent) -> Option<()> {
        let mut out = Vec::new();
        side.streams.poll(&mut out);
        out.contains(&event).then_some(())
    }

    /// An adapter keeps a stream that broke until it is closed, and to the engine it is forgotten.
    #[test]
    fn a_stream_that_broke_leaves_no_descriptor_behind() {
        let (ka, kb, session) = pair();
        let (mut a, mut b) = (example(&ka, session.cid_out), example(&kb, session.cid_in));
        let before = descriptors(&a);
        a.streams.open(StreamId(1), RailId(0), at(&b, 0));
        eventually("it comes in", || has(&mut b, StreamEvent::Incoming));
        assert!(b.streams.accept(&mut |_, _| StreamId(2)));
        assert_eq!(descriptors(&a), before + 1);
        b.streams.close(StreamId(2));
        eventually("it ends", || has(&mut a, StreamEvent::Closed(StreamId(1), CloseReason::Reset)));
        eventually("its socket is closed", || {
            let mut out = Vec::new();
            a.streams.poll(&mut out);
            assert_eq!(out, [], "nothing more is told of it");
            (descriptors(&a) == before).then_some(())
        });
    }
}

/// Streams that stand still again and again: records are written and read in halves.
mod contract_with_stalls {
    use super::*;

    conformance_tests!(|| both("all: delay=2ms dir=recv; all: flap=30ms/10ms on=streams"));
}

// ---- damage ------------------------------------------------------------------------------------------------------

fn packet(cid: u64, kind: u8, bytes: usize) -> Vec<u8> {
    let mut p = vec![0x5a; PACKET_HEADER_BYTES + bytes];
    p[..8].copy_from_slice(&cid.to_le_bytes());
    (p[8], p[9]) = (VERSION, kind);
    p
}

#[test]
fn a_damaged_datagram_is_told_with_its_connection_id_and_nothing_of_it_is_given_out() {
    let (a, b) = plain();
    let (ka, kb, session) = pair();
    let from = SealedDatagrams::new(planted(a, "all: corrupt=40% seed=3").datagrams, ka);
    let to = at(&b, 0);
    let port = SealedDatagrams::new(b.datagrams, kb);
    let sent = packet(session.cid_out, PacketKind::Data as u8, 500);
    let (mut whole, mut damaged, mut strange) = (0, 0, 0);
    for _ in 0..200 {
        from.send(RailId(0), to, &sent);
        let mut buf = vec![0; 65_536];
        let got = eventually("it arrives", || port.recv(&mut buf).unwrap());
        match got.condition {
            // a bit of the id was turned, or of what marks it as sealed
            Condition::Whole if got.len != sent.len() => strange += 1,
            Condition::Whole => {
                assert_eq!(buf[..got.len], sent);
                whole += 1;
            }
            Condition::Damaged => {
                assert_eq!(
                    (got.len, &buf[..8]),
                    (8, &session.cid_out.to_le_bytes()[..]),
                    "the engine gets its connection id"
                );
                damaged += 1;
            }
            Condition::Unsealed => panic!("everything was sealed"),
        }
    }
    assert!(whole > 80 && damaged > 50 && strange < 20, "{whole} {damaged} {strange}");
}

#[test]
fn what_comes_in_clear_under_a_sessions_id_is_not_given_out_and_a_handshake_is() {
    let (a, b) = plain();
    let (_, kb, session) = pair();
    let to = at(&b, 0);
    let port = SealedDatagrams::new(b.datagrams, kb);
    let receive = |bytes: &[u8]| {
        a.datagrams.send(RailId(0), to, bytes);
        let mut buf = vec![0; 65_536];
        let got = eventually("it arrives", || port.recv(&mut buf).unwrap());
        (got.condition, got.len)
    };
    for kind in [PacketKind::Data, PacketKind::Ping, PacketKind::Pong, PacketKind::Bulk] {
        let forged = packet(session.cid_out, kind as u8, 60);
        assert_eq!(receive(&forged), (Condition::Unsealed, 0), "{kind:?}");
    }
    for kind in [PacketKind::Hello, PacketKind::Accept] {
        let clear = packet(session.cid_out, kind as u8, 60);
        assert_eq!(receive(&clear), (Condition::Whole, clear.len()), "{kind:?}");
    }
    // of no session: for the engine to count
    let strange = packet(77, PacketKind::Data as u8, 60);
    assert_eq!(receive(&strange), (Condition::Whole, strange.len()));
}

#[test]
fn nothing_leaves_in_clear_but_a_handshake() {
    let (a, b) = plain();
    let (ka, _, session) = pair();
    let to = at(&b, 0);
    let port = SealedDatagrams::new(a.datagrams, ka);
    let secret = packet(session.cid_out, PacketKind::Data as u8, 400);
    assert_eq!(port.send(RailId(0), to, &secret), SendOutcome::Sent);
    let mut buf = vec![0; 65_536];
    let got = eventually("it arrives", || b.datagrams.recv(&mut buf).unwrap());
    assert_eq!(got.len, secret.len() + SEALED_EXTRA_BYTES);
    assert!(!buf[..got.len].windows(6).any(|w| w == [0x5a; 6]), "the bytes cannot be seen");
    // without a key nothing is sent at all
    let early = packet(4711, PacketKind::Data as u8, 400);
    assert_eq!(port.send(RailId(0), to, &early), SendOutcome::Full);
    assert_eq!(port.send_train(RailId(0), to, &early, early.len()).sent, 0);
    let hello = packet(4711, PacketKind::Hello as u8, 112);
    assert_eq!(port.send(RailId(0), to, &hello), SendOutcome::Sent);
    let got = eventually("the hello arrives", || b.datagrams.recv(&mut buf).unwrap());
    assert_eq!(buf[..got.len], hello);
}

/// Connects a stream over both sides and returns what the accepting side calls it.
fn connect(a: &mut dyn StreamPort, b: &mut dyn StreamPort, to: Locator) {
    a.open(StreamId(1), RailId(0), to);
    let mut events = Vec::new();
    eventually("the connection comes in", || {
        b.poll(&mut events);
        b.accept(&mut |_, _| StreamId(2)).then_some(())
    });
    eventually("the connection is made", || {
        events.clear();
        a.poll(&mut events);
        events.contains(&StreamEvent::Connected(StreamId(1))).then_some(())
    });
}

fn write_all(port: &mut dyn StreamPort, s: StreamId, mut bytes: &[u8]) {
    eventually("all is written", || {
        // SAFETY: borrowed through the call.
        match unsafe { port.write(s, &[IoVec::from_ref(bytes)]) } {
            Moved::Bytes(n) => bytes = &bytes[n..],
            Moved::Blocked => {}
            closed => panic!("{closed:?}"),
        }
        bytes.is_empty().then_some(())
    });
}

fn read_all(port: &mut dyn StreamPort, s: StreamId, bytes: usize) -> Result<Vec<u8>, (Vec<u8>, CloseReason)> {
    let mut all = Vec::new();
    eventually("all is read", || {
        let mut buf = vec![0; (bytes - all.len()).min(3000)];
        // SAFETY: borrowed through the call.
        match unsafe { port.read(s, &[IoVec::from_mut(&mut buf)]) } {
            Moved::Bytes(n) => all.extend_from_slice(&buf[..n]),
            Moved::Blocked => {}
            Moved::Closed(why) => return Some(Err((std::mem::take(&mut all), why))),
        }
        (all.len() == bytes).then(|| Ok(std::mem::take(&mut all)))
    })
}

fn streams(rails: Rails, keys: &Arc<Keyring>) -> SealedStreams {
    SealedStreams::new(rails.streams, keys.clone()).map_err(|e| e.1).unwrap()
}

fn greeting(cid: u64, bytes: usize) -> Vec<u8> {
    let mut g = vec![7; bytes];
    g[..8].copy_from_slice(&cid.to_le_bytes());
    g[NONCE].copy_from_slice(&[9; 16]);
    g
}

/// As the engine does: hello, accept, then everything else, which cannot be read on the way.
#[test]
fn a_stream_is_encrypted_from_the_end_of_the_handshake_on() {
    let (a, b) = plain();
    let (ka, kb, session) = pair();
    let to = at(&b, 0);
    let (mut a, mut b) = (streams(a, &ka), streams(b, &kb));
    connect(&mut a, &mut b, to);
    let (hello, accept) = (greeting(4711, HELLO_BYTES), greeting(!session.cid_in, ACCEPT_BYTES));
    write_all(&mut a, StreamId(1), &hello);
    assert_eq!(read_all(&mut b, StreamId(2), HELLO_BYTES).unwrap(), hello);
    write_all(&mut b, StreamId(2), &accept);
    assert_eq!(read_all(&mut a, StreamId(1), ACCEPT_BYTES).unwrap(), accept);
    let text: Vec<u8> = (0..200_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    write_all(&mut a, StreamId(1), &text);
    assert_eq!(read_all(&mut b, StreamId(2), text.len()).unwrap(), text);
    write_all(&mut b, StreamId(2), b"and back");
    assert_eq!(read_all(&mut a, StreamId(1), 8).unwrap(), b"and back");
}

#[test]
fn who_listens_on_a_stream_sees_the_handshake_only() {
    let (a, mut b) = plain();
    let (ka, _, session) = pair();
    let to = at(&b, 0);
    let mut a = streams(a, &ka);
    connect(&mut a, &mut *b.streams, to);
    let hello = greeting(4711, HELLO_BYTES);
    write_all(&mut a, StreamId(1), &hello);
    assert_eq!(read_all(&mut *b.streams, StreamId(2), HELLO_BYTES).unwrap(), hello);
    write_all(&mut *b.streams, StreamId(2), &greeting(!session.cid_in, ACCEPT_BYTES));
    read_all(&mut a, StreamId(1), ACCEPT_BYTES).unwrap();
    write_all(&mut a, StreamId(1), &[0x5a; 5000]);
    let seen = read_all(&mut *b.streams, StreamId(2), 5000 + 4 + 16).unwrap();
    assert_eq!(seen[..4], 5000_u32.to_le_bytes());
    assert!(!seen.windows(6).any(|w| w == [0x5a; 6]), "the bytes cannot be seen");
    // and an answer without the key ends the stream
    write_all(
        &mut *b.streams,
        StreamId(2),
        &[5, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21],
    );
    assert_eq!(read_all(&mut a, StreamId(1), 5), Err((Vec::new(), CloseReason::Damaged)));
    assert!(matches!(read_all(&mut a, StreamId(1), 5), Err((_, CloseReason::Requested))), "it is closed");
}

#[test]
fn a_length_that_no_record_has_ends_the_stream() {
    for length in [0_u32, 65_537, u32::MAX] {
        let (a, mut b) = plain();
        let (ka, _, session) = pair();
        let to = at(&b, 0);
        let mut a = streams(a, &ka);
        connect(&mut a, &mut *b.streams, to);
        write_all(&mut a, StreamId(1), &greeting(4711, HELLO_BYTES));
        write_all(&mut *b.streams, StreamId(2), &greeting(!session.cid_in, ACCEPT_BYTES));
        read_all(&mut a, StreamId(1), ACCEPT_BYTES).unwrap();
        write_all(&mut *b.streams, StreamId(2), &length.to_le_bytes());
        assert_eq!(read_all(&mut a, StreamId(1), 5), Err((Vec::new(), CloseReason::Damaged)));
    }
}

#[test]
fn an_accept_under_the_id_of_no_session_leads_nowhere() {
    let (a, mut b) = plain();
    let (ka, ..) = pair();
    let to = at(&b, 0);
    let mut a = streams(a, &ka);
    connect(&mut a, &mut *b.streams, to);
    write_all(&mut a, StreamId(1), &greeting(4711, HELLO_BYTES));
    write_all(&mut *b.streams, StreamId(2), &greeting(12345, ACCEPT_BYTES));
    read_all(&mut a, StreamId(1), ACCEPT_BYTES).unwrap();
    // SAFETY: borrowed through the call.
    let moved = unsafe { a.write(StreamId(1), &[IoVec::from_ref(b"secret")]) };
    assert_eq!(moved, Moved::Closed(CloseReason::Reset));
}

#[test]
fn of_a_damaged_stream_only_what_came_before_is_given_out() {
    let (mut a, mut b) = both("all: corrupt=2% on=streams dir=send seed=5");
    let to = at(&b, 0);
    connect(&mut *a.streams, &mut *b.streams, to);
    let text: Vec<u8> = (0..400_000_u32).map(|i| ((i * 11) >> 4) as u8).collect();
    // as far as it is taken: the other side does not read meanwhile
    // SAFETY: borrowed through the call.
    let moved = unsafe { a.streams.write(StreamId(1), &[IoVec::from_ref(&text)]) };
    assert!(matches!(moved, Moved::Bytes(_)), "{moved:?}");
    let (got, why) = read_all(&mut *b.streams, StreamId(2), text.len()).expect_err("a bit was turned");
    assert_eq!((why, &text[..got.len()]), (CloseReason::Damaged, &got[..]));
}

#[test]
fn two_processes_that_met_talk_and_a_third_that_knows_their_public_keys_does_not() {
    let (ka, kb, session) = pair();
    let mut third = identity(8);
    let keys = third.pair(&identity(3).public_key()).expect("a proper key");
    let named = identity(3).begin_session().public_key();
    let third = met(&third.clone(), &mut third.begin_session(), &keys, named);
    let (a, b) = plain();
    let to = at(&b, 0);
    let from = SealedDatagrams::new(a.datagrams, ka);
    let hears = |keys: &Arc<Keyring>| {
        let port = SealedDatagrams::new(b.datagrams.clone(), keys.clone());
        from.send(RailId(0), to, &packet(session.cid_out, PacketKind::Data as u8, 40));
        let mut buf = vec![0; 65_536];
        let got = eventually("it arrives", || port.recv(&mut buf).unwrap());
        (got.condition, got.len == PACKET_HEADER_BYTES + 40)
    };
    assert_eq!(hears(&kb), (Condition::Whole, true));
    assert_eq!(hears(&third), (Condition::Whole, false), "to the third it is a stranger's, and stays sealed");
}

/// What was sealed before the other side began a new session blames no rail.
#[test]
fn what_was_sealed_under_keys_that_are_over_is_a_strangers_and_not_damaged() {
    let (ka, kb, session) = pair();
    let (a, b) = plain();
    let to = at(&b, 0);
    let port = SealedDatagrams::new(b.datagrams.clone(), kb.clone());
    SealedDatagrams::new(a.datagrams, ka).send(
        RailId(0),
        to,
        &packet(session.cid_out, PacketKind::Data as u8, 40),
    );
    let ids = SessionIds {
        out: session.cid_in,
        incoming: session.cid_out,
        accept_out: !session.cid_in,
        accept_in: !session.cid_out,
    };
    kb.apply([KeysUpdate::Establish { ids, secret: SecretKey([1; 32]) }]);
    let mut buf = vec![0; 65_536];
    let got = eventually("it arrives", || port.recv(&mut buf).unwrap());
    assert_eq!((got.condition, got.len), (Condition::Whole, PACKET_HEADER_BYTES + 40 + SEALED_EXTRA_BYTES));
}
