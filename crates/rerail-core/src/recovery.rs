//! Handshakes, queries, verdicts, failover, recovery, partitions.
//!
//! Owns: the decisions about paths. Nothing is called down on silence alone (invariant 8): a path is out of service when the
//! link says so, the transport breaks, the peer says so, or queries on it go unanswered while another path answers. Recovery
//! never gives up. Sources: MN-uDAPL §4.2.1 to §4.2.3 (error detection, retransmission on what is left, asynchronous
//! recovery, partitions), PML DR §3.3 (watchdogs; differs: they start a query, not a retransmission).

use crate::completion::CompletionError;
use crate::engine::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::{Health, HealthEvent};
use crate::path::{AckState, Channel, Evidence, OPEN_QUERIES_MAX, Proposal, Sent, WINDOW_START};
use crate::peer::{Gone, Query};
use crate::rate::Rate;
use crate::rendezvous::Item;
use crate::stream::{Payload, Phase, Reading, Stream};
use crate::transmit::path_patience;
use crate::types::*;
use rerail_wire::hello::{ACCEPT_BYTES, Accept, HELLO_BYTES, Hello};
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use std::net::SocketAddr;
use std::time::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A stream with bytes in flight and no acknowledgement for this long makes us ask.
pub(crate) const STREAM_PATIENCE: Duration = ms(10);
/// Interval of queries while something is late.
const QUERY_INTERVAL: Duration = ms(5);
/// Rounds after which queries become rarer: the peer is busy or partitioned, and haste helps nobody.
const QUERY_ROUNDS_FAST: u32 = 30;
/// Interval of queries after that.
const QUERY_INTERVAL_SLOW: Duration = ms(40);
/// A query without an answer for this long counts against its path, if another path answers.
const ANSWER_PATIENCE: Duration = ms(20);
/// Answers that are remembered: more than can be waiting for their patience at the quick interval.
const ANSWERS_KEPT: usize = 64;
/// Unanswered queries (and later answers on another path) that make a path suspect.
const DOUBT_QUERIES: usize = 2;
/// The same for out of service.
const FAIL_QUERIES: usize = 4;
/// A stream that makes no progress although the engine answers on its path is replaced after this long.
const STUCK_STREAM: Duration = ms(150);
/// The same when the peer was silent before: after an outage TCP sits in its back-off.
const STUCK_STREAM_AFTER_SILENCE: Duration = ms(40);
/// Silence that counts as an outage for that.
const SILENCE: Duration = ms(300);
/// Silence of a peer that we want something of, until it is called a partition.
const PARTITION: Duration = ms(1000);

/// After an absence nothing is judged for this long: what arrived meanwhile is drained first.
pub(crate) const GRACE: Duration = ms(25);

/// First interval between hellos, and the largest.
const HELLO_INTERVAL: (Duration, Duration) = (ms(20), ms(100));
/// How long one handshake is tried: the first, and later ones.
const HANDSHAKE: (Duration, Duration) = (ms(2000), ms(300));
/// Datagrams unanswered for this long: try the handshake over a stream as well.
const HANDSHAKE_STREAM: Duration = ms(150);
/// Waiting time between handshakes: the first, the largest; and the largest while no path works.
const RETRY: (Duration, Duration, Duration) = (ms(30), ms(300), ms(60));
/// How long a stream may take to connect and be accepted.
const STREAM_ATTEMPT: Duration = ms(250);
/// Waiting time between attempts at a stream: the first, the largest.
const STREAM_RETRY: (Duration, Duration) = (ms(20), ms(300));
/// The side that did not propose the epoch waits this long before it opens a stream itself.
const STREAM_SECOND: Duration = ms(300);
/// How long a stranger may take for its hello.
const STRANGER: Duration = ms(2000);
/// Strangers at one time; more are refused.
const STRANGERS_MAX: usize = 128;

/// Failures of a path within this time count as flapping (they are forgiven one by one).
pub(crate) const FLAP_WINDOW: Duration = Duration::from_secs(10);
/// Failures that are free.
const FLAPS_FREE: u32 = 6;
/// Hold-down for each further failure, and the largest.
const HOLD_DOWN: (Duration, Duration) = (ms(500), Duration::from_secs(10));
/// Answers in a new epoch until a path carries traffic again.
const PROBATION_ANSWERS: u32 = 3;

impl Engine {
    /// Something is wanted of a peer: connect what is not connected.
    pub(crate) fn want(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        if p.wanted || p.is_self {
            return;
        }
        p.wanted = true;
        p.heard_at = self.clock.now();
        for xi in 0..self.peers[pi].paths.len() {
            let x = &self.peers[pi].paths[xi];
            if x.health == Health::Idle && self.rails[x.rail.0 as usize].up {
                self.shift(pi, xi, HealthEvent::Connect);
                self.propose(pi, xi);
            }
        }
        let now = self.clock.now();
        self.schedule(pi, now + PARTITION);
    }

    // ---- rails -------------------------------------------------------------------------------------------------

    /// Something happened to a local rail.
    pub fn handle_rail(&mut self, rail: RailId, event: RailEvent, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        let Some(r) = self.rails.get_mut(rail.0 as usize) else { return };
        match event {
            RailEvent::Down => r.up = false,
            RailEvent::Up => r.up = true,
            RailEvent::SendError => {}
        }
        for pi in 0..self.peers.len() {
            for xi in 0..self.peers[pi].paths.len() {
                if self.peers[pi].paths[xi].rail != rail {
                    continue;
                }
                let to = self.peers[pi].paths[xi].remote.ip();
                match event {
                    // a peer on this very host is reached without the link
                    RailEvent::Down if self.rails.iter().any(|r| r.addr == to) => {}
                    RailEvent::Down => self.fail_path(pi, xi, Witness::Link, Direction::Both),
                    RailEvent::Up => {
                        let p = &mut self.peers[pi];
                        let all_down = !p.paths.iter().any(|x| x.health.carries());
                        let x = &mut p.paths[xi];
                        if p.gone.is_none() && matches!(x.health, Health::Down | Health::Idle) && p.wanted {
                            // at once on link-up, except for a rail that flaps
                            x.retry_at = Some(if all_down { now } else { now.max(x.hold_until) });
                            x.retry_interval = RETRY.0;
                            self.schedule(pi, now);
                        }
                    }
                    RailEvent::SendError => {
                        // the kernel may be mistaken for a moment: ask, and let the answer decide
                        let x = &self.peers[pi].paths[xi];
                        if x.health.connected() && self.peers[pi].query.is_none() {
                            self.peers[pi].query = Some(Query { next: now, rounds: 0 });
                            self.schedule(pi, now);
                        }
                    }
                }
            }
        }
    }

