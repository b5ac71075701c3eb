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
        from_0 + 1 == u64::from(port) && !interface.join("parent").exists()
    };
    let names = read_dir(folder).ok()?.flatten().filter(|entry| is_of_port(&entry.path()));
    names.filter_map(|entry| entry.file_name().into_string().ok()).min()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::node;
    use rerail_rail::Locator;

    const DOWN: u32 = IBV_PORT_DOWN;
    /// The link works, and no subnet manager has seen it.
    const INITIALIZED: u32 = 2;

    /// Names and addresses of what is found, the places, and the sentences.
    fn found(ports: Vec<ibv_port_attr>) -> (Vec<String>, Vec<Vec<u8>>, Vec<String>) {
        node::set_ports(ports);
        let (found, problems) = discover(node::library());
        let names =
            found.iter().map(|(f, _)| format!("{} {} {}", f.kind.name(), f.name, f.address)).collect();
        let places = found.iter().map(|(_, port)| port.place.clone()).collect();
        drop(found);
        assert_eq!(node::open(), (0, 0), "the device is closed when nothing has it any more");
        (names, places, problems)
    }

    #[test]
    fn every_active_port_of_infiniband_is_a_rail_and_needs_no_address_of_ip() {
        let active = |lid| node::port(IBV_PORT_ACTIVE, lid);
        let (names, places, problems) = found(vec![active(0x0102)]);
        assert_eq!((names, problems), (vec!["ib mlx5_0 LID 258".to_owned()], vec![]));
        assert_eq!(places[0].len(), 4);
        let (names, places, _) = found(vec![active(1), active(2)]);
        assert_eq!(names, ["ib mlx5_0:1 LID 1", "ib mlx5_0:2 LID 2"]);
        assert_ne!(places[0], places[1]);
    }

    #[test]
    fn a_port_that_cannot_be_used_has_a_sentence_that_says_what_to_do() {
        let active = node::port(IBV_PORT_ACTIVE, 9);
        let (names, _, problems) = found(vec![node::port(DOWN, 0), node::port(INITIALIZED, 0), active]);
        assert_eq!(names, ["ib mlx5_0 LID 9"]);
        assert!(
            problems[0].starts_with("port 1 of the InfiniBand adapter mlx5_0 is down: look at its cable")
        );
        assert!(
            problems[1]
                .starts_with("port 2 of the InfiniBand adapter mlx5_0 has no address yet: start a subnet")
        );
        let (_, _, problems) = found(vec![node::port(IBV_PORT_ACTIVE, 0)]);
        assert!(problems[0].contains("no address yet"), "a port that is active before it has a LID");
    }

    #[test]
    fn a_port_that_demands_global_headers_publishes_its_number() {
        let mut port = node::port(IBV_PORT_ACTIVE, 9);
        port.flags = IBV_QPF_GRH_REQUIRED;
        let (_, places, _) = found(vec![port]);
        assert_eq!(places[0][4..], [&node::GID[8..15], &[1]].concat());
        assert!(Locator::new(Kind::IB, &places[0], 1).is_some());
    }

    #[test]
    fn the_interface_of_ipoib_is_that_of_the_port_and_not_a_child() {
        let folder = std::env::temp_dir().join(format!("rerail-ipoib-{}", std::process::id()));
        let child = ("a-child", "dev_port", "0\n");
        for (name, file, port) in
            [("ib0", "dev_port", "0\n"), child, ("a-child", "parent", "ib0\n"), ("ib1", "dev_id", "0x1\n")]
        {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            std::fs::write(folder.join(name).join(file), port).unwrap();
        }
        let of = |port| ipoib(&folder, port);
        assert_eq!((of(1), of(2), of(3)), (Some("ib0".into()), Some("ib1".into()), None));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(ipoib(&folder, 1), None, "without IPoIB");
    }
}
