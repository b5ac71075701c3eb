//! The names of work requests, which completions bring back: the lane, and the slot or number. Owns: their layout.

use crate::abi::ibv_wc;

/// The name of a lane in this process; never used twice.
pub type LaneNumber = u32;

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

/// In the name of a receive: it was posted to a shared queue. Above are the number of that, below the slot.
pub const SHARED: u64 = 1 << 30;
