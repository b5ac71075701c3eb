//! Streams: reliable ordered bytes with bounded buffers, as TCP gives them. Owns: connections, what their kernels hold.
//!
//! What matters for the engine is modelled, congestion control is not: a handshake takes a round trip; a write takes what
//! fits; bytes that were lost in a dark network come again only after the kernel's stale back-off (200 ms, doubling:
//! `kernel-facts.md`); a zero window is probed; a reset destroys what was under way; an end that was closed while the
//! network was dark leaves the other half open until something reaches the closed end.

use super::alternate::Loaded;
use super::clocked::Clocked;
use super::{Ev, World};
use crate::link::{Carries, MS, SEC, TCP_CROWDED_BYTES, TCP_CROWDED_NS, TCP_QUEUE_NS_MAX, US};
use crate::moment::{Follower, Moment};
use rerail_core::{CloseReason, Locator, RailId, StreamId};
use rerail_driver::StreamEvent;
use std::collections::VecDeque;
use std::time::Duration;

/// First retransmission time-out of the kernel.
const RTO_NS_MIN: u64 = 200 * MS;
/// Largest.
const RTO_NS_MAX: u64 = 120 * SEC;
/// Connections that a process may try to one address within a second. (A thousand seeds with an aim came to 23.)
const CONNECTS_MAX: usize = 60;
/// The kernel repeats a connect after this time.
const SYN_RETRY_NS: u64 = SEC;

/// What the kernel reports of streams.
#[derive(Debug, Clone, Copy)]
pub enum Notice {
    /// A connect succeeded.
    Connected(StreamId),
    /// A stream ended.
    Closed(StreamId, CloseReason),
    /// There is room again.
    Writable(StreamId),
    /// What an adapter has done.
    Adapter(StreamEvent),
}

/// State of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndState {
    /// Connect is under way (initiator), or nothing was seen yet (acceptor).
    Opening,
    /// Handshake answered, not yet accepted (acceptor only).
    Half,
    /// Usable.
    Open,
    /// Its process has gone; the kernel goes on sending what it holds.
    Orphan,
    /// Over.
    Closed,
}

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    /// Process.
    pub proc: usize,
    /// Its rail.
    pub rail: RailId,
    /// Its host.
    pub host: usize,
    /// Name in the engine; `None` until accepted.
    pub stream: Option<StreamId>,
    /// State.
    pub state: EndState,
    /// The engine asked for the end, which is not confirmed yet.
    pub closing: bool,
    /// It is closed for good: no adapter writes through it any more.
    pub fenced: bool,
    /// The engine offered more than was taken, and waits for the notice that there is room.
    pub full: bool,
    /// It is in its process's list of readable ends.
    pub listed: bool,
    /// Nothing reads it any more: its name is forgotten.
    pub unwanted: bool,
    /// Why its kernel ended it.
    pub over: Option<CloseReason>,
    /// The same, when a read that finds no more bytes is to report it.
    pub broken: Option<CloseReason>,
    /// Nothing is read from it before this time (a slow reader).
    pub rest_until: u64,
    /// When the other end's kernel was last heard.
    pub heard_at: u64,
    /// Its connection was made.
    pub established: bool,
}

/// One direction, from `ends[i]` to `ends[1 - i]`.
#[derive(Debug, Default)]
pub struct Dir {
    /// Bytes that the receiving kernel has not acknowledged.
    pub buf: VecDeque<u8>,
    /// Room of `buf`.
    pub cap: usize,
    una: u64,
    nxt: u64,
    /// Right edge of what the receiver takes.
    edge: u64,
    last_arrival: u64,
    rto: u64,
    backed_off: bool,
    deadline: u64,
    timer: bool,
    /// Waits for the queues to become shorter.
    waiting: bool,
    /// Bytes that arrived and were not read.
    pub rx: VecDeque<u8>,
    rx_cap: usize,
    rcv_nxt: u64,
    fin: bool,
    /// Held back until then by a script.
    pub stall_until: u64,
    /// Where its frames are, if an aim waits for one.
    pub follower: Follower,
    /// Payload of the direction so far.
    pub written: u64,
    /// A write of this direction was refused: nothing behind it arrives.
    refused: bool,
    clocked: Clocked,
    /// When a segment was last sent.
    pub sent_at: u64,
}

/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 1448;

