//! Which interfaces become rails. Owns: the rules, as pure functions over what the kernel says.
//!
//! Without a selection: every interface that is up and running and has an address that others can reach, except those
//! that containers, virtual machines and tunnels make for themselves; loopback only when there is nothing else. With a
//! selection: exactly those, in that order. A selected interface may be down (a rail that is down), but it must have an
//! address.

use crate::netlink::{Link, LinkAddress};
use crate::{AttachError, sys};
use rerail_rail::Locator;
use rerail_wire::address;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// An interface that can be a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index in the kernel.
    pub index: u32,
    /// The address that names the rail.
    pub addr: IpAddr,
    /// Length of its network prefix.
    pub prefix_bits: u8,
    /// Nominal speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u32,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Up, with carrier.
    pub up: bool,
}

/// Names that container engines, virtual machines and overlay networks give to interfaces of their own. A plain bridge with
/// another name may well carry the host's address, so the kind "bridge" alone rules nothing out.
const FOREIGN_NAMES: &[&str] = &[
    "docker",
    "br-",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "lxcbr",
    "lxdbr",
    "podman",
    "nerdctl",
    "kube",
    "vmnet",
    "vboxnet",
    "weave",
    "tailscale",
    "zt",
];

/// Kinds of interface that are tunnels or lead nowhere.
const FOREIGN_KINDS: &[&str] = &[
    "tun",
    "wireguard",
    "ppp",
    "ipip",
    "sit",
    "gre",
    "gretap",
    "erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "vti",
    "vti6",
    "xfrm",
    "vxlan",
    "geneve",
    "gtp",
    "dummy",
    "ifb",
    "nlmon",
    "can",
    "vcan",
];

/// Kinds of master whose slaves carry no traffic of their own.
const MASTERS: &[&str] = &["bond", "bridge", "team", "openvswitch"];

fn loopback(l: &Link) -> bool {
    l.flags & libc::IFF_LOOPBACK as u32 != 0
}

/// Why the interface is not taken without being asked for, its address aside.
fn unwanted(l: &Link) -> Option<String> {
    if loopback(l) {
        Some("loopback is used only when there is nothing else".into())
    } else if FOREIGN_NAMES.iter().any(|p| l.name.starts_with(p)) {
        Some("by its name it belongs to containers, virtual machines or an overlay network".into())
    } else if FOREIGN_KINDS.contains(&l.kind.as_str()) {
        Some(format!("interfaces of the kind {} are tunnels or lead nowhere", l.kind))
    } else if MASTERS.contains(&l.slave_of.as_str()) {
        Some(format!("it is part of a {}, which carries its traffic", l.slave_of))
    } else {
        not_running(l)
    }
}

fn not_running(l: &Link) -> Option<String> {
    let up = l.flags & libc::IFF_UP as u32 != 0;
    (!l.running()).then(|| if up { "it has no carrier" } else { "it is down" }.into())
}

fn wanted(l: &Link) -> bool {
    unwanted(l).is_none()
}

/// The address of one family that names a rail on this interface.
fn address(l: &Link, all: &[LinkAddress], v4: bool, selected: bool) -> Option<LinkAddress> {
    let fits = |a: &&LinkAddress| {
        a.index == l.index
            && a.addr.is_ipv4() == v4
            && if loopback(l) { a.addr.is_loopback() } else { usable(a, selected) }
    };
    all.iter().find(fits).cloned()
}

