//! The kind IP, as far as its rails, the simulator and tests share it: how a rail over an IP interface is described.

use crate::{Locator, RailDesc, Reach};
use std::net::SocketAddr;

/// Headers of a datagram: IPv4 or IPv6, and UDP.
const HEADER_BYTES: [u16; 2] = [28, 48];
/// Smallest MTU that is believed: IPv4's least (RFC 791) with its usual largest packet.
const MTU_LEAST: u16 = 576;
/// Connections side by side from one address to another: more than a fabric has routes.
const LANES_MAX: u8 = 64;
/// Source ports that datagrams to one place may come from.
const ROUTES_MAX: u8 = 8;
/// MTU that every network has (RFC 8200 §5 demands 1280; Ethernet has 1500).
const MTU_ASSUMED: u16 = 1500;

impl RailDesc {
    /// A rail over an interface that is up: reached `at`, on the network of the first `prefix_bits` bits, with packets of `mtu` bytes.
    pub fn ip(name: &str, at: SocketAddr, prefix_bits: u8, mtu: u16) -> RailDesc {
        let locator = Locator::from(at);
        let headers = HEADER_BYTES[usize::from(at.ip().to_canonical().is_ipv6())];
        RailDesc {
            name: name.to_owned(),
            locator,
            port: device(name).to_owned(),
            reach: Reach::by_prefix(locator, prefix_bits),
            speed_mbps: 0,
            datagram_bytes_max: mtu.max(MTU_LEAST) - headers,
            datagram_bytes_safe: mtu.clamp(MTU_LEAST, MTU_ASSUMED) - headers,
            lanes_max: LANES_MAX,
            routes_max: ROUTES_MAX,
            places_max: 0,
            streams_on_demand: false,
            sums_end_to_end: false,
            adapter: String::new(),
            up: true,
        }
    }
}

/// Name of the device behind an interface: VLANs (`eth0.5`) and aliases (`eth0:1`) share one.
fn device(interface: &str) -> &str {
    interface.split(['.', ':', '@']).next().unwrap_or(interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_and_aliases_share_the_port_of_their_device() {
        let rail = |name| RailDesc::ip(name, "10.0.0.1:1".parse().unwrap(), 24, 1500);
        let shares = |a, b| rail(a).shares_port_with(&rail(b));
        assert!(shares("eth0", "eth0.5") && shares("eth0:1", "eth0.5") && !shares("eth0", "eth1"));
        let own = RailDesc { port: String::new(), ..rail("eth0") };
        assert!(!own.shares_port_with(&own.clone()));
    }

    #[test]
    fn headers_are_taken_off_and_jumbo_frames_are_not_assumed() {
        let bytes = |at: &str, mtu| {
            let rail = RailDesc::ip("eth0", at.parse().unwrap(), 24, mtu);
            (rail.datagram_bytes_max, rail.datagram_bytes_safe)
        };
        assert_eq!(bytes("10.0.0.1:1", 9000), (8972, 1472));
        assert_eq!(bytes("[fd00::1]:1", 9000), (8952, 1452));
        assert_eq!(bytes("10.0.0.1:1", 1400), (1372, 1372));
        assert_eq!(bytes("10.0.0.1:1", 68), (548, 548));
    }
}
