//! The switches of a lab's fabrics: each a [holder] of a network namespace.
//!
//! Owns: the state and rate of every link. Invariant: what is recorded is what the kernel was told.

use crate::cut::CutKind;
use crate::error::Attempt;
use crate::fabric::{FabricPlan, Link, Place, SETTINGS, node_port, node_port_index};
use crate::link::LinkState;
use crate::names::rail_name;
use crate::rate::Rate;
use crate::tool::{Tools, finish_all};
use crate::{LabError, holder, sys};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A switch: its process, and its network namespace.
struct Switch {
    holder: libc::pid_t,
    network: OwnedFd,
}

impl Switch {
    fn create(name: &str) -> Result<Switch, LabError> {
        let holder = holder::start(name, hold)?;
        let network = File::open(format!("/proc/{holder}/ns/net"))
            .attempt(|| format!("open the namespace of {name}"))?
            .into();
        Ok(Switch { holder, network })
    }
}

/// Runs in the holder.
fn hold() -> Result<(), LabError> {
    sys::unshare(libc::CLONE_NEWNET).attempt(|| "make the namespace of a switch".into())?;
    for (setting, value) in SETTINGS {
        let path = format!("/proc/sys/net/{setting}");
        fs::write(&path, value).attempt(|| format!("set {path} of a switch"))?;
    }
    Ok(())
}

/// All switches of a lab, and the links between them.
pub struct Switches {
    plan: FabricPlan,
    nodes: usize,
    switches: BTreeMap<(usize, Place), Switch>,
    states: BTreeMap<Link, LinkState>,
    rates: BTreeMap<Link, Rate>,
}

impl Switches {
    /// Makes the switches and the links between them; nodes are joined by [`Self::port`] before [`Self::open`].
    pub fn create(
        plan: &FabricPlan,
        rails: usize,
        nodes: usize,
        tools: &Tools,
    ) -> Result<Switches, LabError> {
        let mut switches = BTreeMap::new();
        for (rail, place) in (0..rails).flat_map(|rail| plan.places().map(move |place| (rail, place))) {
            switches
                .insert((rail, place), Switch::create(&format!("the switch {}/{place}", rail_name(rail)))?);
        }
        let links = || (0..rails).flat_map(|rail| plan.links(rail));
        let all = Switches {
            states: links().map(|link| (link, LinkState::default())).collect(),
            rates: links().map(|link| (link, plan.rate)).collect(),
            plan: plan.clone(),
            nodes,
            switches,
        };
        let cables = (0..rails).map(|rail| plan.cables(rail, |place| all.switches[&(rail, place)].holder));
        tools.run("ip", &["-batch", "-"], &cables.collect::<String>(), None)?;
        Ok(all)
    }

    /// The end of a node's cable, for `ip link add`: a port of its leaf.
    pub fn port(&self, rail: usize, node: usize) -> String {
        let leaf = Place::Leaf(self.plan.leaf_of(node, self.nodes));
        let holder = self.switches[&(rail, leaf)].holder;
        format!("name {} index {} netns {holder}", node_port(node), node_port_index(node))
    }

    /// Puts the switches to work: addresses, routes, rates of links.
    pub fn open(&self, tools: &Tools) -> Result<(), LabError> {
        for (&(rail, place), switch) in &self.switches {
            let batch = self.plan.address_batch(rail, place, self.nodes);
            tools.run("ip", &["-batch", "-"], &batch, Some(switch.network.as_fd()))?;
        }
        // a route needs its interface up, which both ends of a cable must be
        for &(rail, place) in self.switches.keys() {
            let routes = self.plan.routes(rail, place, self.nodes, &BTreeSet::new());
            tools.run("ip", &["-batch", "-"], &routes, Some(self.network(rail, place)))?;
        }
        for (&link, &rate) in self.rates.iter().filter(|(_, rate)| **rate != Rate::Unshaped) {
            self.tell_rate(link, rate, tools)?;
        }
        Ok(())
    }

