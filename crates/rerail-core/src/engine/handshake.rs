//! Handshakes and streams: agreeing on an epoch of a path, attaching a connection to it, giving it up.
//!
//! Invariant (hazard H8): a path is connected only in an epoch in which both sides have answered; the larger proposal wins.
//! Source: MN-uDAPL §4.2.3 (asynchronous recovery); differs: both sides may begin.

use super::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::{Health, HealthEvent};
use crate::lane::Lane;
use crate::lane::name::LaneName;
use crate::message::item::Item;
use crate::path::epochs::{Due, HELLO_INTERVAL};
use crate::peer::Gone;
use crate::stream::{Phase, Stream};
use crate::types::*;
use rerail_wire::hello::{ACCEPT_BYTES, Accept, EPOCH_PROVE, EPOCH_UNPROVED_MAX, HELLO_BYTES, Hello, Proof};
use rerail_wire::{PublicKey, Token};
use std::time::Duration;

/// How long one handshake is tried: the first, and later ones.
const HANDSHAKE: (Duration, Duration) = (ms(2000), ms(300));
/// How long a stream may take to connect and be accepted.
const STREAM_ATTEMPT: Duration = ms(250);
/// How long the kernel of a peer may take to accept a stream after one was left for its dead route: at least, and at most, which is what the queue of a
/// crowded port of a switch takes.
const HASTY_CONNECT: (Duration, Duration) = (ms(8), ms(20));
/// How long a stranger may take for its hello.
const STRANGER: Duration = ms(2000);
/// Epoch of an accept that reports a verdict: this process has given the peer up for good. No path ever has it.
const ENTOMBED: Epoch = Epoch(0);
/// Epoch of an accept that requests the hello again, with a proof. No path ever has it.
const PROVE: Epoch = Epoch(EPOCH_PROVE);

/// Why an accept is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// It proves nothing, or makes no sense.
    Strange,
    /// It answers no hello that is open now.
    Old,
}

impl Engine {
    // ---- handshake ---------------------------------------------------------------------------------------------

    /// Begins a handshake for a new epoch of a path.
    pub(crate) fn propose(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let nonce = self.rng.nonce();
        let agreed = self.remedies.agreed_epoch();
        let p = &mut self.peers[peer];
        let own_is_high = p.own_is_high();
        let path = &mut p.paths[index];
        // planted: both sides may choose the same number
        let epoch = if agreed { path.epochs.next(own_is_high) } else { Epoch(path.epochs.largest().0 + 1) };
        let patience = if path.health() == Health::Connecting { HANDSHAKE.0 } else { HANDSHAKE.1 };
        path.epochs.propose(epoch, nonce, patience, now);
        self.send_hello(peer, index);
    }

    pub(crate) fn hello_bytes(
        &mut self,
        peer: PeerId,
        index: usize,
        epoch: Epoch,
        (lane, stream): (LaneId, u64),
        nonce: [u8; 16],
    ) -> [u8; HELLO_BYTES] {
        let session_key = self.session_key(peer);
        let p = &self.peers[peer];
        Hello {
            path: p.paths[index].id().0,
            epoch: epoch.0,
            stream,
            lane: lane.0,
            nonce,
            from: self.address(EpId(0)),
            public_key: self.identity.public_key(),
            session_key,
        }
        .to_bytes(&p.address().token, p.credentials.keys())
    }

    pub(crate) fn send_hello(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let Some((epoch, nonce)) = self.peers[peer].paths[index].epochs.proposed() else { return };
        let bytes = self.hello_bytes(peer, index, epoch, (LaneId::FIRST, 0), nonce).to_vec();
        let path = &mut self.peers[peer].paths[index];
        self.output.send(Datagram { rail: path.rail(), to: path.remote(), bytes });
        let at = path.epochs.hello_sent(now).expect("looked up above");
        if path.epochs.is_unanswered(now) {
            self.seeks_route(peer, index);
        }
        self.keep_neighbour(peer, index);
        self.schedule(peer, at);
    }

