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
/// How long a stranger may take for its hello.
const STRANGER: Duration = ms(2000);
/// Epoch of an answer that says: this process has given yours up for good. No path ever has it.
const ENTOMBED: Epoch = Epoch(0);
/// Epoch of an answer that says: this hello is not believed, say it again with a proof. No path ever has it.
const PROVE: Epoch = Epoch(EPOCH_PROVE);

/// Why an accept is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// It proves nothing, or makes no sense.
    Strange,
    /// It answers nothing that is asked now.
    Old,
}

impl Engine {
    // ---- handshake ---------------------------------------------------------------------------------------------

    /// Begins a handshake for a new epoch of a path.
    pub(crate) fn propose(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let nonce = self.rng.nonce();
        let agreed = self.remedies.agreed_epoch();
        let p = &mut self.peers[pi];
        let own_is_high = p.own_is_high();
        let x = &mut p.paths[xi];
        // planted: both sides may choose the same number
        let epoch = if agreed { x.epochs.next(own_is_high) } else { Epoch(x.epochs.largest().0 + 1) };
        let patience = if x.health() == Health::Connecting { HANDSHAKE.0 } else { HANDSHAKE.1 };
        x.epochs.propose(epoch, nonce, patience, now);
        self.send_hello(pi, xi);
    }

