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

/// Datagrams after which the receiver acknowledges without a request.
const ACK_DATAGRAMS: u32 = 64;
/// When the buffers of this host are full, the next attempt is made after this time: a train leaves a fast rail in less.
const FULL_PAUSE: Duration = Duration::from_micros(150);
/// The same when the rail refuses.
const BROKEN_PAUSE: Duration = Duration::from_millis(2);
impl Engine {
    /// The bulk carriers of a peer may have something to take.
    pub(crate) fn mark_trains(&mut self, peer: PeerId) {
        let p = &mut self.peers[peer];
        if !p.is_self() {
            self.output.train_is_due(p.id(), &mut p.train_due);
        }
    }

    /// Records since when which path has no stream although bulk waits.
    fn note_streamless(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        let waits = p.backlog.has_bulk();
        if waits {
            self.want_streams(peer);
        }
        let p = &mut self.peers[peer];
        let mut next = None;
        for path in &mut p.paths {
            if let Some(at) = path.note_streamless(waits, now).filter(|&at| at > now) {
                next = Some(next.map_or(at, |n: Time| n.min(at)));
            }
        }
        if let (Some(at), true) = (next, self.options.bulk != BulkMode::Udp) {
            self.schedule(peer, at);
        }
    }

    /// The next train of bulk datagrams, if one may go now. When not all of it could be sent, [`Engine::train_refused`]
    /// must follow before any other call. Call it when [`Engine::poll_datagram`] has nothing more, so that control goes
    /// first.
    pub fn poll_train(&mut self, now: Time, out: &mut Train) -> bool {
        self.tick(now);
        while let Some(peer) = self.output.due_train() {
            if !self.peers[peer].gone().is_some_and(Gone::is_final) {
                self.note_streamless(peer);
                let n = self.peers[peer].paths.len();
                for index in self.peers[peer].turns.order(Turn::Train, n) {
                    if self.build_train(peer, index, out) {
                        self.peers[peer].turns.had(Turn::Train, index, n);
                        // other peers have their turn in between
                        self.output.train_is_built();
                        self.counters.trains_sent += 1;
                        self.counters.datagrams_sent += out.len() as u64;
                        return true;
                    }
                }
            }
            self.output.no_train(&mut self.peers[peer].train_due);
        }
        false
    }

    /// Takes fragments for the bulk datagrams of a path until a train's worth waits.
    fn fill_bulk(&mut self, peer: PeerId, index: usize) {
        loop {
            if !self.peers[peer].paths[index].lane.bulk_mut().is_short() {
                return;
            }
            match self.next_bulk(peer, index, LaneId::FIRST, Carry::Datagrams) {
                Some((item @ Item::Frag { seq, at, len }, hedged)) => {
                    self.goes_as_a_copy(peer, &item);
                    self.peers[peer].paths[index].lane.bulk_mut().queue(seq, at, len, hedged);
                }
                Some((Item::Eager { seq }, _)) => self.announce_instead(peer, seq),
                Some(_) => unreachable!("bulk is fragments and eager messages"),
                None => return,
            }
        }
    }

    /// An eager message fits no datagram: it is announced, and goes in pieces when it is granted.
    fn announce_instead(&mut self, peer: PeerId, seq: u64) {
        let p = &mut self.peers[peer];
        if p.outgoing.announce(seq) {
            p.backlog.post(Item::Rts { seq });
            self.mark(peer);
        }
    }

    /// Gives what waits for a path that carries no bulk any more to the others.
    fn hand_back(&mut self, peer: PeerId, index: usize) {
        let p = &mut self.peers[peer];
        let Some(waiting) = p.paths[index].lane.bulk_mut().take_waiting(&p.outgoing) else { return };
        for i in waiting {
            self.requeue_item(peer, i, false);
        }
        self.mark_streams(peer);
    }

