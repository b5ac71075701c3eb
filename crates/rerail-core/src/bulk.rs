//! Bulk as datagrams: the third channel of a path, used where TCP is blocked, or when the user wants it (`bulk`).
//!
//! A path takes fragments from the scheduler as a stream does (`sched`), cuts them into pieces that fill a datagram, and
//! sends them in trains: several datagrams of one length, which the kernel takes in one call. Packet numbers, window and
//! acknowledgements are the channel's own, so that small messages and control never wait behind bulk (hazard H4c).
//! Owns: pieces that were taken and not sent, records of those that were sent and not acknowledged.
//! Invariants: `bytes_in_flight` is the sum of the records; a lost piece is queued again on its own path as long as that
//! works. Sources: RFC 9002 (losses by packet number; differs: a timer only starts a query, hazard H3), RFC 9438 and RFC 9406
//! (`congestion`), RFC 9002 §7.7 (`pacing`).

use crate::congestion::{Acked, Cubic};
use crate::engine::Engine;
use crate::engine::deliver::Taken;
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::acks::ACK_DELAY;
use crate::lane::sent::REORDER_PACKETS;
use crate::message::item::Item;
use crate::options::BulkMode;
use crate::pacing::Pacer;
use crate::path::Carry;
use crate::path::STREAMLESS_PATIENCE;
use crate::peer::{Gone, Peer};
use crate::ranges::RangeSet;
use crate::rate::Rtt;
use crate::types::*;
use rerail_wire::bulk::{BULK_HEADER_BYTES, BulkHeader};
use rerail_wire::packet::{ACK_NOW, PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_wire::{FrameHeader, FrameType};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of a train, its headers included: what one UDP datagram over IPv4 may have, because the kernel is given it as one.
const TRAIN_BYTES_MAX: usize = 65_000;
/// Datagrams of a train: what every kernel cuts.
const TRAIN_DATAGRAMS_MAX: usize = 60;
/// Zeros that a piece may be filled up with to be as long as its neighbours.
const FILLING_MAX: usize = 64;
/// The sender asks for an acknowledgement when this share of its window went out since it last did.
const ASK_SHARE: u64 = 8;
/// It asks at the latest after this many bytes: the sender's picture is never older.
const ASK_BYTES_MAX: u64 = 48 * 1024;
/// Datagrams after which the receiver acknowledges unasked.
const ACK_DATAGRAMS: u32 = 64;
/// When the buffers of this host are full, the next attempt is made after this time: a train leaves a fast rail in less.
const FULL_PAUSE: Duration = Duration::from_micros(150);
/// The same when the rail refuses.
const BROKEN_PAUSE: Duration = Duration::from_millis(2);
/// Without an acknowledgement for this long at least, the path is asked whether the last datagrams are lost.
const TAIL_PATIENCE: Duration = Duration::from_millis(1);
/// Such questions without anything acknowledged in between; then the query goes on at its own pace.
const TAIL_PROBES_MAX: u32 = 3;
/// In flight this much counts as a backlog for the measurement of the rate, when the window was used up.
const BACKLOG_BYTES: u64 = 128 * 1024;
/// Records of datagrams that were given up are kept until this many numbers later.
const GIVEN_UP_AGE: u64 = 2048;
/// So many of them at most.
const GIVEN_UP_MAX: usize = 512;
/// Overtakings that are waited for at most, in datagrams: longer, a loss would stop the window.
const OVERTAKEN_MAX: u64 = 96;

/// Bytes of a message that wait to go out on one path.
#[derive(Debug, Clone, Copy)]
struct Part {
    seq: u64,
    at: u64,
    len: u32,
    /// Sent before, here or elsewhere.
    again: bool,
    /// A copy went over another path.
    hedged: bool,
}

/// A datagram that is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Record {
    seq: u64,
    at: u64,
    len: u32,
    /// Of the whole datagram.
    bytes: u32,
    sent: Time,
    again: bool,
    hedged: bool,
}

impl Record {
    fn part(&self) -> Part {
        Part { seq: self.seq, at: self.at, len: self.len, again: true, hedged: self.hedged }
    }
}

