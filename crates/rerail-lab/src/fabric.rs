//! A fabric behind the rails: leaves, spines and the links between them. No system calls.
//!
//! Each rail has a fabric of its own. A node hangs on one leaf by its rail's interface, each leaf is linked to each spine, and leaves send
//! each connection over one of the spines by a hash of its addresses and ports (ECMP by the kernel's own layer-4 hash), as switches do.
//! So two connections may share a link while others lie idle: the hot spot of the HSAM paper, §"Hot-Spot Avoidance MPI".
//!
//! Nodes keep the names and addresses that they have without a fabric: a leaf answers for all of them (proxy ARP), and routes each address
//! by itself. Rejected: a subnet for each leaf, as real fabrics have it. Every address would depend on the fabric, and no program sees the
//! difference.
//!
//! Invariant: the routes of a switch are a function of the links that are down, rendered as a whole each time, as a routing protocol would
//! have them a moment later.

use crate::LabError;
use crate::names::{RAILS_MAX, rail_address, rail_name};
use crate::rate::Rate;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Leaves or spines of a fabric, at most.
const SWITCHES_MAX: usize = 16;
/// The last part of a leaf's address on a rail. Nodes never come that far.
const GATEWAY: u8 = 254;
/// Numbers of interfaces of switches, which differ at both ends of each cable (see `network::interface_index`).
const INDEX_OF_NODE_PORT: usize = 20_000;
const INDEX_OF_UPLINK: usize = 21_000;
const INDEX_OF_DOWNLINK: usize = 22_000;

/// A fabric as it is asked for: `leaf-spine:2x4`, or with the rate of its links `leaf-spine:2x4,200mbit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FabricPlan {
    /// Number of leaves; nodes are dealt out in blocks.
    pub leaves: usize,
    /// Number of spines; each is linked to each leaf.
    pub spines: usize,
    /// Rate of the links at the start, per direction.
    pub rate: Rate,
}

impl FromStr for FabricPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<FabricPlan, String> {
        let wrong = || {
            format!(
                "`{text}` is no fabric: write leaf-spine:LEAVESxSPINES, and the rate of its links if they have one, such as leaf-spine:2x4,200mbit"
            )
        };
        let shape = text.strip_prefix("leaf-spine:").ok_or_else(wrong)?;
        let (counts, rate) = match shape.split_once(',') {
            Some((counts, rate)) => (counts, rate.trim().parse()?),
            None => (shape, Rate::Unshaped),
        };
        let (leaves, spines) = counts.split_once(['x', '×']).ok_or_else(wrong)?;
        let count = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let (leaves, spines) = (count(leaves)?, count(spines)?);
        if ![leaves, spines].iter().all(|count| (1..=SWITCHES_MAX).contains(count)) {
            return Err(format!(
                "a fabric has 1 to {SWITCHES_MAX} leaves and as many spines, not `{counts}`"
            ));
        }
        Ok(FabricPlan { leaves, spines, rate })
    }
}

impl fmt::Display for FabricPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "leaf-spine:{}x{}", self.leaves, self.spines)?;
        if self.rate == Rate::Unshaped { Ok(()) } else { write!(f, ",{}", self.rate) }
    }
}

impl TryFrom<String> for FabricPlan {
    type Error = String;

    fn try_from(text: String) -> Result<FabricPlan, String> {
        text.parse()
    }
}

impl From<FabricPlan> for String {
    fn from(plan: FabricPlan) -> String {
        plan.to_string()
    }
}

/// A switch of a rail's fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Nodes hang on it.
    Leaf(usize),
    /// It joins the leaves.
    Spine(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Leaf(number) => write!(f, "leaf{number}"),
            Place::Spine(number) => write!(f, "spine{number}"),
        }
    }
}

/// A link between a leaf and a spine, written `rail0/leaf1-spine2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The rail whose fabric it belongs to.
    pub rail: usize,
    /// The leaf.
    pub leaf: usize,
    /// The spine.
    pub spine: usize,
}

impl Link {
    /// The interface at one of its ends.
    pub fn device_at(self, place: Place) -> String {
        match place {
            Place::Leaf(_) => format!("spine{}", self.spine),
            Place::Spine(_) => format!("leaf{}", self.leaf),
        }
    }

    /// Both ends.
    pub fn ends(self) -> [Place; 2] {
        [Place::Leaf(self.leaf), Place::Spine(self.spine)]
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/leaf{}-spine{}", rail_name(self.rail), self.leaf, self.spine)
    }
}

