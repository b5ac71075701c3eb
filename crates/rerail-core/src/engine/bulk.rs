//! Bulk as datagrams: the third channel of a path, used where TCP is blocked, or when the user wants it (`bulk`).
//!
//! A path takes fragments from the scheduler as a stream does (`sched`), and sends them in trains; what of them waits and travels is the
//! lane's ([`Bulk`](crate::lane::bulk)).

use super::Engine;
use super::deliver::Taken;
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::acks::ACK_DELAY;
use crate::lane::bulk::{BulkAck, BulkNews};
use crate::message::item::Item;
use crate::options::BulkMode;
use crate::path::Carry;
use crate::peer::Gone;
use crate::peer::turns::Turn;
use crate::types::*;
use rerail_wire::bulk::BulkHeader;
use rerail_wire::packet::{ACK_NOW, PacketHeader, PacketKind};
use rerail_wire::{FrameHeader, FrameType};
use std::time::Duration;

/// Datagrams after which the receiver acknowledges unasked.
const ACK_DATAGRAMS: u32 = 64;
/// When the buffers of this host are full, the next attempt is made after this time: a train leaves a fast rail in less.
const FULL_PAUSE: Duration = Duration::from_micros(150);
/// The same when the rail refuses.
const BROKEN_PAUSE: Duration = Duration::from_millis(2);
impl Engine {
    /// The bulk carriers of a peer may have something to take.
    pub(crate) fn mark_trains(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        if !p.is_self() {
            self.output.train_is_due(p.id(), &mut p.train_due);
        }
    }

    /// Notes since when which path has no stream although bulk waits.
    fn note_streamless(&mut self, pi: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let waits = p.backlog.has_bulk();
        let mut next = None;
        for x in &mut p.paths {
            if let Some(at) = x.note_streamless(waits, now).filter(|&at| at > now) {
                next = Some(next.map_or(at, |n: Time| n.min(at)));
            }
        }
        if let (Some(at), true) = (next, self.options.bulk != BulkMode::Udp) {
            self.schedule(pi, at);
        }
    }

    /// The next train of bulk datagrams, if one may go now. When not all of it could be sent, [`Engine::train_refused`] must
    /// follow before any other call. Ask when [`Engine::poll_datagram`] has nothing more, so that control goes first.
    pub fn poll_train(&mut self, now: Time, out: &mut Train) -> bool {
        self.tick(now);
        while let Some(peer) = self.output.due_train() {
            let pi = peer.0 as usize;
            if !self.peers[pi].gone().is_some_and(Gone::is_final) {
                self.note_streamless(pi);
                let n = self.peers[pi].paths.len();
                for xi in self.peers[pi].turns.order(Turn::Train, n) {
                    if self.build_train(pi, xi, out) {
                        self.peers[pi].turns.had(Turn::Train, xi, n);
                        // other peers have their turn in between
                        self.output.train_is_built();
                        self.counters.trains_sent += 1;
                        self.counters.datagrams_sent += out.len() as u64;
                        return true;
                    }
                }
            }
            self.output.no_train(&mut self.peers[pi].train_due);
        }
        false
    }

    /// Takes fragments for the bulk datagrams of a path until a train's worth waits.
    fn fill_bulk(&mut self, pi: usize, xi: usize) {
        loop {
            if !self.peers[pi].paths[xi].lane.bulk_mut().is_short() {
                return;
            }
            match self.next_bulk(pi, xi, LaneId::FIRST, Carry::Datagrams) {
                Some((item @ Item::Frag { seq, at, len }, hedged)) => {
                    self.goes_as_a_copy(pi, &item);
                    self.peers[pi].paths[xi].lane.bulk_mut().queue(seq, at, len, hedged);
                }
                Some((Item::Eager { seq }, _)) => self.announce_instead(pi, seq),
                Some(_) => unreachable!("bulk is fragments and eager messages"),
                None => return,
            }
        }
    }

    /// An eager message fits no datagram: it is announced, and goes in pieces when it is granted.
    fn announce_instead(&mut self, pi: usize, seq: u64) {
        let p = &mut self.peers[pi];
        if p.outgoing.announce(seq) {
            p.backlog.post(Item::Rts { seq });
            self.mark(PeerId(pi as u32));
        }
    }