impl Dir {
    /// Segments that are sent, and not acknowledged.
    pub fn segments(&self) -> u32 {
        self.nxt.saturating_sub(self.una).div_ceil(SEGMENT_BYTES) as u32
    }

    /// Bytes that the receiving kernel has acknowledged.
    pub fn acked(&self) -> u64 {
        self.una
    }

    /// How long an acknowledgement takes at most as a rule.
    pub fn usual_ns(&self) -> u64 {
        self.clocked.usual_ns()
    }

    /// Bytes that have reached the receiving kernel.
    pub fn arrived(&self) -> u64 {
        self.rcv_nxt
    }

    /// Position of the next byte that is written.
    pub(crate) fn end(&self) -> u64 {
        self.una + self.buf.len() as u64
    }

    /// An adapter sends what is not acknowledged once more, over another network.
    pub(crate) fn repeat(&mut self, now: u64) {
        self.nxt = self.una;
        self.clocked.repeats();
        self.rto = RTO_NS_MIN;
        self.backed_off = false;
        if self.deadline > 0 {
            self.deadline = now + self.rto;
        }
    }

    /// A write was refused.
    pub(crate) fn refuse(&mut self) {
        self.refused = true;
    }

    fn free(&self) -> usize {
        self.rx_cap.saturating_sub(self.rx.len())
    }
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// Network that it goes over.
    pub net: usize,
    /// Network of its path: its adapters may have moved it.
    pub home: usize,
    /// What its adapters have loaded.
    pub alternate: Loaded,
    /// Initiator and acceptor.
    pub ends: [End; 2],
    /// Initiator to acceptor, and back.
    pub dirs: [Dir; 2],
    /// Where the initiator connects to.
    pub to: Locator,
    /// Address of the initiator, as the acceptor sees it.
    pub from: Locator,
    /// The connect was given up or answered.
    settled: bool,
    /// Something of the initiator has come to the acceptor.
    pub(crate) spoke: bool,
    /// When it was begun.
    pub(crate) begun: u64,
    /// A fault ended the connect: to its process that is a refusal.
    pub(crate) refused_by_fault: bool,
}

impl World {
    /// Carries out `OpenStream`.
    pub(crate) fn tcp_open(&mut self, p: usize, stream: StreamId, rail: RailId, to: Locator) {
        let net = self.procs[p].nets[rail.0 as usize];
        let host = self.procs[p].host;
        let target = self.find(to).filter(|&(n, _)| n == net).map(|(_, q)| q);
        let from_port = 20_000 + (self.conns.len() % 40_000) as u16;
        let from = self.locator(net, host, from_port);
        let end = |proc: usize, host, rail, stream| End {
            proc,
            rail,
            host,
            stream,
            state: EndState::Opening,
            closing: false,
            fenced: false,
            full: false,
            listed: false,
            unwanted: false,
            over: None,
            broken: None,
            rest_until: 0,
            heard_at: 0,
            established: false,
        };
        let q = target.unwrap_or(usize::MAX);
        let (qhost, qrail) = match target {
            Some(q) => (
                self.procs[q].host,
                RailId(self.procs[q].nets.iter().position(|&n| n == net).unwrap_or(0) as u8),
            ),
            None => (usize::MAX, RailId(0)),
        };
        let mut dirs = [Dir::default(), Dir::default()];
        for d in &mut dirs {
            d.cap = self.cfg.sndbuf;
            d.rx_cap = self.cfg.rcvbuf;
            d.edge = d.rx_cap as u64;
            d.rto = RTO_NS_MIN;
        }
        self.count_connect(p, to);
        let c = self.conns.len();
        self.conns.push(Conn {
            net,
            home: net,
            alternate: Loaded::default(),
            ends: [end(p, host, rail, Some(stream)), end(q, qhost, qrail, None)],
            dirs,
            to,
            from,
            settled: false,
            spoke: false,
            begun: self.now,
            refused_by_fault: false,
        });
        self.procs[p].streams.insert(stream, (c, 0));
        self.trace(|| format!("p{p} open {stream:?} conn {c} on net {net} to {to}"));
        if target.is_none() || self.nets[net].links[host].down > 0 {
            // no route: the kernel says so at once
            self.after(20 * US, Ev::ConnFail { c });
            return;
        }
        self.aim_at_conn(Moment::Connect, p, c);
        if let Some(fabric) = self.nets[net].fabric_mut() {
            fabric.connects(c, host, qhost);
        }
        let patience = self.net_rng.log_range(200 * MS, 3 * SEC);
        self.after(patience, Ev::ConnFail { c });
        self.tcp_syn(c);
    }

