//! What flows would have of a fabric if links were shared out fairly: max-min fair shares on the routes that switches choose.
//!
//! A model without packets and without an engine, for fabrics that are too large for both: no policy, no window, no time.
//! Source: progressive filling (D. Bertsekas and R. Gallager, "Data Networks", 1992, §6.5.2).

use super::Fabric;
use super::routing::Flow;
use super::topology::LinkId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The shares of flows.
#[derive(Debug, Clone)]
pub struct Shares {
    /// What each flow has of a link's rate.
    pub flows: Vec<f64>,
    /// What each link inside the fabric, or to a host, carries of its own, by its number.
    pub links: Vec<f64>,
}

/// A link while it is shared out.
#[derive(Debug, Clone)]
struct Pool {
    left: f64,
    flows: Vec<u32>,
    /// Those of them that have no share yet.
    open: u32,
}

impl Pool {
    fn share(&self) -> f64 {
        (self.left / f64::from(self.open)).max(0.0)
    }
}

/// Shares the links of a fabric out, the one from each host to its first switch among them. All have the same rate.
pub fn shares(fabric: &Fabric, flows: &[Flow]) -> Shares {
    let inside = fabric.topology().links();
    let empty = Pool { left: 1.0, flows: Vec::new(), open: 0 };
    let mut pools = vec![empty; inside + fabric.topology().hosts()];
    let links_of = |flow: &Flow| -> Vec<usize> {
        let route = fabric.route(flow);
        let links = route.links().iter().map(|LinkId(id)| *id as usize);
        links.chain([inside + flow.src]).collect()
    };
    for (number, flow) in flows.iter().enumerate() {
        for link in links_of(flow) {
            pools[link].flows.push(number as u32);
            pools[link].open += 1;
        }
    }
    // shares are not negative, so they are in the order of their bits
    let key = |pool: &Pool, link: usize| Reverse((pool.share().to_bits(), link, pool.open));
    let mut queue: BinaryHeap<_> =
        pools.iter().enumerate().filter(|(_, p)| p.open > 0).map(|(link, p)| key(p, link)).collect();
    let mut given: Vec<Option<f64>> = vec![None; flows.len()];
    while let Some(Reverse((_, link, open))) = queue.pop() {
        if pools[link].open != open || open == 0 {
            continue; // it stands in the queue again, with what is left
        }
        // of all links this one gives each of its flows the least: they have it here, and no more elsewhere
        let share = pools[link].share();
        for number in std::mem::take(&mut pools[link].flows) {
            let number = number as usize;
            if given[number].is_some() {
                continue;
            }
            given[number] = Some(share);
            for other in links_of(&flows[number]) {
                let pool = &mut pools[other];
                pool.left -= share;
                pool.open -= 1;
                if pool.open > 0 && other != link {
                    queue.push(key(pool, other));
                }
            }
        }
    }
    Shares {
        flows: given.into_iter().map(|share| share.unwrap_or(0.0)).collect(),
        links: pools[..inside].iter().map(|p| 1.0 - p.left).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::FabricSpec;
    use crate::fabric::routing::Routing;
    use crate::fabric::topology::{PORTS_144, Topology};

    fn of(topology: Topology, pairs: &[(usize, usize)], lanes: usize) -> Shares {
        let spec = FabricSpec { topology, routing: Routing::Ecmp, mbps: 1000, ports_mbps: 1000, salt: 3 };
        let lanes = |i: usize, (src, dst): (usize, usize)| {
            (0..lanes).map(move |lane| Flow { src, dst, ports: (i * lanes + lane) as u64, lane: lane as u32 })
        };
        let flows: Vec<Flow> = pairs.iter().enumerate().flat_map(|(i, pair)| lanes(i, *pair)).collect();
        shares(&Fabric::new(&spec), &flows)
    }

    #[test]
    fn a_link_is_shared_out_evenly_and_what_one_cannot_use_others_have() {
        // one link between two leaves
        let line = Topology::LeafSpine { leaves: 2, spines: 1, hosts: 4, cables: 1 };
        assert_eq!(of(line, &[(0, 4)], 1).flows, [1.0]);
        assert_eq!(of(line, &[(0, 4), (1, 5), (2, 3)], 1).flows, [0.5, 0.5, 1.0]);
        assert_eq!(of(line, &[(0, 1), (0, 2)], 1).flows, [0.5, 0.5], "a host has one link");
        // three come to one host, one of them over the crowded link: the other flow there has what that leaves
        let found = of(line, &[(0, 4), (5, 4), (6, 4), (1, 7)], 1).flows;
        let wanted = [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 2.0 / 3.0];
        assert!(found.iter().zip(wanted).all(|(f, w)| (f - w).abs() < 1e-9), "{found:?}");
    }

    #[test]
    fn no_link_carries_more_than_it_can_and_every_flow_is_held_up_by_a_full_one() {
        let pairs: Vec<(usize, usize)> = (0..64).map(|i| (i, (i + 21) % 64)).collect();
        for lanes in [1, 4] {
            let s = of(PORTS_144, &pairs, lanes);
            assert!(s.links.iter().all(|load| (-1e-9..1.0 + 1e-9).contains(load)));
            assert!(s.flows.iter().all(|share| *share > 0.0));
            let sums: Vec<f64> = s.flows.chunks(lanes).map(|flows| flows.iter().sum()).collect();
            let into: f64 = s.links[..144].iter().sum();
            assert!((into - sums.iter().sum::<f64>()).abs() < 1e-6, "all that is sent comes to hosts");
            let mean = sums.iter().sum::<f64>() / 64.0;
            assert!(
                if lanes == 1 { (0.4..0.7).contains(&mean) } else { (0.7..0.95).contains(&mean) },
                "{mean}"
            );
        }
    }
}
