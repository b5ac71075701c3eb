//! What is broken on a rail, and the nftables rules that break it.
//!
//! The state is kept as sets of nodes per rail, and the rules are rendered from the whole state each time. Adding
//! and removing single rules was rejected: cuts add up (`dark-in` at one node, then at another), and heal must undo
//! any mixture.
//!
//! Drops are always at the receivers. An egress drop would be simpler for `dark-out`, but it can hand the local
//! sender an error, and a silent fault must be silent.

use crate::names::{rail_address, rail_mac, rail_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A way to break a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutKind {
    /// The interface goes down (of one node, node 0 unless told).
    Down,
    /// Silence: nothing arrives, both ways (at all nodes, or to and from one node).
    Dark,
    /// Nothing arrives at one node (node 0 unless told); what it sends does arrive.
    DarkIn,
    /// Nothing that one node sends arrives (node 0 unless told); what is sent to it does.
    DarkOut,
    /// TCP connections are reset, old ones and new ones; UDP passes (at all nodes, or at one).
    Reset,
    /// Half of all TCP connections, by their ports, carry nothing, and no interface reports it: as when some links inside a fabric are dark (at
    /// all nodes, or at one). UDP passes.
    Routes,
}

impl CutKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [CutKind; 6] =
        [CutKind::Down, CutKind::Dark, CutKind::DarkIn, CutKind::DarkOut, CutKind::Reset, CutKind::Routes];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            CutKind::Down => "down",
            CutKind::Dark => "dark",
            CutKind::DarkIn => "dark-in",
            CutKind::DarkOut => "dark-out",
            CutKind::Reset => "reset",
            CutKind::Routes => "routes",
        }
    }
}

impl fmt::Display for CutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CutKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        CutKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            format!("`{text}` is not a kind of cut: choose down, dark, dark-in, dark-out, reset or routes")
        })
    }
}

/// What is broken on one rail: nodes by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailState {
    /// Nodes whose interface is down.
    pub down: BTreeSet<usize>,
    /// Nodes at which nothing arrives.
    pub deaf: BTreeSet<usize>,
    /// Nodes from which nothing arrives.
    pub mute: BTreeSet<usize>,
    /// Nodes that answer TCP with a reset.
    pub reset: BTreeSet<usize>,
    /// Nodes to which some connections bring nothing.
    #[serde(default)]
    pub routes: BTreeSet<usize>,
}

impl RailState {
    /// Adds a cut. `node` must be below `nodes`.
    pub fn cut(&mut self, kind: CutKind, node: Option<usize>, nodes: usize) {
        debug_assert!(node.is_none_or(|node| node < nodes));
        let one = node.unwrap_or(0);
        match (kind, node) {
            (CutKind::Down, _) => {
                self.down.insert(one);
            }
            (CutKind::Dark, None) => self.deaf.extend(0..nodes),
            (CutKind::Dark, Some(node)) => {
                self.deaf.insert(node);
                self.mute.insert(node);
            }
            (CutKind::DarkIn, _) => {
                self.deaf.insert(one);
            }
            (CutKind::DarkOut, _) => {
                self.mute.insert(one);
            }
            (CutKind::Reset, None) => self.reset.extend(0..nodes),
            (CutKind::Reset, Some(node)) => {
                self.reset.insert(node);
            }
            (CutKind::Routes, None) => self.routes.extend(0..nodes),
            (CutKind::Routes, Some(node)) => {
                self.routes.insert(node);
            }
        }
    }

    /// Whether nothing is broken.
    pub fn is_whole(&self) -> bool {
        *self == RailState::default()
    }

    /// The script that takes node `node` from this state to `next`, as one transaction; empty if nothing changes
    /// there.
    ///
    /// Only what differs is replaced: the kernel waits for a grace period per table that goes, and a cut is to
    /// happen at a known moment. `routed`: frames have the Ethernet address of the last switch, not of their sender.
    pub fn rules_to(&self, next: &RailState, rail: usize, node: usize, routed: bool) -> String {
        let device = rail_name(rail);
        let mut script = String::new();
        for (table, old, new) in [
            (
                format!("netdev cut_{device}"),
                self.drop_chain(rail, node, routed),
                next.drop_chain(rail, node, routed),
            ),
            (format!("netdev routes_{device}"), self.routes_chain(rail, node), next.routes_chain(rail, node)),
            (format!("inet reset_{device}"), self.reset_chain(rail, node), next.reset_chain(rail, node)),
        ] {
            if old == new {
                continue;
            }
            if !old.is_empty() {
                script.push_str(&format!("delete table {table}\n"));
            }
            if !new.is_empty() {
                script.push_str(&format!("table {table} {{\n{new}}}\n"));
            }
        }
        script
    }

    fn drop_chain(&self, rail: usize, node: usize, routed: bool) -> String {
        let muted: Vec<String> = self
            .mute
            .iter()
            .filter(|&&sender| sender != node)
            .map(|&sender| match routed {
                true => format!("    ip saddr {} drop\n", rail_address(rail, sender)),
                false => format!("    ether saddr {} drop\n", rail_mac(rail, sender)),
            })
            .collect();
        let deaf = self.deaf.contains(&node);
        if !deaf && muted.is_empty() {
            return String::new();
        }
        let (device, rules) = (rail_name(rail), muted.concat());
        let policy = if deaf { "drop" } else { "accept" };
        format!(
            "  chain ingress {{\n    type filter hook ingress device \"{device}\" priority 0; policy {policy};\n{rules}  }}\n"
        )
    }

