//! What arrives: datagrams, frames of either channel, acknowledgements. How streams are read is in `inflow`.
//!
//! A packet is acknowledged only when everything in it was taken: a refused payload, an aborted or corrupt frame is not, so
//! the sender keeps it. Everything executed once is remembered by watermark and only acknowledged again (hazard H11).

use super::Engine;
use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::event::{EventKind, Witness};
use crate::lane::Channel;
use crate::lane::acks::{ACK_DELAY, ACK_PACKETS};
use crate::lane::sent::Sent;
use crate::matching::matcher::{Match, Unexpected};
use crate::message::envelope::{Envelope, MESSAGE_BYTES_MAX, Role};
use crate::message::incoming::{Ended, Withdrawn};
use crate::message::item::Item;
use crate::message::receiving::Piece;
use crate::message::rx::RxState;
use crate::message::target::{Landing, Target};
use crate::message::tx::TxMsg;
use crate::node::Node;
use crate::path::Path;
use crate::peer::Gone;
use crate::responder::{Answerer, Respond};
use crate::stream::StreamNews;
use crate::types::*;
use rerail_wire::ack::read_ranges;
use rerail_wire::config::NodeConfig;
use rerail_wire::frame::{FRAME_HEADER_BYTES, flags, goodbye};
use rerail_wire::packet::{PING_UNANSWERED, PONG_BYPASS, PacketHeader, PacketKind, PongEntry, peek};
use rerail_wire::{Coverage, FrameHeader, FrameType, WireError, onesided};
use smallvec::SmallVec;
use std::time::Duration;

/// Envelopes kept of one peer when the remedy of hazard H4b is switched off.
const ENVELOPES_PLANTED: usize = 256;
/// Largest order: operands and values to compare with, a small write, and the fixed part.
const ORDER_BYTES_MAX: u64 = 64 * 1024;
/// A sender that runs further ahead of its sequence than this is broken.
const SEQUENCE_WINDOW: u64 = 1 << 32;

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It may be acknowledged.
    Yes,
    /// It must be sent again, or is kept by the sender: no acknowledgement.
    No,
    /// It makes no sense: the peer is broken or hostile.
    Malformed,
}

/// Longest datagram that is used, whatever the interfaces take: a jumbo frame over IPv4.
const DATAGRAM_BYTES_MAX: usize = 8972;

impl Engine {
    /// A datagram arrived on `rail` from `from`, which its sender can forge: nothing is sent to it.
    pub fn handle_datagram(&mut self, rail: RailId, from: Locator, bytes: &[u8], now: Time) {
        self.tick(now);
        self.counters.datagrams_received += 1;
        match peek(bytes) {
            None => self.counters.strangers += 1,
            Some((cid, PacketKind::Hello)) => {
                if cid == self.token.hello_cid() {
                    self.on_hello(rail, bytes, None);
                } else {
                    self.counters.strangers += 1;
                }
            }
            Some((cid, PacketKind::Accept)) => match self.peers.of_accept(cid) {
                Some(peer) => self.on_accept(peer, rail, bytes),
                None => self.counters.strangers += 1,
            },
            Some((cid, kind)) => match self.peers.of_cid(cid) {
                Some(peer) => self.on_packet(peer, kind, rail, from, bytes),
                None => self.counters.strangers += 1,
            },
        }
        self.release_held();
    }