    /// A hello arrived, as a datagram or (with `stream`) as the first bytes of a stream.
    ///
    /// The source address of a datagram counts for nothing, because its sender can forge it. The address that counts is
    /// the one inside, under the keyed hash; for a known peer, the one that was known first.
    ///
    /// Every process that knows this one's token can send a hello in the name of a process whose public key it has
    /// seen. So a hello without a proof is valid for a first meeting only: it changes nothing for a peer that has
    /// proved itself, and replaces no session. Its sender is answered with what a proof needs, and repeats the hello.
    pub(crate) fn on_hello(&mut self, rail: RailId, bytes: &[u8], stream: Option<StreamId>) -> bool {
        let Ok(h) = Hello::parse(bytes, &self.token) else {
            self.counters.strangers += 1;
            return false;
        };
        let unlike = h.from.encrypts != self.encrypts || h.session_key.is_some() != self.encrypts;
        // the name of another process: the token is the hash of the key
        let foreign = !self.is_key_of(&h.public_key, &h.from.token);
        if h.from.token == self.token || (h.stream != 0) != stream.is_some() || unlike || foreign {
            self.counters.strangers += 1;
            return false;
        }
        let now = self.clock.now();
        let Some(peer) = self.peer_of_hello(&h.from) else {
            self.counters.strangers += 1;
            return false;
        };
        self.know(peer, &h.public_key);
        let proof =
            self.peers[peer].credentials.keys().map_or(Proof::Wrong, |keys| Hello::proof(bytes, keys));
        let proved = proof == Proof::Right;
        if proof == Proof::Wrong || !proved && h.epoch > EPOCH_UNPROVED_MAX {
            self.counters.strangers += 1;
            return false;
        }
        if proved {
            self.settle_whereabouts(peer, &h.from);
            self.know(peer, &h.public_key);
            self.peers[peer].credentials.prove();
        }
        // a peer that said goodbye may come back for its acknowledgement; one declared dead may not (hazard H7)
        if self.peers[peer].gone().is_some_and(Gone::is_final) {
            // but this is reported to it, so that it does not wait for this process for ever
            self.counters.replays += 1;
            let path = self.peers[peer].path_index(PathId(h.path));
            if let Some(index) = path.filter(|_| self.remedies.tell_the_entombed()) {
                self.send_accept(peer, index, ENTOMBED, &h);
            }
            return false;
        }
        // the rails that the path number names must exist on both sides, and ours must be the one it came on
        let (high, low) = ((h.path >> 8) as usize, (h.path & 0xff) as usize);
        let (own, remote) = if self.peers[peer].own_is_high() { (low, high) } else { (high, low) };
        let lanes = self.rails.get(own).map_or(0, |r| self.lanes_of_rail(r));
        if own != rail.0 as usize || remote >= self.peers[peer].address().rails.len() || h.lane >= lanes {
            self.counters.strangers += 1;
            return false;
        }
        let index = match self.peers[peer].path_index(PathId(h.path)) {
            Some(i) => i,
            None if self.peers[peer].paths.len() < 16 => {
                let path = self.new_path(&self.peers[peer], own, remote);
                self.peers[peer].add_path(path);
                self.settle_coverage(peer);
                self.peers[peer].paths.len() - 1
            }
            None => {
                self.counters.strangers += 1;
                return false;
            }
        };
        let epoch = Epoch(h.epoch);
        let path = &self.peers[peer].paths[index];
        let current = path.health().connected() && path.epoch() == epoch;
        let repeated = current || path.epochs.is_accepted(epoch);
        // a hello over a stream takes effect without a further packet; a first meeting over datagrams does not
        let needs_proof = stream.is_some() || !repeated && self.peers[peer].credentials.is_proved();
        let doubtful = !proved && needs_proof && self.remedies.hellos_are_proved();
        let other = !self.is_of_session(peer, h.session_key);
        if proved && current && other {
            // it has forgotten the session that this epoch belongs to: the next one has a larger number
            let above = self.peers[peer].paths[index].epochs.go_above(epoch);
            self.counters.replays += 1;
            if stream.is_none() {
                self.send_accept(peer, index, above, &h);
            }
            return false;
        }
        if doubtful || other && !proved {
            self.counters.replays += 1;
            return match stream {
                Some(stream) => self.ask_for_proof(peer, stream, &h),
                None => {
                    self.send_accept(peer, index, PROVE, &h);
                    false
                }
            };
        }
        let outdated = !repeated && epoch <= path.epochs.largest() && self.remedies.agreed_epoch();
        if !outdated && !self.join_session(peer, h.session_key) {
            self.counters.strangers += 1;
            return false;
        }
        let unproven = self.peers[peer].is_unproven();
        if unproven {
            let remote = self.peers[peer].paths[index].remote();
            if stream.is_some_and(|s| !self.streams[s].opening().is_with(&remote)) {
                // it claims to be where it is not
                self.counters.strangers += 1;
                return false;
            }
        }
        if outdated {
            if !unproven {
                self.want(peer);
            }
            // outdated, or smaller than our own proposal: report what to go above, change nothing
            self.counters.replays += 1;
            let path = &self.peers[peer].paths[index];
            if stream.is_none() && path.epochs.proposed().is_none() {
                self.send_accept(peer, index, path.epochs.largest(), &h);
            } else if self.peers[peer].paths[index].epochs.hurry(now) {
                // the peer is there and our larger proposal wins: it is sent now, not at our next hello
                self.schedule(peer, now);
            }
            return false;
        }
        if !repeated {
            if self.peers[peer].paths[index].health().connected() {
                // the peer has given the old epoch up
                self.fail_path(peer, index, Witness::NewEpoch, Direction::Unknown);
            }
            self.peers[peer].paths[index].epochs.accept(epoch, now);
            if !self.remedies.agreed_epoch() {
                self.agree(peer, index, epoch);
            }
        }
        if !unproven {
            // a peer that connects wants all its paths; ours begin as well. Not this one, whose proposal is accepted by now: the peer would accept a larger
            // one of ours, while we have accepted its smaller one, and neither would send anything in the epoch that the other accepted
            self.want(peer);
        }
        match stream {
            None => {
                self.send_accept(peer, index, epoch, &h);
                if self.peers[peer].paths[index].epochs.is_unconfirmed(now) {
                    self.seeks_route(peer, index);
                }
            }
            Some(sid) => {
                let lane = LaneId(h.lane);
                // the peer may know the number of lanes before this process does
                self.grow_lanes(peer, index, usize::from(h.lane) + 1);
                let before =
                    self.peers[peer].paths[index].lane_of(lane).map_or(0, |l| l.connection().number());
                if h.stream <= before && current {
                    self.counters.replays += 1;
                    return false;
                }
                if self.peers[peer].paths[index].epochs.is_accepted(epoch) {
                    // a stream in the epoch that we accepted is a sign of life in it
                    self.agree(peer, index, epoch);
                }
                let bytes = self.accept_bytes(peer, epoch, &h).to_vec();
                let s = self.streams.get_mut(sid).expect("it has just said hello");
                s.introduce(peer, LaneName::new(PathId(h.path), epoch, lane, h.stream), bytes);
                self.attach(peer, index, sid);
            }
        }
        // the timers look at once at what is new, and at what was accepted when its time is over
        self.schedule(peer, now + ms(1));
        true
    }