    /// Gives what waits for a path that carries no bulk any more to the others.
    fn hand_back(&mut self, pi: usize, xi: usize) {
        let p = &mut self.peers[pi];
        let Some(waiting) = p.paths[xi].lane.bulk_mut().take_waiting(&p.outgoing) else { return };
        for i in waiting {
            self.requeue_item(pi, i, false);
        }
        self.mark_streams(PeerId(pi as u32));
    }

    fn build_train(&mut self, pi: usize, xi: usize, out: &mut Train) -> bool {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        let in_service = x.health() == Health::Up || self.takes_bulk(p, xi).is_some();
        if !in_service || !x.datagrams_usable() {
            self.hand_back(pi, xi);
            return false;
        }
        let x = &mut self.peers[pi].paths[xi];
        let most = x.datagrams.bytes_max();
        let room = match x.lane.bulk_mut().room(most, now) {
            Ok(room) => room,
            Err(at) => return self.train_waits(pi, at),
        };
        self.fill_bulk(pi, xi);
        match self.peers[pi].paths[xi].lane.bulk_mut().allowance(room, most, now) {
            Ok(allowed) => self.write_train(pi, xi, allowed, out),
            Err(at) => self.train_waits(pi, at),
        }
    }

    /// No train goes before then, or before something happens.
    fn train_waits(&mut self, pi: usize, at: Option<Time>) -> bool {
        if let Some(at) = at {
            self.schedule(pi, at);
        }
        false
    }

    /// Writes up to `allowed` bytes of datagrams.
    fn write_train(&mut self, pi: usize, xi: usize, allowed: usize, out: &mut Train) -> bool {
        let now = self.clock.now();
        let coverage = self.coverage_out(pi, xi);
        let p = &mut self.peers[pi];
        let cid = p.cid_out();
        let x = &mut p.paths[xi];
        let most = x.datagrams.bytes_max();
        let (payload, asks) = x.lane.bulk_mut().write(&p.outgoing, most, allowed, now, out);
        if out.bytes.is_empty() {
            return false;
        }
        (out.rail, out.to, out.path) = (x.rail(), x.remote(), x.id());
        out.peer = PeerId(pi as u32);
        let datagrams = out.len();
        for (i, d) in out.bytes.chunks_mut(out.segment).enumerate() {
            PacketHeader {
                cid,
                kind: PacketKind::Bulk,
                path: x.id().0,
                epoch: x.epoch().0,
                number: out.first + i as u64,
                flags: if asks && i + 1 == datagrams { ACK_NOW } else { 0 },
                entries: 0,
                coverage,
            }
            .seal(d);
        }
        x.sent(payload);
        p.sent(payload);
        self.counters.bytes_sent += payload;
        let late = now + self.peers[pi].paths[xi].patience(self.options.ack_timeout);
        let tail = self.peers[pi].paths[xi].lane.bulk().tail_at().unwrap_or(late);
        self.schedule(pi, late.min(tail));
        true
    }

    /// Only the first `sent` datagrams of the train were taken: the buffers of this host are full, or (`broken`) the rail
    /// refuses. The rest is as if it had never been built, and is tried again soon.
    pub fn train_refused(&mut self, train: &Train, sent: usize, broken: bool, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        let pi = train.peer.0 as usize;
        let Some(xi) = self.peers[pi].path_index(train.path) else { return };
        let p = &mut self.peers[pi];
        let at = now + if broken { BROKEN_PAUSE } else { FULL_PAUSE };
        let payload = p.paths[xi].lane.bulk_mut().refuse(train.first + sent as u64, at);
        p.paths[xi].not_sent(payload);
        p.not_sent(payload);
        self.counters.bytes_sent -= payload;
        self.counters.datagrams_sent -= (train.len() - sent) as u64;
        self.schedule(pi, at);
    }

    // ---- what arrives ------------------------------------------------------------------------------------------