    fn on_packet(&mut self, peer: PeerId, kind: PacketKind, rail: RailId, from: Locator, bytes: &[u8]) {
        let now = self.clock.now();
        if self.peers[peer].gone().is_some_and(Gone::is_final) {
            // a verdict is final: the incarnation is entombed (hazard H7)
            self.counters.replays += 1;
            return;
        }
        let (h, rest) = match PacketHeader::parse(bytes) {
            Ok(parsed) => parsed,
            Err(WireError::Checksum(_)) => {
                self.corrupt_datagram(peer, kind, rail, from, bytes);
                return;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        let Some(index) = self.peers[peer].path_index(PathId(h.path)) else {
            self.counters.strangers += 1;
            return;
        };
        if self.peers[peer].paths[index].rail() != rail {
            self.counters.strangers += 1;
            return;
        }
        let epoch = Epoch(h.epoch);
        let fresh = self.peers[peer].paths[index].epochs.is_accepted(epoch);
        let current = self.peers[peer].paths[index].epoch() == epoch
            && self.peers[peer].paths[index].health().connected();
        if !fresh && !current {
            self.counters.replays += 1;
            return;
        }
        if kind.carries_data() && h.coverage < self.coverage_in(peer, index) {
            self.counters.downgrades += 1;
            return;
        }
        if fresh {
            // something arrived in the epoch that we accepted: now both sides have answered in it (hazard H8)
            self.agree(peer, index, epoch);
        }
        if self.is_news(peer, index, kind, h.number) {
            self.heard(peer, index);
            let now = self.clock.now();
            self.peers[peer].paths[index].evidence.hear_datagram(now);
            self.lives(peer);
            if kind == PacketKind::Ping {
                self.report_received(peer, index, h.flags & PING_UNANSWERED != 0);
            }
            // the first packet in the epoch that we accepted is an answer; others prove one direction only (`blocked`).
            // Without protection there are no queries that could be answered.
            if fresh || !self.options.protection {
                self.peers[peer].paths[index].datagrams.are_taken_to_work();
            }
        }
        match kind {
            PacketKind::Ping => {
                // what arrived before the query is acknowledged before it is answered, so that the answer shows the
                // sender that everything unacknowledged before it is lost
                self.peers[peer].paths[index].lanes_mut().for_each(|l| l.acks_mut().tell_again(now, false));
                self.mark(peer);
                let mut out = Datagram::default();
                let by = Answerer::Engine { wish: self.wish() };
                if self.responder.respond(rail, bytes, by, &mut out) == Respond::Answered {
                    self.output.send(out);
                }
            }
            PacketKind::Pong => {
                let table: Vec<PongEntry> = PongEntry::read_all(&rest[..h.table_bytes()]).collect();
                if h.flags & PONG_BYPASS == 0 {
                    if let Some(e) = table.iter().find(|e| e.path == h.path) {
                        self.wishes(peer, e.wish);
                    }
                }
                for e in table {
                    if let Some(i) = self.peers[peer].path_index(PathId(e.path)) {
                        let path = &mut self.peers[peer].paths[i];
                        if path.epoch() == Epoch(e.epoch) {
                            path.evidence.peer_hears(e.id);
                        }
                    }
                }
                self.datagram_answered(peer, index, h.number);
                let bypass = h.flags & PONG_BYPASS != 0 && self.remedies.bypass_is_no_engine();
                self.on_pong(peer, index, h.number, bypass, rest.len(), false);
            }
            PacketKind::Data => self.on_data(peer, index, &h, rest),
            PacketKind::Bulk => self.on_bulk(peer, index, &h, rest),
            PacketKind::Hello | PacketKind::Accept => unreachable!("parsed elsewhere"),
        }
    }

    /// Whether a packet is new. A repeated one may be sent by any process that has seen it, and for ever: it is no sign
    /// of life.
    fn is_news(&mut self, peer: PeerId, index: usize, kind: PacketKind, number: u64) -> bool {
        let path = &mut self.peers[peer].paths[index];
        match kind {
            PacketKind::Ping => {
                let before = path.heard_query();
                let newer = path.hear_query(number);
                if newer {
                    self.asked_beside(peer, index, before, number);
                }
                newer
            }
            PacketKind::Pong => path.evidence.asked_at(number).is_some(),
            PacketKind::Bulk => !path.lane.acks().of(Channel::Bulk).is_replay(number),
            _ => !path.lane.acks().of(Channel::Datagram).is_replay(number),
        }
    }

    /// Something authentic arrived on a path.
    pub(crate) fn heard(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        p.paths[index].evidence.hear(now);
        let heard = p.hearing.hear(now);
        if heard.silence {
            for path in &mut p.paths {
                // time without any sign of life is no lane's fault: the running interval of its rate does not count
                path.lanes_mut().for_each(|l| l.rate_mut().pause());
            }
            if self.remedies.silence_is_forgiven() {
                self.forgive_streams(peer);
            }
        }
        if let Some(since) = heard.partition {
            self.event(EventKind::PartitionEnd { outage: now.since(since) }, peer, Some(index));
            self.extend_lingering(now.since(since));
            // the goodbye gets a new chance to be answered
            self.peers[peer].farewell.excuse(now);
            self.mark(peer);
            self.mark_streams(peer);
        }
    }

    fn on_data(&mut self, peer: PeerId, index: usize, h: &PacketHeader, mut rest: &[u8]) {
        let now = self.clock.now();
        let rx = self.peers[peer].paths[index].lane.acks_mut().of_mut(Channel::Datagram);
        if rx.is_replay(h.number) {
            self.counters.replays += 1;
            // the acknowledgement may have been lost
            rx.repeat_by(now + ACK_DELAY);
            self.mark(peer);
            self.schedule(peer, now + ACK_DELAY);
            return;
        }
        let (mut wants_ack, mut all, mut at_once) = (false, true, false);
        while !rest.is_empty() {
            let Ok(f) = FrameHeader::parse(rest) else {
                self.malformed(peer, index, h.coverage);
                return;
            };
            let Some(payload) = rest.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + f.len as usize) else {
                self.malformed(peer, index, h.coverage);
                return;
            };
            wants_ack |= f.kind.elicits_ack();
            // the sender waits for this acknowledgement
            at_once |= matches!(f.kind, FrameType::Goodbye | FrameType::Verdict)
                || f.flags & flags::DELIVERY != 0
                || self.options.frees_its_sender(&f);
            let before = self.counters.messages_received;
            match self.on_frame(peer, index, &f, payload) {
                Taken::Yes => {}
                Taken::No => all = false,
                Taken::Malformed => {
                    self.malformed(peer, index, h.coverage);
                    return;
                }
            }
            // the end of a large message frees the sender's memory: acknowledge it at once
            at_once |= f.kind == FrameType::Frag && self.counters.messages_received != before;
            rest = &rest[FRAME_HEADER_BYTES + f.len as usize..];
        }
        if !all {
            return;
        }
        // the path may have changed its epoch by a verdict inside this very packet
        let path = &mut self.peers[peer].paths[index];
        if path.epoch() != Epoch(h.epoch) {
            return;
        }
        let rx = path.lane.acks_mut().of_mut(Channel::Datagram);
        let at_once = at_once || rx.unacked().0 + 1 >= ACK_PACKETS;
        rx.note(h.number, wants_ack, 0, now, ACK_DELAY, at_once);
        if let Some(due) = rx.due() {
            if due <= now {
                self.mark(peer);
            } else {
                self.schedule(peer, due);
            }
        }
    }

    /// A frame makes no sense: the peer is broken or, when no checksum covered the frame, the path has damaged it.
    pub(crate) fn malformed(&mut self, peer: PeerId, index: usize, coverage: Coverage) {
        if coverage == Coverage::None {
            self.corrupted(peer, index);
        } else {
            self.counters.malformed += 1;
        }
    }

    /// One frame with its whole payload, from either channel (fragments from streams go another way).
    pub(crate) fn on_frame(&mut self, peer: PeerId, index: usize, f: &FrameHeader, payload: &[u8]) -> Taken {
        match f.kind {
            FrameType::Eager => self.on_envelope(peer, f, Some(payload)),
            FrameType::Rts => {
                // the other side may be waiting for this one to open a stream
                self.want_streams(peer);
                self.on_envelope(peer, f, None)
            }
            FrameType::Cts => self.on_grant(peer, f),
            FrameType::Frag => self.on_piece(peer, f, payload),
            FrameType::Ack => self.on_ack(peer, f, payload),
            FrameType::Vack => {
                self.on_vack(peer, f);
                Taken::Yes
            }
            FrameType::Refuse => {
                self.peers[peer].outgoing.announce(f.seq);
                Taken::Yes
            }
            FrameType::Reject => {
                if let Some(m) = self.peers[peer].outgoing.get(f.seq) {
                    // only this promise needs a receive that has matched
                    let broken = f.x != 0 && m.level() == CompletionLevel::Matched;
                    self.finish_tx(peer, f.seq, broken.then_some(CompletionError::PeerClosed));
                }
                Taken::Yes
            }
            FrameType::Withdraw => self.on_withdraw(peer, f.seq),
            FrameType::Key => self.on_key(peer, f),
            FrameType::Fence => self.on_fence(peer, f),
            FrameType::Fenced => self.on_fenced(peer, f),
            FrameType::Leave | FrameType::Left => self.on_leave(peer, f),
            // valid only on a stream: that of the adapter that wrote, and that which is queried
            FrameType::Placed | FrameType::Ping => Taken::Malformed,
            FrameType::Pong => {
                self.on_pong(peer, index, f.a, false, payload.len(), true);
                Taken::Yes
            }
            FrameType::Verdict => {
                if let Some(i) = self.peers[peer].path_index(PathId(f.aux)) {
                    if self.peers[peer].paths[i].epoch() == Epoch(f.a as u32) {
                        if f.x == Witness::Corruption as u32 {
                            self.quarantined_by_peer(peer, i, f.total, Duration::from_millis(f.b));
                        }
                        self.fail_path(peer, i, Witness::Peer, crate::event::Direction::Unknown);
                    }
                }
                Taken::Yes
            }
            FrameType::Config => match NodeConfig::parse(payload) {
                Ok(c) => self.on_config(peer, c),
                Err(_) => Taken::Malformed,
            },
            FrameType::Goodbye => {
                let unmatched = f.total.checked_mul(8).is_some_and(|bytes| bytes <= u64::from(f.len));
                if f.len % 8 != 0 || !unmatched || f.x & !goodbye::ALL != 0 {
                    return Taken::Malformed;
                }
                self.on_goodbye(peer, f, payload);
                Taken::Yes
            }
        }
    }

    /// A query came on a stream.
    pub(crate) fn asked_by_stream(
        &mut self,
        stream: StreamId,
        peer: PeerId,
        index: usize,
        f: &FrameHeader,
        padding: &[u8],
    ) {
        if f.flags & flags::NO_DATAGRAMS != 0 {
            self.told_blocked(peer, index);
        }
        let now = self.clock.now();
        for lane in self.peers[peer].paths[index].lanes_mut() {
            lane.acks_mut().tell_again(now, false);
        }
        self.mark(peer);
        self.stream_pong(stream, f.a, padding);
    }

    fn on_config(&mut self, peer: PeerId, c: NodeConfig) -> Taken {
        let p = &self.peers[peer];
        // a path joins rails of one kind, as given in the address
        let other_kind = |path: &Path| {
            c.rails.get(p.far_rail(path)).is_some_and(|far| far.kind != self.rails[path.rail()].kind().0)
        };
        if p.paths.iter().any(other_kind) {
            return Taken::Malformed;
        }
        for index in 0..self.peers[peer].paths.len() {
            let p = &self.peers[peer];
            let path = &p.paths[index];
            if let Some(r) = c.rails.get(p.far_rail(path)) {
                let own = &self.rails[path.rail()];
                // never smaller than what every network carries: messages may already have been cut for that
                let bytes = own.datagram_bytes_max.min(r.datagram_bytes).max(own.datagram_bytes_safe);
                self.mtu_agreed(peer, index, usize::from(bytes).min(DATAGRAM_BYTES_MAX));
            }
        }
        let p = &mut self.peers[peer];
        p.tells(Node::new(&c));
        self.settle_coverage(peer);
        self.settle_lanes(peer);
        self.settle_ports(peer);
        Taken::Yes
    }

    fn on_goodbye(&mut self, peer: PeerId, f: &FrameHeader, payload: &[u8]) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        if p.gone().is_some() {
            return;
        }
        self.leaves(peer);
        let p = &mut self.peers[peer];
        p.goes(Gone::Goodbye);
        // a peer that says goodbye has acknowledgements of everything it sent, and needs nothing that is still to be
        // sent to it
        for path in &mut p.paths {
            path.lane.acks_mut().of_mut(Channel::Datagram).hurry(now);
        }
        // its last acknowledgements may be lost, so the goodbye lists what has not arrived: a peer that is gone after
        // everything arrived is a clean end (hazard H5)
        let numbers = |b: &[u8]| -> rustc_hash::FxHashSet<u64> {
            b.chunks_exact(8).map(|c| rerail_wire::bytes::get_u64(c, 0)).collect()
        };
        let (missing, unmatched) = payload.split_at(payload.len() - 8 * f.total as usize);
        let (missing, unmatched) = (numbers(missing), numbers(unmatched));
        let missing_listed = f.x & goodbye::MISSING_UNLISTED == 0;
        let unmatched_listed = f.x & goodbye::UNMATCHED_UNLISTED == 0;
        let arrived: Vec<u64> = p
            .outgoing
            .iter()
            .filter(|(s, m)| *s < f.b && !missing.contains(s) && (missing_listed || m.is_eager()))
            // the grant or the rejection of a message without bytes may be lost
            .filter(|(s, m)| {
                let promised = m.level() == CompletionLevel::Matched && m.fragments().is_none();
                !promised || (unmatched_listed && !unmatched.contains(s))
            })
            .map(|(s, _)| s)
            .collect();
        for s in arrived {
            self.finish_tx(peer, s, None);
        }
        self.fail_operations(peer, CompletionError::PeerClosed);
        self.event(EventKind::PeerGoodbye, peer, None);
        self.mark(peer);
    }

