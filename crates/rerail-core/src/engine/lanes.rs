//! How many lanes the paths of a peer have: as many as both sides and their rails allow, once the peer's configuration is here.
//!
//! What a lane counts is in `lane`, which streams it gets in `handshake`.

use crate::engine::Engine;
use crate::node::FarRail;
use crate::path::Path;
use crate::types::{PeerId, RailDesc};

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
            self.grow_lanes(peer, index, usize::from(count));
        }
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
