//! Which own rail is joined with which remote address: the paths to a new peer.
//!
//! Source: MN-uDAPL §4.1.1 asks for one common interface; differs: unequal counts and networks are normal.

use crate::types::LocalRail;
use std::net::IpAddr;

/// Whether `other` is on the network of `own`, whose prefix has so many bits.
pub fn same_network(own: IpAddr, prefix_bits: u8, other: IpAddr) -> bool {
    let bits = u32::from(prefix_bits);
    match (own, other) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            u32::from(a) & mask == u32::from(b) & mask
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            u128::from(a) & mask == u128::from(b) & mask
        }
        _ => false,
    }
}

/// Pairs own rails with a peer's addresses by reachability: the same network first; when there is none in common, by
/// place. Every rail of either side that can be paired is, so unequal counts are normal.
pub(crate) fn pair_rails(own: &[LocalRail], remote: &[IpAddr]) -> Vec<(usize, usize)> {
    let family: Vec<usize> =
        (0..remote.len()).filter(|&j| remote[j].is_ipv4() == own[0].addr.is_ipv4()).collect();
    // a peer on this very host has our own addresses: each is best reached over itself
    let mut near: Vec<(usize, usize)> = Vec::new();
    for (i, r) in own.iter().enumerate() {
        for &j in &family {
            if same_network(r.addr, r.prefix_bits, remote[j]) {
                near.push((i, j));
            }
        }
    }
    near.sort_by_key(|&(i, j)| (own[i].addr != remote[j], i.abs_diff(j), i));
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let used = |pairs: &[(usize, usize)], i: Option<usize>, j: Option<usize>| {
        pairs.iter().any(|&(a, b)| i.is_none_or(|i| i == a) && j.is_none_or(|j| j == b))
    };
    for &(i, j) in &near {
        if !used(&pairs, Some(i), None) && !used(&pairs, None, Some(j)) {
            pairs.push((i, j));
        }
    }
    for &(i, j) in &near {
        if !used(&pairs, Some(i), None) || !used(&pairs, None, Some(j)) {
            pairs.push((i, j));
        }
    }
    if pairs.is_empty() && !family.is_empty() {
        for k in 0..own.len().max(family.len()) {
            pairs.push((k % own.len(), family[k % family.len()]));
        }
    }
    pairs.truncate(16);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(addr: &str, prefix_bits: u8) -> LocalRail {
        LocalRail {
            name: "r".into(),
            addr: addr.parse().unwrap(),
            prefix_bits,
            speed_mbps: 0,
            mtu: 1500,
            up: true,
        }
    }

    #[test]
    fn networks_are_compared_as_far_as_they_go() {
        let same = |a: &str, b: &str, bits| same_network(a.parse().unwrap(), bits, b.parse().unwrap());
        assert!(same("10.1.2.3", "10.1.2.99", 24) && !same("10.1.2.3", "10.1.3.3", 24));
        assert!(same("10.1.2.3", "11.1.2.3", 0) && !same("10.1.2.3", "10.1.2.2", 32));
        assert!(same("fd00::1", "fd00::ffff:1", 64) && !same("fd00::1", "fd00:0:0:1::1", 64));
        assert!(same("fd00::1", "fe00::1", 0) && !same("fd00::1", "fd00::2", 128));
        assert!(!same("10.1.2.3", "fd00::1", 0));
    }

    #[test]
    fn rails_are_paired_on_their_networks() {
        let own = [rail("10.1.0.1", 24), rail("10.2.0.1", 24)];
        let remote = ["10.2.0.2".parse().unwrap(), "10.1.0.2".parse().unwrap()];
        let mut p = pair_rails(&own, &remote);
        p.sort_unstable();
        assert_eq!(p, [(0, 1), (1, 0)]);
    }

    #[test]
    fn unequal_counts_are_paired_too() {
        let own = [rail("10.1.0.1", 16), rail("10.1.0.3", 16)];
        let remote = ["10.1.0.2".parse().unwrap()];
        let mut p = pair_rails(&own, &remote);
        p.sort_unstable();
        assert_eq!(p, [(0, 0), (1, 0)]);
    }

    #[test]
    fn without_a_common_network_rails_are_paired_by_place() {
        let own = [rail("10.1.0.1", 24), rail("10.2.0.1", 24)];
        let remote = ["10.3.0.2".parse().unwrap(), "10.4.0.2".parse().unwrap(), "10.5.0.2".parse().unwrap()];
        assert_eq!(pair_rails(&own, &remote), [(0, 0), (1, 1), (0, 2)]);
    }

    #[test]
    fn a_peer_on_the_same_host_is_reached_over_the_same_address() {
        let own = [rail("10.1.0.1", 8), rail("10.2.0.1", 8)];
        let remote = ["10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap()];
        assert_eq!(pair_rails(&own, &remote), [(0, 0), (1, 1)]);
    }
}
