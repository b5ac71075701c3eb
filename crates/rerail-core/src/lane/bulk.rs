//! The bulk datagrams of a lane: what was taken and not sent, and what was sent and not acknowledged.
//!
//! Fragments are cut into pieces that fill a datagram, and go in trains: several datagrams of one length, which the kernel takes in
//! one call. Packet numbers, window and acknowledgements are the channel's own, so that small messages and control never wait behind
//! bulk (hazard H4c). Invariants: `bytes_in_flight` is the sum of the records; a lost piece is queued again on its own path as long as that
//! works. Sources: RFC 9002 (losses by packet number; differs: a timer only starts a query, hazard H3), RFC 9438 and RFC 9406
//! (`congestion`), RFC 9002 §7.7 (`pacing`).

use super::sent::REORDER_PACKETS;
use crate::congestion::{Acked, Cubic};
use crate::message::item::Item;
use crate::message::outgoing::Outgoing;
use crate::pacing::Pacer;
use crate::ranges::RangeSet;
use crate::rate::{Rate, Rtt};
use crate::types::{Time, Train};
use rerail_wire::bulk::{BULK_HEADER_BYTES, BulkHeader};
use rerail_wire::packet::PACKET_HEADER_BYTES;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of a train, its headers included: what one UDP datagram over IPv4 may have, because the kernel is given it as one.
const TRAIN_BYTES_MAX: usize = 65_000;
/// Datagrams of a train: what every kernel cuts.
const TRAIN_DATAGRAMS_MAX: usize = 60;
/// Zeros that a piece may be filled up with to be as long as its neighbours.
const FILLING_MAX: usize = 64;
/// The sender requests an acknowledgement when this share of its window went out since the last request.
const ASK_SHARE: u64 = 8;
/// It requests one at the latest after this many bytes: the sender's picture is never older.
const ASK_BYTES_MAX: u64 = 48 * 1024;
/// Without an acknowledgement for this long at least, the path is queried for a lost tail.
const TAIL_PATIENCE: Duration = Duration::from_millis(1);
/// Such queries without anything acknowledged in between; then the query timer goes on at its own pace.
const TAIL_PROBES_MAX: u32 = 3;
/// In flight this much counts as a backlog for the measurement of the rate, when the window was used up.
const BACKLOG_BYTES: u64 = 128 * 1024;
/// Records of datagrams that were given up are kept until this many numbers later.
const GIVEN_UP_AGE: u64 = 2048;
/// So many of them at most.
const GIVEN_UP_MAX: usize = 512;
/// Most datagrams of reordering that are tolerated: with more, a loss would stop the window.
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

    fn item(&self) -> Item {
        Item::Frag { seq: self.seq, at: self.at, len: self.len }
    }
}

/// An acknowledgement of bulk datagrams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BulkAck<'a> {
    /// Packet numbers, first and last of each range.
    pub ranges: &'a [(u64, u64)],
    pub largest: u64,
    /// Since the largest arrived.
    pub delay: Duration,
    /// Hedged datagrams give no sample of the round trip or the rate.
    pub clear_only: bool,
}

/// What became of bulk datagrams.
#[derive(Debug, Clone, Default)]
pub(crate) struct BulkNews {
    /// Arrived.
    pub arrived: Vec<Item>,
    /// Bytes of the longest datagram that was acknowledged now; 0: none was.
    pub longest_acked: usize,
    /// Datagrams that are lost, and bytes of the longest of them.
    pub lost: usize,
    /// See `lost`.
    pub longest_lost: usize,
    /// Payload that is queued again for that.
    pub bytes_again: u64,
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

    /// When the path is to be queried for a lost tail, if nothing is acknowledged before.
    pub fn tail_at(&self) -> Option<Time> {
        self.flow.as_ref().and_then(|f| f.tail_at())
    }

    /// It is being queried.
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

    // ---- what goes out -----------------------------------------------------------------------------------------

    /// Whether less waits than a train takes.
    pub fn is_short(&mut self) -> bool {
        let f = self.flow();
        f.queued_bytes < f.pacer.quantum()
    }