    fn routes_chain(&self, rail: usize, node: usize) -> String {
        if !self.routes.contains(&node) {
            return String::new();
        }
        // Both ports count, as in a switch: a new connection may take another route.
        format!(
            "  chain ingress {{\n    type filter hook ingress device \"{}\" priority 0; policy accept;\n    meta l4proto tcp jhash th sport . th dport mod 2 seed 0x52 0 drop\n  }}\n",
            rail_name(rail)
        )
    }

    fn reset_chain(&self, rail: usize, node: usize) -> String {
        if !self.reset.contains(&node) {
            return String::new();
        }
        // A reset that arrives must pass: with the rule at both ends, rejecting resets as well would drop the one
        // that the other end has just sent, and neither end would get a reset.
        format!(
            "  chain input {{\n    type filter hook input priority 0; policy accept;\n    iifname \"{}\" tcp flags & rst == 0 reject with tcp reset\n  }}\n",
            rail_name(rail)
        )
    }
}

impl fmt::Display for RailState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            return f.write_str("whole");
        }
        let mut separator = "";
        for (word, nodes) in [
            ("down", &self.down),
            ("deaf", &self.deaf),
            ("mute", &self.mute),
            ("reset", &self.reset),
            ("dark routes", &self.routes),
        ] {
            if !nodes.is_empty() {
                let nodes: Vec<String> = nodes.iter().map(|node| format!("n{node}")).collect();
                write!(f, "{separator}{word} at {}", nodes.join(" "))?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(state: &RailState, rail: usize, node: usize) -> String {
        RailState::default().rules_to(state, rail, node, false)
    }

    #[test]
    fn kinds_are_read_and_written_back() {
        for kind in CutKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("half".parse::<CutKind>().unwrap_err().contains("dark-in"));
    }

    #[test]
    fn dark_drops_at_every_node_and_dark_in_at_one() {
        let mut state = RailState::default();
        state.cut(CutKind::Dark, None, 3);
        for node in 0..3 {
            assert!(rules(&state, 0, node).contains("policy drop"));
        }
        let mut state = RailState::default();
        state.cut(CutKind::DarkIn, Some(1), 3);
        assert!(!rules(&state, 0, 0).contains("chain"));
        assert!(rules(&state, 0, 1).contains("policy drop"));
    }

    #[test]
    fn dark_out_drops_one_sender_at_all_others_and_nothing_at_itself() {
        let mut state = RailState::default();
        state.cut(CutKind::DarkOut, Some(2), 3);
        let drop = format!("ether saddr {} drop", rail_mac(1, 2));
        for node in 0..2 {
            let rules = rules(&state, 1, node);
            assert!(rules.contains(&drop) && rules.contains("policy accept"));
        }
        assert!(!rules(&state, 1, 2).contains("chain"));
        let routed = RailState::default().rules_to(&state, 1, 0, true);
        assert!(routed.contains("ip saddr 10.2.0.3 drop") && !routed.contains("ether"), "{routed}");
    }

    #[test]
    fn dark_with_a_node_isolates_that_node_only() {
        let mut state = RailState::default();
        state.cut(CutKind::Dark, Some(0), 3);
        assert!(rules(&state, 0, 0).contains("policy drop"));
        assert!(rules(&state, 0, 1).contains(&rail_mac(0, 0)));
        assert!(!rules(&state, 0, 1).contains("policy drop"));
    }

    #[test]
    fn cuts_add_up_and_a_whole_rail_has_no_rules() {
        let mut state = RailState::default();
        state.cut(CutKind::DarkIn, Some(0), 2);
        state.cut(CutKind::DarkIn, Some(1), 2);
        state.cut(CutKind::Reset, None, 2);
        let mut both = RailState::default();
        both.cut(CutKind::Dark, None, 2);
        both.cut(CutKind::Reset, None, 2);
        assert_eq!(state, both);
        assert_eq!(state.to_string(), "deaf at n0 n1, reset at n0 n1");
        assert!(!rules(&RailState::default(), 0, 0).contains("chain"));
    }

    #[test]
    fn only_what_differs_is_replaced() {
        let whole = RailState::default();
        let (mut dark, mut both) = (whole.clone(), whole.clone());
        dark.cut(CutKind::DarkIn, None, 2);
        both.cut(CutKind::DarkIn, None, 2);
        both.cut(CutKind::Reset, None, 2);
        let script = dark.rules_to(&both, 0, 0, false);
        assert!(script.contains("table inet reset_rail0 {") && !script.contains("netdev"));
        assert_eq!(
            both.rules_to(&whole, 0, 0, false),
            "delete table netdev cut_rail0\ndelete table inet reset_rail0\n"
        );
        assert_eq!(both.rules_to(&both, 0, 0, false), "");
    }

    #[test]
    fn dark_routes_drop_some_connections_and_policy_lets_the_rest_pass() {
        let mut state = RailState::default();
        state.cut(CutKind::Routes, Some(1), 2);
        assert!(!rules(&state, 0, 0).contains("chain"));
        assert!(rules(&state, 0, 1).contains("policy accept") && rules(&state, 0, 1).contains("jhash"));
        assert_eq!(state.to_string(), "dark routes at n1");
    }

    #[test]
    fn a_reset_lets_resets_pass() {
        let mut state = RailState::default();
        state.cut(CutKind::Reset, None, 2);
        assert!(rules(&state, 0, 0).contains("tcp flags & rst == 0 reject with tcp reset"));
    }
}
