//! Liveness of peers: partitioned, stopped, or dead. Weighs the signs for and against the end of a peer's process;
//! `peer/signs` owns them.
//!
//! A silent peer is one of three. *Stopped* (or starved): the kernel of its host still acknowledges and accepts for it;
//! nothing is given up, however long it lasts. *Partitioned*: nothing answers at all; it is reported, and ends in an
//! error at a deadline. *Dead*: its host refuses connections to it. A refusal alone may come from a firewall, so a
//! verdict needs more (hazard H6):
//!
//! | evidence | verdict |
//! |---|---|
//! | a stream ended in order, without a goodbye (1) | dead after 250 ms |
//! | a connection to a neighbour process is accepted between two refusals (2) | dead after 250 ms |
//! | nothing else, for `refused_timeout` (3) | dead |
//! | the kernel acknowledges on an existing stream, or accepts a connection | alive: stopped |
//! | another process accepted (a wrong token), such as one that got the port of a dead process | no evidence |
//!
//! The first three need more: every path was queried and nothing arrived, connections are refused, and no fresh one was
//! accepted since the first refusal.
//!
//! 1. Firewalls and the engine end streams by a reset. Only the kernel that closes the sockets of an ended process ends
//!    one in order.
//! 2. A process on the same boot of the same host, over the rail that refuses. It answers, and accepts a new connection
//!    there. Queries sent before that do not count.
//! 3. With one refusal for every 375 ms of it, eight at most; refusals within 100 ms count once.
//!
//! Verdicts are final (hazard H7): the incarnation is entombed. When it comes back, this is reported to it, so that it
//! does not wait for ever. Source: design, "Detecting faults" (heartbeats); the kernel's signs are in tcp(7), TCP_INFO.

use super::Engine;
use crate::event::{DeathProof, Direction, EventKind, Witness};
use crate::path::Path;
use crate::peer::signs::{PROBE, QUESTION_PATIENCE, REFUSAL_FRESH, Refusals};
use crate::peer::{Gone, PARTITION, Peer};
use crate::stream::Stream;
use crate::types::*;
use std::time::Duration;

/// Query interval of idle paths that the limits below are made for. A longer interval does not count as silence.
const IDLE_PROBE_USUAL: Duration = ms(400);
/// Silence after which the peer's kernel is inspected, in time for the verdict at [`PARTITION`].
const INSPECT_AFTER: Duration = ms(700);
/// Interval of these inspections.
const INSPECT_EVERY: Duration = ms(150);
/// A kernel's sign of life counts for this long: some intervals, because a probe of a full window is not always answered.
const KERNEL_SIGN: Duration = ms(3000);
/// A kernel's sign this soon after the last packet of the process may belong to what was under way before.
const KERNEL_SIGN_LATER: Duration = ms(300);
/// Silence, while connections are refused, before a proof of death counts: what was under way arrives first.
const DEATH_PROVEN: Duration = ms(250);
/// Refusals that are needed.
const REFUSALS_MIN: u32 = 2;
/// The same for every stretch of `refused_timeout`, when refusals are the only evidence; eight suffice. A process that
/// is gone causes about as many, and a clock that leaps causes none.
const REFUSAL_ALONE_EVERY: Duration = ms(375);
const REFUSALS_ALONE_MAX: u128 = 8;
/// A refusal counts beside a neighbour's acceptance only if it comes at most this long after it.
const NEIGHBOUR_FRESH: Duration = ms(750);
/// Unanswered queries on each path that a verdict needs.
const QUESTIONS_MIN: usize = 4;
/// How long the peer's kernel may take to accept a fresh connection. It accepts without a turn of its process. Longer
/// than [`PROBE`], after which a lost request is repeated by another fresh connection.
const KERNEL_PATIENCE: Duration = ms(300);

impl Engine {
    /// Something arrived that only a living process sends: a datagram, a handshake, an answer. (What arrives over a
    /// stream may be left over in the kernel of a dead process.)
    pub(crate) fn lives(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let Some(s) = self.peers[peer].signs.awake_mut() else { return };
        s.lives(now);
    }

