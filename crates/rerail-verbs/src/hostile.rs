//! A peer that sends anything, against the parsers of this crate and against a lane.
//!
//! Source: hazard H30. Owns: a model of what the peer may have been promised.

use crate::abi::{IBV_WC_SUCCESS, ibv_wc};
use crate::exchange::{Call, Exchange, Happened};
use crate::fake::{self, Work, posted};
use crate::hello::{Hello, Purpose};
use crate::lane::{Lane, RECEIVE, SPARE, Shape};
use crate::message::{HEADER_BYTES, Header};
use crate::setup::{End, Refusal, Setup, connections_of};
use rerail_rail::{IoVec, Kind, Locator, RailId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of the lane.
const LANE: u32 = 2;

/// The private data of a connection, and the header of a message: what is taken is written back as it was.
pub fn headers(bytes: &[u8]) {
    if let Some(hello) = Hello::read(bytes) {
        assert_eq!(hello.to_bytes()[..], bytes[..hello.to_bytes().len()]);
    }
    if let Some((token, setup)) = Setup::read(bytes) {
        assert_eq!(setup.to_bytes(token), bytes);
    }
    if let Some(header) = Header::read(bytes) {
        assert_eq!(header.to_bytes()[..], bytes[..HEADER_BYTES]);
        assert_eq!(header.bytes as usize, bytes.len() - HEADER_BYTES);
    }
}

/// What became of the messages by which connections are made, so that a test sees that inputs reach all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Messages of peers by their kind: request, accept, refuse, bye, gone; and what is none.
    pub seen: [u32; 6],
    /// What was reported of them: requested, granted, refused, ended; and what was given up.
    pub reported: [u32; 5],
}

/// Peers of an exchange.
const PEERS: u32 = 2;

/// The queue pair for messages of a peer, and its service.
fn peer(number: u32) -> (Locator, u32) {
    let service = 2 * number + 10;
    let from = connections_of(service).expect("a neighbour");
    (Locator::new(Kind::IB, &[number as u8], from).expect("one byte"), service)
}

