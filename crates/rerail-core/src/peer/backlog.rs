//! What waits to be sent to one peer, in the order of its importance.
//!
//! Owns: the queues of control, of small items, and of bulk, and how many bytes of bulk wait. Invariants: the bytes are those of what waits; of
//! granted messages only those are here of which bytes were never sent.

use crate::message::item::Item;
use crate::rest::{OnDemand, give_back, rests};
use std::collections::VecDeque;

/// A queue of what fits datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Control: goes first, always (hazard H4c).
    Control,
    /// Lost small items.
    Resend,
    /// What is sent for the first time.
    Small,
}

rests! {
    empty
    VecDeque<(u64, u64)> = VecDeque::new();
    VecDeque<(Item, bool)> = VecDeque::new();
    VecDeque<u64> = VecDeque::new();
}

/// See above.
#[derive(Clone, Default)]
pub(crate) struct Backlog {
    control: VecDeque<Item>,
    resend: VecDeque<Item>,
    small: VecDeque<Item>,
    /// Eager messages that do not fit a datagram: number and bytes of each.
    eager: OnDemand<VecDeque<(u64, u64)>>,
    eager_bytes: u64,
    /// Lost fragments and long eager messages, and whether they are hedges.
    lost: OnDemand<VecDeque<(Item, bool)>>,
    /// Granted messages with bytes that were never sent.
    granted: OnDemand<VecDeque<u64>>,
    granted_bytes: u64,
}

impl Backlog {
    // ---- control and small items -------------------------------------------------------------------------------

    /// An item of control is to be sent.
    #[inline]
    pub fn tell(&mut self, item: Item) {
        self.control.push_back(item);
    }

    /// An item goes out for the first time.
    #[inline]
    pub fn post(&mut self, item: Item) {
        self.small.push_back(item);
    }

    /// A small item was lost, or may have been.
    pub fn repeat(&mut self, item: Item) {
        self.resend.push_back(item);
    }

    fn items(&self, queue: Queue) -> &VecDeque<Item> {
        match queue {
            Queue::Control => &self.control,
            Queue::Resend => &self.resend,
            Queue::Small => &self.small,
        }
    }

    /// What is next in a queue.
    #[inline]
    pub fn first(&self, queue: Queue) -> Option<&Item> {
        self.items(queue).front()
    }

    /// Takes what is next in a queue.
    #[inline]
    pub fn take(&mut self, queue: Queue) -> Option<Item> {
        match queue {
            Queue::Control => self.control.pop_front(),
            Queue::Resend => self.resend.pop_front(),
            Queue::Small => self.small.pop_front(),
        }
    }

    /// Takes what is next of all that fits a datagram.
    pub fn take_any(&mut self) -> Option<Item> {
        [Queue::Control, Queue::Resend, Queue::Small].into_iter().find_map(|queue| self.take(queue))
    }

    /// Whether control waits.
    #[inline]
    pub fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// The control that waits.
    pub fn control(&self) -> impl Iterator<Item = &Item> {
        self.control.iter()
    }

    /// Whether small items wait, new or lost.
    #[inline]
    pub fn has_small(&self) -> bool {
        !self.small.is_empty() || !self.resend.is_empty()
    }

    // ---- bulk --------------------------------------------------------------------------------------------------

    /// An eager message that fits no datagram is to be sent.
    pub fn post_eager(&mut self, seq: u64, bytes: u64) {
        self.eager.push_back((seq, bytes));
        self.eager_bytes += bytes;
    }

    /// The next of these, and its bytes.
    #[inline]
    pub fn first_eager(&self) -> Option<(u64, u64)> {
        self.eager.front().copied()
    }

    /// It is taken. Returns whether others wait.
    pub fn take_eager(&mut self) -> bool {
        if let Some((_, bytes)) = self.eager.pop_front() {
            self.eager_bytes -= bytes;
        }
        !self.eager.is_empty()
    }

    /// Bulk was lost, or may have been; whether the copy that goes again is a hedge.
    pub fn repeat_bulk(&mut self, item: Item, hedged: bool) {
        self.lost.push_back((item, hedged));
    }

    /// Lost bulk, from the one that has waited longest.
    #[inline]
    pub fn lost(&self, k: usize) -> Option<(Item, bool)> {
        self.lost.get(k).copied()
    }

    /// That is taken, or not needed any more.
    pub fn take_lost(&mut self, k: usize) {
        self.lost.remove(k);
    }

    /// Lost fragments of a message that are not to be kept go with the one that is sent.
    pub fn take_along(&mut self, seq: u64, mut takes: impl FnMut(u64) -> bool) {
        if let Some(lost) = self.lost.awake_mut() {
            lost.retain(|(i, _)| !matches!(i, Item::Frag { seq: s, at, .. } if *s == seq && takes(*at)));
        }
    }

    /// Whether an item waits to be sent again.
    pub fn goes_again(&self, item: &Item) -> bool {
        self.lost.iter().any(|(i, _)| i == item) || self.resend.contains(item)
    }

    /// A message was granted so many bytes, which were never sent.
    pub fn granted(&mut self, seq: u64, bytes: u64) {
        self.granted_bytes += bytes;
        self.granted.push_back(seq);
    }

