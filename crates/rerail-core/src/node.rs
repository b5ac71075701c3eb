//! What a peer has told of itself: where it runs, and what its rails are.
//!
//! Owns: what is kept of its configuration. A path is as fast as the slower of its rails, is summed as the stronger of both wishes, and is a good
//! alternate for another one if they share a port on neither side.

use rerail_wire::Coverage;
use rerail_wire::address::RAILS_MAX;
use rerail_wire::config::{NodeConfig, RailConfig};
use rerail_wire::hello::LANES_MAX;

/// What a peer has told of one of its rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FarRail {
    checksum: Coverage,
    port: u8,
    speed_mbps: u32,
    lanes: u8,
}

impl FarRail {
    pub fn new(r: &RailConfig) -> Self {
        Self { checksum: r.checksum, port: r.port, speed_mbps: r.speed_mbps, lanes: r.lanes }
    }

    /// What the peer wants summed there.
    pub fn checksum(&self) -> Coverage {
        self.checksum
    }

    /// Its physical port; 0: no other rail of the peer has the same.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// Most lanes that a path over it may have.
    pub fn lanes(&self) -> u8 {
        self.lanes.clamp(1, LANES_MAX)
    }

    /// Nominal speed; 0: not known.
    pub fn speed_mbps(&self) -> u32 {
        self.speed_mbps
    }
}

/// What is kept of the configuration that a peer has told: where it runs, and its rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    home: (u64, u64),
    /// All are summed of which it told nothing.
    rails: [FarRail; RAILS_MAX],
}

impl Node {
    pub fn new(c: &NodeConfig) -> Self {
        let mut rails = [FarRail::default(); RAILS_MAX];
        for (to, r) in rails.iter_mut().zip(&c.rails) {
            *to = FarRail::new(r);
        }
        Self { home: (c.host, c.boot), rails }
    }

    /// Host, and its boot.
    pub fn home(&self) -> (u64, u64) {
        self.home
    }

    /// One of its rails.
    pub fn rail(&self, index: usize) -> Option<&FarRail> {
        self.rails.get(index)
    }
}
