//! Lanes that leave crowded routes.
//!
//! Owns, for each lane of a path: how often it was found much slower than another, how far its move is, and when the next may begin. A
//! fabric chooses the route of a connection by its ports, so a lane moves by another connection. It does so when nothing is under way on the old one, in
//! either direction: nothing is sent twice, and nothing comes late by the old route. One lane of a path moves at a time. Whether that was worth it is
//! shown by all lanes together: of lanes that share a bottleneck one is always the slowest, by chance, and better after a move, by chance too. A move that
//! brought nothing is followed by a pause that doubles. Invariant: of the lanes that have a stream at least one takes what is new.
//!
//! Sources: HSAM §3 (adaptive striping finds the slow path, and gives it less), Protective Load Balancing §3 (Qureshi et al., SIGCOMM 2022: a
//! connection leaves a congested route at an idle moment). Differs: the sign is the rate beside the other lanes, because most Ethernet fabrics mark
//! nothing; and routes that are no slower are kept, as in REPS (Bonato et al., 2024).

use crate::rest::rests;
use crate::types::{LaneId, Time, ms};
use std::time::Duration;

/// A lane that makes less than this share of what the best lane of its path makes is slow. Max-min fair shares of random routes are no more uneven than this
/// after some moves, and a kernel's congestion control is by chance (docs/notes/lanes.md).
const SLOW: f64 = 0.6;
/// So many looks in a row find it slow before it moves.
const LOOKS: u8 = 2;
/// Time between two looks: at least, and in round trips.
const LOOK_EVERY: (Duration, u32) = (ms(20), 4);
/// A rate counts with so many samples since the last look in which the lane was never idle.
pub(crate) const SAMPLES: u8 = 2;
/// How long both sides may take to bring what is under way to its end.
const DRAIN: Duration = ms(300);
/// How long a stream takes nothing new at the peer's request: longer than the peer tries.
const PEER_DRAIN: Duration = ms(400);
/// A move was worth it if the path makes this many times what it made before.
const WORTH: f64 = 1.05;
/// Pause of a path after a move: after one that was worth it, and the longest after others.
const PAUSE: (Duration, Duration) = (ms(100), ms(30_000));
/// What may be under way on a fresh stream, until more than that is acknowledged: it begins with TCP's slow start.
pub(super) const FRESH: u64 = 64 * 1024;

/// How far the move of a lane is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Step {
    #[default]
    Stays,
    /// Stream of this number takes nothing new, since then; whether the peer has nothing under way on it.
    Leaves { number: u64, since: Time, left: bool },
    /// Another one is being opened.
    Opens { since: Time },
    /// It is attached, and is to show its rate; so many looks have found one, and so many bytes were acknowledged on it.
    Tries { looks: u8, acked: u64 },
    /// Stream of this number takes nothing new at the peer's request, since then; whether the peer knows that it is empty.
    Yields { number: u64, since: Time, told: bool },
}

/// A lane.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Move {
    /// Looks in a row that found it slow.
    slow: u8,
    step: Step,
    /// Bytes per second that it made before it left.
    before: f64,
}

/// See above.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Moves {
    look_at: Option<Time>,
    looked_at: Time,
    /// Bytes that were acknowledged since then, on all lanes.
    acked: u64,
    /// Bytes per second that all lanes made by the last look, and before the last move.
    makes: f64,
    made: f64,
    /// No move begins before that.
    rests_until: Option<Time>,
    pause: Duration,
    lanes: Vec<Move>,
}

rests! {
    Moves = Moves {
        look_at: None,
        looked_at: Time::ORIGIN,
        acked: 0,
        makes: 0.0,
        made: 0.0,
        rests_until: None,
        pause: Duration::ZERO,
        lanes: Vec::new(),
    };
}

/// What is to be done about a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before then.
    Wait(Time),
    /// Open another stream.
    Open,
    /// Report that nothing is under way on it.
    TellLeft,
    /// It stays where it is, and takes what is new again.
    Stay,
}

impl Moves {
    fn lane_mut(&mut self, id: LaneId) -> &mut Move {
        let at = usize::from(id.0);
        if self.lanes.len() <= at {
            self.lanes.resize(at + 1, Move::default());
        }
        &mut self.lanes[at]
    }

    fn step(&self, id: LaneId) -> Step {
        self.lanes.get(usize::from(id.0)).map_or(Step::Stays, |m| m.step)
    }

