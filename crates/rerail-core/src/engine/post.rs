//! Requests of the application: messages sent and received, looks at what has come, and cancellations. Owns: what each
//! call checks, and promises, before anything is under way.

use super::Engine;
use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::matching::matcher::{Posted, Unexpected};
use crate::matching::multi::Multi;
use crate::message::body::Body;
use crate::message::envelope::{Envelope, MESSAGE_BYTES_MAX, Role};
use crate::message::iov::Iov;
use crate::message::item::Item;
use crate::message::rx::{Local, RxMsg, RxState};
use crate::message::tx::{Draft, Report};
use crate::peer::Gone;
use crate::types::*;

impl Engine {
    /// Sends a message.
    ///
    /// # Safety
    /// The memory of `op.iov` stays valid until the completion (or, with `inject`, until the call returns), here and in every
    /// clone of this engine that is made before.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was sent.
    pub unsafe fn send(&mut self, op: &SendOp<'_>, now: Time) -> Result<(), PostError> {
        self.tick(now);
        let total: usize = op.iov.iter().map(|v| v.len).sum();
        if total as u64 > MESSAGE_BYTES_MAX {
            return Err(PostError::Invalid("a message has at most 2^48 bytes"));
        }
        if !self.endpoints.is_open(op.ep) {
            return Err(PostError::NoSuch);
        }
        let peer = op.dest.peer;
        let granule = self.options.fragment_bytes as u32;
        let eager_max = self.options.eager_bytes_max;
        let retained_max = self.options.retained_bytes_max;
        let level = self.level_of(op);
        let Some(p) = self.peers.get_mut(peer) else { return Err(PostError::NoSuch) };
        if p.gone().is_some() {
            return Err(PostError::PeerGone);
        }
        if p.is_self() {
            // SAFETY: the caller's promise.
            unsafe { self.send_to_self(op, total) };
            return Ok(());
        }
        let fits = p.outgoing.has_room(total, retained_max) || !self.remedies.retained_is_bounded();
        if (op.inject || total == 0) && !fits {
            return Err(PostError::Again);
        }
        // a copy at the peer proves nothing about a receive; a grant does
        let at_match = level == CompletionLevel::Matched;
        let eager = (total <= eager_max || (op.inject && total <= 65536)) && fits && !at_match;
        // SAFETY: the caller's promise.
        let iov = unsafe { Iov::new(op.iov) };
        // what is copied costs the processor twice; what is not holds its sender until it is acknowledged
        let copied = op.inject || (eager && total <= self.options.copied_bytes_max);
        let body = if copied { Body::copy_of(&iov, total, &mut self.copies) } else { Body::User(iov) };
        // an inject without a completion cannot report anything later
        let promised = level >= CompletionLevel::Delivered && self.remedies.delivery_waits();
        let reported = copied && (!promised || (op.inject && !op.completion));
        let report = match op.completion {
            _ if reported => Report::Never,
            true => Report::Always,
            false => Report::Errors,
        };
        let envelope = Envelope {
            src_ep: op.ep.0,
            dst_ep: op.dest.ep,
            protocol: op.protocol,
            role: Role::Message,
            tag: op.tag,
            data: op.data,
            total: total as u64,
            granule,
        };
        let context = op.context;
        let seq = p.outgoing.post(Draft { envelope, body, eager, context, report, level });
        self.queue_first(peer, seq);
        self.endpoints.get_mut(op.ep).expect("checked above").begin();
        self.counters.messages_sent += 1;
        if reported {
            self.complete_send(op.ep, op.protocol, op.context, op.completion, None);
        }
        self.want(peer);
        self.mark(op.dest.peer);
        Ok(())
    }

    /// When a send completes. An inject without a completion reports nothing later, so it waits for no match.
    fn level_of(&self, op: &SendOp<'_>) -> CompletionLevel {
        let reports = op.completion || !op.inject;
        if reports && self.remedies.match_waits() {
            op.level
        } else {
            op.level.min(CompletionLevel::Delivered)
        }
    }

    /// Puts a new (or demoted) message where its first transmission is taken from.
    pub(crate) fn queue_first(&mut self, peer: PeerId, seq: u64) {
        let p = &mut self.peers[peer];
        let m = p.outgoing.get(seq).expect("just posted");
        let total = m.envelope().total;
        if !m.is_eager() {
            p.backlog.post(Item::Rts { seq });
            self.want_streams(peer);
        } else if total as usize <= p.small_bytes_max() {
            p.backlog.post(Item::Eager { seq });
        } else {
            p.backlog.post_eager(seq, total);
            self.peers.expect_bulk(peer);
            self.want_streams(peer);
        }
    }