/// The bulk datagrams of one path in one epoch. Most paths never send one, and have nothing in memory for them.
#[derive(Debug, Clone)]
pub(crate) struct Bulk {
    /// When the epoch began, and bytes of a datagram then.
    begun: Time,
    first: u16,
    /// The largest and the latest size that datagrams had since.
    largest: u16,
    latest: u16,
    flow: Option<Box<Flow>>,
}

/// Bytes of a datagram, which UDP gives 16 bits.
fn size(datagram_bytes: usize) -> u16 {
    u16::try_from(datagram_bytes).expect("a datagram has fewer than 65536 bytes")
}

impl Bulk {
    pub fn new(datagram_bytes: usize, now: Time) -> Self {
        let first = size(datagram_bytes);
        Self { begun: now, first, largest: first, latest: first, flow: None }
    }

    /// What is sent, as if it had been there since the epoch began.
    fn flow(&mut self) -> &mut Flow {
        let (begun, [first, largest, latest]) =
            (self.begun, [self.first, self.largest, self.latest].map(usize::from));
        self.flow.get_or_insert_with(|| {
            let mut f = Flow::new(first, begun);
            f.congestion.resize(largest);
            f.congestion.resize(latest);
            Box::new(f)
        })
    }

    /// Gives the memory back if nothing was sent in this epoch, and nothing waits.
    pub fn rest(&mut self) {
        if self.flow.as_ref().is_some_and(|f| f.is_unused()) {
            self.flow = None;
        }
    }

    /// Bytes that wait or travel.
    pub fn backlog(&self) -> u64 {
        self.flow.as_ref().map_or(0, |f| f.queued_bytes + f.bytes_in_flight)
    }

    /// Bytes that may travel, that do, and that wait, for a person.
    pub fn describe(&self) -> Option<(u64, u64, u64)> {
        self.flow.as_ref().map(|f| (f.congestion.window(), f.bytes_in_flight, f.queued_bytes))
    }

    /// When the oldest datagram that is not acknowledged went out.
    pub fn oldest(&self) -> Option<Time> {
        self.flow.as_ref().and_then(|f| f.oldest())
    }

    /// When the path is to be asked about the last datagrams, if nothing is acknowledged before.
    pub fn tail_at(&self) -> Option<Time> {
        self.flow.as_ref().and_then(|f| f.tail_at())
    }

    /// It is being asked.
    pub fn tail_asked(&mut self, now: Time) {
        self.flow().tail_asked(now);
    }

    /// Datagrams have another size from now on.
    pub fn resize(&mut self, datagram_bytes: usize) {
        self.latest = size(datagram_bytes);
        self.largest = self.largest.max(self.latest);
        if let Some(f) = &mut self.flow {
            f.congestion.resize(datagram_bytes);
        }
    }

    /// When a train may go.
    pub fn wake_at(&self) -> Option<Time> {
        self.flow.as_ref().and_then(|f| f.wake_at)
    }
}

/// See [`Bulk`].
#[derive(Debug, Clone)]
struct Flow {
    queue: VecDeque<Part>,
    queued_bytes: u64,
    number_next: u64,
    /// Number of the first record.
    base: u64,
    records: VecDeque<Option<Record>>,
    bytes_in_flight: u64,
    congestion: Cubic,
    pacer: Pacer,
    rtt: Rtt,
    /// Bytes that went out since an acknowledgement was last asked for.
    unasked: u64,
    /// The buffers of this host are full until then, as far as is known.
    full_until: Option<Time>,
    /// When a train may go that may not now.
    wake_at: Option<Time>,
    /// When something last went out or was acknowledged.
    progress_at: Time,
    tail_probes: u32,
    /// Records that were given up, and may have been overtaken only.
    given_up: VecDeque<(u64, Record)>,
    /// Of the last reduction of the window: datagrams that made it, and those of them that arrived after all.
    mistaken: (u32, u32),
    /// A datagram is lost when one sent this many later was acknowledged.
    overtaken: u64,
}

