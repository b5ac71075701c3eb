//! How queue pairs are connected by messages ([`Setup`]), without RDMA-CM. Owns: the connections that this process has asked for or
//! granted, and what is repeated when. It sends nothing by itself and has no clock.
//!
//! Datagrams get lost, arrive twice and late. So
//!
//! * a request is repeated until it is answered, and the same request gets the same answer: [`Exchange::handle`] reports it once;
//! * a bye is repeated until it is confirmed, since the other side may have nothing else to notice the end by;
//! * a connection that is over is remembered for a while, so that a request which is late makes no second one. A late request that is
//!   forgotten makes a connection that its peer ends at once, with a bye.
//!
//! Each message is looked at together with the queue pair that sent it, which the adapter reports: nothing that another process sends
//! changes a connection.

use crate::hello::Hello;
use crate::lane::LaneNumber;
use crate::setup::{End, Refusal, Setup, connections_of};
use rerail_rail::{Locator, RailId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a request waits for an answer, and a bye for its confirmation. The engine gives up sooner.
const PATIENCE: Duration = Duration::from_secs(4);
/// After this a message is repeated first; each further time takes twice as long.
const REPEAT_FIRST: Duration = Duration::from_millis(10);
/// The longest time between repetitions.
const REPEAT_MAX: Duration = Duration::from_millis(320);
/// Connections that are over and were not confirmed so, at most. Beyond that the oldest is dropped: its peer notices by itself when it
/// sends.
const LEAVING_MAX: usize = 1024;
/// Connections that are over and remembered.
const OVER_MAX: usize = 4096;

/// A connection: the rail, the peer's queue pair for these messages, and the token of the side that connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// Rail of this process.
    pub rail: RailId,
    /// The peer's queue pair for these messages.
    pub peer: Locator,
    /// Chosen by the side that connects.
    pub token: u64,
}

/// What has become of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A peer wants one. [`Exchange::grant`] or [`Exchange::refuse`] follows.
    Requested {
        /// By which it is named there.
        call: Call,
        /// What the peer says.
        hello: Hello,
        /// Its queue pair.
        end: End,
    },
    /// The peer has granted what this process asked for.
    Granted {
        /// For which it was asked for.
        lane: LaneNumber,
        /// Where the peer is.
        peer: Locator,
        /// Its queue pair.
        end: End,
    },
    /// It has not.
    Refused {
        /// See above.
        lane: LaneNumber,
        /// What the peer says.
        why: Refusal,
    },
    /// It has not answered.
    Unanswered {
        /// See above.
        lane: LaneNumber,
    },
    /// The peer has no such connection any more.
    Ended {
        /// Of the connection.
        lane: LaneNumber,
    },
}

/// A message that is repeated.
struct Repeated {
    setup: Setup,
    next: Instant,
    wait: Duration,
    until: Instant,
}

impl Repeated {
    fn new(setup: Setup, now: Instant) -> Repeated {
        Repeated { setup, next: now + REPEAT_FIRST, wait: REPEAT_FIRST, until: now + PATIENCE }
    }
}

enum State {
    /// This process has asked for it.
    Asking(Repeated),
    /// It has not been answered, and its lane not been given back.
    Unanswered,
    /// This process has granted it, so.
    Granted(Setup),
    /// The peer has.
    Connected,
    /// This process has ended it.
    Leaving(Repeated),
}

struct Known {
    lane: LaneNumber,
    state: State,
}

/// See the module.
#[derive(Default)]
pub struct Exchange {
    calls: FxHashMap<Call, Known>,
    lanes: FxHashMap<LaneNumber, Call>,
    /// Those that are over, in order of their end.
    leaving: VecDeque<Call>,
    over: VecDeque<Call>,
    is_over: FxHashSet<Call>,
    out: Vec<(Call, Setup)>,
}

