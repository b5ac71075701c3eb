//! Closing, leaving, exiting: what is still delivered, what is taken back, and how long that may take (hazard H5).
//!
//! Owns: the linger times of endpoints and of the goodbye. Invariant 5: memory of a send is given back only when nothing reads it
//! any more. Linger time is for peers that answer; a partition in the middle has its own deadline.

use super::Engine;
use crate::message::body::Body;
use crate::message::item::Item;
use crate::message::target::{Landing, Target};
use crate::message::tx::Withdrawal;
use crate::peer::Peer;
use crate::types::*;
use std::time::Duration;

/// How long a farewell waits for its answer from a peer that can be reached.
const FAREWELL: Duration = Duration::from_secs(2);

/// Whether nothing that we send can be answered at present.
fn is_cut_off(p: &Peer, now: Time) -> bool {
    p.hearing.is_partitioned() || p.unanswered_since(now).is_some()
}

impl Engine {
    /// Starts closing: posted receives are dropped without completion, sends go on until [`Engine::linger_done`].
    pub fn close_endpoint(&mut self, ep: EpId, now: Time) {
        self.tick(now);
        let until = self.clock.now() + self.options.linger;
        let Some(e) = self.endpoints.get_mut(ep) else { return };
        let orphans = e.close(until);
        self.collectives.close(ep);
        for m in orphans {
            self.drop_message(m.peer, m.seq);
        }
        // messages being received into the endpoint's buffers: revoke every lease, then notify the senders
        let into_it = |t: &Target| t.ep == ep && matches!(t.landing, Landing::Receive);
        for peer in self.peers.ids() {
            let seqs: Vec<u64> = self.peers[peer]
                .incoming
                .iter()
                .filter(|(_, m)| m.receiving().is_some_and(|r| into_it(r.target())))
                .map(|(s, _)| s)
                .collect();
            for s in seqs {
                self.drop_message(peer, s);
            }
        }
    }

    /// Whether the linger time is only for peers that answer. False when a process just exits, or does not linger at
    /// all.
    fn is_patient(&self) -> bool {
        !self.options.linger.is_zero() && !self.hurried && self.remedies.patient_farewell()
    }

    /// Whether closing has to wait for a peer that cannot be reached just now: the linger time is for peers that answer. A partition
    /// in the middle of a farewell ends with its repair or at its own deadline, as any other does (hazard H5).
    fn someone_is_silent(&self, now: Time) -> bool {
        self.is_patient() && self.peers.iter().any(|p| p.gone().is_none() && is_cut_off(p, now))
    }

    /// A peer that our packets did not reach answers again: that time does not count either. What a partition has added
    /// already is not added twice.
    pub(crate) fn end_of_deafness(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        let Some(since) = p.unanswered_since(now) else { return };
        p.farewell.excuse(now);
        let lost = now.since(since.max(p.hearing.last_silence().1));
        self.extend_lingering(lost);
    }

    /// A partition has ended: the time without the peer is added to the linger times.
    pub(crate) fn extend_lingering(&mut self, by: Duration) {
        self.endpoints.extend_lingering(by);
        if let Some((began, until)) = self.shutdown_at {
            self.shutdown_at = Some((began + by, until + by));
        }
    }

    /// Whether everything endpoint `ep` sent was acknowledged, or its peers are gone, or the linger time has passed while all of
    /// them could be reached.
    pub fn linger_done(&self, ep: EpId, now: Time) -> bool {
        let Some(e) = self.endpoints.get(ep) else { return true };
        e.is_settled()
            || (e.is_late(self.engine_time_at(now)) && !self.someone_is_silent(self.engine_time_at(now)))
            || !self.remedies.farewell()
    }

    /// The linger time of a closing endpoint is over: from now on nothing touches the memory of its sends. What was
    /// completed is delivered all the same; the rest is withdrawn, and its receivers are notified.
    pub fn withdraw_sends(&mut self, ep: EpId, now: Time) {
        self.tick(now);
        for peer in self.peers.ids() {
            let p = &mut self.peers[peer];
            let mut seqs: Vec<u64> = p
                .outgoing
                .iter()
                .filter(|(_, m)| m.envelope().src_ep == ep.0 && matches!(m.body(), Body::User(_)))
                .map(|(s, _)| s)
                .collect();
            seqs.sort_unstable();
            self.endpoints.settle(ep, p.incoming.withdraw_local(ep));
            for &seq in &seqs {
                let p = &mut self.peers[peer];
                p.backlog.tell(Item::Withdraw { seq });
                // the endpoint is closed: nothing reads what became of it
                match p.outgoing.withdraw(seq) {
                    Some(Withdrawal::Granted) => {
                        self.finish_tx(peer, seq, None);
                        self.recall(peer, seq);
                    }
                    Some(Withdrawal::Announced { was_eager: true }) => p.backlog.post(Item::Rts { seq }),
                    Some(Withdrawal::Announced { was_eager: false }) | None => {}
                }
            }
            if !seqs.is_empty() {
                self.mark(peer);
                self.mark_streams(peer);
            }
            self.withdraw_orders(peer, ep);
        }
        self.collectives.forget(ep);
    }

    /// The process ends without having closed its endpoints. Closes them all, and takes back at once what was not completed: its
    /// memory may be a stack frame that is no more. What was completed is delivered until [`Engine::abandoned`].
    pub fn abandon(&mut self, now: Time) {
        self.tick(now);
        self.hurried = true;
        self.forget_regions();
        for ep in self.endpoints.ids() {
            if self.endpoints.is_open(ep) {
                self.close_endpoint(ep, now);
            }
            self.withdraw_sends(ep, now);
        }
    }

    /// Whether everything that the process had completed was acknowledged, or the linger time has passed.
    pub fn abandoned(&self, now: Time) -> bool {
        !self.remedies.exits_deliver() || self.endpoints.ids().all(|ep| self.linger_done(ep, now))
    }

    fn engine_time_at(&self, now: Time) -> Time {
        let mut c = self.clock;
        c.advance(now, self.next_deadline(), false);
        c.now()
    }

    /// The last endpoint is closed: says goodbye to every peer.
    pub fn shutdown(&mut self, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        self.shutdown_at = Some((now, now + self.options.linger.max(FAREWELL)));
        for peer in self.peers.ids() {
            let p = &mut self.peers[peer];
            if p.is_self()
                || p.gone().is_some()
                || p.farewell.is_said()
                || !p.paths.iter().any(|path| path.was_ever_up())
            {
                continue;
            }
            p.farewell.say(p.outgoing.next());
            if self.remedies.farewell() {
                p.backlog.tell(Item::Goodbye);
            }
            self.mark(peer);
        }
    }

    /// Whether every peer has answered the goodbye (or said its own, or had time enough to answer), or the linger time is up.
    pub fn shutdown_done(&self, now: Time) -> bool {
        let Some((began, until)) = self.shutdown_at else { return true };
        let now = self.engine_time_at(now);
        let late = now.since(began) >= FAREWELL;
        // its last acknowledgements may be under way to a peer that is cut off: it would take what arrived for lost
        let patient = self.is_patient();
        let silent = |p: &Peer| patient && is_cut_off(p, now);
        let answered = |p: &Peer| {
            p.farewell.is_answered()
                || p.gone().is_some()
                || (!silent(p) && p.farewell.out_at().is_some_and(|t| now.since(t) >= FAREWELL))
                || (late && !silent(p) && !p.is_owed())
        };
        let up = now >= until && !self.someone_is_silent(now);
        !self.remedies.farewell() || up || self.peers.iter().all(|p| !p.farewell.is_said() || answered(p))
    }
}
