//! What arrives: datagrams and stream bytes, frames, acknowledgements.
//!
//! A packet is acknowledged only when everything in it was taken: a refused payload, an aborted or corrupt frame is not, so
//! the sender keeps it. Everything executed once is remembered by watermark and only acknowledged again (hazard H11).

use crate::completion::CompletionError;
use crate::engine::{Engine, counted};
use crate::event::{EventKind, Witness};
use crate::matching::{Match, Unexpected};
use crate::path::{Channel, Sent};
use crate::peer::Gone;
use crate::rendezvous::{Body, Item, Lease, RxBody, RxMsg, TxState, VFRAG_FRAGMENTS};
use crate::responder::Respond;
use crate::stream::{Phase, Place, READ_BUFFER_BYTES, Reading};
use crate::types::*;
use rerail_wire::ack::read_ranges;
use rerail_wire::config::NodeConfig;
use rerail_wire::frame::{FRAME_HEADER_BYTES, flags};
use rerail_wire::packet::{PONG_BYPASS, PacketHeader, PacketKind, PongEntry, peek};
use rerail_wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, parse_header};
use rerail_wire::{Coverage, FrameHeader, FrameType, WireError, crc32c_append};
use std::net::SocketAddr;
use std::time::Duration;

/// How long an acknowledgement may wait for traffic to ride on.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(1);
/// Packets after which an acknowledgement goes at once: well under half the smallest useful window.
const ACK_PACKETS: u32 = 16;
/// Stream bytes after which an acknowledgement goes at once.
const ACK_BYTES: u64 = 256 * 1024;
/// Envelopes kept of one peer when the remedy of hazard H4b is switched off.
const ENVELOPES_PLANTED: usize = 256;
/// A sender that runs further ahead of its sequence than this is broken.
const SEQUENCE_WINDOW: u64 = 1 << 32;

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It may be acknowledged.
    Yes,
    /// It must be sent again, or is kept by the sender: no acknowledgement.
    No,
    /// It makes no sense: the peer is broken or lies.
    Malformed,
}