impl Exchange {
    /// Asks a process for a connection to this lane. `false`: its service names none.
    pub fn ask(
        &mut self,
        (lane, rail): (LaneNumber, RailId),
        to: Locator,
        request: (Hello, End),
        token: u64,
        now: Instant,
    ) -> bool {
        let Some(number) = connections_of(to.service()) else { return false };
        let call = Call { rail, peer: to.with_service(number), token };
        let setup = Setup::Request(request.0, request.1);
        self.calls.insert(call, Known { lane, state: State::Asking(Repeated::new(setup, now)) });
        self.lanes.insert(lane, call);
        self.out.push((call, setup));
        true
    }

    /// Grants what was requested, to this lane with this queue pair.
    pub fn grant(&mut self, call: Call, lane: LaneNumber, end: End) {
        let setup = Setup::Accept(end);
        self.calls.insert(call, Known { lane, state: State::Granted(setup) });
        self.lanes.insert(lane, call);
        self.out.push((call, setup));
    }

    /// Refuses what was requested. Nothing is kept: a repetition is looked at anew.
    pub fn refuse(&mut self, call: Call, why: Refusal) {
        self.out.push((call, Setup::Refuse(why)));
    }

    /// A lane is used no more.
    pub fn end(&mut self, lane: LaneNumber, now: Instant) {
        let Some(call) = self.lanes.remove(&lane) else { return };
        self.remember(call);
        let known = self.calls.get_mut(&call).expect("each lane has its call");
        known.state = State::Leaving(Repeated::new(Setup::Bye, now));
        self.out.push((call, Setup::Bye));
        self.leaving.push_back(call);
        if self.leaving.len() > LEAVING_MAX {
            let oldest = self.leaving.pop_front().expect("there are some");
            self.calls.remove(&oldest);
        }
    }

