//! What one-sided operations of peers may cost: answers that are kept until they are acknowledged, and orders that wait for their turn.
//!
//! The asker bounds its operations ([`ORDERS_MAX`](crate::onesided::ORDERS_MAX)); a peer that lies does not. An order of a hundred bytes
//! asks for an answer of 8 or 16 KiB, so the target has bounds of its own, for each peer and for the process (invariant 7, hazard H30):
//!
//! * Above [`COPIES_MAX`] a small read is served from the registered memory, as a large one is, and not from a copy.
//! * Above [`KEPT_MAX`] the peer's orders wait for their turn until it has acknowledged answers. An asker has at most 1024 operations
//!   without an answer, so a correct one comes nowhere near.
//! * Above [`WAITING_MAX`] orders that are not the next are not taken: the peer keeps them, and sends them again.
//!
//! A peer within its share ([`SHARE`]) is never held up by what others keep.
//!
//! Owns: the sums. Invariant: they are those of the messages (`check`).

use crate::rendezvous::TxMsg;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bytes of answers that are copies, for one peer. Small reads above it are served in place.
pub(crate) const COPIES_MAX: usize = MIB;
/// The same for all peers together.
pub(crate) const COPIES_PROCESS_MAX: usize = 64 * MIB;
/// Bytes of answers with their records, for one peer: twice what 1024 atomic operations of the largest size can ask for.
pub(crate) const KEPT_MAX: usize = 32 * MIB;
/// The same for all peers together.
pub(crate) const KEPT_PROCESS_MAX: usize = 256 * MIB;
/// Bytes that reads which are being served may be copied to when their region is closed, for one peer. Others end in an error.
pub(crate) const CLOSING_MAX: usize = 64 * MIB;
/// The same for all peers together.
pub(crate) const CLOSING_PROCESS_MAX: usize = 512 * MIB;
/// Bytes of orders that wait for their turn, for one peer: more than 1024 injected writes.
pub(crate) const WAITING_MAX: usize = 64 * MIB;
/// The same for all peers together.
pub(crate) const WAITING_PROCESS_MAX: usize = 256 * MIB;
/// Bytes of orders of one peer up to which an announced one is fetched before its turn.
pub(crate) const FETCHED_MAX: usize = 4 * MIB;
/// What a peer may keep and have waiting whatever others do.
pub(crate) const SHARE: usize = MIB;

/// What is kept for one peer, or for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Served {
    kept: usize,
    copied: usize,
    waiting: usize,
}

impl Served {
    /// A message that serves a peer is kept.
    pub fn keep(&mut self, m: &TxMsg) {
        self.kept += m.order_cost();
        self.copied += copied(m);
    }

    /// It is kept no longer.
    pub fn release(&mut self, m: &TxMsg) {
        self.kept -= m.order_cost();
        self.copied -= copied(m);
    }

    /// An order waits for its turn.
    pub fn wait(&mut self, bytes: usize) {
        self.waiting += bytes;
    }

    /// It waits no longer.
    pub fn go(&mut self, bytes: usize) {
        self.waiting -= bytes;
    }

    /// Bytes of answers with their records, of those the copies, and bytes of orders that wait.
    pub fn sums(&self) -> (usize, usize, usize) {
        (self.kept, self.copied, self.waiting)
    }

    /// Whether the answer to a small read of this peer may be a copy; `all`: what is kept for all peers.
    pub fn may_copy(&self, all: &Self, bytes: usize) -> bool {
        self.copied + bytes <= COPIES_MAX && all.copied + bytes <= COPIES_PROCESS_MAX
    }

    /// Whether a read that is being served may go on from a copy when its region is closed.
    pub fn may_close(&self, all: &Self, bytes: usize) -> bool {
        self.copied + bytes <= CLOSING_MAX && all.copied + bytes <= CLOSING_PROCESS_MAX
    }

    /// Whether the orders of this peer wait until it has acknowledged answers.
    pub fn is_full(&self, all: &Self) -> bool {
        self.kept > KEPT_MAX || (all.kept > KEPT_PROCESS_MAX && self.kept > SHARE)
    }

    /// Whether an order of so many bytes may wait for its turn.
    pub fn may_wait(&self, all: &Self, bytes: usize) -> bool {
        let waiting = self.waiting + bytes;
        waiting <= SHARE || (waiting <= WAITING_MAX && all.waiting + bytes <= WAITING_PROCESS_MAX)
    }

    /// Whether an announced order of so many bytes may be fetched before its turn.
    pub fn may_fetch(&self, all: &Self, bytes: usize) -> bool {
        self.waiting + bytes <= FETCHED_MAX && self.may_wait(all, bytes)
    }
}

fn copied(m: &TxMsg) -> usize {
    m.body.copied().map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(kept: usize, copied: usize, waiting: usize) -> Served {
        Served { kept, copied, waiting }
    }

    #[test]
    fn a_peer_within_its_share_is_not_held_up_by_others() {
        let all = served(KEPT_PROCESS_MAX + 1, 0, WAITING_PROCESS_MAX);
        assert!(!served(SHARE, 0, 0).is_full(&all) && served(SHARE + 1, 0, 0).is_full(&all));
        assert!(served(0, 0, 0).may_wait(&all, SHARE) && !served(0, 0, 0).may_wait(&all, SHARE + 1));
        let alone = served(KEPT_MAX, 0, 0);
        assert!(!alone.is_full(&alone) && served(KEPT_MAX + 1, 0, 0).is_full(&alone));
    }

    #[test]
    fn copies_have_a_bound_for_the_peer_and_for_the_process() {
        let none = Served::default();
        assert!(none.may_copy(&none, COPIES_MAX) && !none.may_copy(&none, COPIES_MAX + 1));
        assert!(!none.may_copy(&served(0, COPIES_PROCESS_MAX, 0), 1));
        assert!(none.may_close(&none, CLOSING_MAX) && !none.may_close(&none, CLOSING_MAX + 1));
        assert!(!none.may_close(&served(0, CLOSING_PROCESS_MAX, 0), 1));
    }
}
