//! Corruption: which path is at fault, and what it takes until the path is trusted again.
//!
//! Invariants: only what came with the secret connection id of a session, over a rail and from an address of one of its
//! paths, counts against that path; the last working path to a peer is never quarantined, its faults are only counted
//! (invariant 6 takes precedence: what is corrupt is dropped either way). Sources: design, "Detecting faults"; PML DR
//! §3.3 (threshold that takes a path out of use; differs: the receiver judges, because only it sees the damage, and
//! reports to the sender).

use super::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::acks::AckState;
use crate::path::Path;
use crate::path::integrity::QUARANTINE_MAX;
use crate::stream::Stream;
use crate::types::*;
use rerail_rail::RailDesc;
use rerail_wire::Coverage;
use rerail_wire::frame::FRAME_PAYLOAD_MAX;
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketKind};
use smallvec::SmallVec;
use std::time::Duration;

/// Full-length queries under way at one time, by datagram: what a default receive buffer surely takes.
const PROOF_OPEN: usize = 8;
/// Stream frames that wait to be written, beyond which a long query is answered by a short answer: a peer that queries
/// without reading must not make us keep its padding.
const LONG_ANSWERS_WAITING: usize = 4;
/// How far ahead of what has arrived a packet number may be: more than are ever lost in a row while a path works.
const NUMBERS_AHEAD: u64 = 256;

impl Engine {
    /// Whether something besides path `index` works.
    pub(crate) fn another_works(&self, peer: PeerId, index: usize) -> bool {
        let works = |path: &Path| {
            path.health() == Health::Up || (path.health() == Health::Standby && path.evidence.is_proven())
        };
        self.peers[peer].paths.iter().enumerate().any(|(i, path)| i != index && works(path))
    }

    // ---- faults ------------------------------------------------------------------------------------------------

    /// A datagram with the connection id of a peer failed its checksum. The rail and the address that it came from
    /// identify the path at fault. Its own claims must fit: an eavesdropper could otherwise send old datagrams again,
    /// with a bit flipped, and so take rails out of service. The few that the wire has damaged in just these fields do
    /// not matter.
    pub(crate) fn corrupt_datagram(
        &mut self,
        peer: PeerId,
        kind: PacketKind,
        rail: RailId,
        from: Locator,
        bytes: &[u8],
    ) {
        let same = |path: &Path| path.rail() == rail && path.remote().same_place(&from);
        let Some(index) = self.peers[peer].paths.iter().position(same) else {
            self.counters.strangers += 1;
            return;
        };
        let path = &self.peers[peer].paths[index];
        let due = rerail_wire::packet::claims(bytes).is_some_and(|(id, epoch, number)| {
            id == path.id().0 && epoch == path.epoch().0 && is_due(path, kind, number)
        });
        if due {
            self.corrupted(peer, index);
        } else {
            self.counters.replays += 1;
        }
    }

    /// A sealed datagram with connection id `cid` failed its tag: it was damaged or forged. Nothing that it claims can
    /// be read, so the rail and the address that it came over must do.
    pub fn handle_damaged(&mut self, rail: RailId, from: Locator, cid: u64, now: Time) {
        self.tick(now);
        self.counters.datagrams_received += 1;
        let same = |path: &Path| path.rail() == rail && path.remote().same_place(&from);
        let peer = self.peers.of_cid(cid);
        match peer.and_then(|peer| self.peers[peer].paths.iter().position(same).map(|index| (peer, index))) {
            Some((peer, index)) => self.corrupted(peer, index),
            None => self.counters.strangers += 1,
        }
    }

    /// A datagram of an encrypted session arrived unencrypted: it is not from the peer.
    pub fn handle_unsealed(&mut self, now: Time) {
        self.tick(now);
        self.counters.datagrams_received += 1;
        self.counters.downgrades += 1;
    }