    /// A process tries connections with pauses, whatever becomes of them: else it would keep a network and a peer busy with nothing else.
    fn count_connect(&mut self, p: usize, to: Locator) {
        let now = self.procs[p].clock.local(self.now);
        let list = self.procs[p].connects.entry(to).or_default();
        // by its own clock, which may leap
        while list.front().is_some_and(|t| now.since(*t) >= Duration::from_secs(1)) {
            list.pop_front();
        }
        list.push_back(now);
        let n = list.len();
        // a stream that is reset is replaced at once, each time
        let resets = &mut self.procs[p].resets;
        while resets.front().is_some_and(|t| self.now - t > 2 * SEC) {
            resets.pop_front();
        }
        let lanes = usize::from(self.cfg.options[p.min(self.cfg.options.len() - 1)].lanes);
        assert!(
            n <= CONNECTS_MAX * lanes + resets.len(),
            "bounded: p{p} connects to {to} {n} times within a second"
        );
    }

    fn tcp_syn(&mut self, c: usize) {
        let k = &self.conns[c];
        let (net, a, b) = (k.net, k.ends[0].host, k.ends[1].host);
        if let Some(at) = self.pass(net, a, b, 74, self.now, Carries::Tcp(c)) {
            self.at(at, Ev::Syn { c });
        }
        self.after(SYN_RETRY_NS, Ev::SynRetry { c });
    }

    pub(crate) fn on_syn_retry(&mut self, c: usize) {
        if !self.conns[c].settled && self.conns[c].ends[0].state == EndState::Opening {
            self.tcp_syn(c);
        }
    }

    pub(crate) fn on_conn_fail(&mut self, c: usize) {
        if !self.conns[c].settled && self.conns[c].ends[0].state == EndState::Opening {
            self.conns[c].settled = true;
            self.end_closed(c, 0, CloseReason::Unreachable);
        }
    }

    pub(crate) fn on_syn(&mut self, c: usize) {
        let k = &self.conns[c];
        let (net, a, b, q) = (k.net, k.ends[0].host, k.ends[1].host, k.ends[1].proc);
        if !self.nets[net].open(a, b, Carries::Tcp(c)) || k.settled {
            return;
        }
        if self.tcp_held(c, 0, Ev::Syn { c }) {
            return;
        }
        let refused = self.nets[net].links[b].tcp_refused + self.nets[net].links[a].tcp_refused > 0
            || self.procs[q].engine.is_none();
        let back = self.pass(net, b, a, 74, self.now, Carries::Tcp(c));
        if refused {
            if let Some(at) = back {
                self.at(at, Ev::Refused { c });
            }
            return;
        }
        let new = self.conns[c].ends[1].state == EndState::Opening;
        if new {
            self.conns[c].ends[1].state = EndState::Half;
        }
        if let Some(at) = back {
            self.at(at, Ev::SynAck { c });
        }
        if new && self.is_client_first(net) && !self.cfg.remedies.client_speaks_first() {
            // planted: the rail of the accepting side counts it as connected, and greets the other side
            self.tcp_accept(c);
            if let Some(at) = back {
                self.acceptor_sends(c, at);
            }
        }
    }

    /// Whether the adapters of a network demand that the connecting side sends first.
    fn is_client_first(&self, net: usize) -> bool {
        self.places_max(net) > 0 && self.cfg.client_first.get(net).is_some_and(|first| *first)
    }

    /// The accepting side of a connection sends what arrives at `at`. If nothing of the connecting side has come yet, its adapter may not take
    /// it for a message (H23), and both end the connection.
    pub(crate) fn acceptor_sends(&mut self, c: usize, at: u64) {
        let k = &self.conns[c];
        if k.spoke || !self.is_client_first(k.home) {
            return;
        }
        self.trace(|| format!("conn {c} ends: its acceptor has sent first"));
        for side in 0..2 {
            self.at(at + 1, Ev::Rst { c, side, forged: false });
        }
    }

