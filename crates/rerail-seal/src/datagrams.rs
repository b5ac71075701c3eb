//! Datagrams, encrypted. Owns: what was opened and had no place in the caller's buffer beside the rest.
//!
//! Invariants: nothing but a handshake leaves in clear; what arrives in clear and is no handshake is not given to the engine if its
//! connection id is that of a session.

use crate::keys::{Keyring, Session};
use rerail_rail::rest::Rest;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TRAIN_BYTES_MAX,
    TrainOutcome,
};
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketKind, peek};
use rerail_wire::sealed::{CLEAR_BYTES, SEALED_EXTRA_BYTES, SEALED_HEADER_BYTES, SealedHeader};
use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// Largest datagram, or train.
const BYTES_MAX: usize = 65_536;

thread_local! {
    /// Where a thread encrypts what it sends.
    static OUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Where a thread receives what does not fit its caller's buffer while it is encrypted.
    static IN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A port for datagrams that encrypts.
pub struct SealedDatagrams {
    inner: Arc<dyn DatagramPort>,
    keys: Arc<Keyring>,
    /// Arrived with others, of another length or condition.
    rest: Rest,
}

/// The datagrams of a train, `b`, one by one.
fn singly(t: ArrivedTrain, b: &[u8]) -> impl DoubleEndedIterator<Item = (Arrived, &[u8])> {
    b.chunks(t.segment)
        .map(move |d| (Arrived { rail: t.rail, from: t.from, len: d.len(), condition: t.condition }, d))
}

impl SealedDatagrams {
    /// Over a port.
    pub fn new(inner: Arc<dyn DatagramPort>, keys: Arc<Keyring>) -> SealedDatagrams {
        SealedDatagrams { inner, keys, rest: Rest::default() }
    }

    /// The session under whose key a datagram goes; `None`: it goes as it is. Err: it must not go.
    fn session(&self, bytes: &[u8]) -> Result<Option<Arc<Session>>, ()> {
        match peek(bytes) {
            Some((_, PacketKind::Hello | PacketKind::Accept)) => Ok(None),
            Some((cid, _)) => self.keys.session(cid).filter(|s| s.is_out(cid)).map(Some).ok_or(()),
            None => Err(()),
        }
    }

    /// Appends a datagram to `out`, encrypted. False: its numbers have run out.
    fn seal(session: &Session, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(counter) = session.count() else { return false };
        let header = SealedHeader { session: session.leaves, counter }.to_bytes();
        let at = out.len() + header.len();
        out.extend_from_slice(&header);
        out.extend_from_slice(&bytes[CLEAR_BYTES..]);
        let tag = session.out.seal(counter, &header, &mut out[at..]);
        out.extend_from_slice(&tag);
        true
    }

    /// Opens the datagram in `b`; its bytes are at the beginning afterwards, and so many.
    fn open(&self, b: &mut [u8]) -> (usize, Condition) {
        let Some(header) = SealedHeader::parse(b) else {
            let known = |cid| self.keys.session(cid).is_some_and(|s| s.is_in(cid) || s.cid_in() == cid);
            return match peek(b) {
                Some((_, PacketKind::Hello | PacketKind::Accept)) => (b.len(), Condition::Whole),
                Some((cid, _)) if known(cid) => (0, Condition::Unsealed),
                // A stranger's: the engine does not know its id, and handles it.
                _ => (b.len(), Condition::Whole),
            };
        };
        let damaged = (CLEAR_BYTES, Condition::Damaged);
        let Some(session) = self.keys.session(header.session).filter(|s| s.is_in(header.session)) else {
            // from before the handshake, after the end, or sent back to where it came from: a stranger's
            return (b.len(), Condition::Whole);
        };
        let mut clear = [0; SEALED_HEADER_BYTES];
        clear.copy_from_slice(&b[..SEALED_HEADER_BYTES]);
        // the engine knows it by the connection id of the pair
        b[..CLEAR_BYTES].copy_from_slice(&session.cid_in().to_le_bytes());
        let opened = session.incoming.open(
            header.counter,
            &clear,
            &mut b[CLEAR_BYTES..],
            SEALED_HEADER_BYTES - CLEAR_BYTES..,
        );
        match opened {
            Ok(len) if CLEAR_BYTES + len >= PACKET_HEADER_BYTES => (CLEAR_BYTES + len, Condition::Whole),
            _ => damaged,
        }
    }

    /// Opens what has arrived in `b`. The first datagrams of one length and condition are at its beginning afterwards; the others
    /// wait.
    fn open_train(&self, t: ArrivedTrain, b: &mut [u8]) -> ArrivedTrain {
        let one = |len, condition| Arrived { rail: t.rail, from: t.from, len, condition };
        let mut first = ArrivedTrain { len: 0, segment: 1, ..t };
        let (mut at, mut filled) = (0, 0);
        let mut open_end = true;
        while at < t.len {
            let end = (at + t.segment).min(t.len);
            let (len, condition) = self.open(&mut b[at..end]);
            let fits = at == 0
                || (open_end
                    && condition == Condition::Whole
                    && first.condition == Condition::Whole
                    && len <= first.segment);
            if fits {
                b.copy_within(at..at + len, filled);
                if at == 0 {
                    (first.segment, first.condition) = (len.max(1), condition);
                }
                filled += len;
                // behind a shorter one there can be no other
                open_end = len == first.segment && condition == Condition::Whole;
            } else {
                self.rest.append([(one(len, condition), &b[at..at + len])]);
            }
            at = end;
        }
        first.len = filled;
        first
    }

    /// Receives into a buffer of our own when the caller's may be too small for what is encrypted.
    fn receive(&self, buf: &mut [u8], eagerly: bool) -> io::Result<Option<ArrivedTrain>> {
        let take = |room: &mut [u8]| match eagerly {
            true => self.inner.recv_train_eagerly(room),
            false => self.inner.recv_train(room),
        };
        if let Some(a) = self.rest.take(buf) {
            return Ok(Some(a.into()));
        }
        if buf.len() >= BYTES_MAX {
            let Some(t) = take(buf)? else { return Ok(None) };
            return Ok(Some(self.open_train(t, buf)));
        }
        IN.with_borrow_mut(|room| {
            room.resize(BYTES_MAX, 0);
            loop {
                let Some(t) = take(room)? else { return Ok(None) };
                let t = self.open_train(t, room);
                if let Some(to) = buf.get_mut(..t.len) {
                    to.copy_from_slice(&room[..t.len]);
                    return Ok(Some(t));
                }
                // Too long as a train: one after the other.
                self.rest.put_first(singly(t, &room[..t.len]));
                if let Some(a) = self.rest.take(buf) {
                    return Ok(Some(a.into()));
                }
            }
        })
    }
}

impl DatagramPort for SealedDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        match self.session(bytes) {
            Ok(None) => self.inner.send(rail, to, bytes),
            Ok(Some(session)) => OUT.with_borrow_mut(|out| {
                out.clear();
                match Self::seal(&session, bytes, out) {
                    true => self.inner.send(rail, to, out),
                    false => SendOutcome::Full,
                }
            }),
            Err(()) => SendOutcome::Full,
        }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let Some(t) = self.receive(buf, false)? else { return Ok(None) };
        let first = t.len.min(t.segment);
        if first < t.len {
            self.rest.put_first(singly(t, &buf[first..t.len]));
        }
        Ok(Some(Arrived { rail: t.rail, from: t.from, len: first, condition: t.condition }))
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        let full = |sent| TrainOutcome { sent, rest: SendOutcome::Full };
        // All are of one session, and none is a handshake.
        let Ok(Some(session)) = self.session(bytes) else { return full(0) };
        let sealed = segment + SEALED_EXTRA_BYTES;
        let at_once = (TRAIN_BYTES_MAX / sealed).max(1);
        OUT.with_borrow_mut(|out| {
            let mut sent = 0;
            for part in bytes.chunks(segment * at_once) {
                out.clear();
                if !part.chunks(segment).all(|d| Self::seal(&session, d, out)) {
                    return full(sent);
                }
                let done = self.inner.send_train(rail, to, out, sealed);
                sent += done.sent;
                if done.rest != SendOutcome::Sent {
                    return TrainOutcome { sent, rest: done.rest };
                }
            }
            TrainOutcome { sent, rest: SendOutcome::Sent }
        })
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.receive(buf, false)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.receive(buf, true)
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
