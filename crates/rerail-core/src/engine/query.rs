//! Queries, and verdicts on paths that do not answer.
//!
//! Invariant 8: nothing is given up unless another path answered what this one did not. Source: design, "Detecting faults";
//! PML DR §3.3 (watchdogs; differs: they start a query, not a retransmission).

use super::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::{Health, HealthEvent};
use crate::lane::Channel;
use crate::lane::Lane;
use crate::lane::sent::Sent;
use crate::path::Path;
use crate::path::integrity::padding;
use crate::peer::questions::{QUERY_INTERVAL, QUERY_REPEATED};
use crate::types::*;
use rerail_wire::Coverage;
use rerail_wire::packet::{
    PACKET_HEADER_BYTES, PING_UNANSWERED, PONG_ENTRIES_MAX, PONG_ENTRY_BYTES, PacketHeader, PacketKind,
};
use smallvec::SmallVec;
use std::time::Duration;

/// Silence after which queries go over the streams too: datagrams may be blocked, and the kernel's acknowledgement is a
/// sign of life.
const STREAM_PING_AFTER: Duration = ms(500);
/// Later queries over a stream wait this long for its answer.
const STREAM_PING_GAP: Duration = ms(480);
/// A query without an answer for this long counts against its path, if another path answers.
const ANSWER_PATIENCE: Duration = ms(20);
/// The same where nothing is under way, so that no operation is delayed. A sweep sends queries to many peers at once.
/// If the rail is full of other processes' bulk, all of these queries are late together, by as much as a switch's
/// buffer holds.
const IDLE_ANSWER_PATIENCE: Duration = ms(40);
/// The same for a suspicion. It may be wrong: it only sends what is under way once more elsewhere, within a budget.
const DOUBT_PATIENCE: Duration = ms(10);
/// The same on a path whose round trip was never measured: it may be slow, or its queue full of the first packets of
/// all processes. (RFC 9002 §6.2.2 begins with 333 ms; the paths of a cluster are shorter.)
const UNMEASURED_PATIENCE: Duration = ms(100);
/// Unanswered queries (and later answers on another path) that make a path suspect.
const DOUBT_QUERIES: usize = 2;
/// The same for out of service.
const FAIL_QUERIES: usize = 4;
/// Queries within this time count once: they would be lost together, or wait in one queue. After an absence all reasons
/// for a query coincide: the end of a train, an idle path, something late.
const QUERIES_APART: Duration = ms(1);
/// After a silence of the peer, a stream that makes no progress although the engine answers on its path is replaced
/// after this long, or `local_timeout` if that is less: after an outage TCP waits in its back-off.
const STUCK_STREAM_AFTER_SILENCE: Duration = ms(40);
/// A stream may stand still for this many times `local_timeout` if the peer's kernel has all that was written.
const UNREAD_STREAM_PATIENCE: u32 = 10;
/// Silence that counts as an outage for [`STUCK_STREAM_AFTER_SILENCE`].
const SILENCE: Duration = ms(300);
/// Answers in a new epoch until a path carries traffic again.
const PROBATION_ANSWERS: u32 = 3;

/// How many of these times, oldest first, are [`QUERIES_APART`].
fn moments(times: impl Iterator<Item = Time>) -> usize {
    let mut last = None;
    times
        .filter(|&t| {
            let counts = last.is_none_or(|l: Time| t.since(l) >= QUERIES_APART);
            if counts {
                last = Some(t);
            }
            counts
        })
        .count()
}

impl Path {
    /// The datagram with query `id` on this path, with `padded` bytes of padding.
    pub fn query(&self, cid: u64, id: u64, padded: usize) -> Datagram {
        let mut bytes = vec![0; PACKET_HEADER_BYTES + padded];
        padding(id, &mut bytes[PACKET_HEADER_BYTES..]);
        PacketHeader {
            cid,
            kind: PacketKind::Ping,
            path: self.id().0,
            epoch: self.epoch().0,
            number: id,
            flags: if self.detour.reports() { PING_UNANSWERED } else { 0 },
            entries: 0,
            coverage: Coverage::Full,
        }
        .seal(&mut bytes);
        Datagram { rail: self.rail(), to: self.remote(), bytes }
    }
}

