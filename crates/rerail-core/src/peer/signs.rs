//! Signs for and against the end of a peer's process (see `engine/liveness`, where they are weighed).
//!
//! Owns: the end of its streams, refused connections, what its kernel acknowledged or accepted, and when that was
//! tested. The next sign of life clears all of it. Invariant: refusals make one row only while each is fresh when the
//! next one comes.

use crate::rest::rests;
use crate::types::{RailId, StreamId, Time, ms};
use std::time::Duration;

/// What still comes from a process after its streams have ended: datagrams that were under way.
const LATE_WORDS: Duration = ms(100);
/// Connections that another process ended belong to one row when they are no further apart: fresh ones are tried more often.
const TURNED_AWAY: Duration = ms(1500);
/// Refusals that come together count once: one reaction of a firewall ends the attempts on several rails.
const REFUSALS_APART: Duration = ms(100);
/// A refusal counts for this long: longer than the interval of the attempts.
pub(crate) const REFUSAL_FRESH: Duration = ms(1500);
/// First interval of fresh streams to a silent peer; the largest is `silent_probe_max`. A connection from before the outage would report
/// the end of the process, or its return, only after TCP's back-off.
pub(crate) const PROBE: Duration = ms(250);
/// How long a query must have stayed unanswered.
pub(crate) const QUESTION_PATIENCE: Duration = ms(100);

/// A row of refused connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Refusals {
    /// When the first and the last came.
    pub first: Time,
    pub last: Time,
    /// How many there were.
    pub count: u32,
    /// How many, when those that came together count once.
    pub moments: u32,
}

/// See above.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Signs {
    /// A stream ended in order, and without a goodbye: only the kernel of an ended process does this.
    ended_at: Option<Time>,
    refusals: Option<Refusals>,
    /// When the last of them was that counted as a moment.
    moment_at: Time,
    /// The last of them.
    refused_last: Option<(RailId, Time)>,
    /// Own rails on which connections were refused.
    refused_rails: u16,
    /// The kernel at the other end acknowledged or accepted something: the process exists.
    kernel_at: Option<Time>,
    /// Connections were accepted, and ended without an answer: by another process, because the peer's would answer. The
    /// first and the last time of a row.
    turned_away: Option<(Time, Time)>,
    /// When another process of its host first accepted a connection between two refusals of this row.
    neighbour_at: Option<Time>,
    /// When fresh streams were first tried on all its paths after the first refusal.
    kernels_asked_at: Option<Time>,
    /// When they were last tried out of turn, because of a refusal.
    urged_at: Option<Time>,
    /// It was reported as stopped.
    stopped: bool,
    /// When its streams are inspected next, and a fresh one is tried next.
    inspect_at: Option<Time>,
    probe_at: Option<Time>,
    probe_interval: Duration,
}

rests! {
    Signs = Signs {
        ended_at: None,
        refusals: None,
        moment_at: Time::ORIGIN,
        refused_last: None,
        refused_rails: 0,
        kernel_at: None,
        turned_away: None,
        neighbour_at: None,
        kernels_asked_at: None,
        urged_at: None,
        stopped: false,
        inspect_at: None,
        probe_at: None,
        probe_interval: Duration::ZERO,
    };
}

impl Signs {
    /// Something came that only a living process sends.
    pub fn lives(&mut self, now: Time) {
        if self.refusals.is_some()
            || self.kernel_at.is_some()
            || self.probe_at.is_some()
            || self.inspect_at.is_some()
        {
            *self = Self { ended_at: self.ended_at, ..Self::default() };
        }
        if self.ended_at.is_some_and(|t| now.since(t) > LATE_WORDS) {
            self.ended_at = None;
        }
    }

    // ---- against it --------------------------------------------------------------------------------------------

    /// A stream ended in order.
    pub fn stream_ended(&mut self, now: Time) {
        self.ended_at.get_or_insert(now);
    }