    fn build_train(&mut self, peer: PeerId, index: usize, out: &mut Train) -> bool {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let path = &p.paths[index];
        let in_service = path.health() == Health::Up || self.takes_bulk(p, index).is_some();
        if !in_service || !path.datagrams_usable() {
            self.hand_back(peer, index);
            return false;
        }
        let path = &mut self.peers[peer].paths[index];
        let most = path.datagrams.bytes_max();
        let room = match path.lane.bulk_mut().room(most, now) {
            Ok(room) => room,
            Err(at) => return self.train_waits(peer, at),
        };
        self.fill_bulk(peer, index);
        match self.peers[peer].paths[index].lane.bulk_mut().allowance(room, most, now) {
            Ok(allowed) => self.write_train(peer, index, allowed, out),
            Err(at) => self.train_waits(peer, at),
        }
    }

    /// No train goes before then, or before something happens.
    fn train_waits(&mut self, peer: PeerId, at: Option<Time>) -> bool {
        if let Some(at) = at {
            self.schedule(peer, at);
        }
        false
    }

    /// Writes up to `allowed` bytes of datagrams.
    fn write_train(&mut self, peer: PeerId, index: usize, allowed: usize, out: &mut Train) -> bool {
        let now = self.clock.now();
        let coverage = self.coverage_out(peer, index);
        let p = &mut self.peers[peer];
        let cid = p.cid_out();
        let path = &mut p.paths[index];
        let most = path.datagrams.bytes_max();
        let (payload, asks) = path.lane.bulk_mut().write(&p.outgoing, most, allowed, now, out);
        if out.bytes.is_empty() {
            return false;
        }
        (out.rail, out.to, out.path) = (path.rail(), path.remote(), path.id());
        out.peer = peer;
        let datagrams = out.len();
        for (i, d) in out.bytes.chunks_mut(out.segment).enumerate() {
            PacketHeader {
                cid,
                kind: PacketKind::Bulk,
                path: path.id().0,
                epoch: path.epoch().0,
                number: out.first + i as u64,
                flags: if asks && i + 1 == datagrams { ACK_NOW } else { 0 },
                entries: 0,
                coverage,
            }
            .seal(d);
        }
        path.sent(payload);
        p.sent(payload);
        self.counters.bytes_sent += payload;
        let late = now + self.peers[peer].paths[index].patience(self.options.ack_timeout);
        let tail = self.peers[peer].paths[index].lane.bulk().tail_at().unwrap_or(late);
        self.schedule(peer, late.min(tail));
        true
    }

    /// Only the first `sent` datagrams of the train were taken: the buffers of this host are full, or (`broken`) the rail
    /// refuses. The rest is as if it had never been built, and is tried again soon.
    pub fn train_refused(&mut self, train: &Train, sent: usize, broken: bool, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        let peer = train.peer;
        let Some(index) = self.peers[peer].path_index(train.path) else { return };
        let p = &mut self.peers[peer];
        let at = now + if broken { BROKEN_PAUSE } else { FULL_PAUSE };
        let payload = p.paths[index].lane.bulk_mut().refuse(train.first + sent as u64, at);
        p.paths[index].not_sent(payload);
        p.not_sent(payload);
        self.counters.bytes_sent -= payload;
        self.counters.datagrams_sent -= (train.len() - sent) as u64;
        self.schedule(peer, at);
    }

    // ---- what arrives ------------------------------------------------------------------------------------------