    /// A fragment, or what is left of one, is to go; `hedged`: a copy went over another path.
    pub fn queue(&mut self, seq: u64, at: u64, len: u32, hedged: bool) {
        self.flow().queue_back(Part { seq, at, len, again: hedged, hedged });
    }

    /// Gives back what waits; `None`: nothing does.
    pub fn take_waiting(&mut self, outgoing: &Outgoing) -> Option<Vec<Item>> {
        let f = self.flow.as_mut()?;
        f.wake_at = None;
        if f.queue.is_empty() {
            return None;
        }
        f.queued_bytes = 0;
        let parts = std::mem::take(&mut f.queue);
        Some(join(outgoing, parts))
    }

    /// How many bytes the window lets out, if at least a datagram of `most`.
    ///
    /// # Errors
    /// When to call again; nothing if the next acknowledgement goes on.
    pub fn room(&mut self, most: usize, now: Time) -> Result<u64, Option<Time>> {
        let f = self.flow();
        f.wake_at = None;
        if let Some(t) = f.full_until {
            if t > now {
                f.wake_at = Some(t);
                return Err(Some(t));
            }
            f.full_until = None;
        }
        let room = f.congestion.window().saturating_sub(f.bytes_in_flight);
        if room < most as u64 { Err(None) } else { Ok(room) }
    }

    /// How many bytes may go at once, of those for which there is room.
    ///
    /// # Errors
    /// When to call again; nothing if nothing waits.
    pub fn allowance(&mut self, room: u64, most: usize, now: Time) -> Result<usize, Option<Time>> {
        let f = self.flow();
        if f.queue.is_empty() {
            return Err(None);
        }
        let want = room.min(f.pacer.quantum()).min(f.queued_bytes.max(1));
        match f.pacer.allowance(want, now) {
            Ok(n) => Ok(n.min(room).max(most as u64) as usize),
            Err(at) => {
                f.wake_at = Some(at);
                Err(Some(at))
            }
        }
    }

    /// Writes a train of up to `allowed` bytes, datagrams of up to `most`, with room for their packet headers: the
    /// payload in it, and whether its last datagram is to request an acknowledgement. The train is empty if nothing
    /// that waits is needed any more.
    pub fn write(
        &mut self,
        outgoing: &Outgoing,
        most: usize,
        allowed: usize,
        now: Time,
        out: &mut Train,
    ) -> (u64, bool) {
        let f = self.flow();
        let piece_max = most - PACKET_HEADER_BYTES - BULK_HEADER_BYTES;
        out.bytes.clear();
        out.segment = 0;
        out.first = f.number_next;
        let allowed = allowed.min(TRAIN_BYTES_MAX);
        let mut payload = 0;
        while out.len() < TRAIN_DATAGRAMS_MAX {
            let Some(part) = f.pop() else { break };
            let Some(m) = outgoing.get(part.seq).filter(|m| m.needs(part.at, u64::from(part.len))) else {
                continue;
            };
            // pieces of one part are equally long, so that they make a train
            let pieces = (part.len as usize).div_ceil(piece_max);
            let len = (part.len as usize).div_ceil(pieces);
            let bytes = PACKET_HEADER_BYTES + BULK_HEADER_BYTES + len;
            let segment = if out.segment == 0 { bytes } else { out.segment };
            let fits = bytes <= segment && out.bytes.len() + bytes <= allowed.max(most);
            if !fits {
                f.queue_front(part);
                break;
            }
            if len < part.len as usize {
                f.queue_front(Part { at: part.at + len as u64, len: part.len - len as u32, ..part });
            }
            let last_of_its_length = segment - bytes > FILLING_MAX;
            let from = out.bytes.len();
            out.segment = segment;
            out.bytes.resize(from + PACKET_HEADER_BYTES + BULK_HEADER_BYTES, 0);
            BulkHeader { seq: part.seq, at: part.at, len: len as u16 }
                .write(&mut out.bytes[from + PACKET_HEADER_BYTES..]);
            m.body().gather(part.at as usize, len, &mut out.bytes);
            if !last_of_its_length {
                out.bytes.resize(from + segment, 0);
            }
            let whole = (out.bytes.len() - from) as u32;
            f.records.push_back(Some(Record {
                seq: part.seq,
                at: part.at,
                len: len as u32,
                bytes: whole,
                sent: now,
                again: part.again,
                hedged: part.hedged,
            }));
            f.number_next += 1;
            f.bytes_in_flight += u64::from(whole);
            payload += len as u64;
            if last_of_its_length {
                break;
            }
        }
        if out.bytes.is_empty() {
            return (0, false);
        }
        f.pacer.took(out.bytes.len() as u64);
        f.unasked += out.bytes.len() as u64;
        f.progress_at = now;
        let window = f.congestion.window();
        let asks = f.unasked >= (window / ASK_SHARE).min(ASK_BYTES_MAX)
            || f.queue.is_empty()
            || f.bytes_in_flight + most as u64 > window;
        if asks {
            f.unasked = 0;
        }
        (payload, asks)
    }

