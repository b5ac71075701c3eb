//! The engine's own clock: real time less the time during which this process was away (hazard H12).
//!
//! The world promises a call at `poll_timeout`. When it comes much later, the process was stopped, starved or
//! suspended. That time is not counted, so that every deadline is extended by the absence, and what arrived meanwhile
//! is drained before anything is judged.

use crate::types::Time;
use std::time::Duration;

/// Coming back this much later than promised is an absence.
const ABSENCE_MIN: Duration = Duration::from_millis(40);
/// What an absence counts for.
const ABSENCE_COUNTS: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    real: Time,
    engine: Time,
}

impl Clock {
    pub fn new(now: Time) -> Self {
        Self { real: now, engine: now }
    }

    pub fn now(&self) -> Time {
        self.engine
    }

    /// Whether `now` is later than the last real time that it was given.
    pub fn is_new(&self, now: Time) -> bool {
        now > self.real
    }

    /// Moves on to real time `now`, if that is so soon after the last one that it cannot be an absence, whatever was promised.
    #[inline]
    pub fn advance_a_little(&mut self, now: Time) -> bool {
        let step = now.since(self.real);
        let little = step <= ABSENCE_MIN;
        if little {
            self.engine = self.engine + step;
            self.real = self.real.max(now);
        }
        little
    }

    /// Moves on to real time `now`; `promised`: the engine time at which the world should have called at the latest.
    /// Returns for how long this process had been away, if it had.
    pub fn advance(&mut self, now: Time, promised: Option<Time>, absence_counts: bool) -> Option<Duration> {
        if now <= self.real {
            return None;
        }
        let naive = self.engine + now.since(self.real);
        self.real = now;
        let expected = promised.map_or(naive, |p| p.max(self.engine));
        if !absence_counts && naive.since(expected) > ABSENCE_MIN {
            self.engine = expected + ABSENCE_COUNTS;
            return Some(naive.since(expected));
        }
        self.engine = naive;
        None
    }

    /// Real time at which the engine's clock will show `at`, unless there are absences.
    pub fn real_of(&self, at: Time) -> Time {
        self.real + at.since(self.engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MS: u64 = 1_000_000;

    #[test]
    fn an_absence_is_not_counted_but_a_promised_sleep_is() {
        let mut c = Clock::new(Time::ORIGIN);
        assert_eq!(c.advance(Time::from_ns(400 * MS), Some(Time::from_ns(400 * MS)), false), None);
        assert_eq!(c.now(), Time::from_ns(400 * MS));
        assert_eq!(
            c.advance(Time::from_ns(10_400 * MS), Some(Time::from_ns(410 * MS)), false),
            Some(Duration::from_millis(9_990))
        );
        assert_eq!(c.now(), Time::from_ns(415 * MS));
        assert_eq!(c.real_of(Time::from_ns(420 * MS)), Time::from_ns(10_405 * MS));
    }
}
