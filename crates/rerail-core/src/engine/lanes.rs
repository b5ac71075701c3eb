//! How many lanes the paths of a peer have: as many as both sides and their rails allow, once the peer's configuration is here.
//!
//! What a lane counts is in `lane`, which streams it gets in `handshake`.

use crate::engine::Engine;
use crate::node::FarRail;
use crate::path::Path;
use crate::types::RailDesc;

impl Engine {
    /// Lanes that a path over a rail of ours may have.
    pub(crate) fn lanes_of_rail(&self, rail: &RailDesc) -> u8 {
        self.options.lanes.min(rail.lanes_max).max(1)
    }

    /// Gives the paths of a peer as many lanes as both sides may have, once the peer has said how many. What stays on one host has one way only.
    pub(crate) fn settle_lanes(&mut self, pi: usize) {
        let p = &self.peers[pi];
        if p.node().is_none_or(|n| n.home() == (self.host, self.boot)) {
            return;
        }
        let lanes =
            |x: &Path| p.far(x).map_or(1, FarRail::lanes).min(self.lanes_of_rail(&self.rails[x.rail()]));
        let counts: Vec<u8> = p.paths.iter().map(lanes).collect();
        for (xi, count) in counts.into_iter().enumerate() {
            self.grow_lanes(pi, xi, usize::from(count));
        }
    }

    /// A path has at least so many lanes from now on, each with a stream soon.
    pub(crate) fn grow_lanes(&mut self, pi: usize, xi: usize, count: usize) {
        let now = self.clock.now();
        let first = self.opens_streams(pi, xi);
        let p = &self.peers[pi];
        let before = p.paths[xi].lane_count();
        if before >= count {
            return;
        }
        let mbps = self.rails.speed_mbps(p.paths[xi].rail(), p.far(&p.paths[xi]));
        let x = &mut self.peers[pi].paths[xi];
        x.grow_lanes(count, mbps, now);
        x.lanes_mut().skip(before).for_each(|l| l.connection_mut().may_open(first, now));
        self.schedule(pi, now);
    }
}
