//! The rails: veth pairs, bridges or wires, token buckets, and what cuts do to them.
//!
//! Owns: the current rate and damage of every rail. Invariant: what is recorded is what the kernel was told.

use crate::LabError;
use crate::cut::RailState;
use crate::fabric::Link;
use crate::guest::{Guests, Kit};
use crate::node::Node;
use crate::rate::Rate;
use crate::schedule::{Action, Power};
use crate::switches::Switches;
use crate::tool::{Tools, finish_all};
use crate::topology::{MGMT, RAILS_MAX, Target, Topology, rail_mac, rail_name};
use crate::wire::faults::Faults;
use crate::wire::{Copier, Counts};
use std::fmt::Write;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long interfaces may take to say that they run; the kernel may delay the news by a second.
const SETTLE_PATIENCE: Duration = Duration::from_secs(3);
/// How often to look meanwhile.
const SETTLE_POLL: Duration = Duration::from_millis(2);

/// The numbers below are left to the switch, which counts its ports up from 1.
const INTERFACE_INDEX_MIN: usize = 10_000;

/// The network of a lab that is up.
pub struct Network {
    topology: Topology,
    tools: Tools,
    nodes: Vec<Node>,
    /// The nodes' guests, if that is what they are.
    guests: Option<Guests>,
    /// What is behind the rails, if it is a fabric.
    switches: Option<Switches>,
    rates: Vec<Rate>,
    states: Vec<RailState>,
    /// The processes of the rails that are wires.
    wires: Vec<Option<Copier>>,
}

impl Network {
    /// Joins the nodes, and boots their guests if they have some. Must run in the switch's network namespace, which the bridges
    /// then live in.
    pub fn build(
        topology: Topology,
        tools: Tools,
        nodes: Vec<Node>,
        kit: Option<Kit>,
        cores: &[Option<Vec<usize>>],
    ) -> Result<Network, LabError> {
        let wires = topology.rails.iter().enumerate().map(|(rail, plan)| {
            let index_of = |node| interface_index(Some(rail), node);
            plan.wire
                .as_ref()
                .map(|faults| Copier::start(&rail_name(rail), index_of, &nodes, faults))
                .transpose()
        });
        let fabric = topology.fabric.as_ref();
        let switches = fabric
            .map(|plan| Switches::create(plan, topology.rails.len(), nodes.len(), &tools))
            .transpose()?;
        let mut network = Network {
            wires: wires.collect::<Result<_, _>>()?,
            rates: topology.rails.iter().map(|plan| plan.rate).collect(),
            states: vec![RailState::default(); topology.rails.len()],
            topology,
            tools,
            nodes,
            guests: None,
            switches,
        };
        network.join()?;
        let (topology, tools, nodes) = (&network.topology, &network.tools, &network.nodes);
        match topology.rdma.zip(kit) {
            Some((kind, kit)) => {
                network.guests = Some(Guests::boot(topology, kind, kit, tools, nodes, cores)?);
            }
            None => (0..nodes.len()).try_for_each(|node| network.address(node))?,
        }
        if let Some(switches) = &network.switches {
            switches.open(&network.tools)?;
        }
        for rail in 0..network.rates.len() {
            if network.rates[rail] != Rate::Unshaped {
                network.shape(rail, network.rates[rail])?;
            }
        }
        if network.guests.is_none() {
            network.settle();
        }
        Ok(network)
    }

    /// Waits until every interface says that it runs: the kernel works that out in the background, and a program
    /// that lists its interfaces before sees none to use.
    fn settle(&self) {
        let deadline = Instant::now() + SETTLE_PATIENCE;
        let devices: Vec<String> = (0..self.rates.len()).map(rail_name).chain([MGMT.into()]).collect();
        for node in &self.nodes {
            for device in &devices {
                let state = format!("/proc/{}/root/sys/class/net/{device}/operstate", node.holder);
                // Unreadable means that the node could not have a /sys of its own; then there is nothing to ask.
                // A TAP interface runs from the start, and its state stays `unknown` until its link changes.
                while fs::read_to_string(&state).is_ok_and(|state| !["up", "unknown"].contains(&state.trim()))
                    && Instant::now() < deadline
                {
                    thread::sleep(SETTLE_POLL);
                }
            }
        }
    }

    /// The shape of the lab.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The current rate of a rail.
    pub fn rate(&self, rail: usize) -> Rate {
        self.rates[rail]
    }

    /// What is broken on a rail.
    pub fn state(&self, rail: usize) -> &RailState {
        &self.states[rail]
    }

    /// The faults of a rail that is a wire, and what it has done so far.
    pub fn wire(&self, rail: usize) -> Option<(Faults, Counts)> {
        let wire = self.wires[rail].as_ref()?;
        Some((wire.faults().clone(), wire.counts().ok()?))
    }

    /// The switches behind the rails, if there are some.
    pub fn switches(&self) -> Option<&Switches> {
        self.switches.as_ref()
    }

