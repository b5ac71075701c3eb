//! How long a datagram may be on a path: the questions, and what follows from the answers (see [`Pmtu`](crate::path::pmtu)).

use super::Engine;
use crate::health::Health;
use crate::path::pmtu::{BASE, Next, PATIENCE};
use crate::types::{PeerId, Time};
use rerail_wire::packet::PACKET_HEADER_BYTES;

impl Engine {
    /// Both interfaces of a path take datagrams of this length.
    pub(crate) fn mtu_agreed(&mut self, pi: usize, xi: usize, bytes: usize) {
        self.peers[pi].paths[xi].mtu_agreed(bytes);
        let now = self.clock.now();
        self.schedule(pi, now);
    }

    /// Long datagrams were lost although the peer's engine answered on the path.
    pub(crate) fn mtu_doubt(&mut self, pi: usize, xi: usize, longest: usize) {
        let now = self.clock.now();
        if longest > BASE && self.peers[pi].paths[xi].pmtu.doubt() {
            self.schedule(pi, now);
        }
    }

    /// Asks, and draws the conclusions; returns when to be called again.
    pub(crate) fn mtu_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        // a path in probation has other questions to answer, unless they are long themselves
        let on_trial = x.health() == Health::Probation && !x.integrity.owes_proof();
        if !x.datagrams_usable() || on_trial {
            if let Some(m) = x.pmtu.awake_mut() {
                m.interrupt();
            }
            return Time::NEVER;
        }
        if x.pmtu.is_settled() {
            let again = x.pmtu.again();
            if again > now {
                return again;
            }
            // on a path that is asked seldom there is no hurry
            if let Some(later) = self.left_alone_until(pi, xi) {
                return later;
            }
        }
        let x = &mut self.peers[pi].paths[xi];
        let (in_use, full) = (x.datagrams.bytes_max(), x.datagrams.bytes_full());
        let patience = x.lane.rtt().patience(PATIENCE);
        match x.pmtu.next(in_use, full, patience, x.evidence.answered_sent_at(), now) {
            Next::Wait(at) => at,
            Next::Ask(bytes) => {
                self.mtu_ask(pi, xi, bytes);
                now + self.peers[pi].paths[xi].lane.rtt().patience(PATIENCE)
            }
            Next::GiveUp => {
                self.mtu_too_long(pi, xi);
                now
            }
        }
    }

    /// Puts the question, and a short query behind it: the answer to that tells a matter of length from every other.
    fn mtu_ask(&mut self, pi: usize, xi: usize, bytes: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let id = p.questions.take_id();
        let cid = p.cid_out();
        let x = &mut p.paths[xi];
        x.pmtu.ask(id, bytes, now);
        let query = x.query(cid, id, bytes - PACKET_HEADER_BYTES);
        self.output.send(query);
        self.ping(pi, xi);
    }

    /// The length that was asked about does not pass.
    fn mtu_too_long(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if x.pmtu.give_up(x.datagrams.bytes_max(), x.datagrams.bytes_full(), now) {
            self.counters.black_holes += 1;
            x.resize(BASE);
            // what was too long goes again, shorter, or another way
            self.mark(PeerId(pi as u32));
            self.mark_streams(PeerId(pi as u32));
        }
    }

    /// A query was answered, perhaps one about length: `bytes` came back.
    pub(crate) fn mtu_answered(&mut self, pi: usize, xi: usize, id: u64, bytes: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        let (in_use, full) = (x.datagrams.bytes_max(), x.datagrams.bytes_full());
        let Some(asks) = x.pmtu.awake_mut() else { return };
        let Some(passes) = asks.answered(id, bytes, in_use, full, now) else { return };
        if passes != in_use {
            x.resize(passes);
        }
        self.schedule(pi, now);
    }
}
