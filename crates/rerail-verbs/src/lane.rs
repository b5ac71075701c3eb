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

mod alternates;
mod credits;
mod memory;
mod rings;
mod shape;
#[cfg(test)]
pub mod tests;

use crate::abi::*;
use crate::adapter::{Adapter, Slots, inline_flag};
use crate::agreement::Message;
use crate::message::{HEADER_BYTES, Header, MessageKind, ring_from_bytes};
use crate::posting::{AT_ONCE, Sends, send_work};
use crate::registrations::{Registrations, Source};
use crate::ring::{FarRing, Ring};
use crate::shared::{Pool, Share};
pub use crate::work::{LaneNumber, RECEIVE, is_receive, lane_of};
use memory::Memory;
use rerail_rail::{CloseReason, FarKernel, IoVec, Place, Posted, RailId, WorkId};
pub use shape::{DATAGRAM_BYTES_MAX, PLACES_MAX, SPARE, Shape, attributes};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Messages until one reports its end: each report is an entry in the completion queue.
const SIGNAL_EVERY: u32 = 4;

/// Which rings a lane uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rings {
    /// It has one for the peer's datagrams.
    pub own: bool,
    /// It writes into the peer's.
    pub far: bool,
}

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
    memory: Memory,
    /// Slots to send from.
    free: Vec<usize>,
    /// How many of those that the lane has are more than it had at first.
    lent_slots: usize,
    /// In order, with their numbers: what was posted and is not over, and behind it what is not posted.
    sent: VecDeque<(u32, Sent)>,
    /// How many at the end are not.
    unposted: usize,
    next: u32,
    writes: u16,
    /// Messages with bytes that the peer has room for.
    credits: usize,
    /// The same of this side, as the peer will know when all that was sent has arrived.
    due: usize,
    /// Those of which the receives are posted, and that it does not know of.
    owed: usize,
    /// All credits of the peer: those it has, those that it has used and those that are owed.
    limit: usize,
    /// A long message has come, or many, since the peer got more credits.
    filled: bool,
    /// The peer was told to give some back, once or more often.
    recalled: bool,
    /// The lane that is to be told so, because this one got no more.
    to_recall: Option<LaneNumber>,
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
    /// A message that brings nothing has come; there is one greeting.
    bare: bool,
    /// When the question was posted that the peer's adapter has acknowledged last.
    acknowledged: Option<Instant>,
    ended: Option<CloseReason>,
    /// The peer may not know that: its adapter reports nothing where receives are shared.
    hangs_up: bool,
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

impl Drop for Lane {
    fn drop(&mut self) {
        self.forget_recall();
    }
}

impl Lane {
    /// Over a queue pair that is not connected, of which each request has room for so many bytes. All receives are posted, to
    /// the shared queue of the queue pair if it has one.
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
        (shape, pool): (&'static Shape, Option<&Arc<Pool>>),
        rings: Rings,
    ) -> io::Result<Lane> {
        let half = shape.messages() + SPARE;
        let (memory, free, empty, limit) = match pool {
            Some(pool) => {
                let (share, free) = Share::new(pool, number)?;
                (Memory::Shared(share), free, Vec::new(), shape.start())
            }
            None => {
                let slots = shape.slots(adapter)?;
                (Memory::Own(slots), (0..half).collect(), (half..2 * half).collect(), shape.messages())
            }
        };
        let mut lane = Lane {
            number,
            rail,
            shape,
            adapter: adapter.clone(),
            registrations: registrations.clone(),
            qp,
            inline_max,
            memory,
            free,
            lent_slots: 0,
            sent: VecDeque::new(),
            unposted: 0,
            next: 0,
            writes: 0,
            credits: shape.start(),
            due: shape.start(),
            owed: limit - shape.start(),
            limit,
            filled: false,
            recalled: false,
            to_recall: None,
            empty,
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
            bare: false,
            acknowledged: None,
            ended: None,
            hangs_up: false,
            is_over: Arc::default(),
        };
        lane.post_receives()?;
        Ok(lane)
    }

    /// As if both sides had sent their first messages.
    #[cfg(any(test, feature = "hostile"))]
    pub fn is_begun(&mut self) {
        (self.due, self.owed) = (self.due + std::mem::take(&mut self.owed), 0);
        self.credits = self.limit;
    }

    /// What an adapter of tests does.
    #[cfg(any(test, feature = "hostile"))]
    pub fn fill(&mut self, slot: usize, message: &[u8]) {
        self.memory.slot_mut(slot)[..message.len()].copy_from_slice(message);
    }

    /// The same for its ring.
    #[cfg(any(test, feature = "hostile"))]
    pub fn fill_ring(&mut self, number: u32, at: usize, bytes: &[u8]) {
        self.ring.iter().for_each(|ring| ring.fill(number, at, bytes));
    }

    fn end(&mut self, why: CloseReason) {
        self.hangs_up |= self.ended.is_none();
        self.ended.get_or_insert(why);
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Set when the lane knows that it is over: no sleeper needs to be woken to learn it.
    pub fn is_over(&self) -> Arc<AtomicBool> {
        self.is_over.clone()
    }

    /// The number of its queue pair.
    ///
    /// # Safety
    /// That is not destroyed yet.
    pub unsafe fn number_of_pair(&self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { (*self.qp).qp_num }
    }

    /// Moves its queue pair to the state of errors: it sends and receives nothing any more. One that is not connected may refuse.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn stop(&self) {
        // SAFETY: numbers only, for which 0 is valid.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = IBV_QPS_ERR;
        // SAFETY: the caller's promise.
        unsafe { (self.adapter.library.ibv_modify_qp)(self.qp, &raw mut attributes, IBV_QP_STATE) };
    }