    pub(crate) fn hello_bytes(
        &mut self,
        pi: usize,
        xi: usize,
        epoch: Epoch,
        (lane, stream): (LaneId, u64),
        nonce: [u8; 16],
    ) -> [u8; HELLO_BYTES] {
        let session_key = self.session_key(pi);
        let p = &self.peers[pi];
        Hello {
            path: p.paths[xi].id().0,
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

    pub(crate) fn send_hello(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let Some((epoch, nonce)) = self.peers[pi].paths[xi].epochs.proposed() else { return };
        let bytes = self.hello_bytes(pi, xi, epoch, (LaneId::FIRST, 0), nonce).to_vec();
        let x = &mut self.peers[pi].paths[xi];
        self.output.send(Datagram { rail: x.rail(), to: x.remote(), bytes });
        let at = x.epochs.hello_sent(now).expect("looked up above");
        self.keep_neighbour(pi, xi);
        self.schedule(pi, at);
    }

    /// A hello arrived, as a datagram or (with `stream`) as the first bytes of a stream.
    ///
    /// Where a datagram came from counts for nothing, because whoever sends it writes that. The address that counts is the one
    /// inside, under the keyed hash, and of a known peer the one that was known first.
    ///
    /// Every process that knows this one's token can say hello in the name of another whose public key it has seen. So a hello without a proof
    /// is good for a first meeting only: it changes nothing for a peer that has proved itself, and takes the place of no session. Its sender
    /// is answered with what it takes to prove itself, and says it again.
    pub(crate) fn on_hello(&mut self, rail: RailId, bytes: &[u8], stream: Option<StreamId>) -> bool {
        let Ok(h) = Hello::parse(bytes, &self.token) else {
            self.counters.strangers += 1;
            return false;
        };
        let unlike = h.from.encrypts != self.encrypts || h.session_key.is_some() != self.encrypts;
        // another's name: the token is the hash of the key
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
        let pi = peer.0 as usize;
        self.know(pi, &h.public_key);
        let proof = self.peers[pi].credentials.keys().map_or(Proof::Wrong, |keys| Hello::proof(bytes, keys));
        let proved = proof == Proof::Right;
        if proof == Proof::Wrong || !proved && h.epoch > EPOCH_UNPROVED_MAX {
            self.counters.strangers += 1;
            return false;
        }
        if proved {
            self.settle_whereabouts(peer, &h.from);
            self.know(pi, &h.public_key);
            self.peers[pi].credentials.prove();
        }
        // one that said goodbye may come back to hear that it was heard; one that was declared dead may not (hazard H7)
        if self.peers[pi].gone().is_some_and(Gone::is_final) {
            // but it is told, so that it does not wait for us for ever
            self.counters.replays += 1;
            let path = self.peers[pi].path_index(PathId(h.path));
            if let Some(xi) = path.filter(|_| self.remedies.tell_the_entombed()) {
                self.send_accept(pi, xi, ENTOMBED, &h);
            }
            return false;
        }
        // the rails that the path number names must exist on both sides, and ours must be the one it came on
        let (high, low) = ((h.path >> 8) as usize, (h.path & 0xff) as usize);
        let (own, remote) = if self.peers[pi].own_is_high() { (low, high) } else { (high, low) };
        let lanes = self.rails.get(own).map_or(0, |r| self.lanes_of_rail(r));
        if own != rail.0 as usize || remote >= self.peers[pi].address().rails.len() || h.lane >= lanes {
            self.counters.strangers += 1;
            return false;
        }
        let xi = match self.peers[pi].path_index(PathId(h.path)) {
            Some(i) => i,
            None if self.peers[pi].paths.len() < 16 => {
                let path = self.new_path(&self.peers[pi], own, remote);
                self.peers[pi].add_path(path);
                self.settle_coverage(pi);
                self.peers[pi].paths.len() - 1
            }
            None => {
                self.counters.strangers += 1;
                return false;
            }
        };
        let epoch = Epoch(h.epoch);
        let x = &self.peers[pi].paths[xi];
        let current = x.health().connected() && x.epoch() == epoch;
        let repeated = current || x.epochs.is_accepted(epoch);
        // what comes over a stream is believed without a further word, and a first meeting over datagrams is not
        let needs_proof = stream.is_some() || !repeated && self.peers[pi].credentials.is_proved();
        let doubtful = !proved && needs_proof && self.remedies.hellos_are_proved();
        let other = !self.is_of_session(pi, h.session_key);
        if proved && current && other {
            // it has forgotten the session that this epoch belongs to: the next one has a larger number
            let above = self.peers[pi].paths[xi].epochs.go_above(epoch);
            self.counters.replays += 1;
            if stream.is_none() {
                self.send_accept(pi, xi, above, &h);
            }
            return false;
        }
        if doubtful || other && !proved {
            self.counters.replays += 1;
            return match stream {
                Some(stream) => self.ask_for_proof(pi, stream, &h),
                None => {
                    self.send_accept(pi, xi, PROVE, &h);
                    false
                }
            };
        }
        let outdated = !repeated && epoch <= x.epochs.largest() && self.remedies.agreed_epoch();
        if !outdated && !self.join_session(pi, h.session_key) {
            self.counters.strangers += 1;
            return false;
        }
        if self.peers[pi].is_unproven() {
            let remote = self.peers[pi].paths[xi].remote();
            if stream.is_some_and(|s| !self.streams[s].opening().is_with(&remote)) {
                // it claims to be where it is not
                self.counters.strangers += 1;
                return false;
            }
        } else if !self.peers[pi].is_wanted() {
            // a peer that connects wants all its paths; ours begin as well, the larger epoch wins
            self.want(pi);
        }
        let x = &self.peers[pi].paths[xi];
        if outdated {
            // outdated, or smaller than what we propose ourselves: say what to go above, change nothing
            self.counters.replays += 1;
            if stream.is_none() && x.epochs.proposed().is_none() {
                self.send_accept(pi, xi, x.epochs.largest(), &h);
            } else if self.peers[pi].paths[xi].epochs.hurry(now) {
                // the peer is there and our larger proposal wins: it hears it now, not at our next hello
                self.schedule(pi, now);
            }
            return false;
        }
        if !repeated {
            if x.health().connected() {
                // the peer has given the old epoch up
                self.fail_path(pi, xi, Witness::NewEpoch, Direction::Unknown);
            }
            self.peers[pi].paths[xi].epochs.accept(epoch, now);
            if !self.remedies.agreed_epoch() {
                self.agree(pi, xi, epoch);
            }
        }
        match stream {
            None => self.send_accept(pi, xi, epoch, &h),
            Some(sid) => {
                let lane = LaneId(h.lane);
                // it may know how many there are before we do
                self.grow_lanes(pi, xi, usize::from(h.lane) + 1);
                let before = self.peers[pi].paths[xi].lane_of(lane).map_or(0, |l| l.connection().number());
                if h.stream <= before && current {
                    self.counters.replays += 1;
                    return false;
                }
                if self.peers[pi].paths[xi].epochs.is_accepted(epoch) {
                    // a stream in the epoch that we accepted is a sign of life in it
                    self.agree(pi, xi, epoch);
                }
                let bytes = self.accept_bytes(pi, epoch, &h).to_vec();
                let s = self.streams.get_mut(sid).expect("it has just said hello");
                s.introduce(peer, LaneName::new(PathId(h.path), epoch, lane, h.stream), bytes);
                self.attach(pi, xi, sid);
            }
        }
        // the timers look at once at what is new, and at what was accepted when its time is over
        self.schedule(pi, now + ms(1));
        true
    }

    fn accept_bytes(&mut self, pi: usize, epoch: Epoch, h: &Hello) -> [u8; ACCEPT_BYTES] {
        let session_key = self.session_key(pi);
        let (public_key, answer) = (self.identity.public_key(), self.rng.nonce());
        let p = &self.peers[pi];
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

    /// Answers a hello without proof on a stream. Its sender closes that, and opens another. False: it does not.
    fn ask_for_proof(&mut self, pi: usize, stream: StreamId, h: &Hello) -> bool {
        let bytes = self.accept_bytes(pi, PROVE, h).to_vec();
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

    /// What an accept says, if it is from this peer and answers the hello with this nonce. The nonce is looked at first: what answers nothing
    /// costs no agreement.
    fn accepted(
        &mut self,
        pi: usize,
        bytes: &[u8],
        asked: impl Fn(&Accept) -> bool,
    ) -> Result<Accept, Refusal> {
        let theirs = self.peers[pi].address().token;
        let a = Accept::parse(bytes, &theirs, &self.token).map_err(|_| Refusal::Strange)?;
        if !asked(&a) {
            return Err(Refusal::Old);
        }
        if !self.is_key_of(&a.public_key, &theirs) {
            return Err(Refusal::Strange);
        }
        self.know(pi, &a.public_key);
        let key = self.session_key(pi);
        let p = &mut self.peers[pi];
        if !p.credentials.keys().is_some_and(|keys| Accept::is_proved(bytes, keys, key.as_ref())) {
            return Err(Refusal::Strange);
        }
        p.credentials.prove();
        Ok(a)
    }

    pub(crate) fn send_accept(&mut self, pi: usize, xi: usize, epoch: Epoch, h: &Hello) {
        let bytes = self.accept_bytes(pi, epoch, h).to_vec();
        let x = &self.peers[pi].paths[xi];
        self.output.send(Datagram { rail: x.rail(), to: x.remote(), bytes });
    }

    /// The answer to our hello arrived as a datagram.
    pub(crate) fn on_accept(&mut self, pi: usize, rail: RailId, bytes: &[u8]) {
        let nonces = |engine: &Self, path| {
            let p = &engine.peers[pi];
            let x = p.path_index(path).map(|xi| &p.paths[xi]);
            x.map_or((None, None), |x| x.epochs.nonces())
        };
        let accepted = match Accept::path_of(bytes) {
            Some(path) => {
                let (proposed, asked) = nonces(self, PathId(path));
                self.accepted(pi, bytes, |a| [proposed, asked].contains(&Some(a.nonce)))
            }
            None => Err(Refusal::Strange),
        };
        let a = match accepted {
            Ok(a) => a,
            Err(why) => return self.refuse(why),
        };
        let Some(xi) = self.peers[pi].path_index(PathId(a.path)) else { return };
        let now = self.clock.now();
        if a.epoch == ENTOMBED.0 {
            if self.peers[pi].gone().is_none() {
                self.entomb(pi, Gone::Lost, EventKind::PeerGaveUp);
            }
            return;
        }
        let x = &mut self.peers[pi].paths[xi];
        if x.epochs.nonces().0 != Some(a.nonce) || x.rail() != rail {
            return self.refuse(Refusal::Old);
        }
        if a.epoch == PROVE.0 {
            // now there are keys to do so
            x.epochs.hurry(now);
            self.schedule(pi, now);
            return;
        }
        if !self.join_session(pi, a.session_key) {
            return self.refuse(Refusal::Strange);
        }
        let x = &mut self.peers[pi].paths[xi];
        let Some((proposed, _)) = x.epochs.proposed() else { return };
        let epoch = Epoch(a.epoch);
        if epoch == proposed {
            self.agree(pi, xi, epoch);
            self.peers[pi].paths[xi].datagrams.are_taken_to_work();
            self.heard(pi, xi);
            self.lives(pi);
            // something in the new epoch, so that the other side learns that its answer arrived
            self.ping(pi, xi);
        } else if epoch >= x.epochs.largest() && epoch > proposed {
            x.epochs.learn(epoch);
            self.propose(pi, xi);
        }
    }

    fn refuse(&mut self, why: Refusal) {
        match why {
            Refusal::Strange => self.counters.strangers += 1,
            Refusal::Old => self.counters.replays += 1,
        }
    }

    /// Both sides have answered in an epoch: it begins.
    pub(crate) fn agree(&mut self, pi: usize, xi: usize, epoch: Epoch) {
        let now = self.clock.now();
        let proven = self.peers.is_proven(PeerId(pi as u32));
        // only its keys could make what arrived in this epoch
        self.peers[pi].credentials.prove();
        if self.peers[pi].paths[xi].health().connected() {
            self.fail_path(pi, xi, Witness::NewEpoch, Direction::Unknown);
        }
        if self.peers[pi].paths[xi].health() == Health::Draining {
            // the old streams cannot touch memory from here on: their windows are closed
            self.fence(pi, xi, true);
        }
        let mbps = {
            let p = &self.peers[pi];
            let x = &p.paths[xi];
            self.rails.speed_mbps(x.rail(), p.far(x))
        };
        let x = &mut self.peers[pi].paths[xi];
        x.begin_epoch(epoch, mbps, now);
        let first = self.opens_streams(pi, xi);
        let x = &mut self.peers[pi].paths[xi];
        x.lanes_mut().for_each(|l| l.connection_mut().may_open(first, now));
        self.settle_lanes(pi);
        if !self.shift(pi, xi, HealthEvent::Agreed) {
            // Recovering is the only state left that a peer can interrupt; the table covers all others
            debug_assert!(self.peers[pi].paths[xi].health().connected(), "an agreed path is connected");
        }
        if self.peers[pi].is_told() {
            self.peers[pi].backlog.tell(Item::Config);
        }
        if self.peers[pi].paths[xi].health() == Health::Probation && !self.options.protection {
            // nothing is asked, so nothing would be proved
            self.shift(pi, xi, HealthEvent::Proven);
        }
        if self.peers[pi].paths[xi].health() == Health::Up {
            self.path_up(pi, xi);
        }
        self.contact_others(pi);
        if proven {
            // whoever answers under both tokens is at the address that it named: now its other paths are wanted too
            self.want(pi);
        }
        self.schedule(pi, now);
        self.mark(PeerId(pi as u32));
    }

    pub(crate) fn path_up(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        self.counters.paths_up += 1;
        let outage = self.peers[pi].paths[xi].comes_up(now);
        self.event(EventKind::PathUp { outage }, pi, Some(xi));
        self.choose_primary(pi);
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
    }

    /// Primary path: lowest latency, and among equals spread by process, so that a node's ranks use all its rails.
    pub(crate) fn choose_primary(&mut self, pi: usize) {
        self.arrange(pi);
        let spread = u16::from_le_bytes([self.token.0[0], self.token.0[1]]) as usize;
        let p = &self.peers[pi];
        let mut up: Vec<usize> = (0..p.paths.len()).filter(|&i| p.paths[i].health() == Health::Up).collect();
        if up.iter().any(|&i| !self.avoids(&p.paths[i])) {
            up.retain(|&i| !self.avoids(&p.paths[i]));
        }
        let p = &mut self.peers[pi];
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

    /// Opens a stream for a lane that exists.
    pub(crate) fn open_stream(&mut self, pi: usize, xi: usize, lane: LaneId, epoch: Epoch) {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        let Some(l) = x.lane_of(lane) else { return };
        let number = l.connection().next_number(p.own_is_high());
        let (rail, to) = (x.rail(), x.remote());
        let id = x.id();
        let nonce = self.rng.nonce();
        let hello = self.hello_bytes(pi, xi, epoch, (lane, number), nonce).to_vec();
        let link = (PeerId(pi as u32), LaneName::new(id, epoch, lane, number));
        let deadline = now + STREAM_ATTEMPT;
        let sid = self.streams.add(Stream::attempt(rail, to, link, nonce, hello, deadline, now));
        let x = &mut self.peers[pi].paths[xi];
        x.epochs.asked_by_stream(nonce);
        x.lane_of_mut(lane).expect("looked up above").connection_mut().attempt(sid);
        self.output.act(Action::OpenStream { stream: sid, rail, to });
        self.schedule(pi, deadline);
    }

    /// A stream that we opened is connected.
    pub fn stream_connected(&mut self, stream: StreamId, now: Time) {
        self.tick(now);
        if let Some(s) = self.streams.get_mut(stream) {
            if let Some(peer) = s.opening().asks() {
                let rail = s.rail();
                self.peers[peer.0 as usize].acceptance.accepted(rail, self.clock.now());
                self.close_stream(stream);
                return;
            }
            if s.connected() {
                let (peer, asked) = (s.peer(), s.flight().progress_at());
                self.mark_stream(stream);
                if let Some((peer, _)) = peer {
                    // accepted by the kernel for the process, whatever that is doing
                    let now = self.clock.now();
                    self.kernel_accepts(peer.0 as usize, asked, now);
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

    /// Asks the world to close a stream; nothing is read or written from now on.
    pub(crate) fn close_stream(&mut self, stream: StreamId) {
        let Some(s) = self.streams.get_mut(stream) else { return };
        if !s.begin_closing() {
            return;
        }
        if let Some((peer, name)) = s.link() {
            let p = &mut self.peers[peer.0 as usize];
            let x = p.paths.iter_mut().find(|x| x.id() == name.path());
            if let Some(lane) = x.and_then(|x| x.lane_of_mut(name.lane())) {
                lane.connection_mut().closing(stream);
            }
        }
        self.output.act(Action::CloseStream { stream });
        self.streams.expect(stream);
    }

    /// Closes an attempt. Only a path that is in service waits for the end: over another it never carried anything of ours.
    pub(crate) fn close_attempt(&mut self, pi: usize, xi: usize, stream: StreamId) {
        let id = self.streams[stream].lane();
        self.close_stream(stream);
        let x = &mut self.peers[pi].paths[xi];
        let idle = !x.health().connected() && x.health() != Health::Draining;
        if let Some(lane) = x.lane_of_mut(id).filter(|_| idle) {
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
            // it broke before it was closed, and that is still to come
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
                self.note_end(peer.0 as usize, rail, true, reason);
            }
            return;
        }
        // the peer may have attached it before we knew, and its adapter write: then it is over when it is closed
        let attempted = adapter && phase == Phase::HelloSent;
        if !attempted {
            for (peer, send) in self.loans.closed(stream) {
                self.send_is_over(peer.0 as usize, send.seq, send.message, send.error);
            }
            self.streams.remove(stream);
        }
        let Some((peer, path)) = bound else { return };
        if !attempted {
            self.answer_fences(peer.0 as usize);
        }
        let pi = peer.0 as usize;
        let Some(xi) = self.peers[pi].path_index(path) else { return };
        let now = self.clock.now();
        if phase != Phase::Closing {
            self.note_end(pi, rail, phase == Phase::Attached, reason);
        }
        if phase == Phase::HelloSent && matches!(reason, CloseReason::Eof | CloseReason::Reset) {
            self.turned_away(pi);
        }
        let Some(lane) = self.peers[pi].paths[xi].lane_of_mut(id) else { return };
        let connection = lane.connection_mut();
        let retry = connection.attempted(stream).then(|| connection.back_off(now));
        connection.closed(stream);
        if attempted {
            self.close_attempt(pi, xi, stream);
        }
        let x = &self.peers[pi].paths[xi];
        let fenced = x.health() == Health::Draining && !x.is_draining();
        if let Some(at) = retry {
            self.schedule(pi, at);
        }
        if fenced {
            self.fence(pi, xi, false);
        }
    }

    /// Closes an attempt that the peer has refused, or that its end cannot attach any more: it needs no fence.
    pub(crate) fn drop_attempt(&mut self, stream: StreamId) {
        let Some((peer, name)) = self.streams.get(stream).and_then(Stream::link) else { return };
        self.close_stream(stream);
        let p = &mut self.peers[peer.0 as usize];
        let x = p.paths.iter_mut().find(|x| x.id() == name.path());
        if let Some(lane) = x.and_then(|x| x.lane_of_mut(name.lane())) {
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
            let (peer, name) = s.link().expect("we know whom we called");
            let (path, id, number, nonce) = (name.path(), name.lane(), name.number(), s.opening().nonce());
            let pi = peer.0 as usize;
            let fits = |a: &Accept| {
                a.nonce == nonce && (a.lane, a.stream) == (id.0, number) && PathId(a.path) == path
            };
            let accepted = self.accepted(pi, &bytes, fits);
            let Some(xi) = self.peers[pi].path_index(path) else { return false };
            self.peers[pi].paths[xi].lane_of_mut(id).expect("lanes stay").connection_mut().attempted(stream);
            let a = match accepted {
                Ok(a) if a.epoch == PROVE.0 => {
                    // now there are keys to do so, on another stream
                    self.drop_attempt(stream);
                    self.peers[pi].paths[xi].epochs.say_again(now);
                    self.schedule(pi, now);
                    return false;
                }
                Ok(a) if self.join_session(pi, a.session_key) => a,
                _ => {
                    self.counters.strangers += 1;
                    self.drop_attempt(stream);
                    return false;
                }
            };
            let x = &self.peers[pi].paths[xi];
            if x.epochs.proposed().is_some_and(|p| p.0 == Epoch(a.epoch)) {
                // datagrams go unanswered: the epoch was agreed over this stream
                self.agree(pi, xi, Epoch(a.epoch));
            }
            let x = &self.peers[pi].paths[xi];
            let outdated = x.lane_of(id).is_some_and(|l| number < l.connection().number());
            if x.epoch() != Epoch(a.epoch) || !x.health().connected() || outdated {
                self.drop_attempt(stream);
                return false;
            }
            self.heard(pi, xi);
            self.lives(pi);
            self.attach(pi, xi, stream);
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
    pub(crate) fn attach(&mut self, pi: usize, xi: usize, stream: StreamId) {
        let now = self.clock.now();
        self.streams.is_no_stranger(stream);
        let id = self.streams[stream].lane();
        if let Some(old) = self.peers[pi].paths[xi].lane_of(id).and_then(Lane::stream) {
            self.breaks_unprotected(pi);
            self.drop_stream(old);
        }
        let x = &mut self.peers[pi].paths[xi];
        let s = self.streams.get_mut(stream).expect("the caller has it");
        let name = s.attach(x.epoch(), now);
        let lane = x.lane_of_mut(id).expect("lanes stay");
        lane.connection_mut().attach(stream, name.number());
        lane.acks_mut().begin_stream();
        lane.rate_mut().pause();
        if let Some(i) = x.integrity.awake_mut() {
            i.new_stream();
        }
        self.peers[pi].paths[xi].waits_for_no_stream();
        self.unsettle(pi);
        self.mark_stream(stream);
        self.mark_streams(PeerId(pi as u32));
    }

    /// Takes everything out of a stream that must still arrive, revokes its leases, and closes it.
    pub(crate) fn drop_stream(&mut self, stream: StreamId) -> u64 {
        let Some(s) = self.streams.get_mut(stream) else { return 0 };
        let Some((peer, lane)) = s.link() else {
            self.close_stream(stream);
            return 0;
        };
        let pi = peer.0 as usize;
        let (records, frames) = s.take_all();
        let mut bytes = 0;
        let fenced = self.remedies.doubts_are_fenced();
        let mut doubtful = Vec::new();
        for r in &records {
            if r.is_placed() && fenced {
                let needed = r.items().iter().filter(|i| self.peers[pi].needs(i));
                doubtful.extend(needed.copied());
            } else {
                bytes += self.requeue(pi, r);
            }
        }
        for f in frames {
            if let (Some(i), true) = (f.item().filter(|i| self.peers[pi].needs(i)), f.is_posted() && fenced) {
                doubtful.push(i);
                continue;
            }
            if f.is_begun() && !self.remedies.half_written_is_sent() {
                continue;
            }
            if let Some(i) = f.item() {
                if !f.owns_payload() || f.is_begun() {
                    bytes += self.requeue_item(pi, i, f.is_hedged());
                } else {
                    self.requeue_item(pi, i, f.is_hedged());
                }
            }
        }
        self.doubt(pi, lane, doubtful);
        self.peers[pi].incoming.forget_stream(stream);
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
        let pi = peer.0 as usize;
        self.breaks_unprotected(pi);
        let resent_bytes = self.drop_stream(stream);
        if !close {
            // it is gone already: no need to ask for it
            self.output.is_closed(stream);
        }
        let Some(xi) = self.peers[pi].path_index(path) else { return };
        // whoever knows that we leave may leave first: that is no fault, and nothing takes the stream's place
        let parted = self.peers[pi].gone().is_some() || self.peers[pi].farewell.is_answered();
        self.counters.streams_replaced += u64::from(!parted);
        let first = self.opens_streams(pi, xi);
        let pauses = self.remedies.fruitless_streams_pause();
        if let Some(lane) = self.peers[pi].paths[xi].lane_of_mut(id) {
            lane.connection_mut().fails(first, pauses, now);
        }
        self.unsettle(pi);
        if !parted {
            self.event(EventKind::StreamReplaced { witness, resent_bytes }, pi, Some(xi));
        }
        self.schedule(pi, now);
    }

    /// A silent peer is heard again. That no stream came about meanwhile says nothing of the next: none has to wait, and a connect that
    /// was begun in the silence is begun anew, for its kernel repeats it only after a second.
    pub(crate) fn forgive_streams(&mut self, pi: usize) {
        let now = self.clock.now();
        for xi in 0..self.peers[pi].paths.len() {
            if !self.peers[pi].paths[xi].health().connected() {
                continue;
            }
            for a in self.peers[pi].paths[xi].attempts() {
                if self.streams.get(a).is_some_and(|s| s.phase() == Phase::Connecting) {
                    self.close_stream(a);
                }
            }
            let first = self.opens_streams(pi, xi);
            self.peers[pi].paths[xi].lanes_mut().for_each(|l| l.connection_mut().forgive(first, now));
        }
        self.schedule(pi, now);
    }

    /// Whether it is for this side to open a path's next stream at once; the other waits for it. If both did, they would replace each
    /// other's.
    pub(crate) fn opens_streams(&self, pi: usize, xi: usize) -> bool {
        let p = &self.peers[pi];
        (p.paths[xi].epoch().0 & 1 == 1) == p.own_is_high()
    }

    pub(crate) fn handshake_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        match self.peers[pi].paths[xi].epochs.due(now) {
            None => {}
            Some(Due::GiveUp) => {
                self.shift(pi, xi, HealthEvent::GiveUp);
                self.fence_attempts(pi, xi);
                if self.remedies.retries_go_on() {
                    self.retry_later(pi, xi);
                }
            }
            Some(Due::Hello { datagram, stream }) => {
                if let Some(epoch) = stream {
                    self.open_stream(pi, xi, LaneId::FIRST, epoch);
                }
                if datagram {
                    self.send_hello(pi, xi);
                }
                return self.peers[pi].paths[xi].epochs.next_due().expect("it is not given up");
            }
        }
        let mut accepted_until = Time::NEVER;
        if let Some(until) = self.peers[pi].paths[xi].epochs.accepted_until() {
            if now >= until {
                let x = &self.peers[pi].paths[xi];
                let (idle, over) = (x.health() == Health::Idle, x.epochs.proposed().is_none());
                // where we begin nothing ourselves only the peer can, and it may have begun: what it said is lost, and it does not
                // know that it must say hello again
                let stays = idle && over && !self.peers[pi].is_wanted() && self.remedies.accepted_stays();
                if !stays {
                    self.peers[pi].paths[xi].epochs.forget_accepted();
                }
                if over && self.shift(pi, xi, HealthEvent::GiveUp) {
                    self.fence_attempts(pi, xi);
                    self.retry_later(pi, xi);
                } else if over && idle && self.peers[pi].is_wanted() {
                    self.retry_later(pi, xi);
                }
            } else {
                accepted_until = until;
            }
        }
        let x = &self.peers[pi].paths[xi];
        let next = match (x.health(), x.retry.at()) {
            // the peer's own proposal is under way: a larger one would only undo it
            (Health::Idle, _) if x.epochs.accepted_until().is_some() => Time::NEVER,
            (Health::Down, Some(at)) if now >= at => {
                self.peers[pi].paths[xi].retry.stop();
                self.shift(pi, xi, HealthEvent::Connect);
                self.propose(pi, xi);
                now + HELLO_INTERVAL.0
            }
            (Health::Idle, Some(at)) if now >= at => {
                self.peers[pi].paths[xi].retry.stop();
                self.shift(pi, xi, HealthEvent::Connect);
                self.propose(pi, xi);
                now + HELLO_INTERVAL.0
            }
            (Health::Down | Health::Idle, Some(at)) => at,
            _ => Time::NEVER,
        };
        next.min(accepted_until)
    }

    pub(crate) fn stream_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        let mut next = Time::NEVER;
        for a in self.peers[pi].paths[xi].attempts() {
            let Some(s) = self.streams.get(a) else { continue };
            let Some(d) = s.opening().deadline() else { continue };
            let id = s.lane();
            if now >= d {
                self.close_attempt(pi, xi, a);
                let Some(lane) = self.peers[pi].paths[xi].lane_of_mut(id) else { continue };
                lane.connection_mut().back_off(now);
            } else {
                next = next.min(d);
            }
        }
        for id in (0..self.peers[pi].paths[xi].lane_count() as u8).map(LaneId) {
            let x = &mut self.peers[pi].paths[xi];
            if !x.health().connected() {
                break;
            }
            let (epoch, Some(lane)) = (x.epoch(), x.lane_of_mut(id)) else { break };
            let Some(at) = lane.connection().open_at(now) else { continue };
            if now >= at {
                lane.connection_mut().opens();
                self.open_stream(pi, xi, id, epoch);
                next = next.min(now + STREAM_ATTEMPT);
            } else {
                next = next.min(at);
            }
        }
        next
    }
}
