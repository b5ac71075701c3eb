//! What goes out: datagrams built from what waits, frames cut for streams, half-written frames brought to their end.
//!
//! Control goes first, always, and does not count against the window (hazard H4c). Small messages ride as datagrams on the
//! primary path; everything bigger is pulled by the streams (or goes as datagrams of another channel, `bulk`), each fragment by the one on which it is expected to finish
//! first (`sched`). A frame that was begun is finished, with zeros and ABORT if its memory was given back (hazard H1).

use super::Engine;
use crate::event::Witness;
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::sent::{Items, Sent};
use crate::message::body::Body;
use crate::message::item::Item;
use crate::message::receiving::Receiving;
use crate::message::tx::TxMsg;
use crate::path::Carry;
use crate::peer::Peer;
use crate::peer::backlog::Queue;
use crate::stream::{Payload, Phase, Stream};
use crate::types::*;
use rerail_wire::ack::{RANGE_BYTES, RANGES_MAX, write_range};
use rerail_wire::frame::{FRAME_HEADER_BYTES, flags, goodbye};
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_wire::{Coverage, FrameHeader, FrameType};
use smallvec::SmallVec;
use std::time::Duration;

/// Ranges in one acknowledgement inside a datagram, so that it never crowds out what it rides on.
const RANGES_TOLD: usize = 12;
/// Messages that a goodbye names as not delivered.
const GOODBYE_LIST_MAX: usize = 64;
/// Vfrag masks in one datagram.
const VACKS_MAX: usize = 4;

impl Engine {
    /// The next datagram to be sent, if there is one.
    pub fn poll_datagram(&mut self, now: Time, out: &mut Datagram) -> bool {
        self.tick(now);
        if self.collectives.has_settled() {
            self.run_collectives(now);
        }
        while let Some(peer) = self.output.due_datagram() {
            let built = self.build_datagram(peer, out);
            let p = &mut self.peers[peer];
            // a peer that has nothing more, as a rule, is not looked at again
            if !built || p.is_quiet(self.clock.now()) {
                self.output.no_datagram(&mut p.dirty);
            }
            if built {
                self.counters.datagrams_sent += 1;
                return true;
            }
        }
        match self.output.next_datagram() {
            Some(d) => {
                *out = d;
                self.counters.datagrams_sent += 1;
                true
            }
            None => false,
        }
    }

    fn build_datagram(&mut self, peer: PeerId, out: &mut Datagram) -> bool {
        let now = self.clock.now();
        let p = &self.peers[peer];
        if p.gone().is_some_and(crate::peer::Gone::is_final) {
            return false;
        }
        // acknowledgements first, each on its own path if that works
        let mut homeless = false;
        for (i, path) in p.paths.iter().enumerate() {
            if path.acks_are_due(now) {
                if path.acks_usable() {
                    return self.fill_datagram(peer, i, out);
                }
                homeless = true;
            }
            homeless |= path.old_acks_are_due(now);
        }
        let waits = p.backlog.has_small();
        if !waits && !homeless && !p.backlog.has_control() {
            return false;
        }
        let Some(best) = best_datagram_path(p) else { return false };
        if homeless || p.backlog.has_control() {
            return self.fill_datagram(peer, best, out);
        }
        if waits {
            let usual = self.small_path(peer, best);
            let p = &self.peers[peer];
            let from = usual.unwrap_or(best);
            let instead = p.backlog.first(Queue::Resend).and_then(|item| p.datagram_path_instead(item, from));
            if let Some(i) = instead.or(usual) {
                return self.fill_datagram(peer, i, out);
            }
        }
        false
    }

