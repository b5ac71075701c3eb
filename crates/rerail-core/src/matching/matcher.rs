//! Posted receives of one endpoint, and the messages that found none.
//!
//! Owns: posted receives, the list of unexpected messages (their bodies are with the peer), claimed messages,
//! multi-receive buffers, and how many receives ended without a message. Invariant 2: a receive takes the oldest message that matches, a
//! message the oldest receive.

use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::matching::multi::Multi;
use crate::message::iov::Iov;
use crate::message::target::{Landing, Target};
use crate::remedies::Remedies;
use crate::rest::fit;
use crate::types::{EndpointId, EpId, PeerId, Protocol, RecvOp};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A receive that no message has found yet.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    tag: u64,
    ignore: u64,
    src: Option<EndpointId>,
    iov: Iov,
    context: usize,
    completion: bool,
    /// It is this multi-receive buffer.
    multi: Option<usize>,
}

impl Posted {
    /// # Safety
    /// As for [`Engine::recv`](crate::Engine::recv).
    pub unsafe fn new(op: &RecvOp<'_>) -> Self {
        Self {
            tag: op.tag,
            ignore: op.ignore,
            src: op.src,
            // SAFETY: the caller's promise.
            iov: unsafe { Iov::new(op.iov) },
            context: op.context,
            completion: op.completion,
            multi: None,
        }
    }

    /// The only endpoint from which it takes a message.
    pub fn src(&self) -> Option<EndpointId> {
        self.src
    }

    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Where its message goes.
    #[inline]
    pub fn iov(&self) -> &Iov {
        &self.iov
    }

    #[inline]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether success is reported to the application.
    #[inline]
    pub fn completion(&self) -> bool {
        self.completion
    }

    /// The same, for a message that is granted.
    pub fn target(self, ep: EpId, protocol: Protocol) -> Target {
        Target {
            ep,
            protocol,
            context: self.context,
            completion: self.completion,
            cap: self.iov.bytes() as u64,
            iov: self.iov,
            multi: None,
            landing: Landing::Receive,
        }
    }
}

/// An unexpected message, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unexpected {
    pub peer: PeerId,
    pub seq: u64,
    pub src_ep: u16,
    pub tag: u64,
}

#[derive(Debug, Clone, Default)]
struct Queue {
    posted: VecDeque<Posted>,
    unexpected: VecDeque<Unexpected>,
    claimed: FxHashMap<usize, Unexpected>,
}

#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    ep: EpId,
    queues: [Queue; 3],
    multis: FxHashMap<usize, Multi>,
    multi_next: usize,
    /// A multi-receive buffer with less room than this is retired.
    multi_bytes_min: usize,
    /// Receives of the application that ended in an error before a message was in them.
    ended: u64,
    /// Remedies of the engine.
    remedies: Remedies,
}

fn matches(tag: u64, ignore: u64, src: Option<EndpointId>, m: &Unexpected, fine: bool) -> bool {
    let from = |s: EndpointId| s.peer == m.peer && (s.ep == m.src_ep || !fine);
    (tag ^ m.tag) & !ignore == 0 && src.is_none_or(from)
}

/// What a message found among the posted receives.
pub(crate) enum Match {
    /// A place. When `released` is set a multi-receive buffer before it was too full and is given back.
    Target(Target),
    /// Nothing posted fits.
    None,
    /// A fitting multi-receive is posted, but the CQ is full (hazard H15).
    Wait,
}

impl Matcher {
    pub fn new(ep: EpId, remedies: Remedies) -> Self {
        Self {
            ep,
            queues: Default::default(),
            multis: FxHashMap::default(),
            multi_next: 0,
            multi_bytes_min: 64,
            ended: 0,
            remedies,
        }
    }

    #[inline]
    fn queue(&mut self, p: Protocol) -> &mut Queue {
        &mut self.queues[p as usize]
    }