    /// A piece of bulk arrived.
    pub(crate) fn on_bulk(&mut self, peer: PeerId, index: usize, h: &PacketHeader, rest: &[u8]) {
        let now = self.clock.now();
        let acks = self.peers[peer].paths[index].lane.acks_mut();
        if acks.of(Channel::Bulk).is_replay(h.number) {
            self.counters.replays += 1;
            // the acknowledgement may have been lost
            acks.of_mut(Channel::Bulk).repeat_by(now + ACK_DELAY);
            self.schedule(peer, now + ACK_DELAY);
            return;
        }
        let Ok((b, piece)) = BulkHeader::parse(rest) else {
            self.malformed(peer, index, h.coverage);
            return;
        };
        // an eager message has no RTS, and the other side may be waiting for this one to open a stream
        self.want_streams(peer);
        let f =
            FrameHeader { seq: b.seq, a: b.at, len: u32::from(b.len), ..FrameHeader::new(FrameType::Frag) };
        let before = self.counters.messages_received;
        match self.on_piece(peer, &f, piece) {
            Taken::Yes => {}
            Taken::No => return,
            Taken::Malformed => {
                self.malformed(peer, index, h.coverage);
                return;
            }
        }
        let rx = self.peers[peer].paths[index].lane.acks_mut().of_mut(Channel::Bulk);
        let gap = rx.largest().is_some_and(|m| h.number > m + 1);
        // the end of a message frees the sender's memory
        let ended = self.counters.messages_received != before;
        let at_once = h.flags & ACK_NOW != 0 || gap || ended || rx.unacked().0 + 1 >= ACK_DATAGRAMS;
        rx.note(h.number, true, u64::from(b.len), now, ACK_DELAY, at_once);
        match rx.due() {
            Some(due) if due <= now => self.mark(peer),
            Some(due) => self.schedule(peer, due),
            None => {}
        }
    }

    /// Acknowledgements of bulk datagrams, `delay` after the largest arrived; false: they make no sense.
    pub(crate) fn on_bulk_ack(
        &mut self,
        peer: PeerId,
        index: usize,
        ranges: &[(u64, u64)],
        largest: u64,
        delay: Duration,
    ) -> bool {
        let now = self.clock.now();
        let ack = BulkAck { ranges, largest, delay, clear_only: self.remedies.no_ambiguous_samples() };
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        let Some(news) = path.lane.bulk_acked(ack, path.datagrams.bytes_max(), &p.outgoing, now) else {
            return false;
        };
        if news.longest_acked > 0 {
            path.pmtu.passed(news.longest_acked);
            path.evidence.bulk_acked(now);
            if path.evidence.prove() {
                p.carriers.unsettle();
            }
            self.bulk_passed(peer, index);
        }
        self.count_lost(&news);
        for item in news.arrived {
            self.item_acked(peer, item);
        }
        self.mark_trains(peer);
        if news.longest_acked > 0 || news.lost > 0 {
            self.mark(peer);
        }
        true
    }

    /// The peer's engine answered a query that was sent at `asked_at`: what went out before and is not acknowledged is
    /// lost. Returns whether that is anything.
    pub(crate) fn bulk_answered(&mut self, peer: PeerId, index: usize, asked_at: Time) -> bool {
        let p = &mut self.peers[peer];
        let news = p.paths[index].lane.bulk_mut().answered(asked_at, &p.outgoing);
        if news.lost > 0 {
            self.mtu_doubt(peer, index, news.longest_lost);
            self.count_lost(&news);
            self.mark_trains(peer);
        }
        news.lost > 0
    }

    fn count_lost(&mut self, news: &BulkNews) {
        self.counters.datagrams_lost += news.lost as u64;
        self.counters.bytes_resent += news.bytes_again;
    }

    // ---- when a path breaks ------------------------------------------------------------------------------------

    /// Takes from a suspected path what never went out, and copies of what may be lost, within `budget` bytes: (moved, copied).
    pub(crate) fn bulk_hedge(
        &mut self,
        peer: PeerId,
        index: usize,
        budget: &mut u64,
    ) -> (Vec<Item>, Vec<Item>) {
        let p = &mut self.peers[peer];
        p.paths[index].lane.bulk_mut().hedge(budget, &p.outgoing)
    }

    /// Takes everything from a path on which bulk datagrams vanish; its epoch goes on, and so do their numbers.
    pub(crate) fn bulk_withdraw(&mut self, peer: PeerId, index: usize) -> Vec<Item> {
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        path.lane.bulk_mut().drain(path.datagrams.bytes_max(), true, &p.outgoing, self.clock.now())
    }

    /// Takes everything from a path that is out of service.
    pub(crate) fn bulk_drain(&mut self, peer: PeerId, index: usize) -> Vec<Item> {
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        path.lane.acks_mut().end_bulk();
        path.demand.ends();
        path.lane.bulk_mut().drain(path.datagrams.bytes_max(), false, &p.outgoing, self.clock.now())
    }
}
