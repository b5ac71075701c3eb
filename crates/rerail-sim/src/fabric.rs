//! A fabric between the hosts of a network: switches, and directed links with a rate and a queue each. Owns: what each link
//! has to carry, and which lane a connection is.
//!
//! The model is a switch that begins to pass a packet on when its first byte has come: an empty link adds no time, a busy one
//! what is before the packet. Queues are counted as time and have no bound here; [`crate::link`] bounds what enters them. A
//! route is chosen for each packet anew, from what it carries alone, so all packets of a flow take the same.

pub mod queue;
pub mod routing;
pub mod shares;
pub mod topology;

use queue::Queue;
use routing::{Flow, Router, Routing};
use rustc_hash::FxHashMap;
use topology::{LinkId, Route, Topology};

/// What a switch adds to the latency of a network, which is that of one switch (the HSAM paper measures 0.25 µs for two more).
const SWITCH_NS: u64 = 125;

/// A fabric to be.
#[derive(Debug, Clone, Copy)]
pub struct FabricSpec {
    /// How it is joined.
    pub topology: Topology,
    /// How its switches choose.
    pub routing: Routing,
    /// Rate of each link inside, in Mbit/s.
    pub mbps: u64,
    /// The same of the links to hosts.
    pub ports_mbps: u64,
    /// What makes its tables, or hashes, differ from those of another.
    pub salt: u64,
}

/// A directed link.
#[derive(Debug, Clone, Default)]
struct Link {
    queue: Queue,
    carried_bytes: u64,
    /// Causes for nothing passing.
    dark: u32,
}

/// See above.
#[derive(Debug, Clone)]
pub struct Fabric {
    topology: Topology,
    router: Router,
    byte_ps: u64,
    port_byte_ps: u64,
    links: Vec<Link>,
    /// Causes for links being dark, over all links.
    dark: u32,
    /// Lanes that two hosts have had, by the hosts.
    lanes: FxHashMap<(usize, usize), u32>,
    /// The lane that a connection is.
    lane_of: FxHashMap<usize, u32>,
}

impl Fabric {
    /// An idle one.
    pub fn new(spec: &FabricSpec) -> Self {
        Self {
            topology: spec.topology,
            router: Router::new(spec.routing, spec.salt),
            byte_ps: 8_000_000 / spec.mbps.max(1),
            port_byte_ps: 8_000_000 / spec.ports_mbps.max(1),
            links: vec![Link::default(); spec.topology.links()],
            dark: 0,
            lanes: FxHashMap::default(),
            lane_of: FxHashMap::default(),
        }
    }

    /// A connection begins between two hosts: it is the next lane of them. The first has the number 0, and a connection that
    /// takes the place of another is another lane, as one from another port is another flow.
    pub fn connects(&mut self, connection: usize, a: usize, b: usize) {
        let next = self.lanes.entry((a.min(b), a.max(b))).or_default();
        self.lane_of.insert(connection, *next);
        *next += 1;
    }

    /// The lane that a connection is.
    pub fn lane_of(&self, connection: usize) -> u32 {
        self.lane_of.get(&connection).copied().unwrap_or(0)
    }

    /// The route of a flow.
    pub fn route(&self, flow: &Flow) -> Route {
        self.topology.route(flow.src, flow.dst, |switch, ways| self.router.choose(switch, ways, flow))
    }

    /// Whether no link of the flow's route is dark.
    pub fn open(&self, flow: &Flow) -> bool {
        self.dark == 0 || self.route(flow).links().iter().all(|l| self.links[l.0 as usize].dark == 0)
    }

    /// A link goes dark, for one cause more.
    pub fn darken(&mut self, link: LinkId) {
        self.links[link.0 as usize].dark += 1;
        self.dark += 1;
    }

    /// One cause less.
    pub fn lighten(&mut self, link: LinkId) {
        self.links[link.0 as usize].dark -= 1;
        self.dark -= 1;
    }

    /// When a byte of the flow that comes to the first switch at `at` would come to its host.
    pub fn free_at(&self, flow: &Flow, at: u64) -> u64 {
        self.route(flow).links().iter().fold(at, |at, l| self.links[l.0 as usize].queue.free_at(at))
    }

