//! How many lanes the paths of a peer have: as many as both sides and their rails allow, once the peer's configuration is here.
//!
//! What a lane counts is in `lane`, which streams it gets in `handshake`.

use crate::engine::Engine;
use crate::event::EventKind;
use crate::lane::connection::Connection;
use crate::node::FarRail;
use crate::path::Path;
use crate::path::breadth::Verdict;
use crate::rate::BACKLOG_MIN;
use crate::types::{LaneId, PeerId, RailDesc};

impl Engine {
    /// Lanes that a path over a rail of ours may have.
    pub(crate) fn lanes_of_rail(&self, rail: &RailDesc) -> u8 {
        self.options.lanes.min(rail.lanes_max).max(1)
    }

    /// Gives the paths of a peer as many lanes as both sides may have, once the peer has reported how many. Traffic
    /// within one host has one route only.
    pub(crate) fn settle_lanes(&mut self, peer: PeerId) {
        let p = &self.peers[peer];
        if p.node().is_none_or(|n| n.home() == (self.host, self.boot)) {
            return;
        }
        let lanes = |path: &Path| {
            p.far(path).map_or(1, FarRail::lanes).min(self.lanes_of_rail(&self.rails[path.rail()]))
        };
        let counts: Vec<u8> = p.paths.iter().map(lanes).collect();
        for (index, count) in counts.into_iter().enumerate() {
            if self.options.lanes_auto {
                self.peers[peer].paths[index].breadth.may_grow(count);
            } else {
                self.grow_lanes(peer, index, usize::from(count));
            }
        }
    }

    /// Looks whether traffic pays for more lanes, or for fewer.
    pub(crate) fn try_lanes(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        // of two that are busy for each other one begins
        let late = u8::from(self.peers[peer].own_is_high()) * 4 + self.rng.below(3) as u8;
        let p = &mut self.peers[peer];
        let waits = p.backlog.bulk_bytes() > 0;
        let path = &mut p.paths[index];
        // with less the traffic may be what limits a path, and not its lanes
        let busy = waits || path.streams().any(|s| self.streams[s].flight().bytes() >= BACKLOG_MIN);
        let last = LaneId(path.breadth.lanes() - 1);
        let attached = path.lane_of(last).is_some_and(|l| l.stream().is_some());
        match path.breadth.look(busy, attached, late, now) {
            Verdict::None => {}
            Verdict::Changed => self.mark_streams(peer),
            Verdict::Open(id) => {
                self.grow_lanes(peer, index, usize::from(id.0) + 1);
                let lane = self.peers[peer].paths[index].lane_of_mut(id).expect("it is there now");
                lane.rate_mut().begins_anew();
                lane.connection_mut().may_open(true, now);
                self.schedule(peer, now);
            }
            Verdict::Stays { lane, without, with, new } => {
                self.mark_streams(peer);
                if new {
                    self.counters.lanes_added += 1;
                    let event = EventKind::LaneAdded { lane, before: without as u64, after: with as u64 };
                    self.event(event, peer, Some(index));
                }
            }
            Verdict::Merged { lane, without, with } => {
                self.counters.lanes_merged += 1;
                let event = EventKind::LaneMerged { lane, before: with as u64, after: without as u64 };
                self.event(event, peer, Some(index));
                self.part_lane(peer, index, lane);
            }
            Verdict::Ended(id) => self.part_lane(peer, index, id),
        }
    }

    /// A lane that is not wanted any more gives up its stream when nothing is under way on it, if this side has opened that.
    pub(crate) fn part_lane(&mut self, peer: PeerId, index: usize, id: LaneId) {
        let p = &self.peers[peer];
        let connection = p.paths[index].lane_of(id).map(|l| l.connection());
        let ours = |c: &Connection| c.stream().is_some() && (c.number() & 1 == 1) == p.own_is_high();
        if connection.is_some_and(ours) {
            self.leave_route(peer, index, id);
        }
        self.mark_streams(peer);
    }

    /// A path has at least so many lanes from now on, each with a stream soon.
    pub(crate) fn grow_lanes(&mut self, peer: PeerId, index: usize, count: usize) {
        let now = self.clock.now();
        let first = self.opens_streams(peer, index);
        let p = &self.peers[peer];
        let before = p.paths[index].lane_count();
        if before >= count {
            return;
        }
        let mbps = self.rails.speed_mbps(p.paths[index].rail(), p.far(&p.paths[index]));
        let path = &mut self.peers[peer].paths[index];
        path.grow_lanes(count, mbps, now);
        path.lanes_mut().skip(before).for_each(|l| l.connection_mut().may_open(first, now));
        self.schedule(peer, now);
    }
}
