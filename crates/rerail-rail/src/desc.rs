//! What a kind of rail tells about each of its rails.

use std::net::IpAddr;

/// A local rail, as the world found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRail {
    /// Name of the interface.
    pub name: String,
    /// Its address.
    pub addr: IpAddr,
    /// Length of the network prefix: rails are paired with remote addresses on the same network first.
    pub prefix_bits: u8,
    /// Nominal speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u32,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Whether it is up now.
    pub up: bool,
}