impl Engine {
    /// A packet that expects an answer goes out on a path: the kernel's ARP/ND entry is kept alive.
    pub(crate) fn keep_neighbour(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        if path.neighbour.keep(now) {
            self.output.act(Action::KeepNeighbour { rail: path.rail(), to: path.remote() });
        }
    }

    // ---- queries -----------------------------------------------------------------------------------------------

    /// Sends a query on one path.
    pub(crate) fn ping(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        self.counters.pings += 1;
        let p = &mut self.peers[peer];
        let id = p.questions.take_id();
        let cid = p.cid_out();
        // room for the answer's table, which has a line for each path: an answer is no longer than its query
        let room = p.paths.len().min(PONG_ENTRIES_MAX) * PONG_ENTRY_BYTES;
        let long = self.query_padding(peer, index).max(room);
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        if path.evidence.is_answered() {
            path.neighbour.asks_anew(now);
        }
        path.evidence.asked(id, now);
        let query = path.query(cid, id, long);
        self.output.send(query);
        self.keep_neighbour(peer, index);
        let since = self.silent_since(peer);
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        let silent = since.is_some_and(|t| now.since(t) > STREAM_PING_AFTER)
            || path.evidence.open_since().is_some_and(|t| now.since(t) > STREAM_PING_AFTER)
            || path.evidence.round_trips().mute_for(STREAM_PING_AFTER, now);
        // a peer that stays silent is seldom queried over streams: what it does not read fills the kernel's buffers
        let asked = path.evidence.round_trips().asked_by_stream();
        let lately = asked.is_some_and(|t| now.since(t) < STREAM_PING_GAP);
        let seldom = silent && p.questions.are_slow() && lately;
        if path.has_stream() && (!path.datagrams.work() || silent) && !seldom {
            path.evidence.round_trips_mut().asks_stream(now);
            // on every lane: one lane may be dead while the path works
            for sid in path.streams().collect::<SmallVec<[_; 4]>>() {
                self.stream_ping(sid, id, 0);
            }
        }
        self.schedule(peer, now + DOUBT_PATIENCE);
    }

    /// An answer. `bypass`: given without the engine; `padding`: bytes that came back with it.
    pub(crate) fn on_pong(
        &mut self,
        peer: PeerId,
        index: usize,
        id: u64,
        bypass: bool,
        padding: usize,
        by_stream: bool,
    ) {
        let now = self.clock.now();
        self.proving(peer, index, id, padding, by_stream);
        if !by_stream {
            self.mtu_answered(peer, index, id, padding + PACKET_HEADER_BYTES);
        }
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        let Some(sent_at) = path.evidence.asked_at(id) else { return };
        if !by_stream {
            self.route_answers(peer, index, sent_at);
        }
        self.end_of_deafness(peer);
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        let closed = path.evidence.close(id);
        // what a dead process left in its kernel's buffers also arrives, but it answers no query that was sent later
        if p.signs.refusals().is_none_or(|r| sent_at > r.first) {
            self.lives(peer);
        }
        let p = &mut self.peers[peer];
        let oldest = p.oldest_question().unwrap_or(now);
        let path = &mut p.paths[index];
        path.lane.sample(now.since(sent_at));
        let took = now.since(sent_at);
        self.rails.sample(path.rail(), took, took, now);
        if path.evidence.answered(sent_at, closed.after_gap, oldest, now) {
            p.carriers.unsettle();
        }
        let number_of_answers = path.evidence.answers();
        self.port_answers(peer, index);
        self.adapters_may_return(peer, index, sent_at);
        let p = &mut self.peers[peer];
        let path = &mut p.paths[index];
        if !bypass {
            path.evidence.engine_answers();
            // the engine acknowledges before it answers: what it should have received by then and did not is lost
            let lost = path.lane.datagrams_mut().take_older(sent_at);
            if !lost.is_empty() {
                self.counters.datagrams_lost += lost.len() as u64;
                let longest = lost.iter().map(Sent::bytes_on_wire).max().unwrap_or(0);
                self.mtu_doubt(peer, index, longest);
                for s in &lost {
                    self.requeue(peer, s);
                }
                self.blame(peer, index, &lost, Channel::Datagram);
                self.mark(peer);
            }
            let bulk_lost = self.bulk_answered(peer, index, sent_at);
            if !by_stream {
                // this datagram arrived, and those that carried something did not
                if bulk_lost {
                    self.bulk_vanished(peer, index);
                }
                if !lost.is_empty() {
                    self.small_vanished(peer, index);
                }
            }
            if !by_stream {
                // a stream that answers does not stand still: only its acknowledgements may be lost
                self.peers[peer].paths[index].evidence.weigh_later(sent_at);
            }
        }
        let path = &self.peers[peer].paths[index];
        if path.health() == Health::Suspect && path.evidence.is_answered() && path.link_lost_at().is_none() {
            self.clear(peer, index);
        } else if closed.relieved {
            self.choose_primary(peer);
        }
        let enough = number_of_answers >= PROBATION_ANSWERS;
        if enough
            && self.peers[peer].paths[index].health() == Health::Probation
            && self.proof_rendered(peer, index)
        {
            self.shift(peer, index, HealthEvent::Proven);
            self.path_up(peer, index);
        }
        if by_stream {
            self.stream_answered(peer, index, sent_at);
        }
        // judged when everything that arrived has been seen, not between two answers (hazard H12)
        self.schedule(peer, now);
    }

