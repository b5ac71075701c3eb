//! Automatic path migration in the adapter: which streams are armed with which path, and what follows when an adapter has moved one.
//!
//! The software's carriers (`migration`) do the specification, and prove the alternate by queries; an adapter is loaded with it exactly while a
//! carrier is ARMED (APM §3.1.1, §3.1.2), both paths lead over one adapter, and the stream was opened here. So an armed path is one that
//! works, and is unloaded when its probes find it broken (hazard H24; the limit that APM §6 names).
//!
//! Migration by an adapter is first aid, and one witness:
//!
//! * A suspected path's streams are moved by the adapter, if they are armed, in place of the fence that hedging would request: what is under way
//!   goes on over the other port, and nothing of it is sent twice.
//! * So are those of a path whose link goes down while something is under way on them. The path is suspected, and given up when that is over, or
//!   when nothing of it has come for a while.
//! * A stream that an adapter has moved by itself makes the engine query its path at once, and every other path of the peer as a witness. The
//!   verdict stays with the answers (`query`). A path out of service gives up its streams, wherever they go.
//! * A stream whose path has answered a query from after that is brought home by the same steps: loaded with its own path, armed, moved.
//!
//! Which side loads: the one that opened the stream. Otherwise two sides that specify different alternates would undo each other's.

use super::Engine;
use super::ports::ready;
use crate::event::{Direction, EventKind, Witness};
use crate::health::{Health, HealthEvent};
use crate::migration::Migration;
use crate::peer::Peer;
use crate::report::InAdapter;
use crate::stream::{Loaded, Phase};
use crate::types::{Action, Alternate, PathId, PeerId, RailId, StreamId, Time, ms};
use smallvec::SmallVec;
use std::time::Duration;

/// A stream is brought home when its path answers a query so long after it was moved: what was under way is over by then, the user who wanted
/// it moved has unplugged the port, and a path that comes and goes does not move it each time.
const AWAY: Duration = ms(500);

/// A path whose link is down is given up when nothing has come for so long on the streams that adapters lead elsewhere. They are moved within a
/// millisecond, and their ends answer within a few round trips.
const LINK_PATIENCE: Duration = ms(20);

impl Engine {
    /// The path with which the adapters of a stream of path `index` should be loaded.
    fn adapter_alternate(&self, p: &Peer, index: usize, stream: StreamId) -> Option<usize> {
        let own = &p.paths[index];
        let probed = self.remedies.armed_paths_are_probed();
        let used = p.carriers.iter().any(|c| c.path() == index);
        if let Some(since) = self.streams.get(stream).and_then(|s| s.alternate().away_since()) {
            // the adapter may have been the first to notice that the path is dead
            let answers = own.evidence.answered_sent_at().is_some_and(|asked| asked >= since + AWAY);
            return Some(index).filter(|_| used && ready(own) && answers);
        }
        let able = |a: &usize| {
            let path = &p.paths[*a];
            let by_adapter = self.rails[own.rail()].shares_adapter_with(&self.rails[path.rail()]);
            by_adapter && own.rail() != path.rail() && (ready(path) || !probed)
        };
        let carriers = p.carriers.iter().filter(|c| c.path() == index);
        // planted: any path that is specified is loaded
        let armed = carriers.filter(|c| c.state() == Migration::Armed || !probed);
        armed.filter_map(|c| c.alternate()).find(able)
    }

    /// Loads and unloads the adapters of a peer's streams as its carriers want it.
    pub(super) fn settle_adapters(&mut self, peer: PeerId) {
        if !self.rails.any_adapter() {
            return;
        }
        for index in 0..self.peers[peer].paths.len() {
            for stream in self.peers[peer].paths[index].streams().collect::<SmallVec<[_; 4]>>() {
                let p = &self.peers[peer];
                let Some(s) = self.streams.get(stream).filter(|s| s.is_ours()) else { continue };
                let wanted = self.adapter_alternate(p, index, stream);
                let probed = self.remedies.armed_paths_are_probed();
                if wanted.is_none() && s.alternate().path().is_some() && !probed {
                    // planted: what is loaded stays loaded
                    continue;
                }
                let works = |id| p.path_index(id).is_some_and(|a| ready(&p.paths[a]));
                if s.alternate().leaves() && s.alternate().path().is_some_and(works) {
                    // it is on its way to the path that is loaded
                    continue;
                }
                let path = wanted.map(|a| p.paths[a].id());
                let alternate =
                    wanted.map(|a| Alternate { rail: p.paths[a].rail(), to: p.paths[a].remote() });
                if self.streams[stream].alternate_mut().want(path) {
                    self.output.act(Action::LoadAlternate { stream, alternate });
                }
            }
        }
    }