    /// Whether the stream of a lane takes nothing new.
    #[inline]
    pub fn is_left(&self, id: LaneId, now: Time) -> bool {
        match self.step(id) {
            Step::Leaves { .. } | Step::Opens { .. } => true,
            Step::Yields { since, .. } => now.since(since) < PEER_DRAIN,
            Step::Stays | Step::Tries { .. } => false,
        }
    }

    /// Whether the next stream of a lane is being opened: the peer ends the old one when it has attached that.
    pub fn expects_end(&self, id: LaneId) -> bool {
        matches!(self.step(id), Step::Opens { .. })
    }

    /// Whether the end of a stream that the peer leaves is no fault, where lanes come and go with the traffic.
    pub fn yields(&self, id: LaneId) -> bool {
        matches!(self.step(id), Step::Yields { told: true, .. })
    }

    /// A lane has no stream any more, and is to have none.
    pub fn parts(&mut self, id: LaneId) {
        *self.lane_mut(id) = Move::default();
    }

    /// Whether some lane is on its way.
    pub fn is_busy(&self) -> bool {
        self.lanes.iter().any(|m| m.step != Step::Stays)
    }

    /// Lanes about which something is to be done.
    pub fn busy(&self) -> impl Iterator<Item = LaneId> + '_ {
        let busy =
            |m: &Move| matches!(m.step, Step::Leaves { .. } | Step::Opens { .. } | Step::Yields { .. });
        (0..).map(LaneId).zip(&self.lanes).filter(move |(_, m)| busy(m)).map(|(id, _)| id)
    }

    /// So many bytes were acknowledged on a lane.
    pub fn acked(&mut self, id: LaneId, bytes: u64) {
        self.acked += bytes;
        if let Step::Tries { acked, .. } = &mut self.lane_mut(id).step {
            *acked += bytes;
        }
    }

    /// The most that may be under way on a lane whose stream is fresh; `None`: it is not.
    pub fn fresh(&self, id: LaneId) -> Option<u64> {
        match self.step(id) {
            Step::Tries { acked, .. } => Some(acked.max(FRESH)),
            _ => None,
        }
    }

    /// Whether it is time to compare the lanes, where a query takes `round_trip`; then the next look is later.
    pub fn looks(&mut self, round_trip: Duration, now: Time) -> bool {
        let due = self.look_at.is_some_and(|at| now >= at);
        if due {
            let since = now.since(self.looked_at).as_secs_f64();
            self.makes = std::mem::take(&mut self.acked) as f64 / since.max(1e-6);
        }
        if due || self.look_at.is_none() {
            self.looked_at = now;
            self.look_at = Some(now + LOOK_EVERY.0.max(round_trip * LOOK_EVERY.1));
        }
        due
    }

    /// The lanes made so many bytes per second since the last look, those of which it is known. Returns the lane that leaves its route now.
    pub fn compare(&mut self, rates: &[(LaneId, f64)], now: Time) -> Option<LaneId> {
        let best = rates.iter().map(|r| r.1).fold(0.0, f64::max);
        for &(id, rate) in rates {
            let m = self.lane_mut(id);
            m.slow = if rate < SLOW * best { m.slow.saturating_add(1) } else { 0 };
        }
        if self.is_busy() || self.rests_until.is_some_and(|t| now < t) {
            return None;
        }
        let ready = |m: &Move| m.slow >= LOOKS;
        let (id, rate) = rates
            .iter()
            .filter(|(id, _)| ready(&self.lanes[usize::from(id.0)]))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .copied()?;
        self.lane_mut(id).before = rate;
        self.made = self.makes;
        Some(id)
    }

    /// The stream of that number is left.
    pub fn leaves(&mut self, id: LaneId, number: u64, now: Time) {
        self.lane_mut(id).step = Step::Leaves { number, since: now, left: false };
    }

    /// The peer leaves the stream of that number. If both do, the one that does so `first` opens the next.
    pub fn peer_leaves(&mut self, id: LaneId, number: u64, first: bool, now: Time) {
        let m = self.lane_mut(id);
        match m.step {
            Step::Leaves { .. } | Step::Opens { .. } if first => {}
            Step::Yields { number: n, .. } if n == number => {}
            _ => m.step = Step::Yields { number, since: now, told: false },
        }
    }

    /// The peer has nothing under way on the stream of that number.
    pub fn peer_left(&mut self, id: LaneId, number: u64) {
        if let Step::Leaves { number: n, left, .. } = &mut self.lane_mut(id).step {
            *left |= *n == number;
        }
    }

    /// What is to be done about a lane whose stream has this number, with something `under_way` on it or not.
    pub fn due(&mut self, id: LaneId, number: Option<u64>, under_way: bool, now: Time) -> Due {
        let m = self.lane_mut(id);
        let until = match &mut m.step {
            Step::Stays | Step::Tries { .. } => return Due::Wait(Time::NEVER),
            // it broke meanwhile, and what replaces it takes another route as well
            Step::Leaves { number: n, .. } | Step::Yields { number: n, .. } if Some(*n) != number => now,
            Step::Leaves { left: true, .. } if !under_way => {
                m.step = Step::Opens { since: now };
                return Due::Open;
            }
            Step::Yields { told, .. } if !under_way && !*told => {
                *told = true;
                return Due::TellLeft;
            }
            Step::Leaves { since, .. } | Step::Opens { since } => *since + DRAIN,
            Step::Yields { since, .. } => *since + PEER_DRAIN,
        };
        if now < until {
            return Due::Wait(until);
        }
        let own = !matches!(m.step, Step::Yields { .. });
        m.step = Step::Stays;
        if own {
            self.pauses(false, now);
        }
        Due::Stay
    }

    /// Another stream is attached. Returns whether the lane has moved.
    pub fn arrives(&mut self, id: LaneId) -> bool {
        let m = self.lane_mut(id);
        let moved = !matches!(m.step, Step::Stays | Step::Tries { .. });
        m.slow = 0;
        m.step = match m.step {
            Step::Leaves { .. } | Step::Opens { .. } => Step::Tries { looks: 0, acked: 0 },
            Step::Tries { .. } | Step::Stays | Step::Yields { .. } => Step::Stays,
        };
        moved
    }

    /// The rate of a lane is known anew. Returns what it made before its move, once it is known what that has brought.
    pub fn judge(&mut self, id: LaneId, now: Time) -> Option<f64> {
        let m = self.lane_mut(id);
        let Step::Tries { looks, .. } = &mut m.step else { return None };
        *looks += 1;
        if *looks < LOOKS {
            return None;
        }
        m.step = Step::Stays;
        let before = m.before;
        self.pauses(self.makes >= WORTH * self.made, now);
        Some(before)
    }

    fn pauses(&mut self, worth: bool, now: Time) {
        self.pause = if worth { PAUSE.0 } else { (self.pause * 2).clamp(PAUSE.0, PAUSE.1) };
        self.rests_until = Some(now + self.pause);
    }

    /// A new epoch begins: all streams are new.
    pub fn begin_epoch(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LaneId = LaneId(1);
    const RATES: [(LaneId, f64); 3] = [(LaneId::FIRST, 100.0), (ONE, 40.0), (LaneId(2), 60.0)];

    fn at(t: u64) -> Time {
        Time::from_ns(t * 1_000_000)
    }

    /// A lane that is being left since 20 ms.
    fn leaving() -> Moves {
        let mut m = Moves::default();
        assert_eq!((m.compare(&RATES, at(0)), m.compare(&RATES, at(20))), (None, Some(ONE)));
        m.leaves(ONE, 7, at(20));
        m
    }

    #[test]
    fn the_slowest_lane_moves_when_it_was_slow_twice() {
        let mut m = Moves::default();
        assert_eq!(m.compare(&RATES, at(0)), None);
        assert_eq!(
            m.compare(&[(LaneId::FIRST, 60.0), (ONE, 40.0)], at(20)),
            None,
            "no slower than others are by chance"
        );
        assert_eq!(m.compare(&RATES, at(40)), None, "and so it begins anew");
        assert_eq!(m.compare(&RATES, at(60)), Some(ONE));
        m.leaves(ONE, 7, at(60));
        assert_eq!(m.compare(&RATES, at(80)), None, "one at a time");
        assert_eq!(m.compare(&[(ONE, 40.0)], at(0)), None, "alone it is the best");
    }

    #[test]
    fn looks_are_as_far_apart_as_round_trips_are_long() {
        let mut m = Moves::default();
        assert!(!m.looks(ms(1), at(0)) && !m.looks(ms(1), at(19)) && m.looks(ms(50), at(20)));
        assert!(!m.looks(ms(1), at(219)) && m.looks(ms(1), at(220)));
    }

    #[test]
    fn a_fresh_stream_is_given_more_as_it_shows_that_it_carries() {
        let mut m = leaving();
        assert_eq!((m.fresh(ONE), m.arrives(ONE), m.fresh(ONE)), (None, true, Some(65_536)));
        m.acked(ONE, 65_536);
        m.acked(LaneId(2), 65_536);
        m.acked(ONE, 65_536);
        assert_eq!((m.fresh(ONE), m.fresh(LaneId(2)), m.acked), (Some(131_072), None, 3 * 65_536));
        assert!(!m.looks(ms(1), at(0)) && m.looks(ms(1), at(20)) && m.makes == 9_830_400.0);
    }

    #[test]
    fn the_next_stream_is_opened_when_nothing_is_under_way_at_either_end() {
        let mut m = leaving();
        assert!(m.is_left(ONE, at(20)) && !m.is_left(LaneId::FIRST, at(20)) && !m.expects_end(ONE));
        m.peer_left(ONE, 6);
        assert_eq!(m.due(ONE, Some(7), false, at(30)), Due::Wait(at(320)), "that was another stream");
        m.peer_left(ONE, 7);
        assert_eq!(m.due(ONE, Some(7), true, at(30)), Due::Wait(at(320)));
        assert_eq!(m.due(ONE, Some(7), false, at(40)), Due::Open);
        assert!(m.expects_end(ONE) && m.is_left(ONE, at(41)));
        assert_eq!(m.due(ONE, Some(7), false, at(41)), Due::Wait(at(340)), "once");
        assert!(m.arrives(ONE) && !m.is_left(ONE, at(42)) && m.busy().next().is_none());
        assert_eq!(m.due(ONE, Some(9), true, at(43)), Due::Wait(Time::NEVER));
        assert!(!m.arrives(ONE), "another one takes its place for other reasons");
    }

    #[test]
    fn a_move_that_does_not_come_about_ends() {
        for (number, under_way, when) in [(Some(7), true, 320), (Some(8), false, 30), (None, false, 30)] {
            let mut m = leaving();
            m.peer_left(ONE, 7);
            assert_eq!(m.due(ONE, number, under_way, at(when)), Due::Stay, "{number:?}");
            assert!(!m.is_left(ONE, at(when)));
        }
        let mut m = leaving();
        m.peer_left(ONE, 7);
        assert_eq!(m.due(ONE, Some(7), false, at(30)), Due::Open);
        assert_eq!(m.due(ONE, Some(7), false, at(330)), Due::Stay, "no stream was attached");
        assert_eq!((m.compare(&RATES, at(331)), m.compare(&RATES, at(429))), (None, None), "it pauses");
        assert_eq!(m.compare(&RATES, at(430)), Some(ONE));
    }

    #[test]
    fn the_peer_is_told_once_that_nothing_is_under_way_and_waited_for_in_vain_for_a_while() {
        let mut m = Moves::default();
        m.peer_leaves(ONE, 7, false, at(0));
        assert_eq!(m.due(ONE, Some(7), true, at(1)), Due::Wait(at(400)));
        assert_eq!(m.due(ONE, Some(7), false, at(2)), Due::TellLeft);
        m.peer_leaves(ONE, 7, false, at(3));
        assert_eq!(m.due(ONE, Some(7), false, at(3)), Due::Wait(at(400)), "what is repeated changes nothing");
        assert!(m.is_left(ONE, at(399)) && !m.is_left(ONE, at(400)));
        assert_eq!(m.due(ONE, Some(7), false, at(400)), Due::Stay);
        m.peer_leaves(ONE, 7, false, at(500));
        assert!(m.arrives(ONE) && !m.is_left(ONE, at(501)));
    }

    #[test]
    fn if_both_leave_one_of_them_opens() {
        let mut m = leaving();
        m.peer_leaves(ONE, 7, true, at(21));
        m.peer_left(ONE, 7);
        assert_eq!(m.due(ONE, Some(7), false, at(22)), Due::Open);
        let mut m = leaving();
        m.peer_leaves(ONE, 7, false, at(21));
        assert_eq!(m.due(ONE, Some(7), false, at(22)), Due::TellLeft);
    }

    #[test]
    fn a_move_that_brought_nothing_is_followed_by_ever_longer_pauses() {
        let mut m = Moves::default();
        let mut pause = |after: f64| {
            m.leaves(ONE, 7, at(5));
            (m.lane_mut(ONE).before, m.made, m.makes) = (40.0, 100.0, after);
            assert!(m.arrives(ONE));
            assert_eq!(m.judge(ONE, at(5)), None, "it has just begun");
            assert_eq!(m.judge(ONE, at(5)), Some(40.0));
            assert_eq!(m.judge(ONE, at(5)), None);
            m.rests_until.unwrap().since(at(5))
        };
        let waits: Vec<Duration> = (0..10).map(|_| pause(104.0)).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000].map(ms));
        assert_eq!((pause(105.0), pause(100.0)), (ms(100), ms(200)), "until one does");
        m.begin_epoch();
        assert_eq!(m, Moves::default());
    }
}