    /// Carries what reaches the first switch with its last byte at `at`; returns when that reaches the host. `fits` says for each
    /// queue whether a packet that has to wait for so long finds room in it; one that does not is lost.
    pub fn carry(
        &mut self,
        flow: &Flow,
        bytes: usize,
        at: u64,
        now: u64,
        mut fits: impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        let route = self.route(flow);
        let ports = self.topology.hosts();
        let mut last = at;
        for (hop, id) in route.links().iter().enumerate() {
            let link = &mut self.links[id.0 as usize];
            let byte_ps = if (id.0 as usize) < ports { self.port_byte_ps } else { self.byte_ps };
            let took = bytes as u64 * byte_ps / 1000;
            last += if hop > 0 { SWITCH_NS } else { 0 };
            let first = last.saturating_sub(took);
            if !fits(link.queue.free_at(first) - first) {
                return None;
            }
            // a link that is faster than the one before waits for the last byte
            last = link.queue.take(first, took, now).max(last);
            link.carried_bytes += bytes as u64;
        }
        Some(last)
    }

    /// How it is joined.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Bytes that each link has carried, by its number.
    pub fn loads(&self) -> impl Iterator<Item = (LinkId, u64)> + '_ {
        (0..).map(LinkId).zip(&self.links).map(|(id, link)| (id, link.carried_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::PORTS_144;

    fn fabric(routing: Routing) -> Fabric {
        Fabric::new(&FabricSpec { topology: PORTS_144, routing, mbps: 8_000, ports_mbps: 8_000, salt: 1 })
    }

    fn flow(src: usize, dst: usize, ports: u64) -> Flow {
        Flow { src, dst, ports, lane: 0 }
    }

    #[test]
    fn an_idle_fabric_adds_its_switches_and_a_crowded_link_its_queue() {
        let mut f = fabric(Routing::Lid { bits: 0 });
        let sure = |_: u64| true;
        // within a block: one switch; across: three
        assert_eq!(f.carry(&flow(0, 1, 0), 1000, 5_000, 0, sure), Some(5_000));
        assert_eq!(f.carry(&flow(0, 20, 0), 1000, 5_000, 0, sure), Some(5_000 + 2 * SWITCH_NS));
        // another block's packet to the same host comes at the same time: one waits for the other at the last link
        assert_eq!(f.carry(&flow(130, 20, 0), 1000, 5_000, 0, sure), Some(5_000 + 2 * SWITCH_NS + 1_000));
        assert_eq!(f.free_at(&flow(0, 20, 0), 5_250), 5_000 + 2 * SWITCH_NS + 1_000);
        assert!(
            f.carry(&flow(0, 20, 0), 1000, 5_000, 0, |waits| waits == 0).is_none(),
            "a full queue loses it"
        );
        let loads: Vec<u64> = f.loads().map(|l| l.1).filter(|bytes| *bytes > 0).collect();
        assert_eq!(loads.iter().sum::<u64>(), 1000 + 3 * 1000 + 3 * 1000, "{loads:?}");
    }

    #[test]
    fn two_flows_on_one_link_have_half_each_and_one_beside_them_has_all() {
        let mut f = fabric(Routing::Ecmp);
        let up = |f: &Fabric, ports| f.route(&flow(0, 30, ports)).links()[0];
        let twin = (1..99).find(|p| up(&f, *p) == up(&f, 0)).expect("a hash that meets another");
        let free = (1..99).find(|p| up(&f, *p) != up(&f, 0)).expect("one that does not");
        let (mut ends, sure) = ([0; 3], |_: u64| true);
        for i in 1..=100 {
            for (end, (dst, ports)) in ends.iter_mut().zip([(30, 0), (30, twin), (40, free)]) {
                *end = f.carry(&flow(0, dst, ports), 1000, i * 1000, 0, sure).expect("queues have no bound");
            }
        }
        assert!(ends[0] > 195_000 && ends[1] > 195_000 && ends[2] < 102_000, "{ends:?}");
    }

    #[test]
    fn a_dark_link_is_dark_for_the_flows_over_it() {
        let mut f = fabric(Routing::Ecmp);
        let victim = f.route(&flow(0, 30, 0)).links()[1];
        f.darken(victim);
        f.darken(victim);
        assert!(!f.open(&flow(0, 30, 0)) && f.open(&flow(0, 1, 0)));
        assert!((0..50).any(|ports| f.open(&flow(0, 30, ports))));
        f.lighten(victim);
        assert!(!f.open(&flow(0, 30, 0)), "one of two causes is left");
        f.lighten(victim);
        assert!(f.open(&flow(0, 30, 0)));
    }

    #[test]
    fn connections_of_two_hosts_are_their_lanes_in_turn() {
        let mut f = fabric(Routing::Lid { bits: 2 });
        for (connection, (a, b)) in [(0, 1), (1, 0), (0, 2), (0, 1)].into_iter().enumerate() {
            f.connects(connection, a, b);
        }
        assert_eq!([0, 1, 2, 3].map(|c| f.lane_of(c)), [0, 1, 0, 2]);
    }
}
