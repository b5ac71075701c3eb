//! The stream of a lane: the one that is attached, the attempts at one, and those that are being closed.
//!
//! Owns: their names, and when the next attempt may be made. What a stream is doing is its own (`stream`). Invariants: a stream is at most one of
//! attached, attempted and being closed; numbers of streams grow within an epoch, and each side's have its parity.

use crate::rest::give_back_list;
use crate::types::{StreamId, Time};
use std::time::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Waiting time between attempts at a stream, in milliseconds: the first, the largest.
const RETRY_MS: (u32, u32) = (20, 300);
/// So many streams in a row may end before anything on them is acknowledged, and be replaced at once. After that the waiting time
/// begins with the one here and doubles up to that of [`RETRY_MS`]: what damages every stream, or a peer that finds fault with all that
/// is sent, must not keep both sides busy with nothing but new streams.
const FRUITLESS: (u32, Duration) = (4, ms(1));
/// The side that did not propose the epoch waits this long before it opens a stream itself.
const SECOND: Duration = ms(300);
/// The same after it has left a dead route: the other side may know nothing of it, and the close of the old stream goes the same way.
const SECOND_ON_ROUTES: Duration = ms(2);
/// Connects in a row that are given up early after a dead route, because the next one may take another: with half of all routes dead the last is
/// needed once in 64 times.
const HASTY: u8 = 6;

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    stream: Option<StreamId>,
    /// Number of the last one that was attached in this epoch.
    number: u64,
    /// The largest number that this side has given in this epoch: the peer may have attached one that was not attached here.
    given: u64,
    /// Attempts that are not attached yet.
    attempts: Vec<StreamId>,
    retry_at: Option<Time>,
    /// In milliseconds, because every path of every peer has one.
    retry_interval_ms: u32,
    /// Streams in a row that ended before anything on them was acknowledged.
    fruitless: u32,
    /// Connects that are still given up early.
    hasty: u8,
    /// Streams whose end is not confirmed.
    draining: Vec<StreamId>,
}

impl Connection {
    #[inline]
    pub fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    #[inline]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Gives the next stream of this side its number: two streams never have the same.
    pub fn take_number(&mut self, own_is_high: bool) -> u64 {
        self.given = (self.number.max(self.given) | 1) + 1 + u64::from(own_is_high);
        self.given
    }

    pub fn attempts(&self) -> &[StreamId] {
        &self.attempts
    }

    pub fn draining(&self) -> &[StreamId] {
        &self.draining
    }

    /// A new epoch begins. Attempts go on, and so does the closing of what was.
    pub fn begin_epoch(&mut self) {
        self.stream = None;
        (self.number, self.given) = (0, 0);
        self.retry_interval_ms = 0;
        (self.fruitless, self.hasty) = (0, 0);
    }

    /// The next stream may be opened, at once if it is for this side to do so `first`.
    pub fn may_open(&mut self, first: bool, now: Time) {
        self.retry_at = Some(if first { now } else { now + SECOND });
    }

    /// When a stream may be opened, if there is none and none is attempted.
    pub fn open_at(&self, now: Time) -> Option<Time> {
        (self.stream.is_none() && self.attempts.is_empty()).then(|| self.retry_at.unwrap_or(now))
    }

    /// One is being opened because it was time.
    pub fn opens(&mut self) {
        self.retry_at = None;
    }

    /// It is an attempt from now on.
    pub fn attempt(&mut self, stream: StreamId) {
        self.attempts.push(stream);
    }

    /// An attempt has come to its end, one way or the other. Returns whether it was one.
    pub fn attempted(&mut self, stream: StreamId) -> bool {
        let before = self.attempts.len();
        self.attempts.retain(|a| *a != stream);
        self.attempts.len() < before
    }

    /// An attempt was in vain: the next one is made later. Returns when.
    pub fn back_off(&mut self, now: Time) -> Time {
        self.retry_interval_ms = (self.retry_interval_ms * 2).clamp(RETRY_MS.0, RETRY_MS.1);
        let at = now + ms(u64::from(self.retry_interval_ms));
        self.retry_at = Some(at);
        at
    }

    /// A stream carries frames from now on.
    pub fn attach(&mut self, stream: StreamId, number: u64) {
        self.stream = Some(stream);
        self.number = number;
        self.retry_at = None;
        self.retry_interval_ms = 0;
        self.hasty = 0;
    }

    /// Something on the stream was acknowledged.
    #[inline]
    pub fn bears_fruit(&mut self) {
        self.fruitless = 0;
    }

    /// Streams in a row that ended before anything on them was acknowledged.
    pub fn fruitless(&self) -> u32 {
        self.fruitless
    }

    /// The stream is left because its route is dead: the next one may be opened, by either side, and is not waited for as long as others.
    pub fn leaves_route(&mut self, first: bool, pauses: bool, now: Time) {
        self.fails(true, pauses, now);
        if let Some(at) = self.retry_at.filter(|_| !first) {
            self.retry_at = Some(at + SECOND_ON_ROUTES);
        }
        self.hasty = HASTY;
    }

    /// Whether the kernel's connect is given up early if it is not answered.
    pub fn is_hasty(&self) -> bool {
        self.hasty > 0
    }