impl FabricPlan {
    /// Every switch of a rail's fabric.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.leaves).map(Place::Leaf).chain((0..self.spines).map(Place::Spine))
    }

    /// Every link of a rail's fabric.
    pub fn links(&self, rail: usize) -> impl Iterator<Item = Link> + use<> {
        let spines = self.spines;
        (0..self.leaves).flat_map(move |leaf| (0..spines).map(move |spine| Link { rail, leaf, spine }))
    }

    /// The leaf on which a node hangs.
    pub fn leaf_of(&self, node: usize, nodes: usize) -> usize {
        node / nodes.div_ceil(self.leaves)
    }

    /// The links that a name means: `leaf0-spine1`, or all of a switch, `spine1`.
    pub fn links_named(&self, rail: usize, name: &str) -> Result<Vec<Link>, LabError> {
        let number = |word: &str, prefix: &str| word.strip_prefix(prefix)?.parse::<usize>().ok();
        let is_meant = |link: &Link| match name.split_once('-') {
            Some((leaf, spine)) => {
                number(leaf, "leaf") == Some(link.leaf) && number(spine, "spine") == Some(link.spine)
            }
            None => number(name, "leaf") == Some(link.leaf) || number(name, "spine") == Some(link.spine),
        };
        let links: Vec<Link> = self.links(rail).filter(is_meant).collect();
        if links.is_empty() {
            let (leaf, spine) = (self.leaves - 1, self.spines - 1);
            return Err(LabError::Input(format!(
                "there is no link `{name}` in this fabric: choose leaf0-spine0 to leaf{leaf}-spine{spine}, or a whole switch, such as spine0"
            )));
        }
        Ok(links)
    }

    /// Its address at one end. Rail and link are in it, so no two are alike.
    fn address(&self, link: Link, place: Place) -> Ipv4Addr {
        let end = match place {
            Place::Leaf(_) => 1,
            Place::Spine(_) => 2,
        };
        let number = link.leaf * self.spines + link.spine;
        Ipv4Addr::new(10, (100 + RAILS_MAX + link.rail) as u8, number as u8, end)
    }

    /// `ip -batch` to join a rail's switches among themselves. `holder`: the process in whose namespace each is.
    pub fn cables(&self, rail: usize, holder: impl Fn(Place) -> libc::pid_t) -> String {
        let mut batch = String::new();
        for link in self.links(rail) {
            let [leaf, spine] = link.ends();
            let (up, down) = (INDEX_OF_UPLINK + link.spine, INDEX_OF_DOWNLINK + link.leaf);
            writeln!(
                batch,
                "link add name {} index {up} netns {} type veth peer name {} index {down} netns {}",
                link.device_at(leaf),
                holder(leaf),
                link.device_at(spine),
                holder(spine)
            )
            .expect("String");
        }
        batch
    }

    /// Addresses of a switch, with its interfaces up.
    pub fn address_batch(&self, rail: usize, place: Place, nodes: usize) -> String {
        let mut batch = String::from("link set dev lo up\n");
        for link in self.links(rail).filter(|link| link.ends().contains(&place)) {
            let device = link.device_at(place);
            let address = self.address(link, place);
            writeln!(batch, "address add {address}/30 dev {device}\nlink set dev {device} up")
                .expect("String");
        }
        if let Place::Leaf(leaf) = place {
            let [a, b, c, _] = rail_address(rail, 0).octets();
            for node in (0..nodes).filter(|&node| self.leaf_of(node, nodes) == leaf) {
                let port = node_port(node);
                // as it comes, an answer for others waits for up to 0.8 s
                writeln!(
                    batch,
                    "address add {a}.{b}.{c}.{GATEWAY}/32 dev {port}\nlink set dev {port} up\nntable change name arp_cache dev {port} proxy_delay 0"
                )
                .expect("String");
            }
        }
        batch
    }

    /// Routes of a switch to every node, around the links that are down. What is reached by none of them is unreachable.
    pub fn routes(&self, rail: usize, place: Place, nodes: usize, down: &BTreeSet<Link>) -> String {
        let mut batch = String::new();
        for node in 0..nodes {
            let (to, home) = (rail_address(rail, node), self.leaf_of(node, nodes));
            let is_up = |leaf, spine| !down.contains(&Link { rail, leaf, spine });
            let by: Vec<String> = match place {
                Place::Leaf(leaf) if leaf == home => vec![format!("dev {}", node_port(node))],
                Place::Leaf(leaf) => (0..self.spines)
                    .filter(|&spine| is_up(leaf, spine) && is_up(home, spine))
                    .map(|spine| {
                        let link = Link { rail, leaf, spine };
                        let via = self.address(link, Place::Spine(spine));
                        format!("via {via} dev {}", link.device_at(place))
                    })
                    .collect(),
                Place::Spine(spine) if is_up(home, spine) => {
                    let link = Link { rail, leaf: home, spine };
                    let via = self.address(link, Place::Leaf(home));
                    vec![format!("via {via} dev {}", link.device_at(place))]
                }
                Place::Spine(_) => Vec::new(),
            };
            match by.as_slice() {
                [] => writeln!(batch, "route replace unreachable {to}/32"),
                [one] => writeln!(batch, "route replace {to}/32 {one}"),
                several => writeln!(batch, "route replace {to}/32 nexthop {}", several.join(" nexthop ")),
            }
            .expect("String");
        }
        batch
    }
}