    pub(crate) fn on_refused(&mut self, c: usize) {
        if !self.conns[c].settled && self.conns[c].ends[0].state == EndState::Opening {
            self.conns[c].settled = true;
            self.end_closed(c, 0, CloseReason::Refused);
        }
    }

    pub(crate) fn on_syn_ack(&mut self, c: usize) {
        let k = &mut self.conns[c];
        let (net, a, b) = (k.net, k.ends[0].host, k.ends[1].host);
        if !self.nets[net].open(b, a, Carries::Tcp(c)) {
            return;
        }
        match k.ends[0].state {
            EndState::Opening => {
                k.settled = true;
                k.ends[0].state = EndState::Open;
                k.ends[0].established = true;
                k.ends[0].heard_at = self.now;
                let (p, s) = (k.ends[0].proc, k.ends[0].stream);
                if let Some(s) = s {
                    self.notice(p, Notice::Connected(s));
                }
            }
            EndState::Open => {}
            _ => {
                // the connecting end no longer waits for it
                self.tcp_rst_to(c, 1);
                return;
            }
        }
        if let Some(at) = self.pass(net, a, b, 66, self.now, Carries::Tcp(c)) {
            self.at(at, Ev::HandshakeAck { c });
        }
    }

    pub(crate) fn on_handshake_ack(&mut self, c: usize) {
        let k = &self.conns[c];
        if self.nets[k.net].open(k.ends[0].host, k.ends[1].host, Carries::Tcp(c)) {
            self.initiator_spoke(c);
        }
    }

    /// Something of the connecting side has come: its first message, on networks that demand one.
    fn initiator_spoke(&mut self, c: usize) {
        self.conns[c].spoke = true;
        self.tcp_accept(c);
    }

    fn tcp_accept(&mut self, c: usize) {
        let k = &mut self.conns[c];
        if k.ends[1].state == EndState::Half {
            k.ends[1].state = EndState::Open;
            k.ends[1].established = true;
            let (q, rail, from) = (k.ends[1].proc, k.ends[1].rail, k.from);
            self.offer(q, c, rail, from);
        }
    }

    /// Whether the segment has to wait because the stream is stalled; it is then put off.
    fn tcp_held(&mut self, c: usize, dir: usize, ev: Ev) -> bool {
        let k = &self.conns[c];
        let (a, b) = (k.ends[dir].host, k.ends[1 - dir].host);
        if self.nets[k.net].stalled(a, b) {
            self.after(MS, ev);
            return true;
        }
        let until = k.dirs[dir].stall_until;
        if until > self.now {
            self.at(until, ev);
            return true;
        }
        false
    }

    /// Takes up to `room` bytes of a write; the caller copies them in with [`Dir::buf`].
    pub(crate) fn tcp_room(&self, c: usize, side: usize) -> usize {
        let d = &self.conns[c].dirs[side];
        if self.conns[c].ends[side].state == EndState::Open { d.cap.saturating_sub(d.buf.len()) } else { 0 }
    }

    /// Sends what the window allows.
    pub(crate) fn tcp_pump(&mut self, c: usize, dir: usize) {
        let now = self.now;
        let k = &mut self.conns[c];
        if !matches!(k.ends[dir].state, EndState::Open | EndState::Orphan) {
            return;
        }
        let (a, b) = (k.ends[dir].host, k.ends[1 - dir].host);
        let net = k.net;
        let d = &mut k.dirs[dir];
        let end = d.una + d.buf.len() as u64;
        let limit = if d.backed_off { (d.una + 1448).min(d.edge) } else { d.edge }.min(end);
        let mut out = Vec::new();
        let mut congested = false;
        while d.nxt < limit {
            let waits = self.nets[net].queue_ns(a, b, now, Carries::Tcp(c));
            if waits > TCP_QUEUE_NS_MAX {
                congested = !d.waiting;
                d.waiting = true;
                break;
            }
            let most = if self.net_rng.percent(20) { self.net_rng.range(1, 4000) } else { 32_768 };
            let crowded = self.nets[net].fabric().is_some() && waits > TCP_CROWDED_NS;
            let n = (limit - d.nxt).min(if crowded { most.min(TCP_CROWDED_BYTES) } else { most });
            if let Some(at) =
                self.nets[net].pass(a, b, n as usize + 66, now, Carries::Tcp(c), &mut self.net_rng)
            {
                d.last_arrival = at.max(d.last_arrival + 1);
                out.push((d.last_arrival, d.nxt, n as u32));
            }
            d.nxt += n;
            d.clocked.sends(d.nxt, now);
            d.sent_at = now;
            if crowded {
                congested = !d.waiting;
                d.waiting = true;
                break;
            }
        }
        let pending = d.una < d.nxt || !d.buf.is_empty();
        if pending && d.deadline == 0 {
            d.deadline = now + d.rto;
        }
        let arm = pending && !d.timer;
        let deadline = d.deadline;
        if arm {
            d.timer = true;
        }
        for (at, seq, len) in out {
            self.at(at, Ev::Seg { c, dir, seq, len });
        }
        if arm {
            self.at(deadline, Ev::Rto { c, dir });
        }
        self.share_port(net, a, b);
        if congested {
            // at no fixed time: else one of several connections would always come too late for the room that there is
            let pause = self.net_rng.range(MS / 2, MS + MS / 2);
            self.after(pause, Ev::Pump { c, dir });
        }
    }

