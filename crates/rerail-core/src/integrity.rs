//! Corruption: on which path, whose fault, and what it takes until the path is trusted again.
//!
//! Owns: the faults counted against each path, quarantine, the proof a path owes after it, and what must be summed on it.
//! Invariants: only what came with the secret connection id of a session, over a rail and from an address of one of its paths,
//! counts against that path; the last working path to a peer is never quarantined, its faults are only counted
//! (invariant 6 goes before blame: what is corrupt is dropped either way). Sources: design, "Detecting faults"; PML DR §3.3
//! (threshold that takes a path out of use; differs: the receiver judges, because only it sees the damage, and tells the
//! sender).

use crate::engine::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::acks::AckState;
use crate::path::Path;
use crate::rest::rests;
use crate::types::*;
use rerail_wire::Coverage;
use rerail_wire::frame::FRAME_PAYLOAD_MAX;
use rerail_wire::packet::PacketKind;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;

/// Longest quarantine.
pub(crate) const QUARANTINE_MAX: Duration = Duration::from_secs(60);
/// One quarantine is forgiven for each such time without another.
const FORGIVEN_AFTER: Duration = Duration::from_secs(120);
/// Datagrams of full length that must go there and back without a fault, after the first quarantine; twice as many after each
/// further one.
const PROOF_DATAGRAMS: u32 = 128;
/// The same for stream frames of full length.
const PROOF_FRAMES: u32 = 8;
/// Doublings of both at most: 4096 datagrams (6 MB at 1500 bytes) and 256 frames (16 MiB), each way.
const PROOF_DOUBLINGS: u32 = 5;
/// Full-length queries under way at one time, by datagram: what a default receive buffer surely takes.
const PROOF_OPEN: usize = 8;
/// A channel that has not come to life this long after the new epoch began proves nothing, and is not waited for.
const PROOF_CHANNEL: Duration = ms(1000);
/// Stream frames that wait to be written, beyond which a long query is answered by a short answer: a peer that asks without
/// reading must not make us keep its padding.
const LONG_ANSWERS_WAITING: usize = 4;

/// What is known of a path's honesty, if there was ever reason to doubt it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Integrity {
    /// Faults counted on the path, since it was made.
    pub faults: u64,
    /// When the newest came, oldest first; never more than the threshold.
    recent: VecDeque<Time>,
    /// When the last event about it was given out.
    told_at: Option<Time>,
    /// Quarantines that are not forgiven.
    pub quarantines: u32,
    quarantined_at: Time,
    /// What it owes before it carries traffic again.
    pub proof: Option<Proof>,
}

rests! {
    Integrity = Integrity {
        faults: 0,
        recent: VecDeque::new(),
        told_at: None,
        quarantines: 0,
        quarantined_at: Time::ORIGIN,
        proof: None,
    };
}

/// Full-length queries that must still be answered without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    datagrams: u32,
    frames: u32,
    /// Newest query that was counted, by datagram and by stream: an answer counts once, however often it comes.
    counted: [u64; 2],
    /// A long query is on the stream.
    asked_stream: bool,
    since: Time,
}

impl Proof {
    fn new(quarantines: u32, now: Time) -> Self {
        let doublings = quarantines.saturating_sub(1).min(PROOF_DOUBLINGS);
        Self {
            datagrams: PROOF_DATAGRAMS << doublings,
            frames: PROOF_FRAMES << doublings,
            counted: [0; 2],
            asked_stream: false,
            since: now,
        }
    }

    /// Whether it is rendered, given which channels the path has.
    fn rendered(&self, datagrams_work: bool, has_stream: bool, now: Time) -> bool {
        let waited = now.since(self.since) >= PROOF_CHANNEL;
        (self.datagrams == 0 || (waited && !datagrams_work)) && (self.frames == 0 || (waited && !has_stream))
    }
}

impl Integrity {
    /// A new epoch begins: what is owed is owed in full.
    pub fn renew(&mut self, now: Time) {
        if self.proof.is_some() {
            self.proof = Some(Proof::new(self.quarantines, now));
        }
    }

    /// The path has a new stream: whatever was asked on the old one is not answered.
    pub fn new_stream(&mut self) {
        if let Some(p) = &mut self.proof {
            p.asked_stream = false;
        }
    }

    /// Notes a fault; true when there were `threshold` within `window`.
    fn note(&mut self, now: Time, threshold: u32, window: Duration) -> bool {
        self.faults += 1;
        if threshold == 0 {
            return false;
        }
        while self.recent.front().is_some_and(|t| now.since(*t) > window) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        if self.recent.len() < threshold as usize {
            return false;
        }
        self.recent.clear();
        true
    }