fn usable(a: &LinkAddress, selected: bool) -> bool {
    match a.addr {
        // Zero-configuration addresses are those of management controllers more often than of networks.
        IpAddr::V4(ip) => !ip.is_loopback() && (selected || (a.usable && !ip.is_link_local())),
        IpAddr::V6(ip) => a.usable && !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

fn interface(l: &Link, a: LinkAddress) -> Interface {
    Interface {
        name: l.name.clone(),
        index: l.index,
        addr: a.addr,
        prefix_bits: a.prefix_bits,
        speed_mbps: 0,
        mtu: l.mtu.clamp(576, 65_535) as u16,
        up: l.running(),
    }
}

/// Chooses the rails; the second value holds sentences for the log.
///
/// # Errors
/// One sentence that says what is wrong with the selection, or that there is nothing to use.
pub(crate) fn choose(
    links: &[Link],
    addresses: &[LinkAddress],
    selection: &[String],
) -> Result<(Vec<Interface>, Vec<String>), AttachError> {
    if selection.is_empty() { automatic(links, addresses) } else { selected(links, addresses, selection) }
}

fn automatic(
    links: &[Link],
    addresses: &[LinkAddress],
) -> Result<(Vec<Interface>, Vec<String>), AttachError> {
    let mut notes = Vec::new();
    let mut found: Vec<Interface> = links
        .iter()
        .filter(|l| wanted(l))
        .filter_map(|l| {
            let a = [true, false].into_iter().find_map(|v4| address(l, addresses, v4, false))?;
            Some(interface(l, a))
        })
        .collect();
    // in the kernel's order within each family
    found.sort_by_key(|i| i.addr.is_ipv6());
    let most = room(&found);
    if found.len() > most {
        let left: Vec<&str> = found[most..].iter().map(|i| i.name.as_str()).collect();
        notes.push(format!(
            "only the first {most} of {} interfaces are used as rails, without {}; choose with FI_RERAIL_RAILS",
            found.len(),
            left.join(", ")
        ));
        found.truncate(most);
    }
    if !found.is_empty() {
        return Ok((found, notes));
    }
    let lo = links.iter().filter(|l| loopback(l) && l.running());
    let lo: Vec<Interface> =
        lo.filter_map(|l| Some(interface(l, address(l, addresses, true, false)?))).take(1).collect();
    if lo.is_empty() {
        return Err(AttachError::Selection(
            "no network interface is up and has an address that rerail can use".into(),
        ));
    }
    notes.push(
        "no network interface is usable: the only rail is loopback, peers on other hosts are out of reach"
            .into(),
    );
    Ok((lo, notes))
}

fn selected(
    links: &[Link],
    addresses: &[LinkAddress],
    selection: &[String],
) -> Result<(Vec<Interface>, Vec<String>), AttachError> {
    let fail = |s: String| Err(AttachError::Selection(s));
    let mut chosen = Vec::new();
    for (i, name) in selection.iter().enumerate() {
        if selection[..i].contains(name) {
            return fail(format!("FI_RERAIL_RAILS names the interface \"{name}\" twice"));
        }
        let Some(l) = links.iter().find(|l| l.name == *name) else {
            return fail(format!(
                "FI_RERAIL_RAILS names the interface \"{name}\", which does not exist; usable here: {}",
                usable_names(links, addresses)
            ));
        };
        chosen.push(l);
    }
    let of = |v4: bool| -> Vec<Option<LinkAddress>> {
        chosen.iter().map(|l| address(l, addresses, v4, true)).collect()
    };
    let (v4, v6) = (of(true), of(false));
    let addrs: Vec<Option<LinkAddress>> =
        match v6.iter().all(Option::is_some) && v4.iter().any(Option::is_none) {
            true => v6,
            // where no family is everywhere, each has what it has
            false => v4.into_iter().zip(v6).map(|(v4, v6)| v4.or(v6)).collect(),
        };
    let mut rails = Vec::new();
    for (l, a) in chosen.iter().zip(addrs) {
        let Some(a) = a else {
            return fail(format!(
                "FI_RERAIL_RAILS names the interface \"{}\", which has no usable address{}; usable here: {}",
                l.name,
                if l.running() { "" } else { " and is down" },
                usable_names(links, addresses)
            ));
        };
        rails.push(interface(l, a));
    }
    let most = room(&rails);
    if rails.len() > most {
        return fail(format!(
            "FI_RERAIL_RAILS names {} interfaces; an address has room for {most} of them: at most 8 with IPv4 addresses, 2 with \
             IPv6 addresses, or 4 and 1",
            rails.len()
        ));
    }
    let notes = rails
        .iter()
        .filter(|r| !r.up)
        .map(|r| format!("the interface {} is down; it is used as a rail once it comes up", r.name))
        .collect();
    Ok((rails, notes))
}

/// How many of these, from the first, have room in the address that a process publishes.
fn room(rails: &[Interface]) -> usize {
    let locators: Vec<Locator> = rails.iter().map(|r| Locator::ip(r.addr, 1)).collect();
    address::Rails::of(&locators).len()
}

/// The interfaces that a user may name, for error sentences.
fn usable_names(links: &[Link], addresses: &[LinkAddress]) -> String {
    let has = |l: &&Link| {
        address(l, addresses, true, true).is_some() || address(l, addresses, false, true).is_some()
    };
    let names: Vec<String> = links
        .iter()
        .filter(has)
        .map(|l| if l.running() { l.name.clone() } else { format!("{} (down)", l.name) })
        .collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// An interface as a user may want to see it: what it is, and whether it is a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// Its name.
    pub name: String,
    /// `ethernet`, `infiniband`, `loopback`, or what the kernel calls a kind without hardware: `veth`, `bridge`, `bond`, …
    pub kind: String,
    /// Nominal speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u32,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Up, with carrier.
    pub up: bool,
    /// Its addresses, each with the length of its network prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The address that names the rail, or why it is none.
    pub choice: Result<IpAddr, String>,
}

/// Every interface, with its place among `rails` (what [`choose`] gave for the same input; empty if it gave an error).
pub(crate) fn explain(
    links: &[Link],
    addresses: &[LinkAddress],
    selection: &[String],
    rails: &[Interface],
) -> Vec<Surveyed> {
    let why_not = |l: &Link| {
        if !selection.is_empty() {
            return if selection.contains(&l.name) {
                "FI_RERAIL_RAILS names it, but the selection as a whole cannot be used".into()
            } else {
                "FI_RERAIL_RAILS does not name it".into()
            };
        }
        if let Some(why) = unwanted(l) {
            return why;
        }
        match [true, false].iter().any(|&v4| address(l, addresses, v4, false).is_some()) {
            true => format!("an address can name {} rails only; choose with FI_RERAIL_RAILS", rails.len()),
            false => "it has no address that other hosts can reach".into(),
        }
    };
    let surveyed = links.iter().map(|l| Surveyed {
        name: l.name.clone(),
        kind: kind(l),
        speed_mbps: 0,
        mtu: l.mtu,
        up: l.running(),
        addresses: addresses.iter().filter(|a| a.index == l.index).map(|a| (a.addr, a.prefix_bits)).collect(),
        choice: rails.iter().find(|r| r.index == l.index).map_or_else(|| Err(why_not(l)), |r| Ok(r.addr)),
    });
    surveyed.collect()
}

fn kind(l: &Link) -> String {
    const ARPHRD_ETHER: u16 = 1;
    const ARPHRD_INFINIBAND: u16 = 32;
    match (l.kind.as_str(), l.hardware) {
        _ if loopback(l) => "loopback".into(),
        ("", ARPHRD_ETHER) => "ethernet".into(),
        ("", ARPHRD_INFINIBAND) => "infiniband".into(),
        ("", other) => format!("hardware type {other}"),
        (kind, _) => kind.into(),
    }
}

/// Fills in the nominal speeds, which the survey does not bring.
pub(crate) fn measure<'a>(interfaces: impl Iterator<Item = (&'a str, &'a mut u32)>) {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let Ok(s) = UdpSocket::bind(any) else { return };
    for (name, speed_mbps) in interfaces {
        *speed_mbps = sys::interface_speed(s.as_raw_fd(), name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;

    fn link(index: u32, name: &str, flags: u32, kind: &str, slave_of: &str) -> Link {
        let (kind, slave_of) = (kind.into(), slave_of.into());
        Link { index, flags, name: name.into(), mtu: 1500, hardware: 1, kind, slave_of }
    }

    fn addr(index: u32, a: &str) -> LinkAddress {
        let addr: IpAddr = a.parse().unwrap();
        LinkAddress { index, addr, prefix_bits: 24, usable: !addr.is_loopback() }
    }

    fn host() -> (Vec<Link>, Vec<LinkAddress>) {
        let lo = (libc::IFF_LOOPBACK | libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let links = vec![
            link(1, "lo", lo, "", ""),
            link(2, "eth0", UP, "", ""),
            link(3, "eth1", UP, "veth", ""),
            link(4, "docker0", UP, "bridge", ""),
            link(5, "vethab12", UP, "veth", "bridge"),
            link(6, "tap0", UP, "tun", ""),
            link(7, "eth2", libc::IFF_UP as u32, "", ""),
            link(8, "eth3", UP, "", "bond"),
            link(9, "eth4", UP, "", ""),
            link(10, "idrac", UP, "", ""),
            link(11, "br0", UP, "bridge", ""),
        ];
        let addresses = vec![
            addr(1, "127.0.0.1"),
            addr(2, "10.0.0.1"),
            addr(2, "fd00::1"),
            addr(3, "10.0.1.1"),
            addr(4, "172.17.0.1"),
            addr(5, "10.9.9.9"),
            addr(6, "10.8.0.1"),
            addr(7, "10.0.2.1"),
            addr(8, "10.0.3.1"),
            addr(9, "fd00:4::1"),
            addr(10, "169.254.0.1"),
            addr(11, "10.0.5.1"),
        ];
        (links, addresses)
    }

    fn names(r: &[Interface]) -> Vec<&str> {
        r.iter().map(|i| i.name.as_str()).collect()
    }

    fn pick(selection: &[&str]) -> Result<(Vec<Interface>, Vec<String>), String> {
        let (l, a) = host();
        let s: Vec<String> = selection.iter().map(|s| (*s).to_owned()).collect();
        choose(&l, &a, &s).map_err(|e| e.to_string())
    }

    #[test]
    fn without_a_selection_real_interfaces_and_plain_veths_are_taken() {
        // those with IPv6 only come last
        assert_eq!(names(&pick(&[]).unwrap().0), ["eth0", "eth1", "br0", "eth4"]);
    }

    #[test]
    fn ipv6_is_taken_when_no_interface_has_ipv4_and_loopback_when_there_is_nothing() {
        let (l, mut a) = host();
        a.retain(|a| a.addr.is_ipv6() || a.addr.is_loopback());
        assert_eq!(names(&choose(&l, &a, &[]).unwrap().0), ["eth0", "eth4"]);
        a.retain(|a| a.addr.is_loopback());
        let (r, notes) = choose(&l, &a, &[]).unwrap();
        assert_eq!((names(&r), notes.len()), (vec!["lo"], 1));
        assert!(choose(&l, &[], &[]).is_err());
    }

    #[test]
    fn a_selection_is_taken_in_its_order_whatever_the_kind() {
        assert_eq!(names(&pick(&["tap0", "idrac", "eth0"]).unwrap().0), ["tap0", "idrac", "eth0"]);
        assert_eq!(names(&pick(&["eth4", "eth0"]).unwrap().0), ["eth4", "eth0"]);
        assert!(pick(&["eth4", "eth0"]).unwrap().0.iter().all(|i| i.addr.is_ipv6()));
    }

    #[test]
    fn where_no_family_is_everywhere_each_interface_has_the_one_it_has() {
        let rails = pick(&["eth1", "eth4"]).unwrap().0;
        assert_eq!(names(&rails), ["eth1", "eth4"]);
        assert!(rails[0].addr.is_ipv4() && rails[1].addr.is_ipv6());
    }

    #[test]
    fn an_interface_that_is_down_but_has_an_address_is_a_rail_that_is_down() {
        let (r, notes) = pick(&["eth0", "eth2"]).unwrap();
        assert_eq!((r[1].up, notes.len()), (false, 1));
    }

    #[test]
    fn wrong_selections_are_answered_with_what_can_be_used() {
        let e = pick(&["eth9"]).unwrap_err();
        assert!(e.contains("\"eth9\"") && e.contains("eth0") && e.contains("eth2 (down)"), "{e}");
        let (l, mut a) = host();
        a.retain(|a| a.index != 4);
        let e = choose(&l, &a, &["eth1".to_owned(), "docker0".to_owned()]).unwrap_err().to_string();
        assert!(e.contains("\"docker0\"") && e.contains("no usable address"), "{e}");
        assert!(pick(&["eth0", "eth0"]).unwrap_err().contains("twice"));
    }

    #[test]
    fn every_interface_is_a_rail_or_told_why_not() {
        let (links, addresses) = host();
        let (rails, _) = choose(&links, &addresses, &[]).unwrap();
        let all = explain(&links, &addresses, &[], &rails);
        assert_eq!(all.len(), links.len());
        let chosen: Vec<&str> = all.iter().filter(|s| s.choice.is_ok()).map(|s| s.name.as_str()).collect();
        // here in the kernel's order, and not in that of the rails
        assert_eq!((chosen, rails.len()), (vec!["eth0", "eth1", "eth4", "br0"], 4));
        for (name, word) in [
            ("lo", "loopback"),
            ("docker0", "containers"),
            ("vethab12", "part of a bridge"),
            ("tap0", "kind tun"),
            ("eth2", "no carrier"),
            ("eth3", "part of a bond"),
            ("idrac", "that other hosts can reach"),
        ] {
            let why = all.iter().find(|s| s.name == name).unwrap().choice.clone().unwrap_err();
            assert!(why.contains(word), "{name}: {why}");
        }
        let eth0 = &all[1];
        assert_eq!((eth0.kind.as_str(), eth0.addresses.len(), all[4].kind.as_str()), ("ethernet", 2, "veth"));

        let selection = ["tap0".to_owned()];
        let (rails, _) = choose(&links, &addresses, &selection).unwrap();
        let all = explain(&links, &addresses, &selection, &rails);
        assert!(all[5].choice.is_ok());
        assert!(all[1].choice.clone().unwrap_err().contains("does not name it"));
    }

    #[test]
    fn more_interfaces_than_an_address_can_name() {
        let links: Vec<Link> = (0..10).map(|i| link(i + 1, &format!("e{i}"), UP, "", "")).collect();
        let addresses: Vec<LinkAddress> = (0..10).map(|i| addr(i + 1, &format!("10.1.{i}.1"))).collect();
        let (r, notes) = choose(&links, &addresses, &[]).unwrap();
        assert_eq!((r.len(), notes.len()), (8, 1));
        let all: Vec<String> = links.iter().map(|l| l.name.clone()).collect();
        assert!(choose(&links, &addresses, &all).unwrap_err().to_string().contains("at most 8"));
        let told = explain(&links, &addresses, &[], &r);
        assert!(told[9].choice.clone().unwrap_err().contains("8 rails only"));
    }
}