    /// A connect was given up early: the next one is made at once.
    pub fn tries_another(&mut self) {
        self.hasty = self.hasty.saturating_sub(1);
        self.retry_at = None;
    }

    /// The stream was given up: the next one may be opened, by the side that does so `first` at once, unless (`pauses`) too many ended like this.
    pub fn fails(&mut self, first: bool, pauses: bool, now: Time) {
        let pause = match self.fruitless.checked_sub(FRUITLESS.0) {
            Some(n) if pauses => (FRUITLESS.1 * (1 << n.min(16))).min(ms(u64::from(RETRY_MS.1))),
            _ => Duration::ZERO,
        };
        self.fruitless = self.fruitless.saturating_add(1);
        let wait = if first { ms(u64::from(self.retry_interval_ms)).max(pause) } else { SECOND };
        self.retry_at = Some(now + wait);
    }

    /// The lack of a stream so far proves nothing about the next.
    pub fn forgive(&mut self, first: bool, now: Time) {
        self.retry_interval_ms = 0;
        if self.stream.is_none() {
            let wait = if first { Duration::ZERO } else { SECOND };
            self.retry_at = Some(self.retry_at.map_or(now + wait, |at| at.min(now + wait)));
        }
    }

    /// The close of a stream was requested.
    pub fn closing(&mut self, stream: StreamId) {
        self.attempted(stream);
        if self.stream == Some(stream) {
            self.stream = None;
        }
        self.draining.push(stream);
    }

    /// It is closed, or never carried anything.
    pub fn closed(&mut self, stream: StreamId) {
        self.draining.retain(|a| *a != stream);
    }

    /// Nothing of what is being closed can touch memory.
    pub fn all_closed(&mut self) {
        self.draining.clear();
    }

    pub fn rest(&mut self) {
        give_back_list(&mut self.attempts);
        give_back_list(&mut self.draining);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StreamId = StreamId(1);

    #[test]
    fn a_stream_is_attempted_attached_and_closed_one_after_the_other() {
        let (mut c, now) = (Connection::default(), Time::ORIGIN);
        assert_eq!(
            (c.take_number(false), c.take_number(false)),
            (2, 4),
            "the peer may have attached the first"
        );
        c.attempt(ONE);
        assert_eq!(c.open_at(now), None);
        assert!(c.attempted(ONE) && !c.attempted(ONE));
        c.attach(ONE, 3);
        assert_eq!((c.stream(), c.open_at(now), c.take_number(false)), (Some(ONE), None, 6));
        c.closing(ONE);
        assert_eq!((c.stream(), c.draining(), c.open_at(now)), (None, &[ONE][..], Some(now)));
        c.closed(ONE);
        assert!(c.draining().is_empty());
        c.attempt(ONE);
        c.closing(ONE);
        assert_eq!((c.attempts(), c.draining()), (&[][..], &[ONE][..]), "an attempt can be closed too");
        c.attach(ONE, 9);
        assert_eq!(c.take_number(true), 11, "above those of the peer");
        c.begin_epoch();
        assert_eq!(c.take_number(true), 3);
    }

    #[test]
    fn attempts_in_vain_wait_ever_longer_until_they_are_forgiven() {
        let (mut c, now) = (Connection::default(), Time::ORIGIN);
        let waits: Vec<Duration> = (0..6).map(|_| c.back_off(now).since(now)).collect();
        assert_eq!(waits, [20, 40, 80, 160, 300, 300].map(ms));
        c.forgive(true, now);
        assert_eq!((c.open_at(now), c.back_off(now)), (Some(now), now + ms(20)));
        c.opens();
        c.forgive(false, now);
        assert_eq!(c.open_at(now), Some(now + SECOND));
    }

    #[test]
    fn after_a_dead_route_both_sides_open_streams_and_try_several_early() {
        let (mut c, now) = (Connection::default(), Time::ORIGIN);
        c.leaves_route(true, true, now);
        assert_eq!(c.open_at(now), Some(now));
        c.leaves_route(false, true, now);
        assert_eq!(c.open_at(now), Some(now + SECOND_ON_ROUTES));
        c.opens();
        for _ in 0..HASTY {
            assert!(c.is_hasty());
            c.tries_another();
            assert_eq!(c.open_at(now), Some(now));
        }
        assert!(!c.is_hasty(), "something else stops them");
        c.leaves_route(true, true, now);
        c.attach(ONE, 3);
        assert!(!c.is_hasty());
    }

    #[test]
    fn streams_that_bear_no_fruit_are_replaced_with_pauses() {
        let (mut c, now) = (Connection::default(), Time::ORIGIN);
        let waits = |c: &mut Connection, n: usize| -> Vec<u128> {
            (0..n)
                .map(|_| {
                    c.fails(true, true, now);
                    c.open_at(now).unwrap().since(now).as_millis()
                })
                .collect()
        };
        assert_eq!(waits(&mut c, 7), [0, 0, 0, 0, 1, 2, 4]);
        c.bears_fruit();
        assert_eq!(waits(&mut c, 1), [0]);
        c.fails(false, true, now);
        assert_eq!(c.open_at(now), Some(now + SECOND), "the other side opens it first");
    }
}
