//! Names, addresses and limits of nodes and rails. No system calls.
//!
//! Invariant: every name and address is a pure function of node and rail number, so that a program, a test and a
//! person at another terminal can all write them down without asking.

use std::net::Ipv4Addr;

/// More nodes than this would not tell anything on one machine.
pub const NODES_MAX: usize = 64;
/// More rails than a published address blob can name (8), so that the limit can be tested too.
pub const RAILS_MAX: usize = 16;
/// The name of the launcher's interface in every node.
pub const MGMT: &str = "mgmt";

/// The interface name of a rail, the same in every node.
pub fn rail_name(rail: usize) -> String {
    format!("rail{rail}")
}

/// The host name of a node.
pub fn node_name(node: usize) -> String {
    format!("n{node}")
}

/// A node's address on a rail (a /24 per rail).
pub fn rail_address(rail: usize, node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, rail as u8 + 1, 0, node as u8 + 1)
}

/// A node's address on the management network (10.250.0.0/24).
pub fn mgmt_address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 250, 0, node as u8 + 1)
}

/// A node's Ethernet address on a rail, fixed so that a one-way cut can name its sender.
pub fn rail_mac(rail: usize, node: usize) -> String {
    format!("02:52:52:{:02x}:00:{:02x}", rail + 1, node + 1)
}

/// The Ethernet address of a guest on the management network.
pub fn mgmt_mac(node: usize) -> String {
    format!("02:52:52:00:00:{:02x}", node + 1)
}

/// `/etc/hosts` as every node sees it.
pub fn hosts_file(nodes: usize) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for node in 0..nodes {
        text.push_str(&format!("{} {}\n", mgmt_address(node), node_name(node)));
    }
    text
}
