//! How a switch chooses among links that lead to the same host.
//!
//! ECMP: by a hash of the flow, another at each switch (RFC 2992). Destination routing, as InfiniBand has it: by a table of
//! local identifiers (LIDs), of which each host has 2^x that follow each other (LID mask control x): the lane chooses the
//! lowest bits. A subnet manager deals out the links of a switch evenly to LIDs, so that of any run of hosts as long as a
//! switch has links each gets another, in an order that is another at each switch.

use super::topology::SwitchId;
use crate::rng::{Rng, mix};

/// The largest x: InfiniBand has three bits for it.
pub const LMC_MAX: u32 = 7;

/// What is sent, as far as switches look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Sending host.
    pub src: usize,
    /// Receiving host.
    pub dst: usize,
    /// Ports: the number of the connection, or the route of datagrams.
    pub ports: u64,
    /// Number of the lane among those of its two hosts.
    pub lane: u32,
}

/// How switches choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// By a hash.
    Ecmp,
    /// By the LID of the receiver.
    Lid {
        /// Path bits of a LID.
        bits: u32,
    },
}

/// The same, with what makes one fabric differ from another.
#[derive(Debug, Clone, Copy)]
pub struct Router {
    routing: Routing,
    salt: u64,
}

impl Router {
    /// With tables, or hashes, drawn by a number.
    pub fn new(routing: Routing, salt: u64) -> Self {
        Self { routing, salt }
    }

    /// Which of `ways` links that lead to the receiver a switch takes.
    pub fn choose(&self, switch: SwitchId, ways: usize, flow: &Flow) -> usize {
        if ways == 1 {
            return 0;
        }
        let own = mix(self.salt ^ u64::from(switch.0));
        match self.routing {
            Routing::Ecmp => {
                let hosts = ((flow.src as u64) << 32) | flow.dst as u64;
                (mix(own ^ mix(mix(hosts) ^ flow.ports)) % ways as u64) as usize
            }
            Routing::Lid { bits } => {
                let path = flow.lane as usize & ((1 << bits) - 1);
                (dealt(own, ways, flow.dst) + path) % ways
            }
        }
    }
}

/// The link that a switch deals out to the first LID of a host: each run of `ways` hosts has each link once.
fn dealt(own: u64, ways: usize, host: usize) -> usize {
    let mut order = [0_u16; 1024];
    let order = &mut order[..ways];
    for (place, link) in order.iter_mut().enumerate() {
        *link = place as u16;
    }
    let mut r = Rng::new(own, (host / ways) as u64);
    for place in (1..ways).rev() {
        order.swap(place, r.index(place + 1));
    }
    usize::from(order[host % ways])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(dst: usize, ports: u64, lane: u32) -> Flow {
        Flow { src: 3, dst, ports, lane }
    }

    #[test]
    fn a_hash_spreads_flows_and_is_another_at_each_switch() {
        let r = Router::new(Routing::Ecmp, 7);
        let ways = 4;
        let (mut counts, mut pairs) = ([0; 4], [0; 16]);
        for ports in 0..16_000 {
            let (a, b) = (
                r.choose(SwitchId(1), ways, &flow(9, ports, 0)),
                r.choose(SwitchId(2), ways, &flow(9, ports, 0)),
            );
            counts[a] += 1;
            pairs[a * ways + b] += 1;
        }
        assert!(counts.iter().all(|n| (3_700..4_300).contains(n)), "{counts:?}");
        // with the same hash at both, flows that the first sends one way would all go one way at the second
        assert!(pairs.iter().all(|n| (850..1_150).contains(n)), "{pairs:?}");
        // addresses count, and the salt; the lane's number does not
        let differs = |f: &dyn Fn(u64) -> (usize, usize)| {
            (0..64)
                .filter(|p| {
                    let (a, b) = f(*p);
                    a != b
                })
                .count()
        };
        let at = |r: &Router, f: Flow| r.choose(SwitchId(1), ways, &f);
        let other = Router::new(Routing::Ecmp, 8);
        assert!(differs(&|p| (at(&r, flow(9, p, 0)), at(&r, flow(10, p, 0)))) > 32);
        assert!(differs(&|p| (at(&r, flow(9, p, 0)), at(&r, Flow { src: 4, ..flow(9, p, 0) }))) > 32);
        assert!(differs(&|p| (at(&r, flow(9, p, 0)), at(&other, flow(9, p, 0)))) > 32);
        assert_eq!(differs(&|p| (at(&r, flow(9, p, 0)), at(&r, flow(9, p, 1)))), 0);
    }

    #[test]
    fn destination_routing_looks_at_the_lid_alone_and_deals_links_out_evenly() {
        let one = Router::new(Routing::Lid { bits: 0 }, 7);
        let two = Router::new(Routing::Lid { bits: 2 }, 7);
        for run in 0..12 {
            let mut links: Vec<_> =
                (0..12).map(|h| one.choose(SwitchId(5), 12, &flow(run * 12 + h, 0, 0))).collect();
            links.sort_unstable();
            assert_eq!(links, (0..12).collect::<Vec<_>>(), "each link once in a run of hosts");
        }
        let at = |r: &Router, s: u32, ports, lane| r.choose(SwitchId(s), 12, &flow(77, ports, lane));
        assert!((0..99).all(|ports| at(&one, 5, ports, 0) == at(&one, 5, 0, 0)), "ports do not count");
        assert!(
            (0..99).all(|lane| at(&one, 5, 0, lane) == at(&one, 5, 0, 0)),
            "without path bits lanes do not count"
        );
        assert!((0..12).any(|s| at(&one, s, 0, 0) != at(&one, 5, 0, 0)), "tables differ");
        let mut paths: Vec<_> = (0..4).map(|lane| at(&two, 5, 0, lane)).collect();
        assert_eq!(paths[0], at(&two, 5, 0, 4), "a fifth lane has the bits of the first");
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), 4, "four lanes take four links");
    }
}