    /// A suspected path's stream is not to be fenced, because its adapter leads it over a path that works, or is told to.
    pub(super) fn first_aid(&mut self, peer: PeerId, stream: StreamId) -> bool {
        let Some(s) = self.streams.get(stream) else { return false };
        let p = &self.peers[peer];
        let works = |rail: RailId| p.paths.iter().any(|path| path.rail() == rail && ready(path));
        match (s.alternate().loaded(), s.alternate().away()) {
            (_, Some(rail)) if works(rail) => {
                // what was acknowledged before the suspicion may have gone by the path itself
                let now = self.clock.now();
                if let Some((peer, index)) = self.place_of(stream) {
                    self.peers[peer].paths[index].strays(now);
                }
                true
            }
            (Loaded::Armed(_, rail), None) if works(rail) => {
                self.move_by_adapter(stream);
                true
            }
            _ => false,
        }
    }

    /// The link of a path is down. False: it is to be given up at once, because nothing is under way on it that its adapters could lead over a path
    /// that works.
    pub(super) fn outlives_link(&mut self, peer: PeerId, index: usize) -> bool {
        let path = &self.peers[peer].paths[index];
        if !self.rails.any_adapter()
            || !self.remedies.armed_streams_outlive_links()
            || !matches!(path.health(), Health::Up | Health::Suspect | Health::Standby)
        {
            return false;
        }
        // the peer's writes do not show on this side
        let written = self.loans.may_write(peer, path.id());
        let busy =
            path.streams().filter(|s| self.streams.get(*s).is_some_and(|s| written || s.has_under_way()));
        let mut saved = false;
        for stream in busy.collect::<SmallVec<[_; 4]>>() {
            saved |= self.first_aid(peer, stream);
        }
        if !saved {
            return false;
        }
        let now = self.clock.now();
        self.peers[peer].paths[index].outlives_link(now);
        if self.shift(peer, index, HealthEvent::Doubt) {
            self.event(EventKind::PathSuspect, peer, Some(index));
        }
        self.choose_primary(peer);
        self.strand(peer, index);
        // nothing of it can arrive but by the adapters
        self.hedge_within(peer, index, u64::MAX);
        self.schedule(peer, now + LINK_PATIENCE);
        true
    }

    /// Gives up the paths whose links are down when nothing is under way any more, or nothing moves; returns when it looks again.
    pub(super) fn link_timer(&mut self, peer: PeerId) -> Time {
        let (now, mut next) = (self.clock.now(), Time::NEVER);
        for index in 0..self.peers[peer].paths.len() {
            let path = &self.peers[peer].paths[index];
            let Some(since) = path.link_lost_at().filter(|_| path.health().connected()) else { continue };
            let mut moved_at = since;
            let mut busy = self.loans.may_write(peer, path.id());
            for (_, lane) in path.lanes() {
                let Some(s) = lane.stream().and_then(|s| self.streams.get(s)) else { continue };
                busy |= s.has_under_way();
                if s.alternate().away().is_some() {
                    let acked = s.flight().acked_at().unwrap_or(since);
                    moved_at = moved_at.max(acked).max(lane.acks().newest_on_stream_at());
                }
            }
            if busy && now < moved_at + LINK_PATIENCE {
                next = next.min(moved_at + LINK_PATIENCE);
            } else {
                self.fail_path(peer, index, Witness::Link, Direction::Both);
            }
        }
        next
    }

    /// The adapters are to move a stream to the path that they have loaded.
    fn move_by_adapter(&mut self, stream: StreamId) {
        if self.streams[stream].alternate_mut().leave() {
            self.output.act(Action::MigrateStream { stream });
        }
    }

    /// A carrier leaves a path for another on request, and no other is left on it: what is under way goes along, where adapters are armed.
    pub(super) fn leave_by_adapter(&mut self, peer: PeerId, from: usize, to: usize) {
        let p = &self.peers[peer];
        let to = p.paths[to].rail();
        if p.carriers.iter().any(|c| c.path() == from) {
            return;
        }
        for stream in self.peers[peer].paths[from].streams().collect::<SmallVec<[_; 4]>>() {
            if matches!(self.streams[stream].alternate().loaded(), Loaded::Armed(_, rail) if rail == to) {
                self.move_by_adapter(stream);
            }
        }
    }

    /// Whether something has come since then on a stream of a path that its adapter leads over another rail: the verdict on the path can
    /// wait until the stream is idle, so that nothing on it has to be fenced.
    pub(super) fn carries_elsewhere(&self, peer: PeerId, index: usize, since: Time) -> bool {
        let is_away = |s: StreamId| self.streams.get(s).is_some_and(|s| s.alternate().away().is_some());
        let path = &self.peers[peer].paths[index];
        self.rails.any_adapter()
            && path
                .lanes()
                .any(|(_, l)| l.stream().is_some_and(is_away) && l.acks().newest_on_stream_at() > since)
    }

