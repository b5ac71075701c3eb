//! The host memory receive list (RWAPI paper, section 3). Owns: the small messages that have arrived and that the program has not taken,
//! and how many each node may still send.
//!
//! A message stands behind the writes of its sender that came before it: until their bytes are in place, it and all later ones of its
//! sender wait. Messages that may be taken are in the order in which that became true.
//!
//! Invariant 7: a node has at most [`WINDOW`] messages here. Its own count keeps it below, and what exceeds it is refused.

use std::collections::{BTreeSet, VecDeque};

/// Small messages of a node to another that the other's program has not taken. A sender that has so many waits.
pub const WINDOW: u64 = 512;
/// The sender is told after so many.
const TELL_EVERY: u64 = WINDOW / 4;

/// A small message.
pub type Small = [u8; crate::word::SMALL_BYTES];

/// What waits of one sender.
#[derive(Debug, Clone, Default)]
struct Sender {
    /// Messages, and the number of the operation that has to be in place before each.
    held: VecDeque<(Small, u64)>,
    /// Messages that may be taken.
    ready: u64,
    taken: u64,
    told: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Inbox {
    senders: Vec<Sender>,
    ready: VecDeque<(usize, Small)>,
    /// Senders with held messages: looked at after each piece of progress, however many nodes there are.
    holding: BTreeSet<usize>,
    /// Senders that are to be told what was taken.
    untold: Vec<usize>,
}

impl Inbox {
    /// An empty one.
    pub fn new(nodes: usize) -> Self {
        Self {
            senders: vec![Sender::default(); nodes],
            ready: VecDeque::new(),
            holding: BTreeSet::new(),
            untold: Vec::new(),
        }
    }

    /// A message has arrived behind an operation. False: its sender has sent more than it may.
    #[must_use]
    pub fn arrive(&mut self, node: usize, small: Small, behind: u64) -> bool {
        let sender = &mut self.senders[node];
        if sender.held.len() as u64 + sender.ready >= WINDOW {
            return false;
        }
        sender.held.push_back((small, behind));
        self.holding.insert(node);
        true
    }

    /// Nodes with messages that stand behind writes.
    pub fn holding(&self) -> impl Iterator<Item = usize> + '_ {
        self.holding.iter().copied()
    }

    /// What the oldest message of a node that stands behind writes waits for.
    pub fn held_behind(&self, node: usize) -> Option<u64> {
        self.senders[node].held.front().map(|(_, behind)| *behind)
    }

    /// Lets the messages of a node pass whose operations are in place. How many.
    pub fn pass(&mut self, node: usize, in_place: impl Fn(u64) -> bool) -> usize {
        let sender = &mut self.senders[node];
        let mut passed = 0;
        while let Some((small, _)) = sender.held.front().filter(|(_, behind)| in_place(*behind)).copied() {
            sender.held.pop_front();
            sender.ready += 1;
            self.ready.push_back((node, small));
            passed += 1;
        }
        if sender.held.is_empty() {
            self.holding.remove(&node);
        }
        passed
    }

    /// The oldest message.
    pub fn take(&mut self) -> Option<(usize, Small)> {
        let (node, small) = self.ready.pop_front()?;
        let sender = &mut self.senders[node];
        sender.ready -= 1;
        sender.taken += 1;
        if sender.taken - sender.told == TELL_EVERY {
            self.untold.push(node);
        }
        Some((node, small))
    }

    /// Whether a sender is to be told what was taken.
    pub fn owes_credit(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The next sender that is to be told, and what.
    pub fn credit(&mut self) -> Option<(usize, u64)> {
        let node = self.untold.pop()?;
        let sender = &mut self.senders[node];
        sender.told = sender.taken;
        Some((node, sender.taken))
    }

    /// Whether a message may be taken.
    pub fn has_message(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether nothing of a node is here.
    pub fn has_none_of(&self, node: usize) -> bool {
        self.senders[node].ready == 0 && self.senders[node].held.is_empty()
    }

    /// A node is gone: what stands behind its writes never passes.
    pub fn drop_held(&mut self, node: usize) {
        self.senders[node].held.clear();
        self.holding.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(n: u8) -> Small {
        [n; 16]
    }

    #[test]
    fn messages_wait_for_the_writes_before_them_and_for_each_other() {
        let mut inbox = Inbox::new(2);
        assert!(inbox.arrive(0, small(1), 5) && inbox.arrive(0, small(2), 5) && inbox.arrive(1, small(3), 0));
        for node in 0..2 {
            inbox.pass(node, |n| n < 5);
        }
        assert_eq!((inbox.take(), inbox.take()), (Some((1, small(3))), None));
        assert_eq!(inbox.holding().collect::<Vec<_>>(), [0]);
        inbox.pass(0, |_| true);
        assert_eq!(
            (inbox.take(), inbox.take(), inbox.take()),
            (Some((0, small(1))), Some((0, small(2))), None)
        );
    }

    #[test]
    fn a_sender_has_a_window_and_is_told_what_was_taken() {
        let mut inbox = Inbox::new(1);
        for _ in 0..WINDOW {
            assert!(inbox.arrive(0, small(0), 0));
        }
        assert!(!inbox.arrive(0, small(0), 0), "held ones count");
        inbox.pass(0, |_| true);
        assert!(!inbox.arrive(0, small(0), 0), "ready ones count");
        let told: Vec<u64> =
            (0..WINDOW).filter_map(|_| inbox.take().and_then(|_| inbox.credit())).map(|c| c.1).collect();
        assert_eq!(told, [TELL_EVERY, 2 * TELL_EVERY, 3 * TELL_EVERY, WINDOW]);
        assert!(inbox.has_none_of(0) && inbox.arrive(0, small(0), 0));
    }
}