    /// Ends every operation with a peer that is gone.
    pub(crate) fn fail_operations(&mut self, peer: PeerId, error: CompletionError) {
        let seqs: Vec<u64> = self.peers[peer].outgoing.iter().map(|(s, _)| s).collect();
        for s in seqs {
            self.finish_tx(peer, s, Some(error));
        }
        let seqs: Vec<u64> = self.peers[peer]
            .incoming
            .iter()
            .filter(|(_, m)| m.receiving().is_some())
            .map(|(s, _)| s)
            .collect();
        for s in seqs {
            self.fail_rx(peer, s, error);
        }
        self.fail_orders(peer, error);
        let p = &mut self.peers[peer];
        p.fences.drop_all();
        p.backlog.drop_messages();
        p.questions.end_rounds();
        for ep in self.endpoints.ids() {
            self.end_hopeless(ep);
        }
    }

    /// A matched message that will not come: its receive ends with `error`.
    pub(crate) fn fail_rx(&mut self, peer: PeerId, seq: u64, error: CompletionError) {
        self.revoke_leases(peer, seq);
        let p = &mut self.peers[peer];
        let id = p.id();
        let (envelope, target) = match p.incoming.fail(seq) {
            Ended::Order => {
                self.account(peer);
                return self.advance_sequence(peer);
            }
            Ended::Message(envelope, target) => (envelope, target),
        };
        if !matches!(target.landing, Landing::Receive) {
            return self.not_landed(peer, &target.landing, error);
        }
        if !self.defer_receive(peer, seq, &envelope, &target, Some(error)) {
            self.receive_failed(id, &envelope, target, error);
        }
    }