    /// A path has answered a query of this time: streams that adapters have moved away from it before may come home.
    pub(super) fn adapters_may_return(&mut self, peer: PeerId, index: usize, asked: Time) {
        if !self.rails.any_adapter() {
            return;
        }
        let path = &mut self.peers[peer].paths[index];
        let streams = path.streams().filter_map(|s| self.streams.get(s));
        if let Some(since) = streams.filter_map(|s| s.alternate().away_since()).max() {
            if asked >= since {
                path.answers_again();
            }
            self.unsettle(peer);
        }
    }

    /// A path is out of service: streams of others that adapters had moved onto its rail stand still, and are replaced.
    pub(super) fn strand(&mut self, peer: PeerId, index: usize) {
        let p = &self.peers[peer];
        let rail = p.paths[index].rail();
        let others =
            p.paths.iter().enumerate().filter(|(i, _)| *i != index).flat_map(|(_, path)| path.streams());
        let is_there =
            |s: &StreamId| self.streams.get(*s).is_some_and(|s| s.alternate().away() == Some(rail));
        for stream in others.filter(is_there).collect::<SmallVec<[_; 4]>>() {
            self.fail_stream(stream, Witness::Query, true);
        }
    }

    /// Both adapters of a stream have loaded its alternate path, over this own rail.
    pub fn stream_armed(&mut self, stream: StreamId, rail: RailId, now: Time) {
        self.tick(now);
        let Some((peer, index)) = self.place_of(stream) else { return };
        self.streams[stream].alternate_mut().armed(rail);
        self.counters.streams_armed += 1;
        self.event(EventKind::AdapterArmed { alternate: rail }, peer, Some(index));
        let s = &self.streams[stream];
        let returns = s.alternate().away().is_some() && rail == s.rail();
        if returns && s.alternate().path() == Some(self.peers[peer].paths[index].id()) {
            self.move_by_adapter(stream);
        }
        // it may not be wanted any more
        self.unsettle(peer);
    }

    /// A stream has no alternate path in its adapters, or none any more.
    pub fn stream_unloaded(&mut self, stream: StreamId, now: Time) {
        self.tick(now);
        let Some((peer, index)) = self.place_of(stream) else { return };
        self.streams[stream].alternate_mut().unloaded();
        self.event(EventKind::AdapterUnloaded, peer, Some(index));
        self.unsettle(peer);
    }

    /// An adapter has moved a stream, which goes over this own rail now.
    pub fn stream_migrated(&mut self, stream: StreamId, rail: RailId, now: Time) {
        self.tick(now);
        let Some((peer, index)) = self.place_of(stream) else { return };
        let s = &mut self.streams[stream];
        let (home, away) = (s.rail(), s.alternate().away());
        let requested = s.alternate_mut().migrated(rail, home, self.clock.now());
        self.counters.streams_migrated += 1;
        let from = away.unwrap_or(home);
        self.event(EventKind::AdapterMigrated { from, to: rail, requested }, peer, Some(index));
        if self.streams[stream].alternate().away().is_some() {
            self.peers[peer].paths[index].strays(self.clock.now());
        } else {
            self.peers[peer].paths[index].answers_again();
        }
        // one witness against the path that it has left: the others are queried at the same moment
        for other in 0..self.peers[peer].paths.len() {
            if self.peers[peer].paths[other].health().connected() {
                self.ping(peer, other);
            }
        }
        self.unsettle(peer);
    }

    /// Peer and path of a stream that frames flow on.
    fn place_of(&self, stream: StreamId) -> Option<(PeerId, usize)> {
        let s = self.streams.get(stream).filter(|s| s.phase() == Phase::Attached)?;
        let (peer, path) = s.peer()?;
        Some((peer, self.peers[peer].path_index(path)?))
    }

    /// What the adapters of a path's streams are armed with, for people.
    pub(super) fn in_adapter(&self, p: &Peer, index: usize) -> InAdapter {
        let mut report = InAdapter::default();
        for s in p.paths[index].streams().filter_map(|s| self.streams.get(s)) {
            report.away = report.away.or(s.alternate().away());
            match s.alternate().loaded() {
                Loaded::Armed(_, rail) => report.armed = Some(rail),
                Loaded::Loading(_) => report.loading = true,
                Loaded::Refused(_) => report.refused = true,
                Loaded::Nothing => {}
            }
        }
        report
    }

    /// An adapter has no path that its probes have found broken (hazard H24). For [`Engine::check`], when the carriers have seen all that
    /// happened.
    pub(super) fn check_adapters(&self, p: &Peer) {
        let works = |id: PathId| p.path_index(id).is_some_and(|a| ready(&p.paths[a]));
        let loaded = p.paths.iter().flat_map(|path| path.streams()).filter_map(|s| self.streams.get(s));
        for path in loaded.filter_map(|s| s.alternate().path()) {
            assert!(works(path), "armed: an adapter has loaded a path that could not carry: {path:?}");
        }
    }
}
