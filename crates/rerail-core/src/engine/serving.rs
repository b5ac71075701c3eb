//! What serving the orders of peers costs: when it is added up, and what happens at the bounds of
//! [`served`](crate::memory::served).

use crate::engine::Engine;
use crate::message::body::Body;
use crate::message::envelope::RECORD_BYTES;
use crate::message::tx::Withdrawal;
use crate::types::{EpId, PeerId};
use rerail_wire::onesided::Status;

impl Engine {
    /// Adds up what the orders of a peer cost. To be called where messages of one-sided operations come and go.
    #[inline]
    pub(crate) fn account(&mut self, peer: PeerId) {
        let (before, now) = self.peers[peer].account();
        self.served.replace(&before, &now);
    }

    /// Whether no order of a peer is carried out for now: too much is kept for it that it has not acknowledged.
    #[inline]
    pub(crate) fn holds_orders(&self, peer: PeerId) -> bool {
        let p = &self.peers[peer];
        p.served().is_full(self.served.sums()) && p.gone().is_none() && self.remedies.answers_are_bounded()
    }

    /// Whether an order of a peer that is not carried out now may be kept until its turn; `payload`: what came with it.
    pub(crate) fn may_wait(&self, peer: PeerId, payload: Option<&[u8]>) -> bool {
        let cost = RECORD_BYTES + payload.map_or(0, <[u8]>::len);
        self.peers[peer].served().may_wait(self.served.sums(), cost) || !self.remedies.answers_are_bounded()
    }

    /// Whether an announced order of so many bytes may be fetched before its turn.
    pub(super) fn may_fetch(&self, peer: PeerId, bytes: usize) -> bool {
        self.peers[peer].served().may_fetch(self.served.sums(), bytes) || !self.remedies.answers_are_bounded()
    }

    /// Whether the answer to a small read may be a copy.
    pub(super) fn may_copy(&self, peer: PeerId, bytes: usize) -> bool {
        self.peers[peer].served().may_copy(self.served.sums(), bytes) || !self.remedies.answers_are_bounded()
    }

    /// The next order of a peer waits until less is kept for it.
    pub(super) fn hold_orders(&mut self, peer: PeerId) {
        self.served.hold(peer);
    }

    /// Goes on with the peers for which less is kept by now.
    #[inline]
    pub(crate) fn release_held(&mut self) {
        if self.served.holds_any() {
            self.release_those_held();
        }
    }

    #[cold]
    fn release_those_held(&mut self) {
        for peer in self.served.take_held() {
            // it is held again if that is still right
            self.advance_sequence(peer);
        }
    }

    /// A read that is being served goes on from a copy of the memory, or ends in an error when there are too many copies.
    pub(super) fn detach_read(&mut self, peer: PeerId, seq: u64) {
        let p = &mut self.peers[peer];
        let Some(m) = p.outgoing.get(seq) else { return };
        if !matches!(m.body(), Body::User(_)) {
            return;
        }
        let e = *m.envelope();
        let fits = p.served().may_close(self.served.sums(), e.total as usize);
        if fits || !self.remedies.answers_are_bounded() {
            p.outgoing.copy_memory(seq);
            return self.account(peer);
        }
        // announced: the envelope keeps its place in the sequence
        if p.outgoing.withdraw(seq) == Some(Withdrawal::Granted) {
            self.finish_tx(peer, seq, None);
        }
        self.answer(peer, EpId(e.src_ep), e.dst_ep, e.tag, Status::Key, &[]);
    }

    /// What one-sided operations of peers cost, the largest of any peer: bytes of answers with their records, of these the copies, and
    /// bytes of orders that wait for their turn.
    pub fn served_of_peer_max(&self) -> (usize, usize, usize) {
        let sums = self.peers.iter().map(|p| p.served().sums());
        sums.fold((0, 0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1), a.2.max(b.2)))
    }

    /// What is kept for orders was added up whenever it changed.
    pub(crate) fn check_served(&self) {
        let mut all = (0, 0, 0);
        for p in &self.peers {
            assert_eq!(
                p.served_now(),
                *p.served(),
                "what is kept for a peer's orders is the sum of the messages"
            );
            let (kept, copied, waiting) = p.served().sums();
            all = (all.0 + kept, all.1 + copied, all.2 + waiting);
        }
        assert_eq!(all, self.served.sums().sums(), "what is kept for all orders is the sum over the peers");
    }
}