impl Engine {
    /// A datagram arrived on `rail` from `from`, which is whatever its sender wrote there: nothing is sent to it.
    pub fn handle_datagram(&mut self, rail: RailId, from: SocketAddr, bytes: &[u8], now: Time) {
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
            Some((cid, PacketKind::Accept)) => match self.by_cid.get(&cid) {
                Some(&peer) => self.on_accept(peer.0 as usize, rail, bytes),
                None => self.counters.strangers += 1,
            },
            Some((cid, kind)) => match self.by_cid.get(&cid) {
                Some(&peer) => self.on_packet(peer, kind, rail, from, bytes),
                None => self.counters.strangers += 1,
            },
        }
    }

    fn on_packet(&mut self, peer: PeerId, kind: PacketKind, rail: RailId, from: SocketAddr, bytes: &[u8]) {
        let pi = peer.0 as usize;
        let now = self.clock.now();
        if self.peers[pi].gone.is_some_and(Gone::is_final) {
            // a verdict is final: the incarnation is entombed (hazard H7)
            self.counters.replays += 1;
            return;
        }
        let (h, rest) = match PacketHeader::parse(bytes) {
            Ok(parsed) => parsed,
            Err(WireError::Checksum(_)) => {
                self.corrupt_datagram(pi, kind, rail, from, bytes);
                return;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        let Some(xi) = self.peers[pi].path_index(PathId(h.path)) else {
            self.counters.strangers += 1;
            return;
        };
        if self.peers[pi].paths[xi].rail != rail {
            self.counters.strangers += 1;
            return;
        }
        let epoch = Epoch(h.epoch);
        let fresh = self.peers[pi].paths[xi].is_half_open(epoch);
        let current = self.peers[pi].paths[xi].epoch == epoch && self.peers[pi].paths[xi].health.connected();
        if !fresh && !current {
            self.counters.replays += 1;
            return;
        }
        if kind.carries_data() && h.coverage < self.coverage_in(pi, xi) {
            self.counters.downgrades += 1;
            return;
        }
        if fresh {
            // something arrived in the epoch that we accepted: now both sides have answered in it (hazard H8)
            self.agree(pi, xi, epoch);
        }
        if self.is_news(pi, xi, kind, h.number) {
            self.heard(pi, xi);
            self.lives(pi);
            self.peers[pi].paths[xi].datagrams_work = true;
        }
        match kind {
            PacketKind::Ping => {
                // what arrived before the query is acknowledged before it is answered, so that the answer tells the sender
                // that everything unacknowledged before it is lost
                let path = &mut self.peers[pi].paths[xi];
                if path.rx.unacked > 0 {
                    path.rx.due = Some(now);
                }
                if path.stream_rx.unacked > 0 {
                    path.stream_rx.due = Some(now);
                }
                if path.bulk_rx.unacked > 0 {
                    path.bulk_rx.due = Some(now);
                }
                self.mark(peer);
                let mut out = Datagram::default();
                if self.responder.respond(rail, bytes, false, &mut out) == Respond::Answered {
                    self.outbox.push_back(out);
                }
            }
            PacketKind::Pong => {
                let table: Vec<PongEntry> = PongEntry::read_all(&rest[..h.table_bytes()]).collect();
                for e in table {
                    if let Some(i) = self.peers[pi].path_index(PathId(e.path)) {
                        let path = &mut self.peers[pi].paths[i];
                        if path.epoch == Epoch(e.epoch) {
                            path.evidence.peer_heard = path.evidence.peer_heard.max(e.id);
                        }
                    }
                }
                let bypass = h.flags & PONG_BYPASS != 0 && self.remedies.bypass_is_no_engine();
                self.on_pong(pi, xi, h.number, bypass, rest.len(), false);
            }
            PacketKind::Data => self.on_data(pi, xi, &h, rest),
            PacketKind::Bulk => self.on_bulk(pi, xi, &h, rest),
            PacketKind::Hello | PacketKind::Accept => unreachable!("parsed elsewhere"),
        }
    }

    /// Whether a packet says something that was not said before. What is repeated may be sent by anybody who has seen it, and
    /// for ever: it is no sign of life.
    fn is_news(&mut self, pi: usize, xi: usize, kind: PacketKind, number: u64) -> bool {
        let x = &mut self.peers[pi].paths[xi];
        match kind {
            PacketKind::Ping => {
                let newer = x.asked_newest.is_none_or(|n| number > n);
                if newer {
                    x.asked_newest = Some(number);
                }
                newer
            }
            PacketKind::Pong => x.evidence.open.iter().any(|o| o.0 == number),
            PacketKind::Bulk => !x.bulk_rx.is_replay(number),
            _ => !x.rx.is_replay(number),
        }
    }

    /// Something authentic arrived on a path.
    pub(crate) fn heard(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        p.paths[xi].evidence.heard_at = Some(now);
        let silence = now.since(p.heard_at);
        if silence > Duration::from_millis(300) {
            (p.last_silence, p.last_silence_end) = (silence, now);
            for x in &mut p.paths {
                // time without any sign of life is nobody's fault: progress is judged anew
                x.rate.pause();
            }
        }
        p.heard_at = now;
        if let Some(since) = p.partitioned_at.take() {
            self.event(EventKind::PartitionEnd { outage: now.since(since) }, pi, Some(xi));
            self.extend_lingering(now.since(since));
            // the goodbye gets a new chance to be answered
            let p = &mut self.peers[pi];
            p.goodbye_at = p.goodbye_at.map(|_| now);
            self.mark(PeerId(pi as u32));
            self.mark_streams(PeerId(pi as u32));
        }
    }

    fn on_data(&mut self, pi: usize, xi: usize, h: &PacketHeader, mut rest: &[u8]) {
        let now = self.clock.now();
        if self.peers[pi].paths[xi].rx.is_replay(h.number) {
            self.counters.replays += 1;
            // the acknowledgement may have been lost
            let path = &mut self.peers[pi].paths[xi];
            path.rx.due.get_or_insert(now + ACK_DELAY);
            self.mark(PeerId(pi as u32));
            self.schedule(pi, now + ACK_DELAY);
            return;
        }
        let (mut wants_ack, mut all, mut at_once) = (false, true, false);
        while !rest.is_empty() {
            let Ok(f) = FrameHeader::parse(rest) else {
                self.malformed(pi, xi, h.coverage);
                return;
            };
            let Some(payload) = rest.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + f.len as usize) else {
                self.malformed(pi, xi, h.coverage);
                return;
            };
            wants_ack |= f.kind.elicits_ack();
            // somebody waits for this acknowledgement
            at_once |=
                matches!(f.kind, FrameType::Goodbye | FrameType::Verdict) || f.flags & flags::DELIVERY != 0;
            let before = self.counters.messages_received;
            match self.on_frame(pi, xi, &f, payload) {
                Taken::Yes => {}
                Taken::No => all = false,
                Taken::Malformed => {
                    self.malformed(pi, xi, h.coverage);
                    return;
                }
            }
            // the end of a large message frees the sender's memory: do not let it wait
            at_once |= f.kind == FrameType::Frag && self.counters.messages_received != before;
            rest = &rest[FRAME_HEADER_BYTES + f.len as usize..];
        }
        if !all {
            return;
        }
        // the path may have changed its epoch by a verdict inside this very packet
        let path = &mut self.peers[pi].paths[xi];
        if path.epoch != Epoch(h.epoch) {
            return;
        }
        let at_once = at_once || path.rx.unacked + 1 >= ACK_PACKETS;
        path.rx.note(h.number, wants_ack, 0, now, ACK_DELAY, at_once);
        if let Some(due) = path.rx.due {
            if due <= now {
                self.mark(PeerId(pi as u32));
            } else {
                self.schedule(pi, due);
            }
        }
    }

    /// A frame makes no sense: the peer is broken, or, when no checksum would have told, the path has damaged it.
    pub(crate) fn malformed(&mut self, pi: usize, xi: usize, coverage: Coverage) {
        if coverage == Coverage::None {
            self.corrupted(pi, xi);
        } else {
            self.counters.malformed += 1;
        }
    }

    /// One frame with its whole payload, from either channel (fragments from streams go another way).
    pub(crate) fn on_frame(&mut self, pi: usize, xi: usize, f: &FrameHeader, payload: &[u8]) -> Taken {
        match f.kind {
            FrameType::Eager => self.on_envelope(pi, f, Some(payload)),
            FrameType::Rts => self.on_envelope(pi, f, None),
            FrameType::Cts => self.on_grant(pi, f),
            FrameType::Frag => self.on_piece(pi, f, payload),
            FrameType::Ack => self.on_ack(pi, f, payload),
            FrameType::Vack => {
                self.on_vack(pi, f);
                Taken::Yes
            }
            FrameType::Refuse => {
                let p = &mut self.peers[pi];
                if let Some(m) = p.tx.get_mut(&f.seq) {
                    if m.state == TxState::Eager {
                        m.state = TxState::Announced;
                    }
                }
                Taken::Yes
            }
            FrameType::Reject => {
                if self.peers[pi].tx.contains_key(&f.seq) {
                    self.finish_tx(pi, f.seq, None);
                }
                Taken::Yes
            }
            FrameType::Withdraw => self.on_withdraw(pi, f.seq),
            FrameType::Ping => {
                self.stream_pong(pi, xi, f.a, payload);
                Taken::Yes
            }
            FrameType::Pong => {
                self.on_pong(pi, xi, f.a, false, payload.len(), true);
                Taken::Yes
            }
            FrameType::Verdict => {
                if let Some(i) = self.peers[pi].path_index(PathId(f.aux)) {
                    if self.peers[pi].paths[i].epoch == Epoch(f.a as u32) {
                        if f.x == Witness::Corruption as u32 {
                            self.quarantined_by_peer(pi, i, f.total, Duration::from_millis(f.b));
                        }
                        self.fail_path(pi, i, Witness::Peer, crate::event::Direction::Unknown);
                    }
                }
                Taken::Yes
            }
            FrameType::Config => match NodeConfig::parse(payload) {
                Ok(c) => {
                    self.on_config(pi, c);
                    Taken::Yes
                }
                Err(_) => Taken::Malformed,
            },
            FrameType::Goodbye => {
                if f.len % 8 != 0 {
                    return Taken::Malformed;
                }
                self.on_goodbye(pi, f, payload);
                Taken::Yes
            }
        }
    }

    fn on_config(&mut self, pi: usize, c: NodeConfig) {
        for xi in 0..self.peers[pi].paths.len() {
            let p = &self.peers[pi];
            let x = &p.paths[xi];
            let j = if p.own_is_high { x.id.0 >> 8 } else { x.id.0 & 0xff };
            if let Some(r) = c.rails.get(j as usize) {
                let own = &self.rails[x.rail.0 as usize];
                let overhead = if own.addr.is_ipv4() { 28 } else { 48 };
                // never smaller than what every network has: messages may already have been cut for that
                let mtu = own.mtu.min(r.mtu).max(1500.min(own.mtu)) as usize;
                self.mtu_agreed(pi, xi, mtu.min(9000) - overhead);
            }
        }
        let p = &mut self.peers[pi];
        p.config = Some(c);
        self.settle_coverage(pi);
    }

    fn on_goodbye(&mut self, pi: usize, f: &FrameHeader, payload: &[u8]) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        if p.gone.is_some() {
            return;
        }
        p.gone = Some(Gone::Goodbye);
        // whoever says goodbye has had everything it sent acknowledged; what we still owe it, it no longer wants
        for x in &mut p.paths {
            if x.rx.unacked > 0 || x.rx.due.is_some() {
                x.rx.due = Some(now);
            }
        }
        // its last acknowledgements may be lost, so it says what it has: a peer that is gone after everything arrived is a
        // clean end (hazard H5)
        let missing: rustc_hash::FxHashSet<u64> =
            payload.chunks_exact(8).map(|c| rerail_wire::bytes::get_u64(c, 0)).collect();
        let arrived: Vec<u64> =
            p.tx.iter()
                .filter(|(s, m)| **s < f.b && !missing.contains(s) && (f.x == 0 || m.state == TxState::Eager))
                .map(|(s, _)| *s)
                .collect();
        for s in arrived {
            self.finish_tx(pi, s, None);
        }
        self.fail_operations(pi, CompletionError::PeerClosed);
        self.event(EventKind::PeerGoodbye, pi, None);
        self.mark(PeerId(pi as u32));
    }

    /// Ends every operation with a peer that is gone.
    pub(crate) fn fail_operations(&mut self, pi: usize, error: CompletionError) {
        let seqs: Vec<u64> = self.peers[pi].tx.keys().copied().collect();
        for s in seqs {
            self.finish_tx(pi, s, Some(error));
        }
        let seqs: Vec<u64> =
            self.peers[pi].rx.iter().filter(|(_, m)| m.receiving.is_some()).map(|(s, _)| *s).collect();
        for s in seqs {
            self.fail_rx(pi, s, error);
        }
        let p = &mut self.peers[pi];
        p.small.clear();
        p.resend.clear();
        p.eager_bulk.clear();
        p.eager_bulk_bytes = 0;
        p.resend_bulk.clear();
        p.query = None;
        for i in 0..self.eps.len() {
            self.end_hopeless(EpId(i as u16));
        }
    }

    /// A matched message that will not come: its receive ends with `error`.
    pub(crate) fn fail_rx(&mut self, pi: usize, seq: u64, error: CompletionError) {
        self.revoke_leases(pi, seq);
        let p = &mut self.peers[pi];
        let m = p.rx.remove(&seq).expect("looked up by the caller");
        let r = m.receiving.expect("only granted messages are failed");
        p.receiving -= 1;
        let id = p.id;
        let Some(e) = self.ep(r.target.ep) else { return };
        e.counts.receives_failed += 1;
        let rx_cq = e.rx_cq;
        let mut c = crate::engine::blank(
            crate::completion::CompletionKind::Recv,
            r.target.protocol,
            r.target.ep,
            r.target.context,
        );
        c.tag = m.tag;
        c.src = Some(EndpointId { peer: id, ep: m.src_ep });
        c.error = Some(error);
        let mut cancelled = None;
        if let Some(key) = r.target.multi {
            c.multi = true;
            (c.multi_released, cancelled) = e.leave_multi(r.target.ep, key);
        }
        self.push(rx_cq, c);
        if let Some(c) = cancelled {
            self.push(rx_cq, c);
        }
    }

    // ---- messages ----------------------------------------------------------------------------------------------

    /// An eager message or an announcement.
    fn on_envelope(&mut self, pi: usize, f: &FrameHeader, payload: Option<&[u8]>) -> Taken {
        let p = &mut self.peers[pi];
        if f.seq < p.rx_next || p.rx.contains_key(&f.seq) {
            if self.remedies.watermarks() {
                self.counters.duplicates += 1;
                return self.on_repeated_envelope(pi, f);
            }
            // planted: the message is executed again as if it were the next one
            if let (true, Some(bytes)) = (f.seq < p.rx_next, payload) {
                let name = Unexpected { peer: p.id, seq: f.seq, src_ep: f.src_ep, tag: f.a };
                let protocol = if f.flags & flags::TAGGED != 0 { Protocol::Tagged } else { Protocol::Msg };
                if let Some(Match::Target(t)) = self.match_posted(EpId(f.dst_ep), protocol, &name, f.total) {
                    t.iov.scatter(0, &bytes[..bytes.len().min(t.cap as usize)]);
                    self.complete_recv(pi, f.src_ep, f.a, None, f.total, t);
                }
            }
            return Taken::Yes;
        }
        if f.seq - p.rx_next > SEQUENCE_WINDOW || f.total > crate::engine::MESSAGE_BYTES_MAX {
            return Taken::Malformed;
        }
        let protocol = if f.flags & flags::TAGGED != 0 { Protocol::Tagged } else { Protocol::Msg };
        let data = (f.flags & flags::CQ_DATA != 0).then_some(f.b);
        let next = f.seq == p.rx_next;
        let name = Unexpected { peer: p.id, seq: f.seq, src_ep: f.src_ep, tag: f.a };
        if !next && !self.remedies.sequence_first() {
            // planted: whoever comes first is matched first
            if let Some(bytes) = payload {
                if let Some(Match::Target(t)) = self.match_posted(EpId(f.dst_ep), protocol, &name, f.total) {
                    t.iov.scatter(0, &bytes[..bytes.len().min(t.cap as usize)]);
                    self.complete_recv(pi, f.src_ep, f.a, data, f.total, t);
                    self.peers[pi].rx.insert(f.seq, executed(f, protocol));
                    return Taken::Yes;
                }
            }
        }
        // the shortest way: the next message, its receive posted, its bytes here
        if next {
            if let Some(bytes) = payload {
                match self.match_posted(EpId(f.dst_ep), protocol, &name, f.total) {
                    Some(Match::Target(t)) => {
                        let n = bytes.len().min(t.cap as usize);
                        t.iov.scatter(0, &bytes[..n]);
                        self.complete_recv(pi, f.src_ep, f.a, data, f.total, t);
                        self.peers[pi].rx_next += 1;
                        self.advance_sequence(pi);
                        return Taken::Yes;
                    }
                    // planted: what finds no room in the queue is not acknowledged
                    Some(Match::Wait) if !self.remedies.full_queue_acknowledges() => return Taken::No,
                    Some(Match::Wait | Match::None) | None => {}
                }
            }
        }
        let p = &mut self.peers[pi];
        let mut refused = false;
        let body = match payload {
            None => RxBody::Remote,
            Some(b) => {
                let counts = counted(b.len());
                if !self.remedies.envelopes_grow() && p.rx.len() >= ENVELOPES_PLANTED {
                    return Taken::No;
                }
                let most = self.options.unexpected_bytes_max;
                let over = p.held_bytes + counts > most && self.remedies.unexpected_is_bounded();
                if counts > 0 && over {
                    if !self.remedies.refuse_over_bound() {
                        return Taken::No;
                    }
                    refused = true;
                    RxBody::Remote
                } else {
                    p.held_bytes += counts;
                    RxBody::Eager(b.into())
                }
            }
        };
        p.rx.insert(
            f.seq,
            RxMsg {
                src_ep: f.src_ep,
                dst_ep: f.dst_ep,
                protocol,
                tag: f.a,
                data,
                total: f.total,
                granule: f.x,
                body,
                refused,
                receiving: None,
            },
        );
        if refused {
            self.counters.refused += 1;
            p.control.push_back(Item::Refuse { seq: f.seq });
            self.mark(PeerId(pi as u32));
        }
        if next {
            self.advance_sequence(pi);
        }
        if refused && self.remedies.refused_is_kept() { Taken::No } else { Taken::Yes }
    }

    /// An envelope that is known already.
    fn on_repeated_envelope(&mut self, pi: usize, f: &FrameHeader) -> Taken {
        let p = &mut self.peers[pi];
        let seq = f.seq;
        let mut taken = Taken::Yes;
        match p.rx.get(&seq) {
            // the payload was refused and the sender did not hear it: silence would be taken for delivery
            Some(m) if matches!(m.body, RxBody::Remote) && f.kind == FrameType::Eager => {
                p.control.push_back(if m.receiving.is_some() {
                    Item::Cts { seq }
                } else {
                    Item::Refuse { seq }
                });
                taken = Taken::No;
            }
            Some(m) if m.receiving.is_some() => p.control.push_back(Item::Cts { seq }),
            // done long ago; the sender of an announcement waits for a grant: grant nothing more
            None if f.kind == FrameType::Rts => p.control.push_back(Item::Cts { seq }),
            _ => return taken,
        }
        self.mark(PeerId(pi as u32));
        taken
    }

    fn on_grant(&mut self, pi: usize, f: &FrameHeader) -> Taken {
        let p = &mut self.peers[pi];
        let id = p.id;
        let Some(m) = p.tx.get_mut(&f.seq) else { return Taken::Yes };
        let again = m.state == TxState::Granted && self.remedies.grants_are_idempotent();
        if again || matches!(m.body, Body::Withdrawn) {
            return Taken::Yes;
        }
        m.state = TxState::Granted;
        m.granted = f.total.min(m.total);
        m.masks = vec![0; m.frags().div_ceil(VFRAG_FRAGMENTS) as usize];
        let granted = m.granted;
        p.bulk_bytes += granted;
        if granted == 0 {
            self.finish_tx(pi, f.seq, None);
        } else {
            p.bulk.push_back(f.seq);
            self.mark(id);
            self.mark_streams(id);
        }
        Taken::Yes
    }

    /// The peer has announced a message, and takes it back. Whoever waits for it is told; the envelope keeps its place, so that
    /// whoever will ask for it is told then.
    fn on_withdraw(&mut self, pi: usize, seq: u64) -> Taken {
        let p = &mut self.peers[pi];
        let Some(m) = p.rx.get_mut(&seq) else {
            // the sender repeats it until the envelope is here
            return if seq < p.rx_next { Taken::Yes } else { Taken::No };
        };
        if m.receiving.is_some() {
            self.fail_rx(pi, seq, CompletionError::PeerClosed);
        } else if matches!(m.body, RxBody::Remote) {
            m.body = RxBody::Withdrawn;
        }
        Taken::Yes
    }

    /// A fragment, or a piece of one, in a datagram.
    pub(crate) fn on_piece(&mut self, pi: usize, f: &FrameHeader, payload: &[u8]) -> Taken {
        let whole = self.remedies.fixed_granule();
        let p = &mut self.peers[pi];
        let Some(m) = p.rx.get_mut(&f.seq) else {
            self.counters.duplicates += 1;
            return if f.seq < p.rx_next { Taken::Yes } else { Taken::Malformed };
        };
        let g = u64::from(m.granule);
        let Some(r) = &mut m.receiving else { return Taken::No };
        let frag = f.a / g;
        let low = frag * g;
        let end = f.a + u64::from(f.len);
        if f.a >= r.granted {
            return Taken::Malformed;
        }
        let high = (low + g).min(r.granted);
        if end > high {
            return Taken::Malformed;
        }
        if r.has(frag) {
            self.counters.duplicates += 1;
            return Taken::Yes;
        }
        // the newest writer gets the right to write, as with streams: a stream that reads this fragment may be dead without
        // a word, and goes on into scratch; what it had written is written again in full
        if r.leases.iter().any(|l| l.frag == frag) {
            let (holders, others): (Vec<Lease>, Vec<Lease>) =
                r.leases.drain(..).partition(|l| l.frag == frag);
            r.leases = others;
            for l in holders {
                self.divert_reader(l.stream, f.seq, frag);
            }
        }
        let p = &mut self.peers[pi];
        let m = p.rx.get_mut(&f.seq).expect("looked up above");
        let r = m.receiving.as_mut().expect("looked up above");
        r.target.iov.scatter(f.a as usize, payload);
        let part = r.partial.entry(frag).or_default();
        part.insert(f.a, end);
        if part.covers(low, high) || !whole {
            r.commit(frag);
            if r.complete(m.granule) {
                self.finish_rx(pi, f.seq);
            }
        }
        Taken::Yes
    }

    // ---- acknowledgements --------------------------------------------------------------------------------------

    fn on_ack(&mut self, pi: usize, f: &FrameHeader, payload: &[u8]) -> Taken {
        let epoch = Epoch((f.b >> 32) as u32);
        let channel = match f.b >> 16 & 0xffff {
            0 => Channel::Datagram,
            1 => Channel::Stream,
            2 => Channel::Bulk,
            _ => return Taken::Malformed,
        };
        let mut ranges = Vec::with_capacity(4);
        // planted: one too many at the lower end
        let more = u64::from(!self.remedies.acks_end_exactly());
        if read_ranges(f.a, f.x, payload, |l, h| ranges.push((l.saturating_sub(more), h))).is_err() {
            return Taken::Malformed;
        }
        let Some(xi) = self.peers[pi].path_index(PathId(f.b as u16)) else { return Taken::Yes };
        let now = self.clock.now();
        let x = &self.peers[pi].paths[xi];
        let present = x.epoch == epoch || !self.remedies.acks_name_their_epoch();
        if !present || !x.health.connected() {
            // late news of an epoch that is over: what it carried needs no second journey
            let path = &mut self.peers[pi].paths[xi];
            let mut done = Vec::new();
            path.ghosts.retain(|&(e, c, s, n), items| {
                let hit = e == epoch
                    && c == channel
                    && s == f.aux
                    && ranges.iter().any(|&(l, h)| (l..=h).contains(&n));
                if hit {
                    done.extend_from_slice(items.as_slice());
                }
                !hit
            });
            for i in done {
                self.item_acked(pi, i);
            }
            return Taken::Yes;
        }
        let path = &mut self.peers[pi].paths[xi];
        let delay = Duration::from_micros(f.total.min(1_000_000));
        let (acked, lost) = match channel {
            Channel::Datagram => {
                if f.a >= path.number_next {
                    return Taken::Malformed;
                }
                let acked = take_acked(&mut path.inflight, &ranges);
                for s in &acked {
                    path.pmtu.passed(s.bytes_on_wire());
                }
                if let Some(newest) = acked.iter().max_by_key(|s| s.number) {
                    if newest.number == f.a && (!newest.hedged || !self.remedies.no_ambiguous_samples()) {
                        path.rtt.sample(now.since(newest.at).saturating_sub(delay));
                    }
                }
                let lost = take_lost(&mut path.inflight, f.a);
                if !lost.is_empty() && lost[0].number >= path.window_cut_at {
                    path.window = (path.window / 2).max(crate::path::WINDOW_MIN);
                    path.window_cut_at = path.number_next;
                } else if !acked.is_empty() && path.window < crate::path::WINDOW_MAX {
                    path.window += 1;
                }
                self.counters.datagrams_lost += lost.len() as u64;
                (acked, lost)
            }
            Channel::Bulk => {
                let sense = self.on_bulk_ack(pi, xi, &ranges, f.a, delay);
                return if sense { Taken::Yes } else { Taken::Malformed };
            }
            Channel::Stream => {
                let Some(sid) = path.stream else { return Taken::Yes };
                let s = self.streams.get_mut(&sid).expect("an attached stream exists");
                if f.aux != s.number as u16 {
                    return Taken::Yes;
                }
                if f.a >= s.number_next {
                    return Taken::Malformed;
                }
                let acked = take_acked(&mut s.records, &ranges);
                let lost = take_lost(&mut s.records, f.a);
                let bytes: u64 = acked.iter().map(|a| u64::from(a.bytes)).sum();
                let clear: u64 = acked
                    .iter()
                    .filter(|a| !a.hedged || !self.remedies.no_ambiguous_samples())
                    .map(|a| u64::from(a.bytes))
                    .sum();
                s.bytes_in_flight -= bytes + lost.iter().map(|a| u64::from(a.bytes)).sum::<u64>();
                if !acked.is_empty() {
                    s.progress_at = now;
                    s.acked_at = Some(now);
                    path.rate.acked(clear, s.bytes_in_flight, now);
                }
                (acked, lost)
            }
        };
        let progressed = !acked.is_empty() || !lost.is_empty();
        let p = &mut self.peers[pi];
        if !acked.is_empty() && !p.paths[xi].evidence.proven {
            p.paths[xi].evidence.proven = true;
            p.unsettled = true;
        }
        for s in &acked {
            for &i in s.items.as_slice() {
                self.item_acked(pi, i);
            }
        }
        for s in &lost {
            self.requeue(pi, s);
        }
        self.blame(pi, xi, &lost, channel);
        if progressed {
            self.mark(PeerId(pi as u32));
        }
        Taken::Yes
    }

    /// The peer has it.
    pub(crate) fn item_acked(&mut self, pi: usize, item: Item) {
        let p = &mut self.peers[pi];
        match item {
            Item::Eager { seq } => {
                if p.tx.get(&seq).is_some_and(|m| m.state == TxState::Eager) {
                    self.finish_tx(pi, seq, None);
                }
            }
            Item::Frag { seq, at, len } => {
                if let Some(m) = p.tx.get_mut(&seq) {
                    if m.state == TxState::Granted && m.needs(at, u64::from(len)) {
                        m.ack_bytes(at, u64::from(len));
                        if m.all_acked() {
                            self.finish_tx(pi, seq, None);
                        }
                    }
                }
            }
            Item::Goodbye => p.goodbye_acked = true,
            Item::Config => p.config_acked = true,
            // the envelope is there as well: without it this would not have been taken
            Item::Withdraw { seq } => self.finish_tx(pi, seq, None),
            Item::Rts { .. }
            | Item::Cts { .. }
            | Item::Refuse { .. }
            | Item::Reject { .. }
            | Item::Verdict { .. } => {}
        }
    }

    fn on_vack(&mut self, pi: usize, f: &FrameHeader) {
        let or = self.remedies.or_masks();
        let p = &mut self.peers[pi];
        let Some(m) = p.tx.get_mut(&f.seq) else { return };
        if m.state != TxState::Granted {
            return;
        }
        if or {
            m.ack_mask(f.a, f.b);
        } else if let Some(mask) = m.masks.get_mut(f.a as usize) {
            // planted: an older mask that arrives later takes bits back
            *mask = f.b;
            m.acked_frags = m.masks.iter().map(|x| u64::from(x.count_ones())).sum();
        }
        if m.all_acked() {
            self.finish_tx(pi, f.seq, None);
        }
    }

    // ---- streams -----------------------------------------------------------------------------------------------

    /// Where the next bytes of the stream go. False: nothing is wanted from it any more (an action closes it).
    /// The window must be read into, and [`Engine::stream_rx_done`] called, before any other call of the engine.
    pub fn stream_rx_window(&mut self, stream: StreamId, window: &mut Window) -> bool {
        window.clear();
        let Some(s) = self.streams.get_mut(&stream) else { return false };
        if matches!(s.phase, Phase::Closing | Phase::Connecting) {
            return false;
        }
        s.compact();
        s.window_payload = 0;
        if let Reading::Payload { frame, done, place, .. } = s.reading {
            let rest = frame.len as usize - done;
            let mut given = 0;
            let scratch = self.scratch.as_ptr();
            match place {
                Place::Lease { seq, .. } => {
                    let (pi, _) = s.peer.expect("frames are read only from attached streams");
                    let m = &self.peers[pi.0 as usize].rx[&seq];
                    let r = m.receiving.as_ref().expect("a lease belongs to a granted message");
                    r.target.iov.pieces(frame.a as usize + done, rest, |p, n| {
                        // a vector of many pieces is read in several windows
                        if window.room() > 1 {
                            window.push(p, n);
                            given += n;
                        }
                    });
                }
                Place::Side { .. } => {
                    window.push(s.side[done..].as_ptr(), rest);
                    given = rest;
                }
                Place::Scratch => {
                    window.push(scratch, rest);
                    given = rest;
                }
            }
            s.window_payload = given;
            if given == rest {
                // the trailer and the next header come along; more would have to be copied afterwards
                let n = (TRAILER_BYTES + STREAM_HEADER_BYTES).min(s.buf.len() - s.end);
                window.push(s.buf[s.end..].as_ptr(), n);
            }
            return true;
        }
        let room = s.buf.len() - s.end;
        debug_assert!(room > 0, "a full buffer always holds a whole frame");
        window.push(s.buf[s.end..].as_ptr(), room);
        true
    }

    /// `bytes` of the window were read.
    pub fn stream_rx_done(&mut self, stream: StreamId, bytes: usize, now: Time) {
        self.tick(now);
        let Some(s) = self.streams.get_mut(&stream) else { return };
        let to_payload = bytes.min(s.window_payload);
        if let Reading::Payload { frame, done, crc, place, summed, .. } = &mut s.reading {
            if let (Place::Lease { seq, .. }, true) = (place, *summed) {
                let (pi, _) = s.peer.expect("frames are read only from attached streams");
                let m = &self.peers[pi.0 as usize].rx[seq];
                let r = m.receiving.as_ref().expect("a lease belongs to a granted message");
                let mut c = *crc;
                r.target.iov.pieces(frame.a as usize + *done, to_payload, |p, n| {
                    // SAFETY: the bytes were just read into the poster's memory, which is valid until the completion.
                    c = crc32c_append(c, unsafe { std::slice::from_raw_parts(p, n) });
                });
                *crc = c;
            }
            *done += to_payload;
        }
        s.end += bytes - to_payload;
        s.window_payload = 0;
        self.read_frames(stream);
    }

    /// Understands what is in the buffer of a stream, as far as it goes.
    fn read_frames(&mut self, stream: StreamId) {
        loop {
            let Some(s) = self.streams.get_mut(&stream) else { return };
            if s.phase == Phase::Closing {
                return;
            }
            let have = s.end - s.start;
            match s.reading {
                Reading::Handshake => {
                    if !self.read_handshake(stream) {
                        return;
                    }
                }
                Reading::Header => {
                    if have < STREAM_HEADER_BYTES {
                        return;
                    }
                    let (number, frame, coverage) = match parse_header(s.unread()) {
                        Ok(parsed) => parsed,
                        Err(e) => {
                            if matches!(e, WireError::Checksum(_)) {
                                self.corrupt_stream(stream);
                            } else {
                                self.counters.malformed += 1;
                            }
                            self.break_stream(stream);
                            return;
                        }
                    };
                    let Some((peer, path)) = s.peer else { return };
                    let pi = peer.0 as usize;
                    let Some(xi) = self.peers[pi].path_index(path) else { return };
                    if coverage < self.coverage_in(pi, xi) {
                        self.counters.downgrades += 1;
                        self.break_stream(stream);
                        return;
                    }
                    let summed = coverage.sums_payload(frame.kind);
                    let s = self.streams.get_mut(&stream).expect("looked up above");
                    if frame.kind == FrameType::Frag {
                        s.start += STREAM_HEADER_BYTES;
                        let place = self.lease(stream, number, &frame);
                        let Some(s) = self.streams.get_mut(&stream) else { return };
                        s.reading = Reading::Payload { frame, number, done: 0, crc: 0, place, summed };
                        continue;
                    }
                    let whole = STREAM_HEADER_BYTES + frame.len as usize + TRAILER_BYTES;
                    if have < whole {
                        debug_assert!(whole <= READ_BUFFER_BYTES);
                        return;
                    }
                    // the frame is taken out of the buffer, so that it can be looked at while the engine changes
                    let buf = std::mem::take(&mut s.buf);
                    let at = s.start + STREAM_HEADER_BYTES;
                    s.start += whole;
                    let payload = &buf[at..at + frame.len as usize];
                    let trailer = Trailer::parse(&buf[at + frame.len as usize..]);
                    let taken = match trailer {
                        Ok(t) if !t.valid => {
                            self.counters.aborted += 1;
                            Taken::No
                        }
                        Ok(t) if !summed || t.crc == crc32c_append(0, payload) => {
                            self.on_stream_frame(stream, &frame, payload)
                        }
                        Ok(_) => {
                            self.corrupt_stream(stream);
                            Taken::No
                        }
                        Err(_) => self.broken_trailer(stream),
                    };
                    let Some(s) = self.streams.get_mut(&stream) else { return };
                    s.buf = buf;
                    self.frame_done(stream, number, &frame, taken);
                }
                Reading::Payload { frame, number, done, crc, place, summed } => {
                    let rest = frame.len as usize - done;
                    let n = rest.min(have);
                    let (mut crc, mut done) = (crc, done);
                    if n > 0 {
                        if let Place::Lease { seq, .. } = place {
                            let (pi, _) = s.peer.expect("frames are read only from attached streams");
                            let bytes = &s.buf[s.start..s.start + n];
                            let m = &self.peers[pi.0 as usize].rx[&seq];
                            let r = m.receiving.as_ref().expect("a lease belongs to a granted message");
                            r.target.iov.scatter(frame.a as usize + done, bytes);
                            if summed {
                                crc = crc32c_append(crc, bytes);
                            }
                        } else if let Place::Side { .. } = place {
                            s.side[done..done + n].copy_from_slice(&s.buf[s.start..s.start + n]);
                        }
                        s.start += n;
                        done += n;
                    }
                    if done < frame.len as usize {
                        s.reading = Reading::Payload { frame, number, done, crc, place, summed };
                        return;
                    }
                    s.reading = Reading::Trailer { frame, number, crc, place, summed };
                }
                Reading::Trailer { frame, number, crc, place, summed } => {
                    if have < TRAILER_BYTES {
                        return;
                    }
                    let trailer = Trailer::parse(s.unread());
                    s.start += TRAILER_BYTES;
                    s.reading = Reading::Header;
                    let taken = match trailer {
                        Err(_) => self.broken_trailer(stream),
                        Ok(t) => self.fragment_read(stream, &frame, t, summed.then_some(crc), place),
                    };
                    self.frame_done(stream, number, &frame, taken);
                }
            }
        }
    }

    /// The stream is out of step or lies: nothing more is read from it.
    fn break_stream(&mut self, stream: StreamId) {
        // the verdict on its path may have closed it already
        if self.streams.get(&stream).is_some_and(|s| s.phase != Phase::Closing) {
            self.fail_stream(stream, Witness::Corruption, true);
        }
    }

    /// A trailer is neither VALID nor ABORT: no engine writes this.
    fn broken_trailer(&mut self, stream: StreamId) -> Taken {
        self.corrupt_stream(stream);
        self.break_stream(stream);
        Taken::No
    }

    fn on_stream_frame(&mut self, stream: StreamId, frame: &FrameHeader, payload: &[u8]) -> Taken {
        let Some((peer, path)) = self.streams[&stream].peer else { return Taken::Malformed };
        let pi = peer.0 as usize;
        let Some(xi) = self.peers[pi].path_index(path) else { return Taken::Malformed };
        self.heard(pi, xi);
        self.on_frame(pi, xi, frame, payload)
    }

    /// A frame of a stream is over: note it for the next acknowledgement.
    fn frame_done(&mut self, stream: StreamId, number: u64, frame: &FrameHeader, taken: Taken) {
        self.counters.stream_frames_received += 1;
        if taken == Taken::Malformed {
            self.counters.malformed += 1;
            self.break_stream(stream);
            return;
        }
        let now = self.clock.now();
        let Some(s) = self.streams.get(&stream) else { return };
        if s.phase != Phase::Attached {
            return;
        }
        let Some((peer, path)) = s.peer else { return };
        let pi = peer.0 as usize;
        let Some(xi) = self.peers[pi].path_index(path) else { return };
        let p = &mut self.peers[pi];
        if p.paths[xi].stream != Some(stream) || taken != Taken::Yes || frame.flags & flags::UNPROTECTED != 0
        {
            return;
        }
        let rx = &mut p.paths[xi].stream_rx;
        let bytes = u64::from(frame.len);
        // the end of a message frees its sender: do not let it wait
        let last = (frame.kind == FrameType::Frag && !p.rx.contains_key(&frame.seq))
            || frame.flags & flags::DELIVERY != 0;
        let at_once = last || rx.unacked + 1 >= ACK_PACKETS || rx.bytes_unacked + bytes >= ACK_BYTES;
        rx.note(number, frame.kind.elicits_ack(), bytes, now, ACK_DELAY, at_once);
        if let Some(due) = rx.due {
            if due <= now {
                self.mark(peer);
            } else {
                self.schedule(pi, due);
            }
        }
    }

    /// Gives a stream the right to write a fragment into the user's memory. The newest reader gets it: whoever held it
    /// before reads on into scratch, and what it had written is overwritten in full (hazard H2).
    fn lease(&mut self, stream: StreamId, number: u64, f: &FrameHeader) -> Place {
        let Some((peer, _)) = self.streams[&stream].peer else { return Place::Scratch };
        let exclusive = self.remedies.placement_lease();
        let p = &mut self.peers[peer.0 as usize];
        let Some(m) = p.rx.get_mut(&f.seq) else { return Place::Scratch };
        let g = u64::from(m.granule);
        let Some(r) = &mut m.receiving else { return Place::Scratch };
        let frag = f.a / g;
        let whole = f.a % g == 0 && f.a < r.granted && u64::from(f.len) == g.min(r.granted - f.a);
        if !whole || (r.has(frag) && exclusive) {
            return Place::Scratch;
        }
        if exclusive && r.partial.contains_key(&frag) {
            let s = self.streams.get_mut(&stream).expect("the caller has it");
            s.side.resize(f.len as usize, 0);
            return Place::Side { seq: f.seq, frag };
        }
        let losers: Vec<StreamId> = r.leases.iter().filter(|l| l.frag == frag).map(|l| l.stream).collect();
        if exclusive {
            r.leases.retain(|l| l.frag != frag);
        }
        r.leases.push(Lease { frag, stream, frame: number });
        if exclusive {
            for id in losers {
                self.divert_reader(id, f.seq, frag);
            }
        }
        Place::Lease { seq: f.seq, frag }
    }

    /// Revokes the lease of a stream: the rest of its frame goes to scratch.
    fn divert_reader(&mut self, stream: StreamId, seq: u64, frag: u64) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        if let Reading::Payload { place, .. } | Reading::Trailer { place, .. } = &mut s.reading {
            if *place == (Place::Lease { seq, frag }) {
                *place = Place::Scratch;
            }
        }
    }

    /// A fragment was read beside the user's memory: it goes there now, if it is what was sent and still wanted.
    fn side_read(
        &mut self,
        stream: StreamId,
        pi: usize,
        f: &FrameHeader,
        t: Trailer,
        frag: u64,
        summed: bool,
    ) -> Taken {
        let side = match self.streams.get_mut(&stream) {
            Some(s) => std::mem::take(&mut s.side),
            None => return Taken::No,
        };
        if !t.valid {
            self.counters.aborted += 1;
            return Taken::No;
        }
        if summed && t.crc != crc32c_append(0, &side) {
            self.corrupt_stream(stream);
            return Taken::No;
        }
        let p = &mut self.peers[pi];
        let Some(m) = p.rx.get_mut(&f.seq) else { return Taken::Yes };
        let Some(r) = &mut m.receiving else { return Taken::No };
        if r.has(frag) {
            self.counters.duplicates += 1;
            return Taken::Yes;
        }
        let (holders, others): (Vec<Lease>, Vec<Lease>) = r.leases.drain(..).partition(|l| l.frag == frag);
        r.leases = others;
        r.target.iov.scatter(f.a as usize, &side);
        r.commit(frag);
        let complete = r.complete(m.granule);
        for l in holders {
            self.divert_reader(l.stream, f.seq, frag);
        }
        if complete {
            self.finish_rx(pi, f.seq);
        }
        Taken::Yes
    }

    /// Nobody reads into the memory of this message any more.
    pub(crate) fn revoke_leases(&mut self, pi: usize, seq: u64) {
        let Some(m) = self.peers[pi].rx.get_mut(&seq) else { return };
        let Some(r) = &mut m.receiving else { return };
        for l in std::mem::take(&mut r.leases) {
            self.divert_reader(l.stream, seq, l.frag);
        }
    }

    /// Payload and trailer of a fragment were read; `crc` of the payload, if it is summed.
    fn fragment_read(
        &mut self,
        stream: StreamId,
        f: &FrameHeader,
        t: Trailer,
        crc: Option<u32>,
        place: Place,
    ) -> Taken {
        let Some((peer, path)) = self.streams[&stream].peer else { return Taken::Malformed };
        let pi = peer.0 as usize;
        if let Some(xi) = self.peers[pi].path_index(path) {
            self.heard(pi, xi);
        }
        if let Place::Side { frag, .. } = place {
            return self.side_read(stream, pi, f, t, frag, crc.is_some());
        }
        let p = &mut self.peers[pi];
        let Place::Lease { frag, .. } = place else {
            self.counters.duplicates += 1;
            if !t.valid {
                self.counters.aborted += 1;
                return Taken::No;
            }
            // a duplicate may be acknowledged when the fragment is there, not when another reader may still fail
            return match p.rx.get(&f.seq) {
                None if f.seq < p.rx_next => Taken::Yes,
                None => Taken::Malformed,
                Some(m) => match &m.receiving {
                    Some(r) if f.a >= r.granted => Taken::Malformed,
                    Some(r) if r.has(f.a / u64::from(m.granule)) => Taken::Yes,
                    _ => Taken::No,
                },
            };
        };
        let Some(m) = p.rx.get_mut(&f.seq) else { return Taken::Yes };
        let r = m.receiving.as_mut().expect("a lease belongs to a granted message");
        r.leases.retain(|l| !(l.frag == frag && l.stream == stream));
        if !t.valid {
            self.counters.aborted += 1;
            return Taken::No;
        }
        if crc.is_some_and(|crc| t.crc != crc) && self.remedies.payload_is_checked() {
            self.corrupt_stream(stream);
            return Taken::No;
        }
        if r.has(frag) {
            return Taken::Yes;
        }
        r.commit(frag);
        if r.complete(m.granule) {
            // invariant 4: no other reader may go on into this memory
            let others: Vec<Lease> = std::mem::take(&mut r.leases);
            for l in others {
                self.divert_reader(l.stream, f.seq, l.frag);
            }
            self.finish_rx(pi, f.seq);
        }
        Taken::Yes
    }
}