    /// Something on a stream failed its checksum.
    pub(crate) fn corrupt_stream(&mut self, stream: StreamId) {
        let bound = self.streams.get(stream).and_then(Stream::peer);
        let at = bound.and_then(|(peer, path)| self.peers[peer].path_index(path).map(|index| (peer, index)));
        match at {
            Some((peer, index)) => self.corrupted(peer, index),
            None => self.counters.strangers += 1,
        }
    }

    /// A fault on a path: counted, reported, and past the threshold the path is quarantined.
    pub(crate) fn corrupted(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let (threshold, window) = (self.options.corrupt_threshold, self.options.corrupt_window);
        self.counters.corrupt += 1;
        let spared = self.another_works(peer, index) || !self.remedies.last_path_is_spared();
        let path = &mut self.peers[peer].paths[index];
        let reached = path.integrity.note(now, threshold, window);
        if !path.health().connected() || !self.remedies.corruption_verdict() {
            return;
        }
        // while it proves itself one fault is enough
        let on_trial = threshold > 0 && path.health() == Health::Probation && path.integrity.owes_proof();
        if (reached || on_trial) && spared {
            self.quarantine(peer, index);
            return;
        }
        let path = &mut self.peers[peer].paths[index];
        if path.integrity.tells(reached, window, now) {
            let faults = path.integrity.faults();
            self.event(
                EventKind::Corruption { faults, direction: Direction::In, held: None },
                peer,
                Some(index),
            );
        }
    }

    /// Takes a path out of service for corruption, and holds it down.
    fn quarantine(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let first = self.options.quarantine;
        let path = &mut self.peers[peer].paths[index];
        let held = path.integrity.convict(now, first);
        self.hold(peer, index, held, Direction::In, None);
        self.fail_path(peer, index, Witness::Corruption, Direction::In);
    }

    /// The peer has quarantined a path: it sees the damage, and we have to stop sending. It reports how long it holds
    /// the path down.
    pub(crate) fn quarantined_by_peer(&mut self, peer: PeerId, index: usize, faults: u64, held: Duration) {
        let now = self.clock.now();
        let first = self.options.quarantine;
        // counted here as well, so that both sides require the same proof
        self.peers[peer].paths[index].integrity.convict(now, first);
        self.hold(peer, index, held.min(QUARANTINE_MAX), Direction::Out, Some(faults));
    }

    fn hold(&mut self, peer: PeerId, index: usize, held: Duration, direction: Direction, told: Option<u64>) {
        let now = self.clock.now();
        self.counters.quarantines += 1;
        let owes = self.remedies.quarantine_needs_proof();
        let path = &mut self.peers[peer].paths[index];
        path.retry.hold(held, now);
        path.integrity.hold(owes, now);
        let faults = told.unwrap_or(path.integrity.faults());
        self.event(EventKind::Corruption { faults, direction, held: Some(held) }, peer, Some(index));
    }

    // ---- proof -------------------------------------------------------------------------------------------------

    /// Bytes of padding that a query on this path carries now, by datagram.
    pub(crate) fn query_padding(&self, peer: PeerId, index: usize) -> usize {
        let path = &self.peers[peer].paths[index];
        let long = path.health() == Health::Probation && path.integrity.owes_proof();
        if long { path.datagrams.bytes_max() - PACKET_HEADER_BYTES } else { 0 }
    }

    /// A query was answered; `padding`: bytes of padding that came back.
    pub(crate) fn proving(&mut self, peer: PeerId, index: usize, id: u64, padding: usize, by_stream: bool) {
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        if path.health() != Health::Probation || !p.questions.was_asked(id) {
            return;
        }
        let full =
            if by_stream { FRAME_PAYLOAD_MAX } else { path.datagrams.bytes_max() - PACKET_HEADER_BYTES };
        let open = path.evidence.kept().0;
        let proves = path.integrity.awake_mut().is_some_and(|i| i.answered(id, by_stream, padding >= full));
        if proves && by_stream {
            self.prove_by_stream(peer, index);
        } else if proves && open < PROOF_OPEN {
            // each answer lets the next query out: as fast as the path is, and no faster
            self.ping(peer, index);
        }
    }

