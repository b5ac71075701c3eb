//! Matching of one endpoint: posted receives against messages in the order of their peers' sequences.
//!
//! Owns: posted receives, the list of unexpected messages (their bodies are with the peer), claimed messages,
//! multi-receive buffers. Invariant 2: a receive takes the oldest message that matches, a message the oldest receive.

use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::remedies::Remedies;
use crate::rendezvous::{Iov, Landing, Target};
use crate::types::{CqId, EndpointId, EpId, IoVec, PeerId, Protocol};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Messages in a multi-receive buffer begin at multiples of this.
const MULTI_ALIGN: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct Posted {
    pub tag: u64,
    pub ignore: u64,
    pub src: Option<EndpointId>,
    pub iov: Iov,
    pub context: usize,
    pub completion: bool,
    pub multi: Option<usize>,
}

/// An unexpected message, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unexpected {
    pub peer: PeerId,
    pub seq: u64,
    pub src_ep: u16,
    pub tag: u64,
}

/// A buffer that takes many messages.
#[derive(Debug, Clone)]
pub(crate) struct Multi {
    pub base: IoVec,
    pub used: usize,
    /// Messages placed in it whose bytes are not all there.
    pub pending: usize,
    /// No longer posted.
    pub retired: bool,
    /// Cancelled, or its only source is gone, while messages were under way in it: told when they are done.
    pub ended: Option<CompletionError>,
    pub context: usize,
    pub protocol: Protocol,
    pub completion: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    pub posted: VecDeque<Posted>,
    pub unexpected: VecDeque<Unexpected>,
    pub claimed: FxHashMap<usize, Unexpected>,
}

#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub tx_cq: CqId,
    pub rx_cq: CqId,
    pub multi_recv_min: usize,
    pub queues: [Queue; 3],
    pub multis: FxHashMap<usize, Multi>,
    pub multi_next: usize,
    /// Messages sent and not acknowledged.
    pub outstanding: u64,
    pub closing: bool,
    /// Whose registered memory peers reach through it.
    pub domain: u32,
    pub counts: OpCounts,
    /// Remedies of the engine.
    pub remedies: Remedies,
}

/// Operations of an endpoint that are over, whether or not they were told through a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpCounts {
    /// Sends that completed; injects among them.
    pub sent: u64,
    /// Sends that ended in an error.
    pub sends_failed: u64,
    /// Messages received.
    pub received: u64,
    /// Receives that ended in an error: cancelled, cut, or without their peer.
    pub receives_failed: u64,
    /// Writes to peers' memory that are placed there, and atomic operations that give nothing back.
    pub written: u64,
    /// The same, ended in an error.
    pub writes_failed: u64,
    /// Reads of peers' memory, and atomic operations that give values back.
    pub read: u64,
    /// The same, ended in an error.
    pub reads_failed: u64,
    /// Writes and atomic operations of peers on our memory.
    pub remote_written: u64,
    /// Reads of peers, and atomic operations that gave them values.
    pub remote_read: u64,
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

impl Endpoint {
    pub fn new(tx_cq: CqId, rx_cq: CqId) -> Self {
        Self {
            tx_cq,
            rx_cq,
            multi_recv_min: 64,
            queues: Default::default(),
            multis: FxHashMap::default(),
            multi_next: 0,
            outstanding: 0,
            closing: false,
            domain: 0,
            counts: OpCounts::default(),
            remedies: Remedies::default(),
        }
    }