/// Connections without RDMA-CM, and what their user and peers do. Whatever the peers send, a connection that is granted or was over is
/// not requested again, only its own peer changes one, each is over once, and what is kept is bounded.
pub fn exchange(bytes: &[u8]) -> Exchanged {
    let mut input = Input(bytes);
    let (mut exchange, mut reached) = (Exchange::default(), Exchanged::default());
    let mut now = Instant::now();
    // lanes that are in use, and with whom; requests that were granted or are over
    let mut lanes: FxHashMap<u32, (RailId, Locator, bool)> = FxHashMap::default();
    let mut known: FxHashSet<Call> = FxHashSet::default();
    let mut next = 2;
    while let Some(what) = input.byte() {
        // a few at a time, and now and then one of before
        let token = |byte: Option<u8>| {
            let byte = u64::from(byte.unwrap_or(0));
            (u64::from(next) / 8).saturating_sub(byte >> 7) << 2 | byte & 3
        };
        let (from, service) = peer(u32::from(what) % PEERS);
        let rail = RailId(what >> 7);
        let lane = lanes.keys().min().copied();
        match what >> 2 & 7 {
            0 => {
                let hello = Hello { purpose: Purpose::Stream, from: 4, to: service };
                let end = End { queue_pair: 2, packet: 0, mtu: 1 };
                let token = token(input.byte());
                let call = Call { rail, peer: from, token };
                // tokens are random numbers of 64 bits: what this process asks for has a new one
                if known.insert(call) {
                    assert!(exchange.ask((next, rail), from.with_service(service), (hello, end), token, now));
                    lanes.insert(next, (rail, from, false));
                    next += 2;
                }
            }
            1 => {
                if let Some(lane) = lane {
                    lanes.remove(&lane);
                    exchange.end(lane, now);
                }
            }
            2 => {
                now += Duration::from_millis(u64::from(input.byte().unwrap_or(0)) << (2 * (what & 3)));
                exchange.repeat(now, |happened| {
                    let Happened::Unanswered { lane } = happened else { panic!("{happened:?}") };
                    assert!(lanes.get(&lane).is_some_and(|(.., granted)| !granted));
                    reached.reported[4] += 1;
                });
            }
            form => {
                let token = token(input.byte());
                let message = match form {
                    3 => {
                        let len = usize::from(input.byte().unwrap_or(0));
                        input.take(len).to_vec()
                    }
                    form => {
                        let word = u32::from(input.byte().unwrap_or(0));
                        let end = End { queue_pair: word, packet: word << 8, mtu: word as u8 % 7 };
                        let from = if word < 0x20 { 4 } else { service };
                        let hello = Hello { purpose: Purpose::Stream, from, to: 4 };
                        match (form, word & 1) {
                            (4, _) => Setup::Request(hello, end),
                            (5, _) => Setup::Accept(end),
                            (6, 0) => Setup::Refuse(Refusal::NoRoom),
                            (6, _) => Setup::Gone,
                            _ => Setup::Bye,
                        }
                        .to_bytes(token)
                    }
                };
                let read = Setup::read(&message);
                if let Some((token, setup)) = read {
                    assert_eq!(setup.to_bytes(token), message, "what is taken is written back as it was");
                }
                let kind = match read {
                    Some((_, Setup::Request(..))) => 0,
                    Some((_, Setup::Accept(_))) => 1,
                    Some((_, Setup::Refuse(_))) => 2,
                    Some((_, Setup::Bye)) => 3,
                    Some((_, Setup::Gone)) => 4,
                    None => 5,
                };
                reached.seen[kind] += 1;
                let happened = exchange.handle(rail, from, &message);
                let mut of_peer = |lane: u32| {
                    let (r, at, granted) = lanes.get_mut(&lane).expect("a lane that is in use");
                    assert_eq!((*r, *at), (rail, from), "another process changes a connection");
                    std::mem::replace(granted, true)
                };
                let number = match happened {
                    Some(Happened::Requested { call, hello, .. }) => {
                        assert_eq!(connections_of(hello.from), Some(from.service()));
                        assert_eq!((call.rail, call.peer), (rail, from));
                        if what & 2 == 0 {
                            assert!(known.insert(call), "it is requested again");
                            let lane = next + 1;
                            next += 2;
                            exchange.grant(call, lane, End { queue_pair: 3, packet: 0, mtu: 1 });
                            lanes.insert(lane, (rail, from, true));
                        } else {
                            assert!(!known.contains(&call), "it is requested again");
                            exchange.refuse(call, Refusal::NoRoom);
                        }
                        Some(0)
                    }
                    Some(Happened::Granted { lane, .. }) => {
                        assert!(!of_peer(lane), "it is granted twice");
                        Some(1)
                    }
                    Some(Happened::Refused { lane, .. }) => {
                        assert!(!of_peer(lane), "it is refused after it was granted");
                        lanes.remove(&lane);
                        // nothing is kept of it, and the peer may use its token
                        known.retain(|call| {
                            Some((call.token, call.peer, call.rail)) != read.map(|r| (r.0, from, rail))
                        });
                        Some(2)
                    }
                    Some(Happened::Ended { lane }) => {
                        of_peer(lane);
                        lanes.remove(&lane);
                        Some(3)
                    }
                    Some(Happened::Unanswered { .. }) => panic!("nobody waited"),
                    None => None,
                };
                number.into_iter().for_each(|number| reached.reported[number] += 1);
            }
        }
        exchange.check();
        let answers = exchange.take().count();
        assert!(answers <= 1 + lanes.len() + known.len(), "an answer is one message");
    }
    reached
}

/// What happened to a lane, so that a test sees that inputs reach it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// Messages of the peer that were taken.
    pub messages: u32,
    /// Messages that this side sent.
    pub sent: u32,
    /// Bytes or datagrams that were read.
    pub read: u32,
    /// The peer broke a rule, and the lane ended.
    pub refused: u32,
}