    /// A stream to a peer is over, and this process did not close it.
    pub(crate) fn note_end(&mut self, peer: PeerId, rail: RailId, attached: bool, reason: CloseReason) {
        let now = self.clock.now();
        let s = &mut self.peers[peer].signs;
        match reason {
            CloseReason::Eof if attached => s.stream_ended(now),
            CloseReason::Refused => {
                s.refused(rail, now);
                // a process that lives answers on some path
                for index in 0..self.peers[peer].paths.len() {
                    let connected = self.peers[peer].paths[index].health().connected();
                    if connected && self.remedies.death_needs_questions() {
                        self.ping(peer, index);
                    }
                }
            }
            _ => return,
        }
        self.schedule(peer, now);
    }

    /// A connection to a peer was accepted, and ended before an answer. The kernel of a stopped process keeps what it
    /// accepts, and a running process answers. So another process has the port. (A single case proves little: a process
    /// that resumes after a stop ends superseded connections before it sends anything.)
    pub(crate) fn turned_away(&mut self, peer: PeerId) {
        let now = self.clock.now();
        self.peers[peer].signs.turned_away(now);
        self.schedule(peer, now);
    }

    /// The result of [`Action::InspectStream`]: what the kernel at the other end has acknowledged; `None`: not known.
    pub fn stream_inspected(&mut self, stream: StreamId, told: Option<FarKernel>, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        let Some((peer, _)) = self.streams.get(stream).and_then(Stream::peer) else { return };
        self.weigh_stuck_stream(stream, told.as_ref());
        let Some(told) = told else { return };
        self.weigh_route(stream, &told);
        let ago = u64::try_from(told.heard.as_nanos()).unwrap_or(u64::MAX);
        self.kernel_lives(peer, Time::from_ns(now.ns().saturating_sub(ago)));
    }

    /// The peer's kernel accepted a connection that was requested at `asked`. If that was after the first refusal, it
    /// is evidence against a death at that time, even soon after the last packet of the process.
    pub(crate) fn kernel_accepts(&mut self, peer: PeerId, asked: Time, now: Time) {
        let asks = self.remedies.death_asks_kernels() && self.remedies.death_needs_questions();
        let s = &mut self.peers[peer].signs;
        if asks && s.refusals().is_some_and(|r| asked > r.first) && s.is_newer(now) {
            s.kernel_signs(now);
            self.schedule(peer, now);
        } else {
            self.kernel_lives(peer, now);
        }
    }

    /// The peer's kernel gave a sign for its process.
    pub(crate) fn kernel_lives(&mut self, peer: PeerId, at: Time) {
        let p = &mut self.peers[peer];
        if at > p.hearing.at() + KERNEL_SIGN_LATER && p.signs.is_newer(at) {
            p.signs.kernel_signs(at);
            let now = self.clock.now();
            self.schedule(peer, now);
        }
    }

    /// Handles the silence of a peer: inspects its streams, tries fresh ones, and judges.
    pub(crate) fn silence_timer(&mut self, peer: PeerId) -> Time {
        let now = self.clock.now();
        let p = &self.peers[peer];
        if !p.is_wanted() || p.gone().is_some() {
            return Time::NEVER;
        }
        if let Some(t) = self.absent_until.filter(|t| now < *t) {
            // this process was away: what arrived meanwhile is drained first (hazard H12)
            return t;
        }
        let mut next = self.death_timer(peer);
        if self.peers[peer].gone().is_some() {
            return Time::NEVER;
        }
        next = next.min(self.ask_kernels(peer));
        next.min(self.partition_timer(peer))
    }

    /// Since when the silence of a peer counts: from its last sign of life, but from no earlier than a usual interval
    /// before its oldest unanswered query, because the limits here are made for that interval. `None`: no query is open
    /// on the connected paths. A connected peer that is not queried is neither cut off nor stopped, however long
    /// nothing arrives from it.
    pub(crate) fn silent_since(&self, peer: PeerId) -> Option<Time> {
        let p = &self.peers[peer];
        let mut connected = p.paths.iter().filter(|path| path.health().connected()).peekable();
        if connected.peek().is_none() || !self.remedies.silence_needs_questions() {
            return Some(p.hearing.at());
        }
        let asked = connected.filter_map(|path| path.evidence.open_since()).min()?;
        Some(p.hearing.at().max(asked - IDLE_PROBE_USUAL))
    }