    pub fn queue(&mut self, p: Protocol) -> &mut Queue {
        &mut self.queues[p as usize]
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
        ep: EpId,
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
                let cap = p.iov.bytes() as u64;
                return Match::Target(Target {
                    ep,
                    protocol,
                    context: p.context,
                    completion: p.completion,
                    iov: p.iov,
                    cap,
                    multi: None,
                    landing: Landing::Receive,
                });
            };
            if !cq_has_room {
                return Match::Wait;
            }
            let multi = self.multis.get_mut(&key).expect("a posted multi-receive has a buffer");
            let room = multi.base.len - multi.used;
            if total > room as u64 && multi.used > 0 {
                // a message that would be cut goes to the next buffer instead
                multi.retired = true;
                q.posted.remove(i);
                released.push(key);
                continue;
            }
            let len = (total as usize).min(room);
            let target = Target {
                ep,
                protocol,
                context: multi.context,
                completion: multi.completion,
                // SAFETY: used <= base.len, so the pointer stays in (or at the end of) the posted buffer.
                iov: Iov::One(IoVec { ptr: unsafe { multi.base.ptr.add(multi.used) }, len }),
                cap: len as u64,
                multi: Some(key),
                landing: Landing::Receive,
            };
            multi.used = (multi.used + len).next_multiple_of(MULTI_ALIGN).min(multi.base.len);
            multi.pending += 1;
            if multi.base.len - multi.used < self.multi_recv_min.max(1) {
                multi.retired = true;
                q.posted.remove(i);
            }
            return Match::Target(target);
        }
        Match::None
    }

    /// Takes posted receive `i` of a queue off the list, which ends with `error`. Its completion; `None` when the buffer is one of
    /// many messages, some of which are under way in it (invariant 4: it is given back when the last of them is done).
    pub fn end_posted(
        &mut self,
        ep: EpId,
        protocol: Protocol,
        i: usize,
        error: CompletionError,
    ) -> Option<Completion> {
        let p = self.queue(protocol).posted.remove(i).expect("index is in range");
        let mut c = Completion {
            tag: p.tag,
            error: Some(error),
            ..Completion::new(CompletionKind::Recv, protocol, ep, p.context)
        };
        if let Some(key) = p.multi {
            let m = self.multis.get_mut(&key).expect("a posted multi-receive has a buffer");
            m.retired = true;
            c.multi = true;
            c.multi_released = true;
            if m.pending > 0 && self.remedies.cancelled_multi_waits() {
                m.ended = Some(error);
                return None;
            }
            self.multis.remove(&key);
        }
        if protocol != Protocol::Collective {
            self.counts.receives_failed += 1;
        }
        Some(c)
    }

    /// A message in a multi-receive buffer is done. Says whether its completion gives the buffer back, and the completion
    /// of a cancel that waited for it.
    pub fn leave_multi(&mut self, ep: EpId, key: usize) -> (bool, Option<Completion>) {
        let Some(m) = self.multis.get_mut(&key) else { return (false, None) };
        m.pending -= 1;
        if !m.retired || (m.pending > 0 && self.remedies.multi_waits()) {
            return (false, None);
        }
        let m = self.multis.remove(&key).expect("looked up above");
        if m.ended.is_none() {
            return (true, None);
        }
        self.counts.receives_failed += 1;
        let c = Completion {
            multi: true,
            multi_released: true,
            error: m.ended,
            ..Completion::new(CompletionKind::Recv, m.protocol, ep, m.context)
        };
        (false, Some(c))
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

    fn message(seq: u64, tag: u64) -> Unexpected {
        Unexpected { peer: PeerId(1), seq, src_ep: 0, tag }
    }

    fn posted(tag: u64, ignore: u64, context: usize) -> Posted {
        Posted {
            tag,
            ignore,
            src: None,
            iov: Iov::One(IoVec::new(std::ptr::null_mut(), 0)),
            context,
            completion: true,
            multi: None,
        }
    }

    fn context_of(m: Match) -> Option<usize> {
        match m {
            Match::Target(t) => Some(t.context),
            _ => None,
        }
    }

    #[test]
    fn a_message_takes_the_oldest_receive_that_fits() {
        let mut e = Endpoint::new(CqId(0), CqId(0));
        for p in [posted(5, 0, 1), posted(0, u64::MAX, 2), posted(6, 0, 3)] {
            e.queue(Protocol::Tagged).posted.push_back(p);
        }
        let mut r = vec![];
        let mut take =
            |tag| context_of(e.take_posted(EpId(0), Protocol::Tagged, &message(0, tag), 0, true, &mut r));
        assert_eq!(take(6), Some(2));
        assert_eq!(take(6), Some(3));
        assert_eq!(take(6), None);
        assert_eq!(take(5), Some(1));
    }

    #[test]
    fn a_receive_takes_the_oldest_message_that_fits() {
        let mut e = Endpoint::new(CqId(0), CqId(0));
        for (s, t) in [(1, 7), (2, 8), (3, 7)] {
            e.queue(Protocol::Msg).unexpected.push_back(message(s, t));
        }
        assert_eq!(e.take_unexpected(Protocol::Msg, 8, 0, None).unwrap().seq, 2);
        assert_eq!(e.take_unexpected(Protocol::Msg, 7, 0, None).unwrap().seq, 1);
        let other = Some(EndpointId { peer: PeerId(9), ep: 0 });
        assert!(e.take_unexpected(Protocol::Msg, 7, 0, other).is_none());
    }

    #[test]
    fn a_multi_receive_buffer_is_retired_when_too_little_is_left() {
        let mut e = Endpoint::new(CqId(0), CqId(0));
        e.multi_recv_min = 32;
        let mut mem = vec![0u8; 100];
        e.multis.insert(
            4,
            Multi {
                base: IoVec::from_mut(&mut mem),
                used: 0,
                pending: 0,
                retired: false,
                ended: None,
                context: 77,
                protocol: Protocol::Msg,
                completion: true,
            },
        );
        e.queue(Protocol::Msg).posted.push_back(Posted { multi: Some(4), ..posted(0, u64::MAX, 77) });
        let mut r = vec![];
        assert!(matches!(
            e.take_posted(EpId(0), Protocol::Msg, &message(0, 0), 10, false, &mut r),
            Match::Wait
        ));
        let Match::Target(t) = e.take_posted(EpId(0), Protocol::Msg, &message(0, 0), 50, true, &mut r) else {
            panic!("the buffer has room")
        };
        assert_eq!((t.cap, e.multis[&4].used, e.multis[&4].pending), (50, 56, 1));
        let Match::Target(_) = e.take_posted(EpId(0), Protocol::Msg, &message(0, 0), 30, true, &mut r) else {
            panic!("the buffer has room")
        };
        assert!(e.multis[&4].retired && e.queue(Protocol::Msg).posted.is_empty());
    }
}