    pub(crate) fn on_pump(&mut self, c: usize, dir: usize) {
        self.conns[c].dirs[dir].waiting = false;
        self.tcp_pump(c, dir);
    }

    pub(crate) fn on_rto(&mut self, c: usize, dir: usize) {
        let now = self.now;
        let k = &mut self.conns[c];
        let d = &mut k.dirs[dir];
        d.timer = false;
        if !matches!(k.ends[dir].state, EndState::Open | EndState::Orphan) || d.buf.is_empty() {
            d.deadline = 0;
            return;
        }
        if d.deadline > now {
            d.timer = true;
            let at = d.deadline;
            self.at(at, Ev::Rto { c, dir });
            return;
        }
        let probe = d.nxt == d.una;
        d.nxt = d.una;
        d.clocked.repeats();
        d.rto = (d.rto * 2).min(RTO_NS_MAX);
        d.backed_off = true;
        d.deadline = now + d.rto;
        if probe {
            // zero window: query the present one
            let (a, b, net, seq) = (k.ends[dir].host, k.ends[1 - dir].host, k.net, k.dirs[dir].una);
            if let Some(at) = self.pass(net, a, b, 66, now, Carries::Tcp(c)) {
                self.at(at, Ev::Seg { c, dir, seq, len: 0 });
            }
        }
        self.tcp_pump(c, dir);
        let d = &mut self.conns[c].dirs[dir];
        if !d.timer {
            d.timer = true;
            let at = d.deadline;
            self.at(at, Ev::Rto { c, dir });
        }
    }

    pub(crate) fn on_seg(&mut self, c: usize, dir: usize, seq: u64, len: u32) {
        let k = &self.conns[c];
        let (a, b, net) = (k.ends[dir].host, k.ends[1 - dir].host, k.net);
        if !self.nets[net].open(a, b, Carries::Tcp(c)) {
            return;
        }
        if self.tcp_held(c, dir, Ev::Seg { c, dir, seq, len }) {
            return;
        }
        if dir == 0 {
            self.initiator_spoke(c);
        }
        match self.conns[c].ends[1 - dir].state {
            EndState::Closed | EndState::Orphan => {
                self.tcp_rst_to(c, dir);
                return;
            }
            EndState::Opening | EndState::Half => return,
            EndState::Open => {}
        }
        let corrupt = self.nets[net].links[a].stream_corrupt_ppm + self.nets[net].links[b].stream_corrupt_ppm;
        let d = &self.conns[c].dirs[dir];
        let end = seq + u64::from(len);
        let arrives = seq <= d.rcv_nxt && end > d.rcv_nxt && d.una <= d.rcv_nxt && end <= d.end();
        if arrives && self.is_adapter(c) && (d.refused || !self.land_before(c, dir, end)) {
            return;
        }
        let k = &mut self.conns[c];
        let d = &mut k.dirs[dir];
        // bytes of an aborted sender are gone; a gap waits for the kernel's retransmission
        if seq <= d.rcv_nxt && end > d.rcv_nxt && d.una <= d.rcv_nxt && end <= d.una + d.buf.len() as u64 {
            if self.cfg.encrypt && self.net_rng.ppm(corrupt) {
                // the record that it is in does not open, and nothing behind it
                self.corrupted[net] += 1;
                self.tcp_rst_to(c, dir);
                self.end_closed(c, 1 - dir, CloseReason::Damaged);
                return;
            }
            let from = (d.rcv_nxt - d.una) as usize;
            let n = ((end - d.rcv_nxt) as usize).min(d.free());
            let before = d.rx.len();
            let (x, y) = d.buf.as_slices();
            let take_x = x.len().saturating_sub(from).min(n);
            if take_x > 0 {
                d.rx.extend(&x[from..from + take_x]);
            }
            if take_x < n {
                let at = from.saturating_sub(x.len());
                d.rx.extend(&y[at..at + n - take_x]);
            }
            d.rcv_nxt += n as u64;
            if n > 0 && !self.cfg.encrypt && self.net_rng.ppm(corrupt) {
                let at = before + self.net_rng.index(n);
                d.rx[at] ^= 1 << self.net_rng.below(8);
                self.corrupts(c);
            }
            if n > 0 {
                self.list_readable(c, 1 - dir);
            }
        }
        self.tcp_ack(c, dir);
    }