    /// FI_OPT_MIN_MULTI_RECV.
    pub fn set_multi_bytes_min(&mut self, bytes: usize) {
        self.multi_bytes_min = bytes;
    }

    /// Receives of the application that ended in an error before a message was in them.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether a receive is posted.
    pub fn has_posted(&self, protocol: Protocol) -> bool {
        !self.queues[protocol as usize].posted.is_empty()
    }

    /// Posted receives, oldest first.
    pub fn posted(&self, protocol: Protocol) -> impl Iterator<Item = &Posted> {
        self.queues[protocol as usize].posted.iter()
    }

    /// Unexpected messages, oldest first.
    pub fn unexpected(&self, protocol: Protocol) -> impl Iterator<Item = &Unexpected> {
        self.queues[protocol as usize].unexpected.iter()
    }

    /// The peers that posted receives name, queue by queue, oldest first.
    pub fn awaited(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.queues.iter().flat_map(|q| &q.posted).filter_map(|r| r.src.map(|s| s.peer))
    }

    /// Posts a receive behind all others.
    #[inline]
    pub fn post(&mut self, protocol: Protocol, receive: Posted) {
        self.queue(protocol).posted.push_back(receive);
    }

    /// Posts a buffer for many messages behind all other receives.
    ///
    /// # Safety
    /// As for [`Engine::recv`](crate::Engine::recv).
    pub unsafe fn post_multi(&mut self, op: &RecvOp<'_>, buffer: Multi) {
        let key = self.multi_next;
        self.multi_next += 1;
        self.multis.insert(key, buffer);
        // SAFETY: the caller's promise.
        let receive = unsafe { Posted::new(op) };
        self.post(op.protocol, Posted { multi: Some(key), ..receive });
    }

    /// Takes the oldest posted receive for a message, unless that is a multi-receive.
    #[inline]
    pub fn take_ordinary(&mut self, protocol: Protocol, m: &Unexpected) -> Option<Posted> {
        let fine = self.remedies.endpoints_differ();
        let q = &mut self.queues[protocol as usize];
        let i = q.posted.iter().position(|p| matches(p.tag, p.ignore, p.src, m, fine))?;
        if q.posted[i].multi.is_some() {
            return None;
        }
        if i == 0 { q.posted.pop_front() } else { q.posted.remove(i) }
    }

    /// Finds the oldest posted receive for a message and takes it. Multi-receive buffers that have no room left for it
    /// are retired and their keys pushed to `released`.
    pub fn take_posted(
        &mut self,
        protocol: Protocol,
        m: &Unexpected,
        total: u64,
        cq_has_room: bool,
        released: &mut Vec<usize>,
    ) -> Match {
        let fine = self.remedies.endpoints_differ();
        let q = &mut self.queues[protocol as usize];
        let mut i = 0;
        while i < q.posted.len() {
            let p = &q.posted[i];
            if !matches(p.tag, p.ignore, p.src, m, fine) {
                i += 1;
                continue;
            }
            let Some(key) = p.multi else {
                let p = q.posted.remove(i).expect("index is in range");
                return Match::Target(p.target(self.ep, protocol));
            };
            if !cq_has_room {
                return Match::Wait;
            }
            let multi = self.multis.get_mut(&key).expect("a posted multi-receive has a buffer");
            if !multi.takes(total) {
                multi.retire();
                q.posted.remove(i);
                released.push(key);
                continue;
            }
            let place = multi.place(total);
            // SAFETY: a part of the posted buffer, which is the receive's until it is given back: not before this message is done. The next
            // message begins behind it.
            let iov = unsafe { Iov::new(&[place]) };
            let target = Target {
                ep: self.ep,
                protocol,
                context: multi.context(),
                completion: multi.completion(),
                iov,
                cap: place.len as u64,
                multi: Some(key),
                landing: Landing::Receive,
            };
            if multi.is_full(self.multi_bytes_min) {
                multi.retire();
                q.posted.remove(i);
            }
            return Match::Target(target);
        }
        Match::None
    }

