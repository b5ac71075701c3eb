//! The shape of a lab: how many nodes, which rails, and what is behind them. No system calls.

use crate::LabError;
use crate::fabric::{FabricPlan, Link};
pub use crate::names::{
    MGMT, NODES_MAX, RAILS_MAX, hosts_file, mgmt_address, mgmt_mac, node_name, rail_address, rail_mac,
    rail_name,
};
use crate::rate::Rate;
use crate::rdma::Rdma;
use crate::wire::faults::Faults;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::str::FromStr;

/// How many nodes, joined by which rails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// Number of nodes, named n0, n1, …
    pub nodes: usize,
    /// Each rail at the start; the rails are named rail0, rail1, …
    pub rails: Vec<RailPlan>,
    /// Congestion control of all connections over the rails; `None` leaves the machine's default.
    pub congctl: Option<String>,
    /// The RDMA devices on the rails, which makes the nodes guests; `None`: nodes are namespaces, and have none.
    #[serde(default)]
    pub rdma: Option<Rdma>,
    /// What is behind each rail; `None`: a cable between two nodes, or one switch.
    #[serde(default)]
    pub fabric: Option<FabricPlan>,
}

/// What can be cut, healed and shaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A rail, at the interfaces of the nodes.
    Rail(usize),
    /// A link inside its fabric.
    Link(Link),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Rail(rail) => f.write_str(&rail_name(*rail)),
            Target::Link(link) => link.fmt(f),
        }
    }
}

/// A rail as it is asked for: `1gbit`, or, for a [wire](crate::wire), `wire`, `wire:1gbit`, `wire:1gbit,loss=1%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RailPlan {
    /// Its rate.
    pub rate: Rate,
    /// The faults of a wire; `None`: the rail is a pair of veth interfaces, or a bridge.
    pub wire: Option<Faults>,
}

impl RailPlan {
    /// A rail that is no wire.
    pub fn veth(rate: Rate) -> RailPlan {
        RailPlan { rate, wire: None }
    }
}

impl FromStr for RailPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<RailPlan, String> {
        // without a rate the faults may follow at once: `wire,loss=1%`
        let (kind, parts) = text.split_once([':', ',']).unwrap_or((text, ""));
        if kind != "wire" {
            return text
                .parse()
                .map(RailPlan::veth)
                .map_err(|message: String| format!("{message}; for a wire `wire` or `wire:1gbit,loss=1%`"));
        }
        let mut words: Vec<&str> = parts.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let mut plan = RailPlan { rate: Rate::Unshaped, wire: Some(Faults::default()) };
        if let Some(rate) = words.first().and_then(|word| word.parse().ok()) {
            plan.rate = rate;
            words.remove(0);
        }
        if !words.is_empty() {
            plan.wire = Some(Faults::parse(words).map_err(|(_, message)| message)?);
        }
        Ok(plan)
    }
}

impl fmt::Display for RailPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wire {
            None => self.rate.fmt(f),
            Some(faults) if *faults == Faults::default() => write!(f, "wire:{}", self.rate),
            Some(faults) => write!(f, "wire:{},{faults}", self.rate),
        }
    }
}

impl TryFrom<String> for RailPlan {
    type Error = String;

    fn try_from(text: String) -> Result<RailPlan, String> {
        text.parse()
    }
}

impl From<RailPlan> for String {
    fn from(plan: RailPlan) -> String {
        plan.to_string()
    }
}

impl Topology {
    /// Checks the limits.
    pub fn check(&self) -> Result<(), LabError> {
        if self.nodes == 0 || self.nodes > NODES_MAX {
            return Err(LabError::Input(format!(
                "a lab has 1 to {NODES_MAX} nodes, not {}: change --nodes",
                self.nodes
            )));
        }
        if self.rails.is_empty() || self.rails.len() > RAILS_MAX {
            return Err(LabError::Input(format!(
                "a lab has 1 to {RAILS_MAX} rails, not {}: change --rail or --rails",
                self.rails.len()
            )));
        }
        if self.rdma.is_some() && self.rails.iter().any(|rail| rail.wire.is_some()) {
            return Err(LabError::Input(
                "a wire cannot be between guests: leave out --rdma, or the word wire in --rail".into(),
            ));
        }
        if let Some(fabric) = &self.fabric {
            if self.rdma.is_some() || self.rails.iter().any(|rail| rail.wire.is_some()) {
                return Err(LabError::Input(
                    "a fabric is for nodes that are namespaces, and for rails that are no wires: leave out --rdma, and the word wire in --rail, or --fabric".into(),
                ));
            }
            if fabric.leaves > self.nodes {
                return Err(LabError::Input(format!(
                    "{} leaves are more than the {} nodes that hang on them: change --nodes or --fabric",
                    fabric.leaves, self.nodes
                )));
            }
        }
        for faults in self.rails.iter().filter_map(|rail| rail.wire.as_ref()) {
            faults.from.map_or(Ok(0), |node| self.node_numbered(node))?;
        }
        Ok(())
    }