    /// The receiver of direction `dir` reports what it has and what it takes.
    fn tcp_ack(&mut self, c: usize, dir: usize) {
        let k = &self.conns[c];
        let (a, b, net) = (k.ends[dir].host, k.ends[1 - dir].host, k.net);
        let d = &k.dirs[dir];
        let (ack, edge) = (d.rcv_nxt, d.rcv_nxt + d.free() as u64);
        if let Some(at) = self.pass(net, b, a, 66, self.now, Carries::Tcp(c)) {
            self.at(at, Ev::TcpAck { c, dir, ack, edge });
        }
    }

    pub(crate) fn on_tcp_ack(&mut self, c: usize, dir: usize, ack: u64, edge: u64) {
        let k = &self.conns[c];
        let (a, b, net) = (k.ends[dir].host, k.ends[1 - dir].host, k.net);
        if !self.nets[net].open(b, a, Carries::Tcp(c)) {
            return;
        }
        let now = self.now;
        let k = &mut self.conns[c];
        if k.ends[dir].state == EndState::Closed {
            return;
        }
        k.ends[dir].heard_at = now;
        let d = &mut k.dirs[dir];
        d.edge = d.edge.max(edge);
        if ack > d.una {
            let n = (ack - d.una) as usize;
            d.buf.drain(..n);
            d.una = ack;
            d.clocked.acked(ack, now);
            d.nxt = d.nxt.max(ack);
            d.rto = RTO_NS_MIN;
            d.backed_off = false;
            d.deadline = if d.buf.is_empty() { 0 } else { now + d.rto };
        }
        let room = d.cap - d.buf.len();
        let orphan_done = k.ends[dir].state == EndState::Orphan && d.buf.is_empty();
        if k.ends[dir].full && room >= d.cap / 4 {
            k.ends[dir].full = false;
            let (p, s) = (k.ends[dir].proc, k.ends[dir].stream);
            if let Some(s) = s {
                self.notice(p, Notice::Writable(s));
            }
        }
        if orphan_done {
            self.tcp_fin(c, dir);
        } else {
            self.tcp_pump(c, dir);
        }
    }

    /// After the reader took bytes: the window may open.
    pub(crate) fn tcp_read(&mut self, c: usize, side: usize, before: usize) {
        let dir = 1 - side;
        let d = &self.conns[c].dirs[dir];
        let half = d.rx_cap / 2;
        if before > half && d.rx.len() <= half {
            self.tcp_ack(c, dir);
        }
    }

    fn tcp_rst_to(&mut self, c: usize, side: usize) {
        let k = &self.conns[c];
        let (to, from, net) = (k.ends[side].host, k.ends[1 - side].host, k.net);
        if from == usize::MAX || to == usize::MAX {
            return;
        }
        if let Some(at) = self.pass(net, from, to, 60, self.now, Carries::Tcp(c)) {
            self.at(at, Ev::Rst { c, side, forged: false });
        }
    }

