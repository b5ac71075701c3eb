//! How switches and hosts are joined. Owns: the numbers of switches and of directed links.
//!
//! Sources: A. Vishnu and others, "Hot-Spot Avoidance With Multi-Pathing Over InfiniBand" (CCGrid 2007), figure 2: a switch of
//! 144 ports is made of blocks of 24 ports; M. Al-Fares and others, "A Scalable, Commodity Data Center Network Architecture"
//! (SIGCOMM 2008) §3: k-ary fat trees. The link from a host to its first switch is the host's own: [`crate::link::Link`].

use std::fmt;

/// Links of a route at most: edge to aggregation, core, aggregation, edge, host.
const ROUTE_LINKS_MAX: usize = 5;

/// Hosts of a fabric at most.
pub const HOSTS_MAX: usize = 20_000;

/// A directed link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub u32);

/// The links from the first switch of a route to its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    links: [LinkId; ROUTE_LINKS_MAX],
    len: usize,
}

impl Route {
    fn of(links: &[usize]) -> Self {
        let mut route = Self { links: [LinkId(0); ROUTE_LINKS_MAX], len: links.len() };
        for (to, from) in route.links.iter_mut().zip(links) {
            *to = LinkId(*from as u32);
        }
        route
    }

    /// In the order of the way.
    pub fn links(&self) -> &[LinkId] {
        &self.links[..self.len]
    }
}

/// How switches and hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Each leaf is joined to each spine.
    LeafSpine {
        /// Leaves.
        leaves: usize,
        /// Spines.
        spines: usize,
        /// Hosts of each leaf.
        hosts: usize,
        /// Cables between a leaf and a spine.
        cables: usize,
    },
    /// Of switches with `k` ports: `k` pods, each of `k/2` edge switches with `k/2` hosts and of `k/2` aggregation switches, each
    /// of which has `k/2` core switches of its own that join the pods.
    FatTree {
        /// Ports of a switch.
        k: usize,
    },
}

/// The paper's switch of 144 ports, of blocks of 24 ports: 12 leaf blocks with 12 hosts and 12 up-links each, 6 spine blocks
/// with 2 links to each leaf block.
pub const PORTS_144: Topology = Topology::LeafSpine { leaves: 12, spines: 6, hosts: 12, cables: 2 };