    pub(crate) fn clear(&mut self, peer: PeerId, index: usize) {
        self.shift(peer, index, HealthEvent::Clear);
        self.event(EventKind::PathCleared, peer, Some(index));
        self.choose_primary(peer);
        self.mark(peer);
        self.mark_streams(peer);
    }

    /// The engine answers on this path, and one of its streams stands still: TCP waits in its back-off, or the
    /// connection died without a sign.
    ///
    /// Only once everything that arrived has been processed: an engine that waited for a core answers first and reads
    /// its streams then, so the acknowledgement arrives right after the answer.
    fn replace_stuck_streams(&mut self, peer: PeerId, index: usize) {
        let Some(asked_at) = self.peers[peer].paths[index].evidence.weigh() else { return };
        for sid in self.peers[peer].paths[index].streams().collect::<SmallVec<[_; 4]>>() {
            self.replace_stuck_stream(peer, index, sid, asked_at);
        }
    }

    /// The same for one stream, when a query sent at `asked_at` was answered.
    fn replace_stuck_stream(&mut self, peer: PeerId, index: usize, sid: StreamId, asked_at: Time) {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let path = &p.paths[index];
        let s = &self.streams[sid];
        let rate = path.lane_of(s.lane()).map_or_else(|| path.lane.rate(), Lane::rate);
        let waits = s.waits();
        let progress = s.progress();
        if !waits || progress >= asked_at {
            return;
        }
        let (silence, silence_end) = p.hearing.last_silence();
        let after_silence =
            silence > SILENCE && now.since(silence_end) < Duration::from_secs(2) && progress < silence_end;
        let stuck = self.options.local_timeout;
        let patience = if after_silence { stuck.min(STUCK_STREAM_AFTER_SILENCE) } else { stuck };
        let slow = Duration::from_secs_f64((4.0 * 65536.0 / rate).min(10.0));
        let since = progress.max(if after_silence { silence_end } else { progress });
        let patience = patience.max(slow);
        if now.since(since) > patience && path.evidence.answers_of_engine() >= 2 {
            if self.remedies.stuck_streams_are_looked_at() {
                self.streams[sid].inspect(since, patience);
                self.output.act(Action::InspectStream { stream: sid });
            } else {
                self.fail_stream(sid, Witness::Query, true);
            }
        }
    }