    /// Builds one datagram on a path. False when there was nothing to put into it.
    fn fill_datagram(&mut self, peer: PeerId, index: usize, out: &mut Datagram) -> bool {
        let now = self.clock.now();
        let max = self.peers[peer].paths[index].datagrams.bytes_max();
        let b = &mut out.bytes;
        b.clear();
        b.extend_from_slice(&[0; PACKET_HEADER_BYTES]);
        self.put_acks(peer, index, max, b);
        let mut items = SmallVec::<[Item; 2]>::new();
        let mut bytes = 0;
        let has_window = self.peers[peer].paths[index].lane.datagrams().has_window();
        let control_first = self.remedies.control_first();
        let turns = match control_first {
            true => [Queue::Control, Queue::Resend, Queue::Small],
            false => [Queue::Small, Queue::Resend, Queue::Control],
        };
        let mut turn = 0;
        while turn < 3 {
            let p = &mut self.peers[peer];
            let queue = turns[turn];
            if (turn > 0 || !control_first) && !has_window {
                break;
            }
            let Some(&item) = p.backlog.first(queue) else {
                turn += 1;
                continue;
            };
            // nearly all there ever is, and looked up once
            if let (Item::Eager { seq }, Queue::Small, true) = (item, queue, control_first) {
                match put_eager(p, seq, max, b) {
                    Put::Done(len) => {
                        p.backlog.take(queue);
                        bytes += len;
                        items.push(item);
                        continue;
                    }
                    Put::NotNeeded => {
                        p.backlog.take(queue);
                        continue;
                    }
                    Put::NoRoom => {}
                }
            }
            if !p.needs(&item) {
                p.backlog.take(queue);
                continue;
            }
            if queue == Queue::Resend && p.datagram_path_instead(&item, index).is_some() {
                turn += 1;
                continue;
            }
            let len = self.item_len(peer, &item);
            if b.len() + FRAME_HEADER_BYTES + len > max {
                if items.is_empty() && b.len() == PACKET_HEADER_BYTES {
                    // it fits no datagram of this path (the path's limit fell): announce it instead
                    self.peers[peer].backlog.take(queue);
                    self.too_long(peer, item);
                    continue;
                }
                break;
            }
            self.peers[peer].backlog.take(queue);
            self.put_item(peer, &item, b);
            if item == Item::Goodbye {
                self.peers[peer].farewell.goes_out(now);
            }
            bytes += len;
            items.push(item);
        }
        if b.len() == PACKET_HEADER_BYTES {
            return false;
        }
        let coverage = self.coverage_out(peer, index);
        let p = &mut self.peers[peer];
        let cid = p.cid_out();
        let path = &mut p.paths[index];
        let number = path.lane.datagrams_mut().take_number();
        out.rail = path.rail();
        out.to = path.remote();
        PacketHeader {
            cid,
            kind: PacketKind::Data,
            path: path.id().0,
            epoch: path.epoch().0,
            number,
            flags: 0,
            entries: 0,
            coverage,
        }
        .seal(&mut out.bytes);
        if !items.is_empty() {
            let items = if let [one] = items[..] { Items::One(one) } else { Items::Many(items.into_vec()) };
            path.lane.datagrams_mut().record(Sent::new(number, items, bytes as u32, now));
            path.sent(bytes as u64);
            p.sent(bytes as u64);
            self.counters.bytes_sent += bytes as u64;
            let late = now + self.peers[peer].paths[index].patience(self.options.ack_timeout);
            self.schedule(peer, late);
        }
        true
    }

    fn too_long(&mut self, peer: PeerId, item: Item) {
        let p = &mut self.peers[peer];
        match item {
            Item::Eager { .. } | Item::Frag { .. } => p.backlog.repeat_bulk(item, false),
            _ => {}
        }
        self.mark_streams(peer);
    }