    /// The guests, if the nodes are some.
    pub fn guests(&self) -> Option<&Guests> {
        self.guests.as_ref()
    }

    /// The rail whose wire is this process.
    pub fn wire_of_process(&self, pid: libc::pid_t) -> Option<usize> {
        self.wires.iter().position(|wire| wire.as_ref().is_some_and(|wire| wire.pid == pid))
    }

    /// Does what `action` says; it must have been checked against the topology.
    pub fn act(&mut self, action: &Action) -> Result<(), LabError> {
        if let Action::Node { node, what } = *action {
            let guests = self.guests.as_mut().expect("checked against the topology");
            guests.power(node, &self.nodes[node], what)?;
            // A guest that boots knows nothing of the cables that were pulled before.
            if what == Power::Boot {
                for rail in (0..self.states.len()).filter(|&rail| self.is_pulled(&self.states[rail], node)) {
                    self.guests.as_ref().map_or(Ok(()), |guests| guests.carrier(node, rail, false))?;
                }
            }
            return Ok(());
        }
        let targets = action.targets(&self.topology)?;
        self.act_on_links(action, &targets)?;
        let mut wanted = self.states.clone();
        let rails = targets.iter().filter_map(|target| match target {
            Target::Rail(rail) => Some(*rail),
            Target::Link(_) => None,
        });
        for rail in rails {
            match *action {
                Action::Wire { ref faults, .. } => {
                    let wire = self.wires[rail].as_mut().expect("checked against the topology");
                    wire.set(faults)?;
                }
                Action::Cut { kind, node, .. } => wanted[rail].cut(kind, node, self.nodes.len()),
                Action::Heal { .. } => wanted[rail] = RailState::default(),
                Action::Shape { rate, .. } => {
                    if rate != self.rates[rail] {
                        self.shape(rail, rate)?;
                        self.rates[rail] = rate;
                    }
                }
                Action::Node { .. } => unreachable!("about no rail"),
            }
        }
        self.apply(wanted)
    }

    /// What an action means for the links of fabrics. A rail that is healed is healed inside as well.
    fn act_on_links(&mut self, action: &Action, targets: &[Target]) -> Result<(), LabError> {
        let Some(switches) = &mut self.switches else { return Ok(()) };
        let heals = matches!(action, Action::Heal { .. });
        let links: Vec<Link> = targets
            .iter()
            .flat_map(|target| match *target {
                Target::Link(link) => vec![link],
                Target::Rail(rail) if heals => switches.links_of(rail),
                Target::Rail(_) => Vec::new(),
            })
            .collect();
        match *action {
            Action::Cut { kind, .. } => switches.cut(&links, kind, &self.tools),
            Action::Heal { .. } => switches.heal(&links, &self.tools),
            Action::Shape { rate, .. } => {
                links.iter().try_for_each(|&link| switches.shape(link, rate, &self.tools))
            }
            Action::Wire { .. } | Action::Node { .. } => Ok(()),
        }
    }

    /// Takes the rails to the wanted states: at all nodes at once, rules and interfaces together.
    fn apply(&mut self, wanted: Vec<RailState>) -> Result<(), LabError> {
        let mut running = Vec::new();
        for number in 0..self.nodes.len() {
            let (mut rules, mut links) = (String::new(), String::new());
            for (rail, (old, new)) in self.states.iter().zip(&wanted).enumerate() {
                rules.push_str(&old.rules_to(new, rail, number, self.switches.is_some()));
                let device = rail_name(rail);
                if self.guests.is_some() {
                    continue;
                }
                match (old.down.contains(&number), new.down.contains(&number)) {
                    (false, true) => writeln!(links, "link set dev {device} down").expect("String"),
                    (true, false) => {
                        writeln!(links, "link set dev {device} up").expect("String");
                        links.push_str(&self.topology.route(rail, number));
                    }
                    _ => {}
                }
            }
            let network = Some(self.nodes[number].network());
            if !rules.is_empty() {
                running.push(self.tools.start("nft", &["-f", "-"], &rules, network)?);
            }
            if !links.is_empty() {
                running.push(self.tools.start("ip", &["-batch", "-"], &links, network)?);
            }
        }
        if let Some(guests) = &self.guests {
            self.plug(guests, &wanted)?;
        }
        finish_all(running)?;
        for (rail, wire) in self.wires.iter().enumerate() {
            // An interface that goes down takes the link from the other end of its cable; a switch in between would not.
            let (Some(wire), true) = (wire, self.topology.is_direct()) else { continue };
            for node in 0..self.nodes.len() {
                let (before, after) =
                    (self.states[rail].down.contains(&node), wanted[rail].down.contains(&node));
                if before != after {
                    wire.carrier(1 - node, !after)?;
                }
            }
        }
        self.states = wanted;
        Ok(())
    }

