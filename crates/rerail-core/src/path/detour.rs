//! Which route through the fabric the datagrams of a path take: a number that the rail turns into a source port.
//!
//! Owns: the route, the steps that were made since the last answer, and what the peer has reported. A query that is not answered may have been lost on
//! the way there or its answer on the way back, and each side chooses the route of what it sends. So steps alternate: this side takes another route;
//! then its queries say that none was answered, and the peer takes another for its answers (as the receiver of repeated data does in Protective
//! ReRoute §3.2). A peer that was only busy answers what was sent before a step: then the route of that time is the right one again.
//!
//! Invariants: no step without an unanswered query or a report; on the usual route nothing is kept.

use crate::rest::{OnDemand, rests};
use crate::types::Time;
use std::time::Duration;

/// Steps at the same distance, until each pair takes twice as long as the one before: what helps that seldom is no route.
const QUICK_STEPS: u32 = 16;
/// Largest number of times that the distance is doubled.
const DOUBLINGS: u32 = 6;
/// One step in so many is an own route, the others are reports: on each the peer takes another one for its answers, while ours may be good already.
const OWN_STEP_EVERY: u32 = 3;
/// Steps of which the route before is remembered.
const STEPS_KEPT: usize = 16;
/// The usual route is tried again after this long; twice as long after each time that this was in vain; and the longest. In vain it costs what finding a
/// dead route costs, some tens of milliseconds.
const HOME: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(768));

/// What a path gives to its steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    patience: Duration,
    routes: u8,
}

impl Limits {
    /// An answer may take so long, and its rail has so many routes, the usual one among them: at least one.
    pub fn new(patience: Duration, routes: u8) -> Self {
        Self { patience, routes }
    }
}

/// What comes next on a path that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing before that.
    Wait(Time),
    /// Its datagrams go by this route from now on.
    Take(u8),
    /// Its queries report from now on that none is answered.
    Report,
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Detour(OnDemand<Way>);

#[derive(Debug, Clone, Default, PartialEq)]
struct Way {
    route: u8,
    /// Steps since the last answer: when, and the route before.
    steps: Vec<(Time, u8)>,
    /// How many they are, with those of the other kind, and when the last was.
    count: u32,
    stepped_at: Option<Time>,
    reports: bool,
    /// Routes that were taken because the peer reported that nothing of ours answers it, and when the last was.
    requests: u32,
    requested_at: Option<Time>,
    /// When the usual route is tried again, and how long that was waited for.
    home: Option<(Time, Duration)>,
    /// It is being tried; this was the route before.
    trial: Option<u8>,
    /// The route was taken for a handshake: the usual one is tried when that succeeds.
    sought: bool,
}

rests! {
    Way = Way {
        route: 0,
        steps: Vec::new(),
        count: 0,
        stepped_at: None,
        reports: false,
        requests: 0,
        requested_at: None,
        home: None,
        trial: None,
        sought: false,
    };
}

/// When the next of steps of which `count` were made is due.
fn due(since: Time, count: u32, patience: Duration) -> Time {
    since + patience * (1 << (count.saturating_sub(QUICK_STEPS) / 2).min(DOUBLINGS))
}

impl Way {
    fn take(&mut self, route: u8, now: Time) {
        self.route = route;
        match (route, self.home) {
            (0, _) => {}
            (_, Some((at, wait))) if at <= now => {
                let wait = (wait * 2).min(HOME.1);
                self.home = Some((now + wait, wait));
            }
            (_, Some(_)) => {}
            (_, None) => self.home = Some((now + HOME.0, HOME.0)),
        }
    }

    /// The route after the present one, of so many.
    fn next_route(&self, routes: u8) -> u8 {
        (self.route + 1) % routes
    }

    /// Takes that one.
    fn take_next(&mut self, routes: u8, now: Time) -> u8 {
        let next = self.next_route(routes);
        self.take(next, now);
        next
    }

    /// The usual route is tried; returns the one before.
    fn try_home(&mut self) -> u8 {
        let before = std::mem::take(&mut self.route);
        self.trial = Some(before);
        self.steps.clear();
        before
    }
}

impl Detour {
    /// The route now; 0 is the usual one.
    pub fn route(&self) -> u8 {
        self.0.awake().map_or(0, |w| w.route)
    }

    /// Whether queries report that none was answered.
    pub fn reports(&self) -> bool {
        self.0.awake().is_some_and(|w| w.reports)
    }