    /// Inspects the existing streams for signs of the peer's kernel, and tries fresh ones.
    fn ask_kernels(&mut self, peer: PeerId) -> Time {
        let now = self.clock.now();
        let p = &self.peers[peer];
        // a refusal makes it urgent
        let refused = p.signs.refusals().map(|r| r.first).filter(|_| self.remedies.death_asks_kernels());
        let urgent = refused.is_some() && p.signs.kernels_asked_at().is_none();
        let never = Time::NEVER;
        let since = self.silent_since(peer);
        let at =
            if urgent { p.hearing.at() + DEATH_PROVEN } else { since.map_or(never, |t| t + INSPECT_AFTER) };
        // a path that is connected may not have come into service yet (seed 91188); before that the handshake opens streams
        if !p.paths.iter().any(|path| path.was_ever_up() || path.health().connected()) {
            return never;
        }
        if now < at {
            return at;
        }
        // where one rail refuses and another accepts, each refusal starts a new row: the pause between attempts stays
        let pause = p.signs.urged_at().map(|t| t + PROBE);
        let pause = pause.filter(|t| urgent && now < *t && self.remedies.questions_have_pauses());
        let urgent = urgent && pause.is_none();
        let mut next = p.signs.inspect_at().unwrap_or(now);
        if now >= next {
            next = now + INSPECT_EVERY;
            for path in &self.peers[peer].paths {
                for stream in path.streams() {
                    self.output.act(Action::InspectStream { stream });
                }
            }
            self.peers[peer].signs.inspects(next);
        }
        let p = &self.peers[peer];
        let probe_at = p.signs.probe_at().unwrap_or(since.map_or(never, |t| t + PARTITION));
        if now < probe_at && !urgent {
            return next.min(probe_at).min(pause.unwrap_or(probe_at));
        }
        let again = self.peers[peer].signs.probes(urgent, self.options.silent_probe_max, now);
        // a sign from before the refusal does not count
        let answered =
            self.peers[peer].signs.kernel_at().is_some_and(|t| refused.is_none_or(|first| t > first));
        // the next sign is needed well before the deadline that runs from this one: an old stream may be full and give
        // none
        let deadline = self.options.partition_timeout;
        let lasts = deadline.map_or(KERNEL_SIGN, |d| KERNEL_SIGN.min(d / 4));
        let signs = self.kernel_sign(peer).is_some_and(|t| now.since(t) < lasts);
        if refused.is_some() {
            self.peers[peer].signs.kernels_are_asked(now);
        }
        if !(signs && answered) {
            for index in 0..self.peers[peer].paths.len() {
                let path = &self.peers[peer].paths[index];
                // an attempt that was accepted before the refusal is no evidence any more; a path that lacks a stream makes attempts anyway
                if path.health().connected()
                    && (path.has_stream() || path.demand.is_saved())
                    && (urgent || path.lane.connection().attempts().is_empty())
                {
                    let epoch = path.epoch();
                    self.open_stream(peer, index, LaneId::FIRST, epoch);
                }
            }
        }
        next.min(again)
    }

    /// When the peer's kernel last gave a sign for its process. Connections accepted after another process began to
    /// answer do not count.
    fn kernel_sign(&self, peer: PeerId) -> Option<Time> {
        let at = self.peers[peer].signs.kernel_at().filter(|_| self.remedies.kernel_witness())?;
        let turned_away = self.peers[peer].signs.turned_away_since(self.clock.now());
        Some(turned_away.map_or(at, |first| at.min(first)))
    }

    /// Whether the peer's kernel answers for a process that does not.
    fn kernel_signs(&self, peer: PeerId) -> bool {
        self.kernel_sign(peer).is_some_and(|t| self.clock.now().since(t) < KERNEL_SIGN)
    }