    /// A reset arrives at one end.
    pub(crate) fn on_rst(&mut self, c: usize, side: usize, forged: bool) {
        let k = &self.conns[c];
        if !forged && !self.nets[k.net].open(k.ends[1 - side].host, k.ends[side].host, Carries::Tcp(c)) {
            return;
        }
        let reason = match k.ends[side].state {
            EndState::Closed => return,
            EndState::Opening if side == 0 => CloseReason::Refused,
            _ => CloseReason::Reset,
        };
        self.conns[c].settled = true;
        self.conns[c].refused_by_fault |= forged && reason == CloseReason::Refused;
        self.end_closed(c, side, reason);
    }

    /// The kernel of an orphan has delivered everything.
    fn tcp_fin(&mut self, c: usize, side: usize) {
        let k = &mut self.conns[c];
        k.ends[side].state = EndState::Closed;
        k.dirs[side].fin = true;
        let (from, to, net) = (k.ends[side].host, k.ends[1 - side].host, k.net);
        if let Some(at) = self.pass(net, from, to, 66, self.now, Carries::Tcp(c)) {
            let at = at.max(self.conns[c].dirs[side].last_arrival + 1);
            self.at(at, Ev::Fin { c, side: 1 - side });
        }
    }

    /// End of stream arrives at one end. Reported after what is still unread.
    pub(crate) fn on_fin(&mut self, c: usize, side: usize) {
        let k = &self.conns[c];
        if !self.nets[k.net].open(k.ends[1 - side].host, k.ends[side].host, Carries::Tcp(c)) {
            return;
        }
        if k.ends[side].state == EndState::Closed {
            return;
        }
        if !k.dirs[1 - side].rx.is_empty() {
            self.after(50 * US, Ev::Fin { c, side });
            return;
        }
        self.end_closed(c, side, CloseReason::Eof);
    }

    /// One end is over: notify its engine.
    fn end_closed(&mut self, c: usize, side: usize, reason: CloseReason) {
        let k = &mut self.conns[c];
        let e = &mut k.ends[side];
        e.state = EndState::Closed;
        e.over = e.over.or(Some(reason));
        let (p, s, closing) = (e.proc, e.stream, e.closing);
        // what the kernel held is gone
        k.dirs[side].buf.clear();
        self.trace(|| format!("conn {c} end {side} (p{p}) closed: {reason:?}"));
        if closing || p == usize::MAX {
            return;
        }
        if let Some(s) = s {
            self.notice(p, Notice::Closed(s, reason));
        } else if side == 1 {
            // accepted by the kernel, not yet by the process
            self.procs[p].incoming.retain(|x| x.0 != c);
        }
    }

    /// Carries out `CloseStream`: a reset goes out.
    pub(crate) fn tcp_close(&mut self, p: usize, stream: StreamId) {
        let Some(&(c, side)) = self.procs[p].streams.get(&stream) else {
            panic!("p{p} closes {stream:?}, which it does not have");
        };
        let e = &mut self.conns[c].ends[side];
        if e.closing {
            return;
        }
        e.closing = true;
        let was = e.state;
        e.state = EndState::Closed;
        self.trace(|| format!("p{p} close {stream:?} conn {c} (was {was:?})"));
        self.conns[c].settled = true;
        self.conns[c].dirs[side].buf.clear();
        self.conns[c].dirs[1 - side].rx.clear();
        if was == EndState::Open {
            self.tcp_rst_to(c, 1 - side);
        }
    }

    /// The process is gone: its kernel finishes, or resets when bytes were unread.
    pub(crate) fn tcp_orphan_all(&mut self, p: usize) {
        for c in 0..self.conns.len() {
            for side in 0..2 {
                let k = &mut self.conns[c];
                if k.ends[side].proc != p || k.ends[side].state == EndState::Closed {
                    continue;
                }
                let adapter = self.is_adapter(c);
                let k = &mut self.conns[c];
                if k.ends[side].state != EndState::Open {
                    k.ends[side].state = EndState::Closed;
                } else if adapter {
                    // no kernel finishes what its adapter had under way
                    k.ends[side].state = EndState::Closed;
                    k.dirs[side].buf.clear();
                    self.tcp_rst_to(c, 1 - side);
                } else if !k.dirs[1 - side].rx.is_empty() {
                    k.ends[side].state = EndState::Closed;
                    self.tcp_rst_to(c, 1 - side);
                } else if k.dirs[side].buf.is_empty() {
                    self.tcp_fin(c, side);
                } else {
                    k.ends[side].state = EndState::Orphan;
                }
            }
        }
    }
}