    /// Nothing writes into the memory of a receive that has failed: it is reported.
    pub(crate) fn receive_failed(
        &mut self,
        id: PeerId,
        envelope: &Envelope,
        target: Target,
        error: CompletionError,
    ) {
        let Some(e) = self.endpoints.get_mut(target.ep) else { return };
        e.count_receive(target.protocol, true);
        let rx_cq = e.rx_cq();
        let mut c = Completion::new(CompletionKind::Recv, target.protocol, target.ep, target.context);
        c.tag = envelope.tag;
        c.src = Some(EndpointId { peer: id, ep: envelope.src_ep });
        c.error = Some(error);
        let mut cancelled = None;
        if let Some(key) = target.multi {
            (c, cancelled) = e.leave_multi(key, c);
        }
        self.push(rx_cq, c);
        if let Some(c) = cancelled {
            self.push(rx_cq, c);
        }
    }

    // ---- messages ----------------------------------------------------------------------------------------------

    /// An eager message or an announcement.
    fn on_envelope(&mut self, peer: PeerId, f: &FrameHeader, payload: Option<&[u8]>) -> Taken {
        let role = Role::of_flags(f.flags);
        let p = &mut self.peers[peer];
        if p.incoming.is_past(f.seq) || p.incoming.contains(f.seq) {
            if self.remedies.watermarks() {
                self.counters.duplicates += 1;
                return self.on_repeated_envelope(peer, f);
            }
            // planted: the message is executed again as if it were the next one
            let past = p.incoming.is_past(f.seq);
            if let (Role::Order, true, Some(bytes)) = (role, past, payload) {
                self.execute(peer, f.src_ep, EpId(f.dst_ep), bytes);
                return Taken::Yes;
            }
            if let (true, Some(bytes)) = (past, payload) {
                let name = Unexpected { peer: p.id(), seq: f.seq, src_ep: f.src_ep, tag: f.a };
                let protocol = protocol_of(f.flags);
                if let Some(Match::Target(t)) = self.match_posted(EpId(f.dst_ep), protocol, &name, f.total) {
                    t.iov.scatter(0, &bytes[..bytes.len().min(t.cap as usize)]);
                    self.complete_recv(peer, f.src_ep, f.a, None, f.total, t);
                }
            }
            return Taken::Yes;
        }
        let most = match role {
            Role::Order | Role::Answer => ORDER_BYTES_MAX,
            Role::Message | Role::Data => MESSAGE_BYTES_MAX,
        };
        if f.seq - p.incoming.next() > SEQUENCE_WINDOW || f.total > most {
            return Taken::Malformed;
        }
        let protocol = protocol_of(f.flags);
        let data = (f.flags & flags::CQ_DATA != 0).then_some(f.b);
        let next = f.seq == p.incoming.next();
        let name = Unexpected { peer: p.id(), seq: f.seq, src_ep: f.src_ep, tag: f.a };
        if let (Role::Order, Some(bytes), false, false) =
            (role, payload, next, self.remedies.orders_in_sequence())
        {
            // planted: whatever comes is carried out
            self.execute(peer, f.src_ep, EpId(f.dst_ep), bytes);
            let envelope = Envelope { role: Role::Order, ..executed(f, protocol) };
            self.peers[peer].incoming.insert(f.seq, envelope, RxState::Withdrawn);
            self.account(peer);
            return Taken::Yes;
        }
        if !next && !self.remedies.sequence_first() && role == Role::Message {
            // planted: the message that arrives first is matched first
            if let Some(bytes) = payload {
                if let Some(Match::Target(t)) = self.match_posted(EpId(f.dst_ep), protocol, &name, f.total) {
                    t.iov.scatter(0, &bytes[..bytes.len().min(t.cap as usize)]);
                    self.complete_recv(peer, f.src_ep, f.a, data, f.total, t);
                    self.peers[peer].incoming.insert(f.seq, executed(f, protocol), RxState::Withdrawn);
                    return Taken::Yes;
                }
            }
        }
        let held =
            role == Role::Order && self.holds_orders(peer) && !payload.is_some_and(onesided::is_answer);
        if role == Role::Order && (!next || held) && !self.may_wait(peer, payload) {
            self.counters.refused += 1;
            return Taken::No;
        }
        // the shortest way: the next message, its receive posted, its bytes here
        if next && role != Role::Data && !held {
            if let Some(bytes) = payload {
                if role == Role::Order {
                    self.peers[peer].incoming.pass();
                    self.execute(peer, f.src_ep, EpId(f.dst_ep), bytes);
                    self.advance_sequence(peer);
                    return Taken::Yes;
                }
                if self.receive_now(EpId(f.dst_ep), protocol, &name, data, bytes) {
                    self.peers[peer].incoming.pass();
                    self.advance_sequence(peer);
                    return Taken::Yes;
                }
                match self.match_posted(EpId(f.dst_ep), protocol, &name, f.total) {
                    Some(Match::Target(t)) => {
                        let n = bytes.len().min(t.cap as usize);
                        t.iov.scatter(0, &bytes[..n]);
                        self.complete_recv(peer, f.src_ep, f.a, data, f.total, t);
                        self.peers[peer].incoming.pass();
                        self.advance_sequence(peer);
                        return Taken::Yes;
                    }
                    // planted: what finds no room in the queue is not acknowledged
                    Some(Match::Wait) if !self.remedies.full_queue_acknowledges() => return Taken::No,
                    Some(Match::Wait | Match::None) | None => {}
                }
            }
        }
        let p = &mut self.peers[peer];
        let envelope = Envelope {
            src_ep: f.src_ep,
            dst_ep: f.dst_ep,
            protocol,
            role,
            tag: f.a,
            data,
            total: f.total,
            granule: f.x,
        };
        let mut refused = false;
        match payload {
            None => p.incoming.insert(f.seq, envelope, RxState::Remote),
            // what lies behind it waits for it
            Some(b) if role == Role::Order => p.incoming.insert(f.seq, envelope, RxState::Whole(b.to_vec())),
            Some(b) => {
                if !self.remedies.envelopes_grow() && p.incoming.len() >= ENVELOPES_PLANTED {
                    return Taken::No;
                }
                let most = self.options.unexpected_bytes_max;
                if !p.incoming.has_room(b.len(), most) && self.remedies.unexpected_is_bounded() {
                    if !self.remedies.refuse_over_bound() {
                        return Taken::No;
                    }
                    refused = true;
                    p.incoming.refuse(f.seq, envelope);
                } else {
                    p.incoming.insert(f.seq, envelope, RxState::Whole(self.copies.copy(b)));
                }
            }
        }
        if refused {
            self.counters.refused += 1;
            p.backlog.tell(Item::Refuse { seq: f.seq });
            self.mark(peer);
        }
        if role == Role::Order {
            self.account(peer);
            self.fetch_order(peer, f.seq, next);
        }
        if next {
            self.advance_sequence(peer);
        }
        if refused && self.remedies.refused_is_kept() { Taken::No } else { Taken::Yes }
    }

