//! One path to a peer: its epoch, its health, and the evidence about it.
//!
//! Owns: the verdicts and what they rest on. What is sent and received, and counted, is its lane's (`lane`); a path has one for now.

use crate::blocked::{Passage, RoundTrips};
use crate::health::Health;
use crate::integrity::Integrity;
use crate::lane::Lane;
use crate::neighbour::Neighbour;
use crate::pmtu::Pmtu;
use crate::query::ANSWERS_KEPT;
use crate::rest::OnDemand;
use crate::types::{Epoch, Locator, PathId, RailId, Time};
use rerail_wire::Coverage;
use smallvec::SmallVec;
use std::time::Duration;

/// First interval between hellos, and the largest.
pub(crate) const HELLO_INTERVAL: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(100));

/// A handshake that we began.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    pub epoch: Epoch,
    pub nonce: [u8; 16],
    pub next_send: Time,
    pub interval: Duration,
    pub give_up: Time,
    pub begun: Time,
    /// A stream was tried as well, because datagrams go unanswered.
    pub stream_tried: bool,
}

impl Proposal {
    /// The next hello goes now: there is reason to think that it is heard.
    pub fn hurry(&mut self, now: Time) {
        self.next_send = now;
        self.interval = HELLO_INTERVAL.0;
    }
}

/// A query that was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// When it had been asked.
    pub asked: Time,
    pub came: Time,
    /// One that was asked earlier had no answer by then.
    pub after_gap: bool,
}

/// Queries and their answers: the evidence about one path in one epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evidence {
    /// Queries without an answer, oldest first: id, when. An idle path has one at a time.
    pub open: SmallVec<[(u64, Time); 1]>,
    /// When the newest answered query had been sent.
    pub answered_sent_at: Option<Time>,
    /// The newest answered queries, as far as somebody may ask about their time: on an idle path the last one.
    pub recent: SmallVec<[Answer; 1]>,
    /// Answers since the epoch began.
    pub answers: u32,
    /// Something that we sent in this epoch was answered or acknowledged.
    pub proven: bool,
    /// There is a sign against the path (`suspicion`).
    pub doubted: bool,
    /// It was asked because of its rail: what is not answered at once is asked again soon.
    pub pressed: bool,
    /// Answers by the engine itself, not by the bypass.
    pub engine_answers: u32,
    /// When the newest query had been sent that the engine answered by a datagram, until that was weighed against the stream.
    pub engine_answered: Option<Time>,
    /// When anything authentic arrived on this path.
    pub heard_at: Option<Time>,
    /// Newest of our queries that the peer says it heard on this path.
    pub peer_heard: u64,
    /// When a bulk datagram was last acknowledged.
    pub bulk_acked_at: Option<Time>,
    pub round_trips: RoundTrips,
}

/// Who answers as late as that was away, for long enough to lose what others asked meanwhile.
const LATE_ANSWER: Duration = Duration::from_millis(500);

impl Evidence {
    /// Keeps an answer, and of those before it what can still testify. Nobody will ask about a time before `oldest`, when the oldest question
    /// was put that is open on any path to the peer; of before that it only matters that something was answered.
    pub fn remember(&mut self, answer: Answer, oldest: Time) {
        let before = self.recent.iter().take_while(|a| a.asked <= oldest).count();
        let last_of_before = usize::from(answer.asked > oldest);
        self.recent.drain(..before.saturating_sub(last_of_before));
        self.recent.push(answer);
        if self.recent.len() > ANSWERS_KEPT {
            self.recent.remove(0);
        }
    }

    /// Gives back what a time of many questions has left behind.
    fn rest(&mut self) {
        self.open.shrink_to_fit();
        self.recent.shrink_to_fit();
    }