    /// The oldest query without an answer was sent at `asked`. A datagram of the peer was `heard`
    /// then: if that is later than the last step, its route is a good one.
    pub fn unanswered(&mut self, asked: Time, limits: Limits, heard: Option<Time>, now: Time) -> Step {
        let count = self.0.awake().map_or(0, |w| w.count);
        let last = self.0.awake().and_then(|w| w.stepped_at);
        let since = last.map_or(asked, |t| t.max(asked));
        let at = due(since, count, limits.patience);
        if now < at {
            return Step::Wait(at);
        }
        let w = &mut *self.0;
        (w.count, w.stepped_at) = (w.count + 1, Some(now));
        if count % OWN_STEP_EVERY != 0 && heard.is_none_or(|t| t <= since) {
            w.reports = true;
            return Step::Report;
        }
        let before = w.route;
        let next = w.trial.take().unwrap_or_else(|| w.next_route(limits.routes));
        w.take(next, now);
        if w.steps.len() == STEPS_KEPT {
            w.steps.remove(0);
        }
        w.steps.push((now, before));
        Step::Take(next)
    }

    /// A query that was sent at `sent_at` is answered. Returns how many steps that took, and the route to go back to, if it had taken another.
    pub fn answered(&mut self, sent_at: Time, now: Time) -> (u32, Option<u8>) {
        let Some(w) = self.0.awake_mut() else { return (0, None) };
        let before = w.steps.iter().find(|s| sent_at <= s.0).map(|s| s.1);
        let count = w.count;
        if w.trial.is_some() && w.route == 0 && before.is_none() {
            (w.trial, w.home) = (None, None);
        }
        w.steps.clear();
        (w.count, w.stepped_at, w.reports) = (0, None, false);
        if let Some(route) = before {
            w.take(route, now);
        }
        if w.route == 0 && w.trial.is_none() && before == Some(0) {
            w.home = None;
        }
        (count, before)
    }

    /// A query of the peer says that none of its queries is answered. Returns the route that the answers take from now on.
    pub fn reported(&mut self, limits: Limits, now: Time) -> Option<u8> {
        let w = &mut *self.0;
        if w.requested_at.is_some_and(|t| now < due(t, w.requests, limits.patience)) {
            return None;
        }
        (w.requests, w.requested_at) = (w.requests + 1, Some(now));
        Some(w.take_next(limits.routes, now))
    }

    /// A query of the peer says nothing of the kind: it has answers.
    pub fn not_reported(&mut self) {
        if let Some(w) = self.0.awake_mut() {
            (w.requests, w.requested_at) = (0, None);
        }
    }

    /// A hello, or an answer to one, was repeated: one of them may be lost on its route, or the peer may not be there yet. Returns the route that the next
    /// takes.
    pub fn seeks(&mut self, routes: u8, now: Time) -> u8 {
        let w = &mut *self.0;
        w.sought = true;
        w.take_next(routes, now)
    }

    /// A handshake succeeds, and no query is open. Returns whether the usual route is tried now: the peer may only have been late.
    pub fn finds(&mut self) -> bool {
        let Some(w) = self.0.awake_mut() else { return false };
        let tries = std::mem::take(&mut w.sought) && w.route != 0;
        if tries {
            w.try_home();
        }
        tries
    }

    /// When the usual route is tried again if the path is idle then, and when although it is not.
    pub fn home_at(&self) -> Option<(Time, Time)> {
        self.0.awake().filter(|w| w.route != 0).and_then(|w| w.home).map(|(at, wait)| (at, at + wait / 2))
    }

    /// The peer is gone. Returns whether its datagrams took another route than the usual one.
    pub fn ends(&mut self) -> bool {
        std::mem::take(self).route() != 0
    }

    /// The usual route is tried: nothing is under way, so that it is no loss if it is dead still.
    pub fn tries_home(&mut self, now: Time) {
        let w = &mut *self.0;
        let before = w.try_home();
        w.steps.push((now, before));
    }