    /// # Safety
    /// As for [`Engine::send`].
    unsafe fn send_to_self(&mut self, op: &SendOp<'_>, total: usize) {
        let peer = op.dest.peer;
        // SAFETY: the caller's promise.
        let iov = unsafe { Iov::new(op.iov) };
        let level = self.level_of(op);
        let copy = op.inject || total <= self.options.eager_bytes_max;
        let done = copy && level < CompletionLevel::Matched;
        let p = &mut self.peers[peer];
        let seq = p.outgoing.skip();
        let state = if done {
            let mut b = Vec::with_capacity(total);
            iov.gather(0, total, &mut b);
            RxState::Whole(b)
        } else {
            let body = if op.inject { Body::copy_of(&iov, total, &mut self.copies) } else { Body::User(iov) };
            RxState::Local(Local::new(op, level, body))
        };
        let envelope = Envelope {
            src_ep: op.ep.0,
            dst_ep: op.dest.ep,
            protocol: op.protocol,
            role: Role::Message,
            tag: op.tag,
            data: op.data,
            total: total as u64,
            granule: self.options.fragment_bytes as u32,
        };
        p.incoming.insert(seq, envelope, state);
        self.counters.messages_sent += 1;
        if done {
            self.complete_send(op.ep, op.protocol, op.context, op.completion, None);
        } else {
            self.endpoints.get_mut(op.ep).expect("checked by send").begin();
        }
        self.advance_sequence(peer);
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The memory of `op.iov` stays valid and unshared until the completion, here and in every clone that is made before.
    ///
    /// # Errors
    /// See [`PostError`].
    pub unsafe fn recv(&mut self, op: &RecvOp<'_>, now: Time) -> Result<(), PostError> {
        self.tick(now);
        if self.endpoints.is_stalled(op.ep) {
            self.rematch(op.ep);
        }
        let waits = self.endpoints.is_stalled(op.ep);
        let Some(e) = self.endpoints.open_mut(op.ep) else { return Err(PostError::NoSuch) };
        if op.multi {
            let [base] = op.iov else {
                return Err(PostError::Invalid("a multi-receive buffer is one piece"));
            };
            // SAFETY: the caller's promise.
            unsafe { e.matcher_mut().post_multi(op, Multi::new(op, *base)) };
            self.rematch(op.ep);
            self.await_peer(op.ep, op.src);
            return Ok(());
        }
        // while an older message waits for room in the CQ, receives wait in line behind the one it will take; those of collective
        // operations need no room
        let waits = waits && op.protocol != Protocol::Collective;
        let matcher = e.matcher_mut();
        let found =
            if waits { None } else { matcher.take_unexpected(op.protocol, op.tag, op.ignore, op.src) };
        match found {
            None => {
                // SAFETY: the caller's promise.
                matcher.post(op.protocol, unsafe { Posted::new(op) });
                self.await_peer(op.ep, op.src);
            }
            Some(m) => {
                // SAFETY: the caller's promise.
                let target = unsafe { Posted::new(op) }.target(op.ep, op.protocol);
                self.matched(m.peer, m.seq, target);
            }
        }
        Ok(())
    }

    /// A receive or a look waits for this sender alone. A peer that was never met is connected now, because its end
    /// would go unnoticed otherwise; one that is gone sends nothing.
    fn await_peer(&mut self, ep: EpId, src: Option<EndpointId>) {
        let Some(src) = src else { return };
        let peer = src.peer;
        if self.peers[peer].gone().is_some() {
            self.end_hopeless(ep);
        } else {
            self.want(peer);
        }
    }

    /// Ends the posted receives of an endpoint that only a peer which is gone could match: they would stand for ever.
    /// Receives from any source stay, because others may match them.
    pub(crate) fn end_hopeless(&mut self, ep: EpId) {
        // a message that waits for room in the CQ belongs to one of them: this is called again when the queue is read
        if self.endpoints.is_stalled(ep) {
            return;
        }
        let peers = &self.peers;
        let Some(e) = self.endpoints.get_mut(ep) else { return };
        let rx_cq = e.rx_cq();
        let hopeless = |p: &Posted| p.src().and_then(|s| peers[s.peer].gone()).map(Gone::error);
        let mut ended = Vec::new();
        for protocol in Protocol::ALL {
            ended.extend(e.matcher_mut().end_posted_where(protocol, hopeless));
        }
        for c in ended {
            self.push(rx_cq, c);
        }
    }

    /// Receives the message that a claiming look with the same context reserved. Tag and source are ignored.
    ///
    /// # Safety
    /// As for [`Engine::recv`].
    ///
    /// # Errors
    /// [`PostError::NoSuch`] when nothing is claimed under this context.
    pub unsafe fn recv_claimed(&mut self, op: &RecvOp<'_>, now: Time) -> Result<(), PostError> {
        self.tick(now);
        let e = self.endpoints.get_mut(op.ep).ok_or(PostError::NoSuch)?;
        let m = e.matcher_mut().take_claimed(op.protocol, op.context).ok_or(PostError::NoSuch)?;
        // SAFETY: the caller's promise.
        let target = unsafe { Posted::new(op) }.target(op.ep, op.protocol);
        self.matched(m.peer, m.seq, target);
        Ok(())
    }

    /// Throws the claimed message away; completes as a [`CompletionKind::Peek`].
    ///
    /// # Errors
    /// [`PostError::NoSuch`] when nothing is claimed under this context.
    pub fn discard_claimed(
        &mut self,
        ep: EpId,
        protocol: Protocol,
        context: usize,
        now: Time,
    ) -> Result<(), PostError> {
        self.tick(now);
        let e = self.endpoints.get_mut(ep).ok_or(PostError::NoSuch)?;
        let m = e.matcher_mut().take_claimed(protocol, context).ok_or(PostError::NoSuch)?;
        self.report_peek(ep, protocol, context, &m);
        self.discard_message(m.peer, m.seq);
        Ok(())
    }

    /// Looks for an unexpected message. The result comes through the rx CQ: [`CompletionKind::Peek`], or error
    /// NoMessage, or why the only peer that is looked for is gone.
    ///
    /// # Errors
    /// [`PostError::NoSuch`] for an unknown endpoint.
    pub fn peek(&mut self, op: &PeekOp, now: Time) -> Result<(), PostError> {
        self.tick(now);
        if self.endpoints.is_stalled(op.ep) {
            self.rematch(op.ep);
        }
        // a message that waits for room in the CQ belongs to the multi-receive that is posted for it
        let waits = self.endpoints.is_stalled(op.ep);
        let e = self.endpoints.get(op.ep).ok_or(PostError::NoSuch)?;
        let found =
            if waits { None } else { e.matcher().find_unexpected(op.protocol, op.tag, op.ignore, op.src) };
        let Some(m) = found else {
            let cq = e.rx_cq();
            // a program that looks until something comes from a peer that is gone would look for ever
            let gone = op.src.and_then(|s| self.peers[s.peer].gone()).filter(|_| !waits);
            self.push(
                cq,
                Completion {
                    tag: op.tag,
                    error: Some(gone.map_or(CompletionError::NoMessage, Gone::error)),
                    ..Completion::new(CompletionKind::Peek, op.protocol, op.ep, op.context)
                },
            );
            self.await_peer(op.ep, op.src);
            return Ok(());
        };
        self.report_peek(op.ep, op.protocol, op.context, &m);
        let matcher = self.endpoints.get_mut(op.ep).expect("found above").matcher_mut();
        if op.discard {
            matcher.discard(op.protocol, m);
            self.discard_message(m.peer, m.seq);
        } else if op.claim {
            matcher.claim(op.protocol, m, op.context);
        }
        Ok(())
    }

    fn report_peek(&mut self, ep: EpId, protocol: Protocol, context: usize, m: &Unexpected) {
        let rx = self.peers[m.peer].incoming.get(m.seq).expect("an unexpected message is known");
        let rx = rx.envelope();
        let c = Completion {
            len: rx.total as usize,
            tag: rx.tag,
            data: rx.data,
            src: Some(EndpointId { peer: m.peer, ep: m.src_ep }),
            ..Completion::new(CompletionKind::Peek, protocol, ep, context)
        };
        let cq = self.endpoints.get(ep).expect("the endpoint is open").rx_cq();
        self.push(cq, c);
    }

    /// Cancels the posted, unmatched receive with this context; its completion carries Canceled. False: nothing to
    /// cancel.
    pub fn cancel(&mut self, ep: EpId, context: usize) -> bool {
        let Some(e) = self.endpoints.get_mut(ep) else { return false };
        let rx_cq = e.rx_cq();
        for protocol in [Protocol::Msg, Protocol::Tagged] {
            let Some(i) = e.matcher().position(protocol, context) else { continue };
            if let Some(c) = e.matcher_mut().end_posted(protocol, i, CompletionError::Canceled) {
                self.push(rx_cq, c);
            }
            return true;
        }
        if !self.remedies.cancel_only_unmatched() {
            // planted: what is under way is reported as cancelled, and goes on
            let hit = |m: &RxMsg| m.receiving().is_some_and(|r| r.target().context == context);
            if self.peers.iter().any(|p| p.incoming.iter().any(|(_, m)| hit(m))) {
                let error = Some(CompletionError::Canceled);
                self.push(
                    rx_cq,
                    Completion {
                        error,
                        ..Completion::new(CompletionKind::Recv, Protocol::Tagged, ep, context)
                    },
                );
                return true;
            }
        }
        false
    }
}