impl Flow {
    fn new(datagram_bytes: usize, now: Time) -> Self {
        Self {
            queue: VecDeque::new(),
            queued_bytes: 0,
            number_next: 0,
            base: 0,
            records: VecDeque::new(),
            bytes_in_flight: 0,
            congestion: Cubic::new(datagram_bytes),
            pacer: Pacer::new(now),
            rtt: Rtt::default(),
            unasked: 0,
            full_until: None,
            wake_at: None,
            progress_at: now,
            tail_probes: 0,
            given_up: VecDeque::new(),
            mistaken: (0, 0),
            overtaken: REORDER_PACKETS,
        }
    }

    /// When the oldest datagram that is not acknowledged went out.
    fn oldest(&self) -> Option<Time> {
        self.records.front().and_then(Option::as_ref).map(|r| r.sent)
    }

    /// When the path is to be asked about the last datagrams, if nothing is acknowledged before.
    fn tail_at(&self) -> Option<Time> {
        let patience = self.rtt.patience(TAIL_PATIENCE) * (1 << self.tail_probes);
        (!self.records.is_empty() && self.tail_probes < TAIL_PROBES_MAX).then(|| self.progress_at + patience)
    }

    fn tail_asked(&mut self, now: Time) {
        self.tail_probes += 1;
        self.progress_at = now;
    }

    /// Whether it is as new, so that a new one would do the same.
    fn is_unused(&self) -> bool {
        let nothing = self.number_next == 0 && self.unasked == 0 && self.queue.is_empty();
        nothing && self.full_until.is_none() && self.wake_at.is_none() && self.tail_probes == 0
    }

    fn queue_front(&mut self, p: Part) {
        self.queued_bytes += u64::from(p.len);
        self.queue.push_front(p);
    }

    fn queue_back(&mut self, p: Part) {
        self.queued_bytes += u64::from(p.len);
        self.queue.push_back(p);
    }

    fn pop(&mut self) -> Option<Part> {
        let p = self.queue.pop_front()?;
        self.queued_bytes -= u64::from(p.len);
        Some(p)
    }

    /// Forgets records that are settled.
    fn trim(&mut self) {
        while let Some(None) = self.records.front() {
            self.records.pop_front();
            self.base += 1;
        }
    }

    fn settle(&mut self, number: u64) -> Option<Record> {
        let i = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let r = self.records.get_mut(i)?.take()?;
        self.bytes_in_flight -= u64::from(r.bytes);
        Some(r)
    }

    /// Takes out the acknowledged records, with their numbers.
    fn take_acked(&mut self, ranges: &[(u64, u64)]) -> Vec<(u64, Record)> {
        let mut acked = Vec::new();
        for &(low, high) in ranges {
            for n in low.max(self.base)..=high.min(self.number_next.saturating_sub(1)) {
                acked.extend(self.settle(n).map(|r| (n, r)));
            }
        }
        self.trim();
        acked
    }

    /// Takes out the records that were given up and arrived after all; a network that overtakes is given more time, and a
    /// window that shrank by mistake is given back.
    fn take_overtaken(&mut self, ranges: &[(u64, u64)], largest: u64) -> Vec<Record> {
        if self.given_up.is_empty() {
            return Vec::new();
        }
        let mut arrived = Vec::new();
        self.given_up.retain(|&(n, r)| {
            let here = ranges.iter().any(|&(low, high)| (low..=high).contains(&n));
            if here {
                arrived.push(r);
            }
            !here && n + GIVEN_UP_AGE > largest
        });
        if !arrived.is_empty() {
            self.overtaken = (self.overtaken * 2).min(OVERTAKEN_MAX);
            self.mistaken.1 += arrived.len() as u32;
            if self.mistaken.1 * 2 > self.mistaken.0 {
                self.congestion.undo();
            }
        }
        arrived
    }

    /// Takes out the records below `end`, or of before `sent`.
    fn take_lost(&mut self, end: u64, sent: Time) -> Vec<(u64, Record)> {
        let mut lost = Vec::new();
        while let Some(front) = self.records.front() {
            let n = self.base;
            if let Some(r) = front {
                if n >= end && r.sent >= sent {
                    break;
                }
            }
            lost.extend(self.settle(n).map(|r| (n, r)));
            self.records.pop_front();
            self.base += 1;
        }
        lost
    }

