//! How many lanes of a path carry what this side sends.
//!
//! Owns: that number, and under `auto` the trials that change it. Each lane costs a connection at both ends and a completion for each stripe, so a path has
//! one until traffic pays for more (HSAM §3.4: descriptors, completions and accuracy of rates grow with the number of paths).
//!
//! A trial opens one lane more and compares two times next to each other: with the lane, and while it stands idle. What the other lanes make more while it is
//! idle it had taken from them, so the two share a bottleneck, be it the port, a link, or one with a foreign flow: n lanes of one bottleneck with m foreign flows
//! give back 1 / (m + 1) of what one of them makes, lanes of different routes nothing. The lane stays if the sum rises and little is given back; otherwise it is merged
//! with the others again. So several lanes never take a foreign flow's share for longer than a trial. A lane that stays is tried again now and then, because traffic
//! and routes change. Pauses between trials double while nothing changes. Rates before and after were tried first: other peers begin and end meanwhile.
//!
//! Differs from HSAM: there the number of paths is the user's. Shared bottlenecks are found by their effect, and not by delays as in RFC 8382, because a fabric's queues
//! are shorter than what a busy host delays.
//!
//! Invariants: at least the first lane carries; one trial at a time.

use super::moves::FRESH;
use crate::types::{LaneId, Time, ms};
use std::time::Duration;

/// Time between two looks: at least, and in round trips.
const LOOK_EVERY: (Duration, u32) = (ms(20), 1);
/// Looks in a row that find a path busy before a trial.
const BUSY: u8 = 4;
/// Looks of each of the two times, and looks before each.
const WINDOW: u8 = 5;
const SETTLE: (u8, u8) = (4, 2);
/// A lane stays if the sum is higher with it by this share, and if it gives back less than that share of what it makes: at its first trial, and later.
const WORTH: (f64, f64) = (0.08, 0.04);
const SHARED: (f64, f64) = (0.3, 0.4);
/// A new lane that is so far from both is merged after one comparison.
const HOPELESS: (f64, f64) = (0.0, 0.45);
/// Comparisons of a trial, whose sums are judged, because two tenths of a second are little in a crowd: for a new lane to stay or an old one to go, and at most.
const ROUNDS: (u8, u8) = (2, 3);
/// Pause after a trial: the first, and the longest.
const PAUSE: (Duration, Duration) = (ms(500), ms(60_000));
/// After a lane that stays, so many lanes in a row may be merged before pauses double: there are several routes, and a new port often leads over one that
/// is taken already.
const TRIES: u8 = 4;
/// Pause after each of these.
const TRY_AGAIN: Duration = ms(200);
/// After so many that were merged the newest lane that stays is tried again.
const AGAIN: u8 = 3;
/// How long a stream may take to be attached.
const OPENS: Duration = ms(1000);
/// Looks that find nothing to measure, and end a trial.
const QUIET: u8 = 25;
/// A path that was not busy for so long has one lane again.
const IDLE: Duration = ms(10_000);

/// Bytes that were acknowledged, of the lane that is tried and of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Window {
    looks: u8,
    seconds: f64,
    tried: u64,
    others: u64,
}

impl Window {
    fn add(&mut self, more: &Window) {
        self.looks += 1;
        self.seconds += more.seconds;
        self.tried += more.tried;
        self.others += more.others;
    }

    fn is_full(&self) -> bool {
        self.looks >= WINDOW
    }

    /// Bytes per second.
    fn rates(&self) -> (f64, f64) {
        let seconds = self.seconds.max(1e-6);
        (self.tried as f64 / seconds, self.others as f64 / seconds)
    }
}

/// How far a trial is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// There is none; so many looks in a row have found the path busy.
    Rests {
        busy: u8,
    },
    /// The stream of the lane is awaited since then.
    Opens {
        since: Time,
    },
    /// It carries, and so many looks have found that.
    Settles {
        looks: u8,
    },
    With(Window),
    /// It stands idle, and so many looks have found that.
    Yields {
        looks: u8,
        with: Window,
    },
    Without {
        with: Window,
        without: Window,
    },
}

