//! Where the messages of a lane lie: in slots of its own, or in some of those that it shares.

use crate::abi::ibv_sge;
use crate::adapter::Slots;
use crate::shared::Share;

/// The slots of a lane.
pub enum Memory {
    /// Half of them are sent from, half receive.
    Own(Slots),
    /// Those of a shared receive queue.
    Shared(Share),
}

impl Memory {
    /// The share in a receive queue, if there is one.
    pub fn share(&self) -> Option<&Share> {
        match self {
            Memory::Own(_) => None,
            Memory::Shared(share) => Some(share),
        }
    }

    /// The bytes of a slot that the lane has.
    pub fn slot(&self, slot: usize) -> &[u8] {
        match self {
            Memory::Own(slots) => slots.slot(slot),
            Memory::Shared(share) => share.pool.slot(slot),
        }
    }

    /// The same, to be written.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        match self {
            Memory::Own(slots) => slots.slot_mut(slot),
            // SAFETY: the pool has given the slot to this lane only, of which this is the only reference.
            Memory::Shared(share) => unsafe { share.pool.slot_mut(slot) },
        }
    }

    /// The first bytes of a slot, for the adapter.
    pub fn element(&self, slot: usize, bytes: usize) -> ibv_sge {
        match self {
            Memory::Own(slots) => slots.element(slot, bytes),
            Memory::Shared(share) => share.pool.element(slot, bytes),
        }
    }
}