    /// Everything that waits or travels, the pieces of each fragment joined.
    fn drain(&mut self, p: &Peer) -> Vec<Item> {
        let travelling = self.records.drain(..).flatten().map(|r| r.part());
        let all: Vec<Part> = travelling.chain(self.queue.drain(..)).collect();
        self.base = self.number_next;
        (self.queued_bytes, self.bytes_in_flight) = (0, 0);
        join(p, all)
    }
}

/// Pieces as items, those that touch joined as far as one fragment goes.
fn join(p: &Peer, parts: impl IntoIterator<Item = Part>) -> Vec<Item> {
    let mut sets: Vec<((u64, u64), RangeSet)> = Vec::new();
    for part in parts {
        let Some(m) = p.outgoing.get(part.seq) else { continue };
        let key = (part.seq, part.at / u64::from(m.envelope().granule));
        let set = match sets.iter_mut().rev().find(|s| s.0 == key) {
            Some(s) => &mut s.1,
            None => {
                sets.push((key, RangeSet::default()));
                &mut sets.last_mut().expect("just pushed").1
            }
        };
        set.insert(part.at, part.at + u64::from(part.len));
    }
    let mut items = Vec::new();
    for ((seq, _), set) in &sets {
        let from = items.len();
        items.extend(set.newest_first().map(|(low, high)| Item::Frag {
            seq: *seq,
            at: low,
            len: (high - low) as u32,
        }));
        items[from..].reverse();
    }
    items
}

impl Engine {
    /// The bulk carriers of a peer may have something to take.
    pub(crate) fn mark_trains(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        if !p.is_self {
            self.output.trains.add(p.id, &mut p.train_due);
        }
    }