    /// Two nodes are joined by one veth pair per rail; any other number by one bridge per rail, and all by a fabric if there is one.
    ///
    /// A bridge would do for two as well, but costs bandwidth, and the published figures are those of a pair.
    pub fn is_direct(&self) -> bool {
        self.nodes == 2 && self.fabric.is_none()
    }

    /// `rail0`, `rail1`, … separated by commas.
    pub fn rail_list(&self, separator: &str) -> String {
        (0..self.rails.len()).map(rail_name).collect::<Vec<_>>().join(separator)
    }

    /// Resolves a rail's name; `all` gives every rail.
    pub fn rails_named(&self, name: &str) -> Result<Vec<usize>, LabError> {
        if name == "all" {
            return Ok((0..self.rails.len()).collect());
        }
        (0..self.rails.len()).find(|&rail| rail_name(rail) == name).map(|rail| vec![rail]).ok_or_else(|| {
            LabError::Input(format!(
                "there is no rail `{name}` in this lab: choose {} or all",
                self.rail_list(", ")
            ))
        })
    }

    /// Resolves a name such as `rail0`, `all`, or, where there is a fabric, `rail0/leaf0-spine1` or `all/spine1`.
    pub fn targets_named(&self, name: &str) -> Result<Vec<Target>, LabError> {
        let Some((rail, link)) = name.split_once('/') else {
            return Ok(self.rails_named(name)?.into_iter().map(Target::Rail).collect());
        };
        let fabric = self.fabric.as_ref().ok_or_else(|| {
            LabError::Input(format!(
                "`{name}` is a link of a fabric, and this lab has none: start it with --fabric, such as leaf-spine:2x4"
            ))
        })?;
        let links = self.rails_named(rail)?.into_iter().map(|rail| fabric.links_named(rail, link));
        Ok(links.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().map(Target::Link).collect())
    }

    /// The wires among the rails of this name; it is an error if there is none.
    pub fn wires_named(&self, name: &str) -> Result<Vec<usize>, LabError> {
        let wires: Vec<usize> =
            self.rails_named(name)?.into_iter().filter(|&rail| self.rails[rail].wire.is_some()).collect();
        if wires.is_empty() {
            return Err(LabError::Input(format!(
                "`{name}` is no wire: start the lab with --rail wire:RATE where faults are to be planted"
            )));
        }
        Ok(wires)
    }

    /// What `ip -batch` has to do in a node to give its interfaces their addresses and to put them up.
    pub(crate) fn address_batch(&self, number: usize) -> String {
        let mut batch = format!(
            "link set dev lo up\naddress add {}/24 dev {MGMT}\nlink set dev {MGMT} up\n",
            mgmt_address(number)
        );
        for (rail, plan) in self.rails.iter().enumerate() {
            let device = rail_name(rail);
            if plan.wire.is_some() {
                writeln!(batch, "link set dev {device} address {}", rail_mac(rail, number)).expect("String");
            }
            writeln!(
                batch,
                "address add {}/24 dev {device}\nlink set dev {device} up\n{}",
                rail_address(rail, number),
                self.route(rail, number)
            )
            .expect("String");
        }
        batch
    }

    /// The rail's route with its congestion control. At each link-up the kernel replaces the route by one without it.
    pub(crate) fn route(&self, rail: usize, number: usize) -> String {
        self.congctl.as_ref().map_or(String::new(), |name| {
            let address = rail_address(rail, number);
            let [a, b, c, _] = address.octets();
            format!(
                "route replace {a}.{b}.{c}.0/24 dev {} proto kernel scope link src {address} congctl lock {name}\n",
                rail_name(rail)
            )
        })
    }