#[derive(Debug, Clone, PartialEq)]
struct Trial {
    step: Step,
    /// Whether it has opened its lane.
    opened: bool,
    /// Lanes in a row that were merged.
    merged: u8,
    /// Comparisons that are done, and what all of them have seen with the lane and without it.
    rounds: u8,
    seen: (Window, Window),
    quiet: u8,
    rests_until: Option<Time>,
    pause: Duration,
    look_at: Option<Time>,
    looked_at: Option<Time>,
    since: Window,
    /// Bytes that were acknowledged on the lane that was opened.
    fresh: u64,
    busy_at: Time,
}

impl Trial {
    fn new(now: Time) -> Self {
        Self {
            step: Step::Rests { busy: 0 },
            opened: false,
            merged: 0,
            rounds: 0,
            seen: Default::default(),
            quiet: 0,
            rests_until: None,
            pause: Duration::ZERO,
            look_at: None,
            looked_at: None,
            since: Window::default(),
            fresh: 0,
            busy_at: now,
        }
    }
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing.
    None,
    /// This lane is to have a stream.
    Open(LaneId),
    /// What carries has changed: streams that waited may take something.
    Changed,
    /// This lane stays, because the sum of all rises, in bytes per second.
    Stays { lane: LaneId, without: f64, with: f64, new: bool },
    /// This lane is merged with the others.
    Merged { lane: LaneId, without: f64, with: f64 },
    /// There was nothing to measure: the lane that was opened for it is not wanted any more.
    Ended(LaneId),
}

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Breadth {
    /// So many lanes carry.
    lanes: u8,
    /// So many may.
    most: u8,
    trial: Option<Box<Trial>>,
}

impl Breadth {
    /// So many lanes carry as soon as they are there.
    pub fn new(lanes: u8) -> Self {
        Self { lanes: lanes.max(1), most: lanes.max(1), trial: None }
    }

    /// So many may carry, if traffic pays for them.
    pub fn may_grow(&mut self, most: u8) {
        self.most = most.max(self.lanes);
    }

    /// Whether trials decide.
    #[inline]
    pub fn is_tried(&self) -> bool {
        self.most > 1 && (self.trial.is_some() || self.most > self.lanes)
    }

    /// Whether a lane is wanted by this side.
    #[inline]
    pub fn has(&self, id: LaneId) -> bool {
        id.0 < self.lanes
    }

    /// So many are.
    pub fn lanes(&self) -> u8 {
        self.lanes
    }

    /// Whether a lane takes what is new.
    #[inline]
    pub fn carries(&self, id: LaneId) -> bool {
        self.has(id) && (id == LaneId::FIRST || !self.is_idle_now(id))
    }

    fn is_idle_now(&self, id: LaneId) -> bool {
        let idle = |t: &Trial| matches!(t.step, Step::Yields { .. } | Step::Without { .. });
        id.0 + 1 == self.lanes && self.trial.as_deref().is_some_and(idle)
    }

    /// Whether a trial is under way.
    pub fn is_busy(&self) -> bool {
        self.trial.as_ref().is_some_and(|t| !matches!(t.step, Step::Rests { .. }))
    }

    /// The most that may be under way on a lane that a trial has just opened; `None`: it is not one.
    pub fn fresh(&self, id: LaneId) -> Option<u64> {
        let t = self.trial.as_ref().filter(|_| id.0 + 1 == self.lanes)?;
        (t.opened && matches!(t.step, Step::Opens { .. } | Step::Settles { .. }))
            .then_some(t.fresh.max(FRESH))
    }

    /// So many bytes were acknowledged on a lane.
    pub fn acked(&mut self, id: LaneId, bytes: u64) {
        let last = id.0 + 1 == self.lanes;
        let Some(t) = &mut self.trial else { return };
        if last {
            t.since.tried += bytes;
            t.fresh += bytes;
        } else {
            t.since.others += bytes;
        }
    }