    /// Whether one did.
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// A connection over that rail was refused.
    pub fn refused(&mut self, rail: RailId, now: Time) {
        // after a gap longer than the interval of the attempts some were not refused, and single refusals prove nothing
        // together; a sign of the kernel voids the refusals before it, but not those that follow
        let kernel_at = self.kernel_at;
        let goes_on =
            |r: &Refusals| now.since(r.last) <= REFUSAL_FRESH && kernel_at.is_none_or(|t| t <= r.first);
        let mut row = self.refusals.filter(goes_on).unwrap_or_else(|| {
            (self.refused_rails, self.kernels_asked_at, self.neighbour_at) = (0, None, None);
            Refusals { first: now, last: now, count: 0, moments: 0 }
        });
        row.count += 1;
        if row.moments == 0 || now.since(self.moment_at) >= REFUSALS_APART {
            row.moments += 1;
            self.moment_at = now;
        }
        row.last = now;
        self.refusals = Some(row);
        self.refused_rails |= 1 << rail.0;
        self.refused_last = Some((rail, now));
    }

    /// The row of refusals that is not over.
    pub fn refusals(&self) -> Option<Refusals> {
        self.refusals
    }

    /// The last refusal, and over which of our rails.
    pub fn last_refusal(&self) -> Option<(RailId, Time)> {
        self.refused_last
    }

    /// Own rails on which connections were refused, a bit for each.
    pub fn refused_rails(&self) -> u16 {
        self.refused_rails
    }

    /// Another process of its host accepted a connection at that time, between two refusals. Returns when one first did
    /// in this row.
    pub fn neighbour_accepted(&mut self, at: Time) -> Time {
        if self.neighbour_at.is_none() {
            self.neighbour_at = Some(at);
            // a test while the whole host was silent proves nothing about this process
            if self.kernels_asked_at.is_some_and(|t| t + QUESTION_PATIENCE < at) {
                self.kernels_asked_at = None;
            }
        }
        self.neighbour_at.unwrap_or(at)
    }

    /// A connection was accepted, and ended before it was answered.
    pub fn turned_away(&mut self, now: Time) {
        let first = self.turned_away_since(now).unwrap_or(now);
        self.turned_away = Some((first, now));
    }

    /// Since when every connection is ended without an answer.
    pub fn turned_away_since(&self, now: Time) -> Option<Time> {
        self.turned_away.filter(|r| now.since(r.1) < TURNED_AWAY).map(|r| r.0)
    }

    // ---- for it ------------------------------------------------------------------------------------------------

    /// Whether a sign of the kernel at that time is newer than all before.
    pub fn is_newer(&self, at: Time) -> bool {
        self.kernel_at.is_none_or(|t| t < at)
    }

    /// The kernel gave a sign at that time.
    pub fn kernel_signs(&mut self, at: Time) {
        self.kernel_at = Some(at);
    }

    /// When it last did.
    pub fn kernel_at(&self) -> Option<Time> {
        self.kernel_at
    }

    /// It is reported as stopped, or is not any more. Returns whether that is news.
    pub fn report_stopped(&mut self, stopped: bool) -> bool {
        std::mem::replace(&mut self.stopped, stopped) != stopped
    }

    /// Whether it was reported as stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    // ---- testing its kernel ------------------------------------------------------------------------------------

    /// When its streams are inspected next, if they were.
    pub fn inspect_at(&self) -> Option<Time> {
        self.inspect_at
    }

    /// They are inspected, and again at that time.
    pub fn inspects(&mut self, next: Time) {
        self.inspect_at = Some(next);
    }

    /// When fresh streams are tried next, if they were.
    pub fn probe_at(&self) -> Option<Time> {
        self.probe_at
    }

    /// Fresh streams are tried now, out of turn if `urgent`, and next after the last interval twice, at most `longest`. Returns when.
    pub fn probes(&mut self, urgent: bool, longest: Duration, now: Time) -> Time {
        self.probe_interval = (self.probe_interval * 2).clamp(PROBE, longest);
        self.probe_at = Some(now + self.probe_interval);
        if urgent {
            self.urged_at = Some(now);
        }
        now + self.probe_interval
    }

    /// When they were last tried out of turn.
    pub fn urged_at(&self) -> Option<Time> {
        self.urged_at
    }