    // ---- handshake ---------------------------------------------------------------------------------------------

    /// Begins a handshake for a new epoch of a path.
    fn propose(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let nonce = self.rng.nonce();
        let agreed = self.remedies.agreed_epoch();
        let p = &mut self.peers[pi];
        let own_is_high = p.own_is_high;
        let x = &mut p.paths[xi];
        // planted: both sides may choose the same number
        let epoch = if agreed { x.next_epoch(own_is_high) } else { Epoch(x.epoch_max.0 + 1) };
        x.epoch_max = epoch;
        let first = x.health == Health::Connecting;
        x.proposal = Some(Proposal {
            epoch,
            nonce,
            next_send: now,
            interval: HELLO_INTERVAL.0,
            give_up: now + if first { HANDSHAKE.0 } else { HANDSHAKE.1 },
            begun: now,
            stream_tried: false,
        });
        x.half_open = None;
        self.send_hello(pi, xi);
    }

    fn hello_bytes(
        &self,
        pi: usize,
        xi: usize,
        epoch: Epoch,
        stream: u64,
        nonce: [u8; 16],
    ) -> [u8; HELLO_BYTES] {
        let p = &self.peers[pi];
        Hello { path: p.paths[xi].id.0, epoch: epoch.0, stream, nonce, from: self.address(EpId(0)) }
            .to_bytes(&p.address.token)
    }

    fn send_hello(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let Some(pr) = &self.peers[pi].paths[xi].proposal else { return };
        let (epoch, nonce) = (pr.epoch, pr.nonce);
        let bytes = self.hello_bytes(pi, xi, epoch, 0, nonce).to_vec();
        let x = &mut self.peers[pi].paths[xi];
        self.outbox.push_back(Datagram { rail: x.rail, to: x.remote, bytes });
        let pr = x.proposal.as_mut().expect("looked up above");
        pr.next_send = now + pr.interval;
        pr.interval = (pr.interval * 3 / 2).min(HELLO_INTERVAL.1);
        let at = pr.next_send.min(pr.give_up);
        self.schedule(pi, at);
    }

    /// A hello arrived, as a datagram or (with `stream`) as the first bytes of a stream.
    pub(crate) fn on_hello(
        &mut self,
        rail: RailId,
        from: SocketAddr,
        bytes: &[u8],
        stream: Option<StreamId>,
    ) -> bool {
        let Ok(h) = Hello::parse(bytes, &self.token) else {
            self.counters.strangers += 1;
            return false;
        };
        if h.from.token == self.token || (h.stream != 0) != stream.is_some() {
            self.counters.strangers += 1;
            return false;
        }
        let now = self.clock.now();
        let peer = self.peer_of(&h.from);
        let pi = peer.0 as usize;
        // one that said goodbye may come back to hear that it was heard; one that was declared dead may not (hazard H7)
        if self.peers[pi].gone == Some(Gone::Lost) {
            self.counters.replays += 1;
            return false;
        }
        // the rails that the path number names must exist on both sides, and ours must be the one it came on
        let (high, low) = ((h.path >> 8) as usize, (h.path & 0xff) as usize);
        let (own, remote) = if self.peers[pi].own_is_high { (low, high) } else { (high, low) };
        if own != rail.0 as usize || remote >= self.peers[pi].address.rails.len() {
            self.counters.strangers += 1;
            return false;
        }
        let xi = match self.peers[pi].path_index(PathId(h.path)) {
            Some(i) => i,
            None if self.peers[pi].paths.len() < 16 => {
                let path = self.new_path(&self.peers[pi], own, remote);
                self.peers[pi].paths.push(path);
                self.peers[pi].paths.len() - 1
            }
            None => {
                self.counters.strangers += 1;
                return false;
            }
        };
        if !self.peers[pi].wanted {
            // a peer that connects wants all its paths; ours begin as well, the larger epoch wins
            self.want(pi);
        }
        let _ = from;
        let epoch = Epoch(h.epoch);
        let x = &self.peers[pi].paths[xi];
        let current = x.health.connected() && x.epoch == epoch;
        let repeated = current || x.half_open == Some(epoch);
        if !repeated && epoch <= x.epoch_max && self.remedies.agreed_epoch() {
            // outdated, or smaller than what we propose ourselves: say what to go above, change nothing
            self.counters.replays += 1;
            if stream.is_none() && x.proposal.is_none() {
                self.send_accept(pi, xi, x.epoch_max, &h);
            }
            return false;
        }
        if !repeated {
            if x.health.connected() {
                // the peer has given the old epoch up
                self.fail_path(pi, xi, Witness::NewEpoch, Direction::Unknown);
            }
            let x = &mut self.peers[pi].paths[xi];
            x.epoch_max = x.epoch_max.max(epoch);
            x.proposal = None;
            x.half_open = Some(epoch);
            if !self.remedies.agreed_epoch() {
                self.agree(pi, xi, epoch);
            }
        }
        match stream {
            None => self.send_accept(pi, xi, epoch, &h),
            Some(sid) => {
                if h.stream <= self.peers[pi].paths[xi].stream_number && current {
                    self.counters.replays += 1;
                    return false;
                }
                if self.peers[pi].paths[xi].half_open == Some(epoch) {
                    // a stream in the epoch that we accepted is a sign of life in it
                    self.agree(pi, xi, epoch);
                }
                let accept = Accept { path: h.path, epoch: epoch.0, stream: h.stream, nonce: h.nonce };
                let bytes = accept.to_bytes(&self.peers[pi].keys).to_vec();
                let s = self.streams.get_mut(&sid).expect("it has just said hello");
                s.preamble = bytes;
                s.preamble_written = 0;
                s.number = h.stream;
                s.peer = Some((peer, PathId(h.path)));
                self.attach(pi, xi, sid);
            }
        }
        self.schedule(pi, now + ms(1));
        true
    }

    fn send_accept(&mut self, pi: usize, xi: usize, epoch: Epoch, h: &Hello) {
        let p = &self.peers[pi];
        let a = Accept { path: h.path, epoch: epoch.0, stream: 0, nonce: h.nonce };
        let x = &p.paths[xi];
        self.outbox.push_back(Datagram { rail: x.rail, to: x.remote, bytes: a.to_bytes(&p.keys).to_vec() });
    }

