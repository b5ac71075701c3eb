//! Channels through which nothing passes, told by what passes beside them.
//!
//! A firewall may take datagrams and leave streams, take some datagrams and leave others, or begin to do so in the middle of an
//! epoch. The path works all the same, so nobody else says so, and what is sent again on the same channel vanishes again. Two
//! witnesses, both differential (hazard H3):
//!
//! * *Queries.* While datagrams are not answered the same question goes over the stream. When that is answered and the datagram
//!   beside it is not, datagrams do not make the round trip: everything goes over the stream until a datagram is answered again.
//!   Only a round trip counts: what arrives proves one direction, and a filter may be in the other.
//! * *Losses.* Queries are answered as datagrams, and each answer shows that everything sent before was lost, and nothing of it was
//!   ever acknowledged (bulk datagrams, or short ones that carry data): the channel is left alone for a while, and tried again.
//!
//! Invariant: a channel is closed only when another one carries in its place, on this path or elsewhere; else trying is all that is
//! left. The alternative, giving up the path, would lose the half of it that works.

use crate::engine::Engine;
use crate::event::EventKind;
use crate::message::item::Item;
use crate::rest::{OnDemand, rests};
use crate::sched::carry;
use crate::types::*;
use std::time::Duration;

/// Queries as datagrams without an answer before datagrams count as blocked, and the time they must span.
const MUTE_QUERIES: u32 = 8;
const MUTE_AFTER: Duration = ms(400);
/// How long the datagram's answer may come after the stream's at least, which left later.
const MUTE_PATIENCE: Duration = ms(20);
/// A datagram that was answered so long ago does not speak against a peer who says that its own are not.
const ANSWERED_LATELY: Duration = ms(500);
/// Answers in a row that show everything as lost before a channel counts as blocked, and the time they must span: with half of all
/// datagrams lost that happens once in 60000 times.
const VANISHED: (u32, Duration) = (8, ms(200));
/// The same when it was blocked before and is tried.
const VANISHED_ON_TRIAL: (u32, Duration) = (3, ms(10));
/// A blocked channel is tried after this long; twice as long each time that this is in vain; and the longest.
const HOLD: (Duration, Duration) = (ms(500), Duration::from_secs(10));

/// Datagram queries of an epoch that no datagram has answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mute {
    /// When the first of them went out.
    pub since: Time,
    queries: u32,
    /// When a stream first answered one of them.
    by_stream: Option<Time>,
}

/// What is known of the round trips of datagrams in one epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoundTrips {
    pub mute: Option<Mute>,
    /// Answers to queries below this number are no news.
    news_from: u64,
    answered_at: Option<Time>,
    /// When a query last went over the stream, if none was answered there since.
    pub asked_by_stream: Option<Time>,
}

impl RoundTrips {
    /// A query goes out as a datagram.
    pub fn asked(&mut self, now: Time) {
        self.mute.get_or_insert(Mute { since: now, queries: 0, by_stream: None }).queries += 1;
    }

    /// Whether no datagram was answered for so long.
    pub fn mute_for(&self, least: Duration, now: Time) -> bool {
        self.mute.is_some_and(|m| now.since(m.since) > least)
    }

    /// Whether a datagram answered just now, query `id`.
    fn answered(&mut self, id: u64, now: Time) -> bool {
        let news = id >= self.news_from;
        if news {
            self.news_from = id + 1;
            self.mute = None;
            self.answered_at = Some(now);
        }
        news
    }

    /// A stream answered a query of `sent_at`; whether that proves that datagrams are blocked.
    fn answered_by_stream(&mut self, sent_at: Time, patience: Duration, now: Time) -> bool {
        self.asked_by_stream = None;
        let Some(m) = self.mute.as_mut().filter(|m| m.since <= sent_at) else { return false };
        let first = *m.by_stream.get_or_insert(now);
        now.since(first) >= patience && self.proves(now)
    }

