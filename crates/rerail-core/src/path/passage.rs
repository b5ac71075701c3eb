//! Whether one kind of datagram passes on a path.
//!
//! Owns: the answers that showed everything of that kind as lost, and until when it is left alone for that. Nearly always nothing is kept.

use crate::rest::{OnDemand, rests};
use crate::types::{Time, ms};
use std::time::Duration;

/// Answers in a row that show everything as lost before a channel counts as blocked, and the time they must span: with half of all
/// datagrams lost that happens once in 60000 times.
const VANISHED: (u32, Duration) = (8, ms(200));
/// The same when it was blocked before and is tried.
const VANISHED_ON_TRIAL: (u32, Duration) = (3, ms(10));
/// A blocked channel is tried after this long; twice as long each time that this is in vain; and the longest.
const HOLD: (Duration, Duration) = (ms(500), Duration::from_secs(10));

/// Whether one kind of datagram passes. Nearly always it does, and nothing is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Passage(OnDemand<Obstacle>);

/// What is in the way of one kind of datagram, or seems to be.
#[derive(Debug, Clone, Default, PartialEq)]
struct Obstacle {
    /// Answers that showed everything as lost, and when the first of them came.
    vanished: Option<(u32, Time)>,
    /// Not used until then.
    barred_until: Option<Time>,
    /// How long it was left alone last; zero: it is not on trial.
    hold: Duration,
}

rests! {
    Obstacle = Obstacle { vanished: None, barred_until: None, hold: Duration::ZERO };
}

impl Passage {
    /// Something was acknowledged.
    #[inline]
    pub fn passed(&mut self) {
        if let Some(o) = self.0.awake_mut() {
            (o.vanished, o.hold) = (None, Duration::ZERO);
        }
    }

    /// What was lost had another reason, which is over.
    pub fn excused(&mut self) {
        if let Some(o) = self.0.awake_mut() {
            o.vanished = None;
        }
    }

    /// An answer showed everything as lost that was sent before; whether the channel counts as blocked.
    pub fn lost(&mut self, now: Time) -> bool {
        let o = &mut *self.0;
        let (n, since) = o.vanished.get_or_insert((0, now));
        *n += 1;
        let (most, time) = if o.hold.is_zero() { VANISHED } else { VANISHED_ON_TRIAL };
        *n >= most && now.since(*since) >= time
    }

    /// The channel is blocked: it is left alone, twice as long as the last time.
    pub fn bar(&mut self, now: Time) {
        let o = &mut *self.0;
        o.vanished = None;
        o.hold = (o.hold * 2).clamp(HOLD.0, HOLD.1);
        o.barred_until = Some(now + o.hold);
    }

    /// Whether it is left alone.
    pub fn barred(&self) -> bool {
        self.0.barred_until.is_some()
    }

    /// Ends the time in which it is left alone; returns when it will end, and whether it has just ended.
    pub fn release(&mut self, now: Time) -> (Option<Time>, bool) {
        let Some(o) = self.0.awake_mut() else { return (None, false) };
        match o.barred_until {
            Some(at) if at > now => (Some(at), false),
            Some(_) => {
                o.barred_until = None;
                (None, true)
            }
            None => (None, false),
        }
    }

    /// Gives its memory back if nothing is in the way any more.
    pub fn rest(&mut self) {
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    #[test]
    fn a_channel_is_barred_when_everything_was_lost_and_tried_ever_later() {
        let mut p = Passage::default();
        let mut t = 0;
        // how long it is looked at, and how long it is left alone then
        let mut vanish = |p: &mut Passage| {
            let begin = t;
            while !p.lost(at(t)) {
                t += 10;
            }
            p.bar(at(t));
            let held = p.release(at(t)).0.expect("it is barred").since(at(t));
            (t - begin, held)
        };
        assert_eq!(vanish(&mut p), (200, ms(500)));
        assert!(p.barred());
        assert_eq!(vanish(&mut p), (20, ms(1000)));
        for _ in 0..10 {
            vanish(&mut p);
        }
        assert_eq!(vanish(&mut p), (20, HOLD.1));
        assert_eq!(p.release(at(1_000_000)), (None, true));
        assert_eq!(p.release(at(1_000_000)), (None, false));
        p.passed();
        assert!((0..15).all(|n| !p.lost(at(2_000_000 + n * 12))), "not in less than the time");
        p.passed();
        assert!((0..7).all(|n| !p.lost(at(3_000_000 + n * 100))), "nor on fewer answers");
    }
}
