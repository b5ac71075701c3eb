//! Failover and recovery: links, requeueing, retries, timers.
//!
//! Owns: what happens to a path that broke, and when it is tried again. Recovery never gives up. Sources: MN-uDAPL §4.2.2
//! (retransmission on what is left), §4.2.3 (asynchronous recovery, partitions).

use super::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::health::{Health, HealthEvent};
use crate::lane::sent::Sent;
use crate::message::item::Item;
use crate::path::Path;
use crate::peer::{Gone, PARTITION};
use crate::types::*;
use std::time::Duration;

/// Kernels repeat an unanswered request for a link-layer address after this time (RFC 4861 §10, arp(7)). Rails that are
/// first used at one moment, and break in step with that, would be found broken again and again: their first contacts
/// lie apart.
const KERNEL_ASKS: Duration = ms(1000);
/// Calls of a peer's timer in a row, on average, after which input is read before the next ones. A few are usual: one step of a handshake
/// requests the next.
const CALLS_EACH: usize = 64;
/// By how much the others are postponed then.
const POSTPONED: Duration = Duration::from_micros(100);

impl Engine {
    /// A peer is needed: connect what is not connected.
    pub(crate) fn want(&mut self, peer: PeerId) {
        let p = &mut self.peers[peer];
        let now = self.clock.now();
        if !p.want(now) {
            return;
        }
        let n = self.peers[peer].paths.len();
        let apart = match self.has_reached_another_host || !self.remedies.first_contacts_lie_apart() {
            true => Duration::ZERO,
            false => KERNEL_ASKS / (n as u32).max(1),
        };
        let mut at = now;
        for index in 0..n {
            let path = &mut self.peers[peer].paths[index];
            // where the peer's own proposal is under way, a larger one would only undo it
            let begun = path.epochs.accepted_until().is_some_and(|t| now < t);
            if path.health() != Health::Idle || begun || !self.rails[path.rail()].up {
                continue;
            }
            if at > now {
                path.retry.first_at(at);
                self.schedule(peer, at);
            } else {
                self.shift(peer, index, HealthEvent::Connect);
                self.propose(peer, index);
            }
            at = at + apart;
        }
        self.schedule(peer, now + PARTITION);
    }

    /// A path of a peer is connected: others have their first contact now.
    pub(crate) fn contact_others(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        let far = |path: &Path| path.health().connected() && !self.rails.has_place(&path.remote());
        self.has_reached_another_host |= p.paths.iter().any(far);
        let wanted = p.is_wanted();
        let waits = |path: &&mut Path| wanted && path.health() == Health::Idle && path.retry.at().is_some();
        p.paths.iter_mut().filter(waits).for_each(|path| path.retry.first_at(now));
    }

    // ---- rails -------------------------------------------------------------------------------------------------

    /// Something happened to a local rail.
    pub fn handle_rail(&mut self, rail: RailId, event: RailEvent, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        let known = match event {
            RailEvent::Down => self.rails.set_up(rail, false),
            RailEvent::Up => self.rails.set_up(rail, true),
            RailEvent::SendError => self.rails.get(usize::from(rail.0)).is_some(),
        };
        if !known {
            return;
        }
        for peer in self.peers.ids() {
            for index in 0..self.peers[peer].paths.len() {
                if self.peers[peer].paths[index].rail() != rail {
                    continue;
                }
                let to = self.peers[peer].paths[index].remote();
                match event {
                    // a peer on this very host is reached without the link
                    RailEvent::Down if self.rails.has_place(&to) => {}
                    RailEvent::Down if self.outlives_link(peer, index) => {}
                    RailEvent::Down => self.fail_path(peer, index, Witness::Link, Direction::Both),
                    RailEvent::Up if !self.remedies.link_up_is_heard() => {}
                    RailEvent::Up => {
                        let p = &mut self.peers[peer];
                        p.paths[index].link_returns();
                        let all_down = !p.paths.iter().any(|path| path.health().carries());
                        let (stays, wanted) = (p.gone().is_none(), p.is_wanted());
                        let path = &mut p.paths[index];
                        if stays && matches!(path.health(), Health::Down | Health::Idle) && wanted {
                            path.retry.link_up(all_down, now);
                            self.schedule(peer, now);
                        } else if stays && path.epochs.hurry(now) {
                            // a handshake that could not arrive goes on at once
                            self.schedule(peer, now);
                        }
                    }
                    RailEvent::SendError => {
                        // the kernel may be mistaken for a moment: query, and let the answer decide
                        let path = &self.peers[peer].paths[index];
                        if path.health().connected() && self.peers[peer].questions.ask_soon(now) {
                            self.schedule(peer, now);
                        }
                    }
                }
            }
        }
    }

