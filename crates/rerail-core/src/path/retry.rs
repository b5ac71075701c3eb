//! When a path that broke is tried again.
//!
//! Owns: the time and the interval of the next attempt, and what is held against the path: failures that follow one another, and a time until which it
//! is held down. Recovery never gives up. Invariant: while nothing else works a path is tried at once, whatever is held against it.

use crate::types::Time;
use std::time::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Waiting time between handshakes, in milliseconds: the first, the largest; and the largest while no path works.
const RETRY_MS: (u32, u32, u32) = (30, 300, 60);
/// Failures of a path within this time count as flapping (they are forgiven one by one).
const FLAP_WINDOW: Duration = Duration::from_secs(10);
/// Failures that are free.
const FLAPS_FREE: u32 = 6;
/// Hold-down for each further failure, and the largest.
const HOLD_DOWN: (Duration, Duration) = (ms(500), Duration::from_secs(10));

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Retry {
    at: Option<Time>,
    /// In milliseconds, because every path of every peer has one.
    interval_ms: u32,
    /// Failures, forgiven slowly.
    flaps: u32,
    flap_at: Time,
    hold_until: Time,
    failed_at: Option<Time>,
    silent_since: Option<Time>,
}

impl Retry {
    pub fn new(now: Time) -> Self {
        Self {
            at: None,
            interval_ms: 0,
            flaps: 0,
            flap_at: now,
            hold_until: now,
            failed_at: None,
            silent_since: None,
        }
    }

    /// When the path is tried, if it is to be.
    #[inline]
    pub fn at(&self) -> Option<Time> {
        self.at
    }

    /// The first attempt is made then.
    pub fn first_at(&mut self, at: Time) {
        self.at = Some(at);
    }

    /// It is being tried, or not any more.
    pub fn stop(&mut self) {
        self.at = None;
    }

    /// It is connected.
    pub fn connected(&mut self) {
        (self.at, self.interval_ms) = (None, 0);
    }

    /// It was in service, and is not any more. `silent_since`: the first query that it left unanswered.
    pub fn fails(&mut self, silent_since: Time, now: Time) {
        (self.failed_at, self.silent_since) = (Some(now), Some(silent_since));
        if now.since(self.flap_at) < FLAP_WINDOW {
            self.flaps += 1;
        } else {
            let forgiven = now.since(self.flap_at).as_secs() / FLAP_WINDOW.as_secs();
            self.flaps = self.flaps.saturating_sub(forgiven as u32);
        }
        self.flap_at = now;
        if self.flaps > FLAPS_FREE {
            let held = (HOLD_DOWN.0 * (self.flaps - FLAPS_FREE)).min(HOLD_DOWN.1);
            self.hold(held, now);
        }
    }

    /// Since when nothing on it was answered, if it was in service and is not any more.
    pub fn silent_since(&self) -> Option<Time> {
        self.silent_since
    }

    /// It is in service again. Returns for how long it was not.
    pub fn is_back(&mut self, now: Time) -> Duration {
        self.silent_since = None;
        self.failed_at.take().map_or(Duration::ZERO, |t| now.since(t))
    }

    /// It is held down for so long at least.
    pub fn hold(&mut self, held: Duration, now: Time) {
        self.hold_until = self.hold_until.max(now + held);
    }

    /// For how long it still is.
    pub fn held(&self, now: Time) -> Duration {
        self.hold_until.since(now)
    }

    /// Failures that are held against it.
    pub fn flaps(&self) -> u32 {
        self.flaps
    }

    /// The next attempt is made later than the last one, on a rail that is `up`: one that is known to be down waits for its link.
    /// `jitter`: up to 1000 for a quarter of the interval. Returns when.
    pub fn later(&mut self, up: bool, all_down: bool, jitter: u32, now: Time) -> Option<Time> {
        let most = if all_down { RETRY_MS.2 } else { RETRY_MS.1 };
        self.interval_ms = (self.interval_ms * 2).clamp(RETRY_MS.0, most);
        let interval = ms(u64::from(self.interval_ms));
        let wait = interval + interval * jitter / 4000;
        self.at = up.then(|| (now + wait).max(self.earliest(all_down, now)));
        self.at
    }

    /// Its link came up.
    pub fn link_up(&mut self, all_down: bool, now: Time) {
        // at once, except for a rail that flaps
        self.at = Some(now.max(self.earliest(all_down, now)));
        self.interval_ms = RETRY_MS.0;
    }

    /// The last path broke, or does not answer: this one is tried soon, if it is to be, whatever is held against it. Returns when, if that is
    /// earlier than before.
    pub fn hurry(&mut self, now: Time) -> Option<Time> {
        let soon = now + ms(u64::from(RETRY_MS.2));
        self.interval_ms = RETRY_MS.0;
        let sooner = self.at.is_some_and(|t| t > soon);
        sooner.then(|| {
            self.at = Some(soon);
            soon
        })
    }

    /// Flapping or not: while nothing else works it is tried.
    fn earliest(&self, all_down: bool, now: Time) -> Time {
        if all_down { now } else { self.hold_until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: u64) -> Time {
        Time::from_ns(1 + t * 1_000_000)
    }

    #[test]
    fn attempts_are_made_ever_later_and_sooner_while_nothing_else_works() {
        let mut r = Retry::new(at(0));
        let mut waits = |all_down| {
            (0..5).map(|_| r.later(true, all_down, 0, at(0)).unwrap().since(at(0))).collect::<Vec<_>>()
        };
        assert_eq!(waits(false), [30, 60, 120, 240, 300].map(ms));
        assert_eq!(waits(true), [60; 5].map(ms));
        assert_eq!(r.later(false, true, 0, at(0)), None, "a rail that is down waits for its link");
        r.link_up(false, at(9));
        assert_eq!((r.at(), r.later(true, false, 1000, at(10))), (Some(at(9)), Some(at(85))));
        assert_eq!((r.hurry(at(20)), r.at()), (Some(at(80)), Some(at(80))));
        assert_eq!(
            (r.hurry(at(90)), r.at()),
            (None, Some(at(80))),
            "a time that is over is requested no more"
        );
        r.connected();
        r.hurry(at(20));
        assert_eq!((r.at(), r.later(true, false, 0, at(10))), (None, Some(at(70))));
    }

    #[test]
    fn a_path_that_flaps_is_held_down_unless_it_is_the_last() {
        let mut r = Retry::new(at(0));
        for n in 1..=FLAPS_FREE {
            r.fails(at(0), at(u64::from(n)));
        }
        assert_eq!((r.flaps(), r.held(at(6)), r.is_back(at(9)), r.is_back(at(9))), (6, ms(0), ms(3), ms(0)));
        r.fails(at(0), at(10));
        r.fails(at(0), at(20));
        assert_eq!(r.held(at(20)), ms(1000), "twice as long as the first");
        assert_eq!(r.later(true, false, 0, at(20)), Some(at(1020)));
        assert_eq!(r.later(true, true, 0, at(20)), Some(at(80)));
        r.link_up(false, at(30));
        assert_eq!(r.at(), Some(at(1020)));
        r.fails(at(0), at(30_020));
        assert_eq!(r.flaps(), 5, "three are forgiven");
    }
}
