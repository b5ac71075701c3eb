//! What was received on a lane, and what of it still has to be acknowledged.
//!
//! Owns: that, for each channel of the present epoch, and for the previous one, whose last acknowledgements go over
//! other paths. Invariants: a number that was noted counts as received for ever; whatever wants an acknowledgement has
//! a time at which one must go.

use super::Channel;
use crate::ranges::RangeSet;
use crate::rest::{OnDemand, rests};
use crate::types::{Epoch, Time};
use std::time::Duration;

/// How long an acknowledgement may wait for traffic to ride on.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(1);
/// It rides on a datagram that goes anyway once it has waited for this much less than [`ACK_DELAY`], so that it need not go alone in the end.
const ACK_RIDES: Duration = Duration::from_micros(750);
/// Or once it is of so many: in a ping-pong of microseconds one for each message would be a fifth of the work.
const ACK_RIDES_PACKETS: u32 = 4;
/// Packets after which an acknowledgement goes at once: well under half the smallest useful window.
pub(crate) const ACK_PACKETS: u32 = 16;
/// Stream bytes after which an acknowledgement goes at once.
pub(crate) const ACK_BYTES: u64 = 256 * 1024;
/// Ranges of received packet numbers that are remembered and reported.
const RANGES_KEPT: usize = 24;
/// For this long after the newest packet, acknowledgements are repeated before a query is answered: a sender that
/// misses one queries long before.
const TOLD_AGAIN: Duration = Duration::from_secs(1);

/// What was received on one channel, and whether an acknowledgement is due.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AckState {
    received: RangeSet,
    /// Numbers below are forgotten and count as received.
    floor: u64,
    largest_at: Time,
    /// Packets that want an acknowledgement and have none.
    unacked: u32,
    bytes_unacked: u64,
    /// When an acknowledgement must go, if one must.
    due: Option<Time>,
}

rests! {
    AckState = AckState {
        received: RangeSet::EMPTY,
        floor: 0,
        largest_at: Time::ORIGIN,
        unacked: 0,
        bytes_unacked: 0,
        due: None,
    };
}

impl AckState {
    /// Whether an acknowledgement of datagrams rides on one that is sent now.
    #[inline]
    pub fn rides(&self, now: Time) -> bool {
        self.due.is_some_and(|due| self.unacked >= ACK_RIDES_PACKETS || due <= now + ACK_RIDES)
    }

    /// Whether this number was seen before.
    #[inline]
    pub fn is_replay(&self, number: u64) -> bool {
        number < self.floor || self.received.contains(number)
    }

    /// Notes a number; `wants_ack` when the sender waits for it.
    #[inline]
    pub fn note(
        &mut self,
        number: u64,
        wants_ack: bool,
        bytes: u64,
        now: Time,
        delay: Duration,
        at_once: bool,
    ) {
        if self.received.max().is_none_or(|m| number > m) {
            self.largest_at = now;
        }
        self.received.insert(number, number + 1);
        if let Some(f) = self.received.forget_old(RANGES_KEPT) {
            self.floor = f;
        }
        if wants_ack {
            self.unacked += 1;
            self.bytes_unacked += bytes;
            let due = if at_once { now } else { now + delay };
            self.due = Some(self.due.map_or(due, |d| d.min(due)));
        }
    }

    /// The largest number, and when it came.
    #[inline]
    pub fn largest(&self) -> Option<u64> {
        self.received.max()
    }

    #[inline]
    pub fn largest_at(&self) -> Time {
        self.largest_at
    }

