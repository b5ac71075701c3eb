//! Channels through which nothing passes, detected by what passes beside them.
//!
//! A firewall may drop datagrams and pass streams, drop some datagrams and pass others, or begin to do so in the middle
//! of an epoch. The path works all the same, so no other evidence shows it, and what is sent again on the same channel
//! vanishes again. Two rules, both differential (hazard H3):
//!
//! * *Queries.* While datagrams are not answered, the same query goes over the stream. When that is answered and the
//!   datagram beside it is not, datagrams do not make the round trip: everything goes over the stream until a datagram
//!   is answered again. Only a round trip counts: what arrives proves one direction, and a filter may be in the other.
//! * *Losses.* Queries are answered as datagrams, and each answer shows that everything sent before was lost, and
//!   nothing of it was ever acknowledged (bulk datagrams, or short ones that carry data): the channel is not used for a
//!   while, and then tried again.
//!
//! Invariant: a channel is closed only when another one carries in its place, on this path or elsewhere; otherwise it
//! is still tried. The alternative, giving up the path, was rejected: it would lose the half that works.

use super::Engine;
use crate::event::EventKind;
use crate::message::item::Item;
use crate::path::Carry;
use crate::types::*;
use std::time::Duration;

/// Least time that the datagram's answer may arrive after the stream's, although the datagram left first.
const MUTE_PATIENCE: Duration = ms(20);
/// A datagram of ours that was answered within this time outweighs a peer's report that its own are not answered.
const ANSWERED_LATELY: Duration = ms(500);

impl Engine {
    /// Query `id` of a path was answered by a datagram.
    pub(crate) fn datagram_answered(&mut self, peer: PeerId, index: usize, id: u64) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        if !p.questions.was_asked(id) || !path.evidence.round_trips_mut().answered(id, now) {
            return;
        }
        if let Some(was_blocked) = path.datagrams.answered() {
            if was_blocked {
                self.event(EventKind::DatagramsPass, peer, Some(index));
            }
            self.mark(peer);
            self.mark_streams(peer);
        }
    }

    /// A query of a path, sent at `sent_at`, was answered by its stream.
    pub(crate) fn stream_answered(&mut self, peer: PeerId, index: usize, sent_at: Time) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        let patience = path.lane.rtt().patience(MUTE_PATIENCE);
        if path.evidence.round_trips_mut().answered_by_stream(sent_at, patience, now) && path.datagrams.work()
        {
            self.datagrams_block(peer, index);
        }
    }

    /// Whether to report to the peer that no datagram of ours makes the round trip.
    pub(crate) fn tells_blocked(&self, peer: PeerId, index: usize) -> bool {
        let path = &self.peers[peer].paths[index];
        !path.datagrams.work() && path.evidence.round_trips().proves(self.clock.now())
    }

    /// The peer reports that its datagrams do not make the round trip: then ours do not either, and its
    /// acknowledgements depend on our noticing that.
    pub(crate) fn told_blocked(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        let lately =
            path.evidence.round_trips().answered_at().is_some_and(|t| now.since(t) < ANSWERED_LATELY);
        if path.datagrams.work() && !lately {
            self.datagrams_block(peer, index);
        }
    }

    /// Datagrams are blocked on a path whose stream works: everything that was under way goes again.
    fn datagrams_block(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        path.datagrams.block();
        self.counters.channels_blocked += 1;
        // recent acknowledgements went over the blocked channel
        path.lanes_mut().for_each(|l| l.acks_mut().tell_again(now, true));
        let records: Vec<_> = path.lane.datagrams_mut().take_all();
        let bulk = self.bulk_withdraw(peer, index);
        let mut resent_bytes = self.requeue_bulk(peer, bulk);
        for r in &records {
            resent_bytes += self.requeue(peer, r);
        }
        self.event(EventKind::DatagramsBlocked { bulk_only: false, resent_bytes }, peer, Some(index));
        self.mark(peer);
        self.mark_streams(peer);
        // this is reported to the peer at once
        self.ping(peer, index);
    }

    /// A datagram answered a query, and everything that carried data before it was lost.
    pub(crate) fn small_vanished(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        if path.has_stream() && path.pmtu.is_settled() && path.datagrams.small_lost(now) {
            self.datagrams_block(peer, index);
        }
    }

    /// A datagram answered a query, and all bulk datagrams before it were lost.
    pub(crate) fn bulk_vanished(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        if !path.pmtu.is_settled() || !path.datagrams.bulk_lost(now) {
            return;
        }
        self.schedule(peer, now);
        let p = &self.peers[peer];
        if p.carry(&p.paths[index], self.options.bulk, now) == Some(Carry::Datagrams) {
            // nothing else carries: the datagrams continue
            return;
        }
        self.counters.channels_blocked += 1;
        self.peers[peer].paths[index].datagrams.block_bulk();
        let bulk = self.bulk_withdraw(peer, index);
        let resent_bytes = self.requeue_bulk(peer, bulk);
        self.event(EventKind::DatagramsBlocked { bulk_only: true, resent_bytes }, peer, Some(index));
        self.mark_streams(peer);
    }

    /// Bulk datagrams pass.
    pub(crate) fn bulk_passed(&mut self, peer: PeerId, index: usize) {
        if self.peers[peer].paths[index].datagrams.bulk_passed() {
            self.event(EventKind::DatagramsPass, peer, Some(index));
        }
    }

    fn requeue_bulk(&mut self, peer: PeerId, items: Vec<Item>) -> u64 {
        let mut bytes = 0;
        for i in items {
            bytes += self.requeue_item(peer, i, false);
        }
        bytes
    }

    /// Blocked channels whose time is over are tried again; returns when to be called next.
    pub(crate) fn passage_timer(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let (at, tried) = self.peers[peer].paths[index].datagrams.release(now);
        if tried {
            self.mark_streams(peer);
        }
        at.unwrap_or(Time::NEVER)
    }
}
