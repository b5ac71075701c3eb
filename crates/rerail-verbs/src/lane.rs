//! One stream over an RDMA adapter: a reliable connected queue pair. Owns: what is posted to it and what has come by it.
//!
//! Bytes of the stream travel as messages, copied into slots that are registered once. What
//! is placed is written out of the application's memory into the peer's. The adapter keeps the order of both.
//!
//! **Credits**: each side posts [`Shape::messages`] receives and a few more. Each message with bytes takes a credit, and the
//! peer returns it when the bytes are read there, at the latest when half of them are to be returned. So no message ever
//! meets a queue without a receive, which adapters answer by long retries, and those of iWARP by the end of the connection.
//! A message without bytes takes none: when one is sent, half of all credits are returned by it, so at most [`SPARE`] of
//! them are under way. A credit is returned only when the receive is posted. What was read is posted again by several in
//! one call, at the latest when half of all credits are due.
//!
//! **What is sent** is queued, and posted by one call for each call of the engine: all messages of a write, and the writes
//! into the peer's memory that were placed before it. The adapter reports every fourth message, and the last of a queue with
//! writes.
//!
//! Where a network has no datagrams, a lane carries them instead of a stream: each message is one. One that nothing is sent
//! back for is answered by a message without bytes, which takes a credit, so that answers are not answered for ever.
//!
//! Whether the peer's adapter still answers is asked by a write of no bytes ([`Lane::far_adapter`]): the adapter acknowledges it
//! by itself, whatever its process does.
//!
//! Small datagrams may be written into a ring of the peer's, while it looks into it ([`crate::ring`]). A process that goes to
//! sleep looks no more: it says so first, with a credit that was kept for that, and how much it has taken. The peer
//! then sends messages, which wake it, and one at once if it has written more. So no datagram waits beside a sleeper.
//!
//! The side that connected sends first (MPA, RFC 5044 §7.1.2; hazard H23): a [`Greeting`], a message without bytes.

#[cfg(test)]
pub mod tests;

use crate::abi::*;
use crate::adapter::{Adapter, Completions, Slots, inline_flag};
use crate::agreement::{self, Message};
use crate::message::{HEADER_BYTES, Header, MessageKind, RING_BYTES, ring_from_bytes, ring_to_bytes};
use crate::posting::{AT_ONCE, Sends, post_receives, send_work};
use crate::registrations::{Registrations, Source};
use crate::ring::{self, FarRing, Ring, SlotHeader};
use rerail_rail::{CloseReason, FarKernel, IoVec, Place, Posted, RailId, WorkId};
use std::collections::VecDeque;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The name of a lane in this process; never used twice.
pub type LaneNumber = u32;

/// What a lane carries, and how much of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// Messages with bytes that may be under way in each direction.
    messages: usize,
    /// Bytes of a message, header included.
    message_bytes: usize,
    /// Writes that may be under way.
    places: u16,
}

/// Writes that may be under way on a stream.
pub const PLACES_MAX: u16 = 16;
/// Bytes of a datagram.
pub const DATAGRAM_BYTES_MAX: usize = 4096;

impl Shape {
    /// A stream.
    pub const STREAM: Shape = Shape { messages: 16, message_bytes: 8 << 10, places: PLACES_MAX };
    /// Datagrams. One that finds no credit is lost, so there are more: as many as a train has.
    pub const DATAGRAMS: Shape =
        Shape { messages: 64, message_bytes: HEADER_BYTES + DATAGRAM_BYTES_MAX, places: 0 };

    /// Messages with bytes that may be under way in each direction.
    #[cfg(any(test, feature = "hostile"))]
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Bytes of a message, header included.
    #[cfg(any(test, feature = "hostile"))]
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Slots of a lane: half of them are sent from, half receive.
    ///
    /// # Errors
    /// Not enough memory may be locked, for instance.
    pub fn slots(&self, adapter: &Arc<Adapter>) -> io::Result<Slots> {
        Slots::new(adapter, 2 * (self.messages + SPARE), self.message_bytes)
    }

    /// Receives that wait to be posted together, at most.
    fn receives_at_once(&self) -> usize {
        self.messages / 4
    }