/// The bytes of the input, one by one.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0)) << 8 | usize::from(self.byte().unwrap_or(0))
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// What both sides know, computed apart from the lane.
struct Model {
    lane: Lane,
    shape: &'static Shape,
    /// Slots that receive, in the order in which the adapter fills them.
    receives: VecDeque<u64>,
    /// Messages that take a credit and that the peer has room for.
    room: usize,
    /// The same of the peer, as it knows. Below 0: it has sent more than it may.
    allowed: isize,
    /// Messages that were read and not returned.
    owed: usize,
    /// Messages that came and are not read, as far as they are not.
    unread: VecDeque<VecDeque<u8>>,
    /// Numbers of sends whose end the adapter reports.
    under_way: VecDeque<u32>,
    ended: bool,
    reached: Reached,
}

impl Model {
    fn new(shape: &'static Shape) -> Model {
        posted();
        let mut model = Model {
            lane: fake::lane(LANE, shape),
            shape,
            receives: VecDeque::new(),
            room: shape.messages(),
            allowed: shape.messages() as isize,
            owed: 0,
            unread: VecDeque::new(),
            under_way: VecDeque::new(),
            ended: false,
            reached: Reached::default(),
        };
        model.look();
        model
    }

    /// Looks at what the lane has posted.
    fn look(&mut self) {
        for work in posted() {
            match work {
                Work::Receive(slot) => {
                    assert!(!self.receives.contains(&slot), "a slot receives twice");
                    self.receives.push_back(slot);
                }
                Work::Send(header, bytes, reports, number) => {
                    assert!(!self.ended, "a lane that is over sends nothing");
                    let counted = !bytes.is_empty() || header.answers;
                    assert!(!counted || self.room > 0, "the peer has no room for a message");
                    self.room -= usize::from(counted);
                    let credits = usize::from(header.credits);
                    assert!(credits <= self.owed, "more is returned than was read");
                    assert!(counted || 2 * credits >= self.shape.messages(), "it has no receive for so many");
                    self.owed -= credits;
                    self.allowed += credits as isize;
                    let expected = self.allowed + SPARE as isize;
                    assert!(expected <= self.receives.len() as isize, "a message may find no receive");
                    self.reached.sent += 1;
                    self.under_way.extend(reports.then_some(number));
                }
                Work::Write(..) | Work::Datagram(..) => unreachable!("nothing is placed here"),
            }
        }
        assert!(self.receives.len() <= self.shape.messages() + SPARE);
    }

    /// A message comes, whatever it is.
    fn comes(&mut self, message: &[u8]) {
        // Without a receive the adapter ends the connection. What comes behind a broken rule is not looked at.
        let Some(slot) = self.receives.pop_front().filter(|_| !self.ended) else { return };
        let message = &message[..message.len().min(self.shape.message_bytes())];
        self.lane.fill(slot as usize, message);
        let header =
            Header::read(message).filter(|h| self.room + usize::from(h.credits) <= self.shape.messages());
        let wr_id = u64::from(LANE) << 32 | RECEIVE | slot;
        let entry =
            ibv_wc { wr_id, status: IBV_WC_SUCCESS, byte_len: message.len() as u32, ..ibv_wc::default() };
        self.lane.complete(&entry, |_| unreachable!("nothing is placed here"));
        let Some(header) = header else {
            self.reached.refused += 1;
            self.ended = true;
            return;
        };
        self.reached.messages += 1;
        self.allowed -= isize::from(header.bytes > 0 || header.answers);
        self.room += usize::from(header.credits);
        self.owed += usize::from(header.answers);
        if header.bytes > 0 {
            self.unread.push_back(message[HEADER_BYTES..].iter().copied().collect());
        }
    }

    fn read(&mut self, room: usize) {
        let mut buf = vec![0; room];
        let expected: Vec<u8>;
        let n;
        if self.shape == &Shape::STREAM {
            // SAFETY: memory of this call.
            n = unsafe { self.lane.read(&[IoVec::from_mut(&mut buf)]) };
            let mut bytes = Vec::new();
            while bytes.len() < room && !self.unread.is_empty() {
                let message = self.unread.front_mut().expect("it is not empty");
                let k = message.len().min(room - bytes.len());
                bytes.extend(message.drain(..k));
                if message.is_empty() {
                    self.unread.pop_front();
                    self.owed += 1;
                }
            }
            expected = bytes;
        } else {
            n = self.lane.receive_datagram(&mut buf).unwrap_or(0);
            let mut found = Vec::new();
            while let Some(message) = self.unread.pop_front() {
                self.owed += 1;
                if message.len() <= room {
                    found = message.into();
                    break;
                }
            }
            expected = found;
        }
        assert_eq!(buf[..n], expected, "what was sent is read, in order");
        self.reached.read += u32::from(n > 0);
    }
}

