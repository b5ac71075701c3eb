//! Peers that send anything while connections are made by messages.

use super::Input;
use crate::exchange::{Call, Exchange, Happened};
use crate::hello::{Hello, Purpose};
use crate::setup::{End, Refusal, Setup, connections_of};
use rerail_rail::{Kind, Locator, RailId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::{Duration, Instant};

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
                    Some(Happened::Unanswered { .. }) => panic!("no request was open"),
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