    /// Entries of the completion queue that a lane may need.
    pub const fn entries(&self) -> usize {
        2 * (self.messages + SPARE) + self.places as usize + GREETINGS + QUESTIONS
    }
}

/// Messages without bytes that may be under way.
pub const SPARE: usize = 2;
/// Greetings on a lane.
const GREETINGS: usize = 1;
/// Questions to the peer's adapter that may be under way.
const QUESTIONS: usize = 1;
/// Messages about alternate paths that wait for a credit, or to be received.
const ABOUT_MAX: usize = 4;
/// Messages until one reports its end: each report is an entry in the completion queue.
const SIGNAL_EVERY: u32 = 4;

/// The bit of a work's name that says that it is a receive; below it the slot, or the number of what was sent.
pub const RECEIVE: u64 = 1 << 31;

/// The lane that a completion belongs to.
pub fn lane_of(entry: &ibv_wc) -> LaneNumber {
    (entry.wr_id >> 32) as u32
}

/// Whether it is the end of a receive.
pub fn is_receive(entry: &ibv_wc) -> bool {
    entry.wr_id & RECEIVE != 0
}

/// Which rings a lane uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rings {
    /// It has one for the peer's datagrams.
    pub own: bool,
    /// It writes into the peer's.
    pub far: bool,
}

/// Datagrams of a peer after which its lane is worth looking into its ring.
const BUSY_AFTER: u32 = 32;

/// Something of the peer that is not read.
enum Arrived {
    /// Of a message: its slot, and where what is not read begins and ends.
    Message(usize, usize, usize),
    /// In the ring: its bytes.
    Slot(usize),
}

/// What is sent.
enum Sent {
    /// The slot, and how many bytes of it.
    Message(usize, usize),
    /// The same for a datagram that goes into the peer's ring, and where.
    Slot(usize, usize, Rdma),
    /// What is lent and where it goes. The source is registered as long as this lives.
    Write { work: WorkId, _source: Source, element: ibv_sge, to: Rdma },
    /// When.
    Question(Instant),
}

/// Messages that an adapter has refused.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub messages: usize,
    /// Their bytes, without headers.
    pub bytes: usize,
}

/// What must outlive the queue pair; see [`Lane`].
pub struct Lane {
    pub number: LaneNumber,
    pub rail: RailId,
    shape: &'static Shape,
    adapter: Arc<Adapter>,
    registrations: Arc<Registrations>,
    /// The connection manager destroys it, after which this value may be dropped.
    qp: *mut ibv_qp,
    /// Bytes of a message that fit into the work itself.
    inline_max: usize,
    /// Slots that are sent from, and behind them those that receive.
    slots: Slots,
    free: Vec<usize>,
    /// In order, with their numbers: what was posted and is not over, and behind it what is not posted.
    sent: VecDeque<(u32, Sent)>,
    /// How many at the end are not.
    unposted: usize,
    next: u32,
    writes: u16,
    /// Messages with bytes that the peer has room for.
    credits: usize,
    /// Those of which the receives are posted, and that it does not know of.
    owed: usize,
    /// Slots that may receive again and are not posted, and how many of them have taken a credit.
    empty: Vec<usize>,
    unposted_credits: usize,
    /// In order.
    arrived: VecDeque<Arrived>,
    /// `None`: it has none.
    ring: Option<Ring>,
    far_ring: FarRing,
    rings: Rings,
    /// The peer was told that this side looks into its ring. A credit and a slot are kept, to tell it the contrary.
    ring_is_open: bool,
    /// The peer looks into its ring no more, and does not know of all that is in it.
    wake_is_due: bool,
    /// Datagrams that have come since the ring was closed.
    datagrams: u32,
    /// Messages that took a credit, of each direction.
    counted_sent: u32,
    counted_received: u32,
    /// A message with bytes has come, and nothing was sent since.
    owes_answer: bool,
    /// Messages about alternate paths: for the peer, and from it.
    about_to_send: VecDeque<Message>,
    about_received: VecDeque<Message>,
    /// The peer's first message is here.
    greeted: bool,
    /// When the question was posted that the peer's adapter has acknowledged last.
    acknowledged: Option<Instant>,
    ended: Option<CloseReason>,
    /// The same, for the connection manager.
    is_over: Arc<AtomicBool>,
}

