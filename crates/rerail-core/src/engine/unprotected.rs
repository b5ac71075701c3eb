//! `FI_RERAIL_PROTECTION=off`: the yardstick against which the cost of protection is measured.
//!
//! Owns: what takes the place of queries and failover when there are none. What is left is what any transport needs:
//! datagrams may be lost without a fault, so they are kept until they are acknowledged, and sent again by a plain timer
//! (here, and nowhere else: without protection hazard H3 does not matter). Fragments on streams are done when the
//! kernel has them. A path that breaks takes the peer with it.

use super::Engine;
use crate::event::EventKind;
use crate::lane::sent::Sent;
use crate::message::item::Item;
use crate::peer::Gone;
use crate::types::*;
use std::time::Duration;

/// A datagram without an acknowledgement is sent again after this long.
const RESEND_AFTER: Duration = ms(50);
/// Time for a goodbye that was overtaken by the end of a stream.
const GOODBYE_PATIENCE: Duration = ms(300);

impl Engine {
    /// Whether nothing is kept of an item that goes out on a stream.
    pub(crate) fn is_unprotected(&self, peer: PeerId, item: &Item) -> bool {
        let Item::Frag { seq, .. } = *item else { return false };
        // a delivery that was promised needs its acknowledgement
        !self.options.protection && self.peers[peer].outgoing.get(seq).is_some_and(|m| !m.delivery())
    }

    /// A path or a stream of a peer breaks.
    pub(crate) fn breaks_unprotected(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let closing = self.shutdown_at.is_some();
        let p = &mut self.peers[peer];
        if !self.options.protection && !closing && p.gone().is_none() && p.breaks(now) {
            self.schedule(peer, now + GOODBYE_PATIENCE);
        }
    }

    /// In the place of the timers of queries.
    pub(crate) fn unprotected_timer(&mut self, peer: PeerId) -> Time {
        let now = self.clock.now();
        let mut next = Time::NEVER;
        if let Some(at) = self.peers[peer].broken_at().map(|t| t + GOODBYE_PATIENCE) {
            if now >= at {
                self.entomb(peer, Gone::Lost, EventKind::Unprotected);
                return next;
            }
            next = at;
        }
        let mut late: Vec<Sent> = Vec::new();
        for path in &mut self.peers[peer].paths {
            let sent = path.lane.datagrams_mut();
            while let Some(s) = sent.take_if(|s| now >= s.at() + RESEND_AFTER) {
                late.push(s);
            }
            if let Some(s) = sent.oldest() {
                next = next.min(s.at() + RESEND_AFTER);
            }
        }
        for index in 0..self.peers[peer].paths.len() {
            if let Some(oldest) = self.peers[peer].paths[index].lane.bulk().oldest() {
                if now >= oldest + RESEND_AFTER {
                    self.bulk_answered(peer, index, now - RESEND_AFTER + Duration::from_nanos(1));
                }
                next = next.min(oldest.max(now - RESEND_AFTER / 2) + RESEND_AFTER);
            }
        }
        for s in &late {
            self.counters.datagrams_lost += 1;
            self.requeue(peer, s);
        }
        if !late.is_empty() {
            self.mark(peer);
        }
        next
    }
}