/// A lane, and what its user and its peer do: whatever the peer sends, what is read is what came, no message is sent for which
/// the peer has no receive, and a broken rule ends the lane.
pub fn lane(bytes: &[u8]) -> Reached {
    let mut input = Input(bytes);
    let shape = if input.byte().unwrap_or(0) & 1 == 0 { &Shape::STREAM } else { &Shape::DATAGRAMS };
    let mut m = Model::new(shape);
    while let Some(what) = input.byte() {
        match what % 8 {
            3 if what >= 0xe0 => {
                let len = usize::from(input.byte().unwrap_or(0));
                let message = input.take(len);
                m.comes(message);
            }
            // as a peer should, and seldom with too many credits
            0..=3 => {
                let most = shape.messages() - m.room + usize::from(what >= 0xf0);
                let credits = (usize::from(input.byte().unwrap_or(0)) % 4).min(most) as u16;
                let answers = what & 0x30 == 0x30;
                let len =
                    if answers { 0 } else { input.number() % (shape.message_bytes() - HEADER_BYTES + 1) };
                let header = Header { credits, bytes: len as u32, answers };
                let payload = vec![what; len];
                m.comes(&[&header.to_bytes()[..], &payload].concat());
            }
            4 => {
                let room = input.number() % 20_000;
                m.read(room);
            }
            5 => {
                // now and then more than the peer has room for
                let payload = vec![7; input.number() % 20_000 * if what >= 0xa0 { 8 } else { 1 }];
                // SAFETY: memory of this call.
                unsafe { m.lane.write(&[IoVec::from_ref(&payload)]) };
            }
            6 if shape == &Shape::DATAGRAMS => {
                let payload = vec![9; 1 + input.number() % (shape.message_bytes() - HEADER_BYTES)];
                if what & 0x10 == 0 {
                    m.lane.answer();
                } else {
                    m.lane.send_datagram(&payload);
                }
            }
            _ => {
                let over = if what >= 0xa0 { m.under_way.len() } else { 1.min(m.under_way.len()) };
                for number in m.under_way.drain(..over) {
                    let wr_id = u64::from(LANE) << 32 | u64::from(number);
                    m.lane.complete(&ibv_wc { wr_id, ..ibv_wc::default() }, |_| unreachable!());
                }
            }
        }
        m.look();
        if m.ended && m.unread.is_empty() {
            assert!(m.lane.over().is_some(), "a broken rule ends the lane");
        }
    }
    m.reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of 400 bytes.
    fn inputs(count: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut byte = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 24) as u8
        };
        (0..count).map(move |_| (0..400).map(|_| byte()).collect())
    }

    #[test]
    fn whatever_peers_send_a_connection_is_theirs_alone_and_made_once() {
        let mut sum = Exchanged::default();
        for bytes in inputs(4000) {
            let reached = exchange(&bytes);
            for (sum, n) in sum.seen.iter_mut().zip(reached.seen) {
                *sum += n;
            }
            for (sum, n) in sum.reported.iter_mut().zip(reached.reported) {
                *sum += n;
            }
        }
        let least = sum.seen.into_iter().chain(sum.reported).min();
        assert!(least > Some(100), "the inputs reach little: {sum:?}");
    }

    #[test]
    fn whatever_a_peer_sends_credits_hold_and_bytes_are_right() {
        let mut sum = Reached::default();
        for bytes in inputs(500) {
            headers(&bytes);
            let r = lane(&bytes);
            sum.messages += r.messages;
            sum.sent += r.sent;
            sum.read += r.read;
            sum.refused += r.refused;
        }
        let least = [sum.messages, sum.sent, sum.read, sum.refused].into_iter().min();
        assert!(least > Some(200), "the inputs reach little: {sum:?}");
    }
}
