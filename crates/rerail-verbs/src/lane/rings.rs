//! Datagrams that go by rings ([`crate::ring`]).

use super::{Arrived, Lane, Sent};
use crate::abi::Rdma;
use crate::lane::SPARE;
use crate::message::{HEADER_BYTES, MessageKind, RING_BYTES, ring_to_bytes};
use crate::ring::{self, Ring, SlotHeader};
use rerail_rail::CloseReason;

/// Datagrams of a peer after which its lane is worth looking into its ring.
pub(super) const BUSY_AFTER: u32 = 32;

impl Lane {
    /// Queues a datagram for the peer's ring; `false`: it does not fit, or there is no room.
    pub(super) fn queue_slot(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > ring::DATAGRAM_BYTES_MAX || !self.has_slot() {
            return false;
        }
        let Some((number, key, remote_addr)) = self.far_ring.write() else { return false };
        let slot = self.free.pop().expect("there is one");
        let len = ring::HEADER_BYTES + bytes.len();
        let header = SlotHeader {
            number,
            bytes: bytes.len() as u16,
            credits: self.owed as u16,
            given_back: self.ring.as_ref().map_or(0, Ring::given_back),
            behind: self.counted_sent,
        };
        let memory = &mut self.memory.slot_mut(slot)[..len];
        memory[ring::HEADER_BYTES..].copy_from_slice(bytes);
        header.write(memory);
        self.due += std::mem::take(&mut self.owed);
        self.owes_answer = false;
        self.queue(Sent::Slot(slot, len, Rdma { remote_addr, rkey: key }));
        true
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
        self.memory.slot_mut(slot)[HEADER_BYTES..][..RING_BYTES].copy_from_slice(&place);
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
            if credits > self.shape.messages() || !self.far_ring.give_back(slot.given_back) {
                self.end(CloseReason::Damaged);
                break;
            }
            self.credits = credits;
            self.has_datagram(Arrived::Slot(slot.bytes.into()));
            some = true;
        }
        some
    }

    /// Wakes the peer when it has gone to sleep beside what is in its ring, as soon as there is a credit. It is awake
    /// while it keeps all credits: it does not sleep beside messages.
    pub(super) fn wake(&mut self) {
        if self.wake_is_due && self.has_room() && self.ended.is_none() {
            self.send_message(0, MessageKind::Answer);
            self.flush();
        }
    }
}
