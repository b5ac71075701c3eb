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

/// Kernels that ask for a link-layer address in vain ask again after so long (RFC 4861 §10, arp(7)). Rails that are first used at one moment,
/// and break in step with that, would be found broken again and again: their first contacts lie apart.
const KERNEL_ASKS: Duration = ms(1000);

impl Engine {
    /// Something is wanted of a peer: connect what is not connected.
    pub(crate) fn want(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        let now = self.clock.now();
        if !p.want(now) {
            return;
        }
        let n = self.peers[pi].paths.len();
        let apart = match self.has_reached_another_host || !self.remedies.first_contacts_lie_apart() {
            true => Duration::ZERO,
            false => KERNEL_ASKS / (n as u32).max(1),
        };
        let mut at = now;
        for xi in 0..n {
            let x = &mut self.peers[pi].paths[xi];
            // where the peer's own proposal is under way, a larger one would only undo it
            let begun = x.epochs.accepted_until().is_some_and(|t| now < t);
            if x.health() != Health::Idle || begun || !self.rails[x.rail()].up {
                continue;
            }
            if at > now {
                x.retry.first_at(at);
                self.schedule(pi, at);
            } else {
                self.shift(pi, xi, HealthEvent::Connect);
                self.propose(pi, xi);
            }
            at = at + apart;
        }
        self.schedule(pi, now + PARTITION);
    }

    /// A path of a peer is connected: others have their first contact now.
    pub(crate) fn contact_others(&mut self, pi: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let far = |x: &Path| x.health().connected() && !self.rails.has_place(&x.remote());
        self.has_reached_another_host |= p.paths.iter().any(far);
        let wanted = p.is_wanted();
        let waits = |x: &&mut Path| wanted && x.health() == Health::Idle && x.retry.at().is_some();
        p.paths.iter_mut().filter(waits).for_each(|x| x.retry.first_at(now));
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
        for pi in 0..self.peers.len() {
            for xi in 0..self.peers[pi].paths.len() {
                if self.peers[pi].paths[xi].rail() != rail {
                    continue;
                }
                let to = self.peers[pi].paths[xi].remote();
                match event {
                    // a peer on this very host is reached without the link
                    RailEvent::Down if self.rails.has_place(&to) => {}
                    RailEvent::Down => self.fail_path(pi, xi, Witness::Link, Direction::Both),
                    RailEvent::Up if !self.remedies.link_up_is_heard() => {}
                    RailEvent::Up => {
                        let p = &mut self.peers[pi];
                        let all_down = !p.paths.iter().any(|x| x.health().carries());
                        let (stays, wanted) = (p.gone().is_none(), p.is_wanted());
                        let x = &mut p.paths[xi];
                        if stays && matches!(x.health(), Health::Down | Health::Idle) && wanted {
                            x.retry.link_up(all_down, now);
                            self.schedule(pi, now);
                        } else if stays && x.epochs.hurry(now) {
                            // a handshake that nobody could hear goes on at once
                            self.schedule(pi, now);
                        }
                    }
                    RailEvent::SendError => {
                        // the kernel may be mistaken for a moment: ask, and let the answer decide
                        let x = &self.peers[pi].paths[xi];
                        if x.health().connected() && self.peers[pi].questions.ask_soon(now) {
                            self.schedule(pi, now);
                        }
                    }
                }
            }
        }
    }

    // ---- failover ----------------------------------------------------------------------------------------------

    /// Puts what a lost record carried back into the queues; returns the bytes.
    pub(crate) fn requeue(&mut self, pi: usize, s: &Sent) -> u64 {
        if s.is_hedged() {
            // a copy is under way on another path already
            let lost = s.items().iter().any(|i| self.peers[pi].needs(i) && !self.hedge_alive(pi, i));
            if !lost || !self.remedies.lost_hedges_are_sent() {
                return 0;
            }
        }
        let mut bytes = 0;
        for i in s.items() {
            bytes += self.requeue_item(pi, *i, s.is_hedged());
        }
        bytes
    }