    /// The received numbers in ranges, the newest first.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.received.newest_first()
    }

    /// Packets that want an acknowledgement and have none, and their bytes.
    #[inline]
    pub fn unacked(&self) -> (u32, u64) {
        (self.unacked, self.bytes_unacked)
    }

    /// When an acknowledgement must go, if one must.
    #[inline]
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.due.is_some_and(|d| d <= now)
    }

    /// An acknowledgement of what was noted long ago may have been lost: one goes by then.
    pub fn repeat_by(&mut self, at: Time) {
        self.due.get_or_insert(at);
    }

    /// What has to be acknowledged is acknowledged now.
    pub fn hurry(&mut self, now: Time) {
        if self.unacked > 0 || self.due.is_some() {
            self.due = Some(now);
        }
    }

    /// An acknowledgement of everything is on its way.
    #[inline]
    pub fn told(&mut self) {
        self.unacked = 0;
        self.bytes_unacked = 0;
        self.due = None;
    }

    /// Whether the newest packet came so lately that a query may be about its acknowledgement.
    fn is_recent(&self, now: Time) -> bool {
        now.since(self.largest_at) < TOLD_AGAIN
    }

    fn tell_again(&mut self, now: Time, all: bool) {
        if self.unacked > 0 || self.received.max().is_some() && (all || self.is_recent(now)) {
            self.due = Some(now);
        }
    }
}

/// What was received in an epoch that is over.
#[derive(Debug, Clone)]
struct Over {
    epoch: Epoch,
    datagrams: AckState,
    stream: AckState,
    /// Number of its last stream.
    stream_number: u16,
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acks {
    datagrams: AckState,
    stream: AckState,
    /// Most lanes never receive bulk datagrams.
    bulk: OnDemand<AckState>,
    over: Option<Box<Over>>,
}

impl Acks {
    #[inline]
    pub fn of(&self, channel: Channel) -> &AckState {
        match channel {
            Channel::Datagram => &self.datagrams,
            Channel::Stream => &self.stream,
            Channel::Bulk => &self.bulk,
        }
    }

    #[inline]
    pub fn of_mut(&mut self, channel: Channel) -> &mut AckState {
        match channel {
            Channel::Datagram => &mut self.datagrams,
            Channel::Stream => &mut self.stream,
            Channel::Bulk => &mut self.bulk,
        }
    }

    /// When an acknowledgement of bulk datagrams must go, if one must.
    #[inline]
    pub fn bulk_due(&self) -> Option<Time> {
        self.bulk.awake().and_then(|rx| rx.due)
    }

    /// Whether an acknowledgement of something that came in this epoch must go.
    #[inline]
    pub fn are_due(&self, now: Time) -> bool {
        self.datagrams.is_due(now)
            || self.stream.is_due(now)
            || self.bulk.awake().is_some_and(|rx| rx.is_due(now))
    }

    /// The same of the epoch before.
    #[inline]
    pub fn old_are_due(&self, now: Time) -> bool {
        self.over.as_ref().is_some_and(|o| o.datagrams.is_due(now) || o.stream.is_due(now))
    }

    /// The times of all acknowledgements that must go.
    pub fn dues(&self) -> impl Iterator<Item = Time> + '_ {
        let over = self.over.iter().flat_map(|o| [o.datagrams.due, o.stream.due]);
        [self.datagrams.due, self.stream.due, self.bulk_due()].into_iter().chain(over).flatten()
    }

    /// When the newest packet of this epoch came.
    pub fn newest_at(&self) -> Time {
        self.datagrams.largest_at.max(self.stream.largest_at).max(self.bulk.largest_at)
    }

    /// When the newest one came on its stream.
    pub fn newest_on_stream_at(&self) -> Time {
        self.stream.largest_at
    }

    /// Acknowledgements go out now, those of before with them if anything came lately (or `all`): the last one may have
    /// been lost, and without it the sender would take what it covered for lost.
    pub fn tell_again(&mut self, now: Time, all: bool) {
        self.datagrams.tell_again(now, all);
        self.stream.tell_again(now, all);
        if let Some(bulk) = self.bulk.awake_mut() {
            bulk.tell_again(now, all);
        }
    }

    /// What is left to be acknowledged of the epoch before: the epoch, its datagrams, the number of its last stream and
    /// that.
    #[inline]
    pub fn over_mut(&mut self) -> Option<(Epoch, &mut AckState, u16, &mut AckState)> {
        let o = self.over.as_deref_mut()?;
        Some((o.epoch, &mut o.datagrams, o.stream_number, &mut o.stream))
    }