    /// A piece of bulk arrived.
    pub(crate) fn on_bulk(&mut self, pi: usize, xi: usize, h: &PacketHeader, rest: &[u8]) {
        let now = self.clock.now();
        let acks = self.peers[pi].paths[xi].lane.acks_mut();
        if acks.of(Channel::Bulk).is_replay(h.number) {
            self.counters.replays += 1;
            // the acknowledgement may have been lost
            acks.of_mut(Channel::Bulk).repeat_by(now + ACK_DELAY);
            self.schedule(pi, now + ACK_DELAY);
            return;
        }
        let Ok((b, piece)) = BulkHeader::parse(rest) else {
            self.malformed(pi, xi, h.coverage);
            return;
        };
        let f =
            FrameHeader { seq: b.seq, a: b.at, len: u32::from(b.len), ..FrameHeader::new(FrameType::Frag) };
        let before = self.counters.messages_received;
        match self.on_piece(pi, &f, piece) {
            Taken::Yes => {}
            Taken::No => return,
            Taken::Malformed => {
                self.malformed(pi, xi, h.coverage);
                return;
            }
        }
        let rx = self.peers[pi].paths[xi].lane.acks_mut().of_mut(Channel::Bulk);
        let gap = rx.largest().is_some_and(|m| h.number > m + 1);
        // the end of a message frees the sender's memory
        let ended = self.counters.messages_received != before;
        let at_once = h.flags & ACK_NOW != 0 || gap || ended || rx.unacked().0 + 1 >= ACK_DATAGRAMS;
        rx.note(h.number, true, u64::from(b.len), now, ACK_DELAY, at_once);
        match rx.due() {
            Some(due) if due <= now => self.mark(PeerId(pi as u32)),
            Some(due) => self.schedule(pi, due),
            None => {}
        }
    }

    /// Acknowledgements of bulk datagrams, `delay` after the largest arrived; false: they make no sense.
    pub(crate) fn on_bulk_ack(
        &mut self,
        pi: usize,
        xi: usize,
        ranges: &[(u64, u64)],
        largest: u64,
        delay: Duration,
    ) -> bool {
        let now = self.clock.now();
        let ack = BulkAck { ranges, largest, delay, clear_only: self.remedies.no_ambiguous_samples() };
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        let Some(news) = x.lane.bulk_acked(ack, x.datagrams.bytes_max(), &p.outgoing, now) else {
            return false;
        };
        if news.longest_acked > 0 {
            x.pmtu.passed(news.longest_acked);
            x.evidence.bulk_acked(now);
            if x.evidence.prove() {
                p.carriers.unsettle();
            }
            self.bulk_passed(pi, xi);
        }
        self.count_lost(&news);
        for item in news.arrived {
            self.item_acked(pi, item);
        }
        self.mark_trains(pi);
        if news.longest_acked > 0 || news.lost > 0 {
            self.mark(PeerId(pi as u32));
        }
        true
    }

    /// The peer's engine answered a question that was sent at `asked_at`: what went out before and is not acknowledged is lost;
    /// whether that is anything.
    pub(crate) fn bulk_answered(&mut self, pi: usize, xi: usize, asked_at: Time) -> bool {
        let p = &mut self.peers[pi];
        let news = p.paths[xi].lane.bulk_mut().answered(asked_at, &p.outgoing);
        if news.lost > 0 {
            self.mtu_doubt(pi, xi, news.longest_lost);
            self.count_lost(&news);
            self.mark_trains(pi);
        }
        news.lost > 0
    }

    fn count_lost(&mut self, news: &BulkNews) {
        self.counters.datagrams_lost += news.lost as u64;
        self.counters.bytes_resent += news.bytes_again;
    }

    // ---- when a path breaks ------------------------------------------------------------------------------------

    /// Takes from a suspected path what never went out, and copies of what may be lost, within `budget` bytes: (moved, copied).
    pub(crate) fn bulk_hedge(&mut self, pi: usize, xi: usize, budget: &mut u64) -> (Vec<Item>, Vec<Item>) {
        let p = &mut self.peers[pi];
        p.paths[xi].lane.bulk_mut().hedge(budget, &p.outgoing)
    }

    /// Takes everything from a path on which bulk datagrams vanish; its epoch goes on, and so do their numbers.
    pub(crate) fn bulk_withdraw(&mut self, pi: usize, xi: usize) -> Vec<Item> {
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        x.lane.bulk_mut().drain(x.datagrams.bytes_max(), true, &p.outgoing, self.clock.now())
    }

    /// Takes everything from a path that is out of service.
    pub(crate) fn bulk_drain(&mut self, pi: usize, xi: usize) -> Vec<Item> {
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        x.lane.acks_mut().end_bulk();
        x.waits_for_no_stream();
        x.lane.bulk_mut().drain(x.datagrams.bytes_max(), false, &p.outgoing, self.clock.now())
    }
}