    /// Whether it is time for a look, where a query takes `round_trip`; then the next one is later.
    #[inline]
    pub fn looks(&mut self, round_trip: Duration, now: Time) -> bool {
        if !self.is_tried() {
            return false;
        }
        let t = self.trial.get_or_insert_with(|| Box::new(Trial::new(now)));
        let due = t.look_at.is_none_or(|at| now >= at);
        if due {
            t.look_at = Some(now + LOOK_EVERY.0.max(round_trip * LOOK_EVERY.1));
        }
        due
    }

    /// A look at the lanes, some of which were `busy` since the last one or not. `attached`: the last one that is wanted has a stream. `late`: so many looks more
    /// pass before a trial, so that the trials of two sides and of many peers do not begin together.
    pub fn look(&mut self, busy: bool, attached: bool, late: u8, now: Time) -> Verdict {
        let last = LaneId(self.lanes - 1);
        let Some(t) = &mut self.trial else { return Verdict::None };
        let before = t.looked_at.replace(now);
        let mut seen = std::mem::take(&mut t.since);
        seen.seconds = before.map_or(0.0, |at| now.since(at).as_secs_f64());
        if busy {
            (t.busy_at, t.quiet) = (now, 0);
        } else {
            t.quiet = t.quiet.saturating_add(1);
        }
        match &mut t.step {
            Step::Rests { busy: found } => {
                *found = if busy { found.saturating_add(1) } else { 0 };
                if *found < BUSY + late || t.rests_until.is_some_and(|at| now < at) {
                    return Verdict::None;
                }
                let again = t.merged > 0 && t.merged % AGAIN == 0;
                (t.rounds, t.seen) = Default::default();
                if self.lanes > 1 && (again || self.lanes == self.most) {
                    (t.opened, t.step) = (false, Step::With(Window::default()));
                    return Verdict::None;
                }
                if self.lanes == self.most {
                    return Verdict::None;
                }
                (t.opened, t.fresh) = (true, 0);
                t.step = Step::Opens { since: now };
                self.lanes += 1;
                return Verdict::Open(LaneId(self.lanes - 1));
            }
            Step::Opens { .. } if attached => t.step = Step::Settles { looks: 0 },
            Step::Opens { since } if now.since(*since) > OPENS => return self.end(now),
            Step::Opens { .. } => {}
            _ if t.quiet > QUIET || !attached => return self.end(now),
            _ if !busy => {}
            Step::Settles { looks } if *looks < SETTLE.0 => *looks += 1,
            Step::Settles { .. } => t.step = Step::With(Window::default()),
            Step::With(with) => {
                with.add(&seen);
                if with.is_full() {
                    t.step = Step::Yields { looks: 0, with: *with };
                    return Verdict::Changed;
                }
            }
            Step::Yields { looks, .. } if *looks < SETTLE.1 => *looks += 1,
            Step::Yields { with, .. } => t.step = Step::Without { with: *with, without: Window::default() },
            Step::Without { with, without } => {
                without.add(&seen);
                if without.is_full() {
                    let (with, without) = (*with, *without);
                    return self.judge(&with, &without, last, now);
                }
            }
        }
        Verdict::None
    }