    /// Says bye to all peers, once.
    pub fn end_all(&mut self, now: Instant) {
        let lanes: Vec<_> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.end(lane, now));
    }

    fn remember(&mut self, call: Call) {
        if self.is_over.insert(call) {
            self.over.push_back(call);
            if self.over.len() > OVER_MAX {
                let oldest = self.over.pop_front().expect("there are some");
                self.is_over.remove(&oldest);
            }
        }
    }

    /// Takes a message that a queue pair of a peer has sent.
    pub fn handle(&mut self, rail: RailId, peer: Locator, bytes: &[u8]) -> Option<Happened> {
        let (token, setup) = Setup::read(bytes)?;
        let call = Call { rail, peer, token };
        let known = self.calls.get_mut(&call);
        match (setup, known) {
            // The sender connects for the process that it is.
            (Setup::Request(hello, _), None) if connections_of(hello.from) != Some(peer.service()) => None,
            (Setup::Request(..), None) if self.is_over.contains(&call) => {
                self.out.push((call, Setup::Bye));
                None
            }
            (Setup::Request(hello, end), None) => Some(Happened::Requested { call, hello, end }),
            (Setup::Request(..), Some(known)) => {
                if let State::Granted(answer) = known.state {
                    self.out.push((call, answer));
                }
                None
            }
            (Setup::Accept(end), Some(known)) => {
                let State::Asking(_) = known.state else { return None };
                known.state = State::Connected;
                Some(Happened::Granted { lane: known.lane, peer, end })
            }
            // Given up meanwhile, or by a process that had this number before.
            (Setup::Accept(_), None) => {
                self.out.push((call, Setup::Bye));
                None
            }
            (Setup::Refuse(why), Some(known)) => {
                let State::Asking(_) = known.state else { return None };
                let lane = known.lane;
                self.forget(call);
                Some(Happened::Refused { lane, why })
            }
            (Setup::Bye, known) => {
                self.out.push((call, Setup::Gone));
                let ended = known.map(|known| known.lane);
                let live = ended.filter(|lane| self.lanes.contains_key(lane));
                // Where it comes before its request, that is late.
                self.remember(call);
                self.forget(call);
                live.map(|lane| Happened::Ended { lane })
            }
            (Setup::Gone, Some(Known { state: State::Leaving(_), .. })) => {
                self.forget(call);
                None
            }
            (Setup::Refuse(_) | Setup::Gone, _) => None,
        }
    }

    fn forget(&mut self, call: Call) {
        if let Some(known) = self.calls.remove(&call) {
            match known.state {
                State::Leaving(_) => self.leaving.retain(|c| *c != call),
                _ => drop(self.lanes.remove(&known.lane)),
            }
        }
    }

    /// Repeats what is due. Calls `report` for what got no answer.
    pub fn repeat(&mut self, now: Instant, mut report: impl FnMut(Happened)) {
        let mut given_up = Vec::new();
        for (call, known) in &mut self.calls {
            let (State::Asking(repeated) | State::Leaving(repeated)) = &mut known.state else { continue };
            if repeated.next > now {
                continue;
            }
            if repeated.until <= now {
                given_up.push(*call);
                continue;
            }
            repeated.wait = (2 * repeated.wait).min(REPEAT_MAX);
            repeated.next = (now + repeated.wait).min(repeated.until);
            self.out.push((*call, repeated.setup));
        }
        for call in given_up {
            let known = self.calls.get_mut(&call).expect("it was found");
            match known.state {
                State::Asking(_) => {
                    // A bye follows when the lane is given back: the answer may be what was lost.
                    known.state = State::Unanswered;
                    report(Happened::Unanswered { lane: known.lane });
                }
                _ => self.forget(call),
            }
        }
    }

    /// When [`Exchange::repeat`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        let next = |known: &Known| match &known.state {
            State::Asking(repeated) | State::Leaving(repeated) => Some(repeated.next),
            _ => None,
        };
        self.calls.values().filter_map(next).min()
    }

    /// What is to be sent.
    pub fn take(&mut self) -> impl Iterator<Item = (RailId, Locator, Vec<u8>)> + use<> {
        let all = std::mem::take(&mut self.out);
        all.into_iter().map(|(call, setup)| (call.rail, call.peer, setup.to_bytes(call.token)))
    }

    /// Entries of all tables, and what each may have beside one for each lane that is in use.
    #[cfg(any(test, feature = "hostile"))]
    pub fn check(&self) {
        assert!(self.leaving.len() <= LEAVING_MAX && self.over.len() <= OVER_MAX);
        assert_eq!(self.over.len(), self.is_over.len());
        assert_eq!(self.calls.len(), self.lanes.len() + self.leaving.len());
        for (lane, call) in &self.lanes {
            assert_eq!(self.calls[call].lane, *lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Purpose;
    use crate::setup::service;
    use rerail_rail::Kind;

    const RAIL: RailId = RailId(1);
    /// An end of a queue pair.
    const END: End = End { queue_pair: 77, packet: 5, mtu: 3 };
    const OTHER: End = End { queue_pair: 78, packet: 6, mtu: 5 };

    /// A process with its queue pairs for datagrams and connections: where it is published, and what its messages come from.
    fn process(number: u32) -> (Locator, Locator) {
        let service = service(number, number + 1).unwrap();
        let at = |service| Locator::new(Kind::IB, &number.to_be_bytes(), service).unwrap();
        (at(service), at(number + 1))
    }

    /// Two processes, and what is under way between them.
    struct Pair {
        sides: [Exchange; 2],
        now: Instant,
    }

    impl Pair {
        fn new() -> Pair {
            Pair { sides: Default::default(), now: Instant::now() }
        }

        fn ask(&mut self, side: usize, lane: LaneNumber, token: u64) {
            let hello = Hello {
                purpose: Purpose::Stream,
                from: process(100 + side as u32).0.service(),
                to: process(101 - side as u32).0.service(),
            };
            let to = process(101 - side as u32).0;
            assert!(self.sides[side].ask((lane, RAIL), to, (hello, END), token, self.now));
        }

        /// What a side has sent.
        fn sent(&mut self, side: usize) -> Vec<Vec<u8>> {
            let peer = process(101 - side as u32).1;
            let to = |(rail, to, bytes)| {
                assert_eq!((rail, to), (RAIL, peer));
                bytes
            };
            self.sides[side].take().map(to).collect()
        }

        /// A message of the other side arrives.
        fn arrives(&mut self, side: usize, bytes: &[u8]) -> Option<Happened> {
            let happened = self.sides[side].handle(RAIL, process(101 - side as u32).1, bytes);
            self.sides[side].check();
            happened
        }

        /// Everything that the other side has sent arrives.
        fn all_arrive(&mut self, side: usize) -> Vec<Happened> {
            let sent = self.sent(1 - side);
            sent.iter().filter_map(|bytes| self.arrives(side, bytes)).collect()
        }

        /// Time passes; what was given up.
        fn wait(&mut self, side: usize, time: Duration) -> Vec<Happened> {
            self.now += time;
            let mut all = Vec::new();
            self.sides[side].repeat(self.now, |happened| all.push(happened));
            self.sides[side].check();
            all
        }

        /// Lane 2 of side 0 is connected with lane 3 of side 1; the request.
        fn connected(token: u64) -> (Pair, Vec<u8>) {
            let mut pair = Pair::new();
            pair.ask(0, 2, token);
            let request = pair.sent(0).remove(0);
            let Some(Happened::Requested { call, .. }) = pair.arrives(1, &request) else {
                panic!("it is reported")
            };
            pair.sides[1].grant(call, 3, OTHER);
            assert!(matches!(pair.all_arrive(0)[..], [Happened::Granted { lane: 2, end: OTHER, .. }]));
            (pair, request)
        }
    }

    #[test]
    fn a_request_is_repeated_until_it_is_answered_and_reported_once() {
        let mut pair = Pair::new();
        pair.ask(0, 2, 9);
        pair.sent(0);
        let mut requests = Vec::new();
        for _ in 0..3 {
            assert_eq!(pair.wait(0, REPEAT_MAX), []);
            requests.extend(pair.sent(0));
        }
        assert_eq!(requests.len(), 3);
        let first = pair.arrives(1, &requests[0]);
        let Some(Happened::Requested { call, hello, end: END }) = first else { panic!("{first:?}") };
        assert_eq!(hello.from, process(100).0.service());
        pair.sides[1].grant(call, 3, OTHER);
        let answer = pair.sent(1);
        for request in &requests {
            assert_eq!(pair.arrives(1, request), None, "it makes no second connection");
            assert_eq!(pair.sent(1), answer, "it gets the same answer");
        }
        let granted = pair.arrives(0, &answer[0]);
        let peer = process(101).1;
        assert_eq!(granted, Some(Happened::Granted { lane: 2, peer, end: OTHER }));
        assert_eq!(pair.arrives(0, &answer[0]), None);
        assert_eq!((pair.wait(0, PATIENCE), pair.sent(0)), (vec![], vec![]), "nothing is repeated any more");
    }

    #[test]
    fn a_request_without_an_answer_is_given_up_and_its_late_answer_ended() {
        let mut pair = Pair::new();
        pair.ask(0, 2, 9);
        let request = pair.sent(0).remove(0);
        assert_eq!(pair.wait(0, PATIENCE), [Happened::Unanswered { lane: 2 }]);
        let Some(Happened::Requested { call, .. }) = pair.arrives(1, &request) else { panic!() };
        pair.sides[1].grant(call, 3, OTHER);
        assert_eq!(pair.all_arrive(0), [], "too late");
        pair.sides[0].end(2, pair.now);
        assert_eq!(pair.all_arrive(1), [Happened::Ended { lane: 3 }]);
        pair.all_arrive(0);
        assert_eq!(pair.sides[0].due(), None, "and that is confirmed");
    }

    #[test]
    fn a_bye_is_repeated_until_it_is_confirmed() {
        let (mut pair, _) = Pair::connected(9);
        pair.sides[0].end(2, pair.now);
        assert_eq!(pair.sent(0).len(), 1, "it gets lost");
        pair.wait(0, REPEAT_FIRST);
        assert_eq!(pair.all_arrive(1), [Happened::Ended { lane: 3 }]);
        pair.wait(0, REPEAT_MAX);
        assert_eq!(pair.all_arrive(1), [], "it is reported once");
        pair.all_arrive(0);
        assert_eq!((pair.wait(0, REPEAT_MAX), pair.sent(0).len()), (vec![], 0));
        pair.sides[1].end(3, pair.now);
        assert_eq!(pair.sent(1).len(), 0, "the peer knows");
        // a peer that is gone confirms nothing
        let (mut pair, _) = Pair::connected(10);
        pair.sides[0].end(2, pair.now);
        pair.wait(0, PATIENCE);
        assert_eq!(pair.sides[0].due(), None);
    }

    #[test]
    fn a_request_that_comes_after_the_end_makes_nothing() {
        let (mut pair, request) = Pair::connected(9);
        pair.sides[0].end(2, pair.now);
        pair.all_arrive(1);
        assert_eq!(pair.arrives(1, &request), None);
        // a bye that overtakes its request
        pair.ask(0, 4, 10);
        let request = pair.sent(0).remove(0);
        pair.sides[0].end(4, pair.now);
        pair.all_arrive(1);
        assert_eq!(pair.arrives(1, &request), None);
        let byes = pair.sent(1).iter().filter(|b| Setup::read(b) == Some((10, Setup::Bye))).count();
        assert_eq!(byes, 1, "the side that connects is told");
    }

    #[test]
    fn nothing_that_another_process_sends_changes_a_connection() {
        let (mut pair, request) = Pair::connected(9);
        let stranger = process(500).1;
        let happened = pair.sides[1].handle(RAIL, stranger, &request);
        assert_eq!(happened, None, "it asks in the name of another process");
        for setup in [Setup::Bye, Setup::Gone, Setup::Refuse(Refusal::NoSuchProcess), Setup::Accept(END)] {
            for side in 0..2 {
                assert_eq!(pair.sides[side].handle(RAIL, stranger, &setup.to_bytes(9)), None);
                let peer = process(101 - side as u32).1;
                assert_eq!(
                    pair.sides[side].handle(RailId(0), peer, &setup.to_bytes(9)),
                    None,
                    "another rail"
                );
            }
        }
        pair.sides[0].take().chain(pair.sides[1].take()).for_each(drop);
        pair.sides[0].end(2, pair.now);
        assert_eq!(pair.all_arrive(1), [Happened::Ended { lane: 3 }], "it lived until now");
    }

    #[test]
    fn both_sides_may_ask_at_once_and_each_gets_its_connection() {
        let mut pair = Pair::new();
        pair.ask(0, 2, 9);
        pair.ask(1, 2, 10);
        let requests = [pair.sent(1), pair.sent(0)];
        for (side, requests) in requests.iter().enumerate() {
            let [request] = &requests[..] else { panic!("one request") };
            let Some(Happened::Requested { call, .. }) = pair.arrives(side, request) else { panic!() };
            pair.sides[side].grant(call, 3, OTHER);
        }
        for side in 0..2 {
            assert!(matches!(pair.all_arrive(side)[..], [Happened::Granted { lane: 2, .. }]));
        }
    }

    #[test]
    fn a_refusal_keeps_nothing_and_names_its_reason() {
        let mut pair = Pair::new();
        pair.ask(0, 2, 9);
        let request = pair.sent(0).remove(0);
        for _ in 0..2 {
            let Some(Happened::Requested { call, .. }) = pair.arrives(1, &request) else {
                panic!("it is looked at anew")
            };
            pair.sides[1].refuse(call, Refusal::NoRoom);
        }
        let why = Refusal::NoRoom;
        assert_eq!(pair.all_arrive(0), [Happened::Refused { lane: 2, why }], "once");
        assert_eq!((pair.sides[0].due(), pair.sides[1].due()), (None, None));
        pair.sides[0].end(2, pair.now);
        assert_eq!(pair.sent(0).len(), 0);
    }

    #[test]
    fn what_is_kept_of_the_past_is_bounded() {
        let mut pair = Pair::new();
        for n in 0..OVER_MAX as u64 + LEAVING_MAX as u64 {
            pair.ask(0, 2 * n as LaneNumber, n);
            pair.sides[0].end(2 * n as LaneNumber, pair.now);
            pair.sent(0);
            pair.sides[0].check();
        }
        for n in 0..2 * OVER_MAX as u64 {
            pair.arrives(1, &Setup::Bye.to_bytes(n));
            pair.sent(1);
        }
    }
}