/// The interface of a leaf towards a node.
pub fn node_port(node: usize) -> String {
    format!("n{node}")
}

/// Its number.
pub fn node_port_index(node: usize) -> usize {
    INDEX_OF_NODE_PORT + node
}

/// Settings of a switch, below `/proc/sys/net`, and their values.
pub const SETTINGS: [(&str, &str); 7] = [
    ("ipv4/ip_forward", "1"),
    // addresses and ports
    ("ipv4/fib_multipath_hash_policy", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // a leaf answers for every address that it can route
    ("ipv4/conf/all/proxy_arp", "1"),
    ("ipv4/conf/default/proxy_arp", "1"),
    ("ipv4/conf/all/send_redirects", "0"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> FabricPlan {
        "leaf-spine:2x3,200mbit".parse().unwrap()
    }

    #[test]
    fn fabrics_are_read_and_written_back() {
        for text in ["leaf-spine:2x4", "leaf-spine:16x16,200mbit", "leaf-spine:1x1,1.5gbit"] {
            assert_eq!(text.parse::<FabricPlan>().unwrap().to_string(), text);
        }
        assert_eq!("leaf-spine:2×4".parse::<FabricPlan>().unwrap(), "leaf-spine:2x4".parse().unwrap());
        for (text, says) in [
            ("tcp", "leaf-spine:LEAVESxSPINES"),
            ("leaf-spine:", "is no fabric"),
            ("leaf-spine:2", "is no fabric"),
            ("leaf-spine:2x-1", "is no fabric"),
            ("leaf-spine:0x4", "1 to 16"),
            ("leaf-spine:2x17", "1 to 16"),
            ("leaf-spine:2x4,fast", "not a rate"),
        ] {
            let error = text.parse::<FabricPlan>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn nodes_are_dealt_out_in_blocks() {
        let leaves = |nodes: usize| (0..nodes).map(|node| plan().leaf_of(node, nodes)).collect::<Vec<_>>();
        assert_eq!(leaves(4), [0, 0, 1, 1]);
        assert_eq!(leaves(5), [0, 0, 0, 1, 1]);
        assert_eq!(leaves(1), [0]);
        assert_eq!(leaves(2), [0, 1]);
    }

    #[test]
    fn a_name_means_a_link_or_all_of_a_switch() {
        let named =
            |name: &str| plan().links_named(1, name).map(|all| all.iter().map(Link::to_string).collect());
        let one: Vec<String> = named("leaf1-spine2").unwrap();
        assert_eq!(one, ["rail1/leaf1-spine2"]);
        assert_eq!(named("spine0").unwrap(), ["rail1/leaf0-spine0", "rail1/leaf1-spine0"]);
        assert_eq!(named("leaf0").unwrap().len(), 3);
        for name in ["leaf2-spine0", "spine3", "spine0-leaf0", "leaf", ""] {
            let error = named(name).unwrap_err().to_string();
            assert!(error.contains("leaf0-spine0 to leaf1-spine2"), "{name}: {error}");
        }
    }

    #[test]
    fn routes_use_every_spine_and_leave_out_what_is_down() {
        let routes = |place, down: &[(usize, usize)]| {
            let down = down.iter().map(|&(leaf, spine)| Link { rail: 0, leaf, spine }).collect();
            plan().routes(0, place, 4, &down)
        };
        let whole = routes(Place::Leaf(0), &[]);
        assert!(whole.contains("route replace 10.1.0.1/32 dev n0\n"), "{whole}");
        assert!(
            whole.contains(
                "10.1.0.4/32 nexthop via 10.116.0.2 dev spine0 nexthop via 10.116.1.2 dev spine1 nexthop via 10.116.2.2 dev spine2\n"
            ),
            "{whole}"
        );
        // the far end of a link counts as well: what a spine cannot pass on must not be sent to it
        for down in [(0, 1), (1, 1)] {
            let routes = routes(Place::Leaf(0), &[down]);
            assert!(!routes.contains("spine1") && routes.contains("spine2"), "{down:?}: {routes}");
        }
        assert!(
            routes(Place::Leaf(0), &[(0, 0), (0, 1)]).contains("10.1.0.3/32 via 10.116.2.2 dev spine2\n")
        );
        assert!(routes(Place::Leaf(0), &[(0, 0), (1, 1), (0, 2)]).contains("unreachable 10.1.0.3/32\n"));
        let spine = routes(Place::Spine(1), &[(1, 1)]);
        assert!(spine.contains("10.1.0.1/32 via 10.116.1.1 dev leaf0\n"), "{spine}");
        assert!(spine.contains("unreachable 10.1.0.4/32\n"), "{spine}");
    }
}
