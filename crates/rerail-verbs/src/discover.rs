//! Which addresses of this node belong to an RDMA adapter. Owns: the rules.
//!
//! RDMA-CM finds the adapter of an address, which is right for every kind of network: so each address is tried.

use crate::abi::*;
use crate::identifier::{Events, Identifier};
use crate::library::Library;
use crate::place::gid;
use rerail_rail::Kind;
use std::ffi::CStr;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;

/// A port of an adapter that may be a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What kind of rail it is.
    pub kind: Kind,
    /// The adapter's name, such as `mlx5_0`; with its port if it has several in use.
    pub name: String,
    /// The network interface of the port; empty: it has none (InfiniBand without IPoIB).
    pub interface: String,
    /// Where it is reached.
    pub address: Address,
}

/// Where a port is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// By an IP address.
    Ip {
        /// The address.
        ip: IpAddr,
        /// Length of its network prefix.
        prefix_bits: u8,
    },
    /// By a LID, which the subnet manager has given it.
    Lid(u16),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip { ip, .. } => ip.fmt(f),
            Address::Lid(lid) => write!(f, "LID {lid}"),
        }
    }
}

/// Names of adapters with several ports in use: with the port's number. `port_of`: device and port of each.
pub fn number_ports<T>(all: &mut [(Found, T)], port_of: impl Fn(&T) -> (*mut ibv_context, u8)) {
    for i in 0..all.len() {
        let (device, port) = port_of(&all[i].1);
        if all.iter().any(|(_, other)| port_of(other).0 == device && port_of(other).1 != port) {
            all[i].0.name = format!("{}:{port}", all[i].0.name);
        }
    }
}

/// The addresses of this node, with their interfaces and prefixes, in the kernel's order.
pub fn addresses() -> Vec<(String, IpAddr, u8)> {
    let mut all = Vec::new();
    let mut list: *mut libc::ifaddrs = null_mut();
    // SAFETY: a list is written, and freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return all;
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an entry of the list; names and addresses are valid until it is freed.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: as above.
        let (ip, mask) = unsafe { (ip_of(entry.ifa_addr), ip_of(entry.ifa_netmask)) };
        let up =
            entry.ifa_flags & libc::IFF_UP as u32 != 0 && entry.ifa_flags & libc::IFF_LOOPBACK as u32 == 0;
        if let (Some(ip), Some(mask), true) = (ip, mask, up) {
            let bits = match mask {
                IpAddr::V4(v4) => u32::from(v4).count_ones(),
                IpAddr::V6(v6) => u128::from(v6).count_ones(),
            };
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            all.push((name, ip, bits as u8));
        }
    }
    // SAFETY: the list of above.
    unsafe { libc::freeifaddrs(list) };
    all
}

/// # Safety
/// Null, or an address of the kernel.
unsafe fn ip_of(at: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the family is the first field of every kind.
    match i32::from(unsafe { at.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let sin = unsafe { &*at.cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(u32::from_be(sin.sin_addr.s_addr).to_be_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let sin = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(sin.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// Addresses of link-local networks name no rail: they mean nothing without an interface.
pub fn usable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    }
}

/// The name of an adapter.
///
/// # Safety
/// The context is open.
pub unsafe fn name(context: *mut ibv_context) -> String {
    // SAFETY: the caller's promise; the name ends in 0.
    unsafe { CStr::from_ptr((*(*context).device).name.as_ptr()) }.to_string_lossy().into_owned()
}

/// The kind of the rails of an adapter.
///
/// # Safety
/// The context is open.
unsafe fn kind(context: *mut ibv_context) -> Option<Kind> {
    // SAFETY: the caller's promise.
    match unsafe { (*(*context).device).transport_type } {
        IBV_TRANSPORT_IB => Some(Kind::ROCE),
        IBV_TRANSPORT_IWARP => Some(Kind::IWARP),
        _ => None,
    }
}

/// The place of an address in the table of the adapter's addresses, as RoCE v2.
///
/// # Safety
/// The context is open.
pub unsafe fn gid_index(library: &Library, context: *mut ibv_context, port: u8, ip: IpAddr) -> Option<u8> {
    // SAFETY: the caller's promise.
    let device = unsafe { name(context) };
    (0..=u8::MAX).find(|&index| {
        let mut found = ibv_gid { raw: [0; 16] };
        // SAFETY: as above.
        let known = unsafe { (library.ibv_query_gid)(context, port, index.into(), &raw mut found) } == 0;
        known && found.raw == gid(ip) && {
            let kind = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
            std::fs::read_to_string(kind).is_ok_and(|kind| kind.trim() == "RoCE v2")
        }
    })
}

/// Every address with an adapter; of each port of an adapter the first, an IPv4 address if it has one.
pub fn discover(events: &Events) -> Vec<(Found, Identifier)> {
    let mut all = addresses();
    all.sort_by_key(|(_, ip, _)| ip.is_ipv6());
    let mut found: Vec<(Found, Identifier)> = Vec::new();
    for (interface, ip, prefix_bits) in all.into_iter().filter(|(_, ip, _)| usable(*ip)) {
        let Ok(id) = events.bind(SocketAddr::new(ip, 0), 0) else { continue };
        if found.iter().any(|(_, other)| other.device() == id.device()) {
            continue;
        }
        // SAFETY: librdmacm keeps it open.
        let (name, kind) = unsafe { (name(id.device().0), kind(id.device().0)) };
        let Some(kind) = kind else { continue };
        let address = Address::Ip { ip, prefix_bits };
        found.push((Found { kind, name, interface, address }, id));
    }
    number_ports(&mut found, Identifier::device);
    found
}