    /// An envelope that is known already.
    fn on_repeated_envelope(&mut self, peer: PeerId, f: &FrameHeader) -> Taken {
        let p = &mut self.peers[peer];
        let seq = f.seq;
        let mut taken = Taken::Yes;
        match p.incoming.get(seq) {
            // the payload was refused and the refusal may be lost: without it the sender would take the message for
            // delivered
            Some(m) if m.is_remote() && f.kind == FrameType::Eager => {
                p.backlog.tell(Item::Refuse { seq });
                taken = Taken::No;
            }
            Some(m) if m.receiving().is_some() => {
                p.backlog.tell(Item::Cts { seq });
                if f.kind == FrameType::Eager {
                    taken = Taken::No;
                }
            }
            // done long ago, or here in full and not taken by a receive yet (it was sent over a stream, and announced
            // when that was gone before its acknowledgement arrived); the sender of an announcement waits for a grant:
            // grant nothing more
            None if f.kind == FrameType::Rts => p.backlog.tell(Item::Over { seq }),
            Some(m) if m.is_whole() && f.kind == FrameType::Rts => p.backlog.tell(Item::Over { seq }),
            _ => return taken,
        }
        self.mark(peer);
        taken
    }

    fn on_grant(&mut self, peer: PeerId, f: &FrameHeader) -> Taken {
        let p = &mut self.peers[peer];
        let id = p.id();
        // "over" may mean that it was rejected: the grant or the rejection itself arrives as well, and decides
        let matches = |m: &TxMsg| m.level() == CompletionLevel::Matched;
        if f.x != 0 && p.outgoing.get(f.seq).is_some_and(matches) {
            return Taken::Yes;
        }
        let again = !self.remedies.grants_are_idempotent();
        let Some(granted) = p.outgoing.grant(f.seq, f.total, again) else { return Taken::Yes };
        if granted == 0 {
            self.finish_tx(peer, f.seq, None);
        } else {
            p.backlog.granted(f.seq, granted);
            self.peers.expect_bulk(peer);
            self.mark(id);
            self.mark_streams(id);
        }
        Taken::Yes
    }

