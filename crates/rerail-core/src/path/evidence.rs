//! Queries and their answers: the evidence about one path in one epoch.
//!
//! Owns: which queries are open, what the newest answers prove, and the signs against the path. `query` and `suspicion`
//! judge them. Invariants: at most [`OPEN_QUERIES_MAX`] queries are open, and the oldest of them stays, because it
//! marks since when there is no answer; at most [`ANSWERS_KEPT`] answers are kept; an answer ends all signs.

use super::round_trips::RoundTrips;
use crate::types::Time;
use smallvec::SmallVec;
use std::time::Duration;

/// Most unanswered queries that are remembered for one path.
const OPEN_QUERIES_MAX: usize = 64;
/// Answers that are remembered: more than can be waiting for their patience at the quick interval.
const ANSWERS_KEPT: usize = 64;
/// A peer this late was not running, for long enough to lose the queries that other processes sent meanwhile.
const LATE_ANSWER: Duration = Duration::from_millis(500);

/// A query that was answered.
#[derive(Debug, Clone, Copy)]
struct Answer {
    /// When the query was sent.
    asked: Time,
    came: Time,
    /// An earlier query had no answer by then.
    after_gap: bool,
}

/// What became of a query that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    /// An earlier query had no answer.
    pub after_gap: bool,
    /// The answer ended a sign against the path.
    pub relieved: bool,
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evidence {
    /// Queries without an answer, oldest first: id, when. An idle path has one at a time.
    open: SmallVec<[(u64, Time); 1]>,
    /// When the newest answered query had been sent.
    answered_sent_at: Option<Time>,
    /// The newest answered queries, as far as a comparison may need their time: on an idle path the last one.
    recent: SmallVec<[Answer; 1]>,
    /// Answers since the epoch began.
    answers: u32,
    /// Something that we sent in this epoch was answered or acknowledged.
    proven: bool,
    /// There is a sign against the path (`suspicion`).
    doubted: bool,
    /// It was queried because of its rail: an unanswered query is repeated soon.
    pressed: bool,
    /// Answers by the engine itself, not by the bypass.
    engine_answers: u32,
    /// When the newest query was sent that the engine answered by a datagram, until that is weighed against the stream.
    engine_answered: Option<Time>,
    /// When anything authentic arrived on this path.
    heard_at: Option<Time>,
    /// When a datagram last did.
    datagram_at: Option<Time>,
    /// Newest of our queries that the peer reported as received on this path.
    peer_heard: u64,
    /// When a bulk datagram was last acknowledged.
    bulk_acked_at: Option<Time>,
    round_trips: RoundTrips,
}

impl Evidence {
    /// An epoch begins: both sides have answered in it.
    pub fn begin(now: Time) -> Self {
        Self { heard_at: Some(now), ..Self::default() }
    }

    // ---- queries -----------------------------------------------------------------------------------------------

    /// Query `id` goes out.
    pub fn asked(&mut self, id: u64, now: Time) {
        if self.open.len() == OPEN_QUERIES_MAX {
            // the oldest stays: it marks since when there is no answer
            self.open.remove(1);
        }
        self.open.push((id, now));
        self.round_trips.asked(now);
    }

    /// The oldest query without an answer, and when it was sent.
    #[inline]
    pub fn first_open(&self) -> Option<(u64, Time)> {
        self.open.first().copied()
    }

    /// When that query was sent.
    #[inline]
    pub fn open_since(&self) -> Option<Time> {
        self.open.first().map(|o| o.1)
    }

    /// When the newest open query was sent.
    pub fn last_asked(&self) -> Option<Time> {
        self.open.last().map(|o| o.1)
    }

