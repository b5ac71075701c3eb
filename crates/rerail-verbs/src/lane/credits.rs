//! How many messages with bytes may be under way, and the slots for them.
//!
//! Both sides begin with [`super::Shape::start`] credits each. A side with receives of its own grants the rest at once, behind the first
//! message; one that shares its receive queue grants twice as many when a long message has come, or many short ones, while the pool
//! has slots. Where it has none, the peer of another lane is told to give back what it does not use ([`MessageKind::Recall`]).
//!
//! A message without bytes is sent when half of all credits are owed, so [`SPARE`] of them are under way at most, also when
//! there are more or fewer credits meanwhile: a third would need the credits of a message that has not arrived.

use super::{CloseReason, HEADER_BYTES, Lane, LaneNumber, MessageKind, RECEIVE, SPARE};
use crate::message::GIVEN_BACK_BYTES;
use crate::posting::post_receives;
use std::io;

/// Slots that a lane borrows at once.
const BORROWED_AT_ONCE: usize = 4;

/// Messages after which a peer is busy, also when they are short.
const BUSY_AFTER: u32 = 32;
/// Credits that a message without bytes returns, at least: one alone goes with what is sent anyway.
const RETURNED_LEAST: usize = 2;

impl Lane {
    /// Whether its receive queue is shared.
    pub fn shares(&self) -> bool {
        self.memory.share().is_some()
    }

    /// Posts the receives of all slots that are empty.
    pub(super) fn post_receives(&mut self) -> io::Result<()> {
        match self.memory.share() {
            Some(share) => share.pool.post(self.number, &mut self.empty)?,
            None => {
                let (lane, bytes) = (u64::from(self.number) << 32, self.shape.message_bytes());
                let memory = &self.memory;
                let request = |slot| (lane | RECEIVE | slot as u64, memory.element(slot, bytes));
                // SAFETY: the queue pair lives, and the slots as long as it.
                unsafe { post_receives(self.qp, &mut self.empty, request) }?;
            }
        }
        self.owed += std::mem::take(&mut self.unposted_credits);
        Ok(())
    }

    /// Before something is sent: a peer with few credits gets them back by it, and not by a message of their own.
    pub(super) fn post_few_receives(&mut self) {
        if self.shares() && self.limit < self.shape.messages() && self.unposted_credits > 0 {
            self.grow();
            if self.post_receives().is_err() {
                self.end(CloseReason::Reset);
            }
        }
    }

    /// A slot whose message has taken no credit, or breaks the rules: other lanes may need it where it is shared.
    pub(super) fn post_at_once(&mut self, slot: usize) {
        self.empty.push(slot);
        if (self.ended.is_none() || self.shares()) && self.post_receives().is_err() {
            self.end(CloseReason::Reset);
        }
    }

    /// A slot whose message has taken a credit may receive again.
    pub(super) fn is_read(&mut self, slot: usize) {
        self.empty.push(slot);
        self.unposted_credits += 1;
    }

    /// The lane is connected on both sides, and it is this one that sends first.
    pub fn start(&mut self) {
        self.give_back();
    }

    /// Gives slots back to the adapter, and credits to the peer, when there are enough for a call.
    pub(super) fn give_back(&mut self) {
        let returns = self.owed + self.unposted_credits >= self.limit.div_ceil(2).max(RETURNED_LEAST);
        if self.ended.is_some() || !returns && self.empty.len() < self.shape.receives_at_once() {
            return;
        }
        if returns {
            self.grow();
        }
        if self.post_receives().is_err() {
            self.end(CloseReason::Reset);
        } else if returns {
            self.send_message(0, MessageKind::Data);
            self.flush();
        }
    }

    /// A message has come that is as long as this. With the first long one the peer shows that it needs more credits, or with some
    /// short ones.
    pub(super) fn counts(&mut self, bytes: usize) {
        self.filled |= bytes == self.shape.message_bytes() || self.counted_received % BUSY_AFTER == 0;
    }

