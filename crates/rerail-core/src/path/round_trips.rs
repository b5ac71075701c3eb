//! The round trips of datagrams on a path: whether any is made.
//!
//! Owns: the datagram queries of an epoch that no datagram has answered, and what its stream has answered in their place.

use crate::types::{Time, ms};
use std::time::Duration;

/// Queries as datagrams without an answer before datagrams count as blocked, and the time they must span.
const MUTE_QUERIES: u32 = 8;
const MUTE_AFTER: Duration = ms(400);
/// Datagram queries of an epoch that no datagram has answered.
#[derive(Debug, Clone, Copy)]
struct Mute {
    /// When the first of them went out.
    since: Time,
    queries: u32,
    /// When a stream first answered one of them.
    by_stream: Option<Time>,
}

/// What is known of the round trips of datagrams in one epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoundTrips {
    mute: Option<Mute>,
    /// Answers to queries below this number are no news.
    news_from: u64,
    answered_at: Option<Time>,
    /// When a query last went over the stream, if none was answered there since.
    asked_by_stream: Option<Time>,
}

impl RoundTrips {
    /// A query goes out as a datagram.
    pub fn asked(&mut self, now: Time) {
        self.mute.get_or_insert(Mute { since: now, queries: 0, by_stream: None }).queries += 1;
    }

    /// A query goes over the stream as well.
    pub fn asks_stream(&mut self, now: Time) {
        self.asked_by_stream = Some(now);
    }

    /// When one last did, if none was answered there since.
    pub fn asked_by_stream(&self) -> Option<Time> {
        self.asked_by_stream
    }

    /// Whether no datagram was answered for so long.
    pub fn mute_for(&self, least: Duration, now: Time) -> bool {
        self.mute.is_some_and(|m| now.since(m.since) > least)
    }

    /// A datagram answered query `id`. Returns whether that is news.
    pub fn answered(&mut self, id: u64, now: Time) -> bool {
        let news = id >= self.news_from;
        if news {
            self.news_from = id + 1;
            self.mute = None;
            self.answered_at = Some(now);
        }
        news
    }

    /// A stream answered a query of `sent_at`; whether that proves that datagrams are blocked.
    pub fn answered_by_stream(&mut self, sent_at: Time, patience: Duration, now: Time) -> bool {
        self.asked_by_stream = None;
        let Some(m) = self.mute.as_mut().filter(|m| m.since <= sent_at) else { return false };
        let first = *m.by_stream.get_or_insert(now);
        now.since(first) >= patience && self.proves(now)
    }

    /// When a datagram last answered a query.
    pub fn answered_at(&self) -> Option<Time> {
        self.answered_at
    }

    /// Whether it is proved that datagrams make no round trip, and only streams do.
    pub fn proves(&self, now: Time) -> bool {
        self.mute.is_some_and(|m| {
            m.by_stream.is_some() && m.queries >= MUTE_QUERIES && now.since(m.since) >= MUTE_AFTER
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    #[test]
    fn datagrams_are_blocked_when_the_stream_answers_in_their_place_for_long_enough() {
        let mut r = RoundTrips::default();
        for t in 0..10 {
            r.asked(at(t * 50));
        }
        assert!(!r.answered_by_stream(at(450), ms(20), at(460)), "the datagram's answer may be on its way");
        assert!(!r.proves(at(300)));
        r.asks_stream(at(470));
        assert_eq!(r.asked_by_stream(), Some(at(470)));
        assert!(r.answered_by_stream(at(480), ms(20), at(481)));
        assert_eq!(r.asked_by_stream(), None, "it is answered");
        assert!(r.answered(9, at(482)));
        assert!(!r.answered(9, at(483)), "what is repeated is no news");
        assert!(!r.answered_by_stream(at(480), ms(20), at(490)), "a round trip was made since");
        r.asked(at(500));
        assert!(!r.answered_by_stream(at(480), ms(20), at(1_000)), "it was asked before");
    }
}