    /// Whether an item waits or travels elsewhere.
    pub(crate) fn hedge_alive(&self, pi: usize, item: &Item) -> bool {
        let p = &self.peers[pi];
        p.backlog.goes_again(item)
            || p.paths.iter().filter(|x| x.health() == Health::Up).any(|x| {
                x.lane.datagrams().iter().any(|s| s.items().contains(item))
                    || x.streams().any(|s| self.streams[s].carries(item))
            })
    }

    pub(crate) fn requeue_item(&mut self, pi: usize, item: Item, hedged: bool) -> u64 {
        let p = &mut self.peers[pi];
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
                    p.farewell.is_lost();
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
    pub(crate) fn fail_path(&mut self, pi: usize, xi: usize, witness: Witness, direction: Direction) {
        let now = self.clock.now();
        let x = &self.peers[pi].paths[xi];
        let before = x.health();
        match before {
            Health::Connecting | Health::Recovering => {
                self.peers[pi].paths[xi].epochs.withdraw();
                self.shift(pi, xi, HealthEvent::Fail);
                self.fence_attempts(pi, xi);
                self.retry_later(pi, xi);
                return;
            }
            Health::Idle | Health::Down | Health::Draining => return,
            Health::Up | Health::Suspect | Health::Probation | Health::Standby => {}
        }
        // nothing stands still on a path on which nothing is under way and nothing was asked
        let written = x.streams().filter_map(|s| self.streams.get(s)).filter(|s| s.waits());
        let written = written.map(|s| s.flight().progress_at()).min();
        let asked = x.evidence.open_since();
        let waits_since =
            [x.lane.datagrams().oldest().map(Sent::at), written, asked].into_iter().flatten().min();
        let stalled_since = waits_since.map(|t| x.evidence.heard_at().map_or(t, |h| h.max(t)));
        let mut streams = x.attempts();
        // planted: the others are forgotten
        let most = if self.remedies.lanes_fail_with_their_path() { usize::MAX } else { 1 };
        streams.extend(x.streams().take(most));
        let records: Vec<Sent> = self.peers[pi].paths[xi].lane.datagrams_mut().take_all();
        // ghosts: an acknowledgement that comes late over another path still counts
        let epoch = self.peers[pi].paths[xi].epoch();
        let x = &mut self.peers[pi].paths[xi];
        for (i, lane) in x.lanes_mut().enumerate() {
            let datagrams = if i == 0 { &records[..] } else { &[] };
            let on_stream = lane.stream().into_iter().flat_map(|s| self.streams[s].flight().iter());
            lane.bury(epoch, datagrams, on_stream);
        }
        let bulk = self.bulk_drain(pi, xi);
        self.shift(pi, xi, HealthEvent::Fail);
        if witness != Witness::NewEpoch {
            // whoever began the new epoch has found the fault, and has given us up
            self.breaks_unprotected(pi);
        }
        let mut resent_bytes = 0;
        for i in bulk {
            resent_bytes += self.requeue_item(pi, i, false);
        }
        for r in &records {
            resent_bytes += self.requeue(pi, r);
        }
        for s in streams {
            resent_bytes += self.drop_stream(s);
        }
        let p = &mut self.peers[pi];
        let gone = p.gone().is_some();
        let x = &mut p.paths[xi];
        x.end_epoch(now);
        p.incoming.tell_again();
        if before != Health::Probation {
            x.retry.fails(now);
            self.counters.paths_down += 1;
        }
        if self.remedies.shared_verdicts() && !gone && !matches!(witness, Witness::Peer | Witness::NewEpoch) {
            let path = x.id();
            p.backlog.tell(Item::Verdict { path, epoch, witness });
        }
        if !gone && before != Health::Probation {
            let stalled = stalled_since.map_or(Duration::ZERO, |t| now.since(t));
            self.event(EventKind::PathDown { witness, direction, resent_bytes, stalled }, pi, Some(xi));
        }
        self.choose_primary(pi);
        self.retry_later(pi, xi);
        let p = &mut self.peers[pi];
        if !p.paths.iter().any(|x| x.health().carries()) {
            // the last one broke: the others are tried at once, whatever was held against them
            for x in p.paths.iter_mut().filter(|x| x.health() == Health::Down) {
                x.retry.hurry(now);
            }
        }
        if !self.peers[pi].paths[xi].is_draining() {
            self.fence(pi, xi, false);
        }
        self.mark(PeerId(pi as u32));
        self.mark_streams(PeerId(pi as u32));
    }

    /// Closes the attempts of a handshake that failed. They need no fence: they never carried anything.
    pub(crate) fn fence_attempts(&mut self, pi: usize, xi: usize) {
        for a in self.peers[pi].paths[xi].attempts() {
            self.close_stream(a);
        }
        self.peers[pi].paths[xi].lanes_mut().for_each(|l| l.connection_mut().all_closed());
    }

    /// Nothing of the old epoch can touch memory any more.
    pub(crate) fn fence(&mut self, pi: usize, xi: usize, by_windows: bool) {
        if by_windows {
            self.peers[pi].paths[xi].lanes_mut().for_each(|l| l.connection_mut().all_closed());
        }
        self.shift(pi, xi, HealthEvent::Fenced);
        let now = self.clock.now();
        // the link may have come back while the old streams were being closed
        let x = &self.peers[pi].paths[xi];
        if x.health() == Health::Down && x.retry.at().is_none() && self.rails[x.rail()].up {
            self.retry_later(pi, xi);
        }
        self.schedule(pi, now);
    }

    pub(crate) fn retry_later(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let all_down = !self.peers[pi].paths.iter().any(|x| x.health().carries());
        let jitter = self.rng.below(1000);
        let up = {
            let x = &self.peers[pi].paths[xi];
            self.rails[x.rail()].up
        };
        let p = &mut self.peers[pi];
        if p.gone().is_some() {
            p.paths[xi].retry.stop();
            return;
        }
        if let Some(at) = p.paths[xi].retry.later(up, all_down, jitter as u32, now) {
            self.schedule(pi, at);
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
        while let Some(peer) = self.timers.due(now) {
            self.timers.called(&mut self.peers[peer.0 as usize].timer);
            self.peer_timer(peer.0 as usize);
        }
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

    pub(crate) fn peer_timer(&mut self, pi: usize) {
        let now = self.clock.now();
        if self.peers[pi].is_self() || self.peers[pi].gone().is_some_and(Gone::is_final) {
            return;
        }
        let mut next = Time::NEVER;
        let mut acks = false;
        for x in &self.peers[pi].paths {
            for d in x.lanes().flat_map(|(_, l)| l.acks().dues()) {
                if d <= now {
                    acks = true;
                } else {
                    next = next.min(d);
                }
            }
        }
        if acks || self.peers[pi].backlog.has_control() {
            self.mark(PeerId(pi as u32));
        }
        if self.peers[pi].gone().is_some() {
            // a peer that is gone acknowledges nothing: memory that an adapter still reads for it is wanted back (seed 4237)
            next = next.min(self.loan_timer(pi));
            if next < Time::NEVER {
                self.schedule(pi, next);
            }
            return;
        }
        for xi in 0..self.peers[pi].paths.len() {
            next = next.min(self.handshake_timer(pi, xi));
            next = next.min(self.stream_timer(pi, xi));
            next = next.min(self.mtu_timer(pi, xi));
            next = next.min(self.passage_timer(pi, xi));
        }
        next = next.min(self.loan_timer(pi));
        self.judge(pi);
        if self.peers[pi].carriers.are_unsettled() {
            self.choose_primary(pi);
        }
        next = next.min(self.query_timer(pi));
        if self.options.protection {
            next = next.min(self.silence_timer(pi));
        }
        if self.peers[pi].gone().is_some() {
            return;
        }
        let mut trains = false;
        for x in &self.peers[pi].paths {
            match x.lane.bulk().wake_at() {
                Some(at) if at > now => next = next.min(at),
                Some(_) => trains = true,
                None => trains |= x.lacks_stream(),
            }
        }
        if trains {
            self.mark_trains(pi);
        }
        if next < Time::NEVER {
            self.schedule(pi, next.max(now + Duration::from_micros(100)));
        }
    }
}
