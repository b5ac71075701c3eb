//! What a peer has reported about itself: where it runs, and what its rails are.
//!
//! Owns: what is kept of its configuration. A path is as fast as the slower of its rails, is summed as the stronger of
//! both requests, and is a good alternate for another one if they share a port on neither side.

use rerail_wire::Coverage;
use rerail_wire::address::RAILS_MAX;
use rerail_wire::config::{NodeConfig, RailConfig};
use rerail_wire::hello::LANES_MAX;

/// What a peer has reported about one of its rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FarRail {
    checksum: Coverage,
    port: u8,
    lanes: u8,
    speed_mbps: u32,
    name: Box<str>,
}

impl FarRail {
    pub fn new(r: &RailConfig) -> Self {
        let (port, lanes, speed_mbps) = (r.port, r.lanes, r.speed_mbps);
        Self { checksum: r.checksum, port, lanes, speed_mbps, name: shown(&r.name) }
    }

    /// The coverage that the peer requests there.
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

    /// What the peer calls it; for users.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What is kept of the configuration that a peer has reported: where it runs, and its rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    home: (u64, u64),
    /// In the order of its address. Every peer has a list of its own: no longer than it has to be.
    rails: Box<[FarRail]>,
}

/// A name as it can be shown: the peer chose it.
fn shown(name: &str) -> Box<str> {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    name.chars().map(plain).collect::<String>().into()
}

impl Node {
    pub fn new(c: &NodeConfig) -> Self {
        let rails = c.rails.iter().take(RAILS_MAX).map(FarRail::new).collect();
        Self { home: (c.host, c.boot), rails }
    }

    /// Host, and its boot.
    pub fn home(&self) -> (u64, u64) {
        self.home
    }

    /// One of its rails, if it has reported that.
    pub fn rail(&self, index: usize) -> Option<&FarRail> {
        self.rails.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_peers_rails_cannot_break_a_line_and_no_more_are_kept_than_an_address_has() {
        let rail = |name: &str| RailConfig { name: name.to_owned(), ..RailConfig::default() };
        let mut rails = vec![rail("eth0"), rail("a b\nc\u{e9}")];
        rails.resize(RAILS_MAX + 3, rail("more"));
        let node = Node::new(&NodeConfig { host: 1, boot: 2, rails });
        let name = |i: usize| node.rail(i).map(FarRail::name);
        assert_eq!((name(0), name(1), node.home()), (Some("eth0"), Some("a?b?c?"), (1, 2)));
        assert_eq!((name(RAILS_MAX - 1), name(RAILS_MAX)), (Some("more"), None));
    }
}
