//! What one packet or stream frame carried, until it is acknowledged.

use crate::message::item::Item;
use crate::types::Time;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A packet is lost when one sent this many later was acknowledged (RFC 9002 §6.1.1).
pub(crate) const REORDER_PACKETS: u64 = 3;

/// What one packet or stream frame carried.
///
/// Invariant: what it carried, and where and when, never changes; only a copy of it may go elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    number: u64,
    items: Items,
    bytes: u32,
    at: Time,
    /// A copy went over another path: an acknowledgement is no evidence about this one (hazard H10).
    hedged: bool,
    /// An adapter wrote its payload into the peer's memory: it goes again only when that can happen no more.
    placed: bool,
}

impl Sent {
    /// `bytes` of payload, of which no copy is under way.
    #[inline]
    pub fn new(number: u64, items: Items, bytes: u32, at: Time) -> Self {
        Self { number, items, bytes, at, hedged: false, placed: false }
    }

    /// A frame of a stream, which may be or have a copy, and whose payload an adapter may have written.
    #[inline]
    pub fn frame(number: u64, item: Item, bytes: u32, at: Time, hedged: bool, placed: bool) -> Self {
        Self { number, items: Items::One(item), bytes, at, hedged, placed }
    }

    #[inline]
    pub fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    pub fn items(&self) -> &[Item] {
        self.items.as_slice()
    }

    /// What it carried, to be remembered when the record is gone.
    pub fn to_items(&self) -> Items {
        self.items.clone()
    }

    /// Bytes of payload.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// When it was sent.
    #[inline]
    pub fn at(&self) -> Time {
        self.at
    }

    /// Whether a copy went over another path: then an acknowledgement is no evidence about this one (hazard H10).
    #[inline]
    pub fn is_hedged(&self) -> bool {
        self.hedged
    }

    /// Whether an adapter wrote its payload into the peer's memory: then it goes again only when that can happen no more.
    #[inline]
    pub fn is_placed(&self) -> bool {
        self.placed
    }

    /// Its items are to go over another path too, if that is the first time and `budget` allows as many bytes.
    pub fn hedge(&mut self, budget: &mut u64, copies: &mut Vec<Item>) {
        if self.hedged || u64::from(self.bytes) > *budget {
            return;
        }
        *budget -= u64::from(self.bytes);
        self.hedged = true;
        copies.extend_from_slice(self.items());
    }

    /// Bytes of the datagram, acknowledgements on board not counted.
    pub fn bytes_on_wire(&self) -> usize {
        let frames = self.items().len() * rerail_wire::frame::FRAME_HEADER_BYTES;
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
        Sent::new(n, Items::One(Item::Config), 1, Time::ORIGIN)
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

    #[test]
    fn a_packet_is_copied_once_and_within_the_budget() {
        let (mut budget, mut copies) = (5, Vec::new());
        let mut s = Sent::new(0, Items::Many(vec![Item::Config, Item::Goodbye]), 3, Time::ORIGIN);
        s.hedge(&mut budget, &mut copies);
        assert!(s.is_hedged() && copies == [Item::Config, Item::Goodbye]);
        s.hedge(&mut budget, &mut copies);
        assert_eq!((budget, copies.len()), (2, 2), "not twice");
        let mut large = Sent::new(1, Items::One(Item::Config), 3, Time::ORIGIN);
        large.hedge(&mut budget, &mut copies);
        assert_eq!((budget, copies.len(), large.is_hedged()), (2, 2, false));
    }
}