    /// The kernel's report on a stream that stands still. If the peer's kernel has every byte, neither TCP nor the rail
    /// is at fault: on a busy machine the peer's process answers between two turns and has not read its streams yet. If it
    /// acknowledges more and more, the stream waits its turn among many. A fresh stream would not help.
    pub(crate) fn weigh_stuck_stream(&mut self, sid: StreamId, told: Option<&FarKernel>) {
        let now = self.clock.now();
        let unread = self.options.local_timeout * UNREAD_STREAM_PATIENCE;
        if self.streams.get_mut(sid).is_some_and(|s| s.is_stuck(told, unread, now)) {
            self.fail_stream(sid, Witness::Query, true);
        }
    }

    /// How long an answer on a path may take, `usual` unless something shows that it takes longer.
    pub(crate) fn answer_patience(&self, path: &Path, usual: Duration) -> Duration {
        let floor = if path.lane.rtt().min().is_some() { usual } else { UNMEASURED_PATIENCE };
        // a seldom queried path has not measured yet that many processes send to one place (seed 9316)
        let crowd = if self.remedies.crowds_are_patient() {
            self.rails.answer_patience(path.rail(), self.clock.now())
        } else {
            Duration::ZERO
        };
        path.lane.rtt().patience(floor.max(crowd))
    }

    /// Queries on a path that stayed unanswered for `patience`, while another path of the peer answered.
    pub(crate) fn unanswered(&self, peer: PeerId, index: usize, patience: Duration) -> usize {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let path = &p.paths[index];
        let asked = path.evidence.open_times();
        let late = || asked.clone().filter(|&asked| now.since(asked) >= patience);
        if !self.remedies.differential_query() {
            return moments(late());
        }
        let round_trip = path.lane.rtt().expected();
        let others = p.paths.iter().enumerate().filter(|(i, o)| *i != index && o.health().connected());
        let witnessed = |o: &Path| {
            moments(late().filter(|&asked| o.evidence.testifies(asked, round_trip, patience, now)))
        };
        others.map(|(_, o)| witnessed(o)).max().unwrap_or(0)
    }

    /// Whether something that we sent on a path is not acknowledged.
    pub(super) fn has_under_way(&self, path: &Path) -> bool {
        !path.lane.datagrams().is_empty()
            || path.lane.bulk().oldest().is_some()
            || path.streams().filter_map(|s| self.streams.get(s)).any(|s| s.waits())
    }

    /// Weighs the evidence against every path of a peer.
    pub(crate) fn judge(&mut self, peer: PeerId) {
        let now = self.clock.now();
        if self.absent_until.is_some_and(|t| now < t) {
            // this process was away: what arrived meanwhile is drained first (hazard H12)
            return;
        }
        let differential = self.remedies.differential_query();
        for index in 0..self.peers[peer].paths.len() {
            self.replace_stuck_streams(peer, index);
            let path = &self.peers[peer].paths[index];
            if !path.health().connected() {
                continue;
            }
            let Some((first_id, first_at)) = path.evidence.first_open() else { continue };
            let waited_for = path.health() == Health::Probation || self.has_under_way(path);
            let usual = if waited_for { ANSWER_PATIENCE } else { IDLE_ANSWER_PATIENCE };
            let patience = self.answer_patience(path, usual);
            // frames of its own stream, or bulk datagrams, get through: the network is full of our own bulk, or only datagrams are blocked
            let stream_works = differential
                && (path
                    .streams()
                    .filter_map(|s| self.streams[s].flight().acked_at())
                    .any(|t| t > first_at + patience)
                    || path.evidence.bulk_acked_at().is_some_and(|t| t > first_at + patience)
                    || self.carries_elsewhere(peer, index, first_at + patience));
            let doubt = self.answer_patience(path, DOUBT_PATIENCE);
            if self.unanswered(peer, index, patience) >= FAIL_QUERIES && !stream_works {
                let heard = path.evidence.heard_at().is_some_and(|h| h > first_at + patience);
                let direction = match (heard, path.evidence.peer_heard() >= first_id) {
                    (true, _) => Direction::Out,
                    (false, true) => Direction::In,
                    (false, false) => Direction::Both,
                };
                self.fail_path(peer, index, Witness::Query, direction);
            } else if matches!(path.health(), Health::Up | Health::Standby)
                && self.unanswered(peer, index, doubt) >= DOUBT_QUERIES
                && self.shift(peer, index, HealthEvent::Doubt)
            {
                self.event(EventKind::PathSuspect, peer, Some(index));
                self.choose_primary(peer);
                self.hedge(peer, index);
            } else if matches!(self.peers[peer].paths[index].health(), Health::Up | Health::Standby) {
                self.look_for_sign(peer, index);
                if !stream_works && self.alone_and_silent(peer, index, doubt) {
                    self.hurry_others(peer, now);
                }
            }
            let p = &self.peers[peer];
            let path = &p.paths[index];
            if path.evidence.is_doubted() && matches!(path.health(), Health::Up | Health::Standby) {
                // suspected as soon as the next query and its witness are old enough, not only when another query is
                // sent
                let old =
                    path.evidence.open_times().filter_map(|t| p.answered_beside(index, t)).map(|t| t + doubt);
                if let Some(at) = old.filter(|&at| at > now).min() {
                    self.schedule(peer, at);
                }
            }
        }
    }

