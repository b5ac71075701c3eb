//! Corruption: on which path, whose fault, and what it takes until the path is trusted again.
//!
//! Invariants: only what came with the secret connection id of a session, over a rail and from an address of one of its paths,
//! counts against that path; the last working path to a peer is never quarantined, its faults are only counted
//! (invariant 6 goes before blame: what is corrupt is dropped either way). Sources: design, "Detecting faults"; PML DR §3.3
//! (threshold that takes a path out of use; differs: the receiver judges, because only it sees the damage, and tells the
//! sender).

use super::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::acks::AckState;
use crate::path::Path;
use crate::path::integrity::QUARANTINE_MAX;
use crate::stream::Stream;
use crate::types::*;
use rerail_wire::Coverage;
use rerail_wire::frame::FRAME_PAYLOAD_MAX;
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketKind};
use smallvec::SmallVec;
use std::time::Duration;

/// Full-length queries under way at one time, by datagram: what a default receive buffer surely takes.
const PROOF_OPEN: usize = 8;
/// Stream frames that wait to be written, beyond which a long query is answered by a short answer: a peer that asks without
/// reading must not make us keep its padding.
const LONG_ANSWERS_WAITING: usize = 4;
/// How far ahead of what has arrived a packet number may be: more than are ever lost in a row while a path works.
const NUMBERS_AHEAD: u64 = 256;

impl Engine {
    /// Whether something besides path `xi` works.
    pub(crate) fn another_works(&self, pi: usize, xi: usize) -> bool {
        let works =
            |x: &Path| x.health() == Health::Up || (x.health() == Health::Standby && x.evidence.is_proven());
        self.peers[pi].paths.iter().enumerate().any(|(i, x)| i != xi && works(x))
    }

    // ---- faults ------------------------------------------------------------------------------------------------

    /// A datagram with the connection id of a peer failed its checksum. The rail it came on and the address it came from say
    /// which path to blame. What it says of itself must fit: somebody who listens could otherwise send old datagrams again, with
    /// a bit turned, and so take rails out of service. The few that the wire has damaged in just these fields are not missed.
    pub(crate) fn corrupt_datagram(
        &mut self,
        pi: usize,
        kind: PacketKind,
        rail: RailId,
        from: Locator,
        bytes: &[u8],
    ) {
        let same = |x: &Path| x.rail() == rail && x.remote().same_place(&from);
        let Some(xi) = self.peers[pi].paths.iter().position(same) else {
            self.counters.strangers += 1;
            return;
        };
        let x = &self.peers[pi].paths[xi];
        let due = rerail_wire::packet::claims(bytes).is_some_and(|(path, epoch, number)| {
            path == x.id().0 && epoch == x.epoch().0 && is_due(x, kind, number)
        });
        if due {
            self.corrupted(pi, xi);
        } else {
            self.counters.replays += 1;
        }
    }

    /// A sealed datagram with connection id `cid` failed its tag: it was damaged, or somebody has made it up. Nothing that it says
    /// can be read, so the rail and the address it came over must do.
    pub fn handle_damaged(&mut self, rail: RailId, from: Locator, cid: u64, now: Time) {
        self.tick(now);
        self.counters.datagrams_received += 1;
        let same = |x: &Path| x.rail() == rail && x.remote().same_place(&from);
        let peer = self.peers.of_cid(cid).map(|p| p.0 as usize);
        match peer.and_then(|pi| self.peers[pi].paths.iter().position(same).map(|xi| (pi, xi))) {
            Some((pi, xi)) => self.corrupted(pi, xi),
            None => self.counters.strangers += 1,
        }
    }

    /// A datagram of a session that is encrypted came in clear: whoever sent it, it was not the peer.
    pub fn handle_unsealed(&mut self, now: Time) {
        self.tick(now);
        self.counters.datagrams_received += 1;
        self.counters.downgrades += 1;
    }