    /// Every link: its state, its rate, and the processes at its two ends with the interface there.
    pub fn links(&self) -> impl Iterator<Item = (Link, &LinkState, Rate, [(libc::pid_t, String); 2])> {
        self.states.iter().map(|(&link, state)| {
            let end = |place| (self.switches[&(link.rail, place)].holder, link.device_at(place));
            (link, state, self.rates[&link], link.ends().map(end))
        })
    }

    /// Sets the rate of the ports towards nodes.
    pub fn shape_ports(&self, rail: usize, rate: Rate, tools: &Tools) -> Result<(), LabError> {
        for leaf in 0..self.plan.leaves {
            let nodes = (0..self.nodes).filter(|&node| self.plan.leaf_of(node, self.nodes) == leaf);
            let batch: String = nodes.map(|node| rate.batch(&node_port(node))).collect();
            tools.run("tc", &["-batch", "-"], &batch, Some(self.network(rail, Place::Leaf(leaf))))?;
        }
        Ok(())
    }

    /// Changes the rate of a link, in both directions.
    pub fn shape(&mut self, link: Link, rate: Rate, tools: &Tools) -> Result<(), LabError> {
        if self.rates[&link] != rate {
            self.tell_rate(link, rate, tools)?;
            self.rates.insert(link, rate);
        }
        Ok(())
    }

    /// Breaks links.
    pub fn cut(&mut self, links: &[Link], kind: CutKind, tools: &Tools) -> Result<(), LabError> {
        let mut wanted = self.states.clone();
        for link in links {
            wanted.get_mut(link).expect("checked against the topology").cut(kind)?;
        }
        self.apply(wanted, tools)
    }

    /// Mends links.
    pub fn heal(&mut self, links: &[Link], tools: &Tools) -> Result<(), LabError> {
        let mut wanted = self.states.clone();
        wanted.extend(links.iter().map(|&link| (link, LinkState::default())));
        self.apply(wanted, tools)
    }

    /// Every link of a rail.
    pub fn links_of(&self, rail: usize) -> Vec<Link> {
        self.plan.links(rail).collect()
    }

    fn network(&self, rail: usize, place: Place) -> BorrowedFd<'_> {
        self.switches[&(rail, place)].network.as_fd()
    }

    fn tell_rate(&self, link: Link, rate: Rate, tools: &Tools) -> Result<(), LabError> {
        for place in link.ends() {
            let batch = rate.batch(&link.device_at(place));
            tools.run("tc", &["-batch", "-"], &batch, Some(self.network(link.rail, place)))?;
        }
        Ok(())
    }

    /// Takes the links to the wanted states: rules and interfaces of all of them together, then the routes.
    fn apply(&mut self, wanted: BTreeMap<Link, LinkState>, tools: &Tools) -> Result<(), LabError> {
        let is_down = |states: &BTreeMap<Link, LinkState>| -> BTreeSet<Link> {
            states.iter().filter(|(_, state)| state.down).map(|(&link, _)| link).collect()
        };
        let (before, after) = (is_down(&self.states), is_down(&wanted));
        let mut running = Vec::new();
        for (&link, new) in &wanted {
            let old = &self.states[&link];
            for place in link.ends() {
                let network = Some(self.network(link.rail, place));
                let rules = old.rules_to(new, link, place);
                if !rules.is_empty() {
                    running.push(tools.start("nft", &["-f", "-"], &rules, network)?);
                }
                if old.down != new.down {
                    let state = if new.down { "down" } else { "up" };
                    let batch = format!("link set dev {} {state}\n", link.device_at(place));
                    running.push(tools.start("ip", &["-batch", "-"], &batch, network)?);
                }
            }
        }
        finish_all(running)?;
        let changed: BTreeSet<usize> = before.symmetric_difference(&after).map(|link| link.rail).collect();
        let mut running = Vec::new();
        for &rail in &changed {
            for place in self.plan.places() {
                let routes = self.plan.routes(rail, place, self.nodes, &after);
                let network = Some(self.network(rail, place));
                running.push(tools.start("ip", &["-batch", "-"], &routes, network)?);
            }
        }
        finish_all(running)?;
        self.states = wanted;
        Ok(())
    }
}