    /// Messages of which bytes wait that were never sent.
    #[inline]
    pub fn granted_count(&self) -> usize {
        self.granted.len()
    }

    /// One of these, from the one that has waited longest.
    #[inline]
    pub fn granted_at(&self, k: usize) -> u64 {
        self.granted[k]
    }

    /// So many bytes of it are sent now, and `last` ones.
    #[inline]
    pub fn cut(&mut self, k: usize, bytes: u64, last: bool) {
        self.granted_bytes -= bytes;
        if last {
            self.granted.remove(k);
        }
    }

    /// A message is over, and so many bytes of it are never sent.
    pub fn drop_unsent(&mut self, seq: u64, unsent: u64) {
        if unsent > 0 {
            self.granted_bytes -= unsent;
            self.granted.retain(|s| *s != seq);
        }
    }

    /// Bytes of bulk that wait to be sent for the first time.
    #[inline]
    pub fn bulk_bytes(&self) -> u64 {
        self.granted_bytes + self.eager_bytes
    }

    /// Whether bulk waits to be sent for the first time.
    #[inline]
    pub fn has_new_bulk(&self) -> bool {
        !self.granted.is_at_rest() || !self.eager.is_at_rest()
    }

    /// Whether any bulk waits.
    #[inline]
    pub fn has_bulk(&self) -> bool {
        self.has_new_bulk() || !self.lost.is_at_rest()
    }

    // ---- all of it ---------------------------------------------------------------------------------------------

    /// All operations with the peer have failed: what waits of them is over. Control stays.
    pub fn drop_messages(&mut self) {
        self.small.clear();
        self.resend.clear();
        (self.eager, self.eager_bytes) = (OnDemand::default(), 0);
        self.lost = OnDemand::default();
    }

    /// The peer is gone: no control is sent to it.
    pub fn drop_control(&mut self) {
        self.control.clear();
    }

    /// Gives back what empty queues hold.
    pub fn rest(&mut self) {
        give_back(&mut self.control);
        give_back(&mut self.resend);
        give_back(&mut self.small);
        self.eager.rest();
        self.lost.rest();
        self.granted.rest();
    }

    /// What waits, in words, to find the reason of a standstill.
    pub fn describe(&self) -> String {
        format!(
            "control {:?} resend {:?} small {:?} eager {:?} lost {} granted {:?}",
            self.control,
            self.resend,
            self.small,
            self.eager,
            self.lost.len(),
            self.granted
        )
    }

    /// Asserts that the bytes are those of what waits, with so many unsent bytes of granted messages.
    pub fn check(&self, unsent: u64) {
        assert_eq!(unsent, self.granted_bytes, "bulk bytes are what was granted and never sent");
        let eager: u64 = self.eager.iter().map(|e| e.1).sum();
        assert_eq!(eager, self.eager_bytes, "eager bytes are what waits");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_goes_before_what_was_lost_and_that_before_what_is_new() {
        let mut b = Backlog::default();
        b.post(Item::Rts { seq: 1 });
        b.repeat(Item::Rts { seq: 2 });
        b.tell(Item::Config);
        assert!(b.has_control() && b.has_small() && !b.has_bulk());
        assert_eq!(b.first(Queue::Resend), Some(&Item::Rts { seq: 2 }));
        assert!(b.goes_again(&Item::Rts { seq: 2 }) && !b.goes_again(&Item::Rts { seq: 1 }));
        let order: Vec<Item> = std::iter::from_fn(|| b.take_any()).collect();
        assert_eq!(order, [Item::Config, Item::Rts { seq: 2 }, Item::Rts { seq: 1 }]);
    }

    #[test]
    fn bytes_of_bulk_are_those_of_what_waits() {
        let mut b = Backlog::default();
        b.post_eager(1, 5000);
        b.post_eager(2, 7000);
        b.granted(3, 100_000);
        b.granted(4, 50_000);
        b.check(150_000);
        b.cut(0, 60_000, false);
        assert_eq!((b.bulk_bytes(), b.granted_count(), b.granted_at(0)), (102_000, 2, 3));
        b.cut(0, 40_000, true);
        b.drop_unsent(9, 0);
        assert_eq!((b.granted_count(), b.granted_at(0)), (1, 4));
        b.drop_unsent(4, 50_000);
        b.check(0);
        assert_eq!((b.first_eager(), b.take_eager(), b.bulk_bytes()), (Some((1, 5000)), true, 7000));
        assert!(!b.take_eager() && !b.has_bulk());
    }

    #[test]
    fn lost_pieces_of_a_fragment_go_along_with_it() {
        let mut b = Backlog::default();
        for (seq, at) in [(1, 0), (1, 500), (1, 9000), (2, 500)] {
            b.repeat_bulk(Item::Frag { seq, at, len: 500 }, false);
        }
        b.take_lost(0);
        b.take_along(1, |at| at < 8000);
        let left = [Item::Frag { seq: 1, at: 9000, len: 500 }, Item::Frag { seq: 2, at: 500, len: 500 }];
        assert_eq!([b.lost(0), b.lost(1), b.lost(2)], [Some((left[0], false)), Some((left[1], false)), None]);
        b.drop_messages();
        assert!(!b.has_bulk());
    }
}