    /// The datagrams of the last train from number `keep` on did not go out: they are as if they had never been written, and wait until `at`.
    /// The payload in them.
    pub fn refuse(&mut self, keep: u64, at: Time) -> u64 {
        let f = self.flow();
        let mut payload = 0;
        while f.number_next > keep {
            f.number_next -= 1;
            let Some(r) = f.records.pop_back().flatten() else { continue };
            f.bytes_in_flight -= u64::from(r.bytes);
            f.pacer.give_back(u64::from(r.bytes));
            f.queue_front(Part { again: r.again, ..r.part() });
            payload += u64::from(r.len);
        }
        // the one that requests an acknowledgement is among them
        f.unasked = ASK_BYTES_MAX;
        (f.full_until, f.wake_at) = (Some(at), Some(at));
        payload
    }

    // ---- what is answered --------------------------------------------------------------------------------------

    /// An acknowledgement, which measures round-trip time and rate of the lane as well; datagrams have `most` bytes now. `None`: it makes no
    /// sense.
    pub fn acked(
        &mut self,
        ack: BulkAck,
        most: usize,
        outgoing: &Outgoing,
        (rtt, rate): (&mut Rtt, &mut Rate),
        now: Time,
    ) -> Option<BulkNews> {
        let f = self.flow.as_mut()?;
        if ack.largest >= f.number_next {
            return None;
        }
        // the window held the sender back, not the buffers of this host, or a lack of messages (RFC 9002 §7.8)
        let (before, window) = (f.bytes_in_flight, f.congestion.window());
        let limited =
            before + f.pacer.quantum() >= window || f.congestion.slow_start() && before * 2 >= window;
        let overtaken = f.take_overtaken(ack.ranges, ack.largest);
        let acked = f.take_acked(ack.ranges);
        let mut sample = None;
        if let Some((_, r)) = acked.iter().find(|(n, _)| *n == ack.largest) {
            if !r.hedged || !ack.clear_only {
                let t = now.since(r.sent).saturating_sub(ack.delay);
                f.rtt.sample(t);
                rtt.sample(t);
                sample = Some(t);
            }
        }
        let longest_acked = acked.iter().map(|(_, r)| r.bytes as usize).max().unwrap_or(0);
        if !acked.is_empty() {
            (f.progress_at, f.tail_probes) = (now, 0);
            let bytes: u64 = acked.iter().map(|(_, r)| u64::from(r.bytes)).sum();
            let newest = acked.iter().map(|a| a.0).max().expect("there are some");
            let news = Acked { bytes, newest, next: f.number_next, rtt: sample };
            f.congestion.acked(news, f.rtt.smoothed(), limited, now);
            let clear = acked.iter().filter(|(_, r)| !r.hedged || !ack.clear_only);
            let clear: u64 = clear.map(|(_, r)| u64::from(r.len)).sum();
            // with the window used up all the time the rail was never idle, however small the window
            let busy = if f.queue.is_empty() { f.bytes_in_flight } else { BACKLOG_BYTES };
            rate.acked(clear, busy.max(f.bytes_in_flight), false, now);
        }
        let lost = f.take_lost((ack.largest + 1).saturating_sub(f.overtaken), Time::ORIGIN);
        let news = f.lost(lost, outgoing);
        f.pacer.set(f.congestion.window(), f.rtt.smoothed(), f.congestion.slow_start(), most, now);
        // in the memory of the records
        let mut arrived: Vec<Item> = acked.into_iter().map(|a| a.1.item()).collect();
        arrived.extend(overtaken.iter().map(Record::item));
        Some(BulkNews { arrived, longest_acked, ..news })
    }