    /// Counts a quarantine, forgiving old ones; returns for how long the path is held down.
    fn convict(&mut self, now: Time, first: Duration) -> Duration {
        let forgiven = now.since(self.quarantined_at).as_secs() / FORGIVEN_AFTER.as_secs();
        self.quarantines =
            self.quarantines.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)).saturating_add(1);
        self.quarantined_at = now;
        self.recent.clear();
        first.saturating_mul(1 << (self.quarantines - 1).min(16)).min(QUARANTINE_MAX)
    }
}

/// How far ahead of what has arrived a packet number may be: more than are ever lost in a row while a path works.
const NUMBERS_AHEAD: u64 = 256;

impl Engine {
    /// Whether something besides path `xi` works.
    pub(crate) fn another_works(&self, pi: usize, xi: usize) -> bool {
        let works =
            |x: &Path| x.health == Health::Up || (x.health == Health::Standby && x.evidence.is_proven());
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
        let same = |x: &Path| x.rail == rail && x.remote.same_place(&from);
        let Some(xi) = self.peers[pi].paths.iter().position(same) else {
            self.counters.strangers += 1;
            return;
        };
        let x = &self.peers[pi].paths[xi];
        let due = rerail_wire::packet::claims(bytes).is_some_and(|(path, epoch, number)| {
            path == x.id.0 && epoch == x.epoch.0 && is_due(x, kind, number)
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
        let same = |x: &Path| x.rail == rail && x.remote.same_place(&from);
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
        let bound = self.streams.get(stream).and_then(|s| s.peer);
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
        if !x.health.connected() || !self.remedies.corruption_verdict() {
            return;
        }
        // while it proves itself one fault is enough
        let on_trial = threshold > 0 && x.health == Health::Probation && x.integrity.proof.is_some();
        if (reached || on_trial) && spared {
            self.quarantine(pi, xi);
            return;
        }
        let x = &mut self.peers[pi].paths[xi];
        if reached || x.integrity.told_at.is_none_or(|t| now.since(t) > window) {
            x.integrity.told_at = Some(now);
            let faults = x.integrity.faults;
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
        x.integrity.told_at = Some(now);
        if owes {
            x.integrity.proof = Some(Proof::new(x.integrity.quarantines, now));
        }
        let faults = told.unwrap_or(x.integrity.faults);
        self.event(EventKind::Corruption { faults, direction, held: Some(held) }, pi, Some(xi));
    }

    // ---- proof -------------------------------------------------------------------------------------------------

    /// Bytes of padding that a query on this path carries now, by datagram.
    pub(crate) fn query_padding(&self, pi: usize, xi: usize) -> usize {
        let x = &self.peers[pi].paths[xi];
        let long = x.health == Health::Probation && x.integrity.proof.is_some();
        if long { x.datagram_bytes_max - rerail_wire::packet::PACKET_HEADER_BYTES } else { 0 }
    }

    /// A query was answered; `padding`: bytes of padding that came back.
    pub(crate) fn proving(&mut self, pi: usize, xi: usize, id: u64, padding: usize, by_stream: bool) {
        let p = &mut self.peers[pi];
        let issued = p.ping_next;
        let x = &mut p.paths[xi];
        let (full, open) = (x.datagram_bytes_max, x.evidence.kept().0);
        let Some(proof) = x.integrity.awake_mut().and_then(|i| i.proof.as_mut()) else { return };
        if x.health != Health::Probation {
            return;
        }
        let counted = &mut proof.counted[usize::from(by_stream)];
        if id <= *counted || id >= issued {
            return;
        }
        if by_stream {
            if padding < FRAME_PAYLOAD_MAX {
                // the peer is short of room: ask again, at the next tick
                proof.asked_stream = false;
                return;
            }
            *counted = id;
            proof.frames = proof.frames.saturating_sub(1);
            proof.asked_stream = false;
            self.prove_by_stream(pi, xi);
        } else if padding + rerail_wire::packet::PACKET_HEADER_BYTES >= full {
            *counted = id;
            proof.datagrams = proof.datagrams.saturating_sub(1);
            // each answer lets the next query out: as fast as the path is, and no faster
            if proof.datagrams > 0 && open < PROOF_OPEN {
                self.ping(pi, xi);
            }
        }
    }

    /// Lets the next long query out on the stream of a path that proves itself.
    pub(crate) fn prove_by_stream(&mut self, pi: usize, xi: usize) {
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        let Some(stream) = x.streams().next() else { return };
        let Some(proof) = x.integrity.awake_mut().and_then(|i| i.proof.as_mut()) else { return };
        if proof.frames == 0 || proof.asked_stream || x.health != Health::Probation {
            return;
        }
        proof.asked_stream = true;
        let id = p.ping_next;
        p.ping_next += 1;
        self.stream_ping(stream, id, FRAME_PAYLOAD_MAX);
    }

    /// Whether a path in probation has given what it owes. When nothing else carries it owes nothing (invariant 6).
    pub(crate) fn proof_rendered(&self, pi: usize, xi: usize) -> bool {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        x.integrity.proof.is_none_or(|proof| {
            !self.another_works(pi, xi) || proof.rendered(x.datagrams_work, x.has_stream(), now)
        })
    }

    /// Padding of the answer to a query on a stream.
    pub(crate) fn answer_padding(&self, stream: StreamId, asked: usize) -> usize {
        let busy = self.streams.get(stream).is_none_or(|s| s.tx.len() > LONG_ANSWERS_WAITING);
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
        if p.node.is_none() {
            return;
        }
        let agreed = |x: &Path| {
            let own = self.checksum_wish(&self.rails[x.rail].name);
            p.far(x).map_or(Coverage::Full, |far| far.checksum().max(own))
        };
        let coverages: SmallVec<[Coverage; 4]> = p.paths.iter().map(agreed).collect();
        for (x, coverage) in self.peers[pi].paths.iter_mut().zip(coverages) {
            x.coverage = coverage;
        }
    }

    /// The least that what arrives on a path must claim.
    pub(crate) fn coverage_in(&self, pi: usize, xi: usize) -> Coverage {
        if self.remedies.no_downgrade() { self.peers[pi].paths[xi].coverage } else { Coverage::None }
    }

    /// What is summed of what is sent on a path: everything, until the peer has acknowledged our wish, and so expects less.
    pub(crate) fn coverage_out(&self, pi: usize, xi: usize) -> Coverage {
        let p = &self.peers[pi];
        if p.config_acked || !self.remedies.agreed_coverage() { p.paths[xi].coverage } else { Coverage::Full }
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
            x.asked_newest.is_none_or(|n| number > n && number <= n.saturating_add(NUMBERS_AHEAD))
        }
        PacketKind::Pong => x.evidence.asked_at(number).is_some(),
        PacketKind::Hello | PacketKind::Accept => false,
    }
}

/// Padding of a long query: no two are alike, and over a few of them every bit is both set and clear beside every other.
pub(crate) fn padding(id: u64, out: &mut [u8]) {
    let mut x = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for c in out.chunks_mut(8) {
        // xorshift64 (Marsaglia 2003)
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let word = match id % 4 {
            0 => 0xaaaa_aaaa_aaaa_aaaa,
            1 => 0x5555_5555_5555_5555,
            _ => x,
        };
        c.copy_from_slice(&u64::to_le_bytes(word)[..c.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(s: u64) -> Time {
        Time::ORIGIN + S * s as u32
    }

    #[test]
    fn faults_count_within_the_window_only() {
        let mut i = Integrity::default();
        assert!(!i.note(at(0), 3, S * 10));
        assert!(!i.note(at(5), 3, S * 10));
        // the first is forgotten by now
        assert!(!i.note(at(11), 3, S * 10));
        assert!(i.note(at(12), 3, S * 10));
        assert_eq!(i.faults, 4);
        // and everything is counted anew
        assert!(!i.note(at(12), 3, S * 10));
        // 0: never
        assert!((0..100).all(|_| !i.note(at(12), 0, S * 10)));
    }

    #[test]
    fn each_quarantine_is_longer_asks_for_more_and_is_forgiven_slowly() {
        let mut i = Integrity::default();
        let mut held = vec![];
        for k in 0..7 {
            held.push(i.convict(at(1000 + k), S * 2).as_secs());
        }
        assert_eq!(held, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(Proof::new(1, at(0)).datagrams, PROOF_DATAGRAMS);
        assert_eq!(Proof::new(7, at(0)).datagrams, PROOF_DATAGRAMS << PROOF_DOUBLINGS);
        // one for every two minutes
        assert_eq!(i.convict(at(1006 + 6 * 120), S * 2).as_secs(), 4);
    }

    #[test]
    fn a_channel_that_is_not_there_is_not_waited_for_for_ever() {
        let p = Proof { datagrams: 0, ..Proof::new(1, at(0)) };
        assert!(!p.rendered(true, false, Time::ORIGIN + ms(10)));
        assert!(p.rendered(true, false, at(1)));
        assert!(!p.rendered(true, true, at(100)));
        assert!(Proof { frames: 0, ..p }.rendered(true, true, Time::ORIGIN));
    }

    #[test]
    fn padding_sets_and_clears_every_bit() {
        let (mut ones, mut zeros) = ([0u8; 24], [0u8; 24]);
        for id in 0..8 {
            let mut b = [0; 24];
            padding(id, &mut b);
            for k in 0..24 {
                ones[k] |= b[k];
                zeros[k] |= !b[k];
            }
        }
        assert_eq!((ones, zeros), ([255; 24], [255; 24]));
    }
}
