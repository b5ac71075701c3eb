//! From the sequence of a peer to the buffer of a receive. Owns: the order in which messages are matched, and what becomes of one when it is
//! all there.

use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::engine::Engine;
use crate::matching::matcher::{Match, Unexpected};
use crate::message::envelope::Role;
use crate::message::incoming::Ended;
use crate::message::item::Item;
use crate::message::rx::{RxMsg, RxState};
use crate::message::target::{Landing, Target};
use crate::peer::Gone;
use crate::types::*;
use rerail_wire::onesided;

impl Engine {
    /// Takes messages out of the sequence while the next one is there, and matches them.
    pub(crate) fn advance_sequence(&mut self, peer: PeerId) {
        loop {
            let p = &self.peers[peer];
            let Some((seq, m)) = p.incoming.head() else { return };
            let e = *m.envelope();
            let name = Unexpected { peer: p.id(), seq, src_ep: e.src_ep, tag: e.tag };
            let (ep, protocol, total) = (EpId(e.dst_ep), e.protocol, e.total);
            match e.role {
                Role::Message => self.peers[peer].incoming.pass(),
                // it is fetched, and what lies behind it waits
                Role::Order if m.is_remote() => return self.fetch_order(peer, seq, true),
                Role::Order if m.receiving().is_some() => return,
                Role::Order if self.holds_orders(peer) && !m.payload().is_some_and(onesided::is_answer) => {
                    return self.hold_orders(peer);
                }
                Role::Order => {
                    let p = &mut self.peers[peer];
                    p.incoming.pass();
                    let m = p.incoming.remove(seq).map(RxMsg::into_state);
                    self.account(peer);
                    if let Some(RxState::Whole(b)) = m {
                        self.execute(peer, name.src_ep, ep, &b);
                    }
                    continue;
                }
                Role::Answer => unreachable!("to its receiver an answer is an order"),
                Role::Data => {
                    self.peers[peer].incoming.pass();
                    let (id, result) = (e.tag, e.data.is_some());
                    match self.landing(peer, seq, id, result, total) {
                        Some(t) => self.matched(peer, seq, t),
                        None => self.drop_message(name.peer, seq),
                    }
                    continue;
                }
            }
            if protocol == Protocol::Collective && self.is_for_nobody(&name, ep) {
                self.drop_message(name.peer, seq);
                continue;
            }
            match self.match_posted(ep, protocol, &name, total) {
                Some(Match::Target(t)) => self.matched(peer, seq, t),
                Some(Match::Wait) => {
                    self.endpoints.stall(ep);
                    let e = self.endpoints.get_mut(ep).expect("it matched");
                    e.matcher_mut().keep_waiting(protocol, name);
                }
                Some(Match::None) => {
                    let e = self.endpoints.get_mut(ep).expect("it was asked");
                    e.matcher_mut().keep(protocol, name);
                }
                None => self.drop_message(name.peer, seq),
            }
        }
    }

    /// Looks among the posted receives; `None`: there is no such endpoint.
    pub(crate) fn match_posted(
        &mut self,
        ep: EpId,
        protocol: Protocol,
        m: &Unexpected,
        total: u64,
    ) -> Option<Match> {
        let e = self.endpoints.open_mut(ep)?;
        let room = self.queues.has_room(e.rx_cq());
        let mut released = Vec::new();
        let found = e.matcher_mut().take_posted(protocol, m, total, room, &mut released);
        for key in released {
            self.release_multi(ep, key);
        }
        Some(found)
    }

    /// The fast path: the message is the next one, its bytes are here, and the oldest receive that fits is an ordinary
    /// one. False: it is not so, and nothing was done.
    pub(crate) fn receive_now(
        &mut self,
        ep: EpId,
        protocol: Protocol,
        m: &Unexpected,
        data: Option<u64>,
        bytes: &[u8],
    ) -> bool {
        let Some(e) = self.endpoints.open_mut(ep) else { return false };
        let Some(posted) = e.matcher_mut().take_ordinary(protocol, m) else { return false };
        let cap = posted.iov().bytes();
        let len = bytes.len().min(cap);
        posted.iov().scatter(0, &bytes[..len]);
        self.counters.messages_received += 1;
        self.counters.bytes_received += len as u64;
        let error = (bytes.len() > cap).then(|| CompletionError::Truncated { over: bytes.len() - cap });
        e.count_receive(protocol, error.is_some());
        if posted.completion() || error.is_some() {
            let rx_cq = e.rx_cq();
            let c = Completion {
                len,
                tag: m.tag,
                data,
                src: Some(EndpointId { peer: m.peer, ep: m.src_ep }),
                error,
                ..Completion::new(CompletionKind::Recv, protocol, ep, posted.context())
            };
            self.push(rx_cq, c);
        }
        true
    }

    /// A multi-receive buffer is retired: gives it back if nothing is under way in it.
    fn release_multi(&mut self, ep: EpId, key: usize) {
        let Some(e) = self.endpoints.get_mut(ep) else { return };
        let rx_cq = e.rx_cq();
        if let Some(c) = e.matcher_mut().release_multi(key) {
            self.push(rx_cq, c);
        }
    }