    /// A retired multi-receive buffer is given back, unless messages are under way in it.
    pub fn release_multi(&mut self, key: usize) -> Option<Completion> {
        if self.multis.get(&key)?.is_in_use() {
            return None;
        }
        self.multis.remove(&key).map(|m| m.release(self.ep))
    }

    /// The place among the posted receives of the oldest one with this context.
    pub fn position(&self, protocol: Protocol, context: usize) -> Option<usize> {
        self.queues[protocol as usize].posted.iter().position(|p| p.context == context)
    }

    /// Takes posted receive `i` of a queue off the list, which ends with `error`. Its completion; `None` when the buffer is one of
    /// many messages, some of which are under way in it (invariant 4: it is given back when the last of them is done).
    pub fn end_posted(&mut self, protocol: Protocol, i: usize, error: CompletionError) -> Option<Completion> {
        let p = self.queue(protocol).posted.remove(i).expect("index is in range");
        let mut c = Completion {
            tag: p.tag,
            error: Some(error),
            ..Completion::new(CompletionKind::Recv, protocol, self.ep, p.context)
        };
        if let Some(key) = p.multi {
            let m = self.multis.get_mut(&key).expect("a posted multi-receive has a buffer");
            c.multi = true;
            c.multi_released = true;
            if m.is_in_use() && self.remedies.cancelled_multi_waits() {
                m.end(error);
                return None;
            }
            self.multis.remove(&key);
        }
        self.ended += u64::from(protocol != Protocol::Collective);
        Some(c)
    }

    /// Ends the posted receives for which `error` has one. Their completions, oldest first.
    pub fn end_posted_where(
        &mut self,
        protocol: Protocol,
        error: impl Fn(&Posted) -> Option<CompletionError>,
    ) -> Vec<Completion> {
        let mut completions = Vec::new();
        let mut i = 0;
        while let Some(p) = self.queue(protocol).posted.get(i) {
            match error(p) {
                Some(error) => completions.extend(self.end_posted(protocol, i, error)),
                None => i += 1,
            }
        }
        completions
    }

    /// A message in a multi-receive buffer is done. Returns whether its completion gives the buffer back, and the
    /// completion of a cancel that waited for it.
    pub fn leave_multi(&mut self, key: usize) -> (bool, Option<Completion>) {
        let waits = self.remedies.multi_waits();
        let Some(m) = self.multis.get_mut(&key) else { return (false, None) };
        if !m.leave(waits) {
            return (false, None);
        }
        let m = self.multis.remove(&key).expect("looked up above");
        let cancelled = m.end_of_ended(self.ep);
        self.ended += u64::from(cancelled.is_some());
        (cancelled.is_none(), cancelled)
    }

    /// Keeps a message that no receive has matched.
    pub fn keep(&mut self, protocol: Protocol, m: Unexpected) {
        if self.remedies.unexpected_in_order() {
            self.queue(protocol).unexpected.push_back(m);
        } else {
            self.queue(protocol).unexpected.push_front(m);
        }
    }

    /// Keeps a message whose receive is posted, until there is room for its completion.
    pub fn keep_waiting(&mut self, protocol: Protocol, m: Unexpected) {
        self.queue(protocol).unexpected.push_back(m);
    }

    /// Unexpected message `i`, oldest first.
    pub fn unexpected_at(&self, protocol: Protocol, i: usize) -> Option<Unexpected> {
        self.queues[protocol as usize].unexpected.get(i).copied()
    }

    /// Takes unexpected message `i` off the list.
    pub fn remove_unexpected(&mut self, protocol: Protocol, i: usize) {
        self.queue(protocol).unexpected.remove(i);
    }