    /// Puts acknowledgements into a datagram on path `index`: its own, and those of paths that cannot carry theirs.
    fn put_acks(&mut self, peer: PeerId, index: usize, max: usize, b: &mut Vec<u8>) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        for i in 0..p.paths.len() {
            let usable = p.paths[i].acks_usable();
            let path = &mut p.paths[i];
            let (id, epoch) = (path.id(), path.epoch());
            for (k, lane) in (0..).map(LaneId).zip(path.lanes_mut()) {
                let number = lane.connection().number() as u16;
                let acks = lane.acks_mut();
                if i == index || !usable {
                    let at = (id, epoch, k);
                    if acks.of(Channel::Datagram).rides(now) {
                        let rx = acks.of_mut(Channel::Datagram);
                        put_ack(b, max, at, Channel::Datagram, 0, rx, now);
                    }
                    if acks.of(Channel::Stream).due().is_some() {
                        let rx = acks.of_mut(Channel::Stream);
                        put_ack(b, max, at, Channel::Stream, number, rx, now);
                    }
                    if acks.bulk_due().is_some() {
                        put_ack(b, max, at, Channel::Bulk, 0, acks.of_mut(Channel::Bulk), now);
                    }
                }
                if let Some((epoch, d, number, s)) = acks.over_mut() {
                    let at = (id, epoch, k);
                    if d.due().is_some() {
                        put_ack(b, max, at, Channel::Datagram, 0, d, now);
                    }
                    if s.due().is_some() {
                        put_ack(b, max, at, Channel::Stream, number, s, now);
                    }
                }
            }
        }
        if p.incoming.receiving_count() == 0 || b.len() == PACKET_HEADER_BYTES {
            return;
        }
        let room = max.saturating_sub(b.len()) / FRAME_HEADER_BYTES;
        p.incoming.tell_masks(room.min(VACKS_MAX), |seq, vfrag, mask| {
            put_header(b, &FrameHeader { seq, a: vfrag, b: mask, ..FrameHeader::new(FrameType::Vack) });
        });
    }

    /// Payload bytes of an item's frame.
    fn item_len(&self, peer: PeerId, item: &Item) -> usize {
        match item {
            Item::Eager { seq } => sent(&self.peers[peer], *seq).envelope().total as usize,
            Item::Frag { len, .. } => *len as usize,
            Item::Config => self.node_config().to_bytes().len(),
            Item::Goodbye => self.item_header(peer, item).len as usize,
            _ => 0,
        }
    }

    pub(crate) fn node_config(&self) -> rerail_wire::config::NodeConfig {
        use rerail_wire::config::{NodeConfig, RailConfig};
        NodeConfig {
            host: self.host,
            boot: self.boot,
            rails: self
                .rails
                .iter()
                .enumerate()
                .map(|(i, r)| RailConfig {
                    kind: r.kind().0,
                    port: self.rails.port(i),
                    lanes: self.lanes_of_rail(r),
                    datagram_bytes: r.datagram_bytes_max,
                    speed_mbps: r.speed_mbps,
                    checksum: self.checksum_wish(r),
                    name: r.name.clone(),
                })
                .collect(),
        }
    }

    fn goodbye_list(&self, peer: PeerId) -> Vec<u8> {
        let incoming = &self.peers[peer].incoming;
        let listed = incoming.undelivered().count() <= GOODBYE_LIST_MAX;
        let missing = incoming.undelivered().filter(|_| listed);
        let unmatched = incoming.unmatched().unwrap_or_default().iter().copied();
        missing.chain(unmatched).flat_map(u64::to_le_bytes).collect()
    }

    fn goodbye_header(&self, peer: PeerId) -> FrameHeader {
        let p = &self.peers[peer];
        let missing = p.incoming.undelivered().count();
        let (listed, unmatched) = (missing <= GOODBYE_LIST_MAX, p.incoming.unmatched());
        let count = unmatched.map_or(0, <[u64]>::len);
        let mut x = if listed { 0 } else { goodbye::MISSING_UNLISTED };
        x |= if unmatched.is_some() { 0 } else { goodbye::UNMATCHED_UNLISTED };
        FrameHeader {
            a: p.outgoing.next(),
            b: p.incoming.next(),
            total: count as u64,
            len: 8 * (count + if listed { missing } else { 0 }) as u32,
            x,
            ..FrameHeader::new(FrameType::Goodbye)
        }
    }

    /// Header of an item's frame.
    fn item_header(&self, peer: PeerId, item: &Item) -> FrameHeader {
        let p = &self.peers[peer];
        match *item {
            Item::Eager { seq } => {
                let m = sent(p, seq);
                m.envelope().header(seq, true, m.delivery())
            }
            Item::Rts { seq } => {
                let m = sent(p, seq);
                m.envelope().header(seq, false, m.delivery())
            }
            Item::Cts { seq } => {
                // a message that is done is granted nothing more
                let total = p.incoming.receiving(seq).map_or(0, Receiving::granted);
                FrameHeader { seq, total, ..FrameHeader::new(FrameType::Cts) }
            }
            Item::Over { seq } => FrameHeader { seq, x: 1, ..FrameHeader::new(FrameType::Cts) },
            Item::Refuse { seq } => FrameHeader { seq, ..FrameHeader::new(FrameType::Refuse) },
            Item::Reject { seq, taken } => {
                FrameHeader { seq, x: u32::from(!taken), ..FrameHeader::new(FrameType::Reject) }
            }
            Item::Withdraw { seq } => FrameHeader { seq, ..FrameHeader::new(FrameType::Withdraw) },
            Item::Frag { seq, at, len } => {
                FrameHeader { seq, a: at, len, ..FrameHeader::new(FrameType::Frag) }
            }
            Item::Verdict { path, epoch, witness } => {
                let corruption = p.path_index(path).filter(|_| witness == Witness::Corruption);
                let now = self.clock.now();
                let (held, faults) = corruption.map_or((Duration::ZERO, 0), |i| {
                    (p.paths[i].retry.held(now), p.paths[i].integrity.faults())
                });
                FrameHeader {
                    aux: path.0,
                    a: u64::from(epoch.0),
                    b: held.as_millis() as u64,
                    total: faults,
                    x: witness as u32,
                    ..FrameHeader::new(FrameType::Verdict)
                }
            }
            Item::Key { seq, path, key } => {
                let total = p.incoming.receiving(seq).map_or(0, Receiving::granted);
                let (a, b) = key.words();
                FrameHeader { seq, aux: path.0, a, b, total, ..FrameHeader::new(FrameType::Key) }
            }
            Item::Fence { lane } => lane.header(FrameType::Fence),
            Item::Fenced { lane } => lane.header(FrameType::Fenced),
            Item::Leave { lane } => lane.header(FrameType::Leave),
            Item::Left { lane } => lane.header(FrameType::Left),
            Item::Config => {
                FrameHeader { len: self.item_len(peer, item) as u32, ..FrameHeader::new(FrameType::Config) }
            }
            Item::Goodbye => self.goodbye_header(peer),
        }
    }

    /// Appends an item's frame, payload included, to a datagram.
    fn put_item(&self, peer: PeerId, item: &Item, b: &mut Vec<u8>) {
        let h = self.item_header(peer, item);
        put_header(b, &h);
        match *item {
            Item::Eager { seq } => {
                let m = sent(&self.peers[peer], seq);
                m.body().gather(0, m.envelope().total as usize, b);
            }
            Item::Frag { seq, at, len } => {
                sent(&self.peers[peer], seq).body().gather(at as usize, len as usize, b);
            }
            Item::Config => b.extend_from_slice(&self.node_config().to_bytes()),
            Item::Goodbye => b.extend_from_slice(&self.goodbye_list(peer)),
            _ => {}
        }
    }

    // ---- streams -----------------------------------------------------------------------------------------------

    /// What is to be written next on a stream; false: nothing. [`Engine::stream_tx_done`] must follow before any other call
    /// of the engine.
    pub fn stream_tx_window(&mut self, stream: StreamId, window: &mut Window, now: Time) -> bool {
        self.tick(now);
        window.clear();
        let Some(s) = self.streams.get(stream) else { return false };
        if s.phase() == Phase::Closing || s.phase() == Phase::Connecting {
            return false;
        }
        if s.has_preamble() {
            let rest = s.opening().preamble();
            window.push(rest.as_ptr(), rest.len());
            return true;
        }
        if s.phase() != Phase::Attached {
            return false;
        }
        self.settle_frames(stream);
        self.fill_stream(stream);
        let s = self.streams.get_mut(stream).expect("looked up above");
        let Some((peer, _)) = s.peer() else { return false };
        let p = &self.peers[peer];
        let body = |seq| p.outgoing.body(seq).expect("settled frames have their memory");
        let lend = |seq| {
            self.counters.pieces_placed += 1;
            self.loans.lend(peer, seq, stream)
        };
        let some = s.offer(window, body, lend);
        #[cfg(feature = "planted-bugs")]
        if !self.remedies.notices_follow_writes() {
            self.loans.hold_back(stream, window);
        }
        some
    }

    /// Frames whose memory was given back: those not begun are dropped, the one that was is brought to its end with zeros
    /// and ABORT (hazard H1).
    fn settle_frames(&mut self, stream: StreamId) {
        let s = self.streams.get_mut(stream).expect("the caller has looked it up");
        let Some((peer, _)) = s.peer() else { return };
        let p = &self.peers[peer];
        let is_gone = |seq| p.outgoing.body(seq).is_none_or(|b| matches!(b, Body::Withdrawn));
        s.settle(|item| p.needs(item), is_gone);
    }

    /// Cuts frames for a stream from what waits for its peer.
    fn fill_stream(&mut self, stream: StreamId) {
        loop {
            let s = &self.streams[stream];
            let Some((peer, name)) = s.link() else { return };
            let (path, lane) = (name.path(), name.lane());
            if s.outbox().is_filled() {
                return;
            }
            let Some(index) = self.peers[peer].path_index(path) else { return };
            if self.peers[peer].gone().is_some_and(crate::peer::Gone::is_final) {
                return;
            }
            if !self.peers[peer].paths[index].acks_usable() || best_datagram_path(&self.peers[peer]).is_none()
            {
                if self.frame_acks(stream, peer, index) {
                    continue;
                }
                if best_datagram_path(&self.peers[peer]).is_none() {
                    if let Some(item) = self.next_small(peer) {
                        self.cut(stream, peer, item, false);
                        continue;
                    }
                }
            }
            match self.next_bulk(peer, index, lane, Carry::Streams) {
                Some((item, hedged)) => self.cut(stream, peer, item, hedged),
                None => return,
            }
        }
    }

    /// Next control or small item, for a peer that no datagram reaches.
    fn next_small(&mut self, peer: PeerId) -> Option<Item> {
        loop {
            let p = &mut self.peers[peer];
            let item = p.backlog.take_any()?;
            if p.needs(&item) {
                return Some(item);
            }
        }
    }

    /// Acknowledgements as frames of a stream, for a path that no datagram passes.
    fn frame_acks(&mut self, stream: StreamId, peer: PeerId, index: usize) -> bool {
        let now = self.clock.now();
        let mut b = Vec::new();
        let path = &mut self.peers[peer].paths[index];
        let (id, epoch) = (path.id(), path.epoch());
        let due = (0..).map(LaneId).zip(path.lanes_mut()).find(|(_, lane)| lane.acks().are_due(now));
        let Some((k, lane)) = due else { return false };
        let number = lane.connection().number() as u16;
        let acks = lane.acks_mut();
        let (channel, number) = if acks.of(Channel::Stream).is_due(now) {
            (Channel::Stream, number)
        } else if acks.of(Channel::Datagram).is_due(now) {
            (Channel::Datagram, 0)
        } else {
            (Channel::Bulk, 0)
        };
        put_ack(&mut b, 4096, (id, epoch, k), channel, number, acks.of_mut(channel), now);
        let h = FrameHeader::parse(&b).expect("we wrote it");
        let payload = b.split_off(FRAME_HEADER_BYTES);
        self.push_frame(stream, h, None, Payload::Owned(payload), false);
        true
    }

    /// Answers a query that came on a stream, on that stream.
    pub(crate) fn stream_pong(&mut self, sid: StreamId, id: u64, padding: &[u8]) {
        let n = self.answer_padding(sid, padding.len());
        let h = FrameHeader { a: id, len: n as u32, ..FrameHeader::new(FrameType::Pong) };
        self.push_frame(sid, h, None, Payload::Owned(padding[..n].to_vec()), false);
        self.mark_stream(sid);
    }

    /// Sends a query over a stream, with so many bytes of padding.
    pub(crate) fn stream_ping(&mut self, sid: StreamId, id: u64, padding: usize) {
        let mut h = FrameHeader { a: id, len: padding as u32, ..FrameHeader::new(FrameType::Ping) };
        if let Some((peer, path)) = self.streams[sid].peer() {
            if self.peers[peer].path_index(path).is_some_and(|index| self.tells_blocked(peer, index)) {
                h.flags |= flags::NO_DATAGRAMS;
            }
        }
        let mut bytes = vec![0; padding];
        crate::path::integrity::padding(id, &mut bytes);
        self.push_frame(sid, h, None, Payload::Owned(bytes), false);
        self.mark_stream(sid);
    }

    fn cut(&mut self, stream: StreamId, peer: PeerId, item: Item, hedged: bool) {
        if item == Item::Goodbye {
            self.peers[peer].farewell.goes_out(self.clock.now());
        }
        let mut h = self.item_header(peer, &item);
        let mut placed = None;
        if self.is_unprotected(peer, &item) {
            h.flags |= flags::UNPROTECTED;
        } else if let Item::Frag { seq, at, len } = item {
            let path = self.streams[stream].peer().and_then(|(_, path)| self.peers[peer].path_index(path));
            let summed =
                path.is_some_and(|index| self.coverage_out(peer, index).sums_payload(FrameType::Frag));
            if let Some((payload, x)) = self.to_be_placed(stream, seq, at, len, summed) {
                let total = u64::from(len);
                h = FrameHeader { seq, a: at, total, x, ..FrameHeader::new(FrameType::Placed) };
                placed = Some(payload);
            }
        }
        if placed.is_none() {
            self.goes_as_a_copy(peer, &item);
        }
        let payload = placed.unwrap_or_else(|| match item {
            Item::Eager { seq } => Payload::Message { seq, at: 0 },
            Item::Frag { seq, at, len } => match self.peers[peer].outgoing.get(seq) {
                // registered memory may change between the sum and the bytes, and the fault would count against the
                // path
                Some(m) if m.is_read() && self.remedies.reads_are_copied() => {
                    let mut copy = Vec::with_capacity(len as usize);
                    m.body().gather(at as usize, len as usize, &mut copy);
                    Payload::Owned(copy)
                }
                _ => Payload::Message { seq, at },
            },
            Item::Config => Payload::Owned(self.node_config().to_bytes()),
            Item::Goodbye => Payload::Owned(self.goodbye_list(peer)),
            _ => Payload::Owned(Vec::new()),
        });
        self.push_frame(stream, h, Some(item), payload, hedged);
    }

    fn push_frame(
        &mut self,
        stream: StreamId,
        h: FrameHeader,
        item: Option<Item>,
        payload: Payload,
        hedged: bool,
    ) {
        let Some((peer, path)) = self.streams.get(stream).and_then(Stream::peer) else { return };
        let coverage =
            self.peers[peer].path_index(path).map_or(Coverage::Full, |index| self.coverage_out(peer, index));
        let Some(s) = self.streams.get_mut(stream) else { return };
        s.push(&h, coverage, item, payload, hedged);
    }

    /// `bytes` of the window were taken; fewer than offered: the stream is full until [`Engine::stream_writable`].
    pub fn stream_tx_done(&mut self, stream: StreamId, bytes: usize, now: Time) {
        self.tick(now);
        self.streams.expect(stream);
        let now = self.clock.now();
        let Some(s) = self.streams.get_mut(stream) else { return };
        if s.has_preamble() {
            if s.wrote_preamble(bytes) {
                self.mark_stream(stream);
            }
            return;
        }
        let Some((peer, id)) = s.peer() else { return };
        let mut delivered = Vec::new();
        let sent = s.wrote(bytes, now, &mut delivered);
        let more = !s.outbox().is_full();
        self.counters.bytes_sent += sent;
        let p = &mut self.peers[peer];
        p.sent(sent);
        if let Some(path) = p.paths.iter_mut().find(|path| path.id() == id) {
            path.sent(sent);
        }
        if more && bytes > 0 {
            self.mark_stream(stream);
        }
        for item in delivered {
            // the kernel has it, and no acknowledgement will come
            self.item_acked(peer, item);
        }
        self.schedule(peer, now + self.options.ack_timeout);
    }

    /// A stream that was full takes bytes again.
    pub fn stream_writable(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get_mut(stream) {
            s.becomes_writable();
            if self.remedies.writable_resumes() {
                self.mark_stream(stream);
            }
        }
    }
}