    /// Judges whether the peer's process has ended.
    fn death_timer(&mut self, peer: PeerId) -> Time {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let s = &p.signs;
        if !self.remedies.death_verdict() {
            return Time::NEVER;
        }
        let Some(Refusals { first, last, count, moments }) = s.refusals() else { return Time::NEVER };
        if s.kernel_at().is_some_and(|t| t > first) && self.remedies.kernel_witness() {
            return Time::NEVER;
        }
        if !s.has_ended() {
            self.ask_neighbours(peer, first);
        }
        let neighbour = self.neighbour_accepted(peer, first);
        let p = &mut self.peers[peer];
        let neighbour = neighbour.map(|at| p.signs.neighbour_accepted(at));
        let (proof, since) = if p.signs.has_ended() {
            (Some(DeathProof::EndOfStream), first)
        } else if let Some(at) = neighbour {
            (Some(DeathProof::Neighbour), at)
        } else {
            (None, first)
        };
        let wait = match (proof, self.options.refused_timeout) {
            _ if !self.remedies.death_needs_proof() => Duration::ZERO,
            (Some(_), _) => DEATH_PROVEN,
            (None, Some(t)) => t,
            (None, None) => return Time::NEVER,
        };
        let at = (first + wait).max(p.hearing.at() + DEATH_PROVEN);
        if now < at {
            return at;
        }
        let alone = wait.as_millis() / REFUSAL_ALONE_EVERY.as_millis();
        let (seen, needed) = match proof {
            Some(_) => (count, REFUSALS_MIN),
            None => (moments, (alone.min(REFUSALS_ALONE_MAX) as u32).max(REFUSALS_MIN)),
        };
        if seen < needed || now.since(last) > REFUSAL_FRESH {
            // the next refusal schedules this again
            return Time::NEVER;
        }
        if !self.was_asked(peer, since) {
            return now + QUESTION_PATIENCE;
        }
        // if no path ever worked, the refused connections were the query
        let asks = self.remedies.death_asks_kernels() && self.remedies.death_needs_questions();
        if asks && self.peers[peer].paths.iter().any(|path| path.was_ever_up()) {
            match self.peers[peer].signs.kernels_asked_at() {
                None => return now + QUESTION_PATIENCE,
                Some(t) if now.since(t) < KERNEL_PATIENCE => return t + KERNEL_PATIENCE,
                Some(_) => {}
            }
        }
        let silent = now.since(self.silent_since(peer).unwrap_or(now));
        let proof = proof.unwrap_or(DeathProof::Refused);
        self.counters.peers_died += 1;
        self.entomb(peer, Gone::Died, EventKind::PeerDied { silent, proof });
        Time::NEVER
    }

    /// Whether the peer left queries unanswered on every connected path, all of them sent after `since`. If no path is
    /// connected, the refused connections were such queries: a handshake by datagram is tried first.
    fn was_asked(&self, peer: PeerId, since: Time) -> bool {
        let now = self.clock.now();
        let unanswered = |path: &Path| {
            let counts = |asked: &Time| *asked >= since && now.since(*asked) >= QUESTION_PATIENCE;
            path.evidence.open_times().filter(counts).count() >= QUESTIONS_MIN
        };
        !self.remedies.death_needs_questions()
            || self.peers[peer].paths.iter().all(|path| !path.health().connected() || unanswered(path))
    }

