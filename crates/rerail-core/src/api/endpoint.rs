//! One endpoint: where it reports, what it has under way, how many operations are over.
//!
//! Owns: the number of operations that are under way, the counts of those that are over, the linger time, and the [`Matcher`] of its
//! receives. Invariant: every operation that was begun is settled once; an endpoint has lingered when none is left.

use crate::api::completion::Completion;
use crate::matching::matcher::{Matcher, Unexpected};
use crate::remedies::Remedies;
use crate::types::{CqId, EpId, Protocol, Time};
use std::time::Duration;

/// Operations of an endpoint that are over, whether or not a queue reported them.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// It takes nothing new; until then what it has sent may still be acknowledged.
    Closing {
        linger_until: Time,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    tx_cq: CqId,
    rx_cq: CqId,
    state: State,
    matcher: Matcher,
    /// Messages sent and not acknowledged, and one-sided operations without an answer.
    outstanding: u64,
    /// Its registered memory is what peers reach through this endpoint.
    domain: u32,
    counts: OpCounts,
}

impl Endpoint {
    pub fn new(id: EpId, tx_cq: CqId, rx_cq: CqId, remedies: Remedies) -> Self {
        Self {
            tx_cq,
            rx_cq,
            state: State::Open,
            matcher: Matcher::new(id, remedies),
            outstanding: 0,
            domain: 0,
            counts: OpCounts::default(),
        }
    }

    /// Queue of the completions of sends.
    #[inline]
    pub fn tx_cq(&self) -> CqId {
        self.tx_cq
    }

    /// Queue of the completions of receives.
    #[inline]
    pub fn rx_cq(&self) -> CqId {
        self.rx_cq
    }

    /// Its receives.
    #[inline]
    pub fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// The same, to change.
    #[inline]
    pub fn matcher_mut(&mut self) -> &mut Matcher {
        &mut self.matcher
    }

    pub fn domain(&self) -> u32 {
        self.domain
    }

    pub fn set_domain(&mut self, domain: u32) {
        self.domain = domain;
    }

    // ---- closing -----------------------------------------------------------------------------------------------

    /// It takes nothing new, and lingers until then. Receives are dropped without completion; the messages that no receive has taken.
    pub fn close(&mut self, linger_until: Time) -> Vec<Unexpected> {
        self.state = State::Closing { linger_until };
        self.matcher.close()
    }

    #[inline]
    pub fn is_closing(&self) -> bool {
        self.state != State::Open
    }

    /// Its linger time ends later by so much.
    pub fn extend_lingering(&mut self, by: Duration) {
        if let State::Closing { linger_until } = &mut self.state {
            *linger_until = *linger_until + by;
        }
    }

    /// Whether its linger time has passed.
    pub fn is_late(&self, now: Time) -> bool {
        matches!(self.state, State::Closing { linger_until } if now >= linger_until)
    }

    // ---- operations --------------------------------------------------------------------------------------------

    /// An operation is under way.
    #[inline]
    pub fn begin(&mut self) {
        self.outstanding += 1;
    }

    /// So many operations are over.
    #[inline]
    pub fn settle(&mut self, operations: u64) {
        self.outstanding -= operations;
    }

    /// Whether no operation is under way.
    pub fn is_settled(&self) -> bool {
        self.outstanding == 0
    }

    /// Operations that are over.
    pub fn counts(&self) -> OpCounts {
        OpCounts { receives_failed: self.counts.receives_failed + self.matcher.ended(), ..self.counts }
    }

    /// A send is over. Those of collective operations are not the application's.
    #[inline]
    pub fn count_send(&mut self, protocol: Protocol, failed: bool) {
        match failed {
            _ if protocol == Protocol::Collective => {}
            false => self.counts.sent += 1,
            true => self.counts.sends_failed += 1,
        }
    }

    /// A receive that found its message is over.
    #[inline]
    pub fn count_receive(&mut self, protocol: Protocol, failed: bool) {
        match failed {
            _ if protocol == Protocol::Collective => {}
            false => self.counts.received += 1,
            true => self.counts.receives_failed += 1,
        }
    }

    /// A one-sided operation of this endpoint is over.
    pub fn count_one_sided(&mut self, read: bool, failed: bool) {
        let c = &mut self.counts;
        *match (read, failed) {
            (true, false) => &mut c.read,
            (true, true) => &mut c.reads_failed,
            (false, false) => &mut c.written,
            (false, true) => &mut c.writes_failed,
        } += 1;
    }

    /// A peer has written our memory.
    pub fn count_remote_write(&mut self) {
        self.counts.remote_written += 1;
    }

    /// A peer has read our memory.
    pub fn count_remote_read(&mut self) {
        self.counts.remote_read += 1;
    }

    /// A message in a multi-receive buffer is done; its completion, amended, and that of a cancel which waited for it.
    pub fn leave_multi(&mut self, key: usize, mut c: Completion) -> (Completion, Option<Completion>) {
        c.multi = true;
        let cancelled;
        (c.multi_released, cancelled) = self.matcher.leave_multi(key);
        (c, cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::new(EpId(0), CqId(0), CqId(1), Remedies::default())
    }

    #[test]
    fn an_endpoint_is_settled_when_all_that_was_begun_is_over() {
        let mut e = endpoint();
        assert!(e.is_settled());
        e.begin();
        e.begin();
        e.begin();
        e.settle(1);
        assert!(!e.is_settled());
        e.settle(2);
        assert!(e.is_settled());
    }

    #[test]
    fn the_linger_time_begins_with_the_close_and_can_be_extended() {
        let (mut e, soon) = (endpoint(), Time::from_ns(100));
        e.extend_lingering(Duration::from_nanos(1000));
        assert!(!e.is_closing() && !e.is_late(Time::NEVER), "an open endpoint does not linger");
        e.close(soon);
        assert!(e.is_closing() && e.is_late(soon) && !e.is_late(Time::from_ns(99)));
        e.extend_lingering(Duration::from_nanos(50));
        assert!(!e.is_late(soon) && e.is_late(Time::from_ns(150)));
    }

    #[test]
    fn what_collective_operations_send_and_receive_is_not_counted() {
        let mut e = endpoint();
        for protocol in Protocol::ALL {
            e.count_send(protocol, false);
            e.count_send(protocol, true);
            e.count_receive(protocol, false);
            e.count_receive(protocol, true);
        }
        e.count_one_sided(true, false);
        e.count_one_sided(false, true);
        let expected = OpCounts {
            sent: 2,
            sends_failed: 2,
            received: 2,
            receives_failed: 2,
            read: 1,
            writes_failed: 1,
            ..OpCounts::default()
        };
        assert_eq!(e.counts(), expected);
    }
}