    /// Fresh streams are tried on all its paths, because of a refusal.
    pub fn kernels_are_asked(&mut self, now: Time) {
        self.kernels_asked_at.get_or_insert(now);
    }

    /// When they first were in this row of refusals.
    pub fn kernels_asked_at(&self) -> Option<Time> {
        self.kernels_asked_at
    }
}

/// Whether new connections to a peer are accepted: tested when another process of its host is refused (see
/// `engine/liveness`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Acceptance {
    accepted: Option<(RailId, Time)>,
    asked: Option<(StreamId, Time)>,
}

rests! {
    Acceptance = Acceptance { accepted: None, asked: None };
}

impl Acceptance {
    /// One was accepted, over that rail of ours.
    pub fn accepted(&mut self, rail: RailId, now: Time) {
        self.accepted = Some((rail, now));
    }

    /// The last that was.
    pub fn last(&self) -> Option<(RailId, Time)> {
        self.accepted
    }

    /// That stream tests it.
    pub fn ask(&mut self, stream: StreamId, now: Time) {
        self.asked = Some((stream, now));
    }

    /// When it was last tested, and by which stream.
    pub fn asked(&self) -> Option<(StreamId, Time)> {
        self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAIL: RailId = RailId(0);

    fn at(t: u64) -> Time {
        Time::from_ns(1 + t * 1_000_000)
    }

    #[test]
    fn refusals_are_one_row_while_each_is_fresh_and_the_kernel_silent() {
        let mut s = Signs::default();
        for t in [0, 50, 120, 1500] {
            s.refused(RAIL, at(t));
        }
        let row = Refusals { first: at(0), last: at(1500), count: 4, moments: 3 };
        assert_eq!(s.refusals(), Some(row), "two within 100 ms count once");
        s.refused(RailId(1), at(3001));
        assert_eq!(s.refusals().map(|r| (r.first, r.count)), Some((at(3001), 1)), "some were not refused");
        assert_eq!((s.refused_rails(), s.last_refusal()), (2, Some((RailId(1), at(3001)))));
        s.kernel_signs(at(3100));
        s.refused(RAIL, at(3200));
        assert_eq!(
            s.refusals().map(|r| (r.first, r.count)),
            Some((at(3200), 1)),
            "what the kernel accepted was alive"
        );
        s.refused(RAIL, at(3400));
        assert_eq!(s.refusals().map(|r| (r.first, r.moments)), Some((at(3200), 2)));
    }

    #[test]
    fn a_sign_of_life_forgets_all_but_what_was_under_way() {
        let mut s = Signs::default();
        s.stream_ended(at(0));
        s.refused(RAIL, at(10));
        s.turned_away(at(20));
        s.lives(at(90));
        assert_eq!(s, Signs { ended_at: Some(at(0)), ..Signs::default() }, "a datagram was under way");
        s.lives(at(101));
        assert_eq!(s, Signs::default());
    }

    #[test]
    fn a_neighbour_counts_once_and_questions_before_it_do_not() {
        let mut s = Signs::default();
        s.refused(RAIL, at(0));
        s.kernels_are_asked(at(10));
        assert_eq!(s.neighbour_accepted(at(100)), at(100));
        assert_eq!(s.kernels_asked_at(), Some(at(10)), "asked shortly before");
        assert_eq!(s.neighbour_accepted(at(500)), at(100));
        s.refused(RAIL, at(2000));
        s.kernels_are_asked(at(2000));
        assert_eq!((s.neighbour_accepted(at(2101)), s.kernels_asked_at()), (at(2101), None));
    }

    #[test]
    fn connections_that_another_process_ended_are_a_row_while_they_are_tried() {
        let mut s = Signs::default();
        s.turned_away(at(0));
        s.turned_away(at(1000));
        assert_eq!((s.turned_away_since(at(2499)), s.turned_away_since(at(2500))), (Some(at(0)), None));
        s.turned_away(at(3000));
        assert_eq!(s.turned_away_since(at(3001)), Some(at(3000)));
        assert_eq!([0, 1, 2].map(|_| s.probes(false, PROBE * 2, at(0))), [at(250), at(500), at(500)]);
    }
}