    /// Takes more receives out of what is shared, for a peer that needs them.
    fn grow(&mut self) {
        let Some(share) = self.memory.share() else { return };
        let most = self.limit.min(self.shape.messages() - self.limit);
        if self.filled && most > 0 {
            let grown = share.pool.grow(self.number, most);
            let more = grown.posted + grown.slots.len();
            if let Some(unread) = grown.recall.and_then(|idle| self.to_recall.replace(idle)) {
                share.pool.is_idle(unread);
            }
            self.filled = more == 0;
            self.limit += more;
            self.owed += grown.posted;
            self.unposted_credits += grown.slots.len();
            self.empty.extend(grown.slots);
        }
        if self.limit > self.shape.start() {
            share.pool.hold(self.number);
        }
    }

    /// The lane whose peer is to give credits back, so that this one gets more.
    pub fn take_recall(&mut self) -> Option<LaneNumber> {
        self.to_recall.take()
    }

    /// This lane needs nothing any more. Another may name that one.
    pub(super) fn forget_recall(&mut self) {
        if let (Some(share), Some(idle)) = (self.memory.share(), self.to_recall.take()) {
            share.pool.is_idle(idle);
        }
    }

    /// Tells the peer to give back the credits that it does not use.
    pub fn recall(&mut self) {
        let Some(share) = self.memory.share() else { return };
        if self.ended.is_some() || self.limit <= self.shape.start() {
            return;
        }
        if !self.has_room() {
            share.pool.is_idle(self.number);
        } else {
            self.recalled = true;
            // Only what comes from now on shows that it needs them.
            self.filled = false;
            self.send_message(0, MessageKind::Recall);
            self.flush();
        }
    }

    /// Does so, if there is anything.
    pub(super) fn give_credits_back(&mut self) {
        let more = self.credits.saturating_sub(self.shape.start() + self.kept());
        if more == 0 || !self.has_room() || self.ended.is_some() {
            return;
        }
        let slot = *self.free.last().expect("there is room");
        self.memory.slot_mut(slot)[HEADER_BYTES..][..GIVEN_BACK_BYTES]
            .copy_from_slice(&(more as u16).to_le_bytes());
        self.credits -= more;
        self.send_message(GIVEN_BACK_BYTES, MessageKind::GivenBack);
        // At once: what is refused later would be taken for bytes of the stream.
        self.flush();
    }

    /// The peer has.
    pub(super) fn take_credits_back(&mut self, slot: usize) {
        let bytes = self.memory.slot(slot)[HEADER_BYTES..].first_chunk();
        let credits = usize::from(u16::from_le_bytes(*bytes.expect("the header was checked")));
        let most = self.due.min(self.limit - self.shape.start());
        match self.memory.share() {
            // Two recalls may be under way, each of which has an answer, so the first does not end the right to give back.
            Some(share) if self.recalled && credits <= most => {
                share.pool.shrink(self.number, credits);
                self.due -= credits;
                self.limit -= credits;
                // What it keeps may be in use, or it does not use that either.
                if self.limit > self.shape.start() {
                    share.pool.is_idle(self.number);
                }
            }
            _ => self.end(CloseReason::Damaged),
        }
    }

    /// Whether the end of what was queued last is to be reported: there are no slots for more, or some go back with it.
    pub(super) fn needs_slots(&self) -> bool {
        self.shares() && (self.lent_slots > 0 || !self.has_slot())
    }

    /// Takes more slots to send from out of what is shared, when the peer has room for more than there are.
    pub(super) fn borrow_slots(&mut self) {
        let Some(share) = self.memory.share() else { return };
        let most = self.shape.messages() - self.shape.start() - self.lent_slots;
        if self.free.len() <= SPARE + self.kept() && self.credits > self.kept() && most > 0 {
            let slots = share.pool.take(self.number, most.min(BORROWED_AT_ONCE));
            self.lent_slots += slots.len();
            self.free.extend(slots);
        }
    }

    /// Gives them back, when the adapter has sent everything.
    pub(super) fn return_slots(&mut self) {
        let Some(share) = self.memory.share() else { return };
        if self.sent.is_empty() && self.lent_slots > 0 {
            let own = self.free.len() - std::mem::take(&mut self.lent_slots);
            share.pool.give_back(self.number, self.free.drain(own..));
        }
    }
}
