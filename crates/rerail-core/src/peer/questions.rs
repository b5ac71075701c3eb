//! Queries to one peer: their numbers, and the rounds in which all its paths are queried while something is late.
//!
//! Owns: the next number, the round that is under way, and the interval that the peer requests.

use crate::types::{Time, ms};
use std::time::Duration;

/// Interval of queries while something is late.
pub(crate) const QUERY_INTERVAL: Duration = ms(5);
/// The first repetition comes sooner: two queries are what makes a path suspect.
pub(crate) const QUERY_REPEATED: Duration = ms(2);
/// Rounds after which queries become rarer: the peer is busy or partitioned, and more queries would not help.
const ROUNDS_FAST: u32 = 30;
/// Interval of queries after that.
const QUERY_INTERVAL_SLOW: Duration = ms(40);

#[derive(Debug, Clone, Copy)]
struct Rounds {
    next: Time,
    count: u32,
}

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Questions {
    next_id: u64,
    rounds: Option<Rounds>,
    wish: u16,
}

impl Questions {
    pub fn new() -> Self {
        Self { next_id: 1, rounds: None, wish: 0 }
    }

    /// The number of the next query.
    #[inline]
    pub fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Whether a query had that number, or a smaller one.
    #[inline]
    pub fn was_asked(&self, id: u64) -> bool {
        id < self.next_id
    }

    // ---- rounds ------------------------------------------------------------------------------------------------

    /// Nothing is late.
    pub fn end_rounds(&mut self) {
        self.rounds = None;
    }

    /// There is a reason to query at once. Returns whether that is news.
    pub fn ask_soon(&mut self, now: Time) -> bool {
        let news = self.rounds.is_none();
        self.rounds.get_or_insert(Rounds { next: now, count: 0 });
        news
    }

    /// Something is late, and was queried once if `pressed`. Returns when the next round is due.
    pub fn next_round(&mut self, pressed: bool, now: Time) -> Time {
        self.rounds.get_or_insert(Rounds { next: now, count: u32::from(pressed) }).next
    }

    /// All paths were queried. Returns when they are next.
    pub fn end_round(&mut self, now: Time) -> Time {
        let count = self.rounds.map_or(0, |r| r.count);
        let gap = match count {
            0 => QUERY_REPEATED,
            1..ROUNDS_FAST => QUERY_INTERVAL,
            _ => QUERY_INTERVAL_SLOW,
        };
        self.rounds = Some(Rounds { next: now + gap, count: count + 1 });
        now + gap
    }

    /// Whether so many rounds were in vain that queries have become rarer.
    pub fn are_slow(&self) -> bool {
        self.rounds.is_some_and(|r| r.count > ROUNDS_FAST)
    }

    // ---- the peer's wish ---------------------------------------------------------------------------------------

    /// Query interval that its answers request, in the unit of `probes`.
    pub fn wish(&self) -> u16 {
        self.wish
    }

    /// Its answer requests that interval.
    pub fn wishes(&mut self, wish: u16) {
        self.wish = wish;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_begin_fast_and_become_slower() {
        let at = |t: u64| Time::from_ns(t * 1_000_000);
        let mut q = Questions::new();
        assert!(q.ask_soon(at(0)) && !q.ask_soon(at(1)));
        let gaps: Vec<Duration> = (0..32).map(|_| q.end_round(at(9)).since(at(9))).collect();
        assert_eq!((gaps[0], gaps[1], gaps[29], gaps[30]), (ms(2), ms(5), ms(5), ms(40)));
        assert_eq!((q.next_round(false, at(10)), q.are_slow()), (at(49), true));
        q.end_rounds();
        assert!(!q.are_slow());
        assert_eq!(q.next_round(true, at(50)), at(50));
        assert_eq!(q.end_round(at(50)), at(55), "being pressed was the first round");
    }

    #[test]
    fn no_number_is_given_twice_and_none_was_asked_that_was_not_given() {
        let mut q = Questions::new();
        assert!(!q.was_asked(1));
        assert_eq!([q.take_id(), q.take_id()], [1, 2]);
        assert!(q.was_asked(2) && !q.was_asked(3));
    }
}