// SAFETY: the queue pair may be used from any thread, and is only used through this value.
unsafe impl Send for Lane {}

/// The first message of every lane that this process opens. The connection manager sends it, because the peer waits for
/// it whether or not the engine has time: the same bytes on every lane of a rail.
pub struct Greeting(Slots);

impl Greeting {
    pub fn new(adapter: &Arc<Adapter>) -> io::Result<Greeting> {
        let mut slots = Slots::new(adapter, 1, HEADER_BYTES)?;
        slots.slot_mut(0).copy_from_slice(&Header::default().to_bytes());
        Ok(Greeting(slots))
    }

    /// Sends it. Its end is not reported.
    ///
    /// # Safety
    /// The queue pair was made with [`attributes`] and lives.
    pub unsafe fn send(&self, qp: *mut ibv_qp) -> io::Result<()> {
        let mut chain = Sends::new();
        chain.add(send_work(0, IBV_SEND_SOLICITED), self.0.element(0, HEADER_BYTES));
        // SAFETY: the caller's promise; the bytes never change.
        unsafe { chain.post_to(qp) }.1
    }
}

/// What a queue pair of a lane is to hold.
pub fn attributes(completions: &Completions, shape: &Shape) -> ibv_qp_init_attr {
    let messages = shape.messages + SPARE;
    let sends = (messages + usize::from(shape.places) + GREETINGS + QUESTIONS) as u32;
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: completions.queue(),
        recv_cq: completions.queue(),
        srq: null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: messages as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

impl Lane {
    /// Over a queue pair that is not connected, of which each request has room for so many bytes. All receives are posted.
    ///
    /// # Errors
    /// Not enough memory may be locked, for instance.
    ///
    /// # Safety
    /// The queue pair was made with [`attributes`] of the shape and lives until after this value is given back to be dropped.
    pub unsafe fn new(
        number: LaneNumber,
        rail: RailId,
        adapter: &Arc<Adapter>,
        registrations: &Arc<Registrations>,
        (qp, inline_max): (*mut ibv_qp, usize),
        shape: &'static Shape,
        rings: Rings,
    ) -> io::Result<Lane> {
        let half = shape.messages + SPARE;
        let mut lane = Lane {
            number,
            rail,
            shape,
            adapter: adapter.clone(),
            registrations: registrations.clone(),
            qp,
            inline_max,
            slots: shape.slots(adapter)?,
            free: (0..half).collect(),
            sent: VecDeque::new(),
            unposted: 0,
            next: 0,
            writes: 0,
            credits: shape.messages,
            owed: 0,
            empty: (half..2 * half).collect(),
            unposted_credits: 0,
            arrived: VecDeque::new(),
            ring: if rings.own { Some(Ring::new(adapter)?) } else { None },
            far_ring: FarRing::default(),
            rings,
            ring_is_open: false,
            wake_is_due: false,
            datagrams: 0,
            counted_sent: 0,
            counted_received: 0,
            owes_answer: false,
            about_to_send: VecDeque::new(),
            about_received: VecDeque::new(),
            greeted: false,
            acknowledged: None,
            ended: None,
            is_over: Arc::default(),
        };
        lane.post_receives()?;
        Ok(lane)
    }

    /// What an adapter of tests does.
    #[cfg(any(test, feature = "hostile"))]
    pub fn fill(&mut self, slot: usize, message: &[u8]) {
        self.slots.slot_mut(slot)[..message.len()].copy_from_slice(message);
    }

    /// The same for its ring.
    #[cfg(any(test, feature = "hostile"))]
    pub fn fill_ring(&mut self, number: u32, at: usize, bytes: &[u8]) {
        self.ring.iter().for_each(|ring| ring.fill(number, at, bytes));
    }

    /// Posts the receives of all slots that are empty.
    fn post_receives(&mut self) -> io::Result<()> {
        let (lane, slots, bytes) = (u64::from(self.number) << 32, &self.slots, self.shape.message_bytes);
        let request = |slot| (lane | RECEIVE | slot as u64, slots.element(slot, bytes));
        // SAFETY: the queue pair lives, and the slots as long as it.
        unsafe { post_receives(self.qp, &mut self.empty, request) }?;
        self.owed += std::mem::take(&mut self.unposted_credits);
        Ok(())
    }

    fn end(&mut self, why: CloseReason) {
        self.ended.get_or_insert(why);
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Set when the lane knows that it is over: no sleeper needs to be woken to learn it.
    pub fn is_over(&self) -> Arc<AtomicBool> {
        self.is_over.clone()
    }

    /// The connection is over, as the connection manager reports.
    pub fn disconnected(&mut self) {
        self.look_at_ring();
        self.end(CloseReason::Reset);
    }

    /// Whether the peer's first message has come: the lane is connected on both sides.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Why it carries nothing any more, once all that has come is read.
    pub fn over(&self) -> Option<CloseReason> {
        self.ended.filter(|_| self.arrived.is_empty())
    }

    /// Whether there are bytes to read.
    pub fn has_input(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether memory of the application is lent.
    pub fn lends(&self) -> bool {
        self.writes > 0
    }

    /// Whether a write into the peer's memory may be posted.
    pub fn may_place(&self) -> bool {
        self.writes < self.shape.places
    }

    /// Whether a write would take bytes.
    pub fn has_room(&self) -> bool {
        self.credits > self.kept() && self.has_slot()
    }

    /// Whether a slot may be sent from.
    fn has_slot(&self) -> bool {
        self.free.len() > SPARE + self.kept()
    }

    /// Credits and slots that are kept for [`Lane::close_ring`].
    fn kept(&self) -> usize {
        self.ring_is_open.into()
    }

    /// Queues the slot that is free next, with this many bytes behind its header.
    fn send_message(&mut self, bytes: usize, kind: MessageKind) {
        let Some(slot) = self.free.pop() else { return };
        let header = Header {
            credits: self.owed as u16,
            bytes: bytes as u32,
            kind,
            written: self.far_ring.written(),
            given_back: self.ring.as_ref().map_or(0, Ring::given_back),
        };
        self.slots.slot_mut(slot)[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.owed = 0;
        self.owes_answer = false;
        // It wakes the peer, and makes it look.
        self.wake_is_due = false;
        if header.is_counted() {
            self.credits -= 1;
            self.counted_sent = self.counted_sent.wrapping_add(1);
        }
        self.queue(Sent::Message(slot, HEADER_BYTES + bytes));
    }

    /// Queues a datagram for the peer's ring; `false`: it does not fit, or there is no room.
    fn queue_slot(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > ring::DATAGRAM_BYTES_MAX || !self.has_slot() {
            return false;
        }
        let Some((number, key, remote_addr)) = self.far_ring.write() else { return false };
        let slot = self.free.pop().expect("there is one");
        let len = ring::HEADER_BYTES + bytes.len();
        let header = SlotHeader {
            number,
            bytes: bytes.len() as u16,
            credits: std::mem::take(&mut self.owed) as u16,
            given_back: self.ring.as_ref().map_or(0, Ring::given_back),
            behind: self.counted_sent,
        };
        let memory = &mut self.slots.slot_mut(slot)[..len];
        memory[ring::HEADER_BYTES..].copy_from_slice(bytes);
        header.write(memory);
        self.owes_answer = false;
        self.queue(Sent::Slot(slot, len, Rdma { remote_addr, rkey: key }));
        true
    }

    fn queue(&mut self, what: Sent) {
        self.sent.push_back((self.next, what));
        self.unposted += 1;
        self.next = (self.next + 1) & (RECEIVE as u32 - 1);
    }

    /// The request for what is at this place of the queue. `behind_writes`: there are writes before it of which nothing
    /// reports the end.
    fn request(&self, at: usize, behind_writes: &mut bool) -> (ibv_send_wr, ibv_sge) {
        let (number, what) = &self.sent[at];
        let (element, mut flags, rdma) = match what {
            Sent::Message(slot, len) => {
                // A message wakes the peer's sleeper.
                let mut flags = IBV_SEND_SOLICITED | inline_flag(*len, self.inline_max);
                if *len == HEADER_BYTES || number % SIGNAL_EVERY == 0 {
                    flags |= IBV_SEND_SIGNALED;
                }
                (self.slots.element(*slot, *len), flags, None)
            }
            Sent::Slot(slot, len, to) => {
                let reports = if number % SIGNAL_EVERY == 0 { IBV_SEND_SIGNALED } else { 0 };
                let flags = inline_flag(*len, self.inline_max) | reports;
                (self.slots.element(*slot, *len), flags, Some(*to))
            }
            Sent::Write { element, to, .. } => (*element, 0, Some(*to)),
            // With no byte no key and no address is looked at (InfiniBand specification, C9-88).
            Sent::Question(_) => {
                let nothing = ibv_sge { addr: 0, length: 0, lkey: 0 };
                (nothing, IBV_SEND_SIGNALED, Some(Rdma { remote_addr: 0, rkey: 0 }))
            }
        };
        *behind_writes |= matches!(what, Sent::Write { .. });
        if *behind_writes && at + 1 == self.sent.len() {
            flags |= IBV_SEND_SIGNALED;
        }
        *behind_writes &= flags & IBV_SEND_SIGNALED == 0;
        let mut work = send_work(u64::from(self.number) << 32 | u64::from(*number), flags);
        if let Some(rdma) = rdma {
            (work.opcode, work.wr) = (IBV_WR_RDMA_WRITE, Target { rdma });
        }
        (work, element)
    }

    /// Posts what is queued, [`AT_ONCE`] by each call. When the adapter refuses something the lane is over: messages that it
    /// has not taken are forgotten and returned, and the sources of writes stay lent, as on every lane that broke.
    pub fn flush(&mut self) -> Refused {
        let mut behind_writes = false;
        while self.unposted > 0 && self.ended.is_none() {
            let first = self.sent.len() - self.unposted;
            let mut chain = Sends::new();
            for at in first..self.sent.len().min(first + AT_ONCE) {
                let (work, element) = self.request(at, &mut behind_writes);
                chain.add(work, element);
            }
            // SAFETY: the queue pair lives; a slot lives as long, and a source is lent and registered until its work is over.
            let (posted, result) = unsafe { chain.post_to(self.qp) };
            self.unposted -= posted;
            if result.is_err() {
                self.end(CloseReason::Reset);
            }
        }
        let mut refused = Refused::default();
        if self.unposted > 0 {
            let first = self.sent.len() - std::mem::take(&mut self.unposted);
            for (number, what) in self.sent.split_off(first) {
                match what {
                    Sent::Message(slot, len) => {
                        self.free.push(slot);
                        refused.messages += 1;
                        refused.bytes += len - HEADER_BYTES;
                    }
                    Sent::Slot(slot, ..) => {
                        self.free.push(slot);
                        refused.messages += 1;
                    }
                    _ => self.sent.push_back((number, what)),
                }
            }
        }
        refused
    }

    /// Takes bytes into slots and sends them, as many as there is room for.
    ///
    /// # Safety
    /// Every piece is valid for reads, and nothing writes to it during the call.
    pub unsafe fn write(&mut self, pieces: &[IoVec]) -> usize {
        let mut taken = 0;
        let mut pieces = pieces.iter().map(|p| (p.ptr.cast_const(), p.len)).filter(|p| p.1 > 0).peekable();
        while self.has_room() && self.ended.is_none() && pieces.peek().is_some() {
            let slot = *self.free.last().expect("there is room");
            let mut at = HEADER_BYTES;
            while let Some((from, len)) = pieces.peek_mut() {
                let n = (*len).min(self.shape.message_bytes - at);
                if n == 0 {
                    break;
                }
                // SAFETY: inside the piece, by the caller's promise, and inside the slot.
                unsafe {
                    std::ptr::copy_nonoverlapping(*from, self.slots.slot_mut(slot)[at..].as_mut_ptr(), n);
                    *from = from.add(n);
                }
                (*len, at) = (*len - n, at + n);
                if *len == 0 {
                    pieces.next();
                }
            }
            self.send_message(at - HEADER_BYTES, MessageKind::Data);
            taken += at - HEADER_BYTES;
        }
        taken - self.flush().bytes
    }

    /// Reads into the pieces what has come, and gives slots back to the adapter.
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it during the call.
    pub unsafe fn read(&mut self, pieces: &[IoVec]) -> usize {
        let mut read = 0;
        for piece in pieces {
            let mut filled = 0;
            while filled < piece.len {
                // A stream has no ring.
                let Some(Arrived::Message(slot, from, to)) = self.arrived.front_mut() else { break };
                let n = (piece.len - filled).min(*to - *from);
                // SAFETY: inside the piece, by the caller's promise, and inside the slot, which the adapter has given back.
                unsafe {
                    let bytes = &self.slots.slot(*slot)[*from..][..n];
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.ptr.add(filled), n);
                }
                (*from, filled, read) = (*from + n, filled + n, read + n);
                if from == to {
                    let slot = *slot;
                    self.arrived.pop_front();
                    self.is_read(slot);
                }
            }
        }
        self.give_back();
        read
    }

    /// Queues a datagram; `false`: there is no room, or the lane is over. [`Lane::flush`] sends it.
    pub fn queue_datagram(&mut self, bytes: &[u8]) -> bool {
        if self.ended.is_some() {
            return false;
        }
        if self.queue_slot(bytes) {
            return true;
        }
        if !self.has_room() {
            return false;
        }
        let slot = *self.free.last().expect("there is room");
        self.slots.slot_mut(slot)[HEADER_BYTES..][..bytes.len()].copy_from_slice(bytes);
        self.send_message(bytes.len(), MessageKind::Data);
        true
    }

    /// Sends a datagram; `false`: there is no room, or the lane is over.
    #[cfg(any(test, feature = "hostile"))]
    pub fn send_datagram(&mut self, bytes: &[u8]) -> bool {
        self.queue_datagram(bytes) && self.flush().messages == 0
    }

    /// Whether the peer waits for a sign that what it sent has arrived.
    pub fn owes_answer(&self) -> bool {
        self.owes_answer
    }

    /// Gives it, if there is a credit for that.
    pub fn answer(&mut self) {
        if self.owes_answer && self.has_room() && self.ended.is_none() {
            self.send_message(0, MessageKind::Answer);
            self.flush();
        }
    }

    /// Whether so much comes by it that this side should look into its ring, and does not yet.
    pub fn is_busy(&self) -> bool {
        self.ring.is_some() && !self.ring_is_open && self.datagrams >= BUSY_AFTER
    }

    /// Tells the peer that this side looks into its ring from now on, if there is a credit for that and one for the end of it.
    pub fn open_ring(&mut self) -> bool {
        let Some(ring) = self.ring.as_ref().filter(|_| !self.ring_is_open && self.ended.is_none()) else {
            return false;
        };
        if self.credits < 2 || self.free.len() < SPARE + 2 {
            return false;
        }
        let slot = *self.free.last().expect("there is room");
        let place = ring_to_bytes(ring.place());
        self.slots.slot_mut(slot)[HEADER_BYTES..][..RING_BYTES].copy_from_slice(&place);
        self.send_message(RING_BYTES, MessageKind::RingOpened);
        self.ring_is_open = true;
        self.flush();
        self.ended.is_none()
    }

    /// Tells it that this side looks no more, and what it has taken; `false`: not yet, because the adapter has not reported
    /// the end of other messages.
    pub fn close_ring(&mut self) -> bool {
        if !self.ring_is_open || self.ended.is_some() {
            return true;
        }
        if self.free.is_empty() {
            return false;
        }
        self.ring_is_open = false;
        self.datagrams = 0;
        self.send_message(0, MessageKind::RingClosed);
        self.flush();
        true
    }

    /// Takes what lies in the ring, and returns whether there was anything.
    pub fn look_at_ring(&mut self) -> bool {
        let mut some = false;
        // What has come before the end of the connection is taken.
        while let Some(ring) = self.ring.as_mut().filter(|_| self.ended != Some(CloseReason::Damaged)) {
            let Some(slot) = ring.take(self.counted_received) else { break };
            let credits = self.credits + usize::from(slot.credits);
            if credits > self.shape.messages || !self.far_ring.give_back(slot.given_back) {
                self.end(CloseReason::Damaged);
                break;
            }
            self.credits = credits;
            self.has_datagram(Arrived::Slot(slot.bytes.into()));
            some = true;
        }
        some
    }

    fn has_datagram(&mut self, what: Arrived) {
        self.datagrams = self.datagrams.saturating_add(1);
        self.owes_answer = true;
        self.arrived.push_back(what);
    }

    /// Wakes the peer when it has gone to sleep beside what is in its ring, as soon as there is a credit. It is awake
    /// while it keeps all credits: it does not sleep beside messages.
    fn wake(&mut self) {
        if self.wake_is_due && self.has_room() && self.ended.is_none() {
            self.send_message(0, MessageKind::Answer);
            self.flush();
        }
    }

    /// The datagram that came first, and its length. One that is longer than the buffer is dropped.
    pub fn receive_datagram(&mut self, buf: &mut [u8]) -> Option<usize> {
        let mut found = None;
        while let Some(what) = self.arrived.pop_front() {
            let (len, fits) = match what {
                Arrived::Message(slot, from, to) => {
                    let room = buf.get_mut(..to - from);
                    let fits = room.is_some();
                    room.into_iter().for_each(|room| room.copy_from_slice(&self.slots.slot(slot)[from..to]));
                    self.is_read(slot);
                    (to - from, fits)
                }
                Arrived::Slot(len) => {
                    let ring = self.ring.as_mut().expect("it was in there");
                    (len, ring.read(len, buf))
                }
            };
            if fits {
                found = Some(len);
                break;
            }
        }
        self.give_back();
        found
    }

    /// Sends this about alternate paths, as soon as there is a credit for it. Of more than a few only the newest are of use.
    pub fn send_about_alternates(&mut self, message: Message) {
        if self.about_to_send.len() == ABOUT_MAX {
            self.about_to_send.pop_front();
        }
        self.about_to_send.push_back(message);
        self.send_about_alternates_on();
    }

    fn send_about_alternates_on(&mut self) {
        while !self.about_to_send.is_empty() && self.has_room() && self.ended.is_none() {
            let Some(message) = self.about_to_send.pop_front() else { break };
            let slot = *self.free.last().expect("there is room");
            self.slots.slot_mut(slot)[HEADER_BYTES..][..agreement::BYTES]
                .copy_from_slice(&message.to_bytes());
            self.send_message(agreement::BYTES, MessageKind::Alternate);
            // At once: what is refused later would be taken for bytes of the stream.
            self.flush();
        }
    }

    /// The next message of the peer about them.
    pub fn receive_about_alternates(&mut self) -> Option<Message> {
        self.about_received.pop_front()
    }

    /// A slot whose message has taken a credit may receive again.
    fn is_read(&mut self, slot: usize) {
        self.empty.push(slot);
        self.unposted_credits += 1;
    }

    /// Gives slots back to the adapter, and credits to the peer, when there are enough for a call.
    fn give_back(&mut self) {
        let returns = self.owed + self.unposted_credits >= self.shape.messages / 2;
        if self.ended.is_some() || !returns && self.empty.len() < self.shape.receives_at_once() {
            return;
        }
        if self.post_receives().is_err() {
            self.end(CloseReason::Reset);
        } else if returns {
            self.send_message(0, MessageKind::Data);
            self.flush();
        }
    }

    /// Queues a write into the peer's memory, which is posted together with the message that announces it, or by
    /// [`Lane::flush`]. It is refused where there is no room, and when the lane is over.
    ///
    /// # Safety
    /// The whole of the source stays valid and unchanged until [`Lane::complete`] returns its work, or the queue pair is destroyed.
    pub unsafe fn place(&mut self, place: &Place) -> Posted {
        if self.ended.is_some() || !self.may_place() || u32::try_from(place.source.len).is_err() {
            return Posted::Refused;
        }
        // SAFETY: the caller's promise; what is registered is kept until the work is over.
        let Ok(source) = (unsafe { self.registrations.source(&self.adapter, place) }) else {
            return Posted::Unreadable;
        };
        let element = ibv_sge {
            addr: place.source.ptr as u64,
            length: place.source.len as u32,
            lkey: source.local_key(),
        };
        let (key, base) = place.key.words();
        let to = Rdma { remote_addr: base.wrapping_add(place.offset), rkey: key as u32 };
        self.queue(Sent::Write { work: place.work, _source: source, element, to });
        self.writes += 1;
        Posted::Lent
    }

    /// What the peer's adapter has acknowledged, by the last question; asks it again. Where the end of a write shows
    /// nothing of the peer, there is no answer.
    pub fn far_adapter(&mut self) -> Option<FarKernel> {
        if !self.adapter.acknowledges() || self.ended.is_some() {
            return None;
        }
        let asked = self.sent.iter().any(|(_, sent)| matches!(sent, Sent::Question(_)));
        // an acknowledgement is no older than the question
        let told =
            self.acknowledged.map(|at| FarKernel { heard: at.elapsed(), has_all: self.sent.is_empty() });
        if !asked {
            self.queue(Sent::Question(Instant::now()));
            self.flush();
        }
        told
    }

    /// Takes a completion of this lane. Calls `placed` for each work that is over.
    pub fn complete(&mut self, entry: &ibv_wc, mut placed: impl FnMut(WorkId)) {
        if entry.status != IBV_WC_SUCCESS {
            // What was posted to a queue pair that broke is over only when it is destroyed: one that was not reported
            // may still be read by the adapter.
            self.look_at_ring();
            self.end(CloseReason::Reset);
            return;
        }
        if is_receive(entry) {
            self.take((entry.wr_id & (RECEIVE - 1)) as usize, entry.byte_len as usize);
            self.wake();
            return;
        }
        // All that was posted before it is over as well.
        let number = entry.wr_id as u32;
        while let Some((n, sent)) = self.sent.pop_front() {
            match sent {
                Sent::Message(slot, _) | Sent::Slot(slot, ..) => self.free.push(slot),
                Sent::Write { work, .. } => {
                    self.writes -= 1;
                    placed(work);
                }
                Sent::Question(at) => self.acknowledged = Some(at),
            }
            if n == number {
                break;
            }
        }
        self.wake();
        self.send_about_alternates_on();
    }

    /// A message has come into a slot.
    fn take(&mut self, slot: usize, len: usize) {
        // What was written before it is in the ring by now.
        self.look_at_ring();
        if self.ended == Some(CloseReason::Damaged) {
            return;
        }
        let header = self.slots.slot(slot).get(..len).and_then(Header::read);
        let taken = self.ring.as_ref().map_or(0, Ring::taken);
        // A peer cannot return more than it was sent.
        let allowed = |h: &Header| {
            self.credits + usize::from(h.credits) <= self.shape.messages
                && h.written == taken
                && self.far_ring.give_back(h.given_back)
        };
        let Some(header) = header.filter(allowed) else {
            self.end(CloseReason::Damaged);
            return;
        };
        self.credits += usize::from(header.credits);
        self.greeted = true;
        self.counted_received = self.counted_received.wrapping_add(header.is_counted().into());
        match header.kind {
            MessageKind::RingOpened => {
                let place = ring_from_bytes(&self.slots.slot(slot)[HEADER_BYTES..len]);
                self.far_ring.set(place.filter(|_| self.rings.far));
            }
            MessageKind::RingClosed => {
                self.far_ring.set(None);
                self.wake_is_due = !self.far_ring.is_empty();
            }
            MessageKind::Alternate => self.take_message(slot),
            MessageKind::Data | MessageKind::Answer => {}
        }
        if header.kind == MessageKind::Data && header.bytes > 0 {
            self.has_datagram(Arrived::Message(slot, HEADER_BYTES, len));
        } else if header.is_counted() {
            self.is_read(slot);
            self.give_back();
        } else {
            // At once: the peer sends the next one when it has what this one makes possible.
            self.empty.push(slot);
            if self.ended.is_none() && self.post_receives().is_err() {
                self.end(CloseReason::Reset);
            }
        }
        self.send_about_alternates_on();
    }

    /// A message about alternate paths has come into a slot. Only streams have any.
    fn take_message(&mut self, slot: usize) {
        let bytes = self.slots.slot(slot)[HEADER_BYTES..].first_chunk();
        match bytes.and_then(Message::read).filter(|_| self.shape == &Shape::STREAM) {
            Some(message) => {
                if self.about_received.len() == ABOUT_MAX {
                    self.about_received.pop_front();
                }
                self.about_received.push_back(message);
            }
            None => self.end(CloseReason::Damaged),
        }
    }
}