    /// Something on a stream failed its checksum.
    pub(crate) fn corrupt_stream(&mut self, stream: StreamId) {
        let bound = self.streams.get(stream).and_then(Stream::peer);
        let at = bound.and_then(|(peer, path)| {
            let pi = peer.0 as usize;
            self.peers[pi].path_index(path).map(|xi| (pi, xi))
        });
        match at {
            Some((pi, xi)) => self.corrupted(pi, xi),
            None => self.counters.strangers += 1,
        }
    }

    /// A fault on a path: counted, told, and past the threshold the path is quarantined.
    pub(crate) fn corrupted(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let (threshold, window) = (self.options.corrupt_threshold, self.options.corrupt_window);
        self.counters.corrupt += 1;
        let spared = self.another_works(pi, xi) || !self.remedies.last_path_is_spared();
        let x = &mut self.peers[pi].paths[xi];
        let reached = x.integrity.note(now, threshold, window);
        if !x.health().connected() || !self.remedies.corruption_verdict() {
            return;
        }
        // while it proves itself one fault is enough
        let on_trial = threshold > 0 && x.health() == Health::Probation && x.integrity.owes_proof();
        if (reached || on_trial) && spared {
            self.quarantine(pi, xi);
            return;
        }
        let x = &mut self.peers[pi].paths[xi];
        if x.integrity.tells(reached, window, now) {
            let faults = x.integrity.faults();
            self.event(EventKind::Corruption { faults, direction: Direction::In, held: None }, pi, Some(xi));
        }
    }

    /// Takes a path out of service for corruption, and holds it down.
    fn quarantine(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let first = self.options.quarantine;
        let x = &mut self.peers[pi].paths[xi];
        let held = x.integrity.convict(now, first);
        self.hold(pi, xi, held, Direction::In, None);
        self.fail_path(pi, xi, Witness::Corruption, Direction::In);
    }

    /// The peer has quarantined a path: it sees the damage, we have to stop sending. It says how long it holds the path down.
    pub(crate) fn quarantined_by_peer(&mut self, pi: usize, xi: usize, faults: u64, held: Duration) {
        let now = self.clock.now();
        let first = self.options.quarantine;
        // counted here as well, so that both sides ask for the same proof
        self.peers[pi].paths[xi].integrity.convict(now, first);
        self.hold(pi, xi, held.min(QUARANTINE_MAX), Direction::Out, Some(faults));
    }

    fn hold(&mut self, pi: usize, xi: usize, held: Duration, direction: Direction, told: Option<u64>) {
        let now = self.clock.now();
        self.counters.quarantines += 1;
        let owes = self.remedies.quarantine_needs_proof();
        let x = &mut self.peers[pi].paths[xi];
        x.retry.hold(held, now);
        x.integrity.hold(owes, now);
        let faults = told.unwrap_or(x.integrity.faults());
        self.event(EventKind::Corruption { faults, direction, held: Some(held) }, pi, Some(xi));
    }

    // ---- proof -------------------------------------------------------------------------------------------------

    /// Bytes of padding that a query on this path carries now, by datagram.
    pub(crate) fn query_padding(&self, pi: usize, xi: usize) -> usize {
        let x = &self.peers[pi].paths[xi];
        let long = x.health() == Health::Probation && x.integrity.owes_proof();
        if long { x.datagrams.bytes_max() - PACKET_HEADER_BYTES } else { 0 }
    }

    /// A query was answered; `padding`: bytes of padding that came back.
    pub(crate) fn proving(&mut self, pi: usize, xi: usize, id: u64, padding: usize, by_stream: bool) {
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        if x.health() != Health::Probation || !p.questions.was_asked(id) {
            return;
        }
        let full = if by_stream { FRAME_PAYLOAD_MAX } else { x.datagrams.bytes_max() - PACKET_HEADER_BYTES };
        let open = x.evidence.kept().0;
        let proves = x.integrity.awake_mut().is_some_and(|i| i.answered(id, by_stream, padding >= full));
        if proves && by_stream {
            self.prove_by_stream(pi, xi);
        } else if proves && open < PROOF_OPEN {
            // each answer lets the next query out: as fast as the path is, and no faster
            self.ping(pi, xi);
        }
    }