    fn proves(&self, now: Time) -> bool {
        self.mute.is_some_and(|m| {
            m.by_stream.is_some() && m.queries >= MUTE_QUERIES && now.since(m.since) >= MUTE_AFTER
        })
    }
}

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
    fn lost(&mut self, now: Time) -> bool {
        let o = &mut *self.0;
        let (n, since) = o.vanished.get_or_insert((0, now));
        *n += 1;
        let (most, time) = if o.hold.is_zero() { VANISHED } else { VANISHED_ON_TRIAL };
        *n >= most && now.since(*since) >= time
    }

    fn bar(&mut self, now: Time) {
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
    fn release(&mut self, now: Time) -> (Option<Time>, bool) {
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

impl Engine {
    /// Query `id` of a path was answered by a datagram.
    pub(crate) fn datagram_answered(&mut self, pi: usize, xi: usize, id: u64) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        if id >= p.ping_next || !x.evidence.round_trips_mut().answered(id, now) {
            return;
        }
        if !x.datagrams_work && !x.small_passage.barred() {
            x.datagrams_work = true;
            if std::mem::take(&mut x.datagrams_blocked) {
                self.event(EventKind::DatagramsPass, pi, Some(xi));
            }
            self.mark(PeerId(pi as u32));
            self.mark_streams(PeerId(pi as u32));
        }
    }

    /// A query of a path, sent at `sent_at`, was answered by its stream.
    pub(crate) fn stream_answered(&mut self, pi: usize, xi: usize, sent_at: Time) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        let patience = x.lane.rtt().patience(MUTE_PATIENCE);
        if x.evidence.round_trips_mut().answered_by_stream(sent_at, patience, now) && x.datagrams_work {
            self.datagrams_block(pi, xi);
        }
    }

    /// Whether the peer is to be told that no datagram of ours makes the round trip.
    pub(crate) fn tells_blocked(&self, pi: usize, xi: usize) -> bool {
        let x = &self.peers[pi].paths[xi];
        !x.datagrams_work && x.evidence.round_trips().proves(self.clock.now())
    }

    /// The peer says that its datagrams do not make the round trip: then ours do not either, and its acknowledgements depend on
    /// our noticing that.
    pub(crate) fn told_blocked(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &self.peers[pi].paths[xi];
        let lately = x.evidence.round_trips().answered_at.is_some_and(|t| now.since(t) < ANSWERED_LATELY);
        if x.datagrams_work && !lately {
            self.datagrams_block(pi, xi);
        }
    }

    /// Datagrams are blocked on a path whose stream works: everything that was under way goes again.
    fn datagrams_block(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        x.datagrams_work = false;
        x.datagrams_blocked = true;
        self.counters.channels_blocked += 1;
        // the acknowledgements of late went the way that is blocked
        x.lanes_mut().for_each(|l| l.acks_mut().tell_again(now, true));
        let records: Vec<_> = x.lane.datagrams_mut().take_all();
        let bulk = self.bulk_withdraw(pi, xi);
        let mut resent_bytes = self.requeue_bulk(pi, bulk);
        for r in &records {
            resent_bytes += self.requeue(pi, r);
        }
        self.event(EventKind::DatagramsBlocked { bulk_only: false, resent_bytes }, pi, Some(xi));
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
        // the peer is told at once
        self.ping(pi, xi);
    }

    /// A datagram answered, and everything that carried data before it was lost.
    pub(crate) fn small_vanished(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if x.has_stream() && x.pmtu.is_settled() && x.small_passage.lost(now) && x.datagrams_work {
            x.small_passage.bar(now);
            self.datagrams_block(pi, xi);
        }
    }

    /// A datagram answered, and all bulk datagrams before it were lost.
    pub(crate) fn bulk_vanished(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if !x.pmtu.is_settled() || !x.bulk_passage.lost(now) {
            return;
        }
        x.bulk_passage.bar(now);
        self.schedule(pi, now);
        let p = &self.peers[pi];
        if carry(p, &p.paths[xi], self.options.bulk, now) == Some(crate::sched::Carry::Datagrams) {
            // nothing else carries: trying is all that is left
            return;
        }
        self.counters.channels_blocked += 1;
        self.peers[pi].paths[xi].bulk_blocked = true;
        let bulk = self.bulk_withdraw(pi, xi);
        let resent_bytes = self.requeue_bulk(pi, bulk);
        self.event(EventKind::DatagramsBlocked { bulk_only: true, resent_bytes }, pi, Some(xi));
        self.mark_streams(PeerId(pi as u32));
    }

    /// Bulk datagrams pass.
    pub(crate) fn bulk_passed(&mut self, pi: usize, xi: usize) {
        let x = &mut self.peers[pi].paths[xi];
        x.bulk_passage.passed();
        if std::mem::take(&mut x.bulk_blocked) {
            self.event(EventKind::DatagramsPass, pi, Some(xi));
        }
    }

    fn requeue_bulk(&mut self, pi: usize, items: Vec<Item>) -> u64 {
        let mut bytes = 0;
        for i in items {
            bytes += self.requeue_item(pi, i, false);
        }
        bytes
    }

    /// Blocked channels whose time is over are tried again; returns when to be called next.
    pub(crate) fn passage_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        let (bulk, tried) = x.bulk_passage.release(now);
        let (small, _) = x.small_passage.release(now);
        if tried {
            self.mark_streams(PeerId(pi as u32));
        }
        bulk.into_iter().chain(small).min().unwrap_or(Time::NEVER)
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
        assert!(r.answered_by_stream(at(480), ms(20), at(481)));
        assert!(r.answered(9, at(482)));
        assert!(!r.answered(9, at(483)), "what is repeated is no news");
        assert!(!r.answered_by_stream(at(480), ms(20), at(490)), "a round trip was made since");
        r.asked(at(500));
        assert!(!r.answered_by_stream(at(480), ms(20), at(1_000)), "it was asked before");
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