    fn accept_bytes(&mut self, peer: PeerId, epoch: Epoch, h: &Hello) -> [u8; ACCEPT_BYTES] {
        let session_key = self.session_key(peer);
        let (public_key, answer) = (self.identity.public_key(), self.rng.nonce());
        let p = &self.peers[peer];
        let keys = p.credentials.keys().expect("a hello tells the public key");
        Accept {
            path: h.path,
            epoch: epoch.0,
            stream: h.stream,
            lane: h.lane,
            nonce: h.nonce,
            public_key,
            session_key,
            answer,
        }
        .to_bytes(&self.token, &p.address().token, keys, h.session_key.as_ref())
    }

    /// Answers a hello without proof on a stream. Its sender closes that stream, and opens another. False: it was
    /// answered before.
    fn ask_for_proof(&mut self, peer: PeerId, stream: StreamId, h: &Hello) -> bool {
        let bytes = self.accept_bytes(peer, PROVE, h).to_vec();
        let speaks = self.streams.get_mut(stream).is_some_and(|s| s.answer(bytes));
        if speaks {
            self.mark_stream(stream);
        }
        speaks
    }

    /// Whether `token` is the hash of `key`.
    fn is_key_of(&self, key: &PublicKey, token: &Token) -> bool {
        self.identity.token_of(key) == *token
    }

    /// The content of an accept, if it is from this peer and answers the hello with this nonce. The nonce is checked
    /// first: an accept that answers no hello costs no key agreement.
    fn accepted(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        asked: impl Fn(&Accept) -> bool,
    ) -> Result<Accept, Refusal> {
        let theirs = self.peers[peer].address().token;
        let a = Accept::parse(bytes, &theirs, &self.token).map_err(|_| Refusal::Strange)?;
        if !asked(&a) {
            return Err(Refusal::Old);
        }
        if !self.is_key_of(&a.public_key, &theirs) {
            return Err(Refusal::Strange);
        }
        self.know(peer, &a.public_key);
        let key = self.session_key(peer);
        let p = &mut self.peers[peer];
        if !p.credentials.keys().is_some_and(|keys| Accept::is_proved(bytes, keys, key.as_ref())) {
            return Err(Refusal::Strange);
        }
        p.credentials.prove();
        Ok(a)
    }

    pub(crate) fn send_accept(&mut self, peer: PeerId, index: usize, epoch: Epoch, h: &Hello) {
        let bytes = self.accept_bytes(peer, epoch, h).to_vec();
        let path = &self.peers[peer].paths[index];
        self.output.send(Datagram { rail: path.rail(), to: path.remote(), bytes });
    }