    /// Checks a node's number.
    pub fn node_numbered(&self, node: usize) -> Result<usize, LabError> {
        if node < self.nodes {
            return Ok(node);
        }
        Err(LabError::Input(format!("there is no node {node} in this lab: choose 0 to {}", self.nodes - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_rails() -> Topology {
        Topology {
            nodes: 2,
            rails: vec![RailPlan::veth(Rate::Unshaped); 2],
            congctl: None,
            rdma: None,
            fabric: None,
        }
    }

    #[test]
    fn an_unknown_rail_is_answered_with_the_rails_there_are() {
        let error = two_rails().rails_named("rail7").unwrap_err().to_string();
        assert_eq!(error, "there is no rail `rail7` in this lab: choose rail0, rail1 or all");
        assert_eq!(two_rails().rails_named("all").unwrap(), [0, 1]);
        assert_eq!(two_rails().rails_named("rail1").unwrap(), [1]);
    }

    #[test]
    fn an_unknown_node_is_answered_with_the_nodes_there_are() {
        let error = two_rails().node_numbered(2).unwrap_err().to_string();
        assert_eq!(error, "there is no node 2 in this lab: choose 0 to 1");
    }

    #[test]
    fn rails_are_read_and_written_back() {
        for (text, shown) in [
            ("1gbit", "1gbit"),
            ("unshaped", "unshaped"),
            ("wire", "wire:unshaped"),
            ("wire:200mbit", "wire:200mbit"),
            ("wire:1gbit,loss=1%,from=n1", "wire:1gbit,loss=1%,from=n1"),
            ("wire:corrupt=0.1%", "wire:unshaped,corrupt=0.1%"),
            ("wire,loss=1%,from=n1", "wire:unshaped,loss=1%,from=n1"),
        ] {
            let plan: RailPlan = text.parse().unwrap();
            assert_eq!(plan.to_string(), shown);
            assert_eq!(shown.parse(), Ok(plan));
        }
        for (text, says) in [
            ("fast", "wire:1gbit,loss=1%"),
            ("wire:fast", "no fault of a wire"),
            ("wire:loss=1%,1gbit", "no fault"),
        ] {
            let error = text.parse::<RailPlan>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_rail_that_is_no_wire_is_told_from_one() {
        let mut topology = two_rails();
        topology.rails[1] = "wire:loss=1%,from=n1".parse().unwrap();
        topology.check().unwrap();
        assert_eq!(topology.wires_named("all").unwrap(), [1]);
        assert!(topology.wires_named("rail0").unwrap_err().to_string().contains("--rail wire"));
        topology.rails[1] = "wire:loss=1%,from=n2".parse().unwrap();
        assert!(topology.check().unwrap_err().to_string().contains("no node 2"));
    }

    #[test]
    fn there_is_no_wire_between_guests() {
        let mut topology = Topology { rdma: Some(Rdma::Roce), ..two_rails() };
        topology.check().unwrap();
        topology.rails[1] = "wire".parse().unwrap();
        assert!(topology.check().unwrap_err().to_string().contains("--rdma"));
    }

    #[test]
    fn a_fabric_is_for_namespaces_and_has_links_with_names() {
        let fabric: Option<FabricPlan> = Some("leaf-spine:2x2".parse().unwrap());
        let topology = Topology { fabric, ..two_rails() };
        topology.check().unwrap();
        let named = |name: &str| {
            let targets = topology.targets_named(name).map_err(|error| error.to_string())?;
            Ok::<_, String>(targets.iter().map(Target::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(named("all").unwrap(), "rail0 rail1");
        assert_eq!(named("all/leaf0-spine1").unwrap(), "rail0/leaf0-spine1 rail1/leaf0-spine1");
        assert_eq!(named("rail1/spine0").unwrap(), "rail1/leaf0-spine0 rail1/leaf1-spine0");
        for (name, says) in [("rail2/spine0", "choose rail0"), ("rail0/spine2", "choose leaf0-spine0")] {
            assert!(named(name).unwrap_err().contains(says));
        }
        assert!(two_rails().targets_named("rail0/spine0").unwrap_err().to_string().contains("--fabric"));
        let mut wrong = topology.clone();
        wrong.rails[0] = "wire".parse().unwrap();
        assert!(wrong.check().unwrap_err().to_string().contains("no wires"));
        let wrong = Topology { nodes: 1, ..topology.clone() };
        assert!(wrong.check().unwrap_err().to_string().contains("2 leaves are more than the 1 nodes"));
        let wrong = Topology { rdma: Some(Rdma::Roce), ..topology };
        assert!(wrong.check().unwrap_err().to_string().contains("--rdma"));
    }

    #[test]
    fn limits_are_checked() {
        for (nodes, rails) in [(0, 1), (NODES_MAX + 1, 1), (2, 0), (2, RAILS_MAX + 1)] {
            let topology = Topology {
                nodes,
                rails: vec![RailPlan::veth(Rate::Unshaped); rails],
                congctl: None,
                rdma: None,
                fabric: None,
            };
            assert!(topology.check().is_err());
        }
        two_rails().check().unwrap();
    }
}