    /// The peer withdraws a message that it has announced. A receive that waits for it fails now; otherwise the
    /// envelope keeps its place, and the receive that matches it fails then.
    fn on_withdraw(&mut self, peer: PeerId, seq: u64) -> Taken {
        let p = &mut self.peers[peer];
        match p.incoming.withdraw(seq) {
            Withdrawn::Noted => Taken::Yes,
            // the sender repeats it until the envelope is here
            Withdrawn::Unknown => Taken::No,
            Withdrawn::Awaited => {
                self.fail_rx(peer, seq, CompletionError::PeerClosed);
                Taken::Yes
            }
        }
    }

    /// A fragment, or a piece of one, in a datagram.
    pub(crate) fn on_piece(&mut self, peer: PeerId, f: &FrameHeader, payload: &[u8]) -> Taken {
        let whole = self.remedies.fixed_granule();
        let p = &mut self.peers[peer];
        let Some(r) = p.incoming.receiving_mut(f.seq) else {
            return match p.incoming.get(f.seq) {
                // an order that was fetched is all here while it waits for its turn
                Some(m) if m.is_whole() => Taken::Yes,
                Some(_) => Taken::No,
                None => {
                    self.counters.duplicates += 1;
                    if p.incoming.is_past(f.seq) { Taken::Yes } else { Taken::Malformed }
                }
            };
        };
        let frag = match r.piece(f.a, u64::from(f.len)) {
            Piece::Malformed => return Taken::Malformed,
            Piece::Duplicate => {
                self.counters.duplicates += 1;
                return Taken::Yes;
            }
            Piece::Wanted { frag } => frag,
        };
        // the newest writer gets the right to write, as with streams: a stream that reads this fragment may be dead
        // without a sign, and goes on into scratch; what it had written is written again in full
        for l in r.revoke(frag) {
            self.divert_reader(l.stream, f.seq, frag);
        }
        let r = self.peers[peer].incoming.receiving_mut(f.seq).expect("looked up above");
        r.target().iov.scatter(f.a as usize, payload);
        r.note_piece(frag, f.a, u64::from(f.len), whole);
        if r.is_complete() {
            self.finish_rx(peer, f.seq);
        }
        Taken::Yes
    }