impl Topology {
    /// Reads `144-port`, `leaf-spine:LEAVESxSPINES`, with as many hosts at a leaf as it has up-links, or
    /// `leaf-spine:LEAVESxSPINESxHOSTS`, or `fat-tree:K`.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, size) = text.split_once(':').unwrap_or((text, ""));
        let numbers: Option<Vec<usize>> = size.split('x').map(|n| n.parse().ok()).collect();
        let topology = match (name, numbers.as_deref()) {
            ("144-port", _) if size.is_empty() => PORTS_144,
            ("leaf-spine", Some(&[leaves, spines])) => {
                Self::LeafSpine { leaves, spines, hosts: spines, cables: 1 }
            }
            ("leaf-spine", Some(&[leaves, spines, hosts])) => {
                Self::LeafSpine { leaves, spines, hosts, cables: 1 }
            }
            ("fat-tree", Some(&[k])) => Self::FatTree { k },
            _ => {
                return Err(format!(
                    "no fabric is called \"{text}\": write 144-port, leaf-spine:2x4, leaf-spine:2x4x8 (with the hosts of a \
                     leaf) or fat-tree:8"
                ));
            }
        };
        topology.check().map(|()| topology)
    }

    fn check(&self) -> Result<(), String> {
        let sound = match *self {
            Self::LeafSpine { leaves, spines, hosts, cables } => {
                [leaves, hosts, spines * cables].iter().all(|n| (1..=1024).contains(n))
            }
            Self::FatTree { k } => (2..=64).contains(&k) && k % 2 == 0,
        };
        if !sound {
            return Err(format!(
                "{self} is no fabric: numbers are 1 to 1024, and the K of a fat tree is even, 2 to 64"
            ));
        }
        if self.hosts() > HOSTS_MAX {
            return Err(format!("{self} has {} hosts, and {HOSTS_MAX} are the most", self.hosts()));
        }
        Ok(())
    }

    /// Hosts that it has ports for.
    pub fn hosts(&self) -> usize {
        match *self {
            Self::LeafSpine { leaves, hosts, .. } => leaves * hosts,
            Self::FatTree { k } => k * k * k / 4,
        }
    }

    /// Directed links, without those from hosts.
    pub fn links(&self) -> usize {
        self.hosts() + 2 * self.tiers() * self.links_of_tier()
    }

    /// The numbers of the links between switches.
    pub fn inside(&self) -> std::ops::Range<usize> {
        self.hosts()..self.links()
    }

    /// Tiers of switches above the first.
    fn tiers(&self) -> usize {
        match self {
            Self::LeafSpine { .. } => 1,
            Self::FatTree { .. } => 2,
        }
    }

    /// Links between two tiers, of one direction.
    fn links_of_tier(&self) -> usize {
        match *self {
            Self::LeafSpine { leaves, spines, cables, .. } => leaves * spines * cables,
            Self::FatTree { k } => k * k * k / 4,
        }
    }

    /// The first switch of a host.
    fn edge(&self, host: usize) -> usize {
        match *self {
            Self::LeafSpine { hosts, .. } => host / hosts,
            Self::FatTree { k } => host / (k / 2),
        }
    }

    /// Ways that are equally long between two hosts.
    pub fn ways(&self, src: usize, dst: usize) -> usize {
        let (from, to) = (self.edge(src), self.edge(dst));
        match *self {
            _ if from == to => 1,
            Self::LeafSpine { spines, cables, .. } => spines * cables * cables,
            Self::FatTree { k } if from / (k / 2) == to / (k / 2) => k / 2,
            Self::FatTree { k } => (k / 2) * (k / 2),
        }
    }

    /// The route between two hosts when each switch that has a choice takes what `choose` says: switch, number of ways.
    pub fn route(&self, src: usize, dst: usize, mut choose: impl FnMut(SwitchId, usize) -> usize) -> Route {
        let (from, to) = (self.edge(src), self.edge(dst));
        // links: to hosts, then each tier upwards, then each tier downwards
        let (hosts, tier) = (self.hosts(), self.links_of_tier());
        let (up, down) = (hosts, hosts + self.tiers() * tier);
        if from == to {
            return Route::of(&[dst]);
        }
        let mut choose = |switch: usize, ways: usize| {
            let way = choose(SwitchId(switch as u32), ways);
            assert!(way < ways, "simulator: a switch has no way {way}");
            way
        };
        match *self {
            Self::LeafSpine { leaves, spines, cables, .. } => {
                let way = choose(from, spines * cables);
                // cables of one spine are not neighbours: ways that follow each other go to different spines
                let (spine, cable) = (way % spines, way / spines);
                let back = choose(leaves + spine, cables);
                let link = |leaf: usize, cable: usize| (leaf * spines + spine) * cables + cable;
                Route::of(&[up + link(from, cable), down + link(to, back), dst])
            }
            Self::FatTree { k } => {
                let half = k / 2;
                let aggregation = choose(from, half);
                let first = up + from * half + aggregation;
                let last = down + to * half + aggregation;
                let (pod, far_pod) = (from / half, to / half);
                if pod == far_pod {
                    return Route::of(&[first, last, dst]);
                }
                // aggregation switches are numbered behind the edge switches
                let core = choose(k * half + pod * half + aggregation, half);
                let above = |pod: usize| tier + (pod * half + aggregation) * half + core;
                Route::of(&[first, up + above(pod), down + above(far_pod), last, dst])
            }
        }
    }

    /// What a link is called: `leaf3>spine1.0`.
    pub fn name(&self, link: LinkId) -> String {
        let (hosts, tier) = (self.hosts(), self.links_of_tier());
        let number = link.0 as usize;
        if number < hosts {
            return format!("leaf{}>host{number}", self.edge(number));
        }
        let (upward, place) =
            ((number - hosts) / (self.tiers() * tier) == 0, (number - hosts) % (self.tiers() * tier));
        let (low, high) = match *self {
            Self::LeafSpine { spines, cables, .. } => {
                let (leaf, spine, cable) =
                    (place / (spines * cables), place / cables % spines, place % cables);
                (format!("leaf{leaf}"), format!("spine{spine}.{cable}"))
            }
            Self::FatTree { k } => {
                let half = k / 2;
                let (switch, way) = (place % tier / half, place % half);
                if place < tier {
                    (format!("leaf{switch}"), format!("middle{}", switch / half * half + way))
                } else {
                    (format!("middle{switch}"), format!("core{}", switch % half * half + way))
                }
            }
        };
        if upward { format!("{low}>{high}") } else { format!("{high}>{low}") }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PORTS_144 => write!(f, "144-port"),
            Self::LeafSpine { leaves, spines, hosts, cables: 1 } if hosts == spines => {
                write!(f, "leaf-spine:{leaves}x{spines}")
            }
            Self::LeafSpine { leaves, spines, hosts, .. } => {
                write!(f, "leaf-spine:{leaves}x{spines}x{hosts}")
            }
            Self::FatTree { k } => write!(f, "fat-tree:{k}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn all_routes(t: &Topology, src: usize, dst: usize) -> BTreeSet<Vec<LinkId>> {
        let (mut routes, mut choices) = (BTreeSet::new(), vec![Vec::new()]);
        while let Some(taken) = choices.pop() {
            let (mut depth, mut open) = (0, 0);
            let route = t.route(src, dst, |_, ways| {
                let way = taken.get(depth).copied();
                if way.is_none() && open == 0 {
                    open = ways;
                }
                depth += 1;
                way.unwrap_or(0)
            });
            if open == 0 {
                routes.insert(route.links().to_vec());
            }
            choices.extend((0..open).map(|way| [&taken[..], &[way]].concat()));
        }
        routes
    }

    /// The ends of a link, from its name.
    fn ends(t: &Topology, link: LinkId) -> (String, String) {
        let name = t.name(link);
        let (from, to) = name.split_once('>').expect("from and to");
        let switch = |end: &str| end.split('.').next().unwrap_or(end).to_owned();
        (switch(from), switch(to))
    }

    #[test]
    fn the_switch_of_144_ports_is_made_of_blocks_of_24() {
        assert_eq!((PORTS_144.hosts(), PORTS_144.links()), (144, 144 + 2 * 144));
        let mut ports: BTreeMap<String, usize> = BTreeMap::new();
        let mut cables: BTreeMap<(String, String), usize> = BTreeMap::new();
        for link in (0..PORTS_144.links() as u32).map(LinkId) {
            let (from, to) = ends(&PORTS_144, link);
            *ports.entry(from.clone()).or_default() += 1;
            *cables.entry((from, to)).or_default() += 1;
        }
        assert_eq!(ports.len(), 12 + 6);
        assert!(ports.values().all(|n| *n == 24), "{ports:?}");
        let inside = cables.iter().filter(|(ends, _)| !ends.1.starts_with("host"));
        assert!(inside.clone().count() == 2 * 72 && inside.clone().all(|(_, n)| *n == 2), "{cables:?}");
    }

    #[test]
    fn every_pair_is_joined_by_as_many_routes_as_are_said_and_all_are_sound() {
        for (text, ways) in [("144-port", 24), ("leaf-spine:3x4", 4), ("fat-tree:4", 4), ("fat-tree:6", 9)] {
            let t = Topology::parse(text).unwrap();
            let mut used = BTreeSet::new();
            let hosts = t.hosts();
            let near = |h: usize| [h, h + 1, h + 2, h + hosts / 2, hosts - 1].map(|x| x % hosts);
            for (src, dst) in (0..hosts).flat_map(|s| near(s).map(|d| (s, d))).filter(|(s, d)| s != d) {
                let routes = all_routes(&t, src, dst);
                assert_eq!(routes.len(), t.ways(src, dst), "{t} {src} to {dst}");
                for route in routes {
                    let names: Vec<_> = route.iter().map(|l| ends(&t, *l)).collect();
                    assert_eq!(names[0].0, format!("leaf{}", t.edge(src)), "{t}: {names:?}");
                    assert_eq!(names[names.len() - 1].1, format!("host{dst}"));
                    assert!(names.windows(2).all(|w| w[0].1 == w[1].0), "{t} {src} to {dst}: {names:?}");
                    used.extend(route);
                }
            }
            assert_eq!(used.len(), t.links(), "{t}: links that no route uses");
            assert_eq!(t.ways(0, hosts - 1), ways, "{t}");
        }
    }

    #[test]
    fn fat_trees_reach_ten_thousand_hosts() {
        let hosts = |k: usize| Topology::parse(&format!("fat-tree:{k}")).unwrap().hosts();
        assert_eq!((hosts(16), hosts(34), hosts(36)), (1024, 9826, 11_664));
        let t = Topology::FatTree { k: 34 };
        assert_eq!((t.ways(0, 1), t.ways(0, 17), t.ways(0, 9825)), (1, 17, 289));
        assert_eq!(t.links(), 9826 * 5);
    }

    #[test]
    fn names_are_read_and_nonsense_is_refused_in_one_sentence() {
        for text in ["144-port", "leaf-spine:2x4", "leaf-spine:2x4x8", "fat-tree:8"] {
            assert_eq!(Topology::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "torus:3",
            "leaf-spine",
            "leaf-spine:2",
            "leaf-spine:0x4",
            "fat-tree:5",
            "fat-tree:64",
            "144-port:2",
        ] {
            let why = Topology::parse(text).unwrap_err();
            assert!(!why.contains('\n') && why.len() < 200, "{text}: {why}");
        }
    }
}