    // ---- failover ----------------------------------------------------------------------------------------------

    /// Puts what a lost record carried back into the queues; returns the bytes.
    pub(crate) fn requeue(&mut self, peer: PeerId, s: &Sent) -> u64 {
        if s.is_hedged() {
            // a copy is under way on another path already
            let lost = s.items().iter().any(|i| self.peers[peer].needs(i) && !self.hedge_alive(peer, i));
            if !lost || !self.remedies.lost_hedges_are_sent() {
                return 0;
            }
        }
        let mut bytes = 0;
        for i in s.items() {
            bytes += self.requeue_item(peer, *i, s.is_hedged());
        }
        bytes
    }

    /// Whether an item waits or travels elsewhere.
    pub(crate) fn hedge_alive(&self, peer: PeerId, item: &Item) -> bool {
        let p = &self.peers[peer];
        p.backlog.goes_again(item)
            || p.paths.iter().filter(|path| path.health() == Health::Up).any(|path| {
                path.lane.datagrams().iter().any(|s| s.items().contains(item))
                    || path.streams().any(|s| self.streams[s].carries(item))
            })
    }

    pub(crate) fn requeue_item(&mut self, peer: PeerId, item: Item, hedged: bool) -> u64 {
        let p = &mut self.peers[peer];
        if !p.needs(&item) {
            return 0;
        }
        let small_max = p.small_bytes_max();
        let len = match item {
            Item::Frag { seq, at, len } => {
                p.outgoing.goes_again(seq, at);
                p.backlog.repeat_bulk(item, hedged);
                u64::from(len)
            }
            Item::Eager { seq } => {
                let len = p.outgoing.get(seq).expect("it is needed").envelope().total;
                if len as usize <= small_max {
                    p.backlog.repeat(item);
                } else {
                    p.backlog.repeat_bulk(item, hedged);
                }
                len
            }
            Item::Rts { .. } => {
                p.backlog.repeat(item);
                0
            }
            _ => {
                if item == Item::Goodbye {
                    p.farewell.lost();
                }
                if self.remedies.control_survives() {
                    p.backlog.tell(item);
                }
                0
            }
        };
        self.counters.bytes_resent += len;
        len
    }