    fn judge(&mut self, with: &Window, without: &Window, lane: LaneId, now: Time) -> Verdict {
        let t = self.trial.as_mut().expect("it is judged");
        t.rounds += 1;
        t.seen.0.add(with);
        t.seen.1.add(without);
        let ((own, others), (rest, alone)) = (t.seen.0.rates(), t.seen.1.rates());
        // what was under way on the lane when it was left
        let (with, without) = (own + others, rest + alone);
        let given_back = without - others;
        let holds = |worth: f64, shared: f64| with >= (1.0 + worth) * without && given_back < shared * own;
        let new = t.opened;
        let stays = if new { holds(WORTH.0, SHARED.0) } else { holds(WORTH.1, SHARED.1) };
        let done = match (new, stays) {
            (true, true) | (false, false) => t.rounds >= ROUNDS.0,
            (true, false) => t.rounds >= ROUNDS.1 || !holds(HOPELESS.0, HOPELESS.1),
            (false, true) => true,
        };
        if !done {
            t.step = Step::Settles { looks: 0 };
            return Verdict::Changed;
        }
        t.step = Step::Rests { busy: 0 };
        if stays && new {
            // the next one at once
            (t.pause, t.rests_until, t.merged) = (Duration::ZERO, Some(now), 0);
            return Verdict::Stays { lane, without, with, new };
        }
        let left = if stays { self.lanes } else { self.lanes - 1 };
        t.pause = match left > 1 && left < self.most && t.merged < TRIES {
            true => TRY_AGAIN,
            false => (t.pause * 2).clamp(PAUSE.0, PAUSE.1),
        };
        (t.rests_until, t.merged) = (Some(now + t.pause), t.merged.saturating_add(1));
        if stays {
            return Verdict::Stays { lane, without, with, new };
        }
        self.lanes -= 1;
        Verdict::Merged { lane, without, with }
    }

    /// A trial that found nothing to measure.
    fn end(&mut self, now: Time) -> Verdict {
        let t = self.trial.as_mut().expect("it ends");
        t.pause = (t.pause * 2).clamp(PAUSE.0, PAUSE.1);
        (t.step, t.quiet, t.rests_until) = (Step::Rests { busy: 0 }, 0, Some(now + t.pause));
        if !std::mem::take(&mut t.opened) {
            return Verdict::Changed;
        }
        self.lanes -= 1;
        Verdict::Ended(LaneId(self.lanes))
    }

    /// Since when the path has had nothing to do, if more lanes than one wait for something: until when they do.
    pub fn idle_at(&self) -> Option<Time> {
        let t = self.trial.as_ref().filter(|_| self.lanes > 1)?;
        Some(t.busy_at + IDLE)
    }

    /// It has been idle for too long: one lane is left. Returns how many there were.
    pub fn idles(&mut self) -> u8 {
        self.trial = None;
        std::mem::replace(&mut self.lanes, 1)
    }

