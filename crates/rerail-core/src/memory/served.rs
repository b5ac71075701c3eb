//! What one-sided operations of peers may cost: answers that are kept until they are acknowledged, and orders that wait for their turn.
//!
//! The initiator bounds its operations ([`ORDERS_MAX`]); a broken peer does not. An order of a hundred bytes requests
//! an answer of 8 or 16 KiB, so the target has bounds of its own, for each peer and for the process (invariant 7,
//! hazard H30):
//!
//! * Above [`COPIES_MAX`] a small read is served from the registered memory, as a large one is, and not from a copy.
//! * Above [`KEPT_MAX`] the peer's orders wait for their turn until it has acknowledged answers. An initiator has at
//!   most [`ORDERS_MAX`] operations without an answer, so a correct one comes nowhere near.
//! * Above [`WAITING_MAX`] orders that are not the next are not taken: the peer keeps them, and sends them again.
//!
//! A peer within its share ([`SHARE`]) is never delayed by what others keep.
//!
//! Owns: the sums of the process, and which peers are delayed. A peer's own sums are kept with its messages. Invariant:
//! the sums of the process are those of the peers (`Engine::check`).

use crate::memory::atomic::ATOMIC_BYTES_MAX;
use crate::memory::orders::{INJECT_MAX, INLINE_MAX, ORDERS_MAX};
use crate::message::envelope::RECORD_BYTES;
use crate::types::PeerId;
use rerail_wire::onesided::{ORDER_HEADER_BYTES, PIECE_BYTES, PIECES_MAX};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bytes of answers that are copies, for one peer. Small reads above it are served in place. As many as a correct peer
/// requests.
pub(crate) const COPIES_MAX: usize = 9 * MIB;
/// The same for all peers together: more than a dozen correct ones that request as much as they can at one moment.
pub(crate) const COPIES_PROCESS_MAX: usize = 128 * MIB;
/// Bytes of answers with their records, for one peer: twice what [`ORDERS_MAX`] atomic operations of the largest size
/// can request.
pub(crate) const KEPT_MAX: usize = 36 * MIB;
/// The same for all peers together.
pub(crate) const KEPT_PROCESS_MAX: usize = 256 * MIB;
/// Bytes that reads which are being served may be copied to when their region is closed, for one peer. Others end in an error.
pub(crate) const CLOSING_MAX: usize = 64 * MIB;
/// The same for all peers together.
pub(crate) const CLOSING_PROCESS_MAX: usize = 512 * MIB;
/// Bytes of orders that wait for their turn, for one peer: more than [`ORDERS_MAX`] injected writes.
pub(crate) const WAITING_MAX: usize = 64 * MIB;
/// The same for all peers together.
pub(crate) const WAITING_PROCESS_MAX: usize = 256 * MIB;
/// Bytes of orders of one peer up to which an announced one is fetched before its turn.
pub(crate) const FETCHED_MAX: usize = 4 * MIB;
/// What a peer may keep and have waiting whatever others do.
pub(crate) const SHARE: usize = MIB;

// a correct peer meets none of the bounds of its own, and several of them none of the process
const _: () = {
    let order = ORDER_HEADER_BYTES + PIECES_MAX * PIECE_BYTES;
    assert!(ORDERS_MAX * (INLINE_MAX + ORDER_HEADER_BYTES) <= COPIES_MAX);
    assert!(2 * ORDERS_MAX * (ATOMIC_BYTES_MAX + ORDER_HEADER_BYTES + RECORD_BYTES) <= KEPT_MAX);
    assert!(ORDERS_MAX * (INJECT_MAX + order + RECORD_BYTES) <= WAITING_MAX);
    assert!(10 * COPIES_MAX <= COPIES_PROCESS_MAX && COPIES_PROCESS_MAX <= KEPT_PROCESS_MAX);
};

/// What is kept for one peer, or for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Served {
    kept: usize,
    copied: usize,
    waiting: usize,
}

impl Served {
    /// Bytes of answers with their records, of these the copies, and bytes of orders that wait.
    pub fn new(kept: usize, copied: usize, waiting: usize) -> Self {
        Self { kept, copied, waiting }
    }

    /// The same three.
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
    #[inline]
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

/// What is kept for all peers.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedAll {
    sums: Served,
    /// Peers whose orders wait because too much is kept for them.
    held: Vec<PeerId>,
}

impl ServedAll {
    #[inline]
    pub fn sums(&self) -> &Served {
        &self.sums
    }

    /// The sums of one peer change.
    #[inline]
    pub fn replace(&mut self, before: &Served, now: &Served) {
        let s = &mut self.sums;
        s.kept = s.kept - before.kept + now.kept;
        s.copied = s.copied - before.copied + now.copied;
        s.waiting = s.waiting - before.waiting + now.waiting;
    }

    /// The orders of a peer wait.
    pub fn hold(&mut self, peer: PeerId) {
        if !self.held.contains(&peer) {
            self.held.push(peer);
        }
    }

    #[inline]
    pub fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// The peers whose orders wait, which is forgotten.
    pub fn take_held(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_within_its_share_is_not_held_up_by_others() {
        let all = Served::new(KEPT_PROCESS_MAX + 1, 0, WAITING_PROCESS_MAX);
        assert!(!Served::new(SHARE, 0, 0).is_full(&all) && Served::new(SHARE + 1, 0, 0).is_full(&all));
        assert!(Served::default().may_wait(&all, SHARE) && !Served::default().may_wait(&all, SHARE + 1));
        let alone = Served::new(KEPT_MAX, 0, 0);
        assert!(!alone.is_full(&alone) && Served::new(KEPT_MAX + 1, 0, 0).is_full(&alone));
    }

    #[test]
    fn copies_have_a_bound_for_the_peer_and_for_the_process() {
        let none = Served::default();
        assert!(none.may_copy(&none, COPIES_MAX) && !none.may_copy(&none, COPIES_MAX + 1));
        assert!(!none.may_copy(&Served::new(0, COPIES_PROCESS_MAX, 0), 1));
        assert!(none.may_close(&none, CLOSING_MAX) && !none.may_close(&none, CLOSING_MAX + 1));
        assert!(!none.may_close(&Served::new(0, CLOSING_PROCESS_MAX, 0), 1));
    }

    #[test]
    fn the_sums_of_the_process_follow_those_of_its_peers() {
        let mut all = ServedAll::default();
        let (first, second) = (Served::new(5, 3, 1), Served::new(100, 50, 7));
        all.replace(&Served::default(), &first);
        all.replace(&Served::default(), &second);
        assert_eq!(all.sums().sums(), (105, 53, 8));
        all.replace(&second, &Served::new(0, 0, 2));
        assert_eq!(all.sums().sums(), (5, 3, 3));
    }

    #[test]
    fn a_peer_is_held_once() {
        let mut all = ServedAll::default();
        all.hold(PeerId(4));
        all.hold(PeerId(4));
        assert!(all.holds_any());
        assert_eq!(all.take_held(), [PeerId(4)]);
        assert!(!all.holds_any());
    }
}