    /// A query that was sent at `asked_at` was answered: what went out before and is not acknowledged is lost.
    pub fn answered(&mut self, asked_at: Time, outgoing: &Outgoing) -> BulkNews {
        let Some(f) = &mut self.flow else { return BulkNews::default() };
        let lost = f.take_lost(0, asked_at);
        f.lost(lost, outgoing)
    }

    // ---- when the path breaks ----------------------------------------------------------------------------------

    /// Takes what never went out, and copies of what may be lost, within `budget` bytes: (moved, copied).
    pub fn hedge(&mut self, budget: &mut u64, outgoing: &Outgoing) -> (Vec<Item>, Vec<Item>) {
        let Some(f) = &mut self.flow else { return Default::default() };
        let waiting: Vec<Part> = f.queue.drain(..).collect();
        f.queued_bytes = 0;
        let mut copied = Vec::new();
        for r in f.records.iter_mut().flatten() {
            if r.hedged || u64::from(r.len) > *budget {
                continue;
            }
            *budget -= u64::from(r.len);
            r.hedged = true;
            copied.push(r.part());
        }
        (join(outgoing, waiting), join(outgoing, copied))
    }

    /// Takes everything; `goes_on`: the epoch does, and so do its numbers.
    pub fn drain(
        &mut self,
        datagram_bytes: usize,
        goes_on: bool,
        outgoing: &Outgoing,
        now: Time,
    ) -> Vec<Item> {
        let Some(mut f) = std::mem::replace(self, Self::new(datagram_bytes, now)).flow else {
            return Vec::new();
        };
        if goes_on {
            let fresh = self.flow();
            (fresh.number_next, fresh.base) = (f.number_next, f.number_next);
        }
        f.drain(outgoing)
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
    /// Bytes that went out since an acknowledgement was last requested.
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

    /// When the path is to be queried for a lost tail, if nothing is acknowledged before.
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

    /// Datagrams are lost: they go again first of all, and the window shrinks.
    fn lost(&mut self, lost: Vec<(u64, Record)>, outgoing: &Outgoing) -> BulkNews {
        let longest_lost = lost.iter().map(|(_, r)| r.bytes as usize).max().unwrap_or(0);
        let mut news = BulkNews { lost: lost.len(), longest_lost, ..BulkNews::default() };
        for (_, r) in lost.iter().rev() {
            if outgoing.get(r.seq).is_some_and(|m| m.needs(r.at, u64::from(r.len))) {
                self.queue_front(r.part());
                news.bytes_again += u64::from(r.len);
            }
        }
        if let Some((newest, _)) = lost.last() {
            let window = self.congestion.window();
            self.congestion.lost(*newest, self.number_next);
            if self.congestion.window() < window {
                self.mistaken = (0, 0);
            }
            self.mistaken.0 += lost.len() as u32;
            self.given_up.extend(lost);
            let surplus = self.given_up.len().saturating_sub(GIVEN_UP_MAX);
            self.given_up.drain(..surplus);
        }
        news
    }

    /// Everything that waits or travels, the pieces of each fragment joined.
    fn drain(&mut self, outgoing: &Outgoing) -> Vec<Item> {
        let travelling = self.records.drain(..).flatten().map(|r| r.part());
        let all: Vec<Part> = travelling.chain(self.queue.drain(..)).collect();
        self.base = self.number_next;
        (self.queued_bytes, self.bytes_in_flight) = (0, 0);
        join(outgoing, all)
    }
}

/// Pieces as items, those that touch joined as far as one fragment goes.
fn join(outgoing: &Outgoing, parts: impl IntoIterator<Item = Part>) -> Vec<Item> {
    let mut sets: Vec<((u64, u64), RangeSet)> = Vec::new();
    for part in parts {
        let Some(m) = outgoing.get(part.seq) else { continue };
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