    /// Another stream is attached: what the old one received was acknowledged or will come again.
    pub fn begin_stream(&mut self) {
        self.stream = AckState::default();
    }

    /// Nothing more comes as bulk.
    pub fn end_bulk(&mut self) {
        self.bulk = OnDemand::default();
    }

    /// The epoch is over: its last acknowledgements go now, over the paths that are left.
    pub fn end_epoch(&mut self, epoch: Epoch, stream_number: u16, now: Time) {
        let (mut datagrams, mut stream) =
            (std::mem::take(&mut self.datagrams), std::mem::take(&mut self.stream));
        for a in [&mut datagrams, &mut stream] {
            a.due = (a.received.max().is_some()).then_some(now);
        }
        self.over = Some(Box::new(Over { epoch, datagrams, stream, stream_number }));
    }

    /// A new epoch begins.
    pub fn begin_epoch(&mut self) {
        self.datagrams = AckState::default();
        self.begin_stream();
        self.end_bulk();
    }

    pub fn rest(&mut self) {
        self.bulk.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(1);

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1000)
    }

    #[test]
    fn what_wants_an_acknowledgement_has_a_time_for_it_until_it_is_told() {
        let mut a = AckState::default();
        a.note(0, false, 10, at(1), DELAY, false);
        assert_eq!((a.unacked(), a.due()), ((0, 0), None), "no sender waits for it");
        a.note(1, true, 10, at(5), DELAY, false);
        a.note(2, true, 10, at(100), DELAY, false);
        assert_eq!((a.unacked(), a.due(), a.largest_at()), ((2, 20), Some(at(1005)), at(100)));
        a.note(3, true, 10, at(200), DELAY, true);
        assert!(a.is_due(at(200)) && !a.is_due(at(199)));
        a.told();
        assert_eq!((a.unacked(), a.due()), ((0, 0), None));
        assert!(a.is_replay(0) && !a.is_replay(4));
        a.hurry(at(300));
        assert_eq!(a.due(), None, "there is nothing to tell");
        a.repeat_by(at(400));
        a.hurry(at(300));
        assert_eq!(a.due(), Some(at(300)));
    }

    #[test]
    fn numbers_that_are_forgotten_count_as_received() {
        let mut a = AckState::default();
        for n in 0..100 {
            a.note(2 * n, true, 0, at(1), DELAY, false);
        }
        assert_eq!(a.ranges().count(), RANGES_KEPT);
        assert!(a.is_replay(1), "below what is remembered");
        assert!(!a.is_replay(197));
    }

    #[test]
    fn the_last_news_of_an_epoch_go_at_once_and_the_next_begins_with_none() {
        let mut a = Acks::default();
        a.of_mut(Channel::Datagram).note(7, true, 0, at(1), DELAY, false);
        a.of_mut(Channel::Bulk).note(9, true, 0, at(1), DELAY, false);
        a.end_epoch(Epoch(2), 5, at(10));
        a.begin_epoch();
        assert!(!a.are_due(at(9999)) && a.old_are_due(at(10)) && !a.old_are_due(at(9)));
        assert_eq!(a.dues().collect::<Vec<_>>(), [at(10)], "nothing came over the stream");
        let (epoch, datagrams, number, stream) = a.over_mut().unwrap();
        assert_eq!((epoch, datagrams.largest(), number, stream.largest()), (Epoch(2), Some(7), 5, None));
        assert!(!a.of(Channel::Datagram).is_replay(7) && !a.of(Channel::Bulk).is_replay(9));
    }

    #[test]
    fn what_came_lately_is_told_again() {
        let mut a = Acks::default();
        a.of_mut(Channel::Stream).note(1, true, 0, at(1), DELAY, false);
        a.of_mut(Channel::Stream).told();
        let later = at(1) + TOLD_AGAIN;
        a.tell_again(later, false);
        assert!(!a.are_due(later));
        a.tell_again(later, true);
        assert!(a.are_due(later));
    }
}