/// The message of an item that is still needed.
fn sent(p: &Peer, seq: u64) -> &TxMsg {
    p.outgoing.get(seq).expect("a needed item has its message")
}

/// Appends a frame's header.
#[inline]
fn put_header(b: &mut Vec<u8>, h: &FrameHeader) {
    // Written in its place: a copy would wait for the bytes that were written one by one.
    let at = b.len();
    b.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    h.write(&mut b[at..]);
}

/// What became of an eager message that was to go into a datagram.
enum Put {
    /// It is in it, with so many bytes of payload.
    Done(usize),
    /// It has arrived, or was announced in the meantime.
    NotNeeded,
    NoRoom,
}

/// Appends the frame of an eager message to a datagram of at most `max` bytes.
fn put_eager(p: &Peer, seq: u64, max: usize, b: &mut Vec<u8>) -> Put {
    let Some(m) = p.outgoing.get(seq).filter(|m| m.is_eager()) else { return Put::NotNeeded };
    let len = m.envelope().total as usize;
    if b.len() + FRAME_HEADER_BYTES + len > max {
        return Put::NoRoom;
    }
    put_header(b, &m.envelope().header(seq, true, m.delivery()));
    m.body().gather(0, len, b);
    Put::Done(len)
}

/// Path for control and small messages: the primary one, or whatever works.
#[inline]
fn best_datagram_path(p: &Peer) -> Option<usize> {
    if let Some(i) = p.primary() {
        if p.paths[i].datagrams_usable() && p.paths[i].health() == Health::Up {
            return Some(i);
        }
    }
    let usable =
        |h: Health| (0..p.paths.len()).find(|&i| p.paths[i].datagrams_usable() && p.paths[i].health() == h);
    usable(Health::Up).or_else(|| usable(Health::Suspect))
}