    /// The connection is over, as the connection manager reports.
    pub fn disconnected(&mut self) {
        self.look_at_ring();
        self.end(CloseReason::Reset);
        self.hangs_up = false;
    }

    /// Whether the connection manager should tell the peer that the connection is over; once.
    pub fn take_hang_up(&mut self) -> bool {
        std::mem::take(&mut self.hangs_up)
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
        self.writes < self.shape.places()
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
        self.post_few_receives();
        let header = Header {
            credits: self.owed as u16,
            bytes: bytes as u32,
            kind,
            written: self.far_ring.written(),
            given_back: self.ring.as_ref().map_or(0, Ring::given_back),
        };
        self.memory.slot_mut(slot)[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.due += std::mem::take(&mut self.owed);
        self.owes_answer = false;
        // It wakes the peer, and makes it look.
        self.wake_is_due = false;
        if header.is_counted() {
            self.credits -= 1;
            self.counted_sent = self.counted_sent.wrapping_add(1);
        }
        self.queue(Sent::Message(slot, HEADER_BYTES + bytes));
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
                let is_last = at + 1 == self.sent.len();
                if *len == HEADER_BYTES || number % SIGNAL_EVERY == 0 || is_last && self.needs_slots() {
                    flags |= IBV_SEND_SIGNALED;
                }
                (self.memory.element(*slot, *len), flags, None)
            }
            Sent::Slot(slot, len, to) => {
                let reports = if number % SIGNAL_EVERY == 0 { IBV_SEND_SIGNALED } else { 0 };
                let flags = inline_flag(*len, self.inline_max) | reports;
                (self.memory.element(*slot, *len), flags, Some(*to))
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
        while self.ended.is_none() && pieces.peek().is_some() {
            self.borrow_slots();
            if !self.has_room() {
                break;
            }
            let slot = *self.free.last().expect("there is room");
            let mut at = HEADER_BYTES;
            while let Some((from, len)) = pieces.peek_mut() {
                let n = (*len).min(self.shape.message_bytes() - at);
                if n == 0 {
                    break;
                }
                // SAFETY: inside the piece, by the caller's promise, and inside the slot.
                unsafe {
                    std::ptr::copy_nonoverlapping(*from, self.memory.slot_mut(slot)[at..].as_mut_ptr(), n);
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
                    let bytes = &self.memory.slot(*slot)[*from..][..n];
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
        self.memory.slot_mut(slot)[HEADER_BYTES..][..bytes.len()].copy_from_slice(bytes);
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

    fn has_datagram(&mut self, what: Arrived) {
        self.datagrams = self.datagrams.saturating_add(1);
        self.owes_answer = true;
        self.arrived.push_back(what);
    }

    /// The datagram that came first, and its length. One that is longer than the buffer is dropped.
    pub fn receive_datagram(&mut self, buf: &mut [u8]) -> Option<usize> {
        let mut found = None;
        while let Some(what) = self.arrived.pop_front() {
            let (len, fits) = match what {
                Arrived::Message(slot, from, to) => {
                    let room = buf.get_mut(..to - from);
                    let fits = room.is_some();
                    room.into_iter().for_each(|room| room.copy_from_slice(&self.memory.slot(slot)[from..to]));
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
        let told = self.acknowledged.map(|at| FarKernel::new(at.elapsed(), self.sent.is_empty()));
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
        self.return_slots();
        // What could not be said before, because no slot was free.
        self.give_back();
        self.wake();
        self.send_about_alternates_on();
    }

    /// A message has come into a slot.
    fn take(&mut self, slot: usize, len: usize) {
        // What was written before it is in the ring by now.
        self.look_at_ring();
        if self.ended == Some(CloseReason::Damaged) {
            self.post_at_once(slot);
            return;
        }
        let header = self.memory.slot(slot).get(..len).and_then(Header::read);
        let taken = self.ring.as_ref().map_or(0, Ring::taken);
        // A peer cannot return more than it was sent, nor send more than it may.
        let allowed = |h: &Header| {
            self.credits + usize::from(h.credits) <= self.shape.messages()
                && (if h.is_counted() { self.due > 0 } else { h.credits > 0 || !self.bare })
                && h.written == taken
                && self.far_ring.give_back(h.given_back)
        };
        let Some(header) = header.filter(allowed) else {
            self.end(CloseReason::Damaged);
            self.post_at_once(slot);
            return;
        };
        self.credits += usize::from(header.credits);
        self.due -= usize::from(header.is_counted());
        self.bare |= !header.is_counted() && header.credits == 0;
        self.greeted = true;
        self.counted_received = self.counted_received.wrapping_add(header.is_counted().into());
        if header.is_counted() {
            self.counts(len);
        }
        match header.kind {
            MessageKind::RingOpened => {
                let place = ring_from_bytes(&self.memory.slot(slot)[HEADER_BYTES..len]);
                self.far_ring.set(place.filter(|_| self.rings.far));
            }
            MessageKind::RingClosed => {
                self.far_ring.set(None);
                self.wake_is_due = !self.far_ring.is_empty();
            }
            MessageKind::Alternate => self.take_message(slot),
            MessageKind::Recall => self.give_credits_back(),
            MessageKind::GivenBack => self.take_credits_back(slot),
            MessageKind::Data | MessageKind::Answer => {}
        }
        if header.kind == MessageKind::Data && header.bytes > 0 {
            self.has_datagram(Arrived::Message(slot, HEADER_BYTES, len));
        } else if header.is_counted() {
            self.is_read(slot);
            self.give_back();
        } else {
            // At once: the peer sends the next one when it has what this one makes possible.
            self.post_at_once(slot);
            // A side that has receives of its own grants them behind the first message.
            self.give_back();
        }
        self.send_about_alternates_on();
    }
}