    /// Tries the unexpected messages of an endpoint against its posted receives again.
    pub(crate) fn rematch(&mut self, ep: EpId) {
        self.endpoints.resume(ep);
        for protocol in [Protocol::Msg, Protocol::Tagged] {
            let mut i = 0;
            loop {
                let Some(e) = self.endpoints.get(ep) else { return };
                if !e.matcher().has_posted(protocol) {
                    break;
                }
                let Some(name) = e.matcher().unexpected_at(protocol, i) else { break };
                let m = self.peers[name.peer].incoming.get(name.seq);
                let total = m.expect("an unexpected message is known").envelope().total;
                match self.match_posted(ep, protocol, &name, total) {
                    Some(Match::Target(t)) => {
                        let e = self.endpoints.get_mut(ep).expect("it matched");
                        e.matcher_mut().remove_unexpected(protocol, i);
                        self.matched(name.peer, name.seq, t);
                    }
                    Some(Match::Wait) => {
                        self.endpoints.stall(ep);
                        break;
                    }
                    Some(Match::None) => i += 1,
                    None => return,
                }
            }
        }
    }

    /// A message has found its receive.
    pub(crate) fn matched(&mut self, peer: PeerId, seq: u64, target: Target) {
        let p = &mut self.peers[peer];
        let m = p.incoming.get(seq).expect("a matched message is known");
        let e = *m.envelope();
        if m.is_remote() && p.gone().is_none() {
            let cut = if self.remedies.grants_are_cut() { target.cap } else { u64::MAX };
            let granted = e.total.min(cut);
            if !self.remedies.truncation_waits() && granted < e.total {
                // planted: the receive is reported at once, and the bytes come later
                let early = Target { iov: target.iov.clone(), landing: Landing::Receive, ..target };
                self.complete_recv(peer, e.src_ep, e.tag, e.data, e.total, early);
            }
            let p = &mut self.peers[peer];
            p.incoming.grant(seq, target, granted);
            let id = p.id();
            if self.lend_target(peer, seq) {
                self.hold_grant(id, seq);
            } else {
                self.peers[peer].backlog.tell(Item::Cts { seq });
            }
            self.peers.expect_bulk(peer);
            if granted == 0 {
                self.finish_rx(peer, seq);
            }
            self.mark(id);
            return;
        }
        if !m.is_here() {
            // only the envelope came, and the rest will not come
            let error = p.gone().filter(|_| m.is_remote()).map_or(CompletionError::PeerClosed, Gone::error);
            p.incoming.grant(seq, target, 0);
            self.peers.expect_bulk(peer);
            self.fail_rx(peer, seq, error);
            return;
        }
        match p.incoming.remove(seq).expect("looked up above").into_state() {
            RxState::Whole(b) => {
                let n = b.len().min(target.cap as usize);
                target.iov.scatter(0, &b[..n]);
                self.copies.put(b);
                if !matches!(target.landing, Landing::Receive) {
                    return self.landed(peer, &target.landing);
                }
                self.complete_recv(peer, e.src_ep, e.tag, e.data, e.total, target);
            }
            RxState::Local(l) => {
                let n = (e.total.min(target.cap)) as usize;
                let mut b = Vec::with_capacity(n);
                l.body().gather(0, n, &mut b);
                target.iov.scatter(0, &b);
                self.complete_recv(peer, e.src_ep, e.tag, e.data, e.total, target);
                self.complete_send(l.tx_ep(), e.protocol, l.context(), l.completion(), None);
                self.endpoints.settle(l.tx_ep(), 1);
            }
            RxState::Remote | RxState::Receiving(_) | RxState::Withdrawn => unreachable!("handled above"),
        }
    }

    /// Every byte of a granted message is there. Invariant 4: a stream that still reads for this message finds no lease, and goes to scratch.
    /// Writes of adapters have all landed: each fragment is written once.
    pub(crate) fn finish_rx(&mut self, peer: PeerId, seq: u64) {
        self.take_back(peer, seq);
        match self.peers[peer].incoming.finish(seq) {
            Ended::Order => self.advance_sequence(peer),
            Ended::Message(e, target) if matches!(target.landing, Landing::Receive) => {
                self.complete_recv(peer, e.src_ep, e.tag, e.data, e.total, target);
            }
            Ended::Message(_, target) => self.landed(peer, &target.landing),
        }
    }

    pub(crate) fn complete_recv(
        &mut self,
        peer: PeerId,
        src_ep: u16,
        tag: u64,
        data: Option<u64>,
        total: u64,
        target: Target,
    ) {
        self.counters.messages_received += 1;
        let len = total.min(target.cap) as usize;
        self.counters.bytes_received += len as u64;
        let mut c = Completion {
            len,
            tag,
            data,
            src: Some(EndpointId { peer: self.peers[peer].id(), ep: src_ep }),
            ..Completion::new(CompletionKind::Recv, target.protocol, target.ep, target.context)
        };
        if total > target.cap {
            c.error = Some(CompletionError::Truncated { over: (total - target.cap) as usize });
        }
        let Some(e) = self.endpoints.get_mut(target.ep) else { return };
        e.count_receive(target.protocol, c.error.is_some());
        let rx_cq = e.rx_cq();
        let mut cancelled = None;
        if let Some(key) = target.multi {
            c.buf = target.iov.as_slice()[0].ptr as usize;
            (c, cancelled) = e.leave_multi(key, c);
        }
        if target.completion || c.error.is_some() || c.multi_released {
            self.push(rx_cq, c);
        }
        if let Some(c) = cancelled {
            self.push(rx_cq, c);
        }
    }
}