    // ---- acknowledgements --------------------------------------------------------------------------------------

    /// The fast path for an acknowledgement, as in a ping-pong: it covers the oldest datagrams under way and nothing
    /// else, so none was overtaken. False: it does not, and nothing was done.
    fn acks_the_oldest(&mut self, peer: PeerId, f: &FrameHeader, epoch: Epoch) -> bool {
        let p = &mut self.peers[peer];
        let Some(index) = p.path_index(PathId(f.b as u16)) else { return false };
        let path = &mut p.paths[index];
        if path.epoch() != epoch || !path.health().connected() || !path.lane.datagrams().was_sent(f.a) {
            return false;
        }
        let Some(low) = f.a.checked_sub(u64::from(f.x)) else { return false };
        if path.lane.datagrams().oldest().is_none_or(|s| s.number() < low || s.number() > f.a) {
            return false;
        }
        loop {
            let path = &mut self.peers[peer].paths[index];
            let Some(s) = path.lane.datagrams_mut().take_if(|s| s.number() <= f.a) else { break };
            path.pmtu.passed(s.bytes_on_wire());
            if s.number() == f.a {
                self.sample_datagram(peer, index, &s, ack_delay(f));
            }
            for &i in s.items() {
                self.item_acked(peer, i);
            }
        }
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        path.datagrams.small_passed();
        path.lane.datagrams_mut().grow();
        if path.evidence.prove() {
            p.carriers.unsettle();
        }
        self.mark(peer);
        true
    }

    /// Samples times from the acknowledgement of the newest datagram, unless that went twice (hazard H10).
    fn sample_datagram(&mut self, peer: PeerId, index: usize, newest: &Sent, delay: Duration) {
        if newest.is_hedged() && self.remedies.no_ambiguous_samples() {
            return;
        }
        let now = self.clock.now();
        let waited = now.since(newest.at());
        let round_trip = waited.saturating_sub(delay);
        let path = &mut self.peers[peer].paths[index];
        path.lane.sample(round_trip);
        self.rails.sample(path.rail(), round_trip, waited, now);
    }