    /// Lets the next long query out on the stream of a path that proves itself.
    pub(crate) fn prove_by_stream(&mut self, peer: PeerId, index: usize) {
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        let Some(stream) = path.streams().next() else { return };
        let on_trial = path.health() == Health::Probation;
        if !path.integrity.awake_mut().is_some_and(|i| on_trial && i.asks_stream()) {
            return;
        }
        let id = p.questions.take_id();
        self.stream_ping(stream, id, FRAME_PAYLOAD_MAX);
    }

    /// Whether a path in probation has given what it owes. When nothing else carries it owes nothing (invariant 6).
    pub(crate) fn proof_rendered(&self, peer: PeerId, index: usize) -> bool {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let path = &p.paths[index];
        path.integrity.has_rendered(path.datagrams.work(), path.has_stream(), now)
            || !self.another_works(peer, index)
    }

    /// Padding of the answer to a query on a stream.
    pub(crate) fn answer_padding(&self, stream: StreamId, asked: usize) -> usize {
        let busy = self.streams.get(stream).is_none_or(|s| s.outbox().len() > LONG_ANSWERS_WAITING);
        if busy { 0 } else { asked }
    }

    // ---- coverage ----------------------------------------------------------------------------------------------

    /// The coverage that this side requests for a rail.
    pub(crate) fn checksum_wish(&self, rail: &RailDesc) -> Coverage {
        // with encryption the tags cover everything already
        let summed = self.options.protection && !self.encrypts;
        if summed { self.options.checksum.of(rail) } else { Coverage::None }
    }

    /// Both sides have stated their requests: for each path the stronger one counts.
    pub(crate) fn settle_coverage(&mut self, peer: PeerId) {
        let p = &self.peers[peer];
        if p.node().is_none() {
            return;
        }
        let agreed = |path: &Path| {
            let own = self.checksum_wish(&self.rails[path.rail()]);
            p.far(path).map_or(Coverage::Full, |far| far.checksum().max(own))
        };
        let coverages: SmallVec<[Coverage; 4]> = p.paths.iter().map(agreed).collect();
        for (path, coverage) in self.peers[peer].paths.iter_mut().zip(coverages) {
            path.agree_coverage(coverage);
        }
    }

    /// The least coverage that packets arriving on a path must claim.
    pub(crate) fn coverage_in(&self, peer: PeerId, index: usize) -> Coverage {
        if self.remedies.no_downgrade() { self.peers[peer].paths[index].coverage() } else { Coverage::None }
    }

    /// The coverage of what is sent on a path: full, until the peer has acknowledged our request, and so expects less.
    pub(crate) fn coverage_out(&self, peer: PeerId, index: usize) -> Coverage {
        let p = &self.peers[peer];
        if p.has_config() || !self.remedies.agreed_coverage() {
            p.paths[index].coverage()
        } else {
            Coverage::Full
        }
    }
}

/// Whether a packet of this number may be under way on a path: not here yet, and not far ahead of what is.
fn is_due(path: &Path, kind: PacketKind, number: u64) -> bool {
    let due = |rx: &AckState| {
        !rx.is_replay(number) && number <= rx.largest().unwrap_or(0).saturating_add(NUMBERS_AHEAD)
    };
    match kind {
        PacketKind::Data => due(path.lane.acks().of(Channel::Datagram)),
        PacketKind::Bulk => due(path.lane.acks().of(Channel::Bulk)),
        PacketKind::Ping => {
            path.heard_query().is_none_or(|n| number > n && number <= n.saturating_add(NUMBERS_AHEAD))
        }
        PacketKind::Pong => path.evidence.asked_at(number).is_some(),
        PacketKind::Hello | PacketKind::Accept => false,
    }
}