    /// Takes the guests' links to the wanted state.
    fn plug(&self, guests: &Guests, wanted: &[RailState]) -> Result<(), LabError> {
        for (rail, (old, new)) in self.states.iter().zip(wanted).enumerate() {
            for number in 0..self.nodes.len() {
                let pulled = self.is_pulled(new, number);
                if self.is_pulled(old, number) != pulled {
                    guests.carrier(number, rail, !pulled)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a guest sees no link on a rail. In a pair, the one at the other end of the cable sees the same.
    fn is_pulled(&self, state: &RailState, number: usize) -> bool {
        state.down.contains(&number) || self.topology.is_direct() && !state.down.is_empty()
    }

    /// Makes the wires, in the switch's namespace.
    fn join(&self) -> Result<(), LabError> {
        let mut batch = String::new();
        let rails = (0..self.topology.rails.len()).map(Some).chain([None]);
        for rail in rails {
            if rail.is_some_and(|rail| self.wires[rail].is_some()) {
                continue;
            }
            let device = rail.map_or(MGMT.to_string(), rail_name);
            // That of a guest is its adapter's.
            let named = rail.filter(|_| self.topology.rdma.is_none());
            let mac = |node| named.map_or(String::new(), |rail| format!("address {} ", rail_mac(rail, node)));
            if let Some((switches, rail)) = self.switches.as_ref().zip(rail) {
                for (number, node) in self.nodes.iter().enumerate() {
                    writeln!(
                        batch,
                        "link add {} type veth peer name {device} index {} netns {} {}",
                        switches.port(rail, number),
                        interface_index(Some(rail), number),
                        node.holder,
                        mac(number)
                    )
                    .expect("String");
                }
                continue;
            }
            if self.topology.is_direct() {
                let (near, far) = (&self.nodes[0], &self.nodes[1]);
                writeln!(
                    batch,
                    "link add name {device} index {} netns {} {}type veth peer name {device} index {} netns {} {}",
                    interface_index(rail, 0),
                    near.holder,
                    mac(0),
                    interface_index(rail, 1),
                    far.holder,
                    mac(1)
                )
                .expect("String");
                continue;
            }
            writeln!(
                batch,
                "link add name {device} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set dev {device} up"
            )
            .expect("String");
            for (number, node) in self.nodes.iter().enumerate() {
                let port = port_name(rail, number);
                writeln!(
                    batch,
                    "link add name {port} type veth peer name {device} index {} netns {} {}\nlink set dev {port} master {device} up",
                    interface_index(rail, number),
                    node.holder,
                    mac(number)
                )
                .expect("String");
            }
        }
        self.tools.run("ip", &["-batch", "-"], &batch, None)
    }

    /// Gives the interfaces of a node their addresses and puts them up.
    fn address(&self, number: usize) -> Result<(), LabError> {
        let batch = self.topology.address_batch(number);
        let network = Some(self.nodes[number].network());
        let done = self.tools.run("ip", &["-batch", "-"], &batch, network);
        match (&self.topology.congctl, done) {
            (Some(name), Err(LabError::Tool { message, .. })) if message.contains("congestion") => {
                const KNOWN: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
                let known = fs::read_to_string(KNOWN).unwrap_or_default();
                Err(LabError::Refused(format!(
                    "the kernel does not offer the congestion control `{name}`: choose one of {}",
                    known.trim()
                )))
            }
            (_, done) => done,
        }
    }

    /// Sets the rate of a rail, in both directions: at the egress of every node, and of every switch port.
    fn shape(&self, rail: usize, rate: Rate) -> Result<(), LabError> {
        let device = rail_name(rail);
        for node in &self.nodes {
            let (batch, network) = (rate.batch(&device), Some(node.network()));
            self.tools.run("tc", &["-batch", "-"], &batch, network)?;
        }
        if let Some(switches) = &self.switches {
            return switches.shape_ports(rail, rate, &self.tools);
        }
        if !self.topology.is_direct() && self.wires[rail].is_none() {
            let ports = (0..self.nodes.len()).map(|number| rate.batch(&port_name(Some(rail), number)));
            let batch = ports.collect::<String>();
            self.tools.run("tc", &["-batch", "-"], &batch, None)?;
        }
        Ok(())
    }
}

/// The number of an interface, different at both ends of every wire.
///
/// Left to the kernel, both ends of a veth pair get the same number in their namespaces; it then takes the
/// interface for one without a lower device and may report changes of its link up to a second late, where a cable
/// that is pulled is reported at once. (linkwatch_urgent_event, net/core/link_watch.c)
fn interface_index(rail: Option<usize>, node: usize) -> usize {
    let wire = rail.map_or(0, |rail| rail + 1);
    INTERFACE_INDEX_MIN + node * (RAILS_MAX + 1) + wire
}

/// The switch's port towards a node.
fn port_name(rail: Option<usize>, node: usize) -> String {
    match rail {
        Some(rail) => format!("{}n{node}", rail_name(rail)),
        None => format!("{MGMT}n{node}"),
    }
}