    /// Whether a path is the only one that carries, and does not answer. No other can testify that the peer is not merely busy, so this is no
    /// evidence against the path; enough to try the others.
    fn alone_and_silent(&self, peer: PeerId, index: usize, patience: Duration) -> bool {
        let now = self.clock.now();
        let paths = &self.peers[peer].paths;
        let late = paths[index].evidence.open_times().filter(|&asked| now.since(asked) >= patience);
        let mut others = paths.iter().enumerate().filter(|(i, _)| *i != index);
        moments(late) >= DOUBT_QUERIES && !others.any(|(_, o)| o.health().connected())
    }

    /// Sends a second time, on the other paths and within the budget, what a suspected path has not delivered.
    pub(crate) fn hedge(&mut self, peer: PeerId, index: usize) {
        let percent = u64::from(self.options.hedge_percent);
        let p = &self.peers[peer];
        if percent > 0 && p.paths.iter().any(|path| path.health() == Health::Up) {
            self.hedge_within(peer, index, p.hedge_budget(percent));
        }
    }

    /// The same, up to so many bytes.
    pub(super) fn hedge_within(&mut self, peer: PeerId, index: usize, mut budget: u64) {
        let (bulk_moved, mut copies) = self.bulk_hedge(peer, index, &mut budget);
        // what an adapter may still write is sent nowhere else before that is over: its adapter leads the stream over
        // another path, or a fence of the stream is requested at once
        let mut saved: SmallVec<[StreamId; 4]> = SmallVec::new();
        for s in self.peers[peer].paths[index].streams().collect::<SmallVec<[_; 4]>>() {
            if self.first_aid(peer, s) {
                saved.push(s);
            } else if self.is_placing(s) {
                self.fail_stream(s, Witness::Fence, true);
            }
        }
        let p = &mut self.peers[peer];
        let streams: SmallVec<[StreamId; 4]> =
            p.paths[index].streams().filter(|s| !saved.contains(s)).collect();
        p.paths[index].lane.datagrams_mut().hedge(&mut budget, &mut copies);
        for s in &streams {
            self.streams[*s].hedge_flight(&mut budget, &mut copies);
        }
        // frames that were cut and not begun simply go elsewhere; the half-written one is copied
        let mut moved = Vec::new();
        for s in &streams {
            self.streams[*s].hedge_outbox(&mut budget, &mut moved, &mut copies);
        }
        moved.extend(bulk_moved.into_iter().map(|i| (i, false)));
        for (i, hedged) in moved {
            self.requeue_item(peer, i, hedged);
        }
        let mut bytes = 0;
        for i in copies {
            bytes += self.requeue_item(peer, i, true);
        }
        self.peers[peer].hedged(bytes);
        self.counters.bytes_hedged += bytes;
        self.mark(peer);
        self.mark_streams(peer);
    }

