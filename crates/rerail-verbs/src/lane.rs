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
/// Messages about alternate paths that wait for a credit, or to be heard.
const UNSAID_MAX: usize = 4;
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
    /// What is to be said to the peer about alternate paths, and what it has said.
    unsaid: VecDeque<Message>,
    said: VecDeque<Message>,
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
            unsaid: VecDeque::new(),
            said: VecDeque::new(),
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

    /// Says this about alternate paths, as soon as there is a credit for it. Of more than a few only the newest are of use.
    pub fn say(&mut self, message: Message) {
        if self.unsaid.len() == UNSAID_MAX {
            self.unsaid.pop_front();
        }
        self.unsaid.push_back(message);
        self.say_on();
    }

    fn say_on(&mut self) {
        while !self.unsaid.is_empty() && self.has_room() && self.ended.is_none() {
            let Some(message) = self.unsaid.pop_front() else { break };
            let slot = *self.free.last().expect("there is room");
            self.slots.slot_mut(slot)[HEADER_BYTES..][..agreement::BYTES]
                .copy_from_slice(&message.to_bytes());
            self.send_message(agreement::BYTES, MessageKind::Alternate);
            // At once: what is refused later would be taken for bytes of the stream.
            self.flush();
        }
    }

    /// What the peer has said about them.
    pub fn heard(&mut self) -> Option<Message> {
        self.said.pop_front()
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
        self.say_on();
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
        self.say_on();
    }

    /// A message about alternate paths has come into a slot. Only streams have any.
    fn take_message(&mut self, slot: usize) {
        let bytes = self.slots.slot(slot)[HEADER_BYTES..].first_chunk();
        match bytes.and_then(Message::read).filter(|_| self.shape == &Shape::STREAM) {
            Some(message) => {
                if self.said.len() == UNSAID_MAX {
                    self.said.pop_front();
                }
                self.said.push_back(message);
            }
            None => self.end(CloseReason::Damaged),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fake::{self, Work, posted, regions};
    use rerail_rail::RemoteKey;

    /// The bytes of the messages that were posted since the last call.
    pub fn sent() -> Vec<Vec<u8>> {
        let bytes = |work| match work {
            Work::Send(_, bytes, ..) => Some(bytes),
            _ => None,
        };
        posted().into_iter().filter_map(bytes).collect()
    }

    /// Puts a message of the peer into a slot that receives; the completion that reports it.
    pub fn receives(lane: &mut Lane, nth: usize, bytes: &[u8]) -> ibv_wc {
        let slot = lane.shape.messages + SPARE + nth;
        let message = message(0, bytes);
        lane.fill(slot, &message);
        let wr_id = u64::from(lane.number) << 32 | RECEIVE | slot as u64;
        ibv_wc { wr_id, status: IBV_WC_SUCCESS, byte_len: message.len() as u32, ..ibv_wc::default() }
    }

    #[test]
    fn what_is_about_alternate_paths_takes_a_credit_and_is_not_of_the_stream() {
        let mut lane = lane();
        posted();
        let said = Message::Refused { number: 9 };
        assert_eq!(
            write(&mut lane, &vec![0; MESSAGES * MESSAGE_BYTES]),
            MESSAGES * (MESSAGE_BYTES - HEADER_BYTES)
        );
        lane.say(said);
        assert_eq!(sent().len(), MESSAGES, "there is no credit for it");
        let returns = Header { credits: 1, ..Header::default() };
        comes(&mut lane, FIRST, &returns.to_bytes());
        assert_eq!(sent(), [] as [Vec<u8>; 0], "nor a slot that is free");
        lane.complete(&entry(3, IBV_WC_SUCCESS, 0), |_| unreachable!());
        assert_eq!(sent(), [said.to_bytes()]);
        let header =
            Header { kind: MessageKind::Alternate, bytes: agreement::BYTES as u32, ..Header::default() };
        let message = [&header.to_bytes()[..], &said.to_bytes()].concat();
        comes(&mut lane, FIRST + 1, &message);
        assert_eq!((lane.heard(), lane.heard(), lane.has_input()), (Some(said), None, false));
        assert_eq!(lane.unposted_credits, 1, "its credit goes back with the others");
        let malformed = [&header.to_bytes()[..], &[0xff; agreement::BYTES]].concat();
        comes(&mut lane, FIRST + 2, &malformed);
        assert_eq!(lane.over(), Some(CloseReason::Damaged));
        let mut datagrams = lane_of_shape(&Shape::DATAGRAMS);
        let first = datagrams.shape.messages + SPARE;
        comes(&mut datagrams, first, &message);
        assert_eq!(datagrams.over(), Some(CloseReason::Damaged), "only streams have any");
    }

    /// As [`receives`]: a message without bytes that returns credits.
    pub fn returns(lane: &mut Lane, credits: u16) -> ibv_wc {
        let slot = lane.shape.messages + SPARE;
        let message = message(credits, b"");
        lane.fill(slot, &message);
        let wr_id = u64::from(lane.number) << 32 | RECEIVE | slot as u64;
        ibv_wc { wr_id, status: IBV_WC_SUCCESS, byte_len: message.len() as u32, ..ibv_wc::default() }
    }

    /// The completion that reports the end of the message with this number, and of those before it.
    pub fn is_sent(lane: &Lane, number: u32) -> ibv_wc {
        let wr_id = u64::from(lane.number) << 32 | u64::from(number);
        ibv_wc { wr_id, status: IBV_WC_SUCCESS, ..ibv_wc::default() }
    }

    /// The completion that reports the end of the connection.
    pub fn breaks(lane: &Lane) -> ibv_wc {
        let wr_id = u64::from(lane.number) << 32 | RECEIVE;
        ibv_wc { wr_id, status: IBV_WC_SUCCESS + 5, ..ibv_wc::default() }
    }

    /// A lane over an adapter that keeps what is posted.
    fn lane() -> Lane {
        lane_of_shape(&Shape::STREAM)
    }

    fn lane_of_shape(shape: &'static Shape) -> Lane {
        fake::lane(2, shape)
    }

    fn entry(id: u64, status: u32, bytes: usize) -> ibv_wc {
        let wr_id = 2 << 32 | id;
        ibv_wc { wr_id, status, byte_len: bytes as u32, ..ibv_wc::default() }
    }

    /// A message of the peer comes into a slot.
    fn comes(lane: &mut Lane, slot: usize, message: &[u8]) {
        lane.fill(slot, message);
        lane.complete(&entry(RECEIVE | slot as u64, IBV_WC_SUCCESS, message.len()), |_| unreachable!());
    }

    fn message(credits: u16, bytes: &[u8]) -> Vec<u8> {
        let header = Header { credits, bytes: bytes.len() as u32, ..Header::default() };
        [&header.to_bytes()[..], bytes].concat()
    }

    /// The second word is the region's base.
    fn place(source: &[u8], work: u64) -> Place {
        Place {
            work: WorkId(work),
            source: IoVec::from_ref(source),
            whole: IoVec::from_ref(source),
            key: RemoteKey::of(0x1234, 0x5000),
            offset: 16,
        }
    }

    fn write(lane: &mut Lane, bytes: &[u8]) -> usize {
        // SAFETY: a slice that lives through the call.
        unsafe { lane.write(&[IoVec::from_ref(bytes)]) }
    }

    fn read(lane: &mut Lane, room: usize) -> Vec<u8> {
        let mut bytes = vec![0; room];
        // SAFETY: as above.
        let n = unsafe { lane.read(&[IoVec::from_mut(&mut bytes)]) };
        bytes.truncate(n);
        bytes
    }

    const MESSAGES: usize = Shape::STREAM.messages;
    const MESSAGE_BYTES: usize = Shape::STREAM.message_bytes;
    const FIRST: usize = MESSAGES + SPARE;

    #[test]
    fn no_message_is_sent_for_which_the_peer_has_no_receive() {
        let mut lane = lane();
        assert_eq!(posted().len(), MESSAGES + SPARE, "all receives are posted first");
        let payload = MESSAGE_BYTES - HEADER_BYTES;
        let bytes = vec![5; MESSAGES * payload + 1];
        assert_eq!(write(&mut lane, &bytes), MESSAGES * payload);
        assert!(!lane.has_room() && write(&mut lane, &bytes) == 0);
        let sent = posted();
        assert_eq!(sent.len(), MESSAGES);
        // Their ends are reported, and still the peer has no room.
        let ends = |w: &Work| match w {
            Work::Send(_, _, true, number) => Some(*number),
            _ => None,
        };
        let last = sent.iter().rev().find_map(ends).expect("some report their end");
        lane.complete(&entry(last.into(), IBV_WC_SUCCESS, 0), |_| unreachable!());
        assert!(!lane.has_room());
        comes(&mut lane, FIRST, &message(1, b""));
        assert_eq!(posted(), [Work::Receive(FIRST as u64)], "its slot receives again at once");
        assert_eq!(write(&mut lane, &bytes), payload, "one was returned");
    }

    #[test]
    fn credits_are_returned_when_half_of_them_are_owed() {
        let mut lane = lane();
        posted();
        for i in 0..MESSAGES / 2 {
            comes(&mut lane, FIRST + i, &message(0, &[i as u8; 3]));
        }
        assert_eq!(posted(), [], "nothing is returned that is not read");
        let before = fake::calls();
        assert_eq!(read(&mut lane, 4), [0, 0, 0, 1]);
        assert_eq!(posted(), [], "a receive waits for others");
        write(&mut lane, b"x");
        let bytes = |credits| Header { credits, bytes: 1, ..Header::default() };
        assert!(matches!(&posted()[..], [Work::Send(h, ..)] if *h == bytes(0)), "its credit waits for it");
        assert_eq!(read(&mut lane, 100).len(), 3 * MESSAGES / 2 - 4);
        let half = MESSAGES as u16 / 2;
        let all = posted();
        let (last, receives) = all.split_last().expect("all was read");
        let expected: Vec<_> = (FIRST..FIRST + MESSAGES / 2).map(|slot| Work::Receive(slot as u64)).collect();
        assert_eq!(receives, expected, "the receives are there before the credits are returned");
        let returned = Header { credits: half, ..Header::default() };
        assert!(matches!(last, Work::Send(h, _, true, _) if *h == returned));
        let calls = fake::calls();
        assert_eq!((calls.receives - before.receives, calls.sends - before.sends), (1, 2), "one for all");
        let few = Shape::STREAM.receives_at_once();
        (0..few).for_each(|n| comes(&mut lane, FIRST + n, &message(0, b"x")));
        assert_eq!(read(&mut lane, few).len(), few);
        assert_eq!(posted().len(), few, "so many do not wait");
        write(&mut lane, b"y");
        assert!(matches!(&posted()[..], [Work::Send(h, b, ..)] if *h == bytes(few as u16) && b == b"y"));
    }

    #[test]
    fn what_one_call_of_the_engine_sends_is_posted_by_one_call_of_the_adapter() {
        let mut lane = lane();
        posted();
        let before = fake::calls();
        let source = [1; 100];
        // SAFETY: the source lives as long as the lane.
        unsafe { assert_eq!([1, 2, 3].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 3]) };
        assert_eq!(posted(), [], "they wait for the message that announces them");
        let bytes = vec![7; 3 * MESSAGE_BYTES];
        assert_eq!(write(&mut lane, &bytes), bytes.len());
        assert_eq!(fake::calls().sends - before.sends, 1);
        let all = posted();
        let reports: Vec<bool> = all
            .iter()
            .map(|w| match w {
                Work::Write(.., reports, _) | Work::Send(_, _, reports, _) => *reports,
                _ => unreachable!("nothing came"),
            })
            .collect();
        // three writes and four messages, of which the fifth work is a fourth message
        assert_eq!(reports, [false, false, false, false, true, false, false]);
        let mut over = Vec::new();
        lane.complete(&entry(4, IBV_WC_SUCCESS, 0), |work| over.push(work));
        assert_eq!(over, [1, 2, 3].map(WorkId), "the message behind them reports their ends");
        // more than a call takes
        let before = fake::calls();
        assert_eq!(write(&mut lane, &vec![7; 20 * MESSAGE_BYTES]), 12 * (MESSAGE_BYTES - HEADER_BYTES));
        assert_eq!(fake::calls().sends - before.sends, 1, "{MESSAGES} messages are under way at most");
        posted();
        // without a message behind it the last write reports the end
        // SAFETY: as above.
        unsafe { assert_eq!([4, 5].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 2]) };
        assert_eq!(lane.flush(), Refused::default());
        assert!(matches!(posted()[..], [Work::Write(.., false, _), Work::Write(.., true, _)]));
    }

    #[test]
    fn what_an_adapter_refuses_in_the_middle_of_a_call_is_neither_sent_nor_counted() {
        let payload = MESSAGE_BYTES - HEADER_BYTES;
        let source = [1; 100];
        for took in 0..=6 {
            let mut lane = lane();
            let registrations = lane.registrations.clone();
            posted();
            // SAFETY: the source lives as long as the lane.
            unsafe { assert_eq!([1, 2].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 2]) };
            fake::refuses_after(Some(took));
            let taken = write(&mut lane, &vec![7; 4 * payload]);
            fake::refuses_after(None);
            let is_over = took < 6;
            assert_eq!(lane.over().is_some(), is_over, "{took}");
            assert_eq!(
                taken,
                took.saturating_sub(2) * payload,
                "{took}: the bytes of messages that were posted"
            );
            assert_eq!(posted().len(), took);
            let slots = lane.sent.iter().filter(|(_, what)| matches!(what, Sent::Message(..))).count();
            assert_eq!(slots, took.saturating_sub(2), "{took}: the slots of messages that were posted");
            assert_eq!(lane.free.len(), MESSAGES + SPARE - slots, "{took}: the others are free");
            let before = regions();
            registrations.release();
            assert_eq!(
                (lane.writes, regions()),
                (2, before),
                "{took}: what was lent stays so, also if not posted"
            );
            // nothing more is posted to it, and ends that the adapter reports are taken
            assert_eq!(
                (write(&mut lane, b"x"), posted().len()),
                (usize::from(!is_over), usize::from(!is_over))
            );
            let mut over = 0;
            if took > 0 {
                lane.complete(&entry(took as u64 - 1, IBV_WC_SUCCESS, 0), |_| over += 1);
            }
            assert_eq!(over, took.min(2), "{took}");
        }
    }

    #[test]
    fn a_receive_that_is_refused_ends_the_lane_and_returns_no_credit() {
        let mut lane = lane();
        posted();
        (0..MESSAGES / 2).for_each(|n| comes(&mut lane, FIRST + n, &message(0, b"x")));
        fake::refuses_after(Some(3));
        assert_eq!(read(&mut lane, 100).len(), MESSAGES / 2);
        fake::refuses_after(None);
        assert_eq!(posted(), [0, 1, 2].map(|n| Work::Receive((FIRST + n) as u64)));
        assert_eq!((lane.over(), lane.owed), (Some(CloseReason::Reset), 0));
    }

    #[test]
    fn a_datagram_is_answered_once_and_an_answer_is_not() {
        let mut lane = lane_of_shape(&Shape::DATAGRAMS);
        let first = Shape::DATAGRAMS.messages + SPARE;
        posted();
        let mut buf = [0; DATAGRAM_BYTES_MAX];
        for (slot, datagram) in [&b"one"[..], b"two"].iter().enumerate() {
            comes(&mut lane, first + slot, &message(0, datagram));
        }
        assert!(lane.owes_answer());
        assert_eq!(lane.receive_datagram(&mut buf).map(|n| buf[..n].to_vec()), Some(b"one".to_vec()));
        posted();
        lane.answer();
        lane.answer();
        let answer = Header { kind: MessageKind::Answer, ..Header::default() };
        assert!(matches!(&posted()[..], [Work::Send(h, ..)] if *h == answer), "one for both");
        assert_eq!(lane.credits, Shape::DATAGRAMS.messages - 1, "it takes a credit");
        // Of the peer's each takes a credit, which is returned, but not by an answer.
        let few = Shape::DATAGRAMS.receives_at_once();
        for n in 0..few - 1 {
            comes(&mut lane, first + n, &answer.to_bytes());
        }
        assert_eq!(posted().len(), few, "with that of the datagram");
        assert!(!lane.owes_answer());
        assert!(lane.send_datagram(b"x"));
        assert!(matches!(&posted()[..], [Work::Send(h, ..)] if h.credits == few as u16));
        // a datagram that is sent is an answer too
        comes(&mut lane, first, &message(0, b"three"));
        assert!(lane.owes_answer() && lane.send_datagram(b"y") && !lane.owes_answer());
    }

    #[test]
    fn datagrams_keep_their_borders_and_one_without_room_is_not_sent() {
        let mut lane = lane_of_shape(&Shape::DATAGRAMS);
        let first = Shape::DATAGRAMS.messages + SPARE;
        posted();
        let longest = [7; DATAGRAM_BYTES_MAX];
        for _ in 0..Shape::DATAGRAMS.messages {
            assert!(lane.send_datagram(&longest));
        }
        assert!(!lane.send_datagram(b"x"), "the peer has no room");
        assert!(posted().iter().all(|w| matches!(w, Work::Send(_, bytes, ..) if *bytes == longest)));
        let mut buf = [0; 4];
        for (slot, datagram) in [&b"long."[..], b"abcd", b"e"].iter().enumerate() {
            comes(&mut lane, first + slot, &message(0, datagram));
        }
        assert_eq!(lane.receive_datagram(&mut buf), Some(4), "one that is too long is dropped");
        assert_eq!(&buf, b"abcd");
        assert_eq!(lane.receive_datagram(&mut buf), Some(1));
        assert_eq!(lane.receive_datagram(&mut buf), None);
        assert_eq!(lane.empty, [first, first + 1, first + 2], "their slots receive again");
    }

    #[test]
    fn what_a_peer_must_not_send_ends_the_lane_and_is_not_read() {
        let wrong: [(&str, Vec<u8>); 5] = [
            ("too short", message(0, b"")[..7].to_vec()),
            ("longer than it says", [message(0, b"abc"), vec![0]].concat()),
            ("shorter than it says", message(0, b"abc")[..18].to_vec()),
            ("another version", [&[1][..], &message(0, b"abc")[1..]].concat()),
            ("credits that it was not given", message(1, b"abc")),
        ];
        for (what, bytes) in wrong {
            let mut lane = lane();
            comes(&mut lane, FIRST, &message(0, b"before"));
            comes(&mut lane, FIRST + 1, &bytes);
            assert_eq!(lane.over(), None, "{what}: what came before is read first");
            assert_eq!(read(&mut lane, 100), b"before", "{what}");
            assert_eq!(lane.over(), Some(CloseReason::Damaged), "{what}");
            posted();
            assert_eq!(write(&mut lane, b"x"), 0, "{what}");
            assert_eq!(posted(), [], "{what}");
        }
    }

    #[test]
    fn a_write_is_over_when_the_adapter_reports_it_and_stays_lent_when_the_lane_breaks() {
        let mut lane = lane();
        let before = regions();
        let source = [1; 100];
        posted();
        // SAFETY: the source lives as long as the lane.
        unsafe { assert_eq!([1, 2].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 2]) };
        lane.flush();
        let [Work::Write(0x5010, 0x1234, 100, false, first), Work::Write(.., true, second)] = posted()[..]
        else {
            panic!("two writes, behind the base address")
        };
        // SAFETY: as above.
        unsafe { assert_eq!(lane.place(&place(&source, 3)), Posted::Lent) };
        lane.flush();
        let mut over = Vec::new();
        lane.complete(&entry(second.into(), IBV_WC_SUCCESS, 0), |work| over.push(work));
        assert_eq!(over, [WorkId(1), WorkId(2)], "{first} was posted before {second}");
        let registrations = lane.registrations.clone();
        registrations.release();
        assert_eq!(regions(), before + 1, "one registration for all parts of a message");
        lane.complete(&entry(u64::from(second) + 1, IBV_WC_SUCCESS + 12, 0), |_| unreachable!());
        assert_eq!((lane.over(), lane.lends()), (Some(CloseReason::Reset), true));
        registrations.release();
        assert_eq!(regions(), before + 1, "its source is registered until the queue pair is gone");
        // SAFETY: as above.
        assert_eq!(unsafe { lane.place(&place(&source, 4)) }, Posted::Refused);
        drop(lane);
        registrations.release();
        assert_eq!(regions(), before - 1, "what is over is not registered any more");
    }

    #[test]
    fn the_peers_adapter_is_asked_by_a_write_of_nothing_and_its_answer_is_as_old_as_the_question() {
        let mut lane = lane();
        posted();
        assert_eq!(lane.far_adapter(), None, "nothing is known before the first question");
        let [Work::Write(0, 0, 0, true, question)] = posted()[..] else { panic!("a question") };
        assert_eq!(lane.far_adapter(), None);
        assert_eq!(posted(), [], "one at a time");
        write(&mut lane, b"x");
        posted();
        let before = Instant::now();
        lane.complete(&entry(question.into(), IBV_WC_SUCCESS, 0), |_| unreachable!("nothing is lent"));
        let told = lane.far_adapter().expect("it was acknowledged");
        assert!(told.heard >= before.elapsed(), "not from when the answer was read");
        assert!(!told.has_all, "a message was sent behind the question");
        let [Work::Write(0, 0, 0, true, question)] = posted()[..] else { panic!("the next question") };
        lane.complete(&entry(question.into(), IBV_WC_SUCCESS, 0), |_| unreachable!());
        assert!(lane.far_adapter().is_some_and(|told| told.has_all), "all before it has arrived");
        posted();
        lane.disconnected();
        assert_eq!((lane.far_adapter(), posted()), (None, vec![]), "it is over");
    }

    /// Two lanes, and what an adapter does between them.
    struct Pair {
        lanes: [Lane; 2],
        /// Slots that receive, in order.
        receives: [VecDeque<u64>; 2],
        /// What each side has posted and that has not arrived.
        under_way: [VecDeque<Work>; 2],
    }

    impl Pair {
        fn new() -> Pair {
            posted();
            let mut receives = [VecDeque::new(), VecDeque::new()];
            let lanes = [0, 1].map(|side| {
                let rings = Rings { own: true, far: true };
                let lane = fake::lane_with(2, &Shape::DATAGRAMS, rings);
                receives[side] =
                    posted().iter().map(|w| if let Work::Receive(n) = w { *n } else { panic!() }).collect();
                lane
            });
            Pair { lanes, receives, under_way: [VecDeque::new(), VecDeque::new()] }
        }

        /// Lets a lane do something. What it posts is under way, and its ends are reported.
        fn act<T>(&mut self, side: usize, act: impl FnOnce(&mut Lane) -> T) -> T {
            let result = act(&mut self.lanes[side]);
            loop {
                let mut last = None;
                for work in posted() {
                    match work {
                        Work::Receive(slot) => self.receives[side].push_back(slot),
                        Work::Send(_, _, reports, n) | Work::Slot(_, _, reports, n) => {
                            last = if reports { Some(n) } else { last };
                            self.under_way[side].push_back(work);
                        }
                        _ => unreachable!("datagrams only"),
                    }
                }
                let Some(n) = last else { return result };
                self.lanes[side].complete(&entry(n.into(), IBV_WC_SUCCESS, 0), |_| unreachable!());
            }
        }

        /// The next that a side has posted arrives; whether there was something, and whether it is reported.
        fn arrives(&mut self, from: usize) -> Option<bool> {
            let to = 1 - from;
            Some(match self.under_way[from].pop_front()? {
                Work::Send(header, bytes, ..) => {
                    let slot = self.receives[to].pop_front().expect("a message meets a receive");
                    let message = [&header.to_bytes()[..], &bytes].concat();
                    self.act(to, |lane| comes(lane, slot as usize, &message));
                    true
                }
                Work::Slot(at, bytes, ..) => {
                    let (_, base) = self.lanes[to].ring.as_ref().expect("it has one").place();
                    let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
                    assert_eq!(at - base, u64::from((number - 1) % ring::SLOTS) * ring::SLOT_BYTES as u64);
                    self.lanes[to].fill_ring(number, 0, &bytes);
                    false
                }
                _ => unreachable!("datagrams only"),
            })
        }

        fn all_arrives(&mut self) {
            while self.arrives(0).is_some() || self.arrives(1).is_some() {}
        }

        fn send(&mut self, side: usize, bytes: &[u8]) -> bool {
            self.act(side, |lane| lane.send_datagram(bytes))
        }

        /// What a side finds, when it looks.
        fn receive(&mut self, side: usize) -> Option<Vec<u8>> {
            let mut buf = [0; DATAGRAM_BYTES_MAX];
            self.act(side, |lane| {
                lane.look_at_ring();
                lane.receive_datagram(&mut buf)
            })
            .map(|len| buf[..len].to_vec())
        }

        /// The second side looks into its ring.
        fn opened() -> Pair {
            let mut p = Pair::new();
            for n in 0..BUSY_AFTER as u8 {
                assert!(!p.lanes[1].is_busy());
                assert!(p.send(0, &[n]));
                p.all_arrives();
                assert_eq!(p.receive(1), Some(vec![n]));
            }
            assert!(p.lanes[1].is_busy());
            assert!(p.act(1, Lane::open_ring));
            assert!(!p.lanes[1].is_busy() && !p.lanes[1].open_ring(), "once");
            p.all_arrives();
            p
        }
    }

    fn is_slot(work: Option<&Work>) -> bool {
        matches!(work, Some(Work::Slot(..)))
    }

    #[test]
    fn a_busy_side_opens_its_ring_and_small_datagrams_go_into_it_without_credits() {
        let mut p = Pair::opened();
        let credits = p.lanes[0].credits;
        for n in 0..100_u8 {
            assert!(p.send(0, &[n; 200]));
            assert!(is_slot(p.under_way[0].back()));
            assert_eq!(p.receive(1), None, "it has not arrived");
            p.all_arrives();
            assert_eq!(p.receive(1), Some(vec![n; 200]));
            // what comes back by messages gives the slots back
            assert!(p.lanes[1].owes_answer() && p.send(1, b"reply") && !p.lanes[1].owes_answer());
            p.all_arrives();
            assert_eq!(p.receive(0), Some(b"reply".to_vec()));
        }
        assert!(p.lanes[0].credits >= credits);
        assert!(p.send(0, &[1; ring::DATAGRAM_BYTES_MAX + 1]));
        assert!(!is_slot(p.under_way[0].back()), "it does not fit");
    }

    #[test]
    fn datagrams_are_taken_in_the_order_in_which_they_were_sent_whichever_way_they_go() {
        let mut p = Pair::opened();
        let mut sent = VecDeque::new();
        for n in 0..60_u8 {
            let datagram = vec![n; if n % 3 == 0 { 300 } else { 3 }];
            assert!(p.send(0, &datagram));
            sent.push_back(datagram);
        }
        let slots = p.under_way[0].iter().filter(|w| is_slot(Some(w))).count();
        assert_eq!(slots, ring::SLOTS as usize, "where the ring is full they go as messages");
        // Every second look finds something that was written and no message yet.
        while p.arrives(0).is_some() {
            if sent.len() % 2 == 0 {
                if let Some(found) = p.receive(1) {
                    assert_eq!(Some(found), sent.pop_front());
                }
            } else {
                p.lanes[1].look_at_ring();
            }
        }
        while let Some(found) = p.receive(1) {
            assert_eq!(Some(found), sent.pop_front());
        }
        assert!(sent.is_empty());
    }

    #[test]
    fn a_slot_that_is_seen_before_the_message_in_front_of_it_waits() {
        let mut p = Pair::opened();
        assert!(p.send(0, &[1; 300]) && p.send(0, &[2]));
        let message = p.under_way[0].pop_front().unwrap();
        p.arrives(0);
        assert_eq!(p.receive(1), None, "the adapter has written it; the message is not reported yet");
        p.under_way[0].push_front(message);
        p.arrives(0);
        assert_eq!((p.receive(1), p.receive(1)), (Some(vec![1; 300]), Some(vec![2])));
    }

    #[test]
    fn a_sleeper_is_woken_beside_what_was_written_before_its_peer_knew_of_the_sleep() {
        let mut p = Pair::opened();
        assert!(p.send(0, b"seen"));
        p.all_arrives();
        assert_eq!(p.receive(1), Some(b"seen".to_vec()));
        // The write is under way when the other side looks for the last time, and the peer does not know.
        assert!(p.send(0, b"late"));
        assert!(p.act(1, Lane::close_ring));
        assert!(!p.lanes[1].look_at_ring());
        assert_eq!(p.arrives(0), Some(false), "no completion wakes the sleeper");
        assert_eq!(p.arrives(1), Some(true), "it says that it sleeps");
        assert_eq!(p.arrives(0), Some(true), "which is answered by a message");
        assert_eq!(p.receive(1), Some(b"late".to_vec()));
        assert!(p.send(0, b"then") && !is_slot(p.under_way[0].back()), "messages from now on");
        p.all_arrives();
        assert_eq!(p.receive(1), Some(b"then".to_vec()));
        // a peer that has written nothing more sends nothing
        for _ in 0..BUSY_AFTER {
            assert!(p.send(0, b"x"));
            p.all_arrives();
            p.receive(1);
        }
        assert!(p.act(1, Lane::open_ring));
        p.all_arrives();
        assert!(p.send(0, b"x") && p.send(1, b"y"));
        p.all_arrives();
        p.receive(1);
        p.act(1, Lane::close_ring);
        p.all_arrives();
        let woken = p.under_way[0].len();
        assert_eq!(woken, 0);
    }

    #[test]
    fn the_end_of_looking_is_told_although_all_credits_are_used_and_the_peer_wakes_when_it_has_one() {
        let mut p = Pair::opened();
        while p.send(1, &[7; 300]) {}
        assert_eq!(p.lanes[1].credits, 1, "one is kept");
        // The peer has none either, and something of its is in the ring.
        while p.send(0, &[8; 300]) {}
        assert!(p.send(0, b"late") && is_slot(p.under_way[0].back()));
        assert!(p.act(1, Lane::close_ring));
        while p.arrives(1).is_some() {}
        assert!(p.lanes[0].wake_is_due);
        let last = p.under_way[0].len();
        // When the messages are read the credits come back, and the ring is looked at behind each of them.
        while p.arrives(0).is_some() {}
        let mut found = Vec::new();
        while let Some(datagram) = p.receive(1) {
            found.push(datagram);
        }
        assert_eq!((found.len(), found.last()), (last, Some(&b"late".to_vec())));
        p.all_arrives();
        assert!(!p.lanes[0].wake_is_due);
    }

    #[test]
    fn what_lies_in_a_ring_is_read_when_the_connection_has_ended() {
        let mut p = Pair::opened();
        assert!(p.send(0, b"goodbye"));
        p.all_arrives();
        p.lanes[1].disconnected();
        assert_eq!(p.lanes[1].over(), None);
        assert_eq!(p.receive(1), Some(b"goodbye".to_vec()));
        assert_eq!(p.lanes[1].over(), Some(CloseReason::Reset));
        assert!(!p.lanes[1].open_ring());
    }

    #[test]
    fn a_ring_that_is_not_wanted_is_not_written_and_a_peer_that_tells_wrong_numbers_is_ended() {
        let opened = |lane: &mut Lane, header: Header| {
            let header = Header { kind: MessageKind::RingOpened, bytes: RING_BYTES as u32, ..header };
            comes(lane, 66, &[&header.to_bytes()[..], &ring_to_bytes((fake::FAR_RING, 0x1000))].concat());
        };
        let mut lane = fake::lane_with(2, &Shape::DATAGRAMS, Rings { own: true, far: false });
        opened(&mut lane, Header::default());
        posted();
        assert!(lane.send_datagram(b"x"));
        assert!(matches!(posted()[..], [Work::Send(..)]));
        let wrong =
            [Header { written: 1, ..Header::default() }, Header { given_back: 1, ..Header::default() }];
        for header in wrong {
            let mut lane = fake::lane_with(2, &Shape::DATAGRAMS, Rings { own: true, far: true });
            opened(&mut lane, header);
            assert_eq!(lane.over(), Some(CloseReason::Damaged), "{header:?}");
            posted();
            assert!(!lane.send_datagram(b"x"));
        }
    }

    #[test]
    fn a_datagram_that_an_adapter_refuses_to_write_into_a_ring_is_not_sent() {
        let mut p = Pair::opened();
        fake::refuses_after(Some(1));
        let sent = p.act(0, |lane| {
            assert!(lane.queue_datagram(b"one") && lane.queue_datagram(b"two"));
            lane.flush().messages
        });
        fake::refuses_after(None);
        assert_eq!((sent, p.lanes[0].over()), (1, Some(CloseReason::Reset)));
    }

    #[test]
    fn a_source_that_may_not_be_registered_does_not_end_the_lane() {
        let mut lane = lane();
        let source = [1; 10];
        let (work, source) = (WorkId(1), IoVec::from_ref(&source));
        let place = Place { work, source, whole: source, key: RemoteKey::of(1, 0), offset: 0 };
        posted();
        fake::may_lock(false);
        // SAFETY: the source lives as long as the lane.
        let result = unsafe { lane.place(&place) };
        fake::may_lock(true);
        assert_eq!((result, posted(), lane.lends(), lane.over()), (Posted::Unreadable, vec![], false, None));
        // SAFETY: as above.
        assert_eq!(unsafe { lane.place(&place) }, Posted::Lent);
    }

    #[test]
    fn a_lane_takes_no_more_writes_than_its_rail_says() {
        let mut lane = lane();
        let source = [1; 10];
        for work in 0..=PLACES_MAX {
            let place = Place {
                work: WorkId(work.into()),
                source: IoVec::from_ref(&source),
                whole: IoVec::from_ref(&source),
                key: RemoteKey::of(1, 0),
                offset: 0,
            };
            // SAFETY: the source lives as long as the lane.
            assert_eq!(unsafe { lane.place(&place) } == Posted::Lent, work < PLACES_MAX);
        }
    }
}