    /// Takes those unexpected messages off the list, oldest first.
    pub fn take_unexpected_where(
        &mut self,
        protocol: Protocol,
        which: impl Fn(&Unexpected) -> bool,
    ) -> Vec<Unexpected> {
        let list = &mut self.queue(protocol).unexpected;
        let taken = list.iter().copied().filter(&which).collect();
        list.retain(|m| !which(m));
        taken
    }

    /// Reserves an unexpected message for the receive that will name this context.
    pub fn claim(&mut self, protocol: Protocol, m: Unexpected, context: usize) {
        if self.remedies.claims_reserve() {
            self.discard(protocol, m);
        }
        self.queue(protocol).claimed.insert(context, m);
    }

    /// Takes the message that was claimed under this context.
    pub fn take_claimed(&mut self, protocol: Protocol, context: usize) -> Option<Unexpected> {
        self.queue(protocol).claimed.remove(&context)
    }

    /// Takes an unexpected message off the list.
    pub fn discard(&mut self, protocol: Protocol, m: Unexpected) {
        self.queue(protocol).unexpected.retain(|x| *x != m);
    }

    /// Forgets all receives, which end without a completion. The messages that are left.
    pub fn close(&mut self) -> Vec<Unexpected> {
        let mut orphans = Vec::new();
        for q in &mut self.queues {
            q.posted.clear();
            orphans.extend(q.unexpected.drain(..));
            orphans.extend(q.claimed.drain().map(|(_, m)| m));
        }
        self.multis.clear();
        orphans
    }

    /// Gives back most of the memory of queues that are nearly empty.
    pub fn tidy(&mut self) {
        for q in &mut self.queues {
            fit(&mut q.posted);
            fit(&mut q.unexpected);
        }
    }

    /// Finds the oldest unexpected message for a receive and takes it off the list.
    pub fn take_unexpected(
        &mut self,
        protocol: Protocol,
        tag: u64,
        ignore: u64,
        src: Option<EndpointId>,
    ) -> Option<Unexpected> {
        let fine = self.remedies.endpoints_differ();
        let q = self.queue(protocol);
        let i = q.unexpected.iter().position(|m| matches(tag, ignore, src, m, fine))?;
        q.unexpected.remove(i)
    }

