//! When the engine is to be called again: for which peer, and for what concerns no single peer.
//!
//! Owns: the times, each once. A peer keeps its own [`Wakeup`], which shows without a search when it is called; only
//! the timers change it. Invariant: a peer is called once, at the earliest of the times that were requested since it
//! was last called. How long an absence is, and what it counts, is the business of `clock`.

use crate::types::{PeerId, Time};
use std::collections::BTreeSet;

/// When a peer is called next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wakeup(Option<Time>);

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Timers {
    peers: BTreeSet<(Time, PeerId)>,
    /// When something is to be done that concerns no single peer; the last of all times: nothing is.
    errand_at: Time,
}

impl Default for Timers {
    fn default() -> Self {
        Self { peers: BTreeSet::new(), errand_at: Time::NEVER }
    }
}

impl Timers {
    /// A peer is to be called at `at`, or earlier if that was requested.
    #[inline]
    pub fn ask(&mut self, peer: PeerId, at: Time, wakeup: &mut Wakeup) {
        if wakeup.0.is_none_or(|t| at < t) {
            self.cancel(peer, wakeup);
            wakeup.0 = Some(at);
            self.peers.insert((at, peer));
        }
    }

    /// A peer is not to be called any more.
    pub fn cancel(&mut self, peer: PeerId, wakeup: &mut Wakeup) {
        if let Some(t) = wakeup.0.take() {
            self.peers.remove(&(t, peer));
        }
    }

    /// Peers that are to be called at some time.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// The peer that is to be called by now, if there is one. It stays the first until it is [`called`](Self::called).
    pub fn due(&self, now: Time) -> Option<PeerId> {
        self.peers.first().filter(|(at, _)| *at <= now).map(|(_, peer)| *peer)
    }

    /// The peer that was due is being called; the wakeup is its own.
    pub fn called(&mut self, wakeup: &mut Wakeup) {
        self.peers.pop_first();
        wakeup.0 = None;
    }

    /// What concerns no single peer is due next at this time, and at no other.
    pub fn set_errand(&mut self, at: Option<Time>) {
        self.errand_at = at.unwrap_or(Time::NEVER);
    }

    /// Whether that is due.
    pub fn errand_is_due(&self, now: Time) -> bool {
        self.errand_at <= now
    }

    /// The earliest of all times; the last of all if there is none.
    #[inline]
    pub fn first(&self) -> Time {
        self.peers.first().map_or(self.errand_at, |t| t.0.min(self.errand_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn a_peer_is_called_once_and_at_the_earliest_time_that_was_asked_for() {
        let (mut t, mut w) = (Timers::default(), Wakeup::default());
        for ns in [30, 20, 40] {
            t.ask(PeerId(1), at(ns), &mut w);
        }
        assert_eq!((t.first(), t.due(at(19)), t.due(at(20))), (at(20), None, Some(PeerId(1))));
        t.called(&mut w);
        assert_eq!((t.first(), t.due(at(99))), (Time::NEVER, None), "the later times were for the same call");
        t.ask(PeerId(1), at(50), &mut w);
        assert_eq!(t.due(at(50)), Some(PeerId(1)), "it may ask again");
    }

    #[test]
    fn one_that_cancels_is_not_called_and_errands_count_beside_the_peers() {
        let (mut t, mut one, mut two) = (Timers::default(), Wakeup::default(), Wakeup::default());
        t.ask(PeerId(1), at(10), &mut one);
        t.ask(PeerId(2), at(20), &mut two);
        t.cancel(PeerId(1), &mut one);
        assert_eq!((t.first(), one), (at(20), Wakeup::default()));
        t.set_errand(Some(at(15)));
        assert_eq!(t.first(), at(15));
        assert!(!t.errand_is_due(at(14)) && t.errand_is_due(at(15)));
        t.set_errand(None);
        assert!(!t.errand_is_due(at(99)));
    }
}