    /// A new epoch begins: all streams are new, and what a trial has measured is nothing.
    pub fn begin_epoch(&mut self, now: Time) {
        if self.is_busy() {
            self.end(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: u64) -> Time {
        Time::from_ns(1 + t * 1_000_000)
    }

    /// A path whose lanes make so much, by their number, and what the last one takes from the others.
    struct Busy {
        breadth: Breadth,
        now: u64,
        makes: Box<dyn Fn(u8) -> (u64, u64)>,
    }

    /// Each lane makes 1000 bytes in a look; all make `most` at most.
    fn limited(most: u64) -> Busy {
        let makes = move |lanes: u8| {
            let each = (most / u64::from(lanes)).min(1000);
            (each, each * u64::from(lanes - 1))
        };
        let mut breadth = Breadth::new(1);
        breadth.may_grow(4);
        Busy { breadth, now: 0, makes: Box::new(makes) }
    }

    impl Busy {
        /// Looks until something follows, so many times at most.
        fn next(&mut self, looks: u32) -> Verdict {
            for _ in 0..looks {
                let last = LaneId(self.breadth.lanes() - 1);
                let idle = !self.breadth.carries(last);
                let (own, others) = (self.makes)(self.breadth.lanes() - u8::from(idle));
                if idle {
                    self.breadth.acked(LaneId::FIRST, own + others);
                } else {
                    self.breadth.acked(last, own);
                    self.breadth.acked(LaneId::FIRST, others);
                }
                self.now += 20;
                assert!(self.breadth.looks(ms(1), at(self.now)));
                match self.breadth.look(true, true, 0, at(self.now)) {
                    Verdict::None | Verdict::Changed => {}
                    verdict => return verdict,
                }
            }
            Verdict::None
        }
    }

    #[test]
    fn a_path_gets_lanes_while_each_brings_something_and_no_more_than_may_be() {
        let mut b = limited(4000);
        for n in 1..=3u8 {
            assert_eq!(b.next(10), Verdict::Open(LaneId(n)));
            let made = (f64::from(n) * 50_000.0, f64::from(n + 1) * 50_000.0);
            let Verdict::Stays { lane, without, with, new: true } = b.next(80) else {
                panic!("lane {n} goes")
            };
            assert!(lane == LaneId(n) && (without - made.0).abs() < 1.0 && (with - made.1).abs() < 1.0);
        }
        assert!(
            matches!(b.next(80), Verdict::Stays { lane: LaneId(3), new: false, .. }),
            "it is tried again"
        );
        assert_eq!((b.breadth.lanes(), b.breadth.has(LaneId(3)), b.breadth.has(LaneId(4))), (4, true, false));
    }

    #[test]
    fn a_lane_that_brings_nothing_is_merged_and_pauses_double() {
        let mut b = limited(1000);
        let mut ends = Vec::new();
        for _ in 0..5 {
            assert_eq!(b.next(500), Verdict::Open(LaneId(1)));
            let begun = b.now;
            assert!(matches!(b.next(80), Verdict::Merged { lane: LaneId(1), .. }), "at {begun}");
            ends.push((begun, b.now));
            assert_eq!(b.breadth.lanes(), 1);
        }
        let pauses: Vec<u64> = ends.windows(2).map(|w| w[1].0 - w[0].1).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000]);
    }

    #[test]
    fn a_lane_that_takes_from_the_others_is_merged_although_the_sum_rises() {
        // one bottleneck with one foreign flow: a half of it, and two thirds with two lanes
        let mut b = limited(0);
        b.makes = Box::new(|lanes| if lanes == 1 { (500, 0) } else { (333, 333) });
        assert_eq!(b.next(10), Verdict::Open(LaneId(1)));
        let Verdict::Merged { without, with, .. } = b.next(80) else { panic!("it stays") };
        assert!(with > 1.3 * without, "{with} {without}");
        // the same sum over a route of its own
        b.makes = Box::new(|lanes| if lanes == 1 { (500, 0) } else { (166, 500) });
        assert_eq!(b.next(40), Verdict::Open(LaneId(1)));
        assert!(matches!(b.next(80), Verdict::Stays { lane: LaneId(1), new: true, .. }));
        // until others crowd it
        b.makes = Box::new(|lanes| if lanes == 1 { (500, 0) } else { (10, 495) });
        b.breadth.most = 2;
        assert!(matches!(b.next(80), Verdict::Merged { lane: LaneId(1), .. }));
    }

    #[test]
    fn one_comparison_that_fails_by_chance_decides_nothing() {
        let bad = |lanes| if lanes == 1 { (500, 0) } else { (25, 495) };
        let good = |lanes| if lanes == 1 { (500, 0) } else { (200, 480) };
        let mut b = limited(0);
        b.breadth.most = 2;
        b.makes = Box::new(bad);
        assert_eq!(b.next(10), Verdict::Open(LaneId(1)));
        assert_eq!(b.next(25), Verdict::None, "a new lane is compared again");
        b.makes = Box::new(good);
        assert!(matches!(b.next(40), Verdict::Stays { lane: LaneId(1), new: true, .. }));
        let worse = |lanes| if lanes == 1 { (500, 0) } else { (25, 480) };
        b.makes = Box::new(worse);
        assert_eq!(b.next(25), Verdict::None, "and one that is there");
        b.makes = Box::new(good);
        assert!(matches!(b.next(40), Verdict::Stays { lane: LaneId(1), new: false, .. }));
        // what is as bad each time is merged
        b.makes = Box::new(worse);
        assert!(matches!(b.next(200), Verdict::Merged { lane: LaneId(1), .. }));
        b.makes = Box::new(bad);
        assert_eq!(b.next(200), Verdict::Open(LaneId(1)));
        assert!(matches!(b.next(100), Verdict::Merged { lane: LaneId(1), .. }));
    }