    /// Lets the next long query out on the stream of a path that proves itself.
    pub(crate) fn prove_by_stream(&mut self, pi: usize, xi: usize) {
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        let Some(stream) = x.streams().next() else { return };
        let on_trial = x.health() == Health::Probation;
        if !x.integrity.awake_mut().is_some_and(|i| on_trial && i.asks_stream()) {
            return;
        }
        let id = p.questions.take_id();
        self.stream_ping(stream, id, FRAME_PAYLOAD_MAX);
    }

    /// Whether a path in probation has given what it owes. When nothing else carries it owes nothing (invariant 6).
    pub(crate) fn proof_rendered(&self, pi: usize, xi: usize) -> bool {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        x.integrity.has_rendered(x.datagrams.work(), x.has_stream(), now) || !self.another_works(pi, xi)
    }

    /// Padding of the answer to a query on a stream.
    pub(crate) fn answer_padding(&self, stream: StreamId, asked: usize) -> usize {
        let busy = self.streams.get(stream).is_none_or(|s| s.outbox().len() > LONG_ANSWERS_WAITING);
        if busy { 0 } else { asked }
    }

    // ---- coverage ----------------------------------------------------------------------------------------------

    /// What this side wants summed on a rail.
    pub(crate) fn checksum_wish(&self, rail: &str) -> Coverage {
        // with encryption the tags cover everything already
        let summed = self.options.protection && !self.encrypts;
        if summed { self.options.checksum.of(rail) } else { Coverage::None }
    }

    /// Both sides have said what they want: of each path the stronger wish counts.
    pub(crate) fn settle_coverage(&mut self, pi: usize) {
        let p = &self.peers[pi];
        if p.node().is_none() {
            return;
        }
        let agreed = |x: &Path| {
            let own = self.checksum_wish(&self.rails[x.rail()].name);
            p.far(x).map_or(Coverage::Full, |far| far.checksum().max(own))
        };
        let coverages: SmallVec<[Coverage; 4]> = p.paths.iter().map(agreed).collect();
        for (x, coverage) in self.peers[pi].paths.iter_mut().zip(coverages) {
            x.agree_coverage(coverage);
        }
    }

    /// The least that what arrives on a path must claim.
    pub(crate) fn coverage_in(&self, pi: usize, xi: usize) -> Coverage {
        if self.remedies.no_downgrade() { self.peers[pi].paths[xi].coverage() } else { Coverage::None }
    }

    /// What is summed of what is sent on a path: everything, until the peer has acknowledged our wish, and so expects less.
    pub(crate) fn coverage_out(&self, pi: usize, xi: usize) -> Coverage {
        let p = &self.peers[pi];
        if p.has_config() || !self.remedies.agreed_coverage() {
            p.paths[xi].coverage()
        } else {
            Coverage::Full
        }
    }
}

/// Whether a packet of this number may be under way on a path: not here yet, and not far ahead of what is.
fn is_due(x: &Path, kind: PacketKind, number: u64) -> bool {
    let due = |rx: &AckState| {
        !rx.is_replay(number) && number <= rx.largest().unwrap_or(0).saturating_add(NUMBERS_AHEAD)
    };
    match kind {
        PacketKind::Data => due(x.lane.acks().of(Channel::Datagram)),
        PacketKind::Bulk => due(x.lane.acks().of(Channel::Bulk)),
        PacketKind::Ping => {
            x.heard_query().is_none_or(|n| number > n && number <= n.saturating_add(NUMBERS_AHEAD))
        }
        PacketKind::Pong => x.evidence.asked_at(number).is_some(),
        PacketKind::Hello | PacketKind::Accept => false,
    }
}
