//! Channels through which nothing passes, told by what passes beside them.
//!
//! A firewall may take datagrams and leave streams, take some datagrams and leave others, or begin to do so in the middle of an
//! epoch. The path works all the same, so no other evidence shows it, and what is sent again on the same channel vanishes again. Two
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

use super::Engine;
use crate::event::EventKind;
use crate::message::item::Item;
use crate::path::Carry;
use crate::types::*;
use std::time::Duration;

/// How long the datagram's answer may come after the stream's at least, which left later.
const MUTE_PATIENCE: Duration = ms(20);
/// A datagram that was answered so long ago does not speak against a peer who says that its own are not.
const ANSWERED_LATELY: Duration = ms(500);

impl Engine {
    /// Query `id` of a path was answered by a datagram.
    pub(crate) fn datagram_answered(&mut self, pi: usize, xi: usize, id: u64) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        if !p.questions.was_asked(id) || !x.evidence.round_trips_mut().answered(id, now) {
            return;
        }
        if let Some(was_blocked) = x.datagrams.answered() {
            if was_blocked {
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
        if x.evidence.round_trips_mut().answered_by_stream(sent_at, patience, now) && x.datagrams.work() {
            self.datagrams_block(pi, xi);
        }
    }

    /// Whether the peer is to be told that no datagram of ours makes the round trip.
    pub(crate) fn tells_blocked(&self, pi: usize, xi: usize) -> bool {
        let x = &self.peers[pi].paths[xi];
        !x.datagrams.work() && x.evidence.round_trips().proves(self.clock.now())
    }

    /// The peer says that its datagrams do not make the round trip: then ours do not either, and its acknowledgements depend on
    /// our noticing that.
    pub(crate) fn told_blocked(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &self.peers[pi].paths[xi];
        let lately = x.evidence.round_trips().answered_at().is_some_and(|t| now.since(t) < ANSWERED_LATELY);
        if x.datagrams.work() && !lately {
            self.datagrams_block(pi, xi);
        }
    }

    /// Datagrams are blocked on a path whose stream works: everything that was under way goes again.
    fn datagrams_block(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        x.datagrams.block();
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
        if x.has_stream() && x.pmtu.is_settled() && x.datagrams.small_lost(now) {
            self.datagrams_block(pi, xi);
        }
    }

    /// A datagram answered, and all bulk datagrams before it were lost.
    pub(crate) fn bulk_vanished(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if !x.pmtu.is_settled() || !x.datagrams.bulk_lost(now) {
            return;
        }
        self.schedule(pi, now);
        let p = &self.peers[pi];
        if p.carry(&p.paths[xi], self.options.bulk, now) == Some(Carry::Datagrams) {
            // nothing else carries: trying is all that is left
            return;
        }
        self.counters.channels_blocked += 1;
        self.peers[pi].paths[xi].datagrams.block_bulk();
        let bulk = self.bulk_withdraw(pi, xi);
        let resent_bytes = self.requeue_bulk(pi, bulk);
        self.event(EventKind::DatagramsBlocked { bulk_only: true, resent_bytes }, pi, Some(xi));
        self.mark_streams(PeerId(pi as u32));
    }

    /// Bulk datagrams pass.
    pub(crate) fn bulk_passed(&mut self, pi: usize, xi: usize) {
        if self.peers[pi].paths[xi].datagrams.bulk_passed() {
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
        let (at, tried) = self.peers[pi].paths[xi].datagrams.release(now);
        if tried {
            self.mark_streams(PeerId(pi as u32));
        }
        at.unwrap_or(Time::NEVER)
    }
}