    /// The oldest unexpected message for a look.
    pub fn find_unexpected(
        &self,
        protocol: Protocol,
        tag: u64,
        ignore: u64,
        src: Option<EndpointId>,
    ) -> Option<Unexpected> {
        let fine = self.remedies.endpoints_differ();
        self.queues[protocol as usize].unexpected.iter().find(|m| matches(tag, ignore, src, m, fine)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::IoVec;

    fn message(seq: u64, tag: u64) -> Unexpected {
        Unexpected { peer: PeerId(1), seq, src_ep: 0, tag }
    }

    fn posted(tag: u64, ignore: u64, context: usize) -> Posted {
        Posted { tag, ignore, src: None, iov: Iov::none(), context, completion: true, multi: None }
    }

    fn context_of(m: Match) -> Option<usize> {
        match m {
            Match::Target(t) => Some(t.context),
            _ => None,
        }
    }

    #[test]
    fn a_message_takes_the_oldest_receive_that_fits() {
        let mut e = Matcher::new(EpId(0), Remedies::default());
        for p in [posted(5, 0, 1), posted(0, u64::MAX, 2), posted(6, 0, 3)] {
            e.post(Protocol::Tagged, p);
        }
        let mut r = vec![];
        let mut take = |tag| context_of(e.take_posted(Protocol::Tagged, &message(0, tag), 0, true, &mut r));
        assert_eq!(take(6), Some(2));
        assert_eq!(take(6), Some(3));
        assert_eq!(take(6), None);
        assert_eq!(take(5), Some(1));
    }

    #[test]
    fn a_receive_takes_the_oldest_message_that_fits() {
        let mut e = Matcher::new(EpId(0), Remedies::default());
        for (s, t) in [(1, 7), (2, 8), (3, 7)] {
            e.keep(Protocol::Msg, message(s, t));
        }
        assert_eq!(e.take_unexpected(Protocol::Msg, 8, 0, None).unwrap().seq, 2);
        assert_eq!(e.take_unexpected(Protocol::Msg, 7, 0, None).unwrap().seq, 1);
        let other = Some(EndpointId { peer: PeerId(9), ep: 0 });
        assert!(e.take_unexpected(Protocol::Msg, 7, 0, other).is_none());
    }

    fn multi(e: &mut Matcher, memory: &mut [u8]) {
        let base = IoVec::from_mut(memory);
        let op = RecvOp {
            ep: EpId(0),
            protocol: Protocol::Msg,
            tag: 0,
            ignore: u64::MAX,
            src: None,
            iov: &[base],
            context: 77,
            completion: true,
            multi: true,
        };
        // SAFETY: nothing is written to it.
        unsafe { e.post_multi(&op, Multi::new(&op, base)) };
    }

    #[test]
    fn a_multi_receive_buffer_is_retired_when_too_little_is_left() {
        let mut e = Matcher::new(EpId(0), Remedies::default());
        e.set_multi_bytes_min(32);
        let mut memory = vec![0u8; 100];
        multi(&mut e, &mut memory);
        let mut r = vec![];
        let take = |e: &mut Matcher, total, room, r: &mut Vec<usize>| {
            e.take_posted(Protocol::Msg, &message(0, 0), total, room, r)
        };
        assert!(matches!(take(&mut e, 10, false, &mut r), Match::Wait), "no room for its completion");
        let Match::Target(t) = take(&mut e, 50, true, &mut r) else { panic!("the buffer has room") };
        assert_eq!((t.cap, t.context), (50, 77));
        assert!(e.has_posted(Protocol::Msg));
        let Match::Target(_) = take(&mut e, 30, true, &mut r) else { panic!("the buffer has room") };
        assert!(!e.has_posted(Protocol::Msg), "less than 32 bytes are left");
        assert_eq!(e.leave_multi(t.multi.unwrap()), (false, None), "the other is under way");
        assert_eq!(e.leave_multi(t.multi.unwrap()), (true, None));
    }

    #[test]
    fn receives_that_end_without_a_message_are_counted_once() {
        let mut e = Matcher::new(EpId(0), Remedies::default());
        e.post(Protocol::Tagged, posted(5, 0, 1));
        e.post(Protocol::Collective, posted(5, 0, 2));
        let mut memory = vec![0u8; 100];
        multi(&mut e, &mut memory);
        let place = |e: &mut Matcher| e.take_posted(Protocol::Msg, &message(0, 0), 8, true, &mut vec![]);
        let Match::Target(t) = place(&mut e) else { panic!("the buffer has room") };
        for protocol in Protocol::ALL {
            e.end_posted_where(protocol, |_| Some(CompletionError::Canceled));
        }
        assert_eq!(e.ended(), 1, "the buffer waits for its message, and collective operations do not count");
        let (with_message, cancelled) = e.leave_multi(t.multi.unwrap());
        assert!(!with_message && cancelled.is_some_and(|c| c.error == Some(CompletionError::Canceled)));
        assert_eq!(e.ended(), 2);
    }

    #[test]
    fn a_claimed_message_is_found_by_no_other_receive() {
        let mut e = Matcher::new(EpId(0), Remedies::default());
        e.keep(Protocol::Tagged, message(1, 7));
        let found = e.find_unexpected(Protocol::Tagged, 7, 0, None).unwrap();
        e.claim(Protocol::Tagged, found, 99);
        assert!(e.take_unexpected(Protocol::Tagged, 7, 0, None).is_none());
        assert_eq!(e.take_claimed(Protocol::Tagged, 99), Some(found));
        assert!(e.take_claimed(Protocol::Tagged, 99).is_none());
    }
}
