//! Ports that are used without RDMA-CM: those of InfiniBand, with and without IPoIB, and those for RoCE v2. Owns: the rules
//! by which ports are rails.
//!
//! Nothing here needs an address of IP: the port of InfiniBand has its LID from the subnet manager. Of RoCE v2 the table of GIDs in the
//! adapter has the addresses.

use crate::abi::*;
use crate::device::Device;
use crate::discover::{Address, Found, addresses, number_ports, usable};
use crate::library::Library;
use crate::network::{Network, Subnet};
use crate::place::ip_of_gid;
use rerail_rail::Kind;
use std::fs::{read_dir, read_to_string};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Ports of a device that are looked at.
const PORTS_MAX: u8 = 16;

/// A port that may be a rail: what it takes to use it.
pub struct Port {
    pub device: Arc<Device>,
    pub number: u8,
    pub gid_index: u8,
    pub network: Network,
    /// As the rail's locator has it.
    pub place: Vec<u8>,
}

/// Every port that may be a rail, and a sentence for each that may not be now but could.
pub fn discover(library: &'static Library) -> (Vec<(Found, Port)>, Vec<String>) {
    let (devices, mut problems) = Device::all(library);
    let mut found = Vec::new();
    for device in devices {
        for number in 1..=PORTS_MAX {
            let Some(attr) = device.port(number) else { break };
            let name = device.name().to_owned();
            if attr.link_layer == IBV_LINK_LAYER_ETHERNET {
                found.extend(roce(&device, number));
                continue;
            }
            match subnet(&device, number, &attr) {
                Ok((network, gid_index, place)) => {
                    let interface = ipoib(&device.sysfs().join("device/net"), number).unwrap_or_default();
                    let kind = Kind::IB;
                    let found_here = Found { kind, name, interface, address: Address::Lid(attr.lid) };
                    found.push((
                        found_here,
                        Port { device: device.clone(), number, gid_index, network, place },
                    ));
                }
                Err(why) => problems.push(format!("port {number} of the InfiniBand adapter {name} {why}")),
            }
        }
    }
    number_ports(&mut found, |port| (port.device.context(), port.number));
    (found, problems)
}

/// The subnet of a port of InfiniBand, the index of its GID, and its place. The error says what is wrong with the port, and what to do.
fn subnet(device: &Device, port: u8, attr: &ibv_port_attr) -> Result<(Network, u8, Vec<u8>), &'static str> {
    match attr.state {
        IBV_PORT_ACTIVE if attr.lid != 0 => {}
        0..=IBV_PORT_DOWN => return Err("is down: look at its cable and at the switch"),
        _ => {
            return Err(
                "has no address yet: start a subnet manager on its network (opensm, or that of a switch)",
            );
        }
    }
    // the first of every port: the subnet's prefix, and the number that the adapter was made with
    let gid = device.gid(port, 0).ok_or("has no GID: look at the kernel's log")?;
    let (prefix, interface) = gid.split_at(8);
    let global = attr.flags & IBV_QPF_GRH_REQUIRED != 0;
    let subnet = Subnet { prefix: prefix.try_into().expect("8 bytes"), global };
    let place = subnet.place(attr.lid, interface.try_into().expect("8 more"));
    Ok((Network::Subnet(subnet), 0, place))
}

/// The network interface of IPoIB over a port of an adapter, of which this is the folder of all its interfaces. Children for other
/// partitions have a parent.
fn ipoib(folder: &Path, port: u8) -> Option<String> {
    let number = |interface: &Path, file: &str| -> Option<u64> {
        let text = read_to_string(interface.join(file)).ok()?;
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let is_of_port = |interface: &Path| {
        // old drivers count ports in dev_id
        let from_0 = number(interface, "dev_port").unwrap_or(0).max(number(interface, "dev_id").unwrap_or(0));
        from_0 + 1 == u64::from(port)
    };
    let names = read_dir(folder).ok()?.flatten().filter(|entry| is_of_port(&entry.path()));
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| !name.contains('.')).min()
}

/// The first address of a port for RoCE v2 that is no link-local one; an IPv4 address if it has one.
fn roce(device: &Arc<Device>, port: u8) -> Option<(Found, Port)> {
    let table = device.sysfs().join(format!("ports/{port}/gid_attrs"));
    let read = |what: &str, index: u8| read_to_string(table.join(what).join(index.to_string())).ok();
    let own = addresses();
    let mut all = Vec::new();
    for index in 0..=u8::MAX {
        let Some(gid) = device.gid(port, index) else { continue };
        if read("types", index).is_none_or(|kind| kind.trim() != "RoCE v2") {
            continue;
        }
        let ip = ip_of_gid(gid);
        let Some(interface) = read("ndevs", index).map(|name| name.trim().to_owned()) else { continue };
        // an interface of another network namespace has no address here
        let known = own.iter().find(|(name, at, _)| *name == interface && *at == ip);
        if let Some((_, _, prefix_bits)) = known.filter(|_| usable(ip)) {
            all.push((index, interface, ip, *prefix_bits));
        }
    }
    let (gid_index, interface, ip, prefix_bits) =
        all.into_iter().min_by_key(|(i, _, ip, _)| (ip.is_ipv6(), *i))?;
    let address = Address::Ip { ip, prefix_bits };
    let found = Found { kind: Kind::ROCE_NO_CM, name: device.name().to_owned(), interface, address };
    let place = match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let network = Network::Ethernet;
    Some((found, Port { device: device.clone(), number: port, gid_index, network, place }))
}