    /// Notes since when which path has no stream although bulk waits.
    fn note_streamless(&mut self, pi: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let waits = !p.bulk.is_empty() || !p.resend_bulk.is_empty() || !p.eager_bulk.is_empty();
        let mut next = None;
        for x in &mut p.paths {
            if x.has_stream() || !x.health.carries() {
                x.streamless_since = None;
            } else if waits || x.streamless_since.is_some() {
                let at = *x.streamless_since.get_or_insert(now) + STREAMLESS_PATIENCE;
                if at > now {
                    next = Some(next.map_or(at, |n: Time| n.min(at)));
                }
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
        while let Some(peer) = self.output.trains.first() {
            let pi = peer.0 as usize;
            if !self.peers[pi].gone.is_some_and(Gone::is_final) {
                self.note_streamless(pi);
                let n = self.peers[pi].paths.len();
                for k in 0..n {
                    let xi = (self.peers[pi].train_turn + k) % n;
                    if self.build_train(pi, xi, out) {
                        self.peers[pi].train_turn = (xi + 1) % n;
                        // other peers have their turn in between
                        self.output.trains.turn();
                        self.counters.trains_sent += 1;
                        self.counters.datagrams_sent += out.len() as u64;
                        return true;
                    }
                }
            }
            self.output.trains.done(&mut self.peers[pi].train_due);
        }
        false
    }

    /// Takes fragments for the bulk datagrams of a path until a train's worth waits.
    fn fill_bulk(&mut self, pi: usize, xi: usize) {
        loop {
            let b = self.peers[pi].paths[xi].lane.bulk_mut().flow();
            if b.queued_bytes >= b.pacer.quantum() {
                return;
            }
            match self.next_bulk(pi, xi, LaneId::FIRST, Carry::Datagrams) {
                Some((item @ Item::Frag { seq, at, len }, hedged)) => {
                    self.goes_as_a_copy(pi, &item);
                    let part = Part { seq, at, len, again: hedged, hedged };
                    self.peers[pi].paths[xi].lane.bulk_mut().flow().queue_back(part);
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
            p.small.push_back(Item::Rts { seq });
            self.mark(PeerId(pi as u32));
        }
    }

    /// Gives what waits for a path that carries no bulk any more to the others.
    fn hand_back(&mut self, pi: usize, xi: usize) {
        let p = &mut self.peers[pi];
        let Some(b) = &mut p.paths[xi].lane.bulk_mut().flow else { return };
        b.wake_at = None;
        if b.queue.is_empty() {
            return;
        }
        b.queued_bytes = 0;
        let parts = std::mem::take(&mut b.queue);
        for i in join(p, parts) {
            self.requeue_item(pi, i, false);
        }
        self.mark_streams(PeerId(pi as u32));
    }

    fn build_train(&mut self, pi: usize, xi: usize, out: &mut Train) -> bool {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        let in_service = x.health == Health::Up || self.takes_bulk(p, xi).is_some();
        if !in_service || !x.datagrams_usable() {
            self.hand_back(pi, xi);
            return false;
        }
        let x = &mut self.peers[pi].paths[xi];
        let b = x.lane.bulk_mut().flow();
        b.wake_at = None;
        if let Some(t) = b.full_until {
            if t > now {
                b.wake_at = Some(t);
                self.schedule(pi, t);
                return false;
            }
            b.full_until = None;
        }
        let room = b.congestion.window().saturating_sub(b.bytes_in_flight);
        let most = x.datagram_bytes_max;
        if room < most as u64 {
            // the next acknowledgement goes on
            return false;
        }
        self.fill_bulk(pi, xi);
        let x = &mut self.peers[pi].paths[xi];
        let b = x.lane.bulk_mut().flow();
        if b.queue.is_empty() {
            return false;
        }
        let want = room.min(b.pacer.quantum()).min(b.queued_bytes.max(1));
        let allowed = match b.pacer.allowance(want, now) {
            Ok(n) => n.min(room).max(most as u64),
            Err(at) => {
                b.wake_at = Some(at);
                self.schedule(pi, at);
                return false;
            }
        };
        self.write_train(pi, xi, allowed as usize, out)
    }

    /// Writes up to `allowed` bytes of datagrams.
    fn write_train(&mut self, pi: usize, xi: usize, allowed: usize, out: &mut Train) -> bool {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let most = p.paths[xi].datagram_bytes_max;
        let piece_max = most - PACKET_HEADER_BYTES - BULK_HEADER_BYTES;
        out.bytes.clear();
        out.segment = 0;
        out.first = p.paths[xi].lane.bulk_mut().flow().number_next;
        let allowed = allowed.min(TRAIN_BYTES_MAX);
        let mut payload = 0;
        while out.len() < TRAIN_DATAGRAMS_MAX {
            let Some(part) = p.paths[xi].lane.bulk_mut().flow().pop() else { break };
            if !p.needs(&Item::Frag { seq: part.seq, at: part.at, len: part.len }) {
                continue;
            }
            // pieces of one part are equally long, so that they make a train
            let pieces = (part.len as usize).div_ceil(piece_max);
            let len = (part.len as usize).div_ceil(pieces);
            let bytes = PACKET_HEADER_BYTES + BULK_HEADER_BYTES + len;
            let segment = if out.segment == 0 { bytes } else { out.segment };
            let fits = bytes <= segment && out.bytes.len() + bytes <= allowed.max(most);
            if !fits {
                p.paths[xi].lane.bulk_mut().flow().queue_front(part);
                break;
            }
            if len < part.len as usize {
                let rest = Part { at: part.at + len as u64, len: part.len - len as u32, ..part };
                p.paths[xi].lane.bulk_mut().flow().queue_front(rest);
            }
            let last_of_its_length = segment - bytes > FILLING_MAX;
            let from = out.bytes.len();
            out.segment = segment;
            out.bytes.resize(from + PACKET_HEADER_BYTES + BULK_HEADER_BYTES, 0);
            BulkHeader { seq: part.seq, at: part.at, len: len as u16 }
                .write(&mut out.bytes[from + PACKET_HEADER_BYTES..]);
            let m = p.outgoing.get(part.seq).expect("looked up above");
            m.body().gather(part.at as usize, len, &mut out.bytes);
            if !last_of_its_length {
                out.bytes.resize(from + segment, 0);
            }
            let whole = (out.bytes.len() - from) as u32;
            let b = p.paths[xi].lane.bulk_mut().flow();
            b.records.push_back(Some(Record {
                seq: part.seq,
                at: part.at,
                len: len as u32,
                bytes: whole,
                sent: now,
                again: part.again,
                hedged: part.hedged,
            }));
            b.number_next += 1;
            b.bytes_in_flight += u64::from(whole);
            payload += len as u64;
            if last_of_its_length {
                break;
            }
        }
        if out.bytes.is_empty() {
            return false;
        }
        let coverage = self.coverage_out(pi, xi);
        let p = &mut self.peers[pi];
        let cid = p.cid_out();
        let x = &mut p.paths[xi];
        (out.rail, out.to, out.path) = (x.rail, x.remote, x.id);
        out.peer = PeerId(pi as u32);
        let b = x.lane.bulk_mut().flow();
        b.pacer.took(out.bytes.len() as u64);
        b.unasked += out.bytes.len() as u64;
        b.progress_at = now;
        let window = b.congestion.window();
        let ask = b.unasked >= (window / ASK_SHARE).min(ASK_BYTES_MAX)
            || b.queue.is_empty()
            || b.bytes_in_flight + most as u64 > window;
        if ask {
            b.unasked = 0;
        }
        let datagrams = out.len();
        for (i, d) in out.bytes.chunks_mut(out.segment).enumerate() {
            PacketHeader {
                cid,
                kind: PacketKind::Bulk,
                path: x.id.0,
                epoch: x.epoch.0,
                number: out.first + i as u64,
                flags: if ask && i + 1 == datagrams { ACK_NOW } else { 0 },
                entries: 0,
                coverage,
            }
            .seal(d);
        }
        x.bytes_sent += payload;
        p.bytes_sent += payload;
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
        let b = p.paths[xi].lane.bulk_mut().flow();
        let keep = train.first + sent as u64;
        let mut payload = 0;
        while b.number_next > keep {
            b.number_next -= 1;
            let Some(r) = b.records.pop_back().flatten() else { continue };
            b.bytes_in_flight -= u64::from(r.bytes);
            b.pacer.give_back(u64::from(r.bytes));
            b.queue_front(Part { again: r.again, ..r.part() });
            payload += u64::from(r.len);
        }
        // the one that asks for an acknowledgement is among them
        b.unasked = ASK_BYTES_MAX;
        let at = now + if broken { BROKEN_PAUSE } else { FULL_PAUSE };
        (b.full_until, b.wake_at) = (Some(at), Some(at));
        p.paths[xi].bytes_sent -= payload;
        p.bytes_sent -= payload;
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
        let clear_only = self.remedies.no_ambiguous_samples();
        let x = &mut self.peers[pi].paths[xi];
        let (bulk, rtt, rate) = x.lane.bulk_and_measures();
        let Some(b) = &mut bulk.flow else { return false };
        if largest >= b.number_next {
            return false;
        }
        let before = b.bytes_in_flight;
        // the window held the sender back, not the buffers of this host, or a lack of messages (RFC 9002 §7.8)
        let window = b.congestion.window();
        let limited =
            before + b.pacer.quantum() >= window || b.congestion.slow_start() && before * 2 >= window;
        let overtaken = b.take_overtaken(ranges, largest);
        let acked = b.take_acked(ranges);
        let mut sample = None;
        if let Some((_, r)) = acked.iter().find(|(n, _)| *n == largest) {
            if !r.hedged || !clear_only {
                let t = now.since(r.sent).saturating_sub(delay);
                b.rtt.sample(t);
                rtt.sample(t);
                sample = Some(t);
            }
        }
        if !acked.is_empty() {
            (b.progress_at, b.tail_probes) = (now, 0);
            x.pmtu.passed(acked.iter().map(|(_, r)| r.bytes as usize).max().unwrap_or(0));
            let bytes: u64 = acked.iter().map(|(_, r)| u64::from(r.bytes)).sum();
            let newest = acked.iter().map(|a| a.0).max().expect("there are some");
            let next = b.number_next;
            let news = Acked { bytes, newest, next, rtt: sample };
            b.congestion.acked(news, b.rtt.smoothed(), limited, now);
            let clear = acked.iter().filter(|(_, r)| !r.hedged || !clear_only);
            let clear: u64 = clear.map(|(_, r)| u64::from(r.len)).sum();
            // with the window used up all the time the rail was never idle, however small the window
            let busy = if b.queue.is_empty() { b.bytes_in_flight } else { BACKLOG_BYTES };
            rate.acked(clear, busy.max(b.bytes_in_flight), now);
            x.evidence.bulk_acked(now);
            let news = x.evidence.prove();
            self.peers[pi].unsettled |= news;
            self.bulk_passed(pi, xi);
        }
        let end = (largest + 1).saturating_sub(self.peers[pi].paths[xi].lane.bulk_mut().flow().overtaken);
        let lost = self.peers[pi].paths[xi].lane.bulk_mut().flow().take_lost(end, Time::ORIGIN);
        self.bulk_lost(pi, xi, &lost);
        let x = &mut self.peers[pi].paths[xi];
        let b = x.lane.bulk_mut().flow();
        b.pacer.set(
            b.congestion.window(),
            b.rtt.smoothed(),
            b.congestion.slow_start(),
            x.datagram_bytes_max,
            now,
        );
        for r in acked.iter().map(|a| &a.1).chain(&overtaken) {
            self.item_acked(pi, Item::Frag { seq: r.seq, at: r.at, len: r.len });
        }
        self.mark_trains(pi);
        if !acked.is_empty() || !lost.is_empty() {
            self.mark(PeerId(pi as u32));
        }
        true
    }

    /// The peer's engine answered a question that was sent at `asked_at`: what went out before and is not acknowledged is lost;
    /// whether that is anything.
    pub(crate) fn bulk_answered(&mut self, pi: usize, xi: usize, asked_at: Time) -> bool {
        let Some(b) = &mut self.peers[pi].paths[xi].lane.bulk_mut().flow else { return false };
        let lost = b.take_lost(0, asked_at);
        if let Some(longest) = lost.iter().map(|(_, r)| r.bytes as usize).max() {
            self.mtu_doubt(pi, xi, longest);
            self.bulk_lost(pi, xi, &lost);
            self.mark_trains(pi);
        }
        !lost.is_empty()
    }

    /// Datagrams are lost: they go again first of all, and the window shrinks.
    fn bulk_lost(&mut self, pi: usize, xi: usize, lost: &[(u64, Record)]) {
        self.counters.datagrams_lost += lost.len() as u64;
        for (_, r) in lost.iter().rev() {
            let p = &mut self.peers[pi];
            if p.needs(&Item::Frag { seq: r.seq, at: r.at, len: r.len }) {
                p.paths[xi].lane.bulk_mut().flow().queue_front(r.part());
                self.counters.bytes_resent += u64::from(r.len);
            }
        }
        if let Some((newest, _)) = lost.last() {
            let b = self.peers[pi].paths[xi].lane.bulk_mut().flow();
            let (next, window) = (b.number_next, b.congestion.window());
            b.congestion.lost(*newest, next);
            if b.congestion.window() < window {
                b.mistaken = (0, 0);
            }
            b.mistaken.0 += lost.len() as u32;
            b.given_up.extend(lost);
            let surplus = b.given_up.len().saturating_sub(GIVEN_UP_MAX);
            b.given_up.drain(..surplus);
        }
    }

    // ---- when a path breaks ------------------------------------------------------------------------------------

    /// Takes from a suspected path what never went out, and copies of what may be lost, within `budget` bytes: (moved, copied).
    pub(crate) fn bulk_hedge(&mut self, pi: usize, xi: usize, budget: &mut u64) -> (Vec<Item>, Vec<Item>) {
        let Some(b) = &mut self.peers[pi].paths[xi].lane.bulk_mut().flow else { return Default::default() };
        let waiting: Vec<Part> = b.queue.drain(..).collect();
        b.queued_bytes = 0;
        let mut copied = Vec::new();
        for r in b.records.iter_mut().flatten() {
            if r.hedged || u64::from(r.len) > *budget {
                continue;
            }
            *budget -= u64::from(r.len);
            r.hedged = true;
            copied.push(r.part());
        }
        let p = &self.peers[pi];
        (join(p, waiting), join(p, copied))
    }

    /// Takes everything from a path on which bulk datagrams vanish; its epoch goes on, and so do their numbers.
    pub(crate) fn bulk_withdraw(&mut self, pi: usize, xi: usize) -> Vec<Item> {
        let x = &mut self.peers[pi].paths[xi];
        let (bytes, now) = (x.datagram_bytes_max, self.clock.now());
        let Some(mut b) = x.lane.replace_bulk(bytes, now).flow else {
            return Vec::new();
        };
        let fresh = x.lane.bulk_mut().flow();
        (fresh.number_next, fresh.base) = (b.number_next, b.number_next);
        b.drain(&self.peers[pi])
    }

    /// Takes everything from a path that is out of service.
    pub(crate) fn bulk_drain(&mut self, pi: usize, xi: usize) -> Vec<Item> {
        let x = &mut self.peers[pi].paths[xi];
        x.lane.acks_mut().end_bulk();
        x.streamless_since = None;
        let old = x.lane.replace_bulk(x.datagram_bytes_max, self.clock.now()).flow;
        old.map_or_else(Vec::new, |mut b| b.drain(&self.peers[pi]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(records: u64) -> Flow {
        let mut b = Flow::new(1000, Time::ORIGIN);
        for n in 0..records {
            b.records.push_back(Some(Record {
                seq: 1,
                at: n * 900,
                len: 900,
                bytes: 948,
                sent: Time::from_ns(n),
                again: false,
                hedged: false,
            }));
            b.number_next += 1;
            b.bytes_in_flight += 948;
        }
        b
    }

    fn numbers(v: &[(u64, Record)]) -> Vec<u64> {
        v.iter().map(|x| x.0).collect()
    }

    #[test]
    fn records_are_settled_once_and_in_flight_is_their_sum() {
        let mut b = bulk(10);
        assert_eq!(numbers(&b.take_acked(&[(6, 7), (0, 1)])), [6, 7, 0, 1]);
        assert_eq!((b.base, b.bytes_in_flight), (2, 6 * 948));
        assert!(
            b.take_acked(&[(0, 1), (6, 7)]).is_empty(),
            "an acknowledgement that is repeated changes nothing"
        );
        assert_eq!(numbers(&b.take_lost(5, Time::ORIGIN)), [2, 3, 4]);
        assert_eq!((b.oldest(), b.bytes_in_flight), (Some(Time::from_ns(5)), 3 * 948));
        assert_eq!(numbers(&b.take_lost(0, Time::from_ns(9))), [5, 8]);
        assert_eq!(numbers(&b.take_acked(&[(0, 100)])), [9]);
        assert_eq!((b.oldest(), b.bytes_in_flight, b.base), (None, 0, 10));
    }

    #[test]
    fn what_was_only_overtaken_gives_the_window_back_and_makes_patient() {
        let mut b = bulk(20);
        let before = b.congestion.window();
        let lost = b.take_lost(4, Time::ORIGIN);
        b.congestion.lost(3, 20);
        b.mistaken = (4, 0);
        b.given_up.extend(&lost);
        assert!(b.congestion.window() < before);
        assert_eq!(b.take_overtaken(&[(0, 1), (4, 6)], 6).len(), 2);
        assert!(b.congestion.window() < before, "half of them is not most of them");
        assert_eq!(b.take_overtaken(&[(0, 2)], 6).len(), 1);
        assert_eq!((b.congestion.window(), b.overtaken), (before, 4 * REORDER_PACKETS));
        assert!(b.take_overtaken(&[(0, 2)], 6).is_empty(), "it is noticed once");
    }

    #[test]
    fn the_tail_is_asked_about_a_few_times_and_ever_later() {
        let mut b = bulk(3);
        let mut at = Vec::new();
        while let Some(t) = b.tail_at() {
            b.tail_asked(t);
            at.push(t.ns() / 1_000_000);
        }
        assert_eq!(at, [1, 3, 7]);
        b.take_acked(&[(0, 2)]);
        b.tail_probes = 0;
        assert_eq!(b.tail_at(), None, "nothing is missing");
    }
}