    /// When the open queries were sent, oldest first.
    pub fn open_times(&self) -> impl Iterator<Item = Time> + Clone + '_ {
        self.open.iter().map(|o| o.1)
    }

    /// Whether every query has its answer.
    #[inline]
    pub fn is_answered(&self) -> bool {
        self.open.is_empty()
    }

    /// How many are open, and how many answers are kept.
    pub fn kept(&self) -> (usize, usize) {
        (self.open.len(), self.recent.len())
    }

    /// When query `id` was sent, if it is open.
    pub fn asked_at(&self, id: u64) -> Option<Time> {
        self.open.iter().find(|o| o.0 == id).map(|o| o.1)
    }

    /// Gives up the open queries, and the signs with them.
    pub fn give_up(&mut self) {
        self.open.clear();
        (self.pressed, self.doubted) = (false, false);
    }

    /// This process was away for so long that answers may be lost: neither answers nor their absence prove anything.
    pub fn forget(&mut self) {
        self.give_up();
        self.recent.clear();
    }

    // ---- answers -----------------------------------------------------------------------------------------------

    /// Query `id`, which is open, was answered. Older ones may still be, but the path works now.
    pub fn close(&mut self, id: u64) -> Closed {
        let k = self.open.iter().position(|o| o.0 == id).expect("the query is open");
        self.open.drain(..=k);
        self.pressed = false;
        Closed { after_gap: k > 0, relieved: std::mem::take(&mut self.doubted) }
    }

    /// Keeps the answer as evidence. `oldest`: when the oldest open query on any path to the peer was sent; no
    /// comparison needs an earlier time. Returns whether this is the first thing that came back in this epoch.
    pub fn answered(&mut self, asked: Time, after_gap: bool, oldest: Time, now: Time) -> bool {
        self.answered_sent_at = Some(asked);
        self.answers += 1;
        self.remember(Answer { asked, came: now, after_gap }, oldest);
        self.prove()
    }

    /// Answers since the epoch began.
    pub fn answers(&self) -> u32 {
        self.answers
    }

    /// When the newest answered query had been sent.
    #[inline]
    pub fn answered_sent_at(&self) -> Option<Time> {
        self.answered_sent_at
    }

    /// When the answer came to the first query of that time or later.
    pub fn answer_since(&self, asked: Time) -> Option<Time> {
        self.recent.iter().find(|a| a.asked >= asked).map(|a| a.came)
    }

    /// The engine itself has answered.
    pub fn engine_answers(&mut self) {
        self.engine_answers += 1;
    }

    /// How often the engine itself has answered in this epoch.
    pub fn answers_of_engine(&self) -> u32 {
        self.engine_answers
    }

    /// The engine answered a query of that time by a datagram, which is to be weighed against the stream.
    pub fn weigh_later(&mut self, asked: Time) {
        self.engine_answered = Some(asked);
    }

    /// Takes that answer, to weigh it.
    pub fn weigh(&mut self) -> Option<Time> {
        self.engine_answered.take()
    }

    /// Keeps an answer, and of the earlier ones those that may still be evidence. Of the time before `oldest`, the last
    /// is enough.
    fn remember(&mut self, answer: Answer, oldest: Time) {
        let before = self.recent.iter().take_while(|a| a.asked <= oldest).count();
        let last_of_before = usize::from(answer.asked > oldest);
        self.recent.drain(..before.saturating_sub(last_of_before));
        self.recent.push(answer);
        if self.recent.len() > ANSWERS_KEPT {
            self.recent.remove(0);
        }
    }

    // ---- signs of life, and against it -------------------------------------------------------------------------

    /// Something that we sent in this epoch was answered or acknowledged. Returns whether that is news.
    #[inline]
    pub fn prove(&mut self) -> bool {
        !std::mem::replace(&mut self.proven, true)
    }

    #[inline]
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// Something authentic arrived.
    #[inline]
    pub fn hear(&mut self, now: Time) {
        self.heard_at = Some(now);
    }

    /// A datagram of it did.
    #[inline]
    pub fn hear_datagram(&mut self, now: Time) {
        self.datagram_at = Some(now);
    }

    /// When a datagram last arrived: the peer's route is a good one then.
    pub fn datagram_at(&self) -> Option<Time> {
        self.datagram_at
    }

    /// When something authentic last arrived.
    #[inline]
    pub fn heard_at(&self) -> Option<Time> {
        self.heard_at
    }

    /// The peer reports that it received query `id` on this path.
    pub fn peer_hears(&mut self, id: u64) {
        self.peer_heard = self.peer_heard.max(id);
    }

    /// The newest query that it reported.
    pub fn peer_heard(&self) -> u64 {
        self.peer_heard
    }

    /// A bulk datagram was acknowledged.
    pub fn bulk_acked(&mut self, now: Time) {
        self.bulk_acked_at = Some(now);
    }

    pub fn bulk_acked_at(&self) -> Option<Time> {
        self.bulk_acked_at
    }

    /// There is a sign against the path.
    pub fn doubt(&mut self) {
        self.doubted = true;
    }

    #[inline]
    pub fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// It is queried because of its rail.
    pub fn press(&mut self) {
        self.pressed = true;
    }

    pub fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// What is known of the round trips of datagrams.
    pub fn round_trips(&self) -> &RoundTrips {
        &self.round_trips
    }

    pub fn round_trips_mut(&mut self) -> &mut RoundTrips {
        &mut self.round_trips
    }

    /// Frees the memory that a time of many queries has left behind.
    pub fn rest(&mut self) {
        self.open.shrink_to_fit();
        self.recent.shrink_to_fit();
    }

    /// Whether the answers on this path show that the peer was running when it should have received and answered a
    /// query on another path. `asked`: when that query was sent; `round_trip`: how long a round trip takes there.
    ///
    /// It was running if a query sent then, one sent a round trip later, and all in between were answered. A single
    /// answer is not enough: a machine that is paused again and again may run for long enough to answer on a path with
    /// a round trip of microseconds, and never on one with milliseconds.
    ///
    /// `patience`: a peer that was away answers everything at once, and not on all paths in the same microsecond. An
    /// answer counts once the other path had time to deliver its own.
    pub fn testifies(&self, asked: Time, round_trip: Duration, patience: Duration, now: Time) -> bool {
        // A path that was not queried before proves nothing about that time: the peer may have been away until then.
        let was_asked =
            self.recent.len() == ANSWERS_KEPT || self.recent.first().is_some_and(|a| a.asked <= asked);
        if !was_asked {
            return false;
        }
        let end = asked + round_trip;
        let mut later = self.recent.iter().skip_while(|a| a.asked < asked);
        let Some(first) = later.next() else { return false };
        // The peer was away when this query was sent. A stream keeps the query meanwhile; a full socket buffer drops
        // datagrams.
        if first.came.since(first.asked) > LATE_ANSWER {
            return false;
        }
        if now.since(first.came) < patience || (first.asked > asked && first.after_gap) {
            return false;
        }
        let mut last = first;
        while last.asked < end {
            match later.next() {
                Some(a) if !a.after_gap => last = a,
                _ => return false,
            }
        }
        now.since(last.came) >= round_trip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(t: u64) -> Duration {
        Duration::from_millis(t)
    }

    /// Answers to queries sent at the given milliseconds, each a tenth of a millisecond later.
    fn answered(asked: &[(u64, bool)]) -> Evidence {
        let answer = |&(t, after_gap): &(u64, bool)| {
            let asked = Time::from_ns(t * 1_000_000);
            Answer { asked, came: asked + Duration::from_micros(100), after_gap }
        };
        Evidence { recent: asked.iter().map(answer).collect(), ..Evidence::default() }
    }

    fn testifies(e: &Evidence, asked: u64, round_trip: u64, now: u64) -> bool {
        e.testifies(Time::from_ns(asked * 1_000_000), ms(round_trip), ms(20), Time::from_ns(now * 1_000_000))
    }

    #[test]
    fn an_answer_closes_its_query_and_all_older_ones_and_ends_the_signs() {
        let (mut e, at) = (Evidence::default(), |t: u64| Time::from_ns(t * 1_000_000));
        for id in 1..=3 {
            e.asked(id, at(id));
        }
        e.doubt();
        e.press();
        assert_eq!((e.asked_at(2), e.asked_at(9), e.open_since()), (Some(at(2)), None, Some(at(1))));
        assert_eq!(e.close(2), Closed { after_gap: true, relieved: true });
        assert!(!e.is_pressed() && !e.is_doubted());
        assert!(e.answered(at(2), true, at(2), at(4)), "the first word in this epoch");
        assert_eq!(e.close(3), Closed { after_gap: false, relieved: false });
        assert!(!e.answered(at(3), false, at(3), at(4)) && e.is_answered());
        assert_eq!((e.answers(), e.answered_sent_at(), e.answer_since(at(3))), (2, Some(at(3)), Some(at(4))));
    }

    #[test]
    fn of_open_queries_the_oldest_and_the_newest_stay() {
        let (mut e, at) = (Evidence::default(), |t: u64| Time::from_ns(t * 1_000_000));
        for id in 0..=OPEN_QUERIES_MAX as u64 {
            e.asked(id, at(id));
        }
        assert_eq!(e.kept(), (OPEN_QUERIES_MAX, 0));
        assert_eq!((e.first_open(), e.asked_at(1), e.last_asked()), (Some((0, at(0))), None, Some(at(64))));
        e.give_up();
        assert!(e.is_answered());
    }

    #[test]
    fn answers_all_along_show_that_the_peer_was_there() {
        let all = answered(&[(0, true), (5, false), (10, false), (15, false)]);
        assert!(testifies(&all, 0, 7, 40));
        assert!(testifies(&all, 5, 10, 40));
        assert!(!testifies(&all, 10, 7, 40), "no answer is from the end of that round trip");
        assert!(!testifies(&all, 0, 7, 18), "the other path had no time for its own answer");
        // a round trip of less than the interval needs one answer, and one of no length its own
        assert!(testifies(&all, 5, 3, 40));
        assert!(testifies(&all, 15, 0, 40));
    }

    #[test]
    fn an_answer_after_a_gap_shows_only_that_the_peer_came_back() {
        let with_gaps = answered(&[(0, true), (5, true), (10, false)]);
        assert!(!testifies(&with_gaps, 0, 7, 40), "it was away in between");
        assert!(testifies(&with_gaps, 5, 4, 40), "what lies before the question is of no account");
        assert!(!testifies(&with_gaps, 3, 5, 40), "no answer shows it when the query was sent");
        assert!(!testifies(&answered(&[]), 0, 0, 40));
    }

    #[test]
    fn answers_of_which_nobody_can_ask_any_more_are_forgotten_and_it_makes_no_difference() {
        let at = |t: u64| Time::from_ns(t * 1_000_000);
        let (mut all, mut kept) = (answered(&[]), answered(&[]));
        // the oldest query that is open elsewhere when the answer arrives
        for (t, oldest) in [(0, 1), (5, 6), (10, 7), (15, 7), (20, 7), (25, 22)] {
            let a = Answer { asked: at(t), came: at(t + 1), after_gap: t == 5 };
            all.recent.push(a);
            kept.remember(a, at(oldest));
            for asked in oldest..30 {
                for (round_trip, now) in [(0, 60), (7, 60), (0, t + 2)] {
                    assert_eq!(
                        testifies(&all, asked, round_trip, now),
                        testifies(&kept, asked, round_trip, now),
                        "asked {asked}, after answer {t}"
                    );
                }
            }
        }
        assert_eq!(kept.recent.len(), 2, "the last one of before, and the one of after");
    }

    #[test]
    fn a_late_answer_shows_that_the_peer_was_away() {
        // as after a stop of seconds, when the query had waited in a stream (seed 3051582)
        let mut e = answered(&[(0, false), (5, false)]);
        assert!(testifies(&e, 0, 0, 3_000));
        e.recent[0].came = Time::from_ns(2_000_000_000);
        assert!(!testifies(&e, 0, 0, 3_000));
        assert!(testifies(&e, 5, 0, 3_000), "the next one was there");
    }

    #[test]
    fn a_path_knows_nothing_of_the_time_before_it_was_asked() {
        // as after a stop of seconds, in which this path was made again (seed 819417)
        let new = answered(&[(10, false), (15, false), (20, false)]);
        assert!(!testifies(&new, 5, 5, 60));
        assert!(testifies(&new, 10, 5, 60));
    }
}