    /// The answer to our hello arrived as a datagram.
    pub(crate) fn on_accept(&mut self, peer: PeerId, rail: RailId, bytes: &[u8]) {
        let nonces = |engine: &Self, path| {
            let p = &engine.peers[peer];
            let path = p.path_index(path).map(|index| &p.paths[index]);
            path.map_or((None, None), |path| path.epochs.nonces())
        };
        let accepted = match Accept::path_of(bytes) {
            Some(path) => {
                let (proposed, asked) = nonces(self, PathId(path));
                self.accepted(peer, bytes, |a| [proposed, asked].contains(&Some(a.nonce)))
            }
            None => Err(Refusal::Strange),
        };
        let a = match accepted {
            Ok(a) => a,
            Err(why) => return self.refuse(why),
        };
        let Some(index) = self.peers[peer].path_index(PathId(a.path)) else { return };
        let now = self.clock.now();
        if a.epoch == ENTOMBED.0 {
            if self.peers[peer].gone().is_none() {
                self.entomb(peer, Gone::Lost, EventKind::PeerGaveUp);
            }
            return;
        }
        let path = &mut self.peers[peer].paths[index];
        if path.epochs.nonces().0 != Some(a.nonce) || path.rail() != rail {
            return self.refuse(Refusal::Old);
        }
        if a.epoch == PROVE.0 {
            // now there are keys for a proof
            path.epochs.hurry(now);
            self.schedule(peer, now);
            return;
        }
        if !self.join_session(peer, a.session_key) {
            return self.refuse(Refusal::Strange);
        }
        let path = &mut self.peers[peer].paths[index];
        let Some((proposed, _)) = path.epochs.proposed() else { return };
        let epoch = Epoch(a.epoch);
        if epoch == proposed {
            self.agree(peer, index, epoch);
            self.peers[peer].paths[index].datagrams.are_taken_to_work();
            self.heard(peer, index);
            self.lives(peer);
            // something in the new epoch, so that the other side learns that its answer arrived
            self.ping(peer, index);
        } else if epoch >= path.epochs.largest() && epoch > proposed {
            path.epochs.learn(epoch);
            self.propose(peer, index);
        }
    }

    fn refuse(&mut self, why: Refusal) {
        match why {
            Refusal::Strange => self.counters.strangers += 1,
            Refusal::Old => self.counters.replays += 1,
        }
    }

    /// Both sides have answered in an epoch: it begins.
    pub(crate) fn agree(&mut self, peer: PeerId, index: usize, epoch: Epoch) {
        let now = self.clock.now();
        let proven = self.peers.is_proven(peer);
        // only the peer's keys could make what arrived in this epoch
        self.peers[peer].credentials.prove();
        if self.peers[peer].paths[index].health().connected() {
            self.fail_path(peer, index, Witness::NewEpoch, Direction::Unknown);
        }
        if self.peers[peer].paths[index].health() == Health::Draining {
            // the old streams cannot touch memory from here on: their windows are closed
            self.fence(peer, index, true);
        }
        let mbps = {
            let p = &self.peers[peer];
            let path = &p.paths[index];
            self.rails.speed_mbps(path.rail(), p.far(path))
        };
        let path = &mut self.peers[peer].paths[index];
        path.begin_epoch(epoch, mbps, now);
        let first = self.opens_streams(peer, index);
        let path = &mut self.peers[peer].paths[index];
        path.lanes_mut().for_each(|l| l.connection_mut().may_open(first, now));
        self.settle_lanes(peer);
        self.finds_route(peer, index);
        if !self.shift(peer, index, HealthEvent::Agreed) {
            // Recovering is the only state left that a peer can interrupt; the table covers all others
            debug_assert!(self.peers[peer].paths[index].health().connected(), "an agreed path is connected");
        }
        if self.peers[peer].begin_telling() {
            self.peers[peer].backlog.tell(Item::Config);
        }
        if self.peers[peer].paths[index].health() == Health::Probation && !self.options.protection {
            // no queries are sent, so nothing would be proved
            self.shift(peer, index, HealthEvent::Proven);
        }
        if self.peers[peer].paths[index].health() == Health::Up {
            self.path_up(peer, index);
        }
        self.contact_others(peer);
        if proven {
            // a peer that answers under both tokens is at the address that it named: now its other paths are wanted too
            self.want(peer);
        }
        self.schedule(peer, now);
        self.mark(peer);
    }

    pub(crate) fn path_up(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        self.counters.paths_up += 1;
        let outage = self.peers[peer].paths[index].comes_up(now);
        self.event(EventKind::PathUp { outage }, peer, Some(index));
        self.choose_primary(peer);
        self.mark(peer);
        self.mark_streams(peer);
    }

    /// Primary path: lowest latency, and among equals spread by process, so that a node's ranks use all its rails.
    pub(crate) fn choose_primary(&mut self, peer: PeerId) {
        self.arrange(peer);
        let spread = u16::from_le_bytes([self.token.0[0], self.token.0[1]]) as usize;
        let p = &self.peers[peer];
        let mut up: Vec<usize> = (0..p.paths.len()).filter(|&i| p.paths[i].health() == Health::Up).collect();
        if up.iter().any(|&i| !self.avoids(&p.paths[i])) {
            up.retain(|&i| !self.avoids(&p.paths[i]));
        }
        let p = &mut self.peers[peer];
        let measured = |i: usize| p.paths[i].lane.rtt().min().unwrap_or(Duration::ZERO);
        let Some(best) = up.iter().map(|&i| measured(i)).min() else {
            p.prefers(None);
            return;
        };
        let near: Vec<usize> =
            up.into_iter().filter(|&i| measured(i) <= best * 2 + Duration::from_micros(50)).collect();
        p.prefers(Some(near[spread % near.len()]));
    }

    // ---- streams -----------------------------------------------------------------------------------------------

