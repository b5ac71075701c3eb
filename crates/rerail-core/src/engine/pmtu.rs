//! How long a datagram may be on a path: the queries, and what follows from the answers (see
//! [`Pmtu`](crate::path::pmtu)).

use super::Engine;
use crate::health::Health;
use crate::path::pmtu::{BASE, Next, PATIENCE};
use crate::types::{PeerId, Time};
use rerail_wire::packet::PACKET_HEADER_BYTES;

impl Engine {
    /// Both interfaces of a path take datagrams of this length.
    pub(crate) fn mtu_agreed(&mut self, peer: PeerId, index: usize, bytes: usize) {
        self.peers[peer].paths[index].mtu_agreed(bytes);
        let now = self.clock.now();
        self.schedule(peer, now);
    }

    /// Long datagrams were lost although the peer's engine answered on the path.
    pub(crate) fn mtu_doubt(&mut self, peer: PeerId, index: usize, longest: usize) {
        let now = self.clock.now();
        if longest > BASE && self.peers[peer].paths[index].pmtu.doubt() {
            self.schedule(peer, now);
        }
    }

    /// Sends length queries, and evaluates the answers; returns when to be called again.
    pub(crate) fn mtu_timer(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        // a path in probation has other queries to answer, unless they are long themselves
        let on_trial = path.health() == Health::Probation && !path.integrity.owes_proof();
        if !path.datagrams_usable() || on_trial {
            if let Some(m) = path.pmtu.awake_mut() {
                m.interrupt();
            }
            return Time::NEVER;
        }
        if path.pmtu.is_settled() {
            let again = path.pmtu.again();
            if again > now {
                return again;
            }
            // on a seldom queried path there is no hurry
            if let Some(later) = self.left_alone_until(peer, index) {
                return later;
            }
        }
        let path = &mut self.peers[peer].paths[index];
        let (in_use, full) = (path.datagrams.bytes_max(), path.datagrams.bytes_full());
        let patience = path.lane.rtt().patience(PATIENCE);
        match path.pmtu.next(in_use, full, patience, path.evidence.answered_sent_at(), now) {
            Next::Wait(at) => at,
            Next::Ask(bytes) => {
                self.mtu_ask(peer, index, bytes);
                now + self.peers[peer].paths[index].lane.rtt().patience(PATIENCE)
            }
            Next::GiveUp => {
                self.mtu_too_long(peer, index);
                now
            }
        }
    }

    /// Sends the length query, and a short query behind it: the answer to the short one shows whether the length is the
    /// reason.
    fn mtu_ask(&mut self, peer: PeerId, index: usize, bytes: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        let id = p.questions.take_id();
        let cid = p.cid_out();
        let path = &mut p.paths[index];
        path.pmtu.ask(id, bytes, now);
        let query = path.query(cid, id, bytes - PACKET_HEADER_BYTES);
        self.output.send(query);
        self.ping(peer, index);
    }

    /// The queried length does not pass.
    fn mtu_too_long(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        if path.pmtu.give_up(path.datagrams.bytes_max(), path.datagrams.bytes_full(), now) {
            self.counters.black_holes += 1;
            path.resize(BASE);
            // what was too long goes again, shorter, or another way
            self.mark(peer);
            self.mark_streams(peer);
        }
    }

    /// A query was answered, perhaps one about length: `bytes` came back.
    pub(crate) fn mtu_answered(&mut self, peer: PeerId, index: usize, id: u64, bytes: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        let (in_use, full) = (path.datagrams.bytes_max(), path.datagrams.bytes_full());
        let Some(asks) = path.pmtu.awake_mut() else { return };
        let Some(passes) = asks.answered(id, bytes, in_use, full, now) else { return };
        if passes != in_use {
            path.resize(passes);
        }
        self.schedule(peer, now);
    }
}