    #[test]
    fn where_there_are_several_routes_ports_are_tried_without_long_pauses() {
        let mut b = limited(2000);
        assert_eq!(b.next(10), Verdict::Open(LaneId(1)));
        assert!(matches!(b.next(80), Verdict::Stays { new: true, .. }));
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let before = b.now;
            assert_eq!(b.next(40), Verdict::Open(LaneId(2)), "at {before}");
            pauses.push(b.now - before);
            assert!(matches!(b.next(40), Verdict::Merged { lane: LaneId(2), .. }));
        }
        assert_eq!(pauses, [80, 200, 200]);
        assert!(matches!(b.next(40), Verdict::Stays { lane: LaneId(1), new: false, .. }), "tried again");
        let before = b.now;
        assert!(b.next(40) == Verdict::Open(LaneId(2)) && b.now - before == 200);
        assert!(matches!(b.next(40), Verdict::Merged { lane: LaneId(2), .. }));
        let before = b.now;
        assert!(b.next(60) == Verdict::Open(LaneId(2)) && b.now - before == 500, "from now on it doubles");
    }

    #[test]
    fn a_path_without_traffic_has_one_lane_and_a_trial_without_ends() {
        let mut b = limited(4000);
        assert_eq!(b.next(10), Verdict::Open(LaneId(1)));
        assert!(b.breadth.is_busy() && b.breadth.fresh(LaneId(1)) == Some(FRESH));
        let mut end = Verdict::None;
        for _ in 0..=u32::from(QUIET) + 1 {
            b.now += 20;
            end = b.breadth.look(false, true, 0, at(b.now));
            if end != Verdict::None {
                break;
            }
        }
        assert_eq!((end, b.breadth.lanes(), b.breadth.is_busy()), (Verdict::Ended(LaneId(1)), 1, false));
        let mut b = limited(4000);
        for _ in 0..2 {
            assert!(matches!(b.next(10), Verdict::Open(_)) && matches!(b.next(80), Verdict::Stays { .. }));
        }
        let idle = b.breadth.idle_at().expect("there are three lanes");
        assert_eq!(idle, at(b.now) + IDLE);
        assert_eq!((b.breadth.idles(), b.breadth.lanes(), b.breadth.idle_at()), (3, 1, None));
    }

    #[test]
    fn a_stream_that_does_not_come_or_breaks_and_a_new_epoch_end_a_trial() {
        let mut b = limited(4000);
        assert_eq!(b.next(10), Verdict::Open(LaneId(1)));
        let opens = b.now;
        assert_eq!(b.breadth.look(true, false, 0, at(opens + 1000)), Verdict::None);
        assert_eq!(b.breadth.look(true, false, 0, at(opens + 1001)), Verdict::Ended(LaneId(1)));
        b.now = opens + 1001;
        assert_eq!(b.next(80), Verdict::Open(LaneId(1)));
        assert_eq!(b.next(4), Verdict::None);
        assert_eq!(b.breadth.look(true, false, 0, at(b.now)), Verdict::Ended(LaneId(1)), "it broke");
        assert_eq!(b.next(80), Verdict::Open(LaneId(1)));
        b.breadth.begin_epoch(at(b.now));
        assert_eq!((b.breadth.lanes(), b.breadth.is_busy()), (1, false));
    }

    #[test]
    fn a_number_that_is_given_is_not_tried() {
        let mut b = Breadth::new(4);
        assert!(!b.is_tried() && !b.looks(ms(1), at(9)) && b.trial.is_none());
        assert!((0..4).all(|id| b.carries(LaneId(id))) && !b.carries(LaneId(4)));
    }
}