    /// Something large is to go to a peer, or to come: paths that have saved their streams open them.
    pub(crate) fn want_streams(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let mut news = false;
        for index in 0..self.peers[peer].paths.len() {
            if self.peers[peer].paths[index].demand.is_saved() {
                let first = self.opens_streams(peer, index);
                self.peers[peer].paths[index].want_streams(first, now);
                news = true;
            }
        }
        if news {
            self.schedule(peer, now);
        }
    }

    /// Opens a stream for a lane that exists.
    pub(crate) fn open_stream(&mut self, peer: PeerId, index: usize, lane: LaneId, epoch: Epoch) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        let own_is_high = p.own_is_high();
        let path = &mut p.paths[index];
        let Some(l) = path.lane_of_mut(lane) else { return };
        let number = l.connection_mut().take_number(own_is_high);
        let (rail, to) = (path.rail(), path.remote());
        let id = path.id();
        let nonce = self.rng.nonce();
        let hello = self.hello_bytes(peer, index, epoch, (lane, number), nonce).to_vec();
        let link = (peer, LaneName::new(id, epoch, lane, number));
        let path = &self.peers[peer].paths[index];
        let hasty = path.lane_of(lane).is_some_and(|l| l.connection().is_hasty());
        let early = path.lane.rtt().patience(HASTY_CONNECT.0).min(HASTY_CONNECT.1);
        let deadline = now + if hasty { early } else { STREAM_ATTEMPT };
        let sid = self.streams.add(Stream::attempt(rail, to, link, nonce, hello, deadline, now));
        let path = &mut self.peers[peer].paths[index];
        path.epochs.asked_by_stream(nonce);
        path.lane_of_mut(lane).expect("looked up above").connection_mut().attempt(sid);
        self.output.act(Action::OpenStream { stream: sid, rail, to });
        self.schedule(peer, deadline);
    }

    /// A stream that we opened is connected.
    pub fn stream_connected(&mut self, stream: StreamId, now: Time) {
        self.tick(now);
        if let Some(s) = self.streams.get_mut(stream) {
            if let Some(peer) = s.opening().asks() {
                let rail = s.rail();
                self.peers[peer].acceptance.accepted(rail, self.clock.now());
                self.close_stream(stream);
                return;
            }
            let asked = s.flight().progress_at();
            if s.connected(asked + STREAM_ATTEMPT) {
                let peer = s.peer();
                self.mark_stream(stream);
                if let Some((peer, _)) = peer {
                    // accepted by the kernel for the process, whatever that is doing
                    let now = self.clock.now();
                    self.kernel_accepts(peer, asked, now);
                }
            }
        }
    }

    /// A connection came in on the listener, at the local address of `rail`.
    pub fn stream_accepted(&mut self, rail: RailId, from: Locator, now: Time) -> StreamId {
        self.tick(now);
        let now = self.clock.now();
        let id = self.streams.add(Stream::stranger(rail, from, now));
        if let Some(oldest) = self.streams.is_stranger(id, now + STRANGER) {
            self.counters.strangers += 1;
            self.close_stream(oldest);
        }
        id
    }

    /// Requests the close of a stream; nothing is read or written from now on.
    pub(crate) fn close_stream(&mut self, stream: StreamId) {
        let Some(s) = self.streams.get_mut(stream) else { return };
        if !s.begin_closing() {
            return;
        }
        if let Some((peer, name)) = s.link() {
            let p = &mut self.peers[peer];
            let path = p.paths.iter_mut().find(|path| path.id() == name.path());
            if let Some(lane) = path.and_then(|path| path.lane_of_mut(name.lane())) {
                lane.connection_mut().closing(stream);
            }
        }
        self.output.act(Action::CloseStream { stream });
        self.streams.expect(stream);
    }

    /// Closes an attempt. Only a path that is in service waits for the end: over another it never carried anything of ours.
    pub(crate) fn close_attempt(&mut self, peer: PeerId, index: usize, stream: StreamId) {
        let id = self.streams[stream].lane();
        self.close_stream(stream);
        let path = &mut self.peers[peer].paths[index];
        let idle = !path.health().connected() && path.health() != Health::Draining;
        if let Some(lane) = path.lane_of_mut(id).filter(|_| idle) {
            lane.connection_mut().closed(stream);
        }
    }

    /// A stream ended: the confirmation of [`Action::CloseStream`], a failed connect, a reset, the end of the stream.
    pub fn stream_closed(&mut self, stream: StreamId, reason: CloseReason, now: Time) {
        self.tick(now);
        let Some(s) = self.streams.get(stream) else { return };
        let phase = s.phase();
        let (bound, rail, id) = (s.peer(), s.rail(), s.lane());
        if reason == CloseReason::Damaged {
            self.corrupt_stream(stream);
        }
        let adapter = self.places_max(rail) > 0 && reason != CloseReason::Requested;
        if adapter && phase == Phase::Closing {
            // it broke before it was closed, and the confirmation is still to come
            return;
        }
        let stays = adapter && phase == Phase::Attached;
        if phase == Phase::Attached {
            self.fail_stream(stream, Witness::Transport, stays);
        } else if adapter && phase == Phase::Stranger {
            self.output.act(Action::CloseStream { stream });
        }
        if stays {
            // an adapter may touch memory until it is closed
            if let Some((peer, _)) = bound {
                self.note_end(peer, rail, true, reason);
            }
            return;
        }
        // the peer may have attached it before we knew, and its adapter write: then it is over when it is closed
        let attempted = adapter && phase == Phase::HelloSent;
        if !attempted {
            for (peer, send) in self.loans.closed(stream) {
                self.send_is_over(peer, send.seq, send.message, send.error);
            }
            self.streams.remove(stream);
        }
        let Some((peer, path)) = bound else { return };
        if !attempted {
            self.answer_fences(peer);
        }
        let Some(index) = self.peers[peer].path_index(path) else { return };
        let now = self.clock.now();
        if phase != Phase::Closing {
            self.note_end(peer, rail, phase == Phase::Attached, reason);
        }
        if phase == Phase::HelloSent && matches!(reason, CloseReason::Eof | CloseReason::Reset) {
            self.turned_away(peer);
        }
        let Some(lane) = self.peers[peer].paths[index].lane_of_mut(id) else { return };
        let connection = lane.connection_mut();
        let retry = connection.attempted(stream).then(|| connection.back_off(now));
        connection.closed(stream);
        if attempted {
            self.close_attempt(peer, index, stream);
        }
        let path = &self.peers[peer].paths[index];
        let fenced = path.health() == Health::Draining && !path.is_draining();
        let again = (reason == CloseReason::Refused && phase == Phase::Connecting)
            .then(|| self.peers[peer].paths[index].epochs.stream_refused(now))
            .flatten();
        for at in [retry, again].into_iter().flatten() {
            self.schedule(peer, at);
        }
        if fenced {
            self.fence(peer, index, false);
        }
    }

    /// Closes an attempt that the peer has refused, or that the peer's end cannot attach any more: it needs no fence.
    pub(crate) fn drop_attempt(&mut self, stream: StreamId) {
        let Some((peer, name)) = self.streams.get(stream).and_then(Stream::link) else { return };
        self.close_stream(stream);
        let p = &mut self.peers[peer];
        let path = p.paths.iter_mut().find(|path| path.id() == name.path());
        if let Some(lane) = path.and_then(|path| path.lane_of_mut(name.lane())) {
            lane.connection_mut().closed(stream);
        }
    }

    /// Hello or accept at the start of a stream. False: wait for more, or the stream is finished with.
    pub(crate) fn read_handshake(&mut self, stream: StreamId) -> bool {
        let now = self.clock.now();
        let s = self.streams.get_mut(stream).expect("the caller has looked it up");
        let is_ours = s.phase() != Phase::Stranger;
        let need = if is_ours { ACCEPT_BYTES } else { HELLO_BYTES };
        let Some(bytes) = s.reader_mut().take_words(need) else { return false };
        if is_ours {
            let (peer, name) = s.link().expect("a stream that we opened has its peer");
            let (path, id, number, nonce) = (name.path(), name.lane(), name.number(), s.opening().nonce());
            let fits = |a: &Accept| {
                a.nonce == nonce && (a.lane, a.stream) == (id.0, number) && PathId(a.path) == path
            };
            let accepted = self.accepted(peer, &bytes, fits);
            let Some(index) = self.peers[peer].path_index(path) else { return false };
            self.peers[peer].paths[index]
                .lane_of_mut(id)
                .expect("lanes stay")
                .connection_mut()
                .attempted(stream);
            let a = match accepted {
                Ok(a) if a.epoch == PROVE.0 => {
                    // now there are keys for a proof, on another stream
                    self.drop_attempt(stream);
                    self.peers[peer].paths[index].epochs.say_again(now);
                    self.schedule(peer, now);
                    return false;
                }
                Ok(a) if self.join_session(peer, a.session_key) => a,
                _ => {
                    self.counters.strangers += 1;
                    self.drop_attempt(stream);
                    return false;
                }
            };
            let path = &self.peers[peer].paths[index];
            if path.epochs.proposed().is_some_and(|p| p.0 == Epoch(a.epoch)) {
                // datagrams go unanswered: the epoch was agreed over this stream
                self.agree(peer, index, Epoch(a.epoch));
            }
            let path = &self.peers[peer].paths[index];
            let outdated = path.lane_of(id).is_some_and(|l| number < l.connection().number());
            if path.epoch() != Epoch(a.epoch) || !path.health().connected() || outdated {
                self.drop_attempt(stream);
                return false;
            }
            self.heard(peer, index);
            self.lives(peer);
            self.attach(peer, index, stream);
            return true;
        }
        let rail = s.rail();
        let known = self.on_hello(rail, &bytes, Some(stream));
        if !known {
            self.close_stream(stream);
            self.streams.is_no_stranger(stream);
        }
        known
    }

    /// A stream belongs to a lane of a path now; an older one of the lane is given up.
    pub(crate) fn attach(&mut self, peer: PeerId, index: usize, stream: StreamId) {
        let now = self.clock.now();
        self.streams.is_no_stranger(stream);
        let id = self.streams[stream].lane();
        if let Some(old) = self.peers[peer].paths[index].lane_of(id).and_then(Lane::stream) {
            self.breaks_unprotected(peer);
            // planted: the stream of before is read on, whatever comes late by its route
            if self.remedies.replaced_streams_end() {
                self.drop_stream(old);
            }
        }
        let path = &mut self.peers[peer].paths[index];
        let s = self.streams.get_mut(stream).expect("the caller has it");
        let name = s.attach(path.epoch(), now);
        let lane = path.lane_of_mut(id).expect("lanes stay");
        lane.connection_mut().attach(stream, name.number());
        lane.acks_mut().begin_stream();
        lane.rate_mut().pause();
        let moved = path.moves.awake_mut().is_some_and(|moves| moves.arrives(id));
        if moved || path.breadth.fresh(id).is_some() {
            path.lane_of_mut(id).expect("lanes stay").rate_mut().begins_anew();
        }
        if let Some(i) = path.integrity.awake_mut() {
            i.new_stream();
        }
        self.peers[peer].paths[index].demand.is_met();
        if !self.peers[peer].paths[index].breadth.has(id) {
            // it was wanted when it was opened
            self.part_lane(peer, index, id);
        }
        self.unsettle(peer);
        self.mark_stream(stream);
        self.mark_streams(peer);
    }

    /// Takes everything out of a stream that must still arrive, revokes its leases, and closes it.
    pub(crate) fn drop_stream(&mut self, stream: StreamId) -> u64 {
        let Some(s) = self.streams.get_mut(stream) else { return 0 };
        let Some((peer, lane)) = s.link() else {
            self.close_stream(stream);
            return 0;
        };
        let (records, frames) = s.take_all();
        let mut bytes = 0;
        let fenced = self.remedies.doubts_are_fenced();
        let mut doubtful = Vec::new();
        for r in &records {
            if r.is_placed() && fenced {
                let needed = r.items().iter().filter(|i| self.peers[peer].needs(i));
                doubtful.extend(needed.copied());
            } else {
                bytes += self.requeue(peer, r);
            }
        }
        for f in frames {
            if let (Some(i), true) = (f.item().filter(|i| self.peers[peer].needs(i)), f.is_posted() && fenced)
            {
                doubtful.push(i);
                continue;
            }
            if f.is_begun() && !self.remedies.half_written_is_sent() {
                continue;
            }
            if let Some(i) = f.item() {
                if !f.owns_payload() || f.is_begun() {
                    bytes += self.requeue_item(peer, i, f.is_hedged());
                } else {
                    self.requeue_item(peer, i, f.is_hedged());
                }
            }
        }
        self.doubt(peer, lane, doubtful);
        self.peers[peer].incoming.forget_stream(stream);
        self.close_stream(stream);
        self.mark(peer);
        self.mark_streams(peer);
        bytes
    }

    /// A stream is of no use any more, the path may be.
    pub(crate) fn fail_stream(&mut self, stream: StreamId, witness: Witness, close: bool) {
        let Some(s) = self.streams.get(stream) else { return };
        let id = s.lane();
        let Some((peer, path)) = s.peer() else {
            if close {
                self.close_stream(stream);
            }
            return;
        };
        let now = self.clock.now();
        self.breaks_unprotected(peer);
        let resent_bytes = self.drop_stream(stream);
        if !close {
            // it is gone already: no close is requested
            self.output.is_closed(stream);
        }
        let Some(index) = self.peers[peer].path_index(path) else { return };
        // a peer that knows of our leaving may leave first: that is no fault, and the stream is not replaced
        let parted = self.peers[peer].gone().is_some() || self.peers[peer].farewell.is_answered();
        let path = &mut self.peers[peer].paths[index];
        let tries = self.options.lanes_auto;
        if let Some(moves) = path.moves.awake_mut().filter(|_| resent_bytes == 0) {
            if moves.expects_end(id) {
                // its accept comes by another route, and later
                return;
            }
            if tries && moves.yields(id) {
                // the peer wants the lane no more; if this side does, it opens the next, later where many carry nothing
                moves.parts(id);
                let lane = path.lane_of_mut(id).expect("lanes stay");
                lane.connection_mut().fails(true, self.remedies.fruitless_streams_pause(), now);
                self.schedule(peer, now);
                return;
            }
        }
        self.counters.streams_replaced += u64::from(!parted);
        let first = self.opens_streams(peer, index);
        let pauses = self.remedies.fruitless_streams_pause();
        if let Some(lane) = self.peers[peer].paths[index].lane_of_mut(id) {
            let connection = lane.connection_mut();
            match witness {
                Witness::Route => connection.leaves_route(first, pauses, now),
                _ => connection.fails(first, pauses, now),
            }
        }
        self.unsettle(peer);
        if !parted {
            self.event(EventKind::StreamReplaced { witness, resent_bytes }, peer, Some(index));
        }
        self.schedule(peer, now);
    }

    /// Packets from a silent peer arrive again. Streams that failed meanwhile prove nothing about the next: no stream
    /// has to wait, and a connect that was started during the silence is restarted, because its kernel repeats it only
    /// after a second.
    pub(crate) fn forgive_streams(&mut self, peer: PeerId) {
        let now = self.clock.now();
        for index in 0..self.peers[peer].paths.len() {
            if !self.peers[peer].paths[index].health().connected() {
                continue;
            }
            for a in self.peers[peer].paths[index].attempts() {
                if self.streams.get(a).is_some_and(|s| s.phase() == Phase::Connecting) {
                    self.close_stream(a);
                }
            }
            let first = self.opens_streams(peer, index);
            self.peers[peer].paths[index].lanes_mut().for_each(|l| l.connection_mut().forgive(first, now));
        }
        self.schedule(peer, now);
    }

    /// Whether this side opens a path's next stream at once; the other side waits for it. If both did, they would
    /// replace each other's streams.
    pub(crate) fn opens_streams(&self, peer: PeerId, index: usize) -> bool {
        let p = &self.peers[peer];
        (p.paths[index].epoch().0 & 1 == 1) == p.own_is_high()
    }

    pub(crate) fn handshake_timer(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        match self.peers[peer].paths[index].epochs.due(now) {
            None => {}
            Some(Due::GiveUp) => {
                self.shift(peer, index, HealthEvent::GiveUp);
                self.fence_attempts(peer, index);
                if self.remedies.retries_go_on() {
                    self.retry_later(peer, index);
                }
            }
            Some(Due::Hello { datagram, stream }) => {
                if let Some(epoch) = stream {
                    self.open_stream(peer, index, LaneId::FIRST, epoch);
                }
                if datagram {
                    self.send_hello(peer, index);
                }
                return self.peers[peer].paths[index].epochs.next_due().expect("it is not given up");
            }
        }
        let mut accepted_until = Time::NEVER;
        if let Some(until) = self.peers[peer].paths[index].epochs.accepted_until() {
            if now >= until {
                let path = &self.peers[peer].paths[index];
                let (idle, over) = (path.health() == Health::Idle, path.epochs.proposed().is_none());
                // if this side proposes nothing, only the peer can begin, and it may have begun: its first packet is
                // lost, and it does not know that it must repeat its hello
                let stays = idle && over && !self.peers[peer].is_wanted() && self.remedies.accepted_stays();
                if !stays {
                    self.peers[peer].paths[index].epochs.forget_accepted();
                }
                if over && self.shift(peer, index, HealthEvent::GiveUp) {
                    self.fence_attempts(peer, index);
                    self.retry_later(peer, index);
                } else if over && idle && self.peers[peer].is_wanted() {
                    self.retry_later(peer, index);
                }
            } else {
                accepted_until = until;
            }
        }
        let path = &self.peers[peer].paths[index];
        let next = match (path.health(), path.retry.at()) {
            // the peer's own proposal is under way: a larger one would only undo it
            (Health::Idle, _) if path.epochs.accepted_until().is_some() => Time::NEVER,
            (Health::Down, Some(at)) if now >= at => {
                self.peers[peer].paths[index].retry.stop();
                self.shift(peer, index, HealthEvent::Connect);
                self.propose(peer, index);
                now + HELLO_INTERVAL.0
            }
            (Health::Idle, Some(at)) if now >= at => {
                self.peers[peer].paths[index].retry.stop();
                self.shift(peer, index, HealthEvent::Connect);
                self.propose(peer, index);
                now + HELLO_INTERVAL.0
            }
            (Health::Down | Health::Idle, Some(at)) => at,
            _ => Time::NEVER,
        };
        next.min(accepted_until)
    }

    pub(crate) fn stream_timer(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let mut next = Time::NEVER;
        for a in self.peers[peer].paths[index].attempts() {
            let Some(s) = self.streams.get(a) else { continue };
            let Some(d) = s.opening().deadline() else { continue };
            let id = s.lane();
            if now >= d {
                let connecting = s.phase() == Phase::Connecting;
                self.close_attempt(peer, index, a);
                let Some(lane) = self.peers[peer].paths[index].lane_of_mut(id) else { continue };
                let connection = lane.connection_mut();
                if connecting && connection.is_hasty() {
                    connection.tries_another();
                } else {
                    connection.back_off(now);
                }
            } else {
                next = next.min(d);
            }
        }
        for id in (0..self.peers[peer].paths[index].wanted_lanes()).map(LaneId) {
            let path = &mut self.peers[peer].paths[index];
            if !path.health().connected() || path.demand.is_saved() {
                break;
            }
            let (epoch, Some(lane)) = (path.epoch(), path.lane_of_mut(id)) else { break };
            let Some(at) = lane.connection().open_at(now) else { continue };
            if now >= at {
                lane.connection_mut().opens();
                self.open_stream(peer, index, id, epoch);
                next = next.min(now + STREAM_ATTEMPT);
            } else {
                next = next.min(at);
            }
        }
        next
    }
}