    fn on_ack(&mut self, peer: PeerId, f: &FrameHeader, payload: &[u8]) -> Taken {
        let epoch = Epoch((f.b >> 32) as u32);
        // planted: all lanes count as one
        let id = if self.remedies.acks_name_their_lane() { LaneId((f.b >> 24) as u8) } else { LaneId::FIRST };
        let channel = match f.b >> 16 & 0xff {
            0 => Channel::Datagram,
            1 => Channel::Stream,
            2 => Channel::Bulk,
            _ => return Taken::Malformed,
        };
        let oldest = channel == Channel::Datagram && id == LaneId::FIRST && payload.is_empty();
        if oldest && self.acks_the_oldest(peer, f, epoch) {
            return Taken::Yes;
        }
        let mut ranges = SmallVec::<[(u64, u64); 4]>::new();
        // planted: one too many at the lower end
        let more = u64::from(!self.remedies.acks_end_exactly());
        if read_ranges(f.a, f.x, payload, |l, h| ranges.push((l.saturating_sub(more), h))).is_err() {
            return Taken::Malformed;
        }
        let Some(index) = self.peers[peer].path_index(PathId(f.b as u16)) else { return Taken::Yes };
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        let present = path.epoch() == epoch || !self.remedies.acks_name_their_epoch();
        if !present || !path.health().connected() {
            // a late acknowledgement of an epoch that is over: what it carried need not be sent again
            let Some(lane) = self.peers[peer].paths[index].lane_of_mut(id) else { return Taken::Malformed };
            let done = lane.acked_late(epoch, channel, f.aux, &ranges);
            for i in done {
                self.item_acked(peer, i);
            }
            return Taken::Yes;
        }
        let path = &mut self.peers[peer].paths[index];
        let delay = ack_delay(f);
        if channel != Channel::Stream && id != LaneId::FIRST {
            // such packets go over the first lane only
            return Taken::Malformed;
        }
        let (acked, lost) = match channel {
            Channel::Datagram => {
                if !path.lane.datagrams().was_sent(f.a) {
                    return Taken::Malformed;
                }
                let acked = path.lane.datagrams_mut().take_acked(&ranges);
                for s in &acked {
                    path.pmtu.passed(s.bytes_on_wire());
                    path.datagrams.small_passed();
                }
                if let Some(newest) = acked.iter().max_by_key(|s| s.number()) {
                    if newest.number() == f.a {
                        self.sample_datagram(peer, index, newest, delay);
                    }
                }
                let datagrams = self.peers[peer].paths[index].lane.datagrams_mut();
                let lost = datagrams.take_lost(f.a, !acked.is_empty());
                self.counters.datagrams_lost += lost.len() as u64;
                (acked, lost)
            }
            Channel::Bulk => {
                let sense = self.on_bulk_ack(peer, index, &ranges, f.a, delay);
                return if sense { Taken::Yes } else { Taken::Malformed };
            }
            Channel::Stream => {
                let rail = path.rail();
                let Some(lane) = path.lane_of_mut(id) else { return Taken::Malformed };
                let Some(sid) = lane.stream() else { return Taken::Yes };
                let s = self.streams.get_mut(sid).expect("an attached stream exists");
                if s.name().is_none_or(|name| f.aux != name.number() as u16) {
                    return Taken::Yes;
                }
                if !s.outbox().was_numbered(f.a) {
                    return Taken::Malformed;
                }
                let copies_count = !self.remedies.no_ambiguous_samples();
                let StreamNews { acked, lost, clear, waited } =
                    s.acknowledged(&ranges, f.a, copies_count, now);
                if !acked.is_empty() {
                    if let Some(wait) = waited {
                        self.rails.sample_wait(rail, wait, now);
                    }
                    lane.connection_mut().bears_fruit();
                    if acked.iter().any(Sent::is_placed) {
                        lane.placing_mut().works();
                    }
                    lane.rate_mut().acked(clear, s.flight().bytes(), !s.outbox().is_empty(), now);
                }
                (acked, lost)
            }
        };
        let path = &self.peers[peer].paths[index];
        let is_looked_at = || path.lane_count() > 1 || path.breadth.is_tried();
        if channel == Channel::Stream && !acked.is_empty() && is_looked_at() {
            let bytes = acked.iter().map(|s| u64::from(s.bytes())).sum();
            self.look_at_lanes(peer, index, (id, bytes));
        }
        let progressed = !acked.is_empty() || !lost.is_empty();
        let p = &mut self.peers[peer];
        if !acked.is_empty() && p.paths[index].evidence.prove() {
            p.carriers.unsettle();
        }
        for s in &acked {
            for &i in s.items() {
                self.item_acked(peer, i);
            }
        }
        // before they go again
        self.blame(peer, index, &lost, channel);
        for s in &lost {
            self.requeue(peer, s);
        }
        if progressed {
            self.mark(peer);
        }
        Taken::Yes
    }

    /// The peer has it.
    pub(crate) fn item_acked(&mut self, peer: PeerId, item: Item) {
        let p = &mut self.peers[peer];
        match item {
            Item::Eager { seq } => {
                if p.outgoing.get(seq).is_some_and(TxMsg::is_eager) {
                    self.finish_tx(peer, seq, None);
                }
            }
            Item::Frag { seq, at, len } => {
                if p.outgoing.acknowledge(seq, at, u64::from(len)) {
                    self.finish_tx(peer, seq, None);
                }
            }
            Item::Goodbye => p.farewell.acked(),
            Item::Config => p.config_acked(),
            Item::Reject { seq, taken: false } => p.incoming.rejection_arrived(seq),
            // the envelope is there as well: without it this would not have been taken
            Item::Withdraw { seq } => self.finish_tx(peer, seq, None),
            Item::Rts { .. }
            | Item::Cts { .. }
            | Item::Over { .. }
            | Item::Refuse { .. }
            | Item::Reject { taken: true, .. }
            | Item::Key { .. }
            | Item::Fence { .. }
            | Item::Fenced { .. }
            | Item::Leave { .. }
            | Item::Left { .. }
            | Item::Verdict { .. } => {}
        }
    }

    fn on_vack(&mut self, peer: PeerId, f: &FrameHeader) {
        let replace = !self.remedies.or_masks();
        if self.peers[peer].outgoing.acknowledge_mask(f.seq, f.a, f.b, replace) {
            self.finish_tx(peer, f.seq, None);
        }
    }
}

/// What the planted bug of `sequence_first` leaves in the place of a message that was matched too early, for no
/// endpoint.
fn executed(f: &FrameHeader, protocol: Protocol) -> Envelope {
    Envelope {
        src_ep: f.src_ep,
        dst_ep: u16::MAX,
        protocol,
        role: Role::Message,
        tag: f.a,
        data: None,
        total: f.total,
        granule: f.x,
    }
}

/// How long the peer kept an acknowledgement, by its own report.
fn ack_delay(f: &FrameHeader) -> Duration {
    Duration::from_micros(f.total.min(1_000_000))
}

/// The queue that a message is for.
fn protocol_of(bits: u8) -> Protocol {
    match bits & (flags::TAGGED | flags::COLLECTIVE) {
        0 => Protocol::Msg,
        flags::TAGGED => Protocol::Tagged,
        _ => Protocol::Collective,
    }
}