#[allow(clippy::too_many_arguments)] // one place, and a struct for it would be named after it
fn put_ack(
    b: &mut Vec<u8>,
    max: usize,
    (path, epoch, lane): (PathId, Epoch, LaneId),
    channel: Channel,
    stream_number: u16,
    rx: &mut crate::lane::acks::AckState,
    now: Time,
) {
    let Some(largest) = rx.largest() else {
        rx.told();
        return;
    };
    if b.len() + FRAME_HEADER_BYTES > max {
        return;
    }
    let at = b.len();
    b.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    let mut first = 0;
    let mut below = None::<u64>;
    let mut told = 0;
    for (low, high) in rx.ranges() {
        match below {
            None => first = (high - 1 - low).min(u64::from(u32::MAX)) as u32,
            Some(prev_low) => {
                if told == RANGES_TOLD.min(RANGES_MAX) || b.len() + RANGE_BYTES > max {
                    break;
                }
                let (Ok(gap), Ok(len)) = (u32::try_from(prev_low - high), u32::try_from(high - low)) else {
                    break;
                };
                let end = b.len();
                b.resize(end + RANGE_BYTES, 0);
                write_range(&mut b[end..], gap, len);
                told += 1;
            }
        }
        below = Some(low);
    }
    let h = FrameHeader {
        aux: stream_number,
        a: largest,
        b: u64::from(epoch.0) << 32 | u64::from(lane.0) << 24 | (channel as u64) << 16 | u64::from(path.0),
        total: now.since(rx.largest_at()).as_micros() as u64,
        len: (told * RANGE_BYTES) as u32,
        x: first,
        ..FrameHeader::new(FrameType::Ack)
    };
    h.write(&mut b[at..]);
    rx.told();
}