    /// Whether the answers on this path show that the peer was there when a query that was asked at `asked` on another path, whose
    /// round trip takes `round_trip`, should have been heard and answered.
    ///
    /// It was when a query asked then, and one asked a round trip later, were answered, and so were all between. A single answer is
    /// not enough: a machine that is paused again and again may be awake for long enough to answer on a path with a round trip of
    /// microseconds, and never on one with milliseconds.
    ///
    /// `patience`: a peer that was away answers everything at once, and not on all paths in the same microsecond; an answer counts
    /// when the other path had time to bring its own.
    pub fn testifies(&self, asked: Time, round_trip: Duration, patience: Duration, now: Time) -> bool {
        // A path that was not asked before knows nothing of that time: the peer may have been away until it was.
        let was_asked =
            self.recent.len() == ANSWERS_KEPT || self.recent.first().is_some_and(|a| a.asked <= asked);
        if !was_asked {
            return false;
        }
        let end = asked + round_trip;
        let mut later = self.recent.iter().skip_while(|a| a.asked < asked);
        let Some(first) = later.next() else { return false };
        // It was away when it was asked. A stream keeps the question meanwhile; the buffer of its socket, once full, keeps no datagram.
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

/// Most unanswered queries that are remembered for one path.
pub(crate) const OPEN_QUERIES_MAX: usize = 64;

#[derive(Clone)]
pub(crate) struct Path {
    pub id: PathId,
    pub rail: RailId,
    pub remote: Locator,
    pub lane: Lane,
    pub health: Health,
    pub since: Time,
    pub epoch: Epoch,
    /// Largest epoch that either side ever proposed.
    pub epoch_max: Epoch,
    /// Nonce of the last hello that went out on a stream: the answer may be a datagram, and come when the stream is over.
    pub asked: Option<[u8; 16]>,
    /// An epoch that we accepted and in which nothing has arrived yet (hazard H8), and until when we wait for that before we begin
    /// one ourselves.
    pub half_open: Option<(Epoch, Time)>,
    /// Newest query of the peer that was heard on this path.
    pub asked_newest: Option<u64>,
    pub proposal: Option<Box<Proposal>>,
    /// When to try again.
    pub retry_at: Option<Time>,
    pub retry_interval: Duration,
    /// Failures, forgiven slowly.
    pub flaps: u32,
    pub flap_at: Time,
    pub hold_until: Time,
    pub failed_at: Option<Time>,
    pub ever_up: bool,
    pub integrity: OnDemand<Integrity>,
    /// What both sides want summed; everything, until both have said.
    pub coverage: Coverage,

    // datagrams
    /// They make the round trip.
    pub datagrams_work: bool,
    /// That was found to be over.
    pub datagrams_blocked: bool,
    pub small_passage: Passage,
    pub datagram_bytes_max: usize,
    /// The same as far as the interfaces at both ends go.
    pub datagram_bytes_full: usize,
    pub pmtu: OnDemand<Pmtu>,

    pub neighbour: Neighbour,

    // bulk
    pub bulk_passage: Passage,
    /// They were found to vanish.
    pub bulk_blocked: bool,
    /// Since when bulk waits although this path works, and it has no stream.
    pub streamless_since: Option<Time>,

    pub evidence: Evidence,
    pub next_probe: Time,
    pub bytes_sent: u64,
}

impl Path {
    pub fn new(
        id: PathId,
        rail: RailId,
        remote: Locator,
        datagram_bytes_max: usize,
        mbps: u32,
        now: Time,
    ) -> Self {
        Self {
            id,
            rail,
            remote,
            lane: Lane::new(datagram_bytes_max, mbps, now),
            health: Health::Idle,
            since: now,
            epoch: Epoch(0),
            epoch_max: Epoch(0),
            asked: None,
            half_open: None,
            asked_newest: None,
            proposal: None,
            retry_at: None,
            retry_interval: Duration::ZERO,
            flaps: 0,
            flap_at: now,
            hold_until: now,
            failed_at: None,
            ever_up: false,
            neighbour: Neighbour::default(),
            integrity: OnDemand::default(),
            coverage: Coverage::default(),
            datagrams_work: false,
            datagrams_blocked: false,
            small_passage: Passage::default(),
            datagram_bytes_max,
            datagram_bytes_full: datagram_bytes_max,
            pmtu: OnDemand::default(),
            bulk_passage: Passage::default(),
            bulk_blocked: false,
            streamless_since: None,
            evidence: Evidence::default(),
            next_probe: now,
            bytes_sent: 0,
        }
    }

    /// Gives back what nothing needs while the peer is silent.
    pub fn rest(&mut self) {
        self.lane.rest();
        self.evidence.rest();
        self.integrity.rest();
        self.small_passage.rest();
        self.bulk_passage.rest();
        self.pmtu.rest();
    }

    /// Whether small messages and control may be sent as datagrams now.
    pub fn datagrams_usable(&self) -> bool {
        self.health.connected() && self.datagrams_work
    }

    /// Whether this epoch was accepted, and nothing has arrived in it yet.
    pub fn is_half_open(&self, epoch: Epoch) -> bool {
        self.half_open.is_some_and(|h| h.0 == epoch)
    }

    /// Next epoch that this side may propose: above every known one, its lowest bit naming the side.
    pub fn next_epoch(&self, own_is_high: bool) -> Epoch {
        let bit = u32::from(own_is_high);
        let mut e = (self.epoch_max.0 | 1) + 1 + bit;
        if self.epoch_max.0 == 0 {
            e = 2 + bit;
        }
        assert!(e < u32::MAX - 4, "epochs of a path are used up");
        Epoch(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(t: u64) -> Duration {
        Duration::from_millis(t)
    }

    /// Answers to queries asked at the given milliseconds, each a tenth of a millisecond later.
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
    fn answers_all_along_show_that_the_peer_was_there() {
        let all = answered(&[(0, true), (5, false), (10, false), (15, false)]);
        assert!(testifies(&all, 0, 7, 40));
        assert!(testifies(&all, 5, 10, 40));
        assert!(!testifies(&all, 10, 7, 40), "nobody knows of the end of that round trip");
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
        assert!(!testifies(&with_gaps, 3, 5, 40), "nobody saw it when the question was asked");
        assert!(!testifies(&answered(&[]), 0, 0, 40));
    }

    #[test]
    fn answers_of_which_nobody_can_ask_any_more_are_forgotten_and_it_makes_no_difference() {
        let at = |t: u64| Time::from_ns(t * 1_000_000);
        let (mut all, mut kept) = (answered(&[]), answered(&[]));
        // the oldest question that is open elsewhere when the answer comes
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
        // as after a stop of seconds, when the question had waited in a stream (seed 3051582)
        let mut e = answered(&[(0, false), (5, false)]);
        assert!(testifies(&e, 0, 0, 3_000));
        e.recent[0].came = Time::from_ns(2_000_000_000);
        assert!(!testifies(&e, 0, 0, 3_000));
        assert!(testifies(&e, 5, 0, 3_000), "the next one was there");
    }

    #[test]
    fn a_path_knows_nothing_of_the_time_before_it_was_asked() {
        // as after a stop of seconds, in which this path was made anew (seed 819417)
        let new = answered(&[(10, false), (15, false), (20, false)]);
        assert!(!testifies(&new, 5, 5, 60));
        assert!(testifies(&new, 10, 5, 60));
    }
}