/// What the planted bug of `sequence_first` leaves in the place of a message that was matched too early: nobody's.
fn executed(f: &FrameHeader, protocol: Protocol) -> RxMsg {
    RxMsg {
        src_ep: f.src_ep,
        dst_ep: u16::MAX,
        protocol,
        tag: f.a,
        data: None,
        total: f.total,
        granule: f.x,
        body: RxBody::Withdrawn,
        refused: false,
        receiving: None,
    }
}

/// Takes the acknowledged records out, oldest first.
fn take_acked(q: &mut std::collections::VecDeque<Sent>, ranges: &[(u64, u64)]) -> Vec<Sent> {
    let mut acked = Vec::new();
    let hit = |n: u64| ranges.iter().any(|&(l, h)| l <= n && n <= h);
    while q.front().is_some_and(|s| hit(s.number)) {
        acked.extend(q.pop_front());
    }
    if q.front().is_some_and(|s| s.number < ranges[0].1) {
        let mut keep = std::collections::VecDeque::with_capacity(q.len());
        for s in q.drain(..) {
            if hit(s.number) { acked.push(s) } else { keep.push_back(s) }
        }
        *q = keep;
    }
    acked
}

/// Takes out the records that were overtaken by too many.
fn take_lost(q: &mut std::collections::VecDeque<Sent>, largest: u64) -> Vec<Sent> {
    let mut lost = Vec::new();
    while q.front().is_some_and(|s| s.number + crate::path::REORDER_PACKETS <= largest) {
        lost.extend(q.pop_front());
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Items;
    use std::collections::VecDeque;

    fn sent(n: u64) -> Sent {
        Sent { number: n, items: Items::One(Item::Config), bytes: 1, at: Time(0), hedged: false }
    }

    #[test]
    fn acknowledged_records_are_taken_and_overtaken_ones_are_lost() {
        let mut q: VecDeque<Sent> = (0..10).map(sent).collect();
        let a = take_acked(&mut q, &[(6, 7), (0, 1)]);
        assert_eq!(a.iter().map(|s| s.number).collect::<Vec<_>>(), [0, 1, 6, 7]);
        let l = take_lost(&mut q, 7);
        assert_eq!(l.iter().map(|s| s.number).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(q.iter().map(|s| s.number).collect::<Vec<_>>(), [5, 8, 9]);
    }
}
