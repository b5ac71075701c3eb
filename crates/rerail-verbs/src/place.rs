//! Addresses as the kernel has them, and as an adapter names them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The GID of an address on Ethernet (RoCE v2, InfiniBand specification annex A17.4.5.2).
pub fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address of such a GID.
pub fn ip_of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::from(gid).to_canonical()
}

/// Port of the connection manager that belongs to a service. A locator has room for one number: the queue pair of the
/// datagrams, which the adapter chooses; the port is chosen by it.
pub fn port(service: u32) -> u16 {
    (1024 + service % (65536 - 1024)) as u16
}

/// As the kernel wants it.
pub fn socket_address(at: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: numbers only, for which 0 is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match at {
        SocketAddr::V4(v4) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: it is shorter than the storage, and aligned no more.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(v6) => {
            let sin = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(sin) };
        }
    }
    storage
}

/// What the kernel says.
pub fn from_kernel(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let sin = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let sin = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(sin.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(sin.sin6_port), 0, sin.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_from_every_form() {
        for ip in ["10.1.2.3", "fd00::1:2"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(ip_of_gid(gid(ip)), ip);
            let at = SocketAddr::new(ip, 1234);
            assert_eq!(from_kernel(&socket_address(at)), Some(at));
        }
        // SAFETY: numbers only.
        assert_eq!(from_kernel(&unsafe { std::mem::zeroed() }), None);
    }

    #[test]
    fn every_service_has_a_port_above_the_reserved_ones() {
        for service in [0, 1, 17, 64_511, 64_512, 0x00ff_ffff, u32::MAX] {
            assert!(port(service) >= 1024);
        }
        assert_eq!((port(0), port(64_511), port(64_512)), (1024, 65_535, 1024));
    }
}