    /// A path is out of service.
    pub(crate) fn fail_path(&mut self, peer: PeerId, index: usize, witness: Witness, direction: Direction) {
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        let before = path.health();
        match before {
            Health::Connecting | Health::Recovering => {
                self.peers[peer].paths[index].epochs.withdraw();
                self.shift(peer, index, HealthEvent::Fail);
                self.fence_attempts(peer, index);
                self.retry_later(peer, index);
                return;
            }
            Health::Idle | Health::Down | Health::Draining => return,
            Health::Up | Health::Suspect | Health::Probation | Health::Standby => {}
        }
        // a path does not stand still if nothing is under way on it and no query is open
        let written = path.streams().filter_map(|s| self.streams.get(s)).filter(|s| s.waits());
        let written = written.map(|s| s.flight().progress_at()).min();
        let asked = path.evidence.open_since();
        let waits_since =
            [path.lane.datagrams().oldest().map(Sent::at), written, asked].into_iter().flatten().min();
        let stalled_since = waits_since.map(|t| path.evidence.heard_at().map_or(t, |h| h.max(t)));
        let mut streams = path.attempts();
        // planted: the others are forgotten
        let most = if self.remedies.lanes_fail_with_their_path() { usize::MAX } else { 1 };
        streams.extend(path.streams().take(most));
        let records: Vec<Sent> = self.peers[peer].paths[index].lane.datagrams_mut().take_all();
        // ghosts: an acknowledgement that comes late over another path still counts
        let epoch = self.peers[peer].paths[index].epoch();
        let path = &mut self.peers[peer].paths[index];
        for (i, lane) in path.lanes_mut().enumerate() {
            let datagrams = if i == 0 { &records[..] } else { &[] };
            let on_stream = lane.stream().into_iter().flat_map(|s| self.streams[s].flight().iter());
            lane.bury(epoch, datagrams, on_stream);
        }
        let bulk = self.bulk_drain(peer, index);
        let with = self.broke_with(&self.peers[peer], index);
        self.shift(peer, index, HealthEvent::Fail);
        if witness != Witness::NewEpoch {
            // the peer that began the new epoch has found the fault, and has given us up
            self.breaks_unprotected(peer);
        }
        let mut resent_bytes = 0;
        for i in bulk {
            resent_bytes += self.requeue_item(peer, i, false);
        }
        for r in &records {
            resent_bytes += self.requeue(peer, r);
        }
        for s in streams {
            resent_bytes += self.drop_stream(s);
        }
        self.strand(peer, index);
        let p = &mut self.peers[peer];
        let gone = p.gone().is_some();
        let path = &mut p.paths[index];
        path.end_epoch(now);
        p.incoming.tell_again();
        if before != Health::Probation {
            path.retry.fails(asked.unwrap_or(now), now);
            self.counters.paths_down += u64::from(with.is_none());
        }
        if self.remedies.shared_verdicts() && !gone && !matches!(witness, Witness::Peer | Witness::NewEpoch) {
            let path = path.id();
            p.backlog.tell(Item::Verdict { path, epoch, witness });
        }
        if !gone && before != Health::Probation {
            let stalled = stalled_since.map_or(Duration::ZERO, |t| now.since(t));
            let kind = EventKind::PathDown { witness, direction, resent_bytes, stalled, with };
            self.event(kind, peer, Some(index));
        }
        self.query_port(peer, index);
        self.choose_primary(peer);
        self.retry_later(peer, index);
        if !self.peers[peer].paths.iter().any(|path| path.health().carries()) {
            // the last one broke
            self.hurry_others(peer, now);
        }
        if !self.peers[peer].paths[index].is_draining() {
            self.fence(peer, index, false);
        }
        self.mark(peer);
        self.mark_streams(peer);
    }

    /// Paths that are down are tried soon, whatever was held against them: nothing else works.
    pub(crate) fn hurry_others(&mut self, peer: PeerId, now: Time) {
        let down = self.peers[peer].paths.iter_mut().filter(|path| path.health() == Health::Down);
        let next = down.filter_map(|path| path.retry.hurry(now)).min();
        if let Some(at) = next {
            self.schedule(peer, at);
        }
    }

    /// Closes the attempts of a handshake that failed. They need no fence: they never carried anything.
    pub(crate) fn fence_attempts(&mut self, peer: PeerId, index: usize) {
        for a in self.peers[peer].paths[index].attempts() {
            self.close_stream(a);
        }
        self.peers[peer].paths[index].lanes_mut().for_each(|l| l.connection_mut().all_closed());
    }

    /// Nothing of the old epoch can touch memory any more.
    pub(crate) fn fence(&mut self, peer: PeerId, index: usize, by_windows: bool) {
        if by_windows {
            self.peers[peer].paths[index].lanes_mut().for_each(|l| l.connection_mut().all_closed());
        }
        self.shift(peer, index, HealthEvent::Fenced);
        let now = self.clock.now();
        // the link may have come back while the old streams were being closed
        let path = &self.peers[peer].paths[index];
        if path.health() == Health::Down && path.retry.at().is_none() && self.rails[path.rail()].up {
            self.retry_later(peer, index);
        }
        self.schedule(peer, now);
    }