    /// The answer to our hello arrived as a datagram.
    pub(crate) fn on_accept(&mut self, pi: usize, rail: RailId, bytes: &[u8]) {
        let Ok(a) = Accept::parse(bytes, &self.peers[pi].keys) else {
            self.counters.strangers += 1;
            return;
        };
        let Some(xi) = self.peers[pi].path_index(PathId(a.path)) else { return };
        let x = &mut self.peers[pi].paths[xi];
        let Some(pr) = &x.proposal else { return };
        if pr.nonce != a.nonce || x.rail != rail {
            self.counters.replays += 1;
            return;
        }
        let epoch = Epoch(a.epoch);
        if epoch == pr.epoch {
            self.agree(pi, xi, epoch);
            self.peers[pi].paths[xi].datagrams_work = true;
            self.heard(pi, xi);
            // something in the new epoch, so that the other side learns that its answer arrived
            self.ping(pi, xi);
        } else if epoch > x.epoch_max {
            x.epoch_max = epoch;
            self.propose(pi, xi);
        } else if epoch == x.epoch_max && epoch > pr.epoch {
            self.propose(pi, xi);
        }
    }

    /// Both sides have answered in an epoch: it begins.
    pub(crate) fn agree(&mut self, pi: usize, xi: usize, epoch: Epoch) {
        let now = self.clock.now();
        if self.peers[pi].paths[xi].health.connected() {
            self.fail_path(pi, xi, Witness::NewEpoch, Direction::Unknown);
        }
        if self.peers[pi].paths[xi].health == Health::Draining {
            // the old streams cannot touch memory from here on: their windows are closed
            self.fence(pi, xi, true);
        }
        let mbps = {
            let x = &self.peers[pi].paths[xi];
            self.rails[x.rail.0 as usize].speed_mbps
        };
        let x = &mut self.peers[pi].paths[xi];
        x.epoch = epoch;
        x.epoch_max = x.epoch_max.max(epoch);
        x.half_open = None;
        x.proposal = None;
        x.retry_at = None;
        x.tries = 0;
        x.retry_interval = Duration::ZERO;
        x.number_next = 0;
        x.inflight.clear();
        x.window = WINDOW_START;
        x.window_cut_at = 0;
        x.rx = AckState::default();
        x.stream_rx = AckState::default();
        x.stream = None;
        x.stream_number = 0;
        x.evidence = Evidence { heard_at: Some(now), ..Evidence::default() };
        x.datagrams_work = false;
        x.next_probe = now;
        x.rate = Rate::nominal(mbps);
        x.stream_retry_interval = Duration::ZERO;
        let first = (epoch.0 & 1 == 1) == self.peers[pi].own_is_high;
        let x = &mut self.peers[pi].paths[xi];
        x.stream_retry_at = Some(if first { now } else { now + STREAM_SECOND });
        if !self.shift(pi, xi, HealthEvent::Agreed) {
            // Recovering is the only state left that a peer can interrupt; the table covers all others
            debug_assert!(self.peers[pi].paths[xi].health.connected(), "an agreed path is connected");
        }
        if !self.peers[pi].config_sent {
            self.peers[pi].config_sent = true;
            self.peers[pi].control.push_back(Item::Config);
        }
        if self.peers[pi].paths[xi].health == Health::Up {
            self.path_up(pi, xi);
        }
        self.schedule(pi, now);
        self.mark(PeerId(pi as u32));
    }

    fn path_up(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        self.counters.paths_up += 1;
        let x = &mut self.peers[pi].paths[xi];
        x.ever_up = true;
        let outage = x.failed_at.take().map_or(Duration::ZERO, |t| now.since(t));
        self.event(EventKind::PathUp { outage }, pi, Some(xi));
        self.choose_primary(pi);
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
    }

    /// Primary path: lowest latency, and among equals spread by process, so that a node's ranks use all its rails.
    pub(crate) fn choose_primary(&mut self, pi: usize) {
        let spread = u16::from_le_bytes([self.token.0[0], self.token.0[1]]) as usize;
        let p = &mut self.peers[pi];
        let up: Vec<usize> = (0..p.paths.len()).filter(|&i| p.paths[i].health == Health::Up).collect();
        let measured = |i: usize| p.paths[i].rtt.min().unwrap_or(Duration::ZERO);
        let Some(best) = up.iter().map(|&i| measured(i)).min() else {
            p.primary = None;
            return;
        };
        let near: Vec<usize> =
            up.into_iter().filter(|&i| measured(i) <= best * 2 + Duration::from_micros(50)).collect();
        p.primary = Some(near[spread % near.len()]);
    }

    // ---- streams -----------------------------------------------------------------------------------------------

    fn open_stream(&mut self, pi: usize, xi: usize, epoch: Epoch) {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        // numbers of a side have its parity, so that two streams never have the same
        let number = (x.stream_number | 1) + 1 + u64::from(p.own_is_high);
        let (rail, to) = (x.rail, x.remote);
        let id = x.id;
        let nonce = self.rng.nonce();
        let mut s = Stream::new(rail, to, true, now);
        s.peer = Some((PeerId(pi as u32), id));
        s.number = number;
        s.nonce = nonce;
        s.deadline = Some(now + STREAM_ATTEMPT);
        s.preamble = self.hello_bytes(pi, xi, epoch, number, nonce).to_vec();
        let sid = self.new_stream(s);
        self.peers[pi].paths[xi].attempts.push(sid);
        self.actions.push_back(Action::OpenStream { stream: sid, rail, to });
        self.schedule(pi, now + STREAM_ATTEMPT);
    }

    /// A stream that we opened is connected.
    pub fn stream_connected(&mut self, stream: StreamId, now: Time) {
        self.tick(now);
        if let Some(s) = self.streams.get_mut(&stream) {
            if s.phase == Phase::Connecting {
                s.phase = Phase::HelloSent;
                self.mark_stream(stream);
            }
        }
    }

    /// A connection came in on the listener, at the local address of `rail`.
    pub fn stream_accepted(&mut self, rail: RailId, from: SocketAddr, now: Time) -> StreamId {
        self.tick(now);
        let now = self.clock.now();
        let id = self.new_stream(Stream::new(rail, from, false, now));
        self.strangers.push_back((now + STRANGER, id));
        if self.strangers.len() > STRANGERS_MAX {
            let (_, oldest) = self.strangers.pop_front().expect("it is not empty");
            self.counters.strangers += 1;
            self.close_stream(oldest);
        }
        id
    }

