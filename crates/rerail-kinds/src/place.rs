//! Where programs find this process by an IP address. Owns: which rails have one.
//!
//! RoCE and iWARP rails have the address of their network interface, so a process that has no other rails is found by name as well
//! (libfabric's FI_SOCKADDR). Only the question what its address is takes that way; messages take the rails.

use rerail_ip::Interface;
use rerail_rail::{Affinity, Kind, Locator, Reach};
use rerail_verbs::{Address, Found};
use std::net::IpAddr;

/// A rail with an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name, and that of its network interface.
    pub names: [String; 2],
    /// Its kind.
    pub kind: Kind,
    /// The address that names it.
    pub addr: IpAddr,
    /// Length of the prefix of its network.
    pub prefix_bits: u8,
}

impl Place {
    /// Of an adapter; `None`: it has no such address.
    pub fn of_adapter(adapter: &Found) -> Option<Place> {
        let Address::Ip { ip, prefix_bits } = adapter.address else { return None };
        let names = [adapter.name.clone(), adapter.interface.clone()];
        Some(Place { names, kind: adapter.kind, addr: ip, prefix_bits })
    }

    /// Whether `ip` is on the network of this rail.
    pub fn shares_network_with(&self, ip: IpAddr) -> bool {
        let reach = Reach::by_prefix(Locator::ip(self.addr, 0), self.prefix_bits);
        reach.affinity(&Locator::ip(ip, 0)) == Affinity::SameNetwork
    }

    /// Whether a program means it by this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

impl From<&Interface> for Place {
    fn from(i: &Interface) -> Place {
        let names = [i.name.clone(), i.name.clone()];
        Place { names, kind: Kind::IP, addr: i.addr, prefix_bits: i.prefix_bits }
    }
}