    pub(crate) fn retry_later(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let all_down = !self.peers[peer].paths.iter().any(|path| path.health().carries());
        let jitter = self.rng.below(1000);
        let up = {
            let path = &self.peers[peer].paths[index];
            self.rails[path.rail()].up
        };
        let p = &mut self.peers[peer];
        if p.gone().is_some() {
            p.paths[index].retry.stop();
            return;
        }
        if let Some(at) = p.paths[index].retry.later(up, all_down, jitter as u32, now) {
            self.schedule(peer, at);
        }
    }

    // ---- timers ------------------------------------------------------------------------------------------------

    /// To be called at [`Engine::poll_timeout`] or earlier, and after every batch of input.
    pub fn handle_timeout(&mut self, now: Time) {
        self.tick(now);
        let now = self.clock.now();
        while let Some(id) = self.streams.overdue_stranger(now) {
            self.counters.strangers += 1;
            self.close_stream(id);
        }
        let (mut calls, most) = (0, CALLS_EACH * (1 + self.timers.len()));
        while let Some(peer) = self.timers.due(now) {
            calls += 1;
            self.timers.called(&mut self.peers[peer].timer);
            if calls <= most {
                self.peer_timer(peer);
            } else {
                // after what has arrived meanwhile, which a loop in here would never see
                self.schedule(peer, now + POSTPONED);
            }
        }
        self.counters.timer_storms += u64::from(calls > most);
        if self.timers.errand_is_due(now) {
            self.sweep_rails();
            self.look_for_awaited();
            self.plan_errands();
        }
    }

    /// Notes when something is due that concerns no single peer.
    pub(crate) fn plan_errands(&mut self) {
        self.timers.set_errand(self.sweep_at().into_iter().chain(self.look_at()).min());
    }

    pub(crate) fn peer_timer(&mut self, peer: PeerId) {
        let now = self.clock.now();
        if self.peers[peer].is_self() || self.peers[peer].gone().is_some_and(Gone::is_final) {
            return;
        }
        let mut next = Time::NEVER;
        let mut acks = false;
        for path in &self.peers[peer].paths {
            for d in path.lanes().flat_map(|(_, l)| l.acks().dues()) {
                if d <= now {
                    acks = true;
                } else {
                    next = next.min(d);
                }
            }
        }
        if acks || self.peers[peer].backlog.has_control() {
            self.mark(peer);
        }
        if self.peers[peer].gone().is_some() {
            if !acks {
                // what it waits for went by the route that led there
                self.leads_no_more(peer);
            }
            // a peer that is gone acknowledges nothing: memory that an adapter still reads for it is wanted back (seed 4237)
            next = next.min(self.loan_timer(peer));
            if next < Time::NEVER {
                self.schedule(peer, next);
            }
            return;
        }
        for index in 0..self.peers[peer].paths.len() {
            next = next.min(self.handshake_timer(peer, index));
            next = next.min(self.stream_timer(peer, index));
            next = next.min(self.lane_timer(peer, index));
            next = next.min(self.mtu_timer(peer, index));
            next = next.min(self.passage_timer(peer, index));
        }
        next = next.min(self.loan_timer(peer));
        next = next.min(self.link_timer(peer));
        self.judge(peer);
        if self.peers[peer].carriers.are_unsettled() {
            self.choose_primary(peer);
        }
        next = next.min(self.query_timer(peer));
        // after the queries: what is asked now still goes the way on which no answer came
        next = next.min(self.detour_timer(peer));
        if self.options.protection {
            next = next.min(self.silence_timer(peer));
        }
        if self.peers[peer].gone().is_some() {
            return;
        }
        let mut trains = false;
        for path in &self.peers[peer].paths {
            match path.lane.bulk().wake_at() {
                Some(at) if at > now => next = next.min(at),
                Some(_) => trains = true,
                None => trains |= path.demand.waits(),
            }
        }
        if trains {
            self.mark_trains(peer);
        }
        if next < Time::NEVER {
            self.schedule(peer, next.max(now + Duration::from_micros(100)));
        }
    }
}