    /// Asks the world to close a stream; nothing is read or written from now on.
    pub(crate) fn close_stream(&mut self, stream: StreamId) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        if s.phase == Phase::Closing {
            return;
        }
        s.phase = Phase::Closing;
        s.tx.clear();
        s.records.clear();
        s.bytes_in_flight = 0;
        if let Some((peer, path)) = s.peer {
            let p = &mut self.peers[peer.0 as usize];
            if let Some(x) = p.paths.iter_mut().find(|x| x.id == path) {
                x.attempts.retain(|a| *a != stream);
                if x.stream == Some(stream) {
                    x.stream = None;
                }
                x.draining.push(stream);
            }
        }
        self.actions.push_back(Action::CloseStream { stream });
    }

    /// A stream ended: the confirmation of [`Action::CloseStream`], a failed connect, a reset, the end of the stream.
    pub fn stream_closed(&mut self, stream: StreamId, reason: CloseReason, now: Time) {
        self.tick(now);
        let Some(s) = self.streams.get(&stream) else { return };
        let phase = s.phase;
        let bound = s.peer;
        let _ = reason;
        if phase == Phase::Attached {
            self.fail_stream(stream, Witness::Transport, false);
        }
        self.streams.remove(&stream);
        self.strangers.retain(|x| x.1 != stream);
        let Some((peer, path)) = bound else { return };
        let pi = peer.0 as usize;
        let Some(xi) = self.peers[pi].path_index(path) else { return };
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if x.attempts.contains(&stream) {
            x.attempts.retain(|a| *a != stream);
            x.stream_retry_interval = (x.stream_retry_interval * 2).clamp(STREAM_RETRY.0, STREAM_RETRY.1);
            let at = now + x.stream_retry_interval;
            x.stream_retry_at = Some(at);
            self.schedule(pi, at);
        }
        let x = &mut self.peers[pi].paths[xi];
        x.draining.retain(|a| *a != stream);
        if x.draining.is_empty() && x.health == Health::Draining {
            self.fence(pi, xi, false);
        }
    }

    /// Hello or accept at the start of a stream. False: wait for more, or the stream is finished with.
    pub(crate) fn read_handshake(&mut self, stream: StreamId) -> bool {
        let s = self.streams.get_mut(&stream).expect("the caller has looked it up");
        let need = if s.opened_by_us { ACCEPT_BYTES } else { HELLO_BYTES };
        if s.end - s.start < need {
            return false;
        }
        let bytes = s.buf[s.start..s.start + need].to_vec();
        s.start += need;
        if s.opened_by_us {
            let (peer, path) = s.peer.expect("we know whom we called");
            let (number, nonce) = (s.number, s.nonce);
            let pi = peer.0 as usize;
            let accepted = Accept::parse(&bytes, &self.peers[pi].keys)
                .is_ok_and(|a| a.nonce == nonce && a.stream == number && PathId(a.path) == path);
            let Some(xi) = self.peers[pi].path_index(path) else { return false };
            if !accepted {
                self.counters.strangers += 1;
                self.close_stream(stream);
                return false;
            }
            let a = Accept::parse(&bytes, &self.peers[pi].keys).expect("parsed above");
            let x = &self.peers[pi].paths[xi];
            if x.proposal.as_ref().is_some_and(|p| p.epoch == Epoch(a.epoch)) {
                // datagrams go unanswered: the epoch was agreed over this stream
                self.agree(pi, xi, Epoch(a.epoch));
            }
            let x = &mut self.peers[pi].paths[xi];
            x.attempts.retain(|i| *i != stream);
            if x.epoch != Epoch(a.epoch) || !x.health.connected() || number < x.stream_number {
                self.close_stream(stream);
                return false;
            }
            self.heard(pi, xi);
            self.attach(pi, xi, stream);
            return true;
        }
        let (rail, from) = (s.rail, s.from);
        let known = self.on_hello(rail, from, &bytes, Some(stream));
        if !known {
            self.close_stream(stream);
            self.strangers.retain(|x| x.1 != stream);
        }
        known
    }

    /// A stream belongs to a path now; an older one of the path is given up.
    fn attach(&mut self, pi: usize, xi: usize, stream: StreamId) {
        let now = self.clock.now();
        self.strangers.retain(|x| x.1 != stream);
        if let Some(old) = self.peers[pi].paths[xi].stream {
            self.drop_stream(old);
        }
        let x = &mut self.peers[pi].paths[xi];
        let s = self.streams.get_mut(&stream).expect("the caller has it");
        s.phase = Phase::Attached;
        s.reading = Reading::Header;
        s.deadline = None;
        s.progress_at = now;
        s.written_at = now;
        x.stream = Some(stream);
        x.stream_number = s.number;
        x.stream_retry_at = None;
        x.stream_retry_interval = Duration::ZERO;
        // what the old stream received was acknowledged or will come again
        x.stream_rx = AckState::default();
        x.rate.pause();
        self.peers[pi].streamless_since = None;
        self.mark_stream(stream);
        self.mark_streams(PeerId(pi as u32));
    }

    /// Takes everything out of a stream that must still arrive, revokes its leases, and closes it.
    fn drop_stream(&mut self, stream: StreamId) -> u64 {
        let Some(s) = self.streams.get_mut(&stream) else { return 0 };
        let Some((peer, _)) = s.peer else {
            self.close_stream(stream);
            return 0;
        };
        let pi = peer.0 as usize;
        let records: Vec<Sent> = s.records.drain(..).collect();
        let frames: Vec<_> = s.tx.drain(..).collect();
        s.bytes_in_flight = 0;
        let mut bytes = 0;
        for r in &records {
            bytes += self.requeue(pi, r);
        }
        for f in frames {
            if let Some(i) = f.item {
                if !matches!(f.payload, Payload::Owned(_)) || f.written > 0 {
                    bytes += self.requeue_item(pi, i, f.hedged);
                } else {
                    self.requeue_item(pi, i, f.hedged);
                }
            }
        }
        for m in self.peers[pi].rx.values_mut() {
            if let Some(r) = &mut m.receiving {
                r.leases.retain(|l| l.stream != stream);
            }
        }
        self.close_stream(stream);
        self.mark(peer);
        self.mark_streams(peer);
        bytes
    }

    /// A stream is of no use any more, the path may be.
    pub(crate) fn fail_stream(&mut self, stream: StreamId, witness: Witness, close: bool) {
        let Some(s) = self.streams.get(&stream) else { return };
        let Some((peer, path)) = s.peer else {
            if close {
                self.close_stream(stream);
            }
            return;
        };
        let now = self.clock.now();
        let pi = peer.0 as usize;
        let resent_bytes = self.drop_stream(stream);
        if !close {
            // it is gone already: no need to ask for it
            self.actions.retain(|a| *a != Action::CloseStream { stream });
        }
        let Some(xi) = self.peers[pi].path_index(path) else { return };
        self.counters.streams_replaced += 1;
        // one side opens the next, so that the two do not replace each other's
        let own_is_high = self.peers[pi].own_is_high;
        let x = &mut self.peers[pi].paths[xi];
        let first = (x.epoch.0 & 1 == 1) == own_is_high;
        let wait = if first { x.stream_retry_interval } else { STREAM_SECOND };
        x.stream_retry_at = Some(now + wait);
        if self.peers[pi].gone.is_none() {
            self.event(EventKind::StreamReplaced { witness, resent_bytes }, pi, Some(xi));
        }
        self.schedule(pi, now);
    }

    // ---- failover ----------------------------------------------------------------------------------------------

    /// Puts what a lost record carried back into the queues; returns the bytes.
    pub(crate) fn requeue(&mut self, pi: usize, s: &Sent) -> u64 {
        if s.hedged {
            // a copy is under way on another path already
            let lost = s.items.as_slice().iter().any(|i| self.peers[pi].needs(i) && !self.hedge_alive(pi, i));
            if !lost {
                return 0;
            }
        }
        let mut bytes = 0;
        for i in s.items.as_slice() {
            bytes += self.requeue_item(pi, *i, s.hedged);
        }
        bytes
    }

    /// Whether an item waits or travels elsewhere.
    fn hedge_alive(&self, pi: usize, item: &Item) -> bool {
        let p = &self.peers[pi];
        p.resend_bulk.iter().any(|(i, _)| i == item)
            || p.resend.contains(item)
            || p.paths.iter().filter(|x| x.health == Health::Up).any(|x| {
                x.inflight.iter().any(|s| s.items.as_slice().contains(item))
                    || x.stream.is_some_and(|s| {
                        let s = &self.streams[&s];
                        s.records.iter().any(|r| r.items.as_slice().contains(item))
                            || s.tx.iter().any(|f| f.item.as_ref() == Some(item))
                    })
            })
    }

    fn requeue_item(&mut self, pi: usize, item: Item, hedged: bool) -> u64 {
        let p = &mut self.peers[pi];
        if !p.needs(&item) {
            return 0;
        }
        let small_max = crate::engine::small_bytes_max(p);
        let len = match item {
            Item::Frag { len, .. } => {
                p.resend_bulk.push_back((item, hedged));
                u64::from(len)
            }
            Item::Eager { seq } => {
                let len = p.tx[&seq].total;
                if len as usize <= small_max {
                    p.resend.push_back(item);
                } else {
                    p.resend_bulk.push_back((item, hedged));
                }
                len
            }
            Item::Rts { .. } => {
                p.resend.push_back(item);
                0
            }
            _ => {
                if item == Item::Goodbye {
                    p.goodbye_at = None;
                }
                p.control.push_back(item);
                0
            }
        };
        self.counters.bytes_resent += len;
        len
    }

    /// A path is out of service.
    pub(crate) fn fail_path(&mut self, pi: usize, xi: usize, witness: Witness, direction: Direction) {
        let now = self.clock.now();
        let x = &self.peers[pi].paths[xi];
        let before = x.health;
        match before {
            Health::Connecting | Health::Recovering => {
                let x = &mut self.peers[pi].paths[xi];
                x.proposal = None;
                let attempts = x.attempts.clone();
                for a in attempts {
                    self.close_stream(a);
                }
                self.shift(pi, xi, HealthEvent::Fail);
                self.fence_attempts(pi, xi);
                self.retry_later(pi, xi);
                return;
            }
            Health::Idle | Health::Down | Health::Draining => return,
            Health::Up | Health::Suspect | Health::Probation | Health::Standby => {}
        }
        let heard = x.evidence.heard_at;
        let streams: Vec<StreamId> = x.attempts.iter().copied().chain(x.stream).collect();
        let records: Vec<Sent> = self.peers[pi].paths[xi].inflight.drain(..).collect();
        // ghosts: an acknowledgement that comes late over another path still counts
        let epoch = self.peers[pi].paths[xi].epoch;
        self.peers[pi].paths[xi].ghosts.clear();
        for r in &records {
            self.peers[pi].paths[xi].ghosts.insert((epoch, Channel::Datagram, 0, r.number), r.items.clone());
        }
        let stream_number = self.peers[pi].paths[xi].stream_number as u16;
        if let Some(s) = self.peers[pi].paths[xi].stream {
            for r in &self.streams[&s].records {
                let key = (epoch, Channel::Stream, stream_number, r.number);
                self.peers[pi].paths[xi].ghosts.insert(key, r.items.clone());
            }
        }
        self.shift(pi, xi, HealthEvent::Fail);
        let mut resent_bytes = 0;
        for r in &records {
            resent_bytes += self.requeue(pi, r);
        }
        for s in streams {
            resent_bytes += self.drop_stream(s);
        }
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        x.half_open = None;
        x.datagrams_work = false;
        x.evidence.open.clear();
        // the last news of the old epoch go over the paths that are left
        let (mut d, mut s) = (std::mem::take(&mut x.rx), std::mem::take(&mut x.stream_rx));
        for a in [&mut d, &mut s] {
            a.due = (a.received.max().is_some()).then_some(now);
        }
        x.old_rx = Some((epoch, d, s, stream_number));
        for m in p.rx.values_mut() {
            if let Some(r) = &mut m.receiving {
                r.dirty = (0..r.masks.len() as u32).filter(|&v| r.masks[v as usize] != 0).collect();
            }
        }
        if before != Health::Probation {
            x.failed_at = Some(now);
            self.counters.paths_down += 1;
            if now.since(x.flap_at) < FLAP_WINDOW {
                x.flaps += 1;
            } else {
                x.flaps =
                    x.flaps.saturating_sub((now.since(x.flap_at).as_secs() / FLAP_WINDOW.as_secs()) as u32);
            }
            x.flap_at = now;
            if x.flaps > FLAPS_FREE {
                x.hold_until = now + (HOLD_DOWN.0 * (x.flaps - FLAPS_FREE)).min(HOLD_DOWN.1);
            }
        }
        let gone = p.gone.is_some();
        if self.remedies.shared_verdicts() && !gone && !matches!(witness, Witness::Peer | Witness::NewEpoch) {
            let path = x.id;
            p.control.push_back(Item::Verdict { path, epoch, witness });
        }
        if !gone && before != Health::Probation {
            let stalled = heard.map_or(Duration::ZERO, |h| now.since(h));
            self.event(EventKind::PathDown { witness, direction, resent_bytes, stalled }, pi, Some(xi));
        }
        self.choose_primary(pi);
        self.retry_later(pi, xi);
        let p = &mut self.peers[pi];
        if !p.paths.iter().any(|x| x.health.carries()) {
            // the last one broke: the others are tried at once, whatever was held against them
            for x in p.paths.iter_mut().filter(|x| x.health == Health::Down) {
                x.retry_at = x.retry_at.map(|t| t.min(now + RETRY.2));
                x.retry_interval = RETRY.0;
            }
        }
        if self.peers[pi].paths[xi].draining.is_empty() {
            self.fence(pi, xi, false);
        }
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
    }

    /// Attempts of a handshake that failed need no fence: they never carried anything.
    fn fence_attempts(&mut self, pi: usize, xi: usize) {
        self.peers[pi].paths[xi].draining.clear();
    }

    /// Nothing of the old epoch can touch memory any more.
    fn fence(&mut self, pi: usize, xi: usize, by_windows: bool) {
        if by_windows {
            self.peers[pi].paths[xi].draining.clear();
        }
        self.shift(pi, xi, HealthEvent::Fenced);
        let now = self.clock.now();
        // the link may have come back while the old streams were being closed
        let x = &self.peers[pi].paths[xi];
        if x.health == Health::Down && x.retry_at.is_none() && self.rails[x.rail.0 as usize].up {
            self.retry_later(pi, xi);
        }
        self.schedule(pi, now);
    }

    fn retry_later(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let all_down = !self.peers[pi].paths.iter().any(|x| x.health.carries());
        let jitter = self.rng.below(1000);
        let up = {
            let x = &self.peers[pi].paths[xi];
            self.rails[x.rail.0 as usize].up
        };
        let p = &mut self.peers[pi];
        if p.gone.is_some() {
            p.paths[xi].retry_at = None;
            return;
        }
        let x = &mut p.paths[xi];
        let most = if all_down { RETRY.2 } else { RETRY.1 };
        x.retry_interval = (x.retry_interval * 2).clamp(RETRY.0, most);
        let wait = x.retry_interval + x.retry_interval * jitter as u32 / 4000;
        // a rail that is known to be down waits for its link
        // flapping or not: while nothing else works it is tried
        let hold = if all_down { now } else { x.hold_until };
        x.retry_at = up.then(|| (now + wait).max(hold));
        if let Some(at) = x.retry_at {
            self.schedule(pi, at);
        }
    }

    // ---- queries -----------------------------------------------------------------------------------------------

    /// Asks on one path.
    fn ping(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        self.counters.pings += 1;
        let p = &mut self.peers[pi];
        let id = p.ping_next;
        p.ping_next += 1;
        let cid = p.keys.cid_out;
        let x = &mut p.paths[xi];
        if x.evidence.open.len() == OPEN_QUERIES_MAX {
            // the oldest stays: it says since when there is no answer
            x.evidence.open.remove(1);
        }
        x.evidence.open.push_back((id, now));
        let mut bytes = vec![0; PACKET_HEADER_BYTES];
        PacketHeader {
            cid,
            kind: PacketKind::Ping,
            path: x.id.0,
            epoch: x.epoch.0,
            number: id,
            flags: 0,
            entries: 0,
        }
        .seal(&mut bytes);
        self.outbox.push_back(Datagram { rail: x.rail, to: x.remote, bytes });
        let silent = x.evidence.open.front().is_some_and(|o| now.since(o.1) > ms(500));
        if let (Some(sid), true) = (x.stream, !x.datagrams_work || silent) {
            self.stream_ping(sid, id);
        }
        self.schedule(pi, now + ANSWER_PATIENCE);
    }

    /// An answer. `bypass`: given without the engine.
    pub(crate) fn on_pong(&mut self, pi: usize, xi: usize, id: u64, bypass: bool) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let x = &mut p.paths[xi];
        let Some(k) = x.evidence.open.iter().position(|o| o.0 == id) else { return };
        let sent_at = x.evidence.open[k].1;
        // older queries may still be answered, but the path works now
        x.evidence.open.drain(..=k);
        x.evidence.answered_sent_at = Some(sent_at);
        x.evidence.answers += 1;
        x.rtt.sample(now.since(sent_at));
        let number_of_answers = x.evidence.answers;
        x.evidence.recent.push_back((sent_at, now));
        if x.evidence.recent.len() > ANSWERS_KEPT {
            x.evidence.recent.pop_front();
        }
        if !bypass {
            x.evidence.engine_answers += 1;
            p.engine_heard_at = now;
            // the engine acknowledges before it answers: what it should have seen by then and did not is lost
            let mut lost = Vec::new();
            while x.inflight.front().is_some_and(|s| s.at < sent_at) {
                lost.extend(x.inflight.pop_front());
            }
            if !lost.is_empty() {
                self.counters.datagrams_lost += lost.len() as u64;
                for s in &lost {
                    self.requeue(pi, s);
                }
                self.mark(PeerId(pi as u32));
            }
            self.replace_stuck_stream(pi, xi, sent_at);
        }
        if self.peers[pi].paths[xi].health == Health::Suspect
            && self.peers[pi].paths[xi].evidence.open.is_empty()
        {
            self.clear(pi, xi);
        }
        if self.peers[pi].paths[xi].health == Health::Probation && number_of_answers >= PROBATION_ANSWERS {
            self.shift(pi, xi, HealthEvent::Proven);
            self.path_up(pi, xi);
        }
        // judged when everything that arrived has been seen, not between two answers (hazard H12)
        self.schedule(pi, now);
    }

    fn clear(&mut self, pi: usize, xi: usize) {
        self.shift(pi, xi, HealthEvent::Clear);
        self.event(EventKind::PathCleared, pi, Some(xi));
        self.choose_primary(pi);
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
    }

    /// The engine answers on this path, and its stream stands still: TCP sits in its back-off, or the connection is dead
    /// without a word.
    fn replace_stuck_stream(&mut self, pi: usize, xi: usize, asked_at: Time) {
        let now = self.clock.now();
        let p = &self.peers[pi];
        let x = &p.paths[xi];
        let Some(sid) = x.stream else { return };
        let s = &self.streams[&sid];
        let waits = s.bytes_in_flight > 0 || (s.tx_full && !s.tx.is_empty());
        let progress = s.progress_at.max(s.written_at.min(s.progress_at + ms(1)));
        if !waits || progress >= asked_at {
            return;
        }
        let after_silence = p.last_silence > SILENCE
            && now.since(p.last_silence_end) < Duration::from_secs(2)
            && progress < p.last_silence_end;
        let patience = if after_silence { STUCK_STREAM_AFTER_SILENCE } else { STUCK_STREAM };
        let slow = Duration::from_secs_f64((4.0 * 65536.0 / x.rate.get()).min(10.0));
        let since = progress.max(if after_silence { p.last_silence_end } else { progress });
        if now.since(since) > patience.max(slow) && x.evidence.engine_answers >= 2 {
            self.fail_stream(sid, Witness::Query, true);
        }
    }

    /// Weighs the evidence against every path of a peer.
    fn judge(&mut self, pi: usize) {
        let now = self.clock.now();
        if self.absent_until.is_some_and(|t| now < t) {
            // we were away: first what arrived meanwhile is drained (hazard H12)
            return;
        }
        let differential = self.remedies.differential_query();
        for xi in 0..self.peers[pi].paths.len() {
            let p = &self.peers[pi];
            let x = &p.paths[xi];
            if !x.health.connected() {
                continue;
            }
            let Some(&(first_id, first_at)) = x.evidence.open.front() else { continue };
            let patience = x.rtt.patience(ANSWER_PATIENCE);
            let unanswered = x.evidence.open.iter().filter(|o| now.since(o.1) >= patience).count();
            let others = p
                .paths
                .iter()
                .enumerate()
                .filter(|(i, o)| *i != xi && o.health.connected())
                .map(|(_, o)| {
                    // a peer that was away answers everything at once, and not on all paths in the same microsecond: an
                    // answer counts when this path had time to bring its own
                    let counts =
                        |&&(sent, came): &&(Time, Time)| sent >= first_at && now.since(came) >= patience;
                    o.evidence.recent.iter().filter(counts).count()
                })
                .max()
                .unwrap_or(0);
            let proof = if differential { unanswered.min(others) } else { unanswered };
            // frames of its own stream get through: the network is full of our own bulk, or only datagrams are blocked
            let stream_works = differential
                && x.stream.and_then(|s| self.streams[&s].acked_at).is_some_and(|t| t > first_at + patience);
            if proof >= FAIL_QUERIES && !stream_works {
                let heard = x.evidence.heard_at.is_some_and(|h| h > first_at + patience);
                let direction = match (heard, x.evidence.peer_heard >= first_id) {
                    (true, _) => Direction::Out,
                    (false, true) => Direction::In,
                    (false, false) => Direction::Both,
                };
                self.fail_path(pi, xi, Witness::Query, direction);
            } else if proof >= DOUBT_QUERIES
                && matches!(x.health, Health::Up | Health::Standby)
                && self.shift(pi, xi, HealthEvent::Doubt)
            {
                self.event(EventKind::PathSuspect, pi, Some(xi));
                self.choose_primary(pi);
                self.hedge(pi, xi);
            }
        }
    }

    /// Sends a second time, on the other paths and within the budget, what a suspected path has not delivered.
    fn hedge(&mut self, pi: usize, xi: usize) {
        let percent = u64::from(self.options.hedge_percent);
        let p = &self.peers[pi];
        let mut budget = (p.bytes_sent * percent / 100 + 1_048_576).saturating_sub(p.bytes_hedged);
        if percent == 0 || !p.paths.iter().any(|x| x.health == Health::Up) {
            return;
        }
        let mut copies = Vec::new();
        let p = &mut self.peers[pi];
        let sid = p.paths[xi].stream;
        let datagrams = p.paths[xi].inflight.iter_mut();
        let frames = sid.and_then(|s| self.streams.get_mut(&s)).map(|s| s.records.iter_mut());
        for r in datagrams.chain(frames.into_iter().flatten()) {
            if r.hedged || u64::from(r.bytes) > budget {
                continue;
            }
            budget -= u64::from(r.bytes);
            r.hedged = true;
            copies.extend_from_slice(r.items.as_slice());
        }
        // frames that were cut and not begun simply go elsewhere; the half-written one is copied
        let mut moved = Vec::new();
        if let Some(s) = sid.and_then(|s| self.streams.get_mut(&s)) {
            s.tx.retain_mut(|f| {
                let Some(item) = f.item else { return true };
                if f.written == 0 {
                    moved.push((item, f.hedged));
                    return false;
                }
                if !f.hedged && f.len as u64 <= budget {
                    f.hedged = true;
                    copies.push(item);
                }
                true
            });
        }
        for (i, hedged) in moved {
            self.requeue_item(pi, i, hedged);
        }
        let mut bytes = 0;
        for i in copies {
            bytes += self.requeue_item(pi, i, true);
        }
        self.peers[pi].bytes_hedged += bytes;
        self.counters.bytes_hedged += bytes;
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
    }

    // ---- timers ------------------------------------------------------------------------------------------------

    /// To be called at [`Engine::poll_timeout`] or earlier, and after every batch of input.
    pub fn handle_timeout(&mut self, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        while self.strangers.front().is_some_and(|s| s.0 <= now) {
            let (_, id) = self.strangers.pop_front().expect("there is a front");
            self.counters.strangers += 1;
            self.close_stream(id);
        }
        while let Some(&(at, peer)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            self.peers[peer.0 as usize].timer = None;
            self.peer_timer(peer.0 as usize);
        }
    }

    fn peer_timer(&mut self, pi: usize) {
        let now = self.clock.now();
        if self.peers[pi].is_self || self.peers[pi].gone == Some(Gone::Lost) {
            return;
        }
        let mut next = Time(u64::MAX);
        let mut acks = false;
        for x in &self.peers[pi].paths {
            let old = x.old_rx.iter().flat_map(|(_, a, b, _)| [a.due, b.due]);
            for d in [x.rx.due, x.stream_rx.due].into_iter().chain(old).flatten() {
                if d <= now {
                    acks = true;
                } else {
                    next = next.min(d);
                }
            }
        }
        if acks || !self.peers[pi].control.is_empty() {
            self.mark(PeerId(pi as u32));
        }
        if self.peers[pi].gone.is_some() {
            if next.0 < u64::MAX {
                self.schedule(pi, next);
            }
            return;
        }
        for xi in 0..self.peers[pi].paths.len() {
            next = next.min(self.handshake_timer(pi, xi));
            next = next.min(self.stream_timer(pi, xi));
        }
        self.judge(pi);
        next = next.min(self.query_timer(pi));
        next = next.min(self.partition_timer(pi));
        if self.peers[pi].streamless_since.is_some() {
            self.mark(PeerId(pi as u32));
        }
        if next.0 < u64::MAX {
            self.schedule(pi, next.max(now + Duration::from_micros(100)));
        }
    }

    fn handshake_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if let Some(pr) = &mut x.proposal {
            if now >= pr.give_up {
                x.proposal = None;
                let attempts = x.attempts.clone();
                for a in attempts {
                    self.close_stream(a);
                }
                self.shift(pi, xi, HealthEvent::GiveUp);
                self.fence_attempts(pi, xi);
                self.retry_later(pi, xi);
            } else {
                let stream_due = pr.begun + HANDSHAKE_STREAM;
                let (send, epoch) = (now >= pr.next_send, pr.epoch);
                if !pr.stream_tried && now >= stream_due {
                    pr.stream_tried = true;
                    self.open_stream(pi, xi, epoch);
                }
                if send {
                    self.send_hello(pi, xi);
                }
                let pr = self.peers[pi].paths[xi].proposal.as_ref().expect("it is not given up");
                let at = if pr.stream_tried { pr.next_send } else { pr.next_send.min(stream_due) };
                return at.min(pr.give_up);
            }
        }
        let x = &self.peers[pi].paths[xi];
        match (x.health, x.retry_at) {
            (Health::Down, Some(at)) if now >= at => {
                self.peers[pi].paths[xi].retry_at = None;
                self.shift(pi, xi, HealthEvent::Connect);
                self.propose(pi, xi);
                now + HELLO_INTERVAL.0
            }
            (Health::Idle, Some(at)) if now >= at => {
                self.peers[pi].paths[xi].retry_at = None;
                self.shift(pi, xi, HealthEvent::Connect);
                self.propose(pi, xi);
                now + HELLO_INTERVAL.0
            }
            (Health::Down | Health::Idle, Some(at)) => at,
            _ => Time(u64::MAX),
        }
    }

    fn stream_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        let mut next = Time(u64::MAX);
        let attempts = self.peers[pi].paths[xi].attempts.clone();
        for a in attempts {
            let Some(s) = self.streams.get(&a) else { continue };
            let Some(d) = s.deadline else { continue };
            if now >= d {
                self.close_stream(a);
                let x = &mut self.peers[pi].paths[xi];
                x.stream_retry_interval = (x.stream_retry_interval * 2).clamp(STREAM_RETRY.0, STREAM_RETRY.1);
                x.stream_retry_at = Some(now + x.stream_retry_interval);
            } else {
                next = next.min(d);
            }
        }
        let x = &self.peers[pi].paths[xi];
        if x.health.connected() && x.stream.is_none() && x.attempts.is_empty() {
            let at = x.stream_retry_at.unwrap_or(now);
            if now >= at {
                let epoch = x.epoch;
                self.peers[pi].paths[xi].stream_retry_at = None;
                self.open_stream(pi, xi, epoch);
                return next.min(now + STREAM_ATTEMPT);
            }
            next = next.min(at);
        }
        next
    }

    /// Asks when something is late; asks on idle paths now and then.
    fn query_timer(&mut self, pi: usize) -> Time {
        let now = self.clock.now();
        let idle = self.options.idle_probe;
        let mut next = Time(u64::MAX);
        let mut late = false;
        for xi in 0..self.peers[pi].paths.len() {
            let x = &self.peers[pi].paths[xi];
            if !x.health.connected() {
                continue;
            }
            if x.health == Health::Suspect {
                late = true;
            }
            let mut watch = |at: Time| {
                if at <= now { late = true } else { next = next.min(at) }
            };
            if let Some(s) = x.inflight.front() {
                watch(s.at + path_patience(x));
            }
            if let Some(s) = x.stream.and_then(|s| self.streams.get(&s)) {
                if s.bytes_in_flight > 0 || (s.tx_full && !s.tx.is_empty()) {
                    watch(s.progress_at + x.rtt.patience(STREAM_PATIENCE));
                }
            }
            if let Some(o) = x.evidence.open.front() {
                watch(o.1 + x.rtt.patience(ANSWER_PATIENCE));
            }
            let probation = x.health == Health::Probation;
            let heard = x.evidence.heard_at.unwrap_or(x.since);
            let probe_at = if probation { x.next_probe } else { x.next_probe.max(heard + idle) };
            if now >= probe_at {
                self.ping(pi, xi);
                let gap = if probation { QUERY_INTERVAL } else { idle };
                self.peers[pi].paths[xi].next_probe = now + gap;
                next = next.min(now + gap.min(ANSWER_PATIENCE));
            } else {
                next = next.min(probe_at);
            }
        }
        if !late {
            self.peers[pi].query = None;
            return next;
        }
        let q = *self.peers[pi].query.get_or_insert(Query { next: now, rounds: 0 });
        if now < q.next {
            return next.min(q.next);
        }
        for xi in 0..self.peers[pi].paths.len() {
            if self.peers[pi].paths[xi].health.connected() {
                self.ping(pi, xi);
            }
        }
        let gap = if q.rounds < QUERY_ROUNDS_FAST { QUERY_INTERVAL } else { QUERY_INTERVAL_SLOW };
        self.peers[pi].query = Some(Query { next: now + gap, rounds: q.rounds + 1 });
        next.min(now + gap)
    }

    /// A peer that we want something of and do not hear: it is partitioned, stopped or very busy.
    fn partition_timer(&mut self, pi: usize) -> Time {
        let now = self.clock.now();
        let deadline = self.options.partition_timeout;
        let p = &mut self.peers[pi];
        if !p.wanted || !p.has_business() {
            return Time(u64::MAX);
        }
        let silent = now.since(p.heard_at);
        if let Some(most) = deadline {
            if silent >= most {
                self.entomb(pi, silent);
                return Time(u64::MAX);
            }
        }
        let p = &mut self.peers[pi];
        let at = p.heard_at + PARTITION;
        if silent >= PARTITION {
            if p.partitioned_at.is_none() {
                p.partitioned_at = Some(p.heard_at);
                self.counters.partitions += 1;
                self.event(EventKind::Partition, pi, None);
            }
            return deadline.map_or(Time(u64::MAX), |d| self.peers[pi].heard_at + d);
        }
        at
    }

    /// The deadline of a partition passed: a verdict that is final.
    fn entomb(&mut self, pi: usize, silent: Duration) {
        self.event(EventKind::PeerLost { silent }, pi, None);
        self.peers[pi].gone = Some(Gone::Lost);
        for xi in 0..self.peers[pi].paths.len() {
            self.fail_path(pi, xi, Witness::Query, Direction::Both);
            self.peers[pi].paths[xi].retry_at = None;
        }
        self.fail_operations(pi, CompletionError::PeerUnreachable);
        let p = &mut self.peers[pi];
        p.control.clear();
        let u = crate::responder::ResponderUpdate::Remove { cid_in: p.keys.cid_in };
        self.responder.update(u);
        self.actions.push_back(Action::Responder(u));
    }
}