    /// Queries a peer when something is late, and idle paths now and then.
    pub(crate) fn query_timer(&mut self, peer: PeerId) -> Time {
        if !self.options.protection {
            return self.unprotected_timer(peer);
        }
        let now = self.clock.now();
        let idle = self.options.idle_probe;
        let mut next = Time::NEVER;
        let (mut late, mut pressed, mut resting) = (false, false, false);
        for index in 0..self.peers[peer].paths.len() {
            let path = &self.peers[peer].paths[index];
            if !path.health().connected() {
                continue;
            }
            if path.health() == Health::Suspect {
                late = true;
            }
            // a query for everything that waits for its turn would make the turns longer still
            let patient = self.remedies.crowds_are_patient();
            let crowd = if patient { self.rails.wait_patience(path.rail(), now) } else { Duration::ZERO };
            let mut due = |at: Time| if at <= now { late = true } else { next = next.min(at) };
            let mut watch = |since: Time, patience: Duration| due(since + patience.max(crowd));
            if let Some(s) = path.lane.datagrams().oldest() {
                watch(s.at(), path.patience(self.options.ack_timeout));
            }
            if let Some(at) = path.lane.bulk().oldest() {
                watch(at, path.patience(self.options.ack_timeout));
            }
            for s in path.streams().filter_map(|s| self.streams.get(s)) {
                if s.waits() {
                    watch(s.flight().progress_at(), path.lane.rtt().patience(self.options.ack_timeout));
                }
            }
            match path.evidence.open_since() {
                // queried together with its witness: when the witness answers, the peer is not busy
                Some(asked) if path.evidence.is_pressed() => {
                    due(asked + path.lane.rtt().patience(QUERY_REPEATED));
                    pressed = true;
                }
                Some(asked) => watch(asked, path.lane.rtt().patience(ANSWER_PATIENCE)),
                None => {}
            }
            next = next.min(self.look_at_routes(peer, index));
            let path = &self.peers[peer].paths[index];
            if let Some(at) = path.lane.bulk().tail_at() {
                if at <= now {
                    self.peers[peer].paths[index].lane.bulk_mut().tail_asked(now);
                    self.ping(peer, index);
                } else {
                    next = next.min(at);
                }
            }
            let path = &self.peers[peer].paths[index];
            let probation = path.health() == Health::Probation;
            // what arrives on the stream proves nothing about blocked datagrams
            let asks_on = probation || !path.datagrams.work();
            let probe_at = if asks_on { path.next_probe() } else { self.probe_turn(peer, index) };
            if now >= probe_at {
                self.ping(peer, index);
                self.prove_by_stream(peer, index);
                let gap = if probation { QUERY_INTERVAL } else { idle };
                self.peers[peer].paths[index].probe_at(now + gap);
                resting |= !probation;
                next = next.min(now + gap.min(ANSWER_PATIENCE));
            } else {
                next = next.min(probe_at);
                resting |= !asks_on && self.is_left_alone(peer, index);
            }
        }
        if resting {
            // nothing has arrived for a while: a good time to tidy up
            self.rest(peer);
        }
        if !late {
            self.peers[peer].questions.end_rounds();
            return next;
        }
        let due = self.peers[peer].questions.next_round(pressed, now);
        if now < due {
            return next.min(due);
        }
        for index in 0..self.peers[peer].paths.len() {
            if self.peers[peer].paths[index].health().connected() {
                self.ping(peer, index);
            }
        }
        next.min(self.peers[peer].questions.end_round(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_one_moment_count_once() {
        let at = |us: &[u64]| {
            moments(us.iter().map(|&us| Time::from_ns(us * 1000)).collect::<Vec<_>>().into_iter())
        };
        assert_eq!(at(&[]), 0);
        assert_eq!(at(&[10, 10, 10, 500]), 1);
        assert_eq!(at(&[10, 10, 900, 1010, 1500, 6000]), 3, "each is compared with the last that counted");
    }
}
