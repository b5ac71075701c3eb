//! What one packet or stream frame carried, until it is acknowledged.

use crate::message::item::Item;
use crate::types::Time;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A packet is lost when one sent this many later was acknowledged (RFC 9002 §6.1.1).
pub(crate) const REORDER_PACKETS: u64 = 3;

/// What one packet or stream frame carried.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub number: u64,
    pub items: Items,
    pub bytes: u32,
    pub at: Time,
    /// A copy went over another path: an acknowledgement says nothing about this one (hazard H10).
    pub hedged: bool,
    /// An adapter wrote its payload into the peer's memory: it goes again only when that can happen no more.
    pub placed: bool,
}

impl Sent {
    /// Bytes of the datagram, acknowledgements on board not counted.
    pub fn bytes_on_wire(&self) -> usize {
        let frames = self.items.as_slice().len() * rerail_wire::frame::FRAME_HEADER_BYTES;
        self.bytes as usize + frames + rerail_wire::packet::PACKET_HEADER_BYTES
    }
}

/// Items of one packet: nearly always one.
#[derive(Debug, Clone)]
pub(crate) enum Items {
    One(Item),
    Many(Vec<Item>),
}

impl Items {
    pub fn as_slice(&self) -> &[Item] {
        match self {
            Items::One(i) => std::slice::from_ref(i),
            Items::Many(v) => v,
        }
    }
}

/// Records that an acknowledgement takes out: in a ping-pong one, for which nothing is allocated.
pub(crate) type Taking = SmallVec<[Sent; 2]>;

/// Takes the acknowledged records out, oldest first. `ranges` begins with the newest.
pub(crate) fn take_acked(q: &mut VecDeque<Sent>, ranges: &[(u64, u64)]) -> Taking {
    let mut acked = Taking::new();
    let hit = |n: u64| ranges.iter().any(|&(l, h)| l <= n && n <= h);
    while q.front().is_some_and(|s| hit(s.number)) {
        acked.extend(q.pop_front());
    }
    if q.front().is_some_and(|s| s.number < ranges[0].1) {
        let mut keep = VecDeque::with_capacity(q.len());
        for s in q.drain(..) {
            if hit(s.number) { acked.push(s) } else { keep.push_back(s) }
        }
        *q = keep;
    }
    acked
}

/// Takes out the records that were overtaken by too many.
pub(crate) fn take_lost(q: &mut VecDeque<Sent>, largest: u64) -> Taking {
    let mut lost = Taking::new();
    while q.front().is_some_and(|s| s.number + REORDER_PACKETS <= largest) {
        lost.extend(q.pop_front());
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(n: u64) -> Sent {
        Sent {
            number: n,
            items: Items::One(Item::Config),
            bytes: 1,
            at: Time::ORIGIN,
            hedged: false,
            placed: false,
        }
    }

    #[test]
    fn acknowledged_records_are_taken_and_overtaken_ones_are_lost() {
        let mut q: VecDeque<Sent> = (0..10).map(sent).collect();
        let a = take_acked(&mut q, &[(6, 7), (0, 1)]);
        assert_eq!(a.iter().map(|s| s.number).collect::<Vec<_>>(), [0, 1, 6, 7]);
        let l = take_lost(&mut q, 7);
        assert_eq!(l.iter().map(|s| s.number).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(q.iter().map(|s| s.number).collect::<Vec<_>>(), [5, 8, 9]);
    }
}