    /// Other processes on the same boot of the peer's host with paths over rails that refuse: peer, and index of the
    /// path.
    fn near(&self, peer: PeerId) -> impl Iterator<Item = (PeerId, usize)> + '_ {
        let p = &self.peers[peer];
        let (own, rails) = (p.node().map(|n| n.home()), p.signs.refused_rails());
        let near = move |q: &Peer| own.is_some() && q.node().map(|n| n.home()) == own;
        self.peers
            .iter()
            .map(|q| (q.id(), q))
            .filter(move |(other, q)| *other != peer && q.gone().is_none() && near(q))
            .flat_map(move |(other, q)| {
                let refuses = move |path: &Path| rails & (1 << path.rail().0) != 0;
                q.paths
                    .iter()
                    .enumerate()
                    .filter(move |(_, path)| refuses(path))
                    .map(move |(index, _)| (other, index))
            })
    }

    /// Those of them from which something arrived there after `since`.
    fn neighbours(&self, peer: PeerId, since: Time) -> impl Iterator<Item = (PeerId, usize)> + '_ {
        let heard = move |&(other, index): &(PeerId, usize)| {
            self.peers[other].paths[index].evidence.heard_at().is_some_and(|t| t > since)
        };
        self.near(peer).filter(heard)
    }

    /// When one of them accepted a new connection there. An old stream that still stands proves nothing: a firewall may
    /// refuse only new ones.
    fn neighbour_accepted(&self, peer: PeerId, since: Time) -> Option<Time> {
        self.neighbours(peer, since).find_map(|(other, index)| {
            let q = &self.peers[other];
            let path = &q.paths[index];
            // a refusal before it and one soon after it, all on one rail: otherwise one of them belongs to another time
            let last = self.peers[peer].signs.last_refusal();
            let after = |at: Time| {
                last.is_some_and(|(r, t)| r == path.rail() && t > at && t.since(at) <= NEIGHBOUR_FRESH)
            };
            let accepted = |&(rail, at): &(RailId, Time)| rail == path.rail() && at > since && after(at);
            match (self.remedies.death_needs_questions(), self.remedies.death_asks_kernels()) {
                (true, true) => q.acceptance.last().filter(accepted).map(|a| a.1),
                // planted
                (true, false) => (q.signs.refusals().is_none() && path.has_stream()).then_some(since),
                (false, _) => Some(since),
            }
        })
    }

    /// Tries new connections to the neighbours of a peer whose connections are refused.
    fn ask_neighbours(&mut self, peer: PeerId, since: Time) {
        let now = self.clock.now();
        if self.peers[peer].signs.refusals().is_some_and(|r| now.since(r.last) > REFUSAL_FRESH) {
            return;
        }
        // a neighbour without operations may not have been queried for long
        for (other, index) in self.near(peer).collect::<Vec<_>>() {
            let path = &self.peers[other].paths[index];
            let quiet = path.evidence.heard_at().is_none_or(|t| t <= since) && path.evidence.is_answered();
            if quiet && path.health().connected() && self.remedies.awaited_are_asked() {
                self.ping(other, index);
            }
        }
        for (other, index) in self.neighbours(peer, since).collect::<Vec<_>>() {
            let q = &self.peers[other];
            let lately = |(_, at): (StreamId, Time)| now.since(at) < PROBE;
            if q.acceptance.asked().is_some_and(lately) || !self.remedies.death_needs_questions() {
                continue;
            }
            let (id, former) = (q.id(), q.acceptance.asked());
            let (rail, to) = (q.paths[index].rail(), q.paths[index].remote());
            if let Some((stream, _)) = former {
                self.close_stream(stream);
            }
            let stream = self.streams.add(Stream::question(rail, to, id, now));
            self.peers[other].acceptance.ask(stream, now);
            self.output.act(Action::OpenStream { stream, rail, to });
        }
    }

    /// Whether a posted receive waits for this very peer.
    fn is_awaited(&self, peer: PeerId) -> bool {
        let id = self.peers[peer].id();
        self.endpoints.awaited().any(|peer| peer == id)
    }

    /// Reports a silent peer that something waits for, and gives it up at the deadline. The deadline does not run while
    /// the peer's kernel answers.
    fn partition_timer(&mut self, peer: PeerId) -> Time {
        let now = self.clock.now();
        let p = &self.peers[peer];
        // a query schedules this again
        let Some(silent_since) = self.silent_since(peer) else { return Time::NEVER };
        let silent = now.since(silent_since);
        if silent < PARTITION {
            return silent_since + PARTITION;
        }
        if !p.has_business() && !self.is_awaited(peer) {
            return now + PARTITION;
        }
        let deadline = self.options.partition_timeout;
        let sign = self.kernel_sign(peer);
        // what arrived over a stream does not clear older signs of the kernel
        let since = silent_since.max(sign.unwrap_or(silent_since));
        if deadline.is_some_and(|most| now.since(since) >= most) {
            self.entomb(peer, Gone::Lost, EventKind::PeerLost { silent });
            return Time::NEVER;
        }
        let signs = self.kernel_signs(peer);
        let p = &mut self.peers[peer];
        let news = p.hearing.partition(silent_since);
        if signs {
            if p.signs.report_stopped(true) {
                self.counters.peers_stopped += 1;
                self.event(EventKind::PeerStopped, peer, None);
            }
        } else if p.signs.is_stopped() || news {
            p.signs.report_stopped(false);
            self.counters.partitions += 1;
            self.event(EventKind::Partition, peer, None);
        }
        let until = deadline.map_or(Time::NEVER, |d| since + d);
        until.min(now + INSPECT_EVERY)
    }

    /// A final verdict on a peer.
    pub(crate) fn entomb(&mut self, peer: PeerId, why: Gone, event: EventKind) {
        self.event(event, peer, None);
        self.leaves(peer);
        self.peers[peer].goes(why);
        for index in 0..self.peers[peer].paths.len() {
            self.fail_path(peer, index, Witness::Query, Direction::Both);
            self.peers[peer].paths[index].retry.stop();
        }
        self.leads_no_more(peer);
        self.fail_operations(peer, why.error());
        self.forget_keys(peer);
        let p = &mut self.peers[peer];
        p.backlog.drop_control();
        if let Some(keys) = p.credentials.keys() {
            let u = crate::responder::ResponderUpdate::Remove { cid_in: keys.cid_in };
            self.responder.update(u);
            self.output.act(Action::Responder(u));
        }
    }
}