    /// Gives its memory back if nothing is in the way any more.
    pub fn rest(&mut self) {
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ms;

    const FOUR: Limits = Limits { patience: ms(4), routes: 8 };

    fn at(t: u64) -> Time {
        Time::from_ns(t * 1_000_000)
    }

    #[test]
    fn own_routes_and_reports_take_turns() {
        let mut d = Detour::default();
        assert_eq!(d.unanswered(at(10), FOUR, None, at(12)), Step::Wait(at(14)));
        assert_eq!(d.route(), 0);
        assert_eq!(d.unanswered(at(10), FOUR, None, at(14)), Step::Take(1));
        assert_eq!((d.unanswered(at(10), FOUR, None, at(15)), d.reports()), (Step::Wait(at(18)), false));
        assert_eq!((d.unanswered(at(10), FOUR, None, at(18)), d.reports()), (Step::Report, true));
        assert_eq!(d.unanswered(at(10), FOUR, None, at(22)), Step::Report);
        assert_eq!(d.unanswered(at(10), FOUR, None, at(26)), Step::Take(2));
        assert_eq!(d.answered(at(20), at(27)), (4, Some(1)), "it was sent before the last step");
        assert_eq!((d.route(), d.reports()), (1, false));
        assert_eq!(d.unanswered(at(30), FOUR, None, at(34)), Step::Take(2));
        assert_eq!((d.answered(at(35), at(36)), d.route()), ((1, None), 2));
    }

    #[test]
    fn where_the_peer_is_heard_only_the_own_route_is_at_fault() {
        let mut d = Detour::default();
        for (t, route) in [(14, 1), (18, 2), (22, 3)] {
            assert_eq!(d.unanswered(at(10), FOUR, Some(at(t - 1)), at(t)), Step::Take(route));
        }
        assert!(!d.reports());
        assert_eq!(
            d.unanswered(at(10), FOUR, Some(at(22)), at(26)),
            Step::Take(4),
            "the third is one anyway"
        );
        assert_eq!(
            d.unanswered(at(10), FOUR, Some(at(22)), at(30)),
            Step::Report,
            "nothing since the last step"
        );
    }

    #[test]
    fn a_peer_that_was_only_busy_brings_the_usual_route_back() {
        let mut d = Detour::default();
        let (mut t, mut last, mut gaps) = (10, 10, Vec::new());
        for _ in 0..48 {
            let Step::Wait(next) = d.unanswered(at(10), FOUR, None, at(t)) else {
                gaps.push(t - last);
                last = t;
                continue;
            };
            t = next.ns() / 1_000_000;
        }
        assert_eq!(gaps, [[4; 18].as_slice(), &[8, 8, 16, 16, 32, 32]].concat(), "steps become rare");
        assert_eq!(d.answered(at(10), at(t)).1, Some(0));
        assert_eq!((d.route(), d.home_at()), (0, None));
        d.rest();
        assert!(d.0.awake().is_none(), "nothing is kept");
    }

    #[test]
    fn a_rail_with_few_routes_is_led_over_no_other() {
        let mut d = Detour::default();
        let limits = Limits { routes: 3, ..FOUR };
        let routes = [14, 18, 22, 26].map(|t| d.unanswered(at(10), limits, Some(at(t)), at(t)));
        assert_eq!(routes, [1, 2, 0, 1].map(Step::Take));
        assert_eq!((d.reported(limits, at(30)), d.reported(limits, at(34))), (Some(2), Some(0)));
    }

    #[test]
    fn a_report_moves_the_answers_and_many_in_one_moment_move_them_once() {
        let mut d = Detour::default();
        assert_eq!(d.reported(FOUR, at(10)), Some(1));
        assert_eq!(d.reported(FOUR, at(13)), None);
        assert_eq!(d.reported(FOUR, at(14)), Some(2));
        d.not_reported();
        assert_eq!((d.route(), d.reported(FOUR, at(15))), (2, Some(3)));
    }

    #[test]
    fn handshakes_seek_a_route_and_try_the_usual_one_when_they_succeed() {
        let mut d = Detour::default();
        assert!(!d.finds());
        assert_eq!(([10, 20, 30].map(|t| d.seeks(3, at(t))), d.seeks(3, at(40))), ([1, 2, 0], 1));
        assert_eq!((d.finds(), d.route(), d.finds()), (true, 0, false));
        assert_eq!((d.answered(at(40), at(41)), d.route(), d.home_at()), ((0, None), 0, None));
        assert_eq!(d.seeks(3, at(50)), 1);
        assert!(d.finds());
        assert_eq!(d.unanswered(at(50), FOUR, None, at(54)), Step::Take(1), "the usual one does not answer");
        assert_eq!((d.answered(at(54), at(55)), d.route()), ((1, Some(0)), 0), "it was only late");
    }

    #[test]
    fn the_usual_route_is_tried_ever_later_and_kept_when_it_answers() {
        let mut d = Detour::default();
        assert_eq!((d.home_at(), d.reported(FOUR, at(0))), (None, Some(1)));
        for wait in [6, 12, 24] {
            let (home, busy) = d.home_at().expect("it is on a detour");
            assert_eq!(busy, home + Duration::from_secs(wait / 2));
            d.tries_home(home);
            assert_eq!(d.route(), 0);
            let late = home + ms(400);
            assert_eq!(d.unanswered(home + ms(1), FOUR, None, late), Step::Take(1), "back to what worked");
            assert_eq!(d.answered(late + ms(1), late + ms(2)), (1, None));
            assert_eq!(d.home_at().map(|h| h.0), Some(late + Duration::from_secs(2 * wait)));
        }
        let (home, _) = d.home_at().expect("still");
        d.tries_home(home);
        assert_eq!(d.answered(home + ms(1), home + ms(2)), (0, None));
        assert_eq!((d.route(), d.home_at()), (0, None));
        d.not_reported();
        d.rest();
        assert!(d.0.awake().is_none());
        // an answer to what was sent before the trial proves nothing of it
        assert_eq!(d.reported(FOUR, at(0)), Some(1));
        d.tries_home(at(20_000));
        assert_eq!((d.answered(at(19_999), at(20_001)).1, d.route()), (Some(1), 1));
        assert_eq!((d.ends(), d.route(), d.ends()), (true, 0, false));
    }
}
